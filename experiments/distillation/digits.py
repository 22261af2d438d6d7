"""A teacher and its students on scikit-learn's digits: what each target is worth on 100 examples.

    python experiments/distillation/digits.py     # makes digits.json; takes minutes; resumes where it stopped

A teacher is trained on 1,000 labelled images, a smaller student on 100 of these (or on all of them, where
the name says so). Both are tested on the 797 images that neither has seen. All seeds of a condition are
trained together, as one batched computation in float64; a seed fixes the split and both initialisations,
so that the conditions can be compared seed by seed.
"""

from __future__ import annotations

import datetime
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from sklearn.datasets import load_digits
from torch import Tensor

import xent.torch as xt

RESULT = Path(__file__).with_suffix(".json")
SETTINGS: dict[str, Any] = {
    "seeds": list(range(10)),
    "labelled": 100,
    "teacher_images": 1000,
    "teacher_hidden": 128,
    "student_hidden": 16,
    "steps": 1000,
    "learning_rate": 0.01,
    "weight_decay": 1e-4,
    "smoothing": 0.1,
    "alpha": 0.5,
    "bins": 15,
}
TEMPERATURES = (1, 2, 4, 8)
# name: images, weight of the soft part, temperature, scale
CONDITIONS: dict[str, tuple[int, float, float, str]] = {
    "hard": (100, 0.0, 1, "none"),
    "smoothing": (100, 0.0, 1, "none"),
    **{f"soft T={t}": (100, 1.0, t, "t_squared") for t in TEMPERATURES},
    **{f"mixed T={t}": (100, 0.5, t, "t_squared") for t in TEMPERATURES},
    **{f"mixed T={t}, no T^2": (100, 0.5, t, "none") for t in TEMPERATURES[1:]},
    "hard, 1000 images": (1000, 0.0, 1, "none"),
    "soft T=4, 1000 images": (1000, 1.0, 4, "t_squared"),
}
Data = dict[str, Tensor]


def split(seeds: list[int]) -> Data:
    """Return the images and labels of each seed, stacked: the first 1,000 to train on, the rest to test."""
    images, labels = load_digits(return_X_y=True)
    orders = np.stack([np.random.default_rng(seed).permutation(len(labels)) for seed in seeds])
    return {"x": torch.from_numpy(images[orders] / 16.0), "y": torch.from_numpy(labels[orders])}


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


def train(parameters: list[Tensor], x: Tensor, loss: Any) -> list[Tensor]:
    """Full-batch Adam. The seeds share no parameter, so a sum over them trains each on its own mean loss."""
    optimiser = torch.optim.Adam(
        parameters, lr=SETTINGS["learning_rate"], weight_decay=SETTINGS["weight_decay"]
    )
    for _ in range(SETTINGS["steps"]):
        optimiser.zero_grad()
        loss(logits(parameters, x)).backward()
        optimiser.step()
    return [p.detach() for p in parameters]


def train_teacher(data: Data) -> list[Tensor]:
    """Train the teachers, one a seed, on the labels of their 1,000 images."""
    n, seeds = SETTINGS["teacher_images"], data["seeds"].tolist()
    y = data["y"][:, :n]
    return train(
        initial(seeds, SETTINGS["teacher_hidden"], 0),
        data["x"][:, :n],
        lambda z: xt.cross_entropy(z, y, reduction="none").mean(1).sum(),
    )


def train_student(name: str, data: Data, teacher: list[Tensor]) -> list[Tensor]:
    """Train the students of one condition."""
    n, alpha, temperature, scale = CONDITIONS[name]
    x, y = data["x"][:, :n], data["y"][:, :n]
    guide = logits(teacher, x)
    smoothing = SETTINGS["smoothing"] if name == "smoothing" else 0.0

    def loss(z: Tensor) -> Tensor:
        if alpha == 0:
            each = xt.cross_entropy(z, y, label_smoothing=smoothing, reduction="none")
        else:
            each = xt.mixed_loss(
                z, guide, y, alpha=alpha, temperature=temperature, scale=scale, reduction="none"
            )
        return each.mean(1).sum()

    return train(initial(data["seeds"].tolist(), SETTINGS["student_hidden"], 1), x, loss)


def evaluate(parameters: list[Tensor], data: Data) -> dict[str, Any]:
    """Test NLL, error and calibration of each seed, read out at T = 1."""
    n, bins = SETTINGS["teacher_images"], SETTINGS["bins"]
    y = data["y"][:, n:]
    with torch.no_grad():
        z = logits(parameters, data["x"][:, n:])
    confidence, answer = xt.softmax(z).max(-1)
    right = (answer == y).double()
    where = (confidence * bins).long().clamp(max=bins - 1)
    zeros = torch.zeros(len(y), bins, dtype=torch.float64)
    count = zeros.scatter_add(1, where, torch.ones_like(right))
    hits = zeros.scatter_add(1, where, right)
    mass = zeros.scatter_add(1, where, confidence)
    return {
        "nll": xt.cross_entropy(z, y, reduction="none").mean(1).tolist(),
        "error": (1 - right.mean(1)).tolist(),
        "ece": ((hits - mass).abs().sum(1) / y.shape[1]).tolist(),
        "confidence": confidence.mean(1).tolist(),
        "bin_count": count.sum(0).tolist(),
        "bin_right": hits.sum(0).tolist(),
        "bin_confidence": mass.sum(0).tolist(),
    }


def run(names: list[str], seeds: list[int]) -> dict[str, dict[str, Any]]:
    """Train a teacher for each seed and the students of the named conditions; return what they score."""
    data = {**split(seeds), "seeds": torch.tensor(seeds)}
    teacher = train_teacher(data)
    scores = {name: evaluate(train_student(name, data, teacher), data) for name in names}
    return {"teacher": evaluate(teacher, data), **scores}


def rounded(value: Any) -> Any:
    """Round what is written: the last digits belong to one processor."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else round(value, 5)


def main() -> None:
    """Run what the result does not hold yet."""
    torch.set_num_threads(1)
    result: dict[str, Any] = {}
    if RESULT.exists():
        result = json.loads(RESULT.read_text())
        if result["settings"] != SETTINGS:
            result = {}
    scores = result.get("scores", {})
    seeds = SETTINGS["seeds"]
    data = {**split(seeds), "seeds": torch.tensor(seeds)}
    teacher = train_teacher(data)
    scores["teacher"] = rounded(evaluate(teacher, data))
    for name in CONDITIONS:
        if name not in scores:
            scores[name] = rounded(evaluate(train_student(name, data, teacher), data))
            result = {
                "settings": SETTINGS,
                "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
                "versions": {
                    "python": platform.python_version(),
                    "numpy": np.__version__,
                    "torch": torch.__version__.split("+")[0],
                    "scikit-learn": sklearn.__version__,
                },
                "scores": scores,
            }
            RESULT.write_text(json.dumps(result, indent=1) + "\n")
            nll, error = (np.mean(scores[name][key]) for key in ("nll", "error"))
            print(f"{name:24} NLL {nll:.3f}  error {error:.3f}", flush=True)


if __name__ == "__main__":
    main()
