"""What chapter 11 claims of gradients and of what is learnt; on frozen results in test_records.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from adversary import Array, claim, lengths_and_laws, page, printed, rng, weights
from records import holds
from xent.denominators import eos_optimum, learnt_distribution
from xent.sequences import GeometricSource

test_the_weight_of_a_token_in_a_mean_of_means = claim(
    "A mean of means weights a token by",
    on=["eq-den-weight"],
    but_not={
        "equal weights": ("eq-den-weight", r"\cdot \frac{\bar n}{n_k}"),
        "the count over the mean count": ("eq-den-weight", r"\frac{\bar n}{n_k}", r"\frac{n_k}{\bar n}"),
    },
)(printed)

test_the_repair_and_the_two_halves_of_it = claim(
    "Sum the losses, count the targets of the whole window",
    "A separate denominator for each rank leaves the mean",
    "The global $N$ without the factor $W$ gives",
    on=["eq-den-accumulation", "eq-den-ddp", "eq-den-both", "eq-den-divide"],
    but_not={
        "no factor W": ("eq-den-both", r"\frac{W}{N}", r"\frac{1}{N}"),
        "one denominator for each rank": ("eq-den-ddp", r"\frac{W}{N}", r"\frac{1}{n_r}"),
        "another divisor than the framework's": ("eq-den-divide", r"\frac1d", r"\frac1W"),
    },
)(printed)

LAWS = [
    (np.array([0.5, 0.3, 0.15, 0.05]), np.array([1, 3, 4, 40])),
    (np.array([0.2, 0.2, 0.3, 0.3]), np.array([1, 3, 4, 23])),
]


@claim(
    "More accumulation steps do not repair a mean of means",
    on=[(divisor, divisor, K) for divisor in ("micro-batch", "window", "constant") for K in (1, 4, 16)],
    but_not={
        "accumulated means with the bias of the window": ("micro-batch", "window", 4),
        "a mean of means without a bias": ("micro-batch", "constant", 16),
        "one denominator without a bias": ("window", "constant", 1),
    },
)
def test_what_accumulation_does_to_the_bias(divisor: str, foretold: str, steps: int) -> None:
    """Micro-batches of three; the share of the shortest of four lengths, some rare and long; four and a half errors."""
    g = rng(2)
    for law, lengths in LAWS:
        kinds = g.choice(4, size=(60_000 // steps, steps, 3), p=law)
        axes: Any = {"micro-batch": 2, "window": (1, 2), "constant": ()}[divisor]
        n = lengths[kinds]
        scale = np.broadcast_to(1 / (n.sum(axes, keepdims=True) if axes else 1), n.shape)
        short, total = (scale * (kinds == 0)).sum((1, 2)), scale.sum((1, 2))
        seen = short.sum() / total.sum()
        error = np.sqrt(np.square(short - seen * total).sum()) / total.sum()
        size = {"micro-batch": 3, "window": 3 * steps, "constant": None}[foretold]
        expected = learnt_distribution(law, lengths, size)[0] if size else law[0]
        assert abs(seen - expected) < 4.5 * error


test_the_order_of_the_bias = claim(
    "One denominator leaves the bias of a ratio",
    on=["eq-note-first-order"],
    but_not={
        "the square": ("eq-note-first-order", r"E_a[d]}{B \mu}", r"E_a[d]}{B^2 \mu}"),
        "copies of one sequence, however many": ("eq-note-first-order", r"E_a[d]}{B \mu}", r"E_a[d]}{\mu}"),
        "no bias": ("eq-note-first-order", r"- \frac{d(x) - \mathrm E_a[d]}{B \mu}", ""),
    },
)(printed)


# ------------------------------------------------------------------------------------------ steps of optimisers


@pytest.mark.slow
@claim(
    "*clipping*, the Trainer's default",
    "The coin's long sequences are clipped more often",
    on=[(1, 1.45, 0.098, 9.02), (4, 2.1, 0.25, 9.50), (32, 8.7, 0.103, 9.96)],
    but_not={
        "the coin": (1, 1.45, 0.098, 10.0),
        "steps that are not clipped": (1, np.inf, 0.098, 9.02),
        "long sequences of any law: one of 10 in five, the others of one token": (1, 0.5, 0.2, 8.89, False),
    },
)
def test_clipped_steps(size: int, threshold: float, share: float, length: float, coin: bool = True) -> None:
    """SGD on 1,000 models of two logits each, from the coin itself: where they settle, and which steps are clipped."""
    start = torch.tensor([2.0, -1.0], requires_grad=True)
    start.grad = torch.tensor([3.0, -3.0])
    torch.nn.utils.clip_grad_norm_([start], 1.44 * 2**0.5)
    torch.testing.assert_close(start.grad, torch.tensor([1.44, -1.44]))  # what np.clip does below
    g, z, seen = rng(17), np.full(1000, -np.log(9)), []
    for step in range(1500):
        stop = 1 / (1 + np.exp(-z))
        n = g.negative_binomial(size, 0.1, 1000) + size if coin else g.choice([1, 10], 1000, p=[0.2, 0.8])
        slope = stop * n - size
        z -= 0.03 / size * (1 - step / 1500) * np.clip(slope, -threshold, threshold)
        if step >= 750:
            seen.append((stop, slope > threshold, slope < -threshold))
    each, long, short = np.mean(seen, axis=0)
    error = 4.5 * each.std() / 1000**0.5 / each.mean() ** 2
    assert abs(1 / each.mean() - length) < error + 0.01
    assert long.mean() > short.mean() and abs(long.mean() + short.mean() - share) < 0.01


@claim(
    "with one sequence per step, it makes the coin's sequences",
    on=[(0.95, 1)],
    but_not={"a long one": (0.999, 1), "sixteen sequences in a step": (0.95, 16)},
)
def test_adam_with_a_short_memory(memory: float, size: int) -> None:
    """The coin with a constant denominator, many models at once: a few per cent short, where steps have settled."""
    models, beta, g = 600, 0.1, rng(31)
    theta, first, second = np.full(models, np.log(beta / (1 - beta))), np.zeros(models), np.zeros(models)
    seen = []
    for t in range(1, 2401):
        tokens, q = g.negative_binomial(size, beta, models) + size, 1 / (1 + np.exp(-theta))
        slope = q * tokens / size - 1
        first, second = 0.9 * first + 0.1 * slope, memory * second + (1 - memory) * slope**2
        theta -= 4e-3 * first / (1 - 0.9**t) / (np.sqrt(second / (1 - memory**t)) + 1e-8)
        seen.append(q.mean())
    assert 0.02 < 1 - beta / np.mean(seen[1600:]) < 0.05


def slopes_of_six_steps() -> Tensor:
    g = rng(7)
    steps = torch.tensor(g.normal(size=(6, 5)) + np.sign(g.normal(size=(6, 5))))
    return steps * torch.tensor([1.0, 3.0, 1.0, 0.5, 3.0, 1.0]).double()[:, None]


def threshold(kind: str) -> float:
    lengths = slopes_of_six_steps().norm(dim=1)
    return float({"both reach": lengths.min() / 8, "none": lengths.max() * 2, "one": lengths.median()}[kind])


@pytest.mark.erratum("0.17", "conditional")
@claim(
    "Adam hides this, except for",
    on=lambda: [{}, {"clip": threshold("both reach")}, {"clip": threshold("none")}],
    but_not=lambda: {
        "a threshold that the right gradient alone reaches": {"clip": threshold("one")},
        "a large epsilon": {"eps": 1.0},
        "a decay that is added to the gradient": {"decay": 0.5},
        "0.17: whatever the optimiser": {"optimiser": torch.optim.SGD},
    },
)
def test_what_adam_hides_of_a_missing_factor(
    clip: float = np.inf, eps: float = 0.0, decay: float = 0.0, optimiser: Any = torch.optim.Adam
) -> None:
    """Gradients four times too small."""
    ends = []
    for scale in (0.25, 1.0):
        w = torch.ones(5, dtype=torch.float64, requires_grad=True)
        given = {"eps": eps} if optimiser is torch.optim.Adam else {}
        walker = optimiser([w], lr=0.1, weight_decay=decay, **given)
        for slope in slopes_of_six_steps():
            w.grad = slope * scale
            torch.nn.utils.clip_grad_norm_([w], clip)
            walker.step()
        ends.append(w.detach())
    torch.testing.assert_close(*ends, rtol=1e-4, atol=0)


@pytest.mark.erratum("0.17", "conditional")
@claim(
    "Under a common denominator, two ways of cutting a window",
    on=[("gradient",), ("gradient", torch.optim.Adam), ("step",)],
    but_not={
        "0.17: the runs, by Adam, are completely equivalent": ("step", torch.optim.Adam),
        "batch normalisation": ("gradient", torch.optim.SGD, True),
    },
)
def test_two_cuts_of_a_window(what: str, optimiser: Any = torch.optim.SGD, norm: bool = False) -> None:
    """Of 16 targets in float32; also pairs of opposite inputs with one label, whose gradients cancel at zero weights.

    There a gradient is rounding alone, and Adam makes a whole step of it.
    """
    draw = torch.Generator().manual_seed(int(rng(13).integers(2**31)))
    half, order = torch.randn(8, 6, generator=draw), torch.randperm(16, generator=draw)
    for x, y in (
        (torch.randn(16, 6, generator=draw), torch.randint(10, (16,), generator=draw)),
        (torch.cat([half, -half])[order], torch.randint(4, (8,), generator=draw).repeat(2)[order]),
    ):
        found = []
        for cut in ([16], [3, 5, 2, 6], [8, 8], [4] * 4 if norm else [1] * 16):
            before = torch.nn.BatchNorm1d(6, track_running_stats=False) if norm else torch.nn.Identity()
            weight = torch.zeros(10, 6, requires_grad=True)
            walker = optimiser([weight], 0.1)
            for part, labels in zip(torch.split(x, cut), torch.split(y, cut), strict=True):
                loss = F.cross_entropy(before(part) @ weight.T, labels, reduction="sum") / 16
                torch.autograd.backward(loss)
            assert weight.grad is not None
            gradient = weight.grad.clone()
            walker.step()
            found.append(gradient if what == "gradient" else weight.detach())
        assert max(float((other - found[0]).abs().max()) for other in found) < 1e-6


# ------------------------------------------------------------------------------------------------- one process


@pytest.mark.claim("11", "run all forward and backward passes but the last within `model.no_sync()`")
def test_the_forward_pass_belongs_within_no_sync(tmp_path: Path) -> None:
    """A hook counts the averages over the ranks."""
    calls: list[int] = []

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP reads the annotations itself
        calls.append(1)
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    def says(forward_within: bool) -> None:
        calls.clear()
        loss = None if forward_within else net(torch.ones(1, 2)).sum()
        with net.no_sync():
            torch.autograd.backward(net(torch.ones(1, 2)).sum() if loss is None else loss)
        assert not calls

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
        net.register_comm_hook(None, hook)
        holds(says, True, but_not={"the backward pass alone": False})
    finally:
        torch.distributed.destroy_process_group()


# ------------------------------------------------------------------------------------------- what is learnt


def learnt_mean(lengths: Array, law: Array, B: int) -> float:
    return float(learnt_distribution(law, lengths, B) @ lengths)


EVEN = np.array([1.0, 9.0]), np.full(2, 0.5)


@pytest.mark.erratum("0.16", "conditional")
@claim(
    "Under a mean of means, a smaller micro-batch",
    on=lambda: lengths_and_laws(3),
    but_not={
        "the larger micro-batch stopping sooner": (*EVEN, lambda n, p, B: -learnt_mean(n, p, B)),
        "0.16: with buckets of one length": (*EVEN, lambda n, p, B: 1 / (p / (B * n)).sum() / B),
        "lengths that do not vary": (np.full(2, 5.0), np.array([0.3, 0.7])),
    },
)
def test_smaller_micro_batches_stop_sooner(lengths: Array, law: Array, learnt: Any = learnt_mean) -> None:
    means = [learnt(lengths, law, B) for B in (1, 2, 4, 16)] + [float(law @ lengths)]
    assert (np.diff(means) > 1e-9 * max(means)).all()  # a rounding is no rise


@claim(
    "A bias that makes sequences a fifth too short",
    on=lambda: [(0.1, int(n)) for n in (1, 26, 50_257, *rng(5).integers(2, 1000, 5))],
    but_not={"a coin that stops at every second toss": (0.5, 26)},
)
def test_a_length_bias_that_perplexity_hides(beta: float, letters: int) -> None:
    """The chapter's coin, whatever the number of letters. It "can": with a shorter coin it does not."""
    coin, q = GeometricSource(beta, letters=letters), eos_optimum(beta, 4)
    assert 1 / q < 0.8 * coin.mean_length()
    assert 0 < np.exp((coin.cross_entropy(q) - coin.entropy()) / coin.mean_length()) - 1 < 0.005


def reports(B: int, share: float, asked: Tensor, stratified: bool = False) -> Array:
    """What 64 models of two logits learn from PyTorch's weighted mean, each from labels of its own."""
    draw = torch.Generator().manual_seed(int(rng(4).integers(2**31)))
    z = torch.zeros(64, 2, dtype=torch.float64, requires_grad=True)
    for step in range(300):
        y = (torch.rand(64, B, generator=draw) < share).long()
        if stratified:  # the shares in each batch, as near as they go
            y[:] = (torch.arange(B) < round(share * B)).long()
        each = F.cross_entropy(z.repeat_interleave(B, 0), y.flatten(), asked, reduction="none").view(64, B)
        total = each.sum(1) / asked[y].sum(1)
        if step == 0:
            theirs = F.cross_entropy(z[:1].expand(B, 2), y[0], weight=asked)
            torch.testing.assert_close(total[0], theirs, rtol=1e-12, atol=0)
        z.data -= 0.3 * (1 - step / 300) * torch.autograd.grad(total.sum(), z)[0]
    return np.asarray(z.detach().softmax(1)[:, 1].numpy())


@pytest.mark.claim("11", "A class-weighted mean is a ratio too")
def test_sgd_with_class_weights() -> None:
    """SGD; a batch of one; any shares and weights."""
    g = rng(4)
    share, asked = g.uniform(0.2, 0.4), torch.tensor([1.0, g.uniform(4, 8)]).double()
    p, w = np.array([1 - share, share]), asked.numpy()
    wanted = float((p * w)[1] / (p @ w))

    def learnt(seen: Array, B: int) -> None:
        exact = float(learnt_distribution(p, w, B, weight=w)[1])
        # The rate falls to zero linearly; what it leaves behind is a tenth of it at most.
        assert abs(seen.mean() - exact) < 4 * seen.std(ddof=1) / 8 + 0.005 and seen.mean() < wanted - 0.03

    holds(
        learnt,
        *((reports(B, share, asked), B) for B in (1, 4)),
        but_not={
            "a stratified batch": (reports(20, share, asked, True), 20),
            "what is asked for": (np.full(64, wanted), 4),
        },
    )

    for classes in (2, 10, 300):
        for law, (_, weight) in zip(g.dirichlet(np.ones(classes), 5), weights(g, classes), strict=True):
            if (weight > 0).all():
                np.testing.assert_allclose(learnt_distribution(law, weight, 1, weight=weight), law, rtol=1e-9)


# -------------------------------------------------------------------------------------------- the note


def test_a_divisor_of_contexts_and_draws_that_share_a_source() -> None:
    """Batches of two, enumerated: draws that are independent, and draws that share a source."""
    said = page("chapters/note_denominators.md")
    assert "a divisor that depends on contexts alone is harmless" in said
    assert "If the draws are only exchangeable, it need not be" in said
    g = rng(8)

    def says(sources: Array, context: Array, answer: Array, slope: float) -> None:
        joint = np.stack([1 - context, context], -1)[..., None] * np.stack([1 - answer, answer], -1)
        both = np.einsum("s,sab,scd->abcd", sources, joint, joint)  # contexts and answers of the two
        share = 1 / (2 + slope * np.add.outer([0, 1], [0, 1]))
        seen, learnt = both.sum((2, 3)), np.einsum("abcd,ac->ab", both, share)
        found, right = (x / x.sum(1, keepdims=True) for x in (learnt, seen))
        np.testing.assert_allclose(found, right, rtol=1e-9)

    for slope in (0.5, 9.0):
        two = np.full(2, 0.5), np.array([0.9, 0.1]), np.array([[0.9, 0.9], [0.1, 0.1]]), slope
        one = np.ones(1), g.uniform(0.1, 0.9, 1), g.uniform(0.1, 0.9, (1, 2)), slope
        holds(says, one, but_not={"two sources": two})
