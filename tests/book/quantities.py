"""What chapters/numbers.toml calls by a name: what is asked of the experiments' records, and how."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean
from typing import Any

import numpy as np

import records
from records import by_seed, interval, record


def ends(values: Iterable[float]) -> tuple[float, float]:
    """Return the least and the greatest."""
    found = sorted(values)
    return found[0], found[-1]


def speech(arm: str) -> float:
    """Return the mean length of the speeches of an arm of experiments/shakespeare, in characters."""
    return float(records.speech(arm).mean())


def foretold_speech(arm: str) -> float:
    """Return what was foretold of it."""
    return float(record("shakespeare/prediction")["arms"][arm]["mean_length"])


def restaurants(writers: int, arm: str, key: str) -> Any:
    """Return one number for each seed of an arm of experiments/restaurants, unclipped."""
    return by_seed("restaurants/result", key, writers=writers, arm=arm, clip=False)


def described(writers: int, arm: str) -> float:
    """Return by how many per cent its texts are longer than the constant arm's, seed by seed."""
    longer = restaurants(writers, arm, "length") / restaurants(writers, "constant", "length")
    return float(100 * mean(longer - 1))


def nats_a_word(writers: int, arm: str = "constant") -> float:
    """Return the mean loss of a word of the held-out texts of people."""
    return float(mean(restaurants(writers, arm, "nats")))


def trainer_errors(*recipes: str) -> tuple[float, float]:
    """Return the ends of the errors of these trainers."""
    rows = record("trainers/result")["rows"]
    return ends(e for row in rows if row["recipe"] in recipes for e in row["error"])


def on_policy_errors() -> tuple[float, float]:
    """Return the ends of those of GKD on the student's own texts, on one rank."""
    rows = record("trainers/result")["on_policy"]
    asked = ("GKD, the student's texts", 1)
    return ends(run["error"] for r in rows if (r["recipe"], r.get("ranks")) == asked for run in r["runs"])


def gain(better: str, worse: str, key: str = "0.01", other: str = "0.01") -> tuple[float, float]:
    """Return by how much one arm of experiments/distillation/teachers is ahead of another, and its interval's half."""
    arms = record("distillation/teachers")["arms"]
    ahead = np.subtract(arms[worse]["rates"][other]["nll"], arms[better]["rates"][key]["nll"])
    low, high = interval(ahead)
    return (low + high) / 2, (high - low) / 2


def on_gpu(loss: str) -> list[dict[str, Any]]:
    """Return the measurements of a linear loss on a GPU."""
    cases = record("bench/linear")["cases"]
    return [case for case in cases if case["device"] != "cpu" and case["loss"] == loss]


def times_of_cut() -> tuple[float, float]:
    """Return the ends of the time of Apple's cut cross-entropy, in that of the plain pair."""
    measured = [case["seconds"] for case in record("bench/linear")["cases"]]
    return ends(taken[way] / taken["plain"] for taken in measured for way in taken if way.startswith("cut"))
