"""Gradient error of three ways to normalise, over accumulation and real data-parallel ranks.

Run it with as many ranks as you like; no GPU is needed:

    torchrun --standalone --nproc-per-node 3 tests/xent/gloo_gradients.py

Every rank trains the same linear language model in float64 on its own, unbalanced micro-batches, once under
each scheme; rank 0 compares the gradient of each window with that of the whole window in one batch on one
device, and prints the relative errors as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import xent.torch

Batch = tuple[Tensor, Tensor]
VOCABULARY, WIDTH, LENGTH, STEPS, IGNORED = 7, 5, 12, 3, -100


def micro_batches(rank: int, ranks: int, plan: str) -> list[Batch]:
    """Return one rank's micro-batches; lengths differ between ranks, micro-batches and sequences."""
    generator = torch.Generator().manual_seed(100 * ranks + rank)
    # In the ragged plan the last rank has no data at all, and the others end at different times.
    count = 2 * STEPS if plan == "even" else max(0, 2 * STEPS - 2 * rank - 1) * (rank < ranks - 1)
    batches = []
    for i in range(count):
        rows = 1 + (rank + i) % 3
        inputs = torch.randn(rows, LENGTH, WIDTH, dtype=torch.float64, generator=generator)
        targets = torch.randint(VOCABULARY, (rows, LENGTH), generator=generator)
        lengths = torch.randint(1, LENGTH // (1 + rank) + 1, (rows, 1), generator=generator)
        targets[torch.arange(LENGTH) >= lengths] = IGNORED
        if plan == "ragged" and i == 1:
            targets[:] = IGNORED  # a micro-batch of padding alone
        batches.append((inputs, targets))
    return batches


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(WIDTH, VOCABULARY).double()


def loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    return xent.torch.cross_entropy(model(batch[0]), batch[1], ignore_index=IGNORED, reduction="sum")


def gradient(model: nn.Module) -> Tensor:
    """Return the gradient as one vector, and clear it."""
    pieces = []
    for parameter in model.parameters():
        g = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        pieces.append((g.full_tensor() if hasattr(g, "full_tensor") else g).detach().flatten().clone())
        parameter.grad = None
    return torch.cat(pieces)


def counted(batch: Batch, denominator: str | float) -> float:
    counts = batch[1] != IGNORED
    if isinstance(denominator, float):
        return denominator
    return float((counts if denominator == "tokens" else counts.any(1)).sum())


def one_batch(windows: list[list[list[Batch]]], denominator: str | float) -> Iterator[Tensor]:
    """The truth: each window's summed loss over all ranks, divided once."""
    model = make_model()
    for window in windows:
        batches = [b for of_rank in window for b in of_rank]
        named = isinstance(denominator, str)
        n = sum(counted(b, denominator) for b in batches) if named else denominator
        total: Any = sum(loss_sum(model, b) for b in batches)
        (total / n).backward()
        yield gradient(model)


def by_accumulate(
    model: nn.Module, batches: list[Batch], denominator: str | float, summed: bool = False
) -> Iterator[Tensor]:
    for window in xent.torch.accumulate(batches, STEPS, targets=1, denominator=denominator):
        for micro in window:
            scale = micro.scale / window.ranks if summed else micro.scale
            with synchronised(model, micro.is_last):
                (loss_sum(model, micro.batch) * scale).backward()
        yield gradient(model)


def by_mean(model: nn.Module, batches: list[Batch], per_rank: bool) -> Iterator[Tensor]:
    """What most loops do: the mean of means; or, half mended, one denominator for each rank."""
    for start in range(0, len(batches), STEPS):
        window = batches[start : start + STEPS]
        tokens = sum(counted(b, "tokens") for b in window)
        for i, batch in enumerate(window):
            n = tokens if per_rank else counted(batch, "tokens") * len(window)
            with synchronised(model, i == len(window) - 1):
                (loss_sum(model, batch) / n).backward()
        yield gradient(model)


def synchronised(model: nn.Module, last: bool) -> contextlib.AbstractContextManager[Any]:
    """Synchronise gradients in the last backward pass only."""
    if isinstance(model, DistributedDataParallel) and not last:
        return model.no_sync()
    if hasattr(model, "set_requires_gradient_sync"):  # FSDP2
        model.set_requires_gradient_sync(last)
    return contextlib.nullcontext()


def sharded(model: nn.Module) -> nn.Module:
    """Shard by FSDP2, with gradients summed over the ranks rather than averaged."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    # It warns that the output may not be changed in place; nothing here does.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    result: Any = fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    result.set_gradient_divide_factor(1.0)
    return result  # type: ignore[no-any-return]


def relative_errors(observed: list[Tensor], expected: list[Tensor]) -> list[float]:
    return [float((o - e).norm() / e.norm()) for o, e in zip(observed, expected, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plan", choices=["even", "ragged"], default="even")
    parser.add_argument("--denominator", default="tokens", help="tokens, sequences or a number")
    parser.add_argument("--fsdp", action="store_true", help="shard with FSDP2 as well")
    options = parser.parse_args()
    named = options.denominator in ("tokens", "sequences")
    denominator: str | float = options.denominator if named else float(options.denominator)

    distributed = "RANK" in os.environ
    if distributed:
        dist.init_process_group("gloo")
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if distributed else (0, 1)

    everyone = [micro_batches(r, ranks, options.plan) for r in range(ranks)]
    windows = [
        [batches[start : start + STEPS] for batches in everyone]
        for start in range(0, max(map(len, everyone)), STEPS)
    ]
    expected = list(one_batch(windows, denominator))

    def wrapped() -> nn.Module:
        return DistributedDataParallel(make_model()) if distributed else make_model()

    mine = everyone[rank]
    errors = {"accumulate": relative_errors(list(by_accumulate(wrapped(), mine, denominator)), expected)}
    if options.fsdp:
        observed = list(by_accumulate(sharded(make_model()), mine, denominator, summed=True))
        errors["accumulate, FSDP2"] = relative_errors(observed, expected)
    if options.plan == "even" and denominator == "tokens":
        for name, per_rank in (("mean of means", False), ("mean of each rank", True)):
            errors[name] = relative_errors(list(by_mean(wrapped(), mine, per_rank)), expected)
    if rank == 0:
        print(json.dumps({"ranks": ranks, "windows": len(windows), "relative_error": errors}))
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
