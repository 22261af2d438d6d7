"""The table of `xent`'s public functions for hostile calls: each with its arguments and its oracle.

A public function without an entry fails test_hostile.py. What is left out stands in `ELSEWHERE`, with the
reason.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

import hostile_oracle as oracle
import xent
import xent.torch
import xent_book.exercises
import xent_book.frameworks
import xent_book.quiet
from hostile import (
    FLOATS,
    INTEGERS,
    NEVER,
    NO_TENSOR,
    Given,
    Source,
    Target,
    array,
    choice,
    disturbed,
    evaluate,
    integer,
    number,
    once_in,
    pick,
    reals,
    rows_of_probabilities,
    shape_of,
)

Arguments = dict[str, Given]
NO_FLOATS = tuple(kind for kind in NO_TENSOR)
NO_LABELS = (*NO_TENSOR, "torch.tensor({0}, dtype=torch.float64)", "torch.tensor({0}, dtype=torch.float16)")


class Rows:
    """A batch shape, a number of classes and a class axis that belong together."""

    def __init__(self, source: Source, *, last: bool = False) -> None:
        self.source, self.batch = source, shape_of(source)
        self.classes = pick(source, (2, 3, 1, 4, 3, 2) if not once_in(source, 12) else (0,))
        where = 0 if last else source.below(len(self.batch) + 1)
        # Counted from the end, so that the simplest choice is the default, -1.
        self.axis = -1 - where

    def shape(self, classes: int | None = None) -> tuple[int, ...]:
        shape = list(self.batch)
        shape.insert(len(shape) + 1 + self.axis, self.classes if classes is None else classes)
        return tuple(shape)

    def axis_argument(self) -> Given:
        ndim = len(self.batch) + 1
        axis = self.axis + ndim if self.source.below(3) == 1 else self.axis
        return integer(self.source, (axis, axis, axis, axis, axis, -1, 0, 1, 2, -3))

    def logits(self, tensor: bool = False) -> Given:
        shape = disturbed(self.source, self.shape())
        dtypes = ("f8", "f4", "f2") if tensor else (*FLOATS, *FLOATS, *INTEGERS[:6], "u8")
        return array(self.source, reals(self.source, math.prod(shape)), shape, dtypes, tensor=tensor)

    def distribution(self, tensor: bool = False, log: bool = False) -> Given:
        count = math.prod(self.batch)
        values = rows_of_probabilities(self.source, count, self.classes)
        if log:
            with np.errstate(all="ignore"):
                values = np.log(np.array(values, float)).tolist()
        shape = (*self.batch, self.classes)
        moved = np.moveaxis(np.array(values, float).reshape(shape), -1, self.axis).reshape(-1).tolist()
        dtypes = ("f8", "f4", "f2") if tensor else FLOATS
        return array(self.source, moved, disturbed(self.source, self.shape()), dtypes, tensor=tensor)

    def labels(self, tensor: bool = False, extra: Sequence[int] = ()) -> Given:
        pool = (*range(max(1, self.classes)), *range(max(1, self.classes)), *extra)
        if once_in(self.source, 6):
            bad = pick(self.source, (self.classes, -1, 127, 156, 2**31 - 1, -100, -2))
            pool = (*range(max(1, self.classes)), bad, bad)
        shape = disturbed(self.source, self.batch)
        values = [pick(self.source, pool) for _ in range(math.prod(shape))]
        dtypes = ("i8", "i4", "i2", "i1", "u1") if tensor else INTEGERS
        return array(self.source, values, shape, dtypes, tensor=tensor)

    def weights(self, shape: tuple[int, ...], tensor: bool = False) -> Given:
        if self.source.below(2) == 0:
            return Given("None")
        tame, extreme = (1.0, 2.0, 0.5, 0.0), ((0.0,), (1.0, 1e-300, 5e-324), (1.0, 1e300, 1e308))
        pool = pick(self.source, (tame, tame, (1.0, 3.0), *extreme, (1.0, nan_of(self.source))))
        shape = disturbed(self.source, shape)
        values = [pick(self.source, pool) for _ in range(math.prod(shape))]
        as_tensor = tensor and self.source.below(2) == 1
        dtypes = ("f8", "f4", "f2", "i8", "u1") if as_tensor else (*FLOATS, "i8", "u1", "i4")
        return array(self.source, values, shape, dtypes, tensor=as_tensor)


def nan_of(source: Source) -> float:
    return pick(source, (math.nan, -1.0, math.inf, -0.0, -5e-324))


def reduction(source: Source) -> Given:
    return choice(source, ("mean", "sum", "none"))


def denominator(source: Source, given: Arguments) -> Arguments:
    """Add a denominator, mostly where the reduction has one."""
    if given["reduction"].plain == "mean" or once_in(source, 6):
        given["denominator"] = number(source, 0.0, math.inf, optional=True)
        if given["denominator"].wrong and given["reduction"].plain != "mean":
            given["denominator"].wrong = (TypeError, ValueError)
    else:
        given["denominator"] = Given("None")
    return given


IGNORED = (-100, -1, 0, 255, 1)


def ignore_index(source: Source) -> Given:
    return integer(source, IGNORED, optional=True)


# ------------------------------------------------------------------------------------------- the shapes


def of_logits(source: Source, name: str = "logits", tensor: bool = False) -> Arguments:
    rows = Rows(source)
    return {name: rows.logits(tensor), "axis": rows.axis_argument()}


def of_numbers(source: Source, tensor: bool = False) -> Arguments:
    return {"logits": Rows(source).logits(tensor)}


def last_axis(source: Source) -> Arguments:
    return {"logits": Rows(source, last=True).logits()}


def hard(source: Source, first: str = "logits", tensor: bool = False) -> Arguments:
    rows = Rows(source)
    ignored = ignore_index(source)
    extra = (ignored.plain,) * 2 if ignored.plain is not None and abs(ignored.plain) < 256 else ()
    given = {
        first: rows.logits(tensor) if first == "logits" else rows.distribution(tensor, first == "log_probs"),
        "targets": rows.labels(tensor, extra),
        "axis": rows.axis_argument(),
        "weight": rows.weights((rows.classes,), tensor),
        "ignore_index": ignored,
        "reduction": reduction(source),
    }
    if first == "logits":
        given["label_smoothing"] = number(source, 0.0, 1.0, "low high", simple="0.0")
    elif first == "probs":
        given["eps"] = number(source, 0.0, 0.5, "low", simple="0.0")
    return denominator(source, given)


def soft(source: Source, tensor: bool = False) -> Arguments:
    rows = Rows(source)
    given = {
        "logits": rows.logits(tensor),
        "target_probs": rows.distribution(tensor),
        "axis": rows.axis_argument(),
        "reduction": reduction(source),
    }
    return denominator(source, given)


def binary(source: Source, tensor: bool = False) -> Arguments:
    shape = shape_of(source)
    rows = Rows(source)
    pool = pick(
        source,
        ((0.0, 1.0), (0.0, 1.0, 0.5, 1e-3), (0.0, -0.0, 1.0, 1e-300, 1.0 - 1e-16), (0.0, 1.0, 1.0 + 1e-7)),
    )
    count = math.prod(shape)
    dtypes = ("f8", "f4", "f2", "i8", "u1") if tensor else (*FLOATS, *INTEGERS)
    given = {
        "logits": array(source, reals(source, count), shape, dtypes[:3] if tensor else FLOATS, tensor=tensor),
        "targets": array(
            source,
            [pick(source, pool) for _ in range(count)],
            disturbed(source, shape),
            dtypes,
            tensor=tensor,
        ),
        "weight": rows.weights(shape, tensor),
        "pos_weight": Given("None"),
        "reduction": reduction(source),
    }
    if source.below(2):
        wanted = pick(source, ((), (), shape[-1:], shape[-1:], (2,)))
        pool = (1.0, 2.0, 0.5, 1e300, 5e-324, 0.0, nan_of(source))[: 7 if once_in(source, 4) else 3]
        values = [pick(source, pool) for _ in range(math.prod(wanted))]
        given["pos_weight"] = array(source, values, wanted, FLOATS)
    return denominator(source, given)


def measure(source: Source, names: Sequence[str]) -> Arguments:
    rows = Rows(source)
    given = {name: rows.distribution() for name in names}
    base = number(source, 0.0, math.inf, optional=True)
    return given | {"axis": rows.axis_argument(), "base": base}


def report(source: Source, **options: Callable[[Source, Rows], Given]) -> Arguments:
    rows = Rows(source, last=True)
    given = {"probs": rows.distribution(), "outcome": rows.labels()}
    return given | {name: option(source, rows) for name, option in options.items()}


def inverse(source: Source, **options: Callable[[Source, Rows], Given]) -> Arguments:
    given = report(source, **options)
    del given["outcome"]
    return given


def class_weight(source: Source, rows: Rows) -> Given:
    given = rows.weights((rows.classes,))
    return given if given.text != "None" else array(source, [1.0, 2.0], (rows.classes,), FLOATS)


def gamma(source: Source, rows: Rows) -> Given:
    return number(source, 0.0, math.inf, "low")


def rule(source: Source) -> Given:
    if once_in(source, 10):
        return Given(pick(source, ("None", "'log_score'", "1", "[]")), "xent.scoring.log_score", (TypeError,))
    text = pick(source, tuple(oracle.RULES))
    return Given(f"({text})", text)


def expected(source: Source) -> Arguments:
    rows = Rows(source, last=True)
    q = rows.distribution()
    if source.below(2):
        rows.batch = ()
    given = {"rule": rule(source), "p": rows.distribution(), "q": q}
    return loosen(given)


def loosen(given: Arguments) -> Arguments:
    """A rule that gives no costs may be refused as a wrong kind or as a wrong value."""
    if oracle.RULES[given["rule"].plain] is None and not given["rule"].wrong:
        given["rule"].wrong = (TypeError, ValueError)
    return given


def elicits(source: Source) -> Arguments:
    rows = Rows(source, last=True)
    rows.batch = pick(source, ((), (), (2,), (0,)))
    return loosen({"rule": rule(source), "p": rows.distribution()})


def stop(source: Source) -> Given:
    return number(source, 0.0, 1.0, "high")


def batch_size(source: Source) -> Given:
    return integer(
        source, (1, 2, 3, 7, 128, 1, 2, 0, -1), rare=(10**6, 10**15, 10**30, 10**400, 10**5000, -(10**30))
    )


def count(source: Source) -> Given:
    """How many of something: few, none, or more than memory holds."""
    return integer(source, (2, 1, 5, 3, 0, -1), rare=(10**12, 10**30, 2**63, 10**5000, -(10**30)))


def lengths(source: Source) -> Arguments:
    shape = pick(source, ((3,), (1,), (5,), (2,), (0,), (2, 2), ()))
    pool = pick(source, ((1, 2, 3, 8), (5, 5, 9), (1, 2**40), (1, 2**62), (1, 2, 0), (1, -1)))
    given = {
        "lengths": array(source, [pick(source, pool) for _ in range(math.prod(shape))], shape, INTEGERS),
        "batch_size": batch_size(source),
        "probabilities": Given("None"),
    }
    if not math.prod(shape):
        given["lengths"].wrong = (TypeError, ValueError)  # [] is of floats
    if source.below(2):
        law = rows_of_probabilities(source, 1, math.prod(shape)) if math.prod(shape) else []
        given["probabilities"] = array(source, law, disturbed(source, shape), FLOATS)
    return given


def law(source: Source) -> Arguments:
    shape = disturbed(source, pick(source, ((3,), (1,), (5,), (2,), (0,))))
    return {
        "probabilities": array(
            source,
            rows_of_probabilities(source, 1, math.prod(shape)) if math.prod(shape) else [],
            shape,
            FLOATS,
        )
    }


def coin(source: Source, **options: Callable[[Source], Given]) -> Arguments:
    letters = integer(source, (1, 2, 26, 1, 0, -1), rare=(10**30, 10**400, -(10**30)))
    return {"stop": stop(source), "letters": letters} | {
        name: option(source) for name, option in options.items()
    }


def probability(source: Source) -> Given:
    return number(source, 0.0, 1.0, "low high")


def generator(source: Source) -> Given:
    if once_in(source, 6):
        return Given(
            pick(source, ("None", "0", "np.random", "np.random.RandomState(0)", "object()")),
            None,
            (TypeError,),
        )
    return Given("np.random.default_rng(0)")


def words(source: Source, *, model: bool = False, **options: Callable[[Source], Given]) -> Arguments:
    letters = pick(source, (2, 1, 2, 0))
    given = {}
    for initial, transition in (
        ("initial", "transition"),
        *([("initial_q", "transition_q")] if model else []),
    ):
        first = rows_of_probabilities(source, 1, letters + 1)
        given[initial] = array(source, first, disturbed(source, (letters + 1,)), FLOATS)
        pairs = rows_of_probabilities(source, letters, letters + 1) or [1.0]
        given[transition] = array(source, pairs, disturbed(source, (letters, letters + 1)), FLOATS)
    return given | {name: option(source) for name, option in options.items()}


def distilled(source: Source, tensor: bool = False) -> Arguments:
    rows = Rows(source)
    given = {"student_logits": rows.logits(tensor), "teacher_logits": rows.logits(tensor)}
    if tensor and source.below(2):
        given["teacher_logits"] = rows.logits(True)
    given |= settings(source)
    given |= {
        "axis": rows.axis_argument(),
        "weight": rows.weights(rows.batch, tensor),
        "reduction": reduction(source),
    }
    return denominator(source, given)


def settings(source: Source) -> Arguments:
    return {
        "temperature": number(source, 0.0, math.inf, simple="2.0"),
        "scale": choice(source, ("t_squared", "none")),
        "direction": choice(source, ("forward", "reverse")),
    }


def mixed(source: Source, tensor: bool = False) -> Arguments:
    rows = Rows(source)
    ignored = ignore_index(source)
    extra = (ignored.plain,) if ignored.plain is not None and abs(ignored.plain) < 256 else ()
    given = {
        "student_logits": rows.logits(tensor),
        "teacher_logits": rows.logits(tensor),
        "targets": rows.labels(tensor, extra),
        "alpha": number(source, 0.0, 1.0, "low high"),
        "axis": rows.axis_argument(),
        "ignore_index": ignored,
        "reduction": reduction(source),
    }
    return denominator(source, given | settings(source))


def some_classes(source: Source, rows: Rows, k: int, tensor: bool, distinct: bool) -> Given:
    values: list[int] = []
    for _ in range(math.prod(rows.batch)):
        pool = list(range(rows.classes))
        for _ in range(k):
            at = source.below(len(pool)) if pool else 0
            values.append((pool.pop(at) if distinct else pool[at]) if pool else 0)
    if values and once_in(source, 10):
        values[0] = pick(source, (rows.classes, -1, 127, 0))
    moved = np.moveaxis(np.array(values, int).reshape((*rows.batch, k)), -1, rows.axis).reshape(-1).tolist()
    dtypes = ("i8", "i4", "u1") if tensor else INTEGERS
    given = array(source, moved, disturbed(source, rows.shape(k)), dtypes, tensor=tensor)
    if not given.plain.size and not tensor:
        given.wrong = (
            (TypeError, ValueError) if isinstance(given.value, (list, tuple)) else ()
        )  # [] is of floats
    return given


def topped(source: Source, tensor: bool = False) -> Arguments:
    rows = Rows(source)
    k = pick(source, (1, 2, rows.classes, 0))
    pool = (0.5, 0.25, 0.125, 0.3, 0.0, 1e-300) if source.below(4) else (1.0, 0.7, 0.0)
    with np.errstate(all="ignore"):
        logs = [float(np.log(pick(source, pool))) for _ in range(math.prod(rows.batch) * k)]
    if logs and once_in(source, 12):
        logs[0] = pick(source, (math.nan, math.inf, 0.1, 700.0))
    dtypes = ("f8", "f4", "f2") if tensor else FLOATS
    given = {
        "student_logits": rows.logits(tensor),
        "top_log_probs": array(source, logs, disturbed(source, rows.shape(k)), dtypes, tensor=tensor),
        "top_indices": some_classes(source, rows, k, tensor, not once_in(source, 8)),
        "treatment": choice(source, ("tail", "truncated", "renormalised", "renormalised_both")),
        "axis": rows.axis_argument(),
        "weight": rows.weights(rows.batch, tensor),
        "reduction": reduction(source),
    }  # fmt: skip
    return denominator(source, given)


def sampled(source: Source, tensor: bool = False) -> Arguments:
    rows = Rows(source)
    k = pick(source, (1, 2, 3, 0))
    pool = pick(source, ((0.5, 0.25, 1.0), (0.0, 1.0), (1e300, 1.0), (5e-324, 1.0), (nan_of(source), 1.0)))
    values = [pick(source, pool) for _ in range(math.prod(rows.batch) * k)]
    dtypes = ("f8", "f4", "f2") if tensor else FLOATS
    given = {
        "student_logits": rows.logits(tensor),
        "indices": some_classes(source, rows, k, tensor, False),
        "sample_weights": array(source, values, disturbed(source, rows.shape(k)), dtypes, tensor=tensor),
        "axis": rows.axis_argument(),
        "weight": rows.weights(rows.batch, tensor),
        "reduction": reduction(source),
    }  # fmt: skip
    return denominator(source, given)


def draws(source: Source, tensor: bool = False) -> Arguments:
    rows = Rows(source)
    given = {"teacher_logits": rows.logits(tensor), "samples": count(source)}
    if tensor:
        wrong = once_in(source, 8)
        given["generator"] = Given("np.random.default_rng(0)", None, (TypeError,)) if wrong else Given("None")
    else:
        given["rng"] = generator(source)
    given["proposal_temperature"] = number(source, 0.0, math.inf, simple="1.0")
    return given | {"axis": rows.axis_argument()}


def windows(source: Source) -> Arguments:
    batches, plain, wrong = [], [], False
    for _ in range(source.below(4)):
        shape = pick(source, ((1, 2), (2, 2), (0, 2), (3,), (), (2, 1, 2)))
        values = [pick(source, (1, -100, 0, 156, 5)) for _ in range(math.prod(shape))]
        given = array(source, values, shape, ("i8", "i4", "i2", "i1", "u1"), tensor=True)
        batches.append(given.text)
        plain.append(given.plain)
        if once_in(source, 12):
            batches[-1] = pick(source, NO_LABELS).format(given.plain.tolist())
            wrong = True
    some = Given(f"[{', '.join(batches)}]", plain)
    if not wrong and once_in(source, 10):
        some = Given(pick(source, ("None", "5", "object()", "xent")), plain, (TypeError,))
    number_of = number(source, 0.0, math.inf)
    words = choice(source, ("tokens", "sequences"))
    divisor = words if source.below(3) and words.text not in ("True", "1") else number_of
    if divisor.text == "'tokens'":  # no number elsewhere, and a word here
        divisor = Given(divisor.text, "tokens")
    if divisor.wrong:
        divisor.wrong = (TypeError, ValueError)
    given = {
        "batches": some,
        "steps": integer(source, (2, 1, 3, 0, -1), rare=(10**30, 2**63, -(10**30))),
        "targets": Given("lambda batch: batch"),
        "denominator": divisor,
        "ignore_index": integer(source, (-100, 156, 0, -1)),
    }
    if wrong:
        given["targets"].wrong = (TypeError,)
    return given


# Functions and values of which a checker must only say that they are wrong.
ANSWERS = (
    "None", "...", "1.0", "nan", "[]", "()", "'abc'", "1j", "object()", "np.zeros(3)",
    "np.zeros(3, complex)", "np.ma.masked_equal([1.0, 2.0], 1)", "np.array('abc')", "np.array(None)",
    "np.zeros(0)", "float('inf')", "np.zeros((1, 1, 1, 1))", "10**400", "Refuses(KeyError('x'))",
    "Refuses(ZeroDivisionError())", "[1, [2, 3]]", "torch.zeros(2, requires_grad=True)",
    "torch.zeros(2).to_sparse()", "torch.zeros(2, device='meta')", "{}", "(1.0, (2.0, (3.0,)))",
    "np.zeros(2, 'f8,f8')", "np.datetime64(1, 's')", "type", "xent", "iter([])", "np.zeros(3, '>f4')[::-1]",
    "np.zeros(3, 'g')", "True", "np.str_('1')", "Decimal('1.5')", "{1, 2}",
)  # fmt: skip
ERRORS = (
    "KeyError('x')", "ZeroDivisionError()", "MemoryError()", "RecursionError()", "ValueError('a\\nb')",
    "OSError(2, 'x')", "StopIteration()", "AssertionError()", "NotImplementedError()",
    "Exception(Refuses(KeyError('x')))", "SystemExit(3)", "AttributeError('\\ud800')",
    "UnicodeDecodeError('utf-8', b'x', 0, 1, 'y')", "FloatingPointError()", "Warning('x')",
)  # fmt: skip
CALLABLES = (
    "lambda *a, **k: a[0].fill(0)",
    "lambda *a, **k: np.array([(b.fill(7), b.sum())[1] for b in a if hasattr(b, 'fill')]).sum()",
    "lambda *a, **k: np.log(-1.0)",
    "lambda *a, **k: np.divide(1, 0)",
    "lambda *a, **k: np.exp(1000.0) * np.float64(0)",
    "lambda *a, **k: __import__('warnings').warn('x') or 1.0",
    "lambda *a, **k: a",
    "lambda: 1.0",
    "type",
    "np.dot",
    "lambda a, b: np.broadcast_to(np.float32(3), (1000,))",
    "lambda a, b: a.__class__",
    "lambda a, b, memo=[]: memo.append(1) or float(len(memo))",
    "lambda a, b: hash(bytes(np.asarray(a))) % 100 / 7",
    "lambda a, b: np.float64(1e308) * np.asarray(a)",
    "lambda a, b: -(np.asarray(b) * np.asarray(a)).sum() * 1e300",
)


def hostile_answer(source: Source) -> Given:
    which = source.below(4)
    if which == 0:
        return Given(f"lambda *a, **k: {pick(source, ANSWERS)}")
    if which == 1:
        return Given(f"raises({pick(source, ERRORS)})")
    if which == 2:
        return Given(pick(source, CALLABLES))
    return Given(pick(source, ANSWERS))


def checking(source: Source) -> Arguments:
    if once_in(source, 8):
        names = (
            "'no such exercise'",
            "''",
            "None",
            "1",
            "['bce-from-logits']",
            "np.str_('x')",
            "b'x'",
            "'\\ud800'",
        )
        text = pick(source, names)
        kinds = (ValueError,) if isinstance(evaluate(text), str) else (TypeError,)
        return {"slug": Given(text, None, kinds), "answer": hostile_answer(source)}
    slug = pick(source, xent_book.exercises.names())
    return {"slug": Given(repr(slug)), "answer": hostile_answer(source)}


def diagnosing(source: Source) -> Arguments:
    given = hostile_answer(source)
    if not callable(given.value):
        given.wrong = (TypeError,)
    kinds = ("auto", "numpy", "auto")
    arrays = choice(source, kinds)
    return {"loss_fn": given, "arrays": arrays}


# -------------------------------------------------------------------------------------------- the table


def kinds(*names: str, never: Sequence[str] = NEVER) -> dict[str, Sequence[str]]:
    return dict.fromkeys(names, never)


LABEL_NEVER = (*NEVER, "np.array({0}, 'f8')", "np.array({0}, 'f4')", "[0.0]", "1.5", "None")
REAL_NEVER = (*NEVER, "None")
# A tensor's weights may be tensors of any float dtype, with a gradient too.
TORCH_NEVER = tuple(
    form
    for form in NEVER
    if not form.startswith("torch.tensor({0}, dtype=torch.float64, r") and "bfloat16" not in form
)
HARD = {"targets": LABEL_NEVER, "weight": NEVER}
SCORED = {"probs": REAL_NEVER, "outcome": LABEL_NEVER}


def numpy_targets() -> Iterator[Target]:
    logits, axis_of_x = {"logits": REAL_NEVER}, partial(of_logits, name="x")
    yield Target("xent.log_sum_exp", axis_of_x, oracle.log_sum_exp, {"x": REAL_NEVER})
    yield Target("xent.log_softmax", of_logits, oracle.log_softmax, logits)
    yield Target("xent.softmax", of_logits, oracle.softmax, logits)
    yield Target("xent.sigmoid", of_numbers, oracle.sigmoid, logits)
    yield Target("xent.log_sigmoid", of_numbers, oracle.log_sigmoid, logits)
    smooth = {"names": ("weight",)}
    for name, draw, first in (
        ("cross_entropy", hard, "logits"),
        ("nll", partial(hard, first="log_probs"), "log_probs"),
        ("log_loss", partial(hard, first="probs"), "probs"),
    ):
        yield Target(f"xent.{name}", draw, getattr(oracle, name), {first: REAL_NEVER} | HARD)
    soft_kinds = kinds("logits", "target_probs", never=REAL_NEVER)
    yield Target("xent.soft_cross_entropy", soft, oracle.soft_cross_entropy, soft_kinds)
    binary_kinds = kinds("logits", "targets", never=REAL_NEVER) | kinds("weight", "pos_weight")
    yield Target("xent.binary_cross_entropy", binary, oracle.binary_cross_entropy, binary_kinds, **smooth)

    for name, model, names in (
        ("entropy", oracle.entropy, ("p",)),
        ("cross_entropy", oracle.information_cross_entropy, ("p", "q")),
        ("kl_divergence", oracle.kl_divergence, ("p", "q")),
        ("js_divergence", oracle.js_divergence, ("p", "q")),
    ):
        yield Target(
            f"xent.information.{name}", partial(measure, names=names), model, kinds(*names, never=REAL_NEVER)
        )

    prefix = "xent.gradients."
    for name in ("softmax_jacobian", "cross_entropy_hessian"):
        yield Target(prefix + name, last_axis, oracle.softmax_jacobian, logits)
    yield Target(prefix + "cross_entropy_gradient", hard, oracle.cross_entropy_gradient, logits | HARD)
    yield Target(prefix + "soft_cross_entropy_gradient", soft, oracle.soft_cross_entropy_gradient, soft_kinds)
    yield Target(
        prefix + "binary_cross_entropy_gradient",
        binary,
        oracle.binary_cross_entropy_gradient,
        binary_kinds,
        **smooth,
    )


def scoring_targets() -> Iterator[Target]:
    def eps(source: Source, rows: Rows) -> Given:
        return number(source, 0.0, 0.5, simple="0.25")

    def smoothing(source: Source, rows: Rows) -> Given:
        return number(source, 0.0, 1.0, "low high")

    def some_smoothing(source: Source, rows: Rows) -> Given:
        return number(source, 0.0, 1.0, "low", simple="0.25")

    options: dict[str, dict[str, Any]] = {
        "log_score": {},
        "brier_score": {},
        "spherical_score": {},
        "linear_score": {},
        "zero_one_score": {},
        "clipped_log_score": {"eps": eps},
        "focal_loss": {"gamma": gamma},
        "smoothed_log_score": {"label_smoothing": smoothing},
        "weighted_log_score": {"weight": class_weight},
    }
    prefix = "xent.scoring."
    for name, arguments in options.items():
        scored = SCORED | ({"weight": REAL_NEVER} if "weight" in arguments else {})
        yield Target(prefix + name, partial(report, **arguments), oracle.score(getattr(oracle, name)), scored)
    for name, arguments in {
        "invert_focal": {"gamma": gamma},
        "invert_smoothing": {"label_smoothing": some_smoothing},
        "invert_weighting": {"weight": class_weight},
    }.items():
        inverted = kinds("probs", *({"weight"} & set(arguments)), never=REAL_NEVER)
        yield Target(prefix + name, partial(inverse, **arguments), getattr(oracle, name), inverted)
    yield Target(
        prefix + "expected_score",
        expected,
        oracle.expected_score,
        kinds("p", "q", never=REAL_NEVER),
        passes=(KeyError,),
    )
    yield Target(prefix + "elicited", elicits, oracle.elicited, {"p": REAL_NEVER}, passes=(KeyError,))


def sequence_targets() -> Iterator[Target]:
    prefix = "xent.sequences."

    def eos(source: Source) -> Arguments:
        return {"stop": stop(source), "batch_size": batch_size(source)}

    not_lengths = tuple(text for text in LABEL_NEVER if text not in ("1.5",))
    yield Target(prefix + "eos_optimum", eos, oracle.eos_optimum)
    for name in ("length_weights", "tilted_lengths"):
        yield Target(
            prefix + name, lengths, getattr(oracle, name), {"lengths": not_lengths, "probabilities": NEVER}
        )
    yield Target(prefix + "hazards", law, oracle.hazards, {"probabilities": REAL_NEVER})

    def of(cls: str, method: str, model: Any, draw: Any, arguments: str, **more: Any) -> Target:
        made = "stop={stop}, letters={letters}" if cls == "GeometricSource" else "{initial}, {transition}"
        dot = f".{method}({arguments})" if method else ""
        full = f"{prefix}{cls}{'.' + method if method else ''}"
        wrap = oracle.geometric if cls == "GeometricSource" else oracle.chain
        kinds_of = {} if cls == "GeometricSource" else kinds("initial", "transition", never=REAL_NEVER)
        call = more.pop("call", f"{prefix}{cls}({made}){dot}")
        return Target(full, draw, wrap(model), more.pop("kinds", kinds_of), call, **more)

    g = partial(of, "GeometricSource")
    anything = oracle.Want(check=lambda got: "")
    L = np.longdouble
    yield g("", lambda a: anything, coin, "")
    yield g("mean_length", lambda a: 1 / L(a.stop), coin, "")
    yield g("squared_variation", lambda a: 1 - L(a.stop), coin, "")
    yield g("entropy", lambda a: oracle.geometric_loss(a.stop, a.stop, a.letters) / L(a.stop), coin, "")
    with_q = partial(coin, q=probability)
    yield g(
        "cross_entropy", lambda a: oracle.geometric_loss(a.q, a.stop, a.letters) / L(a.stop), with_q, "{q}"
    )

    def kl(a: oracle.Plain) -> Any:
        p, q = L(a.stop), abs(L(a.q))
        value = p * np.log(p / q) + oracle.times(1 - p, np.log1p(-p) - np.log1p(-q))
        return oracle.Want(value / p, factor=4096, scale=(abs(value) + 1) / p)

    yield g("kl", kl, with_q, "{q}")

    def averaged(a: oracle.Plain) -> Any:
        if not oracle._eos_known(a):
            return oracle.Want(check=oracle.no_nan)
        return oracle.geometric_loss(a.q, min(oracle._eos(a.stop, a.batch_size), L(1)), a.letters)

    def harmonic(a: oracle.Plain) -> Any:
        return (
            1 / oracle._eos(a.stop, a.batch_size)
            if oracle._eos_known(a)
            else oracle.Want(check=oracle.no_nan)
        )

    yield g(
        "averaged_cross_entropy",
        averaged,
        partial(coin, q=probability, batch_size=batch_size),
        "{q}, {batch_size}",
    )
    yield g("harmonic_mean_length", harmonic, partial(coin, batch_size=batch_size), "{batch_size}")
    with_n = partial(coin, n_max=count)

    def n(a: oracle.Plain) -> Any:
        return np.arange(1, a.n_max + 1, dtype=L)

    yield g("length_probabilities", lambda a: L(a.stop) * (1 - L(a.stop)) ** (n(a) - 1), with_n, "{n_max}")

    def tilted(a: oracle.Plain) -> Any:
        if a.stop == 1:
            return (n(a) == 1).astype(L)
        return (1 - L(a.stop)) ** n(a) / (-n(a) * np.log(L(a.stop)))

    yield g("tilted_lengths", tilted, with_n, "{n_max}")
    yield g(
        "tilted_hazards",
        lambda a: oracle.Want(
            check=lambda got: "" if ((got > 0) & (got <= 1 + 1e-9)).all() else "which are no hazards"
        ),
        with_n,
        "{n_max}",
    )

    def sizes(a: oracle.Plain) -> Any:
        return oracle.Want(
            check=lambda got: "" if got.shape == (a.size,) and (got >= 1).all() else "of another shape"
        )

    def size(source: Source) -> Given:
        given = count(source)
        return given if given.text != "(0,)" else Given("2", 2)  # a shape is welcome here

    yield g("sample", sizes, partial(coin, rng=generator, size=size), "{rng}, {size}")

    m = partial(of, "MarkovSource")
    yield m("", lambda a, c: anything, words, "")
    yield m("visits", lambda a, c: c.visits, words, "")
    yield m("mean_length", lambda a, c: 1 + c.visits.sum(), words, "")

    def lengths_of(a: oracle.Plain, c: oracle.Chain) -> Any:
        law, state = [c.first[-1]], c.first[:-1]
        for _ in range(1, a.n_max):
            law.append(state @ c.rows[:, -1])
            state = state @ c.rows[:, :-1]
        return np.array(law, L)

    yield m("length_probabilities", lengths_of, partial(words, n_max=count), "{n_max}")

    def entropy(a: oracle.Plain, c: oracle.Chain) -> Any:
        rows = -oracle._log(c.rows, c.rows).sum(-1)
        return oracle.Want(-oracle._log(c.first, c.first).sum() + c.visits @ rows, factor=1e8)

    yield m("entropy", entropy, words, "")

    def against(term: Any) -> Any:
        def model(a: oracle.Plain, c: oracle.Chain) -> Any:
            d = oracle.Chain(a, "initial_q", "transition_q")
            if d.letters != c.letters:
                raise oracle.Refused({"model"})
            rows = np.where(c.visits > 0, term(c.rows, d.rows).sum(-1), 0)
            value = term(c.first, d.first).sum() + oracle.times(c.visits, rows).sum()
            return oracle.Want(value, factor=1e8, scale=np.abs(value) + 1)

        return model

    two = partial(words, model=True)
    # The second source is made by the call, so that an error may say "initial" of it.
    for name, term in (("cross_entropy", lambda p, q: -oracle._log(p, q)), ("kl", oracle._kl)):
        yield m(
            name, against(term), two, "", kinds={}, names=("initial", "transition", "model"),
            call=f"{prefix}MarkovSource({{initial}}, {{transition}}).{name}("
            f"{prefix}MarkovSource({{initial_q}}, {{transition_q}}))",
        )  # fmt: skip
    finite = oracle.Want(check=oracle.no_nan)
    yield m(
        "harmonic_mean_length", lambda a, c: finite, partial(words, batch_size=batch_size), "{batch_size}"
    )
    yield m("token_mean_fit", lambda a, c: anything, partial(words, batch_size=batch_size), "{batch_size}")

    def sampled_words(a: oracle.Plain, c: oracle.Chain) -> Any:
        return oracle.Want(check=lambda got: "" if len(got) == a.size else "of another length")

    yield m("sample", sampled_words, partial(words, rng=generator, size=count), "{rng}, {size}")

    def corpus(source: Source) -> Arguments:
        letters = integer(source, (2, 1, 3, 0, -1), rare=(10**6, 10**30, -(10**30)))
        k = letters.plain if letters.plain in (1, 2, 3) else 2
        texts, plain, wrong = [], [], False
        for _ in range(source.below(4)):
            length = pick(source, (2, 0, 3))
            pool = (*range(k), *((k, -1) if once_in(source, 8) else ()))
            given = array(
                source, [pick(source, pool) for _ in range(length)], disturbed(source, (length,)), INTEGERS
            )
            texts.append(given.text)
            plain.append(given.plain)
            if length and once_in(source, 10):
                texts[-1], wrong = pick(source, LABEL_NEVER).format(given.plain.tolist()), True
        weight = Rows(source).weights((len(plain),))
        some = Given(f"[{', '.join(texts)}]", plain, (TypeError, ValueError) if wrong else ())
        if once_in(source, 12):
            some = Given(pick(source, ("None", "5", "object()")), [np.zeros(1, int)], (TypeError,))
        return {"sequences": some, "letters": letters, "weights": weight}

    def fitted(a: oracle.Plain) -> oracle.Want:
        bad = oracle.Bad()
        if not 1 <= a.letters <= 30_000:
            bad.add("letters")
        if not a.sequences:
            bad.add("sequences")
        for sequence in a.sequences:
            if sequence.ndim != 1 or ((sequence < 0) | (sequence >= a.letters)).any():
                bad.add("sequences")
        w = oracle.weights(bad, a.weights, (len(a.sequences),), "weights")
        if w is not None and not 0 < w.sum() <= np.finfo(np.float64).max:
            bad.add("weights")
        bad.stop()
        w = np.ones(len(a.sequences), L) if w is None else w
        first = np.zeros(a.letters + 1, L)
        for sequence, mass in zip(a.sequences, w, strict=True):
            first[int(sequence[0]) if sequence.size else -1] += mass

        def check(got: Any) -> str:
            return (
                ""
                if np.allclose(got.initial, (first / first.sum()).astype(float))
                else f"where {first} starts"
            )

        return oracle.Want(check=check)

    call = prefix + "MarkovSource.fit({sequences}, {letters}, weights={weights})"
    yield Target(prefix + "MarkovSource.fit", corpus, fitted, {"weights": NEVER}, call)


def distillation_targets(module: str = "distillation") -> Iterator[Target]:
    tensor = module == "torch"
    pair, never = ("student_logits", "teacher_logits"), NO_FLOATS if tensor else REAL_NEVER
    integers = NO_LABELS if tensor else LABEL_NEVER
    weight = kinds("weight", never=TORCH_NEVER if tensor else NEVER)

    def yields(name: str, draw: Any, model: Any, of: dict[str, Any], **more: Any) -> Target:
        return Target(
            f"xent.{module}.{name}", partial(draw, tensor=tensor), partial(model, tensor=tensor), of, **more
        )

    student = kinds("student_logits", never=never)
    yield yields("distillation_loss", distilled, oracle.distillation_loss, kinds(*pair, never=never) | weight)
    yield yields("mixed_loss", mixed, oracle.mixed_loss, kinds(*pair, never=never) | {"targets": integers})
    top = student | weight | kinds("top_log_probs", never=never) | {"top_indices": integers}
    yield yields("top_k_loss", topped, oracle.top_k_loss, top)
    masses = NO_TENSOR if tensor else REAL_NEVER
    yield yields(
        "sampled_loss",
        sampled,
        oracle.sampled_loss,
        student | weight | {"indices": integers, "sample_weights": masses},
    )
    yield yields("sample_targets", draws, oracle.sample_targets, kinds("teacher_logits", never=never))
    if not tensor:
        name = "xent.distillation.distillation_gradient"
        yield Target(name, distilled, oracle.distillation_gradient, kinds(*pair, never=never) | weight)


def torch_targets() -> Iterator[Target]:
    prefix = "xent.torch."
    for name, first in (
        ("log_sum_exp", "x"),
        ("log_softmax", "logits"),
        ("softmax", "logits"),
    ):
        draw = partial(of_logits, name=first, tensor=True)
        yield Target(prefix + name, draw, partial(getattr(oracle, name), tensor=True), {first: NO_FLOATS})
    for name in ("sigmoid", "log_sigmoid"):
        draw, model = partial(of_numbers, tensor=True), partial(getattr(oracle, name), tensor=True)
        yield Target(prefix + name, draw, model, {"logits": NO_FLOATS})
    for name, first in (("cross_entropy", "logits"), ("nll", "log_probs"), ("log_loss", "probs")):
        of = {first: NO_FLOATS, "targets": NO_LABELS, "weight": TORCH_NEVER}
        draw = partial(hard, first=first, tensor=True)
        yield Target(prefix + name, draw, partial(getattr(oracle, name), tensor=True), of)
    of = kinds("logits", "target_probs", never=NO_FLOATS)
    yield Target(
        prefix + "soft_cross_entropy",
        partial(soft, tensor=True),
        partial(oracle.soft_cross_entropy, tensor=True),
        of,
    )
    of = {"logits": NO_FLOATS, "targets": NO_TENSOR} | kinds("weight", "pos_weight", never=TORCH_NEVER)
    model = partial(oracle.binary_cross_entropy, tensor=True)
    yield Target(prefix + "binary_cross_entropy", partial(binary, tensor=True), model, of)
    scales = "[[micro.scale for micro in window] for window in xent.torch.accumulate({batches}, {steps}, "
    call = scales + "targets={targets}, denominator={denominator}, ignore_index={ignore_index})]"
    yield Target(prefix + "accumulate", windows, oracle.accumulate, {}, call)


def checker_targets() -> Iterator[Target]:
    def checked(a: oracle.Plain) -> oracle.Want:
        return oracle.kind(xent_book.exercises.Result, "ok", False)

    def diagnosed(a: oracle.Plain) -> oracle.Want:
        return oracle.kind(xent_book.frameworks.Diagnosis, "known", False)

    call = "xent_book.exercises.check({slug}, {answer})"
    names = ("slug", "there is no exercise")
    yield Target("xent_book.exercises.check", checking, checked, {}, call, names, separator="")
    call = "xent_book.frameworks.diagnose({loss_fn}, arrays={arrays})"
    yield Target("xent_book.frameworks.diagnose", diagnosing, diagnosed, {}, call, separator="")


GROUPS: dict[str, tuple[Target, ...]] = {
    "numpy": tuple(numpy_targets()),
    "scoring": tuple(scoring_targets()),
    "sequences": tuple(sequence_targets()),
    "distillation": tuple(distillation_targets()),
    "torch": (*torch_targets(), *distillation_targets("torch")),
    "checkers": tuple(checker_targets()),
}
TARGETS: dict[str, Target] = {target.name: target for group in GROUPS.values() for target in group}

# Public, and not called with hostile arguments.
ELSEWHERE = {
    "xent.scoring.Rule": "the name of a type",
    "xent.torch.MicroBatch": "a record that accumulate fills",
    "xent.torch.Window": "a record that accumulate fills",
    "xent.torch.linear_cross_entropy": "test_torch_linear.py has its errors in one table",
    "xent.torch.linear_distillation_loss": "test_torch_linear.py has its errors in one table",
    "xent_book.exercises.Exercise": "a record for authors, which test_exercises.py checks one by one",
    "xent_book.exercises.Mistake": "a record for authors, which test_exercises.py checks one by one",
    "xent_book.exercises.Result": "a record that check fills",
    "xent_book.exercises.get": "takes the slug that check takes, and hands it on",
    "xent_book.exercises.names": "has no arguments",
    "xent_book.plots.use_style": "has no arguments",
    "xent_book.quiet.import_module": "hands its argument to Python's importlib",
}
MODULES: tuple[ModuleType, ...] = (
    xent,
    xent.information,
    xent.gradients,
    xent.scoring,
    xent.sequences,
    xent.distillation,
    xent.torch,
    xent_book.exercises,
    xent_book.quiet,
)


def public() -> Iterator[str]:
    """Name every public function, class and method that takes arguments from outside."""
    for module in MODULES:
        for name in module.__all__:
            thing = getattr(module, name)
            if isinstance(thing, ModuleType) or not callable(thing):
                continue
            yield f"{module.__name__}.{name}"
            if inspect.isclass(thing) and module is xent.sequences:
                for method, function in vars(thing).items():
                    if not method.startswith("_") and callable(getattr(thing, method)):
                        del function
                        yield f"{module.__name__}.{name}.{method}"
