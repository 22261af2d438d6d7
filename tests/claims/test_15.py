"""What chapter 15 claims, and attempts to refute it; on frozen results in test_records.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import brentq
from scipy.special import logsumexp
from torch import Tensor

import xent
import xent.torch as xt
import xent.torch._linear_step as linear
from adversary import Array, Draw, claim, held, logits, lowest, printed, rng
from experiments.large_vocabularies import memory

MIB = 2**20
Blocked: Any = memory.Blocked  # the chapter's sketch, without its types
Options: Any = torch.nn.LinearCrossEntropyOptions


def layer(
    g: Draw, rows: int, classes: int, width: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Hidden states and the weight of a last layer."""
    hidden, weight = (torch.tensor(g.normal(size=(n, width))) for n in (rows, classes))
    return hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_()


def labels(g: Draw, rows: int, classes: int) -> Tensor:
    return torch.tensor(g.integers(classes, size=rows))


def slopes(loss: Tensor, *at: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, at, retain_graph=True)


def off(found: Tensor, right: Tensor) -> float:
    return float((found.double() - right.double()).norm() / right.double().norm())


# ------------------------------------------------------------------------------------- memory of a plain loss


CHUNK = 1 + 2 * 256 / 1024  # the array that chunks alone keep, and a chunk's own, which come and go


@claim(
    "PyTorch's float32 cross-entropy with labels, without `torch.compile`",
    "Chunks of rows alone keep one array",
    on=[("plain", 2.7, 3.3), ("plain, logits kept", 3.7, 4.3), ("chunks alone", CHUNK - 0.3, CHUNK + 0.3),
        ("chunks, checkpointed", 0, 1), ("blocked", 0, 1)],
    but_not={"a plain loss of two arrays": ("plain", 1.7, 2.3), "chunks alone without it": ("chunks alone", 0, 1),
             "checkpointed, with it": ("chunks, checkpointed", 1, 2), "blocked, with it": ("blocked", 1, 2)},
)  # fmt: skip
def test_arrays_of_the_logits_size(way: str, least: float, most: float) -> None:
    g = rng(0)
    rows, classes, kept = 1024, int(g.integers(3500, 4500)), []
    given = (*layer(g, rows, classes, 8, torch.float32), labels(g, rows, classes))

    def step() -> None:
        kept.append(memory.WAYS[way](*given))
        torch.autograd.backward(kept[0][0] if isinstance(kept[0], tuple) else kept[0])

    assert least < held(step).max() / (4 * rows * classes) < most


# ------------------------------------------------------------------------------------- the state of a maximum and a sum


test_one_look_is_enough = claim(
    "A log-sum-exp needs one look at each block",
    on=["eq-vocab-state", "eq-vocab-associative"],
    but_not={
        "a sum that is not shifted as the maximum rises": ("eq-vocab-state", "e^{m_A - m} +", "+"),
        "the other block's not shifted": ("eq-vocab-state", r"s_B\, e^{m_B - m}", "s_B"),
    },
)(printed)


# ----------------------------------------------------------------------------------- the linear losses of xent.torch


@claim(
    "`xent.torch.linear_cross_entropy` works by rows and",
    on=[(reduction, rows) for reduction in ("mean", "sum") for rows in (1, 5, 200)],
    but_not={"each loss for itself": ("none", 5)},
)
def test_when_the_gradients_are_formed(reduction: Any, rows: int) -> None:
    """The products that a backward pass needs, counted."""
    products: list[str] = []

    def counted(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        products.append(name)
        return function(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("_project", "_into_hidden", "_add_product"):
            patch.setattr(linear, name, partial(counted, name, getattr(linear, name)))
        y = torch.zeros(rows, dtype=torch.long)
        loss = xt.linear_cross_entropy(*layer(rng(15), rows, 50_000, 2), y, reduction=reduction)
        forward = len(products)
        torch.autograd.backward(loss.sum())
        assert len(products) == forward > 0


def one_block(rows: int, classes: int, of: Any, models: int = 1, own: float = 1.5, blocks: int = 1) -> None:
    """What a loss of float32 logits holds besides the gradients: a block of each model's, and a cache's indices.

    That its gradients are those of the plain loss, tests/xent/test_linear.py shows.
    """
    g = rng(2)
    h, w = layer(g, rows, classes, 2, torch.float32)
    y, block = labels(g, rows, classes), 4 * max(32 * classes, 3 * MIB)
    assert block < 4 * rows * classes / 2  # or nothing would be saved
    room = 5 * MIB // 4  # what is kept of each row of the block
    if of in ("forward", "jsd"):
        run = partial(xt.linear_distillation_loss, h, w, h.detach(), w.detach(), direction=of)
        room = {"forward": 8, "jsd": 12}[of] * MIB  # strips of 2^18 logits to work in
    elif of == "labels":
        run = partial(xt.linear_cross_entropy, h, w, y)
    else:  # a cache of so many classes a row
        indices = (y[:, None] + torch.arange(int(of))) % classes
        kept = torch.full(indices.shape, 0.5 / int(of))
        cache = xt.TopK(indices, torch.full((rows,), 0.5), probs=kept)
        run = partial(xt.linear_distillation_loss, h, w, teacher_top_k=cache, targets=y, alpha=0.5)
        room = int(6 * MIB + own * (indices.nbytes + kept.nbytes))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("BLOCK", "LEAST", "STEP") if blocks == 0 else ():
            patch.setattr(linear, name, 2**40)
        most = held(lambda: run().backward()).max() - 4 * 2 * (rows + classes)
    assert (models - 0.01) * block < most < models * block + room


test_linear_losses_never_hold_the_logits = claim(
    "The linear losses of `xent.torch` have the gradients of the plain losses",
    on=[(800, 10_000, "labels"), (4000, 3000, "labels"), (80, 110_000, "labels"), (1600, 5000, "forward", 2),
        (1600, 5000, "jsd", 2), (800, 10_000, "1"), (40_000, 600, "64")],
    but_not={"12 MiB for both models": (1600, 5000, "forward", 1), "no cache": (40_000, 600, "64", 1, 0),
             "one block of all logits": (800, 10_000, "labels", 1, 0, 0), "of two": (800, 10_000, "forward", 2, 0, 0),
             "with a cache": (800, 10_000, "1", 1, 1.5, 0)},
)(one_block)  # fmt: skip


@claim(
    "Logits lose digits when they are stored in bfloat16",
    "Converting afterwards does not undo",
    on=[(20_000, 64, 0.4), (20_000, 16, 1.0), (20_000, 256, 0.15), (100, 64, 0.1)],
    but_not={"logits that were kept in float32": (20_000, 64, 0.4, torch.float32)},
)
def test_digits_lost_in_storage(classes: int, width: int, scale: float, kept: Any = torch.bfloat16) -> None:
    """Converted, the loss is that of the rounded logits, a thousand times as far off as that of blocks in float32."""
    g = rng(3)
    h, w = (torch.tensor(s * g.normal(size=(n, width))).bfloat16() for s, n in ((1.0, 64), (scale, classes)))
    z = h.double() @ w.double().T
    y = torch.tensor([g.choice(classes, p=row / row.sum()) for row in z.softmax(1).numpy()])
    exact, rounded = (F.cross_entropy(x, y, reduction="none") for x in (z, z.bfloat16().double()))
    converted = F.cross_entropy(z.to(kept).float(), y, reduction="none").double()
    ours = xt.linear_cross_entropy(h, w, y, reduction="none").double()
    assert (converted - rounded).abs().max() < 1e-5
    assert (ours - exact).abs().mean() < (converted - exact).abs().mean() / 1000


@cache
def lost(part: float, spread: float, classes: int = 1500, width: int = 64) -> tuple[float, ...]:
    """A divergence, and what rounded logits cost the gradient of it and of labels, and blocks in float32 that of it."""
    g, rows = rng(9), 128 if classes < 5000 else 32
    h, w, dh, dw = (torch.tensor(g.normal(size=(n, width))) for n in (rows, classes) * 2)
    scaled = (h, w * spread / width**0.5, h + part * dh, (w + part * dw) * spread / width**0.5)
    h, w, u, v = (x.bfloat16() for x in scaled)
    z, t = h.double() @ w.double().T, u.double() @ v.double().T
    y = torch.multinomial(t.softmax(1), 1)[:, 0]

    def of_weight(loss: Callable[[Tensor, Tensor], Tensor], kind: torch.dtype) -> Tensor:
        at, taught = (x.to(kind).double().requires_grad_() for x in (z, t))
        return slopes(loss(at, taught), at)[0].T @ h.double()

    hard: Any = lambda z, _: F.cross_entropy(z, y)  # noqa: E731
    exact = [of_weight(loss, torch.float64) for loss in (hard, xt.distillation_loss)]
    rounded = [of_weight(loss, torch.bfloat16) for loss in (hard, xt.distillation_loss)]
    w.requires_grad_()
    (blocks,) = slopes(xt.linear_distillation_loss(h, w, u, v), w)
    divergence = F.kl_div(z.log_softmax(1), t.softmax(1), reduction="batchmean").item()
    return divergence, off(rounded[1], exact[1]), off(rounded[0], exact[0]), off(blocks, exact[1])


NEAR = (0.3, 0.1, 0.03, 0.01)  # parts of noise in the teacher
LAYERS = [(1.0, 300, 64), (8.0, 300, 64), (2.0, 2000, 16), (4.0, 1000, 256), (4.0, 12_000, 16)]


@pytest.mark.slow
@claim(
    "A student nearer to its teacher loses more of its gradient",
    on=LAYERS,
    but_not={
        "labels": (2.0, 2000, 16, 2), "logits of a block in float32": (2.0, 2000, 16, 3),
        "above half a nat": (2.0, 2000, 16, 1, (30.0, 3.0, 1.0, 0.5), math.inf),
    },
)  # fmt: skip
def test_rounded_logits_near_a_teacher(
    spread: float, classes: int, width: int, of: int = 1, parts: Any = NEAR, most: float = 0.5
) -> None:
    """The page's layer, and others, with logits up to twice as large; by a tenth of the divergence it doubles."""
    found = np.array([lost(part, spread, classes, width) for part in parts])
    # An error of a half is not one of three halves.
    below = found[(found[:, 0] < most) & (found[:, of] < 0.6)]
    if len(below) < 2:
        raise RuntimeError(f"too few divergences: {found}")
    assert 10 ** -np.polyfit(np.log(below[:, 0]), np.log(below[:, of]), 1)[0] > 2.25
    assert (np.diff(below[:, of]) > 0).all() and (below[:, 1] > 2 * below[:, 3]).all()


@claim(
    "With the logits of a block in float32 the error is",
    on=[(part, spread) for part in (1.0, *NEAR) for spread in (2.0, 4.0)],
    but_not={"rounded": (0.1, 2.0, 1), "rounded, labels": (0.1, 4.0, 2)},
)
def test_logits_of_a_block_in_float32(part: float, spread: float, of: int = 3) -> None:
    assert 0.0015 < lost(part, spread)[of] < 0.0025


# ------------------------------------------------------------------------------------------ z-loss and soft cap


test_when_the_z_loss_is_free = claim(
    "A z-loss leaves the optimal probabilities",
    on=["eq-vocab-zloss-free"],
    but_not={
        "at any shift": ("eq-vocab-zloss-free", r"(\log Z + a)^2", "0"),
        "at a shift of zero": (
            "eq-vocab-zloss-free",
            r"\min_a \mathrm E_P\, J(z + a)",
            r"\mathrm E_P\, J(z)",
        ),
    },
)(printed)


@claim(
    "one logit fixed at zero and another free in each context ... by at most 0.0013",
    on=[1.3e-3],
    but_not={
        "a hundredth": 1e-2,
        "a tenth of it": 1.3e-4,
        "one w for all x": (1.3e-3, np.array([1.0, 10.0])),
    },
)
def test_when_the_z_loss_is_not_free(bound: float, x: Array | None = None, weight: float = 1e-4) -> None:
    """A prediction q is optimal at p = q (1 - 2 weight log(1 - q)); a logistic regression on x is not so free."""
    if x is None:
        gaps = [
            p - brentq(lambda q, p=p: q * (1 - 2 * weight * math.log1p(-q)) - p, 0.0, 1 - 1e-15)
            for p in np.r_[rng(4).uniform(size=500), 1 - 10.0 ** -np.arange(2, 12)]
        ]
    else:
        p = xent.sigmoid(x)
        slope = lambda w: x @ (xent.sigmoid(w * x) * (1 + 2 * weight * np.logaddexp(0, w * x)) - p)  # noqa: E731
        gaps = list(p - xent.sigmoid(brentq(slope, 0.0, 1.0) * x))
    assert bound < max(gaps) < 1.03 * bound


@claim(
    "A soft cap leaves the optimal probabilities",
    on=lambda: [(c, np.array([0.0, -rng(5).uniform(0, 2 * c), -2 * c * 0.95])) for c in (1.0, 3.0)],
    but_not={f"a truth that does not fit, {c}": (c, np.array([0.0, -0.3, -2.4 * c])) for c in (1.0, 3.0)},
)
def test_when_a_soft_cap_is_harmless(c: float, log_p: Array) -> None:
    """Truths that span just less and just more than 2c, and logits of their own."""
    P = np.exp(log_p) / np.exp(log_p).sum()

    def log_q(z: Tensor) -> Tensor:
        return (c * (z / c).tanh()).log_softmax(0)

    runs = (
        lowest(lambda z: -torch.tensor(P) @ log_q(z), start, gtol=1e-5)
        for start in rng(5).normal(size=(3, 3))
    )
    best = max((log_q(torch.tensor(run)).numpy() for run in runs), key=lambda found: P @ found)
    assert np.abs(best - np.log(P)).max() < 0.05


# ------------------------------------------------------------------------------ other forms, and the frameworks


def proposals() -> Iterator[tuple[Array, Array, int]]:
    g = rng(6)
    for m in (1, 2, 3):
        for _, (z,) in logits(g, 1, 5):
            if np.ptp(z) > 1e-3 and np.abs(z).max() < 100:
                yield z, g.dirichlet(np.full(5, 3.0)) * 0.99 + 0.002, m


Z5 = np.array([0.3, -1.0, 2.0, 0.0, 0.7])


@claim(
    "The sum inside is unbiased, but its logarithm is not",
    "the estimate of $\\log Z$ is too small on average",
    on=proposals,
    but_not={f"the model's own softmax, {m}": (Z5, xent.softmax(Z5), m) for m in (1, 2, 3)},
)
def test_sampled_softmax_is_biased(z: Array, r: Array, m: int) -> None:
    """All draws enumerated for small vocabularies and random proposals, so that the means are exact."""
    draws = np.stack(np.meshgrid(*[np.arange(len(z))] * m, indexing="ij"), -1).reshape(-1, m)
    weight, log_sums = r[draws].prod(1), logsumexp(z[draws] - np.log(m * r[draws]), axis=1)
    assert weight @ np.exp(log_sums) == pytest.approx(np.exp(z).sum(), rel=1e-11)
    assert weight @ log_sums < logsumexp(z) - 1e-9


@claim(
    "a label of $-100$ silently indexes the weight",
    "`xent.torch.linear_cross_entropy` refuses labels out of range",
    on=lambda: [-100, -1, 300, 10**6, int(rng(7).integers(301, 10**6))],
    but_not={"a good label": 299},
)
def test_the_sketch_and_the_library(label: int) -> None:
    h, w = layer(rng(7), 6, 300, 4)
    with pytest.raises(ValueError, match="targets"):
        xt.linear_cross_entropy(h, w, torch.tensor([1, 2, 3, 4, 5, label]))
    targets = torch.tensor([1, 2, 3, 4, 5, -100])
    padded, live = Blocked.apply(h, w, targets, 64), F.cross_entropy(h @ w.T, targets).item()
    assert torch.isfinite(padded) and abs(padded.item() - live) > 1e-3
    assert xt.linear_cross_entropy(h, w, targets, ignore_index=-100).item() == pytest.approx(live)


def bfloat16_layer(rows: int, classes: int, width: int, ignored: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    g = rng(11)
    h, w = (x.detach() for x in layer(g, rows, classes, width))
    h, w = h.bfloat16().requires_grad_(), (w * 2 / width**0.5).bfloat16().requires_grad_()
    return h, w, torch.where(torch.arange(rows) < ignored, -100, labels(g, rows, classes))


MANY, FEW = (256, 32_000, 64), (512, 8000, 256)


@pytest.mark.slow
@claim(
    "With options and inputs in bfloat16",
    "By default a chunk is a single row here",
    "The default adds up 256 losses and drifts",
    on=[(MANY, 256, 0.5, 99.0), (MANY, 4, 0.0, 0.12, 64)],
    but_not={
        "the default": (MANY, 256, 0.0, 0.12), "a layer of few chunks": (FEW, 32, 0.5, 99.0),
        "float16, whose losses are added in float32": (MANY, 256, 0.5, 99.0, None, torch.float16),
    },
)  # fmt: skip
def test_a_mean_of_chunks(
    size: Any, chunks: int, least: float, most: float, chunk: Any = None, dtype: Any = None
) -> None:
    h, w, y = bfloat16_layer(*size)
    h, w, options = h.to(dtype or h.dtype), w.to(dtype or w.dtype), Options(batch_chunk_size=chunk)
    found = options._adjust(size[0], size[2], size[1], h.dtype, h.device).batch_chunk_size
    if -(-size[0] // found) != chunks:
        raise RuntimeError(f"{found} rows to a chunk, expected {chunks} chunks")
    exact = F.cross_entropy(h.double() @ w.double().T, y).item()
    assert least < abs(F.linear_cross_entropy(h, w, y, options=options).item() - exact) < most


@pytest.mark.slow
@claim('use `reduction="none"` and take the mean', on=[0, 40], but_not={"over all tokens": (40, False)})
def test_the_loss_for_a_log(ignored: int, kept: bool = True) -> None:
    h, w, y = bfloat16_layer(256, 4000, 64, ignored)
    each = F.linear_cross_entropy(h, w, y, options=Options(), reduction="none").float()
    loss = each[y >= 0].mean() if kept else each.mean()
    a, b = (x.detach().double().requires_grad_() for x in (h, w))
    exact = F.cross_entropy(a @ b.T, y)
    assert loss.item() == pytest.approx(exact.item(), abs=0.005)
    assert all(off(a, b) < 0.01 for a, b in zip(slopes(loss, h, w), slopes(exact, a, b), strict=True))
