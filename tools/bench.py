"""Measure `xent.cross_entropy` against PyTorch, scikit-learn, SciPy and Keras: one process, one thread.

    python tools/bench.py            the two sizes of the book
    python tools/bench.py --small    a size that takes seconds, to try the script

Each function gets float32 logits (scikit-learn: probabilities) and the labels, and returns the mean loss.
They take turns, so that a busy moment of the machine meets all of them; the table shows the fastest turn of
each. The extra memory is what NumPy allocated at the highest point, beyond the logits.
"""

from __future__ import annotations

import os

from execution import ONE_THREAD, say

# Before the libraries read them.
os.environ.update(ONE_THREAD, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="", KERAS_BACKEND="tensorflow")

import argparse
import time
import tracemalloc
from collections.abc import Callable

import keras
import numpy as np
import scipy.special
import sklearn.metrics
import torch

import xent

SIZES = [(100_000, 10), (4_096, 50_000)]
SMALL = [(2_000, 10)]


def peers(logits: np.ndarray, labels: np.ndarray) -> dict[str, Callable[[], float]]:
    """Name the ways to compute the mean loss; what each needs is converted here, outside the clock."""
    probabilities = scipy.special.softmax(logits, axis=1)
    classes = np.arange(logits.shape[1])
    rows = np.arange(len(labels))
    tensor, indices = torch.from_numpy(logits), torch.from_numpy(labels)
    keras_logits, keras_labels = keras.ops.convert_to_tensor(logits), keras.ops.convert_to_tensor(labels)
    keras_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return {
        "xent": lambda: float(xent.cross_entropy(logits, labels)),
        "torch": lambda: float(torch.nn.functional.cross_entropy(tensor, indices)),
        "scikit-learn": lambda: float(sklearn.metrics.log_loss(labels, probabilities, labels=classes)),
        "scipy": lambda: float(-scipy.special.log_softmax(logits, axis=1)[rows, labels].mean()),
        "keras": lambda: float(keras_loss(keras_labels, keras_logits)),
    }


def measure(ways: dict[str, Callable[[], float]], budget: float) -> dict[str, float]:
    """Let all take turns until the budget in seconds is spent, three times at least; return the fastest."""
    best = dict.fromkeys(ways, float("inf"))
    end, turn = time.perf_counter() + budget, 0
    while turn < 3 or time.perf_counter() < end:
        for name, way in ways.items():
            begin = time.perf_counter()
            way()
            best[name] = min(best[name], time.perf_counter() - begin)
        turn += 1
    return best


def extra_memory(way: Callable[[], float]) -> int:
    """Return the most bytes that NumPy held at once while it ran."""
    tracemalloc.start()
    try:
        way()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="one small size, to try the script")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds to measure each size")
    options = parser.parse_args()
    torch.set_num_threads(1)
    say(f"numpy {np.__version__}, torch {torch.__version__}, keras {keras.__version__}")
    for shape in SMALL if options.small else SIZES:
        rng = np.random.default_rng(0)
        # No wider: scikit-learn would clip the smallest probabilities and compute another loss.
        logits = rng.normal(size=shape).astype(np.float32)
        labels = rng.integers(shape[1], size=shape[0])
        ways = peers(logits, labels)
        losses = {name: way() for name, way in ways.items()}
        far = {name: loss for name, loss in losses.items() if abs(loss / losses["xent"] - 1) > 1e-4}
        if far:
            raise SystemExit(f"not the same loss: {losses}")
        seconds = measure(ways, options.budget)
        share = extra_memory(ways["xent"]) / logits.nbytes
        say(f"\n{shape[0]:,} x {shape[1]:,} float32, {logits.nbytes / 1e6:,.0f} MB")
        say(f"{'':14}{'ms':>10}{'time of xent / its time':>26}")
        for name, value in seconds.items():
            say(f"{name:14}{1e3 * value:10.2f}{seconds['xent'] / value:26.2f}")
        say(f"extra memory of xent: {100 * share:.1f} % of the logits")


if __name__ == "__main__":
    main()
