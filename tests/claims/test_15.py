"""The claims of chapter 15, each with an attempt to refute it."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import brentq, minimize
from scipy.special import logsumexp
from torch import Tensor
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile

import xent
import xent.torch as xt
import xent.torch._linear_step as linear
from adversary import distributions, logits, refuted, rng
from experiments.large_vocabularies import memory

Array = np.ndarray
FOLDER = Path(__file__).parents[2] / "experiments" / "large_vocabularies"
MIB = 2**20


def peak(run: Callable[[], Tensor]) -> int:
    """The bytes that a loss and its backward pass hold at most."""
    return int(held(run).max())


def held(run: Callable[[], Tensor]) -> Array:
    """The bytes that a loss and its backward pass hold over time, as PyTorch's allocator counts them.

    From outside: it sees what an operator allocates within itself, which no hook on operators does.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run().backward()  # type: ignore[no-untyped-call]
    assert seen.profiler is not None and seen.profiler.kineto_results is not None
    left, events = list(seen.profiler.kineto_results.experimental_event_tree()), []
    while left:
        event = left.pop()
        left += event.children
        if event.tag == _EventType.Allocation:
            events.append((event.start_time_ns, event.extra_fields.alloc_size))
    return np.cumsum([size for _, size in sorted(events, key=lambda e: e[0])])


def layer(g: np.random.Generator, rows: int, classes: int, width: int) -> tuple[Tensor, Tensor]:
    hidden, weight = torch.tensor(g.normal(size=(rows, width))), torch.tensor(g.normal(size=(classes, width)))
    return hidden.requires_grad_(), weight.requires_grad_()


@pytest.mark.claim(
    "15",
    "PyTorch's float32 cross-entropy with labels, without `torch.compile`, holds three arrays of the logits' size, "
    "and a fourth if you keep the logits.",
)
@pytest.mark.claim(
    "15",
    "Chunks of rows alone keep one array of the logits' size; checkpointing, or computing the gradients on the spot, "
    "removes it.",
)
def test_arrays_of_the_logits_size() -> None:
    """The allocator's count for five ways of the experiment and options of the loss; every stored case, by the process.

    Would be refuted by a size at which a way holds another number of arrays, or by an option that adds one: smoothing
    distributions over the classes does, smoothing labels does not.
    """
    g = rng(0)
    rows, classes = 1024, int(g.integers(3500, 4500))
    hidden, weight = (x.detach().float().requires_grad_() for x in layer(g, rows, classes, 8))
    target = torch.tensor(g.integers(classes, size=rows))

    def held(way: str) -> float:
        kept = []

        def run() -> Tensor:
            kept.append(memory.WAYS[way](hidden, weight, target))
            return kept[0][0] if isinstance(kept[0], tuple) else kept[0]

        return peak(run) / (4 * rows * classes)

    ways = ("plain", "plain, logits kept", "chunks alone", "chunks, checkpointed", "blocked")
    arrays = {way: held(way) for way in ways}

    def says(way: str, count: float) -> None:
        assert arrays[way] == pytest.approx(count, abs=0.3)

    def optional(targets: Tensor, **options: Any) -> None:
        used = peak(lambda: F.cross_entropy(hidden @ weight.T, targets, **options))
        assert used / (4 * rows * classes) == pytest.approx(3, abs=0.3)

    by_class = torch.tensor(g.uniform(0.5, 2, size=classes)).float()
    for options in ({"label_smoothing": 0.1}, {"weight": by_class}):
        optional(target, **options)
        optional(target, **options, reduction="sum")
        with refuted("distributions as targets"):
            optional(torch.tensor(g.dirichlet(np.ones(classes), size=rows)).float(), **options)
    chunk = 256 / rows  # a chunk's own arrays come and go
    says("plain", 3)
    says("plain, logits kept", 4)
    says("chunks alone", 1 + 2 * chunk)
    with refuted("a plain loss of two arrays"):
        says("plain", 2)
    with refuted("chunks alone without the array"):
        says("chunks alone", 2 * chunk)
    for way in ("chunks, checkpointed", "blocked"):
        assert arrays[way] < 1
        with refuted("the array that chunks alone keep"):
            says(way, 1 + 2 * chunk)
    for case in json.loads((FOLDER / "memory.json").read_text())["cases"]:
        rows, classes = case["rows"], case["vocabulary"]
        gradients = 4 * memory.FEATURES * (rows + classes)
        for name, entries in (("plain", 3 * rows * classes), ("blocked", 2 * rows * memory.BLOCK)):
            assert case["bytes"][name] == pytest.approx(4 * entries + gradients, rel=0.1)
        if classes < 16_000:
            continue
        arrays = {name: used / case["logits"] for name, used in case["bytes"].items()}
        assert arrays["plain"] == pytest.approx(3, abs=0.25)
        assert arrays["plain, logits kept"] == pytest.approx(4, abs=0.25)
        assert 1 < arrays["chunks alone"] < 1 + 5 * 256 / case["rows"]  # a chunk has 256 rows
        for name in ("chunks, checkpointed", "torch, options", "torch, chunks of 256", "blocked"):
            if case["rows"] > 1024:
                assert arrays[name] < 0.5  # the gradients of the inputs are in it


@pytest.mark.claim(
    "15",
    "A log-sum-exp needs one look at each block, with a maximum and a sum as its state.",
)
def test_one_look_is_enough() -> None:
    """Logits of every kind, masked ones too, in blocks of random order and size, down to one logit.

    Would be refuted by a block or an order that ends at another number.
    """
    g = rng(1)

    def says(parts: list[Array], shift: Callable[[float, float], float]) -> None:
        m, s, z = -np.inf, 0.0, np.concatenate(parts)
        for part in parts:
            top = max(m, part.max())
            if top > -np.inf:
                s = s * shift(m, top) + np.exp(part - top).sum()
                m = top
        assert m + np.log(s) == pytest.approx(logsumexp(z), rel=1e-13, abs=1e-13)
        assert 1 <= s <= len(z)

    def cut(z: Array) -> list[Array]:
        places = g.choice(np.arange(1, len(z)), min(7, len(z) - 1), replace=False)
        return np.split(g.permutation(z), np.sort(places))

    for classes in (2, 10, 500):
        for _, (z,) in logits(g, 1, classes):
            says(cut(z), lambda m, top: np.exp(m - top))
            masked = np.where(g.random(classes) < 0.5, -np.inf, z)
            masked[0] = z[0]
            says(cut(masked), lambda m, top: np.exp(m - top))
    rising = np.split(np.sort(5 * g.normal(size=500)), 5)
    says(rising, lambda m, top: np.exp(m - top))
    with refuted("a sum that is not shifted as the maximum rises"):
        says(rising, lambda m, top: 1.0)


@pytest.mark.claim("15", "So in float32 the sum cannot overflow.")
def test_a_state_does_not_overflow() -> None:
    """The chapter's sketch: large logits of both signs, and as many equal ones as the largest vocabulary has.

    Would be refuted by logits whose loss is infinite though its terms are not; in float16 the sum of 70,000 ones is.
    """
    g = rng(14)

    def says(dtype: torch.dtype, classes: int, scale: float, block: int) -> None:
        weight = torch.tensor(scale * g.choice([-1.0, 0.0, 1.0], size=(classes, 1))).to(dtype)
        targets = torch.tensor(g.integers(classes, size=2))
        assert torch.isfinite(memory.Blocked.apply(torch.ones(2, 1, dtype=dtype), weight, targets, block))

    for scale in (0.0, 1.0, 1e4, 5e37):
        for classes, block in ((70_000, 1024), (256_000, 50_000), (3, 1)):
            says(torch.float32, classes, scale, block)
    says(torch.float16, 1000, 0.0, 100)
    with refuted("float16"):
        says(torch.float16, 70_000, 0.0, 1024)


@pytest.mark.claim(
    "15",
    '`xent.torch.linear_cross_entropy` takes rows and, except with `reduction="none"`, computes the gradients in the '
    "forward pass and returns them in the backward pass.",
)
def test_when_the_gradients_are_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The products that a backward pass needs, counted, for each reduction, one block of rows and several.

    Would be refuted by a reduction to one number whose backward pass multiplies again; "none" is left out.
    """
    g, products = rng(15), []
    for name in ("_project", "_into_hidden", "_add_product"):
        whole = getattr(linear, name)

        def counted(*arguments: Any, function: Callable[..., Any] = whole) -> Any:
            products.append(len(arguments[0]))
            return function(*arguments)

        monkeypatch.setattr(linear, name, counted)

    def says(reduction: str, rows: int) -> None:
        loss = xt.linear_cross_entropy(
            *layer(g, rows, 50_000, 2), torch.zeros(rows, dtype=int), reduction=reduction
        )
        assert products
        products.clear()
        loss.sum().backward()
        assert not products

    for rows in (1, 5, 200):
        says("mean", rows)
        says("sum", rows)
        with refuted("each loss for itself"):
            says("none", rows)


@pytest.mark.claim(
    "15",
    "The linear losses of `xent.torch` have the gradients of the plain losses, with a live or cached teacher too, and "
    "hold a few blocks of rows of the logits at a time, however many tokens there are.",
)
@pytest.mark.claim(
    "15",
    "In float32 on a CPU a block holds 12 MiB of each model's logits, or 32 rows if these take more, as they do above "
    "98,304 classes",
)
def test_linear_losses_never_hold_the_logits() -> None:
    """Gradients in float64 with ignored rows; the allocator's count for vocabularies on both sides of 98,304.

    Would be refuted by a size at which more than a block is held: one block of all logits is. What a cache takes
    in the meantime grows with the tokens, and is no logits: its indices are copied and sorted.
    """
    g = rng(2)
    hidden, weight = layer(g, 40, 301, 16)
    taught, teacher = (x.detach() for x in layer(g, 40, 301, 24))
    targets = torch.tensor(g.integers(301, size=40))
    targets[::3] = -100
    live = targets >= 0
    z, v = hidden @ weight.T, taught @ teacher.T
    pairs = [
        (F.cross_entropy(z, targets), xt.linear_cross_entropy(hidden, weight, targets, ignore_index=-100)),
        (
            F.kl_div(z[live].log_softmax(1), v[live].softmax(1), reduction="batchmean"),
            xt.linear_distillation_loss(hidden, weight, taught, teacher, targets=targets, ignore_index=-100),
        ),
    ]
    cache = xt.top_k_of_teacher(v, 9)
    assert cache.probs is not None
    rest = z.log_softmax(1).exp().scatter(1, cache.indices, 0.0).sum(1)
    top = F.kl_div(z.log_softmax(1).gather(1, cache.indices), cache.probs, reduction="none").sum(1)
    by_cache = (top + F.kl_div(rest.log(), cache.tail, reduction="none"))[live].mean()
    counted = {"targets": targets, "ignore_index": -100}
    cached = xt.linear_distillation_loss(hidden, weight, teacher_top_k=cache, **counted)
    both = xt.linear_distillation_loss(hidden, weight, teacher_top_k=cache, alpha=0.25, **counted)
    pairs += [(by_cache, cached), (0.25 * by_cache + 0.75 * F.cross_entropy(z, targets), both)]
    for plain, ours in pairs:
        assert ours.item() == pytest.approx(plain.item(), rel=1e-12)
        expected = torch.autograd.grad(plain, (hidden, weight), retain_graph=True)
        for a, b in zip(torch.autograd.grad(ours, (hidden, weight)), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)

    def says(
        rows: int,
        classes: int,
        with_teacher: bool = False,
        cached: int = 0,
        copies: float = 1.5,
        models: int = 2,
    ) -> None:
        h, w = (x.detach().float().requires_grad_() for x in layer(g, rows, classes, 2))
        y = torch.tensor(g.integers(classes, size=rows))
        gradients = 4 * 2 * (rows + classes)
        block = 4 * max(32 * classes, 3 * MIB)
        assert block < 4 * rows * classes / 2  # or nothing would be saved
        if with_teacher:
            for direction, strips in (("forward", 6), ("jsd", 10)):  # of 2^18 logits
                loss = partial(xt.linear_distillation_loss, direction=direction)
                held = peak(lambda loss=loss: loss(h, w, h.detach(), w.detach())) - gradients
                assert (models - 0.01) * block < held < models * block + strips * MIB
        elif cached:
            indices = (y[:, None] + torch.arange(cached)) % classes
            kept = torch.full(indices.shape, 0.5 / cached)
            top_k = xt.TopK(indices, torch.full((rows,), 0.5), probs=kept)
            own = copies * (indices.nbytes + kept.nbytes)
            mixed = {"teacher_top_k": top_k, "targets": y, "alpha": 0.5}
            held = peak(lambda: xt.linear_distillation_loss(h, w, **mixed)) - gradients
            assert 0.99 * block < held < block + 6 * MIB + own
        else:
            held = peak(lambda: xt.linear_cross_entropy(h, w, y)) - gradients
            assert 0.99 * block < held < block + MIB

    for rows, classes in ((800, 10_000), (4000, 3000), (80, 110_000)):
        says(rows, classes)
    for classes in (98_303, 98_304, 98_305):
        rows, _ = linear._sizes("cpu", classes, False)
        assert (rows == 32) == (classes > 96_000) and (4 * rows * classes > 12 * MIB) == (classes > 98_304)
    says(1600, 5000, with_teacher=True)
    with refuted("12 MiB for both models"):
        says(1600, 5000, with_teacher=True, models=1)
    says(800, 10_000, cached=1)
    says(40_000, 600, cached=64)
    with refuted("a block and nothing else, beside a large cache"):
        says(40_000, 600, cached=64, copies=0)
    h, w = (x.detach().bfloat16().requires_grad_() for x in layer(g, 4, 8000, 1000))
    y = torch.tensor(g.integers(8000, size=4))
    held = peak(lambda: xt.linear_cross_entropy(h, w, y)) - 2 * 1000 * 8004
    assert held > 4 * 1000 * 8000  # in bfloat16 the gradient of the weight in float32 comes on top
    with pytest.MonkeyPatch.context() as patch:
        for name in ("BLOCK", "LEAST", "STEP"):
            patch.setattr(linear, name, 2**40)
        for teachers in ((False, 0), (True, 0), (False, 1)):
            with refuted("one block of all logits"):
                says(800, 10_000, *teachers)


@pytest.mark.slow
@pytest.mark.claim(
    "15",
    "Where the teacher is sure, one minus the sum of $k$ sixteen-bit probabilities is mostly rounding error, so the "
    "cache stores the other classes' mass itself, in float32 or, as here, in float64.",
)
def test_the_tail_of_a_sure_teacher() -> None:
    """Teachers whose best class has all but a thousandth or less, of many sizes, both formats; then unsure ones.

    Would be refuted by a sure teacher's row whose tail is right to half of itself in sixteen bits, or wrong in the
    cache. An unsure teacher's tail survives.
    """
    g = rng(10)

    def says(v: Tensor, k: int, dtype: torch.dtype) -> None:
        exact = v.double().softmax(1)
        cache = xt.top_k_of_teacher(v, k)
        assert cache.probs is not None and cache.tail.dtype == torch.float32
        tail = exact.scatter(1, cache.indices, 0.0).sum(1)
        assert ((cache.tail - tail).abs() < 1e-4 * tail).all()
        assert xt.top_k_of_teacher(v.double(), k).tail.dtype == torch.float64  # the chapter's teacher
        left = 1 - cache.probs.to(dtype).double().sum(1)
        assert ((left - tail).abs() > 0.5 * tail).double().mean() > 0.5

    for dtype, part in ((torch.bfloat16, 1e-3), (torch.float16, 1e-4)):
        for classes, k in ((50, 4), (1000, 16), (30_000, 64)):
            sure = torch.tensor(g.normal(size=(200, classes))).float()
            rest = torch.tensor(g.exponential(size=200)).float() - math.log(part)
            sure[:, 0] = sure[:, 1:].logsumexp(1) + rest
            says(sure, k, dtype)
            with refuted("a teacher with a tenth and more outside of its best"):
                unsure = sure.clone()
                unsure[:, 0] -= 9
                says(unsure, k, dtype)


@pytest.mark.claim(
    "15",
    "Logits lose digits when they are stored in bfloat16, and no later conversion brings them back.",
)
@pytest.mark.claim("15", "Converting afterwards does not undo the rounding of the logits.")
def test_digits_lost_in_storage() -> None:
    """Several widths and scales, few classes too: converted, the loss is that of the rounded logits, not of the exact.

    Would be refuted by logits whose digits come back. The arithmetic's do: with a hundred classes and small logits
    the conversion removes most of the error.
    """
    g = rng(3)

    def says(z: Tensor, kept: Tensor, y: Tensor, others: Tensor) -> None:
        exact = F.cross_entropy(z, y, reduction="none")

        def error(loss: Tensor) -> float:
            return float((loss.double() - exact).abs().mean())

        converted = F.cross_entropy(kept, y, reduction="none")
        rounded = F.cross_entropy(z.bfloat16().double(), y, reduction="none")
        assert (converted - rounded).abs().max() < 1e-5
        assert error(others) < error(converted) / 1000

    for classes, width, scale in ((20_000, 64, 0.4), (20_000, 16, 1.0), (20_000, 256, 0.15), (100, 64, 0.1)):
        h = torch.tensor(g.normal(size=(64, width))).bfloat16()
        w = torch.tensor(scale * g.normal(size=(classes, width))).bfloat16()
        z = h.double() @ w.double().T
        y = torch.tensor([g.choice(classes, p=row / row.sum()) for row in z.softmax(1).numpy()])
        ours = xt.linear_cross_entropy(h, w, y, reduction="none")
        says(z, z.bfloat16().float(), y, ours)
        with refuted("logits that were kept in float32"):
            says(z, z.float(), y, ours)


@pytest.mark.claim(
    "15",
    "A z-loss leaves the optimal probabilities alone if every context can shift its logits by a constant of its own.",
)
@pytest.mark.claim(
    "15",
    "in the smallest example (below the divider), at a weight of $10^{-4}$, by little more than a thousandth at most",
)
def test_when_the_z_loss_is_free() -> None:
    """Weights to 5, sharp truths, two to twenty classes, free logits; then a reference class, off the chapter's grid.

    Would be refuted by a truth that free logits miss; with one logit fixed they do.
    """
    g = rng(4)

    def says(P: Array, weight: float, fixed: bool = False) -> None:
        def objective(z: Array) -> tuple[float, Array]:
            log_z = logsumexp(z)
            p = np.exp(z - log_z)
            slope = p - P + 2 * weight * log_z * p
            return float(-P @ z + log_z + weight * log_z**2), slope * (
                np.arange(len(z)) > (0 if fixed else -1)
            )

        z = minimize(objective, np.zeros(len(P)), jac=True, options={"gtol": 1e-10}).x
        np.testing.assert_allclose(xent.softmax(z), P, atol=2e-4)
        assert abs(logsumexp(z)) < 0.02

    for weight in (1e-4, 0.3, 5.0):
        for classes in (2, 5, 20):
            says(0.999 * g.dirichlet(np.full(classes, 0.7)) + 0.001 / classes, weight)
    with refuted("a reference class"):
        says(np.array([0.2, 0.8]), 0.3, fixed=True)
    lam = 1e-4
    gaps = [
        p - brentq(lambda q, p=p: q * (1 - 2 * lam * math.log1p(-q)) - p, 0.0, 1 - 1e-15)
        for p in np.r_[g.uniform(size=500), 1 - 10.0 ** -np.arange(2, 12)]
    ]

    def little_more_than(bound: float) -> None:
        assert bound < max(gaps) < 1.5 * bound

    little_more_than(0.001)
    with refuted("a hundredth"):
        little_more_than(0.01)


@pytest.mark.slow
@pytest.mark.claim(
    "15",
    "With $w$ fixed, a language model can shift one context's logits by a constant only if the hidden state can move "
    "in a direction whose product with each $w_j$ is the same and not zero.",
)
def test_which_hidden_states_make_the_z_loss_free() -> None:
    """Hidden states of one context, free and normalised as before most last layers, with such a direction and without.

    Would be refuted by hidden states that cannot move so, and a z-loss that leaves their probabilities alone. That
    there is a direction is not enough: a normalised state cannot move in it. Where the weight moves, the states of a
    few contexts need not.
    """
    g = rng(17)

    def best(weight: Array, P: Array, lam: float, normalised: bool) -> Array:
        def logits_of(u: Array) -> Array:
            return np.asarray(weight @ (u / np.sqrt((u**2).mean()) if normalised else u))

        def objective(u: Array) -> float:
            z = logits_of(u)
            log_z = float(logsumexp(z))
            return log_z - float(P @ z) + lam * log_z**2

        starts = g.normal(size=(8, weight.shape[1]))
        found = min((minimize(objective, u, options={"gtol": 1e-8}) for u in starts), key=lambda r: r.fun)
        return np.asarray(xent.softmax(logits_of(found.x)))

    def says(direction: bool, normalised: bool) -> None:
        weight, P = g.normal(size=(5, 3)), g.dirichlet(np.full(5, 3.0))
        if direction:
            weight[:, 0] = g.choice([-2.0, 1.0])
        if (np.linalg.lstsq(weight, np.ones(5), rcond=None)[1][0] < 1e-20) != direction:
            raise RuntimeError("the weight is not what it is drawn for")
        free, penalised = (best(weight, P, lam, normalised) for lam in (0.0, 1.0))
        np.testing.assert_allclose(penalised, free, atol=1e-4)

    for _ in range(4):
        says(direction=True, normalised=False)
        with refuted("no such direction"):
            says(direction=False, normalised=False)
        with refuted("a direction, and a state of fixed length"):
            says(direction=True, normalised=True)

    def shifts(fixed: bool) -> None:
        """Two contexts, each by a constant of its own, and no direction: move the states, or the weight."""
        weight, states, own = g.normal(size=(5, 3)), g.normal(size=(2, 3)), g.normal(size=2)
        if fixed:
            found = (states + np.outer(own, np.linalg.lstsq(weight, np.ones(5))[0])) @ weight.T
        else:
            found = states @ (weight + np.linalg.lstsq(states, own)[0]).T
        np.testing.assert_allclose(found, states @ weight.T + own[:, None], atol=1e-9)

    for _ in range(4):
        shifts(fixed=False)
        with refuted("a fixed weight"):
            shifts(fixed=True)


@pytest.mark.claim(
    "15",
    "A soft cap leaves the optimal probabilities alone if every context has logits of its own and its "
    "log-probabilities fit into an interval shorter than $2c$.",
)
@pytest.mark.claim(
    "15",
    "Two logits $\\pm w x$ with one $w$ for all $x$, evenly spread over $-3 \\le x \\le 3$, fit log-odds of $1.5\\,x$",
)
@pytest.mark.claim(
    "15",
    "if its log-probabilities do not fit, no finite logits are an optimum. Both statements hold for logits that are "
    "free in each context.",
)
@pytest.mark.claim(
    "15",
    "with a cap of 5, although $2c$ is more than the 4.5 that the log-odds reach, they miss some probabilities by "
    "0.004; with a cap of 2.5 they miss some by 0.017.",
)
@pytest.mark.claim(
    "15",
    "The gradient of the loss is multiplied by this slope: at twice the cap, a fourteenth of the gradient arrives, "
    "even at a *wrong* logit.",
)
def test_when_a_soft_cap_is_harmless() -> None:
    """Random truths that span just less and just more than 2c, one context and many; the slope at twice the cap.

    Would be refuted by free logits that miss a truth which fits. With shared parameters they do, and that is the
    condition.
    """
    g = rng(5)

    def says(c: float, log_p: Array) -> None:
        P = np.exp(log_p) / np.exp(log_p).sum()

        def objective(z: Array) -> float:
            return float(xent.soft_cross_entropy(c * np.tanh(z / c), P))

        best = min(
            (minimize(objective, s, method="BFGS") for s in g.normal(size=(3, len(P)))), key=lambda r: r.fun
        )
        assert np.abs(xent.log_softmax(c * np.tanh(best.x / c)) - np.log(P)).max() < 0.05

    for c in (1.0, 3.0):
        says(c, np.array([0.0, -g.uniform(0, 2 * c), -2 * c * 0.95]))
        with refuted("log-probabilities that do not fit"):
            says(c, np.array([0.0, -0.3, -2 * c * 1.2]))
    x = np.linspace(-3, 3, 601)
    p = xent.sigmoid(1.5 * x)

    def missed(c: float) -> float:
        """Two logits that are linear in x, w and -w: the error of the best probabilities."""

        def gap(w: Array) -> Array:
            return 2 * c * np.tanh((w[0] * x + w[1]) / 2 / c)

        w = minimize(
            lambda w: float(xent.binary_cross_entropy(gap(w), p)), [1.0, 0.0], options={"gtol": 1e-9}
        ).x
        return float(np.abs(xent.sigmoid(gap(w)) - p).max())

    assert missed(5.0) == pytest.approx(0.0045, abs=0.00005) and missed(2.5) == pytest.approx(
        0.017, abs=0.0005
    )
    assert 1.5 * 3 < 2 * 2.5 and missed(1e4) < 1e-6
    for c, most in ((5.0, 0.0005), (2.5, 0.006)):  # a level for both, s, would make the cap flatter

        def gap(w: Array, c: float = c) -> Array:
            return c * (np.tanh((w[0] * x + w[1]) / c) + np.tanh((w[0] * x - w[1]) / c))

        w = minimize(lambda w: float(xent.binary_cross_entropy(gap(w), p)), [1.0, c / 2]).x
        assert np.abs(xent.sigmoid(gap(w)) - p).max() < most

    def runs_off(x: Array, c: float, slope: float) -> None:
        """Log-odds that reach beyond 2c: the loss falls as far as w can grow before tanh rounds to one."""
        if slope * x.max() < 2 * c:
            raise RuntimeError("the log-odds fit")
        w = np.geomspace(0.01, 8 * c / x.max(), 200)
        p = np.tile(xent.sigmoid(slope * x), (200, 1))
        gaps = 2 * c * np.tanh(np.outer(w, x) / c)
        assert xent.binary_cross_entropy(gaps, p, reduction="none").mean(1).argmin() == 199

    for c, slope in ((2.0, 1.5), (5.0, 4.0), (1.0, 1.0)):
        runs_off(np.array([3.0]), c, slope)
        with refuted("one w for all x"):
            runs_off(x, c, slope)

    def speed(at: float, part: float) -> None:
        z = torch.tensor(at, requires_grad=True)
        (30 * torch.tanh(z / 30)).backward()
        assert z.grad is not None and 1 / z.grad.item() == pytest.approx(part, abs=0.2)

    for sign in (60.0, -60.0):
        speed(sign, 14.15)
        with refuted("a logit at the cap"):
            speed(sign / 2, 14.15)


@pytest.mark.claim(
    "15",
    "the estimate of $\\log Z$ is too small on average, at every $m$, unless $r$ is the model's own softmax; so the "
    "loss is too small as well.",
)
@pytest.mark.claim("15", "The sum inside is unbiased. Its logarithm is not")
def test_sampled_softmax_is_biased() -> None:
    """All draws enumerated for small vocabularies and random proposals, so that the means are exact.

    Would be refuted by a proposal, not the model's own, whose mean estimate is not too small.
    """
    g = rng(6)

    def says(z: Array, r: Array, m: int) -> None:
        draws = np.stack(np.meshgrid(*[np.arange(len(z))] * m, indexing="ij"), -1).reshape(-1, m)
        weight = r[draws].prod(1)
        log_sums = logsumexp(z[draws] - np.log(m * r[draws]), axis=1)
        assert weight @ np.exp(log_sums) == pytest.approx(np.exp(z).sum(), rel=1e-11)
        assert weight @ log_sums < logsumexp(z) - 1e-9

    for m in (1, 2, 3):
        for _, (z,) in logits(g, 1, 5):
            if np.ptp(z) > 1e-3 and np.abs(z).max() < 100:
                says(z, g.dirichlet(np.full(5, 3.0)) * 0.99 + 0.002, m)
        with refuted("the model's own softmax"):
            says(z := g.normal(size=5), xent.softmax(z), m)


@pytest.mark.claim("15", "a label of $-100$ silently indexes the weight from its end.")
@pytest.mark.claim("15", "Its float32 backward pass also fails inside an autocast block.")
@pytest.mark.claim(
    "15",
    "`xent.torch.linear_cross_entropy` refuses labels out of range, leaves out those equal to `ignore_index`, and "
    "works under autocast.",
)
def test_the_sketch_and_the_library() -> None:
    """Bad labels of several kinds to both, the chapter's sketch taken from the experiment that measures it.

    Would be refuted by a label that the library takes in silence, or a float32 layer whose backward pass under
    autocast succeeds; layers of the other formats do.
    """
    g = rng(7)
    hidden, weight = layer(g, 6, 300, 4)

    def refuses(label: int) -> None:
        targets = torch.tensor([1, 2, 3, 4, 5, label])
        with pytest.raises(ValueError, match="targets"):
            xt.linear_cross_entropy(hidden, weight, targets)

    for label in (-100, -1, 300, 10**6, int(g.integers(301, 10**6))):
        refuses(label)
    with refuted("a good label"):
        refuses(299)
    targets = torch.tensor([1, 2, 3, 4, 5, -100])
    padded = memory.Blocked.apply(hidden, weight, targets, 64)
    live = F.cross_entropy(hidden @ weight.T, targets)
    assert torch.isfinite(padded) and abs(padded.item() - live.item()) > 1e-3
    ours = xt.linear_cross_entropy(hidden, weight, targets, ignore_index=-100)
    assert ours.item() == pytest.approx(live.item())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        xt.linear_cross_entropy(hidden, weight, targets, ignore_index=-100).backward()
    assert hidden.grad is not None

    def fails(dtype: torch.dtype, cast: torch.dtype) -> None:
        h, w = (x.detach().to(dtype).requires_grad_() for x in (hidden, weight))
        with torch.autocast("cpu", dtype=cast), pytest.raises(RuntimeError, match="same dtype"):
            memory.Blocked.apply(h, w, targets, 64).backward()

    for cast in (torch.bfloat16, torch.float16):
        fails(torch.float32, cast)
        for dtype in (torch.float64, cast):
            with refuted("a layer in another format"):
                fails(dtype, cast)


@pytest.mark.slow
@pytest.mark.claim(
    "15",
    "In exact arithmetic no two logits differ by $2c$ or more, so no probability reaches that of one logit at $c$",
)
@pytest.mark.claim(
    "15",
    "In float32 the hyperbolic tangent rounds to $\\pm 1$ where $|z| \\ge 10\\,c$, so the ceiling can be reached.",
)
def test_what_a_cap_cannot_say() -> None:
    """Logits of every kind, caps from 1 to 30, in exact arithmetic up to |z| = 500 c; and rounded ones.

    Would be refuted by exact capped logits 2c apart, or rounded ones that stay below where the page says they do not.
    """
    g = rng(8)

    def exactly(z: Array, c: float) -> None:
        with mpmath.workdps(1000):
            for row in z.clip(-500 * c, 500 * c):
                capped = [c * mpmath.tanh(mpmath.mpf(float(x)) / c) for x in row]
                assert max(capped) - min(capped) < 2 * c
                total = mpmath.fsum(mpmath.exp(x) for x in capped)
                assert mpmath.exp(max(capped)) / total < 1 / (1 + (len(row) - 1) * mpmath.exp(-2 * c))

    for c in (1.0, 3.0, 30.0):
        for classes in (2, 10, 50):
            for _, z in logits(g, 2, classes):
                exactly(z, c)
            z = np.full((1, classes), -1000 * c)
            z[0, 0] = 1000 * c
            exactly(z, c)

        def reached(times: float, dtype: torch.dtype, c: float = c) -> None:
            z = times * c * torch.tensor([1.0, -1.0, -1.0], dtype=dtype)
            capped = c * torch.tanh(z / c)
            assert (capped[0] - capped[1]).item() == 2 * c
            ceiling = 1 / (1 + 2 * np.exp(-2 * c))
            assert capped.softmax(0)[0].item() == pytest.approx(ceiling, rel=1e-6)

        for times in (10.0, *g.uniform(10, 1000, 5)):
            reached(times, torch.float32)
        with refuted("a smaller logit"):
            reached(8.0, torch.float32)
        with refuted("float64"):
            reached(12.0, torch.float64)
        with refuted("no cap"):
            assert np.ptp([3 * c, -3 * c]) < 2 * c
    P = next(p for what, p in distributions(g, 4) if what == "uniform")
    exactly(np.log(P), 1.0)


@pytest.mark.claim(
    "15",
    "Near its teacher a student loses more of its gradient to rounded logits: 2.7% at a divergence of 0.378 nats, "
    "7.3% at 0.040, and 21.9% at 0.004. With the logits of a block in float32 it is 0.2% throughout.",
)
def test_rounded_logits_near_a_teacher() -> None:
    """Other layers and spreads of the logits than the page's, teachers nearer and nearer; labels drawn from each.

    Would be refuted by a nearer teacher at which rounding costs less, or blocks in float32 that cost more than .2 %.
    """
    g = rng(9)

    def errors(part: float, spread: float) -> tuple[float, float, float]:
        """What rounding costs labels and a distillation, and what it costs in the linear loss."""
        h, w, dh, dw = (torch.tensor(g.normal(size=(n, 64))) for n in (128, 1500) * 2)
        w, dw = w * spread / 8, dw * spread / 8
        h, w, u, v = (x.bfloat16() for x in (h, w, h + part * dh, w + part * dw))
        z, t = h.double() @ w.double().T, u.double() @ v.double().T
        y = torch.multinomial(t.softmax(1), 1)[:, 0]

        def error(loss: Callable[[Tensor, Tensor], Tensor], other: Tensor | None = None) -> float:
            found = []
            for kind in (torch.float64, torch.bfloat16):
                at, taught = (x.to(kind).double().requires_grad_() for x in (z, t))
                (slope,) = torch.autograd.grad(loss(at, taught), at)
                found.append(slope.T @ h.double())
            rounded = found[1] if other is None else other.double()
            return float((rounded - found[0]).norm() / found[0].norm())

        w.requires_grad_()
        (blocks,) = torch.autograd.grad(xt.linear_distillation_loss(h, w, u, v), w)
        distilled = error(xt.distillation_loss), error(xt.distillation_loss, blocks)
        return error(lambda z, _: F.cross_entropy(z, y)), *distilled

    def says(less: float, more: float) -> None:
        assert more > 2 * less

    for spread in (2.0, 3.0):
        found = [errors(part, spread) for part in (1.0, 0.3, 0.1, 0.03)]
        for (_, far, _), (_, near, _) in itertools.pairwise(found[1:]):
            says(far, near)
            with refuted("the farther teacher"):
                says(near, far)
        says(found[0][0], found[-1][1])
        with refuted("near a teacher as among strangers"):  # what the page had left open
            assert found[-1][1] < 0.02
        for labels, rounded, blocks in found:
            assert 0.001 < blocks < 0.0025
            says(blocks, rounded)
            with refuted("labels"):
                says(rounded, labels)


@pytest.mark.claim(
    "15",
    "With logits that are free in every context its minimiser is $z_j = \\log P_j$ at every $k$: the probabilities of "
    "the cross-entropy, normalised without a sum.",
)
def test_noise_contrastive_estimation() -> None:
    """The expected loss over random P, noise and k, minimised from a random start.

    Would be refuted by a minimum with other probabilities, or with a sum that is not one. Noise that covers the data
    alone leaves the logit of an unused entry where it was.
    """
    g = rng(0)

    def minimum(p: Array, noise: Array, k: float) -> Array:
        drawn = noise > 0  # by the noise; in what the page says, all

        def loss(z: Array) -> float:
            odds = z[drawn] - np.log(k * noise[drawn])
            return float(p[drawn] @ np.logaddexp(0, -odds) + k * noise[drawn] @ np.logaddexp(0, odds))

        return np.asarray(minimize(loss, g.normal(size=len(p)), tol=1e-12).x)

    def normalised(p: Array, noise: Array, k: float) -> None:
        assert p[noise == 0].sum() == 0  # the noise covers the data
        assert np.exp(minimum(p, noise, k)).sum() == pytest.approx(1, abs=0.01)

    for classes in (2, 3, 8):
        p, noise = g.dirichlet(np.ones(classes) * 3, size=2)
        for k in (0.5, 1.0, 25.0):
            np.testing.assert_allclose(minimum(p, noise, k), np.log(p), atol=2e-3)
            normalised(p, noise, k)
            with refuted("an entry that neither the data nor the noise has"):
                normalised(np.append(p, 0.0), np.append(noise, 0.0), k)
            with refuted("noise that the loss does not know of"):
                np.testing.assert_allclose(minimum(p, noise, k) + np.log(2), np.log(p), atol=2e-3)


@pytest.mark.claim(
    "15",
    "gives each entry the product of the probabilities along a path of decisions in a tree. These products sum to one "
    "by construction, and in a balanced binary tree a loss takes about $\\log_2 V$ logits instead of $V$.",
)
def test_trees_sum_to_one() -> None:
    """A binary tree over 64 entries with any logits, and PyTorch's adaptive softmax; six decisions on each path.

    Would be refuted by a tree whose leaves do not sum to one, or by a path that is longer than six.
    """
    g, first = rng(1), []

    def leaves(depth: int) -> Array:
        """The probabilities of the leaves below each of a level's nodes."""
        if depth == 6:
            return np.ones((2**depth, 1))
        right = 1 / (1 + np.exp(-3 * g.normal(size=2**depth)))
        first.append(1 - right[0])
        below = leaves(depth + 1).reshape(2**depth, 2, -1)
        return (np.stack([1 - right, right], 1)[:, :, None] * below).reshape(2**depth, -1)

    probs = leaves(0)[0]

    def one(found: Array) -> None:
        np.testing.assert_allclose(found, 1, atol=1e-12)

    assert len(probs) == 2**6 and len(first) == 6
    one(probs.sum())
    one(np.prod(first) / probs[0])
    with refuted("the decisions of a path, added"):
        one(np.sum(first))
    with refuted("a leaf that is left out"):
        one(probs[1:].sum())
    adaptive = torch.nn.AdaptiveLogSoftmaxWithLoss(16, 100, [10, 40], dtype=torch.float64)
    rows = adaptive.log_prob(torch.tensor(g.normal(size=(5, 16)))).exp().sum(1)
    one(rows.detach().numpy())


@pytest.mark.slow
@pytest.mark.claim(
    "15",
    'With options and inputs in bfloat16, `reduction="mean"` adds up '
    "the chunks' losses in that format. By default a chunk is a single row here",
)
@pytest.mark.claim(
    "15",
    "The default adds up 256 losses and drifts; chunks of 64 rows make a sum of four, which keeps the mean to about a "
    "tenth of a nat.",
)
@pytest.mark.claim(
    "15",
    "No gradient passes through this sum, but on a CPU the weight's gradient is added up in bfloat16 too, whatever "
    "the reduction.",
)
@pytest.mark.claim(
    "15",
    'For the loss in your log, use `reduction="none"` and take the mean over the kept tokens in float32.',
)
def test_a_mean_of_chunks() -> None:
    """Many chunks and few, one too, with padding and without: the mean, and the gradients of each reduction.

    Would be refuted by a layer of few chunks, by padding that the mean counts, or by a reduction whose gradient of
    the weight is as exact with 512 chunks as with one.
    """
    g = rng(11)
    options = torch.nn.LinearCrossEntropyOptions()

    def inputs(rows: int, classes: int, width: int, ignored: int) -> tuple[Tensor, Tensor, Tensor]:
        h, w = layer(g, rows, classes, width)
        h, w = (x.detach().bfloat16().requires_grad_() for x in (h, w * 2 / width**0.5))
        y = torch.tensor(g.integers(classes, size=rows))
        y[:ignored] = -100
        return h, w, y

    def off(
        rows: int,
        classes: int,
        width: int,
        chunks: int,
        dtype: torch.dtype = torch.bfloat16,
        size: int | None = None,
    ) -> float:
        h, w, y = inputs(rows, classes, width, 0)
        h, w = h.to(dtype), w.to(dtype)
        options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=size)
        found = options._adjust(rows, width, classes, h.dtype, h.device).batch_chunk_size
        assert -(-rows // found) == chunks
        exact = F.cross_entropy(h.double() @ w.double().T, y)
        return abs(F.linear_cross_entropy(h, w, y, options=options).item() - exact.item())

    def keeps(size: int | None) -> None:
        assert off(256, 32_000, 64, 256 // (size or 1), size=size) < 0.12

    assert off(256, 32_000, 64, 256) > 0.5
    keeps(64)
    with refuted("the default"):
        keeps(None)
    with refuted("a layer of few chunks"):
        assert off(512, 8000, 256, 32) > 0.5
    with refuted("float16, whose losses are added in float32"):
        assert off(256, 32_000, 64, 256, torch.float16) > 0.5

    def says(ignored: int, kept: bool = True) -> None:
        h, w, y = inputs(256, 4000, 64, ignored)
        each = F.linear_cross_entropy(h, w, y, options=options, reduction="none").float()
        loss = each[y >= 0].mean() if kept else each.mean()
        a, b = (x.detach().double().requires_grad_() for x in (h, w))
        exact = F.cross_entropy(a @ b.T, y)
        assert loss.item() == pytest.approx(exact.item(), abs=0.005)
        found = torch.autograd.grad(loss, (h, w))
        for mine, right in zip(found, torch.autograd.grad(exact, (a, b)), strict=True):
            assert float((mine.double() - right).norm() / right.norm()) < 0.01

    says(0)
    says(40)
    with refuted("the mean over all tokens"):
        says(40, kept=False)

    h, w, y = inputs(1024, 8000, 8, 0)
    a, b = (x.detach().double().requires_grad_() for x in (h, w))
    right = torch.autograd.grad(F.cross_entropy(a @ b.T, y), (a, b))

    def errors(loss: Tensor) -> list[float]:
        found = torch.autograd.grad(loss, (h, w))
        return [float((x.double() - r).norm() / r.norm()) for x, r in zip(found, right, strict=True)]

    plain = errors(F.cross_entropy((h @ w.T).float(), y))

    def summed(reduction: str, chunk: int | None) -> None:
        how = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=chunk)
        loss = F.linear_cross_entropy(h, w, y, options=how, reduction=reduction).float().sum()
        of_hidden, of_weight = errors(loss if reduction == "mean" else loss / len(y))
        assert of_hidden < 2 * plain[0] and of_weight > 5 * plain[1]

    for reduction in ("mean", "sum", "none"):
        summed(reduction, None)
        with refuted("one chunk"):
            summed(reduction, len(y))


@pytest.mark.claim("15", "In `Blocked.backward` the line that makes `g` gets the factor")
def test_a_z_loss_in_the_sketch() -> None:
    """The chapter's cell with the solution's two changes, run: loss and gradients, blocks of several sizes.

    Would be refuted by a name that means something else in the class, as `weight` does.
    """
    cells = json.loads((Path(__file__).parents[2] / "chapters" / "15_large_vocabularies.ipynb").read_text())[
        "cells"
    ]
    (cell,) = (s for c in cells if (s := "".join(c["source"])).startswith("class Blocked"))
    g = rng(12)
    hidden, weight = layer(g, 5, 9, 4)
    y = torch.tensor(g.integers(9, size=5))
    z = hidden @ weight.T
    expected = F.cross_entropy(z, y) + 0.3 * z.logsumexp(1).square().mean()
    slopes = torch.autograd.grad(expected, (hidden, weight))

    def says(factor: str, term: str) -> None:
        text = cell
        for old, new in (
            (".sub_(lse[:, None]).exp_()", f".sub_(lse[:, None]).exp_() * {factor}"),
            (".sum(1)).mean()", f".sum(1)).mean() + {term}"),
        ):
            assert text.count(old) == 1
            text = text.replace(old, new)
        names: dict[str, Any] = {"torch": torch, "Tensor": Tensor, "Any": Any, "lam": 0.3}
        exec(text, names)
        for block in (1, 4, 20):
            loss = names["Blocked"].apply(hidden, weight, y, block)
            assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
            for a, b in zip(torch.autograd.grad(loss, (hidden, weight)), slopes, strict=True):
                torch.testing.assert_close(a, b)

    says("(1 + 2 * lam * lse)[:, None]", "(lam * lse**2).mean()")
    with refuted("a factor without the two"):
        says("(1 + lam * lse)[:, None]", "(lam * lse**2).mean()")
    with pytest.raises(RuntimeError):
        says("(1 + 2 * weight * lse)[:, None]", "(weight * lse**2).mean()")


@pytest.mark.claim(
    "15",
    "The plain loss climbs to two arrays of the logits' size, falls to one, climbs to three, drops, and ends with the "
    "gradients.",
)
def test_the_plain_loss_over_time() -> None:
    """Three shapes: the allocator's count in arrays of the logits' size.

    Would be refuted by a forward pass that holds one array only.
    """
    g = rng(13)

    def says(turns: list[int]) -> None:
        for rows, classes in ((512, 8000), (4000, 1000), (100, 30_000)):
            h, w = (x.detach().float().requires_grad_() for x in layer(g, rows, classes, 1))
            y = torch.tensor(g.integers(classes, size=rows))
            counts = np.rint(held(lambda h=h, w=w, y=y: F.cross_entropy(h @ w.T, y)) / (4 * rows * classes))
            levels = [0, *(int(n) for n in counts), 0]
            steps = [b for a, b in itertools.pairwise(levels) if a != b]
            found = [
                b
                for a, b, c in zip([0, *steps], steps, [*steps[1:], -1], strict=False)
                if (b - a) * (c - b) < 0
            ]
            assert found == turns

    says([2, 1, 3])
    with refuted("one array, then three"):
        says([3])
