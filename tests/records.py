"""Frozen results, and what a sentence may say of them: numbers paired by seed, and 95 % intervals of their mean.

    interval(speech("B=1") / speech("constant")).high < 0.5

A relation asserts something of such numbers; tests/claims/test_records.py has the sentences, row by row.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from adversary import refuted

Array = NDArray[np.float64]
EXPERIMENTS = Path(__file__).parents[1] / "experiments"


@cache
def record(name: str) -> dict[str, Any]:
    """The stored result of an experiment, such as "shakespeare/result"."""
    found: dict[str, Any] = json.loads((EXPERIMENTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def by_seed(name: str, key: str, **where: Any) -> Array:
    """One number for each run of these settings, in the order of its seeds; "length.long" is a key within a key."""
    runs = [run for run in record(name)["runs"] if where.items() <= run.items()]
    assert runs and [run["seed"] for run in runs] == sorted(run["seed"] for run in runs), where
    first, _, second = key.partition(".")
    return np.array([run[first][second] if second else run[first] for run in runs])


class Interval(NamedTuple):
    low: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low < value < self.high


def interval(x: Array) -> Interval:
    """Ends of the 95 % interval of the mean, by Student's t."""
    half = stats.t.ppf(0.975, len(x) - 1) * stats.sem(x)
    return Interval(float(x.mean() - half), float(x.mean() + half))


# ------------------------------------------------------------------------------ what may be said of numbers


def holds(relation: Callable[..., None], *on: Any, but_not: dict[str, Any]) -> None:
    """The relation holds of each of these, arrays or tuples of arguments, and rejects each of those."""
    for given in on:
        relation(*given if isinstance(given, tuple) else (given,))
    for what, given in but_not.items():
        with refuted(what):
            relation(*given if isinstance(given, tuple) else (given,))


def below(x: Array, bound: float = 0.0) -> None:
    assert interval(x).high < bound


def above(x: Array, bound: float = 0.0) -> None:
    assert interval(x).low > bound


def unseen(x: Array, widest: float = np.inf) -> None:
    """No change is visible: the interval holds zero, and is no wider than that."""
    low, high = interval(x)
    assert low < 0 < high < low + widest


def within(x: Array | float, low: float, high: float, room: float | None = None) -> None:
    """The mean is between the two; the interval goes beyond by no more than this, or than half of their distance."""
    assert low < np.mean(x) < high
    if isinstance(x, np.ndarray):
        room = (high - low) / 2 if room is None else room
        assert low - room < interval(x).low < interval(x).high < high + room


def between(
    low: float, high: float, *found: Array | float, room: float | None = None, but_not: dict[str, Any]
) -> None:
    """So is each of these, numbers or arrays, and none of those."""
    rejected = {what: (x, low, high, room) for what, x in but_not.items()}
    holds(within, *((x, low, high, room) for x in found), but_not=rejected)


def printed(x: Array, mean: float, half: float) -> None:
    """The mean and the half-width of its interval, as the page has them, and on the side of zero that they say."""
    low, high = interval(x)
    digits = max(len(repr(number).partition(".")[2]) for number in (mean, half))
    assert ((low + high) / 2, (high - low) / 2) == pytest.approx((mean, half), abs=0.52 * 10.0**-digits)
    assert (low * high > 0) == (abs(mean) > half)


# ------------------------------------------------------------------------------------- whose numbers they are


def speech(arm: str, key: str = "mean_length", design: str = "result") -> Array:
    """Chapter 11's speeches, six seeds; five of the first design."""
    return by_seed(f"shakespeare/{design}", key, arm=arm)


def described(writers: int, arm: str, key: str = "length", clip: bool = False) -> Array:
    """What chapter 11's models of restaurants write."""
    return by_seed("restaurants/result", key, writers=writers, arm=arm, clip=clip)


def shorter(writers: int, arm: str, clip: bool = False) -> Array:
    """By how many per cent of the constant arm's texts these are longer: below 0, they are shorter."""
    return 100 * (described(writers, arm, clip=clip) / described(writers, "constant") - 1)


def gain(better: str, worse: str, key: str = "0.01", other: str = "0.01") -> Array:
    """How far an arm of experiments/distillation/teachers is ahead of another, in nats, at these learning rates."""
    arms = record("distillation/teachers")["arms"]
    return np.subtract(arms[worse]["rates"][other]["nll"], arms[better]["rates"][key]["nll"])
