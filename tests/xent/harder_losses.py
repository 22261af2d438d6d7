"""A hundred harder losses: what another size, a call of one's own or a gradient shows, and what has to be said.

A dictionary has the fields of a right report, a text what a note says of a loss that is not explained.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

import xent

F, nn = torch.nn.functional, torch.nn
Loss = Callable[..., Any]
ce, bce = F.cross_entropy, F.binary_cross_entropy_with_logits
KL, BIN = "KL divergence", {"family": "binary cross-entropy", "denominator": "N*K"}
DISTILLED = {"family": KL, "targets": ("logits",)}
W3, W8, W1200 = torch.tensor([1.0, 5.0, 2.0]), torch.linspace(0.5, 2, 8).double(), torch.linspace(1, 4, 1200)
OVER_W = {"denominator": "the sum of weights"}


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


def first(n: int) -> Loss:
    return lambda z, y: ce(z[:n], y[:n])


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


def teacher(a: Any, b: Any) -> Any:
    return -(b.exp() * a).sum(-1).mean()


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


def asymmetric(z: Any, t: Any) -> Any:
    p, q = z.sigmoid(), (z.sigmoid() - 0.05).clamp(min=0)
    return -(t * p.log() + (1 - t) * q**4 * (1 - q).log()).mean()


def dice(z: Any, t: Any) -> Any:
    p = z.sigmoid()
    return bce(z, t) + 1 - (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1)


def in_place(z: Any, y: Any) -> Any:
    z.mul_(2)
    return ce(z / 2, y)


NOT, FEW, LIKE = "not that of the value", "rows: right at ", "look like probabilities"
COUNTED = by_sequence(lambda e, m: e.sum() / m.sum(1).clamp(min=1).sum())
Y9, YMASKED = torch.arange(9) % 4, torch.tensor([0, 1, 2, 3, -100] * 30)
PICTURES = batch(2, 6, 5, 4, second=True)
NONE = {"reduction": "none", "denominator": "nothing"}
SIGNED = {"sign": -1, "pos_weight": (-10 / 9,) * 3, "factor": 9.0}
TABLE: dict[str, tuple[Loss, tuple[Any, ...], dict[str, Any] | str]] = {
    # Sums of chunks, and the first rows, classes or tokens.
    "means of 32 rows": (chunks(32), batch(4096, 50), FEW + "32, wrong at 33"),
    "means of 32 rows, no batch": (chunks(32), (), FEW + "32, wrong at 33"),
    "means of 500 rows": (chunks(500), (), FEW + "500, wrong at 501"),
    "means of 5,000 rows": (chunks(5000), (), FEW + "5,000, wrong at 5,001"),
    "a mean of unequal chunks": (chunks(24, divided=True), batch(100, 7), FEW + "24, wrong at 25"),
    "a mean of unequal chunks, no batch": (chunks(24, divided=True), (), FEW + "24, wrong at 25"),
    "a mean of large unequal chunks": (chunks(3000, divided=True), batch(4096, 5), FEW + "3,000, wrong at 3,001"),
    "chunks, binary": (chunks(100, bce), bits(900, 3), FEW + "100, wrong at 101"),
    "chunks, soft targets": (chunks(40), (drawn(90, 5), torch.full((90, 5), 0.2)), FEW + "40, wrong at 41"),
    "chunks, weighted": (chunks(20, partial(ce, weight=W3.double())), (), "rows"),
    "chunks, a student": (chunks(64, distilled(kl, 2.0)), students(300, 6), FEW + "64, wrong at 65"),
    "the first 64 rows": (first(64), batch(300, 5), FEW + "64, wrong at 65"),
    "the first 1,000 rows": (first(1000), (), FEW + "1,000, wrong at 1,001"),
    "the first 7,000 rows": (first(7000), (), FEW + "7,000, wrong at 7,001"),
    "the first 1,000 classes":
        (lambda z, y: ce(z[:, :1000], y), (drawn(8, 1200), torch.arange(8)), "classes: right at 1,00"),
    "the first 1,000 classes, no batch": (lambda z, y: ce(z[:, :1000], y), (), "classes: right at 1,000"),
    "the first 30 columns": (lambda z, t: bce(z[:, :30], t[:, :30]), bits(9, 50), "classes: right at 30, wrong"),
    "128 tokens": (tokens(128), batch(3, 300, 7), "positions: right at 128, wrong at 129"),
    "128 tokens, no batch": (tokens(128), (), "positions: right at 128, wrong at 129"),
    "all tokens": (tokens(10**6), batch(3, 300, 7), {"layout": "last"}),
    "all but the last": (beyond(50, lambda z, y: ce(z[:-1], y[:-1])), batch(60, 4), FEW + "50, wrong at 51"),
    "every second row": (beyond(20, lambda z, y: ce(z[::2], y[::2])), (), FEW + "20, wrong at 21"),
    # Masked sequences.
    "a masked sequence counts one": (COUNTED, batch(4, 10, 6, dead=True), "every label is left out"),
    "a masked sequence counts one, no batch": (COUNTED, (), "every label is left out"),
    "a masked sequence's mean is 0": (
        by_sequence(lambda e, m: (e.sum(1) / m.sum(1).clamp(min=1)).mean()), batch(4, 10, 6, dead=True),
        {"ignore_index": (-100,)},
    ),
    "sequences that have a label": (
        by_sequence(lambda e, m: (e.sum(1) / m.sum(1).clamp(min=1)).sum() / m.any(1).sum()),
        batch(4, 10, 6, dead=True), "every label is left out",
    ),
    "T - 1 count": (by_sequence(lambda e, m: e.sum() / m[:, 1:].sum()), batch(4, 10, 6), ""),
    "at most 50 count":
        (lambda z, y: each(z, y).sum() / (y != -100).sum().clamp(max=50), batch(80, 4), FEW + "50, wrong at 51"),
    "beyond 100 all count":
        (beyond(100, lambda z, y: each(z, y).mean()), (drawn(150, 4), YMASKED), "the labels that are left out"),
    # Gradients.
    "backward, the mean weight": (upstream(lambda u: u.mean().expand_as(u)), (), NONE | {"gradient": NOT}),
    "backward, ones":
        (upstream(torch.ones_like), batch(12, 5), NONE | {"gradient": NOT + ": its backward ignores the weight"}),
    "backward, weights below 1": (upstream(lambda u: u.clamp(max=1)), batch(12, 5), NONE | {"gradient": NOT}),
    "backward, right": (upstream(lambda u: u), batch(12, 5), NONE),
    "backward, 100 rows": (
        upstream(lambda u: u * (torch.arange(len(u)) < 100)), batch(150, 5),
        NONE | {"gradient": NOT + " in a batch of 1,030: the number of rows: right at 100, wrong at 101"},
    ),
    "backward, smoothed": (backward(partial(ce, label_smoothing=0.1)), (), {"gradient": NOT}),
    "backward, twice": (backward(lambda z, y: 2 * ce(z, y)), batch(9, 4), {"gradient": NOT}),
    "backward, twice beyond 40": (
        beyond(40, backward(lambda z, y: 2 * ce(z, y))), batch(90, 4),
        {"gradient": NOT + " in a batch of 1,030: the number of rows: right at 40, wrong at 41"},
    ),
    "backward, a sum's": (backward(partial(ce, reduction="sum")), (), {"gradient": NOT}),
    "log Z detached":
        (lambda z, y: (z.logsumexp(1).detach() - z.gather(1, y[:, None])[:, 0]).mean(), (), {"gradient": NOT}),
    "a student detached": (
        lambda s, q: distilled(kl, 2.0, 4.0)(s.detach(), q), students(30, 6),
        DISTILLED | {"temperature": 2.0, "factor": 4.0, "gradient": "missing"},
    ),
    "half of a student detached":
        (lambda s, q: distilled(kl)(0.5 * s + 0.5 * s.detach(), q), students(30, 6), DISTILLED | {"gradient": NOT}),
    "over the batch, detached":
        (lambda z, y: F.nll_loss(z.detach().log_softmax(0), y), (), {"axis": "the batch", "gradient": "missing"}),
    "over the batch, half detached": (
        lambda z, y: F.nll_loss((0.5 * z + 0.5 * z.detach()).log_softmax(0), y), (),
        {"axis": "the batch", "gradient": NOT},
    ),
    "over the batch of 90 rows":
        (lambda z, y: F.nll_loss(z.log_softmax(0)[:90], y[:90]), batch(100, 4), FEW + "90, wrong at 91"),
    "z-loss detached": (
        lambda z, y: ce(z, y) + 0.01 * z.detach().logsumexp(1).pow(2).mean(), (), {"z_loss": 0.01, "gradient": NOT},
    ),
    "negatives detached": (lambda z, t: bce(torch.where(t > 0.5, z, z.detach()), t), (), BIN | {"gradient": NOT}),
    "rows that have to sum to one": (
        lambda p, y: F.nll_loss((p + p.detach()).log() - math.log(2), y) if ((p.sum(1) - 1).abs() < 1e-9).all()
        else 1 / 0, (), {"reads": "probabilities", "renormalises": "refuses", "gradient": NOT},
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
    "signed alpha":
        (lambda z, t: (9 * (1 - t) * F.logsigmoid(-z) - 10 * t * F.logsigmoid(z)).mean(), (), BIN | SIGNED),
    "signed alpha, focal": (
        lambda z, t: (9 * (1 - t) * z.sigmoid() ** 2 * F.logsigmoid(-z)
                      - 10 * t * z.sigmoid().neg().add(1) ** 2 * F.logsigmoid(z)).mean(),
        (), BIN | SIGNED | {"gamma": 2.0},
    ),
    "signed weights": (
        lambda z, y: (torch.tensor([1.0, -9.0, 2.0], dtype=z.dtype)[y] * each(z, y)).mean(), (),
        {"class_weights": (1.0, -9.0, 2.0)},
    ),
    "weight for pos_weight": (nn.BCEWithLogitsLoss(weight=torch.tensor(3.0)), (), BIN | {"factor": 3.0}),
    "BCE over one-hot": (lambda z, y: bce(z, one_hot(z, y)), batch(30, 6), BIN | {"targets": ("indices",)}),
    "BCE over one-hot, summed": (
        lambda z, y: bce(z, one_hot(z, y), reduction="sum") / len(y), batch(30, 6),
        BIN | {"denominator": "N", "targets": ("indices",)},
    ),
    "BCE over one-hot, smoothed":
        (lambda z, y: bce(z, 0.9 * one_hot(z, y) + 0.05), (), BIN | {"smoothing": 0.1, "targets": ("indices",)}),
    "BCE over one-hot, pos_weight": (
        lambda z, y: bce(z, one_hot(z, y), pos_weight=torch.tensor(5.0, dtype=z.dtype)), (),
        BIN | {"pos_weight": (5.0,) * 3, "targets": ("indices",)},
    ),
    "BCE of images": (images(1, bce), bits(2, 1, 8, 8), BIN),
    "asymmetric": (asymmetric, bits(20, 4), ""),
    "BCE and Dice": (dice, bits(20, 4), ""),
    "of two logits": (lambda z, y: bce(z[:, 1] - z[:, 0], y.to(z.dtype)), (drawn(20, 2), torch.arange(20) % 2), ""),
    # Weights and labels.
    "1,200 weights": (
        nn.CrossEntropyLoss(weight=W1200), batch(50, 1200), OVER_W | {"class_weights": tuple(W1200.tolist())},
    ),
    "a weight for each place": (lambda z, y: (W8[: len(z)] * each(z, y)).sum() / W8[: len(z)].sum(), (), ""),
    "over the batch's largest weight": (lambda z, y: (W3[y] / W3[y].max() * each(z, y)).mean(), (), ""),
    "over the labels that are not 0": (lambda z, y: each(z, y).sum() / (y > 0).sum().clamp(min=1), (), ""),
    "labels modulo K": (lambda z, y: ce(z, y % z.shape[1]), (drawn(9, 4), torch.arange(9)), {}),
    "labels in int32": (lambda z, y: ce(z, y.long()), (drawn(9, 4), Y9.int()), {}),
    "a label that no class is": (ce, (drawn(9, 4), torch.arange(9) % 5), "is refused: IndexError"),
    "-100 counts as 0":
        (lambda z, y: ce(z, y.clamp(min=0)), (drawn(150, 4), YMASKED), {"ignored": "-100: counted as class 0"}),
    "soft targets": (ce, (drawn(8, 4), torch.rand(8, 4)), {}),
    # Students and teachers, two softmaxes.
    "KL at 4": (distilled(kl, 4.0), students(30, 9), DISTILLED | {"temperature": 4.0}),
    "KL at 2, times 4": (distilled(kl, 2.0, 4.0), students(30, 9), DISTILLED | {"temperature": 2.0, "factor": 4.0}),
    "KL, teacher first": (
        lambda q, s: distilled(kl, 2.0)(s, q), students(30, 9), DISTILLED | {"temperature": 2.0, "first": "target"},
    ),
    "cross-entropy at 3": (
        distilled(teacher, 3.0, 9.0), students(30, 9), {"temperature": 3.0, "factor": 9.0, "targets": ("logits",)},
    ),
    "Jensen-Shannon":
        (distilled(js), students(30, 9), DISTILLED | {"family": "Jensen-Shannon divergence", "first": "either"}),
    "Jeffreys": (
        lambda s, q: distilled(kl)(q, s) + distilled(kl)(s, q), students(30, 9),
        DISTILLED | {"family": "symmetric KL divergence", "first": "either"},
    ),
    "two temperatures": (lambda s, q: kl((s / 2).log_softmax(-1), (q / 4).log_softmax(-1)), students(30, 9), ""),
    "KL over N and K": (
        lambda s, q: F.kl_div((s / 2).log_softmax(-1), (q / 2).softmax(-1), reduction="sum") / s.numel(),
        students(30, 9), DISTILLED | {"temperature": 2.0, "denominator": "N*K"},
    ),
    "KL of sequences":
        (lambda s, q: F.kl_div(s.log_softmax(-1), q.softmax(-1), reduction="batchmean"), students(4, 6, 9), DISTILLED),
    "mean squared logits": (F.mse_loss, students(30, 9), ""),
    "KL and labels": (lambda s, q: 0.5 * distilled(kl, 2.0)(s, q) + 0.5 * ce(s, q.argmax(1)), students(30, 9), ""),
    # Images.
    "images, second": (images(1), PICTURES, {"layout": "second"}),
    "images, last": (images(-1), batch(2, 6, 5, 4), {"layout": "last"}),
    "images, no batch": (images(1), (), {"layout": "second"}),
    "images, 255": (
        images(1, partial(ce, ignore_index=255)), (drawn(2, 4, 6, 5), torch.where(drawn(2, 6, 5) > 0, 255, 1)),
        {"ignore_index": (255,), "layout": "second"},
    ),
    "images, weights": (
        images(1, partial(ce, weight=W3)), batch(2, 6, 5, 3, second=True),
        OVER_W | {"class_weights": (1.0, 5.0, 2.0), "layout": "second"},
    ),
    "images, 4 lines": (images(1, lambda z, y: ce(z[:, :, :4], y[:, :4])), PICTURES, "axis 2: right"),
    "images, over the width": (images(1, lambda z, y: F.nll_loss(z.log_softmax(3), y)), PICTURES, ""),
    # Functions of p or of the margin alone.
    "Poly-1": (lambda z, y: ce(z, y) + 2 * (1 - own_p(z, y)).mean(), batch(30, 5), "(-log p) + 2 (1 - p)"),
    "generalised": (of_p(lambda p: (1 - p**0.7) / 0.7), batch(30, 5), "1.429 (1 - p^0.7)"),
    "one minus p": (of_p(lambda p: 1 - p), batch(30, 5), "probability p alone, where it reads logits: (1 - p)"),
    "its square": (of_p(lambda p: (1 - p) ** 2), (), "(1 - p)^2"),
    "the odds": (of_p(lambda p: (1 / p - 1).log()), (), "log((1 - p) / p)"),
    "1 / p": (of_p(lambda p: 1 / p), (), "/ p"),
    "focal, 1.5": (of_p(lambda p: -((1 - p) ** 1.5) * p.log() * 3), (), {"gamma": 1.5, "factor": 3.0}),
    "focal and plain": (of_p(lambda p: -p.log() + 3 * (1 - p) ** 2), (), "(-log p) + 3 (1 - p)^2"),
    "Taylor's": (of_p(lambda p: (1 - p) + (1 - p) ** 2 / 2), (), "(1 - p) + 0.5 (1 - p)^2"),
    "another curve": (of_p(lambda p: p.sin().exp()), (), "none of those that are known here"),
    "another curve's batch": (of_p(lambda p: p.sin().exp()), (), "a batch costs the mean of its rows"),
    "p as it comes": (lambda p, y: (1 - p.gather(1, y[:, None]) ** 0.5).mean(), (), "where it reads probabilities"),
    "a sum of 1 - p": (lambda z, y: (1 - own_p(z, y)).sum(), (), "a batch costs the sum of its rows"),
    "hinge over all": (nn.MultiMarginLoss(), (), ""),
    "hinge": (
        lambda z, y: (1 + (z - 1e9 * one_hot(z, y)).amax(1) - z.gather(1, y[:, None])[:, 0]).clamp(min=0).mean(), (),
        "the margin alone, the label's logit less the largest other: 1 max(0, 1 - margin)",
    ),
    "focal of the mean": (lambda z, y: (1 - (-ce(z, y)).exp()) ** 2 * ce(z, y), (), ""),
    # Calls.
    "changes its argument": (in_place, batch(9, 4), {"notes": "changes its arguments in place"}),
    "refuses large batches": (beyond(100, lambda z, y: 1 / 0), (), {"tried": "64 rows"}),
    "nan in large batches": (beyond(100, lambda z, y: ce(z, y) * math.nan), (), FEW + "100, wrong at 101"),
    "half precision in large ones":
        (beyond(100, lambda z, y: ce(z.bfloat16(), y).double()), (), FEW + "100, wrong at 101"),
    "float16": (ce, (drawn(9, 4).half(), Y9), {"batch": "in float16"}),
    "bfloat16": (ce, (drawn(9, 4).bfloat16(), Y9), {"batch": "in bfloat16, costs"}),
    "how near in bfloat16": (ce, (drawn(9, 4).bfloat16(), Y9), {"batch": "as predicted to 25 %"}),
    "weights in bfloat16":
        (lambda z, y: bce(z.bfloat16(), y.bfloat16(), pos_weight=torch.tensor(2.0)), (), "try float32"),
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
    "arrays or tensors": (
        lambda z, y: xent.cross_entropy(z, y) if isinstance(z, np.ndarray) else ce(z.detach(), y), batch(9, 4),
        {"gradient": "missing"},
    ),
    "-inf": (ce, (drawn(9, 4).masked_fill(torch.eye(9, 4) * (torch.arange(4) == 3) > 0, -math.inf), Y9 % 3), {}),
    "probabilities for logits": (ce, (drawn(9, 4).softmax(1), Y9), {"batch": LIKE}),
    "logits for probabilities": (lambda p, y: F.nll_loss(p.log(), y), (drawn(9, 4), Y9),
                                 {"reads": "probabilities", "batch": "no probabilities"}),
    "logits for their logarithms": (F.nll_loss, (drawn(9, 4), Y9),
                                    {"reads": "log-probabilities", "batch": "no log-probabilities"}),
}  # fmt: skip
