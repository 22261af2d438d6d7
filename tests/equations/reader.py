"""Reads an equation as its chapter prints it, and evaluates each side of each relation at 60 digits.

What a name stands for is the caller's: an environment from names (`z`, `ell_T`, `hat p`, `cal L`) to numbers, columns
and matrices (objects in NumPy, whose indices count from 1) and functions. A name is looked up with its subscript
first; if there is none such, the subscript is an index.
"""

from __future__ import annotations

import operator
import re
from collections import namedtuple
from collections.abc import Callable, Iterator
from functools import reduce
from itertools import pairwise, product
from typing import Any

import mpmath as mp
import numpy as np

DIGITS = 60
STEP, CLOSE, TINY = mp.mpf("1e-12"), mp.mpf("1e-14"), mp.mpf("1e-20")
Env = dict[str, Any]
Tokens = list[str]
Let = namedtuple("Let", "of")  # computed from the environment, so that it follows the names it depends on


class Unreadable(Exception):
    """The reader cannot evaluate this. It never guesses."""


def near(a: Any, b: Any) -> bool:
    """Whether a and b agree to a relative error of CLOSE, or are both next to nothing."""
    pairs = np.broadcast(np.asarray(a, object), np.asarray(b, object))
    return all(x == y or abs(y - x) <= CLOSE * max(abs(x), abs(y)) + TINY for x, y in pairs)


def multiply(a: Any, b: Any) -> Any:
    """The product, of matrices where both are; a single entry is a number."""
    both = a @ b if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) else b * a
    return both[0, 0] if isinstance(both, np.ndarray) and both.size == 1 else both


log = np.frompyfunc(mp.log, 1, 1)

RELATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": near,
    "<": operator.lt,
    ">": operator.gt,
    r"\le": lambda a, b: a <= b or near(a, b),
    r"\ge": lambda a, b: a >= b or near(a, b),
    r"\ne": lambda a, b: not near(a, b),
    r"\in": lambda a, b: b[0] < a <= b[1] if isinstance(b, np.ndarray) else a in b,
}
BETWEEN = {"": multiply, "/": operator.truediv, r"\odot": operator.mul, r"\cdot": lambda a, b: np.sum(a * b)}
BIG = {r"\sum": lambda v: reduce(operator.add, v, mp.mpf(0)), r"\prod": mp.fprod, r"\max": max, r"\min": min}
KNOWN = {name: getattr(mp, name) for name in ("e", "pi", "log1p")}
KNOWN |= {"max": max, "min": min, "diag": lambda v: np.diag(v[:, 0])}

TOKEN = re.compile(
    r"\\(?P<font>math[a-z]+|operatorname\*?|text)\s*(?:\{(?P<word>[^{}]*)\}|(?P<letter>\\[A-Za-z]+|\w))"
    r"|\\(?P<accent>hat|bar|tilde)\s*(?P<brace>\{)?\\?(?P<under>(?<=\\)[A-Za-z]+|\w)(?(brace)\})"
    r"|\\[A-Za-z]+|\\.|\d+|\S"
)
NOTHING = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?)(?![A-Za-z])|(?<!\\)\\[,;:! ]|\{\s*\}"
    r"|\\(?:begin|end)\{aligned\}|(?<=\\\\)\[\w+\]"
)
FONTS = {"mathbf": "bold ", "mathsf": "sans ", "mathcal": "cal ", "text": '"'}
OPEN: dict[str, Any] = {"(": ")]", "[": "])", "{": "}", "|": "|", r"\{": [r"\}"], r"\lVert": [r"\rVert"]}
GAPS, STRIP = {r"\quad", r"\qquad", "&", r"\\"}, '\\"{}'
ENDS = {"", "+", "-", *RELATIONS}


def tokens_of(tex: str) -> Tokens:
    r"""Split TeX; `\mathrm{KL}` and `\hat p` become one token each, spaces and the sizes of brackets go."""
    found = []
    for m in TOKEN.finditer(NOTHING.sub(" ", tex.replace(r"\tfrac", r"\frac"))):
        word = "".join((m["word"] or m["letter"] or "").split())
        marked = f"{m['accent']} {m['under']}" if m["accent"] else m[0]
        found.append(FONTS.get(m["font"], "") + word if word else marked)
    return found


def walk(tokens: Tokens) -> Iterator[tuple[int, str, int]]:
    """Yield place, token and depth; a bracket itself counts as outside."""
    closers: list[Any] = []
    for i, token in enumerate(tokens):
        closes = bool(closers) and token in closers[-1]
        closers = closers[:-1] if closes else closers
        yield i, token, len(closers)
        closers = [*closers, OPEN[token]] if token in OPEN and not closes else closers


def split(tokens: Tokens, *at: str) -> list[Tokens]:
    """Split tokens where one of `at` stands outside of brackets."""
    cuts = [i for i, token, depth in walk(tokens) if token in at and not depth]
    return [tokens[a + 1 : b] for a, b in zip([-1, *cuts], [*cuts, len(tokens)], strict=True)]


def statements(tex: str) -> Iterator[tuple[Tokens, Tokens]]:
    """Yield the displayed chains of relations with their conditions: a comma, a gap, a line may end one."""
    tokens, parts = tokens_of(tex), [[""]]
    for i, token, depth in walk(tokens):
        follows = next((t for t in tokens[i + 1 :] if t not in GAPS), "")
        goes_on = follows in RELATIONS or parts[-1][-1] in ENDS or follows[:1] == '"'
        goes_on |= follows in {"+", "-"} and (token != r"\\" or tokens[i + 1] == "&")
        if depth or token not in GAPS | {",", "."}:
            parts[-1] += [token] * (token not in GAPS)
        elif token == "," or not (goes_on or token == "." or [token, tokens[i + 1]] == ["&", follows]):
            parts += [[""]] * (follows[:1] != '"')
    for part in (part[1:] for part in parts if part[1:]):
        texts = (i for i, token, depth in walk(part) if token[0] == '"' and not depth)
        cut = next((i for i in texts if not i or part[i - 1] not in ENDS), len(part))
        yield part[:cut], part[cut:]


def lookup(e: Env, name: str) -> Any:
    if name not in e:
        raise Unreadable(f"nothing is known of {name!r}")
    value = e[name].of(e) if isinstance(e[name], Let) else e[name]
    return mp.mpf(value) if type(value) is int else value


def index(value: Any, at: list[Any]) -> Any:
    """An entry of a column or a matrix, or a matrix's row as a column."""
    at, shape = [int(i) for i in at], np.shape(value)
    if not shape or not all(1 <= i <= n for i, n in zip(at, shape, strict=False)):
        raise Unreadable(f"index {at} is outside {shape}")
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


def evaluate(tokens: Tokens, env: Env) -> Any:
    """The value of an expression, or whether the relations in it hold."""
    values = [Reader(side, env).whole() for side in split(tokens, *RELATIONS)]
    signs = [token for _, token, depth in walk(tokens) if token in RELATIONS and not depth]
    held = (RELATIONS[s](a, b) for s, (a, b) in zip(signs, pairwise(values), strict=True))
    return all(held) if signs else values[0]


class Reader:
    """Recursive descent over tokens: each method takes what it reads from them, and returns the value."""

    def __init__(self, tokens: Tokens, env: Env) -> None:
        self.tokens, self.env, self.at = [*tokens], env, 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def took(self, *expected: str) -> bool:
        self.at += (found := self.peek() in expected)
        return found

    def argument(self) -> Tokens:
        """The tokens in a bracket or a brace; else a single letter, digit or command."""
        token = self.peek()
        if token.isdigit():
            self.tokens[self.at : self.at + 1] = [*token]
        rest = self.tokens[self.at :]
        end = next((i for i, _, depth in walk(rest) if i and not depth), 0) if token in OPEN else 1
        if not rest or not end:
            raise Unreadable(f"no end of {''.join(self.tokens)}")
        self.at += end + (token in OPEN)
        return rest[1:end] if token in OPEN else rest[:1]

    def scope(self) -> Tokens:
        """The tokens of what an operator acts on: all that it multiplies."""
        rest = self.tokens[self.at :]
        ends = (i for i, token, depth in walk(rest) if not depth and token in ENDS and (i or token != "-"))
        self.at += (end := next(ends, len(rest)))
        return rest[:end]

    def whole(self) -> Any:
        total = self.sum()
        if self.peek():
            raise Unreadable(f"{self.peek()!r} in {' '.join(self.tokens)}")
        return total

    def sum(self) -> Any:
        _, total = self.took("+"), self.product()
        while sign := self.took("+") - self.took("-"):
            total = sign * self.product() + total
        return total

    def product(self) -> Any:
        if self.took("-"):
            return -self.product()
        total = self.factor()
        while self.peek() not in ENDS:
            total = BETWEEN[self.argument()[0] if self.peek() in BETWEEN else ""](total, self.factor())
        return total

    def factor(self) -> Any:
        """A fraction, an operator with its scope, or a value with its powers and indices."""
        if self.took(r"\frac"):
            return self.fraction()
        if self.peek() in BIG and self.tokens[self.at + 1] == "_":
            combine, scopes = BIG[self.argument()[0]], self.bound()
            body = self.scope()
            return combine([evaluate(body, e) for e in scopes])
        if self.took(r"\log"):
            power = evaluate(self.argument(), self.env) if self.took("^") else 1
            return log(self.factor()) ** power
        if self.took(r"\nabla"):
            by = self.argument() if self.took("_") else [self.env["nabla"]]
            order = int(self.argument()[0]) if self.took("^") else 1
            start, _ = self.at, self.factor()
            return self.slope(order, by, self.tokens[start : self.at])
        value = self.primary()
        while self.peek() in {"_", "^"}:
            if self.took("_"):
                value = index(value, self.indices(self.argument()))
            else:
                to = self.took("^") and self.argument()
                value = value.T if to in ([r"\top"], ["sans T"]) else value ** evaluate(to, self.env)
        return value

    def bound(self) -> list[Env]:
        """The environments that the subscript of a sum runs through."""
        sub, top = self.took("_") and self.argument(), self.took("^") and self.argument()
        if top:
            (name,), low = split(sub, "=")
            whole = range(int(evaluate(low, self.env)), int(evaluate(top, self.env)) + 1)
            return [{**self.env, name.strip(STRIP): i} for i in whole]
        (token,), *related = split(sub, *RELATIONS)
        scopes = [{**self.env, token.strip(STRIP): i} for i in self.env["over"][token.strip(STRIP)]]
        return [e for e in scopes if not related or evaluate(sub, e)]

    def fraction(self) -> Any:
        top, bottom = self.argument(), self.argument()
        if top[0] != bottom[0] or top[0] not in {r"\partial", "d"}:
            return evaluate(top, self.env) / evaluate(bottom, self.env)
        order, name = (int(top[2]), bottom[1:-2]) if top[1:2] == ["^"] else (1, bottom[1:])
        if bottom[len(name) + 1 :] != top[1:3] * (order > 1):
            raise Unreadable(f"the order of {' '.join(top)} by {' '.join(bottom)}")
        return self.slope(order, name, top[1 + 2 * (order > 1) :] or self.scope())

    def slope(self, order: int, by: Tokens, body: Tokens) -> Any:
        """The derivative of the body by `z`, or by `z_k`."""
        at = self.indices(by[3:-1] if by[2:3] == ["{"] else by[2:])
        return derivative(lambda e: evaluate(body, e), self.env, by[0].strip(STRIP), at, order)

    def indices(self, sub: Tokens) -> list[Any]:
        """What a subscript says: `{n,k}` and `{nk}` are two indices, `{K-1}` is one."""
        found = []
        for reader in (Reader(part, self.env) for part in split(sub, ",")):
            while reader.peek():
                found.append(reader.sum() if {"+", "-"} & {*reader.tokens} else reader.factor())
        return found

    def primary(self) -> Any:
        token = self.peek()
        if token[0].isdigit():
            self.at += 1
            return mp.mpf(token)
        if self.took(r"\sqrt"):
            return mp.sqrt(evaluate(self.argument(), self.env))
        if token == "|":
            return abs(evaluate(self.argument(), self.env))
        if token == r"\lVert":
            values = np.ravel(np.asarray(evaluate(self.argument(), self.env), object))
            order = evaluate(self.argument(), self.env) if self.took("_") else mp.mpf(2)
            return sum(abs(v) ** order for v in values) ** (1 / order)
        if token in OPEN:
            items = self.items()
            several = {*items} if token == r"\{" else np.array(items, object)[:, None]
            return items[0] if len(items) == 1 else several
        return self.name()

    def items(self) -> list[Any]:
        return [evaluate(part, self.env) for part in split(self.argument(), ",", r"\|") if part]

    def name(self) -> Any:
        """A name, with its subscript where that is known; a call, if it is a function."""
        name = self.argument()[0].strip(STRIP)
        sub = self.argument() if self.took("_") else Tokens()
        whole = name + "_" * bool(sub) + "".join(token.strip(STRIP) for token in sub)
        value = lookup(self.env, whole if whole in self.env else name)
        value = index(value, self.indices(sub)) if sub and whole not in self.env else value
        return value(*self.items()) if callable(value) and self.peek() in {"(", "["} else value


def remembered(side: Tokens, e: Env) -> Any:
    """The value of a side, which a page that was changed elsewhere does not compute again."""
    if (key := tuple(side)) not in e["known"]:
        e["known"][key] = evaluate(side, e)
    return e["known"][key]


def failures(tex: str, draws: list[Env], unread: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield which relations of an equation fail, and where; `unread` are the sides, chains and conditions to leave out.

    Whatever else cannot be read raises Unreadable, and so does an `unread` that is not printed.
    """
    shown = lambda value: ", ".join(mp.nstr(x, 6) for x in np.ravel(np.asarray(value, object)))  # noqa: E731
    left_out, found = {tuple(tokens_of(part)) for part in unread}, [*statements(tex)]
    parts = {tuple(p) for chain, under in found for p in [chain, *split(chain, *RELATIONS), under]}
    if missing := left_out - parts:
        raise Unreadable(f"to be left out, but not printed: {[' '.join(part) for part in missing]}")
    number, total = 0, sum(len(split(chain, *RELATIONS)) - 1 for chain, _ in found)
    for chain, under in found:
        sides = split(chain, *RELATIONS)
        signs = [token for _, token, depth in walk(chain) if token in RELATIONS and not depth]
        read = [i for i, side in enumerate(sides) if not left_out & {tuple(side), tuple(chain)}]
        if len(read) == 1:
            raise Unreadable(f"no relation to read in {' '.join(chain)}")
        under = [] if tuple(under) in left_out else under
        if under and under[0] not in {'"if', '"for'}:
            raise Unreadable(f"the condition {' '.join(under)}")
        envs = [KNOWN | d | {"known": d.setdefault("known", {})} for d in draws] if read else []
        held = [e for e in envs if not under or evaluate(under[1:], e)]
        if read and not held:
            yield f"the condition of {' '.join(chain)} never holds"
        for (a, b), e in product(pairwise(read), held):
            sign = next((s for s in signs[a:b] if s != "="), "=")
            left, right = (remembered(sides[i], e) for i in (a, b))
            if not RELATIONS[sign](left, right):
                relation = " ".join([*sides[a], sign, *sides[b]])
                names = sorted({token.strip(STRIP) for token in sides[a] + sides[b]} & {*e})
                at = [f"{n} = {shown(e[n])}" for n in names if isinstance(e[n], int | mp.mpf | np.ndarray)]
                told = f"left {shown(left)}, right {shown(right)} at {'; '.join(at)}"
                yield f"relation {number + b} of {total}, {relation}: {told}"
        number += len(signs)
