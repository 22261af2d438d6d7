"""The transformer on a checkable reward: what it draws from, what its steps are, where a held one ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from adversary import refuted
from experiments.denominators import rewards
from experiments.shared import Transformer


def test_the_replies_of_a_prompt_are_all_replies() -> None:
    """The probabilities add up to one, and are those of decoding token by token."""
    torch.manual_seed(0)
    model = Transformer(rewards.END + 1, rewards.SETTINGS).double()
    now = rewards.policy(model)
    joint = (now.answers[:, :, None] + now.lengths).exp()
    torch.testing.assert_close(joint.sum((1, 2)), torch.ones(16).double(), rtol=1e-12, atol=0)
    a, b, answer, length = 3, 2, 1, 5
    text, log = [a, b], torch.zeros((), dtype=torch.float64)
    for token in [answer, *[rewards.FILLER] * (length - 2), rewards.END]:
        allowed = list(range(4)) if len(text) == 2 else [rewards.FILLER, rewards.END]
        log = log + model(torch.tensor([text]))[0][0, -1][allowed].log_softmax(0)[allowed.index(token)]
        text.append(token)
    torch.testing.assert_close(log, joint[4 * a + b, answer, length - 2].log(), rtol=1e-10, atol=0)
    assert rewards.RIGHT[4 * a + b].tolist() == [False, True, False, False]


@pytest.mark.parametrize("divisor", rewards.HELD)
def test_the_held_end_is_an_end(divisor: str) -> None:
    """Any first policy: the tabular natural gradient, which needs no formula for its end, walks there."""
    first = torch.randn(16, 4 * len(rewards.LENGTHS), generator=torch.Generator().manual_seed(1)).double()
    first = first.log_softmax(1)
    reward = rewards.RIGHT.double().repeat_interleave(len(rewards.LENGTHS), 1)
    by = rewards.LENGTHS.double().repeat(4) if divisor.startswith("reply") else torch.tensor(8.0)
    logs = first.clone()
    for _ in range(20_000):
        p = (logs.softmax(1) * reward).sum(1, keepdim=True)
        logs = logs + 0.05 * ((reward - p) / by - rewards.PENALTY * (logs.log_softmax(1) - first))
    walked = rewards.summary(logs.softmax(1))
    assert rewards.held(first, divisor) == pytest.approx(walked, rel=1e-3)
    with refuted("another divisor"):
        other = next(name for name in rewards.HELD if name != divisor)
        assert rewards.held(first, other) == pytest.approx(walked, rel=1e-3)


def test_a_run_learns_to_add(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty expected steps raise the success, and the looks start with the first policy."""
    torch.manual_seed(0)
    taught: Any = Transformer(rewards.END + 1, rewards.SETTINGS)
    for name, value in {"STEPS": 20, "LOOKS": 2, "first_policy": lambda start, seed: taught}.items():
        monkeypatch.setattr(rewards, name, value)
    looks = rewards.train("constant, expected", 0.3, 1e-3, 0)["looks"]
    assert len(looks) == 3 and looks[0] == rewards.look(taught)
    assert np.all(np.diff([look["success"] for look in looks]) > 0)
