"""The ledger page as Sphinx renders it, on a book of one equation."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import ledger
from tiny_book import ROOT, TESTED, write_book, write_chapter, write_test

pytestmark = pytest.mark.slow  # builds pages with Sphinx

CONFIGURATION = f"""\
import sys
sys.path.insert(0, {str(ROOT / "_ext")!r})
extensions = ["myst_nb", "xent_ledger"]
nb_execution_mode = "off"
myst_enable_extensions = ["dollarmath", "amsmath"]
html_theme = "basic"
numfig = True
math_numfig = True
numfig_secnum_depth = 1
math_eqref_format = "({{number}})"
exclude_patterns = ["tests", "_build"]
"""
INDEX = "# Book\n\n```{toctree}\n:numbered:\nchapters/01_planted\nchapters/equations\n```\n"


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """A book with the repository's own ledger page, its table as a run of the tests would leave it."""
    write_book(tmp_path)
    (tmp_path / "conf.py").write_text(CONFIGURATION, encoding="utf-8")
    (tmp_path / "index.md").write_text(INDEX, encoding="utf-8")
    page = (ROOT / "chapters/equations.md").read_text(encoding="utf-8")
    (tmp_path / "chapters/equations.md").write_text(page, encoding="utf-8")
    write_table(tmp_path, 3e-16)
    return tmp_path


def write_table(root: Path, error: float) -> None:
    measured = {
        "test_01_planted.py::test_planted": {
            ledger.Tolerance.of(1e-12, 0.0): ledger.Measured(error, ("a few roundings",))
        }
    }
    table = ledger.build_table(ledger.read_equations(root)[0], ledger.read_marks(root)[0], measured)
    (root / ledger.COMMITTED).write_text(ledger.dump(table), encoding="utf-8")


def build(root: Path) -> tuple[int, str]:
    """Build as the book is built: every warning counts."""
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "--no-color", ".", "_build/html"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def page_text(root: Path) -> str:
    """The text of the ledger page, without markup and the invisible word joiner."""
    html = (root / "_build/html/chapters/equations.html").read_text(encoding="utf-8")
    return " ".join(re.sub(r"<[^>]+>", "", html).replace("\u2060", "").split())


def test_the_page_states_each_equation_with_its_number_tests_and_errors(book: Path) -> None:
    status, output = build(book)
    assert status == 0, output
    html = (book / "_build/html/chapters/equations.html").read_text(encoding="utf-8")
    assert re.search(r'href="01_planted.html#equation-eq-planted"[^>]*>.{0,80}\(1\.1\)', html, re.DOTALL)
    assert re.search(r'<section id="ledger-01-planted">\s*<h2>.*Planted', html)
    assert "ledger.css" in html
    assert "ledger.css" not in (book / "_build/html/index.html").read_text(encoding="utf-8")
    text = page_text(book)
    assert "The ledger holds 1 equation of 1 chapter, checked by 1 test." in text
    assert r"\ell(z, y) = \log(1 + e^z) - y z" in text, "the statement is not shown as mathematics"
    line = (
        "test_01_planted.py::test_planted by reference: relative error below 1e-14 "
        "(allowed: rtol 1e-12, a few roundings)."
    )
    assert line in text

    # The page does not depend on whether the tests ran before, and an unchanged book reads nothing again.
    (book / ledger.FRESH).write_text("{}", encoding="utf-8")
    status, output = build(book)
    assert status == 0, output
    assert "0 added, 0 changed, 0 removed" in output
    assert page_text(book) == text

    # New numbers and a new test reach the page, though the page's own source did not change.
    write_test(book, "test_02_more", TESTED.replace("reference", "property").replace("worst_error", "print"))
    write_table(book, 3e-14)
    status, output = build(book)
    assert status == 0, output
    text = page_text(book)
    assert "relative error below 1e-12" not in text
    assert "relative error within 1e-12" in text
    assert "test_02_more.py::test_planted by property: holds." in text
    assert "checked by 2 tests" in text


def test_an_incomplete_ledger_fails_every_build(book: Path) -> None:
    write_chapter(book, "01_planted", "# Planted", "$$ a = b $$ (eq-untested)", "$$ c = d $$")
    for attempt in ("first", "second, identical"):
        status, output = build(book)
        assert status != 0, f"the {attempt} build passed:\n{output}"
        for message in [
            "WARNING: ledger: chapters/01_planted.ipynb, cell 3: displayed equation without a label: c = d",
            "WARNING: ledger: chapters/01_planted.ipynb, cell 2: equation eq-untested has no test",
            "WARNING: ledger: tests/equations/test_01_planted.py:6: test_planted checks eq-planted, a label",
        ]:
            assert message in output, f"{message!r} is not in the {attempt} build:\n{output}"


def test_a_table_that_is_out_of_date_fails_the_build(book: Path) -> None:
    (book / ledger.COMMITTED).unlink()
    status, output = build(book)
    assert status != 0
    assert f"WARNING: ledger: {ledger.COMMITTED} is out of date (make ledger): eq-planted: not in" in output
