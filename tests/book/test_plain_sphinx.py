"""The day that Jupyter Book ends the book does not: plain Sphinx builds it, and what it reaches into is named here."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import pydata_sphinx_theme

import light_pages

if TYPE_CHECKING:
    from .conftest import TinyBook

ROOT = Path(__file__).resolve().parents[2]


def test_both_programs_build_the_same_pages(tiny_book: TinyBook) -> None:
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


def test_the_theme_s_own_parts_are_those_that_ours_replace() -> None:
    """Where this fails after an upgrade, read what it names beside ours, mend ours, and write the new state here."""
    theme = Path(pydata_sphinx_theme.__file__).parent / "theme" / "pydata_sphinx_theme"
    macros = (theme / "static" / "webpack-macros.html").read_bytes()
    assert hashlib.sha256(macros).hexdigest()[:12] == "0db474a78911", "_templates/static/webpack-macros.html"
    sheets = [theme / "static" / f"{name}.css" for name in light_pages.THEME if name != "basic"]
    assert [path for path in sheets if not path.exists()] == [], "light_pages.THEME"
    assert (theme / "components" / "search-field.html").exists(), "_templates/search.html"
