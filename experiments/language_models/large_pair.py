"""The pair of `pair.py` once more on a GPU: larger, without tables, and with a teacher for each seed.

The speeches, their split, and the arms are those of `pair.py`. Here each seed has a teacher of 4.8 million parameters
and a student of .35 million of its own, both plain transformers in bfloat16 with AdamW. Teacher and student first
learn from labels; then each arm goes on from the student, for as many steps. Every model keeps the parameters of that
look at its own validation objective, of ten, at which this was lowest. An arm's learning rate has the lowest such
objective in runs of a seed of their own. What a student writes, it writes for four steps at a time.

    python -m experiments.language_models.large_pair tune --text PATH --runs FOLDER --arms labels forward ...
    python -m experiments.language_models.large_pair train --text PATH --runs FOLDER --seeds 0 1 ...
    python -m experiments.language_models.large_pair assemble --runs FOLDER      # writes large_pair.json
    python -m experiments.language_models.large_pair show                        # the table

Several processes may share the GPU; each does what the folder lacks. The stored result took eight minutes of an H100,
with four processes at a time; our hours on it ended there, and of `reverse` there are the tuning runs only.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments import shared
from experiments.language_models import pair
from experiments.language_models.pair import ARMS, SHORTER_THAN
from experiments.shared import made, records
from xent.torch import cross_entropy, distillation_loss

RESULT = Path(__file__).with_suffix(".json")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Shape:
    """The size of a model."""

    layers: int
    width: int
    heads: int
    dropout: float


@dataclass(frozen=True)
class Settings:
    """What is the same in every arm."""

    teacher: Shape = Shape(6, 256, 4, 0.2)
    student: Shape = Shape(3, 96, 3, 0.1)
    batch: int = 64
    teacher_steps: int = 1500
    teacher_rate: float = 1.5e-3
    start_steps: int = 300
    start_rate: float = 4e-3
    steps: int = 1500
    tuning_steps: int = 400
    rates: tuple[float, ...] = (1e-3, 2e-3, 4e-3, 8e-3)
    warmup: int = 50
    looks: int = 10
    weight_decay: float = 0.1
    clip: float = 1.0
    beta: float = 0.5  # of the generalised Jensen-Shannon divergence
    serves: int = 4  # steps that what a student writes at a time is for
    longest_sample: int = 400
    samples: int = 2000
    validation_samples: int = 512
    tuning_seed: int = 1000


# ---------------------------------------------------------------- the model


class Block(nn.Module):
    """Self-attention and a feed-forward layer, normalised before each; causal, or with keys and values so far."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads, self.dropout = shape.heads, nn.Dropout(shape.dropout)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, past: Tensor | None, n: Tensor | None, seen: Tensor | None) -> Tensor:
        rows, columns, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(rows, columns, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = past.index_copy_(3, n, torch.stack([k, v]).to(past.dtype))
        mixed = F.scaled_dot_product_attention(q.to(v.dtype), k, v, attn_mask=seen, is_causal=past is None)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(rows, columns, width).to(x.dtype)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class Model(nn.Module):
    """A decoder; the first input is <eos>, which thus opens a speech as well."""

    def __init__(self, letters: int, shape: Shape, longest: int) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(letters, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm, self.head = nn.LayerNorm(shape.width), nn.Linear(shape.width, letters)
        self.dropout = nn.Dropout(shape.dropout)
        rate = torch.exp(torch.arange(0, shape.width, 2) * (-math.log(10_000) / shape.width))
        angle = torch.arange(longest)[:, None] * rate
        self.register_buffer("places", torch.cat([angle.sin(), angle.cos()], 1), persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                std = 1.0 if name.startswith("embedding") else shape.width**-0.5
                last = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, std=std / (2 * shape.layers) ** 0.5 if last else std)

    def forward(
        self,
        tokens: Tensor,
        past: Sequence[Tensor] | None = None,
        n: Tensor | None = None,
        seen: Tensor | None = None,
    ) -> Tensor:
        """Return logits; with the `past`, of the one position `n`."""
        places = self.places[: tokens.shape[1]] if n is None else self.places[n]
        with torch.autocast(DEVICE, torch.bfloat16, DEVICE == "cuda", cache_enabled=False):
            x = self.dropout(self.embedding(tokens) + places)
            for i, block in enumerate(self.blocks):
                x = block(x, None if past is None else past[i], n, seen)
            return self.head(self.norm(x)).float()


def graphed(step: Callable[[], None]) -> Callable[[], None]:
    """Record a step as a CUDA graph, and return what replays it; on a CPU, the step itself."""
    if DEVICE == "cpu":
        return step
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


class Writer:
    """Draws speeches from a model, all of them a character at a time; past the longest, a speech is cut."""

    def __init__(self, model: Model, count: int, longest: int) -> None:
        shape = model.shape
        size = (2, count, shape.heads, longest, shape.width // shape.heads)
        kind = torch.bfloat16 if DEVICE == "cuda" else torch.float32
        self.model, self.longest = model, longest
        self.past = [torch.zeros(size, dtype=kind, device=DEVICE) for _ in model.blocks]
        self.text = torch.zeros(count, longest + 1, dtype=torch.long, device=DEVICE)
        self.n, self.places = self.text.new_zeros(1), torch.arange(longest, device=DEVICE)
        self.step: Callable[[], None] | None = None

    @torch.no_grad()
    def _step(self) -> None:
        token = self.text.index_select(1, self.n)
        logits = self.model(token, self.past, self.n, (self.places <= self.n)[None, None, None])
        probs = logits[:, -1].softmax(1)
        # The least of exponential times with rates p is that of class k with probability p_k.
        drawn = (probs / torch.empty_like(probs).exponential_()).argmax(1, keepdim=True)
        self.text.index_copy_(1, self.n + 1, drawn)
        self.n.add_(1)

    def write(self) -> Tensor:
        """Return the speeches (count, longest), -100 after their <eos>."""
        training = self.model.training
        self.model.eval()
        self.n.zero_()
        if self.step is None:
            self.step = graphed(self._step)
            self.n.zero_()
        for _ in range(self.longest):
            self.step()
        self.model.train(training)
        text = self.text[:, 1:]
        end = text == 0
        return text.masked_fill(end.cumsum(1) - end.long() > 0, -100)


# ---------------------------------------------------------------- the losses


def read(tokens: Tensor) -> Tensor:
    """Return what a model reads to predict these."""
    return F.pad(tokens[:, :-1].clamp(min=0), (1, 0))


def token_loss(kind: str, logits: Tensor, tokens: Tensor, teacher_logits: Tensor, beta: float) -> Tensor:
    """Return the mean over the tokens of the loss in nats; labels do not look at the teacher."""
    counts = tokens >= 0
    if kind == "labels":
        total = cross_entropy(logits, tokens, ignore_index=-100, reduction="sum")
    else:
        direction: Any = kind
        total = distillation_loss(
            logits, teacher_logits, direction=direction, beta=beta, sample_weight=counts, reduction="sum"
        )
    return total / counts.sum()


class Step:
    """The gradient of a batch's loss, recorded once."""

    def __init__(self, kind: str, model: Model, teacher: Model | None, settings: Settings) -> None:
        self.kind, self.model, self.teacher, self.beta = kind, model, teacher, settings.beta
        self.tokens = torch.zeros(settings.batch, SHORTER_THAN, dtype=torch.long, device=DEVICE)
        self.loss = torch.zeros((), device=DEVICE)
        self.gradients = [torch.zeros_like(p) for p in model.parameters()]
        for parameter, gradient in zip(model.parameters(), self.gradients, strict=True):
            parameter.grad = gradient
        # Traced, a loss looks at no value, as a graph demands; "eager" leaves the operations as they are.
        self.token_loss = torch.compile(token_loss, backend="eager", fullgraph=True)
        self.run = graphed(self._run)

    def _run(self) -> None:
        torch._foreach_zero_(self.gradients)
        seen = read(self.tokens)
        with torch.no_grad():
            said = torch.zeros(1, device=DEVICE) if self.teacher is None else self.teacher(seen)
        loss = self.token_loss(self.kind, self.model(seen), self.tokens, said, self.beta)
        loss.backward()
        self.loss.copy_(loss.detach())

    def __call__(self, batch: Tensor) -> Tensor:
        self.tokens.copy_(batch)
        self.run()
        return self.loss


@torch.no_grad()
def mean_loss(
    kind: str, model: Model, tokens: Tensor, teacher: Model | None = None, beta: float = 0.5
) -> float:
    """Return the mean over the tokens of many speeches."""
    training = model.training
    model.eval()
    total = torch.zeros((), dtype=torch.float64, device=DEVICE)
    for part in tokens.split(256):
        said = torch.zeros(1, device=DEVICE) if teacher is None else teacher(read(part))
        total += token_loss(kind, model(read(part)), part, said, beta).double() * (part >= 0).sum()
    model.train(training)
    return float(total / (tokens >= 0).sum())


# ---------------------------------------------------------------- a run


class Data:
    """The speeches, and for a seed its teacher, what that wrote, and the student that all arms start from."""

    def __init__(self, text: Path, folder: Path, settings: Settings) -> None:
        kept = [s for s in shared.load(text) if len(s) < SHORTER_THAN]
        speeches, alphabet = shared.encode(kept)
        self.letters, self.settings, self.folder = len(alphabet) + 1, settings, folder
        folder.mkdir(parents=True, exist_ok=True)
        parts = shared.split(speeches, pair.TEACHER)._asdict()
        self.parts = {
            name: F.pad(
                nn.utils.rnn.pad_sequence(list(part), batch_first=True, padding_value=-100),
                (0, SHORTER_THAN - max(map(len, part))),
                value=-100,
            ).to(DEVICE)
            for name, part in parts.items()
        }
        self.seed: int | None = None

    def model(self, shape: Shape) -> Model:
        return Model(self.letters, shape, self.settings.longest_sample).to(DEVICE)

    def of(self, seed: int) -> None:
        """Make or load what belongs to a seed."""
        if self.seed == seed:
            return
        s, self.seed = self.settings, seed
        self.teacher = self._learnt("teacher", s.teacher, s.teacher_rate, s.teacher_steps)
        self.start = self._learnt("start", s.student, s.start_rate, s.start_steps)
        self.written: dict[str, Tensor] = {}

    def speeches(self, part: str) -> Tensor:
        """Return what the teacher wrote for training, validation, or the evaluation."""
        if part not in self.written:
            s = self.settings
            count = {"train": s.steps * s.batch, "validation": s.validation_samples, "test": s.samples}[part]
            size = min(count, 1000)
            writer = Writer(self.teacher, size, s.longest_sample if part == "test" else SHORTER_THAN)
            torch.manual_seed({"train": 0, "validation": 1, "test": 2}[part])
            self.written[part] = torch.cat([writer.write() for _ in range(-(-count // size))])[:count]
        return self.written[part]

    def _learnt(self, name: str, shape: Shape, rate: float, steps: int) -> Model:
        """Return a model that learnt from labels."""
        assert self.seed is not None
        torch.manual_seed(self.seed)
        path, model = self.folder / f"{name}-{self.seed}.pt", self.model(shape)
        if not path.exists():
            begin = time.perf_counter()
            curve, _ = train(self, model, "labels", None, rate, steps)
            row = {"arm": name, "seed": self.seed, "rate": rate, "letters": self.letters, "curve": curve}
            row |= {"seconds": round(time.perf_counter() - begin, 1)} | evaluate(self, model)
            torch.save(model.state_dict(), path)
            keep(self.folder, row)
        model.load_state_dict(torch.load(path, map_location=DEVICE))
        return model.eval().requires_grad_(False)


def train(
    data: Data, model: Model, name: str, teacher: Model | None, rate: float, steps: int
) -> tuple[list[dict[str, float]], dict[str, int]]:
    """Train a model as its arm does, keep its best look; return the looks and what it cost."""
    s, arm = data.settings, ARMS[name]
    assert data.seed is not None
    torch.manual_seed(data.seed)
    rng = np.random.default_rng(data.seed)
    model.train().requires_grad_(True)
    optimiser = torch.optim.AdamW(
        model.parameters(), betas=(0.9, 0.99), weight_decay=s.weight_decay, fused=DEVICE == "cuda"
    )
    source = data.parts["train"] if arm.data == "text" else data.speeches("train")
    step = Step(arm.loss, model, teacher, s)
    writer = Writer(model, s.batch * s.serves, SHORTER_THAN) if arm.share else None
    order: list[int] = []
    mine: list[Tensor] = []
    curve: list[dict[str, float]] = []
    tokens, written, recent = (torch.zeros((), device=DEVICE) for _ in range(3))
    best: dict[str, Any] = {}
    for n in range(steps):
        if writer is not None and int((n + 1) * arm.share) > int(n * arm.share):
            if not mine:
                text = writer.write()
                written += (text >= 0).sum()
                mine = list(text.split(s.batch))
            batch = mine.pop()
        else:
            if len(order) < s.batch:
                order = rng.permutation(len(source)).tolist()
            batch = source[torch.tensor(order[: s.batch], device=DEVICE)]
            order = order[s.batch :]
        decay = 0.5 * (1 + math.cos(math.pi * n / steps))
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1.0, (n + 1) / s.warmup) * decay
        recent += step(batch) / (steps // s.looks)
        tokens += (batch >= 0).sum()
        torch._foreach_mul_(step.gradients, _shrink(step.gradients, s.clip))
        optimiser.step()
        if (n + 1) % (steps // s.looks) == 0:
            own = objective(data, model, name, teacher, writer)
            held_out = mean_loss("labels", model, data.parts["validation"])
            curve.append({"step": n + 1, "training": float(recent), "own": own, "validation": held_out})
            recent.zero_()
            if own == min(look["own"] for look in curve):
                best = copy.deepcopy(model.state_dict())
    model.load_state_dict(best)
    model.eval()
    return curve, {"tokens": int(tokens), "written": int(written)}


def _shrink(gradients: list[Tensor], most: float) -> Tensor:
    """Return the factor that clips the gradient's norm."""
    norm = torch.stack(torch._foreach_norm(gradients)).norm()
    return (most / norm).clamp(max=1.0)


def objective(data: Data, model: Model, name: str, teacher: Model | None, writer: Writer | None) -> float:
    """Return the arm's own objective in nats per token, along speeches that it did not learn from."""
    arm, beta, own = ARMS[name], data.settings.beta, 0.0
    if arm.share < 1:
        held_out = data.parts["validation"] if arm.data == "text" else data.speeches("validation")
        own += (1 - arm.share) * mean_loss(arm.loss, model, held_out, teacher, beta)
    if writer is not None:
        text = torch.cat([writer.write() for _ in range(2)])
        own += arm.share * mean_loss(arm.loss, model, text, teacher, beta)
    return own


# ---------------------------------------------------------------- the evaluation


@torch.no_grad()
def evaluate(data: Data, model: Model, teacher: Model | None = None) -> dict[str, float]:
    """Return what `pair.py` reports of a model; what asks a teacher only where there is one."""
    s, rows = data.settings, []
    model.eval()
    for part in data.parts["test"].split(256):
        log_q = model(read(part)).double().log_softmax(2)[part >= 0]
        targets = part[part >= 0]
        sure, guess = log_q.max(1)
        nll = -log_q.gather(1, targets[:, None])[:, 0]
        rows.append(
            torch.stack([nll, -(log_q.exp() * log_q).sum(1), sure.exp(), (guess == targets).double()])
        )
    nll, entropy, sure, right = torch.cat(rows, 1).cpu().numpy()
    bins = np.array_split(np.argsort(sure, kind="stable"), 15)
    torch.manual_seed(3)
    text = Writer(model, s.samples, s.longest_sample).write()
    lengths = (text >= 0).sum(1).double()
    result = {
        "nll_per_token": float(nll.mean()),
        "gap": float(nll.mean() - entropy.mean()),
        "ece": float(sum(abs((sure[b] - right[b]).sum()) for b in bins) / len(sure)),
        "accuracy": float(right.mean()),
        "mean_length": float(lengths.mean()),
        "median_length": float(lengths.median()),
        "not_ended": int(((text >= 0).all(1) & (text[:, -1] != 0)).sum()),
        "own_nll_of_samples": mean_loss("labels", model, text),
    }
    if teacher is None:
        return result
    others = data.speeches("test")
    return result | {
        "teacher_nll_of_samples": mean_loss("labels", teacher, text),
        "reverse_per_speech": mean_loss("reverse", model, text, teacher) * float(lengths.mean()),
        "forward_per_speech": mean_loss("forward", model, others, teacher)
        * float((others >= 0).sum() / len(others)),
    }


# ---------------------------------------------------------------- the record


def keep(folder: Path, row: dict[str, Any]) -> None:
    """Add a row to runs.jsonl, with the machine, and show it."""
    row["machine"] = (
        f"{torch.cuda.get_device_name() if DEVICE == 'cuda' else 'cpu'}, torch {torch.__version__}"
    )
    shared.store(folder, row)
    print({k: v for k, v in row.items() if k != "curve"}, flush=True)


def arm_run(data: Data, name: str, seed: int, rate: float, steps: int, whole: bool) -> dict[str, Any]:
    """Train one student and return its row; evaluated if `whole`."""
    data.of(seed)
    student = data.model(data.settings.student)
    student.load_state_dict(data.start.state_dict())
    if ARMS[name].data == "teacher":
        for part in ("train", "validation"):  # written once for all rates, and not part of a run's seconds
            data.speeches(part)
    begin = time.perf_counter()
    teacher = None if name == "labels" else data.teacher
    curve, cost = train(data, student, name, teacher, rate, steps)
    row = {"arm": name, "seed": seed, "rate": rate, "curve": curve, **cost}
    row |= {"own": min(look["own"] for look in curve), "seconds": round(time.perf_counter() - begin, 1)}
    return row | (evaluate(data, student, data.teacher) if whole else {})


def tune(data: Data, arms: Sequence[str]) -> None:
    s = data.settings
    for name in arms:
        for rate in s.rates:
            done = records(data.folder)
            if not any((r["arm"], r["seed"], r["rate"]) == (name, s.tuning_seed, rate) for r in done):
                keep(data.folder, arm_run(data, name, s.tuning_seed, rate, s.tuning_steps, False))


def work(data: Data, arms: Sequence[str], seeds: Sequence[int]) -> None:
    for seed in seeds:
        for name in arms:
            done = records(data.folder)
            if not any((r["arm"], r["seed"]) == (name, seed) for r in done):
                rate = chosen(done, name, data.settings)
                keep(data.folder, arm_run(data, name, seed, rate, data.settings.steps, True))


def chosen(runs: Sequence[dict[str, Any]], name: str, settings: Settings) -> float:
    """Return the rate whose tuning run has the lowest own objective."""
    grid = [r for r in runs if (r["arm"], r["seed"]) == (name, settings.tuning_seed)]
    return float(min(grid, key=lambda r: r["own"])["rate"])


def assemble(folder: Path, settings: Settings) -> dict[str, Any]:
    """Return the record: the tuning, and of the arms that went beyond it, the seeds that all of them have."""
    runs = records(folder)
    of_seeds = [r for r in runs if r["seed"] != settings.tuning_seed]
    whole = set.intersection(
        *({r["seed"] for r in of_seeds if r["arm"] == name} for name in trained(of_seeds))
    )
    sizes = {"teacher": settings.teacher, "student": settings.student}
    letters = runs[0]["letters"]
    return {
        **made(torch),
        "machines": sorted({r["machine"] for r in runs}),
        "settings": asdict(settings),
        "parameters": {
            name: sum(p.numel() for p in Model(letters, shape, 1).parameters())
            for name, shape in sizes.items()
        },
        "arms": {name: asdict(arm) for name, arm in ARMS.items()},
        "tuning": [r for r in runs if r["seed"] == settings.tuning_seed],
        "runs": sorted((r for r in of_seeds if r["seed"] in whole), key=lambda r: int(r["seed"])),
    }


def trained(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Return the names that runs have, in the order of the arms."""
    return [name for name in ("teacher", "start", *ARMS) if any(r["arm"] == name for r in runs)]


def show(record: dict[str, Any]) -> None:
    """Print the means over the seeds."""
    keys = ("nll_per_token", "gap", "ece", "teacher_nll_of_samples", "mean_length", "forward_per_speech",
            "reverse_per_speech", "seconds")  # fmt: skip
    print(f"{'arm':16}" + "".join(f"{key[:11]:>12}" for key in keys))
    for name in trained(record["runs"]):
        rows = [r for r in record["runs"] if r["arm"] == name]
        print(
            f"{name:16}" + "".join(f"{np.mean([r.get(key, math.nan) for r in rows]):12.4f}" for key in keys)
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Distil a small transformer of characters on a GPU.")
    parser.add_argument("command", choices=("tune", "train", "assemble", "show"))
    parser.add_argument("--text", type=Path, help="your copy of the text")
    parser.add_argument(
        "--runs", type=Path, default=Path(__file__).parent / "runs", help="folder of the runs"
    )
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--arms", nargs="*", choices=tuple(ARMS), default=list(ARMS))
    arguments = parser.parse_args()
    settings = Settings()
    if arguments.command == "show":
        return show(json.loads(RESULT.read_text()))
    if arguments.command == "assemble":
        return shared.write(assemble(arguments.runs, settings), RESULT)
    if arguments.text is None:
        parser.error("--text is needed: the path of your copy of the text")
    data = Data(arguments.text, arguments.runs, settings)
    if arguments.command == "tune":
        return tune(data, arguments.arms)
    return work(data, arguments.arms, arguments.seeds)


if __name__ == "__main__":
    main()
