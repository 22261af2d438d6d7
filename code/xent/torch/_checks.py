"""Checks of tensors at the edge. What a value decides is checked where there are values: see `concrete`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xent import _validate as check

from ._reduction import Divisor, accumulator, concrete, wide

FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LABEL_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class Asked:
    """How a call reduces, and what it asks of its tensors' values, which is read at once, before they are used.

    So a GPU is waited for once; what is wrong, where something is, it is asked again.
    """

    def __init__(self, reduction: Any = "none", denominator: Any = None) -> None:
        # A traced tensor stays one, so that each value has the same graph.
        traced = isinstance(denominator, Tensor) and not (concrete(denominator) or denominator.is_meta)
        traced = traced and denominator.ndim == 0 and denominator.dtype in (*LABEL_DTYPES, *FLOAT_DTYPES)
        self.reduction, number = check.reduction_arguments(reduction, 1.0 if traced else denominator)
        self.denominator: Any = denominator if traced else number
        self.values: list[Tensor] = []
        self.answers: list[tuple[int, Callable[..., None]]] = []

    def ask(self, values: Sequence[Tensor], answer: Callable[..., None]) -> None:
        """Have `answer` called with these numbers, to refuse them."""
        self.values += values
        self.answers.append((len(values), answer))

    def refuse_where(self, wrong: Tensor, *told: Any, **how: Any) -> None:
        """As `check.refuse_where`."""

        def answer(found: bool) -> None:
            if found:
                check.refuse_where(wrong, *told, **how)

        self.ask((wrong.any(),), answer)

    def read(self, *more: Tensor) -> list[float]:
        """Have answered what was asked, and return more numbers."""
        values, self.values = [*self.values, *(x.detach() for x in more)], []
        if not values or values[0].is_cpu:
            numbers = [x.item() for x in values]
        else:  # one transfer
            numbers = torch.stack([x.to(accumulator(x)) for x in values]).tolist()
        for count, answer in self.answers:
            answer(*numbers[:count])
            numbers = numbers[count:]
        self.answers = []
        return numbers

    def divisor(self, shape: torch.Size, mass: Tensor | None) -> Divisor:
        """Read, and return what the sum of weighted losses is divided by; `mass` is what they add to the mean's."""
        if self.reduction == "mean" and not isinstance(self.denominator, Tensor) and not self.denominator:
            if mass is None:
                self.read()
                return check.mean_divisor(math.prod(shape), self.denominator)
            total = mass.sum(dtype=accumulator(mass))
            if concrete(mass):
                checked = check.mean_divisor(self.read(total)[0], self.denominator)
                return total if total.requires_grad else checked
            self.read()
            return total
        self.read()
        if isinstance(self.denominator, Tensor):  # traced; nothing over nothing is 0
            counted = torch.as_tensor(math.prod(shape) if mass is None else mass.sum())
            return torch.where((self.denominator == 0) & (counted == 0), 1.0, self.denominator)
        return None if self.reduction == "none" else self.denominator or 1.0


def tensor_of(value: Any, name: str) -> Tensor:
    """Refuse what is no dense tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(value).__name__}; for arrays use xent")
    if value.layout is not torch.strided or value.is_nested:
        layout = "nested" if value.is_nested else value.layout
        raise TypeError(f"{name}: expected a dense tensor, got layout {layout}")
    return value


def floats(value: Any, name: str, hint: str = "") -> Tensor:
    """Refuse what is no tensor of floats."""
    tensor = tensor_of(value, name)
    if tensor.dtype not in FLOAT_DTYPES:
        hint = hint or ("; labels come second, as targets" if tensor.dtype in LABEL_DTYPES else "")
        raise TypeError(f"{name}: expected a tensor of floats, got dtype {tensor.dtype}{hint}")
    return tensor


def widened(value: Any, name: str, hint: str = "") -> Tensor:
    """Return a tensor of float32 or float64."""
    tensor = floats(value, name, hint)
    return tensor.to(wide(tensor.dtype))


def logits_of(value: Any, name: str, axis: int) -> tuple[Tensor, int]:
    """Return logits in their dtype, with the classes on the last axis, and where they were."""
    tensor = floats(value, name)
    axis = check.class_axis(tensor, name, axis)
    return tensor if axis == tensor.ndim - 1 else tensor.movedim(axis, -1), axis


def labels_of(
    targets: Any,
    moved: Tensor,
    ignore_index: int | None,
    asked: Asked,
    classes: int | None = None,
    *,
    axis: int = -1,
) -> tuple[Tensor, Tensor | None]:
    """Return class indices as int64 with ignored ones set to 0, and the mask of those that count.

    `classes` says how many there are where `moved` does not, and 0 that their range is checked elsewhere;
    `axis` is where the classes were, before they were moved to the last axis.
    """
    labels = tensor_of(targets, "targets")
    expected, got = tuple(moved.shape[:-1]), tuple(labels.shape)
    if labels.dtype not in LABEL_DTYPES or got != expected:
        axis %= moved.ndim
        logits = moved.new_full((), math.nan).expand(*expected, classes) if classes else moved
        told = concrete(labels, moved) and not labels.is_complex()
        like, floats = logits.movedim(-1, axis), labels.is_floating_point()
        hint = check.fitting(labels, like, axis, floats=floats, linear=bool(classes)) if told else ""
        if labels.dtype not in LABEL_DTYPES:
            raise TypeError(f"targets: expected integer class indices, got dtype {labels.dtype}{hint}")
        raise ValueError(
            f"targets: expected shape {expected}, that of the logits without the class axis, got {got}{hint}"
        )
    same_device(labels, "targets", moved)
    labels = labels.long()
    counts = None
    if ignore_index is not None:
        counts = differ(labels, check.integer(ignore_index, "ignore_index"))
        labels = labels.masked_fill(~counts, 0)
    classes = moved.shape[-1] if classes is None else classes
    if classes:
        in_range(labels, "targets", classes, asked)
    return labels, counts


def differ(labels: Tensor, ignore_index: int) -> Tensor:
    """Which labels are not `ignore_index`, integers compared in int64: in uint8, PyTorch takes -100 for 156."""
    if not -(2**63) <= ignore_index < 2**63:
        return torch.ones_like(labels, dtype=torch.bool)
    return (labels.long() if labels.dtype in LABEL_DTYPES else labels) != ignore_index


def in_range(labels: Tensor, name: str, classes: int, asked: Asked) -> None:
    """Refuse what is no class index."""

    def answer(low: int, high: int) -> None:
        if low < 0 or high >= classes:
            hint = (lambda: check.meant(int(low), int(high), classes)) if name == "targets" else str
            wrong = (labels < 0) | (labels >= classes)
            check.refuse_where(wrong, name, f"class indices in [0, {classes})", labels, hint=hint)

    if concrete(labels) and labels.numel():
        asked.ask(labels.aminmax(), answer)


def distributions(
    value: Any, name: str, like: Tensor, other: str, axis: int, asked: Asked, hint: Callable[[], str] = str
) -> Tensor:
    """Return distributions along `axis`, in float32 or float64."""
    indices = isinstance(value, Tensor) and value.dtype in LABEL_DTYPES and value.ndim < like.ndim
    tensor = widened(value, name, "; for class indices use cross_entropy" if indices else "")
    same_shape(tensor, name, like.shape, other, like)
    slack = check.sum_tolerance(value.dtype, tensor.shape[axis])
    inside(tensor, name, asked, slack, hint=hint)

    def answer(off: float) -> None:
        if not off <= slack:  # to add up in float64, PyTorch copies all of them
            sums = tensor.sum(axis, dtype=accumulator(tensor))
            expected = check.sum_to_one("probabilities", value, axis, slack)
            wrong = (sums - 1).abs() > slack
            check.refuse_where(wrong, name, expected, sums, got="a sum of {:.10g}", hint=hint)

    if concrete(tensor) and tensor.numel():
        asked.ask(((tensor.detach().sum(axis) - 1).abs().amax(),), answer)
    return tensor


def inside(
    tensor: Tensor, name: str, asked: Asked, slack: float = 0.0, *, hint: Callable[[], str] = str
) -> None:
    """Refuse what lies outside [0, 1]."""

    def answer(low: float, high: float) -> None:
        if not (low >= 0 and high <= 1 + slack):
            wrong = ~((tensor >= 0) & (tensor <= 1 + slack))
            check.refuse_where(wrong, name, "probabilities in [0, 1]", tensor, hint=hint)

    if concrete(tensor) and tensor.numel():
        asked.ask(tensor.detach().aminmax(), answer)


def weights(
    value: Any,
    name: str,
    shape: tuple[int, ...],
    of: str,
    like: Tensor,
    asked: Asked,
    *,
    broadcast: bool = False,
    positive: bool = False,
) -> Tensor:
    """Return finite weights >= 0, or > 0, of the given shape, on the device of `like` and in its wide dtype."""
    if type(value) in (int, float):
        value = torch.tensor(float(value), dtype=torch.float64)
    elif not isinstance(value, Tensor):
        # Not torch.as_tensor: it drops masks, and refuses or warns of arrays by their memory.
        value = torch.from_numpy(check.real_array(value, name, bools=True).astype(np.float64, order="C"))
    elif tensor_of(value, name).dtype not in (*LABEL_DTYPES, *FLOAT_DTYPES, torch.bool):
        raise TypeError(f"{name}: expected real numbers or booleans, got dtype {value.dtype}")
    check.fitting_shape(tuple(value.shape), name, shape, of, broadcast)
    few: Tensor = value.to(device=like.device, dtype=wide(like.dtype))
    tensor = few.expand(shape)

    def answer(low: float, high: float) -> None:
        if not (low >= 0 and high < math.inf):
            check.refuse_where(~((tensor >= 0) & (tensor < math.inf)), name, "finite weights >= 0", tensor)
        if positive and low == 0:
            raise ValueError(f"{name}: expected finite weights > 0, got 0")

    if concrete(tensor) and few.numel():
        asked.ask(few.detach().aminmax(), answer)
    return tensor


def within(value: float, name: str, dtype: torch.dtype) -> float:
    """Return a number above zero, unless it is zero or infinite in the dtype that is computed in."""
    limits = torch.finfo(wide(dtype))
    if not limits.tiny <= value <= limits.max:
        raise ValueError(f"{name}: expected a number > 0 in the range of {wide(dtype)}, got {value}")
    return value


def cap_and_penalty(softcap: Any, z_loss: Any, dtype: torch.dtype) -> tuple[float | None, float]:
    """Return a soft cap, if there is one, and what the squared log-sum-exp is multiplied by."""
    penalty = check.setting(z_loss, "z_loss")
    cap = None if softcap is None else within(check.setting(softcap, "softcap"), "softcap", dtype)
    return cap, penalty


def target_weights(
    moved: Tensor,
    asked: Asked,
    sample_weight: Any,
    counts: Tensor | None = None,
    labels: Tensor | None = None,
    weight: Any = None,
    classes: int | None = None,
) -> Tensor | None:
    """Return what each target weighs, by its class and by itself; None if all weigh one."""
    result = None
    if weight is not None:
        result = of_labels(weight, "weight", moved, classes or moved.shape[-1], labels, asked)
    if sample_weight is not None:
        shape = tuple(moved.shape[:-1])
        of = "that of the targets"
        each = weights(sample_weight, "sample_weight", shape, of, moved, asked, broadcast=True)
        result = each if result is None else result * each
    if counts is None:
        return result
    return counts.to(wide(moved.dtype)) if result is None else result.masked_fill(~counts, 0.0)


def of_labels(
    value: Any,
    name: str,
    like: Tensor,
    classes: int,
    labels: Tensor | None,
    asked: Asked,
    of: str = "one weight a class",
) -> Tensor:
    """Return one number a class for each target, whose class may be still to be asked for."""
    assert labels is not None
    of_class = weights(value, name, (classes,), of, like, asked)
    return of_class[labels.clamp(0, classes - 1)]


def distributions_and_weights(
    t: Tensor, like: Tensor, asked: Asked, weight: Any, sample_weight: Any
) -> tuple[tuple[Tensor, ...], Tensor | None, Tensor | None]:
    """Return what stands beside the logits (the classes' weights with a row for each row), weights, and masses."""
    w = mass = target_weights(like, asked, sample_weight)
    if weight is None:
        return (t,), w, mass
    of_class = weights(weight, "weight", (t.shape[-1],), "one weight a class", like, asked)
    each = t @ of_class.to(t.dtype)
    mass = each if w is None else w * each
    w = (mass > 0).to(mass.dtype) if w is None else w.masked_fill(mass == 0, 0.0)
    return (t, of_class.expand(t.shape)), w, mass


def same_shape(tensor: Tensor, name: str, shape: torch.Size, other: str, on: Tensor, hint: str = "") -> None:
    """Refuse another shape or device."""
    check.same_shape(tensor, name, shape, other, hint)
    same_device(tensor, name, on)


def same_device(tensor: Tensor, name: str, other: Tensor) -> None:
    """Refuse another device."""
    if tensor.device != other.device:
        raise ValueError(f"{name}: expected the device of the logits, {other.device}, got {tensor.device}")


def held(value: float, like: Tensor) -> float:
    """A share, or zero if it may be zero in the dtype that is computed in, where it would make nan of inf."""
    return value if value >= torch.finfo(torch.promote_types(like.dtype, torch.float32)).tiny else 0.0
