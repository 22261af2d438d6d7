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
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.functional import logsigmoid

from xent import _validate as check
from xent._validate import BINARY_LOGITS, LOGITS, Reduction
from xent.losses import clip, exponent

from . import _checks as tensors
from ._blocks import RowLoss, concrete, exp_, reduce_each, reduce_rows, sum_classes
from ._checks import FLOAT_DTYPES, LABEL_DTYPES
from ._parts import Labels, Parts


def log_sum_exp(
    x: Tensor,
    *,
    axis: int | tuple[int, ...] | None = -1,
    b: Tensor | ArrayLike | None = None,
    keepdims: bool = False,
) -> Tensor:
    """`xent.log_sum_exp` on tensors; nan stays nan, and `b` is rounded to the dtype that is computed in.

    Examples
    --------
    >>> import torch, xent.torch
    >>> x = torch.tensor([0.0, -40.0])
    >>> xent.torch.log_sum_exp(x), torch.logsumexp(x, -1)
    (tensor(4.2484e-18), tensor(0.))
    """
    z = tensors.widened(x, "x")
    if not isinstance(keepdims, bool):
        raise TypeError(f"keepdims: expected True or False, got {check.shown(keepdims)}")
    axes = check.summed_axes(z, "x", axis)
    if b is not None:
        factors = tensors.weights(b, "b", tuple(z.shape), "that of x", z, broadcast=True)
        z = torch.where((factors > 0) | z.isnan(), z + torch.log(factors), -math.inf)  # 0 * inf = 0
    kept = [1 if i in axes else n for i, n in enumerate(z.shape)]
    rows = z.movedim(axes, list(range(-len(axes), 0))).flatten(-len(axes))
    top = rows.argmax(-1)
    highest = rows.gather(-1, top.unsqueeze(-1)).squeeze(-1)
    # An infinite maximum is the answer itself, and there is nothing to differentiate.
    infinite = highest.isinf()
    finite = rows.masked_fill(infinite.unsqueeze(-1), 0.0)
    result = torch.where(infinite, highest, highest + _minus_log_p(finite, top))
    return result.reshape(kept) if keepdims else result


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
    gaps, top = _below_the_highest(moved)
    return (-gaps - top).movedim(-1, axis)


def entropy_from_logits(logits: Tensor, *, axis: int = -1, base: float | None = None) -> Tensor:
    """`xent.information.entropy_from_logits` on tensors; nan, and rows without a softmax, give nan.

    Examples
    --------
    >>> import torch, xent.torch
    >>> z = torch.tensor([30.0, 0.0])
    >>> xent.torch.entropy_from_logits(z), torch.distributions.Categorical(logits=z).entropy()
    (tensor(2.9009e-12), tensor(2.8073e-12))
    """
    moved, _ = tensors.logits_of(tensors.widened(logits, "logits"), "logits", axis)
    nats = entropy_of(moved)
    return nats if base is None else nats / check.unit(base)


def softmax(logits: Tensor, *, axis: int = -1) -> Tensor:
    """`xent.softmax` on tensors; nan, and rows without a softmax, give nan.

    Examples
    --------
    >>> import torch, xent.torch
    >>> z = torch.tensor([[0.0, -20.0], [-torch.inf, -torch.inf]], dtype=torch.float16)
    >>> xent.torch.softmax(z)
    tensor([[1.0000e+00, 2.0612e-09],
            [       nan,        nan]])
    """
    moved, axis = tensors.logits_of(tensors.widened(logits, "logits"), "logits", axis)
    return torch.softmax(moved, -1).movedim(-1, axis)


def sigmoid(logits: Tensor) -> Tensor:
    """`xent.sigmoid` on tensors; nan stays nan.

    Examples
    --------
    >>> import torch, xent.torch
    >>> z = torch.tensor([-20.0, torch.nan], dtype=torch.float16)
    >>> xent.torch.sigmoid(z), torch.sigmoid(z)
    (tensor([2.0612e-09,        nan]), tensor([0., nan], dtype=torch.float16))
    """
    return torch.sigmoid(tensors.widened(logits, "logits"))


def log_sigmoid(logits: Tensor) -> Tensor:
    """`xent.log_sigmoid` on tensors, accurate in both tails; nan stays nan.

    Examples
    --------
    >>> import torch, xent.torch
    >>> z = torch.tensor([-1000.0, 40.0])
    >>> xent.torch.log_sigmoid(z), torch.sigmoid(z).log()
    (tensor([-1.0000e+03, -4.2484e-18]), tensor([-inf, 0.]))
    """
    return logsigmoid(tensors.widened(logits, "logits"))


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
    default for `ignore_index`: PyTorch's is -100. A target of weight zero does not count: its loss and its gradient are
    zero, whatever its logits hold. Class weights have the effect on small batches that `xent.cross_entropy` tells of.
    Tensors alone have `softcap` and `z_loss`, which are those of `linear_cross_entropy`.

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
    smoothing = held(check.smoothing_mass(label_smoothing), z)
    labels, counts = tensors.labels_of(targets, z, ignore_index, axis=axis)
    w = tensors.target_weights(z, sample_weight, counts, labels, weight)
    loss = RowLoss(partial(hard, smoothing), partial(_hard_fused, smoothing))
    bound, share = tensors.cap_and_penalty(softcap, z_loss, z.dtype)
    if bound is not None or share:
        loss = RowLoss(
            partial(_penalised, bound, share, smoothing), Parts((Labels(smoothing, share),), bound).fused
        )
    return reduce_rows(loss, z, (labels,), w, tensors.reduction_arguments(reduction, denominator))


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
    t = tensors.distributions(target_probs, "target_probs", logits, "logits", axis, fits).movedim(axis, -1)
    smoothing = held(check.smoothing_mass(label_smoothing), z)
    z = z.to(torch.promote_types(z.dtype, t.dtype) if t.dtype == torch.float64 else z.dtype)
    t = t.to(torch.promote_types(z.dtype, t.dtype))
    w = mass = tensors.target_weights(z, sample_weight)
    if weight is not None:
        t = t * tensors.weights(weight, "weight", (z.shape[-1],), "one weight a class", z)
        mass = t.sum(-1) if w is None else w * t.sum(-1)
        w = (mass > 0).to(mass.dtype) if w is None else w.masked_fill(mass == 0, 0.0)
    if smoothing:
        t = (1 - smoothing) * t + smoothing / z.shape[-1] * t.sum(-1, keepdim=True)
    return reduce_rows(RowLoss(_soft), z, (t,), w, tensors.reduction_arguments(reduction, denominator), mass)


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
    """`xent.binary_cross_entropy` on tensors, accurate in both tails; soft targets may carry a gradient too.

    Examples
    --------
    >>> import torch, xent.torch
    >>> z = torch.tensor([40.0, -1000.0], requires_grad=True)
    >>> xent.torch.binary_cross_entropy(z, torch.tensor([1, 1]), reduction="sum").backward()
    >>> z.grad
    tensor([-4.2484e-18, -1.0000e+00])
    """
    z, y, n, w = _binary(logits, targets, sample_weight, label_smoothing)
    up, down = _binary_sides(z, y, n)
    if pos_weight is not None:
        c = tensors.weights(pos_weight, "pos_weight", tuple(z.shape), "that of the logits", z, broadcast=True)
        if concrete(c) and (c == 0).any():
            raise ValueError("pos_weight: expected finite weights > 0, got 0")
        up = c * up
    return reduce_each(up + down, w, tensors.reduction_arguments(reduction, denominator))


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
    """`xent.focal_loss` on tensors.

    The loss is not proper: `xent.scoring.invert_focal` says what a model that was trained with it believes.

    Examples
    --------
    >>> import torch, xent.torch
    >>> z = torch.tensor([[3.0, 0.0], [-torch.inf, 0.0]], requires_grad=True)  # easy, and thought impossible
    >>> xent.torch.focal_loss(z, torch.tensor([0, 0]), reduction="sum").backward()
    >>> z.grad
    tensor([[-3.1487e-04,  3.1487e-04],
            [-1.0000e+00,  1.0000e+00]])
    """
    z, axis = tensors.logits_of(logits, "logits", axis)
    labels, counts = tensors.labels_of(targets, z, ignore_index, axis=axis)
    gamma = exponent(gamma)
    w = tensors.target_weights(z, sample_weight, counts)
    factor = None
    if alpha is not None:
        factor = tensors.weights(alpha, "alpha", (z.shape[-1],), "one factor a class", z)[labels]
    others = (labels,) if factor is None else (labels, factor)
    loss = RowLoss(partial(_focal, gamma))
    return reduce_rows(loss, z, others, w, tensors.reduction_arguments(reduction, denominator))


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
    """`xent.nll` on tensors; each log-probability counts as free, so that the target's alone has a gradient.

    Examples
    --------
    >>> import torch, xent.torch
    >>> log_p = torch.log_softmax(torch.zeros(2, 3), -1).requires_grad_()
    >>> xent.torch.nll(log_p, torch.tensor([2, -100]), ignore_index=-100).backward()
    >>> log_p.grad
    tensor([[ 0.,  0., -1.],
            [ 0.,  0.,  0.]])
    """
    moved, axis = tensors.logits_of(tensors.widened(log_probs, "log_probs"), "log_probs", axis)
    labels, counts = tensors.labels_of(targets, moved, ignore_index, axis=axis)
    if concrete(moved):
        tolerance = check.sum_tolerance(log_probs.dtype, moved.shape[-1])
        excess = torch.logsumexp(moved.detach(), -1)
        wrong = ~(torch.expm1(excess).abs() <= tolerance)

        def hint() -> str:
            return check.other_axis(log_probs.exp(), axis, LOGITS)

        expected = check.sum_to_one("logarithms of probabilities", log_probs, axis, tolerance)
        check.refuse_where(wrong, "log_probs", expected, excess, got="a log-sum-exp of {:.6g}", hint=hint)
    return _pick(moved, labels, counts, weight, sample_weight, reduction, denominator, torch.neg)


def log_loss(
    probs: Tensor,
    targets: Tensor,
    *,
    labels: Tensor | ArrayLike | None = None,
    eps: float = 0.0,
    axis: int = -1,
    weight: Tensor | ArrayLike | None = None,
    sample_weight: Tensor | ArrayLike | None = None,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
    denominator: float | Tensor | None = None,
) -> Tensor:
    """`xent.log_loss` on tensors: `labels` are the numbers that the targets call the classes.

    A clipped probability has no gradient.

    Examples
    --------
    >>> import torch, xent.torch
    >>> p = torch.tensor([[0.75, 0.25], [1.0, 0.0]], requires_grad=True)
    >>> xent.torch.log_loss(p, torch.tensor([3, 8]), labels=[3, 8], eps=1e-6).backward()
    >>> p.grad
    tensor([[-0.6667,  0.0000],
            [ 0.0000,  0.0000]])
    """
    moved, axis = tensors.logits_of(tensors.widened(probs, "probs"), "probs", axis)
    if labels is not None:
        targets, ignore_index = _by_label(targets, labels, moved.shape[-1], ignore_index)
    of, counts = tensors.labels_of(targets, moved, ignore_index, axis=axis)

    def fits() -> str:
        return check.other_axis(probs, axis, LOGITS if ((probs < 0) | (probs > 1)).any() else "")

    tensors.distributions(probs, "probs", probs, "probs", axis, fits)
    eps = held(clip(eps), moved)

    def loss(p: Tensor) -> Tensor:
        return -(_clipped(p, eps)[0] if eps else torch.log(p))

    return _pick(moved, of, counts, weight, sample_weight, reduction, denominator, loss)


def binary_log_loss(
    probs: Tensor,
    targets: Tensor,
    *,
    eps: float = 0.0,
    sample_weight: Tensor | ArrayLike | None = None,
    reduction: Reduction = "mean",
    denominator: float | Tensor | None = None,
) -> Tensor:
    """`xent.binary_log_loss` on tensors; a clipped probability has no gradient.

    Examples
    --------
    >>> import torch, xent.torch
    >>> p = torch.tensor([0.5, 0.0], requires_grad=True)
    >>> xent.torch.binary_log_loss(p, torch.tensor([1, 1]), eps=1e-6, reduction="sum").backward()
    >>> p.grad
    tensor([-2.,  0.])
    """
    p = tensors.widened(probs, "probs")
    tensors.inside(p, "probs", hint=lambda: BINARY_LOGITS)
    eps = held(clip(eps), p)
    p, y, n, w = _binary(p, targets, sample_weight, 0.0, "probs", out=0.5)
    # As in _binary_sides, also for the gradient: that of log p at 0 is infinite.
    up, down = torch.where((y > 0) | (p > 0), p, 1.0), torch.where((n > 0) | (p < 1), p, 0.0)
    log_p, log_q = _clipped(p, eps) if eps else (torch.log(up), torch.log1p(-down))
    return reduce_each(-n * log_q - y * log_p + 0.0, w, tensors.reduction_arguments(reduction, denominator))


# The arithmetic, of rows with the classes last.


def _log_odds(z: Tensor, classes: Tensor) -> Tensor:
    """Log odds against one class in each row, log(sum of the others) - z_y, which leaves its own term out."""
    at = classes.unsqueeze(-1)
    z = z - z.detach().amax(-1, keepdim=True)
    others = torch.logsumexp(z.scatter(-1, at, torch.finfo(z.dtype).min), -1)
    return others - z.gather(-1, at).squeeze(-1)


def _minus_log_p(z: Tensor, classes: Tensor) -> Tensor:
    """-log softmax(z)_y of one class in each row, as log(1 + odds): nothing cancels, however small it is."""
    return 0.0 - logsigmoid(-_log_odds(z, classes))


def _below_the_highest(z: Tensor) -> tuple[Tensor, Tensor]:
    """How far each logit is below the highest of its row, and -log p of that one; -log p is their sum."""
    top = z.detach().argmax(-1)
    return z.gather(-1, top.unsqueeze(-1)) - z, _minus_log_p(z, top).unsqueeze(-1)


def entropy_of(z: Tensor) -> Tensor:
    # -log p of the highest and the gaps are >= 0; a gap of inf has p = 0. (torch.softmax rounds more.)
    gaps, top = _below_the_highest(z)
    return top.squeeze(-1) + ((-gaps - top).exp() * gaps.masked_fill(gaps.isposinf(), 0.0)).sum(-1)


def hard(smoothing: float, z: Tensor, labels: Tensor) -> Tensor:
    if smoothing == 0:
        return _minus_log_p(z, labels)
    gaps, top = _below_the_highest(z)
    spread = gaps.mean(-1) + top.squeeze(-1)
    # A label without mass is left out: 0 * inf would be nan.
    return spread if smoothing == 1 else (1 - smoothing) * _minus_log_p(z, labels) + smoothing * spread


def _penalised(softcap: float | None, z_loss: float, smoothing: float, z: Tensor, labels: Tensor) -> Tensor:
    z = z if softcap is None else softcap * torch.tanh(z / softcap)
    return hard(smoothing, z, labels) + z_loss * torch.logsumexp(z, -1).square()


def _hard_fused(
    smoothing: float, z: Tensor, labels: Tensor, *, scale: Tensor | float | None, out: Tensor, work: Tensor
) -> Tensor:
    """The same from exp(z - z_y), whose sum without the own term is (1 - p_y) / p_y."""
    at = labels.unsqueeze(-1)
    own = z.gather(-1, at)
    torch.sub(z, own, out=out)
    if z.shape[-1] == 1:  # zero, but for a logit that is not finite
        return out.squeeze(-1).clone()
    mean = sum_classes(out).div_(z.shape[-1]) if smoothing else None
    exp_(out).scatter_(-1, at, own.sub_(own))  # zero, or nan of what is not finite
    others = sum_classes(out).unsqueeze(-1)
    if scale is not None:
        by = (1 + others).reciprocal_().mul_(scale)  # the same to the last digit, whatever kind of number
        out.mul_(by)
        torch.mul(others, by, out=own).neg_()
        if smoothing:
            even = scale * (smoothing / z.shape[-1])
            out.sub_(even)
            own.add_(even * (z.shape[-1] - 1))
        out.scatter_(-1, at, own)
    losses = others.log1p_().squeeze(-1)
    return losses if mean is None else losses.sub_(mean, alpha=smoothing)


def _soft(z: Tensor, t: Tensor) -> Tensor:
    gaps, top = _below_the_highest(z)
    return (torch.where((t == 0) & gaps.isinf(), 0.0, gaps) * t).sum(-1) + t.sum(-1) * top.squeeze(-1)


def _focal(gamma: float, z: Tensor, labels: Tensor, factor: Tensor | None = None) -> Tensor:
    odds = _log_odds(z, labels)
    losses = 0.0 - logsigmoid(-odds)
    losses = _pow(-torch.expm1(-losses), logsigmoid(odds), gamma) * losses
    # A factor of zero leaves the loss out: 0 * inf would be nan.
    return losses if factor is None else factor * torch.where((factor > 0) | losses.isnan(), losses, 0.0)


def _pow(p: Tensor, log_p: Tensor, gamma: float) -> Tensor:
    """p^gamma, with the derivatives of exp(gamma log p): those of a power overflow where p is small.

    Where p is zero there is no slope: what this is multiplied by is 0 there too. Nor where log p is: that is inf then.
    """
    power = torch.where(p > 0, torch.where(p > 0, p, 1.0) ** gamma, 0.0**gamma).detach()
    moves = gamma * log_p.masked_fill((p == 0) | (log_p == 0), 0.0)
    return power * torch.exp(moves - moves.detach())


def _binary(
    logits: Any, targets: Any, sample_weight: Any, smoothing: float, like: str = "logits", out: float = 0.0
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Check what the binary losses share, as `binary_targets`; of a target of weight zero `out` is the logit."""
    z = tensors.widened(logits, "logits")
    y = tensors.tensor_of(targets, "targets")
    if y.dtype not in (*LABEL_DTYPES, *FLOAT_DTYPES, torch.bool):
        raise TypeError(f"targets: expected labels 0 and 1 or probabilities, got dtype {y.dtype}")
    twin = "cross_entropy" if like == "logits" else "log_loss"
    tensors.same_shape(y, "targets", z.shape, like, z, check.of_rows(y, z, twin))
    tensors.inside(y, "targets", hint=lambda: check.of_binary(z, y))
    smoothing = held(check.smoothing_mass(smoothing), z)
    y = y.to(torch.promote_types(z.dtype, y.dtype))  # of 1 - y, y in float32 has lost digits
    y, n = (((1 - smoothing) * x + smoothing / 2 if smoothing else x).to(z.dtype) for x in (y, 1 - y))
    if sample_weight is None:
        return z, y, n, None
    shape, of = tuple(z.shape), f"that of the {like}"
    w = tensors.weights(sample_weight, "sample_weight", shape, of, z, broadcast=True)
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


def _by_label(targets: Any, labels: Any, classes: int, ignore_index: int | None) -> tuple[Tensor, int | None]:
    """Return class indices for targets that are given by the numbers that the classes are called."""
    given = tensors.tensor_of(targets, "targets")
    if not isinstance(labels, Tensor):
        array = check.any_array(labels, "labels")
        labels = array.astype("int64") if array.dtype.kind in "iu" else check.real_array(array, "labels")
    names = torch.as_tensor(labels, device=given.device)
    if tuple(names.shape) != (classes,):
        raise ValueError(f"labels: expected shape {(classes,)}, one number a class, got {tuple(names.shape)}")
    if concrete(names) and len(names.unique()) < classes:
        raise ValueError(f"labels: expected distinct labels, got {names.tolist()}")
    same = given.unsqueeze(-1) == names
    ignored = torch.zeros_like(given, dtype=torch.bool)
    if ignore_index is not None:
        ignored = ~tensors.differ(given, check.integer(ignore_index, "ignore_index"))
    if concrete(same):
        check.refuse_where(~(same.any(-1) | ignored), "targets", "one of the labels", given)
    of = same.to(torch.uint8).argmax(-1)
    return of.masked_fill(ignored, -1), None if ignore_index is None else -1


def _pick(
    moved: Tensor,
    labels: Tensor,
    counts: Tensor | None,
    weight: Any,
    sample_weight: Any,
    reduction: Reduction,
    denominator: float | Tensor | None,
    loss: Callable[[Tensor], Tensor],
) -> Tensor:
    """Take each target's entry along the last axis, apply `loss` to it, and reduce."""
    w = tensors.target_weights(moved, sample_weight, counts, labels, weight)
    picked = moved.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    # A one has a finite loss; what it is does not matter, and what the entry was reaches no gradient.
    losses = loss(picked if w is None else picked.masked_fill(w == 0, 1.0)) + 0.0
    return reduce_each(losses, w, tensors.reduction_arguments(reduction, denominator))


def held(value: float, like: Tensor) -> float:
    """A share, or zero if it may be zero in the dtype that is computed in, where it would make nan of inf."""
    return value if value >= torch.finfo(torch.promote_types(like.dtype, torch.float32)).tiny else 0.0
