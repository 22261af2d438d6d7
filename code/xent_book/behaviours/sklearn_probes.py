"""What scikit-learn does: sklearn.metrics.log_loss."""

from __future__ import annotations

from importlib import import_module

import numpy as np

from ._registry import Lazy, Seen, attempt, drawn, warned

metrics = Lazy(lambda: import_module("sklearn.metrics"))


def _many() -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of a thousand classes in float32, in two thousand rows, and labels in turn."""
    z = drawn(2000, 1000)[0].astype(np.float32)
    return np.exp(z) / np.exp(z).sum(1, keepdims=True), np.arange(2000) % 1000


def sklearn_argument_order() -> Seen:
    labels, hard, probs = [0, 1, 1, 0], [0, 1, 1, 1], [0.2, 0.8, 0.7, 0.6]
    weights = [1, 1, 1, 3]
    return {
        "hard, swapped": attempt(lambda: metrics.log_loss(hard, labels, sample_weight=weights)),
        "probabilities": metrics.log_loss(labels, probs),
        "probabilities, swapped": attempt(lambda: metrics.log_loss(probs, labels)),
    }


def sklearn_logits() -> Seen:
    return {"loss": attempt(lambda: metrics.log_loss([0, 1], [[2.0, -1.0], [-1.0, 3.0]]))}


def sklearn_row_sums() -> Seen:
    p = np.array([[0.2, 0.2], [0.3, 0.3]])
    return {
        "loss": metrics.log_loss([0, 1], p),
        "normalised": metrics.log_loss([0, 1], p / p.sum(1, keepdims=True)),
        "warnings": warned(lambda: metrics.log_loss([0, 1], p))[1],
    }


def sklearn_spurious_warning() -> Seen:
    p, y = _many()
    return {
        "float32": warned(lambda: metrics.log_loss(y, p))[1],
        "the same in float64": warned(lambda: metrics.log_loss(y, p.astype(np.float64)))[1],
    }


def sklearn_missing_class() -> Seen:
    p = [[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]]
    return {
        "two classes of three": attempt(lambda: metrics.log_loss([0, 1], p)),
        "one class": attempt(lambda: metrics.log_loss([1, 1], [[0.3, 0.7], [0.2, 0.8]])),
        "labels=[0, 1, 2]": metrics.log_loss([0, 1], p, labels=[0, 1, 2]),
        "one column, labels -1 and 1": metrics.log_loss([-1, 1], [0.25, 0.75]),
    }


def sklearn_lexicographic() -> Seen:
    perfect = np.eye(3)
    two = np.eye(2)

    def named() -> float:
        return float(metrics.log_loss(["spam", "ham"], two, labels=["spam", "ham"]))

    return {
        "perfect, labels 2, 9, 10 as text": metrics.log_loss(["2", "9", "10"], perfect),
        "the same as numbers": metrics.log_loss([2, 9, 10], perfect),
        "labels=['spam', 'ham']": named(),
        "warnings": warned(named)[1],
    }


def sklearn_soft_multilabel() -> Seen:
    p = [[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]]
    return {
        "soft targets": attempt(lambda: metrics.log_loss([[0.9, 0.1, 0.0], [0.0, 1.0, 0.0]], p)),
        "indicator rows [1,0,0], [0,0,0]": attempt(lambda: metrics.log_loss([[1, 0, 0], [0, 0, 0]], p)),
        "indicator rows [1,0,0], [0,1,0]": attempt(lambda: metrics.log_loss([[1, 0, 0], [0, 1, 0]], p)),
    }


def sklearn_weights() -> Seen:
    p = [[0.6, 0.4], [0.3, 0.7]]
    return {
        "weights 1, 3": metrics.log_loss([0, 1], p, sample_weight=[1, 3]),
        "weighted sum": metrics.log_loss([0, 1], p, sample_weight=[1, 3], normalize=False),
        "weights 0, 0": attempt(lambda: metrics.log_loss([0, 1], p, sample_weight=[0, 0])),
    }


def sklearn_epsilon() -> Seen:
    seen: Seen = {}
    for dtype in (np.float64, np.float32, np.float16):
        wrong = np.array([[0.0, 1.0], [0.0, 1.0]], dtype=dtype)
        right = np.array([[1.0, 0.0], [0.0, 1.0]], dtype=dtype)
        seen[f"impossible, {dtype.__name__}"] = metrics.log_loss([0, 1], wrong)
        seen[f"perfect, {dtype.__name__}"] = metrics.log_loss([0, 1], right)
    seen["eps=1e-15"] = attempt(lambda: metrics.log_loss([0, 1], [[0.5, 0.5]] * 2, eps=1e-15))
    seen["y_pred="] = warned(lambda: metrics.log_loss([0, 1], y_pred=[[0.5, 0.5]] * 2))[1]
    return seen


def sklearn_low_precision() -> Seen:
    p, y = _many()
    y[1000:] = drawn(2000, 1000)[1][:1000]
    exact, single = (float(metrics.log_loss(y, q)) for q in (p.astype(np.float64), p))
    return {
        "float64": exact,
        "float32 differs in the sixth digit or later": 0 < abs(single / exact - 1) < 1e-5,
        "float16": metrics.log_loss(y, p.astype(np.float16)),
    }
