"""Does the denominator change what a language model learns? Seven denominators, one transformer, speeches.

Each speech of Tiny Shakespeare, of up to 1,000 characters, is a sequence of characters that ends with <eos>.
A four-layer transformer is trained on batches of 128 speeches. The arms differ in nothing but the weight of a
speech in the batch's loss:

    constant    1 / (128 x the mean length)       the proper loss
    B=1 ... 128 1 / (tokens in its micro-batch)   the token mean of micro-batches of B speeches, averaged
    bucketed    the same, in micro-batches of 16 speeches of similar length

The weights emulate the micro-batches exactly: `tests/book/test_shakespeare.py` shows that the gradient is
that of a loop over them. A seed fixes the initial parameters and the order of the data, alike in all arms.

    python experiments/shakespeare/run.py predict --text PATH     # writes prediction.json: run it first
    python experiments/shakespeare/run.py train --text PATH       # what result.json lacks; may be stopped
    python experiments/shakespeare/run.py show                    # the table

The text is not part of this repository. It is the file `input.txt` of char-rnn's tinyshakespeare; the loader
refuses any other by its SHA-256.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import math
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from xent.sequences import length_weights, tilted_lengths

HERE = Path(__file__).parent
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
ARMS = ("constant", "B=1", "B=4", "B=16", "B=64", "B=128", "bucketed")
BATCH, BUCKET, LONGEST = 128, 16, 1000
# Edges of the length histogram: a factor of two each, the last bin is open.
EDGES = (1, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Settings:
    """What is the same in every run."""

    layers: int = 4
    width: int = 32
    heads: int = 1
    epochs: int = 6
    learning_rate: float = 1e-2
    warmup: int = 50
    weight_decay: float = 0.01
    test_share: float = 0.1
    split_seed: int = 0
    samples: int = 4000
    longest_sample: int = 8192


# ---------------------------------------------------------------- the data


def load(path: Path) -> list[str]:
    """Return the speeches without their speakers, after checking that the text is the one meant."""
    text = path.read_bytes()
    found = hashlib.sha256(text).hexdigest()
    if found != SHA256:
        raise ValueError(f"{path} is another text: its SHA-256 is {found}, expected {SHA256}")
    blocks = [block.strip("\n").partition("\n") for block in text.decode("ascii").split("\n\n")]
    # In 125 blocks a speaker says nothing, and 81 speeches are so long that their attention takes a third of
    # the time; both are left out.
    return [speech for _, _, speech in blocks if 0 < len(speech) <= LONGEST]


def encode(speeches: Sequence[str]) -> tuple[list[Tensor], int]:
    """Return each speech as character numbers that end with <eos> = 0, and the size of the vocabulary."""
    letters = {letter: i for i, letter in enumerate(sorted(set("".join(speeches))), start=1)}
    return [torch.tensor([letters[c] for c in s] + [0]) for s in speeches], len(letters) + 1


def split(speeches: Sequence[Tensor], settings: Settings) -> tuple[list[Tensor], list[Tensor]]:
    """Return training and test speeches; the split is the same in every run."""
    order = np.random.default_rng(settings.split_seed).permutation(len(speeches))
    cut = round(settings.test_share * len(speeches))
    return [speeches[i] for i in order[cut:]], [speeches[i] for i in order[:cut]]


# ---------------------------------------------------------------- the arms


def weights(lengths: NDArray[np.int64], arm: str, mean_length: float) -> NDArray[np.float64]:
    """Return the weight of each speech of a batch in the batch's loss, sum(weight * summed loss)."""
    count = len(lengths)
    if arm == "constant":
        return np.full(count, 1 / (count * mean_length))
    if arm == "bucketed":
        order, size = np.argsort(lengths, kind="stable"), BUCKET
    else:
        order, size = np.arange(count), int(arm.removeprefix("B="))
    result = np.empty(count)
    for micro in order.reshape(-1, size):
        result[micro] = 1 / (lengths[micro].sum() * (count // size))
    return result


def bucketed_law(lengths: NDArray[np.int64], batches: int = 4000) -> NDArray[np.float64]:
    """Return the law of lengths that the bucketed arm teaches, as a share for each training speech.

    A speech's expected weight has no closed form here: the companions depend on its own length. So batches
    are drawn as in training, and the weights that a speech got are averaged.
    """
    rng = np.random.default_rng(0)
    total, seen = np.zeros(len(lengths)), np.zeros(len(lengths))
    for _ in range(batches):
        drawn = rng.choice(len(lengths), BATCH, replace=False)
        total[drawn] += weights(lengths[drawn], "bucketed", 1.0)
        seen[drawn] += 1
    # Speeches of one length have the same expectation; pooling them takes the noise out.
    _, group = np.unique(lengths, return_inverse=True)
    pooled = (np.bincount(group, total) / np.bincount(group, seen))[group]
    return np.asarray(pooled / pooled.sum())


def predict(lengths: NDArray[np.int64]) -> dict[str, Any]:
    """Return what theory says each arm learns, from the lengths of the training speeches alone."""
    lengths = np.sort(lengths)
    support, position, counts = np.unique(lengths, return_inverse=True, return_counts=True)
    true = counts / len(lengths)
    arms: dict[str, Any] = {}
    for arm in ARMS:
        law: NDArray[np.float64]
        if arm == "constant":
            law = true
        elif arm == "bucketed":
            law = np.bincount(position, bucketed_law(lengths))
        else:
            law = tilted_lengths(support, int(arm[2:]), probabilities=true)
        arms[arm] = {
            "mean_length": float(law @ support),
            "histogram": histogram(support, law),
        }
    return {
        "speeches": len(lengths),
        "mean_length": float(lengths.mean()),
        "squared_variation": float(lengths.var() / lengths.mean() ** 2),
        "harmonic_mean_length": float(1 / np.mean(length_weights(lengths))),
        "arms": arms,
        # What the prediction rests on, so that it can be checked without the text.
        "lengths": support.tolist(),
        "counts": counts.tolist(),
    }


def histogram(lengths: NDArray[Any], shares: NDArray[np.float64] | None = None) -> list[float]:
    """Return the share of each bin of EDGES."""
    counts = np.bincount(np.searchsorted(EDGES, lengths, side="right") - 1, shares, minlength=len(EDGES))
    return [float(c) for c in counts / counts.sum()]


# ---------------------------------------------------------------- the model


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, normalised before each."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        width = settings.width
        self.heads = settings.heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, past: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the output, and keys and values with those of the `past`; x is one position then."""
        rows, columns, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(rows, columns, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        kv = torch.stack([k, v]) if past is None else torch.cat([past, torch.stack([k, v])], dim=3)
        mixed = F.scaled_dot_product_attention(q, kv[0], kv[1], is_causal=past is None)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, columns, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)))), kv


class Transformer(nn.Module):
    """A plain decoder. Its first input is <eos>, which thus also opens a speech."""

    def __init__(self, vocabulary: int, settings: Settings) -> None:
        super().__init__()
        self.width = settings.width
        self.embedding = nn.Embedding(vocabulary, settings.width)
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.layers))
        self.norm = nn.LayerNorm(settings.width)
        self.head = nn.Linear(settings.width, vocabulary)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=1.0 if "embedding" in name else settings.width**-0.5)

    def positions(self, start: int, count: int) -> Tensor:
        """Return sines and cosines with periods from 2 pi to 2 pi x 10,000."""
        rate = torch.exp(torch.arange(0, self.width, 2) * (-math.log(10_000) / self.width))
        angle = torch.arange(start, start + count)[:, None] * rate
        return torch.cat([angle.sin(), angle.cos()], dim=1).to(self.head.weight.dtype)

    def forward(
        self, tokens: Tensor, past: list[Tensor] | None = None, start: int = 0
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the logits of the next token at each position, and each layer's keys and values."""
        x = self.embedding(tokens) + self.positions(start, tokens.shape[1])
        caches = []
        for i, block in enumerate(self.blocks):
            x, cache = block(x, None if past is None else past[i])
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


def speech_losses(model: Transformer, speeches: Sequence[Tensor]) -> Tensor:
    """Return -log Q of each speech, of shape (speeches,)."""
    targets = nn.utils.rnn.pad_sequence(list(speeches), batch_first=True, padding_value=-100)
    inputs = F.pad(targets[:, :-1].clamp(min=0), (1, 0))
    logits, _ = model(inputs)
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="none")
    return losses.view(targets.shape).sum(1)


def backward(model: Transformer, speeches: Sequence[Tensor], weight: NDArray[np.float64]) -> None:
    """Add the gradient of sum(weight * loss of the speech)."""
    for chunk in chunks(speeches):
        losses = speech_losses(model, [speeches[i] for i in chunk])
        (losses * torch.from_numpy(weight[chunk]).to(losses.dtype)).sum().backward()


# ---------------------------------------------------------------- a run


def train(
    speeches: Sequence[Tensor], vocabulary: int, arm: str, seed: int, settings: Settings
) -> Transformer:
    """Train one model; `seed` fixes its start and the order of the data."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    model = Transformer(vocabulary, settings)
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.99), weight_decay=settings.weight_decay
    )
    lengths = np.array([len(s) for s in speeches])
    per_epoch = len(speeches) // BATCH
    steps = settings.epochs * per_epoch
    for step in range(steps):
        if step % per_epoch == 0:
            order = rng.permutation(len(speeches))[: per_epoch * BATCH].reshape(per_epoch, BATCH)
        rows = order[step % per_epoch]
        rate = min(1.0, (step + 1) / settings.warmup) * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimiser.param_groups[0]["lr"] = settings.learning_rate * rate
        optimiser.zero_grad()
        backward(model, [speeches[i] for i in rows], weights(lengths[rows], arm, float(lengths.mean())))
        optimiser.step()
    return model


@torch.no_grad()
def sample_lengths(model: Transformer, seed: int, settings: Settings) -> NDArray[np.int64]:
    """Draw speeches from the model, character by character, and return their lengths."""
    generator = torch.Generator().manual_seed(seed)
    lengths = []
    for rows in torch.full((settings.samples,), 0).split(500):
        token, past = rows[:, None], None
        for n in range(1, settings.longest_sample + 1):
            logits, past = model(token, past, n - 1)
            token = torch.multinomial(logits[:, -1].softmax(1), 1, generator=generator)
            alive = token[:, 0] != 0
            lengths += [n] * int((~alive).sum())
            if not alive.any():
                break
            if not alive.all():
                token, past = token[alive], [cache[:, alive] for cache in past]
        else:
            raise RuntimeError(
                f"{len(token)} samples did not end within {settings.longest_sample} characters"
            )
    return np.array(lengths)


@torch.no_grad()
def evaluate(model: Transformer, test: Sequence[Tensor], seed: int, settings: Settings) -> dict[str, Any]:
    """Return what a run reports."""
    loss = 0.0
    for chunk in chunks(test):
        loss += float(speech_losses(model, [test[i] for i in chunk]).double().sum())
    drawn = sample_lengths(model, seed, settings)
    return {
        "mean_length": float(drawn.mean()),
        "mean_length_se": float(drawn.std(ddof=1) / math.sqrt(len(drawn))),
        "nll_per_speech": loss / len(test),
        "nll_per_token": loss / sum(len(s) for s in test),
        "histogram": histogram(drawn),
    }


def store(row: dict[str, Any], settings: Settings) -> None:
    """Add a run to result.json, safely beside other processes that do the same."""
    path = HERE / "result.json"
    with (HERE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fresh: dict[str, Any] = {"settings": asdict(settings), "runs": []}
        result = json.loads(path.read_text()) if path.exists() else fresh
        result["versions"] = {
            "python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__
        }  # fmt: skip
        result["date"] = datetime.now(UTC).date().isoformat()
        result["runs"].append(row)
        result["runs"].sort(key=lambda r: (r["seed"], ARMS.index(r["arm"])))
        # One run a line keeps the differences between versions of this file readable.
        runs = ",\n  ".join(json.dumps(r) for r in result.pop("runs"))
        head = json.dumps(result, indent=1)[:-2]
        scratch = path.with_suffix(".tmp")
        scratch.write_text(f'{head},\n "runs": [\n  {runs}\n ]\n}}\n')
        scratch.replace(path)


def done(arm: str, seed: int, settings: Settings) -> bool:
    path = HERE / "result.json"
    if not path.exists():
        return False
    result = json.loads(path.read_text())
    if result["settings"] != asdict(settings):
        raise ValueError("result.json was made with other settings; move it away to begin anew")
    return any(r["arm"] == arm and r["seed"] == seed for r in result["runs"])


def show() -> None:
    """Print the mean over seeds, its standard error, and the prediction."""
    result = json.loads((HERE / "result.json").read_text())
    prediction = json.loads((HERE / "prediction.json").read_text())["arms"]
    print(f"{'arm':<10}{'seeds':>6}{'length':>9}{'+-':>6}{'theory':>8}{'nll/speech':>12}{'+-':>6}")
    for arm in ARMS:
        rows = [r for r in result["runs"] if r["arm"] == arm]
        if len(rows) < 2:
            continue
        length, nll = (np.array([r[k] for r in rows]) for k in ("mean_length", "nll_per_speech"))
        error, nll_error = (x.std(ddof=1) / math.sqrt(len(x)) for x in (length, nll))
        print(
            f"{arm:<10}{len(rows):>6}{length.mean():>9.1f}{error:>6.1f}{prediction[arm]['mean_length']:>8.1f}"
            f"{nll.mean():>12.1f}{nll_error:>6.1f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="The denominator experiment on Tiny Shakespeare.")
    parser.add_argument("command", choices=("predict", "train", "show"))
    parser.add_argument("--text", type=Path, help="your copy of the text")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    arguments = parser.parse_args()
    if arguments.command == "show":
        return show()
    if arguments.text is None:
        parser.error("--text is needed: the path of your copy of the text")
    settings = Settings()
    speeches, vocabulary = encode(load(arguments.text))
    training, test = split(speeches, settings)
    if arguments.command == "predict":
        prediction = predict(np.array([len(s) for s in training]))
        (HERE / "prediction.json").write_text(json.dumps(prediction) + "\n")
        return None
    torch.set_num_threads(1)  # the sums of a run then do not depend on the machine's cores
    for seed in arguments.seeds:
        for arm in arguments.arms:
            if done(arm, seed, settings):
                continue
            start = time.perf_counter()
            model = train(training, vocabulary, arm, seed, settings)
            row = {"arm": arm, "seed": seed, **evaluate(model, test, seed, settings)}
            row["seconds"] = round(time.perf_counter() - start)
            store(row, settings)
            print(f"{arm} seed {seed}: mean length {row['mean_length']:.1f} ({row['seconds']} s)", flush=True)
    return None


if __name__ == "__main__":
    main()
