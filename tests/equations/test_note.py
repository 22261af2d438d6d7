"""The note: the variance of a ratio beside that of a constant, and which of the two errs less."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import integrate, optimize, stats

from xent.denominators import learnt_lengths

ITEMS = [([1.0, 4.0], [2.0, 9.0], 0.3), ([3.0, 3.5], [-1.0, 2.0], 0.6), ([2.0, 2.0], [1.0, -1.0], 0.5)]


def batches(sizes: list[float], terms: list[float], chance: float, B: int) -> tuple[np.ndarray, ...]:
    """The sums of d and of g over all batches of two kinds of items, and the batches' probabilities."""
    k = np.arange(B + 1)
    sums = (k * values[0] + (B - k) * values[1] for values in (sizes, terms))
    return (*sums, stats.binom.pmf(k, B, chance))


def spread(x: np.ndarray, p: np.ndarray) -> float:
    return float(p @ (x - p @ x) ** 2)


@pytest.mark.equation("eq-note-variance", by="reference")
def test_the_variance_of_a_ratio_and_of_a_constant(worst_error):
    r"""
    $$
    \begin{aligned}
    \mathrm{Var} \left[ \frac{\sum_b g_b}{\sum_b d_b} \right] &= \frac{\mathrm{Var}[g - R\, d]}{B \mu^2} + O(B^{-2}), \\
    \mathrm{Var} \left[ \frac{\sum_b g_b}{B \mu} \right] &= \frac{\mathrm{Var}[g]}{B \mu^2} .
    \end{aligned}
    $$ (eq-note-variance)
    """
    for sizes, terms, chance in ITEMS:
        d, g, p = np.array(sizes), np.array(terms), np.array([chance, 1 - chance])
        mu = p @ d
        R = p @ g / mu
        for B in (1000, 4000):
            D, S, law = batches(sizes, terms, chance, B)
            # wrong: g - R * d -> g + R * d
            ratio = spread(g - R * d, p) / (B * mu**2)
            worst_error(ratio, spread(S / D, law), rtol=5 / B, atol=1e-15, why="the next order, over B")
            constant = spread(g, p) / (B * mu**2)
            worst_error(constant, spread(S / (B * mu), law), rtol=1e-9, why="a sum over all batches")


def test_when_the_constant_errs_less() -> None:
    """The threshold for T, by the exact mean squared errors; at the minimum, R = 0, there is none.

    Would be refuted by items for which the ratio errs less above it, or the constant below.
    """
    for sizes, terms, chance in ITEMS[:2]:
        d, g, p = np.array(sizes), np.array(terms), np.array([chance, 1 - chance])
        mu, B = p @ d, 400
        R = p @ g / mu
        cov = p @ (g * d) - (p @ g) * mu
        gain = spread(g, p) - spread(g - R * d, p)
        T = B * mu**2 * gain / (R * spread(d, p) - cov) ** 2
        D, S, law = batches(sizes, terms, chance, B)
        bias = law @ (S / D) - R
        for times, constant_wins in ((1.1, True), (0.9, False)):
            if T > 0:
                ratio = spread(S / D, law) / (times * T) + bias**2
                assert (spread(S / (B * mu), law) / (times * T) < ratio) == constant_wins
    g = np.array([2.0, -2.0 * 0.3 / 0.7])  # the gradient has mean zero
    D, S, law = batches([1.0, 4.0], [*g], 0.3, 400)
    assert spread(S / D, law) == pytest.approx(spread(S / (400 * 3.1), law), rel=0.02)
    assert abs(law @ (S / D)) > 1e-4


def test_which_of_the_two_is_the_quieter() -> None:
    """By exact variances in batches of 2,000, against the sign of 2 R Cov(g, d) - R^2 Var(d).

    Would be refuted by items whose ratio is the quieter one though the sum does not grow with the size.
    """
    rng, seen = np.random.default_rng(3), set()
    for _ in range(200):
        d, g, p = (
            rng.uniform(1, 9, 2),
            rng.normal(size=2),
            np.array([(share := rng.uniform(0.1, 0.9)), 1 - share]),
        )
        R = p @ g / (p @ d)
        gain = 2 * R * (p @ (g * d) - (p @ g) * (p @ d)) - R**2 * spread(d, p)
        if abs(gain) > 0.05 * spread(g, p):
            D, S, law = batches([*d], [*g], p[0], 2000)
            quieter = spread(S / D, law) < spread(S / (2000 * (p @ d)), law)
            assert quieter == (gain > 0)
            seen.add(quieter)
    assert seen == {True, False}
    # A loss that does not depend on the size: two sizes, two losses, as likely in any pairing.
    d, g, p = np.array([1.0, 1, 5, 5]), np.array([1.0, 3, 1, 3]), np.full(4, 0.25)
    assert spread(g - p @ g / (p @ d) * d, p) > spread(g, p)
    # With a mean of zero it is as quiet as the constant, and without a bias.
    g = g - 2
    assert spread(g - p @ g / (p @ d) * d, p) == spread(g, p)
    # A loss that grows with the size: quieter from half its rate R on, and noisier below.
    for slope, quieter in ((0.4, False), (0.6, True)):
        d, p = np.array([1.0, 5.0]), np.full(2, 0.5)
        g = (1 - slope) * (p @ d) + slope * d  # R = 1
        assert (spread(g - d, p) < spread(g, p)) == quieter


def test_sizes_near_zero_spoil_the_variance_of_a_ratio() -> None:
    """Gamma sizes of shape 1/2, shifted by one or not, batches of four: right within a fifth, or far off."""
    rng = np.random.default_rng(4)
    for shift, right in ((1.0, True), (0.0, False)):
        d = shift + rng.gamma(0.5, size=(100_000, 4))
        g = 1 + rng.normal(size=d.shape)
        formula = (1 + g.mean() ** 2 / d.mean() ** 2 * d.var()) / (4 * d.mean() ** 2)
        found = float(np.var(g.sum(1) / d.sum(1)))
        assert (abs(found / formula - 1) < 0.2) == right


def test_an_item_of_size_zero() -> None:
    """Batches of up to four, enumerated, an empty one adding nothing: the theorem, and the integral where d(x) > 0."""
    d, P, a = np.array([0.0, 1.0, 3.0]), np.array([0.3, 0.5, 0.2]), np.array([0.0, 2.0, 1.0])
    for size in (1, 2, 4):
        counted, w = np.zeros(3), np.zeros(3)
        for batch in itertools.product(range(3), repeat=size):
            total, chance = d[[*batch]].sum(), np.prod(P[[*batch]])
            if total > 0:
                w[batch[0]] += chance / P[batch[0]] / total
                np.add.at(counted, [*batch], chance * a[[*batch]] / total)
        np.testing.assert_allclose(counted, size * P * a * w, rtol=1e-12)
        for x in (1, 2):
            integral = integrate.quad(
                lambda t, x=x, size=size: np.exp(-t * d[x]) * (P @ np.exp(-t * d)) ** (size - 1), 0, np.inf
            )
            assert integral[0] == pytest.approx(w[x], rel=1e-8)


def test_one_prompt_may_fall_further_than_all_without_prompts() -> None:
    """To first order: the mean over the prompts falls by at most the fall without them, and one prompt by more.

    Would be refuted by prompts whose mean falls by more, or rises.
    """
    rng, B = np.random.default_rng(5), 2000
    further = False
    for spreads in ((1, 90), (0, 0), (40, 50), tuple(rng.integers(0, 90, 2))):
        n = np.array([[100 - s, 100 + s] for s in spreads]) + np.array([[0], [rng.integers(0, 30)]])
        learnt = learnt_lengths(n.ravel(), B, np.repeat([0, 1], 2)).reshape(2, 2)
        falls = n.mean(1) - (learnt * n).sum(1)
        all_at_once = float(n.mean() - learnt_lengths(n.ravel(), B) @ n.ravel())
        assert -1e-9 < falls.mean() < all_at_once * (1 + 20 / B) + 1e-9
        further |= bool(falls.max() > 1.5 * all_at_once)
    assert further


def test_negatives_that_equal_the_target_dropped_or_not() -> None:
    """All draws of m negatives, enumerated: P with the correction and P/q without, dropped at m = 1 too.

    Would be refuted by a kept draw that learns anything else, or by dropped ones that change nothing at m = 2.
    """
    rng = np.random.default_rng(6)

    def learnt(P: np.ndarray, q: np.ndarray, m: int, corrected: bool, dropped: bool) -> np.ndarray:
        def loss(z: np.ndarray) -> float:
            s, total = z - np.log(q) if corrected else z, 0.0
            for y, *drawn in itertools.product(range(len(P)), repeat=1 + m):
                kept = [y, *(k for k in drawn if not (dropped and k == y))]
                total += P[y] * q[drawn].prod() * (np.logaddexp.reduce(s[kept]) - s[y])
            return total + 1e-9 * float(z.sum()) ** 2

        z = optimize.minimize(loss, np.zeros(len(P)), options={"gtol": 1e-9}).x
        p = np.exp(z - z.max())
        return p / p.sum()

    for classes in (2, 3, 4):
        P, q = rng.dirichlet(np.full(classes, 4.0), 2)
        for corrected, right in ((True, P), (False, P / q / (P / q).sum())):
            for m, dropped in ((1, False), (2, False), (1, True)):
                np.testing.assert_allclose(learnt(P, q, m, corrected, dropped), right, atol=1e-5)
            found = learnt(P, q, 2, corrected, True)
            assert min(np.abs(found - P).max(), np.abs(found - P / q / (P / q).sum()).max()) > 1e-4
