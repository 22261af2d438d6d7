"""What chapters/numbers.toml calls by a name: what is asked of the experiments' records, and how."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import records
from records import interval, record


def ends(values: Iterable[float]) -> tuple[float, float]:
    """Return the least and the greatest."""
    found = sorted(values)
    return found[0], found[-1]


def trainer_errors(*recipes: str) -> tuple[float, float]:
    """Return the ends of the errors of these trainers."""
    rows = record("trainers/result")["rows"]
    return ends(e for row in rows if row["recipe"] in recipes for e in row["error"])


def on_policy_errors() -> tuple[float, float]:
    """Return the ends of those of GKD on the student's own texts, on one rank."""
    rows = record("trainers/result")["on_policy"]
    asked = ("GKD, the student's texts", 1)
    return ends(run["error"] for r in rows if (r["recipe"], r.get("ranks")) == asked for run in r["runs"])


def with_error(values: records.Array) -> tuple[float, float]:
    """Return the mean, and half of its interval."""
    low, high = interval(values)
    return (low + high) / 2, (high - low) / 2


def on_gpu(loss: str) -> list[dict[str, Any]]:
    """Return the measurements of a linear loss on a GPU."""
    cases = record("bench/linear")["cases"]
    return [case for case in cases if case["device"] != "cpu" and case["loss"] == loss]


def times_of_cut() -> tuple[float, float]:
    """Return the ends of the time of Apple's cut cross-entropy, in that of the plain pair."""
    measured = [case["seconds"] for case in record("bench/linear")["cases"]]
    return ends(taken[way] / taken["plain"] for taken in measured for way in taken if way.startswith("cut"))
