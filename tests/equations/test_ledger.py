"""Every equation has a label and a test, every mark an equation, and chapter and quotation agree."""

from pathlib import Path

import pytest

import ledger


def test_every_equation_is_tested_and_every_mark_has_its_equation() -> None:
    if said := ledger.problems(Path(__file__).resolve().parents[2]):
        pytest.fail("\n".join(["the chapters and their tests do not match:", *said]), pytrace=False)
