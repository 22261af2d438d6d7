"""The equations of the note on random denominators, each against all batches, enumerated."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import mpmath
import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import expit, log_softmax, softmax

from xent.information import kl_divergence
from xent.scoring import learnt_distribution

Array = np.ndarray
WorstError = Callable[..., float]
P = np.array([0.4, 0.3, 0.2, 0.1])
D = np.array([1.0, 2.0, 4.0, 9.0])
A = np.array([2.0, 1.0, 0.5, 3.0])
ENUMERATED = "all batches enumerated; a few roundings in float64"
SEARCH = "a search to about 1e-8 of its minimum"


def batches(size: int, p: Array = P) -> Iterator[tuple[float, list[int]]]:
    """All batches, with their probabilities."""
    for batch in itertools.product(range(len(p)), repeat=size):
        yield float(np.prod(p[list(batch)])), list(batch)


def expected_loss(q: Array, size: int, divisor: Callable[[list[int]], float], a: Array = A) -> float:
    return sum(chance * (a[b] @ -np.log(q[b])) / divisor(b) for chance, b in batches(size))


def inverse_given(size: int, divisor: Callable[[list[int]], float], p: Array = P) -> Array:
    """E[1/D | x_1 = x] from all batches."""
    w = np.zeros(len(p))
    for chance, b in batches(size, p):
        w[b[0]] += chance / p[b[0]] / divisor(b)
    return w


def lowest(loss: Callable[[Array], float], size: int = len(P)) -> Array:
    """The distribution that minimises a loss, by search over logits."""
    found = minimize(lambda z: loss(softmax(z)), np.zeros(size), method="BFGS", options={"gtol": 1e-9})
    return softmax(found.x)


DIVISORS: dict[str, Callable[[list[int]], float]] = {
    "sum": lambda b: float(D[b].sum()),
    "longest": lambda b: float(len(b) * D[b].max()),
    "root": lambda b: float(np.sqrt(np.square(D[b]).sum())),
}


@pytest.mark.equation("eq-note-loss", by="reference")
def test_the_loss_is_what_a_weighted_mean_computes(worst_error: WorstError) -> None:
    r"""
    $$
    L(Q) = \mathrm E \left[ \frac{1}{D} \sum_{i=1}^{B} a(x_i) \bigl( -\log Q(x_i) \bigr) \right] .
    $$ (eq-note-loss)
    """
    z = np.array([0.3, -1.0, 0.5, 0.1])
    q, total = softmax(z), 0.0
    for chance, b in batches(3):
        loss = torch.nn.functional.cross_entropy(
            torch.tensor(np.tile(z, (3, 1))), torch.tensor(b), weight=torch.tensor(D)
        )
        total += chance * float(loss)
    # wrong: a=D -> a=A
    printed = expected_loss(q, 3, DIVISORS["sum"], a=D)
    worst_error(printed, total, rtol=1e-13, why="PyTorch's weighted mean of all batches")


@pytest.mark.equation("eq-note-theorem", by="reference")
@pytest.mark.parametrize("name", DIVISORS)
def test_the_theorem_for_any_symmetric_divisor(worst_error: WorstError, name: str) -> None:
    r"""
    $$
    \begin{aligned}
    L(Q) &= B\, \mathrm E_P \bigl[ a(x)\, w(x)\, (-\log Q(x)) \bigr], \\
    Q^*(x) &= \frac{P(x)\, a(x)\, w(x)}{\mathrm E_P[a w]}, \\
    L(Q) - L(Q^*) &= B\, \mathrm E_P[a w]\; \mathrm{KL}(Q^* \,\|\, Q) .
    \end{aligned}
    $$ (eq-note-theorem)
    """
    size, divisor = 3, DIVISORS[name]
    w = inverse_given(size, divisor)
    # wrong: P * A * w -> P * w
    best = P * A * w / (P @ (A * w))
    for q in (np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.7, 0.1, 0.1, 0.1])):
        loss = expected_loss(q, size, divisor)
        worst_error(size * P @ (A * w * -np.log(q)), loss, rtol=1e-13, why=ENUMERATED)
        excess = size * (P @ (A * w)) * (best @ np.log(best / q))
        worst_error(excess, loss - expected_loss(best, size, divisor), rtol=1e-12, why=ENUMERATED)
    worst_error(best, lowest(lambda q: expected_loss(q, size, divisor)), atol=1e-6, why=SEARCH)


@pytest.mark.equation("eq-note-sets", by="reference")
def test_sets_of_random_size_count_with_their_divisors(worst_error: WorstError) -> None:
    r"""
    $$
    Q^*(x) \propto \mathrm E \left[ \sum_{i:\, x_i = x} \frac{a(x_i)}{D} \right] .
    $$ (eq-note-sets)
    """
    # A row is filled until the next item would be beyond 9; sizes and contents of rows depend on each other.
    rows: list[tuple[float, list[int]]] = []

    def fill(chance: float, row: list[int]) -> None:
        for k, p in enumerate(P):
            if D[row].sum() + D[k] > 9 and row:
                rows.append((chance * p, row))
            else:
                fill(chance * p, [*row, k])

    fill(1.0, [])
    assert abs(sum(chance for chance, _ in rows) - 1) < 1e-12
    count = np.zeros(4)
    for chance, row in rows:
        for k in row:
            # wrong: D[row].sum() -> 1.0
            count[k] += chance * A[k] / D[row].sum()

    def loss(q: Array) -> float:
        return sum(chance * (A[row] @ -np.log(q[row])) / D[row].sum() for chance, row in rows)

    worst_error(count / count.sum(), lowest(loss), atol=1e-6, why=SEARCH)


@pytest.mark.equation("eq-note-integral", by="reference")
@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_integral_for_sums(worst_error: WorstError, size: int) -> None:
    r"""
    $$
    w(x) = \int_0^\infty e^{-t\, d(x)}\, M(t)^{B-1}\, \mathrm dt ,
    $$ (eq-note-integral)
    """

    def moment(t: mpmath.mpf) -> mpmath.mpf:
        return sum(p * mpmath.exp(-t * d) for p, d in zip(P, D, strict=True))

    enumerated = inverse_given(size, DIVISORS["sum"])
    for d, w in zip(D, enumerated, strict=True):
        # wrong: size - 1 -> size
        printed = mpmath.quad(
            lambda t, d=d: mpmath.exp(-t * d) * moment(t) ** (size - 1), [0, 1, 10, mpmath.inf]
        )
        worst_error(printed, w, rtol=1e-12, why="all batches enumerated, and quadrature")
    learnt = P * A * enumerated
    found = learnt_distribution(P, D, size, weight=A)
    worst_error(found, learnt / learnt.sum(), rtol=1e-13, why=ENUMERATED)
    assert (np.diff(enumerated) < 0).all()


@pytest.mark.equation("eq-note-first-order", by="reference")
def test_what_is_left_out_falls_by_the_stated_power(worst_error: WorstError) -> None:
    r"""
    $$
    \begin{aligned}
    B \mu\, w(x) &= 1 - \frac{d(x) - \mu}{B \mu} + \frac{\sigma^2}{B \mu^2} + O(B^{-2}), \\
    \frac{Q^*(x)}{P_a(x)} &= 1 - \frac{d(x) - \mathrm E_a[d]}{B \mu} + O(B^{-2}), \\
    \mathrm{KL}(P_a \,\|\, Q^*) &= \frac{\mathrm{Var}_a[d]}{2 B^2 \mu^2} + O(B^{-3}) .
    \end{aligned}
    $$ (eq-note-first-order)
    """
    mu, own = P @ D, P * A / (P @ A)
    variance, of_own = P @ np.square(D - mu), own @ np.square(D - own @ D)
    left: list[list[float]] = []
    for size in (4096, 8192):
        learnt = learnt_distribution(P, D, size, weight=A)
        # w itself: the constant that normalises is E[w], which is E[1/mean of B] / B by exchangeability.
        w = learnt / (P * A)
        w = w * (1 / (size * (P @ (w * D))))  # since the sizes over the divisor add up to one
        # wrong: + variance -> - variance
        first = 1 - (D - mu) / (size * mu) + variance / (size * mu**2)
        second = 1 - (D - own @ D) / (size * mu)
        third = of_own / (2 * size**2 * mu**2)
        left.append(
            [
                np.abs(size * mu * w - first).max() * size**2,
                np.abs(learnt / own - second).max() * size**2,
                abs(kl_divergence(own, learnt) - third) * size**3,
            ]
        )
    # What is left out, times the power, is a constant: it neither grows nor falls when B is doubled.
    worst_error(
        np.array(left[1]), np.array(left[0]), rtol=0.01, why="the next order, 1/4096 of it, and rounding"
    )


@pytest.mark.equation("eq-note-hajek", by="reference")
@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_learnt_distribution_is_the_mean_of_the_ratio(worst_error: WorstError, size: int) -> None:
    r"""
    $$
    \mathrm E \left[ \frac{\sum_i d(x_i)\, f(x_i)}{\sum_i d(x_i)} \right] = \mathrm E_{Q^*}[f], \qquad a = d .
    $$ (eq-note-hajek)
    """
    f = np.array([3.0, -1.0, 0.5, 7.0])
    ratio = sum(chance * (D[b] @ f[b]) / D[b].sum() for chance, b in batches(size))
    # wrong: weight=D -> weight=None
    learnt = learnt_distribution(P, D, size, weight=D)
    worst_error(learnt @ f, ratio, rtol=1e-12, why=ENUMERATED)


@pytest.mark.equation("eq-note-between", by="property")
def test_a_weight_acts_between_not_at_all_and_fully() -> None:
    r"""
    $$
    1 \;\le\; \frac{d(x)\, w(x)}{d(x')\, w(x')} \;\le\; \frac{d(x)}{d(x')} .
    $$ (eq-note-between)
    """
    rng = np.random.default_rng(0)
    for _ in range(100):
        p, d = rng.dirichlet(np.ones(3)), np.sort(np.exp(2 * rng.standard_normal(3)))
        size = int(rng.integers(1, 50))
        learnt = learnt_distribution(p, d, size, weight=d)
        relative = (learnt[1:] / p[1:]) / (learnt[:-1] / p[:-1])
        # wrong: relative >= 1 -> relative >= 2
        assert (relative >= 1 - 1e-12).all() and (relative <= d[1:] / d[:-1] * (1 + 1e-12)).all()
    np.testing.assert_allclose(learnt_distribution(P, D, 1, weight=D), P, rtol=1e-14)
    np.testing.assert_allclose(learnt_distribution(P, D, 10**9, weight=D), P * D / (P @ D), rtol=1e-8)


@pytest.mark.equation("eq-note-proper", by="reference")
def test_divisors_that_do_not_hold_the_item_are_proper(worst_error: WorstError) -> None:
    r"""
    $$
    D \perp x_1 \mid c \quad \Longrightarrow \quad Q^* \propto a P .
    $$ (eq-note-proper)
    """
    # wrong: P * A -> P
    stated = P * A / (P @ A)
    earlier, others = np.zeros(4), np.zeros(4)
    for chance, b in batches(4):
        # Two items, and the two of the batch before; then three items, each over the sum of the other two.
        np.add.at(earlier, b[:2], chance * A[b[:2]] / D[b[2:]].sum())
    for chance, b in batches(3):
        np.add.at(others, b, chance * A[b] / (D[b].sum() - D[b]))
    for counts in (earlier, others):
        worst_error(counts / counts.sum(), stated, rtol=1e-13, why=ENUMERATED)


@pytest.mark.equation("eq-note-policy", by="reference")
@pytest.mark.parametrize("own", [True, False], ids=["its length", "the group's"])
def test_the_expected_step_is_that_of_another_reward(worst_error: WorstError, own: bool) -> None:
    r"""
    $$
    \begin{aligned}
    \mathrm E \left[ \sum_{i} \frac{A_i}{D} \nabla \log \pi(o_i) \right]
    &= G\, \mathrm E_\pi \bigl[ u(o)\, \nabla \log \pi(o) \bigr], \\
    u(o) &= \mathrm E \left[ \frac{A_1}{D} \,\Big|\, o_1 = o \right],
    \end{aligned}
    $$ (eq-note-policy)
    """
    group, reward = 3, np.array([1.0, 0.0, 1.0, 0.0])
    step, u = np.zeros(4), np.zeros(4)
    for chance, b in batches(group):
        advantage = reward[b] - reward[b].mean()
        scaled = advantage / (D[b] if own else D[b].sum())
        score = np.eye(4)[b] - P  # of a softmax, for each response
        step += chance * scaled @ score
        u[b[0]] += chance / P[b[0]] * scaled[0]
    # wrong: group * (P * u) -> (P * u)
    printed = group * (P * u) @ (np.eye(4) - P)
    worst_error(printed, step, atol=1e-15, why=ENUMERATED)
    if own:  # the advantage over the length
        mean = np.array([reward @ P] * 4)
        plain = (reward - mean) * (1 - 1 / group) / D
        worst_error(u, plain, rtol=1e-12, why=ENUMERATED)


@pytest.mark.equation("eq-note-simpo", by="reference")
def test_simpo_without_margin(worst_error: WorstError) -> None:
    r"""
    $$
    \begin{aligned}
    \pi(y) &= \exp \left( \frac{|y|\, \bigl( r(y) + c \bigr)}{\beta} \right), \\
    \sum_y \pi(y) &= 1,
    \end{aligned}
    $$ (eq-note-simpo)
    """
    beta, r = 2.0, np.array([0.0, 0.8, 0.3, 1.0])
    pairs = [(i, j) for i in range(4) for j in range(4) if i != j]

    def loss(policy: Array) -> float:
        implied = beta * log_softmax(np.log(policy)) / D
        return sum(expit(r[i] - r[j]) * np.log1p(np.exp(implied[j] - implied[i])) for i, j in pairs)

    # wrong: D * (r + c) -> (r + c)
    policy = lambda c: np.exp(D * (r + c) / beta)  # noqa: E731
    low, high = -50.0, 10.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if policy(middle).sum() > 1 else (middle, high)
    worst_error(policy(low), lowest(loss), atol=1e-5, why=SEARCH)
