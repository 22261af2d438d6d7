"""Chapter 01: what the rows of test_read.py leave, a linear program and what libraries do."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import optimize

import xent

RNG_SEED = 0


def overlapping_data(seed: int, rows: int = 60, columns: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Features with an intercept and labels drawn from a mild logistic model: a finite fit exists."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(rows), rng.normal(size=(rows, columns - 1))])
    y = (rng.uniform(size=rows) < 1 / (1 + np.exp(-x @ rng.normal(size=columns)))).astype(float)
    return x, y


# ---------------------------------------------------------------------------------- the weights


@pytest.mark.equation("eq-gradient-descent", by="framework")
def test_a_step_of_gradient_descent_is_torchs(worst_error: Any) -> None:
    import torch

    x, y = overlapping_data(1, rows=20, columns=4)
    for rate in (0.05, 1.0, 12.0):
        w = np.array([0.3, -1.0, 0.5, 2.0])
        weights = torch.tensor(w, requires_grad=True)
        optimiser = torch.optim.SGD([weights], lr=rate)
        for _ in range(5):
            gradient = x.T @ (1 / (1 + np.exp(-x @ w)) - y) / len(y)
            w = w - rate * gradient
            optimiser.zero_grad()
            q = 1 / (1 + torch.exp(-torch.from_numpy(x) @ weights))
            labels = torch.from_numpy(y)
            (-(labels * q.log() + (1 - labels) * (1 - q).log()).mean()).backward()
            optimiser.step()
        worst_error(w, weights.detach(), atol=1e-11, why="five steps in float64, through the probability")


# ----------------------------------------------------------------------------------- separation


def small_designs(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Random small integer designs with independent columns: all three kinds of separation occur."""
    rng = np.random.default_rng(RNG_SEED)
    designs = []
    while len(designs) < count:
        n = int(rng.integers(4, 8))
        x = np.column_stack([np.ones(n), rng.integers(-2, 3, size=(n, 2))])
        if np.linalg.matrix_rank(x) == 3:
            designs.append((x, rng.integers(0, 2, n)))
    return designs


def harmless_directions(x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """Products s_i x_i . v for the directions v that harm no example, by brute force.

    These directions form a cone, {v: s_i x_i . v >= 0}. With independent columns it is pointed, so it is
    spanned by its extreme rays, and in three dimensions each of those is orthogonal to two of the rows. The
    last entry is the sum of the rays: it gains wherever any direction does.
    """
    signed = (2 * y - 1)[:, None] * x
    rays = [np.cross(a, b) for a, b in itertools.combinations(signed, 2)]
    rays = [sign * ray for ray in rays if np.any(ray) for sign in (1, -1)]
    good = [signed @ ray for ray in rays if (signed @ ray >= 0).all()]
    return [*good, np.sum(good, axis=0)] if good else []


def fit_ridge(x: np.ndarray, y: np.ndarray, ridge: float) -> np.ndarray:
    """The minimiser with a small penalty, by damped Newton steps."""
    w = np.zeros(x.shape[1])

    def value(w: np.ndarray) -> float:
        return float(np.mean(np.logaddexp(0, x @ w) - y * (x @ w)) + ridge / 2 * w @ w)

    for _ in range(100):
        p = 1 / (1 + np.exp(-x @ w))
        gradient = x.T @ (p - y) / len(y) + ridge * w
        hessian = x.T @ (x * (p * (1 - p))[:, None]) / len(y) + ridge * np.eye(len(w))
        step, scale = np.linalg.solve(hessian, gradient), 1.0
        while value(w - scale * step) > value(w) and scale > 1e-8:
            scale /= 2
        w = w - scale * step
        if np.abs(step).max() < 1e-10 or scale <= 1e-8:  # or rounding leaves nothing to gain
            break
    return w


def linear_program(x: np.ndarray, y: np.ndarray) -> float:
    """The linear program, transcribed as printed."""
    s, (n, k) = 2 * y - 1, x.shape
    objective = np.concatenate([np.zeros(k), -np.ones(n)])  # linprog minimises
    # wrong[eq-separation-lp]: -s[:, None] * x -> -x
    at_least_t = np.hstack([-s[:, None] * x, np.eye(n)])  # t_i - s_i x_i . v <= 0
    bounds = [(None, None)] * k + [(0, 1)] * n
    return float(-optimize.linprog(objective, at_least_t, np.zeros(n), bounds=bounds).fun)


@pytest.mark.equation("eq-separation-lp", by="reference")
def test_the_linear_program_counts_the_separated_examples(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    M = \max_{v,\, t}\ & \sum_{i=1}^{N} t_i \\[4pt]
    \text{subject to}\ \ & s_i\, x_i \cdot v \ge t_i, \\[4pt]
    & 0 \le t_i \le 1 .
    \end{aligned}
    $$ (eq-separation-lp)
    """
    observed, expected = [], []
    for x, y in small_designs(60):
        best = max([int((p > 1e-9).sum()) for p in harmless_directions(x, y)], default=0)
        observed.append(linear_program(x, y))
        expected.append(best)
    worst_error(observed, expected, atol=1e-9, why="the optimum is a whole number, found by a simplex method")
    # All three kinds were met: none, some, all.
    sizes = [len(y) for _, y in small_designs(60)]
    kinds = {0 if e == 0 else 2 if e == n else 1 for e, n in zip(expected, sizes, strict=True)}
    assert kinds == {0, 1, 2}


@pytest.mark.equation("eq-penalised", by="framework")
def test_a_penalty_bounds_the_weights(worst_error: Any) -> None:
    from sklearn.linear_model import LogisticRegression

    x = np.array([[-2.0, 1.0], [-1.0, 0.5], [1.0, 1.0], [3.0, -0.5]])  # separated, without an intercept
    y = np.array([0.0, 0.0, 1.0, 1.0])
    rng = np.random.default_rng(RNG_SEED)
    for penalty in (1e-6, 1e-3, 0.1, 1.0, 30.0):
        w = fit_ridge(x, y, penalty)

        def printed(w: np.ndarray, penalty: float = penalty) -> float:
            return float(xent.binary_cross_entropy(x @ w, y) + penalty / 2 * np.linalg.norm(w) ** 2)

        assert all(printed(w) <= printed(w + 0.01 * rng.normal(size=2)) for _ in range(50))
        assert np.linalg.norm(w) <= np.sqrt(2 * np.log(2) / penalty)
        # scikit-learn's C stands before the sum of the losses: lambda = 1 / (C N).
        model = LogisticRegression(
            C=1 / (penalty * len(y)), fit_intercept=False, solver="newton-cholesky", tol=1e-12
        ).fit(x, y)
        worst_error(model.coef_[0], w, rtol=1e-6, atol=1e-9, why="two optimisers at a tolerance of 1e-12")


# ------------------------------------------------------------------------------------ pos_weight


@pytest.mark.equation("eq-pos-weight", by="framework")
def test_pos_weight_shifts_the_logit_by_its_logarithm(worst_error: Any) -> None:
    import torch

    labels = np.array([1.0] * 9 + [0.0] * 91)
    for weight in (0.5, 3.0, 10.0):

        def torch_loss(z: float, weight: float = weight) -> float:
            return torch.nn.functional.binary_cross_entropy_with_logits(
                torch.full((100,), float(z), dtype=torch.float64),
                torch.from_numpy(labels),
                pos_weight=torch.tensor(weight, dtype=torch.float64),
            ).item()

        def xent_loss(z: float, weight: float = weight) -> float:
            return float(xent.binary_cross_entropy(np.full(100, z), labels, pos_weight=weight))

        printed = np.log(0.09 / 0.91) + np.log(weight)
        losses: list[Callable[[float], float]] = [torch_loss, xent_loss]
        found = [optimize.minimize_scalar(f, bracket=(-4, 2), tol=1e-10).x for f in losses]
        worst_error(found, [printed] * 2, atol=1e-6, why="a minimum found from values in float64")
