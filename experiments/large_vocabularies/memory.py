"""Memory and time of the cross-entropy of a linear layer, in a sweep over vocabulary and rows.

    python -m experiments.large_vocabularies.memory    the sweep; writes memory.json

Each way computes the mean loss of `hidden @ weight.T` and its gradient with respect to both, in float32, one
thread. Memory is what a call and its backward pass need beyond the inputs at the highest point, the two
gradients included: the growth of the resident set of a fresh process (Linux), after a small call. Time is
measured in one process in which the ways take turns, and each counts by its fastest turn.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import LinearCrossEntropyOptions as Options
from torch.utils.checkpoint import checkpoint

from experiments.shared import growth, in_fresh_process, made, save

RESULT = Path(__file__).with_name("memory.json")
FEATURES, BLOCK, CHUNK = 128, 1024, 256
VOCABULARIES = [(1024, v) for v in (4_000, 8_000, 16_000, 32_000, 64_000)]
ROWS = [(n, 32_000) for n in (512, 2048, 4096)]
TURNS, SLOW = 5, 10.0  # turns, and the seconds of a way that takes two
Way = Callable[[Tensor, Tensor, Tensor], Tensor]


class Blocked(torch.autograd.Function):
    """Mean cross-entropy of hidden @ weight.T, one block of the vocabulary at a time."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor, block: int) -> Tensor:
        """Keep a running maximum and sum for each row."""
        m = hidden.new_full((len(hidden),), -torch.inf)
        s = torch.zeros_like(m)
        for part in weight.split(block):
            z = hidden @ part.T
            top = torch.maximum(m, z.amax(1))
            s = s * (m - top).exp() + (z - top[:, None]).exp_().sum(1)
            m = top
        lse = m + s.log()
        ctx.save_for_backward(hidden, weight, target, lse)
        ctx.block = block
        return (lse - (hidden * weight[target]).sum(1)).mean()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Compute each block's logits again."""
        hidden, weight, target, lse = ctx.saved_tensors
        scale, at = upstream / len(hidden), torch.arange(len(hidden))
        to_hidden, to_weight = torch.zeros_like(hidden), torch.empty_like(weight)
        for first in range(0, len(weight), ctx.block):
            part = weight[first : first + ctx.block]
            g = (hidden @ part.T).sub_(lse[:, None]).exp_()
            here = (target >= first) & (target < first + len(part))
            g[at[here], target[here] - first] -= 1
            to_hidden.addmm_(g.mul_(scale), part)
            torch.mm(g.T, hidden, out=to_weight[first : first + len(part)])
        return to_hidden, to_weight, None, None


def plain(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """Make all logits, and let PyTorch do the rest."""
    return F.cross_entropy(hidden @ weight.T, target)


def plain_named(hidden: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Do the same, and hold on to the logits, as a loop does that logs them or returns them."""
    logits = hidden @ weight.T
    return F.cross_entropy(logits, target), logits


def in_chunks(hidden: Tensor, weight: Tensor, target: Tensor, again: bool = False) -> Tensor:
    """Take the rows in chunks, and nothing else; or forget each chunk's logits and compute them `again`."""

    def chunk_sum(h: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(h @ weight.T, y, reduction="sum")

    chunks = zip(hidden.split(CHUNK), target.split(CHUNK), strict=True)
    sums = (checkpoint(chunk_sum, *c, use_reentrant=False) if again else chunk_sum(*c) for c in chunks)
    return torch.stack(list(sums)).sum() / len(target)


WAYS: dict[str, Any] = {
    "plain": plain,
    "plain, logits kept": plain_named,
    "chunks alone": in_chunks,
    "chunks, checkpointed": partial(in_chunks, again=True),
    "torch, options=None": F.linear_cross_entropy,
    "torch, options": partial(F.linear_cross_entropy, options=Options()),
    "torch, chunks of 256": partial(F.linear_cross_entropy, options=Options(batch_chunk_size=CHUNK)),
    "blocked": lambda *inputs: Blocked.apply(*inputs, BLOCK),
}


def data(rows: int, vocabulary: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Draw hidden states, a weight and labels; the logits have a standard deviation of 2."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, FEATURES, generator=generator, dtype=dtype)
    weight = torch.randn(vocabulary, FEATURES, generator=generator, dtype=dtype) * (2 / FEATURES**0.5)
    target = torch.randint(vocabulary, (rows,), generator=generator)
    return hidden.requires_grad_(), weight.requires_grad_(), target


def step(way: Way, inputs: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss and both gradients."""
    result = way(*inputs)
    loss = result[0] if isinstance(result, tuple) else result
    loss.backward()
    hidden, weight, _ = inputs
    assert hidden.grad is not None and weight.grad is not None
    gradients = hidden.grad, weight.grad
    hidden.grad = weight.grad = None
    return loss.detach(), *gradients


def grown(name: str, rows: int, vocabulary: int) -> int:
    """Return by how much this process grows while it takes one step."""
    torch.set_num_threads(1)
    step(WAYS[name], data(64, 512))  # what a first call sets up is not its memory
    inputs = data(rows, vocabulary)
    return max(0, growth(lambda: step(WAYS[name], inputs))[0])


def agree(rows: int = 64, vocabulary: int = 3000) -> dict[str, float]:
    """Return, in float64, how far each way's gradients are from the plain ones; stop if that is far."""
    inputs = data(rows, vocabulary, torch.float64)
    _, *expected = step(plain, inputs)
    worst: dict[str, float] = {}
    for name, way in WAYS.items():
        _, *found = step(way, inputs)
        worst[name] = max(float((a - b).norm() / b.norm()) for a, b in zip(found, expected, strict=True))
        if worst[name] > 1e-12:
            raise SystemExit(f"{name}: the gradients differ by {worst[name]:.1e}")
    return worst


def seconds(rows: int, vocabulary: int) -> dict[str, float]:
    """Return the fastest turn of each way; all take turns in this process, the slow ones two."""
    inputs = data(rows, vocabulary)
    fastest = dict.fromkeys(WAYS, float("inf"))
    for turn in range(TURNS):
        for name, way in WAYS.items():
            if turn >= 2 and fastest[name] > SLOW:
                continue
            begin = time.perf_counter()
            step(way, inputs)
            fastest[name] = min(fastest[name], time.perf_counter() - begin)
    return fastest


def measured(rows: int, vocabulary: int) -> dict[str, Any]:
    case = {"rows": rows, "vocabulary": vocabulary, "logits": rows * vocabulary * 4}
    bytes_ = {name: in_fresh_process(grown, name, rows, vocabulary) for name in WAYS}
    print(case, bytes_, flush=True)
    return {**case, "bytes": bytes_, "seconds": seconds(rows, vocabulary)}


def main() -> None:
    torch.set_num_threads(1)
    result: dict[str, Any] = {
        **made(torch),
        "machine": {"cores": os.cpu_count(), "system": platform.system(), "processor": platform.machine()},
        "settings": {"dtype": "float32", "features": FEATURES, "block": BLOCK, "chunk": CHUNK}
        | {"seed": 0, "threads": 1, "turns": TURNS}
        | {"memory": "growth of VmHWM in a fresh process, gradients included"},
        "gradients in float64, relative error": agree(),
        "cases": [measured(*case) for case in VOCABULARIES + ROWS],
    }
    save(result, RESULT)


if __name__ == "__main__":
    main()
