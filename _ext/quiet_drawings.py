"""The form in which a drawing is stored and compared: what says nothing changes nothing."""

from __future__ import annotations

import re

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
PLACES = re.compile(r'(?<= )(d|x|y|width|height|viewBox|points|transform)="([^"]*)"')
# Matplotlib names a path after all of its digits.
NAMED = re.compile(r'(?<=[#"])([A-Za-z])[0-9a-f]{10}\b')


def quiet(drawing: str) -> str:
    """Put a drawing on one line, places to a hundredth of a point, no zero below zero, names by their turn."""

    def rounded(number: re.Match[str]) -> str:
        text = f"{float(number[0]):.2f}".rstrip("0").rstrip(".")
        return "0" if text == "-0" else text

    turns: dict[str, str] = {}
    text = NAMED.sub(lambda m: turns.setdefault(m[0], f"{m[1]}{len(turns)}"), " ".join(drawing.split()))
    return PLACES.sub(lambda m: f'{m[1]}="{NUMBER.sub(rounded, m[2])}"', text)
