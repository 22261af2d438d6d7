"""A real small pair: transformers of characters on Tiny Shakespeare, a teacher and a student of a fifteenth.

Sequences are speeches of fewer than 200 characters that end with <eos>. The teacher learns them from their labels.
For each seed a student first learns from labels alone. From there six arms go on, for the same number of steps:

    labels          cross-entropy with the text
    forward         KL(teacher || student) along the text
    forward, fresh  the same, along speeches that the teacher wrote, each seen once
    jsd             the generalised Jensen-Shannon divergence with beta = .5, along the text
    gkd             the same, along what the student writes in every second step (GKD with lambda = .5)
    reverse         KL(student || teacher) along what the student writes

What the student writes counts as data: no arm differentiates the sampling. The loss of a batch is the mean over
its tokens. A seed fixes the student that all arms start from, and the order of the text.

Each arm chooses its learning rate by its own objective, with a seed of its own: the mean over the tokens of what
it minimises, along the validation speeches, along validation speeches of the teacher, or along speeches that the
student writes (gkd: half of either).

    python -m experiments.language_models.pair train --text PATH --runs FOLDER   # what FOLDER lacks
    python -m experiments.language_models.pair longer --text PATH --runs FOLDER  # three seeds, four times as long
    python -m experiments.language_models.pair assemble --runs FOLDER            # writes pair.json
    python -m experiments.language_models.pair show                              # the table
    python -m experiments.language_models.pair repeat --text PATH --runs FOLDER  # two seeds of two arms again

The text is the file `input.txt` of char-rnn's tinyshakespeare; the loader refuses any other by its SHA-256.
Transformer, loader and split are those of `experiments/shared.py`.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments import shared
from experiments.shakespeare import run as shakespeare
from experiments.shared import Split, Transformer, made, records, store
from xent.torch import cross_entropy, distillation_loss

RESULT = Path(__file__).with_suffix(".json")

SHORTER_THAN = 200  # characters of a speech
LONGER = 432  # steps of the runs that show what more training does; arms on fixed speeches only, for the time
BATCH = 64  # speeches; of the teacher's training and of the students' starts it is 128, as in `run.py`
TEACHER = shared.Settings(width=128, heads=4, buckets=2**12, dropout=0.3, epochs=4, rates=(8e-3,))
STUDENT = shared.Settings(width=32, heads=1, buckets=2**10, dropout=0.1, epochs=2, rates=(16e-3,))


@dataclass(frozen=True)
class Arm:
    """What a student minimises, and along which speeches; `share` of the steps use those it writes itself."""

    loss: str  # "labels", or a direction of xent.torch.distillation_loss
    data: str = "text"  # or "teacher"
    share: float = 0.0


ARMS = {
    "labels": Arm("labels"),
    "forward": Arm("forward"),
    "forward, fresh": Arm("forward", "teacher"),
    "jsd": Arm("jsd"),
    "gkd": Arm("jsd", share=0.5),
    "reverse": Arm("reverse", share=1.0),
}


@dataclass(frozen=True)
class Settings:
    """What is the same in every arm."""

    steps: int = 108  # an epoch and a half of the text
    tuning_steps: int = 36
    rates: tuple[float, ...] = (6e-3, 18e-3, 54e-3)  # 2e-3 lost wherever it was tried
    warmup: int = 8
    beta: float = 0.5  # of the generalised Jensen-Shannon divergence
    longest_in_training: int = 200
    longest_sample: int = 400
    samples: int = 600  # written by a model for its evaluation
    tuning_samples: int = 256
    tuning_seed: int = 1000


# ---------------------------------------------------------------- what a model writes


@torch.no_grad()
def write(model: Transformer, count: int, generator: torch.Generator, longest: int) -> list[Tensor]:
    """Draw speeches, character by character; one that has not ended after `longest` tokens is cut there."""
    was_training = model.training
    model.eval()
    text = torch.zeros(count, longest, dtype=torch.long)
    number = torch.arange(count)  # which speech a row belongs to
    lengths = torch.full((count,), longest)
    token = torch.zeros(count, 1, dtype=torch.long)
    before = token.new_zeros(count, max(model.settings.orders) - 1)
    past = None
    for n in range(longest):
        if past is not None and past[0].shape[3] <= n:
            past = [F.pad(cache, (0, 0, 0, cache.shape[3])) for cache in past]
        logits, past = model(token, before, past, n)
        before = torch.cat([before[:, 1:], token], dim=1)
        token = torch.multinomial(logits[:, -1].softmax(1), 1, generator=generator)
        text[number, n] = token[:, 0]
        ended = (token[:, 0] == 0) & (lengths[number] == longest)
        lengths[number[ended]] = n + 1
        alive = lengths[number] == longest
        if not alive.any():
            break
        if alive.double().mean() < 0.8:  # to drop each row at once would copy the cache at each step
            token, before, number = token[alive], before[alive], number[alive]
            past = [cache[:, alive] for cache in past]
    model.train(was_training)
    return [row[:n] for row, n in zip(text, lengths.tolist(), strict=True)]


# ---------------------------------------------------------------- the losses


@torch.no_grad()
def predictions(model: Transformer, speeches: Sequence[Tensor]) -> list[Tensor]:
    """Return the model's log-probabilities along each speech, of shape (its tokens, letters)."""
    result: list[Tensor] = [torch.empty(0)] * len(speeches)
    for chunk in shared.chunks(speeches):
        log_p, _ = shared.log_probabilities(model, [speeches[i] for i in chunk])
        for i, row in zip(chunk, log_p, strict=True):
            result[i] = row[: len(speeches[i])].clone()
    return result


def mean_loss(
    kind: str, student: Transformer, speeches: Sequence[Tensor], teacher: Sequence[Tensor], beta: float = 0.5,
    backward: bool = False,
) -> float:  # fmt: skip
    """Return the mean over the tokens of the loss in nats, and add its gradient if asked.

    `teacher` has the teacher's log-probabilities along each speech; labels need none.
    """
    tokens, total = sum(map(len, speeches)), 0.0
    for chunk in shared.chunks(speeches):
        with torch.set_grad_enabled(backward):
            log_q, targets = shared.log_probabilities(student, [speeches[i] for i in chunk])
            if kind == "labels":
                loss = cross_entropy(log_q, targets, ignore_index=-100, denominator=tokens)
            else:
                log_p = nn.utils.rnn.pad_sequence([teacher[i] for i in chunk], batch_first=True)
                direction: Any = kind
                loss = distillation_loss(
                    log_q,
                    log_p,
                    direction=direction,
                    beta=beta,
                    sample_weight=targets >= 0,
                    denominator=tokens,
                )
        if backward:
            loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    return total


# ---------------------------------------------------------------- a run


class Data:
    """The speeches, the teacher, and the speeches it wrote: for training, for validation, for the evaluation."""

    def __init__(self, text: Path, folder: Path, settings: Settings) -> None:
        kept = [s for s in shared.load(text) if len(s) < SHORTER_THAN]
        speeches, alphabet = shared.encode(kept)
        self.letters = len(alphabet) + 1
        self.parts: Split = shared.split(speeches, TEACHER)
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.teacher = self.learnt_from_labels("teacher", TEACHER, settings.tuning_seed)
        sizes = {
            "train": settings.steps * BATCH,
            "validation": settings.tuning_samples,
            "test": settings.samples,
        }
        path = folder / "teachers.pt"
        if not path.exists():
            start, generator = time.process_time(), torch.Generator().manual_seed(0)
            longest = settings.longest_sample
            written = {
                part: [s for n in cut(size) for s in write(self.teacher, n, generator, longest)]
                for part, size in sizes.items()
            }
            torch.save({"written": written, "seconds": time.process_time() - start}, path)
        stored = torch.load(path)
        self.written: dict[str, list[Tensor]] = stored["written"]
        # What the teacher predicts along fixed speeches is computed once.
        start = time.process_time()
        fixed = {("text", part): getattr(self.parts, part) for part in ("train", "validation")}
        fixed |= {("teacher", part): speeches for part, speeches in self.written.items()}
        self.fixed = {key: (speeches, predictions(self.teacher, speeches)) for key, speeches in fixed.items()}
        print(f"the teacher's predictions took {time.process_time() - start:.0f} s", flush=True)

    def learnt_from_labels(self, name: str, settings: shared.Settings, seed: int) -> Transformer:
        """Return the model of that name, trained by `run.py` with the constant denominator if not stored."""
        path = self.folder / f"{name}.pt"
        if not path.exists():
            start = time.process_time()
            trained = shakespeare.train(
                self.parts, self.letters, "constant", seed, settings.rates[0], settings
            )
            row = {
                "arm": name,
                "seed": seed,
                "curve": trained["curve"],
                "seconds": time.process_time() - start,
            }
            torch.save({"state": trained["model"].state_dict(), "row": row}, path)
        model = Transformer(self.letters, settings)
        model.load_state_dict(torch.load(path)["state"])
        return model.eval()


def cut(count: int, size: int = 1000) -> list[int]:
    """Return sizes of parts, for the memory's sake."""
    return [min(size, count - start) for start in range(0, count, size)]


def train(
    data: Data, name: str, seed: int, rate: float, steps: int, settings: Settings
) -> tuple[Transformer, dict[str, Any]]:
    """Train one student from the seed's start; return it with the loss along its run and what it cost."""
    arm = ARMS[name]
    student = data.learnt_from_labels(f"start-{seed}", STUDENT, seed).train()
    torch.manual_seed(seed)
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    source, said = data.fixed[arm.data, "train"]
    optimiser = shared.adamw(student)
    order: list[int] = []
    curve, recent = [], []
    cost = {"tokens": 0, "written": 0}
    start = time.process_time()
    for step in range(steps):
        if int((step + 1) * arm.share) > int(step * arm.share):
            batch = write(student, BATCH, generator, settings.longest_in_training)
            teacher = predictions(data.teacher, batch)
            cost["written"] += sum(map(len, batch))
        else:
            if len(order) < BATCH:
                order = rng.permutation(len(source)).tolist()
            chosen, order = order[:BATCH], order[BATCH:]
            batch, teacher = [source[i] for i in chosen], [said[i] for i in chosen]
        cost["tokens"] += sum(map(len, batch))
        warm, cosine = (step + 1) / settings.warmup, 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimiser.param_groups:
            group["lr"] = rate * group["scale"] * min(1.0, warm) * cosine
        optimiser.zero_grad()
        recent.append(mean_loss(arm.loss, student, batch, teacher, settings.beta, True))
        optimiser.step()
        if (step + 1) % (steps // 6) == 0:
            curve.append(round(float(np.mean(recent)), 5))
            recent = []
    student.eval()
    return student, {"curve": curve, **cost, "seconds": round(time.process_time() - start, 1)}


def objective(data: Data, name: str, student: Transformer, seed: int, settings: Settings) -> dict[str, float]:
    """Return the arm's own objective in nats per token, by which it is tuned, and the held-out loss beside it."""
    arm = ARMS[name]
    generator = torch.Generator().manual_seed(seed)
    own = 0.0
    if arm.share < 1:
        held_out = data.fixed[arm.data, "validation"]
        own += (1 - arm.share) * mean_loss(arm.loss, student, *held_out, settings.beta)
    if arm.share > 0:
        written = write(student, settings.tuning_samples, generator, settings.longest_sample)
        own += arm.share * mean_loss(
            arm.loss, student, written, predictions(data.teacher, written), settings.beta
        )
    return {"own": own, "validation": mean_loss("labels", student, data.parts.validation, ())}


# ---------------------------------------------------------------- the evaluation


@torch.no_grad()
def evaluate(data: Data, model: Transformer, seed: int, settings: Settings) -> dict[str, float]:
    """Return what is reported of a model; losses in nats, sums over a speech where the name says so.

    `gap` is the mean NLL on the test speeches minus the mean entropy of the model's predictions: above zero, the
    model is surer than it may be. `ece` is the expected calibration error of the likeliest token, in fifteen bins
    of equal mass. `reverse_per_speech` and `forward_per_speech` estimate KL(model || teacher) and
    KL(teacher || model) of whole speeches: sums of token divergences along speeches of the first argument.
    """
    rows = []
    for chunk in shared.chunks(data.parts.test):
        log_q, targets = shared.log_probabilities(model, [data.parts.test[i] for i in chunk])
        log_q, targets = log_q.double()[targets >= 0], targets[targets >= 0]
        sure, guess = log_q.max(1)
        rows.append(
            torch.stack(
                [
                    -log_q.gather(1, targets[:, None])[:, 0],
                    -(log_q.exp() * log_q).sum(1),
                    sure.exp(),
                    (guess == targets).double(),
                ]
            )
        )
    nll, entropy, sure, right = torch.cat(rows, 1).numpy()
    bins = np.array_split(np.argsort(sure, kind="stable"), 15)
    written = write(model, settings.samples, torch.Generator().manual_seed(seed), settings.longest_sample)
    lengths = np.array([len(s) for s in written])
    teacher = predictions(data.teacher, written)
    others, said = data.fixed["teacher", "test"]
    return {
        "nll_per_token": float(nll.mean()),
        "gap": float(nll.mean() - entropy.mean()),
        "ece": float(sum(abs((sure[b] - right[b]).sum()) for b in bins) / len(sure)),
        "accuracy": float(right.mean()),
        "mean_length": float(lengths.mean()),
        "median_length": float(np.median(lengths)),
        "not_ended": int(sum(int(s[-1]) != 0 for s in written)),
        "teacher_nll_of_samples": -sum(
            float(p.gather(1, s[:, None]).sum()) for p, s in zip(teacher, written, strict=True)
        )
        / float(lengths.sum()),
        "own_nll_of_samples": mean_loss("labels", model, written, ()),
        "reverse_per_speech": mean_loss("reverse", model, written, teacher) * float(lengths.mean()),
        "forward_per_speech": mean_loss("forward", model, others, said)
        * float(np.mean([len(s) for s in others])),
    }


# ---------------------------------------------------------------- the record


def chosen_rate(runs: Sequence[dict[str, Any]], name: str, settings: Settings) -> float:
    """Return the rate whose tuning run has the lowest own objective."""
    grid = [r for r in runs if r["arm"] == name and r["seed"] == settings.tuning_seed]
    return float(min(grid, key=lambda r: r["own"])["rate"])


def work(
    data: Data, arms: Sequence[str], seeds: Sequence[int], folder: Path, settings: Settings,
    tuned: Sequence[dict[str, Any]] = (),
) -> None:  # fmt: skip
    """Train what the folder lacks, seed by seed; first the tuning, unless runs that are `tuned` are given."""
    plan: list[tuple[str, int, float | None]] = []
    if not tuned:
        plan += [(name, settings.tuning_seed, rate) for name in arms for rate in settings.rates]
    plan += [("teacher", settings.tuning_seed, None)]
    plan += [(name, seed, None) for seed in seeds for name in ("start", *arms)]
    for name, seed, given in plan:
        runs = records(folder)
        if any(r["arm"] == name and r["seed"] == seed and given in (None, r["rate"]) for r in runs):
            continue
        row: dict[str, Any] = {"arm": name, "seed": seed, "rate": given}
        start = time.process_time()
        if name in ARMS:
            row["rate"] = chosen_rate(tuned or runs, name, settings) if given is None else given
            steps = settings.steps if given is None else settings.tuning_steps
            model, cost = train(data, name, seed, row["rate"], steps, settings)
            row |= cost | objective(data, name, model, seed, settings)
        else:  # only evaluated here
            label = name if name == "teacher" else f"{name}-{seed}"
            model = data.teacher if name == "teacher" else data.learnt_from_labels(label, STUDENT, seed)
            row |= torch.load(data.folder / f"{label}.pt")["row"] | {"arm": name}
        if name == "teacher" or seed != settings.tuning_seed:
            row |= evaluate(data, model, seed, settings)
        row["seconds_in_all"] = round(time.process_time() - start, 1)
        store(folder, row)
        print({k: v for k, v in row.items() if k != "curve"}, flush=True)


def parameters(settings: shared.Settings, letters: int) -> dict[str, int]:
    """Return how many parameters a model has, and how many of them are tables of n-grams."""
    model = Transformer(letters, settings)
    parts = {"all": model, "tables": model.tables}
    return {name: sum(p.numel() for p in part.parameters()) for name, part in parts.items()}


def assemble(folder: Path, settings: Settings) -> dict[str, Any]:
    """Return the record: the tuning, and the seeds that every arm has."""
    runs = records(folder)
    tuning = [r for r in runs if r["seed"] == settings.tuning_seed and r["arm"] != "teacher"]
    kept = [r for r in runs if r["seed"] != settings.tuning_seed and r["arm"] != "teacher"]
    whole = set.intersection(*({r["seed"] for r in kept if r["arm"] == name} for name in ("start", *ARMS)))
    letters = len(torch.load(folder / "teacher.pt")["state"]["head.bias"])
    return {
        **made(torch, np),
        "settings": asdict(settings),
        "models": {"teacher": asdict(TEACHER), "student": asdict(STUDENT)},
        "parameters": {"teacher": parameters(TEACHER, letters), "student": parameters(STUDENT, letters)},
        "arms": {name: asdict(arm) for name, arm in ARMS.items()},
        "writing_seconds": round(float(torch.load(folder / "teachers.pt")["seconds"]), 1),
        "teacher": [r for r in runs if r["arm"] == "teacher"],
        "tuning": tuning,
        "runs": sorted((r for r in kept if r["seed"] in whole), key=lambda r: int(r["seed"])),
        "longer": {"steps": LONGER, "runs": records(folder / "longer")},
    }


def show(record: dict[str, Any]) -> None:
    """Print the means over the seeds."""
    keys = ("nll_per_token", "gap", "ece", "teacher_nll_of_samples", "mean_length", "forward_per_speech",
            "reverse_per_speech", "seconds")  # fmt: skip
    print(f"{'arm':16}" + "".join(f"{key[:11]:>12}" for key in keys))
    for name in ("teacher", "start", *ARMS):
        rows = record["teacher"] if name == "teacher" else [r for r in record["runs"] if r["arm"] == name]
        print(f"{name:16}" + "".join(f"{np.mean([r[key] for r in rows]):12.4f}" for key in keys))


def repeat(data: Data, folder: Path, settings: Settings, arms: Sequence[str], seeds: Sequence[int]) -> None:
    """Train two seeds of two arms again, from the starts up, and print the differences from the stored result."""
    stored = json.loads(RESULT.read_text())
    for run in stored["runs"]:
        if run["arm"] in arms and run["seed"] in seeds:
            model, cost = train(data, run["arm"], run["seed"], run["rate"], settings.steps, settings)
            again = cost | evaluate(data, model, run["seed"], settings)
            apart = max(abs(again[k] - run[k]) for k in again if k not in ("curve", "seconds"))
            curve = float(np.abs(np.subtract(again["curve"], run["curve"])).max())
            print(f"{run['arm']}, seed {run['seed']}: measures differ by {apart:.2g}, losses by {curve:.2g}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Distil a small transformer of characters.")
    parser.add_argument("command", choices=("train", "longer", "assemble", "show", "repeat"))
    parser.add_argument("--text", type=Path, help="your copy of the text")
    parser.add_argument(
        "--runs", type=Path, default=Path(__file__).parent / "runs", help="folder of the runs"
    )
    parser.add_argument("--seeds", type=int, default=8)
    arguments = parser.parse_args()
    settings = Settings()
    if arguments.command == "show":
        return show(json.loads(RESULT.read_text()))
    if arguments.command == "assemble":
        return shared.write(assemble(arguments.runs, settings), RESULT)
    if arguments.text is None:
        parser.error("--text is needed: the path of your copy of the text")
    torch.set_num_threads(1)  # the sums of a run then do not depend on the machine's cores
    if arguments.command == "longer":
        folder, settings = arguments.runs / "longer", Settings(steps=LONGER)
        data, tuned = Data(arguments.text, folder, settings), records(arguments.runs)
        fixed = tuple(name for name, arm in ARMS.items() if arm.share == 0)
        return work(data, fixed, range(3), folder, settings, tuned)
    data = Data(arguments.text, arguments.runs, settings)
    if arguments.command == "repeat":  # an empty folder repeats the teacher as well
        return repeat(data, arguments.runs, settings, ("labels", "reverse"), (0, 1))
    return work(data, tuple(ARMS), range(arguments.seeds), arguments.runs, settings)


if __name__ == "__main__":
    main()
