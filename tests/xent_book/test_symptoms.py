"""Chapter 8's checks, on every kind of input, with their cause planted and without it.

A kind is a library, a precision, numbers of rows and classes, an axis of the classes and an ignored index. Each check
is planted where its row says that the cause can be: in the loss, in the model, in the call. With its cause a check
must say yes, or that it cannot tell; without it no, or that it cannot tell; and the share of "cannot tell" is bounded
row by row, so that no check hides behind it.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import xent
from adversary import rng
from xent_book import behaviours, symptoms
from xent_book.symptoms import NO, UNSURE, YES

# One worker imports TensorFlow, once.
pytestmark = pytest.mark.xdist_group("frameworks")
F, nn = torch.nn.functional, torch.nn
CHAPTER = Path(__file__).parents[2] / "chapters" / "08_which_loss.ipynb"
ROW = re.compile(r"^\(symptom-([a-z0-9-]+)\)=\n#### (.+?)\n(.*?)(?=^\(symptom-|\Z)", re.M | re.S)
CHECK = re.compile(r"^```python\n(.+?)\n```$", re.M | re.S)


@dataclass(frozen=True)
class Kind:
    """One way in which a reader's arrays may come."""

    library: str
    precision: str
    n: int
    k: int
    second: bool
    ignored: int

    def __str__(self) -> str:
        axis = "second" if self.second else "last"
        return f"{self.library}-{self.precision}-{self.n}x{self.k}-{axis}-{self.ignored}"

    def floats(self, values: Any) -> Any:
        values = np.asarray(values)
        if self.library == "torch":
            return (
                torch.tensor(values.astype(float))
                .to(getattr(torch, self.precision))
                .requires_grad_(values.size < 50)
            )
        if self.library == "keras":
            return behaviours.tensorflow().constant(values.astype(self.precision))
        return values.astype(self.precision)

    def ints(self, values: Any) -> Any:
        values = np.asarray(values, dtype=np.int64)
        if self.library == "torch":
            return torch.tensor(values)
        return behaviours.tensorflow().constant(values) if self.library == "keras" else values

    def classes(self, values: Any) -> Any:
        """Rows with their classes last, or as (B, K, T)."""
        values = np.asarray(values)
        if self.second:
            values = np.moveaxis(
                values.reshape(-1, 1, self.k) if len(values) % 2 else values.reshape(-1, 2, self.k), -1, 1
            )
        return self.floats(values)

    def labels(self, values: Any) -> Any:
        values = np.asarray(values)
        return self.ints(values.reshape(-1, 1 if len(values) % 2 else 2) if self.second else values)


PRECISIONS = {
    "numpy": ("float16", "float32", "float64"),
    "torch": ("float16", "bfloat16", "float32", "float64"),
    "keras": ("float16", "float32", "float64"),
}
ALL = [
    Kind(library, precision, n, k, second, ignored)
    for library in PRECISIONS
    for precision, n, k, second, ignored in itertools.product(
        PRECISIONS[library], (1, 2, 5, 64), (2, 3, 10, 1000), (False, True), (0, 255, -100)
    )
]
Answers = Iterator[tuple[bool, Any]]  # whether the cause was planted, and what the check said


def softmax(z: Any) -> Any:
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def drawn(kind: Kind, scale: float = 1.0) -> tuple[Any, Any, Any]:
    """Logits, labels that are no ignored one, and one-hot rows."""
    rng = np.random.default_rng(kind.n * 1000 + kind.k)
    z = rng.normal(0, scale, (kind.n, kind.k))
    y = rng.integers(1 if kind.ignored == 0 else 0, kind.k, kind.n)
    if kind.ignored == 255:
        y = np.where(y == 255, 254, y)
    return z, y, np.eye(kind.k)[y]


# ------------------------------------------------------------- checks of arrays: every kind, in one test each


def no_signal(k: Kind) -> Answers:
    z, y, _ = drawn(k)
    yield True, symptoms.no_signal(k.classes(np.full_like(z, 0.25)), k.labels(y))
    yield False, symptoms.no_signal(k.classes(z), k.labels(y))


def first_logits(k: Kind) -> Answers:
    z, y, _ = drawn(k, 0.1)
    if k.n > 1:
        y[0] = k.ignored if k.ignored else 0
    wrong = z.copy()
    wrong[np.arange(k.n), (np.where((y >= 0) & (y < k.k), y, 0) + 1) % k.k] += 30
    ask = symptoms.large_first_logits
    yield True, ask(k.classes(wrong), k.labels(y), ignore_index=k.ignored)
    yield False, ask(k.classes(z), k.labels(y), ignore_index=k.ignored)


def outside(k: Kind) -> Answers:
    _, _, t = drawn(k)
    yield True, symptoms.targets_outside(k.floats(2 * t - 1))
    yield True, symptoms.targets_outside(k.floats(255 * t))
    yield False, symptoms.targets_outside(k.floats(t))
    yield False, symptoms.targets_outside(k.floats(t[:, :1]))


def sums(k: Kind) -> Answers:
    p = softmax(drawn(k)[0])
    yield True, symptoms.rows_do_not_sum(k.floats(p * 1.2))
    yield False, symptoms.rows_do_not_sum(k.floats(p))


def columns(k: Kind) -> Answers:
    yield True, symptoms.columns_out_of_order([str(c) for c in range(max(k.k, 11))])
    yield False, symptoms.columns_out_of_order(range(k.k))


def missing(k: Kind) -> Answers:
    p = softmax(drawn(k)[0])
    yield True, symptoms.classes_missing(k.ints(np.ones(k.n)), k.floats(p))
    every = np.arange(max(k.n, k.k)) % k.k
    yield False, symptoms.classes_missing(k.ints(every), k.floats(softmax(np.zeros((len(every), k.k)))))
    yield True, symptoms.classes_missing(k.ints(np.ones(k.n)), k.floats(p[:, 0]))
    yield False, symptoms.classes_missing(k.ints([0, 1]), k.floats([0.2, 0.4]))


def nothing(k: Kind) -> Answers:
    _, y, _ = drawn(k)
    yield True, symptoms.nothing_counts(k.labels(np.full(k.n, k.ignored)), ignore_index=k.ignored)
    yield False, symptoms.nothing_counts(k.labels(y), ignore_index=k.ignored)
    yield False, symptoms.nothing_counts(k.labels(np.r_[y, k.ignored, k.ignored]), ignore_index=k.ignored)


def nan_rows(k: Kind) -> Answers:
    z, y, _ = drawn(k)
    z, y = np.r_[z, z], np.r_[y, y]
    y[0] = k.ignored
    ask = symptoms.nan_where_ignored
    yield False, ask(k.classes(z), k.labels(y), ignore_index=k.ignored)
    bad = z.copy()
    bad[0] = np.nan
    yield True, ask(k.classes(bad), k.labels(y), ignore_index=k.ignored)
    bad[0] = -np.inf
    yield True, ask(k.classes(bad), k.labels(y), ignore_index=k.ignored)
    bad[0, 0] = 0.0  # masked classes beside one that is not
    yield False, ask(k.classes(bad), k.labels(y), ignore_index=k.ignored)
    bad = z.copy()
    bad[1] = np.nan  # a row that counts: another row of the page
    yield False, ask(k.classes(bad), k.labels(y), ignore_index=k.ignored)


def masked_class(k: Kind) -> Answers:
    z, y, t = drawn(k)
    bad = z.copy()
    bad[0, (y[0] + 1) % k.k] = -np.inf
    yield True, symptoms.masked_class(k.floats(bad), k.floats(t))
    yield False, symptoms.masked_class(k.floats(z), k.floats(t))
    yield False, symptoms.masked_class(k.floats(np.where(np.isinf(bad), -1e4, bad)), k.floats(t))


def attention(k: Kind) -> Answers:
    seen = np.ones((k.n, max(k.k, 2)), bool)
    seen[:, 0] = False
    empty = seen.copy()
    empty[-1] = False
    ask = symptoms.sees_nothing
    for planted, mask in ((True, empty), (False, seen)):
        yield planted, ask(k.ints(mask), true_is="seen")
        yield planted, ask(torch.tensor(~mask), true_is="left out")
        yield planted, ask(k.floats(np.where(mask, 0.0, -np.inf)))
    yield False, ask(k.floats(np.zeros((k.n, k.k))))
    yield False, ask(np.ones((k.n, k.k), bool), true_is="seen")


def weights(k: Kind) -> Answers:
    _, y, _ = drawn(k)
    w = np.ones(k.k)
    yield False, symptoms.no_weight_left(k.floats(w), k.labels(np.r_[y, -100, -100]))
    yield False, symptoms.no_weight_left(k.floats(w), k.labels(np.r_[y, k.ignored]), ignore_index=k.ignored)
    w[y] = 0
    yield True, symptoms.no_weight_left(k.floats(w), k.labels(np.r_[y, -100, -100]))


def mean_weight(k: Kind) -> Answers:
    _, y, _ = drawn(k)
    w = np.ones(k.k)
    yield (
        False,
        symptoms.weighted_means_differ(k.floats(w), k.labels(np.r_[y, k.ignored]), ignore_index=k.ignored),
    )
    w[y[0]] = 10
    # PyTorch divides the losses of rows of probabilities by their number.
    yield False, symptoms.weighted_means_differ(k.floats(w), k.floats(np.eye(k.k)[y]))
    yield (
        True,
        symptoms.weighted_means_differ(k.floats(w), k.labels(np.r_[y, k.ignored]), ignore_index=k.ignored),
    )


def finite(k: Kind) -> Answers:
    z, _, _ = drawn(k)
    yield False, symptoms.not_finite(k.classes(z), k.floats(z))
    z[-1, 0] = np.inf
    yield True, symptoms.not_finite(k.floats(np.ones(3)), k.classes(z))


def overflow(k: Kind) -> Answers:
    z = k.classes(drawn(k)[0])
    yield k.precision == "float16", symptoms.mask_overflows(-1e9, z)
    yield False, symptoms.mask_overflows(-1e4, z)
    lowest = torch.finfo(getattr(torch, k.precision)).min  # the row's own remedy
    yield False, symptoms.mask_overflows(lowest, z)
    if k.precision != "float64":
        yield True, symptoms.mask_overflows(lowest * 1.0001, z)
    yield False, symptoms.mask_overflows(-np.inf, z)


def wrong_axis(k: Kind) -> Answers:
    z = np.random.default_rng(k.n).normal(size=(max(k.n, 3), k.k))
    yield False, symptoms.softmax_over_another_axis(k.floats(softmax(z)))
    yield True, symptoms.softmax_over_another_axis(k.floats(softmax(z.T).T))
    cube = np.random.default_rng(k.k).normal(size=(3, 4, k.k))
    axis = -1
    yield False, symptoms.softmax_over_another_axis(k.floats(softmax(cube)), axis=axis)
    over_time = np.moveaxis(softmax(np.moveaxis(cube, 1, -1)), -1, 1)
    yield True, symptoms.softmax_over_another_axis(k.floats(over_time), axis=axis)


def not_summing(k: Kind) -> Answers:
    t = drawn(k)[2]
    yield True, symptoms.targets_do_not_sum(k.floats(2 * t))
    yield False, symptoms.targets_do_not_sum(k.floats(t))


def rate(k: Kind) -> Answers:
    steps = np.arange(8 * k.n)
    yield True, symptoms.rate_too_high(k.floats(1.0 + steps / 64))
    yield False, symptoms.rate_too_high(k.floats(np.full(len(steps) + 50, 2.3)))
    yield True, symptoms.rate_too_high(k.floats(np.where(steps > 5, np.nan, 1.0 + steps)))
    yield False, symptoms.rate_too_high(k.floats(np.log(k.k) / (1.0 + steps)))
    for seed in range(3):  # a model that was trained before, and noise
        yield False, symptoms.rate_too_high(k.floats(1 + rng(seed).normal(0, 0.1, 60)))


def surely_wrong(k: Kind) -> Answers:
    z, y, t = drawn(k)
    rows = max(1, 40 // k.n)
    right = np.tile(z + 3 * t, (rows, 1))
    labels = np.tile(y, rows)
    yield False, symptoms.sure_and_wrong(k.floats(np.zeros_like(right)), k.ints(labels))
    right = np.tile((12.0 + np.log(k.k)) * t, (rows, 1))
    right[0] = -right[0]
    yield True, symptoms.sure_and_wrong(k.floats(right), k.ints(labels))
    g = rng(881)  # labels drawn from the model's own probabilities
    p = np.array([0.99, *np.full(k.k - 1, 0.01 / (k.k - 1))])
    yield (
        False,
        symptoms.sure_and_wrong(
            k.floats(np.tile(np.log(p), (1000, 1))), k.ints(g.choice(k.k, 1000, p=p / p.sum()))
        ),
    )


def zero(k: Kind) -> Answers:
    z, y, t = drawn(k)
    yield True, symptoms.rounds_to_zero(k.floats(90.0 * t), k.ints(y))
    yield False, symptoms.rounds_to_zero(k.floats(z), k.ints(y))


def scaler(k: Kind) -> Answers:
    loss = k.floats(0.7)
    yield True, symptoms.scaled_loss(65536 * float(symptoms.array(loss)), loss)
    yield False, symptoms.scaled_loss(float(symptoms.array(loss)), loss)
    for steps in (4, 16, 256):
        yield False, symptoms.scaled_loss(steps * float(symptoms.array(loss)), loss)


def steps(k: Kind) -> Answers:
    loss = k.floats(2.3)
    yield True, symptoms.nobody_divides(k.floats(4 * 2.3), loss, 4)
    yield False, symptoms.nobody_divides(loss, loss, 4)


def ranks(k: Kind) -> Answers:
    yield True, symptoms.ranks_differ([k.ints(k.n), k.ints(k.n + 5)])
    yield False, symptoms.ranks_differ([k.ints(k.n), k.ints(k.n)])


def perplexity(k: Kind) -> Answers:
    yield True, symptoms.perplexity_overflows(k.floats(800.0))
    yield False, symptoms.perplexity_overflows(k.floats(2.39))
    yield k.precision == "float16", symptoms.perplexity_overflows(k.floats(12.0))
    yield k.precision != "float64", symptoms.perplexity_overflows(k.floats(318.0))
    if k.precision in ("float32", "float64"):
        yield False, symptoms.perplexity_overflows(k.floats(88.71))
        yield k.precision == "float32", symptoms.perplexity_overflows(k.floats(88.73))


def batch_means(k: Kind) -> Answers:
    losses = [np.ones(k.n), np.zeros(k.n + 6)]
    pooled, means = np.concatenate(losses).mean(), np.mean([v.mean() for v in losses])
    yield True, symptoms.mean_of_batch_means([k.floats(v) for v in losses], means)
    yield False, symptoms.mean_of_batch_means([k.floats(v) for v in losses], pooled)


def ignored_is_class(k: Kind) -> Answers:
    yield 0 <= k.ignored < k.k, symptoms.ignored_class(k.ignored, k.k)


def out_of_range(k: Kind) -> Answers:
    _, y, _ = drawn(k)
    ask = symptoms.label_out_of_range
    yield False, ask(k.labels(np.r_[y, k.ignored]), k.k, ignore_index=k.ignored)
    yield True, ask(k.labels(np.r_[y, k.k if k.k != k.ignored else k.k + 1]), k.k, ignore_index=k.ignored)
    yield True, ask(k.labels(np.r_[y, -1]), k.k, ignore_index=k.ignored)


def twice_shifted(k: Kind) -> Answers:
    ids = np.random.default_rng(k.k).integers(1, 1000, (k.n, 6))
    for labels, planted in ((np.roll(ids, -1, 1), True), (ids, False)):
        labels = labels.copy()
        labels[:, -1] = k.ignored
        labels[:, 0] = k.ignored  # a prompt
        yield planted, symptoms.shifted_already(k.ints(labels), k.ints(ids), ignore_index=k.ignored)


def one_against_flat(k: Kind) -> Answers:
    p = np.random.default_rng(1).uniform(size=(k.n, 1))
    yield (
        True,
        symptoms.broadcasts(k.floats(p), k.floats(p[:, 0])),
    )  # PyTorch refuses a batch of one row as well
    yield True, symptoms.broadcasts(k.floats(p[:, 0]), k.floats(p))
    yield True, symptoms.broadcasts(k.floats(p[:1]), k.floats(p[0, 0]))
    yield False, symptoms.broadcasts(k.floats(p), k.floats(p))
    yield False, symptoms.broadcasts(k.floats(p[:, 0]), k.floats(p[:, 0]))
    yield True, symptoms.broadcasts(k.floats(np.ones((2, k.n, 1))), k.floats(np.ones((2, k.n))))


def target_types(k: Kind) -> Answers:
    z, y, t = drawn(k)
    yield True, symptoms.wrong_targets(k.floats(z), k.ints(y[:, None]) if k.k > 1 else k.ints(y))
    yield True, symptoms.wrong_targets(k.floats(z), k.ints(t))
    yield True, symptoms.wrong_targets(k.floats(z), k.floats(y))
    yield False, symptoms.wrong_targets(k.floats(z), k.ints(y))
    yield False, symptoms.wrong_targets(k.floats(z), k.floats(t))
    yield False, symptoms.wrong_targets(k.floats(z[0]), k.floats(t[0]))  # one row without a batch
    yield False, symptoms.wrong_targets(k.floats(z[0]), k.ints(y[0]))
    yield True, symptoms.wrong_targets(k.floats(z[0]), k.ints(t[0]))
    yield True, symptoms.wrong_targets(k.floats(z), k.ints(np.r_[y, y]))
    yield (
        True,
        symptoms.wrong_targets(k.floats(np.ones((k.n, k.k + 1, k.k))), k.ints(np.ones((k.n, k.k + 1)))),
    )
    small = np.asarray(y % 2, np.uint8)
    small = torch.tensor(small) if k.library == "torch" else small
    yield False, symptoms.wrong_targets(k.floats(z), small)
    yield True, symptoms.wrong_targets(k.floats(z[..., None]), small[:, None])


def half(k: Kind) -> Answers:
    if k.library != "torch" or k.second:
        return
    rows = 30_000 if k.k < 1000 else 70
    z, y = torch.zeros(rows, k.k), torch.zeros(rows).long()
    if k.k < 1000:
        z[:, 1] = 5.0
    kind = getattr(torch, k.precision)
    yield k.precision == "float16" and k.k < 1000, symptoms.half_overflows(F.cross_entropy, z.to(kind), y)
    if k.k == 2:  # the number of rows is inf in float16, and the loss 0
        many, none = torch.zeros(66_000, 2, dtype=kind), torch.zeros(66_000).long()
        yield k.precision == "float16", symptoms.half_overflows(F.cross_entropy, many, none)
    z[0, 0] = 1e5
    yield k.precision == "float16", symptoms.half_overflows(F.cross_entropy, z.to(kind), y)


def weight_shapes(k: Kind) -> Answers:
    """Weights for the classes, for rows as a column, or of a length that is neither."""
    ask, z = symptoms.weights_of_another_shape, k.floats(drawn(k)[0])
    yield False, ask(k.floats(np.ones(k.k)), z)
    yield False, ask(k.floats(np.ones((k.n, 1))), z)
    yield k.n not in (1, k.k), ask(k.floats(np.ones(k.n)), z)
    yield True, ask(k.floats(np.ones(k.k + 1)), z)
    cube = k.floats(np.ones((2, k.k, 7)))
    yield (
        True,
        ask(k.floats(np.ones(k.k + 5)), cube) if k.k != 2 else symptoms.Answer(True, "7 fits the last axis"),
    )
    yield False, ask(k.floats(np.ones((k.k, 1))), cube)


BY_ARRAYS: dict[str, tuple[Callable[[Kind], Answers], float]] = {
    "stuck-at-log-k": (no_signal, 0),
    "start-far-from-log-k": (first_logits, 0.15),
    "negative-binary-loss": (outside, 0),
    "rows-that-do-not-sum": (sums, 0),
    "labels-sorted-as-text": (columns, 0),
    "one-class-in-the-labels": (missing, 0),
    "all-ignored": (nothing, 0),
    "exactly-zero": (nothing, 0),
    "nan-in-an-ignored-row": (nan_rows, 0.1),
    "masked-class-with-soft-target": (masked_class, 0),
    "attention-masked-out": (attention, 0),
    "weights-sum-to-zero": (weights, 0.01),
    "two-weighted-means": (mean_weight, 0.4),
    "not-finite-inputs": (finite, 0),
    "mask-overflows-half": (overflow, 0),
    "softmax-over-the-batch": (wrong_axis, 0),
    "labels-that-do-not-sum": (not_summing, 0),
    "rate-too-high": (rate, 0.5),
    "validation-loss-rises": (surely_wrong, 0.34),
    "certain-and-zero": (zero, 0),
    "loss-scaling": (scaler, 0.4),
    "loss-grows-with-steps": (steps, 0),
    "ranks-disagree": (ranks, 0),
    "perplexity-overflows": (perplexity, 0.15),
    "perplexity-depends-on-batches": (batch_means, 0),
    "ignored-class-is-predicted": (ignored_is_class, 0),
    "label-out-of-range": (out_of_range, 0),
    "shifted-twice": (twice_shifted, 0),
    "target-size": (one_against_flat, 0),
    "multi-target": (target_types, 0),
    "weight-shape": (weight_shapes, 0.1),
    "half-precision-mean": (half, 0),
}


def counted(planted: Callable[[Kind], Answers], kinds: list[Kind]) -> tuple[Counter[Any], list[Any]]:
    """How often each answer comes, by library and cause; and the answers that are wrong."""
    wrong, counts = [], Counter()
    for kind in kinds:
        for cause, said in planted(kind):
            counts[kind.library, cause, str.__str__(str(said).split(":")[0])] += 1
            if said == (NO if cause else YES):
                wrong.append((str(kind), cause, str(said)))
    return counts, wrong


def judge(planted: Callable[[Kind], Answers], kinds: list[Kind], bound: float) -> None:
    """Never wrong; both answers are given; and "cannot tell" no oftener than a share of the times."""
    counts, wrong = counted(planted, kinds)
    assert not wrong, wrong[:5]
    seen = {(cause, said) for _, cause, said in counts}
    assert (True, YES) in seen and (False, NO) in seen
    unsure = sum(n for (*_, said), n in counts.items() if said == UNSURE)
    assert unsure <= bound * sum(counts.values()), counts


@pytest.mark.slow
@pytest.mark.parametrize("slug", BY_ARRAYS)
def test_a_check_of_arrays_on_every_kind(slug: str) -> None:
    """Library, precision, rows, classes, axis and ignored index, each with each."""
    judge(BY_ARRAYS[slug][0], ALL, BY_ARRAYS[slug][1])


# ------------------------------------------------- checks that ask the loss, on kinds that cross each pair of traits


def pairs(kind: Kind) -> set[tuple[Any, ...]]:
    """Each trait's value beside each other trait's."""
    return set(itertools.combinations(((f.name, getattr(kind, f.name)) for f in fields(kind)), 2))


def crossed() -> list[Kind]:
    """The corners of each library, and kinds drawn until each pair of values has occurred; XENT_SEED draws others."""
    most = {"numpy": "float64", "torch": "bfloat16", "keras": "float64"}
    chosen = [Kind(a, "float16", 1, 2, False, 0) for a in most] + [
        Kind(a, p, 64, 1000, True, -100) for a, p in most.items()
    ]
    left = set().union(*map(pairs, ALL)).difference(*map(pairs, chosen))
    g = rng(880)
    while left:
        some = [ALL[n] for n in g.integers(0, len(ALL), 60)]
        best = max(some, key=lambda kind: len(pairs(kind) & left))
        if pairs(best) & left:
            chosen.append(best)
            left -= pairs(best)
    return chosen


SOME = crossed()


def focal(z: Any, y: Any, gamma: float) -> Any:
    each = F.cross_entropy(z, y, reduction="none")
    return ((1 - (-each).exp()) ** gamma * each).mean()


@functools.cache
def losses(library: str, k: int = 0) -> SimpleNamespace:
    """One loss for each cause, of arrays, of tensors or of Keras; with k, those that hold a weight for each class."""
    w = np.linspace(1, 4, k)
    if library == "numpy":
        ce = xent.cross_entropy
        if k:
            return SimpleNamespace(
                weighed=partial(ce, weight=w), summed=partial(ce, weight=w, reduction="sum")
            )
        own = SimpleNamespace(
            plain=ce, probs=xent.log_loss, nll=xent.nll, soft=xent.soft_cross_entropy,
            smooth=partial(ce, label_smoothing=0.1), skips=partial(ce, ignore_index=-1),
            twice=lambda z, y: ce(xent.softmax(z), y), negative=lambda z, y: -ce(z, y),
            bits=lambda z, y: ce(z, y) / np.log(2), half=lambda z, y: ce(z.astype("float16"), y),
            binary=xent.binary_cross_entropy, binary_probs=xent.binary_log_loss,
            binary_twice=lambda z, t: xent.binary_cross_entropy(1 / (1 + np.exp(-z)), t),
            naive=naive, zero_log=lambda p, t: -(t * np.log(p)).sum(1).mean(),
            clipped=lambda p, t: -(t * np.log(np.clip(p, 1e-7, 1))).sum(1).mean(),
            by_classes=lambda z, t: -(t * xent.log_softmax(z)).mean(),
            divergence=lambda q, p: (p * (np.log(p) - np.log(q))).sum(-1).mean(),
            wraps=lambda z, y: -xent.log_softmax(z)[np.arange(len(y)), y].mean(),
            drops=lambda z, y, **options: ce(z, y), in_place=in_place, tokens=ce,
        )  # fmt: skip
    elif library == "torch":
        ce = F.cross_entropy
        if k:
            v = torch.tensor(w)
            return SimpleNamespace(
                weighed=partial(ce, weight=v), summed=partial(ce, weight=v, reduction="sum")
            )
        bce = F.binary_cross_entropy_with_logits
        own = SimpleNamespace(
            plain=ce, probs=lambda p, y: F.nll_loss(p.log(), y), nll=F.nll_loss, soft=ce,
            smooth=partial(ce, label_smoothing=0.1), skips=partial(ce, ignore_index=-1),
            twice=lambda z, y: ce(z.softmax(1), y), negative=lambda z, y: -ce(z, y),
            bits=lambda z, y: ce(z, y) / np.log(2), half=lambda z, y: ce(z.half(), y),
            binary=bce, binary_probs=F.binary_cross_entropy, binary_twice=lambda z, t: bce(z.sigmoid(), t),
            naive=naive_torch, zero_log=lambda p, t: -(t * p.log()).sum(1).mean(),
            clipped=lambda p, t: -(t * p.clamp(1e-7, 1).log()).sum(1).mean(),
            by_classes=nn.KLDivLoss(), divergence=nn.KLDivLoss(reduction="batchmean"),
            fades=F.binary_cross_entropy, cut=lambda z, y: ce(z.detach(), y),
            drops=lambda z, y, **options: ce(z, y), tokens=tokens, shifts=lambda z, y: tokens(z[:, :-1], y[:, 1:]),
            means=sequences(1), focal=lambda z, y: focal(z, y, 0.5), focal_two=lambda z, y: focal(z, y, 2.0),
        )  # fmt: skip
    else:
        tf, of = behaviours.tensorflow(), behaviours.keras().losses
        sparse = of.SparseCategoricalCrossentropy
        ce = sparse(from_logits=True)
        if k:
            v = tf.constant(w, "float32")

            def summed(y: Any, z: Any) -> Any:
                each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, tf.cast(z, "float32"))
                return tf.reduce_sum(tf.gather(v, y) * each)

            def weighed(y: Any, z: Any) -> Any:
                return summed(y, z) / tf.reduce_sum(tf.gather(v, y))

            return SimpleNamespace(weighed=weighed, summed=summed)
        own = SimpleNamespace(
            plain=ce, probs=sparse(), soft=of.CategoricalCrossentropy(from_logits=True),
            smooth=of.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
            skips=sparse(from_logits=True, ignore_class=-1),
            twice=lambda y, z: ce(y, tf.nn.softmax(z)), negative=lambda y, z: -ce(y, z),
            bits=lambda y, z: ce(y, z) / np.log(2), half=lambda y, z: ce(y, tf.cast(z, "float16")),
            binary=of.BinaryCrossentropy(from_logits=True), binary_probs=of.BinaryCrossentropy(),
            binary_twice=lambda t, z: of.binary_crossentropy(t, tf.sigmoid(z), from_logits=True),
            naive=lambda y, z: -tf.reduce_mean(
                tf.math.log(tf.gather(tf.exp(z) / tf.reduce_sum(tf.exp(z), 1, keepdims=True), y, batch_dims=1))
            ),
            clipped=of.CategoricalCrossentropy(), tokens=ce, divergence=of.KLDivergence(),
            cut=lambda y, z: ce(y, tf.stop_gradient(z)),
            focal=lambda y, z: tf.reduce_mean(
                (1 - tf.exp(-(l := tf.nn.sparse_softmax_cross_entropy_with_logits(y, z)))) ** 0.5 * l
            ),
        )  # fmt: skip
    return own


def with_cause(check: Callable[..., Any], yes: str, no: str) -> Callable[[Kind], Answers]:
    """A check that is asked about the loss alone, for losses with the cause and without it."""

    def planted(k: Kind) -> Answers:
        if k.library == "numpy" and check.__name__.startswith("gradient"):
            return  # arrays have no gradient
        for cause, names in ((True, yes), (False, no)):
            for name in names.split():
                if hasattr(losses(k.library), name):
                    yield cause, check(getattr(losses(k.library), name))

    return planted


def a_softmax_too_many(k: Kind) -> Answers:
    (z, y, _), of, ask = drawn(k, 1.3), losses(k.library), symptoms.double_softmax
    yield True, ask(of.plain, k.classes(softmax(z)), k.labels(y))
    yield True, ask(of.twice, k.classes(z), k.labels(y))
    yield False, ask(of.plain, k.classes(z), k.labels(y))
    yield False, ask(of.probs, k.classes(softmax(z)), k.labels(y))


def a_sigmoid_too_many(k: Kind) -> Answers:
    z = np.resize([-3.0, 0.4, 2.0], (k.n, 1))
    of, ask, p = losses(k.library), symptoms.double_sigmoid, 1 / (1 + np.exp(-z))
    yield True, ask(of.binary, k.floats(p))
    yield True, ask(of.binary, k.floats(np.resize(p, (9, k.k))))
    yield False, ask(of.binary, k.floats(np.full((9, k.k), np.nan)))
    yield True, ask(of.binary_twice, k.floats(z))
    yield True, ask(of.binary, k.floats(np.resize(p, 8)))
    yield False, ask(of.binary, k.floats(z))
    yield False, ask(of.binary, k.floats(z[:, 0]))
    yield False, ask(of.binary_probs, k.floats(p))


def log_probabilities(k: Kind) -> Answers:
    if hasattr(losses(k.library), "nll"):
        z, of, ask = drawn(k)[0], losses(k.library), symptoms.no_log_probabilities
        axis = 1 if k.second else -1
        yield True, ask(of.nll, k.classes(softmax(z)), axis=axis)
        yield True, ask(of.nll, k.classes(z + 3), axis=axis)
        yield False, ask(of.nll, k.classes(np.log(softmax(z))), axis=axis)
        yield False, ask(of.plain, k.classes(z), axis=axis)


def swapped(k: Kind) -> Answers:
    z, y, t = drawn(k)
    of, ask = losses(k.library), symptoms.swapped_arguments
    right = (lambda a, b: (b, a)) if k.library == "keras" else (lambda a, b: (a, b))
    for pair in ((k.floats(z), k.ints(y)), (k.floats(z), k.floats(t))):
        yield False, ask(of.plain, *right(*pair))
        yield True, ask(of.plain, *right(*pair)[::-1])


def given_logits(k: Kind) -> Answers:
    z, of, ask = drawn(k)[0], losses(k.library), symptoms.logits_as_probabilities
    z[0, 0] -= 9
    yield True, ask(of.probs, k.classes(z))
    yield False, ask(of.probs, k.classes(softmax(z)))
    yield False, ask(of.plain, k.classes(z))


def between(k: Kind) -> Answers:
    z, of, ask = (
        np.resize([-3.0, 0.4, 2.0], (k.n + 8, 1)),
        losses(k.library),
        symptoms.logits_as_probabilities,
    )
    yield True, ask(of.binary_probs, k.floats(z))
    yield True, ask(of.binary_probs, k.floats(z[:, 0]))
    yield False, ask(of.binary_probs, k.floats(1 / (1 + np.exp(-z))))
    yield False, ask(of.binary_probs, k.floats(1 / (1 + np.exp(-z[:, 0]))))
    yield False, ask(of.binary, k.floats(z))


def of_a_softmax(k: Kind) -> Answers:
    z, of, ask = drawn(k)[0], losses(k.library), symptoms.binary_loss_of_a_softmax
    yield True, ask(of.binary_probs, k.floats(softmax(z)))
    yield False, ask(of.binary_probs, k.floats(1 / (1 + np.exp(-z[:, :1]))))
    yield False, ask(of.probs, k.floats(softmax(z)))


def digits(k: Kind) -> Answers:
    z, of, ask = drawn(k)[0], losses(k.library), symptoms.few_digits
    yield True, ask(of.half)
    yield "float16" in k.precision, ask(of.plain, logits=k.floats(z))
    yield "float16" in k.precision, ask(of.plain, loss_value=k.floats(2.5))
    yield False, ask(of.plain, logits=k.floats(z), loss_value=np.float32(2.7041))  # cast before the loss
    yield True, ask(of.plain, logits=k.floats(z), loss_value=2.703125)  # stored so, whatever the logits


def clips(k: Kind) -> Answers:
    z, of, ask = drawn(k)[0], losses(k.library), symptoms.clipped
    yield True, ask(of.clipped)
    yield False, ask(of.plain)
    if hasattr(of, "nll"):
        floored = np.maximum(np.log(softmax(9 * np.r_[z, -z])), np.log(1e-5))
        yield bool((floored == np.log(1e-5)).sum() > 1), ask(of.nll, k.floats(floored))
        yield False, ask(of.nll, k.floats(np.log(softmax(z))))


def ranks_of_targets(k: Kind) -> Answers:
    """One-hot rows in floats and in integers, labels (N,) and (N, 1), in whole numbers and in floats."""
    (z, y, t), of, ask = drawn(k), losses(k.library), symptoms.targets_of_another_rank
    z = k.floats(z)
    for rows in (k.floats(t), k.ints(t)):
        yield k.library != "torch", ask(of.plain, z, rows)
        yield False, ask(of.soft, z, rows)
    for labels in (k.ints(y), k.ints(y[:, None]), k.floats(y)):
        yield False, ask(of.plain, z, labels)
        yield k.library != "torch", ask(of.soft, z, labels)


def one_column(k: Kind) -> Answers:
    z, of, ask = drawn(k)[0], losses(k.library), symptoms.one_column
    yield True, ask(of.plain, k.floats(z[:, :1]))
    yield False, ask(of.plain, k.floats(z))
    yield False, ask(of.binary, k.floats(z[:, :1]))


def with_weights(check: Callable[..., Any], other: str) -> Callable[[Kind], Answers]:
    def planted(k: Kind) -> Answers:
        z = k.floats(drawn(k)[0])
        yield True, check(losses(k.library, k.k).weighed, z)
        yield False, check(losses(k.library).plain, z)
        yield other == "bends", check(losses(k.library, k.k).summed, z)

    return planted


def flipped(k: Kind) -> Answers:
    z = k.classes(drawn(k)[0])
    yield True, symptoms.sign_flipped(losses(k.library).negative, z)
    yield False, symptoms.sign_flipped(losses(k.library).plain, z)


def padded(k: Kind) -> Answers:
    z, y, _ = drawn(k)
    z, y = np.r_[z, z], np.r_[y, y]
    of, ask = losses(k.library), symptoms.padding_counts
    pad = np.arange(2 * k.n) >= k.n
    yield True, ask(of.plain, k.floats(z), k.ints(y), pad)
    yield False, ask(of.skips, k.floats(z), k.ints(np.where(pad, -1, y)), pad)
    square = np.random.default_rng(k.n).normal(
        size=(k.n, min(k.k, 9), min(k.k, 9))
    )  # as many positions as classes
    at = np.ones(square.shape[:2]).cumsum(1) > 1
    labels = np.zeros(at.shape)
    if k.library == "torch":
        yield True, ask(F.cross_entropy, k.floats(square), k.ints(labels), at)
        yield False, ask(F.cross_entropy, k.floats(square), k.ints(np.where(at, -100, labels)), at)


def never(k: Kind) -> Answers:
    ids = np.random.default_rng(k.n).integers(0, 900, (k.n, 6))
    labels = np.where(np.arange(6) < 2, k.ignored, ids)  # a prompt
    of, ask = losses(k.library), symptoms.never_shifted
    yield True, ask(of.tokens, k.ints(labels), k.ints(ids), ignore_index=k.ignored)
    yield False, ask(of.tokens, k.ints(np.roll(labels, -1, 1)), k.ints(ids), ignore_index=k.ignored)
    if hasattr(of, "shifts"):
        yield False, ask(of.shifts, k.ints(labels), k.ints(ids), ignore_index=k.ignored)


def layout(k: Kind) -> Answers:
    cube = np.random.default_rng(1).normal(size=(max(k.n, 2), 4, k.k))
    y = k.ints(np.zeros(cube.shape[:2]))
    last = k.library != "torch"
    for second in (False, True):
        z = k.floats(np.moveaxis(cube, -1, 1) if second else cube)
        yield second == last, symptoms.classes_on_the_last_axis(losses(k.library).plain, z, y)


def divergences(k: Kind) -> Answers:
    """p and q that are distributions, or not; PyTorch takes log q, Keras and the one of arrays q."""
    z, _, t = drawn(k)
    q, p = softmax(z), 0.9 * t + 0.1 / k.k
    of, ask = losses(k.library).divergence, symptoms.no_distributions
    if k.library == "torch":
        yield True, ask(of, k.floats(q), k.floats(p))
        yield True, ask(of, k.floats(z + 3), k.floats(p))
    first = np.log if k.library == "torch" else np.asarray
    yield True, ask(of, k.floats(first(2 * q)), k.floats(p))
    yield True, ask(of, k.floats(first(q)), k.floats(0.3 * p))
    yield False, ask(of, k.floats(first(q)), k.floats(p))


def flat(k: Kind) -> Answers:
    """Labels and predictions (N,), in Keras's binary loss; one row alone has nothing to spread to."""
    rows = np.random.default_rng(k.n)
    y, p = rows.integers(0, 2, k.n).astype(float), rows.uniform(0.1, 0.9, (k.n, 1))
    of, ask = losses(k.library).binary_probs, symptoms.flat_batch
    yield k.library == "keras" and k.n > 1, ask(of, k.floats(y), k.floats(p[:, 0]))
    yield False, ask(of, k.floats(y), k.floats(p))
    yield False, ask(of, k.floats(y[:, None]), k.floats(p))


def normalised(k: Kind) -> Answers:
    """A layer with batch normalisation in training mode, or that of each row."""
    z, ask = drawn(k)[0], symptoms.depends_on_other_rows

    def of_batch(x: Any) -> Any:
        return (x - x.mean(0)) / (x.std(0) + 0.1)

    if k.library == "torch":
        torch.manual_seed(k.n)
        layer = nn.Sequential(nn.Linear(k.k, 4), nn.BatchNorm1d(4)).to(getattr(torch, k.precision))
        yield True, ask(layer, k.floats(z))
        yield False, ask(layer.eval(), k.floats(z))
        yield False, ask(nn.LayerNorm(k.k).to(getattr(torch, k.precision)), k.floats(z))
        drops = nn.Sequential(nn.Linear(k.k, 64), nn.Dropout(0.5)).to(getattr(torch, k.precision))
        yield False, ask(drops, k.floats(z))
    elif k.library == "keras":
        layers = behaviours.keras().layers
        layer = layers.BatchNormalization()
        yield True, ask(lambda x: layer(x, training=True), k.floats(z))
        yield False, ask(lambda x: layer(x, training=False), k.floats(z))
    else:
        yield True, ask(of_batch, k.floats(z))
        yield False, ask(lambda x: 2 * x, k.floats(z))


def modes(k: Kind) -> Answers:
    """Dropout in a model, and in none of its modes."""
    z, ask = 3 + drawn(k)[0], symptoms.modes_differ
    if k.library == "torch":
        model = nn.Sequential(nn.Dropout(0.5), nn.Flatten(0)).to(getattr(torch, k.precision))
        before = model.training
        yield True, ask(model, k.floats(z))
        assert model.training == before
        yield False, ask(nn.LayerNorm(k.k).to(getattr(torch, k.precision)).eval(), k.floats(z))
    elif k.library == "keras":
        layers = behaviours.keras().layers
        yield True, ask(layers.Dropout(0.5, seed=1), k.floats(z))
        yield False, ask(layers.LayerNormalization(), k.floats(z))


def accumulates(k: Kind) -> Answers:
    """Micro-batches of unequal counts, averaged one by one or pooled, in PyTorch."""
    if k.library != "torch":
        return
    g, dtype = (
        torch.Generator().manual_seed(k.n),
        torch.float64 if "16" in k.precision else getattr(torch, k.precision),
    )
    torch.manual_seed(k.k)
    model = nn.Linear(2, k.k).to(dtype)
    y = torch.randint(1 if k.ignored == 0 else 0, k.k, (2 * k.n + 1,), generator=g)
    y = torch.where(y == k.ignored, 1, y)
    y = torch.cat([y, torch.full((2,), k.ignored)])
    whole = (torch.randn(len(y), 2, generator=g).to(dtype), y)
    micro = [tuple(v[:1] for v in whole), tuple(v[1:] for v in whole)]
    total = int((y != k.ignored).sum())

    def means(model: Any, batches: Any) -> None:
        for x, labels in batches:
            (F.cross_entropy(model(x), labels, ignore_index=k.ignored) / len(batches)).backward()

    def pooled(model: Any, batches: Any) -> None:
        for x, labels in batches:
            (F.cross_entropy(model(x), labels, ignore_index=k.ignored, reduction="sum") / total).backward()

    def whole_pass(model: Any, batch: Any) -> None:
        F.cross_entropy(model(batch[0]), batch[1], ignore_index=k.ignored).backward()

    for cause, step in ((True, means), (False, pooled)):
        yield cause, symptoms.accumulation(model, micro, whole, step, reference=whole_pass)


def weight_formats(k: Kind) -> Answers:
    """Weights of a layer as they train, and frozen ones beside a layer in float32."""
    if k.library != "torch":
        return
    half = nn.Linear(k.k, 2).to(getattr(torch, k.precision))
    yield k.precision == "float16", symptoms.half_weights(half)
    yield False, symptoms.half_weights(nn.Sequential(half.requires_grad_(False), nn.Linear(2, 2)))


s = symptoms  # for short
BY_KIND: dict[str, Callable[[Kind], Answers]] = {
    "floor-of-a-double-softmax": a_softmax_too_many, "floor-of-a-double-sigmoid": a_sigmoid_too_many,
    "floor-of-smoothing": with_cause(s.smoothing_floor, "smooth", "plain soft"),
    "negative-loss": log_probabilities, "swapped-arguments": swapped, "from-logits-forgotten": given_logits,
    "between-0-and-1": between, "binary-loss-of-two-outputs": of_a_softmax,
    "bits-for-nats": with_cause(s.other_unit, "bits", "plain smooth"), "bfloat16-steps": digits,
    "log-of-a-softmax": with_cause(s.log_of_a_softmax, "naive", "plain soft"),
    "zero-times-log-zero": with_cause(s.zero_times_log_zero, "zero_log", "probs clipped"),
    "clipped-and-stuck": clips, "vanished-binary-gradient": with_cause(s.gradient_fades, "fades", "binary plain"),
    "gradient-missing": with_cause(s.gradient_missing, "cut", "plain binary"), "sign-flipped": flipped,
    "one-column-of-logits": one_column, "arguments-changed": with_cause(s.changes_arguments, "in_place", "plain"),
    "rare-class-too-often": with_weights(s.weights_bend, "bends"),
    "weights-and-batch-size": with_weights(s.divides_by_weights, ""),
    "mean-over-classes": with_cause(s.divides_by_classes, "by_classes", "plain binary"),
    "weights-without-effect": with_cause(s.weights_dropped, "drops", "plain"),
    "generates-too-short": with_cause(s.sequence_means, "means", "tokens"),
    "padding-counts": padded, "minus-one-is-a-class": with_cause(s.minus_one_is_a_class, "wraps", "plain skips"),
    "class-axis-second": layout, "never-shifted": never, "negative-kl": divergences, "weights-of-a-1d-batch": flat,
    "kl-k-times-too-small": with_cause(s.divides_by_classes, "by_classes", "divergence"),
    "batch-normalisation": normalised, "accumulation-changed-the-model": accumulates,
    "half-precision-weights": weight_formats, "keras-rank": ranks_of_targets, "validation-loss-lower": modes,
    "focal-gradient": with_cause(s.gradient_not_finite, "focal", "plain binary focal_two"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("slug", BY_KIND)
def test_a_check_that_asks_the_loss_on_kinds(slug: str) -> None:
    """The cause in the loss, in the model and in the call, in every library."""
    judge(BY_KIND[slug], SOME, 0.25)


# --------------------------------------------------- checks that ask the loss: in the loss, in the model, in the call

Case = tuple[bool, Callable[[], Any]]
K10 = torch.linspace(1, 4, 10)


def sequences(power: float, pad: int = -100) -> Callable[..., Any]:
    def loss(z: Any, y: Any) -> Any:
        each = F.cross_entropy(z.movedim(-1, 1), y, reduction="none", ignore_index=pad)
        return (each.sum(1) / (y != pad).sum(1) ** power).mean()

    return loss


def tokens(z: Any, y: Any) -> Any:
    return F.cross_entropy(z.movedim(-1, 1), y)


def in_place(z: Any, y: Any) -> Any:
    z -= z.max(1, keepdims=True)
    return xent.cross_entropy(z, y)


def naive(z: Any, y: Any) -> Any:
    return -np.log((np.exp(z) / np.exp(z).sum(1, keepdims=True))[np.arange(len(y)), y]).mean()


def naive_torch(z: Any, y: Any) -> Any:
    return -(z.exp() / z.exp().sum(1, keepdim=True)).gather(1, y[:, None]).log().mean()


def binary_with_penalty(z: Any, y: Any) -> Any:
    return -F.cross_entropy(z, y) + 1e-3 * z.logsumexp(1).pow(2).mean()


@functools.cache
def by_loss() -> dict[str, list[Case]]:
    """(Whether the cause is there, the check's call), row by row: the review's cases among them."""
    s, rng = symptoms, np.random.default_rng(3)
    keras = behaviours.keras().losses
    z, y = torch.tensor(rng.normal(size=(16, 10))), torch.tensor(rng.integers(0, 10, 16))
    p, t = z.softmax(1), F.one_hot(y, 10).double()
    b, labels = torch.tensor(rng.normal(size=(16, 1))), torch.tensor(rng.integers(0, 2, (16, 1))).double()
    cube = torch.tensor(rng.normal(size=(4, 10, 6)))
    cube_y = torch.tensor(rng.integers(0, 10, (4, 6)))
    sparse, sparse_logits = (
        keras.SparseCategoricalCrossentropy(),
        keras.SparseCategoricalCrossentropy(from_logits=True),
    )
    ce, bce, logits_bce = nn.CrossEntropyLoss(), nn.BCELoss(), nn.BCEWithLogitsLoss()
    table: dict[str, list[Case]] = {
        "floor-of-a-double-softmax": [
            (True, lambda: s.double_softmax(ce, p, y)),
            (True, lambda: s.double_softmax(lambda a, c: ce(a.softmax(1), c), z, y)),
            (True, lambda: s.double_softmax(ce, cube.softmax(1), cube_y)),
            (True, lambda: s.double_softmax(nn.CrossEntropyLoss(weight=K10), p.float(), y)),
            (True, lambda: s.double_softmax(sparse_logits, p.numpy(), y.numpy())),
            (False, lambda: s.double_softmax(ce, z, y)),
            (False, lambda: s.double_softmax(sparse, p.numpy(), y.numpy())),
            (False, lambda: s.double_softmax(xent.nll, p.log(), y)),
        ],
        "floor-of-a-double-sigmoid": [
            (True, lambda: s.double_sigmoid(logits_bce, b.sigmoid())),
            (True, lambda: s.double_sigmoid(lambda a, c: logits_bce(a.sigmoid(), c), b)),
            (False, lambda: s.double_sigmoid(logits_bce, 5 * b)),
            (False, lambda: s.double_sigmoid(bce, b.sigmoid())),
            (False, lambda: s.double_sigmoid(keras.BinaryCrossentropy(), b.sigmoid().numpy())),
        ],
        "floor-of-smoothing": [
            (True, lambda: s.smoothing_floor(nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=0))),
            (True, lambda: s.smoothing_floor(nn.CrossEntropyLoss(label_smoothing=0.1, weight=K10))),
            (True, lambda: s.smoothing_floor(keras.BinaryCrossentropy(label_smoothing=0.1))),
            (False, lambda: s.smoothing_floor(nn.CrossEntropyLoss(weight=K10))),
            (False, lambda: s.smoothing_floor(sparse)),
        ],
        "negative-loss": [
            (True, lambda: s.no_log_probabilities(nn.NLLLoss(), p)),
            (True, lambda: s.no_log_probabilities(nn.NLLLoss(weight=K10), z.float())),
            (False, lambda: s.no_log_probabilities(nn.NLLLoss(), p.log())),
            (False, lambda: s.no_log_probabilities(nn.NLLLoss(), cube.log_softmax(1), axis=1)),
            (False, lambda: s.no_log_probabilities(ce, z)),
        ],
        "negative-kl": [
            (True, lambda: s.no_distributions(nn.KLDivLoss(reduction="batchmean"), p, t)),
            (True, lambda: s.no_distributions(nn.KLDivLoss(reduction="sum"), p.log(), 0.3 * t)),
            (False, lambda: s.no_distributions(nn.KLDivLoss(reduction="batchmean"), p.log(), t)),
            (
                False,
                lambda: s.no_distributions(
                    nn.KLDivLoss(reduction="batchmean", log_target=True), p.log(), p.log()
                ),
            ),
            (False, lambda: s.no_distributions(keras.KLDivergence(), p.numpy(), t.numpy())),
        ],
        "swapped-arguments": [
            (True, lambda: s.swapped_arguments(F.cross_entropy, t, p)),
            (True, lambda: s.swapped_arguments(sparse, p.numpy(), y.numpy())),
            (True, lambda: s.swapped_arguments(logits_bce, labels, b)),
            (False, lambda: s.swapped_arguments(F.cross_entropy, z, y)),
            (False, lambda: s.swapped_arguments(sparse, y.numpy(), p.numpy())),
        ],
        "from-logits-forgotten": [
            (True, lambda: s.logits_as_probabilities(sparse, z.numpy())),
            (True, lambda: s.logits_as_probabilities("binary_crossentropy", b.numpy())),
            (False, lambda: s.logits_as_probabilities(sparse_logits, z.numpy())),
            (False, lambda: s.logits_as_probabilities(sparse, p.numpy())),
        ],
        "between-0-and-1": [
            (True, lambda: s.logits_as_probabilities(bce, 3 * b)),
            (False, lambda: s.logits_as_probabilities(bce, b.sigmoid())),
            (False, lambda: s.logits_as_probabilities(logits_bce, 3 * b)),
        ],
        "binary-loss-of-two-outputs": [
            (True, lambda: s.binary_loss_of_a_softmax(keras.BinaryCrossentropy(), p.numpy())),
            (True, lambda: s.binary_loss_of_a_softmax(bce, p[:, :2] / p[:, :2].sum(1, keepdim=True))),
            (False, lambda: s.binary_loss_of_a_softmax(bce, b.sigmoid())),
            (False, lambda: s.binary_loss_of_a_softmax(sparse, p.numpy())),
        ],
        "bits-for-nats": [
            (True, lambda: s.other_unit(lambda a, c: F.cross_entropy(a, c) / np.log(2))),
            (
                True,
                lambda: s.other_unit(lambda a, c: F.cross_entropy(a, c, label_smoothing=0.1) / np.log(10)),
            ),
            (False, lambda: s.other_unit(sparse)),
            (False, lambda: s.other_unit(nn.CrossEntropyLoss(weight=K10))),
            (False, lambda: s.other_unit(nn.MSELoss())),
        ],
        "bfloat16-steps": [
            (True, lambda: s.few_digits(lambda a, c: F.cross_entropy(a.bfloat16(), c).float())),
            (True, lambda: s.few_digits(ce, loss_value=torch.tensor(1.0).bfloat16())),
            (False, lambda: s.few_digits(ce, logits=z)),
            (False, lambda: s.few_digits(sparse)),
        ],
        "log-of-a-softmax": [
            (True, lambda: s.log_of_a_softmax(naive)),
            (True, lambda: s.log_of_a_softmax(naive_torch)),
            (False, lambda: s.log_of_a_softmax(ce)),
            (False, lambda: s.log_of_a_softmax(xent.cross_entropy)),
        ],
        "zero-times-log-zero": [
            (True, lambda: s.zero_times_log_zero(lambda a, c: -(c * np.log(a)).sum(1).mean())),
            (True, lambda: s.zero_times_log_zero(lambda a, c: -(c * torch.log(a)).sum(1).mean())),
            (False, lambda: s.zero_times_log_zero(sparse)),
            (False, lambda: s.zero_times_log_zero(xent.log_loss)),
        ],
        "clipped-and-stuck": [
            (True, lambda: s.clipped(keras.CategoricalCrossentropy())),
            (True, lambda: s.clipped(nn.NLLLoss(), torch.tensor([[1e-7, 1 - 1e-7], [1e-7, 1 - 1e-7]]).log())),
            (True, lambda: s.clipped(bce)),
            (False, lambda: s.clipped(nn.NLLLoss(), p.log())),
            (False, lambda: s.clipped(sparse_logits)),
        ],
        "vanished-binary-gradient": [
            (True, lambda: s.gradient_fades(bce)),
            (True, lambda: s.gradient_fades(lambda a, c: F.binary_cross_entropy(a.sigmoid(), c))),
            (False, lambda: s.gradient_fades(logits_bce)),
            (False, lambda: s.gradient_fades(nn.BCEWithLogitsLoss(pos_weight=torch.arange(1.0, 6)))),
        ],
        "gradient-missing": [
            (True, lambda: s.gradient_missing(lambda a, c: ce(a.detach(), c))),
            (True, lambda: s.gradient_missing(lambda a, c: torch.tensor(ce(a, c).item()))),
            (False, lambda: s.gradient_missing(ce)),
        ],
        "sign-flipped": [
            (True, lambda: s.sign_flipped(lambda a, c: -F.cross_entropy(a, c, weight=K10.to(a.dtype)), z)),
            (True, lambda: s.sign_flipped(binary_with_penalty)),
            (True, lambda: s.sign_flipped(lambda a, c: a.log_softmax(-1).gather(-1, c[:, None]).mean())),
            (False, lambda: s.sign_flipped(nn.CrossEntropyLoss(weight=K10), z.float())),
            (
                False,
                lambda: s.sign_flipped(
                    lambda a, c: (
                        (1 - torch.exp(-F.cross_entropy(a, c, reduction="none")))
                        .pow(2)
                        .mul(F.cross_entropy(a, c, reduction="none"))
                        .mean()
                    )
                ),
            ),
        ],
        "one-column-of-logits": [
            (True, lambda: s.one_column(ce, b)),
            (False, lambda: s.one_column(ce, z)),
            (False, lambda: s.one_column(logits_bce, b)),
        ],
        "arguments-changed": [
            (True, lambda: s.changes_arguments(in_place)),
            (False, lambda: s.changes_arguments(xent.cross_entropy)),
            (False, lambda: s.changes_arguments(ce)),
        ],
        "rare-class-too-often": [
            (
                True,
                lambda: s.weights_bend(
                    nn.BCEWithLogitsLoss(pos_weight=torch.full((5,), 9.0)), z[:, :5].float()
                ),
            ),
            (True, lambda: s.weights_bend(nn.CrossEntropyLoss(weight=K10), z.float())),
            (True, lambda: s.weights_bend(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 9.0])))),
            (False, lambda: s.weights_bend(nn.CrossEntropyLoss(weight=torch.ones(10)), z.float())),
            (False, lambda: s.weights_bend(nn.CrossEntropyLoss(ignore_index=0))),
        ],
        "kl-k-times-too-small": [
            (True, lambda: s.divides_by_classes(nn.KLDivLoss())),
            (False, lambda: s.divides_by_classes(nn.KLDivLoss(reduction="batchmean"))),
            (False, lambda: s.divides_by_classes(logits_bce)),
        ],
        "mean-over-classes": [
            (True, lambda: s.divides_by_classes(lambda a, c: -(c * xent.log_softmax(a)).mean())),
            (True, lambda: s.divides_by_classes(lambda a, c: -(c * a.log_softmax(1)).mean())),
            (False, lambda: s.divides_by_classes(ce)),
        ],
        "weights-and-batch-size": [
            (True, lambda: s.divides_by_weights(nn.CrossEntropyLoss(weight=K10), z.float())),
            (False, lambda: s.divides_by_weights(nn.CrossEntropyLoss(ignore_index=0))),
            (
                False,
                lambda: s.divides_by_weights(nn.CrossEntropyLoss(weight=K10, reduction="sum"), z.float()),
            ),
        ],
        "weights-without-effect": [
            (True, lambda: s.weights_dropped(lambda a, c, **options: xent.cross_entropy(a, c))),
            (False, lambda: s.weights_dropped(xent.cross_entropy)),
        ],
        "weights-of-a-1d-batch": [
            (
                True,
                lambda: s.flat_batch(
                    keras.BinaryCrossentropy(), labels[:, 0].numpy(), b[:, 0].sigmoid().numpy()
                ),
            ),
            (
                False,
                lambda: s.flat_batch(keras.BinaryCrossentropy(), labels[:, 0].numpy(), b.sigmoid().numpy()),
            ),
            (False, lambda: s.flat_batch(keras.BinaryCrossentropy(), labels.numpy(), b.sigmoid().numpy())),
        ],
        "generates-too-short": [
            (True, lambda: s.sequence_means(sequences(1))),
            (True, lambda: s.sequence_means(sequences(1, pad=3))),
            (True, lambda: s.sequence_means(sequences(0.5))),
            (False, lambda: s.sequence_means(tokens)),
            (False, lambda: s.sequence_means(xent.cross_entropy)),
        ],
        "padding-counts": [
            (True, lambda: s.padding_counts(F.cross_entropy, z, y, y == int(y[0]))),
            (True, lambda: s.padding_counts(xent.cross_entropy, z.numpy(), y.numpy(), y == int(y[0]))),
            (
                False,
                lambda: s.padding_counts(nn.CrossEntropyLoss(ignore_index=int(y[0])), z, y, y == int(y[0])),
            ),
            (True, lambda: s.padding_counts(F.cross_entropy, cube, cube_y, cube_y == int(cube_y[0, 0]))),
        ],
        "minus-one-is-a-class": [
            (
                True,
                lambda: s.minus_one_is_a_class(
                    lambda a, c: -xent.log_softmax(a)[np.arange(len(c)), c].mean()
                ),
            ),
            (False, lambda: s.minus_one_is_a_class(nn.CrossEntropyLoss(ignore_index=-1))),
            (False, lambda: s.minus_one_is_a_class(ce)),
        ],
        "class-axis-second": [
            (True, lambda: s.classes_on_the_last_axis(ce, cube.movedim(1, -1), cube_y)),
            (
                True,
                lambda: s.classes_on_the_last_axis(
                    nn.CrossEntropyLoss(ignore_index=0), cube.movedim(1, -1), cube_y
                ),
            ),
            (True, lambda: s.classes_on_the_last_axis(sparse_logits, cube.numpy(), cube_y.numpy())),
            (False, lambda: s.classes_on_the_last_axis(ce, cube, cube_y)),
            (
                False,
                lambda: s.classes_on_the_last_axis(
                    sparse_logits, cube.movedim(1, -1).numpy(), cube_y.numpy()
                ),
            ),
        ],
        "never-shifted": [
            (True, lambda: s.never_shifted(tokens, cube_y, cube_y)),
            (True, lambda: s.never_shifted(tokens, torch.where(cube_y > 7, -100, cube_y), cube_y)),
            (False, lambda: s.never_shifted(tokens, cube_y.roll(-1, 1), cube_y)),
            (False, lambda: s.never_shifted(lambda a, c: tokens(a[:, :-1], c[:, 1:]), cube_y, cube_y)),
        ],
        "batch-normalisation": [
            (
                True,
                lambda: s.depends_on_other_rows(
                    nn.Sequential(nn.Linear(10, 4), nn.BatchNorm1d(4)), z.float()
                ),
            ),
            (
                False,
                lambda: s.depends_on_other_rows(
                    nn.Sequential(nn.Linear(10, 4), nn.BatchNorm1d(4)).eval(), z.float()
                ),
            ),
            (
                False,
                lambda: s.depends_on_other_rows(nn.Sequential(nn.Linear(10, 4), nn.LayerNorm(4)), z.float()),
            ),
        ],
        "accumulation-changed-the-model": accumulated(),
    }
    return table


def accumulated() -> list[Case]:
    torch.manual_seed(0)
    model = nn.Linear(2, 3).double()
    whole = (torch.randn(6, 2).double(), torch.tensor([0, 1, 2, 0, 1, 1]))
    micro = [tuple(t[:1] for t in whole), tuple(t[1:] for t in whole)]

    def means(model: Any, batches: Any) -> None:
        for x, y in batches:
            (F.cross_entropy(model(x), y) / len(batches)).backward()

    def pooled(model: Any, batches: Any) -> None:
        for x, y in batches:
            (F.cross_entropy(model(x), y, reduction="sum") / sum(len(y) for _, y in batches)).backward()

    return [
        (True, lambda: symptoms.accumulation(model, micro, whole, means)),
        (False, lambda: symptoms.accumulation(model, micro, whole, pooled)),
    ]


BY_LOSS = [
    "floor-of-a-double-softmax",
    "floor-of-a-double-sigmoid",
    "floor-of-smoothing",
    "negative-loss",
    "negative-kl",
    "swapped-arguments",
    "from-logits-forgotten",
    "between-0-and-1",
    "binary-loss-of-two-outputs",
    "bits-for-nats",
    "bfloat16-steps",
    "log-of-a-softmax",
    "zero-times-log-zero",
    "clipped-and-stuck",
    "vanished-binary-gradient",
    "gradient-missing",
    "sign-flipped",
    "one-column-of-logits",
    "arguments-changed",
    "rare-class-too-often",
    "kl-k-times-too-small",
    "mean-over-classes",
    "weights-and-batch-size",
    "weights-without-effect",
    "weights-of-a-1d-batch",
    "generates-too-short",
    "padding-counts",
    "minus-one-is-a-class",
    "class-axis-second",
    "never-shifted",
    "batch-normalisation",
    "accumulation-changed-the-model",
]


@pytest.mark.slow
@pytest.mark.parametrize("slug", BY_LOSS)
def test_a_check_that_asks_the_loss(slug: str) -> None:
    """With the cause in the loss, in the model and in the call, and without it: never the wrong answer."""
    said = [(cause, call()) for cause, call in by_loss()[slug]]
    print(slug, Counter((cause, str(answer).split(":")[0]) for cause, answer in said))
    assert not [(c, str(a)) for c, a in said if a == (NO if c else YES)]
    assert any(a == YES for c, a in said if c) and any(a == NO for c, a in said if not c)
    assert sum(a == UNSURE for _, a in said) <= 1, [str(a) for _, a in said]


# ------------------------------------------------------------------------------------------------- rows and messages


def rows() -> dict[str, tuple[str, str]]:
    """slug -> (check, the row's text), as the chapter has them."""
    found = {}
    for cell in json.loads(CHAPTER.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "markdown":
            for slug, title, text in ROW.findall("".join(cell["source"])):
                [check] = CHECK.findall(text)
                found[slug] = (check, title + text)
    return found


def test_every_row_has_a_check_that_was_tried() -> None:
    found = rows()
    assert set(found) == {*BY_ARRAYS, *BY_KIND} and set(BY_LOSS) <= {*BY_KIND}
    for slug, (check, text) in found.items():
        [name] = re.findall(r"symptoms\.(\w+)\(", check)
        assert callable(getattr(symptoms, name)), slug
        assert len(check) <= 140 and max(map(len, check.splitlines())) <= 64, slug
        assert "```{index}" in text and "Why: " in text and "(list-of-symptoms)" in text, slug


z43, y4 = torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])
p41 = torch.full((4, 1), 0.5)
MESSAGES: dict[str, list[Callable[[], Any]]] = {
    "multi-target": [
        lambda: F.cross_entropy(z43, y4[:, None]), lambda: F.cross_entropy(z43, F.one_hot(y4, 3)),
        lambda: F.cross_entropy(z43, y4.float()),
    ],
    "target-size": [
        lambda: F.binary_cross_entropy_with_logits(p41, p41[:, 0]), lambda: F.binary_cross_entropy(p41, p41[:, 0]),
    ],
    "between-0-and-1": [
        lambda: F.binary_cross_entropy(4 * p41, p41), lambda: F.binary_cross_entropy(p41, 4 * p41),
        lambda: F.binary_cross_entropy(p41, p41.long()), lambda: F.binary_cross_entropy_with_logits(p41, p41.long()),
    ],
    "keras-rank": [
        lambda: behaviours.keras().losses.SparseCategoricalCrossentropy()(np.eye(3), np.zeros((3, 3))),
        lambda: behaviours.keras().losses.CategoricalCrossentropy()(np.zeros(4), np.zeros((4, 3))),
        lambda: behaviours.keras().losses.CategoricalCrossentropy()(np.zeros((4, 1)), np.zeros((4, 3))),
    ],
    "mask-overflows-half": [lambda: z43.half().masked_fill(z43 == 0, -1e9)],
    "gradient-missing": [lambda: z43.sum().backward()],
}  # fmt: skip


@pytest.mark.parametrize("slug", MESSAGES)
def test_the_messages_are_those_that_print(slug: str) -> None:
    text = re.sub(r"[*`]", "", rows()[slug][1])
    for call in MESSAGES[slug]:
        with pytest.raises(Exception) as caught:
            call()
        said = (
            " ".join(str(caught.value).replace("`", "").split())
            .split(". ")[0]
            .split(": target")[0]
            .removesuffix(".")
        )
        assert said in text, said


def test_between_yes_and_no_a_check_cannot_tell() -> None:
    """Logits that hardly differ carry a signal; a loss that one order of subtraction loses, another keeps."""
    z = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    for scale, answer in ((0.0, "yes"), (1e-4, "cannot tell"), (1e-2, "no")):
        assert symptoms.no_signal(scale * z) == answer
    assert symptoms.no_signal(3 + (1e-2 * z).half()) != "yes"
    y = torch.tensor([0])
    for row, dtype, answer in (
        ([1000.0, 988.0], torch.float32, "cannot tell"),
        ([16.0, 0.0], torch.float32, "cannot tell"),
        ([1000.0, 980.0], torch.float32, "yes"),
        ([1000.0, 988.0], torch.float16, "yes"),
        ([1000.0, 988.0], torch.float64, "no"),
    ):
        logits = torch.tensor([row], dtype=dtype)
        said = symptoms.rounds_to_zero(logits, y)
        assert said == answer
        assert (F.cross_entropy(logits, y) == 0) == (said == "yes")
        assert (logits.logsumexp(1) == logits[:, 0]) == (said != "no")
        assert xent.torch.cross_entropy(logits, y) > 0


def test_rows_without_a_label_and_batches_without_a_loss() -> None:
    """Ignored rows have no loss that could be lost; with nothing to look at, a check cannot tell."""
    sure, unsure = [[90.0, 0.0, 0.0]], [[1.0, 0.0, 0.0]]
    for logits, answer in ((sure, True), (unsure, False)):
        for ignored in (-100, 255):
            found = symptoms.rounds_to_zero(np.array(logits * 2), np.array([0, ignored]))
            assert found == ("yes" if answer else "no")
            assert symptoms.rounds_to_zero(np.array(logits), np.array([ignored])) == "cannot tell"
    for losses in ([], [[]], [[1.0], []]):
        assert symptoms.mean_of_batch_means(losses, 1.0) == "cannot tell"


def refuting() -> dict[str, tuple[str, Callable[[], Any]]]:
    """Losses and arrays on which a check once answered wrongly: that answer, and the call."""
    s, g, ce = symptoms, torch.Generator().manual_seed(884), F.cross_entropy
    keras = behaviours.keras().losses

    def r(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64)

    z, y, one = r(8, 10), torch.arange(8), torch.ones(4, 1)
    masked, ids = (
        r(4, 5).index_fill(1, torch.tensor([2]), -np.inf),
        torch.tensor([[5, 6, 7, 0], [8, 9, 3, 4]]),
    )
    padding, mask = torch.tensor([[False] * 4, [True, True, False, False]]), torch.zeros(2, 1, 4, 4).bool()
    mask[0, ..., 2:] = True
    third, log_q = torch.full((4, 3), 0.33), torch.zeros(4, 3).log_softmax(1)
    last = torch.zeros(64, 64).bool()
    last[0, -1] = True
    long, batches = r(1, 64, 10).float().bfloat16(), [np.array([1.0, 2.0, 3.1]), np.array([4.3])]
    young = 0.3 + 0.02 * r(64, 1)  # logits of a fresh model, or probabilities that hardly differ
    weak = 0.5 + torch.linspace(-0.27, 0.3, 60, dtype=torch.float64)[:, None]  # of a weak logistic regression
    sure = torch.tensor([5.0, 0.0]).repeat(66_000, 1)
    bce, nll = F.binary_cross_entropy, F.nll_loss
    p, classes_off = z.softmax(1), z.index_fill(1, torch.tensor([9]), -np.inf)
    few, cube, cube_few = torch.where(y > 5, -100, y), r(3, 10, 6), torch.arange(18).reshape(3, 6) % 7
    cube_few[:, 4:] = -100
    tied = torch.cat([9 + r(20, 1), 12 + r(20, 1), torch.zeros(20, 8)], 1)
    walk = [1.0]
    for step in rng(886).normal(size=300):
        walk.append(0.1 + 0.9 * walk[-1] + 0.1 * step)

    def summed_only(a: Any, c: Any) -> Any:
        return F.cross_entropy(a, c, reduction="none").sum() / c.numel()

    def own(a: Any, c: Any) -> Any:
        return a.log_softmax(1).exp().pow(0.5).gather(1, c[:, None]).cos().mean()

    def masked_entropy(a: Any, c: Any) -> Any:
        p = a.softmax(-1)
        return ce(a, c) + 0.1 * torch.where(p > 0, p * p.log(), 0.0).sum(-1).mean()

    def relabelled(a: Any, c: Any) -> Any:
        c[c == -100] = 0
        return F.cross_entropy(a, c)

    return {
        "one class stands out nowhere": (NO, lambda: s.no_signal(r(4, 6, 1).expand(4, 6, 10))),
        "one sequence, a bias alone": (NO, lambda: s.no_signal(r(1, 1, 10).expand(1, 6, 10))),
        "a focal loss behind two softmaxes": (
            NO,
            lambda: s.double_softmax(lambda a, c: focal(a.softmax(1), c, 2.0), z, y),
        ),
        "small logits, a loss of logits": (
            YES,
            lambda: s.double_sigmoid(F.binary_cross_entropy_with_logits, young),
        ),
        "small logits, a loss of probabilities": (NO, lambda: s.logits_as_probabilities(bce, young)),
        "sigmoids, one of K": (
            YES,
            lambda: s.logits_as_probabilities(keras.SparseCategoricalCrossentropy(), z.sigmoid().numpy()),
        ),
        "smoothing in bfloat16": (
            NO,
            lambda: s.smoothing_floor(lambda a, c: ce(a.bfloat16(), c, label_smoothing=0.1)),
        ),
        "uniform, in bfloat16": (
            YES,
            lambda: s.no_log_probabilities(nll, torch.zeros(2, 51200).log_softmax(1).bfloat16()),
        ),
        "a teacher of two digits": (NO, lambda: s.no_distributions(F.kl_div, log_q, third)),
        "bits, times four": (NO, lambda: s.other_unit(lambda a, c: 4 * ce(a / 2, c) / np.log(2))),
        "a loss of 200 in float64": (YES, lambda: s.perplexity_overflows(torch.tensor(200.0).double())),
        "stored in bfloat16 for a while": (NO, lambda: s.few_digits(ce, logits=z, loss_value=2.703125)),
        "converted inside": (YES, lambda: s.few_digits(lambda a, c: ce(a.float(), c), logits=z.bfloat16())),
        "float32 kept as float64": (
            YES,
            lambda: s.rows_do_not_sum((r(64, 10).softmax(1) * (1 + 3e-6)).numpy()),
        ),
        "one-hot labels": (YES, lambda: s.classes_missing(np.eye(3), np.full((3, 3), 1 / 3))),
        "a softmax in the model, log in the loss": (
            NO,
            lambda: s.log_of_a_softmax(lambda p, c: nll(p.log(), c)),
        ),
        "0 log 0 of a softmax": (
            NO,
            lambda: s.zero_times_log_zero(lambda a, t: -(t * a.softmax(-1).log()).sum(-1).mean()),
        ),
        "0 log 0 of yes and no": (
            NO,
            lambda: s.zero_times_log_zero(lambda p, t: -(t * p.log() + (1 - t) * (1 - p).log()).mean()),
        ),
        "0 log 0 of a divergence": (
            NO,
            lambda: s.zero_times_log_zero(lambda q, p: (p * (p.log() - q.log())).sum(1).mean()),
        ),
        "labels as many as classes": (
            YES,
            lambda: s.masked_class(torch.where(torch.eye(4) > 0, -np.inf, 0.0), torch.arange(4)),
        ),
        "scores of -1e9": (YES, lambda: s.sees_nothing(torch.full((1, 2, 2), -1e9))),
        "the padding of another sequence": (
            YES,
            lambda: s.sees_nothing(mask, true_is="left out", padding=padding),
        ),
        "a mask of classes": (YES, lambda: s.not_finite(masked)),
        "a nan between": (YES, lambda: s.rate_too_high([2.3, 2.1, np.nan, 1.9, 1.8, 1.7])),
        "a jump, then no gradient": (NO, lambda: s.rate_too_high([3, 2, 1, 50, 2.3, 2.3, 2.3, 2.3])),
        "a loss in bfloat16": (NO, lambda: s.scaled_loss(65536 * 2.7065, torch.tensor(2.7065).bfloat16())),
        "a perplexity": (YES, lambda: s.mean_of_batch_means(batches, 13.5)),
        "one of 64 in bfloat16": (
            NO,
            lambda: s.padding_counts(tokens, long.repeat(64, 1, 1), torch.zeros(64, 64).long(), last),
        ),
        "one output": (
            NO,
            lambda: s.padding_counts(bce, r(4, 1).sigmoid(), torch.ones(4, 1).double(), torch.arange(4) > 2),
        ),
        "an end before padding": (
            NO,
            lambda: s.shifted_already(torch.tensor([[6, 7, 2, -100], [9, 3, 4, 2]]), ids),
        ),
        "a row without a batch": (YES, lambda: s.wrong_targets(r(3), torch.tensor([1]))),
        "a batch of one row": (NO, lambda: s.softmax_over_another_axis(r(1, 10).softmax(0))),
        "a softmax over time": (NO, lambda: s.softmax_over_another_axis(r(4, 6, 10).softmax(1))),
        "a softmax over columns of pixels": (
            NO,
            lambda: s.softmax_over_another_axis(r(2, 6, 5, 4).softmax(-1)),
        ),
        "one class of pixels": (NO, lambda: s.one_column(ce, r(4, 1, 8, 8))),
        "one position": (YES, lambda: s.one_column(ce, r(4, 5, 1))),
        "one row of classes": (YES, lambda: s.one_column(ce, r(10))),
        "labels of three digits": (NO, lambda: s.targets_do_not_sum(np.full((4, 3), 0.333))),
        "a softmax that underflows": (
            YES,
            lambda: s.clipped(lambda p, c: nll(p.log(), c), (200 * r(8, 10)).float().softmax(1)),
        ),
        "uniform over 10,000": (YES, lambda: s.clipped(nll, torch.zeros(2, 10_000).log_softmax(1))),
        "equal rows": (YES, lambda: s.clipped(nll, (5 * r(1, 1000)).log_softmax(1).repeat(3, 1))),
        "logits below zero": (YES, lambda: s.clipped(ce, -20.0 * (1 - torch.eye(5)))),
        "weights of outputs": (
            YES,
            lambda: s.weights_bend(
                nn.BCEWithLogitsLoss(weight=torch.tensor([1.0, 2.0, 3.0]).double()), r(8, 3)
            ),
        ),
        "Keras's function": (
            NO,
            lambda: s.flat_batch(keras.binary_crossentropy, np.array([0.0, 1, 1]), np.array([0.2, 0.3, 0.4])),
        ),
        "equal rows beside a masked class": (
            NO,
            lambda: s.no_signal(torch.tensor([[0.3, 0.2, -np.inf]] * 6)),
        ),
        "logits that are nan": (NO, lambda: s.no_signal(np.nan * z)),
        "a softmax of one row without a batch": (NO, lambda: s.double_softmax(ce, p[0], y[0])),
        "two sigmoids of small logits": (
            YES,
            lambda: s.binary_loss_of_a_softmax(bce, (0.02 * r(8, 2)).sigmoid()),
        ),
        "sigmoids of small logits, two rows": (
            YES,
            lambda: s.softmax_over_another_axis((0.02 * r(2, 5)).sigmoid()),
        ),
        "equal rows, of equal inputs": (YES, lambda: s.no_signal(r(1, 10).expand(8, 10))),
        "an overfitted softmax in float32": (
            YES,
            lambda: s.clipped(nll, (40 * r(400, 10)).float().log_softmax(1).exp()),
        ),
        "weak logits": (YES, lambda: s.double_sigmoid(F.binary_cross_entropy_with_logits, weak)),
        "weak logits, a loss of probabilities": (NO, lambda: s.logits_as_probabilities(bce, weak)),
        "an infinite count of small losses": (
            NO,
            lambda: s.half_overflows(ce, sure.half(), sure[:, 1].long()),
        ),
        "a row of 65,520 equal logits": (NO, lambda: s.half_overflows(ce, r(1, 65_520).half() * 0, y[:1])),
        "a row of 65,519 equal logits": (YES, lambda: s.half_overflows(ce, r(1, 65_519).half() * 0, y[:1])),
        "one class of pixels, a loss of your own": (NO, lambda: s.one_column(own, r(4, 1, 8, 8))),
        "an entropy that is masked behind its product": (NO, lambda: s.gradient_not_finite(masked_entropy)),
        "a masked class in float16": (YES, lambda: s.half_overflows(ce, classes_off.half(), y)),
        "a sum over 4,096 targets": (YES, lambda: s.scaled_loss(4096 * 2.31, 2.31)),
        "the loss of one micro-batch": (NO, lambda: s.nobody_divides(8.8, 2.0, 4)),
        "means of unequal counts, added": (NO, lambda: s.nobody_divides(6.0, 240 / 110, 2)),
        "a mask on the sum, not on the count": (
            NO,
            lambda: s.padding_counts(summed_only, z, few, few == -100),
        ),
        "that mask, for sequences": (
            NO,
            lambda: s.padding_counts(summed_only, cube, cube_few, cube_few == -100),
        ),
        "a mask on both": (YES, lambda: s.padding_counts(ce, cube, cube_few, cube_few == -100)),
        "a batch of one row, squeezed": (NO, lambda: s.broadcasts(torch.zeros(1, 1), torch.tensor(0.0))),
        "one target for all": (YES, lambda: s.broadcasts(torch.zeros(4, 3), torch.zeros(1))),
        "logits of zero, soft targets": (YES, lambda: s.swapped_arguments(ce, 0 * p, p)),
        "classes that are tied": (YES, lambda: s.clipped(nll, tied.log_softmax(1))),
        "a batch twice": (
            NO,
            lambda: s.depends_on_other_rows(nn.BatchNorm1d(3), r(4, 3).float().repeat(2, 1)),
        ),
        "two losses in turn": (YES, lambda: s.rate_too_high(np.where(rng(885).random(400) < 0.1, 5.0, 0.1))),
        "losses that follow each other": (YES, lambda: s.rate_too_high(walk)),
        "a little smoothing in bfloat16": (
            NO,
            lambda: s.smoothing_floor(lambda a, c: ce(a.bfloat16(), c, label_smoothing=0.02)),
        ),
        "labels overwritten": (NO, lambda: s.changes_arguments(relabelled)),
        "a softmax added up": (YES, lambda: s.logits_as_probabilities(bce, torch.full((9,), 1.0000001))),
        "distributions, classes second": (
            YES,
            lambda: s.no_distributions(F.kl_div, cube.log_softmax(1), cube.softmax(1)),
        ),
        "probabilities of yes": (YES, lambda: s.rows_do_not_sum(young[:, 0])),
        "a row of weights": (NO, lambda: s.weights_of_another_shape(one.T, torch.ones(4, 4))),
    }


def refuting_lately() -> dict[str, tuple[str, Callable[[], Any]]]:
    """More of these, from another reading: columns of yes and no, classes second, padding, factors, several heads."""
    s, g, ce, nll = symptoms, torch.Generator().manual_seed(887), F.cross_entropy, F.nll_loss
    keras = behaviours.keras().losses
    bce, logits_bce = F.binary_cross_entropy, F.binary_cross_entropy_with_logits

    def r(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64)

    z, y, w = r(8, 10), torch.arange(8), torch.tensor([1.0, 5.0, 2.0]).double()
    padded = r(4, 6, 10).softmax(-1)
    padded[:, 2:] = 0
    over_rows = torch.where(torch.arange(6)[:, None] > 3, 0, r(4, 6, 10).softmax(0))
    ids, sure = torch.randint(0, 20, (4, 5), generator=g), torch.where(torch.arange(400) < 200, -10.0, 10.0)
    sure[3] *= -3
    yes = (torch.arange(400) >= 200).long()
    flat_y, flat_p = np.array([0.0, 1, 1, 0]), np.array([0.2, 0.7, 0.6, 0.4])
    noise = [*(2.3 + 0.1 * rng(888).normal(size=50)), *[np.nan] * 5]
    model = nn.Linear(2, 3).double()
    parts = [(r(n, 2), torch.arange(n) % 3) for n in (5, 5, 3)]
    both, all_three = (tuple(torch.cat(v) for v in zip(*p, strict=True)) for p in (parts[:2], parts))
    drops, norms = (nn.Sequential(nn.Linear(2, 3), m).double() for m in (nn.Dropout(0.5), nn.BatchNorm1d(3)))

    def of_softmax(a: Any, c: Any, **options: Any) -> Any:
        return nll(a.softmax(1).log(), c, **options)

    def clipping(a: Any, c: Any, **options: Any) -> Any:
        return nll(a.softmax(1).clamp(1e-7).log(), c, **options)

    def penalty(a: Any) -> Any:
        return 1e-3 * a.logsumexp(1).pow(2).mean()

    def by_hand(t: Any, p: Any, sample_weight: Any = 1.0) -> Any:
        return sample_weight * -(t * np.log(p) + (1 - t) * np.log(1 - p))

    def weighed(a: Any, c: Any) -> Any:
        return ce(a, c, weight=w.to(a), reduction="sum") / len(c)

    def drops_weights(a: Any, c: Any, reduction: str = "mean", **options: Any) -> Any:
        return ce(a, c, reduction=reduction)

    def uses_one(a: Any, c: Any, weight: Any = None, **options: Any) -> Any:
        return ce(a, c, weight=weight)

    def epoch_of(a: Any, c: Any, epoch: Any = None) -> Any:
        return ce(a, c)

    def means(model: Any, batches: Any) -> None:
        for x, c in batches:
            (ce(model(x), c) / len(batches)).backward()

    def pooled(model: Any, batches: Any) -> None:
        for x, c in batches:
            (ce(model(x), c, reduction="sum") / sum(len(c) for _, c in batches)).backward()

    def buffers() -> Iterator[Any]:
        x, c = torch.zeros(5, 2).double(), torch.zeros(5).long()
        for inputs, labels in parts[:2]:
            yield x.copy_(inputs), c.copy_(labels)

    def embedded(norm: Any) -> Any:
        embedding = nn.Embedding(20, 4)
        return lambda batch: norm(embedding(batch).mean(1))

    return {
        "one output, sequences": (YES, lambda: s.no_signal(r(4, 6, 1), torch.zeros(4, 6))),
        "large logits of one output": (
            NO,
            lambda: s.large_first_logits(50 + r(8, 1), torch.zeros(8).long()),
        ),
        "sigmoids of small logits before a softmax": (
            YES,
            lambda: s.double_softmax(ce, (0.02 * r(8, 2)).sigmoid(), y % 2),
        ),
        "padding set to 0": (
            NO,
            lambda: s.double_softmax(
                keras.SparseCategoricalCrossentropy(from_logits=True), padded.numpy(), np.zeros((4, 6), int)
            ),
        ),
        "an ignored row of nan": (
            NO,
            lambda: s.double_softmax(
                ce, torch.where(y[:, None] == 0, np.nan, z.softmax(1)), torch.where(y == 0, -100, y)
            ),
        ),
        "no row": (YES, lambda: s.double_softmax(ce, torch.zeros(0, 10), torch.zeros(0).long())),
        "a negative entry": (
            NO,
            lambda: s.no_distributions(
                F.kl_div, z.log_softmax(1), torch.tensor([[1.5, -0.5] + [0.0] * 8] * 8)
            ),
        ),
        "a softmax over classes second": (
            NO,
            lambda: s.binary_loss_of_a_softmax(bce, r(2, 3, 5, 6).softmax(1)),
        ),
        "a softmax, padding set to 0": (NO, lambda: s.binary_loss_of_a_softmax(bce, padded)),
        "bits with weights": (NO, lambda: s.other_unit(lambda a, c: weighed(a, c) / np.log(2))),
        "bits with weights of outputs": (
            NO,
            lambda: s.other_unit(lambda a, t: logits_bce(a, t, weight=w.to(a)) / np.log(2)),
        ),
        "a loss of inf": (YES, lambda: s.few_digits(ce, loss_value=np.inf)),
        "a printed loss": (NO, lambda: s.few_digits(ce, loss_value=2.703)),
        "printed losses": (NO, lambda: s.few_digits(ce, loss_value=[2.703, 2.719, 2.734])),
        "classes second": (YES, lambda: s.rows_do_not_sum(r(3, 10, 6).softmax(1))),
        "a column of yes": (YES, lambda: s.rows_do_not_sum(r(8, 1).sigmoid())),
        "rows of nan": (NO, lambda: s.rows_do_not_sum(np.full((4, 3), np.nan))),
        "one-hot, classes second": (
            YES,
            lambda: s.targets_do_not_sum(F.one_hot(torch.zeros(2, 3, 4).long(), 5).movedim(-1, 1)),
        ),
        "a column of labels": (YES, lambda: s.targets_do_not_sum(y[:, None] % 2)),
        "log of a softmax, a penalty": (
            NO,
            lambda: s.log_of_a_softmax(lambda a, c: of_softmax(a, c) + penalty(a)),
        ),
        "log of a softmax, a constant": (NO, lambda: s.log_of_a_softmax(lambda a, c: of_softmax(a, c) + 0.3)),
        "log of a softmax, label 0 ignored": (
            NO,
            lambda: s.log_of_a_softmax(lambda a, c: of_softmax(a, c, ignore_index=0)),
        ),
        "log of a softmax, a divergence": (
            NO,
            lambda: s.log_of_a_softmax(lambda a, p: (p * (p.log() - a.softmax(1).log())).sum(1).mean()),
        ),
        "0 log 0, focal": (
            NO,
            lambda: s.zero_times_log_zero(lambda p, t: -(t * (1 - p) ** 2 * p.log()).sum(1).mean()),
        ),
        "0 log 0 of log-probabilities": (
            NO,
            lambda: s.zero_times_log_zero(lambda q, t: -(t * q).sum(1).mean()),
        ),
        "the first target alone": (NO, lambda: s.nothing_counts(np.array([[5, -100, -100]]))),
        "one-hot integers": (
            YES,
            lambda: s.no_weight_left(torch.tensor([0.0, 0, 1]), torch.tensor([[0, 0, 1], [0, 0, 1]])),
        ),
        "clipped, a penalty": (NO, lambda: s.clipped(lambda a, c: clipping(a, c) + penalty(a))),
        "clipped, label 0 ignored": (NO, lambda: s.clipped(lambda a, c: clipping(a, c, ignore_index=0))),
        "smoothed, and faded": (NO, lambda: s.gradient_fades(lambda a, t: bce(a.sigmoid(), 0.9 * t + 0.05))),
        "a number": (NO, lambda: s.gradient_missing(lambda a, c: ce(a, c).item())),
        "a focal loss of probabilities": (
            NO,
            lambda: s.gradient_not_finite(
                lambda p, c: ((1 - p.gather(1, c[:, None])) ** 0.5 * -p.gather(1, c[:, None]).log()).mean()
            ),
        ),
        "a softmax over the batch, padding set to 0": (NO, lambda: s.softmax_over_another_axis(over_rows)),
        "one sure output": (YES, lambda: s.softmax_over_another_axis(np.ones((1, 1)))),
        "sure outputs": (YES, lambda: s.one_column(bce, torch.ones(4, 1))),
        "nan after noise": (YES, lambda: s.rate_too_high(noise)),
        "nan at once": (YES, lambda: s.rate_too_high([2.3, 2.31, np.nan, np.nan])),
        "one output, sure and wrong": (NO, lambda: s.sure_and_wrong(sure[:, None], yes)),
        "one output of small logits": (YES, lambda: s.rounds_to_zero(r(6, 1), torch.zeros(6).long())),
        "a factor in the weights": (
            NO,
            lambda: s.divides_by_classes(lambda a, t: -(t * w.to(a) * a.log_softmax(1)).mean()),
        ),
        "unknown keywords beside a known one": (NO, lambda: s.weights_dropped(drops_weights)),
        "unknown keywords beside a weight": (NO, lambda: s.weights_dropped(uses_one)),
        "a keyword that is no weight": (YES, lambda: s.weights_dropped(epoch_of)),
        "an ignored class that is none": (
            YES,
            lambda: s.weights_dropped(behaviours.keras().losses.sparse_categorical_crossentropy),
        ),
        "a sum, rows apart": (
            YES,
            lambda: s.flat_batch(lambda t, p, **o: by_hand(t, p, **o).sum(), flat_y, flat_p),
        ),
        "the prediction first": (
            YES,
            lambda: s.flat_batch(lambda p, t, **o: by_hand(t, p, **o).mean(), flat_y, flat_p),
        ),
        "divided by the weights": (
            YES,
            lambda: s.flat_batch(
                lambda t, p, sample_weight=(1.0, 1, 1, 1): (
                    by_hand(t, p, np.array(sample_weight)).sum() / np.sum(sample_weight)
                ),
                flat_y,
                flat_p,
            ),
        ),
        "labels (N,) of one output": (
            YES,
            lambda: s.targets_of_another_rank(keras.BinaryCrossentropy(), np.zeros((4, 1)), np.zeros(4)),
        ),
        "labels beside classes second": (
            YES,
            lambda: s.targets_of_another_rank(ce, r(3, 10, 6), torch.zeros(3, 6).long()),
        ),
        "tokens, a batch twice": (
            NO,
            lambda: s.depends_on_other_rows(embedded(nn.BatchNorm1d(4)), ids.repeat(2, 1)),
        ),
        "inputs of zero": (NO, lambda: s.depends_on_other_rows(nn.BatchNorm1d(3), torch.zeros(4, 3))),
        "buffers that are used again": (YES, lambda: s.accumulation(model, buffers(), both, pooled)),
        "equal counts": (NO, lambda: s.accumulation(model, parts[:2], both, means)),
        "dropout": (YES, lambda: s.accumulation(drops, parts, all_three, pooled)),
        "batch normalisation": (YES, lambda: s.accumulation(norms, parts, all_three, pooled)),
        "other examples": (YES, lambda: s.accumulation(model, parts[1:], all_three, pooled)),
    }


def refuting_again() -> dict[str, tuple[str, Callable[[], Any]]]:
    """And from a third: shifts of rows, soft labels, what precedes a softmax, labels (B, T, 1), rows as time."""
    s, g, ce = symptoms, torch.Generator().manual_seed(893), F.cross_entropy
    keras = behaviours.keras()
    bce, logits_bce = F.binary_cross_entropy, F.binary_cross_entropy_with_logits

    def r(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64)

    def before(f: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
        return lambda a, c: ce(f(a), c)

    z, y, cube, cube_y = r(8, 10), torch.arange(8), r(4, 10, 6), torch.zeros(4, 6).long()
    flat_y, flat_p = np.array([0.0, 1, 1, 0]), np.array([0.2, 0.7, 0.6, 0.4])
    soft, masked = torch.full((8, 1), 0.9), torch.zeros(40, 3).index_fill(1, torch.tensor([2]), -np.inf)
    image, pixels = r(2, 3, 5, 4), torch.arange(40).reshape(2, 5, 4) % 3
    pixels[:, 3:] = -100
    zeroed = torch.where(y[:, None] > 5, 0, F.one_hot(y, 10).double())
    broken = nn.Linear(2, 2).requires_grad_(False)
    broken.weight.fill_(np.nan)
    ulp = ce(torch.tensor([[16.0, 0.0]]), torch.tensor([0])) + 21 * 2.0**-23
    unbuilt = keras.Sequential([keras.layers.Dense(2, dtype="float16")])
    return {
        "a shift of each row beside a bias": (NO, lambda: s.no_signal(r(8, 1) + r(1, 10))),
        "soft labels of yes, dear": (YES, lambda: s.large_first_logits(3 + 0 * r(8, 1), soft)),
        "soft labels of yes, wrong": (NO, lambda: s.large_first_logits(-8 + 0 * r(8, 1), soft)),
        "soft labels (N,)": (YES, lambda: s.large_first_logits(3 + 0 * r(8), soft[:, 0])),
        "a ReLU before the softmax": (YES, lambda: s.double_softmax(before(torch.relu), z, y)),
        "a tanh before the softmax": (YES, lambda: s.double_softmax(before(torch.tanh), z, y)),
        "a sigmoid before the softmax": (YES, lambda: s.double_softmax(before(torch.sigmoid), z, y)),
        "two sigmoids are no softmax": (
            YES,
            lambda: s.double_softmax(lambda a, t: logits_bce(a.sigmoid(), t), r(8, 1)),
        ),
        "two softmaxes are no sigmoid": (YES, lambda: s.double_sigmoid(before(lambda a: a.softmax(1)), z)),
        "a softmax is no sigmoid": (YES, lambda: s.double_sigmoid(logits_bce, (3 * z).softmax(1))),
        "a softmax of two is no sigmoid": (
            YES,
            lambda: s.double_sigmoid(logits_bce, (3 * r(20, 2)).softmax(1)),
        ),
        "class indices are no distribution": (
            YES,
            lambda: s.no_distributions(F.nll_loss, z.log_softmax(1), y),
        ),
        "bits for each of 3,072 pixels": (
            NO,
            lambda: s.other_unit(lambda a, c: ce(a, c) / np.log(2) / 3072),
        ),
        "bits for each of 88": (NO, lambda: s.other_unit(lambda a, c: ce(a, c) / np.log(2) / 88)),
        "a unit in the last place": (YES, lambda: s.few_digits(ce, loss_value=np.float32(2.0**-23))),
        "some units in the last place": (YES, lambda: s.few_digits(ce, loss_value=ulp)),
        "class indices (B, T)": (YES, lambda: s.targets_do_not_sum(5 + cube_y)),
        "zeros added to the scores": (YES, lambda: s.sees_nothing(torch.zeros(3, 3), true_is="seen")),
        "a word that is neither": (
            NO,
            lambda: s.sees_nothing(torch.tensor([[True, True], [False, True]]), true_is="masked"),
        ),
        "weights that are nan": (NO, lambda: s.not_finite(broken)),
        "complex numbers": (NO, lambda: s.not_finite(np.array([1 + 1j, np.nan]), z)),
        "a table of objects": (NO, lambda: s.not_finite(np.array([1.0, None, np.nan], object), z)),
        "a loader": (NO, lambda: s.not_finite(torch.utils.data.DataLoader([torch.tensor([np.nan])]))),
        "a generator": (NO, lambda: s.not_finite(x for x in [torch.tensor([np.nan])])),
        "nothing given": (NO, lambda: s.not_finite()),
        "a label of 2.5": (NO, lambda: s.label_out_of_range(np.array([0.0, 2.5]), 4)),
        "labels (B, T, 1)": (YES, lambda: s.classes_on_the_last_axis(ce, cube, cube_y[..., None])),
        "labels in one row": (YES, lambda: s.classes_on_the_last_axis(ce, cube, cube_y.ravel())),
        "a softmax over the batch, squeezed": (NO, lambda: s.softmax_over_another_axis(r(9).softmax(0))),
        "rows taken for time": (NO, lambda: s.depends_on_other_rows(nn.LSTM(3, 4), r(4, 5, 3).float())),
        "no binary loss, by name": (
            YES,
            lambda: s.flat_batch("sparse_categorical_crossentropy", flat_y, flat_p),
        ),
        "a label that is masked": (NO, lambda: s.sure_and_wrong(masked, torch.arange(40) % 3)),
        "a model that is not built": (NO, lambda: s.half_weights(unbuilt)),
        "a logged nan": (NO, lambda: s.nobody_divides(np.nan, 2.0, 4)),
        "eight bits": (NO, lambda: s.mask_overflows(-1e4, torch.zeros(2, 2).to(torch.float8_e4m3fn))),
        "bytes": (NO, lambda: s.mask_overflows(-1e9, torch.zeros(2, 2, dtype=torch.int8))),
        "weights in a dictionary": (NO, lambda: s.weights_of_another_shape({0: 1.0, 1: 2.0}, z)),
        "a mask on the sum, for pixels": (
            NO,
            lambda: s.padding_counts(
                lambda a, c: ce(a, c, reduction="sum") / c.numel(), image, pixels, pixels == -100
            ),
        ),
        "rows of zeros, divided by all": (NO, lambda: s.padding_counts(ce, z, zeroed, y > 5)),
        "a softmax, then the logarithms": (
            YES,
            lambda: s.double_softmax(lambda a, t: bce(a.softmax(1), t), z, y),
        ),
    }


def refuting_at_last() -> dict[str, tuple[str, Callable[[], Any]]]:
    """And from a fourth: softmaxes over another axis or over all, rounding, caps, long rises."""
    from scipy.special import softmax as scipy_softmax

    s, g, ce = symptoms, torch.Generator().manual_seed(897), F.cross_entropy

    def r(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64)

    def by_index(p: Any, y: Any) -> Any:
        return -np.log(p[np.arange(len(y)), y]).mean()

    z, y, cube, cube_y, image = (
        r(64, 10),
        torch.arange(64) % 10,
        r(4, 10, 6),
        torch.zeros(4, 6).long(),
        r(2, 5, 8, 8),
    )

    def relabelled(a: Any, c: Any) -> Any:
        c[c == 255] = -100
        return ce(a, c)

    over_all, half = scipy_softmax(z.numpy()), (8 * z).softmax(1).half().float()
    jumps = [*(2 + 0.5 * np.exp(np.arange(120) / 8)), *[np.nan] * 9]
    return {
        "a softmax over the batch before a softmax": (NO, lambda: s.double_softmax(ce, z.softmax(0), y)),
        "a softmax over positions before one": (NO, lambda: s.double_softmax(ce, cube.softmax(-1), cube_y)),
        "scipy's softmax without an axis": (NO, lambda: s.softmax_over_another_axis(over_all)),
        "a softmax over pixels": (
            NO,
            lambda: s.softmax_over_another_axis(image.flatten(2).softmax(-1).reshape(image.shape)),
        ),
        "-1 under a softmax of the whole batch": (
            NO,
            lambda: s.minus_one_is_a_class(lambda a, c: by_index(scipy_softmax(a), c)),
        ),
        "-1 under a softmax over the batch": (
            NO,
            lambda: s.minus_one_is_a_class(lambda a, c: by_index(scipy_softmax(a, 0), c)),
        ),
        "capped logits": (YES, lambda: s.clipped(lambda a, c: ce(30 * torch.tanh(a / 30), c))),
        "a softmax of half precision, widened": (
            YES,
            lambda: s.clipped(lambda p, c: F.nll_loss(p.log(), c), half),
        ),
        "255 overwritten": (NO, lambda: s.changes_arguments(relabelled)),
        "targets of nan": (NO, lambda: s.targets_outside(np.array([0, 1, np.nan]))),
        "a teacher of 1.0000001": (YES, lambda: s.targets_outside(np.array([0.0, 1 + 1e-7]))),
        "nan after a rise of many steps": (UNSURE, lambda: s.rate_too_high(jumps)),
    }


def refuting_in_practice() -> dict[str, tuple[str, Callable[[], Any]]]:
    """And from a fifth, of losses as training scripts have them: loops, flattened tokens, examples in columns."""
    s, g, ce = symptoms, torch.Generator().manual_seed(901), F.cross_entropy
    logits, tokens = torch.randn(3, 6, 5, generator=g), torch.randint(1, 5, (3, 6), generator=g)
    p, late = logits[0].softmax(1).double().numpy(), torch.arange(6) > 3

    def in_columns(a: Any, y: Any) -> Any:
        return -np.sum(y * np.log(a)) / y.shape[1]

    def flattened(a: Any, y: Any) -> Any:
        return ce(a.flatten(0, 1), y.flatten()) / np.log(2)

    def one_by_one(a: Any, y: Any) -> Any:
        return torch.stack([ce(z, c) for z, c in zip(a, y, strict=True)]).mean()

    def for_each_answer(a: Any, y: Any) -> Any:
        each = a.log_softmax(-1).gather(-1, y.clamp(min=0)[..., None])[..., 0]
        return -(each * (y != -100)).sum(-1)

    def chosen(a: Any, y: Any) -> Any:
        return ce(a[y != 0], y[y != 0])

    def soft_margin(a: Any, y: Any) -> Any:
        return F.softplus(-a * y).mean()

    def of_a_teacher(a: Any, b: Any) -> Any:
        return F.kl_div(a.log_softmax(1), b.softmax(1), reduction="batchmean")

    several = F.binary_cross_entropy_with_logits, logits, (logits > 0).float(), late.expand(3, 6)
    return {
        "labels of -1 and 1 are rows": (
            YES,
            lambda: s.targets_of_another_rank(soft_margin, logits[0, :, 0], torch.ones(6)),
        ),
        "a teacher's logits are rows": (
            YES,
            lambda: s.targets_of_another_rank(of_a_teacher, logits[0], logits[1]),
        ),
        "a mean over examples in columns": (YES, lambda: s.divides_by_classes(in_columns)),
        "id2label": (NO, lambda: s.columns_out_of_order({0: "NEGATIVE", 1: "ENTAILED"})),
        "label2id": (NO, lambda: s.columns_out_of_order({"entailed": 1, "negative": 0})),
        "several labels for each token, no axis told": (UNSURE, lambda: s.padding_counts(*several)),
        "one sequence after the other": (NO, lambda: s.sequence_means(one_by_one)),
        "a sum for each answer": (YES, lambda: s.sequence_means(for_each_answer)),
        "tokens that count, chosen": (UNSURE, lambda: s.never_shifted(chosen, tokens, tokens)),
        "tokens, flattened": (UNSURE, lambda: s.never_shifted(flattened, tokens, tokens)),
        "tokens, flattened, of labels": (YES, lambda: s.targets_of_another_rank(flattened, logits, tokens)),
        "tokens, flattened, over classes": (
            YES,
            lambda: s.softmax_over_another_axis(p, axis=-1, loss=flattened),
        ),
    }


@pytest.mark.slow
def test_losses_that_shift_and_those_of_tensorflow_are_explained() -> None:
    """A language model's loss in the usual lines, on rows too; names and functions of Keras have a gradient."""
    s, tf, ce = symptoms, behaviours.tensorflow(), F.cross_entropy

    def usual(logits: Any, labels: Any) -> Any:
        return ce(logits[..., :-1, :].reshape(-1, logits.size(-1)), labels[..., 1:].reshape(-1))

    def padded(logits: Any, labels: Any, ignore_index: int = -100) -> Any:
        labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:].reshape(-1)
        return ce(logits.float().view(-1, logits.size(-1)), labels, ignore_index=ignore_index)

    def worst(logits: Any, labels: Any) -> Any:
        return ce(logits, labels, reduction="none").topk(max(1, len(labels) // 2))[0].mean()

    ids = torch.arange(24).reshape(3, 8)
    for loss in (usual, padded):
        assert s.never_shifted(loss, ids, ids) == NO
        assert s.sequence_means(loss) == NO and s.few_digits(loss) == NO
    assert s.other_unit(worst) == UNSURE
    for named in ("categorical_crossentropy", tf.nn.softmax_cross_entropy_with_logits):
        assert s.gradient_missing(named) == NO

    def stopped(labels: Any, logits: Any) -> Any:
        return tf.nn.softmax_cross_entropy_with_logits(labels, tf.stop_gradient(logits))

    assert s.gradient_missing(stopped) == YES
    assert s.gradient_missing(xent.cross_entropy) == UNSURE


def test_columns_masks_and_dictionaries_are_read() -> None:
    """Pixels of yes and no, masks of -1e9, log-probabilities with classes second, labels as floats or text."""
    s, g = symptoms, torch.Generator().manual_seed(898)
    z, y = torch.randn(64, 10, generator=g), torch.arange(64) % 10
    image, yes = (
        torch.randn(2, 1, 8, 8, generator=g),
        (torch.arange(128).reshape(2, 1, 8, 8) % 3 == 0).float(),
    )
    assert s.large_first_logits(0.1 * image, yes) == NO and s.large_first_logits(20 * image, yes) == YES
    masked = z.masked_fill(torch.arange(10) > 7, -1e9)
    assert s.no_signal(masked, y) == NO and s.no_signal(masked[:1].expand(64, 10), y, inputs=y) == YES
    assert s.no_signal(1e6 * z, y) == NO
    cube = z[:60].reshape(3, 20, 10).movedim(-1, 1)
    assert s.no_log_probabilities(F.nll_loss, cube.log_softmax(1)) == NO
    assert s.no_log_probabilities(F.nll_loss, cube.log_softmax(-1)) == YES
    keras, p = behaviours.keras().losses.SparseCategoricalCrossentropy(), z.softmax(1).numpy()
    floats = y.numpy().astype("float32")
    assert s.swapped_arguments(keras, floats, p) == NO and s.swapped_arguments(keras, p, floats) == YES
    from sklearn.metrics import log_loss

    assert s.swapped_arguments(log_loss, np.array(["a", "b"] * 32), p[:, :2]) == NO
    assert s.weighted_means_differ({0: 1.0, 1: 5.0}, y % 2) == YES
    assert s.no_weight_left({0: 0.0, 1: 5.0}, 0 * y) == YES
    assert s.weighted_means_differ({1: 1.0, 2: 5.0}, y % 2) == UNSURE
    assert s.softmax_over_another_axis(z.sigmoid()) == NO and s.softmax_over_another_axis(z.softmax(1)) == NO
    assert s.double_softmax(F.cross_entropy, z.relu(), y) == NO
    assert s.rate_too_high([*(2.3 + 0.1 * z[:, 0]), np.nan]) == UNSURE
    assert s.targets_outside(2 * yes - 1) == YES and s.targets_outside(yes) == NO


def test_padding_of_yes_and_no() -> None:
    """A mask on sum and count, or on the sum alone, of outputs (B, T) and (B, T, 1)."""
    s, g = symptoms, torch.Generator().manual_seed(899)
    z, t = torch.randn(4, 12, generator=g), torch.randint(0, 2, (4, 12), generator=g).float()
    pad = torch.arange(12) > torch.tensor([[11], [7], [4], [2]])
    t[pad] = -1

    def each(a: Any, b: Any) -> Any:
        return F.binary_cross_entropy_with_logits(a, b.clamp(min=0), reduction="none") * (b >= 0)

    nothing = s.padding_counts(F.cross_entropy, z, torch.full((4,), -100), torch.ones(4))
    assert nothing == UNSURE, "nan is no answer"
    for shape in ((4, 12), (4, 12, 1), (4, 1, 4, 3)):
        logits, targets = z.reshape(shape), t.reshape(shape)
        pad = pad if len(shape) < 4 else pad.reshape(shape)
        assert s.padding_counts(lambda a, b: each(a, b).sum() / (b >= 0).sum(), logits, targets, pad) == NO
        assert s.padding_counts(lambda a, b: each(a, b).mean(), logits, targets, pad) == YES
        assert s.padding_counts(F.binary_cross_entropy_with_logits, logits, targets, pad) == YES
        assert s.large_first_logits(0.1 * logits, t.reshape(shape).clamp(min=0)) in (NO, UNSURE)


@pytest.mark.slow
def test_what_refuted_a_check_does_so_no_more() -> None:
    """Would be refuted by the answer that each case got."""
    for table in (refuting, refuting_lately, refuting_again, refuting_at_last, refuting_in_practice):
        for name, (wrong, call) in table().items():
            assert call() != wrong, name


def test_the_mended_checks_still_decide() -> None:
    """What "cannot tell" could hide: the cause is named, and its absence too."""
    s, ce = symptoms, F.cross_entropy
    z, y = torch.randn(8, 10, generator=torch.Generator().manual_seed(894)), torch.arange(8)
    cube, cube_y = z.reshape(2, 4, 10), y.reshape(2, 4, 1)
    assert s.no_signal(torch.arange(8.0)[:, None] + 0 * z) == YES and s.no_signal(z[:, :1] + z) == NO
    assert s.double_softmax(lambda a, c: ce(a.softmax(1), c), z, y) == YES
    assert s.double_softmax(lambda a, c: ce(a.relu(), c), z, y) == NO
    assert s.double_sigmoid(F.binary_cross_entropy_with_logits, (3 * z).sigmoid()) == YES
    keras = behaviours.keras().losses.SparseCategoricalCrossentropy(from_logits=True)
    assert s.classes_on_the_last_axis(keras, cube.numpy(), cube_y.numpy()) == NO
    assert s.classes_on_the_last_axis(ce, cube, cube_y) == YES
    assert s.depends_on_other_rows(nn.LSTM(3, 4), torch.randn(4, 5, 3)) == YES
    assert s.other_unit(lambda a, c: ce(a, c) / 3072) == NO
    assert s.sees_nothing(torch.zeros(3, 3), true_is="left out") == NO
    assert s.not_finite(z, {"cache": None, "mask": y}) == NO
    assert s.not_finite(np.array([None], object), torch.tensor([np.nan])) == YES
    pad, kept = y > 5, torch.where(y[:, None] > 5, 0, F.one_hot(y, 10)).float()
    assert s.padding_counts(ce, z, kept, pad) == YES
    assert s.padding_counts(lambda a, t: ce(a, t, reduction="sum") / t.sum(), z, kept, pad) == NO
    by_name = s.padding_counts("categorical_crossentropy", z.softmax(1).numpy(), np.eye(10)[y], pad)
    assert by_name == YES
    assert s.label_out_of_range(y, torch.tensor(10)) == NO
    assert s.label_out_of_range(np.array([0.0, 2.5]), 4) == YES


def test_answers_say_on_what_they_rest() -> None:
    """Predictions of 0 and 1 beside soft targets, and probabilities that are clipped from above."""
    p = torch.tensor([[0.4], [0.5], [1 - 1e-7], [1 - 1e-7]]).double()
    said = symptoms.clipped(lambda q, t: -(t * q.log() + (1 - t) * (1 - q).log()).mean(), p)
    assert said == NO and said.why.endswith("the smallest number was looked at")
    hard = torch.tensor([[1.0], [0.0]])
    said = symptoms.swapped_arguments(F.binary_cross_entropy, hard, torch.tensor([[0.9], [0.1]]))
    assert said == YES and said.why.endswith("if the whole numbers are the targets")


def test_answers_name_what_they_cannot_see() -> None:
    """A sum over 65,536 targets, -100 in Keras, labels of a plain loss, weights of a row, batches that differ."""
    s, z = symptoms, torch.zeros(4, 3)
    assert s.scaled_loss(65536 * 2.31, 2.31).why.endswith("or a sum of as many")
    assert s.label_out_of_range(np.array([0, 1, -100]), 3).why.endswith(
        "1 are -100, which the loss has to skip"
    )
    ids = torch.arange(24).reshape(3, 8)
    assert s.shifted_already(ids[:, 1:], ids).why.endswith("once too often if the loss shifts")
    assert s.weights_of_another_shape(torch.ones(1), z).why.endswith("in a binary loss")
    assert s.rate_too_high([1.0] * 30 + [2.0] * 30).why.endswith("if the batches are alike")


class Heads(nn.Module):
    """Two heads behind one layer, as a tuple or as a dictionary."""

    def __init__(self, layer: nn.Module, named: bool) -> None:
        super().__init__()
        self.body, self.named = nn.Sequential(nn.Linear(3, 4), layer), named
        self.one, self.two = nn.Linear(4, 2), nn.Linear(4, 5)

    def forward(self, x: Any) -> Any:
        h = self.body(x)
        heads = self.one(h), self.two(h)
        return {"a": heads[0], "b": heads[1], "cache": None} if self.named else heads


def test_models_of_several_heads_and_keras_models_are_read() -> None:
    """Tuples, dictionaries and Keras's lists of outputs; a check leaves the statistics of the model alone."""
    s, x = symptoms, torch.randn(8, 3, generator=torch.Generator().manual_seed(889))
    for named in (False, True):
        assert s.depends_on_other_rows(Heads(nn.BatchNorm1d(4), named), x) == YES
        assert s.depends_on_other_rows(Heads(nn.LayerNorm(4), named), x) == NO
        assert s.modes_differ(Heads(nn.Dropout(0.5), named), x) == YES
        assert s.modes_differ(Heads(nn.LayerNorm(4), named), x) == NO
    assert s.depends_on_other_rows(nn.LSTM(3, 4, batch_first=True), torch.randn(4, 5, 3)) == NO
    norm = nn.BatchNorm1d(3)
    assert s.depends_on_other_rows(norm, x) == YES and int(norm.num_batches_tracked) == 0
    layers, model = behaviours.keras().layers, behaviours.keras().Model
    inputs = layers.Input((3,))
    dropped = layers.Dropout(0.5)(inputs)
    assert (
        s.modes_differ(model(inputs, [layers.Dense(2)(dropped), layers.Dense(5)(dropped)]), x.numpy()) == YES
    )
    half = layers.Dense(2, dtype="float16")
    half.build((None, 3))
    assert s.half_weights(half) == YES
    assert s.not_finite({"ids": torch.arange(3), "mask": torch.ones(2)}, x) == NO
    assert s.not_finite((x, torch.full((3, 2), np.nan)), x) == YES


def test_unreduced_values_are_read() -> None:
    """Vectors of losses, counts of micro-batches, and a loss of Keras that diagnose cannot explain."""
    s, tf = symptoms, behaviours.tensorflow()
    assert s.perplexity_overflows(torch.tensor([100.0])) == YES
    assert s.perplexity_overflows(torch.tensor([1.0, 2.0])) == NO
    assert s.scaled_loss(65536 * torch.ones(4), torch.ones(4)) == YES
    assert s.nobody_divides(torch.tensor([8.0]), torch.tensor([2.0]), 4) == YES
    assert s.ranks_differ([torch.tensor([3, 4]), torch.tensor([7, 0])]) == NO
    z, y = np.random.default_rng(0).normal(size=(3, 6, 10)), np.ones((3, 6), int)
    y[:, 4:] = 0

    def own(labels: Any, logits: Any) -> Any:
        mask = tf.cast(labels != 0, "float64")
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        sure = tf.reduce_max(tf.nn.softmax(logits), -1)
        return tf.reduce_sum((each + sure) * mask) / tf.reduce_sum(mask)

    assert s.padding_counts(own, z, y, y == 0) == NO


def test_what_no_check_can_read_is_no_crash() -> None:
    """Empty batches, text, models and losses that raise, shapes that do not fit: the answer says so."""
    from sklearn.metrics import log_loss

    s, z, none = symptoms, torch.zeros(8, 10), np.zeros((0, 10))
    half, y = z.half(), torch.arange(8)
    weighed = [nn.CrossEntropyLoss(weight=torch.ones(10, dtype=d)) for d in (torch.float16, torch.float32)]
    norm = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    halves = [(torch.zeros(1, 2), torch.zeros(1).long())]

    def raises(model: Any, batches: Any) -> None:
        raise RuntimeError("out of memory")

    for answer in (
        s.no_signal(none),
        s.double_sigmoid(F.binary_cross_entropy_with_logits, none),
        s.double_sigmoid(F.binary_cross_entropy_with_logits, (torch.zeros(8, 1), torch.zeros(8, 2))),
        s.no_log_probabilities(F.nll_loss, none),
        s.targets_outside(none),
        s.targets_outside(["cat", "dog"]),
        s.swapped_arguments(F.cross_entropy, np.array(["a", "b"]), np.eye(2)),
        s.logits_as_probabilities(F.binary_cross_entropy, none),
        s.rows_do_not_sum(none),
        s.columns_out_of_order(["a", 1]),
        s.nan_where_ignored(z, F.one_hot(y, 10)),
        s.nan_where_ignored(torch.zeros(2, 3, 5), torch.full((2, 4), -100)),
        *(s.half_overflows(loss, half, y) for loss in weighed),
        s.half_weights([norm]),
        s.weighted_means_differ({0: 1.0, "b": 5.0}, y % 2),
        s.ranks_differ([]),
        s.padding_counts(F.cross_entropy, z, y, torch.ones(3, 2)),
        s.padding_counts(lambda a, c: {"loss": F.cross_entropy(a, c)}, z, y, y > 5),
        s.ignored_class(None, 10),  # type: ignore[arg-type]
        s.depends_on_other_rows(norm, {"x": torch.zeros(4, 3)}),
        s.modes_differ(norm, torch.zeros(1, 3)),
        s.modes_differ(lambda x: x, torch.zeros(1, 3)),
        s.accumulation(nn.Linear(2, 3), [], halves[0], raises),
        s.accumulation(nn.Linear(2, 3), halves, halves[0], raises),
        s.accumulation(nn.Linear(2, 3), 2 * halves, halves[0], raises),
    ):
        assert answer == UNSURE and answer.why, answer
    with np.errstate(all="ignore"):
        assert s.flat_batch(log_loss, np.array([0.0, 1, 1]), np.array([0.2, 0.3, 0.4])) == NO


def test_shapes_that_a_check_cannot_read_are_no_crash() -> None:
    """One-hot integers, logits (N,) or (B, K, T), -100 among the labels, infinite numbers, labels a token shorter."""
    s, z, y = symptoms, torch.randn(8, 10), torch.arange(8)
    ids = torch.arange(24).reshape(3, 8)
    masked = torch.tensor([[0.0, -np.inf, 0.0]]).log_softmax(1)
    half = behaviours.tensorflow().zeros((8, 3), "float16")
    logits = behaviours.keras().losses.SparseCategoricalCrossentropy(from_logits=True)
    assert s.large_first_logits(z, F.one_hot(y, 10)) == UNSURE
    assert s.large_first_logits(0 * z[:, 0], y % 2) == NO
    assert s.large_first_logits(z * np.nan, y) == UNSURE
    assert s.half_overflows(logits, half, np.zeros(8, int)) == NO
    assert s.sure_and_wrong(torch.zeros(40, 10), torch.full((40,), -100)) == UNSURE
    assert s.sure_and_wrong(torch.zeros(8, 10, 5), torch.zeros(8, 5).long()) == NO
    assert s.rounds_to_zero(torch.zeros(4, 10, 6), torch.zeros(4, 6).long()) == NO
    assert s.scaled_loss(np.inf, 2.3) == UNSURE
    assert s.clipped(F.nll_loss, masked) == NO
    assert s.clipped(F.cross_entropy, (20 * z).softmax(1).clamp(1e-7).log()) == YES
    assert s.shifted_already(ids[:, 1:], ids) == YES
    assert s.never_shifted(tokens, ids[:, 1:], ids) == NO
    assert (
        s.sees_nothing(torch.zeros(6, 4, 4).bool(), true_is="left out", padding=torch.zeros(2, 4).bool())
        == NO
    )


def main() -> None:
    """Print the matrix of checks: with the cause yes, without it no, and cannot tell, by library."""
    for slug in sorted({*BY_ARRAYS, *BY_KIND}):
        for table, kinds in ((BY_ARRAYS, ALL), (BY_KIND, SOME)):
            if slug in table:
                entry = table[slug]
                counts, wrong = counted(entry[0] if isinstance(entry, tuple) else entry, kinds)
                cells = [
                    "/".join(
                        str(sum(n for (a, c, s), n in counts.items() if a == name and want(c, s)))
                        for want in (lambda c, s: c and s == YES, lambda c, s: not c and s == NO,
                                     lambda c, s: s == UNSURE)
                    )
                    for name in PRECISIONS
                ]  # fmt: skip
                print(f"{slug:32}" + "".join(f"{c:>18}" for c in cells) + f"{len(wrong):6}", flush=True)


if __name__ == "__main__":
    main()
