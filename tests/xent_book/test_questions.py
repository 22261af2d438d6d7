"""The forty questions of chapter 8: each on the code that its thread shows, reduced to what runs on a processor.

A case is registered under its thread's address. The check of the row has to say yes to what the question has, and what
the row advises has to mend it: the number, the parameters' gradients, or the check's own answer. Run as a program,
this file prints which cases passed when they were first tried on the threads' own code, and which pass now.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss

import xent
import xent.torch
from xent_book import behaviours, symptoms
from xent_book.symptoms import NO, YES

pytestmark = pytest.mark.xdist_group("frameworks")
F, nn = torch.nn.functional, torch.nn
CHAPTER = Path(__file__).parents[2] / "chapters" / "08_which_loss.ipynb"
ROW = re.compile(r"^- \[.+?\]\(symptom-([a-z0-9-]+)\): (.+)$", re.M)
# What the check says of the question's case, and what shows that it is mended.
Case = Callable[[], tuple[Any, Any]]
CASES: dict[str, Case] = {}
# The checks that missed the threads' own code when they first met it.
MISSED_AT_FIRST = ("43814", "keras/issues/126", "41508", "gemma_pytorch", "TinyLlama", "28481", "18600")


def thread(address: str) -> Callable[[Case], Case]:
    """Register a case under the thread whose code it is."""

    def register(case: Case) -> Case:
        CASES[address] = case
        return case

    return register


def close(a: Any, b: Any) -> bool:
    return bool(np.allclose(symptoms.array(a), symptoms.array(b), rtol=1e-5))


def finite(*parameters: Any) -> bool:
    """Whether the gradients are there, and finite."""
    return all(p.grad is not None and bool(p.grad.isfinite().all()) for p in parameters)


def keras() -> Any:
    return behaviours.keras()


@functools.cache
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Images for the questions that are asked about MNIST or CIFAR-10."""
    data = load_digits()
    return torch.tensor(data.data / 16).float(), torch.tensor(data.target).long()


def fitted(model: nn.Module, optimiser: torch.optim.Optimizer, steps: int, rows: slice) -> nn.Module:
    x, y = (v[rows] for v in digits())
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model


# ------------------------------------------------------------------------------------------------ the number is wrong


@thread("https://discuss.pytorch.org/t/cross-entropy-loss-is-not-decreasing/43814")
def stuck() -> tuple[Any, Any]:
    """Adam at a large rate drives the weights behind the ReLUs below zero: the loss stays at 2.30."""

    def after(rate: float) -> tuple[Any, float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 10))
        fitted(model, torch.optim.Adam(model.parameters(), lr=rate), 60, slice(None))
        z = model(digits()[0])
        return symptoms.no_signal(z, inputs=digits()[0]), F.cross_entropy(z, digits()[1]).item()

    (said, cost), (_, mended) = after(3.0), after(0.01)
    assert cost > 2.29
    return said, mended < 0.3


@thread(
    "https://datascience.stackexchange.com/questions/38604/too-low-accuracy-on-mnist-dataset-using-a-neural-network"
)
def minus_55() -> tuple[Any, Any]:
    """Dense(1, sigmoid), binary_crossentropy, and the digits themselves as labels."""
    y, p = np.arange(10.0), np.full((10, 1), 0.9999, "float32")
    assert float(keras().losses.BinaryCrossentropy()(y[:, None], p)) < -20
    sparse = keras().losses.SparseCategoricalCrossentropy(from_logits=True)
    assert float(sparse(y.astype(int), np.eye(10))) > 0
    return symptoms.targets_outside(y), symptoms.targets_outside(np.eye(10)[y.astype(int)])


@thread(
    "https://discuss.tensorflow.org/t/unexpected-value-of-binary-crossentropy-loss-function-in-classifier-network-with-two-outputs/11073"
)
def two_outputs() -> tuple[Any, Any]:
    """Dense(2, softmax) under a binary loss: `evaluate` and the loss function disagree."""
    k, x, t = keras(), np.array([[0.4]]), np.array([[0.0, 1.0]])

    def numbers(loss: Any) -> tuple[float, float, Any]:
        k.utils.set_random_seed(3)
        net = k.Sequential([k.layers.Dense(8, activation="relu"), k.layers.Dense(2, activation="softmax")])
        net.compile(loss=loss)
        p = net.predict(x, verbose=0)
        return net.evaluate(x, t, verbose=0), float(loss(t, p)), p

    binary = k.losses.BinaryCrossentropy()
    evaluated, called, p = numbers(binary)
    assert not np.isclose(evaluated, called, rtol=1e-3)
    evaluated, called, _ = numbers(k.losses.CategoricalCrossentropy())
    return symptoms.binary_loss_of_a_softmax(binary, p), np.isclose(evaluated, called, rtol=1e-5)


@thread("https://github.com/pytorch/pytorch/issues/60928")
def negative_kl() -> tuple[Any, Any]:
    q, p = torch.tensor([[0.1132, 0.5477, 0.3390]]), torch.tensor([[0.1541, 0.0511, 0.0947]])
    kl = nn.KLDivLoss(reduction="batchmean")
    assert F.kl_div(q.log(), p, reduction="none").mean() < 0
    return symptoms.no_distributions(kl, q.log(), p), symptoms.no_distributions(kl, q.log(), p / p.sum())


@thread("https://github.com/keras-team/keras/issues/13747")
def keras_negative_kl() -> tuple[Any, Any]:
    """Sigmoids near one, for a distribution over bins."""
    p = np.full((1, 100), 0.99999, "float32")
    t = np.pad([[0.0131, 0.0586, 0.1099, 0.1449, 0.2362, 0.4373]], ((0, 0), (12, 82))).astype("float32")
    kl = keras().losses.KLDivergence()
    assert float(kl(t, p)) < 0
    return symptoms.no_distributions(kl, p, t), float(kl(t, p / p.sum())) >= 0


@thread("https://github.com/scikit-learn/scikit-learn/issues/24515")
def unnormalised() -> tuple[Any, Any]:
    p = np.array([[0.2, 0.3]])
    return symptoms.rows_do_not_sum(p), symptoms.rows_do_not_sum(p / p.sum(1, keepdims=True))


@thread("https://github.com/scikit-learn/scikit-learn/issues/18523")
def one_label() -> tuple[Any, Any]:
    y, p = [0, 0, 0, 0], np.array([[0.1, 0.9], [0.9, 0.1], [0.8, 0.2], [0.35, 0.65]])
    with pytest.raises(ValueError, match="only one label"):
        log_loss(y, p)
    return symptoms.classes_missing(y, p), close(log_loss(y, p, labels=[0, 1]), -np.log(p[:, 0]).mean())


@thread("https://github.com/keras-team/keras/issues/7563")
def saturated() -> tuple[Any, Any]:
    x, t = np.array([[300.0, 100.0, 100.0], [-100.0, 200.0, 500.0]]), np.array([[1.0, 0, 0], [0, 1.0, 0]])
    of = keras().losses.CategoricalCrossentropy
    assert np.isclose(float(of()(t, xent.softmax(x))), 8.059, atol=1e-2)
    return symptoms.clipped(of()), close(float(of(from_logits=True)(t, x)), 150.0)


@thread("https://github.com/keras-team/keras/issues/6143")
def told_that_it_is_a_softmax() -> tuple[Any, Any]:
    """`from_logits=True` for the output of a softmax."""
    of, x = keras().losses.CategoricalCrossentropy, np.array([[1.0, 0.0], [0.0, 1.0]])
    p = xent.softmax(x)
    assert np.isclose(float(of(from_logits=True)(x, p)), 0.488548, atol=1e-5)
    return symptoms.double_softmax(of(from_logits=True), p), close(
        float(of()(x, p)), xent.soft_cross_entropy(x, x)
    )


@thread("https://github.com/tensorflow/tensorflow/issues/34221")
def no_softmax_in_the_layer() -> tuple[Any, Any]:
    """Dense(10) without a softmax, and a loss by its name."""
    z = np.random.default_rng(0).normal(size=(8, 10)).astype("float32")
    fix = keras().losses.SparseCategoricalCrossentropy(from_logits=True)
    ask = symptoms.logits_as_probabilities
    return ask("sparse_categorical_crossentropy", z), ask(fix, z)


@thread(
    "https://github.com/GeoZcx/A-deeply-supervised-image-fusion-network-for-change-detection-in-remote-sensing-images/issues/1"
)
def two_sigmoids() -> tuple[Any, Any]:
    """The model ends in a sigmoid, and the loss takes one before BCELoss."""

    def loss(p: Any, t: Any) -> Any:
        return F.binary_cross_entropy(p.sigmoid(), t)

    torch.manual_seed(0)
    p = nn.Sequential(nn.Conv2d(3, 1, 3), nn.Sigmoid())(torch.randn(2, 3, 8, 8)).detach()
    return symptoms.double_sigmoid(loss, p), symptoms.double_sigmoid(F.binary_cross_entropy, p)


@thread("https://github.com/keras-team/keras/issues/126")
def one_output() -> tuple[Any, Any]:
    """Dense(1, softmax) for yes and no: the prediction is 1, whatever the weights."""
    x = torch.tensor(
        [[0.0, 0.1], [0.6, 0.8], [0.1, 0.2], [0.9, 0.8], [0.9, 0.7], [0.3, 0.0], [0.2, 0.2], [0.5, 0.9]]
    )
    y = (x.sum(1) > 0.5).float()[:, None]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 1))
    said = symptoms.one_column(nn.MSELoss(), model(x).softmax(1))
    F.mse_loss(model(x).softmax(1), y).backward()
    assert not model[2].weight.grad.any()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(300):
        optimiser.zero_grad()
        F.binary_cross_entropy_with_logits(model(x), y).backward()
        optimiser.step()
    return said, bool(((model(x) > 0) == (y > 0)).all())


# ---------------------------------------------------------------------------------------------------------- nan or inf


@thread("https://github.com/pytorch/pytorch/issues/70348")
def all_ignored() -> tuple[Any, Any]:
    z, y = torch.rand(5, 5, requires_grad=True), torch.tensor([-100] * 5)
    assert nn.CrossEntropyLoss()(z, y).isnan()
    (F.cross_entropy(z, y, reduction="sum") / max(int((y != -100).sum()), 1)).backward()
    return symptoms.nothing_counts(y), finite(z)


@thread("https://github.com/huggingface/trl/issues/6668")
def truncated() -> tuple[Any, Any]:
    """Prompts that are cut at max_length together with their answers."""
    prompt, answer = list(range(40)), list(range(40, 46))
    labels = torch.tensor([([-100] * len(prompt) + answer)[:24]] * 8)
    shorter = torch.tensor([[-100] * 18 + answer] * 8)
    head, x = nn.Linear(4, 46), torch.randn(8, 24, 4)
    F.cross_entropy(head(x).movedim(-1, 1), shorter).backward()
    return symptoms.nothing_counts(labels), finite(head.weight) and symptoms.nothing_counts(shorter) == NO


@thread("https://github.com/pytorch/pytorch/issues/11551")
def ignored_and_infinite() -> tuple[Any, Any]:
    """Logits of -inf where the label is ignored; zeros there, and the gradient is finite."""
    z, y = torch.randn(3, 5), torch.tensor([-100, 1, 2])
    bad = z.clone()
    bad[0] = -torch.inf
    bad.requires_grad_()
    F.cross_entropy(bad, y).backward()
    assert not finite(bad)
    mended = z.where((y != -100)[:, None], 0.0).requires_grad_()
    F.cross_entropy(mended, y).backward()
    return symptoms.nan_where_ignored(bad, y), finite(mended)


@thread("https://github.com/pytorch/pytorch/issues/41508")
def blind_row() -> tuple[Any, Any]:
    """A bucketed mask and one for padding: neither alone leaves a row blind, both together do."""
    inf = -torch.inf
    padding = torch.tensor([[False, False, False], [False, True, True]])
    bucket = torch.tensor([[0.0, inf, inf], [0.0, 0.0, inf], [inf, 0.0, 0.0]])
    own = torch.tensor(
        [[0.0, inf, inf], [0.0, 0.0, inf], [0.0, 0.0, 0.0]]
    )  # the last one sees the first as well
    gradients = []
    for mask in (bucket, own):
        torch.manual_seed(0)
        layer, x = nn.MultiheadAttention(1, 1), torch.rand(3, 2, 1)
        layer(x, x, x, key_padding_mask=torch.where(padding, inf, 0.0), attn_mask=mask)[0][0].sum().backward()
        gradients.append(finite(layer.in_proj_weight))
    assert not gradients[0]
    return symptoms.sees_nothing(bucket, padding=padding), gradients[1]


@thread("https://github.com/pytorch/pytorch/issues/85791")
def half() -> tuple[Any, Any]:
    """Sequences in float16 with a batch dimension, at a smaller vocabulary."""
    z = torch.rand(20, 60, 1025).half()
    y = torch.randint(0, 60, (20, 1025))
    assert F.cross_entropy(z, y).isinf()
    return symptoms.half_overflows(nn.CrossEntropyLoss(), z, y), F.cross_entropy(
        z.float(), y
    ).isfinite().item()


def half_precision_weights(steps: int = 3) -> tuple[Any, Any]:
    """Weights in float16 under Adam, whose epsilon rounds to 0 there; in float32 nothing turns into nan."""

    def weights(half: bool) -> tuple[nn.Module, bool]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))
        model = model.half() if half else model
        optimiser = torch.optim.Adam(model.parameters(), lr=2e-4)
        for _ in range(steps):
            optimiser.zero_grad()
            F.cross_entropy(model(torch.arange(6)).float(), torch.arange(6)).backward()
            optimiser.step()
        return model, all(bool(p.isfinite().all()) for p in model.parameters())

    (model, bad), (_, good) = weights(True), weights(False)
    assert not bad
    return symptoms.half_weights(model), good


thread("https://github.com/google/gemma_pytorch/issues/24")(half_precision_weights)
thread("https://github.com/jzhang38/TinyLlama/issues/32")(partial(half_precision_weights, 1))


@thread(
    "https://datascience.stackexchange.com/questions/28481/reason-for-having-both-low-loss-and-same-predicted-class"
)
def too_fast() -> tuple[Any, Any]:
    """SGD on a binary loss: it falls to 0.3, then the weights leave the ReLUs' reach, and all predictions are 0.5."""

    def curve(rate: float) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
        (x, y), losses = digits(), []
        optimiser = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
        for rows in torch.randint(0, len(x), (300, 128), generator=torch.Generator().manual_seed(0)):
            optimiser.zero_grad()
            loss = F.binary_cross_entropy_with_logits(model(x[rows]), (y[rows] > 4).float()[:, None])
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        return losses

    return symptoms.rate_too_high(curve(0.8)), symptoms.rate_too_high(curve(0.08))


# --------------------------------------------------------------------------------------- denominators and class weights


@thread("https://github.com/huggingface/transformers/issues/37766")
def grows(steps: int = 4) -> tuple[Any, Any]:
    """A model that returns the mean of its own forward pass, and a trainer that divides by nothing."""
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 8).double(), torch.randn(12, 4).double(), torch.arange(12) % 8
    each = [F.cross_entropy(model(a), b) for a, b in zip(x.chunk(steps), y.chunk(steps), strict=True)]
    logged, loss = sum(each), F.cross_entropy(model(x), y)
    (logged / steps).backward()
    got = model.weight.grad.clone()
    model.zero_grad()
    loss.backward()
    return symptoms.nobody_divides(logged, loss, steps), close(got, model.weight.grad)


@thread("https://github.com/huggingface/transformers/issues/24839")
def eval_loss() -> tuple[Any, Any]:
    """Ragged sequences, each batch averaged over its own tokens."""
    rng = np.random.default_rng(0)
    tokens = [rng.exponential(size=n) + 1 / n for n in (3, 40, 7, 120, 5)]
    parts = [np.concatenate(tokens[:2]), np.concatenate(tokens[2:4]), tokens[4]]
    ask = partial(symptoms.mean_of_batch_means, parts)
    return ask(np.mean([p.mean() for p in parts])), ask(
        sum(v.sum() for v in parts) / sum(v.size for v in parts)
    )


def two_means(z: Any, y: Any, w: Any) -> tuple[Any, Any]:
    """The weighted mean is not the mean of the weighted losses; one denominator, and both agree."""
    each = F.cross_entropy(z, y, weight=w, reduction="none")
    assert not close(F.cross_entropy(z, y, weight=w), each.mean())
    own = F.cross_entropy(z, y, weight=w, reduction="sum") / len(y)
    return symptoms.weighted_means_differ(w, y), close(own, each.mean())


_DRAW = torch.Generator().manual_seed(0)
WEIGHTED = {
    "40560": (torch.randn(16, 5, generator=_DRAW), torch.randint(0, 5, (16,), generator=_DRAW), torch.arange(1.0, 6)),
    "25571": (torch.tensor([[0.2, 0.3, 0.5], [0.5, 0.2, 0.3]]), torch.tensor([2, 1]), torch.tensor([2.0, 4.0, 6.0])),
    "65329": (torch.randn(8, 3, generator=_DRAW), torch.arange(8) % 3, torch.tensor([0.2, 3.0, 1.5])),
    "8062": (torch.tensor([[-100.0, 100.0]] * 2), torch.tensor([0, 1]), torch.tensor([20.0, 10.0])),
}  # fmt: skip
for _number, _batch in WEIGHTED.items():
    thread(f"https://github.com/pytorch/pytorch/issues/{_number}")(partial(two_means, *_batch))


def batch_of_one_class(w: Any, y: Any) -> tuple[Any, Any]:
    """A weight that cancels where all labels are one; with a constant denominator it does not."""
    z = torch.randn(len(y), len(w), generator=torch.Generator().manual_seed(1))
    loss = nn.CrossEntropyLoss(weight=w)
    plain = F.cross_entropy(z, y)
    assert close(loss(z, y), plain)
    summed = F.cross_entropy(z, y, weight=w, reduction="sum") / len(y)
    return symptoms.divides_by_weights(loss), close(summed, w[y[0]] * plain)


thread("https://github.com/pytorch/pytorch/issues/50528")(
    partial(batch_of_one_class, torch.linspace(0.1, 0.9, 10), torch.tensor([3]))
)
thread("https://github.com/mathiaszinnen/focal_loss_torch/issues/18")(
    partial(batch_of_one_class, torch.tensor([0.1, 0.9]), torch.tensor([1, 1, 1]))
)


@thread("https://github.com/pytorch/pytorch/issues/61309")
def other_members_of_the_batch() -> tuple[Any, Any]:
    """What a row costs changes with the labels of the other rows."""
    w, z = torch.tensor([1.0, 9.0, 3.0]), torch.randn(3, 3, generator=torch.Generator().manual_seed(2))

    def share(y: list[int], divisor: float | None) -> torch.Tensor:
        """The gradient of the first row's logits."""
        x = z.clone().requires_grad_()
        labels = torch.tensor(y)
        total = F.cross_entropy(x, labels, weight=w, reduction="sum")
        (total / (w[labels].sum() if divisor is None else divisor)).backward()
        return x.grad[0]

    assert not close(share([0, 1, 1], None), share([0, 2, 2], None))
    loss = partial(F.cross_entropy, weight=w)
    return symptoms.divides_by_weights(loss), close(share([0, 1, 1], 3.0), share([0, 2, 2], 3.0))


# ----------------------------------------------------------------------------------------------- targets and padding


@thread("https://github.com/pytorch/pytorch/issues/63004")
def a_class_is_ignored() -> tuple[Any, Any]:
    """The ignored class stays in the softmax of the other rows; a logit of -inf takes it out."""
    y = torch.tensor([1, 2])
    loss = nn.CrossEntropyLoss(ignore_index=0)
    x1, x2 = torch.tensor([[1.0, 1, 1]] * 2), torch.tensor([[0.0, 1, 1]] * 2)
    assert not close(loss(x1, y), loss(x2, y))
    masked = [x.index_fill(1, torch.tensor([0]), -torch.inf) for x in (x1, x2)]
    return symptoms.ignored_class(0, 3), close(loss(masked[0], y), loss(masked[1], y))


def out_of_range(classes: int, labels: list[int], *, shift: int = 0) -> tuple[Any, Any]:
    """Keras's sparse loss of labels that are no class; moved to 0, or with a last layer that is wide enough."""
    y, of = np.array(labels), keras().losses.SparseCategoricalCrossentropy(from_logits=True)
    said = symptoms.label_out_of_range(y, classes)
    wide = classes if shift else max(labels) + 1
    return said, np.isfinite(float(of(y - shift, np.zeros((len(y), wide), "float32"))))


thread("https://github.com/keras-team/keras/issues/11786")(partial(out_of_range, 7, [1, 4, 7, 7, 2], shift=1))
thread("https://github.com/rstudio/keras3/issues/465")(
    partial(out_of_range, 3, [2, 2, 3, 1, 1, 2, 3, 3], shift=1)
)
thread("https://github.com/biarne-a/hm-two-step-reco/issues/3")(
    partial(out_of_range, 66908, [49662, 50073, 50073, 55641, 53538, 66908])
)


@thread("https://github.com/pytorch/pytorch/issues/40858")
def beyond_the_last_class() -> tuple[Any, Any]:
    """One label of 16 is the number of classes plus one."""
    y, p = torch.randint(5, (16,)), torch.rand(16, 5)
    y[0] = 6
    with pytest.raises(IndexError):
        F.cross_entropy(p, y)
    return symptoms.label_out_of_range(y, 5), F.cross_entropy(F.pad(p, (0, 2)), y).isfinite().item()


@thread("https://github.com/InternLM/InternLM/issues/318")
def shifted() -> tuple[Any, Any]:
    """The data set shifts its labels, and the model's loss shifts them again."""
    ids = torch.arange(1, 13).reshape(2, 6)
    labels = torch.cat([ids[:, 1:], torch.full((2, 1), -100)], 1)
    z = F.one_hot(torch.cat([ids[:, 1:], ids[:, :1]], 1), 14) * 50.0  # a model that knows the next token

    def model_loss(given: Any) -> float:
        return F.cross_entropy(z[:, :-1].flatten(0, 1), given[:, 1:].flatten()).item()

    assert model_loss(labels) > 40
    return symptoms.shifted_already(labels, ids), model_loss(ids) < 1e-6


@thread("https://github.com/pytorch/pytorch/issues/1939")
def one_column_against_flat() -> tuple[Any, Any]:
    """Predictions (64, 1), targets (64,): a loss that broadcasts averages 4,096 pairs."""
    g = torch.Generator().manual_seed(0)
    t, o = torch.rand(64, generator=g).round(), torch.rand(64, 1, generator=g) - 0.5

    def broadcast(z: Any, y: Any) -> Any:
        return (F.softplus(z) - y * z).mean()

    right = F.binary_cross_entropy_with_logits(o[:, 0], t)
    assert not close(broadcast(o, t), right)
    return symptoms.broadcasts(o, t), close(broadcast(o, t[:, None]), right)


# -------------------------------------------------------------------------------------------------------- no learning


@thread("https://github.com/pytorch/pytorch/issues/103316")
def vanished() -> tuple[Any, Any]:
    """The gradient of a logit of -50, beside that of the same loss written by hand."""
    x = torch.tensor([-50.0, -10.0, -5.0, -2.0, 0.0, 2.0, 5.0, 10.0], requires_grad=True)
    (by_hand,) = torch.autograd.grad(-x.sigmoid().log().mean(), x)
    (of_library,) = torch.autograd.grad(F.binary_cross_entropy(x.sigmoid(), torch.ones(8)), x)
    assert abs(of_library[0]) < 1e-6
    (mended,) = torch.autograd.grad(F.binary_cross_entropy_with_logits(x, torch.ones(8)), x)
    return symptoms.gradient_fades(F.binary_cross_entropy), bool(torch.allclose(mended, by_hand, rtol=1e-3))


def overfitted(seed: int) -> tuple[Any, Any]:
    """A network that goes on learning a small training set: its validation loss rises, its accuracy does not fall."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    x, y = (v[300:] for v in digits())
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)

    def state(steps: int) -> tuple[Any, float, float]:
        z = fitted(model, optimiser, steps, slice(100)).eval()(x).detach()
        return z, F.cross_entropy(z, y).item(), (z.argmax(1) == y).float().mean().item()

    _, early, before = state(20)
    z, late, after = state(2000)
    assert late > 1.1 * early and after > before - 0.01
    cooled = min(F.cross_entropy(z / t, y).item() for t in (1, 2, 3, 4, 6, 8))
    return symptoms.sure_and_wrong(z, y), cooled < 0.9 * late


thread(
    "https://stats.stackexchange.com/questions/282160/how-is-it-possible-that-validation-loss-is-increasing-while-validation-accuracy"
)(partial(overfitted, 0))
thread(
    "https://discuss.ai.google.dev/t/validation-loss-keeps-increasing-even-though-accuracy-levels-out/25411"
)(partial(overfitted, 1))


@thread(
    "https://discuss.pytorch.org/t/batchnorm-train-with-momentum-1-then-eval-why-are-they-different/18600"
)
def train_and_eval() -> tuple[Any, Any]:
    """A batch of one image, with a momentum of 1."""
    torch.manual_seed(0)
    model, x = nn.BatchNorm2d(2, momentum=1.0), 10 * torch.randn(1, 2, 10, 10)
    said = symptoms.depends_on_other_rows(model, x)
    return said, symptoms.depends_on_other_rows(model.eval(), x)


# ------------------------------------------------------------------------- threads that the forty questions do not hold


def nan_of_focal() -> tuple[Any, Any]:
    """kornia 918: (1 - p)**0.5 of sure answers, as that release had it."""

    def focal(z: Any, t: Any, gamma: float = 0.5, alpha: float = 0.25, eps: float = 1e-8) -> Any:
        p = z.sigmoid()
        positive = -alpha * (1 - p) ** gamma * t * (p + eps).log()
        return (positive - (1 - alpha) * p**gamma * (1 - t) * (1 - p + eps).log()).mean()

    z = torch.tensor([[-100.0, -100, 100, 100]], requires_grad=True)
    t = torch.tensor([[0.0, 1, 0, 1]])
    focal(z, t).backward()
    assert z.grad is not None and z.grad.isnan().all()
    z.grad = None
    logits = torch.stack([torch.zeros_like(z), z], -1)
    xent.torch.focal_loss(logits, t.long(), gamma=0.5).backward()
    return symptoms.gradient_not_finite(focal), finite(z)


def divided_by_elements() -> tuple[Any, Any]:
    """DeiT 116: a distillation loss whose sum is divided by numel(), at temperature 1."""

    def distil(student: Any, teacher: Any) -> Any:
        log_q, log_p = student.log_softmax(1), teacher.log_softmax(1)
        return F.kl_div(log_q, log_p, reduction="sum", log_target=True) / student.numel()

    def mended(student: Any, teacher: Any) -> Any:
        return F.kl_div(
            student.log_softmax(1), teacher.log_softmax(1), reduction="batchmean", log_target=True
        )

    return symptoms.divides_by_classes(distil), symptoms.divides_by_classes(mended)


def masked_teacher() -> tuple[Any, Any]:
    """ModelCenter 14: two models whose logit of a padded token is -inf."""
    g = torch.Generator().manual_seed(0)
    z, teacher = (torch.randn(3, 5, generator=g) for _ in range(2))
    z[:, -1] = teacher[:, -1] = -torch.inf
    z.requires_grad_()
    p = teacher.softmax(1)
    assert (-(p * z.log_softmax(1)).sum(1).mean()).isnan()
    loss = xent.torch.soft_cross_entropy(z, p)
    loss.backward()
    return symptoms.masked_class(z, p), loss.isfinite() and finite(z)


def smoothed_and_weighted() -> tuple[Any, Any]:
    """PyTorch 104776: smoothing .1 under weights .01 and .99 makes a sure right answer cost more than a wrong one."""
    w = torch.tensor([0.01, 0.99])
    loss = nn.CrossEntropyLoss(weight=w, label_smoothing=0.1)
    z = torch.linspace(-9, 9, 3601, dtype=torch.float64)
    logits = torch.stack([z, 0 * z], 1)
    each = [
        F.cross_entropy(row[None], torch.tensor([0]), weight=w.double(), label_smoothing=0.1)
        for row in logits
    ]
    best = logits[int(torch.stack(each).argmin())]
    assert best.softmax(0)[0] < 0.2
    mended = (best - w.log()).softmax(0)[0].item()
    return symptoms.weights_bend(loss), abs(mended - 0.95) < 1e-3


def weights_of_rows() -> tuple[Any, Any]:
    """PyTorch 25174: a weight for each of four rows beside five columns."""
    y, z, w = torch.rand(4, 5), torch.randn(4, 5), torch.rand(4)
    with pytest.raises(RuntimeError, match=r"The size of tensor a .* must match the size of tensor b"):
        nn.BCEWithLogitsLoss(weight=w)(z, y)
    rows = w.reshape(-1, 1)
    each = F.binary_cross_entropy_with_logits(z, y, reduction="none")
    mended = close(nn.BCEWithLogitsLoss(weight=rows)(z, y), (rows * each).mean())
    return symptoms.weights_of_another_shape(w, z), mended


def dropout() -> tuple[Any, Any]:
    """PyTorch forum 72713, "why is the validation loss lower": training losses with dropout, within the epoch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10))
    x, y = digits()
    train, held = slice(0, None, 2), slice(1, None, 2)
    fitted(model, torch.optim.Adam(model.parameters(), lr=0.01), 25, train)
    training = F.cross_entropy(model.train()(x[train]), y[train]).item()
    model.eval()
    same, held_out = (F.cross_entropy(model(x[part]), y[part]).item() for part in (train, held))
    assert held_out < training
    return symptoms.modes_differ(model, x), same < held_out


@pytest.mark.parametrize("case", [nan_of_focal, divided_by_elements, masked_teacher, smoothed_and_weighted,
                                  weights_of_rows, dropout])  # fmt: skip
def test_six_other_threads(case: Case) -> None:
    good, why = passes(case)
    assert good, why


def asked() -> list[tuple[str, str]]:
    cells = json.loads(CHAPTER.read_text(encoding="utf-8"))["cells"]
    [text] = [s for c in cells if (s := "".join(c["source"])).startswith("### Forty questions")]
    return [
        (address, row)
        for row, line in ROW.findall(text)
        for address in re.findall(r"`\]\((\S+?)\)(?:,|$)", line)
    ]


def passes(case: Case) -> tuple[bool, str]:
    """Whether the check says yes and the fix mends; and why not."""
    said, mended = case()
    good = mended == NO if isinstance(mended, str) else bool(mended)
    return said == YES and good, f"{said}; mended: {mended}"


@pytest.mark.parametrize("address", CASES)
def test_the_check_says_yes_and_the_fix_mends_the_case(address: str) -> None:
    good, why = passes(CASES[address])
    assert good, why


def test_every_question_has_a_case() -> None:
    assert {address for address, _ in asked()} == set(CASES) and len(CASES) == 40


def main() -> None:
    """Which cases pass, first and last."""
    for address, case in CASES.items():
        try:
            good, why = passes(case)
        except Exception as error:  # a check that raises has missed its case
            good, why = False, f"{type(error).__name__}: {error}"
        print(("" if good else f"MISSED ({why}) ") + address, flush=True)
    print(f"first: {len(CASES) - len(MISSED_AT_FIRST)} of {len(CASES)}")


if __name__ == "__main__":
    main()
