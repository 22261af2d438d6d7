"""Exercises of chapter 04, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from xent import gradients, softmax
from xent_book.exercises._check import Exercise, Mistake

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


# ------------------------------------------------------------------------------------------- grad-layer


def _layer_inputs() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(4)
    inputs = [
        (rng.normal(size=(k, d)), rng.normal(size=k), rng.normal(size=(n, d)), rng.integers(0, k, size=n))
        for n, d, k in [(6, 2, 3), (3, 3, 3), (5, 4, 2)]
    ]
    # Logits near a thousand: a softmax that exponentiates them as they are returns nan.
    x = np.array([[1.0, 0.0], [0.0, 1.0]])
    return [*inputs, (1000.0 * np.eye(2), np.zeros(2), x, np.array([0, 0]))]


def _layer(w: Array, b: Array, x: Array, y: Labels) -> tuple[Array, Array]:
    g = gradients.cross_entropy_gradient(x @ w.T + b, y)
    return g.T @ x, g.sum(axis=0)


def _layer_with(g: Any, w: Array, b: Array, x: Array, y: Labels) -> tuple[Array, Array]:
    """The two products, from a wrong gradient with respect to the logits."""
    rows = np.asarray(g(x @ w.T + b, np.eye(len(w))[y]))
    return rows.T @ x, rows.sum(axis=0)


def _naive_softmax(z: Array) -> Array:
    e = np.exp(z)
    return np.asarray(e / e.sum(axis=1, keepdims=True))


# --------------------------------------------------------------------------------- grad-poisson, -hidden


def _poisson_inputs() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(8)
    return [
        (rng.normal(size=d), rng.normal(size=(n, d)), rng.integers(0, 6, size=n)) for n, d in [(1, 2), (7, 3)]
    ]


def _poisson(w: Array, x: Array, y: Labels) -> Array:
    return np.asarray(x.T @ (np.exp(x @ w) - y) / len(y))


def _hidden_inputs() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(9)
    return [
        (
            rng.normal(size=(h, d)),
            rng.normal(size=(k, h)),
            rng.normal(size=(n, d)),
            rng.integers(0, k, size=n),
        )
        for n, d, h, k in [(6, 3, 4, 2), (5, 3, 3, 3)]
    ]


def _at_logits(v: Array, w: Array, x: Array, y: Labels) -> Array:
    """Prediction minus target, over the number of examples."""
    return np.asarray(gradients.cross_entropy_gradient(np.maximum(x @ v.T, 0) @ w.T, y), dtype=np.float64)


def _hidden(v: Array, w: Array, x: Array, y: Labels) -> Array:
    return np.asarray((_at_logits(v, w, x, y) @ w * (x @ v.T > 0)).T @ x)


# ------------------------------------------------------------------------------------------- grad-vjp


def _vjp_inputs() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(5)
    p = softmax(rng.normal(size=(4, 3)))
    return [
        (np.array([[0.2, 0.3, 0.5]]), np.array([[1.0, -2.0, 0.5]])),
        (p, rng.normal(size=(4, 3))),
        (np.array([[1.0, 0.0]]), np.array([[3.0, -1.0]])),
    ]


def _vjp(p: npt.NDArray[Any], v: npt.NDArray[Any]) -> Array:
    return np.asarray(p * (v - (p * v).sum(axis=-1, keepdims=True)))


# ------------------------------------------------------------------------------------------- grad-mse


def _mse_inputs() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(6)
    return [
        (np.array([[0.0, 0.0]]), np.array([0])),
        (rng.normal(scale=2.0, size=(5, 3)), rng.integers(0, 3, size=5)),
        (np.array([[10.0, 0.0], [10.0, 0.0]]), np.array([0, 1])),
    ]


def _mse(z: Array, y: Labels) -> Array:
    p = softmax(z)
    return 2.0 * _vjp(p, p - np.eye(z.shape[1])[y])


# ------------------------------------------------------------------------------- grad-smoothed-gap, -step


def _gap_inputs() -> list[tuple[Any, ...]]:
    return [(10, 0.1), (2, 0.1), (3, 0.5), (1000, 0.01)]


def _step_inputs() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(7)
    return [(rng.normal(size=(20, 3)) @ np.diag([1.0, 5.0, 0.2]),), (np.array([[2.0], [1.0], [0.0]]),)]


def _curvature(x: Array) -> float:
    """The largest eigenvalue of x'x."""
    return float(np.linalg.norm(x, 2) ** 2)


_FEW_ROUNDINGS = "right answers differ by a few roundings in float64"

EXERCISES = (
    Exercise(
        slug="grad-layer",
        title="The backward pass of a linear softmax layer under the mean loss",
        chapter="04_gradients",
        reference=_layer,
        inputs=_layer_inputs,
        rtol=1e-9,
        atol=1e-12,
        why=_FEW_ROUNDINGS,
        mistakes=(
            Mistake(
                "the sign is flipped: the gradient is p - y, and descent subtracts it",
                lambda w, b, x, y: _layer_with(lambda z, t: (t - softmax(z)) / len(z), w, b, x, y),
            ),
            Mistake(
                "the softmax runs over the examples and not over the classes: use axis=1",
                lambda w, b, x, y: _layer_with(lambda z, t: (softmax(z, axis=0) - t) / len(z), w, b, x, y),
            ),
            Mistake(
                "your softmax overflows: exponentiate z - max(z), or call xent.softmax",
                lambda w, b, x, y: _layer_with(lambda z, t: (_naive_softmax(z) - t) / len(z), w, b, x, y),
            ),
            Mistake(
                "the sign is flipped and the 1/N of the mean is missing: start from (p - t) / N",
                lambda w, b, x, y: _layer_with(lambda z, t: t - softmax(z), w, b, x, y),
            ),
            Mistake(
                "you divide by the number of classes: the mean is over the examples",
                lambda w, b, x, y: _layer_with(lambda z, t: (softmax(z) - t) / len(w), w, b, x, y),
            ),
            Mistake(
                "there is a factor of 2 too many: the logarithm, unlike a square, brings none",
                lambda w, b, x, y: _layer_with(lambda z, t: 2 * (softmax(z) - t) / len(z), w, b, x, y),
            ),
            Mistake(
                "the target is missing: the gradient in the logits is p - t",
                lambda w, b, x, y: _layer_with(lambda z, t: softmax(z) / len(z), w, b, x, y),
            ),
            Mistake(
                "the softmax is missing: the prediction is the probability, not the logit",
                lambda w, b, x, y: _layer_with(lambda z, t: (z - t) / len(z), w, b, x, y),
            ),
            Mistake(
                "the bias is missing in the logits: z = W x + b",
                lambda w, b, x, y: _layer(w, 0 * b, x, y),
            ),
            Mistake(
                "there is a factor p (1 - p) too many: in cross-entropy the slope of the softmax cancels",
                lambda w, b, x, y: _layer_with(
                    lambda z, t: (softmax(z) - t) * softmax(z) * (1 - softmax(z)) / len(z), w, b, x, y
                ),
            ),
            Mistake(
                "the gradient of the bias is summed over the wrong axis: add up the examples, axis 0",
                lambda w, b, x, y: (
                    _layer(w, b, x, y)[0],
                    gradients.cross_entropy_gradient(x @ w.T + b, y).sum(axis=1),
                ),
            ),
        ),
    ),
    Exercise(
        slug="grad-poisson",
        title="The gradient of the mean negative log-likelihood of a Poisson regression",
        chapter="04_gradients",
        reference=_poisson,
        inputs=_poisson_inputs,
        rtol=1e-9,
        atol=1e-12,
        why=_FEW_ROUNDINGS,
        mistakes=(
            Mistake(
                "the prediction is the mean exp(eta), not eta: this is the gradient of squared error",
                lambda w, x, y: x.T @ (x @ w - y) / len(y),
            ),
            Mistake(
                "the sign is flipped: this is the gradient of the log-likelihood, and the loss is its negative",
                lambda w, x, y: -_poisson(w, x, y),
            ),
            Mistake(
                "there is a factor exp(eta) too many: that is half the gradient of the squared distance between "
                "count and mean; in the likelihood it cancels",
                lambda w, x, y: x.T @ ((np.exp(x @ w) - y) * np.exp(x @ w)) / len(y),
                lambda w, x, y: 2 * x.T @ ((np.exp(x @ w) - y) * np.exp(x @ w)) / len(y),
            ),
            Mistake(
                "this is the gradient in eta, one number for each example: multiply by X transposed",
                lambda w, x, y: (np.exp(x @ w) - y) / len(y),
                lambda w, x, y: np.exp(x @ w) - y,
            ),
            Mistake(
                "the mean is exp(eta), not its sigmoid: a count may exceed one",
                lambda w, x, y: x.T @ (1 / (1 + np.exp(-x @ w)) - y) / len(y),
            ),
            Mistake(
                "the sign is flipped and the mean is missing: divide exp(eta) - y, times the features, by the "
                "number of examples",
                lambda w, x, y: -len(y) * _poisson(w, x, y),
            ),
            Mistake(
                "there is a factor of 2 too many: the likelihood, unlike a square, brings none",
                lambda w, x, y: 2 * _poisson(w, x, y),
            ),
            Mistake(
                "this is divided by the number of weights: divide by the number of examples",
                lambda w, x, y: len(y) * _poisson(w, x, y) / len(w),
            ),
            Mistake(
                "this is one gradient for each example: average over them, axis 0",
                lambda w, x, y: (np.exp(x @ w) - y)[:, None] * x,
                lambda w, x, y: (np.exp(x @ w) - y)[:, None] * x / len(y),
            ),
            Mistake(
                "this is the slope in the mean, 1 - y / mean: the chain rule multiplies it by the mean",
                lambda w, x, y: x.T @ (1 - y / np.exp(x @ w)) / len(y),
            ),
            Mistake(
                "this is the loss: return its gradient",
                lambda w, x, y: np.mean(np.exp(x @ w) - y * (x @ w)),
            ),
        ),
    ),
    Exercise(
        slug="grad-hidden",
        title="The gradient in the first layer of a network with one hidden layer",
        chapter="04_gradients",
        reference=_hidden,
        inputs=_hidden_inputs,
        rtol=1e-9,
        atol=1e-12,
        why=_FEW_ROUNDINGS,
        mistakes=(
            Mistake(
                "the ReLU is missing on the way back: its derivative is 0 where a hidden number was cut off",
                lambda v, w, x, y: (_at_logits(v, w, x, y) @ w).T @ x,
            ),
            Mistake(
                "the ReLU's derivative is 1 or 0: you multiplied by its output",
                lambda v, w, x, y: (_at_logits(v, w, x, y) @ w * np.maximum(x @ v.T, 0)).T @ x,
            ),
            Mistake("the sign is flipped: start from p - t", lambda v, w, x, y: -_hidden(v, w, x, y)),
            Mistake(
                "this is the gradient in W, the second layer's weights",
                lambda v, w, x, y: _at_logits(v, w, x, y).T @ np.maximum(x @ v.T, 0),
            ),
            Mistake(
                "the sign is flipped and the 1/N of the mean is missing: start from (p - t) / N",
                lambda v, w, x, y: -len(y) * _hidden(v, w, x, y),
            ),
            Mistake(
                "the ReLU is missing on the way forward: the logits are W max(V x, 0)",
                lambda v, w, x, y: (gradients.cross_entropy_gradient(x @ v.T @ w.T, y) @ w).T @ x,
                lambda v, w, x, y: (
                    (gradients.cross_entropy_gradient(x @ v.T @ w.T, y) @ w * (x @ v.T > 0)).T @ x
                ),
            ),
            Mistake(
                "the ReLU cuts the gradient where the gradient is negative: it has to cut where the hidden "
                "number was",
                lambda v, w, x, y: np.maximum(_at_logits(v, w, x, y) @ w, 0).T @ x,
            ),
            Mistake(
                "this is the gradient in the hidden numbers: the product with the inputs is missing",
                lambda v, w, x, y: _at_logits(v, w, x, y) @ w * (x @ v.T > 0),
            ),
            Mistake(
                "the target is missing: start from p - t",
                lambda v, w, x, y: (softmax(np.maximum(x @ v.T, 0) @ w.T) / len(y) @ w * (x @ v.T > 0)).T @ x,
            ),
        ),
    ),
    Exercise(
        slug="grad-vjp",
        title="The product of the softmax Jacobian with a vector, without the matrix",
        chapter="04_gradients",
        reference=_vjp,
        inputs=_vjp_inputs,
        rtol=1e-9,
        atol=1e-14,
        why=_FEW_ROUNDINGS,
        mistakes=(
            Mistake(
                "this is p (1 - p) v, the diagonal alone: it is the derivative of a sigmoid for each logit, "
                "and the classes of a softmax are coupled",
                lambda p, v: p * (1 - p) * v,
            ),
            Mistake(
                "this is p v: the second term of p_j (delta_jk - p_k), the coupling, is missing",
                lambda p, v: p * v,
            ),
            Mistake(
                "the first term is missing: this is the formula for j != k, used on the diagonal too",
                lambda p, v: -p * (p * v).sum(axis=-1, keepdims=True),
            ),
            Mistake(
                "the sum of p v runs over the whole batch: it belongs to each row, so keep the class axis "
                "(axis=-1, keepdims=True)",
                lambda p, v: p * (v - (p * v).sum()),
            ),
            Mistake(
                "the plain sum of v is subtracted: it has to be weighted by p",
                lambda p, v: p * (v - v.sum(axis=-1, keepdims=True)),
            ),
            Mistake(
                "the plain mean of v is subtracted: it has to be the mean under p, sum_j p_j v_j",
                lambda p, v: p * (v - v.mean(axis=-1, keepdims=True)),
            ),
        ),
    ),
    Exercise(
        slug="grad-mse",
        title="The gradient of squared error through a softmax, with respect to the logits",
        chapter="04_gradients",
        reference=_mse,
        inputs=_mse_inputs,
        rtol=1e-9,
        atol=1e-14,
        why=_FEW_ROUNDINGS,
        mistakes=(
            Mistake(
                "this is the gradient with respect to p: the chain goes on through the softmax Jacobian",
                lambda z, y: 2 * (softmax(z) - np.eye(z.shape[1])[y]),
            ),
            Mistake(
                "you averaged over the classes: the loss is the sum of the squares",
                lambda z, y: _mse(z, y) / z.shape[1],
            ),
            Mistake(
                "this is p - y, the gradient of cross-entropy: squared error keeps the Jacobian",
                lambda z, y: softmax(z) - np.eye(z.shape[1])[y],
            ),
            Mistake(
                "you used the diagonal of the Jacobian alone, p (1 - p): its other entries, -p_j p_k, count",
                lambda z, y: 2 * (softmax(z) - np.eye(z.shape[1])[y]) * softmax(z) * (1 - softmax(z)),
            ),
        ),
    ),
    Exercise(
        slug="grad-smoothed-gap",
        title="The distance between the logits at which label smoothing stops pulling",
        chapter="04_gradients",
        reference=lambda classes, smoothing: float(np.log1p(classes * (1 - smoothing) / smoothing)),
        inputs=_gap_inputs,
        rtol=1e-9,
        why=_FEW_ROUNDINGS,
        mistakes=(
            Mistake(
                "the target's class has kept 1 - eps: under the usual convention it also gets its share "
                "eps/K of the spread mass",
                lambda classes, smoothing: np.log(classes * (1 - smoothing) / smoothing),
            ),
            Mistake(
                "this spreads eps over the K - 1 other classes: the usual convention spreads it over all K",
                lambda classes, smoothing: np.log((classes - 1) * (1 - smoothing) / smoothing),
            ),
            Mistake(
                "this is the ratio of the two target masses: the gap is its logarithm",
                lambda classes, smoothing: 1 + classes * (1 - smoothing) / smoothing,
            ),
            Mistake(
                "the sign is flipped: the target's logit is the larger one",
                lambda classes, smoothing: -np.log1p(classes * (1 - smoothing) / smoothing),
            ),
        ),
    ),
    Exercise(
        slug="grad-step-size",
        title="The step below which gradient descent on softmax regression cannot go up",
        chapter="04_gradients",
        reference=lambda x: 4 * len(x) / _curvature(x),
        inputs=_step_inputs,
        rtol=1e-6,
        why="the largest eigenvalue is well conditioned, but power iterations stop early",
        mistakes=(
            Mistake(
                "this is half the answer: either you stopped at 1/L, while everything below 2/L is safe, "
                "or you took 1 for the curvature of the softmax, which is at most 1/2",
                lambda x: 2 * len(x) / _curvature(x),
            ),
            Mistake(
                "the 1/N of the mean is missing: the curvature is that of the mean loss",
                lambda x: 4 / _curvature(x),
            ),
            Mistake(
                "the largest singular value of X has to be squared: L needs the largest eigenvalue of X'X",
                lambda x: 4 * len(x) / np.sqrt(_curvature(x)),
            ),
            Mistake(
                "this is L, the curvature: the step is 2/L",
                lambda x: _curvature(x) / (2 * len(x)),
            ),
        ),
    ),
)
