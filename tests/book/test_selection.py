"""Which tests `make check` leaves out, and in which order `make test` begins the files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
QUICK, BUILDS, CHAPTER = (
    "tests/xent/test_information.py",
    "tests/book/test_planted.py",
    "chapters/01_binary.ipynb",
)
pytestmark = pytest.mark.slow


def collected(*options: str) -> list[str]:
    """The files of the tests that pytest would run, in the order in which they first come."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--nbval", *options]
    done = subprocess.run([*command, QUICK, CHAPTER, BUILDS], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    names = [line.split("::")[0] for line in done.stdout.splitlines() if "::" in line]
    return list(dict.fromkeys(names))


def test_what_builds_a_book_is_slow_and_begins() -> None:
    assert collected() == [BUILDS, CHAPTER, QUICK]
    assert collected("-m", "not slow") == [CHAPTER, QUICK]
