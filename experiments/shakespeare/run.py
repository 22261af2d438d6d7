"""Does the denominator change what a language model learns? Eight denominators, one transformer, speeches.

Each speech of Tiny Shakespeare, of up to 1,000 characters, is a sequence of characters that ends with <eos>.
A small transformer is trained on batches of 128 speeches. The first seven arms differ in nothing but the
weight of a speech in the batch's loss; the eighth knows no speeches:

    constant    1 / (128 x the mean length)       the proper loss
    B=1 ... 128 1 / (tokens in its micro-batch)   the token mean of micro-batches of B speeches, averaged
    bucketed    the same, in micro-batches of 16 speeches of similar length
    blocks      the speeches as one stream, cut every 1,024 characters: the token mean of micro-batches of one
                block, averaged. Contexts and positions run on over the ends of speeches.

The weights emulate the micro-batches exactly: `tests/experiments/test_shakespeare.py` shows that the gradient is
that of a loop over them. A seed fixes the initial parameters and the order of the speeches, alike in all arms.

How an arm is tuned and stopped: its user sees its own loss on validation speeches, and nothing else is used
here. With a seed of their own, models are trained with each learning rate of the grid; the arm keeps the rate
whose loss is lowest. A run looks at its loss twice an epoch, and reports the model with the lowest.

    python -m experiments.shakespeare.run predict --text PATH              # writes prediction.json: first
    python -m experiments.shakespeare.run train --text PATH --runs FOLDER  # what FOLDER lacks; may be stopped
    python -m experiments.shakespeare.run assemble --runs FOLDER           # writes result.json
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from experiments import shared
from experiments.shared import BATCH, Settings, Transformer, chunks
from xent.denominators import learnt_distribution, length_weights

HERE = Path(__file__).parent
ARMS = ("constant", "B=1", "B=4", "B=16", "B=64", "B=128", "bucketed", "blocks")
JOBS = [{"arm": arm} for arm in ARMS]
BUCKET, BLOCK = 16, 1024
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Row = dict[str, Any]


# ---------------------------------------------------------------- the arms, and what they should learn


def groups(lengths: Ints, arm: str) -> list[list[int]]:
    """Return the micro-batches of a batch, by the numbers of its sequences."""
    order = np.argsort(lengths, kind="stable") if arm == "bucketed" else np.arange(len(lengths))
    size = BUCKET if arm == "bucketed" else int(arm.removeprefix("B="))
    return [list(part) for part in order.reshape(-1, size).tolist()]


def weights(
    lengths: Ints, arm: str, mean_length: float, cut: Callable[[Ints, str], list[list[int]]] = groups
) -> Floats:
    """Return the weight of each sequence of a batch in the batch's loss, sum(weight * summed loss)."""
    if arm == "constant":
        return np.full(len(lengths), 1 / (len(lengths) * mean_length))
    result, parts = np.empty(len(lengths)), cut(lengths, arm)
    for part in parts:
        result[part] = 1 / (lengths[part].sum() * len(parts))
    return result


def expected_weights(
    lengths: Ints, arm: str, size: int = BATCH, batches: int = 4000, by: Callable[..., Floats] = weights
) -> Floats:
    """Return the weight that its arm gives each training sequence on average, up to a factor.

    For sorted and for packed batches it has no closed form here: the companions depend on a sequence's own length.
    So batches are drawn as in training, and the weights that a sequence got are averaged.
    """
    if arm in ("constant", "blocks"):
        return np.ones(len(lengths))
    if arm.startswith("B="):
        return np.asarray(length_weights(lengths, int(arm[2:])))
    rng = np.random.default_rng(0)
    total, seen = np.zeros(len(lengths)), np.zeros(len(lengths))
    for _ in range(batches):
        drawn = rng.choice(len(lengths), size, replace=False)
        total[drawn] += by(lengths[drawn], arm, 1.0)
        seen[drawn] += 1
    # Sequences of one length have the same expectation; pooling them takes the noise out.
    _, group = np.unique(lengths, return_inverse=True)
    return np.asarray((np.bincount(group, total) / np.bincount(group, seen))[group])


def predict(lengths: Ints) -> Row:
    """Return what theory says each arm learns, from the lengths of the training speeches alone.

    `cost` is KL(P || Q*) = log E[w] - E[log w] in nats per speech, what the tilt alone adds to the loss of a speech.
    """
    lengths = np.sort(lengths)
    support, position, counts = np.unique(lengths, return_inverse=True, return_counts=True)
    true = counts / len(lengths)
    arms: Row = {}
    for arm in ARMS:
        weight = np.bincount(position, expected_weights(lengths, arm)) / counts
        learnt = weight * true / (weight @ true)
        if arm.startswith("B="):  # the package has the tilt, too
            tilted = learnt_distribution(true, support, int(arm[2:]))
            np.testing.assert_allclose(learnt, tilted, rtol=1e-9)
        cost = float(np.log(weight @ true) - np.log(weight) @ true)
        arms[arm] = {"mean_length": float(learnt @ support), "cost": max(0.0, cost)}
    return {
        "speeches": len(lengths),
        "mean_length": float(lengths.mean()),
        "squared_variation": float(lengths.var() / lengths.mean() ** 2),
        "harmonic_mean_length": float(1 / np.mean(1 / lengths)),
        "arms": arms,
        # What the prediction rests on, so that it can be checked without the text.
        "lengths": support.tolist(),
        "counts": counts.tolist(),
    }


def ngrams(train: Sequence[list[int]], test: Sequence[list[int]], letters: int) -> list[float]:
    """Return the summed loss of the test sequences for n-grams of each order."""
    highest = 6
    padding = [0] * highest
    model = shared.NGrams((padding + sequence for sequence in train), letters, highest - 1, highest)
    loss = [0.0] * highest
    for sequence in test:
        text = padding + sequence
        for i in range(highest, len(text)):
            for k, p in enumerate(model.orders(text[i - highest : i])):
                loss[k] -= math.log(p[text[i]])
    return loss


# ---------------------------------------------------------------- the losses


def speech_losses(model: Transformer, speeches: Sequence[Tensor]) -> Tensor:
    """Return -log Q of each speech, of shape (speeches,)."""
    log_q, targets = shared.log_probabilities(model, speeches)
    return F.nll_loss(log_q.mT, targets, ignore_index=-100, reduction="none").sum(1)


def backward(model: Transformer, speeches: Sequence[Tensor], weight: Floats) -> None:
    """Add the gradient of sum(weight * loss)."""
    for chunk in chunks(speeches):
        losses = speech_losses(model, [speeches[i] for i in chunk])
        (losses * torch.from_numpy(weight[chunk]).to(losses.dtype)).sum().backward()  # type: ignore[no-untyped-call]


def own_loss(lengths: Ints, losses: Floats, size: int, weigh: Callable[[Ints], Floats]) -> float:
    """Return an arm's own loss on validation sequences, the mean over their batches."""
    batches = np.arange(len(lengths)).reshape(-1, size)
    return float(np.mean([weigh(lengths[b]) @ losses[b] for b in batches]))


def block_losses(model: Transformer, stream: Tensor) -> Tensor:
    """Return -log Q of each block of a stream, whose first token is only read."""
    before, targets = stream[:-1].view(-1, BLOCK), stream[1:].view(-1, BLOCK)
    logits, _ = model(before)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(-1, BLOCK).sum(1)


def stream_of(speeches: Sequence[Tensor]) -> Tensor:
    """Return the speeches one after the other, from a first <eos> on, in a whole number of blocks."""
    stream = torch.cat([torch.zeros(1, dtype=torch.long), *speeches])
    return stream[: (len(stream) - 1) // BLOCK * BLOCK + 1]


# ---------------------------------------------------------------- a run


def train(parts: shared.Split, letters: int, arm: str, seed: int, rate: float, settings: Settings) -> Row:
    """Train one model; `seed` fixes its start and the order of the data. Return it with its looks at validation."""
    torch.manual_seed(seed)
    model, rng = Transformer(letters, settings), np.random.default_rng(seed)
    optimiser, mean_length = shared.adamw(model), float(np.mean([len(s) for s in parts.train]))
    per_epoch = len(parts.train) // BATCH
    steps = settings.epochs * per_epoch
    best, curve = copy.deepcopy(model.state_dict()), list[Row]()
    for step in range(steps):
        place = step % per_epoch
        if place == 0:
            order = rng.permutation(len(parts.train))
        share = min(1.0, (step + 1) / settings.warmup) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimiser.param_groups:
            group["lr"] = rate * group["scale"] * share
        optimiser.zero_grad()
        if arm == "blocks":
            # As many steps as the others; each gets its share of the epoch's blocks, 16 or 15 of them.
            stream = stream_of([parts.train[i] for i in order])
            cuts = np.linspace(0, (len(stream) - 1) // BLOCK, per_epoch + 1).astype(int) * BLOCK
            part = stream[cuts[place] : cuts[place + 1] + 1]
            halves = len(part) // BLOCK // 2 * BLOCK  # in two passes, for the memory's sake
            for half in (part[: halves + 1], part[halves:]):
                (block_losses(model, half).sum() / (len(part) - 1)).backward()  # type: ignore[no-untyped-call]
        else:
            batch = [parts.train[i] for i in order[place * BATCH : (place + 1) * BATCH]]
            backward(model, batch, weights(np.array([len(s) for s in batch]), arm, mean_length))
        optimiser.step()
        if (place + 1) % (per_epoch // settings.looks) == 0:
            own, speech = validate(model, parts.validation, arm, mean_length)
            curve.append({"step": step + 1, "own": own, "nll_per_speech": speech})
            if own == min(c["own"] for c in curve):
                best.update(copy.deepcopy(model.state_dict()))
    model.load_state_dict(best)
    return {"model": model.eval(), "curve": curve}


@torch.no_grad()
def validate(model: Transformer, speeches: Sequence[Tensor], arm: str, mean: float) -> tuple[float, float]:
    """Return the arm's own loss on the validation speeches, and the loss of a speech."""
    model.eval()
    losses = np.empty(len(speeches))
    for chunk in chunks(speeches):
        losses[chunk] = speech_losses(model, [speeches[i] for i in chunk]).double().numpy()
    if arm == "blocks":
        stream = stream_of(speeches)
        pieces = range(0, len(stream) - 1, 8 * BLOCK)  # a few blocks at a time, for the memory's sake
        total = sum(block_losses(model, stream[i : i + 8 * BLOCK + 1]).double().sum() for i in pieces)
        own = float(total) / (len(stream) - 1)
    else:
        lengths = np.array([len(s) for s in speeches])
        own = own_loss(lengths, losses, BATCH, lambda n: weights(n, arm, mean))
    model.train()
    return own, float(losses.mean())


@torch.no_grad()
def sample_lengths(model: Transformer, seed: int, settings: Settings) -> Ints:
    """Draw speeches character by character, and return the lengths.

    What has not ended after `longest_sample` characters counts with that length. Rows that have ended are dropped
    when fewer than 0.8 of them live: to drop each at once would copy the cache at each step.
    """
    generator = torch.Generator().manual_seed(seed)
    lengths: list[int] = []
    before = torch.zeros(settings.samples, max(settings.orders) - 1, dtype=torch.long)
    logits, past = model(before[:, :1])
    alive = torch.ones(settings.samples, dtype=torch.bool)
    for n in range(1, settings.longest_sample + 1):
        token = torch.multinomial(logits[:, -1].softmax(1), 1, generator=generator)
        ended = alive & (token[:, 0] == 0)
        lengths += [n] * int(ended.sum())
        alive &= ~ended
        if not alive.any():
            return np.array(lengths)
        if alive.double().mean() < 0.8:
            token, before, past = token[alive], before[alive], [cache[:, alive] for cache in past]
            alive = alive[alive]
        if past[0].shape[3] < n + 1:
            past = [F.pad(cache, (0, 0, 0, cache.shape[3])) for cache in past]
        logits, past = model(token, before, past, n)
        before = torch.cat([before[:, 1:], token], dim=1)
    return np.array(lengths + [settings.longest_sample] * int(alive.sum()))


@torch.no_grad()
def evaluate(model: Transformer, test: Sequence[Tensor], seed: int, settings: Settings) -> Row:
    """Return what a run reports.

    `end_nll` and `character_nll` are the parts of a speech's loss: whether it ends here, at each position, and which
    character comes if it does not.
    """
    sums = {"end_nll": 0.0, "character_nll": 0.0}
    for chunk in chunks(test):
        log_q, targets = shared.log_probabilities(model, [test[i] for i in chunk])
        log_q = log_q.double()
        end, go = log_q[..., 0], torch.logsumexp(log_q[..., 1:], dim=2)
        chosen = log_q.gather(2, targets.clamp(min=0)[..., None])[..., 0]
        sums["end_nll"] -= float(torch.where(targets == 0, end, go)[targets >= 0].sum())
        sums["character_nll"] += float((go - chosen)[targets > 0].sum())
    drawn = sample_lengths(model, seed, settings)
    total = sum(sums.values())
    return {
        "mean_length": float(drawn.mean()),
        "nll_per_speech": total / len(test),
        "nll_per_token": total / sum(len(s) for s in test),
        **{name: float(f"{value / len(test):.7g}") for name, value in sums.items()},
    }


# ---------------------------------------------------------------- the record


def assemble(folder: Path, settings: Settings) -> Row:
    """Return the record, with the seeds that all arms have at their own best rates."""
    runs = shared.records(folder)
    return {
        "settings": asdict(settings),
        **shared.made(torch, np),
        "rates": {job["arm"]: shared.chosen(runs, job) for job in JOBS},
        "runs": shared.finished(runs, JOBS),
        "tuning": [r for r in runs if r["seed"] == shared.TUNING_SEED],
    }


def main() -> None:
    what = "The denominator experiment on Tiny Shakespeare."
    settings, given = Settings(), shared.arguments(what, HERE, "text", seeds=6).parse_args()
    speeches, alphabet = shared.encode(shared.load(given.text))
    parts, letters = shared.split(speeches, settings), len(alphabet) + 1

    def one(arm: str, seed: int, rate: float) -> Row:
        trained = train(parts, letters, arm, seed, rate, settings)
        tuning = seed == shared.TUNING_SEED
        return {"curve": trained["curve"]} | (
            {} if tuning else evaluate(trained["model"], parts.test, seed, settings)
        )

    if given.command == "predict":
        # Beside the theory, a model that anyone can count.
        known, asked = ([s.tolist() for s in part] for part in (parts.train, parts.test))
        found = [x / len(asked) for x in ngrams(known, asked, letters)]
        prediction = predict(np.array([len(s) for s in parts.train])) | {"ngrams": found}
        (HERE / "prediction.json").write_text(json.dumps(prediction) + "\n")
    elif given.command == "assemble":
        shared.write(assemble(given.runs, settings), HERE / "result.json")
    else:
        shared.work(given.runs, JOBS, settings.rates, given.seeds, one)


if __name__ == "__main__":
    main()
