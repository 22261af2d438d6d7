"""Exercises of chapter 05, numerics."""

from __future__ import annotations

import numpy as np

from xent.losses import cross_entropy
from xent.numerics import log_sum_exp, softmax
from xent_book.exercises._check import Array, Exercise


def _log_miss(logits: Array, target: int) -> float:
    return -float(np.logaddexp(0, logits[target] - log_sum_exp(np.delete(logits, target))))


EXERCISES = (
    Exercise(
        "log-miss",
        _log_miss,
        lambda: [
            (np.array([0.0, 1.0, -1.0]), 0),
            (np.array([50.0, 0.0, 3.0]), 0),
            (np.array([50.0, 0.0, 3.0]), 1),
            (np.array([0.0, 1000.0, -1000.0]), 2),
            (np.array([0.0, 1000.0, -1000.0]), 1),
            (np.array([1000.0, 1000.0]), 1),
            (np.array([730.0, 0.0]), 0),  # exp(730) overflows, and exp(-730) is still a number
            (np.random.default_rng(5).normal(size=20) * 5, 7),
        ],
        "this subtracts p from 1: nothing is left where p rounds to 1, and few digits where it is small",
        lambda z, y: np.log(1 - softmax(z)[y]),
        "this is log1p(-p): where the answer is certain and right p rounds to 1",
        lambda z, y: np.log1p(-softmax(z)[y]),
        "for a certain and wrong answer the probabilities of the others add up to 1, and p_y is lost",
        lambda z, y: np.log(np.delete(softmax(z), y).sum()),
        "for a certain and wrong answer two log-sum-exps are equal: use that of the others, its gap "
        "from z_y and log1p",
        lambda z, y: log_sum_exp(np.delete(z, y)) - log_sum_exp(z),
        "this overflows for large logits: shift by the maximum first",
        lambda z, y: np.log(np.delete(np.exp(z), y).sum() / np.exp(z).sum()),
        "this is the loss, or log p_y: the logarithm of 1 - p_y is meant",
        lambda z, y: cross_entropy(z, y),
        lambda z, y: -cross_entropy(z, y),
        "log p_y rounds to 0 for a certain and right answer: start from the logits",
        lambda z, y: np.log(-np.expm1(-cross_entropy(z, y))),
        "exp(gap) overflows for a large gap",
        lambda z, y: -np.log1p(np.exp(z[y] - log_sum_exp(np.delete(z, y)))),
        rtol=1e-12,  # the rounding of logits near 50, in float64
    ),
    Exercise(
        "dead-margin",
        lambda: np.log(50_256) + 24 * np.log(2),
        None,
        "this is the margin for a single rival: 50,256 of them add up in s",
        lambda: 24 * np.log(2),
        "this takes u = 2^-23, the gap between 1 and the next number: rounding errs by half of it",
        lambda: np.log(50_256) + 23 * np.log(2),
        "this is the logarithm to base 2: the natural one is meant",
        lambda: np.log2(50_256) + 24,
        rtol=2e-3,  # a closed form, rounded to three digits or not
    ),
)
