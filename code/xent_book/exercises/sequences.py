"""Exercises of chapter 10, the averaged loss."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from xent_book.exercises._check import Exercise, Mistake

Array = npt.NDArray[np.float64]


def _learnt_stop(beta: float) -> float:
    return 1.0 if beta == 1 else float(beta * np.log(beta) / (beta - 1))


def _stop_inputs() -> list[tuple[Any, ...]]:
    return [(0.5,), (0.1,), (1e-6,), (0.9,), (1 - 2.0**-40,), (1.0,)]


def _at_one(formula: Callable[[float], float]) -> Iterator[Callable[[float], float]]:
    """A formula that divides or takes a logarithm of zero at beta = 1, and what readers make of that."""
    yield formula
    for there in (0.0, 1.0, -1.0, np.nan, np.inf, -np.inf):
        yield lambda beta, there=there: there if beta == 1 else formula(beta)  # type: ignore[misc]
    # The error's type depends on who divides: Python's floats or NumPy's.
    for error in (ZeroDivisionError, ValueError):

        def raises(beta: float, error: type[Exception] = error) -> float:
            if beta == 1:
                raise error
            return formula(beta)

        yield raises


def _lost_distribution(q: Array) -> Array:
    p = np.arange(1, len(q) + 1) * q
    return np.asarray(p / p.sum())


def _untilt_inputs() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(10)
    return [
        (np.array([0.75, 0.25]),),
        (np.array([0.5, 0.0, 0.3, 0.2]),),
        (rng.dirichlet(np.ones(8)),),
    ]


def _batches(lengths: list[int], size: int) -> Array:
    """The mean length of each batch of `size` draws."""
    return np.array([sum(batch) / size for batch in itertools.product(lengths, repeat=size)])


def _mean_length_inputs() -> list[tuple[Any, ...]]:
    return [([1, 3], 1), ([1, 3], 2), ([1, 2, 2, 9], 3), ([5, 5], 4), ([2, 7, 30], 4)]


def _window_mean(means: Array, counts: npt.NDArray[np.int64]) -> float:
    some = counts > 0
    return float((means[some] * counts[some]).sum() / counts[some].sum())


def _window_inputs() -> list[tuple[Any, ...]]:
    return [
        (np.array([2.0, 1.0]), np.array([1, 3])),
        (np.array([0.5, 1.5, 4.0]), np.array([10, 20, 5])),
        (np.array([3.0, np.nan, 1.0]), np.array([2, 0, 6])),
    ]


EXERCISES = (
    Exercise(
        slug="averaged-eos-optimum",
        title="The stop probability that a mean over each sequence teaches",
        chapter="10_averaged_loss",
        reference=_learnt_stop,
        inputs=_stop_inputs,
        rtol=1e-9,
        why="a logarithm and a quotient",
        mistakes=(
            Mistake(
                "this is the formula that has appeared in print, with beta and 1 - beta exchanged; both give "
                "log 2 for a fair coin. The share of <eos> among the tokens of a sequence is 1/n: sum P(n)/n",
                *_at_one(lambda beta: (beta - 1) / beta * math.log(1 - beta)),
            ),
            Mistake(
                "the sign is flipped: log(beta) is negative, and so is beta - 1",
                *_at_one(lambda beta: beta * math.log(beta) / (1 - beta)),
            ),
            Mistake(
                "this looks like the stop probability itself: that is what the summed loss teaches",
                lambda beta: beta,
            ),
            Mistake(
                "this looks like log 2, which is the answer for a fair coin only",
                lambda beta: np.log(2),
            ),
            Mistake(
                "the formula is right, but 0/0 at beta = 1: the limit there is 1",
                lambda beta: beta * np.log(np.float64(beta)) / (np.float64(beta) - 1),
            ),
            Mistake(
                "this looks like the learnt mean length; the stop probability is one over it",
                lambda beta: 1 / _learnt_stop(beta),
            ),
            Mistake(
                "this is the chance to stop at the first token that a model learns if it may stop with another "
                "chance at each; a model with one chance learns their mean, E[1/n]",
                lambda beta: 1.0 if beta == 1 else (beta - 1) / np.log(beta),
            ),
        ),
    ),
    Exercise(
        slug="untilt",
        title="Recover the distribution of lengths from what the averaged loss taught",
        chapter="10_averaged_loss",
        reference=_lost_distribution,
        inputs=_untilt_inputs,
        rtol=1e-9,
        why="one product and one sum",
        mistakes=(
            Mistake(
                "this tilts once more: you divided by the length where you should multiply",
                lambda q: (q / np.arange(1, len(q) + 1)) / (q / np.arange(1, len(q) + 1)).sum(),
            ),
            Mistake(
                "the result does not sum to one: divide by its sum, the mean length of the model",
                lambda q: np.arange(1, len(q) + 1) * q,
            ),
            Mistake(
                "the lengths start at 1: index 0 holds the probability of length 1",
                lambda q: (np.arange(len(q)) * q) / (np.arange(len(q)) * q).sum(),
            ),
        ),
    ),
    Exercise(
        slug="batch-mean-length",
        title="The mean length that a token mean over micro-batches teaches",
        chapter="10_averaged_loss",
        reference=lambda lengths, size: float(1 / np.mean(1 / _batches(lengths, size))),
        inputs=_mean_length_inputs,
        rtol=1e-9,
        why="a sum over all batches, in any order",
        mistakes=(
            Mistake(
                "this is the mean length of the data: averaging the batches' mean lengths changes nothing; "
                "average their inverses",
                lambda lengths, size: float(np.mean(lengths)),
            ),
            Mistake(
                "this is the harmonic mean of the lengths, right for micro-batches of one; the size counts",
                lambda lengths, size: float(1 / np.mean(1 / np.array(lengths))),
            ),
            Mistake(
                "this looks like a missing factor: the batch's mean length is its sum over its size",
                lambda lengths, size: float(size / np.mean(1 / _batches(lengths, size))),
                lambda lengths, size: float(1 / np.mean(1 / _batches(lengths, size)) / size),
            ),
            Mistake(
                "this is the approximation mu (1 - CV^2 / size); take the batches themselves",
                lambda lengths, size: float(
                    np.mean(lengths) * (1 - np.var(lengths) / np.mean(lengths) ** 2 / size)
                ),
            ),
            Mistake(
                "these are batches without repetition: independent draws may pick a sequence twice",
                lambda lengths, size: float(
                    1 / np.mean([size / sum(b) for b in itertools.combinations(lengths, size)] or [np.nan])
                ),
            ),
            Mistake(
                "these are the batches without their order, which are not equally likely: count each order",
                lambda lengths, size: float(
                    1
                    / np.mean([size / sum(b) for b in itertools.combinations_with_replacement(lengths, size)])
                ),
            ),
            Mistake(
                "this is the mean of the inverses, a stop probability: its inverse is the length",
                lambda lengths, size: float(np.mean(1 / _batches(lengths, size))),
            ),
        ),
    ),
    Exercise(
        slug="window-mean",
        title="The token mean of a window from the means of its micro-batches",
        chapter="10_averaged_loss",
        reference=_window_mean,
        inputs=_window_inputs,
        rtol=1e-12,
        why="a weighted mean of a few numbers",
        mistakes=(
            Mistake(
                "this is the mean of the means: it gives a micro-batch of one token the say of a long one",
                lambda means, counts: float(np.mean(means)),
                lambda means, counts: float(np.nanmean(means)),
                lambda means, counts: float(means[counts > 0].sum() / len(means)),
            ),
            Mistake(
                "a micro-batch without tokens makes it nan: 0 * nan is nan, so leave it out",
                lambda means, counts: float((means * counts).sum() / counts.sum()),
            ),
            Mistake(
                "this is the sum of the losses: divide by the number of tokens",
                lambda means, counts: float(np.nansum(means * counts)),
            ),
            Mistake(
                "you divided by the number of micro-batches, not by the number of tokens",
                lambda means, counts: float(np.nansum(means * counts) / len(means)),
            ),
        ),
    ),
)
