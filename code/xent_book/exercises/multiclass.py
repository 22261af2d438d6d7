"""Exercises of chapter 02, softmax and the cross-entropy of class labels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from xent_book.exercises._check import Array, Exercise


def _own(z: Array, y: Array) -> Array:
    return np.asarray(z[np.arange(len(y)), y])


def _shifted(z: Array) -> Array:
    return np.asarray(z - z.max(axis=1, keepdims=True))


def _nll(z: Array, y: Array, shift: Any = _shifted, axis: int = 1) -> Array:
    return np.asarray(np.log(np.exp(shift(z)).sum(axis=axis)) - _own(shift(z), y))


def _with_eps(eps: float) -> tuple[Any, Any]:
    """The two ways to write an epsilon: added to the probability, or the probability clipped."""
    return (
        lambda z, y: -np.log(_own(_softmax(_shifted(z)), y) + eps),
        lambda z, y: -np.log(np.clip(_own(_softmax(_shifted(z)), y), eps, 1.0)),
    )


def _softmax(z: Array) -> Array:
    """As it is first written down: exp overflows past 709."""
    return np.asarray(np.exp(z) / np.exp(z).sum(axis=1, keepdims=True))


EXERCISES = (
    Exercise(
        "multiclass-nll",
        _nll,
        lambda: [
            # Square, so that a sum over the wrong axis still has the right shape; and a single row.
            (np.array([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [1.0, 1.0, 4.0]]), np.array([0, 1, 0])),
            (np.array([[0.0, 2.0]]), np.array([0])),
            (np.random.default_rng(2).normal(scale=3.0, size=(5, 3)), np.array([0, 2, 1, 1, 2])),
            # exp overflows past 709, and a probability underflows below -745.
            # The second row is so far below the first that a maximum over the batch leaves it the log of zero.
            # In the third the probability of the label is still a number, and its inverse is not.
            (np.array([[1000.0, 0, -1000], [-1000, -200, -1001], [720, 0, 0]]), np.array([0, 0, 1])),
        ],
        "exp overflows past 709: take the maximum of each row off first",
        lambda z, y: -np.log(_own(_softmax(z), y)),
        lambda z, y: np.log(np.exp(z).sum(axis=1)) - _own(z, y),
        "the shift is right, but the logarithm comes after the division, where a probability may be "
        "0: log p = z - max - log(sum)",
        lambda z, y: -np.log(_own(_softmax(_shifted(z)), y)),
        "one maximum for the whole batch leaves rows far below it a sum of 0: give each row its own",
        lambda z, y: np.log(np.exp(z - z.max()).sum(axis=1)) + z.max() - _own(z, y),
        "the logit of the label is no shift: exp(z - z_y) overflows where another logit is 710 larger",
        lambda z, y: np.log(np.exp(z - _own(z, y)[:, None]).sum(axis=1)),
        "a row has its own maximum and its own sum: axis=1, not axis=0",
        lambda z, y: _nll(z, y, lambda z: z - z.max(axis=0)),
        lambda z, y: _nll(z, y, lambda z: z - z.max(axis=0), axis=0),
        lambda z, y: _nll(z, y, axis=0),
        lambda z, y: _own(np.log(np.exp(z).sum(axis=0)) - z, y),
        lambda z, y: -np.log(_own(_softmax(_shifted(z.T)).T, y)),
        "the maximum of each row stands in a column of its own: keepdims=True",
        lambda z, y: _nll(z, y, lambda z: z - z.max(axis=1)),
        "the maximum has to be taken off the logit of the label, too, or added back",
        lambda z, y: _nll(z, y) - z.max(axis=1),
        "this is the probability of the label: its negative logarithm is missing",
        lambda z, y: _own(_softmax(_shifted(z)), y),
        "the sum of the exponentials runs over the whole batch: each row has its own",
        lambda z, y: np.log(np.exp(_shifted(z)).sum()) - _own(_shifted(z), y),
        "an epsilon or a clip puts a ceiling on the loss: take the logarithm apart, log p = z - max "
        "- log(sum)",
        *(f for k in range(5, 17) for f in _with_eps(10.0**-k)),
        "0 * -inf is nan: do not sum over the one-hot zeros, pick the entry of the label",
        lambda z, y: -(np.eye(z.shape[1])[y] * np.log(_softmax(_shifted(z)))).sum(axis=1),
        atol=1e-12,  # stable forms agree to a few units in the last place of the logits
    ),
    Exercise(
        "multiclass-errors",
        # A wrong one costs more than log 2.
        lambda loss, n: max(0, min(n, math.ceil(n * (loss / math.log(2))) - 1)),
        # None is a whole number of errors, one needs more than 0.693, and the last exceeds the examples.
        lambda: [(0.231, 1000), (0.0, 8), (0.02, 10), (0.4, 100_000), (1.0, 50), (0.554, 20), (2.5, 40)],
        "there are only N examples: no more than N can be wrong",
        lambda loss, n: math.floor(n * (loss / math.log(2))),
        "a number of errors is whole: round down",
        lambda loss, n: min(n, n * loss / math.log(2)),
        lambda loss, n: n * loss / math.log(2),
        "the bound is an upper one: round down",
        lambda loss, n: min(n, round(n * loss / math.log(2))),
        lambda loss, n: math.ceil(n * loss / math.log(2)),
        "a wrong prediction costs at least log 2 whatever K is",
        *((lambda loss, n, k=k: min(n, math.floor(n * loss / math.log(k)))) for k in (3, 10, 100)),
        "this is the bound on the share of errors: multiply by the number of examples",
        lambda loss, n: loss / math.log(2),
        "exp(-loss) is a mean of probabilities, and no share of right predictions",
        *(lambda loss, n, to=to: to(n * (1 - math.exp(-loss))) for to in (float, int, math.ceil)),
        "a wrong prediction costs at least log 2, in nats: this divides by 1",
        lambda loss, n: min(n, math.floor(n * loss)),
        lambda loss, n: math.floor(n * loss),
    ),
)
