"""Exercises of chapter 06: predict what a library returns, read a clip, judge a loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from xent.losses import binary_cross_entropy
from xent_book.exercises._check import Array, Exercise
from xent_book.exercises.binary import _bce, _from_p, _sigmoid, _with_eps

BinaryLoss = Callable[[Array, Array], Any]


@dataclass(frozen=True)
class Candidate:
    """A loss to judge. It shows its name, since a function would show an address."""

    name: str
    loss: BinaryLoss = field(repr=False)

    def __call__(self, logits: Array, targets: Array) -> Any:
        """Return the loss of each example, or what the candidate takes for it."""
        with np.errstate(all="ignore"):
            return self.loss(logits, targets)


RIGHT: tuple[tuple[str, BinaryLoss], ...] = (
    ("two softplus terms", _bce),
    ("xent", lambda z, y: binary_cross_entropy(z, y, reduction="none")),
    # Exact where y is 0 or 1: there its two large terms are the same number.
    (
        "log1p of the smaller exponential",
        lambda z, y: np.maximum(z, 0) - y * z + np.log1p(np.exp(-np.abs(z))),
    ),
    ("a few roundings more", lambda z, y: _bce(z, y) * (1 + 2.0**-50)),
    ("twelve digits", lambda z, y: _bce(z, y) * (1 + 4e-13)),
)
WRONG: tuple[tuple[str, BinaryLoss], ...] = (
    ("from probabilities", lambda z, y: _from_p(z, y, _sigmoid(z))),
    ("from clipped probabilities", _with_eps(1e-12)[0]),
    (
        "log(1 + exp(-|z|)) without log1p",
        lambda z, y: np.maximum(z, 0) - y * z + np.log(1 + np.exp(-np.abs(z))),
    ),
    ("targets rounded", lambda z, y: _bce(z, np.round(y))),
    ("mean", lambda z, y: _bce(z, y).mean()),
    ("sign flipped", lambda z, y: -_bce(z, y)),
    ("labels swapped", lambda z, y: _bce(z, 1 - y)),
    ("second term missing", lambda z, y: y * np.logaddexp(0, -z)),
    ("base 2", lambda z, y: _bce(z, y) / np.log(2)),
    ("a thousandth too large", lambda z, y: 1.001 * _bce(z, y)),
    ("nine digits", lambda z, y: _bce(z, y) * (1 + 2e-10)),
    ("1e-9 too large", lambda z, y: _bce(z, y) + 1e-9),
    ("wrong where z > 0", lambda z, y: np.where(z > 0, z, _bce(z, y))),
    ("wrong where z < 0", lambda z, y: np.where(z < 0, -z, _bce(z, y))),
    (
        "straight beyond 37",
        lambda z, y: np.where(np.abs(z) > 37, y * np.maximum(-z, 0) + (1 - y) * np.maximum(z, 0), _bce(z, y)),
    ),
    (
        "a parabola near 0",
        lambda z, y: np.where(np.abs(z) < 1, np.log(2) + (0.5 - y) * z + z**2 / 8, _bce(z, y)),
    ),
    ("divided by N", lambda z, y: _bce(z, y) / z.size),
    ("rows reversed", lambda z, y: _bce(z, y)[::-1]),
    ("a column", lambda z, y: _bce(z, y)[:, None]),
    ("a row", lambda z, y: _bce(z, y)[None]),
)


def judge_with(
    logits: Array, targets: Array, *, rtol: float = 1e-12, atol: float = 0.0, flat: bool = False
) -> Callable[[BinaryLoss], bool]:
    """Make a judge that says whether a loss agrees with xent's on given examples, as `numpy.allclose` does."""
    true = binary_cross_entropy(logits, targets, reduction="none")

    def judge(loss: BinaryLoss) -> bool:
        got = np.asarray(loss(logits, targets))
        got = got.ravel() if flat else got
        return got.shape == true.shape and bool(np.allclose(got, true, rtol=rtol, atol=atol))

    return judge


LOGITS = np.tile(np.array([-600, -40, -20, -1.5, 0, 0.3, 3, 20, 40, 600.0]), 3)
TARGETS = np.repeat([0.0, 0.3, 1.0], 10)
HARD = TARGETS != 0.3
MILD = np.abs(LOGITS) < 15


EXERCISES = (
    Exercise(
        "certify-share",
        lambda loss_a, eps_a, loss_b, eps_b: (loss_b - loss_a) / np.log(eps_a / eps_b),
        lambda: [(0.28, 1e-7, 0.61, 1e-15), (0.5, 1e-7, 0.9, 2.0**-52), (2.0, 1e-15, 0.4, 1e-3)],
        "8 log 10 belongs to the two epsilons of the chapter: take log(eps_a / eps_b)",
        lambda a, eps_a, b, eps_b: (b - a) / (8 * np.log(10)),
        "rows that are not clipped cost something as well: subtract",
        lambda a, eps_a, b, eps_b: a / -np.log(eps_a),
    ),
    Exercise(
        "certify-binary",
        judge_with(LOGITS, TARGETS),
        lambda: [(Candidate(name, loss),) for name, loss in RIGHT + WRONG],
        "this accepts everything",
        lambda loss: True,
        "this refuses a right loss: right losses need not agree beyond the twelfth digit",
        *(judge_with(LOGITS, TARGETS, rtol=rtol) for rtol in (0.0, 1e-15, 1e-13)),
        judge_with(LOGITS, TARGETS, rtol=0.0, atol=1e-12),
        "moderate logits only: a loss that turns infinite or clips passes; try logits of 600 and -600",
        judge_with(LOGITS[MILD], TARGETS[MILD]),
        "the absolute tolerance is larger than the loss of a certain and right answer: set atol=0",
        *(judge_with(LOGITS, TARGETS, rtol=1e-5, atol=atol) for atol in (1e-8, 1e-12)),
        *(judge_with(LOGITS, TARGETS, atol=atol) for atol in (1e-8, 1e-12, 1e-15, 1e-17)),
        "the relative tolerance is too wide: a loss with nine right digits passes, or with fewer",
        *(judge_with(LOGITS, TARGETS, rtol=rtol) for rtol in (1e-9, 1e-7, 1e-5, 1e-4, 0.01, 0.3)),
        "the shape is not compared: a loss for each example has the shape of the logits",
        judge_with(LOGITS, TARGETS, flat=True),
        lambda loss: bool(np.allclose(loss(LOGITS, TARGETS), _bce(LOGITS, TARGETS), rtol=1e-12, atol=0)),
        "hard targets only: a loss that rounds its targets passes",
        judge_with(LOGITS[HARD], TARGETS[HARD]),
        atol=1e-9,  # the answers are true and false
    ),
)
