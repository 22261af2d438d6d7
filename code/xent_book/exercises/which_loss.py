"""Exercises of chapter 08: the floor of smoothing and the distortion of a mean of means."""

from __future__ import annotations

import numpy as np

from xent.information import entropy
from xent_book.exercises._check import Exercise

EXERCISES = (
    Exercise(
        "smoothing-floor",
        lambda epsilon, k: float(entropy((1 - epsilon) * np.eye(k)[0] + epsilon / k)),
        lambda: [(0.1, 2), (0.1, 10), (0.3, 1000)],
        "the label's own class gets epsilon / K too",
        lambda epsilon, k: -(1 - epsilon) * np.log(1 - epsilon) - epsilon * np.log(epsilon / (k - 1)),
        "the label's own class gets epsilon / K back: its share is not 1 - epsilon",
        lambda epsilon, k: -(1 - epsilon) * np.log(1 - epsilon) - epsilon * np.log(epsilon / k),
        "the smoothed label has an entropy of its own, beside epsilon of a uniform guess",
        lambda epsilon, k: epsilon * np.log(k),
    ),
    Exercise(
        "mean-of-means-repair",
        lambda counts: counts / counts.sum(),
        lambda: [(np.array([1, 3]),), (np.array([10, 10, 100]),), (np.array([512.0, 37.0, 256.0, 8.0]),)],
        "this leaves the mean of means as it is",
        lambda c: np.full(len(c), 1 / len(c)),
        "this is how much too much each target counts already: undo it",
        lambda c: c.mean() / c / len(c),
        "this is right where the loop divides by the number of micro-batches: here it adds",
        lambda c: c / c.mean(),
        "one over the own count is there already",
        lambda c: 1 / c,
        rtol=1e-6,  # torch divides whole numbers in float32
    ),
)
