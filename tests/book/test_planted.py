"""Errors planted one at a time: each fails the build or the tests, says what and where, and fails again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import nbformat

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
CLAIMED = '@pytest.mark.claim("01", "Nobody says this.")\ndef test_it():\n    pass\n'
# Each of these is a warning, so a failure of its own.
WARNED = [
    "chapters/01_good.ipynb:20002: ERROR: stderr was found",
    "chapters/01_good.ipynb:30002: WARNING: equation not found: eq-nowhere",
    "chapters/01_good.ipynb:40004: WARNING: undefined label: 'fig-nowhere'",
    'chapters/01_good.ipynb:50002: WARNING: could not find bibtex key "nobody1999"',
    "chapters/01_good.ipynb:60002: WARNING: KaTeX cannot render",
    "WARNING: marks: chapters/01_good.ipynb, cell 6: equation eq-half has no test",
    "WARNING: marks: tests/claims/test_01.py:1: test_it: chapter 01 does not say:",
    "chapters/02_forgotten.ipynb: WARNING: document isn't included in any toctree",
    "index.md:: WARNING: toctree contains reference to nonexisting document 'chapters/03_missing'",
]
FAILED = "chapters/01_good.ipynb", "# code, the next\n1 / x", "ZeroDivisionError: division by zero"


def fails(status: int, said: str, *messages: str) -> None:
    assert status != 0, said
    assert [message for message in messages if message not in said] == [], said


def test_what_a_build_warns_of_fails_it_twice(tiny_book: TinyBook) -> None:
    tiny_book.write_chapter("01_good", *BROKEN)
    tiny_book.write_chapter("02_forgotten", "# Forgotten")
    tiny_book.write_toc("01_good", "03_missing")
    (tiny_book.root / "tests" / "claims").mkdir(parents=True)
    (tiny_book.root / "tests" / "claims" / "test_01.py").write_text(CLAIMED)
    for _ in range(2):
        fails(*tiny_book.build(), *WARNED)


def test_a_failing_cell_fails_every_build(tiny_book: TinyBook) -> None:
    tiny_book.write_chapter("01_good", "# Good", "# code\nx = 0", "# code, the next\n1 / x")
    for _ in range(2):
        fails(*tiny_book.build(), *FAILED)


def test_the_comparison_finds_what_is_wrong_and_no_more(tiny_book: TinyBook) -> None:
    """A drawing off by less than a tenth of a pixel, by more, in a word, in its colour; a number; a cell that fails."""
    drawn = (
        '<svg xmlns="http://www.w3.org/2000/svg"><defs><path id="m0123456789" d="M 0 -3"/></defs>'
        '<path d="M 0.5 -12.25 L 7 8" style="stroke: #ff0000"/><use href="#m0123456789" x="4"/>'
        '<text x="1">0.2</text></svg>'
    )
    differ = [("-12.25", "-12.35"), ("-12.25", "12.25"), (" L 7 8", ""), ("0.2<", "0.21<"), ("#ff", "#fe")]
    of_rounding_errors = [("12.25", "99"), ("0.2<", "0.22<")]  # only words count
    same = drawn.replace("12.25", "12.3").replace("m0123456789", "m9876543210")
    stored = [same, *(drawn.replace(*pair) for pair in differ + of_rounding_errors)]
    drawing = f"# code\nfrom IPython.display import SVG, display\ndisplay(SVG({drawn!r}))"
    path = tiny_book.write_chapter(
        "01_good", "# Good", "# code\nprint(1 + 1)", "# code\n1 / 0", *[drawing] * 8, output="3\n"
    )
    notebook = nbformat.read(path, as_version=4)
    for cell, text in zip(notebook.cells[3:], stored, strict=True):
        shown = {"text/plain": "<IPython.core.display.SVG object>", "image/svg+xml": text}
        cell.outputs = [nbformat.v4.new_output("display_data", shown)]
    for cell in notebook.cells[-2:]:
        cell.metadata["tags"] = ["rounding-errors"]
    nbformat.write(notebook, path)
    failed = [f"FAILED chapters/01_good.ipynb::Cell {number}" for number in (0, 1, *range(3, 8), 9)]
    said = [
        "the drawing stored has '-12.35' where that drawn has '-12.25'",
        "the drawing stored has '<text> 0.21' where that drawn has '<text> 0.2'",
    ]
    fails(*tiny_book.nbval(), "8 failed, 2 passed", "mismatch 'stdout'", "division by zero", *failed, *said)


def test_what_is_executed_again_and_what_is_not(tiny_book: TinyBook) -> None:
    def built(**environment: str) -> bool:
        """Build, and tell whether a chapter was executed."""
        status, said = tiny_book.build(**environment)
        assert status == 0, said
        return "executing " in said

    # In `make test` the pages show what is stored, for nbval to compare; `make book` asks again.
    cell = "# code\nimport xent\nprint('sum', 4000 + 141, getattr(xent, 'answer', 0))"
    tiny_book.write_chapter("01_good", "# Good", cell, output="sum 4040\n")
    assert not built(XENT_STORED="1") and "sum 4040" in tiny_book.page("01_good")
    assert built() and "sum 4141 0" in tiny_book.page("01_good")
    # What a chapter imports is no part of its file.
    package = tiny_book.root / "code" / "xent" / "__init__.py"
    package.write_text(package.read_text() + "\nanswer = 4242\n")
    tiny_book.write_chapter("02_more", "# More")
    tiny_book.write_toc("01_good", "02_more")
    assert built() and "4141 4242" in tiny_book.page("01_good") and tiny_book.page("02_more")
    # A chapter that is gone leaves no page. What needs an address is off without one, and right with it.
    site, page = tiny_book.root / "_build" / "html", tiny_book.page("01_good")
    assert "colab" not in page and "og:image" not in page and not (site / "sitemap.xml").exists()
    (tiny_book.root / "chapters" / "02_more.ipynb").unlink()
    tiny_book.write_toc("01_good")
    address = "https://someone.github.io/book"
    assert not built(XENT_REPOSITORY_URL="https://github.com/someone/book", XENT_SITE_URL=address)
    assert not (site / "chapters" / "02_more.html").exists()
    page = tiny_book.page("01_good")
    assert "colab.research.google.com/github/someone/book/blob/main/chapters/01_good.ipynb" in page
    assert "github.com/someone/book/issues/new" in page
    assert f'rel="canonical" href="{address}/chapters/01_good.html"' in page
    assert f'og:image" content="{address}/_images/' in page
    assert f"<loc>{address}/chapters/01_good.html</loc>" in (site / "sitemap.xml").read_text()
    assert 'href="/book/index.html"' in (site / "404.html").read_text("utf-8")


def test_both_programs_build_the_same_pages(tiny_book: TinyBook) -> None:
    """The day that Jupyter Book ends the book does not: plain Sphinx builds it."""
    tiny_book.write_chapter(
        "02_next", "# Next", "See {ref}`here`, {cite}`guo2017calibration`, $x$.\n\n(here)=\n## Here"
    )
    tiny_book.write_toc("01_good", "02_next")
    folder = tiny_book.root / "_build" / "html"
    built = []
    for run in (
        tiny_book.build,
        lambda: tiny_book.run(
            *("-m", "sphinx", "-W", "-n", "--keep-going", "-q", "-d", "_build/.doctrees", ".", "_build/html")
        ),
    ):
        status, said = run()
        assert status == 0, said
        built.append({str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.html")})
    assert built[0] == built[1] and "chapters/02_next.html" in built[0]
