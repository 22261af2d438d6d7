"""`xent.distillation` on tensors: the same names and meaning, differentiable with respect to the student.

The teacher is a constant: its tensors are detached, so a forgotten ``no_grad`` costs memory and changes no
gradient. As in the other losses, nan logits stay nan instead of raising. The error is that of the arrays' losses, in
epsilons of the dtype that is computed in.
"""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from xent import _validate as check
from xent import distillation as arrays
from xent._validate import Reduction
from xent.distillation import Direction, Scale

from . import _checks as tensors
from ._checks import LABEL_DTYPES, held
from ._divergence import Coarse, Divergence
from ._reduction import concrete, reduce_rows
from ._row_losses import Labels, RowLoss, Terms


def distillation_loss(
    student_logits: Tensor,
    teacher_logits: Tensor,
    *,
    temperature: float = 1.0,
    scale: Scale = "t_squared",
    direction: Direction = "forward",
    beta: float = 0.5,
    axis: int = -1,
    sample_weight: Tensor | ArrayLike | None = None,
    reduction: Reduction = "mean",
    denominator: float | Tensor | None = None,
) -> Tensor:
    """`xent.distillation.distillation_loss` on tensors; no gradient flows into the teacher's logits.

    Examples
    --------
    >>> import torch, xent.torch
    >>> z = torch.zeros(1, 2, requires_grad=True)
    >>> xent.torch.distillation_loss(z, torch.tensor([[1.0, 0.0]]), temperature=100.0).backward()
    >>> z.grad
    tensor([[-0.2500,  0.2500]])
    """
    z, v = _pair(student_logits, teacher_logits, axis)
    soft = _divergence_of(z, temperature, scale, direction, beta)
    asked = tensors.Asked(reduction, denominator)
    w = tensors.target_weights(z, asked, sample_weight)
    return reduce_rows(soft, z, (v,), w, asked.divisor(z.shape[:-1], w))


def mixed_loss(
    student_logits: Tensor,
    teacher_logits: Tensor,
    targets: Tensor,
    *,
    alpha: float = 0.5,
    temperature: float = 1.0,
    scale: Scale = "t_squared",
    direction: Direction = "forward",
    beta: float = 0.5,
    axis: int = -1,
    sample_weight: Tensor | ArrayLike | None = None,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
    denominator: float | Tensor | None = None,
) -> Tensor:
    """Mixture of the cross-entropy with the labels and the divergence from the teacher.

    The loss is (1 - alpha) (-log softmax(z)_y) + alpha times `distillation_loss`, with alpha in [0, 1]. The hard part
    has temperature 1, and both parts have the same denominator: the rows whose label counts. A row with a target of
    `ignore_index` is in neither part; a part of weight zero is left out, also where it is infinite. Other arguments
    are those of `distillation_loss` and `cross_entropy`.

    Examples
    --------
    >>> import torch, xent.torch
    >>> z, v = torch.tensor([[0.0, 0.0], [9.0, 9.0]]), torch.tensor([[2.0, 0.0], [0.0, 0.0]])
    >>> xent.torch.mixed_loss(z, v, torch.tensor([0, -100]), ignore_index=-100)
    tensor(0.5105)
    """
    alpha = check.setting(alpha, "alpha")
    z, v = _pair(student_logits, teacher_logits, axis)
    soft = _divergence_of(z, temperature, scale, direction, beta)
    asked = tensors.Asked(reduction, denominator)
    labels, counts = tensors.labels_of(targets, z, ignore_index, asked, axis=axis)
    terms, beside = mixture(held(alpha, z), soft, (v,), labels)
    w = tensors.target_weights(z, asked, sample_weight, counts)
    return reduce_rows(terms, z, beside, w, asked.divisor(z.shape[:-1], w))


def top_k_loss(
    student_logits: Tensor,
    top_log_probs: Tensor,
    top_indices: Tensor,
    *,
    axis: int = -1,
    sample_weight: Tensor | ArrayLike | None = None,
    reduction: Reduction = "mean",
    denominator: float | Tensor | None = None,
) -> Tensor:
    """`xent.distillation.top_k_loss` on tensors, with the tail as one class; the log-probabilities are constants."""
    z, axis = tensors.logits_of(student_logits, "student_logits", axis)
    name, shape = "top_log_probs", tuple(tensors.floats(top_log_probs, "top_log_probs").shape)
    if len(shape) != z.ndim:
        raise ValueError(f"{name}: expected {z.ndim} dimensions, as student_logits, got shape {shape}")
    log_p, _ = tensors.logits_of(tensors.widened(top_log_probs, name).detach(), name, axis)
    asked = tensors.Asked(reduction, denominator)
    at = _class_choices(top_indices, "top_indices", z, axis, asked)
    check.same_shape(top_indices, "top_indices", shape, name)
    tensors.same_device(log_p, "top_log_probs", z)
    masses = log_p.to(torch.promote_types(log_p.dtype, z.dtype)).exp()
    total = masses.sum(-1)
    if concrete(log_p, at):
        arrays.check_top_k(at.sort(-1).values, total, top_log_probs.dtype, asked.refuse_where)
    # What a sum over all classes misses of one is rounding.
    tail = (1 - total).clamp(min=0.0) * (at.shape[-1] < z.shape[-1])
    z = z.double() if log_p.dtype == torch.float64 else z
    w = tensors.target_weights(z, asked, sample_weight)
    return reduce_rows(Coarse(1.0, False), z, (at, masses, tail), w, asked.divisor(z.shape[:-1], w))


def mixture(
    alpha: float, soft: RowLoss, beside: tuple[Tensor, ...], labels: Tensor
) -> tuple[Terms, tuple[Tensor, ...]]:
    """Return what a share alpha of `soft` and the rest of the labels' loss are, and what stands beside the logits."""
    # A part of weight zero is left out, also where it is infinite.
    if alpha == 0:
        return Terms((Labels(),)), (labels,)
    if alpha == 1:
        return Terms((soft,)), beside
    return Terms((soft, Labels()), (alpha, 1 - alpha)), (*beside, labels)


# The checks.


def _pair(student: Any, teacher: Any, axis: int) -> tuple[Tensor, Tensor]:
    z, axis = tensors.logits_of(student, "student_logits", axis)
    hint = arrays.padding(tensors.floats(teacher, "teacher_logits"), student, axis)
    tensors.same_shape(teacher, "teacher_logits", student.shape, "student_logits", z, hint)
    v = teacher.movedim(axis, -1).detach()
    return (z.double() if v.dtype == torch.float64 else z), v


def _divergence_of(z: Tensor, temperature: Any, scale: Any, direction: Any, beta: Any) -> Divergence:
    temperature, squared, beta = arrays.divergence_settings(temperature, scale, direction, beta)
    tensors.within(temperature, "temperature", z.dtype)
    return Divergence(temperature, squared, direction, beta)


def _class_choices(value: Any, name: str, z: Tensor, axis: int, asked: tensors.Asked) -> Tensor:
    """Return some class indices for each row, moved to the last axis."""
    tensor = tensors.tensor_of(value, name)
    arrays.choices_of_rows(tensor, name, z.shape[:-1], axis, integers=tensor.dtype in LABEL_DTYPES)
    tensors.same_device(tensor, name, z)
    tensors.in_range(tensor, name, z.shape[-1], asked)
    return tensor.movedim(axis, -1).long()
