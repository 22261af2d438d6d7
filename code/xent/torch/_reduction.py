"""How losses of rows are weighed, reduced and differentiated: the walk over whole logits, block by block.

Where it may, `reduce_rows` calls the losses' kernels, which make nothing large but the gradient, in the dtype of the
logits. The plain formula serves higher derivatives, forward mode, the transforms of `torch.func`, `torch.compile` and
`torch.export`; it looks at no value, so that what would have to be read first (labels in range, a sum of weights above
zero) goes unchecked.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from ._row_losses import SMALL, RowLoss, Terms

# What the sum of weighted losses is divided by; None leaves each as it is.
Divisor: TypeAlias = Tensor | float | None

# Numbers in the arrays of a block: on a CPU they stay in its last cache; a GPU wants few and large kernels, and
# with a quarter of this the losses take up to twice as long there.
CPU_BLOCK, OTHER_BLOCK = 1 << 20, 1 << 26
# Up to so many classes, a loss of many passes gets its block classes first in memory on a CPU: along rows of 10 a
# sum takes five times as long, a maximum ten times, a difference four times. Few passes do not pay for the copies.
CLASSES_FIRST_UP_TO = 16


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
    loss: RowLoss | Terms, z: Tensor, others: tuple[Tensor, ...], weight: Tensor | None, divisor: Divisor
) -> Tensor:
    """Weigh and reduce a loss of rows; a row of weight zero is out, whatever it holds.

    The result is in the dtype that is computed in; sums are taken in float64.
    """
    terms = loss if isinstance(loss, Terms) else Terms((loss,))
    constants = (*others, weight)
    simple = concrete(z, *constants) and not any(
        t is not None and (t.requires_grad or forward_ad.unpack_dual(t).tangent is not None)
        for t in constants
    )
    if not simple or forward_ad.unpack_dual(z).tangent is not None:
        return _plainly(terms, z, others, weight, divisor)
    if torch.is_grad_enabled() and z.requires_grad:
        reduced: Tensor = _Reduced.apply(z, terms, others, weight, divisor)
        return reduced
    return summed(_blockwise(terms, z, others, weight, None)[0], divisor)


def reduce_each(losses: Tensor, weight: Tensor | None, divisor: Divisor) -> Tensor:
    """Weigh and reduce losses of targets."""
    return summed(weigh(losses, weight), divisor)


def weigh(losses: Tensor, weight: Tensor | None) -> Tensor:
    """Multiply, with 0 for a weight of 0, whatever the loss is."""
    return losses if weight is None else torch.where(weight > 0, weight * losses, 0.0)


def summed(losses: Tensor, divisor: Divisor) -> Tensor:
    if divisor is None:
        return losses
    return (losses.sum(dtype=accumulator(losses)) / divisor).to(losses.dtype)


def accumulator(x: Tensor) -> torch.dtype:
    """The dtype to add up in."""
    return x.dtype if x.device.type == "mps" else torch.float64  # mps has no float64


def _plainly(
    terms: Terms, z: Tensor, beside: tuple[Tensor, ...], weight: Tensor | None, divisor: Divisor
) -> Tensor:
    z = z.to(wide(z.dtype))
    beside = tuple(x.to(z.dtype) if x.is_floating_point() else x for x in beside)
    if weight is not None:  # what a row that is out holds must not spread through 0 * inf
        out = weight <= 0

        def emptied(x: Tensor) -> Tensor:
            return x.masked_fill(out.unsqueeze(-1) if x.ndim == z.ndim else out, 1.0)

        beside = tuple(emptied(x) if x.is_floating_point() else x for x in beside)
        z = emptied(z)
    return summed(weigh(terms.plain(z, *beside), weight), divisor)


def _blockwise(
    terms: Terms, z: Tensor, others: tuple[Tensor, ...], weight: Tensor | None, scale: Tensor | float | None
) -> tuple[Tensor, Tensor]:
    """Weighted losses, and their gradient times `scale` (one number, or one a row) unless that is None."""
    classes, dtype, flat = z.shape[-1], wide(z.dtype), z.ndim == 2
    rows = z if flat else z.reshape(-1, classes)
    rest = others if flat else tuple(x.reshape(len(rows), *x.shape[z.ndim - 1 :]) for x in others)
    dead = None if weight is None else (weight <= 0).reshape(-1, 1)
    apart = () if terms.shares else (len(terms.parts),)  # terms that are not added up have a scale each
    by = scale.reshape(*apart, -1, 1) if isinstance(scale, Tensor) and scale.ndim else scale
    gradient = rows
    if scale is not None and rows.data_ptr() == z.data_ptr():
        gradient = torch.empty_like(rows)  # else the logits lay in another order, and their copy is ours
    on_cpu, arrays = z.device.type == "cpu", terms.arrays
    turned = on_cpu and arrays > 0 and classes <= CLASSES_FIRST_UP_TO and z.numel() > SMALL
    in_place = scale is not None and rows.dtype == dtype and not turned
    # The arrays of a block: those of the loss, one for the gradient, copies of the logits and their like.
    like = [x.shape == rows.shape and x.is_floating_point() for x in (rows, *rest)]
    needed = arrays + (not in_place) + (sum(like) if turned else 0)
    step = (CPU_BLOCK if on_cpu else OTHER_BLOCK) // (classes * max(1, needed))
    step = min(max(1, step), len(rows))
    several = step < len(rows)  # of one block no views are taken, which cost a small call most
    work = rows
    if needed:
        shape = (needed, classes, step) if turned else (needed, step, classes)
        work = rows.new_empty(shape, dtype=dtype)
        work = work.mT if turned else work
    losses = [] if len(rows) else [rows.new_empty(*apart, 0, dtype=dtype)]
    for start in range(0, len(rows), max(1, step)):
        part = slice(start, start + step)
        inputs = [x[part] for x in (rows, *rest)] if several else [rows, *rest]
        mine = work[:, : len(inputs[0])] if several and needed else work
        if turned:
            copies = iter(mine[-sum(like) :])
            inputs = [copy(x, next(copies)) if yes else x for x, yes in zip(inputs, like, strict=True)]
        elif scale is not None and gradient is rows:
            inputs[0] = inputs[0].clone()
        block, *beside = (x.to(dtype) if x.is_floating_point() and x.dtype != dtype else x for x in inputs)
        into = gradient[part] if several else gradient
        out = into if in_place else mine[arrays]
        of_block = by[..., part, :] if isinstance(by, Tensor) and by.ndim and several else by
        losses.append(terms.kernel(block, beside, of_block, out, mine[:arrays] if arrays else mine))
        if scale is not None:
            if dead is not None:
                out.masked_fill_(dead[part], 0.0)
            if not in_place:
                copy(out, into)
    whole = losses[0] if len(losses) == 1 else torch.cat(losses, -1)
    if flat:
        return weigh(whole, weight), gradient
    return weigh(whole.reshape((*apart, *z.shape[:-1])), weight), gradient.reshape(z.shape)


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
    pass, when the factor of a loss scaler is known; so is that of terms that are not added up.
    """

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, terms: Terms, others: tuple[Tensor, ...], weight: Tensor | None, divisor: Divisor
    ) -> Tensor:
        ctx.terms, ctx.divisor, ctx.has_weight = terms, divisor, weight is not None
        ctx.save_for_backward(z, *others, *([weight] if weight is not None else []))
        later = z.dtype == torch.float16 or terms.shares is None
        scale = None if later else _Reduced.scale(weight, divisor)
        losses, gradient = _blockwise(terms, z, others, weight, scale)
        ctx.gradient = [] if scale is None else [gradient]
        return summed(losses, divisor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        z, *others = ctx.saved_tensors
        weight = others.pop() if ctx.has_weight else None
        (g,) = grads
        if torch.is_grad_enabled():
            reduced = _plainly(ctx.terms, z, tuple(others), weight, ctx.divisor)
            return *torch.autograd.grad(reduced, z, g, create_graph=True), None, None, None, None
        if ctx.gradient:
            gradient = ctx.gradient.pop()
            if g.ndim or g.device.type != "cpu" or g.item() != 1:
                gradient.mul_(g.unsqueeze(-1) if g.ndim else g)
        else:
            scale = g * _Reduced.scale(weight, ctx.divisor)
            gradient = _blockwise(ctx.terms, z, tuple(others), weight, scale)[1]
        g = g if ctx.terms.shares else g.abs().sum(0)
        # What is asked of no one may be infinite or nan; only on a CPU is it cheap to ask whether there is such a row.
        if g.ndim and (g.device.type != "cpu" or not g.all()):
            gradient.masked_fill_((g == 0).unsqueeze(-1), 0.0)
        return gradient, None, None, None, None

    @staticmethod
    def scale(weight: Tensor | None, divisor: Divisor) -> Tensor | float:
        """What each row's gradient is multiplied by before that of the result."""
        one = 1.0 if weight is None else weight
        return one if divisor is None else one / divisor
