"""The note: the variance of a ratio beside that of a constant, and which of the two errs less."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

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
