"""What every run of the tests needs: the tools on the path, and a word on what Chromium is missing for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# Neither folder is a package: the tools are scripts, the extensions are found by Sphinx through _config.yml.
sys.path.insert(0, str(Path(__file__).parent / "_ext"))
sys.path.insert(0, str(Path(__file__).parent / "tools"))
from browsers import find_chromium

NO_CHROMIUM = "needs Chromium (not found as $CHROMIUM, chromium, chromium-browser or google-chrome)"


@pytest.fixture(scope="session")
def chromium() -> str:
    """Return the browser's path; the tests that ask for it are skipped where there is none."""
    path = find_chromium()
    assert path is not None
    return path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the tests that need a browser where there is none."""
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
