"""Reads an equation as its chapter prints it, and evaluates each side of each relation at 60 digits.

What a name stands for is the caller's: an environment from names (`z`, `ell_T`, `hat p`, `cal L`) to numbers, columns
and matrices (objects in NumPy; indices count from 1), mappings, functions, `Let` (computed from the other names, so
that it follows them, as a derivative needs) and `Outcomes` (of an expectation). A name is looked up with its subscript
first; if there is none such, the subscript is an index. `over` says what an index without bounds runs through.
"""

from __future__ import annotations

import operator
import re
from collections import namedtuple
from collections.abc import Callable, Iterator
from functools import reduce
from itertools import product
from typing import Any

import mpmath as mp
import numpy as np

mp.mp.dps = 60
STEP, CLOSE, TINY, FAR, MANY = mp.mpf("1e-12"), mp.mpf("1e-14"), mp.mpf("1e-20"), mp.mpf("1e20"), 400
Env = dict[str, Any]
Let = namedtuple("Let", "of")  # a function of the environment
Outcomes = namedtuple("Outcomes", "of")  # the same, to pairs: a probability, and the names that an outcome binds
Statement = tuple[list[str], list[list[str]]]  # tokens: a chain of relations, and the conditions it stands under


class Unreadable(Exception):
    """The reader cannot evaluate this. It never guesses."""


TOKEN = re.compile(
    r"\\(?P<font>math[a-z]+|operatorname\*?|text)\s*(?:\{(?P<word>[^{}]*)\}|(?P<letter>\\[A-Za-z]+|\w))"
    r"|\\(?P<accent>hat|bar|tilde)\s*(?P<brace>\{)?(?P<under>\\[A-Za-z]+|\w)(?(brace)\})"
    r"|\\[A-Za-z]+|\\.|\d+(?:\{,\}\d+)*(?:\.\d+)?|\^\*|\S"
)
NOTHING = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle)(?![A-Za-z])|\\[,;:! ]|\{\s*\}"
    r"|\\(?:begin|end)\{(?:aligned|gathered)\}|(?<=\\\\)\[\w+\]"
)
CASES = re.compile(r"\\begin\{cases\}(.*?)\\end\{cases\}", re.DOTALL)
FONTS = {"mathbf": "bold ", "mathsf": "sans ", "mathcal": "cal ", "text": '"'}
PAIRS = {"(": ")]", "[": "])", "{": "}", r"\{": [r"\}"], r"\lvert": [r"\rvert"], r"\lVert": [r"\rVert"], "|": "|", r"\lceil": [r"\rceil"]}
GAPS, IMPLIES = {r"\quad", r"\qquad", "&", r"\\"}, {r"\Rightarrow", r"\Longrightarrow", r"\iff"}


def near(a: Any, b: Any) -> bool:
    """Whether a and b agree to a relative error of CLOSE, or are both next to nothing."""
    pairs = np.broadcast(np.asarray(a, object), np.asarray(b, object))
    return all(x == y or abs(y - x) <= CLOSE * min(max(abs(x), abs(y)), FAR) + TINY for x, y in pairs)


def multiply(a: Any, b: Any) -> Any:
    """The product, of matrices where both are; a single entry is a number."""
    product = a @ b if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) else b * a
    return product[0, 0] if isinstance(product, np.ndarray) and product.size == 1 else product


RELATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": near,
    "<": operator.lt,
    ">": operator.gt,
    r"\le": lambda a, b: a <= b or near(a, b),
    r"\ge": lambda a, b: a >= b or near(a, b),
    r"\ne": lambda a, b: not near(a, b),
    r"\in": lambda a, b: b[0] < a <= b[1] if isinstance(b, np.ndarray) else a in b,
    r"\to": lambda a, b: b == a,
}
BETWEEN: dict[str, Callable[[Any, Any], Any]] = {
    "": multiply,
    "/": operator.truediv,
    r"\odot": operator.mul,
    r"\cup": operator.or_,
    r"\cap": operator.and_,
    r"\cdot": lambda a, b: (a * b).sum() if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) else a * b,
}
BIG: dict[str, Callable[[list[Any]], Any]] = {
    r"\sum": lambda values: reduce(operator.add, values, mp.mpf(0)),
    r"\prod": lambda values: reduce(multiply, values, mp.mpf(1)),
    r"\max": max,
    r"\min": min,
}
KNOWN = {name: getattr(mp, name) for name in ("e", "pi", "exp", "tanh", "sech", "log1p", "sqrt")}
KNOWN |= {"cdot": ..., "infty": mp.inf, "max": max, "min": min, "diag": lambda v: np.diag(v[:, 0])}
ENDS = {"", "+", "-", *RELATIONS}


def tokens_of(tex: str) -> list[str]:
    r"""Split TeX; `\mathrm{KL}` and `\hat p` become one token each, spaces and the sizes of brackets go."""
    tex = CASES.sub(lambda m: r"\cases{" + m[1].replace(r"\\", ";") + "}", tex.replace(r"\tfrac", r"\frac"))
    found = []
    for m in TOKEN.finditer(NOTHING.sub(" ", tex)):
        word, accent = "".join((m["word"] or m["letter"] or "").split()), m["accent"]
        found.append(FONTS.get(m["font"], "") + word if word else f"{accent} {m['under'].lstrip(chr(92))}" if accent else m[0])
    return found


def walk(tokens: list[str]) -> Iterator[tuple[int, str, int]]:
    """Yield place, token and depth; a bracket itself counts as outside."""
    closers: list[Any] = []
    for i, token in enumerate(tokens):
        closes = bool(closers) and token in closers[-1]
        closers = closers[:-1] if closes else closers
        yield i, token, len(closers)
        closers = [*closers, PAIRS[token]] if token in PAIRS and not closes else closers


def split(tokens: list[str], *at: str) -> list[list[str]]:
    """Split tokens where one of `at` stands outside of brackets."""
    cuts = [i for i, token, depth in walk(tokens) if token in at and not depth]
    return [tokens[a + 1 : b] for a, b in zip([-1, *cuts], [*cuts, len(tokens)], strict=True)]


def statements(tex: str) -> list[Statement]:
    """Split what is displayed where a comma, a colon, a gap or a new line begins another statement."""
    tokens, parts = tokens_of(tex), [[""]]
    for i, token, depth in walk(tokens):
        follows = next((t for t in tokens[i + 1 :] if t not in GAPS), "")
        goes_on = follows in {*RELATIONS, *IMPLIES} or parts[-1][-1] in {*ENDS, *IMPLIES} or follows[:1] == '"'
        goes_on |= follows in {"+", "-"} and (token != r"\\" or tokens[i + 1] == "&")
        if depth or token not in GAPS | {",", ":", "."}:
            parts[-1] += [token] * (token not in GAPS)
        elif token == "," or token == ":" or not (goes_on or token == "." or [token, tokens[i + 1]] == ["&", follows]):
            parts += [[""]] * (follows[:1] != '"')
    found: list[Statement] = []
    for part in (part[1:] for part in parts if part[1:]):
        texts = (i for i, token, depth in walk(part) if token[0] == '"' and not depth)
        cut = next((i for i in texts if not i or part[i - 1] not in ENDS), len(part))
        left, *right = split(part[:cut], *IMPLIES)
        conditions = [part[cut:]] * (cut < len(part))
        found += [(right[0], [left, *conditions])] if right else [(left, conditions)]
        found += [(left, [*right, *conditions])] if r"\iff" in part[:cut] else []
    return found


def index(value: Any, at: list[Any]) -> Any:
    """An entry of a column or a matrix, a matrix's row as a column, or what a mapping holds."""
    at = [int(i) if isinstance(i, mp.mpf) else i for i in at]
    if not isinstance(value, np.ndarray):
        return value[at[0] if len(at) == 1 else tuple(at)]
    if not all(1 <= i <= n for i, n in zip(at, value.shape, strict=False)):
        raise Unreadable(f"index {at} is outside {value.shape}")
    row = value[at[0] - 1]
    return row[at[1] - 1] if len(at) == 2 else row[0] if value.shape[1] == 1 else row[:, None]


def lookup(e: Env, name: str) -> Any:
    if name not in e:
        raise Unreadable(f"nothing is known of {name!r}")
    value = e[name].of(e) if isinstance(e[name], Let) else e[name]
    return mp.mpf(value) if type(value) is int else value


def over(e: Env, name: str) -> Any:
    """What an index runs through, which may depend on other indices."""
    values = e["over"][name]
    return values(e) if callable(values) else values


def derivative(f: Callable[[Env], Any], e: Env, name: str, at: list[Any]) -> Any:
    """Of f, by a name or by an entry of it, as central differences."""
    x = lookup(e, name)
    cells = np.arange(np.size(x)).reshape(np.shape(x))
    picked = np.asarray(index(cells, at) if at else cells)
    slopes = []
    for cell in picked.ravel():
        step = STEP * min(1, abs(np.ravel(x)[cell]) or 1)
        h = np.where(cells == cell, step, mp.mpf(0))[()]
        slopes.append((f({**e, name: x + h}) - f({**e, name: x - h})) / (2 * step))
    if isinstance(slopes[0], np.ndarray):
        return np.hstack(slopes)  # the Jacobian of a column
    return slopes[0] if not picked.shape else np.array(slopes, object).reshape(picked.shape)


def evaluate(tokens: list[str], env: Env) -> Any:
    """The value of an expression, or whether the relations in it hold."""
    relations = [RELATIONS[token] for _, token, depth in walk(tokens) if token in RELATIONS and not depth]
    values = []
    for side in split(tokens, *RELATIONS):
        reader = Reader(side, env)
        values.append(reader.sum())
        if reader.peek():
            raise Unreadable(f"{reader.peek()!r} in {' '.join(side)}")
    return all(r(a, b) for r, a, b in zip(relations, values, values[1:], strict=False)) if relations else values[0]


class Reader:
    """Recursive descent over tokens: each method takes what it reads from them, and returns the value."""

    def __init__(self, tokens: list[str], env: Env) -> None:
        self.tokens, self.env, self.at = [*tokens], env, 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def took(self, *expected: str) -> bool:
        found = self.peek() in expected
        self.at += found
        return found

    def argument(self) -> list[str]:
        """The tokens in a bracket or a brace; else a single letter, digit or command."""
        rest, token = self.tokens[self.at :], self.peek()
        if token in PAIRS:
            end = next((i for i, _, depth in walk(rest) if i and not depth), 0)
            self.at += end + 1
            return rest[1:end]
        if token.isdigit():
            self.tokens[self.at : self.at + 1] = [*token]
        self.at += 1
        return [self.tokens[self.at - 1]]

    def scope(self) -> list[str]:
        """The tokens of what an operator acts on: all that it multiplies."""
        rest = self.tokens[self.at :]
        end = next((i for i, token, depth in walk(rest) if not depth and token in ENDS and (i or token != "-")), len(rest))
        self.at += end
        return rest[:end]

    def items(self) -> list[Any]:
        return [evaluate(part, self.env) for part in split(self.argument(), ",", ";", r"\mid", r"\|") if part]

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

    def bound(self) -> list[Env]:
        """The environments that the subscript of a sum runs through."""
        sub, top = self.took("_") and self.argument(), self.took("^") and self.argument()
        if top:
            (name,), low = split(sub, "=")
            last = MANY if top == [r"\infty"] else int(evaluate(top, self.env))
            return [{**self.env, name.lstrip("\\"): i} for i in range(int(evaluate(low, self.env)), last + 1)]
        names, *conditions = split(sub, ":")
        if not conditions and len(split(sub, *RELATIONS)) > 1:
            names, conditions = split(sub, *RELATIONS)[0], [sub]
        scopes = [self.env]
        for (name,) in split(names, ","):
            name = name.lstrip('\\"')
            scopes = [{**e, name: value} for e in scopes for value in over(e, name)]
        return [e for e in scopes if all(evaluate(condition, e) for condition in conditions)]

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
            base = evaluate(self.argument(), self.env) if self.took("_") else mp.e
            return (np.frompyfunc(mp.log, 1, 1)(self.factor()) / mp.log(base)) ** power
        if self.took(r"\lim"):
            (name, _, *limit), body = self.took("_") and self.argument(), self.scope()
            return evaluate(body, {**self.env, name.lstrip("\\"): FAR if limit == [r"\infty"] else 1 / FAR})
        if self.took(r"\nabla"):
            by = self.argument() if self.took("_") else [self.env["nabla"]]
            order = int(self.argument()[0]) if self.took("^") else 1
            start, _ = self.at, self.factor()
            return self.slope(order, by, self.tokens[start : self.at])
        value = self.primary()
        while self.peek() in {"_", "^", "!"}:
            if self.took("_"):
                value = index(value, self.indices(self.argument()))
            else:
                value = mp.factorial(value) if self.took("!") else self.power(value)
        return value

    def power(self, value: Any) -> Any:
        to = self.took("^") and self.argument()
        if to in ([r"\top"], ["sans T"]):
            return value.T
        return index(value, [evaluate(to[1:-1], self.env)]) if to[0] == "(" else value ** evaluate(to, self.env)

    def fraction(self) -> Any:
        top, bottom = self.argument(), self.argument()
        if top[0] != bottom[0] or top[0] not in {r"\partial", "d"}:
            return evaluate(top, self.env) / evaluate(bottom, self.env)
        order, name = (int(top[2]), bottom[1:-2]) if top[1:2] == ["^"] else (1, bottom[1:])
        if bottom[len(name) + 1 :] != top[1:3] * (order > 1):
            raise Unreadable(f"the order of {' '.join(top)} by {' '.join(bottom)}")
        return self.slope(order, name, top[1 + 2 * (order > 1) :] or self.scope())

    def slope(self, order: int, by: list[str], body: list[str]) -> Any:
        """The derivative of the body by `z`, or by `z_k`."""
        name, at = by[0].lstrip("\\"), self.indices(by[3:-1] if by[2:3] == ["{"] else by[2:])

        def slope(e: Env, order: int = order) -> Any:
            if order:
                return derivative(lambda e: slope(e, order - 1), e, name, at)
            value = evaluate(body, e)
            return value(lookup(e, name)) if callable(value) else value

        return slope(self.env)

    def indices(self, sub: list[str]) -> list[Any]:
        """What a subscript says: `{n,k}` and `{nk}` are two indices, `{K-1}` is one."""
        found = []
        for part in split(sub, ","):
            reader = Reader(part, self.env)
            while reader.peek():
                found.append(reader.sum() if {"+", "-"} & {*part} else reader.factor())
        return found

    def primary(self) -> Any:
        token = self.peek()
        if token[0].isdigit():
            self.at += 1
            return mp.mpf(token.replace("{,}", ""))
        if token in {"|", r"\lvert"}:
            return mp.fabs(evaluate(self.argument(), self.env))
        if token == r"\lVert":
            values = np.ravel(np.asarray(evaluate(self.argument(), self.env), object))
            order = evaluate(self.argument(), self.env) if self.took("_") else mp.mpf(2)
            return sum(abs(v) ** order for v in values) ** (1 / order)
        if token == r"\lceil":
            return mp.ceil(evaluate(self.argument(), self.env))
        if token in PAIRS:
            items = self.items()
            return items[0] if len(items) == 1 else {*items} if token == r"\{" else np.array(items, object)[:, None]
        if self.took(r"\sqrt"):
            return mp.sqrt(evaluate(self.argument(), self.env))
        if self.took(r"\underbrace"):
            value, _ = evaluate(self.argument(), self.env), self.took("_") and self.argument()
            return value
        if self.took(r"\cases"):
            rows = [split([t for t in row if t not in ",."], '"if') for row in split(self.argument(), ";")]
            held = [evaluate(value, self.env) for value, condition in rows if evaluate(condition, self.env)]
            return held[0] if len(held) == 1 else mp.nan
        return self.name()

    def name(self) -> Any:
        """A name with its marks; a call, if it is a function; an expectation, if it has outcomes."""
        name, primes, sub = self.argument()[0].lstrip('\\"'), "", list[str]()
        while self.peek() in {"'", "^*"} or (self.peek() == "_" and not sub):
            name += "^*" if self.took("^*") else ""
            primes += "'" if self.took("'") else ""
            sub = self.argument() if self.took("_") else sub
        whole = "_" + "".join(token.lstrip('\\"{}') for token in sub) if sub else ""
        ways = [(name + primes + whole, [], 0), (name + whole, [], len(primes)), (name + primes, sub, 0)]
        name, sub, order = next((way for way in ways if way[0] in self.env), (name, sub, len(primes)))
        value = lookup(self.env, name)
        if isinstance(value, Outcomes):
            body = self.argument() if self.peek() == "[" else self.scope()
            return reduce(operator.add, (p * evaluate(body, {**self.env, **e}) for p, e in value.of(self.env)))
        if sub:
            value = index(value, self.indices(sub))
        for _ in range(order):
            value = lambda x, f=value: (f(x + STEP) - f(x - STEP)) / (2 * STEP)  # noqa: E731
        return value(*self.items()) if callable(value) and self.peek() in {"(", "["} else value



def shown(value: Any) -> str:
    return ", ".join(mp.nstr(x, 6) if isinstance(x, mp.mpf | mp.mpc) else str(x) for x in np.ravel(np.asarray(value, object)))


def holds(condition: list[str], e: Env) -> bool:
    r"""Whether a condition holds: `\text{if } y = 1`, `\text{always}`, or what stands before an arrow."""
    word = re.sub('^"(if|for|where)?', "", condition[0]) if condition[0][0] == '"' else ""
    rest = condition[condition[0][0] == '"' :]
    return all([lookup(e, word) if word else True, evaluate(rest, e) if rest else True])


def failures(tex: str, draws: list[Env], unread: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield which relations of an equation fail, and where; `unread` are sides and conditions to leave out."""
    left_out, found = {tuple(tokens_of(side)) for side in unread}, statements(tex)
    draws = [KNOWN | draw for draw in draws]
    printed = {tuple(p) for chain, conditions in found for p in [chain, *split(chain, *RELATIONS), *conditions]}
    if missing := left_out - printed:
        raise Unreadable(f"to be left out, but not printed: {[' '.join(side) for side in missing]}")
    number, total = 0, sum(len(split(chain, *RELATIONS)) - 1 for chain, _ in found)
    for chain, conditions in found:
        sides, signs = split(chain, *RELATIONS), [t for _, t, depth in walk(chain) if t in RELATIONS and not depth]
        read = [i for i, side in enumerate(sides) if not left_out & {tuple(side), tuple(chain)}]
        if len(read) == 1:
            raise Unreadable(f"no relation to read in {' '.join(chain)}")
        read_too = [condition for condition in conditions if tuple(condition) not in left_out]
        held = [e for e in draws if read and all(holds(condition, e) for condition in read_too)]
        if read and not held:
            yield f"the condition of {' '.join(chain)} never holds"
        for (a, b), e in product(zip(read, read[1:], strict=False), held):
            sign = next((s for s in signs[a:b] if s != "="), "=")
            left, right = evaluate(sides[a], e), evaluate(sides[b], e)
            if not RELATIONS[sign](left, right):
                names = {token.lstrip("\\") for token in sides[a] + sides[b]}
                at = {name: shown(e[name]) for name in sorted(names & {*e}) if isinstance(e[name], int | mp.mpf | np.ndarray)}
                yield f"relation {number + b} of {total} ({sign}): left {shown(left)}, right {shown(right)} at {at}"
        number += len(signs)
