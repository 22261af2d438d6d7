"""The equations of chapter 06: clips, lists taken for batches, normalisation, and certify()'s tolerance."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import sympy
import torch
from sklearn.metrics import log_loss

from xent_book import frameworks

F = torch.nn.functional
WorstError = Callable[..., None]
RNG = np.random.default_rng(6)


def printed_sum(t: np.ndarray, p: np.ndarray) -> float:
    """-sum t log p as printed, a term with t = 0 left out."""
    # wrong[eq-certify-sum]: a * math.log(b) -> math.log(b)
    return -sum(a * math.log(b) for a, b in zip(t, p, strict=True) if a > 0)


@pytest.mark.equation("eq-certify-sum", by="framework")
def test_the_sum_is_the_loss_of_the_libraries(worst_error: WorstError) -> None:
    r"""
    $$
    \ell(t, p) = -\sum_{k=1}^{K} t_k \log p_k ,
    $$ (eq-certify-sum)
    """
    t, p = RNG.dirichlet(np.ones(5), (2, 8))
    t[0], t[1] = np.eye(5)[2], [0.5, 0.5, 0, 0, 0]
    expected = [printed_sum(a, b) for a, b in zip(t, p, strict=True)]
    seen = F.cross_entropy(torch.from_numpy(p).log(), torch.from_numpy(t), reduction="none")
    worst_error(seen, expected, rtol=1e-13, why="float64")
    # The convention: neither p nor the logarithm is looked at where t is zero.
    assert printed_sum(np.array([1.0, 0.0]), np.array([1.0, 0.0])) == 0
    worst_error(log_loss([[0, 1, 0]], [[0.25, 0.75, 0.0]]), math.log(4 / 3), rtol=1e-13, why="float64")


@pytest.mark.equation("eq-certify-clip", by="property")
def test_a_clip_has_a_ceiling_and_a_floor() -> None:
    r"""
    $$
    \begin{aligned}
    c_\epsilon(p) &= \min\bigl(\max(p, \epsilon),\, 1 - \epsilon\bigr), \\
    \epsilon \le c_\epsilon(p) &\le 1 - \epsilon, \\
    -\log c_\epsilon(p) &\le \log\tfrac1\epsilon .
    \end{aligned}
    $$ (eq-certify-clip)
    """
    for eps in (1e-15, 2.0**-52, 1e-7, 0.01):
        p = np.concatenate(
            [[0.0, 1.0, eps, 1 - eps], RNG.uniform(size=500), 10.0 ** -RNG.uniform(0, 30, 500)]
        )
        c = np.minimum(np.maximum(p, eps), 1 - eps)
        assert np.array_equal(c, np.clip(p, eps, 1 - eps))
        assert (c >= eps).all() and (c <= 1 - eps).all()
        assert (-np.log(c) <= math.log(1 / eps) * (1 + 1e-15)).all()
        # The ceiling is reached, so nothing smaller would do.
        # wrong: math.log(1 / eps) -> 1 / eps
        assert math.isclose((-np.log(c)).max(), math.log(1 / eps), rel_tol=1e-15)


@pytest.mark.equation("eq-certify-clip", by="framework")
def test_the_ceilings_of_the_libraries(worst_error: WorstError) -> None:
    r"""
    $$
    \begin{aligned}
    c_\epsilon(p) &= \min\bigl(\max(p, \epsilon),\, 1 - \epsilon\bigr), \\
    \epsilon \le c_\epsilon(p) &\le 1 - \epsilon, \\
    -\log c_\epsilon(p) &\le \log\tfrac1\epsilon .
    \end{aligned}
    $$ (eq-certify-clip)
    """
    row = np.array([[0.3, 0.7, 0.0]])
    k = frameworks.keras()
    cce = k.losses.CategoricalCrossentropy(dtype="float64")
    seen = [log_loss([[0, 0, 1]], row), log_loss([[0, 0, 1]], row.astype(np.float32))]
    seen.append(float(cce(np.array([[0.0, 0.0, 1.0]]), row)))
    expected = [math.log(1 / eps) for eps in (2.0**-52, 2.0**-23, 1e-7)]
    worst_error(seen, expected, rtol=1e-6, why="one of them in float32")


@pytest.mark.equation("eq-certify-top", by="symbolic")
def test_what_a_perfect_answer_costs() -> None:
    r"""
    $$
    -\log(1 - \epsilon) = \epsilon + \tfrac12 \epsilon^2 + \dots
    $$ (eq-certify-top)
    """
    eps = sympy.Symbol("epsilon", positive=True)
    # wrong: eps + eps**2 / 2 -> eps - eps**2 / 2
    assert sympy.series(-sympy.log(1 - eps), eps, 0, 3).removeO() == eps + eps**2 / 2


@pytest.mark.equation("eq-certify-top32", by="property")
def test_float32_has_no_room_for_an_epsilon_of_1e_15() -> None:
    r"""
    $$
    \operatorname{fl}_{32}(1 - 10^{-15}) = 1 .
    $$ (eq-certify-top32)
    """
    one = np.float32(1)
    # wrong: 1 - 1e-15 -> 1 - 1e-7
    assert one - np.float32(1e-15) == one and np.float32(1 - 1e-15) == one
    # With the exact value, not its float64: 1 is nearer to it than the next float32, which is 2^-24 below.
    exact, below = 1 - Fraction(1, 10**15), Fraction(float(np.nextafter(one, np.float32(0))))
    assert 1 - below == Fraction(1, 2**24) and abs(exact - 1) < abs(exact - below)
    assert np.float32(1 - 1e-7) != one and 1 - 1e-15 != 1.0


@pytest.mark.equation("eq-certify-binary", by="framework")
def test_a_binary_label_is_a_pair(worst_error: WorstError) -> None:
    r"""
    $$
    \begin{aligned}
    t &= (1 - b,\; b), \quad p = (1 - q,\; q), \\
    \ell &= -(1 - b)\log(1 - q) - b\log q .
    \end{aligned}
    $$ (eq-certify-binary)
    """
    b, q = RNG.integers(0, 2, 20).astype(float), RNG.uniform(0.01, 0.99, 20)
    # wrong: -(1 - b) * np.log(1 - q) - b * np.log(q) -> -(1 - b) * np.log(1 - q) + b * np.log(q)
    printed = -(1 - b) * np.log(1 - q) - b * np.log(q)
    t, p = np.stack([1 - b, b], 1), np.stack([1 - q, q], 1)
    worst_error([printed_sum(x, y) for x, y in zip(t, p, strict=True)], printed, rtol=1e-13, why="float64")
    seen = [log_loss([x], [y], labels=[0.0, 1.0]) for x, y in zip(b, q, strict=True)]
    worst_error(seen, printed, rtol=1e-12, why="float64")


@pytest.mark.equation("eq-certify-one-list", by="framework")
def test_a_list_is_a_batch_of_binary_labels(worst_error: WorstError) -> None:
    r"""
    $$
    \begin{aligned}
    \ell_{\text{list}} = \frac1K\Bigl[&-\log p_y \\
    &- \sum_{k \ne y} \log(1 - p_k)\Bigr] .
    \end{aligned}
    $$ (eq-certify-one-list)
    """
    for classes in (2, 3, 5, 10):
        p, y = RNG.dirichlet(np.ones(classes)), int(RNG.integers(classes))
        wrong = np.delete(p, y)
        # wrong: 1 - wrong -> wrong
        printed = (-math.log(p[y]) - np.log(1 - wrong).sum()) / classes
        seen = log_loss(np.eye(classes, dtype=int)[y], p)
        worst_error(seen, printed, rtol=1e-12, why="float64")
        # Neither the loss of the row nor its K-th part.
        assert classes == 2 or abs(seen + math.log(p[y])) > 1e-3
        assert abs(seen + math.log(p[y]) / classes) > 1e-3


@pytest.mark.equation("eq-certify-two-classes", by="symbolic")
def test_two_classes_hide_the_list() -> None:
    r"""
    $$
    \begin{aligned}
    K = 2: \quad
    \ell_{\text{list}} &= \tfrac12\bigl[-\log p_y - \log p_y\bigr] \\
    &= -\log p_y .
    \end{aligned}
    $$ (eq-certify-two-classes)
    """
    p = sympy.Symbol("p", positive=True)
    wrong = 1 - p
    listed = (-sympy.log(p) - sympy.log(1 - wrong)) / 2
    # wrong: (-sympy.log(p) - sympy.log(p)) / 2 -> (-sympy.log(p) - sympy.log(p))
    assert sympy.simplify(listed - (-sympy.log(p) - sympy.log(p)) / 2) == 0
    assert sympy.simplify(listed + sympy.log(p)) == 0
    # With three classes the same sum is another number.
    three = [Fraction(1, 2), Fraction(1, 4), Fraction(1, 4)]
    assert (-math.log(three[0]) - 2 * math.log(1 - three[1])) / 3 != pytest.approx(-math.log(three[0]))


@pytest.mark.equation("eq-certify-batch", by="framework")
def test_the_loss_of_a_batch_is_a_mean(worst_error: WorstError) -> None:
    r"""
    $$
    L = \frac1N \sum_{n=1}^{N} \ell(t_n, p_n) .
    $$ (eq-certify-batch)
    """
    p, y = RNG.dirichlet(np.ones(4), 7), RNG.integers(0, 4, 7)
    t = np.eye(4)[y]
    # wrong: strict=True)) / 7 -> strict=True)) / 4
    printed = sum(printed_sum(a, b) for a, b in zip(t, p, strict=True)) / 7
    worst_error(log_loss(t, p), printed, rtol=1e-13, why="float64")
    worst_error(
        F.nll_loss(torch.from_numpy(p).log(), torch.from_numpy(y)), printed, rtol=1e-13, why="float64"
    )


@pytest.mark.equation("eq-certify-soft", by="property")
def test_the_best_prediction_for_a_soft_target_is_the_target() -> None:
    r"""
    $$
    \begin{aligned}
    \ell(t, p) &\ge \ell(t, t), \\
    &\text{with equality only for } p = t,
    \end{aligned}
    $$ (eq-certify-soft)
    """
    for concentration in (0.1, 1.0, 10.0):
        t, p = RNG.dirichlet(np.full(4, concentration), (2, 500))
        t, p = np.maximum(t, 1e-12), np.maximum(p, 1e-12)
        t, p = t / t.sum(1, keepdims=True), p / p.sum(1, keepdims=True)
        # wrong: t * np.log(p) -> p * np.log(p)
        own, other = -(t * np.log(t)).sum(1), -(t * np.log(p)).sum(1)
        assert (other > own).all()
        # A small step away from the target costs something too, up to the rounding of the sum.
        near = -(t * np.log((1 - 1e-4) * t + 1e-4 * p)).sum(1)
        assert (near > own - 1e-15).all()
    # For a one-hot target, the case in which the post allows the sum, the minimum is the target too.
    assert printed_sum(np.array([0.0, 1.0]), np.array([0.01, 0.99])) > 0


@pytest.mark.equation("eq-certify-epsilon", by="framework")
def test_the_share_of_impossible_events_sets_the_slope(worst_error: WorstError) -> None:
    r"""
    $$
    \begin{aligned}
    L_{\epsilon} &= \text{const} + m \log\frac1\epsilon, \\
    L_{10^{-15}} - L_{10^{-7}} &= m \cdot 8 \log 10 .
    \end{aligned}
    $$ (eq-certify-epsilon)
    """
    p = RNG.dirichlet(np.ones(3), 40)
    p[:9] = [0.0, 0.25, 0.75]
    y = np.where(np.arange(40) < 9, 0, p.argmax(1))
    losses = {}
    for eps in (1e-15, 1e-7, 1e-3):
        losses[eps] = -np.log(np.clip(p[np.arange(40), y], eps, 1 - eps)).mean()
    m = 9 / 40
    worst_error(losses[1e-15] - losses[1e-7], m * 8 * math.log(10), rtol=1e-12, why="float64")
    constant = -np.log(p[np.arange(9, 40), y[9:]]).sum() / 40
    for eps, loss in losses.items():
        # wrong: m * math.log(1 / eps) -> math.log(1 / eps)
        worst_error(loss, constant + m * math.log(1 / eps), rtol=1e-12, why="float64")
    # scikit-learn is on the line with its own epsilon.
    expected = constant + m * math.log(1 / 2.0**-52)
    worst_error(log_loss(y, p, labels=[0, 1, 2]), expected, rtol=1e-12, why="float64")


@pytest.mark.equation("eq-certify-keras", by="framework")
def test_keras_normalises_and_clips(worst_error: WorstError) -> None:
    r"""
    $$
    \ell_{\text{Keras}} = -\sum_k t_k \log c_\epsilon\Bigl(\frac{p_k}{\sum_j p_j}\Bigr) .
    $$ (eq-certify-keras)
    """
    cce = frameworks.keras().losses.CategoricalCrossentropy(reduction=None, dtype="float64")
    t = np.array([[0, 0, 1], [0.5, 0.5, 0], [1, 0, 0], [0, 1, 0], [0.2, 0, 0.8]], float)
    p = np.array([[0.2, 0.2, 0.2], [0.4, 2, 1], [0, 0.9, 0.3], [3, 0, 1e-9], [1e-3, 1, 5]], float)
    # wrong: p / p.sum(1, keepdims=True) -> p
    q = np.clip(p / p.sum(1, keepdims=True), 1e-7, 1 - 1e-7)
    worst_error(cce(t, p).numpy(), -(t * np.log(q)).sum(1), rtol=1e-12, why="float64")
    without = -(t * np.log(np.clip(p, 1e-7, 1 - 1e-7))).sum(1)
    assert np.abs(cce(t, p).numpy() - without).max() > 0.1


@pytest.mark.equation("eq-certify-multilabel", by="framework")
def test_from_logits_is_a_softmax(worst_error: WorstError) -> None:
    r"""
    $$
    \begin{aligned}
    \ell_{\text{softmax}} &= \sum_k y_k\bigl(\operatorname{lse}(z) - z_k\bigr), \\
    \ell_{\text{sigmoids}} &= \sum_k \bigl(\log(1 + e^{z_k}) - y_k z_k\bigr) .
    \end{aligned}
    $$ (eq-certify-multilabel)
    """
    k = frameworks.keras()
    z, y = RNG.normal(size=(6, 4)) * 2, RNG.integers(0, 2, (6, 4)).astype(float)
    y[0] = [1, 0, 0, 1]
    lse = np.log(np.exp(z).sum(1, keepdims=True))
    softmax = (y * (lse - z)).sum(1)
    # wrong: np.log(1 + np.exp(z)) - y * z -> np.log(1 + np.exp(z)) + y * z
    sigmoids = (np.log(1 + np.exp(z)) - y * z).sum(1)
    assert abs(softmax[0] - sigmoids[0]) > 0.1
    cce = k.losses.CategoricalCrossentropy(True, reduction=None, dtype="float64")
    bce = k.losses.BinaryCrossentropy(True, reduction=None, dtype="float64")
    worst_error(cce(y, z).numpy(), softmax, rtol=1e-12, why="float64")
    worst_error(4 * bce(y, z).numpy(), sigmoids, rtol=1e-12, why="float64")
    zt, yt = torch.from_numpy(z), torch.from_numpy(y)
    worst_error(F.cross_entropy(zt, yt, reduction="none"), softmax, rtol=1e-12, why="float64")
    seen = F.binary_cross_entropy_with_logits(zt, yt, reduction="none").sum(1)
    worst_error(seen, sigmoids, rtol=1e-12, why="float64")


@pytest.mark.equation("eq-certify-scale", by="reference")
def test_dividing_is_not_a_softmax(worst_error: WorstError) -> None:
    r"""
    $$
    \begin{aligned}
    \frac{y_k}{\sum_j y_j} &= \frac{y_k}{r}, \\
    \operatorname{softmax}(y)_k &= \frac{e^{y_k}}{r\,e + K - r} .
    \end{aligned}
    $$ (eq-certify-scale)
    """
    for y in ([1, 0, 0, 1], [1, 1, 0, 0, 0, 1], [0, 1]):
        labels = np.array(y, float)
        r, classes = sum(y), len(y)
        # wrong: r * math.e + classes - r -> r * math.e + classes
        printed = np.exp(labels) / (r * math.e + classes - r)
        worst_error(torch.softmax(torch.from_numpy(labels), 0), printed, rtol=1e-14, why="float64")
        divided = labels / r
        assert math.isclose(divided.sum(), 1) and np.abs(divided - printed).max() > 0.05
        worst_error([Fraction(v, sum(y)) for v in y], divided, rtol=1e-15, why="exact fractions")


@pytest.mark.equation("eq-certify-inverse", by="reference")
def test_the_logarithm_inverts_the_softmax(worst_error: WorstError) -> None:
    r"""
    $$
    \operatorname{softmax}(\log p)_k = \frac{p_k}{\sum_j p_j} = p_k .
    $$ (eq-certify-inverse)
    """
    p = RNG.dirichlet(np.ones(6), 5)
    worst_error(torch.softmax(torch.from_numpy(p).log(), -1), p, rtol=1e-13, why="float64")
    free = RNG.uniform(0.1, 3, (5, 6))
    seen = torch.softmax(torch.from_numpy(free).log(), -1)
    # wrong: free.sum(1, keepdims=True) -> free.sum(0, keepdims=True)
    worst_error(seen, free / free.sum(1, keepdims=True), rtol=1e-13, why="float64")
    assert np.abs(torch.softmax(torch.from_numpy(p), -1).numpy() - p).max() > 0.1


@pytest.mark.equation("eq-certify-relative", by="property")
def test_the_error_of_a_sum_of_positive_terms() -> None:
    r"""
    $$
    |\hat\ell - \ell| \le (K + 3)\,u\,\ell .
    $$ (eq-certify-relative)
    """
    u = Fraction(1, 2**53)
    for classes in (2, 5, 50, 1000):
        for _ in range(20):
            t, p = RNG.dirichlet(np.full(classes, 0.5), 2)
            t, p = np.maximum(t, 1e-30), np.minimum(np.maximum(p, 1e-30), 1 - 1e-9)
            # One after another, the worst order, each operation in float64.
            seen = 0.0
            for a, b in zip(t.tolist(), p.tolist(), strict=True):
                seen += a * -math.log(b)
            with mpmath.workdps(40):
                true = -mpmath.fsum(
                    mpmath.mpf(float(a)) * mpmath.log(float(b)) for a, b in zip(t, p, strict=True)
                )
                error = abs(mpmath.mpf(seen) - true)
                assert error <= (classes + 3) * mpmath.mpf(u.numerator) / u.denominator * true


@pytest.mark.equation("eq-certify-relative", by="symbolic")
def test_k_plus_three_covers_the_products_of_errors() -> None:
    # A term is rounded by 2u (log), u (product) and u in each of K - 1 sums. The worst case is all upwards.
    r"""
    $$
    |\hat\ell - \ell| \le (K + 3)\,u\,\ell .
    $$ (eq-certify-relative)
    """
    u = Fraction(1, 2**53)
    for classes in (2, 5, 50, 1000):
        worst = (1 + 2 * u) * (1 + u) ** classes - 1
        # wrong: classes + 3 -> classes + 2
        assert (classes + 2) * u < worst <= (classes + 3) * u


@pytest.mark.equation("eq-certify-absolute", by="property")
def test_a_relative_error_of_p_is_an_absolute_error_of_the_loss() -> None:
    r"""
    $$
    \bigl|\log\bigl(p\,(1 + \delta)\bigr) - \log p\bigr| \le \frac{|\delta|}{1 - |\delta|} .
    $$ (eq-certify-absolute)
    """
    for p in (1e-300, 1e-9, 0.3, 1 - 1e-9, 1.0):
        for delta in (-0.9, -0.3, -1e-6, -1e-15, 1e-15, 1e-6, 0.3, 0.9):
            with mpmath.workdps(60):
                change = abs(mpmath.log(mpmath.mpf(p) * (1 + mpmath.mpf(delta))) - mpmath.log(p))
                # wrong: 1 - abs(mpmath.mpf(delta)) -> 1 + abs(mpmath.mpf(delta))
                bound = abs(mpmath.mpf(delta)) / (1 - abs(mpmath.mpf(delta)))
                assert change <= bound
    # Without the denominator it would not hold, and it is attained to first order.
    with mpmath.workdps(60):
        assert abs(mpmath.log(1 - mpmath.mpf("0.3"))) > mpmath.mpf("0.3")
        assert abs(mpmath.log(1 - mpmath.mpf("1e-9"))) > mpmath.mpf("0.999e-9")
