"""What chapter 11 claims of gradients and of what is learnt; on frozen results in test_records.py."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from adversary import claim, lengths_and_laws, printed, refuted, rng, weights
from records import EXPERIMENTS
from xent.denominators import eos_optimum, expected_inverse, learnt_distribution
from xent.sequences import GeometricSource

Array = np.ndarray
EVEN = np.array([1.0, 9.0]), np.full(2, 0.5)

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
    "One denominator for each rank leaves the mean",
    "The global $N$ without the factor $W$ gives",
    on=["eq-den-accumulation", "eq-den-ddp", "eq-den-both", "eq-den-divide"],
    but_not={
        "no factor W": ("eq-den-both", r"\frac{W}{N}", r"\frac{1}{N}"),
        "one denominator for each rank": ("eq-den-ddp", r"\frac{W}{N}", r"\frac{1}{n_r}"),
        "another divisor than the framework's": ("eq-den-divide", r"\frac1d", r"\frac1W"),
    },
)(printed)


@claim(
    "One denominator leaves the bias of a ratio",
    on=lambda: lengths_and_laws(2, 6),
    but_not={"the square": (*EVEN, 2), "copies of one sequence": (*EVEN, 1, True)},
)
def test_the_order_of_the_bias(lengths: Array, law: Array, power: float = 1, copies: bool = False) -> None:
    """Ten times as many sequences, a tenth of the bias; copies of one share a multiple of its own length."""
    few, many = (
        np.abs(learnt_distribution(law, lengths, 1 if copies else B) - law).max() for B in (1000, 10_000)
    )
    assert few / many == pytest.approx(10**power, rel=0.03)


# ------------------------------------------------------------------------------------------ steps of optimisers


@pytest.mark.slow
@pytest.mark.claim("10", "with one sequence to a step and every tenth step clipped")
@claim(
    "*Clipping*, the Trainer's default",
    "The coin's long sequences are clipped more often",
    on=[(1, 1.45, 0.098, 9.02), (4, 2.1, 0.25, 9.50), (32, 8.7, 0.103, 9.96)],
    but_not={
        "the coin": (1, 1.45, 0.098, 10.0),
        "steps that are not clipped": (1, np.inf, 0.098, 9.02),
        "long sequences of any law: one of 10 in five, the others of one token": (1, 0.5, 0.2, 8.89, False),
    },
)
def test_clipped_steps_of_a_constant_divisor(
    size: int, threshold: float, share: float, length: float, coin: bool = True
) -> None:
    """SGD on 1,000 models of two logits each, from the coin itself: where they settle, and which steps are clipped."""
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


@pytest.mark.erratum("0.17", "conditional")
@claim(
    "Adam hides this, except for",
    on=[{}, {"clip": 0.01}],
    but_not={
        "a threshold that the right gradient reaches and the smaller one does not": {"clip": 1.0},
        "a large epsilon": {"eps": 1.0},
        "a decay that is added to the gradient": {"decay": 0.5},
        "0.17: whatever the optimiser": {"optimiser": torch.optim.SGD},
    },
)
def test_what_adam_hides_of_a_missing_factor(
    clip: float = np.inf, eps: float = 0.0, decay: float = 0.0, optimiser: Any = torch.optim.Adam
) -> None:
    """Gradients four times too small; clipped at a multiple of the median length."""
    g, ends = rng(7), []
    slopes = torch.tensor((g.normal(size=(6, 5)) + 2) * [[1.0], [3.0], [1.0], [0.5], [3.0], [1.0]])
    for scale in (0.25, 1.0):
        w = torch.ones(5, dtype=torch.float64, requires_grad=True)
        given = {"eps": eps} if optimiser is torch.optim.Adam else {}
        walker = optimiser([w], lr=0.1, weight_decay=decay, **given)
        for slope in slopes:
            w.grad = slope * scale
            torch.nn.utils.clip_grad_norm_([w], clip * slopes.norm(dim=1).median())
            walker.step()
        ends.append(w.detach())
    torch.testing.assert_close(*ends, rtol=1e-4, atol=0)


@claim(
    "Under a common denominator, two cuts of a window",
    on=[(torch.nn.Identity(),), (torch.nn.LayerNorm(6),)],
    but_not={
        "batch normalisation": (torch.nn.BatchNorm1d(6, track_running_stats=False),),
        "dropout": (torch.nn.Dropout(0.5),),
        "a mean for each part": (torch.nn.Identity(), False),
    },
)
def test_two_cuts_of_a_window(before: torch.nn.Module, common: bool = True) -> None:
    """Of 16 targets in float32, into equal parts and others; one-target parts where the layer takes them."""
    draw = torch.Generator().manual_seed(int(rng(13).integers(2**31)))
    x, y = torch.randn(16, 6, generator=draw), torch.randint(10, (16,), generator=draw)
    found = []
    for cut in (
        [16],
        [3, 5, 2, 6],
        [8, 8],
        [4] * 4 if isinstance(before, torch.nn.BatchNorm1d) else [1] * 16,
    ):
        weight = torch.zeros(10, 6, requires_grad=True)
        for part, labels in zip(torch.split(x, cut), torch.split(y, cut), strict=True):
            loss = F.cross_entropy(before(part) @ weight.T, labels, reduction="sum")
            torch.autograd.backward(loss / (16 if common else len(cut) * len(labels)))
        assert weight.grad is not None
        found.append(weight.grad)
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
        says(True)
        with refuted("the backward pass alone"):
            says(False)
    finally:
        torch.distributed.destroy_process_group()


# ------------------------------------------------------------------------------------------- what is learnt


def learnt_mean(lengths: Array, law: Array, B: int) -> float:
    return float(learnt_distribution(law, lengths, B) @ lengths)


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


def reported(p: Array, w: Array, B: int, batches: Any = None) -> Array:
    """What PyTorch's weighted mean teaches, from all batches of so many labels, or from these, equally often."""
    log_q = torch.zeros(len(p), dtype=torch.float64, requires_grad=True)
    for y in batches or itertools.product(range(len(p)), repeat=B):
        chance = 1.0 if batches else float(np.prod(p[[*y]]))
        mean = F.nll_loss(log_q.expand(len(y), -1), torch.tensor(y), weight=torch.tensor(w))
        torch.autograd.backward(chance * mean)
    assert log_q.grad is not None
    return np.asarray((log_q.grad / log_q.grad.sum()).numpy())


RARE = np.array([0.8, 0.2]), np.array([1.0, 6.0])


@claim(
    "A class-weighted mean is a ratio too",
    on=lambda: (
        (p, w, B)
        for classes, B in ((2, 1), (2, 4), (3, 3), (10, 1), (300, 1))
        for _, w in weights(rng(4), classes)
        if (w > 0).all() and np.ptp(w)
        for p in rng(5).dirichlet(np.full(classes, 5.0), 2)
    ),
    but_not={
        "a stratified batch": (*RARE, 20, [[0] * 16 + [1] * 4]),
        "a weight of zero": (RARE[0], np.array([0.0, 1.0]), 1, [[1]]),
        "weights that do not differ": (RARE[0], np.ones(2), 4),
    },
)
def test_class_weights(p: Array, w: Array, B: int, batches: Any = None) -> None:
    """Positive weights do nothing to a batch of one, and less than is asked for to any other."""
    learnt, asked = reported(p, w, B, batches), p * w / (p @ w)
    assert np.abs(learnt - asked).max() > 1e-3 and (B > 1 or np.abs(learnt - p).max() < 1e-12)
    np.testing.assert_allclose(learnt, learnt_distribution(p, w, B, weight=w), rtol=1e-9)


# -------------------------------------------------------------------------------------------- the note


def the_note_says(sentence: str) -> None:
    """The sentence stands in the note, which is no chapter and has no marks of claims."""
    text = (EXPERIMENTS.parent / "chapters" / "note_denominators.md").read_text(encoding="utf-8")
    assert " ".join(sentence.split()) in " ".join(text.split())


def test_a_divisor_of_contexts_and_draws_that_share_a_source() -> None:
    """Batches of two, enumerated: draws that are independent, and draws that share a source."""
    the_note_says("a divisor that depends on contexts alone is harmless")
    the_note_says("If the draws are only exchangeable, it need not be")

    def says(sources: Array, context: Array, answer: Array, slope: float) -> None:
        joint = np.stack([1 - context, context], -1)[..., None] * np.stack([1 - answer, answer], -1)
        both = np.einsum("s,sab,scd->abcd", sources, joint, joint)  # contexts and answers of the two
        share = 1 / (2 + slope * np.add.outer([0, 1], [0, 1]))
        seen, learnt = both.sum((2, 3)), np.einsum("abcd,ac->ab", both, share)
        found, right = (x / x.sum(1, keepdims=True) for x in (learnt, seen))
        np.testing.assert_allclose(found, right, rtol=1e-9)

    for slope in (0.5, 9.0):
        says(np.ones(1), rng(8).uniform(0.1, 0.9, 1), rng(9).uniform(0.1, 0.9, (1, 2)), slope)
        with refuted("two sources"):
            says(np.full(2, 0.5), np.array([0.9, 0.1]), np.array([[0.9, 0.9], [0.1, 0.1]]), slope)


def test_the_bias_at_the_minimum_of_the_summed_loss() -> None:
    """Gradients with a mean of zero, for 2 to 6 kinds of items, in batches of 10^5: eq-avg-ratio with R = 0."""
    the_note_says(r"At the minimum of the summed loss, the gradient has $R = 0$; to first order, both variances are "
                  r"$\mathrm{Var}[g] / (B \mu^2)$ and the bias is $-\mathrm{Cov}(g, d) / (B \mu^2)$.")  # fmt: skip
    g, B = rng(12), 100_000
    for kinds in (2, 3, 6):
        d, law = np.sort(g.choice(np.arange(1.0, 20), kinds, replace=False)), g.dirichlet(np.full(kinds, 4.0))
        terms = g.normal(size=kinds)
        terms -= law @ terms
        bias, cov = B * law @ (terms * expected_inverse(d, d, law, B)), law @ (terms * d)
        assert B * (law @ d) ** 2 * bias == pytest.approx(-cov, rel=0.01, abs=1e-3)


def test_the_divisor_of_an_earlier_batch_in_training() -> None:
    """SGD on the log-odds of a rare class, 400 models: the sum over the earlier batch, and over the others."""
    the_note_says(
        "leaves a bias that is proportional to the step size and vanishes if the step size falls to zero; the sum"
    )
    share, weight, target = 0.05, 20.0, 1.0 / 1.95

    def bias(others: bool, rate: float) -> tuple[float, float]:
        g, z, kept, before = rng(9), np.full(400, np.log(target / (1 - target))), [], None
        for _ in range(1200):
            y = g.random((400, 4)) < share
            w = np.where(y, weight, 1.0)
            total = w.sum(1, keepdims=True)
            divisor = total - w if others else total if before is None else before
            kept.append(1 / (1 + np.exp(-z)))
            z, before = z - rate * (w * (kept[-1][:, None] - y) / divisor).sum(1), total
        each = np.mean(kept[300:], axis=0) - target
        return float(each.mean()), float(each.std(ddof=1) / 20)

    # A constant rate leaves a variance, and the sigmoid's curvature a bias of its own, at 0.1 below a hundredth.
    (small, error), (large, _), (none, spread) = bias(False, 0.1), bias(False, 0.5), bias(True, 0.1)
    assert abs(none) < 4 * spread + 0.004 < small and small > 4 * error and 2.5 < large / small < 7
