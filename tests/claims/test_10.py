"""Chapter 10's claims: every shape of lengths, prompts, by enumeration and by descent."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.signal import fftconvolve

from adversary import Array, claim, distributions, lowest, printed, prompts, rng, weights
from xent import softmax
from xent.denominators import learnt_distribution, learnt_lengths
from xent_book.data import answer_lengths


def learnt(p: Array, w: Array) -> Array:
    """Return the distribution that the expected weighted log loss teaches, by descent in the logits."""
    mass = torch.tensor(w * p)
    return softmax(lowest(lambda z: -mass @ z.log_softmax(0), np.zeros(len(p))))


def taught(batches: Iterable[tuple[float, list[int], list[int]]], rows: int, kinds: int) -> Array:
    """Rows of probabilities that minimise a sum of PyTorch's means: each batch has a chance, its rows, its tokens.

    The loss is linear in the log-probabilities, with PyTorch's own coefficients, so a row is these, normalised.
    """
    log_q = torch.zeros(rows, kinds, dtype=torch.float64, requires_grad=True)
    for chance, at, tokens in batches:
        (float(chance) * F.nll_loss(log_q[at], torch.tensor(tokens))).backward()  # type: ignore[no-untyped-call]
    assert log_q.grad is not None
    share = -log_q.grad.numpy()
    return np.asarray(share / share.sum(1, keepdims=True))


def trained(lengths: Any, chances: Array, groups: Iterable[Any]) -> Array:
    """A table by position of sequences whose last token is 1; batches hold these numbers of sequences."""
    rows = lambda group: [i for k in group for i in range(lengths[k])]  # noqa: E731
    ends = lambda group: [int(i == lengths[k] - 1) for k in group for i in range(lengths[k])]  # noqa: E731
    return taught(((np.prod(chances[[*g]]), rows(g), ends(g)) for g in groups), max(lengths), 2)


def lengths_written(table: Array) -> Array:
    """Return the distribution of lengths of a table whose last row always ends; token 1 is the end."""
    going = np.concatenate([[1.0], np.cumprod(1 - table[:-1, 1])])
    return np.asarray(going * np.concatenate([table[:-1, 1], [1.0]]))


def mean_written(lengths: Any, chances: Array, groups: Any = None) -> float:
    """The mean length of a table by position, trained on sequences of these lengths, one at a time or in groups."""
    table = trained(lengths, chances, groups or [[k] for k in range(len(lengths))])
    return float(lengths_written(table) @ np.arange(1, len(table) + 1))


def some_lengths(seed: int) -> Iterator[tuple[Array, Array]]:
    g = rng(seed)
    for count in (1, 2, 3, 5):
        yield np.sort(g.choice(np.arange(1, 13), count, replace=False)), g.dirichlet(np.full(count, 2.0))


def tilts() -> Iterator[tuple[Array, Array, Array]]:
    for classes in (2, 3, 10, 1000):
        for _, (p,) in distributions(rng(0), classes):
            for _, w in weights(rng(1), classes):
                if (total := w @ p) > 1e-200:
                    yield w * p / total, p, w


P3, W3 = np.array([0.5, 0.3, 0.2]), np.array([1.0, 3.0, 9.0])


@claim(
    "A weight that depends on the outcome tilts",
    on=tilts,
    but_not={
        "P itself, where the weights differ": (P3, P3, W3),
        "P over the weights": (P3 / W3 / (P3 / W3).sum(), P3, W3),
    },
)
@pytest.mark.erratum("0.9", "holds")
def test_the_tilt(q: Array, p: Array, w: Array) -> None:
    """No report near it or far has a smaller weighted loss; a minimiser that knows no theorem ends there."""
    g = rng(2)
    to = g.choice(len(p), size=min(len(p), 40), replace=False)
    near = np.concatenate([q + h * (np.eye(len(p))[to] - q) for h in (1e-3, 1e-2)])
    used = w * p > 0
    with np.errstate(divide="ignore"):
        others = np.vstack([g.dirichlet(np.ones(len(p)), size=20), near])
        cost, other = (-np.log(r[..., used]) @ (w * p)[used] for r in (q, others))
    # A report's probabilities sum to one up to a rounding, which the total weight multiplies.
    assert cost < np.inf and (other >= cost * (1 - 1e-12) - 4e-15 * (w @ p)).all()
    if len(p) < 10 and used.all() and min(w * p) > 1e-3 * (w @ p):
        np.testing.assert_allclose(learnt(p, w / (w @ p)), q, atol=1e-6)


def spread(span: float) -> Array:
    return np.asarray(10 ** rng(3).uniform(-span / 2, span / 2, size=(3, 1)))


OFTEN, NEVER = np.ones(4), np.array([1.0, 1.0, 1.0, 0.0])
MASK = np.array([[0.0], [1.0], [1.0]])
ONE_TOKEN = np.where(np.arange(12).reshape(3, 4) == 1, 2.0, 1.0)


@claim(
    "a weight is harmless ... is constant",
    "in each context that carries weight",
    "A positive weight that depends only on the prompt does not.",
    "Let token $i$ of a sequence carry a weight $w_i \\ge 0$",
    on=[(w * spread(s), law) for law in (OFTEN, NEVER) for s in (0.0, 1, 6) for w in (1, MASK)]
    + [(np.where(NEVER > 0, spread(2), 7.0), NEVER)],
    but_not={
        "weights below zero": (1 - 2 * MASK, OFTEN),
        "a weight on one token of one context": (ONE_TOKEN, OFTEN),
    },
)
def test_harmless_weights(weight: Any, law: Array) -> None:
    """No report, near the truth or far, on tokens that may follow or not, costs less than the truth."""
    g = rng(15)
    rows = g.dirichlet(np.full(4, 3.0), size=3) * law
    truth, at = rows / rows.sum(axis=1, keepdims=True), rows > 0
    used = weight * g.dirichlet(np.full(3, 5.0))[:, None] * truth
    cost = -(used[at] @ np.log(truth[at]))
    for h, k in itertools.product((1e-3, 0.1, 1.0), range(50)):
        other = g.dirichlet(np.ones(4), size=3)
        if k % 2:  # one row, on the tokens that may follow: the best chance to cost less
            other = np.where(np.arange(3)[:, None] == g.integers(3), other * at, 0 * truth) + 1e-300 * at
            other = np.where(other.sum(1, keepdims=True) > 1e-9, other / other.sum(1, keepdims=True), truth)
        report = (1 - h) * truth + h * other
        assert cost <= -(used[at] @ np.log(report[at])) + 1e-14 * np.abs(used).sum()


TWO_PROMPTS = list(prompts(rng(2), 2, between=2.0))


@claim(
    "so a flexible model without prompts learns the harmonic mean of the lengths.",
    "**A flexible model without prompts learns the harmonic mean of the lengths**",
    on=lambda: [(mean_written(n, p), n, p) for n, p in some_lengths(2)],
    but_not=lambda: {
        "the mean of the data": (P3 @ [1, 4, 9], np.array([1, 4, 9]), P3),
        "a model with prompts": (
            sum(chance * mean_written(n, q) for chance, n, q in TWO_PROMPTS),
            np.concatenate([n for _, n, _ in TWO_PROMPTS]),
            np.concatenate([chance * q for chance, _, q in TWO_PROMPTS]),
        ),
    },
)
def test_the_harmonic_mean(written: float, lengths: Array, p: Array) -> None:
    assert written == pytest.approx(1 / (p @ (1 / lengths)), rel=1e-4)


OURS, FOUR = [90, 110], [9, 11, 90, 110]


@claim(
    "only the lengths of that prompt's answers compete.",
    on=[(FOUR, FOUR, [0, 0, 1, 1]), ([90, 110, 9, 11], [90, 110, 9, 11], [0, 0, 1, 1]), (OURS, OURS)],
    but_not={
        "a model that does not see the prompts": (FOUR, FOUR),
        "companions from any prompt, where they answer the same": (FOUR, OURS),
    },
)
def test_what_competes(companions: list[int], answers: list[int], asked: list[int] | None = None) -> None:
    """The mean of the last two lengths, learnt in batches of two with any of these, equally often."""
    own = companions[-2:]
    by_pairs = (1 / np.add.outer(own, companions)).mean(1)
    assert by_pairs @ own / by_pairs.sum() == pytest.approx(learnt_lengths(answers, 2, asked)[-2:] @ own)


def lost_shares(answers: list[Any], size: int, asked: Any = None) -> Array:
    """By `learnt_lengths`, of data with a row of answers for each prompt: of each answer, over the mean of all."""
    n = np.concatenate(answers)
    prompt = np.repeat(np.arange(len(answers)), [len(a) for a in answers]) if asked is None else asked
    q = learnt_lengths(n, size, prompt)
    return np.array([n[prompt == c].mean() - q[prompt == c] @ n[prompt == c] for c in prompt]) / n.mean()


def samples(between: float) -> list[Array]:
    """Six answers to each of three prompts: their whole law."""
    return [np.repeat(n, rng(13).multinomial(6, q)) for _, n, q in prompts(rng(13), 3, between)]


LARGE, TWO = 10_000, [np.array([9, 11]), np.array([90, 110])]


def estimates(between: float, corrected: bool = True) -> Iterator[tuple[float, float]]:
    """The share that is lost, by the variance within the prompts, and of k answers about their own mean."""
    laws = samples(between)
    truth, over = lost_shares(laws, LARGE).mean(), LARGE * np.concatenate(laws).mean() ** 2
    for k in (2, 3):
        drawn = np.concatenate([list(itertools.product(law, repeat=k)) for law in laws])
        yield truth, drawn.var(axis=1).mean() * (k / (k - 1) if corrected else 1) / over
    yield truth, np.mean([law.var() for law in laws]) / over


@claim(
    "so they show $(k - 1)/k$ of it.",
    "With $k$ answers to each of many prompts and a large $B$",
    "To *first order* (in the term of order $1/B$), only the variance",
    on=lambda: (
        [pair for b in (0.0, 1.0, 3.0) for pair in estimates(b)]
        + [(lost_shares(TWO, LARGE).mean(), 50.5 / (LARGE * 55**2))]
    ),
    but_not=lambda: {
        "two answers without the factor of two": next(estimates(1.0, corrected=False)),
        "one sequence to a denominator": (lost_shares(TWO, 1).mean(), 50.5 / 55**2),
    },
)
def test_what_the_answers_of_ones_own_data_tell(shortening: float, expected: float) -> None:
    assert shortening == pytest.approx(expected, rel=0.02, abs=1e-12)


@claim(
    "From one length per prompt you cannot tell",
    "over all prompts the lost share cannot exceed its value in the second case",
    on=lambda: map(samples, (0.0, 1.0, 3.0)),
    but_not={"one prompt on its own": ([np.array([1, 199]), *([np.full(2, 100)] * 99)], 1)},
)
def test_the_bound_of_all_prompts(laws: list[Array], answers: int | None = None) -> None:
    """Prompts that say nothing of the length reach it, prompts that fix it lose nothing."""
    n = np.concatenate(laws)
    bound = n.var() / (LARGE * n.mean() ** 2)
    assert lost_shares(laws, LARGE)[:answers].mean() <= bound * 1.02
    assert lost_shares(laws, LARGE, np.zeros(len(n), int)).mean() == pytest.approx(bound, rel=0.02)
    assert lost_shares(laws, LARGE, np.arange(len(n))).tolist() == [0.0] * len(n)


@cache
def data() -> dict[str, Array]:
    """Return the chapter's five tables of lengths."""
    tables, models = answer_lengths()
    every = tables["alpaca_eval"]
    three = ("gpt-4o-2024-05-13", "claude-3-5-sonnet-20240620", "Meta-Llama-3.1-405B-Instruct-Turbo")
    return {
        "E2E": tables["e2e"][(tables["e2e"] > 0).sum(1) > 1],
        "ASSET": tables["asset"],
        "3 models": every[:, [models.index(name) for name in three]],
        "221 models": every[:, [np.median(own[own > 0]) > 60 for own in every.T]],
        "all 227": every,
    }


def lost(table: Array, size: int) -> float:
    """Return the share of the mean length that is lost, from the law of the other lengths' sum, by convolution."""
    law, total = np.bincount(table[table > 0]) / (table > 0).sum(), np.ones(1)
    for _ in range(size - 1):
        total = fftconvolve(total, law)
    weight = np.zeros(len(law))
    for n in np.unique(table[table > 0]):
        weight[n] = (total / (n + np.arange(len(total)))).sum()
    w = weight[table]  # 0 where there is no answer
    written = (w * table).sum(1) / w.sum(1)
    return float(1 - written @ (table > 0).sum(1) / table.sum())


E2E, PEOPLE = "E2E", ("E2E", "ASSET")


@pytest.mark.slow
@claim(
    "In three collections with prompts, $B = 8$ takes",
    "all 227 together lose 48% at $B = 1$, but 34%",
    on=[
        *(("E2E", 8, 0.2, 1), ("221 models", 8, 3.6, 1), ("E2E", 1, 1.6, 1), ("221 models", 1, 29, 0)),
        *(("all 227", 1, 48, 0), ("all 227", 1, 34, 0, "gpt4_gamed")),
    ],
    but_not={
        "all 227 as the 221": ("all 227", 1, 29, 0),
        **{f"{name} as the one": ("all 227", 1, 34, 0, name) for name in ("text_davinci_001", "gpt4")},
    },
)
def test_how_large_it_is(name: str, size: int, percent: float, digits: int, without: str = "") -> None:
    """By another way than the chapter's; the one that matters was cut after ten characters, and the end."""
    table, names = data()[name], answer_lengths()[1]
    if without:
        own = table[:, names.index(without)]
        assert (own[own > 0] <= 11).mean() > 0.9
        table = table[:, [other != without for other in names]]
    assert f"{100 * lost(table, size):.{digits}f}" == str(percent)


@claim(
    "with some four, E2E shows only three quarters of what is lost",
    on=[(4, 3 / 4), (3, 2 / 3), (6, 5 / 6)],
    but_not={"two": (2, 3 / 4), "all": (4, 1.0)},
)
def test_what_few_answers_show(k: int, share: float) -> None:
    """Of prompts with twelve answers or more, so many drawn, beside all, corrected for their own number."""
    table = data()[E2E]
    assert 3.8 < (table > 0).sum() / len(table) < 4.2
    many = [row[row > 0] for row in table if (row > 0).sum() >= 12]
    drawn = [np.array([rng(i).permutation(row)[:k] for row in many]) for i in range(40)]
    widest = max(map(len, many))
    every = np.array([np.pad(row, (0, widest - len(row))) for row in many])
    counted = (every > 0).sum() / len(every)
    whole = lost(every, 8) * counted / (counted - 1)
    assert np.mean([lost(some, 8) for some in drawn]) / whole == pytest.approx(share, rel=0.08)


def people() -> Iterator[tuple[Any, int]]:
    for name in PEOPLE:
        table = data()[name]
        yield from ((part, 8) for part in (table, *np.array_split(rng(18).permutation(table), 2)))
    yield from ((data()["ASSET"][half], 8) for half in (np.s_[:2000], np.s_[2000:]))


@pytest.mark.slow
@claim(
    "In E2E and ASSET, whose prompts fix what is said",
    on=people,
    but_not=lambda: {
        **{f"{name}, one answer to a divisor": (data()[name], 1) for name in PEOPLE},
        "three models": (data()["3 models"], 8),
        "prompts that are not seen": (data()[E2E][data()[E2E] > 0][None], 8),
    },
)
def test_people_lose_little(table: Array, size: int) -> None:
    """Parts and halves of the prompts, the variance that few answers hide included."""
    k = (table > 0).sum(1, keepdims=True)
    distance = np.where(table > 0, (table - table.sum(1, keepdims=True) / k) ** 2, 0)
    assert (distance * k / (k - 1)).sum() / distance.sum() * lost(table, size) < 0.01
    n = table[table > 0]
    assert lost(table, 64) == pytest.approx(distance.sum() / len(n) / (64 * n.mean() ** 2), rel=0.1)


test_the_fair_coin = claim(
    "the averaged loss is smallest at $\\log 2 \\approx 0.693$.",
    on=["eq-avg-coin", "eq-avg-optimum", "eq-avg-sums"],
    but_not={
        "the sum over a constant": ("eq-avg-optimum", "q^* &= A =", r"q^* &= \beta = A ="),
        "half": ("eq-avg-sums", r"= \log 2", r"= \frac12"),
    },
)(printed)


def losses(alike: bool = False, power: int = 2) -> Iterator[float]:
    """Of laws of every shape, the share that is lost, over what is claimed."""
    n, g = np.arange(1, 400), rng(6)
    for p in (
        *(np.exp(-((n - 50.0) ** 2) / 18) + 1e-9, g.dirichlet(np.ones(len(n))), n**-1.3, n**-2.4),
        *((1 - beta) ** (n - 1) * beta for beta in (0.03, 0.3, 0.9)),
        *(np.isin(n, [3, 90]) + 1e-9, np.isin(n, [2, 3, 60, 380]) * g.random(399)),
    ):
        law = p / p.sum()
        mu = law @ n
        cv = np.sqrt(law @ (n - mu) ** 2) / mu
        size = int(1024 * max(1, cv**2, 50 / mu))  # the next order is 1/B, times CV^2 and skewness
        q = learnt_distribution(law, n, 1 if alike else size)
        yield (1 - q @ n / mu) * size / cv**power


@claim(
    r"a token mean over a large number $B$ of independent sequences shortens the",
    on=losses,
    but_not=lambda: {
        "0.18: sequences that are not independent, in buckets of one length": next(losses(alike=True)),
        "the standard deviation for the variance": next(losses(power=1)),
    },
)
@pytest.mark.erratum("0.18", "conditional")
def test_the_size_of_the_effect(over_claimed: float) -> None:
    assert over_claimed == pytest.approx(1, abs=0.06)


N3 = np.array([1, 2, 6])


def pooled(how: str, p: Array) -> float:
    """The mean length that is learnt from PyTorch's means."""
    if how == "sums":
        return mean_written(N3, p * N3)
    if how == "pairs":
        return mean_written(N3, p, [*itertools.product(range(3), repeat=2)])
    if how == "alike":  # micro-batches of two that hold one length each
        return mean_written(N3, np.sqrt(p), [[k, k] for k in range(3)])
    if how == "tokens":  # six in each: such a batch comes with p n / 6 for each sequence
        return mean_written(N3, (p * N3) ** (N3 / 6), [[k] * (6 // N3[k]) for k in range(3)])
    # Two micro-batches of two on each of two ranks, means averaged.
    counts = N3[rng(7).choice(3, p=p, size=(100_000, 4, 2))]
    return float(np.average(counts, weights=1 / counts.sum(2, keepdims=True) + 0 * counts))


@claim(
    "$B$ counts the sequences that share a denominator.",
    "Only the first row is proper",
    "Accumulating means and averaging over ranks do not raise it.",
    "Buckets of a fixed number of sequences, all of one length, tilt",
    "with a fixed number of *tokens* in each such batch, the",
    on=[
        (how, p, b)
        for p in (P3, np.array([0.2, 0.5, 0.3]))
        for how, b in (("sums", 0), ("pairs", 2), ("ranks", 2), ("alike", 1), ("tokens", 0))
    ],
    but_not={
        f"{how} as {b}": (how, P3, b)
        for how, b in (("sums", 2), ("pairs", 0), ("ranks", 8), ("alike", 2), ("tokens", 1))
    },
)
def test_what_b_counts(how: str, p: Array, sharing: int) -> None:
    exact = learnt_distribution(p, N3, sharing) @ N3 if sharing else p @ N3
    assert pooled(how, p) == pytest.approx(exact, rel=0.015 if how == "ranks" else 1e-4)


HALF, SHARES = np.full(2, 0.5), np.array([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]])  # of two letters, by length


def in_the_prompt(known: bool) -> tuple[Array, Array]:
    """What means of each sequence's letters teach, with a row for each length, or one for all."""
    seen = taught(
        ((P3[k] * SHARES[k, letter], [k if known else 0], [letter]) for k in range(3) for letter in range(2)),
        3 if known else 1,
        2,
    )
    return seen, SHARES if known else ((P3 * N3) @ SHARES / (P3 @ N3))[None]


def unscored() -> tuple[Array, Array]:
    """Letters whose shares depend on the position, up to a length that is drawn on its own: there is no end."""
    words = itertools.product(range(3), *[range(2)] * 3)
    batches = ((P3[k] * SHARES[range(3), x].prod(), [*range(k + 1)], [*x[: k + 1]]) for k, *x in words)
    return taught(batches, 3, 2), SHARES


def ends(padded: bool) -> tuple[Array, Array]:
    """The share of ends in blocks of twelve tokens of a stream, whose spread is the tolerance, or in rows of six."""
    drawn = N3[rng(8).choice(3, p=P3, size=300_000)]
    stream = np.zeros(drawn.sum(), dtype=int)
    stream[drawn.cumsum() - 1] = 1
    found = np.mean(1 / drawn) if padded else stream[: len(stream) // 12 * 12].reshape(-1, 12).mean()
    return np.array([found]), np.array([1 / (P3 @ N3)])


@claim(
    "A sum divided by a constant is proper, and so is a mean over",
    "In at least two cases the average is harmless to a flexible model ... with positive factors.",
    on=lambda: [(learnt(P3, np.full(3, 1 / 7)), P3), in_the_prompt(True), ends(False), unscored()],
    but_not=lambda: {
        "0.12: a mean over each sequence, of whose length the letters say nothing": (learnt(P3, 1 / N3), P3),
        "rows that are filled up with padding that is not scored": ends(True),
        "one row for all lengths": in_the_prompt(False),
        "a batch's longest length as the divisor": (learnt(P3, (1 / np.maximum.outer(N3, N3)) @ P3), P3),
        "an unscored length that the first letter decides": (learnt(HALF, np.array([1, 0.1])), HALF),
    },
)
@pytest.mark.erratum("0.12", "conditional")
def test_what_is_proper(found: Array, truth: Array) -> None:
    np.testing.assert_allclose(found, truth, atol=5e-3)


N20 = np.arange(1, 21)


def steps(p: Array, step: int, constant: bool = False) -> tuple[float, float]:
    """The odds of an end at a step in a table by position, and those of the data."""
    p = np.maximum(p, 1e-12) / np.maximum(p, 1e-12).sum()
    row = trained(N20, p, [[k] for k in range(20)])[step - 1]
    true = p[step - 1] / p[step:].sum()
    return true if constant else row[1] / row[0], true


@claim(
    "the end weighs at least twice as much, so the model leans",
    "So the learnt odds of stopping at step $t$ are at least",
    on=lambda: (
        (*steps(p, step), (step + 1) / step)
        for p in (0.05 * 0.95**N20, 0.05**N20, np.isin(N20, [1, 2]) / 2, rng(9).dirichlet(np.full(20, 0.4)))
        for step in (1, 2, 7)
        if step == 1 or p[step:].sum() > 1e-6
    ),
    but_not=lambda: {
        "0.11: twice as much, at the second step": (*steps(0.5**N20, 2), 2.0),
        "three times as much": (*steps(np.isin(N20, [1, 2]) / 2, 1), 3.0),
        "the sum over a constant": (*steps(0.5**N20, 1, True), 2.0),
    },
)
@pytest.mark.erratum("0.11", "conditional")
def test_the_end_weighs_more(learnt: float, true: float, times: float) -> None:
    assert learnt >= times * true * (1 - 1e-6)
