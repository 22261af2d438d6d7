"""Chapter 01: each displayed equation, as printed, compared with something that does not use it.

Where it is cheap, the obvious wrong variant of an equation is tried as well, and has to fail.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import sympy as sp
from scipy import optimize, stats

import xent

RNG_SEED = 0
BINARY_RECORDS = [np.array(r) for n in (1, 3, 5) for r in itertools.product((0, 1), repeat=n)]


def overlapping_data(seed: int, rows: int = 60, columns: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Features with an intercept and labels drawn from a mild logistic model: a finite fit exists."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(rows), rng.normal(size=(rows, columns - 1))])
    y = (rng.uniform(size=rows) < 1 / (1 + np.exp(-x @ rng.normal(size=columns)))).astype(float)
    return x, y


def fit(x: np.ndarray, y: np.ndarray, penalty: float = 0.0) -> np.ndarray:
    """The minimiser, by a search that knows nothing but the loss."""

    def value(w: np.ndarray) -> float:
        z = x @ w
        return float(np.mean(np.logaddexp(0, z) - y * z) + penalty / 2 * w @ w)

    def slope(w: np.ndarray) -> np.ndarray:
        return optimize.approx_fprime(w, value, 1e-7)

    start = optimize.minimize(value, np.zeros(x.shape[1]), jac=slope, method="BFGS").x
    return np.asarray(optimize.minimize(value, start, method="Nelder-Mead", options=TIGHT).x)


TIGHT = {"xatol": 1e-10, "fatol": 1e-16, "maxiter": 20_000, "maxfev": 20_000}


# ------------------------------------------------------------------------------------- the coin


@pytest.mark.equation("eq-bernoulli", by="reference")
def test_one_formula_is_the_bernoulli_probability(worst_error: Any) -> None:
    r"""
    $$
    P(y \mid p) = p^{y} (1 - p)^{1 - y}
    = \begin{cases} p & \text{if } y = 1, \\ 1 - p & \text{if } y = 0. \end{cases}
    $$ (eq-bernoulli)
    """

    def printed(y: int, p: float) -> float:
        # wrong: (1 - p) ** (1 - y) -> (1 - p) ** y
        return p**y * (1 - p) ** (1 - y)

    def cases(y: int, p: float) -> float:
        return p if y == 1 else 1 - p

    pairs = [(y, p) for y in (0, 1) for p in (0.0, 0.01, 0.3, 0.5, 0.99, 1.0)]
    expected = [stats.bernoulli.pmf(y, p) for y, p in pairs]
    why = "one rounding in float64"
    worst_error([printed(*pair) for pair in pairs], expected, atol=1e-15, why=why)
    worst_error([cases(*pair) for pair in pairs], expected, atol=1e-15, why=why)


@pytest.mark.equation("eq-coin-likelihood", by="reference")
def test_the_likelihood_of_a_record_depends_on_the_count(worst_error: Any) -> None:
    r"""Against the probability of the record in the sample space of all records, by exact enumeration.

    $$
    \mathcal L(p) = \prod_{i=1}^{N} p^{y_i} (1 - p)^{1 - y_i} = p^{k} (1 - p)^{N - k}.
    $$ (eq-coin-likelihood)
    """
    p = 0.37
    product, by_count, expected = [], [], []
    for record in BINARY_RECORDS:
        n, k = len(record), int(record.sum())
        product.append(np.prod(p**record * (1 - p) ** (1 - record)))
        # wrong: (1 - p) ** (n - k) -> (1 - p) ** n
        by_count.append(p**k * (1 - p) ** (n - k))
        # Walk down the tree of tosses: independence multiplies along the branch.
        branch = mpmath.mpf(1)
        for toss in record:
            branch *= mpmath.mpf(p) if toss else 1 - mpmath.mpf(p)
        expected.append(branch)
    why = "at most five products in float64"
    worst_error(product, expected, rtol=1e-14, why=why)
    worst_error(by_count, expected, rtol=1e-14, why=why)
    counts = [stats.binom.pmf(k, 5, p) for k in range(6)]
    totals = [
        sum(e for r, e in zip(BINARY_RECORDS, expected, strict=True) if len(r) == 5 and r.sum() == k)
        for k in range(6)
    ]
    worst_error(
        totals, counts, rtol=1e-13, why="sums over records of equal count give the binomial distribution"
    )


@pytest.mark.equation("eq-log-monotone", by="property")
def test_the_logarithm_keeps_the_order_of_positive_likelihoods() -> None:
    r"""
    $$
    \begin{aligned}
    \mathcal L(p) < \mathcal L(q) &\iff \log \mathcal L(p) < \log \mathcal L(q) \\
    &\qquad \text{if } \mathcal L(p), \mathcal L(q) > 0.
    \end{aligned}
    $$ (eq-log-monotone)
    """
    rng = np.random.default_rng(RNG_SEED)
    for n in (1, 5, 40):
        k = int(rng.integers(1, n + 1))
        p, q = rng.uniform(0.01, 0.99, size=(2, 500))
        at_p, at_q = p**k * (1 - p) ** (n - k), q**k * (1 - q) ** (n - k)
        # wrong: np.log(at_p) < np.log(at_q) -> np.log(at_q) < np.log(at_p)
        assert ((at_p < at_q) == (np.log(at_p) < np.log(at_q))).all()
        # A function of the likelihood that does not increase does not keep the order.
        assert ((at_p < at_q) != ((at_p - 0.5) ** 2 < (at_q - 0.5) ** 2)).any()


@pytest.mark.equation("eq-coin-mle", by="symbolic")
def test_the_frequency_maximises_the_likelihood() -> None:
    r"""
    $$
    \begin{aligned}
    \log \mathcal L(p) &= k \log p + (N - k) \log (1 - p), \\[4pt]
    \frac{\mathrm d}{\mathrm d p} \log \mathcal L(p) &= \frac{k}{p} - \frac{N - k}{1 - p} \\[4pt]
    &= \frac{k - N p}{p (1 - p)}, \\[4pt]
    \hat p &= \frac{k}{N}.
    \end{aligned}
    $$ (eq-coin-mle)
    """
    p, k, n = sp.symbols("p k N", positive=True)
    log_likelihood = k * sp.log(p) + (n - k) * sp.log(1 - p)
    likelihood = p**k * (1 - p) ** (n - k)
    # The first line; the second, both forms; the third, as the only root.
    assert sp.simplify(sp.expand_log(sp.log(likelihood), force=True) - log_likelihood) == 0
    slope = sp.diff(sp.expand_log(sp.log(likelihood), force=True), p)
    # wrong: k / p - (n - k) / (1 - p) -> k / p + (n - k) / (1 - p)
    assert sp.simplify(slope - (k / p - (n - k) / (1 - p))) == 0
    assert sp.simplify(slope - (k - n * p) / (p * (1 - p))) == 0
    assert sp.solve(sp.together(slope), p) == [k / n]
    # A maximum, not only stationary; with k = 0 and k = N too.
    grid = np.linspace(0, 1, 1001)
    for tosses in (4, 10):
        for heads in range(tosses + 1):
            on_grid = grid**heads * (1 - grid) ** (tosses - heads)
            assert abs(grid[on_grid.argmax()] - heads / tosses) < 1e-9


# ------------------------------------------------------------------------------------- the loss


@pytest.mark.equation("eq-bce", by="reference")
def test_the_loss_is_the_negative_log_likelihood_per_example(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    J &= -\frac1N \log \prod_{i=1}^{N} p_i^{y_i} (1 - p_i)^{1 - y_i} \\[4pt]
    &= -\frac1N \sum_{i=1}^{N} \bigl[\, y_i \log p_i + (1 - y_i) \log (1 - p_i) \,\bigr].
    \end{aligned}
    $$ (eq-bce)
    """

    def printed(p: np.ndarray, y: np.ndarray) -> float:
        # wrong: np.log(1 - p) -> (1 - p)
        return float(-1 / len(y) * np.sum(y * np.log(p) + (1 - y) * np.log(1 - p)))

    rng = np.random.default_rng(RNG_SEED)
    observed, expected, wrong = [], [], []
    for n in (1, 4, 30):
        p, y = rng.uniform(0.02, 0.98, n), rng.integers(0, 2, n)
        observed.append(printed(p, y))
        with mpmath.workdps(40):
            likelihood = mpmath.fprod(
                mpmath.mpf(float(v)) if t else 1 - mpmath.mpf(float(v)) for v, t in zip(p, y, strict=True)
            )
            expected.append(-mpmath.log(likelihood) / n)
        wrong.append(-np.mean(y * np.log(p)) + np.mean((1 - y) * np.log(1 - p)))
    worst_error(observed, expected, rtol=1e-13, why="a sum of at most thirty logarithms in float64")
    assert not np.allclose(wrong, np.array(expected, float), rtol=1e-3)
    z = np.log(p / (1 - p))
    worst_error(xent.binary_cross_entropy(z, y), expected[-1], rtol=1e-13, why="by way of the logits")


@pytest.mark.equation("eq-missing-log", by="symbolic")
def test_without_the_second_logarithm_the_odds_are_fitted() -> None:
    r"""
    $$
    \begin{aligned}
    \tilde J'(p) &= -\frac{f}{p} + (1 - f), \\[4pt]
    \operatorname*{arg\,min}_{0 \le p \le 1} \tilde J(p) &= \min\Bigl( \frac{f}{1 - f},\ 1 \Bigr).
    \end{aligned}
    $$ (eq-missing-log)
    """
    p, f = sp.symbols("p f", positive=True)
    without = -f * sp.log(p) - (1 - f) * (1 - p)
    # wrong: -f / p + (1 - f) -> -f / p - (1 - f)
    assert sp.simplify(sp.diff(without, p) - (-f / p + (1 - f))) == 0
    grid = np.linspace(0.0005, 1, 2000)
    for frequency in np.linspace(0.02, 0.98, 49):
        values = -frequency * np.log(grid) - (1 - frequency) * (1 - grid)
        printed = min(frequency / (1 - frequency), 1)
        assert abs(grid[values.argmin()] - printed) < 6e-4
        if frequency > 0.06:
            assert abs(grid[values.argmin()] - frequency) > 2e-3  # and not the frequency


# ----------------------------------------------------------------------------------- the logits


@pytest.mark.equation("eq-sigmoid", by="symbolic")
def test_the_sigmoid_its_mirror_and_its_inverse() -> None:
    r"""
    $$
    \begin{aligned}
    \sigma(z) &= \frac{1}{1 + e^{-z}}, \\[4pt]
    1 - \sigma(z) &= \sigma(-z), \\[4pt]
    z &= \log \frac{\sigma(z)}{1 - \sigma(z)}.
    \end{aligned}
    $$ (eq-sigmoid)
    """
    z = sp.symbols("z", real=True)
    # wrong: sp.exp(-z) -> sp.exp(z)
    sigma = 1 / (1 + sp.exp(-z))
    assert sp.simplify((1 - sigma) - sigma.subs(z, -z)) == 0
    odds = sp.simplify(sigma / (1 - sigma))
    assert sp.simplify(sp.expand_log(sp.log(odds), force=True) - z) == 0
    # The definition itself, against the logistic distribution of SciPy and against xent.
    points = np.linspace(-30, 30, 61)
    printed = 1 / (1 + np.exp(-points))
    assert np.allclose(printed, stats.logistic.cdf(points), rtol=1e-14, atol=0)
    assert np.allclose(printed, xent.sigmoid(points), rtol=1e-14, atol=0)


@pytest.mark.equation("eq-bce-logits", by="symbolic")
def test_the_three_lines_of_the_logits_form(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    \ell(z, y) &= -y \log \sigma(z) - (1 - y) \log \sigma(-z) \\
    &= y \log (1 + e^{-z}) + (1 - y) \log (1 + e^{z}) \\
    &= \log (1 + e^{z}) - y z.
    \end{aligned}
    $$ (eq-bce-logits)
    """
    z, y = sp.symbols("z y", real=True)
    p = 1 / (1 + sp.exp(-z))
    bernoulli = -y * sp.log(p) - (1 - y) * sp.log(1 - p)
    first = -y * sp.log(p) - (1 - y) * sp.log(p.subs(z, -z))
    second = y * sp.log(1 + sp.exp(-z)) + (1 - y) * sp.log(1 + sp.exp(z))
    # wrong: sp.log(1 + sp.exp(z)) - y * z -> sp.log(1 + sp.exp(z)) + y * z
    third = sp.log(1 + sp.exp(z)) - y * z
    for line in (first, second, third):
        # Equal slopes and one common value make equal functions.
        assert sp.simplify(sp.diff(line - bernoulli, z)) == 0
        assert sp.simplify((line - bernoulli).subs(z, 0)) == 0
    assert sp.simplify(sp.diff(sp.log(1 + sp.exp(z)) + y * z - bernoulli, z)) != 0

    points, targets = np.meshgrid(np.linspace(-30, 30, 25), [0.0, 0.25, 1.0])
    with mpmath.workdps(60):
        exact = []
        for v, t in zip(points.ravel(), targets.ravel(), strict=True):
            q = 1 / (1 + mpmath.exp(-mpmath.mpf(float(v))))
            exact.append(-t * mpmath.log(q) - (1 - t) * mpmath.log(1 - q))
        printed = [
            mpmath.log(1 + mpmath.exp(mpmath.mpf(float(v)))) - t * mpmath.mpf(float(v))
            for v, t in zip(points.ravel(), targets.ravel(), strict=True)
        ]
    worst_error(printed, exact, rtol=1e-15, why="60 digits on both sides, rounded to float64")
    observed = xent.binary_cross_entropy(points, targets, reduction="none").ravel()
    worst_error(observed, exact, rtol=1e-14, why="a few roundings in float64")


@pytest.mark.equation("eq-bce-symmetric", by="reference")
def test_one_softplus_for_hard_labels_only(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    \operatorname{softplus}(u) &= \log (1 + e^{u}), \\
    \ell(z, y) &= \operatorname{softplus}\bigl( (1 - 2 y)\, z \bigr) \\
    &\qquad \text{for } y \in \{0, 1\}.
    \end{aligned}
    $$ (eq-bce-symmetric)
    """
    z = np.linspace(-30, 30, 61)
    for y in (0, 1):
        with mpmath.workdps(60):
            p = [1 / (1 + mpmath.exp(-mpmath.mpf(float(v)))) for v in z]
            exact = [-mpmath.log(q) if y else -mpmath.log(1 - q) for q in p]
            # wrong: 1 - 2 * y -> 2 * y - 1
            printed = [mpmath.log(1 + mpmath.exp((1 - 2 * y) * mpmath.mpf(float(v)))) for v in z]
            wrong = [mpmath.log(1 + mpmath.exp((2 * y - 1) * mpmath.mpf(float(v)))) for v in z]
        worst_error(printed, exact, rtol=1e-15, why="60 digits on both sides, rounded to float64")
        assert not np.allclose(np.array(wrong, float), np.array(exact, float), rtol=1e-3)
    # The chapter's warning: at a target of one half the symmetric form is constant, and the loss is not.
    soft = xent.binary_cross_entropy(z, np.full_like(z, 0.5), reduction="none")
    assert np.allclose(np.logaddexp(0, (1 - 2 * 0.5) * z), np.log(2))
    assert soft.max() - soft.min() > 10


@pytest.mark.equation("eq-softplus-stable", by="reference")
def test_the_stable_softplus_keeps_its_digits(worst_error: Any) -> None:
    r"""
    $$
    \operatorname{softplus}(u) = \max(u, 0) + \log \bigl( 1 + e^{-|u|} \bigr).
    $$ (eq-softplus-stable)
    """
    u = np.concatenate([np.linspace(-700, 700, 57), np.linspace(-3, 3, 25), [0.0, 1e4, -40.0, 40.0]])
    # wrong: np.maximum(u, 0) -> np.maximum(-u, 0)
    printed = np.maximum(u, 0) + np.log1p(np.exp(-np.abs(u)))
    with mpmath.workdps(700):
        exact = [mpmath.log(1 + mpmath.exp(mpmath.mpf(float(v)))) for v in u]
    worst_error(printed, exact, rtol=1e-15, why="two elementary functions in float64, a few ulp")
    wrong = np.maximum(u, 0) + np.log1p(np.exp(np.minimum(np.abs(u), 700)))
    assert not np.allclose(wrong, np.array(exact, float), rtol=1e-3)


@pytest.mark.equation("eq-bce-derivatives", by="symbolic")
def test_slope_and_curvature_in_the_logit(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    \frac{\partial \ell}{\partial z} &= \sigma(z) - y, \\[4pt]
    \frac{\partial^2 \ell}{\partial z^2} &= \sigma(z) \bigl( 1 - \sigma(z) \bigr) \in \bigl( 0, \tfrac14
    \bigr].
    \end{aligned}
    $$ (eq-bce-derivatives)
    """
    z, y = sp.symbols("z y", real=True)
    p = 1 / (1 + sp.exp(-z))
    loss = -y * sp.log(p) - (1 - y) * sp.log(1 - p)
    # wrong: p - y -> p + y
    assert sp.simplify(sp.diff(loss, z) - (p - y)) == 0
    assert sp.simplify(sp.diff(loss, z, 2) - p * (1 - p)) == 0
    assert sp.simplify(sp.diff(loss, z) - (y - p)) != 0
    # In (0, 1/4], and 1/4 is attained.
    points = np.linspace(-700, 700, 2801)
    curvature = xent.sigmoid(points) * xent.sigmoid(-points)
    assert curvature.min() > 0 and curvature.max() == 0.25
    assert sp.simplify(sp.Rational(1, 4) - p * (1 - p) - (p - sp.Rational(1, 2)) ** 2) == 0

    import torch

    points = np.linspace(-20, 20, 41)
    for target in (0.0, 0.3, 1.0):
        at = torch.tensor(points, requires_grad=True)
        value = torch.nn.functional.binary_cross_entropy_with_logits(
            at, torch.full_like(at, target), reduction="sum"
        )
        (slope,) = torch.autograd.grad(value, at)
        worst_error(1 / (1 + np.exp(-points)) - target, slope, atol=1e-15, why="autograd in float64")


# ---------------------------------------------------------------------------------- the weights


@pytest.mark.equation("eq-gradient-descent", by="framework")
def test_a_step_of_gradient_descent_is_torchs(worst_error: Any) -> None:
    r"""
    $$
    w_{t+1} = w_t - \eta\, \nabla J(w_t).
    $$ (eq-gradient-descent)
    """
    import torch

    x, y = overlapping_data(1, rows=20, columns=4)
    for rate in (0.05, 1.0, 12.0):
        w = np.array([0.3, -1.0, 0.5, 2.0])
        weights = torch.tensor(w, requires_grad=True)
        optimiser = torch.optim.SGD([weights], lr=rate)
        for _ in range(5):
            gradient = x.T @ (1 / (1 + np.exp(-x @ w)) - y) / len(y)
            # wrong: w - rate * gradient -> w + rate * gradient
            w = w - rate * gradient
            optimiser.zero_grad()
            q = 1 / (1 + torch.exp(-torch.from_numpy(x) @ weights))
            labels = torch.from_numpy(y)
            (-(labels * q.log() + (1 - labels) * (1 - q).log()).mean()).backward()
            optimiser.step()
        worst_error(w, weights.detach(), atol=1e-11, why="five steps in float64, through the probability")


@pytest.mark.equation("eq-weights-gradient", by="framework")
def test_the_gradient_in_the_weights(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    \nabla J(w) &= \frac1N \sum_{i=1}^{N} (p_i - y_i)\, x_i \\[4pt]
    &= \frac1N X^{\mathsf T} \bigl( \sigma(X w) - y \bigr).
    \end{aligned}
    $$ (eq-weights-gradient)
    """
    for seed in range(3):
        x, y, w, loss = linear_problem(seed)
        p, n = 1 / (1 + np.exp(-x @ w)), len(y)
        as_sum = sum((p[i] - y[i]) * x[i] for i in range(n)) / n
        # wrong: p - y -> y - p
        as_product = x.T @ (p - y) / n
        gradient = torch_jacobian(loss, w)
        worst_error(as_sum, gradient, atol=1e-13, why="autograd in float64 through the probability")
        worst_error(as_product, gradient, atol=1e-13, why="autograd in float64 through the probability")
        assert not np.allclose(x.T @ (y - p) / n, gradient, atol=1e-3)


def linear_problem(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, Callable[[Any], Any]]:
    """Data, weights, and the mean loss as a function of torch weights, through the probability."""
    import torch

    x, y = overlapping_data(seed, rows=20, columns=4)
    x_t, y_t = torch.from_numpy(x), torch.from_numpy(y)

    def loss(weights: torch.Tensor) -> torch.Tensor:
        q = 1 / (1 + torch.exp(-x_t @ weights))
        return -(y_t * q.log() + (1 - y_t) * (1 - q).log()).mean()

    return x, y, np.random.default_rng(seed).normal(size=4), loss


def torch_jacobian(loss: Callable[[Any], Any], w: np.ndarray) -> np.ndarray:
    """The gradient by autograd."""
    import torch

    return np.asarray(torch.autograd.functional.jacobian(loss, torch.from_numpy(w)))


@pytest.mark.equation("eq-weights-derivatives", by="framework")
def test_the_hessian_in_the_weights(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    \nabla^2 J(w) &= \frac1N X^{\mathsf T} \operatorname{diag}\bigl( p_i (1 - p_i) \bigr) X, \\[4pt]
    v^{\mathsf T} \nabla^2 J(w)\, v &= \frac1N \sum_{i=1}^{N} p_i (1 - p_i) (x_i \cdot v)^2 \ge 0.
    \end{aligned}
    $$ (eq-weights-derivatives)
    """
    import torch

    for seed in range(3):
        x, y, w, loss = linear_problem(seed)
        v, n = np.random.default_rng(seed + 10).normal(size=4), len(y)
        p = 1 / (1 + np.exp(-x @ w))
        # wrong: p * (1 - p) -> p
        second = x.T @ np.diag(p * (1 - p)) @ x / n
        along = sum(p[i] * (1 - p[i]) * (x[i] @ v) ** 2 for i in range(n)) / n
        hessian = torch.autograd.functional.hessian(loss, torch.from_numpy(w))
        why = "autograd in float64 through the probability"
        worst_error(second, hessian, atol=1e-13, why=why)
        worst_error(along, v @ hessian.numpy() @ v, atol=1e-13, why=why)
        assert along >= 0


@pytest.mark.equation("eq-newton", by="property")
def test_newton_squares_the_error() -> None:
    r"""Start at smaller and smaller distances: the error after one step falls with the square of it.

    $$
    \begin{aligned}
    w_{\text{new}} &= w - \nabla^2 J(w)^{-1}\, \nabla J(w), \\
    \lVert w_{\text{new}} - \hat w \rVert &= O\bigl( \lVert w - \hat w \rVert^2 \bigr).
    \end{aligned}
    $$ (eq-newton)
    """
    x, y = overlapping_data(4)
    with mpmath.workdps(60):
        x_m, y_m = mpmath.matrix(x.tolist()), mpmath.matrix(y.tolist())

        def step(w: mpmath.matrix, sign: int = -1) -> mpmath.matrix:
            z = x_m * w
            p = mpmath.matrix([1 / (1 + mpmath.exp(-v)) for v in z])
            gradient = x_m.T * (p - y_m) / len(y)
            # wrong: x_m / len(y) -> x_m
            hessian = x_m.T * mpmath.diag([q * (1 - q) for q in p]) * x_m / len(y)
            return w + sign * mpmath.lu_solve(hessian, gradient)

        best = mpmath.matrix([0, 0, 0])
        for _ in range(12):
            best = step(best)
        assert mpmath.norm(step(best) - best) < mpmath.mpf(10) ** -50
        offset = mpmath.matrix([0.6, -0.5, 0.62])
        distances = [mpmath.mpf(10) ** -k for k in range(1, 8)]
        after = [mpmath.norm(step(best + d * offset) - best) for d in distances]
        ratios = [float(a / d**2) for a, d in zip(after, distances, strict=True)]
        # The ratio settles at a constant, so the order is two, neither less nor more.
        assert ratios[-1] > 1e-3
        assert max(ratios[1:]) < 2 * ratios[-1] and min(ratios[1:]) > 0.5 * ratios[-1]
        # With the other sign the step leads away, at first order.
        assert mpmath.norm(step(best + offset / 1000, sign=1) - best) > mpmath.norm(offset / 1000)


@pytest.mark.equation("eq-score-zero", by="property")
def test_at_the_minimum_the_residuals_balance() -> None:
    r"""
    $$
    \begin{aligned}
    \sum_{i=1}^{N} (y_i - \hat p_i)\, x_i &= 0, \\[4pt]
    \sum_{i=1}^{N} |y_i - \hat p_i|\; s_i x_i &= 0.
    \end{aligned}
    $$ (eq-score-zero)
    """
    for seed in range(3):
        x, y = overlapping_data(seed)
        p, s = 1 / (1 + np.exp(-x @ fit(x, y))), 2 * y - 1
        first = sum((y[i] - p[i]) * x[i] for i in range(len(y)))
        # wrong: abs(y[i] - p[i]) * s[i] * x[i] -> abs(y[i] - p[i]) * x[i]
        second = sum(abs(y[i] - p[i]) * s[i] * x[i] for i in range(len(y)))
        # The fit comes from a search that knows the loss only, to about 1e-8 in the weights.
        assert np.abs(first).max() < 1e-5
        assert np.abs(second).max() < 1e-5
        assert abs(p.sum() - y.sum()) < 1e-5  # the column of ones
        # Away from the minimum they do not, and without the signs they do not either.
        off = 1 / (1 + np.exp(-x @ (fit(x, y) + 0.1)))
        assert np.abs(x.T @ (y - off)).max() > 1e-2
        assert np.abs(x.T @ np.abs(y - p)).max() > 1e-2


# ----------------------------------------------------------------------------------- separation


@pytest.mark.equation("eq-toy-growth", by="symbolic")
def test_how_the_weight_of_a_separated_pair_grows(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    w(t) + e^{w(t)} &= t + 1, \\
    w_{k+1} &= w_k + 1 + e^{-w_k}.
    \end{aligned}
    $$ (eq-toy-growth)
    """
    w, t = sp.symbols("w t", real=True)
    loss = sp.log(1 + sp.exp(-w))
    # The flow: differentiate w + exp(w) = t + 1 along it, and put in dw/dt = -J'(w).
    velocity = -sp.diff(loss, w)
    assert sp.simplify(velocity - 1 / (1 + sp.exp(w))) == 0
    assert sp.simplify(sp.diff(w + sp.exp(w), w) * velocity - sp.diff(t + 1, t)) == 0
    assert (w + sp.exp(w)).subs(w, 0) == (t + 1).subs(t, 0)
    newton = w - sp.diff(loss, w) / sp.diff(loss, w, 2)
    # wrong: sp.exp(-w) -> sp.exp(w)
    assert sp.simplify(newton - (w + 1 + sp.exp(-w))) == 0
    assert sp.simplify(newton - (w + 1 + sp.exp(w))) != 0

    # The flow once more, by SciPy's integrator and by small steps of gradient descent.
    times = np.array([1.0, 10.0, 100.0, 1000.0])
    from scipy.integrate import solve_ivp

    flow = solve_ivp(
        lambda _, v: 1 / (1 + np.exp(v)), (0, 1000), [0.0], t_eval=times, rtol=1e-12, atol=1e-12
    ).y[0]
    worst_error(flow + np.exp(flow), times + 1, rtol=1e-9, why="an integrator at a tolerance of 1e-12")
    # And w is close to log t, k steps of Newton close to k.
    assert abs(flow[-1] / np.log(times[-1]) - 1) < 0.01
    v = 0.0
    for _ in range(100):
        v += 1 + np.exp(-v)
    assert abs(v / 100 - 1) < 0.02


@pytest.mark.equation("eq-separation-bound", by="property")
def test_a_margin_bounds_the_loss_along_its_direction() -> None:
    r"""
    $$
    \begin{gathered}
    s_i\, x_i \cdot v \ge m > 0 \ \text{ for all } i \\
    \Longrightarrow \quad 0 < J(t v) \le \log \bigl( 1 + e^{-t m} \bigr) \xrightarrow[\ t \to \infty\ ]{} 0.
    \end{gathered}
    $$ (eq-separation-bound)
    """
    rng = np.random.default_rng(RNG_SEED)

    def loss(z: np.ndarray, y: np.ndarray, scale: float) -> Any:
        p = [1 / (1 + mpmath.exp(-scale * mpmath.mpf(float(v)))) for v in z]
        return sum(-mpmath.log(q if t else 1 - q) for q, t in zip(p, y, strict=True)) / len(y)

    def bound(m: float, scale: float) -> Any:
        # wrong: mpmath.log(1 + mpmath.exp(-scale * mpmath.mpf(m))) -> mpmath.exp(-scale * mpmath.mpf(m))
        return mpmath.log(1 + mpmath.exp(-scale * mpmath.mpf(m)))

    with mpmath.workdps(120):
        for _ in range(20):
            x, v = rng.normal(size=(15, 3)), rng.normal(size=3)
            y = (x @ v > 0).astype(float)
            m = float(((2 * y - 1) * (x @ v)).min())
            assert m > 0
            for scale in (0.0, 0.3, 1.0, 10.0):
                assert 0 < loss(x @ v, y, scale) <= bound(m, scale) * (1 + mpmath.mpf(10) ** -80)
            assert bound(m, 100 / m) < mpmath.mpf(10) ** -43  # the limit
        # Equal margins attain the bound, so no smaller one would do.
        z, y = np.array([0.7, -0.7, 0.7]), np.array([1.0, 0.0, 1.0])
        for scale in (0.5, 1.0, 20.0):
            assert abs(loss(z, y, scale) / bound(0.7, scale) - 1) < mpmath.mpf(10) ** -80


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


@pytest.mark.equation("eq-mle-exists", by="property")
def test_a_minimum_exists_unless_a_direction_separates() -> None:
    r"""The directions by brute force, the minimum by a ridge that is taken away.

    $$
    \begin{aligned}
    & J \text{ has a minimum} \iff \text{no } v \text{ has} \\
    & \qquad s_i\, x_i \cdot v \ge 0 \text{ for all } i \text{ and} \\
    & \qquad s_i\, x_i \cdot v > 0 \text{ for some } i.
    \end{aligned}
    $$ (eq-mle-exists)
    """
    verdicts = []
    for x, y in small_designs(30):
        # wrong: (p > 0).any -> (p > 0).all
        separable = any((p > 0).any() for p in harmless_directions(x, y))
        # As the ridge vanishes, the weights settle if there is a minimum, and grow if there is none.
        sizes = [np.linalg.norm(fit_ridge(x, y, ridge)) for ridge in (1e-4, 1e-6, 1e-8)]
        settled = sizes[2] < 1.05 * sizes[1] and sizes[2] < 1e2
        growing = sizes[2] > sizes[1] + 1 and sizes[1] > sizes[0] + 1
        assert settled != growing
        assert settled == (not separable)
        verdicts.append(separable)
    assert 5 < sum(verdicts) < 25  # both sides were met


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


@pytest.mark.equation("eq-overlap-certificate", by="property")
def test_residuals_that_absorb_their_error_prove_a_minimum() -> None:
    r"""Never where brute force finds a harmless direction, and always, sooner or later, where it finds none.

    $$
    \min_i r_i > \frac{\lVert A^{\mathsf T} r \rVert}{\sigma_{\min}(A)}
    \quad \Longrightarrow \quad J \text{ has a minimum.}
    $$ (eq-overlap-certificate)
    """

    def certified(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> bool:
        a = (2 * y - 1)[:, None] * x
        r = 1 / (1 + np.exp(a @ w))
        # wrong: np.linalg.norm(a.T @ r) / np.linalg.svd -> 1e-2 * np.linalg.norm(a.T @ r) / np.linalg.svd
        return bool(r.min() > np.linalg.norm(a.T @ r) / np.linalg.svd(a, compute_uv=False)[-1])

    rng = np.random.default_rng(RNG_SEED)
    kinds = []
    for x, y in small_designs(60):
        separable = any((p > 0).any() for p in harmless_directions(x, y))
        kinds.append(separable)
        # At the end of a fit with less and less penalty, and at random weights of any size.
        tried = [fit_ridge(x, y, ridge) for ridge in (1e-1, 1e-3, 1e-5, 1e-7)]
        tried += [scale * rng.normal(size=3) for scale in np.logspace(-1, 1.5, 40)]
        found = [certified(x, y, w) for w in tried]
        assert any(found) != separable
    assert 10 < sum(kinds) < 55
    # The pair of the chapter, at any weight.
    pair, both = np.array([[-1.0], [1.0]]), np.array([0, 1])
    assert not any(certified(pair, both, np.array([w])) for w in np.linspace(-5, 30, 71))


@pytest.mark.equation("eq-penalised", by="property")
def test_a_penalty_bounds_the_weights(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    J_\lambda(w) &= J(w) + \frac{\lambda}{2} \lVert w \rVert^2, \\[4pt]
    \lVert \hat w_\lambda \rVert &\le \sqrt{\frac{2 \log 2}{\lambda}} .
    \end{aligned}
    $$ (eq-penalised)
    """
    from sklearn.linear_model import LogisticRegression

    x = np.array([[-2.0, 1.0], [-1.0, 0.5], [1.0, 1.0], [3.0, -0.5]])  # separated, without an intercept
    y = np.array([0.0, 0.0, 1.0, 1.0])
    rng = np.random.default_rng(RNG_SEED)
    for penalty in (1e-6, 1e-3, 0.1, 1.0, 30.0):
        w = fit_ridge(x, y, penalty)

        def printed(w: np.ndarray, penalty: float = penalty) -> float:
            # wrong: penalty / 2 * np.linalg.norm(w) ** 2 -> penalty * np.linalg.norm(w) ** 2
            return float(xent.binary_cross_entropy(x @ w, y) + penalty / 2 * np.linalg.norm(w) ** 2)

        # It is the minimiser of the printed loss, and the bound holds.
        assert all(printed(w) <= printed(w + 0.01 * rng.normal(size=2)) for _ in range(50))
        assert np.linalg.norm(w) <= np.sqrt(2 * np.log(2) / penalty)
        # scikit-learn's C stands before the sum of the losses: lambda = 1 / (C N).
        model = LogisticRegression(
            C=1 / (penalty * len(y)), fit_intercept=False, solver="newton-cholesky", tol=1e-12
        ).fit(x, y)
        worst_error(model.coef_[0], w, rtol=1e-6, atol=1e-9, why="two optimisers at a tolerance of 1e-12")
    # Where the bound comes from: at w = 0 the loss is log 2, and the penalty alone may not exceed that.
    size, strength = sp.symbols("size lambda", positive=True)
    (largest,) = sp.solve(strength / 2 * size**2 - sp.log(2), size)
    assert sp.simplify(largest - sp.sqrt(2 * sp.log(2) / strength)) == 0
    assert np.isclose(xent.binary_cross_entropy(x @ np.zeros(2), y), np.log(2), rtol=1e-15)


# ------------------------------------------------------------------------------------ pos_weight


@pytest.mark.equation("eq-pos-weight", by="symbolic")
def test_pos_weight_shifts_the_logit_by_its_logarithm(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    q &= \frac{c\, \pi}{c\, \pi + 1 - \pi}, \\[4pt]
    \log \frac{q}{1 - q} &= \log \frac{\pi}{1 - \pi} + \log c, \\[4pt]
    \pi &= \frac{q}{q + c\, (1 - q)}.
    \end{aligned}
    $$ (eq-pos-weight)
    """
    q, c, pi = sp.symbols("q c pi_", positive=True)
    expected_loss = -c * pi * sp.log(q) - (1 - pi) * sp.log(1 - q)
    (best,) = sp.solve(sp.numer(sp.together(sp.diff(expected_loss, q))), q)
    # wrong: c * pi / (c * pi + 1 - pi) -> pi / (c * pi + 1 - pi)
    assert sp.simplify(best - c * pi / (c * pi + 1 - pi)) == 0
    # The logits, through their exponentials: odds.
    assert sp.simplify(best / (1 - best) - pi / (1 - pi) * c) == 0
    assert sp.simplify((q / (q + c * (1 - q))).subs(q, best) - pi) == 0
    assert sp.simplify((q / (q + (1 - q) / c)).subs(q, best) - pi) != 0

    # The same with the weighted losses of torch and of xent, minimised over a constant logit.
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
