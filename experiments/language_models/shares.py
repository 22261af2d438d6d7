"""From which share of labels on does distillation stop winning? A teacher that has seen all of the text.

The data are speeches of Tiny Shakespeare of fewer than 200 characters, each ended by <eos>. A teacher learns all
training speeches. A student, of a tenth of its size, has the text of a share of them: 2, 5, 20 or 100 %. For a
language model the text is its labels, so the rival of the arms along all training speeches is labels for all of them.

    labels              cross-entropy with the text that it has
    teacher, same text  KL(teacher || student) along that text, no labels
    mixed, same text    (1 - alpha) labels + alpha teacher, both along that text
    mixed, all text     the same, the teacher's part along all training speeches: a cache that somebody else made
    top 4, all text     the same, with the four largest probabilities and the mass of the rest
    texts and labels    (1 - alpha) labels + alpha labels of speeches that the teacher wrote, as many as it learnt
    on-policy           from the student of labels: the Jensen-Shannon divergence from the teacher, half along the
                        text that it has and half along what it writes itself (GKD)
    JSD, reverse        "teacher, same text" by these divergences
    teacher, all text   alpha = 1 of "mixed, all text"; texts: alpha = 1 of "texts and labels"; the share is 0
    T=4 ...             "mixed, same text" at temperature 4: with alpha tuned; with alpha = .5 and T^2; with
                        alpha = .5 and a factor that makes both gradients equal, measured once

Model: the neural n-gram of Bengio et al. (2003), a window of characters and one hidden layer, told how far the
speech has come. Every token is then a row of its own, and the models of eight seeds train side by side. A seed
has its own teacher, its own choice of the labelled speeches, initial values and batches.

Tuned alike: rate and dropout by the arm's own objective on validation; then alpha, where it is tuned, together with
dropout by the validation loss of labels; in short runs of a seed of its own, for every share (but where the teacher's
part is the same at every share, the rate is tuned once). Trained to the end: a student stops when its own objective
on validation has not improved for 500 steps, or after 2,500, over whose last quarter the rate falls to zero. Looked
at is a running average of the parameters; the best look is tested. Three seeds of two arms are trained three times
as long, and do not stop before that.

    python -m experiments.language_models.shares train --text PATH --runs FOLDER   # what FOLDER lacks
    python -m experiments.language_models.shares assemble --runs FOLDER [--again FOLDER2]   # writes shares.json

`--again` compares the runs of a second folder, made with `train --seeds 2`. Loader and text: those of
`experiments/shared.py`.
"""

from __future__ import annotations

import argparse
import copy
import math
import operator
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from experiments import shared
from experiments.language_models.stack import adamw
from experiments.shared import records, store
from xent.torch import distillation_loss, top_k_loss

RESULT = Path(__file__).with_suffix(".json")

SHORTER_THAN, LONGEST = 200, 400  # characters of a speech; where what a model writes is cut
PLACES = 24  # of a character in its speech: one for each of the first 8, then three for a factor of two
TUNING_SEED = 1000


@dataclass(frozen=True)
class Size:
    window: int
    embedding: int
    width: int


@dataclass(frozen=True)
class Settings:
    """What is the same in every arm."""

    teacher: Size = Size(12, 24, 384)
    student: Size = Size(8, 8, 96)
    shares: tuple[float, ...] = (0.02, 0.05, 0.2, 1.0)
    batch: int = 512  # rows of a step; where there are two kinds, half of each
    rates: tuple[float, ...] = (9e-3, 27e-3, 81e-3)
    dropouts: tuple[float, ...] = (0.0, 0.25, 0.5)
    alphas: tuple[float, ...] = (0.2, 0.5, 0.8, 0.95)
    decay: float = 0.01
    average: float = 0.99  # of the running average of the parameters
    looks: tuple[int, int, int] = (25, 250, 125)  # every 25 steps up to 250, then every 125
    patience: int = 500  # steps without a better look
    steps: int = 2500  # at most; the rate falls to zero over the last quarter
    longer: int = 7500  # of the arms that are also trained three times as long
    tuning_steps: int = 1000
    teacher_rate: float = 8e-3
    teacher_dropout: float = 0.25
    teacher_steps: int = 4000
    teacher_looks: tuple[int, int, int] = (25, 500, 100)
    top_k: int = 4
    written_at_once: int = 64  # speeches that a student writes for the next eight steps
    samples: int = 400  # written by a model for its evaluation


class Arm(NamedTuple):
    """The soft part: its loss, along which rows, at which temperature; `alpha` is its share, None where tuned."""

    loss: str  # forward, tail, jsd, or labels
    rows: str  # labelled, all, written (by the teacher), own (half labelled, half written by the student)
    alpha: float | None = None
    temperature: float = 1.0
    balanced: bool = False  # alpha counts gradients of equal size


ARMS = {
    "labels": Arm("labels", "labelled", 0.0),
    "teacher, all text": Arm("forward", "all", 1.0),
    "texts": Arm("labels", "written", 1.0),
    "mixed, all text": Arm("forward", "all"),
    "texts and labels": Arm("labels", "written"),
    "mixed, same text": Arm("forward", "labelled"),
    "teacher, same text": Arm("forward", "labelled", 1.0),
    "JSD, same text": Arm("jsd", "labelled", 1.0),
    "reverse, same text": Arm("reverse", "labelled", 1.0),
    "on-policy": Arm("jsd", "own", 1.0),
    "top 4, all text": Arm("tail", "all"),
    "T=4, tuned": Arm("forward", "labelled", None, 4.0),
    "T=4, half": Arm("forward", "labelled", 0.5, 4.0),
    "T=4, balanced": Arm("forward", "labelled", 0.5, 4.0, balanced=True),
}
WITHOUT_LABELS = ("teacher, all text", "texts")
LONGER = ("labels", "mixed, all text")  # also trained three times as long, by three seeds
TEMPERATURES = tuple(name for name in ARMS if name.startswith("T="))


class Rows(NamedTuple):
    """The tokens of some speeches: what precedes each, its place in the speech, and the token."""

    before: Tensor  # (rows, 12), the nearest last; <eos> = 0 before the first
    place: Tensor  # (rows,)
    token: Tensor  # (rows,)

    def take(self, index: Tensor) -> Rows:
        return Rows(self.before[index], self.place[index], self.token[index])


def place_of(n: Tensor) -> Tensor:
    """Return the place of the n-th token of a speech, n from 0 on."""
    late = 8 + (3 * (n.clamp(min=8).double() / 8).log2()).long()
    return torch.where(n < 8, n, late).clamp(max=PLACES - 1)


def rows_of(speeches: Sequence[Tensor], window: int) -> Rows:
    """Return a row for each token of the speeches."""
    before, place = [], []
    for speech in speeches:
        padded = torch.cat([speech.new_zeros(window), speech[:-1]])
        before.append(padded.unfold(0, window, 1))
        place.append(place_of(torch.arange(len(speech))))
    return Rows(torch.cat(before), torch.cat(place), torch.cat(list(speeches)))


def joined(parts: Sequence[Rows]) -> Rows:
    """Stack the rows of several models, which have equally many."""
    return Rows(*(torch.stack(column) for column in zip(*parts, strict=True)))


# ---------------------------------------------------------------- models, side by side


class Stack:
    """Neural n-grams, all parameters of a model in one row of `flat`."""

    def __init__(self, seeds: Sequence[int], size: Size, letters: int) -> None:
        self.size, self.letters = size, letters
        inputs, w = size.window * size.embedding, size.width
        self.shapes = {"read": (letters, size.embedding), "place": (PLACES, w), "in": (inputs, w)}
        self.shapes |= {"out": (w, letters), "bias": (1, letters)}
        scale = {"read": 1.0, "place": 0.3, "in": inputs**-0.5, "out": w**-0.5, "bias": 0.0}
        rows = []
        for seed in seeds:
            rng = np.random.default_rng([seed, 7])
            parts = [scale[n] * rng.standard_normal(math.prod(s)) for n, s in self.shapes.items()]
            rows.append(torch.tensor(np.concatenate(parts), dtype=torch.float32))
        self.flat = torch.stack(rows).requires_grad_()

    def logits(self, rows: Rows, dropout: Tensor | None = None) -> Tensor:
        """Return logits (models, N, letters) for rows (models, N, ...); `dropout` multiplies the hidden layer."""
        S, N = rows.place.shape
        parts = self.flat.split([math.prod(s) for s in self.shapes.values()], dim=1)
        p = {n: x.view(S, *s) for (n, s), x in zip(self.shapes.items(), parts, strict=True)}
        offset = torch.arange(S)[:, None]
        before = rows.before[..., -self.size.window :] + self.letters * offset[..., None]
        x = F.embedding(before, p["read"].reshape(-1, self.size.embedding)).flatten(2)
        place = F.embedding(rows.place + PLACES * offset, p["place"].reshape(-1, self.size.width))
        hidden = F.gelu(torch.baddbmm(place, x, p["in"]))
        hidden = hidden if dropout is None else hidden * dropout
        return torch.baddbmm(p["bias"], hidden, p["out"]).view(S, N, self.letters)

    def part(self, models: Sequence[int]) -> Stack:
        """Return some of the models, for evaluation."""
        other = copy.copy(self)
        other.flat = self.flat.detach()[list(models)]
        return other


@torch.no_grad()
def predict(model: Stack, rows: Rows, size: int = 8192) -> Tensor:
    """Return the log-probabilities (N, letters) of a single model along rows (N, ...)."""
    pieces = (Rows(*(column[None, i : i + size] for column in rows)) for i in range(0, len(rows.token), size))
    return torch.cat([model.logits(piece)[0].log_softmax(-1) for piece in pieces])


@torch.no_grad()
def write(models: Stack, uniform: Tensor) -> list[list[Tensor]]:
    """Let each model write speeches from uniform numbers (models, speeches, longest); what does not end is cut."""
    S, N, longest = uniform.shape
    before = torch.zeros(S, N, models.size.window, dtype=torch.long)
    text = torch.zeros(S, N, longest, dtype=torch.long)
    length = torch.full((S, N), longest)
    for n in range(longest):
        place = place_of(torch.full((S, N), n))
        cumulative = models.logits(Rows(before, place, place)).softmax(-1).cumsum(-1)
        token = (cumulative <= uniform[..., n, None] * cumulative[..., -1:]).sum(-1)
        token = token.clamp(max=models.letters - 1)
        text[..., n] = token
        length = torch.where((token == 0) & (length == longest), n + 1, length)
        if n + 1 >= int(length.max()):
            break
        before = torch.cat([before[..., 1:], token[..., None]], -1)
    return [[t[:m] for t, m in zip(*pair, strict=True)] for pair in zip(text, length.tolist(), strict=True)]


# ---------------------------------------------------------------- the data of a seed


@dataclass
class Owned:
    """What belongs to a seed: its teacher, and what the teacher says along fixed rows."""

    teacher: Stack
    said: dict[str, Tensor]
    written: dict[str, Rows]
    order: np.ndarray  # of the training speeches; the first of them are labelled


class Data:
    def __init__(self, text: Path, folder: Path, seeds: Sequence[int], settings: Settings) -> None:
        kept = [s for s in shared.load(text) if len(s) < SHORTER_THAN]
        speeches, alphabet = shared.encode(kept)
        self.letters, self.settings, self.folder = len(alphabet) + 1, settings, folder
        folder.mkdir(parents=True, exist_ok=True)
        split = shared.split(speeches, shared.Settings())._asdict()
        self.speeches: dict[str, list[Tensor]] = split
        self.rows = {part: rows_of(split[part], settings.teacher.window) for part in split}
        self.first = np.cumsum([0, *map(len, split["train"])])
        self.teachers, stored = self._teachers(folder / "teachers.pt", (*seeds, TUNING_SEED))
        self.teacher_record = stored
        self.owned: dict[int, Owned] = {}
        for i, seed in enumerate((*seeds, TUNING_SEED)):
            teacher = self.teachers.part([i])
            said = {part: predict(teacher, self.rows[part]) for part in self.rows}
            rng = np.random.default_rng([seed, 3])
            written = {part: rows_of(stored["written"][i][part], settings.teacher.window)
                       for part in ("train", "validation")}  # fmt: skip
            self.owned[seed] = Owned(teacher, said, written, rng.permutation(len(split["train"])))

    def _teachers(self, path: Path, seeds: Sequence[int]) -> tuple[Stack, dict[str, Any]]:
        """Return the teachers, trained on all training speeches unless stored, and what they wrote."""
        s = self.settings
        teachers = Stack([10_000 + seed for seed in seeds], s.teacher, self.letters)
        if not path.exists():
            jobs = [Job(10_000 + seed, s.teacher_rate, s.teacher_dropout, 0.0) for seed in seeds]
            train, validation = ([self.rows[part]] * len(seeds) for part in ("train", "validation"))
            known = [np.arange(len(train[0].token))] * len(seeds)
            task = Task(ARMS["labels"], self, known, train, validation, [])
            teachers, runs = fit(task, jobs, teachers, s.teacher_steps, s.teacher_looks)
            counts = {part: len(self.speeches[part]) for part in ("train", "validation")}
            written = [{part: [speech for begin in range(0, n, 500) for speech in write(
                teachers.part([i]), draws([seed], min(500, n - begin), begin + (part == "train") * 10**6)
            )[0]] for part, n in counts.items()} for i, seed in enumerate(seeds)]  # fmt: skip
            torch.save(
                {"flat": teachers.flat.detach(), "written": written, "seeds": list(seeds), "runs": runs,
                 "letters": self.letters, "speeches": {k: len(v) for k, v in self.speeches.items()},
                 "tokens": {k: len(v.token) for k, v in self.rows.items()}}, path
            )  # fmt: skip
        stored = torch.load(path)
        if stored["seeds"] != list(seeds):
            raise ValueError(f"{path} has the teachers of seeds {stored['seeds']}, expected {list(seeds)}")
        teachers.flat = stored["flat"]
        return teachers, stored

    def labelled(self, seed: int, share: float) -> np.ndarray:
        """Return the training rows whose speeches are labelled; those of a share hold those of a smaller one."""
        if not 0 < share <= 1:
            raise ValueError(f"share: expected a number in (0, 1], got {share}; alpha = 1 needs no labels")
        order = self.owned[seed].order
        count = max(1, round(share * len(order)))
        return np.concatenate([np.arange(self.first[i], self.first[i + 1]) for i in np.sort(order[:count])])


def draws(seeds: Sequence[int], speeches: int, salt: int) -> Tensor:
    """Return uniform numbers for `write`, which depend on seed and salt alone."""
    return torch.stack([
        torch.rand(speeches, LONGEST, generator=torch.Generator().manual_seed(1_000_003 * salt + seed))
        for seed in seeds
    ])  # fmt: skip


# ---------------------------------------------------------------- training


class Job(NamedTuple):
    seed: int
    rate: float
    dropout: float
    alpha: float


@dataclass
class Task:
    """An arm at a share: for each model the rows with labels, those of the soft part, and of its validation."""

    arm: Arm
    data: Data
    labelled: list[np.ndarray]
    soft: list[Rows]
    soft_validation: list[Rows]
    said: list[dict[str, Tensor]]

    @classmethod
    def of(cls, data: Data, arm: Arm, share: float, jobs: Sequence[Job]) -> Task:
        owned = [data.owned[job.seed] for job in jobs]
        known = [data.labelled(job.seed, share) if share else np.arange(1) for job in jobs]
        written = arm.rows == "written"
        return cls(arm, data, known, [o.written["train"] if written else data.rows["train"] for o in owned],
                   [o.written["validation"] if written else data.rows["validation"] for o in owned],
                   [o.said for o in owned])  # fmt: skip

    def soft_rows(self, m: int, rng: np.random.Generator, count: int) -> np.ndarray:
        """Draw rows for the soft part of model m."""
        if self.arm.rows in ("labelled", "own"):
            return rng.choice(self.labelled[m], count)
        return rng.integers(len(self.soft[m].token), size=count)


def soft_loss(arm: Arm, logits: Tensor, log_p: Tensor, tokens: Tensor, top_k: int) -> Tensor:
    """Return the soft part's loss of each row, shape (models, N)."""
    if arm.loss == "labels":
        return F.cross_entropy(logits.transpose(1, 2), tokens, reduction="none")
    if arm.loss == "tail":
        top, index = log_p.topk(top_k)
        return top_k_loss(logits, top, index, treatment="tail", reduction="none")
    options: Any = {"temperature": arm.temperature, "direction": arm.loss, "reduction": "none"}
    return distillation_loss(logits, log_p, **options)


def factor_of(task: Task, jobs: Sequence[Job], models: Stack) -> Tensor:
    """Return what makes the soft gradient as large as the labels', measured once at the initial parameters.

    Both are gradients of the mean over the same 4,096 rows with respect to the logits, by their root mean square.
    """
    found = []
    for m, job in enumerate(jobs):
        index = np.random.default_rng([job.seed, 5]).choice(task.labelled[m], 4096)
        rows = joined([task.data.rows["train"].take(torch.from_numpy(index))])
        z = models.part([m]).logits(rows).requires_grad_()
        log_p = task.said[m]["train"][index][None]
        hard = F.cross_entropy(z[0], rows.token[0], reduction="sum")
        soft = soft_loss(task.arm, z, log_p, rows.token, 0).sum()
        sizes = [torch.autograd.grad(loss, z, retain_graph=True)[0].norm() for loss in (hard, soft)]
        found.append(sizes[0] / sizes[1])
    return torch.stack(found)


def fit(
    task: Task, jobs: Sequence[Job], models: Stack, steps: int, looks: tuple[int, int, int]
) -> tuple[Stack, list[dict[str, Any]]]:
    """Train models side by side until each has stopped; return them at their best looks, and what it took."""
    s, arm, data = task.data.settings, task.arm, task.data
    S, batch = len(jobs), s.batch
    rngs = [np.random.default_rng([job.seed, 9]) for job in jobs]
    noise = [torch.Generator().manual_seed(job.seed) for job in jobs]
    rate, alpha = torch.tensor([j.rate for j in jobs]), torch.tensor([j.alpha for j in jobs])
    keep = 1 - torch.tensor([j.dropout for j in jobs])[:, None, None]
    factor = factor_of(task, jobs, models) if arm.balanced else torch.ones(S)
    hard = batch if bool((alpha == 0).all()) else 0 if bool((alpha == 1).all()) else batch // 2
    soft = batch - hard
    state = (torch.zeros_like(models.flat), torch.zeros_like(models.flat))
    average, best = models.flat.detach().clone(), models.flat.detach().clone()
    lowest, at, live = np.full(S, np.inf), np.zeros(S, int), np.ones(S, bool)
    curves: list[list[float]] = [[] for _ in jobs]
    own: list[Rows] = []
    written = np.zeros(S, int)
    for step in range(1, steps + 1):
        parts, said = [], []
        if arm.rows == "own" and step % 8 == 1:
            uniform = draws([j.seed for j in jobs], s.written_at_once, 10**5 + step)
            texts = write(models.part(range(S)), uniform)
            own = [rows_of(t, s.teacher.window) for t in texts]
            written += np.where(live, [len(o.token) for o in own], 0)
        for m in range(S):
            index = torch.from_numpy(rngs[m].choice(task.labelled[m], hard))
            parts.append(data.rows["train"].take(index))
            if soft:
                index = torch.from_numpy(task.soft_rows(m, rngs[m], soft))
                rows = task.soft[m].take(index)
                log_p = task.said[m]["train"][index] if arm.loss != "labels" else torch.empty(0)
                if arm.rows == "own":
                    index = torch.from_numpy(rngs[m].integers(len(own[m].token), size=soft // 2))
                    mine = own[m].take(index)
                    log_p[soft // 2 :] = predict(data.owned[jobs[m].seed].teacher, mine)
                    rows = Rows(*(torch.cat([a[: soft // 2], b]) for a, b in zip(rows, mine, strict=True)))
                parts[-1] = Rows(*(torch.cat(pair) for pair in zip(parts[-1], rows, strict=True)))
                said.append(log_p)
        rows = joined(parts)
        dropout = None
        if bool((keep < 1).any()):
            w = models.size.width
            drawn = torch.stack([torch.rand(batch, w, generator=g) for g in noise])
            dropout = (drawn < keep) / keep
        logits = models.logits(rows, dropout)
        loss = logits.new_zeros(S)
        if hard:
            z, y = logits[:, :hard], rows.token[:, :hard]
            loss = loss + (1 - alpha) * F.cross_entropy(z.transpose(1, 2), y, reduction="none").mean(1)
        if soft:
            log_p = torch.stack(said)
            each = soft_loss(arm, logits[:, hard:], log_p, rows.token[:, hard:], s.top_k)
            loss = loss + alpha * factor * each.mean(1)
        (gradient,) = torch.autograd.grad(loss.sum(), models.flat)
        with torch.no_grad():
            on = torch.from_numpy(live)
            now = rate * on * min(1.0, 4 * (1 - (step - 1) / steps))
            adamw(models.flat, gradient, state, step, now, torch.full((S,), s.decay))
            average.lerp_(models.flat, max(1 - s.average, 1 / step))
        if step % (looks[0] if step <= looks[1] else looks[2]) == 0:
            looked = models.part(range(S))
            looked.flat = average
            for m in np.flatnonzero(live):
                value = objective(task, jobs[m], looked.part([m]), m, float(factor[m]))
                curves[m].append(round(value, 5))
                if value < lowest[m] - 1e-5:
                    lowest[m], at[m] = value, step
                    best[m] = average[m]
                live[m] = step - at[m] < (s.patience if steps != s.longer else steps)
            if not live.any():
                break
    models.flat = best
    return models, [
        {"best_step": int(at[m]), "ended": not live[m], "own": float(lowest[m]), "written": int(written[m]),
         "curve": curves[m]} for m in range(S)
    ]  # fmt: skip


@torch.no_grad()
def objective(task: Task, job: Job, model: Stack, m: int, factor: float) -> float:
    """Return what the arm minimises, on validation rows, in nats a token."""
    arm, data, total = task.arm, task.data, 0.0

    def mean(rows: Rows, log_p: Tensor) -> float:
        z = predict(model, rows)[None]
        return float(soft_loss(arm, z, log_p[None], rows.token[None], data.settings.top_k).mean())

    if job.alpha < 1:
        rows = data.rows["validation"]
        total += (1 - job.alpha) * float(F.nll_loss(predict(model, rows), rows.token))
    if job.alpha > 0:
        said = task.said[m]["validation"] if arm.loss != "labels" else torch.empty(0)
        value = mean(task.soft_validation[m], said)
        if arm.rows == "own":
            mine = rows_of(write(model, draws([job.seed], 64, 7))[0], data.settings.teacher.window)
            value = (value + mean(mine, predict(data.owned[job.seed].teacher, mine))) / 2
        total += job.alpha * factor * value
    return total


# ---------------------------------------------------------------- the evaluation


@torch.no_grad()
def evaluate(data: Data, model: Stack, seed: int, part: str = "test") -> dict[str, float]:
    """Return what is reported of a model, in nats a token, on held-out speeches.

    `gap` is the NLL minus the mean entropy of the predictions, above zero where a model is too sure; `ece` the
    calibration error of the likeliest token in fifteen bins of equal mass; `kl` the KL divergence from the teacher.
    """
    rows, owned = data.rows[part], data.owned[seed]
    log_q = predict(model, rows).double()
    log_p = owned.said[part].double()
    nll = -log_q.gather(1, rows.token[:, None])[:, 0].numpy()
    sure, guess = (x.numpy() for x in log_q.max(1))
    sure, right = np.exp(sure), guess == rows.token.numpy()
    bins = np.array_split(np.argsort(sure, kind="stable"), 15)
    lengths = [len(t) for t in write(model, draws([seed], data.settings.samples, 11))[0]]
    return {
        "nll": float(nll.mean()),
        "gap": float(nll.mean() + (log_q.exp() * log_q).sum(1).mean()),
        "ece": float(sum(abs((sure[b] - right[b]).sum()) for b in bins) / len(sure)),
        "kl": float((log_p.exp() * (log_p - log_q)).sum(1).mean()),
        "mean_length": float(np.mean(lengths)),
    }


# ---------------------------------------------------------------- the record


def plan(settings: Settings) -> Iterator[tuple[str, float, int]]:
    """Yield (arm, share, steps) in the order in which they are worth having; at share 1 the same text is all text."""
    steps, all_text = settings.steps, settings.shares[-1]
    least, few, part = settings.shares[:-1]

    def cells(*arms: tuple[Any, ...]) -> Iterator[tuple[str, float, int]]:
        yield from ((name, share, steps) for name, *shares in arms for share in shares)

    yield from cells(("labels", *settings.shares), ("mixed, all text", few, part, all_text))
    yield from ((name, all_text, settings.longer) for name in LONGER)
    yield from cells(("texts and labels", few, all_text, part), *((name, 0.0) for name in WITHOUT_LABELS))
    yield from cells(("mixed, same text", few, part))
    yield from cells(*((name, least) for name in ("mixed, all text", "texts and labels", "mixed, same text")))
    yield from cells(("on-policy", few, all_text), *((name, few) for name in TEMPERATURES))
    yield from cells(("top 4, all text", few, all_text), ("teacher, same text", few, part, least))
    yield from cells(("on-policy", part, least), ("top 4, all text", part, least))
    yield from cells(("JSD, same text", few, all_text), ("reverse, same text", few, all_text))


def started(data: Data, name: str, share: float, jobs: Sequence[Job]) -> Stack:
    """Return the students before training: initial values, or for on-policy those of labels."""
    models = Stack([job.seed for job in jobs], data.settings.student, data.letters)
    if ARMS[name].rows == "own":
        stored = torch.load(data.folder / f"labels-{share}.pt")
        models.flat = torch.stack([stored[job.seed] for job in jobs]).requires_grad_()
    return models


def run(
    data: Data, name: str, share: float, jobs: Sequence[Job], steps: int
) -> tuple[Stack, list[dict[str, Any]]]:
    """Train the jobs side by side; return the students and their rows of the record."""
    start = time.process_time()
    arm = ARMS[name]
    students = started(data, name, share, jobs)
    models, found = fit(Task.of(data, arm, share, jobs), jobs, students, steps, data.settings.looks)
    seconds = (time.process_time() - start) / len(jobs)
    rows = []
    for m, (job, row) in enumerate(zip(jobs, found, strict=True)):
        validation = data.rows["validation"]
        held = float(F.nll_loss(predict(models.part([m]), validation), validation.token))
        cell = {"arm": name, "share": share, "steps": steps, **job._asdict()}
        rows.append(cell | row | {"validation": held, "seconds": round(seconds, 1)})
    return models, rows


def tune(data: Data, name: str, share: float) -> tuple[Job, list[dict[str, Any]]]:
    """Choose rate and dropout by the arm's own objective, then alpha, with dropout, by the validation loss of labels.

    Where the soft part has all text at every share, the rate is that of the share that came first.
    """
    s, arm, tuning = data.settings, ARMS[name], []
    first = 0.5 if arm.alpha is None else arm.alpha
    known = [r for r in records(data.folder) if r["arm"] == name and r["seed"] != TUNING_SEED]
    if known and arm.rows in ("all", "written"):
        chosen = Job(TUNING_SEED, known[0]["rate"], 0.0, first)
    else:
        grid = [Job(TUNING_SEED, r, d, first) for r in s.rates for d in s.dropouts]
        tuning = run(data, name, share, grid, s.tuning_steps)[1]
        chosen = grid[int(np.argmin([row["own"] for row in tuning]))]
    if arm.alpha is None:
        pairs = [chosen._replace(dropout=d, alpha=a) for d in s.dropouts for a in s.alphas]
        tried = run(data, name, share, pairs, s.tuning_steps)[1]
        chosen = pairs[int(np.argmin([row["validation"] for row in tried]))]
        tuning = tuning + tried
    return chosen, tuning


def work(data: Data, seeds: Sequence[int], folder: Path, settings: Settings) -> None:
    """Tune and train what the folder lacks, arm by arm with all seeds side by side."""
    if not records(folder):
        for i, seed in enumerate(seeds):
            row = {"arm": "teacher", "share": 1.0, "steps": settings.teacher_steps, "seed": seed}
            row |= data.teacher_record["runs"][i] | evaluate(data, data.owned[seed].teacher, seed)
            store(folder, row)
    for name, share, steps in plan(settings):
        some = seeds if steps == settings.steps else seeds[:3]
        cell = [r for r in records(folder) if r["arm"] == name and r["share"] == share]
        if {r["seed"] for r in cell if r["steps"] == steps} >= set(some):
            continue
        kept = [r for r in cell if r["seed"] != TUNING_SEED]
        if kept:
            chosen, tuning = Job(*(kept[0][field] for field in Job._fields)), []
        else:
            chosen, tuning = tune(data, name, share)
        jobs = [chosen._replace(seed=seed) for seed in some]
        if name == "labels" and tuning:  # the warm start of on-policy, of the seed that tunes it too
            jobs.append(chosen._replace(seed=TUNING_SEED))
        models, rows = run(data, name, share, jobs, steps)
        if len(jobs) > len(some):
            states = {job.seed: models.flat[m].detach().clone() for m, job in enumerate(jobs)}
            torch.save(states, folder / f"labels-{share}.pt")
            rows.pop()
        for m, row in enumerate(rows):
            row |= evaluate(data, models.part([m]), row["seed"])
        for row in (*tuning, *rows):
            store(folder, row)
        print(name, share, steps, chosen[1:], np.mean([r["nll"] for r in rows]), flush=True)


def compare(runs: Sequence[dict[str, Any]], again: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return how far runs that were repeated are from the first ones."""
    key = operator.itemgetter("arm", "share", "steps", "seed")
    first = {key(r): r for r in runs}
    pairs = [(first[key(r)], r) for r in again if "nll" in r and key(r) in first]
    far = [abs(a[k] - b[k]) for a, b in pairs for k in ("nll", "gap", "ece", "kl")]
    seeds = sorted({b["seed"] for _, b in pairs})
    return {"runs": len(pairs), "seeds": seeds, "largest_difference": max(far)}


def assemble(folder: Path, again: Path | None, settings: Settings) -> dict[str, Any]:
    """Return the record; of a curve its end, which shows whether a run had ended."""
    rows, stored = records(folder), torch.load(folder / "teachers.pt")
    rows = [row | {"curve": row["curve"][-3:]} for row in rows]
    sizes = {"teacher": settings.teacher, "student": settings.student}
    runs = [row for row in rows if "nll" in row]
    return {
        **shared.made(torch, np),
        "settings": asdict(settings),
        "parameters": {n: Stack([0], size, stored["letters"]).flat.numel() for n, size in sizes.items()},
        "arms": {name: arm._asdict() for name, arm in ARMS.items()},
        "text": {part: stored[part] for part in ("speeches", "tokens")},
        "repeated": compare(runs, records(again)) if again else None,
        "tuning": [row for row in rows if "nll" not in row],
        "runs": runs,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=("train", "assemble"))
    parser.add_argument("--text", type=Path, help="your copy of the text, to train")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--again", type=Path, help="folder of runs that were repeated")
    parser.add_argument("--seeds", type=int, default=8)
    given, settings = parser.parse_args(), Settings()
    if given.command == "assemble":
        return shared.write(assemble(given.runs, given.again, settings), RESULT)
    torch.set_num_threads(1)  # the sums of a run then do not depend on the machine's cores
    seeds = range(given.seeds)
    return work(Data(given.text, given.runs, seeds, settings), seeds, given.runs, settings)


if __name__ == "__main__":
    main()
