"""Log-probabilities of chosen classes, with the entropy beside them: what policy gradients take."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.autograd import forward_ad

from xent import _validate as check
from xent.distillation import above_zero

from . import _checks as tensors
from ._blocks import CPU_BLOCK, OTHER_BLOCK, concrete, wide
from ._losses import entropy_of, hard
from ._parts import Entropy, Labels, Parts


@overload
def selected_log_probs(
    logits: Tensor,
    targets: Tensor,
    *,
    axis: int = -1,
    temperature: float = 1.0,
    ignore_index: int | None = None,
    entropy: Literal[False] = False,
) -> Tensor: ...
@overload
def selected_log_probs(
    logits: Tensor,
    targets: Tensor,
    *,
    axis: int = -1,
    temperature: float = 1.0,
    ignore_index: int | None = None,
    entropy: Literal[True],
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
    logits : Tensor of floats, shape (..., K, ...)
        Logits, the classes along `axis`.
    targets : Tensor of integers, the shape of the logits without the class axis
        Class indices in [0, K), such as the tokens that were drawn.
    axis : int, default -1
        The class axis.
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
    labels, counts = tensors.labels_of(targets, z, ignore_index, axis=axis)
    parts = chosen(temperature, entropy, z.dtype)
    live = torch.ones_like(labels, dtype=torch.bool) if counts is None else counts
    if concrete(z, labels) and forward_ad.unpack_dual(z).tangent is None:
        terms = _Terms.apply(z.reshape(-1, z.shape[-1]), labels.flatten(), live.flatten(), parts)
    else:
        terms = _plainly(z, labels, live, parts)
    found = terms.reshape(len(parts.parts), *labels.shape)
    return (-found[0], found[1]) if entropy else -found[0]


def chosen(temperature: Any, entropy: Any, dtype: torch.dtype, softcap: float | None = None) -> Parts:
    """Check the temperature and whether the entropy is asked for, and return the parts."""
    t = tensors.within(above_zero(temperature, "temperature"), "temperature", dtype)
    if not isinstance(entropy, bool):
        raise TypeError(f"entropy: expected True or False, got {check.shown(entropy)}")
    return Parts((Labels(), Entropy()) if entropy else (Labels(),), softcap, t)


def _plainly(z: Tensor, labels: Tensor, live: Tensor, parts: Parts) -> Tensor:
    """Return the terms in operations that can be differentiated and transformed."""
    z = z.to(wide(z.dtype)).masked_fill(~live.unsqueeze(-1), 0.0) / parts.temperature
    terms = [hard(0.0, z, labels), *([entropy_of(z)] if len(parts.parts) > 1 else [])]
    return torch.stack([term.masked_fill(~live, 0.0) for term in terms])


class _Terms(torch.autograd.Function):
    """The terms of each row, shape (P, N); the backward pass forms the gradient from the logits, block by block."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, labels: Tensor, live: Tensor, parts: Parts) -> Tensor:
        ctx.save_for_backward(z, labels, live)
        ctx.parts = parts
        return _walk(z, labels, live.to(wide(z.dtype)).expand(len(parts.parts), -1), parts, None)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        z, labels, live = ctx.saved_tensors
        if torch.is_grad_enabled():
            terms = _plainly(z, labels, live, ctx.parts)
            return *torch.autograd.grad(terms, z, grads[0], create_graph=True), None, None, None
        gradient = torch.empty_like(z)
        _walk(z, labels, grads[0].masked_fill(~live, 0.0), ctx.parts, gradient)
        return gradient, None, None, None


def _walk(z: Tensor, labels: Tensor, factors: Tensor, parts: Parts, gradient: Tensor | None) -> Tensor:
    """Return the terms of all rows, 0 where nothing is asked of them, and leave the gradient of their weighted sum."""
    terms = torch.zeros_like(factors, memory_format=torch.contiguous_format)
    block = CPU_BLOCK if z.device.type == "cpu" else OTHER_BLOCK
    step = max(1, block // z.shape[1])
    for first in range(0, len(z), step):
        part = slice(first, first + step)
        of_block, dead = factors[:, part], (factors[:, part] == 0).all(0)
        own = z[part].to(wide(z.dtype), copy=True).masked_fill_(dead.unsqueeze(1), 0.0)
        terms[:, part] = parts(own, [labels[part]], of_block).masked_fill_(dead, 0.0)
        if gradient is not None:
            gradient[part] = own
    return terms
