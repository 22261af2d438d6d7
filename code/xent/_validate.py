"""Checks at the edge: every public function turns its arguments into arrays here, or refuses them.

The rule of the package: nothing is clipped, renormalised or guessed, and only weights are broadcast. What
does not fit raises ``ValueError`` (``TypeError`` where the kind of thing is wrong) with the argument's name,
what came and what was expected.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

F = TypeVar("F", bound=Callable[..., Any])
Reduction = Literal["none", "sum", "mean"]
Settings: TypeAlias = tuple[Reduction, float | None]  # `reduction` and `denominator`, checked
Each: TypeAlias = Literal["none"]
Total: TypeAlias = Literal["sum", "mean"]
Floats = NDArray[np.floating[Any]]
Number: TypeAlias = np.floating[Any]
#: What functions of arrays return: a number, where there is one target or the losses are reduced, or an array of them.
#: A loss says which by overloads on `reduction`; that of one target, which is a number too, passes for an array there.
Values: TypeAlias = Number | Floats
Indices = NDArray[np.integer[Any]]

REDUCTIONS = ("none", "sum", "mean")
PREDICTIONS_FIRST = "; the predictions come first, and then the targets"
LOGITS, BINARY_LOGITS = "; for logits use cross_entropy", "; for logits use binary_cross_entropy"
ONE_NUMBER = (
    "; for one number a target there are binary_cross_entropy (logits) and binary_log_loss (probabilities)"
)

# How far a row of probabilities may sum from one, by the dtype it is stored in. Generous against what a
# softmax in that precision leaves behind (float64 arrays often hold a float32 softmax), and far below what
# logits, percentages or counts taken for probabilities would show.
SUM_TOLERANCE = {"float16": 1e-2, "bfloat16": 5e-2, "float32": 1e-4, "float64": 1e-6}
# The rounding errors of a sum of K terms add up like a random walk. What they were when the probabilities
# were made, the dtype does not tell, but no softmax is computed in less than float32: half precision is
# widened, and a row of 128,256 classes in float64 that sums to 1.000004 was one in float32. At that size
# four standard deviations are 1.7e-4; torch's softmax was off by 2e-5 at most.
ROUNDING_OF_A_SUM = 4 * 2.0**-23


def sum_tolerance(dtype: Any, classes: int) -> float:
    """Return how far `classes` probabilities of a NumPy or PyTorch dtype may sum from one."""
    name = str(dtype).removeprefix("torch.")
    return max(SUM_TOLERANCE[name], ROUNDING_OF_A_SUM * math.sqrt(classes))


# What a setting of one number has to be: in words, its range, and which of the range's ends belong to it.
SETTINGS: dict[str, tuple[str, float, float, str]] = {
    **dict.fromkeys(("gamma", "z_loss", "denominator"), ("a finite number >= 0", 0.0, math.inf, "low")),
    **dict.fromkeys(("temperature", "softcap"), ("a finite number > 0", 0.0, math.inf, "")),
    **dict.fromkeys(("label_smoothing", "alpha"), ("a number in [0, 1]", 0.0, 1.0, "low high")),
    "beta": ("a number in (0, 1)", 0.0, 1.0, ""),
    "eps": ("a number in [0, 1/2)", 0.0, 0.5, "low"),
    "q": ("a probability in [0, 1]", 0.0, 1.0, "low high"),
}
# What is asked for by a count: beyond it, memory ends before the array does.
MOST = 10**9
# Items that share a divisor. Beyond it the bias, about one in a batch, is below the rounding of the result.
MOST_SHARING = 10**12


def real_array(value: ArrayLike, name: str, *, bools: bool = False) -> Floats:
    """Return `value` as an array of float16, float32 or float64; integers (and bools) become float64."""
    array = any_array(value, name)
    if array.dtype.kind in "iu" or (bools and array.dtype.kind == "b"):
        return array.astype(np.float64)
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        raise TypeError(
            f"{name}: expected real numbers (float16, float32, float64 or integers), got dtype {array.dtype}"
        )
    return array


def logits_array(value: ArrayLike, name: str, axis: int) -> tuple[Floats, int]:
    """Return logits and their normalised class axis; at least one class is needed."""
    array = real_array(value, name)
    return array, class_axis(array, name, axis)


def class_indices(
    value: ArrayLike, name: str, like: Floats, axis: int, ignore_index: int | None, *, hints: bool = True
) -> tuple[NDArray[np.intp], NDArray[np.bool_] | None]:
    """Return targets as class indices, and the mask of those that count.

    `like` is what they are the targets of, with its classes at `axis`. The mask is None when all of them count. An
    ignored target comes back as 0, so that it can be used as an index; what is computed there must be dropped by
    the mask. `hints` says whether what would have fitted is a loss's to give.
    """
    array = any_array(value, name)
    if array.size == 0 and array.dtype.kind == "f" and isinstance(value, (list, tuple)):
        array = array.astype(np.intp)  # [] has no kind of its own; NumPy calls it float64
    shape, classes = like.shape[:axis] + like.shape[axis + 1 :], like.shape[axis]
    fits = array.dtype.kind in "iu" and array.shape == shape
    told = not fits and hints and array.dtype.kind in "biuf"
    hint = fitting(array, like, axis, floats=array.dtype.kind == "f") if told else ""
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name}: expected integer class indices, got dtype {array.dtype}{hint}")
    if not fits:
        raise ValueError(
            f"{name}: expected shape {shape}, the input's without its class axis, got {array.shape}{hint}"
        )
    counts = None
    if ignore_index is not None:
        kept = np.asarray(array != integer(ignore_index, "ignore_index"))
        if not kept.all():
            array, counts = np.where(kept, array, array.dtype.type(0)), kept
    return in_range(array, name, classes, hints), counts


def in_range(array: Indices, name: str, classes: int, hints: bool) -> NDArray[np.intp]:
    """Refuse what is no class index."""
    if array.size and (array.min() < 0 or array.max() >= classes):
        hint = (lambda: meant(int(array.min()), int(array.max()), classes)) if hints else str
        wrong = (array < 0) | (array >= classes)
        refuse_where(wrong, name, f"class indices in [0, {classes})", array, hint=hint)
    return array.astype(np.intp, copy=False)


# What follows takes arrays and tensors alike: with these operators both mean the same.


def named_axis(function: F) -> F:
    """Let a function, where PyTorch's has `dim`, say what that is called here."""

    @functools.wraps(function)
    def called(*given: Any, **named: Any) -> Any:
        if "dim" in named:
            raise TypeError(f"axis: expected the class axis under this name, got dim={shown(named['dim'])}")
        return function(*given, **named)

    return cast(F, called)


def class_axis(array: Any, name: str, axis: int) -> int:
    """Return the class axis as a non-negative integer; at least one class is needed."""
    axis, shape = integer(axis, "axis"), tuple(array.shape)
    if not shape:
        raise ValueError(f"{name}: expected at least one dimension, the classes, got a single number")
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"axis: expected an axis of {name} with shape {shape}, got {shown(axis)}")
    if shape[axis] == 0:
        raise ValueError(
            f"{name}: expected at least one class along axis {axis % len(shape)}, got shape {shape}"
        )
    return axis % len(shape)


def fitting_shape(got: tuple[int, ...], name: str, shape: tuple[int, ...], of: str, broadcast: bool) -> None:
    """Refuse weights of another shape, or one that does not broadcast to it."""
    padded = (1,) * (len(shape) - len(got)) + got
    alike = len(padded) == len(shape) and all(a in (1, b) for a, b in zip(padded, shape, strict=True))
    if got != shape and not (broadcast and alike):
        expected = f"a shape that broadcasts to {shape}" if broadcast else f"shape {shape}"
        raise ValueError(f"{name}: expected {expected}, {of}, got {got}")


def same_shape(array: Any, name: str, shape: tuple[int, ...], other: str, hint: str = "") -> None:
    """Refuse to broadcast `array` against `other`."""
    got, expected = tuple(array.shape), tuple(shape)
    if got != expected:
        raise ValueError(f"{name}: expected shape {expected}, that of {other}, got {got}{hint}")


def refuse_where(
    wrong: Any, name: str, expected: str, given: Any = None, *, got: str = "{}", hint: Callable[[], str] = str
) -> None:
    """Refuse the first entry for which `wrong` is true."""
    if wrong.any():
        where = first_true(wrong)
        value: Any = None if given is None else given[where]
        value = value.item() if hasattr(value, "detach") else value
        raise ValueError(f"{name}: expected {expected}, got {got.format(value)}{at_index(where)}{hint()}")


def sum_to_one(what: str, like: Any, axis: int, slack: float) -> str:
    """Say what was expected of the sums of `like` along its class axis."""
    within = f"within {slack:.2g} for {like.shape[axis]} classes in {like.dtype}"
    return f"{what} that sum to one along axis {axis} ({within})"


def fitting(array: Any, like: Any, axis: int, *, floats: bool, linear: bool = False) -> str:
    """Say which argument or function fits `array`, if class indices for `like` were expected."""
    shape, whole = tuple(array.shape), tuple(like.shape)
    without = [whole[:k] + whole[k + 1 :] for k in range(len(whole))]
    if shape == whole:
        if len(whole) == 1 or whole[axis] == 1:
            return ONE_NUMBER
        if not floats:
            return (
                f"; one-hot targets: give their argmax, or {'floats' if linear else 'use soft_cross_entropy'}"
            )
        labels_first = ((like == 0) | (like == 1)).all() and not ((array == 0) | (array == 1)).all()
        if labels_first or ((array < 0) | (array > 1)).any():
            return PREDICTIONS_FIRST
    if floats and shape == without[axis] and (array == array.round()).all():
        return "; class indices are integers, and these are floats"
    if others := [k for k, rest in enumerate(without) if k != axis and rest == shape]:
        return f"; axis={others[0]} fits"
    if any(shape[:k] + shape[k + 1 :] == whole for k in range(len(shape))):
        return PREDICTIONS_FIRST
    return "; for target probabilities use soft_cross_entropy" if floats and not linear else ""


def meant(low: int, high: int, classes: int) -> str:
    """Say what labels from `low` to `high` may mean, if [0, classes) was expected."""
    if classes == 1 and (low, high) == (0, 1):
        return ONE_NUMBER
    if low == 1 and high == classes:
        return "; classes count from 0"
    if low < 0 or high == 255:  # the void of a map of labels
        return f"; ignore_index={low if low < 0 else high} leaves such targets out"
    return ""


def other_axis(probs: Any, axis: int, otherwise: str = "") -> str:
    """Say along which axis probabilities sum to one, if it is not `axis`."""
    for k in range(probs.ndim):
        if k != axis and ((probs >= 0).all() and (abs(probs.sum(k) - 1) < 1e-2).all()):
            return f"; axis={k} fits"
    return otherwise


def of_soft(logits: Any, target_probs: Any, axis: int) -> str:
    """Say what fits where distributions were expected."""
    if logits.ndim == 1:
        return ONE_NUMBER
    if ((logits >= 0) & (logits <= 1)).all() and (abs(logits.sum(axis) - 1) < 1e-2).all():
        return PREDICTIONS_FIRST
    return other_axis(target_probs, axis)


def no_logarithms(
    wrong: Any, sums: Any, log_probs: Any, axis: int, slack: float, refuse: Callable[..., None] = refuse_where
) -> None:
    """Refuse the first row that is no logarithm of probabilities."""
    expected = sum_to_one("logarithms of probabilities", log_probs, axis, slack)

    def hint() -> str:
        return other_axis(math.e**log_probs, axis, LOGITS)

    refuse(wrong, "log_probs", expected, sums, got="a log-sum-exp of {:.6g}", hint=hint)


def of_probs(probs: Any, axis: int) -> str:
    """Say what fits where probabilities were expected to be predictions."""
    return other_axis(probs, axis, LOGITS if ((probs < 0) | (probs > 1)).any() else "")


def of_binary(z: Any, y: Any) -> str:
    """Say what fits where probabilities of 1 were expected, one a logit."""
    if ((z == 0) | (z == 1)).all():
        return PREDICTIONS_FIRST
    return "; sample_weight=0 leaves such targets out" if (y == -100).any() else ""


def of_rows(y: Any, z: Any, function: str) -> str:
    """Say what fits where there is one target for a row."""
    rows = y.ndim + 1 == z.ndim and tuple(y.shape) == tuple(z.shape[:-1]) and z.shape[-1] > 1
    return f"; for a row of classes a target use {function}" if rows else ""


def probabilities(value: ArrayLike, name: str, axis: int | None, *, hint: Callable[[], str] = str) -> Floats:
    """Return an array of probabilities; along `axis` they must sum to one. None: each is one of its own."""
    if axis is None:
        array, slack = real_array(value, name), 0.0
    else:
        array, axis = logits_array(value, name, axis)
        slack = sum_tolerance(array.dtype.newbyteorder("="), array.shape[axis])
    # One comparison finds negatives, values above one and nan alike, since nan compares false.
    if array.size and not (array.min() >= 0 and array.max() <= 1 + slack):
        wrong = ~((array >= 0) & (array <= 1 + slack))
        refuse_where(wrong, name, "probabilities in [0, 1]", array, hint=hint)
    if axis is not None:
        sums = array.sum(axis=axis, dtype=np.float64)
        expected = sum_to_one("probabilities", array, axis, slack)
        refuse_where(np.abs(sums - 1) > slack, name, expected, sums, got="a sum of {:.10g}", hint=hint)
    return array


def weights(
    value: ArrayLike, name: str, shape: tuple[int, ...], of: str, *, broadcast: bool = False
) -> Floats:
    """Return finite, non-negative weights of the given shape, in float64; booleans are weights of 0 and 1."""
    array = real_array(value, name, bools=True).astype(np.float64)
    fitting_shape(array.shape, name, shape, of, broadcast)
    refuse_where(~((array >= 0) & (array < np.inf)), name, "finite weights >= 0", array)
    return np.broadcast_to(array, shape)


def sample_weights(value: ArrayLike | None, shape: tuple[int, ...]) -> Floats | None:
    """Return `sample_weight`, one for each target."""
    if value is None:
        return None
    array = weights(value, "sample_weight", shape, "that of the targets", broadcast=True)
    with np.errstate(over="ignore"):
        if np.isinf(array.sum()):
            raise ValueError(
                "sample_weight: expected weights with a finite sum, got weights that add up to inf"
            )
    return array


def class_weights(value: ArrayLike | None, classes: int, name: str = "weight") -> Floats | None:
    """Return `weight`, one for each class."""
    return None if value is None else weights(value, name, (classes,), "one weight a class")


def integer(value: Any, name: str) -> int:
    """Return `value` as an int; bools and floats are refused, even whole ones."""
    return int(_converted(operator.index, value, name, "an integer"))


def count(value: Any, name: str, least: int = 1, most: int = MOST) -> int:
    """Return `value` as an int from `least` to `most`."""
    result = integer(value, name)
    if result < least:
        raise ValueError(f"{name}: expected an integer >= {least}, got {shown(value)}")
    if result > most:
        raise ValueError(f"{name}: expected an integer up to {float(most):g}, got {shown(value)}")
    return result


def setting(value: Any, name: str) -> float:
    """Return a setting that has the same range wherever it is one."""
    return number(value, name, *SETTINGS[name])


def number(value: Any, name: str, expected: str, low: float, high: float, closed: str = "") -> float:
    """Return `value` as a finite float inside (low, high); `closed` names the ends that belong to it."""
    try:
        result = float(_converted(float, value, name, expected))
    except OverflowError:  # an integer that no float can hold
        result = math.inf
    ends = [end for name_of, end in (("low", low), ("high", high)) if name_of in closed]
    if not (math.isfinite(result) and (low < result < high or result in ends)):
        raise ValueError(f"{name}: expected {expected}, got {shown(value)}")
    return result


def _converted(convert: Callable[[Any], Any], value: Any, name: str, expected: str) -> Any:
    try:
        return convert(_single(value))
    except (MemoryError, OverflowError):
        raise
    except Exception:  # what an object raises that was asked for its value says less than this
        raise TypeError(f"{name}: expected {expected}, got {shown(value)}") from None


def _single(value: Any) -> Any:
    """Take the number out of an array or tensor without dimensions; raise what is no number.

    ``float`` and ``operator.index`` alone take too much: strings, bools, durations, the real part of a
    complex number, what a mask hides, an array of one entry, a tensor whose gradient would be lost.
    """
    if type(value) is int or type(value) is float:
        return value
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        kind = value.dtype.kind if isinstance(value.dtype, np.dtype) else "f"
        hidden = isinstance(value, np.ma.MaskedArray) or getattr(value, "requires_grad", False)
        if hidden or kind not in "iuf" or len(value.shape):
            raise TypeError
        value = value.item()
    if isinstance(value, (bool, np.bool_, complex, str, bytes, bytearray)):
        raise TypeError
    return value


def shown(value: Any) -> str:
    """Return what stands for a value in an error message: its repr, cut where it is long."""
    try:
        text = repr(value)
    except Exception:  # Python prints no integer of more than 4300 digits; and an object may do anything
        if isinstance(value, int):
            return f"an integer of {value.bit_length()} bits"
        return f"an object of type {type(value).__name__}"
    return text if len(text) <= 400 else f"{text[:400]}..."


def generator(value: Any) -> np.random.Generator:
    """Return `rng`."""
    if not isinstance(value, np.random.Generator):
        raise TypeError(f"rng: expected a numpy.random.Generator, got {type(value).__name__}")
    return value


def choice(value: Any, name: str, choices: tuple[str, ...]) -> None:
    """Refuse what is none of the choices."""
    if not isinstance(value, str) or value not in choices:
        kind = ValueError if isinstance(value, str) else TypeError
        raise kind(f"{name}: expected one of {', '.join(map(repr, choices))}, got {shown(value)}")


def reduction_arguments(reduction: Any, denominator: Any) -> Settings:
    """Check `reduction` and the `denominator` that may replace the mean's divisor."""
    choice(reduction, "reduction", REDUCTIONS)
    if denominator is None:
        return reduction, None
    if reduction != "mean":
        raise ValueError(
            f"denominator: only the mean has one, got denominator={shown(denominator)} with {reduction=}"
        )
    return "mean", setting(denominator, "denominator")


def unit(base: Any) -> float:
    """Return the logarithm of `base`, which is the unit of an information; nats without one."""
    if base is None:
        return 1.0
    value = number(base, "base", "a number > 0 that is not 1", 0.0, math.inf)
    if value == 1:
        raise ValueError(f"base: expected a number > 0 that is not 1, got {value!r}")
    return math.log(value)


def held(value: float, dtype: Any) -> float:
    """Return a share as it is, or zero if it may be zero in `dtype`, where it would make nan of inf."""
    return value if value >= float(np.finfo(np.promote_types(dtype, np.float32)).tiny) else 0.0


def positive_weight(value: ArrayLike, shape: tuple[int, ...]) -> Floats:
    """Return `pos_weight`, which broadcasts to the shape of the logits."""
    array = weights(value, "pos_weight", shape, "that of the logits", broadcast=True)
    if not (array > 0).all():
        raise ValueError(f"pos_weight: expected finite weights > 0, got {shown(value)}")
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
    if denominator == 0:
        if mass > 0:
            raise ValueError("denominator: expected a number > 0, since there are targets that count, got 0")
        return 1.0  # a window without a target: nothing over nothing is no loss
    return mass if denominator is None else denominator


def first_true(mask: Any) -> tuple[int, ...]:
    """Return the index of the first true element."""
    found = np.asarray(mask.detach().cpu() if hasattr(mask, "detach") else mask)
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(found)), found.shape))


def at_index(where: tuple[int, ...]) -> str:
    """Say where, for an error message; a single number needs no place."""
    return f" at index {where[0] if len(where) == 1 else where}" if where else ""


def any_array(value: ArrayLike, name: str) -> NDArray[Any]:
    """Return `value` as an array of whatever it holds; masks and ragged lists are refused."""
    masked = f"{name}: expected an array without a mask, got a masked array; select or ignore instead"
    if _holds_mask(value):
        raise TypeError(masked)
    if type(value).__module__.partition(".")[0] in ("jax", "jaxlib"):
        lost = "a JAX array, whose gradient would be lost in silence; np.asarray takes its numbers"
        raise TypeError(f"{name}: expected an array of NumPy, got {lost}")
    try:
        array = np.asanyarray(value)
    except MemoryError:
        raise
    except Exception as error:  # ragged lists; tensors that carry a gradient; whatever __array__ raises
        raise TypeError(
            f"{name}: expected an array of numbers, got {type(value).__name__} ({error})"
        ) from error
    if isinstance(array, np.ma.MaskedArray):  # what an object's __array__ returns
        raise TypeError(masked)
    return np.asarray(array)


def _holds_mask(value: Any) -> bool:
    """Whether a masked array is there, or in a list; NumPy would drop the mask and count what it hides."""
    parts, seen = [value], set()
    while parts:
        part = parts.pop()
        if isinstance(part, np.ma.MaskedArray):
            return True
        if isinstance(part, (list, tuple)) and id(part) not in seen:
            seen.add(id(part))
            if any(issubclass(kind, (list, tuple, np.ma.MaskedArray)) for kind in set(map(type, part))):
                parts.extend(part)
    return False
