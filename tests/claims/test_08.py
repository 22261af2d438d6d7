"""What chapter 8 says of losses, and the cells that a reader pastes, tried on faults and repairs of many sizes."""

from __future__ import annotations

import ast
import copy
import math
from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
import torch
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
    cells = nbformat.read(CHAPTER, as_version=4).cells
    known: dict[str, Any] = {"copy": copy, "math": math, "np": np, "torch": torch, "F": F}
    found = {}
    for row, cell in pairwise(cells):
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
Given = list[tuple[Any, ...]]


def naive(z: T, y: T, smallest: float = 0.0) -> T:
    p = z.softmax(1)
    # Not clamp(min=0): from PyTorch 2.15 on no gradient passes at the bound, and this loss would not break.
    return -(p.clamp(min=smallest) if smallest else p).gather(1, y[:, None]).log().mean()


def root_of_one(z: T, y: T) -> T:
    return ce(z, y) + torch.where(z[0, 0] > 0, 0 * z[0, 0], 0 * z[0, 0].sqrt()).nan_to_num()


def binary_naive(z: T, t: T) -> T:
    p = z.sigmoid()
    return -(t * p.log() + (1 - t) * (1 - p).log()).mean()


def focal(z: T, t: T, dtype: torch.dtype = torch.float32) -> T:
    p = z.to(dtype).sigmoid()
    return -(t * (1 - p) ** 2 * p.log() + (1 - t) * p**2 * (1 - p).log()).float().mean()


def focal_of_logits(z: T, t: T) -> T:
    return (torch.exp(-2 * F.softplus((2 * t - 1) * z)) * bce(z, t, reduction="none")).mean()


def normalised(k: int, x: T, y: T, momentum: float = 0.1, dropout: float = 0.0) -> nn.Module:
    """A network that has seen twenty batches, whose running averages lag if the momentum is small."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 9), nn.BatchNorm1d(9, momentum=momentum), nn.Dropout(dropout), nn.Linear(9, k)
    )
    adam = torch.optim.Adam(model.parameters(), 0.1)
    for _ in range(20):
        adam.zero_grad()
        ce(model(x), y).backward()
        adam.step()
    return model


def by_keras(kind: Any) -> Callable[[T, T], float]:
    return lambda q, t: float(kind()(t.numpy(), q.numpy()))


def through_a_buffer(y: T, size: int) -> T:
    """What streaming returns: each next label from a random place of a buffer."""
    places, out, buffer = torch.randint(0, size, (len(y),)).tolist(), [], y[:size].tolist()
    for label, place in zip(y[size:].tolist(), places, strict=False):
        out.append(buffer[place])
        buffer[place] = label
    return torch.tensor(out + buffer)


def times(factor: float) -> Callable[[T, T], T]:
    return lambda z, y: factor * ce(z, y)


def summed(z: T, y: T, weight: T | None = None) -> T:
    return ce(z, y, weight, reduction="sum") / len(y)


def eased(z: T, y: T, weight: T, smoothing: float = 0.0) -> T:
    return ce(z, y, weight, reduction="sum", label_smoothing=smoothing) / len(y)


def by_token(z: T, y: T) -> T:
    return ce(z.movedim(-1, 1), y)


def by_sequence(z: T, y: T) -> T:
    return (ce(z.movedim(-1, 1), y, reduction="none").sum(1) / (y >= 0).sum(1)).mean()


def accuracy(z: T, y: T) -> T:
    return (z.argmax(1) == y).double().mean()


def stepped(model: nn.Module, x: T, y: T) -> None:
    model.zero_grad()
    ce(model(x), y).backward()
    torch.optim.SGD(model.parameters(), 0.1).step()


def cases(n: int, k: int, dtype: torch.dtype) -> dict[str, tuple[Given, Given]]:
    """What each check is given at n rows of k classes: faults, to which it says yes, and repairs. A list times False
    is empty: the check needs more rows or classes, and the chapter says so.
    """
    g = torch.Generator().manual_seed(int(rng(8).integers(1 << 31)))
    torch.manual_seed(0)
    z = 2 * torch.randn(n, k, generator=g, dtype=torch.float64).to(dtype)
    y, x = torch.randint(0, k, (n,), generator=g), torch.randn(n, 4, generator=g)
    t, p, log_p, float16 = F.one_hot(y, k).to(dtype), z.softmax(1), z.log_softmax(1), dtype == torch.float16
    ignored = torch.full_like(y, -100)
    model, lstm, smooth = nn.Linear(4, k), nn.LSTM(4, 4), nn.CrossEntropyLoss(label_smoothing=0.1)
    sampled = torch.multinomial(z.double().softmax(1), 1, generator=g)[:, 0]  # as sure as it should be
    over_time = lambda v: lstm(v)[0]  # noqa: E731  takes rows for time steps
    right, wrong, binary = 60 * t - 30, 30 - 60.0 * t.float(), 50 - 100.0 * t.float()
    q, mask = z.float().roll(1, 1).softmax(1).numpy(), torch.ones(n, n).triu(1) > 0
    each = ce(z.double(), y, reduction="none").sort().values
    padded = torch.stack([torch.cat([y[:9], y[:9]]), torch.cat([y[:9], ignored[:9]])])
    cube, ids = torch.randn(2, k, k, generator=g).to(dtype), torch.randint(0, k, (2, k), generator=g)
    none = torch.arange(1.0, k + 1).double().index_fill(0, torch.tensor([0]), 0.0)  # for the first class
    keras, w, many = behaviours.keras().losses, torch.arange(1.0, k + 1).to(dtype), n > 4000
    sparse, even = keras.SparseCategoricalCrossentropy, torch.arange(n) % 2.0
    bits = even, even[:, None], 0 * even
    half_focal = partial(focal, dtype=torch.float16)
    rawest, learnable = [30 * x + 5] * many, (x @ torch.randn(4, k, generator=g)).argmax(1)
    small = nn.Sequential(nn.Dropout(0.001), nn.Linear(4, k))
    infinite = torch.full((1, k), -torch.inf, dtype=dtype)
    one = infinite.index_fill(1, torch.tensor([0]), 1.0)
    zeros = torch.zeros(30_000, 10)
    return {
        "unrelated": ([(z, y)] * many, [(z + t, y)] * many),
        "starts_high": ([(40 * z, y)] * (n * k > 30), [(z / 20, y), (z / 20 + 5 * t[:1], y[:1].expand(n))]),
        "already_probabilities": (
            [(p,), (p.float(),), (z.sigmoid(),)],
            [(0 * z,), (z.abs() + 1.1,), (torch.cat([p, z.abs() + 1.1]),), (torch.cat([p, 9 * t - 8 / k]),)],
        ),
        "ends_in_sigmoid": (
            [(nn.Sequential(model, nn.Sigmoid()), 0.01 * x)],
            [(model, 0.01 * x), (nn.Linear(4, k, bias=False), x)],
        ),
        "has_a_floor": ([(nn.CrossEntropyLoss(label_smoothing=0.01), y, k)], [(ce, y, k)]),
        "no_gradient": (
            [
                (lambda z, y: naive(z, y, 1e-7), wrong, y),
                (lambda z, t: F.binary_cross_entropy(z.sigmoid(), t), binary, t.float()),
            ],
            [(ce, wrong, y), (bce, binary, t.float()), (summed, wrong, y)],
        ),
        "too_sure": ([(right, (y + 1) % k)] * (n > 1), [(right, y), (0 * z, y), *[(z, sampled)] * many]),
        "modes_differ": (
            [(nn.Sequential(nn.Dropout(0.5), nn.Linear(4, k)), 9 * x, y)] * (n > 1),
            [(model, x, y), (small, 0.01 * x, y)],
        ),
        "averages_lag": (
            [(normalised(k, raw, learnable, 0.01), raw, learnable) for raw in rawest],
            [
                *(
                    (normalised(k, raw, learnable, 0.1, rate), raw, learnable)
                    for raw in rawest
                    for rate in (0, 0.5)
                ),
                *((f, 30 * x, y) for f in (nn.Sequential(nn.Dropout(0.9), model), model)),
            ],
        ),
        "all_alike": (
            [(z[:1],), (z + 2000,), (z[:1].expand(n, k),), (0 * z,), (1e-14 * torch.ones(n, k),)],
            [(t,), (z,)] * (n > 30),
        ),
        "sorted_by_label": (
            [(y.sort().values,), (through_a_buffer(y.sort().values, n // 8 + 1),)] * many,
            [(y,), (y.sort().values[torch.randperm(n, generator=g)],), (torch.arange(n) % k,)],
        ),
        "few_digits": (
            [([ce(z.bfloat16()[i:], y[i:]).item() for i in range(min(n, 9))],), ([2.5, 2.30078125],)],
            [([2.30261, 1.7713],), ([2.5, 1.7713],)],
        ),
        "no_log_probabilities": ([(p,), (z + 1,), (torch.cat([log_p, z + 1]),)], [(log_p,)]),
        "sign_flipped": ([(times(-1), y, k)], [(f, y, k) for f in (ce, times(k), smooth)]),
        "outside": (
            [(2 * t - 1,), (255 * t,), (9 * t - 4,), (30 * z,), (t * math.nan,)],
            [(t,), (p,), (t[:, :1],)],
        ),
        "a_part_is_negative": ([({"a": F.nll_loss(p, y)},)], [({"a": ce(z, y), "b": 0 * ce(z, y)},)]),
        "no_distributions": (
            [
                (p, t),
                (z + 1, t),
                (log_p, 1.2 * t),
                (torch.cat([log_p, p]), torch.cat([t, t])),
                (log_p, 3 * t - 2 * p),
            ],
            [(log_p, t), (log_p, p)],
        ),
        "not_log_k": (
            [(lambda z, t: ce(t, z), z, t), (times(1 / math.log(2)), z, t)],
            [(ce, z, t), (ce, z, y)],
        ),
        "reads_no_logits": (
            [(sparse(), y.numpy(), right.float().numpy() / 60)],
            [(sparse(True), y.numpy(), z.float().numpy())],
        ),
        "counts_each_output": ([(1 - 1 / k, q, np.roll(q > q.max() / 2, 1, 1))] * (n > 9), [(1.0, q, q)]),
        "averages_means": (
            [(each.split([1, n - 1]), y.split([1, n - 1]), float(each[0] + each[1:].mean()) / 2)] * (n > 2),
            [
                (each.split([1, n - 1]), y.split([1, n - 1]), float(each.mean())),
                ([each, 0 * each], [y, ignored], float(each.mean())),
            ],
        ),
        "breaks_when_sure": (
            [
                *((f, y, k) for f in (naive, root_of_one)),
                *((f, b) for b in bits for f in (binary_naive, focal, half_focal)),
            ],
            [
                *((f, y, k) for f in (ce, times(65536))),
                *((f, b) for b in bits for f in (bce, focal_of_logits)),
            ],
        ),
        "each_output_alone": (
            [
                *((bce, z, t), (lambda z, t: bce(z, t, reduction="sum"), 30 * z, t)),
                *(
                    (F.binary_cross_entropy, p.double(), t.double()),
                    (by_keras(keras.BinaryCrossentropy), p.float(), t.float()),
                ),
            ],
            [
                *((ce, z, t), (ce, 30 * z, t), (smooth, z, t), (lambda z, t: ce(z.softmax(1), t), z, t)),
                (by_keras(keras.CategoricalCrossentropy), p.float(), t.float()),
            ],
        ),
        "zero_times_inf": (
            [(z.masked_fill(t.roll(1, 1) > 0, -torch.inf), target) for target in (t, 0.9 * t + 0.1 / k)],
            [(z.masked_fill(t.roll(1, 1) > 0, -1e4), target) for target in (t, 0.9 * t + 0.1 / k)],
        ),
        "nothing_counts": (
            [(ignored,), (y, 0 * w), (0 * y, w - 1, 5), (0 * y, None, 0)],
            [(torch.cat([y, ignored]),), (y,), (0 * y + 1, w - 1)],
        ),
        "nan_where_ignored": (
            [
                (torch.cat([z, infinite]), torch.cat([y, ignored[:1]])),
                (torch.cat([z, -one]), torch.cat([y, ignored[:1]])),
            ],
            [
                (torch.cat([z, one]), torch.cat([y, ignored[:1]])),
                (torch.cat([z, infinite]), torch.cat([y, y[:1]])),
            ],
        ),
        "sees_nothing": ([(mask | torch.eye(n, dtype=torch.bool),)], [(mask,), (mask[None] & mask[0],)]),
        "jumped": (
            [
                ([2.3, *[2.0] * 9, 3.9, *[2.32] * 39],),  # into a point without a gradient
                ([2.3, *[0.5] * 30, *[5.0] * 20],),
                ([2.3] * 49 + [math.nan],),
                ([2.3, *[6.0, 30.0] * 25],),
            ],
            [
                ([2.3, 9.0, *[1.0] * 48],),  # it comes back, as from a step that a scaler skips
                ([2.3, math.nan, *[1.0] * 48],),
                ([0.1, 0.3, 0.05, 0.2] * 25,),
                (list(2 + 0.5 * rng(83).normal(size=300)),),
                ([2.3 * 0.9**i for i in range(50)],),
            ],
        ),
        "half_overflows": (
            [
                (torch.tensor([[5.0, 0]]).repeat(66_000, 1).half(), torch.zeros(66_000).long()),
                (zeros.half(), zeros[:, 0].long()),
            ]
            * (n < 2)
            + [(torch.cat([z, z[:1].masked_fill(t[:1] == 0, torch.inf)]), torch.cat([y, y[:1]]))]
            * (k < 3 and z.element_size() < 4),
            [
                (z, y),
                (zeros, zeros[:, 0].long()),
                (torch.cat([z, z]), torch.cat([y, ignored])),
                (z.float(), ignored),
            ],
        ),
        "gradient_lost": ([(z / 9, y, 1e-7)] * float16, [(z / 9, y, 64.0), (z.float(), y)]),
        "half_weights": ([(copy.deepcopy(model).half(),)], [(model,), (copy.deepcopy(model).bfloat16(),)]),
        "mixes_rows": (
            [(over_time, x), (nn.Softmax(0), z), (nn.BatchNorm1d(4), x)][: n + 1],
            [(nn.Softmax(1), z), (nn.BatchNorm1d(4).eval(), x)],
        ),
        "one_column": (
            [(z[:, :1],), (z[:, :1, None, None],), (z[:, :, None], -1)],
            [(z,), (z[:, 0],), (z, -1), (z[:, :1, None].expand(n, 1, 3), -1)],
        ),
        "too_often": (
            [
                *[(torch.sigmoid(z + 3), torch.bernoulli(z.float().sigmoid(), generator=g))] * (n > 30),
                *[((z.double() + 2 * (t[:1] > 0)).softmax(1), F.one_hot(sampled, k))]
                * many,  # one class of k
            ],
            [
                (z.double().sigmoid(), z.double().sigmoid()),
                (z[:, :1].sigmoid(), z[:, 0].sigmoid()),
                *[(z.double().softmax(1), F.one_hot(sampled, k))] * many,
            ],
        ),
        "tokens_weigh_differently": ([(by_sequence, padded, k)], [(by_token, padded, k)]),
        "skips_targets": (
            [(y, torch.ones(n), int(y[0])), (ignored, torch.ones(n))],
            [(y, torch.ones(n)), (ignored, torch.zeros(n)), (y + k, torch.ones(n), 0)],
        ),
        "padding_counts": (
            [(accuracy, z + 9 * t, y), (summed, z, y), (ce, z, y, 0)][: 2 + (n > 30)],
            [(ce, z, y), (times(3), z, y), (lambda z, y: accuracy(z[y >= 0], y[y >= 0]), z + 9 * t, y)],
        ),
        "ranks_differ": (
            [([n, n + 1], [n, n + 1]), ([4 * n, 4 * n], [n, 3 * n])],
            [([n, n], [n, n]), ([2 * n, 2 * n], [n, 3 * n]), ([k / 3] * 3, [k, 0, 0])],
        ),
        "weights_cancel": (
            [(lambda z, y, v=v: ce(z, y, v), z.double(), y, v) for v in (w.double(), none)] * (n > 30),
            [
                *(
                    (lambda z, y, e=e: eased(z, y, w.to(z), e), z, y, w)
                    for e in (0.0, 0.1, 0.2)[: 1 + 2 * (k < 99)]
                ),
                (ce, z[:1], y[:1], w),
                (lambda z, y: ce(z, y, w.to(z)), z, 0 * y, w),
                *[(lambda z, y: eased(z, y, none), z.double(), y, none)] * (n > 30),
                *[(lambda z, y: summed(z, y, w.to(z)), z, y.where(y > 0, -100), w)] * (n > 30),
            ],
        ),
        "wrong_target": (
            [(z, y[:, None]), (z, t.long()), (z, y.double())],
            [(z, y), (z, t), (cube, ids), (z, y.byte()), (z[0], y[0]), (z[0], t[0])],
        ),
        "shapes_differ": ([(p[:, :1], t[:, 0]), (p[:, 0], t[:, :1])], [(p, t)]),
        "out_of_range": (
            [(y + 1 + k, k), (y - k, k), (ignored, k, 255), (torch.cat([y, y + k]), k)],
            [(y, k), (ignored, k), (y * 0 - 1, k, -1)],
        ),
    }


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_check_finds_the_fault_and_clears_the_repair(size: tuple[int, int], dtype: torch.dtype) -> None:
    wrong = []
    for name, answers in cases(*size, dtype).items():
        for expected, given in zip((True, False), answers, strict=True):
            said = [bool(checks()[name][1](*arguments)) for arguments in given]
            wrong += [(name, expected, said)] * (said != [expected] * len(given))
    assert not wrong


@pytest.mark.filterwarnings("ignore:reduction")
def test_the_checks_that_return_names_and_numbers() -> None:
    ask = {name: check for name, (_, check) in checks().items()}
    z, y, g = torch.randn(256, 7), torch.arange(256) % 7, torch.Generator().manual_seed(3)
    assert ask["factor"](partial(ce, reduction="none"), z, y) == pytest.approx(1, rel=1e-5)
    order = (torch.arange(1800) % 10).sort().values
    assert ask["sorted_by_label"](through_a_buffer(order, 700))
    assert not ask["sorted_by_label"](order[torch.randperm(1800, generator=g)])
    for factor in (256, 4, 1 / 7, 1 / math.log(2), 65536, -1):
        assert ask["factor"](times(factor), z, y) == pytest.approx(factor, rel=1e-5)
    for n, k, dtype in ((1, 2, torch.float64), (4096, 10, torch.float16), (33, 1000, torch.bfloat16)):
        logits, labels = torch.randn(n, k, generator=g).to(dtype), torch.randint(0, k, (n,), generator=g)
        pixels, seen = torch.randn(2, 1, n, n % 9 + 1), (torch.rand(2, 1, n, n % 9 + 1) < 0.3).float()
        teacher = (3 * torch.randn(n, k, generator=g)).softmax(1)
        for reduction, factor in (("mean", 1 / k), ("batchmean", 1)):

            def divergence(z: T, p: T, reduction: str = reduction) -> T:
                return F.kl_div(z.log_softmax(1), p, reduction=reduction)

            assert ask["factor"](divergence, logits, teacher) == pytest.approx(factor, rel=1e-4)
        total = partial(bce, reduction="sum")
        assert ask["factor"](total, pixels, seen, bce) == pytest.approx(pixels.numel(), rel=1e-4)
        for loss, data, ratio in (
            (focal, (pixels, seen), 1),
            (lambda z, t: focal(z, t) * z.numel(), (pixels, seen), 2),
            (partial(ce, reduction="none"), (logits, labels), 1),
            (lambda z, y: ce(z, y) / len(y), (logits, labels), 0.5),
        ):
            assert ask["batch_twice"](loss, *data) == pytest.approx(ratio, rel=0.02)
    for k, length, shift in ((3, 4, 0), (1000, 9, 1), (7, 5, 2)):
        ids = torch.randint(0, k, (3, length), generator=g)
        near = F.one_hot(ids.roll(-shift, 1), k).half() * 4
        assert ask["best_offset"](near, ids) == shift
    weighted = [
        (nn.BCEWithLogitsLoss(weight=torch.tensor([10.0])), 1),
        (nn.BCEWithLogitsLoss(pos_weight=torch.tensor(10.0)), 10),
    ]
    for weighing, ratio in weighted:
        assert ask["weight_of_positives"](weighing) == pytest.approx(ratio)
    assert ask["not_finite"](x=z, z=z / 0, y=y) == ["z"]
    live = z.clone().requires_grad_()
    assert ask["without_gradient"](z=live, guess=live.argmax(1), loss=ce(live, y)) == ["guess"]
    frozen = nn.Sequential(nn.Linear(7, 2), nn.ReLU(), nn.Linear(2, 7))
    frozen[0].requires_grad_(False)
    for rate, order, still in (
        (0.1, "right", ["0.weight", "0.bias"]),
        (0.0, "right", None),
        (0.1, "zeroed", None),
    ):
        adam = torch.optim.AdamW(frozen.parameters(), rate)

        def one_step(adam: Any = adam, order: str = order) -> None:
            adam.zero_grad()
            ce(frozen(z), y).backward()
            if order == "zeroed":
                adam.zero_grad()
            adam.step()

        assert ask["not_moved"](frozen, one_step) == (
            still or [name for name, _ in frozen.named_parameters()]
        )
    head = nn.Sequential(nn.Linear(7, 7), nn.Linear(7, 7))
    nn.init.zeros_(head[1].weight)  # the layer before moves with the second step
    assert ask["not_moved"](head, lambda: stepped(head, z, y)) == []
    for length in (1, 5, 7):
        cube, ids = torch.randn(3, length, 7), torch.randint(0, 7, (3, length))
        assert ask["class_axes"](by_token, cube, ids) == [2] and ask["class_axes"](ce, cube.mT, ids) == [1]
    assert ask["class_axes"](ce, torch.randn(3, 7, 7), torch.randint(0, 7, (3, 7))) == [1]
    embed, attention = nn.Embedding(9, 4), nn.MultiheadAttention(4, 1, batch_first=True)
    ids, document = torch.randint(0, 9, (2, 6), generator=g), torch.tensor([0, 0, 1, 1, 1, 2])
    causal = torch.ones(6, 6, dtype=torch.bool).triu(1)
    for left_out, leaks in ((causal, True), (causal | (document[:, None] != document), False)):

        def attend(ids: T, left_out: T = left_out) -> T:
            out: T = attention(*[embed(ids)] * 3, attn_mask=left_out)[0]
            return out

        assert ask["reads_the_first_document"](attend, ids, 2) == leaks


def test_every_check_is_tried_and_has_five_lines() -> None:
    named = {
        "factor",
        "batch_twice",
        "best_offset",
        "weight_of_positives",
        "not_finite",
        "without_gradient",
        "reads_the_first_document",
        "not_moved",
        "class_axes",
    }
    assert checks().keys() == cases(2, 3, torch.float32).keys() | named
    assert max(lines for lines, _ in checks().values()) <= 5


# -------------------------------------------------------------------------------------------------- sentences


@claim(
    "A double softmax never gets a full nat below the uniform guess",
    on=[2, 3, 10, 1000, 50_257, 10**6],
    but_not={"one softmax": (10, 1)},
)
def test_a_double_softmax_stays_within_a_nat(k: int, softmaxes: int = 2) -> None:
    z = np.where(np.arange(k) == 0, 600.0, 0)
    for _ in range(softmaxes - 1):
        z = xent.softmax(z)
    assert 0 < math.log(k) - xent.cross_entropy(z, 0) < 1


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
    "a target counts more the fewer targets its micro-batch has",
    on=lambda: [(rng(s).permutation(40)[: s + 2] + 1,) for s in range(9)],
    but_not={"the pooled mean": (np.array([1, 3, 9]), torch.cat)},
)
def test_the_weight_of_a_target_in_a_mean_of_means(counts: Any, join: Any = None) -> None:
    losses = torch.ones(int(counts.sum()), requires_grad=True)
    parts = losses.split(counts.tolist())
    (join(parts) if join else torch.stack([part.mean() for part in parts])).mean().backward()
    assert losses.grad is not None
    weights = [float(part[0]) for part in losses.grad.split(counts.tolist())]
    assert (np.diff(np.array(weights)[np.argsort(counts)]) < 0).all()
    assert weights == pytest.approx(1 / (len(counts) * counts))


@claim(
    "In a batch of a single class, PyTorch's weights cancel",
    on=lambda: [
        (torch.randn(n, 5), torch.full((n,), c), 9 * torch.rand(5) + 0.1) for n in (1, 8) for c in (0, 4)
    ],
    but_not={"two classes": (torch.tensor([[1.0, 0], [1, 0]]), torch.tensor([0, 1]), torch.tensor([1.0, 5]))},
)
def test_weights_of_one_class(z: T, y: T, w: T) -> None:
    torch.testing.assert_close(ce(z, y, w), ce(z, y))


@claim(
    "the step for a zero gradient is 0/0",
    on=[torch.float16],
    but_not={"float32": torch.float32, "bfloat16": torch.bfloat16},
)
def test_adam_on_a_zero_gradient(dtype: torch.dtype) -> None:
    weight = torch.ones(3, dtype=dtype, requires_grad=True)
    adam = torch.optim.Adam([weight])
    (0 * weight.sum()).backward()
    adam.step()
    assert weight.isnan().all()


@claim(
    "−1 trains the last class",
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
    "A loss in float32 does not help; the gradient returns to float16.",
    on=[(64, 8000), (512, 2000)],
    but_not={
        "few classes": (64, 10),
        "bfloat16": (64, 8000, torch.bfloat16),
        "a scale": (64, 8000, torch.float16, 16),
    },
)
def test_what_rounds_to_zero(
    n: int, k: int, dtype: torch.dtype = torch.float16, scale: float = 1 / 256
) -> None:
    z = (2 * torch.randn(n, k)).to(dtype).requires_grad_()
    (scale * ce(z.float(), torch.zeros(n, dtype=torch.long))).backward()
    assert z.grad is not None and (z.grad == 0).double().mean() > 0.5


@claim(
    "the total falls below 0 once a task is easy",
    on=[0.3, 0.01, 1e-6],
    but_not={"a hard task": 0.5, "a chance": 2.3},
)
def test_a_learnt_variance(loss: float) -> None:
    s = torch.zeros((), requires_grad=True)
    adam = torch.optim.Adam([s], lr=0.1)
    for _ in range(400):
        adam.zero_grad()
        total = (-s).exp() * loss + s
        total.backward()
        adam.step()
    assert total < 0 and float(s.detach()) == pytest.approx(math.log(loss), abs=0.05)


@claim(
    "what is clipped has no gradient",
    on=[(eps, -math.log(eps) + extra) for eps in (1e-7, 1e-15) for extra in (0.1, 9)],
    but_not={"no clip": (0.0, 20.0), "a smaller margin": (1e-7, 16.0)},
)
def test_a_clip_stops_the_gradient(eps: float, margin: float) -> None:
    z = torch.tensor([[-margin, 0.0]], dtype=torch.float64, requires_grad=True)
    naive(z, torch.tensor([0]), eps).backward()
    assert z.grad is not None and not z.grad.any()


@claim(
    "`pos_weight` and class weights multiply the odds that the model learns",
    "sigmoid(z − log w)",
    on=[(p, w) for p in (0.01, 0.3, 0.9) for w in (0.2, 3.0, 50.0)],
    but_not={"weights of all": (0.3, 3.0, {"weight": torch.tensor(3.0)})},
)
def test_weights_multiply_the_odds(p: float, w: float, option: Any = None) -> None:
    option = option or {"pos_weight": torch.tensor(w)}
    each = lambda z, t: bce(z, torch.tensor(t), **option)  # noqa: E731
    z = torch.zeros((), dtype=torch.float64, requires_grad=True)
    for _ in range(60):  # Newton's method
        (slope,) = torch.autograd.grad(p * each(z, 1.0) + (1 - p) * each(z, 0.0), z, create_graph=True)
        (curvature,) = torch.autograd.grad(slope, z)
        z = (z - (slope / curvature).clamp(-1, 1)).detach().requires_grad_()
    assert float(torch.sigmoid(z.detach() - math.log(w))) == pytest.approx(p, rel=1e-6)


@claim(
    "Leaving it out just before the loss is too late if the layer's input contains such values",
    on=[math.nan, math.inf],
    but_not={"rows left out before the layer": (math.nan, True)},
)
def test_where_rows_of_nan_are_left_out(bad: float, before: bool = False) -> None:
    x, y, model = torch.randn(5, 3), torch.tensor([0, 1, 2, 3, -100]), nn.Linear(3, 4)
    x[4], keep = bad, y != -100
    ce(model(x[keep]) if before else model(x)[keep], y[keep]).backward()
    assert model.weight.grad is not None and model.weight.grad.isnan().any()


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
    "Name the arguments, pass logits and tell Keras so, and the libraries agree:",
    on=[(n, k, True) for n in (1, 33) for k in (2, 10, 1000)],
    but_not={"Keras not told": (33, 10, False)},
)
def test_three_libraries_return_one_number(n: int, k: int, told: bool) -> None:
    keras, g = behaviours.keras().losses, rng(82)
    z, y, t = (
        g.normal(size=(n, k)).astype("float32"),
        g.integers(0, k, n),
        g.dirichlet(np.ones(k), n).astype("float32"),
    )
    zt, yt, tt = map(torch.from_numpy, (z, y, t))
    for ours, theirs, kind, target in (
        (xent.cross_entropy(z, y), ce(zt, yt), keras.SparseCategoricalCrossentropy, y),
        (xent.soft_cross_entropy(z, t), ce(zt, tt), keras.CategoricalCrossentropy, t),
        (xent.binary_cross_entropy(z, t), bce(zt, tt), keras.BinaryCrossentropy, t),
    ):
        assert [float(theirs), float(kind(from_logits=told)(y_true=target, y_pred=z))] == pytest.approx(
            [ours] * 2, rel=2e-5
        )
