"""The transformer on a checkable reward: what it draws from, what its steps are, where its record says it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adversary import refuted
from experiments.denominators import rewards
from experiments.shared import Transformer

torch = pytest.importorskip("torch")

RECORD = json.loads((Path(rewards.__file__).parent / "rewards.json").read_text())
RUNS: list[dict[str, Any]] = RECORD["runs"]


def runs(divisor: str, start: float) -> list[dict[str, Any]]:
    return [
        run
        for run in RUNS
        if run["divisor"] == divisor and run["start"] == start and run["seed"] != rewards.TUNING
    ]


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    return Transformer(rewards.END + 1, rewards.SETTINGS).double()


def test_the_replies_of_a_prompt_are_all_replies(model: Any) -> None:
    """The probabilities add up to one, and are those of decoding token by token."""
    now = rewards.policy(model)
    joint = (now.answers[:, :, None] + now.lengths).exp()
    torch.testing.assert_close(joint.sum((1, 2)), torch.ones(16).double(), rtol=1e-12, atol=0)
    a, b, answer, length = 3, 2, 1, 5
    text, log = [a, b], 0.0
    for token in [answer, *[rewards.FILLER] * (length - 2), rewards.END]:
        logits = model(torch.tensor([text]))[0][0, -1]
        allowed = list(range(4)) if len(text) == 2 else [rewards.FILLER, rewards.END]
        log += logits[allowed].log_softmax(0)[allowed.index(token)]
        text.append(token)
    expected = joint[4 * a + b, answer, length - 2].log()
    torch.testing.assert_close(log, expected, rtol=1e-10, atol=0)
    assert rewards.RIGHT[4 * a + b].tolist() == [False, True, False, False]


@pytest.mark.parametrize("divisor", rewards.HELD)
def test_the_held_end_is_an_end(divisor: str) -> None:
    """Any first policy: at the foretold end all replies to a prompt are pushed alike, and elsewhere they are not."""
    first = torch.randn(16, 4 * len(rewards.LENGTHS), generator=torch.Generator().manual_seed(1)).double()
    first = first.log_softmax(1)
    found = rewards.held(first, divisor)
    reward = rewards.RIGHT.double().repeat_interleave(len(rewards.LENGTHS), 1)
    by = rewards.LENGTHS.double().repeat(4) if divisor.startswith("reply") else torch.tensor(8.0)
    logs = first.clone()
    for _ in range(20_000):  # the tabular natural gradient, which needs no formula for its end
        chance = logs.softmax(1)
        p = (chance * reward).sum(1, keepdim=True)
        logs = logs + 0.05 * ((reward - p) / by - rewards.PENALTY * (logs.log_softmax(1) - first))
    walked = rewards.summary(logs.softmax(1))
    assert found == pytest.approx(walked, rel=1e-3)
    with refuted("another divisor"):
        other = next(name for name in rewards.HELD if name != divisor)
        assert rewards.held(first, other) == pytest.approx(walked, rel=1e-3)


@pytest.mark.claim("11", "With the penalty the transformer ends where the table does.")
@pytest.mark.parametrize("start", rewards.STARTS)
@pytest.mark.parametrize("divisor", rewards.HELD)
def test_a_held_policy_ends_where_foretold(divisor: str, start: float) -> None:
    """Both divisors, both starts: success and lengths within a hundredth of what is foretold.

    Would be refuted by a run that ends where the other divisor does, or where it began.
    """
    found = runs(divisor, start)
    assert found
    law = torch.where(rewards.RIGHT, start, (1 - start) / 3).double().log()[:, :, None] + rewards.LAW.log()
    for run in found:
        assert run["looks"][-1] == pytest.approx(run["foretold"], rel=0.01)
        with refuted("where it began"):
            assert run["looks"][0] == pytest.approx(run["foretold"], rel=0.01)
        # The first policy of the run is nearly the law that it was taught.
        assert run["foretold"] == pytest.approx(rewards.held(law.flatten(1), divisor), rel=0.03)


@pytest.mark.claim(
    "11",
    "Under expected steps a constant should have kept these lengths, but they shrank to between 4.3 and "
    "6.1 tokens; dividing by each reply's length should have reduced them, but they grew in four of "
    "eight runs.",
)
@pytest.mark.claim(
    "11",
    "with each reply's length they ended longer than right ones in all eight runs, and with a constant "
    "in one.",
)
@pytest.mark.claim(
    "11",
    "With drawn replies and the rate that learns fastest, right replies ended at 2.4 to 35 tokens, under each divisor "
    "some longer than at first and some shorter.",
)
def test_nothing_holds_a_free_policy() -> None:
    """Every run of the record.

    Would be refuted by a constant whose lengths keep, by right replies that each reply shortens, by wrong ones
    that outgrow them in another number of runs, or by a divisor whose drawn lengths all move one way.
    """
    walks = {
        name: [run["looks"] for start in rewards.STARTS for run in runs(f"{name}, expected", start)]
        for name in ("constant", "reply")
    }
    free, tilted = ([looks[-1] for looks in walks[name]] for name in ("constant", "reply"))
    assert len(free) == len(tilted) == 8

    def shrank(looks: list[dict[str, float]]) -> None:
        assert [round(f(look["right"] for look in looks), 1) for f in (min, max)] == [4.3, 6.1]

    def wrong_is_longer(looks: list[dict[str, float]], count: int) -> None:
        assert sum(look["wrong"] > look["right"] for look in looks) == count

    def grew(name: str, count: int) -> None:
        assert sum(looks[-1]["right"] > looks[0]["right"] for looks in walks[name]) == count

    shrank(free)
    with refuted("kept lengths"):
        shrank([look | {"right": 8.0} for look in free])
    grew("constant", 0)
    grew("reply", 4)
    with refuted("right replies that each reply shortens, as was foretold"):
        grew("reply", 0)
    wrong_is_longer(tilted, 8)
    wrong_is_longer(free, 1)
    with refuted("a constant that does the same"):
        wrong_is_longer(free, 8)
    drawn = []
    for divisor in rewards.DIVISORS:
        ends = [run["looks"][-1]["right"] for start in rewards.STARTS for run in runs(divisor, start)]
        assert len(ends) == 8
        starts = [run["looks"][0]["right"] for start in rewards.STARTS for run in runs(divisor, start)]
        changes = np.subtract(ends, starts)
        assert changes.min() < 0 < changes.max()
        drawn += ends
    assert (round(min(drawn), 1), round(max(drawn))) == (2.4, 35)


def test_a_run_learns_to_add(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty expected steps raise the success, and the looks start with the first policy."""
    monkeypatch.setattr(rewards, "STEPS", 20)
    monkeypatch.setattr(rewards, "LOOKS", 2)
    torch.manual_seed(0)
    taught = Transformer(rewards.END + 1, rewards.SETTINGS)
    monkeypatch.setattr(rewards, "first_policy", lambda start, seed: taught)
    looks = rewards.train("constant, expected", 0.3, 1e-3, 0)["looks"]
    assert len(looks) == 3
    assert looks[0] == rewards.look(taught)
    assert np.all(np.diff([look["success"] for look in looks]) > 0)
