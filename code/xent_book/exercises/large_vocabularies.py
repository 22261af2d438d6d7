"""Exercises of chapter 15, large vocabularies."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

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
)
