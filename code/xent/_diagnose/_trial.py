"""A loss beside its law: whether a call is predicted, and which property of a batch a difference follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from ._call import Array, Caller, dtype_name, library, to_numpy
from ._law import Law, Pair, Unpredictable
from ._report import NAT, UNKNOWN
from ._rows import inputs

Fields: TypeAlias = "dict[str, Any]"
THATS_IT = "that of the value"
# The relative error of a loss that is predicted: of a few numbers, or of no more than 1; and of a sum of many.
CLOSE = {"float64": (1e-5, 1e-6), "float32": (1e-4, 2e-4), "float16": (3e-2, 1e-2), "bfloat16": (0.25, 3e-2)}


@dataclass
class Trial:
    """A loss beside its law."""

    law: Law
    caller: Caller
    dtype: str

    def ordered(self, x: Array, t: Array) -> list[Array]:
        return [x, t] if self.law.first == "prediction" else [t, x]

    def call(self, x: Array, t: Array) -> Array | None:
        return self.caller(*self.ordered(x, t))

    def near(self, seen: Array | None, want: Array, x: Array) -> bool:
        if seen is None or seen.shape != want.shape:
            return False
        few, many = CLOSE[self.dtype]
        with np.errstate(all="ignore"):
            there, size = np.isfinite(want), abs(self.law.factor) * self.law.size
            largest = np.abs(want[there]).max(initial=0.0)
            scale = few * max(largest, min(1.0, size))
            if x.size >= 500:
                scale = many * (largest + 1e-3 * size * np.abs(x[np.isfinite(x)]).max(initial=0.0))
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

    # -------------------------------------------------------------------------------------------- gradients

    def gradient(self, x: Array, t: Array) -> Pair | str:
        """The gradient by the prediction, in its shape, and the upstream weights of what the loss returns."""
        found = self.caller.gradient(self.ordered(x, t), self.law.first == "prediction")
        return found if isinstance(found, str) else (found[0].reshape(x.shape), found[1])

    def slope_error(self, x: Array, t: Array, found: Pair | str) -> float:
        """How far a gradient is from the law's, row by row along random directions, beside the largest slope."""
        if isinstance(found, str):
            return np.inf
        (gradient, upstream), law, rng = found, self.law, np.random.default_rng(19)
        scale = x if law.reading.kind == "probabilities" else np.ones(x.shape)
        directions = [rng.choice([-1.0, 1.0], x.shape) * scale for _ in range(4)]
        if law.refuses:  # rows that do not sum to one: along these they do
            directions = [d - x * d.sum(law.class_axis(x, t), keepdims=True) for d in directions]
        want = np.stack([law.slopes(x, t, upstream, d) for d in directions])
        seen = np.stack([(gradient * d).reshape(len(x), -1).sum(-1) for d in directions])
        if law.axis or want.shape != seen.shape:  # rows share a softmax, or the batch is a single row
            want, seen = want.sum(-1, keepdims=True), seen.sum(-1, keepdims=True)
        there = np.isfinite(want)
        # Along a direction slopes may cancel.
        least = np.abs(gradient * directions[0]).reshape(len(x), -1).sum(-1).max(initial=1e-30)
        error = np.abs(seen - want)[there] / max(np.abs(want[there]).max(initial=0.0), least)
        return float(np.nan_to_num(error, nan=np.inf).max(initial=0.0))

    def slope(self, x: Array, t: Array) -> bool:
        """Whether the gradient is that of the law, with random upstream weights."""
        most = np.clip(10 * CLOSE[self.dtype][1], 1e-3 if len(x) < 9 else 1e-4, 0.1)
        return bool(self.slope_error(x, t, self.gradient(x, t)) <= most)

    def said_of_gradient(self, x: Array, t: Array, said: str) -> str:
        """What was said of the gradient, if it is so at this size."""
        if self.caller.arrays == "numpy":
            return said
        if isinstance(found := self.gradient(x, t), str):
            return found
        if said == UNKNOWN and not (found[0].any() and np.isfinite(found[0]).all()):
            return "not finite" if found[0].any() else "zero everywhere"
        if self.slope(x, t):
            return said if said.startswith(THATS_IT) else THATS_IT
        if len(x) > 8:
            follows = self.follows(x, t, self.slope) or ["no property that was tried decides it"]
            return f"not {THATS_IT} in a batch of {len(x):,}: {'; '.join(follows)}"
        return f"not {THATS_IT}: it differs by {self.slope_error(x, t, found):.2g} of its largest entry"

    # --------------------------------------------------------------------------------- what a difference follows

    def follows(self, x: Array, t: Array, good: Callable[[Array, Array], bool]) -> list[str]:
        """The properties of a batch which, changed alone, let it be predicted."""
        law, axis = self.law, self.law.class_axis(x, t)
        rows = np.moveaxis(x, axis, -1)
        k, rng = rows.shape[-1], np.random.default_rng(5)
        fresh = inputs(law.reading.kind, law.binary, rows[..., 0].size, k, rng)
        if good(np.moveaxis(fresh.reshape(rows.shape), -1, axis), t):
            return ["its values: others of this size are predicted"]
        found, out = [], np.isin(t, list(law.left_out))
        dead = out.reshape(len(t), -1).all(1).reshape(-1, *[1] * (t.ndim - 1)) & out & (t.ndim > 1)
        for what, gone in (("sequences of which every label is", dead), ("the labels that are", out)):
            if gone.any() and good(x, np.where(gone, 0, t)):
                found = [f"{what} left out: without them it is predicted"]
                break
        for a, large in enumerate(x.shape):

            def cut(n: int, a: int = a) -> Pair:
                """The first rows, positions or classes; the labels of others become some of these."""
                small = np.take(x, range(n), a)
                if t.shape != x.shape:
                    labels = np.where(out, t, t % n) if a == axis else np.take(t, range(n), a - (a > axis))
                    return small, labels
                targets = np.take(t, range(n), a)
                sums = a == axis and not law.binary and law.form not in ("logits", "logarithms")
                return small, targets / np.maximum(targets.sum(a, keepdims=True), 1e-9) if sums else targets

            name = "positions" if x.ndim == 3 else f"places on axis {a}"
            name = "classes" if a == axis > 0 or (a and x.ndim == 2) else name if a else "rows"
            sizes = (m for m in (8, 2, 1) if m < large and (name, m) != ("classes", 1))
            small = next((m for m in sizes if good(*cut(m))), 0)
            while small and large - small > 1:
                m = (large + small) // 2
                small, large = (m, large) if good(*cut(m)) else (small, m)
            if small:
                found.append(f"the number of {name}: right at {small:,}, wrong at {large:,}")
        return found

    # ------------------------------------------------------------------------------------ the reader's own batch

    def of_your_batch(self, own: tuple[Any, Any], gradient: str) -> tuple[Fields, str, tuple[str, ...]]:
        """What the reader's own call costs and what is predicted: the fields that say so, the gradient, what is
        wrong. It is called with copies of the reader's arrays, in their library, format and on their device.
        """
        x, t, law, caller = np.asarray(to_numpy(own[0]), float), to_numpy(own[1]), self.law, self.caller
        kinds, dtype = {library(a) for a in own}, dtype_name(own[0])
        here = next((k for k in ("torch", "tensorflow") if k in kinds), caller.arrays)
        coarse = max(self.dtype, dtype, key=lambda d: CLOSE.get(d, (0, 0))[1])
        given = tuple(self.ordered(*own))
        trial = Trial(law, Caller(caller.loss, here, caller.dtype, given), coarse)
        name = f"your batch, {' x '.join(f'{n:,}' for n in x.shape) or 'one number'} in {dtype},"
        seen, said = trial.call(x, t), trial.caller.said
        if seen is None and here != caller.arrays:
            trial = self
            seen = trial.call(x, t)
        if seen is None:
            return {}, gradient, (f"{name} is refused: {said}",)
        told: Fields = {"cost": float(seen.sum())}
        try:
            want = law.value(x, t, seen.ndim)
        except Unpredictable as why:
            return told, gradient, (f"{name} costs {told['cost']:.5g}; not predicted: {why}",)
        told["predicted"] = float(want.sum())
        if not trial.near(seen, want, x):
            follows = trial.follows(x, t, trial.right) or ["no smaller batch that was tried is predicted"]
            return (
                told,
                gradient,
                (f"{name} {difference(seen, want)}: not explained{misread(law, x, t)}", *follows),
            )
        if gradient.startswith((THATS_IT, NAT, UNKNOWN)) and dtype in CLOSE:
            gradient = trial.said_of_gradient(x, t, gradient)
        near = f" to {CLOSE[trial.dtype][x.size >= 500]:.0%}".replace("%", " %")
        said = f"{told['cost']:.5g}{' in all' * bool(seen.ndim)}, as predicted{near * (trial.dtype[-2:] == '16')}"
        told["batch"] = f"{name} costs {said}{misread(law, x, t)}"
        return told, gradient, ()


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
    kind, axis = law.reading.kind, law.class_axis(x, t)
    if law.binary:
        wrong = kind == "probabilities" and not ((x >= 0) & (x <= 1)).all()
        return "; but its entries are no probabilities" * wrong
    with np.errstate(all="ignore"):
        sums = (np.exp(x) if kind == "log-probabilities" else x).sum(axis)
    ones = bool(np.allclose(sums, 1, atol=2e-2) and (kind == "log-probabilities" or (x >= 0).all()))
    if kind == "logits":
        return "; but its rows look like probabilities, and it reads logits" * (ones and sums.size > 1)
    divided = law.normalises and bool(((x >= 0) & (x <= 1)).all())
    return f"; but its rows are no {kind}" * (not ones and not divided)
