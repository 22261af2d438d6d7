"""Exercises of chapter 03, information."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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


def _best(divergence: Callable[[Array, Array], Any], p: Array, candidates: Array) -> int:
    return int(np.argmin([divergence(p, q) for q in candidates]))


def _naive(p: Array, q: Array) -> Any:
    """The divergence without the convention 0 log 0 = 0: nan, which argmin takes for the smallest."""
    return (p * np.log(p / q)).sum()


def _shifted(p: Array, q: Array, eps: float) -> Any:
    """The divergence with an epsilon in both logarithms."""
    return (p * np.log((p + eps) / (q + eps))).sum()


def _reverse(p: Array, q: Array) -> Any:
    return information.kl_divergence(q, p)


def _left_out(p: Array, q: Array) -> Any:
    """The divergence without its infinite terms."""
    return _naive(p[(p > 0) & (q > 0)], q[(p > 0) & (q > 0)])


def _both_ways(divergence: Callable[[Array, Array], Any]) -> Callable[[Array, Array], tuple[int, int]]:
    return lambda p, c: (_best(divergence, p, c), _best(lambda a, b: divergence(b, a), p, c))


def _closest(p: Array, candidates: Array) -> tuple[int, int]:
    return _best(information.kl_divergence, p, candidates), _best(_reverse, p, candidates)


def _candidates() -> list[tuple[Any, ...]]:
    return [
        (np.array([0.49, 0.02, 0.49]), np.array([[1 / 3, 1 / 3, 1 / 3], [0.98, 0.01, 0.01]])),
        # Forward: only the last row covers p, at hundreds of nats. Reverse: only the middle row stays inside p.
        (np.array([0.5, 0.5, 0.0]), np.array([[0.05, 0.0, 0.95], [1.0, 0.0, 0.0], [0.1, 1e-300, 0.9]])),
        (
            np.array([0.0, 0.3, 0.7]),
            # Reverse: the first row. By the cross-entropy H(Q, P) it would be the last, which is certain.
            np.array([[0.0, 0.45, 0.55], [0.001, 0.2995, 0.6995], [0.6, 0.2, 0.2], [0.0, 0.0, 1.0]]),
        ),
        # The first row is infinite both ways, and cheap with any epsilon. The last one's terms cancel in part.
        (
            np.array([0.5, 0.49999, 0.00001, 0.0]),
            np.array(
                [[0.5, 0.49999, 0, 0.00001], [0.48, 0.48, 0.04, 0], [0.65, 0.35, 0, 0], [0.55, 0.44, 0.01, 0]]
            ),
        ),
    ]


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
    Exercise(
        "kl-directions",
        _closest,
        _candidates,
        "this looks like nan from 0 * log 0: argmin takes the first nan for the smallest",
        _both_ways(_naive),
        "both indices are those of one direction",
        lambda p, c: (_closest(p, c)[0], _closest(p, c)[0]),
        lambda p, c: (_closest(p, c)[1], _closest(p, c)[1]),
        "this compares cross-entropies: the entropy of Q differs from row to row, so subtract it",
        lambda p, c: (_closest(p, c)[0], _best(lambda a, b: information.cross_entropy(b, a), p, c)),
        "an infinite divergence has become finite (by an epsilon?), and a row that excludes what happens wins",
        *(_both_ways(partial(_shifted, eps=10.0**-k)) for k in (6, 9, 12, 16, 30, 300)),
        _both_ways(_left_out),
        atol=1e-9,  # the answers are whole numbers
    ),
)
