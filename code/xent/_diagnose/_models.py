"""The model of a cross-entropy's row: what is read, how it bends, and a matrix that says which logarithm counts.

The loss of a row with the target t is, for every loss that is a cross-entropy with something more,

    u(x, t) = - sum_y t_y sum_k A[y, k] (1 - p_k)^gamma log p_k(x)  +  a few common terms.

A is c times the identity for the plain loss. Smoothing fills it, class weights scale its rows or columns, an ignored
class empties a row. Given what bends (a temperature, gamma, an epsilon), u is linear in A, so A is solved for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from scipy import optimize
from scipy.special import xlogy

from xent.numerics import log_sigmoid, log_softmax, log_sum_exp, sigmoid, softmax

Array: TypeAlias = "np.ndarray[Any, Any]"
Names: TypeAlias = "tuple[str, ...]"

CATEGORICAL, BINARY, KL = "categorical cross-entropy", "binary cross-entropy", "KL divergence"
# Above so many classes A is not solved for entry by entry: a diagonal and one common entry for each label.
FULL = 12


@dataclass(frozen=True)
class Bend:
    """What enters the row's loss other than linearly: a temperature, focusing, a number added to p."""

    temperature: float = 1.0
    gamma: float = 0.0
    added: float = 0.0
    cap: float = np.inf

    def logits(self, x: Array) -> Array:
        """What the softmax is taken of: logits over the temperature, or under a soft cap."""
        return x / self.temperature if np.isinf(self.cap) else self.cap * np.tanh(x / self.cap)


@dataclass(frozen=True)
class Reading:
    """What a loss takes its first argument for: the kind of input it is asked with, and the logarithms."""

    name: str
    family: str
    kind: str
    rank: int
    log_p: Callable[[Array, Bend], Array]


def _link(family: str, before: Callable[[Array], Array]) -> Callable[[Array, Bend], Array]:
    def log_p(x: Array, bend: Bend) -> Array:
        z = before(bend.logits(x))
        sides = np.stack([log_sigmoid(-z), log_sigmoid(z)], -1) if family == BINARY else log_softmax(z)
        return np.asarray(np.log(np.exp(sides) + bend.added) if bend.added else sides)

    return log_p


def _of_probabilities(family: str, before: Callable[[Array], Array]) -> Callable[[Array, Bend], Array]:
    def log_p(x: Array, bend: Bend) -> Array:
        p = before(x)
        with np.errstate(all="ignore"):
            return np.asarray(np.log((np.stack([1 - p, p], -1) if family == BINARY else p) + bend.added))

    return log_p


READINGS = (
    Reading("logits", CATEGORICAL, "logits", 0, _link(CATEGORICAL, np.asarray)),
    Reading("logits", BINARY, "logits", 0, _link(BINARY, np.asarray)),
    Reading("probabilities", CATEGORICAL, "probabilities", 0, _of_probabilities(CATEGORICAL, np.asarray)),
    Reading("probabilities", BINARY, "probabilities", 0, _of_probabilities(BINARY, np.asarray)),
    Reading("log-probabilities", CATEGORICAL, "log-probabilities", 1, lambda x, _: x),
    Reading("logits, softmax applied twice", CATEGORICAL, "logits", 2, _link(CATEGORICAL, softmax)),
    Reading("logits, sigmoid applied twice", BINARY, "logits", 2, _link(BINARY, sigmoid)),
    Reading("logits, a sigmoid before the softmax", CATEGORICAL, "logits", 2, _link(CATEGORICAL, sigmoid)),
    Reading("logits, a softmax before the sigmoid", BINARY, "logits", 2, _link(BINARY, softmax)),
    Reading("logits, a ReLU before the softmax", CATEGORICAL, "logits", 2,
            _link(CATEGORICAL, lambda x: np.maximum(x, 0))),
    Reading("logits, a tanh before the softmax", CATEGORICAL, "logits", 2, _link(CATEGORICAL, np.tanh)),
    Reading("logits, a softmax where a sigmoid belongs", BINARY, "logits", 2, _of_probabilities(BINARY, softmax)),
    Reading("logits, a sigmoid where a softmax belongs", CATEGORICAL, "logits", 2,
            _of_probabilities(CATEGORICAL, sigmoid)),
)  # fmt: skip

# The common terms: what is added to each row, whatever its target.
COMMON: dict[str, Callable[[Array, Array, Array, Bend], Array]] = {
    "constant": lambda x, t, log_p, bend: np.ones(len(x)),
    "log Z squared": lambda x, t, log_p, bend: np.asarray(log_sum_exp(x)) ** 2,
    "log Z squared, of what the softmax sees": lambda x, t, log_p, bend: (
        np.asarray(log_sum_exp(bend.logits(x))) ** 2
    ),
    "entropy": lambda x, t, log_p, bend: -(np.exp(log_p) * log_p).sum(-1),
    "t log t": lambda x, t, log_p, bend: np.asarray(xlogy(t, t).sum(-1)),
}


def label_costs(reading: Reading, x: Array, bend: Bend) -> Array:
    """(1 - p)^gamma times -log p, for every class, or for both sides of every binary problem."""
    log_p = reading.log_p(x, bend)
    if not bend.gamma:
        return -log_p
    with np.errstate(all="ignore"):
        return np.asarray(-log_p * np.maximum(-np.expm1(log_p), 0) ** bend.gamma)


def design(reading: Reading, x: Array, t: Array, bend: Bend, common: Names, labels: Array | None) -> Array:
    """One column for each entry of A, and one for each common term.

    `labels` are the classes whose rows of A are asked for; for a binary family t is one column a problem.
    """
    cost = label_costs(reading, x, bend)
    if reading.family == BINARY:
        sides = np.stack([1 - t, t], -1)  # (rows, problems, the label's two values)
        columns = np.einsum("nkv,nks->nkvs", sides, cost).reshape(len(x), -1)
    elif labels is not None:
        each = [np.stack([t[:, y] * cost[:, y], t[:, y] * cost.mean(-1)], -1) for y in labels]
        columns = np.concatenate(each, -1)
    else:
        columns = np.einsum("ny,nk->nyk", t, cost).reshape(len(x), -1)
    if not common:
        return np.asarray(columns)
    log_p = reading.log_p(x, bend)
    return np.column_stack([columns, *(COMMON[c](x, t, log_p, bend) for c in common)])


@dataclass(frozen=True)
class Fit:
    """A reading with the numbers that predict every row.

    `matrix` is A, of shape (K, K), or (K, 2, 2) for K binary problems; rows of A that were not asked for are nan.
    """

    reading: Reading
    bend: Bend
    common: dict[str, float]
    matrix: Array
    error: float

    def rows(self, x: Array, t: Array) -> Array:
        """The unit losses that the model predicts."""
        cost = label_costs(self.reading, x, self.bend)
        if self.reading.family == BINARY:
            each = np.einsum("nkv,kvs,nks->n", np.stack([1 - t, t], -1), self.matrix, cost)
        else:
            each = (t @ np.nan_to_num(self.matrix) * cost).sum(-1)
        log_p = self.reading.log_p(x, self.bend)
        for name, value in self.common.items():
            each = each + value * COMMON[name](x, t, log_p, self.bend)
        return np.asarray(each)


def _solve(columns: Array, u: Array) -> tuple[float, Array]:
    """The worst error beside the largest value, and the coefficients of least squares."""
    if not np.isfinite(columns).all():
        return np.inf, np.zeros(columns.shape[1])
    scale = np.linalg.norm(columns, axis=0)
    scale[scale == 0] = 1
    coefficients, *_ = np.linalg.lstsq(columns / scale, u, rcond=None)
    return float(np.abs(columns / scale @ coefficients - u).max() / np.abs(u).max()), coefficients / scale


def solve(reading: Reading, x: Array, t: Array, u: Array, bend: Bend, common: tuple[str, ...]) -> Fit:
    """The best A and common terms for a given bend."""
    k = x.shape[-1]
    labels = np.flatnonzero(t.any(0)) if reading.family != BINARY and k > FULL else None
    error, c = _solve(design(reading, x, t, bend, common, labels), u)
    body = c[: len(c) - len(common)]
    if labels is None:
        matrix = body.reshape((k, 2, 2) if reading.family == BINARY else (k, k))
    else:
        matrix = np.full((k, k), np.nan)
        for (own, spread), y in zip(body.reshape(-1, 2), labels, strict=True):
            matrix[y] = spread / k
            matrix[y, y] += own
    return Fit(reading, bend, dict(zip(common, c[len(body) :], strict=True)), matrix, error)


def bent(reading: Reading, x: Array, t: Array, u: Array, names: Names, common: Names) -> Fit:
    """The best fit over one or two of the bends, from a grid and a search around its best point."""
    ranges = {"temperature": (0.005, 50.0), "gamma": (0.05, 8.0), "added": (1e-7, 0.3), "cap": (0.5, 500.0)}
    bounds = np.log([ranges[n] for n in names])

    def at(logs: Array) -> Fit:
        bend = Bend(**dict(zip(names, map(float, np.exp(logs)), strict=True)))
        return solve(reading, x, t, u, bend, common)

    points = 36 if len(names) == 1 else 8
    grid = [np.array(p) for p in itertools.product(*(np.linspace(a, b, points) for a, b in bounds))]
    errors = [at(p).error for p in grid]
    start = grid[int(np.argmin(errors))]
    if len(names) == 1:
        step = float(np.diff(bounds[0])[0]) / (points - 1)
        search = {"bounds": (start[0] - step, start[0] + step), "options": {"xatol": 1e-11}}
        found = optimize.minimize_scalar(lambda v: at(np.array([v])).error, method="bounded", **search)
        return at(np.array([found.x]))
    close = {"xatol": 1e-10, "fatol": 1e-12, "maxiter": 200}
    return at(optimize.minimize(lambda v: at(v).error, start, method="Nelder-Mead", options=close).x)


@dataclass(frozen=True)
class Meaning:
    """What A says: a factor, the smoothing, weights and where they act, and the classes that are left out.

    `weights` has shape (K,), or (K, 2) for the two labels of binary problems, and includes any factor; with
    `acts` = "ratio" only its ratios are known.
    """

    smoothing: float = 0.0
    weights: Array = field(default_factory=lambda: np.ones(1))
    acts: str = ""
    left_out: tuple[int, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether all weights are one number."""
        kept = self.kept
        return bool(np.ptp(kept) <= 1e-4 * np.abs(kept).max())

    @property
    def kept(self) -> Array:
        if self.weights.ndim == 2:
            return self.weights.ravel()
        out = [k for k in self.left_out if k < len(self.weights)]
        found = np.delete(self.weights, out)
        return np.asarray(found[np.isfinite(found)])


def interpret(matrix: Array, family: str, tolerance: float) -> Meaning | None:
    """Read factor, smoothing and weights from A, or None where it has no such form."""
    small = tolerance * np.nanmax(np.abs(matrix))
    if family == BINARY:
        # By side: its own label, the other label.
        own, other = matrix[:, [0, 1], [0, 1]], matrix[:, [1, 0], [0, 1]]
        if np.abs(own[:, 0]).min() < small:
            return None  # the label 0 costs nothing: a sum over the labels that hold, and no yes and no
        if np.abs(other).max() < small:
            return Meaning(0.0, own, "binary")
        with np.errstate(all="ignore"):
            half = other / own / (1 + other / own)
        if np.isfinite(half).all() and np.ptp(half) < 10 * tolerance and abs(half.mean()) < 0.45:
            return Meaning(float(2 * half.mean()), own / (1 - half.mean()), "binary")
        return None
    k = len(matrix)
    asked = [y for y in range(k) if np.isfinite(matrix[y]).all()]
    out = tuple(y for y in asked if np.abs(matrix[y]).max() < small)
    labels = [y for y in asked if y not in out]
    if len(labels) == 0:
        return None
    own = matrix[labels, labels]
    off = np.array([np.delete(matrix[y], y) for y in labels])
    weights = np.full(k, np.nan)
    if np.abs(off).max() < (small / k if k > FULL else small):  # there one number, spread over a row
        weights[labels] = own
        # A weight has one sign; a factor may be negative.
        return Meaning(0.0, weights, "rows", out) if (np.sign(own) == np.sign(own[0])).all() else None
    if len({*np.sign(off).ravel(), *np.sign(own)}) > 1 and not np.ptp(off) < small:
        return None
    if np.ptp(off) < 3 * small and np.ptp(own) < 3 * small:
        factor = float(own.mean() + (k - 1) * off.mean()) or np.nan
        weights[labels] = factor
        return _checked(k * float(off.mean()) / factor, weights, "rows", out)
    if out or len(labels) < k or k < 3:
        return _smoothed_pair(matrix, tolerance) if k == 2 and not out else None
    # A[y, k] = r_y s_k off the diagonal: the logarithms add up.
    pairs = [(y, j) for y in range(k) for j in range(k) if y != j]
    terms = np.zeros((len(pairs) + 1, 2 * k))
    for n, (y, j) in enumerate(pairs):
        terms[n, [y, k + j]] = 1
    terms[-1, :k] = 1  # the scale of r is free
    logs = np.log(np.abs([matrix[y, j] for y, j in pairs] + [1.0]))
    r_s, *_ = np.linalg.lstsq(terms, logs, rcond=None)
    if np.abs(terms @ r_s - logs).max() > 100 * tolerance:
        return None
    r, s = np.exp(r_s[:k]), np.exp(r_s[k:])
    ratio = np.diag(matrix) / (r * s) * np.sign(matrix[0, 1])
    if np.ptp(ratio) > 300 * tolerance * np.abs(ratio).max():
        return None
    smoothing = k / (float(ratio.mean()) - 1 + k)
    even = 300 * tolerance
    for acts, alike, found in (("columns", r, s), ("rows", s, r), ("ratio", r * s, s)):
        if np.ptp(alike) < even * alike.max():
            level = 1.0
            if acts != "ratio":
                # A summed over k is c w_y (1 - eps) + c eps mean(w), or c w_y where rows are scaled.
                other = off[0, 0] * k / smoothing
                level = float(other / (found[1] if acts == "columns" else found[0]))
            elif abs(level := float(own.mean() / (1 - smoothing + smoothing / k))) and found.min() > 0:
                # The factor of a ratio stands beside the weights, whose scale is free.
                return _checked(smoothing, found / found.min() * level, acts, out)
            return _checked(smoothing, level * found, acts, out)
    return None


def _checked(smoothing: float, weights: Array, acts: str, out: tuple[int, ...]) -> Meaning | None:
    return Meaning(smoothing, weights, acts, out) if -0.5 < smoothing < 0.6 else None


def _smoothed_pair(matrix: Array, tolerance: float) -> Meaning | None:
    """Two classes, with smoothing and a weight for each column, or for each row."""
    for acts, square in (("columns", matrix), ("rows", matrix.T)):
        ratios = np.array([square[1, 0] / square[0, 0], square[0, 1] / square[1, 1]])
        if np.ptp(ratios) < 100 * tolerance:
            half = float((ratios / (1 + ratios)).mean())
            return _checked(2 * half, np.diag(matrix) / (1 - half), acts, ())
    return None


LEVELS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    ((), ()),
    ((), ("log Z squared",)),
    ((), ("constant",)),
    ((), ("entropy",)),
    (("temperature",), ()),
    (("gamma",), ()),
    (("added",), ()),
    ((), ("log Z squared", "constant")),
    (("temperature",), ("log Z squared",)),
    (("temperature",), ("log Z squared, of what the softmax sees",)),
    (("cap",), ()),
    (("cap",), ("log Z squared, of what the softmax sees",)),
    (("gamma",), ("log Z squared",)),
    (("gamma",), ("constant",)),
    (("temperature",), ("constant",)),
    (("temperature", "gamma"), ()),
)


def of_z(common: Iterable[str]) -> bool:
    """Whether a common term is a penalty on log Z."""
    return any(name.startswith("log Z") for name in common)


def fits(
    kind: str, binary: bool, x: Array, t: Array, u: Array, level: int, tolerance: float
) -> Iterator[Fit]:
    """The readings of a kind of input that predict every row at one level of complication."""
    bends, common = LEVELS[level]
    for reading in READINGS:
        if reading.kind != kind or (reading.family == BINARY) != binary:
            continue
        pointless = (
            binary and "softmax" in reading.name and x.shape[-1] == 1,  # a softmax of one column says nothing
            kind != "logits" and ({"temperature", "cap"} & {*bends} or of_z(common)),
            level > (0 if reading.kind == "log-probabilities" else 6 if reading.rank else len(LEVELS)),
            reading.rank == 2 and bends and bends != ("temperature",),
            binary and common and common != ("constant",),
        )
        if any(pointless):
            continue
        found = bent(reading, x, t, u, bends, common) if bends else solve(reading, x, t, u, Bend(), common)
        # Coefficients that dwarf what they add up to fit anything.
        sober = np.nanmax(np.abs(found.matrix)) < 1e3 * np.abs(u).max()
        if sober and found.error < tolerance and all(abs(v) > 1e-9 for v in found.common.values()):
            yield found


def coarse_fits(
    kind: str, binary: bool, x: Array, t: Array, u: Array, tolerance: float
) -> Iterator[tuple[Fit, Meaning]]:
    """Readings with a factor alone, for a loss that rounds to so few digits that more would fit its noise."""
    k = x.shape[-1]
    for reading in READINGS:
        other = reading.kind != kind or (reading.family == BINARY) != binary
        if other or (binary and "softmax" in reading.name):
            continue
        eye = np.tile(np.eye(2), (k, 1, 1)) if binary else np.eye(k)
        plain = Fit(reading, Bend(), {}, eye, 0.0).rows(x, t)
        c = float(plain @ u / (plain @ plain))
        error = float(np.abs(c * plain - u).max() / np.abs(u).max())
        if error < tolerance:
            meaning = Meaning(0.0, np.full((k, 2) if binary else k, c), "binary" if binary else "rows")
            yield Fit(reading, Bend(), {}, c * eye, error), meaning
