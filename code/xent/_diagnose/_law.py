"""A law: a hypothesis about a loss that predicts what any call costs, and its gradient.

The loss of a row with the target t is, for every loss that is a cross-entropy with something more,

    u(x, t) = - sum_y t_y sum_k A[y, k] (1 - p_k)^gamma log p_k(x)  +  a few common terms.

A is c times the identity for the plain loss; smoothing fills it, class weights scale its rows or its columns.
A divergence of two distributions has further terms in place of the common ones (`DIVERGENCES`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from scipy.special import xlogy

from xent.numerics import log_sigmoid, log_softmax, log_sum_exp, sigmoid, softmax

from ._call import Array

Pair: TypeAlias = "tuple[Array, Array]"
Names: TypeAlias = "tuple[str, ...]"

CATEGORICAL, BINARY, KL = "categorical cross-entropy", "binary cross-entropy", "KL divergence"


@dataclass(frozen=True)
class Bend:
    """What enters the row's loss other than linearly: a temperature, focusing, a number added to p, a soft cap."""

    temperature: float = 1.0
    gamma: float = 0.0
    added: float = 0.0
    cap: float = np.inf

    def logits(self, x: Array) -> Array:
        """What the softmax is taken of."""
        return x / self.temperature if np.isinf(self.cap) else self.cap * np.tanh(x / self.cap)


@dataclass(frozen=True)
class Reading:
    """What a loss takes its first argument for: the kind of input it is asked with, and what becomes of it: logits,
    of which it takes a softmax, or probabilities, or their logarithms.
    """

    name: str
    family: str = CATEGORICAL
    kind: str = "logits"
    rank: int = 2
    before: Callable[[Array], Array] = np.asarray
    taken: str = "logits"

    def log_p(self, x: Array, bend: Bend) -> Array:
        """The logarithms of what is read, (n, 1, K) of a choice of several, (n, K, 2) of both sides of binary ones."""
        binary, z = self.family == BINARY, x
        if self.taken != "log-probabilities":
            z = self.before(bend.logits(x) if self.taken == "logits" else x)
        with np.errstate(all="ignore"):
            if self.taken == "probabilities":
                z = np.log((np.stack([1 - z, z], -1) if binary else z) + bend.added)
            elif self.taken == "logits":
                z = np.stack([log_sigmoid(-z), log_sigmoid(z)], -1) if binary else log_softmax(z)
                z = np.log(np.exp(z) + bend.added) if bend.added else z
        return np.asarray(z if binary else z[:, None])

    def costs(self, x: Array, bend: Bend, floor: float = -np.inf, adds: bool = False) -> Array:
        """(1 - p)^gamma times -log p, where p is no less than exp(floor), or has it added."""
        log_p = self.log_p(x, bend)
        with np.errstate(all="ignore"):
            if np.isfinite(floor):
                log_p = np.logaddexp(log_p, floor) if adds else np.maximum(log_p, floor)
            focus = np.maximum(-np.expm1(log_p), 0) ** bend.gamma if bend.gamma else 1.0
            return np.asarray(-log_p * focus)

    def sides(self, t: Array) -> Array:
        """Rows of targets in the same shape."""
        return np.stack([1 - t, t], -1) if self.family == BINARY else t[:, None]


READINGS = (
    Reading("logits", rank=0),
    Reading("logits", BINARY, rank=0),
    Reading("probabilities", CATEGORICAL, "probabilities", 0, taken="probabilities"),
    Reading("probabilities", BINARY, "probabilities", 0, taken="probabilities"),
    Reading("log-probabilities", CATEGORICAL, "log-probabilities", 1, taken="log-probabilities"),
    Reading("logits, softmax applied twice", before=softmax),
    Reading("logits, sigmoid applied twice", BINARY, before=sigmoid),
    Reading("logits, a sigmoid before the softmax", before=sigmoid),
    Reading("logits, a softmax before the sigmoid", BINARY, before=softmax),
    Reading("logits, a ReLU before the softmax", before=lambda x: np.maximum(x, 0)),
    Reading("logits, a tanh before the softmax", before=np.tanh),
    Reading("logits, a softmax where a sigmoid belongs", BINARY, before=softmax, taken="probabilities"),
    Reading("logits, a sigmoid where a softmax belongs", before=sigmoid, taken="probabilities"),
)
# The common terms: what is added to each row, whatever its target.
COMMON: dict[str, Callable[[Array, Array], Array]] = {
    "constant": lambda x, log_p: np.ones(len(x)),
    "log Z squared": lambda x, log_p: np.asarray(log_sum_exp(x)) ** 2,
    "entropy": lambda x, log_p: -(np.exp(log_p) * log_p).sum((1, 2)),
}
# The multiples of - t log p and of the four terms below, by name.
DIVERGENCES = {
    CATEGORICAL: (1, 0, 0, 0, 0),
    KL: (1, 1, 0, 0, 0),
    "symmetric KL divergence": (1, 1, -1, 1, 0),
    "Jensen-Shannon divergence": (0, 0.5, 0, 0.5, -1),
}


def divergence_terms(t: Array, log_p: Array) -> list[Array]:
    """The terms t log t, p log t, p log p and m log m for their mean m, class by class."""
    p = np.exp(log_p)
    return [xlogy(t, t), xlogy(p, t), np.asarray(p * log_p), xlogy((p + t) / 2, (p + t) / 2)]


# What bends and what is added, from the plain loss on: the first that explains a loss is taken.
LEVELS: tuple[tuple[Names, Names], ...] = (
    ((), ()), ((), ("log Z squared",)), ((), ("constant",)), ((), ("entropy",)),
    (("temperature",), ()), (("gamma",), ()), (("added",), ()), ((), ("log Z squared", "constant")),
    (("temperature",), ("log Z squared",)), (("gamma",), ("log Z squared",)), (("gamma",), ("constant",)),
    (("temperature",), ("constant",)), (("temperature", "gamma"), ()), (("cap",), ()),
)  # fmt: skip
RANGES = {"temperature": (0.005, 50.0), "gamma": (0.05, 8.0), "added": (1e-7, 0.3), "cap": (0.5, 500.0)}


# What one position's loss is multiplied by where B sequences have these counts of labels that count, (B, T).
MEANS: dict[str, Callable[[Array], Any]] = {
    "over the valid tokens": lambda n: 1 / n.sum(),
    "a mean of sequence means": lambda n: 1 / (n.sum(1, keepdims=True) * len(n)),
    "over all positions, padding included": lambda n: 1 / n.size,
    "over the sequences": lambda n: 1 / len(n),
    "a sum": lambda n: 1.0,
    "one mean for each sequence": lambda n: 1 / n.sum(1, keepdims=True),
    "one sum for each sequence": lambda n: 1.0,
    "one value for each position": lambda n: 1.0,
}
SOFT = ("soft", "logarithms", "logits")
# How targets as they are passed become distributions.
TARGETS: dict[str, Callable[[Array, Bend], Array]] = {
    "logarithms": lambda t, bend: np.exp(t),
    "logits": lambda t, bend: np.asarray(softmax(t / bend.temperature)),
}


class Unpredictable(Exception):
    """Why a law says nothing of a call."""


@dataclass
class Law:
    """A loss as it was read, to be applied to arrays as they are passed, of any size.

    A row costs `factor` times the sum of its label's share of each class, that class's weight and minus its log p;
    what is averaged divides by the sum of the labels' `counts`. `left_out` maps a label that costs nothing to whether
    the divisor leaves it out too.
    """

    reading: Reading
    bend: Bend = field(default_factory=Bend)
    common: dict[str, float] = field(default_factory=dict)
    weights: Array = field(default_factory=lambda: np.ones(3))  # (K,), or (K, 2) for both sides of K problems
    factor: float = 1.0
    acts: str = "rows"  # on the row as a whole, by its label, or on the "columns", the classes' logarithms
    smoothing: float = 0.0
    over_others: bool = False
    fixed: str = ""  # why it is known for one number of classes alone
    by_k: bool = False  # each row is divided by the number of classes
    family: str = ""  # of the divergences, with soft targets
    floor: float = -np.inf  # the least log p, or what is added to p
    adds: bool = False
    normalises: bool = False  # rows of probabilities are divided by their sums
    refuses: bool = False  # those that do not sum to one
    # Batches.
    mean: str = "over the valid tokens"
    over: str = ""  # the mean over sequences
    counts: Array = field(default_factory=lambda: np.ones(1))
    common_counts: bool = False  # a label that is left out has its common terms, averaged over all rows
    clamped: bool = False  # nothing that counts costs 0, not 0 / 0
    left_out: dict[float, bool] = field(default_factory=dict)
    # The class that a label which is none counts as; -1 is the last.
    taken_as: dict[float, int] = field(default_factory=dict)
    form: str = "indices"
    first: str = "prediction"
    layout: str = "last"
    shifts: bool = False
    axis: int = 0  # 1: the softmax runs over the batch, 2: over the positions, 3: over everything

    @property
    def binary(self) -> bool:
        return self.reading.family == BINARY

    @property
    def kept(self) -> list[int]:
        """The classes, or the binary problems, less the labels that are left out."""
        return [y for y in range(len(self.weights)) if self.binary or y not in self.left_out]

    @property
    def plain(self) -> bool:
        """Whether every label, or every binary problem, has one weight."""
        return not self.fixed and bool(np.ptp(self.weights[self.kept], 0).max() <= 1e-4 * self.size)

    @property
    def weighed(self) -> bool:
        """Whether the divisor weighs labels."""
        known = self.counts[self.kept] if len(self.counts) == len(self.weights) else self.counts
        return bool(np.ptp(known) > 1e-3 * known.max())

    @property
    def size(self) -> float:
        return float(np.abs(self.weights).max())

    @property
    def cost(self) -> float:
        """How much it takes to explain rows in this way: the least wins."""
        uneven = bool(np.ptp(self.weights[self.kept]) > 1e-4 * self.size)
        rare = 2 * (self.smoothing != 0) + 2 * uneven + (self.form in SOFT)
        return self.reading.rank + rare + len(self.left_out)

    # ------------------------------------------------------------------------------------------------ rows

    def rows(self, x: Array, t: Array) -> Pair:
        """What rows (n, K), or binary entries, cost with labels (n,) or rows of targets; their common terms."""
        n, k = x.shape
        if n > 1 and x.size > 4_000_000:
            halves = zip(np.array_split(x, 2), np.array_split(t, 2), strict=True)
            parts = [self.rows(*half) for half in halves]
            return np.concatenate([a for a, _ in parts]), np.concatenate([b for _, b in parts])
        x = x / x.sum(-1, keepdims=True) if self.normalises else x
        t = self.reading.sides(t if t.ndim == 2 else (t[:, None] == np.arange(k)).astype(float))
        shares, cost = self.shares(t), self.reading.costs(x, self.bend, self.floor, self.adds)
        own, common = np.where(shares == 0, 0.0, shares * cost), np.zeros(n)
        if "entropy" in self.common or self.family:
            log_p = self.reading.log_p(x, self.bend)
        if self.family:
            own_part, *multiples = DIVERGENCES[self.family]
            terms = zip(multiples, divergence_terms(t, log_p), strict=True)
            own = own_part * own + self.factor * self.weights[0] * sum(m * v for m, v in terms if m)
        own = own.sum(-1 if self.binary else (1, 2)) / (k if self.by_k else 1)
        for name, value in self.common.items():
            common = common + value * COMMON[name](x, log_p if name == "entropy" else x)
        return own, common[:, None] / k if self.binary else common

    def shares(self, t: Array) -> Array:
        """What each class's minus log p, or each side's, is multiplied by."""
        s, w, c, total = self.smoothing, self.weights_of(t), t.shape[-1], t.sum(-1, keepdims=True)
        smooth = (1 - s) * t + s * ((total - t) / (c - 1) if self.over_others else total / c) if s else t
        if not self.binary and self.acts == "rows":
            w = (t @ w[0])[..., None] / np.where(total, total, 1)
        return np.asarray(self.factor * smooth * w)

    def weights_of(self, t: Array) -> Array:
        """The weights of as many classes, or binary problems, as targets have."""
        k, w = t.shape[1 + (not self.binary)], self.weights
        if k != len(w):
            if self.fixed:
                raise Unpredictable(self.fixed)
            if self.plain:
                w = np.repeat(w[self.kept[:1]], k, 0)
            elif self.binary or self.acts == "columns" or t[..., len(w) :].any():
                raise Unpredictable(f"its weights are known for {len(w)} classes")
            else:
                w = np.resize(w, k)
        return w if self.binary else w[None]

    # --------------------------------------------------------------------------------------- whole batches

    def class_axis(self, x: Array, t: Array) -> int:
        """The axis of the classes, of arrays as they are passed."""
        if self.binary and t.size != x.size:  # labels, as rows with a single 1
            return x.ndim - 1 if t.shape == x.shape[:-1] else 1
        if self.binary or x.ndim < 3:
            return 1 if x.ndim > 2 and self.layout == "second" else x.ndim - 1
        axes = (1, x.ndim - 1) if self.layout == "second" else (x.ndim - 1, 1)
        return next((a for a in axes if np.delete(x.shape, a).tolist() == [*t.shape]), axes[0])

    def positions(self, x: Array, t: Array) -> tuple[Array, Array, tuple[int, ...]]:
        """Rows (n, K), their targets, and the shape of the positions that they came from."""
        if x.ndim == 0:
            raise Unpredictable("a single number is no batch")
        if x.ndim == 1:
            x, t = (x[:, None], t.reshape(-1, 1)) if self.binary else (x[None], t[None])
        whole = t.dtype.kind in "iub" and x.ndim > 2 and np.max(t, initial=0) > 1 and not self.binary
        t = t.reshape(t.shape[:-1]) if t.ndim == x.ndim and t.shape[-1] == 1 < x.shape[-1] else t
        axis, alike = self.class_axis(x, t), t.shape == x.shape
        x = np.moveaxis(x, axis, -1)
        if self.binary:
            t = (t[..., None] == np.arange(x.shape[-1])) if t.size != x.size else t
            t = np.moveaxis(t, axis, -1) if alike else t
            t = t.reshape(x.shape).astype(float) if t.size == x.size else t
            t = (t + 1) / 2 if self.form == "signs" else t
        elif t.ndim == x.ndim and not whole:
            t = np.moveaxis(t, axis, -1)
            t = TARGETS[self.form](t, self.bend) if self.form in TARGETS else t.astype(float)
        if t.shape[: x.ndim - 1] != x.shape[:-1]:
            raise Unpredictable(f"targets {t.shape} for logits {x.shape} leave the classes' axis open")
        if self.shifts and x.ndim > 2:
            x, t = x[:, :-1], t[:, 1:]
        shape = x.shape[:-1]
        return x.reshape(-1, x.shape[-1]), t.reshape(math.prod(shape), *t.shape[len(shape) :]), shape

    def parts(self, x: Array, t: Array) -> Array:
        """What each position, or binary entry, adds to the loss; in the positions' shape."""
        x, t = np.asarray(x, float), np.asarray(t)
        axis, flat = self.class_axis(x, t), x.ndim == 1
        if self.axis == 3:
            x = log_softmax(x.ravel()).reshape(x.shape)
        elif self.axis:
            x = log_softmax(x, axis=0 if self.axis == 1 else 3 - axis)
        x, t, shape = self.positions(x, t)
        k, labels = x.shape[-1], self.binary or t.ndim == 1
        out, gone = np.zeros(len(t), bool), np.zeros(len(t), bool)
        w = np.ones(t.shape if self.binary else len(t))
        if labels:
            out = np.isin(t, list(self.left_out))
            gone = np.isin(t, [y for y, valid in self.left_out.items() if valid])
            t = np.where(out, 0, t)
            for label, y in self.taken_as.items():
                t = np.where(t == label, y % k, t)
            if not self.binary:
                t = t.astype(np.int64)
                if wrong := [y for y in np.unique(t) if not 0 <= y < k]:
                    raise Unpredictable(f"the label {wrong[0]} is no class")
        own, common = self.rows(x, t)
        if self.weighed:
            w = self.counts[t.astype(int)] if labels else t @ self.counts
        counts = ~gone * w / (k if self.binary else 1)
        mean = self.over if self.over and len(shape) > 1 and not self.binary else self.mean
        c = coefficient(mean, counts.reshape(*shape, *counts.shape[1:]), self.clamped).reshape(w.shape)
        beside = c * w * ~out
        if self.common_counts:
            beside = np.full(w.shape, 1.0 if mean == "a sum" else 1 / len(x))
        each = (c * np.where(out, 0.0, own) + beside * common).reshape(*shape, *own.shape[1:])
        each = each[:, 0] if flat and self.binary else each
        return np.moveaxis(each, -1, axis) if self.binary and not flat else np.asarray(each)

    def value(self, x: Array, t: Array, ndim: int) -> Array:
        """What the loss returns, with `ndim` axes."""
        if not x.size:
            raise Unpredictable("it has no rows")
        try:
            each = self.parts(x, t)
        except (ValueError, IndexError) as error:  # arrays that do not fit together
            raise Unpredictable(f"arrays of {x.shape} and {t.shape}: {error}") from error
        return np.asarray(each.sum(tuple(range(ndim, each.ndim))))

    def slopes(self, x: Array, t: Array, upstream: Array, direction: Array) -> Array:
        """The derivative of sum(upstream * value) along a direction, for each entry of the first axis."""
        ahead, behind = (self.parts(x + s * direction, t) for s in (1e-5, -1e-5))
        weights = upstream.reshape(upstream.shape + (1,) * (ahead.ndim - upstream.ndim))
        return np.asarray(((ahead - behind) / 2e-5 * weights).reshape(len(ahead), -1).sum(-1))


def coefficient(mean: str, counts: Array, clamped: bool = False) -> Array:
    """What each position's loss is multiplied by, in the shape of `counts`."""
    n = counts.reshape(len(counts), -1)
    found = MEANS[mean](n)
    found = np.where(np.isinf(found), 0.0, found) if clamped else found
    return np.broadcast_to(found, n.shape).reshape(counts.shape)
