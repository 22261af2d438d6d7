"""Chapter 11's claims: what a denominator does to the gradient, and to what is learnt."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import scripts
from xent.scoring import learnt_distribution
from xent.sequences import GeometricSource, eos_optimum

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "experiments" / "denominators"
Tensor = torch.Tensor
Batch = tuple[Tensor, Tensor]


class Case:
    """Random ranks of random micro-batches and a linear model away from any minimum."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        draw = torch.Generator().manual_seed(seed)
        self.counts = [
            [int(n) for n in np.ceil(np.exp(2.5 * rng.random(rng.integers(1, 5)) + rng.random()))]
            for _ in range(int(rng.integers(2, 5)))
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


@pytest.mark.claim(
    "11",
    "A mean of means is another loss: it weighs a token by the mean count over the count of its own micro-batch.",
)
def test_the_weight_of_a_token_in_a_mean_of_means() -> None:
    """Ten random windows: the stated weights give its gradient, and equal weights do not."""
    for seed in range(10):
        case = Case(seed)
        counts = [len(y) for _, y in case.flat]
        found = sum(case.gradient(b, 1 / n / len(counts)) for b, n in zip(case.flat, counts, strict=True))
        mean = case.total / len(counts)
        stated = sum(case.gradient(b, mean / n / case.total) for b, n in zip(case.flat, counts, strict=True))
        assert off(stated, found) < 1e-12  # a few roundings in float64
        assert off(found, case.whole) > 0.02 or len(set(counts)) == 1


@pytest.mark.claim(
    "11",
    "Sum the losses, count the targets of the whole window over micro-batches and ranks, and scale each sum by the "
    "number that your framework divides by, over that count.",
)
@pytest.mark.claim(
    "11",
    "One denominator for each rank is half a repair, and the global count without the factor W leaves the gradient "
    "W times too small.",
)
def test_the_repair_and_the_two_halves_of_it() -> None:
    """Ten windows of two to four ranks that hold different numbers of micro-batches; divisors W, 1 and 7."""
    for seed in range(10):
        case, whole = Case(seed), Case(seed).whole
        W = len(case.ranks)
        for divisor in (W, 1, 7):
            scaled = sum(case.gradient(b, divisor / case.total) for b in case.flat) / divisor
            assert off(scaled, whole) < 1e-12
        half = sum(
            case.gradient(b, 1 / sum(n))
            for rank, n in zip(case.ranks, case.counts, strict=True)
            for b in rank
        )
        assert off(half / W, whole) > 0.02
        missing = sum(case.gradient(b, 1 / case.total) for b in case.flat) / W
        assert off(missing * W, whole) < 1e-12


@pytest.mark.claim(
    "11", "More accumulation steps do not help a mean of means: its bias is that of a single micro-batch."
)
@pytest.mark.claim(
    "11",
    "One denominator leaves the bias of a ratio, of order one over the number of sequences that share it; a constant "
    "denominator has none.",
)
def test_what_accumulation_does_to_the_bias() -> None:
    """Lengths that are no coin's, two of them rare and long; simulated windows of 1 to 16 steps, four errors."""
    lengths, law = np.array([1, 3, 4, 40]), np.array([0.5, 0.3, 0.15, 0.05])
    rng, B = np.random.default_rng(0), 3
    single = learnt_distribution(law, lengths, B)
    assert abs(single[0] - law[0]) > 0.05
    for K in (1, 4, 16):
        kinds = rng.choice(4, size=(60_000 // K, K, B), p=law)
        n = lengths[kinds]
        scales = {
            "micro": (1 / n.sum(2, keepdims=True), single),
            "window": (1 / n.sum((1, 2), keepdims=True), learnt_distribution(law, lengths, K * B)),
            "constant": (np.ones((1, 1, 1)), law),
        }
        for scale, expected in scales.values():
            each = np.broadcast_to(scale, n.shape)
            short, total = (each * (kinds == 0)).sum((1, 2)), each.sum((1, 2))
            seen = short.sum() / total.sum()
            error = np.sqrt(np.square(short - seen * total).sum()) / total.sum()
            assert abs(seen - expected[0]) < 4 * error
    # Of order one over: ten times as many sequences, a tenth of the bias.
    for p, d in ((law, lengths), (np.array([0.2, 0.8]), np.array([1, 2]))):
        few, many = (np.abs(learnt_distribution(p, d, size) - p).max() for size in (1000, 10_000))
        assert few / many == pytest.approx(10, rel=0.02)


@pytest.mark.claim(
    "11", "Under a mean of means, a smaller micro-batch makes a model that stops sooner, provided"
)
def test_smaller_micro_batches_stop_sooner() -> None:
    """Random distributions of lengths: the mean length grows with the micro-batch, up to the true one."""
    rng = np.random.default_rng(1)
    for _ in range(30):
        lengths = np.unique(rng.integers(1, 80, 5)).astype(float)
        p = rng.dirichlet(np.full(len(lengths), rng.choice([0.3, 2.0]))) * 0.99 + 0.01 / len(lengths)
        means = [float(learnt_distribution(p, lengths, B) @ lengths) for B in (1, 2, 4, 16)]
        assert (np.diff([*means, p @ lengths]) > 0).all()
    # With one length nothing moves.
    assert learnt_distribution(np.array([0.3, 0.7]), np.array([5.0, 5.0]), 1)[0] == pytest.approx(0.3)


@pytest.mark.claim(
    "11",
    "A class-weighted mean is a ratio too: with a batch of one the weights do nothing, and small batches learn less "
    "than the weights ask for.",
)
def test_sgd_with_class_weights() -> None:
    """PyTorch's own weighted mean, 64 models that see different labels; other shares and weights than printed."""
    share, asked = np.array([0.7, 0.3]), torch.tensor([1.0, 6.0]).double()
    draw = torch.Generator().manual_seed(0)
    wanted = 0.3 * 6 / (0.3 * 6 + 0.7)
    for B in (1, 4):
        z = torch.zeros(64, 2, dtype=torch.float64, requires_grad=True)
        for step in range(300):
            y = (torch.rand(64, B, generator=draw) < share[1]).long()
            losses = [
                F.cross_entropy(row.expand(B, 2), t, weight=asked)
                for row, t in zip(z[:1], y[:1], strict=True)
            ]
            each = F.cross_entropy(z.repeat_interleave(B, 0), y.flatten(), asked, reduction="none").view(
                64, B
            )
            total = each.sum(1) / asked[y].sum(1)
            torch.testing.assert_close(total[0], losses[0], rtol=1e-12, atol=0)
            (g,) = torch.autograd.grad(total.sum(), z)
            z.data -= 0.3 * (1 - step / 300) * g
        reports = z.detach().softmax(1)[:, 1].numpy()
        exact = float(learnt_distribution(share, asked.numpy(), B, weight=asked.numpy())[1])
        error = reports.std(ddof=1) / 8
        # The rate falls to zero linearly; what it leaves behind is a tenth of it at most.
        assert abs(reports.mean() - exact) < 4 * error + 0.003
        assert reports.mean() < wanted - 0.03
        if B == 1:
            assert exact == pytest.approx(share[1], rel=1e-12)


@pytest.mark.claim(
    "11",
    "A bias that makes sequences a fifth too short can raise the perplexity by less than half a per cent: log the "
    "lengths that the model generates.",
)
def test_a_length_bias_that_perplexity_hides() -> None:
    """The coin of the chapter, exactly; with fewer letters the perplexity is lower and hides it as well."""
    for letters in (26, 5, 50_000):
        coin = GeometricSource(0.1, letters=letters)
        q = eos_optimum(0.1, 4)
        assert 1 / q < 0.8 * coin.mean_length()
        raised = np.exp((coin.cross_entropy(q) - coin.entropy()) / coin.mean_length()) - 1
        assert 0 < raised < 0.005


# ------------------------------------------------------------------------------ the table of denominators


@pytest.fixture(scope="module")
def table() -> ModuleType:
    return scripts.load(FOLDER / "table.py")


STORED = {row["row"]: row for row in json.loads((FOLDER / "table.json").read_text())["rows"]}


@pytest.mark.claim("11", "Wherever the theorem applies, the three numbers agree within their errors.")
@pytest.mark.parametrize("name", STORED)
def test_a_row_of_the_table(table: ModuleType, name: str) -> None:
    """Exact values anew; the stored simulation and the stored training against them, four errors; some rows again."""
    (row,) = (row for row in table.ROWS if row.name == name)
    stored = STORED[name]
    policy = "pushes" in stored["learns"]
    exact = stored["exact"] if policy else row.exact()
    assert stored["exact"] == pytest.approx(exact, abs=1e-6)
    assert stored["truth"] == pytest.approx(row.truth, abs=1e-6)
    for which in ("simulated", "trained"):
        assert abs(stored[which] - exact) < 4 * stored[f"{which}_error"], which
    # A row that can tell: where the answer is not the truth, the truth is far outside both intervals.
    if abs(exact - row.truth) > 0.01 or name.startswith("sampled softmax, corrected, hits"):
        for which in ("simulated", "trained"):
            assert abs(stored[which] - row.truth) > 4 * stored[f"{which}_error"], which
    if not policy and "class weights" not in name:
        seen, error = row.simulated(np.random.default_rng(77))
        assert abs(seen - exact) < 4 * error


def test_the_table_names_all_rows(table: ModuleType) -> None:
    assert list(STORED) == [row.name for row in table.ROWS]


def test_the_pushes_of_a_policy_anew(table: ModuleType) -> None:
    """One step's pushes by enumeration and by simulation, for every mode, away from the start."""
    policy, rng = np.array([0.4, 0.2, 0.15, 0.25]), np.random.default_rng(5)
    for mode in ("grpo", "group", "global", "constant"):
        kinds = rng.choice(4, size=(20_000, table.GROUPS, table.GROUP), p=policy)
        push = table.pushes(kinds, mode)
        for k, exact in enumerate(table.expected_push(policy, mode)):
            mine = push[kinds == k]
            assert abs(mine.mean() - exact) < 4.5 * mine.std() / np.sqrt(len(mine) / table.GROUP)
