"""Chapter 15: the code that the experiment measures, and what the allocator counts."""

from __future__ import annotations

import ast
import itertools
import json
from pathlib import Path

import pytest
import torch

from experiments.large_vocabularies import memory

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "experiments" / "large_vocabularies" / "memory.py"


# --------------------------------------------------------------------------------- the code and its memory


def test_the_chapter_prints_the_code_that_the_experiment_measures():
    cells = json.loads((ROOT / "chapters" / "15_large_vocabularies.ipynb").read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (printed,) = [source for source in sources if source.startswith("class Blocked")]
    measured = next(
        node for node in ast.parse(SCRIPT.read_text()).body if getattr(node, "name", "") == "Blocked"
    )
    (shown,) = ast.parse(printed).body
    assert ast.dump(shown.body[1]) == ast.dump(measured.body[1])
    assert ast.dump(shown.body[2]) == ast.dump(measured.body[2])


@pytest.mark.parametrize("name", memory.WAYS)
def test_every_way_has_the_gradients_of_the_plain_one(name):
    inputs = memory.data(300, 2500, torch.float64)
    expected, found = memory.step(memory.plain, inputs), memory.step(memory.WAYS[name], inputs)
    for a, b in zip(found, expected, strict=True):
        assert float((a - b).norm() / b.norm()) < 1e-12


@pytest.mark.slow
def test_the_blocked_loss_takes_a_tenth_of_the_memory():
    """Measured in fresh processes, at V = 32,000 and enough rows that the gradients do not decide."""
    # Where there is no high-water mark to reset, count what PyTorch allocates.
    measure = memory.peak if Path("/proc/self/clear_refs").exists() else held
    plain, ours = (measure(name, 1024, 32_000) for name in ("plain", "blocked"))
    assert plain > 2.5 * 1024 * 32_000 * 4  # the measure sees the arrays at all
    assert ours < plain / 10


def test_the_committed_result_meets_the_target():
    result = json.loads(memory.RESULT.read_text())
    assert max(result["gradients in float64, relative error"].values()) < 1e-12
    (case,) = [c for c in result["cases"] if (c["rows"], c["vocabulary"]) == (4096, 32_000)]
    assert case["bytes"]["blocked"] < case["bytes"]["plain"] / 10
    assert case["bytes"]["torch, options"] < case["bytes"]["plain"] / 10
    assert set(case["bytes"]) == set(memory.WAYS)


def held(name: str, rows: int, words: int) -> int:
    """Return the most bytes that PyTorch's allocator held at once, beyond the inputs and the gradients."""
    inputs = memory.data(rows, words)
    memory.step(memory.WAYS[name], memory.data(8, 64))
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profiler:
        memory.step(memory.WAYS[name], inputs)
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda e: e.start_ns())
    return max(itertools.accumulate(e.nbytes() for e in events))


@pytest.mark.equation("eq-vocab-bytes", by="framework")
def test_what_the_allocator_counts(worst_error):
    r"""
    $$
    \begin{aligned}
    M_{\text{plain}} &= 3\, N V b, \\
    M_{\text{blocked}} &= 2\, N B b .
    \end{aligned}
    $$ (eq-vocab-bytes)
    """
    N, V, H, b, B = 256, 8192, memory.FEATURES, 4, memory.BLOCK
    # The plain peak comes before the gradients are made, the blocked one when both are there.
    gradients = (N + V) * H * b
    # wrong: 3 * N -> 2 * N
    observed = [3 * N * V * b, 2 * N * B * b + gradients]
    counted = [held("plain", N, V), held("blocked", N, V)]
    worst_error(observed, counted, rtol=5e-3, why="vectors of length N beside the arrays")
    assert abs(4 * N * V * b / held("plain, logits kept", N, V) - 1) < 5e-3
