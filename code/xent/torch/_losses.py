"""The losses of `xent` on tensors: the same names, arguments and meaning, differentiable to any order.

The relative error of a loss (above K times the smallest normal number, for K classes) is at most (8 + margin) epsilons
of the dtype that is computed in, the margin being how far the target's logit lies from the highest other one; that of
a focal loss 1 + gamma times as much. Small losses keep their digits, as PyTorch's do not, and so does, given logits
(not of float16) and class indices, the gradient by the logit of a target that is all but certain.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypedDict, Unpack, overload

import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.functional import logsigmoid

from xent import _validate as check
from xent._validate import BINARY_LOGITS, Reduction

from . import _checks as tensors
from ._checks import FLOAT_DTYPES, LABEL_DTYPES, held
from ._reduction import concrete, reduce_each, reduce_rows
from ._row_losses import Distributions, Entropy, Focal, Labels, Terms, log_probs


@check.named_axis
def log_softmax(logits: Tensor, *, axis: int = -1) -> Tensor:
    """`xent.log_softmax` on tensors; nan, and rows without a softmax, give nan.

    Examples
    --------
    >>> import torch, xent.torch
    >>> z = torch.tensor([0.0, -17.0], dtype=torch.float16)
    >>> xent.torch.log_softmax(z), torch.log_softmax(z, -1)
    (tensor([-4.1399e-08, -1.7000e+01]), tensor([  0., -17.], dtype=torch.float16))
    """
    moved, axis = tensors.logits_of(tensors.widened(logits, "logits"), "logits", axis)
    return log_probs(moved).movedim(-1, axis)


def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    *,
    axis: int = -1,
    weight: Tensor | ArrayLike | None = None,
    sample_weight: Tensor | ArrayLike | None = None,
    softcap: float | None = None,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
    denominator: float | Tensor | None = None,
) -> Tensor:
    """`xent.cross_entropy` on tensors, in place of `torch.nn.functional.cross_entropy`.

    The class axis is the last one unless `axis` says otherwise: PyTorch's own function wants it second. There is no
    default for `ignore_index`: PyTorch's is -100. A target of weight zero does not count: its loss and its gradient
    are zero, whatever its logits hold. Tensors alone have `softcap` and `z_loss`, which are those of
    `linear_cross_entropy`.

    Notes
    -----
    The gradient is formed along with the loss, which takes a few blocks of rows and a few numbers a row beside it.
    It is handed over to the first backward pass (bfloat16 with ``reduction="none"`` on a CPU: by way of copies in
    float32); with ``retain_graph=True`` the next one computes it again. For float16 each backward pass forms it.

    Examples
    --------
    >>> import torch, xent.torch
    >>> logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]], requires_grad=True)
    >>> loss = xent.torch.cross_entropy(logits, torch.tensor([0, 1]))
    >>> loss.backward()
    >>> round(loss.item(), 6), logits.grad.sum(-1).abs().max().item() < 1e-7
    (0.288726, True)
    """
    z, axis = tensors.logits_of(logits, "logits", axis)
    smoothing = held(check.setting(label_smoothing, "label_smoothing"), z)
    asked = tensors.Asked(reduction, denominator)
    labels, counts = tensors.labels_of(targets, z, ignore_index, asked, axis=axis)
    w = tensors.target_weights(z, asked, sample_weight, counts, labels, weight)
    cap, penalty = tensors.cap_and_penalty(softcap, z_loss, z.dtype)
    loss = Terms((Labels(smoothing, penalty),), softcap=cap)
    return reduce_rows(loss, z, (labels,), w, asked.divisor(z.shape[:-1], w))


class _Chosen(TypedDict, total=False):
    axis: int
    temperature: float
    ignore_index: int | None


@overload
def selected_log_probs(
    logits: Tensor, targets: Tensor, *, entropy: Literal[False] = False, **how: Unpack[_Chosen]
) -> Tensor: ...
@overload
def selected_log_probs(
    logits: Tensor, targets: Tensor, *, entropy: Literal[True], **how: Unpack[_Chosen]
) -> tuple[Tensor, Tensor]: ...
def selected_log_probs(
    logits: Tensor,
    targets: Tensor,
    *,
    axis: int = -1,
    temperature: float = 1.0,
    ignore_index: int | None = None,
    entropy: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Log-probabilities of the targets' classes and, in the same pass, entropies: what policy gradients take.

    Parameters
    ----------
    logits, targets, axis
        As in `cross_entropy`; the targets are such as the tokens that were drawn.
    temperature : float, default 1
        T > 0 divides the logits, as when the tokens were drawn.
    ignore_index : int, optional
        Targets of this value get zeros and no gradient, whatever their logits hold.
    entropy : bool, default False
        Return the entropies of softmax(logits / T) too.

    Returns
    -------
    Tensor, or two
        Log-probabilities, and entropies in nats if asked for, in the shape of the targets and at least float32.
        Both are differentiable to any order. A first backward pass makes nothing large but the gradient.

    Examples
    --------
    >>> import torch, xent.torch
    >>> logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]], requires_grad=True)
    >>> log_p, entropy = xent.torch.selected_log_probs(logits, torch.tensor([0, 1]), entropy=True)
    >>> log_p.detach(), entropy.detach()
    (tensor([-0.4076, -0.1698]), tensor([0.8324, 0.5243]))
    """
    z, axis = tensors.logits_of(logits, "logits", axis)
    asked = tensors.Asked()
    labels, counts = tensors.labels_of(targets, z, ignore_index, asked, axis=axis)
    terms = chosen(temperature, entropy, z.dtype)
    w = tensors.target_weights(z, asked, None, counts)
    found = reduce_rows(terms, z, (labels,), w, asked.divisor(z.shape[:-1], w))
    return (-found[0], found[1]) if entropy else -found[0]


def chosen(temperature: Any, entropy: Any, dtype: torch.dtype, softcap: float | None = None) -> Terms:
    """Check the temperature and whether the entropy is asked for, and return the terms."""
    t = tensors.within(check.setting(temperature, "temperature"), "temperature", dtype)
    if not isinstance(entropy, bool):
        raise TypeError(f"entropy: expected True or False, got {check.shown(entropy)}")
    return Terms((Labels(), Entropy()) if entropy else (Labels(),), None, softcap, t)


def soft_cross_entropy(
    logits: Tensor,
    target_probs: Tensor,
    *,
    axis: int = -1,
    weight: Tensor | ArrayLike | None = None,
    sample_weight: Tensor | ArrayLike | None = None,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
    denominator: float | Tensor | None = None,
) -> Tensor:
    """`xent.soft_cross_entropy` on tensors; the distributions may carry a gradient too.

    Examples
    --------
    >>> import torch, xent.torch
    >>> t = torch.tensor([[0.5, 0.5]], requires_grad=True)
    >>> xent.torch.soft_cross_entropy(torch.tensor([[1.0, 0.0]]), t).backward()
    >>> t.grad
    tensor([[0.3133, 1.3133]])
    """
    z, axis = tensors.logits_of(logits, "logits", axis)
    fits = partial(check.of_soft, logits, target_probs, axis)
    asked = tensors.Asked(reduction, denominator)
    t = tensors.distributions(target_probs, "target_probs", logits, "logits", axis, asked, fits)
    t = t.movedim(axis, -1)
    smoothing = held(check.setting(label_smoothing, "label_smoothing"), z)
    z = z.to(torch.promote_types(z.dtype, t.dtype) if t.dtype == torch.float64 else z.dtype)
    t = t.to(torch.promote_types(z.dtype, t.dtype))
    beside, w, mass = tensors.distributions_and_weights(t, z, asked, weight, sample_weight)
    return reduce_rows(Distributions(smoothing), z, beside, w, asked.divisor(z.shape[:-1], mass))


def binary_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    *,
    sample_weight: Tensor | ArrayLike | None = None,
    pos_weight: Tensor | ArrayLike | None = None,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
    denominator: float | Tensor | None = None,
) -> Tensor:
    """`xent.binary_cross_entropy` on tensors, accurate in both tails; soft targets may carry a gradient too."""
    asked = tensors.Asked(reduction, denominator)
    z, y, n, w = _binary(logits, targets, sample_weight, label_smoothing, asked)
    up, down = _binary_sides(z, y, n)
    if pos_weight is not None:
        given = pos_weight, "pos_weight", tuple(z.shape), "that of the logits", z, asked
        up = tensors.weights(*given, broadcast=True, positive=True) * up
    return reduce_each(up + down, w, asked.divisor(z.shape, w))


def focal_loss(
    logits: Tensor,
    targets: Tensor,
    *,
    gamma: float = 2.0,
    alpha: Tensor | ArrayLike | None = None,
    axis: int = -1,
    sample_weight: Tensor | ArrayLike | None = None,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
    denominator: float | Tensor | None = None,
) -> Tensor:
    """`xent.focal_loss` on tensors; its gradient is finite also where a target is thought impossible."""
    z, axis = tensors.logits_of(logits, "logits", axis)
    asked = tensors.Asked(reduction, denominator)
    labels, counts = tensors.labels_of(targets, z, ignore_index, asked, axis=axis)
    gamma = check.setting(gamma, "gamma")
    w = tensors.target_weights(z, asked, sample_weight, counts)
    others: tuple[Tensor, ...] = (labels,)
    if alpha is not None:
        of = "one factor a class"
        others = labels, tensors.of_labels(alpha, "alpha", z, z.shape[-1], labels, asked, of)
    return reduce_rows(Focal(gamma), z, others, w, asked.divisor(z.shape[:-1], w))


def nll(
    log_probs: Tensor,
    targets: Tensor,
    *,
    axis: int = -1,
    weight: Tensor | ArrayLike | None = None,
    sample_weight: Tensor | ArrayLike | None = None,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
    denominator: float | Tensor | None = None,
) -> Tensor:
    """`xent.nll` on tensors; each log-probability counts as free, so that the target's alone has a gradient."""
    moved, axis = tensors.logits_of(tensors.widened(log_probs, "log_probs"), "log_probs", axis)
    asked = tensors.Asked(reduction, denominator)
    labels, counts = tensors.labels_of(targets, moved, ignore_index, asked, axis=axis)
    if concrete(moved):
        tolerance = check.sum_tolerance(log_probs.dtype, moved.shape[-1])
        excess = torch.logsumexp(moved.detach(), -1)
        wrong = ~(torch.expm1(excess).abs() <= tolerance)
        check.no_logarithms(wrong, excess, log_probs, axis, tolerance, asked.refuse_where)
    return _pick(moved, labels, counts, weight, sample_weight, asked, torch.neg)


def log_loss(
    probs: Tensor,
    targets: Tensor,
    *,
    eps: float = 0.0,
    axis: int = -1,
    weight: Tensor | ArrayLike | None = None,
    sample_weight: Tensor | ArrayLike | None = None,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
    denominator: float | Tensor | None = None,
) -> Tensor:
    """`xent.log_loss` on tensors; a clipped probability has no gradient."""
    moved, axis = tensors.logits_of(tensors.widened(probs, "probs"), "probs", axis)
    asked = tensors.Asked(reduction, denominator)
    labels, counts = tensors.labels_of(targets, moved, ignore_index, asked, axis=axis)
    tensors.distributions(probs, "probs", probs, "probs", axis, asked, partial(check.of_probs, probs, axis))
    eps = held(check.setting(eps, "eps"), moved)

    def loss(p: Tensor) -> Tensor:
        return -(_clipped(p, eps)[0] if eps else torch.log(p))

    return _pick(moved, labels, counts, weight, sample_weight, asked, loss)


def binary_log_loss(
    probs: Tensor,
    targets: Tensor,
    *,
    eps: float = 0.0,
    sample_weight: Tensor | ArrayLike | None = None,
    reduction: Reduction = "mean",
    denominator: float | Tensor | None = None,
) -> Tensor:
    """`xent.binary_log_loss` on tensors; a clipped probability has no gradient."""
    asked = tensors.Asked(reduction, denominator)
    p = tensors.widened(probs, "probs")
    tensors.inside(p, "probs", asked, hint=lambda: BINARY_LOGITS)
    eps = held(check.setting(eps, "eps"), p)
    p, y, n, w = _binary(p, targets, sample_weight, 0.0, asked, "probs", out=0.5)
    # As in _binary_sides, also for the gradient: that of log p at 0 is infinite.
    up, down = torch.where((y > 0) | (p > 0), p, 1.0), torch.where((n > 0) | (p < 1), p, 0.0)
    log_p, log_q = _clipped(p, eps) if eps else (torch.log(up), torch.log1p(-down))
    return reduce_each(-n * log_q - y * log_p + 0.0, w, asked.divisor(p.shape, w))


def _binary(
    logits: Any,
    targets: Any,
    sample_weight: Any,
    smoothing: float,
    asked: tensors.Asked,
    like: str = "logits",
    out: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Check what the binary losses share, as `binary_targets`; of a target of weight zero `out` is the logit."""
    z = tensors.widened(logits, "logits")
    y = tensors.tensor_of(targets, "targets")
    if y.dtype not in (*LABEL_DTYPES, *FLOAT_DTYPES, torch.bool):
        raise TypeError(f"targets: expected labels 0 and 1 or probabilities, got dtype {y.dtype}")
    twin = "cross_entropy" if like == "logits" else "log_loss"
    tensors.same_shape(y, "targets", z.shape, like, z, check.of_rows(y, z, twin))
    tensors.inside(y, "targets", asked, hint=lambda: check.of_binary(z, y))
    smoothing = held(check.setting(smoothing, "label_smoothing"), z)
    y = y.to(torch.promote_types(z.dtype, y.dtype))  # of 1 - y, y in float32 has lost digits
    y, n = (((1 - smoothing) * x + smoothing / 2 if smoothing else x).to(z.dtype) for x in (y, 1 - y))
    if sample_weight is None:
        return z, y, n, None
    shape, of = tuple(z.shape), f"that of the {like}"
    w = tensors.weights(sample_weight, "sample_weight", shape, of, z, asked, broadcast=True)
    return z.masked_fill(w == 0, out), y, n, w


def _clipped(p: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return log p and log(1 - p), without a gradient where p is clipped; 1 - eps itself may round to one."""
    low, high = p < eps, 1 - p < eps
    inside, bottom, top = p.masked_fill(low | high, 0.5), math.log(eps), math.log1p(-eps)
    log_p = torch.log(inside).masked_fill(low, bottom).masked_fill(high, top)
    return log_p, torch.log1p(-inside).masked_fill(low, top).masked_fill(high, bottom)


def _binary_sides(z: Tensor, y: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """-y log p and -n log(1 - p), with 0 * inf = 0, also in the gradient: a side may have no mass."""
    up, down = torch.where((y > 0) | z.isfinite(), z, 0.0), torch.where((n > 0) | z.isfinite(), z, 0.0)
    return -y * logsigmoid(up), -n * logsigmoid(-down)


def _pick(
    moved: Tensor,
    labels: Tensor,
    counts: Tensor | None,
    weight: Any,
    sample_weight: Any,
    asked: tensors.Asked,
    loss: Callable[[Tensor], Tensor],
) -> Tensor:
    """Take each target's entry along the last axis, apply `loss` to it, and reduce."""
    w = tensors.target_weights(moved, asked, sample_weight, counts, labels, weight)
    divisor = asked.divisor(labels.shape, w)
    picked = moved.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    # A one has a finite loss; what it is does not matter, and what the entry was reaches no gradient.
    losses = loss(picked if w is None else picked.masked_fill(w == 0, 1.0)) + 0.0
    return reduce_each(losses, w, divisor)
