"""Chapter 7's claims of the libraries: on other batches, formats, weights, optimisers, and in the behaviours' rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom
from torch._subclasses.fake_tensor import FakeTensorMode

import xent
import xent.torch
from adversary import DIGITS, Draw, batches, claim, one_hot, optimisers, rng, weights
from xent_book import behaviours

pytestmark = pytest.mark.xdist_group("frameworks")  # one worker imports TensorFlow, once
F = torch.nn.functional
Array = np.ndarray
CE, CCE, SCE = F.cross_entropy, "CategoricalCrossentropy", "SparseCategoricalCrossentropy"


def keras_loss(kind: str, **options: Any) -> Any:
    return getattr(behaviours.keras().losses, kind)(**options)


LOSSES = xent.cross_entropy([[2, 1, 0], [0, 3, 1]], [0, 1], reduction="none")  # of the rows' example


def shows(slug: str, key: str, expected: Any) -> None:
    """A row of the behaviours shows now what is claimed: numbers, the beginning of an error, or what a test says."""
    found = behaviours.see(slug)[key]
    if isinstance(expected, str) or isinstance(found, str):
        assert str(found).startswith(str(expected))
    elif callable(expected):
        assert expected(found)
    else:
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


def tf_gradient(loss: Callable[[Any], Any], z: Array) -> Array:
    tf = behaviours.tensorflow()
    x = tf.constant(z)
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = loss(x)
    return np.asarray(tape.gradient(value, x))


def weighted() -> Iterator[tuple[Array, Array, Array]]:
    """Batches of one row to 33, with weights of every kind, zeros included."""
    for what, z, y in batches(rng(1), classes=(2, 4, 10)):
        if what.split(", ")[1] in ("plain", "peaked") and what.split(", ")[2] in ("any", "one class"):
            yield from ((z, y, w) for _, w in weights(rng(1), z.shape[1]) if w[y].sum() > 0)


BY_N = LOSSES @ [1, 3] / 2
test_who_divides_by_what = claim(
    "07",
    "With class weights, PyTorch divides by the sum of weights",
    on=[
        ("torch-class-weights", "index", LOSSES @ [1, 10] / 11),
        ("torch-class-weights", "one-hot", LOSSES @ [1, 10] / 2),
        ("keras-reductions", "sum_over_batch_size", BY_N),
        ("keras-class-weight", "class_weight in fit", LOSSES @ [1, 10] / 2),
        ("sklearn-weights", "weights 1, 3", -np.log([0.6, 0.7]) @ [1, 3] / 4),
    ],
    but_not={
        "Keras's metric": ("keras-reductions", "metric", BY_N),
        "Keras asked": ("keras-reductions", "mean_with_sample_weight", BY_N),
        "PyTorch by N": ("torch-class-weights", "index", LOSSES @ [1, 10] / 2),
    },
)(shows)


def biased(size: int, p: float, w: float, own: bool = True) -> float:
    """How far the mean over batches lies from the loss that is meant, of a constant prediction, enumerated."""
    k, loss = np.arange(size + 1), -np.log([0.6, 0.4])
    values = ((size - k) * loss[0] + w * k * loss[1]) / (size - k + w * k if own else size * (1 - p + w * p))
    return float(binom.pmf(k, size, p) @ values - ((1 - p) * loss[0] + w * p * loss[1]) / (1 - p + w * p))


@claim(
    "07",
    "With unequal weights, a mean that divides by the sum",
    on=[(size, p, w) for size in (1, 4, 16, 64) for p in (0.03, 0.1) for w in (10, 30)],
    but_not={"a constant divisor": (16, 0.05, 20, False), "equal weights": (16, 0.05, 1)},
)
def test_the_bias_of_a_mean_over_the_batchs_own_weights(
    size: int, p: float, w: float, own: bool = True
) -> None:
    """Keras's two means over all batches of four rows; the behaviours' rows send nobody to the biased one."""
    assert abs(biased(size, p, w, own)) > 1e-3
    z, found = np.log([[0.6, 0.4]] * 4), {}
    for reduction in ("sum_over_batch_size", "mean_with_sample_weight"):
        rows = [(np.arange(4) < k).astype(int) for k in range(5)]
        mean = keras_loss(SCE, from_logits=True, reduction=reduction)
        means = [float(mean(y, z, sample_weight=np.where(y, w, 1.0))) for y in rows]
        found[reduction] = binom.pmf(np.arange(5), 4, p) @ means
    meant = found["sum_over_batch_size"] / (1 - p + w * p)
    assert found["mean_with_sample_weight"] - meant == pytest.approx(biased(4, p, w), abs=1e-5)
    for row in ("keras-reductions", "keras-class-weight"):
        assert behaviours.get(row).instead.startswith("as it is in training;")


def means(z: Array, y: Array, w: Array) -> list[tuple[float, Array]]:
    """Weighted mean and gradient, of class indices and of the same labels one-hot."""
    leaf, labels, by_class = torch.from_numpy(z).requires_grad_(), torch.from_numpy(y), torch.from_numpy(w)
    targets = labels, F.one_hot(labels, z.shape[1]).double()
    losses = [CE(leaf, t, weight=by_class) for t in targets]
    return [(loss.item(), torch.autograd.grad(loss, leaf)[0].numpy()) for loss in losses]


@claim(
    "07",
    "For one fixed batch under plain gradient descent ... ratio",
    "$\\mathcal L_w$ of a single row is $\\ell_n$",
    on=lambda: ((*case, case[2][case[1]].mean()) for case in weighted()),
    but_not={"one ratio for two batches": (np.eye(2), np.array([0, 1]), np.array([1.0, 20.0]), 1.0)},
)
def test_one_batch_has_one_ratio(z: Array, y: Array, w: Array, ratio: float) -> None:
    (mean, one), (by_n, other) = means(z, y, w)
    assert (mean, by_n) == pytest.approx(
        (by_n / ratio, xent.cross_entropy(z, y, weight=w, reduction="sum") / len(y))
    )
    np.testing.assert_allclose(other, ratio * one, rtol=1e-9, atol=1e-15)


@claim(
    "07",
    "this ratio is a factor on the learning rate.",
    on=["SGD"],
    but_not={name: name for name in ("Adam", "AdamW", "decay")},
)
def test_a_factor_is_a_learning_rate(name: str) -> None:
    """Two steps: with seven times the loss, or with seven times the rate."""
    found = []
    for scale, rate in ((7, 0.01), (1, 0.07)):
        leaf = torch.ones(3, dtype=torch.float64, requires_grad=True)
        taken = optimisers(rate)[name]([leaf])
        for _ in range(2):
            taken.zero_grad()
            (scale * (leaf**2).sum() / 2).backward()
            taken.step()
        found.append(leaf.detach())
    torch.testing.assert_close(*found, rtol=1e-6, atol=0)


test_a_softmax_too_many = claim(
    "07",
    "In PyTorch, one softmax too many raises no error. ... 1.461 for ten classes.",
    on=[("torch-double-softmax", f"perfect, K={K}", math.log(math.e + K - 1) - 1) for K in (2, 10, 1000)],
    but_not={"the loss of a perfect answer": ("torch-double-softmax", "perfect, K=10", 0.0)},
)(shows)


def pairs() -> Iterator[dict[str, Any]]:
    for what, z, y in batches(rng(6)):
        if "any" in what or "wrong" in what:
            yield {"z": z, "y": y}
            yield {"z": z, "y": y, "reduction": "sum", "weight": dict(weights(rng(6), z.shape[1]))["zeros"]}
    z, y = SEQUENCES
    for reduction in ("mean", "sum", "none"):
        yield from ({"z": z, "y": y, "reduction": reduction, "weight": w} for w in (None, np.arange(5.0)))


SEQUENCES = rng(6).normal(size=(6, 5, 7)), rng(6).integers(0, 5, (6, 7))
SEQUENCES[1][0, 0] = -100


@claim(
    "07",
    "for class indices, without label smoothing or autocast, this pair *is*",
    on=pairs,
    but_not={
        "label smoothing": {"z": SEQUENCES[0], "y": SEQUENCES[1], "label_smoothing": 0.1},
        "autocast": {"z": SEQUENCES[0], "y": SEQUENCES[1], "autocast": True},
        "no class indices": {"z": SEQUENCES[0], "y": xent.softmax(SEQUENCES[0], axis=1)},
    },
)
def test_the_pair_is_cross_entropy(
    z: Array, y: Array, reduction: str = "mean", weight: Any = None, autocast: bool = False, **options: Any
) -> None:
    """The loss and its gradient."""
    leaf, labels = (
        torch.from_numpy(z).to(torch.bfloat16 if autocast else torch.float64).requires_grad_(),
        torch.tensor(y),
    )
    w = None if weight is None else torch.from_numpy(weight)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        try:
            pair = torch.nn.NLLLoss(w, reduction=reduction)(torch.nn.LogSoftmax(1)(leaf), labels)
        except RuntimeError as error:
            raise AssertionError from error
        one = torch.nn.CrossEntropyLoss(w, reduction=reduction, **options)(leaf, labels)
    close: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12, "equal_nan": True}
    torch.testing.assert_close(pair, one, **close)
    torch.testing.assert_close(*(torch.autograd.grad(v.sum(), leaf)[0] for v in (pair, one)), **close)


@claim(
    "07",
    "because a second `log_softmax` adds nothing but",
    on=[(torch.log_softmax, name, k) for name in DIGITS for k in (2, 10, 1000)],
    but_not={"a softmax": (torch.softmax, "float64", 10)},
)
def test_a_second_log_softmax(second: Callable[..., torch.Tensor], name: str, classes: int) -> None:
    z = torch.from_numpy(3 * rng(6).normal(size=(20, classes))).to(getattr(torch, name))
    log_p = z.log_softmax(1)
    assert ((second(log_p, 1) - log_p).abs() <= 4 * 2.0 ** -DIGITS[name] * (1 + log_p.abs())).all()


def kernel(labels: Array, z: Array) -> Array:
    ce = behaviours.tensorflow().nn.softmax_cross_entropy_with_logits
    return tf_gradient(lambda x: ce(labels=labels, logits=x), z)


def torchs(labels: Array, z: Array) -> Array:
    leaf = torch.from_numpy(z).requires_grad_()
    CE(leaf, torch.from_numpy(labels), reduction="sum").backward()
    assert leaf.grad is not None
    return leaf.grad.numpy()


@claim(
    "07",
    "TensorFlow's default kernel returns $p_k - y_k$ whatever",
    "TensorFlow's default gradient is $p - y$ even ... sum to one",
    on=lambda: [(kernel, k, factor) for k in (2, 3, 50) for factor in (0.0, 0.5, 2.0)],
    but_not={"PyTorch's, which is the loss's own": (torchs, 3, 2.0)},
)
@pytest.mark.erratum("1.14", "holds")
def test_a_gradient_for_labels_that_do_not_sum_to_one(
    of: Callable[..., Array], classes: int, factor: float
) -> None:
    """It is the loss's own if rows that sum to one are weighed, and not their labels."""
    g = rng(7)
    z, labels = 3 * g.normal(size=(8, classes)), factor * g.dirichlet(np.ones(classes), 8)
    p, own = xent.softmax(z), factor * xent.softmax(z) - labels
    np.testing.assert_allclose(of(labels, z), p - labels, atol=1e-12)
    np.testing.assert_allclose(torchs(labels, z), own, atol=1e-12)
    if factor:
        np.testing.assert_allclose(factor * of(labels / factor, z), own, atol=1e-12)


def is_lost(slope: float) -> bool:
    return -0.97 < slope < 0


test_the_binary_loss_loses_its_gradient = claim(
    "07",
    "PyTorch's `binary_cross_entropy` loses its gradient",
    on=[
        ("torch-bce-gradient", f"gradient at {z}, {kind}", is_lost)
        for z in (-28, -30, -40)
        for kind in ("float32", "float64")
    ],
    but_not={"a logit above": ("torch-bce-gradient", "gradient at -20, float64", is_lost)},
)(shows)


test_clipped_probabilities = claim(
    "07",
    "Probabilities beyond Keras's clip have almost no gradient.",
    "Beyond it, the model learns next to nothing",
    on=[("keras-clip-gradient", "probabilities, gradient", 0.0)],
    but_not={"from logits": ("keras-clip-gradient", "logits, gradient", 0.0)},
)(shows)


@claim(
    "07",
    "the second run is the third one in disguise",
    on=[(True, k, rate) for k, rate in ((2, 0.05), (4, 0.2), (10, 0.4))],
    but_not={"no zero rows": (False, 4, 0.3)},
)
def test_zero_rows_are_label_smoothing_by_a_half(padding: bool, classes: int, rate: float) -> None:
    """The weights of both runs, by TensorFlow's own gradient."""
    x, t = rng(8).normal(size=(30, 3)), np.eye(classes)[rng(8).integers(0, classes, 30)]
    features, labels = (np.vstack([x, x]), np.vstack([t, 0 * t])) if padding else (x, t)
    padded, smoothed = np.zeros((2, 3, classes))
    for _ in range(50):
        padded = padded - rate / 30 * features.T @ kernel(labels, features @ padded)
        smoothed = smoothed - 2 * rate / 30 * x.T @ (xent.softmax(x @ smoothed) - (0.5 * t + 0.5 / classes))
    np.testing.assert_allclose(xent.softmax(x @ padded), xent.softmax(x @ smoothed), atol=1e-10)


@claim(
    "07",
    "Under gradient descent on a linear layer, the term 1/K ... (Hidden layers would feel it.)",
    on=[False],
    but_not={"a hidden layer": True},
)
def test_a_common_gradient_changes_no_probability(hidden: bool) -> None:
    x, top = torch.from_numpy(rng(8).normal(size=(9, 3))), torch.nn.Linear(3, 4).double()
    net = torch.nn.Sequential(torch.nn.Linear(3, 3).double(), torch.nn.Tanh(), top) if hidden else top
    before = net(x)
    before.backward(torch.full_like(before, 0.25))
    torch.optim.SGD(net.parameters(), lr=0.5).step()
    torch.testing.assert_close(net(x).softmax(1), before.softmax(1), rtol=1e-9, atol=1e-12)


class Pooled(torch.nn.Module):
    """A mean over the tokens that count, and a layer: the net that meets a row without tokens."""

    def __init__(self, repair: str = "") -> None:
        super().__init__()
        self.table, self.last, self.repair = torch.nn.Embedding(20, 4), torch.nn.Linear(4, 3), repair

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        count = mask.sum(1, keepdim=True)
        count = count.clamp(min=1) if self.repair == "guarded" else count
        return self.last((self.table(ids) * mask[..., None]).sum(1) / count)


def a_nan_row(g: Draw, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token ids, their mask with a row of none, and labels that ignore this row."""
    mask = torch.from_numpy((g.random((rows, 5)) < 0.7).astype("f4"))
    mask[:, 0] = 1
    mask[int(g.integers(rows))] = 0
    y = torch.from_numpy(g.integers(0, 3, rows))
    y[mask.sum(1) == 0] = -100
    return torch.from_numpy(g.integers(0, 20, (rows, 5))), mask, y


def late(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return CE(z[y != -100], y[y != -100])


def masked(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (CE(z, y.clamp(min=0), reduction="none") * (y != -100)).sum() / (y != -100).sum()


def ours(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return xent.torch.cross_entropy(z, y, ignore_index=-100)


NEAR, EARLY, LATE = (True, False, False), (True, True, True), (True, True, False)


@claim(
    "07",
    "In PyTorch, an ignored row that contains `nan`",
    "Repair the division that produced it, or remove such rows ... the layers;",
    "if the layer's input contains `nan` too, dropping them",
    on=[
        (loss, repair, finite, n)
        for n in (2, 5, 20)
        for loss, repair, finite in (
            *((CE, "", NEAR), (CE, "guarded", EARLY), (CE, "before the layers", EARLY)),
            *((late, "", LATE), (ours, "", LATE)),
        )
    ],
    but_not={
        **{f"{loss.__name__} as a remedy": (loss, "", EARLY, 5) for loss in (late, ours, masked)},
        "a mask, for the logits": (masked, "", LATE, 5),
    },
)
def test_nan_in_an_ignored_row(loss: Callable[..., torch.Tensor], repair: str, finite: Any, n: int) -> None:
    """Whether the loss, the gradient of the logits and those of all parameters are finite."""
    ids, mask, y = a_nan_row(rng(n), n)
    net, rows = Pooled(repair), (mask.sum(1) > 0) | (repair != "before the layers")
    z = net(ids[rows], mask[rows])
    value = loss(z, y[rows])
    (slope,) = torch.autograd.grad(value, z, retain_graph=True)
    value.backward()
    found = [value, slope, torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])]
    assert tuple(bool(t.isfinite().all()) for t in found) == finite


@claim(
    "07",
    "After one step of SGD or Adam, every weight",
    on=lambda: [(optimiser, n) for optimiser in optimisers().values() for n in (2, 20)],
    but_not={
        "a guarded division": (lambda p: optimisers()["Adam"](p), 5, "guarded"),
        "Rprop, for which the sign of nan is zero": (torch.optim.Rprop, 5),
    },
)
def test_one_step_after_a_nan_row(optimiser: Callable[[Any], Any], n: int, repair: str = "") -> None:
    ids, mask, y = a_nan_row(rng(10), n)
    net = Pooled(repair)
    taken, loss = optimiser(net.parameters()), CE(net(ids, mask), y)
    loss.backward()
    taken.step()
    assert loss.isfinite() and all(bool(p.isnan().all()) for p in net.last.parameters())
    assert net.last(torch.randn(5, 4)).isnan().all()


test_a_swap_gives_a_number = claim(
    "07",
    "After a swap, with one-hot labels in floating point",
    on=[(f"{library}-argument-order", "swapped", lambda loss: loss > 2) for library in ("torch", "keras")],
    but_not={"integers, as F.one_hot makes them": ("torch-target-dtype", "int64 one-hot", np.isfinite)},
)(shows)


@claim(
    "07",
    "Except in float16, its backward pass divides by",
    on=[name for name in DIGITS if name != "float16"],
    but_not={"float16": "float16"},
)
def test_the_guard_of_the_binary_loss(name: str) -> None:
    """Logits from -40 to 15, both labels, against the formula."""
    dtype = getattr(torch, name)
    z = torch.from_numpy(rng(19).uniform(-40, 15, 50)).to(dtype).requires_grad_()
    p = z.detach().sigmoid()
    spread = (p * (1 - p)).double()
    for label in (0.0, 1.0):
        loss = F.binary_cross_entropy(z.sigmoid(), torch.full_like(z, label), reduction="sum")
        seen = torch.autograd.grad(loss, z)[0].double()
        right = (p.double() - label) * spread / spread.clamp(min=1e-12)
        np.testing.assert_allclose(seen, right, atol=16 * torch.finfo(dtype).eps)


@claim(
    "07",
    "For the label 1 and a sigmoid in float64 its loss",
    on=[(torch.float64, z, 1) for z in (*np.linspace(-99.99, 30, 50),)],
    but_not={
        "a logit beyond": (torch.float64, -101, 1),
        "float32": (torch.float32, -95, 1),
        "the label 0": (torch.float64, 50, 0),
    },
)
def test_the_reach_of_the_binary_loss(dtype: torch.dtype, logit: float, label: float) -> None:
    q = torch.tensor([logit], dtype=dtype).sigmoid()
    true = float(np.logaddexp(0, logit) - label * logit)
    assert F.binary_cross_entropy(q, torch.full_like(q, label)).item() == pytest.approx(
        true, rel=1e-9, abs=1e-13
    )


AXES = {
    "(N,)": ((-1,), (-1,)),
    "(N, 1)": ((-1, 1), (-1, 1)),
    "labels": ((-1, 1), (-1,)),
    "predictions": ((-1,), (-1, 1)),
}


@claim(
    "07",
    "For labels and predictions of the shape (N,), Keras's",
    "Every row counts with the mean weight.",
    "Without weights the default mean is the right one.",
    on=lambda: [
        (a, w) for a in AXES for n in (1, 2, 5, 33) for w in (*dict(weights(rng(13), n)).values(), np.ones(n))
    ],
    but_not={"a mean weight in spite of the axis": ("(N, 1)", np.arange(5.0), True)},
)
def test_keras_binary_loss_with_one_axis(axes: str, w: Array, flat: bool | None = None) -> None:
    """In the loss, and in the gradient of a layer's weights."""
    g, bce, n = rng(13), keras_loss("BinaryCrossentropy"), len(w)
    x, y, v = g.normal(size=(n, 2)), (np.arange(n) % 2).astype(float), np.array([0.3, -0.8])
    own = np.full(n, w.mean()) if (axes == "(N,)" if flat is None else flat) else w
    q, (of_y, of_q), tf = xent.sigmoid(x @ v), AXES[axes], behaviours.tensorflow()
    each = -np.log(np.where(y == 1, q, 1 - q))
    loss = lambda v: bce(y.reshape(of_y), tf.reshape(tf.sigmoid(x @ v[:, None]), of_q), sample_weight=w)  # noqa: E731
    assert float(loss(v)) == pytest.approx((each * own).mean(), rel=1e-4, abs=1e-6)
    np.testing.assert_allclose(
        tf_gradient(loss, v), x.T @ (own * (q - y)) / n, rtol=1e-3, atol=1e-5 * (1 + w.max())
    )


test_rows_that_do_not_sum_to_one = claim(
    "07",
    "Since release 1.5 it has only warned. ... Keras's `CategoricalCrossentropy` normalises such rows.",
    on=[
        ("sklearn-row-sums", "loss", -np.log([0.2, 0.3]).mean()),
        ("sklearn-row-sums", "warnings", bool),
        ("keras-epsilon", "rows that sum to .6", math.log(3)),
    ],
    but_not={
        "scikit-learn normalises": ("sklearn-row-sums", "loss", math.log(2)),
        "Keras takes the row as it is": ("keras-epsilon", "rows that sum to .6", -math.log(0.2)),
    },
)(shows)


def zeros(
    share: float, classes: int, dtype: torch.dtype = torch.float16, hot: bool = False, n: int = 0
) -> Any:
    """Logits of zero, whose losses add up to a share of the limit, and their labels."""
    n = n or max(1, int(share * 65_520 / math.log(classes)))
    y = torch.zeros(n, dtype=torch.long)
    return torch.zeros(n, classes, dtype=dtype, requires_grad=True), F.one_hot(y, classes).to(
        dtype
    ) if hot else y


@claim(
    "07",
    "On a CPU, PyTorch's `cross_entropy` keeps the sum",
    "Label smoothing of class indices sums over all classes",
    on=[*((1.05, k) for k in (2, 3, 20)), *((0.6, k, 0.1) for k in (2, 3, 20)), (0, 10_000, 0.1)],
    but_not={
        "fewer": (0.9, 3),
        "bfloat16": (1.05, 3, 0.0, torch.bfloat16),
        "one-hot rows, whose smoothed losses are added once": (0.6, 3, 0.1, torch.float16, True),
        "a row of 10,000 classes without smoothing": (0, 10_000),
    },
)
def test_a_float16_sum_overflows_on_a_cpu(
    share: float, classes: int, smoothing: float = 0, *kind: Any
) -> None:
    assert CE(*zeros(share, classes, *kind), reduction="sum", label_smoothing=smoothing).isinf()
    few = zeros(0, 3, n=59_520)  # each addition rounds: of three classes a sum below the limit is infinite
    assert CE(*few, reduction="none").double().sum() < 65_504 and CE(*few, reduction="sum").isinf()


@claim(
    "07",
    "from 65,520 class indices on, the count overflows too",
    on=[(n, 10, torch.nan) for n in (65_520, 65_536, 70_000)] + [(65_520, 2, 0.0)],
    but_not={
        "a count below": (65_519, 10, torch.nan),
        "one-hot rows, which are not counted in float16": (65_536, 10, torch.nan, True),
        "nan where the sum is finite": (65_520, 2, torch.nan),
    },
)
def test_a_float16_count_overflows(n: int, classes: int, mean: float, hot: bool = False) -> None:
    z, y = zeros(0, classes, n=n, hot=hot)
    loss = CE(z, y)
    assert not torch.autograd.grad(loss, z)[0].any()
    torch.testing.assert_close(loss.item(), mean, equal_nan=True)


@claim(
    "07",
    "Under autocast the sum runs in float32.",
    on=[
        (True, eps, shape, soft)
        for eps in (0, 0.1)
        for shape in ((5, 3), (5, 3, 4))
        for soft in (False, True)
    ],
    but_not={"no autocast": (False, 0, (5, 3), False)},
)
def test_the_sum_under_autocast(enabled: bool, eps: float, shape: tuple[int, ...], soft: bool) -> None:
    """A GPU's format, traced without a GPU; on a CPU the sum of 70,000 logits of zero stays finite."""
    torch.set_autocast_enabled("cuda", enabled)  # torch.autocast would find no GPU
    try:
        with FakeTensorMode():
            z = torch.empty(shape, dtype=torch.float16, device="cuda")
            y = z if soft else torch.zeros(shape[:1] + shape[2:], dtype=torch.long, device="cuda")
            assert CE(z, y, label_smoothing=eps).dtype == torch.float32
    finally:
        torch.set_autocast_enabled("cuda", False)
    with torch.autocast("cpu", torch.float16, enabled=enabled):
        assert CE(*zeros(0, 3, n=70_000)).item() == pytest.approx(math.log(3), rel=1e-5)


SCOPE = "torch-ignore-index-scope"
test_labels_out_of_range_on_a_cpu = claim(
    "07",
    "On a CPU, PyTorch raises an error for a label that is out of range",
    on=[(SCOPE, "label -1, nothing said", "IndexError"), (SCOPE, "label -100, nothing said", LOSSES[1])],
    but_not={"the label to ignore": (SCOPE, "label 255, ignored", "IndexError")},
)(shows)


test_tensorflow_labels_out_of_range = claim(
    "07",
    "TensorFlow raises an error on a CPU; compiled by XLA",
    on=[
        ("tensorflow-bad-labels", "eager", "InvalidArg"),
        ("tensorflow-bad-labels", "jit_compile=True", np.nan),
    ],
    but_not={"an error under XLA": ("tensorflow-bad-labels", "jit_compile=True", "InvalidArg")},
)(shows)


test_text_labels_are_sorted_as_text = claim(
    "07",
    "so perfect columns in numerical order can cost the largest",
    on=[("sklearn-lexicographic", "perfect, labels 2, 9, 10 as text", 52 * math.log(2))],
    but_not={"numbers": ("sklearn-lexicographic", "the same as numbers", 52 * math.log(2))},
)(shows)


@pytest.mark.slow
@claim(
    "07",
    "A binary loss after a softmax takes *sigmoids*",
    on=[("softmax", 2), ("softmax", 5)],
    but_not={
        "a sigmoid": ("sigmoid", 3),
        "two logits of zero, of which both make one half": ("softmax", 2, "zeros"),
        "the model's own output, which remembers": ("softmax", 3, "glorot_uniform", True),
    },
)
def test_a_binary_loss_behind_a_softmax(
    act: str, k: int, kernel: str = "glorot_uniform", own: bool = False
) -> None:
    keras, x, y = behaviours.keras(), rng(17).normal(size=(6, 3)), np.eye(k)[np.arange(6) % k]
    start = keras.Input((3,))
    logits = keras.layers.Dense(k, kernel_initializer=kernel)(start)
    model = keras.Model(start, keras.layers.Activation(act)(logits))
    model.compile(loss=(loss := keras_loss("BinaryCrossentropy")))
    z, p = (np.asarray(m.predict(x, verbose=0), float) for m in (keras.Model(start, logits), model))
    evaluated, called = model.evaluate(x, y, verbose=0), float(loss(y, model(x) if own else p))
    assert evaluated == pytest.approx((np.logaddexp(0, z) - y * z).mean(), rel=1e-5)
    assert abs(evaluated - called) > 1e-3


@pytest.mark.slow
@claim(
    "07",
    "On TensorFlow, a final softmax layer *remembers its logits*",
    "Put a `Reshape` after it, give it a dtype",
    on=lambda: [
        (kind, k, a, b, after, ignored)
        for kind in (SCE, CCE)
        for k in (2, 10)
        for a in DIGITS
        for b in DIGITS
        for after, ignored in ((True, None), (False, None), (False, -1), (False, 0))
        if (after or a != b if ignored is None else a == b and kind == SCE)
    ],
    but_not={
        f"the loss's own dtype, {a}, {kind}": (kind, 3, a, a, False, None)
        for a in DIGITS
        for kind in (SCE, CCE)
    },
)
def test_what_makes_a_softmax_forget(
    kind: str, k: int, a: str, b: str, after: bool, ignored: int | None
) -> None:
    """Formats of the softmax and of the loss, eagerly and in a graph: the loss is 16 and not 30."""
    keras, tf = behaviours.keras(), behaviours.tensorflow()
    reshape = [keras.layers.Reshape((k,), dtype=a)] if after else []
    model = keras.Sequential([keras.layers.Softmax(dtype=a), *reshape])
    z, y = tf.constant(30 * one_hot([0], k), a), np.array([1]) if kind == SCE else one_hot([1], k)
    loss = keras_loss(kind, dtype=b, **({} if ignored is None else {"ignore_class": ignored}))
    value = (tf.function if b == "float32" else lambda f: f)(lambda z: loss(y, model(z)))(z)
    assert float(value) == pytest.approx(-math.log(1e-7), rel=0.02)


MASKED = [(k, name, r) for k in (3, 10, 1000) for name in DIGITS for r in ("mean", "sum")]


@claim(
    "07",
    "Its gradient is right all the same, so training goes on",
    "With −10⁹ instead of −∞ there is no `nan`",
    on=MASKED,
    but_not={"indices": (3, "float64", "sum", True), "a mask of -1e9": (3, "float64", "sum", False, -1e9)},
)
def test_a_masked_class_under_a_soft_target(
    classes: int, name: str, reduction: str, index: bool = False, mask: float = -np.inf
) -> None:
    """Class weights among the inputs; the gradient against that in float64."""
    g, dtype = rng(18), getattr(torch, name)
    z, w = g.normal(size=(5, classes)), g.uniform(0.5, 2, classes)
    z[:, g.random(classes) < 0.3] = mask
    z[:, 0], z[:, 1] = mask, 0.0
    t = np.where(z < -100, 0.0, g.dirichlet(np.ones(classes), 5))
    t = one_hot(np.ones(5, int), classes) if index else t / t.sum(1, keepdims=True)
    leaf, soft = torch.from_numpy(z).to(dtype).requires_grad_(), torch.from_numpy(t).to(dtype)
    loss = CE(leaf, soft.argmax(1) if index else soft, torch.from_numpy(w).to(dtype), reduction=reduction)
    right = ((w * t).sum(1, keepdims=True) * xent.softmax(z) - w * t) / (5 if reduction == "mean" else 1)
    seen = torch.autograd.grad(loss, leaf)[0].double()
    np.testing.assert_allclose(seen, right, atol=16 * w.max() * 2.0 ** -DIGITS[name])
    assert loss.isnan()
    low = torch.from_numpy(np.maximum(z, -1e9)).to(dtype)
    assert CE(low, soft).isnan() == (name == "float16")
