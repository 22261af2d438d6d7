"""`learnt_lengths` against every batch there is, against a model trained on them, and on what it has to refuse."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from xent.denominators import learnt_lengths, tilted_lengths


def enumerated(lengths: list[int], size: int, prompts: list[Any]) -> np.ndarray:
    """Add up each entry's share of the divisor over all batches, and normalise within its prompt."""
    weight = np.zeros(len(lengths))
    for batch in itertools.product(range(len(lengths)), repeat=size):
        for entry in batch:
            weight[entry] += 1 / sum(lengths[other] for other in batch)
    own = np.array(prompts)[:, None] == np.array(prompts)
    return np.asarray(weight / (own @ weight))


ENTRIES = st.lists(
    st.tuples(st.integers(1, 60) | st.sampled_from([1, 10**6]), st.sampled_from("abc")),
    min_size=1,
    max_size=5,
)


@settings(deadline=None, max_examples=60)
@given(ENTRIES, st.integers(1, 4))
def test_every_batch(entries: list[tuple[int, str]], size: int) -> None:
    lengths, prompts = [n for n, _ in entries], [c for _, c in entries]
    learnt = learnt_lengths(lengths, size, prompts)
    np.testing.assert_allclose(learnt, enumerated(lengths, size, prompts), rtol=1e-13)
    np.testing.assert_allclose(learnt_lengths(lengths, size), tilted_lengths(lengths, size), rtol=1e-14)


@settings(deadline=None, max_examples=40)
@given(ENTRIES, st.sampled_from([1, 2, 7, 10**3, 10**12]), st.randoms(use_true_random=False))
def test_what_has_to_hold_for_any_data(entries: list[tuple[int, str]], size: int, random: Any) -> None:
    """Sums of one; no mean above the data's; names and order of the prompts say nothing."""
    lengths, prompts = np.array([n for n, _ in entries]), np.array([c for _, c in entries])
    learnt = learnt_lengths(lengths, size, prompts)
    for prompt in set(prompts):
        own = prompts == prompt
        assert learnt[own].sum() == pytest.approx(1, rel=1e-14)
        assert learnt[own] @ lengths[own] <= lengths[own].mean() * (1 + 1e-13)
    numbers = [7 - "abc".index(p) * 10**20 for p in prompts]  # some beyond 64 bits
    np.testing.assert_array_equal(learnt_lengths(lengths, size, numbers), learnt)
    order = random.sample(range(len(lengths)), len(lengths))
    np.testing.assert_allclose(
        learnt_lengths(lengths[order], size, prompts[order]), learnt[order], rtol=1e-13
    )
    if size == 10**12:
        np.testing.assert_allclose(learnt, [1 / (prompts == p).sum() for p in prompts], rtol=1e-5)


@pytest.mark.parametrize(
    ("size", "means"), [(1, (9.9, 99.0)), (2, (9.9561, 99.2348)), (4, (9.9865, 99.5251))]
)
def test_a_model_that_is_trained(size: int, means: tuple[float, float]) -> None:
    """A logit of the end for each prompt and position, PyTorch's mean over every batch there is, and L-BFGS."""
    lengths, prompts = np.array([9, 11, 90, 110]), [0, 0, 1, 1]
    stop = torch.zeros(2, 110, dtype=torch.float64, requires_grad=True)
    batches = list(itertools.combinations_with_replacement(range(4), size))
    times = [len(set(itertools.permutations(batch))) for batch in batches]
    optimiser = torch.optim.LBFGS([stop], max_iter=300, history_size=30, line_search_fn="strong_wolfe",
                                  tolerance_grad=1e-10, tolerance_change=0)  # fmt: skip

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        for batch, count in zip(batches, times, strict=True):
            logits = torch.cat([stop[prompts[k], : lengths[k]] for k in batch])
            ends = torch.cat([F.one_hot(torch.tensor(n - 1), n) for n in lengths[list(batch)]])
            total = total + count / 4**size * F.binary_cross_entropy_with_logits(logits, ends.double())
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimiser.step(loss)
    hazard = torch.sigmoid(stop).detach().numpy()
    going = np.cumprod(np.hstack([np.ones((2, 1)), 1 - hazard]), axis=1)
    written = (going[:, :-1] * hazard)[prompts, lengths - 1]
    learnt = learnt_lengths(lengths, size, prompts)
    np.testing.assert_allclose(written, learnt, atol=2e-4)
    by_prompt = (learnt * lengths).reshape(2, 2).sum(axis=1)
    np.testing.assert_allclose(by_prompt, means, atol=5e-4)
    assert 54.4 < by_prompt.mean() < 55  # without prompts 18.0, 27.2 and 40.5


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((np.zeros(0, int), 1), ValueError, "lengths: expected shape (N,) with N >= 1"),
        (([0, 3], 1), ValueError, "lengths: expected lengths >= 1, <eos> included, got 0 at index 0"),
        (([2.0, 3.0], 1), TypeError, "lengths: expected integers"),
        ((["2", "3"], 1), TypeError, "lengths: "),
        (([2, 3], 0), ValueError, "batch_size: expected an integer >= 1, got 0"),
        (([2, 3], 10**12 + 1), ValueError, "batch_size: expected an integer up to 1e+12"),
        (([2, 3], 1.5), TypeError, "batch_size: "),
        (([2, 3], 1, ["a"]), ValueError, "prompts: expected shape (2,), one for each of lengths, got (1,)"),
        (([2, 3], 1, "ab"), ValueError, "prompts: expected shape (2,)"),
        (([2, 3], 1, [["a"], ["b"]]), ValueError, "prompts: expected shape (2,)"),
        (([2, 3], 1, [1.0, 2.0]), TypeError, "prompts: expected integers or texts, got 1.0 at index 0"),
        (([2, 3], 1, np.array(["a", None], object)), TypeError, "got None at index 1"),
        (([2, 3], 1, np.array(["a", np.nan], object)), TypeError, "got nan at index 1"),
        (([2, 3], 1, [True, False]), TypeError, "prompts: expected integers or texts"),
        (([2, 3], 1, [1, True]), TypeError, "got True at index 1"),
        (([2, 3], 1, ["a", np.nan]), TypeError, "got nan at index 1"),
    ],
)  # fmt: skip
def test_refused(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        learnt_lengths(*arguments)
    assert message in str(caught.value)


def test_one_length_or_one_answer_has_nothing_to_tilt() -> None:
    assert learnt_lengths([7], 1).tolist() == [1.0]
    assert learnt_lengths([7, 7], 3, ["a", "a"]).tolist() == [0.5, 0.5]
    assert learnt_lengths([3, 900], 1, np.array(["a", "b"], object)).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "prompts", [[1, "1", 1], [2**63, 1, 2**63], ["a", "a\0", "a"], [np.int64(1), np.str_("1"), 1]]
)
def test_the_prompts_of_a_list_are_taken_as_they_are(prompts: Any) -> None:
    np.testing.assert_allclose(learnt_lengths([1, 3, 2], 1, prompts), [2 / 3, 1, 1 / 3])
