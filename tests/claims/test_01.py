"""What chapter 1 claims, and attempts to refute it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import xent
from adversary import Array, claim, coins, designs, lowest, printed, rng
from xent import gradients

COIN = np.ones((10, 1)), (np.arange(10) < 7).astype(float)  # the chapter's, seven heads in ten


def loss(w: Array, x: Array, y: Array) -> float:
    """The mean loss, from NumPy alone."""
    z = x @ w
    return float(np.mean(np.logaddexp(0, z) - y * z))


def descend(x: Array, y: Array, w: Array, rate: float, steps: int) -> Array:
    """Gradient descent on the mean loss."""
    for _ in range(steps):
        w = w - rate * x.T @ (xent.sigmoid(x @ w) - y) / len(y)
    return w


def largest_curvature(x: Array) -> float:
    """A bound on the Hessian's eigenvalues: p (1 - p) is at most 1/4."""
    return float(np.linalg.norm(x, 2) ** 2 / (4 * len(x)))


def problems(g: Any, *kinds: str, rows: int = 40) -> list[Any]:
    """Data of every kind, or of these, with an intercept."""
    some = [d for d in designs(g, rows) if not kinds or d[0] in kinds]
    return [(np.column_stack([np.ones(len(x)), x]), y) for _, x, y in some]


GRID = np.linspace(0.001, 0.999, 999)


test_the_loss_is_a_likelihood = claim(
    "Binary cross-entropy is the mean negative log-likelihood",
    on=["eq-bce"],
    but_not={
        "the sum in place of the mean": ("eq-bce", r"-\frac1N \sum", r"-\sum"),
        "the labels exchanged": ("eq-bce", r"y_i \log p_i + (1 - y_i)", r"(1 - y_i) \log p_i + y_i"),
    },
)(printed)


@pytest.mark.erratum("3.2", "conditional")
@claim(
    "You may maximise the logarithm ... can become zero.",
    on=[(f, n, k) for f in (np.log, np.cbrt) for n in (1, 2, 3, 10, 60) for k in range(n + 1)]
    + [(np.log, 2000, 1000)],
    but_not={
        "a function that does not increase": (lambda v: (v - 0.5) ** 2, 10, 7),
        "3.2: a likelihood is never negative, so it has a logarithm": (np.log, 4, 3, np.array([0.0, 1.0])),
    },
)
def test_the_logarithm_keeps_the_maximum(of: Any, n: int, k: int, grid: Array = GRID) -> None:
    likelihood = grid**k * (1 - grid) ** (n - k)
    if n == 2000:  # no coin at all survives 2,000 tosses
        assert not likelihood.any() and (k * np.log(grid) + (n - k) * np.log1p(-grid)).argmax() == 499
        return
    with np.errstate(divide="ignore"):
        assert np.isfinite(of(likelihood)).all() and of(likelihood).argmax() == likelihood.argmax()


@claim(
    "it lies between −1 and 1",
    on=lambda: (given[1:] for given in coins(rng(3), rows=(1, 50))),
    but_not={
        "the target minus the prediction": (np.array([0.3, -3.0]), np.array([0.0, 1.0]), -1),
        "a positive example that counts ten times": (np.array([-3.0]), np.array([1.0]), 1, 10.0),
    },
)
def test_no_pull_exceeds_one(z: Array, y: Array, sign: int = 1, pos_weight: float | None = None) -> None:
    slope = gradients.binary_cross_entropy_gradient(z, y, reduction="none", pos_weight=pos_weight) * sign
    assert np.abs(slope).max() <= 1
    np.testing.assert_allclose(slope, stats.logistic.cdf(z) - y, atol=1e-12)
    up, down = (xent.binary_cross_entropy(z + h, y, reduction="none") for h in (1e-4, -1e-4))
    near = np.abs(z) < 50
    np.testing.assert_allclose(((up - down) / 2e-4)[near], slope[near], atol=1e-8)


SIZES = ((np.float64, 37.5, 1e4), (np.float32, 17.5, 1e4), (np.float16, 9.0, 6e4))


@claim(
    "Compute the loss from the logit ... can cost nan.",
    on=lambda: [(t, size) for t, dead, end in SIZES for size in (dead, *rng(4).uniform(dead, end, 20))],
    but_not={f"the other side, in {t.__name__}": (t, -dead / 2) for t, dead, _ in SIZES},
)
def test_by_way_of_the_probability(dtype: Any, size: float) -> None:
    z, one, zero = dtype(size), dtype(1), dtype(0)
    for y in (0, 1):  # from the logit neither happens
        exact = np.logaddexp(0, float(z) * (1 - 2 * y))
        assert xent.binary_cross_entropy(float(z), y) == pytest.approx(exact, rel=1e-12)
    with np.errstate(all="ignore"):
        p = one / (one + np.exp(-z))
        assert np.isposinf(-(zero * np.log(p) + one * np.log(one - p)))
        assert np.isnan(-(one * np.log(p) + zero * np.log(one - p)))


@claim(
    "Gradient descent with too large a step size jumps",
    on=[(*COIN, 12.0)],
    but_not={"a small step, which settles": (*COIN, 1.0)},
)
def test_a_step_too_large_never_settles(x: Array, y: Array, rate: float) -> None:
    w = descend(x, y, np.array([-3.0]), rate, 10_000)
    before, after = w - np.log(7 / 3), descend(x, y, w, rate, 1) - np.log(7 / 3)
    assert before * after < 0 and abs(before - after) > 1


@claim(
    "On this loss, which is convex in the weights, a fixed step size ... lowest loss.",
    "In the end the starting point does not matter: this loss",
    on=lambda: [
        (x, y, size * rng(7).normal(size=x.shape[1]), part)
        for x, y in problems(rng(7))
        for size in (0, 1, 30)
        for part in (0.3, 1.0)
    ],
    but_not={
        "a step of three over the curvature": (*COIN, np.array([-3.0]), 3.0),
        # Shorter than one over the curvature, but of a larger size.
        "a short step of a large size": (*COIN, np.zeros(1), 3.0, 2),
        "a loss that is not convex": (*COIN, np.array([10.0]), 1.0, 300, lambda *of: min(loss(*of), 1.0)),
    },
)
def test_safe_steps(x: Array, y: Array, start: Array, part: float, steps: int = 300, of: Any = loss) -> None:
    """T steps of size a end at most |start - v|² / (2 a T) above the loss of any v; no chord is below the loss."""
    g, rate, w = rng(7), part / largest_curvature(x), start
    for _ in range(steps):
        new = descend(x, y, w, rate, 1)
        assert of(new, x, y) <= of(w, x, y) * (1 + 1e-13)
        w = new
    best = descend(x, y, np.zeros(x.shape[1]), 1 / largest_curvature(x), 3000)
    for v in (*(s * g.normal(size=x.shape[1]) for s in (0.1, 1.0, 10.0)), best, 2 * best):
        assert of(w, x, y) <= of(v, x, y) + ((start - v) ** 2).sum() / (2 * rate * steps) + 1e-12
        for t in (0.2, 0.5, 0.9):
            chord = t * of(start, x, y) + (1 - t) * of(v, x, y)
            assert of(t * start + (1 - t) * v, x, y) <= chord + 1e-9


@claim(
    "A quadratic penalty on every weight",
    on=lambda: [(*d, strength) for d in problems(rng(12), rows=20) for strength in (1e-4, 1e-2, 10.0)],
    but_not=lambda: {
        "one class, with the intercept left free": (*problems(rng(12), "one class")[0], 0.1, 0.0),
        "a penalty that stops growing": (*problems(rng(12), "one class")[0], 0.1, 0.1, 1.0),
    },
)
def test_a_penalty_has_a_minimum(x: Any, y: Any, c: float, first: Any = None, until: float = np.inf) -> None:
    """Descent from near and far ends at one point, inside the ball of the bound."""
    penalty = torch.full(x.shape[1:], c).double()
    penalty[0] = c if first is None else first
    rows, signs = torch.tensor(x), torch.tensor(1 - 2 * y)

    def penalised(w: torch.Tensor) -> torch.Tensor:
        return (
            torch.logaddexp(rows @ w * signs, 0 * signs).mean() + penalty @ w.square().clamp(max=until**2) / 2
        )

    ends = [lowest(penalised, np.full(x.shape[1], start), gtol=1e-11, maxiter=5000) for start in (0.0, 3.0)]
    assert np.abs(ends[0] - ends[1]).max() < 1e-4
    slope = x.T @ (xent.sigmoid(x @ ends[0]) - y) / len(x) + penalty.numpy() * ends[0]
    assert np.abs(slope).max() < 1e-7
    assert np.linalg.norm(ends[0]) <= np.sqrt(2 * np.log(2) / penalty.max().item()) * (1 + 1e-6)
