"""Rows of the errata page that no chapter tests: each old statement fails here, and the new one passes."""

from __future__ import annotations

import math

import numpy as np
import pytest

import xent
from adversary import refuted


@pytest.mark.erratum("1.a", "conditional")
def test_eight_powers_of_ten_are_eighteen_nats() -> None:
    """Old: 1e-7 and 1e-15 are both wrong and should cost much the same. New: they differ by 18.42 nats."""
    near, far = xent.log_loss([[1e-7, 1 - 1e-7]], [0]), xent.log_loss([[1e-15, 1 - 1e-15]], [0])
    assert far - near == pytest.approx(8 * math.log(10), rel=1e-12, abs=0)
    with refuted("1.a: close"):
        assert far / near < 2
    # A score with a ceiling makes them alike, and then asks for another probability than the true one.
    ceiling = 2.0
    truth, grid = 0.05, np.linspace(0.0005, 0.9995, 1999)
    capped = truth * np.minimum(-np.log(grid), ceiling) + (1 - truth) * np.minimum(-np.log(1 - grid), ceiling)
    assert abs(grid[capped.argmin()] - truth) > 0.02
    # Of two classes Brier's score looks at the right one alone too, and makes them alike; of three it does not.
    two = xent.scoring.brier_score([[1e-7, 1 - 1e-7], [1e-15, 1 - 1e-15]], [0, 0])
    assert abs(two[0] - two[1]) < 1e-6
    three = xent.scoring.brier_score([[0.2, 0.4, 0.4], [0.2, 0.8, 0.0]], [0, 0])
    assert abs(three[0] - three[1]) > 0.1


@pytest.mark.parametrize("classes", [3, 5, 50])
@pytest.mark.erratum("1.a", "conditional")
def test_each_class_may_have_a_constant_of_its_own(classes: int) -> None:
    """Old: one constant for all classes. New: one for each leaves a local score strictly proper; a factor does not."""
    g = np.random.default_rng(classes)
    constants, factors = g.normal(size=classes), g.uniform(1, 3, size=classes)
    assert (
        np.ptp(xent.log_loss(np.full((classes, classes), 1 / classes), range(classes), reduction="none")) == 0
    )
    assert np.ptp(constants) > 0.1, "old: where all probabilities are equal, the classes would cost the same"
    for _ in range(20):
        p = g.dirichlet(np.ones(classes))
        others = np.concatenate([g.dirichlet(np.ones(classes), 200), p + 1e-3 * (np.eye(classes) - p)])
        assert p @ (constants - np.log(p)) < ((constants - np.log(others)) @ p).min()
        tilted = factors * p / (factors @ p)
        assert -(factors * p) @ np.log(tilted) < -(factors * p) @ np.log(p)


@pytest.mark.erratum("1.b", "conditional")
def test_in_float32_the_top_is_not_clipped() -> None:
    """Old: np.clip(p, 1e-15, 1 - 1e-15) keeps p below one. New: in float32 the upper end is one."""
    one = np.float32(1)
    with refuted("1.b: in float32 too"):
        assert np.clip(one, np.float32(1e-15), np.float32(1 - 1e-15)) < one
    assert np.clip(1.0, 1e-15, 1 - 1e-15) < 1, "in float64 it does"
    eps = np.finfo(np.float32).eps
    assert np.clip(one, eps, one - eps) < one


@pytest.mark.erratum("2.a", "conditional")
def test_the_product_may_be_largest_without_a_high_probability_for_every_example() -> None:
    """Old: it asks for a high one each. New: of ten equal inputs with labels 7 to 3 it is largest at .7 and .3."""
    q = np.linspace(0.001, 0.999, 999)
    best = q[(7 * np.log(q) + 3 * np.log(1 - q)).argmax()]
    assert best == pytest.approx(0.7)
    with refuted("2.a: a high probability for each of the ten"):
        assert min(best, 1 - best) > 0.5
    apart = np.array(
        [[0.99, 0.01], [0.01, 0.99]]
    )  # inputs that tell the classes apart: high for each is best
    assert np.prod(apart[[0, 1], [0, 1]]) > np.prod(np.full(2, 0.7))


@pytest.mark.erratum("3.1", "holds")
def test_the_two_forms_of_the_label_s_probability_agree() -> None:
    """True: p^y (1 - p)^(1 - y) is p for one label and 1 - p for the other, and its logarithm is the sum."""
    z = np.array([-2.0, -0.3, 0.4, 3.0])
    y = np.array([0, 1, 1, 0])
    p = 1 / (1 + np.exp(-z))
    power = p**y * (1 - p) ** (1 - y)
    np.testing.assert_allclose(power, np.where(y == 1, p, 1 - p), rtol=1e-15)
    likelihood = math.prod(power.tolist())
    assert -math.log(likelihood) == pytest.approx(
        xent.binary_cross_entropy(z, y, reduction="sum"), rel=1e-12, abs=0
    )
    # The other way round, with label and probability exchanged, it would be another number.
    assert not np.isclose(math.prod((p ** (1 - y) * (1 - p) ** y).tolist()), likelihood, rtol=0.1)
