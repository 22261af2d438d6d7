"""The equations of chapter 13, each as printed, against something that does not come from it."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import sympy as sp
import torch
import torch.nn.functional as F
from scipy.optimize import minimize

from xent.distillation import distillation_loss, mixed_loss

ROUNDING = "a few roundings in float64"
OPTIMISER = "the optimiser's tolerance"
RNG = np.random.default_rng(13)
Z, V = RNG.normal(size=(2, 5))
TEACHERS = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.3, 0.3, 0.4]])


def softmax(x):
    e = np.exp(x - np.max(x))
    return e / e.sum()


@pytest.mark.equation("eq-kd-loss", by="framework")
def test_the_loss_is_pytorchs_with_its_factor(worst_error):
    r"""
    $$
    \begin{aligned}
    \ell_T(z, v) &= T^2 \sum_k p_k \log \frac{p_k}{q_k}, \\
    p &= \operatorname{softmax}(v / T), \\
    q &= \operatorname{softmax}(z / T).
    \end{aligned}
    $$ (eq-kd-loss)
    """
    for T in (0.5, 1.0, 4.0):
        p, q = softmax(V / T), softmax(Z / T)
        # wrong: T**2 -> T
        printed = T**2 * sum(p[k] * np.log(p[k] / q[k]) for k in range(5))
        z, v = torch.tensor(Z), torch.tensor(V)
        theirs = F.kl_div(F.log_softmax(z / T, -1), F.softmax(v / T, -1), reduction="sum") * T**2
        worst_error(printed, theirs, rtol=1e-12, why=ROUNDING)
        worst_error(distillation_loss(Z, V, temperature=T), printed, rtol=1e-12, why=ROUNDING)


@pytest.mark.equation("eq-kd-gradient", by="reference")
def test_the_gradient_is_autograds(worst_error):
    r"""
    $$
    \frac{\partial \ell_T}{\partial z_k} = T \, (q_k - p_k).
    $$ (eq-kd-gradient)
    """
    for T in (0.5, 1.0, 4.0):
        z, v = torch.tensor(Z, requires_grad=True), torch.tensor(V)
        loss = T**2 * F.kl_div(F.log_softmax(z / T, -1), F.softmax(v / T, -1), reduction="sum")
        (expected,) = torch.autograd.grad(loss, z)
        # wrong: T * (softmax(Z / T) - softmax(V / T)) -> (softmax(Z / T) - softmax(V / T)) / T
        printed = T * (softmax(Z / T) - softmax(V / T))
        worst_error(printed, expected, rtol=1e-11, atol=1e-14, why=ROUNDING)


def coefficients(z, k, x, most=2):
    """Taylor coefficients of softmax(z x)_k in x, the second at most."""
    q = sp.exp(z[k] * x) / sum(sp.exp(u * x) for u in z)
    return [sp.expand((sp.diff(q, x, n) / sp.factorial(n)).subs(x, 0)) for n in range(most + 1)]


@pytest.mark.equation("eq-kd-expansion", by="symbolic")
@pytest.mark.equation("eq-kd-rate", by="symbolic")
@pytest.mark.equation("eq-kd-limit-gradient", by="symbolic")
def test_the_expansion_the_limit_and_its_error():
    r"""
    $$
    q_k = \frac1K \Bigl( 1 + \frac{z_k}{T} + \frac{z_k^2 - m_z}{2 T^2} \Bigr) + O(T^{-3}).
    $$ (eq-kd-expansion)

    $$
    \begin{aligned}
    & T (q_k - p_k) = \frac{z_k - v_k}{K} \\
    &\quad + \frac{z_k^2 - v_k^2 - m_z + m_v}{2 K T} \\
    &\quad + O(T^{-2}).
    \end{aligned}
    $$ (eq-kd-rate)

    $$
    \lim_{T \to \infty} T (q_k - p_k) = \frac{d_k - \bar d}{K},
    $$ (eq-kd-limit-gradient)
    """
    x, a, b, c, d = sp.symbols("x a b c d")  # x = 1 / T
    K = 3
    z, v = [a, b, -a - b], [c, d, -c - d]  # centred
    m_z, m_v = (sum(u**2 for u in w) / K for w in (z, v))
    for k in range(K):
        q, p = coefficients(z, k, x), coefficients(v, k, x)
        # wrong[eq-kd-expansion]: z[k] ** 2 - m_z -> z[k] ** 2 + m_z
        printed = sp.Poly((1 + z[k] * x + (z[k] ** 2 - m_z) * x**2 / 2) / K, x)
        for n in range(3):
            assert sp.expand(q[n] - printed.coeff_monomial(x**n)) == 0
        assert sp.expand(q[2] - (z[k] ** 2 + m_z) / (2 * K)) != 0
        # T (q - p) = (q - p) / x: the coefficients move down by one.
        assert q[0] - p[0] == 0
        # wrong[eq-kd-limit-gradient]: (z[k] - v[k]) / K -> (z[k] - v[k])
        assert sp.expand(q[1] - p[1] - (z[k] - v[k]) / K) == 0
        # wrong[eq-kd-rate]: z[k] ** 2 - v[k] ** 2 - m_z + m_v -> z[k] ** 2 - v[k] ** 2 + m_z - m_v
        rate = (z[k] ** 2 - v[k] ** 2 - m_z + m_v) / (2 * K)
        assert sp.expand(q[2] - p[2] - rate) == 0
        # Logits that are not centred: the mean of d comes off.
        z2, v2 = [u + 2 for u in z], [u - 5 for u in v]
        gap = [s - t for s, t in zip(z2, v2, strict=True)]
        slope = coefficients(z2, k, x, 1)[1] - coefficients(v2, k, x, 1)[1]
        assert sp.expand(slope - (gap[k] - sum(gap) / K) / K) == 0


@pytest.mark.equation("eq-kd-limit-loss", by="reference")
def test_the_limit_of_the_loss(worst_error):
    r"""
    $$
    \lim_{T \to \infty} \ell_T(z, v) = \frac{1}{2K} \sum_k (d_k - \bar d)^2.
    $$ (eq-kd-limit-loss)
    """
    with mpmath.workdps(60):
        T = mpmath.mpf(10) ** 18
        logs = []
        for row in (V, Z):
            u = [mpmath.mpf(float(x)) / T for x in row]
            total = mpmath.log(mpmath.fsum(map(mpmath.exp, u)))
            logs.append([x - total for x in u])
        exact = T**2 * mpmath.fsum(mpmath.exp(a) * (a - b) for a, b in zip(*logs, strict=True))
    d = Z - V
    # wrong: (d - d.mean()) ** 2 -> d**2
    printed = sum((d - d.mean()) ** 2) / (2 * 5)
    worst_error(printed, float(exact), rtol=1e-13, why="the error of order 1/T, and rounding")


@pytest.mark.equation("eq-kd-mixture", by="framework")
def test_the_mixture_is_pytorchs(worst_error):
    r"""
    $$
    \begin{aligned}
    \ell ={}& (1 - \alpha) \bigl( -\log \operatorname{softmax}(z)_y \bigr) \\
    &+ \alpha \, \ell_T(z, v).
    \end{aligned}
    $$ (eq-kd-mixture)
    """
    T, alpha, y = 3.0, 0.3, 2
    z, v = torch.tensor(Z), torch.tensor(V)
    soft = T**2 * F.kl_div(F.log_softmax(z / T, -1), F.softmax(v / T, -1), reduction="sum")
    theirs = (1 - alpha) * F.cross_entropy(z, torch.tensor(y)) + alpha * soft
    p, q = softmax(V / T), softmax(Z / T)
    # wrong: (1 - alpha) * -np.log(softmax(Z)[y]) + alpha -> alpha * -np.log(softmax(Z)[y]) + (1 - alpha)
    printed = (1 - alpha) * -np.log(softmax(Z)[y]) + alpha * T**2 * (p * np.log(p / q)).sum()
    worst_error(printed, theirs, rtol=1e-12, why=ROUNDING)
    worst_error(mixed_loss(Z, V, y, alpha=alpha, temperature=T), theirs, rtol=1e-12, why=ROUNDING)


@pytest.mark.equation("eq-kd-readout", by="reference")
def test_the_readout_of_a_trained_student(worst_error):
    r"""
    $$
    \operatorname{softmax}(z)_k = \frac{P_k^{\,T}}{\sum_j P_j^{\,T}}.
    $$ (eq-kd-readout)
    """
    P = np.array([0.5, 0.3, 0.2])
    for T in (0.5, 2.0, 3.0):
        fit = minimize(lambda z, T=T: -P @ np.log(softmax(z / T)), np.zeros(3), tol=1e-13)
        # wrong: P**T / sum(P**T) -> P ** (1 / T) / sum(P ** (1 / T))
        printed = P**T / sum(P**T)
        worst_error(softmax(fit.x), printed, atol=1e-5, why=OPTIMISER)
        assert np.abs(softmax(fit.x) - P ** (1 / T) / sum(P ** (1 / T))).max() > 0.05


@pytest.mark.equation("eq-kd-consistent", by="property")
def test_one_teacher_is_met_exactly_or_not_at_all():
    r"""
    $$
    \begin{aligned}
    & \ell_T(z, v) = 0 \\
    &\iff z_k - v_k = c \ \text{for all } k \\
    &\iff \operatorname{softmax}(z) = \operatorname{softmax}(v).
    \end{aligned}
    $$ (eq-kd-consistent)
    """
    for T in (0.5, 1.0, 8.0):
        # wrong: V + 3.7 -> V * 3.7
        shifted = V + 3.7
        assert distillation_loss(shifted, V, temperature=T) < 1e-25
        np.testing.assert_allclose(softmax(shifted), softmax(V), rtol=1e-13)
        for k in range(5):
            other = V.copy()
            other[k] += 1e-3
            assert distillation_loss(other, V, temperature=T) > 1e-9
            assert np.abs(softmax(other) - softmax(V)).max() > 1e-6


def best(loss):
    return softmax(minimize(lambda z: loss(softmax(z)), np.zeros(3), tol=1e-14).x)


def kl(p, q):
    return float((p * np.log(p / q)).sum())


@pytest.mark.equation("eq-kd-several", by="reference")
def test_several_teachers(worst_error):
    r"""
    $$
    \begin{aligned}
    \bar p_k &= \frac1M \sum_{i=1}^M \frac{(p^{(i)}_k)^{1/T}}{\sum_j (p^{(i)}_j)^{1/T}}, \\
    q_k &= \frac{\bar p_k^{\,T}}{\sum_j \bar p_j^{\,T}}.
    \end{aligned}
    $$ (eq-kd-several)
    """
    M = len(TEACHERS)
    for T in (0.7, 1.0, 2.0, 4.0):

        def loss(q, T=T):
            soft = q ** (1 / T) / sum(q ** (1 / T))
            return sum(kl(p ** (1 / T) / sum(p ** (1 / T)), soft) for p in TEACHERS)

        mean = sum(p ** (1 / T) / sum(p ** (1 / T)) for p in TEACHERS) / M
        student = best(loss)
        # The first line is the minimiser while it is soft, with its 1/M; the second at temperature one.
        worst_error(mean, student ** (1 / T) / sum(student ** (1 / T)), atol=1e-5, why=OPTIMISER)
        # wrong: mean**T / sum(mean**T) -> mean
        worst_error(mean**T / sum(mean**T), student, atol=1e-5, why=OPTIMISER)
    # The chapter's coin.
    two = np.array([[0.9, 0.1], [0.5, 0.5]])
    mean = sum(p**0.5 / sum(p**0.5) for p in two) / 2
    worst_error(mean[0] ** 2 / sum(mean**2), 25 / 34, rtol=1e-13, why=ROUNDING)


@pytest.mark.equation("eq-kd-geometric", by="reference")
def test_the_limit_is_the_geometric_mean(worst_error):
    r"""
    $$
    \lim_{T \to \infty} q_k = \frac{\prod_i (p^{(i)}_k)^{1/M}}{\sum_j \prod_i (p^{(i)}_j)^{1/M}}.
    $$ (eq-kd-geometric)
    """
    # wrong: np.prod(TEACHERS, axis=0) ** (1 / 3) -> np.sum(TEACHERS, axis=0) / 3
    product = np.prod(TEACHERS, axis=0) ** (1 / 3)
    printed = product / product.sum()
    with mpmath.workdps(60):
        T = mpmath.mpf(10) ** 20
        soft = [[mpmath.mpf(float(x)) ** (1 / T) for x in p] for p in TEACHERS]
        mean = [mpmath.fsum(row[k] / mpmath.fsum(row) for row in soft) / 3 for k in range(3)]
        power = [m**T for m in mean]
        expected = [float(x / mpmath.fsum(power)) for x in power]
    worst_error(printed, expected, rtol=1e-13, why="the error of order 1/T, and rounding")


@pytest.mark.equation("eq-kd-reverse", by="reference")
def test_the_reverse_divergence_pools_geometrically(worst_error):
    r"""
    $$
    \begin{aligned}
    & \frac1M \sum_{i=1}^M \mathrm{KL}(q \,\|\, p^{(i)}) \\
    &\quad = \mathrm{KL}(q \,\|\, g) - \log \sum_j \prod_i (p^{(i)}_j)^{1/M}, \\
    & g_k \propto \prod_i (p^{(i)}_k)^{1/M}.
    \end{aligned}
    $$ (eq-kd-reverse)
    """
    product = np.prod(TEACHERS, axis=0) ** (1 / 3)
    g = product / product.sum()
    for q in np.random.default_rng(0).dirichlet(np.ones(3), 20):
        left = sum(kl(q, p) for p in TEACHERS) / 3
        # wrong: kl(q, g) - np.log(product.sum()) -> kl(q, g) + np.log(product.sum())
        worst_error(kl(q, g) - np.log(product.sum()), left, rtol=1e-11, why=ROUNDING)
    assert np.abs(best(lambda q: sum(kl(q, p) for p in TEACHERS)) - g).max() < 1e-5


@pytest.mark.equation("eq-kd-moments", by="reference")
def test_the_forward_student_matches_moments(worst_error):
    r"""
    $$
    \mu = \mathrm{E}_P[X], \qquad \sigma^2 = \operatorname{Var}_P[X].
    $$ (eq-kd-moments)
    """
    x = np.linspace(-20, 28, 9601)
    log_normal = lambda m, s: -0.5 * ((x - m) / s) ** 2 - np.log(s)  # noqa: E731
    P = 0.4 * np.exp(log_normal(0.25, 1.0)) + 0.6 * np.exp(log_normal(6.5, 1.0))
    P /= P.sum()
    fit = minimize(lambda t: -P @ log_normal(t[0], np.exp(t[1])), [1.0, 0.0], tol=1e-12)
    mean = 0.4 * 0.25 + 0.6 * 6.5
    # wrong: 1 + 0.4 * 0.6 * (6.5 - 0.25) ** 2 -> 0.4 * 0.6 * (6.5 - 0.25) ** 2
    variance = 1 + 0.4 * 0.6 * (6.5 - 0.25) ** 2
    worst_error([fit.x[0], np.exp(2 * fit.x[1])], [mean, variance], rtol=1e-5, why=OPTIMISER)
