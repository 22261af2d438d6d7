"""The stored form of the chapters, without executing them."""

from __future__ import annotations

import ast
import base64
import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest

import notebooks
from xent_site import toc_problems

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))
TAGS = {
    "nbval-ignore-output",
    *(f"{verb}-{part}" for verb in ("hide", "remove") for part in ("input", "output", "cell")),
}

each_chapter = pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)


def cells_of(path: Path, kind: str) -> list[tuple[str, dict[str, Any]]]:
    """List a chapter's cells of one kind, each with a name to report it by."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [
        (f"{path.name}, {notebooks.cell_name(cell, index)}", cell)
        for index, cell in enumerate(cells)
        if cell["cell_type"] == kind
    ]


def source_of(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def prints(source: str) -> bool:
    """Tell whether a cell calls print or plt.show at its own level, not only inside a function it defines."""
    todo: list[ast.AST] = list(ast.parse(re.sub(r"^[%!].*$", "", source, flags=re.MULTILINE)).body)
    while todo:
        node = todo.pop()
        if isinstance(
            node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.If, ast.Try)
        ):
            continue
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "plt.show"):
            return True
        todo.extend(ast.iter_child_nodes(node))
    return False


def pictures(cell: dict[str, Any]) -> list[bytes]:
    data = [output.get("data", {}) for output in cell["outputs"]]
    return [base64.b64decode(entry["image/png"]) for entry in data if "image/png" in entry]


def png_chunks(picture: bytes) -> set[str]:
    """List the kinds of chunk in a PNG file."""
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    kinds, at = set(), 8
    while at < len(picture):
        (length,) = struct.unpack_from(">I", picture, at)
        kinds.add(picture[at + 4 : at + 8].decode("ascii"))
        at += length + 12
    return kinds


def test_there_are_chapters() -> None:
    assert CHAPTERS


def test_every_page_is_in_the_table_of_contents() -> None:
    assert toc_problems(ROOT) == []


@each_chapter
def test_normal_form(path: Path) -> None:
    assert notebooks.check(path) == []


@each_chapter
def test_what_prints_has_a_stored_output(path: Path) -> None:
    # nbval compares nothing, and passes, where nothing is stored.
    silent = [
        name for name, cell in cells_of(path, "code") if prints(source_of(cell)) and not cell["outputs"]
    ]
    assert silent == []


@each_chapter
def test_every_picture_has_written_alternative_text(path: Path) -> None:
    missing = [
        name
        for name, cell in cells_of(path, "code")
        if pictures(cell)
        and len(cell["metadata"].get("mystnb", {}).get("image", {}).get("alt", "").split()) < 5
    ]
    for name, cell in cells_of(path, "markdown"):
        source = source_of(cell)
        directives = re.findall(
            r"^([`:]{3,}) *\{(?:figure|image)\}(.*?)^\1", source, re.MULTILINE | re.DOTALL
        )
        if re.search(r"!\[\s*\]\(", source) or any(":alt:" not in body for _, body in directives):
            missing.append(name)
    assert missing == [], "say in metadata.mystnb.image.alt (or :alt:) what the picture shows"


@each_chapter
def test_pictures_carry_no_metadata(path: Path) -> None:
    # A version or a date would make equal pictures differ; xent_book.plots.use_style leaves both out.
    marked = {
        name: sorted(found)
        for name, cell in cells_of(path, "code")
        for picture in pictures(cell)
        if (found := png_chunks(picture) & {"tEXt", "iTXt", "zTXt", "tIME", "eXIf"})
    }
    assert marked == {}


@each_chapter
def test_no_cell_ends_in_a_semicolon(path: Path) -> None:
    # Under nbval a value is an output whether or not a semicolon hides it in the notebook.
    ending = [name for name, cell in cells_of(path, "code") if source_of(cell).rstrip().endswith(";")]
    assert ending == []


@each_chapter
def test_tags_are_known(path: Path) -> None:
    # Among the unknown ones are those by which a cell would escape the comparison or be allowed to fail.
    unknown = {
        name: sorted(set(cell["metadata"].get("tags", [])) - TAGS) for name, cell in cells_of(path, "code")
    }
    assert {name: tags for name, tags in unknown.items() if tags} == {}


def markdown(*source: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": list(source)}


def code(source: str, *outputs: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "execution_count": 7,
        "metadata": metadata,
        "outputs": list(outputs),
        "source": source,
    }


def stream(text: str, name: str = "stdout") -> dict[str, Any]:
    return {"output_type": "stream", "name": name, "text": text}


def form(*cells: dict[str, Any]) -> dict[str, Any]:
    return json.loads(notebooks.normal_form({"cells": list(cells), "metadata": {"signature": "x"}}))


def test_normal_form_drops_what_changes_from_run_to_run() -> None:
    result = {
        "output_type": "execute_result",
        "execution_count": 7,
        "data": {"text/plain": "1\n2"},
        "metadata": {},
    }
    cell = code(
        "a\nb", stream("x\n"), result, stream("y\n"), execution={"iopub.execute_input": "now"}, tags=["t"]
    )
    [normal] = form(cell)["cells"]
    assert normal["metadata"] == {"tags": ["t"]}
    assert normal["execution_count"] == 1
    assert normal["source"] == ["a\n", "b"]
    assert normal["outputs"][0] == {"name": "stdout", "output_type": "stream", "text": ["x\n", "y\n"]}
    assert normal["outputs"][1]["execution_count"] == 1
    assert normal["outputs"][1]["data"] == {"text/plain": ["1\n", "2"]}
    assert form(cell)["metadata"] == notebooks.METADATA


def test_normal_form_is_a_fixed_point() -> None:
    text = notebooks.normal_form({"cells": [markdown("# λ"), code("1", stream("x"))], "metadata": {}})
    assert "λ" in text and text.endswith("}\n")
    assert notebooks.normal_form(json.loads(text)) == text


def test_ids_are_kept_and_otherwise_follow_from_the_content() -> None:
    named = markdown("a") | {"id": "introduction"}
    ids = [cell["id"] for cell in form(named, markdown("b"), markdown("b"), markdown("c"))["cells"]]
    assert ids[0] == "introduction" and len(set(ids)) == 4
    shifted = [cell["id"] for cell in form(markdown("new"), markdown("b"), markdown("c"))["cells"]]
    assert shifted[1:] == [ids[1], ids[3]]


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (stream("careful", "stderr"), r"cell 2 \('work\(\)'\): writes to stderr: careful"),
        (
            {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": []},
            r"cell 2 \('work\(\)'\): the stored output is an error: ValueError: no",
        ),
    ],
)
def test_normal_form_refuses(output: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        form(markdown("a"), code("work()", output))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("print(1)", True),
        ("for i in range(3):\n    print(i)", True),
        ("fig, ax = plt.subplots()\nplt.show()", True),
        ("def f():\n    print(1)", False),
        ("x = 1", False),
    ],
)
def test_prints(source: str, expected: bool) -> None:
    assert prints(source) is expected
