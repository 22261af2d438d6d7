"""The questions to a loss whose rows are understood: reduction, labels left out, clips, layouts, gradients."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ._call import Array, Caller, Loss, numbers_within, parameters, signature, to_numpy
from ._models import CATEGORICAL, KL, Bend, Fit, Meaning, fits, interpret, of_z, solve
from ._prediction import CLASSES, MEANS, ROWS, Law, Trial, of_your_batch
from ._report import NAT, UNITS, UNKNOWN, Diagnosis
from ._rows import FORMS, SHAPES, TOLERANCE, Data, explore, inputs

# Labels that no class has, and that somebody might have chosen for "does not count".
STRANGE = (
    -100, -1, 255, -2, -3, -10, -99, -255, -999, -1000, -9999, -32768, 254, 256, 999, 1000, 9999, 65535,
)  # fmt: skip
LENGTHS = ((5, 4, 2), (3, 5, 2), (2, 4, 5))
STEPS = 5


def _figures(weights: Array) -> tuple[float, ...]:
    return tuple(float(f"{w:.6g}") for w in weights)


@dataclass(frozen=True)
class Candidate:
    """A model that predicts all single rows of a data set."""

    data: Data
    fit: Fit
    meaning: Meaning
    level: int

    @property
    def cost(self) -> float:
        """How much it takes to explain the rows in this way: the least wins."""
        m, rank = self.meaning, self.fit.reading.rank + self.data.soft
        return rank + 2 * (m.smoothing != 0) + 2 * (not m.plain) + len(m.left_out)


class Questions:
    """A loss whose single rows a fit predicts, and what else calls tell."""

    def __init__(self, found: Candidate, forms: set[str], loss: Loss) -> None:
        data = self.data = found.data
        self.call, self.kind, self.binary, self.m = data.call, data.kind, data.binary, data.copies
        self.fit, self.meaning, self.level, self.loss = found.fit, found.meaning, found.level, loss
        self.k, self.precision, self.forms = data.call.k, data.precision, forms
        self.coarse, self.tolerance = "16" in self.precision, 5 * TOLERANCE[self.precision]
        self.notes: list[str] = []
        self.alternatives: list[str] = []
        self.evidence: dict[str, str] = {}
        self.row_weights = np.ones(2 if self.binary else self.k)
        self.apart = False  # common terms are averaged by themselves, over N
        self.like = ""
        self.by_k = self.two_sided = self.adds = False

    # ------------------------------------------------------------------------------ batches and predictions

    def close(self, seen: Any, want: Any) -> bool:
        """Whether both have one shape and agree, small values included."""
        a, b = np.asarray(seen, float), np.asarray(want, float)
        scale = self.tolerance * max(1.0, float(np.abs(b).max(initial=0.0)))
        return seen is not None and a.shape == b.shape and bool(np.all(np.abs(a - b) <= scale))

    def batch(self, n: int, seed: int, k: int | None = None) -> tuple[Array, Array]:
        """Rows and hard targets, no two sizes with one mixture of labels; nothing that is left out."""
        rng, k = np.random.default_rng(seed), k or self.k
        x = inputs(self.kind, self.binary, n, k, rng)
        if self.binary and self.call.form != "labels":
            return x, rng.integers(0, 2, (n, k)).astype(float)
        if self.data.soft:
            return x, rng.dirichlet(np.full(k, 2.0), n)
        return x, np.eye(k)[rng.choice(self.kept_labels(k), n)]

    def labels(self, k: int) -> list[int]:
        if self.binary or k != self.k:
            return list(range(k))
        return [int(y) for y in np.flatnonzero(np.isfinite(self.fit.matrix[:, 0]))]

    def kept_labels(self, k: int) -> list[int]:
        """The labels that were asked and are not left out."""
        return [y for y in self.labels(k) if y not in self.meaning.left_out]

    def weights_of(self, t: Array) -> Array:
        """The weight of each row in the divisor of a mean."""
        if self.binary:
            return self.row_weights[t[:, 0].astype(int)] if self.k == 1 else np.ones(len(t))
        return np.asarray(t @ self.row_weights) if len(self.row_weights) == t.shape[-1] else np.ones(len(t))

    def predict(self, x: Array, t: Array, fit: Fit | None = None) -> float:
        """What all rows cost together."""
        rows = self.costs(x, t, fit or self.fit)
        w = self.weights_of(t)
        return float(rows.sum() if self.like == "sum" else (w * rows).sum() / w.sum())

    def costs(self, x: Array, t: Array, fit: Fit) -> Array:
        """What each row costs, with the mean of the common terms where they are averaged by themselves."""
        rows = fit.rows(x, t)
        if not self.apart or self.like == "sum":
            return rows
        main = replace(fit, common={}).rows(x, t)
        return np.asarray(main + (rows - main).mean())

    # ------------------------------------------------------------------------------------------ reduction

    def reduction(self) -> bool:
        """Find how rows are put together; False if no sum or mean does it."""
        x, t = self.batch(8, 11)
        b, m, value = self.call, self.m, self.call.ask(x, t)
        self.shape: tuple[int, ...] = (0,) if value is None else value.shape
        units = np.array([b.unit(*row, m) for row in zip(x, t, strict=True)])
        n = int(np.argmax(np.abs(units)))
        sizes = [s for s in (2, 3, 5, 8) if s != m]
        ratios = np.array([b.unit(x[n], t[n], s) / units[n] for s in sizes])
        slack = 20 * self.tolerance
        if np.allclose(ratios, 1, slack):
            self.like = "mean"
        elif np.allclose(ratios, np.array(sizes) / m, slack):
            self.like = "sum"
            common = {c: v / m for c, v in self.fit.common.items()}
            self.fit = replace(self.fit, matrix=self.fit.matrix / m, common=common)
            self.meaning = replace(self.meaning, weights=self.meaning.weights / m)
        else:
            told = (f"{s} copies of a row cost {r:.4g} times one" for s, r in zip(sizes, ratios, strict=True))
            return self.not_reduced(", ".join(told))
        self.evidence["reduction"] = f"5 copies of a row cost {ratios[-2]:.4g} times one"
        batches = (self.batch(s, 20 + s) for s in (2, 3, 5, 8))
        right = all(self.close(b.total(*each), self.predict(*each)) for each in batches)
        if right and (self.like == "sum" or not self.meaning.left_out):
            return True
        if self.like == "mean" and (self.k == 1 or not self.binary):
            return self.weighted_mean()
        return self.not_reduced("a batch is no sum or mean of its rows")

    def not_reduced(self, why: str) -> bool:
        self.notes.append(f"the reduction is not explained: {why}")
        return False

    def weighted_mean(self) -> bool:
        """The weights of a mean that divides by their sum: the null space of sum_y w_y (l_y - L n_y)."""
        labels = [0, 1] if self.binary else self.labels(self.k)
        rng = np.random.default_rng(17)
        equations = []
        for _ in range(2 * len(labels) + 6):
            n = max(5, len(labels))
            x = inputs(self.kind, self.binary, n, self.k, rng)
            y = rng.choice(labels, n)
            t = y[:, None].astype(float) if self.binary else np.eye(self.k)[y]
            rows, total = self.costs(x, t, self.fit), self.call.total(x, t)
            # A label that is left out costs nothing by itself, and may count all the same.
            equations.append([(rows - total)[y == label].sum() for label in labels])
        found = np.array(equations)
        if not np.isfinite(found).all():
            return self.not_reduced("some batches give nan")
        _, size, right = np.linalg.svd(found)
        weights = right[-1] / right[-1][np.argmax(np.abs(right[-1]))]
        unsure = len(size) > 1 and size[-2] < 10 * max(size[-1], 1e-9 * size[0])
        if size[-1] > 100 * self.tolerance * size[0] or unsure:
            if self.fit.common and not self.apart:
                self.apart = True
                return self.weighted_mean()
            return self.not_reduced("a batch is no mean of its rows, nor one with a weight for each class")
        weights = np.where(weights < 1e-3, 0.0, weights)
        self.row_weights = np.zeros(2 if self.binary else self.k)
        self.row_weights[labels] = weights / weights[weights > 0].min()
        return True

    @property
    def kept_weights(self) -> Array:
        """The weights in the divisor of the labels that are not left out."""
        return self.row_weights if self.binary else np.asarray(self.row_weights[self.kept_labels(self.k)])

    # ----------------------------------------------------------------------------------- factor and divisor

    @functools.cached_property
    def whole(self) -> Fit:
        """The fit with the rows of the classes that were not asked, where all have one factor."""
        if self.binary or np.isfinite(self.fit.matrix).all() or not self.meaning.plain:
            return self.fit
        c, s, k = self.meaning.kept[0], self.meaning.smoothing, self.k
        return replace(self.fit, matrix=c * (1 - s) * np.eye(k) + c * s / k)

    @functools.cached_property
    def second(self) -> tuple[int, Fit, Meaning] | None:
        """The same model at another number of classes."""
        scale = self.m if self.like == "sum" else 1
        for k in (5, 4, 3, 2) if self.k > 1 else ():
            data = explore(replace(self.call, k=k), self.kind, self.binary, (self.m,), self.data.soft)
            if data is None or k == self.k:
                continue
            u, tolerance = data.u / scale, TOLERANCE[self.precision]
            if self.data.soft:
                fit = solve(self.fit.reading, data.x, data.t, u, Bend(), ("t log t",))
                return k, fit, Meaning(weights=np.diag(fit.matrix))
            for fit in fits(self.kind, self.binary, data.x, data.t, u, self.level, tolerance):
                meaning = interpret(fit.matrix, fit.reading.family, 0.2 if self.coarse else 1e-3)
                if fit.reading == self.fit.reading and meaning is not None:
                    return k, fit, meaning
        return None

    def scale(self) -> dict[str, Any]:
        """Factor, sign, unit, divisor, smoothing and weights."""
        near = 0.03 if self.coarse else 3e-4
        other, meaning, binary = self.second, self.meaning, self.binary
        # What is compared between numbers of classes.
        spread = meaning.weights[:, 0] if binary else meaning.kept
        self.two_sided = bool(
            binary and np.ptp(meaning.weights, 0).max() > near * np.abs(meaning.weights).max()
        )
        even = meaning.plain or (binary and not np.ptp(spread) > near * np.abs(spread).max())
        c = float(spread.mean()) if even else float(spread[0])
        if self.data.soft:
            c = float(np.diag(self.fit.matrix).mean())
        by_k, alone = False, f"it takes {self.k} classes only"
        if other and self.like:
            k2, _, m2 = other
            c2 = float((m2.weights[:, 0] if binary else m2.kept)[0 if not m2.plain else slice(None)].mean())
            by_k = abs(c2 / c - self.k / k2) < near
            both = f"{c:.4g} for {self.k} classes and {c2:.4g} for {k2}"
            if not by_k and abs(c2 / c - 1) > near and (meaning.plain or meaning.acts != "ratio"):
                self.notes.append(f"the factor changes: {both}")
            self.evidence["denominator"] = f"the factor is {both}"
        elif self.k > 1 and binary and not even:
            by_k = True
            self.alternatives.append(f"divides by N, with weights {self.k} times smaller: {alone}")
        elif self.k > 1 and abs(abs(c) * self.k - 1) < near and even:
            by_k, constant = binary, f"the constant {self.k}"
            one, two = (constant, "K") if binary else ("K", constant)
            self.alternatives.append(f"divides by {one} rather than {two}: {alone}")
        sign = -1 if c < 0 else 1
        weights = sign * meaning.weights * (self.k if by_k else 1)
        level = abs(c) * (self.k if by_k else 1)
        self.by_k = by_k
        found: dict[str, Any] = {"classes": (self.k, *([other[0]] if other else []))}
        found["sign"] = sign
        if binary:
            level = self.two_sides(weights, near, level, found)
        elif not meaning.plain:
            by_row = np.where(np.isin(np.arange(len(weights)), meaning.left_out), 0.0, weights)
            level = np.nanmin(weights) if meaning.acts == "ratio" else 1.0
            found["class_weights"] = _figures(weights / level if meaning.acts == "ratio" else by_row)
        elif np.ptp(self.kept_weights) > 1e-3 * self.kept_weights.max():
            found["class_weights"] = _figures(self.row_weights)
        if "class_weights" in found and not binary and len(asked := self.labels(self.k)) < self.k:
            self.notes.append(f"weights were measured for the classes {', '.join(map(str, asked))} alone")
            known = enumerate(found["class_weights"])
            found["class_weights"] = tuple(w if y in asked else np.nan for y, w in known)
        weighted = np.ptp(self.kept_weights) > 1e-3 * self.kept_weights.max()
        found["denominator"] = (
            "nothing" if self.like == "sum" and not by_k else "K" if self.like == "sum"
            else "the sum of weights" if weighted else "N*K" if by_k else "N"
        )  # fmt: skip
        unit = next((u for u, size in UNITS.items() if abs(level / size - 1) < min(near, self.tolerance)), "")
        found["unit"] = unit or "nats"
        found["factor"] = 1.0 if unit else float(f"{level:.6g}")
        return found | self.smoothing(other)

    def two_sides(self, weights: Array, near: float, level: float, found: dict[str, Any]) -> float:
        """The weights of positives and of columns in a binary loss; and the factor that is left."""
        pos, neg = weights[:, 1], weights[:, 0]
        with np.errstate(all="ignore"):
            pos_weight = pos / neg
        if self.k == 1 and np.ptp(self.row_weights) > 1e-3:
            pos_weight = np.array([self.row_weights[1] / self.row_weights[0]])
        columns = np.ptp(neg) > near * neg.max()
        if np.abs(pos_weight - 1).max() > near:
            found["pos_weight"] = _figures(pos_weight)
            if abs(abs(pos + neg)[0] - 1) < near and not np.ptp(neg) > near:
                alpha = f"alpha {abs(pos[0]):.4g}: it weighs the positives, 1 - alpha the negatives"
                self.alternatives.append(alpha)
        if columns:
            found["class_weights"] = _figures(neg)
        return 1.0 if columns else level

    def smoothing(self, other: tuple[int, Fit, Meaning] | None) -> dict[str, Any]:
        """The mass taken from the label; over how many classes it goes shows with another K."""
        s, k = self.meaning.smoothing, self.k
        if abs(s) < 1e-9:
            return {"smoothing": 0.0}
        mass, over = s * (k - 1) / k, "both labels" if self.binary else "all K classes"
        if not self.binary and not other:
            self.alternatives.append(f"smoothing {mass:.3g} over the K - 1 others: it takes {k} classes only")
        elif not self.binary and other:
            k2, s2 = other[0], other[2].smoothing
            self.evidence["smoothing"] = f"fitted {s:.4g} with {k} classes, {s2:.4g} with {k2}"
            if abs(s2 * (k2 - 1) / k2 - mass) < 1e-3 <= abs(s2 - s):
                s, over = mass, "the K - 1 others"
            elif abs(s2 - s) >= 1e-3:
                over = f"all classes, at K = {k}"
        return {"smoothing": round(s, 4), "smoothing_over": over}

    # ----------------------------------------------------------------------------------------------- targets

    def targets(self) -> tuple[str, tuple[str, ...]]:
        """The family, and the forms of target on which the model predicts a batch."""
        b, family = self.call, self.fit.reading.family
        x, t = self.batch(6, 31)
        if b.form == "logarithms":
            shifted = b.laid(*SHAPES[b.shape](x, np.log(t) + 0.7))  # logits, if a shift changes nothing
            same = shifted is not None and self.close(shifted.sum(), self.predict(x, t))
            return KL, ("logits" if same else "log-probabilities",)
        if b.form == "labels":
            return family, ("indices",)
        own = {"indices": "0 or 1" if self.binary else "indices", "signs": "-1 or 1"}
        found = [own[b.form]] if b.form in own else []
        if b.form == "rows" and not self.binary and not self.data.soft:
            # A loss that takes the classes from the labels it sees refuses single rows of indices.
            t = np.eye(self.k)[np.resize(self.own_label(), 6)]
            seen = replace(b, form="indices").ask(x, t)
            if seen is not None and self.close(seen.sum(), self.predict(x, t)):
                found.append("indices")
        rows = b if b.form == "rows" else replace(b, form="rows")
        hard = rows.ask(x, t) if b.form != "signs" else None
        if hard is None:
            return family, tuple(found)
        if self.data.soft:
            return (KL if abs(self.fit.common["t log t"]) > 1e-6 else family), ("soft",)
        if not self.close(hard.sum(), self.predict(x, t)):
            self.notes.append("targets as rows return a number too, and it is not the same loss")
            return family, tuple(found)
        if not self.binary or b.form != "indices":
            found.append("0 or 1" if self.binary else "one-hot")
        soft: Array = np.asarray(np.random.default_rng(5).uniform(0.1, 0.9, t.shape))
        soft = soft if self.binary else soft / soft.sum(-1, keepdims=True)
        cost, want = rows.total(x, soft), self.predict(x, soft, self.whole)
        entropy = (soft * np.log(soft)).sum() * (1 / len(t) if self.like == "mean" else 1)
        c = 0.0 if self.binary else float(np.diag(self.fit.matrix)[0])
        largest = np.round(soft) if self.binary else np.eye(self.k)[soft.argmax(-1)]
        if self.close(cost, want):
            found.append("soft")
        elif c and self.close(cost, want + c * entropy):
            family = KL
            self.evidence["targets"] = "a soft row costs less by its own entropy"
            found.append("soft")
        elif self.close(cost, self.predict(x, largest)):
            what = "rounded to 0 and 1" if self.binary else "read by their largest entry alone"
            self.notes.append(f"soft targets are {what}")
        elif not np.isnan(cost) and np.isfinite(self.whole.matrix).all():
            self.notes.append("soft targets are not explained")
        return family, tuple(dict.fromkeys(found))

    # ------------------------------------------------------------------------------------------ left-out labels

    def ignored(self, law: Law, targets: Any) -> tuple[str, tuple[int, ...]]:
        """What labels that are no class do, and those that are left out, which the law is told."""
        if self.data.soft or self.call.form not in (("rows", "indices") if self.binary else ("indices",)):
            return NAT, ()
        out, answers = [], []
        for label in self.meaning.left_out:
            # In a divisor that holds weights a weight of zero and an ignored index are one.
            law.left_out[label] = bool(self.row_weights[label] < 1e-3)
            answers.append(f"{label}: left out" + self.divided(law.left_out[label]))
            out.append(int(label))
            self.alternatives.append(f"a class weight of 0 for {label}: as an ignored index it acts the same")
        own = [] if targets is None else np.unique(to_numpy(targets).astype(np.float64)).tolist()
        k = 2 if self.binary else self.k
        asked = [
            *STRANGE, *[int(v) for v in own if v % 1 == 0 and not 0 <= v < k][:50],
            *numbers_within(self.loss)[0][:200], k, k + 1, -k, -k - 1,
        ]  # fmt: skip
        said = {v: self.ask_label(law, v) for v in dict.fromkeys(asked) if not 0 <= v < k}
        left = {v: what for v, what in said.items() if what.startswith("left out")}
        law.left_out |= {v: not what.startswith("left out, divides by N") for v, what in left.items()}
        law.no_class = len(left) > 8 and any(v >= k for v in left)
        if law.no_class:
            law.left_out = {v: valid for v, valid in law.left_out.items() if v < k}
        law.common_counts = any("what is added counts" in what for what in left.values())
        if self.binary and not left:
            numbers = [v for v in own if v in said and said[v] == "read as a number"]
            return (f"{numbers[0]:g}: read as a number, of which no label is" if numbers else NAT), ()
        answers += [f"{label}: {said[label]}" for label in (-100, -1) if not self.binary or label in left]
        if len(left) > 8 and all(v in left for v in said if v < 0):
            answers.append(f"every label below 0: {left[-1]}")
        else:
            answers += [f"{v}: {what}" for v, what in left.items() if v not in (-100, -1)][:6]
        out += list(left) if len(left) <= 8 else [-1]
        for name in self.keywords:
            answer = self.ask_label(law, -7, **{name: -7})
            if answer.startswith("left out"):
                answers.append(f"{name}=: {answer}")
        self.evidence["ignored"] = "a row with the label is put beside one without"
        for label in out[: 0 if self.binary else 1]:
            self.nothing_counts(label)
        return "; ".join(answers), tuple(out)

    def divided(self, valid: bool) -> str:
        return f", divides by {'the valid ones' if valid else 'N'}" * (self.like == "mean")

    def ask_label(self, law: Law, label: int, **options: Any) -> str:
        """What a row with this label does beside an ordinary one."""
        x, t = self.batch(2, 41)
        given = FORMS[self.call.form](t)
        given[1] = label
        if self.call.shape not in ("(N, K)", "(N,)", "(N, 1), targets (N,)") and not self.binary:
            # Both stand in one sequence; where the labels are shifted, behind a position that has none.
            x, given = x[None], given[None]
            if "shifted" in self.call.shape:
                x, given = np.pad(x, ((0, 0), (0, 1), (0, 0))), np.pad(given, ((0, 0), (1, 0)))
            x = np.moveaxis(x, 2, 1) if "N, K" in self.call.shape else x
            if self.call.shape.endswith("H, W)") or self.call.shape.endswith("W, K)"):
                x, given = (x[..., None] if "N, K" in self.call.shape else x[:, :, None]), given[..., None]
        else:
            x, given = SHAPES[self.call.shape](x, given)
        seen = self.call.laid(x, given, **options)
        if seen is None:
            return "refused"
        if not np.isfinite(seen).all():
            return f"gives {float(seen.sum())}"

        def as_if(given: Array, out: dict[float, bool], **options: Any) -> bool:
            guess = replace(law, left_out=law.left_out | out, **options)
            return self.close(seen, guess.value(x, given, seen.ndim))

        for valid in (True, False)[: 2 if self.like == "mean" else 1]:
            if self.fit.common and as_if(given, {label: valid}, common_counts=True):
                return "left out" + self.divided(valid) + ", though what is added counts"
            if as_if(given, {label: valid}):
                return "left out" + self.divided(valid)
        if self.binary:
            return "read as a number" if as_if(given, {}) else "changes the loss, as no class does"
        for c in dict.fromkeys((label % self.k, *range(self.k))):
            if as_if(np.where(given == label, c, given), {}):
                return "counted as the last class" if c == self.k - 1 else f"counted as class {c}"
        return "changes the loss, as no class does"

    def nothing_counts(self, label: int) -> None:
        """A batch in which every label is left out, and one whose ignored row holds nan."""
        x, t = self.batch(4, 43)
        seen = self.call.ask(x, given=np.full(4, label))
        if seen is not None and self.shape == ():
            value = "nan" if np.isnan(seen).any() else f"{float(seen) + 0:.4g}"
            self.notes.append(f"{value} where every label is left out" + ": 0 / 0" * (value == "nan"))
        x[0] = np.nan
        seen = self.call.ask(x, given=np.array([label, *t.argmax(-1)[1:]]))
        if seen is not None and np.isnan(seen).any():
            self.notes.append("a nan logit reaches the loss from a row that is left out")

    # ------------------------------------------------------------------------------------------------- edges

    def own_cost(self, row: Array) -> float | None:
        """Minus log p of the label, as the loss has it, from a row that holds an extreme."""
        y = self.own_label()[0]
        if self.binary:
            x, t = np.full(self.k, row[0]), np.zeros(self.k)
            others = inputs(self.kind, True, 1, self.k, np.random.default_rng(1))[0]
            x[1:], t[0] = others[1:], 1.0
        else:
            x, t = row, np.eye(self.k)[y]
        u = self.call.unit(x, t, self.m) / (self.m if self.like == "sum" else 1)
        if np.isnan(u):
            return None if self.call.ask(x[None], t[None]) is None else np.nan
        with np.errstate(all="ignore"):
            if self.binary:
                keep = replace(self.fit, matrix=self.fit.matrix.copy())
                keep.matrix[0] = 0
                rest = float(keep.rows(np.where(np.arange(self.k) == 0, 0.3, x)[None], t[None])[0])
                own, other = self.fit.matrix[0, 1, 1], self.fit.matrix[0, 1, 0]
                rest += other * (max(row[0], 0) if self.kind == "logits" else 0)
            else:
                cost = -np.nan_to_num(self.fit.reading.log_p(x[None], self.fit.bend)[0], neginf=0.0)
                own = self.fit.matrix[y, y]
                rest = float(np.delete(self.fit.matrix[y] * cost, y).sum())
        return float((u - rest) / own)

    def extreme(self, value: float) -> Array:
        """A row whose label has an impossible entry, or another extreme one."""
        rest = {"logits": 0.0, "probabilities": (1 - value) / max(self.k - 1, 1)}
        row = np.full(self.k, rest.get(self.kind, -np.log(max(self.k - 1, 1))))
        row[self.own_label()[0]] = value
        return row

    def clip(self) -> tuple[str, float | None]:
        """What a certain and wrong answer costs, and the probability that it stands for."""
        added, reads = self.fit.bend.added, self.kind == "probabilities"
        if added:
            return f"adds {added:.2g} to the probability", added
        if self.fit.reading.rank > 1 or self.fit.common or not self.own_label():
            return NAT, None
        cost = self.own_cost(self.extreme(0.0 if reads else -1000.0 * max(self.fit.bend.temperature, 1.0)))
        if cost is None:
            return f"refuses the impossible event: {self.call.caller.said.split(':')[0]}", None
        if np.isnan(cost):
            return "nan", None
        if not 0 < cost < (np.inf if reads else 900) or np.isfinite(self.fit.bend.cap):
            inf = "no, an impossible event costs inf" if reads else "exp underflows, cost inf"
            return (UNKNOWN if cost <= 0 else inf if cost == np.inf else "no"), None
        epsilon = float(np.exp(-cost))
        if abs(cost - 100) < 0.01:
            return "the log at -100", epsilon
        self.evidence["clip"] = f"an impossible event costs {cost:.4g} = -log {epsilon:.1e}"
        if reads and epsilon > 1e-30:
            twice = self.own_cost(self.extreme(epsilon))
            self.adds = twice is not None and abs(twice - cost + np.log(2)) < 0.05
            if self.adds:
                return f"adds {epsilon:.1e} to the probability", epsilon
        return f"at {epsilon:.1e}", epsilon

    def own_label(self) -> list[int]:
        return [0] if self.binary else self.kept_labels(self.k)

    def edges(self) -> None:
        """Rows that a loss should survive, and the note if it does not."""
        if self.fit.reading.rank > 1 or self.data.soft or not self.own_label():
            return
        if self.kind == "logits":
            row, t = np.zeros(self.k), np.ones(self.k) if self.binary else np.eye(self.k)[self.own_label()[0]]
            row[self.own_label()[0]] = 1000.0
            value = self.call.unit(row, t, self.m)
            if not np.isfinite(value):
                self.notes.append(f"a logit of 1000 for the right class costs {value}: exp overflows")
        if self.binary:
            row = np.where(np.arange(self.k) == self.own_label()[0], 1.0, 0.5)
            if self.kind == "probabilities" and np.isnan(self.call.unit(row, np.ones(self.k), self.m)):
                self.notes.append("a probability of 1 for the label 1 gives nan: 0 * log(0)")
            return
        x, t = self.batch(3, 47)
        right, wrong = t[0].argmax(), (t[0].argmax() + 1) % self.k
        if self.kind != "logits":
            p = x if self.kind == "probabilities" else np.exp(x)
            p[0, right] += p[0, wrong]
            p[0, wrong] = 0.0
            x = p if self.kind == "probabilities" else np.log(p)
            said, forms = "a zero for a wrong class gives nan: 0 * log(0)", [self.call.form]
        elif self.k > 2:
            x[0, wrong] = -np.inf
            said = "a logit of -inf for a wrong class gives nan with {} targets: 0 * inf"
            forms = sorted(self.forms & {"indices", "rows"})
        else:
            return
        for form in forms:
            seen = replace(self.call, form=form).ask(x, t)
            if seen is not None and np.isnan(seen).any():
                self.notes.append(said.format("one-hot" if form == "rows" else form))

    def unequal_rows(self) -> str:
        """What is wrong where rows of probabilities do not sum to one, or nothing: a constant may be their sum."""
        said = "rows that sum to a half cost what no cross-entropy of them costs, nor of the same rows over their sums"
        return said if self.renormalises == UNKNOWN else ""

    @functools.cached_property
    def renormalises(self) -> str:
        """What becomes of probabilities that do not sum to one."""
        if self.kind != "probabilities" or self.binary or self.fit.bend.added:
            return NAT
        x, t = self.batch(5, 53)
        seen = self.call.ask(x / 2, t)
        if seen is None:
            return "refuses"
        if self.close(seen.sum(), self.predict(x / 2, t)):
            return "no"
        return "yes" if self.close(seen.sum(), self.predict(x, t)) else UNKNOWN

    # ---------------------------------------------------------------------------------------------- gradient

    def gradient(self, law: Law) -> str:
        """Whether the gradient is that of the value, by differences of what the law predicts."""
        caller = self.call.caller
        if self.renormalises in ("refuses", UNKNOWN):
            return NAT
        # A loss of TensorFlow takes other arrays too, and shows its gradient for its own alone.
        x, t = self.batch(4, 59)
        if caller.arrays == "numpy" and caller.returned == "tensorflow":
            caller = Caller(self.loss, "tensorflow", "float32", caller.names)
        if caller.arrays == "numpy" or replace(self.call, caller=caller).ask(x, t) is None:
            return NAT
        found = self.gradient_of(caller, x, t)
        if isinstance(found, str):
            return found
        gradient, upstream = found
        # Of many classes those of the labels, and some others.
        asked = np.unique([*t.argmax(-1), *np.linspace(0, x.shape[1] - 1, 16).astype(int)])
        laid = SHAPES[self.call.shape](x, FORMS[self.call.form](t))
        moves = (SHAPES[self.call.shape](np.eye(x.shape[1])[[k] * len(x)], t)[0] for k in asked)
        want = np.stack([law.slopes(*laid, upstream, move) for move in moves], 1)
        if not gradient.any() or not np.isfinite(gradient).all():
            return "not finite" if gradient.any() else "zero everywhere"
        # The largest entry, beside what rounding leaves of a difference.
        worst = np.abs(gradient[:, asked] - want).max() / np.abs(want).max()
        loose = {"float64": 1e-3, "float32": 3e-3}.get(self.precision, 0.1)
        if worst > loose:
            each = (
                upstream[:, asked]
                if upstream.ndim == 2 and upstream.shape[1] > 1
                else upstream.reshape(-1, 1)
            )
            lost = upstream.ndim and np.allclose(gradient[:, asked], want / each, 1e-3)
            why = f"it differs by {worst:.2g} of its largest entry"
            why = "its backward ignores the weight that each value is given" if lost else why
            return f"not that of the value: {why}"
        self.evidence["gradient"] = f"differences of the value agree to {max(worst, 1e-7):.1g}"
        return self.at_certainty(caller, x, t) or self.fading(caller, x, t)

    def gradient_of(self, caller: Caller, x: Array, t: Array) -> tuple[Array, Array] | str:
        """The gradient of rows, and the upstream weights of what the loss returns."""
        call, first = self.call, self.call.order == "prediction"
        laid = [caller.tensor(np.ascontiguousarray(a)) for a in SHAPES[call.shape](x, FORMS[call.form](t))]
        found = caller.gradient(laid if first else laid[::-1], first)
        if isinstance(found, str):
            return found
        gradient, upstream = found
        return (gradient[:, 0] if call.shape.endswith("shifted") else gradient).reshape(x.shape), upstream

    def at_certainty(self, caller: Caller, x: Array, t: Array) -> str:
        """Whether the gradient is lost where a sure answer is right (the others round to 0), and its loss is finite."""
        if self.kind == "log-probabilities" or self.data.soft or self.renormalises == "yes":
            return ""
        x = x + 400 * (2 * t - 1) if self.kind == "logits" else t if self.binary else np.where(t == 1, 1.0, x)
        found = self.gradient_of(caller, x, t)
        lost = not isinstance(found, str) and np.isnan(found[0]).any() and np.isfinite(self.call.total(x, t))
        return "that of the value, and nan for a sure and right answer" if lost else ""

    def fading(self, caller: Caller, x: Array, t: Array) -> str:
        """Whether a sure and wrong answer still has its gradient."""
        bend, whole = self.fit.bend, "that of the value"
        if self.fit.reading.rank > 1 or np.isfinite(bend.cap) or self.kind == "log-probabilities":
            return whole
        x, t = x.copy(), t.copy()
        if self.binary:
            t[0] = 1.0
        y = 0 if self.binary else int(t[0].argmax())
        weight = self.fit.matrix[0, 1, 1] if self.binary else self.fit.matrix[y, y]
        weight *= self.weights_of(t)[0] / self.weights_of(t).sum() if self.like == "mean" else 1.0
        probabilities = self.kind == "probabilities"
        near, far = ((1e-3,), (1e-6, 1e-9, 1e-14)) if probabilities else ((-9.0,), (-31.0, -80.0))
        for extreme in near if self.coarse else far:
            x[0, y] = extreme
            found = self.gradient_of(caller, x, t)
            if isinstance(found, str):
                continue
            share = -found[0][0, y] / (weight * found[1].reshape(-1)[0])
            share = round(share * (extreme if probabilities else bend.temperature), 6) or 0.0
            if not abs(share - 1) < 0.5:
                name = "a probability" if probabilities else "a logit"
                return f"{whole}, but {share:.2g} of what it should be at {name} of {extreme:g} for the label"
        return whole

    # ----------------------------------------------------------------------------------- layouts and sequences

    def layout(self, law: Law) -> str:
        """The class axis of a batch of sequences."""
        if self.binary:
            return "any"
        if self.call.shape != "(N, K)":
            self.notes.append(f"takes inputs of the shape {self.call.shape.split(',  ')[0]} only")
            return "second" if self.call.shape.startswith("(N, K,") else "last"
        rng = np.random.default_rng(11)
        batch, steps = 2, 4
        x = inputs(self.kind, False, batch * steps, self.k, rng)
        t = np.eye(self.k)[rng.choice(self.own_label(), batch * steps)]
        w = self.weights_of(t) if self.like == "mean" else np.ones(len(t))
        total = float((self.fit.rows(x, t) * w).sum())
        found = []
        for name in ("last", "second"):
            seen = self.call.laid(*self.positions(x, t, (batch, steps), name == "second"))
            if seen is None:
                continue
            every = self.close(seen.sum(), total / w.sum() if self.like == "mean" else total)
            first = not every and self.close(seen.sum(), total / batch)
            found.append(name if every or first else UNKNOWN)
            if first and self.like == "mean":
                law.over = "over the sequences"
                self.notes.append("3-D input: divides by the first axis alone")
        known = [name for name in found if name != UNKNOWN]
        if known == ["last", "second"]:
            return "any"
        return known[0] if len(known) == 1 else UNKNOWN if found else "2-D only"

    def sequences(self, law: Law, layout: str, pads: tuple[int, ...]) -> str:
        """What is averaged where the sequences of a batch have different lengths, which the law is told."""
        if self.binary or self.call.form != "indices" or layout not in ("last", "second", "any"):
            return UNKNOWN
        ways: list[tuple[str, int | None, str]] = [(f"label {p} left out", p, "") for p in pads[:1]]
        ways += [(f"{n}=", -1, n) for n in self.keywords] if len(self.keywords) < 6 else []
        powers = [
            f"each sequence's sum over its length to the power {a:.3g}" for a in np.linspace(0.05, 1.95, 39)
        ]
        for padding, pad, mask in [*ways, ("no label left out", None, "")]:
            batches = self.ragged(layout, pad, mask)
            for shifts, mean in itertools.product((False, True), [*MEANS, *powers] if batches else []):
                out = law.left_out if pad is None else law.left_out | {pad: True}
                guess = replace(law, over=mean, shifts=shifts, layout=layout, left_out=out)
                axes = 1 if "for each sequence" in mean else 2 if "each position" in mean else 0
                if all(v.ndim == axes and self.alike(v, guess.value(x, y, axes)) for x, y, v in batches):
                    law.over, law.shifts = mean, shifts
                    self.evidence["sequences"] = "three batches of ragged sequences are predicted"
                    mean = "over all positions" if pad is None and "valid" in mean else mean
                    how = "shifts the labels itself" if shifts else "compares position t with label t"
                    return f"{mean} ({padding}); {how}"
        return UNKNOWN

    def ragged(self, layout: str, pad: int | None, mask: str) -> list[tuple[Array, Array, Array]]:
        """Batches of sequences whose tails are left out, by their label or by a mask, and what they cost."""
        rng, found = np.random.default_rng(31), []
        labels = [y for y in self.own_label() if y != pad]
        for lengths in LENGTHS:
            n = len(lengths) * STEPS
            t = np.eye(self.k)[rng.choice(labels, n)]
            x, y = self.positions(
                inputs(self.kind, False, n, self.k, rng), t, (len(lengths), STEPS), layout == "second"
            )
            valid = (np.arange(STEPS) < np.array(lengths)[:, None]) | (pad is None)
            padded = np.where(valid, y, 0 if pad is None else pad)
            value = self.call.laid(x, y if mask else padded, **({mask: valid.astype(float)} if mask else {}))
            if value is None:
                return []
            found.append((x, padded, value))
        return found

    def alike(self, seen: Array, want: Array) -> bool:
        """Whether both agree beside their size, however small."""
        same = seen.shape == want.shape
        return same and bool(np.abs(seen - want).max() <= self.tolerance * np.abs(want).max())

    # ---------------------------------------------------------------------------------------------- keywords

    @functools.cached_property
    def keywords(self) -> list[str]:
        """The arguments beside the two arrays that take a value by name."""
        names = [p for p in parameters(self.loss) if p.name not in ("self", *self.call.caller.names)]
        if hasattr(self.loss, "call"):  # of Keras, whose other arguments stand in the caller's signature
            names = [p for p in signature(type(self.loss).__call__) if p.name != "self"]
        plain = [p.name for p in names if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        given = getattr(self.loss, "keywords", None) or {}
        found = [n for n in (plain if self.call.caller.names else plain[2:]) if n not in given]
        return list(dict.fromkeys([*found, *["sample_weight"] * any(p.kind is p.VAR_KEYWORD for p in names)]))

    def weights(self) -> str:
        """The keyword arguments that take weights, and the denominator under them."""
        found = [answer for name in self.keywords if (answer := self.weighted(name))]
        return "; ".join(found) if found else "no argument" if self.call.caller.answered else UNKNOWN

    def weighted(self, name: str) -> str | None:
        """What a keyword argument does with one weight for each row, class or element."""
        x, t = self.batch(5, 61)
        t = t if self.binary else np.eye(self.k)[np.resize(self.own_label(), 5)]
        rows, classes = np.array([1.0, 3.0, 0.5, 2.0, 1.7]), np.resize([1.0, 4.0, 2.5], self.k)
        plain, each = self.call.ask(x, t), self.fit.rows(x, t)[:, None]
        trials = [("row", w, w[:, None]) for w in (rows, 1.0 * (rows > 1))]
        if not self.binary:
            trials.append(("class", classes, (t @ classes)[:, None]))
        elif self.k > 1:
            trials.append(("element", np.outer(rows, classes), np.outer(rows, classes)))
        for per, given, factor in trials:
            seen = self.call.ask(x, t, **{name: given})
            if seen is None or not np.isfinite(seen).all():
                continue
            costs = self.by_column(x, t) if per == "element" else each
            weighted, size, total = (costs * factor).sum(), factor.mean(-1).sum(), float(seen.sum())
            if self.like == "sum" and self.close(total, weighted):
                return f"{name}, one per {per}: multiplies"
            over = {"the sum of weights": weighted / size, "N": weighted / 5, "nothing": weighted}
            for divisor, value in over.items():
                if self.like == "mean" and self.close(total, value):
                    base = "N*K" if divisor == "N" and self.binary and self.k > 1 else divisor
                    return f"{name}, one per {per}: divides by {base}"
            if plain is not None and self.close(total, plain.sum()) and len(np.unique(given)) > 2:
                return f"{name}: swallowed without effect"
        return None

    def by_column(self, x: Array, t: Array) -> Array:
        """What each binary problem costs, row by row."""
        alone = (np.where((np.arange(self.k) == j)[:, None, None], self.fit.matrix, 0) for j in range(self.k))
        return np.stack([replace(self.fit, matrix=matrix).rows(x, t) for matrix in alone], -1)

    # ------------------------------------------------------------------------------------------------ shapes

    def broadcasts(self) -> None:
        """One column of predictions and flat targets."""
        if not self.binary or self.call.form in ("signs", "labels"):
            return
        x = inputs(self.kind, True, 5, 1, np.random.default_rng(67))
        t = np.array([1.0, 0, 0, 1, 1])[:, None]
        scale = self.k if self.k > 1 and "K" in self.divisor else 1
        fit = replace(self.fit, matrix=self.fit.matrix[:1] * scale)
        mean, seen = fit.rows(x, t).mean(), self.call.laid(x, t[:, 0])
        if seen is not None and self.like == "mean":
            wide = fit.rows(np.repeat(x, 5, 0), np.tile(t, (5, 1))).mean()
            if self.close(seen.sum() / max(seen.size, 1), wide) and not self.close(wide, mean):
                self.notes.append("predictions (N, 1) with targets (N,) broadcast to N times N losses")

    # -------------------------------------------------------------------------------------------------- whole

    def verify(self, other: tuple[int, Fit, Meaning] | None) -> str:
        """Fresh batches of several sizes; what is wrong, or nothing."""
        if self.data.soft:
            nearly = 0.02 / self.k + 0.98 * np.eye(self.k)
            sure = nearly if self.kind == "probabilities" else np.log(nearly)
            batches = [(f"a batch of {n} soft rows is", *self.batch(n, 70 + n)) for n in (2, 4, 7)]
            batches.append(("soft rows that are nearly hard, and right, are", sure, nearly))
            for name, x, t in batches:
                if not self.close(self.call.total(x, t), self.predict(x, t)):
                    return f"{name} not predicted"
            return ""
        for n, seed in itertools.product((2, 4, 7, 16), (71, 73)):
            x, t = self.batch(n, seed + n)
            seen, want = self.call.total(x, t), self.predict(x, t)
            if not self.close(seen, want):
                return f"a batch of {n} rows costs {seen:.6g}, and its rows predict {want:.6g}"
        if self.kind == "logits" and not self.coarse:
            x, t = self.batch(4, 77)
            x = x + 6 * (2 * t - 1)  # sure rows, all right: some losses leave them out, or stop early
            seen, want = self.call.total(x, t), self.predict(x, t)
            if not self.close(seen, want):
                return f"4 rows that are right and sure cost {seen:.6g}, and not {want:.6g}"
        if other and not self.binary and self.like and not np.ptp(self.kept_weights) > 1e-3:
            k, fit, _ = other
            x, t = self.batch(6, 79, k)
            seen, want = self.call.total(x, t), fit.rows(x, t).sum() / (6 if self.like == "mean" else 1)
            if not self.meaning.left_out and not self.close(seen, want):
                return f"a batch of 6 rows and {k} classes costs {seen:.6g}, not {want:.6g}"
        return ""

    def law(self, found: dict[str, Any], family: str, epsilon: float | None) -> Law:
        """What has been read, for batches of any size."""
        fit, over = self.fit, found.get("smoothing_over", "")
        if epsilon and not fit.bend.added:
            reading, adds = fit.reading, self.adds

            def log_p(x: Array, bend: Bend) -> Array:
                found = reading.log_p(x, bend)
                return np.logaddexp(found, np.log(epsilon)) if adds else np.maximum(found, np.log(epsilon))

            fit = replace(fit, reading=replace(reading, log_p=log_p))
        diagonal = np.diag(fit.matrix).mean() if self.data.soft else self.meaning.kept.mean()
        even = self.binary or not np.ptp(self.kept_weights) > 1e-3 * self.kept_weights.max()
        weights = self.row_weights.copy()
        if not self.binary:
            weights[np.setdiff1d(np.arange(self.k), self.labels(self.k))] = np.nan
        return Law(
            fit=replace(fit, matrix=fit.matrix.copy()), kind=self.kind, binary=self.binary, form=self.call.form,
            mean="a sum" if self.like == "sum" else "over the valid tokens", weights=weights, by_k=self.by_k,
            factor=float(diagonal) * (self.k if self.by_k else 1), smoothing=found["smoothing"] or 0.0,
            over_others=over == "the K - 1 others", apart=self.apart, divergence=family == KL and not self.data.soft,
            plain=even and self.meaning.plain and not over.startswith("all classes, at")
            and not any("the factor changes" in n for n in self.notes),
            normalises=self.renormalises == "yes", weight_of=self.weight_of, first=self.call.order,
            layout="second" if self.call.shape.startswith("(N, K,") else "last", shifts="shifted" in self.call.shape,
        )  # fmt: skip

    def weight_of(self, y: int) -> float:
        """The weight of a label that was not among those asked."""
        x, t = inputs(self.kind, False, 2, self.k, np.random.default_rng(13)), np.zeros((2, self.k))
        known = self.kept_labels(self.k)[0]
        t[0, known] = t[1, y] = 1.0
        known_cost, own = (
            self.fit.matrix[known, known] * -self.fit.reading.log_p(x, self.fit.bend)[[0, 1], [known, y]]
        )
        if np.ptp(self.kept_weights) > 1e-3 * self.kept_weights.max():
            total = self.call.total(x, t)
            return float(self.row_weights[known] * (known_cost - total) / (total - own))
        scale = self.m if self.like == "sum" else 1
        return float(self.call.unit(x[1], t[1], self.m) / scale / own * self.fit.matrix[known, known])

    def positions(self, x: Array, t: Array, shape: tuple[int, ...], second: bool) -> tuple[Array, Array]:
        """Rows and their targets as a batch of so many positions, the classes on the last axis or the second."""
        given = FORMS[self.call.form](t)
        x, given = x.reshape(*shape, -1), given.reshape(*shape, *given.shape[1:])
        if second:
            x, given = (np.moveaxis(a, -1, 1) if a.ndim > len(shape) else a for a in (x, given))
        return np.ascontiguousarray(x), np.ascontiguousarray(given)

    def other_sizes(self, law: Law, out: tuple[int, ...]) -> Iterator[tuple[str, Array, Array]]:
        """Larger batches, by name: rows, classes, positions, sequences of which one is left out."""
        call, k, rng = self.call, CLASSES, np.random.default_rng(97)
        for n in (n for n in ROWS if n * self.k < 2_000_000):
            x, t = self.batch(n, 90 + n)
            yield f"{n:,} rows", *SHAPES[call.shape](x, FORMS[call.form](t))
        if law.plain and self.k > 1 and not (self.binary and self.two_sided):
            hard = not (self.binary or self.data.soft)
            x, t = (inputs(self.kind, False, 8, k, rng), np.empty(0)) if hard else self.batch(8, 98, k)
            for labels in (np.linspace(3, k - 1, 8).astype(int), rng.choice(self.own_label(), 8)):
                rows = np.eye(k)[labels] if hard else t
                pair = SHAPES[call.shape](x, FORMS[call.form](rows))
                if call.laid(*pair) is not None:  # it may refuse such labels, or so many classes
                    yield f"8 rows and {k:,} classes", *pair
                    break
        second = law.layout == "second"
        if call.shape in ("(N, K, T)", "(N, K, H, W)", "(N, H, W, K)"):  # several positions, not one of each
            shape = (2, 5, 7) if "H" in call.shape else (2, 35)
            yield f"positions {shape}", *self.positions(*self.batch(70, 99), shape, second)
        if law.over and not self.binary:
            x = inputs(self.kind, False, 900, self.k, rng)
            x, y = self.positions(x, np.eye(self.k)[rng.choice(self.own_label(), 900)], (3, 300), second)
            for pad in [v for v in out if not 0 <= v < self.k][:1]:
                y[1, 120:] = y[2] = pad
            yield "3 sequences of 300", x, y

    def at_other_sizes(
        self, law: Law, gradient: str, out: tuple[int, ...]
    ) -> tuple[str, str, tuple[str, ...]]:
        """What sizes were tried, the gradient's verdict, and what is wrong at one of them."""
        caller, began, tried = self.call.caller, time.process_time(), {"rows": "16 rows"}
        trial = Trial(law, caller, self.precision, (caller.tensor, caller.tensor))
        for name, x, t in self.other_sizes(law, out):
            if time.process_time() - began > 1.5:
                break
            if "sequences" in name:
                zero = replace(trial, law=replace(law, clamped=True))
                law.clamped = not trial.right(x, t) and zero.right(x, t)
            if "positions" in name and self.call.laid(x, t) is None:
                return "", gradient, (f"a batch of {name} is refused: {caller.said}",)
            if wrong := trial.wrong(x, t):
                return "one row", gradient, (f"a batch of {name} {wrong[0]}", *wrong[1:])
            if gradient.startswith("that of") and name == f"{ROWS[2]:,} rows" and caller.arrays == "torch":
                gradient = trial.whole_gradient(x, t, gradient)
            what = name.rpartition(" ")[2]
            tried[what] = name.removeprefix("8 rows and ").removeprefix("3 ")
        return "up to " + ", ".join(tried.values()), gradient, ()

    def report(self, own: tuple[Any, Any] | None) -> Diagnosis:
        """All answers together."""
        caller, reading = self.call.caller, self.fit.reading
        plain = f"single rows look like a {reading.family} that reads {reading.name}"
        plain += f", focal with gamma {self.fit.bend.gamma:.3g}" * (self.fit.bend.gamma > 0)
        if not self.reduction():
            return Diagnosis(arrays=caller.arrays, notes=(*self.notes, plain))
        if wrong := self.verify(self.second if self.k > 1 else None) or self.unequal_rows():
            return Diagnosis(arrays=caller.arrays, notes=(f"not explained: {wrong}", plain))
        found = self.scale()
        self.divisor = found["denominator"]
        family, forms = self.targets()
        clip, epsilon = self.clip()
        law = self.law(found, family, epsilon)
        ignored, out = self.ignored(law, own and own[1])
        self.edges()
        layout = self.layout(law)
        bend, common = self.fit.bend, self.fit.common
        self.broadcasts()
        rows, plainly = len(self.data.u), reading.kind == "logits" and reading.rank == 0
        how = f"log-softmax of it predicts {rows} rows" if plainly else f"{rows} rows are predicted"
        self.evidence["reads"] = f"{how} to {max(self.fit.error, 1e-15):.0e}"
        if caller.mutates:
            self.notes.append("changes its arguments in place")
        if caller.arrays == "numpy" and caller.result_dtype not in ("float64", ""):
            self.notes.append(f"returns {caller.result_dtype} for float64")
        if self.shape != ():
            what = {1: "one value per row"}.get(len(self.shape), "one value per row and class")
            self.notes.append(f"{what}, the mean over K" if found["denominator"] == "K" else what)
        if self.call.shape == "(N,)":
            self.notes.append("takes 1-D batches only")
        if set(forms) == {"indices"} and family == CATEGORICAL:
            self.evidence["targets"] = "a KL divergence is the same on indices"
        law.layout = layout
        said = self.sequences(law, layout, out or (-100,) * ("-100: gives nan" in ignored))
        if said.startswith(("over the sequences", "each sequence")):  # both labels were asked in one sequence
            ignored = ignored.replace(", divides by the valid ones", "")
        gradient = self.gradient(law)
        tried, gradient, problem = self.at_other_sizes(law, gradient, out)
        told: dict[str, Any] = {}
        if own and own[0] is not None:
            told, gradient, mine = of_your_batch(law, caller, self.precision, own, gradient)
            problem = (*mine, *problem[: 1 if mine else None])
        result = Diagnosis(
            family=family, first=self.call.order, targets=forms, reads=reading.name,
            reduction="none" if self.shape else "sum" if self.like == "sum" else "mean",
            ignore_index=out, epsilon=epsilon, clip=clip,
            temperature=round(bend.temperature, 5), gamma=round(bend.gamma, 4),
            softcap=0.0 if np.isinf(bend.cap) else float(f"{bend.cap:.5g}"),
            z_loss=round(sum(v for n, v in common.items() if of_z([n])), 8),
            entropy=round(common.get("entropy", 0.0), 6),
            constant=round(common.get("constant", 0.0), 6), axis="the classes",
            layout=layout, sequences=said, ignored=ignored, weights=self.weights(),
            renormalises=self.renormalises, precision=self.precision, gradient=gradient,
            arrays=caller.arrays, alternatives=tuple(dict.fromkeys(self.alternatives)),
            notes=tuple(dict.fromkeys(self.notes)), evidence=self.evidence, tried=tried,
            **found, **told,
        )  # fmt: skip
        if not problem:
            return result
        return Diagnosis(
            arrays=caller.arrays,
            notes=(*problem, f"smaller ones are read as: {result.sentence}"),
            tried=tried,
            **told,
        )
