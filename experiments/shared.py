"""What experiments have in common: records, peak memory, and a small transformer of characters on speeches.

The text of the speeches is not part of this repository. It is the file `input.txt` of char-rnn's tinyshakespeare;
the loader refuses any other by its SHA-256. Scripts are run from the root of the repository, as modules:

    python -m experiments.shakespeare.run predict --text PATH
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
BATCH, LONGEST = 128, 1000  # speeches of a batch, characters of a speech
TUNING_SEED = 1000


# ---------------------------------------------------------------- records


def made(*modules: ModuleType) -> dict[str, Any]:
    """Return the date and the versions of Python and of modules, with which a record begins."""
    versions = {module.__name__: module.__version__ for module in modules}
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {"python": platform.python_version(), **versions},
    }


def read(path: Path) -> dict[str, Any]:
    """Return a record; an empty one if there is none."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def records(folder: Path) -> list[dict[str, Any]]:
    """Return the finished runs, one from each line of runs.jsonl."""
    path = folder / "runs.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def store(folder: Path, row: dict[str, Any]) -> None:
    """Add a finished run."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "runs.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


def once(folder: Path, key: dict[str, Any], make: Callable[[], dict[str, Any]]) -> None:
    """Make the run of a key, and store it with its seconds, unless the folder has it."""
    if not any(key.items() <= row.items() for row in records(folder)):
        start = time.perf_counter()
        row = key | make()
        store(folder, row | {"seconds": round(time.perf_counter() - start)})
        print(row, flush=True)


def chosen(runs: Sequence[dict[str, Any]], job: dict[str, Any]) -> float:
    """Return the rate whose tuning run has the lowest own loss, at its best look; a clipped job takes its arm's."""
    key = {name: value for name, value in job.items() if name != "clip"} | {"seed": TUNING_SEED}
    grid = [r for r in runs if key.items() <= r.items()]
    return float(min(grid, key=lambda r: min(look["own"] for look in r.get("curve", [r])))["rate"])


def work(
    folder: Path, jobs: Sequence[dict[str, Any]], rates: Iterable[float], seeds: int, make: Callable[..., Any]
) -> None:
    """Make what the folder lacks: the grids of rates, then one seed of every job after the other."""
    todo: list[Any] = [(TUNING_SEED, rate, job) for rate in rates for job in jobs if not job.get("clip")]
    todo += [(seed, None, job) for seed in range(seeds) for job in jobs]
    for seed, given, job in todo:
        rate = chosen(records(folder), job) if given is None else given
        once(folder, job | {"seed": seed, "rate": rate}, partial(make, **job, seed=seed, rate=rate))


def finished(runs: Sequence[dict[str, Any]], jobs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the runs at the chosen rates, seed by seed in the order of jobs, with the seeds that all jobs have."""
    keys = [job | {"rate": chosen(runs, job)} for job in jobs]
    found = [[r for r in runs if k.items() <= r.items() and r["seed"] != TUNING_SEED] for k in keys]
    whole = set.intersection(*({r["seed"] for r in some} for some in found))
    return sorted((r for some in found for r in some if r["seed"] in whole), key=lambda r: int(r["seed"]))


def arguments(what: str, folder: Path, data: str, seeds: int) -> argparse.ArgumentParser:
    """Return what reads a command, where the data and the runs are, and the number of seeds."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("command", choices=("predict", "train", "assemble"))
    parser.add_argument(f"--{data}", type=Path, required=True, help="your copy")
    parser.add_argument("--runs", type=Path, default=folder / "runs", help="folder of the runs")
    parser.add_argument("--seeds", type=int, default=seeds)
    torch.set_num_threads(1)  # the sums of a run then do not depend on the machine's cores
    return parser


def write(record: dict[str, Any], path: Path) -> None:
    """Write a record with one run a line, which keeps the differences between its versions readable."""
    lines = []
    for key, value in record.items():
        rows = isinstance(value, list) and value and isinstance(value[0], dict)
        text = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]" if rows else json.dumps(value)
        lines.append(f" {json.dumps(key)}: {text}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def save(record: dict[str, Any], path: Path) -> None:
    """Write a record with one entry a line."""
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def rounded(value: Any, form: str) -> Any:
    """Round the floats of a record, however deep, to what `form` writes: the last digits belong to one processor."""
    if isinstance(value, dict):
        return {key: rounded(entry, form) for key, entry in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [rounded(entry, form) for entry in value]
    return float(format(value, form)) if isinstance(value, (float, np.floating)) else value


# ---------------------------------------------------------------- memory


def resident(field: str) -> int:
    """Return VmRSS or VmHWM of this process in bytes (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def growth(step: Callable[[], Any]) -> tuple[int, Any]:
    """Return by how many bytes a step makes this process grow at its highest point, and what the step returns.

    What a first call sets up is not its memory: take a small step before.
    """
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    result = step()
    return resident("VmHWM") - before, result


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a module's function returns in a process of its own, both ways as JSON; None if not on Linux.

    Every allocation of 64 KiB and more is mapped and unmapped for itself there, so that none is hidden in a pool.
    """
    if not Path("/proc/self/clear_refs").exists():
        return None
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    module = function.__module__
    module = sys.modules[module].__spec__.name if module == "__main__" else module  # type: ignore[union-attr]
    program = (
        f"import json, sys, {module} as m; print(json.dumps(m.{function.__name__}(*json.loads(sys.argv[1]))))"
    )
    command, root = [sys.executable, "-c", program, json.dumps(arguments)], Path(__file__).parents[1]
    done = subprocess.run(command, env=environment, cwd=root, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


# ---------------------------------------------------------------- time

TURN = 2e-3


def agree(losses: dict[str, float], tolerance: float) -> None:
    """Stop unless all compute the same loss."""
    if any(abs(loss / losses["xent"] - 1) > tolerance for loss in losses.values()):
        raise SystemExit(f"not the same loss: {losses}")


def turns(ways: dict[str, Callable[[], Any]], budget: float, least: int) -> dict[str, list[float]]:
    """Let all take turns until the budget in seconds is spent, and return the seconds of a call in each turn.

    A turn is one call, or as many as take two milliseconds. The clock is the processor's time of this process,
    which other work on the machine lengthens least.
    """

    def seconds(way: Callable[[], Any], count: int) -> float:
        begin = time.process_time()
        for _ in range(count):
            way()
        return (time.process_time() - begin) / count

    calls = {name: max(1, round(TURN / min(seconds(way, 1) for _ in range(3)))) for name, way in ways.items()}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    end = time.perf_counter() + budget
    while len(taken["xent"]) < least or time.perf_counter() < end:
        for name, way in ways.items():
            taken[name].append(seconds(way, calls[name]))
    return taken


# ---------------------------------------------------------------- speeches


@dataclass(frozen=True)
class Settings:
    """A transformer, its training and its evaluation, as far as they are the same in every run."""

    layers: int = 1
    width: int = 64
    heads: int = 1
    orders: tuple[int, ...] = (2, 3, 4, 5)  # of the n-grams whose embeddings join the input
    buckets: int = 2**14  # into which the n-grams of an order are hashed
    dropout: float = 0.3  # of the n-grams' embeddings
    epochs: int = 1
    looks: int = 2  # at the validation speeches, in an epoch
    rates: tuple[float, ...] = (8e-3, 16e-3, 32e-3, 64e-3)
    table_rate: float = 10.0  # the n-grams' learning rate in terms of the network's
    warmup: int = 10
    weight_decay: float = 0.01  # not of the n-grams
    tuning_seed: int = TUNING_SEED
    validation: int = 3 * BATCH
    test_share: float = 0.1
    split_seed: int = 0
    samples: int = 2000
    longest_sample: int = 4096


def load(path: Path) -> list[str]:
    """Return the speeches, block by block, without their speakers, after checking that the text is the one meant."""
    text = path.read_bytes()
    found = hashlib.sha256(text).hexdigest()
    if found != SHA256:
        raise ValueError(f"{path} is another text: its SHA-256 is {found}, expected {SHA256}")
    speeches = (block.strip("\n").partition("\n")[2] for block in text.decode("ascii").split("\n\n"))
    # 125 blocks have the name alone; 81 speeches are so long that their attention takes a third of the time.
    return [speech for speech in speeches if 0 < len(speech) <= LONGEST]


def encode(speeches: Sequence[str]) -> tuple[list[Tensor], str]:
    """Return each speech as character numbers that end with <eos> = 0, and the alphabet, from number 1 on."""
    alphabet = "".join(sorted(set("".join(speeches))))
    number = {letter: i for i, letter in enumerate(alphabet, start=1)}
    return [torch.tensor([number[c] for c in s] + [0]) for s in speeches], alphabet


class Split(NamedTuple):
    train: list[Any]
    validation: list[Any]
    test: list[Any]


def split(speeches: Sequence[Any], settings: Settings) -> Split:
    """Return the three parts, which are the same in every run."""
    order = np.random.default_rng(settings.split_seed).permutation(len(speeches))
    first = round(settings.test_share * len(speeches))
    second = first + settings.validation
    parts = order[second:], order[first:second], order[:first]
    return Split(*([speeches[i] for i in part] for part in parts))


class NGrams:
    """Witten and Bell: p(v | c) = (count(c v) + types(c) p(v | shorter c)) / (count(c) + types(c))."""

    def __init__(self, texts: Iterable[Sequence[int]], vocabulary: int, order: int, first: int = 0) -> None:
        """Count the tokens of each text from its `first` on, behind up to `order` others."""
        self.vocabulary = vocabulary
        self.counts: list[Any] = [defaultdict(Counter) for _ in range(order + 1)]
        for text in texts:
            for i in range(first, len(text)):
                for n in range(min(order, i) + 1):
                    self.counts[n][tuple(text[i - n : i])][text[i]] += 1

    def orders(self, context: Sequence[int]) -> Iterator[NDArray[np.float64]]:
        """Yield the distributions after a context by the models of each order, from zero on."""
        p = np.full(self.vocabulary, 1 / self.vocabulary)
        for n, counts in enumerate(self.counts):
            if seen := counts.get(tuple(context[len(context) - n :])):
                p = p * (len(seen) / (seen.total() + len(seen)))
                p[list(seen)] += np.array(list(seen.values())) / (seen.total() + len(seen))
            yield p


# ---------------------------------------------------------------- a transformer


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, normalised before each."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        width = settings.width
        self.heads = settings.heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, past: Tensor | None = None, start: int = 0) -> tuple[Tensor, Tensor]:
        """Return the output, and keys and values; with those of the `past`, x is the position `start`."""
        rows, columns, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(rows, columns, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        kv = torch.stack([k, v])
        if past is not None:
            past[:, :, :, start : start + 1] = kv
            kv = past[:, :, :, : start + 1]
        mixed = F.scaled_dot_product_attention(q, kv[0], kv[1], is_causal=past is None)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, columns, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)))), kv if past is None else past


class Transformer(nn.Module):
    """A small decoder whose input also knows the n-grams that end at each position.

    To the embedding of a character it adds those of the n-grams that the character completes, looked up by
    their hash as in the Byte Latent Transformer (Pagnoni et al. 2024). The tables learn the spelling in the
    first hundred steps, which a plain transformer of this size spends thousands on. The first input is <eos>,
    which thus also opens a speech.
    """

    def __init__(self, letters: int, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        width = settings.width
        self.embedding = nn.Embedding(letters, width)
        self.tables = nn.ModuleList(nn.Embedding(settings.buckets, width) for _ in settings.orders)
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, letters)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                std = {"embedding": 1.0, "tables": 0.3 / len(settings.orders) ** 0.5}
                nn.init.normal_(parameter, std=std.get(name.split(".")[0], width**-0.5))

    def positions(self, start: int, count: int) -> Tensor:
        """Return sines and cosines with periods from 2 pi to 2 pi x 10,000."""
        width = self.settings.width
        rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000) / width))
        angle = torch.arange(start, start + count)[:, None] * rate
        return torch.cat([angle.sin(), angle.cos()], dim=1).to(self.head.weight.dtype)

    def spelling(self, tokens: Tensor, before: Tensor) -> Tensor:
        """Return the summed embeddings of the n-grams that end at each token; `before` are the tokens before."""
        count = tokens.shape[1]
        text = torch.cat([before, tokens], dim=1)
        result, key = torch.zeros(()), tokens
        for n in range(2, max(self.settings.orders) + 1):
            first = text.shape[1] - count - n + 1
            key = key * 1_000_003 + text[:, first : first + count] + 7  # overflow wraps: this is a hash
            if n in self.settings.orders:
                bucket = ((key ^ (key >> 15)) * 2_654_435_761 >> 13) % self.settings.buckets
                result = result + self.tables[self.settings.orders.index(n)](bucket)
        return F.dropout(result, self.settings.dropout, self.training)

    def forward(
        self, tokens: Tensor, before: Tensor | None = None, past: list[Tensor] | None = None, start: int = 0
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the logits of the next token at each position, and each layer's keys and values.

        With the `past`, which has room for it, `tokens` is the one position `start`.
        """
        if before is None:
            before = tokens.new_zeros(len(tokens), max(self.settings.orders) - 1)
        x = self.embedding(tokens) + self.positions(start, tokens.shape[1]) + self.spelling(tokens, before)
        caches = []
        for i, block in enumerate(self.blocks):
            x, cache = block(x, None if past is None else past[i], start)
            caches.append(cache)
        return self.head(self.norm(x)), caches


def chunks(speeches: Sequence[Tensor], tokens: int = 8192) -> list[list[int]]:
    """Return the speeches' numbers in groups of similar length, to pad little; no loss depends on it."""
    result: list[list[int]] = [[]]
    for i in sorted(range(len(speeches)), key=lambda i: len(speeches[i])):
        if (len(result[-1]) + 1) * len(speeches[i]) > tokens and result[-1]:
            result.append([])
        result[-1].append(i)
    return result


def log_probabilities(model: Transformer, speeches: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return log Q of every next token, of shape (speeches, positions, tokens), and the targets, padded by -100."""
    targets = nn.utils.rnn.pad_sequence(list(speeches), batch_first=True, padding_value=-100)
    logits, _ = model(F.pad(targets[:, :-1].clamp(min=0), (1, 0)))
    return logits.log_softmax(2), targets


def adamw(model: Transformer) -> torch.optim.Optimizer:
    """Return the optimiser; `scale`, in each of its groups, is what to multiply the learning rate by.

    The n-grams' tables learn faster than the network and do not decay.
    """
    tables = list(model.tables.parameters())
    network = [p for name, p in model.named_parameters() if not name.startswith("tables")]
    groups = [
        {"params": network, "weight_decay": model.settings.weight_decay, "scale": 1.0},
        {"params": tables, "weight_decay": 0.0, "scale": model.settings.table_rate},
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.99), fused=True)
