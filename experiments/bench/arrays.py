"""Measure `xent.cross_entropy` against PyTorch, SciPy, scikit-learn and Keras, and write the book's numbers.

    make bench      every case; writes result.json beside this file (some five minutes)

All run in one process and take turns, so that a busy moment of the machine meets all of them; each counts by
its fastest turn. A turn is one call, or as many as take two milliseconds: a single short call would measure
how cold the caches are that the others left behind. Each function gets the logits (scikit-learn:
probabilities) and the labels as its own kind of array, made outside the clock, and returns the mean loss as a
number; they must agree.

The extra memory is the highest point reached during a call, beyond what was there before. What NumPy
allocates is counted exactly, by tracemalloc. PyTorch and Keras allocate past Python: there it is the resident
set's high-water mark, in a process of its own, with an allocator that hands every page back.
"""

from __future__ import annotations

import os

# Before the libraries read them.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
os.environ.update(TF_NUM_INTRAOP_THREADS="1", TF_NUM_INTEROP_THREADS="1")
os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="", KERAS_BACKEND="tensorflow")

import platform
import re
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import scipy
import scipy.special
import sklearn
import sklearn.metrics
import tensorflow as tf
import torch

import xent
from experiments.shared import agree, growth, in_fresh_process, made, read, save, turns

RESULT = Path(__file__).with_name("result.json")

Way = Callable[[], float]


@dataclass(frozen=True)
class Case:
    """What is measured: so many float32 logits of this kind, with the classes on the last axis."""

    rows: int
    classes: int
    logits: str = "random"


KINDS = ("random", "trained")
SIZES = [(1_000, 2), (1_000, 10), (100_000, 10), (50_000, 32), (10_000, 1_000), (4_096, 50_000)]
CASES = [Case(1, 2), *(Case(*size, kind) for size in SIZES for kind in KINDS)]
BUDGET, LEAST = 10.0, 5  # seconds to measure each case, and turns
# Which memory is counted by tracemalloc; the rest needs a process of its own.
NUMPY_WAYS = ("xent", "scipy", "scikit-learn")
# The high-water mark of a process says little about less than a few megabytes.
LEAST_RESIDENT = 4_000_000


def data(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Draw logits and labels. "trained" raises most targets above the other classes, by up to 30 nats.

    The random logits are no wider than this because scikit-learn would clip the smallest probabilities and
    compute another loss.
    """
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((case.rows, case.classes), dtype=np.float32)
    labels = rng.integers(case.classes, size=case.rows)
    if case.logits == "trained":
        rows = np.arange(case.rows)
        logits[rows, labels] = -np.inf
        logits[rows, labels] = logits.max(axis=1) + rng.uniform(-3, 30, case.rows)
    return logits, labels


def ways(case: Case) -> dict[str, Way]:
    """Name the ways to compute the mean loss."""
    logits, labels = data(case)
    rows, classes = np.arange(case.rows), np.arange(case.classes)
    tensor, indices = torch.from_numpy(logits), torch.from_numpy(labels)
    probabilities = scipy.special.softmax(logits, axis=-1)
    tf_logits, tf_labels = tf.convert_to_tensor(logits), tf.convert_to_tensor(labels)
    keras_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return {
        "xent": lambda: float(xent.cross_entropy(logits, labels)),
        "torch": lambda: float(torch.nn.functional.cross_entropy(tensor, indices)),
        "scipy": lambda: float(-scipy.special.log_softmax(logits, axis=-1)[rows, labels].mean()),
        "scikit-learn": lambda: float(sklearn.metrics.log_loss(labels, probabilities, labels=classes)),
        "keras": lambda: float(keras_loss(tf_labels, tf_logits)),
    }


def traced_memory(way: Way) -> int:
    """Return the most bytes that NumPy and Python held at once while it ran."""
    tracemalloc.start()
    way()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


def resident_memory(case: dict[str, Any], names: list[str]) -> dict[str, int]:
    """Return by how much each way makes this process grow."""
    grown = {}
    # What a first call sets up is not its memory. A small first call, because TensorFlow keeps what it freed.
    first, found = ways(Case(**{**case, "rows": 8})), ways(Case(**case))
    for name in names:
        first[name]()
        grown[name] = max(0, growth(found[name])[0])
    return grown


def machine() -> dict[str, Any]:
    info, cache = Path("/proc/cpuinfo"), Path("/sys/devices/system/cpu/cpu0/cache/index2/size")
    names = re.findall(r"(?m)^model name\s*: (.*)", info.read_text() if info.exists() else "")
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "level 2 cache": cache.read_text().strip() if cache.exists() else "",
        "system": platform.system(),
        "python": platform.python_version(),
    }


def run(case: Case) -> dict[str, Any]:
    """Measure one case: fastest and median seconds, and bytes."""
    found = ways(case)
    agree({name: way() for name, way in found.items()}, 1e-4)
    taken = turns(found, BUDGET, LEAST)
    memory = {name: traced_memory(found[name]) for name in NUMPY_WAYS}
    del found
    nbytes = case.rows * case.classes * np.dtype(np.float32).itemsize
    if nbytes >= LEAST_RESIDENT:
        memory |= in_fresh_process(resident_memory, asdict(case), ["torch", "keras"]) or {}
    return {
        **asdict(case),
        "bytes": nbytes,
        "turns": len(taken["xent"]),
        "seconds": {name: {"fastest": min(s), "median": float(np.median(s))} for name, s in taken.items()},
        "memory": memory,
    }


def main() -> None:
    result: dict[str, Any] = {
        **made(xent, np, scipy, sklearn, torch, keras, tf),
        "machine": machine(),
        "settings": {"threads": 1, "budget": BUDGET, "turns at least": LEAST, "seed": 0},
        "cases": [],
    }
    for case in CASES:
        result["cases"].append(run(case))
        print(case, flush=True)
    if "tensors" in (before := read(RESULT)):
        result["tensors"] = before["tensors"]
    save(result, RESULT)


if __name__ == "__main__":
    main()
