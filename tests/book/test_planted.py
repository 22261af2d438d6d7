"""Errors planted in a tiny copy of the book: the build fails, says what and where, and fails again."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .conftest import TinyBook


def fails_twice(tiny: TinyBook, *said: str) -> None:
    """Build twice: a second, identical run must not pass because the first one left something behind."""
    for attempt in ("first", "second"):
        status, output = tiny.build()
        assert status == 1, f"the {attempt} build passed:\n{output}"
        missing = [words for words in said if words not in output]
        assert missing == [], f"the {attempt} build did not say so:\n{output}"
        assert "built in" not in output


def test_a_sound_book_builds_and_an_unchanged_one_executes_nothing(tiny_book: TinyBook) -> None:
    status, output = tiny_book.build()
    assert status == 0, output
    assert "[1/1] 01_good" in output
    assert "42" in tiny_book.page("01_good")
    assert tiny_book.run("tools/book.py", "--status")[0] == 0
    status, output = tiny_book.build()
    assert status == 0, output
    assert "1 of 1 chapters unchanged" in output and "executing" not in output

    # What the chapter imports is another thing now, and the chapter's file is the same.
    (tiny_book.root / "code" / "xent" / "__init__.py").write_text("answer = 43\n")
    assert tiny_book.run("tools/book.py", "--status")[0] == 1
    status, output = tiny_book.build()
    assert status == 0, output
    assert "executing 1 chapter" in output
    assert "43" in tiny_book.page("01_good") and "42" not in tiny_book.page("01_good")


def test_the_page_of_a_removed_chapter_goes(tiny_book: TinyBook) -> None:
    tiny_book.write_chapter("02_more", "# More")
    tiny_book.write_toc("01_good", "02_more")
    assert tiny_book.build()[0] == 0
    (tiny_book.root / "chapters" / "02_more.ipynb").unlink()
    tiny_book.write_toc("01_good")
    status, output = tiny_book.build()
    assert status == 0, output
    pages = {path.name for path in (tiny_book.root / "_build" / "html" / "chapters").glob("*.html")}
    assert pages == {"01_good.html", "references.html"}


def test_an_edited_alternative_text_reaches_the_page(tiny_book: TinyBook) -> None:
    drawing = "# code\nimport matplotlib.pyplot as plt\nplt.plot([0, 1])\nplt.show()"
    path = tiny_book.write_chapter("01_good", "# Good", drawing)
    for text in ("A line that rises.", "A line from the corner, rising."):
        notebook = json.loads(path.read_text())
        notebook["cells"][1]["metadata"] = {"mystnb": {"image": {"alt": text}}}
        path.write_text(json.dumps(notebook))
        status, output = tiny_book.build()
        assert status == 0, output
        assert re.findall(r'<img [^>]*?alt="([^"]*)"[^>]*_images', tiny_book.page("01_good")) == [text]


def test_a_failing_cell(tiny_book: TinyBook) -> None:
    tiny_book.write_chapter("01_good", "# Good", "# code\nx = 0", "# code, the next\n1 / x")
    fails_twice(
        tiny_book,
        "chapters/01_good.ipynb, cell 3 ('# code, the next'): ZeroDivisionError: division by zero",
        "----> 2 1 / x",
    )


def test_a_failing_cell_fails_a_plain_build_too(tiny_book: TinyBook) -> None:
    tiny_book.write_chapter("01_good", "# Good", "# code\n1 / 0")
    plain = ("-c", "from jupyter_book.cli.main import main; main()", "build", ".")
    for _ in range(2):
        status, output = tiny_book.run(*plain)
        assert status != 0, output
        assert "ZeroDivisionError" in output


def test_a_cell_that_writes_to_stderr(tiny_book: TinyBook) -> None:
    tiny_book.write_chapter("01_good", "# Good", "# code\nimport warnings\nwarnings.warn('look here')")
    fails_twice(tiny_book, "01_good.ipynb, cell 2", "stderr")


def test_a_cell_that_does_not_end(tiny_book: TinyBook) -> None:
    path = tiny_book.write_chapter("01_good", "# Good", "# code\nwhile True: pass")
    script = "import execution, pathlib, sys; print(execution.execute(pathlib.Path(sys.argv[1]), 2).error)"
    status, output = tiny_book.run("-c", f"import sys; sys.path.insert(0, 'tools'); {script}", str(path))
    assert status == 0, output
    assert "chapters/01_good.ipynb, cell 2 ('# code'): the cell ran for more than 2 s" in output


def test_a_wrong_stored_output(tiny_book: TinyBook) -> None:
    nbval = ("-m", "pytest", "--nbval", "--nbval-current-env", "-p", "no:cacheprovider", "chapters")
    status, output = tiny_book.run(*nbval)
    assert status == 0, output
    tiny_book.write_chapter("01_good", "# Good", "# code\nimport xent\nprint(xent.answer)", output="41\n")
    status, output = tiny_book.run(*nbval)
    assert status == 1, output
    assert "chapters/01_good.ipynb::Cell 0" in output
    assert "41" in output and "42" in output


def test_what_refers_to_nothing_and_tex_that_cannot_be_read(tiny_book: TinyBook) -> None:
    tiny_book.write_chapter(
        "01_good",
        "# Good",
        "See {eq}`eq-nowhere`.",
        "See {numref}`fig-nowhere`.",
        "Shown by {cite}`nobody1999`.",
        "$$\n\\frac{1}{2\n$$ (eq-half)",
    )
    fails_twice(
        tiny_book,
        "01_good.ipynb, cell 2, line 1: WARNING: equation not found: eq-nowhere",
        "01_good.ipynb, cell 3, line 1: WARNING: undefined label: 'fig-nowhere'",
        '01_good.ipynb, cell 4, line 1: WARNING: could not find bibtex key "nobody1999"',
        "01_good.ipynb, cell 5, line 1: WARNING: KaTeX cannot render '\\\\frac{1}{2'",
    )


def test_a_chapter_that_the_table_of_contents_forgets(tiny_book: TinyBook) -> None:
    tiny_book.write_chapter("02_forgotten", "# Forgotten")
    fails_twice(tiny_book, "chapters/02_forgotten.ipynb: this page is not in _toc.yml")


def test_an_entry_of_the_table_of_contents_without_a_chapter(tiny_book: TinyBook) -> None:
    tiny_book.write_toc("01_good", "02_missing")
    fails_twice(tiny_book, "_toc.yml: lists 'chapters/02_missing'", "no chapters/02_missing.ipynb")
