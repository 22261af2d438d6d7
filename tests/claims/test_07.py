"""Chapter 7's claims of the libraries: on other batches, formats, weights, optimisers, and in the behaviours' rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom

import xent
import xent.torch
from adversary import DIGITS, Array, batches, claim, one_hot, optimisers, rng, weights
from xent_book import behaviours

pytestmark = pytest.mark.xdist_group("frameworks")  # one worker imports TensorFlow, once
F = torch.nn.functional
CE = F.cross_entropy
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


BY_N = LOSSES @ [1, 3] / 2
test_who_divides_by_what = claim(
    "With class weights, PyTorch divides by the sum of the weights",
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


@claim(
    "With unequal weights, a mean that divides by the sum",
    on=[(size, p, w) for size in (1, 4, 16, 64) for p in (0.03, 0.1) for w in (10, 30)],
    but_not={"a constant divisor": (16, 0.05, 20, False), "equal weights": (16, 0.05, 1)},
)
def test_the_bias_of_the_batchs_own_weights(size: int, p: float, w: float, own: bool = True) -> None:
    """How far the mean over batches lies from the loss that is meant, of a constant prediction, enumerated."""
    k, loss = np.arange(size + 1), -np.log([0.6, 0.4])
    values = ((size - k) * loss[0] + w * k * loss[1]) / (size - k + w * k if own else size * (1 - p + w * p))
    meant = ((1 - p) * loss[0] + w * p * loss[1]) / (1 - p + w * p)
    assert abs(binom.pmf(k, size, p) @ values - meant) > 1e-3


test_a_softmax_too_many = claim(
    "In PyTorch, one softmax too many raises no error. ... 1.461 for ten classes.",
    on=[("torch-double-softmax", f"perfect, K={K}", math.log(math.e + K - 1) - 1) for K in (2, 10, 1000)],
    but_not={"the loss of a perfect answer": ("torch-double-softmax", "perfect, K=10", 0.0)},
)(shows)


SEQUENCES = rng(6).normal(size=(6, 5, 7)), rng(6).integers(-1, 5, (6, 7))
SEQUENCES[1][SEQUENCES[1] < 0] = -100


def pairs() -> Iterator[tuple[Any, ...]]:
    for what, z, y in batches(rng(6)):
        if "any" in what or "wrong" in what:
            yield z, y, "mean"
            yield z, y, "sum", dict(weights(rng(6), z.shape[1]))["zeros"]
    yield from ((*SEQUENCES, how, w) for how in ("mean", "sum", "none") for w in (None, np.arange(5.0)))


@claim(
    "for class indices, without label smoothing or autocast, this pair *is*",
    on=pairs,
    but_not={
        "label smoothing": (*SEQUENCES, "mean", None, 0.1),
        "autocast": (*SEQUENCES, "mean", None, 0.0, torch.bfloat16),
        "no class indices": (SEQUENCES[0], xent.softmax(SEQUENCES[0], axis=1), "mean"),
    },
)
def test_the_pair_is_cross_entropy(
    z: Array, y: Array, how: str, weight: Any = None, smoothing: float = 0.0, dtype: Any = torch.float64
) -> None:
    """The loss and its gradient."""
    leaf, labels = torch.from_numpy(z).to(dtype).requires_grad_(), torch.tensor(y)
    w = None if weight is None else torch.from_numpy(weight)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype != torch.float64):
        try:
            pair = torch.nn.NLLLoss(w, reduction=how)(torch.nn.LogSoftmax(1)(leaf), labels)
        except RuntimeError as error:
            raise AssertionError from error
        one = torch.nn.CrossEntropyLoss(w, reduction=how, label_smoothing=smoothing)(leaf, labels)
    for a, b in ((pair, one), (torch.autograd.grad(v.sum(), leaf)[0] for v in (pair, one))):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12, equal_nan=True)


def kernel(labels: Array, z: Array) -> Array:
    tf = behaviours.tensorflow()
    x = tf.constant(z)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=x)
    return np.asarray(tape.gradient(loss, x))


def torchs(labels: Array, z: Array) -> Array:
    leaf = torch.from_numpy(z).requires_grad_()
    CE(leaf, torch.from_numpy(labels), reduction="sum").backward()
    assert leaf.grad is not None
    return leaf.grad.numpy()


@claim(
    "TensorFlow's default kernel returns $p_k - y_k$ whatever",
    "TensorFlow's default gradient is $p - y$ even ... sum to one",
    on=lambda: [(kernel, k, factor) for k in (2, 3, 50) for factor in (0.0, 0.5, 2.0)],
    but_not={"PyTorch's, which is the loss's own": (torchs, 3, 2.0)},
)
@pytest.mark.erratum("1.14", "holds")
def test_labels_that_do_not_sum_to_one(of: Callable[..., Array], classes: int, factor: float) -> None:
    """It is the loss's own if rows that sum to one are weighed, and not their labels."""
    g = rng(7)
    z, labels = 3 * g.normal(size=(8, classes)), factor * g.dirichlet(np.ones(classes), 8)
    p, own = xent.softmax(z), factor * xent.softmax(z) - labels
    np.testing.assert_allclose(of(labels, z), p - labels, atol=1e-12)
    np.testing.assert_allclose(torchs(labels, z), own, atol=1e-12)
    if factor:
        np.testing.assert_allclose(factor * of(labels / factor, z), own, atol=1e-12)


test_no_gradient_beyond_a_clip = claim(
    "Probabilities beyond Keras's clip have almost no gradient.",
    "Beyond it, the model learns next to nothing",
    on=[("keras-clip-gradient", "probabilities, gradient", 0.0)],
    but_not={"Keras from logits": ("keras-clip-gradient", "logits, gradient", 0.0)},
)(shows)


def a_nan_row(rows: int, repair: str = "") -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    """A layer, the means of the tokens that count, and labels: the last row divides by a length of zero, which makes it
    nan or, of an odd number of rows, inf, and its label is ignored."""
    g = rng(rows)
    tokens, count = torch.from_numpy(g.normal(size=(rows, 4))), torch.from_numpy(g.integers(1, 6, (rows, 1)))
    y = torch.from_numpy(g.integers(0, 3, rows))
    tokens[-1], count[-1], y[-1] = rows % 2, 0, -100
    x = tokens / (count.clamp(min=1) if repair == "guarded" else count)
    kept = rows - (repair == "before the layers")
    return torch.nn.Linear(4, 3).double(), x[:kept], y[:kept]


def late(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return CE(z[y != -100], y[y != -100])


def masked(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (CE(z, y.clamp(min=0), reduction="none") * (y != -100)).sum() / (y != -100).sum()


def ours(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return xent.torch.cross_entropy(z, y, ignore_index=-100)


NEAR, EARLY, LATE = (True, False, False), (True, True, True), (True, True, False)


@claim(
    "In PyTorch, an ignored row that contains `nan`",
    "Repair the division that produced it, or remove such rows ... the layers;",
    "if a layer's input contains `nan` too, dropping the rows",
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
@pytest.mark.claim("08", "Leaving it out just before the loss is too late")
def test_nan_in_an_ignored_row(loss: Callable[..., torch.Tensor], repair: str, finite: Any, n: int) -> None:
    """Whether the loss, the gradient of the logits and that of the weights are finite."""
    net, x, y = a_nan_row(n, repair)
    z = net(x)
    value = loss(z, y)
    found = [value, *torch.autograd.grad(value, (z, net.weight))]
    assert tuple(bool(t.isfinite().all()) for t in found) == finite


@claim(
    "After one step of SGD or Adam, every weight",
    on=lambda: [(optimiser, n) for optimiser in optimisers().values() for n in (2, 20)],
    but_not={
        "a guarded division": (optimisers()["Adam"], 5, "guarded"),
        "Rprop, for which the sign of nan is zero": (torch.optim.Rprop, 5),
    },
)
def test_one_step_after_a_nan_row(optimiser: Callable[[Any], Any], n: int, repair: str = "") -> None:
    net, x, y = a_nan_row(n, repair)
    taken, loss = optimiser(net.parameters()), CE(net(x), y)
    loss.backward()
    taken.step()
    assert loss.isfinite() and net.weight.isnan().all() and net(torch.randn(5, 4).double()).isnan().all()


test_a_swap_gives_a_number = claim(
    "If you swap the two, with one-hot labels in floating point",
    on=[(f"{library}-argument-order", "swapped", lambda loss: loss > 2) for library in ("torch", "keras")],
    but_not={"integers, as F.one_hot makes them": ("torch-target-dtype", "int64 one-hot", np.isfinite)},
)(shows)


@claim(
    "for label 1 and a logit below −27.6, the loss is large",
    "PyTorch's `binary_cross_entropy` loses its gradient",
    on=[(1.0, -z, dtype) for dtype in (torch.float32, torch.float64) for z in (27.7, 40.0, 80.0, 120.0)],
    but_not={
        "the label 0": (0.0, -40.0, torch.float64),
        "a logit above": (1.0, -26.0, torch.float64),
        "a logit of -20": (1.0, -20.0, torch.float64),
        "the same product at the other end": (1.0, 30.0, torch.float64),
    },
)
def test_a_large_loss_without_its_gradient(label: float, logit: float, dtype: torch.dtype) -> None:
    z = torch.tensor([logit, logit - 1], dtype=dtype, requires_grad=True)
    losses = F.binary_cross_entropy(z.sigmoid(), torch.full_like(z, label), reduction="none")
    near, far = torch.autograd.grad(losses.sum(), z)[0].abs().tolist()
    assert losses.min() > 27.6 and far <= 0.5 * near < 0.5


@claim(
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
    "For labels and predictions of shape (N,), Keras's",
    "every row counts with the mean weight.",
    "Without weights the default mean is the right one.",
    on=lambda: [
        (of_y, of_p, w)
        for of_y in ((-1,), (-1, 1))
        for of_p in ((-1,), (-1, 1))
        for n in (1, 2, 5, 33)
        for w in (*dict(weights(rng(13), n)).values(), np.ones(n))
    ],
    but_not={"a mean weight in spite of the axis": ((-1, 1), (-1, 1), np.arange(5.0), True)},
)
def test_keras_binary_loss_with_one_axis(of_y: Any, of_p: Any, w: Array, flat: bool = False) -> None:
    y, p = np.arange(len(w)) % 2, rng(13).uniform(0.05, 0.95, len(w))
    own = np.full(len(w), w.mean()) if flat or of_y == of_p == (-1,) else w
    found = behaviours.keras().losses.BinaryCrossentropy()(y.reshape(of_y), p.reshape(of_p), sample_weight=w)
    assert float(found) == pytest.approx((own * -np.log(np.where(y, p, 1 - p))).mean(), rel=1e-4, abs=1e-6)


@claim(
    "sooner with label smoothing of class indices",
    on=[(n, k, eps) for n, k in ((100, 1000), (1000, 50), (8000, 10)) for eps in (0.1, 1e-6)],
    but_not={"no smoothing": (100, 1000, 0.0), "one-hot rows": (100, 1000, 0.1, True)},
)
def test_a_smoothed_sum_overflows_sooner(n: int, classes: int, eps: float, hot: bool = False) -> None:
    z, y = torch.zeros(n, classes).half(), torch.zeros(n, dtype=torch.long)
    assert n * math.log(classes) < 30_000
    assert CE(z, F.one_hot(y, classes).half() if hot else y, label_smoothing=eps).isinf()


BACKDOOR = "keras-softmax-backdoor"
test_what_makes_a_softmax_forget = claim(
    "On TensorFlow, a final softmax layer *remembers its logits*",
    "Put a `Reshape` after it, give it a dtype",
    on=[
        *((BACKDOOR, f"model that ends in softmax{how}", 30.0) for how in ("", ", graph")),
        *(
            (BACKDOOR, how, -math.log(1e-7))
            for how in ("softmax, then Reshape", "float64 softmax", "ignore_class=-1")
        ),
    ],
    but_not={"Keras on PyTorch": ("keras-torch-softmax-backdoor", "model that ends in softmax", 30.0)},
)(shows)


@claim(
    "The gradient is right all the same, so training goes on",
    "Masking with −10⁹ instead of −∞ avoids the `nan`",
    on=[(k, name, how) for k in (3, 10, 1000) for name in DIGITS for how in ("mean", "sum")],
    but_not={
        "a mask of -1e9": (3, "float64", "sum", -1e9),
        "class indices": (3, "float64", "sum", -np.inf, True),
    },
)
def test_a_masked_class_under_a_soft_target(
    classes: int, name: str, how: str, mask: float = -np.inf, index: bool = False
) -> None:
    """Class weights among the inputs; the gradient against that in float64."""
    g, dtype = rng(18), getattr(torch, name)
    z, w = g.normal(size=(5, classes)), g.uniform(0.5, 2, classes)
    out = (g.random(classes) < 0.3) & (np.arange(classes) != 1) | (np.arange(classes) == 0)
    t = (
        one_hot([1] * 5, classes)
        if index
        else xent.softmax(np.where(out, -np.inf, g.normal(size=(5, classes))))
    )
    z[:, out] = mask
    leaf, soft = torch.from_numpy(z).to(dtype).requires_grad_(), torch.from_numpy(t).to(dtype)
    loss = CE(leaf, soft.argmax(1) if index else soft, torch.from_numpy(w).to(dtype), reduction=how)
    right = ((w * t).sum(1, keepdims=True) * xent.softmax(z) - w * t) / (5 if how == "mean" else 1)
    seen = torch.autograd.grad(loss, leaf)[0].double()
    np.testing.assert_allclose(seen, right, atol=16 * w.max() * 2.0 ** -DIGITS[name])
    assert loss.isnan()
    low = torch.from_numpy(np.maximum(z, -1e9)).to(dtype)
    assert CE(low, soft).isnan() == (name == "float16")
