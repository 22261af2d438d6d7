"""Chapter 02: the prior by enumeration, and by what scikit-learn and PyTorch do with it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy import special, stats
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

ROUNDING = "a few roundings in float64"


# -------------------------------------------------------------------------------------------- the prior


def small_world() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A prior over three weight matrices, a distribution of two inputs, and the logits table z[w, x, class]."""
    rng = np.random.default_rng(6)
    return np.array([0.5, 0.3, 0.2]), np.array([0.6, 0.4]), rng.normal(scale=1.5, size=(3, 2, 3))


def enumerated_posterior(law_of_x: np.ndarray, data: list[tuple[int, int]]) -> tuple[np.ndarray, float]:
    """The posterior and the evidence out of the full table of P(w, x_1, y_1, ..., x_N, y_N).

    `law_of_x` has a row for each w, so that it may depend on w.
    """
    prior, _, z = small_world()
    pair = law_of_x[:, :, None] * special.softmax(z, axis=-1)  # P(x, y | w)
    joint = prior.reshape(3, *[1] * (2 * len(data)))
    for i in range(len(data)):
        shape = [1] * (2 * len(data))
        shape[2 * i : 2 * i + 2] = pair.shape[1:]
        joint = joint * pair.reshape(3, *shape)
    assert abs(joint.sum() - 1) < 1e-13
    column = joint[(slice(None), *itertools.chain(*data))]
    return column / column.sum(), float(column.sum())


DATA = [(0, 2), (1, 1), (1, 0)]


def test_inputs_that_depend_on_the_weights_break_the_chain():
    prior, _, z = small_world()
    depends = np.array([[0.9, 0.1], [0.5, 0.5], [0.1, 0.9]])
    posterior, _ = enumerated_posterior(depends, DATA)
    p = special.softmax(z, axis=-1)
    unnormalised = [np.log(prior[w]) + sum(np.log(p[w, x, y]) for x, y in DATA) for w in range(3)]
    # Were only a constant missing, the differences between weights would agree.
    assert not np.allclose(np.diff(unnormalised), np.diff(np.log(posterior)), atol=0.1)


@pytest.mark.equation("eq-lambda-to-c", by="framework")
@pytest.mark.parametrize("tau", [0.3, 1.0])
def test_lambda_c_and_weight_decay_describe_one_prior(worst_error, tau: float):
    data, labels = load_iris(return_X_y=True)
    x, y = torch.tensor((data - data.mean(0)) / data.std(0)), torch.tensor(labels)
    n = len(y)

    def sum_of_losses(w: torch.Tensor, b: torch.Tensor, reduction: str = "sum") -> torch.Tensor:
        return torch.nn.functional.cross_entropy(x @ w + b, y, reduction=reduction)

    def slope_of_the_posterior(w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        w = w.clone().requires_grad_()
        (sum_of_losses(w, b) + (w**2).sum() / (2 * tau**2)).backward()
        return w.grad

    # scikit-learn's minimum for C = tau^2 is where the posterior's slope is zero.
    fitted = LogisticRegression(C=tau**2, tol=1e-10, max_iter=10_000).fit(x.numpy(), labels)
    w, b = torch.tensor(fitted.coef_.T.copy()), torch.tensor(fitted.intercept_)
    slope = slope_of_the_posterior(w, b)
    worst_error(slope, torch.zeros_like(w), atol=1e-4, why="scikit-learn's solver stops at a small gradient")
    wrong = LogisticRegression(C=1 / (2 * tau**2 + 1), tol=1e-10, max_iter=10_000).fit(x.numpy(), labels)
    off = slope_of_the_posterior(torch.tensor(wrong.coef_.T.copy()), torch.tensor(wrong.intercept_))
    assert off.abs().max() > 0.1

    # One step of SGD moves by the gradient that it follows: 1/N of the posterior's slope for a mean with
    # weight_decay = lambda, the whole of it for a sum with weight_decay = N lambda.
    lam = 1 / (n * tau**2)
    assert np.isclose(tau**2, 1 / (n * lam)) and np.isclose(n * lam, 1 / tau**2)
    start = torch.tensor(np.random.default_rng(7).normal(size=w.shape))
    for reduction, decay, scale in (("mean", lam, n), ("sum", n * lam, 1)):
        moved = start.clone().requires_grad_()
        optimiser = torch.optim.SGD([moved], lr=1.0, weight_decay=decay)
        sum_of_losses(moved, b, reduction).backward()
        optimiser.step()
        step = (start - moved.detach()) * scale
        worst_error(step, slope_of_the_posterior(start, b), rtol=1e-10, atol=1e-10, why=ROUNDING)


# ----------------------------------------------------------------------------------- Gaussian classes


def linear_logits(x: np.ndarray, shares: np.ndarray, means: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """The equation's second half, transcribed: logits from shares, means and the common covariance."""
    precision = np.linalg.inv(covariance)
    weights = precision @ means.T
    # wrong[eq-gaussian-classes]: np.log(shares) - -> np.log(shares) +
    intercepts = np.log(shares) - 0.5 * np.einsum("kd,de,ke->k", means, precision, means)
    return x @ weights + intercepts


@pytest.mark.equation("eq-gaussian-classes", by="reference")
def test_gaussian_classes_have_linear_logits(worst_error):
    r"""
    $$
    \begin{aligned}
    P(Y = k \mid x) &\propto \pi_k\, e^{-\frac12 (x - \mu_k)^\top \Sigma^{-1} (x - \mu_k)} \\
    P(Y = k \mid x) &= \operatorname{softmax}(W x + b)_k, \\
    w_k &= \Sigma^{-1} \mu_k, \\
    b_k &= \log \pi_k - \tfrac12\, \mu_k^\top \Sigma^{-1} \mu_k
    \end{aligned}
    $$ (eq-gaussian-classes)
    """
    rng = np.random.default_rng(8)
    for classes, features in ((2, 1), (3, 2), (10, 5)):
        shares, means = rng.dirichlet(np.ones(classes)), rng.normal(scale=2.0, size=(classes, features))
        root = rng.normal(size=(features, features))
        covariance = root @ root.T + 0.3 * np.eye(features)
        x = means[rng.choice(classes, 50, p=shares)] + rng.multivariate_normal(
            np.zeros(features), covariance, 50
        )
        logpdf = [stats.multivariate_normal(mean, covariance).logpdf(x) for mean in means]
        bayes = special.softmax(np.log(shares) + np.stack(logpdf, axis=1), axis=1)
        found = special.softmax(linear_logits(x, shares, means, covariance), axis=1)
        worst_error(found, bayes, rtol=1e-9, atol=1e-14, why="SciPy's densities, and an inverse matrix")
        # With a covariance of its own in one class the quadratic terms stay.
        logpdf[0] = stats.multivariate_normal(means[0], 4 * covariance).logpdf(x)
        other = special.softmax(np.log(shares) + np.stack(logpdf, axis=1), axis=1)
        assert np.abs(found - other).max() > 0.01
