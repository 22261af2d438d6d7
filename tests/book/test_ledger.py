"""Errors planted in a book of one equation, one claim, one erratum: pytest and the build say what and where."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest
import yaml

import adversary
import evidence
import marks

ROOT = Path(__file__).resolve().parents[2]
STATED = "# Planted\n\n$$\n\\ell = \\log(1 + e^z) \\\\\n- y z\n$$ (eq-planted)\n"
TESTED = r'''
import numpy as np
import pytest


@pytest.mark.parametrize("y", [0.0, 1.0])
@pytest.mark.equation("eq-planted")
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
DISAGREES = TEST + "test_planted does not quote eq-planted as chapters/01_planted.ipynb, cell 1"
MISPLACED = "tests/equations/test_it.py:19: the mark decorates a test at the top level"
AGAIN = '\npytestmark = pytest.mark.equation("eq-planted")\n'
PLANTED = {
    "displayed": (STATED, "$$ a = b $$", TESTED, UNLABELLED + "a = b"),
    "behind code": (STATED, "````{exercise}\n```\n$$\n```\n\n$$ a = b $$\n````", TESTED, UNLABELLED + "a"),
    "align": (STATED, "\\begin{align}\na &= b\n\\end{align}", TESTED, UNLABELLED + "\\begin{align}"),
    "directive": (STATED, "```{math}\n:label: eq-b\na = b\n```", TESTED, UNLABELLED + "{math}"),
    "a bad label": (STATED, "$$ a $$ (eq_b)", TESTED, CELL + "displayed equation with the label 'eq_b'"),
    "a label twice": (STATED, "$$ a = b $$ (eq-planted)", TESTED, TAKEN),
    "untested": (STATED, "$$ a = b $$ (eq-b)", TESTED, CELL + "equation eq-b has no test"),
    "unstated": ("# Nothing left", "", TESTED, TEST + "test_planted checks eq-planted, a label that no"),
    "a sign": (STATED.replace("- y", "+ y"), "", TESTED, DISAGREES),
    "no quotation": (STATED, "", TESTED.replace("(eq-planted)", ""), DISAGREES),
    "a method": (STATED, "", TESTED.replace('planted")', 'planted", "x")'), TEST + "test_planted: write @pytest"),
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
    gone = "tests/equations/test_read.py:3: ROWS reads eq-gone, a label that no chapter has"
    assert marks.problems(tmp_path) == [gone]
    write_book(tmp_path, STATED, it=TESTED, read=rows.replace("gone", "planted"))
    (said,) = marks.problems(tmp_path)
    assert said.startswith(
        f"{TEST}test_planted transcribes eq-planted, which tests/equations/test_read.py reads"
    )


def test_what_is_no_displayed_equation_needs_no_label(tmp_path: Path) -> None:
    code = "inline $a$, `$$ code $$`, \\$\\$5\n\n```python\n$$ a $$\n```\n\n```{code-block} md\n$$ a $$\n```"
    write_book(tmp_path, STATED, code, it=TESTED)
    assert marks.problems(tmp_path) == []
    assert marks.chapter_titles(tmp_path) == {"01_planted": "Planted"}


CLAIMED = """
import pytest


@pytest.mark.claim("01", "This is a fair")
def test_coin():
    with refuted("two heads"):
        assert False
"""
ROW = """
@claim("01", "This is a fair", on=[0, 1], but_not={"two heads": 2})
def test_coin(side):
    assert side < 2
"""
ANOTHER = 'test_other = claim("01", "{}", but_not={{"it": 2}})(test_coin)\n'.format
WRITE_ROW = "write @claim("


@pytest.mark.parametrize(
    ("test", "said"),
    [
        (CLAIMED, ""),
        (ROW + ANOTHER("A sentence is"), ""),
        (ROW.replace('fair"', 'fair", "A sentence is"'), ""),
        (ROW.replace('{"two', '{**{f"{n} heads": n for n in (2, 3)}, "two'), ""),
        (ROW.replace('{"two heads": 2}', "tails()"), ""),
        (ROW.replace("This is a fair", "A sentence ... a fair coin"), ""),
        (CLAIMED.replace("fair", "fai"), "chapter 01 does not say:\n    This is a fai\n"),
        (ROW.replace("a fair", "a ... fairer"), "chapter 01 does not say:\n    This is a ... fairer\n"),
        (ROW.replace("This is a fair", "is"), "says 2 times, in 01_planted.ipynb, cell 2:\n    is\n"),
        (
            ROW.replace("@", ROW + "@"),
            "begins as the claim at tests/equations/test_it.py:20: test_coin: give",
        ),
        (ROW + ANOTHER("fair coin"), "ends where the claim at tests/equations/test_it"),
        (ROW + ANOTHER("nothing"), "test_other: chapter 01 does not say:"),
        (ROW.replace('"01"', '"02"'), "chapter 02 does not say:"),
        (CLAIMED.replace('"01", ', ""), "write @pytest.mark.claim"),
        (ROW.replace('"01", ', ""), WRITE_ROW),
        (ROW.replace('{"two heads": 2}', "{}"), "nothing is refuted"),
        (ROW.replace(', but_not={"two heads": 2}', ""), WRITE_ROW),
        (ROW.replace("on=", "one="), WRITE_ROW),
        (CLAIMED.replace("with refuted", "if "), "nothing is refuted"),
        ("\n\n" + ROW.replace("test_coin", "coin"), "the mark decorates a test at the top level of the file"),
    ],
)
def test_a_claim_is_what_its_chapter_says(tmp_path: Path, test: str, said: str) -> None:
    write_book(tmp_path, STATED, "A sentence is said. This is **a fair\ncoin.**", it=TESTED + test)
    problems = marks.problems(tmp_path)
    assert len(problems) == bool(said) and all(said in problem for problem in problems)
    assert all(re.match(r"tests/equations/test_it.py:\d\d: (test_|the mark)", line) for line in problems)


# The words of a claim, what its card shows, and all that stands around it.
SENTENCES = {
    "begins": ("Before. ", "A coin **begins** with 1.5 of $a. b$, e.g. this.", " And after."),
    "the colon": ("Dr. Who says: ", "*the colon ends:*", " and begins."),
    "a semicolon": ("", "And a semicolon does (so; even: here) as well;", " next"),
    "`log. p`": ("One! ", "Code `log. p` and [a link](a.b) are opaque:", "\n\n$$\na\n$$"),
    "in a parenthesis": ("This (", "what stands in a parenthesis", ") is short."),
    "wholly": ("Before. (", "Put wholly into one.", ") After"),
    "(Put": ("Before. ", "(Put wholly into one.)", " After"),
    "the last": ("(Two. ", "Of them the last.", ") After"),
    "in quotes": ("He says: ", '"What stands in quotes."', " After"),
    "an item": ("- one\n  two\n- ", "an item of\n  two lines", "\n- three"),
    "a number": ("1. ", "a number of a list", "\n2. two"),
    "a cell": ("| a | b |\n|---|---|\n| c. | ", "a cell", " |\n| d | e |"),
    "a paragraph": ("Before\n\n", "a paragraph without an end", "\n\nafter"),
    "a part,": ("Before: ", "to claim a part,", " but no more."),
    "the first ... the last": ("Before, ", "the first. And: the last", ", they say."),
    "two. Sentences": ("One; ", "two. Sentences are one.", " Three."),
}


def test_a_file_of_claims_is_of_a_chapter(tmp_path: Path) -> None:
    """Also where a row names another one, as it may."""
    rows = [ROW.replace('"01", ', ""), ROW.replace("coin", "more").replace("This is a fair", "is a coin")]
    rows += [ROW.replace("coin", "most").replace('"01", "This is a fair"', '"line", "on the line"')]
    for name, said in (("claims/test_01_coins", []), ("claims/test_02", ["chapter 02 does not say:"])):
        write_book(tmp_path / name, STATED, "This is a fair one. It is a coin.", it=TESTED)
        path = tmp_path / name / f"tests/{name}.py"
        path.parent.mkdir()
        path.write_text("".join(rows))
        (tmp_path / name / "chapters/line.md").write_text("This is on the line.")
        problems = marks.problems(tmp_path / name)
        assert [line.partition("test_coin: ")[2].partition("\n")[0] for line in problems] == said


@pytest.mark.parametrize("words", SENTENCES)
def test_a_sentence_ends_where_it_ends(words: str) -> None:
    before, said, after = SENTENCES[words]
    cell = before + said + after
    [(begin, end)] = marks.Mark("claim", "01", words, "", "", 0, "", "").places(cell)
    assert cell[begin:end] == said


def test_a_card_shows_no_half_of_an_emphasis() -> None:
    for text, shown in (
        ("**Begun and $q^*$", "Begun and $q^*$"),
        ("*all* of `**it`", "*all* of `**it`"),
        ("ended.*", "ended."),
    ):
        assert marks.as_sentence(text) == shown


def test_a_mark_stands_where_its_sentence_ends(tmp_path: Path) -> None:
    """Also where another's words stand in it."""
    cell = "This is **a fair\ncoin.** A fairer one."
    test = ROW.replace('"This is a fair"', '"This is ... fair", "A fairer", "a fair"')
    write_book(tmp_path, STATED, cell, it=TESTED + test)
    text = nbformat.writes(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(cell)]))
    text = evidence.mark_claims(tmp_path, "01_planted", text)
    source = nbformat.reads(text, 4).cells[0].source
    marked = re.sub('<a class="claim" id="said-claim-01-(.*?)".*?✓</a>', r"<\1>", source)
    assert marked == "This is **a fair<this-is-fair>\ncoin.**<a-fair> A fairer one.<a-fairer>"
    assert marks.problems(tmp_path) == []


def test_a_row_tries_all_its_inputs_and_rejects_each_of_the_others() -> None:
    def check(a: int, b: int = 0) -> None:
        """What is tried."""
        tried.append((a, b))
        assert a / (b - 9) < 1

    tried: list[tuple[int, int]] = []
    on, but_not = [1, (2, 3), {"b": 4, "a": 5}], {"six": (-60, 6), "seven": {"a": -70, "b": 7}}
    test = adversary.claim("01", "It is", on=on, but_not=but_not)(check)
    test()
    assert tried == [(1, 0), (2, 3), (5, 4), (-60, 6), (-70, 7)] and test.__doc__ == "What is tried."
    adversary.claim("01", "It is", on=lambda: iter(on), but_not=lambda: but_not)(check)()
    adversary.claim("01", "It is", but_not={"six": (-60, 6)})(lambda a=1, b=2: check(a, b))()
    for planted, message in (
        ({"on": [*on, -10]}, "input 4 of the claim: -10"),
        ({"but_not": {**but_not, "eight": (80, 8)}}, "the assertion accepts eight"),
        ({"on": iter(())}, "0 inputs are tried"),
        ({"but_not": {}}, "0 have to be rejected"),
        ({"but_not": {"nine": (1, 9)}}, "division by zero"),
    ):
        with pytest.raises((AssertionError, pytest.fail.Exception, ZeroDivisionError)) as failed:
            adversary.claim("01", "It is", **{"on": on, "but_not": but_not, **planted})(check)()
        assert message in "\n".join([str(failed.value), *getattr(failed.value, "__notes__", [])])


TRIED = "def rows():" + '\n    yield source("{}", False)' * 2
IT_IS_B = "## Heads\n\n### One\n\nIt\nis b.\n"


@pytest.mark.parametrize(
    ("text", "tried", "verdict", "told"),
    [
        (IT_IS_B, ("3.1", "3.11"), "slip", []),
        # 3.11 is not tried by what is tried of 3.1, whose number begins alike.
        (IT_IS_B, ("3.1", "3.2"), "slip", ["rows checks 3.2, which is no row", "row 3.11 has no test"]),
        # The correction stands behind the section that the card names.
        ("## Heads\n\n## Tails\n\nIt is b.\n", ("3.1", "3.11"), "slip", ["row 3.1: the section ['01", "row 3.11:"]),
        (IT_IS_B, ("3.1", "3.11"), "wrong", ["row 3.1 says 'slip', and tests/test_coin.py:1: test_it 'wrong'"]),
    ],
)  # fmt: skip
def test_a_row_of_the_errata_has_its_test_its_correction_and_one_verdict(
    tmp_path: Path, text: str, tried: tuple[str, str], verdict: str, told: list[str]
) -> None:
    row = {"place": "there", "stands": "a", "truth": "b", "section": ["01_coin", "Heads"], "says": "It is b."}
    cards = [{"id": i, "verdict": "slip", **row} for i in ("3.1", "3.11")]
    source = {"id": 3, "title": "A post", "about": "It."}
    test = f'@pytest.mark.erratum("3.1", "{verdict}")\ndef test_it():\n    assert True\n'
    for name, content in (
        ("chapters/01_coin.md", f"# A coin\n\n{text}"),
        (marks.ERRATA, yaml.safe_dump({"sources": [source], "rows": cards})),
        (marks.TRIED, TRIED.format(*tried)),
        ("tests/test_coin.py", test),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(content)
    problems = marks.problems(tmp_path)
    assert len(problems) == len(told) and all(map(str.__contains__, problems, told)), problems
