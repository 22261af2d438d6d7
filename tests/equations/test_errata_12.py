"""What the sources of chapter 12 state wrongly or without its conditions: the old fails, the new passes.

The ids are those of the errata page: 3.x a post of January 2025 from binary classification to distillation.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import xent
from adversary import refuted

P_X = np.array([0.8, 0.2])
P_Y = np.array([[0.9, 0.1], [0.2, 0.8]])  # a row for each input


def lowest(cost) -> float:
    """The probability of class 0 at which a cost of a model that does not see x is lowest."""
    q = np.linspace(0.001, 0.999, 99_801)
    return float(q[np.argmin(cost(np.stack([q, 1 - q], axis=-1)))])


@pytest.mark.erratum("3.12", "slip")
def test_the_constant_weighs_the_conditional() -> None:
    """Old: the constant term has P_{Y|X}(y, x), a joint. New: P(y | x), whose rows sum to one."""
    joint = P_X[:, None] * P_Y
    by_definition = float((joint * np.log(P_X)[:, None]).sum())
    old = float((P_X[:, None] * joint * np.log(P_X)[:, None]).sum())
    new = float((P_X[:, None] * P_Y * np.log(P_X)[:, None]).sum())
    assert new == pytest.approx(by_definition, rel=1e-12, abs=0)
    assert new == pytest.approx(float(P_X @ np.log(P_X)), rel=1e-12, abs=0)  # E log P_X(X)
    with refuted("3.12: of the joint"):
        assert old == pytest.approx(by_definition, abs=0.05)


@pytest.mark.erratum("3.12", "slip")
def test_the_index_is_of_the_input() -> None:
    """Old: x{(i)} in the numerator, x^(i) in the denominator. New: the same input in both, or no softmax."""
    inputs, w = np.array([0.5, -1.0, 2.0]), np.array([0.3, -0.2, 1.0])
    t = np.random.default_rng(0).dirichlet(np.ones(3), size=3)

    def loss(numerator: np.ndarray) -> float:
        top, bottom = np.outer(numerator, w), np.outer(inputs, w)
        return float(-(t * (top - np.log(np.exp(bottom).sum(1, keepdims=True)))).sum(1).mean())

    told = float(F.cross_entropy(torch.tensor(np.outer(inputs, w)), torch.tensor(t)))
    assert loss(inputs) == pytest.approx(told, rel=1e-12, abs=0)
    # As typeset, x times (i): the entries of a row no longer sum to one.
    as_typeset = inputs * np.arange(1, 4)
    with refuted("3.12: the index, as typeset"):
        assert loss(as_typeset) == pytest.approx(told, abs=0.1)
    ratio = np.exp(np.outer(as_typeset, w)).sum(1) / np.exp(np.outer(inputs, w)).sum(1)
    assert np.abs(ratio - 1).max() > 0.1


@pytest.mark.erratum("3.12", "slip")
def test_the_mean_converges_to_the_expectation() -> None:
    """Old: the minimiser of the expectation tends to that of the mean. New: the expectation's is fixed."""
    marginal = (P_X @ P_Y)[0]
    off = []
    for n in (20, 2_000, 200_000):
        errors = []
        for seed in range(20):
            shares = np.bincount(np.random.default_rng(seed).choice(2, size=n, p=P_X), minlength=2) / n
            errors.append((shares @ P_Y)[0] - marginal)  # minimises the mean over the n inputs
        off.append(float(np.std(errors)))
    # The expectation does not know n; only the mean moves, and towards it.
    assert off[0] > 5 * off[1] > 25 * off[2] > 0


@pytest.mark.erratum("3.12", "slip")
def test_targets_come_from_the_conditional() -> None:
    """Old: the labels are samples of P_Y. New: of P_{Y|X}; from P_Y they would not depend on x."""
    rng = np.random.default_rng(0)
    n = 50_000
    x = rng.choice(2, size=n, p=P_X)
    new = (rng.random(n) < P_Y[x, 1]).astype(int)
    old = (rng.random(n) < (P_X @ P_Y)[1]).astype(int)
    fitted = {name: [y[x == k].mean() for k in (0, 1)] for name, y in (("new", new), ("old", old))}
    np.testing.assert_allclose(fitted["new"], P_Y[:, 1], atol=0.02)
    assert abs(fitted["old"][0] - fitted["old"][1]) < 0.02
    with refuted("3.12: labels from P_Y"):
        assert np.array(fitted["old"]) == pytest.approx(P_Y[:, 1], abs=0.3)


@pytest.mark.erratum("3.13", "slip")
def test_the_quoted_formula_lacks_the_target() -> None:
    """Old: l_n = -sum_c w_c log p_nc. New: -sum_c w_c log p_nc y_nc."""
    rng = np.random.default_rng(0)
    z, t, w = rng.normal(size=(4, 3)), rng.dirichlet(np.ones(3), size=4), np.array([1.0, 10.0, 0.5])
    told = F.cross_entropy(torch.tensor(z), torch.tensor(t), weight=torch.tensor(w), reduction="none").numpy()
    log_p = xent.log_softmax(z)
    np.testing.assert_allclose(-(w * log_p * t).sum(1), told, rtol=1e-12)
    with refuted("3.13: as printed"):
        assert np.abs(-(w * log_p).sum(1) - told).min() < 0.1
