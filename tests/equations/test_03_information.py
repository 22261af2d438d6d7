"""Chapter 03: that only a logarithm will do, and the law of large numbers by simulation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
from scipy import special

Array = npt.NDArray[np.float64]


def exact_sum(terms: Iterator[Any]) -> Any:
    with mpmath.workdps(40):
        return mpmath.fsum(terms)


def mp_kl(p: Array, q: Array) -> Any:
    """sum p log(p / q) at 40 digits, term by term, without going through entropies."""
    with mpmath.workdps(40):
        terms = [
            mpmath.mpf(a) * mpmath.log(mpmath.mpf(a) / mpmath.mpf(b))
            for a, b in zip(p, q, strict=True)
            if a > 0
        ]
        return mpmath.fsum(terms)


# -------------------------------------------------------------------------------------------- surprise


@pytest.mark.equation("eq-surprise", by="property")
def test_nothing_but_the_logarithm_meets_them() -> None:
    # On the grid 2^(-i/6) additivity is a linear system; its solutions form one line, the logarithm's.
    size = 37
    rows = []
    for i in range(size):
        for j in range(i, size - i):
            row = np.zeros(size)
            row[i + j] += 1
            row[i] -= 1
            row[j] -= 1
            rows.append(row)
    _, singular, directions = np.linalg.svd(np.array(rows))
    assert (singular < 1e-10).sum() == 1
    solution = directions[-1] / directions[-1][6]
    grid = 2.0 ** (-np.arange(size) / 6)
    assert np.allclose(solution, -np.log(grid) / np.log(2), rtol=0, atol=1e-12)

    # The squeeze of the third line, with the function of the fourth, for each u between its neighbours.
    rng = np.random.default_rng(0)
    c = 1.7
    s_half = -c * np.log(0.5)
    for u in rng.uniform(1e-6, 1, size=500):
        for n in (1, 2, 7, 100):
            m = next(m for m in itertools.count() if 2 ** (-(m + 1) / n) < u)
            assert 2 ** (-(m + 1) / n) < u <= 2 ** (-m / n)
            assert m / n * s_half <= -c * np.log(u) < (m + 1) / n * s_half

    # Other decreasing functions with s(1) = 0 do not add up.
    for other in (lambda u: 1 - u, lambda u: 1 / u - 1, lambda u: np.log(u) ** 2):
        assert abs(other(0.2 * 0.5) - other(0.2) - other(0.5)) > 0.1


# ------------------------------------------------------------------------------- the law of large numbers


@pytest.mark.equation("eq-lln", by="montecarlo")
def test_averages_converge_at_the_stated_rate(worst_error: Any) -> None:
    p_x = np.array([0.6, 0.4])
    p_y = np.array([[0.7, 0.3], [0.3, 0.7]])
    q_y = np.array([[0.2, 0.8], [0.9, 0.1]])
    joint = (p_x[:, None] * p_y).ravel()
    divergence = float(mp_kl(joint, (p_x[:, None] * q_y).ravel()))
    log_ratio = np.log(p_y / q_y).ravel()
    # The variance by E[X^2] - E[X]^2 at high precision.
    square = exact_sum(mpmath.mpf(w) * mpmath.mpf(r) ** 2 for w, r in zip(joint, log_ratio, strict=True))
    sigma = float(mpmath.sqrt(square - mpmath.mpf(divergence) ** 2))
    repeats = 20_000
    rng = np.random.default_rng(11)
    for n in (1, 4, 25, 100):
        # The sample is drawn as pairs, one x and then one y given x.
        x = (rng.random((repeats, n)) < p_x[1]).astype(int)
        y = (rng.random((repeats, n)) < p_y[x, 1]).astype(int)
        r_n = np.log(p_y[x, y] / q_y[x, y]).mean(axis=1)
        error = sigma / math.sqrt(n) / math.sqrt(repeats)
        worst_error(r_n.mean(), divergence, atol=4 * error, why="four standard errors of 20,000 averages")
        worst_error(
            r_n.std(),
            sigma / math.sqrt(n),
            rtol=4 / math.sqrt(2 * repeats),
            why="four standard errors of a spread",
        )
        # Division by n instead of its root would be seen at once.
        assert n == 1 or abs(r_n.std() - sigma / n) > 10 * error


# --------------------------------------------------------------------------------- Fisher information


def scores(z: Array, x: Array) -> Array:
    """Slopes of log Q(y | x) in the weights of a softmax regression, by differences: (input, y, weight)."""
    step, k = 1e-5, z.shape[1]
    directions = np.eye(x.shape[1] * k).reshape(-1, x.shape[1], k)
    sides = [special.log_softmax(z + s * step * (x @ directions), axis=-1) for s in (1, -1)]
    return np.moveaxis((sides[0] - sides[1]) / (2 * step), 0, -1)


def fisher(z: Array, x: Array) -> Array:
    """The first line of the equation, the expectation of the outer products."""
    s = scores(z, x)
    # wrong[eq-fisher]: "nk,nkw,nkv->wv" -> "nk,nkw,nlv->wv"
    return np.asarray(np.einsum("nk,nkw,nkv->wv", special.softmax(z, axis=1), s, s) / len(x))


@pytest.mark.equation("eq-fisher", by="reference")
def test_the_information_is_the_curvature_and_gives_the_error(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    I(\theta) &= \mathrm E\left[ \nabla \log Q_\theta\; \nabla \log Q_\theta^{\mathsf T} \right] \\
    &= -\mathrm E\left[ \nabla^2 \log Q_\theta \right], \\
    \operatorname{se}(\hat\theta_j) &= \sqrt{\bigl[ \nabla^2 \mathcal L(\hat\theta)^{-1} \bigr]_{jj} / n}
    \end{aligned}
    $$ (eq-fisher)
    """
    rng = np.random.default_rng(9)
    for n, features, classes in ((7, 1, 2), (30, 2, 3)):
        x, w = rng.normal(size=(n, features)), rng.normal(size=(features, classes))
        p = special.softmax(x @ w, axis=1)
        # The Hessian of -log softmax in the logits is diag(p) - p p^T, whatever the label is.
        curved = np.einsum("nk,kl->nkl", p, np.eye(classes)) - np.einsum("nk,nl->nkl", p, p)
        curvature = np.einsum("nkl,nd,ne->dkel", curved, x, x).reshape(features * classes, -1) / n
        worst_error(fisher(x @ w, x), curvature, rtol=1e-6, atol=1e-8, why="slopes by differences")
    # The standard error beside the spread of 2,000 fits, for two weights of a logistic regression.
    n, theta = 400, np.array([0.5, -1.0])
    x = np.column_stack([np.ones(n), rng.normal(size=n)])
    y = (rng.uniform(size=(2000, n)) < special.expit(x @ theta)).astype(float)
    fits = np.tile(theta, (2000, 1))
    for _ in range(8):
        p = special.expit(fits @ x.T)
        curvature = np.einsum("rn,nd,ne->rde", p * (1 - p), x, x) / n
        fits -= np.linalg.solve(curvature, ((p - y) @ x / n)[..., None])[..., 0]
    errors = np.sqrt(np.diagonal(np.linalg.inv(curvature), axis1=1, axis2=2) / n)
    worst_error(errors.mean(axis=0), fits.std(axis=0), rtol=0.06, why="2,000 fits, and terms of order 1 / n")
    covered = (np.abs(fits - theta) < 2 * errors).mean(axis=0)
    assert ((covered > 0.935) & (covered < 0.97)).all()
