"""Losses that are cross-entropy with something more: a factor, weights, focusing, a temperature.

A variant is a few terms, known up to one coefficient each and at most one parameter that bends them. Batches
of several sizes give more equations than unknowns, so a wrong variant does not fit: the coefficients come
from least squares, the parameter from a search, and every value has to be predicted within a relative 2e-4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from scipy import optimize

from xent.numerics import log_softmax, softmax

Array: TypeAlias = "np.ndarray[Any, Any]"
Ask: TypeAlias = "Callable[[str, Array, Array], Array | None]"
# The terms of each row, one column a coefficient, from the prediction, the target and the parameter.
Terms: TypeAlias = "Callable[[Array, Array, float], Array]"

K = 3
SIZES = (4, 5, 6, 7, 4, 5, 6, 7, 5, 6)
RTOL = 2e-4
CATEGORICAL, BINARY = "categorical cross-entropy", "binary cross-entropy"


@dataclass(frozen=True)
class Found:
    """What a loss is, and what was added to it."""

    family: str
    first: str
    form: str
    reads: str
    reduction: str
    denominator: str
    variant: str


def _log_p(x: Array, reads: str) -> Array:
    if reads == "logits":
        return np.asarray(log_softmax(x))
    return np.log(x) if reads == "probabilities" else x


def _sides(x: Array, t: Array, reads: str) -> tuple[Array, Array]:
    """The costs of the two answers of each binary problem, where they apply."""
    z = x if reads == "logits" else np.log(x) - np.log1p(-x)
    return t * np.logaddexp(0, -z), (1 - t) * np.logaddexp(0, z)


def _plain(reads: str) -> Terms:
    return lambda x, t, _: -(t * _log_p(x, reads)).sum(-1, keepdims=True)


def _by_class(reads: str) -> Terms:
    return lambda x, t, _: -t * _log_p(x, reads)


def _focal(reads: str) -> Terms:
    def terms(x: Array, t: Array, gamma: float) -> Array:
        log_p = _log_p(x, reads)
        return np.asarray(-(t * (-np.expm1(log_p)) ** gamma * log_p).sum(-1, keepdims=True))

    return terms


def _binary(reads: str) -> Terms:
    return lambda x, t, _: np.stack([side.sum(-1) for side in _sides(x, t, reads)], -1)


def _binary_focal(reads: str) -> Terms:
    def terms(x: Array, t: Array, gamma: float) -> Array:
        p = x if reads == "probabilities" else 1 / (1 + np.exp(-x))
        up, down = _sides(x, t, reads)
        return np.stack([((1 - p) ** gamma * up).sum(-1), (p**gamma * down).sum(-1)], -1)

    return terms


def _name_factor(factor: float) -> str:
    for name, value in (("bits: ", 1 / np.log(2)), ("hartleys: ", 1 / np.log(10))):
        if abs(factor / value - 1) < RTOL:
            return f"{name}times {factor:.4g}"
    whole = round(1 / factor) if factor else 0
    divided = f" (divided by {whole})" if abs(whole) > 1 and abs(whole * factor - 1) < RTOL else ""
    return f"times {factor:.4g}{divided}"


def _name_weights(weights: Array, over: str) -> str:
    """Weights by class, relative to the smallest positive one; a weight of zero is a label left out."""
    out = [str(k) for k in range(K) if abs(weights[k]) < RTOL * np.abs(weights).max()]
    others = np.delete(weights, [int(k) for k in out])
    left = f"label {' and '.join(out)} left out" if out else ""
    if np.ptp(others) < RTOL * np.abs(others).max():
        return f"{left}, divides by {over}" if left else ""
    ratio = " : ".join(f"{w:.4g}" for w in weights / np.abs(others).min())
    return f"class weights {ratio}{', ' + left if left else ''}, divides by {over}"


def _name_sides(c: Array, _: float) -> str:
    if min(abs(c)) < RTOL:
        return ""
    scale = "" if abs(c[1] - 1) < RTOL else _name_factor(float(c[1]))
    weight = "" if abs(c[0] / c[1] - 1) < RTOL else f"pos_weight {c[0] / c[1]:.4g}"
    return ", ".join(filter(None, (weight, scale)))


def _name_binary_focal(c: Array, gamma: float) -> str:
    if abs(c.sum() - 1) < RTOL:
        return f"focal, gamma {gamma:.3g}, alpha {c[0]:.3g}"
    scale = "" if np.allclose(c, 1, RTOL) else f", {c[0]:.3g} of the positive and {c[1]:.3g} of the negative"
    return f"focal, gamma {gamma:.3g}{scale}"


def _name_focal(c: Array, gamma: float) -> str:
    return f"focal, gamma {gamma:.3g}" + ("" if abs(c[0] - 1) < RTOL else f", {_name_factor(float(c[0]))}")


def _name_temperature(c: Array, t: float) -> str:
    extra = {True: ""}.get(abs(c[0] - 1) < RTOL, f", times {c[0]:.4g}")
    extra = f", times T² = {t * t:.4g}" if abs(c[0] / t**2 - 1) < RTOL else extra
    return f"temperature {t:.4g}{extra}"


@dataclass(frozen=True)
class _Variant:
    """Terms, how the fitted numbers are called, the range of what bends them, and whether they see other rows."""

    family: str
    reads: str
    terms: Terms
    name: Callable[[Array, float], str]
    bounds: tuple[float, float] | None = None
    over_batch: bool = False


def _variants() -> Iterator[_Variant]:
    """The variants, those with the fewest unknowns first."""
    for reads in ("logits", "probabilities", "log-probabilities"):
        yield _Variant(CATEGORICAL, reads, _plain(reads), lambda c, _: _name_factor(float(c[0])))
    yield _Variant(
        CATEGORICAL, "logits, softmax over the batch",
        lambda x, t, _: -(t * log_softmax(x, axis=0)).sum(-1, keepdims=True),
        lambda c, _: "softmax over axis 0" + ("" if abs(c[0] - 1) < RTOL else f", times {c[0]:.4g}"),
        over_batch=True,
    )  # fmt: skip
    for reads in ("logits", "probabilities"):
        yield _Variant(BINARY, reads, _binary(reads), _name_sides)
    yield _Variant(
        CATEGORICAL, "logits", lambda x, t, T: _plain("logits")(x / T, t, 0.0), _name_temperature, (0.05, 50)
    )
    for reads in ("logits", "probabilities"):
        yield _Variant(CATEGORICAL, reads, _focal(reads), _name_focal, (0.05, 8))
        yield _Variant(BINARY, reads, _binary_focal(reads), _name_binary_focal, (0.05, 8))
    for reads in ("logits", "probabilities", "log-probabilities"):
        yield _Variant(CATEGORICAL, reads, _by_class(reads), lambda c, _: _name_weights(c, "nothing"))


@dataclass(frozen=True)
class _Probe:
    """The batches of one kind and form, and what the loss returned for each."""

    x: list[Array]
    targets: list[Array]
    seen: list[Array]

    @property
    def scalar(self) -> bool:
        return self.seen[0].ndim == 0


def _probes(ask: Ask, flat: bool) -> Iterator[tuple[str, str, str, _Probe]]:
    """Each order, form and kind of input on which the loss answers every batch.

    "multi-hot" is for binary losses: one-hot rows all have the same share of ones, which would hide what a
    mean divides by.
    """
    rng = np.random.default_rng(23)
    width = 1 if flat else K
    logits: list[Array] = [rng.normal(0.3, 1.4, (n, width)) for n in SIZES]
    labels = [rng.permutation(np.arange(n) % K) for n in SIZES]
    hard = [(rng.permutation(np.arange(n)) % 2)[:, None].astype(float) for n in SIZES]
    onehot = [np.eye(K)[y] for y in labels]
    several = [rng.integers(0, 2, (n, K)).astype(float) for n in SIZES]
    kinds = {
        "logits": logits,
        "probabilities": [1 / (1 + np.exp(-z)) if flat else softmax(z) for z in logits],
    }
    if not flat:
        kinds["log-probabilities"] = [log_softmax(z) for z in logits]
    forms = {"0 or 1": hard} if flat else {"indices": labels, "one-hot": onehot, "multi-hot": several}
    for first in ("prediction", "target"):
        for form, given in forms.items():
            for kind, xs in kinds.items():
                seen: list[Array] = []
                for x, t in zip(xs, given, strict=True):
                    value = ask(first, x[:, 0] if flat else x, t[:, 0] if flat else t)
                    if value is None or value.shape not in ((), (len(x),)) or not np.isfinite(value).all():
                        break
                    seen.append(value)
                if len(seen) == len(SIZES):
                    yield first, form, kind, _Probe(xs, onehot if form == "indices" else given, seen)


def _residual(terms: Array, wanted: Array) -> tuple[float, Array]:
    """The worst relative error of the best coefficients, and these."""
    c, *_ = np.linalg.lstsq(terms, wanted, rcond=None)
    return float(np.max(np.abs(terms @ c - wanted)) / np.max(np.abs(wanted))), np.asarray(c)


def _fit(variant: _Variant, probe: _Probe, denominator: str) -> tuple[float, Array, float]:
    """Return the error, the coefficients and the parameter of a variant under a reduction."""
    # Where no term looks beyond its row, all batches are one array.
    batches = [(np.concatenate(probe.x), np.concatenate(probe.targets))]
    if variant.over_batch:
        batches = list(zip(probe.x, probe.targets, strict=True))
    starts = np.cumsum([0, *map(len, probe.x[:-1])])
    divisors = [[{"nothing": 1, "N": len(x), "N*K": x.size}[denominator]] for x in probe.x]
    wanted = np.array(probe.seen) if probe.scalar else np.concatenate(probe.seen)

    def at(shape: float) -> tuple[float, Array]:
        terms = np.concatenate([variant.terms(x, t, shape) for x, t in batches])
        return _residual(np.add.reduceat(terms, starts) / divisors if probe.scalar else terms, wanted)

    if variant.bounds is None:
        return *at(0.0), 0.0
    low, high = np.log(variant.bounds)
    grid = np.linspace(low, high, 25)
    start = grid[int(np.argmin([at(float(np.exp(g)))[0] for g in grid]))]
    step = grid[1] - grid[0]
    best = optimize.minimize_scalar(
        lambda g: at(float(np.exp(g)))[0], bounds=(start - step, start + step), method="bounded",
        options={"xatol": 1e-10},
    )  # fmt: skip
    shape = float(np.exp(best.x))
    return *at(shape), shape


def _weighted_mean(probe: _Probe, reads: str, binary: bool) -> str:
    """The class weights of a mean that divides by their sum: the null space of sum_k w_k (l_k - L n_k)."""
    rows = []
    for x, t, value in zip(probe.x, probe.targets, probe.seen, strict=True):
        if binary:
            costs, counts = _binary(reads)(x, t, 0.0).sum(0), np.array([t.sum(), (1 - t).sum()])
        else:
            costs, counts = _by_class(reads)(x, t, 0.0).sum(0), t.sum(0)
        rows.append(costs - value * counts)
    _, size, right = np.linalg.svd(np.array(rows))
    weights = right[-1] / right[-1][np.argmax(np.abs(right[-1]))]
    if size[-1] > RTOL * size[-2] or size[-2] < 1e-3 * size[0] or (weights < -RTOL).any():
        return ""
    over = "the sum of weights"
    return (
        f"pos_weight {weights[0] / weights[1]:.4g}, divides by {over}"
        if binary
        else _name_weights(weights, over)
    )


def find_variant(ask: Ask) -> Found | None:
    """Return the variant that predicts what a loss returns, or None.

    Parameters
    ----------
    ask : callable
        Takes "prediction" or "target" (what comes first), the prediction and the target; returns the value
        as an array, or None where the loss raises.

    Returns
    -------
    Found or None
        The variant with the fewest unknowns of those that fit.
    """
    for flat in (False, True):
        for first, form, kind, probe in _probes(ask, flat):
            binary = form in ("multi-hot", "0 or 1")
            for variant in _variants():
                if variant.reads.split(",")[0] != kind or (variant.family == BINARY) != binary:
                    continue
                mean = "N*K" if variant.family == BINARY and not flat else "N"
                for denominator in (mean, "nothing") if probe.scalar else ("nothing",):
                    error, c, shape = _fit(variant, probe, denominator)
                    name = variant.name(c, shape) if error < RTOL else ""
                    if name:
                        name = name.replace("divides by nothing", f"divides by {denominator}")
                        reduction = (
                            "none" if not probe.scalar else "sum" if denominator == "nothing" else "mean"
                        )
                        return Found(variant.family, first, form, variant.reads, reduction, denominator, name)
            if not probe.scalar or (binary and kind == "log-probabilities"):
                continue
            if name := _weighted_mean(probe, kind, binary):
                family = BINARY if binary else CATEGORICAL
                return Found(family, first, form, kind, "mean", "the sum of weights", name)
    return None
