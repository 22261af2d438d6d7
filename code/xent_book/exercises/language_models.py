"""Exercises of chapter 14, distilling a language model."""

from __future__ import annotations

from typing import Any

import numpy as np

from xent import numerics
from xent.information import kl_divergence
from xent_book.exercises._check import Array, Exercise


def _visits(first: Array, rows: Array) -> Any:
    """Expected visits to each letter."""
    return np.linalg.solve((np.eye(len(rows)) - rows[:, :-1]).T, first[:-1])


def _reverse_kl(p_first: Array, p_rows: Array, q_first: Array, q_rows: Array) -> float:
    return float(kl_divergence(q_first, p_first) + _visits(q_first, q_rows) @ kl_divergence(q_rows, p_rows))


def _reverse_kl_inputs() -> list[tuple[Any, ...]]:
    """Pairs of bigram models with two and three letters."""
    rng = np.random.default_rng(14)

    def model(letters: int) -> tuple[Array, Array]:
        tables = rng.dirichlet(np.ones(letters + 1), size=letters + 1)
        return tables[0], tables[1:]

    return [(*model(k), *model(k)) for k in (2, 3, 3)]


def _bucket(logits: Array, kept: Array, index: Array, tail: Any = None) -> float:
    """With another logarithm of the student's tail, if one is given."""
    if tail is None:
        tail = numerics.log_sum_exp(np.delete(logits, index)) - numerics.log_sum_exp(logits)
    return _truncated(logits, kept, index) - float((1 - kept.sum()) * tail)


def _truncated(logits: Array, kept: Array, index: Array) -> float:
    return float(-kept @ numerics.log_softmax(logits)[index])


def _subtracted(logits: Array, kept: Array, index: Array) -> float:
    return _bucket(logits, kept, index, np.log(1 - numerics.softmax(logits)[index].sum()))


def _entropy(kept: Array) -> float:
    """The teacher's entropy, its tail one event."""
    rest = 1 - kept.sum()
    return -float(kept @ np.log(kept) + rest * np.log(rest))


EXERCISES = (
    Exercise(
        "lm-reverse-kl",
        _reverse_kl,
        _reverse_kl_inputs,
        "this is KL(P||Q), the forward divergence: swap the roles",
        lambda p0, p, q0, q: _reverse_kl(q0, q, p0, p),
        "the prefixes come from P here: the visits of Q count",
        lambda p0, p, q0, q: kl_divergence(q0, p0) + _visits(p0, p) @ kl_divergence(q, p),
        "the first token is missing: its distributions differ too",
        lambda p0, p, q0, q: _visits(q0, q) @ kl_divergence(q, p),
        "every row counts once here: weigh each by the visits to its letter",
        lambda p0, p, q0, q: kl_divergence(q0, p0) + kl_divergence(q, p).sum(),
    ),
    Exercise(
        "lm-bucket",
        _bucket,
        # Logits of the student, and what a cache holds of the teacher.
        lambda: [
            (np.array([1.0, 0.0, -1.0, 0.5]), np.array([0.5, 0.3]), np.array([0, 1])),
            (np.array([0.2, 2.0, -0.7, 1.1, -3.0]), np.array([0.6, 0.25]), np.array([3, 1])),
            # The student's tail is so small that 1 - S_q is rounding.
            (np.array([40.0, 39.0, -1.0, 0.0]), np.array([0.7, 0.2]), np.array([0, 1])),
            # Here it is zero in float64, and so is the sum of the probabilities outside; one token is left.
            (np.array([900.0, 899.0, 0.0]), np.array([0.7, 0.2]), np.array([0, 1])),
        ],
        "the tail is missing: this is the truncated loss, which empties it",
        _truncated,
        "the rest is renormalised: that has the minimiser of the truncated loss",
        lambda z, kept, index: _truncated(z, kept / kept.sum(), index),
        "log(1 - S_q) cancels when the tail is small: use a log-sum-exp over the tokens outside",
        _subtracted,
        "renormalised on both sides: the mass of the student's tail is free",
        lambda z, kept, index: float(-kept / kept.sum() @ numerics.log_softmax(z[index])),
        "exponentials vanish or overflow at large logits: use a log-sum-exp of the logits outside",
        lambda z, kept, index: _bucket(z, kept, index, np.log(np.delete(numerics.softmax(z), index).sum())),
        lambda z, kept, index: _bucket(z, kept, index) if np.exp(z).max() < np.inf else np.nan,
        "the bucket is one event: add the probabilities outside, then take the log",
        lambda z, kept, index: _bucket(z, kept, index, np.delete(numerics.log_softmax(z), index).sum()),
        "the tail has the wrong sign: its logarithm is subtracted too",
        lambda z, kept, index: 2 * _truncated(z, kept, index) - _bucket(z, kept, index),
        "this is the divergence: the cross-entropy keeps the teacher's entropy",
        lambda z, kept, index: _bucket(z, kept, index) - _entropy(kept),
        lambda z, kept, index: _subtracted(z, kept, index) - _entropy(kept),
        rtol=1e-10,
    ),
)
