"""xent.gradients: against autograd, central differences, sympy and mpmath, over every argument."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import mpmath
import numpy as np
import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import xent
import xent.torch as xt
from xent import _blocks, gradients

INF, NAN = np.inf, np.nan
SHAPES = [(4,), (6, 3), (3, 5, 2), (2, 3, 1, 4)]


def problem(
    shape: tuple[int, ...], axis: int, seed: int = 0, scale: float = 3.0
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Random logits, class indices and target distributions."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=scale, size=shape)
    labels = rng.integers(0, shape[axis], size=np.delete(shape, axis))
    soft = np.moveaxis(rng.dirichlet(np.full(shape[axis], 0.7), size=labels.shape), -1, axis)
    return logits, labels, soft


def autograd(loss: Any, logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    z = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    loss(z).backward()
    assert z.grad is not None
    return z.grad.numpy()


def central_differences(loss: Any, logits: np.ndarray[Any, Any], h: float = 1e-5) -> np.ndarray[Any, Any]:
    out = np.empty_like(logits)
    for index in np.ndindex(logits.shape):
        step = np.zeros_like(logits)
        step[index] = h
        out[index] = (float(loss(logits + step)) - float(loss(logits - step))) / (2 * h)
    return out


def exact(logits: Any, target: Any) -> np.ndarray[Any, Any]:
    """Return sum(t) softmax(z) - t of one row in 400 digits (there is e^-700 beside 1), rounded once."""
    with mpmath.workdps(400):
        e = [mpmath.exp(mpmath.mpf(float(z))) for z in logits]
        t = [mpmath.mpf(float(x)) for x in target]
        total, mass = mpmath.fsum(e), mpmath.fsum(t)
        return np.array([float(mass * a / total - b) for a, b in zip(e, t, strict=True)])


# ------------------------------------------------------------------------------- all argument combinations

HARD_ARGUMENTS = list(
    itertools.product(
        [None, "some", "zeros"],
        [0.0, 0.1, 1.0],
        [None, 1, -100],
        [("mean", None), ("mean", 2.5), ("sum", None)],
    )
)


def hard_arguments(combination: Any, classes: int) -> dict[str, Any]:
    weight, smoothing, ignore_index, (reduction, denominator) = combination
    by_class = {
        None: None,
        "some": np.linspace(0.5, 2.0, classes),
        "zeros": np.where(np.arange(classes) == 0, 0.0, 1.5),
    }[weight]
    return {
        "weight": by_class,
        "label_smoothing": smoothing,
        "ignore_index": ignore_index,
        "reduction": reduction,
        "denominator": denominator,
    }


@pytest.mark.parametrize("combination", HARD_ARGUMENTS, ids=str)
def test_hard_gradient_is_the_derivative_of_the_loss_for_every_argument(combination: Any) -> None:
    """Against xent's own loss by central differences, and against autograd on the loss written out."""
    logits, labels, _ = problem((7, 3), -1)
    labels[:3] = [0, 1, 2]
    if combination[2] == -100:
        labels[3] = -100
    arguments = hard_arguments(combination, 3)
    observed = gradients.cross_entropy_gradient(logits, labels, **arguments)

    numeric = central_differences(lambda z: xent.cross_entropy(z, labels, **arguments), logits)
    # Truncation h^2/6 |l'''| ~ 2e-11, rounding eps |l| / h ~ 1e-10, times weights and the sum.
    np.testing.assert_allclose(observed, numeric, rtol=0, atol=5e-9)

    def loss(z: torch.Tensor) -> torch.Tensor:
        """Write the definition out, row by row."""
        log_p = z - torch.logsumexp(z, 1, keepdim=True)
        smoothing, total, mass = arguments["label_smoothing"], torch.zeros((), dtype=z.dtype), 0.0
        for row, label in zip(log_p, labels, strict=True):
            if label == arguments["ignore_index"]:
                continue
            w = 1.0 if arguments["weight"] is None else float(arguments["weight"][label])
            total = total - w * ((1 - smoothing) * row[label] + smoothing * row.mean())
            mass += w
        if arguments["reduction"] == "sum":
            return total
        return total / (arguments["denominator"] or mass)

    np.testing.assert_allclose(observed, autograd(loss, logits), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_hard_gradient_is_that_of_torch(reduction: Any, weighted: bool, smoothing: float) -> None:
    if weighted and smoothing:
        smoothing = 0.0  # torch weighs the smoothed part class by class: another loss
    logits, labels, _ = problem((9, 4), -1, seed=2)
    labels[4] = -100
    weight = np.array([0.2, 1.0, 3.0, 0.7]) if weighted else None
    expected = autograd(
        lambda z: torch.nn.functional.cross_entropy(
            z,
            torch.tensor(labels),
            weight=None if weight is None else torch.tensor(weight),
            label_smoothing=smoothing,
            reduction=reduction,
        ),
        logits,
    )
    observed = gradients.cross_entropy_gradient(
        logits, labels, weight=weight, label_smoothing=smoothing, ignore_index=-100, reduction=reduction
    )
    np.testing.assert_allclose(observed, expected, rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("reduction, denominator", [("mean", None), ("mean", 3.0), ("sum", None)])
def test_soft_gradient_is_the_derivative_of_the_loss(reduction: Any, denominator: Any) -> None:
    logits, _, soft = problem((5, 4), -1, seed=3)
    arguments: dict[str, Any] = {"reduction": reduction, "denominator": denominator}
    observed = gradients.soft_cross_entropy_gradient(logits, soft, **arguments)
    numeric = central_differences(lambda z: xent.soft_cross_entropy(z, soft, **arguments), logits)
    np.testing.assert_allclose(observed, numeric, rtol=0, atol=2e-9)
    expected = autograd(
        lambda z: torch.nn.functional.cross_entropy(z, torch.tensor(soft), reduction="sum"), logits
    )
    divisor = 1.0 if reduction == "sum" else denominator or 5
    np.testing.assert_allclose(observed, expected / divisor, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("pos_weight", [None, 2.5, np.array([0.5, 1.0, 4.0])], ids=["none", "one", "each"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction, denominator", [("mean", None), ("mean", 3.0), ("sum", None)])
@pytest.mark.parametrize("soft", [False, True])
def test_binary_gradient_is_the_derivative_of_the_loss(
    pos_weight: Any, weighted: bool, reduction: Any, denominator: Any, soft: bool
) -> None:
    rng = np.random.default_rng(4)
    logits = rng.normal(scale=3, size=(4, 3))
    targets = rng.uniform(size=(4, 3)) if soft else rng.integers(0, 2, size=(4, 3))
    weight = np.array([[0.0, 1.0, 2.0]] * 4) if weighted else None
    arguments = {
        "sample_weight": weight,
        "pos_weight": pos_weight,
        "reduction": reduction,
        "denominator": denominator,
    }
    observed = gradients.binary_cross_entropy_gradient(logits, targets, **arguments)
    numeric = central_differences(lambda z: xent.binary_cross_entropy(z, targets, **arguments), logits)
    np.testing.assert_allclose(observed, numeric, rtol=0, atol=5e-9)

    expected = autograd(
        lambda z: torch.nn.functional.binary_cross_entropy_with_logits(
            z,
            torch.tensor(targets, dtype=torch.float64),
            weight=None if weight is None else torch.tensor(weight),
            pos_weight=None if pos_weight is None else torch.tensor(pos_weight),
            reduction="sum",
        ),
        logits,
    )
    if reduction == "mean":
        expected = expected / (denominator or (targets.size if weight is None else weight.sum()))
    np.testing.assert_allclose(observed, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_none_holds_each_examples_own_gradient(reduction: Any) -> None:
    logits, labels, soft = problem((5, 3), -1, seed=6)
    weight = np.array([1.0, 0.0, 2.0])
    rows = [
        gradients.cross_entropy_gradient(logits[i], labels[i], weight=weight, reduction="sum")
        for i in range(5)
    ]
    observed = gradients.cross_entropy_gradient(logits, labels, weight=weight, reduction=reduction)
    np.testing.assert_array_equal(observed, rows)
    rows = [gradients.soft_cross_entropy_gradient(logits[i], soft[i], reduction="sum") for i in range(5)]
    np.testing.assert_array_equal(
        gradients.soft_cross_entropy_gradient(logits, soft, reduction=reduction), rows
    )
    targets = np.array([0, 1, 1, 0, 1])
    np.testing.assert_array_equal(
        gradients.binary_cross_entropy_gradient(logits[:, 0], targets, reduction=reduction),
        [
            gradients.binary_cross_entropy_gradient(z, y, reduction="sum")
            for z, y in zip(logits[:, 0], targets, strict=True)
        ],
    )


# ------------------------------------------------------------------------------------------- by symbols


def test_the_formulas_follow_from_the_losses_symbolically() -> None:
    z = sympy.symbols("z0:3", real=True)
    total = sum(sympy.exp(x) for x in z)
    p = [sympy.exp(x) / total for x in z]
    point = {z[0]: sympy.Rational(1, 2), z[1]: -1, z[2]: 2}
    at = [0.5, -1.0, 2.0]

    def value(expression: Any) -> float:
        return float(sympy.N(expression.subs(point), 30))

    jacobian = [[value(sympy.diff(p[j], z[k])) for k in range(3)] for j in range(3)]
    np.testing.assert_allclose(gradients.softmax_jacobian(at), jacobian, rtol=1e-14)
    for label in range(3):
        loss = -sympy.log(p[label])
        gradient = [value(sympy.diff(loss, x)) for x in z]
        np.testing.assert_allclose(gradients.cross_entropy_gradient(at, label), gradient, rtol=1e-14)
        hessian = [[value(sympy.diff(loss, a, b)) for a in z] for b in z]
        np.testing.assert_allclose(gradients.softmax_jacobian(at), hessian, rtol=1e-14)
    soft = [sympy.Rational(1, 8), sympy.Rational(3, 8), sympy.Rational(1, 2)]
    loss = -sum(t * sympy.log(q) for t, q in zip(soft, p, strict=True))
    np.testing.assert_allclose(
        gradients.soft_cross_entropy_gradient(at, [0.125, 0.375, 0.5]),
        [value(sympy.diff(loss, x)) for x in z],
        rtol=1e-14,
    )


# ---------------------------------------------------------------------------------- the second derivative


def test_the_jacobian_is_autograds_on_any_leading_shape() -> None:
    for shape in SHAPES:
        logits, _, _ = problem(shape, -1, seed=7)
        observed = gradients.softmax_jacobian(logits)
        assert observed.shape == (*shape, shape[-1])
        for index in np.ndindex(shape[:-1]):
            row = torch.tensor(logits[index])
            expected = torch.autograd.functional.jacobian(lambda z: torch.softmax(z, -1), row).numpy()
            np.testing.assert_allclose(observed[index], expected, rtol=1e-12, atol=1e-17)


def test_the_hessian_is_autograds_for_every_target() -> None:
    logits = np.array([0.3, -1.2, 2.0, 0.0])
    for label in range(4):
        expected = torch.autograd.functional.hessian(
            lambda z, label=label: torch.nn.functional.cross_entropy(z, torch.tensor(label)),
            torch.tensor(logits),
        ).numpy()
        np.testing.assert_allclose(gradients.softmax_jacobian(logits), expected, rtol=1e-12)


def test_the_jacobian_keeps_its_digits_where_a_probability_rounds_to_one() -> None:
    logits = [60.0, 0.0, 1.0]
    with mpmath.workdps(50):
        e = [mpmath.exp(z) for z in logits]
        p = [x / mpmath.fsum(e) for x in e]
        expected = np.array([[float(p[j] * ((j == k) - p[k])) for k in range(3)] for j in range(3)])
    assert xent.softmax(logits)[0] == 1.0
    np.testing.assert_allclose(gradients.softmax_jacobian(logits), expected, rtol=1e-13)
    assert gradients.softmax_jacobian(logits)[0, 0] > 0


def test_the_jacobian_of_an_impossible_class_is_zero() -> None:
    np.testing.assert_array_equal(
        gradients.softmax_jacobian([0.0, -INF, 0.0]), [[0.25, 0, -0.25], [0, 0, 0], [-0.25, 0, 0.25]]
    )
    np.testing.assert_array_equal(gradients.softmax_jacobian([5.0]), [[0.0]])
    assert gradients.softmax_jacobian(np.zeros((0, 3))).shape == (0, 3, 3)


def test_the_jacobian_over_many_blocks_is_that_of_each_row() -> None:
    for rows, classes in [(5000, 4), (70, 200)]:
        logits = np.random.default_rng(8).normal(scale=4, size=(rows, classes))
        observed = gradients.softmax_jacobian(logits)
        for i in [0, 1, rows // 2, rows - 1]:
            np.testing.assert_allclose(
                observed[i], gradients.softmax_jacobian(logits[i]), rtol=1e-13, atol=1e-18
            )


# ------------------------------------------------------------------------------------------------ accuracy


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_each_entry_is_accurate_to_a_few_ulp_over_a_wide_sweep(dtype: Any) -> None:
    """Relative to itself, confident and right included, with the part that the exponent's rounding adds."""
    rng = np.random.default_rng(9)
    eps = float(np.finfo(dtype).eps)
    # Beyond these distances float32 holds no probability any more.
    for scale in [1e-3, 1.0, 5.0, 15.0]:
        for _ in range(20):
            logits = rng.normal(scale=scale, size=6).astype(dtype)
            distance = float(logits.max()) - logits.astype(np.float64)
            order = np.argsort(logits)
            for label in (order[-1], order[0]):
                expected = exact(logits, np.arange(6) == label)
                observed = gradients.cross_entropy_gradient(logits, int(label))
                soft = gradients.soft_cross_entropy_gradient(logits, (np.arange(6) == label).astype(dtype))
                assert observed.dtype == soft.dtype == dtype
                allowed = (4 + np.where(np.arange(6) == label, 0, distance)) * eps
                for got in (observed, soft):
                    assert (np.abs(got - expected) <= allowed * np.abs(expected)).all()


def test_confident_and_right_does_not_round_to_zero() -> None:
    """Where softmax(z)_y - 1 is exactly zero, the gradient is e^-z."""
    for gap in [20.0, 37.0, 40.0, 100.0, 700.0]:
        expected = exact([gap, 0.0], [1.0, 0.0])
        assert expected[0] < 0
        for observed in (
            gradients.cross_entropy_gradient([gap, 0.0], 0),
            gradients.soft_cross_entropy_gradient([gap, 0.0], [1.0, 0.0]),
            gradients.binary_cross_entropy_gradient(gap, 1) * np.array([1, -1]),
        ):
            np.testing.assert_allclose(observed, expected, rtol=4e-16)
        if gap >= 37:
            assert xent.softmax([gap, 0.0])[0] - 1 == 0


def test_smoothed_and_soft_gradients_cancel_no_more_than_they_must() -> None:
    rng = np.random.default_rng(10)
    for scale in [1.0, 8.0]:
        for epsilon in [1e-6, 0.1, 1.0]:
            logits = rng.normal(scale=scale, size=5)
            for label in range(5):
                # The target as the machine has it: 1 - eps + eps/K rounds, and so does its complement.
                with mpmath.workdps(40):
                    e = [mpmath.exp(z) for z in logits]
                    spread = mpmath.mpf(epsilon) / 5
                    target = [spread + (1 - mpmath.mpf(epsilon)) * (k == label) for k in range(5)]
                    p = [x / mpmath.fsum(e) for x in e]
                    size = [float(min(a + b, 2 - a - b)) for a, b in zip(p, target, strict=True)]
                    expected = np.array([float(a - b) for a, b in zip(p, target, strict=True)])
                observed = gradients.cross_entropy_gradient(logits, label, label_smoothing=epsilon)
                own = np.arange(5) == label
                bound = np.where(own, size, [float(a + b) for a, b in zip(p, target, strict=True)])
                assert (np.abs(observed - expected) <= (6 + 2 * scale) * 2.0**-52 * bound).all()


def test_a_small_target_mass_is_not_taken_from_one() -> None:
    """With all mass spread over 4,096 classes p and t are both near 2e-4, and so is the error to expect."""
    logits = np.random.default_rng(12).normal(scale=0.1, size=4096)
    expected = exact(logits, np.full(4096, 1 / 4096))
    hard = gradients.cross_entropy_gradient(logits, 17, label_smoothing=1.0)
    assert np.abs(hard - expected).max() < 4 * 2.0**-52 / 4096
    highest = logits.argmax()
    soft = gradients.soft_cross_entropy_gradient(logits, np.full(4096, 1 / 4096))
    assert abs(soft[highest] - expected[highest]) < 4 * 2.0**-52 / 4096


def test_soft_targets_are_not_renormalised() -> None:
    logits, target = np.array([0.5, -1.0, 2.0]), np.array([0.2, 0.3, 0.5 + 9e-7])
    observed = gradients.soft_cross_entropy_gradient(logits, target)
    np.testing.assert_allclose(observed, exact(logits, target), rtol=1e-14)
    assert (np.abs(observed - (xent.softmax(logits) - target)) > 1e-8).all()


def test_binary_gradient_against_mpmath_in_both_tails() -> None:
    logits = np.array([-745.0, -300.0, -40.0, -1.0, -1e-9, 0.0, 2.0, 40.0, 300.0, 745.0])
    for label in (0, 1):
        with mpmath.workdps(400):
            expected = [float(1 / (1 + mpmath.exp(-mpmath.mpf(z))) - label) for z in logits]
        observed = gradients.binary_cross_entropy_gradient(logits, np.full(10, label), reduction="sum")
        np.testing.assert_allclose(observed, expected, rtol=1e-15, atol=5e-324)


# --------------------------------------------------------------------- what does not count, what is infinite


def test_what_does_not_count_has_a_gradient_of_exactly_zero_whatever_it_holds() -> None:
    logits = np.array([[NAN, 0.0], [INF, 1.0], [-INF, -INF], [0.0, 0.0]])
    for observed in (
        gradients.cross_entropy_gradient(logits, [-1, -1, -1, 0], ignore_index=-1),
        gradients.cross_entropy_gradient(logits, [1, 1, 1, 0], weight=[1.0, 0.0]),
        gradients.cross_entropy_gradient(logits, [-1, 1, -1, 0], ignore_index=-1, weight=[1.0, 0.0]),
    ):
        np.testing.assert_array_equal(observed, [[0, 0], [0, 0], [0, 0], [-0.5, 0.5]])
        assert not np.signbit(observed[:3]).any()
    assert np.isfinite(xent.cross_entropy(logits, [1, 1, 1, 0], weight=[1.0, 0.0]))
    many = np.full((3, 300), NAN)  # the layout of many classes
    np.testing.assert_array_equal(
        gradients.cross_entropy_gradient(many, [7] * 3, ignore_index=7, reduction="sum"), np.zeros((3, 300))
    )
    observed = gradients.binary_cross_entropy_gradient(
        [INF, 0.0, 0.0], [0, 1, 0], sample_weight=[0.0, 0.0, 1.0]
    )
    np.testing.assert_array_equal(observed, [0, 0, 0.5])
    assert not np.signbit(observed).any()


def test_minus_infinity_is_a_class_without_probability() -> None:
    logits = np.array([[0.0, -INF, 0.0]])
    np.testing.assert_array_equal(gradients.cross_entropy_gradient(logits, [0]), [[-0.5, 0, 0.5]])
    np.testing.assert_array_equal(
        gradients.soft_cross_entropy_gradient(logits, [[0.25, 0.0, 0.75]]), [[0.25, 0, -0.25]]
    )


def test_a_target_on_minus_infinity_costs_inf_and_still_has_the_value_of_the_formula() -> None:
    logits = np.array([[0.0, -INF, 0.0]])
    assert xent.cross_entropy(logits, [1]) == INF
    np.testing.assert_array_equal(gradients.cross_entropy_gradient(logits, [1]), [[0.5, -1, 0.5]])
    assert xent.soft_cross_entropy(logits, [[0.0, 0.5, 0.5]]) == INF
    np.testing.assert_array_equal(
        gradients.soft_cross_entropy_gradient(logits, [[0.0, 0.5, 0.5]]), [[0.5, -0.5, 0]]
    )
    assert xent.cross_entropy(logits, [0], label_smoothing=0.3) == INF
    np.testing.assert_allclose(
        gradients.cross_entropy_gradient(logits, [0], label_smoothing=0.3), [[-0.3, -0.1, 0.4]], rtol=1e-14
    )
    assert xent.binary_cross_entropy(-INF, 1) == INF
    assert gradients.binary_cross_entropy_gradient(-INF, 1) == -1
    assert gradients.binary_cross_entropy_gradient(INF, 0) == 1
    assert gradients.binary_cross_entropy_gradient(INF, 1) == 0
    assert gradients.binary_cross_entropy_gradient(INF, 0.25) == 0.75


def test_extreme_weights_and_denominators_make_no_nan() -> None:
    """0 * inf would be nan: in float32 neither 1e300 nor 1e-300 exists."""
    logits = np.array([[0.0, -INF, 0.0]], np.float32)
    for weight, denominator, expected in [
        (1e300, 1e300, [-0.5, 0, 0.5]),
        (1.0, 1e-300, [-INF, 0, INF]),
        (1e-300, 1e-300, [-0.5, 0, 0.5]),
        (1.0, 5e-324, [-INF, 0, INF]),
    ]:
        observed = gradients.cross_entropy_gradient(logits, [0], weight=[weight] * 3, denominator=denominator)
        np.testing.assert_array_equal(observed, [expected])
    np.testing.assert_array_equal(
        gradients.cross_entropy_gradient(logits, [0], denominator=1e-300), [[-INF, 0, INF]]
    )
    np.testing.assert_array_equal(
        gradients.soft_cross_entropy_gradient(logits, np.array([[1, 0, 0]], np.float32), denominator=1e-300),
        [[-INF, 0, INF]],
    )


# ------------------------------------------------------------------------- shapes, axes, layouts and dtypes


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple),
    axis=st.integers(0, 3),
    seed=st.integers(0, 99),
    smoothing=st.sampled_from([0.0, 0.3]),
    reduction=st.sampled_from(["mean", "sum", "none"]),
)
def test_the_class_axis_may_stand_anywhere(
    shape: tuple[int, ...], axis: int, seed: int, smoothing: float, reduction: Any
) -> None:
    axis %= len(shape)
    logits, labels, soft = problem(shape, axis, seed)
    rows = np.moveaxis(logits, axis, -1).reshape(-1, shape[axis])
    target = np.eye(shape[axis])[labels.reshape(-1)]
    target = (1 - smoothing) * target + smoothing / shape[axis]
    e = np.exp(rows - rows.max(axis=1, keepdims=True))
    p = e / e.sum(axis=1, keepdims=True)
    divisor = len(rows) if reduction == "mean" else 1
    moved = np.moveaxis(logits, axis, -1).shape

    expected = np.moveaxis(((p - target) / divisor).reshape(moved), -1, axis)
    hard = gradients.cross_entropy_gradient(
        logits, labels, axis=axis, label_smoothing=smoothing, reduction=reduction
    )
    assert hard.shape == shape
    np.testing.assert_allclose(hard, expected, rtol=0, atol=2e-15)
    negative = gradients.cross_entropy_gradient(
        logits, labels, axis=axis - len(shape), label_smoothing=smoothing, reduction=reduction
    )
    np.testing.assert_array_equal(hard, negative)

    t = np.moveaxis(soft, axis, -1).reshape(-1, shape[axis])
    expected = np.moveaxis(((p - t) / divisor).reshape(moved), -1, axis)
    np.testing.assert_allclose(
        gradients.soft_cross_entropy_gradient(logits, soft, axis=axis, reduction=reduction),
        expected,
        rtol=0,
        atol=2e-15,
    )


@pytest.mark.parametrize("shape", [(3000, 10), (3000, 70), (17, 5000)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_blocks_and_memory_order_change_nothing(shape: tuple[int, int], dtype: Any) -> None:
    logits, labels, soft = problem(shape, -1, seed=11)
    logits, soft = logits.astype(dtype), soft.astype(dtype)
    weight = np.linspace(0.5, 1.5, shape[1])
    hard = gradients.cross_entropy_gradient(logits, labels, weight=weight)
    softly = gradients.soft_cross_entropy_gradient(logits, soft)
    assert hard.dtype == softly.dtype == dtype
    # A difference p - t may cancel, so that its error is one of p and t, each at most one over the mass.
    tight = {"rtol": 8 * np.finfo(dtype).eps, "atol": 2 * np.finfo(dtype).eps / shape[0]}
    for z, t in [
        (np.asfortranarray(logits), np.asfortranarray(soft)),
        (logits[::-1][::-1], soft[:, ::-1][:, ::-1]),
    ]:
        np.testing.assert_allclose(gradients.cross_entropy_gradient(z, labels, weight=weight), hard, **tight)
        np.testing.assert_allclose(gradients.soft_cross_entropy_gradient(z, t), softly, **tight)
    np.testing.assert_allclose(
        gradients.cross_entropy_gradient(logits.T, labels, axis=0, weight=weight).T, hard, **tight
    )
    for i in (0, shape[0] - 1):
        np.testing.assert_allclose(
            hard[i],
            gradients.cross_entropy_gradient(
                logits[i], labels[i], weight=weight, denominator=weight[labels].sum()
            ),
            **tight,
        )


@pytest.mark.parametrize("row", [0, 3, 6])
def test_a_bad_row_is_found_in_whichever_block_it_is(row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_blocks, "BLOCK", 8)
    logits, labels, soft = problem((7, 4), -1)
    logits[row] = -INF
    message = f"^logits: expected a finite logit in every row, got -inf .* at index {row}$"
    for gradient, target in (
        (gradients.cross_entropy_gradient, labels),
        (gradients.soft_cross_entropy_gradient, soft),
    ):
        with pytest.raises(ValueError, match=message):
            gradient(logits, target)
    with pytest.raises(ValueError, match=message):
        gradients.softmax_jacobian(logits)


def test_no_argument_is_changed_and_the_result_is_fresh() -> None:
    logits, labels, soft = problem((4, 3), -1)
    before = logits.copy(), labels.copy(), soft.copy()
    results = [
        gradients.cross_entropy_gradient(logits, labels),
        gradients.soft_cross_entropy_gradient(logits, soft),
        gradients.softmax_jacobian(logits),
    ]
    for array, kept in zip((logits, labels, soft), before, strict=True):
        np.testing.assert_array_equal(array, kept)
    assert not any(np.shares_memory(result, logits) for result in results)


def test_memory_beyond_the_result_stays_a_small_part_of_the_logits() -> None:
    logits = np.random.default_rng(0).normal(size=(2000, 1000)).astype(np.float32)
    labels = np.zeros(2000, int)
    weight = np.ones(1000)
    soft = xent.softmax(logits)
    for call in (
        lambda: gradients.cross_entropy_gradient(logits, labels, weight=weight, label_smoothing=0.1),
        lambda: gradients.soft_cross_entropy_gradient(logits, soft),
    ):
        tracemalloc.start()
        result = call()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        # Checking that the targets are distributions costs the soft gradient nothing of full size either.
        assert peak - result.nbytes < 0.2 * logits.nbytes


def test_dtypes_are_those_of_the_losses() -> None:
    for dtype, expected in [
        (np.float16, np.float32),
        (np.float32, np.float32),
        (np.float64, np.float64),
        (np.int64, np.float64),
    ]:
        z = np.array([[1, 0], [2, 1]], dtype)
        assert gradients.cross_entropy_gradient(z, [0, 1]).dtype == expected
        assert gradients.softmax_jacobian(z).dtype == expected
        assert gradients.binary_cross_entropy_gradient(z, [[0, 1], [1, 1]]).dtype == expected
        half = np.full((2, 2), 0.5, np.float32)
        loss = xent.soft_cross_entropy(z, half)
        assert gradients.soft_cross_entropy_gradient(z, half).dtype == loss.dtype


def test_empty_batches() -> None:
    z = np.zeros((0, 3))
    assert gradients.cross_entropy_gradient(z, np.zeros(0, int), reduction="sum").shape == (0, 3)
    assert gradients.cross_entropy_gradient(z, np.zeros(0, int), denominator=2).shape == (0, 3)
    assert gradients.soft_cross_entropy_gradient(z, z, reduction="none").shape == (0, 3)
    assert gradients.binary_cross_entropy_gradient([], [], reduction="sum").shape == (0,)


# ------------------------------------------------------------------ refused for the reasons of the losses

Z = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, -1.0]])
T = np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
REFUSED: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("cross_entropy", (Z, [0, 3]), {}),
    ("cross_entropy", (Z, [0, -1]), {}),
    ("cross_entropy", (Z, [0.0, 1.0]), {}),
    ("cross_entropy", (Z, [True, False]), {}),
    ("cross_entropy", (Z, [0]), {}),
    ("cross_entropy", (Z, [[0, 1]]), {}),
    ("cross_entropy", (Z * NAN, [0, 1]), {}),
    ("cross_entropy", ([[0.0, INF]], [0]), {}),
    ("cross_entropy", ([[0.0, INF]], [1]), {}),
    ("cross_entropy", ([[-INF, -INF]], [1]), {}),
    ("cross_entropy", ([[0.0, NAN], [NAN, 0.0]], [-1, 1]), {"ignore_index": -1}),
    ("cross_entropy", ([[0.0, NAN], [NAN, 0.0]], [0, 1]), {"weight": [0.0, 1.0]}),
    ("cross_entropy", (Z, [0, 0]), {"ignore_index": 0}),
    ("cross_entropy", (Z, [0, 0]), {"weight": [0.0, 1.0, 1.0]}),
    ("cross_entropy", (Z, [0, 0]), {"weight": [0.0, 1.0]}),
    ("cross_entropy", (Z, [0, 0]), {"weight": [-1.0, 1.0, 1.0]}),
    ("cross_entropy", (Z, [0, 0]), {"label_smoothing": 1.5}),
    ("cross_entropy", (Z, [0, 0]), {"label_smoothing": NAN}),
    ("cross_entropy", (Z, [0, 0]), {"reduction": "batchmean"}),
    ("cross_entropy", (Z, [0, 0]), {"denominator": 0}),
    ("cross_entropy", (Z, [0, 0]), {"denominator": 2, "reduction": "sum"}),
    ("cross_entropy", (Z, [0, 0]), {"axis": 2}),
    ("cross_entropy", (Z, [0, 0]), {"axis": 0.5}),
    ("cross_entropy", (Z > 0, [0, 0]), {}),
    ("cross_entropy", (np.zeros((2, 0)), [0, 0]), {}),
    ("cross_entropy", (np.zeros((0, 3)), []), {}),
    ("soft_cross_entropy", (Z, T * 2), {}),
    ("soft_cross_entropy", (Z, T[:1]), {}),
    ("soft_cross_entropy", (Z, T - 0.1), {}),
    ("soft_cross_entropy", (Z, T * NAN), {}),
    ("soft_cross_entropy", (Z * NAN, T), {}),
    ("soft_cross_entropy", (Z + INF, T), {}),
    ("soft_cross_entropy", (np.zeros((0, 3)), np.zeros((0, 3))), {}),
    ("soft_cross_entropy", (Z, T), {"reduction": None}),
    ("soft_cross_entropy", (Z, T), {"denominator": -1.0}),
    ("soft_cross_entropy", (Z, T), {"axis": 5}),
    ("binary_cross_entropy", ([NAN], [1]), {}),
    ("binary_cross_entropy", ([0.0], [2]), {}),
    ("binary_cross_entropy", ([0.0], [NAN]), {}),
    ("binary_cross_entropy", ([0.0], [[1]]), {}),
    ("binary_cross_entropy", ([0.0], [1]), {"sample_weight": [-1.0]}),
    ("binary_cross_entropy", ([0.0], [1]), {"sample_weight": [0.0]}),
    ("binary_cross_entropy", ([0.0], [1]), {"sample_weight": [1.0, 2.0]}),
    ("cross_entropy", (Z, [0, 0]), {"sample_weight": [1.0, 2.0, 3.0]}),
    ("soft_cross_entropy", (Z, T), {"sample_weight": -1.0}),
    ("soft_cross_entropy", (Z, T), {"weight": [0.0, 0.0, 0.0]}),
    ("binary_cross_entropy", ([0.0], [1]), {"pos_weight": 0.0}),
    ("binary_cross_entropy", ([0.0], [1]), {"pos_weight": [1.0, 1.0]}),
    ("binary_cross_entropy", ([0.0], [1]), {"denominator": INF}),
    ("binary_cross_entropy", ([], []), {}),
]


@pytest.mark.parametrize("name, args, kwargs", REFUSED, ids=str)
def test_a_gradient_refuses_what_its_loss_refuses_in_the_same_words(
    name: str, args: Any, kwargs: Any
) -> None:
    with pytest.raises((ValueError, TypeError)) as of_loss:
        getattr(xent, name)(*args, **kwargs)
    with pytest.raises((ValueError, TypeError)) as of_gradient:
        getattr(gradients, f"{name}_gradient")(*args, **kwargs)
    assert type(of_gradient.value) is type(of_loss.value)
    assert str(of_gradient.value) == str(of_loss.value)


@pytest.mark.parametrize(
    "logits, message",
    [
        ([0.0, NAN], r"logits: expected numbers, got nan at index 1"),
        ([[0.0, 1.0], [INF, 1.0]], r"logits: expected logits below \+inf, got inf at index \(1, 0\)"),
        ([-INF, -INF], r"logits: expected a finite logit in every row"),
        (1.0, r"logits: expected at least one dimension"),
        (np.zeros((2, 0)), r"logits: expected at least one class"),
    ],
    ids=str,
)
def test_the_jacobian_refuses_rows_without_a_softmax(logits: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gradients.softmax_jacobian(logits)


# ------------------------------------------------------- focal losses, and losses of given probabilities


def by_tensors(name: str, x: np.ndarray[Any, Any], targets: Any, options: dict[str, Any]) -> Any:
    """The gradient of the loss on tensors, which is written apart, by autograd."""
    given = torch.tensor(x, requires_grad=True)
    some = {k: torch.as_tensor(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
    loss = getattr(xt, name)(given, torch.as_tensor(targets), **some)
    (gradient,) = torch.autograd.grad(loss.sum(), given)
    return gradient.numpy()


@pytest.mark.parametrize(
    "reduction, denominator", [("mean", None), ("mean", 2.5), ("sum", None), ("none", None)]
)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=15)
def test_the_focal_gradient_is_that_of_the_tensors(reduction: Any, denominator: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = SHAPES[rng.integers(len(SHAPES))]
    axis = int(rng.integers(-len(shape), len(shape)))
    z, labels, _ = problem(shape, axis, int(rng.integers(99)), float(rng.choice([0.3, 3.0, 30.0])))
    options: dict[str, Any] = {"reduction": reduction, "denominator": denominator, "axis": axis}
    options["sample_weight"] = rng.integers(0, 3, labels.shape) + 0.5
    if rng.random() < 0.5 and len(shape) > 1:
        options["ignore_index"] = int(labels.flat[0])
        options["denominator"] = denominator or (2.0 if reduction == "mean" else None)
    options["gamma"] = float(rng.choice([0.0, 0.5, 1.0, 2.0, 5.0]))
    options["alpha"] = rng.integers(1, 4, shape[axis]) / 2
    observed = gradients.focal_loss_gradient(z, labels, **options)
    # Tensors have 8 + |margin| epsilons; the exponent of a focal loss multiplies them.
    np.testing.assert_allclose(
        observed, by_tensors("focal_loss", z, labels, options), rtol=2e-12, atol=1e-300
    )


def test_a_focal_gradient_in_both_tails() -> None:
    """Against 60 digits: where p rounds to one, where it is next to nothing, and for an exponent below one."""
    with mpmath.workdps(400):
        for gamma, margin in itertools.product(
            (0.0, 0.5, 2.0, 5.0), (-700.0, -40.0, -1.0, 0.0, 1.0, 40.0, 140.0)
        ):
            p = 1 / (1 + mpmath.exp(-mpmath.mpf(margin)))
            q = 1 - p
            slope = float(-q * q**gamma * (1 + gamma * p * -mpmath.log(p) / q))
            found = gradients.focal_loss_gradient([[margin, 0.0]], [0], gamma=gamma)[0]
            # A rounding of q, of which the power of gamma makes as many, and some of the other factors.
            assert found == pytest.approx([slope, -slope], rel=(gamma + 8) * 2.3e-16, abs=0), (gamma, margin)


def test_the_focal_gradient_at_the_ends() -> None:
    assert gradients.focal_loss_gradient([[-INF, 0.0]], [0]).tolist() == [[-1.0, 1.0]]
    assert gradients.focal_loss_gradient([[-INF, 0.0]], [1], gamma=0.5).tolist() == [[0.0, 0.0]]
    single = np.float32([[0.25, 0.75]])
    assert gradients.focal_loss_gradient(single, [0]).dtype == np.float32
    assert (gradients.focal_loss_gradient(single, [-1], ignore_index=-1, denominator=1) == 0).all()
    with pytest.raises(ValueError, match=r"^targets: expected at least one target that counts"):
        gradients.focal_loss_gradient(single, [-1], ignore_index=-1)
