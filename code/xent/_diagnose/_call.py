"""Calling a loss that may be anything: with which arrays, in which way, and what came back."""

from __future__ import annotations

import contextlib
import inspect
import sys
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"
Loss: TypeAlias = "Callable[..., Any]"

SLOW = 3.0  # seconds, of one call
LIBRARIES = {"numpy": "NumPy arrays", "torch": "PyTorch tensors", "tensorflow": "TensorFlow tensors"}


def to_numpy(value: Any) -> Array:
    """What a tensor of any kind, an array or a list of them holds; half precision becomes float64."""
    if isinstance(value, list | tuple) and any(hasattr(v, "detach") or hasattr(v, "numpy") for v in value):
        value = np.stack([to_numpy(v) for v in value])
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.to_dense() if str(value.layout) != "torch.strided" else value
        # NumPy has neither bfloat16 nor the formats of eight bits.
        value = value.double() if "float" in str(value.dtype) and value.element_size() < 4 else value
    elif hasattr(value, "numpy") and "bfloat16" in str(value.dtype):
        value = import_module("tensorflow").cast(value, "float64")
    found = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    return found.astype(np.float64) if found.dtype.kind in "fV" and found.itemsize < 4 else found


def library(value: Any) -> str:
    """The package that an array's type comes from."""
    return type(value).__module__.partition(".")[0]


def dtype_name(value: Any) -> str:
    """The name of an array's format; a list's or a number's is float64."""
    dtype = getattr(value, "dtype", "float64")
    return str(getattr(dtype, "name", str(dtype).removeprefix("torch.")))


def resolve(loss: Any) -> Loss:
    """The loss itself, or the one that Keras knows by this name."""
    if isinstance(loss, str):
        try:
            loss = import_module("keras").losses.get(loss)
        except ImportError:
            raise TypeError(f"loss: {loss!r} is a name for Keras, which is not installed") from None
        except Exception:
            raise ValueError(f"loss: Keras knows no loss called {loss!r}") from None
    if not callable(loss):
        kind = type(loss).__name__
        raise TypeError(f"loss: expected a function or the name of a loss of Keras, got {kind}")
    return loss  # type: ignore[no-any-return]


def parameters(loss: Loss) -> list[inspect.Parameter]:
    """The arguments a loss takes, as far as its signature can tell; a module's are those of `forward`."""
    for function in (getattr(loss, "forward", getattr(loss, "call", loss)), loss):
        try:
            if found := list(inspect.signature(function).parameters.values()):
                return found
        except (TypeError, ValueError):
            pass
    return []


def ways(loss: Loss) -> list[tuple[str, ...]]:
    """How two arrays can be passed: by position (an empty tuple), or by two keywords, in either order."""
    taken = parameters(loss)
    either = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in taken) > 1
    if either or any(p.kind in (p.VAR_POSITIONAL, p.POSITIONAL_ONLY) for p in taken):
        return [()]
    names = [p.name for p in taken if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p.name for p in taken if p.default is p.empty and p.name in names]
    pair = tuple((required if len(required) == 2 else names)[:2])
    return [pair, pair[::-1]] if len(pair) == 2 else [()]


def keywords(loss: Loss, passed: tuple[str, ...] = ()) -> list[str]:
    """The arguments that take a value by name, beside the two arrays, which are passed by position or so."""
    taken = parameters(loss)
    if hasattr(loss, "call"):  # of Keras, whose other arguments stand in the caller's signature
        taken = list(inspect.signature(type(loss).__call__).parameters.values())
    plain = [p.name for p in taken if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    plain = [n for n in plain if n not in ("self", *passed)]
    given = getattr(loss, "keywords", None) or {}
    found = [n for n in (plain if passed else plain[2:]) if n not in given]
    return list(dict.fromkeys([*found, *["sample_weight"] * any(p.kind is p.VAR_KEYWORD for p in taken)]))


def numbers_within(loss: Loss) -> tuple[list[int], list[int]]:
    """Whole numbers that a loss holds, and the lengths of its arrays: candidates to call it with, no more.

    They come from its attributes, its defaults, its closure and its constants, whatever these are called.
    """
    found = [*getattr(loss, "__dict__", {}).values(), *(p.default for p in parameters(loss))]
    functions: list[Any] = [loss, *(getattr(loss, name, None) for name in ("func", "forward", "call"))]
    for function in functions:
        with contextlib.suppress(TypeError, ValueError):  # no function, or a variable without a value yet
            names = inspect.getclosurevars(function)
            found += [*function.__code__.co_consts, *names.nonlocals.values(), *names.globals.values()]
            found += [p.default for p in inspect.signature(function).parameters.values()]
    held = [d for v in found for d in (v, getattr(v, "__dict__", None)) if isinstance(d, dict)]
    found += [v for d in held if len(d) < 50 for v in d.values()]
    whole = [v for v in found if isinstance(v, int) and not isinstance(v, bool)]
    # A class has a property there, which is no shape.
    shapes = [tuple(v.shape) for v in found if hasattr(getattr(v, "shape", None), "__len__")]
    lists = [v for v in found if isinstance(v, list | tuple) and all(isinstance(e, float | int) for e in v)]
    lengths = [int(shape[0]) for shape in shapes if len(shape) == 1] + [len(v) for v in lists]
    return list(dict.fromkeys(whole)), [n for n in dict.fromkeys(lengths) if 2 <= n <= 200_000]


class NoDiagnosis(Exception):
    """Why there is none: a single call takes seconds, or two equal ones return two values."""


class Caller:
    """A loss, called with fresh copies in one library and precision: the values it returns, or None.

    What it raises, or returns in place of numbers, is kept in `said`. With a batch of the reader's, `own`, copies
    have its library, format and device.
    """

    def __init__(
        self, loss: Loss, arrays: str, dtype: str, names: tuple[str, ...] = (), own: tuple[Any, ...] = ()
    ) -> None:
        self.loss, self.arrays, self.dtype, self.names, self.own = loss, arrays, dtype, names, own
        self.said = self.result_dtype = self.returned = ""
        self.answered = 0
        self.mutates = False
        self.patience = 10 * SLOW if own else SLOW  # of the reader's own batch there are few calls

    def copy(self, values: Array, own: Any = None) -> Any:
        """A fresh copy in the library that is asked with, in the format of `own` if there is one."""
        values, kind = np.asarray(values), library(own)
        dtype = self.dtype if values.dtype.kind == "f" and kind not in ("torch", "tensorflow") else None
        if isinstance(getattr(own, "dtype", None), np.dtype) and self.arrays != "tensorflow":
            dtype = own.dtype
        copy = np.array(values, dtype, order="C")
        if self.arrays == "torch":
            tensor = import_module("torch").from_numpy(copy)
            return tensor.to(own.device, own.dtype) if kind == "torch" else tensor
        if self.arrays == "tensorflow":
            return import_module("tensorflow").constant(copy, own.dtype if kind == "tensorflow" else None)
        return copy

    def raw(self, pair: Any, options: dict[str, Any]) -> Any:
        """The loss's own return value, with its warnings kept quiet."""
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            if self.names:
                return self.loss(**dict(zip(self.names, pair, strict=True)), **options)
            return self.loss(*pair, **options)

    def __call__(self, first: Array, second: Array, /, **options: Any) -> Array | None:
        named = {k: self.copy(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
        given = [self.copy(*a) for a in zip((first, second), self.own or (None, None), strict=True)]
        # A loss that writes into its arguments does so at once, or where labels are to be left out.
        strange = any(a.dtype.kind == "i" and (abs(a - 99) > 99).any() for a in (first, second))
        watch = self.answered < 32 or strange
        before, began = [to_numpy(a).copy() for a in given] if watch else [], time.perf_counter()
        try:
            value = self.raw(given, named)
            took = time.perf_counter() - began
            wrong = value is None or isinstance(value, str | dict | list | tuple | bool)
            if took <= self.patience and (wrong or (result := to_numpy(value)).dtype.kind not in "fiu"):
                raise TypeError(f"it returned {_no_number(value)}")
            self.returned = library(value)
            if (self.arrays, self.returned) == ("torch", "tensorflow"):  # and no gradient comes back
                raise TypeError("it returned a tensor of TensorFlow for tensors of PyTorch")
        except (Exception, SystemExit) as error:  # whatever the loss raises is evidence
            self.said = _message(error)
            return None
        if took > self.patience:
            raise NoDiagnosis(f"a call takes {took:.0f} seconds, and a diagnosis hundreds of calls")
        self.result_dtype = dtype_name(value)
        self.answered += 1
        for a, b in zip(before, given):  # noqa: B905 (none, later on)
            self.mutates |= not np.array_equal(a, to_numpy(b), equal_nan=a.dtype.kind == "f")
        return result.astype(np.float64)

    def gradient(self, pair: list[Array], of_first: bool) -> tuple[Array, Array] | str:
        """The gradient by the prediction, with random weights for values that are not reduced, and these weights; or
        why there is none.
        """
        given = [self.copy(*a) for a in zip(pair, self.own or (None, None), strict=True)]
        place = 0 if of_first else 1
        x, upstream, torch = given[place], np.ones(()), self.arrays == "torch"
        tape = None if torch else import_module("tensorflow").GradientTape()
        try:
            with tape or contextlib.nullcontext():
                if tape:
                    tape.watch(x)
                else:  # as a model's logits are, which may be written into
                    given[place] = x.requires_grad_().clone()
                value = self.raw(given, {})
            if torch and not getattr(value, "requires_grad", False):
                return "missing: what the loss returns is cut off from its argument"
            if shape := tuple(value.shape):
                upstream = np.random.default_rng(23).uniform(0.2, 3.0, shape)
            if tape:
                tf = import_module("tensorflow")
                found = tape.gradient(value, x, output_gradients=tf.cast(tf.constant(upstream), value.dtype))
            else:
                value.backward(import_module("torch").from_numpy(upstream).to(value.device, value.dtype))
                found = x.grad
            return "missing: nothing reaches the argument" if found is None else (to_numpy(found), upstream)
        except Exception as error:
            return f"raises {_message(error)}"


def _no_number(value: Any) -> str:
    """What came back in place of a number, and how the number is had, if it is in there."""
    if not isinstance(value, tuple | list | dict) or not value:
        return "None, no number" if value is None else f"a value of type {type(value).__name__}, no number"
    kind, key = f"a {type(value).__name__} of {len(value)}", "0"
    if isinstance(value, dict):
        kind, key = f"a dict of {', '.join(map(repr, list(value)[:5]))}", repr(next(iter(value)))
    return f"{kind}, no number: pass a function that returns the loss alone, as in loss(z, y)[{key}]"


def _message(error: BaseException) -> str:
    """The class of an exception and what it says, in full up to some lines."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text[:300]}".removesuffix(": ")


def loaded(arrays: str) -> list[tuple[str, str]]:
    """The libraries and precisions to try; one that is not imported yet is tried only if it is named."""
    trials = [("numpy", "float64"), ("torch", "float64"), ("torch", "float32"), ("tensorflow", "float32")]
    there = {"numpy", *sys.modules} if arrays == "auto" else {arrays}
    return [trial for trial in trials if trial[0] in there]
