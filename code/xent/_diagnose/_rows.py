"""The probe batches: shapes, label kinds and formats, and the loss of a single row measured through them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from xent.numerics import softmax

from ._call import Array, Caller
from ._models import FULL, LEVELS, Fit, of_z

Pair: TypeAlias = "tuple[Array, Array]"


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
# The relative error of a prediction that is right.
TOLERANCE = {"float64": 2e-6, "float32": 2e-5, "float16": 6e-3, "bfloat16": 5e-2}
KINDS = ("logits", "probabilities", "log-probabilities")
# Targets as they are passed: class indices, rows of floats, -1 and 1, logarithms.
FORMS: dict[str, Callable[[Array], Array]] = {
    "indices": lambda t: t.argmax(-1) if t.shape[-1] > 1 else t[:, 0].astype(np.int64),
    "rows": lambda t: t,
    "signs": lambda t: 2 * t - 1,
    "logarithms": lambda t: np.log(t),
    "labels": lambda t: t.argmax(-1),  # of a binary loss for each class, over the rows with a single 1
}


@dataclass(frozen=True)
class Call:
    """A loss with everything that a call needs besides rows and targets."""

    caller: Caller
    order: str
    shape: str
    form: str
    k: int

    def ask(
        self, x: Array, t: Array | None = None, given: Array | None = None, **options: Any
    ) -> Array | None:
        """The loss of rows x (n, K) with the targets t (n, K), or with `given` as they are passed."""
        targets = FORMS[self.form](np.asarray(t)) if given is None else given
        return self.laid(*SHAPES[self.shape](x, targets), **options)

    def laid(self, x: Array, t: Array, **options: Any) -> Array | None:
        """The loss of arrays that are laid out already."""
        x, t = np.ascontiguousarray(x), np.ascontiguousarray(t)
        return self.caller(x, t, **options) if self.order == "prediction" else self.caller(t, x, **options)

    def total(self, x: Array, t: Array | None = None, given: Array | None = None) -> float:
        seen = self.ask(x, t, given)
        return np.nan if seen is None else float(seen.sum())

    def unit(self, x: Array, t: Array, copies: int) -> float:
        """What so many copies of one row cost together: for a mean, the loss of the row itself."""
        return self.total(np.repeat(x[None], copies, 0), np.repeat(t[None], copies, 0))


def inputs(kind: str, binary: bool, n: int, k: int, rng: np.random.Generator) -> Array:
    """Rows of one kind, off zero so that logits are neither probabilities nor their logarithms."""
    z = rng.normal(0.4, 1.3, (n, k))
    if kind == "logits":
        return z
    p: Array = 0.05 + 0.9 / (1 + np.exp(-z)) if binary else 0.9 * softmax(z) + 0.1 / k
    return p if kind == "probabilities" else np.log(p)


@dataclass(frozen=True)
class Data:
    """Single rows, their targets and their unit losses, in so many copies."""

    call: Call
    kind: str
    binary: bool
    copies: int
    x: Array
    t: Array
    u: Array
    soft: bool = False

    def promising(self, level: int) -> bool:
        """Whether a complication can be behind rows of logits: a cost that grows no faster than its logit, as the
        logarithm of a sum of exponentials does, and that a shift of all logits leaves alone, unless log Z counts.
        """
        if self.kind != "logits" or self.soft:
            return True
        x, t = self.x[:2], self.t[:2]

        def at(rows: Array) -> Array:
            return np.array([self.call.unit(a, b, self.copies) for a, b in zip(rows, t, strict=True)])

        bends, common = LEVELS[level]
        if "cap" in bends:  # under a cap a cost stands still
            return not self.binary and np.allclose(at(1e4 * x), at(2e4 * x), 1e-4)
        if not of_z(common):
            if not self.binary and not np.allclose(at(x + 0.5), self.u[:2], 1e-4):
                return False
            a, b, c = (at(x * s) for s in (100.0, 200.0, 300.0))
            return not (np.abs(a - 2 * b + c) > 1e-2 * np.maximum(np.abs(c), np.abs(self.u[:2]))).any()
        return not self.binary

    @functools.cached_property
    def precision(self) -> str:
        """The format in which the loss sees its argument, from the smallest change that it answers to."""
        rng = np.random.default_rng(3)
        dtype = self.call.caller.result_dtype
        if dtype in ("float16", "bfloat16"):
            return dtype
        places = np.linspace(0, len(self.x) - 1, 16).astype(int)
        for name, step in (("float64", 1e-11), ("float32", 6e-6), ("float16", 8e-4)):
            seen = 0
            for x, t, u in zip(self.x[places], self.t[places], self.u[places], strict=True):
                moved = x * (1 + step * rng.choice([-1.0, 1.0], x.shape))
                if name == "float16":
                    # One entry alone, whose chance to cross a number of bfloat16 is an eighth.
                    moved = np.where(np.arange(len(x)) == np.abs(x).argmax(), moved, x)
                seen += self.call.unit(moved, t, self.copies) != u
                if seen > 6:
                    return name
        return "bfloat16"

    def unnormalised(self, fit: Fit) -> bool:
        """Whether a fit holds for rows that are no logarithms of probabilities, where the loss takes them."""
        x, t = self.x[:4] - 0.7, self.t[:4]
        seen = np.array([self.call.unit(a, b, self.copies) for a, b in zip(x, t, strict=True)])
        return not np.isfinite(seen).all() or np.allclose(seen, fit.rows(x, t), 1e-3)


def _targets(binary: bool, k: int, rng: np.random.Generator) -> Array:
    if binary:
        t = rng.integers(0, 2, (4 * k + 12, k)).astype(float)
        t[0], t[1] = 0, 1
        return t
    labels = np.arange(k) if k <= FULL else np.unique(np.linspace(0, k - 1, 8).astype(int))
    return np.repeat(np.eye(k)[labels], k + 6 if k <= FULL else 6, 0)


def explore(call: Call, kind: str, binary: bool, copies: tuple[int, ...], soft: bool = False) -> Data | None:
    """Measure single rows, or None where the loss refuses them or says nothing with them."""
    rng = np.random.default_rng(7)
    t = _targets(binary and call.form != "labels", call.k, rng)
    if soft:
        t = rng.dirichlet(np.full(call.k, 2.0), (call.k + 3) ** 2)
    x = inputs(kind, binary, len(t), call.k, rng)
    for m in copies:
        # The first rows of several labels tell whether to go on: one label may be left out.
        some = [call.unit(x[n], t[n], m) for n in np.linspace(0, len(x) - 1, 4).astype(int)]
        if not np.isfinite(some).any() or not np.any(np.nan_to_num(some)):
            continue
        u = np.array([call.unit(a, b, m) for a, b in zip(x, t, strict=True)])
        good = np.isfinite(u)
        if not binary and not soft:
            # A label whose rows are all nan, alone, is left out: 0 divided by 0.
            labels = t.argmax(-1)
            silent = [labels == y for y in np.unique(labels) if not good[labels == y].any()]
            lost = [labels[of][0] for of in silent if call.ask(x[of][:m], t[of][:m]) is not None]
            good |= np.isin(labels, lost)
            u = np.where(np.isin(labels, lost), 0.0, u)
        if good.all() and np.ptp(u) > 1e-9 * np.abs(u).max():
            return Data(call, kind, binary, m, x, t, u, soft)
    return None


def datasets(call: Call, copies: tuple[int, ...]) -> Iterator[Data]:
    """What a call yields for each kind of input, as one choice of several or as yes and no."""
    flat, soft = call.k == 1, call.form == "logarithms"
    families = {"signs": (True,), "labels": (True,), "indices": (False,)}.get(call.form, (False, True))
    if call.form == "labels" and flat:
        return
    for binary in (True,) if flat else families:
        if (soft and (binary or flat or call.k > FULL)) or (binary and call.k > 64):
            continue  # too many numbers to solve for: fewer classes tell
        for kind in KINDS[:2] if binary else KINDS:
            found = explore(call, kind, binary, copies, soft)
            if found is None and call.form == "rows" and not binary and call.k <= FULL:
                found = explore(call, kind, binary, copies, True)
            if found:
                yield found
