"""The contract of each public function: what it takes, and for all else the error that names the argument.

The table says by an argument's NAME what a sound value of it is, what is refused, and what is said then.
Functions and arguments are read from the package, so that a new one fails until its names stand here; arrays
and tensors share the rows. A call returns what is right, or raises a ValueError or TypeError (no subclass)
whose message begins with an argument's name. No warning and no floating-point flag gets out, no argument and
no global setting is modified, and no result of NumPy holds a nan. Whether a result is right is asked of
another call: an array stored otherwise is the same. Then come the rows that need arguments of their own.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import xent
import xent.torch
import xent.torch as xt
from xent._validate import shown
from xent.sequences import GeometricSource, MarkovSource

inf, nan = math.inf, math.nan
PARTS = ("information", "gradients", "scoring", "elicitation", "denominators", "sequences", "distillation")
# Types, what others return, and `diagnose`, which takes anything that can be called.
NOT_CALLED = {"MicroBatch", "Window", "Windows", "AccumulationReport", "Diagnosis", "diagnose", "TopK"}
INDICES, PROBS, TAIL = torch.tensor([[0, 2]] * 4), torch.tensor([[0.5, 0.25]] * 4), torch.full((4,), 0.25)
CHAIN = MarkovSource([0.5, 0.375, 0.125], [[0.25, 0.5, 0.25], [0.125, 0.5, 0.375]])
OBJECTS = {"GeometricSource": GeometricSource(0.25, 2), "MarkovSource": CHAIN}


def public() -> dict[str, Callable[..., Any]]:
    """Every public function, class, and method of a class, by its name."""
    found: dict[str, Callable[..., Any]] = {}
    for module in (xent, xent.torch, *(getattr(xent, part) for part in PARTS)):
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
    return xent.torch.TopK(**{"indices": INDICES, "probs": PROBS, "tail": TAIL, **other})


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


class Lightning(torch.nn.Linear):
    """As Lightning's Trainer, its loops and a LightningModule in one."""

    accumulate_grad_batches, train_step_context = 2, nullcontext
    itself = property(lambda x: x)
    fit_loop = epoch_loop = automatic_optimization = precision_plugin = output_result_cls = itself

    def from_training_step_output(self, output: torch.Tensor, size: int) -> SimpleNamespace:
        return SimpleNamespace(closure_loss=output / size)

    def train_dataloader(self) -> list[torch.Tensor]:
        return [torch.ones(1, 2), torch.ones(2, 2)]

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        return self(batch).mean()  # type: ignore[no-any-return]


class Wrong(NamedTuple):
    """What is refused, and how. In `said`, "..." is anything, and a name in braces is of the value."""

    error: type[Exception]
    said: str
    value: Any
    of_tensors: bool = True  # where False, tensors may hold it: a softmax that is nan


class Row(NamedTuple):
    """One argument: a sound value or how one is drawn, what is refused, and what is just right."""

    good: Any
    wrong: list[Wrong]
    right: tuple[Any, ...] = ()


def kind(said: str, *values: Any) -> list[Wrong]:
    return [Wrong(TypeError, said, value) for value in values]


def bad(said: str, *values: Any) -> list[Wrong]:
    return [Wrong(ValueError, said, value) for value in values]


def entry(expected: str, *values: Any, of_tensors: bool = True, at: str = "{at}") -> list[Wrong]:
    """Arrays with another last entry but one, which is the first that is wrong, and another last one."""

    def put(v: Any, new: Any) -> Any:
        return np.array([*np.ravel(v)[:-2], new, new]).reshape(np.shape(v))

    said = f"expected {expected}, got {{entry}} at index {at}"
    return [Wrong(ValueError, said, lambda v, new=new: put(v, new), of_tensors) for new in values]


# The table. A row has a sound value, or how a generator of random numbers draws it, and lists what is never
# right: as it is, or made from the sound value. Most are binary fractions, so that no dtype rounds them.

N, K = 4, 3
TENSORS = ("Tensor", "Tensor | None")  # annotations of what has to be a tensor
KINDS = {"f8", "f4", "f2", "i8", "i4", "b1", "c16"}  # that are tensors' too
# fmt: off
MASKED, LONG = np.ma.array([1.0, 2.0], mask=[0, 1]), np.dtype(np.longdouble).itemsize > 8
NO_ARRAY = [
    *kind("got dtype {dtype}", "text", b"text", None, [None, None], {}, {1.0}, object(), Decimal(1),
          [2**70, 1, 1], lambda v: np.zeros(np.shape(v), [("a", float)]), lambda v: (x for x in v),
          *(lambda v, to=to: np.array(v).astype(to)
            for to in ("c16", "O", "U", "m8[s]", "M8[s]", *["longdouble"] * LONG))),
    *kind("an array without a mask, got a masked array",
          [MASKED], Holds(MASKED), lambda v: np.ma.array(v, mask=True)),
    *kind("expected an array of numbers, got {type} (", Refuses(), Holds(Refuses()), [[1.0], [1.0, 2.0]]),
    *(Wrong(TypeError, "expected an array of numbers, got Tensor (", tensor, False)
      for tensor in (torch.zeros(2, 3, requires_grad=True), torch.zeros(2, 3, dtype=torch.bfloat16))),
]
NO_NUMBER = [
    *("text", "1", None, 1j, True, np.False_, [1], [[1], [1, 2]], {}, np.ones(2), np.array([0.25]), object(),
      np.ma.array(1, mask=True), Refuses(), np.timedelta64(1, "s"), np.array(True), np.str_("1")),
    *(np.complex128(1), torch.tensor(1.0, requires_grad=True), torch.ones(2), torch.ones((), device="meta")),
]
NO_INTEGER = kind("expected an integer, got {value}", *NO_NUMBER, 1.0, 2.5, nan, np.array(2.0))
NO_TENSOR = [
    *kind("expected a torch.Tensor, got {type}; for arrays use xent",
          "text", None, 1.0, Refuses(), lambda v: v.numpy(), lambda v: v.tolist()),
    *kind("got dtype torch.complex64", lambda v: v.to(torch.complex64)),
    *kind("expected a dense tensor, got layout torch.sparse_coo", lambda v: v.to_sparse()),
]
ANY_SHAPE = [lambda v: v[:-1], lambda v: v[..., None], lambda v: v[None]]
SHAPES = [*ANY_SHAPE, lambda v: v[:1], lambda v: v.ravel()[0]]
SHAPE = bad("expected shape {want}, ...got {shape}", *SHAPES)
BROADCAST = bad("expected a shape that broadcasts to (4,..., that of ..., got {shape}", *ANY_SHAPE)
BOOL = kind("got dtype {dtype}", lambda v: v > 0)
REAL = [*NO_ARRAY, *entry("numbers", nan, of_tensors=False)]
NO_CLASSES = [
    *bad("expected at least one dimension, the classes, got a single number", 1.0, np.array(1.0)),
    *bad("expected at least one class along axis 0, got shape (0,)", [], np.zeros(0)),
    *bad("expected at least one class along axis 1, got shape (4, 0)", np.zeros((4, 0))),
]
NO_SOFTMAX = [
    *entry("logits below +inf", inf, of_tensors=False),
    Wrong(ValueError, "a finite logit in every row, got -inf along the whole class axis 1 at index 2",
          lambda v: v - [[0], [0], [inf], [inf]], False),
]
INDEX = [
    *NO_ARRAY, *entry("class indices in [0, 3)", -1, K, 255, 2**40, 2**63 - 1),
    *kind("expected integer class indices, got dtype {dtype}",
          lambda v: np.array(v, float), lambda v: np.array(v, "f2"), lambda v: np.array(v) > 0),
]
SHARE = [*NO_ARRAY, *entry("probabilities in [0, 1]", nan, -0.25, inf, 1.5)]
SHARES = [
    *SHARE, *BOOL,
    *bad("sum to one along axis ... (within 1e-06 for ...float64), got a sum of 1.00000", lambda v: v + 1e-6),
    *bad("(within 0.0001 for ...float32), got a sum of 1.000", lambda v: (v + 1e-4).astype("f4")),
    *bad("(within 0.01 for ...float16), got a sum of 0.9", lambda v: (v - 1e-2).astype("f2")),
]
VECTOR = bad("got ...{shape}", lambda v: v[None], lambda v: np.full(2, 0.5))
MASS = [*NO_ARRAY, *entry("finite weights >= 0", nan, -1.0, inf)]
# On tensors the place of what is spread is that in the whole.
SPREAD = [*NO_ARRAY, *BROADCAST[:2], *entry("finite weights >= 0", nan, -1.0, inf, at="...{at}")]


def number(good: Any, expected: str, *values: Any, right: tuple[Any, ...] = (), more: Any = ()) -> Row:
    """The row of a number; one of those out of range also as an array without dimensions."""
    no_number = kind(f"expected {expected}, got {{value}}", *NO_NUMBER)
    beyond = bad(f"expected {expected}, got {{value}}", nan, -inf, *values, np.array(values[0]))
    return Row(good, [*no_number, *beyond, *more], right)


def count(good: Any, said: str = "", *above: Any, right: tuple[Any, ...] = ()) -> Row:
    return Row(good, [*NO_INTEGER, *bad("got {value}", 0, -1), *bad(said, *above)], right)


def thing(good: Any, said: str, *values: Any) -> Row:
    """The row of what is no number: a switch, an object, a function."""
    return Row(good, kind(said, *values, 3, "text", Refuses()))


def choice(good: str) -> Row:
    said = "expected one of '...', got {value}"
    none = kind(said, None, 1, True, Refuses(), lambda v: [v], str.encode)
    return Row(good, [*none, *bad(said, "", "text", "x" * 9999, str.upper)])


P = np.array([[0.75, 0.125, 0.125], [0.125, 0.125, 0.75]] * (N // 2))
TWO = [torch.ones(1, 2), torch.ones(2, 2)]
LOGIT = Row(lambda g: np.round(g.normal(size=(N, K)) * 64) / 32, [*REAL, *BOOL])
LOGITS = Row(LOGIT.good, [*LOGIT.wrong, *NO_CLASSES, *NO_SOFTMAX])
CLASSES = Row(lambda g: g.integers(0, K, N), [*INDEX, *SHAPE])
PICKED = [*INDEX, *bad("rows of shape (4,), got shape {shape}", *SHAPES)]
BY_CLASS = Row(np.array([1.0, 2.0, 0.5]), [*MASS, *SHAPE])
BIAS = Row(np.array([0.5, -1.0, 0.25]), [*REAL, *SHAPE])
HIDDEN, LINEAR = (Row(lambda g, n=n: np.round(g.normal(size=(n, 2)) * 8) / 8, REAL) for n in (N, K))
TABLE: dict[str, Row] = {
    **dict.fromkeys(("logits", "student_logits"), LOGITS),
    "x": Row(LOGIT.good, [*LOGIT.wrong, *NO_CLASSES]),
    "teacher_logits": Row(LOGIT.good, [*LOGIT.wrong, *SHAPE]),
    "targets": CLASSES,
    **dict.fromkeys(("probs", "p"), Row(P, [*SHARES, *NO_CLASSES])),
    **dict.fromkeys(("q", "target_probs"), Row(P, [*SHARES, *SHAPE])),
    "log_probs": Row(np.log(P), [
        *REAL, *BOOL, *NO_CLASSES,
        *bad("sum to one along axis 1 (within 1e-06 for 3 classes in ...", lambda v: v + 2e-6, np.exp),
        *bad("got a log-sum-exp of -inf at index 0", lambda v: v - inf),
        *bad("got a log-sum-exp of inf at index 2", lambda v: v - [[0], [0], [-inf], [-inf]]),
        *bad("got a log-sum-exp of 10000 at index 2", lambda v: v - [[0], [0], [-1e4], [-1e4]]),
    ]),
    "weight": BY_CLASS,
    "sizes": Row(BY_CLASS.good, [*BY_CLASS.wrong, *entry("sizes > 0", 0.0)]),
    **dict.fromkeys(("class_probs", "others"), Row(np.array([0.5, 0.25, 0.25]), [*SHARES, *VECTOR])),
    "sample_weight": Row(np.array([1.0, 2.0, 0.5, 0.0]), [*MASS, *BROADCAST]),
    "pos_weight": Row(BY_CLASS.good, [
        *SPREAD, *bad("expected finite weights > 0, got ", 0, [1.0, 0.0, 1.0], [True, False, True])]),
    "top_log_probs": Row(np.log(P[:, :2]), [
        *NO_ARRAY, *BOOL, *bad("top_indices: expected ...shape..., got (4, 2)", lambda v: v[:-1]),
        *bad("2 dimensions, as student_logits, got shape {shape}", lambda v: v[None], lambda v: v[0]),
        *bad("sum to at most one (within 1e-06 for ...float64), got a sum of 2", lambda v: v * 0.0),
        *bad("got a sum of nan at index 2", lambda v: v * [[1], [1], [nan], [nan]]),
    ]),
    "top_indices": Row(np.array([[0, 1], [2, 1]] * (N // 2)), PICKED),
    "probabilities": Row(np.array([0.5, 0.25, 0.25]), [*SHARES, *NO_CLASSES]),
    "lengths": Row(np.array([1, 3, 8]), [
        *NO_ARRAY, *entry("lengths >= 1, <eos> included", 0, -1),
        *kind("expected integers, <eos> included, got dtype {dtype}", lambda v: v / 2),
    ]),
    "prompts": Row(np.array([7, 5, 7]), [
        *kind("", Refuses(), Holds(Refuses()), [[1], [1, 2]], [MASKED]),
        *bad("expected shape (3,), one for each of lengths, got {shape}", "text", {}, *ANY_SHAPE),
        *kind("expected integers or texts, got", [1.0, 2.0, 1.0], [True] * 3, lambda v: v.astype("m8[s]"),
              np.array(["a", None, "b"], object), np.array([{}, (), 1], object)),
    ]),
    "initial": Row(np.array([0.5, 0.375, 0.125]), [
        *SHARES, *NO_CLASSES, *bad("expected one dimension, got shape {shape}", lambda v: v[None]),
        *bad("expected K + 1 >= 2 tokens, <eos> last, got 1", [1.0]),
    ]),
    "transition": Row(CHAIN.transition, [*SHARES, *SHAPE]),
    **dict.fromkeys(("hidden", "student_hidden", "teacher_hidden"), HIDDEN),
    **dict.fromkeys(("linear_weight", "student_weight", "teacher_weight"), LINEAR),
    **dict.fromkeys(("linear_bias", "student_bias", "teacher_bias"), BIAS),
    "k": count(2, "from 1 to 3, got 4", K + 1, right=(K,)),
    "teacher_top_k": Row(cached(), [
        *kind("expected an xent.torch.TopK, got {type}", 3, "text", torch.ones(N, 2)),
        *bad("distinct classes, got a repeated one at index 0", cached(indices=torch.ones(N, 2).long())),
        *bad("class indices in [0, 3), got 3 at index (0, 0)", cached(indices=INDICES + 3)),
        *bad("probabilities in [0, 1], got", cached(probs=-PROBS), cached(probs=PROBS * nan)),
    ]),
    "axis": Row(-1, [
        *NO_INTEGER, *kind("expected an integer, got {value}", (0, 1)),
        *bad("expected an axis of ... with shape {like}, got {value}", 2, -3, 10**30, 10**5000)]),
    **dict.fromkeys(("letters", "steps"), count(2)),
    "n_max": count(3, "up to 1e+09, got {value}", 10**9 + 1, 10**30),
    "batch_size": count(3, "up to 1e+12, got {value}", 10**12 + 1, 10**400),
    "size": Row(3, [*NO_INTEGER, *bad("got {value}", -1, 10**30)]),
    "ignore_index": Row(-100, NO_INTEGER, (10**30,)),
    "eps": number(0.125, "a number in [0, 1/2)", -0.25, 0.5, inf, right=(0.0,)),
    **dict.fromkeys(("gamma", "z_loss"), number(2.0, "a finite number >= 0", -1.0, inf, 10**400, right=(0,))),
    "base": number(2.0, "a number > 0 that is not 1", 0, -1.0, inf, 1.0, right=(0.5,)),
    "stop": number(0.25, "a probability in (0, 1]", 0, -1.0, 1.5, inf, right=(1.0,),
                   more=bad("a probability whose inverse is a float, got 4.94066e-324", 5e-324)),
    **dict.fromkeys(("label_smoothing", "alpha"),
                    number(0.25, "a number in [0, 1]", -0.25, 1.0000001, inf, right=(0, 1.0))),
    "beta": number(0.25, "a number in (0, 1)", -0.25, 0.0, 1.0, inf),
    **dict.fromkeys(("softcap", "temperature"),
                    number(2.0, "a finite number > 0", 0, -1.0, inf, -(10**400), 10**400)),
    "denominator": number(2.0, "a finite number >= 0", -1.0, inf, 10**400, more=bad(
        "a number > 0, since there are targets that count, got 0", 0, np.array(0))),
    "tolerance": number(1e-3, "a number in (0, 1)", -1.0, 0.0, 1.0),
    "reduction": choice("mean"), "scale": choice("none"), "direction": choice("reverse"),
    "treatment": choice("renormalised"),
    "entropy": thing(False, "expected True or False, got {value}", 1, None),
    "rng": thing(lambda g: np.random.default_rng(0), "a numpy.random.Generator, got {type}", None),
    "model": thing(CHAIN, "a MarkovSource, got {type}", None),
    "rule": Row(lambda g: xent.scoring.brier_score, [
        *kind("a scoring rule, rule(probs, targets), got {value}", None, 3, "text", Refuses()),
        *kind("costs that are numbers, got dtype <U1", lambda v: lambda q, y: "a"),
    ]),
    "batches": Row([torch.tensor([1, 2]), torch.tensor([3, -100])], [
        *kind("an iterable of micro-batches, got {type}", None, 5),
        *kind("targets: expected integer labels, ...got torch.complex64 of shape (1,)", [torch.tensor([1j])]),
    ]),
    "micro_batches": Row(TWO, [
        *kind("an iterable of batches, got {type}", None, 5),
        *bad("two or more, the same number on each rank, got 0", []),
    ]),
    "step": thing(lambda g: lambda model, batches: sum(model(b).sum() for b in batches).backward(),
                  "a function, got {value}", None),
    "reference": thing(lambda g: lambda model, b: model(b).sum().backward(), "a function, got {value}"),
    "trainer": thing(lambda g: (Lightning(2, 1),) * 2, "", None, (Lightning(2, 1), None), (1, 2)),
    "group": Row(None, []),
}
# Where a function's argument is another thing than its name says elsewhere.
OWN: dict[str, dict[str, Row]] = {
    **{f"binary_{what}{of}": {
        "logits": LOGIT, "targets": Row(lambda g: g.integers(0, 2, (N, K)) * 1.0, [*SHARE, *SHAPE]),
        "sample_weight": Row(np.ones((N, K)), [*MASS, *BROADCAST]), "probs": Row(P / 2, [*SHARE, *BOOL]),
    } for what in ("cross_entropy", "log_loss") for of in ("", "_gradient")},
    "sigmoid": {"logits": LOGIT}, "log_sigmoid": {"logits": LOGIT},
    "top_k_of_teacher": {"teacher_logits": LOGITS},
    "focal_loss": {"alpha": BY_CLASS},
    # They say no more than which count.
    "linear_distillation_loss": {"targets": Row(CLASSES.good, [*NO_ARRAY, *SHAPE])},
    **{f"GeometricSource.{of}": {"q": number(0.5, "a probability in [0, 1]", -1.0, 1.5, inf, right=(0, 1))}
       for of in ("cross_entropy", "kl", "averaged_cross_entropy")},
    "GeometricSource.sample": {"size": TABLE["size"]._replace(right=(0, (2, 0)))},
    "clipped_log_score": {"eps": number(0.125, "a number in (0, 1/2)", 0.0, 0.5)},
    "invert_smoothing": {"label_smoothing": number(0.125, "a number in [0, 1)", -0.25, 1.0, right=(0,))},
    "elicited": {"target_probs": Row(np.array([0.75, 0.25]), [*SHARES, *NO_CLASSES])},
    "expected_score": {"target_probs": Row(P, [*SHARES, *NO_CLASSES, *bad(
        "expected shape (3,) or (4, 3), that of probs, got {shape}", lambda v: v[:-1], lambda v: v[None])])},
    "check_accumulation": {
        "model": thing(lambda g: torch.nn.Linear(2, 1), "a torch.nn.Module, got {type}", None),
        "targets": Row(lambda g: lambda batch: torch.zeros(len(batch), dtype=torch.long), []),
        "whole_batch": Row(torch.ones(3, 2), []),
    },
    "check_trainer": {"batches": Row(TWO, [
        *kind("an iterable of micro-batches, got {type}", 5), *bad("2 micro-batches, one window, got 0", []),
        *bad("2 micro-batches, one window, got 1", [torch.ones(1, 2)]),
    ])},
    "accumulate": {"targets": Row(lambda g: lambda batch: batch, []),
                   "denominator": Row("tokens", bad("got {value}", 0, -1.0))},
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
LIVE = {"teacher_hidden", "teacher_weight", "teacher_bias", "direction"}


def row(function: str, argument: str) -> Row:
    """A function's row for one of its arguments."""
    own = next((rows for name, rows in OWN.items() if function.endswith(f".{name}")), {})
    assert argument in own or argument in TABLE, f"{function}: TABLE has no row for its argument {argument!r}"
    return own.get(argument) or TABLE[argument]


def parameters(function: str) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(FUNCTIONS[function]).parameters


def sound(function: str, seed: int = 0, options: Iterable[str] = ()) -> dict[str, Any]:
    """A sound call: the arguments that the function needs, and these of its options."""
    g, made, left_out = np.random.default_rng(seed), {}, LIVE if "teacher_top_k" in options else set()
    for name, parameter in parameters(function).items():
        wanted = name in [*options, *NEEDED.get(function.split(".")[-1], [])]
        if parameter.default is parameter.empty or (wanted and name not in left_out):
            value = copy.deepcopy(row(function, name).good)
            value = value(g) if callable(value) else value
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
    words = f"{function}({', '.join(f'{name}={shown(value)}' for name, value in arguments.items())})"
    before, result = state(arguments), None
    try:
        with warnings.catch_warnings(), np.errstate(all="raise"):
            warnings.simplefilter("error")
            result = FUNCTIONS[function](**arguments)
            result = list(result) if isinstance(result, xent.torch.Windows) else result
    except Exception as error:
        assert type(error) in (ValueError, TypeError), f"{words} raised {type(error).__name__}: {error}"
        begin = re.match(r"(\w+): ", str(error))
        # That there is nothing to average is said of the targets, whatever their name.
        assert begin and begin[1] in {*parameters(function), "targets"}, f"{words} names no argument: {error}"
        assert len(str(error)) < 1000, f"{words} raised an error of {len(str(error))} characters"
        result = error
    assert state(arguments) == before, f"{words} modified an argument or a global setting"
    if not isinstance(result, Exception) and not function.startswith("xent.torch"):
        assert not any(np.isnan(array).any() for array in numbers(result)), f"{words} returned {result!r}"
    return result


def said(error: Any) -> str:
    """The kind of error, and its message."""
    return f"{type(error).__name__}: {error}"


def numbers(result: Any) -> list[np.ndarray]:
    """The arrays of numbers in a result; an object is its attributes."""
    if isinstance(result, (list, tuple)):
        return [array for part in result for array in numbers(part)]
    if isinstance(result, (torch.Tensor, float, int, np.ndarray, np.generic)):
        return [np.asarray(result.detach() if isinstance(result, torch.Tensor) else result, float)]
    return numbers(list(vars(result).values())) if hasattr(result, "__dict__") else []


CALLS = [(function, argument) for function in FUNCTIONS for argument in parameters(function)]


def tried(function: str, argument: str, call: dict[str, Any]) -> Iterator[tuple[Wrong, Any]]:
    """What a function refuses for an argument: the row's values, and tensors of them where they fit."""
    annotation, good = str(parameters(function)[argument].annotation), call[argument]
    only_tensors, array = annotation in TENSORS, np.asarray(good) if annotation in TENSORS else good
    for case in row(function, argument).wrong:
        value = case.value(array) if callable(case.value) else case.value
        may_be_tensor = "Tensor" in annotation
        if not only_tensors and (case.of_tensors or not may_be_tensor):
            yield case, value
        if may_be_tensor and case.of_tensors and type(value) is np.ndarray and value.dtype.str[1:] in KINDS:
            yield case, torch.from_numpy(np.array(value))
    for case in NO_TENSOR if only_tensors else []:
        yield case, case.value(good) if callable(case.value) else case.value


def expected(case: Wrong, argument: str, value: Any, call: dict[str, Any]) -> str:
    """The pattern of what is said of a value."""
    shapes = [tuple(v.shape) for v in (call[argument], *call.values()) if hasattr(v, "shape")]
    words = {"value": shown(value), "type": type(value).__name__, "want": shapes[0] if shapes else ()}
    words["like"] = next((shape for shape in shapes if len(shape) == 2), ())
    with contextlib.suppress(Exception):
        array = value if isinstance(value, torch.Tensor) else np.asanyarray(value)
        words |= {"dtype": array.dtype, "shape": tuple(array.shape)}
        at = tuple(map(int, np.unravel_index(math.prod(array.shape) - 2, array.shape)))
        words |= {"entry": array[at].item(), "at": at if len(at) > 1 else at[0]}
    said = case.said if re.match(r"\w+: ", case.said) else f"{argument}: ...{case.said}"
    said = re.escape(said.format(**words)).replace(re.escape("..."), ".*")
    return f"(?s){case.error.__name__}: {said}"


@pytest.mark.parametrize(("function", "argument"), CALLS, ids=lambda name: name)
def test_what_is_never_right_is_refused(function: str, argument: str) -> None:
    call, default = sound(function, options={argument}), parameters(function)[argument].default
    for value in (call[argument], *row(function, argument).right):
        got = outcome(function, {**call, argument: value})
        assert not isinstance(got, Exception), f"{function} refused {argument}={shown(value)}: {got}"
    unlike = []
    for case, value in tried(function, argument, call):
        if value is not default:
            got = said(outcome(function, {**call, argument: value}))
            if not re.match(pattern := expected(case, argument, value, call), got):
                unlike.append(f"{argument}={shown(value)}: expected {pattern}, got {got}")
    assert unlike == []


@pytest.mark.parametrize(
    "function", [f for f in FUNCTIONS if {"reduction", "denominator"} <= {*parameters(f)}]
)
def test_where_nothing_counts_there_is_no_mean(function: str) -> None:
    call, names = sound(function), parameters(function)
    empty = {name: value[:0] for name, value in call.items() if np.shape(value)[:1] == (N,)}
    nothing = [empty, {"sample_weight": False}]
    if "ignore_index" in names:
        nothing.append({"targets": call["targets"] * 0 - 100, "ignore_index": -100})
    for change in nothing:
        got = said(outcome(function, call | change))
        assert got.startswith("ValueError: targets: expected at least one target that counts, got none")
        for options in ({"reduction": "sum"}, {"reduction": "none"}, {"denominator": 3}, {"denominator": 0}):
            for array in numbers(outcome(function, call | change | options)):
                assert not array.any()
    for reduction in ("none", "sum"):
        got = said(outcome(function, call | {"reduction": reduction, "denominator": 2}))
        assert got == f"ValueError: denominator: only the mean has one, got denominator=2 with {reduction=}"
    for name, huge in (("weight", [1.5e308] * K), ("sample_weight", 1.5e308)):
        if name in names and not function.startswith("xent.torch"):
            got = said(outcome(function, call | {name: huge}))
            assert got.endswith(": expected weights with a finite sum, got weights that add up to inf"), got


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
    **{to: lambda a, to=to: a.astype(a.dtype if a.dtype.kind == "f" else to) for to in ("u1", "i4", "u8")},
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


# ------------------------------------------------- what a refusal proposes, and what is right although it looks wrong

G = np.random.default_rng(0)
Z, Y = G.normal(size=(4, 3)), np.array([0, 2, 1, 1])
Q = np.exp(Z) / np.exp(Z).sum(1, keepdims=True)
HOT = np.eye(3, dtype=int)[Y]
MAP, MAP_Y = np.ascontiguousarray(np.moveaxis(G.normal(size=(2, 5, 4, 3)), 2, 1)), G.integers(0, 4, (2, 5, 3))
MAP_P = np.exp(MAP) / np.exp(MAP).sum(1, keepdims=True)
ONE, ONE_Y = np.array([0.3, 0.8, 0.5]), np.array([0, 1, 1])
FIRST = "; the predictions come first, and then the targets"
NUMBER = (
    "; for one number a target there are binary_cross_entropy (logits) and binary_log_loss (probabilities)"
)
BOTH: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "arrays": (xent, np.asarray),
    "tensors": (xt, lambda x: torch.as_tensor(np.asarray(x))),
}

# fmt: off
# Predictions, targets, options, and how the message ends. First what each loss of class indices says.
LABELLED = [*((name, Z, MAP) for name in ("cross_entropy", "focal_loss")),
            ("nll", np.log(Q), np.log(MAP_P)), ("log_loss", Q, MAP_P)]
HINTS: list[tuple[Any, ...]] = [(name, *row) for name, x, grid in LABELLED for row in (
    (Y, x, {}, FIRST),  # scikit-learn's order
    (HOT, x[:, None], {}, FIRST),
    (HOT * 1.0, Q if name == "log_loss" else x, {}, FIRST),
    (grid, MAP_Y, {}, "; axis=1 fits"),  # channels second
    (np.moveaxis(grid, 1, -1), MAP_Y, {"axis": 1}, "; axis=3 fits"),
    (x, [0, -100, 1, -100], {}, "; ignore_index=-100 leaves such targets out"),
    (x, [0, 255, 1, 2], {}, "; ignore_index=255 leaves such targets out"),
    (x, [0, 255, 1, 2], {"ignore_index": -1}, "; ignore_index=255 leaves such targets out"),
    (x, Y + 1, {}, "; classes count from 0"),
    (x, HOT, {}, "; one-hot targets: give their argmax, or use soft_cross_entropy"),
    (x, Q, {}, "; for target probabilities use soft_cross_entropy"),
    (x[:, 0], Y, {}, NUMBER),
    (x[:, :1] * 0 + (name == "log_loss"), Y % 2, {}, NUMBER),
    (x[:, :1], Y[:, None], {}, NUMBER),
    (x, Y * 1.0, {}, "; class indices are integers, and these are floats"),
    (x, [3, 0, 1, 2], {}, "got 3 at index 0"),  # no hint where none fits
    (x, [5, 1, 2, 1], {}, "got 5 at index 0"),
    (x, [0, 1, 2, 0, 1], {}, "got (5,)"),
)] + [
    ("log_loss", MAP_P[:, :, 0], MAP_Y[:, 0], {"axis": 2}, "; axis=1 fits"),  # told by its values
    ("log_loss", Z, Y, {}, "; for logits use cross_entropy"),
    ("nll", Z, Y, {}, "; for logits use cross_entropy"),
    ("soft_cross_entropy", Q, Z, {}, FIRST),
    ("soft_cross_entropy", Z, Y, {}, "; for class indices use cross_entropy"),
    ("soft_cross_entropy", MAP[:, :, 0], MAP_P[:, :, 0], {}, "; axis=1 fits"),
    ("soft_cross_entropy", ONE, ONE, {}, NUMBER),
    ("binary_log_loss", ONE * 9, ONE_Y, {}, "; for logits use binary_cross_entropy"),
    ("binary_log_loss", [3.0, 0.5], [0, 1], {}, "got 3.0 at index 0; for logits use binary_cross_entropy"),
    ("binary_log_loss", ONE_Y, ONE, {}, f"expected probabilities, got labels of 0 and 1{FIRST}"),
    ("binary_cross_entropy", ONE_Y * 1.0, ONE * 9, {}, FIRST),
    ("binary_cross_entropy", Q, Y, {}, "; for a row of classes a target use cross_entropy"),
    ("binary_log_loss", Q, Y, {}, "; for a row of classes a target use log_loss"),
    ("binary_cross_entropy", ONE, [0, -100, 1], {}, "; sample_weight=0 leaves such targets out"),
    ("binary_log_loss", ONE, [0, -100, 1], {}, "; sample_weight=0 leaves such targets out"),
]
# fmt: on


@pytest.mark.parametrize("side", BOTH)
@pytest.mark.parametrize(("name", "predictions", "targets", "options", "said"), HINTS)
def test_a_refusal_says_what_would_have_fitted(
    name: str, predictions: Any, targets: Any, options: dict[str, Any], said: str, side: str
) -> None:
    package, convert = BOTH[side]
    z, y, named = convert(predictions), convert(targets), "targets|target_probs|probs|logits|log_probs"
    if side == "tensors" and z.dtype == torch.int64:
        said = "; labels come second, as targets"  # a tensor of integers cannot be logits
    with pytest.raises((TypeError, ValueError), match=rf"^({named}): .*{re.escape(said)}$"):
        getattr(package, name)(z, y, **options)


# fmt: off
ROWS, TWO_Y = np.array([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]]), np.array([0, 1])
T, T_Y = torch.tensor(ROWS), torch.tensor(TWO_Y)
JAX = type("ArrayImpl", (), {"__module__": "jaxlib._jax", "__array__": lambda self, *_, **__: np.array(ROWS)})
ce, bce, bll = xent.cross_entropy, xent.binary_cross_entropy, xent.binary_log_loss
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: ce(ROWS, [-100, -2], ignore_index=-100), "targets: ...in [0, 3), got -2 at index 1"),
    (lambda: ce(ROWS, np.array([0, 2**64 - 1], "u8")), "targets: ...got 18446744073709551615 at index 1"),
    (lambda: ce(ROWS[0], [0]), "targets: expected shape (), ...got (1,)"),
    (lambda: ce(ROWS[:0], np.zeros(0)), "targets: expected integer class indices, got dtype float64"),
    (lambda: ce(JAX(), TWO_Y), "logits: ... a JAX array, whose gradient would be lost"),
    # The row that counts is named, beside those that do not.
    (lambda: ce([[nan, 0.0], [nan, 0.0]], [-1, 0], ignore_index=-1), "logits: ...got nan at index (1, 0)"),
    (lambda: ce([[nan, 0.0], [nan, 0.0]], [0, 1], weight=[0.0, 1.0]), "logits: ...got nan at index (1, 0)"),
    (lambda: ce([[nan, 0.0]] * 2 + [[0.0, nan]], [-1, 0, 1], weight=[0.0, 1.0], ignore_index=-1),
     "logits: ...got nan at index (2, 1)"),
    # alpha is no weight; and a log-sum-exp that float32 does not hold is none of probabilities.
    *((partial(xent.focal_loss, [row, [0.0, 0.0]], [0, 1], alpha=alpha), "logits: expected")
      for row in ([nan, 0.0], [0.0, nan], [-inf, -inf], [inf, 0.0], [0.0, inf]) for alpha in ([0, 1], [1, 0])),
    *((partial(xent.nll, np.float32([[far, 0.0]]), [0]), "log_probs: ...; for logits use cross_entropy")
      for far in (80.0, 160.0)),
    (lambda: xt.cross_entropy(T, T_Y.to("meta")), "targets: ...device of the logits, cpu, got meta"),
    (lambda: xt.cross_entropy(T, T_Y, weight=[1.5e308] * 3), "weight: expected weights with a finite sum, got ...inf"),
    (lambda: xt.distillation_loss(T.float(), T.float(), temperature=1e-40),
     "temperature: expected a number > 0 in the range of torch.float32, got 1e-40"),
    (lambda: xt.cross_entropy(T.float(), T_Y, softcap=1e39),
     "softcap: expected a number > 0 in the range of torch.float32, got 1e+39"),
    *((partial(getattr(package, name), x, dim=1), "axis: expected the class axis under this name, got dim=1")
      for package, x, names in ((xent, ROWS, ("softmax", "log_softmax", "log_sum_exp")), (xt, T, ("log_softmax",)))
      for name in names),
    (lambda: xt.log_softmax(T[:0], axis=0), "logits: expected at least one class along axis 0, got shape (0, 3)"),
]
Y3, Z3 = np.array([True, False, True]), np.array([2.0, 1.0, 0.0])
RIGHT: list[tuple[Callable[[], Any], Any]] = [
    (lambda: xent.sequences.GeometricSource(0.5).kl(5e-324), 743.05377756),  # what a search has found
    # Booleans are masks and labels; labels of 0 and 1 may be probabilities, and integers logits.
    (lambda: [bce(Z3, Y3), bce(Z3, Y3, sample_weight=Y3)], [bce(Z3, [1, 0, 1]), bce(Z3[Y3], [1, 1])]),
    (lambda: ce(ROWS, [0, 0], sample_weight=[True, False]), ce(ROWS, [0, -100], ignore_index=-100)),
    (lambda: [bll([0, 1], [0, 1]), bll(ONE_Y * 1.0, ONE)], [0, inf]),
    (lambda: [bce([0, 0], [0.25, 0.75]), ce([[0, 0], [1, 1]], [0, 1])], [np.log(2)] * 2),
    # One row takes one label, an empty list is a list of labels, and a factor of the loss no weight.
    (lambda: [ce(ROWS[0], 0), ce(ROWS[0], np.array(0))], [ce(ROWS[:1], [0])] * 2),
    (lambda: ce(np.zeros((0, 3)), [], reduction="none"), np.zeros(0)),
    (lambda: ce(np.zeros((2, 0, 3)), [[], []], reduction="none"), np.zeros((2, 0))),
    (lambda: bce([1.0, 2.0], [1, 1], pos_weight=1e307), 5e306 * bce([1.0, 2.0], [1, 1], reduction="sum")),
    # Weights broadcast as NumPy's arrays do.
    *((partial(f, x, HOT[:2], **{name: w}), f(x, HOT[:2], **{name: np.broadcast_to(w, (2, 3)) * 1.0}))
      for w in (2.0, [2.0], [1.0, 2.0, 3.0], [[1.0], [2.0]], np.ones((2, 3)), Y3)
      for f, x, name in (
          (bce, ROWS, "sample_weight"), (bce, ROWS, "pos_weight"), (ce, MAP[:, :, :3, 0].mT, "sample_weight"))
      if name == "sample_weight" or np.all(w)),
]
# fmt: on


@pytest.mark.parametrize(("call", "said"), REFUSED)
def test_what_needs_more_than_one_argument_is_refused(call: Callable[[], Any], said: str) -> None:
    pattern = re.escape(said).replace(re.escape("..."), ".*")
    with np.errstate(all="raise"), pytest.raises((TypeError, ValueError), match=f"^{pattern}"):
        call()


@pytest.mark.parametrize(("call", "value"), RIGHT)
def test_what_looks_wrong_is_right(call: Callable[[], Any], value: Any) -> None:
    with np.errstate(all="raise"):
        np.testing.assert_allclose(np.asarray(call(), float), value, rtol=3e-7, atol=1e-300)


@pytest.mark.parametrize("classes", [2, 4, 5, 10, 1000])
def test_a_sum_may_be_off_by_the_rounding_of_its_terms(classes: int) -> None:
    p, within = np.full(classes, 1 / classes), max(1e-6, 4.8e-7 * classes**0.5)
    p[0] += 0.99 * within
    for package, convert in BOTH.values():
        package.soft_cross_entropy(convert(np.zeros(classes)), convert(p))
    p[0] += 0.02 * within
    for package, convert in BOTH.values():
        with pytest.raises(ValueError, match=r"^target_probs: .*sum to one"):
            package.soft_cross_entropy(convert(np.zeros(classes)), convert(p))


PROMISED = re.findall(r"torch>=([\d.]+)", (Path(__file__).parents[2] / "pyproject.toml").read_text())
TRAINERS = {"transformers", "lightning", "trl", "accelerate"}
HEAVY = "print({'torch', 'sklearn', 'keras', 'tensorflow', 'matplotlib'} & {*sys.modules})"
DIAGNOSED = "assert diagnose(cross_entropy).known and not diagnose(lambda a, b: 1.0).known"
MISSING = f"ImportError: xent.torch needs PyTorch {PROMISED[0]} or newer"  # both extras say the same


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys, xent; assert 'torch' not in sys.modules; print(xent.torch.nll.__name__)", "nll"),
        (f"import sys, xent.torch; print(set({sorted(TRAINERS)}) & set(sys.modules))", "set()"),
        (f"import sys; from xent import cross_entropy, diagnose; {DIAGNOSED}; {HEAVY}", "set()"),
        (f"import sys; from xent_book import behaviours; behaviours.rows(); {HEAVY}", "set()"),
        (f"import sys; from xent_book import exercises; exercises.names(); {HEAVY}", "set()"),
        ("import sys, xent; print('xent_book' in sys.modules)", "False"),
        ("import xent; xent.flax", "AttributeError: module 'xent' has no attribute 'flax'"),
        ("import sys, xent; sys.modules['torch'] = None; import xent.torch", MISSING),
        ("import sys, xent; sys.modules['torch'] = None; xent.torch", MISSING),
        ("import torch; torch.__version__ = '2.5.1+cpu'; import xent.torch", f"{MISSING}, found 2.5.1+cpu"),
    ],
)
def test_what_is_loaded_when_it_is_looked_at_and_named_when_missing(code: str, said: str) -> None:
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (finished.stdout + finished.stderr).strip().splitlines()[-1] == said
