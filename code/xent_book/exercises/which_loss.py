"""Exercises of chapter 08: read the smoothing, the floor and the distortion off numbers."""

from __future__ import annotations

import numpy as np

from xent.numerics import log_softmax
from xent_book.exercises._check import Array, Exercise


def _ends(z: Array, y: Array) -> tuple[float, float]:
    """The mean loss of the hard labels and that of uniform ones."""
    log_p = log_softmax(z)
    return float(-log_p[np.arange(len(y)), y].mean()), float(-log_p.mean())


def _smoothing_inputs() -> list[tuple[Array, Array, float]]:
    rng = np.random.default_rng(0)
    cases = []
    for epsilon, classes in ((1 / 7, 4), (0.25, 10), (0.0, 3)):
        z, y = rng.normal(0, 2, (6, classes)), rng.integers(0, classes, 6)
        hard, even = _ends(z, y)
        cases.append((z, y, (1 - epsilon) * hard + epsilon * even))
    return cases


def _smoothing(z: Array, y: Array, reported: float) -> float:
    hard, even = _ends(z, y)
    return (reported - hard) / (even - hard)


def _floor(epsilon: float, classes: int) -> float:
    other = epsilon / classes
    own = 1 - epsilon + other
    return float(-own * np.log(own) - (classes - 1) * other * np.log(other))


EXERCISES = (
    Exercise(
        "read-smoothing",
        _smoothing,
        _smoothing_inputs,
        atol=1e-12,  # two means in float64 and a quotient
        mistakes={
            "the label's own class gets epsilon / K too": (
                lambda z, y, reported: _smoothing(z, y, reported) * (z.shape[1] - 1) / z.shape[1]
            ),
            "this takes the hard labels' loss for zero": (lambda z, y, reported: reported / _ends(z, y)[1]),
            "the uniform end is the loss of uniform labels under this model": (
                lambda z, y, reported: (reported - _ends(z, y)[0]) / (np.log(z.shape[1]) - _ends(z, y)[0])
            ),
        },
    ),
    Exercise(
        "smoothing-floor",
        _floor,
        lambda: [(0.1, 2), (0.1, 10), (0.3, 1000)],
        mistakes={
            "the label's own class gets epsilon / K too": (
                lambda epsilon, k: -(1 - epsilon) * np.log(1 - epsilon) - epsilon * np.log(epsilon / (k - 1))
            ),
            "the label's own class gets epsilon / K back: its share is not 1 - epsilon": (
                lambda epsilon, k: -(1 - epsilon) * np.log(1 - epsilon) - epsilon * np.log(epsilon / k)
            ),
            "the smoothed label has an entropy of its own, beside epsilon of a uniform guess": (
                lambda epsilon, k: epsilon * np.log(k)
            ),
        },
    ),
    Exercise(
        "mean-of-means-repair",
        lambda counts: counts / counts.sum(),
        lambda: [(np.array([1, 3]),), (np.array([10, 10, 100]),), (np.array([512.0, 37.0, 256.0, 8.0]),)],
        rtol=1e-6,  # torch divides whole numbers in float32
        mistakes={
            "this leaves the mean of means as it is": lambda c: np.full(len(c), 1 / len(c)),
            "this is how much too much each target counts already: undo it": lambda c: c.mean() / c / len(c),
            "this is right where the loop divides by the number of micro-batches: here it adds": (
                lambda c: c / c.mean()
            ),
            "one over the own count is there already": lambda c: 1 / c,
        },
    ),
)
