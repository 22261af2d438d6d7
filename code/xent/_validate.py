"""Checks at the edge: every public function turns its arguments into arrays here, or refuses them.

The rule of the package: nothing is clipped, renormalised, broadcast or guessed. What does not fit raises
``ValueError`` (``TypeError`` where the kind of thing is wrong) with the argument's name, what came and what
was expected.
"""

from __future__ import annotations

import math
import operator
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Reduction = Literal["none", "sum", "mean"]
Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.integer[Any]]

REDUCTIONS = ("none", "sum", "mean")

# How far a row of probabilities may sum from one, by the dtype it is stored in. Generous against what a
# softmax in that precision leaves behind (float64 arrays often hold a float32 softmax), and far below what
# logits, percentages or counts taken for probabilities would show.
SUM_TOLERANCE = {np.dtype(np.float16): 1e-2, np.dtype(np.float32): 1e-4, np.dtype(np.float64): 1e-6}


def real_array(value: ArrayLike, name: str) -> Floats:
    """Return `value` as an array of float16, float32 or float64; only integers (float64 then) are copied."""
    array = _array(value, name)
    if array.dtype.kind in "iu":
        return array.astype(np.float64)
    if array.dtype.newbyteorder("=") not in SUM_TOLERANCE:
        raise TypeError(
            f"{name}: expected real numbers (float16, float32, float64 or integers), got dtype {array.dtype}"
        )
    return array


def logits_array(value: ArrayLike, name: str, axis: int) -> tuple[Floats, int]:
    """Return logits and their normalised class axis; at least one class is needed."""
    array = real_array(value, name)
    axis = class_axis(array, name, axis)
    if array.shape[axis] == 0:
        raise ValueError(f"{name}: expected at least one class along axis {axis}, got shape {array.shape}")
    return array, axis


def class_axis(array: NDArray[Any], name: str, axis: int) -> int:
    """Return the class axis as a non-negative integer."""
    axis = integer(axis, "axis")
    if array.ndim == 0:
        raise ValueError(f"{name}: expected at least one dimension, the classes, got a single number")
    if not -array.ndim <= axis < array.ndim:
        raise ValueError(f"axis: expected an axis of {name} with shape {array.shape}, got {axis}")
    return axis % array.ndim


def class_indices(
    value: ArrayLike, name: str, shape: tuple[int, ...], classes: int, ignore_index: int | None
) -> tuple[NDArray[np.intp], NDArray[np.bool_] | None]:
    """Return targets as class indices in [0, classes), and the mask of those that count.

    The mask is None when all of them count. An ignored target comes back as 0, so that it can be used as an
    index; what is computed there must be dropped by the mask.
    """
    array = _array(value, name)
    if array.size == 0 and array.dtype.kind == "f" and not isinstance(value, np.ndarray):
        array = array.astype(np.intp)  # [] has no kind of its own; NumPy calls it float64
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"{name}: expected integer class indices, got dtype {array.dtype}"
            + ("; for target probabilities use soft_cross_entropy" if array.dtype.kind == "f" else "")
        )
    if array.shape != shape:
        raise ValueError(
            f"{name}: expected shape {shape}, the input's without its class axis, got {array.shape}"
        )
    if ignore_index is not None:
        counts = np.asarray(array != integer(ignore_index, "ignore_index"))
        if not counts.all():
            array = np.where(counts, array, array.dtype.type(0))
            return _in_range(array, name, classes), counts
    return _in_range(array, name, classes), None


def _in_range(array: Indices, name: str, classes: int) -> NDArray[np.intp]:
    if array.size and (array.min() < 0 or array.max() >= classes):
        where = first_true((array < 0) | (array >= classes))
        raise ValueError(
            f"{name}: expected class indices in [0, {classes}), got {array[where]}{at_index(where)}"
        )
    return array.astype(np.intp, copy=False)


def probabilities(value: ArrayLike, name: str, axis: int | None) -> Floats:
    """Return an array of probabilities; along `axis` (None: anywhere) they must sum to one."""
    array = real_array(value, name)
    if axis is not None:
        axis = class_axis(array, name, axis)
    # One comparison finds negatives, values above one and nan alike, since nan compares false.
    slack = 0.0 if axis is None else SUM_TOLERANCE[array.dtype.newbyteorder("=")]
    if array.size and not (array.min() >= 0 and array.max() <= 1 + slack):
        where = first_true(~((array >= 0) & (array <= 1 + slack)))
        raise ValueError(f"{name}: expected probabilities in [0, 1], got {array[where]}{at_index(where)}")
    if axis is not None:
        sums = array.sum(axis=axis, dtype=np.float64)
        wrong = np.abs(sums - 1) > slack
        if wrong.any():
            where = first_true(wrong)
            raise ValueError(
                f"{name}: expected probabilities that sum to one along axis {axis} (within {slack:g} for "
                f"{array.dtype}), got a sum of {sums[where]:.6g}{at_index(where)}"
            )
    return array


def same_shape(array: NDArray[Any], name: str, shape: tuple[int, ...], other: str) -> None:
    """Refuse to broadcast `array` against `other`."""
    if array.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}, that of {other}, got {array.shape}")


def weights(value: ArrayLike, name: str, shape: tuple[int, ...], of: str) -> Floats:
    """Return finite, non-negative weights of exactly the given shape, in float64."""
    array = real_array(value, name).astype(np.float64)
    if array.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}, {of}, got {array.shape}")
    good = (array >= 0) & (array < np.inf)
    if not good.all():
        where = first_true(~good)
        raise ValueError(f"{name}: expected finite weights >= 0, got {array[where]}{at_index(where)}")
    return array


def integer(value: Any, name: str) -> int:
    """Return `value` as an int; bools and floats are refused, even whole ones."""
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name}: expected an integer, got {value!r}")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected an integer, got {value!r}") from None


def number(value: Any, name: str, expected: str, low: float, high: float, *, closed: str = "") -> float:
    """Return `value` as a finite float inside (low, high); `closed` names the ends that belong to it."""
    if isinstance(value, (bool, np.bool_, str, bytes, np.ma.MaskedArray)) or np.ndim(value) != 0:
        raise TypeError(f"{name}: expected {expected}, got {value!r}")
    try:
        result = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: expected {expected}, got {value!r}") from None
    except OverflowError:  # an integer that no float can hold
        result = math.inf
    inside = (low < result or ("low" in closed and result == low)) and (
        result < high or ("high" in closed and result == high)
    )
    if not (math.isfinite(result) and inside):
        raise ValueError(f"{name}: expected {expected}, got {value!r}")
    return result


def reduction_arguments(reduction: Any, denominator: Any) -> tuple[Reduction, float | None]:
    """Check `reduction` and the `denominator` that may replace the mean's divisor."""
    if not isinstance(reduction, str):
        raise TypeError(f"reduction: expected one of {', '.join(map(repr, REDUCTIONS))}, got {reduction!r}")
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction: expected one of {', '.join(map(repr, REDUCTIONS))}, got {reduction!r}")
    if denominator is None:
        return reduction, None  # type: ignore[return-value]
    if reduction != "mean":
        raise ValueError(
            f"denominator: only the mean has one, got denominator={denominator!r} with {reduction=}"
        )
    return "mean", number(denominator, "denominator", "a finite number > 0", 0.0, math.inf)


def smoothing_mass(value: Any) -> float:
    """Return `label_smoothing`, the mass that is spread over all classes."""
    return number(value, "label_smoothing", "a number in [0, 1]", 0.0, 1.0, closed="low high")


def positive_weight(value: ArrayLike, shape: tuple[int, ...]) -> Floats:
    """Return `pos_weight` as a scalar, or as one weight a label, the last axis of at least two."""
    array = real_array(value, "pos_weight").astype(np.float64)
    if array.ndim and not (len(shape) >= 2 and array.shape == shape[-1:]):
        expected = f"a number or shape {shape[-1:]}, one for each label" if len(shape) >= 2 else "a number"
        raise ValueError(f"pos_weight: expected {expected}, got shape {array.shape}")
    if not ((array > 0) & (array < np.inf)).all():
        raise ValueError(f"pos_weight: expected finite weights > 0, got {value!r}")
    return array


def mean_divisor(mass: float, denominator: float | None) -> float:
    """Return what the mean divides by: the sum of the weights, or `denominator` in its place."""
    if denominator is None and mass == 0:
        raise ValueError(
            "targets: expected at least one target that counts, got none (all ignored, of weight zero, "
            "or an empty batch), so the mean is undefined; reduction='sum' or denominator= gives 0"
        )
    if denominator is None and math.isinf(mass):
        raise ValueError("weight: expected weights with a finite sum, got weights that add up to inf")
    return mass if denominator is None else denominator


def first_true(mask: NDArray[np.bool_]) -> tuple[int, ...]:
    """Return the index of the first true element."""
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(mask)), mask.shape))


def at_index(where: tuple[int, ...]) -> str:
    """Say where, for an error message; a single number needs no place."""
    if not where:
        return ""
    return f" at index {where[0] if len(where) == 1 else where}"


def _array(value: ArrayLike, name: str) -> NDArray[Any]:
    # NumPy would drop the mask, also of masked arrays in a list, and count what they hide.
    parts = value if isinstance(value, (list, tuple)) else (value,)
    if any(isinstance(part, np.ma.MaskedArray) for part in parts):
        raise TypeError(
            f"{name}: expected an array without a mask, got a masked array; select or ignore instead"
        )
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:  # ragged lists; tensors that carry a gradient
        raise TypeError(
            f"{name}: expected an array of numbers, got {type(value).__name__} ({error})"
        ) from error
