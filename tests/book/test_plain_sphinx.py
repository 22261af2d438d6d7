"""The day that Jupyter Book ends the book does not: plain Sphinx builds it, and what it reaches into is named here."""

from __future__ import annotations

import hashlib
import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import pydata_sphinx_theme
from jupyter_book.config import get_final_config

import light_pages

if TYPE_CHECKING:
    from .conftest import TinyBook

ROOT = Path(__file__).resolve().parents[2]
# What Jupyter Book sets besides: for what the book does not make, what our extensions replace, and what nobody reads.
ITS_OWN = {
    *(
        "comments_config",
        "external_toc_path",
        "latex_engine",
        "use_jupyterbook_latex",
        "use_multitoc_numbering",
    ),
    *("html_css_files", "html_js_files"),
}


def test_both_programs_are_told_the_same() -> None:
    plain = runpy.run_path(str(ROOT / "conf.py"))
    command_line = {"latex_individualpages": False, "external_toc_path": "_toc.yml"}
    told, _ = get_final_config(user_yaml=ROOT / "_config.yml", cli_config=command_line, sourcedir=ROOT)
    told["extensions"].remove("jupyter_book")
    differ = {name for name in told if name not in ITS_OWN and told[name] != plain.get(name)}
    # Its defaults, which are those of the extensions, too: nothing runs in a build, and no address is another's.
    assert {name for name in differ if not name.startswith("nb_execution_")} == {"html_theme_options"}
    assert plain["nb_execution_mode"] == told["nb_execution_mode"] == "off"
    options = told["html_theme_options"]
    more = {name: value for name, value in options.items() if value != plain["html_theme_options"].get(name)}
    assert sorted(more) == [
        *("analytics", "announcement", "extra_footer", "launch_buttons"),
        *("use_edit_page_button", "use_issues_button", "use_repository_button"),
    ]


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
