"""Every exercise of the registry, and the mechanism on answers of every kind."""

from __future__ import annotations

import copy
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest

from xent_book import exercises
from xent_book.exercises import _check
from xent_book.exercises._check import Exercise

ALL = [exercises.get(name) for name in exercises.names()]
MISTAKES = [
    pytest.param(exercise, message, function, id=f"{exercise.slug}-{i}")
    for exercise in ALL
    for i, (message, function) in enumerate(exercise.mistakes)
]


def _answer(exercise: Exercise, function: Any) -> Any:
    """What a reader would hand in: the function, or the value it returns."""
    return _check._quietly(function, ()) if exercise.inputs is None else function


each_exercise = pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.slug)


@each_exercise
def test_the_solution_passes(exercise: Exercise) -> None:
    result = exercises.check(exercise.slug, _answer(exercise, exercise.reference))
    assert result, result
    assert result.ok and exercise.slug in result.message


@pytest.mark.parametrize("n", range(1, 200))
def test_errors_at_a_mean_of_log_2(n: int) -> None:
    """A wrong prediction costs more than log 2, so not all can be wrong."""
    (errors,) = (e for e in ALL if e.slug == "multiclass-errors")
    assert errors.reference(float(np.log(2)), n) == n - 1


@each_exercise
def test_the_stub_is_called_a_stub(exercise: Exercise) -> None:
    def returns_nothing(*_: Any) -> None:
        """What an exercise's cell holds at first."""

    def returns_dots(*_: Any) -> Any:
        return ...

    def not_implemented(*_: Any) -> None:
        raise NotImplementedError("write me")

    functions = [] if exercise.inputs is None else [returns_nothing, returns_dots, not_implemented]
    for stub in (None, ..., *functions):
        result = exercises.check(exercise.slug, stub)
        assert not result
        assert "stub is still there" in result.message


@pytest.mark.parametrize(("exercise", "message", "function"), MISTAKES)
def test_each_mistake_is_recognised_by_its_own_message(
    exercise: Exercise, message: str, function: Any
) -> None:
    result = exercises.check(exercise.slug, _answer(exercise, function))
    assert not result
    assert result.message == f"{message}.", "taken for something else"


@each_exercise
def test_the_inputs_tell_the_reference_and_all_mistakes_apart(exercise: Exercise) -> None:
    named = [("the reference", exercise.reference)]
    named += exercise.mistakes
    values = [(name, _check._outcomes(exercise, function, len(exercise.cases()))) for name, function in named]
    for i, (name, mine) in enumerate(values):
        for other, theirs in values[i + 1 :]:
            # Two writings of one mistake may agree; everything else has to differ on some input.
            if name != other:
                same = len(mine) == len(theirs) and all(map(partial(_check._alike, exercise), mine, theirs))
                assert not same, f"the inputs do not tell apart: {name} / {other}"


@each_exercise
def test_an_exercise_is_well_formed(exercise: Exercise) -> None:
    assert exercise.mistakes, "an exercise recognises at least one mistake"
    assert exercise.rtol > 0 or exercise.atol > 0
    assert all(not message.endswith(".") for message, _ in exercise.mistakes), "check adds the full stop"
    first, second = exercise.cases(), exercise.cases()
    assert first and all(map(_check._same, first, second)), "inputs() differs from call to call"
    for case in first:
        given = copy.deepcopy(case)
        _check._quietly(exercise.reference, given)
        assert _check._same(case, given), "the reference changes its argument"


# ------------------------------------------------------------------------ the mechanism on small exercises


DOUBLE = Exercise(
    "double",
    lambda x: 2.0 * x,
    lambda: [(np.array([1.0, 2.0, 3.0]),), (np.zeros((2, 2)),), (np.arange(100.0),)],
    "this looks like a square",
    lambda x: x * x,
    rtol=1e-12,
)
QUARTER = Exercise("quarter", lambda: 0.25, None, "this looks like a half", lambda: 0.5, rtol=1e-12)
PAIR = Exercise("pair", lambda x: (2.0 * x, x > 0), lambda: [(np.array([1.0, -2.0]),)], rtol=1e-12)


@pytest.fixture(autouse=True)
def small_registry(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the registry for the tests that follow; those over the real one take an exercise."""
    if "exercise" not in request.fixturenames:
        small = {exercise.slug: exercise for exercise in (DOUBLE, PAIR, QUARTER)}
        monkeypatch.setattr(_check, "_registry", lambda: small)


def _in_place(x: Any) -> Any:
    x *= 2.0
    return x


def _raises(x: Any) -> Any:
    raise KeyError("no such key\nand a second line")


INPUT = " on input ([1., 2., 3.])."
# What is handed in, and what is said of it.
SAID: dict[str, list[tuple[Any, str]]] = {
    "double": [
        (lambda x: x + x, "double agrees with the reference on all 3 inputs."),
        (lambda x: (x + x).tolist(), "double agrees with the reference on all 3 inputs."),
        (lambda x: x**2, "this looks like a square."),
        (lambda x: x + 2, f"expected 2, got 3 at index (0,){INPUT}"),
        (
            lambda x: np.where(x == 99.0, 0.0, 2 * x),
            "expected 198, got 0 at index (99,) on input ([ 0., 1., ..., 98., 99.]).",
        ),
        (lambda x: 2 * x.sum(), "this is the sum of the right answers: return each of them."),
        (lambda x: -2 * x, "your answer is minus the right one."),
        (lambda x: 5 * x, "your answer is 2.5 times the right one on every input"),
        (lambda x: 2 * x / len(x), "divided by the length of axis 0 of argument 1"),
        (lambda x: 2 * x[::-1], "in the opposite order."),
        (lambda x: 2 * x * (1 + 1e-9), "off by up to 1.0e-09 of the value, where 1e-12 is allowed"),
        (lambda x: np.float32(2.1) * x[:-1], "has shape (2,), expected (3,) for arguments of shape (3,)"),
        (lambda x: x + np.ones(7), "keeps its place with keepdims=True"),
        (lambda x: x @ np.ones((7, 7)), "is a transpose missing?"),
        (
            lambda x: 2 * x + 0 * np.log(x - 1),
            f"got nan at index (0,){INPUT} A nan comes from inf - inf, 0 * inf",
        ),
        (lambda x: x > 0, f"expected floats, got booleans{INPUT}"),
        (lambda x: "6", f"expected numbers, got str{INPUT}"),
        (lambda x: [[1.0], [1.0, 2.0]], "expected numbers, got list that NumPy cannot read"),
        (lambda x: 2 * x + 0j, f"expected numbers, got array of complex numbers{INPUT}"),
        (lambda x: (x, x), f"expected one array or number, got a tuple of 2{INPUT}"),
        (
            _in_place,
            f"the values are right, but your function changes its argument in place{INPUT}",
        ),
        (lambda x: _in_place(x) + 1, "Your function also changes its argument in place."),
        (
            _raises,
            f"your function raised KeyError: 'no such key\\nand a second line'{INPUT}",
        ),
        (lambda: 0, "your function raised TypeError: "),
        (6.0, "this exercise asks for a function; got 6 (float)."),
        (None, "the stub is still there"),
        (lambda x: print(end=""), "your function returns nothing: end it with return, not with print."),
    ],
    "pair": [
        (lambda x: [2 * x, x > 0], "pair agrees with the reference on the input."),
        (lambda x: (-2 * x, x > 0), "part 1 of 2: the sign is flipped"),
        (lambda x: (x + x, x > 0), "pair agrees with the reference on the input."),
        (
            lambda x: (x + x, x < 0),
            "part 2 of 2: expected True, got False at index (0,) on input ([ 1., -2.]).",
        ),
        (lambda x: x + x, "expected a tuple of 2, got one array or number on input ([ 1., -2.])."),
    ],
    "quarter": [
        (0.25, "quarter: the value is right."),
        (np.float32(0.25), "quarter: the value is right."),
        (0.5, "this looks like a half."),
        (0.75, "0.75 is wrong."),
        ([0.25], "your result has shape (1,), expected (): an axis is left"),
        (lambda: 0.25, "this exercise asks for a value, not for a function"),
        ("a quarter", "expected numbers, got str."),
        (None, "the stub is still there"),
    ],
}


@pytest.mark.parametrize(
    ("slug", "answer", "message"), [(s, *row) for s, rows in SAID.items() for row in rows]
)
def test_what_check_says(slug: str, answer: Any, message: str) -> None:
    result = exercises.check(slug, answer)
    assert message in result.message
    assert bool(result) is result.ok is message.endswith(("inputs.", "right.", "the input."))
    assert repr(result) == f"{'right' if result.ok else 'not yet'}: {result.message}"


def test_a_tensor_that_tracks_gradients_is_an_answer() -> None:
    torch = pytest.importorskip("torch")
    result = exercises.check("double", lambda x: 2 * torch.tensor(x, requires_grad=True))
    assert result, result


def test_the_readers_warnings_stay_silent(recwarn: pytest.WarningsRecorder) -> None:
    def warns(x: Any) -> Any:
        warnings.warn("from the reader's own library", stacklevel=1)
        return np.log(x * 0)

    result = exercises.check("double", warns)
    assert "expected 2, got -inf" in result.message
    assert not recwarn.list


def test_interrupting_the_kernel_works() -> None:
    def stuck(x: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exercises.check("double", stuck)


def test_no_answer_brings_the_check_down() -> None:
    class Refuses:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            raise KeyError("x")

        def __repr__(self) -> str:
            raise KeyError("x")

    def leaves(*arguments: Any) -> Any:
        raise SystemExit(3)

    for answer in (leaves, Refuses(), lambda *a: Refuses(), lambda *a: np.ma.array([1.0])):
        assert not exercises.check("double", answer)


def test_an_unknown_slug_lists_close_names() -> None:
    with pytest.raises(ValueError, match=r"exercise 'doubel'; did you mean 'double'\? names\(\) lists all"):
        exercises.check("doubel", None)
    with pytest.raises(ValueError, match="no exercise 'zzz'; names\\(\\) lists all"):
        exercises.check("zzz", None)
    with pytest.raises(TypeError, match="slug: expected the name of an exercise, got int"):
        exercises.check(3, None)  # type: ignore[arg-type]
