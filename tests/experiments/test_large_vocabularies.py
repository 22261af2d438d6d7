"""Chapter 15's code is what the experiment measures, and what it measured is what its chapter needs."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.colors import to_rgba

from experiments.large_vocabularies import memory
from experiments.shared import in_fresh_process
from xent_book import plots

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "experiments" / "large_vocabularies" / "memory.py"


def cell(words: str) -> str:
    """The chapter's code cell that has these words."""
    cells = json.loads((ROOT / "chapters" / "15_large_vocabularies.ipynb").read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (found,) = [source for source in sources if words in source]
    return found


def test_the_chapter_prints_the_code_that_the_experiment_measures() -> None:
    measured = next(
        node for node in ast.parse(SCRIPT.read_text()).body if getattr(node, "name", "") == "Blocked"
    )
    (shown,) = ast.parse(cell("class Blocked(")).body
    for number in (1, 2):
        assert ast.dump(shown.body[number]) == ast.dump(measured.body[number])


@pytest.mark.parametrize("name", memory.WAYS)
def test_every_way_has_the_gradients_of_the_plain_one(name: str) -> None:
    inputs = memory.data(300, 2500, torch.float64)
    expected, found = memory.step(memory.plain, inputs), memory.step(memory.WAYS[name], inputs)
    for a, b in zip(found, expected, strict=True):
        assert float((a - b).norm() / b.norm()) < 1e-12


@pytest.mark.slow
def test_the_blocked_loss_takes_a_tenth_of_the_memory() -> None:
    """Measured in fresh processes, at V = 32,000 and enough rows that the gradients do not decide."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("there is no high-water mark to reset")
    plain, ours = (in_fresh_process(memory.grown, name, 1024, 32_000) for name in ("plain", "blocked"))
    assert plain > 2.5 * 1024 * 32_000 * 4  # the measure sees the arrays at all
    assert ours < plain / 10


def test_the_committed_result_meets_the_target() -> None:
    result = json.loads(memory.RESULT.read_text())
    assert max(result["gradients in float64, relative error"].values()) < 1e-12
    (case,) = [c for c in result["cases"] if (c["rows"], c["vocabulary"]) == (4096, 32_000)]
    assert case["bytes"]["blocked"] < case["bytes"]["plain"] / 10
    assert case["bytes"]["torch, options"] < case["bytes"]["plain"] / 10
    assert set(case["bytes"]) == set(memory.WAYS)


def areas(changed: tuple[str, str] = ("", "")) -> dict[str, list[float]]:
    """Draw the chapter's figure, and return the arrays' sizes in numbers by what they are filled with."""
    plt.close("all")
    with plt.ioff():
        exec(
            cell("def area(").replace(*changed), {"plt": plt, "plots": plots, "to_rgba": to_rgba, "Any": Any}
        )
    found: dict[str, list[float]] = {"": [], "plain": [], "blocks": [], "never": []}
    for patch in plt.gcf().axes[0].patches:
        assert isinstance(patch, plt.Rectangle)
        filled = {to_rgba(plots.BLUE, 0.25): "plain", to_rgba(plots.ORANGE): "blocks"}
        kind = "never" if patch.get_linestyle() == ":" else filled.get(patch.get_facecolor(), "")
        found[kind].append(patch.get_width() * patch.get_height())
    plt.close("all")
    return found


def test_memory_is_drawn_to_scale() -> None:
    """As many numbers as the bill counts, for one scale: {eq}`eq-vocab-bytes`, and the gradients beside it."""
    n, v, h, b = 8192, 128_256, 4096, 1024

    def to_scale(drawn: dict[str, list[float]]) -> bool:
        layers = sorted([h * n] * 2 + [h * v] * 2)
        arrays = {"": layers, "plain": [n * v] * 3, "blocks": [n * b] * 2, "never": [n * v]}
        return {kind: sorted(sizes) for kind, sizes in drawn.items()} == arrays

    assert to_scale(areas())
    for fault in (
        ("V, H, name", "V, 2 * H, name"),
        ("B, N, ", "B, N / 2, "),
        ("range(2):\n    area((50", "range(3):\n    area((50"),
    ):
        assert not to_scale(areas(fault)), fault
