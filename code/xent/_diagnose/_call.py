"""Calling a loss that may be anything: with which arrays, in which way, and what came back."""

from __future__ import annotations

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


def to_numpy(value: Any, dtype: Any = None) -> Array:
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
    if dtype is None and found.dtype.kind in "fV" and found.itemsize < 4:
        dtype = np.float64
    return found if dtype is None else found.astype(dtype)


def resolve(loss: Any) -> Loss:
    """The loss itself, or the one that Keras knows by this name."""
    if isinstance(loss, str):
        try:
            found: Loss = import_module("keras").losses.get(loss)
        except ImportError:
            raise TypeError(f"loss: {loss!r} is a name for Keras, which is not installed") from None
        except Exception:
            raise ValueError(f"loss: Keras knows no loss called {loss!r}") from None
        return found
    if not callable(loss):
        kind = type(loss).__name__
        raise TypeError(f"loss: expected a function or the name of a loss of Keras, got {kind}")
    return loss  # type: ignore[no-any-return]


def signature(function: Any) -> list[inspect.Parameter]:
    """The parameters of a function, none where it has no signature."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []


def parameters(loss: Loss) -> list[inspect.Parameter]:
    """The arguments a loss takes, as far as its signature can tell; a module's are those of `forward`."""
    return signature(getattr(loss, "forward", getattr(loss, "call", loss))) or signature(loss)


def ways(loss: Loss) -> list[tuple[str, ...]]:
    """How two arrays can be passed: by position (an empty tuple), or by two keywords, in either order."""
    taken = parameters(loss)
    either = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in taken) > 1
    if not taken or either or any(p.kind in (p.VAR_POSITIONAL, p.POSITIONAL_ONLY) for p in taken):
        return [()]
    names = [p.name for p in taken if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p.name for p in taken if p.default is p.empty and p.name in names]
    pair = tuple((required if len(required) == 2 else names)[:2])
    return [pair, pair[::-1]] if len(pair) == 2 else [()]


def keywords(loss: Loss, passed: tuple[str, ...] = ()) -> list[str]:
    """The arguments that take a value by name, beside the two arrays, which are passed by position or so."""
    taken = [p for p in parameters(loss) if p.name not in ("self", *passed)]
    if hasattr(loss, "call"):  # of Keras, whose other arguments stand in the caller's signature
        taken = [p for p in signature(type(loss).__call__) if p.name != "self"]
    plain = [p.name for p in taken if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    given = getattr(loss, "keywords", None) or {}
    found = [n for n in (plain if passed else plain[2:]) if n not in given]
    return list(dict.fromkeys([*found, *["sample_weight"] * any(p.kind is p.VAR_KEYWORD for p in taken)]))


def numbers_within(loss: Loss) -> tuple[list[int], list[int]]:
    """Whole numbers that a loss holds, and the lengths of its arrays: candidates to call it with, no more.

    They come from its attributes, its defaults, its closure and its constants, whatever these are called.
    """
    held = [getattr(loss, "__dict__", {}), getattr(loss, "keywords", None) or {}]
    for function in (loss, *(getattr(loss, name, None) for name in ("func", "forward", "call"))):
        function = getattr(function, "__func__", function)
        held += [getattr(function, name, None) or () for name in ("__defaults__", "__kwdefaults__")]
        closure = getattr(function, "__closure__", None) or ()
        cells = [c.cell_contents for c in closure if "empty" not in repr(c)]
        held += [cells, *(getattr(c, "__dict__", {}) for c in cells)]
        if code := getattr(function, "__code__", None):
            held += [code.co_consts, [getattr(function, "__globals__", {}).get(n) for n in code.co_names]]
    found = [v for h in held for v in (h.values() if isinstance(h, dict) else h)]
    found += [v for h in found if isinstance(h, dict) and len(h) < 50 for v in h.values()]
    whole = [v for v in found if isinstance(v, int) and not isinstance(v, bool)]
    # A class has a property there, which is no shape.
    shapes = [tuple(v.shape) for v in found if hasattr(getattr(v, "shape", None), "__len__")]
    lists = [v for v in found if isinstance(v, list | tuple) and v]
    lists = [v for v in lists if all(isinstance(e, float | int) for e in v)]
    lengths = [int(shape[0]) for shape in shapes if len(shape) == 1] + [len(v) for v in lists]
    return list(dict.fromkeys(whole)), [n for n in dict.fromkeys(lengths) if 2 <= n <= 200_000]


class TooSlow(Exception):
    """A loss of which a single call takes seconds."""


class Caller:
    """A loss, called with fresh copies in one library and precision: the values it returns, or None.

    What it raises, or returns in place of numbers, is kept in `said`.
    """

    def __init__(
        self, loss: Loss, arrays: str, dtype: str, names: tuple[str, ...] = (), device: Any = None
    ) -> None:
        self.loss, self.arrays, self.dtype, self.names, self.device = loss, arrays, dtype, names, device
        self.said = self.result_dtype = self.returned = ""
        self.calls = self.answered = 0
        self.mutates = False

    def tensor(self, values: Array, dtype: Any = None) -> Any:
        copy = np.array(values, dtype or (self.dtype if values.dtype.kind == "f" else None), order="C")
        if self.arrays == "torch":
            return import_module("torch").from_numpy(copy).to(self.device)
        return import_module("tensorflow").constant(copy) if self.arrays == "tensorflow" else copy

    def like(self, own: Any) -> Callable[[Array], Any]:
        """How copies are made of arrays that shall be as `own` is: its library, its format, its device."""
        kind = type(own).__module__.partition(".")[0]
        if kind == "torch":
            return lambda a: import_module("torch").from_numpy(np.array(a)).to(own.device, own.dtype)
        if kind == "tensorflow":
            return lambda a: import_module("tensorflow").constant(a, dtype=own.dtype)
        dtype = getattr(own, "dtype", None) if self.arrays in ("numpy", "torch") else None
        return lambda a: self.tensor(a, dtype if isinstance(dtype, np.dtype) else None)

    def raw(self, pair: Any, options: dict[str, Any]) -> Any:
        """The loss's own return value, with its warnings kept quiet."""
        self.calls += 1
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            if self.names:
                return self.loss(**dict(zip(self.names, pair, strict=True)), **options)
            return self.loss(*pair, **options)

    def __call__(self, first: Array, second: Array, **options: Any) -> Array | None:
        # A loss that writes into its arguments does so at once, or where labels are to be left out.
        strange = any(a.dtype.kind == "i" and (abs(a - 99) > 99).any() for a in (first, second))
        named = {k: self.tensor(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
        return self.of([self.tensor(first), self.tensor(second)], named, self.answered < 32 or strange)

    def of(self, given: Any, named: dict[str, Any] | None = None, watch: bool = False) -> Array | None:
        """The loss of arrays as they are passed."""
        before, began = [to_numpy(a).copy() for a in given] if watch else [], time.perf_counter()
        try:
            value = self.raw(given, named or {})
            took = time.perf_counter() - began
            wrong = value is None or isinstance(value, str | dict | list | tuple | bool)
            if took <= SLOW and (wrong or (result := to_numpy(value)).dtype.kind not in "fiu"):
                raise TypeError(f"it returned {_no_number(value)}")
            self.returned = type(value).__module__.partition(".")[0]
            if (self.arrays, self.returned) == ("torch", "tensorflow"):  # and no gradient comes back
                raise TypeError("it returned a tensor of TensorFlow for tensors of PyTorch")
        except (Exception, SystemExit) as error:  # whatever the loss raises is evidence
            self.said = _message(error)
            return None
        if took > SLOW:
            raise TooSlow(f"a call takes {took:.0f} seconds, and a diagnosis some hundred calls")
        dtype = getattr(value, "dtype", "float64")
        self.result_dtype = getattr(dtype, "name", str(dtype).removeprefix("torch."))
        self.answered += 1
        pairs = zip(before, given)  # noqa: B905 (none, later on)
        same = [np.array_equal(a, to_numpy(b), equal_nan=a.dtype.kind == "f") for a, b in pairs]
        self.mutates |= not all(same)
        return result.astype(np.float64)

    def gradient(self, pair: list[Any], of_first: bool) -> tuple[Array, Array] | str:
        """The gradient by the prediction, with random weights for values that are not reduced, and these weights; or
        why there is none.
        """

        def weights(value: Any) -> Array:
            shape = tuple(value.shape)
            return np.random.default_rng(23).uniform(0.2, 3.0, shape) if shape else np.ones(())

        x = pair[0 if of_first else 1]
        try:
            if self.arrays == "torch":
                x.requires_grad_()
                value = self.raw(pair, {})
                if not getattr(value, "requires_grad", False):
                    return "missing: what the loss returns is cut off from its argument"
                upstream = weights(value)
                value.backward(import_module("torch").from_numpy(upstream).to(value.device, value.dtype))
                found = x.grad
            else:
                tf = import_module("tensorflow")
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    value = self.raw(pair, {})
                upstream = weights(value)
                found = tape.gradient(value, x, output_gradients=tf.cast(tf.constant(upstream), value.dtype))
            return "missing: nothing reaches the argument" if found is None else (to_numpy(found), upstream)
        except Exception as error:
            return f"raises {_message(error)}"


def _no_number(value: Any) -> str:
    """What came back in place of a number, and how the number is had, if it is in there."""
    if isinstance(value, tuple | list) and value:
        kind = type(value).__name__
        return f"a {kind} of {len(value)}, no number: pass a function that returns the loss alone, as in loss(z, y)[0]"
    if isinstance(value, dict) and value:
        names, alone = ", ".join(map(repr, list(value)[:5])), f"loss(z, y)[{next(iter(value))!r}]"
        return f"a dict of {names}, no number: pass a function that returns the loss alone, as in {alone}"
    return "None, no number" if value is None else f"a value of type {type(value).__name__}, no number"


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
