"""The equations of chapter 05: rounding, the shift, what underflows, what cancels, what clipping does."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import sympy
import torch

WorstError = Callable[..., None]
RNG_ROWS = [np.random.default_rng(s).normal(size=k) * scale for s, k, scale in
            ((0, 2, 1.0), (1, 5, 10.0), (2, 50, 40.0), (3, 3, 300.0))]  # fmt: skip


def lse(z: list[mpmath.mpf]) -> mpmath.mpf:
    """The definition, without a shift; the caller sets the digits."""
    return mpmath.log(mpmath.fsum(mpmath.exp(v) for v in z))


def mp(row: np.ndarray) -> list[mpmath.mpf]:
    return [mpmath.mpf(float(v)) for v in row]


@pytest.mark.equation("eq-rounding", by="property")
def test_one_rounding_is_at_most_u_in_relation_to_the_result() -> None:
    r"""
    $$
    \operatorname{fl}(x) = x\,(1 + \delta), \qquad |\delta| \le u = 2^{-d},
    $$ (eq-rounding)
    """
    rng = np.random.default_rng(0)
    attained = {}
    for dtype, digits in ((np.float64, 53), (np.float32, 24), (np.float16, 11)):
        # wrong: 2**digits -> 2 ** (digits + 1)
        u = Fraction(1, 2**digits)
        a, b = rng.uniform(0.5, 2, (2, 400)).astype(dtype)
        worst = Fraction(0)
        for op in ("add", "multiply"):
            for x, y, r in zip(a, b, getattr(np, op)(a, b), strict=True):
                # Fractions are exact, so that nothing is rounded twice.
                p, q = Fraction(float(x)), Fraction(float(y))
                exact = p + q if op == "add" else p * q
                worst = max(worst, abs(Fraction(float(r)) - exact) / exact)
        assert worst <= u
        attained[dtype] = worst / u
    # And not much less: with one digit more the statement would be false.
    assert all(ratio > Fraction(1, 2) for ratio in attained.values())
    # bfloat16: one rounding of exact float64 products of 8-bit numbers.
    c, d = (torch.from_numpy(x).bfloat16() for x in rng.uniform(0.5, 2, (2, 400)))
    exact16 = c.double() * d.double()
    ratio = ((c * d).double() / exact16 - 1).abs().max().item() * 2**8
    assert 0.5 < ratio <= 1


@pytest.mark.equation("eq-lse-shift", by="reference")
def test_the_shift(worst_error: WorstError) -> None:
    r"""
    $$
    \begin{aligned}
    \operatorname{lse}(z) &= \log\sum_k e^{z_k} = \log\Bigl(e^{c} \sum_k e^{z_k - c}\Bigr) \\
    &= c + \log\sum_k e^{z_k - c}.
    \end{aligned}
    $$ (eq-lse-shift)
    """
    for row in RNG_ROWS:
        for c in (-7.5, 0.0, float(row.max())):
            with mpmath.workdps(800):
                z = mp(row)
                # wrong: v - c -> v + c
                shifted = c + mpmath.log(mpmath.fsum(mpmath.exp(v - c) for v in z))
                worst_error(shifted, lse(z), rtol=1e-30, why="800 digits")


@pytest.mark.equation("eq-lse-bounds", by="property")
def test_lse_is_between_the_maximum_and_log_k_above_it() -> None:
    r"""
    $$
    0 \le \operatorname{lse}(z) - \max_k z_k \le \log K .
    $$ (eq-lse-bounds)
    """
    for row in [*RNG_ROWS, np.zeros(7), np.array([3.0])]:
        with mpmath.workdps(60):
            excess = lse(mp(row)) - max(mp(row))
            # wrong: len(row) -> len(row) - 1
            assert 0 <= excess <= mpmath.log(len(row)) + mpmath.mpf(10) ** -50
    with mpmath.workdps(60):  # both ends are attained or approached
        assert abs(lse([mpmath.mpf(0)] * 7) - mpmath.log(7)) < mpmath.mpf(10) ** -50
        assert 0 < lse([mpmath.mpf(0), mpmath.mpf(-100)]) < mpmath.mpf(10) ** -40


@pytest.mark.equation("eq-probability-gap", by="reference")
def test_a_probability_falls_with_its_gap(worst_error: WorstError) -> None:
    r"""
    $$
    p_y = \frac{e^{-g}}{\sum_k e^{z_k - m}} \le e^{-g}, \qquad g = m - z_y ,
    $$ (eq-probability-gap)
    """
    for row in RNG_ROWS:
        for y in range(len(row)):
            with mpmath.workdps(60):
                z = mp(row)
                m = max(z)
                g = m - z[y]
                # wrong: mpmath.exp(-g) -> mpmath.exp(g)
                printed = mpmath.exp(-g) / mpmath.fsum(mpmath.exp(v - m) for v in z)
                softmax = mpmath.exp(z[y]) / mpmath.fsum(map(mpmath.exp, z))
                worst_error(printed, softmax, rtol=1e-30, why="60 digits")
                assert printed <= mpmath.exp(-g)


@pytest.mark.equation("eq-ce-log1p", by="symbolic")
def test_the_loss_is_log_one_plus_s() -> None:
    r"""
    $$
    \ell = \operatorname{lse}(z) - z_y = \log(1 + s), \qquad s = \sum_{j \ne y} e^{z_j - z_y} .
    $$ (eq-ce-log1p)
    """
    for classes in (2, 3, 5):
        z = sympy.symbols(f"z:{classes}", real=True)
        for y in range(classes):
            loss = sympy.log(sum(sympy.exp(v) for v in z)) - z[y]
            s = sum(sympy.exp(z[j] - z[y]) for j in range(classes) if j != y)
            # wrong: sympy.exp(loss) - (1 + s) -> sympy.exp(loss) - s
            assert sympy.simplify(sympy.exp(loss) - (1 + s)) == 0


@pytest.mark.equation("eq-dead-margin", by="framework")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_one_plus_s_rounds_to_one_beyond_log_1_over_u(dtype: torch.dtype, worst_error: WorstError) -> None:
    r"""
    $$
    a > \log\frac1u
    $$ (eq-dead-margin)
    """
    digits = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}[dtype]
    # wrong: digits -> (digits - 1)
    predicted = digits * np.log(2.0)  # log(1 / u)
    # Bisection of torch's own addition.
    low, high = 0.0, 60.0
    for _ in range(60):
        middle = (low + high) / 2
        s = torch.tensor(np.exp(-middle), dtype=dtype)
        low, high = (low, middle) if 1 + s == 1 else (middle, high)
    worst_error(high, predicted, rtol=1e-14, atol=2.0 ** (1 - digits), why="s is stored with d digits")


@pytest.mark.equation("eq-gap-form", by="reference")
def test_the_gap_form_is_the_loss(worst_error: WorstError) -> None:
    r"""
    $$
    \begin{aligned}
    \ell &= g + \log\bigl(e^{-g} + r\bigr), \\
    r &= \sum_{j \ne y} e^{z_j - m}, \\
    \ell &= \operatorname{log1p}(r)\ \text{ if } g = 0 .
    \end{aligned}
    $$ (eq-gap-form)
    """
    for row in RNG_ROWS:
        with mpmath.workdps(800):
            z = mp(row)
            m = max(z)
            powers, whole = [mpmath.exp(v - m) for v in z], lse(z)
            for y in range(len(row)):
                g = m - z[y]
                r = mpmath.fsum(powers[j] for j in range(len(z)) if j != y)
                # wrong: mpmath.exp(-g) -> mpmath.exp(g)
                worst_error(g + mpmath.log(mpmath.exp(-g) + r), whole - z[y], rtol=1e-30, why="800 digits")
                if g == 0:
                    worst_error(mpmath.log1p(r), whole - z[y], rtol=1e-30, why="800 digits")


@pytest.mark.equation("eq-clipped-loss", by="property")
def test_a_clipped_loss_is_bounded() -> None:
    r"""
    $$
    \ell_\epsilon = -\log \max(p_y, \epsilon) \le \log\frac1\epsilon
    $$ (eq-clipped-loss)
    """
    for eps in (1e-7, 1e-3, 0.1):
        p = np.concatenate([[0.0, eps / 2, eps, 2 * eps, 1.0], np.logspace(-300, 0, 200)])
        loss = -np.log(np.maximum(p, eps))
        assert (loss <= np.log(1 / eps) * (1 + 1e-15)).all()
        # wrong: np.log(1 / eps) -> 1 / eps
        assert loss.max() == pytest.approx(np.log(1 / eps), rel=1e-15, abs=0)


@pytest.mark.equation("eq-clipped-gradient", by="reference")
def test_a_clipped_loss_has_no_gradient_below_eps(worst_error: WorstError) -> None:
    r"""
    $$
    \frac{\partial \ell_\epsilon}{\partial z_k} =
    \begin{cases}
    p_k - [k = y] & \text{if } p_y > \epsilon, \\
    0 & \text{if } p_y < \epsilon .
    \end{cases}
    $$ (eq-clipped-gradient)
    """
    eps, seen = 1e-3, set()
    for row in RNG_ROWS:
        for y in range(len(row)):
            z = torch.from_numpy(row).requires_grad_()
            p = torch.softmax(z, 0)
            (-torch.log(torch.clamp(p[y], min=eps))).backward()
            above = bool(p[y] > eps)
            seen.add(above)
            # wrong: p.detach().numpy() - np.eye(len(row))[y] -> p.detach().numpy() + np.eye(len(row))[y]
            expected = p.detach().numpy() - np.eye(len(row))[y] if above else np.zeros(len(row))
            worst_error(z.grad, expected, atol=1e-13, why="autograd in float64")
    assert seen == {True, False}


@pytest.mark.equation("eq-exp-error", by="symbolic")
def test_an_error_in_the_exponent_is_multiplied_by_it() -> None:
    r"""
    $$
    e^{d(1 + \delta)} = e^{d}\,\bigl(1 + d\,\delta + O(d^2\delta^2)\bigr) :
    $$ (eq-exp-error)
    """
    d, delta = sympy.symbols("d delta", real=True)
    ratio = sympy.exp(d * (1 + delta)) / sympy.exp(d)
    # wrong: d * delta -> delta
    assert sympy.simplify(sympy.series(sympy.simplify(ratio), delta, 0, 2).removeO() - (1 + d * delta)) == 0
    # The remainder is of the order of d^2 delta^2: half of it, to leading order.
    assert sympy.limit((ratio - 1 - d * delta) / (d * delta) ** 2, delta, 0) == sympy.Rational(1, 2)


@pytest.mark.equation("eq-two-diff", by="property")
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_error_of_a_difference_is_found_exactly(dtype: type[np.floating]) -> None:
    r"""
    $$
    \begin{aligned}
    d &= \operatorname{fl}(a - b), \qquad b' = \operatorname{fl}(d + b), \\
    e &= \operatorname{fl}\bigl(\operatorname{fl}(a - b') \\
    &\qquad - \operatorname{fl}\bigl(b - \operatorname{fl}(b' - d)\bigr)\bigr), \\
    d + e &= a - b .
    \end{aligned}
    $$ (eq-two-diff)
    """
    rng = np.random.default_rng(0)
    errors = 0
    for scale in (1.0, 30.0, 1e4):
        for a, b in (rng.normal(size=(200, 2)) * scale).astype(dtype):
            d = a - b
            back = d + b
            # wrong: (a - back) - (b - (back - d)) -> (a - back) + (b - (back - d))
            e = (a - back) - (b - (back - d))
            assert Fraction(float(d)) + Fraction(float(e)) == Fraction(float(a)) - Fraction(float(b))
            errors += e != 0
    assert errors > 100  # or there was nothing to find
