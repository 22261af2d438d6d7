"""Functions on arrays and tensors against mpmath, over one sweep, within the bound that their docstrings state.

A row of a table calls a function and says what it should have returned, and how many machine epsilons it may be off,
relative to the true value or to a scale. The rows of logits go over `oracle.sweep`, and over rows whose terms round
alike. Divergences between logits follow, on arrays and tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any

import mpmath as mp
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import oracle
import xent
import xent.torch
from adversary import rng
from xent import gradients
from xent.distillation import distillation_gradient, distillation_loss
from xent.information import cross_entropy, entropy, kl_divergence

Array = NDArray[Any]
# What was returned; the true values of its first rows; epsilons; what these are relative to (None: the true value).
Found = tuple[Any, Any, Any, Any]
EXP, EXPM1 = (np.frompyfunc(f, 1, 1) for f in (mp.exp, mp.expm1))
EXACT = np.frompyfunc(lambda x: mp.mpf(float(x)), 1, 1)
# Of many classes so many are compared, where each has to be exponentiated.
SOME, FEW = 70, 20

by_dtype = pytest.mark.parametrize("dtype", oracle.DTYPES)


def result_dtype(*dtypes: Any) -> np.dtype[Any]:
    return np.result_type(np.float32, *dtypes)


def within(found: Found, dtype: Any) -> None:
    got, true, bound, scale = found
    true = np.asarray(true, object)
    got = np.broadcast_to(np.asarray(got)[: len(true)] if true.ndim else got, true.shape).ravel()
    scales = [None] * true.size if scale is None else np.broadcast_to(scale, true.shape).flat
    off = [oracle.epsilons(*x) for x in zip(got, true.flat, [dtype] * true.size, scales, strict=True)]
    bounds = np.broadcast_to(np.asarray(bound, float), true.shape).ravel()
    wrong = ~(np.array(off) <= bounds)
    assert not wrong.any(), [(got[i], off[i], bounds[i]) for i in np.flatnonzero(wrong)[:3]]


# ------------------------------------------------------------------------------------------ rows of logits


def kinds_of_targets(z: Array) -> list[Array]:
    """The most likely class, the least likely one, the first (often confident) and any."""
    anything = np.random.default_rng(1).integers(0, z.shape[-1], len(z))
    return [z.argmax(axis=-1), z.argmin(axis=-1), np.zeros(len(z), int), anything]


def own(x: Array, y: Array) -> Array:
    return x[np.arange(len(x)), y[: len(x)]]


# A row takes logits, -log softmax of the first of them to 40 digits, and whether their terms round alike.


def of_labels(z: Array, cost: Array, alike: bool) -> Iterator[Found]:
    for y in kinds_of_targets(z):
        yield xent.cross_entropy(z, y, reduction="none"), own(cost, y), 4 + 4 * alike, None
    for y in kinds_of_targets(z)[1:3]:
        for e in (0.1, 1.0):
            rest = (1 - mp.mpf(e)) * own(cost, y) if e < 1 else mp.mpf(0)
            true = rest + mp.mpf(e) * cost.sum(axis=1) / z.shape[1]
            yield xent.cross_entropy(z, y, label_smoothing=e, reduction="none"), true, 4 + 4 * alike, None


def of_distributions(z: Array, cost: Array, alike: bool) -> Iterator[Found]:
    g = np.random.default_rng(2)
    count, classes = z.shape
    t = g.dirichlet(np.full(classes, 0.5), count)
    t[::3] = np.eye(classes)[z[::3].argmax(axis=-1)]
    t[1::6] = np.eye(classes)[g.integers(0, classes, len(t[1::6]))]
    for dtype in [z.dtype] if alike else oracle.DTYPES:
        target = t.astype(dtype)
        exact = EXACT(target[: len(cost)])
        unsmoothed = np.where(exact > 0, exact * cost, mp.mpf(0)).sum(axis=1)
        even = exact.sum(axis=1) * cost.sum(axis=1) / classes
        for e in (0.0, 0.1):
            got = xent.soft_cross_entropy(z, target, label_smoothing=e, reduction="none")
            assert got.dtype == result_dtype(z.dtype, dtype)
            # The logits' exponentials are taken in their own precision, whatever the targets are in.
            true = (1 - mp.mpf(e)) * unsmoothed + (mp.mpf(e) * even if e else 0)
            yield got, true, 4 + 4 * alike, None


def focal(z: Array, cost: Array, alike: bool) -> Iterator[Found]:
    """Also for p close to one, where 1 - p has no digits."""
    for y in kinds_of_targets(z):
        c = own(cost, y)
        for gamma in (0.0, 0.5, 0.6, 2.0):  # float32 has no 0.6: its rounding costs digits
            true = np.where(np.isinf(c.astype(float)), c, (-EXPM1(-c)) ** mp.mpf(gamma) * c)
            bound = 4 + 5 * gamma + alike * (4 + 3 * gamma)
            yield xent.focal_loss(z, y, gamma=gamma, reduction="none"), true, bound, None


def logarithms(z: Array, cost: Array, alike: bool) -> Iterator[Found]:
    """m + log(...) cancels where m is near -log(...), so that the promise is relative to the larger."""
    yield -xent.log_softmax(z), cost, 4 + 4 * alike, None
    top = EXACT(z[: len(cost)].max(axis=1))
    true = top + own(cost, z.argmax(axis=1))
    yield xent.log_sum_exp(z), true, 4 + 4 * alike, np.maximum(abs(top), true - top)


def below_the_highest(z: Array, cost: Array) -> Array:
    below = z.max(axis=1, keepdims=True).astype(float) - z.astype(float)
    return np.nan_to_num(below[: len(cost), :SOME], posinf=0.0)


def probabilities(z: Array, cost: Array, alike: bool) -> Iterator[Found]:
    p, some = xent.softmax(z), cost[:, :SOME]
    below = below_the_highest(z, cost)
    assert p.dtype == result_dtype(z.dtype)
    yield p[:, :SOME], EXP(-some), 8 + below / 2 + 4 * alike, None
    total = p.astype(np.longdouble).sum(axis=1).astype(float)
    yield total - 1, np.full(len(cost), mp.mpf(0)), 8 + 4 * alike, mp.mpf(1)


def gradients_of_labels(z: Array, cost: Array, alike: bool) -> Iterator[Found]:
    """Each entry beside itself, the confident and right ones too, with what the exponent's rounding adds."""
    below, cost = below_the_highest(z, cost)[:, :FEW], cost[:, :FEW]
    for y in (z.argmax(axis=1), np.zeros(len(z), int)):
        at = y[: len(cost), None] == np.arange(cost.shape[1])
        true = np.where(at, EXPM1(-cost), EXP(-cost))
        bound = np.where(at, 4, 4 + below) + 4 * alike
        t = (y[:, None] == np.arange(z.shape[1])).astype(z.dtype)
        for f, target in ((gradients.cross_entropy_gradient, y), (gradients.soft_cross_entropy_gradient, t)):
            yield f(z, target, reduction="none")[:, :FEW], true, bound, None


def on_tensors(z: Array, cost: Array, alike: bool) -> Iterator[Found]:
    """By the way without a gradient, with one, and of transforms: (8 + margin) epsilons, and what a few terms add.

    The margin, from the label's logit to the highest other one, is rounded before it is exponentiated.
    """
    x, count, classes = torch.tensor(z), *z.shape
    entropy = np.where(np.isinf(cost.astype(float)), mp.mpf(0), EXP(-cost) * cost).sum(axis=1)
    room = [8 + 4 * alike + max(0.0, float(mp.log(classes / h)) / 2 if h else 0.0) for h in entropy]
    first = torch.zeros(count, dtype=torch.long)
    yield xent.torch.selected_log_probs(x, first, entropy=True)[1].numpy(), entropy, room, None
    for y in kinds_of_targets(z)[:0] if alike else kinds_of_targets(z)[:3]:
        labels, at, c = torch.tensor(y), np.arange(classes) == y[:, None], own(cost, y)
        gap = np.abs(z[at].astype(float) - np.where(at, -np.inf, z.astype(float)).max(axis=1))
        margin = np.where(np.isfinite(gap), gap, 0.0)[: len(cost)]
        leaf = x.clone().requires_grad_()
        each = xent.torch.cross_entropy(leaf, labels, reduction="none")
        for got in (each, xent.torch.cross_entropy(x, labels, reduction="none"),
                    torch.func.vmap(xent.torch.cross_entropy)(x, labels)):  # fmt: skip
            yield got.detach().numpy(), c, 12 + margin, None
        for gamma in (0.5, 2.0, 5.0):
            true = np.where(np.isinf(c.astype(float)), c, (-EXPM1(-c)) ** mp.mpf(gamma) * c)
            got = xent.torch.focal_loss(x, labels, gamma=gamma, reduction="none")
            yield got.numpy(), true, (1 + gamma) * (12 + margin), None
        if z.dtype != np.float16:  # to which a gradient is rounded
            slope = torch.autograd.grad(each.sum(), leaf)[0].numpy()
            found = slope[np.arange(count), y]
            yield found, np.where(np.isinf(c.astype(float)), -mp.mpf(1), EXPM1(-c)), 12 + margin, None


Row = Callable[[Array, Array, bool], Iterator[Found]]
OF_LOGITS = [of_labels, of_distributions, focal, logarithms, probabilities, gradients_of_labels, on_tensors]
over_logits = pytest.mark.parametrize("row", OF_LOGITS)


@lru_cache(maxsize=1)
def costs(z: tuple[tuple[float, ...], ...]) -> Array:
    out = np.empty((len(z), len(z[0])), object)
    out[:] = [oracle.negative_log_softmax(row) for row in z]
    return out


@over_logits
@pytest.mark.parametrize("classes", oracle.CLASSES)
@by_dtype
def test_what_comes_of_logits(dtype: str, classes: int, row: Row) -> None:
    z = oracle.sweep(classes, dtype)
    for found in row(z, costs(tuple(map(tuple, z.tolist()))), False):
        within(found, result_dtype(dtype))
        # Targets may be in a wider dtype, and so may a sum.
        assert row in (of_distributions, probabilities) or found[0].dtype == result_dtype(dtype)


def alike(classes: int, dtype: str) -> Array:
    """Rows whose other logits lie at one distance below the first few, so that no rounding averages out."""
    rows = []
    for distance in (0.7, 6.88, 9.0, 13.8, 33.25, 64.0, 512.0):
        for leaders in (1, 2, 3) if distance < 64 else (1,):
            row = np.full(classes, -distance, dtype)
            row[:leaders] = 0.4999 * np.spacing(row[-1]) if leaders == 1 else 0
            rows.append(row)
    return np.array(rows)


@over_logits
@pytest.mark.parametrize("classes", [17, 64, 127, 128, 129, 1000])
@by_dtype
def test_many_terms_that_round_alike_cost_few_digits(dtype: str, classes: int, row: Row) -> None:
    """However the logits lie in memory: NumPy adds in pairs along it, and across it one after the other."""
    z = alike(classes, dtype)
    for order in "CF":
        many = np.array(np.tile(z, (8, 1)), order=order)  # type: ignore[call-overload]
        for found in row(many, costs(tuple(map(tuple, z.tolist()))), True):
            within(found, result_dtype(dtype))


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 129, 1000, 10_000, 50_257])
@pytest.mark.parametrize(("dtype", "end"), [("float32", 87.3), ("float64", 708.3)])
def test_a_vocabulary_on_either_axis(dtype: str, end: float, classes: int) -> None:
    """A label before or behind equal logits, and ahead of noise: of an inner axis, a plain sum was 24 epsilons off."""
    g = rng(21)
    z = np.zeros((8, classes), dtype)
    z[6:] = 0.1 * g.normal(size=(2, classes))
    z[:, 0] += np.r_[g.uniform(-end, end, 3), g.uniform(end - 3, end, 3), np.full(2, np.log(classes) + 3)]
    true = [mp.log1p((classes - 1) * mp.exp(-a)) for a in oracle.exact(z[:6, 0])]
    true += [oracle.negative_log_softmax(row)[0] for row in z[6:]]
    inner, labels = np.ascontiguousarray(z.T)[None], np.zeros((1, len(z)), int)
    within((xent.cross_entropy(inner, labels, axis=1, reduction="none")[0], true, 4, None), dtype)
    within((xent.cross_entropy(z, labels[0], reduction="none"), true, 4, None), dtype)
    # On tensors also a rival beside terms of 0.99 u, of which a sum of two keeps nothing.
    rival = np.full((2, classes), np.log(0.99 * np.finfo(dtype).eps / 2), dtype)
    rival[1] -= 9
    rival[:, :2] = [[0, 0], [0, -9]]
    z, true = np.vstack([z, rival]), [*true, *(oracle.negative_log_softmax(row)[0] for row in rival)]
    got = xent.torch.cross_entropy(torch.tensor(z), torch.zeros(len(z), dtype=torch.long), reduction="none")
    within((got.numpy(), true, 8 + np.abs(z[:, 0] - z[:, 1:].max(axis=1)), None), dtype)


@pytest.mark.parametrize("classes", oracle.CLASSES)
@by_dtype
def test_what_underflow_leaves_of_the_terms(dtype: str, classes: int) -> None:
    out = result_dtype(dtype)
    tiny = mp.mpf(float(np.finfo(out).tiny))
    z = np.zeros((60, classes), dtype)
    z[:, 1:] = -(-float(np.log(np.finfo(out).tiny)) + np.linspace(-8, 17, 60))[:, None]
    true = np.array([oracle.negative_log_softmax(row)[0] for row in z])
    for got in (-xent.log_softmax(z)[:, 0], xent.log_sum_exp(z)):
        within((got, true, 8, np.maximum(true, classes * tiny)), out)


@by_dtype
def test_sums_and_means_are_taken_in_float64(dtype: str) -> None:
    """In float32 a running sum of this many losses is off by 1e-5 of itself; in float16 it is inf."""
    z = np.tile(np.array([[0.0, 9.0, -3.0]], dtype), (200_000, 1))
    y, t = np.zeros(len(z), int), np.tile(np.eye(3, dtype=dtype)[0], (len(z), 1))
    one = oracle.negative_log_softmax(z[0])[0]
    both = (oracle.softplus(mp.mpf(9)) + oracle.softplus(mp.mpf(-9))) / 2
    for got, true in (
        (xent.cross_entropy(z, y), one),
        (xent.cross_entropy(z, y, reduction="sum"), len(z) * one),
        (xent.cross_entropy(z, y, denominator=7), len(z) * one / 7),
        (xent.soft_cross_entropy(z, t), one),
        (xent.binary_cross_entropy(z[:, 1], np.full(len(z), 0.5)), both),
    ):
        within((got, true, 4, None), result_dtype(dtype))


# ------------------------------------------------------------------------------------- one number a target


ENDS = [(1e-300, 1e-8, 40), (1e-8, 1.0, 30), (1.0, 6e4, 200)]
SIZES = [0.0, 750.0, *np.concatenate([np.geomspace(*ends) for ends in ENDS])]


@by_dtype
@pytest.mark.parametrize("pos_weight", [None, 0.3, 10.0])
@pytest.mark.parametrize("smoothing", [0.0, 1e-5, 0.1])
def test_one_logit(dtype: str, smoothing: float, pos_weight: float | None) -> None:
    with np.errstate(under="ignore"):
        z = np.array([*np.negative(SIZES), *SIZES]).astype(dtype)
    c, e = mp.mpf(1 if pos_weight is None else pos_weight), mp.mpf(smoothing)
    one, zero = (np.array([oracle.softplus(s * v) for v in oracle.exact(z)]) for s in (-1, 1))
    for y in (0.0, 1.0, 0.3, 1e-12, 1 - 2.0**-40):
        options: Any = {"pos_weight": pos_weight, "label_smoothing": smoothing, "reduction": "none"}
        got = xent.binary_cross_entropy(z, np.full(z.shape, y), **options)
        assert got.dtype == result_dtype(dtype)
        up, down = ((1 - e) * mp.mpf(side) + e / 2 for side in (y, 1 - y))
        true = c * up * one + down * zero
        least = max(c, 1) * mp.mpf(float(np.finfo(got.dtype).tiny))
        within((got, true, 4, np.maximum(true, least)), got.dtype)
    for got, true in ((xent.sigmoid(z), EXP(-one)), (-xent.log_sigmoid(z), one)):
        within((got, true, 4, None), result_dtype(dtype))


@by_dtype
def test_losses_of_probabilities(dtype: str) -> None:
    """A clip holds also where its upper end rounds to one; the binary loss has log1p."""
    out = result_dtype(dtype)
    p = np.random.default_rng(0).dirichlet([0.2] * 5, 300)
    p[0] = [1, 0, 0, 0, 0]
    p = p.astype(dtype)
    with np.errstate(divide="ignore"):
        log_p = np.log(p)
    for k in range(5):
        y, exact = np.full(len(p), k), EXACT(p[:, k])
        true = [-mp.log(x) if x else oracle.INF for x in exact]
        within((xent.log_loss(p, y, reduction="none"), true, 4, None), out)
        np.testing.assert_array_equal(xent.nll(log_p, y, reduction="none"), -log_p[:, k].astype(out))
    q = np.array([0.0, 1e-12, 2.0**-20, 0.25, 0.3, 1.0 - 2.0**-9, 1.0], dtype)
    rows, y = np.stack([q, 1 - q], axis=1), np.zeros(q.size, int)
    for clip in (0.0, 1e-3, 1e-7, 1e-9, 1e-17, 1e-30):
        low, high = (oracle.INF, mp.mpf(0)) if not clip else (-mp.log(mp.mpf(clip)), -mp.log1p(-mp.mpf(clip)))
        ones = [min(max(-mp.log(x), high), low) if x else low for x in EXACT(q)]
        zeros = [min(max(-mp.log1p(-x), high), low) if x < 1 else low for x in EXACT(q)]
        half = [mp.mpf(0.5) * a + mp.mpf(0.5) * b for a, b in zip(ones, zeros, strict=True)]
        for true, got in (
            (ones, xent.log_loss(rows, y, eps=clip, reduction="none")),
            (ones, xent.binary_log_loss(q, y + 1, eps=clip, reduction="none")),
            (zeros, xent.binary_log_loss(q, y, eps=clip, reduction="none")),
            (half, xent.binary_log_loss(q, y + 0.5, eps=clip, reduction="none")),
        ):
            within((got, true, 4, None), out)


def test_binary_gradients_in_both_tails() -> None:
    """Where p rounds to one, and where it is next to nothing."""
    with mp.workdps(400):
        logits = np.array([-745.0, -300.0, -40.0, -1.0, -1e-9, 0.0, 2.0, 40.0, 140.0, 300.0, 745.0])
        p = [1 / (1 + mp.exp(-v)) for v in oracle.exact(logits)]
        for label in (0, 1):
            got = gradients.binary_cross_entropy_gradient(logits, np.full(11, label), reduction="sum")
            true = [x - label for x in p]
            within((got, true, [4 if abs(x) > 2.3e-308 else 1 for x in true], None), "float64")


def softmax_exactly(logits: Any) -> Array:
    e = EXP(EXACT(logits))
    return np.asarray(e / mp.fsum(e))


def test_smoothed_and_soft_gradients_cancel_no_more_than_they_must() -> None:
    hard, soft = gradients.cross_entropy_gradient, gradients.soft_cross_entropy_gradient
    g = np.random.default_rng(10)
    for scale in (1.0, 8.0):
        for epsilon in (1e-6, 0.1, 1.0):
            logits = g.normal(scale=scale, size=5)
            p = softmax_exactly(logits)
            for label in range(5):
                # The target as the machine has it: 1 - eps + eps/K rounds, and so does its complement.
                at = np.arange(5) == label
                t = mp.mpf(epsilon) / 5 + (1 - mp.mpf(epsilon)) * at
                size = np.where(at, np.minimum(p + t, 2 - p - t), p + t)
                got = hard(logits, label, label_smoothing=epsilon)
                within((got, p - t, 6 + 2 * scale, size), "float64")
    # With all mass spread over 4,096 classes p and t are both near 2e-4, and so is the error to expect.
    logits, even = g.normal(scale=0.1, size=4096), mp.mpf(1) / 4096
    for got in (hard(logits, 17, label_smoothing=1.0), soft(logits, np.full(4096, 1 / 4096))):
        within((got, softmax_exactly(logits) - even, 4, even), "float64")
    # They are not renormalised.
    logits, target = np.array([0.5, -1.0, 2.0]), np.array([0.2, 0.3, 0.5 + 9e-7])
    true = softmax_exactly(logits) * mp.fsum(oracle.exact(target)) - EXACT(target)
    np.testing.assert_allclose(soft(logits, target), true.astype(float), rtol=1e-14)
    assert (np.abs(true - (xent.softmax(logits) - target)) > 1e-8).all()


# -------------------------------------------------------------------------------------------- distributions


def completed(p: Array) -> Array:
    """Whole multiples of 2**-50, zeros among them, that sum to one exactly."""
    p = np.floor(p * 2.0**50)
    p[np.arange(len(p)), p.argmax(axis=1)] += 2.0**50 - p.sum(axis=1)
    return p * 2.0**-50


def exact_kl(p: Any, q: Any) -> Any:
    return mp.fsum(a * mp.log(a / b) if b else oracle.INF for a, b in zip(p, q, strict=True) if a)


CASES = [(2, 1.0), (2, 0.05), (3, 0.3), (10, 1.0), (10, 0.1), (64, 0.5), (500, 1.0)]


@pytest.mark.parametrize(("classes", "concentration"), CASES)
def test_what_comes_of_distributions(classes: int, concentration: float) -> None:
    """Also where p is close to q: there the plain sum of p log(p / q) has no digits left."""
    p, other = (
        completed(np.random.default_rng(seed).dirichlet(np.full(classes, c), 20))
        for seed, c in ((1, concentration), (2, 2.0))
    )
    for dtype in oracle.DTYPES:
        a, b = p.astype(dtype), other.astype(dtype)
        pairs = [(oracle.exact(x), oracle.exact(y)) for x, y in zip(a, b, strict=True)]
        h = [-mp.fsum(x * mp.log(x) for x in row if x) for row, _ in pairs]
        ce = np.array([h_x + exact_kl(x, y) for h_x, (x, y) in zip(h, pairs, strict=True)])
        bits = cross_entropy(a, b, base=2)
        for got, true in ((entropy(a), h), (cross_entropy(a, b), ce), (bits, ce / mp.log(2))):
            assert got.dtype == result_dtype(dtype)
            within((got, true, 4, None), got.dtype)
    for distance in (1.0, 0.3, 1e-2, 1e-4, 1e-6):
        q = completed(p + distance * (other - p))
        pairs = [(oracle.exact(x), oracle.exact(y)) for x, y in zip(p, q, strict=True)]
        within((kl_divergence(p, q), [exact_kl(*both) for both in pairs], 4, None), "float64")


def test_the_divergence_of_two_classes_at_middle_distances() -> None:
    """Where log(p / q) is a few tenths, a sum of p log(p / q) - p + q has lost up to six epsilons."""
    p = completed(np.random.default_rng(3).dirichlet((2.0, 2.0), 3000))
    first = np.floor(p[:, 0] * np.linspace(0.3, 0.9, len(p)) * 2.0**50) * 2.0**-50
    q = np.stack([first, 1 - first], axis=1)
    true = [exact_kl(oracle.exact(a), oracle.exact(b)) for a, b in zip(p, q, strict=True)]
    within((kl_divergence(p, q), true, 4, None), "float64")


def test_the_axis_costs_no_digits() -> None:
    """Across memory NumPy adds one after the other: of 500 classes the entropy was off by 48 epsilons."""
    p, q = (np.append(first, np.full(499, (1 - first) / 499)) for first in (0.5, 0.3))
    for measure, *given in ((entropy, p), (cross_entropy, p, q), (kl_divergence, p, q)):
        for axis in (0, 1):
            laid = [np.stack([x] * 3, 1 - axis) for x in given]
            np.testing.assert_allclose(measure(*laid, axis=axis), measure(*given), rtol=4 * 2.0**-52)


def test_the_oracle_agrees_with_decimal_arithmetic() -> None:
    with localcontext(prec=60):
        row = [0.1, -3.0, 50.0, 49.5]
        total = sum((Decimal(v).exp() for v in row), Decimal(0))
        logs = [total.ln(), *(total.ln() - Decimal(v) for v in row)]
        for got, true in zip([oracle.log_sum_exp(row), *oracle.negative_log_softmax(row)], logs, strict=True):
            assert mp.almosteq(got, mp.mpf(str(true)), rel_eps=mp.mpf(10) ** -38)


# --------------------------------------------------- divergences between rows of logits, arrays and tensors

# Over this sweep the relative error is at most (8 + margin) epsilons of the dtype that is computed in: the margin is
# the largest difference between two logits of a row, over the temperature, since a probability is an exponential
# whose argument is rounded at that size. Neither how close the rows are nor how far one lies above the other enters.
# Below the smallest normal number, over an epsilon, there are no digits to keep.

DIRECTIONS = ("forward", "reverse", "jsd")


def margin(z: Array, v: Array, T: float) -> float:
    return max(float(np.ptp(x[np.isfinite(x)])) for x in (z, v)) / T


def rows_of_two(g: np.random.Generator, count: int) -> Iterator[tuple[Array, Array]]:
    """Students and teachers: independent, close, sharper, close but for classes that are far, one class apart."""
    yield np.array([0.0, -6.0]), np.array([0.0, -25.0])
    yield np.array([0.0, -6.0]), np.array([0.0, -60.0])
    for number in range(count):
        K = int(g.choice([2, 2, 3, 7, 40]))
        z = g.normal(size=K) * 10 ** g.uniform(-1, 2)
        near = z + g.normal(size=K) * 10 ** g.uniform(-7, 0)
        other, sharper = g.normal(size=K) * 10 ** g.uniform(-1, 2), z * 10 ** g.uniform(-0.5, 1)
        v = [other, near, sharper, near, near][number % 5]
        if number % 5 == 3:
            v = np.where(z < z.max() - g.uniform(3, 20), v - g.exponential(size=K) * g.choice([-9, 30]), v)
        if number % 5 == 4:
            v[g.integers(K)] += g.normal()
        v = v + g.choice([0.0, 0.0, 1.0]) * g.normal() * 10 ** g.uniform(0, 3)
        if K > 2 and g.random() < 0.2:
            z[g.integers(K)] = -np.inf
            v = np.where(np.isneginf(z), -np.inf, v)
        yield z, v


def by_linear_layers(z: Any, v: Any, **options: Any) -> Any:
    layer = torch.eye(z.shape[1], dtype=z.dtype)
    return xent.torch.linear_distillation_loss(z, layer, v, layer, **options)


def in_plain_operations(z: Any, v: Any, **options: Any) -> Any:
    """As `torch.func`, `torch.compile` and `mixed_loss` have it."""
    return xent.torch.mixed_loss(z, v, torch.zeros(1, dtype=torch.long), alpha=1.0, **options)


def share(loss: Any, z: Array, v: Array, T: float, direction: str, beta: float = 0.5) -> float:
    """The errors of the loss and of its gradient in what they may be; the larger one.

    The differences v - z are rounded, and those of a sure student's log ratios beside one.
    """
    true, slopes = oracle.divergence(tuple(z.tolist()), tuple(v.tolist()), T, direction, beta)
    due = np.array(slopes, float)
    limits = np.finfo(z.dtype)
    if true <= limits.tiny / limits.eps:
        return 0.0
    how: dict[str, Any] = {"temperature": T, "direction": direction, "beta": beta}
    x, arrays = torch.tensor(z[None]), loss is distillation_loss
    got = loss(x.requires_grad_(not arrays), torch.tensor(v[None]), **how)
    slope = distillation_gradient(z, v, **how) if arrays else torch.autograd.grad(got, x)[0].numpy()
    eps, finite = float(limits.eps), np.isfinite(z)
    spread = sum(float(np.ptp(row[finite])) for row in (z, v)) / T
    apart = z[finite].astype(float) - v[finite]
    room = float((24 + spread + 4 * np.abs(apart).max() / mp.sqrt(true)) * np.abs(due).max())
    if direction != "forward" and np.ptp(apart) > T:
        room += (8 + spread) * T
    off = float(abs(float(torch.as_tensor(got).detach()) - true) / true) / (8 + margin(z, v, T))
    return max(off, float(np.abs(slope - due).max()) / room) / eps


LOSSES = [xent.torch.distillation_loss, in_plain_operations, by_linear_layers, distillation_loss]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_divergence_keeps_its_digits_for_every_pair_of_rows(loss: Any, dtype: str) -> None:
    """At every temperature, and those of its gradient."""
    g = rng(24)
    # Arrays compute in float64.
    for z, v in rows_of_two(g, 60) if loss is not distillation_loss or dtype == "float64" else ():
        z, v = z.astype(dtype), v.astype(dtype)
        low = 0.05 if margin(z, v, 0.05) < 300 else 1.0  # of more, the oracle would need thousands of digits
        T = float(g.choice([low, 0.5, 1.0, 1.0, 2.0, 7.0, 100.0, 1e6, 1e12]))
        if loss is by_linear_layers and np.isneginf(z).any():
            continue  # no product is infinite
        for direction, beta in zip((*DIRECTIONS, "jsd", "jsd"), (0.5, 0.5, 0.5, 0.01, 0.999), strict=True):
            off = share(loss, z, v, T, direction, beta)
            assert off <= 1, f"{off:.3g} times what it may be off: {z}, {v}, {T}, {direction}, {beta}"


@pytest.mark.parametrize(
    ("z", "v", "direction", "beta"),
    [
        ([-0.552, -1.572], [-0.366, -1.684], "forward", 0.5),
        ([-0.15, -0.378], [0.287, -0.255], "reverse", 0.5),
        ([0.795, 0.895], [-0.268, -0.697], "jsd", 0.5),
        ([0.345, 0.059], [-0.245, 0.071], "jsd", 0.75),
        ([1.086, -4.623], [0.506, 1.092], "jsd", 0.9),
        ([18.811, -1.897], [5.215, 6.57], "jsd", 0.5),
        ([6.661, 3.104, 0.193], [-13.339, 3.104, 0.193], "reverse", 0.5),
    ],
)
def test_rows_on_which_the_fast_sum_alone_is_too_coarse(
    z: list[float], v: list[float], direction: str, beta: float
) -> None:
    """Found by a search: without the second look losses of .008 to .09 are off by 1.5 to 5 times as much.

    The last two, as large as they are, refuted means of differences about a centre that is none.
    """

    def of_many(z: Any, v: Any, **options: Any) -> Any:
        """The first row's loss, beside a thousand others: few rows or small losses alone are summed otherwise."""
        others = torch.from_numpy(rng(31).normal(size=(2, 1000, z.shape[1])))
        pairs = [torch.cat([row, other]) for row, other in zip((z, v), others, strict=True)]
        return xent.torch.distillation_loss(*pairs, reduction="none", **options)[0]

    assert share(of_many, np.array(z), np.array(v), 1.0, direction, beta) <= 1


def test_rows_that_agree_but_lie_far_apart_keep_their_digits_on_tensors() -> None:
    z, v = np.float32([-8.765526, -8.427006]), np.float32([-0.10318165, 0.2353384])
    for direction in DIRECTIONS:
        assert share(xent.torch.distillation_loss, z, v, 100.0, direction) <= 1
