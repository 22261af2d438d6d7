"""A loss is a formula, and so is its gradient: what takes a formula over the rows, weighs, adds up and divides.

A formula of rows takes a `Block` and the index of its rows, and returns one loss a row, or one row of the
gradient. `reduce_rows` and `differentiate_rows` do the rest, the same for every loss. What is one number a
target (a picked probability, a single logit) needs no walk: `reduce_each` and `differentiate_each`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from . import _validate as check
from ._blocks import Formula, Index, over_rows, without_nan
from ._validate import Floats, Settings, Values

Weights: TypeAlias = NDArray[Any] | None  # None: all are one


def reduce_rows(
    formula: Formula,
    axis: int,
    weight: Weights,
    settings: Settings,
    *,
    dtype: DTypeLike | None = None,
    mass: Floats | None = None,
    **logits: Floats,
) -> Values:
    """Return the weighted losses of rows, reduced; `logits` and `axis` are those of `over_rows`.

    `mass` is what a row adds to the mean's divisor, if not its weight.
    """
    moved = next(iter(logits.values()))
    total = Reducer(moved.shape[:-1], moved.dtype if dtype is None else dtype, settings)

    def add(index: Index, losses: Floats) -> None:
        total.add(index, losses, _part(weight, index), _part(mass, index))

    over_rows(formula, add, axis, weight, **logits)
    return total.result()


def differentiate_rows(
    formula: Formula,
    axis: int,
    weight: Weights,
    settings: Settings,
    *,
    dtype: DTypeLike | None = None,
    mass: Floats | None = None,
    **logits: Floats,
) -> Floats:
    """Return the gradient of `reduce_rows`, with the classes at `axis`."""
    moved = next(iter(logits.values()))
    divisor = divisor_of(math.prod(moved.shape[:-1]), weight if mass is None else mass, settings)
    out = np.empty(moved.shape, np.promote_types(moved.dtype if dtype is None else dtype, np.float32))

    def store(index: Index, rows: Floats) -> None:
        _scale(rows, _part(weight, index), divisor)
        out[index] = rows.reshape(out[index].shape)

    over_rows(formula, store, axis, weight, **logits)
    return np.moveaxis(out, -1, axis)


def reduce_each(losses: Floats, weight: Weights, settings: Settings) -> Values:
    """Return the weighted losses of targets, reduced."""
    total = Reducer(losses.shape, losses.dtype, settings)
    with np.errstate(all="ignore"):
        total.add((), losses + 0.0, weight)  # -0.0 + 0.0 = 0.0
    return total.result()


def differentiate_each(slopes: Floats, weight: Weights, settings: Settings, dtype: DTypeLike) -> Values:
    """Return the gradient of `reduce_each`, where each loss depends on one number of `dtype`."""
    divisor = divisor_of(slopes.size, weight, settings)
    with np.errstate(all="ignore"):
        scaled = slopes if weight is None else np.where(weight > 0, slopes * weight, 0.0)
        out = np.asarray(scaled / np.float64(divisor) + 0.0)  # -0.0 + 0.0 = 0.0
        return out.astype(np.promote_types(dtype, np.float32), copy=False)[()]


def _part(values: Weights, index: Index) -> Weights:
    return None if values is None else values[index].reshape(-1)


def divisor_of(count: int, mass: Weights, settings: Settings) -> float:
    """Return what the gradient is divided by: for the mean, the sum of the weights or `denominator`."""
    reduction, denominator = settings
    if reduction != "mean":
        return 1.0
    with np.errstate(over="ignore"):
        return check.mean_divisor(float(count if mass is None else mass.sum()), denominator)


def _scale(rows: Floats, weight: Weights, divisor: float) -> None:
    """Multiply rows by weight / divisor; a weight of zero makes a row zero, whatever it holds.

    In float64, and in this order: float32 could not hold every weight and divisor, and 0 * inf is nan.
    """
    scaled = rows
    if weight is not None:
        scaled = np.multiply(rows, weight[:, None], dtype=np.float64)
        scaled[weight == 0] = 0
    if weight is not None or divisor != 1:
        np.divide(scaled, np.float64(divisor), out=rows, casting="same_kind")


class Reducer:
    """Adds up losses, block by block, and divides once: sums in float64, whatever the losses are in."""

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike, settings: Settings) -> None:
        self.dtype = np.promote_types(dtype, np.float32)
        self.reduction, self.denominator = settings
        self.each = np.empty(shape, self.dtype) if self.reduction == "none" else None
        # One sum a block, added up at the end: NumPy's pairwise sum keeps more digits than a running one.
        self.sums: list[float] = []
        self.mass = 0.0

    def add(self, index: Index, losses: Floats, weight: Weights = None, mass: Weights = None) -> None:
        """Add the losses of one block."""
        if weight is not None:
            # A weight of zero takes the target out, also where its loss is inf or nan.
            losses = np.where(weight > 0, losses * weight, 0.0)
        mass = weight if mass is None else mass
        self.mass += losses.size if mass is None else float(np.sum(mass))
        if self.each is not None:
            self.each[index] = losses.reshape(self.each[index].shape)
        else:
            self.sums.append(float(np.add.reduce(losses, axis=None, dtype=np.float64)))

    def result(self) -> Values:
        """Return what the reduction asks for."""
        if self.each is not None:
            return self.each[()]
        divisor = 1.0 if self.reduction == "sum" else check.mean_divisor(self.mass, self.denominator)
        with np.errstate(over="ignore", under="ignore"):  # a sum beyond float32 is inf
            mean: Values = self.dtype.type(np.add.reduce(self.sums) / divisor)
            return mean


# ---------------------------------------------------------------------------------------------- targets


def labelled(
    given: ArrayLike,
    name: str,
    targets: ArrayLike,
    axis: int,
    ignore_index: int | None,
    weight: ArrayLike | None,
    sample_weight: ArrayLike | None,
) -> tuple[Floats, int, NDArray[np.intp], Weights]:
    """Return the input, classes last, where they were, class indices, and what each target weighs (None: one)."""
    array, axis = check.logits_array(given, name, axis)
    labels, counts = check.class_indices(targets, "targets", array, axis, ignore_index)
    by_class = check.class_weights(weight, array.shape[axis])
    each = check.sample_weights(sample_weight, labels.shape)
    moved = np.moveaxis(array, axis, -1)
    if by_class is None and each is None:
        return moved, axis, labels, counts
    w = np.ones(labels.shape) if by_class is None else np.asarray(by_class[labels])
    with np.errstate(over="ignore", under="ignore"):
        if each is not None:
            w *= each
    if counts is not None:
        w[~counts] = 0
    return moved, axis, labels, w


def distributed(
    logits: ArrayLike,
    target_probs: ArrayLike,
    axis: int,
    weight: ArrayLike | None,
    sample_weight: ArrayLike | None,
    label_smoothing: float,
) -> tuple[Floats, int, Callable[[Index], Floats], Weights, dict[str, Any]]:
    """Return logits, classes last, where they were, each class's mass in the rows of a block, and what else reduces."""
    z, axis = check.logits_array(logits, "logits", axis)
    target = check.real_array(target_probs, "target_probs")
    hint = "; for class indices use cross_entropy" if target.ndim + 1 == z.ndim else ""
    check.same_shape(target, "target_probs", z.shape, "logits", hint)
    check.probabilities(target, "target_probs", axis, hint=lambda: check.of_soft(z, target, axis))
    target = np.moveaxis(target, axis, -1)
    by_class = check.class_weights(weight, target.shape[-1])
    each = check.sample_weights(sample_weight, target.shape[:-1])
    dtype, mass = np.result_type(z, target, np.float32), None
    if by_class is not None:
        of_row = target @ by_class
        # A row whose classes have no weight does not count.
        each = np.where(of_row > 0, 1.0 if each is None else each, 0.0)
        with np.errstate(over="ignore"):
            mass = each * of_row
    smoothing = check.held(check.setting(label_smoothing, "label_smoothing"), dtype)

    def masses(index: Index) -> Floats:
        t = target[index].reshape(-1, target.shape[-1])
        t = t.astype(dtype) if by_class is None else t * by_class
        return (1 - smoothing) * t + smoothing / t.shape[-1] * t.sum(1, keepdims=True) if smoothing else t

    return np.moveaxis(z, axis, -1), axis, masses, each, {"dtype": dtype, "mass": mass}


def binary_targets(
    logits: ArrayLike,
    targets: ArrayLike,
    sample_weight: ArrayLike | None,
    pos_weight: ArrayLike | None,
    label_smoothing: float,
) -> tuple[Floats, Floats, Floats, Floats | None]:
    """Return logits, the masses of 1 and of 0, and weights of a binary loss; logits that do not count are zero."""
    z = check.real_array(logits, "logits")
    y = check.real_array(targets, "targets", bools=True)
    check.same_shape(y, "targets", z.shape, "logits", check.of_rows(y, z, "cross_entropy"))
    y = check.probabilities(y, "targets", None, hint=lambda: check.of_binary(z, y)).astype(np.float64)
    smoothing = check.held(check.setting(label_smoothing, "label_smoothing"), z.dtype)
    # Each by itself: 1 less the mass of 1 would cancel under a small smoothing.
    y, n = ((1 - smoothing) * side + smoothing / 2 for side in (y, 1 - y))
    y = y if pos_weight is None else check.positive_weight(pos_weight, z.shape) * y
    w = check.sample_weights(sample_weight, z.shape)
    if w is not None:
        z = np.where(w > 0, z, z.dtype.type(0))
    return without_nan(z, "logits"), y, n, w
