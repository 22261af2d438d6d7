"""Reads an equation as its chapter prints it, and evaluates each side of each relation.

What a name stands for is the caller's: an environment from names (`z`, `ell_T`, `hat p`, `cal L`) to values, of the
kinds in values.py. A name is looked up with its subscript first; if there is none such, the subscript is an index.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import reduce
from itertools import pairwise, product
from typing import Any

import mpmath as mp
import numpy as np

from equations.statements import ENDS, PAIRS, STRIP, Tokens, split, statements, tokens_of, walk
from equations.values import (
    BETWEEN,
    BIG,
    FAR,
    KNOWN,
    RELATIONS,
    STEP,
    UNARY,
    Env,
    Outcomes,
    Unreadable,
    derivative,
    index,
    log,
    lookup,
    over,
    shown,
)


def evaluate(tokens: Tokens, env: Env) -> Any:
    """The value of an expression, or whether the relations in it hold."""
    values = [Reader(side, env).whole() for side in split(tokens, *RELATIONS)]
    signs = [token for _, token, depth in walk(tokens) if token in RELATIONS and not depth]
    return (
        all(RELATIONS[s](a, b) for s, a, b in zip(signs, values, values[1:], strict=False))
        if signs
        else values[0]
    )


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
        end = next((i for i, _, depth in walk(rest) if i and not depth), 0) if token in PAIRS else 1
        if not rest or not end:
            raise Unreadable(f"no end of {''.join(self.tokens)}")
        self.at += end + (token in PAIRS)
        return rest[1:end] if token in PAIRS else rest[:1]

    def scope(self) -> Tokens:
        """The tokens of what an operator acts on: all that it multiplies."""
        rest = self.tokens[self.at :]
        ends = (i for i, token, depth in walk(rest) if not depth and token in ENDS and (i or token != "-"))
        self.at += (end := next(ends, len(rest)))
        return rest[:end]

    def value(self) -> Any:
        return evaluate(self.argument(), self.env)

    def items(self) -> list[Any]:
        return [evaluate(part, self.env) for part in split(self.argument(), ",", ";", r"\mid", r"\|") if part]

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
            power, base = self.value() if self.took("^") else 1, self.value() if self.took("_") else mp.e
            return (log(self.factor()) / mp.log(base)) ** power
        if self.took(r"\lim"):
            (name, _, *limit), body = self.took("_") and self.argument(), self.scope()
            to = FAR if limit == [r"\infty"] else evaluate(limit, self.env) + 1 / FAR
            return evaluate(body, self.env | {name.strip(STRIP): to})
        if self.took(r"\nabla"):
            by = self.argument() if self.took("_") else [self.env["nabla"]]
            order = int(self.argument()[0]) if self.took("^") else 1
            start, _ = self.at, self.factor()
            return self.slope(order, by, self.tokens[start : self.at])
        value = self.primary()
        while self.peek() in {"_", "^", "!"}:
            if self.took("_"):
                value = index(value, self.indices(self.argument()))
            elif self.took("!"):
                value = mp.factorial(value)
            elif (to := self.took("^") and self.argument()) in ([r"\top"], ["sans T"]):
                value = value.T
            else:
                value = (
                    index(value, [evaluate(to[1:-1], self.env)])
                    if to[0] == "("
                    else value ** evaluate(to, self.env)
                )
        return value

    def bound(self) -> list[Env]:
        """The environments that the subscript of a sum runs through."""
        sub, top = self.took("_") and self.argument(), self.took("^") and self.argument()
        if top:
            (name,), low = split(sub, "=")
            last = 80 if top == [r"\infty"] else int(evaluate(top, self.env))
            return [{**self.env, name.strip(STRIP): i} for i in range(int(evaluate(low, self.env)), last + 1)]
        names, *conditions = split(sub, ":")
        if not conditions and len(split(sub, *RELATIONS)) > 1:
            names, conditions = split(sub, *RELATIONS)[0], [sub]
        scopes = [self.env]
        for name in (name.strip(STRIP) for (name,) in split(names, ",")):
            scopes = [{**e, name: value} for e in scopes for value in over(e, name)]
        return [e for e in scopes if all(evaluate(condition, e) for condition in conditions)]

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
            return mp.mpf(token.replace("{,}", ""))
        if token in UNARY:
            self.at += token == r"\sqrt"
            return UNARY[token](self.value())
        if token == r"\lVert":
            values = np.ravel(np.asarray(self.value(), object))
            order = self.value() if self.took("_") else mp.mpf(2)
            return sum(abs(v) ** order for v in values) ** (1 / order)
        if token in PAIRS:
            items = self.items()
            return (
                items[0]
                if len(items) == 1
                else {*items}
                if token == r"\{"
                else np.array(items, object)[:, None]
            )
        if self.took(r"\underbrace"):
            value, _ = self.value(), self.took("_") and self.argument()
            return value
        if self.took(r"\cases"):
            rows = [split([t for t in row if t not in ",."], '"if') for row in split(self.argument(), ";")]
            held = [evaluate(value, self.env) for value, condition in rows if evaluate(condition, self.env)]
            return held[0] if len(held) == 1 else mp.nan
        return self.name()

    def name(self) -> Any:
        """A name with its marks; a call, if it is a function; an expectation, if it has outcomes."""
        name, primes, sub = self.argument()[0].strip(STRIP), "", Tokens()
        while self.peek() in {"'", "^*"} or (self.peek() == "_" and not sub):
            name += "^*" if self.took("^*") else ""
            primes += "'" if self.took("'") else ""
            sub = self.argument() if self.took("_") else sub
        whole = "_" * bool(sub) + "".join(token.strip(STRIP) for token in sub)
        ways = [(name + primes + whole, [], 0), (name + whole, [], len(primes)), (name + primes, sub, 0)]
        name, sub, order = next((way for way in ways if way[0] in self.env), (name, sub, len(primes)))
        value = lookup(self.env, name)
        if isinstance(value, Outcomes):
            body = self.argument() if self.peek() == "[" else self.scope()
            return reduce(
                lambda a, b: a + b, (p * evaluate(body, self.env | e) for p, e in value.of(self.env))
            )
        value = index(value, self.indices(sub)) if sub else value
        for _ in range(order):
            value = lambda x, f=value: (f(x + STEP) - f(x - STEP)) / (2 * STEP)  # noqa: E731
        return value(*self.items()) if callable(value) and self.peek() in {"(", "["} else value


def holds(condition: Tokens, e: Env) -> bool:
    r"""Whether a condition holds: `\text{if } y = 1`, `\text{always}`, or what stands before an arrow."""
    text = condition[0][0] == '"'
    word = re.sub('^"(if|for|where)?', "", condition[0]) if text else ""
    return bool(not word or lookup(e, word)) and bool(not condition[text:] or evaluate(condition[text:], e))


def remembered(side: Tokens, e: Env) -> Any:
    """The value of a side, which a page that was changed elsewhere does not compute again."""
    known, key = e["known"], tuple(side)
    if key not in known:
        known[key] = evaluate(side, e)
    return known[key]


def failures(tex: str, draws: list[Env], unread: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield which relations of an equation fail, and where; `unread` are the sides, chains and conditions to leave out.

    Whatever else cannot be read raises Unreadable, and so does an `unread` that is not printed.
    """
    left_out, found = {tuple(tokens_of(part)) for part in unread}, statements(tex)
    parts = {tuple(p) for chain, conditions in found for p in [chain, *split(chain, *RELATIONS), *conditions]}
    if missing := left_out - parts:
        raise Unreadable(f"to be left out, but not printed: {[' '.join(part) for part in missing]}")
    number, total = 0, sum(len(split(chain, *RELATIONS)) - 1 for chain, _ in found)
    for chain, conditions in found:
        sides, signs = (
            split(chain, *RELATIONS),
            [t for _, t, depth in walk(chain) if t in RELATIONS and not depth],
        )
        read = [i for i, side in enumerate(sides) if not left_out & {tuple(side), tuple(chain)}]
        if len(read) == 1:
            raise Unreadable(f"no relation to read in {' '.join(chain)}")
        under = [condition for condition in conditions if tuple(condition) not in left_out]
        held = [
            e
            for e in (KNOWN | draw | {"known": draw.setdefault("known", {})} for draw in draws)
            if read and all(holds(c, e) for c in under)
        ]
        if read and not held:
            yield f"the condition of {' '.join(chain)} never holds"
        for (a, b), e in product(pairwise(read), held):
            sign = next((s for s in signs[a:b] if s != "="), "=")
            left, right = remembered(sides[a], e), remembered(sides[b], e)
            if not RELATIONS[sign](left, right):
                names = {token.strip(STRIP) for token in sides[a] + sides[b]} & {*e}
                at = [
                    f"{n} = {shown(e[n])}"
                    for n in sorted(names)
                    if isinstance(e[n], int | mp.mpf | np.ndarray)
                ]
                where = f"relation {number + b} of {total}, {' '.join(sides[a])} {sign} {' '.join(sides[b])}"
                yield f"{where}: left {shown(left)}, right {shown(right)} at {'; '.join(at)}"
        number += len(signs)
