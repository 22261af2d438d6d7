"""What xent does in the same places."""

from __future__ import annotations

import numpy as np

import xent

from ._registry import ONEHOT, Seen, Y, Z, attempt, drawn

NAN, INF = float("nan"), float("inf")
W = np.array([1.0, 10.0, 1.0])
IGNORED = np.array([-100, -100])


def xent_argument_order() -> Seen:
    return {
        "cross_entropy": attempt(lambda: xent.cross_entropy(Y, Z)),
        "soft_cross_entropy": attempt(lambda: xent.soft_cross_entropy(ONEHOT, Z)),
    }


def xent_target_format() -> Seen:
    soft, bce = xent.soft_cross_entropy, xent.binary_cross_entropy
    return {
        "int8 indices": xent.cross_entropy(Z, Y.astype(np.int8)),
        "float indices": attempt(lambda: xent.cross_entropy(Z, Y.astype(float))),
        "label 7": attempt(lambda: xent.cross_entropy(Z, [0, 7])),
        "row [-1, 0, 0]": attempt(lambda: soft(Z[:1], [[-1.0, 0.0, 0.0]])),
        "row [2, 0, 0]": attempt(lambda: soft(Z[:1], [[2.0, 0.0, 0.0]])),
        "binary label 3": attempt(lambda: bce([5.0], [3.0])),
    }


def xent_denominator() -> Seen:
    z, y = drawn(12, 5)
    parts = [xent.cross_entropy(z[s], y[s], denominator=12) for s in (slice(0, 2), slice(2, 12))]
    return {"parts": float(parts[0] + parts[1]), "pooled": xent.cross_entropy(z, y)}


def xent_weights() -> Seen:
    return {
        "mean": xent.cross_entropy(Z, Y, weight=W),
        "denominator=N": xent.cross_entropy(Z, Y, weight=W, denominator=2),
        "zero weights": attempt(lambda: xent.cross_entropy(Z, Y, weight=[0.0, 0.0, 1.0])),
        "pos_weight": xent.binary_cross_entropy([1.0, -0.5, 0.3], [1.0, 0.0, 1.0], pos_weight=10.0),
    }


def xent_all_ignored() -> Seen:
    return {
        "mean": attempt(lambda: xent.cross_entropy(Z, IGNORED, ignore_index=-100)),
        "denominator=5": xent.cross_entropy(Z, IGNORED, ignore_index=-100, denominator=5),
    }


def xent_nan_in_ignored_row() -> Seen:
    import torch

    import xent.torch

    z = torch.tensor([[NAN] * 3, Z[1].tolist()], requires_grad=True)
    loss = xent.torch.cross_entropy(z, torch.tensor([-100, 1]), ignore_index=-100)
    return {"loss": loss, "gradient, ignored row": torch.autograd.grad(loss, z)[0][0]}


def xent_smoothing() -> Seen:
    return {
        "label_smoothing=.3": xent.cross_entropy(Z, Y, label_smoothing=0.3),
        "with weights": xent.cross_entropy(Z, Y, weight=W, label_smoothing=0.3),
        "-0.1": attempt(lambda: xent.cross_entropy(Z, Y, label_smoothing=-0.1)),
    }


def xent_zeros() -> Seen:
    z = np.array([[2.0, 1.0, -INF]])
    return {
        "index": xent.cross_entropy(z, [0]),
        "one-hot": xent.soft_cross_entropy(z, ONEHOT[:1]),
        "the masked class is the target": xent.cross_entropy(z, [2]),
        "KL, both exclude a class": xent.information.kl_divergence([0.5, 0.5, 0.0], [0.25, 0.75, 0.0]),
    }


def xent_clipping() -> Seen:
    p = np.array([[1.0, 0.0, 0.0]])
    return {
        "impossible": xent.log_loss(p, [1]),
        "impossible, eps=1e-7": xent.log_loss(p, [1], eps=1e-7),
        "perfect": xent.log_loss(p, [0]),
    }


def xent_edge_gradient() -> Seen:
    g = xent.gradients
    return {
        "binary, z = -40, y = 1": g.binary_cross_entropy_gradient([-40.0], [1.0]),
        "logits 17, 0, 0, label 1": g.cross_entropy_gradient([[17.0, 0.0, 0.0]], [1])[0],
        "labels 2, 0, 0": attempt(lambda: g.soft_cross_entropy_gradient(Z[:1], [[2.0, 0.0, 0.0]])),
    }


def xent_precision() -> Seen:
    z, y = drawn(65_536, 10)
    single = np.array([[18.0, 0.0]], dtype=np.float32)
    return {
        "softmax, 18": xent.cross_entropy(single, [0]),
        "sigmoid, 18": xent.binary_cross_entropy(single[:, 0], [1.0]),
        "softmax, 37": xent.cross_entropy([[37.0, 0.0]], [0]),
        "mean of 65536, float16": xent.cross_entropy(z.astype(np.float16), y),
    }


def xent_layout() -> Seen:
    z, y = drawn(2, 5, 5)
    return {
        "(B, T, V)": xent.cross_entropy(z, y),
        "(B, V, T), axis=1": xent.cross_entropy(z.transpose(0, 2, 1), y, axis=1),
        "(N, 1)": attempt(lambda: xent.cross_entropy([[3.0], [-2.0]], [0, 1])),
    }
