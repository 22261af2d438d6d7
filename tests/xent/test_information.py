"""Entropy, cross-entropy and divergences: against mpmath and SciPy, and the inequalities they obey."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np
import pytest
import scipy.spatial.distance
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

import oracle
import xent
from adversary import refuted
from xent import information
from xent.information import cross_entropy, entropy, entropy_from_logits, js_divergence, kl_divergence

# The promise of the docstrings, in machine epsilons of the result's dtype, relative to the result. Seen at
# worst: 1.1 for entropy and cross-entropy, 3 for the divergences.
PROMISED = 4.0

PAIRWISE = [cross_entropy, kl_divergence, js_divergence]


def dyadic(count: int, classes: int, concentration: float, seed: int) -> np.ndarray:
    """Distributions whose entries sum to one exactly: whole multiples of 2**-50, zeros among them."""
    rng = np.random.default_rng(seed)
    p = np.floor(rng.dirichlet(np.full(classes, concentration), count) * 2.0**50)
    p[np.arange(count), p.argmax(axis=1)] += 2.0**50 - p.sum(axis=1)
    return p * 2.0**-50


def exact_kl(p: Any, q: Any) -> mp.mpf:
    terms = [a * mp.log(a / b) if b else oracle.INF for a, b in zip(p, q, strict=True) if a]
    return mp.fsum(terms)


CASES = [(2, 1.0), (2, 0.05), (3, 0.3), (10, 1.0), (10, 0.1), (64, 0.5), (500, 1.0)]
by_case = pytest.mark.parametrize(("classes", "concentration"), CASES)


@pytest.mark.parametrize("dtype", oracle.DTYPES)
@pytest.mark.parametrize("classes", [1, 2, 10, 64, 200])
def test_the_entropy_of_logits_keeps_its_promise(classes: int, dtype: str) -> None:
    """Also where the probabilities would have lost it."""
    z, out = oracle.sweep(classes, dtype), np.promote_types(dtype, np.float32)
    for row, got in zip(z, entropy_from_logits(z), strict=True):
        losses = oracle.negative_log_softmax(row)
        true = mp.fsum(mp.exp(-x) * x for x in losses if not mp.isinf(x))
        assert oracle.epsilons(got, true, out) <= PROMISED + max(0.0, -float(mp.log(true)) / 2 if true else 0)
    np.testing.assert_allclose(
        entropy_from_logits(z.T, axis=0, base=2), entropy_from_logits(z) / np.log(2), rtol=4e-7, atol=1e-37
    )


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("distance", [64.0, 512.0])
@pytest.mark.parametrize("classes", [2, 128, 1001])
def test_the_entropy_of_logits_where_many_terms_round_alike(
    classes: int, distance: float, order: Any
) -> None:
    z = np.full((130, classes), -distance, order=order)
    z[:, 0] = 0.4999 * np.spacing(distance)
    losses = oracle.negative_log_softmax(z[0])
    true = losses[0] + (classes - 1) * losses[1] * mp.exp(-losses[1])
    off = oracle.epsilons(entropy_from_logits(z)[-1], true, "float64")
    assert off <= 4 + float(mp.log(classes / true)) / 2 + 4
    if classes == 1001:
        with refuted("the classes need not be counted"):
            assert off <= 4 - float(mp.log(true)) / 2


@pytest.mark.parametrize(("dtype", "distance"), [("float32", 98.0), ("float64", 720.0)])
def test_the_entropy_of_logits_down_to_1e_30(dtype: str, distance: float) -> None:
    """Where the probabilities are subnormal numbers a normal entropy has lost its digits."""

    def keeps_its_promise(distance: float) -> None:
        z = np.append(0, np.full(999, -distance)).astype(dtype)
        losses = oracle.negative_log_softmax(z)
        true = sum(times * x * mp.exp(-x) for times, x in zip((1, 999), losses[:2], strict=True))
        assert true > np.finfo(dtype).tiny
        assert oracle.epsilons(entropy_from_logits(z), true, dtype) <= 4 + float(mp.log(1000 / true)) / 2

    for near in np.arange(0.0, 80.0, 2.3):
        keeps_its_promise(near)
    with refuted("any normal entropy"):
        keeps_its_promise(distance)


@pytest.mark.parametrize("measure", [entropy, cross_entropy, kl_divergence])
def test_the_axis_costs_no_digits(measure: Any) -> None:
    """Across memory NumPy adds one after the other: of 500 classes the entropy was off by 48 epsilons."""
    p, q = (np.append(first, np.full(499, (1 - first) / 499)) for first in (0.5, 0.3))
    given = (p,) if measure is entropy else (p, q)
    alone = measure(*given)
    for axis, laid in ((0, [np.stack([x] * 3, 1) for x in given]), (1, [np.stack([x] * 3) for x in given])):
        np.testing.assert_allclose(measure(*laid, axis=axis), alone, rtol=4 * 2.0**-52)


def test_the_entropy_of_logits_is_that_of_their_softmax() -> None:
    z = np.random.default_rng(0).normal(size=(3, 4, 5))
    np.testing.assert_allclose(entropy_from_logits(z), entropy(xent.softmax(z)), rtol=1e-13)
    assert entropy_from_logits([0.0, -np.inf]) == 0


@by_case
@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_entropy_and_cross_entropy_keep_their_promise(classes: int, concentration: float, dtype: str) -> None:
    out = np.promote_types(dtype, np.float32)
    p = dyadic(20, classes, concentration, seed=1).astype(dtype)
    q = dyadic(20, classes, 2.0, seed=2).astype(dtype)
    h, ce, bits = entropy(p), cross_entropy(p, q), cross_entropy(p, q, base=2)
    assert h.dtype == ce.dtype == out
    for i in range(len(p)):
        a, b = oracle.exact(p[i]), oracle.exact(q[i])
        true = -mp.fsum(x * mp.log(x) for x in a if x)
        assert oracle.epsilons(h[i], true, out) <= PROMISED
        true = mp.fsum(-x * mp.log(y) if y else oracle.INF for x, y in zip(a, b, strict=True) if x)
        assert oracle.epsilons(ce[i], true, out) <= PROMISED
        assert oracle.epsilons(bits[i], true / mp.log(2), out) <= PROMISED


@by_case
@pytest.mark.parametrize("distance", [1.0, 0.3, 1e-2, 1e-4, 1e-6])
def test_divergences_keep_their_promise(classes: int, concentration: float, distance: float) -> None:
    """Also where p is close to q: there the plain sum of p log(p / q) has no digits left."""
    p = dyadic(20, classes, concentration, seed=1)
    other = dyadic(20, classes, 2.0, seed=2)
    q = np.floor((p + distance * (other - p)) * 2.0**50)
    q[np.arange(len(q)), q.argmax(axis=1)] += 2.0**50 - q.sum(axis=1)
    q *= 2.0**-50
    kl, js = kl_divergence(p, q), js_divergence(p, q)
    for i in range(len(p)):
        a, b = oracle.exact(p[i]), oracle.exact(q[i])
        m = [(x + y) / 2 for x, y in zip(a, b, strict=True)]
        assert oracle.epsilons(kl[i], exact_kl(a, b), np.float64) <= PROMISED
        true = (exact_kl(a, m) + exact_kl(b, m)) / 2
        assert oracle.epsilons(js[i], true, np.float64) <= PROMISED


def test_the_divergence_of_two_classes_keeps_it_at_middle_distances() -> None:
    """Where log(p / q) is a few tenths, a sum of p log(p / q) - p + q has lost up to six epsilons."""
    p = dyadic(3000, 2, 2.0, seed=3)
    first = np.floor(p[:, 0] * np.linspace(0.3, 0.9, len(p)) * 2.0**50) * 2.0**-50
    q = np.stack([first, 1 - first], axis=1)
    for a, b, got in zip(p, q, kl_divergence(p, q), strict=True):
        assert oracle.epsilons(got, exact_kl(oracle.exact(a), oracle.exact(b)), np.float64) <= PROMISED


def test_the_plain_sum_would_not_keep_it() -> None:
    p = np.array([0.5, 0.5])
    q = p + 2.0**-30 * np.array([1, -1])
    true = exact_kl(oracle.exact(p), oracle.exact(q))
    assert oracle.epsilons(kl_divergence(p, q), true, np.float64) <= PROMISED
    assert oracle.epsilons((p * np.log(p / q)).sum(), true, np.float64) > 1e7


def test_zeros_and_the_smallest_numbers() -> None:
    least, certain = 5e-324, [1.0, 0.0]
    assert entropy(certain) == 0
    assert cross_entropy(certain, certain) == kl_divergence(certain, certain) == 0
    assert cross_entropy([0.5, 0.5], certain) == kl_divergence([0.5, 0.5], certain) == np.inf
    assert kl_divergence(certain, [0.5, 0.5]) == np.log(2)
    assert js_divergence(certain, certain[::-1]) == np.log(2)
    assert js_divergence(certain, [1.0, least]) == 0
    half_a_log = mp.mpf(0.5) * mp.log(mp.mpf(0.5) / mp.mpf(least))
    assert kl_divergence([0.5, 0.5], [1.0, least]) == pytest.approx(float(half_a_log + mp.log(0.5) / 2))


def test_scipy_agrees() -> None:
    p, q = np.random.default_rng(0).dirichlet(np.ones(5), (2, 30))
    for base in (None, 2, 10):
        close(entropy(p, base=base), scipy.stats.entropy(p, axis=1, base=base))
        close(kl_divergence(p, q, base=base), scipy.stats.entropy(p, q, axis=1, base=base))
        root = scipy.spatial.distance.jensenshannon(p, q, axis=1, base=base)
        close(js_divergence(p, q, base=base), root**2)


def close(got: Any, expected: Any, rtol: float = 1e-13, atol: float = 0.0) -> None:
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=atol)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    classes = draw(st.integers(1, 8))
    concentration = draw(st.sampled_from([0.1, 1.0, 10.0]))
    seed = draw(st.integers(0, 2**31))
    return dyadic(4, classes, concentration, seed), dyadic(4, classes, concentration, seed + 1)


@given(pairs())
def test_bounds_and_identities(pair: Any) -> None:
    p, q = pair
    h, ce, kl, js = entropy(p), cross_entropy(p, q), kl_divergence(p, q), js_divergence(p, q)
    assert (h >= 0).all()
    assert (h <= np.log(p.shape[1]) * (1 + 1e-15)).all()
    assert (kl >= 0).all()  # Gibbs
    assert ((kl == 0) == (p == q).all(axis=1)).all()
    finite = np.isfinite(ce)
    close(ce[finite], (h + kl)[finite], rtol=1e-14)
    assert (np.isfinite(kl) == finite).all()
    close(cross_entropy(p, p), h, rtol=1e-15)
    assert (js >= 0).all()
    assert (js <= np.log(2) * (1 + 1e-15)).all()
    close(js_divergence(q, p), js, rtol=1e-15)
    total_variation = np.abs(p - q).sum(axis=1) / 2
    assert (kl >= 2 * total_variation**2 * (1 - 1e-14)).all()  # Pinsker
    m = (p + q) / 2
    close(js, entropy(m) - (entropy(p) + entropy(q)) / 2, atol=1e-14)


@given(pairs(), st.integers(0, 2**31))
def test_the_order_of_the_classes_is_of_no_account(pair: Any, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(pair[0].shape[1])
    for function in PAIRWISE:
        close(function(*(d[:, order] for d in pair)), function(*pair), rtol=1e-14)


@given(pairs())
def test_the_losses_say_the_same(pair: Any) -> None:
    p, q = pair
    with np.errstate(divide="ignore"):
        z = np.log(q)
    close(xent.soft_cross_entropy(z, p, reduction="none"), cross_entropy(p, q), rtol=1e-14, atol=1e-15)
    k = p.argmax(axis=1)
    one_hot = np.eye(p.shape[1])[k]
    close(xent.log_loss(q, k, reduction="none"), kl_divergence(one_hot, q), rtol=1e-15, atol=1e-15)


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "fortran": np.asfortranarray,
    "backwards": lambda a: np.flip(np.flip(a).copy()),
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "a list": lambda a: a.tolist(),
}


@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_memory_order_and_axis_do_not_matter(layout: str, axis: int) -> None:
    p, q = (np.moveaxis(dyadic(12, 5, 1.0, seed).reshape(3, 4, 5), -1, axis).copy() for seed in (1, 2))
    p_, q_ = LAYOUTS[layout](p), LAYOUTS[layout](q)
    for array in (p_, q_):
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
    last = [np.moveaxis(d, axis, -1).copy() for d in (p, q)]
    close(entropy(p_, axis=axis), entropy(last[0]), rtol=1e-15)
    for function in PAIRWISE:
        got = function(p_, q_, axis=axis)
        assert got.dtype == np.float64
        assert got.dtype.isnative
        close(got, function(*last), rtol=1e-15)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0, 3), (1,), (1, 1), (3, 1)])
def test_axes_of_length_zero_and_one(shape: tuple[int, ...]) -> None:
    p = np.full(shape, 1 / shape[-1])
    assert np.shape(entropy(p)) == shape[:-1]
    close(entropy(p), np.full(shape[:-1], np.log(shape[-1])), rtol=1e-15)
    for function in (kl_divergence, js_divergence):
        close(function(p, p), np.zeros(shape[:-1]))


def test_certainties_may_be_integers() -> None:
    one_hot, half = np.array([[0, 1], [1, 0]]), np.full((2, 2), 0.5)
    for kind in ("i1", "u8", "f2"):
        assert entropy(one_hot.astype(kind)).tolist() == [0, 0]
        close(kl_divergence(one_hot.astype(kind), half), np.log(2))


def test_the_result_keeps_the_wider_dtype() -> None:
    p = np.array([0.25, 0.75])
    for a, b, expected in (
        ("f2", "f2", np.float32),
        ("f4", "f2", np.float32),
        ("f4", "f8", np.float64),
        ("f8", "f2", np.float64),
    ):
        for function in PAIRWISE:
            assert isinstance(function(p.astype(a), p.astype(b)), expected)


def test_a_base_below_one_turns_the_sign() -> None:
    p, q = np.array([0.25, 0.75]), np.array([0.5, 0.5])
    for function in (entropy, *PAIRWISE):
        given_to = (p,) if function is entropy else (p, q)
        close(function(*given_to, base=0.5), -function(*given_to, base=2), rtol=1e-15)


def test_a_quotient_that_no_float_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some versions of SciPy divide first, and p / q overflows before its logarithm is taken."""

    def divides_first(p: Any, q: Any) -> Any:
        return np.where(p > 0, p * np.log(p / q), 0.0)

    monkeypatch.setattr(information, "rel_entr", divides_first)
    p = np.array([[0.5, 0.5], [0.25, 0.75], [0.5, 0.5], [1.0, 0.0]])
    q = np.array([[1.0, 5e-324], [0.5, 0.5], [1.0, 0.0], [1e-310, 1.0]])
    expected = [float(exact_kl(oracle.exact(a), oracle.exact(b))) for a, b in zip(p, q, strict=True)]
    assert expected[2] == np.inf
    close(kl_divergence(p, q), expected, rtol=1e-14)
    close(kl_divergence(p[1:], q[1:]), expected[1:], rtol=1e-14)
    close(kl_divergence(p[1], q[1]), expected[1], rtol=1e-14)
