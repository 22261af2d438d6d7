"""Log-sum-exp, softmax and sigmoid against mpmath, and on every way an array can lie in memory."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext
from itertools import islice
from typing import Any

import mpmath as mp
import numpy as np
import pytest
import scipy.special
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

import oracle
import xent
from xent import _blocks

# The promises of the docstrings, in machine epsilons of the result's dtype. Seen at worst on the sweep: 2.8
# for the logarithms, 1.7 for the sigmoids.
PROMISED, PROMISED_SOFTMAX = 4.0, 8.0

ROWWISE = [xent.log_sum_exp, xent.log_softmax, xent.softmax]
ELEMENTWISE = [xent.sigmoid, xent.log_sigmoid]
BY_NAME: dict[str, Any] = {"ids": lambda value: getattr(value, "__name__", repr(value))}

by_dtype = pytest.mark.parametrize("dtype", oracle.DTYPES)
by_classes = pytest.mark.parametrize("classes", oracle.CLASSES)


def result_dtype(dtype: str) -> np.dtype[Any]:
    return np.promote_types(dtype, np.float32)


@by_dtype
@by_classes
def test_log_softmax_and_log_sum_exp_keep_their_promise(classes: int, dtype: str) -> None:
    z, out = oracle.sweep(classes, dtype), result_dtype(dtype)
    log_p, lse = xent.log_softmax(z), xent.log_sum_exp(z)
    assert log_p.dtype == lse.dtype == out
    for row, got, total in zip(z, log_p, lse, strict=True):
        losses = oracle.negative_log_softmax(row)
        for value, loss in zip(got, losses, strict=True):
            assert oracle.epsilons(-value, loss, out) <= PROMISED
        # m + log(...) cancels where m is near -log(...), so that the promise is relative to the larger.
        true, top = oracle.log_sum_exp(row), max(oracle.exact(row))
        assert oracle.epsilons(total, true, out, max(abs(top), true - top)) <= PROMISED


@by_dtype
@by_classes
def test_what_underflow_leaves_of_the_terms(classes: int, dtype: str) -> None:
    out = result_dtype(dtype)
    tiny = mp.mpf(float(np.finfo(out).tiny))
    z = np.zeros((60, classes), dtype)
    z[:, 1:] = -(-float(np.log(np.finfo(out).tiny)) + np.linspace(-8, 17, 60))[:, None]
    for row, log_p, total in zip(z, xent.log_softmax(z), xent.log_sum_exp(z), strict=True):
        true = oracle.negative_log_softmax(row)[0]
        for value in (-log_p[0], total):
            assert oracle.epsilons(value, true, out, max(true, classes * tiny)) <= PROMISED + 4


@by_dtype
@by_classes
def test_softmax_keeps_its_promise(classes: int, dtype: str) -> None:
    z, out = oracle.sweep(classes, dtype), result_dtype(dtype)
    p = xent.softmax(z)
    assert p.dtype == out
    assert np.abs(p.sum(axis=-1, dtype=np.float64) - 1).max() <= PROMISED_SOFTMAX * np.finfo(out).eps
    for row, got in zip(z, p, strict=True):
        exact = oracle.exact(row)
        top = max(exact)
        for z_k, value, loss in islice(zip(exact, got, oracle.negative_log_softmax(row), strict=True), 70):
            gap = float(top - z_k)
            if gap == np.inf:
                assert value == 0
            else:
                assert oracle.epsilons(value, mp.exp(-loss), out) <= PROMISED_SOFTMAX + gap / 2


@by_dtype
def test_sigmoids_keep_their_promise(dtype: str) -> None:
    out = result_dtype(dtype)
    sizes = np.concatenate([np.geomspace(1e-300, 1e-5, 40), np.geomspace(1e-5, 6e4, 2000), [0.0]])
    with np.errstate(under="ignore"):
        z = np.concatenate([-sizes, sizes]).astype(dtype)
    sigmoid, log_sigmoid = xent.sigmoid(z), xent.log_sigmoid(z)
    assert sigmoid.dtype == log_sigmoid.dtype == out
    for v, p, log_p in zip(oracle.exact(z), sigmoid, log_sigmoid, strict=True):
        assert oracle.epsilons(p, 1 / (1 + mp.exp(-v)), out) <= PROMISED
        assert oracle.epsilons(-log_p, oracle.softplus(-v), out) <= PROMISED


def test_one_plus_a_tiny_term_is_kept() -> None:
    """What log(sum(exp)) loses: in float64 the sum rounds to one."""
    assert xent.log_sum_exp([0.0, -40.0]) == pytest.approx(float(mp.log1p(mp.exp(-40))), rel=4e-16, abs=0)
    small = xent.log_softmax(np.float32([0.0, -80.0]))[0]
    assert oracle.epsilons(-small, mp.log1p(mp.exp(-80)), "float32") <= PROMISED
    assert np.log(np.exp([0.0, -40.0]).sum()) == 0


@by_dtype
@pytest.mark.parametrize("axis", [0, 2, (0, 2), (2, 0), (-1, 1), None])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("factors", [None, (3, 1), (4, 3, 5)])
def test_scipy_logsumexp(axis: Any, keepdims: bool, factors: tuple[int, ...] | None, dtype: str) -> None:
    rng = np.random.default_rng(0)
    x, b = rng.normal(scale=5, size=(4, 3, 5)).astype(dtype), None
    if factors:
        b = rng.uniform(size=factors)
        b[0] = 0
    theirs = scipy.special.logsumexp(x.astype(float), axis=axis, b=b, keepdims=keepdims)
    ours = xent.log_sum_exp(x, axis=axis, b=b, keepdims=keepdims)
    assert ours.shape == np.shape(theirs) and ours.dtype == np.promote_types(dtype, np.float32)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=4 * 20 * np.finfo(ours.dtype).eps)


def test_what_has_no_factor_does_not_count() -> None:
    assert xent.log_sum_exp([np.inf, 0.0], b=[0, 1]) == 0
    assert xent.log_sum_exp([1.0, 0.0], b=[False, True]) == 0
    assert xent.log_sum_exp([1.0, 0.0], b=0) == -np.inf
    assert xent.log_sum_exp([0.0, -40.0], b=[1.0, 2.0]) == pytest.approx(2 * np.exp(-40), rel=1e-14, abs=0)
    with pytest.raises(ValueError, match=r"^x: expected numbers, got nan at index 0"):
        xent.log_sum_exp([np.nan, 0.0], b=[0, 1])


@pytest.mark.parametrize(("x", "b"), [(300.3, 7e-131), (-300.3, 7e130), (690.0, 1.5 * np.exp(-690.0))])
def test_a_factor_that_all_but_cancels_costs_digits_of_x(x: float, b: float) -> None:
    true = mp.log(mp.mpf(b)) + mp.mpf(x)
    got = xent.log_sum_exp([x, 0.0], b=[b, 0])
    assert oracle.epsilons(got, true, "float64", abs(x)) <= PROMISED < oracle.epsilons(got, true, "float64")


def test_the_oracle_agrees_with_decimal_arithmetic() -> None:
    with localcontext(prec=60):
        row = [0.1, -3.0, 50.0, 49.5]
        total = sum((Decimal(v).exp() for v in row), Decimal(0))
        for v, loss in zip(row, oracle.negative_log_softmax(row), strict=True):
            assert mp.almosteq(loss, mp.mpf(str(total.ln() - Decimal(v))), rel_eps=mp.mpf(10) ** -38)
        assert mp.almosteq(oracle.log_sum_exp(row), mp.mpf(str(total.ln())), rel_eps=mp.mpf(10) ** -38)


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_scipy_and_torch_agree(scale: float) -> None:
    z = scale * np.random.default_rng(0).normal(size=(40, 7))
    t = torch.from_numpy(z)
    for ours, scipys, torchs in (
        (xent.log_softmax(z), scipy.special.log_softmax(z, axis=-1), torch.log_softmax(t, -1)),
        (xent.softmax(z), scipy.special.softmax(z, axis=-1), torch.softmax(t, -1)),
        (xent.log_sum_exp(z), scipy.special.logsumexp(z, axis=-1), torch.logsumexp(t, -1)),
        (xent.sigmoid(z), scipy.special.expit(z), torch.sigmoid(t)),
        (xent.log_sigmoid(z), scipy.special.log_expit(z), torch.nn.functional.logsigmoid(t)),
    ):
        # Theirs may be off by the rounding of one, where ours is not.
        np.testing.assert_allclose(ours, scipys, rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(ours, torchs.numpy(), rtol=1e-13, atol=1e-15)


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "fortran": np.asfortranarray,
    "backwards": lambda a: a[::-1, ::-1, ::-1].copy()[::-1, ::-1, ::-1],
    "every other": lambda a: np.repeat(np.repeat(a, 2, axis=0), 2, axis=-1)[::2, :, ::2],
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "unaligned": lambda a: np.frombuffer(b"x" + a.tobytes(), np.uint8)[1:].view(a.dtype).reshape(a.shape),
    "transposed": lambda a: a.transpose(2, 0, 1).copy().transpose(1, 2, 0),
    "a list": lambda a: a.tolist(),
    "a tensor": lambda a: torch.from_numpy(a.copy()),
}


@pytest.mark.parametrize("function", [*ROWWISE, *ELEMENTWISE], **BY_NAME)
@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("shape", [(5, 4, 3), (2, 3, 100)])
@by_dtype
def test_memory_order_does_not_matter(
    function: Callable[..., Any], layout: str, shape: tuple[int, ...], dtype: str
) -> None:
    plain = np.random.default_rng(0).normal(scale=5, size=shape).astype(dtype)
    laid_out = LAYOUTS[layout](plain)
    if isinstance(laid_out, np.ndarray):
        laid_out.flags.writeable = False
    expected, got = function(plain), function(laid_out)
    if layout == "a list":
        expected = function(plain.astype(np.float64))
    assert got.dtype == expected.dtype
    assert got.dtype.isnative
    np.testing.assert_array_equal(np.asarray(laid_out), plain)
    # The order of the sum may differ, and with it the last digits.
    eps = np.finfo(expected.dtype).eps
    np.testing.assert_allclose(got, expected, rtol=4 * eps, atol=0)


@pytest.mark.parametrize("function", ROWWISE, **BY_NAME)
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_any_axis(function: Callable[..., Any], axis: int) -> None:
    z = np.random.default_rng(0).normal(scale=5, size=(4, 70, 6))
    z[1, :, 2] = -800.0
    z[1, 3, 2] = 0.0
    z[:, 0, :] = -np.inf
    if axis % 3 == 1:
        z[0, 0, 0] = 2.0
    else:
        z = np.where(np.isinf(z), -3.0, z)
    last = function(np.ascontiguousarray(np.moveaxis(z, axis, -1)))
    if function is not xent.log_sum_exp:
        last = np.moveaxis(last, -1, axis)
    np.testing.assert_allclose(function(z, axis=axis), last, rtol=1e-15)


@pytest.mark.parametrize("function", ROWWISE, **BY_NAME)
@pytest.mark.parametrize("shape", [(0, 3), (2, 0, 3), (0, 0, 1), (1, 1), (1,), (3, 1), (1, 3), (1, 1, 1, 2)])
def test_axes_of_length_zero_and_one(function: Callable[..., Any], shape: tuple[int, ...]) -> None:
    z = np.ones(shape)
    got = function(z)
    assert got.shape == (shape[:-1] if function is xent.log_sum_exp else shape)
    classes = shape[-1]
    expected = {"log_sum_exp": 1 + np.log(classes), "log_softmax": -np.log(classes), "softmax": 1 / classes}
    np.testing.assert_allclose(got, expected[function.__name__], rtol=1e-15, atol=0)


@pytest.mark.parametrize("function", [*ROWWISE, *ELEMENTWISE], **BY_NAME)
@pytest.mark.parametrize("kind", ["i1", "u1", "i4", "u8", ">i8"])
def test_integers_are_float64(function: Callable[..., Any], kind: str) -> None:
    z = np.array([[3, 0, 100], [7, 7, 7]])
    got = function(z.astype(kind))
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got, function(z.astype(np.float64)))


@pytest.mark.parametrize("function", [xent.log_sum_exp, *ELEMENTWISE], **BY_NAME)
def test_one_number_comes_back_as_a_scalar(function: Callable[..., Any]) -> None:
    row_or_number = [1.0, 2.0] if function is xent.log_sum_exp else 1.0
    assert isinstance(function(row_or_number), np.float64)
    assert isinstance(function(np.float32(row_or_number)), np.float32)


@pytest.mark.parametrize("function", [*ROWWISE, *ELEMENTWISE], **BY_NAME)
def test_what_the_caller_wants_of_numpys_warnings_does_not_matter(function: Callable[..., Any]) -> None:
    z = np.array([[0.0, -1000.0, 700.0], [-745.0, 1.0, 0.5]])
    expected = function(z)
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(function(z), expected)


@pytest.mark.parametrize("function", ROWWISE, **BY_NAME)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_the_bad_number_is_named_where_it_stands(function: Callable[..., Any], axis: int) -> None:
    z = np.zeros((2, 3, 4))
    z[1, 2, 3] = np.nan
    with pytest.raises(ValueError, match=r"got nan at index \(1, 2, 3\)"):
        function(z, axis=axis)
    if function is not xent.log_sum_exp:
        z[1, 2, 3] = np.inf
        with pytest.raises(ValueError, match=r"got inf at index \(1, 2, 3\)"):
            function(z, axis=axis)
        z = np.zeros((2, 3, 4))
        np.moveaxis(z, axis, 0)[:, 1, 2] = -np.inf
        with pytest.raises(ValueError, match=rf"whole class axis {axis} at index \(1, 2\)"):
            function(z, axis=axis)


@pytest.mark.parametrize("function", ROWWISE, **BY_NAME)
@pytest.mark.parametrize("classes", [2, 64, 65, 200])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_block_boundaries_do_not_show(
    function: Callable[..., Any], classes: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    z = np.random.default_rng(0).normal(scale=20, size=(7, 11, classes)).astype(dtype)
    expected = function(z)
    for elements in (1, classes, 3 * classes + 1):
        monkeypatch.setattr(_blocks, "BLOCK", elements)
        # One row a block is summed pairwise, many rows one class after the other: the last digits differ.
        np.testing.assert_allclose(function(z), expected, rtol=8 * np.finfo(dtype).eps)


finite_logits = arrays(
    np.float64,
    array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=6),
    elements=st.floats(-1e4, 1e4, allow_subnormal=False),
)


@given(finite_logits, st.integers(-1000, 1000))
def test_a_shift_moves_log_sum_exp_and_leaves_softmax(z: Any, shift: int) -> None:
    z = np.rint(z * 16) / 16  # so that the shift is exact
    np.testing.assert_allclose(xent.log_sum_exp(z + shift), xent.log_sum_exp(z) + shift, atol=1e-11, rtol=0)
    np.testing.assert_array_equal(xent.log_softmax(z + shift), xent.log_softmax(z))
    np.testing.assert_array_equal(xent.softmax(z + shift), xent.softmax(z))


@given(finite_logits)
def test_the_three_agree(z: Any) -> None:
    log_p = xent.log_softmax(z)
    assert (log_p <= 0).all()
    np.testing.assert_allclose(np.exp(log_p), xent.softmax(z), rtol=1e-11, atol=1e-300)
    np.testing.assert_allclose(z - xent.log_sum_exp(z)[..., None], log_p, rtol=1e-15, atol=1e-11)
    np.testing.assert_allclose(xent.softmax(z).sum(axis=-1), 1, rtol=1e-15)


@given(finite_logits)
def test_the_sigmoid_is_a_softmax_over_two(z: Any) -> None:
    pair = np.stack([z, np.zeros_like(z)], axis=-1)
    np.testing.assert_allclose(xent.log_sigmoid(z), xent.log_softmax(pair)[..., 0], rtol=1e-15)
    np.testing.assert_allclose(xent.sigmoid(z), xent.softmax(pair)[..., 0], rtol=1e-15)
    np.testing.assert_allclose(xent.sigmoid(z) + xent.sigmoid(-z), 1, rtol=1e-15)
    np.testing.assert_allclose(xent.log_sigmoid(z) - xent.log_sigmoid(-z), z, rtol=1e-15, atol=1e-15)
