"""Chapter 07: what the frameworks compute, beside the rows of test_read.py."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from xent_book import behaviours

F = torch.nn.functional
WorstError = Callable[..., None]


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    z = torch.from_numpy(rng.normal(size=(6, 4)) * 2)
    return z, torch.from_numpy(rng.integers(0, 4, 6)), torch.from_numpy(rng.uniform(0.5, 5, 4))


def per_row(z: torch.Tensor, y: torch.Tensor) -> np.ndarray:
    """-log softmax from the definition."""
    e = np.exp(z.numpy())
    return -np.log(e / e.sum(1, keepdims=True))[np.arange(len(y)), y.numpy()]


@pytest.mark.equation("eq-fw-two-means", by="framework")
def test_two_means(batch: tuple[torch.Tensor, ...], worst_error: WorstError) -> None:
    z, y, by_class = batch
    w, losses = by_class.numpy()[y.numpy()], per_row(z, y)
    over_weights, over_rows = (w * losses).sum() / w.sum(), (w * losses).sum() / len(y)
    assert abs(over_weights / over_rows - 1) > 0.1
    onehot = F.one_hot(y, 4).double()
    worst_error(F.cross_entropy(z, y, weight=by_class), over_weights, rtol=1e-12, why="float64")
    worst_error(F.cross_entropy(z, onehot, weight=by_class), over_rows, rtol=1e-12, why="float64")
    k = behaviours.keras()
    for reduction, expected in (
        ("sum_over_batch_size", over_rows),
        ("mean_with_sample_weight", over_weights),
    ):
        loss = k.losses.SparseCategoricalCrossentropy(True, reduction=reduction, dtype="float64")
        seen = float(loss(y.numpy(), z.numpy(), sample_weight=w))
        worst_error(seen, expected, rtol=1e-12, why="float64")


@pytest.mark.equation("eq-fw-bce-1d", by="framework")
def test_a_1d_batch_is_averaged_before_it_is_weighted(worst_error: WorstError) -> None:
    rng = np.random.default_rng(1)
    y, p, w = rng.integers(0, 2, 7).astype(float), rng.uniform(0.1, 0.9, 7), rng.uniform(0, 4, 7)
    losses = -np.log(np.where(y == 1, p, 1 - p))
    printed = losses.mean() * w.mean()
    assert abs(printed / (w * losses).mean() - 1) > 0.01
    bce = behaviours.keras().losses.BinaryCrossentropy(dtype="float64")
    worst_error(float(bce(y, p, sample_weight=w)), printed, rtol=1e-6, why="Keras clips at 1e-7")


@pytest.mark.equation("eq-fw-keras-normalise", by="framework")
def test_what_keras_makes_of_unnormalised_rows(worst_error: WorstError) -> None:
    k = behaviours.keras()
    for q in ([2.0, 1.0, 0.0], [0.2, 0.2, 0.1], [0.5, 3.0, 0.9]):
        row = np.array([q], np.float32)
        total = sum(q)
        for y in (0, 1):
            categorical = -np.log(np.clip(q[y] / total, 1e-7, 1 - 1e-7))
            clipped = np.clip(q, 1e-7, 1 - 1e-7)
            sparse = -np.log(clipped[y] / clipped.sum())
            onehot = np.eye(3, dtype=np.float32)[[y]]
            seen = float(k.losses.CategoricalCrossentropy()(onehot, row))
            worst_error(seen, categorical, rtol=2e-6, why="float32")
            seen = float(k.losses.SparseCategoricalCrossentropy()(np.array([y]), row))
            worst_error(seen, sparse, rtol=2e-6, why="float32")


@pytest.mark.equation("eq-fw-smoothing", by="framework")
def test_two_conventions_of_smoothing(batch: tuple[torch.Tensor, ...], worst_error: WorstError) -> None:
    z, y, _ = batch
    classes, eps = 4, 0.3
    onehot = F.one_hot(y, classes).double()
    mine = (1 - eps) * onehot + eps / classes
    worst_error(
        F.cross_entropy(z, y, label_smoothing=eps), F.cross_entropy(z, mine), rtol=1e-12, why="float64"
    )
    eta = eps * (classes - 1) / classes
    other = (1 - eta) * onehot + eta / (classes - 1) * (1 - onehot)
    worst_error(other, mine, rtol=1e-12, why="float64")


@pytest.mark.equation("eq-fw-smoothed-weights", by="framework")
def test_smoothing_under_weights(batch: tuple[torch.Tensor, ...], worst_error: WorstError) -> None:
    z, y, by_class = batch
    eps, classes, w = 0.3, 4, by_class.numpy()
    all_losses = -F.log_softmax(z, 1).numpy()
    own = w[y.numpy()]
    numerator = (1 - eps) * (own * per_row(z, y)).sum() + eps / classes * (w * all_losses).sum()
    seen = F.cross_entropy(z, y, weight=by_class, label_smoothing=eps)
    worst_error(seen, numerator / own.sum(), rtol=1e-12, why="float64")
    onehot = F.one_hot(y, classes).double()
    seen = F.cross_entropy(z, onehot, weight=by_class, label_smoothing=eps)
    worst_error(seen, numerator / len(y), rtol=1e-12, why="float64")


@pytest.mark.equation("eq-fw-kl-mean", by="framework")
def test_the_mean_of_kl_div(worst_error: WorstError) -> None:
    rng = np.random.default_rng(4)
    p, q = rng.dirichlet(np.ones(5), (2, 3))
    total = (p * np.log(p / q)).sum()
    log_q, target = torch.from_numpy(np.log(q)), torch.from_numpy(p)
    worst_error(F.kl_div(log_q, target, reduction="batchmean"), total / 3, rtol=1e-12, why="float64")
    with pytest.warns(UserWarning, match="batchmean"):
        mean = F.kl_div(log_q, target, reduction="mean")
    worst_error(mean, total / (3 * 5), rtol=1e-12, why="float64")


@pytest.mark.equation("eq-fw-kernel-error", by="framework")
def test_the_error_of_the_tensorflow_kernel(worst_error: WorstError) -> None:
    tf = behaviours.tensorflow()
    rng = np.random.default_rng(5)
    z, y = rng.normal(size=(1, 4)), rng.uniform(0, 2, (1, 4))
    x = tf.constant(z)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.nn.softmax_cross_entropy_with_logits(labels=y, logits=x)
    seen = tape.gradient(loss, x).numpy()
    zt = torch.from_numpy(z).requires_grad_()
    (right,) = torch.autograd.grad(F.cross_entropy(zt, torch.from_numpy(y)), zt)
    p = np.exp(z) / np.exp(z).sum()
    worst_error(seen - right.numpy(), (1 - y.sum()) * p, atol=1e-12, why="two backward passes in float64")


@pytest.mark.equation("eq-fw-rescale", by="framework")
def test_tensorflow_is_right_with_a_weight(worst_error: WorstError) -> None:
    tf = behaviours.tensorflow()
    rng = np.random.default_rng(7)
    z, y = rng.normal(size=(3, 4)), rng.uniform(0, 2, (3, 4))
    s = y.sum(1, keepdims=True)
    x = tf.constant(z)
    with tf.GradientTape() as tape:
        tape.watch(x)
        each = tf.nn.softmax_cross_entropy_with_logits(labels=y / s, logits=x)
        loss = tf.reduce_sum(each * s[:, 0])
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    worst_error(tape.gradient(loss, x).numpy(), s * p - y, atol=1e-12, why="a backward pass in float64")


@pytest.mark.equation("eq-fw-bce-backward", by="framework")
def test_the_backward_pass_of_binary_cross_entropy(worst_error: WorstError) -> None:
    r"""
    $$
    \frac{\partial \ell}{\partial z} =
    \frac{(p - y)\; p(1-p)}{\max\bigl(p(1-p),\,10^{-12}\bigr)} .
    $$ (eq-fw-bce-backward)
    """
    for logit in (-45.0, -40.0, -30.0, -28.0, -20.0, 0.5, 3.0):
        z = torch.tensor([logit], dtype=torch.float64, requires_grad=True)
        for label in (0.0, 1.0):
            y = torch.full_like(z, label)
            (seen,) = torch.autograd.grad(F.binary_cross_entropy(z.sigmoid(), y), z)
            p = 1 / (1 + np.exp(-logit))
            # wrong: (p - label) * p * (1 - p) -> (p - label)
            printed = (p - label) * p * (1 - p) / max(p * (1 - p), 1e-12)
            worst_error(seen, [printed], rtol=1e-8, why="the guard is a float32 1e-12")


@pytest.mark.equation("eq-fw-half-overflow", by="property")
def test_a_float16_sum_overflows_beyond_its_largest_number() -> None:
    r"""
    $$
    N\,\bar\ell \ge 65{,}520,
    $$ (eq-fw-half-overflow)
    """
    for mean in (0.5, 2.0, 8.0):
        # Of a mean of 8, one count lies between 65,504 and 65,520.
        # wrong: 65_520 / mean -> 65_504 / mean
        limit = 65_520 / mean
        for n, overflows in ((int(limit) - 1, False), (int(limit), True)):
            losses = torch.full((n,), mean, dtype=torch.float16)
            assert bool(torch.isinf(losses.sum())) is overflows
