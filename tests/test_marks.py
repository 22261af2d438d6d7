"""Chapters and tests agree: every equation and every erratum has its test, every mark what it names."""

from pathlib import Path

import pytest

import marks


def test_what_the_tests_are_marked_with_is_what_the_chapters_state() -> None:
    if said := marks.problems(Path(__file__).resolve().parents[1]):
        pytest.fail("\n".join(["the chapters and their tests do not match:", *said]), pytrace=False)
