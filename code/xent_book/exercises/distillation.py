"""Exercises of chapter 13, distillation."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from xent.distillation import distillation_gradient
from xent.numerics import softmax
from xent_book.exercises._check import Exercise, Mistake

Array = npt.NDArray[np.floating[Any]]


def _gradient_inputs() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(13)
    return [(rng.normal(size=k) * 2, rng.normal(size=k) * 2, T) for k, T in ((2, 3.0), (4, 0.5), (7, 8.0))]


def _difference(z: Array, v: Array, T: float) -> Array:
    difference: Array = softmax(z / T) - softmax(v / T)
    return difference


def _one_side(power: int, z: Array, v: Array, T: float) -> Array:
    return np.asarray(T**power * (softmax(z / T) - softmax(v)))


def _other_side(power: int, z: Array, v: Array, T: float) -> Array:
    return np.asarray(T**power * (softmax(z) - softmax(v / T)))


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
        slug="kd-gradient",
        title="The gradient, with its powers of T",
        chapter="13_distillation",
        reference=lambda z, v, T: T * _difference(z, v, T),
        inputs=_gradient_inputs,
        rtol=1e-10,
        why="a few roundings in float64",
        mistakes=(
            Mistake(
                "this looks like a missing T**2: it is the gradient of the divergence alone",
                lambda z, v, T: _difference(z, v, T) / T,
            ),
            Mistake(
                "the chain rule through z / T is missing a factor 1 / T",
                lambda z, v, T: T**2 * _difference(z, v, T),
            ),
            Mistake("the powers of T are missing", _difference),
            Mistake(
                "the temperature is missing from the softmaxes",
                lambda z, v, T: softmax(z) - softmax(v),
                lambda z, v, T: T * (softmax(z) - softmax(v)),
            ),
            Mistake(
                "this is the gradient of KL(q || p): here the teacher comes first",
                lambda z, v, T: distillation_gradient(z, v, temperature=T, direction="reverse"),
            ),
            Mistake(
                "the temperature is on one side only: teacher and student are both softened by it",
                *(partial(_one_side, power) for power in (-1, 0, 1, 2)),
                *(partial(_other_side, power) for power in (-1, 0, 1, 2)),
            ),
            Mistake(
                "this is the limit for a high temperature, not the gradient at this one",
                lambda z, v, T: (z - v - (z - v).mean()) / len(z),
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
