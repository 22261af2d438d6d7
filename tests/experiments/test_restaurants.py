"""The restaurants' experiment: its weights are those of a loop, its texts those of the model, its slots are found."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from experiments.restaurants.data import SLOTS, Data, Pair, slots_missed, terse
from experiments.restaurants.denominators import groups, lengths_of, weights, within
from experiments.restaurants.model import Describer, log_probs, losses_of, speak, summed

MEANING = ("NAME", "pub", "French", "cheap", "", "riverside", "yes", "NEAR")
OTHER = ("NAME", "", "", "", "low", "", "", "")


def small() -> tuple[Data, Describer]:
    """A model of seven words, and pairs of many lengths, a few to a meaning."""
    rng = np.random.default_rng(0)
    texts = [(*rng.integers(2, 7, n).tolist(), 0) for n in range(1, 65)]
    pairs = [Pair(MEANING if i % 3 else OTHER, text) for i, text in enumerate(texts)]
    data = Data(pairs, pairs, pairs, ["<eos>", "<unk>", *"abcde"])
    torch.manual_seed(0)
    return data, Describer(data, width=8, layers=1)


@pytest.mark.parametrize("arm", ["B=1", "B=4", "B=64", "bucketed", "packed"])
def test_a_step_is_that_of_a_loop(arm: str) -> None:
    data, model = small()
    parts, weight = groups(lengths_of(data.train), arm), weights(lengths_of(data.train), arm, 1.0)
    assert sorted(i for part in parts for i in part) == list(range(64))
    loss = summed(model, data.train) @ torch.from_numpy(weight).float()
    found = torch.autograd.grad(loss, [*model.parameters()])
    means = []
    for part in parts:
        log_q, targets = log_probs(model, [data.train[i] for i in part])
        means.append(F.nll_loss(log_q.mT, targets, ignore_index=-100))
    due = torch.autograd.grad(torch.stack(means).mean(), [*model.parameters()])
    for one, other in zip(found, due, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_what_is_drawn_follows_the_model() -> None:
    """The mean loss of texts that the model has drawn is its entropy, by another draw of them."""
    _, model = small()
    lengths, losses = [], []
    for seed in (0, 1):
        texts = speak(model, [MEANING] * 4000, seed, longest=60)
        assert all(text[-1] == 0 or len(text) == 60 for text in texts)
        ended = [Pair(MEANING, tuple(text)) for text in texts if text[-1] == 0]
        lengths.append(lengths_of(ended).mean())
        losses.append(losses_of(model, ended).mean())
    # The share of texts of one word is the probability of their words.
    short = [t for t in texts if len(t) == 1]
    [chance] = np.exp(-losses_of(model, [Pair(MEANING, (0,))]))
    assert abs(len(short) / 4000 - chance) < 4 * np.sqrt(chance * (1 - chance) / 4000)
    assert abs(lengths[0] - lengths[1]) < 0.1 * lengths[0] and abs(losses[0] - losses[1]) < 0.1 * losses[0]


def test_a_tilt_within_a_meaning() -> None:
    pairs = [Pair(MEANING, (2,) * n + (0,)) for n in (1, 3)] * 4
    rows, counts = within(pairs, 1.0 / lengths_of(pairs))
    assert counts.tolist() == [8]
    np.testing.assert_allclose(rows[0], [3.0, 8 / 3, 0, 0])


def test_slots() -> None:
    said = " ".join(terse(MEANING))
    assert said == "NAME : french pub , riverside ." and " ".join(terse(OTHER)) == "NAME : place ."
    assert len(MEANING) == len(SLOTS)
    # Name, neighbour, kind, food, area and families can be looked for.
    assert slots_missed(MEANING, said) == (2, 6)
    for food, missed in (("french", 0), ("indian and french", 1)):
        told = f"NAME , near NEAR , is a family pub with {food} food by the river ."
        assert slots_missed(MEANING, told) == (missed, 6)
