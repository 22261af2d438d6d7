"""The exercises of chapter 09, proper scoring rules."""

from __future__ import annotations

from typing import Any

import numpy as np

from xent import scoring
from xent_book.exercises._check import Exercise


def _focal(q: Any, gamma: float) -> Any:
    return scoring.invert_focal(np.stack([1 - q, q], axis=-1), gamma=gamma)


def _divide(q: Any, of_zero: float, of_one: float) -> Any:
    return scoring.invert_weighting(q, weight=[of_zero, of_one])[..., 1]


def _normalised(q: Any) -> Any:
    return q / q.sum()


EXERCISES: tuple[Exercise, ...] = (
    Exercise(
        "scoring-alpha-focal",
        lambda q, gamma, alpha: _divide(_focal(q, gamma), 1 - alpha, alpha),
        # Reports for the positive class, gamma, alpha.
        lambda: [(np.array([0.05, 0.3, 0.5, 0.62, 0.9]), *c) for c in ((2.0, 0.25), (1.0, 0.6), (0.5, 0.9))],
        "alpha is still in there: undo the weights after the focal factor",
        lambda q, gamma, alpha: _focal(q, gamma)[..., 1],
        "alpha is the weight of the positive class: divide by it, not by 1 - alpha",
        lambda q, gamma, alpha: _divide(_focal(q, gamma), alpha, 1 - alpha),
        "this undoes the weights and leaves the focal factor in",
        lambda q, gamma, alpha: _divide(np.stack([1 - q, q], axis=-1), 1 - alpha, alpha),
        "focal loss saw the weighted distribution: its inverse goes first, then the weights",
        lambda q, gamma, alpha: _focal(_divide(np.stack([1 - q, q], axis=-1), 1 - alpha, alpha), gamma)[
            ..., 1
        ],
        "the two entries do not sum to one: normalise after dividing by the weights",
        lambda q, gamma, alpha: _focal(q, gamma)[..., 1] / alpha,
    ),
    Exercise(
        "scoring-weighted-smoothing",
        lambda p, w, eps: _normalised(w * ((1 - eps) * p + eps / len(p))),
        lambda: [
            (np.array([0.5, 0.3, 0.2]), np.array([1.0, 2.0, 5.0]), 0.3),
            (np.array([0.9, 0.1]), np.array([1.0, 9.0]), 0.1),
            (np.array([0.4, 0.3, 0.2, 0.1]), np.array([2.0, 0.5, 1.0, 3.0]), 0.6),
        ],
        "this weights first and smooths afterwards: in PyTorch the weights stand inside the second sum",
        lambda p, w, eps: (1 - eps) * _normalised(w * p) + eps / len(p),
        "the weights are not in it",
        lambda p, w, eps: (1 - eps) * p + eps / len(p),
        "this divides by the weights, which is the way back",
        lambda p, w, eps: _normalised(((1 - eps) * p + eps / len(p)) / w),
        "the second term is weighted too: w_k stands inside its sum",
        lambda p, w, eps: _normalised((1 - eps) * w * p + eps / len(p)),
        "this does not sum to one: divide by the sum over the classes",
        lambda p, w, eps: w * ((1 - eps) * p + eps / len(p)),
    ),
)
