"""What the appendix claims of rewards: the step that each aggregator takes, and where the policy ends."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from torch import Tensor

from adversary import claim, lengths_and_laws, rng
from experiments.denominators import table
from xent.denominators import learnt_distribution

Array = np.ndarray


DIVIDED = ("its own powers", "all tokens", "one")


@claim(
    "that a supervised loss with the same divisor",
    "It would be unbiased if the gradient of a response",
    on=lambda: (
        (n, law, group, by, same)
        for (n, law), group in zip(lengths_and_laws(0, 4), (1, 2, 3, 4), strict=True)
        for by, same in itertools.product(DIVIDED, (False, True))
    ),
    but_not=lambda: {
        f"no bias, by {by}": (*next(lengths_and_laws(0, 1)), 2, by, False, 0.0) for by in DIVIDED
    },
)
def test_the_push_of_an_aggregator(
    n: Array, law: Array, group: int, by: str, same: bool, mean: float | None = None
) -> None:
    """Groups enumerated; a response's score falls with its length, or has the `same` mean at every length."""
    size = np.ones(len(n)) if by == "all tokens" else n**-0.75
    divisor = {"its own powers": size, "all tokens": n, "one": n**0}[by]
    groups = np.array(list(itertools.product(range(len(n)), repeat=group)))
    chance, w = law[groups].prod(1), size[groups] / divisor[groups].mean(1, keepdims=True)
    score = n**0 if same else 1 - n / (law @ n)
    push = chance @ (w * score[groups]).mean(1) / (chance @ w.mean(1))
    learnt = learnt_distribution(law, divisor, group, weight=size)
    assert push == pytest.approx(float(learnt @ score) if mean is None else mean, abs=1e-9)


@claim(
    "In a large group a right answer has the mean advantage",
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
    "the gradient of this ratio has the factor $1/|o|$, so GSPO",
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


def mean_of(pi: Array, n: Array, which: Array) -> float:
    return float(pi[which] @ n[which] / pi[which].sum())


def rate(first: Array, n: Array, right: Array, unit: float) -> float:
    """The success rate at which the tilt of eq-den-rl-kl, with advantages times `unit`, gives itself."""
    tilted = lambda p: first * np.exp(unit * (right - p) / (0.05 * n))  # noqa: E731
    return float(brentq(lambda p: tilted(p)[right].sum() / tilted(p).sum() - p, 0, 1))


ONE_LENGTH = np.array([0.2, 0.3, 0.1, 0.4]), np.array([2.0, 9, 7, 7]), np.arange(4) < 2


@pytest.mark.slow
@claim(
    "The remaining wrong answers grow ever longer, if",
    "Without a penalty, a factor common to all",
    "With a constant divisor the lengths of right and wrong answers",
    on=policies,
    but_not=lambda: {
        "wrong answers of one length": ONE_LENGTH,
        "no matter where, with a penalty": (*next(policies()), True),
        "the length as a constant": (*next(policies()), False, True),
    },
)
def test_where_the_policy_ends(
    first: Array, n: Array, right: Array, penalty: bool = False, divided: bool = False
) -> None:
    """Tables of 6 to 60 answers, walked for two long times, with and without the standard deviation."""
    longest = n[~right].max()
    by_tau = mean_of(first * np.exp(tilt(first, n, right, 1e9 * longest) / n), n, right)
    for scaled in (False, True):
        ends = [walk(first, n, right, clock * longest, scaled) for clock in (40, 60)]
        wrong = [mean_of(pi, n, ~right) for pi in (first, *ends)]
        assert wrong[0] + 1e-6 < wrong[1] <= wrong[2] * (1 + 1e-9) and wrong[2] > 0.9 * longest
        assert [mean_of(pi, n, right) for pi in ends] == pytest.approx([by_tau] * 2, rel=0.02)
    fixed = walk(first, n, right, 20.0, divided=divided)
    for which in (right, ~right):
        assert mean_of(fixed, n, which) == pytest.approx(mean_of(first, n, which), rel=0.02)
    if penalty:  # the factor moves the place where the push and the penalty cancel
        assert rate(first, n, right, 3.0) == pytest.approx(rate(first, n, right, 1.0), rel=0.02)


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


def as_one_by_one(
    kinds: Array, group: Array, lengths: Array, law: Array, own: bool = False, proper: bool = False
) -> None:
    """A mean over each group, of its tokens or of its sequences' `own` means, teaches as one sequence at a time.

    Or it teaches the law itself, if it is `proper`.
    """
    n = lengths[kinds].astype(float)
    weight = 1 / (np.bincount(group) if own else np.bincount(group, n))[group] / (n if own else 1)
    found, due = np.bincount(kinds, weight, minlength=len(lengths)), law / (1 if proper else lengths)
    np.testing.assert_allclose(found / found.sum(), due / due.sum(), atol=0.012)


def in_batches(
    lengths: Array, law: Array, size: int, tokens: bool = False, sort: bool = True
) -> tuple[Array, ...]:
    """200,000 sequences, sorted by length, in batches of so many sequences, or of so many tokens."""
    kinds = rng(15).choice(len(law), size=200_000, p=law)
    kinds = np.sort(kinds) if sort else kinds
    places = np.cumsum(lengths[kinds]) - lengths[kinds] if tokens else np.arange(len(kinds))
    return kinds, (places // size).astype(int), lengths, law


BUCKETS, UNSORTED, TOKENS = (
    partial(in_batches, table.LENGTHS, table.P, *how) for how in ((16,), (16, False, False), (64, True))
)

test_buckets_of_a_fixed_number_of_sequences = claim(
    "*Sorting by length undoes a large batch*",
    "$B$ sequences of one length are each divided by",
    on=lambda: (
        in_batches(n, p, B)
        for n, p in ((table.LENGTHS, table.P), (np.array([1, 3, 4, 23]), np.array([0.2, 0.2, 0.3, 0.3])))
        for B in (2, 16, 64)
    ),
    but_not=lambda: {
        "batches that are not sorted": UNSORTED(),
        "buckets that hold 64 tokens each, a constant": TOKENS(),
    },
)(as_one_by_one)
test_buckets_of_a_fixed_number_of_tokens = claim(
    "10",
    "Buckets of a fixed number of sequences of one length tilt",
    "With a fixed number of *tokens* in each such batch, the",
    on=lambda: [BUCKETS(), (*TOKENS(), False, True)],
    but_not=lambda: {"either as the other": TOKENS(), "or the other as it": (*BUCKETS(), False, True)},
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


TABLE = [(m, int(n), p / 2) for m in (1, 6) for n, p in zip(table.LENGTHS, table.P, strict=True)]


@claim(
    "*Prompt tokens that count in the divisor*",
    on=[(TABLE, 2), (TABLE, 3)],
    but_not={
        "a short prompt beside a long one, whose reply is long": (
            [(1, 10, 0.25), (1, 30, 0.25), (1000, 100, 0.5)],
            2,
        )
    },
)
def test_prompt_tokens_in_the_divisor(kinds: list[tuple[int, int, float]], B: int) -> None:
    """Batches of two and three, enumerated: a longer reply loses less where the prompts are counted."""
    prompt, n, chance = map(np.array, zip(*kinds, strict=True))
    others = np.array(list(itertools.product(range(len(kinds)), repeat=B - 1)))

    def weight(size: Array) -> Array:
        return np.asarray((chance[others].prod(1) / np.add.outer(size, size[others].sum(1))).sum(1))

    gain = np.log(weight(n + prompt) / weight(n))
    for own in {*prompt}:
        replies = np.flatnonzero(prompt == own)
        assert (np.diff(gain[replies[np.argsort(n[replies])]]) > 1e-9).all()


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
