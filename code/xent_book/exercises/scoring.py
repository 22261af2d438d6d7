"""The exercises of chapter 09, proper scoring rules."""

from __future__ import annotations

from typing import Any

import numpy as np

from xent import scoring
from xent_book.exercises._check import Exercise


def _entropy_inputs() -> list[tuple[Any, ...]]:
    """Distributions and classes."""
    rng = np.random.default_rng(0)
    return [
        (np.array([0.5, 0.3, 0.2]), 0),
        (np.array([0.5, 0.3, 0.2]), 2),
        (np.array([0.25, 0.75]), 1),
        (rng.dirichlet(np.ones(5)), 3),
    ]


def _focal(q: Any, gamma: float) -> Any:
    return scoring.invert_focal(np.stack([1 - q, q], axis=-1), gamma=gamma)


def _divide(q: Any, of_zero: float, of_one: float) -> Any:
    return scoring.invert_weighting(q, weight=[of_zero, of_one])[..., 1]


def _normalised(q: Any) -> Any:
    return q / q.sum()


def _square_formula(p: Any) -> Any:
    return 1 - (len(p) - 1) / p / (1 / p).sum()


def _square(p: Any) -> Any:
    order = np.argsort(-p)
    for m in range(len(p), 0, -1):
        q = _square_formula(p[order[:m]])
        if (q >= 0).all():
            break
    out = np.zeros(len(p))
    out[order[:m]] = q
    return out


def _two_stay(p: Any) -> Any:
    q = _square_formula(p)
    return q if (q >= 0).all() else _normalised(np.where(p >= np.sort(p)[-2], p, 0.0))


EXERCISES: tuple[Exercise, ...] = (
    Exercise(
        "scoring-from-entropy",
        lambda q, k: 1 / np.sqrt(q[k]) + np.sqrt(q).sum(),
        _entropy_inputs,
        "this is the derivative alone: the rule adds H(q) and subtracts sum_j q_j dH/dq_j",
        lambda q, k: 1 / np.sqrt(q[k]),
        "sum_j q_j dH/dq_j has to be subtracted: half of H(q) remains",
        lambda q, k: 1 / np.sqrt(q[k]) + 2 * np.sqrt(q).sum(),
        "H(q) is missing: the rule adds the entropy itself too",
        lambda q, k: 1 / np.sqrt(q[k]) - np.sqrt(q).sum(),
        "the derivative of 2 sqrt(q) is 1 / sqrt(q): a factor of two is missing",
        lambda q, k: 0.5 / np.sqrt(q[k]) + np.sqrt(q).sum(),
    ),
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
    Exercise(
        "scoring-local-square",
        _square,
        # Distributions inside and outside the range of the plain formula.
        lambda: [
            (np.array([0.5, 0.3, 0.2]),),
            (np.array([0.6, 0.3, 0.1]),),
            (np.array([0.1, 0.6, 0.3]),),
            (np.array([0.7, 0.3]),),
            (np.array([0.05, 0.55, 0.25, 0.15]),),
            (np.array([1.0]),),
            # Three classes of six stay; two of those that go are tied.
            (np.array([0.3, 0.02, 0.28, 0.03, 0.35, 0.02]),),
        ],
        "a probability is negative: drop the least probable class and apply the formula again",
        _square_formula,
        "clipping is not the minimum: apply the formula to the classes that stay",
        lambda p: _normalised(np.maximum(_square_formula(p), 0)),
        "this is p itself: the rule is honest for two classes only",
        lambda p: p,
        "more than two classes may stay: drop the least probable and look at the formula again",
        _two_stay,
        atol=1e-12,
    ),
)
