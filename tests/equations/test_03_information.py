"""The equations of chapter 03, as printed, against independent computations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
import sympy
from scipy import optimize, stats

from xent import information, softmax

Array = npt.NDArray[np.float64]
ROUNDINGS = "a few roundings in float64"


def random_laws(classes: int, number: int, seed: int, zeros: bool = False) -> Array:
    """Laws of every shape, from nearly certain to nearly uniform."""
    rng = np.random.default_rng(seed)
    concentration = 10.0 ** rng.uniform(-1, 1.5, size=number)
    laws = np.stack([rng.dirichlet(np.full(classes, c)) for c in concentration])
    if zeros:
        laws[:, 0] = 0.0
    return laws / laws.sum(axis=1, keepdims=True)


def exact_sum(terms: Iterator[Any]) -> Any:
    with mpmath.workdps(40):
        return mpmath.fsum(terms)


def mp_cross(p: Array, q: Array) -> Any:
    """-sum p log q at 40 digits, over the outcomes that happen."""
    with mpmath.workdps(40):
        terms = [-mpmath.mpf(a) * mpmath.log(mpmath.mpf(b)) for a, b in zip(p, q, strict=True) if a > 0]
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


@pytest.mark.equation("eq-surprise", by="symbolic")
def test_the_logarithm_meets_the_demands() -> None:
    r"""
    $$
    \begin{aligned}
    s(u v) &= s(u) + s(v) \\
    s(2^{-m/n}) &= \tfrac{m}{n}\, s(\tfrac12) \\
    2^{-(m+1)/n} &< u \le 2^{-m/n} \;\Rightarrow \\
    \tfrac{m}{n}\, s(\tfrac12) &\le s(u) < \tfrac{m+1}{n}\, s(\tfrac12) \\
    s(u) &= -c \log u, \\
    c &= s(\tfrac12) / \log 2 > 0
    \end{aligned}
    $$ (eq-surprise)
    """
    u, v, c = sympy.symbols("u v c", positive=True)
    m, n = sympy.symbols("m n", positive=True, integer=True)

    def s(probability: Any) -> Any:
        # wrong: -c * sympy.log(probability) -> c * sympy.log(probability)
        return -c * sympy.log(probability)

    assert sympy.simplify(sympy.expand_log(s(u * v) - s(u) - s(v))) == 0
    half = sympy.Rational(1, 2)
    assert sympy.simplify(sympy.expand_log(s(2 ** (-m / n)) - m / n * s(half), force=True)) == 0
    assert sympy.simplify(s(half) / sympy.log(2) - c) == 0
    assert sympy.diff(s(u), u).is_negative


@pytest.mark.equation("eq-surprise", by="property")
def test_nothing_but_the_logarithm_meets_them() -> None:
    # On the grid 2^(-i/6) additivity is a linear system; its solutions form one line, the logarithm's.
    r"""
    $$
    \begin{aligned}
    s(u v) &= s(u) + s(v) \\
    s(2^{-m/n}) &= \tfrac{m}{n}\, s(\tfrac12) \\
    2^{-(m+1)/n} &< u \le 2^{-m/n} \;\Rightarrow \\
    \tfrac{m}{n}\, s(\tfrac12) &\le s(u) < \tfrac{m+1}{n}\, s(\tfrac12) \\
    s(u) &= -c \log u, \\
    c &= s(\tfrac12) / \log 2 > 0
    \end{aligned}
    $$ (eq-surprise)
    """
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


@pytest.mark.equation("eq-surprise-chain", by="reference")
def test_surprise_adds_with_the_conditional_probability(worst_error: Any) -> None:
    # Two dice, all events counted: 36 equally likely outcomes.
    r"""
    $$
    \begin{aligned}
    &-\log P(A \cap B) \\
    &\quad = -\log P(A) - \log P(B \mid A)
    \end{aligned}
    $$ (eq-surprise-chain)
    """
    outcomes = list(itertools.product(range(1, 7), repeat=2))

    def count(event: Any) -> int:
        return sum(map(event, outcomes))

    events = {
        "first even": lambda o: o[0] % 2 == 0,
        "second large": lambda o: o[1] > 4,
        "sum at least 8": lambda o: sum(o) >= 8,
        "equal": lambda o: o[0] == o[1],
    }
    left, right, plain, independent = [], [], [], []
    for (_, a), (_, b) in itertools.permutations(events.items(), 2):
        p_a, p_b, p_both = count(a) / 36, count(b) / 36, count(lambda o, a=a, b=b: a(o) and b(o)) / 36
        given = [o for o in outcomes if a(o)]
        p_b_given_a = sum(map(b, given)) / len(given)
        left.append(-math.log(p_both))
        # wrong: p_b_given_a -> p_b
        right.append(-math.log(p_a) - math.log(p_b_given_a))
        plain.append(-math.log(p_a) - math.log(p_b))
        independent.append(Fraction(p_both).limit_denominator(36) == Fraction(count(a) * count(b), 36 * 36))
    worst_error(left, right, rtol=1e-14, why=ROUNDINGS)
    # The plain sum holds exactly for the independent pairs, and both kinds occur.
    assert 0 < sum(independent) < len(independent)
    assert np.array_equal(np.isclose(left, plain, rtol=1e-12), independent)


# --------------------------------------------------------------------------------- entropy, code lengths


@pytest.mark.equation("eq-entropy", by="reference")
def test_entropy_is_the_mean_surprise_of_a_record(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    H(P) &= \mathbb{E}_{X \sim P}\left[-\log P(X)\right] \\
    &= -\sum_k p_k \log p_k, \qquad 0 \log 0 = 0
    \end{aligned}
    $$ (eq-entropy)
    """
    for counts in ([4, 3, 1, 0], [1, 0], [5, 5, 5], [100, 1, 0, 0, 7]):
        record = [k for k, c in enumerate(counts) for _ in range(c)]
        p = np.array(counts) / sum(counts)
        mean_surprise = exact_sum(-mpmath.log(mpmath.mpf(counts[k]) / len(record)) for k in record) / len(
            record
        )
        # wrong: p_k * math.log(p_k) -> math.log(p_k)
        printed = -sum(p_k * math.log(p_k) if p_k > 0 else 0.0 for p_k in p)
        worst_error(printed, mean_surprise, rtol=1e-14, atol=1e-15, why=ROUNDINGS)
        worst_error(information.entropy(p), mean_surprise, rtol=1e-14, atol=1e-15, why=ROUNDINGS)
    # The convention is a limit.
    u = sympy.symbols("u", positive=True)
    assert sympy.limit(u * sympy.log(u), u, 0) == 0


def canonical_code(lengths: npt.NDArray[np.int_]) -> list[str]:
    """Code words of the given lengths, in the order of length, if Kraft's sum is <= 1."""
    words, value, previous = [], 0, 0
    for length in sorted(lengths):
        value <<= int(length) - previous
        words.append(format(value, f"0{length}b") if length else "")
        value, previous = value + 1, int(length)
    return words


@pytest.mark.equation("eq-code-length", by="property")
def test_surprise_rounded_up_gives_a_prefix_code() -> None:
    r"""
    $$
    \begin{aligned}
    \ell_k = \lceil -\log_2 p_k \rceil \;&\Rightarrow\; \sum_k 2^{-\ell_k} \le \sum_k p_k = 1 \\
    \frac{H(P)}{\log 2} \;&\le\; \sum_k p_k\, \ell_k \;<\; \frac{H(P)}{\log 2} + 1
    \end{aligned}
    $$ (eq-code-length)
    """
    for classes in (2, 3, 8, 26):
        for p in random_laws(classes, 100, seed=classes):
            p = p[p > 0]
            # wrong: np.ceil -> np.floor
            lengths = np.ceil(-np.log2(p)).astype(int)
            kraft = sum(Fraction(1, 2 ** int(length)) for length in lengths)
            assert kraft <= 1
            entropy_bits = float(mp_cross(p, p)) / math.log(2)
            average = float(p @ lengths)
            assert entropy_bits - 1e-12 <= average < entropy_bits + 1
            if classes <= 8 and max(lengths) < 60:
                words = canonical_code(lengths)
                assert len(set(words)) == len(words)
                assert not any(a != b and b.startswith(a) for a in words for b in words)
    # Both bounds are met: one by powers of two, one by a near certainty, which still takes a bit.
    dyadic, certain = np.array([0.5, 0.25, 0.25]), np.array([1 - 1e-12, 1e-12])
    for p, excess in ((dyadic, 0), (certain, 1)):
        average = float(p @ np.ceil(-np.log2(p)))
        assert abs(average - float(mp_cross(p, p)) / math.log(2) - excess) < 1e-9
    # Rounding down breaks both: Kraft's sum passes one, and no prefix code has these lengths.
    lengths = np.floor(-np.log2(np.array([0.4, 0.3, 0.3]))).astype(int)
    assert sum(2.0**-lengths) > 1


@pytest.mark.equation("eq-code-excess", by="reference")
def test_the_excess_of_a_code_is_a_divergence(worst_error: Any) -> None:
    # Complete codes (c = 1) and wasteful ones (c < 1).
    r"""
    $$
    \begin{aligned}
    \sum_k p_k\, \ell_k &= \frac{H(P) + \mathrm{KL}(P \,\|\, Q) - \log c}{\log 2} \\
    &\ge \frac{H(P)}{\log 2}
    \end{aligned}
    $$ (eq-code-excess)
    """
    for lengths in ([1, 2, 3, 3], [2, 2, 2, 2], [2, 2, 3, 4], [1, 3, 4, 9]):
        powers = 2.0 ** -np.array(lengths)
        c = powers.sum()
        assert c <= 1
        q = powers / c
        for p in random_laws(4, 20, seed=sum(lengths)):
            entropy, divergence = mp_cross(p, p), mp_kl(p, q)
            # wrong: entropy + divergence - mpmath.log(c) -> entropy + divergence + mpmath.log(c)
            printed = float((entropy + divergence - mpmath.log(c)) / mpmath.log(2))
            average = sum(Fraction(p_k) * length for p_k, length in zip(p, lengths, strict=True))
            worst_error(printed, float(average), rtol=1e-13, why=ROUNDINGS)
            assert float(average) >= float(entropy / mpmath.log(2)) - 1e-12


# --------------------------------------------------------------------------------------- cross-entropy


@pytest.mark.equation("eq-cross-entropy-law", by="reference")
def test_cross_entropy_is_the_mean_surprise_of_a_believer(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    H(P, Q) &= \mathbb{E}_{X \sim P}\left[-\log Q(X)\right] \\
    &= -\sum_k p_k \log q_k
    \end{aligned}
    $$ (eq-cross-entropy-law)
    """
    q = np.array([0.1, 0.2, 0.3, 0.4])
    for counts in ([4, 3, 1, 0], [0, 0, 0, 9], [5, 5, 5, 5], [100, 1, 0, 7]):
        record = [k for k, c in enumerate(counts) for _ in range(c)]
        p = np.array(counts) / sum(counts)
        mean_surprise = exact_sum(-mpmath.log(mpmath.mpf(q[k])) for k in record) / len(record)
        # wrong: p_k * math.log(q_k) -> q_k * math.log(q_k)
        printed = -sum(p_k * math.log(q_k) for p_k, q_k in zip(p, q, strict=True))
        worst_error(printed, mean_surprise, rtol=1e-14, why=ROUNDINGS)
        worst_error(information.cross_entropy(p, q), mean_surprise, rtol=1e-14, why=ROUNDINGS)
    # The weights come from P and the surprise from Q, not the other way round.
    p = np.array([0.7, 0.1, 0.1, 0.1])
    assert abs(float(mp_cross(p, q)) - float(mp_cross(q, p))) > 0.1
    assert information.cross_entropy([0.5, 0.5], [1.0, 0.0]) == math.inf


@pytest.mark.equation("eq-cross-entropy-swap", by="reference")
def test_a_renaming_that_undoes_itself_swaps_for_free(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    q_k = p_{\pi(k)} &\text{ and } \pi(\pi(k)) = k \text{ for all } k \;\Rightarrow \\
    H(P, Q) &= -\sum_k p_k \log p_{\pi(k)} \\
    &= -\sum_k p_{\pi(k)} \log p_k = H(Q, P)
    \end{aligned}
    $$ (eq-cross-entropy-swap)
    """
    seen = 0
    for classes in (2, 3, 4):
        p = random_laws(classes, 1, seed=classes)[0]
        for pi in itertools.permutations(range(classes)):
            q = p[list(pi)]
            # wrong: pi[k] -> k
            middle = [-sum(p[k] * math.log(p[pi[k]]) for k in range(classes))]
            middle += [-sum(p[pi[k]] * math.log(p[k]) for k in range(classes))]
            forward, backward = float(mp_cross(p, q)), float(mp_cross(q, p))
            worst_error(middle, [forward, backward], rtol=1e-14, why=ROUNDINGS)
            if all(pi[pi[k]] == k for k in range(classes)):
                worst_error(forward, backward, rtol=1e-14, why=ROUNDINGS)
                seen += 1
            else:
                # A rotation of three classes is not enough.
                assert abs(forward - backward) > 1e-3 or classes == 4
    assert seen == 2 + 4 + 10


# ------------------------------------------------------------------------------------------ divergence


@pytest.mark.equation("eq-kl", by="reference")
def test_divergence_is_the_difference(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    \mathrm{KL}(P \,\|\, Q) &= H(P, Q) - H(P) \\
    &= \sum_k p_k \log \frac{p_k}{q_k}
    \end{aligned}
    $$ (eq-kl)
    """
    laws = random_laws(5, 60, seed=1)
    for p, q in zip(laws[:30], laws[30:], strict=True):
        # wrong: mp_cross(p, p) -> mp_cross(q, q)
        printed = float(mp_cross(p, q) - mp_cross(p, p))
        # P and Q sum to one up to a rounding each, which the package's form of the sum sees.
        worst_error(printed, mp_kl(p, q), rtol=1e-12, why=ROUNDINGS)
        worst_error(information.kl_divergence(p, q), mp_kl(p, q), rtol=1e-12, why=ROUNDINGS)


@pytest.mark.equation("eq-kl", by="framework")
def test_torch_computes_the_same_divergence(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    \mathrm{KL}(P \,\|\, Q) &= H(P, Q) - H(P) \\
    &= \sum_k p_k \log \frac{p_k}{q_k}
    \end{aligned}
    $$ (eq-kl)
    """
    import torch  # here, because it takes longer to load than all the other tests to run

    laws = random_laws(6, 40, seed=2)
    p, q = laws[:20], laws[20:]
    printed = information.cross_entropy(p, q) - information.entropy(p)
    categorical = [torch.distributions.Categorical(probs=torch.tensor(law)) for law in (p, q)]
    observed = torch.distributions.kl_divergence(*categorical)
    worst_error(
        printed, observed, rtol=1e-9, atol=1e-12, why="torch clamps probabilities, and the terms cancel"
    )
    assert information.kl_divergence([0.5, 0.5], [1.0, 0.0]) == math.inf
    assert information.kl_divergence([1.0, 0.0], [0.5, 0.5]) == pytest.approx(math.log(2), rel=1e-15, abs=0)


@pytest.mark.equation("eq-gibbs", by="symbolic")
def test_the_logarithm_lies_below_its_tangent() -> None:
    r"""
    $$
    \begin{aligned}
    \log t &\le t - 1, \quad \text{equal only at } t = 1 \\
    -\mathrm{KL}(P \,\|\, Q) &= \sum_{k:\, p_k > 0} p_k \log \frac{q_k}{p_k} \\
    &\le \sum_{k:\, p_k > 0} p_k \left( \frac{q_k}{p_k} - 1 \right) \\
    &= \sum_{k:\, p_k > 0} q_k - 1 \le 0 \\
    \mathrm{KL}(P \,\|\, Q) &\ge 0, \quad \text{equal only if } P = Q
    \end{aligned}
    $$ (eq-gibbs)
    """
    t = sympy.symbols("t", positive=True)
    gap = t - 1 - sympy.log(t)
    assert sympy.solve(sympy.diff(gap, t), t) == [1]
    assert gap.subs(t, 1) == 0
    assert sympy.diff(gap, t, 2).is_positive


@pytest.mark.equation("eq-gibbs", by="property")
def test_each_step_of_gibbs_inequality() -> None:
    r"""
    $$
    \begin{aligned}
    \log t &\le t - 1, \quad \text{equal only at } t = 1 \\
    -\mathrm{KL}(P \,\|\, Q) &= \sum_{k:\, p_k > 0} p_k \log \frac{q_k}{p_k} \\
    &\le \sum_{k:\, p_k > 0} p_k \left( \frac{q_k}{p_k} - 1 \right) \\
    &= \sum_{k:\, p_k > 0} q_k - 1 \le 0 \\
    \mathrm{KL}(P \,\|\, Q) &\ge 0, \quad \text{equal only if } P = Q
    \end{aligned}
    $$ (eq-gibbs)
    """
    for classes in (2, 4, 9):
        for zeros in (False, True):
            p = random_laws(classes, 50, seed=classes, zeros=zeros)
            q = random_laws(classes, 50, seed=classes + 100)
            for p_row, q_row in zip(p, q, strict=True):
                on = p_row > 0
                first = float(np.sum(p_row[on] * np.log(q_row[on] / p_row[on])))
                # wrong: q_row[on] / p_row[on] - 1 -> 1 - q_row[on] / p_row[on]
                second = float(np.sum(p_row[on] * (q_row[on] / p_row[on] - 1)))
                third = float(np.sum(q_row[on]) - 1)
                assert first == pytest.approx(-float(mp_kl(p_row, q_row)), abs=1e-12)
                assert first <= second + 1e-12
                assert second == pytest.approx(third, abs=1e-12)
                assert third <= 1e-12
                assert first < 0, "P and Q differ, so the divergence is positive"
    # Equality for equal laws, also with zeros; and Q may be positive where P is zero only at a price.
    assert information.kl_divergence([0.0, 0.4, 0.6], [0.0, 0.4, 0.6]) == 0
    assert information.kl_divergence([0.0, 0.4, 0.6], [0.5, 0.2, 0.3]) == pytest.approx(math.log(2))


@pytest.mark.equation("eq-entropy-bounds", by="reference")
def test_entropy_is_log_k_less_a_divergence(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    0 \le H(P) &= \log K - \mathrm{KL}(P \,\|\, U) \\
    &\le \log K
    \end{aligned}
    $$ (eq-entropy-bounds)
    """
    for classes in (2, 3, 10):
        uniform = np.full(classes, 1 / classes)
        for p in random_laws(classes, 50, seed=classes, zeros=classes > 2):
            # wrong: mpmath.log(classes) - mp_kl(p, uniform) -> mpmath.log(classes) + mp_kl(p, uniform)
            printed = mpmath.log(classes) - mp_kl(p, uniform)
            entropy = float(mp_cross(p, p))
            worst_error(printed, entropy, rtol=1e-13, atol=1e-15, why=ROUNDINGS)
            assert 0 <= entropy <= math.log(classes)
        # A search that knows nothing of the bound finds it, at the uniform distribution.
        start = random_laws(classes, 1, seed=9)[0]
        best = optimize.minimize(lambda z: -information.entropy(softmax(z)), np.log(start), tol=1e-12)
        worst_error(-best.fun, math.log(classes), rtol=1e-9, why="a numerical search")
        assert np.allclose(softmax(best.x), uniform, atol=1e-4)
        for k in range(classes):
            assert information.entropy(np.eye(classes)[k]) == 0


@pytest.mark.equation("eq-mixture", by="reference")
def test_mixing_gains_two_divergences(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    &H(M) - \lambda H(P) - (1 - \lambda) H(Q) \\
    &\quad = \lambda\, \mathrm{KL}(P \,\|\, M) + (1 - \lambda)\, \mathrm{KL}(Q \,\|\, M) \ge 0
    \end{aligned}
    $$ (eq-mixture)
    """
    laws = random_laws(4, 80, seed=5)
    laws[:10, 1] = 0
    laws /= laws.sum(axis=1, keepdims=True)
    for p, q in zip(laws[:40], laws[40:], strict=True):
        for weight in (0.0, 0.2, 0.5, 0.9):
            m = weight * p + (1 - weight) * q
            left = float(mp_cross(m, m) - weight * mp_cross(p, p) - (1 - weight) * mp_cross(q, q))
            # wrong: mp_kl(p, m) + (1 - weight) -> mp_kl(p, m) + weight
            right = float(weight * mp_kl(p, m) + (1 - weight) * mp_kl(q, m)) if weight else 0.0
            worst_error(left, right, atol=1e-14, why=ROUNDINGS)
            assert right >= 0
            if weight == 0.5:
                worst_error(information.js_divergence(p, q), right, atol=1e-14, why=ROUNDINGS)
                assert right <= math.log(2)
    assert information.js_divergence([1.0, 0.0], [0.0, 1.0]) == pytest.approx(math.log(2))


# -------------------------------------------------------------------------------- models with an input


def joint_laws(seed: int) -> Iterator[tuple[Array, Array, Array, Array]]:
    """P(x), P(y | x), Q(x), Q(y | x) for three inputs and four labels."""
    for k in range(20):
        yield (
            random_laws(3, 1, seed=seed + 4 * k)[0],
            random_laws(4, 3, seed=seed + 4 * k + 1),
            random_laws(3, 1, seed=seed + 4 * k + 2)[0],
            random_laws(4, 3, seed=seed + 4 * k + 3),
        )


@pytest.mark.equation("eq-kl-chain", by="reference")
def test_the_divergence_of_joint_laws_splits(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    &\mathrm{KL}(P_{XY} \,\|\, Q_{XY}) \\
    &\quad = \sum_{x, y} P(x)\, P(y \mid x) \biggl[ \log \frac{P(x)}{Q(x)} \\
    &\qquad\qquad + \log \frac{P(y \mid x)}{Q(y \mid x)} \biggr] \\
    &\quad = \mathrm{KL}(P_X \,\|\, Q_X) \\
    &\qquad + \mathbb{E}_{X \sim P}\left[ \mathrm{KL}\big(P(\cdot \mid X) \,\|\, Q(\cdot \mid X)\big) \right]
    \end{aligned}
    $$ (eq-kl-chain)
    """
    for p_x, p_y, q_x, q_y in joint_laws(1000):
        joint_p, joint_q = p_x[:, None] * p_y, q_x[:, None] * q_y
        brute = float(mp_kl(joint_p.ravel(), joint_q.ravel()))
        first = sum(
            p_x[x] * p_y[x, y] * (math.log(p_x[x] / q_x[x]) + math.log(p_y[x, y] / q_y[x, y]))
            for x in range(3)
            for y in range(4)
        )
        # wrong: p_x[x] -> q_x[x]
        second = float(mp_kl(p_x, q_x)) + sum(p_x[x] * float(mp_kl(p_y[x], q_y[x])) for x in range(3))
        worst_error([first, second], [brute, brute], rtol=1e-12, why=ROUNDINGS)
        # The expectation is over P; with the model's weights it is another number.
        wrong = float(mp_kl(p_x, q_x)) + sum(q_x[x] * float(mp_kl(p_y[x], q_y[x])) for x in range(3))
        assert abs(wrong - brute) > 1e-6


@pytest.mark.equation("eq-kl-conditional", by="reference")
def test_a_shared_marginal_cancels(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    &Q_\theta(x, y) = P(x)\, Q_\theta(y \mid x) \\[1ex]
    &\mathrm{KL}(P_{XY} \,\|\, Q_\theta) \\
    &\quad = \mathbb{E}_{X \sim P}\left[ \mathrm{KL}\big(P(\cdot \mid X) \,\|\, Q_\theta(\cdot \mid X)\big)
    \right] \\[1ex]
    &H(P_{XY}, Q_\theta) = H(P_X) \\
    &\quad - \sum_x P(x) \sum_y P(y \mid x) \log Q_\theta(y \mid x)
    \end{aligned}
    $$ (eq-kl-conditional)
    """
    for p_x, p_y, _, q_y in joint_laws(2000):
        joint_p = p_x[:, None] * p_y
        joint_q = p_x[:, None] * q_y  # the first line
        divergence = sum(p_x[x] * float(mp_kl(p_y[x], q_y[x])) for x in range(3))
        # wrong: p_x)) - sum( -> p_x)) + sum(
        cross = float(mp_cross(p_x, p_x)) - sum(
            p_x[x] * sum(p_y[x, y] * math.log(q_y[x, y]) for y in range(4)) for x in range(3)
        )
        brute = [
            float(mp_kl(joint_p.ravel(), joint_q.ravel())),
            float(mp_cross(joint_p.ravel(), joint_q.ravel())),
        ]
        worst_error([divergence, cross], brute, rtol=1e-12, why=ROUNDINGS)


# ------------------------------------------------------------------------------- the law of large numbers


@pytest.mark.equation("eq-lln", by="montecarlo")
def test_averages_converge_at_the_stated_rate(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    R_n(\theta) &= \frac1n \sum_{i=1}^n \log \frac{P(y_i \mid x_i)}{Q_\theta(y_i \mid x_i)} \\[4pt]
    R_n(\theta) &\xrightarrow[n \to \infty]{} \mathrm{KL}(P_{XY} \,\|\, Q_\theta) \\[10pt]
    \operatorname{sd}\left[R_n(\theta)\right] &= \frac{\sigma_\theta}{\sqrt n} \\[4pt]
    \sigma_\theta^2 &= \operatorname{Var}_P\left[ \log \frac{P(Y \mid X)}{Q_\theta(Y \mid X)} \right]
    \end{aligned}
    $$ (eq-lln)
    """
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
        # wrong: math.sqrt(n) -> n
        worst_error(
            r_n.std(),
            sigma / math.sqrt(n),
            rtol=4 / math.sqrt(2 * repeats),
            why="four standard errors of a spread",
        )
        # Division by n instead of its root would be seen at once.
        assert n == 1 or abs(r_n.std() - sigma / n) > 10 * error


# ----------------------------------------------------------------------------- three problems, one answer


@pytest.mark.equation("eq-empirical", by="reference")
def test_the_mean_loss_is_a_cross_entropy_of_the_record(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    -\frac1n \sum_{i=1}^n \log Q_\theta(y_i) &= H(\hat P_n, Q_\theta) \\
    &= H(\hat P_n) + \mathrm{KL}(\hat P_n \,\|\, Q_\theta)
    \end{aligned}
    $$ (eq-empirical)
    """
    rng = np.random.default_rng(3)
    for n in (1, 2, 10, 500):
        y = rng.poisson(2.5, size=n)
        values, number = np.unique(y, return_counts=True)
        p_hat = number / n
        for rate in (0.5, 2.5, 6.0):
            left = -stats.poisson.logpmf(y, rate).mean()
            with mpmath.workdps(40):
                q = [
                    mpmath.exp(-rate) * mpmath.mpf(rate) ** int(v) / mpmath.factorial(int(v)) for v in values
                ]
                cross = -mpmath.fsum(
                    Fraction(int(c), n) * mpmath.log(w) for c, w in zip(number, q, strict=True)
                )
                entropy = -mpmath.fsum(
                    mpmath.mpf(int(c)) / n * mpmath.log(mpmath.mpf(int(c)) / n) for c in number
                )
                divergence = mpmath.fsum(
                    mpmath.mpf(int(c)) / n * mpmath.log(mpmath.mpf(int(c)) / n / w)
                    for c, w in zip(number, q, strict=True)
                )
            # wrong: entropy + divergence -> entropy - divergence
            worst_error([left, left], [cross, entropy + divergence], rtol=1e-12, why=ROUNDINGS)
        worst_error(information.entropy(p_hat), entropy, rtol=1e-14, atol=1e-15, why=ROUNDINGS)


@pytest.mark.equation("eq-three-problems", by="property")
def test_the_three_searches_have_the_same_solutions() -> None:
    r"""
    $$
    \begin{aligned}
    \operatorname*{arg\,max}_\theta \prod_{i=1}^n Q_\theta(y_i) &= \operatorname*{arg\,min}_\theta H(\hat P_n,
    Q_\theta) \\
    &= \operatorname*{arg\,min}_\theta \mathrm{KL}(\hat P_n \,\|\, Q_\theta)
    \end{aligned}
    $$ (eq-three-problems)
    """
    rng = np.random.default_rng(4)
    thetas = np.linspace(-3, 3, 121)
    # Distributions on three outcomes; theta and -theta give the same one.
    q = np.array([softmax([0.0, abs(t), 0.3 * t * t]) for t in thetas])
    for n in (1, 3, 20):
        for _ in range(20):
            y = rng.integers(0, 3, size=n)
            likelihood = np.array([math.prod(float(row[k]) for k in y) for row in q])
            p_hat = np.bincount(y, minlength=3) / n
            cross = information.cross_entropy(np.broadcast_to(p_hat, q.shape), q)
            divergence = information.kl_divergence(np.broadcast_to(p_hat, q.shape), q)

            def best(values: Array, sign: int) -> set[int]:
                scaled = sign * values
                return set(np.flatnonzero(scaled >= scaled.max() - 1e-12 * abs(scaled.max())).tolist())

            solutions = best(np.log(likelihood), 1)
            # wrong: best(divergence, -1) -> best(divergence, 1)
            assert solutions == best(cross, -1) == best(divergence, -1)
            assert {len(thetas) - 1 - k for k in solutions} == solutions, "several solutions, the same ones"


# ------------------------------------------------------------------------------------- no finite maximum


def has_finite_maximum(x: Array, y: Array) -> bool:
    """Decide by linear programming whether the classes overlap: then the likelihood has a maximum."""
    design = np.column_stack([np.ones_like(x), x]) * (2 * y - 1)[:, None]
    # A direction that is nowhere wrong and somewhere strictly right lets the likelihood rise for ever.
    result = optimize.linprog(-design.sum(axis=0), A_ub=-design, b_ub=np.zeros(len(x)), bounds=[(-1, 1)] * 2)
    return bool(result.fun > -1e-9)


@pytest.mark.equation("eq-conditional-problems", by="property")
def test_with_inputs_the_three_searches_agree() -> None:
    r"""Tables of conditional probabilities, data drawn from a truth that is none of them, every search by hand.

    $$
    \begin{aligned}
    &\operatorname*{arg\,min}_\theta \frac1n \sum_{i=1}^n \log \frac{P(y_i \mid x_i)}{Q_\theta(y_i \mid x_i)} \\
    &\quad = \operatorname*{arg\,min}_\theta \biggl[ -\frac1n \sum_{i=1}^n \log Q_\theta(y_i \mid x_i) \biggr] \\
    &\quad = \operatorname*{arg\,max}_\theta \prod_{i=1}^n Q_\theta(y_i \mid x_i)
    \end{aligned}
    $$ (eq-conditional-problems)
    """
    for seed in range(20):
        rng = np.random.default_rng(seed)
        truth = rng.dirichlet(np.ones(3), size=4)
        tables = rng.dirichlet(np.ones(3), size=(30, 4))
        x = rng.integers(0, 4, 25)
        y = np.array([rng.choice(3, p=truth[k]) for k in x])
        said = tables[:, x, y]
        # wrong: np.log(truth[x, y] / said) -> np.log(said / truth[x, y])
        first = np.log(truth[x, y] / said).mean(axis=1).argmin()
        second = (-np.log(said).mean(axis=1)).argmin()
        # The product in whole numbers of 2^-60, which cannot underflow or round in the comparison.
        products = [math.prod(int(q * 2**60) for q in row) for row in said]
        assert first == second == max(range(30), key=products.__getitem__)


@pytest.mark.equation("eq-no-finite-mle", by="reference")
def test_how_often_there_is_no_finite_maximum(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    &\pi_n(a) = a^n + (1 - a)^n \\
    &P(\text{no maximum}) \\
    &\quad = 1 - \left(1 - \pi_n(a_0)\right)\left(1 - \pi_n(a_1)\right)
    \end{aligned}
    $$ (eq-no-finite-mle)
    """
    for n, a_0, a_1 in ((1, 0.4, 0.8), (2, 0.3, 0.7), (3, 0.3, 0.7), (3, 0.1, 0.6)):
        x = np.repeat([0.0, 1.0], n)
        none, pure = 0.0, 0.0
        for labels in itertools.product((0.0, 1.0), repeat=2 * n):
            y = np.array(labels)
            rate = np.where(x == 0, a_0, a_1)
            probability = float(np.prod(np.where(y == 1, rate, 1 - rate)))
            none += probability * (not has_finite_maximum(x, y))
            pure += probability * (len(set(labels[:n])) == 1)
        pi_0, pi_1 = a_0**n + (1 - a_0) ** n, a_1**n + (1 - a_1) ** n
        # wrong: (1 - pi_0) * (1 - pi_1) -> pi_0 * pi_1
        printed = 1 - (1 - pi_0) * (1 - pi_1)
        worst_error([pi_0, printed], [pure, none], rtol=1e-12, why=ROUNDINGS)


# ---------------------------------------------------------------------------------------- the wrong model


@pytest.mark.equation("eq-projection", by="symbolic")
def test_the_poisson_projection_matches_the_mean() -> None:
    r"""
    $$
    \begin{aligned}
    &H(P, \mathrm{Poisson}(\lambda)) \\
    &\quad = \lambda - \mathbb{E}[X] \log \lambda + \mathbb{E}[\log X!] \\[1ex]
    &\frac{d}{d\lambda} H(P, \mathrm{Poisson}(\lambda)) \\
    &\quad = 1 - \frac{\mathbb{E}[X]}{\lambda} = 0 \;\Rightarrow\; \lambda^* = \mathbb{E}[X]
    \end{aligned}
    $$ (eq-projection)
    """
    rate, mean, log_factorial = sympy.symbols("lambda mu L", positive=True)
    printed = rate - mean * sympy.log(rate) + log_factorial
    assert sympy.simplify(sympy.diff(printed, rate) - (1 - mean / rate)) == 0
    assert sympy.solve(sympy.diff(printed, rate), rate) == [mean]
    assert sympy.simplify(sympy.diff(printed, rate, 2) - mean / rate**2) == 0


@pytest.mark.equation("eq-projection", by="reference")
def test_the_poisson_cross_entropy(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    &H(P, \mathrm{Poisson}(\lambda)) \\
    &\quad = \lambda - \mathbb{E}[X] \log \lambda + \mathbb{E}[\log X!] \\[1ex]
    &\frac{d}{d\lambda} H(P, \mathrm{Poisson}(\lambda)) \\
    &\quad = 1 - \frac{\mathbb{E}[X]}{\lambda} = 0 \;\Rightarrow\; \lambda^* = \mathbb{E}[X]
    \end{aligned}
    $$ (eq-projection)
    """
    k = np.arange(6)
    for p in random_laws(6, 20, seed=8):
        mean = float(p @ k)
        log_factorial = float(p @ [math.log(math.factorial(i)) for i in k])
        for rate in (0.3, 1.0, 4.0):
            # wrong: rate - mean * math.log(rate) -> rate + mean * math.log(rate)
            printed = rate - mean * math.log(rate) + log_factorial
            worst_error(printed, -p @ stats.poisson.logpmf(k, rate), rtol=1e-12, why=ROUNDINGS)
        search = optimize.minimize_scalar(
            lambda r, p=p: -p @ stats.poisson.logpmf(k, r), bounds=(1e-3, 10), options={"xatol": 1e-9}
        )
        worst_error(search.x, mean, rtol=1e-5, why="a numerical search")


@pytest.mark.equation("eq-pythagoras", by="reference")
def test_the_divergence_from_the_class_splits(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    \mathrm{KL}\big(P & \,\|\, \mathrm{Poisson}(\lambda)\big) \\
    = {} & \mathrm{KL}\big(P \,\|\, \mathrm{Poisson}(\lambda^*)\big) \\
    & + \mathrm{KL}\big(\mathrm{Poisson}(\lambda^*) \,\|\, \mathrm{Poisson}(\lambda)\big)
    \end{aligned}
    $$ (eq-pythagoras)
    """

    def log_poisson(k: Any, rate: Any) -> Any:
        return -rate + k * mpmath.log(rate) - mpmath.log(mpmath.factorial(k))

    with mpmath.workdps(30):
        beta = mpmath.mpf(1) / 4
        star = (1 - beta) / beta

        def log_geometric(k: Any) -> Any:
            return mpmath.log(beta) + k * mpmath.log(1 - beta)

        def divergence(log_p: Any, log_q: Any) -> Any:
            return mpmath.fsum(mpmath.exp(log_p(k)) * (log_p(k) - log_q(k)) for k in range(200))

        for rate in (mpmath.mpf("0.7"), mpmath.mpf(2), mpmath.mpf(7)):
            left = divergence(log_geometric, lambda k, rate=rate: log_poisson(k, rate))
            right = divergence(log_geometric, lambda k: log_poisson(k, star))
            # wrong: star), lambda k, rate=rate: log_poisson(k, rate) -> rate), lambda k: log_poisson(k, star)
            right += divergence(lambda k: log_poisson(k, star), lambda k, rate=rate: log_poisson(k, rate))
            worst_error(left, right, rtol=1e-14, why="the tail beyond 200 and 30 digits")
            # Through another member of the class it does not split.
            other = divergence(log_geometric, lambda k: log_poisson(k, star + 1))
            other += divergence(lambda k: log_poisson(k, star + 1), lambda k, rate=rate: log_poisson(k, rate))
            assert abs(left - other) > 1e-3


# -------------------------------------------------------------------------- optimism, maximum entropy


@pytest.mark.equation("eq-optimism", by="property")
@pytest.mark.parametrize(("low", "high"), [(0.05, 0.95), (0.4, 0.6)], ids=["right class", "wrong class"])
def test_training_loss_is_too_low_and_new_loss_too_high(low: float, high: float) -> None:
    r"""
    $$
    \begin{aligned}
    \mathbb{E}\left[ H(\hat P_n, Q_{\hat\theta}) \right] &\le \min_\theta H(P, Q_\theta) \\
    &\le \mathbb{E}\left[ H(P, Q_{\hat\theta}) \right]
    \end{aligned}
    $$ (eq-optimism)
    """

    def loss(a: float, q: float) -> float:
        return -a * math.log(q) - (1 - a) * math.log(1 - q)

    for a in (0.1, 0.3, 0.5):
        best = min(loss(a, q) for q in np.append(np.linspace(low, high, 2001), np.clip(a, low, high)))
        for n in (1, 2, 5, 20):
            # All samples at once: the number of ones is all that matters, and it is binomial.
            weight = stats.binom.pmf(np.arange(n + 1), n, a)
            fitted = [float(np.clip(k / n, low, high)) for k in range(n + 1)]
            # wrong: k / n -> a
            training = sum(w * loss(k / n, q) for k, (w, q) in enumerate(zip(weight, fitted, strict=True)))
            new = sum(w * loss(a, q) for w, q in zip(weight, fitted, strict=True))
            assert training < best < new
            # What is fitted is what minimises the sample's loss within the class.
            for k, q in enumerate(fitted):
                assert loss(k / n, q) <= min(loss(k / n, r) for r in np.linspace(low, high, 201)) + 1e-12


@pytest.mark.equation("eq-maxent", by="reference")
def test_the_tilted_law_has_the_largest_entropy(worst_error: Any) -> None:
    r"""
    $$
    \begin{aligned}
    H(P) &= H(P, Q) - \mathrm{KL}(P \,\|\, Q) \\
    &= H(Q) - \mathrm{KL}(P \,\|\, Q) \le H(Q)
    \end{aligned}
    $$ (eq-maxent)
    """
    rng = np.random.default_rng(6)
    values = np.arange(1.0, 7.0)
    for mean in (2.0, 3.5, 4.5):
        tau = optimize.brentq(lambda t, mean=mean: softmax(t * values) @ values - mean, -20, 20, xtol=1e-14)
        q = softmax(tau * values)
        # Other laws with this mean: move along directions that keep the sum and the mean.
        null = np.linalg.svd(np.stack([np.ones(6), values]))[2][2:]
        for _ in range(30):
            direction = rng.normal(size=4) @ null
            p = q + 0.9 * direction / np.max(-direction / q)
            assert p.min() > 0
            by_q = float(mp_cross(p, q) - mp_kl(p, q))
            # wrong: mp_cross(q, q) - mp_kl(p, q) -> mp_cross(q, q) + mp_kl(p, q)
            printed = float(mp_cross(q, q) - mp_kl(p, q))
            entropy = float(mp_cross(p, p))
            worst_error([by_q, printed], [entropy, entropy], rtol=1e-11, why="the root finder's mean")
            assert entropy < float(mp_cross(q, q))
        search = optimize.minimize(
            lambda p: float((p * np.log(p)).sum()),
            np.full(6, 1 / 6),
            jac=lambda p: np.log(p) + 1,
            bounds=[(1e-9, 1)] * 6,
            constraints=[
                {"type": "eq", "fun": lambda p: p.sum() - 1},
                {"type": "eq", "fun": lambda p, mean=mean: p @ values - mean},
            ],
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )
        worst_error(-search.fun, mp_cross(q, q), rtol=1e-6, why="a constrained search")
