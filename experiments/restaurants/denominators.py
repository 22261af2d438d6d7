"""Does the denominator of fine-tuning change the lengths of answers to prompts, and how much? Restaurants described.

The card, written before the runs.

Question     A transformer learns to describe a restaurant from its meaning. Does it write shorter texts where the
             loss is a mean over the tokens of few texts, and by as much as the law within prompts says?
Rivals       1. The prompt tells the length, so that nothing happens: the forecast for one writer is small, and the
             arm "constant" differs in nothing but the weights. 2. The arms differ in the size of their steps, not in
             what they ask for: each arm has its learning rate from the same grid, and each is run with gradients
             clipped to a norm of 1 as well. 3. What is shorter is badly learnt: nats a word, slots missed.
Each sees    the same texts in the same order (a seed fixes start and order, alike in all arms), for as many steps.
Two data     "one writer": what people wrote, 24.6 words and marks on average, 18 their variance within a meaning.
             "two writers": beside each text of a person stands a terse one, 7.8 on average, and nothing in the prompt
             says which is asked for, as where data sets are mixed.
Tuned        the learning rate, of four, by the arm's own loss on validation pairs, at a seed of its own and for half
             of the steps. The clipped arms take the rate of their arm. The fourth, 0.064, was added before any other
             run: of the first three, all arms with one writer took the greatest.
Foretold     by `predict`, from the training texts' lengths: see prediction.json. B = 64 and packed: no difference to be
             seen. B = 1: one writer 3.4 % shorter if the model uses all that the prompts tell, 10 % if it uses nothing
             of them; two writers 27 to 31 %, as three of four texts come from the terse one. Clipping changes neither.

Seeds        eight, as planned; five of them were shown first, and their runs are unchanged. Of the clipped arms,
             constant and B=1 were shown first.

    python -m experiments.restaurants.denominators predict --data PATH               # writes prediction.json: first
    python -m experiments.restaurants.denominators train --data PATH --runs FOLDER   # what FOLDER lacks; may be stopped
    python -m experiments.restaurants.denominators assemble --data PATH --runs FOLDER    # writes result.json
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from experiments import shared
from experiments.restaurants.data import Data, Pair, held_out, load
from experiments.restaurants.model import BATCH, RATES, STEPS, evaluate, fit, losses_of
from experiments.shakespeare import run
from experiments.shakespeare.run import Floats, Ints, Row

HERE = Path(__file__).parent
WRITERS = (1, 2)
ARMS = ("constant", "B=1", "B=4", "B=16", "B=64", "bucketed", "packed")
# Writers, arm, whether gradients are clipped; in the record a clipped run follows its arm's.
JOBS = [{"writers": w, "arm": arm, "clip": clip} for w in WRITERS for arm in ARMS for clip in (False, True)]
BLOCK, LEAST = 128, 8  # tokens of a packed block; texts of a meaning on which a forecast within prompts rests


def lengths_of(pairs: Sequence[Pair]) -> Ints:
    return np.array([len(p.reply) for p in pairs])


def groups(lengths: Ints, arm: str) -> list[list[int]]:
    """Return the micro-batches of a batch, by the numbers of its pairs; packed blocks are filled in order."""
    if arm != "packed":
        return run.groups(lengths, arm)
    blocks: list[list[int]] = [[]]
    room = BLOCK
    for i, n in enumerate(lengths.tolist()):
        if n > room:
            blocks.append([])
            room = BLOCK
        blocks[-1].append(i)
        room -= n
    return blocks


# The weight of each reply of a batch in the batch's loss, sum(weight * summed loss).
weights = partial(run.weights, cut=groups)


# ---------------------------------------------------------------- what is foretold


def within(pairs: Sequence[Pair], weight: Floats) -> tuple[Floats, Floats]:
    """Return (mean length, tilted; share of terse texts, tilted) of each meaning and its number of texts."""
    of: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for i, p in enumerate(pairs):
        of[p.meaning].append(i)
    lengths, brief = lengths_of(pairs), np.array([p.terse for p in pairs], float)
    rows, counts = [], []
    for some in of.values():
        if len(some) >= LEAST:
            w, n, terse = weight[some] / weight[some].sum(), lengths[some], brief[some]
            rows.append([n.mean(), w @ n, terse.mean(), w @ terse])
            counts.append(float(len(some)))
    return np.array(rows), np.array(counts)


def predict(data: Data) -> Row:
    """Return what the law within prompts says of each arm, with 95 % intervals over meanings, and that without prompts.

    Meanings with few texts tell less of the spread within a prompt, so those with LEAST texts speak for all.
    """
    lengths, brief = lengths_of(data.train), np.array([p.terse for p in data.train], float)
    rng = np.random.default_rng(0)
    arms: Row = {}
    for arm in ARMS:
        weight = run.expected_weights(lengths, arm, BATCH, 6000, weights)
        means, counts = within(data.train, weight)
        drawn = rng.choice(len(means), (2000, len(means)))
        ratios = [means[d].T @ counts[d] for d in drawn]
        found = means.T @ counts / counts.sum()
        alone = weight / weight.sum()
        without = {"change": float(alone @ lengths / lengths.mean() - 1), "terse": float(alone @ brief)}
        arms[arm] = {
            "change": float(found[1] / found[0] - 1),
            "interval": np.quantile([r[1] / r[0] - 1 for r in ratios], [0.025, 0.975]).tolist(),
            "terse": float(found[3]),
            "without prompts": without,
        }
    known = {"pairs": len(data.train), "meanings": len({p.meaning for p in data.train})}
    return {**known, "mean_length": float(lengths.mean()), "arms": arms}


# ---------------------------------------------------------------- a run


def train(data: Data, arm: str, clip: bool, seed: int, rate: float) -> Row:
    """Return a model's own loss on validation pairs, the share of its steps that were clipped, and what it reports."""
    weigh = partial(weights, arm=arm, mean_length=float(lengths_of(data.train).mean()))
    tuning = seed == shared.TUNING_SEED
    steps = STEPS // 2 if tuning else STEPS
    model, cut = fit(data, seed, rate, steps, lambda b: weigh(lengths_of(b)), 1.0 if clip else None)
    asked = data.validation[: len(data.validation) // BATCH * BATCH]
    # The pairs stand in the order of their meanings: shuffled, so that a batch is as in training.
    asked = [asked[i] for i in np.random.default_rng(0).permutation(len(asked))]
    own = run.own_loss(lengths_of(asked), losses_of(model, asked), BATCH, weigh)
    return {"own": own, "clipped": cut} | ({} if tuning else evaluate(model, data, seed))


def assemble(folder: Path, datas: dict[int, Data]) -> Row:
    """Return the record, with the seeds that every arm has."""
    runs = shared.records(folder)
    return {
        "settings": {"batch": BATCH, "steps": STEPS, "rates": RATES, "block": BLOCK, "bucket": run.BUCKET},
        **shared.made(torch, np),
        "held_out": {f"writers={w}": shared.rounded(held_out(data), ".4g") for w, data in datas.items()},
        "runs": [shared.rounded(r, ".5g") for r in shared.finished(runs, JOBS)],
        "tuning": [shared.rounded(r, ".7g") for r in runs if r["seed"] == shared.TUNING_SEED],
    }


def main() -> None:
    what = "The denominator experiment on descriptions of restaurants."
    given = shared.arguments(what, HERE, "data", seeds=8).parse_args()
    datas = {writers: load(given.data, writers) for writers in WRITERS}
    if given.command == "assemble":
        shared.write(assemble(given.runs, datas), HERE / "result.json")
    elif given.command == "predict":
        prediction = {f"writers={writers}": predict(data) for writers, data in datas.items()}
        (HERE / "prediction.json").write_text(json.dumps(shared.rounded(prediction, ".4g"), indent=1) + "\n")
    else:
        # All without clipping, then all with it.
        jobs = sorted(JOBS, key=lambda job: bool(job["clip"]))
        shared.work(given.runs, jobs, RATES, given.seeds, lambda writers, **job: train(datas[writers], **job))


if __name__ == "__main__":
    main()
