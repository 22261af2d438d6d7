"""What the figures that move compute, under Node, against `xent`; their library; their directive."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import subprocess
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import xent
import xent_move
from xent import gradients, information, scoring
from xent.sequences import eos_optimum
from xent_math import NODE

if TYPE_CHECKING:
    from .conftest import TinyBook

ROOT = Path(__file__).resolve().parents[2]
MOVE = ROOT / "_static" / "move"

RUN = """
require(process.argv[1]);
const calls = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(calls.map(([name, ...rest]) => globalThis.xentFormulas[name](...rest))));
"""


def in_node(name: str, calls: Iterable[tuple[Any, ...]]) -> np.ndarray:
    """Call one of the formulas many times; the numbers keep their digits on the way."""
    asked = json.dumps([[name, *arguments] for arguments in calls])
    done = subprocess.run(
        [str(NODE), "-e", RUN, str(MOVE / "formulas.js")],
        input=asked,
        capture_output=True,
        text=True,
        check=True,
    )
    return np.array(json.loads(done.stdout), dtype=np.float64)


def close(observed: np.ndarray, expected: Any) -> None:
    np.testing.assert_allclose(observed, np.asarray(expected), rtol=1e-12, atol=1e-300)


LOGITS = [[float(a), 1.0, 0.0, -1.0] for a in np.arange(-4, 6.25, 0.75)]
TEMPERATURES = [2.0**k for k in np.arange(-3, 3.25, 0.5)]


def test_softmax_at_a_temperature() -> None:
    calls = [
        ([z + shift for z in row], t)
        for row, t, shift in itertools.product(LOGITS, TEMPERATURES, (-20, 0, 20))
    ]
    close(in_node("softmax", calls), [xent.softmax(np.array(z) / t) for z, t in calls])


def test_softmax_of_far_logits_does_not_overflow() -> None:
    close(in_node("softmax", [([1000.0, 1001.0], 1)])[0], xent.softmax([1000.0, 1001.0]))


def test_entropy() -> None:
    probs = [[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], *xent.softmax(LOGITS).tolist()]
    close(in_node("entropy", [(p,) for p in probs]), [information.entropy(p) for p in probs])


Z = [*np.round(np.arange(-6, 6.05, 0.3), 2).tolist(), -800.0, -40.0, 40.0, 800.0]
LABELS = [0.0, 0.05, 0.3, 0.5, 0.95, 1.0]


def test_the_binary_loss_and_its_slope() -> None:
    calls = list(itertools.product(Z, LABELS))
    z, y = np.array(calls).T
    close(in_node("binaryLoss", calls), xent.binary_cross_entropy(z, y, reduction="none"))
    slopes = gradients.binary_cross_entropy_gradient(z, y, reduction="none")
    # A difference of two numbers of order one: near its zero only the absolute error means anything.
    np.testing.assert_allclose(in_node("binarySlope", calls), slopes, rtol=1e-12, atol=1e-15)
    close(in_node("sigmoid", [(value,) for value in Z]), xent.sigmoid(Z))
    close(in_node("softplus", [(value,) for value in Z]), -xent.log_sigmoid(-np.array(Z)))


def test_the_share_of_mistakes_steps_at_the_threshold() -> None:
    thresholds = np.arange(0.05, 0.951, 0.05).tolist()
    jumps = in_node("logit", [(t,) for t in thresholds])
    close(xent.sigmoid(jumps), thresholds)
    for y in LABELS:
        before = in_node("mistakes", [(j - 1e-6, y, t) for j, t in zip(jumps, thresholds, strict=True)])
        after = in_node("mistakes", [(j + 1e-6, y, t) for j, t in zip(jumps, thresholds, strict=True)])
        close(before, np.full(len(jumps), y))
        close(after, np.full(len(jumps), 1 - y))


def test_the_learnt_stop_probability() -> None:
    calls = [(stop / 100, 2**k) for stop in range(1, 101) for k in range(9)]
    close(in_node("eosOptimum", calls), [eos_optimum(stop, size) for stop, size in calls])


def test_label_smoothing_and_the_way_back() -> None:
    calls = [
        (p, eps, k)
        for p, eps, k in itertools.product(
            np.linspace(0, 1, 21).tolist(), (0.0, 0.01, 0.2, 0.5, 0.9), (2, 3, 10, 50)
        )
    ]
    reports = in_node("smoothed", calls)
    rows = [np.array([p] + [(1 - p) / (k - 1)] * (k - 1)) for p, _, k in calls]
    for (_, eps, _), row, report in zip(calls, rows, reports, strict=True):
        # Where its gradient is zero, a convex loss is lowest: the report must be what the loss asks for.
        whole = (1 - eps) * row + eps / len(row)
        assert abs(whole[0] - report) <= 1e-12 * report
        if report > 0 and (whole > 0).all():
            rule = partial(scoring.smoothed_log_score, label_smoothing=eps)
            nudge = 1e-3 * whole.min() * np.array([1.0, -1.0] + [0.0] * (len(row) - 2))
            costs = scoring.expected_score(rule, row, [whole - nudge, whole, whole + nudge])
            assert costs[1] < costs[0] and costs[1] < costs[2]
        back = scoring.invert_smoothing(whole, label_smoothing=eps)
        np.testing.assert_allclose(back, row, rtol=1e-12, atol=1e-13)
    again = [(float(q), eps, k) for q, (_, eps, k) in zip(reports, calls, strict=True)]
    np.testing.assert_allclose(in_node("unsmoothed", again), [p for p, _, _ in calls], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("expectedLog", scoring.log_score),
        ("expectedBrier", scoring.brier_score),
        ("expectedLinear", scoring.linear_score),
    ],
)
def test_expected_costs(name: str, rule: scoring.Rule) -> None:
    calls = list(itertools.product(np.linspace(0, 1, 21).tolist(), np.linspace(0.01, 0.99, 99).tolist()))
    expected = [scoring.expected_score(rule, [p, 1 - p], [q, 1 - q]) for p, q in calls]
    close(in_node(name, calls), expected)


def test_every_formula_is_compared() -> None:
    exported = re.search(r"return \{([^}]*)\};\s*\}\)\(\);", (MOVE / "formulas.js").read_text("utf-8"))
    assert exported is not None
    names = {name.strip() for name in exported[1].split(",") if name.strip()}
    own = Path(__file__).read_text(encoding="utf-8")
    assert {name for name in names if f'"{name}"' not in own} == set()


def test_the_library_is_the_one_that_the_readme_names() -> None:
    readme = (MOVE / "README.md").read_text(encoding="utf-8")
    sums = dict(re.findall(r"\| `(uplot/[^`]+)` \| `([0-9a-f]{64})` \|", readme))
    there = {path.relative_to(MOVE).as_posix(): path for path in (MOVE / "uplot").iterdir()}
    assert {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in there.items()} == sums
    version = re.search(r"uPlot\]\([^)]*\) ([\d.]+) ", readme)
    assert version is not None
    assert f"(v{version[1]})" in there["uplot/uPlot.iife.min.js"].read_text(encoding="utf-8")[:100]


def test_the_scripts_need_no_unsafe_policy() -> None:
    # A policy without 'unsafe-eval' or 'unsafe-inline' for scripts must let them run.
    for path in MOVE.rglob("*.js"):
        text = path.read_text(encoding="utf-8")
        assert (
            re.findall(
                r"\beval\(|new Function\b|innerHTML|javascript:|https?://(?!github\.com/leeoniya)", text
            )
            == []
        )


@pytest.mark.parametrize("name", xent_move.FIGURES)
def test_the_still_picture_repeats(name: str) -> None:
    picture = xent_move.still_picture(name)
    assert picture == xent_move.still_picture(name)
    assert picture.startswith(b"<?xml") and b"<dc:date>" not in picture
    assert len(picture) < 60_000


def test_a_wrong_directive_fails_the_build(tiny_book: TinyBook) -> None:
    tiny_book.write_chapter(
        "01_good",
        "# Good",
        "```{moving-figure} nothing\n:alt: a\n\nCaption.\n```",
        "```{moving-figure} softmax\n```",
    )
    status, output = tiny_book.build()
    assert status != 0
    assert "moving-figure: expected one of softmax, binary-loss" in output
    assert "moving-figure softmax: expected :alt: and a caption" in output
