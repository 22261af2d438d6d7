"""Errors planted one at a time: each fails the build or the tests, says what and where, and fails again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import nbformat
import pytest

if TYPE_CHECKING:
    from .conftest import TinyBook

BROKEN = [
    "# Good",
    "# code\nimport warnings\nwarnings.warn('look here')",
    "See {eq}`eq-nowhere`.",
    "Look.\n\nSee {numref}`fig-nowhere`.",
    "Shown by {cite}`nobody1999`.",
    "$$\n\\frac{1}{2\n$$ (eq-half)",
]
# Each of these is a warning, so a failure of its own.
WARNED = [
    "chapters/01_good.ipynb, cell 2, line 1: ERROR: stderr was found",
    "chapters/01_good.ipynb, cell 3, line 1: WARNING: equation not found: eq-nowhere",
    "chapters/01_good.ipynb, cell 4, line 3: WARNING: undefined label: 'fig-nowhere'",
    'chapters/01_good.ipynb, cell 5, line 1: WARNING: could not find bibtex key "nobody1999"',
    "chapters/01_good.ipynb, cell 6, line 1: WARNING: KaTeX cannot render",
    "chapters/02_forgotten.ipynb: WARNING: document isn't included in any toctree",
    "index.md:: WARNING: toctree contains reference to nonexisting document 'chapters/03_missing'",
]
FAILED = "chapters/01_good.ipynb, cell 3 ('# code, the next'), line 2: ZeroDivisionError: division by zero"


def fails(status: int, said: str, *messages: str) -> None:
    assert status != 0, said
    assert [message for message in messages if message not in said] == [], said


def test_what_a_build_warns_of_fails_it_twice(tiny_book: TinyBook) -> None:
    tiny_book.write_chapter("01_good", *BROKEN)
    tiny_book.write_chapter("02_forgotten", "# Forgotten")
    tiny_book.write_toc("01_good", "03_missing")
    for _ in range(2):
        fails(*tiny_book.build(), *WARNED)


def test_a_failing_cell_fails_the_build_twice_and_the_comparison(tiny_book: TinyBook) -> None:
    tiny_book.write_chapter("01_good", "# Good", "# code\nx = 0", "# code, the next\n1 / x")
    for _ in range(2):
        fails(*tiny_book.build(), FAILED)
    fails(*tiny_book.nbval(), "chapters/01_good.ipynb::Cell 1", "ZeroDivisionError", "division by zero")


def test_a_wrong_stored_output_is_found(tiny_book: TinyBook) -> None:
    tiny_book.write_chapter("01_good", "# Good", "# code\nprint(1 + 1)", output="3\n")
    fails(*tiny_book.nbval(), "chapters/01_good.ipynb::Cell 0", "mismatch 'stdout'", "3\n", "2\n")


def test_a_picture_is_not_compared(tiny_book: TinyBook) -> None:
    drawing = "# code\nfrom IPython.display import SVG, display\ndisplay(SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>'))"
    path = tiny_book.write_chapter("01_good", "# Good", drawing)
    notebook = nbformat.read(path, as_version=4)
    shown = {"image/svg+xml": "<svg>another</svg>", "text/plain": "<IPython.core.display.SVG object>"}
    notebook.cells[1].outputs = [nbformat.v4.new_output("display_data", shown)]
    nbformat.write(notebook, path)
    status, said = tiny_book.nbval()
    assert status == 0, said


def test_what_is_executed_again_and_what_is_not(tiny_book: TinyBook) -> None:
    def built(**environment: str) -> bool:
        """Build, and tell whether a chapter was executed."""
        status, said = tiny_book.build(**environment)
        assert status == 0, said
        return "executing " in said

    # In `make test` the pages show what is stored, for nbval to compare; `make book` asks again.
    tiny_book.write_chapter("01_good", "# Good", "# code\nprint('sum', 4000 + 141)", output="sum 4040\n")
    assert not built(XENT_STORED="1") and "sum 4040" in tiny_book.page("01_good")
    drawing = (
        "# code\nimport matplotlib.pyplot as plt\nimport xent\nplt.plot([0, 1])\nplt.show()\nxent.answer"
    )
    package = tiny_book.root / "code" / "xent" / "__init__.py"
    package.write_text(package.read_text() + "\nanswer = 4242\n")
    tiny_book.write_chapter(
        "01_good", "# Good", "# code\nprint('sum', 4000 + 141)", drawing, alt="A line that rises."
    )
    assert built()
    page = tiny_book.page("01_good")
    assert all(text in page for text in ("sum 4141", "4242", "A line that rises.")) and "sum 4040" not in page
    # Prose and alternative texts are not code, and reach the page all the same.
    tiny_book.write_chapter(
        "01_good", "# Better", "# code\nprint('sum', 4000 + 141)", drawing, alt="A line from a corner."
    )
    assert not built() and not built(XENT_STORED="1")
    page = tiny_book.page("01_good")
    assert all(text in page for text in ("sum 4141", "Better", "A line from a corner."))
    # What a chapter imports is no part of its file.
    package.write_text(package.read_text() + "\nanswer = 4343\n")
    tiny_book.write_chapter("02_more", "# More")
    tiny_book.write_toc("01_good", "02_more")
    assert built() and tiny_book.page("02_more")
    assert "4343" in tiny_book.page("01_good") and "4242" not in tiny_book.page("01_good")
    # A page that is gone is gone from the site.
    (tiny_book.root / "chapters" / "02_more.ipynb").unlink()
    tiny_book.write_toc("01_good")
    assert not built()
    with pytest.raises(FileNotFoundError):
        tiny_book.page("02_more")


def test_a_plain_build_executes_and_fails_too(tiny_book: TinyBook) -> None:
    tiny_book.write_chapter("01_good", "# Good", "# code\n1 / 0")
    fails(*tiny_book.plain_build(), "ZeroDivisionError")
