"""Errors planted in a book of one equation, one claim, one erratum: pytest and the build say what and where."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import yaml

import ledger
import marks

ROOT = Path(__file__).resolve().parents[2]
STATED = "# Planted\n\n$$\n\\ell = \\log(1 + e^z) \\\\\n- y z\n$$ (eq-planted)\n"
TESTED = r'''
import numpy as np
import pytest


@pytest.mark.parametrize("y", [0.0, 1.0])
@pytest.mark.equation("eq-planted", by="reference")
def test_planted(y):
    r"""
    $$
    \ell = \log(1 + e^z)
    \\ - y z
    $$ (eq-planted)
    """
    z = np.array([-1.0, 0.5, 1.0])
    p = 1 / (1 + np.exp(-z))
    assert np.allclose(np.log(1 + np.exp(z)) - y * z, -np.log(p if y else 1 - p))
'''
TESTS = "tests/equations"


def write_book(root: Path, *cells: str, **tests: str) -> None:
    """Write a chapter of Markdown cells, and files of equation tests."""
    notebook = {"cells": [{"cell_type": "markdown", "source": cell} for cell in cells]}
    files = {f"{TESTS}/test_{name}.py": text for name, text in tests.items()}
    for name, text in {**files, "chapters/01_planted.ipynb": json.dumps(notebook)}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


# What is planted: the second cell and the first; the test; and what is said of it.
CELL, TEST = "chapters/01_planted.ipynb, cell 2: ", "tests/equations/test_it.py:7: "
UNLABELLED = CELL + "displayed equation without a label: "
TAKEN = CELL + "label eq-planted is taken by chapters/01_planted.ipynb, cell 1"
DISAGREES = "equation eq-planted is not what its test quotes\n  chapters/01_planted.ipynb, cell 1:"
UNQUOTED = TEST + "the docstring of test_planted does not quote equation eq-planted"
MISPLACED = "tests/equations/test_it.py:19: the mark decorates a test at the top level"
AGAIN = '\npytestmark = pytest.mark.equation("eq-planted", by="property")\n'
PLANTED = {
    "displayed": (STATED, "$$ a = b $$", TESTED, UNLABELLED + "a = b"),
    "in a sentence": (STATED, "in a sentence $$a = b$$ here", TESTED, UNLABELLED + "a = b"),
    "quoted": (STATED, "> $$\n> a = b\n> $$", TESTED, UNLABELLED),
    "behind code": (STATED, "````{exercise}\n```\n$$\n```\n\n$$ a = b $$\n````", TESTED, UNLABELLED + "a"),
    "align": (STATED, "\\begin{align}\na &= b\n\\end{align}", TESTED, UNLABELLED + "\\begin{align}"),
    "directive": (STATED, "```{math}\n:label: eq-b\na = b\n```", TESTED, UNLABELLED + "{math}"),
    "a bad label": (STATED, "$$ a $$ (eq_b)", TESTED, CELL + "displayed equation with the label 'eq_b'"),
    "a label twice": (STATED, "$$ a = b $$ (eq-planted)", TESTED, TAKEN),
    "untested": (STATED, "$$ a = b $$ (eq-b)", TESTED, CELL + "equation eq-b has no test"),
    "unstated": ("# Nothing left", "", TESTED, TEST + "test_planted checks eq-planted, a label that no"),
    "a sign": (STATED.replace("- y", "+ y"), "", TESTED, DISAGREES),
    "no quotation": (STATED, "", TESTED.replace("(eq-planted)", ""), UNQUOTED),
    "a method": (STATED, "", TESTED.replace('"reference"', '"guess"'), "checks eq-planted by 'guess'"),
    "no method": (STATED, "", TESTED.replace(', by="reference"', ""), TEST + "test_planted: write @pytest"),
    "misplaced": (STATED, "", TESTED + AGAIN, MISPLACED),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_error_is_named(tmp_path: Path, name: str) -> None:
    first, second, test, message = PLANTED[name]
    write_book(tmp_path, first, second, it=test)
    assert message in "\n".join(marks.problems(tmp_path))


def test_a_row_that_reads_no_equation_is_named(tmp_path: Path) -> None:
    rows = 'ROWS: dict[str, object] = {\n    "eq-planted": 1,\n    "eq-gone": (1, "a side"),\n}\n'
    # What is read has no test of its own.
    write_book(tmp_path, STATED, read=rows)
    assert marks.read_from_the_page(tmp_path) == {"eq-planted": (2, 0), "eq-gone": (3, 1)}
    assert marks.problems(tmp_path) == [
        "tests/equations/test_read.py:3: ROWS reads eq-gone, a label that no chapter has"
    ]
    write_book(tmp_path, STATED, it=TESTED, read=rows.replace("gone", "planted"))
    (said,) = marks.problems(tmp_path)
    assert said.startswith(
        TEST + "test_planted transcribes eq-planted, which tests/equations/test_read.py reads"
    )


def test_what_is_no_displayed_equation_needs_no_label(tmp_path: Path) -> None:
    code = "inline $a$, `$$ code $$`, \\$\\$5\n\n```python\n$$ a $$\n```\n\n<!-- $$ a $$ -->"
    write_book(tmp_path, STATED, f"{code}\n\n```{{code-block}} md\n$$ a $$\n```", it=TESTED)
    assert marks.problems(tmp_path) == []
    assert marks.chapter_titles(tmp_path) == {"01_planted": "Planted"}


CLAIMED = '''
import pytest


@pytest.mark.claim("01", "This is a fair coin.")
def test_coin():
    """A thousand throws. Would be refuted by a coin that is not."""
    with refuted("two heads"):
        assert False
'''


ONCE_MORE = '@pytest.mark.claim("01", "This is a fair coin.")\n'


@pytest.mark.parametrize(
    ("test", "said"),
    [
        (CLAIMED, ""),
        (CLAIMED.replace("fair", "fairer"), "chapter 01 does not say:\n    This is a fairer coin."),
        (CLAIMED.replace("coin.", "co"), "chapter 01 does not say:\n    This is a fair co"),
        (
            CLAIMED.replace("This is a fair coin.", "is"),
            "chapter 01 says 2 times (quote more words):\n    is",
        ),
        (
            CLAIMED.replace("@", ONCE_MORE + "@"),
            "begins as the claim at tests/equations/test_it.py:22: quote",
        ),
        (CLAIMED.replace('"01"', '"02"'), "chapter 02 does not say:\n    This is a fair coin."),
        (CLAIMED.replace('"01", ', ""), "write @pytest.mark.claim"),
        (CLAIMED.replace("Would be refuted by", "Not"), 'names no input, "Would be refuted by ..."'),
        (CLAIMED.replace("with refuted", "if "), "nothing is refuted"),
    ],
)
def test_a_claim_is_what_its_chapter_says(tmp_path: Path, test: str, said: str) -> None:
    # The mark may stand on any test, beside others of another kind.
    write_book(
        tmp_path,
        STATED,
        "A sentence is said. This is **a fair\ncoin.** <!-- This is a fair coin. -->",
        it=TESTED + test,
    )
    problems = marks.problems(tmp_path)
    assert len(problems) == bool(said) and all(said in problem for problem in problems)
    assert all(re.match("tests/equations/test_it.py:2[23]: test_coin: ", problem) for problem in problems)


def test_a_mark_stands_where_its_sentence_ends(tmp_path: Path) -> None:
    """Also where another's words begin with it, or end with it."""
    others = "".join(ONCE_MORE.replace("This is a fair coin.", o) for o in ("This is a fair", "a fair coin."))
    cell = "This is **a fair\ncoin.** A fairer one."
    write_book(tmp_path, STATED, cell, it=TESTED + CLAIMED.replace("@", others + "@"))
    app = SimpleNamespace(srcdir=tmp_path, env=SimpleNamespace(doc2path="{}.ipynb".format))
    text = [nbformat.writes(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(cell)]))]
    ledger._mark(app, "01_planted", text)
    marked = re.sub(r"\{claim\}`claim-01-(.*?)`", r"<\1>", nbformat.reads(text[0], 4).cells[0].source)
    assert (
        marked == "This is **a fair<this-is-a-fair>\ncoin.**<a-fair-coin><this-is-a-fair-coin> A fairer one."
    )
    assert marks.problems(tmp_path) == []


ROW = """
def rows():
    yield source("{id}", False)
"""
MARKED = '@pytest.mark.erratum("3.1", "{verdict}")\ndef test_it():\n    assert True\n'


def a_book_with_errata(
    root: Path, text: str, rows: dict[str, str], tried: str, marked: str = ""
) -> list[str]:
    """Return what is wrong with a book of one section, rows of errata and their verdicts, and tests of them."""
    row = {"place": "there", "stands": "a", "truth": "b", "section": ["01_coin", "Heads"], "says": "It is b."}
    cards = [{"id": i, "verdict": verdict, **row} for i, verdict in rows.items()]
    source = {"id": 3, "title": "A post", "about": "It."}
    for name, content in (
        ("chapters/01_coin.md", f"# A coin\n\n{text}"),
        (marks.ERRATA, yaml.safe_dump({"sources": [source], "rows": cards})),
        (marks.TRIED, tried),
        ("tests/test_coin.py", marked),
    ):
        (root / name).parent.mkdir(exist_ok=True, parents=True)
        (root / name).write_text(content)
    return marks.problems(root)


@pytest.mark.parametrize(
    ("text", "tried", "told"),
    [
        ("## Heads\n\n### One\n\nIt\nis b.\n", ("3.1", "3.11"), []),
        # 3.11 is not tried by what is tried of 3.1, whose number begins alike.
        (
            "## Heads\n\nIt is b.\n",
            ("3.1", "3.2"),
            ["rows checks 3.2, which is no row", "row 3.11 has no test"],
        ),
        # The correction stands behind the section that the card names.
        (
            "## Heads\n\n## Tails\n\nIt is b.\n",
            ("3.1", "3.11"),
            ["row 3.1: the section 'Heads'", "row 3.11: the"],
        ),
    ],
)
def test_a_row_of_the_errata_is_tried_and_has_its_correction(
    tmp_path: Path, text: str, tried: tuple[str, ...], told: list[str]
) -> None:
    rows = "".join(ROW.format(id=id) for id in tried)
    problems = a_book_with_errata(tmp_path, text, {"3.1": "wrong", "3.11": "wrong"}, rows)
    assert len(problems) == len(told)
    assert all(part in problem for part, problem in zip(told, problems, strict=True))


@pytest.mark.parametrize("verdict", marks.VERDICTS)
def test_a_mark_has_the_verdict_of_its_row(tmp_path: Path, verdict: str) -> None:
    marked, row = MARKED.format(verdict=verdict), ROW.format(id="3.1")
    problems = a_book_with_errata(tmp_path, "## Heads\n\nIt is b.\n", {"3.1": "slip"}, row, marked)
    told = [f"{marks.ERRATA}: row 3.1 says 'slip', and tests/test_coin.py:1, test_it, {verdict!r}"]
    assert problems == told * (verdict != "slip")
