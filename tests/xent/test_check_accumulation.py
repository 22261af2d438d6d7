"""`xent.torch.check_accumulation`: loops with known faults and right ones, each judged rightly."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import ranks
import xent.torch

WIDTH, CLASSES, LENGTH, IGNORED = 3, 5, 6, -100
Batch = tuple[Tensor, Tensor]
Loss = Callable[[nn.Module, Batch], Tensor]
Step = Callable[[nn.Module, list[Batch]], Any]
RAGGED, EVEN, EMPTY = [6, 1, 3, 2], [3, 3, 3, 3], [6, 0, 3, 2]


def window(lengths: list[int], rows: int = 2, seed: int = 0) -> tuple[list[Batch], Batch]:
    """Micro-batches with so many targets a row, and the whole of them."""
    generator = torch.Generator().manual_seed(seed)
    micro = []
    for length in lengths:
        inputs = torch.randn(rows, LENGTH, WIDTH, dtype=torch.float64, generator=generator)
        labels = torch.randint(CLASSES, (rows, LENGTH), generator=generator)
        labels[:, length:] = IGNORED
        micro.append((inputs, labels))
    return micro, join(micro)


def join(batches: list[Batch]) -> Batch:
    inputs, labels = zip(*batches, strict=True)
    return torch.cat(inputs), torch.cat(labels)


def model(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 8), *layers, nn.Tanh(), nn.Linear(8, CLASSES)).double()


class BatchNorm(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(-1, 1)).movedim(1, -1)


class Apply(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.forward = function  # type: ignore[method-assign]


class Limited(nn.Embedding):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward((x[..., 0] > 0).long())


# ------------------------------------------------------------ losses of a batch, and loops of such losses

BY_CLASS = torch.tensor([1.0, 5.0, 0.2, 2.0, 9.0], dtype=torch.float64)


def loss_sum(net: nn.Module, batch: Batch, reduction: str = "sum", weight: Tensor | None = None) -> Tensor:
    z, y = net(batch[0]).flatten(0, 1), batch[1].flatten()
    return cross_entropy(z, y, weight=weight, ignore_index=IGNORED, reduction=reduction)


def mean(net: nn.Module, batch: Batch) -> Tensor:
    """A mean written out, whose gradient is nan where nothing counts; F.cross_entropy's is zero."""
    mask = batch[1] != IGNORED
    log_probs = net(batch[0]).log_softmax(-1).gather(-1, (batch[1] * mask)[..., None])[..., 0]
    return -(log_probs * mask).sum() / mask.sum()


def class_weighted_mean(net: nn.Module, batch: Batch) -> Tensor:
    return loss_sum(net, batch, "mean", BY_CLASS)


def by_hand(net: nn.Module, batch: Batch) -> Tensor:
    """Class weights, as written without `weight=`."""
    mask = batch[1] != IGNORED
    log_probs = net(batch[0]).log_softmax(-1).gather(-1, (batch[1] * mask)[..., None])[..., 0]
    return -(log_probs * mask * BY_CLASS[batch[1] * mask]).sum()


def in_chunks(net: nn.Module, batch: Batch) -> Tensor:
    """The mean of the means of two pieces of each sequence."""
    pieces = [(batch[0][:, cut], batch[1][:, cut]) for cut in (slice(0, 2), slice(2, None))]
    return torch.stack([mean(net, piece) for piece in pieces if count(piece)]).mean()


def causal(net: nn.Module, batch: Batch) -> Tensor:
    """Position i predicts label i + 1."""
    return loss_sum(net, (batch[0][:, :-1], batch[1][:, 1:]))


def z_loss(net: nn.Module, batch: Batch) -> Tensor:
    """The squared log of the partition function, of all positions, padding too."""
    return 0.3 * (net(batch[0]).logsumexp(-1) ** 2).mean()


def by_rows(net: nn.Module, batch: Batch) -> Tensor:
    """The sum of each sequence's mean."""
    return torch.stack([mean(net, (x[None], y[None])) for x, y in zip(*batch, strict=True)]).sum()


def penalty(power: int, biases: bool = True) -> Loss:
    def loss(net: nn.Module, batch: Batch) -> Tensor:
        kept = [p.abs().pow(power).sum() for p in net.parameters() if biases or p.ndim > 1]
        return 0.01 * torch.stack(kept).sum()

    return loss


def count(batch: Batch) -> int:
    return int((batch[1] != IGNORED).sum())


def total(batches: list[Batch]) -> float:
    return sum(map(count, batches))


def after(batch: Batch) -> int:
    return count((batch[0], batch[1][:, 1:]))


def rows_of(batches: list[Batch]) -> int:
    return sum(len(y) for _, y in batches)


def as_integers(batch: Batch) -> Tensor:
    """A mask, of 0 and 1, which are labels."""
    return (batch[1] != IGNORED).long()


def class_mass(batch: Batch) -> float:
    return float(BY_CLASS[batch[1][batch[1] != IGNORED]].sum())


def one_at_least(batches: list[Batch]) -> float:
    return float(sum((y != IGNORED).sum(1).clamp(min=1).sum() for _, y in batches))


def synchronised(net: Any, last: bool) -> contextlib.AbstractContextManager[Any]:
    if isinstance(net, FSDPModule):
        net.set_requires_gradient_sync(last)
    silent = isinstance(net, DistributedDataParallel) and not last
    return net.no_sync() if silent else contextlib.nullcontext()


def loop(share: Callable[[list[Batch], int], float], loss: Loss = loss_sum, sync: bool = True) -> Step:
    """The loss of each micro-batch, times its share."""

    def step(net: nn.Module, batches: list[Batch]) -> None:
        for i, batch in enumerate(batches):
            with synchronised(net, sync and i == len(batches) - 1):
                (loss(net, batch) * share(batches, i)).backward()  # type: ignore[no-untyped-call]

    return step


def sums_over(divisor: Callable[[list[Batch]], float], loss: Loss = loss_sum) -> Step:
    return loop(lambda batches, i: 1 / (divisor(batches) or 5e-324), loss)  # inf, of nothing


def means_over(divisor: Callable[[int], float], loss: Loss = mean) -> Step:
    return loop(lambda batches, i: 1 / divisor(len(batches)), loss)


def then(*steps: Step) -> Step:
    def each(net: nn.Module, batches: list[Batch]) -> None:
        for step in steps:
            step(net, batches)

    return each


def plain(net: nn.Module, batch: Batch) -> None:
    mean(net, batch).backward()  # type: ignore[no-untyped-call]


def causal_plain(net: nn.Module, batch: Batch) -> None:
    sums_over(lambda b: after(b[0]), causal)(net, [batch])


def by_accumulate(net: nn.Module, batches: list[Batch]) -> None:
    for window in xent.torch.accumulate(batches, len(batches), targets=1):
        for micro in window:
            with synchronised(net, micro.is_last):
                (loss_sum(net, micro.batch) * micro.scale).backward()  # type: ignore[no-untyped-call]


def by_counted(net: nn.Module, batches: list[Batch]) -> None:
    """No backward pass where nothing counts."""
    RIGHT(net, [batch for batch in batches if count(batch)])


def zero_grad_inside(net: nn.Module, batches: list[Batch]) -> None:
    for batch in batches:
        net.zero_grad()
        (mean(net, batch) / len(batches)).backward()  # type: ignore[no-untyped-call]


def clip(norm: float, least: int = 1) -> Step:
    """Clip windows of so many micro-batches or more."""

    def step(net: nn.Module, batches: list[Batch]) -> None:
        if len(batches) >= least:
            nn.utils.clip_grad_norm_(net.parameters(), norm)

    return step


def autocast(step: Step) -> Step:
    def cast(net: nn.Module, batches: list[Batch]) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            step(net, batches)

    return cast


def of_complex_numbers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, CLASSES, dtype=torch.complex128), Apply(Tensor.abs))


def one_number() -> nn.Module:
    net = model(nn.PReLU()).requires_grad_(False)
    net[1].requires_grad_(True)
    return net


def casting() -> nn.Module:
    """In float32, but for a linear layer whose matrix product is computed in bfloat16."""
    torch.manual_seed(0)
    last = nn.Linear(8, CLASSES)
    half = Apply(
        lambda x: nn.functional.linear(x.bfloat16(), last.weight.bfloat16(), last.bias.bfloat16()).float()
    )
    half.last = last
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), half)


def outliving(counts: list[int]) -> Step:
    """Divide by all targets since training began."""

    def step(net: nn.Module, batches: list[Batch]) -> None:
        counts.extend(map(count, batches))
        sums_over(lambda _: sum(counts))(net, batches)

    return step


def in_float32() -> nn.Module:
    return model().float()


Row = tuple[list[int], Step, dict[str, Any], str]
MEANS = "^a mean of means over the micro-batches: each weighs the same, however many targets it has"
UNSHIFTED = sums_over(lambda b: total(b) + rows_of(b))
PADDED = sums_over(lambda b: sum(y.numel() for _, y in b))
# A mean times its share of the four rows that the window has, whatever batches come.
ROWS_OF_FOUR = loop(lambda b, i: len(b[i][1]) / 4, mean)
PLAIN = {"reference": plain, "targets": 1}

RIGHT, NAIVE = sums_over(total), means_over(lambda k: k)
AT_LEAST_8 = sums_over(lambda b: max(total(b), 8))
THRICE = RAGGED * 3


def converged(off: float = 0.0) -> nn.Module:
    """Logistic regression on these micro-batches, in float32 at or near its minimum."""
    torch.manual_seed(0)
    net, whole = nn.Sequential(nn.Linear(WIDTH, CLASSES)).double(), window(THRICE)[1]
    solver = torch.optim.LBFGS(net.parameters(), max_iter=200, tolerance_grad=1e-12, tolerance_change=0)

    def loss() -> Any:
        solver.zero_grad()
        plain(net, whole)
        return mean(net, whole).detach()

    solver.step(loss)
    with torch.no_grad():
        for p in net.parameters():
            p *= 1 + off
    return net.float()


SOME = {"targets": 1, "rows": (1, 2, 1)}
WHOLE = "^none: the micro-batches add up to the whole batch$"

# Name: the window's targets a row, the step, keywords, and what the report says; a right loop has no fault.
LOOPS: dict[str, Row] = {
    "right": (RAGGED, RIGHT, {}, WHOLE),
    "right, by accumulate": (EMPTY, by_accumulate, {"targets": 1}, WHOLE),
    "right, a sum": (RAGGED, sums_over(lambda _: 1), {}, WHOLE),
    "right, a constant": (RAGGED, sums_over(lambda _: 17), {"targets": 1}, WHOLE),
    "right, by sequences": (RAGGED, sums_over(rows_of), {"targets": 1},
        "^none: .* by .*sequences, .* them hide a mean of means$"),
    "mean of means": (RAGGED, NAIVE, {}, MEANS + "$"),
    "mean of means, equal counts": (EVEN, NAIVE, {}, "^none: .*so would a mean of means"),
    "never divided": (EVEN, means_over(lambda k: 1), {},
        "^the right direction, K = 4 times what .*; equal counts would hide a mean of means"),
    "never divided, ragged": (RAGGED, means_over(lambda k: 1), {}, MEANS + "; and K = 4 times what"),
    "divided twice": (RAGGED, sums_over(lambda b: total(b) * len(b)), {},
        "^the right direction, 1/K = 0.25 times what .*: divided by K twice[^;]*$"),
    "mean of means, divided twice": (RAGGED, means_over(lambda k: k * k), {}, MEANS + "; and 1/K"),
    "a short window, divided as a full one": (RAGGED[:3], means_over(lambda k: 4 if k > 1 else 1), {},
        MEANS + "; and 0.75 of .* divided by 4, for a window of 3$"),
    "labels before the shift": (RAGGED, UNSHIFTED, PLAIN,
        "^the right .* divided by the 32 labels before the shift, not by the 24"),
    "labels before the shift, in both": (RAGGED, UNSHIFTED, {"targets": 1},
        "agree, but both divide by the 32 labels before the shift, not by"),
    "padding counted": (RAGGED, PADDED, PLAIN, r"by the 48 positions \(padding too\), not by the 24"),
    "padding counted, in both": (RAGGED, PADDED, {"targets": 1},
        r"^none: .*by positions \(padding too\) or sequences, not by targets: .* hide a mean of means$"),
    "never divided by N": (RAGGED, sums_over(lambda b: 1), PLAIN, "N = 24 times what it should be"),
    "weighed by rows": (RAGGED[:3], loop(lambda b, i: len(b[i][1]) / rows_of(b), mean), SOME,
        r"^the micro-batches are weighed by their positions \(padding too\) or sequences, not"),
    "weighed by rows of the window": (RAGGED[:3], ROWS_OF_FOUR, {"rows": (1, 2, 1)},
        "^the micro-batches have the weights 1, 1, 1 where 2.18, .* is due; targets= would say more$"),
    "weighed by rows of the window, counted": (RAGGED[:3], ROWS_OF_FOUR, SOME,
        r"^the micro-batches are weighed by their positions \(padding too\) or sequences, not by their targets$"),
    "a constant divisor": (RAGGED[:3], means_over(lambda k: 8), {},
        MEANS + "; and K = 3 .* or divided by a constant, which reference= would show$"),
    "a constant divisor, referred": (RAGGED[:3], means_over(lambda k: 8), PLAIN,
        MEANS + "; and 0.375 of what it should be: divided by 8, for a window of 3$"),
    "one at least": (EMPTY, sums_over(one_at_least), PLAIN,
        "^the right .* by the 24 targets, at least one in each sequence, not by the 22 targets"),
    "one at least, in both": (EMPTY, sums_over(one_at_least), {"targets": 1},
        "agree, but both divide by the 24 targets, at least one .* not by the 22 targets$"),
    "another count": (RAGGED, sums_over(lambda b: total(b) + 5), PLAIN,
        "^the right direction, 0.8276 of what it should be: as if divided by 29 where 24 targets count$"),
    "another count, in both": (RAGGED, sums_over(lambda b: total(b) + 5), {"targets": 1},
        "agree, but both divide by another count: it weighs .* by 0.586, 0.241, "),
    "another count, which adds up": (RAGGED,
        sums_over(lambda b: total(b) + sum(int((y > 2).sum()) for _, y in b)), {"targets": 1},
        "^cannot tell: .* both weigh the micro-batches by .* their targets would by 0.5, .* targets= is not what the"),
    "a mask in integers": (RAGGED, RIGHT, {"targets": as_integers},
        "^cannot tell: .* by 0.5, 0.0833, .* would by 0.25, 0.25, 0.25, 0.25: targets= is not what the loss div"),
    "a mask in integers, and another count": (RAGGED, sums_over(lambda b: total(b) + 5),
        {"reference": plain, "targets": as_integers},
        "^the right .* no usual factor .*; targets= is not what the loss divides by: that weighs .* by 0.5, 0.0833"),
    "another count, or another window": (RAGGED, sums_over(lambda b: total(b) + 6), PLAIN,
        "^the right .* divided by 5, for a window of 4; or 0.8 of .* divided by 30 where 24 targets count$"),
    "class weights by hand, counted": (RAGGED, sums_over(lambda b: sum(map(class_mass, b)), by_hand),
        {"targets": 1}, "^cannot tell: .* targets= is not what the loss divides by$"),
    "class weights by hand": (RAGGED, sums_over(lambda b: sum(map(class_mass, b)), by_hand), {}, WHOLE),
    "two terms of other counts, each by its own": (RAGGED[:3],
        then(RIGHT, loop(lambda b, i: len(b[i][1]) / rows_of(b), z_loss)), SOME, WHOLE),
    "chunks of sequences, each a mean": (RAGGED, means_over(lambda k: k, in_chunks), PLAIN,
        r"^unknown: the gradient is no weighted .* \(a chunk, a second term of the loss\) is divided by a count"),
    "a wrong factor": (RAGGED, sums_over(lambda b: total(b) * (3.3 if len(b) > 1 else 1)), {},
        "0.303 times .* no usual factor .*; targets="),
    "wrong weights": (RAGGED, loop(lambda b, i: (i + 1) / 10 if len(b) > 1 else 1, mean), {},
        "weights 0.1, 0.2, 0.3, 0.4 where 0.5, 0.0833, "),
    "a constant divisor, equal counts": (EVEN, means_over(lambda k: 4), {},
        "K = 4 times what it should be: divided by a constant, which reference= would show, or means are added"),
    "every micro-batch twice": (RAGGED, sums_over(lambda b: total(b) / (1 + (len(b) > 1))), {"targets": 1},
        "^the right direction, 2 times what it should be: as if every .* counted twice, or summed over two ranks$"),
    "fewer parameters than micro-batches": (RAGGED * 5, loop(lambda b, i: (len(b) == 1 or i != 2) / total(b)),
        {"net": lambda: nn.Sequential(nn.Linear(WIDTH, CLASSES, bias=False)).double(), "targets": 1},
        "^the micro-batches have other weights than are due; which, cannot be told"),
    "zero_grad at the end": (RAGGED, then(RIGHT, lambda net, b: net.zero_grad(set_to_none=False)), {},
        r"own gradient is zero: .* zero_grad\(\) at the end of the step$"),
    "complex numbers": (RAGGED, RIGHT, {"net": of_complex_numbers}, WHOLE),
    "complex numbers, a mean of means": (RAGGED, NAIVE, {"net": of_complex_numbers}, MEANS + "$"),
    "an embedding's norms": (RAGGED, RIGHT, {"net": lambda: model(Limited(2, 8, max_norm=0.5))}, WHOLE),
    "a perturbation that is taken back": (RAGGED,
        then(RIGHT, lambda net, b: [p.data.add_(0.3).sub_(0.3) for p in net.parameters()]), {}, WHOLE),
    "one parameter, a mean of means": (RAGGED, NAIVE, {"net": one_number, "targets": 1}, MEANS + "$"),
    "a number of its own, with every micro-batch": (RAGGED,
        then(RIGHT, means_over(lambda k: 1, lambda net, b: net[1].weight.sum())),
        {"net": lambda: model(nn.PReLU())}, "^unknown: the gradient is no weighted sum"),
    "labels right, a second term a mean of means": (RAGGED[:3], then(RIGHT, means_over(lambda k: k, z_loss)),
        {"rows": (1, 2, 1)},
        "^unknown: no weights .* two terms with two denominators, each to be summed and divided by its own count$"),
    "at least 8": (RAGGED, AT_LEAST_8, {"targets": 1}, r"^cannot tell: .* max\(targets, 8\): .* reference="),
    "at least 8, referred": (RAGGED, AT_LEAST_8,
        {"targets": 1, "reference": lambda net, b: AT_LEAST_8(net, [b])},
        r"^none: the .* max\(targets, 8\)$"),
    "shares in float32": ([6, 1, 3, 1],
        loop(lambda b, i: float(torch.tensor(count(b[i])) / torch.tensor(total(b))), mean), {"targets": 1},
        "^none: the .* within 1e-06, taken for rounding in float32 or where gradients cancel$"),
    "logits in float32": (RAGGED,
        sums_over(total, lambda net, b: loss_sum(nn.Sequential(net, Apply(Tensor.float)), b)), {"targets": 1},
        "^none: the micro-batches add up to the whole batch(, within [^;]*)?$"),
    "a factor close to one": (RAGGED, sums_over(lambda b: total(b) * (1 + 1e-5 * (len(b) > 1))), {},
        r"^the right direction, 1 - 1e-05 times what it should be, no usual factor"),
    "wrong weights, but a little": (RAGGED, loop(lambda b, i: (1 + 1e-4 * i * (len(b) > 1)) / total(b)), {},
        "have the weights 0.5, 0.08334, 0.25.*, 0.1667 where 0.5, 0.08333, 0.25, 0.1667 is due$"),
    "a model that has almost converged": (THRICE, RIGHT, {"net": partial(converged, 3e-4)},
        "^none: .* where gradients cancel$"),
    "a model that has converged": (THRICE, RIGHT, {"net": converged},
        "^cannot tell: the model has converged"),
    "a model that has converged, and a mean of means": (THRICE, NAIVE, {"net": converged}, MEANS),
    "an empty micro-batch, left out": (EMPTY, by_counted, {}, WHOLE),
    "an empty micro-batch": (EMPTY, NAIVE, {}, "^nan from micro-batch 1 alone: p"),
    "an empty one, counted": (EMPTY, NAIVE, {"targets": 1}, "1 alone: it has no"),
    "zero_grad inside": (RAGGED, zero_grad_inside, {}, "^only the last micro-batch is left"),
    "zero_grad inside, two": (RAGGED[:2], zero_grad_inside, {}, "^only the last micro-batch is left"),
    **{f"clipped at {norm}": (RAGGED, then(sums_over(lambda b: total(b) / len(b)), clip(norm)), {},
        f"^cannot tell: gradients are clipped, several to the norm {norm},") for norm in (0.001, 0.7)},
    "only the window clipped": (RAGGED, then(RIGHT, clip(0.3, 2)), {},
        r"no usual factor \(norms 0.3 and 0\.\d+: is one clipped\?\)"),
    "causal, before the shift, labels as they are": (RAGGED, sums_over(total, causal),
        {"reference": causal_plain, "targets": 1},
        "^the right .* divided by the 24 labels before the shift, not by the 16 targets"),
    "causal, padding counted, labels as they are": (RAGGED,
        sums_over(lambda b: sum(y[:, 1:].numel() for _, y in b), causal),
        {"reference": causal_plain, "targets": 1},
        r"divided by the 40 positions \(padding too\), not by the 16 targets$"),
    "by sequences that have targets": (EMPTY,
        sums_over(lambda b: sum(int((y != IGNORED).any(1).sum()) for _, y in b)), PLAIN,
        "divided by the 6 sequences, not by the 22 targets$"),
    "causal, right, labels as they are": (RAGGED, sums_over(lambda b: sum(map(after, b)), causal),
        {"reference": causal_plain, "targets": 1}, WHOLE),
    "causal, right, labels as they are, no reference": (RAGGED,
        sums_over(lambda b: sum(map(after, b)), causal), {"targets": 1}, "^none: [^;]*$"),
    "a loss scale": (RAGGED, sums_over(lambda b: total(b) / 2**16), PLAIN,
        r"^the right direction, 2\^16 = 65536 times what it should be: as if the loss were scaled \(Grad"),
    "a loss scale, and a mean of means": (RAGGED, means_over(lambda k: k / 2**16), PLAIN,
        MEANS + r"; and 2\^16 = "),
    "autocast, right": (RAGGED, autocast(RIGHT), {"net": in_float32},
        r"^none: .* within 0.016, .* a second term's fault .* below 0.0\d+ of the gradient$"),
    "float16, a second term a mean of means": (RAGGED[:3], then(RIGHT, means_over(lambda k: k, z_loss)),
        {"net": lambda: model().half(), "targets": 1, "rows": (1, 2, 1)},
        "^cannot tell: the gradients differ by .* float32 would show it$"),
    "float16, two terms of other counts, each by its own": (RAGGED[:3],
        then(RIGHT, loop(lambda b, i: len(b[i][1]) / rows_of(b), z_loss)),
        {"net": lambda: model().half(), "targets": 1, "rows": (1, 2, 1)}, "^none: .* within 0.00"),
    "autocast, two terms of other counts, each by its own": (RAGGED[:3],
        autocast(then(RIGHT, loop(lambda b, i: len(b[i][1]) / rows_of(b), z_loss))),
        {"net": in_float32, "targets": 1, "rows": (1, 2, 1)}, "^none: .* within 0.0[1-4]"),
    "a cast in the forward pass, right": (RAGGED, RIGHT, {"net": casting}, "^none: .* within 0.016"),
    "a cast in the forward pass, a mean of means": (RAGGED, NAIVE, {"net": casting}, MEANS + "$"),
    "a count that outlives the step": (RAGGED, outliving([]), {},
        "^the step does not repeat: .* differ by 0.5 in size alone, as where a count outlives the step$"),
    "two terms, each a mean": (RAGGED, then(NAIVE, means_over(lambda k: k, z_loss)), {},
        MEANS + "; and .* two terms that have two denom"),
    "two terms, each by its count": (RAGGED, then(RIGHT, means_over(lambda k: k, z_loss)), {},
        "^none: the micro"),
    "a penalty with every micro-batch": (RAGGED, then(RIGHT, means_over(lambda k: 1, penalty(2))), {},
        "^a penalty on the parameters' squares enters .*; the rest is right$"),
    "a penalty on weights, and a mean of means": (RAGGED,
        then(NAIVE, means_over(lambda k: 1, penalty(2, biases=False))), {},
        "^a penalty on the parameters' squares enters .*; a mean of means over the micro-batches"),
    "a penalty on absolute values": (RAGGED, then(RIGHT, means_over(lambda k: 1, penalty(1))), {},
        "on the parameters' absolute values enter"),
    "a penalty, beside the rounding of autocast": ([3, 2, 6],
        then(autocast(RIGHT), means_over(lambda k: 1, lambda net, b: penalty(2)(net, b) / 5)),
        {"net": in_float32}, "^unknown: the gradient is no weighted sum"),
    "a penalty once": (RAGGED, then(RIGHT, means_over(lambda k: k, penalty(2))), {}, "^none"),
    "class weights, recombined by counts": (RAGGED,
        loop(lambda b, i: count(b[i]) / total(b), class_weighted_mean), {"targets": 1},
        "^the micro-batches are weighed by the number of their targets, which is not what .*class weights"),
    "class weights, right": (RAGGED,
        loop(lambda b, i: class_mass(b[i]) / sum(map(class_mass, b)), class_weighted_mean), {"targets": 1},
        "^none"),
    "class weights, a mean of means": (RAGGED, means_over(lambda k: k, class_weighted_mean), {"targets": 1},
        MEANS),
    "a mean of each sequence": (RAGGED, sums_over(rows_of, by_rows), {"targets": 1},
        "^none: .*; both divide by .*sequences, not by .* to write short ones; equal numb"),
    "a mean of each sequence, and of means": (RAGGED[:3],
        loop(lambda b, i: 1 / len(b) / len(b[i][1]), by_rows), SOME, MEANS),
    "a running count": (RAGGED, loop(lambda b, i: 1 / total(b[: i + 1])), {},
        "^a running count: each micro-batch is divided by the targets so far$"),
    "the last left out": (RAGGED, loop(lambda b, i: (len(b) == 1 or i < 3) / total(b)), {},
        "have the weights 0.5, 0.0833, 0.25, 0 where 0.5, 0.0833, 0.25, 0.167 is due$"),
    "by the last one's count": ([6, 1, 3, 4], sums_over(lambda b: len(b) * count(b[-1])), PLAIN,
        "^the right .* 0.875 of .* divided by 32 where 28 targets count$"),
    "an empty one adds nothing and is counted": (EMPTY, loop(lambda b, i: 1 / max(count(b[i]), 1) / len(b)),
        {"targets": 1}, MEANS + "; micro-batch 1 adds nothing, and is counted$"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
def test_loops_are_judged_rightly(name: str) -> None:
    lengths, step, arguments, says = LOOPS[name]
    arguments = dict(arguments)
    micro, whole = window(lengths)
    if rows := arguments.pop("rows", ()):
        micro = [(x[:n], y[:n]) for n, (x, y) in zip(rows, micro, strict=True)]
        whole = join(micro)
    net = arguments.pop("net", model)()
    micro = [(x.to(net[0].weight.dtype), y) for x, y in micro]
    whole = join(micro)
    report = xent.torch.check_accumulation(net, micro, whole, step, **arguments)
    assert report.ok is says.startswith("^none") and re.search(says, report.cause), report.cause


HALVES = [(torch.bfloat16, True), (torch.bfloat16, False), (torch.float16, True), (torch.float16, False)]


@pytest.mark.parametrize(("dtype", "cast"), HALVES)
def test_half_precision_hides_no_mean_of_means_and_rounding_is_none(dtype: torch.dtype, cast: bool) -> None:
    """Under autocast or by the parameters, float16 with a loss scale: a mean of means off by 2 % to 9 % is one.

    What a loop rounds is larger than the mean of means is off, but goes in other directions.
    """
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, enabled=dtype == torch.float16)
    seen = []
    for seed in range(3):
        micro = [(x.to(torch.float32 if cast else dtype), y) for x, y in window([5, 6, 5, 4], 20, seed)[0]]
        net = model().to(torch.float32 if cast else dtype)
        for right in (True, False):

            def step(net: nn.Module, batches: list[Batch], right: bool = right) -> None:
                with torch.autocast("cpu", dtype, enabled=cast):
                    for batch in batches:
                        divisor = total(batches) if right else len(batches) * count(batch)
                        scaler.scale(loss_sum(net, batch).float() / divisor).backward()

            report = xent.torch.check_accumulation(net, micro, join(micro), step)
            assert report.ok is right, report
            assert report.cause.startswith("none: " if right else MEANS[1:]), report
            seen += [report.relative_error] * (not right)
    assert min(seen) < 0.09  # the root of bfloat16's epsilon would hide it


def coarsely(step: Step) -> Step:
    """A step whose gradients keep two digits in binary."""

    def coarse(net: nn.Module, batches: list[Batch]) -> None:
        step(net, batches)
        for p in net.parameters():
            assert p.grad is not None
            scale = p.grad.abs().max()
            p.grad.copy_((p.grad / scale).to(torch.float8_e4m3fn).to(p.dtype) * scale)

    return coarse


@pytest.mark.parametrize("step", [RIGHT, NAIVE])
def test_noise_that_hides_a_mean_of_means_is_said_to(step: Step) -> None:
    micro, _ = window([6, 6], 20)
    micro[1][1][:2, 3:] = IGNORED  # 114 targets beside 120
    micro = [(x.float(), y) for x, y in micro]
    report = xent.torch.check_accumulation(in_float32(), micro, join(micro), autocast(coarsely(step)))
    assert str(report).startswith("accumulation cannot be judged") and report.cause.startswith("cannot tell")
    finer = xent.torch.check_accumulation(in_float32(), micro, join(micro), autocast(step))
    assert finer.ok is (finer.relative_error < 0.01) and not finer.cause.startswith("cannot tell")


@pytest.mark.parametrize("rows", [200, 500])
def test_long_sums_in_bfloat16_are_no_fault_of_the_loop(rows: int) -> None:
    """A sum over the whole batch's rows loses more than those over the micro-batches, as in a bias's gradient."""
    micro = [(x.bfloat16(), y) for x, y in window([5, 6, 3, 6], rows)[0]]
    net = model(nn.LayerNorm(8, dtype=torch.float64)).bfloat16()
    report = xent.torch.check_accumulation(net, micro, join(micro), RIGHT, targets=1)
    assert report.cause.startswith("cannot tell: the gradients differ by") and "of long sums" in report.cause
    report = xent.torch.check_accumulation(net, micro, join(micro), means_over(lambda k: 1), targets=1)
    assert report.cause.startswith("a mean of means") and report.norm_ratio > 3  # beyond rounding it is named


def noisy(net: nn.Module, batch: Batch) -> Tensor:
    return mean(net, (batch[0] + 0.1 * torch.randn_like(batch[0]), batch[1]))


LESS_THE_MEAN = Apply(lambda x: x - x.mean(0, keepdim=True))  # of the batch
# What the network holds besides, the seed of the whole batch, a step, and what the report says.
OTHERS: list[tuple[list[nn.Module], int, Step, str]] = [
    *((layer, 0, step, says) for step in (RIGHT, NAIVE) for layer, says in (
        ([nn.Dropout(0.2)], r"^the step does not repeat: .* \(dropout is on: 1\)"),
        ([BatchNorm(8)], r"^batch normalisation \(1\)"),
        ([LESS_THE_MEAN], "no weights .* looks across rows"),
        ([LESS_THE_MEAN, BatchNorm(8).eval()], "^(unknown|a mean of means).* no weights .* looks across rows"))),
    ([], 0, means_over(lambda k: 1, noisy), "does not repeat.*dropout or other random numbers"),
    ([], 1, RIGHT, "^unknown: no weights.*not the same examples"),
]  # fmt: skip


@pytest.mark.parametrize("row", range(len(OTHERS)))
def test_what_is_not_the_loops_fault_is_said_to_be_something_else(row: int) -> None:
    layers, seed, step, says = OTHERS[row]
    micro, whole = window(RAGGED)[0], window(RAGGED, seed=seed)[1]
    report = xent.torch.check_accumulation(model(*layers), micro, whole, step)
    assert not report.ok and re.search(says, report.cause), report.cause
    if layers and layers[0] is not LESS_THE_MEAN:  # with the others off, the loop itself is judged
        assert xent.torch.check_accumulation(model(*layers).eval(), micro, whole, RIGHT).ok


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_small_fault_is_found_and_rounding_is_none(dtype: torch.dtype) -> None:
    """A token more of 2,000 is a fault in float32; the order of its sums is none."""
    micro = [(x.to(dtype), y) for x, y in window([6, 5, 6, 6], rows=90)[0]]
    net = model().to(dtype)
    assert xent.torch.check_accumulation(net, micro, join(micro), sums_over(total)).ok
    one_more = sums_over(lambda b: total(b) + (len(b) > 1))
    report = xent.torch.check_accumulation(net, micro, join(micro), one_more, targets=1)
    assert not report.ok and report.cause.endswith("divided by 2071 where 2070 targets count")


def test_the_report_says_what_was_measured_what_it_means_and_what_to_do() -> None:
    micro, whole = window(EVEN)
    report = xent.torch.check_accumulation(model(), micro, whole, means_over(lambda k: 1))
    assert (report.norm_ratio, report.cosine, report.relative_error) == pytest.approx((4, 1, 3), rel=1e-12)
    first, cause, repair, *_ = str(report).splitlines()
    assert first == "accumulation is WRONG: relative error 3, norm ratio 4, cosine 1"
    assert cause == f"cause:  {report.cause}" and repair.startswith("repair: sum the losses")


class Stop(Exception):
    pass


@pytest.mark.parametrize("raises_at", [None, 1, 3, 5])
def test_the_model_is_left_as_it_was(raises_at: int | None) -> None:
    net = model(BatchNorm(8), nn.Dropout(0.5))
    first, last = net[0], net[-1]
    assert isinstance(first, nn.Linear) and isinstance(last, nn.Linear)
    first.bias.requires_grad_(False)
    micro, whole = window(RAGGED)
    plain(net, whole)
    first.weight.grad = None  # one has a gradient, another has none
    net[1].eval()

    held = last.weight.grad
    assert held is not None

    def state() -> list[Any]:
        tensors = [*net.parameters(), *net.buffers()]
        gradients = [p.grad for p in net.parameters()]
        kept = [None if t is None else t.detach().clone() for t in (*tensors, *gradients)]
        flags = [p.requires_grad for p in net.parameters()] + [m.training for m in net.modules()]
        identities = [id(t) for t in (*tensors, *gradients)]
        numpy = np.random.get_state()[1].tolist()  # type: ignore[index, union-attr] # noqa: NPY002
        return [kept, flags, identities, random.getstate(), numpy, torch.get_rng_state()]

    calls = 0

    def step(net: nn.Module, batches: list[Batch]) -> None:
        nonlocal calls
        calls += 1
        net.train().requires_grad_(True)
        random.random(), np.random.rand()  # noqa: NPY002
        for batch in batches:
            plain(net, batch)
            batch[1].fill_(IGNORED)  # each run has copies
        held.fill_(7.0)  # as in a bucket that the ranks' gradients share
        net[1].register_buffer("running_mean", torch.ones(8).double())
        if calls == raises_at:
            raise Stop

    before = state()
    with pytest.raises(Stop) if raises_at else contextlib.nullcontext():
        # A loader draws a seed.
        xent.torch.check_accumulation(net, DataLoader(micro, batch_size=None), whole, step)  # type: ignore[arg-type]
    for was, now in zip(before, state(), strict=True):
        torch.testing.assert_close(now, was, rtol=0, atol=0)
    assert all(count(batch) for batch in micro)


MASKED = {"attention_mask": torch.ones(2, 3, dtype=torch.int64)}
OF_MASKS = {"micro_batches": [MASKED] * 2, "whole_batch": MASKED, "targets": lambda b: b["attention_mask"]}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"micro_batches": window([3])[0]}, "micro_batches: .* got 1"),
    ({"step": then(NAIVE, lambda net, b: net.zero_grad())}, "step: .* gradients .* found none"),
    (
        {"step": then(NAIVE, lambda net, b: torch.optim.SGD(net.parameters(), 0.1).step())},
        "step: .* changed the parameters",
    ),
    ({"targets": 1, "whole_batch": window([6])[1]}, "whole_batch: .* 24 .* got 12"),
    (OF_MASKS, "targets: .* boolean mask, got the attention mask in torch.int64"),
    ({"targets": 0}, "targets: .* got torch.float64 of"),
    ({"micro_batches": [(i for i in ())] * 2}, "batch: .* can be copied; .* leave iterators out"),
    ({"whole_batch": torch.ones(2, requires_grad=True) * 1}, "batch: .* detach"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    micro, whole = window(RAGGED)
    given: Any = {"model": model(), "micro_batches": micro, "whole_batch": whole, "step": RIGHT}
    with pytest.raises((TypeError, ValueError), match=message):
        xent.torch.check_accumulation(**given | arguments)


# ----------------------------------------------------------------- two ranks, which tests/ranks.py runs


def everywhere(n: float) -> float:
    total = torch.tensor(float(n))
    dist.all_reduce(total)
    return float(total)


def stands_in(denominator: Any, steps: int = 3) -> Step:
    """Batches that count alone, so that a rank may run out of them; FSDP2 sums the ranks' gradients."""

    def step(net: Any, batches: list[Batch]) -> None:
        loader = [batch for batch in batches if count(batch)]
        summed = isinstance(net, FSDPModule)
        if summed:
            net.set_gradient_divide_factor(1.0)
        for window in xent.torch.accumulate(loader, steps, targets=1, denominator=denominator):
            for micro in window:
                with synchronised(net, micro.is_last):
                    logits, y = net(micro.batch[0]), micro.batch[1]
                    loss = xent.torch.cross_entropy(logits, y, ignore_index=IGNORED, reduction="sum")
                    (loss * micro.scale / (W if summed else 1)).backward()
        if summed:
            net.set_gradient_divide_factor(float(W))

    return step


def all_but_the_last(net: nn.Module, batches: list[Batch]) -> None:
    for p in [*net.parameters()][:-1]:
        if p.grad is not None:
            dist.all_reduce(p.grad.div_(W))


W = 2
SIX = [6, 2, 1, 2, 6, 3]  # three micro-batches on each rank
RANK_LOOPS: dict[str, Row] = {
    "right": (SIX, by_accumulate, PLAIN, "^none: [^;]*$"),
    "right, padding alone": ([*SIX[:4], 0, 3], by_accumulate, PLAIN, WHOLE),
    "a rank that never has a batch": (SIX[:3] + [0] * 3, stands_in("tokens"), PLAIN, WHOLE),
    "a rank that runs out, by sequences": ([*SIX[:5], 0], stands_in("sequences"),
        {"reference": lambda net, b: sums_over(lambda _: 10)(net, [b])}, WHOLE),
    "a rank that runs out, by a constant, in two windows": ([*SIX[:5], 0], stands_in(64.0, 2),
        {"reference": lambda net, b: sums_over(lambda _: 64)(net, [b])}, WHOLE),
    "both": (SIX, loop(lambda b, i: 1 / len(b) / count(b[i])), {},
        "^a mean of means over the micro-batches and over the ranks: [^;]*$"),
    "micro-batches": (SIX, loop(lambda b, i: W / len(b) / everywhere(count(b[i]))), {},
        "^a mean of means over the micro-batches, whose denominators the ranks do share$"),
    "ranks": (SIX, sums_over(total), {},
        "^a mean of means over the ranks: each divides by the targets of its own window alone$"),
    "ranks, without accumulation": (SIX[:2], sums_over(total), {},
        "^a mean of means over the ranks: each weighs the same"),
    "right, no reference": (SIX, by_accumulate, {"targets": 1}, "^none: .*; a factor W .* reference= would"),
    "W missing": (SIX, sums_over(lambda b: everywhere(total(b))), PLAIN,
        "^the right direction, 1/W = 0.5 times [^;]*$"),
    "W missing, without accumulation": (SIX[:2], sums_over(lambda b: everywhere(total(b))), PLAIN,
        "^the right .* 1/W = 0.5 times [^;]*$"),
    "W too much": (SIX[:2], loop(lambda b, i: W * W / everywhere(total(b))), PLAIN,
        "^the right direction, W = 2 times"),
    "never divided": ([3] * 6, loop(lambda b, i: 1 / count(b[i])), {}, "^the right direction, K = 3 "),
    "never synchronised": (SIX, loop(lambda b, i: 1 / total(b), sync=False), {},
        "^the ranks end with different gradients: no .* synchronises them$"),
    "never synchronised, the last": (SIX, then(loop(lambda b, i: 1 / total(b), sync=False), all_but_the_last),
        {}, "^the ranks end .* synchronises (module.)?2.bias$"),
}  # fmt: skip


def judge_on_this_rank() -> dict[str, tuple[bool, str, float]]:
    dist.init_process_group("gloo")
    found = {}
    for name, (lengths, step, arguments, _) in RANK_LOOPS.items():
        micro, whole = window(lengths)
        mine = micro[dist.get_rank() * len(micro) // W :][: len(micro) // W]
        sharded: nn.Module = fully_shard(model(), mesh=init_device_mesh("cpu", (W,)))
        for kind, net in (("DDP", DistributedDataParallel(model())), ("FSDP2", sharded)):
            if kind == "FSDP2" and name.startswith("never synchronised"):
                with pytest.raises(ValueError, match=r"found none.* under FSDP"):
                    xent.torch.check_accumulation(net, mine, whole, step, **arguments)
                continue
            report = xent.torch.check_accumulation(net, mine, whole, step, **arguments)
            found[f"{name}, {kind}"] = report.ok, report.cause, report.relative_error
    dist.destroy_process_group()
    return found


@pytest.mark.slow
def test_loops_on_two_ranks_are_judged_rightly(tmp_path: Path) -> None:
    ranks.run(__file__, (W, [str(tmp_path)]))
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(W))
    assert len(first) == 2 * len(RANK_LOOPS) - 2
    for name, (ok, cause, error) in first.items():
        *_, says = RANK_LOOPS[name.rpartition(", ")[0]]
        assert ok is says.startswith("^none") and re.search(says, cause), (name, cause)
        assert second[name][:2] == [ok, cause], name
        assert (error < 1e-12) == ok, (name, error)


if __name__ == "__main__":
    judged = judge_on_this_rank()
    Path(sys.argv[1], f"{os.environ['RANK']}.json").write_text(json.dumps(judged))
