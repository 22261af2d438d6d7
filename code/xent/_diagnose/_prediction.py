"""What a call of any size costs by the model that small calls gave, and which property a difference follows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from ._call import Array, Caller, to_numpy
from ._models import COMMON, FULL, Fit, label_costs
from ._rows import inputs

Pair: TypeAlias = "tuple[Array, Array]"
# What one position's loss is multiplied by where B sequences have these counts of labels that count, (B, T).
MEANS: dict[str, Callable[[Array], Any]] = {
    "over the valid tokens": lambda n: 1 / n.sum(),
    "a mean of sequence means": lambda n: 1 / (n.sum(1, keepdims=True) * len(n)),
    "over all positions, padding included": lambda n: 1 / n.size,
    "over the sequences": lambda n: 1 / len(n),
    "a sum": lambda n: 1.0,
    "one mean for each sequence": lambda n: 1 / n.sum(1, keepdims=True),
    "one sum for each sequence": lambda n: 1.0,
    "one value for each position": lambda n: 1.0,
}
# The relative error of a sum of many numbers, each of them right.
CLOSE = {"float64": 1e-6, "float32": 2e-4, "float16": 1e-2, "bfloat16": 3e-2}
ROWS, CLASSES = (64, 200, 1030, 8200), 1200


class Unpredictable(Exception):
    """Why the model says nothing of a call."""


def coefficient(mean: str, counts: Array, clamped: bool = False) -> Array:
    """What each position's loss is multiplied by, in the shape of `counts`."""
    n = counts.reshape(len(counts), -1)
    power = mean.rpartition("to the power ")[2]
    found = MEANS[mean](n) if mean in MEANS else 1 / (n.sum(1, keepdims=True) ** float(power) * len(n))
    found = np.where(np.isinf(found), 0.0, found) if clamped else found
    return np.broadcast_to(found, n.shape).reshape(counts.shape)


@dataclass
class Law:
    """A loss as it was read, to be applied to arrays as they are passed, of any size.

    `weights` are those of a mean's divisor, by label, and `left_out` maps a label to whether the divisor counts it.
    """

    fit: Fit
    kind: str
    binary: bool
    mean: str
    weights: Array
    factor: float = 1.0  # of every class, where all have one
    plain: bool = True
    smoothing: float = 0.0
    over_others: bool = False
    by_k: bool = False  # each row is divided by the number of classes
    apart: bool = False
    common_counts: bool = False
    divergence: bool = False  # less the target's own entropy
    clamped: bool = False  # nothing that counts costs 0, not 0 / 0
    over: str = ""  # the mean over sequences
    normalises: bool = False
    form: str = "indices"
    layout: str = "last"
    first: str = "prediction"
    shifts: bool = False
    left_out: dict[float, bool] = field(default_factory=dict)
    no_class: bool = False  # every label from K on is left out too
    weight_of: Callable[[int], float] | None = None

    @property
    def k(self) -> int:
        return len(self.fit.matrix)

    @property
    def uneven(self) -> bool:
        """Whether the divisor of a mean weighs labels."""
        return bool(np.nanmax(self.weights) - np.nanmin(self.weights) > 1e-6)

    def misread(self, x: Array) -> str:
        """Whether the rows of a batch are something else than what the loss reads, in words."""
        if self.binary:
            outside = self.kind == "probabilities" and not ((x >= 0) & (x <= 1)).all()
            return "; but its entries are no probabilities" * outside
        axis = 1 if x.ndim > 2 and self.layout == "second" else -1
        with np.errstate(all="ignore"):
            sums = (np.exp(x) if self.kind == "log-probabilities" else x).sum(axis)
        ones = bool(np.allclose(sums, 1, atol=2e-2) and (self.kind == "log-probabilities" or (x >= 0).all()))
        if self.kind == "logits":
            return "; but its rows look like probabilities, and it reads logits" * (
                ones and x.size > x.shape[axis]
            )
        return f"; but its rows are no {self.kind}" * (not ones and not self.normalises)

    # ------------------------------------------------------------------------------------------ single rows

    def rows(self, x: Array, t: Array) -> Pair:
        """What rows (n, K) cost with labels (n,) or rows of targets, and their common terms."""
        n, k = x.shape
        own, common = np.empty(x.shape if self.binary else n), np.zeros(n)
        fit = self.at(k, t)
        for s in (slice(a, a + max(1, 2_000_000 // k)) for a in range(0, n, max(1, 2_000_000 // k))):
            xs = x[s] / x[s].sum(-1, keepdims=True) if self.normalises else x[s]
            ts = t[s]
            cost = label_costs(fit.reading, xs, fit.bend)
            if self.binary:
                sides = np.stack([1 - ts, ts], -1)
                own[s] = np.einsum("nkv,kvs,nks->nk", sides, fit.matrix, cost)
            elif ts.ndim == 1:
                at = np.arange(len(ts))
                if fit.matrix.ndim == 2:
                    own[s] = (fit.matrix[ts] * cost).sum(-1)
                else:
                    own[s] = fit.matrix[ts] * cost[at, ts]
                    own[s] += self.spread(k) * cost.sum(-1) if self.smoothing else 0.0
            elif fit.matrix.ndim == 2:
                own[s] = (ts @ fit.matrix * cost).sum(-1)
            else:
                own[s] = (ts * fit.matrix * np.where(ts == 0, 0, cost)).sum(-1)
                own[s] += self.spread(k) * cost.sum(-1) * ts.sum(-1) if self.smoothing else 0.0
            if self.divergence and ts.ndim == 2:
                own[s] += (
                    self.factor / (k if self.by_k else 1) * (ts * np.log(np.where(ts > 0, ts, 1))).sum(-1)
                )
            for name, value in fit.common.items():
                log_p = fit.reading.log_p(xs, fit.bend) if name == "entropy" else xs
                common[s] += value * COMMON[name](xs, ts, log_p, fit.bend)
        return own, common[:, None] / k if self.binary else common

    def spread(self, k: int) -> float:
        """What smoothing gives to each class of k."""
        c = self.factor / (k if self.by_k else 1)
        return c * self.smoothing / (k - 1 if self.over_others else k)

    def at(self, k: int, t: Array) -> Fit:
        """The model for k classes: a matrix, or one number for each class and what smoothing spreads."""
        fit, known = self.fit, k == self.k
        if self.binary:
            even = bool(np.ptp(fit.matrix, 0).max() <= 1e-3 * np.abs(fit.matrix).max())
            if not known and not even:
                raise Unpredictable(f"its weights are known for {self.k} classes")
            scale = self.k / k if self.by_k else 1.0
            return fit if known else replace(fit, matrix=np.tile(fit.matrix[:1] * scale, (k, 1, 1)))
        if known and k <= FULL and np.isfinite(fit.matrix).all():
            return fit
        if self.plain:
            own = self.factor / (k if self.by_k else 1) * (1 - self.smoothing)
            scale = (
                self.k / k if self.by_k else 1.0
            )  # a KL divergence's own entropy is divided as the rest is
            common = {c: v * (scale if c == "t log t" else 1) for c, v in fit.common.items()}
            other = self.spread(k) if self.over_others else 0.0
            return replace(fit, matrix=np.full(k, own - other), common=common)
        if not known or self.smoothing:
            raise Unpredictable(f"its weights are known for {self.k} classes")
        weights = np.diag(fit.matrix).copy()
        there = np.unique(t) if t.ndim == 1 else np.flatnonzero(t.any(0))
        missing = [y for y in there if not np.isfinite(weights[y])]
        if missing and (self.weight_of is None or len(missing) > 3000):
            raise Unpredictable(f"the weights of {len(missing)} of its classes were not measured")
        return replace(fit, matrix=self.measured(weights, missing))

    def measured(self, weights: Array, missing: list[int]) -> Array:
        """The weights with those that a batch needs beside them."""
        if not missing:
            return weights
        ratio = self.uneven
        for y in missing:
            w = self.weight_of(int(y)) if self.weight_of else np.nan
            self.weights[y] = w if ratio else 1.0
            weights[y] = self.factor if ratio else w
            self.fit.matrix[y, y] = weights[y]
        return weights

    # ---------------------------------------------------------------------------------------- whole batches

    def class_axis(self, x: Array, t: Array) -> int:
        """The axis of the classes, of arrays as they are passed."""
        if self.binary or x.ndim < 3:
            return x.ndim - 1
        axes = (1, x.ndim - 1) if self.layout == "second" else (x.ndim - 1, 1)
        return next((a for a in axes if np.delete(x.shape, a).tolist() == [*t.shape]), axes[0])

    def positions(self, x: Array, t: Array) -> tuple[Array, Array, tuple[int, ...]]:
        """Rows (n, K), their targets, and the shape of the positions that they came from."""
        if x.ndim == 0:
            raise Unpredictable("a single number is no batch")
        if self.binary:
            return self.binary_positions(x, t)
        if x.ndim == 1:
            x, t = x[None], t.reshape(1, *t.shape[: t.ndim]) if t.ndim else t[None]
        if t.shape == x.shape and not (t.dtype.kind in "iub" and x.ndim > 2 and np.max(t, initial=0) > 1):
            axis = 1 if x.ndim > 2 and self.layout == "second" else -1
            x, t = np.moveaxis(x, axis, -1), np.moveaxis(t, axis, -1)
            t = np.exp(t) if self.form == "logarithms" else t.astype(float)
        else:
            t = t.reshape(t.shape[:-1]) if t.ndim == x.ndim and t.shape[-1] == 1 else t
            axes = (1, -1) if self.layout == "second" else (-1, 1)
            fits = [a for a in axes if np.delete(x.shape, a).tolist() == [*t.shape]]
            if not fits:
                raise Unpredictable(f"targets {t.shape} for logits {x.shape} leave the classes' axis open")
            axis = fits[0]
            x = np.moveaxis(x, axis, -1)
        if self.shifts and x.ndim > 2:
            x, t = x[:, :-1], t[:, 1:]
        shape = x.shape[:-1]
        return x.reshape(-1, x.shape[-1]), t.reshape(math.prod(shape), *t.shape[len(shape) :]), shape

    def binary_positions(self, x: Array, t: Array) -> tuple[Array, Array, tuple[int, ...]]:
        t = t.astype(float)
        if t.shape != x.shape:
            if t.size != x.size:
                if not (t.ndim == x.ndim - 1 and t.shape in (x.shape[:-1], (x.shape[0], *x.shape[2:]))):
                    raise Unpredictable(f"targets {t.shape} for logits {x.shape}")
                axis = -1 if t.shape == x.shape[:-1] else 1  # labels, as rows with a single 1
                x = np.moveaxis(x, axis, -1)
                t = (t[..., None] == np.arange(x.shape[-1])).astype(float)
            t = t.reshape(x.shape)
        k = x.shape[-1] if x.ndim > 1 else 1
        t = (t + 1) / 2 if self.form == "signs" else t
        return x.reshape(-1, k), t.reshape(-1, k), x.shape if x.ndim > 1 else (*x.shape, 1)

    def parts(self, x: Array, t: Array) -> tuple[Array, Array, Array]:
        """What each position's own loss and its common terms are multiplied by, and their sum."""
        x, t, shape = self.positions(np.asarray(x, float), np.asarray(t))
        labels = t if self.binary or t.ndim == 1 else None
        keep = np.ones(t.shape if self.binary else len(t), bool)
        counts: Array = np.ones(keep.shape)
        if labels is not None:
            out = np.isin(labels, list(self.left_out))
            keep &= ~out
            counts = np.where(
                np.isin(labels, [y for y, valid in self.left_out.items() if valid]), 0.0, counts
            )
            t = np.where(out, 0, t)
            if not self.binary:
                t = t.astype(np.int64)
                if len(wrong := np.unique(t[(t < 0) | (t >= x.shape[-1])])):
                    raise Unpredictable(f"the label {wrong[0]} is no class")
        own, common = self.rows(x, t)
        w: Array = keep.astype(float)
        if not self.binary and len(self.weights) == x.shape[-1] and self.uneven:
            by_label = self.weights[t] if t.ndim == 1 else t @ np.nan_to_num(self.weights)
            w, counts = w * by_label, counts * by_label
        elif self.binary and self.k == 1 and np.ptp(self.weights) > 0:
            w, counts = w * self.weights[t.astype(int)], counts * self.weights[t.astype(int)]
        if self.binary and self.by_k and self.mean != "a sum":
            own, common = own * x.shape[-1], common * x.shape[-1]  # a mean over all entries
        elif self.binary and self.mean == "over the valid tokens":
            counts = counts / x.shape[-1]
        common = np.broadcast_to(common, own.shape)
        own, w, counts, common = (np.asarray(a).reshape(shape) for a in (own, w, counts, common))
        mean = self.over if self.over and len(shape) > 1 and not self.binary else self.mean
        c = coefficient(mean, counts, self.clamped)
        beside = np.full(shape, 1 / own.size) if self.common_counts or self.apart else c * w
        beside = np.ones(shape) if self.apart and mean == "a sum" else beside
        own = np.where(w == 0, 0.0, own)
        return c * w, beside, c * w * own + beside * common

    def value(self, x: Array, t: Array, ndim: int) -> Array:
        """What the loss returns, with `ndim` axes."""
        try:
            each = self.parts(x, t)[2]
        except (ValueError, IndexError) as error:  # arrays that do not fit together
            raise Unpredictable(f"arrays of {x.shape} and {t.shape}: {error}") from error
        return np.asarray(each.sum(tuple(range(ndim, each.ndim))))

    def slopes(self, x: Array, t: Array, upstream: Array, direction: Array) -> Array:
        """The derivative of sum(upstream * value) along a direction, for each entry of the first axis."""
        ahead, behind = (self.parts(x + s * direction, t)[2] for s in (1e-5, -1e-5))
        each = (
            (ahead - behind) / 2e-5 * upstream.reshape(upstream.shape + (1,) * (ahead.ndim - upstream.ndim))
        )
        return np.asarray(each.reshape(len(each), -1).sum(-1))


@dataclass
class Trial:
    """A loss beside its law, on arrays of one kind: `x` and `t` as they are passed, and how copies are made of them."""

    law: Law
    caller: Caller
    dtype: str
    make: tuple[Callable[[Array], Any], Callable[[Array], Any]]
    gradients: bool = True

    def call(self, x: Array, t: Array) -> Array | None:
        pair = [self.make[0](x), self.make[1](t)]
        return self.caller.of(pair if self.law.first == "prediction" else pair[::-1])

    def near(self, seen: Array, want: Array, x: Array) -> bool:
        if seen.shape != want.shape:
            return False
        with np.errstate(all="ignore"):
            there = np.isfinite(want)
            sizes = np.abs(x[np.isfinite(x)])
            scale = np.abs(want[there]).max(initial=0.0) + 1e-3 * abs(self.law.factor) * sizes.max(
                initial=0.0
            )
            alike = np.array_equal(np.isnan(seen), np.isnan(want)) and np.array_equal(
                seen[~there], want[~there], True
            )
            return alike and bool(np.all(np.abs(seen - want)[there] <= CLOSE[self.dtype] * scale))

    def costs(self, x: Array, t: Array) -> Pair | None:
        """What the loss returns and what is predicted; None where it refuses the batch."""
        seen = self.call(x, t)
        return None if seen is None else (seen, self.law.value(x, t, seen.ndim))

    def right(self, x: Array, t: Array) -> bool:
        """Whether a batch is predicted."""
        try:
            both = self.costs(x, t)
        except Unpredictable:
            return False
        return both is not None and self.near(*both, x)

    def slope(self, x: Array, t: Array) -> bool:
        """Whether the gradient is that of the law, with random upstream weights, along random directions."""
        pair, rng = [self.make[0](x), self.make[1](t)], np.random.default_rng(19)
        first = self.law.first == "prediction"
        found = self.caller.gradient(pair if first else pair[::-1], first)
        if isinstance(found, str):
            return False
        gradient, upstream = found
        for _ in range(3):
            direction = rng.choice([-1.0, 1.0], x.shape) * (x if self.law.kind == "probabilities" else 1)
            want = self.law.slopes(x, t, upstream, direction)
            seen = (gradient.reshape(x.shape) * direction).reshape(len(x), -1).sum(-1)
            size = np.abs(gradient * direction).reshape(len(x), -1).sum(-1).max(initial=0.0)
            loose, there = max(1e-4, 10 * CLOSE[self.dtype]), np.isfinite(want)
            size = max(size, np.abs(want[there]).max(initial=0.0))
            if not np.all(np.abs(seen - want)[there] <= loose * size):
                return False
        return True

    def wrong(self, x: Array, t: Array) -> tuple[str, ...]:
        """How a batch differs from what is predicted, and what that follows; nothing where it does not."""
        try:
            both = self.costs(x, t)
        except Unpredictable:
            return ()
        if both is None or self.near(*both, x):
            return ()
        return (difference(*both), *self.follows(x, t, self.right))

    def whole_gradient(self, x: Array, t: Array, said: str) -> str:
        """What was said of the gradient, if it is so at this size."""
        if self.slope(x, t):
            return said
        follows = self.follows(x, t, self.slope) or ["no property that was tried decides it"]
        return f"not that of the value in a batch of {len(x):,}: {'; '.join(follows)}"

    # --------------------------------------------------------------------------------- what a difference follows

    def follows(self, x: Array, t: Array, good: Callable[[Array, Array], bool]) -> list[str]:
        """The properties of a batch which, changed alone, let it be predicted."""
        law, found = self.law, []
        axis = law.class_axis(x, t)
        fresh = inputs(law.kind, law.binary, x.size // x.shape[axis], x.shape[axis], np.random.default_rng(5))
        other = np.moveaxis(fresh.reshape(*np.moveaxis(x, axis, -1).shape), -1, axis)
        if good(other, t):
            return ["its values: others of this size are predicted"]
        out = np.isin(t, list(law.left_out))
        if out.any():
            dead = out.reshape(len(t), -1).all(1) if t.ndim > 1 else np.zeros(len(t), bool)
            alive = t.copy()
            if dead.any():
                alive[dead, 0] = 0
            if dead.any() and good(x, alive):
                found.append("sequences of which every label is left out: without them it is predicted")
            elif good(x, np.where(out, 0, t)):
                found.append("the labels that are left out: without them it is predicted")
        for name, of, cut in self.cuts(x, t, axis):
            n, small = (
                of,
                next((m for m in (8, 2, 1)[: 2 if name == "classes" else 3] if m < of and good(*cut(m))), 0),
            )
            while small and n - small > 1:
                m = (n + small) // 2
                small, n = (m, n) if good(*cut(m)) else (small, m)
            if small:
                found.append(f"the number of {name}: right at {small:,}, wrong at {n:,}")
        return found

    def cuts(self, x: Array, t: Array, axis: int) -> Iterator[tuple[str, int, Callable[[int], Pair]]]:
        """Ways to shorten a batch: its rows, the positions of its sequences, its classes."""
        same, k = t.shape == x.shape, x.shape[axis]
        yield "rows", len(x), lambda n: (x[:n], t[:n])
        if x.ndim == 3:
            steps = 3 - axis % 3 if not self.law.binary else 1
            at = steps if same else 1
            keep = [slice(None)] * 2
            yield "positions", x.shape[steps], lambda n: (
                np.take(x, range(n), steps), t[(*keep[:at], slice(n))] if at < t.ndim else t,
            )  # fmt: skip
        if not self.law.binary:
            out = np.isin(t, list(self.law.left_out))

            def fewer(n: int) -> Pair:
                cut = np.take(x, range(n), axis)
                if same:
                    rows = np.take(t, range(n), axis)
                    return cut, rows / np.maximum(rows.sum(axis, keepdims=True), 1e-9)
                return cut, np.where(out, t, t % n)

            yield "classes", k, fewer


def difference(seen: Array, want: Array) -> str:
    """What a batch costs beside what is predicted."""
    if seen.shape != want.shape:
        return f"returns the shape {seen.shape}, and {want.shape} is predicted"
    if seen.ndim:
        n = int(np.argmax(np.nan_to_num(np.abs(seen - want), nan=np.inf)))
        return f"has a value of {seen.ravel()[n]:.5g} where its row predicts {want.ravel()[n]:.5g}"
    times = float(want / seen) if seen else np.nan
    whole = np.isfinite(times) and abs(times - round(times)) < 1e-3 and round(times) > 1
    return f"costs {seen:.5g}, and its rows predict {want:.5g}" + (
        f", {times:.0f} times as much" if whole else ""
    )


def of_your_batch(
    law: Law, caller: Caller, precision: str, own: tuple[Any, Any], gradient: str
) -> tuple[dict[str, Any], str, tuple[str, ...]]:
    """What the reader's own call costs and what is predicted: the fields that say so, the gradient, what is wrong."""
    x, t = np.asarray(to_numpy(own[0]), float), to_numpy(own[1])
    kinds = {type(a).__module__.partition(".")[0] for a in own}
    found, here = caller, next((k for k in ("torch", "tensorflow") if k in kinds), caller.arrays)
    caller = Caller(
        caller.loss,
        here,
        caller.dtype,
        caller.names,
        getattr(own[0], "device", None) if here == "torch" else None,
    )
    dtype = getattr(own[0], "dtype", np.dtype(float))
    dtype = str(getattr(dtype, "name", str(dtype).removeprefix("torch.")))
    coarse = max(precision, dtype if dtype in CLOSE else "float64", key=lambda d: CLOSE[d])
    trial = Trial(law, caller, coarse, (caller.like(own[0]), caller.like(own[1])))
    name = f"your batch, {' x '.join(f'{n:,}' for n in x.shape)} in {dtype},"
    seen = trial.call(x, t)
    if seen is None and found.arrays != here:
        trial.caller, trial.make = found, (found.tensor, found.tensor)
        seen = trial.call(x, t)
    if seen is None:
        return {"batch": f"{name} is refused: {caller.said}"}, gradient, ()
    cost = float(seen.sum())
    try:
        want = law.value(x, t, seen.ndim)
    except Unpredictable as why:
        return {"batch": f"{name} costs {cost:.5g}; not predicted: {why}", "cost": cost}, gradient, ()
    told = {"cost": cost, "predicted": float(want.sum())}
    if not trial.near(seen, want, x):
        follows = trial.follows(x, t, trial.right) or ["no smaller batch that was tried is predicted"]
        return told, gradient, (f"{name} {difference(seen, want)}: not explained", *follows)
    if gradient.startswith("that of") and caller.arrays in ("torch", "tensorflow"):
        gradient = trial.whole_gradient(x, t, gradient)
    each = f"costs {cost:.5g}" if not seen.ndim else f"costs {cost:.5g} in all"
    return told | {"batch": f"{name} {each}, as predicted{law.misread(x)}"}, gradient, ()
