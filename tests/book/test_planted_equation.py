"""Planted errors: what breaks "every equation has a test" fails, and the message says what and where."""

from __future__ import annotations

import doctest
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import ledger
from tiny_book import STATED, TESTED, add_machinery, write_book, write_chapter, write_test

pytestmark = pytest.mark.slow  # builds pages with Sphinx


@pytest.fixture
def book(tmp_path: Path) -> Path:
    return write_book(tmp_path)


def problems(root: Path) -> list[str]:
    return [str(problem) for problem in ledger.all_problems(root)]


def test_the_examples_in_the_ledgers_docstrings() -> None:
    assert doctest.testmod(ledger).failed == 0


def test_a_sound_book_has_no_problems(book: Path) -> None:
    assert problems(book) == []
    equations, _ = ledger.read_equations(book)
    assert [(e.label, e.chapter, e.cell) for e in equations] == [("eq-planted", "01_planted", 1)]
    assert equations[0].tex == r"\ell(z, y) = \log(1 + e^z) - y z"
    assert ledger.chapter_titles(book) == {"01_planted": "Planted"}


# ---------------------------------------------------------------------------------------- the chapters


@pytest.mark.parametrize(
    ("cell", "head"),
    [
        ("$$ a = b $$", "a = b"),
        ("$$\na = b\n$$", "a = b"),
        ("in a sentence $$a = b$$ here", "a = b"),
        ("in a sentence $$a = b$$ (eq-no-label-here)", "a = b"),
        ("\\begin{align}\na &= b\n\\end{align}", "\\begin{align} a &= b \\end{align}"),
        ("\\begin{equation*}\na = b\n\\end{equation*}", "\\begin{equation*} a = b \\end{equation*}"),
        ("```{math}\na = b\n```", "a = b"),
        ("```{math}\n:nowrap:\na = b\n```", "a = b"),
        (":::{note}\nOh:\n\n$$ a = b $$\n:::", "a = b"),
        ("````{solution} ex\n:class: dropdown\n\n```{hint}\n$$ a = b $$\n```\n````", "a = b"),
        ("- in a list\n\n  $$\n  a = b\n  $$", "a = b"),
        ("> $$ a = b $$", "a = b"),
        ("| x |\n|---|\n| $$a = b$$ |", "a = b"),
        ("```{eval-rst}\n.. math:: a = b\n```", ".. math:: a = b"),
        ("```{glue:math} my_equation\n:label: eq-glued\n```", "{glue:math} my_equation"),
        (f"$$ {'a + ' * 30} b $$", ("a + " * 15).rstrip() + " ("),
    ],
)
def test_an_unlabelled_equation_is_named_with_its_cell(book: Path, cell: str, head: str) -> None:
    write_chapter(book, "02_more", "# More", "#code\n2", cell)
    found = problems(book)
    assert len(found) == 1, found
    assert found[0].startswith(f"chapters/02_more.ipynb, cell 3: displayed equation without a label: {head}")
    assert "write $$ ... $$ (eq-slug)" in found[0]


@pytest.mark.parametrize(
    "cell",
    [
        "inline $a = b$ and `$$ code $$`",
        "```python\n# $$ a = b $$\n```",
        "```{code-block} md\n$$ a = b $$\n```",
        "    $$ an indented code block $$",
        "costs \\$\\$5",
        "#code\nprint('$$ a = b $$')",
        "<!-- $$ a = b $$ -->",
    ],
)
def test_what_is_no_displayed_equation_needs_no_label(book: Path, cell: str) -> None:
    write_chapter(book, "02_more", "# More", cell)
    assert problems(book) == []


@pytest.mark.parametrize(
    "cell",
    [
        "```{math}\n:label: eq-more\na = b\n```",
        "```{math}\n---\nlabel: eq-more\n---\na = b\n```",
        ":::{note}\n$$\na = b\n$$ (eq-more)\n:::",
        "````{exercise} Title\n:label: ex-more\n\n$$\na = b\n$$ (eq-more)\n````",
    ],
)
def test_a_label_is_found_in_every_spelling(book: Path, cell: str) -> None:
    write_chapter(book, "02_more", cell)
    equations, found = ledger.read_equations(book)
    assert not found
    assert [(e.label, e.tex) for e in equations[1:]] == [("eq-more", "a = b")]


def test_pages_in_markdown_are_read_too(book: Path) -> None:
    (book / "chapters" / "errata.md").write_text("# Errata\n\n$$ a = b $$\n", encoding="utf-8")
    assert problems(book)[0].startswith(
        "chapters/errata.md, cell 1: displayed equation without a label: a = b"
    )


def test_a_label_is_given_once(book: Path) -> None:
    write_chapter(book, "02_more", "$$ a = b $$ (eq-planted)")
    taken = "label eq-planted is taken by chapters/01_planted.ipynb, cell 1: a = b"
    assert problems(book) == [f"chapters/02_more.ipynb, cell 1: {taken}"]


@pytest.mark.parametrize("label", ["planted", "eq-Planted", "eq_planted", "eq-a--b", "eq-"])
def test_a_label_has_one_form(book: Path, label: str) -> None:
    write_chapter(book, "02_more", f"$$ a = b $$ ({label})")
    assert problems(book) == [
        f"chapters/02_more.ipynb, cell 1: label '{label}' is not of the form eq-slug, "
        "lower case with hyphens: a = b"
    ]


# --------------------------------------------------------------------------------------- the orphans


def test_an_equation_without_a_test_is_named(book: Path) -> None:
    write_chapter(book, "02_more", "# More", "$$ a = b $$ (eq-untested)")
    found = problems(book)
    assert len(found) == 1
    assert found[0].startswith("chapters/02_more.ipynb, cell 2: equation eq-untested has no test")


def test_a_mark_without_an_equation_is_named(book: Path) -> None:
    write_chapter(book, "01_planted", "# Nothing left")
    assert problems(book) == [
        "tests/equations/test_01_planted.py:6: test_planted checks eq-planted, a label that no chapter has"
    ]


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ('@pytest.mark.equation("eq-planted", by="guess")', "has by='guess'; not one of symbolic, reference"),
        ('@pytest.mark.equation("eq-planted")', "has by=None; not one of symbolic, reference"),
        ('@pytest.mark.equation("eq-planted", "symbolic")', "takes one label, a string"),
        ('@pytest.mark.equation("eq-planted", By="symbolic")', "for eq-planted has no argument 'By'"),
        (
            '@pytest.mark.equation("eq_planted", by="symbolic")',
            "label 'eq_planted' is not of the form eq-slug",
        ),
        ('@pytest.mark.equation(3, by="symbolic")', "takes one label, a string"),
        ('@pytest.mark.equation(LABEL, by="symbolic")', "the equation mark of test_marked is not literal"),
        ("@pytest.mark.equation", "has to be a called decorator of a test function"),
        (
            '@pytest.mark.equation("eq-planted", by="symbolic")\n'
            '@pytest.mark.equation("eq-planted", by="property")',
            "test_marked carries eq-planted twice",
        ),
        (
            '@pytest.mark.parametrize("a", [pytest.param(1, '
            'marks=pytest.mark.equation("eq-planted", by="property"))])',
            "has to be a called decorator of a test function",
        ),
    ],
)
def test_a_malformed_mark_is_named_with_its_line(book: Path, mark: str, message: str) -> None:
    write_test(
        book, "test_02_more", f"import pytest\n\nLABEL = 'eq-planted'\n\n{mark}\ndef test_marked(): ...\n"
    )
    found = problems(book)
    assert len(found) == 1, found
    assert found[0].startswith("tests/equations/test_02_more.py:")
    assert message in found[0]


@pytest.mark.parametrize(
    "text",
    [
        'import pytest\npytestmark = pytest.mark.equation("eq-planted", by="symbolic")\n',
        "import pytest\nclass TestIt:\n"
        ' @pytest.mark.equation("eq-planted", by="symbolic")\n def test_it(self): ...\n',
        'from pytest import mark\n@mark.equation("eq-planted", by="symbolic")\ndef helper(): ...\n',
    ],
)
def test_a_mark_elsewhere_than_on_a_test_function_is_named(book: Path, text: str) -> None:
    write_test(book, "test_02_more", text)
    found = problems(book)
    assert len(found) == 1
    assert "an equation mark has to be a called decorator of a test function at the top level" in found[0]


# ----------------------------------------------------------------------------------------- the table


def _table(root: Path, error: float = 3e-16, committed: ledger.Table | None = None) -> ledger.Table:
    measured = {
        "test_01_planted.py::test_planted": {
            ledger.Tolerance.of(1e-12, 0.0): ledger.Measured(error, ("a few roundings",))
        }
    }
    return ledger.build_table(ledger.read_equations(root)[0], ledger.read_marks(root)[0], measured, committed)


def _bound(table: ledger.Table) -> str:
    return table["eq-planted"]["tests"]["test_01_planted.py::test_planted"]["checks"][0]["error"]


def test_another_machine_writes_the_same_table(book: Path) -> None:
    table = _table(book, 3e-16)
    assert _bound(table) == "1e-14"
    # Errors that differ in the last bits leave a bound that is still true alone; a real change does not.
    assert _table(book, 2e-15, table) == table
    assert _bound(_table(book, 2e-14, table)) == "1e-12"
    assert _bound(_table(book, 3e-16, _table(book, 5e-13))) == "1e-14"


def test_a_run_is_held_against_the_table(book: Path) -> None:
    table = _table(book)
    name = "test_01_planted.py::test_planted"
    usual = ledger.Tolerance.of(1e-12, 0.0)

    def differences(tolerance: ledger.Tolerance, error: float, why: str = "a few roundings") -> str:
        return "\n".join(ledger.disagreements({name: {tolerance: ledger.Measured(error, (why,))}}, table))

    assert differences(usual, 9e-15) == ""
    assert "has an error of 2.0e-14, the table promises less than 1e-14" in differences(usual, 2e-14)
    assert "gives another reason for rtol 1e-12" in differences(usual, 0.0, "luck")
    looser = differences(ledger.Tolerance.of(1e-3, 0.0), 0.0)
    assert "compares within rtol 0.001, a new tolerance" in looser
    assert "no longer compares within rtol 1e-12" in looser


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda root: write_chapter(root, "02_new", "$$ a $$ (eq-new)"), "eq-new: not in the table"),
        (
            lambda root: write_chapter(root, "01_planted", "# None"),
            "eq-planted: in the table, but in no chapter",
        ),
        (
            lambda root: (root / "chapters/01_planted.ipynb").rename(root / "chapters/02_planted.ipynb"),
            "eq-planted: in chapter 02_planted, the table says 01_planted",
        ),
        (
            lambda root: write_chapter(root, "01_planted", STATED.replace("- y z", "+ y z")),
            "eq-planted: the statement changed since the table was written; see that its tests check the "
            r"new one: \ell(z, y) = \log(1 + e^z) + y z",
        ),
        (
            lambda root: write_test(
                root, "test_01_planted", TESTED.replace("def test_planted", "def test_other")
            ),
            "eq-planted: test_01_planted.py::test_other is not in the table",
        ),
        (
            lambda root: write_test(root, "test_01_planted", TESTED.replace("reference", "property")),
            "eq-planted: test_01_planted.py::test_planted is by 'property', the table says 'reference'",
        ),
    ],
)
def test_a_table_that_the_sources_left_behind_is_named(
    book: Path, change: Callable[[Path], object], message: str
) -> None:
    table = _table(book)
    assert ledger.out_of_date(ledger.read_equations(book)[0], ledger.read_marks(book)[0], table) == []
    change(book)
    assert message in ledger.out_of_date(ledger.read_equations(book)[0], ledger.read_marks(book)[0], table)


def test_the_table_keeps_the_order_of_the_chapters(book: Path) -> None:
    table = _table(book)
    write_chapter(book, "01_planted", "$$ a $$ (eq-before)", STATED)
    equations, marks = ledger.read_equations(book)[0], ledger.read_marks(book)[0]
    fresh = ledger.build_table(equations, marks, {}, table)
    assert list(fresh) == ["eq-before", "eq-planted"]
    backwards = dict(reversed(fresh.items()))
    assert ledger.out_of_date(equations, marks, backwards) == [
        "the equations stand in another order than in the chapters"
    ]


# ------------------------------------------------------------------------------------- a run of pytest


def _run(root: Path, *arguments: str) -> tuple[int, str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    # Wide enough for the short summary to show its messages; and only the plugins that matter here.
    environment |= {"COLUMNS": "200", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def _pytest(root: Path, *arguments: str) -> tuple[int, str]:
    return _run(
        root, "-m", "pytest", "tests/equations", "-q", "-p", "xdist", "-p", "no:cacheprovider", *arguments
    )


def test_from_an_equation_to_the_ledger_and_from_an_error_to_its_name(book: Path) -> None:
    add_machinery(book)
    status, output = _run(book, "tools/ledger.py", "--write")
    assert status == 0, output
    table = (book / "tests/equations/ledger.json").read_text(encoding="utf-8")
    check = json.loads(table)["eq-planted"]["tests"]["test_01_planted.py::test_planted"]["checks"]
    assert check == [{"rtol": "1e-12", "atol": "0", "error": "1e-14", "why": ["a few roundings"]}]

    # The same under xdist, where two workers measure and the controller compares and writes.
    fresh = (book / "_build/ledger.json").read_text(encoding="utf-8")
    (book / "_build/ledger.json").unlink()
    status, output = _pytest(book, "-n", "2")
    assert status == 0, output
    assert "4 passed" in output
    assert (book / "_build/ledger.json").read_text(encoding="utf-8") == fresh

    # A run that the table does not cover fails as a whole, though every test passes.
    (book / "tests/equations/ledger.json").write_text(table.replace("1e-12", "1e-11"), encoding="utf-8")
    status, output = _pytest(book)
    assert status == 1, output
    assert "tests/equations/ledger.json disagrees with this run" in output
    assert "eq-planted: test_01_planted.py::test_planted no longer compares within rtol 1e-11" in output
    assert "4 passed" in output
    (book / "tests/equations/ledger.json").write_text(table, encoding="utf-8")

    # A changed sign: the summary, the headline and a section of its own name the equation.
    write_test(book, "test_01_planted", TESTED.replace("- y * z", "+ y * z"))
    status, output = _pytest(book, "-n", "2")
    assert status == 1, output
    assert "test_planted[1.0]: equation eq-planted (01_planted) ____" in output
    assert "test_planted[1.0] - Failed: equation eq-planted (01_planted): expected" in output
    assert (
        "equation eq-planted in 01_planted: tests/equations/test_01_planted.py::test_planted[1.0]" in output
    )
    assert "1 failed, 3 passed" in output


def test_planted_orphans_fail_the_run(book: Path) -> None:
    add_machinery(book)
    assert _run(book, "tools/ledger.py", "--write")[0] == 0
    write_chapter(book, "02_more", "# More", "$$ a = b $$ (eq-untested)", "$$ c = d $$")
    write_test(
        book,
        "test_02_more",
        "import pytest\n\n"
        '@pytest.mark.equation("eq-nowhere", by="symbolic")\ndef test_orphan(): ...\n\n'
        '@pytest.mark.equation("eq-planted", by="refrence")\ndef test_typo(): ...\n\n'
        '@pytest.mark.equation("eq-planted", by="reference")\ndef test_measures_nothing(): ...\n\n'
        '@pytest.mark.equation("eq-planted", by="property")\ndef test_plain():\n    assert 1 == 2\n',
    )
    (book / "tests/xent").mkdir()
    (book / "tests/xent/test_elsewhere.py").write_text(
        'import pytest\n@pytest.mark.equation("eq-planted", by="property")\ndef test_misplaced(): ...\n'
    )
    status, output = _pytest(book, "tests/xent")
    assert status == 1
    for message in [
        "chapters/02_more.ipynb, cell 3: displayed equation without a label: c = d",
        "chapters/02_more.ipynb, cell 2: equation eq-untested has no test",
        "tests/equations/test_02_more.py:3: test_orphan checks eq-nowhere, a label that no chapter has",
        "eq-untested: not in the table",
        "test_orphan - Failed: equation eq-nowhere: no chapter has this label",
        "test_typo - Failed: the equation mark for eq-planted has by='refrence'",
        'test_measures_nothing - equation eq-planted (01_planted): Failed: by="reference" compares numbers',
        "test_plain - equation eq-planted (01_planted): assert 1 == 2",
        "test_misplaced - equation eq-planted (01_planted): Failed: equation marks belong in tests/equations",
    ]:
        assert message in output, f"{message!r} is not in:\n{output}"
    status, output = _run(book, "tools/ledger.py")
    assert status == 1
    assert "ledger: chapters/02_more.ipynb, cell 2: equation eq-untested has no test" in output
    # With tests that fail, the table stays as it was.
    before = (book / "tests/equations/ledger.json").read_bytes()
    assert _run(book, "tools/ledger.py", "--write")[0] == 1
    assert (book / "tests/equations/ledger.json").read_bytes() == before
