"""A transformer teacher and students on an exactly known language: losses, prefixes, denominators, caches.

    python -m experiments.language_models.distil    every arm that is missing; writes result.json

`dialects.py` is the truth. For each seed a teacher learns it from fresh samples. Students then learn from that
teacher alone: *large* ones have the teacher's size and could repeat it, *small* ones cannot. Each arm chooses
its learning rate and weight decay (and, with a cache, when to stop) by its own objective: without a cache, the
exact value of what it minimises; with one, its loss on a tenth of the cache that it does not train on.
Models are evaluated exactly, on the table of all prefixes. A seed fixes teacher, initial weights and random
numbers, so that arms can be compared seed by seed. What is finished is stored: an interrupted experiment
continues where it stopped.
"""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.language_models import dialects
from experiments.language_models.stack import Stack, adamw, draw
from experiments.shared import made, read, rounded

RESULT = Path(__file__).with_name("result.json")
SETTINGS: dict[str, Any] = {
    "seeds": 20,
    "seeds with a cache": 10,
    "seeds of the grid": {"small": 8, "large": 2, "cache": 2},
    "seeds of the longer run": 5,
    "rates": {"small": [1e-2, 3e-2], "large": [3e-3, 1e-2]},
    "decays": {"small": [0.0, 0.1], "large": [0.0, 0.1], "cache": [0.0, 1.0]},
    "steps": {"small": 12000, "large": 1500, "cache": 1000},
    "steps of the grid": {"small": 2000, "large": 600, "cache": 600},
    "batch": 64,
    "checkpoints": 8,
    "teacher": {"rate": 1e-2, "decay": 0.0, "steps": 2000},
    "schedule": "AdamW, learning rate from its value to zero by half a cosine",
    "large": {"width": 16, "layers": 1, "heads": 2},
    "small": {"width": 4, "layers": 1, "heads": 1},
    "top_k": 2,
    "held out of a cache": 0.1,
}


@dataclass(frozen=True)
class Arm:
    """A way to train: the student's size, who writes the prefixes, the loss of a token, what it is divided by."""

    size: str
    prefixes: str  # "teacher" or "student"
    loss: str  # labels, draws, forward, reverse, truncated, tail
    denominator: str = "constant"  # or "sequence": each sequence's own length
    policy: str = "none"  # second term of the reverse gradient: none, sum, or mean (divided as by MiniLLM)
    cache: int = 0  # sequences in a fixed cache; 0: every batch is fresh
    draws: int = 1  # tokens stored for each prefix, for the loss "draws"


ARMS: dict[str, Arm] = {
    "small, labels": Arm("small", "teacher", "labels"),
    "small, forward": Arm("small", "teacher", "forward"),
    "small, forward, 1/n": Arm("small", "teacher", "forward", "sequence"),
    "small, forward, student's prefixes": Arm("small", "student", "forward"),
    "small, reverse, token gradient": Arm("small", "student", "reverse"),
    "small, reverse, both terms": Arm("small", "student", "reverse", policy="sum"),
    "small, reverse, both terms, normalised": Arm("small", "student", "reverse", policy="mean"),
    "large, labels": Arm("large", "teacher", "labels"),
    "large, labels, 1/n": Arm("large", "teacher", "labels", "sequence"),
    "large, forward": Arm("large", "teacher", "forward"),
    "large, forward, 1/n": Arm("large", "teacher", "forward", "sequence"),
}
for _size in (1000, 4000, 16000):
    ARMS |= {
        f"cache {_size}, whole": Arm("large", "teacher", "forward", cache=_size),
        f"cache {_size}, truncated": Arm("large", "teacher", "truncated", cache=_size),
        f"cache {_size}, bucket": Arm("large", "teacher", "tail", cache=_size),
        f"cache {_size}, one draw": Arm("large", "teacher", "labels", cache=_size),
        f"cache {_size}, four draws": Arm("large", "teacher", "draws", cache=_size, draws=4),
    }
# What these arms gain from twice the steps is looked at.
LONGER = (
    "small, forward",
    "small, reverse, token gradient",
    "small, reverse, both terms",
    "small, reverse, both terms, normalised",
)


def token_loss(arm: Arm, logits: Tensor, log_p: Tensor, tokens: Tensor, counts: Tensor | None) -> Tensor:
    """Loss of each token, zero where the sequence has ended.

    Shapes: logits and log_p (the teacher's) (models, N, 8, 5), tokens (models, N, 8); counts, of the
    stored draws, as logits.
    """
    live = tokens != -100
    q = logits.log_softmax(-1)
    if arm.loss == "labels":
        each = -q.gather(-1, tokens.clamp(min=0)[..., None])[..., 0]
    elif arm.loss == "draws":
        assert counts is not None
        each = -(counts * q).sum(-1) / arm.draws
    elif arm.loss == "forward":
        each = (log_p.exp() * (log_p - q)).sum(-1)
    elif arm.loss == "reverse":
        each = (q.exp() * (q - log_p)).sum(-1)
    else:
        kept, index = log_p.topk(SETTINGS["top_k"])
        kept = kept.exp()
        each = -(kept * q.gather(-1, index)).sum(-1)
        if arm.loss == "tail":
            each = each - (1 - kept.sum(-1)) * q.scatter(-1, index, -torch.inf).logsumexp(-1)
    return torch.where(live, each, 0.0)


def steer(arm: Arm, each: Tensor, logits: Tensor, tokens: Tensor) -> Tensor:
    """Add what moves the prefixes: the score of each token times what the sequence still costs after it.

    With `policy="mean"` the cost is divided by the number of tokens that are still to come.
    """
    live = tokens != -100
    score = logits.log_softmax(-1).gather(-1, tokens.clamp(min=0)[..., None])[..., 0]
    cost = each.detach()
    after = cost.flip(2).cumsum(2).flip(2) - cost
    if arm.policy == "mean":
        left = live.flip(2).cumsum(2).flip(2) - live.long()
        after = after / left.clamp(min=1)
    baseline = (after * live).sum(1, keepdim=True) / live.sum(1, keepdim=True).clamp(min=1)
    return each + torch.where(live, (after - baseline) * score, 0.0)


def lengths_of(tokens: Tensor) -> Tensor:
    """Lengths with <eos>, which is certain and has no column after 8 letters."""
    whole = (tokens[..., -1] != -100) & (tokens[..., -1] != dialects.EOS)
    return (tokens != -100).sum(-1) + whole


def objective(arm: Arm, tree: np.ndarray, teacher: np.ndarray) -> float:
    """Return the exact value of what an arm without a cache minimises; for MiniLLM's, the reverse KL."""
    if arm.loss == "reverse":
        return dialects.sequence_kl(tree, teacher)
    if arm.prefixes == "student":
        return float(dialects.begins(tree) @ dialects.token_kl(teacher, tree))
    weight = np.full(teacher.shape, 1.0)
    if arm.denominator == "sequence":
        weight = dialects.inverse_length(teacher)
    of_prefix = (teacher * weight).sum(1)
    # Of labels: the excess over the best that these weights allow.
    target = teacher * weight / of_prefix[:, None] if arm.loss == "labels" else teacher
    return float((dialects.begins(teacher) * of_prefix) @ dialects.token_kl(target, tree))


class Cache:
    """Fixed sequences of each model's teacher, with a tenth held out, and draws where an arm stores them."""

    def __init__(self, arm: Arm, cumulative: Tensor, generators: list[np.random.Generator]) -> None:
        u = np.stack([g.random((arm.cache, dialects.LIMIT)) for g in generators])
        self.tokens, self.rows = draw(cumulative, torch.tensor(u))
        self.held = round(SETTINGS["held out of a cache"] * arm.cache)
        self.counts = None
        if arm.loss == "draws":
            u = np.stack([g.random((arm.cache, dialects.LIMIT, arm.draws)) for g in generators])
            table = cumulative[torch.arange(len(generators))[:, None, None], self.rows]
            drawn = (table[..., None, :] <= torch.tensor(u)[..., None] * table[..., None, -1:]).sum(-1)
            self.counts = F.one_hot(drawn.clamp(max=dialects.EOS), dialects.EOS + 1).sum(-2).float()


def train(
    arm: Arm, seeds: list[int], teachers: np.ndarray, rates: list[float], decays: list[float], steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Train a stack of models, model i from seeds[i] on teachers[i] with rates[i] and decays[i].

    Returns the values of the arm's own objective, (models,), and the trees: at the last step, or with a cache at
    the checkpoint with the lowest value.
    """
    model = Stack([1000 + s for s in seeds], **SETTINGS[arm.size])
    generators = [np.random.default_rng([s, 1]) for s in seeds]
    table = torch.tensor(teachers)
    cumulative, log_table = table.cumsum(-1), table.clamp(min=1e-30).log().float()
    n = np.arange(1, dialects.LIMIT + 2)
    constant = torch.tensor([dialects.length_probs(t) @ n for t in teachers])[:, None].float()
    cache = Cache(arm, cumulative, generators) if arm.cache else None
    which = torch.arange(len(seeds))[:, None]
    rate, decay = torch.tensor(rates), torch.tensor(decays)
    state = (torch.zeros_like(model.flat), torch.zeros_like(model.flat))
    checkpoints = SETTINGS["checkpoints"] if cache else 1
    marks = [round(steps * (i + 1) / checkpoints) for i in range(checkpoints)]
    best = [(math.inf, np.empty(0))] * len(seeds)

    def loss_of(tokens: Tensor, rows: Tensor, counts: Tensor | None, policy: bool) -> Tensor:
        """The mean over sequences, a value for each model."""
        logits = model.logits(tokens[..., :-1].clamp(0, dialects.LETTERS - 1))
        each = token_loss(arm, logits, log_table[which[..., None], rows], tokens, counts)
        if policy:
            each = steer(arm, each, logits, tokens)
        divisor = lengths_of(tokens) if arm.denominator == "sequence" else constant
        return (each.sum(2) / divisor).mean(1)

    for step in range(1, steps + 1):
        if cache:
            pick = torch.tensor(
                np.stack([g.integers(cache.held, arm.cache, SETTINGS["batch"]) for g in generators])
            )
            tokens, rows = cache.tokens[which, pick], cache.rows[which, pick]
            counts = None if cache.counts is None else cache.counts[which, pick]
        else:
            u = torch.tensor(np.stack([g.random((SETTINGS["batch"], dialects.LIMIT)) for g in generators]))
            tokens, rows = draw(cumulative, u) if arm.prefixes == "teacher" else model.write(u.float())
            counts = None
        loss = loss_of(tokens, rows, counts, arm.policy != "none")
        (gradient,) = torch.autograd.grad(loss.sum(), model.flat)
        with torch.no_grad():
            now = 0.5 + 0.5 * math.cos(math.pi * (step - 1) / steps)
            adamw(model.flat, gradient, state, step, rate * now, decay)
        if step in marks:
            trees = model.trees()
            if cache:
                h = cache.held
                with torch.no_grad():
                    counts = None if cache.counts is None else cache.counts[:, :h]
                    value = loss_of(cache.tokens[:, :h], cache.rows[:, :h], counts, False).numpy()
            else:
                value = np.array([objective(arm, t, p) for t, p in zip(trees, teachers, strict=True)])
            for i, v in enumerate(value):
                if not cache or v < best[i][0]:
                    best[i] = (float(v), trees[i])
    return np.array([value for value, _ in best]), np.stack([tree for _, tree in best])


def measures(tree: np.ndarray, teacher: np.ndarray) -> dict[str, Any]:
    """Measure a model exactly, against the truth and against its teacher."""
    n = np.arange(1, dialects.LIMIT + 2)
    lengths = dialects.length_probs(tree)
    return {
        "kl_truth": dialects.sequence_kl(dialects.source(), tree),
        "forward": dialects.sequence_kl(teacher, tree),
        "reverse": dialects.sequence_kl(tree, teacher),
        "mean_length": float(lengths @ n),
        "harmonic_length": float(1 / (lengths @ (1 / n))),
        "share_of_up": dialects.share_of_up(tree),
    }


def of_each(trees: np.ndarray, teachers: np.ndarray) -> dict[str, Any]:
    """Measure all models, each against its own teacher: a list for each measure."""
    each = [measures(t, p) for t, p in zip(trees, teachers, strict=False)]
    return {key: [m[key] for m in each] for key in each[0]}


def within_tail(tree: np.ndarray, teacher: np.ndarray) -> float:
    """Return the part of KL(teacher || tree) of sequences that a bucket leaves out: how the tail is divided."""
    kept = np.argsort(-teacher, 1)[:, : SETTINGS["top_k"]]
    tails = []
    for rows in (teacher, tree):
        tail = rows.copy()
        np.put_along_axis(tail, kept, 0.0, 1)
        tails.append(tail)
    mass = tails[0].sum(1)
    p, q = (tail / tail.sum(1, keepdims=True) for tail in tails)
    return float((dialects.begins(teacher) * mass) @ dialects.token_kl(p, q))


def teachers_of(seeds: list[int]) -> np.ndarray:
    """Train the teachers of these seeds on the truth, from labels: shape (seeds, 21845, 5)."""
    truth = np.repeat(dialects.source()[None], len(seeds), 0)
    s = SETTINGS["teacher"]
    rates, decays, own = [s["rate"]] * len(seeds), [s["decay"]] * len(seeds), [100 + x for x in seeds]
    return train(Arm("large", "teacher", "labels"), own, truth, rates, decays, s["steps"])[1]


def run_arm(name: str, teachers: np.ndarray) -> dict[str, Any]:
    """Tune one arm, train its seeds, and measure them."""
    arm, kind = ARMS[name], "cache" if ARMS[name].cache else ARMS[name].size
    started = time.process_time()
    few = list(range(SETTINGS["seeds of the grid"][kind]))
    grid = [(r, d) for r in SETTINGS["rates"][arm.size] for d in SETTINGS["decays"][kind]]
    steps = SETTINGS["steps of the grid"][kind]
    flat = [(r, d, s) for r, d in grid for s in few]
    rates, decays, chosen = map(list, zip(*flat, strict=True))
    last = train(arm, chosen, teachers[chosen], rates, decays, steps)[0].reshape(len(grid), len(few))
    rate, decay = grid[int(last.mean(1).argmin())]
    seeds = list(range(SETTINGS["seeds with a cache" if arm.cache else "seeds"]))
    steps = SETTINGS["steps"][kind]
    _, trees = train(arm, seeds, teachers[seeds], [rate] * len(seeds), [decay] * len(seeds), steps)
    beside = {}
    if arm.loss == "tail":
        beside = {"within_tail": [within_tail(t, p) for t, p in zip(trees, teachers, strict=False)]}
    return {
        "arm": asdict(arm),
        "grid": [{"rate": r, "decay": d, "objective": v} for (r, d), v in zip(grid, last, strict=True)],
        "rate": rate,
        "decay": decay,
        "steps": steps,
        **of_each(trees, teachers),
        **beside,
        "cpu_seconds": time.process_time() - started,
    }


def longer(name: str, teachers: np.ndarray, done: dict[str, Any]) -> dict[str, Any]:
    """Train some seeds of an arm twice as long, with the same settings."""
    k = SETTINGS["seeds of the longer run"]
    rates, decays, steps = [done["rate"]] * k, [done["decay"]] * k, 2 * done["steps"]
    trees = train(ARMS[name], list(range(k)), teachers[:k], rates, decays, steps)[1]
    return {"steps": steps} | of_each(trees, teachers)


def save(result: dict[str, Any]) -> None:
    """Store what there is, with what made it."""
    origin = {
        **made(torch, np),
        "settings": SETTINGS,
        "parameters": {s: Stack([0], **SETTINGS[s]).flat.shape[1] for s in ("large", "small")},
    }
    text = json.dumps(origin | rounded(result, ".6g"), separators=(",", ":"))
    RESULT.write_text(re.sub(r'"(small|large|cache \d+), [^"]*":\{', r"\n\g<0>", text) + "\n")


def main() -> None:
    """Train every arm that is missing."""
    torch.set_num_threads(1)
    stored = read(RESULT)
    if stored and stored["settings"] != SETTINGS:
        raise SystemExit(f"{RESULT} was made with other settings: move it away first")
    result = {key: stored.get(key, {}) for key in ("teacher", "arms", "longer")}
    started = time.process_time()
    teachers = teachers_of(list(range(SETTINGS["seeds"])))
    if not result["teacher"]:
        result["teacher"] = of_each(teachers, teachers) | {"cpu_seconds": time.process_time() - started}
        save(result)
    for name in ARMS:
        if name not in result["arms"]:
            result["arms"][name] = run_arm(name, teachers)
            save(result)
            print(name, f"{result['arms'][name]['cpu_seconds']:.0f} s", flush=True)
    for name in LONGER:
        if name not in result["longer"]:
            result["longer"][name] = longer(name, teachers, result["arms"][name])
            save(result)


if __name__ == "__main__":
    main()
