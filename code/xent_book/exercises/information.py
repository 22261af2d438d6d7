"""Exercises of chapter 03, information."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from xent import information
from xent_book.exercises._check import Array, Exercise


def _bits(p: Array) -> Any:
    return information.entropy(p, base=2)


def _merged(p: Array, i: int, j: int) -> Array:
    """The shares of the keys: that of j is added to i's."""
    shared = p.copy()
    shared[i] += shared[j]
    return np.delete(shared, j)


def _lost_with(entropy: Callable[[Array], Any]) -> Callable[[Array, int, int], Any]:
    return lambda p, i, j: entropy(p) - entropy(_merged(p, i, j))


def _keys() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(3)
    return [
        (np.array([0.5, 0.25, 0.25]), 1, 2),
        (np.array([0.2, 0.3, 0.5]), 0, 2),
        (rng.dirichlet(np.ones(6)), 4, 1),
        # A letter that does not occur costs nothing, nor do two of them.
        (np.array([0.7, 0.3, 0.0, 0.0]), 0, 2),
        (np.array([0.7, 0.3, 0.0, 0.0]), 3, 2),
    ]


def _surprise(u: Any) -> Any:
    """The term of a class in the entropy, in bits."""
    return -u * np.log2(u) if u > 0 else 0.0


def _compare(a: Array, b: Array) -> tuple[Any, Any]:
    gap = a - b
    return gap.mean(), gap.std(ddof=1) / np.sqrt(len(gap))


def _error(losses: Array) -> Any:
    return losses.std(ddof=1) / np.sqrt(len(losses))


def _paired() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(4)
    cases: list[tuple[Any, ...]] = []
    for size, shared in ((5, 1.0), (30, 0.3), (200, 3.0)):
        hard = rng.exponential(shared, size)  # both models find the same examples hard
        cases.append((hard + rng.exponential(0.3, size), hard + rng.exponential(0.2, size)))
    return cases


EXERCISES = (
    Exercise(
        "shared-key",
        _lost_with(_bits),
        _keys,
        "a share of zero gives 0 * log 0: nan in floating point, 0 in the limit",
        _lost_with(lambda p: -(p * np.log2(p)).sum()),
        "the weight is missing: the key is pressed with the probability of both letters together",
        lambda p, i, j: (
            _surprise(p[i] / (p[i] + p[j])) + _surprise(p[j] / (p[i] + p[j])) if p[i] + p[j] else 0.0
        ),
        lambda p, i, j: _bits(p[[i, j]] / p[[i, j]].sum()),
        "this is what a press of the shared key tells: the two letters told more",
        lambda p, i, j: _surprise(p[i] + p[j]),
        "the shared key still tells something: its own surprise has to be subtracted",
        lambda p, i, j: _surprise(p[i]) + _surprise(p[j]),
        "this is the entropy that is left: the loss is the entropy before minus this",
        lambda p, i, j: _bits(_merged(p, i, j)),
        "one bit at each press of the key is the most that can be lost, by equally frequent letters",
        lambda p, i, j: p[i] + p[j],
        atol=1e-12,  # two entropies of a few bits, and their difference
    ),
    Exercise(
        "paired-losses",
        _compare,
        _paired,
        "examples that are hard for both models cancel here: take the spread of the differences",
        lambda a, b: ((a - b).mean(), np.hypot(_error(a), _error(b))),
        "this is the spread of one difference: that of their mean is smaller by sqrt(n)",
        lambda a, b: ((a - b).mean(), (a - b).std(ddof=1)),
        "the variance is divided by n; the exercise asks for n - 1 (ddof=1 in NumPy)",
        lambda a, b: ((a - b).mean(), (a - b).std() / np.sqrt(len(a))),
    ),
)
