"""What every run of the tests needs: the tools on the path, and a word on what Chromium is missing for."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
NO_CHROMIUM = "needs Chromium (not found as $CHROMIUM, chromium, chromium-browser or google-chrome)"

# The fixtures that build a book, or look at one in a browser.
SLOW = {"built_site", "tiny_book", "chromium"}

# Neither folder is a package: the tools are scripts, the extensions are found by Sphinx through _config.yml.
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "_ext")]


def find_chromium() -> str | None:
    """Return the browser to test with, or None."""
    names = [os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome"]
    return next((path for name in names if name and (path := shutil.which(name))), None)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Return the browser's path; the tests that ask for it are skipped where there is none."""
    path = find_chromium()
    assert path is not None
    return path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow tests by what they ask for; leave out those that need a browser where there is none."""
    for item in items:
        if SLOW & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
    if find_chromium() is None:
        for item in items:
            if "chromium" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.skip(reason=NO_CHROMIUM))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the tests that were left out."""
    left_out = [
        report.nodeid
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple) and NO_CHROMIUM in report.longrepr[2]
    ]
    if left_out:
        terminalreporter.section(f"left out: {len(left_out)} tests of the built site")
        terminalreporter.write_line(f"Each {NO_CHROMIUM}:")
        for name in sorted(left_out):
            terminalreporter.write_line(f"  {name}")
