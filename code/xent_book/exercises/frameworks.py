"""Exercises of chapter 07: predict what a framework returns, find its denominator, repair its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from xent.numerics import softmax
from xent_book.exercises._check import Exercise, Mistake

Array = np.ndarray[Any, Any]


def _means_inputs() -> list[tuple[Array, Array]]:
    rng = np.random.default_rng(0)
    return [
        (np.array([0.4, 0.2, 1.1]), np.array([1.0, 3.0, 0.0])),
        (rng.exponential(size=8), rng.uniform(0.5, 4, 8)),
    ]


def _tf_inputs() -> list[tuple[Array, Array]]:
    z = np.array([2.0, 1.0, 0.0])
    return [
        (z, np.array([2.0, 0.0, 0.0])),
        (z, np.zeros(3)),
        (z - 1, np.array([0.2, 0.5, 0.3])),
        (np.array([0.3, -1.2]), np.array([1.0, 0.5])),
    ]


def _bce_inputs() -> list[tuple[float, float]]:
    return [(-40.0, 1.0), (-30.0, 1.0), (-28.0, 1.0), (-3.0, 1.0), (2.0, 0.0), (-29.0, 0.0)]


def _torch_bce(z: float, y: float) -> float:
    """What torch's binary_cross_entropy passes back to the logit through a sigmoid."""
    p = 1 / (1 + np.exp(-z))
    spread = p * (1 - p)
    return float((p - y) / max(spread, 1e-12) * spread)


def _ignored_inputs() -> list[tuple[Array, Array]]:
    nan = np.nan
    return [
        (np.array([[nan, nan, nan], [0.0, 3.0, 1.0]]), np.array([-100, 1])),
        (np.array([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [nan, 1.0, 2.0]]), np.array([0, 2, -100])),
    ]


def _repaired(z: Array, y: Array) -> Array:
    counts = y != -100
    gradient = np.zeros_like(z)
    gradient[counts] = softmax(z[counts]) - np.eye(z.shape[1])[y[counts]]
    result: Array = gradient / counts.sum()
    return result


def _times_zero(z: Array, y: Array) -> Array:
    """softmax(z) where nan stays nan, times the mask."""
    counts = y != -100
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    result: Array = (p - np.eye(z.shape[1])[np.where(counts, y, 0)]) * counts[:, None] / counts.sum()
    return result


EXERCISES = (
    Exercise(
        slug="three-means",
        title="One list of losses and weights, three means",
        chapter="07_frameworks",
        reference=lambda losses, weights: (
            (weights * losses).sum() / weights.sum(),
            (weights * losses).mean(),
            losses.mean() * weights.mean(),
        ),
        inputs=_means_inputs,
        rtol=1e-9,
        why="float64 sums of a few numbers",
        mistakes=(
            Mistake(
                "the last is not the weighted mean: the mean of a 1-D batch is taken before the weights come",
                lambda losses, weights: (
                    (weights * losses).sum() / weights.sum(),
                    (weights * losses).mean(),
                    (weights * losses).mean(),
                ),
            ),
            Mistake(
                "the first two are swapped: PyTorch divides by the sum of weights, Keras by N",
                lambda losses, weights: (
                    (weights * losses).mean(),
                    (weights * losses).sum() / weights.sum(),
                    losses.mean() * weights.mean(),
                ),
            ),
            Mistake(
                "the last forgets the weights: the mean of the losses is multiplied by the mean weight",
                lambda losses, weights: (
                    (weights * losses).sum() / weights.sum(),
                    (weights * losses).mean(),
                    losses.mean(),
                ),
            ),
        ),
    ),
    Exercise(
        slug="unnormalised-labels",
        title="The gradient for labels that need not sum to one",
        chapter="07_frameworks",
        reference=lambda z, y: y.sum() * softmax(z) - y,
        inputs=_tf_inputs,
        rtol=1e-9,
        atol=1e-12,
        why="a softmax in float64",
        mistakes=(
            Mistake(
                "this is TensorFlow's p - y: each label pulls with its own p, so p comes sum(y) times",
                lambda z, y: softmax(z) - y,
            ),
            Mistake(
                "this normalises the labels first; the loss as given does not",
                lambda z, y: softmax(z) - y / (y.sum() or 1.0),
            ),
        ),
    ),
    Exercise(
        slug="bceloss-gradient",
        title="The gradient that binary_cross_entropy gives a logit",
        chapter="07_frameworks",
        reference=_torch_bce,
        inputs=_bce_inputs,
        rtol=1e-9,
        atol=1e-15,
        why="a few operations in float64",
        mistakes=(
            Mistake(
                "this is the gradient of the loss; PyTorch divides by max(p (1 - p), 1e-12) on the way",
                lambda z, y: 1 / (1 + np.exp(-z)) - y,
            ),
            Mistake(
                "this stops at the probability: multiply by the sigmoid's slope p (1 - p)",
                lambda z, y: (
                    (1 / (1 + np.exp(-z)) - y) / max(1 / (1 + np.exp(-z)) * (1 - 1 / (1 + np.exp(-z))), 1e-12)
                ),
            ),
            Mistake(
                "the clamp 1e-7 is Keras's, and it clips the probability; PyTorch's is 1e-12",
                lambda z, y: (
                    (1 / (1 + np.exp(-z)) - y)
                    * (1 / (1 + np.exp(-z)) * (1 - 1 / (1 + np.exp(-z))))
                    / max(1 / (1 + np.exp(-z)) * (1 - 1 / (1 + np.exp(-z))), 1e-7)
                ),
            ),
        ),
    ),
    Exercise(
        slug="ignored-nan",
        title="A gradient that ignored rows cannot reach",
        chapter="07_frameworks",
        reference=_repaired,
        inputs=_ignored_inputs,
        rtol=1e-9,
        atol=1e-12,
        why="a softmax in float64",
        mistakes=(
            Mistake("a nan times zero is nan: leave the rows out instead of multiplying", _times_zero),
            Mistake(
                "this divides by all rows, not by those that count",
                lambda z, y: _repaired(z, y) * (y != -100).mean(),
            ),
            Mistake(
                "this is the gradient of the sum: the mean divides by the number of rows that count",
                lambda z, y: _repaired(z, y) * (y != -100).sum(),
            ),
        ),
    ),
    Exercise(
        slug="double-softmax-floor",
        title="What a perfect prediction costs after a second softmax",
        chapter="07_frameworks",
        reference=lambda classes: float(np.log(np.e + classes - 1) - 1),
        inputs=lambda: [(2,), (10,), (1000,), (50_000,)],
        rtol=1e-6,
        why="a closed form",
        mistakes=(
            Mistake("this is a uniform prediction; the logits are one 1 and zeros", lambda k: np.log(k)),
            Mistake("this forgets the label's own logit: subtract 1", lambda k: np.log(np.e + k - 1)),
            Mistake(
                "one of the K terms is e, the others are exp(0) = 1, K - 1 of them",
                lambda k: np.log(np.e + k) - 1,
            ),
        ),
    ),
)
