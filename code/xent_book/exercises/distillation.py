"""Exercises of chapter 13, distillation."""

from __future__ import annotations

import numpy as np

from xent.numerics import softmax
from xent_book.exercises._check import Exercise
from xent_book.exercises.scoring import _normalised

THREE = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.3, 0.3, 0.4]])

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
        "q is divided by T: its logarithm has to be",
        lambda q, T: softmax(q / T),
        rtol=1e-10,
    ),
    Exercise(
        "kd-pool",
        lambda t, T: softmax(T * np.log(softmax(np.log(t) / T).mean(0))),
        lambda: [(np.array([[0.9, 0.1], [0.5, 0.5]]), 2.0), (THREE, 4.0), (THREE[:2], 0.7)],
        "this is the mean at T = 1: soften first",
        lambda t, T: t.mean(0),
        "this is the student at T: read it out at 1",
        lambda t, T: softmax(np.log(t) / T).mean(0),
        "this averages the logits: average the softened probabilities",
        lambda t, T: softmax(np.log(t).mean(0)),
        "each teacher has to sum to one at T before the mean",
        lambda t, T: _normalised((t ** (1 / T)).mean(0) ** T),
        "it does not sum to one yet: normalise after the power T",
        lambda t, T: softmax(np.log(t) / T).mean(0) ** T,
    ),
)
