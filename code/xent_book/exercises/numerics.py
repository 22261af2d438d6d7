"""Exercises of chapter 05, numerics."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from xent.losses import cross_entropy
from xent.numerics import log_sum_exp
from xent_book.exercises._check import Exercise, Mistake

Array = npt.NDArray[np.float64]


def _quiet(function: Any) -> Any:
    """Let a formula overflow or take the log of zero without a warning: that is what it is here for."""

    def run(*arguments: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*arguments)

    return run


def _log_miss(logits: Array, target: int) -> float:
    gap = logits[target] - log_sum_exp(np.delete(logits, target))
    return -float(np.logaddexp(0, gap))


def _log_miss_inputs() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(5)
    return [
        (np.array([0.0, 1.0, -1.0]), 0),
        (np.array([50.0, 0.0, 3.0]), 0),
        (np.array([50.0, 0.0, 3.0]), 1),
        (np.array([0.0, 1000.0, -1000.0]), 2),
        (np.array([0.0, 1000.0, -1000.0]), 1),
        (np.array([1000.0, 1000.0]), 1),
        (rng.normal(size=20) * 5, 7),
    ]


def _softmax(z: Array) -> Array:
    e = np.exp(z - z.max())
    return np.asarray(e / e.sum())


def _half_inputs() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(6)
    return [(rng.exponential(2.5, size=n).astype(np.float16),) for n in (10, 3_000, 60_000, 100_000)]


EXERCISES = (
    Exercise(
        slug="log-miss",
        title="The logarithm of the probability of the other classes",
        chapter="05_numerics",
        reference=_log_miss,
        inputs=_log_miss_inputs,
        rtol=1e-12,
        why="the rounding of logits near 50, in float64",
        mistakes=(
            Mistake(
                "this subtracts p from 1: where p rounds to 1 nothing is left, and where p is small its digits go",
                _quiet(lambda z, y: np.log(1 - _softmax(z)[y])),
                _quiet(lambda z, y: np.log(1 - np.exp(z[y] - log_sum_exp(z)))),
            ),
            Mistake(
                "this is log1p(-p): fine where p is small, but where the answer is certain and right p rounds to 1",
                _quiet(lambda z, y: np.log1p(-_softmax(z)[y])),
                _quiet(lambda z, y: np.log1p(-np.exp(z[y] - log_sum_exp(z)))),
            ),
            Mistake(
                "this adds up the probabilities of the others and takes the logarithm: for a certain and wrong "
                "answer their sum rounds to 1, and p_y is lost",
                _quiet(lambda z, y: np.log(np.delete(_softmax(z), y).sum())),
            ),
            Mistake(
                "this is the difference of two log-sum-exps: for a certain and wrong answer they are equal; use "
                "their gap and log1p",
                lambda z, y: log_sum_exp(np.delete(z, y)) - log_sum_exp(z),
            ),
            Mistake(
                "this overflows for large logits: shift by the maximum first",
                _quiet(lambda z, y: np.log(np.delete(np.exp(z), y).sum() / np.exp(z).sum())),
                _quiet(lambda z, y: -np.log1p(np.exp(z[y]) / np.delete(np.exp(z), y).sum())),
            ),
            Mistake(
                "this is the loss, -log p_y: the logarithm of 1 - p_y is meant",
                lambda z, y: cross_entropy(z, y),
            ),
            Mistake(
                "this is log p_y: the logarithm of 1 - p_y is meant",
                lambda z, y: -cross_entropy(z, y),
            ),
            Mistake(
                "this is log(1 + exp(gap)): exp overflows for a large gap, and the 1 swallows a small one",
                _quiet(lambda z, y: -np.log(1 + np.exp(z[y] - log_sum_exp(np.delete(z, y))))),
                _quiet(lambda z, y: -np.log1p(np.exp(z[y] - log_sum_exp(np.delete(z, y))))),
            ),
            Mistake(
                "this compares with the largest rival only: the other classes are one class of their log-sum-exp",
                lambda z, y: -np.logaddexp(0, z[y] - np.delete(z, y).max()),
            ),
        ),
    ),
    Exercise(
        slug="half-mean",
        title="The mean of float16 losses",
        chapter="05_numerics",
        reference=lambda losses: float(losses.sum(dtype=np.float64) / losses.size),
        inputs=_half_inputs,
        rtol=1e-7,
        why="the seven digits that the exercise asks for",
        mistakes=(
            Mistake(
                "the sum is still taken in float16: it rounds, and overflows beyond 65,504",
                _quiet(lambda losses: float(losses.sum(dtype=np.float16) / np.float16(losses.size))),
                _quiet(lambda losses: float(losses.sum(dtype=np.float16)) / losses.size),
            ),
            Mistake(
                "this is right, but in float16: the result of the mean has been rounded to three digits",
                lambda losses: float(np.float16(losses.mean(dtype=np.float64))),
            ),
            Mistake("this is the median: the mean is meant", lambda losses: float(np.median(losses))),
        ),
    ),
    Exercise(
        slug="dead-margin",
        title="The margin at which the float32 loss of a token rounds to zero",
        chapter="05_numerics",
        reference=lambda: np.log(50_256) + 24 * np.log(2),
        rtol=2e-3,
        why="a closed form, rounded to three digits or not",
        mistakes=(
            Mistake(
                "this is the margin for a single rival: here 50,256 of them add up in s",
                lambda: 24 * np.log(2),
                lambda: 23 * np.log(2),
            ),
            Mistake(
                "this takes u = 2^-23, the gap between 1 and the next number; rounding errs by half of it",
                lambda: np.log(50_256) + 23 * np.log(2),
            ),
            Mistake(
                "the rivals shift the margin the other way: s has to fall below u although there are many",
                lambda: 24 * np.log(2) - np.log(50_256),
            ),
            Mistake(
                "this is the logarithm to base 2: the exponential wants the natural one",
                lambda: np.log2(50_256) + 24,
            ),
            Mistake(
                "this is the margin at which exp(-a) itself underflows: s has to be added to 1 only",
                lambda: 149 * np.log(2),
                lambda: 150 * np.log(2),
            ),
        ),
    ),
)
