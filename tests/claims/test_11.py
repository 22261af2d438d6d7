"""Chapter 11's claims: what a denominator does to the gradient, and to what is learnt."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from adversary import Draw, refuted, rng, weights
from experiments.denominators import table
from xent.denominators import eos_optimum, expected_inverse, learnt_distribution
from xent.scoring import invert_weighting
from xent.sequences import GeometricSource

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "experiments" / "denominators"
Tensor = torch.Tensor
Array = np.ndarray
Batch = tuple[Tensor, Tensor]


class Case:
    """Ranks of micro-batches, ragged, equal or with a single target each, and a linear model away from any minimum."""

    def __init__(self, g: Draw, kind: str = "ragged") -> None:
        draw = torch.Generator().manual_seed(int(g.integers(2**31)))
        self.counts = [
            {
                "ragged": [int(n) for n in np.ceil(np.exp(2.5 * g.random(g.integers(1, 5)) + g.random()))],
                "equal": [4, 4],
                "single": [1] * int(g.integers(1, 4)),
                "one long": [1, 300] if rank == 0 else [1, 1],
            }[kind]
            for rank in range(int(g.integers(2, 5)))
        ]
        self.weight = torch.randn(3, 5, generator=draw).double().requires_grad_()
        self.ranks: list[list[Batch]] = [
            [
                (torch.randn(n, 3, generator=draw).double(), torch.randint(5, (n,), generator=draw))
                for n in rank
            ]
            for rank in self.counts
        ]
        self.total = sum(map(sum, self.counts))
        self.flat = [batch for rank in self.ranks for batch in rank]

    def gradient(self, batch: Batch, scale: float = 1.0) -> Tensor:
        loss = F.cross_entropy(batch[0] @ self.weight, batch[1], reduction="sum") * scale
        return torch.autograd.grad(loss, self.weight)[0]

    @property
    def whole(self) -> Tensor:
        inputs, targets = (torch.cat([b[k] for b in self.flat]) for k in (0, 1))
        loss = F.cross_entropy(inputs @ self.weight, targets)
        return torch.autograd.grad(loss, self.weight)[0]


def off(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


KINDS = ("ragged", "ragged", "equal", "single", "one long")


@pytest.mark.claim(
    "11",
    "A mean of means weights a token by the mean count divided by the count of its own micro-batch.",
)
def test_the_weight_of_a_token_in_a_mean_of_means() -> None:
    """Windows that are ragged, equal, of single targets, and with one long micro-batch.

    Would be refuted by a window whose mean of means gives a token another weight.
    """
    g = rng(0)

    def says(weight: Callable[[int, float], float], case: Case) -> None:
        counts = [len(y) for _, y in case.flat]
        found = sum(case.gradient(b, 1 / n / len(counts)) for b, n in zip(case.flat, counts, strict=True))
        mean = case.total / len(counts)
        stated = sum(
            case.gradient(b, weight(n, mean) / case.total) for b, n in zip(case.flat, counts, strict=True)
        )
        assert off(stated, found) < 1e-12  # a few roundings in float64

    for kind in KINDS:
        case = Case(g, kind)
        says(lambda n, mean: mean / n, case)
        if kind in ("ragged", "one long"):
            with refuted("equal weights, those of one denominator"):
                says(lambda n, mean: 1, case)
            with refuted("the count over the mean count"):
                says(lambda n, mean: n / mean, case)
        else:
            with refuted("another loss, where the counts are equal"):
                found = sum(case.gradient(b, 1 / len(b[1]) / len(case.flat)) for b in case.flat)
                assert off(found, case.whole) > 1e-6


@pytest.mark.claim(
    "11",
    "Sum the losses, count the targets of the whole window over micro-batches and ranks, and scale each "
    "sum by your framework's divisor, divided by that count.",
)
@pytest.mark.claim(
    "11",
    "One denominator for each rank leaves the mean over ranks as it was. The global $N$ without the "
    "factor $W$ gives the right direction but a gradient $W$ times too small.",
)
def test_the_repair_and_the_two_halves_of_it() -> None:
    """Windows of every kind, on two to four ranks with different numbers of micro-batches; divisors W, 1 and 7.

    Would be refuted by a window where the repair misses the gradient of the whole, or where a half of it suffices.
    """
    g = rng(1)

    def says(gradient: Tensor, case: Case) -> None:
        assert off(gradient, case.whole) < 1e-12

    for kind in KINDS:
        case = Case(g, kind)
        W = len(case.ranks)
        for divisor in (W, 1, 7):
            says(sum(case.gradient(b, divisor / case.total) for b in case.flat) / divisor, case)
        half = sum(
            case.gradient(b, 1 / sum(n))
            for rank, n in zip(case.ranks, case.counts, strict=True)
            for b in rank
        )
        if len({sum(n) for n in case.counts}) > 1:
            with refuted("one denominator for each rank"):
                says(half / W, case)
        missing = sum(case.gradient(b, 1 / case.total) for b in case.flat) / W
        says(missing * W, case)
        with refuted("the global count without the factor W"):
            says(missing, case)


@pytest.mark.claim(
    "11", "More accumulation steps do not repair a mean of means: its bias is that of a single micro-batch."
)
@pytest.mark.claim(
    "11",
    "One denominator leaves the bias of a ratio, of order one over the number of independent sequences that share it; "
    "a constant denominator has none, unless steps are clipped or Adam's `beta2` is small.",
)
def test_what_accumulation_does_to_the_bias() -> None:
    """Random lengths, some of them rare and long; simulated windows of 1 to 16 steps, four errors and a half.

    Would be refuted by a window whose bias is not that of its denominator.
    """
    g = rng(2)
    B = 3

    def says(scale: Array, kinds: Array, n: Array, expected: float) -> None:
        each = np.broadcast_to(scale, n.shape)
        short, total = (each * (kinds == 0)).sum((1, 2)), each.sum((1, 2))
        seen = short.sum() / total.sum()
        error = np.sqrt(np.square(short - seen * total).sum()) / total.sum()
        assert abs(seen - expected) < 4.5 * error

    for law in (np.array([0.5, 0.3, 0.15, 0.05]), g.dirichlet(np.full(4, 5.0))):
        lengths = np.array([1, 3, 4, int(g.integers(20, 60))])
        single = learnt_distribution(law, lengths, B)[0]
        for K in (1, 4, 16):
            kinds = g.choice(4, size=(60_000 // K, K, B), p=law)
            n = lengths[kinds]
            micro, window = 1 / n.sum(2, keepdims=True), 1 / n.sum((1, 2), keepdims=True)
            shared = learnt_distribution(law, lengths, K * B)[0]
            says(micro, kinds, n, single)
            says(window, kinds, n, shared)
            says(np.ones((1, 1, 1)), kinds, n, law[0])
            if K > 1:
                with refuted("accumulated means with the bias of the window"):
                    says(micro, kinds, n, shared)
            with refuted("a mean of means without a bias"):
                says(micro, kinds, n, law[0])
    # Of order one over: ten times as many sequences, a tenth of the bias.

    def order(p: Array, d: Array, power: float, copies: bool = False) -> None:
        # Copies of one sequence share a multiple of its own length.
        few, many = (
            np.abs(learnt_distribution(p, d, 1 if copies else size) - p).max() for size in (1000, 10_000)
        )
        assert few / many == pytest.approx(10**power, rel=0.03)

    for p, d in ((law, lengths), (np.array([0.2, 0.8]), np.array([1, 2]))):
        order(p, d, 1)
        with refuted("a bias of order one over the square"):
            order(p, d, 2)
        with refuted("sequences that are copies of one"):
            order(p, d, 1, copies=True)


@pytest.mark.slow
@pytest.mark.claim(
    "11",
    "A *clipped* step, the Trainer's default, has a random divisor again: small steps settle where the clipped "
    "gradient averages zero.",
)
@pytest.mark.claim(
    "11",
    "The coin's long sequences are clipped more often than its short ones, so the model stops too soon.",
)
@pytest.mark.claim(
    "10", "with one sequence to a step and every tenth step clipped, the coin's 10 tokens become 9.02"
)
def test_clipped_steps_of_a_constant_divisor() -> None:
    """SGD on 1,000 models of two logits each, from the coin itself, at thresholds of the page's table and without one.

    Would be refuted by clipped steps that leave the coin where it is, as the page's "a constant has none" had it.
    "Long sequences" of any law is refuted by lengths of 10, and 1 in every fifth: short ones are clipped, 8.2 is 8.9.
    """
    g = rng(17)
    start = torch.tensor([2.0, -1.0], requires_grad=True)
    start.grad = torch.tensor([3.0, -3.0])
    torch.nn.utils.clip_grad_norm_([start], 1.44 * 2**0.5)
    torch.testing.assert_close(start.grad, torch.tensor([1.44, -1.44]))  # what np.clip does below

    def settled(size: int, threshold: float, coin: bool = True) -> tuple[float, float, float, float]:
        """The mean length, four errors and a half of it, and the shares of long and of short steps clipped."""
        z, seen = np.full(1000, -np.log(9)), []
        for step in range(1500):
            stop = 1 / (1 + np.exp(-z))
            n = g.negative_binomial(size, 0.1, 1000) + size if coin else g.choice([1, 10], 1000, p=[0.2, 0.8])
            slope = stop * n - size
            z -= 0.03 / size * (1 - step / 1500) * np.clip(slope, -threshold, threshold)
            if step >= 750:
                seen.append((stop, slope > threshold, slope < -threshold))
        each, long, short = np.mean(seen, axis=0)
        error = 4.5 * each.std() / 1000**0.5 / each.mean() ** 2
        return float(1 / each.mean()), float(error), float(long.mean()), float(short.mean())

    def says(seen: tuple[float, float, float, float], share: float, length: float) -> None:
        found, error, long, short = seen
        assert abs(found - length) < error + 0.01 and long > short
        assert abs(long + short - share) < 0.01

    for size, threshold, share, length in (
        (1, 1.45, 0.098, 9.02),
        (4, 2.1, 0.25, 9.50),
        (32, 8.7, 0.103, 9.96),
    ):
        seen = settled(size, threshold)
        says(seen, share, length)
        with refuted("the coin"):
            says(seen, share, 10.0)
    with refuted("steps that are not clipped"):
        says(settled(1, np.inf), 0.098, 9.02)
    late = settled(1, 0.5, coin=False)
    assert abs(late[0] - 8.89) < late[1] + 0.01
    with refuted("long sequences of any law"):
        says(late, 0.2, late[0])


@pytest.mark.slow
@pytest.mark.claim(
    "11",
    "unclipped, at one sequence a step, it takes a thousandth off the mean length with its default `beta2=0.999`, and "
    "nearly three hundredths with 0.95.",
)
def test_adams_divisor_of_one_sequence() -> None:
    """PyTorch's Adam on the coin's gradients at two stop probabilities; the mean step is zero where it settles.

    Would be refuted by a mean length that is another, at either beta2.
    """
    g = rng(18)
    near = 1 / torch.tensor([[10.0], [9.6]], dtype=torch.float64)

    def says(beta2: float, low: float, high: float) -> None:
        w = torch.zeros(2, 500, dtype=torch.float64, requires_grad=True)
        optimiser = torch.optim.Adam([w], lr=1.0, betas=(0.9, beta2))
        start, steps = (4000, 3000) if beta2 > 0.99 else (200, 1000)
        plain = torch.zeros_like(w)
        for step in range(start + steps):
            if step == start:
                before = w.detach().clone()
            w.grad = near * torch.as_tensor(g.geometric(0.1, 500)) - 1
            optimiser.step()
            plain += (w.grad - (10 * near - 1)) * (step >= start)  # of mean zero, and most of the noise
        a, b = (before - w.detach() - plain / 0.95).mean(1).tolist()
        assert low < 10 - 0.4 * a / (a - b) < high

    assert torch.optim.Adam([torch.zeros(1, requires_grad=True)]).defaults["betas"][1] == 0.999
    says(0.999, 9.98, 9.995)
    says(0.95, 9.70, 9.75)
    with refuted("the other beta2"):
        says(0.95, 9.98, 9.995)


@pytest.mark.claim(
    "11",
    "Under a mean of means, a smaller micro-batch makes a model that stops sooner, provided that its "
    "sequences are drawn independently, that lengths vary within a prompt and that the end is scored; "
    "with blocks or buckets of one length, its size changes nothing.",
)
@pytest.mark.erratum("0.16", "conditional")
def test_smaller_micro_batches_stop_sooner() -> None:
    """Random distributions of lengths: the mean length grows with the micro-batch, up to the true one.

    Would be refuted by lengths that vary, at which a smaller micro-batch writes as much or more.
    """
    g = rng(3)

    def says(means: list[float]) -> None:
        assert (np.diff(means) > 1e-9 * max(means)).all()  # a rounding is no rise

    for _ in range(30):
        lengths = np.unique(g.integers(1, 80, 5)).astype(float)
        p = g.dirichlet(np.full(len(lengths), g.choice([0.3, 2.0]))) * 0.99 + 0.01 / len(lengths)
        if len(lengths) > 1:
            means = [float(learnt_distribution(p, lengths, B) @ lengths) for B in (1, 2, 4, 16)]
            says([*means, float(p @ lengths)])
            with refuted("the larger micro-batch stopping sooner"):
                says([float(p @ lengths), *means[::-1]])
            with refuted("0.16: with buckets of one length, which divide each sequence by B times its own"):
                says([float(p.sum() / (p / (B * lengths)).sum()) / B for B in (1, 2, 4, 16)])
    with refuted("lengths that do not vary"):
        says(
            [
                float(learnt_distribution(np.array([0.3, 0.7]), np.full(2, 5.0), B) @ np.full(2, 5.0))
                for B in (1, 2)
            ]
        )


@pytest.mark.claim(
    "11",
    "A class-weighted mean is a ratio too: with a batch of one, positive weights do nothing, and small "
    "batches of independent draws bend the odds of two classes less than the weights ask for.",
)
def test_sgd_with_class_weights() -> None:
    """PyTorch's own weighted mean, 64 models that see different labels; random shares and weights.

    Would be refuted by a share at which a small batch learns all that the weights ask for, as a stratified batch does.
    Of probabilities, as the page once had it, it is refuted: one of three moves where the weights ask for nothing.
    """
    g = rng(4)
    draw = torch.Generator().manual_seed(int(g.integers(2**31)))
    share = g.uniform(0.2, 0.4)
    asked = torch.tensor([1.0, g.uniform(4, 8)]).double()
    shares = np.array([1 - share, share])
    wanted = share * float(asked[1]) / (share * float(asked[1]) + 1 - share)

    def trained(B: int, stratified: bool = False) -> Array:
        z = torch.zeros(64, 2, dtype=torch.float64, requires_grad=True)
        for step in range(300):
            y = (torch.rand(64, B, generator=draw) < share).long()
            if stratified:  # the shares in each batch, as near as they go
                y[:] = (torch.arange(B) < round(share * B)).long()
            each = F.cross_entropy(z.repeat_interleave(B, 0), y.flatten(), asked, reduction="none").view(
                64, B
            )
            total = each.sum(1) / asked[y].sum(1)
            if step == 0:
                theirs = F.cross_entropy(z[:1].expand(B, 2), y[0], weight=asked)
                torch.testing.assert_close(total[0], theirs, rtol=1e-12, atol=0)
            (gradient,) = torch.autograd.grad(total.sum(), z)
            z.data -= 0.3 * (1 - step / 300) * gradient
        return np.asarray(z.detach().softmax(1)[:, 1].numpy())

    def says(reports: Array, B: int) -> None:
        exact = float(learnt_distribution(shares, asked.numpy(), B, weight=asked.numpy())[1])
        # The rate falls to zero linearly; what it leaves behind is a tenth of it at most.
        assert abs(reports.mean() - exact) < 4 * reports.std(ddof=1) / 8 + 0.005
        assert reports.mean() < wanted - 0.03
        if B == 1:
            assert exact == pytest.approx(share, rel=1e-12)

    for B in (1, 4):
        says(trained(B), B)
    with refuted("a stratified batch, whose sum of weights is a constant"):
        says(trained(20, stratified=True), 20)
    with refuted("what the weights ask for"):
        says(np.full(64, wanted), 4)

    def nothing(w: Tensor, label: int) -> None:
        z, y = torch.randn(1, 2, generator=draw).double(), torch.tensor([label])
        torch.testing.assert_close(F.cross_entropy(z, y, weight=w), F.cross_entropy(z, y))

    for label in (0, 1):
        nothing(asked, label)
    with refuted("a weight of zero, whose batch of one is nan"):
        nothing(torch.tensor([0.0, 20.0]).double(), 0)
    # Any shares and weights: with one at a time nothing, with more a part.
    for classes in (2, 10, 300):
        for _, w in weights(g, classes):
            if (w > 0).all():
                p = g.dirichlet(np.ones(classes))
                np.testing.assert_allclose(learnt_distribution(p, w, 1, weight=w), p, rtol=1e-9)

    def bent_less(p: Array, w: Array, B: int, odds: bool) -> None:
        bent, wanted = np.log(learnt_distribution(p, w, B, weight=w) / p), np.log(w / float(p @ w))
        if odds:  # of any two classes, the heavier one first
            first, second = np.nonzero(w[:, None] > w + 1e-3)
            bent, wanted = bent[first] - bent[second], wanted[first] - wanted[second]
            assert (bent > 0).all()
        assert (np.abs(bent) < np.abs(wanted) - 1e-9).all()

    for classes in (2, 3, 10):
        for B in (2, 4, 16):
            p, w = g.dirichlet(np.full(classes, 3.0)), g.uniform(1, 20, classes)
            bent_less(p, w, B, odds=True)
    p = np.array([0.6, 0.3, 0.1])
    w = np.array([1.0, 2.6 / 0.7, 20.0])  # the second is the mean weight: nothing is asked of its class
    bent_less(p, w, 4, odds=True)
    with refuted("the probabilities"):
        bent_less(p, w, 4, odds=False)


@pytest.mark.claim(
    "11",
    "A bias that makes sequences a fifth too short can raise the perplexity by less than half a per cent: log the "
    "lengths that the model generates.",
)
def test_a_length_bias_that_perplexity_hides() -> None:
    """The coin of the chapter, exactly, and for every number of letters. It "can": with a shorter coin it does not.

    Would be refuted by a vocabulary at which the perplexity per token of this coin tells.
    """
    g = rng(5)

    def says(beta: float, letters: int) -> None:
        coin, q = GeometricSource(beta, letters=letters), eos_optimum(beta, 4)
        assert 1 / q < 0.8 * coin.mean_length()
        raised = np.exp((coin.cross_entropy(q) - coin.entropy()) / coin.mean_length()) - 1
        assert 0 < raised < 0.005

    for letters in (1, 26, 50_257, *g.integers(2, 1000, 5)):
        says(0.1, int(letters))
    with refuted("a coin that stops at every second toss"):
        says(0.5, 26)


@pytest.mark.claim(
    "11",
    "A mean that replaces ignored labels by a class, multiplies by the mask and divides by its sum "
    "passes nan to the parameters.",
)
@pytest.mark.claim(
    "11",
    'A mean written by hand, `cross_entropy` with `reduction="none"` over the sum of the mask, has a gradient of zero '
    "as well.",
)
def test_a_mean_of_nothing() -> None:
    """Eight ways to write the mean of a micro-batch of padding, down to the parameters; any shape of logits.

    Would be refuted by a way whose parameters come out otherwise than the sentence says.
    """
    g = rng(6)

    def gradient(loss: Callable[[Tensor, Tensor, Tensor], Tensor], rows: int, classes: int) -> Tensor:
        x = torch.tensor(g.normal(size=(rows, 3)))
        w = torch.zeros(3, classes, dtype=torch.float64, requires_grad=True)
        y = torch.full((rows,), -100)
        loss(x @ w, y, (y != -100).double()).backward()
        assert w.grad is not None
        return w.grad

    def says(found: Tensor, dead: bool) -> None:
        assert bool(found.isnan().all()) == dead and (dead or bool((found == 0).all()))

    def gathered(z: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        each = z.log_softmax(1).gather(1, y.clamp(min=0)[:, None])[:, 0]
        return -(each * mask).sum() / mask.sum()

    ways: list[tuple[Callable[[Tensor, Tensor, Tensor], Tensor], bool]] = [
        (lambda z, y, mask: F.cross_entropy(z, y), False),
        (lambda z, y, mask: (F.cross_entropy(z, y, reduction="none") * mask).sum() / mask.sum(), False),
        (lambda z, y, mask: F.cross_entropy(z, y, reduction="none")[mask.bool()].mean(), False),
        (gathered, True),
        (
            lambda z, y, mask: (
                (F.cross_entropy(z, y.clamp(min=0), reduction="none") * mask).sum() / mask.sum()
            ),
            True,
        ),
        # Without the product the mask takes the labels out before the division, or puts a zero in their place.
        (lambda z, y, mask: -z.log_softmax(1)[mask.bool(), y[mask.bool()]].mean(), False),
        (lambda z, y, mask: F.cross_entropy(z, y.clamp(min=0), reduction="none")[mask.bool()].mean(), False),
        (
            lambda z, y, mask: (
                torch.where(mask.bool(), F.cross_entropy(z, y.clamp(min=0), reduction="none"), 0.0).sum()
                / mask.sum()
            ),
            False,
        ),
    ]
    for rows, classes in ((1, 2), (4, 3), (7, 1000)):
        for way, dead in ways:
            found = gradient(way, rows, classes)
            says(found, dead)
            with refuted("the opposite"):
                says(found, not dead)
    # Not to every entry: the rows of an embedding that do not occur in the padding are zero.
    for way, dead in ways:
        table_, w = torch.nn.Embedding(9, 3).double(), torch.ones(3, 4, dtype=torch.float64)
        y = torch.full((5,), -100)
        way(table_(torch.zeros(5, dtype=torch.long)) @ w.requires_grad_(), y, (y != -100).double()).backward()
        rows_of = table_.weight.grad
        assert rows_of is not None and w.grad is not None
        says(w.grad, dead)
        says(rows_of[:1], dead)
        says(rows_of[1:], False)
        if dead:
            with refuted("every entry"):
                says(rows_of, dead)


@pytest.mark.claim(
    "11",
    "Adam hides this, except for the effects of its epsilon, a decay added to the gradient, and a clipping "
    "threshold, which the smaller gradient may not reach.",
)
@pytest.mark.erratum("0.17", "conditional")
def test_what_adam_hides_of_a_missing_factor() -> None:
    """Adam on gradients four times too small: a threshold that both reach, that one reaches, and that none reaches.

    Would be refuted by a step that tells without the three, or by one of the three that never does.
    """
    g = rng(7)
    steps = torch.tensor(g.normal(size=(6, 5)) + np.sign(g.normal(size=(6, 5))))
    steps *= torch.tensor([1.0, 3.0, 1.0, 0.5, 3.0, 1.0]).double()[:, None]

    def walked(scale: float, threshold: float | None, eps: float, decay: float) -> Tensor:
        w = torch.ones(5, dtype=torch.float64, requires_grad=True)
        optimiser = torch.optim.Adam([w], lr=0.1, eps=eps, weight_decay=decay)
        for step in steps:
            w.grad = step * scale
            if threshold is not None:
                torch.nn.utils.clip_grad_norm_([w], threshold)
            optimiser.step()
        return w.detach()

    def hidden(threshold: float | None = None, eps: float = 0.0, decay: float = 0.0) -> None:
        torch.testing.assert_close(
            walked(0.25, threshold, eps, decay), walked(1, threshold, eps, decay), rtol=1e-4, atol=0
        )

    lengths = steps.norm(dim=1)
    hidden()
    hidden(threshold=float(lengths.min()) / 8)
    hidden(threshold=float(lengths.max()) * 2)
    with refuted("a threshold that the right gradient reaches and the smaller one does not"):
        hidden(threshold=float(lengths.median()))
    with refuted("a large epsilon"):
        hidden(eps=1.0)
    with refuted("a decay that is added to the gradient"):
        hidden(decay=0.5)


@pytest.mark.claim(
    "11",
    "Under a common denominator two cuts of a window have the same gradient up to rounding, unless something in the "
    "model or the loss depends on the cut, as dropout and batch normalisation do.",
)
@pytest.mark.erratum("0.17", "conditional")
def test_two_cuts_of_a_window() -> None:
    """Random cuts of 16 targets in float32, pairs among them whose gradients cancel; SGD, Adam, batch normalisation.

    Would be refuted by a cut whose gradient is off by more than a rounding. The steps may be: where a gradient is
    rounding alone, Adam makes a whole step of it.
    """
    g = rng(13)
    draw = torch.Generator().manual_seed(int(g.integers(2**31)))
    half = torch.randn(8, 6, generator=draw)
    order = torch.randperm(16, generator=draw)
    windows = [  # the second has pairs of inputs of opposite sign and one label: at zero weights their sum is zero
        (torch.randn(16, 6, generator=draw), torch.randint(10, (16,), generator=draw)),
        (torch.cat([half, -half])[order], torch.randint(4, (8,), generator=draw).repeat(2)[order]),
    ]

    def taken(window: Batch, cut: list[int], module: torch.nn.Module, adam: bool) -> tuple[Tensor, Tensor]:
        model = torch.nn.Sequential(module, torch.nn.Linear(6, 10, bias=False))
        weight = torch.nn.init.zeros_(model[1].weight)
        optimiser = torch.optim.Adam([weight], 0.1) if adam else torch.optim.SGD([weight], 0.1)
        for x, y in zip(*(part.split(cut) for part in window), strict=True):
            (F.cross_entropy(model(x), y, reduction="sum") / 16).backward()
        assert weight.grad is not None
        gradient = weight.grad.clone()
        optimiser.step()
        return gradient, weight.detach()

    def same(which: int, adam: bool = False, module: torch.nn.Module | None = None) -> None:
        for window in windows:
            cuts = [[16], [3, 5, 2, 6], [8, 8], [16] if module else [1] * 16]
            found = [taken(window, cut, module or torch.nn.Identity(), adam)[which] for cut in cuts]
            for other in found[1:]:
                assert float((other - found[0]).abs().max()) < 1e-6

    same(0)
    same(0, adam=True)
    same(1)
    with refuted("0.17: the runs, by Adam, are completely equivalent"):
        same(1, adam=True)
    with refuted("batch normalisation"):
        same(0, module=torch.nn.BatchNorm1d(6, track_running_stats=False))


@pytest.mark.claim("11", "run all forward and backward passes but the last within `model.no_sync()`")
def test_the_forward_pass_belongs_within_no_sync(tmp_path: Path) -> None:
    """One process, and a hook that counts the averages over the ranks.

    Would be refuted by a forward pass outside whose backward pass inside does not average.
    """
    dist = torch.distributed
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
        calls: list[int] = []

        def hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP reads the annotations itself
            calls.append(1)
            done: torch.futures.Future[Tensor] = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done

        net.register_comm_hook(None, hook)

        def says(forward_within: bool) -> None:
            calls.clear()
            loss = None if forward_within else net(torch.ones(1, 2)).sum()
            with net.no_sync():
                (net(torch.ones(1, 2)).sum() if loss is None else loss).backward()
            assert not calls

        says(True)
        with refuted("the backward pass alone"):
            says(False)
    finally:
        dist.destroy_process_group()


@pytest.mark.claim(
    "11",
    "After FSDP2's `set_gradient_divide_factor(1.0)` on each sharded module, $d = 1$: drop the $W$.",
)
def test_the_divide_factor_of_each_sharded_module(tmp_path: Path) -> None:
    """A model whose first layer is sharded by itself, on one rank: $d$ is what the gradients were divided by, 1 or 4.

    Would be refuted by a factor that the model hands on to the modules within it.
    """
    from torch.distributed.fsdp import FSDPModule, fully_shard

    dist = torch.distributed
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))

        def says(everywhere: bool, factor: float) -> None:
            torch.manual_seed(0)
            net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
            x = torch.ones(2, 3)
            expected = torch.autograd.grad(net(x).sum(), list(net.parameters()))
            fully_shard(net[0], mesh=mesh)
            fully_shard(net, mesh=mesh)
            for module in net.modules():
                if isinstance(module, FSDPModule) and (everywhere or module is net):
                    module.set_gradient_divide_factor(factor)
            net(x).sum().backward()
            for p, right in zip(net.parameters(), expected, strict=True):
                torch.testing.assert_close(p.grad.full_tensor() * factor, right)

        for factor in (1.0, 4.0):
            says(True, factor)
        with refuted("the whole model alone"):
            says(False, 4.0)
    finally:
        dist.destroy_process_group()


@pytest.mark.claim(
    "11",
    "the probabilities without weights can still be recovered, provided that the weights are positive, that the draws "
    "were independent and that you know the batch size and the shares of the classes:",
)
def test_the_way_back_needs_independent_draws() -> None:
    """Two classes, batches of 1 to 20, independent or stratified, whose sum of weights is a constant; a weight of zero.

    Would be refuted by independent draws that do not come back, or by stratified ones or lost classes that do.
    """
    g = rng(10)

    def says(report: Array, law: Array, w: Array, B: int) -> None:
        back = invert_weighting(report, weight=w, batch_size=B, class_probs=law)
        np.testing.assert_allclose(back, law, rtol=1e-6)

    for B in (1, 4, 20):
        law = np.array([0.95, 0.05]) if B == 20 else g.dirichlet([3.0, 3.0])
        w = np.array([1.0, 20.0])
        says(learnt_distribution(law, w, B, weight=w), law, w, B)
        with refuted("stratified batches, which teach what the weights ask for"):
            says(law * w / (law @ w), law, w, B)
        # A class without weight leaves no trace: every law has the same report, and the way back says so.
        with pytest.raises(ValueError, match="weight"):
            says(np.array([0.0, 1.0]), law, np.array([0.0, 20.0]), B)


# ------------------------------------------------------------------------------ the table of denominators


STORED = {row["row"]: row for row in json.loads((FOLDER / "table.json").read_text())["rows"]}


@pytest.mark.claim(
    "11", "Wherever the theorem applies, the three numbers agree within three standard errors (±)"
)
@pytest.mark.parametrize("name", STORED)
def test_a_row_of_the_table(name: str) -> None:
    """Exact values anew; the stored simulation and training against them, three errors; simulations again.

    Would be refuted by a row of the table whose simulation or training lies elsewhere.
    """
    (row,) = (row for row in table.ROWS if row.name == name)
    stored = STORED[name]
    exact = row.exact()
    assert stored["exact"] == pytest.approx(exact, abs=1e-6)
    assert stored["truth"] == pytest.approx(row.truth, abs=1e-6)

    def says(seen: float, error: float, expected: float) -> None:
        assert abs(seen - expected) < 3 * error

    # A row that can tell: where the answer is not the truth, the truth is far outside both intervals.
    tells = abs(exact - row.truth) > 0.01 or name.startswith("sampled softmax, corrected, hits")
    other = row.truth if tells else exact + 0.02
    for which in ("simulated", "trained"):
        says(stored[which], stored[f"{which}_error"], exact)
        with refuted("the truth, or a number two hundredths off"):
            says(stored[which], stored[f"{which}_error"], other)
    both = np.hypot(stored["simulated_error"], stored["trained_error"])
    says(stored["simulated"], float(both), stored["trained"])
    if "class weights" not in name:
        seen, error = row.simulated(rng(77))
        assert abs(seen - exact) < 4.5 * error


@pytest.mark.claim("11", "A mean over rows ... padded to the longest")
@pytest.mark.claim("11", "divides by its length, and is improper too.")
def test_a_mean_over_the_padding() -> None:
    """Batches of 1 to 3 rows, enumerated, as PyTorch weighs them, and rows that are padded to a fixed length.

    Would be refuted by lengths that differ and are learnt as they are.
    """
    g = rng(11)

    def learnt(law: Array, lengths: Array, B: int, to: int | None) -> Array:
        seen = np.zeros(len(law))
        for batch in itertools.product(range(len(law)), repeat=B):
            n = torch.as_tensor(lengths[[*batch]])
            loss = torch.ones(B, to or int(n.max()), dtype=torch.float64, requires_grad=True)
            mask = torch.arange(loss.shape[1]) < n[:, None]
            (weight,) = torch.autograd.grad((loss * mask).mean(), loss)
            np.add.at(seen, [*batch], law[[*batch]].prod() * weight[:, 0].numpy())
        return seen / seen.sum()

    def says(found: Array, law: Array, lengths: Array) -> None:
        assert (np.diff((found / law)[np.argsort(lengths)]) < -1e-9).all()

    for B in (1, 2, 3):
        lengths, law = g.choice(np.arange(1, 30), 3, replace=False), g.dirichlet(np.full(3, 3.0))
        says(learnt(law, lengths, B, None), law, lengths)
        with refuted("rows padded to a fixed length, which is a constant"):
            says(learnt(law, lengths, B, 40), law, lengths)


def learnt_in_groups(kinds: Array, lengths: Array, group: Array, own: bool) -> Array:
    """What a mean over each group teaches: of its tokens or, where `own`, of its sequences' own means."""
    n = lengths[kinds].astype(float)
    divisor = np.bincount(group) if own else np.bincount(group, n)
    weight = 1 / divisor[group] / (n if own else 1)
    found = np.bincount(kinds, weight, minlength=len(lengths))
    return np.asarray(found / found.sum())


def near(found: Array, stated: Array) -> None:
    np.testing.assert_allclose(found, stated / stated.sum(), atol=0.012)


@pytest.mark.claim("11", "*Sorting by length undoes a large batch* of fixed size:")
@pytest.mark.claim("11", "$B$ sequences of one length are each divided by $B$ times that length.")
def test_buckets_of_a_fixed_number_of_sequences() -> None:
    """The table's lengths and others, 200,000 sequences sorted by length and cut into batches of 2 to 64.

    Would be refuted by a B whose sorted batches are learnt otherwise than one sequence at a time. That any bucket of
    one length does so, as the page once said, is refuted by buckets of a fixed number of tokens.
    """
    g = rng(15)
    for lengths, law in (
        (table.LENGTHS, table.P),
        (np.sort(g.choice(np.arange(1, 40), 4, replace=False)), g.dirichlet(np.full(4, 5.0))),
    ):
        kinds = np.sort(g.choice(4, size=200_000, p=law))
        for B in (2, 16, 64):
            near(learnt_in_groups(kinds, lengths, np.arange(len(kinds)) // B, own=False), law / lengths)
        with refuted("batches that are not sorted"):
            near(
                learnt_in_groups(g.permutation(kinds), lengths, np.arange(len(kinds)) // 16, own=False),
                law / lengths,
            )
    kinds = np.sort(g.choice(4, size=200_000, p=table.P))
    tokens = np.cumsum(table.LENGTHS[kinds]) - table.LENGTHS[kinds]
    with refuted("buckets of one length that hold 64 tokens each, a constant"):
        near(learnt_in_groups(kinds, table.LENGTHS, tokens // 64, own=False), table.P / table.LENGTHS)


@pytest.mark.claim("11", "restore the mean over each sequence and, with many rows to a batch, its bias.")
def test_the_weights_of_packed_rows() -> None:
    """The table's packed rows; LongAlign divides by the number of sequences of a batch, here of 1 to 256 rows.

    Would be refuted by batches of many rows with another bias. Without their number the sentence, as it once stood, is
    refuted by batches of one row.
    """
    stream = table.draw(rng(16), 300_000)
    row, _ = table.pack(stream)

    def says(rows: int) -> None:
        near(learnt_in_groups(stream, table.LENGTHS, row // rows, own=True), table.P / table.LENGTHS)

    for rows in (32, 256):
        says(rows)
    for rows in (1, 2):
        with refuted(f"batches with as few rows as {rows}"):
            says(rows)


@pytest.mark.claim("11", "*Prompt tokens that count in the divisor* dilute the tilt here;")
def test_prompt_tokens_in_the_divisor() -> None:
    """The table's prompts, and others whose length says nothing of the reply's: batches of 2 or 3, enumerated.

    Would be refuted by such a prompt under which the count of its tokens strengthens the tilt, as it does where short
    replies come with short prompts.
    """
    g = rng(14)

    def weight(own: int, n: int, kinds: list[tuple[int, int, float]], B: int, counted: bool) -> float:
        total = 0.0
        for others in itertools.product(kinds, repeat=B - 1):
            tokens = n + counted * own + sum(reply + counted * prompt for prompt, reply, _ in others)
            total += np.prod([chance for _, _, chance in others]) / tokens
        return total

    def says(kinds: list[tuple[int, int, float]], B: int) -> None:
        for own in {prompt for prompt, _, _ in kinds}:
            replies = sorted({n for prompt, n, _ in kinds if prompt == own})
            plain, diluted = (np.array([weight(own, n, kinds, B, c) for n in replies]) for c in (False, True))
            assert (np.diff(np.log(diluted)) > np.diff(np.log(plain)) + 1e-9).all()

    def independent(prompts: Array, lengths: Array, law: Array) -> list[tuple[int, int, float]]:
        return [
            (int(m), int(n), float(p) / len(prompts))
            for m in prompts
            for n, p in zip(lengths, law, strict=True)
        ]

    for B in (2, 3):
        says(independent(np.array([1, 6]), table.LENGTHS, table.P), B)
        for _ in range(5):
            lengths = g.choice(np.arange(1, 60), 3, replace=False)
            says(independent(g.integers(1, 500, 2), lengths, g.dirichlet(np.full(3, 3.0))), B)
        with refuted("a prompt of one token beside one of 1,000, whose reply is long"):
            says([(1, 10, 0.25), (1, 30, 0.25), (1000, 100, 0.5)], B)


def test_a_newton_step_moves_a_wrong_answer() -> None:
    """From a start that is off, drawn batches lead back: so a step from the exact answer could have left it."""
    exact = table.sampled_exact(False, False).detach()
    drawn = table.candidates_of(rng(7), 200_000)

    def loss(t: Tensor, c: Tensor) -> Tensor:
        return table.sampled_loss(t, c, False, False)

    truth, error = table.stationary(loss, exact, drawn)
    for off_by in (0.2, -0.2):
        start = exact + torch.tensor([off_by, 0.0, 0.0, 0.0])
        back = table.stationary(loss, start, drawn)[0]
        assert abs(float(start.softmax(0)[0]) - truth) > 10 * error
        assert abs(back - truth) < 0.3 * abs(float(start.softmax(0)[0]) - truth)


def test_the_table_names_all_rows() -> None:
    assert list(STORED) == [row.name for row in table.ROWS]


# -------------------------------------------------------------------------------------------- the note


def the_note_says(sentence: str) -> None:
    """The sentence stands in the note, which is no chapter and has no marks of claims."""
    text = (ROOT / "chapters" / "note_denominators.md").read_text(encoding="utf-8")
    assert " ".join(sentence.split()) in " ".join(text.split())


def test_a_divisor_of_contexts_and_draws_that_share_a_source() -> None:
    """Batches of two, enumerated: draws that are independent, and draws that share a source of contexts and outcomes.

    Would be refuted by independent draws under which a divisor of the contexts moves an answer.
    """
    the_note_says(
        "If the draws are independent, a divisor that depends on contexts alone is harmless to a model that is "
        "flexible enough. If they are only exchangeable it need not be"
    )
    g = rng(8)

    def says(sources: Array, context: Array, answer: Array, slope: float) -> None:
        seen, learnt = np.zeros((2, 2)), np.zeros((2, 2))
        for source, chance in enumerate(sources):
            for c1, y1, c2, y2 in itertools.product((0, 1), repeat=4):
                item = [
                    abs(1 - c - context[source]) * abs(1 - y - answer[source, c])
                    for c, y in ((c1, y1), (c2, y2))
                ]
                for c, y in ((c1, y1), (c2, y2)):
                    seen[c, y] += chance * item[0] * item[1]
                    learnt[c, y] += chance * item[0] * item[1] / (2 + slope * (c1 + c2))
        np.testing.assert_allclose(
            learnt / learnt.sum(1, keepdims=True), seen / seen.sum(1, keepdims=True), rtol=1e-9
        )

    for slope in (0.5, 9.0):
        says(np.ones(1), g.uniform(0.1, 0.9, 1), g.uniform(0.1, 0.9, (1, 2)), slope)
        with refuted("two sources, each with contexts and answers of its own"):
            says(np.full(2, 0.5), np.array([0.9, 0.1]), np.array([[0.9, 0.9], [0.1, 0.1]]), slope)


def test_the_bias_at_the_minimum_of_the_summed_loss() -> None:
    """Gradients with a mean of zero, exactly, for 2 to 6 kinds of items: B times the bias, with B up to 10^5.

    Would be refuted by a gradient for which B times the bias tends to another number.
    """
    the_note_says(
        "At the minimum of the summed loss, the gradient has $R = 0$; to first order, both variances are "
        r"$\mathrm{Var}[g] / (B \mu^2)$ and the bias is $-\mathrm{Cov}(g, d) / (B \mu^2)$."
    )
    g = rng(12)

    def bias(terms: Array, d: Array, law: Array, B: int) -> float:
        return B * float(law @ (terms * expected_inverse(d, d, law, B)))

    def says(times_bias: float, cov: float, scale: float, B: int) -> None:
        assert abs(times_bias + cov) < 30 / B * scale

    for kinds in (2, 3, 6):
        d, law = np.sort(g.choice(np.arange(1.0, 20), kinds, replace=False)), g.dirichlet(np.full(kinds, 4.0))
        mu = float(law @ d)
        terms = g.normal(size=kinds)
        terms -= law @ terms
        cov, scale = float(law @ (terms * d)), float(np.abs(terms).max() * d.max() ** 2 / mu)
        for B in (1000, 100_000):
            says(B * mu**2 * bias(terms, d, law, B), cov, scale, B)
        with refuted("a bias of zero"):
            says(0.0, cov, scale, B)
        if kinds > 2:  # Uncorrelated with the sizes and not independent of them: a bias of the second order.
            terms = np.linalg.svd(np.stack([law, law * d]))[2][-1]
            says(1e5 * mu**2 * bias(terms, d, law, 100_000), 0.0, d.max() ** 2 / mu, 100_000)
            with refuted("no bias where the two are uncorrelated"):
                assert abs(bias(terms, d, law, 3)) < 1e-9


def test_the_divisor_of_an_earlier_batch_in_training() -> None:
    """SGD on the log-odds of a rare class, 400 models: the sum over the earlier batch, and over the others.

    Would be refuted by a bias that does not follow the step size, or by one that the sum over the others has too.
    """
    the_note_says(
        "In training by SGD, $Q$ was moved by the earlier batch, and a bias in proportion to the step size is left, "
        "which goes if the step size falls to zero; the sum over the others has none of it."
    )
    g = rng(9)
    share, weight, size, target = 0.05, 20.0, 4, 1.0 / 1.95

    def bias(kind: str, rate: float) -> tuple[float, float]:
        z, kept, before = np.full(400, np.log(target / (1 - target))), [], None
        for step in range(1200):
            y = g.random((400, size)) < share
            w = np.where(y, weight, 1.0)
            total = w.sum(1, keepdims=True)
            divisor = total - w if kind == "others" else (total if before is None else before)
            q = 1 / (1 + np.exp(-z))
            if step >= 300:
                kept.append(q)
            z = z - rate * (w * (q[:, None] - y) / divisor).sum(1)
            before = total
        each = np.mean(kept, axis=0) - target
        return float(each.mean()), float(each.std(ddof=1) / np.sqrt(len(each)))

    def none(found: tuple[float, float]) -> None:
        # A constant rate leaves a variance, and the sigmoid's curvature a bias of its own, at 0.1 below a hundredth.
        assert abs(found[0]) < 4 * found[1] + 0.004

    def in_proportion(small: tuple[float, float], large: tuple[float, float]) -> None:
        assert small[0] > 4 * small[1] and 2.5 < large[0] / small[0] < 7

    small, large = bias("earlier", 0.1), bias("earlier", 0.5)
    in_proportion(small, large)
    with refuted("the smaller step first"):
        in_proportion(large, small)
    none(bias("others", 0.1))
    with refuted("the earlier batch"):
        none(large)
