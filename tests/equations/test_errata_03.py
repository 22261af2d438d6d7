"""What a post of January 2025 says about information, and what is true: rows 3.5 to 3.10 and 3.12.

Each test shows that the statement as it was printed fails, and that the chapter's version holds.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize

from adversary import refuted
from xent import information

P_X = np.array([0.6, 0.4])
P_Y = np.array([[0.7, 0.3], [0.3, 0.7]])
Q_Y = np.array([[0.5, 0.5], [0.2, 0.8]])


@pytest.mark.erratum("3.5", "conditional")
def test_cross_entropy_can_be_symmetric() -> None:
    """Printed: H(P, Q) != H(Q, P). True: in general; equal for (a, 1 - a) against (1 - a, a)."""
    for a in (0.01, 0.2, 0.45, 0.9):
        p, q = np.array([a, 1 - a]), np.array([1 - a, a])
        assert information.cross_entropy(p, q) == pytest.approx(
            information.cross_entropy(q, p), rel=1e-14, abs=0
        )
        assert not np.allclose(p, q)
    p, q = np.array([0.9, 0.1]), np.array([0.5, 0.5])
    assert abs(information.cross_entropy(p, q) - information.cross_entropy(q, p)) > 0.5
    p, q = np.array([0.2, 0.8]), np.array([0.8, 0.2])
    with refuted("3.5: of any two distributions"):
        assert abs(information.cross_entropy(p, q) - information.cross_entropy(q, p)) > 1e-9


@pytest.mark.erratum("3.7", "conditional")
def test_the_cancellation_needs_the_shared_marginal() -> None:
    """Printed: P(x) cancels in the joint divergence. True: if the model's marginal is P_X and Q covers P."""
    conditional = float(P_X @ information.kl_divergence(P_Y, Q_Y))
    joint = (P_X[:, None] * P_Y).ravel()
    shared = information.kl_divergence(joint, (P_X[:, None] * Q_Y).ravel())
    assert shared == pytest.approx(conditional, rel=1e-12, abs=0)
    other_x = np.array([0.9, 0.1])
    other = information.kl_divergence(joint, (other_x[:, None] * Q_Y).ravel())
    with refuted("3.7: P(x) cancels, whatever the model's marginal"):
        assert other == pytest.approx(conditional, abs=0.3)
    assert other - information.kl_divergence(P_X, other_x) == pytest.approx(conditional, rel=1e-12, abs=0)
    # Without cover the divergence is infinite, and no average of finite ratios estimates it.
    missing = np.array([[1.0, 0.0], [0.2, 0.8]])
    assert information.kl_divergence(joint, (P_X[:, None] * missing).ravel()) == math.inf


@pytest.mark.erratum("3.7", "conditional")
def test_the_conditional_divergence_depends_on_x() -> None:
    """Printed: one number KL(P_{X|Y} || ...). True: it is P_{Y|X}, one number for each fixed x."""
    at_each_x = information.kl_divergence(P_Y, Q_Y)
    with refuted("3.7: one number"):
        assert at_each_x[0] == pytest.approx(at_each_x[1], abs=0.05)
    joint = P_X[:, None] * P_Y
    x_given_y = (joint / joint.sum(axis=0)).T
    model = P_X[:, None] * Q_Y
    q_x_given_y = (model / model.sum(axis=0)).T
    with refuted("3.7: of X given Y"):
        assert information.kl_divergence(x_given_y, q_x_given_y) == pytest.approx(at_each_x, abs=0.01)


@pytest.mark.erratum("3.8", "conditional")
def test_the_law_of_large_numbers_holds_at_a_fixed_theta() -> None:
    """At a fixed theta the average log ratio converges; but the same data fit truths of different divergence."""
    joint = (P_X[:, None] * P_Y).ravel()
    ratio = np.log(P_Y / Q_Y).ravel()
    divergence = float(P_X @ information.kl_divergence(P_Y, Q_Y))
    sigma = math.sqrt(joint @ (ratio - divergence) ** 2)
    rng = np.random.default_rng(0)
    for n in (10**3, 10**5, 10**7):
        average = rng.multinomial(n, joint) @ ratio / n
        assert abs(average - divergence) < 4 * sigma / math.sqrt(n)
    # One example at each of many x cannot tell a coin of 0.7 everywhere from coins of 0 and 1, a share 0.7 of them
    # heads. The pairs (x, y) are drawn alike, the model says 0.7, and the divergences are 0 and H(0.7).
    x = rng.random((2, 10**5))
    fair_share, certain = x[0] < 0.7, rng.permutation(10**5) < 70_000
    assert abs(fair_share.mean() - certain.mean()) < 0.01
    hidden = np.where(certain[:, None], [[1.0, 0.0]], [[0.0, 1.0]])
    apart = information.kl_divergence(hidden, np.tile([0.7, 0.3], (10**5, 1))).mean()
    assert apart > 0.6 and information.kl_divergence(np.array([0.7, 0.3]), np.array([0.7, 0.3])) == 0
    with refuted("3.8: data estimate the divergence, so the same data have one"):
        assert apart == pytest.approx(0, abs=0.6)
    # Inputs that come again show their labels' shares, and with them the divergence.
    counts = rng.multinomial(10**6, joint).reshape(2, 2)
    shares = counts / counts.sum(axis=1, keepdims=True)
    plugged = float(counts.sum(axis=1) / 10**6 @ information.kl_divergence(shares, Q_Y))
    assert plugged == pytest.approx(divergence, rel=0.05)


@pytest.mark.erratum("3.9", "conditional")
def test_pointwise_convergence_is_not_enough() -> None:
    """A class in which each average converges and the minimiser does not: it remembers the examples."""
    rng = np.random.default_rng(2)
    best = float(information.entropy([0.7, 0.3]))
    for n in (10, 1000, 100_000):
        x, y = rng.random(n), rng.random(n) < 0.3
        new_x, new_y = rng.random(100_000), rng.random(100_000) < 0.3

        def loss(points: np.ndarray, labels: np.ndarray, listed: np.ndarray) -> float:
            said = np.where(np.isin(points, listed), 0.99, 0.01)
            return float(-np.log(np.where(labels, said, 1 - said)).mean())

        assert loss(x, y, x[y]) == pytest.approx(-math.log(0.99), rel=1e-12, abs=0)
        expected = float(information.cross_entropy([0.7, 0.3], [0.99, 0.01]))
        assert loss(new_x, new_y, x[y]) == pytest.approx(expected, abs=0.05)
        with refuted("3.9: the minimiser of the average tends to that of the expectation"):
            assert expected == pytest.approx(best, rel=0.5)
    # Not every model that remembers: the nearest neighbour, on labels that x decides, does as well on new examples.
    x, new_x = np.sort(rng.random(100_000)), rng.random(10_000)
    right = np.searchsorted(x, new_x).clip(1, len(x) - 1)
    nearest = np.where(x[right] - new_x < new_x - x[right - 1], right, right - 1)
    said = np.where(x[nearest] < 0.5, 0.99, 0.01)
    new_loss = -np.log(np.where(new_x < 0.5, said, 1 - said)).mean()
    assert new_loss == pytest.approx(-math.log(0.99), abs=0.01)


@pytest.mark.erratum("3.9", "conditional")
def test_uniform_convergence_to_a_single_minimum_moves_the_minimiser_there() -> None:
    """Bernoulli models of coins on two compact sets: averages converge uniformly, and two minima keep it jumping."""
    heads = np.random.default_rng(3).binomial(100_000, 0.5, size=400) / 100_000

    def says(models: np.ndarray, truth: float) -> None:
        average = -heads[:, None] * np.log(models) - (1 - heads[:, None]) * np.log1p(-models)
        limit = -0.5 * np.log(models) - 0.5 * np.log1p(-models)
        assert np.abs(average - limit).max() < 0.02
        assert np.abs(models[average.argmin(1)] - truth).max() < 0.02

    says(np.linspace(0.4, 0.7, 301), 0.5)
    with refuted("two minima, 0.4 and 0.6"):
        says(np.array([0.4, 0.6]), 0.6)


@pytest.mark.erratum("3.a", "conditional")
def test_how_close_depends_on_the_direction() -> None:
    """Printed: the divergence measures how close two distributions are. True: the two directions may disagree."""
    p, candidates = np.array([0.49, 0.02, 0.49]), np.array([[0.98, 0.01, 0.01], [1 / 3, 1 / 3, 1 / 3]])
    forward = information.kl_divergence(np.tile(p, (2, 1)), candidates)
    reverse = information.kl_divergence(candidates, np.tile(p, (2, 1)))
    assert [forward.argmin(), reverse.argmin()] == [1, 0]
    with refuted("3.a: one of two is closer, whichever comes first"):
        assert forward.argmin() == reverse.argmin()


@pytest.mark.erratum("3.12", "slip")
def test_the_weight_of_the_inputs_stands_once() -> None:
    """Printed: no brackets, as if P_X were outside the logarithm twice.

    True: once; the square changes the value, and may move the minimiser.
    """
    once = float(P_X @ information.cross_entropy(P_Y, Q_Y))
    joint = (P_X[:, None] * P_Y).ravel()
    brute = information.cross_entropy(joint, (P_X[:, None] * Q_Y).ravel()) - information.entropy(P_X)
    assert once == pytest.approx(brute, rel=1e-12, abs=0)
    twice = float(P_X**2 @ information.cross_entropy(P_Y, Q_Y))
    with refuted("3.12: as printed, without brackets"):
        assert twice == pytest.approx(once, abs=0.1)

    # One shared rate for both inputs: the fit moves when the weights are squared.
    def fit(weights: np.ndarray) -> float:
        def loss(q: float) -> float:
            return float(weights @ information.cross_entropy(P_Y, np.tile([1 - q, q], (2, 1))))

        return float(optimize.minimize_scalar(loss, bounds=(0.01, 0.99), options={"xatol": 1e-9}).x)

    marginal = float(P_X @ P_Y[:, 1])
    assert fit(P_X) == pytest.approx(marginal, abs=1e-6)
    assert abs(fit(P_X**2) - marginal) > 0.01
    even = np.full(2, 0.5)
    assert fit(even**2) == pytest.approx(fit(even), abs=1e-6)  # equally likely inputs: the minimiser stays
