"""A transformer trained on a checkable reward, with three divisors. Writes rewards.json.

    python -m experiments.denominators.rewards {tune | run | expected | held} FOLDER

A prompt is two digits below four; the reply is a digit, some fillers and <eos>; the reward is one if the digit is the
sum of the two modulo four, and does not look at the length. The first policy is the transformer after supervised
training: its digit is right with the probability of the arm, and a reply has 2 tokens or more, 8 on average, whether
right or wrong. Then it takes policy-gradient steps on its own replies, 8 to a prompt, all prompts in a step, with the
reward less its group's mean as the advantage. The divisors: each reply's length (GRPO's mean), the mean length of the
step (the token mean), a constant. Decoding is held to the form of a reply, so that its distribution can be added up
over all replies, drawn from, and reported without sampling. Adam; each arm's rate is the one of three with the
highest success rate on average over the steps, on a seed of its own. An hour on one core. rewards_prediction.md has
what was foretold before each design, and what became of it.

Two more designs follow from it: `expected` takes the expected step, over all replies in the place of drawn ones, at
the middle rate; `held` adds a penalty of .05 times the divergence from the first policy, undivided, which leaves one
end, and a rate that falls to 0.
"""

from __future__ import annotations

import itertools
import sys
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.shared import Settings, Transformer, made, records, store, write

HERE = Path(__file__).parent
DIGITS, FILLER, END = 4, 4, 5
LONGEST, MEAN = 48, 8  # tokens of a reply; the longest has to stop
GROUP = 8  # replies to a prompt
STEPS, HELD_STEPS, LOOKS = 400, 2400, 40
SETTINGS = Settings(layers=2, width=64, heads=2, orders=(1,), buckets=1, dropout=0.0)
STARTS = (0.3, 0.7)  # the share of right answers at first
DIVISORS = ("reply", "step", "constant")
EXPECTED = ("reply, expected", "constant, expected")
HELD = ("reply, held", "constant, held")
PENALTY = 0.05
RATES = (1e-4, 3e-4, 1e-3)
SEEDS, TUNING = range(4), 1000

LENGTHS = torch.arange(2, LONGEST + 1)
LAW = (1 - 1 / (MEAN - 1)) ** (LENGTHS - 2.0) / (MEAN - 1)
LAW = torch.cat([LAW[:-1], 1 - LAW[:-1].sum(0, keepdim=True)])

a, b, answer = torch.cartesian_prod(*[torch.arange(DIGITS)] * 3).T
RIGHT = ((a + b) % DIGITS == answer).reshape(-1, DIGITS)  # (prompts, answers)
TEXT = torch.cat([torch.stack([a, b, answer], 1), torch.full((DIGITS**3, LONGEST - 2), FILLER)], 1)


class Policy(NamedTuple):
    """Logarithms of the probability of each answer, and of each length after it, for every prompt."""

    answers: Tensor  # (prompts, answers)
    lengths: Tensor  # (prompts, answers, lengths)

    def joint(self) -> Tensor:
        """Return the logarithm of the probability of each reply, of shape (prompts, replies)."""
        return (self.answers[:, :, None] + self.lengths).flatten(1)


def policy(model: Transformer) -> Policy:
    """Return what the transformer replies to each prompt."""
    logits = model(TEXT)[0]
    answers = logits[::DIGITS, 1, :DIGITS].log_softmax(1)
    more = logits[:, 2:-1, FILLER] - logits[:, 2:-1, END]  # the log-odds of another filler
    stop = torch.cat([F.logsigmoid(-more), more.new_zeros(len(more), 1)], 1)
    before = F.pad(F.logsigmoid(more).cumsum(1), (1, 0))
    return Policy(answers, (before + stop).reshape(-1, DIGITS, len(LENGTHS)))


@cache
def first_policy(right: float, seed: int) -> Transformer:
    """Return a transformer that answers rightly with this probability, at any length."""
    torch.manual_seed(seed)
    model = Transformer(END + 1, SETTINGS)
    target = torch.where(RIGHT, right, (1 - right) / (DIGITS - 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
    for _ in range(400):
        now = policy(model)
        loss = -(target * now.answers).sum(1).mean() - ((LAW * now.lengths).sum(2) * target).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return model


def summary(joint: Tensor) -> dict[str, float]:
    """Return the success rate and the mean length of right and of wrong replies, from (prompts, replies)."""
    right = joint * RIGHT.repeat_interleave(len(LENGTHS), 1)
    wrong, length = joint - right, LENGTHS.double().repeat(DIGITS)
    found = {
        "success": right.sum(1).mean(),
        "right": (right @ length).sum() / right.sum(),
        "wrong": (wrong @ length).sum() / wrong.sum(),
    }
    return {name: round(float(value), 4) for name, value in found.items()}


def look(model: Transformer) -> dict[str, float]:
    """Return the summary of all replies, without drawing one."""
    with torch.no_grad():
        return summary(Policy(*(part.double() for part in policy(model))).joint().exp())


def held(first: Tensor, divisor: str) -> dict[str, float]:
    """Return the summary of the policy at which a table would end, held to its first policy by the penalty."""
    reward = RIGHT.double().repeat_interleave(len(LENGTHS), 1)
    by = LENGTHS.double().repeat(DIGITS) if divisor.startswith("reply") else torch.tensor(float(MEAN))
    low, high = torch.zeros(len(first), 1).double(), torch.ones(len(first), 1).double()
    for _ in range(60):  # bisection: the success rate of the tilted policy falls with p
        p = (low + high) / 2
        joint = (first.double() + (reward - p) / (PENALTY * by)).softmax(1)
        rate = (joint * reward).sum(1, keepdim=True)
        low, high = torch.where(rate > p, p, low), torch.where(rate > p, high, p)
    return summary(joint)


def train(divisor: str, start: float, rate: float, seed: int) -> dict[str, Any]:
    """Return the looks at the policy from the first to the last; of a held one, also what is foretold."""
    model = deepcopy(first_policy(start, seed))
    torch.manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    steps = HELD_STEPS if divisor in HELD else STEPS
    looks = [look(model)]
    with torch.no_grad():
        first = policy(model).joint()
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(1, steps + 1):
        joint = policy(model).joint()
        if divisor in EXPECTED + HELD:
            chance = joint.detach().exp()
            reward = RIGHT.float().repeat_interleave(len(LENGTHS), 1)
            length = LENGTHS.float().repeat(DIGITS)
            advantage = reward - (chance * reward).sum(1, keepdim=True)
            by = length if divisor.startswith("reply") else torch.tensor(float(MEAN))
            if divisor in HELD:
                advantage = advantage - PENALTY * (joint.detach() - first) * by
            loss = -(chance * advantage / by * joint).sum(1).mean()
        else:
            drawn = torch.multinomial(joint.detach().exp(), GROUP, replacement=True)  # (prompts, replies)
            reward = RIGHT.gather(1, drawn // len(LENGTHS)).float()
            length = LENGTHS[drawn % len(LENGTHS)].float()
            by = {"reply": length, "step": length.mean(), "constant": torch.tensor(float(MEAN))}[divisor]
            loss = -((reward - reward.mean(1, keepdim=True)) / by * joint.gather(1, drawn)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if divisor in HELD:
            decay.step()
        if step % (steps // LOOKS) == 0:
            looks.append(look(model))
    return {"looks": looks} | ({"foretold": held(first, divisor)} if divisor in HELD else {})


def best_rates(runs: list[dict[str, Any]]) -> dict[tuple[str, float], float]:
    """Return each arm's rate, from the tuning runs."""
    tried: dict[tuple[str, float], list[tuple[float, float]]] = {}
    for run in runs:
        mean = float(np.mean([look["success"] for look in run["looks"]]))
        tried.setdefault((run["divisor"], run["start"]), []).append((mean, run["rate"]))
    return {arm: max(found)[1] for arm, found in tried.items()}


def main(command: str, folder: Path) -> None:
    """Do the runs that the folder lacks; after the last one, write the record."""
    seeds = {"tune": [TUNING], "held": SEEDS[:1]}.get(command, SEEDS)
    divisors = {"expected": EXPECTED, "held": HELD}.get(command, DIVISORS)
    tuned = best_rates([run for run in records(folder) if run["seed"] == TUNING])
    for seed, start, divisor in itertools.product(seeds, STARTS, divisors):
        one = tuned[divisor, start] if command == "run" else RATES[1]
        for rate in RATES if command == "tune" else [one]:
            arm = {"divisor": divisor, "start": start, "rate": rate, "seed": seed}
            if not any(arm.items() <= run.items() for run in records(folder)):
                store(folder, arm | train(divisor, start, rate, seed))
    if command != "tune":
        runs = [run | {"looks": run["looks"][:: LOOKS // 10]} for run in records(folder)]
        runs.sort(key=lambda run: (run["start"], run["divisor"], run["seed"], run["rate"]))
        write({**made(torch), "steps": STEPS, "held_steps": HELD_STEPS, "runs": runs}, HERE / "rewards.json")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], Path(sys.argv[2]))
