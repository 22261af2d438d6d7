"""Exercises of chapter 01, binary cross-entropy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from xent.exercises._check import Exercise, Mistake

Array = npt.NDArray[np.float64]


def _sigmoid(z: Array) -> Array:
    """The sigmoid as it is first written down; exp(-z) overflows to inf, and 1 / inf is 0."""
    return 1.0 / (1.0 + np.exp(-z))


def _bce(z: Array, y: Array) -> Array:
    return np.logaddexp(0.0, z) - y * z


def _bce_inputs() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(1)
    return [
        (np.array([0.0, 0.0]), np.array([0.0, 1.0])),
        (np.array([2.0, -1.0, 0.5]), np.array([1.0, 0.0, 0.0])),
        (np.array([1.5, -0.7]), np.array([0.3, 0.9])),
        (rng.normal(scale=3.0, size=(4, 3)), rng.integers(0, 2, size=(4, 3)).astype(float)),
        # Past 37 the sigmoid rounds to 1 in float64, past 709 the exponential overflows.
        (np.array([40.0, -40.0, 1000.0, -1000.0]), np.array([0.0, 1.0, 0.0, 1.0])),
    ]


EXERCISES = (
    Exercise(
        slug="bce-from-logits",
        title="Binary cross-entropy per example, from logits, safe at any size",
        chapter="01_binary",
        reference=_bce,
        inputs=_bce_inputs,
        rtol=1e-9,
        why="stable forms agree to a few units in the last place, and this leaves room for all of them",
        mistakes=(
            Mistake(
                "this looks like log(sigmoid(z)) and log(1 - sigmoid(z)): right in algebra, but the sigmoid "
                "rounds to 0 or 1 for large logits; use softplus, log(1 + exp(z)), in a stable form",
                lambda z, y: -(y * np.log(_sigmoid(z)) + (1 - y) * np.log(1 - _sigmoid(z))),
                lambda z, y: -np.where(y == 1, np.log(_sigmoid(z)), np.log(1 - _sigmoid(z))),
                lambda z, y: np.log(1 + np.exp(z)) - y * z,
            ),
            Mistake(
                "the sign is flipped: this is the log-likelihood, and the loss is its negative",
                lambda z, y: -_bce(z, y),
                lambda z, y: y * np.log(_sigmoid(z)) + (1 - y) * np.log(1 - _sigmoid(z)),
            ),
            Mistake(
                "this looks like a missing second log: the second term is (1 - y) log(1 - p)",
                lambda z, y: -(y * np.log(_sigmoid(z)) + (1 - y) * (1 - _sigmoid(z))),
                lambda z, y: y * np.logaddexp(0.0, -z) - (1 - y) * (1 - _sigmoid(z)),
            ),
            Mistake(
                "this is the mean over the examples: return one loss for each of them",
                lambda z, y: np.mean(_bce(z, y)),
            ),
            Mistake(
                "the labels are swapped: the loss is small where it should be large",
                lambda z, y: np.logaddexp(0.0, z) - (1 - y) * z,
            ),
        ),
    ),
)
