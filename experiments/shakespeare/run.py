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

Two controls ask why the spelling gets worse where weights are unequal. They divide by a constant, too, but learn
from the first 46 and from the first 91 speeches of each batch only, in as many steps. That is how many equally
weighted tokens the weights of B=1 and of B=4 are worth by Kish's formula, (sum w)^2 / sum w^2.

How an arm is tuned and stopped: its user sees its own loss on validation speeches, and nothing else is used
here. With a seed of their own, models are trained with each learning rate of the grid; the arm keeps the rate
whose loss is lowest. A run looks at its loss twice an epoch, and reports the model with the lowest.

    python -m experiments.shakespeare.run predict --text PATH              # writes prediction.json: first
    python -m experiments.shakespeare.run train --text PATH --runs FOLDER  # what FOLDER lacks; may be stopped
    python -m experiments.shakespeare.run assemble --runs FOLDER           # writes result.json; with
                                                  --again FOLDER2          # compares the runs that both have
    python -m experiments.shakespeare.run show                             # the table

Several processes may train side by side. Transformer, text and split are in `experiments/shared.py`.
"""

from __future__ import annotations

import argparse
import copy
import fcntl
import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from experiments.shared import (
    BATCH,
    Settings,
    Split,
    Transformer,
    adamw,
    chunks,
    encode,
    load,
    log_probabilities,
    made,
    records,
    split,
    store,
    write,
)  # fmt: skip
from xent.denominators import length_weights, tilted_lengths

HERE = Path(__file__).parent
ARMS = ("constant", "B=1", "B=4", "B=16", "B=64", "B=128", "bucketed", "blocks")
# Constant denominators on part of each batch: Kish's effective share for B=1 (.357) and for B=4 (.708), of 128.
CONTROLS = {"46 of 128": "B=1", "91 of 128": "B=4"}
# The two arms that are also trained four times as long.
LONG, LONG_FACTOR = ("constant", "B=1"), 4
BUCKET, BLOCK = 16, 1024
# Edges of the bins of length and of position: a factor of two each, the last bin is open.
EDGES = (1, 8, 16, 32, 64, 128, 256, 512, 1024)
SENTENCE_END = ".?!"


# ---------------------------------------------------------------- the arms


def weights(lengths: NDArray[np.int64], arm: str, mean_length: float) -> NDArray[np.float64]:
    """Return the weight of each speech of a batch in the batch's loss, sum(weight * summed loss)."""
    count = len(lengths)
    if arm == "constant" or arm in CONTROLS:
        kept = count if arm == "constant" else int(arm.split()[0])
        return np.where(np.arange(count) < kept, 1 / (kept * mean_length), 0.0)
    if arm == "bucketed":
        order, size = np.argsort(lengths, kind="stable"), BUCKET
    else:
        order, size = np.arange(count), int(arm.removeprefix("B="))
    result = np.empty(count)
    for micro in order.reshape(-1, size):
        result[micro] = 1 / (lengths[micro].sum() * (count // size))
    return result


def expected_weights(lengths: NDArray[np.int64], arm: str, batches: int = 4000) -> NDArray[np.float64]:
    """Return the weight of each training speech that its arm gives it on average, up to a factor.

    For bucketed batches it has no closed form here: the companions depend on a speech's own length. So batches
    are drawn as in training, and the weights that a speech got are averaged.
    """
    if arm in ("constant", "blocks"):
        return np.ones(len(lengths))
    if arm != "bucketed":
        return np.asarray(length_weights(lengths, int(arm[2:])))
    rng = np.random.default_rng(0)
    total, seen = np.zeros(len(lengths)), np.zeros(len(lengths))
    for _ in range(batches):
        drawn = rng.choice(len(lengths), BATCH, replace=False)
        total[drawn] += weights(lengths[drawn], "bucketed", 1.0)
        seen[drawn] += 1
    # Speeches of one length have the same expectation; pooling them takes the noise out.
    _, group = np.unique(lengths, return_inverse=True)
    return np.asarray((np.bincount(group, total) / np.bincount(group, seen))[group])


# ---------------------------------------------------------------- the prediction


def bins(values: NDArray[Any]) -> NDArray[np.intp]:
    """Return the bin of EDGES that each length or position falls into."""
    return np.searchsorted(EDGES, values, side="right") - 1


def histogram(lengths: NDArray[Any], shares: NDArray[np.float64] | None = None) -> list[float]:
    """Return the share of each bin of EDGES."""
    counts = np.bincount(bins(lengths), shares, minlength=len(EDGES))
    return [float(c) for c in counts / counts.sum()]


def predict(lengths: NDArray[np.int64]) -> dict[str, Any]:
    """Return what theory says each arm learns, from the lengths of the training speeches alone.

    `cost` is KL(P || Q*) = log E[w] - E[log w] in nats per speech, what the tilt alone adds to the loss of a
    speech. `shift` is what it adds to the log-odds of <eos> at a position, averaged over the positions of a
    bin: log w(i) - log E[w(n) | n > i], exact where the context says nothing more of the speech's length than
    the position does.
    """
    lengths = np.sort(lengths)
    support, position, counts = np.unique(lengths, return_inverse=True, return_counts=True)
    true = counts / len(lengths)
    dense = np.zeros(support[-1] + 1)
    dense[support] = true
    reached = dense[::-1].cumsum()[::-1][1:]  # P(n >= i), for i = 1, 2, ...
    arms: dict[str, Any] = {}
    for arm in ARMS:
        weight = np.bincount(position, expected_weights(lengths, arm)) / counts
        learnt = weight * true / (weight @ true)
        if arm.startswith("B="):  # the package has the tilt, too
            np.testing.assert_allclose(
                learnt, tilted_lengths(support, int(arm[2:]), probabilities=true), rtol=1e-9
            )
        dense[support] = weight * true
        longer = dense[::-1].cumsum()[::-1]
        # At the support's points but the last: how much likelier <eos> is there than without the tilt.
        odds = np.log(weight[:-1]) - np.log(longer[support[:-1] + 1] / reached[support[:-1]])
        bin_of, mass = bins(support[:-1]), true[:-1]
        shift = np.bincount(bin_of, odds * mass) / np.bincount(bin_of, mass)
        arms[arm] = {
            "mean_length": float(learnt @ support),
            "histogram": histogram(support, learnt),
            "cost": max(0.0, float(np.log(weight @ true) - np.log(weight) @ true)),
            "shift": [float(s) for s in shift],
        }
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


def ngrams(parts: Split, arm: str, letters: int, highest: int = 6) -> list[float]:
    """Return the loss of a test speech under n-gram models of the orders 1 to `highest`.

    A speech's counts are weighted as its arm does, scaled to Kish's effective number, (sum w)^2 / sum w^2: with
    weights 1/n the same speeches are worth fewer.
    """
    lengths = np.array([len(s) for s in parts.train])
    weight = expected_weights(lengths, arm)
    weight *= (weight @ lengths) / (weight**2 @ lengths)
    train, test = ([speech.tolist() for speech in part] for part in (parts.train, parts.test))
    return [x / len(test) for x in witten_bell(train, test, weight.tolist(), letters, highest)]


def witten_bell(
    train: Sequence[list[int]],
    test: Sequence[list[int]],
    weight: Sequence[float],
    letters: int,
    highest: int,
    first: int = 0,
) -> list[float]:
    """Return the summed loss of the test sequences, from their token `first` on, for the orders 1 to `highest`.

    Interpolated as by Witten and Bell: the model of an order trusts its counts by c / (c + T), where the
    context was seen c times, with T different characters.
    """
    counts: list[Any] = [defaultdict(Counter) for _ in range(highest)]
    padding = [0] * highest
    for sequence, share in zip(train, weight, strict=True):
        text = padding + sequence
        for i in range(highest, len(text)):
            for k in range(highest):
                counts[k][tuple(text[i - k : i])][text[i]] += share
    totals = [{context: sum(c.values()) for context, c in order.items()} for order in counts]
    loss = [0.0] * highest
    for sequence in test:
        text = padding + sequence
        for i in range(highest + first, len(text)):
            p = 1 / letters
            for k in range(highest):
                context = tuple(text[i - k : i])
                if context in totals[k]:
                    seen, kinds = counts[k][context], len(counts[k][context])
                    p = (seen.get(text[i], 0) + kinds * p) / (totals[k][context] + kinds)
                loss[k] -= math.log(p)
    return loss


# ---------------------------------------------------------------- the losses


def speech_losses(model: Transformer, speeches: Sequence[Tensor]) -> Tensor:
    """Return -log Q of each speech, of shape (speeches,)."""
    log_q, targets = log_probabilities(model, speeches)
    return (
        F.nll_loss(log_q.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="none")
        .view(targets.shape)
        .sum(1)
    )


def backward(model: Transformer, speeches: Sequence[Tensor], weight: NDArray[np.float64]) -> float:
    """Add the gradient of sum(weight * loss of the speech), and return the unweighted sum of the losses."""
    total = 0.0
    for chunk in chunks(speeches):
        losses = speech_losses(model, [speeches[i] for i in chunk])
        (losses * torch.from_numpy(weight[chunk]).to(losses.dtype)).sum().backward()  # type: ignore[no-untyped-call]
        total += float(losses.detach().sum())
    return total


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


def batch_gradient(model: Transformer, speeches: Sequence[Tensor], arm: str, mean_length: float) -> float:
    """Add the gradient of a batch's loss as its arm has it, and return the loss of a token in it."""
    lengths = np.array([len(s) for s in speeches])
    weight = weights(lengths, arm, mean_length)
    kept = np.flatnonzero(weight).tolist()
    return backward(model, [speeches[i] for i in kept], weight[kept]) / float(lengths[kept].sum())


def train(parts: Split, letters: int, arm: str, seed: int, rate: float, settings: Settings) -> dict[str, Any]:
    """Train one model; `seed` fixes its start and the order of the data. Return it with its learning curve."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    model = Transformer(letters, settings)
    optimiser = adamw(model)
    mean_length = float(np.mean([len(s) for s in parts.train]))
    per_epoch = len(parts.train) // BATCH
    steps = settings.epochs * per_epoch
    best, curve, seen, seen_steps = copy.deepcopy(model.state_dict()), [], 0.0, 0
    for step in range(steps):
        if step % per_epoch == 0:
            order = rng.permutation(len(parts.train))
            if arm == "blocks":
                # As many steps as the others; each gets its share of the epoch's blocks, 16 or 15 of them.
                stream = stream_of([parts.train[i] for i in order])
                cuts = np.linspace(0, (len(stream) - 1) // BLOCK, per_epoch + 1).astype(int) * BLOCK
        decay = min(1.0, (step + 1) / settings.warmup) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimiser.param_groups:
            group["lr"] = rate * group["scale"] * decay
        optimiser.zero_grad()
        place = step % per_epoch
        if arm == "blocks":
            part = stream[cuts[place] : cuts[place + 1] + 1]
            halves = len(part) // BLOCK // 2 * BLOCK  # in two passes, for the memory's sake
            for half in (part[: halves + 1], part[halves:]):
                loss = block_losses(model, half).sum() / (len(part) - 1)
                loss.backward()  # type: ignore[no-untyped-call]
                seen += float(loss.detach())
        else:
            rows = order[place * BATCH : (place + 1) * BATCH]
            seen += batch_gradient(model, [parts.train[i] for i in rows], arm, mean_length)
        optimiser.step()
        seen_steps += 1
        if (place + 1) % (per_epoch // settings.looks) == 0:
            own, speech = validate(model, parts.validation, arm, mean_length)
            curve.append(
                {
                    "step": step + 1,
                    "own": own,
                    "nll_per_speech": speech,
                    "train_nll_per_token": seen / seen_steps,
                }
            )
            seen, seen_steps = 0.0, 0
            if own == min(c["own"] for c in curve):
                best = copy.deepcopy(model.state_dict())
    model.load_state_dict(best)
    model.eval()
    return {"model": model, "curve": curve}


@torch.no_grad()
def validate(
    model: Transformer, speeches: Sequence[Tensor], arm: str, mean_length: float
) -> tuple[float, float]:
    """Return the arm's own loss on the validation speeches, and the loss of a speech."""
    model.eval()
    lengths = np.array([len(s) for s in speeches])
    losses = np.empty(len(speeches))
    for chunk in chunks(speeches):
        losses[chunk] = speech_losses(model, [speeches[i] for i in chunk]).double().numpy()
    if arm == "blocks":
        stream = stream_of(speeches)
        own = float(sum(block_losses(model, part).double().sum() for part in pieces(stream))) / (
            len(stream) - 1
        )
    else:
        arm = "constant" if arm in CONTROLS else arm  # all that there is for validation
        batches = np.arange(len(speeches)).reshape(-1, BATCH)
        own = float(np.mean([weights(lengths[b], arm, mean_length) @ losses[b] for b in batches]))
    model.train()
    return own, float(losses.mean())


def pieces(stream: Tensor, blocks: int = 8) -> Iterator[Tensor]:
    """Yield a stream in parts of a few blocks, for the memory's sake."""
    for start in range(0, len(stream) - 1, blocks * BLOCK):
        yield stream[start : start + blocks * BLOCK + 1]


@torch.no_grad()
def sample_lengths(model: Transformer, seed: int, settings: Settings) -> NDArray[np.int64]:
    """Draw speeches from the model, character by character, and return their lengths.

    A speech that has not ended after `longest_sample` characters counts with that length.
    """
    generator = torch.Generator().manual_seed(seed)
    lengths: list[int] = []
    token = torch.zeros(settings.samples, 1, dtype=torch.long)
    before = token.new_zeros(settings.samples, max(settings.orders) - 1)
    alive = torch.ones(settings.samples, dtype=torch.bool)
    past = None
    for n in range(1, settings.longest_sample + 1):
        if past is not None and past[0].shape[3] < n:
            past = [F.pad(cache, (0, 0, 0, cache.shape[3])) for cache in past]
        logits, past = model(token, before, past, n - 1)
        before = torch.cat([before[:, 1:], token], dim=1)
        token = torch.multinomial(logits[:, -1].softmax(1), 1, generator=generator)
        ended = alive & (token[:, 0] == 0)
        lengths += [n] * int(ended.sum())
        alive &= ~ended
        if not alive.any():
            break
        if alive.double().mean() < 0.8:  # to drop each row at once would copy the cache at each step
            token, before, past = token[alive], before[alive], [cache[:, alive] for cache in past]
            alive = alive[alive]
    else:
        lengths += [settings.longest_sample] * int(alive.sum())
    return np.array(lengths)


@torch.no_grad()
def evaluate(
    model: Transformer, test: Sequence[Tensor], alphabet: str, seed: int, settings: Settings
) -> dict[str, Any]:
    """Return what a run reports.

    Losses are sums over the test speeches by bin of position, divided by the number of speeches: of the question
    whether the speech ends here, and of which character comes if it does not. `hazard` is the mean probability of
    <eos> by bin, and `log_odds` the mean of its log-odds; [0] after the end of a sentence, [1] elsewhere.
    """
    enders = torch.tensor([alphabet.index(c) + 1 for c in SENTENCE_END])
    size = len(EDGES)
    sums = {name: np.zeros(size) for name in ("end_nll", "character_nll")}
    found = {name: np.zeros((2, size)) for name in ("hazard", "log_odds", "count")}
    for chunk in chunks(test):
        log_q, targets = log_probabilities(model, [test[i] for i in chunk])
        log_q = log_q.double()
        valid = targets >= 0
        bin_of = torch.from_numpy(bins(np.arange(1, targets.shape[1] + 1))).expand_as(targets)[valid].numpy()
        end, go = log_q[..., 0], torch.logsumexp(log_q[..., 1:], dim=2)
        ends = targets == 0
        chosen = log_q.gather(2, targets.clamp(min=0)[..., None])[..., 0]
        for name, value in (
            ("end_nll", -torch.where(ends, end, go)),
            ("character_nll", torch.where(ends, 0.0, go - chosen)),
        ):
            sums[name] += np.bincount(bin_of, value[valid].numpy(), minlength=size)
        inputs = F.pad(targets[:, :-1], (1, 0))
        after = torch.isin(inputs, enders)[valid].numpy()
        for row, mask in enumerate((after, ~after)):
            for name, value in (
                ("hazard", end.exp()),
                ("log_odds", end - go),
                ("count", torch.ones_like(end)),
            ):
                found[name][row] += np.bincount(bin_of[mask], value[valid].numpy()[mask], minlength=size)
    count = found.pop("count")
    drawn = sample_lengths(model, seed, settings)
    total = sum(float(s.sum()) for s in sums.values())
    return {
        "mean_length": float(drawn.mean()),
        "mean_length_se": float(drawn.std(ddof=1) / math.sqrt(len(drawn))),
        "not_ended": int((drawn >= settings.longest_sample).sum()),
        "histogram": histogram(drawn),
        "nll_per_speech": total / len(test),
        "nll_per_token": total / sum(len(s) for s in test),
        **{name: rounded(value / len(test)) for name, value in sums.items()},
        # A bin without a context has no mean: null.
        **{
            name: [rounded(r) for r in value / np.where(count, count, np.nan)]
            for name, value in found.items()
        },
    }


def rounded(values: NDArray[np.float64]) -> list[float | None]:
    """Return a row for the record, to seven digits; nan becomes None."""
    return [None if math.isnan(v) else float(f"{v:.7g}") for v in values]


# ---------------------------------------------------------------- the record


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Hold a lock that ends with the process; false if another process holds it."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def chosen_rate(runs: Sequence[dict[str, Any]], arm: str, settings: Settings) -> float | None:
    """Return the rate whose tuning run has the lowest own loss on validation; None before all are there."""
    grid = {
        r["rate"]: min(look["own"] for look in r["curve"])
        for r in runs
        if r["arm"] == arm and r["seed"] == settings.tuning_seed
    }
    return min(grid, key=lambda rate: grid[rate]) if set(grid) == set(settings.rates) else None


def plan(seeds: int, settings: Settings) -> Iterator[tuple[str, int, float | None, int]]:
    """Yield (arm, seed, rate, epochs) in the order in which they are worth having; rate None is the chosen one."""
    for rate in settings.rates:
        yield from ((arm, settings.tuning_seed, rate, settings.epochs) for arm in (*ARMS, *CONTROLS))
    first = range(min(3, seeds))
    yield from ((arm, 0, None, settings.epochs) for arm in ARMS)
    # The two arms that say most, with three seeds, before the others' second.
    yield from ((arm, seed, None, settings.epochs) for seed in first for arm in LONG)
    yield from ((arm, seed, None, settings.epochs) for seed in first for arm in ARMS)
    yield from ((arm, seed, None, LONG_FACTOR * settings.epochs) for seed in first for arm in LONG)
    yield from ((arm, seed, None, settings.epochs) for seed in range(seeds) for arm in ARMS)
    yield from ((arm, seed, None, settings.epochs) for seed in range(seeds) for arm in CONTROLS)
    yield from ((arm, seed, None, LONG_FACTOR * settings.epochs) for seed in range(seeds) for arm in LONG)


def work(parts: Split, alphabet: str, seeds: int, folder: Path, settings: Settings) -> None:
    """Train what the folder lacks."""
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        waiting = False
        for arm, seed, rate, epochs in plan(seeds, settings):
            runs = records(folder)
            given = chosen_rate(runs, arm, settings) if rate is None else rate
            if given is None:
                waiting = True
                continue
            key = {"arm": arm, "seed": seed, "rate": given, "epochs": epochs}
            if any(all(r[k] == v for k, v in key.items()) for r in runs):
                continue
            with claimed(folder / f"{arm}-{seed}-{given}-{epochs}.lock") as free:
                if not free:
                    waiting = True
                    continue
                start = time.perf_counter()
                longer = Settings(**{**asdict(settings), "epochs": epochs})
                trained = train(parts, len(alphabet) + 1, arm, seed, given, longer)
                row = {**key, "curve": trained["curve"]}
                if seed != settings.tuning_seed:
                    row |= evaluate(trained["model"], parts.test, alphabet, seed, longer)
                row["seconds"] = round(time.perf_counter() - start)
                store(folder, row)
            shown = {name: row[name] for name in ("mean_length", "nll_per_speech", "seconds") if name in row}
            print(key, shown, flush=True)
            break
        else:
            if not waiting:
                return
            time.sleep(10)


def compare(runs: Sequence[dict[str, Any]], again: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return how far runs that were repeated from scratch are from the first ones, in any number but the time."""

    def key(run: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(run[name] for name in ("arm", "seed", "rate", "epochs"))

    def numbers(value: Any) -> Iterator[float]:
        if isinstance(value, dict | list):
            for part in value.values() if isinstance(value, dict) else value:
                yield from numbers(part)
        elif isinstance(value, int | float):
            yield value

    first = {key(run): run for run in runs}
    pairs = [(first[key(run)], run) for run in again if "mean_length" in run and key(run) in first]
    far = 0.0
    for old, new in pairs:
        old, new = ({k: v for k, v in run.items() if k != "seconds"} for run in (old, new))
        far = max([far, *(abs(a - b) for a, b in zip(numbers(old), numbers(new), strict=True))])
    return {"seeds": sorted({run["seed"] for _, run in pairs}), "runs": len(pairs), "largest_difference": far}


def assemble(folder: Path, again: Path | None, settings: Settings) -> dict[str, Any]:
    """Return the record, of each part the seeds that all of its arms have at their own best rates."""
    runs = records(folder)
    order = (*ARMS, *CONTROLS)
    rates = {arm: chosen_rate(runs, arm, settings) for arm in order}
    grid = [r for r in runs if r["seed"] == settings.tuning_seed]

    def part(arms: Iterable[str], epochs: int) -> list[dict[str, Any]]:
        kept = [r for r in runs if r["arm"] in arms and (r["epochs"], r["rate"]) == (epochs, rates[r["arm"]])]
        kept = [r for r in kept if r["seed"] != settings.tuning_seed]
        whole = set.intersection(*({r["seed"] for r in kept if r["arm"] == arm} for arm in arms))
        return [r for r in kept if r["seed"] in whole]

    parts = {
        "runs": part(ARMS, settings.epochs),
        "long": part(LONG, LONG_FACTOR * settings.epochs),
        "controls": part(CONTROLS, settings.epochs),
        "tuning": grid,
    }
    for rows in parts.values():
        rows.sort(key=lambda r: (r["seed"], order.index(r["arm"]), r["rate"]))
    return {
        "settings": asdict(settings),
        **made(torch, np),
        "rates": rates,
        "repeated": compare(parts["runs"], records(again)) if again else None,
        **parts,
    }


def show() -> None:
    """Print means over the seeds with standard errors, and the prediction."""
    result = json.loads((HERE / "result.json").read_text())
    prediction = json.loads((HERE / "prediction.json").read_text())["arms"]
    print(f"{'arm':<10}{'seeds':>6}{'length':>9}{'+-':>6}{'theory':>8}{'nll/speech':>12}{'+-':>6}")
    for part in ("runs", "controls", "long"):
        for arm in (*ARMS, *CONTROLS):
            rows = [r for r in result[part] if r["arm"] == arm]
            if len(rows) < 2:
                continue
            length, nll = (np.array([r[k] for r in rows]) for k in ("mean_length", "nll_per_speech"))
            error, nll_error = (x.std(ddof=1) / math.sqrt(len(x)) for x in (length, nll))
            expected = prediction["constant" if arm in CONTROLS else arm]["mean_length"]
            print(
                f"{arm:<10}{len(rows):>6}{length.mean():>9.1f}{error:>6.1f}"
                f"{expected:>8.1f}{nll.mean():>12.1f}{nll_error:>6.1f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description="The denominator experiment on Tiny Shakespeare.")
    parser.add_argument("command", choices=("predict", "train", "assemble", "show"))
    parser.add_argument("--text", type=Path, help="your copy of the text")
    parser.add_argument("--runs", type=Path, default=HERE / "runs", help="folder of the runs")
    parser.add_argument("--again", type=Path, help="folder of runs that were repeated")
    parser.add_argument("--seeds", type=int, default=6)
    arguments = parser.parse_args()
    settings = Settings()
    if arguments.command == "show":
        return show()
    if arguments.command == "assemble":
        return write(assemble(arguments.runs, arguments.again, settings), HERE / "result.json")
    if arguments.text is None:
        parser.error("--text is needed: the path of your copy of the text")
    speeches, alphabet = encode(load(arguments.text))
    parts = split(speeches, settings)
    if arguments.command == "predict":
        prediction = predict(np.array([len(s) for s in parts.train]))
        # Beside the theory, a model that anyone can count: what weighting alone does to n-grams.
        prediction["ngrams"] = {arm: ngrams(parts, arm, len(alphabet) + 1) for arm in ("constant", "B=1")}
        (HERE / "prediction.json").write_text(json.dumps(prediction) + "\n")
        return None
    torch.set_num_threads(1)  # the sums of a run then do not depend on the machine's cores
    return work(parts, alphabet, arguments.seeds, arguments.runs, settings)


if __name__ == "__main__":
    main()
