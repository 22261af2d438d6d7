"""Single rows: how a loss is called with them, and the laws that predict what each costs.

Given what bends (a temperature, gamma, an epsilon), a row's loss is linear in a law's matrix A, which is solved for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import optimize

from xent.numerics import sigmoid, softmax

from . import _law as laws
from ._call import Array, Caller, numbers_within
from ._law import BINARY, LEVELS, Bend, Law, Names, Pair, Reading

# Above so many classes A is not solved for entry by entry: a diagonal and one common entry for each label.
FULL = 12
# The relative error of a row's prediction that is right, by what the loss computes in.
TOLERANCE = {"float64": 2e-6, "float32": 2e-5, "float16": 6e-3, "bfloat16": 5e-2}


def _shifted(x: Array, t: Array) -> Pair:
    """Two positions, of which a loss that shifts its labels compares the first logits with the second label."""
    return np.stack([x, 0 * x], 1), np.stack([0 * t, t], 1)


# How rows (n, K) and their targets, (n,) or (n, K), are laid out for a call.
SHAPES: dict[str, Callable[[Array, Array], Pair]] = {
    "(N, K)": lambda x, t: (x, t),
    "(N,)": lambda x, t: (x[:, 0], t.reshape(len(t))),
    "(N, 1), targets (N,)": lambda x, t: (x, t.reshape(len(t))),
    "(N, T, K)": lambda x, t: (x[:, None], t[:, None]),
    "(N, K, T)": lambda x, t: (x[..., None], t[..., None]),
    "(N, T, K), shifted": _shifted,
    "(N, K, H, W)": lambda x, t: (x[..., None, None], t[..., None, None]),
    "(N, H, W, K)": lambda x, t: (x[:, None, None], t[:, None, None]),
}
KINDS = ("logits", "probabilities", "log-probabilities")
# Targets as they are passed: class indices, rows of 0 and 1, and what is rarer.
FORMS: dict[str, Callable[[Array], Array]] = {
    "indices": lambda t: t.argmax(-1) if t.shape[-1] > 1 else t[:, 0].astype(np.int64),
    "rows": lambda t: t,
    "signs": lambda t: 2 * t - 1,
    "labels": lambda t: t.argmax(-1),  # of a binary loss
    "soft": lambda t: t,
    "logarithms": lambda t: np.log(t),
    "logits": lambda t: np.log(t) + 0.7,
}


@dataclass(frozen=True)
class Call:
    """A loss with everything that a call needs besides rows and targets."""

    caller: Caller
    order: str
    shape: str
    form: str
    k: int

    @property
    def soft(self) -> bool:
        return self.form in laws.SOFT

    def lay(self, x: Array, t: Array) -> Pair:
        """Rows (n, K) and targets (n, K) as they are passed."""
        return SHAPES[self.shape](x, FORMS[self.form](np.asarray(t)))

    def laid(self, x: Array, t: Array) -> Array | None:
        return self.caller(*((x, t) if self.order == "prediction" else (t, x)))

    def ask(self, x: Array, t: Array) -> Array | None:
        return self.laid(*self.lay(x, t))

    def units(self, x: Array, t: Array, copies: int) -> Array:
        """What so many copies of each row cost together: for a mean, the loss of the row itself."""
        seen = (self.ask(*(np.repeat(a[None], copies, 0) for a in row)) for row in zip(x, t, strict=True))
        return np.array([np.nan if v is None else float(v.sum()) for v in seen])


def inputs(kind: str, binary: bool, n: int, k: int, rng: np.random.Generator) -> Array:
    """Rows of one kind, off zero so that logits are neither probabilities nor their logarithms."""
    z = rng.normal(0.4, 1.3, (n, k))
    if kind == "logits":
        return z
    p: Array = 0.05 + 0.9 * sigmoid(z) if binary else 0.9 * softmax(z) + 0.1 / k
    return p if kind == "probabilities" else np.log(p)


@dataclass(frozen=True)
class Data:
    """Single rows, their targets and their losses, in so many copies."""

    call: Call
    kind: str
    binary: bool
    copies: int = 1
    x: Array = field(default_factory=lambda: np.empty(0))
    t: Array = field(default_factory=lambda: np.empty(0))
    u: Array = field(default_factory=lambda: np.empty(0))

    @property
    def soft(self) -> bool:
        return self.call.soft

    def promising(self, bends: Names, common: Names) -> bool:
        """Whether a complication can be behind rows of logits: a cost that grows no faster than its logit, as the
        logarithm of a sum of exponentials does, and that a shift of all logits leaves alone, unless log Z counts.
        """
        if self.kind != "logits":
            return True
        x, u = self.x[:2], self.u[:2]

        def at(rows: Array) -> Array:
            return self.call.units(rows, self.t[:2], self.copies)

        if "cap" in bends:  # under a cap a cost stands still
            return not self.binary and np.allclose(at(1e4 * x), at(2e4 * x), 1e-4)
        if "log Z squared" in common:
            return not self.binary
        a, b, c = (at(x * s) for s in (100.0, 200.0, 300.0))
        straight = not (np.abs(a - 2 * b + c) > 1e-2 * np.maximum(np.abs(c), np.abs(u))).any()
        return straight and (self.binary or np.allclose(at(x + 0.5), u, 1e-4))

    def cost(self, law: Law, x: Array, t: Array) -> Array:
        """What a law says of single rows, as they were measured."""
        law = replace(law, mean="a sum", counts=np.ones(1))
        rows = (self.call.lay(a[None], b[None]) for a, b in zip(x, t, strict=True))
        return np.array([float(law.value(*row, 0)) for row in rows])

    def unnormalised(self, law: Law) -> bool:
        """Whether a law holds for rows that are no logarithms of probabilities, where the loss takes them."""
        x, t = self.x[:4] - 0.7, self.t[:4]
        seen = self.call.units(x, t, self.copies)
        return not np.isfinite(seen).all() or np.allclose(seen, self.cost(law, x, t), 1e-3)

    def measure(self, law: Law) -> None:
        """The weights that are missing, each from one row; what costs nothing, or nan, is left out."""
        lost = np.flatnonzero(np.isnan(law.weights))
        x = inputs(self.kind, False, len(lost), len(law.weights), np.random.default_rng(13))
        t = (lost[:, None] == np.arange(len(law.weights))).astype(float)
        law.weights[lost] = 1.0
        law.weights[lost] = np.nan_to_num(self.call.units(x, t, self.copies) / self.cost(law, x, t))
        law.left_out |= {int(y): True for y in lost if abs(law.weights[y]) < 1e-6 * law.size}

    def precision(self) -> str:
        """The format in which the loss sees its argument, from the smallest change that it answers to."""
        rng, dtype = np.random.default_rng(3), self.call.caller.result_dtype
        if dtype in ("float16", "bfloat16"):
            return dtype
        places = np.linspace(0, len(self.x) - 1, 16).astype(int)
        x, t = self.x[places], self.t[places]
        mantissa, exponent = np.frexp(x)
        # Numbers that bfloat16 has; it rounds what is near back to them.
        even = np.ldexp(np.round(256 * mantissa) / 256, exponent)
        for name, step, at in (("float64", 1e-11, x), ("float32", 6e-6, x), ("float16", 1.3e-3, even)):
            moved = at * (1 + step * rng.choice([-1.0, 1.0], x.shape))
            here = self.call.units(at, t, self.copies) if at is even else self.u[places]
            if (self.call.units(moved, t, self.copies) != here).sum() > (3 if at is even else 6):
                return name
        return "bfloat16"


def explore(call: Call, kind: str, binary: bool) -> Data | None:
    """Measure single rows, or None where the loss refuses them or says nothing with them."""
    rng, k = np.random.default_rng(7), call.k
    if call.soft:
        t = rng.dirichlet(np.full(k, 2.0), 40)
    elif binary and call.form != "labels":
        t = rng.integers(0, 2, (4 * k + 12, k)).astype(float)
        t[0], t[1] = 0, 1
    else:
        held = [v for v in numbers_within(call.caller.loss) if 0 <= v < k][:6]  # one may be left out
        spread = np.unique([*np.linspace(0, k - 1, 8).astype(int), *held])
        labels = np.arange(k) if k <= FULL else spread
        t = np.repeat((labels[:, None] == np.arange(k)).astype(float), k + 6 if k <= FULL else 6, 0)
    x, some = inputs(kind, binary, len(t), k, rng), np.linspace(0, len(t) - 1, 4).astype(int)
    for m in (1, 2):
        # The first rows of several labels tell whether to go on: one label may be left out.
        if not np.nan_to_num(call.units(x[some], t[some], m), posinf=0.0, neginf=0.0).any():
            continue
        u, label = call.units(x, t, m), t.argmax(-1)
        for y in np.unique(label[~np.isfinite(u)]) if not binary and not call.soft else ():
            # A label whose rows are all nan, alone, is left out: 0 divided by 0.
            of = label == y
            if not np.isfinite(u[of]).any() and call.ask(x[of][:m], t[of][:m]) is not None:
                u[of] = 0.0
        if np.isfinite(u).all() and np.ptp(u) > 1e-9 * np.abs(u).max():
            return Data(call, kind, binary, m, x, t, u)
    return None


def datasets(call: Call) -> Iterator[Data]:
    """What a call yields for each kind of input, as one choice of several or as yes and no."""
    flat, many = call.k == 1, call.k > FULL
    families = {"signs": (True,), "labels": (True,), "rows": (False, True)}.get(call.form, (False,))
    for binary in (True,) if flat else families:
        # Too many numbers to solve for: fewer classes tell.
        if (call.soft and (flat or many)) or (binary and call.k > 64) or (flat and call.form == "labels"):
            continue
        for kind in KINDS[:2] if binary else KINDS:
            if found := explore(call, kind, binary):
                yield found


# -------------------------------------------------------------------------------------------------------- fits


@dataclass(frozen=True)
class Fit:
    """A reading with the numbers that predict single rows; A is (1, K, K), or (K, 2, 2) for K binary problems.

    Rows of A that were not asked for are nan.
    """

    bend: Bend
    common: Array
    matrix: Array
    error: float


def solve(reading: Reading, d: Data, bend: Bend, common: Names, coarse: bool = False) -> Fit:
    """The best A and common terms for a given bend, by least squares; if `coarse`, A is a factor, and smoothed only
    where that halves the error.
    """
    n, cost, log_p, form = len(d.x), reading.costs(d.x, bend), reading.log_p(d.x, bend), d.call.form
    t = laws.TARGETS[form](FORMS[form](d.t), bend) if form in laws.TARGETS else d.t
    sides, k = reading.sides(t), cost.shape[-1]
    asked = np.flatnonzero(sides.any((0, 1)))
    whole = not coarse and not d.soft
    if whole and k <= FULL:
        columns = np.einsum("npy,npc->npyc", sides, cost)
    elif whole:
        columns = np.stack([sides * cost, sides * cost.mean(-1, keepdims=True)], -1)[:, 0, asked]
    else:  # one weight, and what is spread over all classes
        columns = np.stack([(sides * cost).sum((1, 2)), cost.mean(-1).sum(-1)], -1)
        if coarse and np.isfinite(columns).all():
            errors = [np.linalg.norm(c @ np.linalg.lstsq(c, d.u)[0] - d.u) for c in (columns[:, :1], columns)]
            columns = columns if 2 * errors[1] < errors[0] else columns[:, :1]
    added = [laws.COMMON[name](d.x, log_p) for name in common]
    added += [v.sum((1, 2)) for v in laws.divergence_terms(sides, log_p)] if d.soft else []
    columns = np.column_stack([columns.reshape(n, -1), *added])
    if not np.isfinite(columns).all():
        return Fit(bend, np.zeros(len(added)), np.zeros((1, k, k)), np.inf)
    scale = np.linalg.norm(columns, axis=0)
    scale[scale == 0] = 1
    found, *_ = np.linalg.lstsq(columns / scale, d.u, rcond=None)
    error = float(np.abs(columns / scale @ found - d.u).max() / np.abs(d.u).max())
    body, rest = np.split(found / scale, [len(scale) - len(added)])
    if not whole:
        matrix = np.tile(body[0] * np.eye(k) + body[1:].sum() / k, (cost.shape[1], 1, 1))
    elif k <= FULL:
        matrix = body.reshape(-1, k, k)
    else:
        matrix, (own, spread) = np.full((1, k, k), np.nan), body.reshape(-1, 2).T
        matrix[0, asked] = spread[:, None] / k
        matrix[0, asked, asked] += own
    return Fit(bend, rest, matrix, error)


def bent(reading: Reading, d: Data, names: Names, common: Names) -> Fit:
    """The best fit over one or two of the bends, from a grid and a search around its best point."""
    bounds = np.log([laws.RANGES[n] for n in names])

    def at(logs: Any) -> Fit:
        return solve(reading, d, Bend(**dict(zip(names, map(float, np.exp(logs)), strict=True))), common)

    points = 18 if len(names) == 1 else 8
    grid = list(itertools.product(*(np.linspace(a, b, points) for a, b in bounds)))
    start, least = min(((p, at(p)) for p in grid), key=lambda found: found[1].error)
    if least.error > 0.1:  # nothing is near
        return least
    if len(names) == 1:
        step = float(np.diff(bounds[0])[0]) / (points - 1)
        search = {"bounds": (start[0] - step, start[0] + step), "options": {"xatol": 1e-11}}
        return at([optimize.minimize_scalar(lambda v: at([v]).error, method="bounded", **search).x])
    close = {"xatol": 1e-10, "fatol": 1e-12, "maxiter": 200}
    return at(optimize.minimize(lambda v: at(v).error, start, method="Nelder-Mead", options=close).x)


def interpret(a: Array, binary: bool, tolerance: float) -> dict[str, Any] | None:
    """What A says of a law: weights and where they act, smoothing, labels left out. None where it has no such form."""
    k, small, own = a.shape[-1], tolerance * np.nanmax(np.abs(a)), np.einsum("pkk->pk", a).copy()
    asked, eye = np.isfinite(own[0]), np.eye(a.shape[-1])
    out = asked & (np.abs(a).max((0, 2)) < small) & (not binary)
    kept = asked & ~out
    if not kept.any() or (binary and np.abs(own[:, 0]).min() < small):
        return None  # no label costs anything, or 0 costs nothing: a sum over the labels that hold, and no yes and no
    others = (eye == 0)[kept]
    off = a[:, kept][:, others]
    smooth = np.abs(off).max() >= (small / k if k > FULL else small)  # there spread over a row
    even = 3 * small if smooth else 1e-4 / tolerance * small
    plain = np.ptp(own[:, kept]) <= even and smooth * np.ptp(off) <= even
    own[:, out] = 0.0
    own = np.full(own.shape, own[:, kept].mean()) if plain else own
    if smooth and not plain and (k > FULL or not kept.all()):
        return None
    ratio = np.sqrt(a * a.swapaxes(1, 2)) / own[:, None]
    ways = {"columns": a / own[:, None], "rows": a / own[..., None], "ratio": ratio}
    for acts, share in ways.items() if smooth else {"rows": 0 * a}.items():
        # Of a label's mass (1 - s) + s / K stays with it, and s / K goes to each other class.
        q = float(share[:, kept][:, others].mean())
        s, c = k * q / (1 + (k - 1) * q), 1.0
        w = own / (1 - s + s / k)
        if acts == "ratio":  # they divide as well, and only their ratios are known
            c = float(w[0, 0])
            w = np.where(np.arange(k) == 0, 1.0, a[:, 0] / (c * s / k))
            w = w / w.min()
        scale = {"columns": w[:, None], "rows": w[..., None], "ratio": c * w[:, None] / w[..., None]}[acts]
        error = np.abs(scale * ((1 - s) * eye + s / k) - a)[:, kept].max() if smooth else 0.0
        if -0.5 < s < 0.6 and error < 6 * small:
            found = {"smoothing": s, "acts": "columns" if acts == "ratio" else acts}
            found |= {"left_out": {int(y): True for y in np.flatnonzero(out)}}
            found |= {"factor": c, "counts": w[0]} if acts == "ratio" else {}
            if plain:
                return found | {"factor": float(w[0, 0]), "weights": np.ones(w.shape if binary else k)}
            return found | {"weights": w if binary else w[0]}
    return None


def divergence(fit: Fit) -> dict[str, Any] | None:
    """The divergence that a fit to soft targets is, and its factor; nothing for cross-entropies, None for no such."""
    k = fit.matrix.shape[-1]
    seen = np.array([np.diag(fit.matrix[0]).mean(), *fit.common])
    for name, multiples in laws.DIVERGENCES.items():
        factor = float(seen @ multiples / np.dot(multiples, multiples))
        if np.abs(seen - factor * np.array(multiples)).max() < 1e-2 * abs(factor):
            if name == laws.CATEGORICAL:
                return {}
            even = np.abs(fit.matrix[0] - factor * multiples[0] * np.eye(k)).max() < 1e-2 * abs(factor)
            return {"factor": factor, "weights": np.ones(k), "family": name} if even else None
    return None


def fits(d: Data, level: int, dtype: str) -> Iterator[Law]:
    """The laws that predict every row of a data set at one level of complication."""
    (bends, common), call, tolerance = LEVELS[level], d.call, TOLERANCE[dtype]
    simple = "16" in dtype or call.form == "signs" or (d.binary and call.k > FULL)
    if level and (simple or not d.promising(bends, common)):
        return
    coarse = "16" in dtype and not d.soft
    for reading in laws.READINGS:
        pointless = (
            reading.kind != d.kind or (reading.family == BINARY) != d.binary,
            # A softmax of one column says nothing, nor does a little of a softmax in half precision.
            d.binary and "softmax" in reading.name and (coarse or call.k == 1),
            d.kind != "logits" and ({"temperature", "cap"} & {*bends} or "log Z squared" in common),
            level > (0 if reading.kind == "log-probabilities" else 6 if reading.rank else len(LEVELS)),
            reading.rank == 2 and (d.soft or (bends and bends != ("temperature",))),
            d.binary and common and common != ("constant",),
            d.soft and (common or bends not in ((), ("temperature",))),
        )
        if any(pointless):
            continue
        found = bent(reading, d, bends, common) if bends else solve(reading, d, Bend(), common, coarse)
        size, of_u = np.nanmax(np.abs(found.matrix)), np.abs(d.u).max()
        if d.soft:
            size = max(size, np.abs(found.common).max())
        # Coefficients that dwarf what they add up to fit anything.
        if found.error > tolerance or not 1e-4 * of_u < size < 1e3 * of_u:
            continue
        if not d.soft and (np.abs(found.common) <= 1e-9).any():
            continue
        with np.errstate(all="ignore"):
            numbers = divergence(found) if d.soft else {}
            if numbers == {}:
                numbers = interpret(found.matrix, d.binary, 1e-3 if d.soft or coarse else 50 * tolerance)
        if numbers is None:
            continue
        terms = dict(zip(common, found.common.tolist(), strict=True)) if not d.soft else {}
        law = Law(reading, found.bend, terms, **numbers, form=call.form, first=call.order)
        law.shifts = "shifted" in call.shape
        law.layout = "second" if call.shape.startswith("(N, K,") else "last"
        if np.isnan(law.weights).any():  # those of classes that were not asked
            d.measure(law)
        if reading.kind != "log-probabilities" or d.unnormalised(law):
            yield law
