"""Reads an equation as its chapter prints it, and evaluates each side of each relation at 60 digits.

What a name stands for is the caller's: an environment from names (`z`, `ell_T`, `hat p`, `cal L`) to numbers, columns
and matrices (objects in NumPy, whose indices count from 1) and functions. A name is looked up with its subscript
first; if there is none such, the subscript is an index.

Some names say how to read: `over`, what an index runs through; `law` and `law_P`, the outcomes of E and E_P, and `law|`
those among which a condition chooses; `free`, over what a proportion holds; `search`, for min and arg min, how the
name is made of so many numbers; `closer` and `sizes`, how O(.) comes nearer; `first`, the left side of a chain;
`holds`, False where the statement has to fail; `sharp`, whether each bound is attained, or nearly, in one of the draws.
"""

from __future__ import annotations

import operator
import re
from collections import namedtuple
from collections.abc import Callable, Iterator
from functools import lru_cache, reduce
from itertools import count, pairwise, product
from typing import Any

import mpmath as mp
import numpy as np

from equations.numeric import integral, lowest, settled

DIGITS = 60
STEP, CLOSE, TINY = mp.mpf("1e-12"), mp.mpf("1e-14"), mp.mpf("1e-20")
Env = dict[str, Any]
Tokens = list[str]
Let = namedtuple("Let", "of")  # computed from the environment, so that it follows the names it depends on
Of = namedtuple("Of", "function by")  # a function of the name `by`, which a page writes as d(x) or as d


class Unreadable(Exception):
    """The reader cannot evaluate this. It never guesses."""


def near(a: Any, b: Any) -> bool:
    """Whether a and b agree to a relative error of CLOSE, or are both next to nothing."""
    if isinstance(a, set | frozenset | bool | tuple) or isinstance(b, set | frozenset | bool | tuple):
        return bool(a == b)
    pairs = np.broadcast(np.asarray(a, object), np.asarray(b, object))
    return all(x == y or abs(y - x) <= CLOSE * max(abs(x), abs(y)) + TINY < mp.inf for x, y in pairs)


def power(value: Any, to: Any) -> Any:
    """A power; that of a square matrix is its inverse's."""
    if isinstance(value, np.ndarray) and value.shape[0] == value.shape[1] > 1:
        return np.array(mp.matrix(value.tolist()) ** int(to)).reshape(value.shape)
    return value**to


def multiply(a: Any, b: Any) -> Any:
    """The product, of matrices where both are; a single entry is a number. Zero times infinity is zero."""
    if not isinstance(a, np.ndarray) and not isinstance(b, np.ndarray) and (a == 0 or b == 0):
        return mp.mpf(0)
    both = a @ b if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) else b * a
    return both[0, 0] if isinstance(both, np.ndarray) and both.size == 1 else both


log, exp = np.frompyfunc(mp.log, 1, 1), np.frompyfunc(mp.exp, 1, 1)

RELATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": near,
    "<": operator.lt,
    ">": operator.gt,
    r"\le": lambda a, b: a <= b or near(a, b),
    r"\ge": lambda a, b: a >= b or near(a, b),
    r"\ne": lambda a, b: not near(a, b),
    r"\in": lambda a, b: b[0] < a <= b[1] if isinstance(b, np.ndarray) else a in b,
    r"\propto": lambda a, b: near(*(np.asarray(v) / sum(v) for v in (a, b))),
    r"\xrightarrow": near,
    r"\to": lambda c, s: c[-1:] == (s,),  # a prefix and its last token
}
# Between statements; `:=` stands between a printed name with a colon and what it names.
LOGIC: dict[str, Callable[[Any, Any], Any]] = {
    r"\iff": operator.eq,
    r"\Rightarrow": lambda a, b: not a or b,
    r"\Leftarrow": lambda a, b: a or not b,
    r"\nLeftrightarrow": operator.ne,
    ":=": near,
}
BETWEEN = {"": multiply, "/": operator.truediv, r"\odot": operator.mul}
BETWEEN |= {r"\cup": operator.or_, r"\oplus": None}  # the environment says what adds in a circle
BETWEEN[r"\cdot"] = lambda a, b: np.sum(a * b) if isinstance(a, np.ndarray) else multiply(a, b)
BIG = {r"\sum": lambda v: reduce(operator.add, v, mp.mpf(0)), r"\prod": mp.fprod, r"\max": max, r"\min": min}
BEST = {"argmin": min, "argmax": max}
KNOWN = {name: getattr(mp, name) for name in ("e", "pi", "log1p", "hyp2f1", "tanh", "sech")} | {
    "infty": mp.inf
}
KNOWN |= {"max": max, "min": min, "diag": lambda v: np.diag(v[:, 0])}

TOKEN = re.compile(
    r"\\(?P<font>math[a-z]+|operatorname\*?|text)\s*(?:\{(?P<word>[^{}]*)\}|(?P<letter>\\[A-Za-z]+|\w))"
    r"|\\(?P<accent>hat|bar|tilde)\s*(?P<brace>\{)?\\?(?P<under>(?<=\\)[A-Za-z]+|\w)(?(brace)\})"
    r"|\\[A-Za-z]+|\\.|\d+(?:\.\d+)?|\S"
)
NOTHING = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?)(?![A-Za-z])|(?<!\\)\\[,;:! ]|\{\s*\}"
    r"|\\(?:begin|end)\{(?:aligned|gathered)\}|(?<=\\\\)\[\w+\]|\\textstyle"
)
CASES = re.compile(r"\\begin\{cases\}(.*?)\\end\{cases\}", re.DOTALL)
FONTS = {"mathbf": "bold ", "mathsf": "sans ", "mathcal": "cal ", "text": '"'}
OPEN: dict[str, Any] = {"(": ")]", "[": "])", "{": "}", "|": "|", r"\{": [r"\}"], r"\lVert": [r"\rVert"]}
OPEN |= {r"\lvert": [r"\rvert"], r"\lceil": [r"\rceil"]}
GAPS, STRIP = {r"\quad", r"\qquad", "&", r"\\"}, '\\"{}'
SIGNS = {*RELATIONS, *LOGIC}
ENDS = {"", "+", "-", *SIGNS}
JOIN = {'"forall'}  # any other word begins a condition
EQUAL = {'"equalonlyif', '"equalonlyat', '"withequalityonlyfor'}  # a = b in a <= b needs what follows


def tokens_of(tex: str) -> Tokens:
    r"""Split TeX; `\mathrm{KL}` and `\hat p` become one token each, spaces and the sizes of brackets go."""
    found: Tokens = []
    for old, new in ((r"\Big|", r"\mid "), ("{}_2F_1", r"\mathrm{hyp2f1}")):
        tex = tex.replace(old, new)
    case = lambda m: r"\cases{" + m[1].replace(r"\\", r" \case ").replace("&", " ") + "}"  # noqa: E731
    tex = CASES.sub(case, NOTHING.sub(" ", tex.replace(r"\tfrac", r"\frac").replace("{,}", "")))
    for m in TOKEN.finditer(tex):
        word = "".join((m["word"] or m["letter"] or "").split())
        marked = f"{m['accent']} {m['under']}" if m["accent"] else m[0]
        token = FONTS.get(m["font"], "") + word.rstrip(".") if word else marked
        before = next((t for t in reversed(found) if t not in GAPS), "")
        if token[0] == '"' and token[-1] == ":":
            found += [token.strip(':"'), ":="]  # a printed name, such as "GRPO:"
        elif token == ":" and before[:1] == '"':
            found[:] = [*found[: len(found) - found[::-1].index(before) - 1], before[1:], ":="]
        else:
            found.append(token)
    return found


@lru_cache(100_000)
def walked(tokens: tuple[str, ...]) -> list[tuple[int, str, int]]:
    closers: list[Any] = []
    found = []
    for i, token in enumerate(tokens):
        closes = bool(closers) and token in closers[-1]
        closers = closers[:-1] if closes else closers
        found.append((i, token, len(closers)))
        closers = [*closers, OPEN[token]] if token in OPEN and not closes else closers
    return found


def walk(tokens: Tokens) -> list[tuple[int, str, int]]:
    """Place, token and depth of each; a bracket itself counts as outside."""
    return walked(tuple(tokens))


def split(tokens: Tokens, *at: str) -> list[Tokens]:
    """Split tokens where one of `at` stands outside of brackets."""
    cuts = [i for i, token, depth in walk(tokens) if token in at and not depth]
    return [tokens[a + 1 : b] for a, b in zip([-1, *cuts], [*cuts, len(tokens)], strict=True)]


def statements(tex: str) -> Iterator[tuple[Tokens, Tokens]]:
    """Yield the displayed chains of relations with their conditions: a comma, a gap, a line may end one."""
    tokens, parts = tokens_of(tex.strip(" :\n")), [[""]]
    for i, token, depth in walk(tokens):
        follows = next((t for t in tokens[i + 1 :] if t not in GAPS), "")
        goes_on = follows in {*SIGNS, r"\cdot"} or parts[-1][-1] in ENDS | JOIN or follows[:1] == '"'
        goes_on |= follows in {"+", "-"} and (token != r"\\" or tokens[i + 1] == "&")
        if depth or token not in GAPS | {",", "."}:
            parts[-1] += [token] * (token not in GAPS)
        elif token == "," or not (goes_on or token == "." or [token, tokens[i + 1]] == ["&", follows]):
            parts += [[""]] * (follows[:1] != '"')
    for part in (part[1:] for part in parts if part[1:]):
        texts = (i for i, token, depth in walk(part) if token[0] == '"' and not depth and token not in JOIN)
        cut = next((i for i in texts if not i or part[i - 1] not in ENDS), len(part))
        yield part[:cut], part[cut:]


def lookup(e: Env, name: str) -> Any:
    if name not in e:
        raise Unreadable(f"nothing is known of {name!r}")
    value = e[name].of(e) if isinstance(e[name], Let) else e[name]
    return mp.mpf(value) if type(value) is int else value


def index(value: Any, at: list[Any]) -> Any:
    """An entry of a column or a matrix, or a matrix's row as a column; what has a method `at` knows its own."""
    if hasattr(value, "at"):
        return value.at(*at)
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
    """The value of an expression, or whether the statements in it hold."""
    outside = [(i, token) for i, token, depth in walk(tokens) if not depth]
    if signs := [token for _, token in outside if token in LOGIC]:
        parts = [evaluate(part, env) for part in split(tokens, *LOGIC)]
        return all(LOGIC[s](a, b) for s, (a, b) in zip(signs, pairwise(parts), strict=True))
    if tokens[-2:-1] == ['"forall']:
        return all([evaluate(tokens[:-2], {**env, tokens[-1]: value}) for value in env["over"][tokens[-1]]])
    if (word := tokens[-1]) in env and word[0] == '"':
        return env[word](evaluate(tokens[:-1], env)) if tokens[:-1] else env[word]
    sides = split(spread(tokens, env), *RELATIONS)
    signs = [token for _, token in outside if token in RELATIONS]
    if not signs:
        return Reader(sides[0], env).whole()
    return all([holds(sign, a, b, env) for sign, (a, b) in zip(signs, pairwise(sides), strict=True)])


def holds(sign: str, a: Tokens, b: Tokens, env: Env, value: Callable[[Tokens, Env], Any] = evaluate) -> Any:
    """Whether a relation holds: for O(.) where what is small gets smaller."""
    if sign == r"\propto":
        scopes = [{**env, env["free"]: i} for i in env["over"][env["free"]]]
        return RELATIONS[sign](*([evaluate(side, e) for e in scopes] for side in (a, b)))
    if sign != "=" or "O" not in b or b[b.index("O") + 1] != "(":
        return RELATIONS[sign](value(a, env), value(b, env))
    if "sizes" in env:
        # What is left over, in the unit of O(...), for sizes that double: a power that is right makes each step about
        # half of the one before, and one too many makes them grow.
        cut, rest = b.index("O"), []
        for e in env["sizes"]:
            e = KNOWN | e | {"known": e.setdefault("known", {})}
            rest.append((value(a, e) - value(b[: cut - 1], e)) / value(b[cut + 1 :], e))
        before, after = abs(rest[1] - rest[0]), abs(rest[2] - rest[1])
        return after <= max(before * 3 / 4, abs(rest[2]) / 25) + TINY
    needed = []  # the factor of what stands in O(...), ever closer; a wrong order makes it grow
    for closer in ("1e-2", "1e-4"):
        e = env | env["closer"](mp.mpf(closer))
        left, without, once = evaluate(a, e), *(evaluate(b, e | {"O": lambda x, o=o: o * x}) for o in (0, 1))
        needed.append(abs((left - without) / (once - without)))
    return needed[1] <= 10 * needed[0]


def spread(tokens: Tokens, env: Env) -> Tokens:
    r"""Write out `a_1 + \dots + a_K`, or a list with commas: the two terms differ in their subscripts only."""
    at = next((i for i, token, depth in walk(tokens) if token == r"\dots" and not depth), 0)
    if not at or tokens[at - 1] not in {",", "+"} or tokens[at - 1] != tokens[at + 1]:
        return tokens
    sign, ends = tokens[at - 1], {"+", ",", r"\mid", *SIGNS}
    begin = next((i + 1 for i in range(at - 2, -1, -1) if tokens[i] in ends), 0)
    last = tokens[at + 2 :]
    last = last[: next((i for i, token, depth in walk(last) if token in ends and not depth), len(last))]

    def numbered(term: Tokens) -> tuple[Tokens, int]:
        reader, shape, subs = Reader(term, env), Tokens(), []
        while reader.peek():
            shape.append(reader.peek())
            reader.at += 1
            if shape[-1] == "_":
                subs.append(int(evaluate(reader.argument(), env)))
                shape.append("#")
        if len({*subs}) != 1:
            raise Unreadable(f"which number has {' '.join(term)}")
        return shape, subs[0]

    (shape, low), (same, high) = numbered(tokens[begin : at - 1]), numbered(last)
    if shape != same or (high < low and sign != ","):
        raise Unreadable(f"from {' '.join(tokens[begin : at - 1])} to {' '.join(last)}")
    terms = [[part for t in shape for part in (["{", str(i), "}"] if t == "#" else [t])]
             for i in range(low, high + 1)]  # fmt: skip
    listed = [t for term in terms for t in [sign, *term]][1:]
    return [*tokens[:begin], *listed, *tokens[at + 2 + len(last) :]]


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

    def after(self, mark: str) -> Tokens:
        """The argument of a subscript or a superscript, if there is one."""
        return self.argument() if self.took(mark) else Tokens()

    def scope(self) -> Tokens:
        """The tokens of what an operator acts on: all that it multiplies."""
        rest = self.tokens[self.at :]
        ends = (
            i
            for i, token, depth in walk(rest)
            if not depth and token in ENDS and (i or token not in {"+", "-"})
        )
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
            total = (self.product() if sign > 0 else -self.product()) + total
        return total

    def product(self) -> Any:
        if self.took("-"):
            return -self.product()
        total = self.factor()
        while self.peek() not in ENDS:
            between = BETWEEN[self.argument()[0] if self.peek() in BETWEEN else ""] or lookup(
                self.env, "oplus"
            )
            total = between(total, self.factor())
        return total

    def factor(self) -> Any:
        """A fraction, an operator with its scope, or a value with its powers and indices."""
        if self.took(r"\frac"):
            return self.fraction()
        if self.peek() in BIG and self.tokens[self.at + 1] == "_":
            if self.peek() == r"\min" and self.tokens[self.at + 2] in self.env.get("search", {}):
                return self.searched()
            combine, scopes = BIG[self.argument()[0]], self.bound()
            values = (evaluate(body, e) for body in [self.scope()] for e in scopes)
            return combine([*values] if isinstance(scopes, list) else settled(values))
        if self.took(r"\arg"):
            return self.searched(where=True)
        if self.took(r"\int"):
            low, high = (evaluate(self.after(mark), self.env) for mark in "_^")
            *body, d, name = self.scope()
            if d != "d":
                raise Unreadable("an integral without its d")
            return integral(lambda x: evaluate(body, {**self.env, name: x}), low, high)
        if self.took(r"\exp"):
            return exp(self.factor())
        if self.peek() in BEST:
            return self.best(BEST[self.argument()[0]])
        if self.took(r"\lim"):
            return self.limit(*split(self.after("_"), r"\to"))
        if self.took(r"\log"):
            base = mp.log(evaluate(self.argument(), self.env)) if self.took("_") else 1
            exponent = evaluate(self.argument(), self.env) if self.took("^") else 1
            return (log(self.factor()) / base) ** exponent
        if self.took(r"\nabla"):
            return self.powers(self.nabla())
        return self.powers(self.moment() if self.is_moment() else self.primary())

    def limit(self, name: Tokens, to: Tokens) -> Any:
        """The value very near the limit, at 0 from above and else from below, if three steps have come closer."""
        body, end = self.scope(), evaluate(to, self.env)
        steps = [mp.mpf(10) ** -k for k in (8, 14, 20)]
        points = [1 / h if end == mp.inf else end - h if end else h for h in steps]
        a, b, c = (evaluate(body, {**self.env, name[0].strip(STRIP): x}) for x in points)
        if abs(c - b) > abs(b - a) / 2 + TINY:
            raise ArithmeticError("no limit")
        return c

    def searched(self, where: bool = False) -> Any:
        """The least value of the scope, or where it is; env["search"] says of how many numbers the name is made."""
        least, (name,), body = self.argument(), self.after("_"), self.scope()
        if least != [r"\min"] or name not in self.env["search"]:
            raise Unreadable(f"a search for {' '.join(least)} by {name}")
        point, n = self.env["search"][name]
        value = lambda x: evaluate(body, {**self.env, name: point(x)})  # noqa: E731
        x = lowest(value, n)
        return point(x) if where else value(x)

    def powers(self, value: Any) -> Any:
        """A value with its powers and indices."""
        while self.peek() in {"_", "^"}:
            if self.took("_"):
                value = index(value, self.indices(self.argument()))
            else:
                to = self.after("^")
                transposed = to in ([r"\top"], ["sans T"])
                value = value.T if transposed else power(value, evaluate(to, self.env))
        return value

    def nabla(self) -> Any:
        """The gradient, or the Hessian, of what follows; of a function it is taken at its argument."""
        by = self.argument() if self.took("_") else [self.env["nabla"]]
        order = int(self.argument()[0]) if self.took("^") else 1
        start, function = self.at, self.env.get(self.peek().strip(STRIP))
        if callable(function) and self.tokens[start + 1 : start + 2] == ["("]:
            self.at += 1
            point, *more = self.items()
            if more:
                return self.slope(order, by, self.tokens[start : self.at])
            return derivative(
                lambda e: function(e["point"]), {**self.env, "point": point}, "point", [], order
            )
        if self.peek() in {r"\frac", r"\log", *BIG}:
            self.scope()
        elif self.peek() == r"\lVert":
            self.factor()
        else:
            self.primary()
        return self.slope(order, by, self.tokens[start : self.at])

    def is_moment(self) -> bool:
        sub = "".join(token.strip(STRIP) for token in self.tokens[self.at + 2 : self.at + 3])
        return self.peek() in {"E", "Var", "sd"} - {*self.env} and f"{self.peek()}_{sub}" not in self.env

    def moment(self) -> Any:
        """The expectation, variance or standard deviation under a law: a list of (probability, names)."""
        kind, sub = self.argument()[0], self.after("_")
        which = "law_" + "".join(split(sub, r"\sim")[0]) if sub else "law"
        body = self.argument() if self.peek() == "[" else self.scope()
        body, *given = split(body, r"\mid")  # what is given is known to the law, or chosen from `law|`
        if given and f"{which}|" in self.env:
            law = [(w, x) for w, x in lookup(self.env, f"{which}|") if self.given(given[0], x)]
            mass = mp.fsum(weight for weight, _ in law)
            law = [(weight / mass, names) for weight, names in law]
        else:
            law = lookup(self.env, which)
        values = [(weight, evaluate(body, {**self.env, **names})) for weight, names in law]
        mean = sum(weight * value for weight, value in values)
        if kind == "E":
            return mean
        variance = sum(weight * (value - mean) ** 2 for weight, value in values)
        return variance if kind == "Var" else mp.sqrt(variance)

    def given(self, condition: Tokens, names: Env) -> bool:
        return all(evaluate(part, {**self.env, **names}) for part in split(condition, ","))

    def scopes(self, sub: Tokens) -> list[Env]:
        r"""The environments of a subscript: `k`, `n,k`, `j \ne k`, `k: p_k > 0`, or one that is known as a whole."""
        names, condition, *_ = *split(sub, ":"), Tokens()
        whole, over = "".join(token.strip(STRIP) for token in sub), self.env["over"]
        if isinstance(next(iter(over.get(whole, ())), 0), dict):
            return [{**self.env, **known} for known in over[whole]]
        if not condition and any(token in RELATIONS for token in sub):
            condition = sub
            sides = ["".join(side).strip(STRIP) for side in split(sub, *RELATIONS)]
            names = [n for n in sides if n in over][:1] or [n for n in over if n in whole][::-1]
            names = [part for name in names for part in (name, ",")][:-1]
        found = [self.env]
        for name in ("".join(part).strip(STRIP) for part in split(names, ",")):
            values = over[name].of(self.env) if isinstance(over[name], Let) else over[name]
            found = [{**e, name: i} for e in found for i in values]
        return [e for e in found if not condition or evaluate(condition, e)]

    def best(self, which: Callable[[Any], Any]) -> Any:
        """Where among the candidates the scope is lowest or highest: the candidate, or the set of several."""
        sub = self.after("_")
        scopes, body = self.scopes(sub), self.scope()
        found = [evaluate(body, e) for e in scopes]
        peak = which(found)
        name = next(
            n for n in ("".join(s).strip(STRIP) for s in split(sub, *RELATIONS)) if n in self.env["over"]
        )
        at = [
            e[name] for e, value in zip(scopes, found, strict=True) if abs(value - peak) <= CLOSE * abs(peak)
        ]
        return at[0] if len(at) == 1 else frozenset(at) if all(isinstance(i, int) for i in at) else mp.nan

    def bound(self) -> Any:
        """The environments that the subscript of a sum runs through: a list, or an iterator without an end."""
        sub, top = self.after("_"), self.after("^")
        if top:
            (name,), low = split(sub, "=")
            first, last = int(evaluate(low, self.env)), evaluate(top, self.env)
            whole = count(first) if last == mp.inf else range(first, int(last) + 1)
            scopes = ({**self.env, name.strip(STRIP): i} for i in whole)
            return scopes if last == mp.inf else [*scopes]
        return self.scopes(sub)

    def fraction(self) -> Any:
        top, bottom = self.argument(), self.argument()
        if top[0] != bottom[0] or top[0] not in {r"\partial", "d"} or top[:2] == ["d", "("]:
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
        for part in split(sub, ","):
            reader = Reader(part, self.env)
            if reader.took("<"):  # the tokens before one, or from one to another
                found.append(slice(0, int(reader.sum()) - 1))
            elif ":" in part:
                low, high = (int(evaluate(end, self.env)) for end in split(part, ":"))
                found, reader = [slice(low - 1, high)], Reader([], self.env)
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
        if token in {"|", r"\lvert"}:
            return abs(evaluate(self.argument(), self.env))
        if token == r"\lceil":
            value = evaluate(self.argument(), self.env)
            whole = mp.nint(value)  # a power of two has no whole logarithm after rounding
            return whole if near(value, whole) else mp.ceil(value)
        if self.took(r"\#"):
            return mp.mpf(len(self.scopes(self.argument())))
        if self.took(r"\underbrace"):
            value = evaluate(self.argument(), self.env)
            _ = self.after("_")  # what it is called
            return value
        if self.took(r"\cases"):
            return self.case()
        if token == r"\lVert":
            values = np.ravel(np.asarray(evaluate(self.argument(), self.env), object))
            order = evaluate(self.argument(), self.env) if self.took("_") else mp.mpf(2)
            return sum(abs(v) ** order for v in values) ** (1 / order)
        if token in OPEN:
            items = self.items()
            several = {*items} if token == r"\{" else np.array(items, object)[:, None]
            return items[0] if len(items) == 1 else several
        return self.name()

    def case(self) -> Any:
        """The value of the case whose condition holds; where none does, it is not defined."""
        for row in split(self.argument(), r"\case"):
            at = row.index('"if')
            if evaluate([t for t in row[at + 1 :] if t not in {",", "."}], self.env):
                return evaluate([t for t in row[:at] if t != ","], self.env)
        raise Unreadable("no case holds")

    def items(self) -> list[Any]:
        parts = split(spread(self.argument(), self.env), ",", ";", r"\|", r"\mid")
        return [None if part == [r"\cdot"] else evaluate(part, self.env) for part in parts if part]

    def name(self) -> Any:
        """A name, with its subscript, star and primes where these are known; a call, if it is a function.

        What `P(A)` is may be known as a whole, or that of `P(` for any argument. A prime is a derivative, if the
        name with it is not known; a superscript in brackets is an index.
        """
        name, env = self.argument()[0].strip(STRIP), self.env
        if name == "bold 1" and self.peek() == r"\{":
            return mp.mpf(all(self.items()))  # an indicator
        first = self.tokens[self.at + 1 : self.at + 3] == ["{", "("] and self.peek() == "^"
        row = self.indices(self.argument()[1:-1]) if first and self.took("^") else []
        slopes = self.marks()
        sub = self.after("_")
        whole = name + "_" * bool(sub) + "".join(token.strip(STRIP) for token in sub)
        slopes += self.marks()
        if self.tokens[self.at : self.at + 2] == ["^", "*"] and f"{whole}^*" in env:
            self.at, whole = self.at + 2, f"{whole}^*"
        rest = self.tokens[self.at :]
        if self.peek() == "(":
            end = next((i for i, _, depth in walk(rest) if i and not depth), 0)
            words = ("|" if token == r"\mid" else token.strip(STRIP) for token in rest[: end + 1])
            if (called := whole + "".join(words)) in env:
                self.at += end + 1
                return lookup(env, called)
            if r"\mid" in rest[:end] and f"{whole}|" in env:
                given = [Reader(["(", *part, ")"], env).items() for part in split(self.argument(), r"\mid")]
                return lookup(env, f"{whole}|")(*given)
            whole = f"{whole}(" if f"{whole}(" in env else whole
            name = f"{name}(" if f"{name}(" in env and whole not in env else name
        if slopes and name + slopes in env:
            name, whole, slopes = name + slopes, whole.replace(name, name + slopes), ""
        value = lookup(env, whole if whole in env else name)
        at = row + (self.indices(sub) if sub and whole not in env else [])
        value = index(value, at) if at else value
        if slopes:
            function, order = value, len(slopes)
            value = lambda x: mp.diff(function, x, order)  # noqa: E731
        if isinstance(value, Of):
            return value.function(*(self.items() if self.peek() == "(" else [lookup(env, value.by)]))
        if callable(value) and not isinstance(value, type(mp.e)) and self.took("^"):  # as in sech^2(z)
            to = evaluate(self.argument(), env)
            return value(*self.items()) ** to
        return value(*self.items()) if callable(value) and self.peek() in {"(", "["} else value

    def marks(self) -> str:
        start = self.at
        while self.took("'"):
            pass
        return "'" * (self.at - start)


def remembered(side: Tokens, e: Env) -> Any:
    """The value of a side, which a page that was changed elsewhere does not compute again."""
    if (key := tuple(side)) not in e["known"]:
        e["known"][key] = evaluate(side, e)
    return e["known"][key]


def told(tokens: Tokens, e: Env, *sides: Tokens) -> str:
    """The values of the names in a statement, and of its sides."""

    def shown(value: Any) -> str:
        return ", ".join(str(mp.nstr(x, 6)) for x in np.ravel(np.asarray(value, object)))

    names = sorted({token.strip(STRIP) for token in tokens} & {*e})
    at = "; ".join(f"{n} = {shown(e[n])}" for n in names if isinstance(e[n], int | mp.mpf | np.ndarray))
    try:
        values = [shown(remembered(side, e)) for side in sides]
    except (LookupError, TypeError, Unreadable):
        values = []
    return " ".join([*(f"{n} {v}," for n, v in zip(("left", "right"), values, strict=False)), f"at {at}"])


def not_lowest(expression: Tokens, where: Tokens, draws: list[Env]) -> Iterator[str]:
    """Where the best of the candidates for the first name of `where` does not satisfy it."""
    for e in (KNOWN | d for d in draws):
        costs = [(evaluate(expression, {**e, where[0]: value}), value) for value in e["over"][where[0]]]
        best = min(costs, key=operator.itemgetter(0))[1]
        if not evaluate(where, {**e, where[0]: best}):
            yield f"lowest at {' '.join(where)}: {told(where, e)}"


def failures(tex: str, draws: list[Env], unread: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield which relations of an equation fail, and where; `unread` are the sides, chains and conditions to leave out.

    Whatever else cannot be read raises Unreadable, and so does an `unread` that is not printed.
    """
    left_out, found = {tuple(tokens_of(part)) for part in unread}, [*statements(tex)]
    parts = {tuple(p) for chain, under in found for p in [chain, *split(chain, *RELATIONS), under]}
    if missing := left_out - parts:
        raise Unreadable(f"to be left out, but not printed: {[' '.join(part) for part in missing]}")
    number, total = 0, sum(len(split(chain, *RELATIONS)) - 1 for chain, _ in found)
    for chain, under in found:
        signs = [token for _, token, depth in walk(chain) if token in SIGNS and not depth]
        logical = {*signs} & {*LOGIC}
        sides = [chain] if logical else split(chain, *RELATIONS)
        read = [i for i, side in enumerate(sides) if not left_out & {tuple(side), tuple(chain)}]
        under = [] if tuple(under) in left_out else under
        if under and under[0] == '"lowestat':
            yield from not_lowest(chain, under[1:], draws)
            continue
        if len(read) == 1 and not logical:
            raise Unreadable(f"no relation to read in {' '.join(chain)}")
        also = under[1:] if under and under[0] == '"attainedat' else []
        under = [] if also else under
        only = under[1:] if under and under[0] in EQUAL else []
        if (
            under
            and not only
            and under[0] not in {'"if', '"for'}
            and under != [w for w in under if w in draws[0]]
        ):
            raise Unreadable(f"the condition {' '.join(under)}")
        first = "".join(sides[0])  # what a chain is about
        envs = (
            [KNOWN | d | {"known": d.setdefault("known", {}), "first": first} for d in draws] if read else []
        )
        held = [e for e in envs if not under or only or evaluate(under[len(under) > 1 :], e)]
        yield from (f"not {' '.join(also)}: {told(also, e)}" for e in held if also and not evaluate(also, e))
        if read and not held:
            yield f"the condition of {' '.join(chain)} never holds"
        if read and logical:
            premises = [evaluate(split(chain, *LOGIC)[0], e) for e in held]
            if logical == {r"\Rightarrow"} and not any(premises):
                yield f"what implies something in {' '.join(chain)} never holds"
            for e in held:
                if not evaluate(chain, e):
                    yield f"{' '.join(chain)} does not hold at {told(chain, e)}"
        for (a, b), e in product(pairwise(read), held):
            sign = next((s for s in signs[a:b] if s != "="), "=")
            if bool(holds(sign, sides[a], sides[b], e, remembered)) != e.get("holds", True):
                relation = " ".join([*sides[a], sign, *sides[b]])
                at = told([*sides[a], *sides[b]], e, sides[a], sides[b])
                yield f"relation {number + b} of {total}, {relation}: {at}"
            equal = only and sign == signs[-1] and near(remembered(sides[a], e), remembered(sides[b], e))
            if equal and not evaluate(only, e):
                yield f"equal in {' '.join(chain)} not only for {' '.join(only)}: {told(chain, e)}"
        for a, b in pairwise(
            read if read and held and held[0].get("sharp") else []
        ):  # no other bound would do
            if {*signs[a:b]} - {"="} and not any(
                abs(remembered(sides[a], e) / remembered(sides[b], e) - 1) < mp.mpf("1e-9") for e in held
            ):
                yield f"a narrower bound would do in {' '.join(chain)}"
        number += len(sides) - 1
