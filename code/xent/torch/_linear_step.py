"""A linear layer and a loss of its logits, in blocks of rows: the operator, and what autograd makes of it.

A block's logits are computed, its losses, and in the place of the logits their gradient, which is spent at once
on both products: this is what Liger's fused losses do. So a step needs three matrix products, as the plain pair
does, and one block of logits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ._checks import Asked, in_range
from ._reduction import summed
from ._row_losses import Terms

# Logits in a block: 12 MiB in float32, and so many rows that the products run at full speed. Each block reads
# and writes the whole gradient of the weights, so fewer rows than LEAST would take longer for that. An
# accelerator multiplies faster than it reads, and needs more of both.
BLOCK, LEAST = 3 * 2**20, 32
BLOCK_ELSEWHERE, LEAST_ELSEWHERE = 2**26, 1024
# Logits at a time in what comes between the products: few enough to stay in the cache, or, where each time a device
# starts its kernels, more.
STEP, STEP_ELSEWHERE = 2**18, 2**26
# Entries of a half-precision weight that are converted at a time.
TILE = 2**22


@torch.library.custom_op("xent::linear_loss", mutates_args=())
def linear_loss(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    factor: Tensor,
    teacher: list[Tensor],
    beside: list[Tensor],
    loss: str,
    form: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return each row's losses, and the gradients of sum(factor * loss), as far as `form` asks for them.

    `loss` is the text of `Terms`; `factor` and the losses have shape (P, N), a row for each of these, or (1, N) where
    they are added up. `teacher` is another layer (hidden states, weight, perhaps a bias), whose logits the first part
    takes; `beside` has what else the parts take. An operator of its own, so that what compiles a model leaves the
    blocks as they are. Rows of factor zero are left out, whatever they hold. The losses are in the dtype of `factor`,
    and all arithmetic.
    """
    terms, classes = Terms.of(loss), len(weight)
    results = losses, to_hidden, to_weight, to_bias = _results(hidden, weight, bias, factor, form)
    active = (factor != 0).any(0).nonzero().squeeze(1)
    asked = Asked()
    for name, indices in () if terms.checked else terms.indices([*teacher[:1], *beside]):
        in_range(indices if len(active) == len(hidden) else indices[active], name, classes, asked)
    asked.read()
    size, step = _sizes(hidden.device.type, classes, len(teacher) > 0)
    room = factor.new_empty(1 + (len(teacher) > 0), min(size, len(active)), classes)
    work = factor.new_empty(1 + terms.arrays, min(step, room.shape[1]), classes)
    with torch.autocast(hidden.device.type, enabled=False):
        for rows in active.split(size) if len(active) else ():
            h = hidden[rows]
            z = _project(h, room[0, : len(rows)], weight, bias)
            taught = [_project(teacher[0][rows], room[1, : len(rows)], *teacher[1:])] if teacher else []
            for first in range(0, len(rows), step):
                part = slice(first, first + step)
                at = rows[part]
                inputs = [*(v[part] for v in taught), *(x[at] for x in beside)]
                own = work[0, : len(at)]
                of_block = factor[:, at].unsqueeze(-1)
                of_block = of_block if terms.shares is None else of_block[0]
                losses[:, at] = terms.kernel(
                    own.copy_(z[part]), inputs, of_block, z[part], work[1:, : len(at)]
                )
            if form[2]:
                to_bias.add_(z.sum(0))
            if _mixed(h, weight, z.dtype):
                z = z.to(weight.dtype)
            if form[0]:
                to_hidden[rows] = _into_hidden(z, weight, to_hidden.dtype)
            if form[1]:
                _add_product(to_weight, z.T, h)
    return results


@linear_loss.register_fake
def _(hidden: Tensor, weight: Tensor, bias: Tensor | None, factor: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return _results(hidden, weight, bias, factor, rest[-1])


def _results(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, factor: Tensor, form: list[bool]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Make room for the losses, and for what else is asked for."""
    shapes = (hidden.shape, weight.shape, (0,) if bias is None else bias.shape)
    made = (factor.new_zeros(s if a else (0,)) for s, a in zip(shapes, form, strict=True))
    return torch.zeros_like(factor), *made  # type: ignore[return-value]


def _sizes(device: str, classes: int, taught: bool) -> tuple[int, int]:
    """Return how many rows a block has, and a strip of it."""
    if device == "cpu":
        block, least, step = BLOCK, LEAST, STEP
    else:
        block, least, step = BLOCK_ELSEWHERE, LEAST_ELSEWHERE, STEP_ELSEWHERE // (1 + taught)
    return max(least, block // classes), max(1, step // classes)


def _mixed(a: Tensor, b: Tensor, dtype: torch.dtype) -> bool:
    """Whether the device multiplies these two as they are and adds up in this dtype, float32."""
    halves = a.dtype == b.dtype == torch.bfloat16
    return a.is_cuda and halves and dtype == torch.float32


def _tiles(weight: Tensor, dtype: torch.dtype) -> list[slice]:
    """Cut the classes where the weight has to be converted."""
    size = len(weight) if weight.dtype == dtype else max(1, TILE // weight.shape[1])
    return [slice(first, first + size) for first in range(0, len(weight), size)]


def _project(h: Tensor, out: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute logits (R, V) in the dtype of `out`, whatever those of the factors are."""
    if _mixed(h, weight, out.dtype):
        torch.mm(h, weight.T, out_dtype=out.dtype, out=out)
    else:
        for tile in _tiles(weight, out.dtype):
            torch.mm(h.to(out.dtype), weight[tile].to(out.dtype).T, out=out[:, tile])
    return out if bias is None else out.add_(bias)


def _into_hidden(g: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    if _mixed(g, weight, dtype):
        return torch.mm(g, weight, out_dtype=dtype)
    result = g.new_zeros(len(g), weight.shape[1])
    for tile in _tiles(weight, dtype):
        result.addmm_(g[:, tile], weight[tile].to(dtype))
    return result


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    if _mixed(a, b, total.dtype):
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total.addmm_(a, b.to(total.dtype))


class LinearLoss(torch.autograd.Function):
    """sum(factor * loss), whose gradients are formed with it, or each of these terms, whose are not.

    The first backward pass hands out what was formed, scaled in place; another one computes it again, as one
    through the terms must.
    """

    @staticmethod
    def forward(
        ctx: Any,
        each: bool,
        form: list[bool],
        loss: str,
        teacher: int,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        factor: Tensor,
        *beside: Tensor,
    ) -> Tensor:
        layer = hidden, weight, bias
        tensors = factor, [*beside[:teacher]], [*beside[teacher:]]
        losses, *formed = linear_loss(*layer, *tensors, loss, [wanted and not each for wanted in form])
        ctx.save_for_backward(*layer, factor, *beside)
        ctx.loss, ctx.form, ctx.teacher = loss, form, teacher
        ctx.formed = None if each else formed
        terms = losses * factor
        return terms if each else summed(terms, 1.0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        # In a backward pass that is to be differentiated, constants would be wrong in silence.
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError(
                "create_graph=True: expected a backward pass that is not differentiated again, since the linear "
                "losses have no second derivatives; take the loss of all logits, as in "
                "cross_entropy(hidden @ linear_weight.T, targets)"
            )
        saved: tuple[Any, ...] = ctx.saved_tensors
        layer, factor, beside = saved[:3], saved[3], saved[4:]
        if ctx.formed is None:
            tensors = factor * grads[0], [*beside[: ctx.teacher]], [*beside[ctx.teacher :]]
            _, *formed = linear_loss(*layer, *tensors, ctx.loss, ctx.form)
        elif torch.compiler.is_compiling():
            formed = [gradient * grads[0] for gradient in ctx.formed]
        else:
            formed, ctx.formed = [gradient.mul_(grads[0]) for gradient in ctx.formed], None
        of_layer = (
            g.to(x.dtype) if wanted else None for g, x, wanted in zip(formed, layer, ctx.form, strict=True)
        )
        return None, None, None, None, *of_layer, None, *[None] * len(beside)


def refuse_transforms(name: str, *tensors: Tensor | None) -> None:
    """Raise in `torch.func.grad` and its like, and for tensors that carry a tangent."""
    if torch.compiler.is_compiling():
        return
    if torch._C._are_functorch_transforms_active() or any(
        x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors
    ):
        raise RuntimeError(
            f"torch.func: {name} forms its gradient in blocks, which grad, vmap, jvp and forward mode cannot "
            "take apart; use backward() or torch.autograd.grad, or the loss of all logits, as in "
            "cross_entropy(hidden @ linear_weight.T, targets)"
        )
