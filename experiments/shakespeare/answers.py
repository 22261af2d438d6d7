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

import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from experiments.shakespeare import run
from experiments.shakespeare.run import HERE, Floats, Ints, Row
from experiments.shared import Settings, Transformer, chunks, split, spoken, write

ARMS = ("constant", "B=1", "B=4", "B=64", "bucketed", "packed")
MARKS = ("none", "short", "long")
BATCH, BLOCK, PROMPT, LONGEST = 64, 512, 32, 160
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


class Pair(NamedTuple):
    """A prompt of PROMPT characters, and its reply with <eos>."""

    tokens: Tensor  # prompt and reply
    length: int  # of the reply
    mark: int


def pairs(path: Path) -> tuple[list[Pair], int, float]:
    """Return all pairs, the number of tokens, and R^2 of the log lengths of replies by those of the speeches."""
    kept = [(a, b) for a, b in pairwise(spoken(path)) if len(b[1]) <= LONGEST]
    alphabet = sorted(set(path.read_text(encoding="ascii")))
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


def tokens(batch: Sequence[Pair]) -> list[Tensor]:
    return [p.tokens for p in batch]


def lengths_of(batch: Sequence[Pair]) -> Ints:
    return np.array([p.length for p in batch])


# ---------------------------------------------------------------- the arms and what they should learn


def groups(lengths: Ints, arm: str) -> list[list[int]]:
    """Return the micro-batches of a batch, by the numbers of its pairs."""
    if arm != "packed":
        return run.groups(lengths, arm)
    blocks: list[list[int]] = [[]]
    room = BLOCK
    for i, n in enumerate(lengths.tolist()):
        if PROMPT + n > room:
            blocks.append([])
            room = BLOCK
        blocks[-1].append(i)
        room -= PROMPT + n
    return blocks


weights = partial(run.weights, cut=groups)


def learnt(lengths: Ints, weight: Floats) -> dict[str, float]:
    """Return what the tilt by `weight` makes of these lengths, as a flexible model would learn it.

    `calibration` is the number of ends that the tilted model expects over replies drawn from the true lengths, whose
    text does not foretell them, for each that happens; `cost` is KL(P || Q*) in bits a character.
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


def predict(train: Sequence[Pair], explained: float) -> Row:
    """Return what the law within prompts says of each arm and mark, and what the lengths alone would say."""
    lengths, marks = lengths_of(train), np.array([p.mark for p in train])
    arms: Row = {}
    for arm in ARMS:
        weight = run.expected_weights(lengths, arm, BATCH, 6000, weights)
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
    rows = torch.nn.utils.rnn.pad_sequence(tokens(batch), batch_first=True, padding_value=-100)
    model.marks = torch.tensor([p.mark for p in batch])
    logits, _ = model(rows[:, :-1].clamp(min=0))
    return logits[:, PROMPT - 1 :].log_softmax(2), rows[:, PROMPT:]


def losses(model: Answerer, batch: Sequence[Pair]) -> Tensor:
    """Return -log Q of each reply."""
    log_q, targets = log_probabilities(model, batch)
    return F.nll_loss(log_q.transpose(1, 2), targets.contiguous(), ignore_index=-100, reduction="none").sum(1)


def read(model: Answerer, batch: Sequence[Pair]) -> None:
    """Add the gradient of the mean loss of all characters of the pairs, <eos> left out."""
    known = model.head.out_features - 1  # the number of the padding before short prompts
    total = sum(int(((p.tokens[1:] > 0) & (p.tokens[1:] < known)).sum()) for p in batch)
    for chunk in chunks(tokens(batch)):
        some = [batch[i] for i in chunk]
        rows = torch.nn.utils.rnn.pad_sequence(tokens(some), batch_first=True, padding_value=known)
        model.marks = torch.tensor([p.mark for p in some])
        targets = rows[:, 1:].masked_fill(rows[:, 1:] == known, 0)
        logits, _ = model(rows[:, :-1])
        each = F.cross_entropy(logits.mT, targets, ignore_index=0, reduction="sum")
        (each / total).backward()  # type: ignore[no-untyped-call]


def fit(
    model: Answerer, data: Sequence[Pair], rng: np.random.Generator, epochs: int, rate: float,
    step_on: Callable[[Sequence[Pair]], None],
) -> None:  # fmt: skip
    def batch(order: NDArray[np.intp], place: int) -> None:
        step_on([data[i] for i in order[place * BATCH :][:BATCH]])

    run.fit(model, len(data), BATCH, epochs, rate, rng, batch, both=min)


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
    mean_length = float(lengths_of(data).mean())
    epochs = SETTINGS.epochs // 2 if seed == SETTINGS.tuning_seed else SETTINGS.epochs

    def step_on(batch: Sequence[Pair]) -> None:
        weight = weights(lengths_of(batch), arm, mean_length)
        run.backward(lambda chunk: losses(model, [batch[i] for i in chunk]), tokens(batch), weight)

    fit(model, data, np.random.default_rng(seed), epochs, rate, step_on)
    model.eval()
    found, lengths = each(model, validation), lengths_of(validation)
    return model, run.own_loss(lengths, found, BATCH, lambda n: weights(n, arm, mean_length))


def each(model: Answerer, batch: Sequence[Pair]) -> Floats:
    """Return the loss of each reply."""
    return run.each(lambda chunk: losses(model, [batch[i] for i in chunk]), tokens(batch))


@torch.no_grad()
def evaluate(model: Answerer, test: Sequence[Pair], seed: int) -> Row:
    """Return bits a character, calibration of <eos> by mark, and the mean lengths of the replies drawn."""
    expected = np.empty(len(test))
    for chunk in chunks(tokens(test)):
        log_q, targets = log_probabilities(model, [test[i] for i in chunk])
        expected[chunk] = torch.where(targets >= 0, log_q[..., 0].double().exp(), 0.0).sum(1).numpy()
    marks = np.array([p.mark for p in test])
    prompts = torch.stack([p.tokens[:PROMPT] for p in test[: SETTINGS.samples]])
    lengths = {}
    for i, mark in enumerate(MARKS):
        model.marks = torch.tensor([i])  # of all rows
        lengths[mark] = float(run.sample_lengths(model, prompts, seed, SETTINGS, alive_at_least=1.0).mean())
    return {
        "bits": float(each(model, test).sum() / sum(p.length for p in test) / math.log(2)),
        "length": lengths,
        "calibration": {mark: float(expected[marks == i].mean()) for i, mark in enumerate(MARKS)},
    }


# ---------------------------------------------------------------- the record


def main() -> None:
    given = run.arguments("Fine-tuning with prompts on Tiny Shakespeare.", "answers_runs")
    everything, letters, explained = pairs(given.text)
    parts = split(everything, SETTINGS)

    def one(arm: str, seed: int, rate: float) -> Row:
        model, own = train(parts, letters, arm, seed, rate, given.runs)
        return {"own": own} | ({} if seed == SETTINGS.tuning_seed else evaluate(model, parts[2], seed))

    if given.command == "predict":
        prediction = predict(parts[0], explained)
        (HERE / "answers_prediction.json").write_text(json.dumps(prediction, indent=1) + "\n")
    elif given.command == "assemble":
        known, asked = ([t.tolist() for t in tokens(part)] for part in (parts[0], parts[2]))
        total = run.ngrams(known, asked, letters, first=PROMPT)
        bits = [x / lengths_of(parts[2]).sum() / math.log(2) for x in total]
        record = run.assemble(ARMS, given.runs, SETTINGS, ngrams=bits)
        sizes = {"base_epochs": BASE_EPOCHS, "base_rate": BASE_RATE, "batch": BATCH, "bucket": run.BUCKET}
        record["settings"] |= sizes | {"block": BLOCK, "prompt": PROMPT, "longest": LONGEST}
        write(record, HERE / "answers.json")
    else:
        run.work(ARMS, given.seeds, given.runs, SETTINGS, one)


if __name__ == "__main__":
    main()
