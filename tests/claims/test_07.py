"""What chapter 7 claims of the libraries, and attempts to refute it: other batches, formats, weights and optimisers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom
from sklearn.metrics import log_loss
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import xent
import xent.torch
from adversary import DIGITS, Draw, batches, distributions, one_hot, optimisers, refuted, rng, weights
from xent_book import behaviours

pytestmark = pytest.mark.xdist_group("frameworks")  # one worker imports TensorFlow, once
F = torch.nn.functional
Array = np.ndarray


@pytest.mark.claim(
    "07",
    "With class weights PyTorch divides by the sum of weights for class indices and by N for one-hot labels; by "
    "default Keras's losses divide by N, scikit-learn by the sum.",
)
def test_who_divides_by_what() -> None:
    """Batches of one row to 33 and 2 to 10 classes, weights of every kind, zeros included; with equal ones of 3.

    Would be refuted by a batch with another quotient; the two differ unless the weights' mean is one. Keras's metric
    divides by the sum, and so does its loss if you ask.
    """
    keras = behaviours.keras()
    sparse = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    g = rng(1)

    def says(z: Array, y: Array, w: Array, indices: float, onehot: float) -> None:
        zt, yt, wt = map(torch.from_numpy, (z, y, w))
        hot, each = F.one_hot(yt, z.shape[1]).double(), w[y]
        assert F.cross_entropy(zt, yt, weight=wt).item() == pytest.approx(indices, rel=1e-9, abs=1e-12)
        assert F.cross_entropy(zt, hot, weight=wt).item() == pytest.approx(onehot, rel=1e-9, abs=1e-12)
        assert float(sparse(y, z, sample_weight=each)) == pytest.approx(
            onehot, rel=1e-4, abs=1e-6 * each.max()
        )
        # scikit-learn infers the classes, and clips what costs more than 36.
        if set(y) == set(range(z.shape[1])) and np.max(xent.cross_entropy(z, y, reduction="none")) < 30:
            assert log_loss(y, xent.softmax(z), sample_weight=each) == pytest.approx(indices, rel=1e-9)

    for what, z, y in batches(g, classes=(2, 4, 10)):
        if ("plain" in what or "peaked" in what) and ("any" in what or "one class" in what):
            for _, w in weights(g, z.shape[1]):
                each, mine = xent.cross_entropy(z, y, reduction="none"), w[y]
                if mine.sum() > 0:
                    over_sum, over_n = (each @ mine) / mine.sum(), (each @ mine) / len(y)
                    says(z, y, w, over_sum, over_n)
                    if abs(over_n - over_sum) > 1e-3 * abs(over_sum) + 1e-3:
                        with refuted("the divisors exchanged"):
                            says(z, y, w, over_n, over_sum)
    z, y, each = g.normal(size=(9, 3)), g.integers(0, 3, 9), g.uniform(1, 9, 9)
    metric = keras.metrics.SparseCategoricalCrossentropy(from_logits=True)
    metric.update_state(y, z, sample_weight=each)
    asked = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
    for other in (metric.result(), asked(y, z, sample_weight=each)):
        with refuted("Keras's metric, or the reduction that you ask for"):
            assert float(other) == pytest.approx(float(sparse(y, z, sample_weight=each)), rel=1e-4)


@pytest.mark.claim(
    "07",
    "With unequal weights, a mean that divides by the sum of a batch's own weights is in general biased: "
    "its denominator depends on the labels drawn.",
)
def test_the_bias_of_a_mean_over_the_batchs_own_weights() -> None:
    """40,000 batches of three sizes each, for random rates, weights and predictions; Keras's two means of four rows.

    Would be refuted by a rate whose mean over batches is the loss meant; a constant divisor's is, and so is Keras's
    default: its rows may not send a training loop to `mean_with_sample_weight`.
    """
    g, keras = rng(2), behaviours.keras()

    def says(values: Array, meant: float) -> None:
        assert abs(values.mean() - meant) > 5 * values.std() / 200

    for size in (4, 16, 64):
        p, w = g.uniform(0.03, 0.1), g.uniform(10, 30)
        loss = -np.log([0.6, 0.4])  # of a constant prediction, label 0 and label 1
        meant = ((1 - p) * loss[0] + w * p * loss[1]) / (1 - p + w * p)
        n1 = g.binomial(size, p, 40_000)
        numerator = (size - n1) * loss[0] + w * n1 * loss[1]
        says(numerator / (size - n1 + w * n1), meant)
        with refuted("a constant divisor"):
            says(numerator / (size * (1 - p + w * p)), meant)
        # What a constant prediction learns is the mean share of the weights.
        share = w * n1 / (size - n1 + w * n1)
        k = np.arange(size + 1)
        exact = binom.pmf(k, size, p) @ (w * k / (w * k + size - k))
        assert abs(share.mean() - exact) < 5 * share.std() / 200

    def of_keras(reduction: str, factor: float) -> None:
        """The mean over all batches of four rows, each as likely as it is."""
        mean = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
        rows, found = [np.arange(4) < k for k in range(5)], 0.0
        for k, y in enumerate(rows):
            value = mean(
                y.astype(int), np.tile(np.log([0.6, 0.4]), (4, 1)), sample_weight=np.where(y, w, 1.0)
            )
            found += binom.pmf(k, 4, p) * float(value)
        assert found == pytest.approx(factor * meant, rel=1e-4)

    of_keras("sum_over_batch_size", 1 - p + w * p)
    with refuted("a division by the batch's own weights"):
        of_keras("mean_with_sample_weight", 1.0)
    for row in ("keras-reductions", "keras-class-weight"):
        assert behaviours.get(row).instead.startswith("as it is in training;")


@pytest.mark.claim(
    "07", "For one fixed batch under plain gradient descent this ratio is a factor on the learning rate."
)
def test_one_batch_has_one_ratio() -> None:
    """Batches and weights of every kind: the two gradients are parallel; a step of each optimiser.

    Would be refuted by a batch with another ratio in two rows, as two batches have. Adam takes no notice of a factor.
    """
    g = rng(3)

    def slopes(z: Array, y: Array, w: Array) -> list[Array]:
        leaf, yt, wt = torch.from_numpy(z).requires_grad_(), torch.from_numpy(y), torch.from_numpy(w)
        hot = F.one_hot(yt, z.shape[1]).double()
        losses = (F.cross_entropy(leaf, t, weight=wt) for t in (yt, hot))
        return [torch.autograd.grad(loss, leaf)[0].numpy() for loss in losses]

    def says(one: Array, other: Array, ratio: float) -> None:
        np.testing.assert_allclose(other, ratio * one, rtol=1e-9, atol=1e-15)

    for what, z, y in batches(g, classes=(2, 5), rows=(1, 9)):
        for _, w in weights(g, z.shape[1]):
            if "any" in what and w[y].sum() > 0:
                says(*slopes(z, y, w), w[y].mean())
    batch = [(g.normal(size=(9, 2)), g.integers(0, 2, 9)) for _ in range(2)]
    batch[0][1][:] = 0
    w = np.array([1.0, 20.0])
    with refuted("one ratio for two batches"):
        says(*slopes(*batch[1], w), w[batch[0][1]].mean())
    steps = {}
    for name, optimiser in optimisers().items():
        for scale in (1.0, 7.0):
            leaf = torch.ones(3, dtype=torch.float64, requires_grad=True)
            taken = optimiser([leaf])
            (scale * (leaf**2).sum() / 2).backward()
            taken.step()
            steps[name, scale] = 1 - leaf[0].item()
    assert steps["SGD", 7.0] == pytest.approx(7 * steps["SGD", 1.0])
    assert steps["Adam", 7.0] == pytest.approx(steps["Adam", 1.0], rel=1e-6)


@pytest.mark.claim("07", "$\\mathcal L_w$ of a single row is $\\ell_n$, whatever its positive weight.")
def test_a_batch_of_one_has_no_weight() -> None:
    """Single rows of every kind up to a vocabulary, weights from 1e-6 to 1e6; a weight of zero gives nan.

    Would be refuted by a positive weight that shows.
    """
    g = rng(4)

    def says(z: Array, y: Array, weight: float) -> None:
        zt, yt = torch.from_numpy(z), torch.from_numpy(y)
        found = F.cross_entropy(zt, yt, weight=torch.full(z.shape[1:], weight, dtype=torch.float64)).item()
        assert found == pytest.approx(F.cross_entropy(zt, yt).item(), rel=1e-12)

    for _, z, y in batches(g, rows=(1,)):
        says(z, y, float(10 ** g.uniform(-6, 6)))
    with refuted("a weight of zero"):
        says(z, y, 0.0)
    with refuted("two rows of two weights"):
        both = torch.tensor([[1.0, 0.0], [0.0, 3.0]]), torch.tensor([0, 0]), torch.tensor([1.0, 0.0])
        mean = F.cross_entropy(both[0], torch.tensor([0, 1]), weight=both[2]).item()
        assert mean == pytest.approx(F.cross_entropy(both[0], torch.tensor([0, 1])).item(), rel=1e-12)


@pytest.mark.claim(
    "07",
    "In PyTorch, one softmax too many raises no error. The loss stops at $\\log(e + K - 1) - 1$, which is "
    "1.461 for ten classes.",
)
def test_a_softmax_too_many() -> None:
    """Probabilities of every kind and the best ones, 2 to 1,000 classes, four formats, in PyTorch and Keras.

    Would be refuted by probabilities with a smaller loss, as without the second softmax, or by an error. Keras on
    TensorFlow takes the softmax of a layer back.
    """
    layers, losses = behaviours.keras().layers, behaviours.keras().losses
    keras = losses.CategoricalCrossentropy(from_logits=True, reduction=None)
    g = rng(5)

    def says(losses: Array, classes: int, digits: int) -> None:
        floor = math.log(math.e + classes - 1) - 1
        assert losses.min() == pytest.approx(floor, rel=8 * 2.0**-digits)

    for classes in (2, 10, 1000):
        p = np.vstack([one_hot([0], classes), *(q for _, q in distributions(g, classes, 50))])
        zeros, truth = torch.zeros(len(p), dtype=torch.long), np.tile(one_hot([0], classes), (len(p), 1))
        for name, digits in DIGITS.items():
            probs = torch.from_numpy(p).to(getattr(torch, name))
            says(F.cross_entropy(probs, zeros, reduction="none").double().numpy(), classes, digits)
        says(keras(truth, p.astype("f4")).numpy(), classes, 20)
        with refuted("the loss of the probabilities"):
            says(F.nll_loss(torch.from_numpy(p).log(), zeros, reduction="none").numpy(), classes, 53)
        with refuted("a softmax that remembers its logits"), pytest.warns(UserWarning, match="from_logits"):
            says(keras(truth[:1], layers.Softmax()(60 * truth[:1])).numpy(), classes, 20)
    assert f"{math.log(math.e + 9) - 1:.3f}" == "1.461"


@pytest.mark.claim(
    "07", "for class indices, without label smoothing or autocast, this pair *is* `CrossEntropyLoss`."
)
@pytest.mark.claim("07", "because a second `log_softmax` adds nothing but rounding errors")
def test_the_pair_is_cross_entropy() -> None:
    """Batches of every kind, weights, an ignored label, sequences and every reduction; loss and gradient; four formats.

    Would be refuted by class indices for which the two differ. Soft targets raise, smoothing differs, and under
    autocast on a CPU the pair takes the log_softmax in bfloat16.
    """
    g = rng(6)

    def says(
        z: torch.Tensor, y: torch.Tensor, reduction: str, weight: torch.Tensor | None, **options: Any
    ) -> None:
        z = z.requires_grad_()
        pair = torch.nn.NLLLoss(weight, reduction=reduction)(torch.nn.LogSoftmax(1)(z), y)
        one = torch.nn.CrossEntropyLoss(weight, reduction=reduction, **options)(z, y)
        torch.testing.assert_close(pair, one, rtol=1e-9, atol=1e-12, equal_nan=True)
        a, b = (torch.autograd.grad(v.sum(), z)[0] for v in (pair, one))
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12, equal_nan=True)

    for what, logits, labels in batches(g):
        if "any" in what or "wrong" in what:
            w = torch.from_numpy(dict(weights(g, logits.shape[1]))["zeros"])
            says(torch.from_numpy(logits), torch.from_numpy(labels), "mean", None)
            says(torch.from_numpy(logits), torch.from_numpy(labels), "sum", w)
    z, y = torch.from_numpy(g.normal(size=(6, 5, 7))), torch.from_numpy(g.integers(0, 5, (6, 7)))
    y[0, 0] = -100
    for reduction in ("mean", "sum", "none"):
        for weight in (None, torch.from_numpy(g.random(5))):
            says(z, y, reduction, weight)
    with refuted("label smoothing"):
        says(z, y, "mean", None, label_smoothing=0.1)
    says(z.detach().bfloat16(), y, "sum", None)
    with refuted("autocast"), torch.autocast("cpu", torch.bfloat16):
        says(z.detach().bfloat16(), y, "sum", None)
    with pytest.raises(RuntimeError):
        says(z, z.detach().softmax(1), "mean", None)

    def again(of: Callable[[torch.Tensor], torch.Tensor], z: torch.Tensor, u: float) -> None:
        log_p = z.log_softmax(1)
        assert ((of(log_p) - log_p).abs() <= 4 * u * (1 + log_p.abs())).all()

    for name, digits in DIGITS.items():
        for k in (2, 10, 1000):
            logits = torch.from_numpy(3 * g.normal(size=(20, k))).to(getattr(torch, name))
            again(lambda v: v.log_softmax(1), logits, 2.0**-digits)
            with refuted("a softmax"):
                again(lambda v: v.softmax(1), logits, 2.0**-digits)


def tf_gradient(labels: Array, z: Array) -> Array:
    tf = behaviours.tensorflow()
    x = tf.constant(z)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=x)
    return np.asarray(tape.gradient(loss, x))


@pytest.mark.claim(
    "07",
    "TensorFlow's default gradient is $p - y$ even for labels that do not sum to one, and PyTorch's "
    "`binary_cross_entropy` loses its gradient below a logit of −27.6 for the label 1. Probabilities beyond "
    "Keras's clip have almost no gradient.",
)
@pytest.mark.claim("07", "TensorFlow's default kernel returns $p_k - y_k$ whatever s is.")
@pytest.mark.claim("07", "Beyond it, the model learns next to nothing from its worst mistakes.")
@pytest.mark.erratum("1.14", "holds")
def test_right_losses_with_wrong_gradients() -> None:
    """Labels of random sums, zero included; logits on both sides of -27.6; Keras's two losses, 2 to 20 classes.

    Would be refuted by labels with the loss's own gradient, as PyTorch's has; by a logit below -27.6 that keeps it.
    """
    g = rng(7)

    def says(gradient: Array, z: Array, labels: Array) -> None:
        np.testing.assert_allclose(gradient, xent.softmax(z) - labels, atol=1e-12)

    for classes in (2, 3, 50):
        z, labels = 3 * g.normal(size=(8, classes)), g.uniform(0, 2, (8, classes))
        labels[0] = 0
        says(tf_gradient(labels, z), z, labels)
        leaf = torch.from_numpy(z).requires_grad_()
        F.cross_entropy(leaf, torch.from_numpy(labels), reduction="sum").backward()
        own = labels.sum(1, keepdims=True) * xent.softmax(z) - labels
        np.testing.assert_allclose(leaf.grad, own, atol=1e-12)
        with refuted("PyTorch's, which is the loss's own"):
            says(leaf.grad.numpy(), z, labels)
        # The remedy: weights on the losses of rows that sum to one, not on their labels.
        sums = labels[1:].sum(1, keepdims=True)
        np.testing.assert_allclose(sums * tf_gradient(labels[1:] / sums, z[1:]), own[1:], atol=1e-12)
        with refuted("weights on the labels"):
            np.testing.assert_allclose(tf_gradient(sums * (labels[1:] / sums), z[1:]), own[1:], atol=1e-12)

    def lost(logit: float) -> None:
        line = torch.tensor([logit], dtype=torch.float64, requires_grad=True)
        loss = F.binary_cross_entropy(line.sigmoid(), torch.ones_like(line))
        assert loss.item() == pytest.approx(-logit, rel=1e-7)
        loss.backward()
        assert -0.97 < line.grad.item() < 0

    for logit in g.uniform(-95, -27.7, 20):
        lost(float(logit))
    for logit in g.uniform(-27.5, -5, 5):
        with refuted("a logit above"):
            lost(float(logit))

    tf, keras = behaviours.tensorflow(), behaviours.keras()

    def clipped(
        cls: str, margin: float, classes: int, softmax: Any = tf.nn.softmax, most: float = 1e-6
    ) -> None:
        """A label that is wrong by the margin beside the best class; the others lie between."""
        z = np.r_[margin, g.uniform(0, margin, classes - 2), 0.0][None]
        x, label = tf.constant(z, tf.float32), np.full(1, classes - 1)
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = getattr(keras.losses, cls)(reduction="sum")
            truth = label if "Sparse" in cls else one_hot(label, classes)
            value = loss(truth, softmax(x))
        # The sparse loss leaves a rounding of what it divides by.
        assert np.abs(tape.gradient(value, x).numpy()).max() <= most

    for cls in ("SparseCategoricalCrossentropy", "CategoricalCrossentropy"):
        for classes in (2, 3, 20):
            for margin in (16.2, *g.uniform(16.5, 100, 3)):
                clipped(cls, float(margin), classes)
        with refuted("a probability inside the clip"):
            clipped(cls, 15.9, 2)
        with refuted("a softmax that remembers its logits"):
            clipped(cls, 30, 2, keras.layers.Softmax())
    with refuted("nothing at all"):
        clipped("SparseCategoricalCrossentropy", 16.2, 2, most=0)


@pytest.mark.claim("07", "the second run is the third one in disguise")
@pytest.mark.claim(
    "07",
    "Under gradient descent on a linear layer the term 1/K shifts all logits together and changes no probability. "
    "(Hidden layers would feel it.)",
)
def test_zero_rows_are_label_smoothing_by_a_half() -> None:
    """Random features, 2 to 10 classes, several rates: the weights of both runs, by TensorFlow's own gradient.

    Would be refuted by a rate or data for which the runs part; the run without zero rows does. With a hidden layer
    the 1/K moves the features, and the probabilities with them.
    """
    g = rng(8)

    def says(padding: bool, classes: int, rate: float) -> None:
        x, y = g.normal(size=(30, 3)), g.integers(0, classes, 30)
        t = np.eye(classes)[y]
        padded, smoothed = np.zeros((3, classes)), np.zeros((3, classes))
        features, labels = (np.vstack([x, x]), np.vstack([t, 0 * t])) if padding else (x, t)
        for _ in range(50):
            padded -= rate / 30 * features.T @ tf_gradient(labels, features @ padded)
            smoothed -= 2 * rate / 30 * x.T @ (xent.softmax(x @ smoothed) - (0.5 * t + 0.5 / classes))
        # Both minimise; the zero rows' p - 0 adds up with p - y to twice p minus the smoothed label, less 1/K each.
        np.testing.assert_allclose(xent.softmax(x @ padded), xent.softmax(x @ smoothed), atol=1e-10)

    for classes in (2, 4, 10):
        says(True, classes, float(g.uniform(0.05, 0.4)))
    with refuted("no zero rows"):
        says(False, 4, 0.3)

    def unmoved(hidden: bool) -> None:
        """One step along a gradient of 1/K in each logit."""
        x, top = torch.from_numpy(g.normal(size=(9, 3))), torch.nn.Linear(3, 4).double()
        net = torch.nn.Sequential(torch.nn.Linear(3, 3).double(), torch.nn.ReLU(), top) if hidden else top
        before = net(x)
        before.backward(torch.full_like(before, 0.25))
        torch.optim.SGD(net.parameters(), lr=0.5).step()
        torch.testing.assert_close(net(x).softmax(1), before.softmax(1), rtol=1e-9, atol=1e-12)

    unmoved(hidden=False)
    with refuted("a hidden layer"):
        unmoved(hidden=True)


class Pooled(torch.nn.Module):
    """A mean over the tokens that count, and a layer: the net that meets a row without tokens."""

    def __init__(self, repair: str = "") -> None:
        super().__init__()
        self.table, self.last, self.repair = torch.nn.Embedding(20, 4), torch.nn.Linear(4, 3), repair

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        count = mask.sum(1, keepdim=True)
        if self.repair == "guarded":
            count = count.clamp(min=1)
        return self.last((self.table(ids) * mask[..., None]).sum(1) / count)


def a_nan_row(g: Draw, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token ids, their mask with a row of none, and labels that ignore this row."""
    mask = torch.from_numpy((g.random((rows, 5)) < 0.7).astype("f4"))
    mask[:, 0] = 1
    mask[int(g.integers(rows))] = 0
    y = torch.from_numpy(g.integers(0, 3, rows))
    y[mask.sum(1) == 0] = -100
    return torch.from_numpy(g.integers(0, 20, (rows, 5))), mask, y


@pytest.mark.claim(
    "07",
    "In PyTorch, an ignored row that contains `nan` leaves the loss finite and makes its gradient `nan`. "
    "Repair the division that produced it, or remove such rows before the layers; if the layer's input "
    "contains `nan` too, dropping them before the loss is too late for the weights.",
)
def test_nan_in_an_ignored_row() -> None:
    """Nets of 2 to 20 rows with one that has no tokens, each repair run to the gradients of all parameters.

    Would be refuted by a remedy that leaves a parameter with a nan, or by a late one that does not. Where a nan
    is written behind the layer, whose input is finite, the late one is in time.
    """
    g = rng(9)

    def run(
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], repair: str = ""
    ) -> tuple[bool, bool, bool]:
        net = Pooled(repair)
        rows = mask.sum(1) > 0 if repair == "before the layers" else torch.ones(len(y), dtype=torch.bool)
        z = net(ids[rows], mask[rows])
        z.retain_grad()
        value = loss(z, y[rows])
        value.backward()
        finite = all(bool(p.grad.isfinite().all()) for p in net.parameters() if p.grad is not None)
        return bool(value.isfinite()), bool(z.grad.isfinite().all()), finite

    def helps(loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], repair: str = "") -> None:
        assert run(loss, repair) == (True, True, True)

    for n in (2, 5, 20):
        ids, mask, y = a_nan_row(g, n)
        keep = y != -100
        assert run(F.cross_entropy) == (True, False, False)
        for repair in ("guarded", "before the layers"):
            helps(F.cross_entropy, repair)
        late: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
            "rows dropped before the loss": lambda z, y, keep=keep: F.cross_entropy(z[keep], y[keep]),
            "xent.torch": lambda z, y: xent.torch.cross_entropy(z, y, ignore_index=-100),
        }
        for name, loss in late.items():
            assert run(loss) == (True, True, False), name
            with refuted(name):
                helps(loss)
        layer, x = torch.nn.Linear(3, 3), torch.ones(n, 3)
        z = torch.where(keep[:, None], layer(x), torch.nan)
        F.cross_entropy(z[keep], y[keep]).backward()
        assert layer.weight.grad is not None
        with refuted("too late for finite input"):
            assert layer.weight.grad.isnan().any()
        with refuted("a mask"):
            helps(
                lambda z, y, k=keep: (
                    (F.cross_entropy(z, y.clamp(min=0), reduction="none") * k).sum() / k.sum()
                )
            )


@pytest.mark.claim(
    "07",
    "After one step of SGD or Adam, every weight of the layer that computed these logits is `nan`, and so is "
    "whatever the model predicts.",
)
def test_one_step_after_a_nan_row() -> None:
    """Both with their options, nets of 2 to 20 rows. The table of embeddings keeps the rows that were not used.

    Would be refuted by a weight that is left; a guarded division leaves all, and so does Rprop, since the sign of nan
    is zero.
    """
    g = rng(10)

    def says(optimiser: Callable[[Any], Any], repair: str = "") -> None:
        ids, mask, y = a_nan_row(g, int(g.choice([2, 5, 20])))
        net = Pooled(repair)
        taken = optimiser(net.parameters())
        loss = F.cross_entropy(net(ids, mask), y)
        loss.backward()
        taken.step()
        assert loss.isfinite() and all(bool(p.isnan().all()) for p in net.last.parameters())
        assert net.last(torch.randn(5, 4)).isnan().all()

    for optimiser in optimisers().values():
        says(optimiser)
        with refuted("a guarded division"):
            says(optimiser, "guarded")
    with refuted("Rprop"):
        says(torch.optim.Rprop)


@pytest.mark.claim(
    "07",
    "After a swap, with one-hot labels in floating point, PyTorch and Keras return a number, not an error:",
)
def test_a_swap_gives_a_number() -> None:
    """Rows of every kind, 2 to 100 classes: a number, and another one than the right order's.

    Would be refuted by labels that raise, as integers do, or by rows whose swap does not show.
    """
    keras = behaviours.keras().losses.CategoricalCrossentropy()
    g = rng(11)

    def says(p: Array, hot: Array) -> None:
        probs, labels = torch.from_numpy(p), torch.from_numpy(hot)
        try:
            swapped = float(F.cross_entropy(labels, probs)), float(keras(p, hot))
        except (RuntimeError, NotImplementedError) as error:
            raise AssertionError from error
        right = float(F.cross_entropy(probs.log(), labels)), float(keras(hot, p))
        assert np.isfinite(swapped).all() and np.abs(np.subtract(swapped, right)).min() > 1e-6

    for classes in (2, 4, 100):
        for what, p in distributions(g, classes, 12):
            if what in ("concentration 1", "concentration 50"):
                says(p, one_hot(g.integers(0, classes, 12), classes))
    p, y = g.dirichlet(np.ones(4), 12), g.integers(0, 4, 12)
    with refuted("integers, as F.one_hot makes them"):
        says(p, one_hot(y, 4).astype(int))
    with pytest.raises((RuntimeError, NotImplementedError)):
        F.cross_entropy(torch.from_numpy(y), torch.from_numpy(p))


@pytest.mark.claim("07", "Except in float16, its backward pass divides by p(1 − p) with a guard against zero")
def test_the_guard_of_the_binary_loss() -> None:
    """Random logits from -40 to 15, both labels, four formats, against the formula.

    Would be refuted by another format whose guard is zero: there the gradient is infinite or `nan`.
    """
    g = rng(19)

    def says(dtype: torch.dtype) -> None:
        z = torch.from_numpy(g.uniform(-40, 15, 50)).to(dtype).requires_grad_()
        for label in (0.0, 1.0):
            loss = F.binary_cross_entropy(z.sigmoid(), torch.full_like(z, label), reduction="sum")
            (seen,) = torch.autograd.grad(loss, z)
            p = z.detach().sigmoid()
            spread = (p * (1 - p)).double()
            right = (p.double() - label) * spread / spread.clamp(min=1e-12)
            np.testing.assert_allclose(seen.double(), right, atol=16 * torch.finfo(dtype).eps)

    for name in DIGITS:
        if name == "float16":
            with refuted(name):
                says(torch.float16)
        else:
            says(getattr(torch, name))


@pytest.mark.claim(
    "07", "For the label 1 and a sigmoid in float64 its loss is right down to a logit of −100."
)
def test_the_reach_of_the_binary_loss() -> None:
    """Random logits from -100 to 30; beyond, in float32, and for the label 0 it is not.

    Would be refuted by a logit in between whose loss is off.
    """

    def says(dtype: torch.dtype, logit: float, label: float) -> None:
        q = torch.tensor([logit], dtype=dtype).sigmoid()
        found = F.binary_cross_entropy(q, torch.full_like(q, label)).item()
        true = float(np.logaddexp(0, logit) - label * logit)
        assert found == pytest.approx(true, rel=1e-9, abs=1e-13)

    for logit in (*rng(12).uniform(-100, 30, 50), -99.99):
        says(torch.float64, float(logit), 1)
    for dtype, logit, label in ((torch.float64, -101, 1), (torch.float32, -95, 1), (torch.float64, 50, 0)):
        with refuted("a logit beyond, float32, or the label 0"):
            says(dtype, logit, label)


@pytest.mark.claim(
    "07",
    "For labels and predictions of the shape (N,), Keras's binary loss counts every row with the mean weight: give "
    "either array a last axis of size one.",
)
@pytest.mark.claim(
    "07", "Every row counts with the mean weight. Without weights the default mean is the right one."
)
def test_keras_binary_loss_with_one_axis() -> None:
    """Weights of every kind, 1 to 33 rows, labels and predictions of either shape; to the gradients of a Dense layer.

    Would be refuted by a shape with such an axis whose weights do not arrive, or by one without it whose weights do.
    """
    tf, bce = behaviours.tensorflow(), behaviours.keras().losses.BinaryCrossentropy()
    g = rng(13)

    def says(y: Array, q: Array, w: Array) -> None:
        each = -np.log(np.where(y.ravel() == 1, q.ravel(), 1 - q.ravel()))
        assert float(bce(y, q, sample_weight=w)) == pytest.approx(
            (each * w.ravel()).mean(), rel=1e-4, abs=1e-6
        )

    for n in (1, 2, 5, 33):
        y, q = g.integers(0, 2, n).astype(float), g.uniform(0.1, 0.9, n)
        y[:2] = (0, 1)[:n]
        for _, w in weights(g, n):
            for shapes in ((y[:, None], q[:, None]), (y, q[:, None]), (y[:, None], q)):
                says(*shapes, w)
            each = -np.log(np.where(y == 1, q, 1 - q))
            flat = float(bce(y, q, sample_weight=w))
            assert flat == pytest.approx(each.mean() * w.mean(), rel=1e-4)
            if abs((each * w).mean() - flat) > 1e-3 * (1 + flat):
                with refuted("one axis"):
                    says(y, q, w)
        assert float(bce(y, q)) == pytest.approx(each.mean(), rel=1e-4)
    # Several labels a row need no axis of size one: the weights reach the means over the last axis.
    y, q, w = g.integers(0, 2, (6, 3)).astype(float), g.uniform(0.1, 0.9, (6, 3)), g.uniform(0, 5, 6)
    each = -np.log(np.where(y == 1, q, 1 - q)).mean(-1)
    assert float(bce(y, q, sample_weight=w)) == pytest.approx((each * w).mean(), rel=1e-4)
    # To the weights of a layer: the gradient is that of the weighted rows, if an axis is there.
    x, y, w = g.normal(size=(6, 2)), g.integers(0, 2, 6).astype(float), g.uniform(0, 5, 6)

    def layer(predictions: Callable[[Any], Any]) -> None:
        v = tf.Variable(np.array([[0.3], [-0.8]]))
        with tf.GradientTape() as tape:
            loss = bce(y, predictions(tf.sigmoid(x @ v)), sample_weight=w)
        right = x.T @ (w * (xent.sigmoid(x @ v.numpy())[:, 0] - y)) / 6
        np.testing.assert_allclose(tape.gradient(loss, v).numpy()[:, 0], right, rtol=1e-3, atol=1e-5)

    layer(lambda p: p)
    with refuted("predictions squeezed"):
        layer(lambda p: tf.squeeze(p, -1))


@pytest.mark.claim(
    "07", "Since release 1.5 it only warns. Keras's `CategoricalCrossentropy` normalises such rows."
)
def test_rows_that_do_not_sum_to_one() -> None:
    """Rows of 2 to 10 classes and random sums: scikit-learn's warning and value, Keras's quotient.

    Would be refuted by a sum without a warning or a quotient. (Older releases were run by hand.)
    """
    keras = behaviours.keras().losses.CategoricalCrossentropy(reduction=None)
    g = rng(14)

    def says(t: Array, p: Array) -> None:
        with pytest.warns(UserWarning, match="sum to one"):
            assert log_loss(t, p) == pytest.approx(-np.log((t * p).sum(1)).mean(), rel=1e-9)
        found = np.asarray(keras(t, p))
        np.testing.assert_allclose(found, -np.log((t * p).sum(1) / p.sum(1)), rtol=1e-4, atol=1e-6)

    for classes in (2, 3, 10):
        for total in g.uniform(0.2, 0.95, 4):
            p = g.dirichlet(np.full(classes, 3.0), 20) + 0.01
            t = np.eye(classes)[np.r_[np.arange(classes), g.integers(0, classes, 20 - classes)]]
            says(t, total * p / p.sum(1, keepdims=True))
            with refuted("rows that do"):
                says(t, p / p.sum(1, keepdims=True))


@pytest.mark.claim(
    "07",
    "On a CPU, PyTorch's `cross_entropy` keeps the sum of float16 losses in float16, where it overflows, up "
    "to rounding, when",
)
@pytest.mark.claim("07", "Label smoothing of class indices sums over all classes, and overflows sooner.")
@pytest.mark.claim(
    "07",
    "from 65,520 class indices on, the count overflows too, and the mean is `nan` (0 where the sum is "
    "finite), with gradients of zero",
)
def test_a_float16_sum_overflows_on_a_cpu() -> None:
    """Losses of log K for several K, so that the limit lies at other counts than the chapter's; counts at the limit.

    Would be refuted by a sum beyond the limit that is finite; below it is, and in bfloat16, and of the binary loss.
    With label smoothing one below is infinite, and so is the loss of a single row of 10,000 classes.
    """

    def says(dtype: torch.dtype, classes: int, share: float, smoothing: float = 0, hot: bool = False) -> None:
        n = max(1, int(share * 65_520 / math.log(classes)))
        z, y = torch.zeros(n, classes, dtype=dtype), torch.zeros(n, dtype=torch.long)
        target = F.one_hot(y, classes).to(dtype) if hot else y
        assert F.cross_entropy(z, target, reduction="sum", label_smoothing=smoothing).isinf()

    for classes in (2, 3, 20):
        says(torch.float16, classes, 1.05)
        with refuted("fewer"):
            says(torch.float16, classes, 0.9)
        with refuted("bfloat16"):
            says(torch.bfloat16, classes, 1.05)
        says(torch.float16, classes, 0.6, 0.1)
        with refuted("one-hot rows, whose smoothed losses are added once"):
            says(torch.float16, classes, 0.6, 0.1, hot=True)
    says(torch.float16, 10_000, 0, 0.1)
    with refuted("a row of 10,000 classes without smoothing"):
        says(torch.float16, 10_000, 0)
    # Each addition rounds: of three classes a sum below the limit is infinite.
    few = torch.zeros(59_520, 3, dtype=torch.float16), torch.zeros(59_520, dtype=torch.long)
    assert F.cross_entropy(*few, reduction="none").double().sum() < 65_504
    assert F.cross_entropy(*few, reduction="sum").isinf()
    half = torch.zeros(100_000, dtype=torch.float16)
    assert F.binary_cross_entropy_with_logits(half, half).item() == pytest.approx(math.log(2), rel=1e-3)

    def counted(n: int, classes: int = 10, hot: bool = False) -> None:
        z = torch.zeros(n, classes, dtype=torch.float16, requires_grad=True)
        y = torch.zeros(n, dtype=torch.long)
        mean = F.cross_entropy(z, F.one_hot(y, classes).half() if hot else y)
        (slope,) = torch.autograd.grad(mean, z)
        assert mean.isnan() and not slope.any()

    for n in (65_520, 65_536, 70_000):
        counted(n)
    with refuted("a count below"):
        counted(65_519)
    with refuted("a mean loss below one, whose sum is finite"):
        counted(65_520, 2)
    with refuted("one-hot rows, which are not counted in float16"):
        counted(65_536, hot=True)
    halves = torch.zeros(65_520, 2, dtype=torch.float16, requires_grad=True)
    mean = F.cross_entropy(halves, torch.zeros(65_520, dtype=torch.long))
    (slope,) = torch.autograd.grad(mean, halves)
    assert mean == 0 and not slope.any()
    ones = F.cross_entropy(torch.zeros(100_000, 2).bfloat16(), torch.zeros(100_000, dtype=torch.long))
    assert ones.item() == pytest.approx(math.log(2), rel=2**-7)


class Casts(TorchDispatchMode):
    """Record the formats that each operation takes and returns."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, list[torch.dtype], torch.dtype]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        first = found[0] if isinstance(found, tuple) else found
        if isinstance(first, torch.Tensor):
            taken = [a.dtype for a in args if isinstance(a, torch.Tensor)]
            self.seen.append((func.overloadpacket.__name__, taken, first.dtype))
        return found


@pytest.mark.claim("07", "Under autocast the sum runs in float32.")
def test_the_sum_under_autocast() -> None:
    """Indices and distributions, two and three axes, smoothing, float16: a GPU's casts, traced without a GPU.

    Would be refuted by a sum in float16, as without autocast. The log_softmax runs in float16: not all the loss is in
    float32, except on a CPU, where the sum of 70,000 logits of zero stays finite.
    """

    def casts(enabled: bool, smoothing: float, *shape: int, soft: bool = False) -> Casts:
        with FakeTensorMode():
            z = torch.empty(shape, dtype=torch.float16, device="cuda")
            y = z if soft else torch.zeros(shape[:1] + shape[2:], dtype=torch.long, device="cuda")
            torch.set_autocast_enabled("cuda", enabled)
            try:
                with Casts() as trace:
                    F.cross_entropy(z, y, label_smoothing=smoothing)
            finally:
                torch.set_autocast_enabled("cuda", False)
        return trace

    def sums(trace: Casts) -> None:
        kinds = [
            kind
            for name, taken, kind in trace.seen
            if "nll" in name or (name == "sum" and taken[0] != torch.bool)
        ]
        assert kinds and set(kinds) == {torch.float32}

    def all_of_it(trace: Casts) -> None:
        assert torch.float16 not in {kind for _, _, kind in trace.seen}

    for smoothing in (0, 0.1):
        for shape in ((5, 3), (5, 3, 4)):
            for soft in (False, True):
                sums(casts(True, smoothing, *shape, soft=soft))
                with refuted("the whole loss"):
                    all_of_it(casts(True, smoothing, *shape, soft=soft))
                with refuted("no autocast"):
                    sums(casts(False, smoothing, *shape, soft=soft))

    def on_a_cpu(enabled: bool) -> None:
        with torch.autocast("cpu", torch.float16, enabled=enabled):
            zeros = torch.zeros(70_000, 3, dtype=torch.float16), torch.zeros(70_000, dtype=torch.long)
            assert F.cross_entropy(*zeros).item() == pytest.approx(math.log(3), rel=1e-5)

    on_a_cpu(True)
    with refuted("no autocast on a CPU"):
        on_a_cpu(False)


@pytest.mark.claim(
    "07",
    "On a CPU, PyTorch raises an error for a label that is out of range, except for the label that it "
    "ignores, −100 by default.",
)
@pytest.mark.claim(
    "07", "TensorFlow raises an error on a CPU; compiled by XLA (`jit_compile=True`) it returns `nan` there"
)
def test_labels_out_of_range_on_a_cpu() -> None:
    """Random labels, too large and negative, 2 to 1,000 classes, reductions, weights, smoothing, two shapes; XLA.

    Would be refuted by such a label that passes; -100 does, and labels in range do. With another label to ignore,
    -100 raises.
    """
    tf, g = behaviours.tensorflow(), rng(15)

    def says(
        bad: int, classes: int, reduction: str, weight: torch.Tensor | None, ignored: int = -100
    ) -> None:
        for z, y in ((torch.zeros(2, classes), [0, bad]), (torch.zeros(1, classes, 2), [[0, bad]])):
            for smoothing in (0.0, 0.1):
                options: Any = {"reduction": reduction, "weight": weight, "label_smoothing": smoothing}
                options["ignore_index"] = ignored
                with pytest.raises(IndexError, match="out of bounds"):
                    F.cross_entropy(z, torch.tensor(y), **options)

    def of_tensorflow(bad: int, classes: int) -> None:
        with pytest.raises(tf.errors.InvalidArgumentError):
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=[bad], logits=np.zeros((1, classes)))

    @tf.function(jit_compile=True)  # type: ignore[untyped-decorator]
    def compiled(bad: Any, z: Any) -> Any:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=[bad, 0], logits=z)

    def by_xla(bad: int, classes: int) -> None:
        assert list(np.isnan(compiled(tf.constant(bad), tf.zeros((2, classes))))) == [True, False]

    for classes in (2, 3, 1000):
        for bad in (classes, -1, -99, int(g.integers(classes, 10**6)), -int(g.integers(101, 10**6))):
            for reduction in ("mean", "sum", "none"):
                says(bad, classes, reduction, None)
                says(bad, classes, reduction, torch.ones(classes))
            of_tensorflow(bad, classes)
            by_xla(bad, classes)
        with refuted("a label in range, compiled"):
            by_xla(classes - 1, classes)
        says(-100, classes, "mean", None, ignored=5000)
        for ignored in (-100, 5000):
            with refuted("the label to ignore"):
                says(ignored, classes, "mean", None, ignored)
        with refuted("a label in range"):
            of_tensorflow(classes - 1, classes)


@pytest.mark.claim("07", "so perfect columns in numerical order can cost the largest possible loss")
def test_text_labels_are_sorted_as_text() -> None:
    """Perfect columns in numerical order, under text and under numbers, for random sets of labels.

    It "can". Would be refuted by sets whose text order never matters, as that of labels of equal length.
    """
    g = rng(16)

    def says(labels: list[int]) -> None:
        perfect = np.eye(len(labels))
        assert log_loss(labels, perfect) < 1e-9
        text = log_loss([str(v) for v in labels], perfect)
        moved = np.mean([sorted(map(str, labels)).index(str(v)) != i for i, v in enumerate(labels)])
        assert text == pytest.approx(moved * 52 * math.log(2), rel=1e-9) and moved == 1

    says([2, 9, 10])
    for _ in range(5):
        says([*sorted(int(v) for v in g.choice(np.arange(2, 10), 2, replace=False)), int(g.integers(10, 20))])
        with refuted("labels of one length"):
            says(sorted(int(v) for v in g.choice(np.arange(10, 100), 3, replace=False)))


@pytest.mark.slow
@pytest.mark.claim(
    "07",
    "A binary loss after a softmax takes *sigmoids* of the remembered logits, so `evaluate` and the same loss "
    "applied to what `predict` returns generally differ.",
)
def test_a_binary_loss_behind_a_softmax() -> None:
    """A layer and an activation, 2 to 5 outputs: `evaluate`, against sigmoids of the logits and the formula.

    Would be refuted by outputs for which the numbers agree; behind a sigmoid they do, and so does the loss of the
    model's own output, which remembers.
    """
    keras, g = behaviours.keras(), rng(17)

    def says(activation: str, classes: int, kernel: str = "glorot_uniform") -> None:
        x, y = g.normal(size=(6, 3)), np.eye(classes)[g.integers(0, classes, 6)]
        start = keras.Input((3,))
        logits = keras.layers.Dense(classes, kernel_initializer=kernel)(start)
        model = keras.Model(start, keras.layers.Activation(activation)(logits))
        loss = keras.losses.BinaryCrossentropy()
        model.compile(loss=loss)
        z, p = (np.asarray(m.predict(x, verbose=0), float) for m in (keras.Model(start, logits), model))
        evaluated = model.evaluate(x, y, verbose=0)
        assert evaluated == pytest.approx((np.logaddexp(0, z) - y * z).mean(), rel=1e-5)
        called = -(y * np.log(p) + (1 - y) * np.log(1 - p)).mean()
        assert float(loss(y, p)) == pytest.approx(called, rel=1e-5)
        assert abs(evaluated - called) > 1e-3
        with refuted("the model's own output"):
            assert abs(evaluated - float(loss(y, model(x)))) > 1e-3

    for classes in (2, 5):
        says("softmax", classes)
    with refuted("a sigmoid"):
        says("sigmoid", 3)
    with refuted("two logits of zero, of which both make one half"):
        says("softmax", 2, "zeros")


@pytest.mark.slow
@pytest.mark.claim(
    "07",
    "On TensorFlow, a final softmax layer *remembers its logits*, and the cross-entropy uses them. Put a "
    "`Reshape` after it, give it a dtype other than the loss's, or set `ignore_class`, and the loss of a "
    "confident wrong answer drops from 30 to the ceiling set by the clip.",
)
def test_what_makes_a_softmax_forget() -> None:
    """Four formats of the softmax by four of the loss, two losses, 2 to 10 classes; in eager mode and in a graph.

    Would be refuted by two formats that differ and a loss of 30, by a Reshape that keeps it, or by a class to ignore,
    among the labels or not. In float64 and under a loss in float64 a softmax remembers.
    """
    keras, tf = behaviours.keras(), behaviours.tensorflow()

    def says(model: Any, kind: str, dtype: str, classes: int, graph: bool, **options: Any) -> None:
        z = tf.constant(30 * one_hot([0], classes), model.layers[0].compute_dtype)
        y = np.array([1]) if "Sparse" in kind else one_hot([1], classes)
        loss = getattr(keras.losses, kind)(dtype=dtype, **options)
        value = (tf.function if graph else lambda f: f)(lambda z: loss(y, model(z)))(z)
        assert float(value) == pytest.approx(-math.log(1e-7), rel=0.02)

    for kind in ("SparseCategoricalCrossentropy", "CategoricalCrossentropy"):
        for classes in (2, 10):
            for a in DIGITS:
                softmax = keras.Sequential([keras.layers.Softmax(dtype=a)])
                reshaped = keras.Sequential(
                    [keras.layers.Softmax(dtype=a), keras.layers.Reshape((classes,), dtype=a)]
                )
                for b in DIGITS:
                    graph = a == b == "float32"
                    says(reshaped, kind, b, classes, graph)
                    if a != b:
                        says(softmax, kind, b, classes, graph)
                    else:
                        with refuted("the loss's own dtype"):
                            says(softmax, kind, b, classes, graph)
                        for ignored in (-1, 0) if "Sparse" in kind else ():
                            says(softmax, kind, b, classes, graph, ignore_class=ignored)


@pytest.mark.claim("07", "Its gradient is right all the same, so training goes on under a loss of `nan`.")
@pytest.mark.claim(
    "07", "With −10⁹ instead of −∞ there is no `nan` (except in float16, which has no such number)"
)
def test_a_masked_class_under_a_soft_target() -> None:
    """3 to 1,000 classes, some masked by minus infinity, four formats, both reductions, weights; the float64 gradient.

    Would be refuted by a gradient that is off or not finite, or by a finite loss, as indices have.
    """
    g = rng(18)

    def says(z: Array, t: Array, name: str, reduction: str, w: Array, index: bool = False) -> None:
        dtype = getattr(torch, name)
        leaf = torch.from_numpy(z).to(dtype).requires_grad_()
        target = torch.from_numpy(t.argmax(1)) if index else torch.from_numpy(t).to(dtype)
        loss = F.cross_entropy(leaf, target, torch.from_numpy(w).to(dtype), reduction=reduction)
        (seen,) = torch.autograd.grad(loss, leaf)
        right = ((w * t).sum(1, keepdims=True) * xent.softmax(z) - w * t) / (
            len(t) if reduction == "mean" else 1
        )
        np.testing.assert_allclose(seen.double(), right, atol=16 * w.max() * 2.0 ** -DIGITS[name])
        assert loss.isnan()

    for classes in (3, 10, 1000):
        z = g.normal(size=(5, classes))
        z[:, g.random(classes) < 0.3] = -np.inf
        z[:, 0], z[:, 1] = -np.inf, 0.0
        t = np.where(np.isinf(z), 0.0, g.dirichlet(np.ones(classes), 5))
        t /= t.sum(1, keepdims=True)
        for name in DIGITS:
            for reduction in ("mean", "sum"):
                for w in (np.ones(classes), g.uniform(0.5, 2, classes)):
                    says(z, t, name, reduction, w)
        with refuted("indices"):
            says(z, one_hot(np.ones(5, int), classes), "float64", "sum", np.ones(classes), index=True)
        for name in DIGITS:
            low = torch.from_numpy(np.maximum(z, -1e9)).to(getattr(torch, name))
            assert F.cross_entropy(low, torch.from_numpy(t).to(low)).isnan() == (name == "float16")
