"""Exercises of chapter 10, the averaged loss."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

from xent_book.exercises._check import Array, Exercise


def _learnt(beta: float) -> float:
    return 1.0 if beta == 1 else float(beta * np.log(beta) / (beta - 1))


def _between(function: Callable[[float], float], value: float, low: float, high: float) -> float:
    """Where a function that grows takes a value, by halving."""
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if function(middle) < value else (low, middle)
    return high


def _coin(q: float) -> float:
    return 1.0 if q == 1 else _between(_learnt, q, 0.0, q)


def _drawn(zero: float, way: Callable[..., Iterable[Any]], lengths: list[int], size: int) -> float:
    """From batches of another kind; where there is none, a zero of Python raises and one of NumPy gives nan."""
    inverse = [size / sum(batch) for batch in way(lengths, size)]
    return float((zero + len(inverse)) / (zero + sum(inverse)))


def _batches(lengths: list[int], size: int) -> Array:
    """The mean length of each batch of `size` draws."""
    return np.array([sum(batch) / size for batch in itertools.product(lengths, repeat=size)])


EXERCISES = (
    Exercise(
        "averaged-eos-coin",
        _coin,
        lambda: [(math.log(2),), (_learnt(0.1),), (0.01,), (0.95,), (0.5,), (1.0,), (0.001,)],
        "this inverts the formula that has appeared in print, beta and 1 - beta exchanged: the "
        "share of <eos> in a sequence is 1/n",
        lambda q: 1.0 if q == 1 else 1 - _coin(q),
        "this tilts once more: a coin with this stop probability teaches that",
        _learnt,
        lambda q: q * np.log(q) / (q - 1),
        "this is the learnt stop probability itself, the coin of a summed loss",
        lambda q: q,
        "this looks like 1/2, which is the coin behind log 2 only",
        lambda q: 0.5,
        "this undoes the first order, beta (2 - beta), which is good for large batches",
        lambda q: 1 - math.sqrt(1 - q),
        rtol=1e-6,  # a search; the chapter names this tolerance, and the smallest q
    ),
    Exercise(
        "batch-mean-length",
        lambda lengths, size: float(1 / np.mean(1 / _batches(lengths, size))),
        lambda: [([1, 3], 1), ([1, 3], 2), ([1, 2, 2, 9], 3), ([5, 5], 4), ([2, 7, 30], 4)],
        "this is the mean length of the data: average the inverses",
        lambda lengths, size: float(np.mean(lengths)),
        "this is right for micro-batches of one: the size counts",
        lambda lengths, size: float(1 / np.mean(1 / np.array(lengths))),
        "the draws are independent: a batch may hold a sequence twice (itertools.product)",
        partial(_drawn, 0.0, itertools.combinations),
        partial(_drawn, np.float64(0), itertools.combinations),
        "each order counts: batches of different sequences are drawn more often than this",
        partial(_drawn, 0.0, itertools.combinations_with_replacement),
        "the mean length of a batch is its sum divided by size: the size is missing",
        lambda lengths, size: float(1 / np.mean(1 / _batches(lengths, size) / size)),
        "this is the approximation mu (1 - CV^2 / size)",
        lambda lengths, size: float(np.mean(lengths) * (1 - np.var(lengths) / np.mean(lengths) ** 2 / size)),
    ),
)
