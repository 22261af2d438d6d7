"""The equations of chapter 04, gradients, each transcribed as printed and held against something else.

A transcription is a function of its own, so that the wrong variants of it can be shown to fail as well.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
import sympy
import torch
from numpy.typing import NDArray

import xent
from equations import symbolic
from xent import gradients

Array = NDArray[np.float64]

ROUNDING = "a few roundings in float64"
F = torch.nn.functional


# ------------------------------------------------------------------------------------- symbols of K = 3

Z = sympy.symbols("z1:4", real=True)
T = sympy.symbols("t1:4", real=True)
SIGMA = sum(sympy.exp(z) for z in Z)
P = [sympy.exp(z) / SIGMA for z in Z]
vanishes = partial(symbolic.vanishes, logits=Z)


def random_rows(seed: int, shape: tuple[int, ...], scale: float = 2.0) -> tuple[Array, NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    return rng.normal(scale=scale, size=shape), rng.integers(0, shape[-1], size=shape[:-1])


def autograd(function: Any, at: Array) -> Array:
    """The gradient of a scalar function of one tensor."""
    x = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(function(x), x)
    return gradient.numpy()


# --------------------------------------------------------------------------------- softmax and its Jacobian


# --------------------------------------------------------------------------------- four distributions


@pytest.mark.equation("eq-grad-family", by="symbolic")
def test_the_slope_of_an_exponential_family_is_mean_minus_target() -> None:
    r"""For any four outcomes with any weights, and for the whole numbers with those of a Poisson distribution.

    $$
    \begin{aligned}
    P(y \mid \eta) &= h(y)\, e^{\eta y - A(\eta)}, \\
    A(\eta) &= \log \sum_y h(y)\, e^{\eta y}, \\
    A'(\eta) &= \frac{\sum_y y\, h(y)\, e^{\eta y}}{\sum_y h(y)\, e^{\eta y}} = \operatorname{E}[y \mid
    \eta], \\
    -\frac{\mathrm d}{\mathrm d \eta} \log P(y \mid \eta) &= \operatorname{E}[y \mid \eta] - y .
    \end{aligned}
    $$ (eq-grad-family)
    """
    eta = sympy.symbols("eta", real=True)
    weights, outcomes = sympy.symbols("h1:5", positive=True), (-2, 0, 1, 5)
    pairs = list(zip(weights, outcomes, strict=True))
    total = sum(h * sympy.exp(eta * y) for h, y in pairs)
    a = sympy.log(total)
    probability = {y: h * sympy.exp(eta * y - a) for h, y in pairs}
    assert sympy.simplify(sum(probability.values())) == 1
    mean = sum(y * p for y, p in probability.items())
    # wrong: sum(y * h * sympy.exp(eta * y) for h, y in pairs) -> sum(h * sympy.exp(eta * y) for h, y in pairs)
    third = sum(y * h * sympy.exp(eta * y) for h, y in pairs) / total
    assert sympy.simplify(sympy.diff(a, eta) - third) == 0
    assert sympy.simplify(mean - third) == 0
    for y, p in probability.items():
        slope = -sympy.diff(sympy.expand_log(sympy.log(p), force=True), eta)
        assert sympy.simplify(slope - (mean - y)) == 0
        assert sympy.simplify(slope - (y - mean)) != 0


@pytest.mark.equation("eq-grad-four", by="reference")
def test_four_losses_and_their_gradients(worst_error: Any) -> None:
    r"""Against SciPy's distributions, given by their means: the loss up to a constant, the gradient by differences.

    $$
    \begin{aligned}
    &\text{Gaussian} && \tfrac12 (\eta - y)^2 + c && \eta - y \\
    &\text{Bernoulli} && \log(1 + e^{\eta}) - \eta\, y && \sigma(\eta) - y \\
    &\text{categorical} && \operatorname{lse}(\eta) - \eta \cdot y && p - y \\
    &\text{Poisson} && e^{\eta} - \eta\, y + c && e^{\eta} - y
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


def jacobian(p: Array) -> Array:
    """J_ji = p_j (delta_ij - p_i)."""
    delta = np.eye(len(p))
    # wrong[eq-grad-jacobian]: p[i] -> p[j]
    return np.array([[p[j] * (delta[i, j] - p[i]) for i in range(len(p))] for j in range(len(p))])


@pytest.mark.equation("eq-grad-jacobian", by="reference")
def test_the_jacobian_is_autograds(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    J_{ji} &= \frac{\partial p_j}{\partial z_i} = p_j (\delta_{ij} - p_i), \\
    J &= \operatorname{diag}(p) - p\, p^\top = J^\top, \\
    J\, \mathbf 1 &= 0 .
    \end{aligned}
    $$ (eq-grad-jacobian)
    """
    rows, _ = random_rows(0, (5, 6))
    for row in rows:
        p = torch.softmax(torch.tensor(row), 0).numpy()
        expected = torch.autograd.functional.jacobian(lambda z: torch.softmax(z, 0), torch.tensor(row))
        worst_error(jacobian(p), expected, atol=1e-15, why=ROUNDING)
        worst_error(np.diag(p) - np.outer(p, p), expected, atol=1e-15, why=ROUNDING)
        worst_error(expected, expected.T, atol=1e-15, why=ROUNDING)
        worst_error(expected @ torch.ones(6, dtype=torch.float64), np.zeros(6), atol=1e-15, why=ROUNDING)
        assert np.abs(np.diag(p) + np.outer(p, p) - expected.numpy()).max() > 0.1


# ----------------------------------------------------------------------------------------- the gradient


@pytest.mark.equation("eq-grad-chain", by="symbolic")
def test_each_step_of_the_chain_for_any_target() -> None:
    r"""
    $$
    \begin{aligned}
    \frac{\partial \ell}{\partial z_i}
    &= \sum_{j=1}^{K} \frac{\partial \ell}{\partial p_j} \frac{\partial p_j}{\partial z_i} \\
    &= \sum_{j=1}^{K} \left(-\frac{t_j}{p_j}\right) p_j (\delta_{ij} - p_i) \\
    &= -t_i + p_i \sum_{j=1}^{K} t_j .
    \end{aligned}
    $$ (eq-grad-chain)
    """
    loss = -sum(t * sympy.log(p) for t, p in zip(T, P, strict=True))
    for i in range(3):
        derivative = sympy.diff(loss, Z[i])
        # wrong: P[i] * sum(T) -> P[i]
        steps = [
            sum(-T[j] / P[j] * sympy.diff(P[j], Z[i]) for j in range(3)),
            sum((-T[j] / P[j]) * P[j] * (int(i == j) - P[i]) for j in range(3)),
            -T[i] + P[i] * sum(T),
        ]
        for step in steps:
            assert vanishes(derivative - step)
        assert not vanishes(derivative - (P[i] - T[i])), "sum(t) = 1 was not used yet"


@pytest.mark.equation("eq-grad-residual", by="symbolic")
def test_the_gradient_is_the_residual_if_the_targets_sum_to_one() -> None:
    r"""
    $$
    \begin{aligned}
    \frac{\partial \ell}{\partial z_i} &= p_i - t_i, \qquad \nabla_z\, \ell = p - t, \\
    \sum_{i=1}^{K} \frac{\partial \ell}{\partial z_i} &= 0 .
    \end{aligned}
    $$ (eq-grad-residual)
    """
    t = [T[0], T[1], 1 - T[0] - T[1]]
    loss = -sum(a * sympy.log(p) for a, p in zip(t, P, strict=True))
    gradient = [sympy.diff(loss, z) for z in Z]
    for i in range(3):
        # wrong: P[i] - t[i] -> P[i] + t[i]
        assert vanishes(gradient[i] - (P[i] - t[i]))
        assert not vanishes(gradient[i] - (t[i] - P[i]))
    assert vanishes(sum(gradient))


@pytest.mark.equation("eq-grad-lse", by="symbolic")
def test_softmax_is_the_gradient_of_log_sum_exp() -> None:
    r"""
    $$
    \begin{aligned}
    \frac{\partial}{\partial z_i} \operatorname{lse}(z) &= \frac{e^{z_i}}{\sum_l e^{z_l}} = p_i, \\
    \frac{\partial}{\partial z_i} (-z_y) &= -[i = y] .
    \end{aligned}
    $$ (eq-grad-lse)
    """
    for i in range(3):
        # wrong: sympy.log(SIGMA) -> SIGMA
        assert vanishes(sympy.diff(sympy.log(SIGMA), Z[i]) - sympy.exp(Z[i]) / SIGMA)
        for y in range(3):
            assert sympy.diff(-Z[y], Z[i]) == -int(i == y)
            # The two parts make up the derivative of -log p_y.
            assert vanishes(sympy.diff(-sympy.log(P[y]), Z[i]) - (sympy.exp(Z[i]) / SIGMA - int(i == y)))


@pytest.mark.equation("eq-grad-complement", by="reference")
def test_the_complement_keeps_its_digits(worst_error: Any) -> None:
    r"""
    $$
    p_y - 1 = -\frac{\sum_{j \ne y} e^{z_j - m}}{\sum_{j} e^{z_j - m}} ,
    $$ (eq-grad-complement)
    """
    rng = np.random.default_rng(1)
    for scale in (1.0, 10.0, 40.0):
        row = rng.normal(scale=scale, size=5)
        for y in range(5):
            e = np.exp(row - row.max())
            # wrong: -np.delete(e, y).sum() -> np.delete(e, y).sum()
            printed = -np.delete(e, y).sum() / e.sum()
            with mpmath.workdps(200):
                exact = [mpmath.exp(mpmath.mpf(z)) for z in row]
                expected = exact[y] / mpmath.fsum(exact) - 1
            worst_error(printed, expected, rtol=5e-14, why="the rounding of z - m, which exp magnifies")


@pytest.mark.equation("eq-grad-mean", by="reference")
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_weights_and_smoothing(smoothing: float, worst_error: Any) -> None:
    r"""Against autograd on the weighted mean as defined, with the smoothed loss written as a mixture.

    $$
    \begin{aligned}
    \mathcal L &= \frac{\sum_n w_n\, \ell_n}{\sum_n w_n}, \\
    \frac{\partial \mathcal L}{\partial z_{n,k}} &= \frac{w_n}{\sum_m w_m} (p_{n,k} - t_{n,k}), \\
    t_{n,k} &= (1 - \varepsilon)\,[k = y_n] + \frac{\varepsilon}{K} .
    \end{aligned}
    $$ (eq-grad-mean)
    """
    rows, labels = random_rows(2, (7, 4))
    by_class = np.array([0.5, 1.0, 3.0, 0.0])
    w = by_class[labels]

    def loss(z: torch.Tensor) -> torch.Tensor:
        each = [
            (1 - smoothing) * F.cross_entropy(row, torch.tensor(y))
            + smoothing * torch.stack([F.cross_entropy(row, torch.tensor(k)) for k in range(4)]).mean()
            for row, y in zip(z, labels, strict=True)
        ]
        return (torch.tensor(w) * torch.stack(each)).sum() / w.sum()

    p = torch.softmax(torch.tensor(rows), 1).numpy()
    bracket = np.arange(4) == labels[:, None]
    t = (1 - smoothing) * bracket + smoothing / 4
    # wrong: w.sum() -> len(w)
    printed = w[:, None] / w.sum() * (p - t)
    expected = autograd(loss, rows)
    worst_error(printed, expected, atol=1e-15, why=ROUNDING)
    assert np.abs(printed * w.sum() / len(w) - expected).max() > 1e-3, "the divisor is sum(w), not N"
    if smoothing:
        spread_over_others = (1 - smoothing) * bracket + smoothing / 3 * ~bracket
        wrong = w[:, None] / w.sum() * (p - spread_over_others)
        assert np.abs(wrong - expected).max() > 1e-3


@pytest.mark.equation("eq-grad-smoothed-gap", by="framework")
def test_torch_comes_to_rest_at_the_gap(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    z_y - z_k &= \log \frac{t_y}{t_k} \\
    &= \log\left(1 + \frac{K (1 - \varepsilon)}{\varepsilon}\right) .
    \end{aligned}
    $$ (eq-grad-smoothed-gap)
    """
    for classes, smoothing in [(2, 0.3), (10, 0.1), (50, 0.02)]:
        # wrong: 1 + classes * (1 - smoothing) / smoothing -> classes * (1 - smoothing) / smoothing
        gap = np.log(1 + classes * (1 - smoothing) / smoothing)
        t_y, t_k = 1 - smoothing + smoothing / classes, smoothing / classes
        worst_error(gap, np.log(t_y / t_k), rtol=1e-14, why=ROUNDING)

        def gradient(distance: float, classes: int = classes, smoothing: float = smoothing) -> Array:
            row = np.r_[distance, np.zeros(classes - 1)]
            return autograd(lambda z: F.cross_entropy(z, torch.tensor(0), label_smoothing=smoothing), row)

        worst_error(
            gradient(gap), np.zeros(classes), atol=1e-14, why="a sum of fifty exponentials in float64"
        )
        assert gradient(gap + 0.01)[0] > 0 > gradient(gap - 0.01)[0]


@pytest.mark.equation("eq-grad-layer", by="reference")
def test_the_layer_is_autograds(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    \frac{\partial \mathcal L}{\partial W} &= \sum_n g_n\, x_n^\top = G^\top X, \\
    \frac{\partial \mathcal L}{\partial b} &= \sum_n g_n = G^\top \mathbf 1, \\
    \frac{\partial \mathcal L}{\partial x_n} &= W^\top g_n .
    \end{aligned}
    $$ (eq-grad-layer)
    """
    rng = np.random.default_rng(3)
    W, b, X = rng.normal(size=(3, 4)), rng.normal(size=3), rng.normal(size=(5, 4))
    labels = torch.tensor(rng.integers(0, 3, size=5))
    w, c, x = (torch.tensor(a, requires_grad=True) for a in (W, b, X))
    z = x @ w.T + c
    of_w, of_b, of_x, of_z = torch.autograd.grad(F.cross_entropy(z, labels), (w, c, x, z))
    G = of_z.numpy()
    worst_error(sum(np.outer(g, a) for g, a in zip(G, X, strict=True)), of_w, atol=1e-15, why=ROUNDING)
    worst_error(G.T @ X, of_w, atol=1e-15, why=ROUNDING)
    worst_error(sum(G), of_b, atol=1e-15, why=ROUNDING)
    # wrong: np.ones(5) -> np.ones(5) / 5
    worst_error(G.T @ np.ones(5), of_b, atol=1e-15, why=ROUNDING)
    worst_error([W.T @ g for g in G], of_x, atol=1e-15, why=ROUNDING)


@pytest.mark.equation("eq-grad-vjp", by="reference")
def test_the_product_without_the_matrix_is_autograds(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    J^\top v &= \operatorname{diag}(p)\, v - p\, (p^\top v) \\
    &= p \odot (v - p^\top v\, \mathbf 1) .
    \end{aligned}
    $$ (eq-grad-vjp)
    """
    rows, _ = random_rows(4, (5, 6))
    v = np.random.default_rng(5).normal(size=6)
    for row in rows:
        p = torch.softmax(torch.tensor(row), 0).numpy()
        expected = autograd(lambda z: torch.softmax(z, 0) @ torch.tensor(v), row)
        # wrong: np.diag(p) @ v - p * (p @ v) -> np.diag(p) @ v + p * (p @ v)
        worst_error(np.diag(p) @ v - p * (p @ v), expected, atol=1e-15, why=ROUNDING)
        worst_error(p * (v - p @ v * np.ones(6)), expected, atol=1e-15, why=ROUNDING)
        assert np.abs(p * (1 - p) * v - expected).max() > 1e-3


# ------------------------------------------------------------------------------------- gradient checking


@pytest.mark.equation("eq-grad-central", by="symbolic")
def test_taylors_terms_of_the_differences() -> None:
    r"""
    $$
    \begin{aligned}
    \frac{f(h) - f(-h)}{2h} &= f'(0) + \frac{h^2}{6} f'''(0) \\
    &\quad + O(h^4), \\
    \frac{f(h) - f(0)}{h} &= f'(0) + \frac{h}{2} f''(0) \\
    &\quad + O(h^2) .
    \end{aligned}
    $$ (eq-grad-central)
    """
    h = sympy.Symbol("h")
    c = sympy.symbols("c0:6")

    def f(x: Any) -> Any:
        """A function with arbitrary derivatives c_k at 0."""
        return sum(c[k] * x**k / sympy.factorial(k) for k in range(6))

    central = sympy.expand((f(h) - f(-h)) / (2 * h))
    # wrong: h**2 / 6 -> h**2 / 2
    left = sympy.expand(central - (c[1] + h**2 / 6 * c[3]))
    assert all(power[0] >= 4 for power, _ in sympy.Poly(left, h).terms())
    one_sided = sympy.expand((f(h) - f(0)) / h - (c[1] + h / 2 * c[2]))
    assert all(power[0] >= 2 for power, _ in sympy.Poly(one_sided, h).terms())


@pytest.mark.equation("eq-grad-best-step", by="symbolic")
def test_the_best_step_minimises_the_sum_of_both_errors() -> None:
    r"""
    $$
    \begin{aligned}
    E(h) &= \frac{h^2}{6} \lvert f''' \rvert + \frac{u \lvert f \rvert}{h}, \\
    h^* &= \left(\frac{3 u \lvert f \rvert}{\lvert f''' \rvert}\right)^{1/3}, \\
    E(h^*) &= \tfrac12 \bigl(3 u \lvert f \rvert\bigr)^{2/3} \lvert f''' \rvert^{1/3} .
    \end{aligned}
    $$ (eq-grad-best-step)
    """
    h, u, f, third = sympy.symbols("h u f third", positive=True)
    error = h**2 / 6 * third + u * f / h
    # wrong: 3 * u -> u
    best = (3 * u * f / third) ** sympy.Rational(1, 3)
    least = (3 * u * f) ** sympy.Rational(2, 3) * third ** sympy.Rational(1, 3) / 2
    assert sympy.simplify(sympy.diff(error, h).subs(h, best)) == 0
    assert sympy.diff(error, h, 2).is_positive, "one minimum"
    assert sympy.simplify(error.subs(h, best) - least) == 0


@pytest.mark.equation("eq-grad-best-step", by="property")
def test_the_error_model_bounds_what_is_measured_and_is_reached() -> None:
    r"""On exp at 1, whose derivatives are all known: below the model at every step, near it at the best.

    $$
    \begin{aligned}
    E(h) &= \frac{h^2}{6} \lvert f''' \rvert + \frac{u \lvert f \rvert}{h}, \\
    h^* &= \left(\frac{3 u \lvert f \rvert}{\lvert f''' \rvert}\right)^{1/3}, \\
    E(h^*) &= \tfrac12 \bigl(3 u \lvert f \rvert\bigr)^{2/3} \lvert f''' \rvert^{1/3} .
    \end{aligned}
    $$ (eq-grad-best-step)
    """
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


@pytest.mark.equation("eq-grad-hessian", by="reference")
def test_the_hessian_is_autograds_for_hard_and_soft_targets(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    H &= \nabla_z^2\, \ell = \frac{\partial (p - t)}{\partial z} \\
    &= \operatorname{diag}(p) - p\, p^\top .
    \end{aligned}
    $$ (eq-grad-hessian)
    """
    rows, _ = random_rows(6, (4, 5))
    soft = np.random.default_rng(7).dirichlet(np.ones(5))
    for row, target in itertools.product(rows, [*np.eye(5), soft]):
        p = torch.softmax(torch.tensor(row), 0).numpy()
        expected = torch.autograd.functional.hessian(
            lambda z, target=target: F.cross_entropy(z, torch.tensor(target)), torch.tensor(row)
        )
        # wrong: np.diag(p) - np.outer(p, p) -> np.diag(p) + np.outer(p, p)
        worst_error(np.diag(p) - np.outer(p, p), expected, atol=1e-15, why=ROUNDING)


@pytest.mark.equation("eq-grad-variance", by="symbolic")
def test_the_quadratic_form_is_a_variance() -> None:
    r"""
    $$
    \begin{aligned}
    x^\top H x &= \sum_k p_k x_k^2 - \Bigl(\sum_k p_k x_k\Bigr)^2 \\
    &= \operatorname{Var}_p(x) \ge 0 .
    \end{aligned}
    $$ (eq-grad-variance)
    """
    x = sympy.symbols("x1:4", real=True)
    p = sympy.symbols("p1:3", positive=True)
    p = (*p, 1 - p[0] - p[1])
    H = sympy.diag(*p) - sympy.Matrix(p) * sympy.Matrix(p).T
    form = (sympy.Matrix(x).T * H * sympy.Matrix(x))[0, 0]
    mean = sum(a * b for a, b in zip(p, x, strict=True))
    # wrong: mean**2 -> mean
    printed = sum(a * b**2 for a, b in zip(p, x, strict=True)) - mean**2
    variance = sum(a * (b - mean) ** 2 for a, b in zip(p, x, strict=True))
    assert sympy.expand(form - printed) == 0
    assert sympy.expand(form - variance) == 0


@pytest.mark.equation("eq-grad-variance", by="property")
def test_the_hessian_is_semidefinite_of_rank_k_minus_one() -> None:
    r"""
    $$
    \begin{aligned}
    x^\top H x &= \sum_k p_k x_k^2 - \Bigl(\sum_k p_k x_k\Bigr)^2 \\
    &= \operatorname{Var}_p(x) \ge 0 .
    \end{aligned}
    $$ (eq-grad-variance)
    """
    rows, _ = random_rows(8, (200, 5), scale=1.5)
    for p in xent.softmax(rows):
        eigenvalues = np.linalg.eigvalsh(np.diag(p) - np.outer(p, p))
        assert abs(eigenvalues[0]) < 1e-15 < eigenvalues[1]


def predictions() -> list[Array]:
    """Many distributions: flat, peaked, with two leading classes, with impossible ones."""
    rng = np.random.default_rng(9)
    some = [rng.dirichlet(np.full(k, a)) for k in (2, 3, 7) for a in (0.05, 0.5, 5.0) for _ in range(100)]
    half = [np.array([0.5, 0.5]), np.array([0.5, 0.5, 0.0, 0.0]), np.array([1.0, 0.0]), np.full(4, 0.25)]
    return [*some, *half]


@pytest.mark.equation("eq-grad-curvature", by="property")
def test_both_bounds_hold_and_are_reached() -> None:
    r"""
    $$
    \begin{aligned}
    \operatorname{Var}_p(x) &\le \tfrac14 \bigl(\max_k x_k - \min_k x_k\bigr)^2 \\
    &\le \tfrac12 \lVert x \rVert^2, \\
    \lambda_{\max}(H) &\le \min\bigl(\tfrac12,\ \max_k p_k\bigr) .
    \end{aligned}
    $$ (eq-grad-curvature)
    """
    rng = np.random.default_rng(10)
    tightest = {"half": 0.0, "max p": 0.0}
    for p in predictions():
        H = np.diag(p) - np.outer(p, p)
        largest, vectors = np.linalg.eigvalsh(H)[-1], np.linalg.eigh(H)[1].T
        # wrong: 1 / 2 -> 1 / 4
        assert largest <= min(1 / 2, p.max()) + 1e-15
        tightest["half"] = max(tightest["half"], largest / 0.5)
        for x in [*vectors, *rng.normal(size=(5, len(p)))]:
            variance = p @ (x - p @ x) ** 2
            span = x.max() - x.min()
            assert variance <= span**2 / 4 + 1e-15
            assert span**2 / 4 <= x @ x / 2 + 1e-15
    assert tightest["half"] > 1 - 1e-12, "no smaller constant than 1/2 would do"
    # For the other bound: p = (1/2, 1/2) attains it as well, and no other bound a max(p), a < 1, would do.
    p = np.array([0.5, 0.5])
    assert np.isclose(np.linalg.eigvalsh(np.diag(p) - np.outer(p, p))[-1], p.max(), rtol=1e-14)
    # And each step of the chain is an equality there.
    x = np.array([1.0, -1.0])
    assert p @ (x - p @ x) ** 2 == (x.max() - x.min()) ** 2 / 4 == x @ x / 2


@pytest.mark.equation("eq-grad-bound", by="property")
def test_the_gradient_is_shorter_than_the_root_of_two() -> None:
    r"""
    $$
    \begin{aligned}
    \lVert p - t \rVert_2^2 &= (1 - p_y)^2 + \sum_{k \ne y} p_k^2 \\
    &\le 2\, (1 - p_y)^2 < 2 .
    \end{aligned}
    $$ (eq-grad-bound)
    """
    rows, labels = random_rows(11, (5000, 6), scale=8.0)
    # In float64 a hopeless case rounds to the bound itself, so it is left out.
    gradient = gradients.cross_entropy_gradient(rows, labels, reduction="none")
    p = xent.softmax(rows)
    at_label = p[np.arange(5000), labels]
    others = (p**2).sum(axis=1) - at_label**2
    # wrong: (1 - at_label) ** 2 -> at_label**2
    printed = (1 - at_label) ** 2 + others
    measured = (gradient**2).sum(axis=1)
    np.testing.assert_allclose(printed, measured, rtol=1e-9, atol=1e-15)
    resolved = at_label > 1e-12
    assert resolved.sum() > 3000
    assert (measured[resolved] < 2).all()
    assert (measured <= 2 * (1 - at_label) ** 2 + 1e-15).all()
    assert measured.max() > 2 - 1e-6, "no smaller bound would do"
    # With two classes the middle of the chain is the square itself.
    two = gradients.cross_entropy_gradient(rows[:, :2], np.zeros(5000, int), reduction="none")
    np.testing.assert_allclose(
        (two**2).sum(axis=1), 2 * (1 - xent.softmax(rows[:, :2])[:, 0]) ** 2, atol=1e-15
    )


@pytest.mark.equation("eq-grad-lipschitz", by="property")
def test_softmax_is_half_lipschitz_and_no_less() -> None:
    r"""
    $$
    \begin{aligned}
    &\lVert \operatorname{softmax}(a) - \operatorname{softmax}(b) \rVert_2 \\
    &\qquad \le \tfrac12 \lVert a - b \rVert_2 .
    \end{aligned}
    $$ (eq-grad-lipschitz)
    """
    rng = np.random.default_rng(12)
    worst = 0.0
    for classes, near in itertools.product((2, 3, 20), (1e-4, 0.3, 10.0)):
        a = rng.normal(scale=2.0, size=(20_000, classes))
        b = a + near * rng.normal(size=a.shape)
        rise = np.linalg.norm(xent.softmax(a) - xent.softmax(b), axis=1)
        run = np.linalg.norm(a - b, axis=1)
        # wrong: 0.5 -> 0.25
        assert (rise <= 0.5 * run + 1e-15).all()
        worst = max(worst, float((rise / run).max()))
    assert worst > 0.4999
    # Two leading classes of many approach the constant too.
    a = np.r_[1e-3, -1e-3, np.full(8, -50.0)]
    b = np.r_[-1e-3, 1e-3, np.full(8, -50.0)]
    quotient = np.linalg.norm(xent.softmax(a) - xent.softmax(b)) / np.linalg.norm(a - b)
    assert 0.499999 < quotient <= 0.5


# --------------------------------------------------------------------------------------- squared error


@pytest.mark.equation("eq-grad-mse", by="reference")
def test_squared_error_keeps_the_jacobian(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    \nabla_z \lVert p - t \rVert^2 &= 2 J (p - t) \\
    &= 2\, p \odot \bigl(r - p^\top r\, \mathbf 1\bigr) .
    \end{aligned}
    $$ (eq-grad-mse)
    """
    rows, _ = random_rows(13, (5, 4))
    t = np.array([0.1, 0.2, 0.7, 0.0])
    for row in rows:
        expected = autograd(lambda z: ((torch.softmax(z, 0) - torch.tensor(t)) ** 2).sum(), row)
        p = torch.softmax(torch.tensor(row), 0).numpy()
        J = np.diag(p) - np.outer(p, p)
        # wrong: 2 * J -> J
        worst_error(2 * J @ (p - t), expected, atol=1e-15, why=ROUNDING)
        worst_error(2 * p * ((p - t) - p @ (p - t) * np.ones(4)), expected, atol=1e-15, why=ROUNDING)
        assert np.abs(2 * (p - t) - expected).max() > 1e-2


@pytest.mark.equation("eq-grad-margin", by="reference")
def test_both_pulls_against_autograd(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    \lVert \nabla \mathrm{CE} \rVert &= \sqrt2\, (1 - s), \\
    \lVert \nabla \mathrm{MSE} \rVert &= 4 \sqrt2\, (1 - s)^2\, s, \\
    s &= \sigma(-m) .
    \end{aligned}
    $$ (eq-grad-margin)
    """
    for margin in (-8.0, -1.0, 0.0, float(np.log(2)), 3.0, 10.0, 20.0):
        row, t = np.array([0.0, margin]), torch.tensor([1.0, 0.0], dtype=torch.float64)
        s = 1 / (1 + np.exp(margin))
        of_ce = autograd(lambda z, t=t: F.cross_entropy(z, t), row)
        of_mse = autograd(lambda z, t=t: ((torch.softmax(z, 0) - t) ** 2).sum(), row)
        worst_error(np.sqrt(2) * (1 - s), np.linalg.norm(of_ce), atol=2e-15, why=ROUNDING)
        # wrong: 4 * np.sqrt(2) * (1 - s) ** 2 * s -> 4 * np.sqrt(2) * (1 - s) ** 2
        worst_error(4 * np.sqrt(2) * (1 - s) ** 2 * s, np.linalg.norm(of_mse), atol=2e-15, why=ROUNDING)


@pytest.mark.equation("eq-grad-escape", by="reference")
def test_the_times_against_quadrature(worst_error: Any) -> None:
    r"""Integrate 1 / rate, with the rate of the margin from autograd and not from the chapter.

    $$
    \begin{aligned}
    T_{\mathrm{CE}} &= \frac{m + 1 - e^{-m}}{2}, \\
    T_{\mathrm{MSE}} &= \tfrac18 \bigl(e^{m} + 3m + \tfrac52 \\
    &\qquad - 3 e^{-m} - \tfrac12 e^{-2m}\bigr) .
    \end{aligned}
    $$ (eq-grad-escape)
    """

    def rate(margin: float, loss: Any) -> float:
        gradient = autograd(loss, np.array([0.0, margin]))
        return float(gradient[1] - gradient[0])

    t = torch.tensor([1.0, 0.0], dtype=torch.float64)
    for m in (0.5, 2.0, 6.0, 10.0):
        # wrong: m + 1 - np.exp(-m) -> m + 1 + np.exp(-m)
        printed = (
            (m + 1 - np.exp(-m)) / 2,
            (np.exp(m) + 3 * m + 5 / 2 - 3 * np.exp(-m) - np.exp(-2 * m) / 2) / 8,
        )
        losses = (
            lambda z: F.cross_entropy(z, t),
            lambda z: ((torch.softmax(z, 0) - t) ** 2).sum(),
        )
        expected = [
            scipy.integrate.quad(lambda x, loss=loss: 1 / rate(x, loss), 0, m, epsrel=1e-11)[0]
            for loss in losses
        ]
        worst_error(printed, expected, rtol=1e-9, why="the tolerance of the quadrature")


# ------------------------------------------------------------------------------------------- step size


@pytest.mark.equation("eq-grad-descent", by="property")
def test_the_curvature_bound_and_the_descent_it_promises() -> None:
    r"""
    $$
    \begin{aligned}
    L &= \frac{\lambda_{\max}(X^\top X)}{2N}, \\
    f(\theta - \eta g) &\le f(\theta) \\
    &\quad - \eta \left(1 - \frac{\eta L}{2}\right) \lVert g \rVert^2 .
    \end{aligned}
    $$ (eq-grad-descent)
    """
    rng = np.random.default_rng(14)
    X = rng.normal(size=(30, 3)) * [1.0, 4.0, 0.3]
    y = rng.integers(0, 4, size=30)
    N, K = 30, 4
    L = np.linalg.eigvalsh(X.T @ X)[-1] / (2 * N)

    def f(theta: Array) -> float:
        return float(F.cross_entropy(torch.tensor(X @ theta.T), torch.tensor(y)))

    def torch_f(flat: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(torch.tensor(X) @ flat.reshape(K, 3).T, torch.tensor(y))

    for scale in (0.0, 0.3, 3.0):
        theta = rng.normal(scale=scale, size=(K, 3)) if scale else np.zeros((K, 3))
        H = torch.autograd.functional.hessian(torch_f, torch.tensor(theta.ravel())).numpy()
        assert np.linalg.eigvalsh(H)[-1] <= L + 1e-12
        gradient = autograd(torch_f, theta.ravel()).reshape(K, 3)
        for factor in (0.1, 1.0, 1.9, 2.0, 5.0):
            eta = factor / L
            bound = f(theta) - eta * (1 - eta * L / 2) * (gradient**2).sum()
            assert f(theta - eta * gradient) <= bound + 1e-12


@pytest.mark.equation("eq-grad-descent", by="property")
def test_the_curvature_bound_is_sharp_for_coin_tosses() -> None:
    r"""At p = (1/2, 1/2) the Hessian's largest eigenvalue is L itself, so a smaller L would be wrong.

    $$
    \begin{aligned}
    L &= \frac{\lambda_{\max}(X^\top X)}{2N}, \\
    f(\theta - \eta g) &\le f(\theta) \\
    &\quad - \eta \left(1 - \frac{\eta L}{2}\right) \lVert g \rVert^2 .
    \end{aligned}
    $$ (eq-grad-descent)
    """
    X = np.random.default_rng(15).normal(size=(20, 3)) * [1.0, 2.0, 0.5]
    A, y = np.vstack([X, X]), torch.tensor(np.repeat([0, 1], 20))
    L = np.linalg.eigvalsh(A.T @ A)[-1] / (2 * len(A))

    def f(flat: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(torch.tensor(A) @ flat.reshape(2, 3).T, y)

    H = torch.autograd.functional.hessian(f, torch.zeros(6, dtype=torch.float64)).numpy()
    assert np.isclose(np.linalg.eigvalsh(H)[-1], L, rtol=1e-12)
    # Along the direction of that curvature the promised descent is all there is, for small gradients.
    theta = 1e-2 * np.linalg.eigh(H)[1][:, -1]
    gradient = autograd(f, theta)
    for factor in (0.5, 1.0, 1.5, 1.9):
        eta = factor / L
        # wrong: eta * L / 2 -> eta * L
        promised = eta * (1 - eta * L / 2) * (gradient**2).sum()
        descent = f(torch.tensor(theta)) - f(torch.tensor(theta - eta * gradient))
        assert np.isclose(descent, promised, rtol=1e-2)
