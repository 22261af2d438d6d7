"""The mechanism: call the reader's function, compare, and recognise the mistake."""

from __future__ import annotations

import copy
import difflib
import importlib
import pkgutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np

from xent_book.exercises import _common

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
Parts: TypeAlias = "list[Array]"
Function: TypeAlias = Callable[..., Any]


class Exercise:
    """An exercise: the right answer, inputs to try it on, and the known wrong answers.

    Parameters
    ----------
    slug : str
        The name that `check` takes.
    reference : callable
        The right function; without arguments if the exercise asks for a value.
    inputs : callable, optional
        Returns the argument tuples to try, the same at each call. Without it, a value is asked for.
    *told : str or callable
        What to tell the reader, such as "this looks like a missing T**2", before one or more functions that are wrong
        in this way. One that raises an exception on some input is recognised by the exception's type, and by its
        values up to there.
    rtol, atol : float
        An answer is right if ``|answer - reference| <= atol + rtol * |reference|`` everywhere. The default leaves
        room for every way to write a formula in float64.
    """

    def __init__(
        self,
        slug: str,
        reference: Function,
        inputs: Callable[[], Sequence[tuple[Any, ...]]] | None = None,
        *told: str | Function,
        rtol: float = 1e-9,
        atol: float = 0.0,
    ) -> None:
        self.slug, self.reference, self.inputs, self.rtol, self.atol = slug, reference, inputs, rtol, atol
        self.mistakes: list[tuple[str, Function]] = []  # what to say, and a wrong answer
        for entry in told:
            if isinstance(entry, str):
                message = entry
            else:
                self.mistakes.append((message, entry))

    def cases(self) -> list[tuple[Any, ...]]:
        """The argument tuples to try; a single empty one if a value is asked for."""
        return [()] if self.inputs is None else list(self.inputs())


@dataclass(frozen=True, repr=False)
class Result:
    """What `check` found. True if the answer is right."""

    ok: bool  # whether the answer is right
    message: str  # what was found, in a sentence or two

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        return f"{'right' if self.ok else 'not yet'}: {self.message}"


# ------------------------------------------------------------------------------------------- registry


@cache
def _registry() -> dict[str, Exercise]:
    """All exercises by slug, collected from this package's modules on first use."""
    package = importlib.import_module("xent_book.exercises")
    found: dict[str, Exercise] = {}
    for module in (info.name for info in pkgutil.iter_modules(package.__path__) if info.name[0] != "_"):
        for exercise in importlib.import_module(f"xent_book.exercises.{module}").EXERCISES:
            if found.setdefault(exercise.slug, exercise) is not exercise:
                raise ValueError(f"two exercises are called {exercise.slug!r}")
    return dict(sorted(found.items()))


def names() -> list[str]:
    """List the slugs of all exercises, sorted."""
    return list(_registry())


def get(slug: str) -> Exercise:
    """Look an exercise up by its slug; a ValueError lists the closest names."""
    if not isinstance(slug, str):
        raise TypeError(f"slug: expected the name of an exercise, got {type(slug).__name__}")
    exercises = _registry()
    if slug not in exercises:
        close = difflib.get_close_matches(slug, exercises, n=3, cutoff=0.7)
        hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ";"
        raise ValueError(f"there is no exercise {slug!r}{hint} names() lists all")
    return exercises[slug]


# ------------------------------------------------------------------------------------------ comparison


class _Unreadable(Exception):
    """An answer that is no array of numbers; the message says what it is."""


def _parts(answer: Any) -> Parts:
    """Read an answer as arrays: one, or one for each entry of a tuple."""
    if isinstance(answer, tuple):
        return [part for entry in answer for part in _parts(entry)]
    if isinstance(answer, np.ma.MaskedArray):
        raise _Unreadable("a masked array")
    try:
        # A torch tensor that tracks gradients refuses to become an array.
        array = np.asarray(answer.detach().cpu() if hasattr(answer, "detach") else answer)
    except Exception as error:  # an object may do anything when it is asked
        raise _Unreadable(f"{type(answer).__name__} that NumPy cannot read ({_first_line(error)})") from None
    if array.dtype.kind not in "biuf":
        kinds = {"c": "complex numbers", "O": "objects", "U": "text", "S": "bytes"}
        kind = kinds.get(array.dtype.kind, str(array.dtype))
        raise _Unreadable(type(answer).__name__ if array.ndim == 0 else f"array of {kind}")
    return [array]


def _agree(exercise: Exercise, a: Array, b: Array) -> Array:
    """Elementwise agreement within the exercise's tolerance; nan agrees with nan."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return np.asarray(np.isclose(a, b, exercise.rtol, exercise.atol, equal_nan=True))


def _alike(exercise: Exercise, got: Any, want: Any) -> bool:
    """Whether two outcomes agree: exceptions' types, or arrays, in shape and kind too."""
    if isinstance(got, type) or isinstance(want, type):
        return got is want
    return len(got) == len(want) and all(
        a.shape == b.shape and (a.dtype.kind == "b") == (b.dtype.kind == "b") and _agree(exercise, a, b).all()
        for a, b in zip(got, want, strict=True)
    )


def _short(value: Any) -> str:
    """Show a number or an array in one short line, the same on every machine."""
    value = value[()] if isinstance(value, np.ndarray) else value  # one of no dimensions is a number
    if isinstance(value, np.ndarray):
        with np.printoptions(precision=6, threshold=8, edgeitems=2, linewidth=10_000):
            return " ".join(np.array2string(value, separator=", ").split())
    if isinstance(value, float | np.floating):
        return f"{float(value):.6g}"
    if isinstance(value, bool | int | np.integer | np.bool_):
        return str(value)
    try:
        text = repr(value)
    except Exception:
        text = f"an object of type {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def _call_text(exercise: Exercise, arguments: tuple[Any, ...]) -> str:
    """Such as 'on input ([0., 1.], 2)'; nothing where a value is asked for."""
    if exercise.inputs is None:
        return ""
    return f" on input ({', '.join(_short(argument) for argument in arguments)})"


def _same(a: Any, b: Any) -> bool:
    """Whether an argument still is what it was."""
    try:
        np.testing.assert_equal(a, b)
    except AssertionError:
        return False
    return True


def _quietly(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Call without NumPy's warnings: the check says in words what they hint at."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return function(*arguments)


def _outcomes(exercise: Exercise, function: Callable[..., Any], count: int) -> list[Any]:
    """What a wrong answer returns on the first inputs; the last is an exception's type if it raises one."""
    outcomes: list[Any] = []
    for arguments in exercise.cases()[:count]:
        try:
            outcomes.append(_parts(_quietly(function, copy.deepcopy(arguments))))
        except Exception as error:
            return [*outcomes, type(error)]
    return outcomes


def _recognise(exercise: Exercise, got: list[Any]) -> str | None:
    """Name the mistake whose outcomes these are."""
    for message, function in exercise.mistakes:
        looks = _outcomes(exercise, function, len(got))
        if len(looks) == len(got) and all(map(partial(_alike, exercise), got, looks)):
            return f"{message}."
    return None


def _common_mistake(exercise: Exercise, cases: list[Any], got: list[Parts], want: list[Parts]) -> str | None:
    """Name a mistake that any exercise may meet; of a single value this would give the answer away."""
    if exercise.inputs is None:
        return None
    if known := _common.name_it(got, want, cases, lambda a, b: _alike(exercise, [a], [b])):
        return f"{known}."
    if (error := _common.nearly(got, want)) is None:
        return None
    allowed = f"{exercise.rtol:.0e}" if exercise.rtol else f"{exercise.atol:.0e} in absolute terms"
    return (
        f"close, but off by up to {error:.1e} of the value, where {allowed} is allowed. Float32, finite differences, "
        "an epsilon, a coarse search and a difference of nearly equal numbers leave errors of this kind: use float64, "
        "and a formula if there is one."
    )


def _difference(exercise: Exercise, arguments: tuple[Any, ...], got: Parts, want: Parts) -> str:
    """Say where an answer that looks like no known mistake differs from the reference."""
    where = _call_text(exercise, arguments)
    if len(got) != len(want):
        return f"expected {_count(len(want))}, got {_count(len(got))}{where}."
    for number, (a, b) in enumerate(zip(got, want, strict=True), 1):
        part = f"part {number} of {len(want)}: " if len(want) > 1 else ""
        if a.shape != b.shape:
            return part + _common.about_shape(a.shape, b.shape, arguments)
        if (a.dtype.kind == "b") != (b.dtype.kind == "b"):
            return f"{part}expected {_kind(b)}, got {_kind(a)}{where}."
        agree = np.atleast_1d(_agree(exercise, a, b))
        if agree.all():
            continue
        index = tuple(int(i) for i in np.argwhere(~agree)[0])
        place = f" at index {index}" if a.ndim else ""
        a_value, b_value = np.atleast_1d(a)[index], np.atleast_1d(b)[index]
        nan = " A nan comes from inf - inf, 0 * inf or the log of a negative number."
        expected, answer = _short(b_value), _short(a_value)
        if exercise.inputs is None:  # which would be given away
            return f"{part}{answer} is wrong{place}{where}."
        if expected == answer:  # six digits do not tell them apart
            off = abs(float(a_value) - float(b_value))
            allowed = exercise.atol + exercise.rtol * abs(float(b_value))
            return f"{part}your {answer} is {off:.2g} off{place}, and {allowed:.2g} is allowed{where}."
        return f"{part}expected {expected}, got {answer}{place}{where}.{nan * bool(np.isnan(float(a_value)))}"
    raise AssertionError("the answers agree")


def _written(function: Callable[..., Any]) -> bool:
    """Whether the body does more than a stub's, which names nothing."""
    return bool(getattr(getattr(function, "__code__", None), "co_names", ()))


def _first_line(error: BaseException) -> str:
    try:
        return (str(error).splitlines() or [""])[0][:200]
    except Exception:
        return ""


def _count(number: int) -> str:
    return "one array or number" if number == 1 else f"a tuple of {number}"


def _kind(array: np.ndarray[Any, Any]) -> str:
    return {"b": "booleans", "i": "integers", "u": "integers", "f": "floats"}[array.dtype.kind]


# ----------------------------------------------------------------------------------------------- check


@np.errstate(all="ignore")
def check(slug: str, answer: Any) -> Result:
    """Check an answer to an exercise, and name the mistake if it is a known one.

    Parameters
    ----------
    slug : str
        The exercise, as the chapter names it; `names` lists all.
    answer : callable or array_like
        Your function, or the value if the exercise asks for one.

    Returns
    -------
    Result
        True if the answer is right. Its message says what is right or wrong. Whatever is wrong with the
        answer, an exception in your function included, comes back as a result.

    Raises
    ------
    ValueError
        If there is no such exercise.

    Examples
    --------
    >>> import numpy as np
    >>> from xent_book import exercises
    >>> def my_loss(logits, targets):
    ...     p = 1 / (1 + np.exp(-logits))
    ...     return -(targets * np.log(p) + (1 - targets) * (1 - p))
    >>> exercises.check("bce-from-logits", my_loss)
    not yet: this looks like a missing second log: the second term is (1 - y) log(1 - p).
    >>> def my_loss(logits, targets):
    ...     raise NotImplementedError
    >>> exercises.check("bce-from-logits", my_loss)
    not yet: the stub is still there: your function is not written yet.
    """
    exercise = get(slug)

    wrong = partial(Result, False)
    if answer is None or answer is Ellipsis:
        stub = "function is not written" if exercise.inputs else "value is not filled in"
        return wrong(f"the stub is still there: your {stub} yet.")
    if callable(answer) and exercise.inputs is None:
        return wrong("this exercise asks for a value, not for a function: pass what your function returns.")
    if exercise.inputs and not callable(answer):
        return wrong(f"this exercise asks for a function; got {_short(answer)} ({type(answer).__name__}).")

    cases, alike = exercise.cases(), partial(_alike, exercise)
    want = [_parts(_quietly(exercise.reference, copy.deepcopy(arguments))) for arguments in cases]
    got: list[Parts] = []
    changed: tuple[Any, ...] | None = None
    for arguments in cases:
        given = copy.deepcopy(arguments)
        where = _call_text(exercise, arguments)
        try:
            value = answer if exercise.inputs is None else _quietly(answer, given)
        except NotImplementedError:
            return wrong("the stub is still there: your function is not written yet.")
        except (Exception, SystemExit) as error:
            if known := _recognise(exercise, [*got, type(error)]):
                return wrong(known)
            # A reader's function may raise anything; its type and first line say more than a traceback.
            text = _first_line(error)
            text = f"{': ' if text else ''}{text}{where}.{_common.about_error(error)}"
            return wrong(f"your function raised {type(error).__name__}{text}")
        if value is None or value is Ellipsis:
            if _written(answer):
                return wrong("your function returns nothing: end it with return, not with print.")
            return wrong("the stub is still there: your function returns nothing.")
        if changed is None and not _same(arguments, given):
            changed = arguments
        numbers = isinstance(value, np.ndarray) and value.ndim == 1 and not any(part.ndim for part in want[0])
        if (isinstance(value, list) or numbers) and len(want[0]) > 1:
            value = tuple(value)  # several arrays: a list of them is as good, and for numbers an array
        try:
            got.append(_parts(value))
        except _Unreadable as error:
            return wrong(f"expected numbers, got {error}{where}.")

    if all(map(alike, got, want)):
        if changed is not None:
            where = _call_text(exercise, changed)
            return wrong(f"the values are right, but your function changes its argument in place{where}.")
        if exercise.inputs is None:
            return Result(True, f"{slug}: the value is right.")
        inputs = "the input" if len(cases) == 1 else f"all {len(cases)} inputs"
        return Result(True, f"{slug} agrees with the reference on {inputs}.")

    if known := _recognise(exercise, got) or _common_mistake(exercise, cases, got, want):
        return wrong(known)

    note = " Your function also changes its argument in place." if changed is not None else ""
    first = next(case for case in zip(cases, got, want, strict=True) if not alike(*case[1:]))
    return wrong(_difference(exercise, *first) + note)
