"""What chapters/numbers.toml calls by a name: what is asked of the experiments' records, and how."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

from scipy import stats

ROOT = Path(__file__).resolve().parents[2]


@cache
def result(name: str) -> Any:
    """Read the record of an experiment."""
    return json.loads((ROOT / "experiments" / name).read_text(encoding="utf-8"))


def ends(values: Iterable[float]) -> tuple[float, float]:
    """Return the least and the greatest."""
    found = sorted(values)
    return found[0], found[-1]


def speech(arm: str) -> float:
    """Return the mean length of the speeches of an arm of experiments/shakespeare, in characters."""
    return float(mean(r["mean_length"] for r in result("shakespeare/result.json")["runs"] if r["arm"] == arm))


def foretold_speech(arm: str) -> float:
    """Return what was foretold of it."""
    return float(result("shakespeare/prediction.json")["arms"][arm]["mean_length"])


def restaurants(writers: int, arm: str, key: str) -> list[float]:
    """Return one number for each seed of an arm of experiments/restaurants, unclipped."""
    asked = {"writers": writers, "arm": arm, "clip": False}
    return [r[key] for r in result("restaurants/result.json")["runs"] if asked.items() <= r.items()]


def described(writers: int, arm: str) -> float:
    """Return by how many per cent its texts are longer than the constant arm's, seed by seed."""
    pairs = zip(*(restaurants(writers, a, "length") for a in (arm, "constant")), strict=True)
    return 100 * mean(a / b - 1 for a, b in pairs)


def nats_a_word(writers: int, arm: str = "constant") -> float:
    """Return the mean loss of a word of the held-out texts of people."""
    return mean(restaurants(writers, arm, "nats"))


def trainer_errors(*recipes: str) -> tuple[float, float]:
    """Return the ends of the errors of these trainers."""
    rows = result("trainers/result.json")["rows"]
    return ends(e for row in rows if row["recipe"] in recipes for e in row["error"])


def on_policy_errors() -> tuple[float, float]:
    """Return the ends of those of GKD on the student's own texts, on one rank."""
    rows = result("trainers/result.json")["on_policy"]
    asked = ("GKD, the student's texts", 1)
    return ends(run["error"] for r in rows if (r["recipe"], r.get("ranks")) == asked for run in r["runs"])


def gain(better: str, worse: str, key: str = "0.01", other: str = "0.01") -> tuple[float, float]:
    """Return by how much one arm of experiments/distillation/teachers is ahead of another, and its interval's half."""
    arms = result("distillation/teachers.json")["arms"]
    pairs = zip(arms[worse]["rates"][other]["nll"], arms[better]["rates"][key]["nll"], strict=True)
    x = [a - b for a, b in pairs]
    return mean(x), float(stats.t.ppf(0.975, len(x) - 1) * stats.sem(x))


def on_gpu(loss: str) -> list[dict[str, Any]]:
    """Return the measurements of a linear loss on a GPU."""
    cases = result("bench/linear.json")["cases"]
    return [case for case in cases if case["device"] != "cpu" and case["loss"] == loss]


def times_of_cut() -> tuple[float, float]:
    """Return the ends of the time of Apple's cut cross-entropy, in that of the plain pair."""
    cases = result("bench/linear.json")["cases"]
    times = [(case["seconds"], way) for case in cases for way in case["seconds"] if way.startswith("cut")]
    return ends(seconds[way] / seconds["plain"] for seconds, way in times)
