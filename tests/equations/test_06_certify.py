"""Chapter 06: what libraries compute, beside the rows of test_read.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss

from xent_book import behaviours

F = torch.nn.functional
WorstError = Callable[..., None]
RNG = np.random.default_rng(6)


def printed_sum(t: np.ndarray, p: np.ndarray) -> float:
    """-sum t log p as printed, a term with t = 0 left out."""
    return -sum(a * math.log(b) for a, b in zip(t, p, strict=True) if a > 0)


@pytest.mark.equation("eq-certify-sum", by="framework")
def test_the_sum_is_the_loss_of_the_libraries(worst_error: WorstError) -> None:
    t, p = RNG.dirichlet(np.ones(5), (2, 8))
    t[0], t[1] = np.eye(5)[2], [0.5, 0.5, 0, 0, 0]
    expected = [printed_sum(a, b) for a, b in zip(t, p, strict=True)]
    seen = F.cross_entropy(torch.from_numpy(p).log(), torch.from_numpy(t), reduction="none")
    worst_error(seen, expected, rtol=1e-13, why="float64")
    # The convention: neither p nor the logarithm is looked at where t is zero.
    assert printed_sum(np.array([1.0, 0.0]), np.array([1.0, 0.0])) == 0
    worst_error(log_loss([[0, 1, 0]], [[0.25, 0.75, 0.0]]), math.log(4 / 3), rtol=1e-13, why="float64")


@pytest.mark.equation("eq-certify-clip", by="framework")
def test_the_ceilings_of_the_libraries(worst_error: WorstError) -> None:
    row = np.array([[0.3, 0.7, 0.0]])
    k = behaviours.keras()
    cce = k.losses.CategoricalCrossentropy(dtype="float64")
    seen = [log_loss([[0, 0, 1]], row), log_loss([[0, 0, 1]], row.astype(np.float32))]
    seen.append(float(cce(np.array([[0.0, 0.0, 1.0]]), row)))
    expected = [math.log(1 / eps) for eps in (2.0**-52, 2.0**-23, 1e-7)]
    worst_error(seen, expected, rtol=1e-6, why="one of them in float32")


@pytest.mark.equation("eq-certify-binary", by="framework")
def test_a_binary_label_is_a_pair(worst_error: WorstError) -> None:
    b, q = RNG.integers(0, 2, 20).astype(float), RNG.uniform(0.01, 0.99, 20)
    printed = -(1 - b) * np.log(1 - q) - b * np.log(q)
    t, p = np.stack([1 - b, b], 1), np.stack([1 - q, q], 1)
    worst_error([printed_sum(x, y) for x, y in zip(t, p, strict=True)], printed, rtol=1e-13, why="float64")
    seen = [log_loss([x], [y], labels=[0.0, 1.0]) for x, y in zip(b, q, strict=True)]
    worst_error(seen, printed, rtol=1e-12, why="float64")


@pytest.mark.equation("eq-certify-one-list", by="framework")
def test_a_list_is_a_batch_of_binary_labels(worst_error: WorstError) -> None:
    for classes in (2, 3, 5, 10):
        p, y = RNG.dirichlet(np.ones(classes)), int(RNG.integers(classes))
        wrong = np.delete(p, y)
        printed = (-math.log(p[y]) - np.log(1 - wrong).sum()) / classes
        seen = log_loss(np.eye(classes, dtype=int)[y], p)
        worst_error(seen, printed, rtol=1e-12, why="float64")
        # Neither the loss of the row nor its K-th part.
        assert classes == 2 or abs(seen + math.log(p[y])) > 1e-3
        assert abs(seen + math.log(p[y]) / classes) > 1e-3


@pytest.mark.equation("eq-certify-epsilon", by="framework")
def test_the_share_of_impossible_events_sets_the_slope(worst_error: WorstError) -> None:
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
        worst_error(loss, constant + m * math.log(1 / eps), rtol=1e-12, why="float64")
    # scikit-learn is on the line with its own epsilon.
    expected = constant + m * math.log(1 / 2.0**-52)
    worst_error(log_loss(y, p, labels=[0, 1, 2]), expected, rtol=1e-12, why="float64")


@pytest.mark.equation("eq-certify-keras", by="framework")
def test_keras_normalises_and_clips(worst_error: WorstError) -> None:
    cce = behaviours.keras().losses.CategoricalCrossentropy(reduction=None, dtype="float64")
    t = np.array([[0, 0, 1], [0.5, 0.5, 0], [1, 0, 0], [0, 1, 0], [0.2, 0, 0.8]], float)
    p = np.array([[0.2, 0.2, 0.2], [0.4, 2, 1], [0, 0.9, 0.3], [3, 0, 1e-9], [1e-3, 1, 5]], float)
    q = np.clip(p / p.sum(1, keepdims=True), 1e-7, 1 - 1e-7)
    worst_error(cce(t, p).numpy(), -(t * np.log(q)).sum(1), rtol=1e-12, why="float64")
    without = -(t * np.log(np.clip(p, 1e-7, 1 - 1e-7))).sum(1)
    assert np.abs(cce(t, p).numpy() - without).max() > 0.1


@pytest.mark.equation("eq-certify-multilabel", by="framework")
def test_from_logits_is_a_softmax(worst_error: WorstError) -> None:
    k = behaviours.keras()
    z, y = RNG.normal(size=(6, 4)) * 2, RNG.integers(0, 2, (6, 4)).astype(float)
    y[0] = [1, 0, 0, 1]
    lse = np.log(np.exp(z).sum(1, keepdims=True))
    softmax = (y * (lse - z)).sum(1)
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


@pytest.mark.equation("eq-certify-relative", by="symbolic")
def test_k_plus_three_covers_the_products_of_errors() -> None:
    # A term is rounded by 2u (log), u (product) and u in each of K - 1 sums. The worst case is all upwards.
    u = Fraction(1, 2**53)
    for classes in (2, 5, 50, 1000):
        worst = (1 + 2 * u) * (1 + u) ** classes - 1
        assert (classes + 2) * u < worst <= (classes + 3) * u
