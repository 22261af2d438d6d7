"""Exercises of chapter 11, one denominator."""

from __future__ import annotations

import math

import numpy as np

from xent.denominators import eos_optimum
from xent_book.exercises._check import Array, Exercise


def _steps(beta: float, size: int, tolerance: float) -> int:
    steps = 1
    while eos_optimum(beta, steps * size) / beta - 1 > tolerance:
        steps += 1
    return steps


def _gap(means: Array, counts: Array) -> float:
    some = counts > 0
    m, n = means[some], counts[some]
    return float(m.mean() - (m * n).sum() / n.sum())


def _gap_of_n_minus_one(means: Array, counts: Array) -> float:
    some = counts > 0
    m, n = means[some], counts[some]
    return float(-np.cov(n, m)[0, 1] / n.mean())


EXERCISES = (
    Exercise(
        "den-scales",
        "A model that returns means",
        lambda counts, divisor: divisor * counts / counts.sum(),
        # Counts of each rank and micro-batch, and what the framework divides by.
        lambda: [
            (np.array([[4.0, 1.0, 7.0], [2.0, 30.0, 5.0]]), 2.0),
            (np.array([[3.0, 9.0]]), 1.0),
            (np.array([[1.0, 2.0], [8.0, 3.0], [5.0, 6.0]]), 1.0),
        ],
        rtol=1e-12,
        mistakes={
            "this is the factor of a summed loss: the mean has to be multiplied by "
            "its count first": lambda counts, divisor: divisor / counts.sum() * np.ones_like(counts),
            "the divisor is missing: the framework divides once more, and the gradient "
            "is too small": lambda counts, divisor: counts / counts.sum(),
            "the number of ranks is not always what the framework divides "
            "by: use divisor": lambda counts, divisor: len(counts) * counts / counts.sum(),
            "N is that of each rank here: it has to be summed over the ranks too": (
                lambda counts, divisor: divisor * counts / counts.sum(axis=1, keepdims=True) / len(counts),
                lambda counts, divisor: counts / counts.sum(axis=1, keepdims=True),
                lambda counts, divisor: divisor * counts / counts.sum(axis=1, keepdims=True),
            ),
            "this is the mean of means, the loss that the chapter begins with": (
                lambda counts, divisor: np.full_like(counts, 1 / counts.shape[1]),
                lambda counts, divisor: np.full_like(counts, divisor / counts.size),
                lambda counts, divisor: np.full_like(counts, 1 / counts.size),
            ),
            "this divides by the count a second time: a mean has been divided by it already, so multiply": (
                lambda counts, divisor: divisor / counts,
                lambda counts, divisor: 1 / counts,
            ),
            "the number of micro-batches is in it once too often: N counts the targets of "
            "all of them": lambda counts, divisor: divisor * counts / counts.sum() / counts.shape[1],
        },
    ),
    Exercise(
        "den-steps",
        "How many steps to accumulate",
        _steps,
        lambda: [(0.1, 4, 0.05), (0.5, 2, 0.01), (0.02, 1, 0.2), (0.9, 8, 0.05)],
        rtol=0.0,
        atol=1e-9,  # the answer is an integer
        mistakes={
            "this counts sequences, not steps: a step brings `size` of them": (
                lambda beta, size, tolerance: _steps(beta, 1, tolerance),
                lambda beta, size, tolerance: math.ceil((1 - beta) / tolerance),
            ),
            "one step too few: the bias has to be at most the tolerance": lambda beta, size, tolerance: (
                _steps(beta, size, tolerance) - 1
            ),
            "the bias is relative: divide q* - beta by beta": lambda beta, size, tolerance: _steps(
                beta, size, tolerance / beta
            ),
            "this is the upper bound solved for the steps, which is safe and not the "
            "smallest number": lambda beta, size, tolerance: math.ceil(((1 - beta) / tolerance + 1) / size),
            "this is the first order, (1 - beta) / B, solved for the steps: it can be a step off": (
                lambda beta, size, tolerance: math.ceil((1 - beta) / tolerance / size),
                lambda beta, size, tolerance: (1 - beta) / tolerance / size,
            ),
        },
    ),
    Exercise(
        "den-gap",
        "The gap without the losses of tokens",
        _gap,
        lambda: [
            (np.array([2.2, 1.6]), np.array([2.0, 10.0])),
            (np.array([0.5, 1.5, 4.0]), np.array([10.0, 20.0, 5.0])),
            (np.array([3.0, np.nan, 1.0, 2.0]), np.array([2.0, 0.0, 6.0, 3.0])),
        ],
        mistakes={
            "the sign is wrong: mean of means minus mean": lambda m, n: -_gap(m, n),
            "this covariance divides by K - 1: the pairs are the whole window, so divide by K": (
                _gap_of_n_minus_one,
                lambda m, n: -_gap_of_n_minus_one(m, n),
            ),
            "this is the covariance: it has to be divided by the mean count": lambda m, n: (
                _gap(m, n) * n[n > 0].mean()
            ),
            "the window's true mean is the sum of the losses over the number of targets, not of "
            "micro-batches": (
                lambda m, n: np.nanmean(m) - np.nanmean(m * n),
                lambda m, n: np.nanmean(m) - np.nansum(m * n) / len(m),
            ),
            "a mean of nan came through: leave out the micro-batches without targets": lambda m, n: (
                m.mean() - (m * n).sum() / n.sum()
            ),
            "a micro-batch without targets still counts here: it is no part of either mean": lambda m, n: (
                np.nan_to_num(m).mean() - (np.nan_to_num(m) * n).sum() / n.sum()
            ),
        },
    ),
)
