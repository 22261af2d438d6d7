"""What the names in an equation may stand for, and what is done to them, at 60 digits: numbers, columns and matrices
(objects in NumPy, whose indices count from 1), mappings and functions."""

from __future__ import annotations

import operator
from collections import namedtuple
from collections.abc import Callable
from functools import reduce
from typing import Any

import mpmath as mp
import numpy as np

mp.mp.dps = 60
STEP, CLOSE, TINY, FAR = mp.mpf("1e-12"), mp.mpf("1e-14"), mp.mpf("1e-20"), mp.mpf("1e20")
Env = dict[str, Any]
Let = namedtuple("Let", "of")  # computed from the environment, so that it follows the names it depends on
Outcomes = namedtuple(
    "Outcomes", "of"
)  # of an expectation: pairs of a probability and the names that it binds


class Unreadable(Exception):
    """The reader cannot evaluate this. It never guesses."""


def near(a: Any, b: Any) -> bool:
    """Whether a and b agree to a relative error of CLOSE, or are both next to nothing."""
    pairs = np.broadcast(np.asarray(a, object), np.asarray(b, object))
    return all(x == y or abs(y - x) <= CLOSE * min(max(abs(x), abs(y)), FAR) + TINY for x, y in pairs)


def multiply(a: Any, b: Any) -> Any:
    """The product, of matrices where both are; a single entry is a number."""
    product = a @ b if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) else b * a
    return product[0, 0] if isinstance(product, np.ndarray) and product.size == 1 else product


def dot(a: Any, b: Any) -> Any:
    return (a * b).sum() if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) else a * b


def log(x: Any) -> Any:
    return np.frompyfunc(mp.log, 1, 1)(x)


RELATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": near,
    "<": operator.lt,
    ">": operator.gt,
    r"\le": lambda a, b: a <= b or near(a, b),
    r"\ge": lambda a, b: a >= b or near(a, b),
    r"\ne": lambda a, b: not near(a, b),
    r"\in": lambda a, b: b[0] < a <= b[1] if isinstance(b, np.ndarray) else a in b,
}
BETWEEN = {"": multiply, "/": operator.truediv, r"\odot": operator.mul, r"\cdot": dot, r"\cup": operator.or_}
BETWEEN[r"\cap"] = operator.and_
BIG: dict[str, Callable[[list[Any]], Any]] = {
    r"\sum": lambda values: reduce(operator.add, values, mp.mpf(0)),
    r"\prod": lambda values: reduce(multiply, values, mp.mpf(1)),
    r"\max": max,
    r"\min": min,
}
UNARY = {"|": abs, r"\lvert": abs, r"\sqrt": mp.sqrt}
KNOWN = {name: getattr(mp, name) for name in ("e", "pi", "exp", "tanh", "sech", "log1p", "sqrt")}
KNOWN |= {"cdot": ..., "infty": mp.inf, "max": max, "min": min, "diag": lambda v: np.diag(v[:, 0])}


def lookup(e: Env, name: str) -> Any:
    if name not in e:
        raise Unreadable(f"nothing is known of {name!r}")
    value = e[name].of(e) if isinstance(e[name], Let) else e[name]
    return mp.mpf(value) if type(value) is int else value


def over(e: Env, name: str) -> Any:
    """What an index without bounds runs through, which may depend on other indices."""
    values = e["over"][name]
    return values(e) if callable(values) else values


def index(value: Any, at: list[Any]) -> Any:
    """An entry of a column or a matrix, a matrix's row as a column, or what a mapping holds."""
    at = [int(i) if isinstance(i, mp.mpf) else i for i in at]
    if not isinstance(value, np.ndarray):
        return value[at[0] if len(at) == 1 else tuple(at)]
    if not all(1 <= i <= n for i, n in zip(at, value.shape, strict=False)):
        raise Unreadable(f"index {at} is outside {value.shape}")
    row = value[at[0] - 1]
    return row[at[1] - 1] if len(at) == 2 else row[0] if value.shape[1] == 1 else row[:, None]


def derivative(f: Callable[[Env], Any], e: Env, name: str, at: list[Any], order: int = 1) -> Any:
    """Of f, by a name or by an entry of it, as central differences."""
    if not order:
        value = f(e)
        return value(lookup(e, name)) if callable(value) else value
    x, slopes = lookup(e, name), []
    cells = np.arange(np.size(x)).reshape(np.shape(x))
    picked = np.asarray(index(cells, at) if at else cells)
    for cell in picked.ravel():
        step = STEP * min(1, abs(np.ravel(x)[cell]) or 1)
        h = np.where(cells == cell, step, mp.mpf(0))[()]
        up, down = (derivative(f, {**e, name: x + by}, name, at, order - 1) for by in (h, -h))
        slopes.append((up - down) / (2 * step))
    if isinstance(slopes[0], np.ndarray):
        return np.hstack(slopes)  # the Jacobian of a column
    return slopes[0] if not picked.shape else np.array(slopes, object).reshape(picked.shape)


def shown(value: Any) -> str:
    values = np.ravel(np.asarray(value, object))
    return ", ".join(mp.nstr(x, 6) if isinstance(x, mp.mpf | mp.mpc) else str(x) for x in values)
