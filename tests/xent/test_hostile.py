"""Hostile input: a public function returns what is right, or raises the promised error; nothing else.

The promised error is a ValueError or TypeError (no subclass) whose message begins with an argument's name.
No warning and no floating-point flag gets out, no argument and no global setting is modified, and no result
of NumPy holds a nan. The table says by an argument's NAME what a sound value of it is, and what has to be
refused; the functions and their arguments are read from the package, so that a new one fails until its names
stand here. Whether a result is right is asked of another call: an array stored otherwise is the same array.
"""

from __future__ import annotations

import importlib
import inspect
import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import xent
import xent.torch
from xent._validate import shown
from xent.sequences import GeometricSource, MarkovSource

inf, nan = math.inf, math.nan
PARTS = (
    *("", ".information", ".gradients", ".scoring", ".elicitation", ".denominators", ".sequences"),
    *(".distillation", ".torch"),
)
# Types, what others return, and `diagnose`, which takes anything that can be called.
NOT_CALLED = {
    *("Rule", "MicroBatch", "Window", "Windows", "AccumulationReport", "Diagnosis", "diagnose", "TopK"),
}
CACHE = {
    "indices": torch.tensor([[0, 2]] * 4),
    "probs": torch.tensor([[0.5, 0.25]] * 4),
    "tail": torch.full((4,), 0.25),
}
CHAIN = MarkovSource([0.5, 0.375, 0.125], [[0.25, 0.5, 0.25], [0.125, 0.5, 0.375]])
OBJECTS = {"GeometricSource": GeometricSource(0.25, 2), "MarkovSource": CHAIN}


def public() -> dict[str, Callable[..., Any]]:
    """Every public function, class, and method of a class, by its name."""
    found: dict[str, Callable[..., Any]] = {}
    for module in (importlib.import_module(f"xent{part}") for part in PARTS):
        for name in set(module.__all__) - NOT_CALLED:
            things = {name: getattr(module, name)}
            if name in OBJECTS:
                methods = [method for method in dir(OBJECTS[name]) if not method.startswith("_")]
                things |= {f"{name}.{method}": getattr(OBJECTS[name], method) for method in methods}
            found |= {f"{module.__name__}.{n}": thing for n, thing in things.items() if callable(thing)}
    return dict(sorted(found.items()))


FUNCTIONS = public()


def cached(**other: Any) -> xent.torch.TopK:
    """What is kept of a teacher of three classes."""
    return xent.torch.TopK(**{**CACHE, **other})


class Refuses:
    """An object that should become an array, a number or a text, and raises."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise KeyError("x")

    def __repr__(self) -> str:
        raise KeyError("x")

    __float__ = __index__ = __repr__  # type: ignore[assignment]


class Holds:
    """An array_like of the third kind, as pandas objects are: an object with ``__array__``."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.array


# The table. A row makes a sound value with a generator of random numbers, and lists what is never right: as
# it is, or made from the sound value. Most entries are binary fractions, so that no dtype rounds them.

N, K = 4, 3
TENSORS = ("Tensor", "Tensor | None")  # annotations of what has to be a tensor
Wrong = list[Any]
Row = tuple[Callable[[np.random.Generator], Any], Wrong]


def entry(*values: Any) -> Wrong:
    """Arrays with another first entry."""
    return [lambda v, new=new: np.array([new, *np.ravel(v)[1:]]).reshape(np.shape(v)) for new in values]


class Module(torch.nn.Linear):
    """As a LightningModule."""

    automatic_optimization = True

    def train_dataloader(self) -> list[torch.Tensor]:
        return [torch.ones(1, 2), torch.ones(2, 2)]

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        return self(batch).mean()  # type: ignore[no-any-return]


class Lightning:
    """As Lightning's Trainer."""

    accumulate_grad_batches = 2

    def __init__(self) -> None:
        self.fit_loop = self.epoch_loop = self.automatic_optimization = self.output_result_cls = self
        self.precision_plugin = SimpleNamespace(train_step_context=nullcontext)

    def from_training_step_output(self, output: torch.Tensor, size: int) -> SimpleNamespace:
        return SimpleNamespace(closure_loss=output / size)


# fmt: off
MASKED = np.ma.array([1.0, 2.0], mask=[0, 1])
NO_ARRAY: Wrong = [
    "text", None, {}, {1.0}, object(), Refuses(), Holds(Refuses()), [[1.0], [1.0, 2.0]], Decimal(1), [MASKED],
    Holds(MASKED), lambda v: np.ma.array(v, mask=True), lambda v: np.zeros(np.shape(v), [("a", float)]),
    lambda v: (x for x in v), *(lambda v, to=to: np.array(v).astype(to) for to in ("c16", "O", "U", "m8[s]")),
]
NO_NUMBER: Wrong = [
    "text", "1", None, nan, 1j, True, [1], [[1], [1, 2]], np.ones(2), np.ma.array(1, mask=True), object(),
    Refuses(), np.timedelta64(1, "s"), np.array(True), np.str_("1"), np.complex128(1), Decimal("nan"),
    torch.tensor(1.0, requires_grad=True), torch.tensor(1.0, device="meta"), torch.ones(2),
]
NO_CHOICE: Wrong = ["text", "x" * 9999, None, 1, Refuses(), lambda v: [v], lambda v: v.upper(), str.encode]
NO_TENSOR: Wrong = [
    "text", None, 1.0, Refuses(), lambda v: v.numpy(), lambda v: v.tolist(), lambda v: v.to(torch.complex64),
    lambda v: v.to_sparse(),
]
NO_OBJECT: Wrong = [3, "text", Refuses()]
SHAPE: Wrong = [lambda v: v[:-1], lambda v: v[..., None], lambda v: v[None]]
INDEX: Wrong = [*NO_ARRAY, *entry(-1, 2**40), lambda v: np.array(v, float)]
REAL: Wrong = [*NO_ARRAY, *entry(nan)]
BOOL: Wrong = [lambda v: v > 0]
SHARE: Wrong = [*REAL, *entry(-0.25, inf, 1.5)]
ROWS: Wrong = [*SHARE, *entry(0.625)]
MASS: Wrong = [*REAL, *entry(-1.0, inf)]


def beyond(*values: Any) -> Wrong:
    """What is no number, and numbers out of range, also as arrays without dimensions."""
    return [*NO_NUMBER, *values, *map(np.array, values)]


COUNT = beyond(2.5, 0, -1)
SHARES = np.array([[0.75, 0.125, 0.125], [0.125, 0.125, 0.75]] * (N // 2))
LOGITS: Row = (lambda g: np.round(g.normal(size=(N, K)) * 64) / 32, [*REAL, *BOOL])
CLASSES: Row = (lambda g: g.integers(0, K, N), [*INDEX, *SHAPE])
PROBS: Row = (lambda g: SHARES.copy(), ROWS)
BY_TARGET: Row = (lambda g: np.array([1.0, 2.0, 0.5, 0.0]), MASS)
BY_CLASS: Row = (lambda g: np.array([1.0, 2.0, 0.5]), [*MASS, *SHAPE])
UNIT: Row = (lambda g: 0.25, beyond(-0.25, 1.25, inf))
POSITIVE: Row = (lambda g: 2.0, beyond(0, -1.0, inf, -(10**400)))
TABLE: dict[str, Row] = {
    **dict.fromkeys(("logits", "x", "student_logits"), LOGITS),
    "teacher_logits": (LOGITS[0], [*REAL, *BOOL, *SHAPE]),
    **dict.fromkeys(("targets", "outcome"), CLASSES),
    **dict.fromkeys(("probs", "p", "q"), PROBS),
    "target_probs": (PROBS[0], [*ROWS, *SHAPE]),
    "log_probs": (lambda g: np.log(SHARES), [*REAL, *entry(1.0), lambda v: v + 1]),
    "weight": BY_CLASS,
    "sizes": (BY_CLASS[0], [*MASS, *SHAPE, *entry(0.0)]),
    **dict.fromkeys(("class_probs", "others"), (lambda g: np.array([0.5, 0.25, 0.25]), [*ROWS, *SHAPE])),
    "sample_weight": BY_TARGET,
    "pos_weight": (BY_CLASS[0], [*MASS, *SHAPE[:2], *entry(0.0)]),
    "indices": (lambda g: g.integers(0, K, (N, 2)), [*INDEX, *SHAPE]),
    "importance_weights": (lambda g: np.array([[0.25, 0.75]] * N), [*MASS, *SHAPE]),
    "top_log_probs": (lambda g: np.log(SHARES[:, :2]), [*REAL, *SHAPE, *entry(1.0)]),
    "top_indices": (lambda g: np.array([[0, 1], [2, 1]] * (N // 2)), [*INDEX, *SHAPE]),
    "probabilities": (lambda g: np.array([0.5, 0.25, 0.25]), ROWS),
    "lengths": (lambda g: np.array([1, 3, 8]), [*NO_ARRAY, *entry(0, -1), lambda v: np.array(v, float)]),
    "prompts": (lambda g: np.array([7, 5, 7]), [
        *("text", {}, Refuses(), Holds(Refuses()), [[1], [1, 2]], [MASKED], [1.0, 2.0, 1.0], [True] * 3), *SHAPE,
        np.array(["a", None, "b"], object), np.array([{}, (), 1], object), lambda v: v.astype("m8[s]"),
    ]),
    "initial": (lambda g: np.array([0.5, 0.375, 0.125]), [*ROWS, *SHAPE]),
    "transition": (lambda g: CHAIN.transition, [*ROWS, *SHAPE]),
    "sequences": (lambda g: [[0, 1, 1], [1]], [None, 3, [[0.7, 1.2]], [[-1]], [[9]], "text"]),
    "hidden": (lambda g: np.round(g.normal(size=(N, 2)) * 8) / 8, REAL),
    "bias": (lambda g: np.array([0.5, -1.0, 0.25]), [*REAL, *SHAPE]),
    "b": (BY_CLASS[0], [*MASS, *SHAPE[:2]]),
    "weights": (lambda g: np.array([1.0, 2.0]), [*MASS, *SHAPE]),
    "labels": (lambda g: [0, 1, 2], ["text", 3, object()]),
    "keepdims": (lambda g: True, ["text", None, 2.5, Refuses()]),
    "top_k": (lambda g: 2, COUNT),
    "k": (lambda g: 2, [*COUNT, K + 1]),
    "teacher_top_k": (lambda g: cached(), [3, "text", torch.ones(N, 2), cached(indices=torch.ones(N, 2).long())]),
    "teacher_samples": (lambda g: (torch.ones(N, 3).long(), torch.ones(N, 3) / 3), [3, "text", torch.ones(N, 2), ()]),
    "entropy": (lambda g: False, [None, 1, "text", Refuses()]),
    "z_loss": (lambda g: 0.25, beyond(-1.0, inf)),
    "axis": (lambda g: -1, beyond(7, -7, 1.0, 10**5000)),
    "letters": (lambda g: 2, COUNT),
    **dict.fromkeys(("n_max", "samples"), (lambda g: 3, [*COUNT, 10**30])),
    "batch_size": (lambda g: 3, [*COUNT, 10**400]),
    "size": (lambda g: 3, beyond(2.5, -1, 10**30)),
    "steps": (lambda g: 2, COUNT),
    "ignore_index": (lambda g: -100, beyond(2.5)),
    "eps": (lambda g: 0.125, beyond(-0.25, 0.75, inf)),
    "gamma": (lambda g: 2.0, beyond(-1.0, inf)),
    "base": (lambda g: 2.0, beyond(0, -1.0, inf, 1.0)),
    "stop": (lambda g: 0.25, beyond(0, -1.0, 1.5, inf, 5e-324)),
    **dict.fromkeys(("label_smoothing", "alpha", "beta"), UNIT),
    **dict.fromkeys(("denominator", "softcap", "temperature", "proposal_temperature"), POSITIVE),
    "reduction": (lambda g: "mean", NO_CHOICE),
    "scale": (lambda g: "none", NO_CHOICE),
    "direction": (lambda g: "reverse", NO_CHOICE),
    "treatment": (lambda g: "renormalised", NO_CHOICE),
    "rng": (lambda g: np.random.default_rng(0), [*NO_OBJECT, None]),
    "generator": (lambda g: torch.Generator(), NO_OBJECT),
    "model": (lambda g: CHAIN, [*NO_OBJECT, None]),
    "rule": (lambda g: xent.scoring.brier_score, [None, *NO_OBJECT, lambda v: lambda q, y: "a"]),
    "batches": (lambda g: [torch.tensor([1, 2]), torch.tensor([3, -100])], [None, 5, [torch.tensor([1j])]]),
    "group": (lambda g: None, []),
}
# Where a function's argument is another thing than its name says elsewhere.
PAIRS: Row = (lambda g: g.integers(0, 2, (N, K)) * 1.0, [*SHARE, *SHAPE])
EACH: Row = (lambda g: np.ones((N, K)), MASS)
UNITS: Row = (lambda g: SHARES / 2, SHARE)
LINEAR: Row = (lambda g: np.round(g.normal(size=(K, 2)) * 8) / 8, REAL)
OWN: dict[str, dict[str, Row]] = {
    **{f"binary_{what}{of}": {"targets": PAIRS, "sample_weight": EACH, "probs": UNITS}
       for what in ("cross_entropy", "log_loss") for of in ("", "_gradient")},
    "focal_loss": {"alpha": BY_CLASS},
    "focal_loss_gradient": {"alpha": BY_CLASS},
    "log_sum_exp": {"axis": (lambda g: -1, [wrong for wrong in TABLE["axis"][1] if wrong is not None])},
    **{f"linear_{what}": {"linear_weight": LINEAR, "linear_bias": TABLE["bias"]}
       for what in ("cross_entropy", "selected_log_probs")},
    "linear_distillation_loss": {
        "targets": (CLASSES[0], [*NO_ARRAY, *SHAPE]),  # they say no more than which count
        **dict.fromkeys(("student_hidden", "teacher_hidden"), TABLE["hidden"]),
        **dict.fromkeys(("student_weight", "teacher_weight"), LINEAR),
        **dict.fromkeys(("student_bias", "teacher_bias"), TABLE["bias"]),
    },
    **{f"GeometricSource.{of}": {"q": (lambda g: 0.5, beyond(-1.0, 1.5, inf))}
       for of in ("cross_entropy", "kl", "averaged_cross_entropy")},
    "sample_targets": {"teacher_logits": LOGITS},
    "top_k_of_teacher": {"teacher_logits": LOGITS},
    "check_accumulation": {
        "model": (lambda g: torch.nn.Linear(2, 1), [None, *NO_OBJECT]),
        "micro_batches": (lambda g: [torch.ones(1, 2), torch.ones(2, 2)], [None, 5, []]),
        "whole_batch": (lambda g: torch.ones(3, 2), []),
        "step": (lambda g: lambda model, batches: sum(model(b).sum() for b in batches).backward(), [None, 3]),
        "reference": (lambda g: lambda model, batch: model(batch).sum().backward(), [3, "text"]),
        "targets": (lambda g: lambda batch: torch.zeros(len(batch), dtype=torch.long), []),
        "tolerance": (lambda g: 1e-3, beyond(-1.0)),
    },
    "check_trainer": {
        "trainer": (lambda g: (Lightning(), Module(2, 1)), [None, *NO_OBJECT, (Lightning(), None), (1, 2)]),
        "batches": (lambda g: [torch.ones(1, 2), torch.ones(2, 2)], [5, [], [torch.ones(1, 2)]]),
        "tolerance": (lambda g: 1e-3, beyond(-1.0)),
    },
    "elicited": {"target_probs": (lambda g: np.array([0.75, 0.25]), ROWS)},
    "accumulate": {"targets": (lambda g: lambda batch: batch, []),
                   "denominator": (lambda g: "tokens", beyond(0, -1.0))},
}
# fmt: on


# Options that mean something together only.
NEEDED = {
    "accumulate": ["targets"],
    "invert_weighting": ["batch_size", "class_probs"],
    "learnt_distribution": ["others"],
    "linear_distillation_loss": ["targets", "ignore_index", "teacher_hidden", "teacher_weight"],
}
# Of a live teacher, which another argument takes the place of.
LIVE = {"teacher_hidden", "teacher_weight", "teacher_bias", "top_k", "direction"}


def row(function: str, argument: str) -> Row:
    """A function's row for one of its arguments."""
    own = next((rows for name, rows in OWN.items() if function.endswith(f".{name}")), {})
    assert argument in own or argument in TABLE, f"{function}: TABLE has no row for its argument {argument!r}"
    return own.get(argument) or TABLE[argument]


def parameters(function: str) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(FUNCTIONS[function]).parameters


def sound(function: str, seed: int = 0, options: Iterable[str] = ()) -> dict[str, Any]:
    """A sound call: the arguments that the function needs, and these of its options."""
    g, made, of_teacher = np.random.default_rng(seed), {}, ("teacher_top_k", "teacher_samples")
    instead = [name for name in of_teacher if name in options]
    left_out = {*LIVE, *instead[1:]} if instead else set()
    for name, parameter in parameters(function).items():
        wanted = name in [*options, *NEEDED.get(function.split(".")[-1], [])]
        if parameter.default is parameter.empty or (wanted and name not in left_out):
            value = row(function, name)[0](g)
            made[name] = torch.from_numpy(np.array(value)) if parameter.annotation in TENSORS else value
    return made


def snapshot(value: Any) -> Any:
    """What a call must not change in an argument."""
    if isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_meta:
        return value.dtype, value.requires_grad, repr(value.tolist())
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.strides, value.flags.writeable, value.tobytes()
    return [snapshot(part) for part in value] if isinstance(value, (list, tuple)) else None


def state(arguments: dict[str, Any]) -> Any:
    return snapshot([*arguments.values()]), np.geterr(), torch.is_grad_enabled(), torch.get_default_dtype()


def outcome(function: str, arguments: dict[str, Any]) -> Any:
    """Call, hold the outcome against the rule, and return the result or the promised error."""
    said = f"{function}({', '.join(f'{name}={shown(value)}' for name, value in arguments.items())})"
    before, result = state(arguments), None
    try:
        with warnings.catch_warnings(), np.errstate(all="raise"):
            warnings.simplefilter("error")
            result = FUNCTIONS[function](**arguments)
            result = list(result) if isinstance(result, xent.torch.Windows) else result
    except Exception as error:
        assert type(error) in (ValueError, TypeError), f"{said} raised {type(error).__name__}: {error}"
        begin = re.match(r"(\w+): ", str(error))
        # That there is nothing to average is said of the targets, whatever their name.
        assert begin and begin[1] in {*parameters(function), "targets"}, f"{said} names no argument: {error}"
        assert len(str(error)) < 1000, f"{said} raised an error of {len(str(error))} characters"
        result = error
    assert state(arguments) == before, f"{said} modified an argument or a global setting"
    if not isinstance(result, Exception) and not function.startswith("xent.torch"):
        assert not any(np.isnan(array).any() for array in numbers(result)), f"{said} returned {result!r}"
    return result


def numbers(result: Any) -> list[np.ndarray]:
    """The arrays of numbers in a result; an object is its attributes."""
    if isinstance(result, (list, tuple)):
        return [array for part in result for array in numbers(part)]
    if isinstance(result, (torch.Tensor, float, int, np.ndarray, np.generic)):
        return [np.asarray(result.detach() if isinstance(result, torch.Tensor) else result, float)]
    return numbers(list(vars(result).values())) if hasattr(result, "__dict__") else []


CALLS = [(function, argument) for function in FUNCTIONS for argument in parameters(function)]


@pytest.mark.parametrize(("function", "argument"), CALLS, ids=lambda name: name)
def test_what_is_never_right_is_refused(function: str, argument: str) -> None:
    call, parameter = sound(function, options={argument}), parameters(function)[argument]
    assert not isinstance(got := outcome(function, call), Exception), got
    tensor, good = parameter.annotation in TENSORS, call[argument]
    refused = [wrong for wrong in row(function, argument)[1] if wrong is not parameter.default]
    array = good.numpy() if tensor else good
    values = [wrong(array) if callable(wrong) else wrong for wrong in refused]
    if tensor:
        # The same as tensors; a nan is no error there, it stays nan.
        plain = [v for v in values if isinstance(v, np.ndarray) and v.dtype.kind in "fib"]
        values += [
            torch.from_numpy(v) for v in plain if not np.isnan(v).any() and not np.array_equal(v, array)
        ]
        values += [
            wrong(good) if callable(wrong) else wrong for wrong in NO_TENSOR if wrong is not parameter.default
        ]
    for value in values:
        got = outcome(function, {**call, argument: value})
        assert isinstance(got, Exception), f"{function} took {argument}={shown(value)} and returned {got!r}"


# fmt: off
WAYS: dict[str, Callable[[Any], Any]] = {
    "Fortran": np.asfortranarray,
    "reversed": lambda a: np.flip(np.array(np.flip(a))),
    "strided": lambda a: np.repeat(a, 2, 0)[::2],
    "read-only": lambda a: np.broadcast_to(a, a.shape),
    "unaligned": lambda a: np.frombuffer(b"\0" + a.tobytes(), a.dtype, offset=1).reshape(a.shape),
    "other byte order": lambda a: a.astype(a.dtype.newbyteorder("S")),
    "list": lambda a: a.tolist(), "tuple": tuple, "object": Holds,
    "buffer": memoryview, "tensor": lambda a: torch.from_numpy(np.array(a)),
    "half": lambda a: a.astype(np.float16 if a.dtype.kind == "f" else np.int8),
    "single": lambda a: a.astype(np.float32 if a.dtype.kind == "f" else np.uint16),
}
TENSOR_WAYS: dict[str, Callable[[Any], Any]] = {
    "strided": lambda t: t.repeat_interleave(2, 0)[::2],
    "transposed": lambda t: t.mT.contiguous().mT if t.ndim > 1 else t,
    "differentiable": lambda t: t.clone().requires_grad_() if t.is_floating_point() else t,
    "single": lambda t: t.float() if t.is_floating_point() else t.int(),
}
ROUGH = {"half": 64 * 2.0**-10, "single": 64 * 2.0**-23}  # some roundings in that dtype
WILD = [0.0, -0.0, 1.0, 0.5, 40.0, -745.0, 1e-8, 1e-300, 5e-324, -5e-324, 65504.0, -3e38, 1.7e308, -inf, inf]
WILD_NUMBERS = [0, 1, 2, 0.5, 5e-324, 1e-300, 1.0 - 2**-53, 1e308, -1, 10**12, 10**400, inf]
# fmt: on


@pytest.mark.parametrize("function", FUNCTIONS)
@settings(max_examples=30)
@given(data=st.data())
def test_an_array_that_is_stored_otherwise_is_the_same_array(function: str, data: st.DataObject) -> None:
    options = [name for name, p in parameters(function).items() if p.default is not p.empty]
    chosen = data.draw(st.sets(st.sampled_from(options))) if options else set()
    want, call, tolerance = outcome(function, sound(function, 1, chosen)), sound(function, 1, chosen), 1e-12
    assert not isinstance(want, Exception), want
    for name, value in call.items():
        ways = {np.ndarray: WAYS, torch.Tensor: TENSOR_WAYS}.get(type(value), {})
        if (way := data.draw(st.sampled_from(["as it is", *ways]), name)) in ways:
            call[name], tolerance = ways[way](value), max(tolerance, ROUGH.get(way, 0.0))
    got = outcome(function, call)
    assert not isinstance(got, Exception), got
    if ".sample" not in function:  # a draw may jump where a rounding moves its threshold
        for one, other in zip(numbers(got), numbers(want), strict=True):
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("function", FUNCTIONS)
@settings(max_examples=60)
@given(data=st.data())
def test_whatever_comes_ends_in_a_result_or_the_promised_error(function: str, data: st.DataObject) -> None:
    call = sound(function, options={"weight", "axis"})
    for name, value in call.items():
        if isinstance(value, (np.ndarray, torch.Tensor)) and name in TABLE:  # others go to the caller's model
            array = value.numpy() if isinstance(value, torch.Tensor) else value
            shapes = [array.shape] * 5 + [(), (0,), (0, K), (N, 0), (1, 1), (2, *array.shape)]
            shape = data.draw(st.sampled_from(shapes), name)
            pool = [*array.flat, *(WILD if array.dtype.kind == "f" else [0, 1, 2, K, -1, -100, 127])]
            size = math.prod(shape)
            parts = data.draw(st.lists(st.sampled_from(pool), min_size=size, max_size=size), name)
            array = np.array(parts, array.dtype).reshape(shape)
            call[name] = torch.from_numpy(array) if isinstance(value, torch.Tensor) else array
        elif type(value) in (int, float):
            call[name] = data.draw(st.sampled_from([value, *WILD_NUMBERS]), name)
    outcome(function, call)


# What such a search has found, and was mended.
T = "torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]])"
RIGHT: list[Any] = [
    ("xent.cross_entropy([[1e308, 0.0, 0.0]], [0])", 0.0),
    ("xent.log_softmax([1e19, 0.0])", [0.0, -1e19]),
    ("xent.nll([[0.0, -inf, -744.4400719213812]], [0])", 0.0),
    ("xent.gradients.softmax_jacobian([1.7e308, 1e-8])", [[0.0, 0.0], [0.0, 0.0]]),
    ("xent.distillation.distillation_gradient([0.0, 0.0], [-inf, 0.0])", [0.5, -0.5]),
    ("xent.distillation.sampled_loss([1e300, 1e300], [0], [1.0])", math.log(2)),
    ("xent.distillation.distillation_loss([1e308, 1e308], [0.0, 1.0], scale='none')", 0.11094407),
    ("xent.torch.distillation_loss(torch.tensor([1e30, 1e30]), torch.tensor([0.0, 1.0]))", 0.11094407),
    (f"xent.torch.cross_entropy({T}, torch.tensor([0, 1]), ignore_index=10**30)", 0.28872599),
    (f"xent.torch.cross_entropy({T}, torch.tensor([0, 1]), weight=np.array([1, 2, 3])[::-1])", 0.31250199),
    ("xent.torch.soft_cross_entropy(torch.tensor([[inf, 0.0]]), torch.tensor([[0.5, 0.5]]))", nan),
    ("xent.information.kl_divergence([0.5, 0.5], [1.0, 5e-324])", 371.52688878),
    ("xent.sequences.GeometricSource(0.5).kl(5e-324)", 743.05377756),
    ("xent.scoring.weighted_log_score([0.0, 1.0], 0, weight=[1e308, 1.0])", inf),
]


@pytest.mark.parametrize(("text", "value"), RIGHT)
def test_what_was_wrong_is_right(text: str, value: Any) -> None:
    with np.errstate(all="raise"):
        np.testing.assert_allclose(np.asarray(eval(text), float), value, rtol=3e-7, atol=1e-300)
