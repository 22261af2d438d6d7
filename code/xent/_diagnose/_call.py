"""Calling a loss that may be anything: with which arrays, in which way, and what came back."""

from __future__ import annotations

import contextlib
import inspect
import sys
import time
import warnings
from collections.abc import Callable, Iterable
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


def numbers_within(loss: Loss) -> list[int]:
    """Whole numbers that a loss holds, in its attributes, defaults, closure and constants, whatever they are called:
    candidates for a label that is left out, no more.
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
    return list(dict.fromkeys(v for v in found if isinstance(v, int) and not isinstance(v, bool)))


class NoDiagnosis(Exception):
    """Why there is none: a single call takes seconds, or two equal ones return two values."""


class Caller:
    """A loss, called with fresh copies in one library and precision: the values it returns, or None.

    What it raises, or returns in place of numbers, is kept in `said`. With a batch of the reader's, `own`, copies
    have its library, format and device.
    """

    def __init__(self, loss: Loss, arrays: str, dtype: str, own: tuple[Any, ...] = ()) -> None:
        self.loss, self.arrays, self.dtype, self.own = loss, arrays, dtype, own
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

    def raw(self, pair: Any) -> Any:
        """The loss's own return value, with its warnings kept quiet."""
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return self.loss(*pair)

    def given(self, pair: Iterable[Array]) -> list[Any]:
        return [self.copy(*a) for a in zip(pair, self.own or (None, None), strict=True)]

    def __call__(self, first: Array, second: Array, /) -> Array | None:
        given = self.given((first, second))
        before, began = [to_numpy(a).copy() for a in given], time.perf_counter()
        try:
            value = self.raw(given)
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
        for a, b in zip(before, given, strict=True):
            self.mutates |= not np.array_equal(a, to_numpy(b), equal_nan=a.dtype.kind == "f")
        return result.astype(np.float64)

    def gradient(self, pair: list[Array], of_first: bool) -> tuple[Array, Array] | str:
        """The gradient by the prediction, with random weights for values that are not reduced, and these weights; or
        why there is none.
        """
        given, place = self.given(pair), 0 if of_first else 1
        x, upstream, torch = given[place], np.ones(()), self.arrays == "torch"
        tape = None if torch else import_module("tensorflow").GradientTape()
        try:
            with tape or contextlib.nullcontext():
                if tape:
                    tape.watch(x)
                else:  # as a model's logits are, which may be written into
                    given[place] = x.requires_grad_().clone()
                value = self.raw(given)
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
