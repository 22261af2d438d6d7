"""A loss beside its law: whether a call is predicted, and which property of a batch a difference follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from ._call import Array, Caller, to_numpy
from ._law import Law, Pair, Unpredictable
from ._rows import inputs

Make: TypeAlias = "tuple[Callable[[Array], Any], Callable[[Array], Any]]"
# The relative error of a loss that is predicted: of a few numbers, or of no more than 1; and of a sum of many.
CLOSE = {"float64": (1e-5, 1e-6), "float32": (1e-4, 2e-4), "float16": (3e-2, 1e-2), "bfloat16": (0.25, 3e-2)}


@dataclass
class Trial:
    """A loss beside its law, on arrays of one kind: `x` and `t` as they are passed, and how copies are made of them."""

    law: Law
    caller: Caller
    dtype: str
    make: Make | None = None

    def ordered(self, x: Any, t: Any) -> list[Any]:
        return [x, t] if self.law.first == "prediction" else [t, x]

    def call(self, x: Array, t: Array, **options: Any) -> Array | None:
        if self.make is None:
            return self.caller(*self.ordered(x, t), **options)
        return self.caller.of(self.ordered(self.make[0](x), self.make[1](t)))

    def near(self, seen: Array | None, want: Array, x: Array) -> bool:
        if seen is None or seen.shape != want.shape:
            return False
        few, many = CLOSE[self.dtype]
        with np.errstate(all="ignore"):
            there = np.isfinite(want)
            largest = np.abs(want[there]).max(initial=0.0)
            if x.size < 500:
                scale = few * max(largest, min(1.0, abs(self.law.factor) * self.law.size))
            else:
                sizes = np.abs(x[np.isfinite(x)]).max(initial=0.0)
                scale = many * (largest + 1e-3 * abs(self.law.factor) * self.law.size * sizes)
            same = np.array_equal(seen[~there], want[~there], True) and not np.isnan(seen[there]).any()
            return same and bool(np.all(np.abs(seen - want)[there] <= scale))

    def holds(self, seen: Array | None, x: Array, t: Array, **changes: Any) -> bool:
        """Whether the law, with some changes, predicts what was seen of a batch."""
        try:
            law = replace(self.law, **changes) if changes else self.law
            return seen is not None and self.near(seen, law.value(x, t, seen.ndim), x)
        except Unpredictable:
            return False

    def right(self, x: Array, t: Array) -> bool:
        return self.holds(self.call(x, t), x, t)

    def wrong(self, x: Array, t: Array) -> tuple[str, ...]:
        """How a batch differs from what is predicted, and what that follows; nothing where it does not."""
        seen = self.call(x, t)
        try:
            want = np.empty(0) if seen is None else self.law.value(x, t, seen.ndim)
        except Unpredictable:
            return ()
        if seen is None or self.near(seen, want, x):
            return ()
        return (difference(seen, want), *self.follows(x, t, self.right))

    # -------------------------------------------------------------------------------------------- gradients

    def gradient(self, x: Array, t: Array) -> Pair | str:
        """The gradient by the prediction, in its shape, and the upstream weights of what the loss returns."""
        make = self.make or (self.caller.tensor, self.caller.tensor)
        found = self.caller.gradient(self.ordered(make[0](x), make[1](t)), self.law.first == "prediction")
        return found if isinstance(found, str) else (found[0].reshape(x.shape), found[1])

    def slope_error(
        self, x: Array, t: Array, found: Pair, directions: list[Array], even: bool = False, least: float = 0.0
    ) -> float:
        """How far a gradient is from the law's, row by row along directions, beside the largest of these slopes."""
        gradient, upstream = found
        upstream = np.ones_like(upstream) if even else upstream
        want = np.stack([self.law.slopes(x, t, upstream, d) for d in directions])
        seen = np.stack([(gradient * d).reshape(len(x), -1).sum(-1) for d in directions])
        there, size = np.isfinite(want), np.abs(want[np.isfinite(want)]).max(initial=least)
        return float(np.nan_to_num(np.abs(seen - want)[there] / size, nan=np.inf).max(initial=0.0))

    def slope(self, x: Array, t: Array) -> bool:
        """Whether the gradient is that of the law, with random upstream weights, along random directions."""
        found, rng = self.gradient(x, t), np.random.default_rng(19)
        if isinstance(found, str):
            return False
        scale = x if self.law.reading.kind == "probabilities" else 1
        directions = [rng.choice([-1.0, 1.0], x.shape) * scale for _ in range(3)]
        # Along these slopes may cancel.
        least = float(np.abs(found[0] * directions[0]).reshape(len(x), -1).sum(-1).max(initial=0.0))
        return self.slope_error(x, t, found, directions, least=least) <= max(1e-4, 10 * CLOSE[self.dtype][1])

    def whole_gradient(self, x: Array, t: Array, said: str) -> str:
        """What was said of the gradient, if it is so at this size."""
        if self.slope(x, t):
            return said
        follows = self.follows(x, t, self.slope) or ["no property that was tried decides it"]
        return f"not that of the value in a batch of {len(x):,}: {'; '.join(follows)}"

    # --------------------------------------------------------------------------------- what a difference follows

    def follows(self, x: Array, t: Array, good: Callable[[Array, Array], bool]) -> list[str]:
        """The properties of a batch which, changed alone, let it be predicted."""
        law, found, axis = self.law, [], self.law.class_axis(x, t)
        k = x.shape[axis]
        fresh = inputs(law.reading.kind, law.binary, x.size // k, k, np.random.default_rng(5))
        if good(np.moveaxis(fresh.reshape(*np.moveaxis(x, axis, -1).shape), -1, axis), t):
            return ["its values: others of this size are predicted"]
        if (out := np.isin(t, list(law.left_out))).any():
            dead = out.reshape(len(t), -1).all(1) if t.ndim > 1 else np.zeros(len(t), bool)
            alive = t.copy()
            alive[dead, :1] = 0
            if dead.any() and good(x, alive):
                found.append("sequences of which every label is left out: without them it is predicted")
            elif good(x, np.where(out, 0, t)):
                found.append("the labels that are left out: without them it is predicted")
        for name, most, cut in self.cuts(x, t, axis):
            sizes = (m for m in (8, 2, 1) if m < most and (name, m) != ("classes", 1))
            small, large = next((m for m in sizes if good(*cut(m))), 0), most
            while small and large - small > 1:
                m = (large + small) // 2
                small, large = (m, large) if good(*cut(m)) else (small, m)
            if small:
                found.append(f"the number of {name}: right at {small:,}, wrong at {large:,}")
        return found

    def cuts(self, x: Array, t: Array, axis: int) -> Iterator[tuple[str, int, Callable[[int], Pair]]]:
        """Ways to shorten a batch: its rows, the positions of its sequences, its classes."""
        same = t.shape == x.shape
        yield "rows", len(x), lambda n: (x[:n], t[:n])
        if x.ndim == 3:
            steps = 1 if self.law.binary else 3 - axis
            at = steps if same else 1
            yield "positions", x.shape[steps], lambda n: (
                np.take(x, range(n), steps), np.take(t, range(n), at) if at < t.ndim else t
            )  # fmt: skip
        if self.law.binary:
            return
        out = np.isin(t, list(self.law.left_out))

        def fewer(n: int) -> Pair:
            cut = np.take(x, range(n), axis)
            if not same:
                return cut, np.where(out, t, t % n)
            rows = np.take(t, range(n), axis)
            return cut, rows / np.maximum(rows.sum(axis, keepdims=True), 1e-9)

        yield "classes", x.shape[axis], fewer


def difference(seen: Array, want: Array) -> str:
    """What a batch costs beside what is predicted."""
    if seen.shape != want.shape:
        return f"returns the shape {seen.shape}, and {want.shape} is predicted"
    if seen.ndim:
        n = int(np.argmax(np.nan_to_num(np.abs(seen - want), nan=np.inf)))
        return f"has a value of {seen.ravel()[n]:.5g} where its row predicts {want.ravel()[n]:.5g}"
    times = float(want / seen) if seen else np.nan
    whole = np.isfinite(times) and abs(times - round(times)) < 1e-3 and round(times) > 1
    return f"costs {seen:.5g}, and its rows predict {want:.5g}" + f", {times:.0f} times as much" * bool(whole)


def misread(law: Law, x: Array, t: Array) -> str:
    """Whether the rows of a batch are something else than what the loss reads, in words."""
    kind = law.reading.kind
    if law.binary:
        outside = kind == "probabilities" and not ((x >= 0) & (x <= 1)).all()
        return "; but its entries are no probabilities" * outside
    axis = law.class_axis(x, t)
    with np.errstate(all="ignore"):
        sums = (np.exp(x) if kind == "log-probabilities" else x).sum(axis)
    ones = bool(np.allclose(sums, 1, atol=2e-2) and (kind == "log-probabilities" or (x >= 0).all()))
    if kind == "logits":
        whole = ones and x.size > x.shape[axis]
        return "; but its rows look like probabilities, and it reads logits" * whole
    return f"; but its rows are no {kind}" * (not ones and not law.normalises)


def of_your_batch(
    trial: Trial, own: tuple[Any, Any], gradient: str
) -> tuple[dict[str, Any], str, tuple[str, ...]]:
    """What the reader's own call costs and what is predicted: the fields that say so, the gradient, what is wrong."""
    x, t, law, found = np.asarray(to_numpy(own[0]), float), to_numpy(own[1]), trial.law, trial.caller
    kinds = {type(a).__module__.partition(".")[0] for a in own}
    here = next((k for k in ("torch", "tensorflow") if k in kinds), found.arrays)
    device = getattr(own[0], "device", None) if here == "torch" else None
    caller = Caller(found.loss, here, found.dtype, found.names, device)
    dtype: Any = getattr(own[0], "dtype", np.dtype(float))
    dtype = str(getattr(dtype, "name", str(dtype).removeprefix("torch.")))
    coarse = max(trial.dtype, dtype if dtype in CLOSE else "float64", key=lambda d: CLOSE[d][1])
    trial = Trial(law, caller, coarse, (caller.like(own[0]), caller.like(own[1])))
    name = f"your batch, {' x '.join(f'{n:,}' for n in x.shape)} in {dtype},"
    seen = trial.call(x, t)
    if seen is None and found.arrays != here:
        trial.caller, trial.make = found, None
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
    all_of_it = " in all" * bool(seen.ndim)
    said = f"{name} costs {cost:.5g}{all_of_it}, as predicted{misread(law, x, t)}"
    return told | {"batch": said}, gradient, ()
