"""Time and memory of the losses of a linear layer beside the plain pair and torch's own, into linear.json.

    python experiments/bench/linear.py              every case (some five minutes)
    python experiments/bench/linear.py --width 512  those of one width, printed

A step is the mean loss of hidden states and a weight, and its backward pass, on one thread; in bfloat16 the
plain pair's logits are widened before the loss, as is usual. The ways take turns in one process, and each
counts by its fastest turn. Memory is the growth of a fresh process at its highest point (Linux), less the two
gradients, which every way must make.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import xent.torch

RESULT = Path(__file__).with_name("linear.json")
LOSSES = ("cross_entropy", "distillation")
# Rows, classes, width, dtype.
SIZES = [(1024, 50_000, width, "float32") for width in (512, 2048)]
TURNS = 3
Size = tuple[int, int, int, str]
Way = Callable[..., Tensor]


def plain_distillation(hidden: Tensor, weight: Tensor, taught: Tensor, teacher: Tensor) -> Tensor:
    student, target = (F.log_softmax(F.linear(*x).float(), -1) for x in ((hidden, weight), (taught, teacher)))
    return F.kl_div(student, target, log_target=True, reduction="batchmean")


def torch_options(**options: Any) -> Way:
    return lambda *inputs: F.linear_cross_entropy(
        *inputs, options=torch.nn.LinearCrossEntropyOptions(**options)
    )


WAYS: dict[str, dict[str, Way]] = {
    "cross_entropy": {
        "plain": lambda hidden, weight, targets: F.cross_entropy(F.linear(hidden, weight).float(), targets),
        "xent": xent.torch.linear_cross_entropy,
        "torch, options": torch_options(),
        "torch, chunks of 256": torch_options(batch_chunk_size=256),
    },
    "distillation": {"plain": plain_distillation, "xent": xent.torch.linear_distillation_loss},
}


def data(loss: str, size: Size) -> list[Tensor]:
    """Draw inputs whose logits have a standard deviation of 2."""
    rows, classes, width, dtype = size
    generator = torch.Generator().manual_seed(0)

    def layer() -> list[Tensor]:
        hidden = torch.randn(rows, width, generator=generator)
        weight = torch.randn(classes, width, generator=generator) * (2 / width**0.5)
        return [x.to(getattr(torch, dtype)) for x in (hidden, weight)]

    student = [x.requires_grad_() for x in layer()]
    return [
        *student,
        *([torch.randint(classes, (rows,), generator=generator)] if loss == LOSSES[0] else layer()),
    ]


def step(way: Way, inputs: list[Tensor]) -> int:
    """Take one step, forget its gradients, and return their bytes."""
    way(*inputs).backward()
    size = sum(x.grad.nbytes for x in inputs if x.grad is not None)
    for x in inputs:
        x.grad = None
    return size


def resident(field: str) -> int:
    """Return VmRSS or VmHWM of this process in bytes (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def peak_here(loss: str, name: str, size: Size) -> int:
    """Return by how much this process grows in one step, less the gradients."""
    step(WAYS[loss][name], data(loss, (8, 64, *size[2:])))  # what a first call sets up is not its memory
    inputs = data(loss, size)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    gradients = step(WAYS[loss][name], inputs)
    return resident("VmHWM") - before - gradients


def peak(loss: str, name: str, size: Size) -> int:
    """Return the same from a fresh process, in which each allocation is mapped for itself."""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    command = [sys.executable, __file__, "--peak", json.dumps([loss, name, size])]
    finished = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return int(finished.stdout.splitlines()[-1])


def measure(loss: str, size: Size, turns: int = TURNS) -> dict[str, Any]:
    """Return the fastest seconds and the bytes of each way in one case."""
    inputs, seconds = data(loss, size), dict.fromkeys(WAYS[loss], float("inf"))
    for turn in range(turns):
        for name, way in WAYS[loss].items():
            if turn and seconds[name] > 4 * seconds["plain"]:
                continue  # torch's smallest chunks take minutes
            begin = time.perf_counter()
            step(way, inputs)
            seconds[name] = min(seconds[name], time.perf_counter() - begin)
    del inputs
    memory = {name: peak(loss, name, size) for name in WAYS[loss]}
    rows, classes, width, dtype = size
    case = {"loss": loss, "rows": rows, "classes": classes, "width": width, "dtype": dtype}
    return {**case, "seconds": seconds, "memory": memory}


def main() -> None:
    """Measure all cases and write them down."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, help="only this many hidden units; writes nothing")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.peak:
        loss, name, size = json.loads(options.peak)
        print(peak_here(loss, name, size))
        return
    cases = []
    for size in [size for size in SIZES if options.width in (None, size[2])]:
        for loss in LOSSES:
            case = measure(loss, size)
            cases.append(case)
            plain = case["seconds"]["plain"], case["memory"]["plain"]
            print(loss, *size, f"plain: {plain[0]:.2f} s, {plain[1] / 2**20:.0f} MiB", end="")
            for name in list(WAYS[loss])[1:]:
                share = case["seconds"][name] / plain[0], case["memory"][name] / plain[1]
                print(f"; {name}: {share[0]:.2f} of the time, {share[1]:.3f} of the memory", end="")
            print(flush=True)
    if options.width is not None:
        return
    versions = {"torch": torch.__version__, "xent": xent.__version__, "python": platform.python_version()}
    settings = {"threads": 1, "turns": TURNS, "seed": 0}
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "versions": versions,
        "settings": settings,
        "cases": cases,
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
