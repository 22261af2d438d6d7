"""Losses that are no cross-entropy of single rows: a softmax over a wrong axis, divergences of two softmaxes, and
functions of the label's probability or of the margin alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import optimize
from scipy.special import xlogy

from xent.numerics import log_softmax

from ._call import Array, Caller
from ._law import CATEGORICAL, KL, READINGS, Bend, Law, Pair, Reading
from ._read import THATS_IT, Changes, Own, Reader
from ._report import UNKNOWN, Diagnosis
from ._rows import Call, Data

NEITHER = "a batch is no sum or mean of its rows"
AXES = ("the classes", "the batch", "the positions", "the whole array")
# Of the five sums below: sum q log p, sum q log q, sum p log q, sum p log p, and that of their mean m.
DIVERGENCES = {
    CATEGORICAL: (-1, 0, 0, 0, 0),
    KL: (-1, 1, 0, 0, 0),
    f"{CATEGORICAL}, reversed": (0, 0, -1, 0, 0),
    f"{KL}, reversed": (0, 0, -1, 1, 0),
    "symmetric KL divergence": (-1, 1, -1, 1, 0),
    "Jensen-Shannon divergence": (0, 0.5, 0, 0.5, -1),
}  # fmt: skip
# What both arguments hold: logits first, which contain the others.
HELD = (("logits", "logits"), ("logits", "soft"), ("logits", "log-probabilities"), ("probabilities", "soft"),
        ("log-probabilities", "log-probabilities"), ("log-probabilities", "soft"))  # fmt: skip


def _logs(values: Array, held: str, temperature: float) -> Array:
    if held == "logits":
        return log_softmax(values / temperature)
    return values if held == "log-probabilities" else np.log(values)


def _sums(x: Array, t: Array, held: tuple[str, str], temperature: float) -> Array:
    log_p, log_q = _logs(x, held[0], temperature), _logs(t, held[1], temperature)
    p, q = np.exp(log_p), np.exp(log_q)
    m = (p + q) / 2
    products = [(a * b).sum(-1) for a, b in ((q, log_p), (q, log_q), (p, log_q), (p, log_p))]
    return np.stack([*products, xlogy(m, m).sum(-1)])


@dataclass
class Divergence(Law):
    """A divergence of the two distributions that both arguments stand for."""

    held: tuple[str, str] = ("logits", "logits")
    temperature: float = 1.0
    sums: tuple[float, ...] = field(default=(0.0,) * 5)

    def rows(self, x: Array, t: Array, by_class: bool) -> Pair:
        own = np.array(self.sums) @ _sums(x, t, self.held, self.temperature)
        return own * self.factor / (x.shape[-1] if self.by_k else 1), np.zeros(len(x))


def _given(n: int, k: int, held: tuple[str, str], seed: int) -> Pair:
    rng = np.random.default_rng(seed)
    logs = [rng.normal(0.3, 1.7, (n, k)) for _ in held]
    parts = [z if h == "logits" else log_softmax(z) for z, h in zip(logs, held, strict=True)]
    x, t = (np.exp(z) if h in ("soft", "probabilities") else z for z, h in zip(parts, held, strict=True))
    return x, t


def _fitted(caller: Caller, held: tuple[str, str]) -> tuple[str, float, float] | None:
    """The divergence of single rows, its factor and temperature, if it is one."""
    x, t = _given(30, 4, held, 3)
    seen = [caller(a[None], b[None]) for a, b in zip(x, t, strict=True)]
    if any(v is None or not np.isfinite(v).all() for v in seen):
        return None
    u = np.array([v.sum() for v in seen if v is not None])

    def at(log_temperature: float) -> tuple[float, Array, Array]:
        columns = _sums(x, t, held, np.exp(log_temperature)).T
        c, *_ = np.linalg.lstsq(columns, u, rcond=None)
        return float(np.abs(columns @ c - u).max() / np.abs(u).max()), c, columns

    best = 0.0
    if "logits" in held and at(0.0)[0] > 1e-4:
        grid = np.linspace(np.log(0.1), np.log(40), 48)
        n = int(np.argmin([at(v)[0] for v in grid]))
        bounds = (grid[max(n - 1, 0)], grid[min(n + 1, 47)])
        search = {"bounds": bounds, "options": {"xatol": 1e-11}}
        best = float(optimize.minimize_scalar(lambda v: at(v)[0], method="bounded", **search).x)
    error, c, columns = at(best)
    for name, sums in DIVERGENCES.items():
        plain = columns @ sums
        factor = float(plain @ u / (plain @ plain))
        close = np.abs(c - c @ sums / np.dot(sums, sums) * np.array(sums)).max() < 1e-2 * abs(factor)
        if error < 5e-5 and close and np.abs(factor * plain - u).max() < 1e-4 * np.abs(u).max():
            return name, factor, float(np.exp(best))
    return None


class PairReader(Reader):
    """A loss of rows that are no cross-entropy of labels beside its law."""

    held: tuple[str, str] | None = None

    def rows(self, n: int, seed: int, k: int = 0) -> Pair:
        return _given(n, k or self.k, self.held, seed) if self.held else super().rows(n, seed, k)


def divergences(caller: Caller, own: Own) -> Diagnosis | None:
    """A divergence of two softmaxes, or of two rows of probabilities, as distillation takes them."""
    for held in HELD:
        found = _fitted(caller, held)
        if found is None or (held[1] != "logits" and found[0] in (CATEGORICAL, KL)):
            continue  # of rows of probabilities as targets the models of single rows say more
        name, c, temperature = found
        reads, given = ({"soft": "probabilities"}.get(h, h) for h in held)
        law = Divergence(
            replace(READINGS[0], name=reads, kind=reads), Bend(), {}, np.ones(4), c, held=held, temperature=temperature,
            sums=DIVERGENCES[name], form="rows",
        )  # fmt: skip
        empty, (family, _, reverse) = np.empty(0), name.partition(", ")
        call = Call(caller, "prediction", "(N, K)", "rows", 4)
        reader = PairReader(Data(call, reads, False, 1, empty, empty, empty), law, set(), "float32")
        reader.held = held
        if wrong := reader.reduction() or reader.other_classes():
            said = f"single rows look like a {family} of two rows, and no sum or mean of them a batch"
            return Diagnosis(notes=(said, wrong))
        gradient = UNKNOWN
        if caller.arrays == "torch":
            wrong = UNKNOWN if reverse else "not that of the value, by the first argument"
            gradient = THATS_IT if reader.slope(*reader.batch(9, 5)) else wrong
        if reverse:
            said = f"reversed, of the prediction first: {family} from the prediction to the target"
            reader.alternatives.append(said)
            reads, given = given, reads
        one = abs(temperature - 1) < 1e-4
        targets = ({"probabilities": "soft"}.get(given, given),)
        fields = {"family": family, "targets": targets, "smoothing": 0.0, "reads": reads}
        fields["temperature"] = 1.0 if one else float(f"{temperature:.5g}")
        first = "target" if reverse else "prediction" if family in (KL, CATEGORICAL) else "either"
        return reader.finish(own, gradient, (), fields | reader.scale() | {"first": first})
    return None


# ------------------------------------------------------------------------------------- softmax over a wrong axis


def other_axes(caller: Caller, own: Own) -> Diagnosis | None:
    """A softmax over the rows, the positions or everything, where one over the classes belongs."""
    reading, empty, rng = Reading("logits", taken="log-probabilities"), np.empty(0), np.random.default_rng(83)
    for dims, first, form in itertools.product((2, 3), ("prediction", "target"), ("indices", "rows")):
        for layout in ("last", "second")[: dims - 1]:
            shape = "(N, K)" if dims == 2 else "(N, T, K)" if layout == "last" else "(N, K, T)"
            data = Data(Call(caller, first, shape, form, 3), "logits", False, 1, empty, empty, empty)
            law = Law(reading, Bend(), {}, np.ones(3), form=form, first=first, layout=layout)
            reader = PairReader(data, law, set(), "float64" if caller.dtype == "float64" else "float32")
            sizes = [(n,) if dims == 2 else (n, n + 1) for n in (3, 4, 6, 5)]
            pairs = []
            for size in sizes:
                x, t = rng.normal(0.4, 1.3, (math.prod(size), 3)), rng.integers(0, 3, math.prod(size))
                pairs.append(reader.positions(x, reader.one_hot(t), size, layout == "second"))
            seen = reader.seen(pairs)
            if not seen or not all(np.isfinite(v).all() for *_, v in seen):
                continue
            for axis, mean, by_k in itertools.product((1, 2, 3), ("a sum", law.mean), (False, True)):
                x, t, v = seen[0]
                change: Changes = {"axis": axis, "mean": mean, "by_k": by_k}
                want = replace(law, **change).value(x, t, v.ndim).sum() if axis != dims else np.inf
                ratio = float(v.sum() / want)
                change["factor"] = ratio
                if ratio and (mean == law.mean) >= by_k and reader.first(seen, [("found", change)]):
                    reader.law, reader.ndim = replace(law, **change), v.ndim
                    targets = ("indices" if form == "indices" else "one-hot",)
                    fields = {"family": CATEGORICAL, "targets": targets, **reader.scale(), "axis": AXES[axis]}
                    fields |= {"smoothing": 0.0, "layout": UNKNOWN if dims == 2 else layout}
                    return reader.finish(own, UNKNOWN, (), fields)
            if dims == 2 and form == "indices":
                return None  # it takes rows, which nothing here explains
    return None


# ---------------------------------------------------------------------------- functions of p or of the margin alone

CURVES: dict[str, Callable[[Array, float], list[Array]]] = {
    "(1 - p)": lambda p, _: [1 - p],
    "(-log p)": lambda p, _: [-np.log(p)],
    "/ p": lambda p, _: [1 / p],
    "log((1 - p) / p)": lambda p, _: [np.log(1 / p - 1)],
    "(-log p) and (1 - p)": lambda p, _: [-np.log(p), 1 - p],
    "(1 - p^{0})": lambda p, q: [1 - p**q],
    "(1 - p)^{0}": lambda p, q: [(1 - p) ** q],
    "(1 - p)^{0} (-log p)": lambda p, q: [-((1 - p) ** q) * np.log(p)],
    "(-log p) and (1 - p)^{0}": lambda p, q: [-np.log(p), (1 - p) ** q],
    "(1 - p) and (1 - p)^2": lambda p, _: [1 - p, (1 - p) ** 2],
}


def _curve(p: Array, u: Array) -> str:
    """Which curve in p it is, in words; nothing for none of those above."""
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
            terms = name.format(f"{q:.3g}").split(" and ")
            each = zip(c, terms, strict=False)
            text = " + ".join(t if abs(v - 1) < 1e-4 else f"{v:.4g} {t}" for v, t in each)
            return text + (f" + {c[-1]:.4g}" if abs(c[-1]) > 1e-4 * np.abs(u).max() else "")
    return ""


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
        if not np.isfinite(units).all() or np.ptp(units) == 0:
            continue
        u = units.reshape(len(levels), each)
        if np.ptp(u, 1).max() > 1e-5 * np.ptp(u):
            continue
        u = u.mean(1)
        if reads == "margin":
            slope = float((u[0] - u[1]) / (margins[1] - margins[0]))
            reach = float(margins[0] + u[0] / slope) if slope else np.nan
            hinge = np.allclose(u, slope * np.maximum(reach - margins, 0), atol=1e-6 * np.ptp(u))
            what = f": {slope:.4g} max(0, {reach:.4g} - margin)" * bool(hinge)
            said = f"the margin alone, the label's logit less the largest other{what}"
        else:
            curve = _curve(levels, u) or "none of those that are known here"
            said = f"its label's probability p alone, where it reads {reads}: {curve}"
        seen = call.ask(x, t)
        total = np.nan if seen is None else float(seen.sum())
        close = 1e-5 * max(abs(total), np.ptp(units))
        fits = [name for name, v in (("mean", units.mean()), ("sum", units.sum())) if abs(total - v) < close]
        batch = f"a batch costs the {fits[0]} of its rows" if fits else NEITHER
        return f"a row's loss is a function of {said}", batch
    return ()
