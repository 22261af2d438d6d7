"""What PyTorch does: functional losses, on the CPU."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from scipy import special

from ._registry import Lazy, Seen, attempt, drawn, warned

NAN, INF = float("nan"), float("inf")
Z = [[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]]
Y = [0, 1]
torch = Lazy(partial(import_module, "torch"))
F = Lazy(partial(import_module, "torch.nn.functional"))


def _example() -> tuple[Any, Any, Any]:
    """Two rows of logits, their labels, and the labels one-hot."""
    y = torch.tensor(Y)
    return torch.tensor(Z), y, F.one_hot(y, 3).float()


def _gradient(loss: Any, z: Any) -> Any:
    return torch.autograd.grad(loss, z)[0]


def torch_argument_order() -> Seen:
    z, _, onehot = _example()
    return {"right": F.cross_entropy(z, onehot), "swapped": F.cross_entropy(onehot, z)}


def torch_double_softmax() -> Seen:
    z, y, _ = _example()
    seen: Seen = {}
    for classes in (2, 10, 1000):
        perfect = torch.zeros(1, classes)
        perfect[0, 0] = 1
        seen[f"perfect, K={classes}"] = F.cross_entropy(perfect, torch.tensor([0]))
    wrong = torch.tensor([[5.0, 0.0, 0.0]], requires_grad=True)
    label = torch.tensor([1])
    seen["gradient"] = _gradient(F.cross_entropy(wrong.softmax(1), label), wrong)[0, 1]
    seen["gradient from logits"] = _gradient(F.cross_entropy(wrong, label), wrong)[0, 1]
    seen["log-probabilities"] = F.cross_entropy(z.log_softmax(1), y)
    return seen


def torch_nll_unchecked() -> Seen:
    z, y, _ = _example()
    probs = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]])
    return {"of probabilities": F.nll_loss(probs, y), "of logits": F.nll_loss(z, y)}


def torch_target_dtype() -> Seen:
    z, y, onehot = _example()
    seen: Seen = {}
    for name in ("int64", "uint8", "int32", "int16", "bool"):
        labels = y.to(getattr(torch, name))
        seen[name] = attempt(partial(F.cross_entropy, z, labels))
    seen["float32, shape (N,)"] = attempt(lambda: F.cross_entropy(z, y.float()))
    seen["int64 one-hot"] = attempt(lambda: F.cross_entropy(z, onehot.long()))
    seen["float64 one-hot"] = attempt(lambda: F.cross_entropy(z, onehot.double()))
    return seen


def torch_1d_float_target() -> Seen:
    return {"loss": F.cross_entropy(torch.tensor(Z[0]), torch.tensor([0.0, 1.0, 2.0]))}


def torch_targets_unvalidated() -> Seen:
    z, bce = torch.tensor, F.binary_cross_entropy_with_logits
    return {
        "cross_entropy, [-1, 0, 0]": F.cross_entropy(z([Z[0]]), z([[-1.0, 0.0, 0.0]])),
        "with_logits, y=3, z=5": bce(z([5.0]), z([3.0])),
        "with_logits, y=-1, z=-1000": bce(z([-1000.0]), z([-1.0])),
        "binary_cross_entropy, y=3": attempt(lambda: F.binary_cross_entropy(z([0.5]), z([3.0]))),
    }


def torch_mean_of_means() -> Seen:
    z, y = map(torch.from_numpy, drawn(12, 5))
    means = [F.cross_entropy(z[s], y[s]) for s in (slice(0, 2), slice(2, 12))]
    return {"mean of means": (means[0] + means[1]) / 2, "pooled": F.cross_entropy(z, y)}


def torch_class_weights() -> Seen:
    z, y, onehot = _example()
    w = torch.tensor([1.0, 10.0, 1.0])
    return {
        "index": F.cross_entropy(z, y, weight=w),
        "one-hot": F.cross_entropy(z, onehot, weight=w),
        "batch of one, weighted": F.cross_entropy(z[1:], y[1:], weight=w),
        "batch of one": F.cross_entropy(z[1:], y[1:]),
    }


def torch_pos_weight() -> Seen:
    z, y = torch.tensor([1.0, -0.5, 0.3]), torch.tensor([1.0, 0.0, 1.0])
    two = torch.stack([torch.zeros(3), z], 1)
    ten = torch.tensor(10.0)
    bce = F.binary_cross_entropy_with_logits
    grid = torch.zeros(3, 3)
    return {
        "pos_weight": bce(z, y, pos_weight=ten),
        "weight": bce(z, y, weight=1 + 9 * y),
        "cross_entropy, the same weights": F.cross_entropy(two, y.long(), weight=torch.tensor([1.0, 10.0])),
        "pos_weight along the wrong axis": attempt(
            lambda: bce(grid, torch.eye(3), pos_weight=torch.tensor([[1.0], [2.0], [3.0]]))
        ),
    }


def torch_zero_weights() -> Seen:
    _, y, onehot = _example()
    z = torch.tensor(Z, requires_grad=True)
    w = torch.tensor([0.0, 0.0, 1.0])
    loss = F.cross_entropy(z, y, weight=w)
    return {
        "index": loss,
        "index, gradient": _gradient(loss, z)[0],
        "one-hot": F.cross_entropy(z, onehot, weight=w),
    }


def torch_all_ignored() -> Seen:
    z, y = torch.tensor(Z, requires_grad=True), torch.tensor([-100, -100])
    loss = F.cross_entropy(z, y)
    return {"mean": loss, "gradient": _gradient(loss, z)[0], "sum": F.cross_entropy(z, y, reduction="sum")}


def torch_nan_in_ignored_row() -> Seen:
    z = torch.tensor([[NAN] * 3, Z[1]], requires_grad=True)
    loss = F.cross_entropy(z, torch.tensor([-100, 1]))
    g = _gradient(loss, z)
    return {"loss": loss, "gradient, counted row": g[1], "gradient, ignored row": g[0]}


def torch_ignore_index_scope() -> Seen:
    z, _, onehot = _example()
    t = torch.tensor
    return {
        "soft, ignore_index=1": attempt(lambda: F.cross_entropy(z, onehot, ignore_index=1)),
        "soft, ignore_index=-1": F.cross_entropy(z, onehot, ignore_index=-1),
        "label 255, ignored": F.cross_entropy(z, t([255, 1]), ignore_index=255),
        "label -100, nothing said": F.cross_entropy(z, t([-100, 1])),
        "label -1, nothing said": attempt(lambda: F.cross_entropy(z, t([-1, 1]))),
    }


def torch_smoothing() -> Seen:
    z, y, onehot = _example()
    return {
        "label_smoothing=.3": F.cross_entropy(z, y, label_smoothing=0.3),
        "(1-eps) y + eps/K": F.cross_entropy(z, 0.7 * onehot + 0.3 / 3),
        "(1-eps) y + eps/(K-1) elsewhere": F.cross_entropy(z, 0.7 * onehot + 0.15 * (1 - onehot)),
        "all ignored": F.cross_entropy(z, torch.tensor([-100, -100]), label_smoothing=0.3),
    }


def torch_smoothing_weights() -> Seen:
    z, y, onehot = _example()
    w = torch.tensor([1.0, 10.0, 1.0])
    return {
        "index": F.cross_entropy(z, y, weight=w, label_smoothing=0.3),
        "one-hot": F.cross_entropy(z, onehot, weight=w, label_smoothing=0.3),
    }


def torch_smoothing_range() -> Seen:
    z, y, _ = _example()
    return {
        "0": F.cross_entropy(z, y),
        "-0.1": F.cross_entropy(z, y, label_smoothing=-0.1),
        "1.5": attempt(lambda: F.cross_entropy(z, y, label_smoothing=1.5)),
    }


def torch_kl_mean() -> Seen:
    z, _, _ = _example()
    log_q, p = z.log_softmax(1), torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1]])
    mean, said = warned(lambda: F.kl_div(log_q, p))
    cube = log_q.expand(4, 2, 3), p.expand(4, 2, 3)
    return {
        "mean": mean,
        "batchmean": F.kl_div(log_q, p, reduction="batchmean"),
        "warns": bool(said),
        "batchmean, (B, T, V)": F.kl_div(*cube, reduction="batchmean"),
    }


def torch_kl_zeros() -> Seen:
    t = torch.tensor
    return {
        "p = q = 0": F.kl_div(t([0.0]).log(), t([0.0]), reduction="sum"),
        "p = 0, log_target": F.kl_div(t([0.5]).log(), t([0.0]).log(), reduction="sum", log_target=True),
        "p = 0 < q": F.kl_div(t([0.5]).log(), t([0.0]), reduction="sum"),
        "scipy rel_entr": special.rel_entr(0.0, 0.0),
    }


def torch_kl_unvalidated() -> Seen:
    z, _, _ = _example()
    p = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1]])
    return {
        "of logits": F.kl_div(z, p, reduction="batchmean"),
        "of log-probabilities": F.kl_div(z.log_softmax(1), p, reduction="batchmean"),
        "one row of p for both, shape": list(F.kl_div(z.log_softmax(1), p[:1], reduction="none").shape),
    }


def torch_minus_infinity() -> Seen:
    z = torch.tensor([[2.0, 1.0, -INF]], requires_grad=True)
    y, onehot = torch.tensor([0]), torch.tensor([[1.0, 0.0, 0.0]])
    soft = F.cross_entropy(z, onehot)
    masked = torch.tensor([[2.0, 1.0, -1e9]])
    return {
        "index": F.cross_entropy(z, y),
        "one-hot": soft,
        "one-hot, gradient": _gradient(soft, z)[0],
        "index, smoothing .1": F.cross_entropy(z, y, label_smoothing=0.1),
        "-1e9 for -inf, smoothing .1": F.cross_entropy(masked, y, label_smoothing=0.1),
        "the masked class is the target": F.cross_entropy(z, torch.tensor([2])),
    }


def torch_bce_clamp() -> Seen:
    t, zero = torch.tensor, torch.zeros(1)
    z = torch.tensor([17.0], requires_grad=True)
    loss = F.binary_cross_entropy(z.sigmoid(), zero)
    return {
        "p = 0": F.binary_cross_entropy(zero, torch.ones(1)),
        "sigmoid(16), y = 0": F.binary_cross_entropy(t([16.0]).sigmoid(), zero),
        "sigmoid(17), y = 0": loss,
        "gradient at 17": _gradient(loss, z)[0],
    }


def torch_bce_gradient() -> Seen:
    seen: Seen = {}
    for logit in (-20.0, -28.0, -30.0, -40.0):
        for name in ("float32", "float64"):
            z = torch.tensor([logit], dtype=getattr(torch, name), requires_grad=True)
            loss = F.binary_cross_entropy(z.sigmoid(), torch.ones_like(z))
            if name == "float32":
                seen[f"loss at {logit:.0f}"] = loss
            seen[f"gradient at {logit:.0f}, {name}"] = _gradient(loss, z)[0]
    return seen


def torch_confident_right() -> Seen:
    t, y = torch.tensor, torch.tensor([0])
    bce = F.binary_cross_entropy_with_logits
    return {
        "softmax, 18": F.cross_entropy(t([[18.0, 0.0]]), y),
        "sigmoid, 18": bce(t([18.0]), t([1.0])),
        "softmax, 10, bfloat16": F.cross_entropy(t([[10.0, 0.0]], dtype=torch.bfloat16), y),
        "softmax, 37, float64": F.cross_entropy(t([[37.0, 0.0]], dtype=torch.float64), y),
        "sigmoid, 20, y = 1": bce(t([20.0]), t([1.0])),
        "sigmoid, -20, y = 0": bce(t([-20.0]), t([0.0])),
    }


def torch_half_mean() -> Seen:
    z, y = map(torch.from_numpy, drawn(65_536, 10))
    z = z.half().requires_grad_()
    loss = F.cross_entropy(z, y)
    return {
        "mean of 30000": F.cross_entropy(z[:30_000], y[:30_000]),
        "mean of 65536": loss,
        "gradients that are not zero": int((_gradient(loss, z) != 0).sum()),
        "float32 mean of the losses": F.cross_entropy(z, y, reduction="none").float().mean(),
        "bfloat16 mean": F.cross_entropy(z.bfloat16(), y),
    }


def scipy_log_softmax() -> Seen:
    z = np.array([0.0, -40.0])
    return {"log_softmax": special.log_softmax(z)[0], "through logsumexp": z[0] - special.logsumexp(z)}


def scipy_axis() -> Seen:
    z = np.array(Z)
    return {"row sums": special.softmax(z).sum(1), "with axis=1": special.softmax(z, axis=1).sum(1)}


def torch_layout() -> Seen:
    z, y = map(torch.from_numpy, drawn(2, 5, 5))
    return {
        "(B, T, V), T = V": F.cross_entropy(z, y),
        "(B, V, T)": F.cross_entropy(z.transpose(1, 2), y),
        "(B, T, V), T = 4": attempt(lambda: F.cross_entropy(z[:, :4], y[:, :4])),
    }


def torch_one_logit() -> Seen:
    z = torch.tensor([[3.0], [-2.0]], requires_grad=True)
    loss = F.cross_entropy(z, torch.tensor([[0.0], [1.0]]))
    return {
        "loss": loss,
        "gradient": _gradient(loss, z),
        "binary": F.binary_cross_entropy_with_logits(z, torch.tensor([[0.0], [1.0]])),
    }


def torch_shift() -> Seen:
    z, ids = map(torch.from_numpy, drawn(6, 5))
    padded = torch.cat([ids[1:], torch.tensor([-100])])
    return {
        "z[:-1] with ids[1:]": F.cross_entropy(z[:-1], ids[1:]),
        "z with ids shifted and padded": F.cross_entropy(z, padded),
        "shifted twice": F.cross_entropy(z[:-1], padded[1:]),
    }
