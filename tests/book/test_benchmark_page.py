"""The benchmark's committed result, and the page that shows it."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import bench_table
from tiny_book import ROOT

pytestmark = pytest.mark.slow  # builds pages with Sphinx

CONFIGURATION = f"""\
import sys
sys.path.insert(0, {str(ROOT / "_ext")!r})
extensions = ["myst_nb", "xent_bench"]
nb_execution_mode = "off"
html_theme = "basic"
suppress_warnings = ["myst.xref_missing"]
exclude_patterns = ["_build"]
"""


@pytest.fixture
def result() -> dict[str, Any]:
    return copy.deepcopy(bench_table.read())


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """A book with the repository's page and result."""
    (tmp_path / "conf.py").write_text(CONFIGURATION, encoding="utf-8")
    (tmp_path / "index.md").write_text("# Book\n\n```{toctree}\npage\n```\n", encoding="utf-8")
    page = (ROOT / "chapters/benchmarks.md").read_text(encoding="utf-8")
    (tmp_path / "page.md").write_text(page, encoding="utf-8")
    write(tmp_path, bench_table.read())
    return tmp_path


def write(root: Path, result: dict[str, Any]) -> None:
    path = root / bench_table.RESULT.relative_to(ROOT)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result), encoding="utf-8")


def build(root: Path) -> str:
    """Build as the book is built, every warning counts, and return the page's words."""
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "--no-color", ".", "_build/html"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    html = (root / "_build/html/page.html").read_text(encoding="utf-8")
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def find(result: dict[str, Any], shape: tuple[int, int]) -> dict[str, Any]:
    """The case of float32, random logits, classes last."""
    return next(
        case
        for case in result["cases"]
        if (case["rows"], case["classes"]) == shape
        and (case["dtype"], case["logits"], case["axis"]) == ("float32", "random", -1)
    )


def test_the_committed_result_meets_every_target(result: dict[str, Any]) -> None:
    assert [what for what, measured, most in bench_table.verdicts(result) if measured > most] == []


def test_every_way_was_measured(result: dict[str, Any]) -> None:
    for case in result["cases"]:
        expected = {"xent", *bench_table.WAYS}
        if case["axis"] == 0:
            expected = {"xent", "torch", "torch, 2 threads", "scipy"}
        assert set(case["seconds"]) == expected
        assert case["turns"] >= 5


def test_the_page_shows_the_result(book: Path, result: dict[str, Any]) -> None:
    words = build(book)
    assert result["date"] in words
    assert result["machine"]["cpu"] in words
    case = find(result, (100_000, 10))
    assert f"100,000 × 10 float32 random {1e3 * case['seconds']['xent']['fastest']:,.1f}" in words
    assert words.count(" met ") == len(bench_table.verdicts(result))
    assert "missed" not in words

    # A new result changes the page, though its own source did not change.
    case["seconds"]["torch"]["fastest"] = case["seconds"]["xent"]["fastest"] / 3
    write(book, result)
    words = build(book)
    assert "100,000 × 10 float32, time of PyTorch, 1 thread missed 3.000 1 " in words


def test_an_unknown_part_is_an_error(book: Path) -> None:
    page = book / "page.md"
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("{benchmark} times", "{benchmark} tymes"), encoding="utf-8")
    with pytest.raises(AssertionError, match="benchmark: expected one of setting, times"):
        build(book)
