"""What is kept of a teacher in the place of its logits: its most probable classes, or some that were drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from xent._validate import MOST, integer, setting, shown, sum_tolerance

from . import _checks as tensors
from ._checks import LABEL_DTYPES
from ._reduction import concrete


@dataclass(frozen=True)
class TopK:
    """k classes of a teacher for each row, their probabilities, and the mass of all others.

    Parameters
    ----------
    indices : Tensor of integers, shape (..., k)
        Which classes, distinct in each row.
    tail : Tensor of float32 or float64, shape (...)
        Mass of all other classes. As a mass, and not in two bytes: what is left of 1 minus rounded probabilities
        is mostly rounding where a teacher is sure.
    probs : Tensor of floats, shape (..., k)
        The classes' probabilities. With `tail` they sum to one.
    classes : int, optional
        How many classes the teacher has; a student has to have as many.
    """

    indices: Tensor
    tail: Tensor
    probs: Tensor
    classes: int | None = None


def top_k_of_teacher(teacher_logits: Tensor, k: int, *, temperature: float = 1.0, axis: int = -1) -> TopK:
    """Return a teacher's `k` most probable classes, with the mass of the others, to be kept in place of its logits.

    The logits have shape (..., K, ...), with the classes along `axis`, which in the result is the last one. T > 0
    divides them: `linear_distillation_loss` has to be given the same `temperature`. Probabilities are in float32, or
    float64 for logits in it; the tail is summed itself.

    Examples
    --------
    >>> import torch, xent.torch
    >>> cache = xent.torch.top_k_of_teacher(torch.tensor([[0.0, 30.0, 1.0, 0.0]]), 2)
    >>> cache.indices, cache.tail
    (tensor([[1, 2]]), tensor([1.8715e-13]))
    """
    name = "teacher_logits"
    v, _ = tensors.logits_of(tensors.widened(teacher_logits, name).detach(), name, axis)
    if not 1 <= integer(k, "k") <= v.shape[-1]:
        raise ValueError(f"k: expected a number of classes from 1 to {v.shape[-1]}, got {shown(k)}")
    t = tensors.within(setting(temperature, "temperature"), "temperature", v.dtype)
    probs = torch.softmax((v - v.amax(-1, keepdim=True)) / t, -1)
    indices = v.topk(k, -1).indices  # probabilities may underflow, or be alike at a high temperature
    tail = probs.scatter(-1, indices, 0.0).sum(-1)
    return TopK(indices, tail, probs.gather(-1, indices), classes=v.shape[-1])


def masses_of(
    cache: Any, hidden: Tensor, weight: Tensor | None, classes: int, asked: tensors.Asked
) -> tuple[Tensor, ...]:
    """Check a cache of top classes, and return its indices, masses and tail with a row for each row."""
    name, rows = "teacher_top_k", hidden.shape[:-1]
    if not isinstance(cache, TopK):
        raise TypeError(f"{name}: expected an xent.torch.TopK, got {type(cache).__name__}")
    if cache.classes is not None and integer(cache.classes, f"{name}: classes") != classes:
        raise ValueError(
            f"{name}: expected a cache of the student's vocabulary, {classes:,} classes, got one of "
            f"{cache.classes:,}; if only padding differs, slice the larger head, or make the cache of sliced logits"
        )
    indices, tail = (tensors.tensor_of(x, name).detach() for x in (cache.indices, cache.tail))
    masses = tensors.widened(cache.probs, name).detach()
    if indices.dtype not in LABEL_DTYPES:
        raise TypeError(f"{name}: expected integer class indices, got dtype {indices.dtype}")
    if tail.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{name}: expected a tail in float32 or float64, got {tail.dtype}")
    if indices.ndim != hidden.ndim or indices.shape[:-1] != rows or not 1 <= indices.shape[-1] <= MOST:
        expected = ", ".join([*map(str, rows), "k"])
        raise ValueError(f"{name}: expected indices of shape ({expected}), got {tuple(indices.shape)}")
    tensors.same_device(indices, name, hidden)
    for value, what, shape in ((masses, "probs", indices.shape), (tail, "tail", rows)):
        tensors.same_device(value, name, hidden)
        if value.shape != shape:
            raise ValueError(f"{name}: expected a {what} of shape {tuple(shape)}, got {tuple(value.shape)}")
    indices, k = indices.long(), indices.shape[-1]
    if weight is not None:  # what rows hold that do not count is not looked at
        dead = weight <= 0
        indices = torch.where(dead.unsqueeze(-1), torch.arange(k, device=indices.device), indices)
        masses, tail = masses.masked_fill(dead.unsqueeze(-1), 0.0), tail.masked_fill(dead, 1.0)
    tensors.in_range(indices, name, classes, asked)
    if concrete(indices, masses, tail):
        ordered = indices.sort(-1).values
        repeated = (ordered[..., 1:] == ordered[..., :-1]).any(-1)
        asked.refuse_where(repeated, name, "distinct classes", got="a repeated one")
        dtype = cache.probs.dtype
        slack = sum_tolerance(dtype, k)
        tensors.inside(masses, name, asked, slack)
        tensors.inside(tail, name, asked)
        total = masses.sum(-1, dtype=tail.dtype) + tail
        expected = f"masses that sum to one with the tail (within {slack:.2g} for {dtype})"
        asked.refuse_where(~((total - 1).abs() <= slack), name, expected, total, got="a sum of {:.10g}")
    return indices.reshape(-1, k), masses.reshape(-1, k), tail.reshape(-1)
