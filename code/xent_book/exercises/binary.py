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


EXERCISES = (
    Exercise(
        "coin-heads",
        lambda loss, p, n: round(_heads(loss, p, n)),
        _heads_inputs,
        "this is the number of tails: a head costs -log(p), and a tail -log(1 - p)",
        lambda loss, p, n: n - _heads(loss, p, n),
        "this cuts 6.999 999 99 off to 6: round() goes to the nearest whole number",
        lambda loss, p, n: int(_heads(loss, p, n)),
        lambda loss, p, n: math.floor(_heads(loss, p, n)),
        "the tails cost something too, -log(1 - p) each",
        lambda loss, p, n: -n * loss / math.log(p),
        lambda loss, p, n: round(-n * loss / math.log(p)),
        "this is the share of heads: multiply by the number of tosses",
        lambda loss, p, n: _heads(loss, p, n) / n,
        "the tails' term has the wrong sign: n loss = -k log(p) - (n - k) log(1 - p)",
        lambda loss, p, n: n * (loss - math.log1p(-p)) / (math.log1p(-p) - math.log(p)),
        "the second logarithm is missing: a tail costs -log(1 - p)",
        lambda loss, p, n: n * (loss + 1 - p) / (1 - p - math.log(p)),
        "the loss is in nats: use the natural logarithm",
        *(partial(_heads, log=log) for log in (math.log2, math.log10)),
        "n p is what the colleague expected; the loss tells what happened",
        lambda loss, p, n: n * p,
        atol=1e-6,  # a whole number, which the formula misses by less than 1e-7 for a loss of ten decimals
    ),
    Exercise(
        "bce-from-logits",
        _bce,
        _bce_inputs,
        "the sigmoid rounds to 0 or 1 for large logits: use log(1 + exp(z)) in a stable form",
        lambda z, y: -(y * np.log(_sigmoid(z)) + (1 - y) * np.log(1 - _sigmoid(z))),
        lambda z, y: -np.where(y == 1, np.log(_sigmoid(z)), np.log(1 - _sigmoid(z))),
        lambda z, y: -(y * np.log(_sigmoid(z)) + (1 - y) * np.log(_sigmoid(-z))),
        lambda z, y: -(y * np.log(_sigmoid(z)) + (1 - y) * np.log1p(-_sigmoid(z))),
        "a clip or an epsilon puts a ceiling on the loss and spoils small ones: start from the logit",
        *(f for k in range(5, 17) for f in _with_eps(10.0**-k)),
        "log(1 + x) has lost the digits of a small x: np.log1p(x) keeps them",
        lambda z, y: np.maximum(z, 0.0) - y * z + np.log(1 + np.exp(-np.abs(z))),
        lambda z, y: y * np.maximum(-z, 0) + (1 - y) * np.maximum(z, 0) + np.log(1 + np.exp(-np.abs(z))),
        "this is one of the two terms only: add y softplus(-z) and (1 - y) softplus(z)",
        lambda z, y: y * np.logaddexp(0.0, -z),
        "these are logits, not probabilities: their logarithm means nothing",
        lambda z, y: _from_p(z, y, z),
        "exp(z) overflows past 709: take max(z, 0) out of the logarithm, or use logaddexp",
        lambda z, y: np.log(1 + np.exp(z)) - y * z,
        lambda z, y: np.log1p(np.exp(z)) - y * z,
        lambda z, y: y * np.log1p(np.exp(-z)) + (1 - y) * np.log1p(np.exp(z)),
        lambda z, y: [
            b * math.log1p(math.exp(-a)) + (1 - b) * math.log1p(math.exp(a))
            for a, b in zip(z, y, strict=True)
        ],
        "where the loss is small, a difference has lost its digits: add y softplus(-z) and (1 - y) "
        "softplus(z)",
        lambda z, y: np.logaddexp(0.0, z) - y * z,
        lambda z, y: np.logaddexp(0.0, -z) + (1 - y) * z,
        # TensorFlow's formula: right for the labels 0 and 1.
        lambda z, y: np.maximum(z, 0.0) - y * z + np.log1p(np.exp(-np.abs(z))),
        "this holds for the labels 0 and 1 only: between them it is y softplus(-z) + (1 - y) softplus(z)",
        lambda z, y: np.logaddexp(0.0, (1 - 2 * y) * z),
        *(lambda z, y, t=t: np.logaddexp(0.0, np.where(y > t, -z, z)) for t in (0.0, 0.5)),
        lambda z, y: np.logaddexp(0.0, np.where(y == 1, -z, z)),
        "this looks like a missing second log: the second term is (1 - y) log(1 - p)",
        lambda z, y: -(y * np.log(_sigmoid(z)) + (1 - y) * (1 - _sigmoid(z))),
        "the labels are swapped: the loss is small where it should be large",
        lambda z, y: _bce(z, 1 - y),
    ),
)
