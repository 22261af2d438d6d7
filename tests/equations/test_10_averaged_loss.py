"""The equations of chapter 10, each as printed, against sums, quadrature, enumeration or simulation."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import sympy
from scipy import optimize, special, stats

from xent.sequences import GeometricSource, eos_optimum, length_weights

BETAS = (0.05, 0.3, 0.5, 0.8)
N = np.arange(1, 3000)


def _law(beta: float) -> np.ndarray:
    """The geometric distribution on N, from its definition by repeated failure and not from a power."""
    return beta * np.concatenate([[1.0], np.cumprod(np.full(len(N) - 1, 1 - beta))])


def _sequence_probability(q: float, letters: int, x: tuple[int, ...]) -> float:
    """Token by token: each letter has (1 - q)/m, the end has q."""
    return float(np.prod([(1 - q) / letters for _ in x])) * q


def _all_sequences(letters: int, longest: int) -> list[tuple[int, ...]]:
    return [x for k in range(longest) for x in itertools.product(range(letters), repeat=k)]


@pytest.mark.equation("eq-avg-coin", by="reference")
def test_the_fair_coins_three_terms(worst_error: Callable[..., float]) -> None:
    r"""
    $$
    \begin{aligned}
    \mathcal L_{\mathrm{sum}} &= \tfrac12 \bigl[ -\log q \bigr] + \tfrac14 \bigl[ -\log q - \log(1-q) \bigr] \\
    &\quad + \tfrac18 \bigl[ -\log q - 2 \log(1-q) \bigr] + \cdots \\
    &= -\log q - \log(1-q), \\[1ex]
    \mathcal L_{\mathrm{avg}} &= \tfrac12 \bigl[ -\log q \bigr] + \tfrac14 \cdot \tfrac12 \bigl[ -\log q -
    \log(1-q) \bigr] \\
    &\quad + \tfrac18 \cdot \tfrac13 \bigl[ -\log q - 2 \log(1-q) \bigr] + \cdots \\
    &= -A \log q - (1 - A) \log(1-q), \\
    A &= \tfrac12 + \tfrac14 \cdot \tfrac12 + \tfrac18 \cdot \tfrac13 + \cdots = \log 2 .
    \end{aligned}
    $$ (eq-avg-coin)
    """
    # The source itself, toss by toss: a path's probability, and the mean and the sum of its tokens' losses.
    why = "a sum over 60 lengths, 2^-60 of the mass left out"
    for q in (0.2, 0.5, 0.9):
        paths = [0.5**n for n in range(1, 61)]
        tokens = [[-np.log(1 - q)] * (n - 1) + [-np.log(q)] for n in range(1, 61)]
        summed = sum(p * sum(t) for p, t in zip(paths, tokens, strict=True))
        mean = sum(p * np.mean(t) for p, t in zip(paths, tokens, strict=True))
        worst_error(-np.log(q) - np.log(1 - q), summed, rtol=1e-14, why=why)
        a = np.log(2)
        # wrong: (1 - a) * np.log(1 - q) -> np.log(1 - q)
        printed = -a * np.log(q) - (1 - a) * np.log(1 - q)
        worst_error(printed, mean, rtol=1e-14, why=why)
    # The three terms that are written out are the series' first.
    log_q, log_go = np.log(0.3), np.log(0.7)
    three = 1 / 2 * -log_q + 1 / 4 * 1 / 2 * (-log_q - log_go) + 1 / 8 * 1 / 3 * (-log_q - 2 * log_go)
    first = sum(0.5**n * np.mean([-log_go] * (n - 1) + [-log_q]) for n in (1, 2, 3))
    worst_error(three, first, rtol=1e-14, why=why)


@pytest.mark.equation("eq-avg-source", by="reference")
def test_the_source_token_by_token(worst_error: Callable[..., float]) -> None:
    r"""
    $$
    \begin{aligned}
    P(x_{1:n}) &= \beta \left( \frac{1 - \beta}{m} \right)^{n - 1}, \\
    Q(x_{1:n}) &= q \left( \frac{1 - q}{m} \right)^{n - 1}, \\
    P(n) &= \beta (1 - \beta)^{n - 1}.
    \end{aligned}
    $$ (eq-avg-source)
    """
    beta, q, m = 0.4, 0.7, 3
    sequences = _all_sequences(m, 7)
    for stop in (beta, q):
        # wrong: len(x) + 1 - 1 -> len(x) + 1
        printed = [stop * ((1 - stop) / m) ** (len(x) + 1 - 1) for x in sequences]
        tokens = [_sequence_probability(stop, m, x) for x in sequences]
        worst_error(printed, tokens, rtol=1e-13, why="products and sums of many factors")
    lengths = np.array([len(x) + 1 for x in sequences])
    summed = np.bincount(lengths, weights=[_sequence_probability(beta, m, x) for x in sequences])[1:]
    worst_error(
        beta * (1 - beta) ** np.arange(7), summed, rtol=1e-13, why="products and sums of many factors"
    )


@pytest.mark.equation("eq-avg-chain", by="reference")
def test_the_chain_rule_and_the_decomposition(worst_error: Callable[..., float]) -> None:
    # Any distribution on short sequences over two letters, conditionals computed from its marginals.
    r"""
    $$
    \begin{aligned}
    \ell(x) &= -\log Q(x_{1:n}) \\
    &= \sum_{i=1}^{n} -\log Q(x_i \mid x_{<i}), \\
    D_{\mathrm{KL}}(P \,\|\, Q) &= \mathrm E_{P} \left[ \sum_{i=1}^{n} \log \frac{P(x_i \mid x_{<i})}{Q(x_i
    \mid x_{<i})} \right], \\
    \mathcal L_{\mathrm{CE}}(P, Q) &= \mathrm E_{P} \left[ \sum_{i=1}^{n} -\log Q(x_i \mid x_{<i}) \right] \\
    &= D_{\mathrm{KL}}(P \,\|\, Q) + H(P).
    \end{aligned}
    $$ (eq-avg-chain)
    """
    rng = np.random.default_rng(0)
    support = [(*x, "end") for x in _all_sequences(2, 4)]
    p, q = rng.dirichlet(np.ones(len(support))), rng.dirichlet(np.ones(len(support)))

    def conditional(law: np.ndarray, x: tuple[object, ...], i: int) -> float:
        starts = lambda k: sum(w for w, y in zip(law, support, strict=True) if y[:k] == x[:k])  # noqa: E731
        return float(starts(i + 1) / starts(i))

    tokens_q = [[-np.log(conditional(q, x, i)) for i in range(len(x))] for x in support]
    tokens_p = [[-np.log(conditional(p, x, i)) for i in range(len(x))] for x in support]
    why = "a few dozen logarithms"
    worst_error([sum(t) for t in tokens_q], -np.log(q), rtol=1e-13, why=why)
    divergence = sum(
        w * sum(b - a for a, b in zip(tp, tq, strict=True))
        for w, tp, tq in zip(p, tokens_p, tokens_q, strict=True)
    )
    worst_error(divergence, (p * np.log(p / q)).sum(), rtol=1e-12, why=why)
    cross = sum(w * sum(t) for w, t in zip(p, tokens_q, strict=True))
    # wrong: .sum() - (p -> .sum() + (p
    worst_error(cross, (p * np.log(p / q)).sum() - (p * np.log(p)).sum(), rtol=1e-13, why=why)


@pytest.mark.equation("eq-avg-sums", by="reference")
@pytest.mark.parametrize("beta", BETAS)
def test_the_two_sums(worst_error: Callable[..., float], beta: float) -> None:
    r"""
    $$
    \begin{aligned}
    \mathrm E[n] &= \sum_{i=1}^{\infty} (1 - \beta)^{i-1} = \frac{1}{\beta}, \\
    A &= \frac{\beta}{1 - \beta} \sum_{n=1}^{\infty} \frac{(1 - \beta)^n}{n} = \frac{\beta \log \beta}{\beta - 1}.
    \end{aligned}
    $$ (eq-avg-sums)
    """
    law = _law(beta)
    powers = sum((1 - beta) ** (i - 1) for i in range(1, 900))
    why = "direct sums of 900 terms and more"
    worst_error([powers, 1 / beta], np.full(2, law @ N), rtol=1e-12, why=why)
    series = beta / (1 - beta) * sum((1 - beta) ** n / n for n in range(1, 900))
    # wrong: beta - 1 -> 1 - beta
    closed = beta * np.log(beta) / (beta - 1)
    worst_error([series, closed], np.full(2, law @ (1 / N)), rtol=1e-12, why=why)


@pytest.mark.equation("eq-avg-sums", by="symbolic")
def test_the_fair_coins_sums() -> None:
    r"""
    $$
    \begin{aligned}
    \mathrm E[n] &= \sum_{i=1}^{\infty} (1 - \beta)^{i-1} = \frac{1}{\beta}, \\
    A &= \frac{\beta}{1 - \beta} \sum_{n=1}^{\infty} \frac{(1 - \beta)^n}{n} = \frac{\beta \log \beta}{\beta - 1}.
    \end{aligned}
    $$ (eq-avg-sums)
    """
    n = sympy.Symbol("n", positive=True, integer=True)
    assert sympy.summation(n * 2**-n, (n, 1, sympy.oo)) == 2
    assert (
        sympy.simplify(sympy.summation(sympy.Rational(1, 2) ** n / n, (n, 1, sympy.oo)) - sympy.log(2)) == 0
    )


@pytest.mark.equation("eq-avg-geometric", by="reference")
@pytest.mark.parametrize("beta", BETAS)
def test_the_three_closed_forms(worst_error: Callable[..., float], beta: float) -> None:
    r"""
    $$
    \begin{aligned}
    &\mathcal L_{\mathrm{CE}}(P, Q) \\
    &\ = -\log q - \left( \frac1\beta - 1 \right) \log \frac{1 - q}{m}, \\
    &H(P) \\
    &\ = -\log \beta - \left( \frac1\beta - 1 \right) \log \frac{1 - \beta}{m}, \\
    &D_{\mathrm{KL}}(P \,\|\, Q) \\
    &\ = \log \frac{\beta}{q} + \left( \frac1\beta - 1 \right) \log \frac{1 - \beta}{1 - q} \\
    &\ = \frac{\mathrm{kl}(\beta \,\|\, q)}{\beta}.
    \end{aligned}
    $$ (eq-avg-geometric)
    """
    q, m = 0.35, 5
    law, why = _law(beta), "sums over 3000 lengths"

    def surprise(stop: float) -> np.ndarray:
        return np.array([-np.log(stop) + (n - 1) * -np.log((1 - stop) / m) for n in N])

    # wrong: (1 / beta - 1) * np.log((1 - q) / m) -> 1 / beta * np.log((1 - q) / m)
    cross = -np.log(q) - (1 / beta - 1) * np.log((1 - q) / m)
    entropy = -np.log(beta) - (1 / beta - 1) * np.log((1 - beta) / m)
    divergence = np.log(beta / q) + (1 / beta - 1) * np.log((1 - beta) / (1 - q))
    toss = beta * np.log(beta / q) + (1 - beta) * np.log((1 - beta) / (1 - q))
    worst_error(cross, law @ surprise(q), rtol=1e-12, why=why)
    worst_error(entropy, law @ surprise(beta), rtol=1e-12, why=why)
    expected = law @ (surprise(q) - surprise(beta))
    worst_error([divergence, toss / beta], [expected, expected], rtol=1e-10, why=why)


@pytest.mark.equation("eq-avg-geometric", by="symbolic")
def test_the_fair_coins_closed_forms() -> None:
    r"""
    $$
    \begin{aligned}
    &\mathcal L_{\mathrm{CE}}(P, Q) \\
    &\ = -\log q - \left( \frac1\beta - 1 \right) \log \frac{1 - q}{m}, \\
    &H(P) \\
    &\ = -\log \beta - \left( \frac1\beta - 1 \right) \log \frac{1 - \beta}{m}, \\
    &D_{\mathrm{KL}}(P \,\|\, Q) \\
    &\ = \log \frac{\beta}{q} + \left( \frac1\beta - 1 \right) \log \frac{1 - \beta}{1 - q} \\
    &\ = \frac{\mathrm{kl}(\beta \,\|\, q)}{\beta}.
    \end{aligned}
    $$ (eq-avg-geometric)
    """
    q, m, b = sympy.symbols("q m beta", positive=True)
    half = sympy.Rational(1, 2)
    cross = -sympy.log(q) - (1 / b - 1) * sympy.log((1 - q) / m)
    at_half = cross.subs(b, half)
    entropy = at_half.subs(q, half)
    assert sympy.expand_log(at_half - (-sympy.log(q) - sympy.log((1 - q) / m)), force=True) == 0
    assert sympy.simplify(sympy.expand_log(entropy - (2 * sympy.log(2) + sympy.log(m)), force=True)) == 0
    divergence = -2 * sympy.log(2) - sympy.log(q) - sympy.log(1 - q)
    assert sympy.simplify(sympy.expand_log(at_half - entropy - divergence, force=True)) == 0


def _averaged(a: float, q: float, m: int) -> float:
    # wrong[eq-avg-averaged]: (1 - q) / m -> 1 - q
    return float(-a * np.log(q) - (1 - a) * np.log((1 - q) / m))


@pytest.mark.equation("eq-avg-averaged", by="reference")
@pytest.mark.parametrize("beta", BETAS)
def test_the_averaged_loss(worst_error: Callable[..., float], beta: float) -> None:
    r"""
    $$
    \begin{aligned}
    &\mathcal L_{\mathrm{avg}}(P, Q) \\
    &\ = \mathrm E_{n \sim P} \biggl[ \frac1n\, \mathrm E_{x_{1:n} \sim P(\cdot \mid n)} \\
    &\qquad\quad \biggl[ \sum_{i=1}^{n} -\log Q(x_i \mid x_{<i}) \biggr] \biggr] \\
    &\ = -A \log q - (1 - A) \log \frac{1 - q}{m}.
    \end{aligned}
    $$ (eq-avg-averaged)
    """
    m, law = 4, _law(beta)
    for q in (0.1, 0.6, 0.95):
        tokens = [np.mean([-np.log((1 - q) / m)] * (n - 1) + [-np.log(q)]) for n in N[:800]]
        first = law[:800] @ np.array(tokens)
        printed = _averaged(law @ (1 / N), q, m)
        worst_error(printed, first, rtol=1e-12, why="a sum over 800 lengths")


@pytest.mark.equation("eq-avg-optimum", by="symbolic")
def test_the_derivative_vanishes_at_the_mean_of_the_inverse() -> None:
    r"""
    $$
    \begin{aligned}
    \frac{\mathrm d}{\mathrm d q} \mathcal L_{\mathrm{avg}} &= -\frac{A}{q} + \frac{1 - A}{1 - q} = 0 \\
    \Longrightarrow \quad q^* &= A = \mathrm E\left[ \frac1n \right] = \frac{\beta \log \beta}{\beta - 1}.
    \end{aligned}
    $$ (eq-avg-optimum)
    """
    a, q, m = sympy.symbols("A q m", positive=True)
    loss = -a * sympy.log(q) - (1 - a) * sympy.log((1 - q) / m)
    # wrong: -a / q + (1 - a) / (1 - q) -> -a / q - (1 - a) / (1 - q)
    printed = -a / q + (1 - a) / (1 - q)
    assert sympy.simplify(sympy.diff(loss, q) - printed) == 0
    assert sympy.solve(sympy.Eq(printed, 0), q) == [a]


@pytest.mark.equation("eq-avg-optimum", by="reference")
@pytest.mark.parametrize("beta", BETAS)
def test_the_optimum_by_search(worst_error: Callable[..., float], beta: float) -> None:
    r"""
    $$
    \begin{aligned}
    \frac{\mathrm d}{\mathrm d q} \mathcal L_{\mathrm{avg}} &= -\frac{A}{q} + \frac{1 - A}{1 - q} = 0 \\
    \Longrightarrow \quad q^* &= A = \mathrm E\left[ \frac1n \right] = \frac{\beta \log \beta}{\beta - 1}.
    \end{aligned}
    $$ (eq-avg-optimum)
    """
    with mpmath.workdps(30):
        b = mpmath.mpf(beta)
        mean = mpmath.nsum(lambda n: b * (1 - b) ** (n - 1) / n, [1, mpmath.inf])
        slope = lambda q: -mean / q + (1 - mean) / (1 - q)  # noqa: E731
        found = mpmath.findroot(slope, (b, (1 + b) / 2), solver="anderson")
        swapped = (b - 1) / b * mpmath.log(1 - b)
        worst_error(beta * np.log(beta) / (beta - 1), found, rtol=1e-12, why="a root in 30 digits")
        assert (abs(swapped - found) < 1e-12) == (beta == 0.5), "the swapped formula is right at 1/2 only"


@pytest.mark.equation("eq-avg-limits", by="symbolic")
def test_the_limits() -> None:
    r"""
    $$
    \lim_{\beta \to 0} \frac{q^*}{\beta \log (1/\beta)} = 1, \qquad
    \lim_{\beta \to 1} \frac{1 - q^*}{1 - \beta} = \frac12 .
    $$ (eq-avg-limits)
    """
    b = sympy.Symbol("beta", positive=True)
    optimum = b * sympy.log(b) / (b - 1)
    # wrong: optimum / (b * sympy.log(1 / b)) -> optimum / b
    assert sympy.limit(optimum / (b * sympy.log(1 / b)), b, 0, "+") == 1
    assert sympy.limit((1 - optimum) / (1 - b), b, 1, "-") == sympy.Rational(1, 2)


@pytest.mark.equation("eq-avg-tilt", by="property")
def test_no_law_beats_the_tilted_one() -> None:
    r"""
    $$
    \begin{aligned}
    &Q^*(y) = \frac{w(y)\, P(y)}{\mathrm E_P[w]}, \\[1ex]
    &\mathrm E_{P} \bigl[ -w(y) \log Q(y) \bigr] \\
    &\quad = \mathrm E_P[w]\; \mathrm E_{Q^*} \bigl[ -\log Q(y) \bigr] \\
    &\quad = \mathrm E_P[w]\, \bigl( H(Q^*) + D_{\mathrm{KL}}(Q^* \,\|\, Q) \bigr), \\[1ex]
    &D_{\mathrm{KL}}(P \,\|\, Q^*) \\
    &\quad = \log \mathrm E_P[w] - \mathrm E_P[\log w] \ \ge\ 0.
    \end{aligned}
    $$ (eq-avg-tilt)
    """
    rng = np.random.default_rng(2)
    for _ in range(100):
        p, w = rng.dirichlet(np.ones(5)), rng.uniform(0.1, 3, size=5)
        # wrong: w * p / (w @ p) -> p / w / ((1 / w) @ p)
        tilted = w * p / (w @ p)

        def loss(q: np.ndarray, p: np.ndarray = p, w: np.ndarray = w) -> float:
            return float((p * -w * np.log(q)).sum())

        for q in rng.dirichlet(np.ones(5), size=30):
            kl = (tilted * np.log(tilted / q)).sum()
            assert loss(q) == pytest.approx(
                (w @ p) * ((-tilted * np.log(tilted)).sum() + kl), rel=1e-12, abs=0
            )
            assert loss(q) > loss(tilted)
        excess = np.log(w @ p) - p @ np.log(w)
        assert excess == pytest.approx((p * np.log(p / tilted)).sum(), rel=1e-10, abs=0)
        assert excess > 0


@pytest.mark.equation("eq-avg-harmonic", by="reference")
def test_the_harmonic_mean(worst_error: Callable[..., float]) -> None:
    r"""
    $$
    \begin{aligned}
    Q^*(x) &= \frac{P(x) / n}{\mathrm E_P[1/n]}, \\
    \mathrm E_{Q^*}[n] &= \frac{\mathrm E_P[n \cdot 1/n]}{\mathrm E_P[1/n]} = \frac{1}{\mathrm E_P[1/n]}.
    \end{aligned}
    $$ (eq-avg-harmonic)
    """
    rng = np.random.default_rng(3)
    for _ in range(5):
        n, p = rng.integers(1, 60, size=12), rng.dirichlet(np.ones(12))
        # Nothing but the averaged loss in the logits, and its slopes.
        found = optimize.minimize(
            lambda z, n=n, p=p: -(p / n) @ special.log_softmax(z),
            np.zeros(12),
            jac=lambda z, n=n, p=p: (p / n).sum() * special.softmax(z) - p / n,
            options={"gtol": 1e-11},
        )
        q = special.softmax(found.x)
        # wrong: (p / n) / (p @ (1 / n)) -> (p * n) / (p @ n)
        printed = (p / n) / (p @ (1 / n))
        worst_error(printed, q, rtol=1e-5, why="the minimiser found by BFGS")
        worst_error(1 / (p @ (1 / n)), q @ n, rtol=1e-5, why="the minimiser found by BFGS")


@pytest.mark.equation("eq-avg-context", by="property")
def test_the_weighted_loss_sorts_by_context() -> None:
    # Three tokens over two letters, any joint law, a weight that depends on the whole sequence and position.
    r"""
    $$
    \begin{aligned}
    & \mathrm E \left[ \sum_i -w_i \log Q(x_i \mid c_i) \right] \\
    & \ = -\sum_{c, v} \mathrm E \biggl[ \sum_i w_i\, \mathbf 1\{c_i = c, x_i = v\} \biggr] \\
    & \qquad\quad \cdot \log Q(v \mid c), \\
    & Q^*(v \mid c) \propto P(v \mid c)\, W(v, c), \\
    & W(v, c) = \mathrm E[w_i \mid c_i = c,\, x_i = v].
    \end{aligned}
    $$ (eq-avg-context)
    """
    rng = np.random.default_rng(4)
    sequences = list(itertools.product((0, 1), repeat=3))
    p = rng.dirichlet(np.ones(8))
    w = rng.uniform(0.2, 2, size=(8, 3))
    contexts = [c for k in range(3) for c in itertools.product((0, 1), repeat=k)]
    rows = {c: rng.dirichlet(np.ones(2)) for c in contexts}

    def loss(q: dict[tuple[int, ...], np.ndarray]) -> float:
        return sum(
            p[k] * w[k, i] * -np.log(q[x[:i]][x[i]]) for k, x in enumerate(sequences) for i in range(3)
        )

    best: dict[tuple[int, ...], np.ndarray] = {}
    total = 0.0
    for c in contexts:
        i = len(c)
        joint = np.array(
            [sum(p[k] for k, x in enumerate(sequences) if x[: i + 1] == (*c, v)) for v in (0, 1)]
        )
        weighted = np.array(
            [sum(p[k] * w[k, i] for k, x in enumerate(sequences) if x[: i + 1] == (*c, v)) for v in (0, 1)]
        )
        total += float((weighted * -np.log(rows[c])).sum())
        # wrong: (joint / joint.sum()) * (weighted / joint) -> joint / joint.sum()
        tilt = (joint / joint.sum()) * (weighted / joint)  # P(v|c) W(v, c)
        best[c] = tilt / tilt.sum()
    assert total == pytest.approx(loss(rows), rel=1e-12, abs=0)
    for c in contexts:
        for step in (-1e-3, 1e-3):
            moved = best | {c: best[c] + np.array([step, -step])}
            assert loss(moved) > loss(best)


@pytest.mark.equation("eq-avg-step", by="reference")
@pytest.mark.parametrize("beta", BETAS)
def test_the_odds_of_stopping(worst_error: Callable[..., float], beta: float) -> None:
    r"""
    $$
    \begin{aligned}
    \frac{h^*(t)}{1 - h^*(t)} &= \frac{\beta}{1 - \beta} \cdot \frac{W(\text{eos}, t)}{W(\text{letter}, t)},
    \\
    W(\text{eos}, t) &= \frac1t, \\
    W(\text{letter}, t) &= \mathrm E\left[ \frac1n \,\Big|\, n > t \right] \\
    &\le \frac{1}{t + 1}.
    \end{aligned}
    $$ (eq-avg-step)
    """
    law = _law(beta)
    tilted = (law / N) / (law / N).sum()
    for t in (1, 2, 5, 12):
        hazard = tilted[t - 1] / tilted[t - 1 :].sum()
        ahead = (law[t:] / N[t:]).sum() / law[t:].sum()
        # wrong: beta / (1 - beta) * (1 / t) / ahead -> beta / (1 - beta) / ahead
        printed = beta / (1 - beta) * (1 / t) / ahead
        worst_error(printed, hazard / (1 - hazard), rtol=1e-10, why="tails of a law of 3000 lengths")
        assert ahead <= 1 / (t + 1)
        assert printed >= beta / (1 - beta) * (t + 1) / t


@pytest.mark.equation("eq-avg-log-law", by="reference")
@pytest.mark.parametrize("beta", BETAS)
def test_the_logarithmic_law(worst_error: Callable[..., float], beta: float) -> None:
    r"""
    $$
    \begin{aligned}
    Q^*(n) &= \frac{(1 - \beta)^n}{-n \log \beta}, \\
    h^*(n) &= \frac{Q^*(n)}{\sum_{k \ge n} Q^*(k)}, \\
    h^*(1) &= \frac{1 - \beta}{-\log \beta}, \\
    \lim_{n \to \infty} h^*(n) &= \beta .
    \end{aligned}
    $$ (eq-avg-log-law)
    """
    law = _law(beta)
    tilted = (law / N) / (law / N).sum()
    # wrong: np.log(beta) -> np.log(1 - beta)
    printed = (1 - beta) ** N[:60] / (-N[:60] * np.log(beta))
    why = "a law of 3000 lengths, summed"
    worst_error(printed, tilted[:60], rtol=1e-11, why=why)
    worst_error((1 - beta) / -np.log(beta), tilted[0], rtol=1e-12, why=why)
    with mpmath.workdps(30):
        r = 1 - mpmath.mpf(beta)
        n = 4000
        far = 1 / mpmath.fsum(r**k * n / (n + k) for k in range(3000))
    worst_error(far, beta, rtol=0.01, why="the hazard at step 4000, which is not yet infinity")


@pytest.mark.equation("eq-avg-batch-weight", by="reference")
@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_batch_weight(worst_error: Callable[..., float], size: int) -> None:
    r"""
    $$
    \begin{aligned}
    \mathrm E \left[ \frac{\sum_{b=1}^B \ell(x_b)}{\sum_{b=1}^B n_b} \right] &= B\, \mathrm E\bigl[ w_B(n)\,
    \ell(x) \bigr], \\
    w_B(n) &= \mathrm E\left[ \frac{1}{n + S_{B-1}} \right] \\
    &= \int_0^1 u^{n-1} G(u)^{B-1} \,\mathrm d u .
    \end{aligned}
    $$ (eq-avg-batch-weight)
    """
    rng = np.random.default_rng(5)
    lengths, cost = np.array([1, 2, 5, 9]), rng.uniform(1, 20, size=4)
    p = rng.dirichlet(np.ones(4))
    ratio = 0.0
    for batch in itertools.product(range(4), repeat=size):
        ratio += float(np.prod(p[list(batch)])) * cost[list(batch)].sum() / lengths[list(batch)].sum()

    def weight(n: int) -> mpmath.mpf:
        generating = lambda u: sum(a * u ** int(k) for a, k in zip(p, lengths, strict=True))  # noqa: E731
        # wrong: n - 1 -> n
        return mpmath.quad(lambda u: u ** int(n - 1) * generating(u) ** (size - 1), [0, 1])

    weights = [weight(n) for n in lengths]
    printed = size * sum(float(a) * w * c for a, w, c in zip(p, weights, cost, strict=True))
    worst_error(printed, ratio, rtol=1e-12, why="all batches enumerated, and quadrature")
    found = length_weights(lengths, size, probabilities=p)
    worst_error(found, weights, rtol=1e-12, why="all batches enumerated, and quadrature")


@pytest.mark.equation("eq-avg-batch-optimum", by="reference")
@pytest.mark.parametrize("beta", [0.02, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("size", [1, 2, 5, 40])
def test_the_batch_optimum_in_all_its_forms(
    worst_error: Callable[..., float], beta: float, size: int
) -> None:
    r"""
    $$
    \begin{aligned}
    &q^*(B, \beta) = B\, \mathrm E\left[ \frac1S \right] \\
    &\ = B \int_0^1 \left( \frac{\beta u}{1 - (1 - \beta) u} \right)^{\!B} \frac{\mathrm d u}{u} \\
    &\ = B \int_0^1 \frac{v^{B-1}}{1 + \rho v}\, \mathrm d v, \qquad \rho = \frac{1 - \beta}{\beta}, \\
    &\ = \beta\; {}_2F_1(1, 1; B + 1; 1 - \beta).
    \end{aligned}
    $$ (eq-avg-batch-optimum)
    """
    letters = np.arange(80_000)
    share = stats.nbinom.pmf(letters, size, beta) @ (size / (size + letters))
    with mpmath.workdps(25):
        b = mpmath.mpf(beta)
        rho = (1 - b) / b
        second = size * mpmath.quad(lambda u: (b * u / (1 - (1 - b) * u)) ** size / u, [0, 0.5, 0.9, 0.99, 1])
        third = size * mpmath.quad(lambda v: v ** (size - 1) / (1 + rho * v), [0, 0.1, 0.5, 1])
        # wrong: size + 1 -> size
        last = b * mpmath.hyp2f1(1, 1, size + 1, 1 - b)
    forms = [second, third, last, eos_optimum(beta, size)]
    worst_error(forms, np.full(4, share), rtol=1e-10, why="the negative binomial law, summed in float64")


@pytest.mark.equation("eq-avg-batch-optimum", by="montecarlo")
def test_the_batch_optimum_drawn(worst_error: Callable[..., float]) -> None:
    r"""
    $$
    \begin{aligned}
    &q^*(B, \beta) = B\, \mathrm E\left[ \frac1S \right] \\
    &\ = B \int_0^1 \left( \frac{\beta u}{1 - (1 - \beta) u} \right)^{\!B} \frac{\mathrm d u}{u} \\
    &\ = B \int_0^1 \frac{v^{B-1}}{1 + \rho v}\, \mathrm d v, \qquad \rho = \frac{1 - \beta}{\beta}, \\
    &\ = \beta\; {}_2F_1(1, 1; B + 1; 1 - \beta).
    \end{aligned}
    $$ (eq-avg-batch-optimum)
    """
    rng = np.random.default_rng(6)
    for beta, size in ((0.5, 1), (0.1, 4), (0.01, 8)):
        share = size / rng.geometric(beta, size=(60_000, size)).sum(axis=1)
        error = share.std() / np.sqrt(len(share))
        worst_error((share.mean() - eos_optimum(beta, size)) / error, 0.0, atol=4, why="four standard errors")


@pytest.mark.equation("eq-avg-batch-bounds", by="property")
def test_the_bounds() -> None:
    r"""
    $$
    \frac{1 - \beta}{B + 1} \ \le\ \frac{q^*(B, \beta)}{\beta} - 1 \ \le\ \frac{1 - \beta}{B - 1}, \qquad B
    \ge 2.
    $$ (eq-avg-batch-bounds)
    """
    with mpmath.workdps(30):
        for beta in ("1e-12", "0.001", "0.1", "0.5", "0.97", "0.999999999999"):
            b = mpmath.mpf(beta)
            for size in (2, 3, 5, 17, 300):
                bias = mpmath.hyp2f1(1, 1, size + 1, 1 - b) - 1
                # wrong: (1 - b) / (size - 1) -> 1 - b
                lower, upper = (1 - b) / (size + 1), (1 - b) / (size - 1)
                assert lower <= bias <= upper
                # Neither bound may be tightened, for each is approached: one at rare ends, one at sure ones.
                if beta == "1e-12":
                    assert bias > upper * (1 - mpmath.mpf(10) ** -9)
                if beta == "0.999999999999":
                    assert bias < lower * (1 + mpmath.mpf(10) ** -9)


def _length_distributions() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(7)
    return [
        (np.array([1, 2, 4, 30]), rng.dirichlet(np.ones(4))),
        (np.arange(3, 9), np.full(6, 1 / 6)),
        (np.arange(1, 300), GeometricSource(0.2).length_probabilities(299)),
    ]


def _convolved(law: np.ndarray, size: int) -> np.ndarray:
    total = np.array([1.0])
    for _ in range(size):
        total = np.convolve(total, law)
    return total


@pytest.mark.equation("eq-avg-batch-general", by="reference")
def test_length_and_excess_to_first_order(worst_error: Callable[..., float]) -> None:
    r"""
    $$
    \begin{aligned}
    \mathrm E_{Q^*}[n] &= \frac{1}{\mathrm E[1/\bar n]} \\
    &= \mu \left( 1 - \frac{\mathrm{CV}^2}{B} \right) + O(B^{-2}), \\
    D_{\mathrm{KL}}(P \,\|\, Q^*) &= \frac{\mathrm{CV}^2}{2 B^2} + O(B^{-3}), \\
    \mathrm{CV}^2 &= \frac{\sigma^2}{\mu^2}.
    \end{aligned}
    $$ (eq-avg-batch-general)
    """
    for n, p in _length_distributions():
        dense = np.bincount(n, weights=p)
        k = np.arange(len(dense))
        mu, variance = p @ n, p @ n**2 - (p @ n) ** 2
        cv2 = variance / mu**2
        scaled = []
        for size in (16, 32):
            others, batch = _convolved(dense, size - 1), _convolved(dense, size)
            w = np.array([float(others @ (1 / (a + np.arange(len(others))))) for a in n])
            tilted = p * w / (p @ w)
            harmonic = 1 / (batch[1:] @ (size / np.arange(1, len(batch))))
            worst_error(harmonic, tilted @ n, rtol=1e-11, why="exact convolution of the lengths")
            excess = np.log(p @ w) - p @ np.log(w)
            # wrong: 1 - cv2 / size -> 1 + cv2 / size
            scaled.append(
                (size**2 * (tilted @ n - mu * (1 - cv2 / size)), size**3 * (excess - cv2 / (2 * size**2)))
            )
        # What is left is of the order claimed: multiplied by B^2 and B^3 it hardly changes from 16 to 32.
        worst_error(scaled[1], scaled[0], rtol=0.35, why="the next order of the expansion")
        assert k[-1] == n[-1]


@pytest.mark.equation("eq-avg-ratio", by="reference")
def test_the_value_of_the_loss_to_first_order(worst_error: Callable[..., float]) -> None:
    r"""
    $$
    \mathrm E\left[ \frac{\sum_b \ell_b}{\sum_b n_b} \right] = R + \frac{R\, \sigma^2 - \mathrm{Cov}(\ell,
    n)}{B \mu^2} + O(B^{-2}).
    $$ (eq-avg-ratio)
    """
    q, m = 0.3, 26
    for beta in (0.1, 0.3):  # at 0.5 the next order vanishes
        mu, variance = 1 / beta, (1 - beta) / beta**2
        end, letter = -np.log(q), -np.log((1 - q) / m)
        rate = (end + (mu - 1) * letter) / mu
        covariance = letter * variance
        left = []
        for size in (64, 128):
            letters = np.arange(60_000)
            batch = stats.nbinom.pmf(letters, size, beta)
            exact = batch @ ((size * end + letters * letter) / (size + letters))
            # wrong: rate * variance - covariance -> rate * variance + covariance
            left.append(size**2 * (exact - rate - (rate * variance - covariance) / (size * mu**2)))
        worst_error(left[1], left[0], rtol=0.1, why="the next order of the expansion")


@pytest.mark.equation("eq-avg-unscored", by="reference")
def test_an_unscored_independent_length(worst_error: Callable[..., float]) -> None:
    r"""
    $$
    \begin{aligned}
    &\mathrm E\left[ \frac1N \sum_{i=1}^{N} -\log Q(x_i \mid x_{<i}) \right] \\
    &\ = \sum_{i \ge 1} \mathrm E\left[ \frac{\mathbf 1\{N \ge i\}}{N} \right] \\
    &\qquad\quad \cdot \mathrm E\bigl[ -\log Q(x_i \mid x_{<i}) \bigr].
    \end{aligned}
    $$ (eq-avg-unscored)
    """
    rng = np.random.default_rng(8)
    p, q = rng.dirichlet(np.ones(8)), rng.dirichlet(np.ones(8))  # laws of three letters out of {0, 1}
    tokens = list(itertools.product((0, 1), repeat=3))
    law = rng.dirichlet(np.ones(3))  # of N = 1, 2, 3

    def cost(x: tuple[int, ...], i: int) -> float:
        starts = lambda k: sum(a for a, y in zip(q, tokens, strict=True) if y[:k] == x[:k])  # noqa: E731
        return float(-np.log(starts(i + 1) / starts(i)))

    left = sum(
        a * b * sum(cost(x, i) for i in range(n)) / n
        for a, x in zip(p, tokens, strict=True)
        for n, b in zip((1, 2, 3), law, strict=True)
    )
    # wrong: n >= i -> n > i
    right = sum(
        sum(b / n for n, b in zip((1, 2, 3), law, strict=True) if n >= i)
        * sum(a * cost(x, i - 1) for a, x in zip(p, tokens, strict=True))
        for i in (1, 2, 3)
    )
    worst_error(right, left, rtol=1e-13, why="24 terms enumerated")
