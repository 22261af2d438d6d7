"""More than a hundred losses, and what each computes: libraries' own, wrong ones from threads, two faults at once.

`None` stands for a loss that is no cross-entropy, which must not be taken for one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.special import xlogy
from sklearn.metrics import brier_score_loss, hinge_loss, log_loss

import xent

F, nn = torch.nn.functional, torch.nn
Loss = Callable[..., Any]
Case = tuple[Any, dict[str, Any] | None]
CE, BCE, KL = "categorical cross-entropy", "binary cross-entropy", "KL divergence"
CEL, BCEL = nn.CrossEntropyLoss, nn.BCEWithLogitsLoss
W3, W10 = torch.tensor([1.0, 5.0, 2.0]), torch.linspace(1, 4, 10)
# What a plain loss has; each case says where it differs.
PLAIN: dict[str, Any] = {
    "family": CE, "first": "prediction", "reads": "logits", "reduction": "mean", "denominator": "N", "factor": 1.0,
    "sign": 1, "unit": "nats", "smoothing": 0.0, "class_weights": None, "pos_weight": None, "temperature": 1.0,
    "softcap": 0.0, "gamma": 0.0, "z_loss": 0.0, "entropy": 0.0, "constant": 0.0, "axis": "the classes",
}  # fmt: skip
NPROB = {"reads": "probabilities"}
LOGP = {"reads": "log-probabilities"}
SUM, NONE = ({"reduction": r, "denominator": "nothing"} for r in ("sum", "none"))
OVER_W, WEIGHED = {"denominator": "the sum of weights"}, {"class_weights": (1.0, 5.0, 2.0)}
BIN = {"family": BCE, "denominator": "N*K"}
FIRST = {"first": "target"}


def ce(z: Any, y: Any, **options: Any) -> Any:
    return F.cross_entropy(z, y, **options)


def picked(a: Any, y: Any) -> Any:
    """The label's entry of each row, of arrays."""
    return a[np.arange(len(y)), y]


def softmax(z: Any, axis: int = 1) -> Any:
    e = np.exp(z - z.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def torch_libraries() -> dict[str, Case]:
    ten = tuple(float(f"{w:.5g}") for w in W10)
    return {
        "CrossEntropyLoss": (CEL(), {"targets": ("indices", "one-hot", "soft"), "layout": "second"}),
        "CrossEntropyLoss, sum": (CEL(reduction="sum"), SUM),
        "CrossEntropyLoss, none": (CEL(reduction="none"), NONE),
        "CrossEntropyLoss, 3 weights": (CEL(weight=W3), OVER_W | WEIGHED),
        "CrossEntropyLoss, a weight of zero": (
            CEL(weight=torch.tensor([0.0, 2.0, 4.0])),
            OVER_W | {"class_weights": (0.0, 1.0, 2.0), "ignore_index": (0, -100)},
        ),
        "CrossEntropyLoss, 10 weights": (CEL(weight=W10), OVER_W | {"class_weights": ten}),
        "CrossEntropyLoss, 10 weights, sum": (CEL(weight=W10, reduction="sum"), SUM | {"class_weights": ten}),
        "CrossEntropyLoss, 2 weights": (CEL(weight=torch.tensor([1.0, 9.0])), OVER_W | {"class_weights": (1.0, 9.0)}),
        "CrossEntropyLoss, smoothing": (CEL(label_smoothing=0.1), {"smoothing": 0.1}),
        "CrossEntropyLoss, smoothing, sum": (CEL(label_smoothing=0.3, reduction="sum"), SUM | {"smoothing": 0.3}),
        "CrossEntropyLoss, smoothing and weights":
            (CEL(weight=W3, label_smoothing=0.1), OVER_W | {"smoothing": 0.1, **WEIGHED}),
        "CrossEntropyLoss, smoothing and 10 weights, none": (
            CEL(weight=W10, label_smoothing=0.2, reduction="none"), NONE | {"smoothing": 0.2, "class_weights": ten},
        ),
        "CrossEntropyLoss, ignore 0": (CEL(ignore_index=0), {"ignore_index": (0,)}),
        "CrossEntropyLoss, ignore 255": (CEL(ignore_index=255), {"ignore_index": (255,)}),
        "CrossEntropyLoss, ignore 77, smoothing":
            (CEL(ignore_index=77, label_smoothing=0.1), {"ignore_index": (77,), "smoothing": 0.1}),
        "CrossEntropyLoss, ignore -1, weights":
            (CEL(ignore_index=-1, weight=W3), OVER_W | {"ignore_index": (-1,), **WEIGHED}),
        "NLLLoss": (nn.NLLLoss(), LOGP | {"targets": ("indices",), "ignore_index": (-100,)}),
        "NLLLoss, weights": (nn.NLLLoss(weight=W3), LOGP | OVER_W | WEIGHED),
        "BCELoss": (nn.BCELoss(), BIN | NPROB | {"clip": "the log at -100"}),
        "BCELoss, sum": (nn.BCELoss(reduction="sum"), BIN | NPROB | SUM),
        "BCEWithLogitsLoss": (BCEL(), BIN | {"targets": ("0 or 1", "soft")}),
        "BCEWithLogitsLoss, pos_weight": (BCEL(pos_weight=torch.tensor(3.0)), BIN | {"pos_weight": (3.0,) * 3}),
        "BCEWithLogitsLoss, 5 pos_weights":
            (BCEL(pos_weight=torch.arange(1.0, 6)), BIN | {"pos_weight": (1.0, 2.0, 3.0, 4.0, 5.0)}),
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
    }  # fmt: skip


def numpy_libraries() -> dict[str, Case]:
    return {
        "xent.cross_entropy": (xent.cross_entropy, {"targets": ("indices",), "layout": "last"}),
        "xent.cross_entropy, ignore 2, sum":
            (functools.partial(xent.cross_entropy, ignore_index=2, reduction="sum"), {"ignore_index": (2,), **SUM}),
        "xent.soft_cross_entropy": (xent.soft_cross_entropy, {"targets": ("one-hot", "soft")}),
        "xent.binary_cross_entropy": (xent.binary_cross_entropy, BIN),
        "xent.nll": (xent.nll, LOGP),
        "xent.log_loss": (xent.log_loss, NPROB | {"renormalises": "refuses"}),
        "xent.focal_loss": (xent.focal_loss, {"gamma": 2.0}),
        "xent.focal_loss, gamma 3.5": (functools.partial(xent.focal_loss, gamma=3.5), {"gamma": 3.5}),
        "scikit-learn log_loss":
            (log_loss, NPROB | FIRST | {"targets": ("indices", "one-hot"), "renormalises": "no"}),
        "scikit-learn hinge_loss": (hinge_loss, None),
        "scikit-learn brier_score_loss": (brier_score_loss, None),
    }  # fmt: skip


KERAS = (
    "Keras categorical", "Keras categorical, logits", "Keras categorical, smoothing", "Keras sparse",
    "Keras sparse, logits, ignore 0", "Keras sparse, logits, sum", "Keras binary",
    "Keras binary, logits, smoothing", "Keras KL", "Keras categorical focal", "Keras binary focal",
    "Keras, by name: sparse", "Keras, by name: binary", "Keras squared hinge",
)  # fmt: skip


def keras_libraries(losses: Any) -> dict[str, Case]:
    k = PLAIN | FIRST
    return {
        "Keras categorical":
            (losses.CategoricalCrossentropy(), k | NPROB | {"renormalises": "yes", "clip": "at 1.0e-07"}),
        "Keras categorical, logits": (losses.CategoricalCrossentropy(from_logits=True), k),
        "Keras categorical, smoothing":
            (losses.CategoricalCrossentropy(label_smoothing=0.1), k | NPROB | {"smoothing": 0.1}),
        "Keras sparse": (losses.SparseCategoricalCrossentropy(), k | NPROB | {"targets": ("indices",)}),
        "Keras sparse, logits, ignore 0":
            (losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0), k | {"ignore_index": (0,)}),
        "Keras sparse, logits, sum":
            (losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum"), k | SUM),
        "Keras binary": (losses.BinaryCrossentropy(), k | BIN | NPROB),
        "Keras binary, logits, smoothing":
            (losses.BinaryCrossentropy(from_logits=True, label_smoothing=0.2), k | BIN | {"smoothing": 0.2}),
        "Keras KL": (losses.KLDivergence(), k | NPROB | {"family": KL}),
        "Keras categorical focal":
            (losses.CategoricalFocalCrossentropy(from_logits=True, alpha=1.0), k | {"gamma": 2.0}),
        "Keras binary focal": (losses.BinaryFocalCrossentropy(from_logits=True), k | BIN | {"gamma": 2.0}),
        "Keras, by name: sparse": ("sparse_categorical_crossentropy", k | NPROB | NONE),
        "Keras, by name: binary":
            ("binary_crossentropy", k | BIN | NPROB | {"reduction": "none", "denominator": "K"}),
        "Keras squared hinge": (losses.SquaredHinge(), None),
    }  # fmt: skip


def from_threads() -> dict[str, Case]:
    """Wrong losses as people post them: a softmax too many, a sign, an axis, a divisor, a mask, a detached tensor."""

    def mean_of_means(z: Any, y: Any) -> Any:
        each = F.cross_entropy(z.movedim(-1, 1), y, reduction="none")
        return (each.sum(1) / (y != -100).sum(1)).mean()

    def padded_mean(z: Any, y: Any) -> Any:
        each = F.cross_entropy(z.movedim(-1, 1), y, reduction="none", ignore_index=0)
        return each.mean()

    def focal_on_the_mean(z: Any, y: Any) -> Any:
        """The focal loss of a batch's mean, a mistake of many a notebook: it is no focal loss."""
        loss = F.cross_entropy(z, y)
        return (1 - torch.exp(-loss)) ** 2 * loss

    def focal(z: Any, y: Any) -> Any:
        loss = F.cross_entropy(z, y, reduction="none")
        return ((1 - torch.exp(-loss)) ** 2 * loss).mean()

    def focal_detached(z: Any, y: Any) -> Any:
        loss = F.cross_entropy(z, y, reduction="none")
        return ((1 - torch.exp(-loss.detach())) ** 2 * loss).mean()

    def focal_weighed(z: Any, y: Any) -> Any:
        loss = F.cross_entropy(z, y, reduction="none", weight=W3)
        return ((1 - torch.exp(-loss)) ** 2 * loss).mean()

    def binary_focal(z: Any, t: Any) -> Any:
        loss = F.binary_cross_entropy_with_logits(z, t, reduction="none")
        p = z.sigmoid()
        return ((t * 0.25 + (1 - t) * 0.75) * (1 - (t * p + (1 - t) * (1 - p))) ** 2 * loss).mean()

    def unstable(z: Any, y: Any) -> Any:
        return -np.log(picked(np.exp(z) / np.exp(z).sum(1, keepdims=True), y)).mean()

    def clamped(z: Any, y: Any) -> Any:
        p = z.softmax(-1).clamp(1e-7, 1 - 1e-7)
        return -p.gather(-1, y[:, None]).log().mean()

    def by_hand_others(z: Any, y: Any) -> Any:
        """Smoothing by hand, over the other classes."""
        t = torch.full_like(z, 0.1 / (z.shape[1] - 1)).scatter(1, y[:, None], 0.9)
        return -(t * z.log_softmax(1)).sum(1).mean()

    def wraps(z: Any, y: Any) -> Any:
        return -picked(xent.log_softmax(z), y).mean()

    def in_place(z: Any, y: Any) -> Any:
        z -= z.max(1, keepdims=True)
        return -(picked(z, y) - np.log(np.exp(z).sum(1))).mean()

    return {
        "softmax before CrossEntropyLoss":
            (lambda z, y: ce(z.softmax(1), y), {"reads": "logits, softmax applied twice"}),
        "sigmoid before BCEWithLogitsLoss": (
            lambda z, t: F.binary_cross_entropy_with_logits(z.sigmoid(), t),
            BIN | {"reads": "logits, sigmoid applied twice"},
        ),
        "sigmoid before CrossEntropyLoss":
            (lambda z, y: ce(z.sigmoid(), y), {"reads": "logits, a sigmoid before the softmax"}),
        "ReLU on the logits": (lambda z, y: ce(z.relu(), y), {"reads": "logits, a ReLU before the softmax"}),
        "tanh on the logits": (lambda z, y: ce(z.tanh(), y), {"reads": "logits, a tanh before the softmax"}),
        "softmax before BCELoss": (
            lambda z, t: F.binary_cross_entropy(z.softmax(1), t),
            BIN | {"reads": "logits, a softmax where a sigmoid belongs"},
        ),
        "softmax before BCEWithLogitsLoss": (
            lambda z, t: F.binary_cross_entropy_with_logits(z.softmax(1), t),
            BIN | {"reads": "logits, a softmax before the sigmoid"},
        ),
        "log_softmax before CrossEntropyLoss": (lambda z, y: ce(z.log_softmax(1), y), {}),
        "NLLLoss of a softmax": (lambda z, y: F.nll_loss(z.softmax(1), y), None),
        "NLLLoss of logits": (lambda z, y: F.nll_loss(z, y), LOGP),
        "softmax over the batch": (lambda z, y: F.nll_loss(z.log_softmax(0), y), {"axis": "the batch"}),
        "scipy's log_softmax without an axis":
            (lambda z, t: -(t * (z - np.log(np.exp(z).sum()))).sum(1).mean(), {"axis": "the whole array"}),
        "softmax over the positions":
            (lambda z, y: F.nll_loss(z.log_softmax(1).flatten(0, 1), y.flatten()), {"axis": "the positions"}),
        "no minus": (lambda z, y: z.log_softmax(1).gather(1, y[:, None]).mean(), {"sign": -1}),
        "mean over rows and classes": (lambda z, t: -(t * z.log_softmax(1)).mean(), {"denominator": "N*K"}),
        "sum over rows, mean over classes":
            (lambda z, t: -(t * z.log_softmax(1)).mean(1).sum(), {"reduction": "sum", "denominator": "K"}),
        "sum divided by 5": (lambda z, y: ce(z, y, reduction="sum") / 5, {**SUM, "factor": 0.2}),
        "sum divided by 3": (lambda z, y: ce(z, y, reduction="sum") / 3, {**SUM, "factor": 0.333333}),
        "sum divided by 15": (lambda z, y: ce(z, y, reduction="sum") / 15, {**SUM, "factor": 0.0666667}),
        "divided by the accumulation steps": (lambda z, y: ce(z, y) / 8, {"factor": 0.125}),
        "log2": (lambda p, t: -xlogy(t, p).sum(1).mean() / math.log(2), NPROB | {"unit": "bits"}),
        "log10": (lambda p, t: -(t * np.log10(p + 1e-12)).sum(1).mean(), NPROB | {"unit": "hartleys"}),
        "0 log 0": (lambda p, t: -(t * np.log(p)).sum(1).mean(), NPROB),
        "log of a softmax": (unstable, {"clip": "exp underflows, cost inf"}),
        "epsilon of 1e-3 in the logarithm":
            (lambda z, y: F.nll_loss(torch.log(z.softmax(1) + 1e-3), y), {"clip": "adds 0.001 to the probability"}),
        "clamped probabilities": (clamped, {"clip": "at 1.0e-07"}),
        "renormalised probabilities":
            (lambda p, y: -np.log(picked(p, y) / p.sum(1)).mean(), NPROB | {"renormalises": "yes"}),
        "arguments swapped": (lambda y, z: ce(z, y), FIRST),
        "one minus p forgotten": (lambda p, t: -(t * torch.log(p)).mean(), NPROB | {"denominator": "N*K"}),
        "smoothing over the others": (by_hand_others, {"smoothing": 0.1, "smoothing_over": "the K - 1 others"}),
        "negative labels wrap": (wraps, {"ignored": "-100: refused; -1: counted as the last class"}),
        "works in place": (in_place, {}),
        "temperature with T squared": (lambda z, y: 9 * ce(z / 3, y), {"temperature": 3.0, "factor": 9.0}),
        "z-loss": (lambda z, y: ce(z, y) + 0.001 * z.logsumexp(1).pow(2).mean(), {"z_loss": 0.001}),
        "confidence penalty": (
            lambda z, y: ce(z, y) - 0.1 * torch.distributions.Categorical(logits=z).entropy().mean(),
            {"entropy": -0.1},
        ),
        "weight decay in the loss": (lambda z, y: ce(z, y) + 0.01, {"constant": 0.01}),
        "focal": (focal, {"gamma": 2.0}),
        "focal, detached factor": (focal_detached, {"gamma": 2.0}),
        "focal of the batch's mean": (focal_on_the_mean, None),
        "binary focal, alpha": (binary_focal, BIN | {"gamma": 2.0, "factor": 0.75, "pos_weight": (0.333333,) * 3}),
        "hard examples":
            (lambda z, y: F.cross_entropy(z, y, reduction="none").topk(max(1, len(y) // 2)).values.mean(), None),
        "weights over N": (lambda z, y: (W3[y] * ce(z, y, reduction="none")).mean(), WEIGHED),
        "mean of sequence means": (mean_of_means, {"ignore_index": (-100,)}),
        "labels shifted inside":
            (lambda z, ids: F.cross_entropy(z[:, :-1].flatten(0, 1), ids[:, 1:].flatten()), {"ignore_index": (-100,)}),
        "padding in the mean": (padded_mean, {"ignore_index": (0,)}),
        "float16": (lambda z, y: ce(z.half(), y), {"precision": "float16"}),
        "bfloat16, then float": (lambda z, y: ce(z.bfloat16().float(), y), {"precision": "bfloat16"}),
        "detached": (
            lambda z, y: ce(z.detach(), y),
            {"gradient": "missing: what the loss returns is cut off from its argument"},
        ),
        "arg max of the targets": (lambda z, t: F.cross_entropy(z, t.argmax(-1)), {"targets": ("one-hot",)}),
        "squared error": (nn.MSELoss(), None),
        "Brier": (lambda p, t: ((p - t) ** 2).sum(1).mean(), None),
        "Jensen-Shannon":
            (lambda z, t: -((0.5 * t + 0.5 * softmax(z)) * np.log(0.5 * t + 0.5 * softmax(z))).sum(1).mean(), None),
        "reverse KL": (lambda z, t: (softmax(z) * (xent.log_softmax(z) - np.log(t + 0.1))).sum(1).mean(), None),
        "margin": (nn.MultiMarginLoss(), None),
        "symmetric cross-entropy":
            (lambda z, t: ce(z, t) - (z.softmax(1) * torch.log(t + 0.0001)).sum(1).mean(), None),
        "generalised cross-entropy":
            (lambda z, y: ((1 - z.softmax(1).gather(1, y[:, None]) ** 0.7) / 0.7).mean(), None),
        "weights inside the focal's p": (focal_weighed, None),
        "probabilities of one class": (
            lambda p, y: -(y * np.log(p) + (1 - y) * np.log(1 - p)).mean() if p.ndim == 1 else np.empty(3).reshape(5),
            {"family": BCE} | NPROB,
        ),
    }  # fmt: skip


FAULTS: dict[str, tuple[Callable[[Loss], Loss], dict[str, Any]]] = {
    "smoothed": (lambda f: functools.partial(f, label_smoothing=0.1), {"smoothing": 0.1}),
    "weighed": (lambda f: functools.partial(f, weight=W3.double()), {**WEIGHED, **OVER_W}),
    "softmax twice":
            (lambda f: lambda z, y, **o: f(z.softmax(1), y, **o), {"reads": "logits, softmax applied twice"}),
    "sign": (lambda f: lambda z, y, **o: -f(z, y, **o), {"sign": -1}),
    "bits": (lambda f: lambda z, y, **o: f(z, y, **o) / math.log(2), {"unit": "bits"}),
    "a seventh": (lambda f: lambda z, y, **o: f(z, y, **o) / 7, {"factor": 0.142857}),
    "cooled": (lambda f: lambda z, y, **o: f(z / 0.5, y, **o), {"temperature": 0.5}),
    "255": (lambda f: functools.partial(f, ignore_index=255), {"ignore_index": (255,)}),
    "z-loss": (lambda f: lambda z, y, **o: f(z, y, **o) + 0.02 * z.logsumexp(1).pow(2).mean(), {"z_loss": 0.02}),
    "sum": (lambda f: functools.partial(f, reduction="sum"), SUM),
    "swapped": (lambda f: lambda y, z, **o: f(z, y, **o), {"first": "target"}),
}  # fmt: skip


def capped(z: Any, c: float) -> Any:
    return c * torch.tanh(z / c)


def fresh() -> dict[str, Case]:
    """What nobody had in mind while `diagnose` was written: options, penalties, losses that leave rows out."""

    def above(z: Any, y: Any) -> Any:
        each = F.cross_entropy(z, y, reduction="none")
        return each[each > 0.3].mean()

    def dice(z: Any, y: Any) -> Any:
        p, t = z.softmax(1), F.one_hot(y, z.shape[1]).to(z.dtype)
        return F.cross_entropy(z, y) + 1 - (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1)

    def balanced(z: Any, y: Any) -> Any:
        return F.cross_entropy(
            z, y, weight=len(y) / (torch.bincount(y, minlength=z.shape[1]) + 1).to(z.dtype)
        )

    def bootstrapped(z: Any, y: Any) -> Any:
        lp = z.log_softmax(1)
        return 0.8 * F.nll_loss(lp, y) - 0.2 * (lp.exp() * lp).sum(1).mean()

    def penalised(z: Any, y: Any, t: float = 1.0, **options: Any) -> Any:
        return F.cross_entropy(z / t, y, **options) + 0.02 * (z / t).logsumexp(1).pow(2).mean()

    w, over_w = W3.double(), OVER_W | WEIGHED
    return {
        "softcap of 30": (lambda z, y: ce(capped(z, 30.0), y), {"softcap": 30.0}),
        "softcap of 5, weights": (lambda z, y: ce(capped(z, 5.0), y, weight=w), over_w | {"softcap": 5.0}),
        "softcap and z-loss": (lambda z, y: penalised(capped(z, 5.0), y), {"softcap": 5.0, "z_loss": 0.02}),
        "softcap, smoothed":
            (lambda z, y: ce(capped(z, 8.0), y, label_smoothing=0.2), {"softcap": 8.0, "smoothing": 0.2}),
        "weights, z-loss": (lambda z, y: penalised(z, y, weight=w), over_w | {"z_loss": 0.02}),
        "weights, smoothing, z-loss": (
            lambda z, y: penalised(z, y, weight=w, label_smoothing=0.1),
            over_w | {"z_loss": 0.02, "smoothing": 0.1},
        ),
        "temperature, z-loss of it": (lambda z, y: penalised(z, y, 2.0), {"temperature": 2.0, "z_loss": 0.02}),
        "weights in a closure": (lambda z, y: (ce(z, y, reduction="none") * w[y]).sum() / w[y].sum(), over_w),
        "bootstrapped": (bootstrapped, {"factor": 0.8, "entropy": 0.2}),
        "kl_div of logits over 4, times 16": (
            lambda z, t: 16 * F.kl_div(F.log_softmax(z / 4, 1), t, reduction="batchmean"),
            {"family": KL, "temperature": 4.0, "factor": 16.0},
        ),
        "square root of p": (lambda p, y: F.nll_loss(p.sqrt().log(), y), NPROB | {"factor": 0.5}),
        "bits of weights": (lambda z, y: ce(z, y, weight=w) / math.log(2), over_w | {"unit": "bits"}),
        "weights and a label left out, sum": (
            nn.NLLLoss(weight=W3, ignore_index=2, reduction="sum"),
            LOGP | {"class_weights": (1.0, 5.0, 0.0), **SUM},
        ),
        "weights of columns, pos_weight": (
            BCEL(weight=W3, pos_weight=torch.tensor([1.0, 2.0, 3.0])),
            BIN | {**WEIGHED, "pos_weight": (1.0, 2.0, 3.0)},
        ),
        "xent, a denominator of 12":
            (functools.partial(xent.cross_entropy, denominator=12.0), {**SUM, "factor": 1 / 12}),
        "flooded": (lambda z, y: (F.cross_entropy(z, y) - 0.1).abs() + 0.1, None),
        "rows above 0.3": (above, None),
        "with a Dice loss": (dice, None),
        "margins": (lambda z, y: F.cross_entropy(z - 0.5 * F.one_hot(y, z.shape[1]), y), None),
        "poly-1": (lambda z, y: F.cross_entropy(z, y) + (1 - z.softmax(1).gather(1, y[:, None])).mean(), None),
        "divided by the labels that are not 0":
            (lambda z, y: F.cross_entropy(z, y, reduction="sum") / (y != 0).sum().clamp(min=1), None),
        "divided by the positives":
            (lambda z, t: F.binary_cross_entropy_with_logits(z, t, reduction="sum") / t.sum().clamp(min=1), None),
        "weights of the batch's counts": (balanced, None),
        "mixed with the next row's label":
            (lambda z, y: 0.7 * F.cross_entropy(z, y) + 0.3 * F.cross_entropy(z, y.roll(1)), None),
        "root of the mean square": (lambda z, y: ce(z, y, reduction="none").pow(2).mean().sqrt(), None),
        "median": (lambda z, y: ce(z, y, reduction="none").median(), None),
        "perplexity": (lambda z, y: ce(z, y).exp(), None),
        "a prior in the logits": (lambda z, y: ce(z + torch.arange(z.shape[1]).log1p(), y), None),
        "logits of length 16": (lambda z, y: ce(16 * F.normalize(z, dim=1), y), None),
        "spread of the batch": (lambda z, y: ce(z / z.std(), y), None),
        "yes or no, of indices": (
            lambda z, y: F.binary_cross_entropy_with_logits(z, F.one_hot(y, z.shape[1]).to(z.dtype)),
            BIN | {"targets": ("indices",)},
        ),
        "one minus p": (lambda z, y: F.nll_loss((1 - z.softmax(1)).log(), y), None),
        "labels off by one": (lambda z, y: ce(z, (y + 1) % z.shape[1]), None),
    }  # fmt: skip


def from_repositories() -> dict[str, Case]:
    """Losses of public repositories, in a few words of our own: what frameworks, tutorials and contests are used to."""

    def smoothed_for_five(z: Any, y: Any) -> Any:  # MachineLP/PyTorch_image_classifier
        return -(z.log_softmax(-1) * (F.one_hot(y, 5) * 0.9 + 0.1 / 5)).sum(-1).mean()

    def clamped_labels(z: Any, y: Any) -> Any:  # taishan1994/python_common_code_collection
        t = F.one_hot(y, 3).to(z.dtype).clamp(0.1 / 2, 0.9)
        return -(t * z.log_softmax(1)).sum(1).mean()

    def over_nonzero(
        z: Any, y: Any
    ) -> Any:  # with jax.nn.one_hot, for which a label that is no class is a row of 0
        t = (y[:, None] == np.arange(z.shape[-1])).astype(float)
        each = -(t * xent.log_softmax(z)).sum(-1)
        return each.sum() / np.count_nonzero(each)

    def with_delta(p: Any, t: Any) -> Any:  # oreilly-japan/deep-learning-from-scratch, with batches
        p, t = np.atleast_2d(p), np.atleast_2d(t)
        return -np.sum(t * np.log(p + 1e-7)) / len(p)

    def with_delta_by_index(p: Any, t: Any) -> Any:  # the same, later in the book
        t = t.argmax(axis=1) if t.size == p.size else t
        return -np.sum(np.log(p[np.arange(len(p)), t] + 1e-7)) / len(p)

    def label_plus_weight(t: Any, p: Any) -> Any:  # rmndrs89/my-gait-events-tcn
        return (F.binary_cross_entropy(p, t, reduction="none") * (t + 0.01)).mean()

    def four_dimensional_weights(t: Any, z: Any) -> Any:  # lanbowen23/cell_seg
        weights = (np.array([[[[1.0, 3.0, 30.0]]]]) * t).sum(-1)
        return (weights * -(t * xent.log_softmax(z)).sum(-1)).mean()

    def two_rows_of_weights(
        t: Any, p: Any
    ) -> Any:  # negative and positive weights of three labels, multi-label Keras
        low, high = np.array([0.5, 1.0, 2.0]), np.array([3.0, 2.0, 2.0])
        return -(high * t * np.log(p) + low * (1 - t) * np.log(1 - p)).mean()

    def logarithm_of_the_loss(z: Any, y: Any) -> Any:  # c0nn3r/RetinaNet
        loss = F.cross_entropy(z, y)
        return -((1 - loss.log()) ** 2) * loss

    def alpha_for_all(z: Any, y: Any) -> Any:  # clcarwin/focal_loss_pytorch
        lp = F.log_softmax(z, dim=1).gather(1, y.view(-1, 1)).view(-1)
        return (-0.25 * (1 - lp.exp()) ** 2 * lp).mean()

    def smoothed_padded_sum(z: Any, y: Any) -> Any:  # facebookresearch/fairseq
        lp, keep = z.log_softmax(-1), y != 1
        own, every = -lp.gather(1, y[:, None])[:, 0] * keep, -lp.sum(-1) * keep
        other = 0.1 / (z.shape[1] - 1)
        return ((1 - 0.1 - other) * own + other * every).sum()

    def upcast(z: Any, y: Any) -> Any:  # huggingface/transformers
        return F.cross_entropy(z.float(), y, ignore_index=-100)

    def t5(z: Any, t: Any) -> Any:  # google-research/t5x
        log_z = z.logsumexp(-1)
        return (log_z - (z * t).sum(-1) + 1e-4 * log_z**2).sum()

    def margin_of_trees(z: Any, y: Any) -> Any:  # logistic loss of gradient boosting, flat arrays
        if z.ndim > 1:
            raise ValueError("margins are flat")
        return np.log1p(np.exp(-(2 * y - 1) * z)).mean()

    def balanced_by_class(
        p: Any, y: Any
    ) -> Any:  # a contest's balanced log loss: a mean of the classes' means
        each = -np.log(picked(p, y))
        return np.mean([each[y == k].mean() for k in np.unique(y)])

    def chainer_counts_all(z: Any, y: Any) -> Any:  # chainer.functions.softmax_cross_entropy(normalize=False)
        keep = y != -1
        return -(xent.log_softmax(z)[np.arange(len(y)), np.where(keep, y, 0)] * keep).sum() / len(y)

    def softmax_then_logarithm(
        z: Any, t: Any
    ) -> Any:  # a contest's log loss: clip, divide by the row's sum, clip
        p = np.clip(softmax(z), 1e-15, 1 - 1e-15)
        return -(t * np.log(p / p.sum(1, keepdims=True))).sum(1).mean()

    delta = {"clip": "adds 1.0e-07 to the probability"}
    return {
        "weights on the logarithms":  # aqx95/cassava_kaggle
            (lambda z, t: -(t * z.log_softmax(-1) * W3).sum(-1).mean(), WEIGHED),
        "smoothed, five classes": (smoothed_for_five, {"smoothing": 0.1, "classes": (5,)}),
        "labels clamped": (clamped_labels, {"smoothing": 0.15}),
        "N by N, and right":  # the same: (N, 1) + (N,), whose mean is right all the same
            (lambda z, y: (-z.gather(1, y[:, None]) + (z + 1e-12).exp().sum(1).log()).mean(), {}),
        "one-hot of ten":  # MeerkatPerson/ml_project2
            (lambda z, y: -np.mean(np.sum(np.eye(10)[y] * z, axis=-1)), LOGP | {"classes": (10,)}),
        "divided by the losses that are not 0": (over_nonzero, {"ignore_index": (-1,)}),
        "delta": (with_delta, NPROB | delta),
        "delta, indices or one-hot": (with_delta_by_index, NPROB | delta | {"targets": ("indices", "one-hot")}),
        "over the mean prediction":  # muneebaadil/line-detection-using-cnns
            (lambda p, t: (-(t * np.log(p) + (1 - t) * np.log(1 - p)) / p.mean(-1, keepdims=True)).mean(), None),
        "the label plus 0.01":
            (label_plus_weight, BIN | FIRST | NPROB | {"factor": 0.01, "pos_weight": (101.0,) * 3}),
        "weights of four dimensions": (four_dimensional_weights, FIRST | {"class_weights": (1.0, 3.0, 30.0)}),
        "weights of both labels": (
            two_rows_of_weights,
            BIN | FIRST | NPROB | {"class_weights": (0.5, 1.0, 2.0), "pos_weight": (6.0, 2.0, 1.0)},
        ),
        "the loss's logarithm": (logarithm_of_the_loss, None),
        "focal, one alpha": (alpha_for_all, {"gamma": 2.0, "factor": 0.25}),
        "smoothed over the others, padding 1, sum": (
            smoothed_padded_sum,
            SUM | {"smoothing": 0.1, "smoothing_over": "the K - 1 others", "ignore_index": (1,)},
        ),
        "255 in the mean":  # open-mmlab/mmsegmentation, avg_non_ignore=False
            (lambda z, y: F.cross_entropy(z, y, reduction="none", ignore_index=255).mean(), {"ignore_index": (255,)}),
        "upcast": (upcast, {"precision": "float32", "ignore_index": (-100,)}),
        "z-loss, sum": (t5, SUM | {"z_loss": 0.0001}),
        "a hundred times the logits":  # openai/CLIP, whose logits are 100 times a cosine
            (lambda z, y: F.cross_entropy(100.0 * z, y), {"temperature": 0.01}),
        "sum over the labels":  # Caffe's SigmoidCrossEntropyLoss, optax with a sum over the labels
            (lambda z, t: F.binary_cross_entropy_with_logits(z, t, reduction="none").sum(-1).mean(), {"family": BCE}),
        "flat margins": (margin_of_trees, {"family": BCE}),
        "mean of the classes' means": (balanced_by_class, None),
        "padding counts in the divisor": (chainer_counts_all, {"ignore_index": (-1,)}),
        "labels from one": (lambda z, y: F.cross_entropy(z, y - 1), None),  # Torch7's ClassNLLCriterion
        "Poisson": (lambda t, p: (p - t * np.log(p + 1e-7)).mean(), None),
        "Poisson, PyTorch": (nn.PoissonNLLLoss(log_input=False), None),
        "clipped twice": (softmax_then_logarithm, {"clip": "at 1.0e-15"}),
        "straight through":  # a hard sample's straight-through loss, without the noise
            (lambda z, y: F.nll_loss((z.softmax(1) + z.softmax(1).detach() - z.softmax(1).detach()).log(), y), {}),
    }  # fmt: skip


def two_faults() -> dict[str, Case]:
    """Pairs of faults, in both orders where the order of wrapping matters; each is in the other's way."""
    found: dict[str, Case] = {}
    names = list(FAULTS)
    for i, one in enumerate(names):
        for two in names[i + 1 :]:
            expected = {**FAULTS[one][1], **FAULTS[two][1]}
            if {one, two} in ({"weighed", "sum"},):
                expected["denominator"] = "nothing"
            if {one, two} == {"bits", "a seventh"}:
                expected = {"factor": round(1 / 7 / math.log(2), 6)}
            if "sum" in (one, two) and "z-loss" in (one, two):
                continue  # a sum of losses and a mean of penalties: no sum and no mean
            if "z-loss" in (one, two) and {"sign", "bits", "a seventh"} & {one, two}:
                continue  # which is wrapped first decides the penalty: stated below
            if {one, two} == {"softmax twice", "z-loss"} or {one, two} == {"softmax twice", "cooled"}:
                continue
            outer, inner = (two, one) if two == "swapped" else (one, two)
            wrapped = FAULTS[outer][0](FAULTS[inner][0](ce))
            found[f"{one} and {two}"] = (wrapped, expected)
    return found
