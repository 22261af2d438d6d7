"""The equations that test_read.py cannot read: quoted as printed, computed, and held against something else.

The quotation is the page's, up to white space; with the mistake that `wrong` makes, what is computed has to disagree.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from scipy.special import expit, logsumexp, softmax

import xent
from adversary import held
from experiments.large_vocabularies import memory
from xent.denominators import eos_optimum

F = torch.nn.functional
Array = np.ndarray[Any, Any]
BOTH = pytest.mark.parametrize("wrong", [False, True], ids=["as printed", "wrong"])


def agree(wrong: bool, computed: Any, expected: Any, rel: float = 0.0, off: float = 0.0) -> None:
    """The two are equal within a tolerance; with the mistake they are not."""
    computed, expected = np.asarray(computed, float), np.asarray(expected, float)
    assert computed.shape == expected.shape and computed.size
    assert np.allclose(computed, expected, rtol=rel, atol=off) is not wrong, (computed, expected)


@BOTH
@pytest.mark.equation("eq-grad-four")
def test_four_losses_and_their_gradients(wrong: bool) -> None:
    r"""
    $$
    \begin{aligned}
    &\text{Gaussian} && \tfrac12 (z - y)^2 + c && z - y \\
    &\text{Bernoulli} && \log(1 + e^{z}) - z\, y && \sigma(z) - y \\
    &\text{categorical} && \operatorname{lse}(z) - z \cdot y && p - y \\
    &\text{Poisson} && e^{z} - z\, y + c && e^{z} - y
    \end{aligned}
    $$ (eq-grad-four)

    Against SciPy's distributions, given by their means: the loss up to a constant, the gradient by differences.
    """
    sign = -1 if wrong else 1
    scalar: list[tuple[Any, Any, Any, float]] = [
        (lambda z, y: (z - y) ** 2 / 2, lambda z, y: z - sign * y, lambda z, y: stats.norm.logpdf(y, z), 1.3),
        (
            lambda z, y: np.log(1 + np.exp(z)) - sign * z * y,
            lambda z, y: expit(z) - y,
            lambda z, y: stats.bernoulli.logpmf(y, expit(z)),
            1.0,
        ),
        (
            lambda z, y: np.exp(z) - sign * z * y,
            lambda z, y: np.exp(z) - y,
            lambda z, y: stats.poisson.logpmf(y, np.exp(z)),
            4.0,
        ),
    ]
    z, h = np.linspace(-3, 3, 25), 1e-6
    for loss, gradient, log_p, y in scalar:
        off = loss(z, y) + log_p(z, y)
        slope = -(log_p(z + h, y) - log_p(z - h, y)) / (2 * h)
        bad = not np.allclose(off, off[0], atol=1e-12) or not np.allclose(gradient(z, y), slope, atol=1e-7)
        assert bad is wrong
    row, y = np.array([0.5, -1.0, 2.0]), np.eye(3)[1]
    agree(wrong, logsumexp(row) - sign * row @ y, -stats.multinomial.logpmf(y, 1, softmax(row)), off=1e-12)
    nll = lambda z: -stats.multinomial.logpmf(y, 1, softmax(z))  # noqa: E731
    agree(wrong, softmax(row) - sign * y, optimize.approx_fprime(row, nll, 1e-7), off=1e-5)


@BOTH
@pytest.mark.equation("eq-fw-bce-backward")
def test_the_backward_pass_of_binary_cross_entropy(wrong: bool) -> None:
    r"""
    $$
    \frac{\partial \ell}{\partial z} =
    \frac{(p - y)\; p(1-p)}{\max\bigl(p(1-p),\,10^{-12}\bigr)} .
    $$ (eq-fw-bce-backward)
    """
    for label in (0.0, 1.0):
        z = torch.tensor([-45.0, -40, -30, -28, -20, 0.5, 3], dtype=torch.float64, requires_grad=True)
        loss = F.binary_cross_entropy(z.sigmoid(), torch.full_like(z, label), reduction="sum")
        (seen,) = torch.autograd.grad(loss, z)
        p = expit(z.detach().numpy())
        inner = p * (1 - p)
        printed = (p - label) * (1 if wrong else inner / np.maximum(inner, 1e-12))
        agree(wrong, printed, seen, rel=1e-8)  # the guard is a float32 1e-12


@BOTH
@pytest.mark.equation("eq-fw-half-overflow")
def test_a_float16_sum_overflows_beyond_its_largest_number(wrong: bool) -> None:
    r"""
    $$
    N\,\bar\ell \ge 65{,}520,
    $$ (eq-fw-half-overflow)

    So few losses that one thread adds them.
    """
    limits = (65_504 if wrong else 65_520) / np.array([2.0, 4.0, 8.0])
    seen = [
        [bool(torch.full((int(limit) + by,), mean, dtype=torch.float16).sum().isinf()) for by in (-1, 0)]
        for limit, mean in zip(limits, (2.0, 4.0, 8.0), strict=True)
    ]
    agree(wrong, seen, [[False, True]] * 3)


@BOTH
@pytest.mark.equation("eq-den-which")
def test_which_batch_size(wrong: bool) -> None:
    r"""
    $$
    \begin{aligned}
    \mathrm E \left[ \frac1K \sum_k \frac{S_k}{n_k} \right] &= \mathrm E \left[ \frac{S_1}{n_1} \right] \\
    &\Rightarrow\ q^*(B, \beta), \\
    \mathrm E \left[ \frac{\sum_k S_k}{\sum_k n_k} \right] &\Rightarrow\ q^*(KB, \beta), \\
    \mathrm E \left[ \frac{\sum_k S_k}{C} \right] &= \frac{KB}{C}\, \mathrm E[\ell] \ \Rightarrow\ \beta .
    \end{aligned}
    $$ (eq-den-which)

    The minimiser of the scaled loss of coins is a ratio of two sums; within four of its standard errors.
    """
    rng = np.random.default_rng(3)
    for beta, K, B in ((0.1, 8, 2), (0.5, 4, 1)):
        n = rng.geometric(beta, size=(100_000, K, B))
        optima = [eos_optimum(beta, B), eos_optimum(beta, K * B), beta][:: -1 if wrong else 1]
        scales = (
            1 / (K * n.sum(axis=2, keepdims=True)),
            1 / n.sum(axis=(1, 2), keepdims=True),
            np.full((1, 1, 1), 1 / 37),
        )
        for k, scale in enumerate(scales):
            ends, tokens = ((scale * count).sum(axis=(1, 2)) for count in (np.ones_like(n), n))
            q = ends.sum() / tokens.sum()
            error = np.sqrt(((ends - q * tokens) ** 2).sum()) / tokens.sum()
            agree(wrong and k != 1, q, optima[k], off=4 * error)
        loss = -np.log(0.3) - (n - 1) * np.log(0.7)  # at some q
        of_one, of_all = loss[:, 0].sum(1) / n[:, 0].sum(1), (loss.sum(axis=2) / n.sum(axis=2)).mean(axis=1)
        agree(False, of_all.mean(), of_one.mean(), off=4 * (of_one - of_all).std() / np.sqrt(len(n)))
        constant, mean = loss.sum(axis=(1, 2)) / 37, -np.log(0.3) - (1 / beta - 1) * np.log(0.7)
        expected = (K if wrong else K * B) / 37 * mean
        agree(wrong and B > 1, constant.mean(), expected, off=4 * constant.std() / np.sqrt(len(n)))


def walked(
    seed: int, p_0: float, lengths: list[int], b: float, time: float, step: float
) -> tuple[Array, ...]:
    """The expected natural-gradient step of A / |o|, again and again; the policies and where the clocks stand."""
    rng, n, right = np.random.default_rng(seed), np.array([*lengths, *lengths], float), np.arange(6) < 3
    first = np.concatenate([p_0 * rng.dirichlet(np.ones(3)), (1 - p_0) * rng.dirichlet(np.ones(3))])
    logs, tau, s = np.log(first), 0.0, 0.0
    for _ in range(round(time / step)):
        p = (policy := softmax(logs))[right].sum()
        tau, s = tau + step * (1 - p), s + step * p
        logs = logs + step * ((right - p) / n - b * np.log(policy / first))
    return first, softmax(logs), n, right, np.array([tau, s])


POLICIES = [(0.3, [1, 4, 16]), (0.8, [2, 2, 9]), (0.05, [1, 30, 30])]


@BOTH
@pytest.mark.equation("eq-den-rl-ends")
def test_where_a_policy_walks(wrong: bool) -> None:
    r"""
    $$
    \begin{aligned}
    \pi(o) &\propto \pi_0(o)\, e^{\tau / |o|} \ \ \text{if right}, \\
    \pi(o) &\propto \pi_0(o)\, e^{-s / |o|} \ \ \text{if wrong}, \\
    & p_0\, \mathrm E_0 \bigl[ |o|\, (e^{\tau / |o|} - 1) \,\big|\, \text{right} \bigr] \\
    &= (1 - p_0)\, \mathrm E_0 \bigl[ |o|\, (1 - e^{-s / |o|}) \,\big|\, \text{wrong} \bigr] .
    \end{aligned}
    $$ (eq-den-rl-ends)
    """
    for p_0, lengths in POLICIES:
        first, pi, n, right, (tau, s) = walked(lengths[-1], p_0, lengths, 0.0, 12.0, 1e-3)
        s = -s if wrong else s
        tilted = first * np.exp(np.where(right, tau / n, -s / n))
        agree(wrong, tilted / tilted.sum(), pi, rel=1e-9)
        gained, lost = first * n * (np.exp(tau / n) - 1), first * n * (1 - np.exp(-s / n))
        agree(wrong, gained[right].sum(), lost[~right].sum(), rel=2e-3)  # steps of a thousandth


@BOTH
@pytest.mark.slow
@pytest.mark.equation("eq-den-rl-kl")
def test_where_a_penalty_stops_the_policy(wrong: bool) -> None:
    r"""
    $$
    \pi(o) \propto \pi_0(o) \exp \left( \frac{r(o) - p}{b\, |o|} \right), \qquad p = \mathrm P_\pi(\text{right}) .
    $$ (eq-den-rl-kl)
    """
    for (p_0, lengths), b in itertools.product(POLICIES, (0.2, 1.0)):
        first, pi, n, right, _ = walked(lengths[-1], p_0, lengths, b, 30 / b, 1e-2 / b)
        p = pi[right].sum()
        stands = first * np.exp(right / (b * n) - p if wrong else (right - p) / (b * n))
        agree(wrong, stands / stands.sum(), pi, rel=1e-6)  # a walk that has not quite stopped


@BOTH
@pytest.mark.equation("eq-soft-empirical")
def test_the_mean_converges_to_the_expectation(wrong: bool) -> None:
    r"""
    $$
    \begin{aligned}
    \mathcal L_N(\theta) &= \frac{1}{N} \sum_{i=1}^{N} \ell\bigl( z_\theta(x_i), t_i \bigr) \\
    &\to\; \mathrm E_X\, \ell \quad (N \to \infty) .
    \end{aligned}
    $$ (eq-soft-empirical)
    """
    rng = np.random.default_rng(3)
    p_x, p_y, feature = rng.dirichlet(np.ones(3)), rng.dirichlet(np.ones(2), size=3), rng.normal(size=(3, 2))
    each = np.array([xent.soft_cross_entropy(0.7 * f, q) for f, q in zip(feature, p_y, strict=True)])
    expected = each.mean() if wrong else p_x @ each
    for n in (10_000, 1_000_000):
        mean = each[rng.choice(3, size=n, p=p_x)].mean()
        agree(wrong, mean, expected, off=4 * each.std() / np.sqrt(n))  # standard errors


@BOTH
@pytest.mark.equation("eq-vocab-bytes")
def test_what_the_allocator_counts(wrong: bool) -> None:
    r"""
    $$
    \begin{aligned}
    M_{\text{plain}} &= 3\, N V b, \\
    M_{\text{blocked}} &= 2\, N B b .
    \end{aligned}
    $$ (eq-vocab-bytes)

    The plain peak comes before the gradients are made, the blocked one when both are there.
    """
    N, V, b, B = 256, 8192, 4, memory.BLOCK
    gradients = (N + V) * memory.FEATURES * b
    printed = [(2 if wrong else 3) * N * V * b, (1 if wrong else 2) * N * B * b + gradients]
    found = []
    for way in (memory.WAYS["plain"], memory.WAYS["blocked"]):
        memory.step(way, memory.data(8, 64))
        inputs = memory.data(N, V)
        found.append(held(lambda way=way, inputs=inputs: memory.step(way, inputs)).max())
    agree(wrong, printed, found, rel=5e-3)  # beside vectors of length N


@BOTH
@pytest.mark.equation("eq-note-variance")
def test_the_variance_of_a_ratio_and_of_a_constant(wrong: bool) -> None:
    r"""
    $$
    \begin{aligned}
    \mathrm{Var} \left[ \frac{\sum_b g_b}{\sum_b d_b} \right] &= \frac{\mathrm{Var}[g - R\, d]}{B \mu^2} + O(B^{-2}), \\
    \mathrm{Var} \left[ \frac{\sum_b g_b}{B \mu} \right] &= \frac{\mathrm{Var}[g]}{B \mu^2} .
    \end{aligned}
    $$ (eq-note-variance)

    By a sum over all batches of two kinds of items.
    """

    def spread(x: Array, law: Array) -> float:
        return float(law @ (x - law @ x) ** 2)

    for sizes, terms, chance in (((1, 4), (2, 9), 0.3), ((3, 3.5), (-1, 2), 0.6), ((2, 2), (1.5, -1), 0.5)):
        d, g, p, B = np.array(sizes), np.array(terms), np.array([chance, 1 - chance]), 4000
        k, mu = np.arange(B + 1), p @ d
        law, (D, S) = stats.binom.pmf(k, B, chance), (k * v[0] + (B - k) * v[1] for v in (d, g))
        R = -(p @ g) / mu if wrong else p @ g / mu
        equal = d[0] == d[1]  # R d is the same for both kinds, and shifts nothing
        agree(wrong and not equal, spread(g - R * d, p) / (B * mu**2), spread(S / D, law), rel=5 / B)
        constant = spread(g, p) / (B * (1 if wrong else mu) ** 2)
        agree(wrong, constant, spread(S / (B * mu), law), rel=1e-9)
