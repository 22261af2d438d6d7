"""Chapter 04: four distributions of SciPy's, and what measurements add to the rows of test_read.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
import torch
from numpy.typing import NDArray

import xent

Array = NDArray[np.float64]

ROUNDING = "a few roundings in float64"
F = torch.nn.functional


def random_rows(seed: int, shape: tuple[int, ...], scale: float = 2.0) -> tuple[Array, NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    return rng.normal(scale=scale, size=shape), rng.integers(0, shape[-1], size=shape[:-1])


def autograd(function: Any, at: Array) -> Array:
    """The gradient of a scalar function of one tensor."""
    x = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(function(x), x)
    return gradient.numpy()


# --------------------------------------------------------------------------------- four distributions


@pytest.mark.equation("eq-grad-four", by="reference")
def test_four_losses_and_their_gradients(worst_error: Any) -> None:
    r"""Against SciPy's distributions, given by their means: the loss up to a constant, the gradient by differences.

    $$
    \begin{aligned}
    &\text{Gaussian} && \tfrac12 (z - y)^2 + c && z - y \\
    &\text{Bernoulli} && \log(1 + e^{z}) - z\, y && \sigma(z) - y \\
    &\text{categorical} && \operatorname{lse}(z) - z \cdot y && p - y \\
    &\text{Poisson} && e^{z} - z\, y + c && e^{z} - y
    \end{aligned}
    $$ (eq-grad-four)
    """
    stats = scipy.stats
    sigma = scipy.special.expit
    scalar: dict[str, tuple[Any, Any, Any]] = {
        "Gaussian": (lambda e, y: (e - y) ** 2 / 2, lambda e, y: e - y, lambda e, y: stats.norm.logpdf(y, e)),
        "Bernoulli": (
            lambda e, y: np.log(1 + np.exp(e)) - e * y,
            lambda e, y: sigma(e) - y,
            lambda e, y: stats.bernoulli.logpmf(y, sigma(e)),
        ),
        "Poisson": (
            # wrong: np.exp(e) - e * y -> np.exp(e) + e * y
            lambda e, y: np.exp(e) - e * y,
            lambda e, y: np.exp(e) - y,
            lambda e, y: stats.poisson.logpmf(y, np.exp(e)),
        ),
    }
    step = 1e-5
    for name, (loss, gradient, log_p) in scalar.items():
        for y in (0, 1) if name == "Bernoulli" else (0, 1, 4):
            for e in (-2.0, 0.3, 1.5):
                # The difference of two losses has no constant.
                printed, expected = loss(e, y) - loss(0.1, y), log_p(0.1, y) - log_p(e, y)
                worst_error(printed, expected, atol=1e-13, why="a few roundings in SciPy and here")
                slope = (log_p(e - step, y) - log_p(e + step, y)) / (2 * step)
                worst_error(gradient(e, y), slope, atol=1e-8, why="central differences with a step of 1e-5")
    row = np.array([0.4, -1.0, 2.0])
    for k in range(3):
        y = np.eye(3)[k]

        def log_p(e: Array, y: Array = y) -> float:
            return float(stats.multinomial.logpmf(y, 1, np.exp(e) / np.exp(e).sum()))

        lse = float(np.log(np.exp(row).sum()))
        worst_error(lse - row @ y, -log_p(row), atol=1e-13, why="a few roundings in SciPy and here")
        slopes = [(log_p(row - step * d) - log_p(row + step * d)) / (2 * step) for d in np.eye(3)]
        softmax = np.exp(row) / np.exp(row).sum()
        worst_error(softmax - y, slopes, atol=1e-8, why="central differences with a step of 1e-5")


# ------------------------------------------------------------------------------------- gradient checking


@pytest.mark.equation("eq-grad-best-step", by="property")
def test_the_error_model_bounds_what_is_measured_and_is_reached() -> None:
    """On exp at 1, whose derivatives are all known: below the model at every step, near it at the best."""
    u, f = 2.0**-53, np.e
    steps = 10.0 ** np.linspace(-9, -1, 400)
    errors = np.abs((np.exp(1 + steps) - np.exp(1 - steps)) / ((1 + steps) - (1 - steps)) - np.e)
    model = steps**2 / 6 * f + u * f / steps
    # The argument 1 + h is rounded too, which the quotient's divisor takes out; the result's rounding stays.
    assert (errors <= 1.5 * model + u * f).all()
    best, least = (3 * u) ** (1 / 3), 0.5 * (3 * u * f) ** (2 / 3) * f ** (1 / 3)
    near = (steps > best / 3) & (steps < best * 3)
    assert errors[near].mean() > least / 10
    assert errors[~near].mean() > 10 * errors[near].mean()


# ------------------------------------------------------------------------------------------- the Hessian


@pytest.mark.equation("eq-grad-variance", by="property")
def test_the_hessian_is_semidefinite_of_rank_k_minus_one() -> None:
    rows, _ = random_rows(8, (200, 5), scale=1.5)
    for p in xent.softmax(rows):
        eigenvalues = np.linalg.eigvalsh(np.diag(p) - np.outer(p, p))
        assert abs(eigenvalues[0]) < 1e-15 < eigenvalues[1]
