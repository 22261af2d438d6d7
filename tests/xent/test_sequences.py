"""xent.sequences against mpmath, direct sums, exhaustive enumeration and convolution."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from xent import sequences
from xent.denominators import eos_optimum, length_weights, tilted_lengths
from xent.sequences import GeometricSource, MarkovSource

STOPS = [1e-8, 1e-4, 0.01, 0.1, 0.5, 0.99, 1 - 1e-9, 1.0]
BATCHES = [1, 2, 3, 8, 33, 128, 10**6]


# Computed once for all mutants of the package, on which it does not depend (they empty the other caches).
QUADRATURES: dict[tuple[float, int], mpmath.mpf] = {}


def _eos_optimum_by_quadrature(stop: float, batch_size: int) -> mpmath.mpf:
    """B int_0^inf E[e^{-t n}]^B dt, over log t, in 20 digits: no hypergeometric function in it."""
    with mpmath.workdps(20):
        beta = mpmath.mpf(stop)

        def term(x: mpmath.mpf) -> mpmath.mpf:
            t = mpmath.exp(x)
            return t * mpmath.exp(-batch_size * mpmath.log1p(mpmath.expm1(t) / beta))

        low = mpmath.log(beta / batch_size) - 60
        cuts = [low + 4 * k for k in range(int((5 - low) / 4) + 1)] + [mpmath.mpf(5)]
        return batch_size * mpmath.quad(term, cuts)


def _convolved_weights(law: np.ndarray, batch_size: int) -> np.ndarray:
    """w_B(n) for n = 1 .. len(law), from the exact law of the sum of the others."""
    total = np.array([1.0])
    for _ in range(batch_size - 1):
        total = np.convolve(total, np.concatenate([[0.0], law]))
    n = np.arange(1, len(law) + 1)
    return np.array([float((total / (k + np.arange(len(total)))).sum()) for k in n])


# ----------------------------------------------------------------------------------------- eos_optimum


@pytest.mark.parametrize("batch_size", BATCHES)
@pytest.mark.parametrize("stop", STOPS)
def test_eos_optimum_is_the_integral(stop: float, batch_size: int) -> None:
    if (stop, batch_size) not in QUADRATURES:
        QUADRATURES[stop, batch_size] = _eos_optimum_by_quadrature(stop, batch_size)
    expected = QUADRATURES[stop, batch_size]
    assert eos_optimum(stop, batch_size) == pytest.approx(float(expected), rel=2e-14, abs=0)


@pytest.mark.parametrize(("stop", "batch_size"), [(0.5, 1), (0.5, 7), (0.1, 3), (0.02, 2)])
def test_eos_optimum_is_the_mean_of_a_negative_binomial(stop: float, batch_size: int) -> None:
    others = np.arange(60_000)
    law = stats.nbinom.pmf(others, batch_size, stop)
    assert eos_optimum(stop, batch_size) == pytest.approx(
        float((law * batch_size / (batch_size + others)).sum()), rel=1e-11
    )


def test_eos_optimum_has_the_published_values() -> None:
    table = {
        (1, 0.5): 0.6931471806,
        (4, 0.1): 0.1275399573,
        (8, 0.01): 0.0114095994,
        (128, 0.5): 0.5019530654,
    }
    for (batch_size, stop), value in table.items():
        assert eos_optimum(stop, batch_size) == pytest.approx(value, abs=6e-11)


@given(st.floats(1e-6, 1.0), st.integers(2, 10**6))
def test_eos_optimum_keeps_its_bounds(stop: float, batch_size: int) -> None:
    bias = eos_optimum(stop, batch_size) / stop - 1
    assert (1 - stop) / (batch_size + 1) - 1e-14 <= bias <= (1 - stop) / (batch_size - 1) + 1e-14


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0.0, 1), ValueError, "stop: expected a probability in (0, 1]"),
        ((1.5, 1), ValueError, "stop: expected a probability in (0, 1]"),
        ((float("nan"), 1), ValueError, "stop"),
        (("a", 1), TypeError, "stop"),
        ((0.5, 0), ValueError, "batch_size: expected an integer >= 1, got 0"),
        ((0.5, 2.0), TypeError, "batch_size: expected an integer"),
        ((0.5, True), TypeError, "batch_size: expected an integer"),
    ],
)
def test_eos_optimum_refuses(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        eos_optimum(*arguments)
    assert message in str(caught.value)


# -------------------------------------------------------------------------------------- length weights


@pytest.mark.parametrize("batch_size", [1, 2, 3, 6, 20])
@pytest.mark.parametrize("kind", ["geometric", "two far apart", "constant", "random", "no short ones"])
def test_length_weights_agree_with_the_convolution(kind: str, batch_size: int) -> None:
    laws = {
        "geometric": 0.3 * 0.7 ** np.arange(80),
        "two far apart": np.where(np.isin(np.arange(300), [0, 299]), 0.5, 0.0),
        "constant": np.where(np.arange(12) == 11, 1.0, 0.0),
        "random": np.random.default_rng(0).dirichlet(np.full(40, 0.2)),
        "no short ones": np.where(np.arange(60) < 50, 0.0, 0.1),
    }
    law = laws[kind] / laws[kind].sum()
    found = length_weights(np.arange(1, len(law) + 1), batch_size, probabilities=law)
    np.testing.assert_allclose(found, _convolved_weights(law, batch_size), rtol=3e-14)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=4), st.integers(1, 4))
def test_length_weights_are_an_average_over_all_companions(lengths: list[int], batch_size: int) -> None:
    companions = [sum(c) for c in itertools.product(lengths, repeat=batch_size - 1)]
    expected = [np.mean([1 / (n + s) for s in companions]) for n in lengths]
    np.testing.assert_allclose(length_weights(lengths, batch_size), expected, rtol=3e-14)


def test_length_weights_for_large_batches() -> None:
    # With geometric lengths B E[w_B] is eos_optimum, which has another derivation.
    n = np.arange(1, 400)
    law = GeometricSource(0.1).length_probabilities(399)
    for batch_size in (1000, 10**6):
        mean = law @ length_weights(n, batch_size, probabilities=law)
        assert batch_size * mean == pytest.approx(eos_optimum(0.1, batch_size), rel=1e-12, abs=0)


def test_length_weights_at_extreme_lengths() -> None:
    lengths = [1, 10**6]
    expected = [(0.5 + 1 / (1 + 10**6)) / 2, (1 / (1 + 10**6) + 0.5e-6) / 2]
    np.testing.assert_allclose(length_weights(lengths, 2), expected, rtol=1e-13)


def test_entries_of_one_length_are_one_outcome() -> None:
    np.testing.assert_allclose(
        length_weights([3, 1, 3, 3], 5),
        length_weights([3, 1, 3], 5, probabilities=[0.5, 0.25, 0.25]).take([0, 1, 2, 2]),
        rtol=1e-15,
    )


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.integers(1, 3))
def test_the_tilted_mean_is_the_harmonic_mean_of_the_batch_mean(lengths: list[int], batch_size: int) -> None:
    means = [np.mean(batch) for batch in itertools.product(lengths, repeat=batch_size)]
    learnt = tilted_lengths(lengths, batch_size)
    assert learnt.sum() == pytest.approx(1)
    assert learnt @ np.array(lengths) == pytest.approx(1 / np.mean(1 / np.array(means)), rel=1e-13, abs=0)


def test_tilted_lengths_with_probabilities() -> None:
    np.testing.assert_allclose(
        tilted_lengths([1, 2, 4], probabilities=[0.5, 0.5, 0.0]), [2 / 3, 1 / 3, 0.0], rtol=1e-15
    )
    np.testing.assert_allclose(tilted_lengths([2, 2, 2], 9), np.full(3, 1 / 3), rtol=1e-15)


@pytest.mark.parametrize(
    ("arguments", "keywords", "error", "message"),
    [
        ((np.zeros(0, dtype=int),), {}, ValueError, "lengths: expected shape (N,)"),
        (([[1, 2]],), {}, ValueError, "lengths: expected shape (N,)"),
        (([1, 0],), {}, ValueError, "lengths: expected lengths >= 1, <eos> included, got 0 at index 1"),
        (([1.0, 2.0],), {}, TypeError, "lengths: expected integers"),
        (([True, False],), {}, TypeError, "lengths"),
        (([1, 2], 0), {}, ValueError, "batch_size"),
        (([1, 2],), {"probabilities": [1.0]}, ValueError, "probabilities: expected shape (2,)"),
        (([1, 2],), {"probabilities": [0.5, 0.4]}, ValueError, "probabilities"),
    ],
)
@pytest.mark.parametrize("function", [length_weights, tilted_lengths])
def test_lengths_are_checked(
    function: Any, arguments: Any, keywords: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        function(*arguments, **keywords)
    assert message in str(caught.value)


def test_hazards() -> None:
    law = GeometricSource(0.2).length_probabilities(200)
    np.testing.assert_allclose(sequences.hazards(law)[:50], 0.2, rtol=1e-12)
    np.testing.assert_array_equal(sequences.hazards([0.5, 0.5, 0.0]), [0.5, 1.0, np.nan])
    with pytest.raises(ValueError, match="one dimension"):
        sequences.hazards([[0.5, 0.5]])


# ------------------------------------------------------------------------------------- GeometricSource


@pytest.mark.parametrize("q", [0.05, 0.3, 0.7, 0.999])
@pytest.mark.parametrize(("stop", "letters"), [(0.5, 1), (0.5, 26), (0.07, 3), (0.9, 2)])
def test_the_geometric_source_is_its_sums(stop: float, letters: int, q: float) -> None:
    source = GeometricSource(stop, letters)
    n = np.arange(1, 2000)
    law = stop * (1 - stop) ** (n - 1)

    def surprise(r: float) -> np.ndarray:
        return -(np.log(r) + (n - 1) * np.log((1 - r) / letters))

    assert source.mean_length() == pytest.approx(law @ n, rel=1e-12, abs=0)
    assert source.squared_variation() == pytest.approx((law @ n**2) / (law @ n) ** 2 - 1, rel=1e-10, abs=0)
    assert source.harmonic_mean_length() == pytest.approx(1 / (law @ (1 / n)), rel=1e-12, abs=0)
    assert source.entropy() == pytest.approx(law @ surprise(stop), rel=1e-12, abs=0)
    assert source.cross_entropy(q) == pytest.approx(law @ surprise(q), rel=1e-12, abs=0)
    assert source.kl(q) == pytest.approx(law @ (surprise(q) - surprise(stop)), rel=1e-9, abs=1e-12)
    assert source.averaged_cross_entropy(q) == pytest.approx(law @ (surprise(q) / n), rel=1e-12, abs=0)
    tilted = (law / n) / (law / n).sum()
    np.testing.assert_allclose(source.tilted_lengths(1999), tilted, rtol=1e-11, atol=1e-300)
    np.testing.assert_allclose(source.tilted_hazards(30), sequences.hazards(tilted)[:30], rtol=1e-11)


def test_the_averaged_cross_entropy_of_a_batch() -> None:
    source, q, batch_size = GeometricSource(0.4, 5), 0.3, 3
    n = np.arange(0, 400)
    total = stats.nbinom.pmf(n, batch_size, 0.4)  # letters in the batch
    loss = -(batch_size * np.log(q) + n * np.log((1 - q) / 5)) / (n + batch_size)
    assert source.averaged_cross_entropy(q, batch_size) == pytest.approx(total @ loss, rel=1e-12, abs=0)
    assert source.harmonic_mean_length(batch_size) == pytest.approx(
        1 / (total @ (batch_size / (n + batch_size)))
    )


def test_the_ends_of_the_geometric_family() -> None:
    always = GeometricSource(1.0, 3)
    assert always.entropy() == 0.0
    assert always.cross_entropy(1.0) == 0.0
    assert always.kl(0.25) == pytest.approx(np.log(4))
    assert always.kl(0.0) == np.inf
    assert GeometricSource(0.5).cross_entropy(1.0) == np.inf
    assert GeometricSource(0.5).averaged_cross_entropy(0.0) == np.inf
    np.testing.assert_array_equal(always.tilted_lengths(3), [1.0, 0.0, 0.0])
    np.testing.assert_array_equal(always.tilted_hazards(2), [1.0, 1.0])


def test_the_geometric_sample_has_its_law() -> None:
    lengths = GeometricSource(0.25).sample(np.random.default_rng(0), 100_000)
    assert lengths.min() == 1
    assert abs(lengths.mean() - 4) < 5 * np.sqrt(12 / 100_000)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: GeometricSource(0.0), "stop"),
        (lambda: GeometricSource(0.5, 0), "letters: expected at least one letter"),
        (lambda: GeometricSource(0.5).kl(1.5), "q: expected a probability in [0, 1]"),
        (lambda: GeometricSource(0.5).length_probabilities(0), "n_max"),
    ],
)
def test_the_geometric_source_refuses(call: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        call()
    assert message in str(caught.value)


# ---------------------------------------------------------------------------------------- MarkovSource

SOURCE = MarkovSource([0.5, 0.3, 0.2], [[0.1, 0.4, 0.5], [0.25, 0.15, 0.6]])
MODEL = MarkovSource([0.4, 0.4, 0.2], [[0.3, 0.3, 0.4], [0.1, 0.2, 0.7]])


def _paths(source: MarkovSource, longest: int) -> list[tuple[tuple[int, ...], float]]:
    """Every sequence of at most `longest` letters, with its probability."""
    eos = len(source.initial) - 1
    found = [((), float(source.initial[eos]))]
    open_paths = [((s,), float(source.initial[s])) for s in range(eos)]
    for _ in range(longest):
        found += [(path, p * float(source.transition[path[-1], eos])) for path, p in open_paths]
        open_paths = [
            ((*path, s), p * float(source.transition[path[-1], s]))
            for path, p in open_paths
            for s in range(eos)
        ]
    return found


def _log_probability(source: MarkovSource, path: tuple[int, ...]) -> float:
    eos = len(source.initial) - 1
    rows = np.vstack([source.transition, source.initial])
    return float(np.log(rows[(eos, *path), (*path, eos)]).sum())


PATHS = _paths(SOURCE, 14)


def test_the_markov_source_is_the_sum_over_its_sequences() -> None:
    mass = sum(p for _, p in PATHS)
    assert mass == pytest.approx(1, abs=1e-4)
    tolerance = {"rel": 2e-3}  # what longer sequences than those enumerated would add
    assert SOURCE.mean_length() == pytest.approx(sum(p * (len(x) + 1) for x, p in PATHS), **tolerance)
    assert SOURCE.entropy() == pytest.approx(sum(-p * np.log(p) for _, p in PATHS), **tolerance)
    cross = sum(-p * _log_probability(MODEL, x) for x, p in PATHS)
    assert SOURCE.cross_entropy(MODEL) == pytest.approx(cross, **tolerance)
    assert SOURCE.kl(MODEL) == pytest.approx(SOURCE.cross_entropy(MODEL) - SOURCE.entropy(), rel=1e-12, abs=0)
    assert SOURCE.kl(SOURCE) == 0.0
    law = np.bincount([len(x) for x, _ in PATHS], weights=[p for _, p in PATHS])
    np.testing.assert_allclose(SOURCE.length_probabilities(15), law, rtol=1e-12)


def test_one_letter_is_the_geometric_source() -> None:
    chain, coin = MarkovSource([0.8, 0.2], [[0.8, 0.2]]), GeometricSource(0.2)
    model = MarkovSource([0.5, 0.5], [[0.5, 0.5]])
    assert chain.mean_length() == pytest.approx(coin.mean_length(), rel=1e-14, abs=0)
    assert chain.entropy() == pytest.approx(coin.entropy(), rel=1e-14, abs=0)
    assert chain.kl(model) == pytest.approx(coin.kl(0.5), rel=1e-13, abs=0)


def test_the_markov_sample_has_its_law() -> None:
    rng = np.random.default_rng(0)
    drawn = SOURCE.sample(rng, 40_000)
    counts = np.zeros((3, 3))  # the last row counts first tokens
    for path in drawn:
        np.add.at(counts, ([2, *path], [*path, 2]), 1)
    law = np.vstack([SOURCE.transition, SOURCE.initial])
    np.testing.assert_allclose(counts / counts.sum(axis=1, keepdims=True), law, atol=0.012)


def test_letters_that_nothing_reaches_do_no_harm() -> None:
    # Letter 2 is never reached and never ends.
    source = MarkovSource([0.5, 0.3, 0.0, 0.2], [[0.1, 0.4, 0, 0.5], [0.25, 0.15, 0, 0.6], [0, 0, 1, 0]])
    assert source.mean_length() == pytest.approx(SOURCE.mean_length(), rel=1e-14, abs=0)
    missing = MarkovSource([1.0, 0.0, 0.0], [[0.1, 0.4, 0.5], [0.25, 0.15, 0.6]])
    assert SOURCE.kl(missing) == np.inf


@pytest.mark.parametrize(
    ("initial", "transition", "message"),
    [
        ([1.0], [[1.0]], "initial: expected K + 1 >= 2 tokens"),
        ([0.5, 0.6], [[0.5, 0.5]], "initial"),
        ([0.5, 0.5], [[0.5, 0.6]], "transition"),
        ([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]], "transition: expected shape (1, 2)"),
        ([1.0, 0.0], [[1.0, 0.0]], "no way from letter 0 to <eos>"),
        ([1.0, 0.0, 0.0], [[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]], "no way from letter 1"),
    ],
)
def test_the_markov_source_refuses(initial: Any, transition: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        MarkovSource(initial, transition)
    assert message in str(caught.value)


def test_models_have_to_fit() -> None:
    with pytest.raises(ValueError, match="expected 2 letters, got 1"):
        SOURCE.kl(MarkovSource([0.8, 0.2], [[0.8, 0.2]]))
    with pytest.raises(TypeError, match="expected a MarkovSource"):
        SOURCE.kl(GeometricSource(0.5))  # type: ignore[arg-type]


# ------------------------------------------------------------------------- refusals, ends, and exact oracles

COIN = GeometricSource(0.5)
RNG = np.random.default_rng(0)
UNENDING = (
    "transition: expected every sequence to end, got rows under which the expected number of letters is"
)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: eos_optimum(2.0), ValueError, "stop: expected a probability in (0, 1], got 2.0"),
        (
            lambda: eos_optimum(1e-310),
            ValueError,
            "stop: expected a probability whose inverse is a float, got 1e-310",
        ),
        (lambda: eos_optimum(0.5, 0), ValueError, "batch_size: expected an integer >= 1, got 0"),
        (lambda: eos_optimum(0.5, "2"), TypeError, "batch_size: expected an integer, got '2'"),
        (
            lambda: eos_optimum(0.5, 10**12 + 1),
            ValueError,
            f"batch_size: expected an integer up to 1e+12, got {10**12 + 1}",
        ),
        (lambda: length_weights([[1]]), ValueError, "lengths: expected shape (N,) with N >= 1, got (1, 1)"),
        (
            lambda: length_weights([2, 0, -1]),
            ValueError,
            "lengths: expected lengths >= 1, <eos> included, got 0 at index 1",
        ),
        (
            lambda: length_weights(np.ones(1, np.float32)),
            TypeError,
            "lengths: expected integers, <eos> included, got dtype float64",
        ),
        (lambda: length_weights(["a"]), TypeError, "lengths: expected real numbers"),
        (
            lambda: length_weights([1, 2], probabilities=["a", "b"]),
            TypeError,
            "probabilities: expected real numbers",
        ),
        (
            lambda: length_weights([1, 2], probabilities=[0.5, 0.4]),
            ValueError,
            "probabilities: expected probabilities that sum to one along axis 0",
        ),
        (
            lambda: length_weights([1, 2], probabilities=[[0.5, 0.5]]),
            ValueError,
            "probabilities: expected shape (2,), that of lengths, got (1, 2)",
        ),
        (
            lambda: length_weights([1, 2], probabilities=[[0.5], [0.5]]),
            ValueError,
            "probabilities: expected probabilities that sum to one along axis 1",
        ),
        (
            lambda: sequences.hazards([0.5, 0.4]),
            ValueError,
            "probabilities: expected probabilities that sum to one along axis 0",
        ),
        (
            lambda: sequences.hazards([[0.5, 0.5]]),
            ValueError,
            "probabilities: expected one dimension, got shape (1, 2)",
        ),
        (lambda: GeometricSource("a"), TypeError, "stop: expected a probability in (0, 1], got 'a'"),
        (lambda: GeometricSource(0.5, 1.5), TypeError, "letters: expected an integer, got 1.5"),
        (lambda: GeometricSource(0.5, 0), ValueError, "letters: expected at least one letter, got 0"),
        (lambda: COIN.sample(RNG, -1), ValueError, "size: expected an integer >= 0, got -1"),
        (lambda: COIN.sample(RNG, (2, 0.5)), TypeError, "size: expected an integer, got 0.5"),
        (
            lambda: COIN.sample(RNG, (10**9 + 1, 0)),
            ValueError,
            f"size: expected an integer up to 1e+09, got {10**9 + 1}",
        ),
        (
            lambda: COIN.sample(RNG, (10**5, 10**5)),
            ValueError,
            f"size: expected an integer up to 1e+09, got {10**10}",
        ),
        (lambda: COIN.sample(0, 1), TypeError, "rng: expected a numpy.random.Generator, got int"),
        (lambda: COIN.length_probabilities(0), ValueError, "n_max: expected an integer >= 1, got 0"),
        (lambda: COIN.tilted_lengths(0), ValueError, "n_max: expected an integer >= 1, got 0"),
        (lambda: COIN.tilted_hazards(0), ValueError, "n_max: expected an integer >= 1, got 0"),
        (lambda: COIN.kl("a"), TypeError, "q: expected a probability in [0, 1], got 'a'"),
        (lambda: COIN.cross_entropy(1.5), ValueError, "q: expected a probability in [0, 1], got 1.5"),
        (lambda: COIN.averaged_cross_entropy(-1), ValueError, "q: expected a probability in [0, 1], got -1"),
        (lambda: COIN.averaged_cross_entropy(0.5, 0), ValueError, "batch_size: expected an integer >= 1"),
        (lambda: COIN.harmonic_mean_length(0), ValueError, "batch_size: expected an integer >= 1, got 0"),
        (
            lambda: MarkovSource([[0.5, 0.5]], [[0.5, 0.5]]),
            ValueError,
            "initial: expected one dimension, got shape (1, 2)",
        ),
        (
            lambda: MarkovSource([0.5, 0.4], [[0.5, 0.5]]),
            ValueError,
            "initial: expected probabilities that sum to one along axis 0",
        ),
        (
            lambda: MarkovSource([1.0], [[1.0]]),
            ValueError,
            "initial: expected K + 1 >= 2 tokens, <eos> last, got 1",
        ),
        (lambda: MarkovSource([0.5, 0.5], "a"), TypeError, "transition: expected real numbers"),
        (
            lambda: MarkovSource([0.5, 0.5], [[0.5, 0.5]] * 2),
            ValueError,
            "transition: expected shape (1, 2), a row for each letter of initial and <eos> last, got (2, 2)",
        ),
        (
            lambda: MarkovSource([0.5, 0.5], [[0.5, 0.4]]),
            ValueError,
            "transition: expected probabilities that sum to one along axis 1",
        ),
        (
            lambda: MarkovSource([1, 0, 0], [[0, 0.5, 0.5], [0, 1, 0]]),
            ValueError,
            "transition: expected every sequence to end, got no way from letter 1 to <eos>",
        ),
        (lambda: MarkovSource([1, 0], [[1.0, 1e-9]]), ValueError, f"{UNENDING} inf"),
        (
            lambda: MarkovSource(np.array([1, 0]), [[1 + 2**-21, 2**-30]]),
            ValueError,
            f"{UNENDING} -2.09715e+06",
        ),
        (lambda: SOURCE.sample(RNG, 0), ValueError, "size: expected an integer >= 1, got 0"),
        (lambda: SOURCE.sample(None, 1), TypeError, "rng: expected a numpy.random.Generator, got NoneType"),
        (lambda: SOURCE.length_probabilities(0), ValueError, "n_max: expected an integer >= 1, got 0"),
        (lambda: SOURCE.cross_entropy("a"), TypeError, "model: expected a MarkovSource, got str"),
        (
            lambda: SOURCE.kl(MarkovSource([0.8, 0.2], [[0.8, 0.2]])),
            ValueError,
            "model: expected 2 letters, got 1",
        ),
    ],
)
def test_a_refusal_names_its_argument_and_what_came(
    call: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value).startswith(message)


def test_the_ends_of_the_ranges_are_taken() -> None:
    assert COIN.sample(RNG, 0).shape == (0,)
    assert COIN.sample(RNG, ()).shape == ()
    assert COIN.sample(RNG, (2, 0)).shape == (2, 0)
    assert COIN.sample(RNG, (2, 3)).shape == (2, 3)
    assert len(SOURCE.sample(RNG, 1)) == 1
    assert COIN.length_probabilities(1).tolist() == [0.5]
    assert COIN.tilted_lengths(1).tolist() == [pytest.approx(0.5 / np.log(2), rel=1e-15, abs=0)]
    assert SOURCE.length_probabilities(1).tolist() == [0.2]


def test_a_source_shows_its_parameters() -> None:
    assert repr(GeometricSource(0.125, 3)) == "GeometricSource(stop=0.125, letters=3)"
    assert repr(SOURCE) == "MarkovSource(2 letters)"


def test_a_certain_end_is_exact() -> None:
    for batch_size in (1, 2, 3, 7, 100, 10**6, 10**12):
        assert eos_optimum(1.0, batch_size) == 1.0
        assert GeometricSource(1, 5).averaged_cross_entropy(1, batch_size) == 0.0


def _excess(stop: float, batch_size: int) -> mpmath.mpf:
    """2F1(1, 1; B + 1; 1 - beta), by which the optimum is larger than beta."""
    rest = 1 - mpmath.mpf(stop)
    if batch_size == 1:  # where mpmath's function divides by zero
        return -mpmath.log(stop) / rest
    if batch_size < 10**6:
        return mpmath.hyp2f1(1, 1, batch_size + 1, rest)
    # Where mpmath takes another series, which hardly converges. Of this one, a few terms do.
    total = term = mpmath.mpf(1)
    for k in range(1, 12):
        term *= rest * k / (batch_size + k)
        total += term
    return total


SIZES = (1, 2, 3, 10, 100, 10**6, 10**9, 10**12)


@pytest.mark.parametrize("stop", [1e-308, 1e-305, 1e-295, 1e-250, 1e-100, 1e-8, 0.25, 0.99, 1 - 2**-53])
def test_eos_optimum_to_the_last_digits(stop: float) -> None:
    with mpmath.workdps(50):
        for batch_size in SIZES:
            with np.errstate(all="raise"):
                found = eos_optimum(stop, batch_size)
            # Half a unit of rounding in the result, and the sum's own; two in the last place were seen.
            assert abs(found / (stop * _excess(stop, batch_size)) - 1) < 4 * np.finfo(float).eps, batch_size
            assert stop <= found <= 1, batch_size  # not a rounding below the truth


def test_the_extreme_ends_of_the_arguments() -> None:
    assert GeometricSource(1e-308).mean_length() == pytest.approx(1e308)
    # What is left of the bias is of the order of one in a batch.
    most, close = 10**12, {"rel": 4e-12, "abs": 0}
    assert length_weights([1, 2**53], most) * most == pytest.approx([2**-52] * 2, **close)
    assert length_weights([1, 3], most) * most == pytest.approx([0.5, 0.5], **close)
    assert tilted_lengths([1, 3], most) == pytest.approx([0.5, 0.5], **close)


@pytest.mark.parametrize("stop", [1e-300, 1e-100, 1e-8, 0.5, 0.99, 1.0])
def test_tilted_hazards_at_any_stop(stop: float) -> None:
    # The first is P(1) of the logarithmic law, in closed form; the others follow from it.
    first = 1.0 if stop == 1 else float(mpmath.mpf(1 - stop) / -mpmath.log(stop))
    assert GeometricSource(stop).tilted_hazards(1) == pytest.approx([first], rel=5e-15, abs=0)
    left, expected = mpmath.mpf(1), []
    with mpmath.workdps(60):
        for n in range(1, 6):
            p = mpmath.mpf(n == 1) if stop == 1 else (1 - mpmath.mpf(stop)) ** n / (-n * mpmath.log(stop))
            expected.append(float(p / left) if left else 1.0)
            left -= p
    np.testing.assert_allclose(GeometricSource(stop).tilted_hazards(5), expected, rtol=5e-15)


def test_a_divergence_whose_ratio_no_float_holds() -> None:
    # 1/q overflows; with q and 1 - q the terms are beta log(beta/q) and (1 - beta) log(1 - beta).
    q = 1e-310
    expected = (0.5 * (np.log(0.5) - np.log(q)) + 0.5 * np.log(0.5)) / 0.5
    assert COIN.kl(q) == pytest.approx(expected, rel=1e-13, abs=0)
    source = MarkovSource([0.5, 0.5], [[0.5, 0.5]])
    far = MarkovSource([q, 1.0], [[0.5, 0.5]])
    expected = 0.5 * (np.log(0.5) - np.log(q)) + 0.5 * np.log(0.5)
    assert source.kl(far) == pytest.approx(expected, rel=1e-13, abs=0)


# ------------------------------------------------------------------------------------ the chain, step by step


class Dice(np.random.Generator):
    """A generator whose numbers are all the same, and which does not let itself be asked for ever."""

    def __init__(self, number: float) -> None:
        super().__init__(np.random.PCG64(0))
        self.number, self.asked = number, 0

    def random(self, size: int) -> np.ndarray:  # type: ignore[override]
        self.asked += 1
        assert self.asked < 10
        return np.full(size, self.number)


def test_a_sample_draws_what_is_possible_alone() -> None:
    # The smallest number of all does not choose the letter 0, whose probability is zero.
    assert MarkovSource([0, 1, 0], [[0, 0, 1], [0, 0, 1]]).sample(Dice(0.0), 2) == [[1], [1]]
    # The largest ones do not choose an <eos> of probability zero where a row sums to a little less than one.
    assert MarkovSource([1 - 9e-7, 0.0], [[0.5, 0.5]]).sample(Dice(1 - 1e-9), 2) == [[0], [0]]


def test_a_sample_is_the_inverse_of_the_cumulative_laws() -> None:
    rng, steps = np.random.default_rng(5), np.random.default_rng(5)
    found, expected = SOURCE.sample(rng, 50), [[] for _ in range(50)]  # type: ignore[var-annotated]
    running = list(range(50))
    while running:
        draws = dict(zip(running, steps.random(len(running)), strict=True))
        for i, u in draws.items():
            law = SOURCE.transition[expected[i][-1]] if expected[i] else SOURCE.initial
            expected[i].append(int(np.searchsorted(np.cumsum(law), u, side="right")))
        running = [i for i in running if expected[i][-1] != 2]
    assert found == [path[:-1] for path in expected]
    assert all(type(letter) is int for path in found for letter in path)


def test_the_chain_is_its_linear_equations() -> None:
    inner, first = SOURCE.transition[:, :-1], SOURCE.initial[:-1]
    visits = sum(first @ np.linalg.matrix_power(inner, k) for k in range(200))
    np.testing.assert_allclose(SOURCE.visits(), visits, rtol=1e-13)
    assert SOURCE.mean_length() == pytest.approx(1 + float(np.sum(visits)), rel=1e-14, abs=0)

    def cross(p: np.ndarray, q: np.ndarray) -> Any:
        return -(p * np.log(q)).sum(axis=-1)

    for model, found in ((SOURCE, SOURCE.entropy()), (MODEL, SOURCE.cross_entropy(MODEL))):
        rows = cross(SOURCE.transition, model.transition)
        assert found == pytest.approx(cross(SOURCE.initial, model.initial) + visits @ rows, rel=1e-13, abs=0)


def test_what_is_never_reached_costs_nothing_however_impossible() -> None:
    rows = [[0.1, 0.4, 0, 0.5], [0.25, 0.15, 0, 0.6], [0, 0, 0.5, 0.5]]
    source = MarkovSource([0.5, 0.3, 0.0, 0.2], rows)
    model = MarkovSource([0.5, 0.3, 0.0, 0.2], [*rows[:2], [0, 0, 0, 1]])
    assert source.kl(model) == 0.0
    assert source.cross_entropy(model) == pytest.approx(SOURCE.entropy(), rel=1e-14, abs=0)
    np.testing.assert_array_equal(source.visits()[2], 0.0)
    # And in the middle of the letters.
    swapped = MarkovSource([0.5, 0, 0.3, 0.2], [[0.1, 0, 0.4, 0.5], [0, 1, 0, 0], [0.25, 0, 0.15, 0.6]])
    np.testing.assert_allclose(swapped.visits(), SOURCE.visits()[[0, 0, 1]] * [1, 0, 1], rtol=1e-14)


@pytest.mark.parametrize("backwards", [False, True])
def test_a_long_way_to_the_end_is_a_way(backwards: bool) -> None:
    # One letter after the other, in either order of their numbers: K letters, and each of them once.
    order = np.arange(6)[::-1] if backwards else np.arange(6)
    rows = np.zeros((6, 7))
    rows[order[:-1], order[1:]] = 1.0
    rows[order[-1], -1] = 1.0
    source = MarkovSource(np.eye(7)[order[0]], rows)
    np.testing.assert_array_equal(source.visits(), np.ones(6))
    assert source.sample(Dice(0.5), 2) == [order.tolist()] * 2
    stuck = rows.copy()
    stuck[order[-1]] = np.eye(7)[order[-1]]
    with pytest.raises(ValueError, match="no way from letter 0 to <eos>"):
        MarkovSource(np.eye(7)[order[0]], stuck)


def test_companions_of_another_length_weigh_exactly() -> None:
    # The short length is next to impossible: nearly all companions have the long one.
    for rare in (1e-3, 1e-4, 1e-9, 1e-30):
        lengths, law = [1, 50], [rare, 1 - rare]
        expected = [
            sum(float(stats.binom.pmf(k, 4, rare)) / (n + k + 50 * (4 - k)) for k in range(5))
            for n in lengths
        ]
        np.testing.assert_allclose(length_weights(lengths, 5, probabilities=law), expected, rtol=1e-13)
    # A length of no probability at all has a weight, and is no companion.
    np.testing.assert_allclose(
        length_weights([1, 7, 9], 3, probabilities=[0.0, 1.0, 0.0]), [1 / 15, 1 / 21, 1 / 23], rtol=1e-13
    )
