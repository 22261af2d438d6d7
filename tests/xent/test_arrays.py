"""What is peculiar in the functions on arrays: blocks, limits, clips, names of classes, odd numbers."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle
import xent
from xent import _blocks, gradients, information
from xent._blocks import cover

INF, NAN = np.inf, np.nan
CERTAIN = [1.0, 0.0]

# -------------------------------------------------------------------------------------------------- blocks


@given(st.lists(st.integers(0, 7), max_size=4), st.integers(1, 60))
def test_every_row_is_covered_once_in_blocks_no_larger_than_asked(shape: list[int], limit: int) -> None:
    visits = np.zeros(shape, int)
    for index in cover(tuple(shape), limit):
        assert visits[index].size <= limit
        visits[index] += 1
    assert (visits == 1).all()


def extra_memory(call: Callable[..., Any], *given: Any, **options: Any) -> int:
    """Bytes that were held at once while it ran, at most, beyond the result."""
    call(*given, **options)
    tracemalloc.start()
    try:
        result = call(*given, **options)
        return tracemalloc.get_traced_memory()[1] - (result.nbytes if result.ndim > 1 else 0)
    finally:
        tracemalloc.stop()


# A megabyte for float32, and a few rows where these are longer.
MEGABYTE = 1 << 20
SHAPES = [(400_000, 2), (100_000, 10), (128, 20_000), (50, 100_000)]


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("axis", [0, 1])
def test_extra_memory_does_not_grow_with_the_logits(shape: tuple[int, int], dtype: str, axis: int) -> None:
    """Also where every row is confident and right, and is looked at a second time."""
    g, (rows, classes) = np.random.default_rng(0), shape
    logits = g.standard_normal(shape, dtype=np.dtype(dtype))
    labels, target = g.integers(classes, size=rows), np.full(shape, 1 / classes, dtype)
    options: Any = {"weight": np.ones(classes), "label_smoothing": 0.1}
    for confident in (False, True):
        logits[np.arange(rows), labels] = 40 * confident
        z, t = (np.ascontiguousarray(x.T) if axis == 0 else x for x in (logits, target))
        allowed = max(MEGABYTE * z.itemsize // 4, 6 * z.itemsize * classes)
        assert extra_memory(xent.log_sum_exp, z, axis=axis) <= allowed + z.itemsize * rows
        # Per row: the labels with the ignored ones replaced, which count, which do not, and what each weighs.
        for loss, some in ((xent.cross_entropy, {}), (xent.cross_entropy, options | {"ignore_index": 0}),
                           (gradients.cross_entropy_gradient, options)):  # fmt: skip
            room = allowed + (18 * rows + 8 * classes if some else 0)
            assert extra_memory(loss, z, labels, axis=axis, **some) <= room
        # The check of the targets holds a sum a row, in float64, and how far it is from one.
        for soft in (xent.soft_cross_entropy, gradients.soft_cross_entropy_gradient):
            assert extra_memory(soft, z, t, axis=axis) <= 1.5 * allowed + 25 * rows


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_the_bad_number_is_named_where_it_stands(axis: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whichever block; log_sum_exp alone takes infinities."""
    monkeypatch.setattr(_blocks, "BLOCK", 8)
    z = np.zeros((2, 3, 4))
    y, t = np.zeros(np.delete(z.shape, axis), int), np.full(z.shape, 1 / z.shape[axis])
    calls: list[Any] = [xent.log_softmax, xent.softmax]
    calls += [
        partial(f, targets=y) for f in (xent.cross_entropy, xent.focal_loss, gradients.cross_entropy_gradient)
    ]
    soft = [xent.soft_cross_entropy, gradients.soft_cross_entropy_gradient]
    calls += [partial(f, target_probs=t) for f in soft]
    for bad in (NAN, INF):
        z[1, 2, 3] = bad
        for call in [*calls, *([xent.log_sum_exp] if bad is NAN else [])]:
            with pytest.raises(ValueError, match=rf"got {bad} at index \(1, 2, 3\)"):
                call(z, axis=axis)
    z[1, 2, 3] = 0
    np.moveaxis(z, axis, 0)[:, 1, 2] = -INF
    for call in calls:
        with pytest.raises(ValueError, match=rf"^logits: .* whole class axis {axis} at index \(1, 2\)"):
            call(z, axis=axis)


# ------------------------------------------------------------------------------- zeros, infinities, extremes


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_a_certain_answer_costs_plain_zero(reduction: Any) -> None:
    how: dict[str, Any] = {"reduction": reduction}
    for loss in (
        xent.cross_entropy([[0.0, -INF]], [0], **how),
        xent.cross_entropy([[0.0]], [0], label_smoothing=0.5, **how),
        xent.soft_cross_entropy([[0.0, -INF]], [CERTAIN], **how),
        *(xent.binary_cross_entropy([s * INF], [s > 0], **how) for s in (1, -1)),
        xent.nll([[0.0, -INF]], [0], **how),
        xent.log_loss([CERTAIN], [0], **how),
    ):
        assert loss == 0 and not np.signbit(loss).any()


def test_minus_infinity_is_a_class_without_probability() -> None:
    """As a target it costs inf, and its gradient still has the value of the formula."""
    z, hard = np.array([0.0, -INF, 0.0]), gradients.cross_entropy_gradient
    soft = gradients.soft_cross_entropy_gradient
    binary = gradients.binary_cross_entropy_gradient([-INF, INF, INF, INF], [1, 0, 1, 0.25], reduction="none")
    for got, expected in (
        (hard(z, 0), [-0.5, 0, 0.5]),
        (hard(z, 1), [0.5, -1, 0.5]),
        (soft(z, [0.25, 0.0, 0.75]), [0.25, 0, -0.25]),
        (soft(z, [0.0, 0.5, 0.5]), [0.5, -0.5, 0]),
        (binary, [-1, 1, 0, 0.75]),
        (xent.focal_loss(z, 1, alpha=[1.0, 0.0, 1.0]), 0),
    ):
        np.testing.assert_array_equal(got, expected)
    np.testing.assert_allclose(hard(z, 0, label_smoothing=0.3), [-0.3, -0.1, 0.4], rtol=1e-14)


def test_where_nothing_counts() -> None:
    """A row of soft targets without weight does not count."""
    z, t = np.array([[NAN, 0.0], [1.0, 0.0]]), np.array([[1.0, 0.0], [0.0, 1.0]])
    assert xent.soft_cross_entropy(z, t, weight=[0.0, 2.0]) == xent.soft_cross_entropy(z[1:], t[1:])
    many = np.full((3, 300), NAN)  # the layout of many classes
    assert (gradients.cross_entropy_gradient(many, [7] * 3, ignore_index=7, denominator=1) == 0).all()


def test_extreme_weights_and_denominators_make_no_nan() -> None:
    """0 * inf would be nan: in float32 neither 1e300 nor 1e-300 exists."""
    z, some = np.array([[0.0, -INF, 0.0]], np.float32), {"weight": [1.0] * 3}
    for options, expected in (
        ({"weight": [1e300] * 3, "denominator": 1e300}, [-0.5, 0, 0.5]),
        ({"weight": [1e-300] * 3, "denominator": 1e-300}, [-0.5, 0, 0.5]),
        *((o | {"denominator": d}, [-INF, 0, INF]) for o in ({}, some) for d in (1e-300, 5e-324)),
    ):
        np.testing.assert_array_equal(gradients.cross_entropy_gradient(z, [0], **options), [expected])
    got = gradients.soft_cross_entropy_gradient(z, np.float32([[1, 0, 0]]), denominator=1e-300)
    np.testing.assert_array_equal(got, [[-INF, 0, INF]])
    sure = np.float32([[80.0, 0.0]])
    with np.errstate(all="raise"):
        assert xent.cross_entropy(sure, [0], denominator=1e30) == 0, "below the smallest float32"
        assert xent.cross_entropy(1e3 * sure, [1], denominator=1e-38) == INF, "beyond the largest"
        assert xent.nll(np.float32([[0.0, -INF]]), [1]) == xent.log_loss(np.float32([CERTAIN]), [1]) == INF
        for z in (sure, 2 * sure):
            with pytest.raises(ValueError, match="for logits use cross_entropy"):
                xent.nll(z, [0])


# ---------------------------------------------------------------------------------- clips, names, factors


@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_what_is_below_the_smallest_normal_number_is_no_smoothing_and_no_clip(dtype: str) -> None:
    tiny = float(np.finfo(np.promote_types(dtype, np.float32)).tiny)
    p, z = np.array([1.0, 0.0], dtype), np.array([-INF], dtype)
    for share, costs in ((tiny / 4, False), (tiny, True)):
        assert np.isfinite(xent.log_loss(p, 1, eps=share)) == costs
        assert np.isfinite(xent.binary_log_loss(p[1:], [1], eps=share)) == costs
        assert np.isinf(xent.binary_cross_entropy(z, [0], label_smoothing=share)) == costs


def test_nothing_is_clipped_unless_asked_for() -> None:
    p = np.array([[1 + 4e-7, 0.0]])  # within the tolerance of a row's sum
    assert xent.log_loss(p, [0]) == -np.log(1 + 4e-7)
    np.testing.assert_allclose(xent.log_loss(p, [0], eps=1e-3), -np.log(1 - 1e-3), rtol=1e-15)


# -------------------------------------------------------------------------------------------- distributions


def test_zeros_and_the_smallest_numbers() -> None:
    half = [0.5, 0.5]
    kl = information.kl_divergence
    assert information.entropy(CERTAIN) == 0
    for measure in (information.cross_entropy, kl):
        assert measure(CERTAIN, CERTAIN) == 0 and measure(half, CERTAIN) == INF
    assert kl(CERTAIN, half) == np.log(2)
    one_hot = np.array([[0, 1], [1, 0]])
    for kind in ("i1", "u8", "f2"):
        assert information.entropy(one_hot.astype(kind)).tolist() == [0, 0]
        np.testing.assert_allclose(kl(one_hot.astype(kind), [half, half]), np.log(2), rtol=1e-13)


def test_a_quotient_that_no_float_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some versions of SciPy divide first, and p / q overflows before its logarithm is taken."""
    monkeypatch.setattr(information, "rel_entr", lambda p, q: np.where(p > 0, p * np.log(p / q), 0.0))
    p = np.array([[0.5, 0.5], [0.25, 0.75], [0.5, 0.5], [1.0, 0.0]])
    q = np.array([[1.0, 5e-324], [0.5, 0.5], [1.0, 0.0], [1e-310, 1.0]])
    with np.errstate(all="ignore"):
        expected = np.where(p > 0, p * (np.log(p) - np.log(q)), 0).sum(axis=1)
    assert expected[2] == INF
    for some in (slice(None), slice(1, None), 1):
        np.testing.assert_allclose(information.kl_divergence(p[some], q[some]), expected[some], rtol=1e-14)
