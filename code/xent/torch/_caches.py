"""What is kept of a teacher in the place of its logits: its most probable classes, or some that were drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from xent._validate import MOST, integer, shown, sum_tolerance
from xent.distillation import above_zero

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
    """Return a teacher's k most probable classes, with the mass of the others, to be kept in place of its logits.

    Parameters
    ----------
    teacher_logits : Tensor of floats, shape (..., K, ...)
        Logits of the teacher.
    k : int
        How many classes to keep, up to K.
    temperature : float, default 1
        T > 0 divides the logits; `linear_distillation_loss` has to be given the same.
    axis : int, default -1
        The class axis; in the result it is the last one.

    Returns
    -------
    TopK
        With probabilities in float32, or float64 for logits in it; the tail is summed itself.

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
    t = tensors.within(above_zero(temperature, "temperature"), "temperature", v.dtype)
    probs = torch.softmax((v - v.amax(-1, keepdim=True)) / t, -1)
    indices = v.topk(k, -1).indices  # probabilities may underflow, or be alike at a high temperature
    tail = probs.scatter(-1, indices, 0.0).sum(-1)
    return TopK(indices, tail, probs.gather(-1, indices), classes=v.shape[-1])


def masses_of(
    cache: Any, hidden: Tensor, weight: Tensor | None, classes: int, asked: tensors.Asked
) -> tuple[Tensor, ...]:
    """Check a cache of top classes, and return its indices, masses and tail with a row for each row."""
    if not isinstance(cache, TopK):
        raise TypeError(f"teacher_top_k: expected an xent.torch.TopK, got {type(cache).__name__}")
    name = "teacher_top_k"
    if cache.classes is not None and integer(cache.classes, f"{name}: classes") != classes:
        raise ValueError(
            f"{name}: expected a cache of the student's vocabulary, {classes:,} classes, got one of "
            f"{cache.classes:,}; if only padding differs, slice the larger head, or make the cache of sliced logits"
        )
    indices = _indices(cache.indices, name, hidden)
    values = tensors.floats(cache.probs, name).detach()
    tail = tensors.tensor_of(cache.tail, name).detach()
    if tail.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{name}: expected a tail in float32 or float64, got {tail.dtype}")
    for value, what, shape in ((values, "probs", indices.shape), (tail, "tail", indices.shape[:-1])):
        tensors.same_device(value, name, hidden)
        if value.shape != shape:
            raise ValueError(f"{name}: expected a {what} of shape {tuple(shape)}, got {tuple(value.shape)}")
    live = _live(weight, hidden)
    tensors.in_range(indices.masked_fill(~live.unsqueeze(-1), 0), name, classes, asked)
    masses = tensors.widened(values, name)
    if concrete(indices, masses, tail):
        ordered = indices.sort(-1).values
        repeated = (ordered[..., 1:] == ordered[..., :-1]).any(-1) & live
        asked.refuse_where(repeated, name, "distinct classes", got="a repeated one")
        slack = sum_tolerance(values.dtype, indices.shape[-1])
        tensors.inside(masses.masked_fill(~live.unsqueeze(-1), 0.0), name, asked, slack)
        tensors.inside(tail.masked_fill(~live, 0.0), name, asked)
        total = masses.sum(-1, dtype=tail.dtype) + tail
        wrong = ~((total - 1).abs() <= slack) & live
        expected = f"masses that sum to one with the tail (within {slack:.2g} for {values.dtype})"
        asked.refuse_where(wrong, name, expected, total, got="a sum of {:.10g}")
    return indices.reshape(-1, indices.shape[-1]), masses.reshape(-1, indices.shape[-1]), tail.reshape(-1)


def samples_of(
    samples: Any, hidden: Tensor, weight: Tensor | None, classes: int, asked: tensors.Asked
) -> tuple[Tensor, ...]:
    """Check sampled classes and their weights, and return them with a row for each row."""
    name = "teacher_samples"
    if not isinstance(samples, tuple) or len(samples) != 2:
        raise TypeError(f"{name}: expected two tensors, indices and weights, got {shown(samples)}")
    indices = _indices(samples[0], name, hidden)
    given = tensors.tensor_of(samples[1], name).detach()
    tensors.same_device(given, name, hidden)
    dead = ~_live(weight, hidden).unsqueeze(-1)
    tensors.in_range(indices.masked_fill(dead, 0), name, classes, asked)
    if given.shape == indices.shape:
        given = given.masked_fill(dead, 0)
    masses = tensors.weights(given, name, tuple(indices.shape), "that of the indices", hidden, asked)
    return tuple(x.reshape(-1, indices.shape[-1]) for x in (indices, masses))


def _indices(value: Any, name: str, hidden: Tensor) -> Tensor:
    indices, rows = tensors.tensor_of(value, name), hidden.shape[:-1]
    if indices.dtype not in LABEL_DTYPES:
        raise TypeError(f"{name}: expected integer class indices, got dtype {indices.dtype}")
    if indices.ndim != hidden.ndim or indices.shape[:-1] != rows or not 1 <= indices.shape[-1] <= MOST:
        expected = ", ".join([*map(str, rows), "k"])
        raise ValueError(f"{name}: expected indices of shape ({expected}), got {tuple(indices.shape)}")
    tensors.same_device(indices, name, hidden)
    return indices.long()


def _live(weight: Tensor | None, hidden: Tensor) -> Tensor:
    """Which rows count."""
    return hidden.new_ones(hidden.shape[:-1], dtype=torch.bool) if weight is None else weight > 0
