"""What chapter 7 claims of the libraries: its sentences on the probes' behaviours, tried on other batches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom
from sklearn.metrics import log_loss

import xent
import xent.torch
from xent_book import frameworks

pytestmark = pytest.mark.xdist_group("frameworks")  # one worker imports TensorFlow, once
F = torch.nn.functional
RNG = np.random.default_rng(707)


def batch(n: int = 12, classes: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return RNG.normal(size=(n, classes)) * 2, RNG.integers(0, classes, n), RNG.uniform(0.5, 9, classes)


@pytest.mark.claim(
    "07",
    "With class weights PyTorch divides by the sum of weights for class indices and by N for one-hot labels; Keras "
    "divides by N, scikit-learn by the sum.",
)
def test_who_divides_by_what() -> None:
    """Ten random batches, each against the two quotients."""
    sparse = frameworks.keras().losses.SparseCategoricalCrossentropy(from_logits=True)
    for _ in range(10):
        z, y, w = batch()
        y[:4] = range(4)
        each, weights = xent.cross_entropy(z, y, reduction="none"), w[y]
        over_sum, over_n = (each @ weights) / weights.sum(), (each @ weights) / len(y)
        zt, yt, wt = map(torch.from_numpy, (z, y, w))
        assert F.cross_entropy(zt, yt, weight=wt).item() == pytest.approx(over_sum, rel=1e-12)
        onehot = F.one_hot(yt, 4).double()
        assert F.cross_entropy(zt, onehot, weight=wt).item() == pytest.approx(over_n, rel=1e-12)
        assert float(sparse(y, z, sample_weight=weights)) == pytest.approx(over_n, rel=1e-5)
        found = log_loss(y, xent.softmax(z), sample_weight=weights)
        assert found == pytest.approx(over_sum, rel=1e-9)


@pytest.mark.claim(
    "07",
    "A mean over the sum of a batch's own weights is biased: its denominator depends on the labels drawn.",
)
@pytest.mark.claim(
    "07", "For one fixed batch under plain gradient descent this ratio is a factor of the learning rate."
)
def test_the_bias_of_a_mean_over_the_batchs_own_weights() -> None:
    """Monte Carlo over batches of three sizes: the expectation, against the loss meant, with its standard error."""
    p, w = 0.05, np.array([1.0, 20.0])
    loss = -np.log([0.6, 0.4])  # of a constant prediction, label 0 and label 1
    meant = (0.95 * loss[0] + 20 * 0.05 * loss[1]) / (0.95 + 20 * 0.05)
    for size in (4, 16, 64):
        n1 = RNG.binomial(size, p, 40_000)
        numerator = (size - n1) * loss[0] + 20 * n1 * loss[1]
        own = numerator / (size - n1 + 20 * n1)
        constant = numerator / (size * (0.95 + 20 * 0.05))
        error = [v.std() / 200 for v in (own, constant)]
        assert own.mean() < meant - 5 * error[0]
        assert abs(constant.mean() - meant) < 4 * error[1]
        # What a constant prediction learns is the mean share of the weights.
        share = 20 * n1 / (size - n1 + 20 * n1)
        k = np.arange(size + 1)
        exact = binom.pmf(k, size, p) @ (20 * k / (20 * k + size - k))
        assert abs(share.mean() - exact) < 4 * share.std() / 200
    # One fixed batch: the two gradients are parallel, with the mean weight as their ratio.
    z = torch.randn(9, 2, dtype=torch.float64, requires_grad=True)
    y, wt = torch.tensor([0, 1, 0, 0, 1, 0, 0, 0, 1]), torch.from_numpy(w)
    (index,) = torch.autograd.grad(F.cross_entropy(z, y, weight=wt), z)
    (onehot,) = torch.autograd.grad(F.cross_entropy(z, F.one_hot(y, 2).double(), weight=wt), z)
    assert torch.allclose(onehot, index * wt[y].mean(), rtol=1e-12)


@pytest.mark.claim("07", "$L_w$ of a single row is $\\ell_n$, whatever its weight.")
def test_a_batch_of_one_has_no_weight() -> None:
    """Weights from 1e-6 to 1e6."""
    z, y, _ = batch(1)
    zt, yt = torch.from_numpy(z), torch.from_numpy(y)
    for weight in (1e-6, 1.0, 1e6):
        found = F.cross_entropy(zt, yt, weight=torch.full((4,), weight, dtype=torch.float64))
        assert found.item() == pytest.approx(F.cross_entropy(zt, yt).item(), rel=1e-12)


@pytest.mark.claim(
    "07",
    "A softmax too many never raises. The loss stops at $\\log(e + K - 1) - 1$, which is 1.461 for ten classes.",
)
def test_a_softmax_too_many() -> None:
    """Random probabilities and the best ones, 2 to 1,000 classes, in PyTorch and Keras."""
    keras = frameworks.keras().losses.CategoricalCrossentropy(from_logits=True, reduction=None)
    for classes in (2, 10, 1000):
        floor = math.log(math.e + classes - 1) - 1
        p = np.vstack([np.eye(classes)[:1], RNG.dirichlet(np.full(classes, 0.05), 500)])
        zeros = torch.zeros(501, dtype=torch.long)
        found = F.cross_entropy(torch.from_numpy(p), zeros, reduction="none").numpy()
        assert found.min() == found[0] == pytest.approx(floor, rel=1e-12)
        truth = np.tile(np.eye(classes)[:1], (501, 1))
        assert keras(truth, p.astype("f4")).numpy().min() == pytest.approx(floor, rel=1e-5)
    assert f"{math.log(math.e + 9) - 1:.3f}" == "1.461"


@pytest.mark.claim("07", "`LogSoftmax` followed by `NLLLoss` is `CrossEntropyLoss`.")
@pytest.mark.claim("07", "because a second `log_softmax` changes nothing")
def test_the_pair_is_cross_entropy() -> None:
    """With weights, an ignored label, sequences and every reduction; loss and gradient."""
    z = torch.randn(6, 5, 7, dtype=torch.float64, requires_grad=True)
    y = torch.randint(0, 5, (6, 7))
    y[0, 0] = -100
    for reduction in ("mean", "sum", "none"):
        for weight in (None, torch.rand(5, dtype=torch.float64)):
            pair = torch.nn.NLLLoss(weight, reduction=reduction)(torch.nn.LogSoftmax(1)(z), y)
            one = torch.nn.CrossEntropyLoss(weight, reduction=reduction)(z, y)
            assert torch.allclose(pair, one, rtol=1e-12, atol=1e-15)
            a, b = (torch.autograd.grad(v.sum(), z)[0] for v in (pair, one))
            assert torch.allclose(a, b, rtol=1e-12, atol=1e-15)
    log_p = z.log_softmax(1)
    assert torch.allclose(log_p.log_softmax(1), log_p, rtol=1e-12, atol=1e-14)


def tf_gradient(labels: np.ndarray, z: np.ndarray) -> np.ndarray:
    tf = frameworks.tensorflow()
    x = tf.constant(z)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=x)
    return np.asarray(tape.gradient(loss, x))


@pytest.mark.claim(
    "07",
    "TensorFlow's is $p - y$ even for labels that do not sum to one, PyTorch's `binary_cross_entropy` loses it below a "
    "logit of −27.6, and clipped probabilities have none.",
)
def test_right_losses_with_wrong_gradients() -> None:
    """Labels of any sum; logits on both sides of -27.6; Keras on both sides of its clip."""
    z, labels = RNG.normal(size=(8, 3)), RNG.uniform(0, 2, (8, 3))
    labels[0] = 0
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    assert np.allclose(tf_gradient(labels, z), p - labels, atol=1e-12)
    zt = torch.from_numpy(z).requires_grad_()
    F.cross_entropy(zt, torch.from_numpy(labels), reduction="sum").backward()
    assert np.allclose(zt.grad, labels.sum(1, keepdims=True) * p - labels, atol=1e-12)

    line = torch.tensor([-20.0, -27.0, -29.0, -35.0], dtype=torch.float64, requires_grad=True)
    loss = F.binary_cross_entropy(line.sigmoid(), torch.ones_like(line), reduction="none")
    assert torch.allclose(loss, -line, rtol=1e-7)
    loss.sum().backward()
    slopes = line.grad.tolist()
    assert slopes[0] == pytest.approx(-1) and slopes[1] == pytest.approx(-1, abs=1e-3)
    assert -0.3 < slopes[2] < 0 and -1e-3 < slopes[3] < 0

    tf, keras = frameworks.tensorflow(), frameworks.keras()
    margins = tf.constant([[14.0, 0.0], [18.0, 0.0], [40.0, 0.0]])
    with tf.GradientTape() as tape:
        tape.watch(margins)
        each = keras.losses.SparseCategoricalCrossentropy(reduction="sum")
        value = each(np.ones(3, int), tf.nn.softmax(margins))
    found = tape.gradient(value, margins).numpy()[:, 1]
    assert found[0] < -0.9 and not found[1:].any()


@pytest.mark.claim("07", "the second run is the third one in disguise")
def test_zero_rows_are_label_smoothing_by_a_half() -> None:
    """Other features, four classes, another rate: the weights of both runs, step by step, without TensorFlow."""
    x, y = RNG.normal(size=(30, 3)), RNG.integers(0, 4, 30)
    t, order = np.eye(4)[y], RNG.permutation(30)
    padded, smoothed = np.zeros((3, 4)), np.zeros((3, 4))

    def p(weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
        e = np.exp(rows @ weights)
        return e / e.sum(1, keepdims=True)

    for _ in range(200):
        # TensorFlow's gradient: p - y for the rows, p for the zero rows, which have the same features.
        padded -= 0.3 / 30 * (x.T @ (p(padded, x) - t) + x[order].T @ p(padded, x[order]))
        smoothed -= 0.6 / 30 * (x.T @ (p(smoothed, x) - (0.5 * t + 0.5 / 4)))
    assert np.allclose(p(padded, x), p(smoothed, x), atol=1e-10)


@pytest.mark.claim(
    "07",
    "An ignored row that holds `nan` leaves the loss finite and makes its gradient `nan`. Remove rows that do not "
    "count; do not multiply them away.",
)
def test_nan_in_an_ignored_row() -> None:
    """Three ways to leave a row out: ignore it, multiply it by zero, remove it; and xent.torch."""
    z = torch.randn(5, 3)
    z[2] = torch.nan
    y = torch.tensor([0, 1, -100, 2, 0])
    keep = y != -100

    def run(loss: Any) -> tuple[bool, bool]:
        leaf = z.clone().requires_grad_()
        value = loss(leaf)
        value.backward()
        return bool(value.isfinite()), bool(leaf.grad.isfinite().all())

    masked = y.clamp(min=0)
    assert run(lambda z: F.cross_entropy(z, y)) == (True, False)
    product = run(lambda z: (F.cross_entropy(z, masked, reduction="none") * keep).sum() / keep.sum())
    assert product == (False, False)
    assert run(lambda z: F.cross_entropy(z[keep], y[keep])) == (True, True)
    assert run(lambda z: xent.torch.cross_entropy(z, y, ignore_index=-100)) == (True, True)


@pytest.mark.claim(
    "07",
    "One step of the optimiser later, every weight of the layer that computed these logits is `nan`, and so is "
    "whatever the model predicts.",
)
def test_one_step_after_a_nan_row() -> None:
    """A mean over no tokens before the last layer. The table of embeddings keeps the rows that were not used."""
    torch.manual_seed(0)
    table, last = torch.nn.Embedding(20, 4), torch.nn.Linear(4, 3)
    ids, mask = torch.tensor([[1, 2], [3, 4]]), torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    pooled = (table(ids) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    loss = F.cross_entropy(last(pooled), torch.tensor([-100, 1]))
    optimiser = torch.optim.SGD([*table.parameters(), *last.parameters()], lr=0.1)
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    assert loss.isfinite() and all(bool(p.isnan().all()) for p in last.parameters())
    assert last(torch.randn(5, 4)).isnan().all()
    assert 0 < table.weight.isnan().any(1).sum() < 20


@pytest.mark.claim("07", "With one-hot labels a swap gives PyTorch and Keras a number, not an error:")
@pytest.mark.claim(
    "07", "For the label 1 and a sigmoid in float64 its loss is right down to a logit of −100."
)
def test_swaps_and_the_reach_of_the_binary_loss() -> None:
    """One-hot labels swap, indices do not; the loss on both sides of -100, in float32, and for the label 0."""
    z, y, _ = batch()
    p, hot = torch.from_numpy(xent.softmax(z)), F.one_hot(torch.from_numpy(y), 4).double()
    keras = frameworks.keras().losses.CategoricalCrossentropy()
    for swapped, right in (
        (F.cross_entropy(hot, p), F.cross_entropy(p.log(), hot)),
        (keras(p.numpy(), hot.numpy()), keras(hot.numpy(), p.numpy())),
    ):
        assert math.isfinite(float(swapped)) and abs(float(swapped) - float(right)) > 1e-3
    with pytest.raises((RuntimeError, NotImplementedError)):
        F.cross_entropy(torch.from_numpy(y), p)

    def cost(dtype: torch.dtype, logits: list[float], label: float) -> list[float]:
        q = torch.tensor(logits, dtype=dtype).sigmoid()
        found: list[float] = F.binary_cross_entropy(q, torch.full_like(q, label), reduction="none").tolist()
        return found

    assert cost(torch.float64, [-40, -99.9], 1) == pytest.approx([40, 99.9], rel=1e-12)
    assert cost(torch.float64, [-101], 1) == [100]
    assert cost(torch.float32, [-95], 1) == [100] == cost(torch.float64, [50], 0)


@pytest.mark.claim("07", "Give Keras's binary loss a last axis of size one, or no weight reaches its row.")
def test_keras_binary_loss_with_one_axis() -> None:
    """Weights in random order: with one axis only their mean matters, with two each reaches its row."""
    bce = frameworks.keras().losses.BinaryCrossentropy()
    for n in (2, 5, 33):
        y, q, w = RNG.integers(0, 2, n).astype(float), RNG.uniform(0.1, 0.9, n), RNG.uniform(0, 5, n)
        each = -np.log(np.where(y == 1, q, 1 - q))
        flat = float(bce(y, q, sample_weight=w))
        assert flat == pytest.approx(each.mean() * w.mean(), rel=1e-5)
        assert flat == pytest.approx(float(bce(y, q, sample_weight=w[::-1].copy())), rel=1e-5)
        tall = float(bce(y[:, None], q[:, None], sample_weight=w[:, None]))
        assert tall == pytest.approx((each * w).mean(), rel=1e-5)


@pytest.mark.claim("07", "from 1.5 on scikit-learn warns.")
@pytest.mark.claim("07", "Rows of probabilities that do not sum to one are normalised by Keras")
def test_rows_that_do_not_sum_to_one() -> None:
    """Rows of several sums: scikit-learn's warning and value, Keras's quotient. (Older releases were run by hand.)"""
    keras = frameworks.keras().metrics.categorical_crossentropy
    for total in (0.4, 0.9, 1.5):
        p = RNG.dirichlet(np.ones(3), 6) * total / 1.6
        t = np.eye(3)[RNG.integers(0, 3, 6)]
        t[:3] = np.eye(3)
        with pytest.warns(UserWarning, match="sum to one"):
            assert log_loss(t, p) == pytest.approx(-np.log((t * p).sum(1)).mean(), rel=1e-9)
        assert np.allclose(keras(t, p), -np.log((t * p).sum(1) / p.sum(1)), rtol=1e-4)


@pytest.mark.claim("07", "On a CPU, PyTorch keeps the sum of float16 losses in float16, where it overflows")
def test_a_float16_sum_overflows_on_a_cpu() -> None:
    """Losses near log 2, so that the limit lies at another count than in the chapter; bfloat16 does not overflow."""
    z, limit = torch.zeros(100_000, 2), 65_504 / math.log(2)
    y = torch.zeros(100_000, dtype=torch.long)
    for n, finite in ((int(0.9 * limit), True), (int(1.05 * limit), False)):
        # The divisor is a float16 as well: beyond 65,504 targets it is infinite, so that the sum is asked for.
        total = F.cross_entropy(z[:n].half(), y[:n], reduction="sum")
        assert bool(total.isfinite()) == finite
        assert F.cross_entropy(z[:n].bfloat16(), y[:n]).item() == pytest.approx(math.log(2), rel=2**-7)


@pytest.mark.claim("07", "On a CPU, PyTorch raises an `IndexError` for a label that is out of range.")
@pytest.mark.claim("07", "TensorFlow raises an error on a CPU")
def test_labels_out_of_range_on_a_cpu() -> None:
    """Too large and negative labels, with every reduction."""
    z = torch.randn(2, 3)
    for bad in (3, 7, -1):
        for reduction in ("mean", "sum", "none"):
            with pytest.raises(IndexError, match="out of bounds"):
                F.cross_entropy(z, torch.tensor([0, bad]), reduction=reduction)
    tf = frameworks.tensorflow()
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=[7], logits=z[:1].numpy())


@pytest.mark.claim("07", "so perfect columns can cost the largest loss there is")
def test_text_labels_are_sorted_as_text() -> None:
    """Perfect columns in numerical order, under text and under numbers, with three and twelve classes."""
    for labels in ([2, 9, 10], list(range(1, 13))):
        perfect = np.eye(len(labels))
        assert log_loss(labels, perfect) < 1e-9
        text = log_loss([str(v) for v in labels], perfect)
        moved = np.mean([sorted(map(str, labels)).index(str(v)) != i for i, v in enumerate(labels)])
        assert text == pytest.approx(moved * 52 * math.log(2), rel=1e-9)
        if len(labels) == 3:
            assert moved == 1
