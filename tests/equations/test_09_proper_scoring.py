"""Chapter 09: what no row of test_read.py can say: any concave function, no other local rule."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import sympy as sp

Array = np.ndarray


def laws(classes: int, size: int, seed: int = 0, floor: float = 0.0) -> Array:
    """Random distributions, no entry below `floor`."""
    p = np.random.default_rng(seed).dirichlet(np.ones(classes), size=size)
    return floor + (1 - classes * floor) * p


def symbols(name: str, classes: int = 3) -> list[sp.Symbol]:
    return list(sp.symbols(f"{name}1:{classes + 1}", positive=True))


def expected(rule: Callable, p: list, q: list) -> sp.Expr:
    return sum(p[k] * rule(q, k) for k in range(len(p)))


# ------------------------------------------------------------------------------ tangents and divergences


@pytest.mark.equation("eq-savage", by="property")
@pytest.mark.equation("eq-bregman", by="property")
def test_any_concave_function_gives_a_proper_rule():
    """A function that no rule was known for: a smooth concave one, its derivatives by hand."""
    a = np.array([[2.0, 0.3, -0.5], [0.3, 1.0, 0.2], [-0.5, 0.2, 1.5]])
    assert (np.linalg.eigvalsh(a) > 0).all()

    def height(q: Array) -> float:
        return float(np.sin(q[0]) - q @ a @ q + 2 * np.sqrt(q[2]))

    def slope(q: Array) -> Array:
        return np.array([np.cos(q[0]), 0.0, 1 / np.sqrt(q[2])]) - 2 * a @ q

    def rule(q: Array, k: int) -> float:
        return height(q) + slope(q)[k] - q @ slope(q)

    points = laws(3, 40, seed=8, floor=0.01)
    for p, q in product(points, points):
        s_pq = sum(p[k] * rule(q, k) for k in range(3))
        s_pp = sum(p[k] * rule(p, k) for k in range(3))
        printed = height(q) + (p - q) @ slope(q) - height(p)
        assert abs(s_pp - height(p)) < 1e-12
        assert abs(s_pq - s_pp - printed) < 1e-12
        assert printed >= -1e-12 and (printed > 1e-9 or np.abs(p - q).max() < 1e-3)


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


@pytest.mark.equation("eq-log-unique", by="symbolic")
def test_the_differential_equation_has_the_logarithm_as_its_only_solution():
    x, c = sp.symbols("x c", positive=True)
    s = sp.Function("s")
    solved = sp.dsolve(sp.Eq(x * s(x).diff(x), -c), s(x)).rhs
    (free,) = solved.free_symbols - {x, c}
    b = sp.symbols("b")
    assert sp.simplify(solved.subs(free, b) - (-c * sp.log(x) + b)) == 0


# ------------------------------------------------------------------------------------ bent probabilities


@pytest.mark.equation("eq-focal-inverse", by="property")
def test_phi_is_convex_and_h_increases():
    x = np.linspace(1e-4, 1 - 1e-4, 20_001)
    for gamma in (0.0, 0.3, 1.0, 2.0, 5.0):
        phi = -((1 - x) ** gamma) * np.log(x)
        assert (np.diff(phi, 2) > 0).all()
        h = x / ((1 - x) ** gamma - gamma * (1 - x) ** (gamma - 1) * x * np.log(x))
        assert (np.diff(h) > 0).all()
        # h is minus one over the derivative of phi.
        numeric = -1 / np.gradient(phi, x)
        np.testing.assert_allclose(h[200:-200], numeric[200:-200], rtol=1e-3)
