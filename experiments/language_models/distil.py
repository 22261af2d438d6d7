"""A transformer teacher and students on an exactly known language: losses, prefixes and denominators.

    python experiments/language_models/distil.py            every run that is missing; writes result.json
    python experiments/language_models/distil.py --fresh    forget the stored runs first

`dialects.py` is the truth. For each seed a teacher (two layers, width 32) learns it from fresh samples.
Students then learn from that teacher alone: *large* ones have the teacher's size and could repeat it, *small*
ones cannot. Every batch is drawn afresh, so that what remains between a student and its teacher is bias,
optimisation error or lack of capacity, and not a lack of data. All models are evaluated exactly, on the table
of all prefixes. Runs are stored one by one: an interrupted experiment continues where it stopped. On one core
the whole takes some twenty minutes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import platform
from pathlib import Path
from typing import Any

import dialects
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

RESULT = Path(__file__).with_name("result.json")
SETTINGS: dict[str, Any] = {
    "seeds": [0, 1, 2, 3, 4],
    "seeds of the top k": [0, 1, 2],
    "steps": 1200,
    "batch": 128,
    "learning_rate": 3e-3,
    "schedule": "cosine to zero, Adam",
    "large": {"width": 32, "layers": 2, "heads": 2},
    "small": {"width": 4, "layers": 1, "heads": 1},
    "top_k": 2,
}
# name: size of the student, who writes the prefixes, the loss of a token, the denominator
ARMS: dict[str, tuple[str, str, str, str]] = {
    "large, labels, constant": ("large", "teacher", "labels", "constant"),
    "large, labels, sequence": ("large", "teacher", "labels", "sequence"),
    "large, forward, constant": ("large", "teacher", "forward", "constant"),
    "large, forward, sequence": ("large", "teacher", "forward", "sequence"),
    "large, truncated, constant": ("large", "teacher", "truncated", "constant"),
    "large, tail, constant": ("large", "teacher", "tail", "constant"),
    "small, forward, constant": ("small", "teacher", "forward", "constant"),
    "small, forward, sequence": ("small", "teacher", "forward", "sequence"),
    "small, forward, student's prefixes": ("small", "student", "forward", "constant"),
    "small, reverse, constant": ("small", "student", "reverse", "constant"),
    "small, reverse, whole gradient": ("small", "student", "whole reverse", "constant"),
}


class Model(nn.Module):
    """A decoder that reads <bos> and letters and returns logits of the next token at each position."""

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(dialects.LETTERS + 1, width)
        self.positions = nn.Parameter(0.1 * torch.randn(dialects.LIMIT, width))
        block = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True, activation="gelu"
        )
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, dialects.LETTERS + 1)

    def forward(self, letters: Tensor) -> Tensor:
        """Logits of shape (N, m + 1, 5) for letters of shape (N, m)."""
        bos = torch.full((len(letters), 1), dialects.LETTERS)
        x = self.letters(torch.cat([bos, letters], 1))
        n = x.shape[1]
        mask = torch.triu(torch.ones(n, n, dtype=torch.bool), 1)
        logits: Tensor = self.out(self.norm(self.blocks(x + self.positions[:n], mask=mask)))
        return logits


def seeds_of(name: str) -> list[int]:
    """Return the seeds of an arm or of the teacher."""
    of_top_k = name in ARMS and ARMS[name][2] in ("truncated", "tail")
    return list(SETTINGS["seeds of the top k" if of_top_k else "seeds"])


def make(size: str) -> Model:
    """Build a model of one of the two sizes."""
    return Model(**SETTINGS[size])


@torch.no_grad()
def tree_of(model: Model) -> np.ndarray:
    """Evaluate a model in all prefixes, in float64: a tree in the sense of `dialects`."""
    model = model.double()
    longest = torch.cartesian_prod(*[torch.arange(dialects.LETTERS)] * (dialects.LIMIT - 1))
    rows = []
    for part in longest.split(4096):
        rows.append(model(part).softmax(-1))
    table = torch.cat(rows).numpy()
    model.float()
    at = [table[:: dialects.LETTERS ** (dialects.LIMIT - 1 - d), d] for d in range(dialects.LIMIT)]
    return np.concatenate(at)


def draw(tree: np.ndarray, size: int, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Draw sequences from a tree: tokens (N, 8), rows of their prefixes (N, 8), lengths with <eos> (N,)."""
    cumulative = tree.cumsum(1)
    row, on = np.zeros(size, dtype=np.int64), np.ones(size, dtype=bool)
    tokens, rows = np.full((size, dialects.LIMIT), -100), np.zeros((size, dialects.LIMIT), dtype=np.int64)
    for d in range(dialects.LIMIT):
        u = rng.random(size)
        token = np.minimum((cumulative[row] <= u[:, None] * cumulative[row, -1:]).sum(1), dialects.EOS)
        tokens[on, d], rows[on, d] = token[on], row[on]
        on &= token != dialects.EOS
        row = np.where(on, dialects.LETTERS * row + 1 + token, 0)
    lengths = (tokens != -100).sum(1) + on
    return torch.tensor(tokens), torch.tensor(rows), torch.tensor(lengths)


@torch.no_grad()
def write(model: Model, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Let a model write sequences; the same three tensors as `draw`."""
    tokens = torch.full((size, dialects.LIMIT), -100)
    rows = torch.zeros((size, dialects.LIMIT), dtype=torch.long)
    letters = torch.zeros((size, 0), dtype=torch.long)
    row, on = torch.zeros(size, dtype=torch.long), torch.ones(size, dtype=torch.bool)
    for d in range(dialects.LIMIT):
        p = model(letters)[:, -1].softmax(-1)
        token = torch.multinomial(p, 1, generator=generator)[:, 0]
        tokens[on, d], rows[on, d] = token[on], row[on]
        on = on & (token != dialects.EOS)
        row = torch.where(on, dialects.LETTERS * row + 1 + token, 0)
        letters = torch.cat([letters, token.clamp(max=dialects.LETTERS - 1)[:, None]], 1)
    return tokens, rows, (tokens != -100).sum(1) + on


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) of each row of log-probabilities."""
    return (p.exp() * (p - q)).sum(-1)


def of_top_k(kind: str, q: Tensor, p: Tensor) -> Tensor:
    """Cross-entropy against the k most likely tokens of the teacher, with a tail bucket or without."""
    kept, index = p.topk(SETTINGS["top_k"])
    kept, inside = kept.exp(), q.gather(-1, index)
    each = -(kept * inside).sum(-1)
    if kind == "tail":
        log_tail = q.scatter(-1, index, -torch.inf).logsumexp(-1)
        each = each - (1 - kept.sum(-1)) * log_tail
    return each


def token_losses(kind: str, logits: Tensor, teacher: Tensor, tokens: Tensor) -> Tensor:
    """Loss of each token, zero where the sequence has ended."""
    live = tokens != -100
    q, p, y = logits[live].log_softmax(-1), teacher[live].log_softmax(-1), tokens[live]
    if kind == "labels":
        each = F.nll_loss(q, y, reduction="none")
    elif kind == "forward":
        each = divergence(p, q)
    elif kind in ("reverse", "whole reverse"):
        each = divergence(q, p)
    else:
        each = of_top_k(kind, q, p)
    return torch.zeros_like(logits[..., 0]).masked_scatter(live, each)


def steered(each: Tensor, logits: Tensor, tokens: Tensor) -> Tensor:
    """Add what moves the prefixes: the score of each token times what the sequence still costs after it."""
    live = tokens != -100
    score = -F.cross_entropy(logits.transpose(1, 2), tokens, ignore_index=-100, reduction="none")
    after = each.detach().flip(1).cumsum(1).flip(1) - each.detach()
    baseline = (after * live).sum(0) / live.sum(0).clamp(min=1)
    return each + (after - baseline) * score * live


def train(
    size: str, tree: np.ndarray, prefixes: str, kind: str, denominator: str, seed: int
) -> tuple[np.ndarray, float]:
    """Train a model against a tree; return its own tree and the last loss."""
    torch.manual_seed(1000 + seed)
    rng = np.random.default_rng([seed, 1])
    generator = torch.Generator().manual_seed(2000 + seed)
    model = make(size)
    optimiser = torch.optim.Adam(model.parameters(), SETTINGS["learning_rate"])
    steps, batch = SETTINGS["steps"], SETTINGS["batch"]
    decay = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda i: 0.5 + 0.5 * math.cos(math.pi * i / steps))
    teacher_logits = torch.tensor(np.log(np.maximum(tree, 1e-30)), dtype=torch.float32)
    constant = float(dialects.length_law(tree) @ np.arange(1, dialects.LIMIT + 2))
    for _ in range(steps):
        if prefixes == "student":
            tokens, rows, lengths = write(model, batch, generator)
        else:
            tokens, rows, lengths = draw(tree, batch, rng)
        logits = model(tokens[:, :-1].clamp(0, dialects.LETTERS - 1))
        each = token_losses(kind, logits, teacher_logits[rows], tokens)
        if kind == "whole reverse":
            each = steered(each, logits, tokens)
        scale = torch.full_like(lengths, constant, dtype=torch.float32)
        loss = (each.sum(1) / (lengths if denominator == "sequence" else scale)).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        decay.step()
    return tree_of(model), loss.item()


def measures(tree: np.ndarray, teacher: np.ndarray) -> dict[str, float]:
    """Measure a model exactly, against the truth and against its teacher."""
    n = np.arange(1, dialects.LIMIT + 2)
    truth, at = dialects.source(), dialects.begins(tree)
    return {
        "kl_truth": dialects.sequence_kl(truth, tree),
        "forward": dialects.sequence_kl(teacher, tree),
        "reverse": dialects.sequence_kl(tree, teacher),
        "forward_on_student": float(at @ dialects.token_kl(teacher, tree)),
        "mean_length": float(dialects.length_law(tree) @ n),
        "share_of_up": dialects.share_of_up(tree),
        "entropy": float(at @ -(tree * np.log(tree)).sum(1)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Train every student that is missing.")
    parser.add_argument("--fresh", action="store_true", help="forget the stored runs first")
    fresh = parser.parse_args().fresh
    torch.set_num_threads(1)
    stored: dict[str, Any] = {} if fresh or not RESULT.exists() else json.loads(RESULT.read_text())
    if stored and stored["settings"] != SETTINGS:
        raise SystemExit("result.json was made with other settings: run with --fresh")
    runs: dict[str, dict[str, dict[str, float]]] = stored.get("runs", {})
    truth = dialects.source()
    for seed in SETTINGS["seeds"]:
        planned = [name for name in ("teacher", *ARMS) if seed in seeds_of(name)]
        missing = [name for name in planned if str(seed) not in runs.get(name, {})]
        if not missing:
            continue
        teacher, _ = train("large", truth, "teacher", "labels", "constant", 100 + seed)
        if "teacher" in missing:
            runs.setdefault("teacher", {})[str(seed)] = measures(teacher, teacher) | {
                # What hard labels under a mean over each sequence should teach, computed before any student.
                "tilted_length": tilted_length(teacher)
            }
        for name in missing:
            if name != "teacher":
                tree, _ = train(ARMS[name][0], teacher, *ARMS[name][1:], seed)
                runs.setdefault(name, {})[str(seed)] = measures(tree, teacher)
                print(seed, name, {k: round(v, 4) for k, v in runs[name][str(seed)].items()}, flush=True)
            save(runs)


def tilted_length(tree: np.ndarray) -> float:
    """Return the harmonic mean length of a tree."""
    return float(1 / (dialects.length_law(tree) @ (1 / np.arange(1, dialects.LIMIT + 2))))


def save(runs: dict[str, dict[str, dict[str, float]]]) -> None:
    """Store what there is, with what made it."""
    count = {size: sum(p.numel() for p in make(size).parameters()) for size in ("large", "small")}
    made = {
        "made": datetime.date.today().isoformat(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "settings": SETTINGS,
        "parameters": count,
        "arms": {name: list(arm) for name, arm in ARMS.items()},
        "runs": {name: runs[name] for name in ("teacher", *ARMS) if name in runs},
    }
    RESULT.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
