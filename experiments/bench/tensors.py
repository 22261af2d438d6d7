"""Measure the losses of `xent.torch`, forward and backward, beside PyTorch's own, and add them to result.json.

    python -m experiments.bench.tensors     some five minutes; under "tensors" of result.json

PyTorch's own loss is there twice: as it is, and through `torch.compile`, which needs a C++ compiler, makes kernels
for each shape, and is done before the timing. All take turns in one process, with one thread; a turn is one forward
and backward pass, or as many as take two milliseconds, and the fastest turn counts. The clock is the processor's
time of this process, which other work on the machine lengthens least. In bfloat16 PyTorch's losses get `.float()`
of the logits, as trainers give them. Memory is what a pass needs beyond its inputs at its highest point, the
gradient included: the growth of the resident set, in a process of its own with an allocator that hands every page
back.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import xent.torch
from experiments.shared import agree, growth, in_fresh_process, made, read, save, turns

RESULT = Path(__file__).with_name("result.json")
SIZES = [(64, 1_000), (20_000, 32), (100_000, 10), (1_024, 50_000)]
CASES = [*((*size, "float32") for size in SIZES), (1_024, 50_000, "bfloat16")]
BUDGET, LEAST = 8.0, 3  # seconds to measure each loss, and turns
Pass = Callable[[], Tensor]


def ways(rows: int, classes: int, dtype: str) -> dict[str, dict[str, Pass]]:
    """Each loss by PyTorch, the same compiled, and by xent: a function that makes a gradient and returns the loss."""
    torch.manual_seed(0)
    z, v = (torch.randn(rows, classes).to(getattr(torch, dtype)) for _ in range(2))
    y = torch.randint(classes, (rows,))
    z.requires_grad_()

    def divergence() -> Tensor:
        log_q, log_p = torch.log_softmax(z.float(), -1), torch.log_softmax(v.float(), -1)
        return functional.kl_div(log_q, log_p, reduction="batchmean", log_target=True)

    losses: dict[str, dict[str, Pass]] = {
        "cross_entropy": {
            "torch": lambda: functional.cross_entropy(z.float(), y),
            "xent": lambda: xent.torch.cross_entropy(z, y),
        },
        "smoothed": {
            "torch": lambda: functional.cross_entropy(z.float(), y, label_smoothing=0.1),
            "xent": lambda: xent.torch.cross_entropy(z, y, label_smoothing=0.1),
        },
        "distillation": {"torch": divergence, "xent": lambda: xent.torch.distillation_loss(z, v)},
    }

    def both_ways(loss: Pass) -> Pass:
        def once() -> Tensor:
            z.grad = None
            value = loss()
            value.backward()
            return value.detach()

        return once

    for own in losses.values():
        own["compiled"] = torch.compile(own["torch"], dynamic=False)
    return {name: {who: both_ways(loss) for who, loss in own.items()} for name, own in losses.items()}


def grown(case: tuple[int, int, str], name: str, who: str) -> int:
    """By how many bytes one pass makes the resident set grow, at its highest point."""
    torch.set_num_threads(1)
    ways(*case)[name][who]()  # what a first call sets up, or compiles for this shape, is not its memory
    return max(0, growth(ways(*case)[name][who])[0])


def measure() -> Iterator[dict[str, Any]]:
    """Measure one after another; memory where the logits are large enough to tell."""
    for case in CASES:
        rows, classes, dtype = case
        nbytes = rows * classes * getattr(torch, dtype).itemsize
        for name, own in ways(*case).items():
            agree({who: once().item() for who, once in own.items()}, 1e-3)
            taken = {who: min(s) for who, s in turns(own, BUDGET, LEAST).items()}
            copies = {who: in_fresh_process(grown, case, name, who) for who in own} if nbytes > 5e7 else {}
            row = {"rows": rows, "classes": classes, "dtype": dtype, "loss": name, "bytes": nbytes}
            shares = (f"{who} {seconds / taken['torch']:.2f}" for who, seconds in taken.items())
            print(*case, name, *shares, "of torch's time", flush=True)
            yield {**row, "seconds": taken, "memory": {w: m for w, m in copies.items() if m is not None}}


def main() -> None:
    torch.set_num_threads(1)
    # glibc hands freed pages back sooner or later by what a process freed before: at 20,000 x 32 PyTorch took from
    # one to three milliseconds. Once it has freed so large an array, it keeps what smaller ones leave.
    torch.empty(31 * 2**20, dtype=torch.uint8)
    settings = {"torch": torch.__version__, "threads": 1, "budget": BUDGET, "seed": 0, "date": made()["date"]}
    cases = list(measure())
    save(read(RESULT) | {"tensors": {"settings": settings, "cases": cases}}, RESULT)


if __name__ == "__main__":
    main()
