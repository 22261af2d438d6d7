"""Exercises of chapter 15, large vocabularies."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from xent.numerics import log_sum_exp, softmax
from xent_book.exercises._check import Array, Exercise

State: TypeAlias = "tuple[float, float] | Array"


def _merge(a: State, b: State) -> Array:
    m = max(a[0], b[0])
    if m == -math.inf:
        return np.array([-np.inf, 0.0])
    return np.array([m, a[1] * math.exp(a[0] - m) + b[1] * math.exp(b[0] - m)])


def _merge_without_guard(a: State, b: State, sign: float = 1.0) -> Array:
    """As the machine does it; a sign of -1 turns the exponents round."""
    top = np.maximum(a[0], b[0])
    return np.array([top, a[1] * np.exp(sign * (a[0] - top)) + b[1] * np.exp(sign * (b[0] - top))])


def _merge_inputs() -> list[tuple[Any, ...]]:
    empty = (-math.inf, 0.0)
    some = [((1.0, 2.5), (3.0, 1.2)), ((900.0, 1.0), (2.0, 4.0)), ((-800.0, 1.5), (-800.0, 0.5))]
    return [*some, ((0.5, 1.5), empty), (empty, (0.5, 1.5)), (empty, empty)]


def _z_gradient(logits: Array, label: int, weight: float) -> Any:
    p = softmax(logits)
    gradient = p.copy()
    gradient[label] = -np.delete(p, label).sum()  # p - 1 has no digits where the label is nearly certain
    return gradient + 2 * weight * log_sum_exp(logits) * p


def _z_by_exponentials(logits: Array, label: int, weight: float) -> Any:
    total = np.exp(logits).sum()
    p = np.exp(logits) / total
    return p - np.eye(len(p))[label] + 2 * weight * np.log(total) * p


def _z_gradient_inputs() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(0)
    some = ((3, 0, 0.1), (6, 4, 0.5), (2, 1, 1.0))
    large = (np.array([900.0, 898.0, 899.0]), 1, 0.2)
    return [
        *((rng.normal(size=k) * 2 + 1, label, w) for k, label, w in some),
        large,
        (np.array([0.0, -40.0]), 0, 0.1),
    ]


EXERCISES = (
    Exercise(
        "vocab-merge",
        _merge,
        _merge_inputs,
        "two empty blocks leave -inf minus -inf: return the empty state before you subtract",
        _merge_without_guard,
        "the sums have different maxima: multiply each by exp(old maximum - new maximum)",
        lambda a, b: np.array([max(a[0], b[0]), a[1] + b[1]]),
        "the first number is the larger of the two maxima, not a log-sum-exp",
        lambda a, b: np.array([np.logaddexp(a[0], b[0]), a[1] + b[1]]),
        "the maximum is that of the two states, which may lie below 0",
        lambda a, b: _merge((0.0, 0.0), _merge(a, b)),
        lambda a, b: _merge((0.0, 0.0), _merge(a, b)) if a[1] + b[1] else _merge(a, b),
        "the exponents are turned round: old maximum minus new one, never above zero",
        lambda a, b: _merge_without_guard(a, b, -1.0),
        rtol=1e-12,
    ),
    Exercise(
        "vocab-zgradient",
        _z_gradient,
        _z_gradient_inputs,
        "exp overflows: take the softmax and log Z of logits less their maximum, and add it to log Z",
        _z_by_exponentials,
        lambda z, y, w: softmax(z) - np.eye(len(z))[y] + 2 * w * np.log(np.exp(z).sum()) * softmax(z),
        "the 2 of the square is missing",
        lambda z, y, w: _z_gradient(z, y, w / 2),
        "the inner derivative is missing: log Z has the gradient p",
        lambda z, y, w: softmax(z) - np.eye(len(z))[y] + 2 * w * log_sum_exp(z),
        "the factor log Z is missing: its square has the derivative 2 log Z times p",
        lambda z, y, w: softmax(z) - np.eye(len(z))[y] + 2 * w * softmax(z),
        "2 lambda log Z stands on the whole gradient: log Z has the gradient p, without the label",
        lambda z, y, w: (softmax(z) - np.eye(len(z))[y]) * (1 + 2 * w * log_sum_exp(z)),
        rtol=1e-12,
    ),
)
