"""Exercises of chapter 04, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from xent import gradients, softmax
from xent_book.exercises._check import Array, Exercise

Labels = npt.NDArray[np.int64]


# ----------------------------------------------------------------------------------------- grad-lengths


def _lengths_inputs() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(4)
    inputs = [
        (rng.normal(size=(k, d)), rng.normal(size=k), rng.normal(size=(n, d)), rng.integers(0, k, size=n))
        for n, d, k in [(6, 2, 3), (3, 3, 3), (5, 4, 2), (1, 3, 4)]
    ]
    # Logits near a thousand: a softmax that exponentiates them as they are returns nan.
    x = np.array([[1.0, 0.0], [0.0, 1.0]])
    return [*inputs, (1000.0 * np.eye(2), np.zeros(2), x, np.array([0, 0]))]


def _length(rows: Any) -> Any:
    return np.linalg.norm(rows, axis=1)


def _slopes(w: Array, b: Array, x: Array, y: Labels) -> Any:
    return softmax(x @ w.T + b) - np.eye(len(w))[y]


def _lengths(w: Array, b: Array, x: Array, y: Labels) -> Any:
    return _length(_slopes(w, b, x, y)) * np.sqrt((x**2).sum(axis=1) + 1)


def _lengths_with(g: Any, w: Array, b: Array, x: Array, y: Labels) -> Any:
    """The lengths, from a wrong gradient with respect to the logits."""
    return _length(g(x @ w.T + b, np.eye(len(w))[y])) * np.sqrt((x**2).sum(axis=1) + 1)


def _naive_softmax(z: Array) -> Any:
    e = np.exp(z)
    return e / e.sum(axis=1, keepdims=True)


# ----------------------------------------------------------------------------------- grad-poisson, -tied


def _poisson_inputs() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(8)
    return [
        (rng.normal(size=d), rng.normal(size=(n, d)), rng.integers(0, 6, size=n)) for n, d in [(1, 2), (7, 3)]
    ]


def _poisson(w: Array, x: Array, y: Labels) -> Any:
    return x.T @ (np.exp(x @ w) - y) / len(y)


def _tied_inputs() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(9)
    shapes = [(5, 2, 7), (3, 3, 3), (2, 4, 1)]
    texts = [(rng.normal(size=(k, d)), rng.integers(0, k, n), rng.integers(0, k, n)) for k, d, n in shapes]
    # Four times the same token: an assignment to slope[x] keeps one of them.
    return [*texts, (rng.normal(size=(3, 2)), np.array([1, 1, 1, 1]), np.array([0, 2, 1, 0]))]


def _tied_parts(w: Array, x: Labels, y: Labels) -> tuple[Array, Array]:
    """The gradient of the mean in the output layer, and the rows that it hands back."""
    g = np.asarray(gradients.cross_entropy_gradient(w[x] @ w.T, y), dtype=np.float64)
    return g.T @ w[x], g @ w


def _read(w: Array, x: Labels, rows: Array) -> Any:
    """Each row added where its token's vector was read."""
    return np.eye(len(w))[x].T @ rows


def _tied(w: Array, x: Labels, y: Labels) -> Any:
    output, below = _tied_parts(w, x, y)
    return output + _read(w, x, below)


def _last_wins(w: Array, x: Labels, y: Labels) -> Array:
    output, below = _tied_parts(w, x, y)
    output[x] += below
    return output


def _overwritten(w: Array, x: Labels, y: Labels) -> Array:
    output, below = _tied_parts(w, x, y)
    output[x] = below
    return output


# ------------------------------------------------------------------------------------------- grad-vjp


def _vjp_inputs() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(5)
    p = softmax(rng.normal(size=(4, 3)))
    return [
        (np.array([[0.2, 0.3, 0.5]]), np.array([[1.0, -2.0, 0.5]])),
        (p, rng.normal(size=(4, 3))),
        (np.array([[1.0, 0.0]]), np.array([[3.0, -1.0]])),
    ]


def _vjp(p: npt.NDArray[Any], v: npt.NDArray[Any]) -> Any:
    return p * (v - (p * v).sum(axis=-1, keepdims=True))


EXERCISES = (
    Exercise(
        "grad-lengths",
        "The length of each example's gradient in a linear softmax layer",
        _lengths,
        _lengths_inputs,
        atol=1e-12,
        mistakes={
            "the bias is missing in the gradient: it adds the squared length of p - t": lambda w, b, x, y: (
                _length(_slopes(w, b, x, y)) * _length(x)
            ),
            "this adds the length in W and the length in b: add their squares, and "
            "take the root": lambda w, b, x, y: _length(_slopes(w, b, x, y)) * (_length(x) + 1),
            "this is the length of the gradient in the logits alone: each of its entries "
            "meets each feature": (
                lambda w, b, x, y: _length(_slopes(w, b, x, y)),
                lambda w, b, x, y: _length(_slopes(w, b, x, y)) / len(y),
            ),
            "this is the gradient of the mean loss: the length of one example's "
            "has no 1/N": lambda w, b, x, y: _lengths(w, b, x, y) / len(y),
            "this is the length of the sum of the gradients: return one length for each example": (
                lambda w, b, x, y: np.sqrt(
                    ((_slopes(w, b, x, y).T @ np.column_stack([x, np.ones(len(x))])) ** 2).sum()
                ),
                lambda w, b, x, y: (
                    np.sqrt(((_slopes(w, b, x, y).T @ np.column_stack([x, np.ones(len(x))])) ** 2).sum())
                    / len(y)
                ),
            ),
            "this is the squared length: take the root": lambda w, b, x, y: _lengths(w, b, x, y) ** 2,
            "this adds absolute values: the length is the root of the sum of the squares": lambda w, b, x, y: (
                np.abs(_slopes(w, b, x, y)).sum(axis=1) * (np.abs(x).sum(axis=1) + 1)
            ),
            "the target is missing: the gradient in the logits is p - t": lambda w, b, x, y: _lengths_with(
                lambda z, t: softmax(z), w, b, x, y
            ),
            "the bias is missing in the logits: z = W x + b": lambda w, b, x, y: _lengths(w, 0 * b, x, y),
            "the softmax runs over the examples and not over the classes: use axis=1": lambda w, b, x, y: (
                _lengths_with(lambda z, t: softmax(z, axis=0) - t, w, b, x, y)
            ),
            "your softmax overflows: exponentiate z - max(z), or call xent.softmax": lambda w, b, x, y: (
                _lengths_with(lambda z, t: _naive_softmax(z) - t, w, b, x, y)
            ),
        },
    ),
    Exercise(
        "grad-poisson",
        "The gradient of the mean negative log-likelihood of a Poisson regression",
        _poisson,
        _poisson_inputs,
        atol=1e-12,
        mistakes={
            "the prediction is the mean exp(z), not z: this is the gradient "
            "of squared error": lambda w, x, y: x.T @ (x @ w - y) / len(y),
            "the sign is flipped: this is the gradient of the log-likelihood, and the loss "
            "is its negative": lambda w, x, y: -_poisson(w, x, y),
            "there is a factor exp(z) too many: that is half the gradient of the squared distance between "
            "count and mean; in the likelihood it cancels": (
                lambda w, x, y: x.T @ ((np.exp(x @ w) - y) * np.exp(x @ w)) / len(y),
                lambda w, x, y: 2 * x.T @ ((np.exp(x @ w) - y) * np.exp(x @ w)) / len(y),
            ),
            "this is the gradient in z, one number for each example: multiply by X transposed": (
                lambda w, x, y: (np.exp(x @ w) - y) / len(y),
                lambda w, x, y: np.exp(x @ w) - y,
            ),
            "the mean is exp(z), not its sigmoid: a count may exceed one": lambda w, x, y: (
                x.T @ (1 / (1 + np.exp(-x @ w)) - y) / len(y)
            ),
            "the sign is flipped and the mean is missing: divide exp(z) - y, times the features, by the "
            "number of examples": lambda w, x, y: -len(y) * _poisson(w, x, y),
            "there is a factor of 2 too many: the likelihood, unlike a square, brings none": lambda w, x, y: (
                2 * _poisson(w, x, y)
            ),
            "this is divided by the number of weights: divide by the number of examples": lambda w, x, y: (
                len(y) * _poisson(w, x, y) / len(w)
            ),
            "this is one gradient for each example: average over them, axis 0": (
                lambda w, x, y: (np.exp(x @ w) - y)[:, None] * x,
                lambda w, x, y: (np.exp(x @ w) - y)[:, None] * x / len(y),
            ),
            "this is the slope in the mean, 1 - y / mean: the chain rule multiplies it "
            "by the mean": lambda w, x, y: x.T @ (1 - y / np.exp(x @ w)) / len(y),
            "this is the loss: return its gradient": lambda w, x, y: np.mean(np.exp(x @ w) - y * (x @ w)),
        },
    ),
    Exercise(
        "grad-tied",
        "The gradient in a matrix that a model uses twice",
        _tied,
        _tied_inputs,
        atol=1e-12,
        mistakes={
            "this is the gradient through the output layer alone: the rows that were read "
            "receive theirs too": lambda w, x, y: _tied_parts(w, x, y)[0],
            "this is the gradient through the rows that were read alone: the output layer receives its own "
            "too": lambda w, x, y: _read(w, x, _tied_parts(w, x, y)[1]),
            "a token that occurs twice in x counts once: slope[x] += rows keeps the "
            "last; use np.add.at": _last_wins,
            "slope[x] = rows overwrites what the output layer received: add, with np.add.at": _overwritten,
            "the rows that the output layer hands back belong to the tokens read, x, and not "
            "to the targets": lambda w, x, y: _tied_parts(w, x, y)[0] + _read(w, y, _tied_parts(w, x, y)[1]),
            "the two uses are averaged: their gradients add up": lambda w, x, y: _tied(w, x, y) / 2,
            "one of the two parts lacks the 1/N of the mean": (
                lambda w, x, y: _tied_parts(w, x, y)[0] + len(y) * _read(w, x, _tied_parts(w, x, y)[1]),
                lambda w, x, y: len(y) * _tied_parts(w, x, y)[0] + _read(w, x, _tied_parts(w, x, y)[1]),
            ),
            "the target is missing: start from p - t": lambda w, x, y: (
                (softmax(w[x] @ w.T) / len(y)).T @ w[x] + _read(w, x, softmax(w[x] @ w.T) / len(y) @ w)
            ),
        },
    ),
    Exercise(
        "grad-vjp",
        "The product of the softmax Jacobian with a vector, without the matrix",
        _vjp,
        _vjp_inputs,
        atol=1e-14,
        mistakes={
            "this is p (1 - p) v, the diagonal alone: it is the derivative of a sigmoid for each logit, and "
            "the classes of a softmax are coupled": lambda p, v: p * (1 - p) * v,
            "this is p v: the second term of p_j (delta_jk - p_k), the coupling, is missing": lambda p, v: (
                p * v
            ),
            "the first term is missing: this is the formula for j != k, used on "
            "the diagonal too": lambda p, v: -p * (p * v).sum(axis=-1, keepdims=True),
            "the sum of p v runs over the whole batch: it belongs to each row, so keep the class axis "
            "(axis=-1, keepdims=True)": lambda p, v: p * (v - (p * v).sum()),
            "the plain sum of v is subtracted: it has to be weighted by p": lambda p, v: (
                p * (v - v.sum(axis=-1, keepdims=True))
            ),
            "the plain mean of v is subtracted: it has to be the mean under p, sum_j p_j v_j": lambda p, v: (
                p * (v - v.mean(axis=-1, keepdims=True))
            ),
        },
    ),
)
