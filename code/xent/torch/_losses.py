"""The losses of `xent` on tensors: the same names, arguments and meaning, differentiable to any order.

Two things differ from the NumPy functions. nan logits stay nan instead of raising, and so do rows without a
finite logit or with +inf, so that a training loop can deal with them its own way. And the checks (of labels,
weights, distributions) run on the tensor's device: on a GPU each waits for it once.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from xent._validate import (
    Reduction,
    at_index,
    first_true,
    integer,
    number,
    real_array,
    reduction_arguments,
    shown,
)

__all__ = [
    "binary_cross_entropy",
    "cross_entropy",
    "log_loss",
    "log_sigmoid",
    "log_softmax",
    "log_sum_exp",
    "nll",
    "sigmoid",
    "soft_cross_entropy",
    "softmax",
]

# As in xent._blocks: below this sum the rounding of z_j - m shows, and the row is summed again.
SMALL_OTHERS = 2.0**-10
# As in xent._validate, with bfloat16.
SUM_TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 5e-2, torch.float32: 1e-4, torch.float64: 1e-6}
LABEL_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def log_sum_exp(x: Tensor, axis: int = -1) -> Tensor:
    """Logarithm of a sum of exponentials; see `xent.log_sum_exp`.

    Parameters
    ----------
    x : Tensor of floats, shape (..., K, ...)
        -inf counts as a term of zero, +inf makes the sum +inf, nan stays nan.
    axis : int, default -1
        The axis to sum over.

    Returns
    -------
    Tensor
        The shape of `x` without `axis`; float32 for half precision, the dtype of `x` otherwise.

    Raises
    ------
    ValueError
        If there is nothing to sum, or `axis` is not one of the axes of `x`.
    TypeError
        If `x` is not a tensor of floats.

    Examples
    --------
    >>> import torch, xent.torch
    >>> xent.torch.log_sum_exp(torch.tensor([0.0, -40.0], dtype=torch.float64)).item()
    4.248354255291...e-18
    """
    moved, _ = _logits(x, "x", axis)
    top = moved.argmax(-1)
    highest = moved.gather(-1, top.unsqueeze(-1)).squeeze(-1)
    # An infinite maximum is the answer itself, and there is nothing to differentiate.
    infinite = highest.isinf()
    finite = moved.masked_fill(infinite.unsqueeze(-1), 0.0)
    return torch.where(infinite, highest, highest + _nll(finite, top, None))


def log_softmax(logits: Tensor, axis: int = -1) -> Tensor:
    """Log-probabilities that logits stand for; see `xent.log_softmax`.

    Parameters
    ----------
    logits : Tensor of floats, shape (..., K, ...)
        Logits; nan, and rows without a softmax, give nan.
    axis : int, default -1
        The class axis.

    Returns
    -------
    Tensor, shape (..., K, ...)
        Log-probabilities in nats, each accurate to a few ulp of itself, the largest of a row included.

    Raises
    ------
    ValueError
        If there are no classes, or `axis` is not one of the axes.
    TypeError
        If `logits` is not a tensor of floats.

    Examples
    --------
    >>> import torch, xent.torch
    >>> xent.torch.log_softmax(torch.tensor([0.0, -40.0]))
    tensor([-4.2484e-18, -4.0000e+01])
    """
    moved, axis = _logits(logits, "logits", axis)
    top = moved.argmax(-1, keepdim=True)
    # z - m and -log p_top have their signs so that nothing cancels.
    result = (moved - moved.gather(-1, top)) - _nll(moved, top.squeeze(-1), None).unsqueeze(-1)
    return result.movedim(-1, axis)


def softmax(logits: Tensor, axis: int = -1) -> Tensor:
    """Probabilities that logits stand for; see `xent.softmax`.

    Parameters
    ----------
    logits : Tensor of floats, shape (..., K, ...)
        Logits; nan, and rows without a softmax, give nan.
    axis : int, default -1
        The class axis.

    Returns
    -------
    Tensor, shape (..., K, ...)
        Probabilities that sum to one up to rounding; float32 for half precision.

    Raises
    ------
    ValueError
        If there are no classes, or `axis` is not one of the axes.
    TypeError
        If `logits` is not a tensor of floats.

    Examples
    --------
    >>> import torch, xent.torch
    >>> xent.torch.softmax(torch.tensor([1000.0, 1000.0]))
    tensor([0.5000, 0.5000])
    """
    moved, axis = _logits(logits, "logits", axis)
    return torch.softmax(moved, -1).movedim(-1, axis)


def sigmoid(logits: Tensor) -> Tensor:
    """Probability that one logit stands for; see `xent.sigmoid`.

    Parameters
    ----------
    logits : Tensor of floats
        Logits of any shape; nan stays nan.

    Returns
    -------
    Tensor
        Probabilities of the same shape; float32 for half precision.

    Raises
    ------
    TypeError
        If `logits` is not a tensor of floats.

    Examples
    --------
    >>> import torch, xent.torch
    >>> xent.torch.sigmoid(torch.tensor([-1000.0, 0.0]))
    tensor([0.0000, 0.5000])
    """
    return torch.sigmoid(_floats(logits, "logits"))


def log_sigmoid(logits: Tensor) -> Tensor:
    """Logarithm of the logistic function; see `xent.log_sigmoid`.

    Parameters
    ----------
    logits : Tensor of floats
        Logits of any shape; nan stays nan.

    Returns
    -------
    Tensor
        Log-probabilities in nats, of the same shape, accurate in both tails; float32 for half precision.

    Raises
    ------
    TypeError
        If `logits` is not a tensor of floats.

    Examples
    --------
    >>> import torch, xent.torch
    >>> xent.torch.log_sigmoid(torch.tensor([-1000.0, 40.0]))
    tensor([-1.0000e+03, -4.2484e-18])
    """
    return torch.nn.functional.logsigmoid(_floats(logits, "logits"))


def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    *,
    axis: int = -1,
    weight: Tensor | ArrayLike | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
    denominator: float | None = None,
) -> Tensor:
    """Softmax cross-entropy of logits against class indices; see `xent.cross_entropy`.

    Parameters
    ----------
    logits : Tensor of floats, shape (..., K, ...)
        Logits. The class axis is the last one unless `axis` says otherwise: PyTorch's own function wants it
        second.
    targets : Tensor of integers, shape of `logits` without `axis`
        Class indices in [0, K).
    axis : int, default -1
        The class axis.
    weight : Tensor or array_like, shape (K,), optional
        Weight of a target by its class.
    label_smoothing : float, default 0
        Mass in [0, 1] that is spread evenly over all K classes.
    ignore_index : int, optional
        Targets of this value do not count. The gradient of their logits is zero, whatever those logits hold.
        There is no default: PyTorch's is -100.
    reduction : {"mean", "sum", "none"}, default "mean"
        sum(w l) / sum(w), sum(w l), or each w l (zero where a target does not count).
    denominator : float, optional
        Replaces sum(w) in the mean.

    Returns
    -------
    Tensor
        Loss in nats; float32 for half precision, the dtype of `logits` otherwise. The loss and its gradient
        are accurate also where the answer is confident and right.

    Raises
    ------
    ValueError
        If a label is out of range, shapes or devices do not match, `weight`, `label_smoothing`, `axis` or
        `denominator` is out of range, or no target counts and the mean has no `denominator`.
    TypeError
        If `logits` is not a tensor of floats, or `targets` not one of integers.

    Examples
    --------
    >>> import torch, xent.torch
    >>> logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]], requires_grad=True)
    >>> loss = xent.torch.cross_entropy(logits, torch.tensor([0, 1]))
    >>> loss.backward()
    >>> round(loss.item(), 6), logits.grad.sum(-1).abs().max().item() < 1e-7
    (0.288726, True)
    """
    moved, _ = _logits(logits, "logits", axis)
    classes = moved.shape[-1]
    labels, counts = _labels(targets, moved, ignore_index)
    smoothing = number(label_smoothing, "label_smoothing", "a number in [0, 1]", 0.0, 1.0, closed="low high")
    smoothing = _held(smoothing, moved)
    reduction, denominator = reduction_arguments(reduction, denominator)
    of_target = None
    if weight is not None:
        of_target = _weights(weight, "weight", (classes,), "one weight a class", moved)[labels]
        positive = of_target > 0
        counts = positive if counts is None else counts & positive

    losses = _nll(moved, labels, counts)
    if smoothing:
        even = moved.new_full((classes,), 1 / classes).expand_as(moved)
        spread = _SoftCrossEntropy.apply(_harmless(moved, counts), even)
        if counts is not None:
            spread = spread.masked_fill(~counts, 0.0)
        losses = spread if smoothing == 1 else (1 - smoothing) * losses + smoothing * spread
    return _reduce(losses, of_target, counts, reduction, denominator)


def soft_cross_entropy(
    logits: Tensor,
    target_probs: Tensor,
    *,
    axis: int = -1,
    reduction: Reduction = "mean",
    denominator: float | None = None,
) -> Tensor:
    """Softmax cross-entropy of logits against distributions; see `xent.soft_cross_entropy`.

    Parameters
    ----------
    logits : Tensor of floats, shape (..., K, ...)
        Logits.
    target_probs : Tensor of floats, shape of `logits`
        Distributions: in [0, 1], summing to one along `axis` (within 1e-6 in float64, 1e-4 in float32, 1e-2
        in float16, 5e-2 in bfloat16). They may carry a gradient too.
    axis : int, default -1
        The class axis.
    reduction : {"mean", "sum", "none"}, default "mean"
        The mean divides by the number of rows.
    denominator : float, optional
        Replaces that number.

    Returns
    -------
    Tensor
        Loss in nats, +inf where a positive target meets a logit of -inf.

    Raises
    ------
    ValueError
        If a row of `target_probs` is no distribution, shapes or devices do not match, or there is nothing to
        average.
    TypeError
        If an argument is not a tensor of floats.

    Examples
    --------
    >>> import torch, xent.torch
    >>> xent.torch.soft_cross_entropy(torch.tensor([[0.0, -float("inf")]]), torch.tensor([[1.0, 0.0]]))
    tensor(0.)
    """
    moved, axis = _logits(logits, "logits", axis)
    target = _distributions(target_probs, "target_probs", logits, axis)
    reduction, denominator = reduction_arguments(reduction, denominator)
    dtype = torch.promote_types(moved.dtype, target.dtype)
    losses = _SoftCrossEntropy.apply(moved.to(dtype), target.movedim(axis, -1).to(dtype))
    return _reduce(losses, None, None, reduction, denominator)


def binary_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    *,
    weight: Tensor | ArrayLike | None = None,
    pos_weight: Tensor | ArrayLike | None = None,
    reduction: Reduction = "mean",
    denominator: float | None = None,
) -> Tensor:
    """Binary cross-entropy of logits against targets in [0, 1]; see `xent.binary_cross_entropy`.

    Parameters
    ----------
    logits : Tensor of floats
        Logits of any shape.
    targets : Tensor of floats or integers, shape of `logits`
        Labels 0 and 1, or probabilities of 1.
    weight : Tensor or array_like, shape of `logits`, optional
        Weight of each target, >= 0.
    pos_weight : number, Tensor or array_like of shape (logits.shape[-1],), optional
        Weight > 0 of the positive class, or one for each label along the last axis.
    reduction : {"mean", "sum", "none"}, default "mean"
        The mean divides by the sum of the weights, `pos_weight` included; PyTorch divides by the number of
        targets.
    denominator : float, optional
        Replaces the sum of the weights.

    Returns
    -------
    Tensor
        Loss in nats, accurate in both tails; float32 for half precision, the dtype of `logits` otherwise.

    Raises
    ------
    ValueError
        If a target is outside [0, 1], shapes or devices do not match, a weight is out of range, or there is
        nothing to average.
    TypeError
        If an argument is of the wrong kind.

    Examples
    --------
    >>> import torch, xent.torch
    >>> xent.torch.binary_cross_entropy(torch.tensor([-20.0, 20.0]), torch.tensor([0, 1]), reduction="none")
    tensor([2.0612e-09, 2.0612e-09])
    """
    z = _floats(logits, "logits")
    y = _tensor(targets, "targets")
    if y.dtype not in (*LABEL_DTYPES, *SUM_TOLERANCE):
        raise TypeError(f"targets: expected labels 0 and 1 or probabilities, got dtype {y.dtype}")
    _like(y, "targets", z.shape, "logits", z)
    _inside(y, "targets")
    y = y.to(z.dtype)
    reduction, denominator = reduction_arguments(reduction, denominator)
    w = None if weight is None else _weights(weight, "weight", tuple(z.shape), "that of the logits", z)
    c = None if pos_weight is None else _positive_weight(pos_weight, z)
    if w is not None:  # as in _harmless, here without a class axis
        z = z.masked_fill(w == 0, 0.0)

    log_p, log_not_p = torch.nn.functional.logsigmoid(z), torch.nn.functional.logsigmoid(-z)
    # 0 * inf = 0, in the value and in the gradient: a side without mass is not looked at.
    up = -y * torch.where(y > 0, log_p, 0.0)
    down = (y - 1) * torch.where(y < 1, log_not_p, 0.0)
    losses = (up if c is None else c * up) + down
    mass = None if c is None else c * y + (1 - y)
    if w is None and mass is not None:
        w = torch.ones_like(z)
    return _reduce(losses, w, None, reduction, denominator, mass)


def nll(
    log_probs: Tensor,
    targets: Tensor,
    *,
    axis: int = -1,
    weight: Tensor | ArrayLike | None = None,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
    denominator: float | None = None,
) -> Tensor:
    """Negative log-likelihood of class indices under given log-probabilities; see `xent.nll`.

    Parameters
    ----------
    log_probs : Tensor of floats, shape (..., K, ...)
        Log-probabilities: their exponentials sum to one along `axis` (within 1e-6 in float64, 1e-4 in
        float32, 1e-2 in float16, 5e-2 in bfloat16).
    targets, axis, weight, ignore_index, reduction, denominator
        As in `cross_entropy`.

    Returns
    -------
    Tensor
        Loss in nats.

    Raises
    ------
    ValueError
        If a row is no log-distribution, or for the reasons of `cross_entropy`.
    TypeError
        If an argument is of the wrong kind.

    Examples
    --------
    >>> import torch, xent.torch
    >>> logits = torch.tensor([[2.0, 1.0, 0.0]])
    >>> xent.torch.nll(xent.torch.log_softmax(logits), torch.tensor([0]))
    tensor(0.4076)
    """
    moved, _ = _logits(log_probs, "log_probs", axis)
    tolerance = SUM_TOLERANCE[log_probs.dtype]
    with torch.no_grad():
        excess = torch.logsumexp(moved, -1)
        wrong = ~(torch.expm1(excess).abs() <= tolerance)
    if wrong.any():
        where = _first(wrong)
        raise ValueError(
            f"log_probs: expected logarithms of probabilities that sum to one along the class axis (within "
            f"{tolerance:g} for {log_probs.dtype}), got a log-sum-exp of {excess[where].item():.6g}"
            f"{at_index(where)}; for logits use cross_entropy"
        )
    return _pick(moved, targets, weight, ignore_index, reduction, denominator, torch.neg)


def log_loss(
    probs: Tensor,
    targets: Tensor,
    *,
    eps: float = 0.0,
    axis: int = -1,
    weight: Tensor | ArrayLike | None = None,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
    denominator: float | None = None,
) -> Tensor:
    """Log loss of class indices under given probabilities; see `xent.log_loss`.

    Parameters
    ----------
    probs : Tensor of floats, shape (..., K, ...)
        Probabilities in [0, 1], summing to one along `axis` (within the tolerance of `nll`).
    targets, axis, weight, ignore_index, reduction, denominator
        As in `cross_entropy`.
    eps : float, default 0
        Clip p into [eps, 1 - eps] first, 0 <= eps < 1/2. A clipped probability has no gradient.

    Returns
    -------
    Tensor
        Loss in nats.

    Raises
    ------
    ValueError
        If a row is no distribution, `eps` is out of range, or for the reasons of `cross_entropy`.
    TypeError
        If an argument is of the wrong kind.

    Examples
    --------
    >>> import torch, xent.torch
    >>> xent.torch.log_loss(torch.tensor([[0.25, 0.75]]), torch.tensor([0]))
    tensor(1.3863)
    """
    moved, axis = _logits(probs, "probs", axis)
    _distributions(probs, "probs", probs, axis)
    eps = number(eps, "eps", "a number in [0, 1/2)", 0.0, 0.5, closed="low")

    def loss(p: Tensor) -> Tensor:
        return -torch.log(p.clamp(eps, 1 - eps) if eps else p)

    return _pick(moved, targets, weight, ignore_index, reduction, denominator, loss)


# The arithmetic. With m the largest logit of a row and i the singled-out class, gap = m - z_i and others =
# sum_{j != i} exp(z_j - m); see xent._blocks for why nothing cancels then.


def _terms(z: Tensor, classes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return gap, others, and the exponentials with the singled-out class set to zero."""
    at = classes.unsqueeze(-1)
    top = z.amax(-1, keepdim=True)
    gap = (top - z.gather(-1, at)).squeeze(-1)
    exponentials = (z - top).exp_().scatter_(-1, at, 0.0)
    others = exponentials.sum(-1)
    again = (others < SMALL_OTHERS) & (gap == 0)
    if again.any():
        # The rounding error of d = z - m (Møller 1965, Knuth 1969) enters as exp(d + e) = exp(d) (1 + e).
        rows, high = z[again], top[again]
        d = rows - high
        back = d + high
        error = (rows - back) - (high - (back - d))
        careful = d.exp()
        careful += careful * error.nan_to_num(nan=0.0)
        careful.scatter_(-1, classes[again].unsqueeze(-1), 0.0)
        exponentials[again] = careful
        others[again] = careful.sum(-1)
    return gap, others, exponentials


class _NegativeLogSoftmax(torch.autograd.Function):
    """-log softmax(z)_i for one class i in each row; rows that do not count are zero and have no gradient."""

    @staticmethod
    def forward(z: Tensor, classes: Tensor, counts: Tensor | None) -> Tensor:
        gap, others, _ = _terms(z, classes)
        losses = torch.where(gap == 0, torch.log1p(others), gap + torch.log(torch.exp(-gap) + others))
        return losses if counts is None else losses.masked_fill(~counts, 0.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0].unsqueeze(-1) * _Residual.apply(*ctx.saved_tensors), None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Tensor, int]:
        return _NegativeLogSoftmax.apply(*_batched(info, in_dims, inputs)), 0


class _Residual(torch.autograd.Function):
    """Return softmax(z) - onehot(i), the gradient of the above.

    The singled-out entry is -others / sum, which keeps its digits where p_i rounds to one.
    """

    @staticmethod
    def forward(z: Tensor, classes: Tensor, counts: Tensor | None) -> Tensor:
        gap, others, p = _terms(z, classes)
        total = (torch.exp(-gap) + others).unsqueeze(-1)
        p.div_(total).scatter_(-1, classes.unsqueeze(-1), -others.unsqueeze(-1) / total)
        return p if counts is None else p.masked_fill_(~counts.unsqueeze(-1), 0.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        z, _, counts = ctx.saved_tensors
        p = torch.softmax(_harmless(z, counts), -1)
        product = p * (grads[0] - (p * grads[0]).sum(-1, keepdim=True))
        return product if counts is None else product.masked_fill(~counts.unsqueeze(-1), 0.0), None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Tensor, int]:
        return _Residual.apply(*_batched(info, in_dims, inputs)), 0


class _SoftCrossEntropy(torch.autograd.Function):
    """-sum_k t_k log softmax(z)_k, each of whose terms is >= 0 and zero where t_k is."""

    @staticmethod
    def forward(z: Tensor, t: Tensor) -> Tensor:
        top = z.argmax(-1)
        _, others, _ = _terms(z, top)
        highest = z.gather(-1, top.unsqueeze(-1))
        gaps = ((highest - z) * t).masked_fill_(t == 0, 0.0).sum(-1)
        # +inf has no softmax, and inf - inf is nan.
        return gaps + t.sum(-1) * torch.log1p(others) + (highest - highest).squeeze(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        z, t = ctx.saved_tensors
        g = grads[0].unsqueeze(-1)
        by_z = g * (torch.softmax(z, -1) * t.sum(-1, keepdim=True) - t) if ctx.needs_input_grad[0] else None
        by_t = -g * log_softmax(z) if ctx.needs_input_grad[1] else None
        return by_z, by_t

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Tensor, int]:
        return _SoftCrossEntropy.apply(*_batched(info, in_dims, inputs)), 0


def _nll(z: Tensor, classes: Tensor, counts: Tensor | None) -> Tensor:
    losses: Tensor = _NegativeLogSoftmax.apply(z, classes, counts)
    return losses


def _batched(info: Any, in_dims: Any, inputs: tuple[Any, ...]) -> list[Any]:
    """Give every input the vmapped dimension, first; the functions above take any leading dimensions."""
    return [
        x if x is None else x.expand(info.batch_size, *x.shape) if d is None else x.movedim(d, 0)
        for x, d in zip(inputs, in_dims, strict=True)
    ]


def _harmless(z: Tensor, counts: Tensor | None) -> Tensor:
    """Set the logits of rows that do not count to zero, so that nothing they hold can spread."""
    return z if counts is None else z.masked_fill(~counts.unsqueeze(-1), 0.0)


def _pick(
    moved: Tensor,
    targets: Tensor,
    weight: Tensor | ArrayLike | None,
    ignore_index: int | None,
    reduction: Reduction,
    denominator: float | None,
    loss: Any,
) -> Tensor:
    """Take each target's entry along the last axis, apply `loss` to it, and reduce."""
    labels, counts = _labels(targets, moved, ignore_index)
    reduction, denominator = reduction_arguments(reduction, denominator)
    of_target = None
    if weight is not None:
        classes = (moved.shape[-1],)
        of_target = _weights(weight, "weight", classes, "one weight a class", moved)[labels]
        positive = of_target > 0
        counts = positive if counts is None else counts & positive
    picked = moved.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    # A one has a finite loss; what it is does not matter, and what the entry was reaches no gradient.
    losses = loss(picked if counts is None else picked.masked_fill(~counts, 1.0)) + 0.0
    if counts is not None:
        losses = losses.masked_fill(~counts, 0.0)
    return _reduce(losses, of_target, counts, reduction, denominator)


def _reduce(
    losses: Tensor,
    weight: Tensor | None,
    counts: Tensor | None,
    reduction: Reduction,
    denominator: float | None,
    mass: Tensor | None = None,
) -> Tensor:
    """Weigh and reduce losses that are zero where a target does not count, with sums in float64.

    `mass` is what one unit of weight adds to the divisor, where that is not one.
    """
    if weight is not None:
        if counts is not None:
            weight = weight.masked_fill(~counts, 0.0)
        losses = losses * weight
    if reduction == "none":
        return losses
    wide = losses.dtype if losses.device.type == "mps" else torch.float64  # mps has no float64
    total = losses.sum(dtype=wide)
    if reduction == "sum":
        return total.to(losses.dtype)
    if denominator is not None:
        return (total / denominator).to(losses.dtype)
    divisor: Tensor | int
    if weight is not None:
        divisor = (weight if mass is None else weight * mass).sum(dtype=wide)
        mass_of_all = float(divisor.detach())
    else:
        divisor = losses.numel() if counts is None else int(counts.sum())
        mass_of_all = float(divisor)
    if math.isinf(mass_of_all):
        raise ValueError("weight: expected weights with a finite sum, got weights that add up to inf")
    if mass_of_all == 0:
        raise ValueError(
            "targets: expected at least one target that counts, got none (all ignored, of weight zero, "
            "or an empty batch), so the mean is undefined; reduction='sum' or denominator= gives 0"
        )
    return (total / divisor).to(losses.dtype)


# The checks.


def _tensor(value: Any, name: str) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(value).__name__}; for arrays use xent")
    if value.layout is not torch.strided or value.is_nested:
        layout = "nested" if value.is_nested else value.layout
        raise TypeError(f"{name}: expected a dense tensor, got layout {layout}")
    if value.is_meta:
        raise TypeError(f"{name}: expected a tensor that holds values, got one on the device meta")
    return value


def _floats(value: Any, name: str) -> Tensor:
    """Return a tensor of float32 or float64."""
    tensor = _tensor(value, name)
    if tensor.dtype not in SUM_TOLERANCE:
        raise TypeError(f"{name}: expected a tensor of floats, got dtype {tensor.dtype}")
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _logits(value: Any, name: str, axis: int) -> tuple[Tensor, int]:
    """Return logits with the classes on the last axis, and where they were."""
    tensor = _floats(value, name)
    axis = integer(axis, "axis")
    if tensor.ndim == 0:
        raise ValueError(f"{name}: expected at least one dimension, the classes, got a single number")
    if not -tensor.ndim <= axis < tensor.ndim:
        raise ValueError(
            f"axis: expected an axis of {name} with shape {tuple(tensor.shape)}, got {shown(axis)}"
        )
    axis %= tensor.ndim
    if tensor.shape[axis] == 0:
        shape = tuple(tensor.shape)
        raise ValueError(f"{name}: expected at least one class along axis {axis}, got shape {shape}")
    return tensor.movedim(axis, -1), axis


def _labels(targets: Any, moved: Tensor, ignore_index: int | None) -> tuple[Tensor, Tensor | None]:
    """Return class indices as int64 with ignored ones set to 0, and the mask of those that count."""
    labels = _tensor(targets, "targets")
    if labels.dtype not in LABEL_DTYPES:
        hint = "; for target probabilities use soft_cross_entropy" if labels.is_floating_point() else ""
        raise TypeError(f"targets: expected integer class indices, got dtype {labels.dtype}{hint}")
    expected = tuple(moved.shape[:-1])
    if tuple(labels.shape) != expected:
        raise ValueError(
            f"targets: expected shape {expected}, that of the logits without the class axis, "
            f"got {tuple(labels.shape)}"
        )
    _same_device(labels, "targets", moved)
    labels = labels.long()
    counts = None
    if ignore_index is not None:
        counts = _differ(labels, integer(ignore_index, "ignore_index"))
        labels = labels.masked_fill(~counts, 0)
    classes = moved.shape[-1]
    wrong = (labels < 0) | (labels >= classes)
    if wrong.any():
        where = _first(wrong)
        got = labels[where].item()
        raise ValueError(f"targets: expected class indices in [0, {classes}), got {got}{at_index(where)}")
    return labels, counts


def _differ(labels: Tensor, ignore_index: int) -> Tensor:
    """Which labels are not `ignore_index`, compared in int64: in uint8, PyTorch takes -100 for 156."""
    if not -(2**63) <= ignore_index < 2**63:
        return torch.ones_like(labels, dtype=torch.bool)
    return labels.long() != ignore_index


def _distributions(value: Any, name: str, logits: Tensor, axis: int) -> Tensor:
    """Return distributions along `axis`, in float32 or float64."""
    tensor = _floats(value, name)
    _like(tensor, name, logits.shape, "logits", logits)
    _inside(tensor, name, SUM_TOLERANCE[value.dtype])
    tolerance = SUM_TOLERANCE[value.dtype]
    with torch.no_grad():
        sums = tensor.sum(axis)
        wrong = (sums - 1).abs() > tolerance
    if wrong.any():
        where = _first(wrong)
        raise ValueError(
            f"{name}: expected probabilities that sum to one along axis {axis} (within {tolerance:g} for "
            f"{value.dtype}), got a sum of {sums[where].item():.6g}{at_index(where)}"
        )
    return tensor


def _inside(tensor: Tensor, name: str, slack: float = 0.0) -> None:
    wrong = ~((tensor >= 0) & (tensor <= 1 + slack))
    if wrong.any():
        where = _first(wrong)
        got = tensor[where].item()
        raise ValueError(f"{name}: expected probabilities in [0, 1], got {got}{at_index(where)}")


def _weights(value: Any, name: str, shape: tuple[int, ...], of: str, like: Tensor) -> Tensor:
    """Return finite weights >= 0 of exactly the given shape, on the device and in the dtype of `like`."""
    tensor = _numbers(value, name).to(like)
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name}: expected shape {shape}, {of}, got {tuple(tensor.shape)}")
    wrong = ~((tensor >= 0) & (tensor < math.inf))
    if wrong.any():
        where = _first(wrong)
        got = tensor[where].item()
        raise ValueError(f"{name}: expected finite weights >= 0, got {got}{at_index(where)}")
    return tensor


def _held(value: float, like: Tensor) -> float:
    return value if value >= torch.finfo(like.dtype).tiny else 0.0  # smaller, it may be zero there


def _numbers(value: Any, name: str) -> Tensor:
    """Return real numbers as a tensor: as they are, or from an array_like in float64."""
    if not isinstance(value, Tensor):
        # Not torch.as_tensor: it drops masks, takes bools, and refuses or warns of arrays by their memory.
        return torch.from_numpy(real_array(value, name).astype(np.float64, order="C"))
    if _tensor(value, name).dtype not in (*LABEL_DTYPES, *SUM_TOLERANCE):
        raise TypeError(f"{name}: expected real numbers, got dtype {value.dtype}")
    return value


def _positive_weight(value: Any, z: Tensor) -> Tensor:
    """Return `pos_weight` as a scalar, or as one weight a label, the last axis of at least two."""
    value = _numbers(value, "pos_weight")
    shape = tuple(value.shape)
    if shape and not (z.ndim >= 2 and shape == tuple(z.shape[-1:])):
        expected = (
            f"a number or shape {tuple(z.shape[-1:])}, one for each label" if z.ndim >= 2 else "a number"
        )
        raise ValueError(f"pos_weight: expected {expected}, got shape {shape}")
    tensor = _weights(value, "pos_weight", shape, "as given", z)
    if (tensor == 0).any():
        raise ValueError("pos_weight: expected finite weights > 0, got 0")
    return tensor


def _like(tensor: Tensor, name: str, shape: torch.Size, other: str, on: Tensor) -> None:
    if tensor.shape != shape:
        raise ValueError(f"{name}: expected shape {tuple(shape)}, that of {other}, got {tuple(tensor.shape)}")
    _same_device(tensor, name, on)


def _same_device(tensor: Tensor, name: str, other: Tensor) -> None:
    if tensor.device != other.device:
        raise ValueError(f"{name}: expected the device of the logits, {other.device}, got {tensor.device}")


def _first(mask: Tensor) -> tuple[int, ...]:
    return first_true(np.asarray(mask.detach().cpu().numpy()))
