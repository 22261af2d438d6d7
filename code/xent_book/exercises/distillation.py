"""Exercises of chapter 13, distillation."""

from __future__ import annotations

import numpy as np

from xent.numerics import softmax
from xent_book.exercises._check import Exercise
from xent_book.exercises.scoring import _normalised

EXERCISES = (
    Exercise(
        "kd-alpha",
        lambda alpha, T: alpha * T**2 / (1 - alpha + alpha * T**2),
        lambda: [(0.5, 4.0), (0.9, 2.0), (0.2, 0.5), (1.0, 3.0), (0.0, 2.0)],
        "turned round: the share with T**2 that does what alpha does without",
        lambda alpha, T: alpha / (alpha + (1 - alpha) * T**2),
        "the two shares do not sum to one yet: divide by their sum",
        lambda alpha, T: alpha * T**2,
        "the loss has T**2, the T of the gradient is what the chain rule leaves",
        lambda alpha, T: alpha * T / (1 - alpha + alpha * T),
        "the labels' part has the weight 1 - alpha, not 1",
        lambda alpha, T: alpha * T**2 / (1 + alpha * T**2),
        "without T**2 the same alpha gives the labels a different weight",
        lambda alpha, T: alpha,
        rtol=1e-10,
    ),
    Exercise(
        "kd-readout",
        lambda q, T: _normalised(q ** (1 / T)),
        lambda: [
            (np.array([0.7, 0.2, 0.1]), 2.0),
            (np.array([0.98, 0.02]), 4.0),
            (np.array([0.4, 0.35, 0.25]), 0.5),
        ],
        "the power is turned round: the student has P**T already",
        lambda q, T: _normalised(q**T),
        "it does not sum to one yet",
        lambda q, T: q ** (1 / T),
        "this is the student as it is: its temperature is not undone yet",
        lambda q, T: q,
        "q is divided by T: its logarithm has to be",
        lambda q, T: softmax(q / T),
        rtol=1e-10,
    ),
)
