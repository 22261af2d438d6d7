"""Every number in the chapters' prose is printed by the code beside it, or an exception with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import prose_numbers

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))
ALLOWED = prose_numbers.read_allowed(ROOT)


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_every_number_of_the_prose_is_supported(path: Path) -> None:
    lines = prose_numbers.problems(path, ALLOWED.get(path.stem, []))
    if lines:
        pytest.fail("\n".join(lines), pytrace=False)


def test_every_exception_has_a_chapter_and_a_reason() -> None:
    assert set(ALLOWED) <= {path.stem for path in CHAPTERS}
    assert all(row["why"] and row["near"] for rows in ALLOWED.values() for row in rows)


# ------------------------------------------------------------------------------------- the check itself


def notebook(*cells: str | tuple[str, str]) -> dict[str, Any]:
    """A tiny chapter: Markdown, or pairs of a source and what it prints."""
    made: list[dict[str, Any]] = []
    for cell in cells:
        if isinstance(cell, str):
            made.append({"cell_type": "markdown", "source": [cell]})
        else:
            stream = {"output_type": "stream", "name": "stdout", "text": [cell[1]]}
            made.append({"cell_type": "code", "source": [cell[0]], "outputs": [stream]})
    return {"cells": made}


def found(*cells: str | tuple[str, str]) -> list[str]:
    return [number.text for number in prose_numbers.unsupported(notebook(*cells))]


CODE = ("print(loss, draws := 400)", "loss 2.3026, share 0.0398, rows 31,874, 16777216 bytes, -1.5e-3\n")


@pytest.mark.parametrize(
    "text",
    [
        "The loss is 2.3.",
        "The loss is 2.30 nats, and −2.303 is its negative.",
        "A share of 4 per cent, or 3.98 %.",
        "After 400 draws it stays.",
        "There are 31,874 rows, about 32,000.",
        "It needs about 17 million bytes, or 16 MiB.",
        "It differs by .0015.",
        "So $x \\approx 2.30$, or $2.3$.",
    ],
)
def test_what_is_printed_may_be_rounded(text: str) -> None:
    assert found(f"## A section\n\n{text}", CODE) == []


@pytest.mark.parametrize(
    ("text", "planted"),
    [
        ("The loss is 2.4.", "2.4"),
        ("The loss is 2.31 nats.", "2.31"),
        ("A share of 5%.", "5%"),
        ("A share of 3.97%.", "3.97%"),
        ("After 401 draws it stays.", "401"),
        ("There are 31,875 rows.", "31,875"),
        ("There are 32,000 rows.", None),
        ("There are 33,000 rows.", "33,000"),
        ("It needs 17 MiB.", "17"),
        ("It differs by .0016.", ".0016"),
        ("So $x \\approx 2.31$.", "2.31"),
        ("- an entry of a list with 2.4\n- another", "2.4"),
        ("| a table | 2.4 |", "2.4"),
        ("```{note}\nA note with 2.4.\n```", "2.4"),
        ("The last word is 77", "77"),
        ("```{moving-figure} bowl\n:name: fig-77\n:alt: A bowl of 2.4.\n\nWhere is 2.5?\n```", "2.4 2.5"),
        ("A coin tossed 2000 times.", "2000"),
        ("It is pulled with a force of 2000.", "2000"),
        ("After 1984 draws, of 1750 rows.", "1984 1750"),
    ],
)
def test_a_planted_number_is_found(text: str, planted: str | None) -> None:
    assert found(f"## A section\n\n{text}", CODE) == (planted.split(" ") if planted else [])


@pytest.mark.parametrize(
    "text",
    [
        "A thread of 2020, in May\n2017, a lecture (2018), as of late 2026. In 2022, from 2026, of 1998",
        "In August 2021, with PyTorch 2.6 and scikit-learn 1.1 to 1.4, in 16 or 32 bits, float32, GPT-21.",
        "Put $p = 0.77$ into `f(0.77)`, see {eq}`eq-77`, {cite}`author2077` and [there](https://a.org/77.77).",
        "An issue ([numpy 7777](https://github.com/numpy/numpy/issues/7777)).",
        "$$\nx = 77.7\n$$ (eq-seventy-77)",
        "```{exercise} Seventy\n:label: ex-77\n\nLet $p$ be 0.77 and N = 77.\n```",
        "### The 77 steps\n\nOf one to nine, 2 are 3.",
        "See {numref}`fig-77`. <span data-n='77'></span>",
    ],
)
def test_what_is_no_prose_is_left_alone(text: str) -> None:
    assert found(f"## A section\n\n{text}", CODE) == []


@pytest.mark.parametrize("words", [("figure", "caption"), ("image", "alt")])
def test_a_caption_and_an_alternative_text_are_prose(words: tuple[str, str]) -> None:
    made = notebook("## A section", CODE)
    made["cells"][1]["metadata"] = {"mystnb": {words[0]: {words[1]: "The loss is 2.30, not 2.31."}}}
    assert [number.text for number in prose_numbers.unsupported(made)] == ["2.31"]


def test_a_formula_may_use_the_package_and_a_stored_result(tmp_path: Path) -> None:
    path = tmp_path / "chapter.ipynb"
    path.write_text(json.dumps(notebook("## One\n\nThe learnt stop is 0.69, of 4,096 rows.")))
    rows = [
        {"number": "0.69", "near": "learnt stop", "why": "drawn", "value": "eos_optimum(0.5)"},
        {
            "number": "4,096",
            "near": "learnt stop",
            "why": "stored",
            "value": "max(c['rows'] for c in result('large_vocabularies/memory.json')['cases'])",
        },
    ]
    assert prose_numbers.problems(path, rows) == []
    rows[0] = rows[0] | {"value": "eos_optimum(0.4)"}
    assert len(prose_numbers.problems(path, rows)) == 1


def test_ids_of_errata_are_known_and_others_are_numbers() -> None:
    known = sorted(prose_numbers.ROWS)[0]
    assert found(f"## A section\n\nIt is not so ({known}).") == []
    assert found("## A section\n\nIt is not so (9.87).") == ["9.87"]


def test_only_the_same_section_supports_and_a_summary_has_the_whole_chapter() -> None:
    assert found("## One", CODE, "## Two\n\nThe loss is 2.303.") == ["2.303"]
    assert found("## One", CODE, "## What to remember\n\nThe loss is 2.303.") == []
    assert found("# Title\n\nThe loss will be 2.303.", "## One", CODE) == []
    assert found("# Title\n\nThe loss will be 2.403.", "## One", CODE) == ["2.403"]


def test_an_exception_has_to_be_used_and_its_evidence_to_hold(tmp_path: Path) -> None:
    path = tmp_path / "chapter.ipynb"
    path.write_text(json.dumps(notebook("## One", CODE, "## Two\n\nThe floor is 0.69, the loss 2.303.")))

    def problems(*rows: dict[str, str]) -> list[str]:
        return prose_numbers.problems(path, [{"why": "because", **row} for row in rows])

    floor = {"number": "0.69", "near": "The floor is", "value": "log(2)"}
    loss = {"number": "2.303", "near": "the loss", "section": "One"}
    assert problems(floor, loss) == []
    assert len(problems()) == 2 and all("nothing printed supports" in line for line in problems())
    for wrong in (
        floor | {"value": "log(3)"},
        floor | {"section": "One"} | {"value": "0"},
        {"number": "0.69", "near": "The floor is", "section": "One"},
        {"number": "0.69", "near": "The floor is", "file": "pyproject.toml", "text": "no such text"},
    ):
        (line,) = problems(wrong, loss)
        assert "is another number" in line
    (line,) = problems(floor, loss, {"number": "0.5", "near": "The floor is"})
    assert "excuses nothing" in line
