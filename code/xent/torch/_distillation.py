"""`xent.distillation` on tensors: the same names and meaning, differentiable with respect to the student.

The teacher is a constant: its tensors are detached, so a forgotten ``no_grad`` costs memory and changes no
gradient. As in the other losses, nan logits stay nan instead of raising.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from xent._validate import MOST, Reduction, at_index, integer, number, reduction_arguments, shown
from xent.distillation import TREATMENTS, Direction, Scale, Treatment, _settings

from ._losses import (
    LABEL_DTYPES,
    SUM_TOLERANCE,
    _first,
    _floats,
    _harmless,
    _held,
    _labels,
    _like,
    _logits,
    _reduce,
    _same_device,
    _tensor,
    _weights,
    cross_entropy,
    log_softmax,
    log_sum_exp,
)

__all__ = ["distillation_loss", "mixed_loss", "sample_targets", "sampled_loss", "top_k_loss"]


def distillation_loss(
    student_logits: Tensor,
    teacher_logits: Tensor,
    *,
    temperature: float = 1.0,
    scale: Scale = "t_squared",
    direction: Direction = "forward",
    axis: int = -1,
    weight: Tensor | ArrayLike | None = None,
    reduction: Reduction = "mean",
    denominator: float | None = None,
) -> Tensor:
    """Divergence between a teacher's and a student's softmax; see `xent.distillation.distillation_loss`.

    Parameters
    ----------
    student_logits : Tensor of floats, shape (..., K, ...)
        Logits of the student.
    teacher_logits : Tensor of floats, shape of `student_logits`
        Logits of the teacher; no gradient flows into them.
    temperature : float, default 1
        T > 0 divides both.
    scale : {"t_squared", "none"}, default "t_squared"
        Multiply by T^2 or not.
    direction : {"forward", "reverse"}, default "forward"
        KL(teacher || student) or KL(student || teacher).
    axis : int, default -1
        The class axis.
    weight : Tensor or array_like, shape of `student_logits` without `axis`, optional
        Weight of each row, finite and >= 0. The gradient of a row of weight zero is zero, whatever it holds.
    reduction : {"mean", "sum", "none"}, default "mean"
        sum(w l) / sum(w), sum(w l), or each w l.
    denominator : float, optional
        Replaces sum(w) in the mean.

    Returns
    -------
    Tensor
        Loss in nats (times T^2), never negative; at least float32, and the wider dtype of the two.

    Raises
    ------
    ValueError
        If shapes or devices do not match, an argument is out of range, or there is nothing to average.
    TypeError
        If the logits are not tensors of floats.

    Examples
    --------
    >>> import torch, xent.torch
    >>> z = torch.zeros(1, 2, requires_grad=True)
    >>> xent.torch.distillation_loss(z, torch.tensor([[1.0, 0.0]]), temperature=100.0).backward()
    >>> z.grad
    tensor([[-0.2500,  0.2500]])
    """
    z, v = _pair(student_logits, teacher_logits, axis)
    temperature, squared, forward = _settings(temperature, scale, direction)
    _within(temperature, "temperature", z)
    reduction, denominator = reduction_arguments(reduction, denominator)
    w, counts = _row_weights(weight, z)
    losses = _Divergence.apply(_harmless(z, counts), _harmless(v, counts), temperature, squared, forward)
    return _reduce(losses, w, None, reduction, denominator)


def mixed_loss(
    student_logits: Tensor,
    teacher_logits: Tensor,
    targets: Tensor,
    *,
    alpha: float = 0.5,
    temperature: float = 1.0,
    scale: Scale = "t_squared",
    direction: Direction = "forward",
    axis: int = -1,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
    denominator: float | None = None,
) -> Tensor:
    """Cross-entropy with the labels and divergence from the teacher; see `xent.distillation.mixed_loss`.

    Parameters
    ----------
    student_logits, teacher_logits, temperature, scale, direction, axis
        As in `distillation_loss`.
    targets : Tensor of integers, shape of `student_logits` without `axis`
        Class indices in [0, K).
    alpha : float, default 0.5
        Weight of the soft part, in [0, 1]; the hard part has 1 - alpha, and a part of weight zero is left
        out.
    ignore_index : int, optional
        Rows with this target count in neither part, nor in the mean.
    reduction : {"mean", "sum", "none"}, default "mean"
        The mean divides by the number of rows that count.
    denominator : float, optional
        Replaces that number, in both parts.

    Returns
    -------
    Tensor
        Loss in nats.

    Raises
    ------
    ValueError, TypeError
        For the reasons of `distillation_loss` and `cross_entropy`, or if `alpha` is out of range.

    Examples
    --------
    >>> import torch, xent.torch
    >>> student, teacher = torch.zeros(1, 2), torch.tensor([[2.0, 0.0]])
    >>> xent.torch.mixed_loss(student, teacher, torch.tensor([0]), alpha=0.5)
    tensor(0.5105)
    """
    alpha = number(alpha, "alpha", "a number in [0, 1]", 0.0, 1.0, closed="low high")
    z, v = _pair(student_logits, teacher_logits, axis)
    temperature, squared, forward = _settings(temperature, scale, direction)
    _within(temperature, "temperature", z)
    reduction, denominator = reduction_arguments(reduction, denominator)
    labels, counts = _labels(targets, z, ignore_index)
    z = _harmless(z, counts)
    alpha = _held(alpha, z)
    losses = z.new_zeros(z.shape[:-1])
    if alpha < 1:
        losses = losses + (1 - alpha) * cross_entropy(z, labels, reduction="none")
    if alpha > 0:
        losses = losses + alpha * _Divergence.apply(z, v, temperature, squared, forward)
    if counts is not None:
        losses = losses.masked_fill(~counts, 0.0)
    return _reduce(losses, None, counts, reduction, denominator)


def top_k_loss(
    student_logits: Tensor,
    top_log_probs: Tensor,
    top_indices: Tensor,
    *,
    treatment: Treatment = "tail",
    axis: int = -1,
    weight: Tensor | ArrayLike | None = None,
    reduction: Reduction = "mean",
    denominator: float | None = None,
) -> Tensor:
    """Divergence from the k largest probabilities of a teacher; see `xent.distillation.top_k_loss`.

    Parameters
    ----------
    student_logits : Tensor of floats, shape (..., K, ...)
        Logits of the student.
    top_log_probs : Tensor of floats, shape (..., k, ...)
        Log-probabilities of k of the K classes; their exponentials sum to at most one. They are constants.
    top_indices : Tensor of integers, shape of `top_log_probs`
        Which classes these are, distinct in each row.
    treatment : {"tail", "truncated", "renormalised", "renormalised_both"}, default "tail"
        What stands in for the classes that are missing.
    axis : int, default -1
        The class axis, in all three.
    weight : Tensor or array_like, shape of `student_logits` without `axis`, optional
        Weight of each row; zero takes a row out.
    reduction : {"mean", "sum", "none"}, default "mean"
        sum(w l) / sum(w), sum(w l), or each w l.
    denominator : float, optional
        Replaces sum(w) in the mean.

    Returns
    -------
    Tensor
        Loss in nats; "truncated" can be negative.

    Raises
    ------
    ValueError, TypeError
        For the reasons of `xent.distillation.top_k_loss`, or if devices do not match.

    Examples
    --------
    >>> import torch, xent.torch
    >>> p = torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64)
    >>> top, indices = p.log().topk(2)
    >>> z = p.log().requires_grad_()
    >>> xent.torch.top_k_loss(z, top, indices, treatment="truncated").backward()
    >>> z.grad
    tensor([[-0.1000, -0.0600,  0.1200,  0.0400]], dtype=torch.float64)
    """
    if not isinstance(treatment, str) or treatment not in TREATMENTS:
        raise ValueError(
            f"treatment: expected one of {', '.join(map(repr, TREATMENTS))}, got {shown(treatment)}"
        )
    z, axis = _logits(student_logits, "student_logits", axis)
    if _floats(top_log_probs, "top_log_probs").ndim != z.ndim:
        raise ValueError(
            f"top_log_probs: expected {z.ndim} dimensions, as student_logits, got shape "
            f"{tuple(top_log_probs.shape)}"
        )
    log_p, _ = _logits(top_log_probs, "top_log_probs", axis)
    log_p = log_p.detach()
    at = _class_choices(top_indices, "top_indices", z, axis)
    if at.shape != log_p.shape:
        raise ValueError(
            f"top_indices: expected the shape of top_log_probs, {tuple(top_log_probs.shape)}, "
            f"got {tuple(top_indices.shape)}"
        )
    _same_device(log_p, "top_log_probs", z)
    ordered = at.sort(-1).values
    repeated = (ordered[..., 1:] == ordered[..., :-1]).any(-1)
    if repeated.any():
        raise ValueError(
            f"top_indices: expected distinct classes, got a repeated one{at_index(_first(repeated))}"
        )
    slack = SUM_TOLERANCE[top_log_probs.dtype]
    dtype = torch.promote_types(z.dtype, log_p.dtype)
    log_p = log_p.to(dtype)
    mass = log_p.exp().sum(-1)
    wrong = ~(mass <= 1 + slack)
    if wrong.any():
        where = _first(wrong)
        raise ValueError(
            f"top_log_probs: expected log-probabilities whose exponentials sum to at most one (within "
            f"{slack:g} for {top_log_probs.dtype}), got a sum of {mass[where].item():.6g}{at_index(where)}"
        )
    if treatment.startswith("renormalised") and (log_p.amax(-1) == -math.inf).any():
        where = _first(log_p.amax(-1) == -math.inf)
        raise ValueError(f"top_log_probs: expected a sum above 0 to renormalise by, got 0{at_index(where)}")
    reduction, denominator = reduction_arguments(reduction, denominator)
    w, counts = _row_weights(weight, z)

    log_q = log_softmax(_harmless(z, counts).to(dtype))
    chosen = log_q.gather(-1, at)
    if treatment.startswith("renormalised"):
        log_p = torch.log_softmax(log_p, -1)
    if treatment == "renormalised_both":
        chosen = log_softmax(chosen)
    losses = _terms(log_p, chosen).sum(-1)
    if treatment == "tail" and at.shape[-1] < z.shape[-1]:
        rest = (1 - mass).clamp(min=0.0).log()
        losses = losses + _terms(rest, log_sum_exp(log_q.scatter(-1, at, -math.inf)))
    return _reduce(losses, w, None, reduction, denominator)


def sample_targets(
    teacher_logits: Tensor,
    samples: int,
    generator: torch.Generator | None = None,
    *,
    proposal_temperature: float = 1.0,
    axis: int = -1,
) -> tuple[Tensor, Tensor]:
    """Draw classes from a teacher, with unbiased weights; see `xent.distillation.sample_targets`.

    Parameters
    ----------
    teacher_logits : Tensor of floats, shape (..., K, ...)
        Logits of the teacher.
    samples : int
        How many draws n each row gets, with replacement.
    generator : torch.Generator, optional
        Where the draws come from, on the device of the logits; PyTorch's own by default.
    proposal_temperature : float, default 1
        Draw from softmax(v / tau), and weigh by the ratio to softmax(v).
    axis : int, default -1
        The class axis.

    Returns
    -------
    indices : Tensor of int64, shape (..., n, ...)
        Classes, repeated as often as they were drawn.
    sample_weights : Tensor, shape of `indices`
        Their weights, 1/n each where tau is 1.

    Raises
    ------
    ValueError
        If `samples` or `proposal_temperature` is not positive, or a row of logits has no softmax.
    TypeError
        If an argument is of the wrong kind.

    Examples
    --------
    >>> import torch, xent.torch
    >>> xent.torch.sample_targets(torch.tensor([[0.0, -float("inf")]]), 3)
    (tensor([[0, 0, 0]]), tensor([[0.3333, 0.3333, 0.3333]]))
    """
    v, axis = _logits(teacher_logits, "teacher_logits", axis)
    v = v.detach()
    samples = integer(samples, "samples")
    if not 1 <= samples <= MOST:
        raise ValueError(f"samples: expected at least one draw, at most {MOST:,}, got {shown(samples)}")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator: expected a torch.Generator, got {type(generator).__name__}")
    tau = number(proposal_temperature, "proposal_temperature", "a finite number > 0", 0.0, math.inf)
    _within(tau, "proposal_temperature", v)
    top = v.amax(-1, keepdim=True)
    if not top.isfinite().all():  # amax passes nan on
        where = _first(~top.isfinite().squeeze(-1))
        raise ValueError(f"teacher_logits: expected rows that have a softmax, got none{at_index(where)}")
    log_p = torch.log_softmax(v, -1)
    log_r = torch.log_softmax((v - top) / tau, -1)
    flat = log_r.exp().reshape(-1, v.shape[-1])
    drawn = torch.multinomial(flat, samples, replacement=True, generator=generator)
    indices = drawn.reshape(*v.shape[:-1], samples)
    weights = (log_p - log_r).gather(-1, indices).exp() / samples
    return indices.movedim(-1, axis), weights.movedim(-1, axis)


def sampled_loss(
    student_logits: Tensor,
    indices: Tensor,
    sample_weights: Tensor,
    *,
    axis: int = -1,
    weight: Tensor | ArrayLike | None = None,
    reduction: Reduction = "mean",
    denominator: float | None = None,
) -> Tensor:
    """Cross-entropy with sampled targets; see `xent.distillation.sampled_loss`.

    Parameters
    ----------
    student_logits : Tensor of floats, shape (..., K, ...)
        Logits of the student.
    indices : Tensor of integers, shape (..., n, ...)
        Sampled classes; a class may occur more than once.
    sample_weights : Tensor of floats, shape of `indices`
        Their weights, finite and >= 0. They are constants.
    axis : int, default -1
        The class axis, in all three.
    weight : Tensor or array_like, shape of `student_logits` without `axis`, optional
        Weight of each row; zero takes a row out.
    reduction : {"mean", "sum", "none"}, default "mean"
        sum(w l) / sum(w), sum(w l), or each w l.
    denominator : float, optional
        Replaces sum(w) in the mean.

    Returns
    -------
    Tensor
        Loss in nats.

    Raises
    ------
    ValueError, TypeError
        For the reasons of `xent.distillation.sampled_loss`, or if devices do not match.

    Examples
    --------
    >>> import torch, xent.torch
    >>> indices, weights = torch.tensor([[0, 0, 1]]), torch.tensor([[0.5, 0.25, 0.25]])
    >>> xent.torch.sampled_loss(torch.zeros(1, 2), indices, weights)
    tensor(0.6931)
    """
    z, axis = _logits(student_logits, "student_logits", axis)
    at = _class_choices(indices, "indices", z, axis)
    given = _tensor(sample_weights, "sample_weights")
    _same_device(given, "sample_weights", z)
    masses = _weights(given.detach(), "sample_weights", tuple(indices.shape), "that of indices", z)
    masses = masses.movedim(axis, -1)
    reduction, denominator = reduction_arguments(reduction, denominator)
    w, counts = _row_weights(weight, z)
    chosen = log_softmax(_harmless(z, counts)).gather(-1, at)
    losses = (-masses * torch.where(masses > 0, chosen, 0.0)).sum(-1)
    return _reduce(losses, w, None, reduction, denominator)


# The arithmetic; see xent.distillation for why nothing cancels.


class _Divergence(torch.autograd.Function):
    """KL of the tempered softmaxes, classes last: values by terms that are all >= 0, gradients by log p/q."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, v: Tensor, temperature: float, squared: bool, forward: bool) -> Tensor:
        first, second = (v, z) if forward else (z, v)
        a, b, d = _compare(first, second, temperature)

        scale = temperature if squared else 1.0
        near = d.abs() < 1
        small = torch.where(near, d, 0.0)
        series = torch.zeros_like(d)
        for n in range(20, 1, -1):
            series = 1 / math.factorial(n) - small * series
        far = a * d - a + b
        return torch.where(near & (a > 0), a * (scale * small) ** 2 * series, scale * (scale * far)).sum(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        z, v, ctx.temperature, ctx.squared, ctx.forwards = inputs
        ctx.save_for_backward(z, v)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        z, v = ctx.saved_tensors
        factor = ctx.temperature if ctx.squared else 1 / ctx.temperature
        if ctx.forwards:
            p, q, d = _compare(v, z, ctx.temperature)
            # Close to each other, q - p has the digits of q only: p (q/p - 1) has those of the difference.
            near = (d.abs() < 1) & (p > 0)
            by_z = torch.where(near, p * torch.where(near, -d, 0.0).expm1(), q - p)
        else:
            q, _, d = _compare(z, v, ctx.temperature)
            by_z = q * (d - (q * d).sum(-1, keepdim=True))
        return grads[0].unsqueeze(-1) * (factor * by_z), None, None, None, None


def _compare(first: Tensor, second: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return a = softmax(first / T), b = softmax(second / T) and d = log(a / b), finite where a is zero."""
    log_a, log_b = _tempered(first, temperature), _tempered(second, temperature)
    a, b = log_a.exp(), log_b.exp()
    d = torch.where(a > 0, log_a - log_b, 0.0)
    top = second.argmax(-1, keepdim=True)
    gap = first - second
    apart = gap.gather(-1, top)
    one, other = first - first.gather(-1, top), second - second.gather(-1, top)
    shifted = gap.abs() + apart.abs() > one.abs() + other.abs()
    x = torch.where(shifted, one - other, gap - apart) / temperature
    x = torch.where(first.isneginf() & second.isneginf(), 0.0, x)
    close = (x.abs() < 1).all(-1, keepdim=True)
    x = torch.where(close, x, 0.0)
    return a, b, torch.where(close & (a > 0), x - (b * x.expm1()).sum(-1, keepdim=True).log1p(), d)


def _tempered(x: Tensor, temperature: float) -> Tensor:
    """Return log softmax(x / T), with the maximum taken off before a small T can overflow."""
    return torch.log_softmax((x - x.detach().amax(-1, keepdim=True)) / temperature, -1)


def _terms(log_a: Tensor, log_b: Tensor) -> Tensor:
    """Return a (log a - log b) for a constant a, with 0 log 0 = 0 in the value and in the gradient."""
    a = log_a.exp()
    return a * torch.where(a > 0, log_a - log_b, 0.0)


# The checks.


def _pair(student: Any, teacher: Any, axis: int) -> tuple[Tensor, Tensor]:
    z, axis = _logits(student, "student_logits", axis)
    _like(_floats(teacher, "teacher_logits"), "teacher_logits", student.shape, "student_logits", z)
    v, _ = _logits(teacher, "teacher_logits", axis)
    dtype = torch.promote_types(z.dtype, v.dtype)
    return z.to(dtype), v.detach().to(dtype)


def _within(temperature: float, name: str, z: Tensor) -> None:
    """Refuse a temperature that is zero or infinite in the dtype of the logits."""
    limits = torch.finfo(z.dtype)
    if not limits.tiny <= temperature <= limits.max:
        raise ValueError(f"{name}: expected a number > 0 in the range of {z.dtype}, got {temperature!r}")


def _row_weights(weight: Any, z: Tensor) -> tuple[Tensor | None, Tensor | None]:
    if weight is None:
        return None, None
    w = _weights(weight, "weight", tuple(z.shape[:-1]), "one weight a row", z)
    return w, w > 0


def _class_choices(value: Any, name: str, z: Tensor, axis: int) -> Tensor:
    """Return some class indices for each row, moved to the last axis."""
    tensor = _tensor(value, name)
    if tensor.dtype not in LABEL_DTYPES:
        raise TypeError(f"{name}: expected integer class indices, got dtype {tensor.dtype}")
    if tensor.ndim != z.ndim or tensor.movedim(axis, -1).shape[:-1] != z.shape[:-1]:
        raise ValueError(
            f"{name}: expected the shape of student_logits but for the class axis, with rows of shape "
            f"{tuple(z.shape[:-1])}, got shape {tuple(tensor.shape)}"
        )
    if tensor.shape[axis] == 0:
        raise ValueError(f"{name}: expected at least one class in each row, got shape {tuple(tensor.shape)}")
    _same_device(tensor, name, z)
    wrong = (tensor < 0) | (tensor >= z.shape[-1])
    if wrong.any():
        where = _first(wrong)
        got = tensor[where].item()
        raise ValueError(f"{name}: expected class indices in [0, {z.shape[-1]}), got {got}{at_index(where)}")
    return tensor.movedim(axis, -1).long()
