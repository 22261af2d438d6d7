"""Exercises of chapter 07: predict what a framework returns, find its denominator, repair its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from xent.numerics import softmax
from xent_book.exercises._check import Array, Exercise


def _means_inputs() -> list[tuple[Array, Array]]:
    rng = np.random.default_rng(0)
    return [
        (np.array([0.4, 0.2, 1.1]), np.array([1.0, 3.0, 0.0])),
        (rng.exponential(size=8), rng.uniform(0.5, 4, 8)),
    ]


def _means(losses: Array, weights: Array) -> tuple[Any, Any, Any]:
    weighted = weights * losses
    return weighted.sum() / weights.sum(), weighted.mean(), losses.mean() * weights.mean()


def _belief_inputs() -> list[tuple[float, int]]:
    """What a second softmax reports of beliefs from the wrong end to the right one, and the classes."""
    beliefs = ((0.0, 2), (1 / 3, 2), (0.4142136, 10), (8 / 9, 10), (1.0, 3), (0.7071068, 1000))
    return [(float(np.log(np.exp(p) + (k - 1) * np.exp((1 - p) / (k - 1))) - p), k) for p, k in beliefs]


def _belief(loss: float, classes: int) -> float:
    r = np.log(np.expm1(loss) / (classes - 1))
    return float((1 - (classes - 1) * r) / classes)


def _repaired(z: Array, y: Array) -> Any:
    counts = y != -100
    gradient = np.zeros(z.shape)
    gradient[counts] = softmax(z[counts]) - np.eye(z.shape[1])[y[counts]]
    return gradient / counts.sum()


def _times_zero(z: Array, y: Array) -> Any:
    """softmax(z) where nan stays nan, times the mask."""
    counts = y != -100
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return (p - np.eye(z.shape[1])[np.where(counts, y, 0)]) * counts[:, None] / counts.sum()


EXERCISES = (
    Exercise(
        "three-means",
        _means,
        _means_inputs,
        "the last is no weighted mean: the mean of a 1-D batch is taken before the weights come",
        lambda x, w: (*_means(x, w)[:2], (w * x).mean()),
        "the first two are swapped: PyTorch divides by the sum of weights, Keras by N",
        lambda x, w: (*_means(x, w)[1::-1], _means(x, w)[2]),
        "the last forgets the weights: the mean of the losses is multiplied by the mean weight",
        lambda x, w: (*_means(x, w)[:2], x.mean()),
    ),
    Exercise(
        "ignored-nan",
        _repaired,
        lambda: [
            (np.array([[np.nan] * 3, [0.0, 3.0, 1.0]]), np.array([-100, 1])),
            (np.array([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [np.nan, 1.0, 2.0]]), np.array([0, 2, -100])),
            (np.array([[0, 3, 1], [2, 0, 0]]), np.array([1, -100])),  # whole numbers
            (np.array([[np.inf, 1.0, 0.0], [1000.0, 0.0, -1000.0]]), np.array([-100, 1])),
        ],
        "a nan times zero is nan: leave the rows out instead of multiplying",
        _times_zero,
        "a row with the label -100 gets zeros, not the gradient of another label",
        lambda z, y: (softmax(np.nan_to_num(z)) - np.eye(z.shape[1])[np.maximum(y, 0)]) / (y != -100).sum(),
        "this divides by all rows, not by those that count",
        lambda z, y: _repaired(z, y) * (y != -100).mean(),
        "this is the gradient of the sum: divide by the number of rows that count",
        lambda z, y: _repaired(z, y) * (y != -100).sum(),
        atol=1e-12,  # a softmax in float64
    ),
    Exercise(
        "double-softmax-belief",
        _belief,
        _belief_inputs,
        "exp(-loss) is the second softmax's probability: the first one's is a logit inside it",
        lambda loss, classes: np.exp(-loss),
        "the other classes share 1 - p: their logits are (1 - p) / (K - 1)",
        lambda loss, classes: -np.log(np.expm1(loss) / (classes - 1)),
        "the others are K - 1 classes, not K",
        lambda loss, classes: (1 - (classes - 1) * np.log(np.expm1(loss) / classes)) / classes,
        atol=1e-9,  # a difference of logarithms, thousandfold for a thousand classes
    ),
)
