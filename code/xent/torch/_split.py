"""Cross-entropy of logits whose classes are split among ranks, as tensor parallelism leaves them."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from numpy.typing import ArrayLike
from torch import Tensor
from torch.autograd import Function

from xent._validate import Reduction, reduction_arguments, smoothing_mass

from ._blocks import summed
from ._losses import held
from ._parts import Labels, refuse_second_derivatives, refuse_transforms, row_factors
from ._shards import Shards, group_name
from ._validate import in_range, labels_of, logits_of, target_weights


def split_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    vocab_group: dist.ProcessGroup,
    *,
    weight: Tensor | ArrayLike | None = None,
    sample_weight: Tensor | ArrayLike | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
    denominator: float | None = None,
) -> Tensor:
    """Cross-entropy of logits whose classes are split among ranks; the loss is that of the whole on each.

    Parameters
    ----------
    logits : Tensor of floats, shape (..., V of this rank)
        Logits of some classes, in the order of the ranks, not necessarily as many on each.
    targets : Tensor of integers, shape (...)
        Indices into the classes of all ranks, the same on every rank.
    vocab_group : torch.distributed.ProcessGroup
        The ranks. Each makes the call.
    weight : Tensor or array_like, shape (V of this rank,), optional
        Weight >= 0 of a target by its class, split as the logits are.
    sample_weight, label_smoothing, ignore_index, reduction, denominator
        As in `cross_entropy`.

    Returns
    -------
    Tensor
        Loss in nats, the same on all ranks; its gradient is that of the rank's own logits and needs no exchange.

    Raises
    ------
    RuntimeError
        If its gradient is asked for with ``create_graph=True``, or in a transform of `torch.func`.

    Examples
    --------
    >>> import torch, torch.distributed as dist, xent.torch
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> logits = torch.tensor([[2.0, 1.0, 0.0]])
    >>> xent.torch.split_cross_entropy(logits, torch.tensor([0]), dist.group.WORLD)
    tensor(0.4076)
    >>> dist.destroy_process_group()
    """
    z, _ = logits_of(logits, "logits", -1)
    refuse_transforms("split_cross_entropy", z)
    loss = Labels(held(smoothing_mass(label_smoothing), z))
    settings = reduction_arguments(reduction, denominator)
    if not group_name(vocab_group):
        raise TypeError("vocab_group: expected a torch.distributed.ProcessGroup, got None; see cross_entropy")
    labels, counts = labels_of(targets, z, ignore_index, classes=0)
    shards = Shards(z.shape[-1], z.device, vocab_group)
    in_range(labels, "targets", shards.total)
    w = target_weights(z, sample_weight, counts)
    if weight is not None:
        by_class = shards.class_weights(weight, labels, z.shape[-1], z)
        w = by_class if w is None else w * by_class
    factor = row_factors(w, z.shape[:-1], z, settings)
    rows = z.to(factor.dtype).reshape(labels.numel(), -1)
    losses: Tensor = _Split.apply(rows, labels.flatten(), factor.flatten(), loss, shards)
    return losses.reshape(labels.shape) if reduction == "none" else summed(losses, 1.0)


class _Split(Function):
    """The loss of each row, whose gradient is formed with it."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, labels: Tensor, factor: Tensor, loss: Labels, shards: Shards) -> Tensor:
        z = z.masked_fill((factor == 0).unsqueeze(1), 0.0)
        losses = loss(z, [labels], factor, shards)
        ctx.save_for_backward(z)
        return losses.mul_(factor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        return ctx.saved_tensors[0] * grads[0].unsqueeze(1), None, None, None, None
