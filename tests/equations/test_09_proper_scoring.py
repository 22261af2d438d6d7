"""The equations of chapter 09, each as printed, against something that does not come from it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import mpmath
import numpy as np
import pytest
import sympy as sp
from scipy.optimize import linprog, minimize
from scipy.special import softmax, xlogy

from xent import scoring
from xent.scoring import elicited, expected_score

ROUNDING = "a few roundings in float64"
SEARCH = "the search ends where the cost no longer changes"
Array = np.ndarray


def laws(classes: int, size: int, seed: int = 0, floor: float = 0.0) -> Array:
    """Random distributions, no entry below `floor`."""
    p = np.random.default_rng(seed).dirichlet(np.ones(classes), size=size)
    return floor + (1 - classes * floor) * p


def symbols(name: str, classes: int = 3) -> list[sp.Symbol]:
    return list(sp.symbols(f"{name}1:{classes + 1}", positive=True))


# The right-hand sides of eq-three-rules, transcribed for sympy.
def log_rule(q: list, k: int) -> sp.Expr:
    return -sp.log(q[k])


def brier_rule(q: list, k: int) -> sp.Expr:
    return sum((q[j] - int(j == k)) ** 2 for j in range(len(q)))


def spherical_rule(q: list, k: int) -> sp.Expr:
    return 1 - q[k] / sp.sqrt(sum(x**2 for x in q))


SYMBOLIC_RULES = {"log": log_rule, "brier": brier_rule, "spherical": spherical_rule}


def expected(rule: Callable, p: list, q: list) -> sp.Expr:
    return sum(p[k] * rule(q, k) for k in range(len(p)))


# ------------------------------------------------------------------------------------------ the bonus


@pytest.mark.equation("eq-absolute-cost", by="symbolic")
def test_the_expected_distance_is_a_line():
    r"""
    $$
    \begin{aligned}
    \mathbb E\, |q - Y| &= p\,(1 - q) + (1 - p)\, q \\
    &= p + (1 - 2p)\, q .
    \end{aligned}
    $$ (eq-absolute-cost)
    """
    p, q = sp.symbols("p q", positive=True)
    # wrong: p * (1 - q) + (1 - p) * q -> p * (1 - q) - (1 - p) * q
    middle = p * (1 - q) + (1 - p) * q
    right = p + (1 - 2 * p) * q
    tenths = [sp.Rational(n, 10) for n in range(11)]
    for a, b in product(tenths, tenths):  # the mean over the two outcomes of the distance itself
        assert (a * abs(b - 1) + (1 - a) * abs(b - 0)) == middle.subs({p: a, q: b})
    assert sp.expand(middle - right) == 0
    assert sp.expand(middle - (p + (2 * p - 1) * q)) != 0
    assert sp.diff(right, q).subs(p, sp.Rational(7, 10)) < 0


@pytest.mark.equation("eq-absolute-cost", by="montecarlo")
def test_the_line_is_what_many_days_cost(worst_error):
    r"""
    $$
    \begin{aligned}
    \mathbb E\, |q - Y| &= p\,(1 - q) + (1 - p)\, q \\
    &= p + (1 - 2p)\, q .
    \end{aligned}
    $$ (eq-absolute-cost)
    """
    rng = np.random.default_rng(1)
    n = 400_000
    for p, q in ((0.7, 0.7), (0.7, 1.0), (0.2, 0.4)):
        cost = np.abs(q - (rng.random(n) < p))
        worst_error(
            cost.mean(), p + (1 - 2 * p) * q, atol=4 * 0.5 / np.sqrt(n), why="four standard errors, at most"
        )


# ----------------------------------------------------------------------------------------- properness


@pytest.mark.equation("eq-expected-score", by="montecarlo")
def test_the_expected_score_is_the_mean_over_outcomes(worst_error):
    r"""
    $$
    \begin{aligned}
    S(p, q) &= \sum_{k=1}^{K} p_k\, s(q, k) , \\
    0 \cdot \infty &= 0 .
    \end{aligned}
    $$ (eq-expected-score)
    """
    rng = np.random.default_rng(2)
    n = 400_000
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    y = rng.choice(3, size=n, p=p)
    for s in (-np.log(q), (q - 1) ** 2 + (q**2).sum() - q**2):
        # wrong: p[k] -> q[k]
        transcribed = sum(p[k] * s[k] for k in range(3))
        worst_error(s[y].mean(), transcribed, atol=4 * np.std(s[y]) / np.sqrt(n), why="four standard errors")


@pytest.mark.equation("eq-expected-score", by="property")
def test_the_convention_is_the_limit():
    r"""0 * inf = 0: the cost of the report converges to it as the impossible outcome becomes so.

    $$
    \begin{aligned}
    S(p, q) &= \sum_{k=1}^{K} p_k\, s(q, k) , \\
    0 \cdot \infty &= 0 .
    \end{aligned}
    $$ (eq-expected-score)
    """
    q = [0.5, 0.5, 0.0]
    assert np.isclose(expected_score(scoring.log_score, q, q), np.log(2))
    for tiny in (1e-6, 1e-9, 1e-12):
        near = [0.5, 0.5 - tiny, tiny]
        assert abs(expected_score(scoring.log_score, near, near) - np.log(2)) < 40 * tiny


@pytest.mark.equation("eq-proper", by="property")
def test_the_definition_sorts_the_rules_as_the_chapter_says():
    r"""
    $$
    \begin{aligned}
    &\text{proper:} && S(p, p) \le S(p, q) \\
    &\text{strictly:} && S(p, p) < S(p, q) \text{ if } q \ne p
    \end{aligned}
    $$ (eq-proper)
    """
    grid = np.array([(a, b, 20 - a - b) for a in range(21) for b in range(21 - a)]) / 20
    verdicts = {
        "log": (scoring.log_score, True, True),
        "brier": (scoring.brier_score, True, True),
        "spherical": (scoring.spherical_score, True, True),
        "zero-one": (scoring.zero_one_score, True, False),
        "linear": (scoring.linear_score, False, False),
        "clipped": (partial(scoring.clipped_log_score, eps=0.12), False, False),
        "focal": (scoring.focal_loss, False, False),
    }
    for name, (rule, proper, strictly) in verdicts.items():
        holds = strict = True
        for p in grid:
            honest = expected_score(rule, p, p)
            others = expected_score(rule, p, grid)
            different = (grid != p).any(axis=1)
            # wrong: honest <= others + 1e-14 -> honest >= others + 1e-14
            holds &= bool((honest <= others + 1e-14).all())
            strict &= bool((honest < others[different] - 1e-14).all())
        assert (holds, strict) == (proper, strictly), name


@pytest.mark.equation("eq-three-rules", by="reference")
def test_the_three_rules(worst_error):
    r"""
    $$
    \begin{aligned}
    s_{\text{log}}(q, y) &= -\log q_y \\
    s_{\text{Brier}}(q, y) &= \sum_{k=1}^{K} \bigl(q_k - [k = y]\bigr)^2 \\
    s_{\text{spherical}}(q, y) &= 1 - \frac{q_y}{\lVert q \rVert_2}
    \end{aligned}
    $$ (eq-three-rules)
    """
    q = laws(4, 30, seed=3)
    for k in range(4):
        y = np.full(30, k)
        with mpmath.workdps(30):
            rows = [[mpmath.mpf(x) for x in row] for row in q]
            log = [-mpmath.log(r[k]) for r in rows]
            brier = [mpmath.fsum((r[j] - (j == k)) ** 2 for j in range(4)) for r in rows]
            # wrong: mpmath.sqrt(mpmath.fsum(x * x for x in r)) -> mpmath.fsum(x * x for x in r)
            sphere = [1 - r[k] / mpmath.sqrt(mpmath.fsum(x * x for x in r)) for r in rows]
        worst_error(scoring.log_score(q, y), log, rtol=1e-13, why=ROUNDING)
        worst_error(scoring.brier_score(q, y), brier, rtol=1e-13, why=ROUNDING)
        worst_error(scoring.spherical_score(q, y), sphere, atol=1e-14, why=ROUNDING)
        # One minus the cosine between the report and the one-hot outcome, as the chapter says.
        cosine = q @ np.eye(4)[k] / np.linalg.norm(q, axis=1)
        worst_error(scoring.spherical_score(q, y), 1 - cosine, atol=1e-14, why=ROUNDING)


@pytest.mark.equation("eq-three-excesses", by="symbolic")
def test_the_three_excesses():
    r"""
    $$
    \begin{aligned}
    D_{\text{log}}(p, q) &= \sum_{k=1}^{K} p_k \log \frac{p_k}{q_k} = \mathrm{KL}(p \,\|\, q) \\
    D_{\text{Brier}}(p, q) &= \sum_{k=1}^{K} (q_k - p_k)^2 \\
    D_{\text{spherical}}(p, q) &= \lVert p \rVert_2 \Bigl( 1 - \frac{p \cdot q}{\lVert p \rVert_2 \lVert q
    \rVert_2} \Bigr)
    \end{aligned}
    $$ (eq-three-excesses)
    """
    p, q = symbols("p"), symbols("q")
    on_simplex = {p[2]: 1 - p[0] - p[1], q[2]: 1 - q[0] - q[1]}
    norm_p, norm_q = (sp.sqrt(sum(x**2 for x in v)) for v in (p, q))
    dot = sum(a * b for a, b in zip(p, q, strict=True))
    # wrong: a * sp.log(a / b) -> b * sp.log(a / b)
    printed = {
        "log": sum(a * sp.log(a / b) for a, b in zip(p, q, strict=True)),
        "brier": sum((b - a) ** 2 for a, b in zip(p, q, strict=True)),
        "spherical": norm_p * (1 - dot / (norm_p * norm_q)),
    }
    point = {
        p[0]: sp.Rational(1, 2),
        p[1]: sp.Rational(1, 3),
        q[0]: sp.Rational(1, 7),
        q[1]: sp.Rational(2, 7),
    }
    for name, rule in SYMBOLIC_RULES.items():
        gap = expected(rule, p, q) - expected(rule, p, p) - printed[name]
        assert sp.simplify(sp.expand_log(gap.subs(on_simplex), force=True)) == 0, name
        assert printed[name].subs(on_simplex).subs(point).evalf() > 0
        wrong = expected(rule, p, q) - expected(rule, p, p) + printed[name]
        assert abs(wrong.subs(on_simplex).subs(point).evalf()) > 1e-3, "a planted sign is noticed"


@pytest.mark.equation("eq-three-excesses", by="property")
def test_an_optimiser_over_logits_finds_p():
    r"""Independent of xent's search: BFGS on the softmax, for laws inside the simplex.

    $$
    \begin{aligned}
    D_{\text{log}}(p, q) &= \sum_{k=1}^{K} p_k \log \frac{p_k}{q_k} = \mathrm{KL}(p \,\|\, q) \\
    D_{\text{Brier}}(p, q) &= \sum_{k=1}^{K} (q_k - p_k)^2 \\
    D_{\text{spherical}}(p, q) &= \lVert p \rVert_2 \Bigl( 1 - \frac{p \cdot q}{\lVert p \rVert_2 \lVert q
    \rVert_2} \Bigr)
    \end{aligned}
    $$ (eq-three-excesses)
    """
    for p in laws(4, 5, seed=4, floor=0.05):
        for rule in (scoring.log_score, scoring.brier_score, scoring.spherical_score):
            cost = lambda z, rule=rule, p=p: float(expected_score(rule, p, softmax(z)))  # noqa: E731
            found = softmax(minimize(cost, np.zeros(4), options={"gtol": 1e-9}).x)
            assert np.abs(found - p).max() < 1e-4


# ------------------------------------------------------------------------------ accuracy, linear, clipped


@pytest.mark.equation("eq-zero-one-cost", by="property")
def test_accuracy_depends_on_the_largest_class_alone():
    r"""
    $$
    \begin{aligned}
    S(p, q) &= 1 - p_{m(q)} \\
    &\ge 1 - \max_k p_k = S(p, p) .
    \end{aligned}
    $$ (eq-zero-one-cost)
    """
    p, q = laws(4, 300, seed=5), laws(4, 300, seed=6)
    cost = expected_score(scoring.zero_one_score, p, q)
    largest = q.argmax(axis=1)
    # Count hits directly: the outcome k is a hit if class k is the largest of the report.
    direct = sum(p[:, k] * (largest != k) for k in range(4))
    np.testing.assert_allclose(cost, direct, atol=1e-15)
    # wrong: 1 - p[np.arange(300), largest] -> p[np.arange(300), largest]
    np.testing.assert_allclose(1 - p[np.arange(300), largest], direct, atol=1e-15)
    assert (cost >= 1 - p.max(axis=1) - 1e-15).all()
    np.testing.assert_allclose(expected_score(scoring.zero_one_score, p, p), 1 - p.max(axis=1), atol=1e-15)
    assert (cost > 1 - p.max(axis=1) + 1e-9).any() and (largest == p.argmax(axis=1)).any()


@pytest.mark.equation("eq-linear-corner", by="reference")
def test_the_linear_score_is_a_linear_programme(worst_error):
    r"""
    $$
    \begin{aligned}
    \min_q \Bigl( 1 - \sum_{k=1}^{K} p_k q_k \Bigr) &= 1 - \max_k p_k , \\
    \text{attained at } q_k &= [k = m(p)] .
    \end{aligned}
    $$ (eq-linear-corner)
    """
    for p in laws(5, 20, seed=7):
        solved = linprog(-p, A_eq=np.ones((1, 5)), b_eq=[1.0], bounds=[(0, 1)] * 5)
        # wrong: np.argmax -> np.argmin
        corner = np.array([float(k == np.argmax(p)) for k in range(5)])
        worst_error(1 - p.max(), 1 + solved.fun, atol=1e-9, why="the linear programme's tolerance")
        worst_error(corner, solved.x, atol=1e-9, why="the linear programme's tolerance")
        worst_error(
            expected_score(scoring.linear_score, p, corner),
            1 - p.max(),
            atol=1e-9,
            why="the linear programme's tolerance",
        )


@pytest.mark.equation("eq-clipping-gain", by="reference")
def test_zeroing_a_rare_class_pays_under_a_clip(worst_error):
    r"""
    $$
    \begin{aligned}
    S(p, p) - S(p, q) &= -(1 - p_K) \log (1 - p_K) > 0 \\
    \text{for } q &= \frac{(p_1, \dots, p_{K-1}, 0)}{1 - p_K} .
    \end{aligned}
    $$ (eq-clipping-gain)
    """
    for p, eps in (([0.5, 0.45, 0.05], 0.1), ([0.4, 0.3, 0.25, 0.05], 0.06), ([0.6, 0.399, 0.001], 0.01)):
        law = np.array(p)
        zeroed = np.append(law[:-1], 0.0) / (1 - law[-1])
        with mpmath.workdps(30):

            def cost(q, law=law, eps=eps):
                clipped = [min(max(mpmath.mpf(x), mpmath.mpf(eps)), 1 - mpmath.mpf(eps)) for x in q]
                return -mpmath.fsum(mpmath.mpf(a) * mpmath.log(b) for a, b in zip(law, clipped, strict=True))

            saving = cost(law) - cost(zeroed)
        assert saving > 0
        # wrong: -(1 - law[-1]) * np.log(1 - law[-1]) -> -law[-1] * np.log(law[-1])
        printed = -(1 - law[-1]) * np.log(1 - law[-1])
        worst_error(printed, saving, rtol=1e-10, why="a difference of nearly equal costs")
        rule = partial(scoring.clipped_log_score, eps=eps)
        assert expected_score(rule, law, law) > expected_score(rule, law, zeroed)
        assert abs(printed - float(saving)) < abs(-law[-1] * np.log(law[-1]) - float(saving))
    # A second class below the clip gains nothing from its share; the chapter says that the saving is smaller then.
    law, rule = np.array([0.5, 0.4, 0.05, 0.05]), partial(scoring.clipped_log_score, eps=0.1)
    zeroed = np.append(law[:-1], 0.0) / (1 - law[-1])
    left = float(expected_score(rule, law, law) - expected_score(rule, law, zeroed))
    worst_error(-0.9 * np.log(0.95), left, rtol=1e-12, why="a difference of nearly equal costs")
    assert left < -0.95 * np.log(0.95)


# ------------------------------------------------------------------------------ tangents and divergences


@pytest.mark.slow
@pytest.mark.equation("eq-tangent", by="symbolic")
@pytest.mark.equation("eq-savage", by="symbolic")
@pytest.mark.equation("eq-bregman", by="symbolic")
def test_each_rule_is_a_tangent_of_its_own_entropy():
    r"""
    $$
    S(p, q) = H(q) + \sum_{j=1}^{K} (p_j - q_j)\, \frac{\partial H(q)}{\partial q_j} .
    $$ (eq-tangent)

    $$
    \begin{aligned}
    s(q, k) = H(q) &+ \frac{\partial H(q)}{\partial q_k} \\
    &- \sum_{j=1}^{K} q_j\, \frac{\partial H(q)}{\partial q_j} .
    \end{aligned}
    $$ (eq-savage)

    $$
    \begin{aligned}
    D(p, q) &= H(q) - H(p) \\
    &\quad + \sum_{j=1}^{K} (p_j - q_j)\, \frac{\partial H(q)}{\partial q_j} \\
    &\ge 0 .
    \end{aligned}
    $$ (eq-bregman)
    """
    p, q = symbols("p"), symbols("q")
    simplex = {p[2]: 1 - p[0] - p[1], q[2]: 1 - q[0] - q[1]}
    zero = lambda e: sp.simplify(sp.expand_log(e.subs(simplex), force=True)) == 0  # noqa: E731
    for name, rule in SYMBOLIC_RULES.items():
        entropy = expected(rule, q, q)  # H(q) = S(q, q), as a function of K free arguments
        slope = [sp.diff(entropy, x) for x in q]
        # wrong[eq-tangent]: + sum((a -> - sum((a
        tangent = entropy + sum((a - b) * d for a, b, d in zip(p, q, slope, strict=True))
        assert zero(tangent - expected(rule, p, q)), name
        inner = sum(b * d for b, d in zip(q, slope, strict=True))
        for k in range(3):
            assert zero(entropy + slope[k] - inner - rule(q, k)), name
        of_p = entropy.subs(dict(zip(q, p, strict=True)), simultaneous=True)
        assert zero(tangent - of_p - (expected(rule, p, q) - expected(rule, p, p))), name
        # The planted error: the derivative subtracted.
        point = {x: sp.Rational(n, 10) for x, n in zip([*p[:2], *q[:2]], (5, 3, 2, 7), strict=True)}
        wrong = entropy - sum((a - b) * d for a, b, d in zip(p, q, slope, strict=True)) - expected(rule, p, q)
        assert abs(wrong.subs(simplex).subs(point).evalf()) > 1e-3


@pytest.mark.equation("eq-savage", by="property")
@pytest.mark.equation("eq-bregman", by="property")
def test_any_concave_function_gives_a_proper_rule():
    r"""A function that no rule was known for: a smooth concave one, its derivatives by hand.

    $$
    \begin{aligned}
    s(q, k) = H(q) &+ \frac{\partial H(q)}{\partial q_k} \\
    &- \sum_{j=1}^{K} q_j\, \frac{\partial H(q)}{\partial q_j} .
    \end{aligned}
    $$ (eq-savage)

    $$
    \begin{aligned}
    D(p, q) &= H(q) - H(p) \\
    &\quad + \sum_{j=1}^{K} (p_j - q_j)\, \frac{\partial H(q)}{\partial q_j} \\
    &\ge 0 .
    \end{aligned}
    $$ (eq-bregman)
    """
    a = np.array([[2.0, 0.3, -0.5], [0.3, 1.0, 0.2], [-0.5, 0.2, 1.5]])
    assert (np.linalg.eigvalsh(a) > 0).all()

    def height(q: Array) -> float:
        return float(np.sin(q[0]) - q @ a @ q + 2 * np.sqrt(q[2]))

    def slope(q: Array) -> Array:
        return np.array([np.cos(q[0]), 0.0, 1 / np.sqrt(q[2])]) - 2 * a @ q

    def rule(q: Array, k: int) -> float:
        # wrong[eq-savage]: height(q) + slope(q)[k] - q @ slope(q) -> height(q) + slope(q)[k] + q @ slope(q)
        return height(q) + slope(q)[k] - q @ slope(q)

    points = laws(3, 40, seed=8, floor=0.01)
    for p, q in product(points, points):
        s_pq = sum(p[k] * rule(q, k) for k in range(3))
        s_pp = sum(p[k] * rule(p, k) for k in range(3))
        # wrong[eq-bregman]: p - q -> q - p
        printed = height(q) + (p - q) @ slope(q) - height(p)
        assert abs(s_pp - height(p)) < 1e-12
        assert abs(s_pq - s_pp - printed) < 1e-12
        assert printed >= -1e-12 and (printed > 1e-9 or np.abs(p - q).max() < 1e-3)


@pytest.mark.equation("eq-f-divergence", by="property")
def test_an_f_divergence_is_at_least_f_of_one():
    r"""
    $$
    \begin{aligned}
    \sum_{k=1}^{K} q_k\, f\Bigl(\frac{p_k}{q_k}\Bigr) &\ge f\Bigl(\sum_{k=1}^{K} p_k\Bigr) \\
    &= f(1) .
    \end{aligned}
    $$ (eq-f-divergence)
    """
    convex = {
        "t^2": np.square,
        "t log t": lambda t: xlogy(t, t),
        "-log t": lambda t: -np.log(t),
        "(sqrt t - 1)^2": lambda t: (np.sqrt(t) - 1) ** 2,
        "exp t": np.exp,
    }
    p, q = laws(4, 500, seed=9, floor=1e-3), laws(4, 500, seed=10, floor=1e-3)
    for name, f in convex.items():
        # wrong: q * f(p / q) -> p * f(p / q)
        value = (q * f(p / q)).sum(axis=1)
        assert (value > f(1.0) + 1e-6).all(), name
        np.testing.assert_allclose((p * f(p / p)).sum(axis=1), f(1.0), atol=1e-14)
    # Without strict convexity equality may hold elsewhere: f(t) = |t - 1| is not needed for that, t is.
    np.testing.assert_allclose((q * (p / q)).sum(axis=1), 1.0, rtol=1e-12)
    kl = (q * convex["t log t"](p / q)).sum(axis=1)
    np.testing.assert_allclose(kl, (p * np.log(p / q)).sum(axis=1), rtol=1e-10)


def test_the_reverse_divergence_is_no_excess_of_a_scoring_rule():
    """Up to a term in p alone an expected score is linear in p; so its differences in q are."""

    def reverse(p: Array, q: Array) -> float:
        return float((q * np.log(q / p)).sum())

    def forward(p: Array, q: Array) -> float:
        return float((p * np.log(p / q)).sum())

    p0, p1 = np.array([0.6, 0.3, 0.1]), np.array([0.1, 0.2, 0.7])
    q0, q1 = np.array([0.2, 0.5, 0.3]), np.array([0.4, 0.4, 0.2])
    for divergence, linear in ((forward, True), (reverse, False)):
        gap = lambda p, d=divergence: d(p, q0) - d(p, q1)  # noqa: E731
        bend = gap((p0 + p1) / 2) - (gap(p0) + gap(p1)) / 2
        assert (abs(bend) < 1e-14) is linear


# --------------------------------------------------------------------------------------------- locality


@pytest.mark.equation("eq-local-condition", by="property")
def test_the_condition_holds_for_the_logarithm_and_fails_for_what_is_improper():
    r"""
    $$
    p_1\, s_1'(p_1) = \dots = p_K\, s_K'(p_K) .
    $$ (eq-local-condition)
    """
    x = sp.symbols("x", positive=True)
    candidates = {
        "log": (-sp.log(x), True),
        "scaled log": (-3 * sp.log(x) + 5, True),
        "square": ((1 - x) ** 2, False),
        "focal": (-((1 - x) ** 2) * sp.log(x), False),
        "linear": (1 - x, False),
    }
    p = np.array([0.5, 0.3, 0.2])
    for name, (s, proper) in candidates.items():
        # wrong: x * sp.diff(s, x) -> sp.diff(s, x)
        products = sp.lambdify(x, x * sp.diff(s, x))(p)
        equal = bool(np.ptp(np.broadcast_to(products, 3)) < 1e-12)
        assert equal is proper, name
        # Independent of the condition: move a little mass and look at the cost itself.
        cost = sp.lambdify(x, s)
        moves = [np.array(m) for m in ([1, -1, 0], [0, 1, -1], [1, 0, -1])]
        h = 1e-5
        first = [(p @ cost(p + h * m) - p @ cost(p - h * m)) / (2 * h) for m in moves]
        assert bool(np.abs(first).max() < 1e-8) is proper, name


@pytest.mark.equation("eq-log-unique", by="symbolic")
def test_the_differential_equation_has_the_logarithm_as_its_only_solution():
    r"""
    $$
    s_k(x) = -c \log x + b_k , \quad c \ge 0 .
    $$ (eq-log-unique)
    """
    x, c = sp.symbols("x c", positive=True)
    s = sp.Function("s")
    solved = sp.dsolve(sp.Eq(x * s(x).diff(x), -c), s(x)).rhs
    (free,) = solved.free_symbols - {x, c}
    b = sp.symbols("b")
    # wrong: -c * sp.log(x) -> c * sp.log(x)
    assert sp.simplify(solved.subs(free, b) - (-c * sp.log(x) + b)) == 0


@pytest.mark.equation("eq-log-unique", by="property")
def test_among_polynomials_and_logarithms_only_the_logarithm_survives():
    r"""Solve for the coefficients of -log x, x, x^2, x^3 and sqrt(x), those of each class its own.

    $$
    s_k(x) = -c \log x + b_k , \quad c \ge 0 .
    $$ (eq-log-unique)
    """
    basis = [
        lambda x: -np.ones_like(x),
        lambda x: x,
        lambda x: 2 * x**2,
        lambda x: 3 * x**3,
        lambda x: np.sqrt(x) / 2,
    ]
    rows = []
    for p in laws(3, 200, seed=11, floor=0.01):
        products = np.array(
            [[f(p[k : k + 1])[0] for f in basis] for k in range(3)]
        )  # x s'(x) per basis function
        for k in (1, 2):
            row = np.zeros((3, 5))
            row[0], row[k] = products[0], -products[k]
            rows.append(row.ravel())
    singular = np.linalg.svd(np.array(rows))[1]
    assert (singular > 1e-3).sum() == 14, "one direction is left"
    kernel = np.linalg.svd(np.array(rows))[2][-1].reshape(3, 5)
    np.testing.assert_allclose(kernel[:, 1:], 0, atol=1e-12)
    np.testing.assert_allclose(kernel[:, 0], kernel[0, 0], atol=1e-12)
    # With two classes many more survive.
    binary = []
    for p in laws(2, 200, seed=12, floor=0.01):
        products = np.array([[f(p[k : k + 1])[0] for f in basis] for k in range(2)])
        binary.append(np.concatenate([products[0], -products[1]]))
    assert (np.linalg.svd(np.array(binary))[1] > 1e-3).sum() < 9


@pytest.mark.equation("eq-local-square", by="reference")
def test_the_local_square(worst_error):
    r"""
    $$
    q_k = 1 - \frac{(K - 1) / p_k}{\sum_{j=1}^{K} 1 / p_j} .
    $$ (eq-local-square)
    """
    p = np.array([0.5, 0.3, 0.2])
    # wrong: (len(p) - 1) / p -> len(p) / p
    printed = lambda p: 1 - ((len(p) - 1) / p) / sum(1 / x for x in p)  # noqa: E731
    worst_error(printed(p), [19 / 31, 11 / 31, 1 / 31], atol=1e-6, why=SEARCH)
    for law in (p, np.array([0.4, 0.35, 0.25]), np.array([0.3, 0.26, 0.23, 0.21]), np.array([0.9, 0.1])):
        assert (printed(law) > 0).all()
        solved = minimize(
            lambda q, law=law: law @ (1 - q) ** 2,
            np.full(len(law), 1 / len(law)),
            method="SLSQP",
            bounds=[(0, 1)] * len(law),
            constraints={"type": "eq", "fun": lambda q: q.sum() - 1},
            options={"ftol": 1e-15},
        )
        worst_error(printed(law), solved.x, atol=1e-6, why=SEARCH)
        found = elicited(lambda q, y: scoring.linear_score(q, y) ** 2, law)
        worst_error(printed(law), found, atol=1e-6, why=SEARCH)
    assert np.allclose(printed(np.array([0.9, 0.1])), [0.9, 0.1]), "two classes: honest"


@pytest.mark.equation("eq-two-class-condition", by="symbolic")
def test_the_condition_of_two_classes():
    r"""
    $$
    p\, s_1'(p) = (1 - p)\, s_2'(1 - p) .
    $$ (eq-two-class-condition)
    """
    p, q = sp.symbols("p q", positive=True)
    x = sp.symbols("x", positive=True)
    # Brier up to its factor, log, and a rule made from a free choice of s_1 by the printed equation.
    s1 = -(x**3) - x
    slope2 = sp.expand((p * sp.diff(s1, x).subs(x, p) / (1 - p)).subs(p, 1 - x))
    made = sp.integrate(slope2, x)
    for first, second in (((1 - x) ** 2, (1 - x) ** 2), (-sp.log(x), -sp.log(x)), (s1, made)):
        left = p * sp.diff(first, x).subs(x, p)
        # wrong: (1 - p) * sp.diff(second, x).subs(x, 1 - p) -> p * sp.diff(second, x).subs(x, 1 - p)
        right = (1 - p) * sp.diff(second, x).subs(x, 1 - p)
        assert sp.simplify(left - right) == 0
        cost = p * first.subs(x, q) + (1 - p) * second.subs(x, 1 - q)
        assert sp.simplify(sp.diff(cost, q).subs(q, p)) == 0, "stationary at the honest report"
        at = sp.Rational(3, 10)
        honest = cost.subs({p: at, q: at}).evalf()
        assert all(cost.subs({p: at, q: sp.Rational(n, 10)}).evalf() > honest for n in (1, 2, 4, 5, 8))
    focal = -((1 - x) ** 2) * sp.log(x)
    gap = p * sp.diff(focal, x).subs(x, p) - (1 - p) * sp.diff(focal, x).subs(x, 1 - p)
    assert abs(gap.subs(p, sp.Rational(3, 10)).evalf()) > 1e-2, "focal loss fails the condition"
    assert sp.simplify(p * sp.diff((1 - x) ** 2, x).subs(x, p) + 2 * p * (1 - p)) == 0


# ------------------------------------------------------------------------------------ bent probabilities


@pytest.mark.equation("eq-bent-and-back", by="reference")
def test_weights_and_smoothing_there_and_back(worst_error):
    r"""
    $$
    \begin{aligned}
    q_k &= \frac{w_k\, p_k}{\sum_j w_j\, p_j} \\
    p_k &= \frac{q_k / w_k}{\sum_j q_j / w_j} \\[1ex]
    q_k &= (1 - \varepsilon)\, p_k + \frac{\varepsilon}{K} \\
    p_k &= \frac{q_k - \varepsilon / K}{1 - \varepsilon}
    \end{aligned}
    $$ (eq-bent-and-back)
    """
    w, eps = np.array([1.0, 2.0, 5.0]), 0.3
    for p in laws(3, 4, seed=13, floor=0.02):
        # wrong: (w[j] * p[j] for j in range(3)) -> (w[j] for j in range(3))
        weighted = w * p / sum(w[j] * p[j] for j in range(3))
        smoothed = (1 - eps) * p + eps / 3

        # Minimise over logits, with costs written out by hand.
        def of_weights(z: Array, p: Array = p) -> float:
            return float(-(w * p * np.log(softmax(z))).sum())

        def of_smoothing(z: Array, p: Array = p) -> float:
            logs = np.log(softmax(z))
            return float(-sum(p[y] * ((1 - eps) * logs[y] + eps / 3 * logs.sum()) for y in range(3)))

        for cost, printed in ((of_weights, weighted), (of_smoothing, smoothed)):
            found = softmax(minimize(cost, np.zeros(3), method="Nelder-Mead", options=NELDER).x)
            worst_error(printed, found, atol=1e-6, why=SEARCH)
        back = (weighted / w) / sum(weighted[j] / w[j] for j in range(3))
        worst_error(back, p, atol=1e-6, why=SEARCH)
        worst_error((smoothed - eps / 3) / (1 - eps), p, atol=1e-6, why=SEARCH)
        worst_error(scoring.invert_weighting(weighted, weight=w), p, atol=1e-6, why=SEARCH)
        worst_error(scoring.invert_smoothing(smoothed, label_smoothing=eps), p, atol=1e-6, why=SEARCH)


NELDER = {"xatol": 1e-10, "fatol": 1e-16, "maxiter": 4000, "maxfev": 8000}


@pytest.mark.equation("eq-focal-inverse", by="reference")
def test_the_inverse_of_focal_loss(worst_error):
    r"""
    $$
    \begin{aligned}
    p_k &= \frac{h(q_k)}{\sum_j h(q_j)} \\
    h(x) &= \frac{x}{(1 - x)^\gamma - \gamma\, (1 - x)^{\gamma - 1}\, x \log x}
    \end{aligned}
    $$ (eq-focal-inverse)
    """

    def h(x: mpmath.mpf, gamma: float) -> mpmath.mpf:
        # wrong: ** gamma - gamma * -> ** gamma + gamma *
        return x / ((1 - x) ** gamma - gamma * (1 - x) ** (gamma - 1) * x * mpmath.log(x))

    for gamma in (0.5, 1.0, 2.0, 5.0):
        for p in laws(3, 3, seed=14, floor=0.05):
            with mpmath.workdps(40):
                # Solve the stationarity condition with mpmath's own derivative of phi.
                phi = lambda x, g=gamma: -((1 - x) ** mpmath.mpf(g)) * mpmath.log(x)  # noqa: E731

                def equations(a, b, p=p, phi=phi):
                    slopes = [mpmath.diff(phi, v) for v in (a, b, 1 - a - b)]
                    return [p[0] * slopes[0] - p[2] * slopes[2], p[1] * slopes[1] - p[2] * slopes[2]]

                start = [float(x) for x in elicited(partial(scoring.focal_loss, gamma=gamma), p)[:2]]
                a, b = mpmath.findroot(equations, start, tol=1e-25)
                q = [a, b, 1 - a - b]
                raw = [h(x, mpmath.mpf(gamma)) for x in q]
                printed = [x / mpmath.fsum(raw) for x in raw]
            worst_error([float(x) for x in printed], p, atol=1e-12, why="the root is known to 25 digits")
            mine = scoring.invert_focal([float(x) for x in q], gamma=gamma)
            worst_error(mine, p, atol=1e-12, why="the root is known to 25 digits")


@pytest.mark.equation("eq-focal-inverse", by="property")
def test_phi_is_convex_and_h_increases():
    r"""
    $$
    \begin{aligned}
    p_k &= \frac{h(q_k)}{\sum_j h(q_j)} \\
    h(x) &= \frac{x}{(1 - x)^\gamma - \gamma\, (1 - x)^{\gamma - 1}\, x \log x}
    \end{aligned}
    $$ (eq-focal-inverse)
    """
    x = np.linspace(1e-4, 1 - 1e-4, 20_001)
    for gamma in (0.0, 0.3, 1.0, 2.0, 5.0):
        phi = -((1 - x) ** gamma) * np.log(x)
        assert (np.diff(phi, 2) > 0).all()
        h = x / ((1 - x) ** gamma - gamma * (1 - x) ** (gamma - 1) * x * np.log(x))
        assert (np.diff(h) > 0).all()
        # h is minus one over the derivative of phi.
        numeric = -1 / np.gradient(phi, x)
        np.testing.assert_allclose(h[200:-200], numeric[200:-200], rtol=1e-3)


# ------------------------------------------------------------------------------------------ calibration


@pytest.mark.equation("eq-calibration-refinement", by="reference")
def test_the_squared_error_splits(worst_error):
    r"""
    $$
    \begin{aligned}
    \mathbb E\, (q - Y)^2 = {} & \underbrace{\mathbb E\, \bigl(q - \pi(q)\bigr)^2}_{\text{calibration}} \\
    &+ \underbrace{\mathbb E\, \pi(q) \bigl(1 - \pi(q)\bigr)}_{\text{refinement}}
    \end{aligned}
    $$ (eq-calibration-refinement)
    """
    rng = np.random.default_rng(15)
    for _ in range(20):
        # A joint distribution of six reports and two labels, as a table.
        joint = rng.dirichlet(np.ones(12)).reshape(6, 2)
        q = rng.random(6)
        share = joint.sum(axis=1)
        pi = joint[:, 1] / share
        direct = (joint * (q[:, None] - np.array([0.0, 1.0])) ** 2).sum()
        calibration = (share * (q - pi) ** 2).sum()
        refinement = (share * pi * (1 - pi)).sum()
        # wrong: calibration + refinement -> calibration - refinement
        worst_error(calibration + refinement, direct, rtol=1e-12, why=ROUNDING)
        # Relabelling reports changes the first term and not the second; the best relabelling is pi.
        assert (joint * (pi[:, None] - np.array([0.0, 1.0])) ** 2).sum() == pytest.approx(refinement)
