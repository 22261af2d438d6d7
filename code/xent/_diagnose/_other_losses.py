"""Losses that are no cross-entropy of single rows: a softmax over a wrong axis, functions of the label's probability
or of the margin alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import optimize

from ._call import Array, Caller
from ._law import CATEGORICAL, Law, Reading
from ._read import Changes, Own, Reader
from ._report import UNKNOWN, Diagnosis
from ._rows import Call, Data

NEITHER = "a batch is no sum or mean of its rows"
AXES = ("the classes", "the batch", "the positions", "the whole array")
# ------------------------------------------------------------------------------------- softmax over a wrong axis


def other_axes(caller: Caller, own: Own) -> Diagnosis | None:
    """A softmax over the rows, the positions or everything, where one over the classes belongs."""
    reading, rng = Reading("logits", taken="log-probabilities"), np.random.default_rng(83)
    for dims, first, form in itertools.product((2, 3), ("prediction", "target"), ("indices", "rows")):
        data = Data(Call(caller, first, "(N, K)" if dims == 2 else "(N, T, K)", form, 3), "logits", False)
        reader = Reader(data, Law(reading, form=form, first=first), dtype=caller.dtype)
        pairs, law = [], reader.law
        for size in [(n,) if dims == 2 else (n, n + 1) for n in (3, 4, 6, 5)]:
            x, t = rng.normal(0.4, 1.3, (math.prod(size), 3)), rng.integers(0, 3, math.prod(size))
            pairs.append(reader.positions(x, reader.one_hot(t), size, False))
        seen = reader.seen(pairs)
        if not seen or not all(np.isfinite(v).all() for *_, v in seen):
            continue
        x, t, v = seen[0]
        for axis, mean, by_k in itertools.product((1, 2, 3), ("a sum", law.mean), (False, True)):
            change: Changes = {"axis": axis, "mean": mean, "by_k": by_k}
            want = replace(law, **change).value(x, t, v.ndim).sum() if axis != dims else np.inf
            change["factor"] = ratio = float(v.sum() / want)
            if ratio and (mean == law.mean) >= by_k and reader.choose(seen, {"found": change}):
                reader.ndim = v.ndim
                targets = ("indices" if form == "indices" else "one-hot",)
                fields = {"family": CATEGORICAL, "targets": targets, **reader.scale(), "axis": AXES[axis]}
                return reader.finish(own, reader.said_of_gradient(x, t, UNKNOWN), (), fields)
        if dims == 2 and form == "indices":
            return None  # it takes rows, which nothing here explains
    return None


# ---------------------------------------------------------------------------- functions of p or of the margin alone

CURVES: dict[str, Callable[[Array, float], list[Array]]] = {
    "(1 - p)": lambda p, _: [1 - p],
    "(-log p)": lambda p, _: [-np.log(p)],
    "(-log p) and (1 - p)": lambda p, _: [-np.log(p), 1 - p],
    "(1 - p^{0})": lambda p, q: [1 - p**q],
    "(1 - p)^{0}": lambda p, q: [(1 - p) ** q],
    "(1 - p)^{0} (-log p)": lambda p, q: [-((1 - p) ** q) * np.log(p)],
    "(-log p) and (1 - p)^{0}": lambda p, q: [-np.log(p), (1 - p) ** q],
}


def _curve(p: Array, u: Array) -> str:
    """Which curve in p it is, in words."""
    for name, columns in CURVES.items():

        def solved(q: float, columns: Any = columns) -> tuple[float, Array]:
            parts = np.stack([*columns(p, q), np.ones_like(p)], 1)
            c, *_ = np.linalg.lstsq(parts, u, rcond=None)
            return float(np.abs(parts @ c - u).max() / np.ptp(u)), c

        q = 1.0
        if "{0}" in name:
            grid = np.linspace(0.05, 6, 60)
            n = int(np.argmin([solved(v)[0] for v in grid]))
            bounds = (grid[max(n - 1, 0)], grid[min(n + 1, 59)])
            q = float(optimize.minimize_scalar(lambda v: solved(v)[0], method="bounded", bounds=bounds).x)
        error, c = solved(q)
        if error < 1e-4:
            each = zip(c, name.format(f"{q:.3g}").split(" and "), strict=False)
            text = " + ".join(t if abs(v - 1) < 1e-4 else f"{v:.4g} {t}" for v, t in each)
            return text + (f" + {c[-1]:.4g}" if abs(c[-1]) > 1e-4 * np.abs(u).max() else "")
    return "none of those that are known here"


def function_of_one(call: Call) -> tuple[str, ...]:
    """Whether a row's loss is a function of its label's probability alone, or of its margin, and which."""
    k, rng, each = call.k, np.random.default_rng(41), 5  # rows of each level, with other classes of their own
    n = 24 * each
    if k < 3:
        return ()
    levels, margins = np.linspace(0.04, 0.93, 24), np.linspace(-3.0, 4.0, 24)
    others = rng.normal(0, 1.2, (n, k - 1))
    t = np.eye(k)[rng.integers(0, k, n)]
    p = np.repeat(levels, each)[:, None]
    probabilities = np.hstack([p, (1 - p) * np.exp(others) / np.exp(others).sum(1, keepdims=True)])
    ways = {
        "logits": np.log(probabilities) + rng.normal(size=(n, 1)),  # whose sum says nothing
        "probabilities": probabilities,
        "margin": np.hstack([np.repeat(margins, each)[:, None] + others.max(1, keepdims=True), others]),
    }
    for reads, rows in ways.items():
        x = np.empty_like(rows)
        x[t == 1], x[t == 0] = rows[:, 0], rows[:, 1:].ravel()
        units = call.units(x, t, 1)
        u = units.reshape(len(levels), each)
        if not np.isfinite(u).all() or np.ptp(u) == 0 or np.ptp(u, 1).max() > 1e-5 * np.ptp(u):
            continue
        u = u.mean(1)
        if reads == "margin":
            slope = float((u[0] - u[1]) / (margins[1] - margins[0]))
            reach = float(margins[0] + u[0] / slope) if slope else np.nan
            hinge = np.allclose(u, slope * np.maximum(reach - margins, 0), atol=1e-6 * np.ptp(u))
            what = f": {slope:.4g} max(0, {reach:.4g} - margin)" * bool(hinge)
            said = f"the margin alone, the label's logit less the largest other{what}"
        else:
            said = f"its label's probability p alone, where it reads {reads}: {_curve(levels, u)}"
        seen = call.ask(x, t)
        total = np.nan if seen is None else float(seen.sum())
        close = 1e-5 * max(abs(total), np.ptp(units))
        fits = [name for name, v in (("mean", units.mean()), ("sum", units.sum())) if abs(total - v) < close]
        batch = f"a batch costs the {fits[0]} of its rows" if fits else NEITHER
        return f"a row's loss is a function of {said}", batch
    return ()
