"""Rows in blocks: how a loss on tensors is reduced, with its gradient formed on the way.

A loss of rows is a `RowLoss`: a differentiable formula in plain operations, and often a faster one in place
that yields a block's losses and their gradient together. `reduce_rows` takes the second where it may: the
only large thing that it makes is the gradient, in the dtype of the logits. The first serves higher
derivatives, forward mode, the transforms of `torch.func`, `torch.compile` and `torch.export`; it looks at no
value, so that what would have to be read first (labels in range, a sum of weights above zero) goes unchecked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from xent._validate import Reduction, mean_divisor

Settings = tuple[Reduction, float | Tensor | None]  # the reduction, and what replaces the mean's divisor

# Numbers in the arrays of a block: on a CPU they stay in its last cache; a GPU wants few and large kernels, and
# with a quarter of this the losses take up to twice as long there.
CPU_BLOCK, OTHER_BLOCK = 1 << 20, 1 << 26
# Up to so many terms a product with ones is faster than a sum, and about as accurate.
DOT_UP_TO = 32
LOG2_OF_E = math.log2(math.e)
# Up to so many classes, a loss of many passes gets its block classes first in memory on a CPU: along rows of 10 a
# sum takes five times as long, a maximum ten times, a difference four times. Few passes do not pay for the copies.
CLASSES_FIRST_UP_TO = 16


@dataclass(frozen=True)
class RowLoss:
    """A loss of each row of logits, classes last, given other tensors with a row for each of those.

    ``plain(logits, *others)`` is differentiable. ``fused(logits, *others, scale, out)`` returns the same
    losses and leaves in `out` their gradient, times `scale` (one number, or one for each row), or nothing of
    use if that is None. Rows that its arithmetic is not made for it returns as nan or inf, and they are done
    again, by the plain formula.
    """

    plain: Callable[..., Tensor]
    fused: Callable[..., Tensor] | None = None
    arrays: int = 0  # of the block's size that `fused` works in, besides `out`; it gets them as `work`

    def in_block(
        self, z: Tensor, others: tuple[Tensor, ...], scale: Tensor | float | None, out: Tensor, work: Tensor
    ) -> Tensor:
        """Losses of a block, and in `out` their scaled gradient."""
        if self.fused is None:
            losses, gradient = self._by_autograd(z, others, scale)
            if gradient is not None:
                out.copy_(gradient)
            return losses
        losses = self.fused(z, *others, scale=scale, out=out, work=work)
        if not math.isfinite(losses.sum().item()):
            some = (~losses.isfinite()).nonzero().squeeze(-1)
            by = scale[some] if isinstance(scale, Tensor) and scale.ndim else scale
            losses[some], gradient = self._by_autograd(z[some], tuple(x[some] for x in others), by)
            if gradient is not None:
                out[some] = gradient
        return losses

    def _by_autograd(
        self, z: Tensor, others: tuple[Tensor, ...], scale: Tensor | float | None
    ) -> tuple[Tensor, Tensor | None]:
        if scale is None:
            return self.plain(z, *others), None
        with torch.enable_grad():
            leaf = z.detach().requires_grad_()
            losses = self.plain(leaf, *others)
            by = scale.squeeze(-1) if isinstance(scale, Tensor) and scale.ndim else scale
            (gradient,) = torch.autograd.grad(losses, leaf, torch.ones_like(losses) * by)
        return losses.detach(), gradient


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in."""
    return torch.promote_types(dtype, torch.float32)


def concrete(*tensors: Tensor | None) -> bool:
    """Whether values can be looked at: not while tracing, under `torch.func`, or in a fake tensor."""
    return not (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or any(t is not None and (type(t) not in (Tensor, torch.nn.Parameter) or t.is_meta) for t in tensors)
    )


def reduce_rows(
    loss: RowLoss,
    z: Tensor,
    others: tuple[Tensor, ...],
    weight: Tensor | None,
    settings: Settings,
    mass: Tensor | None = None,
) -> Tensor:
    """Weigh and reduce a loss of rows; a row of weight zero is out, whatever it holds.

    `mass` is what a row adds to the mean's divisor, its weight unless given. The result is in the dtype that
    is computed in; sums are taken in float64.
    """
    constants = (*others, weight)
    simple = concrete(z, *constants) and not any(
        t is not None and (t.requires_grad or forward_ad.unpack_dual(t).tangent is not None)
        for t in constants
    )
    divisor = divide_by(z.shape[:-1], weight if mass is None else mass, settings)
    if not simple or forward_ad.unpack_dual(z).tangent is not None:
        return _plainly(loss, z, others, weight, divisor)
    if torch.is_grad_enabled() and z.requires_grad:
        reduced: Tensor = _Reduced.apply(z, loss, others, weight, divisor)
        return reduced
    return summed(_blockwise(loss, z, others, weight, None)[0], divisor)


def reduce_each(losses: Tensor, weight: Tensor | None, settings: Settings) -> Tensor:
    """Weigh and reduce losses of targets."""
    return summed(weigh(losses, weight), divide_by(losses.shape, weight, settings))


def divide_by(shape: torch.Size, mass: Tensor | None, settings: Settings) -> Tensor | float | None:
    """What the sum of weighted losses is divided by; None to leave each as it is."""
    reduction, denominator = settings
    if reduction == "none":
        return None
    if isinstance(denominator, Tensor):  # traced; nothing over nothing is 0
        counted = math.prod(shape) if mass is None else mass.sum()
        return torch.where((denominator == 0) & (torch.as_tensor(counted) == 0), 1.0, denominator)
    if reduction == "sum" or denominator:
        return denominator or 1.0
    total = float(math.prod(shape)) if mass is None else mass.sum(dtype=accumulator(mass))
    if isinstance(total, Tensor) and not concrete(mass):
        return total
    checked = mean_divisor(float(total.detach() if isinstance(total, Tensor) else total), denominator)
    return total if isinstance(total, Tensor) and total.requires_grad else checked


def weigh(losses: Tensor, weight: Tensor | None) -> Tensor:
    """Multiply, with 0 for a weight of 0, whatever the loss is."""
    return losses if weight is None else torch.where(weight > 0, weight * losses, 0.0)


def summed(losses: Tensor, divisor: Tensor | float | None) -> Tensor:
    if divisor is None:
        return losses
    return (losses.sum(dtype=accumulator(losses)) / divisor).to(losses.dtype)


def accumulator(x: Tensor) -> torch.dtype:
    """The dtype to add up in."""
    return x.dtype if x.device.type == "mps" else torch.float64  # mps has no float64


def _plainly(
    loss: RowLoss,
    z: Tensor,
    beside: tuple[Tensor, ...],
    weight: Tensor | None,
    divisor: Tensor | float | None,
) -> Tensor:
    z = z.to(wide(z.dtype))
    beside = tuple(x.to(z.dtype) if x.is_floating_point() else x for x in beside)
    if weight is not None:  # what a row that is out holds must not spread through 0 * inf
        out = weight <= 0

        def emptied(x: Tensor) -> Tensor:
            return x.masked_fill(out.unsqueeze(-1) if x.ndim == z.ndim else out, 0.0)

        beside = tuple(emptied(x) if x.is_floating_point() else x for x in beside)
        z = emptied(z)
    return summed(weigh(loss.plain(z, *beside), weight), divisor)


def _blockwise(
    loss: RowLoss, z: Tensor, others: tuple[Tensor, ...], weight: Tensor | None, scale: Tensor | float | None
) -> tuple[Tensor, Tensor]:
    """Weighted losses, and their gradient times `scale` (one number, or one a row) unless that is None."""
    classes, dtype, flat = z.shape[-1], wide(z.dtype), z.ndim == 2
    rows = z if flat else z.reshape(-1, classes)
    rest = others if flat else tuple(x.reshape(len(rows), *x.shape[z.ndim - 1 :]) for x in others)
    dead = None if weight is None else (weight <= 0).reshape(-1, 1)
    by = scale.reshape(-1, 1) if isinstance(scale, Tensor) and scale.ndim else scale
    gradient = rows
    if scale is not None and rows.data_ptr() == z.data_ptr():
        gradient = torch.empty_like(rows)  # else the logits lay in another order, and their copy is ours
    on_cpu = z.device.type == "cpu"
    turned = on_cpu and loss.arrays > 0 and classes <= CLASSES_FIRST_UP_TO
    in_place = scale is not None and rows.dtype == dtype and not turned
    # The arrays of a block: those of the loss, one for the gradient, copies of the logits and their like.
    like = [x.shape == rows.shape and x.is_floating_point() for x in (rows, *rest)]
    arrays = loss.arrays + (not in_place) + (sum(like) if turned else 0)
    step = (CPU_BLOCK if on_cpu else OTHER_BLOCK) // (classes * max(1, arrays))
    step = min(max(1, step), len(rows))
    shape = (arrays, classes, step) if turned else (arrays, step, classes)
    work = rows.new_empty(shape, dtype=dtype)
    work = work.mT if turned else work
    losses = [rows.new_empty(0, dtype=dtype)] if not len(rows) else []
    for start in range(0, len(rows), max(1, step)):
        part = slice(start, start + step)
        inputs = [x[part] for x in (rows, *rest)]
        mine = work[:, : len(inputs[0])]
        if turned:
            copies = iter(mine[-sum(like) :])
            inputs = [copy(x, next(copies)) if yes else x for x, yes in zip(inputs, like, strict=True)]
        elif scale is not None and gradient is rows:
            inputs[0] = inputs[0].clone()
        block, *beside = (x.to(dtype) if x.is_floating_point() else x for x in inputs)
        out = gradient[part] if in_place else mine[loss.arrays]
        of_block = by[part] if isinstance(by, Tensor) and by.ndim else by
        losses.append(loss.in_block(block, tuple(beside), of_block, out, mine[: loss.arrays]))
        if scale is not None:
            if dead is not None:
                out.masked_fill_(dead[part], 0.0)
            if not in_place:
                copy(out, gradient[part])
    whole = losses[0] if len(losses) == 1 else torch.cat(losses)
    return weigh(whole if flat else whole.reshape(z.shape[:-1]), weight), gradient.reshape(z.shape)


def exp_(x: Tensor) -> Tensor:
    """Exponentials in place; on a CPU by exp2, in half the time: |x| / 2 epsilons less accurate."""
    return x.mul_(LOG2_OF_E).exp2_() if x.device.type == "cpu" else x.exp_()


def sum_classes(x: Tensor) -> Tensor:
    """Sum each row, in half the time or less where rows are short."""
    if x.device.type != "cpu" or x.shape[-1] > DOT_UP_TO:
        return x.sum(-1)
    return torch.mv(x, x.new_ones(x.shape[-1]))


def copy(x: Tensor, into: Tensor) -> Tensor:
    """Copy; between two orders of memory, NumPy does so in half the time."""
    if x.device.type != "cpu" or x.dtype != into.dtype or x.dtype == torch.bfloat16:
        return into.copy_(x)
    np.copyto(into.detach().numpy(), x.detach().numpy())
    return into


class _Reduced(torch.autograd.Function):
    """The reduced loss, with the gradient by the logits formed in the forward pass and handed over once.

    The first backward pass takes the gradient along and scales it in place, which is safe since no one else
    holds it; a second one (``retain_graph``) computes it again, and one that is to be differentiated goes
    through the plain formula. In float16, whose range ends early, the gradient is formed only in the backward
    pass, when the factor of a loss scaler is known.
    """

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        loss: RowLoss,
        others: tuple[Tensor, ...],
        weight: Tensor | None,
        divisor: Tensor | float | None,
    ) -> Tensor:
        ctx.loss, ctx.divisor, ctx.has_weight = loss, divisor, weight is not None
        ctx.save_for_backward(z, *others, *([weight] if weight is not None else []))
        scale = None if z.dtype == torch.float16 else _Reduced.scale(weight, divisor)
        losses, gradient = _blockwise(loss, z, others, weight, scale)
        ctx.gradient = [] if scale is None else [gradient]
        return summed(losses, divisor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        z, *others = ctx.saved_tensors
        weight = others.pop() if ctx.has_weight else None
        (g,) = grads
        if torch.is_grad_enabled():
            reduced = _plainly(ctx.loss, z, tuple(others), weight, ctx.divisor)
            return *torch.autograd.grad(reduced, z, g, create_graph=True), None, None, None, None
        if ctx.gradient:
            gradient = ctx.gradient.pop()
            if g.ndim or g.device.type != "cpu" or g.item() != 1:
                gradient.mul_(g.unsqueeze(-1) if g.ndim else g)
        else:
            scale = g * _Reduced.scale(weight, ctx.divisor)
            gradient = _blockwise(ctx.loss, z, tuple(others), weight, scale)[1]
        if g.ndim and not g.all():  # what is asked of no one may be infinite or nan
            gradient.masked_fill_((g == 0).unsqueeze(-1), 0.0)
        return gradient, None, None, None, None

    @staticmethod
    def scale(weight: Tensor | None, divisor: Tensor | float | None) -> Tensor | float:
        """What each row's gradient is multiplied by before that of the result."""
        one = 1.0 if weight is None else weight
        return one if divisor is None else one / divisor
