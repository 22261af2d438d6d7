"""What the README promises: the loop it asks you to paste gives the full batch's update."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import torch

import xent.torch

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
IGNORED = -100


def the_loop() -> tuple[str, Any]:
    """The block of the README that defines `train`, and what it defines."""
    (block,) = [b for b in re.findall(r"```python\n(.*?)```", README, flags=re.S) if "def train" in b]
    names: dict[str, Any] = {}
    exec(block, names)
    return block, names["train"]


def test_the_loop_is_short() -> None:
    block, _ = the_loop()
    assert len(block.strip().splitlines()) <= 25


def test_the_loop_takes_the_step_of_the_full_batch() -> None:
    _, train = the_loop()
    torch.manual_seed(0)
    inputs = torch.randn(8, 6, 3, dtype=torch.float64)
    labels = torch.randint(5, (8, 6))
    labels[torch.arange(6) >= torch.tensor([6, 5, 1, 1, 2, 1, 6, 1])[:, None]] = IGNORED
    model = torch.nn.Linear(3, 5).double()
    whole, naive = copy.deepcopy(model), copy.deepcopy(model)

    pieces = list(zip(inputs.split(2), labels.split(2), strict=True))
    loader = [{"inputs": x, "labels": y} for x, y in pieces]
    train(model, loader, torch.optim.SGD(model.parameters(), lr=1.0), steps=4)

    xent.torch.cross_entropy(whole(inputs), labels, ignore_index=IGNORED).backward()
    torch.optim.SGD(whole.parameters(), lr=1.0).step()
    torch.testing.assert_close(model.weight, whole.weight, rtol=1e-12, atol=1e-14)

    for x, y in pieces:
        (xent.torch.cross_entropy(naive(x), y, ignore_index=IGNORED) / 4).backward()
    torch.optim.SGD(naive.parameters(), lr=1.0).step()
    assert (naive.weight - whole.weight).abs().max() > 1e-2  # the loop that the README replaces
