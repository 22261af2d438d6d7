"""Exercises of chapter 13, distillation."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from xent.numerics import softmax
from xent_book.exercises._check import Exercise, Mistake

Array = npt.NDArray[np.floating[Any]]


def _normalised(x: Array) -> Array:
    normalised: Array = x / x.sum()
    return normalised


def _readout_inputs() -> list[tuple[Any, ...]]:
    return [
        (np.array([0.7, 0.2, 0.1]), 2.0),
        (np.array([0.98, 0.02]), 4.0),
        (np.array([0.4, 0.35, 0.25]), 0.5),
    ]


def _pool_inputs() -> list[tuple[Any, ...]]:
    three = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.3, 0.3, 0.4]])
    return [(np.array([[0.9, 0.1], [0.5, 0.5]]), 2.0), (three, 4.0), (three[:2], 0.7)]


def _pooled(teachers: Array, T: float) -> Array:
    pooled: Array = softmax(T * np.log(softmax(np.log(teachers) / T).mean(0)))
    return pooled


EXERCISES = (
    Exercise(
        slug="kd-alpha",
        title="An α without T²",
        chapter="13_distillation",
        reference=lambda alpha, T: alpha * T**2 / (1 - alpha + alpha * T**2),
        inputs=lambda: [(0.5, 4.0), (0.9, 2.0), (0.2, 0.5)],
        rtol=1e-10,
        why="a few roundings in float64",
        mistakes=(
            Mistake(
                "turned round: this is the share with T**2 that does what alpha does without",
                lambda alpha, T: alpha / (alpha + (1 - alpha) * T**2),
            ),
            Mistake(
                "the two shares do not sum to one yet: divide by their sum",
                lambda alpha, T: alpha * T**2,
                lambda alpha, T: alpha / T**2,
            ),
            Mistake(
                "the loss has T**2: the T of the gradient is what the chain rule leaves of it",
                lambda alpha, T: alpha * T / (1 - alpha + alpha * T),
            ),
            Mistake("without T**2 the same alpha gives the labels more weight", lambda alpha, T: alpha),
            Mistake(
                "this is the share of the labels", lambda alpha, T: (1 - alpha) / (1 - alpha + alpha * T**2)
            ),
        ),
    ),
    Exercise(
        slug="kd-readout",
        title="Undo the temperature",
        chapter="13_distillation",
        reference=lambda q, T: _normalised(q ** (1 / T)),
        inputs=_readout_inputs,
        rtol=1e-10,
        why="a few roundings in float64",
        mistakes=(
            Mistake(
                "the power is turned round: the student has P**T already", lambda q, T: _normalised(q**T)
            ),
            Mistake("it does not sum to one yet", lambda q, T: q ** (1 / T)),
            Mistake(
                "q is divided by T: its logarithm has to be", lambda q, T: q / T, lambda q, T: softmax(q / T)
            ),
        ),
    ),
    Exercise(
        slug="kd-pool",
        title="What several teachers leave behind",
        chapter="13_distillation",
        reference=_pooled,
        inputs=_pool_inputs,
        rtol=1e-9,
        why="a few roundings in float64, and logarithms and exponentials",
        mistakes=(
            Mistake("this is the mean at T = 1: the teachers are softened first", lambda t, T: t.mean(0)),
            Mistake(
                "this is the limit for a high temperature, the geometric mean",
                lambda t, T: softmax(np.log(t).mean(0)),
            ),
            Mistake(
                "this is the student at T: read it out at 1, by the power T",
                lambda t, T: softmax(np.log(t) / T).mean(0),
            ),
            Mistake(
                "it does not sum to one yet: normalise after the power T",
                lambda t, T: softmax(np.log(t) / T).mean(0) ** T,
            ),
            Mistake(
                "this sharpens the plain mean: the teachers are softened before it",
                lambda t, T: _normalised(t.mean(0) ** T),
            ),
            Mistake(
                "normalise each softened teacher before the mean",
                lambda t, T: _normalised((t ** (1 / T)).mean(0) ** T),
            ),
        ),
    ),
)
