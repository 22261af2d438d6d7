"""What the reader computes for min, arg min, infinite sums and integrals: none of it knows a theorem."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations_with_replacement
from typing import Any

import mpmath as mp
import numpy as np

STEP, TINY = mp.mpf("1e-15"), mp.mpf("1e-20")


def lowest(f: Callable[[Any], Any], n: int) -> Any:
    """The column of n numbers at which a smooth function is least, by Newton's method on differences."""
    x, unit = np.array([[mp.mpf(0)]] * n, object), np.array(np.eye(n, dtype=int), object)
    for _ in range(99):
        at = lambda *by: f(x + STEP * sum(by)[:, None])  # noqa: B023, E731
        now, up, down = f(x), [at(u) for u in unit], [at(-u) for u in unit]
        slope = mp.matrix([(a - b) / (2 * STEP) for a, b in zip(up, down, strict=True)])
        bend = mp.matrix(n, n)
        for i, j in combinations_with_replacement(range(n), 2):
            both = at(unit[i], unit[j]) + at(-unit[i], -unit[j]) if i < j else 4 * (up[i] + down[i]) - 6 * now
            bend[i, j] = bend[j, i] = (both + 2 * now - up[i] - up[j] - down[i] - down[j]) / (2 * STEP**2)
        convex = all(mp.det(bend[:k, :k]) > 0 for k in range(1, n + 1))
        move = mp.lu_solve(bend, -slope) if convex else -slope
        x = x + np.array((move / max(1, mp.norm(move, mp.inf))).tolist(), object)
        if convex and (mp.norm(move, mp.inf) < TINY or mp.norm(slope, mp.inf) < TINY / 10**6):
            return x
    raise ArithmeticError("no minimum")


def settled(values: Iterable[Any]) -> list[Any]:
    """The terms of an infinite sum, until three in a row are next to nothing beside it."""
    terms: list[Any] = []
    for value in values:
        terms.append(value)
        if len(terms) > 3 and max(map(abs, terms[-3:])) <= TINY * abs(mp.fsum(terms)):
            return terms
        if len(terms) > 500:
            break
    raise ArithmeticError("a sum that does not settle")


def integral(f: Callable[[Any], Any], low: Any, high: Any) -> Any:
    """The integral, with an error that is next to nothing."""
    with mp.workdps(30):
        value, error = mp.quad(f, [low, *([low + 1, low + 10] * (high == mp.inf)), high], error=True)
    if error > TINY * max(1, abs(value)):
        raise ArithmeticError("an integral that is not known well enough")
    return value
