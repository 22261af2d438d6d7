"""Chapter 10's claims: every shape of lengths, prompts, by enumeration and by descent."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.signal import fftconvolve
from scipy.stats import binom, spearmanr

from adversary import claim, printed, prompts, rng
from xent.denominators import learnt_distribution, learnt_lengths
from xent.sequences import GeometricSource
from xent_book.data import answer_lengths

Array = NDArray[Any]
ROOT = Path(__file__).parents[2]


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


def tilted(p: Array, w: Array) -> Array:
    """What eq-avg-tilt says that weights teach."""
    return np.asarray(w * p / (w @ p))


P3 = np.array([0.5, 0.3, 0.2])

test_the_tilt = claim(
    "A weight that depends on the outcome tilts",
    on=["eq-avg-tilt"],
    but_not={
        "P itself, where the weights differ": ("eq-avg-tilt", r"w(y)\, P(y)", "P(y)"),
        "P over the weights": ("eq-avg-tilt", r"{w(y)\, P(y)}", "{P(y) / w(y)}"),
    },
)(printed)

test_harmless_weights = claim(
    "in each context that carries weight",
    "A positive weight that depends only on the prompt does not.",
    on=["eq-avg-context"],
    but_not={
        "any weight": ("eq-avg-context", r"P(v \mid c)\, W(v, c)", r"P(v \mid c)"),
        "the context's mean weight, whatever follows": ("eq-avg-context", r"c_i = c,\, x_i = v]", "c_i = c]"),
    },
)(printed)

test_the_harmonic_mean = claim(
    "so a flexible model without prompts learns the harmonic mean of the lengths.",
    "**A flexible model without prompts learns the harmonic mean of the lengths**",
    on=["eq-avg-harmonic"],
    but_not={
        "the mean of the data": ("eq-avg-harmonic", r"= \frac{1}{\mathrm E_P[1/n]}", r"= \mathrm E_P[n]"),
        "weights that grow with the length": ("eq-avg-harmonic", "P(x) / n", r"P(x)\, n"),
    },
)(printed)

test_the_fair_coin = claim(
    "the averaged loss is smallest at $\\log 2 \\approx 0.693$.",
    on=["eq-avg-coin", "eq-avg-sums"],
    but_not={
        "a half": ("eq-avg-sums", r"= \log 2", r"= \frac12"),
        "the sum over a constant": ("eq-avg-coin", r"\frac1n", "1"),
    },
)(printed)

test_the_size_of_the_effect = claim(
    r"a token mean over a large number $B$ of independent sequences shortens the",
    on=["eq-avg-batch-general"],
    but_not={
        "a tilt that does not shrink with B": (
            "eq-avg-batch-general",
            r"\frac{\mathrm{CV}^2}{B}",
            r"\mathrm{CV}^2",
        ),
        "the standard deviation": (
            "eq-avg-batch-general",
            r"\frac{\mathrm{CV}^2}{B}",
            r"\frac{\mathrm{CV}}{B}",
        ),
    },
)(printed)

OURS, FOUR = [90, 110], [9, 11, 90, 110]


@claim(
    "only the lengths of its own answers compete.",
    "if a batch holds independent answers to one prompt",
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


@claim(
    "so they show $(k - 1)/k$ of it.",
    "With $k$ answers to each of many prompts and a large $B$",
    "From one length per prompt you cannot tell",
    "over all prompts the lost share cannot exceed the second value",
    "To *first order* (in the term of order $1/B$), only the variance",
    on=lambda: ((laws, k) for laws in map(samples, (0.0, 1.0, 3.0)) for k in (2, 3)),
    but_not=lambda: {
        "two answers without the factor of two": (samples(1.0), 2, 1),
        "one sequence to a denominator": (TWO, 2, 2, 1),
        "one prompt on its own": ([np.array([1, 199]), *([np.full(2, 100)] * 99)], 2, 2, LARGE, 1),
    },
)
def test_what_the_answers_of_ones_own_data_tell(
    laws: list[Array], k: int, factor: float = 0.0, size: int = LARGE, prompts: int | None = None
) -> None:
    """By the variance of k answers about their own mean; prompts that say nothing reach the bound, others lose 0."""
    n = np.concatenate(laws)
    drawn = [np.array(list(itertools.product(law, repeat=k))).var(axis=1).mean() for law in laws]
    seen, bound = np.mean(drawn) * (factor or k / (k - 1)) / n.mean() ** 2, n.var() / n.mean() ** 2
    lost = lost_shares(laws, size) * size
    assert lost.mean() == pytest.approx(seen, rel=0.02, abs=1e-12)
    assert lost[: prompts and len(laws[0])].mean() <= bound * 1.02
    assert lost_shares(laws, size, 0 * n).mean() * size == pytest.approx(bound, rel=0.02)
    assert not lost_shares(laws, size, np.arange(len(n))).any()


@claim(
    "The last term falls at least as fast as $1/B^2$",
    on=(3.2, 3.5, 5.0),
    but_not={"answers without a third moment": 2.3, "almost with one": 2.7},
)
def test_the_next_order(power: float) -> None:
    n = np.unique(np.geomspace(1, 3e7, 4000).astype(int))
    p = -np.diff(np.r_[n**-power, 0.0])
    mu, sizes = p @ n, (256, 1024, 4096)
    shifts = [learnt_distribution(p, n, size) @ n - mu for size in sizes]
    errors = [s**2 * (x + p @ (n - mu) ** 2 / (s * mu)) for s, x in zip(sizes, shifts, strict=True)]
    assert abs(errors[2]) < 1.5 * abs(errors[0])


@cache
def data() -> dict[str, NDArray[np.int64]]:
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


def lost(table: NDArray[np.int64], size: int) -> float:
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


@pytest.mark.slow
@claim(
    "In three collections with prompts, $B = 8$ takes",
    "all 227 lose 48 % at $B = 1$, but 34 %",
    on=[
        *(("E2E", 8, "0.2"), ("221 models", 8, "3.6"), ("E2E", 1, "1.6"), ("221 models", 1, "29")),
        *(("all 227", 1, "48"), ("all 227", 1, "34", "gpt4_gamed")),
    ],
    but_not={"all 227 as the 221": ("all 227", 1, "29"), "GPT-4 as the one": ("all 227", 1, "34", "gpt4")},
)
def test_how_large_it_is(name: str, size: int, percent: str, without: str = "") -> None:
    """By another way than the chapter's; the one that matters was cut after ten characters, and the end."""
    table, names = data()[name], answer_lengths()[1]
    if without:
        own = table[:, names.index(without)]
        assert (own[own > 0] <= 11).mean() > 0.9
        table = table[:, [other != without for other in names]]
    assert f"{100 * lost(table, size):.{len(percent.partition('.')[2])}f}" == percent


def people() -> Iterator[tuple[Any, int]]:
    for name in ("E2E", "ASSET"):
        table = data()[name]
        yield from ((part, 8) for part in (table, *np.array_split(rng(18).permutation(table), 2)))
    yield from ((data()["ASSET"][half], 8) for half in (np.s_[:2000], np.s_[2000:]))


@pytest.mark.slow
@claim(
    "In E2E and ASSET, whose prompts fix what is said",
    on=people,
    but_not=lambda: {
        "one answer to a divisor": (data()["E2E"], 1),
        "three models": (data()["3 models"], 8),
        "prompts that are not seen": (data()["E2E"][data()["E2E"] > 0][None], 8),
    },
)
def test_people_lose_little(table: NDArray[np.int64], size: int) -> None:
    """Parts and halves of the prompts, the variance that few answers hide included."""
    k = (table > 0).sum(1, keepdims=True)
    distance = np.where(table > 0, (table - table.sum(1, keepdims=True) / k) ** 2, 0)
    assert (distance * k / (k - 1)).sum() / distance.sum() * lost(table, size) < 0.01


@cache
def model_pairs() -> dict[str, Array]:
    """All pairs of models: what is lost, the variance within prompts and between them, how far the means differ."""
    table = data()["221 models"]
    ours, pairs = np.array([own[own > 0].mean() for own in table.T]), []
    for k in range(1, table.shape[1]):
        one, other = table[:, :-k], table[:, k:]  # of each pair of models k apart
        both = np.where((one > 0) & (other > 0), 1.0, np.nan)
        mean, off = both * (one + other) / 2, both * (one - other) / 2
        mu, ratio = np.nanmean(mean, 0), np.maximum(ours[:-k] / ours[k:], ours[k:] / ours[:-k])
        spreads = np.nanmean(off**2, 0) / mu**2, np.nanvar(mean, 0) / mu**2
        pairs.append(np.array([np.nanmean(off**2 / mean, 0) / mu, *spreads, ratio]))
    return dict(zip(("share", "within", "between", "ratio"), np.concatenate(pairs, axis=1), strict=True))


@claim(
    "**What decides the share** is how much the answers to one prompt differ.",
    "with only two of the 221 models answering, the median pair loses",
    on=[("within", False)],
    but_not={"how much the prompts differ": ("between", False), "models drawn at random": ("within", True)},
)
def test_what_decides_how_much_is_lost(spread: str, shuffled: bool) -> None:
    found = model_pairs()
    ratio = rng(19).permutation(found["ratio"]) if shuffled else found["ratio"]
    assert spearmanr(found["share"], found[spread]).statistic > 0.9
    medians = [np.median(found["share"][at]) for at in (ratio < 1.05, ratio > 2)]
    assert medians == pytest.approx([0.058, 0.25], abs=0.0005)


SUPPORT = np.array([18, 20, 23])


def correlated(size: int, r: float) -> float:
    """What a batch loses in which each copies the common length with chance sqrt(r): any two correlate by r."""
    inverse = 0.0
    for copies in range(size + 1):
        some = min(copies, 1)
        for at in itertools.product(range(3), repeat=size - copies + some):
            total = SUPPORT[list(at)].sum() + (copies - some) * (SUPPORT[at[0]] if copies else 0)
            inverse += binom.pmf(copies, size, np.sqrt(r)) * P3[list(at)].prod() * size / total
    return float(1 - 1 / (inverse * (P3 @ SUPPORT)))


@claim(
    "The batch's mean length varies like that of",
    on=[(size, r, size / (1 + (size - 1) * r)) for size in (2, 4, 6) for r in (0.1, 0.5, 0.9)],
    but_not={"as many independent lengths": (4, 0.5, 4)},
)
def test_lengths_that_go_together(size: int, r: float, count: float) -> None:
    mu = P3 @ SUPPORT
    assert correlated(size, r) == pytest.approx(P3 @ (SUPPORT - mu) ** 2 / mu**2 / count, rel=0.1)


@claim("The tilt is exactly that of $B/g$ sequences if", on=[2], but_not={"four sequences": 4, "one": 1})
def test_groups_of_equal_lengths(size: int) -> None:
    """A batch of four, in pairs, however much the lengths differ."""
    n = np.array([1, 4, 30])
    inverse = P3 @ (2 / np.add.outer(n, n)) @ P3
    assert 1 / inverse == pytest.approx(learnt_distribution(P3, n, size) @ n)


N40 = np.arange(1, 41)


def approaches(n: Array, p: Array, over: Any, weight: Any = 1.0) -> None:
    """Fits to ever more data, to P over this; and of no number of them has a single mean its minimum at P."""
    off, to = [], p / over / (p / over).sum()
    for size in (10**2, 10**4, 10**6):
        drawn = rng(4).multinomial(size, p, size=200) * weight
        off.append(np.abs(drawn / drawn.sum(1, keepdims=True) - to).sum(1).mean())
        assert size * np.abs(learnt_distribution(p, n, size) - p).sum() > 1e-3
    assert off[0] > 5 * off[1] > 25 * off[2]


LAWS = 0.7**N40, np.isin(N40, [2, 30]) + 0.0, rng(4).dirichlet(np.full(40, 0.5))

test_more_data = claim(
    "as the data grow, a flexible model approaches the tilted",
    on=[(N40, p / p.sum(), N40, 1 / N40) for p in LAWS],
    but_not={"a constant divisor": (N40, LAWS[0] / LAWS[0].sum(), N40)},
)(approaches)

test_improper_and_yet_consistent = claim(
    "A single mean over all the tokens of the data is improper as well",
    on=lambda: [
        (n, rng(22).dirichlet(np.full(len(n), 5.0)), 1)
        for n in (np.array([1, 3]), np.array([1, 2, 9]), np.arange(10, 14))
    ],
    but_not={"the mean over each sequence": (np.array([1, 4, 9]), P3, 1, 1 / np.array([1, 4, 9]))},
)(approaches)


N3 = np.array([1, 2, 6])


def pooled(how: str, p: Array) -> float:
    """The mean length that is learnt from windows of four micro-batches of two, by what divides a sequence's loss."""
    counts = N3[rng(7).choice(3, p=p, size=(100_000, 4, 2))]
    axes: Any = {"micro-batch": 2, "window": (1, 2), "constant": ()}[how]
    return float(
        np.average(counts, weights=1 / (counts.sum(axes, keepdims=True) if axes else 1) + 0 * counts)
    )


@claim(
    "$B$ counts the sequences that share a denominator.",
    "Only the first line is proper",
    "Accumulating means and averaging over ranks do not raise it.",
    on=[
        (how, p, b)
        for p in (P3, np.array([0.2, 0.5, 0.3]))
        for how, b in (("constant", 0), ("micro-batch", 2), ("window", 8))
    ],
    but_not={
        f"a {how} as {b}": (how, P3, b) for how, b in (("constant", 2), ("micro-batch", 8), ("window", 0))
    },
)
@pytest.mark.claim("11", "More accumulation steps do not repair a mean of means")
def test_what_b_counts(how: str, p: Array, sharing: int) -> None:
    exact = learnt_distribution(p, N3, sharing) @ N3 if sharing else p @ N3
    assert pooled(how, p) == pytest.approx(exact, rel=0.006)


HALVES = np.full(2, 0.5)
SHARES = np.array([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]])  # of two letters, by length


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
    on=lambda: [(tilted(P3, np.full(3, 1 / 7)), P3), in_the_prompt(True), ends(False), unscored()],
    but_not=lambda: {
        "0.12: the mean over each sequence, whose letters say nothing of its length": (
            tilted(P3, 1 / N3),
            P3,
        ),
        "rows that are filled up with padding that is not scored": ends(True),
        "one row for all lengths": in_the_prompt(False),
        "the longest length as the divisor": (tilted(P3, (1 / np.maximum.outer(N3, N3)) @ P3), P3),
        "an unscored length that the first letter decides": (tilted(np.ones(2), np.array([1, 0.1])), HALVES),
    },
)
@pytest.mark.erratum("0.12", "conditional")
def test_what_is_proper(found: Array, truth: Array) -> None:
    np.testing.assert_allclose(found, truth, atol=5e-3)


N20 = np.arange(1, 21)


def odds(p: Array, step: int, times: float, by: Any = 1 / N20) -> tuple[float, float]:
    """The learnt odds of an end at a step, and so many times those of the data."""
    return tuple(q[step - 1] / q[step:].sum() * k for q, k in ((tilted(p, by * N20**0), 1), (p, times)))


@claim(
    "the end weighs at least twice as much, so the model leans",
    "So the learnt odds of stopping at step $t$ are at least",
    on=lambda: (
        odds(p, step, (step + 1) / step)
        for p in (0.95**N20, 0.05**N20, (N20 < 3) + 1e-12, rng(9).dirichlet(np.full(20, 0.4)) + 1e-12)
        for step in (1, 2, 7)
    ),
    but_not={
        "0.11: twice as much, at the second step": odds(0.5**N20, 2, 2.0),
        "three times as much": odds((N20 < 3) + 1e-12, 1, 3.0),
        "the sum over a constant": odds(0.5**N20, 1, 2.0, 1.0),
    },
)
@pytest.mark.erratum("0.11", "conditional")
def test_the_end_weighs_more(learnt: float, least: float) -> None:
    assert learnt >= least * (1 - 1e-6)


@claim(
    "The first token: it is predicted before the length is known",
    on=[(kinds, False) for kinds in (2, 3, 6)],
    but_not={"a constant divisor": (3, True)},
)
def test_the_first_token_states_the_length(kinds: int, constant: bool) -> None:
    """A row for the stated length, one for the letters after each: it is tilted to short ones, they are right."""
    g = rng(14)
    n = np.sort(g.choice(np.arange(2, 30), kinds, replace=False))
    p, letters = g.dirichlet(np.full(kinds, 3.0)), g.dirichlet(np.ones(3), size=kinds)
    batches = (
        (p[k] * letters[k, v] * (n[k] if constant else 1), [0, *[1 + k] * (n[k] - 1)], [k, *[v] * (n[k] - 1)])
        for k, v in itertools.product(range(kinds), range(3))
    )
    first, *later = taught(batches, 1 + kinds, max(3, kinds))
    np.testing.assert_allclose(np.array(later)[:, :3], letters, atol=1e-12)
    assert (np.cumsum(first[:kinds])[:-1] > np.cumsum(p)[:-1] + 1e-9).all()


def test_the_front_page_has_the_language() -> None:
    found = re.search(
        r"with probability ([\d.]+), so that sequences have (\d+) tokens on average\. .*? sequences have ([\d.]+) "
        r"tokens on average with one sequence per denominator, and ([\d.]+) tokens with (\d+)\.",
        (ROOT / "index.md").read_text(encoding="utf-8"),
    )
    assert found
    stop, mean, alone, shared, size = map(float, found.groups())
    coin = GeometricSource(stop)
    exact = coin.mean_length(), coin.harmonic_mean_length(), coin.harmonic_mean_length(int(size))
    assert [round(x, 1) for x in exact] == [mean, alone, shared]
