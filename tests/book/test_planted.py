"""Errors planted one at a time: each fails the build or the tests, says what and where, and fails again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import nbformat
import pytest

if TYPE_CHECKING:
    from .conftest import TinyBook

# What is planted: the chapter's name and cells, the table of contents, the command that fails, what it says.
GOOD = ["01_good"]
PLANTED = {
    "a failing cell": (
        ("01_good", "# Good", "# code\nx = 0", "# code, the next\n1 / x"),
        GOOD,
        "build",
        ["chapters/01_good.ipynb, cell 3 ('# code, the next'), line 2: ZeroDivisionError: division by zero"],
    ),
    "a cell that writes to stderr": (
        ("01_good", "# Good", "# code\nimport warnings\nwarnings.warn('look here')"),
        GOOD,
        "build",
        ["chapters/01_good.ipynb, cell 2, line 1: ERROR: stderr was found"],
    ),
    "references to nothing, and TeX that cannot be read": (
        (
            "01_good",
            "# Good",
            "See {eq}`eq-nowhere`.",
            "Look.\n\nSee {numref}`fig-nowhere`.",
            "Shown by {cite}`nobody1999`.",
            "$$\n\\frac{1}{2\n$$ (eq-half)",
        ),
        GOOD,
        "build",
        [
            "chapters/01_good.ipynb, cell 2, line 1: WARNING: equation not found: eq-nowhere",
            "chapters/01_good.ipynb, cell 3, line 3: WARNING: undefined label: 'fig-nowhere'",
            'chapters/01_good.ipynb, cell 4, line 1: WARNING: could not find bibtex key "nobody1999"',
            "chapters/01_good.ipynb, cell 5, line 1: WARNING: KaTeX cannot render",
        ],
    ),
    "a chapter that the contents forget": (
        ("02_forgotten", "# Forgotten"),
        GOOD,
        "build",
        ["chapters/02_forgotten.ipynb: WARNING: document isn't included in any toctree"],
    ),
    "contents without the chapter": (
        ("01_good", "# Good"),
        ["01_good", "02_missing"],
        "build",
        ["index.md:: WARNING: toctree contains reference to nonexisting document 'chapters/02_missing'"],
    ),
    "a wrong stored output": (
        ("01_good", "# Good", "# code\nprint(1 + 1)"),
        GOOD,
        "nbval",
        ["chapters/01_good.ipynb::Cell 0", "mismatch 'stdout'", "3\n", "2\n"],
    ),
}


@pytest.mark.parametrize("error", PLANTED)
def test_a_planted_error_fails_twice(tiny_book: TinyBook, error: str) -> None:
    chapter, contents, command, messages = PLANTED[error]
    tiny_book.write_chapter(*chapter, output="3\n" if command == "nbval" else "")
    tiny_book.write_toc(*contents)
    for _ in range(2):
        status, said = getattr(tiny_book, command)()
        assert status != 0, said
        for message in messages:
            assert message in said


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
    assert tiny_book.nbval()[0] == 0

    def built() -> bool:
        """Build, and tell whether the chapter was executed."""
        status, said = tiny_book.build()
        assert status == 0, said
        return "executing 1 of" in said

    drawing = (
        "# code\nimport matplotlib.pyplot as plt\nimport xent\nplt.plot([0, 1])\nplt.show()\nxent.answer"
    )
    package = tiny_book.root / "code" / "xent" / "__init__.py"
    package.write_text(package.read_text() + "\nanswer = 4242\n")
    tiny_book.write_chapter("01_good", "# Good", drawing, alt="A line that rises.")
    assert built() and not built()
    assert "4242" in tiny_book.page("01_good") and "A line that rises." in tiny_book.page("01_good")
    # Prose and alternative texts are not code, and reach the page all the same.
    tiny_book.write_chapter("01_good", "# Better", drawing, alt="A line from the corner.")
    assert not built()
    assert "Better" in tiny_book.page("01_good") and "A line from the corner." in tiny_book.page("01_good")
    # What a chapter imports is no part of its file.
    package.write_text(package.read_text() + "\nanswer = 4343\n")
    assert built()
    assert "4343" in tiny_book.page("01_good") and "4242" not in tiny_book.page("01_good")
    # A page that is gone is gone from the site.
    tiny_book.write_chapter("02_more", "# More")
    tiny_book.write_toc("01_good", "02_more")
    assert built() and tiny_book.page("02_more")
    (tiny_book.root / "chapters" / "02_more.ipynb").unlink()
    tiny_book.write_toc("01_good")
    assert not built()
    with pytest.raises(FileNotFoundError):
        tiny_book.page("02_more")


def test_a_plain_build_executes_and_fails_too(tiny_book: TinyBook) -> None:
    tiny_book.write_chapter("01_good", "# Good", "# code\n1 / 0")
    for _ in range(2):
        status, said = tiny_book.plain_build()
        assert status != 0 and "ZeroDivisionError" in said, said
