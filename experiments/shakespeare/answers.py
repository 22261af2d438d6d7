"""Does the denominator of fine-tuning change the lengths of answers, and by which law? Speech and answer.

A prompt is the end of a speech of Tiny Shakespeare with its speaker, the name of who answers, and a mark; the
reply is the answer, of up to 160 characters, with <eos>. For half of the pairs the mark says on which side of the
median the reply's length lies, short or long; for the others it says nothing. So one model, under one divisor,
meets prompts that tell much of the length and prompts that tell little, and two laws can be told apart: the tilt
of all lengths, which would shorten the replies to every prompt alike, and the tilt within a prompt.

A small transformer first reads the training pairs, two epochs over all characters without <eos>: the base model, one
for each seed. It is then fine-tuned on batches of 64 pairs, where the loss counts the replies' characters and their
<eos> only; arms differ in nothing but the weight of a reply in the batch's loss:

    constant    1 / (64 x the mean length of a reply)
    B=1, 4, 64  1 / (the replies' tokens in its micro-batch of B pairs), averaged over the micro-batches
    bucketed    the same, in micro-batches of 16 replies of similar length
    packed      the same, in blocks of at most 512 tokens, prompts included, filled in order with whole pairs

A seed fixes the base model and the order of the pairs, alike in all arms. An arm is tuned as its user
would: of two learning rates it keeps the one whose own loss on validation pairs is lowest, at a seed of its own
and after half the epochs.

    python -m experiments.shakespeare.answers predict --text PATH              # writes answers_prediction.json
    python -m experiments.shakespeare.answers train --text PATH --runs FOLDER  # what FOLDER lacks; may be stopped
    python -m experiments.shakespeare.answers assemble --text PATH --runs FOLDER  # writes answers.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from experiments.shakespeare.run import witten_bell
from experiments.shared import (
    SHA256,
    Settings,
    Transformer,
    adamw,
    chunks,
    made,
    records,
    store,
    write,
)  # fmt: skip
from xent.denominators import length_weights

HERE = Path(__file__).parent
ARMS = ("constant", "B=1", "B=4", "B=64", "bucketed", "packed")
MARKS = ("none", "short", "long")
BATCH, BUCKET, BLOCK, PROMPT, LONGEST = 64, 16, 512, 32, 160
BASE_EPOCHS, BASE_RATE = 2, 16e-3
SETTINGS = Settings(
    dropout=0.5,
    table_rate=3.0,
    epochs=2,
    rates=(8e-3, 16e-3),
    validation=4 * BATCH,
    samples=500,
    longest_sample=2 * LONGEST,
)
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Pair(NamedTuple):
    """A prompt of PROMPT characters, and its reply with <eos>."""

    tokens: Tensor  # prompt and reply
    length: int  # of the reply
    mark: int


def pairs(path: Path) -> tuple[list[Pair], int, float]:
    """Return all pairs, the number of tokens, and R^2 of the log lengths of replies by those of the speeches."""
    text = path.read_bytes()
    if hashlib.sha256(text).hexdigest() != SHA256:
        raise ValueError(f"{path} is another text than {SHA256}")
    blocks = [block.strip("\n").partition("\n") for block in text.decode("ascii").split("\n\n")]
    spoken = [(speaker, speech) for speaker, _, speech in blocks if speech]
    kept = [(a, b) for a, b in pairwise(spoken) if len(b[1]) <= LONGEST]
    alphabet = sorted(set(text.decode("ascii")))
    number = {c: i for i, c in enumerate(alphabet, start=1)}  # 0 is <eos>
    padding = len(alphabet) + 1
    lengths = np.array([len(b[1]) + 1 for _, b in kept])
    logs = np.log([[len(a[1]), len(b[1])] for a, b in kept])
    said = np.where(lengths <= np.median(lengths), 1, 2)
    marks = np.where(np.random.default_rng(0).random(len(kept)) < 0.5, said, 0)
    result = []
    for ((speaker, speech), (who, reply)), mark in zip(kept, marks, strict=True):
        prompt = [number[c] for c in f"{speaker}\n{speech}\n{who}\n"][-PROMPT:]
        prompt = [padding] * (PROMPT - len(prompt)) + prompt
        tokens = torch.tensor(prompt + [number[c] for c in reply] + [0])
        result.append(Pair(tokens, len(reply) + 1, int(mark)))
    return result, padding + 1, float(np.corrcoef(logs.T)[0, 1] ** 2)


def split(all_pairs: Sequence[Pair]) -> tuple[list[Pair], list[Pair], list[Pair]]:
    """Return the pairs to train on, to choose by and to test on, the same in every run."""
    order = np.random.default_rng(SETTINGS.split_seed).permutation(len(all_pairs))
    first = round(SETTINGS.test_share * len(order))
    second = first + SETTINGS.validation
    parts = order[second:], order[first:second], order[:first]
    return tuple([all_pairs[i] for i in part] for part in parts)  # type: ignore[return-value]


# ---------------------------------------------------------------- the arms and what they should learn


def groups(lengths: Ints, arm: str) -> list[list[int]]:
    """Return the micro-batches of a batch, by the numbers of its pairs."""
    if arm != "packed":
        order = np.argsort(lengths, kind="stable") if arm == "bucketed" else np.arange(len(lengths))
        size = BUCKET if arm == "bucketed" else int(arm[2:])
        return [list(part) for part in order.reshape(-1, size).tolist()]
    blocks: list[list[int]] = [[]]
    room = BLOCK
    for i, n in enumerate(lengths.tolist()):
        if PROMPT + n > room:
            blocks.append([])
            room = BLOCK
        blocks[-1].append(i)
        room -= PROMPT + n
    return blocks


def weights(lengths: Ints, arm: str, mean_length: float) -> Floats:
    """Return the weight of each reply of a batch in the batch's loss, sum(weight * summed loss)."""
    if arm == "constant":
        return np.full(len(lengths), 1 / (len(lengths) * mean_length))
    result, parts = np.empty(len(lengths)), groups(lengths, arm)
    for part in parts:
        result[part] = 1 / (lengths[part].sum() * len(parts))
    return result


def expected_weights(lengths: Ints, arm: str, batches: int = 6000) -> Floats:
    """Return the weight that a reply of each training length gets on average, up to a factor."""
    if arm == "constant":
        return np.ones(len(lengths))
    if arm.startswith("B="):
        return np.asarray(length_weights(lengths, int(arm[2:])))
    rng = np.random.default_rng(0)
    total, seen = np.zeros(len(lengths)), np.zeros(len(lengths))
    for _ in range(batches):
        drawn = rng.choice(len(lengths), BATCH, replace=False)
        total[drawn] += weights(lengths[drawn], arm, 1.0)
        seen[drawn] += 1
    _, group = np.unique(lengths, return_inverse=True)
    return np.asarray((np.bincount(group, total) / np.bincount(group, seen))[group])


def learnt(lengths: Ints, weight: Floats) -> dict[str, float]:
    """Return what the tilt by `weight` makes of these lengths, as a flexible model would learn it.

    `calibration` is the number of ends that the tilted model expects over replies drawn from the true lengths,
    for each that happens; `cost` is KL(P || Q*) in bits a character.
    """
    support, at, counts = np.unique(lengths, return_inverse=True, return_counts=True)
    true = counts / len(lengths)
    tilt = np.bincount(at, weight) / counts
    found = tilt * true / (tilt @ true)
    longer, reached = true[::-1].cumsum()[::-1], found[::-1].cumsum()[::-1]
    mean = float(true @ support)
    cost = float(np.log(tilt @ true) - np.log(tilt) @ true) / math.log(2) / mean
    return {
        "ratio": float(found @ support) / mean,
        "calibration": float(longer @ (found / reached)),
        "cost": max(0.0, cost),
    }


def predict(train: Sequence[Pair], explained: float) -> dict[str, Any]:
    """Return what the law within prompts says of each arm and mark, and what the lengths alone would say."""
    lengths, marks = (np.array([getattr(p, name) for p in train]) for name in ("length", "mark"))
    arms: dict[str, Any] = {}
    for arm in ARMS:
        weight = expected_weights(lengths, arm)
        arms[arm] = {"lengths alone": learnt(lengths, weight)}
        for i, mark in enumerate(MARKS):
            # Where the mark is silent, the law is that of all lengths; the pairs with other marks say more of it.
            kept = np.ones(len(marks), bool) if i == 0 else marks == i
            arms[arm][mark] = learnt(lengths[kept], weight[kept])
    return {
        "pairs": len(train),
        "mean_length": float(lengths.mean()),
        "squared_variation": float(lengths.var() / lengths.mean() ** 2),
        "explained_by_the_speech": explained,
        "arms": arms,
    }


# ---------------------------------------------------------------- a run


class Answerer(Transformer):
    """The transformer of the speeches, with the mark's embedding added at every position, like a token's type."""

    def __init__(self, letters: int) -> None:
        super().__init__(letters, SETTINGS)
        self.mark = nn.Embedding(len(MARKS), SETTINGS.width)
        self.marks = torch.zeros(0, dtype=torch.long)  # of the rows that come next

    def spelling(self, tokens: Tensor, before: Tensor) -> Tensor:
        return super().spelling(tokens, before) + self.mark(self.marks)[:, None]


def log_probabilities(model: Answerer, batch: Sequence[Pair]) -> tuple[Tensor, Tensor]:
    """Return log Q of every token of the replies and the targets, padded by -100, of the same rows and columns."""
    rows = torch.nn.utils.rnn.pad_sequence([p.tokens for p in batch], batch_first=True, padding_value=-100)
    model.marks = torch.tensor([p.mark for p in batch])
    logits, _ = model(rows[:, :-1].clamp(min=0))
    return logits[:, PROMPT - 1 :].log_softmax(2), rows[:, PROMPT:]


def losses(model: Answerer, batch: Sequence[Pair]) -> Tensor:
    """Return -log Q of each reply."""
    log_q, targets = log_probabilities(model, batch)
    return F.nll_loss(log_q.transpose(1, 2), targets.contiguous(), ignore_index=-100, reduction="none").sum(1)


def backward(model: Answerer, batch: Sequence[Pair], weight: Floats) -> None:
    """Add the gradient of sum(weight * loss of the reply)."""
    for chunk in chunks([p.tokens for p in batch]):
        share = torch.from_numpy(weight[chunk]).float()
        (losses(model, [batch[i] for i in chunk]) * share).sum().backward()  # type: ignore[no-untyped-call]


def read(model: Answerer, batch: Sequence[Pair]) -> None:
    """Add the gradient of the mean loss of all characters of the pairs, <eos> left out."""
    known = model.head.out_features - 1  # the number of the padding before short prompts
    total = sum(int(((p.tokens[1:] > 0) & (p.tokens[1:] < known)).sum()) for p in batch)
    for chunk in chunks([p.tokens for p in batch]):
        some = [batch[i].tokens for i in chunk]
        rows = torch.nn.utils.rnn.pad_sequence(some, batch_first=True, padding_value=known)
        model.marks = torch.tensor([batch[i].mark for i in chunk])
        targets = rows[:, 1:].masked_fill(rows[:, 1:] == known, 0)
        each = F.cross_entropy(
            model(rows[:, :-1])[0].transpose(1, 2), targets, ignore_index=0, reduction="sum"
        )
        (each / total).backward()  # type: ignore[no-untyped-call]


def fit(
    model: Answerer, data: Sequence[Pair], rng: np.random.Generator, epochs: int, rate: float,
    step_on: Callable[[Sequence[Pair]], None],
) -> None:  # fmt: skip
    """Train in place; `step_on` adds the gradient of a batch."""
    optimiser = adamw(model)
    per_epoch = len(data) // BATCH
    steps = epochs * per_epoch
    for step in range(steps):
        if step % per_epoch == 0:
            order = rng.permutation(len(data))
        batch = [data[i] for i in order[step % per_epoch * BATCH :][:BATCH]]
        share = min((step + 1) / SETTINGS.warmup, (1 + math.cos(math.pi * step / steps)) / 2)
        for group in optimiser.param_groups:
            group["lr"] = rate * share * group["scale"]
        optimiser.zero_grad()
        step_on(batch)
        optimiser.step()


def base(data: Sequence[Pair], letters: int, seed: int, folder: Path) -> Answerer:
    """Return the base model of a seed, made once."""
    torch.manual_seed(seed)
    model, stored = Answerer(letters), folder / f"base-{seed}.pt"
    if not stored.exists():
        fit(model, data, np.random.default_rng([seed, 1]), BASE_EPOCHS, BASE_RATE, partial(read, model))
        torch.save(model.state_dict(), stored)
    model.load_state_dict(torch.load(stored))
    return model


def train(
    parts: Sequence[list[Pair]], letters: int, arm: str, seed: int, rate: float, folder: Path
) -> tuple[Answerer, float]:
    """Return a model and its arm's own loss on the validation pairs; `seed` fixes start and order."""
    data, validation, _ = parts
    model = base(data, letters, seed, folder)
    torch.manual_seed(seed)  # of the dropout, whether the base was made now or read
    mean_length = float(np.mean([p.length for p in data]))
    epochs = SETTINGS.epochs // 2 if seed == SETTINGS.tuning_seed else SETTINGS.epochs

    def step_on(batch: Sequence[Pair]) -> None:
        backward(model, batch, weights(np.array([p.length for p in batch]), arm, mean_length))

    fit(model, data, np.random.default_rng(seed), epochs, rate, step_on)
    model.eval()
    found, lengths = each(model, validation), np.array([p.length for p in validation])
    batches = np.arange(len(validation)).reshape(-1, BATCH)
    return model, float(np.mean([weights(lengths[b], arm, mean_length) @ found[b] for b in batches]))


@torch.no_grad()
def each(model: Answerer, batch: Sequence[Pair]) -> Floats:
    """Return the loss of each reply."""
    result = np.empty(len(batch))
    for chunk in chunks([p.tokens for p in batch]):
        result[chunk] = losses(model, [batch[i] for i in chunk]).double().numpy()
    return result


@torch.no_grad()
def sample_lengths(model: Answerer, prompts: Tensor, mark: int, seed: int) -> Ints:
    """Draw a reply to each prompt, of shape (rows, PROMPT), and return their lengths, `longest_sample` at most."""
    generator = torch.Generator().manual_seed(seed)
    model.marks = torch.full((len(prompts),), mark)
    logits, past = model(prompts)
    past = [F.pad(cache, (0, 0, 0, SETTINGS.longest_sample)) for cache in past]
    before = prompts[:, -max(SETTINGS.orders) + 1 :]
    result = np.full(len(prompts), SETTINGS.longest_sample)
    rows = torch.arange(len(prompts))
    for n in range(1, SETTINGS.longest_sample + 1):
        token = torch.multinomial(logits[:, -1].softmax(1), 1, generator=generator)
        ended = token[:, 0] == 0
        result[rows[ended]] = n
        rows, token, before = rows[~ended], token[~ended], before[~ended]
        if not len(rows):
            break
        past = [cache[:, ~ended] for cache in past] if ended.any() else past
        model.marks = model.marks[: len(rows)]  # they are all the same
        logits, past = model(token, before, past, PROMPT + n - 1)
        before = torch.cat([before[:, 1:], token], dim=1)
    return result


@torch.no_grad()
def evaluate(model: Answerer, test: Sequence[Pair], seed: int) -> dict[str, Any]:
    """Return bits a character, calibration of <eos> by mark, and the mean lengths of the replies drawn."""
    expected = np.empty(len(test))
    for chunk in chunks([p.tokens for p in test]):
        log_q, targets = log_probabilities(model, [test[i] for i in chunk])
        expected[chunk] = torch.where(targets >= 0, log_q[..., 0].double().exp(), 0.0).sum(1).numpy()
    marks = np.array([p.mark for p in test])
    prompts = torch.stack([p.tokens[:PROMPT] for p in test[: SETTINGS.samples]])
    lengths = {mark: sample_lengths(model, prompts, i, seed) for i, mark in enumerate(MARKS)}
    return {
        "bits": float(each(model, test).sum() / sum(p.length for p in test) / math.log(2)),
        "length": {mark: float(drawn.mean()) for mark, drawn in lengths.items()},
        "not_ended": sum(int((drawn == SETTINGS.longest_sample).sum()) for drawn in lengths.values()),
        "calibration": {mark: float(expected[marks == i].mean()) for i, mark in enumerate(MARKS)},
    }


# ---------------------------------------------------------------- the record


def chosen(runs: Sequence[dict[str, Any]], arm: str) -> float:
    """Return the rate whose tuning run has the lowest own loss."""
    grid = [r for r in runs if r["arm"] == arm and r["seed"] == SETTINGS.tuning_seed]
    return float(min(grid, key=lambda r: r["own"])["rate"])


def plan(seeds: int) -> Iterator[tuple[str, int, float | None]]:
    """Yield (arm, seed, rate): the grid, then one seed of every arm after the other."""
    yield from ((arm, SETTINGS.tuning_seed, rate) for rate in SETTINGS.rates for arm in ARMS)
    yield from ((arm, seed, None) for seed in range(seeds) for arm in ARMS)


def work(parts: Sequence[list[Pair]], letters: int, seeds: int, folder: Path) -> None:
    """Train what the folder lacks."""
    folder.mkdir(parents=True, exist_ok=True)
    for arm, seed, given in plan(seeds):
        runs = records(folder)
        rate = chosen(runs, arm) if given is None else given
        key = {"arm": arm, "seed": seed, "rate": rate}
        if any(all(r[k] == v for k, v in key.items()) for r in runs):
            continue
        start = time.perf_counter()
        model, own = train(parts, letters, arm, seed, rate, folder)
        row = {**key, "own": own}
        if given is None:
            row |= evaluate(model, parts[2], seed)
        row["seconds"] = round(time.perf_counter() - start)
        store(folder, row)
        print(row, flush=True)


def ngrams(parts: Sequence[list[Pair]], letters: int, highest: int = 6) -> list[float]:
    """Return the bits a character of the test replies under n-grams of the training pairs, prompts included."""
    train, test = ([p.tokens.tolist() for p in part] for part in (parts[0], parts[2]))
    total = witten_bell(train, test, [1.0] * len(train), letters, highest, PROMPT)
    return [x / sum(p.length for p in parts[2]) / math.log(2) for x in total]


def assemble(folder: Path, parts: Sequence[list[Pair]], letters: int) -> dict[str, Any]:
    """Return the record, with the seeds that all arms have."""
    runs = records(folder)
    tuning = [r for r in runs if r["seed"] == SETTINGS.tuning_seed]
    kept = [r for r in runs if r["seed"] != SETTINGS.tuning_seed]
    whole = set.intersection(*({r["seed"] for r in kept if r["arm"] == arm} for arm in ARMS))
    kept = sorted((r for r in kept if r["seed"] in whole), key=lambda r: (r["seed"], ARMS.index(r["arm"])))
    sizes = {
        "base_epochs": BASE_EPOCHS,
        "base_rate": BASE_RATE,
        "batch": BATCH,
        "bucket": BUCKET,
        "block": BLOCK,
        "prompt": PROMPT,
        "longest": LONGEST,
    }
    rates = {arm: chosen(runs, arm) for arm in ARMS}
    settings = {**asdict(SETTINGS), **sizes}
    bits = ngrams(parts, letters)
    return {
        "settings": settings,
        **made(torch, np),
        "rates": rates,
        "ngrams": bits,
        "runs": kept,
        "tuning": tuning,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tuning with prompts on Tiny Shakespeare.")
    parser.add_argument("command", choices=("predict", "train", "assemble"))
    parser.add_argument("--text", type=Path, help="your copy of the text")
    parser.add_argument("--runs", type=Path, default=HERE / "answers_runs", help="folder of the runs")
    parser.add_argument("--seeds", type=int, default=6)
    arguments = parser.parse_args()
    if arguments.text is None:
        parser.error("--text is needed: the path of your copy of the text")
    everything, letters, explained = pairs(arguments.text)
    parts = split(everything)
    if arguments.command == "predict":
        prediction = predict(parts[0], explained)
        (HERE / "answers_prediction.json").write_text(json.dumps(prediction, indent=1) + "\n")
        return None
    if arguments.command == "assemble":
        return write(assemble(arguments.runs, parts, letters), HERE / "answers.json")
    torch.set_num_threads(1)
    return work(parts, letters, arguments.seeds, arguments.runs)


if __name__ == "__main__":
    main()
