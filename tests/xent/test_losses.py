"""The losses: against mpmath, against SciPy, scikit-learn and torch, and against each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np
import pytest
import scipy.special
import sklearn.metrics
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import oracle
import xent
from xent import _blocks

# The promise of the docstrings, in machine epsilons of the result's dtype, relative to the loss itself.
# Seen at worst on the sweep: 3.1.
PROMISED = 4.0

by_dtype = pytest.mark.parametrize("dtype", oracle.DTYPES)
by_classes = pytest.mark.parametrize("classes", oracle.CLASSES)


def result_dtype(dtype: str) -> np.dtype[Any]:
    return np.promote_types(dtype, np.float32)


def targets_of_all_kinds(z: np.ndarray) -> list[np.ndarray]:
    """The most likely class, the least likely one, the first (often confident) and any."""
    anything = np.random.default_rng(1).integers(0, z.shape[-1], len(z))
    return [z.argmax(axis=-1), z.argmin(axis=-1), np.zeros(len(z), int), anything]


# Accuracy


@by_dtype
@by_classes
def test_cross_entropy_keeps_its_promise(classes: int, dtype: str) -> None:
    z, out = oracle.sweep(classes, dtype), result_dtype(dtype)
    for y in targets_of_all_kinds(z):
        losses = xent.cross_entropy(z, y, reduction="none")
        assert losses.dtype == out
        for row, k, loss in zip(z, y, losses, strict=True):
            assert oracle.epsilons(loss, oracle.negative_log_softmax(row)[k], out) <= PROMISED


def alike(classes: int, dtype: str) -> np.ndarray:
    """Rows whose other logits lie at one distance below the first few, so that no rounding averages out."""
    rows = []
    for distance in (0.7, 6.88, 9.0, 13.8, 33.25):
        for leaders in (1, 2, 3):
            row = np.full(classes, -distance, dtype)
            row[:leaders] = 0.4999 * np.spacing(row[-1]) if leaders == 1 else 0
            rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize("order", ["C", "F"])
@by_dtype
@pytest.mark.parametrize("classes", [17, 64, 127, 128, 129, 1000])
def test_many_terms_that_round_alike_cost_few_digits(classes: int, dtype: str, order: Any) -> None:
    """However the logits lie in memory: NumPy adds in pairs along it, and across it one after the other."""
    z, out, worst = alike(classes, dtype), result_dtype(dtype), 0.0
    exact = [oracle.negative_log_softmax(row) for row in z]
    for row, true in zip(z, exact, strict=True):
        many = np.array(np.broadcast_to(row, (130, classes)), order=order)
        y = np.zeros(130, int)
        for smoothing in (0.0, 0.1, 1.0):
            e = mp.mpf(smoothing)
            smoothed = (1 - e) * true[0] + e * mp.fsum(true) / classes
            loss = xent.cross_entropy(many, y, label_smoothing=smoothing, reduction="none")[-1]
            worst = max(worst, oracle.epsilons(loss, smoothed, out))
        p, log_p = xent.softmax(many)[-1], xent.log_softmax(many)[-1]
        worst = max(worst, oracle.epsilons(-log_p[0], true[0], out))
        assert oracle.epsilons(p[0], mp.exp(-true[0]), out) <= 8 + 4
        assert oracle.epsilons(float(np.sum(p.astype(np.longdouble))), mp.mpf(1), out) <= 8 + 4
        focal = xent.focal_loss(many, y, gamma=2.0, reduction="none")[-1]
        assert oracle.epsilons(focal, mp.expm1(-true[0]) ** 2 * true[0], out) <= 8 + 8 * 2
    assert worst <= 8


@by_dtype
@by_classes
@pytest.mark.parametrize("smoothing", [0.1, 1.0])
def test_smoothed_cross_entropy_keeps_its_promise(classes: int, dtype: str, smoothing: float) -> None:
    z, out = oracle.sweep(classes, dtype), result_dtype(dtype)
    y = z.argmax(axis=-1)
    e = mp.mpf(smoothing)
    for row, k, loss in zip(
        z, y, xent.cross_entropy(z, y, label_smoothing=smoothing, reduction="none"), strict=True
    ):
        exact = oracle.negative_log_softmax(row)
        own = (1 - e) * exact[k] if smoothing < 1 else 0
        assert oracle.epsilons(loss, own + e * mp.fsum(exact) / classes, out) <= PROMISED


def target_distributions(z: np.ndarray, dtype: str) -> np.ndarray:
    rng = np.random.default_rng(2)
    count, classes = z.shape
    t = rng.dirichlet(np.full(classes, 0.5), count)
    t[::3] = np.eye(classes)[z[::3].argmax(axis=-1)]
    t[1::6] = np.eye(classes)[rng.integers(0, classes, len(t[1::6]))]
    return t.astype(dtype)


@by_dtype
@by_classes
@pytest.mark.parametrize("target_dtype", oracle.DTYPES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_soft_cross_entropy_keeps_its_promise(
    classes: int, dtype: str, target_dtype: str, smoothing: float
) -> None:
    z = oracle.sweep(classes, dtype)
    t = target_distributions(z, target_dtype)
    out = np.result_type(np.float32, dtype, target_dtype)
    losses = xent.soft_cross_entropy(z, t, label_smoothing=smoothing, reduction="none")
    assert losses.dtype == out
    # The logits' exponentials are taken in their own precision, whatever the targets are in.
    work = result_dtype(dtype)
    for row, weights, loss in zip(z, t, losses, strict=True):
        exact = oracle.negative_log_softmax(row)
        masses = oracle.exact(weights)
        even = mp.mpf(smoothing) / classes * mp.fsum(masses)
        masses = [(1 - mp.mpf(smoothing)) * w + even for w in masses]
        true = mp.fsum(w * v for w, v in zip(masses, exact, strict=True) if w)
        assert oracle.epsilons(loss, true, work) <= PROMISED


BINARY = np.concatenate([np.geomspace(1e-8, 1.0, 30), np.geomspace(1.0, 1e4, 60), [0.0, 20.0, 40.0, 750.0]])


@by_dtype
@pytest.mark.parametrize("pos_weight", [None, 0.3, 10.0])
@pytest.mark.parametrize("smoothing", [0.0, 1e-5, 0.1])
def test_binary_cross_entropy_keeps_its_promise(
    dtype: str, smoothing: float, pos_weight: float | None
) -> None:
    out, e = result_dtype(dtype), mp.mpf(smoothing)
    with np.errstate(under="ignore"):
        z = np.concatenate([-BINARY, BINARY]).astype(dtype)
    c = mp.mpf(1 if pos_weight is None else pos_weight)
    for y in (0.0, 1.0, 0.3, 1e-12, 1 - 2.0**-40):
        how: Any = {"pos_weight": pos_weight, "label_smoothing": smoothing, "reduction": "none"}
        losses = xent.binary_cross_entropy(z, np.full(z.shape, y), **how)
        assert losses.dtype == out
        up, down = ((1 - e) * mp.mpf(side) + e / 2 for side in (y, 1 - y))
        for v, loss in zip(oracle.exact(z), losses, strict=True):
            true = c * up * oracle.softplus(-v) + down * oracle.softplus(v)
            assert oracle.epsilons(loss, true, out) <= PROMISED


@by_dtype
@pytest.mark.parametrize("c", [0.01, 1000.0])
def test_a_weight_multiplies_what_underflow_leaves(dtype: str, c: float) -> None:
    out = result_dtype(dtype)
    z = (-float(np.log(np.finfo(out).tiny)) + np.linspace(-8, 17, 400)).astype(dtype)
    losses = xent.binary_cross_entropy(z, np.ones(z.shape), pos_weight=c, reduction="none")
    pairs, one_hot = np.stack([z, np.zeros_like(z)], axis=1), np.tile(np.array([1, 0], dtype), (z.size, 1))
    soft = xent.soft_cross_entropy(pairs, one_hot, weight=[c, c], reduction="none")
    least = 2 * mp.mpf(float(np.finfo(out).tiny)) * max(c, 1)
    for v, *both in zip(oracle.exact(z), losses, soft, strict=True):
        true = c * oracle.softplus(-v)
        assert all(oracle.epsilons(loss, true, out, max(true, least)) <= PROMISED for loss in both)


@by_dtype
def test_nll_and_log_loss_keep_their_promise(dtype: str) -> None:
    out = result_dtype(dtype)
    p = np.random.default_rng(0).dirichlet([0.2] * 5, 300)
    p[0] = [1, 0, 0, 0, 0]
    p = p.astype(dtype)
    for k in range(5):
        y = np.full(len(p), k)
        for q, loss in zip(p[:, k], xent.log_loss(p, y, reduction="none"), strict=True):
            assert oracle.epsilons(loss, -mp.log(mp.mpf(float(q))) if q else oracle.INF, out) <= PROMISED
        clipped = xent.log_loss(p, y, eps=1e-3, reduction="none")
        np.testing.assert_allclose(clipped, -np.log(p[:, k].astype(float).clip(1e-3, 1 - 1e-3)), rtol=1e-3)
        with np.errstate(divide="ignore"):
            log_p = np.log(p)
        np.testing.assert_array_equal(xent.nll(log_p, y, reduction="none"), -log_p[:, k].astype(out))


@by_dtype
def test_sums_and_means_are_taken_in_float64(dtype: str) -> None:
    """In float32 a running sum of this many losses is off by 1e-5 of itself; in float16 it is inf."""
    out = result_dtype(dtype)
    z = np.tile(np.array([[0.0, 9.0, -3.0]], dtype), (200_000, 1))
    y = np.zeros(len(z), int)
    one = oracle.negative_log_softmax(z[0])[0]
    assert oracle.epsilons(xent.cross_entropy(z, y), one, out) <= PROMISED
    assert oracle.epsilons(xent.cross_entropy(z, y, reduction="sum"), len(z) * one, out) <= PROMISED
    assert oracle.epsilons(xent.cross_entropy(z, y, denominator=7), len(z) * one / 7, out) <= PROMISED
    t = np.tile(np.eye(3, dtype=dtype)[0], (len(z), 1))
    assert oracle.epsilons(xent.soft_cross_entropy(z, t), one, out) <= PROMISED
    flat, half = z[:, 1], np.full(len(z), 0.5)
    both = (oracle.softplus(mp.mpf(9)) + oracle.softplus(mp.mpf(-9))) / 2
    assert oracle.epsilons(xent.binary_cross_entropy(flat, half), both, out) <= PROMISED


def test_a_loss_near_zero_is_not_zero() -> None:
    """torch and SciPy return exactly zero for these."""
    small = xent.cross_entropy(np.float32([[18.0, 0.0]]), [0])
    assert oracle.epsilons(small, oracle.negative_log_softmax([18, 0])[0], "float32") <= PROMISED
    assert F.cross_entropy(torch.tensor([[18.0, 0.0]]), torch.tensor([0])) == 0
    assert xent.cross_entropy([[40.0, 0.0]], [0]) == xent.binary_cross_entropy([40.0], [1])
    assert scipy.special.log_softmax([40.0, 0.0])[0] == 0


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_a_certain_answer_costs_plain_zero(reduction: str) -> None:
    certain = {"targets": [0], "reduction": reduction}
    for loss in (
        xent.cross_entropy([[0.0, -np.inf]], **certain),
        xent.cross_entropy([[0.0]], label_smoothing=0.5, **certain),
        xent.soft_cross_entropy([[0.0, -np.inf]], [[1.0, 0.0]], reduction=reduction),
        xent.binary_cross_entropy([np.inf], [1], reduction=reduction),
        xent.binary_cross_entropy([-np.inf], **certain),
        xent.nll([[0.0, -np.inf]], **certain),
        xent.log_loss([[1.0, 0.0]], **certain),
    ):
        assert loss == 0
        assert not np.signbit(loss).any()


def test_nothing_is_clipped_unless_asked_for() -> None:
    p = np.array([[1 + 4e-7, 0.0]])  # within the tolerance of a row's sum
    assert xent.log_loss(p, [0]) == -np.log(1 + 4e-7)
    assert xent.log_loss(p, [1]) == np.inf
    np.testing.assert_allclose(xent.log_loss(p, [0], eps=1e-3), -np.log(1 - 1e-3), rtol=1e-15)
    np.testing.assert_allclose(xent.log_loss(p, [1], eps=1e-3), -np.log(1e-3), rtol=1e-15)


@by_dtype
@pytest.mark.parametrize("clip", [1e-3, 1e-7, 1e-9, 1e-17, 1e-30])
def test_a_clip_holds_where_its_upper_end_rounds_to_one(clip: float, dtype: str) -> None:
    p, out = np.array([0.0, 0.25, 1.0], dtype), result_dtype(dtype)
    low, high = -mp.log(mp.mpf(clip)), -mp.log1p(-mp.mpf(clip))
    rows, y = np.stack([p, 1 - p], axis=1), np.zeros(3, int)
    for exact, losses in (
        ((low, mp.log(4), high), xent.log_loss(rows, y, eps=clip, reduction="none")),
        ((low, mp.log(4), high), xent.binary_log_loss(p, y + 1, eps=clip, reduction="none")),
        ((high, mp.log(4) - mp.log(3), low), xent.binary_log_loss(p, y, eps=clip, reduction="none")),
    ):
        assert all(oracle.epsilons(*pair, out) <= PROMISED for pair in zip(losses, exact, strict=True))


@by_dtype
def test_what_is_below_the_smallest_normal_number_is_no_smoothing_and_no_clip(dtype: str) -> None:
    tiny = float(np.finfo(result_dtype(dtype)).tiny)
    p, z = np.array([1.0, 0.0], dtype), np.array([-np.inf], dtype)
    for share, costs in ((tiny / 4, False), (tiny, True)):
        assert np.isfinite(xent.log_loss(p, 1, eps=share)) == costs
        assert np.isfinite(xent.binary_log_loss(p[1:], [1], eps=share)) == costs
        assert np.isinf(xent.binary_cross_entropy(z, [0], label_smoothing=share)) == costs


def test_what_the_caller_wants_of_numpys_warnings_does_not_matter() -> None:
    z, p = np.float32([[80.0, 0.0]]), np.float32([[0.5, 0.5]])
    with np.errstate(all="raise"):
        assert xent.cross_entropy(z, [0], denominator=1e30) == 0, "below the smallest float32"
        assert xent.cross_entropy(1e3 * z, [1], denominator=1e-38) == np.inf, "beyond the largest"
        assert xent.soft_cross_entropy(z, p) == 40
        assert xent.log_loss(np.float32([[1.0, 0.0]]), [1]) == np.inf
        assert xent.nll(np.float32([[0.0, -np.inf]]), [1]) == np.inf
        with pytest.raises(ValueError, match="for logits use cross_entropy"):
            xent.nll(z, [0])
        with pytest.raises(ValueError, match="for logits use cross_entropy"):
            xent.nll(2 * z, [0])


# Other libraries, where their definitions agree


def batch(seed: int = 0, count: int = 50, classes: int = 6) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(scale=3, size=(count, classes)), rng.integers(0, classes, count)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignore_index", [None, 2, -100])
def test_torch_cross_entropy(reduction: str, weighted: bool, ignore_index: int | None) -> None:
    z, y = batch()
    if ignore_index == -100:
        y[::4] = -100
    w = np.random.default_rng(1).uniform(0.5, 2, 6) if weighted else None
    theirs = F.cross_entropy(
        torch.from_numpy(z),
        torch.from_numpy(y),
        weight=None if w is None else torch.from_numpy(w),
        ignore_index=-1 if ignore_index is None else ignore_index,
        reduction=reduction,
    )
    ours = xent.cross_entropy(z, y, weight=w, ignore_index=ignore_index, reduction=reduction)
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-12)
    ours = xent.nll(xent.log_softmax(z), y, weight=w, ignore_index=ignore_index, reduction=reduction)
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-12)


@pytest.mark.parametrize("smoothing", [0.05, 0.5, 1.0])
def test_torch_label_smoothing_and_soft_targets(smoothing: float) -> None:
    z, y = batch()
    hard = F.cross_entropy(torch.from_numpy(z), torch.from_numpy(y), label_smoothing=smoothing)
    np.testing.assert_allclose(xent.cross_entropy(z, y, label_smoothing=smoothing), hard.numpy(), rtol=1e-12)
    t = np.random.default_rng(1).dirichlet(np.ones(6), len(z))
    soft = F.cross_entropy(torch.from_numpy(z), torch.from_numpy(t))
    np.testing.assert_allclose(xent.soft_cross_entropy(z, t), soft.numpy(), rtol=1e-12)


def test_torch_class_axis_one() -> None:
    z, y = batch(count=4 * 7)
    z, y = np.moveaxis(z.reshape(4, 7, 6), -1, 1), y.reshape(4, 7)
    theirs = F.cross_entropy(torch.from_numpy(z.copy()), torch.from_numpy(y), reduction="none")
    np.testing.assert_allclose(xent.cross_entropy(z, y, axis=1, reduction="none"), theirs.numpy(), rtol=1e-12)


def test_torch_binary_cross_entropy() -> None:
    z, _ = batch()
    y = np.random.default_rng(1).uniform(size=z.shape)
    w = np.random.default_rng(2).uniform(size=z.shape)
    c = np.array([0.5, 1, 2, 3, 4, 5])
    tensors = {"pos_weight": torch.from_numpy(c), "weight": torch.from_numpy(w), "reduction": "none"}
    theirs = F.binary_cross_entropy_with_logits(torch.from_numpy(z), torch.from_numpy(y), **tensors)
    ours = xent.binary_cross_entropy(z, y, sample_weight=w, pos_weight=c, reduction="none")
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-12)
    plain = F.binary_cross_entropy_with_logits(torch.from_numpy(z), torch.from_numpy(y))
    np.testing.assert_allclose(xent.binary_cross_entropy(z, y), plain.numpy(), rtol=1e-12)
    divided = F.binary_cross_entropy_with_logits(
        torch.from_numpy(z), torch.from_numpy(y), pos_weight=torch.from_numpy(c)
    )
    ours = xent.binary_cross_entropy(z, y, pos_weight=c)
    np.testing.assert_allclose(ours, divided.numpy(), rtol=1e-12)


def test_scikit_learn_log_loss() -> None:
    z, y = batch()
    p = xent.softmax(z)
    np.testing.assert_allclose(xent.log_loss(p, y), sklearn.metrics.log_loss(y, p), rtol=1e-12)
    np.testing.assert_allclose(xent.cross_entropy(z, y), sklearn.metrics.log_loss(y, p), rtol=1e-12)
    w = np.random.default_rng(1).uniform(0.5, 2, 6)
    theirs = sklearn.metrics.log_loss(y, p, sample_weight=w[y])
    np.testing.assert_allclose(xent.log_loss(p, y, weight=w), theirs, rtol=1e-12)
    certain = np.eye(6)[y]
    certain[0] = np.eye(6)[(y[0] + 1) % 6]
    theirs = sklearn.metrics.log_loss(y, certain)
    np.testing.assert_allclose(xent.log_loss(certain, y, eps=np.finfo(float).eps), theirs, rtol=1e-12)


def test_scipy_log_softmax() -> None:
    z, y = batch()
    theirs = -scipy.special.log_softmax(z, axis=-1)[np.arange(len(y)), y]
    np.testing.assert_allclose(xent.cross_entropy(z, y, reduction="none"), theirs, rtol=1e-12)
    t = np.eye(6)[y] * 0.75 + 0.25 / 6
    q = scipy.special.softmax(z, axis=-1)
    theirs = (scipy.special.entr(t) + scipy.special.rel_entr(t, q)).sum(axis=-1)
    np.testing.assert_allclose(xent.soft_cross_entropy(z, t, reduction="none"), theirs, rtol=1e-12)


# What users of other libraries ask for


def test_scikit_learn_sample_weight_labels_and_binary() -> None:
    z, y = batch()
    p, w = xent.softmax(z), np.random.default_rng(1).uniform(size=len(y))
    theirs = sklearn.metrics.log_loss(y, p, sample_weight=w)
    np.testing.assert_allclose(xent.log_loss(p, y, sample_weight=w), theirs, rtol=1e-12)
    np.testing.assert_allclose(xent.cross_entropy(z, y, sample_weight=w), theirs, rtol=1e-12)
    names = np.array(["ant", "bee", "cat", "dog", "elk", "fox"])
    theirs = sklearn.metrics.log_loss(names[y], p, labels=names)
    np.testing.assert_allclose(xent.log_loss(p, names[y], labels=names), theirs, rtol=1e-12)
    # Ours follow the columns, in whatever order.
    shuffled = np.array([3, 1, 5, 0, 2, 4])
    ours = xent.log_loss(p[:, shuffled], names[y], labels=names[shuffled])
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    with pytest.raises(ValueError, match=r"^targets: expected one of the labels, got np\.str_\('eel'\) at"):
        xent.log_loss(p[:2], ["cat", "eel"], labels=names)
    for labels in (names, names.astype(object)):
        with pytest.raises(TypeError, match=r"^targets: expected texts or numbers, all alike, got \[None"):
            xent.log_loss(p[:2], [None, "cat"], labels=labels)
    even = np.arange(0, 12, 2)
    ours = xent.log_loss(p, np.where(w < 0.5, 2 * y, -7), labels=even, ignore_index=-7)
    np.testing.assert_allclose(ours, xent.log_loss(p[w < 0.5], y[w < 0.5]), rtol=1e-12)
    for two in (["cat", "eel"], ("eel", "cow")):
        with pytest.raises(ValueError, match=r"^ignore_index: expected shape \(\), one label, got \(2,\)"):
            xent.log_loss(p[:2], ["cat", "dog"], labels=names, ignore_index=two)
    one, q = y % 2, p[:, 0]
    theirs = sklearn.metrics.log_loss(one, q, sample_weight=w)
    np.testing.assert_allclose(xent.binary_log_loss(q, one, sample_weight=w), theirs, rtol=1e-12)
    np.testing.assert_allclose(xent.binary_log_loss(q, one == 1, sample_weight=w), theirs, rtol=1e-12)


@pytest.mark.parametrize("clip", [0.0, 1e-3])
def test_binary_log_loss_by_the_formula(clip: float) -> None:
    p, y = np.array([0.0, 1e-12, 0.3, 1.0 - 2.0**-40, 1.0]), np.array([0.0, 0.5, 0.25, 1.0, 1.0])
    q = p.clip(clip, 1 - clip) if clip else p
    expected = scipy.special.entr(0) - scipy.special.xlogy(y, q) - scipy.special.xlog1py(1 - y, -q)
    ours = xent.binary_log_loss(p, y, eps=clip, reduction="none")
    np.testing.assert_allclose(ours, expected, rtol=1e-15)
    assert xent.binary_log_loss([0.0, 1.0], [1, 0], reduction="sum") == np.inf


def test_soft_targets_with_weights_and_smoothing() -> None:
    z, y = batch()
    t = np.random.default_rng(1).dirichlet(np.ones(6), len(z))
    w, s = np.array([0.0, 1, 2, 3, 4, 5]), np.random.default_rng(2).uniform(size=len(z))
    kept = {"reduction": "none"}
    tensors = torch.from_numpy(z), torch.from_numpy(t)
    theirs = F.cross_entropy(*tensors, weight=torch.from_numpy(w), **kept).numpy()
    np.testing.assert_allclose(xent.soft_cross_entropy(z, t, weight=w, **kept), theirs, rtol=1e-12)
    np.testing.assert_allclose(
        xent.soft_cross_entropy(z, t, weight=w, sample_weight=s), (s @ theirs) / (s @ t @ w), rtol=1e-12
    )
    theirs = F.cross_entropy(*tensors, label_smoothing=0.1, **kept).numpy()
    np.testing.assert_allclose(xent.soft_cross_entropy(z, t, label_smoothing=0.1, **kept), theirs, rtol=1e-12)
    # A one-hot target is a class index; the loss is linear in the target.
    for kind in ("none", "sum", "mean"):
        options = {"weight": w, "sample_weight": s, "label_smoothing": 0.1, "reduction": kind}
        hard = xent.cross_entropy(z, y, **options)
        np.testing.assert_allclose(xent.soft_cross_entropy(z, np.eye(6)[y], **options), hard, rtol=1e-12)


def test_a_row_of_soft_targets_without_weight_does_not_count() -> None:
    z, t = np.array([[np.nan, 0.0], [1.0, 0.0]]), np.array([[1.0, 0.0], [0.0, 1.0]])
    ours = xent.soft_cross_entropy(z, t, weight=[0.0, 2.0])
    assert ours == xent.soft_cross_entropy(z[1:], t[1:])
    assert xent.soft_cross_entropy(z, t, sample_weight=[False, True]) == ours


def test_binary_label_smoothing_is_a_soft_target() -> None:
    """As in Keras: (1 - eps) y + eps / 2."""
    z, y = np.linspace(-5, 5, 11), np.arange(11) % 2
    soft = {"targets": 0.9 * y + 0.05, "pos_weight": 3.0}
    ours = xent.binary_cross_entropy(z, y, label_smoothing=0.1, pos_weight=3.0)
    np.testing.assert_allclose(ours, xent.binary_cross_entropy(z, **soft), rtol=1e-15)


@by_dtype
@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.6, 2.0])  # float32 has no 0.6: its rounding costs digits
def test_focal_loss_keeps_its_promise(dtype: str, gamma: float) -> None:
    """Also for p close to one, where 1 - p has no digits."""
    z, out = oracle.sweep(10, dtype), result_dtype(dtype)
    for y in targets_of_all_kinds(z):
        for row, k, loss in zip(z, y, xent.focal_loss(z, y, gamma=gamma, reduction="none"), strict=True):
            exact = oracle.negative_log_softmax(row)[k]
            true = exact if mp.isinf(exact) else (-mp.expm1(-exact)) ** gamma * exact
            assert oracle.epsilons(loss, true, out) <= PROMISED + 5 * gamma


def test_focal_loss_by_its_formulas() -> None:
    z, y = batch()
    alphas, w = np.arange(6.0), np.random.default_rng(1).uniform(size=len(y))
    rule = xent.scoring.focal_loss(xent.softmax(z), y, gamma=1.5)
    ours = xent.focal_loss(z, y, gamma=1.5, alpha=alphas, sample_weight=w)
    np.testing.assert_allclose(ours, (w * alphas[y]) @ rule / w.sum(), rtol=1e-12)
    np.testing.assert_allclose(xent.focal_loss(z, y, gamma=0), xent.cross_entropy(z, y), rtol=1e-15)
    assert xent.focal_loss([[-np.inf, 0.0]], [0], alpha=[0.0, 1.0]) == 0


# Memory order, axes, blocks


def same(got: Any, expected: Any, dtype: str = "float64") -> None:
    np.testing.assert_allclose(got, expected, rtol=4 * np.finfo(result_dtype(dtype)).eps, atol=0)


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "fortran": np.asfortranarray,
    "backwards": lambda a: a[::-1].copy()[::-1],
    "inside out": lambda a: np.flip(np.flip(a).copy()),
    "every other": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "a tensor": lambda a: torch.from_numpy(a.copy()),
}


@by_dtype
@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("classes", [3, 100])
def test_memory_order_does_not_matter(layout: str, classes: int, dtype: str) -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(scale=4, size=(4, 5, classes)).astype(dtype)
    y = rng.integers(0, classes, (4, 5))
    t = rng.dirichlet(np.ones(classes), (4, 5)).astype(dtype)
    w = rng.uniform(size=z.shape).astype(dtype)
    v = np.abs(w[0, 0]).copy()
    log_t = np.log(t, where=t > 0, out=np.full(t.shape, -20, dtype))

    def losses(change: Callable[[Any], Any]) -> list[Any]:
        args = [change(a) for a in (z, y, t, w, v, log_t)]
        for arg in args:
            if isinstance(arg, np.ndarray):
                arg.flags.writeable = False
        before = [np.asarray(arg).copy() for arg in args]
        z_, y_, t_, w_, v_, log_t_ = args
        results = [
            xent.cross_entropy(z_, y_, weight=v_, label_smoothing=0.1, ignore_index=0, reduction="none"),
            xent.cross_entropy(z_, y_),
            xent.soft_cross_entropy(z_, t_, reduction="none"),
            xent.binary_cross_entropy(z_, t_, sample_weight=w_, pos_weight=v_, reduction="none"),
            xent.log_loss(t_, y_, weight=v_, reduction="none"),
            xent.nll(log_t_, y_, weight=v_, reduction="none"),
        ]
        for arg, saved in zip(args, before, strict=True):
            np.testing.assert_array_equal(np.asarray(arg), saved)
        return results

    for got, expected in zip(losses(LAYOUTS[layout]), losses(np.copy), strict=True):
        assert np.asarray(got).dtype == np.asarray(expected).dtype
        same(got, expected, dtype)


def test_lists_and_integers_are_float64() -> None:
    z, y = np.array([[3, 0, 100], [7, 7, 6]]), np.array([1, 2])
    one_hot = np.eye(3, dtype=int)[y]
    for losses in (
        lambda z, y, t: xent.cross_entropy(z, y, weight=t[0], reduction="none"),
        lambda z, y, t: xent.soft_cross_entropy(z, t, reduction="none"),
        lambda z, y, t: xent.binary_cross_entropy(
            z, t, sample_weight=t, pos_weight=z[0][0], reduction="none"
        ),
        lambda z, y, t: xent.log_loss(t, y, reduction="none"),
    ):
        expected = losses(z.astype(float), y, one_hot.astype(float))
        assert expected.dtype == np.float64
        for kind in (np.asarray, lambda a: a.astype("i1"), lambda a: a.astype(">u4"), np.ndarray.tolist):
            got = losses(kind(z), kind(y), kind(one_hot))
            assert got.dtype == np.float64
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_any_axis(axis: int) -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(scale=4, size=(4, 70, 6))
    moved = np.ascontiguousarray(np.moveaxis(z, axis, -1))
    y = rng.integers(0, z.shape[axis], moved.shape[:-1])
    w = rng.uniform(size=z.shape[axis])
    t = rng.dirichlet(np.ones(z.shape[axis]), moved.shape[:-1])
    t_axis = np.moveaxis(t, -1, axis)
    for kind in ("none", "sum", "mean"):
        hard = {"weight": w, "label_smoothing": 0.1, "ignore_index": 1, "reduction": kind}
        same(xent.cross_entropy(z, y, axis=axis, **hard), xent.cross_entropy(moved, y, **hard))
        del hard["label_smoothing"]
        same(
            xent.soft_cross_entropy(z, t_axis, axis=axis, reduction=kind),
            xent.soft_cross_entropy(moved, t, reduction=kind),
        )
        same(xent.log_loss(t_axis, y, axis=axis, **hard), xent.log_loss(t, y, **hard))
        same(xent.nll(np.log(t_axis), y, axis=axis, **hard), xent.nll(np.log(t), y, **hard))


@pytest.mark.parametrize("shape", [(0, 3), (2, 0, 3), (1, 1), (1,), (3, 1), (1, 3), (1, 1, 1, 2)])
def test_axes_of_length_zero_and_one(shape: tuple[int, ...]) -> None:
    z, y = np.ones(shape), np.zeros(shape[:-1], int)
    p = np.full(shape, 1 / shape[-1])
    expected = np.full(shape[:-1], np.log(shape[-1]))
    for losses in (
        xent.cross_entropy(z, y, reduction="none"),
        xent.soft_cross_entropy(z, p, reduction="none"),
        xent.nll(np.log(p), y, reduction="none"),
        xent.log_loss(p, y, reduction="none"),
    ):
        assert losses.shape == shape[:-1]
        same(losses, expected)
    assert xent.binary_cross_entropy(z, p, reduction="none").shape == shape


@by_dtype
@pytest.mark.parametrize("shape", [(61,), (7, 9), (3, 1, 21), (2, 0)])
@pytest.mark.parametrize("classes", [2, 64, 65, 130])
def test_block_boundaries_do_not_show(
    classes: int, shape: tuple[int, ...], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(scale=8, size=(*shape, classes)).astype(dtype)
    y = rng.integers(-1, classes, shape)
    t = rng.dirichlet(np.ones(classes), shape).astype(dtype)
    w = rng.uniform(size=classes)

    def losses() -> list[Any]:
        options = {"weight": w, "label_smoothing": 0.1, "ignore_index": -1}
        return [
            xent.cross_entropy(z, y, reduction="none", **options),
            xent.cross_entropy(z, y, denominator=3.0, **options),
            xent.soft_cross_entropy(z, t, reduction="none"),
            xent.soft_cross_entropy(z, t, reduction="sum"),
            # Each block adds to the mean's divisor.
            *(
                xent.cross_entropy(z, y, **change)
                for change in (options, {"ignore_index": -1}, {"ignore_index": -1, "weight": w})
                if z.size
            ),
            *(xent.soft_cross_entropy(z, t) for _ in range(z.size > 0)),
        ]

    expected = losses()
    for elements in (1, classes, 3 * classes + 1, 20 * classes):
        monkeypatch.setattr(_blocks, "BLOCK", elements)
        for got, want in zip(losses(), expected, strict=True):
            same(got, want, dtype)


# Identities


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Logits of a few rows and their labels; now and then a logit is -inf, but never a whole row."""
    count, classes = draw(st.integers(1, 6)), draw(st.integers(1, 7))
    scale = draw(st.sampled_from([0.1, 1.0, 30.0, 1e4]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    z = scale * rng.normal(size=(count, classes))
    if draw(st.booleans()):
        z[:, 1:][rng.random((count, classes - 1)) < 0.3] = -np.inf
    return z, rng.integers(0, classes, count)


seeds = st.integers(0, 2**32)
RTOL = 1e-14


def close(got: Any, expected: Any, atol: float = 0.0) -> None:
    np.testing.assert_allclose(got, expected, rtol=RTOL, atol=atol)


@given(problems(), st.integers(-999, 999))
def test_a_shift_changes_nothing(problem: Any, shift: int) -> None:
    z, y = problem
    z = np.rint(z * 16) / 16  # so that the shift is exact
    np.testing.assert_array_equal(
        xent.cross_entropy(z + shift, y, reduction="none"), xent.cross_entropy(z, y, reduction="none")
    )


@given(problems(), seeds)
def test_a_permutation_of_classes_or_rows_changes_nothing(problem: Any, seed: int) -> None:
    z, y = problem
    rng = np.random.default_rng(seed)
    classes, rows = rng.permutation(z.shape[1]), rng.permutation(len(z))
    losses = xent.cross_entropy(z, y, reduction="none")
    close(xent.cross_entropy(z[:, classes], np.argsort(classes)[y], reduction="none"), losses)
    np.testing.assert_array_equal(xent.cross_entropy(z[rows], y[rows], reduction="none"), losses[rows])


@given(problems(), st.integers(0, 6), seeds)
def test_parts_with_one_denominator_add_up_to_the_whole(problem: Any, cut: int, seed: int) -> None:
    z, y = problem
    rng = np.random.default_rng(seed)
    w, t = rng.uniform(0.5, 2, z.shape[1]), rng.dirichlet(np.ones(z.shape[1]), len(z))
    hard = lambda rows, d=None: xent.cross_entropy(z[rows], y[rows], weight=w, denominator=d)  # noqa: E731
    soft = lambda rows, d=None: xent.soft_cross_entropy(z[rows], t[rows], denominator=d)  # noqa: E731
    first, second = slice(0, cut), slice(cut, None)
    mass = w[y].sum()
    close(hard(first, mass) + hard(second, mass), hard(slice(None)))
    close(soft(first, len(z)) + soft(second, len(z)), soft(slice(None)))


@given(problems())
def test_hard_is_soft_with_a_one_hot_target(problem: Any) -> None:
    z, y = problem
    soft = xent.soft_cross_entropy(z, np.eye(z.shape[1])[y], reduction="none")
    close(soft, xent.cross_entropy(z, y, reduction="none"))


@given(problems(), seeds)
def test_whole_weights_are_repetition(problem: Any, seed: int) -> None:
    z, y = problem
    w = np.random.default_rng(seed).integers(0, 4, z.shape[1])
    w[y[0]] += 1
    again = np.repeat(np.arange(len(z)), w[y])
    close(xent.cross_entropy(z, y, weight=w), xent.cross_entropy(z[again], y[again]))
    log_p, p = xent.log_softmax(z), xent.softmax(z)
    close(xent.nll(log_p, y, weight=w), xent.nll(log_p[again], y[again]))
    close(xent.log_loss(p, y, weight=w), xent.log_loss(p[again], y[again]))


@given(problems(), seeds)
def test_whole_sample_weights_are_repetition(problem: Any, seed: int) -> None:
    z, y = problem
    rng = np.random.default_rng(seed)
    w, by_class = rng.integers(0, 4, len(y)), rng.uniform(0.5, 2, z.shape[1])
    w[0] += 1
    again = np.repeat(np.arange(len(z)), w)
    t, log_p, p = rng.dirichlet(np.ones(z.shape[1]), len(z)), xent.log_softmax(z), xent.softmax(z)
    for loss, given_, target, options in (
        (xent.cross_entropy, z, y, {"weight": by_class, "label_smoothing": 0.1}),
        (xent.soft_cross_entropy, z, t, {"weight": by_class, "label_smoothing": 0.1}),
        (xent.focal_loss, z, y, {"alpha": by_class}),
        (xent.nll, log_p, y, {"weight": by_class}),
        (xent.log_loss, p, y, {"weight": by_class}),
    ):
        repeated = loss(given_[again], target[again], **options)
        close(loss(given_, target, sample_weight=w, **options), repeated)


@given(problems(), seeds)
def test_ignoring_is_leaving_out(problem: Any, seed: int) -> None:
    z, y = problem
    keep = np.random.default_rng(seed).random(len(y)) < 0.6
    keep[0] = True
    some = np.where(keep, y, -7)
    close(xent.cross_entropy(z, some, ignore_index=-7), xent.cross_entropy(z[keep], y[keep]))
    assert (xent.cross_entropy(z, some, ignore_index=-7, reduction="none")[~keep] == 0).all()


@given(problems(), seeds)
def test_binary_is_a_softmax_over_two_classes(problem: Any, seed: int) -> None:
    z = problem[0][:, 0]
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, len(z))
    pair = np.stack([np.zeros_like(z), z], axis=-1)
    close(xent.binary_cross_entropy(z, y), xent.cross_entropy(pair, y))
    soft = rng.uniform(size=len(z))
    close(
        xent.binary_cross_entropy(z, soft), xent.soft_cross_entropy(pair, np.stack([1 - soft, soft], axis=-1))
    )
    c = 2.5
    of_pair = xent.cross_entropy(pair, y, weight=[1.0, c], denominator=len(y))
    close(xent.binary_cross_entropy(z, y, pos_weight=c), of_pair)
    close(xent.binary_cross_entropy(-z, 1 - y), xent.binary_cross_entropy(z, y))


@given(problems(), seeds)
def test_binary_weights_are_repetition(problem: Any, seed: int) -> None:
    z = problem[0][:, 0]
    rng = np.random.default_rng(seed)
    y, w = rng.uniform(size=len(z)), rng.integers(0, 4, len(z))
    w[0] += 1
    again = np.repeat(np.arange(len(z)), w)
    close(
        xent.binary_cross_entropy(z, y, sample_weight=w, pos_weight=3.0),
        xent.binary_cross_entropy(z[again], y[again], pos_weight=3.0),
    )


@given(problems(), st.sampled_from([0.0, 1e-3, 0.1, 0.5, 1.0]))
def test_smoothing_is_a_soft_target(problem: Any, smoothing: float) -> None:
    z, y = problem
    classes = z.shape[1]
    t = (1 - smoothing) * np.eye(classes)[y] + smoothing / classes
    soft = xent.soft_cross_entropy(z, t, reduction="none")
    close(xent.cross_entropy(z, y, label_smoothing=smoothing, reduction="none"), soft)


@given(problems())
def test_nll_of_log_softmax_is_cross_entropy(problem: Any) -> None:
    z, y = problem
    losses = xent.cross_entropy(z, y, reduction="none")
    close(xent.nll(xent.log_softmax(z), y, reduction="none"), losses)
    # Probabilities hold no digits below one epsilon of one, and none beyond the smallest float.
    near = losses < 700
    close(xent.log_loss(xent.softmax(z), y, reduction="none")[near], losses[near], atol=1e-11)


@given(problems(), st.floats(0.1, 10), seeds)
def test_weights_have_no_unit_and_the_sum_is_linear(problem: Any, unit: float, seed: int) -> None:
    z, y = problem
    w = np.random.default_rng(seed).uniform(0.5, 2, z.shape[1])
    close(xent.cross_entropy(z, y, weight=unit * w), xent.cross_entropy(z, y, weight=w))
    total = xent.cross_entropy(z, y, weight=w, reduction="sum")
    close(xent.cross_entropy(z, y, weight=unit * w, reduction="sum"), unit * total)
    close(xent.cross_entropy(z, y, denominator=unit), xent.cross_entropy(z, y, reduction="sum") / unit)


@given(problems(), st.sampled_from([2.0, 4.0, 0.5]))
def test_scaled_logits_are_tempered_probabilities(problem: Any, temperature: float) -> None:
    z, y = problem
    tempered = temperature * xent.log_softmax(z)
    close(xent.cross_entropy(tempered, y), xent.cross_entropy(temperature * z, y), atol=1e-11)


@given(problems())
def test_losses_are_never_negative_and_zero_only_for_certainty(problem: Any) -> None:
    z, y = problem
    losses = xent.cross_entropy(z, y, reduction="none")
    assert (losses >= 0).all()
    others = np.where(np.arange(z.shape[1]) == y[:, None], -np.inf, z).max(axis=1)
    own = z[np.arange(len(y)), y]
    assert ((losses == 0) == (others - own < -745.2)).all()
