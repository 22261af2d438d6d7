"""Losses that are no cross-entropy of single rows: a softmax over a wrong axis, divergences of two softmaxes, and
functions of the label's probability or of the margin alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import optimize
from scipy.special import xlogy

from xent.numerics import log_softmax

from ._call import Array, Caller
from ._models import CATEGORICAL, KL, READINGS, Bend, Fit
from ._prediction import CLASSES, ROWS, Law, Pair, Trial, of_your_batch
from ._report import UNITS, UNKNOWN, Diagnosis
from ._rows import Call

AXES = ("the batch", "the positions")  # of an input, before that of the classes
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
    return np.stack(
        [(a * b).sum(-1) for a, b in ((q, log_p), (q, log_q), (p, log_q), (p, log_p))] + [xlogy(m, m).sum(-1)]
    )


@dataclass
class Divergence(Law):
    """A divergence of the two distributions that both arguments stand for."""

    held: tuple[str, str] = ("logits", "logits")
    temperature: float = 1.0
    sums: tuple[float, ...] = field(default=(0.0,) * 5)

    def rows(self, x: Array, t: Array) -> Pair:
        own = np.array(self.sums) @ _sums(x, t, self.held, self.temperature)
        return own * self.factor / (x.shape[-1] if self.by_k else 1), np.zeros(len(x))


def _given(n: int, k: int, held: tuple[str, str], seed: int) -> Pair:
    rng = np.random.default_rng(seed)
    logs = [rng.normal(0.3, 1.7, (n, k)) for _ in held]
    parts = [z if h == "logits" else log_softmax(z) for z, h in zip(logs, held, strict=True)]
    x, t = (np.exp(z) if h in ("soft", "probabilities") else z for z, h in zip(parts, held, strict=True))
    return x, t


def _fitted(caller: Caller, k: int, held: tuple[str, str]) -> tuple[str, float, float] | None:
    """The divergence of single rows, its factor and temperature, if it is one."""
    x, t = _given(30, k, held, 3)
    seen = [caller(a[None], b[None]) for a, b in zip(x, t, strict=True)]
    if any(v is None or not np.isfinite(v).all() for v in seen):
        return None
    u = np.array([v.sum() for v in seen if v is not None])

    def at(log_temperature: float) -> tuple[float, Array]:
        columns = _sums(x, t, held, np.exp(log_temperature)).T
        c, *_ = np.linalg.lstsq(columns, u, rcond=None)
        return float(np.abs(columns @ c - u).max() / np.abs(u).max()), c

    log_temperature = 0.0
    if "logits" in held and at(0.0)[0] > 1e-4:
        grid = np.linspace(np.log(0.1), np.log(40), 48)
        n = int(np.argmin([at(v)[0] for v in grid]))
        bounds = (grid[max(n - 1, 0)], grid[min(n + 1, 47)])
        found = optimize.minimize_scalar(
            lambda v: at(v)[0], method="bounded", bounds=bounds, options={"xatol": 1e-11}
        )
        log_temperature = float(found.x)
    error, c = at(log_temperature)
    for name, sums in DIVERGENCES.items():
        factor = float(c @ sums / np.dot(sums, sums))
        if error < 5e-5 and np.abs(c - factor * np.array(sums)).max() < 1e-2 * abs(factor):
            scale = u @ (np.array(sums) @ _sums(x, t, held, np.exp(log_temperature)))
            plain = np.array(sums) @ _sums(x, t, held, np.exp(log_temperature))
            factor = float(scale / (plain @ plain))
            if np.abs(factor * plain - u).max() < 1e-4 * np.abs(u).max():
                return name, factor, float(np.exp(log_temperature))
    return None


def divergences(caller: Caller, own: tuple[Any, Any] | None) -> Diagnosis | None:
    """A divergence of two softmaxes, or of two rows of probabilities, as distillation takes them."""
    for held in HELD:
        found, other = _fitted(caller, 4, held), None
        if found is None or (other := _fitted(caller, 6, held)) is None or other[0] != found[0]:
            continue
        name, c, temperature = found
        if held[1] != "logits" and name in (CATEGORICAL, KL):
            continue  # rows of probabilities as targets: the models of single rows say more of it
        ratio, by_k = other[1] / c, False
        if abs(ratio - 1) > 1e-3:
            by_k = abs(ratio - 4 / 6) < 1e-3
            if not by_k:
                continue
        x, t = _given(5, 4, held, 9)
        value = caller(x, t)
        if value is None:
            continue
        first, _, reverse = name.partition(", ")
        divergence = Divergence(
            fit=Fit(READINGS[0], Bend(), {}, np.eye(4), 0.0), kind=held[0], binary=False, mean="a sum",
            weights=np.ones(1), factor=c * (4 if by_k else 1), by_k=by_k, held=held, temperature=temperature,
            sums=DIVERGENCES[name],
        )  # fmt: skip
        laws = [replace(divergence, mean=m) for m in ("over the valid tokens", "a sum")]
        trials = [Trial(law, caller, "float32", (caller.tensor, caller.tensor)) for law in laws]
        trial = next((v for v in trials if v.right(x, t)), None)
        if trial is None:
            return Diagnosis(
                notes=(f"single rows look like a {first} of two rows, and no sum or mean of them a batch",)
            )
        return _said(trial, caller, own, first, bool(reverse), value.ndim)
    return None


def _said(
    trial: Trial, caller: Caller, own: tuple[Any, Any] | None, family: str, reverse: bool, ndim: int
) -> Diagnosis:
    """What a divergence is, tried at other sizes and on the reader's own batch."""
    law: Any = trial.law
    problem: tuple[str, ...] = ()
    for n, k in [*((n, 4) for n in ROWS[:3]), (8, CLASSES)]:
        if not problem and (wrong := trial.wrong(*_given(n, k, law.held, n))):
            problem = (f"a batch of {n:,} rows and {k:,} classes {wrong[0]}", *wrong[1:])
    gradient = UNKNOWN
    if caller.arrays == "torch":
        gradient = trial.whole_gradient(*_given(9, 4, law.held, 5), "that of the value")
        if "missing" in gradient or not gradient.startswith("that"):
            gradient = "not that of the value, by the first argument" if not reverse else UNKNOWN
    told: dict[str, Any] = {}
    if own and own[0] is not None:
        told, gradient, mine = of_your_batch(law, caller, "float64", own, gradient)
        problem = (*mine, *problem[: 1 if mine else None])
    mean, kinds = law.mean != "a sum", law.held[::-1] if reverse else law.held
    size = abs(law.factor)
    result = Diagnosis(
        family=family, first="target" if reverse else "prediction" if family in (KL, CATEGORICAL) else "either",
        targets=({"probabilities": "soft"}.get(kinds[1], kinds[1]),),
        reads={"soft": "probabilities"}.get(kinds[0], kinds[0]),
        reduction="none" if ndim else "mean" if mean else "sum",
        denominator=("N*K" if law.by_k else "N") if mean else "K" if law.by_k else "nothing",
        factor=1.0 if abs(size - 1) < 1e-4 else float(f"{size:.6g}"), sign=1 if law.factor > 0 else -1, unit="nats",
        temperature=1.0 if abs(law.temperature - 1) < 1e-4 else float(f"{law.temperature:.5g}"), smoothing=0.0,
        axis="the classes", arrays=caller.arrays, gradient=gradient, classes=(4, 6),
        alternatives=(f"reversed, of the prediction first: {family} from the prediction to the target",) * reverse,
        tried=f"up to {ROWS[2]:,} rows, {CLASSES:,} classes", **told,
    )  # fmt: skip
    if not problem:
        return result
    told = {k: v for k, v in told.items() if k != "batch"}
    return Diagnosis(
        notes=(*problem, f"smaller ones are read as: {result.sentence}"), tried=result.tried, **told
    )


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
            text = " + ".join(
                t if abs(v - 1) < 1e-4 else f"{v:.4g} {t}" for v, t in zip(c, terms, strict=False)
            )
            return text + (f" + {c[-1]:.4g}" if abs(c[-1]) > 1e-4 * np.abs(u).max() else "")
    return ""


def function_of_one(call: Call) -> tuple[str, ...]:
    """Whether a row's loss is a function of its label's probability alone, or of its margin, and which."""
    k, rng, reads = call.k, np.random.default_rng(41), "logits"
    if k < 3:
        return ()
    levels, points, labels = np.linspace(0.04, 0.93, 24), [], []
    for p, _ in itertools.product(levels, range(3)):
        others = rng.normal(0, 1.2, k - 1)
        points.append((p, others))
        labels.append(int(rng.integers(k)))
    t = np.eye(k)[labels]

    def asked(rows: list[Array]) -> Array | None:
        x = np.stack([np.insert(np.delete(r, 0), y, r[0]) for r, y in zip(rows, labels, strict=True)])
        seen = [call.unit(a, b, 1) for a, b in zip(x, t, strict=True)]
        return np.array(seen) if np.isfinite(seen).all() else None

    def by_level(rows: list[Array]) -> tuple[Array, bool] | None:
        u = asked(rows)
        if u is None or np.ptp(u) == 0:
            return None
        u = u.reshape(len(levels), 3)
        return u.mean(1), bool(np.ptp(u, 1).max() < 1e-5 * np.ptp(u))

    def softmaxed(p: float, others: Array) -> Array:
        return np.append(p, (1 - p) * np.exp(others) / np.exp(others).sum())

    for reads in ("logits", "probabilities"):
        rows = [softmaxed(p, o) for p, o in points]
        # Logits whose sum says nothing: a row may be shifted.
        found = by_level([np.log(r) + rng.normal() for r in rows] if reads == "logits" else rows)
        if found and found[1]:
            curve = _curve(levels, found[0]) or "none of those that are known here"
            said = f"a row's loss is a function of its label's probability p alone, where it reads {reads}: {curve}"
            return (said, *_batched(call, [np.log(r) if reads == "logits" else r for r in rows], labels))
    margins = np.linspace(-3.0, 4.0, 24)
    rows = [np.r_[m + o.max(), o] for m, (_, o) in zip(np.repeat(margins, 3), points, strict=True)]
    found = by_level(rows)
    if not found or not found[1]:
        return ()
    u = found[0]
    slope = float((u[0] - u[1]) / (margins[1] - margins[0]))
    reach = float(margins[0] + u[0] / slope) if slope else np.nan
    hinge = np.allclose(u, slope * np.maximum(reach - margins, 0), atol=1e-6 * np.ptp(u))
    what = f": {slope:.4g} max(0, {reach:.4g} - margin)" if hinge else ""
    said = f"a row's loss is a function of the margin alone, the label's logit less the largest other{what}"
    return (said, *_batched(call, rows, labels))


def _batched(call: Call, rows: list[Array], labels: list[int]) -> tuple[str, ...]:
    """How single rows of such a loss make a batch."""
    x = np.stack([np.insert(np.delete(r, 0), y, r[0]) for r, y in zip(rows, labels, strict=True)])
    t = np.eye(call.k)[labels]
    units = np.array([call.unit(a, b, 1) for a, b in zip(x, t, strict=True)])
    total = call.total(x, t)
    for name, value in (("mean", units.mean()), ("sum", units.sum())):
        if abs(total - value) < 1e-5 * max(abs(value), np.ptp(units)):
            return (f"a batch costs the {name} of its rows",)
    return ("a batch is no sum or mean of its rows",)


# ------------------------------------------------------------------------------------- softmax over a wrong axis


def other_axes(caller: Caller) -> Diagnosis | None:
    """A softmax over the rows, the positions or everything, where one over the classes belongs."""
    answers = False
    for dims, order, form in itertools.product((2, 3), ("prediction", "target"), ("indices", "rows")):
        if dims == 3 and answers:
            return None  # it takes rows, which nothing here explains
        for second in (False, True) if dims == 3 else (False,):
            seen, wants, rng = [], [], np.random.default_rng(83)
            for n in (3, 4, 6, 5):
                shape = (n, 3) if dims == 2 else (n, n + 1, 3)
                x, y = rng.normal(0.4, 1.3, shape), rng.integers(0, 3, shape[:-1])
                t = np.eye(3)[y]
                given = y if form == "indices" else np.moveaxis(t, -1, 1) if second else t
                laid = np.moveaxis(x, -1, 1) if second else x
                pair = (laid, given) if order == "prediction" else (given, laid)
                value = caller(*map(np.ascontiguousarray, pair))
                if value is None or not np.isfinite(value).all():
                    break
                seen.append(float(value.sum()))
                over = {name: log_softmax(x, axis=a) for a, name in enumerate(AXES[: dims - 1])}
                over["the whole array"] = log_softmax(x.reshape(-1)).reshape(shape)
                sizes = {"nothing": 1} | ({"N": y.size, "N*K": x.size} if value.ndim == 0 else {})
                costs = {name: -(t * log_p).sum() for name, log_p in over.items()}
                wants.append({(name, by): c / s for name, c in costs.items() for by, s in sizes.items()})
            answers |= dims == 2 and form == "indices" and bool(seen)
            if len(seen) < 4:
                continue
            for axis, divisor in wants[0]:
                ratio = np.array(seen) / [want[axis, divisor] for want in wants]
                if np.ptp(ratio) < 1e-5 * abs(ratio.mean()):
                    c = float(ratio.mean())
                    unit = next((u for u, s in UNITS.items() if abs(abs(c) / s - 1) < 1e-4), "nats")
                    factor, scalar = abs(c) / UNITS[unit], len(wants[0]) > dims
                    return Diagnosis(
                        family=CATEGORICAL, first=order, targets=("indices" if form == "indices" else "one-hot",),
                        reads="logits", axis=axis, sign=1 if c > 0 else -1, unit=unit,
                        reduction="none" if not scalar else "sum" if divisor == "nothing" else "mean",
                        denominator=divisor, factor=1.0 if abs(factor - 1) < 1e-5 else float(f"{factor:.6g}"),
                        arrays=caller.arrays, smoothing=0.0,
                        layout=UNKNOWN if dims == 2 else "second" if second else "last",
                        evidence={"added": "four batches of several sizes are predicted"},
                    )  # fmt: skip
    return None
