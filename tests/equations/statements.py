"""Splits what an equation displays: TeX into tokens, and these into chains of relations with their conditions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from equations.values import RELATIONS

Tokens = list[str]
TOKEN = re.compile(
    r"\\(?P<font>math[a-z]+|operatorname\*?|text)\s*(?:\{(?P<word>[^{}]*)\}|(?P<letter>\\[A-Za-z]+|\w))"
    r"|\\(?P<accent>hat|bar|tilde)\s*(?P<brace>\{)?\\?(?P<under>(?<=\\)[A-Za-z]+|\w)(?(brace)\})"
    r"|\\[A-Za-z]+|\\.|\d+(?:\{,\}\d+)*(?:\.\d+)?|\^\*|\S"
)
NOTHING = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle)(?![A-Za-z])|(?<!\\)\\[,;:! ]|\{\s*\}"
    r"|\\(?:begin|end)\{(?:aligned|gathered)\}|(?<=\\\\)\[\w+\]"
)
CASES = re.compile(r"\\begin\{cases\}(.*?)\\end\{cases\}", re.DOTALL)
FONTS = {"mathbf": "bold ", "mathsf": "sans ", "mathcal": "cal ", "text": '"'}
PAIRS = {
    "(": ")]",
    "[": "])",
    "{": "}",
    r"\{": [r"\}"],
    r"\lvert": [r"\rvert"],
    r"\lVert": [r"\rVert"],
    "|": "|",
}
GAPS, IMPLIES = {r"\quad", r"\qquad", "&", r"\\"}, {r"\Rightarrow", r"\Longrightarrow", r"\iff"}
ENDS, STRIP = {"", "+", "-", *RELATIONS}, '\\"{}'


def tokens_of(tex: str) -> Tokens:
    r"""Split TeX; `\mathrm{KL}` and `\hat p` become one token each, spaces and the sizes of brackets go."""
    tex = CASES.sub(lambda m: r"\cases{" + m[1].replace(r"\\", ";") + "}", tex.replace(r"\tfrac", r"\frac"))
    found = []
    for m in TOKEN.finditer(NOTHING.sub(" ", tex)):
        word = "".join((m["word"] or m["letter"] or "").split())
        found.append(
            FONTS.get(m["font"], "") + word
            if word
            else f"{m['accent']} {m['under']}"
            if m["accent"]
            else m[0]
        )
    return found


def walk(tokens: Tokens) -> Iterator[tuple[int, str, int]]:
    """Yield place, token and depth; a bracket itself counts as outside."""
    closers: list[Any] = []
    for i, token in enumerate(tokens):
        closes = bool(closers) and token in closers[-1]
        closers = closers[:-1] if closes else closers
        yield i, token, len(closers)
        closers = [*closers, PAIRS[token]] if token in PAIRS and not closes else closers


def split(tokens: Tokens, *at: str) -> list[Tokens]:
    """Split tokens where one of `at` stands outside of brackets."""
    cuts = [i for i, token, depth in walk(tokens) if token in at and not depth]
    return [tokens[a + 1 : b] for a, b in zip([-1, *cuts], [*cuts, len(tokens)], strict=True)]


def statements(tex: str) -> list[tuple[Tokens, list[Tokens]]]:
    """The chains of relations that are displayed, each with its conditions: a comma, a gap, a line may end one."""
    tokens, parts, found = tokens_of(tex), [[""]], list[tuple[Tokens, list[Tokens]]]()
    for i, token, depth in walk(tokens):
        follows = next((t for t in tokens[i + 1 :] if t not in GAPS), "")
        goes_on = (
            follows in {*RELATIONS, *IMPLIES} or parts[-1][-1] in {*ENDS, *IMPLIES} or follows[:1] == '"'
        )
        goes_on |= follows in {"+", "-"} and (token != r"\\" or tokens[i + 1] == "&")
        if depth or token not in GAPS | {",", ":", "."}:
            parts[-1] += [token] * (token not in GAPS)
        elif token in {",", ":"} or not (goes_on or token == "." or [token, tokens[i + 1]] == ["&", follows]):
            parts += [[""]] * (follows[:1] != '"')
    for part in (part[1:] for part in parts if part[1:]):
        texts = (i for i, token, depth in walk(part) if token[0] == '"' and not depth)
        cut = next((i for i in texts if not i or part[i - 1] not in ENDS), len(part))
        left, *right = split(part[:cut], *IMPLIES)
        conditions = [part[cut:]] * (cut < len(part))
        sides = split(left, *RELATIONS)
        if right and left.count("=") == len(sides) - 1 > 1:  # A = B = 0 implies C: A = B holds anyway
            found += [(left[: -1 - len(sides[-1])], conditions)]
        found += [(right[0], [left, *conditions])] if right else [(left, conditions)]
        found += [(left, [*right, *conditions])] if r"\iff" in part[:cut] else []
    return found
