"""Hostile calls of the public functions of `xent`, and the rule that each of them must keep.

The rule: a call returns the right value, or raises the promised ``ValueError`` or ``TypeError`` with a
message that names an argument which deserves it. It never raises anything else, lets no warning out (NumPy's
floating-point flags included), changes none of its arguments and no global setting.

A call is drawn in three steps. First come arguments that fit together more or less, as plain arrays. Then
each array is written in some other way: another memory order, byte order or container, read-only, unaligned,
as a tensor. And now and then one argument is replaced by something that no argument may be. Every argument is
kept as the *text* of a Python expression and evaluated, so that a call that breaks the rule can be pasted.

What a call must return is computed by `hostile_oracle` from the plain arrays alone, in long double, and so is
whether it may refuse. Both callers draw from here: test_hostile.py through hypothesis, tools/fuzz.py from the
bytes of a coverage-guided fuzzer.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

import hostile_oracle as oracle
import xent
import xent.torch
import xent_book.exercises
import xent_book.frameworks

T = TypeVar("T")
Allowed = dict[str, tuple[type[Exception], ...]]
inf, nan = math.inf, math.nan


class Source(Protocol):
    """Where choices come from: hypothesis, or the bytes of a fuzzer."""

    def below(self, n: int) -> int:
        """Choose from 0, ..., n - 1; the simplest choice is 0."""


class Bytes:
    """Choices read off bytes; when these have run out, every choice is the first."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def below(self, n: int) -> int:
        if n <= 1 or self.at >= len(self.data):
            return 0
        value = self.data[self.at]
        self.at += 1
        if n > 256 and self.at < len(self.data):
            value += 256 * self.data[self.at]
            self.at += 1
        return value % n


def pick(source: Source, options: Sequence[T]) -> T:
    return options[source.below(len(options))]


class Calm:
    """A source under which nothing goes wrong on purpose, but for the n-th thing that could.

    Most calls should get beyond the checks, and a check is tried best where all the others hold.
    """

    def __init__(self, source: Source, slips_at: int = -1) -> None:
        self.below = source.below
        self.left = slips_at

    def slips(self) -> bool:
        """Whether what comes now goes wrong."""
        self.left -= 1
        return self.left == -1


def once_in(source: Source, n: int) -> bool:
    """True in one of n choices, and not in the simplest; for a calm source where it slips."""
    return source.slips() if isinstance(source, Calm) else source.below(n) == n - 1


class Violation(AssertionError):
    """A call that broke the rule; the message holds the expression to paste."""


@dataclass
class Given:
    """An argument: its text, its value, the plain array or number that it stands for, and what is wrong.

    `slack` is how far a row of probabilities may sum from one, which depends on the dtype before it was made
    plain (bfloat16 has no NumPy dtype).
    """

    text: str
    plain: Any = None
    wrong: tuple[type[Exception], ...] = ()
    slack: float = 0.0
    value: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.value = evaluate(self.text)


class Refuses:
    """What an object that should become an array may do instead."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise self.error

    def __repr__(self) -> str:
        raise self.error


class Holds:
    """An array_like of the third kind, as pandas objects are: an object with ``__array__``."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.array


class Sub(np.ndarray):
    """A subclass of ndarray that adds nothing."""


def raises(error: BaseException) -> Callable[..., Any]:
    """Return a function that raises."""

    def function(*arguments: Any, **options: Any) -> Any:
        raise error

    return function


def unaligned(array: Any) -> Any:
    """Return a read-only copy that begins at an odd address."""
    array = np.asarray(array)
    if not array.size:
        return array
    return np.frombuffer(b"\0" + array.tobytes(), array.dtype, offset=1).reshape(array.shape)


# The names that a text may use. tools/fuzz.py prints the line that imports the last few of them.
NAMES: dict[str, Any] = {
    "np": np,
    "torch": torch,
    "xent": xent,
    "xent_book": xent_book,
    "inf": inf,
    "nan": nan,
    "Decimal": Decimal,
    "Fraction": Fraction,
    "Refuses": Refuses,
    "Holds": Holds,
    "Sub": Sub,
    "raises": raises,
    "unaligned": unaligned,
}


def evaluate(text: str) -> Any:
    """Return what a text stands for; what its making warns of is not the package's affair."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return eval(text, dict(NAMES))


# ------------------------------------------------------------------------------------- arrays, plainly

TAME = (0.0, 1.0, -1.0, 2.0, 0.5, -2.5, 3.25, 7.0)
WILD = (
    *TAME, -0.0, 40.0, -40.0, 700.0, -745.0, 1000.0, -1000.0, 1e-8, 1e-300, 5e-324, -5e-324, 6e-8, 65504.0,
    3e38, -3e38, 1e308, -1e308, 1.7e308, -1.7e308,
)  # fmt: skip
HOSTILE = (*TAME, -inf, -inf, inf, nan, 1e308)
FLOATS = ("f8", "f8", "f4", "f2", ">f8", ">f4", ">f2")
INTEGERS = ("i8", "i4", "i2", "i1", "u1", "u2", "u4", "u8", ">i4", ">u8", ">i8")


def literal(values: Sequence[Any]) -> str:
    return "[" + ", ".join(map(repr, values)) + "]"


def reals(source: Source, count: int) -> list[float]:
    """Draw logits: tame ones mostly, or huge and tiny, or with infinities and nan."""
    if isinstance(source, Calm):
        pool = HOSTILE if source.slips() else pick(source, (TAME, TAME, (*TAME, -inf), WILD, WILD))
    else:
        pool = pick(source, (TAME, TAME, (*TAME, -inf), WILD, WILD, HOSTILE))
    return [pick(source, pool) for _ in range(count)]


def rows_of_probabilities(source: Source, rows: int, classes: int) -> list[float]:
    """Draw distributions, now and then one that is none."""
    values: list[float] = []
    for _ in range(rows):
        parts = [
            pick(source, (1.0, 2.0, 0.0, 5.0, 1e-3, 1e-12, 1e-300, 5e-324, 1e-310)) for _ in range(classes)
        ]
        total = sum(parts)
        values += [part / total for part in parts] if total else [1.0, *[0.0] * classes][:classes]
    if values and once_in(source, 8):
        at = source.below(len(values))
        values[at] = pick(source, (values[at] + 1e-3, values[at] + 3e-7, -0.25, nan, inf, 2.0, 0.0, -1e-9))
    return values


def shape_of(source: Source) -> tuple[int, ...]:
    return pick(source, ((2,), (), (1,), (3,), (2, 2), (0,), (2, 0), (1, 2, 1), (5,)))


def disturbed(source: Source, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape, seldom another one."""
    if not once_in(source, 16):
        return shape
    return pick(source, ((*shape, 1), (1, *shape), shape[1:], shape[:-1], (*shape[:-1], 4), (), (0, *shape)))


# ------------------------------------------------------------------------------- arrays, written hostilely


def array(
    source: Source,
    values: Sequence[Any],
    shape: tuple[int, ...],
    dtypes: Sequence[str],
    *,
    tensor: bool = False,
) -> Given:
    """Write numbers as an array of some dtype, in some memory order and container, or as a tensor."""
    values = list(values)
    count = math.prod(shape)
    values = (values * (count // max(1, len(values)) + 1))[:count] if values else []
    if len(values) < count:
        values = [0.0] * count
    dtype = pick(source, dtypes)
    if np.dtype(dtype).kind in "iu":
        limits = np.iinfo(dtype)
        values = [
            min(max(int(v) if math.isfinite(v) else 0, int(limits.min)), int(limits.max)) for v in values
        ]
    with np.errstate(all="ignore"):
        plain = np.array(values, dtype).astype(np.dtype(dtype).newbyteorder("=")).reshape(shape)
    slack = {"f2": 1e-2, "f4": 1e-4}.get(np.dtype(dtype).newbyteorder("=").str[1:], 1e-6)
    if tensor:
        return as_tensor(source, plain, slack)
    text = f"np.array({literal(values)}, '{dtype}').reshape({shape})"
    repeats = len(shape) > 0 and shape[0] > 1 and count > 0
    layout = source.below(10)
    if layout == 1 and shape:
        text = f"np.asfortranarray({text})"
    elif layout == 2 and shape:
        text = f"np.flip(np.array(np.flip({text})))"
    elif layout == 3 and shape:
        text = f"np.repeat({text}, 2, 0)[::2]"
    elif layout == 4:
        text = f"np.broadcast_to({text}, {shape})"  # read-only
    elif layout == 5 and repeats:  # zero-strided
        text = f"np.broadcast_to({text}[:1], {shape})"
        plain = np.repeat(plain[:1], shape[0], 0)
    elif layout == 6:
        text = f"unaligned({text})"
    container = source.below(14)
    if not count and len(shape) > 1 and container in (1, 2):
        container = 0  # a list would lose the shape
    native = np.dtype(dtype).isnative
    if container == 1:
        text, plain, slack = f"{text}.tolist()", *_listed(plain, slack)
    elif container == 2 and shape:
        text, plain, slack = f"tuple({text}.tolist())", *_listed(plain, slack)
    elif container == 3 and shape and count:
        text = f"list({text})"
    elif container == 4 and len(shape) == 2:
        text = f"np.matrix({text})"
    elif container == 5:
        text = f"Holds({text})"
    elif container == 6:
        text = f"{text}.view(Sub)"
    elif container == 7 and shape and count and native:
        text = f"memoryview({text})"
    elif container == 8 and dtype in ("f8", "f4", "f2", "i8", "i4", "u1"):
        text = f"torch.from_numpy(np.array({text}))"
    elif container == 9 and not shape:
        text = f"{text}[()]"
    return Given(text, plain, slack=slack)


def _listed(plain: Any, slack: float) -> tuple[Any, float]:
    """Lists know two kinds of numbers: floats of double precision, and integers."""
    if plain.dtype.kind == "f":
        return plain.astype(np.float64), 1e-6
    return (plain.astype(np.int64) if plain.size == 0 or plain.max() < 2**63 else plain), slack


TORCH = {"float64": "f8", "float32": "f4", "float16": "f2", "bfloat16": "f4", "int64": "i8", "int32": "i4",
         "int16": "i2", "int8": "i1", "uint8": "u1"}  # fmt: skip


def as_tensor(source: Source, plain: Any, slack: float) -> Given:
    """Write an array as a tensor, with another memory order, and with or without a gradient."""
    name = next((n for n, d in TORCH.items() if np.dtype(d) == plain.dtype), "int64")
    if name == "float32" and once_in(source, 4):
        name, slack = "bfloat16", 5e-2
    shape = plain.shape
    text = f"torch.tensor({literal(plain.reshape(-1).tolist())}, dtype=torch.{name}).reshape({shape})"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exact = evaluate(text)
    plain = exact.float().numpy() if name == "bfloat16" else exact.numpy()
    layout = source.below(8)
    if layout == 1 and len(shape) >= 2:
        text = f"{text}.mT.contiguous().mT"
    elif layout == 2 and shape:
        text = f"{text}.repeat_interleave(2, 0)[::2]"
    elif layout == 3 and shape and shape[0] > 1 and plain.size:
        text = f"{text}[:1].expand({shape})"
        plain = np.repeat(plain[:1], shape[0], 0)
    if plain.dtype.kind == "f":
        gradient = source.below(6)
        if gradient == 1:
            text = f"{text}.requires_grad_()"
        elif gradient == 2:
            text = f"torch.nn.Parameter({text})"
        elif gradient == 3:
            text = f"({text}.requires_grad_() * 1)"  # no leaf
    return Given(text, plain, slack=slack)


# What no argument that wants real numbers, labels or weights takes, with a place for the numbers in it.
NEVER = (
    "'abc'", "b'abc'", "object()", "{{}}", "{{1.0, 2.0}}", "(x for x in [1.0, 2.0])", "[[1.0, 2.0], [3.0]]",
    "[None]", "[10**400]", "Refuses(KeyError('x'))", "Refuses(OverflowError())",
    "[Refuses(IndexError('x'))]", "np.array({0}, bool)", "np.array({0}, 'c16')", "np.array({0}, object)",
    "np.array({0}).astype('U9')", "np.array({0}).astype('S9')", "np.zeros(np.shape({0}), 'M8[s]')",
    "np.zeros(np.shape({0}), 'm8[s]')", "np.zeros(np.shape({0}), 'f8,f8')", "np.ma.array({0})",
    "np.ma.masked_equal({0}, 1)", "[np.ma.array({0})]", "[[np.ma.array({0})]]", "(np.ma.masked, 1.0)",
    "Holds(np.ma.array({0}))", "Holds({0})", "torch.tensor({0}, dtype=torch.float64, requires_grad=True)",
    "torch.tensor({0}, dtype=torch.bfloat16)", "torch.tensor({0}, dtype=torch.float64).to_sparse()",
    "torch.tensor({0}, device='meta')", "[torch.tensor(1.0, requires_grad=True)]", "np.array({0}, 'g')",
    "xent",
)  # fmt: skip
# What no argument that wants a tensor takes.
NO_TENSOR = (
    "None", "'abc'", "1.0", "{0}", "np.array({0})", "np.ma.array({0})", "object()", "Refuses(KeyError('x'))",
    "torch.tensor({0}, dtype=torch.bool)", "torch.tensor({0}, dtype=torch.complex64)",
    "torch.tensor({0}, dtype=torch.float64).to_sparse()", "torch.tensor({0}, device='meta')",
    "torch.tensor({0}, dtype=torch.float32).to(torch.float8_e5m2)",
    "torch.nested.nested_tensor([torch.tensor([1.0]), torch.tensor([1.0, 2.0])])",
)  # fmt: skip


def corrupted(source: Source, given: Given, forms: Sequence[str]) -> Given:
    """Replace an argument by something of the wrong kind, around the same numbers where there is a place."""
    plain = given.plain if isinstance(given.plain, np.ndarray) else np.array([1.0, 2.0])
    form = pick(source, forms)
    # Where the shape does not come along, it may be what is refused.
    kinds = (TypeError,) if "{0}" in form and plain.size else (TypeError, ValueError)
    return Given(form.format(plain.tolist()), given.plain, kinds, given.slack)


# ------------------------------------------------------------------------------------ single arguments

NOT_ONE_NUMBER = (
    "True", "np.True_", "np.array(True)", "'1'", "b'1'", "np.array('1')", "[0.5]", "np.array([0.5])", "1j",
    "np.complex128(0.5)", "np.array(0.5 + 0j)", "np.ma.masked", "np.ma.array(0.5)", "{}", "object()", "()",
    "np.timedelta64(1)", "np.datetime64(1, 's')", "[[1], [1, 2]]", "torch.tensor([0.5])",
    "torch.tensor(True)", "torch.tensor(0.5, requires_grad=True)", "torch.tensor(0.5j)",
    "torch.tensor(0.5, device='meta')", "Refuses(KeyError('x'))", "np.array(0.5, object)", "float",
    "'tokens'",
)  # fmt: skip
NUMBERS = (
    "0.5", "1", "2.0", "0.25", "0", "0.0", "-0.0", "1.0", "1e-9", "5e-324", "1e308", "-1", "-1e-300", "nan",
    "inf", "-inf", "10**400", "-10**5000", "1.5", "np.float32(0.5)", "np.float16(0.25)", "np.int8(1)",
    "np.array(0.5)", "np.array(0.5, '>f4')", "np.longdouble(0.5)", "Fraction(1, 3)", "Decimal('0.5')",
    "torch.tensor(0.5)", "torch.tensor(1)", "3", "1e6",
)  # fmt: skip
NOT_ONE_INTEGER = (
    "None", "True", "np.False_", "1.0", "0.0", "nan", "'0'", "b'0'", "(0,)", "[1]", "np.array([1])",
    "np.array(True)", "np.array(1.0)", "np.float64(1)", "torch.tensor([1])", "torch.tensor(True)",
    "torch.tensor(1.0)", "np.ma.array(1)", "np.ma.masked", "Fraction(1)", "1j", "object()",
    "np.timedelta64(1)", "Refuses(KeyError('x'))",
)  # fmt: skip
INDICES = (
    "{0}", "np.int8({0})", "np.int64({0})", "np.array({0})", "torch.tensor({0})",
)  # fmt: skip
FAR = (10**30, -(10**30), 2**63, 10**5000, -(10**5000))
REDUCTIONS = ("'mean'", "'sum'", "'none'", "np.str_('mean')")


def number(
    source: Source, low: float, high: float, closed: str = "", *, optional: bool = False, simple: str = "0.5"
) -> Given:
    """Draw one number from an interval, or next to it, or something that is no number."""
    calm = isinstance(source, Calm) and not source.slips()
    which = source.below(6) if calm else 4 + source.below(4) if isinstance(source, Calm) else source.below(8)
    if which < 4:
        text = "None" if optional else simple
    elif which == 7:
        text = pick(source, NOT_ONE_NUMBER if optional else ("None", *NOT_ONE_NUMBER))
        return Given(text, None if optional else evaluate(simple), (TypeError,))
    else:
        text = pick(source, NUMBERS)
    if text == "None":
        return Given(text)
    given = Given(text)
    try:
        plain = float(given.value)
    except OverflowError:
        plain = inf
    inside = (low < plain or ("low" in closed and low == plain)) and (
        plain < high or ("high" in closed and plain == high)
    )
    given.plain = plain
    if not (inside and math.isfinite(plain)):
        if calm:
            return Given("None") if optional else Given(simple, evaluate(simple))
        given.wrong, given.plain = (ValueError,), None if optional else evaluate(simple)
    return given


def integer(
    source: Source, options: Sequence[int], *, optional: bool = False, rare: Sequence[int] = FAR
) -> Given:
    """Draw an integer, in one of its forms."""
    calm = isinstance(source, Calm) and not source.slips()
    which = source.below(7) if calm else 8 + source.below(2) if isinstance(source, Calm) else source.below(10)
    if which == 9:
        text = pick(source, NOT_ONE_INTEGER[1:] if optional else NOT_ONE_INTEGER)
        return Given(text, None if optional else options[0], (TypeError,))
    if optional and which < 4:
        return Given("None")
    plain = pick(source, rare) if which == 8 and rare else pick(source, options)
    fits = -128 <= plain < 128
    spelled = "10**5000" if plain == 10**5000 else "-10**5000" if plain == -(10**5000) else str(plain)
    return Given(pick(source, INDICES if fits else INDICES[:1]).format(spelled), plain)


def choice(source: Source, options: Sequence[str]) -> Given:
    """Draw one of some strings, or what is none of them; the simplest is the first."""
    calm = isinstance(source, Calm) and not source.slips()
    which = (
        source.below(8) if calm else 14 + source.below(2) if isinstance(source, Calm) else source.below(16)
    )
    if which == 15:
        text = pick(
            source, ("None", "True", "1", "['mean']", "b'mean'", "np.array(['mean', 'sum'])", "object()")
        )
        # Some functions call a value of another kind out of range, which it is, too.
        return Given(text, options[0], (TypeError, ValueError))
    if which == 14:
        text = pick(source, ("'Mean'", "''", "'batchmean'", "'MEAN'", "'\\ud800'", "'x' * 9999"))
        return Given(text, options[0], (ValueError,))
    plain = options[source.below(len(options))]
    return Given(repr(plain) if which else f"np.str_({plain!r})" if source.below(2) else repr(plain), plain)


# ------------------------------------------------------------------------------------------- a call


@dataclass
class Call:
    """A call of one target: its arguments, and the expression that makes it."""

    target: Target
    given: dict[str, Given]

    def text(self) -> str:
        return self.target.text(self.given)


Draw = Callable[[Source], dict[str, Given]]


@dataclass
class Target:
    """A public function: how to draw its arguments, and the oracle for its value.

    Parameters
    ----------
    name
        What is called, such as "xent.cross_entropy".
    draw
        Returns its arguments, by name.
    model
        Takes an `oracle.Plain` and returns an `oracle.Want`, or raises `oracle.Refused`.
    kinds
        For each array, what it may not be.
    call
        The expression, with a place for each argument; by default the name with all of them as keywords.
    names
        What else than a drawn argument an error may name.
    """

    name: str
    draw: Draw
    model: Callable[[oracle.Plain], oracle.Want]
    kinds: dict[str, Sequence[str]] = field(default_factory=dict)
    call: str = ""
    names: tuple[str, ...] = ()
    separator: str = ":"
    passes: tuple[type[BaseException], ...] = ()

    def text(self, given: dict[str, Given]) -> str:
        if self.call:
            return self.call.format(**{name: g.text for name, g in given.items()})
        return f"{self.name}({', '.join(f'{name}={g.text}' for name, g in given.items())})"

    def function(self) -> Callable[..., Any]:
        if self.call:
            places = {name: name for name in self.parameters()}
            made: Callable[..., Any] = evaluate(f"lambda {', '.join(places)}: {self.call.format(**places)}")
            return made
        found: Callable[..., Any] = evaluate(self.name)
        return found

    def parameters(self) -> list[str]:
        return list(self.draw(Bytes(b"")))


def draw(source: Source, target: Target) -> Call:
    """Draw a call of a target: arguments that belong together, and seldom one of the wrong kind."""
    mode = source.below(8)  # nothing wrong, anything, or one thing
    source = Calm(source) if mode < 2 else source if mode == 2 else Calm(source, source.below(16))
    given = target.draw(source)
    if target.kinds and once_in(source, 6):
        name = pick(source, list(target.kinds))
        if name in given and not given[name].wrong:
            given[name] = corrupted(source, given[name], target.kinds[name])
    return Call(target, given)


def snapshot(value: Any) -> Any:
    """Return what must not have changed: bytes of arrays and tensors, the text of lists."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_meta or value.is_nested:
            return None
        exact = value.detach().to(torch.complex128 if value.is_complex() else torch.float64)
        return value.dtype, tuple(value.shape), value.requires_grad, exact.numpy().tobytes()
    if isinstance(value, np.ma.MaskedArray):
        return None if value is np.ma.masked else np.ma.getdata(value).tobytes()
    if isinstance(value, Holds):
        return snapshot(value.array)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.dtype.str, value.shape, value.strides, value.flags.writeable, value.tobytes()
    if isinstance(value, (list, tuple)):
        return [snapshot(part) for part in value] if len(value) < 50 else len(value)
    return value if isinstance(value, (float, int, str)) and value == value else None


def outcome(function: Callable[..., Any], arguments: dict[str, Any]) -> tuple[Any, BaseException | None]:
    """Call with every warning an error, and every floating-point flag of NumPy too."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with np.errstate(all="raise"):
                return function(**arguments), None
    except Exception as error:
        return None, error


def judge(call: Call) -> str:
    """Make a call, and raise `Violation` if it breaks the rule; return "value" or "error"."""
    target, given = call.target, call.given
    allowed: Allowed = {name: g.wrong for name, g in given.items() if g.wrong}
    want: oracle.Want | None = None
    plain = oracle.Plain({name: g.plain for name, g in given.items()}, {n: g.slack for n, g in given.items()})
    with np.errstate(all="ignore"):
        try:
            want = target.model(plain)
        except oracle.Refused as refused:
            for name in refused.names:
                allowed[name] = (*allowed.get(name, ()), ValueError)
    arguments = {name: g.value for name, g in given.items()}
    before = {name: snapshot(value) for name, value in arguments.items()}
    settings = np.geterr(), torch.is_grad_enabled(), torch.get_default_dtype()
    function = target.function()
    got, error = outcome(function, arguments)
    if {name: snapshot(value) for name, value in arguments.items()} != before:
        raise Violation(f"{call.text()}\nchanged an argument")
    if (np.geterr(), torch.is_grad_enabled(), torch.get_default_dtype()) != settings:
        raise Violation(f"{call.text()}\nchanged a global setting")
    if error is not None:
        if isinstance(error, target.passes):
            return "error"
        message = str(error)
        named = [name for name in (*allowed, *target.names) if message.startswith(name + target.separator)]
        if not allowed:
            raise Violation(f"{call.text()}\nraised {type(error).__name__}: {message}\nfor good arguments")
        if not named or type(error) not in {
            kind for name in named for kind in allowed.get(name, (ValueError,))
        }:
            promised = {name: [kind.__name__ for kind in kinds] for name, kinds in allowed.items()}
            raise Violation(
                f"{call.text()}\nraised {type(error).__name__}: {message}\n"
                f"where one of {promised} was promised"
            )
        return "error"
    if allowed:
        raise Violation(f"{call.text()}\nreturned {got!r}\nwhere an error is due by one of {sorted(allowed)}")
    assert want is not None
    with np.errstate(all="ignore"):
        if complaint := oracle.compare(got, want):
            raise Violation(f"{call.text()}\nreturned {got!r}\n{complaint}")
    return "value"
