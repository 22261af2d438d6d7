"""Measure the losses of `xent.torch`, forward and backward, beside PyTorch's own, and add them to result.json.

    python -m experiments.bench.tensors     some four minutes; under "tensors" of result.json

Both losses take turns in one process, with one thread; a turn is one forward and backward pass, or as many as
take two milliseconds, and the fastest turn counts. The clock is the processor's time of this process, which
other work on the machine lengthens least. In bfloat16 PyTorch's losses get `.float()` of the logits, as trainers
give them. Memory is what a pass needs beyond its inputs at its highest point, the gradient included: the growth
of the resident set, in a process of its own with an allocator that hands every page back. Each case is written
down when it is done.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import xent.torch
from experiments.shared import growth, in_fresh_process, made

RESULT = Path(__file__).with_name("result.json")
SIZES = [(64, 1_000), (20_000, 32), (100_000, 10), (1_024, 50_000)]
CASES = [*((*size, "float32") for size in SIZES), (1_024, 50_000, "bfloat16")]
TURN = 2e-3
clock = time.process_time
Pass = Callable[[], Tensor]


def ways(rows: int, classes: int, dtype: str) -> dict[str, dict[str, Pass]]:
    """Each loss by PyTorch and by xent: a function that makes a gradient and returns the loss."""
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

    return {name: {who: both_ways(loss) for who, loss in pair.items()} for name, pair in losses.items()}


def seconds(pair: dict[str, Pass], budget: float) -> dict[str, float]:
    """The fastest turn of each, three at least."""
    values = {who: once().item() for who, once in pair.items()}
    if abs(values["xent"] / values["torch"] - 1) > 1e-3:
        raise SystemExit(f"not the same loss: {values}")
    begin = clock()
    pair["torch"]()
    calls = max(1, round(TURN / (clock() - begin)))
    turns: dict[str, list[float]] = {who: [] for who in pair}
    end = time.perf_counter() + budget
    while len(turns["xent"]) < 3 or time.perf_counter() < end:
        for who, once in pair.items():
            begin = clock()
            for _ in range(calls):
                once()
            turns[who].append((clock() - begin) / calls)
    return {who: min(taken) for who, taken in turns.items()}


def grown(case: list[Any], name: str, who: str) -> int:
    """By how many bytes one pass makes the resident set grow, at its highest point."""
    ways(8, *case[1:])[name][who]()  # what a first call sets up is not its memory
    once = ways(*case)[name][who]
    return max(0, growth(once)[0])


def memory(case: tuple[int, int, str], name: str, who: str) -> int | None:
    """The same in a fresh process; None if not on Linux."""
    result: int | None = in_fresh_process(__spec__.name, "--grown", json.dumps([case, name, who]))
    return result


def measure(budget: float, only: int | None) -> Iterator[dict[str, Any]]:
    """Measure one after another; memory where the logits are large enough to tell."""
    for case in [case for case in CASES if only in (None, case[0])]:
        rows, classes, dtype = case
        nbytes = rows * classes * getattr(torch, dtype).itemsize
        for name, pair in ways(*case).items():
            taken = seconds(pair, budget)
            copies = {who: memory(case, name, who) for who in pair} if nbytes > 5e7 else {}
            row = {"rows": rows, "classes": classes, "dtype": dtype, "loss": name, "bytes": nbytes}
            print(*case, name, f"{taken['xent'] / taken['torch']:.2f} of torch's time", flush=True)
            yield {**row, "seconds": taken, "memory": {w: m for w, m in copies.items() if m is not None}}


def key(case: dict[str, Any]) -> tuple[Any, ...]:
    """What is measured in a case."""
    return case["rows"], case["classes"], case["dtype"], case["loss"]


def main() -> None:
    """Measure, and write it down."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--budget", type=float, default=8.0, help="seconds to measure each loss")
    parser.add_argument("--rows", type=int, help="only the cases of so many rows")
    parser.add_argument("--grown", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.grown:
        print(grown(*json.loads(options.grown)))
        return
    settings = {"torch": torch.__version__, "threads": 1, "budget": options.budget, "seed": 0}
    settings |= {"date": made()["date"]}
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for measured in measure(options.budget, options.rows):
        result = json.loads(RESULT.read_text(encoding="utf-8"))
        kept = {key(case): case for case in result.get("tensors", {}).get("cases", [])}
        found[key(measured)] = measured
        result["tensors"] = {"settings": settings, "cases": list((kept | found).values())}
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
