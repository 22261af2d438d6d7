"""The stored form of the chapters, without executing them."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest

import notebooks
from quiet_drawings import quiet
from xent_book import exercises

TAGS = {
    "nbval-ignore-output",
    "rounding-errors",
    *(f"{verb}-{part}" for verb in ("hide", "remove") for part in ("input", "output", "cell")),
}


@pytest.mark.parametrize("path", notebooks.chapters(notebooks.ROOT), ids=lambda path: path.stem)
def test_a_chapter_is_as_it_should_be_stored(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    # Among other tags are those by which a cell would escape the comparison or be allowed to fail.
    assert {tag for cell in notebook.cells for tag in cell.metadata.get("tags", [])} <= TAGS
    assert notebooks.normal_form(notebook) == path.read_text(encoding="utf-8"), "run 'make notebooks'"
    for number, cell in enumerate(notebook.cells, 1):
        assert cell.cell_type == "code" or "<!--" not in cell.source, f"{path.name}, cell {number}: a comment"
        # A version changes with the environment, and nothing else of the cell needs to.
        free = "nbval-ignore-output" in cell.metadata.get("tags", [])
        assert free or "__version__" not in cell.source, f"{path.name}, cell {number}: prints a version"
        if any("image/svg+xml" in out.get("data", {}) for out in cell.get("outputs", [])):
            words = cell.metadata.get("mystnb", {})
            figure, alt = words.get("figure", {}), words.get("image", {}).get("alt", "")
            missing = [name for name in ("caption", "name") if not figure.get(name)]
            missing += [] if len(alt.split()) >= 5 else ["written alternative text"]
            assert not missing, f"{path.name}, cell {number}: a figure without a {' and a '.join(missing)}"


def test_a_drawing_is_stored_without_what_nobody_sees() -> None:
    drawn = (
        '<svg  width="9.00001pt"><path id="m0123456789" d="M -0.0012 7.2 "/>'
        '\n<use href="#m0123456789" x="-0"/></svg>'
    )
    stored = '<svg width="9pt"><path id="m0" d="M 0 7.2 "/> <use href="#m0" x="0"/></svg>'
    assert quiet(drawn) == quiet(drawn.replace("0123456789", "abcdef0123").replace("7.2", "7.1998")) == stored
    assert quiet(stored) == stored != quiet(drawn.replace("7.2", "7.21"))


NUMBERED = sorted((notebooks.ROOT / "chapters").glob("[0-9]*.ipynb"))
numbered_chapters = pytest.mark.parametrize("path", NUMBERED, ids=lambda path: path.stem)
CORE = 3_500  # words of Markdown
PARTS = ["Before you start\n:class: opening"]
PARTS += [
    f"\n## {part}" for part in ("Exercises", "What to remember", "Going deeper", "Sources and corrections")
]


@numbered_chapters
def test_a_chapter_has_a_core_and_what_goes_deeper(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    places = [text.find(part) for part in PARTS]
    assert -1 not in places and places == sorted(places), dict(zip(PARTS, places, strict=True))
    for said in ("**You should know**", "**You will be able to**", "**Time**"):
        assert said in text[: places[1]]
    # Without chapter 8's rows, which nobody reads from the first to the last.
    core = re.sub(r"^#### .*?(?=^##?#? )", "", text[: places[3]], flags=re.DOTALL | re.MULTILINE)
    words = len(core.split())
    assert words <= CORE, f"{words} words before 'Going deeper'"


def test_a_chapter_says_what_to_install_and_reads_nothing_beside_it() -> None:
    for path in notebooks.chapters(notebooks.ROOT):
        code = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        assert "pip install cross_entropy_verified*.whl" in code[0], path.stem
        assert "xent.__file__" not in "".join(code), path.stem


DIGITS = {"three": 1e-3, "six": 1e-6, "seven": 1e-7, "nine": 1e-9, "ten": 1e-10, "12": 1e-12}
SAID = re.compile(rf"({'|'.join(DIGITS)})[ ]digits|relative error of (1e-\d+)", re.I)


@numbered_chapters
def test_an_exercise_says_how_exact_an_answer_has_to_be(path: Path) -> None:
    """In its own text, or in the sentence under the heading of the exercises."""
    cells = nbformat.read(path, as_version=4).cells
    opening = next(cell.source for cell in cells if "## Exercises" in cell.source)
    warm = re.search(r"Two warm-ups of one line each, .*:\n\n- .*\? \(.+\)\n- .*\? \(.+\)(\n|$)", opening)
    assert warm, "two questions of a line, with the value to expect"
    for_all = SAID.search(opening.partition("## Exercises")[2])
    told = {}
    for text, cell in pairwise(cells):
        slug = re.search(r'exercises\.check\(\s*"([\w-]+)"', cell.source)
        # The answer to one is a judge, whose own tolerance is what its text names.
        if slug and "{exercise}" in text.source and slug[1] != "certify-binary":
            said = SAID.search(text.source.rpartition("{exercise}")[2]) or for_all
            assert said, slug[1]
            told[slug[1]] = float(said[2] or DIGITS[said[1].lower()])
    assert told
    for slug, tolerance in told.items():  # three digits: two in a thousand
        assert tolerance <= exercises.get(slug).rtol <= 2 * tolerance, slug
