"""Exercises of chapter 11, one denominator."""

from __future__ import annotations

import numpy as np

from xent_book.exercises._check import Exercise

EXERCISES = (
    Exercise(
        "den-scales",
        lambda counts, divisor: divisor * counts / counts.sum(),
        # Counts of each rank and micro-batch, and what the framework divides by.
        lambda: [
            (np.array([[4.0, 1.0, 7.0], [2.0, 30.0, 5.0]]), 2.0),
            (np.array([[3.0, 9.0]]), 1.0),
            (np.array([[1.0, 2.0], [8.0, 3.0], [5.0, 6.0]]), 1.0),
        ],
        "this is the factor of a summed loss: multiply the mean by its count",
        lambda counts, divisor: divisor / counts.sum() * np.ones_like(counts),
        "the divisor is missing: the framework divides once more",
        lambda counts, divisor: counts / counts.sum(),
        "the framework divides by the divisor: multiply by it",
        lambda counts, divisor: counts / counts.sum() / divisor,
        "the framework need not divide by the number of ranks: use divisor",
        lambda counts, divisor: len(counts) * counts / counts.sum(),
        "N is that of each rank: sum it over the ranks too",
        lambda counts, divisor: divisor * counts / counts.sum(axis=1, keepdims=True) / len(counts),
        lambda counts, divisor: counts / counts.sum(axis=1, keepdims=True),
        lambda counts, divisor: divisor * counts / counts.sum(axis=1, keepdims=True),
        "this is the mean of means, the loss that the chapter begins with",
        lambda counts, divisor: np.full_like(counts, 1 / counts.shape[1]),
        lambda counts, divisor: np.full_like(counts, divisor / counts.size),
        "this divides by the count a second time: multiply by it",
        lambda counts, divisor: divisor / counts,
        rtol=1e-12,
    ),
)
