"""Run everything that CI runs, in this order, and stop at the first stage that fails.

    python tools/test.py            lint, types, the build, then all tests and every stored output
    python tools/test.py --quick    lint, types and the tests that need neither the build nor a browser

The last stage is one run of pytest over the tests, the package's doctests and the chapters (nbval), spread
over the cores, so that a long chapter runs beside the browser. Its closing line, the last, counts them all.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from common import CELL_TIMEOUT, ONE_THREAD, ROOT, say

PYTHON = [sys.executable]
PYTEST = [*PYTHON, "-m", "pytest"]


def stage(name: str, command: list[str]) -> None:
    """Run one command in the repository's root; leave with its status if it fails."""
    say(f"== {name}")
    begin = time.perf_counter()
    environment = {**os.environ, **ONE_THREAD, "PYTHONUNBUFFERED": "1"}
    status = subprocess.run(command, cwd=ROOT, env=environment).returncode
    if status:
        raise SystemExit(f"{name} failed (status {status}, {time.perf_counter() - begin:.0f} s)")


def main() -> None:
    """Read the command line and run the stages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="no build, no browser, no notebooks")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="tests run at once")
    parser.add_argument("pytest", nargs="*", help="more arguments for pytest, after --")
    options = parser.parse_args()

    ruff = str(Path(sys.executable).with_name("ruff"))
    stage("lint", [ruff, "check", "."])
    stage("format", [ruff, "format", "--check", "."])
    stage("types", [*PYTHON, "-m", "mypy"])
    # A chapter's cells share a kernel and a file's tests their fixtures, so a file goes to one worker.
    # conftest.py puts the files in the order in which they are to begin.
    spread = ["-n", str(options.jobs), "--dist", "loadfile", "--no-loadscope-reorder", *options.pytest]
    if options.quick:
        stage("tests", [*PYTEST, *spread, "-m", "not slow", "tests", "code"])
        return
    stage("book", [*PYTHON, "tools/book.py", "--jobs", str(options.jobs)])
    notebooks = ["--nbval", "--nbval-current-env", f"--nbval-cell-timeout={CELL_TIMEOUT}"]
    stage("tests", [*PYTEST, *spread, *notebooks, "tests", "code", "chapters"])


if __name__ == "__main__":
    main()
