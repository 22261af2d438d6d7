"""Exercises of chapter 03, information."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import brentq

from xent import information
from xent.numerics import softmax
from xent_book.exercises._check import Array, Exercise

# ------------------------------------------------------------------------------------ entropy with zeros


def _bits(p: Array) -> Any:
    return information.entropy(p, base=2)


def _distributions() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(3)
    return [
        (np.array([0.5, 0.25, 0.25]),),
        (np.array([1.0, 0.0, 0.0]),),
        (np.array([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]),),
        (rng.dirichlet(np.ones(5), size=(2, 3)),),
        # So nearly certain that any epsilon shows.
        (np.array([1 - 1e-15, 1e-15]),),
    ]


def _terms(p: Array) -> Any:
    return -p * np.log2(np.where(p > 0, p, 1.0))


def _inside(eps: float) -> tuple[Callable[[Array], Any], ...]:
    """The two ways to write an epsilon: added in the logarithm, or clipped into p itself."""
    return (
        lambda p: -(p * np.log2(p + eps)).sum(axis=-1),
        lambda p: -(np.clip(p, eps, 1.0) * np.log2(np.clip(p, eps, 1.0))).sum(axis=-1),
    )


# ------------------------------------------------------------------------------------ KL from samples


def _estimate(log_p: Array, log_q: Array) -> tuple[Any, Any]:
    ratio = log_p - log_q
    return ratio.mean(), ratio.std(ddof=1) / np.sqrt(len(ratio))


def _samples() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(4)
    cases: list[tuple[Any, ...]] = []
    for classes, size in ((2, 5), (4, 30), (6, 200)):
        p, q = rng.dirichlet(np.ones(classes), size=2)
        drawn = rng.choice(classes, size=size, p=p)
        # Two outcomes at least, or every spread is zero and the mistakes in it look alike.
        drawn[:2] = 0, 1
        cases.append((np.log(p[drawn]), np.log(q[drawn])))
    return cases


# -------------------------------------------------------------------------------------- the directions


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


def _worst(divergence: Callable[[Array, Array], Any], p: Array, candidates: Array) -> int:
    return int(np.argmax([divergence(p, q) for q in candidates]))


def _closest(p: Array, candidates: Array) -> tuple[int, int]:
    return _best(information.kl_divergence, p, candidates), _best(_reverse, p, candidates)


# ------------------------------------------------------------------------------------- maximum entropy


def _maxent(values: Array, mean: float) -> Any:
    tau = brentq(lambda t: softmax(t * values) @ values - mean, -50.0, 50.0, xtol=1e-14)
    return softmax(tau * values)


def _ends(values: Array, mean: float) -> Any:
    """All mass on the smallest and the largest value."""
    p = np.zeros(len(values))
    p[-1] = (mean - values[0]) / (values[-1] - values[0])
    p[0] = 1 - p[-1]
    return p


def _neighbours(values: Array, mean: float) -> Any:
    """All mass on the two values next to the mean."""
    p = np.zeros(len(values))
    right = int(np.searchsorted(values, mean))
    p[right] = (mean - values[right - 1]) / (values[right] - values[right - 1])
    p[right - 1] = 1 - p[right]
    return p


def _straight(values: Array, mean: float) -> Any:
    """Probabilities linear in the value, with the right mean and sum."""
    centred = values - values.mean()
    return 1 / len(values) + (mean - values.mean()) * centred / (centred**2).sum()


EXERCISES = (
    Exercise(
        "entropy-with-zeros",
        "Entropy in bits, with impossible classes",
        _bits,
        _distributions,
        rtol=1e-13,
        atol=1e-16,  # a few roundings, relative; the one small entropy is that of a certain outcome, exactly 0
        mistakes={
            "a class of probability zero gives 0 * log 0: nan in floating point, 0 in the limit": lambda p: (
                -(p * np.log2(p)).sum(axis=-1)
            ),
            "this looks like an epsilon: it changes the terms that were right, and a certain outcome no "
            "longer has entropy zero; leave out the zeros instead": (
                *(f for k in range(3, 17) for f in _inside(10.0**-k)),
            ),
            "this is in nats, and it looks like an epsilon: use base 2, and leave out the zeros": (
                *(lambda p, eps=10.0**-k: -(p * np.log(p + eps)).sum(axis=-1) for k in range(3, 16)),
                *(
                    lambda p, eps=10.0**-k: -(p * np.log(np.maximum(p, eps))).sum(axis=-1)
                    for k in range(3, 14)
                ),
            ),
            "this is in nats: divide by log 2, or use the logarithm to base 2": information.entropy,
            "the sign is flipped: a logarithm of a probability is negative, its surprise is not": lambda p: (
                -_bits(p)
            ),
            "the sum runs over another axis: the classes are on the last one": (
                lambda p: _terms(p).sum(axis=0),
                lambda p: _terms(p).sum(axis=1),
            ),
            "this is a mean over the classes: expected surprise is a sum, and the weights are "
            "already in it": lambda p: _terms(p).mean(axis=-1),
            "the weights are missing: this adds up the surprises, and entropy "
            "is their expectation": lambda p: -np.log2(np.where(p > 0, p, 1.0)).sum(axis=-1),
            "these are the terms: their sum is missing": lambda p: _terms(p),
            "this is the perplexity: its logarithm to base 2 is the entropy": (
                lambda p: 2 ** _bits(p),
                lambda p: np.exp(information.entropy(p)),
            ),
            "this is in digits, with the logarithm to base 10: use base 2": lambda p: information.entropy(
                p, base=10
            ),
            "this is in nats, and a class of probability zero gives 0 * log 0, which is nan in floating "
            "point": lambda p: -(p * np.log(p)).sum(axis=-1),
        },
    ),
    Exercise(
        "kl-from-samples",
        "Estimate a divergence from samples, with its standard error",
        _estimate,
        _samples,
        rtol=1e-10,  # two means of at most 200 numbers; no approximation
        mistakes={
            "the ratio is upside down: the first distribution drew the samples": lambda a, b: _estimate(b, a),
            "you weighted the log ratio by P, but drawing from P does that already": (
                lambda a, b: (
                    (np.exp(a) * (a - b)).sum(),
                    (np.exp(a) * (a - b)).std(ddof=1) / np.sqrt(len(a)),
                ),
                lambda a, b: (
                    (np.exp(a) * (a - b)).mean(),
                    (np.exp(a) * (a - b)).std(ddof=1) / np.sqrt(len(a)),
                ),
                lambda a, b: ((np.exp(a) * (a - b)).sum(), _estimate(a, b)[1]),
                lambda a, b: ((np.exp(a) * (a - b)).mean(), _estimate(a, b)[1]),
            ),
            "n - 1 belongs in the variance only: the spread of a mean is smaller by sqrt(n)": lambda a, b: (
                (a - b).mean(),
                (a - b).std(ddof=1) / np.sqrt(len(a) - 1),
            ),
            "your error is a variance, of one log ratio: take its root, and divide by sqrt(n)": (
                lambda a, b: ((a - b).mean(), (a - b).var(ddof=1)),
                lambda a, b: ((a - b).mean(), (a - b).var(ddof=1) / np.sqrt(len(a))),
            ),
            "this is the cross-entropy: the divergence is lower by the entropy of P": lambda a, b: _estimate(
                0 * b, b
            ),
            "these are two standard errors: the exercise asks for one": lambda a, b: (
                _estimate(a, b)[0],
                2 * _estimate(a, b)[1],
            ),
            "the terms are made positive: single log ratios may be negative, their "
            "expectation is not": lambda a, b: _estimate(np.abs(a - b), 0 * a),
            "the arguments already are logarithms: the log ratio is their difference": lambda a, b: _estimate(
                np.log(a / b), 0 * a
            ),
            "your error is the spread of one log ratio; the spread of their mean is smaller by sqrt(n)": (
                lambda a, b: ((a - b).mean(), (a - b).std(ddof=1)),
                lambda a, b: ((a - b).mean(), (a - b).std()),
            ),
            "your error divides by n where it should divide by sqrt(n)": (
                lambda a, b: ((a - b).mean(), (a - b).std(ddof=1) / len(a)),
                lambda a, b: ((a - b).mean(), (a - b).std() / len(a)),
            ),
            "your error is squared: this is the variance of the mean": lambda a, b: (
                (a - b).mean(),
                (a - b).var(ddof=1) / len(a),
            ),
            "the variance is divided by n; the exercise asks for n - 1 (ddof=1 in NumPy)": lambda a, b: (
                (a - b).mean(),
                (a - b).std() / np.sqrt(len(a)),
            ),
        },
    ),
    Exercise(
        "kl-directions",
        "The closest distribution in each direction of the divergence",
        _closest,
        lambda: [
            (np.array([0.49, 0.02, 0.49]), np.array([[1 / 3, 1 / 3, 1 / 3], [0.98, 0.01, 0.01]])),
            # Forward: only the last row covers p. Reverse: only the middle row stays inside p.
            (
                np.array([0.5, 0.5, 0.0]),
                np.array([[0.05, 0.0, 0.95], [1.0, 0.0, 0.0], [0.1, 0.1, 0.8]]),
            ),
            (
                np.array([0.0, 0.3, 0.7]),
                # Reverse: the first row. By the cross-entropy H(Q, P) it would be the last, which is certain.
                np.array([[0.0, 0.45, 0.55], [0.001, 0.2995, 0.6995], [0.6, 0.2, 0.2], [0.0, 0.0, 1.0]]),
            ),
        ],
        rtol=0.0,
        atol=1e-9,  # the answers are whole numbers
        mistakes={
            "the two directions are swapped: the first distribution is the one whose weights "
            "take the mean": lambda p, c: _closest(p, c)[::-1],
            "this looks like nan from 0 * log 0: argmin takes the first nan for the smallest": lambda p, c: (
                _best(_naive, p, c),
                _best(lambda a, b: _naive(b, a), p, c),
            ),
            "both indices are those of the forward direction": lambda p, c: (
                _closest(p, c)[0],
                _closest(p, c)[0],
            ),
            "both indices are those of the reverse direction": lambda p, c: (
                _closest(p, c)[1],
                _closest(p, c)[1],
            ),
            "this compares cross-entropies: in the forward direction that picks the same row, but in reverse "
            "the entropy of Q differs from row to row, and has to be subtracted": lambda p, c: (
                _closest(p, c)[0],
                _best(lambda a, b: information.cross_entropy(b, a), p, c),
            ),
            "these are the worst rows: the closest has the smallest divergence": lambda p, c: tuple(
                _worst(f, p, c) for f in (information.kl_divergence, _reverse)
            ),
            "this looks like an epsilon: it makes an infinite divergence finite, and a row that excludes "
            "what happens, or allows what p excludes, may win": (
                *(
                    lambda p, c, eps=10.0**-k: (
                        _best(lambda a, b: _shifted(a, b, eps), p, c),
                        _best(lambda a, b: _shifted(b, a, eps), p, c),
                    )
                    for k in range(5, 17)
                ),
            ),
            "the indices count from 0, as Python does": lambda p, c: tuple(i + 1 for i in _closest(p, c)),
            "these are the divergences: return the index of the smallest": lambda p, c: tuple(
                min(f(p, q) for q in c) for f in (information.kl_divergence, _reverse)
            ),
            "these are the rows: return their indices": lambda p, c: tuple(c[i] for i in _closest(p, c)),
        },
    ),
    Exercise(
        "maxent-mean",
        "The distribution with a given mean and the largest entropy",
        _maxent,
        lambda: [
            (np.arange(1.0, 7.0), 4.5),
            (np.array([0.0, 1.0, 2.0]), 0.4),
            (np.array([-2.0, 0.5, 3.0, 4.0]), 2.6),
        ],
        rtol=0.0,
        atol=1e-6,  # a root finder's tolerance; the mistakes are off by more than 0.01
        mistakes={
            "all mass is on the two ends: the mean is right, and few distributions have less entropy": _ends,
            "all mass is on the two values next to the mean; the distribution is to be as spread out as it "
            "can": _neighbours,
            "the probabilities are linear in the value; it is their logarithms that have to be": _straight,
            "the values are in the wrong order, or the tilt has the wrong sign: the mean is off": (
                lambda values, mean: _maxent(values, mean)[::-1],
                lambda values, mean: _maxent(values, values[0] + values[-1] - mean),
            ),
            "this is the uniform distribution: it has the largest entropy of all, but "
            "not this mean": lambda values, mean: np.full(len(values), 1 / len(values)),
        },
    ),
)
