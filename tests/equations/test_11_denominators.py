"""Chapter 11: what PyTorch divides by, and what a denominator makes a model learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from xent.denominators import eos_optimum

ROUNDING = "a few roundings in float64"
ERRORS = "four standard errors"
COUNTS = [[4, 1, 7], [2, 30, 5], [3, 3, 1]]  # of three ranks with three micro-batches each
Tensor = torch.Tensor


class Window:
    """Micro-batches on ranks, a linear model, and the gradient of the whole by one call to PyTorch."""

    def __init__(self, counts: list[list[int]]) -> None:
        generator = torch.Generator().manual_seed(1)
        self.counts = counts
        self.weight = torch.randn(3, 5, generator=generator, dtype=torch.float64).requires_grad_()
        draw = lambda n: (  # noqa: E731
            torch.randn(n, 3, generator=generator, dtype=torch.float64),
            torch.randint(5, (n,), generator=generator),
        )
        self.batches = [[draw(n) for n in rank] for rank in counts]
        flat = [batch for rank in self.batches for batch in rank]
        self.whole = (torch.cat([x for x, _ in flat]), torch.cat([y for _, y in flat]))

    def loss(self, batch: tuple[Tensor, Tensor], reduction: str = "sum") -> Tensor:
        return F.cross_entropy(batch[0] @ self.weight, batch[1], reduction=reduction)

    def gradient(self, loss: Tensor) -> Tensor:
        return torch.autograd.grad(loss, self.weight)[0]

    @property
    def truth(self) -> Tensor:
        return self.gradient(self.loss(self.whole, "mean"))


# ------------------------------------------------------------------------------------- the arithmetic


@pytest.mark.equation("eq-den-two-losses", by="framework")
def test_the_two_losses_are_what_pytorch_returns(worst_error):
    w = Window([COUNTS[1]])
    S = [w.loss(batch).item() for batch in w.batches[0]]
    n, K = w.counts[0], 3
    N = n[0] + n[1] + n[2]
    L = (S[0] + S[1] + S[2]) / N
    M = (1 / K) * (S[0] / n[0] + S[1] / n[1] + S[2] / n[2])
    together = w.loss(w.whole, "mean").item()
    averaged = np.mean([w.loss(batch, "mean").item() for batch in w.batches[0]])
    worst_error([L, M], [together, averaged], rtol=1e-13, why=ROUNDING)
    assert abs(L - M) > 0.01


@pytest.mark.equation("eq-den-ignore", by="framework")
def test_the_mean_is_over_what_is_not_ignored(worst_error):
    generator = torch.Generator().manual_seed(2)
    z = torch.randn(9, 4, generator=generator, dtype=torch.float64)
    y = torch.tensor([0, -100, 3, 2, -100, -100, 1, 1, 0])
    p = z.softmax(1)
    each = [-p[i, y[i]].log().item() for i in range(9) if y[i] != -100]
    assert len(each) == 6
    worst_error(sum(each) / 6, F.cross_entropy(z, y).item(), rtol=1e-13, why=ROUNDING)
    assert not np.isclose(sum(each) / 9, F.cross_entropy(z, y).item())
    assert np.isnan(F.cross_entropy(z, torch.full((9,), -100)).item())  # 0 / 0


# ----------------------------------------------------------------------------------------- the repairs


@pytest.mark.equation("eq-den-weighted", by="framework")
def test_class_weights(worst_error):
    w = Window([COUNTS[1]])
    weights = torch.tensor([0.2, 1.0, 3.0, 0.5, 2.0], dtype=torch.float64)
    top = bottom = 0.0
    means = []
    for x, y in w.batches[0]:
        each = F.cross_entropy(x @ w.weight, y, reduction="none")
        top += (weights[y] * each).sum()
        bottom += weights[y].sum()
        means.append((weights[y] * each).sum() / weights[y].sum())
    x, y = w.whole
    expected = F.cross_entropy(x @ w.weight, y, weight=weights)
    worst_error((top / bottom).item(), expected.item(), rtol=1e-13, why=ROUNDING)
    assert not np.isclose((top / len(y)).item(), expected.item())
    assert not np.isclose(torch.stack(means).mean().item(), expected.item())


# -------------------------------------------------------------------------------------- what remains


def optimum(scale: np.ndarray, n: np.ndarray) -> tuple[float, float]:
    """The minimiser of the scaled loss -sum s (log q + (n - 1) log(1 - q)), and its standard error."""
    ends = (scale * np.ones_like(n)).sum(axis=(1, 2))
    tokens = (scale * n).sum(axis=(1, 2))
    q = ends.sum() / tokens.sum()
    return float(q), float(np.sqrt(((ends - q * tokens) ** 2).sum()) / tokens.sum())


@pytest.mark.equation("eq-den-which", by="montecarlo")
def test_which_batch_size(worst_error):
    r"""
    $$
    \begin{aligned}
    \mathrm E \left[ \frac1K \sum_k \frac{S_k}{n_k} \right] &= \mathrm E \left[ \frac{S_1}{n_1} \right] \\
    &\Rightarrow\ q^*(B, \beta), \\
    \mathrm E \left[ \frac{\sum_k S_k}{\sum_k n_k} \right] &\Rightarrow\ q^*(KB, \beta), \\
    \mathrm E \left[ \frac{\sum_k S_k}{C} \right] &= \frac{KB}{C}\, \mathrm E[\ell] \ \Rightarrow\ \beta .
    \end{aligned}
    $$ (eq-den-which)
    """
    rng = np.random.default_rng(3)
    for beta, K, B in ((0.1, 8, 2), (0.5, 4, 1)):
        n = rng.geometric(beta, size=(100_000, K, B))
        of_micro, of_window = n.sum(axis=2, keepdims=True), n.sum(axis=(1, 2), keepdims=True)
        # wrong: beta, B), eos_optimum(beta, K * B) -> beta, K * B), eos_optimum(beta, B)
        optima = eos_optimum(beta, B), eos_optimum(beta, K * B), beta
        scales = 1 / (K * of_micro), 1 / of_window, np.full((1, 1, 1), 1 / 37.0)
        for scale, q in zip(scales, optima, strict=True):
            seen, error = optimum(scale, n)
            worst_error(seen, q, atol=4 * error, why=ERRORS)
            for other in set(optima) - {q}:
                assert abs(seen - other) > 6 * error
        # The expectations themselves, at some q.
        loss = -np.log(0.3) - (n - 1) * np.log(0.7)
        of_one = (loss[:, :1].sum(axis=2) / n[:, :1].sum(axis=2)).mean(axis=1)
        of_all = (loss.sum(axis=2) / n.sum(axis=2)).mean(axis=1)
        gap = (of_one - of_all).std() / np.sqrt(len(n))
        worst_error(of_all.mean(), of_one.mean(), atol=4 * gap, why=ERRORS)
        constant = loss.sum(axis=(1, 2)) / 37.0
        mean = -np.log(0.3) - (1 / beta - 1) * np.log(0.7)
        error = constant.std() / np.sqrt(len(n))
        worst_error(constant.mean(), K * B / 37.0 * mean, atol=4 * error, why=ERRORS)


# ------------------------------------------------------------------------------------- rewards


def walked(
    pi: np.ndarray, n: np.ndarray, right: np.ndarray, b: float, time: float
) -> tuple[np.ndarray, float, float]:
    """The expected natural-gradient step of A / |o|, a thousandth at a time; the policy, and where the clocks stand."""
    logs, tau, s, step = np.log(pi), 0.0, 0.0, 1e-3
    for _ in range(round(time / step)):
        p = (policy := np.exp(logs) / np.exp(logs).sum())[right].sum()
        tau, s = tau + step * (1 - p), s + step * p
        logs = logs + step * ((right - p) / n - b * np.log(policy / pi))
    return np.exp(logs) / np.exp(logs).sum(), tau, s


POLICIES = [(0.3, [1, 4, 16]), (0.8, [2, 2, 9]), (0.05, [1, 30, 30])]


@pytest.mark.equation("eq-den-rl-ends", by="reference")
def test_where_a_policy_walks(worst_error):
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
        rng = np.random.default_rng(len(lengths) + lengths[-1])
        n, right = np.array([*lengths, *lengths], float), np.arange(6) < 3
        first = np.concatenate([p_0 * rng.dirichlet(np.ones(3)), (1 - p_0) * rng.dirichlet(np.ones(3))])
        pi, tau, s = walked(first, n, right, 0.0, 12.0)
        # wrong: -s / n -> s / n
        tilted = first * np.exp(np.where(right, tau / n, -s / n))
        worst_error(tilted / tilted.sum(), pi, rtol=1e-9, why=ROUNDING)
        left = (first * n * (np.exp(tau / n) - 1))[right].sum()
        other = (first * n * (1 - np.exp(-s / n)))[~right].sum()
        worst_error(left, other, rtol=2e-3, why="steps of a thousandth")


@pytest.mark.slow
@pytest.mark.equation("eq-den-rl-kl", by="reference")
def test_where_a_penalty_stops_the_policy(worst_error):
    r"""
    $$
    \pi(o) \propto \pi_0(o) \exp \left( \frac{r(o) - p}{b\, |o|} \right), \qquad p = \mathrm P_\pi(\text{right}) .
    $$ (eq-den-rl-kl)
    """
    for p_0, lengths in POLICIES:
        rng = np.random.default_rng(lengths[-1])
        n, r = np.array([*lengths, *lengths], float), np.arange(6) < 3
        first = np.concatenate([p_0 * rng.dirichlet(np.ones(3)), (1 - p_0) * rng.dirichlet(np.ones(3))])
        for b in (0.2, 1.0):
            pi, _, _ = walked(first, n, r, b, 30 / b)
            p = pi[r].sum()
            # wrong: (r - p) / (b * n) -> r / (b * n) - p
            stands = first * np.exp((r - p) / (b * n))
            worst_error(stands / stands.sum(), pi, rtol=1e-6, why="a walk that has not quite stopped")
