"""What chapter 8 says of losses, and the cells that a reader pastes, tried on faults and repairs of many sizes."""

from __future__ import annotations

import ast
import copy
import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import nn

import xent
from adversary import claim, rng
from xent_book import behaviours

pytestmark = pytest.mark.xdist_group("frameworks")  # one worker imports TensorFlow, once
F = torch.nn.functional
T = torch.Tensor
CHAPTER = Path(__file__).parents[2] / "chapters" / "08_which_loss.ipynb"


@cache
def checks() -> dict[str, tuple[int, Callable[..., Any]]]:
    """The checks by name, with their lines: the functions of a row's first cell, if it defines no more."""
    known: dict[str, Any] = {"copy": copy, "math": math, "np": np, "torch": torch, "F": F}
    found = {}
    for row, cell in pairwise(nbformat.read(CHAPTER, as_version=4).cells):
        if row.cell_type == "markdown" and "(symptom-" in row.source and cell.cell_type == "code":
            body = ast.parse(cell.source).body
            functions = [each for each in body if isinstance(each, ast.FunctionDef)]
            if len(functions) == len(body):
                exec(cell.source, known)
                for each in functions:
                    first = min(node.lineno for node in (each, *each.decorator_list))
                    found[each.name] = ((each.end_lineno or 0) - first + 1, known[each.name])
    return found


FORMATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SIZES = ((1, 2), (1, 10), (2, 3), (33, 10), (4096, 10), (33, 1000))
ce, bce = F.cross_entropy, F.binary_cross_entropy_with_logits
Given = dict[str, list[tuple[Any, ...]]]


def naive(z: T, y: T, smallest: float = 0.0) -> T:
    p = z.softmax(1)
    # Not clamp(min=0): from PyTorch 2.15 on no gradient passes at the bound, and this loss would not break.
    return -(p.clamp(min=smallest) if smallest else p).gather(1, y[:, None]).log().mean()


def root_of_one(z: T, y: T) -> T:
    return ce(z, y) + torch.where(z[0, 0] > 0, 0 * z[0, 0], 0 * z[0, 0].sqrt()).nan_to_num()


def infinite_when_wrong(z: T, y: T) -> T:
    """An infinite loss of a sound gradient, as from a backward of one's own."""
    return ce(z, y) + torch.where(ce(z, y).detach() > 100, math.inf, 0.0)


def lost_in_half(z: T, y: T) -> T:
    """The number that keeps a probability from zero is itself zero in float16."""
    return -(z.half().softmax(1) + 1e-8).log().gather(1, y[:, None]).mean()


def binary_naive(z: T, t: T, gamma: int = 0, dtype: torch.dtype = torch.float32) -> T:
    p = z.to(dtype).sigmoid()
    return -(t * (1 - p) ** gamma * p.log() + (1 - t) * p**gamma * (1 - p).log()).float().mean()


def without_parentheses(z: T, t: T) -> T:
    """The minus sign of the whole on its first term only: a loss of the positives, a reward of the negatives."""
    return (-t * F.logsigmoid(z) + (1 - t) * F.logsigmoid(-z)).mean()


def unlikelihood(z: T, y: T) -> T:
    """Infinite where the model is sure of the class after the label, which is wrong."""
    return -(1 - z.softmax(1).gather(1, (y[:, None] + 1) % z.shape[1])).log().mean()


def focal_of_logits(z: T, t: T) -> T:
    return (torch.exp(-2 * F.softplus((2 * t - 1) * z)) * bce(z, t, reduction="none")).mean()


def normalised(k: int, x: T, y: T, momentum: float = 0.1, dropout: float = 0.0) -> nn.Module:
    """A network that has seen twenty batches, whose running averages lag if the momentum is small."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(9, momentum=momentum)
    model = nn.Sequential(nn.Linear(4, 9), norm, nn.Dropout(dropout), nn.Linear(9, k))
    adam = torch.optim.Adam(model.parameters(), 0.1)
    for _ in range(20):
        stepped(model, x, y, adam)
    return model


def stepped(model: nn.Module, x: T, y: T, optimizer: torch.optim.Optimizer, lost: bool = False) -> None:
    optimizer.zero_grad()
    ce(model(x), y).backward()
    if lost:
        optimizer.zero_grad()
    optimizer.step()


def through_a_buffer(y: T, size: int) -> T:
    """What streaming returns: each next label from a random place of a buffer."""
    places, out, buffer = torch.randint(0, size, (len(y),)).tolist(), [], y[:size].tolist()
    for label, place in zip(y[size:].tolist(), places, strict=False):
        out.append(buffer[place])
        buffer[place] = label
    return torch.tensor(out + buffer)


def times(factor: float) -> Callable[[T, T], T]:
    return lambda z, y: factor * ce(z, y)


def summed(z: T, y: T, weight: T | None = None, smoothing: float = 0.0) -> T:
    w = None if weight is None else weight.to(z)
    return ce(z, y, w, reduction="sum", label_smoothing=smoothing) / len(y)


def weighed(weight: T, **options: Any) -> Callable[[T, T], T]:
    return lambda z, y: ce(z, y, weight.to(z), **options)


def by_token(z: T, y: T) -> T:
    return ce(z.movedim(-1, 1), y)


def by_sequence(z: T, y: T) -> T:
    return (ce(z.movedim(-1, 1), y, reduction="none").sum(1) / (y >= 0).sum(1)).mean()


def masked(model: nn.Module, fill: float, x: T) -> T:
    """A first class that no row can have."""
    return F.pad(model(x), (1, 0), value=fill)


def accuracy(z: T, y: T) -> T:
    return (z.argmax(1) == y).double().mean()


def cases(n: int, k: int, dtype: torch.dtype) -> tuple[Given, Given]:
    """What each check is given at n rows of k classes: faults, to which it says yes, and repairs. A list times False
    is empty: the check needs more rows or classes, and the chapter says so.
    """
    g = torch.Generator().manual_seed(int(rng(8).integers(1 << 31)))
    torch.manual_seed(0)
    z = 2 * torch.randn(n, k, generator=g, dtype=torch.float64).to(dtype)
    y, x = torch.randint(0, k, (n,), generator=g), torch.randn(n, 4, generator=g)
    t, p, log_p, short = F.one_hot(y, k).to(dtype), z.softmax(1), z.log_softmax(1), z.element_size() < 4
    ignored, y_then_ignored = torch.full_like(y, -100), torch.cat([y, torch.full_like(y[:1], -100)])
    model, smooth, some, many = nn.Linear(4, k), nn.CrossEntropyLoss(label_smoothing=0.1), n > 30, n > 4000
    dropout = partial(nn.Sequential, nn.Dropout(0.9))
    sampled = torch.multinomial(z.double().softmax(1), 1, generator=g)[:, 0]  # as sure as it should be
    lstm = nn.LSTM(4, 4)
    over_time = lambda v: lstm(v)[0]  # noqa: E731  takes rows for time steps
    right, wrong, binary = 60 * t - 30, 30 - 60.0 * t.float(), 60 - 120.0 * t.float()
    q, mask = z.float().roll(1, 1).softmax(1).numpy(), torch.ones(n, n).triu(1) > 0
    padded = torch.stack([torch.cat([y[:9], y[:9]]), torch.cat([y[:9], ignored[:9]])])
    cube, ids = torch.randn(2, k, k, generator=g).to(dtype), torch.randint(0, k, (2, k), generator=g)
    none = torch.arange(1.0, k + 1).double().index_fill(0, torch.tensor([0]), 0.0)  # for the first class
    keras, w, even = behaviours.keras().losses, torch.arange(1.0, k + 1).to(dtype), torch.arange(n) % 2.0
    bits, sparse = (even, even[:, None], 0 * even), keras.SparseCategoricalCrossentropy
    focal, half_focal = partial(binary_naive, gamma=2), partial(binary_naive, gamma=2, dtype=torch.float16)
    up, rare = y.sort()[0], (torch.arange(n) < 3).long()
    buffered = through_a_buffer(up, n // 8 + 1)
    learnable = (x @ torch.randn(4, k, generator=g)).argmax(1)
    sure_of_twelve = (0.999 * ((torch.arange(n) > 1) & (torch.arange(n) < 14))).clamp(min=0.001)
    rawest = [(30 * x + 5, learnable)] * many
    # The loss stays high, as with many classes.
    noisiest = [(30 * x + 5, torch.where(even > 0, y, learnable))] * many
    infinite = torch.full((1, k), -torch.inf, dtype=dtype)
    one, zeros = infinite.index_fill(1, torch.tensor([0]), 1.0), torch.zeros(30_000, 10)
    faults: Given = {
        # Also of dead networks.
        "unrelated": [(z, y), *((z[:1].expand(m, k), y[:m]) for m in (101, 300, 1000, 1797))] * many,
        "starts_high": [(40 * z, y)] * (n * k > 30),
        "already_probabilities": [(p,), (p.float(),), (z.sigmoid(),)],
        "has_a_floor": [(nn.CrossEntropyLoss(label_smoothing=0.01), y, k)],
        "no_gradient": [
            (partial(naive, smallest=1e-7), wrong, y),
            (lambda z, y: -(z.softmax(1) + 1e-15).gather(1, y[:, None]).log().sum(), wrong, y),
            (lambda z, t: F.binary_cross_entropy(z.sigmoid(), t), binary, t.float()),
        ],
        "too_sure": [(right, (y + 1) % k)] * (n > 1),
        "averages_lag": [
            *((normalised(k, *raw, 0.01), *raw) for raw in rawest),
            *((normalised(k, *raw, 0.003), *raw) for raw in noisiest),
        ],
        "sorted_by_label": [
            *[(v,) for v in (up, torch.cat([up[::2], up[1::2]]), buffered)] * many,
            (torch.arange(20 * k) // 20,),
            ((torch.arange(80) // 40).float(),),  # as a binary loss takes them
        ],
        "few_digits": [
            *(([ce(z.bfloat16()[i:], y[i:]).item() for i in range(n)[:9]],), ([2.5, 2.30078125],)),
            (ce(z.bfloat16(), y, reduction="none").tolist(),),  # of rows, whose mean has all digits
        ],
        "no_log_probabilities": [(p,), (z + 1,), (torch.cat([log_p, z + 1]),)],
        "sign_flipped": [(times(-1), y, k), (without_parentheses, even), (lambda z, t: -bce(z, t), even)],
        "outside": [(2 * t - 1,), (255 * t,), (9 * t - 4,), (30 * z,), (t * math.nan,)],
        "no_distributions": [
            *((p, t), (z + 1, t), (log_p, 1.2 * t), (log_p, 3 * t - 2 * p), (log_p.double(), 0.96 * t)),
            *((torch.cat([log_p, p]), torch.cat([t, t])), (log_p.T + 1, t.T, 0)),
        ],
        "not_log_k": [
            *((lambda z, t: ce(t, z), z, t), (times(1 / math.log(2)), z, t)),
            (lambda z, t: keras.CategoricalCrossentropy(True)(z, t.float()), z, t),
        ],
        "reads_no_logits": [
            *((sparse(), y.numpy(), right.float().numpy() * s + 20) for s in (0, 1 / 60, 1 / 6)),
            (keras.sparse_categorical_crossentropy, y.numpy(), z.float().numpy()),  # a loss for each row
        ],
        "counts_each_output": [(1 - 1 / k, q, np.roll(q > q.max() / 2, 1, 1))] * (n > 9),
        "breaks_when_sure": [
            *((f, y, k) for f in (naive, root_of_one, infinite_when_wrong, lost_in_half, unlikelihood)),
            *((f, b) for b in bits for f in (binary_naive, focal, half_focal)),
        ],
        "nothing_counts": [(ignored,), (y, 0 * w), (0 * y, w - 1, 5), (0 * y, None, 0)],
        "nan_where_ignored": [(torch.cat([z, row]), y_then_ignored) for row in (infinite, -one)],
        "sees_nothing": [(mask | torch.eye(n, dtype=torch.bool),)],
        "half_overflows": [
            *[(torch.tensor([[5.0, 0]]).repeat(66_000, 1).half(), torch.zeros(66_000).long())] * (n < 2),
            *[(zeros.half(), zeros[:, 0].long())] * (n < 2),
            *[(torch.cat([z, z[:1].masked_fill(t[:1] == 0, torch.inf)]), torch.cat([y, y[:1]]))]
            * (k < 3 and short),
        ],
        "gradient_lost": [(z / 9, y, 1e-7)] * (dtype == torch.float16),
        "half_weights": [(copy.deepcopy(model).half(),)],
        "mixes_rows": [
            *((over_time, x), (nn.Softmax(0), z), (nn.Softmax(0), 40 + 10 * z), (nn.BatchNorm1d(4), x)),
            *((partial(masked, nn.BatchNorm1d(4), fill), x) for fill in (-1e9, -math.inf)),
        ][: n + 2],
        "too_often": [
            *[(torch.sigmoid(z + 3), torch.bernoulli(z.float().sigmoid(), generator=g))] * many,
            *[((z.double() + 2 * (t[:1] > 0)).softmax(1), F.one_hot(sampled, k) > 0)] * many,  # one class
            # Odds five times too high, fifty positives.
            *[(torch.full((n,), 0.06), torch.arange(n) < 50)] * many,
        ],
        "tokens_weigh_differently": [(by_sequence, padded, k)],
        "skips_targets": [(y, torch.ones(n), int(y[0])), (ignored, torch.ones(n))],
        "padding_counts": [(accuracy, z + 9 * t, y), (summed, z, y), (ce, z, y, 0)][: 2 + some],
        "ranks_differ": [([n, n + 1], [n, n + 1]), ([4 * n, 4 * n], [n, 3 * n])],
        "weights_cancel": [(weighed(v), y, v) for v in (w.double(), none)] * some,
        "wrong_target": [(z, y[:, None]), (z, t.long()), (z, y.double()), (cube, ids.byte())],
        "shapes_differ": [(p[:, :1], t[:, 0]), (p[:, 0], t[:, :1])],
        "out_of_range": [(y + 1 + k, k), (y - k, k), (ignored, k, 255), (torch.cat([y, y + k]), k)],
    }
    repairs: Given = {
        "unrelated": [(z + t, y), (3 * F.one_hot(rare, k) + z / 4, rare)] * many,
        "starts_high": [(z / 20, y), (z / 20 + 5 * t[:1], y[:1].expand(n))],
        "already_probabilities": [
            *((0 * z,), (z.abs() + 1.1,)),
            *((torch.cat([p, v]),) for v in (z.abs() + 1.1, 9 * t - 8 / k)),
        ],
        "has_a_floor": [(ce, y, k), (lambda z, y: bce(z, F.one_hot(y, k).to(z)), y, k)],
        "no_gradient": [
            (ce, wrong, y),
            (summed, wrong, y),
            *((bce, v, t.float()) for v in (binary, 0 * wrong - 60)),
        ],
        "too_sure": [(right, y), (0 * z, y), *[(z, sampled)] * many],
        "averages_lag": [
            *((normalised(k, *raw, 0.1, rate), *raw) for raw in rawest + noisiest for rate in (0, 0.5)),
            *((f, 30 * x, y) for f in (dropout(model), model)),
        ],
        "sorted_by_label": [(y,), (up[torch.randperm(n, generator=g)],), (torch.arange(n) % k,)],
        "few_digits": [([2.30261, 1.7713],), ([2.5, 1.7713],)],
        "no_log_probabilities": [(log_p,)],
        "sign_flipped": [*((f, y, k) for f in (ce, times(k), smooth)), *((bce, b) for b in bits)],
        "outside": [(t,), (p,), (t[:, :1],)],
        "no_distributions": [
            *((log_p, t), (log_p, p), (log_p.T, t.T, 0)),
            (log_p.float(), z.bfloat16().softmax(1)),
        ],
        "not_log_k": [
            *((ce, z, t), (ce, z, y), (ce, z.masked_fill(y[0] == torch.arange(k), -torch.inf), y)),
            (ce, z.repeat(9, 1), torch.cat([ignored.repeat(8), y])),
            (lambda z, t: keras.CategoricalCrossentropy(True)(t.float(), z), z, t),
        ],
        "reads_no_logits": [
            (sparse(True), y.numpy(), z.float().numpy()),
            (partial(keras.sparse_categorical_crossentropy, from_logits=True), y.numpy(), z.float().numpy()),
            # The model ends in a softmax, as the default expects; even probabilities add up worst in bfloat16.
            *((sparse(), y.numpy(), v.float().numpy()) for v in (p, (0 * z).softmax(1))),
        ],
        "counts_each_output": [(1.0, q, q)],
        "breaks_when_sure": [
            *((f, y, k) for f in (ce, times(65536))),
            *((lambda z, y, how=how: ce(z.half(), y, reduction=how), y[:30], k) for how in ("mean", "none")),
            *((f, b) for b in bits for f in (bce, focal_of_logits)),
        ],
        "nothing_counts": [(torch.cat([y, ignored]),), (y,), (0 * y + 1, w - 1)],
        "nan_where_ignored": [
            (torch.cat([z, one]), y_then_ignored),
            (torch.cat([z, infinite]), torch.cat([y, y[:1]])),
        ],
        "sees_nothing": [(mask,), (mask[None] & mask[0],)],
        "half_overflows": [
            *((z, y), (z, ignored), (zeros, zeros[:, 0].long())),
            (torch.cat([z, z]), torch.cat([y, ignored])),
        ],
        "gradient_lost": [
            *((z / 9, y, 64.0), (z.float(), y)),
            *((wrong.to(dtype), y, 65536.0), (right.to(dtype), y)),  # too large a gradient, or none to lose
        ],
        "half_weights": [(model,), (copy.deepcopy(model).bfloat16(),)],
        "mixes_rows": [(nn.Softmax(1), z), (nn.BatchNorm1d(4).eval(), x)],
        "too_often": [
            *((z.double().sigmoid(), z.double().sigmoid()), (z[:, :1].sigmoid(), z[:, 0].sigmoid())),
            *[(z.double().softmax(1), F.one_hot(sampled, k)), (sure_of_twelve, (torch.arange(n) < 2).long())]
            * many,
        ],
        "tokens_weigh_differently": [(by_token, padded, k)],
        "skips_targets": [(y, torch.ones(n)), (ignored, torch.zeros(n)), (y + k, torch.ones(n), 0)],
        "padding_counts": [
            *((ce, z, y), (times(3), z, y)),
            (lambda z, y: accuracy(z[y >= 0], y[y >= 0]), z + 9 * t, y),
        ],
        "ranks_differ": [([n, n], [n, n]), ([2 * n, 2 * n], [n, 3 * n]), ([k / 3] * 3, [k, 0, 0])],
        "weights_cancel": [
            *((partial(summed, weight=w, smoothing=e), y, w) for e in (0, 0.1, 0.2)[: 1 + 2 * (k < 99)]),
            *((ce, y[:1], w), (weighed(w), 0 * y, w)),
            *[(partial(summed, weight=none), y, none)] * some,
            *[(partial(summed, weight=w), v, w) for v in (y.where(y > 0, -100), y[:, None, None])] * some,
        ],
        "wrong_target": [
            (z, y),
            (z, t),
            (cube, ids),
            (z, y.byte()),
            (z[0], y[0]),
            (z[0], t[0]),
            (z[0], y[:1]),
        ],
        "shapes_differ": [(p, t)],
        "out_of_range": [(y, k), (ignored, k), (y * 0 - 1, k, -1)],
    }
    return faults, repairs


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_check_finds_the_fault_and_clears_the_repair(size: tuple[int, int], dtype: torch.dtype) -> None:
    wrong = []
    for expected, tried in zip((True, False), cases(*size, dtype), strict=True):
        for name, given in tried.items():
            said = [bool(checks()[name][1](*arguments)) for arguments in given]
            wrong += [(name, expected, said)] * (said != [expected] * len(given))
    assert not wrong


def returned() -> Iterator[tuple[str, tuple[Any, ...], Any]]:
    """The checks that return names or numbers, what they are given, and what they have to return."""
    g = torch.Generator().manual_seed(3)
    z, y = torch.randn(256, 7, generator=g), torch.arange(256) % 7
    yield "factor", (partial(ce, reduction="none"), z, y), 1.0
    trained = 200.0 * F.one_hot(y, 7)  # where the gradient is 0
    yield "factor", (partial(ce, reduction="sum"), trained, y), 256.0
    yield from (("factor", (times(f), z, y), f) for f in (256.0, 4.0, 1 / 7, 1 / math.log(2), 65536.0, -1.0))
    for n, k, dtype in ((1, 2, torch.float64), (4096, 10, torch.float16), (33, 1000, torch.bfloat16)):
        logits, labels = torch.randn(n, k, generator=g).to(dtype), torch.randint(0, k, (n,), generator=g)
        pixels, seen = torch.randn(2, 1, n, n % 9 + 1), (torch.rand(2, 1, n, n % 9 + 1) < 0.3).float()
        teacher = (3 * torch.randn(n, k, generator=g)).softmax(1)
        for reduction, factor in (("mean", 1 / k), ("batchmean", 1.0)):
            kl = lambda z, p, how=reduction: F.kl_div(z.log_softmax(1), p, reduction=how)  # noqa: E731
            yield "factor", (kl, logits, teacher), factor
        yield "factor", (partial(bce, reduction="sum"), pixels, seen, bce), float(pixels.numel())
        yield "batch_twice", (partial(binary_naive, gamma=2), pixels, seen), 1.0
        yield "batch_twice", (lambda z, t: binary_naive(z, t, 2) * z.numel(), pixels, seen), 2.0
        yield "batch_twice", (partial(ce, reduction="none"), logits, labels), 1.0
        yield "batch_twice", (lambda z, y: ce(z, y) / len(y), logits, labels), 0.5
    for k, length, shift in ((3, 4, 0), (1000, 9, 1), (7, 5, 2)):
        ids = torch.randint(0, k, (3, length), generator=g)
        yield "best_offset", (F.one_hot(ids.roll(-shift, 1), k).half() * 4, ids), shift
    ten = torch.tensor(10.0)
    yield "weight_of_positives", (nn.BCEWithLogitsLoss(weight=ten),), 1.0
    yield "weight_of_positives", (nn.BCEWithLogitsLoss(pos_weight=ten),), 10.0
    yield "weight_of_positives", (nn.BCEWithLogitsLoss(pos_weight=ten.expand(5)), 5), 10.0
    yield "not_finite", {"x": z, "z": z / 0, "y": y}, ["z"]
    live = z.clone().requires_grad_()
    yield "without_gradient", {"z": live, "guess": live.argmax(1), "loss": ce(live, y)}, ["guess"]
    for length in (1, 5, 7):
        cube, ids = torch.randn(3, length, 7), torch.randint(0, 7, (3, length))
        yield "class_axes", (by_token, cube, ids), [2]
        yield "class_axes", (ce, cube.mT, ids), [1]
        yield "class_axes", (lambda z, y: by_token(z.bfloat16(), y), cube, ids), [2]
        yield "class_axes", (nn.CrossEntropyLoss(torch.arange(1.0, 8.0)), cube.mT, ids), [1]
    yield "class_axes", (ce, torch.zeros(2, 7, 7), torch.stack([torch.arange(7)] * 2)), [1]  # each label once
    pair, labels = torch.zeros(1, 2, 2), torch.tensor([[0, 1]])  # by chance, other axes may add up to zero
    yield from (("class_axes", (by_token, pair, labels), [2]) for _ in range(2000))
    # A rate at which no step of the normalisation's weights, which are 1, rounds away.
    for dtype in FORMATS[:3]:
        normed = nn.Sequential(nn.LayerNorm(7), nn.Linear(7, 7), nn.LayerNorm(7), nn.Linear(7, 7)).to(dtype)
        sgd = torch.optim.SGD(normed.parameters(), 100)
        yield "not_moved", (normed, partial(stepped, normed, z.to(dtype), y, sgd)), []
    frozen = nn.Sequential(nn.Linear(7, 2), nn.ReLU(), nn.Linear(2, 7))
    frozen[0].requires_grad_(False)
    still, all_of_them = ["0.weight", "0.bias"], ["0.weight", "0.bias", "2.weight", "2.bias"]
    for rate, lost, names in ((0.1, False, still), (0.0, False, all_of_them), (0.1, True, all_of_them)):
        adam = torch.optim.AdamW(frozen.parameters(), rate)
        yield "not_moved", (frozen, partial(stepped, frozen, z, y, adam, lost)), names
    head = nn.Sequential(nn.Linear(7, 7), nn.Linear(7, 7))
    nn.init.zeros_(head[1].weight)  # the layer before moves with the second step
    yield "not_moved", (head, partial(stepped, head, z, y, torch.optim.SGD(head.parameters(), 0.1))), []


def test_the_five_checks_reveal_a_clip_and_an_overflow(capsys: pytest.CaptureFixture[str]) -> None:
    known: dict[str, Any] = {"math": math, "torch": torch, "F": F}
    [cell] = [c for c in nbformat.read(CHAPTER, as_version=4).cells if "def five_checks" in c.source]
    exec(cell.source, known)
    half, short, double = torch.float16, torch.bfloat16, torch.float64
    for n, k, dtype in ((33, 2, torch.float32), (33, 10, half), (33, 1200, short), (4096, 10, double)):
        z, y = torch.randn(n, k).to(dtype), torch.randint(0, k, (n,))
        a_sum = partial(ce, reduction="sum"), [0, 2, 3, 4]  # its numbers are long, and stay apart
        for loss, apart in ((ce, []), (partial(naive, smallest=1e-15), [2]), (naive, [2]), a_sum):
            known["five_checks"](loss, z, y)
            pairs = [line[22:].split() for line in capsys.readouterr().out.splitlines()]
            seen = [abs(float(a) - float(b)) > 0.02 for a, b in pairs]
            assert [i for i, each in enumerate(seen) if each or pairs[i][0] in ("inf", "nan")] == apart


@pytest.mark.filterwarnings("ignore:reduction")
def test_the_checks_that_return_names_and_numbers() -> None:
    order = (torch.arange(1800) % 10).sort().values
    assert checks()["sorted_by_label"][1](through_a_buffer(order, 700))
    for name, given, expected in returned():
        check = checks()[name][1]
        found = check(**given) if isinstance(given, dict) else check(*given)
        near = pytest.approx(expected, rel=0.02 if name == "batch_twice" else 1e-4)
        assert found == (near if isinstance(expected, float) else expected), name


def test_every_check_is_tried_and_has_five_lines() -> None:
    faults, repairs = cases(2, 3, torch.float32)
    assert faults.keys() == repairs.keys()
    assert checks().keys() == faults.keys() | {name for name, *_ in returned()}
    assert max(lines for lines, _ in checks().values()) <= 5


# -------------------------------------------------------------------------------------------------- sentences


@claim(
    "A fresh classifier should cost about log K",
    on=[(2, 64), (10, 64), (10, 512), (50_257, 16)],
    but_not={"a last layer with weights of the standard deviation 1": (10, 64, 1.0)},
)
def test_a_fresh_network_costs_log_k(k: int, hidden: int, deviation: float = 0.0) -> None:
    torch.manual_seed(int(rng(81).integers(99)))
    model = nn.Sequential(nn.Linear(20, hidden), nn.ReLU(), last := nn.Linear(hidden, k))
    if deviation:
        nn.init.normal_(last.weight, std=deviation)
    with torch.no_grad():
        assert abs(ce(model(torch.randn(128, 20)), torch.randint(0, k, (128,))) - math.log(k)) < 0.1


@claim(
    "In a batch of a single class, PyTorch's weights cancel",
    on=lambda: [(torch.randn(n, 5), [c] * n, 9 * torch.rand(5) + 0.1) for n in (1, 8) for c in (0, 4)],
    but_not={
        "two classes": (torch.tensor([[1.0, 0], [1, 0]]), [0, 1], torch.tensor([1.0, 5])),
        "a weight of zero": (torch.tensor([[1.0, 0]]), [0], torch.tensor([0.0, 20])),
    },
)
def test_weights_of_one_class(z: T, y: list[int], w: T) -> None:
    torch.testing.assert_close(ce(z, torch.tensor(y), w), ce(z, torch.tensor(y)))


@claim(
    "its step for a zero gradient is 0/0",
    on=[torch.float16, (torch.float16, False)],
    but_not={"float32": torch.float32, "bfloat16": torch.bfloat16, "fused": (torch.float16, True)},
)
def test_adam_on_a_zero_gradient(dtype: torch.dtype, fused: bool | None = None) -> None:
    weight = torch.ones(3, dtype=dtype, requires_grad=True)
    adam = torch.optim.Adam([weight], fused=fused)
    (0 * weight.sum()).backward()
    adam.step()
    assert weight.isnan().all()


@claim(
    "−1 raises no error: it trains the last class",
    on=[(n, k) for n in (1, 9) for k in (2, 10, 1000)],
    but_not={"an ignored label": (4, 10, lambda z, y: ce(z, y, ignore_index=-1, reduction="sum"))},
)
def test_an_index_of_minus_one(
    n: int, k: int, loss: Any = lambda z, y: -z.log_softmax(1)[range(len(y)), y].sum()
) -> None:
    z = torch.randn(n, k, requires_grad=True)
    loss(z, torch.full((n,), -1)).backward()
    assert z.grad is not None and (z.grad[:, -1] < 0).all() and (z.grad[:, :-1] >= 0).all()


@claim(
    "A softmax over a single column is 1, whatever the logit, and has no gradient.",
    on=[0.0, -3.0, 1e30, -1e30],
    but_not={"two columns": (1.0, 2)},
)
def test_a_softmax_over_one_column(logit: float, columns: int = 1) -> None:
    z = torch.tensor([[logit, 0.0]])[:, :columns].requires_grad_()
    p = z.softmax(1)[0, 0]
    p.backward()
    assert p == 1 and z.grad is not None and not z.grad.any()


@claim(
    "A loss in float32 does not help, as the gradient returns to float16.",
    on=[(64, 8000), (512, 2000)],
    but_not={
        "few classes": (64, 10),
        "bfloat16": (64, 8000, torch.bfloat16),
        "a scale": (64, 8000, torch.float16, 16),
    },
)
def test_rounded_to_zero(n: int, k: int, dtype: torch.dtype = torch.float16, scale: float = 1 / 256) -> None:
    z = (2 * torch.randn(n, k)).to(dtype).requires_grad_()
    (scale * ce(z.float(), torch.zeros(n, dtype=torch.long))).backward()
    assert z.grad is not None and (z.grad == 0).double().mean() > 0.5


@claim(
    "the total falls below 0 once a task is easy",
    on=[0.3, 0.01, 1e-6],
    but_not={"a hard task": 0.5, "a chance": 2.3},
)
def test_a_learnt_variance(loss: float) -> None:
    best = minimize_scalar(lambda s: math.exp(-s) * loss + s)
    assert best.fun < 0 and best.x == pytest.approx(math.log(loss), abs=1e-5)


@claim(
    "`pos_weight` and class weights multiply the odds that the model learns",
    "Subtract log w from the logits",
    on=[(p, w, how) for p in (0.01, 0.3, 0.9) for w in (0.2, 3.0, 50.0) for how in ("pos_weight", "classes")],
    but_not={"weights of all": (0.3, 3.0, "weight")},
)
def test_weights_multiply_the_odds(p: float, w: float, option: str) -> None:
    def each(z: T, t: T) -> T:
        if option == "classes":
            weight = torch.tensor([1, w], dtype=torch.float64)
            return ce(torch.stack([0 * z, z], 1), t.long(), weight, reduction="none")
        return bce(z, t, reduction="none", **{option: torch.tensor(w, dtype=torch.float64)})

    yes, share = torch.tensor([0.0, 1]).double(), torch.tensor([1 - p, p]).double()
    best = minimize_scalar(lambda z: float(each(torch.full_like(yes, z), yes) @ share))
    assert xent.sigmoid(best.x - math.log(w)) == pytest.approx(p, rel=1e-5)


@claim(
    "it takes no class out of the softmax",
    on=[(k, c) for k in (3, 10) for c in (0, k - 1)],
    but_not={"a logit of -inf": (3, 0, -math.inf)},
)
def test_ignore_index_is_no_mask(k: int, ignored: int, fill: float = 0.0) -> None:
    z, y = torch.randn(40, k), torch.arange(40) % k
    z[:, ignored] = fill
    moved = z.clone()
    moved[:, ignored] += 3
    assert not torch.isclose(ce(z, y, ignore_index=ignored), ce(moved, y, ignore_index=ignored))


@claim(
    "in sequences, zero them: `x.nan_to_num(0, 0, 0)`",
    on=lambda: [(kind, bad) for kind in (nn.LSTM, nn.GRU) for bad in (math.nan, math.inf, -math.inf)],
    but_not={"dropped, which joins the sequences": (nn.LSTM, math.nan, True)},
)
def test_the_padding_of_sequences(kind: Callable[..., nn.Module], bad: float, dropped: bool = False) -> None:
    torch.manual_seed(0)
    layer, x, y = kind(8, 5, batch_first=True), torch.randn(4, 9, 8), torch.randint(0, 5, (4, 9))
    left_out = torch.arange(9) >= torch.tensor([[9], [5], [3], [7]])
    y[left_out], given = -100, x.masked_fill(left_out[..., None], bad)
    slopes = []
    for inputs, labels in ((x, y), (given[y >= 0], y[y >= 0]) if dropped else (given.nan_to_num(0, 0, 0), y)):
        loss = ce(layer(inputs)[0].reshape(-1, 5), labels.flatten())
        slopes.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(layer.parameters()))]))
    torch.testing.assert_close(*slopes)


@claim(
    "Name the arguments, pass logits and tell Keras so, and the libraries agree:",
    on=[(n, k, True) for n in (1, 33) for k in (2, 10, 1000)],
    but_not={"Keras not told": (33, 10, False)},
)
def test_three_libraries_return_one_number(n: int, k: int, told: bool) -> None:
    keras, g = behaviours.keras().losses, rng(82)
    z, y = g.normal(size=(n, k)).astype("float32"), g.integers(0, k, n)
    t = g.dirichlet(np.ones(k), n).astype("float32")
    zt, yt, tt = map(torch.from_numpy, (z, y, t))
    for ours, theirs, kind, target in (
        (xent.cross_entropy(z, y), ce(zt, yt), keras.SparseCategoricalCrossentropy, y),
        (xent.soft_cross_entropy(z, t), ce(zt, tt), keras.CategoricalCrossentropy, t),
        (xent.binary_cross_entropy(z, t), bce(zt, tt), keras.BinaryCrossentropy, t),
    ):
        found = float(theirs), float(kind(from_logits=told)(y_true=target, y_pred=z))
        assert found == pytest.approx((ours, ours), rel=2e-5)
