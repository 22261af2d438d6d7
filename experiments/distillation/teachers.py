"""What the teacher's size and the student's learning rate change of what soft targets are worth on digits.

    python -m experiments.distillation.teachers    makes teachers.json, which begins with the card; minutes

Data, students, seeds and measures are those of digits.py, of which two conditions are trained: labels, and the
teacher's distributions at T = 4, for the same 100 images.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch

from experiments.distillation import digits
from experiments.shared import made, rounded, save

RESULT = Path(__file__).with_suffix(".json")
HIDDEN, RATES, SOFT = (4, 16, 64, 256), (0.003, 0.01, 0.03), "soft T=4"
CARD = {
    "question": "Does the gain of soft targets over labels, for 100 images, depend on the size of the teacher, or on "
    "a learning rate that nobody tuned?",
    "rival": "A larger teacher only errs less: then the students' order is that of their teachers. And the labels' "
    "learning rate may suit them less than the soft targets': so each arm chooses its own.",
    "arms": {
        "teacher": f"one hidden layer of {', '.join(map(str, HIDDEN))} units on the labels of 700 other images, weight "
        "decay and steps as in digits.py",
        "student": "16 hidden units, 1,000 steps, 100 images: their labels, or the teacher's distributions at T = 4; "
        "the same start and the same images in every arm of a seed",
    },
    "tuned": "each arm alike, by the mean loss on 200 validation images over five further seeds: weight decay from "
    f"nine values; for labels and the teacher of {HIDDEN[2]} the learning rate too, from "
    f"{', '.join(map(str, RATES))}; the other teachers at {RATES[1]}, beside labels at that",
    "foretold": "64 and 256 units differ by less than 0.03 nats; a teacher of 16 units gives up less than a third of "
    "the gain, one of 4 more than half of it; the learning rate moves no arm by more than 0.03 nats",
    "seeds": "twenty, compared seed by seed",
}


def arm(name: str, hidden: int, rates: tuple[float, ...]) -> dict[str, Any]:
    """Choose the weight decay of a condition at each learning rate, and train it on all seeds."""
    seeds, data = digits.SETTINGS["seeds"], digits.split(digits.SETTINGS["seeds"])
    # What digits.py reads at each call; all teachers are trained before the students' learning rate is set.
    digits.SETTINGS |= {"teacher_hidden": hidden, "learning_rate": RATES[1]}
    digits.tuning_set.cache_clear()
    digits.tuning_set()
    teachers, found = digits.train_teachers(seeds, data), {}
    for rate in rates:
        digits.SETTINGS["learning_rate"] = rate
        tuned = digits.tune(name)
        decays = [tuned["weight_decay"]] * len(seeds)
        students = digits.train_students(name, seeds, data, teachers, decays)
        found[str(rate)] = {
            "validation_nll": float(tuned["validation_nll"].min()),
            "weight_decay": decays[0],
            "nll": digits.evaluate(students, data["test"])["nll"],
        }
    teacher = digits.evaluate(teachers["plain"], data["test"])
    return {"teacher": {key: float(np.mean(teacher[key])) for key in ("nll", "error")}, "rates": found}


def main() -> None:
    torch.set_num_threads(1)
    began = time.process_time()
    arms = {"labels": arm("hard", HIDDEN[2], RATES)}
    for hidden in HIDDEN:
        arms[f"teacher of {hidden}"] = arm(SOFT, hidden, RATES if hidden == HIDDEN[2] else RATES[1:2])
        print(hidden, arms[f"teacher of {hidden}"]["teacher"], flush=True)
    seconds = round(time.process_time() - began, 1)
    result = {"card": CARD, **made(np, torch, sklearn), "cpu_seconds": seconds, "arms": rounded(arms, ".5f")}
    save(result, RESULT)


if __name__ == "__main__":
    main()
