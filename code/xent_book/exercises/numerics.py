"""Exercises of chapter 05, numerics."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from xent.losses import cross_entropy
from xent_book.exercises._check import Exercise, Mistake

Array = npt.NDArray[np.float64]


def _quiet(function: Any) -> Any:
    """Let a formula overflow or take the log of zero without a warning: that is what it is here for."""

    def run(*arguments: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*arguments)

    return run


def _log1mexp(log_p: Array) -> Array:
    log_p = np.asarray(log_p, dtype=np.float64)
    with np.errstate(divide="ignore"):
        return np.where(log_p > -np.log(2), np.log(-np.expm1(log_p)), np.log1p(-np.exp(log_p)))


def _log1mexp_inputs() -> list[tuple[Any, ...]]:
    return [
        (np.array([-0.5, -1.0, -3.0]),),
        (-np.logspace(-300, -1, 40),),
        (-np.logspace(1, 2.8, 40),),
    ]


def _kept(logits: Array, target: int) -> Any:
    return cross_entropy(logits, target)


def _kept_inputs() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(5)
    return [
        (np.array([0.0, 1.0, -1.0]), 0),
        (np.array([50.0, 0.0, 3.0]), 0),
        (np.array([0.0, 1000.0, -1000.0]), 2),
        (np.array([1000.0, 1000.0]), 1),
        (rng.normal(size=20) * 5, 7),
    ]


def _half_inputs() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(6)
    return [(rng.exponential(2.5, size=n).astype(np.float16),) for n in (10, 3_000, 60_000, 100_000)]


EXERCISES = (
    Exercise(
        slug="log1mexp",
        title="log(1 - p) from log p",
        chapter="05_numerics",
        reference=_log1mexp,
        inputs=_log1mexp_inputs,
        rtol=1e-13,
        why="both branches are within a few ulp where they are used",
        mistakes=(
            Mistake(
                "this is log1p(-exp(log_p)) everywhere: near log p = 0 the exponential rounds to 1 and the "
                "logarithm to -inf; use expm1 on that side",
                _quiet(lambda log_p: np.log1p(-np.exp(log_p))),
            ),
            Mistake(
                "this is log(-expm1(log_p)) everywhere: for very small p it rounds to log(1) = 0; use log1p "
                "on that side",
                _quiet(lambda log_p: np.log(-np.expm1(log_p))),
            ),
            Mistake(
                "this loses its digits on both sides: log(1 - exp(log_p)), or the two branches swapped",
                _quiet(lambda log_p: np.log(1 - np.exp(log_p))),
                _quiet(
                    lambda log_p: np.where(
                        log_p > -np.log(2), np.log1p(-np.exp(log_p)), np.log(-np.expm1(log_p))
                    )
                ),
            ),
        ),
    ),
    Exercise(
        slug="ce-kept-digits",
        title="A cross-entropy that keeps its digits",
        chapter="05_numerics",
        reference=_kept,
        inputs=_kept_inputs,
        rtol=1e-13,
        why="a few roundings of positive terms in float64",
        mistakes=(
            Mistake(
                "this looks like log(sum(exp(z))) - z without the shift: it overflows for large logits",
                _quiet(lambda z, y: np.log(np.exp(z).sum()) - z[y]),
                _quiet(lambda z, y: -np.log(np.exp(z) / np.exp(z).sum())[y]),
            ),
            Mistake(
                "this looks like the logarithm of a softmax: the probability underflows when the answer is "
                "wrong by a large margin",
                _quiet(lambda z, y: -np.log(np.exp(z - z.max()) / np.exp(z - z.max()).sum())[y]),
            ),
            Mistake(
                "this looks like lse(z) - z[target]: for a certain and right answer the 1 in log(1 + s) "
                "swallows s; leave the target out of the sum and use log1p",
                _quiet(lambda z, y: z.max() + np.log(np.exp(z - z.max()).sum()) - z[y]),
                _quiet(lambda z, y: np.log(np.exp(z - z.max()).sum()) + (z.max() - z[y])),
            ),
            Mistake(
                "this looks like log1p of the sum relative to the target: it overflows when the target's "
                "logit is far below the others; shift by the maximum there",
                _quiet(lambda z, y: np.log1p(np.exp(np.delete(z, y) - z[y]).sum())),
            ),
            Mistake(
                "the sign is flipped: this is the log-probability",
                lambda z, y: -_kept(z, y),
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
        ),
    ),
    Exercise(
        slug="dead-margin",
        title="The margin at which a bfloat16 loss rounds to zero",
        chapter="05_numerics",
        reference=lambda: 8 * np.log(2),
        rtol=1e-3,
        why="a closed form, which may be rounded to three digits",
        mistakes=(
            Mistake(
                "this takes u = 2^-7, the gap between 1 and the next number; rounding errs by half of it",
                lambda: 7 * np.log(2),
            ),
            Mistake("this counts 7 stored digits and forgets the leading one, twice", lambda: 6 * np.log(2)),
            Mistake("this is the logarithm to base 2: the exponential wants the natural one", lambda: 8.0),
            Mistake("this is the margin of float16, which has 11 digits", lambda: 11 * np.log(2)),
        ),
    ),
)
