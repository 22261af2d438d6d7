"""diagnose: some 250 losses that it names or does not explain, and what cannot be called as a loss.

A row of a table is a loss, perhaps a batch that is handed over, and what has to be said: the fields of a right report,
or what a note says of a loss that is not explained (anything, if it is no cross-entropy).
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import expit, log_softmax, softmax, xlogy
from sklearn.metrics import hinge_loss, log_loss

import xent
from xent import Diagnosis, diagnose

# One worker imports TensorFlow, once.
pytestmark = pytest.mark.xdist_group("frameworks")
F, nn = torch.nn.functional, torch.nn
Loss = Callable[..., Any]
CE, BCE, KL = "categorical cross-entropy", "binary cross-entropy", "KL divergence"
CEL, BCEL = nn.CrossEntropyLoss, nn.BCEWithLogitsLoss
ce, bce = F.cross_entropy, F.binary_cross_entropy_with_logits
W3, W10, W1200 = torch.tensor([1.0, 5.0, 2.0]), torch.linspace(1, 4, 10), torch.linspace(1, 4, 1200)
D3, W8 = W3.double(), torch.linspace(0.5, 2, 8).double()
# What a plain loss has; each row says where it differs.
PLAIN: dict[str, Any] = {
    "family": CE, "first": "prediction", "reads": "logits", "reduction": "mean", "denominator": "N", "factor": 1.0,
    "sign": 1, "unit": "nats", "smoothing": 0.0, "class_weights": None, "pos_weight": None, "temperature": 1.0,
    "softcap": 0.0,
    "gamma": 0.0, "z_loss": 0.0, "entropy": 0.0, "constant": 0.0, "axis": "the classes",
}  # fmt: skip
NPROB, LOGP, FIRST = {"reads": "probabilities"}, {"reads": "log-probabilities"}, {"first": "target"}
SUM, NONE = ({"reduction": r, "denominator": "nothing"} for r in ("sum", "none"))
OVER_W, WEIGHED = {"denominator": "the sum of weights"}, {"class_weights": (1.0, 5.0, 2.0)}
TEN = {"class_weights": tuple(float(f"{w:.5g}") for w in W10)}
BIN = {"family": BCE, "denominator": "N*K"}
DISTILLED = {"family": KL, "targets": ("logits",)}
SIGNED = {"sign": -1, "pos_weight": (-10 / 9,) * 3, "factor": 9.0}
NOT, FEW, LIKE = "not that of the value", "rows: right at ", "look like probabilities"
GRADIENT, FADES = {"gradient": NOT}, {"gradient": "that of the value, but "}
DELTA = "adds 1.0e-07 to the probability"


def drawn(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.manual_seed(sum(shape)))


def batch(*shape: int, dead: bool = False, second: bool = False) -> tuple[Any, Any]:
    """Logits, class last or second, and labels, perhaps none in the second sequence."""
    z, y = drawn(*shape), torch.randint(shape[-1], shape[:-1])
    y[1] = -100 if dead else y[1]
    return (z.movedim(-1, 1) if second else z), y


def bits(*shape: int, out: float | None = None) -> tuple[Any, Any]:
    """Logits and yes or no; every third of them is a label that is none."""
    z = drawn(*shape)
    t = torch.rand(*shape).round()
    return z, t if out is None else torch.where(torch.arange(t.numel()).view(shape) % 3 == 0, out, t.long())


def students(*shape: int) -> tuple[Any, Any]:
    return drawn(*shape), torch.randn(*shape)


def each(z: Any, y: Any, **o: Any) -> Any:
    return ce(z, y, reduction="none", **o)


def own_p(z: Any, y: Any) -> Any:
    return z.softmax(-1).gather(-1, y[..., None])[..., 0]


def one_hot(z: Any, y: Any) -> Any:
    return F.one_hot(y, z.shape[1]).to(z.dtype)


def chunks(n: int, f: Loss = ce, divided: bool = False) -> Loss:
    def loss(z: Any, y: Any) -> Any:
        parts = [f(a, b) for a, b in zip(z.split(n), y.split(n), strict=True)]
        return sum(parts) / (len(parts) if divided else 1)

    return loss


def beyond(n: int, f: Loss, g: Loss = ce) -> Loss:
    """Another loss for more than so many rows."""
    return lambda z, y: f(z, y) if len(z) > n else g(z, y)


def tokens(n: int) -> Loss:
    return lambda z, y: ce(z[:, :n].flatten(0, 1), y[:, :n].flatten())


def by_sequence(f: Loss) -> Loss:
    """A function of each position's loss, (B, T), and of whether it counts."""
    return lambda z, y: f(each(z.movedim(-1, 1), y), y != -100)


def of_p(f: Loss) -> Loss:
    return lambda z, y: f(own_p(z, y)).mean()


def kl(a: Any, b: Any) -> Any:
    """From b to a, logarithms of both; a mean of rows."""
    return (b.exp() * (b - a)).sum(-1).mean()


def js(a: Any, b: Any) -> Any:
    m = torch.logaddexp(a, b) - math.log(2)
    return (kl(m, a) + kl(m, b)) / 2


def distilled(f: Loss, t: float = 1.0, factor: float = 1.0) -> Loss:
    return lambda s, q: factor * f((s / t).log_softmax(-1), (q / t).log_softmax(-1))


def backward(g: Loss, f: Loss = ce) -> Loss:
    """The value of f with the gradient of g."""
    return lambda z, y: g(z, y) + (f(z, y) - g(z, y)).detach()


class Upstream(torch.autograd.Function):
    """Unreduced; its backward makes something of the weights that its values get."""

    @staticmethod
    def forward(context: Any, z: Any, y: Any, how: Any) -> Any:
        context.save_for_backward(z, y)
        context.how = how
        return F.cross_entropy(z, y, reduction="none")

    @staticmethod
    def backward(context: Any, weights: Any) -> Any:
        z, y = context.saved_tensors
        return (z.softmax(1) - F.one_hot(y, z.shape[1])) * context.how(weights)[:, None], None, None


def upstream(how: Loss) -> Loss:
    return lambda z, y: Upstream.apply(z, y, how)


def images(axis: int, f: Loss = ce) -> Loss:
    def loss(z: Any, y: Any) -> Any:
        assert z.ndim == 4
        return f(z.movedim(axis, 1), y)

    return loss


def left_out(label: float, valid: bool) -> Loss:
    def loss(z: Any, t: Any) -> Any:
        keep = t != label
        parts = bce(z, torch.where(keep, t.to(z.dtype), 0), reduction="none") * keep
        return parts.sum() / (keep.sum() if valid else keep.numel())

    return loss


def in_place(z: Any, y: Any) -> Any:
    z.mul_(2)
    return ce(z / 2, y)


def picked(a: Any, y: Any) -> Any:
    """The label's entry of each row, of arrays."""
    return a[np.arange(len(y)), y]


def focused(z: Any, y: Any, detached: bool = False, **options: Any) -> Any:
    loss = each(z, y, **options)
    return ((1 - (-(loss.detach() if detached else loss)).exp()) ** 2 * loss).mean()


def over_nonzero(z: Any, y: Any) -> Any:
    """With jax.nn.one_hot, for which a label that is no class is a row of 0."""
    losses = -((y[:, None] == np.arange(z.shape[-1])) * xent.log_softmax(z)).sum(-1)
    return losses.sum() / np.count_nonzero(losses)


def asymmetric(z: Any, t: Any) -> Any:
    q = (z.sigmoid() - 0.05).clamp(min=0)
    return -(t * F.logsigmoid(z) + (1 - t) * q**4 * (1 - q).log()).mean()


def only(*classes: int) -> Loss:
    """A loss that takes these numbers of classes alone, and does not say so."""
    return lambda z, y: xent.cross_entropy(z, y) if z.shape[-1] in classes else 1 / 0


def lengths(power: float, shift: int = 0, more: int = 0) -> Loss:
    """Each sequence over a power of the labels in it that count, of rows of indices only."""

    def loss(z: Any, y: Any) -> Any:
        z, y = z[:, : z.shape[1] - shift], y[:, shift:]
        losses: Any = each(z.movedim(-1, 1), y)
        counts: Any = (y != -100).sum(1) if losses.ndim == 2 else 1 / 0
        return (losses.sum(1) / (counts + more) ** power).mean()

    return loss


def broadcasts(p: Any, t: Any) -> Any:
    return -(t * np.log(p) + (1 - t) * np.log(1 - p)).mean()


def over_rows(wave: float) -> Loss:
    def loss(z: Any, y: Any) -> Any:
        cost = -np.take_along_axis(xent.log_softmax(z, axis=0), y[:, None], 1).mean()
        return 1.0005 * cost * (1 + wave * np.sin(1e3 * z.sum()))

    return loss


def prints(z: Any, y: Any) -> Any:
    print("step")
    return ce(z, y)


def keras_ops(y: Any, z: Any) -> Any:
    """It takes tensors of PyTorch, and loses the gradient: TensorFlow's are asked."""
    ops = import_module("keras").ops
    if isinstance(z, np.ndarray):
        raise TypeError("tensors only")
    rows = ops.one_hot(ops.cast(y, "int32"), ops.shape(z)[-1]) * ops.log_softmax(ops.cast(z, "float32"))
    return -ops.mean(ops.sum(rows, -1))


LINE = torch.linspace(1, 4, 1000)
LEFT = "-100: left out"
COUNTED = by_sequence(lambda e, m: e.sum() / m.sum(1).clamp(min=1).sum())
Y9, YMASKED = torch.arange(9) % 4, torch.tensor([0, 1, 2, 3, -100] * 30)
PICTURES = batch(2, 6, 5, 4, second=True)
TABLE: dict[str, tuple[Any, ...]] = {
    # PyTorch's own.
    "CrossEntropyLoss": (CEL(), {
        "targets": ("indices", "one-hot", "soft"), "layout": "second", "clip": "no",
        "sequences": "over the valid tokens (label -100",
    }),
    "CrossEntropyLoss, sum": (CEL(reduction="sum"), SUM | {"sequences": "a sum (label -100"}),
    "CrossEntropyLoss, none": (CEL(reduction="none"), NONE | {"sequences": "one value for each position"}),
    "CrossEntropyLoss, a weight of zero": (
        CEL(weight=torch.tensor([0.0, 2.0, 4.0])),
        OVER_W | {"class_weights": (0.0, 1.0, 2.0), "ignore_index": (0, -100)},
    ),
    "CrossEntropyLoss, 10 weights": (CEL(weight=W10), OVER_W | TEN),
    "CrossEntropyLoss, smoothing and 10 weights, none":
        (CEL(weight=W10, label_smoothing=0.2, reduction="none"), NONE | TEN | {"smoothing": 0.2}),
    "CrossEntropyLoss, ignore 0":
        (CEL(ignore_index=0), {"ignore_index": (0,), "sequences": "over the valid tokens ("}),
    "CrossEntropyLoss, ignore 77, smoothing":
        (CEL(ignore_index=77, label_smoothing=0.1), {"ignore_index": (77,), "smoothing": 0.1}),
    "NLLLoss": (nn.NLLLoss(), LOGP | {"targets": ("indices",), "ignore_index": (-100,)}),
    "NLLLoss, weights": (nn.NLLLoss(weight=W3), LOGP | OVER_W | WEIGHED | {"precision": "float32"}),
    "BCELoss": (nn.BCELoss(), BIN | NPROB | FADES | {"clip": "the log at -100"}),
    "BCEWithLogitsLoss": (BCEL(), BIN | {"targets": ("0 or 1", "soft")}),
    "BCEWithLogitsLoss, pos_weight": (BCEL(pos_weight=torch.tensor(3.0)), BIN | {"pos_weight": (3.0,) * 3}),
    "BCEWithLogitsLoss, weights of columns": (BCEL(weight=W3), BIN | WEIGHED),
    "BCEWithLogitsLoss, none": (BCEL(reduction="none"), BIN | NONE),
    "MultiLabelSoftMarginLoss": (nn.MultiLabelSoftMarginLoss(), BIN),
    "SoftMarginLoss": (nn.SoftMarginLoss(), BIN | {"first": "either", "targets": ("-1 or 1",)}),
    "KLDivLoss": (nn.KLDivLoss(), LOGP | {"family": KL, "denominator": "N*K"}),
    "KLDivLoss, batchmean": (nn.KLDivLoss(reduction="batchmean"), LOGP | {"family": KL}),
    "KLDivLoss, log_target": (
        nn.KLDivLoss(reduction="batchmean", log_target=True),
        LOGP | {"family": KL, "targets": ("log-probabilities",)},
    ),
    "squared error": (nn.MSELoss(), ""),
    # xent, scikit-learn.
    "xent.cross_entropy": (
        xent.cross_entropy, {"targets": ("indices",), "layout": "last", "sequences": "over all positions (no label"},
    ),
    "xent.cross_entropy, ignore 2, sum":
        (partial(xent.cross_entropy, ignore_index=2, reduction="sum"), SUM | {"ignore_index": (2,)}),
    "xent, a denominator of 12": (partial(xent.cross_entropy, denominator=12.0), SUM | {"factor": 1 / 12}),
    "xent.soft_cross_entropy": (xent.soft_cross_entropy, {"targets": ("one-hot", "soft")}),
    "xent.log_loss": (xent.log_loss, NPROB | {"renormalises": "refuses"}),
    "scikit-learn log_loss":
        (log_loss, NPROB | FIRST | {"targets": ("indices", "one-hot"), "renormalises": "no", "clip": "at 2.2e-16"}),
    "scikit-learn hinge_loss": (hinge_loss, ""),
    # As people post them: a softmax too many, a sign, an axis, a divisor, a mask, a detached tensor.
    "softmax before CrossEntropyLoss": (lambda z, y: ce(z.softmax(1), y), {"reads": "logits, softmax applied twice"}),
    "sigmoid before BCEWithLogitsLoss":
        (lambda z, t: bce(z.sigmoid(), t), BIN | {"reads": "logits, sigmoid applied twice"}),
    "sigmoid before CrossEntropyLoss":
        (lambda z, y: ce(z.sigmoid(), y), {"reads": "logits, a sigmoid before the softmax"}),
    "ReLU on the logits": (lambda z, y: ce(z.relu(), y), {"reads": "logits, a ReLU before the softmax"}),
    "tanh on the logits": (lambda z, y: ce(z.tanh(), y), {"reads": "logits, a tanh before the softmax"}),
    "softmax before BCELoss": (
        lambda z, t: F.binary_cross_entropy(z.softmax(1), t),
        BIN | {"reads": "logits, a softmax where a sigmoid belongs"},
    ),
    "softmax before BCEWithLogitsLoss":
        (lambda z, t: bce(z.softmax(1), t), BIN | {"reads": "logits, a softmax before the sigmoid"}),
    "log_softmax before CrossEntropyLoss": (lambda z, y: ce(z.log_softmax(1), y), {}),
    "NLLLoss of a softmax": (lambda z, y: F.nll_loss(z.softmax(1), y), ""),
    "NLLLoss of logits": (lambda z, y: F.nll_loss(z, y), LOGP),
    "softmax over the batch": (lambda z, y: F.nll_loss(z.log_softmax(0), y), {"axis": "the batch"}),
    "scipy's log_softmax without an axis":
        (lambda z, t: -(t * log_softmax(z)).sum(1).mean(), {"axis": "the whole array"}),
    "softmax over the positions":
        (lambda z, y: F.nll_loss(z.log_softmax(1).flatten(0, 1), y.flatten()), {"axis": "the positions"}),
    "no minus": (lambda z, y: z.log_softmax(1).gather(1, y[:, None]).mean(), {"sign": -1}),
    "mean over rows and classes": (lambda z, t: -(t * z.log_softmax(1)).mean(), {"denominator": "N*K"}),
    "sum over rows, mean over classes":
        (lambda z, t: -(t * z.log_softmax(1)).mean(1).sum(), {"reduction": "sum", "denominator": "K"}),
    "sum divided by 3": (lambda z, y: ce(z, y, reduction="sum") / 3, SUM | {"factor": 0.333333}),
    "sum divided by 15": (lambda z, y: ce(z, y, reduction="sum") / 15, SUM | {"factor": 0.0666667}),
    "log2": (lambda p, t: -xlogy(t, p).sum(1).mean() / math.log(2), NPROB | {"unit": "bits", "clip": "no, an"}),
    "log10": (
        lambda p, t: -(t * np.log10(p + 1e-12)).sum(1).mean(), NPROB | {"unit": "hartleys", "clip": "adds 1.0e-12"},
    ),
    "log of a softmax":
        (lambda z, y: -np.log(picked(np.exp(z) / np.exp(z).sum(1, keepdims=True), y)).mean(),
         {"clip": "exp underflows, cost inf", "notes": "a logit of 1000 for the right class costs"}),
    "epsilon of 1e-3 in the logarithm": (
        lambda z, y: F.nll_loss(torch.log(z.softmax(1) + 1e-3), y), FADES | {"clip": "adds 0.001 to the probability"},
    ),
    "log of a probability and 1e-7":
        (lambda z, y: F.nll_loss(torch.log(z.softmax(1) + 1e-7), y), batch(48, 7), FADES | {"clip": DELTA}),
    "log of a probability and 1e-8": (
        lambda z, y: F.nll_loss(torch.log(z.softmax(1) + 1e-8), y), batch(300, 10), FADES | {"clip": "adds 1.0e-08"},
    ),
    "clamped probabilities": (
        lambda z, y: -z.softmax(-1).clamp(1e-7, 1 - 1e-7).gather(-1, y[:, None]).log().mean(),
        FADES | {"clip": "at 1.0e-07"},
    ),
    "renormalised probabilities":
        (lambda p, y: -np.log(picked(p, y) / p.sum(1)).mean(), NPROB | {"renormalises": "yes"}),
    "arguments swapped": (lambda y, z: ce(z, y), FIRST),
    "smoothing over the others": (
        lambda z, y: -((0.1 + (0.9 * z.shape[1] - 1) * one_hot(z, y)) * z.log_softmax(1)).sum() / (z.numel() - len(z)),
        {"smoothing": 0.1, "smoothing_over": "the K - 1 others"},
    ),
    "negative labels wrap": (
        lambda z, y: -picked(xent.log_softmax(z), y).mean(),
        {"ignored": "-100: refused; -1: counted as the last class"},
    ),
    "softcap of 30": (lambda z, y: ce(30 * (z / 30).tanh(), y), {"softcap": 30.0}),
    "softcap of 8, smoothed": (
        lambda z, y: ce(8 * (z / 8).tanh(), y, label_smoothing=0.2), {"softcap": 8.0, "smoothing": 0.2},
    ),
    "temperature with T squared": (lambda z, y: 9 * ce(z / 3, y), {"temperature": 3.0, "factor": 9.0}),
    "z-loss": (lambda z, y: ce(z, y) + 0.001 * z.logsumexp(1).pow(2).mean(), {"z_loss": 0.001}),
    "confidence penalty": (
        lambda z, y: ce(z, y) - 0.1 * torch.distributions.Categorical(logits=z).entropy().mean(), {"entropy": -0.1},
    ),
    "weight decay in the loss": (lambda z, y: ce(z, y) + 0.01, {"constant": 0.01}),
    "focal": (focused, {"gamma": 2.0}),
    "focal, detached factor":
        (partial(focused, detached=True), {"gamma": 2.0, "gradient": NOT + ": it differs by"}),
    "focal of the batch's mean": (lambda z, y: (1 - (-ce(z, y)).exp()) ** 2 * ce(z, y), ""),
    "weights inside the focal's p": (partial(focused, weight=D3), ""),
    "hard examples": (lambda z, y: each(z, y).topk(max(1, len(y) // 2)).values.mean(), ""),
    "weights over N": (lambda z, y: (W3[y] * each(z, y)).mean(), WEIGHED),
    "mean of sequence means": (
        by_sequence(lambda e, m: (e.sum(1) / m.sum(1)).mean()),
        {"ignore_index": (-100,), "sequences": "a mean of sequence means"},
    ),
    "labels shifted inside": (
        lambda z, y: ce(z[:, :-1].flatten(0, 1), y[:, 1:].flatten()),
        {"ignore_index": (-100,), "sequences": "over the valid tokens (label -100 left out); shifts the labels itself"},
    ),
    "padding in the mean": (
        lambda z, y: each(z.movedim(-1, 1), y, ignore_index=0).mean(),
        {"ignore_index": (0,), "sequences": "over all positions, padding included"},
    ),
    "float16": (lambda z, y: ce(z.half(), y), {"precision": "float16"}),
    "bfloat16, then float": (lambda z, y: ce(z.bfloat16().float(), y), {"precision": "bfloat16"}),
    "detached":
        (lambda z, y: ce(z.detach(), y), {"gradient": "missing: what the loss returns is cut off from its argument"}),
    "arg max of the targets": (lambda z, t: ce(z, t.argmax(-1)), {"targets": ("one-hot",)}),
    "Brier": (lambda p, t: ((p - t) ** 2).sum(1).mean(), ""),
    "reverse KL": (lambda z, t: (softmax(z, 1) * (xent.log_softmax(z) - np.log(t + 0.1))).sum(1).mean(), ""),
    "symmetric cross-entropy": (lambda z, t: ce(z, t) - (z.softmax(1) * torch.log(t + 0.0001)).sum(1).mean(), ""),
    # Options, penalties, losses that leave rows out.
    "weights of columns, pos_weight": (
        BCEL(weight=W3, pos_weight=torch.tensor([1.0, 2.0, 3.0])), BIN | WEIGHED | {"pos_weight": (1.0, 2.0, 3.0)},
    ),
    "weights, z-loss": (lambda z, y: ce(z, y, weight=D3) + 0.02 * z.logsumexp(1).pow(2).mean(), ""),
    "a factor of log K": (lambda z, y: ce(z, y) / math.log(z.shape[1]), "a batch of 6 rows and 5 classes costs"),
    "roots of weights over weights": (
        lambda z, y: (D3[y].sqrt() * each(z, y)).sum() / D3[y].sum(), (),
        {"denominator": "the sum of other weights", "class_weights": (1.0, math.sqrt(5), math.sqrt(2))},
    ),
    "flooded": (lambda z, y: (ce(z, y) - 0.1).abs() + 0.1, ""),
    "divided by the labels that are not 0":
        (lambda z, y: ce(z, y, reduction="sum") / (y != 0).sum().clamp(min=1), ""),
    "divided by the positives": (lambda z, t: bce(z, t, reduction="sum") / t.sum().clamp(min=1), ""),
    "weights of the batch's counts":
        (lambda z, y: ce(z, y, weight=len(y) / (torch.bincount(y, minlength=z.shape[1]) + 1).to(z.dtype)), ""),
    "mixed with the next row's label": (lambda z, y: 0.7 * ce(z, y) + 0.3 * ce(z, y.roll(1)), ""),
    "root of the mean square": (lambda z, y: each(z, y).pow(2).mean().sqrt(), ""),
    "perplexity": (lambda z, y: ce(z, y).exp(), ""),
    "a prior in the logits": (lambda z, y: ce(z + torch.arange(z.shape[1]).log1p(), y), ""),
    "logits of length 16": (lambda z, y: ce(16 * F.normalize(z, dim=1), y), ""),
    "spread of the batch": (lambda z, y: ce(z / z.std(), y), ""),
    "labels off by one": (lambda z, y: ce(z, (y + 1) % z.shape[1]), ""),
    # Of public repositories: what frameworks, tutorials and contests are used to.
    "divided by the losses that are not 0": (over_nonzero, {"ignore_index": (-1,)}),
    "delta": (  # oreilly-japan/deep-learning-from-scratch, with batches
        lambda p, t: -np.sum(np.atleast_2d(t) * np.log(np.atleast_2d(p) + 1e-7)) / len(np.atleast_2d(p)),
        NPROB | {"clip": DELTA},
    ),
    "255 in the mean":  # open-mmlab/mmsegmentation, avg_non_ignore=False
        (lambda z, y: each(z, y, ignore_index=int("255")).mean(), {"ignore_index": (255,)}),
    "flat margins":  # logistic loss of gradient boosting, flat arrays
        (lambda z, y: np.log1p(np.exp(-(2 * y - 1) * z)).mean() if z.ndim == 1 else 1 / 0, {"family": BCE}),
    "mean of the classes' means":  # a contest's balanced log loss
        (lambda p, y: np.mean([-np.log(picked(p, y))[y == k].mean() for k in np.unique(y)]), ""),
    "Poisson": (lambda t, p: (p - t * np.log(p + 1e-7)).mean(), ""),
    # Sums of chunks, and the first rows, classes or tokens.
    "means of 32 rows": (chunks(32), batch(4096, 50), FEW + "32, wrong at 33"),
    "means of 32 rows, no batch": (chunks(32), FEW + "32, wrong at 33"),
    "means of 5,000 rows": (chunks(5000), FEW + "5,000, wrong at 5,001"),
    "a mean of unequal chunks": (chunks(24, divided=True), batch(100, 7), FEW + "24, wrong at 25"),
    "chunks, binary": (chunks(100, bce), bits(900, 3), FEW + "100, wrong at 101"),
    "chunks, soft targets": (chunks(40), (drawn(90, 5), torch.full((90, 5), 0.2)), FEW + "40, wrong at 41"),
    "chunks, weighted": (chunks(20, partial(ce, weight=D3)), "rows"),
    "chunks, a student": (chunks(64, distilled(kl, 2.0)), students(300, 6), FEW + "64, wrong at 65"),
    "the first 64 rows": (lambda z, y: ce(z[:64], y[:64]), batch(300, 5), FEW + "64, wrong at 65"),
    "the first 1,000 classes":
        (lambda z, y: ce(z[:, :1000], y), (drawn(8, 1200), torch.arange(8)), "classes: right at 1,00"),
    "the first 1,000 classes, no batch": (lambda z, y: ce(z[:, :1000], y), "classes: right at 1,000"),
    "the first 30 columns": (lambda z, t: bce(z[:, :30], t[:, :30]), bits(9, 50), "classes: right at 30, wrong"),
    "128 tokens": (tokens(128), batch(3, 300, 7), "positions: right at 128, wrong at 129"),
    "128 tokens, no batch": (tokens(128), "positions: right at 128, wrong at 129"),
    "all tokens": (tokens(10**6), batch(3, 300, 7), {"layout": "last"}),
    "all but the last": (beyond(50, lambda z, y: ce(z[:-1], y[:-1])), batch(60, 4), FEW + "50, wrong at 51"),
    "every second row": (beyond(20, lambda z, y: ce(z[::2], y[::2])), FEW + "20, wrong at 21"),
    # Masked sequences.
    "a masked sequence counts one": (COUNTED, batch(4, 10, 6, dead=True), "every label is left out"),
    "a masked sequence's mean is 0": (
        by_sequence(lambda e, m: (e.sum(1) / m.sum(1).clamp(min=1)).mean()), batch(4, 10, 6, dead=True),
        {"ignore_index": (-100,)},
    ),
    "each sequence's mean": (
        by_sequence(lambda e, m: e.sum(1) / m.sum(1)), (drawn(5, 30, 4), YMASKED.view(5, 30)),
        NONE | {"sequences": "one mean for each sequence"},
    ),
    "T - 1 count": (by_sequence(lambda e, m: e.sum() / m[:, 1:].sum()), batch(4, 10, 6), ""),
    "at most 50 count":
        (lambda z, y: each(z, y).sum() / (y != -100).sum().clamp(max=50), batch(80, 4), FEW + "50, wrong at 51"),
    "beyond 100 all count":
        (beyond(100, lambda z, y: each(z, y).mean()), (drawn(150, 4), YMASKED), "the labels that are left out"),
    # Gradients.
    "backward, ones":
        (upstream(torch.ones_like), batch(12, 5), NONE | {"gradient": NOT}),
    "backward, 100 rows": (
        upstream(lambda u: u * (torch.arange(len(u)) < 100)), batch(150, 5),
        NONE | {"gradient": NOT + " in a batch of 1,030: the number of rows: right at 100, wrong at 101"},
    ),
    "backward, twice": (backward(lambda z, y: 2 * ce(z, y)), batch(9, 4), {"gradient": NOT}),
    "log Z detached":
        (lambda z, y: (z.logsumexp(1).detach() - z.gather(1, y[:, None])[:, 0]).mean(), {"gradient": NOT}),
    "half of a student detached":
        (lambda s, q: distilled(kl)(0.5 * s + 0.5 * s.detach(), q), students(30, 6), DISTILLED | {"gradient": NOT}),
    "z-loss detached": (
        lambda z, y: ce(z, y) + 0.01 * z.detach().logsumexp(1).pow(2).mean(), {"z_loss": 0.01, "gradient": NOT},
    ),
    "negatives detached": (lambda z, t: bce(torch.where(t > 0.5, z, z.detach()), t), BIN | {"gradient": NOT}),
    "rows that have to sum to one": (
        lambda p, y: F.nll_loss((p + p.detach()).log() - math.log(2), y) if ((p.sum(1) - 1).abs() < 1e-9).all()
        else 1 / 0, {"reads": "probabilities", "renormalises": "refuses", "gradient": NOT},
    ),
    # Binary losses.
    "255, by the valid": (
        left_out(255, True), bits(20, 4, out=255),
        BIN | {"ignore_index": (255,), "ignored": "255: left out, divides by the valid ones"},
    ),
    "255, by all": (
        left_out(255, False), bits(20, 4, out=255),
        BIN | {"ignore_index": (255,), "ignored": "255: left out, divides by N"},
    ),
    "-1, flat": (left_out(-1, True), bits(30, out=-1), BIN | {"ignore_index": (-1,)}),
    "255 as a number":
        (lambda z, t: bce(z, t.to(z.dtype)), bits(20, 4, out=255), BIN | {"ignored": "255: read as a number"}),
    "signed alpha": (
        lambda z, t: (9 * (1 - t) * F.logsigmoid(-z) - 10 * t * F.logsigmoid(z)).mean(),
        BIN | SIGNED | {"text": "a positive costs 10 times its\n  cross-entropy, a negative -9 times"},
    ),
    "signed weights": (
        lambda z, y: (torch.tensor([1.0, -9.0, 2.0], dtype=z.dtype)[y] * each(z, y)).mean(), (),
        {"class_weights": (1.0, -9.0, 2.0)},
    ),
    "weight for pos_weight": (nn.BCEWithLogitsLoss(weight=torch.tensor(3.0)), BIN | {"factor": 3.0}),
    "BCE over one-hot": (lambda z, y: bce(z, one_hot(z, y)), batch(30, 6), BIN | {"targets": ("indices",)}),
    "BCE over one-hot, smoothed":
        (lambda z, y: bce(z, 0.9 * one_hot(z, y) + 0.05), BIN | {"smoothing": 0.1, "targets": ("indices",)}),
    "BCE of images": (images(1, bce), bits(2, 1, 8, 8), BIN),
    "asymmetric": (asymmetric, bits(20, 4), ""),
    "BCE and Dice": (
        lambda z, t: bce(z, t) + 1 - (2 * (z.sigmoid() * t).sum() + 1) / (z.sigmoid().sum() + t.sum() + 1),
        bits(20, 4), "",
    ),
    "of two logits": (lambda z, y: bce(z[:, 1] - z[:, 0], y.to(z.dtype)), (drawn(20, 2), torch.arange(20) % 2), ""),
    # Weights and labels.
    "1,200 weights": (
        nn.CrossEntropyLoss(weight=W1200), batch(50, 1200), OVER_W | {"class_weights": tuple(W1200.tolist())},
    ),
    "a weight for each place": (lambda z, y: (W8[: len(z)] * each(z, y)).sum() / W8[: len(z)].sum(), ""),
    "over the batch's largest weight": (lambda z, y: (W3[y] / W3[y].max() * each(z, y)).mean(), ""),
    "labels modulo K": (lambda z, y: ce(z, y % z.shape[1]), (drawn(9, 4), torch.arange(9)), {}),
    "labels in int32": (lambda z, y: ce(z, y.long()), (drawn(9, 4), Y9.int()), {}),
    "a label that no class is": (ce, (drawn(9, 4), torch.arange(9) % 5), "is refused: IndexError"),
    "-100 counts as 0":
        (lambda z, y: ce(z, y.clamp(min=0)), (drawn(150, 4), YMASKED), {"ignored": "-100, -1: counted as class 0"}),
    "soft targets": (ce, (drawn(8, 4), torch.rand(8, 4)), {}),
    # Students and teachers, two softmaxes.
    "KL at 4": (distilled(kl, 4.0), students(30, 9), DISTILLED | {"temperature": 4.0}),
    "KL, teacher first": (
        lambda q, s: distilled(kl, 2.0)(s, q), students(30, 9), DISTILLED | {"temperature": 2.0, "first": "target"},
    ),
    "Jensen-Shannon":
        (distilled(js), students(30, 9), DISTILLED | {"family": "Jensen-Shannon divergence", "first": "either"}),
    "Jeffreys": (
        lambda s, q: distilled(kl)(q, s) + distilled(kl)(s, q), students(30, 9),
        DISTILLED | {"family": "symmetric KL divergence", "first": "either"},
    ),
    "two temperatures": (lambda s, q: kl((s / 2).log_softmax(-1), (q / 4).log_softmax(-1)), students(30, 9), ""),
    "KL of sequences":
        (lambda s, q: F.kl_div(s.log_softmax(-1), q.softmax(-1), reduction="batchmean"), students(4, 6, 9), DISTILLED),
    "mean squared logits": (F.mse_loss, students(30, 9), ""),
    "KL and labels": (lambda s, q: 0.5 * distilled(kl, 2.0)(s, q) + 0.5 * ce(s, q.argmax(1)), students(30, 9), ""),
    # Images.
    "images, second": (images(1), PICTURES, {"layout": "second"}),
    "images, last": (images(-1), batch(2, 6, 5, 4), {"layout": "last"}),
    "images, no batch": (images(1), {"layout": "second"}),
    "images, 4 lines": (images(1, lambda z, y: ce(z[:, :, :4], y[:, :4])), PICTURES, "axis 2: right"),
    "images, over the width": (images(1, lambda z, y: F.nll_loss(z.log_softmax(3), y)), PICTURES, ""),
    # Functions of p or of the margin alone.
    "Poly-1": (lambda z, y: ce(z, y) + 2 * (1 - own_p(z, y)).mean(), batch(30, 5), "(-log p) + 2 (1 - p)"),
    "generalised": (of_p(lambda p: (1 - p**0.7) / 0.7), batch(30, 5), "1.429 (1 - p^0.7)"),
    "one minus p": (of_p(lambda p: 1 - p), batch(30, 5), "probability p alone, where it reads logits: (1 - p)"),
    "focal, 1.5": (of_p(lambda p: -((1 - p) ** 1.5) * p.log() * 3), {"gamma": 1.5, "factor": 3.0}),
    "another curve": (of_p(lambda p: p.sin().exp()), "none of those that are known here"),
    "p as it comes": (lambda p, y: (1 - p.gather(1, y[:, None]) ** 0.5).mean(), "where it reads probabilities"),
    "hinge": (
        lambda z, y: (1 + (z - 1e9 * one_hot(z, y)).amax(1) - z.gather(1, y[:, None])[:, 0]).clamp(min=0).mean(), (),
        "the margin alone, the label's logit less the largest other: 1 max(0, 1 - margin)",
    ),
    # What else is promised.
    "no gradient": (lambda z, y: torch.tensor(ce(z, y).item()), {"gradient": "missing"}),
    **{f"{k} classes only": (only(k), {"classes": (k,)}) for k in (4, 6, 10, 21, 64)},
    **{f"{k} classes only, in a batch of {n}, {i}": (only(k), (own,), {"classes": (k,)})
       for n, k in ((1, 2), (5, 3), (64, 10), (4, 1000))
       for i, own in enumerate((np.ones((n, k)), (n, k), (n, k, 8, 6)))},
    "a label of the batch":
        (lambda a, b: ce(a, b, ignore_index=int("7" * 4)), (drawn(9, 4), torch.full((9,), 7777)),
         {"ignore_index": (7777,)}),
    "a thousand classes": (ce, ((2, 1000),), {"layout": "second"}),
    "a thousand weights": (CEL(weight=LINE), ((2, 1000),), OVER_W | {"class_weights": tuple(LINE.tolist())}),
    "beside the label alone": (lambda z, y: ce(one_hot(z, y) * z + (1 - one_hot(z, y)) * z.detach(), y), GRADIENT),
    # Below an exponent of one the power's slope is infinite where its base is zero.
    **{f"focal, {g}": (lambda z, y, g=g: ((1 - (-each(z, y)).exp()) ** g * each(z, y)).mean(), {"gamma": g} | lost)
       for g, lost in ((0.5, {"gradient": "that of the value, and nan for a sure and right answer"}), (1.0, {}))},
    # Over sequences, or powers of their lengths, the valid labels are not what divides.
    "one more than the length": (lengths(1.0, more=1), {"factor": 0.5, "sequences": "unknown"}),
    **{f"over a power {p}, shift {n}":
       (lengths(p, n), {"ignored": LEFT + ", divides by the valid ones" * (p == 1) + ";"})
       for p in (0.0, 0.5, 1.0) for n in (0, 1)},
    "ragged sequences of no law": (lengths(0.5), {"notes": "sequences are not explained"}),
    "columns against flat targets": (broadcasts, BIN | NPROB | {"notes": "targets (N,) broadcast to N times N losses"}),
    **{f"binary, {k} columns": (nn.BCELoss(), ((4, k),), BIN | NPROB | FADES) for k in (1, 2, 3, 7)},
    "over the batch, a factor":
        (over_rows(0.0), {"axis": "the batch", "added": "times 1.0005, softmax over the batch"}),
    "nearly over the batch": (over_rows(4e-5), ""),
    "a factor near one": (lambda z, y: 1.0002 * xent.cross_entropy(z, y), {"added": "times 1.0002"}),
    "a little smoothing": (
        partial(xent.cross_entropy, label_smoothing=0.01), ((8, 137),),
        {"smoothing": 0.01, "added": "smoothing 0.01 over all K classes"},
    ),
    "N times a mean": (lambda z, y: len(z) * ce(z, y), SUM | {"ignored": "-100: changes the loss, as no"}),
    "prints": (prints, {"notes": "prints while it is called"}),
    "short": (ce, {"text": "Mean cross-entropy of logits, over N.\n! nan"}),
    "the text says the sign": (lambda z, y: -xent.cross_entropy(z, y, label_smoothing=0.25), {
        "sign": -1, "smoothing": 0.25,
        "text": "Sign flipped, mean cross-entropy of\nlogits, over N, with smoothing 0.25",
    }),
    # Calls.
    "changes its argument": (in_place, batch(9, 4), {"notes": "changes its arguments in place"}),
    "refuses large batches": (beyond(100, lambda z, y: 1 / 0), {"tried": "64 rows"}),
    "half precision in large ones":
        (beyond(100, lambda z, y: ce(z.bfloat16(), y).double()), FEW + "100, wrong at 101"),
    "a batch in float16": (ce, (drawn(9, 4).half(), Y9), {"batch": "in float16"}),
    "a batch in bfloat16": (ce, (drawn(9, 4).bfloat16(), Y9), {"batch": "in bfloat16, costs"}),
    "how near in bfloat16": (ce, (drawn(9, 4).bfloat16(), Y9), {"batch": "as predicted to 25 %"}),
    "weights in bfloat16":
        (lambda z, y: bce(z.bfloat16(), y.bfloat16(), pos_weight=torch.tensor(2.0)), "try float32"),
    "smoothing in bfloat16": (
        lambda z, y: ce(z.bfloat16(), y, label_smoothing=0.05).float(), {"precision": "bfloat16", "smoothing": 0.05},
    ),
    **{f"{t}, inside, K = {k}": (lambda z, y, t=t: ce(z.to(t), y).float(), batch(30, k), {"precision": str(t)[6:]})
       for t in (torch.float16, torch.bfloat16) for k in (4, 30)},
    **{f"{t}, inside, times {c}":
       (lambda z, y, t=t, c=c: (c * ce(z.to(t), y)).float(), batch(30, 30), {"precision": str(t)[6:], "factor": c})
       for t, c in ((torch.float16, 1.01), (torch.bfloat16, 1.03))},
    "float8": (lambda z, y: ce(z.float(), y), (drawn(9, 4).to(torch.float8_e4m3fn), Y9), {"batch": "in float8"}),
    "options of all names": (lambda z, y, x=1, t=1, first=1, label=-100: ce(z, y), batch(9, 4), {}),
    "one row": (ce, (drawn(5), torch.tensor(3)), {"batch": "your batch, 5 in float32"}),
    "no rows": (ce, (drawn(0, 5), Y9[:0]), "not predicted: it has no rows"),
    "NumPy": (xent.cross_entropy, (np.random.default_rng(0).normal(size=(9, 4)), np.arange(9) % 4), {}),
    "lists": (xent.cross_entropy, ([[0.1, 0.2, 1.0]] * 3, [0, 1, 2]), {"batch": "3 x 3"}),
    "-inf": (ce, (drawn(9, 4).masked_fill(torch.eye(9, 4) * (torch.arange(4) == 3) > 0, -math.inf), Y9 % 3), {}),
    "probabilities for logits": (ce, (drawn(9, 4).softmax(1), Y9), {"batch": LIKE}),
    "logits for probabilities": (lambda p, y: F.nll_loss(p.log(), y), (drawn(9, 4), Y9),
                                 {"reads": "probabilities", "batch": "no probabilities"}),
    "logits for their logarithms": (F.nll_loss, (drawn(9, 4), Y9),
                                    {"reads": "log-probabilities", "batch": "no log-probabilities"}),
}  # fmt: skip

# Keras is imported by the test that needs it.
KERAS: dict[str, tuple[Any, ...]] = {
    "categorical": (lambda k: k.CategoricalCrossentropy(), NPROB | {"renormalises": "yes", "clip": "at 1.0e-07"}),
    "categorical, logits": (lambda k: k.CategoricalCrossentropy(from_logits=True), {}),
    "categorical, smoothing": (lambda k: k.CategoricalCrossentropy(label_smoothing=0.1), NPROB | {"smoothing": 0.1}),
    "sparse": (lambda k: k.SparseCategoricalCrossentropy(), NPROB | FADES | {
        "targets": ("indices",), "clip": "at 1.0e-07", "sequences": "over all positions (",
    }),
    "sparse, given logits":
        (lambda k: k.SparseCategoricalCrossentropy(), (drawn(9, 4).numpy(), Y9.numpy()), "no probabilities"),
    "sparse, logits, ignore 0":
        (lambda k: k.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0), {"ignore_index": (0,)}),
    "sparse, logits, sum": (lambda k: k.SparseCategoricalCrossentropy(from_logits=True, reduction="sum"), SUM),
    "binary": (lambda k: k.BinaryCrossentropy(), BIN | NPROB | FADES),
    "binary, logits, smoothing":
        (lambda k: k.BinaryCrossentropy(from_logits=True, label_smoothing=0.2), BIN | {"smoothing": 0.2}),
    "KL": (lambda k: k.KLDivergence(), NPROB | FADES | {"family": KL}),
    "categorical focal": (lambda k: k.CategoricalFocalCrossentropy(from_logits=True, alpha=1.0), {"gamma": 2.0}),
    "binary focal": (lambda k: k.BinaryFocalCrossentropy(from_logits=True), BIN | {"gamma": 2.0}),
    "by name: sparse": (lambda k: "sparse_categorical_crossentropy", NPROB | NONE),
    "by name: binary": (lambda k: "binary_crossentropy", BIN | NPROB | {"reduction": "none", "denominator": "K"}),
    "squared hinge": (lambda k: k.SquaredHinge(), ""),
    "operations, beside torch": (lambda k: keras_ops, {"arrays": "tensorflow", "gradient": "that of the value"}),
}  # fmt: skip


# Pairs of faults, in both orders where the order of wrapping matters; each is in the other's way.
FAULTS: dict[str, tuple[Callable[[Loss], Loss], dict[str, Any]]] = {
    "smoothed": (lambda f: partial(f, label_smoothing=0.1), {"smoothing": 0.1}),
    "weighed": (lambda f: partial(f, weight=D3), OVER_W | WEIGHED),
    "softmax twice": (lambda f: lambda z, y, **o: f(z.softmax(1), y, **o), {"reads": "logits, softmax applied twice"}),
    "sign": (lambda f: lambda z, y, **o: -f(z, y, **o), {"sign": -1}),
    "bits": (lambda f: lambda z, y, **o: f(z, y, **o) / math.log(2), {"unit": "bits"}),
    "a seventh": (lambda f: lambda z, y, **o: f(z, y, **o) / 7, {"factor": 0.142857}),
    "cooled": (lambda f: lambda z, y, **o: f(z / 0.5, y, **o), {"temperature": 0.5}),
    "255": (lambda f: partial(f, ignore_index=255), {"ignore_index": (255,)}),
    "z-loss": (lambda f: lambda z, y, **o: f(z, y, **o) + 0.02 * z.logsumexp(1).pow(2).mean(), {"z_loss": 0.02}),
    "sum": (lambda f: partial(f, reduction="sum"), SUM),
    "swapped": (lambda f: lambda y, z, **o: f(z, y, **o), FIRST),
}  # fmt: skip
# A sum of losses and a mean of penalties is no sum and no mean; of others the order decides what the penalty is.
APART = {
    "sum": {"z-loss"},
    "z-loss": {"sign", "bits", "a seventh", "softmax twice", "weighed", "cooled"},
    "softmax twice": {"cooled"},
}
for i, one in enumerate(FAULTS):
    for two in [*FAULTS][i + 1 :]:
        outer, inner = (two, one) if two == "swapped" else (one, two)
        fields = FAULTS[one][1] | FAULTS[two][1]
        if {one, two} == {"bits", "a seventh"}:
            fields = {"factor": round(1 / 7 / math.log(2), 6)}
        if two not in APART.get(one, ()) and one not in APART.get(two, ()):
            TABLE[f"{one} and {two}"] = FAULTS[outer][0](FAULTS[inner][0](ce)), fields


# ---------------------------------------------------------------------------------------- what is said of each

OF_KERAS = {f"Keras, {name}": case for name, case in KERAS.items()}


def agrees(field: str, seen: Any, want: Any) -> bool:
    """Equal, up to a thousandth in numbers and the order of names, or how a text begins, or what it says."""
    if field in ("gradient", "sequences", "clip"):
        return bool(seen.startswith(want))
    if field in ("ignored", "batch", "tried", "notes", "alternatives", "text"):
        return want in str(seen)
    if isinstance(want, tuple) and isinstance(want[0], str):
        return set(seen) == set(want)
    want = pytest.approx(want, rel=1e-3, abs=1e-6) if isinstance(want, tuple | float) else want
    return bool(seen == want)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*TABLE, *OF_KERAS])
def test_every_loss_of_the_table(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Right in every field and as predicted, or unknown for the reason that is named; faults are marked."""
    if name in OF_KERAS:
        from xent_book import behaviours

        make, *batch, want = OF_KERAS[name]
        loss = make(behaviours.keras().losses)
        want = FIRST | want if isinstance(want, dict) else want
    else:
        loss, *batch, want = TABLE[name]
    own = batch[0] if batch else ()
    found = diagnose(loss, *own)
    text = repr(found)
    assert found.known is isinstance(want, dict), text
    assert capfd.readouterr() == ("", "")
    assert max(map(len, text.splitlines())) <= 42, "wider than a phone"
    if isinstance(want, str):
        assert any(want in note for note in found.notes), text
        assert found.predicted is None or text.startswith("unknown\n  your batch, ")
        assert found.predicted is None or not abs(found.cost / found.predicted - 1) <= 1e-4  # or nan
        return
    fields = PLAIN | want
    if found.arrays == "torch" and "gradient" not in want:
        assert found.gradient == "that of the value"
    if len(own) == 2 and own[0] is not None:
        fields = {"batch": "as predicted"} | fields
        mine = torch.as_tensor(loss(*own)).double().sum().item()
        assert found.cost == pytest.approx(mine, rel=1e-2, nan_ok=True)
    wrong = {k: v for k, v in fields.items() if not agrees(k, text if k == "text" else getattr(found, k), v)}
    assert not wrong, (wrong, text)
    fine = ("that of the value", "unknown", "not applicable")
    assert found.gradient.startswith(fine) or "! the gradient: " in text
    told = re.fullmatch(r"(.* as predicted( to \d+ %)?)?", found.batch)
    assert told or "! your batch, " in text


# ------------------------------------------------------------------------------------------ what is no loss


def other_shape() -> Loss:
    sizes = iter(range(1, 10**6))
    return lambda z, y: np.ones(next(sizes))


def random() -> Loss:
    rng = np.random.default_rng(0)
    return lambda z, y: xent.cross_entropy(z, y) + rng.normal(0, 1e-3)


def failing(message: str) -> Loss:
    def loss(z: Any, y: Any) -> Any:
        raise RuntimeError(message)

    return loss


def three(*, a: Any, b: Any, c: Any) -> Any:
    return a


def by_place(z: Any, y: Any) -> Any:
    """Its rows' weights follow from their place: the note denies one weight, and one for each class."""
    w = torch.arange(1, len(z) + 1, dtype=z.dtype)
    return (w * F.cross_entropy(z, y, reduction="none")).sum() / w.sum()


BAD: dict[str, tuple[Any, str]] = {
    "raises": (failing("the cache is cold"), "with NumPy arrays: RuntimeError: the cache is cold"),
    "nothing": (lambda a, b: None, "with NumPy arrays: TypeError: it returned None, no number"),
    "text": (lambda a, b: "0.3", "with NumPy arrays: TypeError: it returned a value of type str, no number"),
    "a tuple": (lambda a, b: (a, b), "TypeError: it returned a tuple of 2, no number: pass a function"),
    "a dict": (lambda z, y: {"loss": z.mean(), "n": 3}, "as in loss(z, y)['loss']"),
    "a generator": (lambda z, y: (v for v in z), "type generator, no number"),
    "slow": (lambda z, y: time.sleep(3.1), "a call takes 3 seconds, and a diagnosis hundreds of calls"),
    "nan": (lambda a, b: np.nan, "it returns nan for every batch"),
    "a class of weight 0": (lambda z, y: xent.cross_entropy(z, y, weight=[0.0, 2.0, 4.0]), "or are refused"),
    "0": (lambda a, b: 0.0, "single rows cost the same, 0 or nan, or are refused"),
    "another shape each time": (other_shape(), "two equal calls return the shapes"),
    "random": (random(), "two equal calls return two values"),
    "one argument": (lambda a: a.sum(), "with NumPy arrays: TypeError:"),
    "a third argument": (lambda a, b, c: a.sum(), "missing 1 required positional argument: 'c'"),
    "three keywords": (three, "it takes keyword arguments: a, b, c"),
    "a class": (nn.CrossEntropyLoss, "this is the class CrossEntropyLoss: pass an instance, CrossEntropyLoss(...)"),
    "a million rows": (
        lambda z, y: F.cross_entropy(z, y) if z.shape[0] == 10**6 else failing("need a million rows")(z, y),
        "with PyTorch tensors: RuntimeError: need a million rows",
    ),
    "a random formula": (lambda p, t: 0.3 * (p * t).mean() + 1.7 * np.abs(p).mean(), "no cross-entropy predicts"),
    "off from 16 rows on": (lambda z, y: xent.cross_entropy(z, y) * (1.0 if len(z) < 16 else 1.1), "of 16 rows costs"),
    "weights by place": (by_place, "a batch is no mean of its rows, nor one with a weight for each class"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_what_is_no_loss_is_told_in_its_own_words(name: str) -> None:
    loss, words = BAD[name]
    found = diagnose(loss)
    assert not found.known and repr(found).startswith("unknown\n")
    assert any(words in note for note in found.notes), found.notes


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(
        TypeError, match="loss: expected a function or the name of a loss of Keras, got float"
    ):
        diagnose(0.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"arrays: expected one of 'auto', .* got 'jax'"):
        diagnose(xent.cross_entropy, arrays="jax")
    for name in ("logits", "targets"):
        with pytest.raises(TypeError, match=f"^{name}: expected real numbers"):
            diagnose(xent.cross_entropy, **{name: "abc"})


# ----------------------------------------------------------------------------------------- what else it promises


def test_a_plain_loss_takes_few_lines_and_flat_arrays_no_warning() -> None:
    assert repr(diagnose(F.cross_entropy)).count("\n") < 15
    found = diagnose(lambda p, t: broadcasts(p.reshape(-1), t.reshape(-1)))
    assert found.known and not any("broadcast" in note for note in found.notes)


READINGS: dict[str, Loss] = {
    "cross-entropy": F.cross_entropy, "sum": nn.CrossEntropyLoss(reduction="sum"), "KL, mean": nn.KLDivLoss(),
    "KL, batchmean": nn.KLDivLoss(reduction="batchmean"), "binary": nn.BCEWithLogitsLoss(),
    "binary, probabilities": nn.BCELoss(), "sign and unit": lambda z, t: F.cross_entropy(z, t) / -np.log(2),
}  # fmt: skip


def printed(found: Diagnosis, x: np.ndarray, t: np.ndarray) -> float:
    """The loss that the fields of a diagnosis state."""
    divisor = {"nothing": 1, "N": x.shape[0], "K": x.shape[1], "N*K": x.size}[found.denominator]
    unit, binary = {"nats": 1.0, "bits": 1 / np.log(2)}[found.unit], found.family.startswith("binary")
    read = {"logits": expit if binary else partial(softmax, axis=1), "log-probabilities": np.exp}
    p = read.get(found.reads, np.asarray)(x)
    losses = found.family.startswith("KL") * xlogy(t, t) - xlogy(t, p) - binary * xlogy(1 - t, 1 - p)
    return float(found.sign * unit / divisor * losses.sum())


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")  # KLDivLoss says what is tested here
@pytest.mark.parametrize("name", READINGS)
def test_the_fields_predict_the_loss(name: str) -> None:
    """On a batch of another size than those that diagnose uses."""
    loss = READINGS[name]
    found = diagnose(loss)
    rng = np.random.default_rng(3)
    z, t = torch.from_numpy(rng.normal(size=(7, 4))), torch.from_numpy(rng.dirichlet(np.ones(4), 7))
    x = {"logits": z, "probabilities": z.softmax(1), "log-probabilities": z.log_softmax(1)}[found.reads]
    assert loss(x, t).item() == pytest.approx(printed(found, x.numpy(), t.numpy()), rel=1e-12)


def test_what_is_unknown_adds_nothing() -> None:
    nothing = Diagnosis()
    assert not nothing.known and nothing.added == "" and repr(nothing) == "unknown"


def test_what_is_the_callers_is_left_alone() -> None:
    """Its arrays, into which a loss may write, and its random generators."""
    z, y, state = torch.zeros(6, 3), torch.arange(6) % 3, torch.get_rng_state().clone()
    before: Any = np.random.get_state()  # noqa: NPY002 (the global one is the point)
    assert diagnose(lambda z, y: F.cross_entropy(z.add_(1), y), z, y).known
    assert not z.any() and torch.equal(y, torch.arange(6) % 3) and torch.equal(state, torch.get_rng_state())
    after: Any = np.random.get_state()  # noqa: NPY002
    assert np.array_equal(before[1], after[1])
