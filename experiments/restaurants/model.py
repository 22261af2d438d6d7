"""A small transformer that reads a meaning and writes a text, its training, and what is measured of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from experiments.restaurants.data import END, SLOTS, Data, Pair, slots_missed
from experiments.shared import Block, Settings, chunks

Floats = NDArray[np.float64]
Past: TypeAlias = "list[Tensor] | None"  # keys and values of each layer

WIDTH, HEADS, LAYERS, LONGEST = 96, 4, 2, 80
BATCH, STEPS, WARMUP, WEIGHT_DECAY = 64, 400, 30, 0.01
RATES = (8e-3, 16e-3, 32e-3, 64e-3)
SAMPLES = 8  # texts that a model writes for each meaning of the test part
PROMPT = len(SLOTS)


class Describer(nn.Module):
    """A causal transformer over the eight slots of a meaning and the words of its text.

    Each value of a slot is a token of its own, "nothing said" as well, so that all prompts have eight tokens.
    """

    def __init__(self, data: Data, width: int = WIDTH, layers: int = LAYERS, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout  # of what the first layer reads and of what the head reads
        said = {(s, v) for p in data.train for s, v in zip(SLOTS, p.meaning, strict=True)}
        values = sorted(said | {(s, "") for s in SLOTS})
        self.value = {key: len(data.words) + i for i, key in enumerate(values)}
        self.embedding = nn.Embedding(len(data.words) + len(values), width)
        self.position = nn.Embedding(PROMPT + LONGEST, width)
        self.blocks = nn.ModuleList(Block(Settings(width=width, heads=HEADS)) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(data.words))
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                std = {"embedding.weight": 1.0, "position.weight": 0.3}.get(name, width**-0.5)
                nn.init.normal_(parameter, std=std)

    def prompt(self, meaning: Sequence[str]) -> list[int]:
        """Return the tokens of a meaning."""
        return [self.value[key] for key in zip(SLOTS, meaning, strict=True)]

    def hidden(self, tokens: Tensor, past: Past = None, start: int = 0) -> tuple[Tensor, list[Tensor]]:
        """Return what the head reads at each position, and each layer's keys and values."""
        x = self.embedding(tokens) + self.position(torch.arange(start, start + tokens.shape[1]))
        x, caches = F.dropout(x, self.dropout, self.training), []
        for i, block in enumerate(self.blocks):
            x, cache = block(x, None if past is None else past[i], start)
            caches.append(cache)
        return F.dropout(self.norm(x), self.dropout, self.training), caches

    def forward(self, tokens: Tensor, past: Past = None, start: int = 0) -> tuple[Tensor, list[Tensor]]:
        """Return the logits of the next word at each position, and each layer's keys and values."""
        hidden, caches = self.hidden(tokens, past, start)
        return self.head(hidden), caches


def padded(model: Describer, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor]:
    """Return what the model reads, prompts and replies without their last word, and the replies, padded by -100."""
    replies = [torch.tensor(p.reply) for p in pairs]
    targets = nn.utils.rnn.pad_sequence(replies, batch_first=True, padding_value=-100)
    prompts = torch.tensor([model.prompt(p.meaning) for p in pairs])
    return torch.cat([prompts, targets[:, :-1].clamp(min=0)], 1), targets


def log_probs(model: Describer, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor]:
    """Return log Q of every word at every position of the replies, and the replies, padded by -100."""
    read, targets = padded(model, pairs)
    return model(read)[0][:, PROMPT - 1 :].log_softmax(2), targets


def summed(model: Describer, pairs: Sequence[Pair]) -> Tensor:
    """Return -log Q of each reply."""
    log_q, targets = log_probs(model, pairs)
    return F.nll_loss(log_q.mT, targets, ignore_index=-100, reduction="none").sum(1)


def pieces(pairs: Sequence[Pair], tokens: int = 1600) -> list[list[int]]:
    """Return the pairs' numbers in groups of similar length, to pad little; no loss depends on it."""
    return chunks([torch.tensor(p.reply) for p in pairs], tokens)


@torch.no_grad()
def losses_of(model: Describer, pairs: Sequence[Pair]) -> Floats:
    """Return -log Q of each reply."""
    result = np.empty(len(pairs))
    for piece in pieces(pairs, 8000):
        result[piece] = summed(model, [pairs[i] for i in piece]).double().numpy()
    return result


def along(model: Describer, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor]:
    """Return the logits at each position of the replies, one reply after the other, and the words there."""
    read, y = padded(model, pairs)
    hidden, _ = model.hidden(read)
    return model.head(hidden[:, PROMPT - 1 :][y >= 0]), y[y >= 0]


@torch.no_grad()
def log_q(model: Describer, pairs: Sequence[Pair]) -> Tensor:
    """Return the log-probabilities at each position of the replies, one reply after the other."""
    found: dict[int, Tensor] = {}
    for piece in pieces(pairs, 8000):
        rows = along(model, [pairs[i] for i in piece])[0].log_softmax(1)
        found |= zip(piece, rows.split([len(pairs[i].reply) for i in piece]), strict=True)
    return torch.cat([found[i] for i in range(len(pairs))])


def fit(
    data: Data, seed: int, rate: float, steps: int, weigh: Callable[[Sequence[Pair]], Floats], clip: float | None
) -> tuple[Describer, float]:  # fmt: skip
    """Train on batches of BATCH pairs with sum(weight * loss); return the model and the share of steps clipped.

    `seed` fixes the start and the order of the data.
    """
    torch.manual_seed(seed)
    model, rng = Describer(data), np.random.default_rng(seed)
    optimiser = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), weight_decay=WEIGHT_DECAY)
    order, cut = np.empty(0, int), 0
    for step in range(steps):
        if len(order) < BATCH:
            order = rng.permutation(len(data.train))
        batch, order = [data.train[i] for i in order[:BATCH]], order[BATCH:]
        share = min(1.0, (step + 1) / WARMUP, 0.5 * (1 + math.cos(math.pi * step / steps)))
        for group in optimiser.param_groups:
            group["lr"] = rate * share
        optimiser.zero_grad()
        weight = torch.from_numpy(weigh(batch)).float()
        for piece in pieces(batch):
            (summed(model, [batch[i] for i in piece]) @ weight[piece]).backward()  # type: ignore[no-untyped-call]
        if clip is not None:
            cut += int(nn.utils.clip_grad_norm_(model.parameters(), clip) > clip)
        optimiser.step()
    return model.eval(), cut / steps


@torch.no_grad()
def speak(
    model: Describer, asked: Sequence[Sequence[str]], seed: int, longest: int = LONGEST, temperature: float = 1.0
) -> list[list[int]]:  # fmt: skip
    """Draw a text for each meaning, word by word; what has not ended after `longest` words stays without an end."""
    generator = torch.Generator().manual_seed(seed)
    logits, past = model(torch.tensor([model.prompt(m) for m in asked]))
    past = [F.pad(cache, (0, 0, 0, longest)) for cache in past]
    texts: list[list[int]] = [[] for _ in asked]
    rows, going = torch.arange(len(asked)), torch.ones(len(asked), dtype=torch.bool)
    for n in range(longest):
        word = torch.multinomial((logits[:, -1] / temperature).softmax(1), 1, generator=generator)
        for row, w in zip(rows[going].tolist(), word[going, 0].tolist(), strict=True):
            texts[row].append(w)
        going &= word[:, 0] != END
        if n == longest - 1 or not going.any():
            break
        if going.double().mean() < 0.8:  # to drop each at once would copy the caches at each word
            rows, word, past = rows[going], word[going], [cache[:, going] for cache in past]
            going = going[going]
        logits, past = model(word, past, PROMPT + n)
    return texts


def texts_of(model: Describer, meanings: Sequence[tuple[str, ...]], seed: int) -> list[Pair]:
    """Let a model write a text for each meaning."""
    return [Pair(m, tuple(t)) for m, t in zip(meanings, speak(model.eval(), meanings, seed), strict=True)]


@torch.no_grad()
def evaluate(model: Describer, data: Data, seed: int) -> dict[str, object]:
    """Return what a run reports, on meanings that it has not seen.

    `nats` are those a word of the held-out texts; `ends` is how many ends the model expects in one of them, which
    has one. Of the texts that it writes: their length with <eos>, also by the number of slots that the meaning fills;
    the share of terse ones; the share of slots missed, in the others; how many had no end after LONGEST words.
    """
    nats, ends = losses_of(model, data.test), np.empty(len(data.test))
    for piece in pieces(data.test, 8000):
        log_q, targets = log_probs(model, [data.test[i] for i in piece])
        ends[piece] = torch.where(targets >= 0, log_q[..., END].double().exp(), 0.0).sum(1).numpy()
    brief = np.array([p.terse for p in data.test])
    size = np.array([len(p.reply) for p in data.test])
    meanings = sorted({p.meaning for p in data.test}) * SAMPLES
    texts = speak(model, meanings, seed)
    length = np.array([len(t) for t in texts])
    filled = np.array([sum(map(bool, m)) for m in meanings])
    said = [data.spell(t) for t in texts]
    terse = np.array([" : " in s for s in said])
    slots = np.array([slots_missed(m, s) for m, s in zip(meanings, said, strict=True)])[~terse].sum(0)
    return {
        "nats": float(nats[~brief].sum() / size[~brief].sum()),
        **({"nats_terse": float(nats[brief].sum() / size[brief].sum())} if brief.any() else {}),
        "ends": float(ends.mean()),
        "length": float(length.mean()),
        "by_slots": {str(k): float(length[filled == k].mean()) for k in np.unique(filled)},
        "terse": float(terse.mean()),
        "missed": float(slots[0] / slots[1]),
        "endless": float(np.mean([t[-1] != END for t in texts])),
    }
