"""Every equation has a test, every mark an equation, and the committed table is that of the sources."""

from pathlib import Path

import pytest

import ledger

ROOT = Path(__file__).resolve().parents[2]


def test_every_equation_is_labelled_and_tested_and_every_mark_has_its_equation() -> None:
    problems = ledger.all_problems(ROOT)
    if problems:
        lines = ["the chapters and their tests do not match:", *map(str, problems)]
        pytest.fail("\n".join(lines), pytrace=False)


def test_the_committed_table_names_what_the_sources_hold() -> None:
    # What a run measures is held against the table by the plugin, at the end of the run.
    equations, _ = ledger.read_equations(ROOT)
    marks, _ = ledger.read_marks(ROOT)
    differences = ledger.out_of_date(equations, marks, ledger.read_table(ROOT))
    if differences:
        pytest.fail(
            "\n".join([f"{ledger.COMMITTED} is out of date (`make ledger`):", *differences]), pytrace=False
        )
