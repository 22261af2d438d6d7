"""Sources of sequences, and what their lengths weigh: against mpmath, sums, every batch there is, and a trained model.

What each function refuses of one argument is in test_contracts.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from xent.denominators import eos_optimum, learnt_distribution, learnt_lengths, length_weights
from xent.sequences import GeometricSource, MarkovSource


def same(got: Any, due: Any, rtol: float = 1e-13, atol: float = 0.0) -> None:
    np.testing.assert_allclose(got, due, rtol=rtol, atol=atol)


# ----------------------------------------------------------------------------------------- eos_optimum


def excess(stop: float, batch_size: int) -> mp.mpf:
    """2F1(1, 1; B + 1; 1 - beta), by which the optimum is larger than beta."""
    rest = 1 - mp.mpf(stop)
    if batch_size == 1:  # where mpmath's function divides by zero
        return -mp.log(stop) / rest
    if batch_size < 10**6:
        return mp.hyp2f1(1, 1, batch_size + 1, rest)
    # Where mpmath takes another series, which hardly converges. Of this one, a few terms do.
    total = term = mp.mpf(1)
    for k in range(1, 12):
        term *= rest * k / (batch_size + k)
        total += term
    return total


@pytest.mark.parametrize("stop", [1e-308, 1e-305, 1e-295, 1e-250, 1e-100, 1e-8, 0.25, 0.99, 1 - 2**-53])
def test_eos_optimum_to_the_last_digits(stop: float) -> None:
    with mp.workdps(50):
        for batch_size in (1, 2, 3, 10, 100, 10**6, 10**9, 10**12):
            with np.errstate(all="raise"):
                found = eos_optimum(stop, batch_size)
            # Half a unit of rounding in the result, and the sum's own; two in the last place were seen.
            assert abs(found / (stop * excess(stop, batch_size)) - 1) < 4 * np.finfo(float).eps, batch_size
            assert stop <= found <= 1, batch_size  # not a rounding below the truth
            assert eos_optimum(1.0, batch_size) == 1.0


# -------------------------------------------------------------------------------------- length weights

RANDOM = np.random.default_rng(0).dirichlet(np.full(40, 0.2))


@pytest.mark.parametrize("batch_size", [1, 2, 3, 6, 20])
def test_length_weights_agree_with_the_convolution(batch_size: int) -> None:
    """With the exact law of the sum of the others: geometric, two far apart, constant, random, no short ones."""
    n = np.arange(300)
    for kind in (0.3 * 0.7 ** n[:80], np.isin(n, [0, 299]), n[:12] == 11, RANDOM, n[:60] >= 50):
        law, total = kind / kind.sum(), np.array([1.0])
        for _ in range(batch_size - 1):
            total = np.convolve(total, np.concatenate([[0.0], law]))
        due = [(total / (k + np.arange(len(total)))).sum() for k in range(1, len(law) + 1)]
        same(length_weights(1 + n[: len(law)], batch_size, probabilities=law), due, 3e-14)


def test_length_weights_at_the_ends_of_their_range() -> None:
    n, law = np.arange(1, 400), GeometricSource(0.1).length_probabilities(399)
    for size in (1000, 10**6):  # with geometric lengths B E[w_B] is eos_optimum, which has another derivation
        same(size * law @ length_weights(n, size, probabilities=law), eos_optimum(0.1, size), 1e-12)
    same(length_weights([1, 10**6], 2), [(0.5 + 1 / (1 + 10**6)) / 2, (1 / (1 + 10**6) + 0.5e-6) / 2])
    # The short length is next to impossible: nearly all companions have the long one.
    for rare in (1e-3, 1e-4, 1e-9, 1e-30):
        chance = stats.binom.pmf(np.arange(5), 4, rare)
        due = [chance @ (1 / (own + np.arange(5) + 50 * (4 - np.arange(5)))) for own in (1, 50)]
        same(length_weights([1, 50], 5, probabilities=[rare, 1 - rare]), due)
    # A length of no probability at all has a weight, and is no companion; entries of one length are one outcome.
    same(length_weights([1, 7, 9], 3, probabilities=[0.0, 1.0, 0.0]), [1 / 15, 1 / 21, 1 / 23])
    three = length_weights([3, 1, 3], 5, probabilities=[0.5, 0.25, 0.25])
    same(length_weights([3, 1, 3, 3], 5), three[[0, 1, 2, 2]], 1e-15)
    same(learnt_distribution([0.5, 0.5, 0.0], [1, 2, 4]), [2 / 3, 1 / 3, 0.0], 1e-15)
    # What is left of the bias is of the order of one in a batch.
    most = 10**12
    same(length_weights([1, 2**53], most) * most, [2**-52] * 2, 4e-12)
    same(length_weights([1, 3], most) * most, [0.5, 0.5], 4e-12)
    same(learnt_lengths([1, 3], most), [0.5, 0.5], 4e-12)


ENTRY = st.tuples(st.integers(1, 60) | st.sampled_from([1, 10**6]), st.sampled_from("abc"))
ENTRIES = st.lists(ENTRY, min_size=1, max_size=5)


@settings(deadline=None, max_examples=60)
@given(ENTRIES, st.integers(1, 4))
def test_lengths_over_every_batch_there_is(entries: list[tuple[int, str]], size: int) -> None:
    """Each entry's share of the divisor, added up over all batches, and normalised, in all or within its prompt."""
    lengths, prompts = np.array([n for n, _ in entries]), np.array([c for _, c in entries])
    batches = np.array(list(itertools.product(range(len(entries)), repeat=size)))
    total = lengths[batches].sum(1)
    share = np.array([((batches == k).sum(1) / total).sum() for k in range(len(entries))])
    same(length_weights(lengths, size), share / (size * len(entries) ** (size - 1)), 3e-14)
    learnt = learnt_lengths(lengths, size)
    same(learnt, share / share.sum())
    same(learnt @ lengths, 1 / np.mean(size / total))  # the harmonic mean of the batches' means
    same(learnt_lengths(lengths, size, prompts), share / ((prompts[:, None] == prompts) @ share))
    even = np.full(len(lengths), 1 / len(lengths))
    same(learnt_distribution(even, lengths, size), learnt, 1e-14)


@settings(deadline=None, max_examples=40)
@given(ENTRIES, st.sampled_from([1, 2, 7, 10**3, 10**12]), st.randoms(use_true_random=False))
def test_what_has_to_hold_for_any_data(entries: list[tuple[int, str]], size: int, random: Any) -> None:
    """Sums of one; no mean above the data's; names and order of the prompts say nothing."""
    lengths, prompts = np.array([n for n, _ in entries]), np.array([c for _, c in entries])
    learnt = learnt_lengths(lengths, size, prompts)
    for prompt in set(prompts):
        own = prompts == prompt
        same(learnt[own].sum(), 1, 1e-14)
        assert learnt[own] @ lengths[own] <= lengths[own].mean() * (1 + 1e-13)
    numbers = [7 - "abc".index(p) * 10**20 for p in prompts]  # some beyond 64 bits
    np.testing.assert_array_equal(learnt_lengths(lengths, size, numbers), learnt)
    order = random.sample(range(len(lengths)), len(lengths))
    same(learnt_lengths(lengths[order], size, prompts[order]), learnt[order])
    if size == 10**12:
        same(learnt, [1 / (prompts == p).sum() for p in prompts], 1e-5)


# Prompts of a list are taken as they are: no number becomes a text, and no text loses its end.
PROMPTS: list[tuple[list[int], int, Any, list[float]]] = [
    *(([1, 3, 2], 1, prompts, [2 / 3, 1, 1 / 3])
      for prompts in ([1, "1", 1], [2**63, 1, 2**63], ["a", "a\0", "a"], [np.int64(1), np.str_("1"), 1])),
    ([7], 1, None, [1.0]),
    ([7, 7], 3, ["a", "a"], [0.5, 0.5]),
    ([3, 900], 1, np.array(["a", "b"], object), [1.0, 1.0]),  # one answer each has nothing to tilt
]  # fmt: skip


def test_the_names_of_prompts() -> None:
    for lengths, size, prompts, due in PROMPTS:
        same(learnt_lengths(lengths, size, prompts), due)
    bad: Any = ([1, True], "True at index 1"), (["a", np.nan], "nan at index 1"), ([1.0, 2.0], "1.0 at")
    for missing, got in bad:
        with pytest.raises(TypeError, match=f"^prompts: expected integers or texts, got {got}"):
            learnt_lengths([2, 3], 1, missing)


# ------------------------------------------------------------------------------------- GeometricSource


@pytest.mark.parametrize("q", [0.05, 0.3, 0.7, 0.999])
@pytest.mark.parametrize(("stop", "letters"), [(0.5, 1), (0.5, 26), (0.07, 3), (0.9, 2)])
def test_the_geometric_source_is_its_sums(stop: float, letters: int, q: float) -> None:
    source, n = GeometricSource(stop, letters), np.arange(1, 2000)
    law = stop * (1 - stop) ** (n - 1)
    own, other = (-(np.log(r) + (n - 1) * np.log((1 - r) / letters)) for r in (stop, q))
    tilted = (law / n) / (law / n).sum()
    for got, due, rtol in (
        (source.mean_length(), law @ n, 1e-12),
        (source.harmonic_mean_length(), 1 / (law @ (1 / n)), 1e-12),
        (source.entropy(), law @ own, 1e-12),
        (source.cross_entropy(q), law @ other, 1e-12),
        (source.kl(q), law @ (other - own), 1e-9),
        (source.averaged_cross_entropy(q), law @ (other / n), 1e-12),
        (source.length_probabilities(1999), law, 1e-11),
        (source.tilted_lengths(1999), tilted, 1e-11),
    ):
        same(got, due, rtol, 1e-300 if np.ndim(got) else 1e-12 * (rtol == 1e-9))
    # Of a batch of three, by the number of letters in it.
    others = np.arange(8000)
    total = stats.nbinom.pmf(others, 3, stop)
    loss = -(3 * np.log(q) + others * np.log((1 - q) / letters)) / (others + 3)
    same(source.averaged_cross_entropy(q, 3), total @ loss, 1e-11)
    same(source.harmonic_mean_length(3), 1 / (total @ (3 / (others + 3))), 1e-11)


COIN, ALWAYS = GeometricSource(0.5), GeometricSource(1.0, 3)


def test_the_ends_of_the_geometric_family() -> None:
    tiny = 1e-310  # whose inverse overflows; the terms are p log(p / q) and (1 - p) log(1 - p)
    assert [ALWAYS.averaged_cross_entropy(1, size) for size in (1, 2, 7, 10**6, 10**12)] == [0.0] * 5
    for got, due in (
        ([ALWAYS.entropy(), ALWAYS.cross_entropy(1.0)], [0.0, 0.0]),
        ([ALWAYS.kl(0.25), ALWAYS.kl(0.0)], [np.log(4), np.inf]),
        (ALWAYS.tilted_lengths(3), [1.0, 0.0, 0.0]),
        ([COIN.cross_entropy(1.0), COIN.averaged_cross_entropy(0.0)], [np.inf, np.inf]),
        (COIN.kl(tiny), 2 * np.log(0.5) - np.log(tiny)),
        (GeometricSource(1e-308).mean_length(), 1e308),
        ([COIN.length_probabilities(1)[0], COIN.tilted_lengths(1)[0]], [0.5, 0.5 / np.log(2)]),
    ):
        same(got, due)


# ---------------------------------------------------------------------------------------- MarkovSource

ROWS = [[0.1, 0.4, 0.5], [0.25, 0.15, 0.6]]
SOURCE = MarkovSource([0.5, 0.3, 0.2], ROWS)
MODEL = MarkovSource([0.4, 0.4, 0.2], [[0.3, 0.3, 0.4], [0.1, 0.2, 0.7]])
HALF: Any = [[0.5, 0.5]]


def test_the_markov_source_is_the_sum_over_its_sequences() -> None:
    both = [np.vstack([source.transition, source.initial]) for source in (SOURCE, MODEL)]
    paths: dict[tuple[int, ...], Any] = {(2,): both[0][2]}  # those that go on, after the beginning of all
    ended: list[tuple[int, float, float]] = []  # length, probability, the model's log-probability
    logs: dict[tuple[int, ...], Any] = {(2,): 0.0}
    for length in range(1, 16):
        more: dict[tuple[int, ...], Any] = {}
        of_more: dict[tuple[int, ...], Any] = {}
        for path, law in paths.items():
            for s in range(3):
                p, log_q = law[s], logs[path] + np.log(both[1][path[-1], s])
                if s == 2:
                    ended.append((length, p, log_q))
                else:
                    more[*path, s], of_more[*path, s] = p * both[0][s], log_q
        paths, logs = more, of_more
    n, p, log_q = np.array(ended).T
    assert p.sum() == pytest.approx(1, abs=1e-4)
    rtol = 2e-3  # what longer sequences than those enumerated would add
    same(SOURCE.mean_length(), p @ n, rtol)
    same(SOURCE.kl(MODEL), p @ (np.log(p) - log_q), rtol)
    assert SOURCE.kl(SOURCE) == 0.0


def test_letters_that_nothing_reaches_do_no_harm() -> None:
    """At the end of the letters or among them, never ended, or impossible to the model: they cost nothing."""
    last = MarkovSource([0.5, 0.3, 0.0, 0.2], [[0.1, 0.4, 0, 0.5], [0.25, 0.15, 0, 0.6], [0.0, 0, 1, 0]])
    middle = MarkovSource([0.5, 0, 0.3, 0.2], [[0.1, 0, 0.4, 0.5], [0.0, 1, 0, 0], [0.25, 0, 0.15, 0.6]])
    same(last.visits(), SOURCE.visits()[[0, 1, 1]] * [1, 1, 0], 1e-14)
    same(middle.visits(), SOURCE.visits()[[0, 0, 1]] * [1, 0, 1], 1e-14)
    same(last.mean_length(), SOURCE.mean_length(), 1e-14)
    rows: list[Any] = [[0.1, 0.4, 0, 0.5], [0.25, 0.15, 0, 0.6]]
    source, model = (
        MarkovSource([0.5, 0.3, 0.0, 0.2], [*rows, row]) for row in ([0, 0, 0.5, 0.5], [0, 0, 0, 1])
    )
    assert source.kl(model) == 0.0
    assert SOURCE.kl(MarkovSource([1.0, 0.0, 0.0], ROWS)) == np.inf


class Dice(np.random.Generator):
    """A generator whose numbers are all the same, and which does not let itself be asked for ever."""

    def __init__(self, number: float) -> None:
        super().__init__(np.random.PCG64(0))
        self.number, self.asked = number, 0

    def random(self, size: int) -> np.ndarray:  # type: ignore[override]
        self.asked += 1
        assert self.asked < 10
        return np.full(size, self.number)


def test_a_sample_is_the_inverse_of_the_cumulative_laws() -> None:
    g, steps = np.random.default_rng(5), np.random.default_rng(5)
    found, due = SOURCE.sample(g, 50), [[] for _ in range(50)]  # type: ignore[var-annotated]
    running = list(range(50))
    while running:
        draws = dict(zip(running, steps.random(len(running)), strict=True))
        for i, u in draws.items():
            law = SOURCE.transition[due[i][-1]] if due[i] else SOURCE.initial
            due[i].append(int(np.searchsorted(np.cumsum(law), u, side="right")))
        running = [i for i in running if due[i][-1] != 2]
    assert found == [path[:-1] for path in due]
    assert all(type(letter) is int for path in found for letter in path)
    # What is possible alone: the smallest number of all does not choose the letter 0, whose probability is zero;
    # the largest ones do not choose an <eos> of probability zero where a row sums to a little less than one.
    assert MarkovSource([0, 1, 0], [[0, 0, 1], [0, 0, 1]]).sample(Dice(0.0), 2) == [[1], [1]]
    assert MarkovSource([1 - 9e-7, 0.0], HALF).sample(Dice(1 - 1e-9), 2) == [[0], [0]]


def test_drawn_lengths_have_their_mean_and_size() -> None:
    lengths = GeometricSource(0.25).sample(np.random.default_rng(0), 100_000)
    assert lengths.min() == 1
    assert abs(lengths.mean() - 4) < 5 * np.sqrt(12 / 100_000)
    for size in (0, (), (2, 0), (2, 3)):
        drawn = COIN.sample(np.random.default_rng(0), size)
        assert drawn.shape == (size if isinstance(size, tuple) else (size,))


@pytest.mark.parametrize("backwards", [False, True])
def test_a_long_way_to_the_end_is_a_way(backwards: bool) -> None:
    """One letter after the other, in either order of their numbers: K letters, and each of them once."""
    order = np.arange(6)[::-1] if backwards else np.arange(6)
    rows = np.zeros((6, 7))
    rows[order[:-1], order[1:]] = 1.0
    rows[order[-1], -1] = 1.0
    source = MarkovSource(np.eye(7)[order[0]], rows)
    np.testing.assert_array_equal(source.visits(), np.ones(6))
    assert source.sample(Dice(0.5), 2) == [order.tolist()] * 2
    rows[order[-1]] = np.eye(7)[order[-1]]
    with pytest.raises(ValueError, match="no way from letter 0 to <eos>"):
        MarkovSource(np.eye(7)[order[0]], rows)


UNENDING = "transition: expected every sequence to end, got"
MANY = f"{UNENDING} rows under which the expected number of letters is"
TOGETHER: list[tuple[Callable[[], Any], str]] = [
    (lambda: MarkovSource([1, 0, 0], [[0.0, 0.5, 0.5], [0.0, 1, 0]]), f"{UNENDING} no way from letter 1 to <eos>"),
    (lambda: MarkovSource([1, 0], [[1.0, 1e-9]]), f"{MANY} inf"),
    (lambda: MarkovSource(np.array([1, 0]), [[1 + 2**-21, 2**-30]]), f"{MANY} -2.09715e+06"),
    (lambda: MarkovSource([0.5, 0.5], HALF * 2), "transition: expected shape (1, 2), a row for each letter of"),
    (lambda: SOURCE.kl(MarkovSource([0.5, 0.5], HALF)), "model: expected 2 letters, got 1"),
    (lambda: COIN.sample(np.random.default_rng(0), (10**5, 10**5)), "size: expected an integer up to 1e+09, got 1"),
    (lambda: length_weights([1, 2], probabilities=[[0.5, 0.5]]), "probabilities: expected shape (2,), that of"),
    (lambda: length_weights([[1]]), "lengths: expected shape (N,) with N >= 1, got (1, 1)"),
    (lambda: GeometricSource(0.5, 0), "letters: expected at least one letter, got 0"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "said"), TOGETHER)
def test_what_does_not_go_together_is_refused(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError) as caught:
        call()
    assert str(caught.value).startswith(said)
