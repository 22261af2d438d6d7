"""Exercises of chapter 01, binary cross-entropy."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from xent_book.exercises._check import Array, Exercise


def _sigmoid(z: Array) -> Any:
    """The sigmoid as it is first written down; exp(-z) overflows to inf, and 1 / inf is 0."""
    return 1.0 / (1.0 + np.exp(-z))


def _heads(loss: float, p: float, n: int, log: Any = math.log) -> float:
    return float(n * (loss + log(1 - p)) / (log(1 - p) - log(p)))


def _heads_inputs() -> list[tuple[Any, ...]]:
    # Rounded, so that the formula is a little off the whole number, for some above it and for some below.
    coins = [(7, 10, 0.9), (213, 1000, 0.2), (0, 4, 0.6), (5, 5, 0.3), (61, 100, 0.45)]
    return [(round(-(k * math.log(p) + (n - k) * math.log1p(-p)) / n, 10), p, n) for k, n, p in coins]


def _bce(z: Array, y: Array) -> Any:
    # Both terms are positive: a loss close to zero keeps its digits, as it would not in softplus(z) - y z.
    return y * np.logaddexp(0.0, -z) + (1 - y) * np.logaddexp(0.0, z)


def _bce_inputs() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(1)
    return [
        (np.array([0.0, 0.0]), np.array([0.0, 1.0])),
        (np.array([2.0, -1.0, 0.5]), np.array([1.0, 0.0, 0.0])),
        (np.array([1.5, -0.7]), np.array([0.3, 0.9])),
        (rng.normal(scale=3.0, size=12), rng.integers(0, 2, size=12).astype(float)),
        # Past 37 the sigmoid rounds to 1 in float64, past 709 the exponential overflows.
        (np.array([40.0, -40.0, 1000.0, -1000.0, 900.0, -50.0]), np.array([0.0, 1.0, 0.0, 1.0, 0.3, 0.8])),
        # Right and certain: losses of 2e-9 and 4e-18. The last target is close to 1, and y z to z.
        (np.array([20.0, -20.0, 40.0, -40.0, 600.0, 1000.0]), np.array([1.0, 0.0, 1.0, 0.0, 1.0, 1 - 1e-14])),
    ]


def _from_p(z: Array, y: Array, p: Array, eps: float = 0.0) -> Any:
    return -(y * np.log(p + eps) + (1 - y) * np.log(1 - p + eps))


def _with_eps(eps: float) -> tuple[Any, Any]:
    """The two ways to write an epsilon: p clipped at both ends, or added in the logarithms."""
    return (
        lambda z, y: _from_p(z, y, np.clip(_sigmoid(z), eps, 1 - eps)),
        lambda z, y: _from_p(z, y, _sigmoid(z), eps),
    )


def _reaches(x: Array, y: Array, beats: Any = np.greater) -> bool:
    """Whether some 0 lies beyond some 1."""
    zeros, ones = x[y == 0], x[y == 1]
    return bool(zeros.size and ones.size and beats(zeros.max(), ones.min()))


def _overlap(x: Array, y: Array, beats: Any = np.greater) -> bool:
    return _reaches(x, y, beats) and _reaches(x, 1 - y, beats)


def _overlap_inputs() -> list[tuple[Any, ...]]:
    rows = [
        # The classes interleave; they part; they part the other way round.
        *(("0123", "0101"), ("0123", "0011"), ("0123", "1100")),
        # They meet in one value, in whichever order it comes: no cut is clean, and still no finite fit.
        *(("0112", "0011"), ("0112", "1100"), ("0112", "0101"), ("0112", "1010")),
        # One class only; one class inside the other; a feature of two values; a long way, and one pair exchanged.
        *(("012", "111"), ("012", "000"), ("0225", "1001"), ("0225", "0110"), ("201", "001")),
        *(("0011", "0101"), ("0123456789abcdefghij", 9 * "0" + "10" + 9 * "1")),
    ]
    return [(np.array([float(int(c, 36)) for c in x]), np.array([*map(int, y)])) for x, y in rows]


EXERCISES = (
    Exercise(
        "coin-heads",
        lambda loss, p, n: round(_heads(loss, p, n)),
        _heads_inputs,
        atol=1e-6,  # a whole number, which the formula misses by less than 1e-7 for a loss of ten decimals
        mistakes={
            "this is the number of tails: a head costs -log(p), and a tail -log(1 - p)": (
                lambda loss, p, n: n - _heads(loss, p, n)
            ),
            "this cuts 6.999 999 99 off to 6: round() goes to the nearest whole number": (
                lambda loss, p, n: int(_heads(loss, p, n)),
                lambda loss, p, n: math.floor(_heads(loss, p, n)),
            ),
            "the tails cost something too, -log(1 - p) each": (
                lambda loss, p, n: -n * loss / math.log(p),
                lambda loss, p, n: round(-n * loss / math.log(p)),
            ),
            "this is the share of heads: multiply by the number of tosses": (
                lambda loss, p, n: _heads(loss, p, n) / n
            ),
            "the tails' term has the wrong sign: n loss = -k log(p) - (n - k) log(1 - p)": (
                lambda loss, p, n: n * (loss - math.log1p(-p)) / (math.log1p(-p) - math.log(p))
            ),
            "the second logarithm is missing: a tail costs -log(1 - p)": (
                lambda loss, p, n: n * (loss + 1 - p) / (1 - p - math.log(p))
            ),
            "the loss is in nats: use the natural logarithm": (
                *(partial(_heads, log=log) for log in (math.log2, math.log10)),
            ),
            "n p is what the colleague expected; the loss tells what happened": (lambda loss, p, n: n * p),
        },
    ),
    Exercise(
        "bce-from-logits",
        _bce,
        _bce_inputs,
        mistakes={
            "the sigmoid rounds to 0 or 1 for large logits: use log(1 + exp(z)) in a stable form": (
                lambda z, y: -(y * np.log(_sigmoid(z)) + (1 - y) * np.log(1 - _sigmoid(z))),
                lambda z, y: -np.where(y == 1, np.log(_sigmoid(z)), np.log(1 - _sigmoid(z))),
                lambda z, y: -(y * np.log(_sigmoid(z)) + (1 - y) * np.log(_sigmoid(-z))),
                lambda z, y: -(y * np.log(_sigmoid(z)) + (1 - y) * np.log1p(-_sigmoid(z))),
            ),
            "a clip or an epsilon puts a ceiling on the loss and spoils small ones: start from the logit": (
                *(f for k in range(5, 17) for f in _with_eps(10.0**-k)),
            ),
            "log(1 + x) has lost the digits of a small x: np.log1p(x) keeps them": (
                lambda z, y: np.maximum(z, 0.0) - y * z + np.log(1 + np.exp(-np.abs(z))),
                lambda z, y: (
                    y * np.maximum(-z, 0) + (1 - y) * np.maximum(z, 0) + np.log(1 + np.exp(-np.abs(z)))
                ),
            ),
            "this is one of the two terms only: add y softplus(-z) and (1 - y) softplus(z)": (
                lambda z, y: y * np.logaddexp(0.0, -z)
            ),
            "these are logits, not probabilities: their logarithm means nothing": (
                lambda z, y: _from_p(z, y, z)
            ),
            "exp(z) overflows past 709: take max(z, 0) out of the logarithm, or use logaddexp": (
                lambda z, y: np.log(1 + np.exp(z)) - y * z,
                lambda z, y: np.log1p(np.exp(z)) - y * z,
                lambda z, y: y * np.log1p(np.exp(-z)) + (1 - y) * np.log1p(np.exp(z)),
                lambda z, y: [
                    b * math.log1p(math.exp(-a)) + (1 - b) * math.log1p(math.exp(a))
                    for a, b in zip(z, y, strict=True)
                ],
            ),
            "where the loss is small, a difference has lost its digits: add y softplus(-z) and (1 - y) "
            "softplus(z)": (
                lambda z, y: np.logaddexp(0.0, z) - y * z,
                lambda z, y: np.logaddexp(0.0, -z) + (1 - y) * z,
                # TensorFlow's formula: right for the labels 0 and 1.
                lambda z, y: np.maximum(z, 0.0) - y * z + np.log1p(np.exp(-np.abs(z))),
            ),
            "this holds for the labels 0 and 1 only: between them it is y softplus(-z) + (1 - y) softplus(z)": (
                lambda z, y: np.logaddexp(0.0, (1 - 2 * y) * z),
                *(lambda z, y, t=t: np.logaddexp(0.0, np.where(y > t, -z, z)) for t in (0.0, 0.5)),
                lambda z, y: np.logaddexp(0.0, np.where(y == 1, -z, z)),
            ),
            "this looks like a missing second log: the second term is (1 - y) log(1 - p)": (
                lambda z, y: -(y * np.log(_sigmoid(z)) + (1 - y) * (1 - _sigmoid(z)))
            ),
            "the labels are swapped: the loss is small where it should be large": lambda z, y: _bce(z, 1 - y),
        },
    ),
    Exercise(
        "undo-pos-weight",
        lambda q, c: q / (q + c * (1 - q)),
        lambda: [
            (np.array([0.5, 0.9, 0.1]), 10.0),
            (np.array([0.0, 0.25, 1.0]), 0.5),
            (np.array([0.7]), 3.0),
        ],
        mistakes={
            "this is the way forward, which weighs the positives once more: solve for the frequency": (
                lambda q, c: c * q / (c * q + 1 - q)
            ),
            "the odds are divided by the weight, not the probability: then turn them back into one": (
                lambda q, c: q / c
            ),
            "these are the odds: turn them back into a probability, odds / (1 + odds)": (
                lambda q, c: q / (1 - q) / c
            ),
            "the logit is shifted by log(c), not by c": (lambda q, c: _sigmoid(np.log(q / (1 - q)) - c)),
        },
    ),
    Exercise(
        "finite-fit-1d",
        _overlap,
        _overlap_inputs,
        atol=0.5,  # a yes or a no
        mistakes={
            "where the classes only meet in a value, a curve through it that grows steeper never stops improving": (
                lambda x, y: _overlap(x, y, np.greater_equal),
                lambda x, y: bool(np.abs(np.diff(y[np.argsort(x, kind="stable")])).sum() > 1),
            ),
            "only one order is tested: the positives may also lie on the left": (
                _reaches,
                lambda x, y: _reaches(-x, y),
            ),
            "an empty class has no maximum: if all labels are the same, return False before you compare": (
                lambda x, y: bool(x[y == 0].max() > x[y == 1].min() and x[y == 1].max() > x[y == 0].min())
            ),
            "two classes are needed, and they are not enough: they must also overlap": (
                lambda x, y: bool(0 < y.sum() < len(y))
            ),
            "yes and no are exchanged: the fit exists where the classes overlap, not where they part": (
                lambda x, y: not _overlap(x, y)
            ),
        },
    ),
)
