"""Time and memory of the losses of a linear layer beside the plain pair and torch's own, into linear.json.

    python experiments/bench/linear.py              every case (ten minutes), each written when it is done
    python experiments/bench/linear.py --width 512  those of one width, printed

A step is the mean loss of hidden states and a weight, and its backward pass, on one thread; in bfloat16 the
plain pair's logits are widened before the loss, as is usual. The ways take turns in one process, and each
counts by its fastest turn. Memory is the growth of a fresh process at its highest point (Linux), less the two
gradients, which every way must make. In bfloat16 only the memory is measured, and with a sixteenth of the
classes, since products in it take many times as long on this kind of processor: the memory of the plain pair and
the gradients shrink alike, while the blocks of xent stay as large as they are.
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
SIZES = [*((1024, 50_000, width, "float32") for width in (512, 2048)), (1024, 3_125, 2048, "bfloat16")]
TIMED = ("float32",)
TURNS = 3
KEY = ("loss", "rows", "classes", "width", "dtype")
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


def measure(loss: str, size: Size) -> dict[str, Any]:
    """Return the fastest seconds and the bytes of each way in one case; in bfloat16, the bytes alone."""
    rows, classes, width, dtype = size
    case = {"loss": loss, "rows": rows, "classes": classes, "width": width, "dtype": dtype}
    if dtype not in TIMED:
        return {**case, "seconds": {}, "memory": {name: peak(loss, name, size) for name in ("plain", "xent")}}
    inputs, seconds = data(loss, size), dict.fromkeys(WAYS[loss], float("inf"))
    for turn in range(TURNS):
        for name, way in WAYS[loss].items():
            if turn and seconds[name] > 4 * seconds["plain"]:
                continue  # torch's smallest chunks take minutes
            begin = time.perf_counter()
            step(way, inputs)
            seconds[name] = min(seconds[name], time.perf_counter() - begin)
    del inputs
    return {**case, "seconds": seconds, "memory": {name: peak(loss, name, size) for name in WAYS[loss]}}


def main() -> None:
    """Measure all cases and write them down."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, help="only this many hidden units; writes nothing")
    parser.add_argument("--dtype", help="only this dtype")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.peak:
        loss, name, size = json.loads(options.peak)
        print(peak_here(loss, name, size))
        return
    sizes = [size for size in SIZES if options.width in (None, size[2]) and options.dtype in (None, size[3])]
    for size in sizes:
        for loss in LOSSES:
            case = measure(loss, size)
            report(case)
            if options.width is None:
                store(case)


def report(case: dict[str, Any]) -> None:
    """Print the shares of the plain pair's time and memory."""
    print(*(case[name] for name in KEY), f"plain: {case['memory']['plain'] / 2**20:.0f} MiB", end="")
    for name in list(case["memory"])[1:]:
        shares = {
            what: case[what][name] / case[what]["plain"] for what in ("seconds", "memory") if case[what]
        }
        print(f"; {name}:", ", ".join(f"{share:.3f} of the {what}" for what, share in shares.items()), end="")
    print(flush=True)


def store(case: dict[str, Any]) -> None:
    """Write one case down in the place of its like, with the date and the versions that are its own."""
    versions = {"torch": torch.__version__, "xent": xent.__version__, "python": platform.python_version()}
    case = {**case, "date": datetime.now(UTC).date().isoformat(), "versions": versions}
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    cases = {tuple(old[name] for name in KEY): old for old in result["cases"]}
    cases[tuple(case[name] for name in KEY)] = case
    result = {"settings": {"threads": 1, "turns": TURNS, "seed": 0}, "cases": list(cases.values())}
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
