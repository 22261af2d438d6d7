"""What the README promises: the check names the fault of its loop, and the loop to paste is right."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import xent.torch

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
IGNORED = -100


def run(word: str) -> dict[str, Any]:
    """Run the block of the README that holds this word; return what it defines."""
    (block,) = [b for b in re.findall(r"```python\n(.*?)```", README, flags=re.S) if word in b]
    names: dict[str, Any] = {}
    exec(block, names)
    return names


def test_the_check_names_the_fault() -> None:
    torch.manual_seed(0)
    report = run("check_accumulation(")["report"]
    assert not report.ok
    assert "a mean of means over the micro-batches" in str(report)


@pytest.mark.parametrize("max_norm", [math.inf, 0.01])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("rows", [[2, 3, 7, 4, 5], [2, 0, 7], [0, 0], [1, 1, 1]], ids=str)
@pytest.mark.parametrize("ignored", [[], [1], [0, 1, 2, 3, 4]], ids=str)
def test_every_window_has_the_gradient_of_one_batch(
    max_norm: float, scaled: bool, rows: list[int], ignored: list[int]
) -> None:
    """A last window that is short, a micro-batch without rows or without a target, with a loss scale and without.

    Clipped it is once, by its whole norm.
    """
    train = run("def train")["train"]
    torch.manual_seed(0)
    loader = [{"inputs": torch.randn(n, 2, 3), "labels": torch.randint(5, (n, 2))} for n in rows]
    for i, batch in enumerate(loader):
        batch["labels"].view(-1)[:: 1 if i in ignored else 3] = IGNORED
    model = torch.nn.Linear(3, 5)
    optimiser, seen = torch.optim.SGD(model.parameters(), lr=0.0), []
    optimiser.register_step_pre_hook(lambda *_: seen.append([p.grad.clone() for p in model.parameters()]))
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    train(model, loader, optimiser, steps=2, scaler=scaler, max_norm=max_norm)

    for start, found in zip(range(0, len(rows), 2), seen, strict=True):
        window, whole = loader[start : start + 2], copy.deepcopy(model).double()
        whole.zero_grad()
        logits = whole(torch.cat([batch["inputs"] for batch in window]).double()).flatten(0, 1)
        labels = torch.cat([batch["labels"] for batch in window]).flatten()
        total = torch.nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
        (total / (labels != IGNORED).sum().clamp(min=1)).backward()
        torch.nn.utils.clip_grad_norm_(whole.parameters(), max_norm)
        for gradient, parameter in zip(found, whole.parameters(), strict=True):
            torch.testing.assert_close(gradient.double(), parameter.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("denominator", ["tokens", 2.0])
def test_the_mended_loop_still_averages_over_tokens(denominator: Any) -> None:
    """Two sequences, of one token and of three: the gradient at the stop probability of the data, one in two.

    The front page says so below its table: a step without its error is no constant denominator.
    """
    stop = torch.zeros((), dtype=torch.float64, requires_grad=True)
    loader = [torch.tensor([1.0]), torch.tensor([0.0, 0.0, 1.0])]
    for window in xent.torch.accumulate(loader, 1, targets=len, denominator=denominator):
        for micro in window:
            ends = micro.batch.double()
            loss = xent.torch.binary_cross_entropy(stop.expand_as(ends), ends, reduction="sum")
            (loss * micro.scale).backward()
    assert stop.grad is not None
    assert float(stop.grad) == pytest.approx(-1 / 3 if denominator == "tokens" else 0, abs=1e-12)


def test_what_is_an_error_and_where() -> None:
    """Would be refuted by a bad value that passes, or by a transform that lets one pass and that the README leaves out.

    A label out of range stops these too, with PyTorch's message.
    """
    loss, soft = xent.torch.cross_entropy, xent.torch.soft_cross_entropy
    logits, none = torch.zeros(1, 3), torch.tensor([-100])
    with pytest.raises(ValueError, match=r"^targets: .* got 7"):
        loss(logits, torch.tensor([7]))
    (found,) = re.findall(r"outside (.*), a label out of range, .* raises an error that says why", README)
    assert re.findall(r"`([\w.]+)`", found) == ["torch.compile", "torch.export", "torch.func"]
    for call, targets, name in (
        (soft, torch.tensor([[0.5, 0.5, 0.1]]), "target_probs"),
        (lambda z, y: loss(z, y, ignore_index=-100), none, "targets"),
    ):
        with pytest.raises(ValueError, match=f"^{name}: "):
            call(logits, targets)
        torch._dynamo.reset()
        torch.compile(call, backend="eager", fullgraph=True)(logits, targets)
        torch.export.export(Called(call), (logits, targets)).module()(logits, targets)
        torch.func.vmap(call)(logits[None], targets[None])
        torch.func.grad(call)(logits, targets)


class Called(torch.nn.Module):
    def __init__(self, call: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.forward = call
