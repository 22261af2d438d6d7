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
SOFT = ("soft", "logarithms", "logits")


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
        return self.form in SOFT

    def lay(self, x: Array, t: Array) -> Pair:
        """Rows (n, K) and targets (n, K) as they are passed."""
        return SHAPES[self.shape](x, FORMS[self.form](np.asarray(t)))

    def laid(self, x: Array, t: Array, /, **options: Any) -> Array | None:
        x, t = np.ascontiguousarray(x), np.ascontiguousarray(t)
        return self.caller(*((x, t) if self.order == "prediction" else (t, x)), **options)

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
        if any(name.startswith("log Z") for name in common):
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


def explore(call: Call, kind: str, binary: bool, copies: tuple[int, ...]) -> Data | None:
    """Measure single rows, or None where the loss refuses them or says nothing with them."""
    rng, k = np.random.default_rng(7), call.k
    if call.soft:
        t = rng.dirichlet(np.full(k, 2.0), 40)
    elif binary and call.form != "labels":
        t = rng.integers(0, 2, (4 * k + 12, k)).astype(float)
        t[0], t[1] = 0, 1
    else:
        held = [v for v in numbers_within(call.caller.loss)[0] if 0 <= v < k][:6]  # one may be left out
        spread = np.unique([*np.linspace(0, k - 1, 8).astype(int), *held])
        labels = np.arange(k) if k <= FULL else spread
        t = np.repeat((labels[:, None] == np.arange(k)).astype(float), k + 6 if k <= FULL else 6, 0)
    x, some = inputs(kind, binary, len(t), k, rng), np.linspace(0, len(t) - 1, 4).astype(int)
    for m in copies:
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


def datasets(call: Call, copies: tuple[int, ...]) -> Iterator[Data]:
    """What a call yields for each kind of input, as one choice of several or as yes and no."""
    flat, many = call.k == 1, call.k > FULL
    families = {"signs": (True,), "labels": (True,), "rows": (False, True)}.get(call.form, (False,))
    for binary in (True,) if flat else families:
        # Too many numbers to solve for: fewer classes tell.
        if (call.soft and (flat or many)) or (binary and call.k > 64) or (flat and call.form == "labels"):
            continue
        for kind in KINDS[:2] if binary else KINDS:
            if found := explore(call, kind, binary, copies):
                yield found


# -------------------------------------------------------------------------------------------------------- fits


@dataclass(frozen=True)
class Fit:
    """A reading with the numbers that predict single rows; A is (K, K), or (K, 2, 2) for K binary problems.

    Rows of A that were not asked for are nan.
    """

    bend: Bend
    common: Array
    matrix: Array
    error: float


def solve(reading: Reading, d: Data, bend: Bend, common: Names, coarse: bool = False) -> Fit:
    """The best A and common terms for a given bend, by least squares; if `coarse`, A is a factor alone."""
    k, cost, log_p = d.call.k, reading.costs(d.x, bend), reading.log_p(d.x, bend)
    form, binary, t = d.call.form, reading.family == BINARY, d.t
    t = laws.TARGETS[form](FORMS[form](t), bend) if form in laws.TARGETS else t
    sides, asked = np.stack([1 - t, t], -1) if binary else t, np.flatnonzero(t.any(0))
    if coarse:
        columns = (sides * cost).reshape(len(d.x), -1).sum(-1, keepdims=True)
    elif binary:
        columns = np.einsum("nkv,nks->nkvs", sides, cost)
    elif d.soft:  # one weight, and what is spread over all classes
        columns = np.stack([(t * cost).sum(-1), cost.mean(-1)], -1)
    elif k <= FULL:
        columns = np.einsum("ny,nk->nyk", sides, cost)
    else:
        columns = np.stack([sides * cost, sides * cost.mean(-1, keepdims=True)], -1)[:, asked]
    added = [laws.COMMON[name](d.x, log_p, bend) for name in common]
    added += [v.sum(-1) for v in laws.divergence_terms(t, log_p)] if d.soft else []
    columns = np.column_stack([columns.reshape(len(d.x), -1), *added])
    if not np.isfinite(columns).all():
        return Fit(bend, np.zeros(len(added)), np.zeros((k, k)), np.inf)
    scale = np.linalg.norm(columns, axis=0)
    scale[scale == 0] = 1
    found, *_ = np.linalg.lstsq(columns / scale, d.u, rcond=None)
    error = float(np.abs(columns / scale @ found - d.u).max() / np.abs(d.u).max())
    body, rest = np.split(found / scale, [len(scale) - len(added)])
    if d.soft and not coarse:
        matrix = body[0] * np.eye(k) + body[1] / k
    elif coarse:
        matrix = body * (np.tile(np.eye(2), (k, 1, 1)) if binary else np.eye(k))
    elif binary or k <= FULL:
        matrix = body.reshape((k, 2, 2) if binary else (k, k))
    else:
        matrix = np.full((k, k), np.nan)
        own, spread = body.reshape(-1, 2).T
        matrix[asked] = spread[:, None] / k
        matrix[asked, asked] += own
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
    k, small, even = len(a), tolerance * np.nanmax(np.abs(a)), 1e-4 * np.nanmax(np.abs(a))
    if binary:  # by side: its own label, the other label
        own, other = a[:, [0, 1], [0, 1]], a[:, [1, 0], [0, 1]]
        if np.abs(own[:, 0]).min() < small:
            return None  # the label 0 costs nothing: a sum over the labels that hold, and no yes and no
        half = other / own / (1 + other / own) if np.abs(other).max() >= small else np.zeros(1)
        if not (np.isfinite(half).all() and np.ptp(half) < 10 * tolerance and abs(half.mean()) < 0.45):
            return None
        w = own / (1 - half.mean())
        plain = np.ptp(w) <= even
        scale = {"factor": float(w.mean()), "weights": np.ones((k, 2))} if plain else {"weights": w}
        return scale | {"smoothing": float(2 * half.mean())}
    asked = np.flatnonzero(np.isfinite(a).all(1))
    out = {int(y): True for y in asked if np.abs(a[y]).max() < small}
    labels = np.setdiff1d(asked, list(out))
    if not len(labels):
        return None
    own, off, s = a[labels, labels], np.array([np.delete(a[y], y) for y in labels]), 0.0
    rows = {"left_out": out}
    smooth = np.abs(off).max() >= (small / k if k > FULL else small)  # there one number, spread over a row
    if np.ptp(own) < (3 * small if smooth else even) and np.ptp(off) < 3 * small:
        if smooth:
            s = float(k * off.mean() / (own.mean() + (k - 1) * off.mean()))
        w = own.mean() / (1 - s + s / k)
        return rows | {"factor": float(w), "weights": np.ones(k), "smoothing": s} if -0.5 < s < 0.6 else None
    if not smooth:
        w = np.full(k, np.nan)
        w[labels], w[list(out)] = own, 0.0
        return rows | {"weights": w}
    if len(labels) < k or k > FULL:
        return None
    for acts, share in (("columns", a / own), ("rows", a / own[:, None]), ("ratio", np.sqrt(a * a.T) / own)):
        # Of a label's mass (1 - s) + s / K stays with it, and s / K goes to each other class.
        q = float(share[~np.eye(k, dtype=bool)].mean())
        s = k * q / (1 + (k - 1) * q)
        w, c = own / (1 - s + s / k), 1.0
        if acts == "ratio":  # they divide as well, and only their ratios are known
            c, w = float(w[0]), np.where(np.arange(k) == 0, 1.0, a[0] / (w[0] * s / k))
            w = w / w.min()
        scale = {"columns": w, "rows": w[:, None], "ratio": c * w / w[:, None]}[acts]
        made = scale * ((1 - s) * np.eye(k) + s / k)
        if -0.5 < s < 0.6 and np.abs(made - a).max() < 6 * small:
            found = {"weights": w, "smoothing": s, "acts": "rows" if acts == "rows" else "columns"}
            return found | ({"factor": c, "counts": w} if acts == "ratio" else {})
    return None


def divergence(fit: Fit) -> dict[str, Any] | None:
    """The divergence that a fit to soft targets is, and its factor; nothing for cross-entropies, None for no such."""
    k = len(fit.matrix)
    seen = np.array([np.diag(fit.matrix).mean(), *fit.common])
    for name, multiples in laws.DIVERGENCES.items():
        factor = float(seen @ multiples / np.dot(multiples, multiples))
        if np.abs(seen - factor * np.array(multiples)).max() < 1e-2 * abs(factor):
            if name == laws.CATEGORICAL:
                return {}
            even = np.abs(fit.matrix - factor * multiples[0] * np.eye(k)).max() < 1e-2 * abs(factor)
            return {"factor": factor, "weights": np.ones(k), "family": name} if even else None
    return None


def fits(d: Data, level: int, tolerance: float, coarse: bool) -> Iterator[Law]:
    """The laws that predict every row of a data set at one level of complication."""
    (bends, common), call = LEVELS[level], d.call
    of_z = any(name.startswith("log Z") for name in common)
    for reading in laws.READINGS:
        pointless = (
            reading.kind != d.kind or (reading.family == BINARY) != d.binary,
            # A softmax of one column says nothing, nor does a little of a softmax in half precision.
            d.binary and "softmax" in reading.name and (coarse or call.k == 1),
            d.kind != "logits" and ({"temperature", "cap"} & {*bends} or of_z),
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
