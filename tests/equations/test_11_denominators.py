"""The equations of chapter 11, each as printed, against something that does not come from it."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import sympy as sp
import torch
import torch.nn.functional as F

from xent.sequences import eos_optimum

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


def far(a: Tensor, b: Tensor) -> bool:
    return float((a - b).norm() / b.norm()) > 0.05


# ------------------------------------------------------------------------------------- the arithmetic


@pytest.mark.equation("eq-den-two-losses", by="framework")
def test_the_two_losses_are_what_pytorch_returns(worst_error):
    r"""
    $$
    \begin{aligned}
    L &= \frac{S_1 + \dots + S_K}{N}, \\
    N &= n_1 + \dots + n_K, \\
    M &= \frac{1}{K} \left( \frac{S_1}{n_1} + \dots + \frac{S_K}{n_K} \right).
    \end{aligned}
    $$ (eq-den-two-losses)
    """
    w = Window([COUNTS[1]])
    S = [w.loss(batch).item() for batch in w.batches[0]]
    n, K = w.counts[0], 3
    N = n[0] + n[1] + n[2]
    L = (S[0] + S[1] + S[2]) / N
    # wrong: 1 / K -> 1 / N
    M = (1 / K) * (S[0] / n[0] + S[1] / n[1] + S[2] / n[2])
    together = w.loss(w.whole, "mean").item()
    averaged = np.mean([w.loss(batch, "mean").item() for batch in w.batches[0]])
    worst_error([L, M], [together, averaged], rtol=1e-13, why=ROUNDING)
    assert abs(L - M) > 0.01


@pytest.mark.equation("eq-den-two", by="symbolic")
def test_the_gap_of_two():
    r"""
    $$
    \begin{aligned}
    M - L &= \frac{m_1 + m_2}{2} - \frac{n_1 m_1 + n_2 m_2}{n_1 + n_2} \\
    &= \frac{(n_2 - n_1)(m_1 - m_2)}{2\,(n_1 + n_2)} .
    \end{aligned}
    $$ (eq-den-two)
    """
    m1, m2, n1, n2 = sp.symbols("m1 m2 n1 n2", positive=True)
    losses = sp.symbols("l1:6", positive=True)
    middle = (m1 + m2) / 2 - (n1 * m1 + n2 * m2) / (n1 + n2)
    # wrong: n2 - n1 -> n1 - n2
    right = (n2 - n1) * (m1 - m2) / (2 * (n1 + n2))
    assert sp.simplify(middle - right) == 0
    assert sp.simplify(middle + right) != 0
    # Against the losses of single tokens: two in the first, three in the second.
    short, long = losses[:2], losses[2:]
    means = (sum(short) / 2 + sum(long) / 3) / 2
    values = {m1: sum(short) / 2, m2: sum(long) / 3, n1: 2, n2: 3}
    assert sp.simplify(means - sum(losses) / 5 - right.subs(values)) == 0


@pytest.mark.equation("eq-den-covariance", by="reference")
def test_the_gap_is_a_covariance(worst_error):
    r"""
    $$
    \begin{aligned}
    L &= \frac{\frac1K \sum_k n_k m_k}{\bar n} \\
    &= \bar m + \frac{\mathrm{Cov}_k(n, m)}{\bar n}, \\
    M - L &= -\frac{\mathrm{Cov}_k(n, m)}{\bar n} .
    \end{aligned}
    $$ (eq-den-covariance)
    """
    rng = np.random.default_rng(0)
    for K in (2, 3, 8):
        n = rng.integers(1, 30, size=K)
        tokens = [rng.exponential(size=k) for k in n]
        m = np.array([t.mean() for t in tokens])
        covariance = ((n - n.mean()) * (m - m.mean())).sum() / K
        right = np.concatenate(tokens).mean()
        first = (n * m).mean() / n.mean()
        # wrong: m.mean() + covariance / n.mean() -> m.mean() - covariance / n.mean()
        second = m.mean() + covariance / n.mean()
        worst_error([first, second], [right, right], rtol=1e-13, why=ROUNDING)
        worst_error(-covariance / n.mean(), m.mean() - right, atol=1e-14, why=ROUNDING)
        unbiased = covariance * K / (K - 1)
        assert not np.isclose(-unbiased / n.mean(), m.mean() - right)


@pytest.mark.equation("eq-den-weight", by="reference")
def test_the_weight_of_a_token(worst_error):
    r"""
    $$
    \frac{1}{K n_k} = \frac{1}{N} \cdot \frac{\bar n}{n_k} .
    $$ (eq-den-weight)
    """
    counts = [1, 4, 10]
    tokens = [torch.ones(n, dtype=torch.float64, requires_grad=True) for n in counts]
    sum(t.mean() for t in tokens).div(3).backward()
    N, mean = 15, 5.0
    for t, n in zip(tokens, counts, strict=True):
        seen = t.grad.numpy()
        worst_error(np.full(n, 1 / (3 * n)), seen, rtol=1e-14, why=ROUNDING)
        # wrong: 1 / N * mean / n -> 1 / N * n / mean
        worst_error(np.full(n, 1 / N * mean / n), seen, rtol=1e-14, why=ROUNDING)
        assert n == 5 or not np.allclose(1 / N * n / mean, seen)


@pytest.mark.equation("eq-den-ignore", by="framework")
def test_the_mean_is_over_what_is_not_ignored(worst_error):
    r"""
    $$
    \text{mean} = \frac{\sum_{i:\, y_i \ne \text{ignore}} \ell_i}{\#\{ i : y_i \ne \text{ignore} \}} .
    $$ (eq-den-ignore)
    """
    generator = torch.Generator().manual_seed(2)
    z = torch.randn(9, 4, generator=generator, dtype=torch.float64)
    y = torch.tensor([0, -100, 3, 2, -100, -100, 1, 1, 0])
    p = z.softmax(1)
    each = [-p[i, y[i]].log().item() for i in range(9) if y[i] != -100]
    assert len(each) == 6
    # wrong: sum(each) / 6 -> sum(each) / 9
    worst_error(sum(each) / 6, F.cross_entropy(z, y).item(), rtol=1e-13, why=ROUNDING)
    assert not np.isclose(sum(each) / 9, F.cross_entropy(z, y).item())
    assert np.isnan(F.cross_entropy(z, torch.full((9,), -100)).item())  # 0 / 0


# ----------------------------------------------------------------------------------------- the repairs


@pytest.mark.equation("eq-den-accumulation", by="framework")
def test_accumulation(worst_error):
    r"""
    $$
    \nabla L = \sum_{k} \nabla \left( \frac{1}{N}\, S_k \right), \quad N = \sum_{k} n_k .
    $$ (eq-den-accumulation)
    """
    w = Window([COUNTS[1]])
    N = sum(w.counts[0])
    # wrong: 1 / N -> 1 / 3
    total = sum(w.gradient(1 / N * w.loss(batch)) for batch in w.batches[0])
    worst_error(total, w.truth, rtol=1e-12, atol=1e-15, why=ROUNDING)
    naive = sum(w.gradient(w.loss(batch, "mean") / 3) for batch in w.batches[0])
    assert far(naive, w.truth)


@pytest.mark.equation("eq-den-ddp", by="framework")
def test_data_parallelism(worst_error):
    r"""
    $$
    \begin{aligned}
    \frac1W \sum_{r} \nabla \left( \frac{1}{n_r}\, S_r \right) &= \nabla\, \frac1W \sum_{r} m_r , \\
    \frac1W \sum_{r} \nabla \left( \frac{W}{N}\, S_r \right) &= \nabla\, \frac1N \sum_{r} S_r \\
    &= \nabla L .
    \end{aligned}
    $$ (eq-den-ddp)
    """
    w = Window([[4], [2], [30]])
    W, N = 3, 36
    usual = (
        sum(w.gradient(1 / n * w.loss(rank[0])) for n, rank in zip((4, 2, 30), w.batches, strict=True)) / W
    )
    of_means = w.gradient(sum(w.loss(rank[0], "mean") for rank in w.batches) / W)
    worst_error(usual, of_means, rtol=1e-12, atol=1e-15, why=ROUNDING)
    # wrong: W / N -> 1 / N
    repaired = sum(w.gradient(W / N * w.loss(rank[0])) for rank in w.batches) / W
    worst_error(repaired, w.truth, rtol=1e-12, atol=1e-15, why=ROUNDING)
    assert far(usual, w.truth)
    assert far(repaired / W, w.truth)


@pytest.mark.equation("eq-den-both", by="framework")
def test_both(worst_error):
    r"""
    $$
    \begin{aligned}
    \frac1W \sum_{r} \sum_{k} \nabla \left( \frac{W}{N}\, S_{rk} \right) &= \nabla L, \\
    N &= \sum_{r} \sum_{k} n_{rk} .
    \end{aligned}
    $$ (eq-den-both)
    """
    for counts in (COUNTS, [[4, 1], [2, 30, 5], [3]]):  # ranks with different numbers of micro-batches too
        w = Window(counts)
        W, N = len(counts), sum(map(sum, counts))
        # wrong: W / N -> 1 / N
        total = sum(sum(w.gradient(W / N * w.loss(batch)) for batch in rank) for rank in w.batches) / W
        worst_error(total, w.truth, rtol=1e-12, atol=1e-15, why=ROUNDING)
        per_rank = (
            sum(
                sum(w.gradient(w.loss(batch) / sum(n)) for batch in rank)
                for n, rank in zip(counts, w.batches, strict=True)
            )
            / W
        )
        assert far(per_rank, w.truth)


@pytest.mark.equation("eq-den-divide", by="framework")
def test_any_divisor(worst_error):
    r"""
    $$
    c = \frac{d}{N}, \qquad \frac1d \sum_{r,k} \nabla (c\, S_{rk}) = \nabla L .
    $$ (eq-den-divide)
    """
    w = Window(COUNTS)
    N = sum(map(sum, COUNTS))
    for d in (1.0, 3.0, 8.0):
        # wrong: d / N -> 1 / N
        c = d / N
        total = sum(w.gradient(c * w.loss(batch)) for rank in w.batches for batch in rank) / d
        worst_error(total, w.truth, rtol=1e-12, atol=1e-15, why=ROUNDING)
        assert d == 3 or far(total * d / 3, w.truth)


@pytest.mark.equation("eq-den-weighted", by="framework")
def test_class_weights(worst_error):
    r"""
    $$
    L = \frac{\sum_k \sum_{i \in k} w_{y_i} \ell_i}{\sum_k \sum_{i \in k} w_{y_i}} .
    $$ (eq-den-weighted)
    """
    w = Window([COUNTS[1]])
    weights = torch.tensor([0.2, 1.0, 3.0, 0.5, 2.0], dtype=torch.float64)
    top = bottom = 0.0
    means = []
    for x, y in w.batches[0]:
        each = F.cross_entropy(x @ w.weight, y, reduction="none")
        top += (weights[y] * each).sum()
        # wrong: weights[y].sum() -> len(y)
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


@pytest.mark.equation("eq-den-left", by="property")
def test_what_is_left():
    r"""
    $$
    \begin{aligned}
    b &= \frac{q^*(KB, \beta)}{\beta} - 1, \\
    \frac{1 - \beta}{KB + 1} &\le b \le \frac{1 - \beta}{KB - 1}, \qquad KB \ge 2 .
    \end{aligned}
    $$ (eq-den-left)
    """
    for beta in ("1e-9", "0.01", "0.1", "0.5", "0.9", "0.999999999"):
        for K, B in ((1, 2), (2, 1), (8, 4), (64, 4)):
            with mpmath.workdps(30):
                b, size = mpmath.mpf(beta), K * B
                rho = (1 - b) / b  # by quadrature of the integral form, not by xent
                q = size * mpmath.quad(lambda v: v ** (size - 1) / (1 + rho * v), [0, 1e-8, 1e-3, 0.5, 1])  # noqa: B023
                bias = q / b - 1
                # wrong: (1 - b) / (size - 1) -> 2 * (1 - b) / (size - 1)
                lower, upper = (1 - b) / (size + 1), (1 - b) / (size - 1)
                assert lower < bias < upper
                # Each bound is approached, so that a looser one would not do.
                if beta == "1e-9":
                    assert bias > upper * (1 - mpmath.mpf(10) ** -6)
                if beta == "0.999999999":
                    assert bias < lower * (1 + mpmath.mpf(10) ** -6)


# -------------------------------------------------------------------------------- reinforcement learning


@pytest.mark.equation("eq-den-rl", by="reference")
def test_the_three_denominators(worst_error):
    r"""Against the losses of single tokens, averaged as the three methods say in words.

    $$
    \begin{aligned}
    \text{GRPO:} \ \ & \frac{1}{G} \sum_{i} \frac{A_i}{|o_i|}\, \nabla \log \pi(o_i), \\
    \text{DAPO:} \ \ & \frac{1}{\sum_j |o_j|} \sum_{i} A_i\, \nabla \log \pi(o_i), \\
    \text{Dr. GRPO:} \ \ & \frac{1}{G C} \sum_{i} A_i\, \nabla \log \pi(o_i) .
    \end{aligned}
    $$ (eq-den-rl)
    """
    generator = torch.Generator().manual_seed(4)
    theta = torch.randn(6, generator=generator, dtype=torch.float64).requires_grad_()
    lengths, A, C = [3, 7, 1, 9], [1.5, -0.5, 0.25, -1.25], 12.0
    responses = [torch.randint(6, (n,), generator=generator) for n in lengths]
    G = 4

    def token_losses(i: int) -> Tensor:
        return A[i] * theta.log_softmax(0)[responses[i]]

    def gradient(value: Tensor) -> Tensor:
        return torch.autograd.grad(value, theta)[0]

    score = [gradient(theta.log_softmax(0)[r].sum()) for r in responses]
    # wrong: sum(lengths) -> G
    printed = {
        "grpo": sum(A[i] / lengths[i] * score[i] for i in range(G)) / G,
        "dapo": sum(A[i] * score[i] for i in range(G)) / sum(lengths),
        "dr": sum(A[i] * score[i] for i in range(G)) / (G * C),
    }
    spelt = {
        "grpo": gradient(torch.stack([token_losses(i).mean() for i in range(G)]).mean()),
        "dapo": gradient(torch.cat([token_losses(i) for i in range(G)]).mean()),
    }
    padded = torch.nn.utils.rnn.pad_sequence([token_losses(i) for i in range(G)], batch_first=True)
    spelt["dr"] = gradient((padded.sum(dim=1) / C).mean())
    for name, expected in spelt.items():
        worst_error(printed[name], expected, rtol=1e-12, atol=1e-15, why=ROUNDING)
        assert all(far(printed[name], other) for key, other in spelt.items() if key != name)


@pytest.mark.equation("eq-den-rl-drift", by="montecarlo")
def test_the_push_on_the_stop_logit(worst_error):
    # The score, by autograd.
    r"""
    $$
    \begin{aligned}
    \frac{\mathrm d}{\mathrm d \theta} \log \pi(o) &= 1 - \beta\, |o|, \\
    \mathrm E \left[ \frac{1 - \beta |o_i|}{|o_i|} \right] &= q^*(1, \beta) - \beta, \\
    \mathrm E \left[ \frac{1 - \beta |o_i|}{\frac1G \sum_j |o_j|} \right] &= q^*(G, \beta) - \beta .
    \end{aligned}
    $$ (eq-den-rl-drift)
    """
    for n, beta in ((1, 0.3), (6, 0.3), (4, 0.8)):
        theta = torch.tensor(np.log(beta / (1 - beta)), dtype=torch.float64, requires_grad=True)
        (F.logsigmoid(theta) + (n - 1) * F.logsigmoid(-theta)).backward()
        worst_error(1 - beta * n, theta.grad.item(), atol=1e-13, why=ERRORS)
        assert n == 1 or not np.isclose(1 - beta * (n - 1), theta.grad.item())
    rng = np.random.default_rng(5)
    for beta, G in ((0.1, 8), (0.5, 3)):
        n = rng.geometric(beta, size=(200_000, G))
        score = 1 - beta * n[:, 0]
        for divisor, B in ((n[:, 0], 1), (n.mean(axis=1), G)):
            x = score / divisor
            error = x.std() / np.sqrt(len(x))
            # wrong: eos_optimum(beta, B) - beta -> beta - eos_optimum(beta, B)
            worst_error(x.mean(), eos_optimum(beta, B) - beta, atol=4 * error, why=ERRORS)
            assert abs(x.mean()) > 6 * error
