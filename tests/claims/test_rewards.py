"""What the appendix claims of rewards: the step that each aggregator takes, and where the policy ends."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from torch import Tensor

from adversary import claim, lengths_and_laws, rng
from experiments.denominators import table
from records import holds
from xent.denominators import learnt_distribution

Array = np.ndarray


def pushes(beta: float, group: int, alpha: float, by: str) -> tuple[Array, float]:
    """The drawn pushes of a coin's groups, divided so, and what is foretold of their mean."""
    g = rng(0)
    n, lengths = g.geometric(beta, size=(50_000, group)).astype(float), np.arange(1, max(int(40 / beta), 60))
    law = beta * (1 - beta) ** (lengths - 1.0) / (1 - (1 - beta) ** len(lengths))
    size, score, own = lengths**-alpha, 1 - beta * n, n**-alpha
    if by == "its own powers":
        w, learnt = own / own.mean(1, keepdims=True), learnt_distribution(law, size, group, weight=size)
    elif by == "all tokens":
        w = 1 / n.mean(1, keepdims=True)
        w, learnt = w / w.mean(), learnt_distribution(law, lengths, group)
    else:  # a constant times the power
        w, learnt = own / (law @ size), law * size / (law @ size)
    if by == "one mean":  # gradients of one mean, noisier when longer
        score, w = 0.3 + g.normal(size=n.shape) * np.sqrt(n), own / own.mean(1, keepdims=True)
    return (w * score).mean(1), 0.3 if by == "one mean" else 1 - beta * float(learnt @ lengths)


COINS = [(0.1, 8, 1.0), (0.1, 8, 0.75), (0.17, 2, 0.6), (0.7, 16, 1.0)]


@claim(
    "that a supervised loss with the same divisor",
    "It would be unbiased if the gradient of a response",
    on=[(*coin, by) for coin in COINS for by in ("its own powers", "all tokens", "one", "one mean")],
    but_not={f"no bias, {coin}": (*coin, "its own powers", 0.0) for coin in COINS},
)
def test_the_push_of_an_aggregator(
    beta: float, group: int, alpha: float, by: str, mean: float | None = None
) -> None:
    push, exact = pushes(beta, group, alpha, by)
    foretold = exact if mean is None else mean
    assert abs(push.mean() - foretold) < 4.5 * push.std() / np.sqrt(len(push)) + 1e-4


@claim(
    "In a large group a right answer has mean advantage",
    on=[(1000, p) for p in (0.1, 0.5, 0.7)],
    but_not={f"a group of {n}, whose mean the response is a part of": (n, 0.5) for n in (2, 8)},
)
def test_the_mean_advantage(group: int, p: float) -> None:
    r = (rng(4).random((2_000_000 // group, group)) < p).astype(float)
    advantage = r - r.mean(axis=1, keepdims=True)
    assert (advantage[r == 1].mean(), advantage[r == 0].mean()) == pytest.approx((1 - p, -p), rel=0.02)


def walk(
    pi: Array, n: Array, right: Array, clock: float, scaled: bool = False, divided: bool = True
) -> Array:
    """The expected natural-gradient steps until the integral of p is `clock`; short ones, a twenty-fifth at most."""
    logs, done = np.log(pi), 0.0
    while done < clock:
        policy = np.exp(logs - np.logaddexp.reduce(logs))
        p, q = policy[right].sum(), policy[~right].sum()
        unit = 1 / np.sqrt(p * q) if scaled else 1.0
        advantage = unit * np.where(right, q, -p) / (n if divided else 1)
        step = 0.04 * min(1.0, 1 / np.abs(advantage).max())
        logs, done = logs + step * advantage, done + step * unit * p
    return np.asarray(np.exp(logs - np.logaddexp.reduce(logs)))


def tilt(first: Array, n: Array, right: Array, s: float) -> float:
    """The tau of the right answers where the wrong ones have been tilted by s."""
    need = -(first * n * np.expm1(-s / n))[~right].sum()
    return float(brentq(lambda t: (first * n * np.expm1(t / n))[right].sum() - need, 0, 600))


@claim(
    "If that mean is finite, so is the tilt",
    on=[1.2, 1.5, 3.0],
    but_not={"an infinite mean length": 1.0, "a longer tail": 0.5},
)
def test_a_finite_tilt_needs_a_finite_mean_length(c: float) -> None:
    """Wrong answers of 2^k tokens, k to 300, one in 2^(ck) so long; walked, and by the equation beyond."""
    n = np.concatenate([[1.0, 6.0], 2.0 ** np.arange(301)])
    right, tail = np.arange(len(n)) < 2, 2.0 ** (-c * np.arange(301))
    first = np.concatenate([[0.2, 0.3], 0.5 * tail / tail.sum()])
    seen = walk(first, n, right, 50.0)
    change = np.log(seen / first)
    assert (change[0] - change[1]) / (1 - 1 / 6) == pytest.approx(tilt(first, n, right, 50.0), rel=0.02)
    longer = [np.cumsum(pi[:1:-1])[::-1] / pi[~right].sum() for pi in (first, seen)]
    assert (longer[1][1:20] > longer[0][1:20]).all()  # more of them have over 2^k tokens, for each k
    early, late, last = (tilt(first, n, right, s) for s in (1e10, 1e35, 1e60))
    assert late - early < 0.05 and last - late < 1e-3


# The losses of TRL, by the ratios of their tokens r, (responses, tokens), what counts, and the sum of its micro-batch.
SUMMED = {
    "grpo": lambda r, m: ((r * m).sum(1) / m.sum(1)).mean(),
    "sapo": lambda r, m: ((4 * torch.sigmoid(r - 1) * m).sum(1) / m.sum(1)).mean(),
    "gspo": lambda r, m: ((r.log() * m).sum(1) / m.sum(1)).exp().mean(),
    "luspo": lambda r, m: (((r.log() * m).sum(1) / m.sum(1)).exp() * m.sum(1)).mean(),
    "luspo, tokens": lambda r, m: (r * m).sum(1).mean(),
    "dr_grpo": lambda r, m: (r * m).sum() / (len(r) * 40),
    "dapo": lambda r, m: (r * m).sum() / m.sum(),
}


@claim(
    "the gradient of this power has the factor $1/|o|$, so GSPO",
    "LUSPO {cite}`liu2026luspo` multiplies GSPO's loss by the length",
    on=[
        ("grpo", -1.0),
        ("sapo", -1.0),
        ("gspo", -1.0),
        ("luspo", 0.0),
        ("luspo, tokens", 0.0),
        ("dr_grpo", 0.0),
        ("dapo", 0.0),
    ],
    but_not={"GSPO by nothing": ("gspo", 0.0), "LUSPO by the length": ("luspo", -1.0)},
)
def test_what_divides_the_gradient_of_a_response(name: str, power: float) -> None:
    """Ratios of one, 2 to 40 tokens: within a batch the weight of a token is a power of its response's length."""
    lengths = torch.as_tensor(rng(9).integers(2, 41, size=12)).double()
    counts = (torch.arange(40) < lengths[:, None]).double()
    ratio = torch.ones(12, 40, dtype=torch.float64, requires_grad=True)
    (of_tokens,) = torch.autograd.grad(SUMMED[name](ratio, counts), ratio)
    weight = of_tokens[:, 0] / lengths**power
    torch.testing.assert_close(weight, weight[0].expand_as(weight), rtol=1e-9, atol=0)


def policies() -> Iterator[tuple[Array, Array, Array]]:
    """Few and many lengths, few or many right answers at first, right ones that are longer or shorter."""
    g = rng(1)
    for p, count in ((0.1, 3), (0.5, 5), (0.9, 30)):
        n = np.concatenate([g.choice(np.arange(1, 41), count, replace=False) for _ in range(2)]).astype(float)
        shares = [part * g.dirichlet(np.ones(count)) for part in (p, 1 - p)]
        yield np.concatenate(shares), n, np.arange(2 * count) < count


@pytest.mark.slow
@pytest.mark.claim(
    "The remaining wrong answers grow ever longer, if", "Without a penalty, a factor common to all"
)
@pytest.mark.claim("With a constant divisor the lengths of right and wrong answers")
def test_where_the_policy_ends() -> None:
    """Tables of 6 to 60 answers, walked for two long times, with and without the standard deviation."""

    def mean(pi: Array, n: Array, which: Array) -> float:
        return float(pi[which] @ n[which] / pi[which].sum())

    def says(found: float, foretold: float) -> None:
        assert found == pytest.approx(foretold, rel=0.02)

    def lengthen(first: Array, n: Array, right: Array, *ends: Array) -> None:
        wrong = [mean(pi, n, ~right) for pi in (first, *ends)]
        assert wrong[0] + 1e-6 < wrong[1] <= wrong[-1] * (1 + 1e-9) and wrong[-1] > 0.9 * n[~right].max()

    for first, n, right in policies():
        longest = n[~right].max()
        tau = tilt(first, n, right, 1e9 * longest)
        by_tau = mean(first * np.exp(tau / n), n, right)
        one = np.where(right, n, 7.0)
        of_one = first, one, right, walk(first, one, right, 280.0)
        for scaled in (False, True):
            ends = [walk(first, n, right, clock * longest, scaled) for clock in (40, 60)]
            holds(lengthen, (first, n, right, *ends), but_not={"wrong answers of one length": of_one})
            found = [mean(pi, n, right) for pi in ends]
            elsewhere: dict[str, Any] = {"the shortest": (found[-1], n[right].min())}
            unmoved = {"lengths that do not move": (found[-1], mean(first, n, right))}
            holds(says, *((x, by_tau) for x in found), but_not=elsewhere | unmoved)
        fixed = walk(first, n, right, 20.0, divided=False)
        for which in (right, ~right):
            says(mean(fixed, n, which), mean(first, n, which))
    first, n, right = list(policies())[1]

    def rate(unit: float) -> float:
        """The success rate at which the tilt of eq-den-rl-kl, with advantages times `unit`, gives itself."""
        tilted = lambda p: first * np.exp(unit * (right - p) / (0.05 * n))  # noqa: E731
        return float(brentq(lambda p: tilted(p)[right].sum() / tilted(p).sum() - p, 0, 1))

    # With a penalty the factor moves the place where the push and the penalty cancel.
    holds(says, (rate(1.0), rate(1.0)), but_not={"no matter where, with a penalty": (rate(3.0), rate(1.0))})


# ---------------------------------------------------------------------------------- the table of denominators


@claim(
    "divides by that row's length, and is also improper",
    on=lambda: [(law, n, B) for n, law in lengths_and_laws(11, 6) for B in (1, 2, 3)],
    but_not={
        "rows padded to a fixed length, a constant": (np.array([0.5, 0.5]), np.array([3.0, 30.0]), 2, 40)
    },
)
def test_a_mean_over_the_padding(law: Array, lengths: Array, B: int, to: int | None = None) -> None:
    """Batches enumerated, as PyTorch weighs them: the longer, the less."""
    seen = np.zeros(len(law))
    for batch in itertools.product(range(len(law)), repeat=B):
        n = torch.as_tensor(lengths[[*batch]])
        loss = torch.ones(B, to or int(n.max()), dtype=torch.float64, requires_grad=True)
        mask = torch.arange(loss.shape[1]) < n[:, None]
        (weight,) = torch.autograd.grad((loss * mask).mean(), loss)
        np.add.at(seen, [*batch], law[[*batch]].prod() * weight[:, 0].numpy())
    assert (np.diff(seen / seen.sum() / law) < -1e-9).all()


def as_one_by_one(kinds: Array, group: Array, lengths: Array, law: Array, own: bool = False) -> None:
    """A mean over each group, of its tokens or of its sequences' `own` means, teaches as one sequence at a time."""
    n = lengths[kinds].astype(float)
    weight = 1 / (np.bincount(group) if own else np.bincount(group, n))[group] / (n if own else 1)
    found = np.bincount(kinds, weight, minlength=len(lengths))
    np.testing.assert_allclose(found / found.sum(), law / lengths / (law / lengths).sum(), atol=0.012)


def in_batches(
    lengths: Array, law: Array, size: int, tokens: bool = False, sort: bool = True
) -> tuple[Array, ...]:
    """200,000 sequences, sorted by length, in batches of so many sequences, or of so many tokens."""
    kinds = rng(15).choice(len(law), size=200_000, p=law)
    kinds = np.sort(kinds) if sort else kinds
    places = np.cumsum(lengths[kinds]) - lengths[kinds] if tokens else np.arange(len(kinds))
    return kinds, (places // size).astype(int), lengths, law


test_buckets_of_a_fixed_number_of_sequences = claim(
    "*Sorting by length undoes the effect of a large batch*",
    "$B$ sequences of one length are each divided by",
    on=lambda: (
        in_batches(n, p, B)
        for n, p in ((table.LENGTHS, table.P), (np.array([1, 3, 4, 23]), np.array([0.2, 0.2, 0.3, 0.3])))
        for B in (2, 16, 64)
    ),
    but_not=lambda: {
        "batches that are not sorted": in_batches(table.LENGTHS, table.P, 16, sort=False),
        "buckets that hold 64 tokens each, a constant": in_batches(table.LENGTHS, table.P, 64, tokens=True),
    },
)(as_one_by_one)


def packed(rows: int) -> tuple[Any, ...]:
    """The table's packed rows, so many to a batch, where LongAlign divides by the number of sequences."""
    stream = table.draw(rng(16), 300_000)
    return stream, table.pack(stream)[0] // rows, table.LENGTHS, table.P, True


test_the_weights_of_packed_rows = claim(
    "restore the mean over each sequence and, with many rows",
    on=lambda: map(packed, (32, 256)),
    but_not=lambda: {"one row": packed(1), "two rows": packed(2)},
)(as_one_by_one)


def test_a_newton_step_moves_a_wrong_answer() -> None:
    """From a start that is off, drawn batches lead back: so a step from the exact answer could have left it."""
    exact, drawn = table.sampled_exact(False, False).detach(), table.candidates_of(rng(7), 200_000)

    def loss(t: Tensor, c: Tensor) -> Tensor:
        return table.sampled_loss(t, c, False, False)

    truth, error = table.stationary(loss, exact, drawn)
    for off in (0.2, -0.2):
        start = exact + torch.tensor([off, 0.0, 0.0, 0.0])
        back, gap = table.stationary(loss, start, drawn)[0], abs(float(start.softmax(0)[0]) - truth)
        assert gap > 10 * error and abs(back - truth) < 0.3 * gap
