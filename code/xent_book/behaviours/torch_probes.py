"""What PyTorch does: functional losses, on the CPU."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ._registry import Seen, attempt, row

ISSUES = "https://github.com/pytorch/pytorch/issues"
NAN, INF = float("nan"), float("inf")
Z = [[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]]
Y = [0, 1]


def _torch() -> tuple[Any, Any]:
    import torch

    return torch, torch.nn.functional


def _example() -> tuple[Any, Any, Any]:
    """Two rows of logits, their labels, and the labels one-hot."""
    torch, F = _torch()
    y = torch.tensor(Y)
    return torch.tensor(Z), y, F.one_hot(y, 3).float()


def _gradient(loss: Any, z: Any) -> Any:
    return _torch()[0].autograd.grad(loss, z)[0]


# ------------------------------------------------------------------------------------- argument order


@row(
    "torch-argument-order",
    "argument order",
    "torch",
    "targets first: another number, no error",
    expect="an error, or the same order everywhere",
    instead="F.cross_entropy(input=z, target=y)",
    recorded={"right": 0.28873, "swapped": 2.9303},
)
def argument_order() -> Seen:
    """The first argument is the prediction here, the second one in Keras and scikit-learn."""
    _, F = _torch()
    z, _, onehot = _example()
    return {"right": F.cross_entropy(z, onehot), "swapped": F.cross_entropy(onehot, z)}


# ---------------------------------------------------------------------------- probabilities or logits


@row(
    "torch-double-softmax",
    "probabilities or logits",
    "torch",
    "probabilities as logits: the loss has a floor",
    expect="a perfect prediction costs nothing",
    instead="pass logits; from probabilities, F.nll_loss(p.log(), y)",
    recorded={
        "perfect, K=2": 0.31326,
        "perfect, K=10": 1.4612,
        "perfect, K=1000": 5.9095,
        "gradient": -0.0089451,
        "gradient from logits": -0.99335,
        "log-probabilities": 0.28873,
    },
)
def double_softmax() -> Seen:
    """A softmax of a softmax."""
    torch, F = _torch()
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


@row(
    "torch-nll-unchecked",
    "probabilities or logits",
    "torch",
    "nll_loss takes anything: the loss is negative",
    expect="an error for what is no log-probability",
    instead="F.cross_entropy on logits, or xent.nll, which checks",
    recorded={"of probabilities": -0.75, "of logits": -2.5},
)
def nll_unchecked() -> Seen:
    """It only looks up minus the entry of the label."""
    torch, F = _torch()
    z, y, _ = _example()
    probs = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]])
    return {"of probabilities": F.nll_loss(probs, y), "of logits": F.nll_loss(z, y)}


# --------------------------------------------------------------------------------------- target format


@row(
    "torch-target-dtype",
    "target format",
    "torch",
    "the dtype and the shape of the target choose the loss",
    expect="any integer is an index",
    instead="y.long() for indices, floats of the logits' shape for distributions",
    recorded={
        "int64": 0.28873,
        "uint8": 0.28873,
        "int32": "RuntimeError: expected target dtype to be Long or Byte, but got Int",
        "int16": "RuntimeError: expected target dtype to be Long or Byte, but got Short",
        "bool": "RuntimeError: expected target dtype to be Long or Byte, but got Bool",
        "float32, shape (N,)": "RuntimeError: expected target dtype to be Long or Byte, but got Float",
        "int64 one-hot": "RuntimeError: Expected floating point type for target with class ...",
        "float64 one-hot": 0.28873,
    },
)
def target_dtype() -> Seen:
    """Indices or distributions: decided by shape and dtype."""
    torch, F = _torch()
    z, y, onehot = _example()
    seen: Seen = {}
    for name in ("int64", "uint8", "int32", "int16", "bool"):
        labels = y.to(getattr(torch, name))
        seen[name] = attempt(functools.partial(F.cross_entropy, z, labels))
    seen["float32, shape (N,)"] = attempt(lambda: F.cross_entropy(z, y.float()))
    seen["int64 one-hot"] = attempt(lambda: F.cross_entropy(z, onehot.long()))
    seen["float64 one-hot"] = attempt(lambda: F.cross_entropy(z, onehot.double()))
    return seen


@row(
    "torch-1d-float-target",
    "target format",
    "torch",
    "float labels of the logits' shape are read as probabilities",
    expect="an error: the labels are indices of type float",
    instead="a batch axis, and y.long()",
    recorded={"loss": 6.2228},
)
def one_d_float_target() -> Seen:
    """Three logits and the 'labels' 0, 1, 2 as floats."""
    torch, F = _torch()
    return {"loss": F.cross_entropy(torch.tensor(Z[0]), torch.tensor([0.0, 1.0, 2.0]))}


@row(
    "torch-targets-unvalidated",
    "target format",
    "torch",
    "targets outside [0, 1]: negative losses without a floor",
    expect="an error, as in binary_cross_entropy",
    instead="map labels -1, 1 to 0, 1; xent checks them",
    recorded={
        "cross_entropy, [-1, 0, 0]": -0.40761,
        "with_logits, y=3, z=5": -9.9933,
        "with_logits, y=-1, z=-1000": -1000.0,
        "binary_cross_entropy, y=3": "RuntimeError: all elements of target should be between 0 and 1",
    },
)
def targets_unvalidated() -> Seen:
    """Labels of minus one and plus one are the usual way to get here."""
    torch, F = _torch()
    z, bce = torch.tensor, F.binary_cross_entropy_with_logits
    return {
        "cross_entropy, [-1, 0, 0]": F.cross_entropy(z([Z[0]]), z([[-1.0, 0.0, 0.0]])),
        "with_logits, y=3, z=5": bce(z([5.0]), z([3.0])),
        "with_logits, y=-1, z=-1000": bce(z([-1000.0]), z([-1.0])),
        "binary_cross_entropy, y=3": attempt(lambda: F.binary_cross_entropy(z([0.5]), z([3.0]))),
    }


# --------------------------------------------------------------------------- reduction and denominator


@row(
    "torch-mean-of-means",
    "reduction and denominator",
    "torch",
    "the mean of sequence means is not the mean of the tokens",
    expect="two micro-batches give the loss of the whole",
    instead="sum losses, divide once: xent.torch.accumulate",
    recorded={
        "mean of means": 1.5942,
        "pooled": 1.8994,
    },
    thread="https://github.com/huggingface/transformers/pull/34191",
)
def mean_of_means() -> Seen:
    """A sequence of 2 tokens and one of 10."""
    torch, F = _torch()
    rng = np.random.default_rng(0)
    z = torch.from_numpy(rng.normal(size=(12, 5)))
    y = torch.from_numpy(rng.integers(0, 5, 12))
    means = [F.cross_entropy(z[s], y[s]) for s in (slice(0, 2), slice(2, 12))]
    return {"mean of means": (means[0] + means[1]) / 2, "pooled": F.cross_entropy(z, y)}


# --------------------------------------------------------------------------------------------- weights


@row(
    "torch-class-weights",
    "weights",
    "torch",
    "index targets divide by the sum of weights, one-hot targets by N",
    expect="the same data, the same loss",
    instead="reduction='sum' and a denominator of your own, or xent",
    recorded={
        "index": 0.19146,
        "one-hot": 1.053,
        "batch of one, weighted": 0.16985,
        "batch of one": 0.16985,
    },
    thread=f"{ISSUES}/40560",
)
def class_weights() -> Seen:
    """Weights 1, 10, 1."""
    torch, F = _torch()
    z, y, onehot = _example()
    w = torch.tensor([1.0, 10.0, 1.0])
    return {
        "index": F.cross_entropy(z, y, weight=w),
        "one-hot": F.cross_entropy(z, onehot, weight=w),
        "batch of one, weighted": F.cross_entropy(z[1:], y[1:], weight=w),
        "batch of one": F.cross_entropy(z[1:], y[1:]),
    }


@row(
    "torch-pos-weight",
    "weights",
    "torch",
    "binary weights and pos_weight divide by N",
    expect="the mean that cross_entropy takes",
    instead="as it is: a divisor without labels is the proper one",
    recorded={
        "pos_weight": 3.0501,
        "weight": 3.0501,
        "cross_entropy, the same weights": 0.43573,
        "pos_weight along the wrong axis": 0.9242,
    },
)
def pos_weight() -> Seen:
    """The same two examples as one logit with pos_weight and as two logits with class weights."""
    torch, F = _torch()
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


@row(
    "torch-zero-weights",
    "weights",
    "torch",
    "weight zero for every label present: nan, in the gradient too",
    expect="nothing to learn: zero, or an error",
    instead="divide by max(sum of weights, tiny), or xent, which raises",
    recorded={"index": NAN, "index, gradient": [NAN, NAN, NAN], "one-hot": 0.0},
)
def zero_weights() -> Seen:
    """The label's class has weight zero."""
    torch, F = _torch()
    _, y, onehot = _example()
    z = torch.tensor(Z, requires_grad=True)
    w = torch.tensor([0.0, 0.0, 1.0])
    loss = F.cross_entropy(z, y, weight=w)
    return {
        "index": loss,
        "index, gradient": _gradient(loss, z)[0],
        "one-hot": F.cross_entropy(z, onehot, weight=w),
    }


# ------------------------------------------------------------------------------------- ignored targets


@row(
    "torch-all-ignored",
    "ignored targets",
    "torch",
    "all targets ignored: nan",
    expect="zero, or an error",
    instead="xent's denominator=, or reduction='sum' over max(count, 1)",
    recorded={"mean": NAN, "gradient": [0.0, 0.0, 0.0], "sum": 0.0},
    thread=f"{ISSUES}/70348",
)
def all_ignored() -> Seen:
    """0/0; yet the gradient is zero."""
    torch, F = _torch()
    z, y = torch.tensor(Z, requires_grad=True), torch.tensor([-100, -100])
    loss = F.cross_entropy(z, y)
    return {
        "mean": loss,
        "gradient": _gradient(loss, z)[0],
        "sum": F.cross_entropy(z, y, reduction="sum"),
    }


@row(
    "torch-nan-in-ignored-row",
    "ignored targets",
    "torch",
    "nan in an ignored row: the loss is finite, the gradient nan",
    expect="an ignored row has no influence",
    instead="guard the division that made it, or drop the rows before the layers",
    recorded={
        "loss": 0.16985,
        "gradient, counted row": [0.04201, -0.15621, 0.1142],
        "gradient, ignored row": [NAN, NAN, NAN],
    },
    surprising=True,
)
def nan_in_ignored_row() -> Seen:
    """The backward pass of log_softmax multiplies the row's softmax, nan, by zero."""
    torch, F = _torch()
    z = torch.tensor([[NAN] * 3, Z[1]], requires_grad=True)
    loss = F.cross_entropy(z, torch.tensor([-100, 1]))
    g = _gradient(loss, z)
    return {"loss": loss, "gradient, counted row": g[1], "gradient, ignored row": g[0]}


@row(
    "torch-ignore-index-scope",
    "ignored targets",
    "torch",
    "ignore_index is a label to skip, not a class to mask",
    expect="the ignored class leaves the softmax, or soft targets honour it",
    instead="mask logits with -inf to remove a class; weights for soft targets",
    recorded={
        "soft, ignore_index=1": "RuntimeError: ignore_index is not supported for floating point target",
        "soft, ignore_index=-1": 0.28873,
        "label 255, ignored": 0.16985,
        "label -100, nothing said": 0.16985,
        "label -1, nothing said": "IndexError: Target -1 is out of bounds",
    },
)
def ignore_index_scope() -> Seen:
    """What it does with other targets, other values, and by default."""
    torch, F = _torch()
    z, _, onehot = _example()
    t = torch.tensor
    return {
        "soft, ignore_index=1": attempt(lambda: F.cross_entropy(z, onehot, ignore_index=1)),
        "soft, ignore_index=-1": F.cross_entropy(z, onehot, ignore_index=-1),
        "label 255, ignored": F.cross_entropy(z, t([255, 1]), ignore_index=255),
        "label -100, nothing said": F.cross_entropy(z, t([-100, 1])),
        "label -1, nothing said": attempt(lambda: F.cross_entropy(z, t([-1, 1]))),
    }


# ------------------------------------------------------------------------------------------- smoothing


@row(
    "torch-smoothing",
    "smoothing",
    "torch",
    "the smoothing mass goes to all K classes, the label's too",
    expect="1 - eps stays on the label, as some papers write",
    instead="eps (K-1)/K for the other convention: it is eps here",
    recorded={
        "label_smoothing=.3": 0.68873,
        "(1-eps) y + eps/K": 0.68873,
        "(1-eps) y + eps/(K-1) elsewhere": 0.88873,
        "all ignored": NAN,
    },
)
def smoothing() -> Seen:
    """The same loss from explicit targets; all ignored is nan here as well; the range is half checked."""
    torch, F = _torch()
    z, y, onehot = _example()
    return {
        "label_smoothing=.3": F.cross_entropy(z, y, label_smoothing=0.3),
        "(1-eps) y + eps/K": F.cross_entropy(z, 0.7 * onehot + 0.3 / 3),
        "(1-eps) y + eps/(K-1) elsewhere": F.cross_entropy(z, 0.7 * onehot + 0.15 * (1 - onehot)),
        "all ignored": F.cross_entropy(z, torch.tensor([-100, -100]), label_smoothing=0.3),
    }


@row(
    "torch-smoothing-weights",
    "smoothing",
    "torch",
    "smoothing and class weights: index and one-hot differ",
    expect="the same data, the same loss",
    instead="xent.cross_entropy weighs a target's whole loss",
    recorded={
        "index": 0.35156,
        "one-hot": 1.9336,
    },
)
def smoothing_weights() -> Seen:
    """The smoothed mass is weighted class by class, and the denominators differ."""
    torch, F = _torch()
    z, y, onehot = _example()
    w = torch.tensor([1.0, 10.0, 1.0])
    return {
        "index": F.cross_entropy(z, y, weight=w, label_smoothing=0.3),
        "one-hot": F.cross_entropy(z, onehot, weight=w, label_smoothing=0.3),
    }


@row(
    "torch-smoothing-range",
    "smoothing",
    "torch",
    "a negative smoothing is taken for none",
    expect="an error, as above one",
    instead="check eps yourself; xent does",
    recorded={
        "0": 0.28873,
        "-0.1": 0.28873,
        "1.5": "RuntimeError: label_smoothing must be between 0.0 and 1.0",
    },
)
def smoothing_range() -> Seen:
    """Below zero silently, above one an error."""
    _, F = _torch()
    z, y, _ = _example()
    return {
        "0": F.cross_entropy(z, y),
        "-0.1": F.cross_entropy(z, y, label_smoothing=-0.1),
        "1.5": attempt(lambda: F.cross_entropy(z, y, label_smoothing=1.5)),
    }


# --------------------------------------------------------------------------------- soft targets and KL


@row(
    "torch-kl-mean",
    "soft targets and KL",
    "torch",
    "kl_div's mean divides by the classes too",
    expect="the mean over the examples",
    instead="reduction='batchmean' for (N, K); sum and divide yourself for (B, T, V)",
    recorded={
        "mean": 0.029615,
        "batchmean": 0.088844,
        "warns": True,
        "batchmean, (B, T, V)": 0.17769,
    },
)
def kl_mean() -> Seen:
    """The default of the function and of the module; what it warns."""
    import warnings

    torch, F = _torch()
    z, _, _ = _example()
    log_q, p = z.log_softmax(1), torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1]])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mean = F.kl_div(log_q, p)
    cube = log_q.expand(4, 2, 3), p.expand(4, 2, 3)
    return {
        "mean": mean,
        "batchmean": F.kl_div(log_q, p, reduction="batchmean"),
        "warns": bool(caught),
        "batchmean, (B, T, V)": F.kl_div(*cube, reduction="batchmean"),
    }


@row(
    "torch-kl-zeros",
    "soft targets and KL",
    "torch",
    "a class that both exclude makes kl_div nan",
    expect="0 log 0 = 0, as scipy.special.rel_entr has it",
    instead="xent.information.kl_divergence(p, q)",
    recorded={"p = q = 0": NAN, "p = 0, log_target": NAN, "scipy rel_entr": 0.0, "p = 0 < q": 0.0},
)
def kl_zeros() -> Seen:
    """0 * (-inf) and 0 * (-inf - x)."""
    from scipy.special import rel_entr

    torch, F = _torch()
    t = torch.tensor
    return {
        "p = q = 0": F.kl_div(t([0.0]).log(), t([0.0]), reduction="sum"),
        "p = 0, log_target": F.kl_div(t([0.5]).log(), t([0.0]).log(), reduction="sum", log_target=True),
        "p = 0 < q": F.kl_div(t([0.5]).log(), t([0.0]), reduction="sum"),
        "scipy rel_entr": rel_entr(0.0, 0.0),
    }


@row(
    "torch-kl-unvalidated",
    "soft targets and KL",
    "torch",
    "kl_div takes logits for log q, and broadcasts",
    expect="an error, or a loss of at least zero",
    instead="F.kl_div(z.log_softmax(-1), p, reduction='batchmean')",
    recorded={
        "of logits": -2.6999,
        "of log-probabilities": 0.088844,
        "one row of p for both, shape": [2, 3],
    },
)
def kl_unvalidated() -> Seen:
    """The first argument is log q, the result KL(p || q)."""
    torch, F = _torch()
    z, _, _ = _example()
    p = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1]])
    return {
        "of logits": F.kl_div(z, p, reduction="batchmean"),
        "of log-probabilities": F.kl_div(z.log_softmax(1), p, reduction="batchmean"),
        "one row of p for both, shape": list(F.kl_div(z.log_softmax(1), p[:1], reduction="none").shape),
    }


@row(
    "torch-minus-infinity",
    "soft targets and KL",
    "torch",
    "a class masked with -inf: index targets work, one-hot give nan",
    expect="0 times -inf counts as nothing",
    instead="index targets, or xent.torch.soft_cross_entropy",
    recorded={
        "index": 0.31326,
        "one-hot": NAN,
        "one-hot, gradient": [-0.26894, 0.26894, 0.0],
        "index, smoothing .1": INF,
        "-1e9 for -inf, smoothing .1": 33333000.0,
        "the masked class is the target": INF,
    },
)
def minus_infinity() -> Seen:
    """A mask of one class, and what smoothing makes of it."""
    torch, F = _torch()
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


# -------------------------------------------------------------------------------------------- clipping


@row(
    "torch-bce-clamp",
    "clipping",
    "torch",
    "binary_cross_entropy stops at 100",
    expect="infinity, or a loss that grows with the logit",
    instead="F.binary_cross_entropy_with_logits",
    recorded={
        "p = 0": 100.0,
        "sigmoid(16), y = 0": 15.942,
        "sigmoid(17), y = 0": 100.0,
        "gradient at 17": 0.0,
    },
)
def bce_clamp() -> Seen:
    """The logarithm is clamped at -100; sigmoid(17) is 1 in float32."""
    torch, F = _torch()
    t, zero = torch.tensor, torch.zeros(1)
    z = torch.tensor([17.0], requires_grad=True)
    loss = F.binary_cross_entropy(z.sigmoid(), zero)
    return {
        "p = 0": F.binary_cross_entropy(zero, torch.ones(1)),
        "sigmoid(16), y = 0": F.binary_cross_entropy(t([16.0]).sigmoid(), zero),
        "sigmoid(17), y = 0": loss,
        "gradient at 17": _gradient(loss, z)[0],
    }


# ------------------------------------------------------------------------------- gradient at the edges


@row(
    "torch-bce-gradient",
    "gradient at the edges",
    "torch",
    "binary_cross_entropy: the right loss, a vanishing gradient",
    expect="a gradient of -1 at every one of these logits",
    instead="F.binary_cross_entropy_with_logits",
    recorded={
        "loss at -20": 20.0,
        "gradient at -20, float32": -1.0,
        "gradient at -20, float64": -1.0,
        "loss at -28": 28.0,
        "gradient at -28, float32": -0.69144,
        "gradient at -28, float64": -0.69144,
        "loss at -30": 30.0,
        "gradient at -30, float32": -0.093576,
        "gradient at -30, float64": -0.093576,
        "loss at -40": 40.0,
        "gradient at -40, float32": -4.2484e-06,
        "gradient at -40, float64": -4.2484e-06,
    },
    surprising=True,
)
def bce_gradient() -> Seen:
    """The backward pass divides by max(p(1-p), 1e-12)."""
    torch, F = _torch()
    seen: Seen = {}
    for logit in (-20.0, -28.0, -30.0, -40.0):
        for name in ("float32", "float64"):
            z = torch.tensor([logit], dtype=getattr(torch, name), requires_grad=True)
            loss = F.binary_cross_entropy(z.sigmoid(), torch.ones_like(z))
            if name == "float32":
                seen[f"loss at {logit:.0f}"] = loss
            seen[f"gradient at {logit:.0f}, {name}"] = _gradient(loss, z)[0]
    return seen


# ------------------------------------------------------------------------------------------- precision


@row(
    "torch-confident-right",
    "precision",
    "torch",
    "certain and right: the softmax loss is zero, the sigmoid's is not",
    expect="two classes and one logit agree",
    instead="xent.torch.cross_entropy, which keeps log1p",
    recorded={
        "softmax, 18": 0.0,
        "sigmoid, 18": 1.523e-08,
        "softmax, 10, bfloat16": 0.0,
        "softmax, 37, float64": 0.0,
        "sigmoid, 20, y = 1": 2.0612e-09,
        "sigmoid, -20, y = 0": 0.0,
    },
)
def confident_right() -> Seen:
    """A margin of 18 in float32, 10 in bfloat16, 37 in float64; and the sigmoid's own lopsidedness."""
    torch, F = _torch()
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


@row(
    "torch-half-mean",
    "precision",
    "torch",
    "a float16 mean overflows on the CPU",
    expect="a mean of losses near 3 is near 3",
    instead="losses in float32: F.cross_entropy(z.float(), y), or xent.torch",
    tolerance=1e-2,
    recorded={
        "mean of 30000": INF,
        "mean of 65536": NAN,
        "gradients that are not zero": 0,
        "float32 mean of the losses": 2.7304,
        "bfloat16 mean": 2.7344,
    },
    surprising=True,
)
def half_mean() -> Seen:
    """The sum passes 65504, then the count does."""
    torch, F = _torch()
    rng = np.random.default_rng(0)
    z = torch.from_numpy(rng.normal(size=(65_536, 10))).half().requires_grad_()
    y = torch.from_numpy(rng.integers(0, 10, 65_536))
    loss = F.cross_entropy(z, y)
    return {
        "mean of 30000": F.cross_entropy(z[:30_000], y[:30_000]),
        "mean of 65536": loss,
        "gradients that are not zero": int((_gradient(loss, z) != 0).sum()),
        "float32 mean of the losses": F.cross_entropy(z, y, reduction="none").float().mean(),
        "bfloat16 mean": F.cross_entropy(z.bfloat16(), y),
    }


@row(
    "scipy-log-softmax",
    "precision",
    "scipy",
    "log_softmax loses certain answers; logsumexp keeps them if the largest logit is 0",
    expect="the same number",
    instead="xent.log_softmax",
    recorded={"log_softmax": 0.0, "through logsumexp": -4.2484e-18},
)
def scipy_log_softmax() -> Seen:
    """Two logits, 0 and -40."""
    from scipy.special import log_softmax, logsumexp

    z = np.array([0.0, -40.0])
    return {"log_softmax": log_softmax(z)[0], "through logsumexp": z[0] - logsumexp(z)}


# ---------------------------------------------------------------------------------------------- layout


@row(
    "scipy-axis",
    "layout",
    "scipy",
    "softmax without axis= normalises the whole array",
    expect="each row sums to one",
    instead="axis=-1, always; xent's default is -1",
    recorded={
        "row sums": [0.31816, 0.68184],
        "with axis=1": [1.0, 1.0],
    },
)
def scipy_axis() -> Seen:
    """The default is axis=None."""
    from scipy.special import softmax

    z = np.array(Z)
    return {"row sums": softmax(z).sum(1), "with axis=1": softmax(z, axis=1).sum(1)}


@row(
    "torch-layout",
    "layout",
    "torch",
    "the class axis is the second; another one goes unnoticed if it fits",
    expect="the last axis, or an error",
    instead="z.transpose(1, 2), or flatten to (N, K); xent: axis=-1",
    recorded={
        "(B, T, V), T = V": 2.1304,
        "(B, V, T)": 1.8109,
        "(B, T, V), T = 4": "RuntimeError: Expected target size [2, 5], got [2, 4]",
    },
)
def layout() -> Seen:
    """Shape (B, T, V) with T = V, as given and as torch wants it."""
    torch, F = _torch()
    rng = np.random.default_rng(0)
    z = torch.from_numpy(rng.normal(size=(2, 5, 5)))
    y = torch.from_numpy(rng.integers(0, 5, (2, 5)))
    return {
        "(B, T, V), T = V": F.cross_entropy(z, y),
        "(B, V, T)": F.cross_entropy(z.transpose(1, 2), y),
        "(B, T, V), T = 4": attempt(lambda: F.cross_entropy(z[:, :4], y[:, :4])),
    }


@row(
    "torch-one-logit",
    "layout",
    "torch",
    "one logit per example, shape (N, 1): the loss is zero",
    expect="a binary loss",
    instead="F.binary_cross_entropy_with_logits",
    recorded={
        "loss": 0.0,
        "gradient": [[0.0], [0.0]],
        "binary": 2.5878,
    },
)
def one_logit() -> Seen:
    """A softmax over one class is 1; the float target of the same shape is read as a distribution."""
    torch, F = _torch()
    z = torch.tensor([[3.0], [-2.0]], requires_grad=True)
    loss = F.cross_entropy(z, torch.tensor([[0.0], [1.0]]))
    return {
        "loss": loss,
        "gradient": _gradient(loss, z),
        "binary": F.binary_cross_entropy_with_logits(z, torch.tensor([[0.0], [1.0]])),
    }


@row(
    "torch-shift",
    "layout",
    "torch",
    "shifting the labels equals padding them with -100; shifting twice is silent",
    expect="an error for labels that are one token late",
    instead="shift once, and know who does it",
    recorded={
        "z[:-1] with ids[1:]": 1.7111,
        "z with ids shifted and padded": 1.7111,
        "shifted twice": 1.8154,
    },
)
def shift() -> Seen:
    """A language model predicts the next token."""
    torch, F = _torch()
    rng = np.random.default_rng(0)
    z = torch.from_numpy(rng.normal(size=(6, 5)))
    ids = torch.from_numpy(rng.integers(0, 5, 6))
    padded = torch.cat([ids[1:], torch.tensor([-100])])
    return {
        "z[:-1] with ids[1:]": F.cross_entropy(z[:-1], ids[1:]),
        "z with ids shifted and padded": F.cross_entropy(z, padded),
        "shifted twice": F.cross_entropy(z[:-1], padded[1:]),
    }
