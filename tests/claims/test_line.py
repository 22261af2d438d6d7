"""What the line in twenty minutes claims, and attempts to refute it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy.special import xlogy

import xent
from adversary import Array, Draw, claim, one_hot, rng
from xent import distillation, gradients

SIZES = (2, 3, 10, 1000)


@claim(
    "so the cost is least at $0.7$, the share of people",
    on=lambda: [(k, n, 1.0) for n in (1, 2, 10, 57) for k in range(n + 1)],
    but_not={"a cost that counts the others twice": (7, 10, 2.0)},
)
def test_a_coin_is_the_share(heads: int, tosses: int, others: float) -> None:
    p = np.arange(tosses * 20 + 1) / (tosses * 20)
    cost = -xlogy(heads, p) - others * xlogy(tosses - heads, 1 - p)
    assert p[cost.argmin()] == heads / tosses and (cost == cost.min()).sum() == 1


@claim(
    "For the two logits $z$ and 0 the softmax gives the first class",
    on=lambda: [(z, 0.0) for z in (0.0, -1e-12, 745.0, -745.0, *rng(1).normal(0, 20, 50))],
    but_not={"the logits z and -z": (1.5, -1.5)},
)
def test_two_logits_are_one(z: float, other: float) -> None:
    np.testing.assert_allclose(xent.softmax([z, other])[0], xent.sigmoid(z), rtol=1e-15)
    for y in (0, 1):
        np.testing.assert_allclose(
            xent.cross_entropy([[z, other]], [1 - y]), xent.binary_cross_entropy(z, y), rtol=1e-15
        )


@claim(
    "A class whose logit is 1 lower costs",
    on=lambda: [(rng(2).normal(0, s, k), 1.0) for k in SIZES for s in (0, 1, 30)],
    but_not={"a logit that is 2 lower": (np.zeros(3), 2.0)},
)
def test_a_logit_is_a_nat(z: Array, lower: float) -> None:
    z = np.r_[z, z - lower]
    cost = xent.cross_entropy(np.tile(z, (len(z), 1)), np.arange(len(z)), reduction="none")
    half = len(z) // 2
    np.testing.assert_allclose(cost[half:] - cost[:half], 1, rtol=1e-12)


def ten(g: Draw) -> Iterator[tuple[Array, Array, Array]]:
    """Logits, labels, and the soft target that counts them."""
    for classes in SIZES:
        for rows in (1, 2, 10, 500):
            labels = g.integers(classes, size=rows)
            yield g.normal(0, 5, classes), labels, np.bincount(labels, minlength=classes) / rows


@claim(
    "a single row with the *soft target* ... the mean of theirs.",
    on=lambda: ten(rng(5)),
    but_not={
        "a target of other shares": (np.array([2.0, 1.0, 0.0]), np.array([0, 0, 1]), np.array([0.5, 0.5, 0]))
    },
)
def test_a_row_is_worth_many(z: Array, labels: Array, t: Array) -> None:
    many = np.tile(z, (len(labels), 1))
    np.testing.assert_allclose(xent.soft_cross_entropy(z, t), xent.cross_entropy(many, labels), rtol=1e-12)
    slopes = xent.softmax(many) - one_hot(labels, len(z))
    np.testing.assert_allclose(
        gradients.soft_cross_entropy_gradient(z, t), slopes.mean(0), rtol=1e-9, atol=1e-15
    )


@claim(
    'For the single answer "cat", with',
    on=[(np.array([1.0, 0.0, 0.0]),), (np.eye(1000)[0],)],
    but_not={"the ten answers": (np.array([0.7, 0.2, 0.1]),)},
)
def test_a_hard_label_has_no_best_logits(t: Array) -> None:
    cost = [xent.soft_cross_entropy(s * np.eye(len(t))[0], t) for s in (0, 1, 5, 20, 100, 300)]
    assert (np.diff(cost) < 0).all()


@claim(
    "The loss is lowest where the student agrees",
    on=lambda: [
        (v, v + 3.0, T, direction)
        for k in (*SIZES, 5)
        for v in rng(6).normal(0, 5, (4, k))
        for T in (0.5, 1, 2, 20)
        for direction in ("forward", "reverse")
    ],
    but_not={
        f"{what}, {direction}": (np.array([2.0, 1.0, 0.0]), np.array(z), 2, direction)
        for what, z in (("twice as sure", [4.0, 2.0, 0.0]), ("two logits that are tied", [1.5, 1.5, 0.0]))
        for direction in ("forward", "reverse")
    },
)
@pytest.mark.claim("13", "If the student can match the teacher, both are smallest")
def test_the_student_is_done_at_the_teacher(v: Array, z: Array, T: float, direction: Any) -> None:
    loss = partial(distillation.distillation_loss, teacher_logits=v, temperature=T, direction=direction)
    assert abs(loss(z)) <= 1e-12
    for size in (1e-3, 1.0, 30.0):
        assert all(loss(z + move) > 0 for move in size * rng(7).normal(size=(5, len(z))))


@claim(
    "Without the factor $T^2$ the gradient would",
    on=lambda: [(*rng(seed).normal(0, 3, (2, k)), 0) for seed in range(5) for k in SIZES],
    but_not={"with the factor": (np.array([2.0, 1.0, 0.0]), np.array([4.0, 2.0, 0.0]), 2)},
)
def test_the_gradient_shrinks_like_the_square(z: Array, v: Array, power: int) -> None:
    size = [T**power * np.linalg.norm(xent.softmax(z / T) - xent.softmax(v / T)) / T for T in (1e3, 1e4)]
    np.testing.assert_allclose(size[0] / size[1], 100, rtol=0.02)
