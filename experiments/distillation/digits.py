"""A teacher and its students on scikit-learn's digits: what each target is worth on 100 examples.

    python -m experiments.distillation.digits    makes digits.json; takes minutes; resumes

Each seed splits the 1,797 images four ways: 700 that the teacher learns with their labels, 500 for the
student (100 of them, or all, where the name says so), 200 to choose the weight decay on, 397 to test. No
image of the student was the teacher's. Every condition chooses its weight decay from the
same grid, by its own mean loss on the validation images of five further seeds. All seeds of a condition are
trained together, as one batched computation in float64; a seed fixes the split and both initialisations, so
that conditions can be compared seed by seed. With the same settings every condition is then trained four
times as long, to see whether the students had arrived.
"""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from sklearn.datasets import load_digits
from torch import Tensor

import xent.torch as xt
from experiments.shared import made, read, rounded

RESULT = Path(__file__).with_suffix(".json")
SETTINGS: dict[str, Any] = {
    "seeds": list(range(20)),
    "tuning_seeds": list(range(100, 105)),
    "weight_decays": [1e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2],
    "teacher_images": 700,
    "student_images": 500,
    "labelled": 100,
    "validation_images": 200,
    "teacher_hidden": 64,
    "student_hidden": 16,
    "teacher_weight_decay": 1e-4,
    "teacher_steps": 500,
    "steps": 1000,
    "longer_steps": 4000,
    "learning_rate": 0.01,
    "smoothing": 0.1,
}
TEMPERATURES = (1, 2, 4, 8)
FORM = ".5f"  # of the numbers stored


@dataclass(frozen=True)
class Condition:
    """What a student learns from: its images, its share of the teacher, the temperature and its factor."""

    images: str = "few"  # few: 100 of its own; many: all 500; all: the 100 and the teacher's 700
    alpha: float = 0.0
    temperature: float = 1.0
    scale: str = "t_squared"
    smoothing: float = 0.0
    teacher: str = "plain"  # or "smoothed": the teacher itself learnt smoothed labels


CONDITIONS: dict[str, Condition] = {
    "hard": Condition(),
    "smoothing": Condition(smoothing=SETTINGS["smoothing"]),
    **{f"soft T={t}": Condition(alpha=1.0, temperature=t) for t in (*TEMPERATURES, math.inf)},
    **{f"mixed T={t}": Condition(alpha=0.5, temperature=t) for t in TEMPERATURES},
    **{f"mixed T={t}, no T^2": Condition(alpha=0.5, temperature=t, scale="none") for t in TEMPERATURES[1:]},
    "hard, 500 images": Condition("many"),
    "soft T=4, 500 images": Condition("many", 1.0, 4),
    "hard, teacher's images too": Condition("all"),
    "smoothed teacher, soft T=1": Condition(alpha=1.0, temperature=1, teacher="smoothed"),
    "smoothed teacher, soft T=4": Condition(alpha=1.0, temperature=4, teacher="smoothed"),
    **{f"smoothing {e}": Condition(smoothing=e) for e in (0.003, 0.01, 0.03)},
}
Data = dict[str, Tensor]
Teachers = dict[str, list[Tensor]]


def split(seeds: list[int]) -> dict[str, Data]:
    """Return images x and labels y of each seed, stacked: teacher, few, many, all, validation, test."""
    images, labels = load_digits(return_X_y=True)
    orders = np.stack([np.random.default_rng(seed).permutation(len(labels)) for seed in seeds])
    ends = np.cumsum([SETTINGS[f"{k}_images"] for k in ("teacher", "student", "validation")])
    first, few = ends[0], ends[0] + SETTINGS["labelled"]
    parts = {"teacher": (0, first), "few": (first, few), "many": (first, ends[1]), "all": (0, few)}
    parts |= {"validation": (ends[1], ends[2]), "test": (ends[2], len(labels))}
    return {
        name: {"x": torch.from_numpy(images[of] / 16.0), "y": torch.from_numpy(labels[of])}
        for name, of in ((name, orders[:, start:end]) for name, (start, end) in parts.items())
    }


def initial(seeds: list[int], hidden: int, role: int) -> list[Tensor]:
    """Return the weights of a network of one hidden layer, one for each seed."""
    stacks: list[list[np.ndarray]] = [[], [], [], []]
    for seed in seeds:
        rng = np.random.default_rng((seed, role))
        for stack, shape in zip(stacks, ((64, hidden), (1, hidden), (hidden, 10), (1, 10)), strict=True):
            scale = np.sqrt(2 / shape[0]) if shape[0] > 1 else 0.0
            stack.append(scale * rng.normal(size=shape))
    return [torch.from_numpy(np.stack(stack)).requires_grad_() for stack in stacks]


def logits(parameters: list[Tensor], x: Tensor) -> Tensor:
    """Return (seeds, images, classes)."""
    w1, b1, w2, b2 = parameters
    return torch.relu(x @ w1 + b1) @ w2 + b2


def train(parameters: list[Tensor], x: Tensor, decay: Tensor, steps: int, loss: Any) -> list[Tensor]:
    """Full-batch Adam. The seeds share no parameter, so a sum over them trains each on its own mean loss.

    `decay` has a value for each; half of it times the sum of squares is added to the loss.
    """
    optimiser = torch.optim.Adam(parameters, lr=SETTINGS["learning_rate"])
    for _ in range(steps):
        optimiser.zero_grad()
        loss(logits(parameters, x)).mean(1).sum().backward()
        with torch.no_grad():
            for p in parameters:
                assert p.grad is not None
                p.grad += decay[:, None, None] * p
        optimiser.step()
    return [p.detach() for p in parameters]


def train_teachers(seeds: list[int], data: dict[str, Data]) -> Teachers:
    """Train the teachers, one a seed, on the labels of their images: plain, and with smoothed labels."""
    x, y = data["teacher"]["x"], data["teacher"]["y"]
    decay = torch.full((len(seeds),), SETTINGS["teacher_weight_decay"], dtype=torch.float64)
    found = {}
    for name, smoothing in (("plain", 0.0), ("smoothed", SETTINGS["smoothing"])):
        start, loss = initial(seeds, SETTINGS["teacher_hidden"], 0), partial(cross_entropy, y, smoothing)
        found[name] = train(start, x, decay, SETTINGS["teacher_steps"], loss)
    return found


def cross_entropy(y: Tensor, smoothing: float, z: Tensor) -> Tensor:
    """Loss of each image."""
    return xt.cross_entropy(z, y, label_smoothing=smoothing, reduction="none")


def train_students(
    name: str, seeds: list[int], data: dict[str, Data], teachers: Teachers, decays: list[float], longer: bool = False
) -> list[Tensor]:  # fmt: skip
    """Train the students of one condition, a seed and a weight decay each."""
    c = CONDITIONS[name]
    x, y = data[c.images]["x"], data[c.images]["y"]
    guide = logits(teachers[c.teacher], x).detach()

    def loss(z: Tensor) -> Tensor:
        if c.alpha == 0:
            return cross_entropy(y, c.smoothing, z)
        if c.temperature == math.inf:  # the limit of the loss: half the variance over the classes of z - v
            d = z - guide
            return 0.5 * (d - d.mean(-1, keepdim=True)).square().mean(-1)
        soft = xt.distillation_loss(z, guide, temperature=c.temperature, scale=c.scale, reduction="none")
        return soft if c.alpha == 1 else (1 - c.alpha) * cross_entropy(y, 0.0, z) + c.alpha * soft

    weights = torch.tensor(decays, dtype=torch.float64)
    steps = SETTINGS["longer_steps" if longer else "steps"]
    return train(initial(seeds, SETTINGS["student_hidden"], 1), x, weights, steps, loss)


def evaluate(parameters: list[Tensor], part: Data) -> dict[str, list[float]]:
    """NLL and error of each seed, read out at T = 1."""
    y = part["y"]
    with torch.no_grad():
        z = logits(parameters, part["x"])
    right = (z.argmax(-1) == y).double()
    return {"nll": cross_entropy(y, 0.0, z).mean(1).tolist(), "error": (1 - right.mean(1)).tolist()}


def tune(name: str) -> dict[str, Any]:
    """Return the mean validation loss for each weight decay, over the tuning seeds, and the best."""
    decays, seeds = SETTINGS["weight_decays"], SETTINGS["tuning_seeds"]
    stacked = [seed for _ in decays for seed in seeds]
    data, teachers = tuning_set()
    students = train_students(name, stacked, data, teachers, [d for d in decays for _ in seeds])
    nll = np.array(evaluate(students, data["validation"])["nll"]).reshape(len(decays), len(seeds)).mean(1)
    return {"validation_nll": nll, "weight_decay": decays[int(nll.argmin())]}


@cache
def tuning_set() -> tuple[dict[str, Data], Teachers]:
    """Return data and teachers of the tuning seeds, repeated for each weight decay."""
    seeds, times = SETTINGS["tuning_seeds"], len(SETTINGS["weight_decays"])
    data = split(seeds)
    teachers = train_teachers(seeds, data)
    return (
        {k: {n: t.repeat(times, *[1] * (t.ndim - 1)) for n, t in part.items()} for k, part in data.items()},
        {k: [p.repeat(times, 1, 1) for p in ps] for k, ps in teachers.items()},
    )


def run(names: list[str], seeds: list[int], decays: dict[str, float]) -> dict[str, dict[str, Any]]:
    """Train the teachers of some seeds and the students of the named conditions; return what they score.

    Chapter 13 repeats two conditions by it.
    """
    data = split(seeds)
    teachers = train_teachers(seeds, data)
    trained = {f"{kind} teacher": teacher for kind, teacher in teachers.items()}
    for name in names:
        trained[name] = train_students(name, seeds, data, teachers, [decays[name]] * len(seeds))
    return {name: evaluate(parameters, data["test"]) for name, parameters in trained.items()}


def main() -> None:
    """Run what the result does not hold yet."""
    torch.set_num_threads(1)
    result = read(RESULT)
    if result.get("settings") != SETTINGS:
        result = {"settings": SETTINGS, "tuned": {}, "scores": {}, "longer": {}, "cpu_seconds": 0.0}
    tuned, scores, longer = result["tuned"], result["scores"], result["longer"]
    seeds = SETTINGS["seeds"]
    data = split(seeds)
    teachers = train_teachers(seeds, data)
    for kind, teacher in teachers.items():
        scores[f"{kind} teacher"] = rounded(evaluate(teacher, data["test"]), FORM)
    for name in [name for name in CONDITIONS if name not in scores]:
        started = time.process_time()
        tuned[name] = rounded(tune(name), FORM)
        decays = [tuned[name]["weight_decay"]] * len(seeds)
        for found, long in ((scores, False), (longer, True)):
            students = train_students(name, seeds, data, teachers, decays, long)
            found[name] = rounded(evaluate(students, data["test"]), FORM)
        result["cpu_seconds"] = round(result["cpu_seconds"] + time.process_time() - started, 1)
        result |= made(np, torch, sklearn)
        text = json.dumps(result, separators=(",", ":"))
        RESULT.write_text(re.sub(r'"[^"]+":\{', r"\n\g<0>", text) + "\n")
        print(name, flush=True)


if __name__ == "__main__":
    main()
