"""The mistakes that any exercise may meet: a sign, a factor, a sum for a mean, an order, a shape.

Each is recognised from the right answers alone: the answer given is what a short recipe makes of them, on
every input. So an exercise lists only the mistakes that have a sentence of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
Agree: TypeAlias = Callable[[Array, Array], bool]
Recipe: TypeAlias = Callable[[Array, tuple[Any, ...]], Any]


def _axes(arguments: tuple[Any, ...]) -> Iterator[tuple[int, int]]:
    """The places of all axes among the arguments, as (argument, axis)."""
    for place, argument in enumerate(arguments):
        for axis in range(np.ndim(argument) if isinstance(argument, np.ndarray | list) else 0):
            yield place, axis


def _times_length(place: int, axis: int, power: int, a: Array, arguments: tuple[Any, ...]) -> Any:
    return a * float(np.shape(arguments[place])[axis]) ** power


def _recipes(arguments: tuple[Any, ...]) -> Iterator[tuple[str, Recipe]]:
    """What may have gone wrong, and how to make the wrong answer from the right one."""
    yield "the sign is flipped: your answer is minus the right one", lambda a, _: -a
    yield "your answer is in bits: the natural logarithm gives nats", lambda a, _: a / np.log(2)
    yield "your logarithm has base 10: the natural one is meant", lambda a, _: a / np.log(10)
    yield "there is a factor of 2 too many", lambda a, _: 2 * a
    yield "a factor of 2 is missing", lambda a, _: a / 2
    for place, at in _axes(arguments):
        by = f"by the length of axis {at} of argument {place + 1}"
        many = f"your answer is the right one multiplied {by}: a sum where a mean is meant"
        yield many, partial(_times_length, place, at, 1)
        few = f"your answer is the right one divided {by}: a mean where a sum is meant, or a second mean"
        yield few, partial(_times_length, place, at, -1)
    for over, axis in (("", None), (" over the first axis", 0), (" over the last axis", -1)):
        for name, reduce in (("mean", np.mean), ("sum", np.sum)):
            text = f"this is the {name} of the right answers{over}: return each of them"
            yield text, lambda a, _, reduce=reduce, axis=axis: reduce(a, axis=axis) if a.ndim else a  # type: ignore[misc]
    yield "your answer is the transpose of the right one: exchange its axes", lambda a, _: a.T
    yield "your answer has the right numbers in the opposite order", lambda a, _: a[::-1] if a.ndim else a
    yield "your answer is 1 minus the right one: the complement", lambda a, _: 1 - a.astype(float)
    yield "your answer is 1 divided by the right one", lambda a, _: 1 / a.astype(float)
    yield "your answer is the exponential of the right one", lambda a, _: np.exp(a)
    yield "your answer is the logarithm of the right one", lambda a, _: np.log(a)
    yield "your answer is the square root of the right one", lambda a, _: np.sqrt(a)
    yield "your answer is the square of the right one", lambda a, _: a**2


def _part(got: Sequence[Array], want: Sequence[Array], cases: Sequence[Any], agree: Agree) -> str | None:
    """Name what happened to one part of the answer; "" if it is right."""
    if any(a.dtype.kind == "b" or b.dtype.kind == "b" for a, b in zip(got, want, strict=True)):
        return "" if all(map(agree, got, want)) else None
    if all(map(agree, got, want)):
        return ""
    with np.errstate(all="ignore"):
        for sentence, recipe in _recipes(cases[0]):
            made = [np.asarray(recipe(b, case)) for b, case in zip(want, cases, strict=True)]
            if all(map(agree, got, made)):
                return sentence
    if len(got) > 1 and all(a.shape == b.shape for a, b in zip(got, want, strict=True)):
        x, y = (np.concatenate([a.astype(float).ravel() for a in side]) for side in (got, want))
        counts = np.isfinite(x) & np.isfinite(y) & (y != 0)
        factor = float(np.median(x[counts] / y[counts])) if counts.sum() > 2 else 0.0
        # A factor as close to 1 as that is a lack of digits, and has its own sentence.
        if abs(factor) > 1e-9 and abs(factor - 1) > 1e-4 and all(map(agree, got, [factor * b for b in want])):
            return f"your answer is {factor:.6g} times the right one on every input: look for a factor"
    return None


def name_it(
    got: Sequence[list[Array]], want: Sequence[list[Array]], cases: Sequence[Any], agree: Agree
) -> str | None:
    """Name a mistake, without a full stop, from the parts of each answer and those of the right one, on every input."""
    parts = len(want[0])
    if any(len(answer) != parts for answer in [*got, *want]):
        return None
    if parts > 1 and all(all(map(agree, a, b[::-1])) for a, b in zip(got, want, strict=True)):
        return "the parts of your answer are in the wrong order"
    named = [_part([a[i] for a in got], [b[i] for b in want], cases, agree) for i in range(parts)]
    if None in named:
        return None
    wrong = [i for i, sentence in enumerate(named) if sentence]
    if len({named[i] for i in wrong}) == 1 and len(wrong) == parts:
        return named[0]
    return "; ".join(f"part {i + 1} of {parts}: {named[i]}" for i in wrong)


def nearly(got: Sequence[list[Array]], want: Sequence[list[Array]]) -> float | None:
    """Return the largest error, relative to the right number, if the shapes fit and it is below 1e-4."""
    worst = 0.0
    for a, b in ((a, b) for x, y in zip(got, want, strict=True) for a, b in zip(x, y, strict=False)):
        if a.shape != b.shape or a.dtype.kind == "b":
            return None
        a, b = a.astype(float), b.astype(float)
        with np.errstate(all="ignore"):
            error = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b) / np.abs(b))
        if np.isnan(error).any():
            return None
        worst = max(worst, float(error.max(initial=0.0)))
    return worst if 0 < worst < 1e-4 else None


def about_shape(got: tuple[int, ...], want: tuple[int, ...], arguments: tuple[Any, ...]) -> str:
    """Explain a shape that is not the right one."""
    given = ", ".join(str(np.shape(a)) for a in arguments if isinstance(a, np.ndarray))
    where = f" for arguments of shape {given}" if given else ""
    text = f"your result has shape {got}, expected {want}{where}: "
    if got == want[::-1]:
        return text + "did you forget a transpose?"
    if len(got) < len(want):
        return text + "an axis has been summed, averaged or picked that should have stayed."
    if len(got) > len(want):
        return text + "an axis is left: sum over it, or pick one entry a row, as z[np.arange(N), y] does."
    return text + "which axis did you sum over?"


def about_error(error: BaseException) -> str:
    """Explain NumPy's complaints about shapes."""
    text = str(error)
    if "broadcast" in text:
        return (
            " The shapes do not fit: check which axis you sum over; a sum over the last one keeps its place "
            "with keepdims=True, and labels become rows with np.eye(K)[y]."
        )
    if "matmul" in text or "not aligned" in text:
        return " In a product A @ B the columns of A are as many as the rows of B: is a transpose missing?"
    return ""
