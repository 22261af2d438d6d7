"""Exercises of chapter 04, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from xent import softmax
from xent_book.exercises._check import Array, Exercise
from xent_book.exercises.multiclass import _softmax


def _lengths_inputs() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(4)
    inputs = [
        (rng.normal(size=(k, d)), rng.normal(size=k), rng.normal(size=(n, d)), rng.integers(0, k, size=n))
        for n, d, k in [(6, 2, 3), (3, 3, 3), (5, 4, 2), (1, 3, 4)]
    ]
    # Logits near a thousand: a softmax that exponentiates them as they are returns nan.
    x = np.array([[1.0, 0.0], [0.0, 1.0]])
    return [*inputs, (1000.0 * np.eye(2), np.zeros(2), x, np.array([0, 0]))]


def _length(rows: Any) -> Array:
    return np.asarray(np.linalg.norm(rows, axis=1))


def _slopes(w: Array, b: Array, x: Array, y: Array, p: Any = softmax) -> Array:
    return np.asarray(p(x @ w.T + b) - np.eye(len(w))[y])


def _lengths(w: Array, b: Array, x: Array, y: Array, p: Any = softmax) -> Array:
    return np.asarray(_length(_slopes(w, b, x, y, p)) * np.sqrt((x**2).sum(axis=1) + 1))


def _leak_inputs() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(8)
    layers = [
        (softmax(rng.normal(size=k)) - np.eye(k)[rng.integers(k)], rng.normal(size=d))
        for k, d in [(3, 2), (5, 4), (2, 1)]
    ]
    # A confident mistake: every probability but one has become 0. And an answer that is nearly right.
    layers.append((softmax([0.0, 900.0, 0.0, 0.0]) - np.eye(4)[2], np.array([2.0, -1.0])))
    layers.append((softmax([12.0, 0.0, 0.0, 1.0]) - np.eye(4)[0], np.array([0.5, 0.0, 3.0])))
    return [(np.outer(g, x), g) for g, x in layers]


def _leak(dw: Array, db: Array) -> tuple[Array, int]:
    y = int(db.argmin())
    return dw[y] / db[y], y


EXERCISES = (
    Exercise(
        "grad-lengths",
        _lengths,
        _lengths_inputs,
        "the bias is missing in the gradient: it adds the squared length of p - t",
        lambda w, b, x, y: _length(_slopes(w, b, x, y)) * _length(x),
        "this adds the length in W and the length in b: add their squares, and take the root",
        lambda w, b, x, y: _length(_slopes(w, b, x, y)) * (_length(x) + 1),
        "this is the length in the logits alone: each of their slopes meets each feature",
        lambda w, b, x, y: _length(_slopes(w, b, x, y)),
        "the -1 of the label is missing: the slope in the logits is p - t",
        lambda w, b, x, y: _length(softmax(x @ w.T + b)) * np.sqrt((x**2).sum(axis=1) + 1),
        "your softmax overflows: exponentiate z - max(z), or call xent.softmax",
        lambda w, b, x, y: _lengths(w, b, x, y, _softmax),
        atol=1e-12,
    ),
    Exercise(
        "grad-leak",
        _leak,
        _leak_inputs,
        "the largest entry of p - t is that of a wrong class: the label's is the negative one",
        lambda dw, db: (_leak(dw, db)[0], db.argmax()),
        lambda dw, db: (_leak(dw, db)[0], abs(db).argmax()),
        "row y of dW is the features times the slope of their logit: divide by it, which db holds",
        lambda dw, db: (dw[db.argmin()], db.argmin()),
        "0 / 0 is nan where a probability has become 0: use the row of the label",
        lambda dw, db: (dw[0] / db[0], db.argmin()),
        atol=1e-12,
    ),
)
