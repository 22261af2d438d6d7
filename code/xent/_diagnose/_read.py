"""Reading a loss whose single rows a law predicts: each question is a choice among laws, put to a few batches."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from ._call import Array, Caller, NoDiagnosis, numbers_within, to_numpy
from ._law import KL, MEANS, Law, Pair
from ._report import NAT, UNITS, UNKNOWN, Diagnosis
from ._rows import FULL, Data, inputs
from ._trial import THATS_IT, Trial, difference

Changes: TypeAlias = "dict[str, Any]"
Own: TypeAlias = "tuple[Any, Any] | None"
Seen: TypeAlias = "list[tuple[Array, Array, Array]]"
# Labels that no class has, and that somebody might have chosen for "does not count".
STRANGE = (
    -100, -1, 255, -2, -3, -10, -99, -255, -999, -1000, -9999, -32768, 254, 256, 999, 1000, 9999, 65535,
)  # fmt: skip
LENGTHS, STEPS = ((5, 4, 2), (3, 5, 2), (2, 4, 5)), 5  # of ragged sequences
ROWS, CLASSES = (64, 200, 1030, 8200), 1200  # of larger batches
OVER = "over the sequences"


class Reader(Trial):
    """A loss beside the law that grows with each answer, and what is said of it."""

    def __init__(self, data: Data, law: Law, dtype: str = "") -> None:
        super().__init__(replace(law), data.call.caller, dtype or data.precision())
        self.data, self.asking, self.k = data, data.call, data.call.k
        self.kind, self.binary, self.soft = data.kind, data.binary, data.soft
        self.coarse = "16" in self.dtype
        self.notes: list[str] = []
        self.alternatives: list[str] = []
        self.said: Changes = {"classes": (self.k,), "smoothing_over": ""}

    # -------------------------------------------------------------------------------------------- batches

    def rows(self, n: int, seed: int, k: int = 0) -> Pair:
        """Rows and targets, no two sizes with one mixture of labels; nothing that is left out."""
        rng, k = np.random.default_rng(seed), k or self.k
        x = inputs(self.kind, self.binary, n, k, rng)
        if self.binary and self.asking.form != "labels":
            return x, rng.integers(0, 2, (n, k)).astype(float)
        if self.soft:
            return x, rng.dirichlet(np.full(k, 2.0), n)
        labels = np.setdiff1d(range(k if self.law.plain else min(k, self.k)), list(self.law.left_out))
        return x, self.one_hot(rng.choice(labels, n), k)

    def batch(self, n: int, seed: int, k: int = 0) -> Pair:
        """The same as they are passed."""
        return self.asking.lay(*self.rows(n, seed, k))

    def one_hot(self, labels: Any, k: int = 0) -> Array:
        return np.asarray(np.asarray(labels)[:, None] == np.arange(k or self.k), float)

    def seen(self, pairs: Iterable[Pair]) -> Seen:
        """Batches with what they cost; none where one is refused."""
        found = [(x, t, self.call(x, t)) for x, t in pairs]
        good = [(x, t, v) for x, t, v in found if v is not None]
        return good if len(good) == len(found) else []

    def choose(self, seen: Seen, choices: Mapping[str, Changes]) -> str | None:
        """The first name whose change of the law lets it predict all batches; the change is made."""
        for name, change in choices.items():
            if seen and all(self.holds(v, x, t, **change) for x, t, v in seen):
                self.law = replace(self.law, **change)
                return name
        return None

    # ------------------------------------------------------------------------------------------ reduction

    def reduction(self) -> str:
        """Choose how rows are put together; or say what no choice predicts."""
        batches = [self.batch(n, 20 + seed + n) for n, seed in itertools.product((2, 3, 5, 8, 16), (0, 51))]
        if self.kind == "logits" and not self.coarse and not self.soft:
            x, t = self.rows(4, 77)  # sure rows, all right: some losses leave them out, or stop early
            batches.append(self.asking.lay(x + 6 * (2 * t - 1), t))
        if self.soft:
            nearly = 0.02 / self.k + 0.98 * np.eye(self.k)
            batches.append(self.asking.lay(np.log(nearly) if self.kind[0] == "l" else nearly, nearly))
        if not (seen := self.seen(batches)):
            return f"a batch is refused: {self.caller.said}"
        for change in self.reductions():
            if self.choose(seen, {"": change}) is not None:
                self.ndim, sums = seen[0][2].ndim, self.law.mean == "a sum"
                self.law.left_out = {y: sums or self.count(int(y)) < 1e-3 for y in self.law.left_out}
                return ""
        x, t, v = next(s for s in seen if not self.holds(s[2], *s[:2]))
        said = f"a batch of {len(x)} rows {difference(v, self.law.value(x, t, v.ndim))}"
        return f"{said}; a batch is no mean of its rows, nor one with a weight for each class"

    def reductions(self) -> Iterator[Changes]:
        """A mean, a sum of what was measured in so many copies, and means that divide by the weights of labels."""
        law, m = self.law, self.data.copies
        yield {}
        common = {k: v / m for k, v in law.common.items()}
        yield {"mean": "a sum", "factor": law.factor / m, "common": common, "counts": np.ones(1)}
        if law.acts == "rows" and not law.weighed and (self.k == 1 or not self.binary):
            counts = np.array([self.count(y) for y in range(2 if self.binary else self.k)])
            if np.isfinite(counts).all() and counts.max() > 0:
                counts /= counts[counts > 0].min()
                yield {"weights": law.weights * counts, "counts": counts}

    def count(self, y: int) -> float:
        """How much a label weighs in the divisor beside another, w0: two rows cost L = (w0 l0 + w l) / (w0 + w)."""
        law = replace(self.law, mean="a sum", counts=np.ones(1))
        other = 0 if self.binary else law.kept[0]
        if y == other:
            return 1.0
        x = np.repeat(inputs(self.kind, self.binary, 6, self.k, np.random.default_rng(17)), 2, 0)
        labels = np.tile([other, y], 6)
        x, t = self.asking.lay(x, 1.0 * labels[:, None] if self.binary else self.one_hot(labels))
        each = law.parts(x, t).reshape(12, -1).sum(-1)
        i = 2 * int(np.argmax(np.abs(each[::2] - each[1::2])))
        if (seen := self.call(x[i : i + 2], t[i : i + 2])) is None:
            return np.nan
        value = float(seen.sum())
        found = (each[i] - value) / (value - each[i + 1]) if value != each[i + 1] else np.inf
        return float(found) if abs(found) > 1e-3 else 0.0

    # ------------------------------------------------------------------------------- factor, divisor, weights

    def other_classes(self) -> str:
        """What a second number of classes tells: whether K divides, and what smoothing is spread over."""
        law, k, said, smooth = self.law, self.k, self.said, abs(self.law.smoothing) > 1e-9
        spread = smooth and not self.binary
        said["smoothing_over"] = "all K classes" if spread else "both labels" * smooth
        others: Changes = {"over_others": True, "smoothing": law.smoothing * (k - 1) / k}
        choices: dict[str, Changes] = {"": {}, "K": {"by_k": True, "factor": law.factor * k}}
        if spread:
            choices |= {f"{n} the K - 1 others".strip(): change | others for n, change in choices.items()}
        for k2 in (n for n in (5, 4, 3, 2) if 1 < k != n):
            seen = self.seen(self.batch(6, 79 + n, k2) for n in (0, 1))
            if not seen or not all(np.isfinite(v).all() for *_, v in seen):
                continue
            said["classes"], (x, t, value) = (k, k2), seen[0]
            found = self.choose(seen, choices)
            if found is None and law.plain:
                return f"a batch of 6 rows and {k2} classes {difference(value, law.value(x, t, value.ndim))}"
            if found is None:
                self.law = replace(law, fixed=f"it is known for {k} classes")
            elif "others" in found:
                said["smoothing_over"] = found.removeprefix("K ")
            return ""
        alone = f"it takes {k} classes only"
        a_kth = law.plain and abs(abs(law.factor * k * np.ravel(law.weights[law.kept])[0]) - 1) < 3e-4
        divides = self.binary and (a_kth or not law.plain)
        if k > 1 and (divides or a_kth):
            self.law = replace(law, **choices["K"]) if divides else law
            self.alternatives.append(f"a divisor of K is not told from a constant of {k}: {alone}")
        if spread:
            self.alternatives.append(f"smoothing {others['smoothing']:.3g} over the K - 1 others: {alone}")
        return ""

    def scale(self) -> Changes:
        """Factor, sign, unit, divisor and weights, in the words of the report."""
        law, near = self.law, 0.03 if self.coarse else 3e-4
        sides = law.factor * law.weights
        sign = -1 if np.ravel(sides[law.kept])[0] < 0 else 1
        sides, found, level, other = sides * sign, {"sign": sign}, 1.0, ""
        weights: dict[str, Array] = {}
        if self.binary:
            neg, pos = sides.T
            weights |= {"pos_weight": pos / neg} if np.abs(pos / neg - 1).max() > near else {}
            level = 1.0 if (apart := np.ptp(neg) > near * neg.max()) else float(neg[0])
            weights |= {"class_weights": neg} if apart else {}
        elif law.plain or law.weighed:
            each = (sides / law.counts)[law.kept]
            level, other = float(each[0]), "other " * bool(np.ptp(each) > near * np.abs(each).max())
        if not self.binary and not law.plain:
            sides[[int(y) for y in law.left_out]] = 0.0
            weights["class_weights"] = sides / level
        sums, by_k = law.mean == "a sum", law.by_k
        close = {"float64": 1e-5, "float32": 1e-4, "float16": 3e-3, "bfloat16": 1.5e-2}[self.dtype]
        unit = next((u for u, size in UNITS.items() if abs(level / size - 1) < close), "")
        law.factor *= UNITS[unit] / level if unit and not self.coarse else 1.0
        mean_over = f"the sum of {other}weights" if law.weighed else "N*K" if by_k else "N"
        return found | {name: tuple(float(f"{w:.6g}") for w in v) for name, v in weights.items()} | {
            "reduction": "none" if self.ndim else "sum" if sums else "mean",
            "denominator": ("K" if by_k else "nothing") if sums else mean_over,
            "unit": unit or "nats", "factor": 1.0 if unit else float(f"{level:{'.3g' if self.coarse else '.6g'}}"),
            "smoothing": round(law.smoothing, 2 if self.coarse else 4),
        }  # fmt: skip

    # ---------------------------------------------------------------------------------------------- targets

    def targets(self) -> tuple[str, tuple[str, ...]]:
        """The family, and the forms of target on which the law predicts a batch."""
        form, law, binary, call = self.asking.form, self.law, self.binary, self.asking
        family, rows = law.family or law.reading.family, replace(call, form="rows")
        if form == "labels" or self.soft:
            return family, ({"labels": "indices", "logarithms": "log-probabilities"}.get(form, form),)
        own = {"indices": "0 or 1" if binary else "indices", "signs": "-1 or 1"}
        found, (x, t) = [own[form]] if form in own else [], self.rows(6, 31)
        if form == "rows" and not binary:
            # A loss that takes the classes from the labels it sees refuses single rows of indices.
            pair = replace(call, form="indices").lay(x, self.one_hot(np.resize(law.kept, 6)))
            found += ["indices"] * self.right(*pair)
        if form == "signs" or (hard := rows.ask(x, t)) is None:
            return family, tuple(found)
        if not self.holds(hard, *rows.lay(x, t)):
            self.notes.append("targets as rows return a number too, and it is not the same loss")
            return family, tuple(found)
        found += ["0 or 1" if binary else "one-hot"] * (not binary or form != "indices")
        soft: Any = np.random.default_rng(5).uniform(0.1, 0.9, t.shape)
        seen = self.seen([rows.lay(x, soft if binary else soft / soft.sum(-1, keepdims=True))])
        # Where there are weights, they act on rows or on classes: on labels these are one.
        choices: dict[str, Changes] = {"": {}, "columns": {"acts": "columns"}}
        if (said := self.choose(seen, choices | ({} if binary else {KL: {"family": KL}}))) is not None:
            found, family = [*found, "soft"], KL if said == KL else family
        elif seen and np.isfinite(seen[0][2]).all():
            self.notes.append("soft targets are not explained")
        return family, tuple(dict.fromkeys(found))

    # ----------------------------------------------------------------------------------------- left-out labels

    def ignored(self, own: Any) -> tuple[str, tuple[int, ...]]:
        """What labels that are no class do, and those that are left out, which the law is told."""
        k, binary = 2 if self.binary else self.k, self.binary
        zeros = {int(y): valid for y, valid in self.law.left_out.items()}
        if self.soft or self.asking.form not in (("rows", "indices") if binary else ("indices",)):
            return NAT, ()
        same = "as an ignored index it acts the same"
        self.alternatives += [f"a class weight of 0 for {y}: {same}" for y in zeros]
        mine = [] if own is None else np.unique(to_numpy(own).astype(np.float64)).tolist()
        strange = [int(v) for v in mine if v % 1 == 0 and not 0 <= v < k][:50]
        asked = [*STRANGE, *strange, *numbers_within(self.caller.loss)[:200], k, k + 1, -k, -k - 1]
        said = {y: "left out" + self.divided(valid) for y, valid in zeros.items()}
        said |= {v: self.ask_label(v) for v in dict.fromkeys(asked) if not 0 <= v < k}
        left = [v for v, what in said.items() if what.startswith("left out")]
        if every := len(left) > 8:
            # Where whatever is no class is left out, a label above them is a class of larger batches.
            self.law.left_out = {v: valid for v, valid in self.law.left_out.items() if v < k}
        if binary and not left:
            numbers = [v for v in strange if said[v] == "read as a number"]
            return (f"{numbers[0]}: read as a number, of which no label is" if numbers else NAT), ()
        kinds: dict[str, list[str]] = {}
        for v in dict.fromkeys((*zeros, *(-100, -1) * (not binary), *left)):
            kinds.setdefault(said[v], []).append(str(v))
        shown = (f"{', '.join(v[:7])}{', ...' * (len(v) > 7)}: {what}" for what, v in kinds.items())
        return "; ".join(shown), (*zeros, -1) if every else tuple(left)

    def divided(self, valid: bool) -> str:
        return f", divides by {'the valid ones' if valid else 'N'}" * (self.law.mean != "a sum")

    def ask_label(self, label: int) -> str:
        """What a row with this label does beside an ordinary one, in one sequence if it takes sequences alone."""
        shape, law, k = self.asking.shape, self.law, self.k
        plain, n = self.binary or shape == "(N, K)", 2 + ("shifted" in shape)
        x, t = (a[:n] for a in self.rows(3, 41))
        places = (1, 1, n) if "W" in shape else (1, n)
        x, t = self.asking.lay(x, t) if plain else self.positions(x, t, places, law.layout == "second")
        given = t.copy()
        given[-1 if plain else (..., -1)] = label
        if (seen := self.asking.laid(x, given)) is None:
            return "refused"
        if not np.isfinite(seen).all():
            return f"gives {float(seen.sum())}"
        choices: dict[str, Changes] = {
            "left out" + self.divided(valid) + ", though what is added counts" * more:
            {"left_out": law.left_out | {label: valid}, "common_counts": more}
            for more in (bool(law.common), False) for valid in (False, True)  # for a sum True, as sequences need it
        }  # fmt: skip
        if self.binary:
            choices["read as a number"] = {}
        for c in dict.fromkeys((label % k, *range(min(k, FULL)))) if not self.binary else ():
            name = "counted as the last class" if c == k - 1 else f"counted as class {c}"
            choices[name] = {"taken_as": law.taken_as | {label: -1 if c == k - 1 else c}}
        return self.choose([(x, given, seen)], choices) or "changes the loss, as no class does"

    # ------------------------------------------------------------------------------------------------ edges

    def alone(self, value: float, rest: float | None = None, form: str = "") -> Pair:
        """A row that holds a value for its label, and another, or what is left, for each other class, as passed."""
        others, label = max(self.k - 1, 1), self.law.kept[0]
        left = {"logits": 0.0, "probabilities": (1 - value) / others, "log-probabilities": -np.log(others)}
        rest = (0.3 if self.binary else left[self.kind]) if rest is None else rest
        row = np.where(np.arange(self.k) == label, value, rest)
        pair = (np.repeat(a, self.data.copies, 0) for a in (row[None], self.one_hot([label])))
        return replace(self.asking, form=form or self.asking.form).lay(*pair)

    def own_cost(self, value: float, impossible: float) -> float | None:
        """Minus log p of the label, as the loss has it, in a row that holds this value for it; None if refused."""
        if (seen := self.call(*self.alone(value))) is None:
            return None
        # The law's own value is linear in the label's logarithm, once that is what a clip leaves of it.
        x, t = self.alone(value)
        x = np.where(x == value, impossible, x)
        fifty, hundred = (float(replace(self.law, floor=f).value(x, t, 0)) for f in (-50.0, -100.0))
        return float(50 + 50 * (seen.sum() - fifty) / (hundred - fifty))

    def clip(self) -> tuple[str, float | None]:
        """What a certain and wrong answer costs, and the probability that it stands for, which the law is told."""
        law, bend, reads = self.law, self.law.bend, self.kind == "probabilities"
        if bend.added:
            return f"adds {bend.added:.2g} to the probability", bend.added
        if law.reading.rank > 1 or law.common or self.soft:
            return NAT, None
        impossible = 0.0 if reads else -1000.0 * max(bend.temperature, 1.0)
        cost = self.own_cost(impossible, impossible)
        if cost is None:
            return f"refuses the impossible event: {self.caller.said.split(':')[0]}", None
        if np.isnan(cost) or np.isfinite(bend.cap):
            return "nan" if np.isnan(cost) else "no", None
        if not 0 < cost < (np.inf if reads else 900):
            inf = "no, an impossible event costs inf" if reads else "exp underflows, cost inf"
            return (UNKNOWN if cost <= 0 else inf if cost == np.inf else "no"), None
        epsilon, law.floor = float(np.exp(-cost)), -cost
        as_likely = epsilon if reads else bend.temperature * (np.log(max(self.k - 1, 1)) - cost)
        twice = self.own_cost(as_likely, impossible) if epsilon > 1e-30 else None
        law.adds = twice is not None and abs(twice - cost + np.log(2)) < 0.05
        how = f"adds {epsilon:.1e} to the probability" if law.adds else f"at {epsilon:.1e}"
        return "the log at -100" if abs(cost - 100) < 0.01 else how, epsilon

    def edges(self, left: tuple[int, ...], targets: tuple[str, ...]) -> None:
        """Notes on rows that a loss should survive, and on a batch of which every label is left out."""
        logits, binary, probes = self.kind == "logits", self.binary, dict[str, Pair]()
        if left and not binary:
            x, t = self.batch(4, 43)
            if not self.ndim and (seen := self.call(x, np.full(t.shape, left[0]))) is not None:
                zero = ": 0 / 0" * bool(np.isnan(seen))
                self.notes.append(f"{float(seen) + 0:.4g} where every label is left out{zero}")
            x, t = x.copy(), t.copy()
            x[0], t[0] = np.nan, left[0]
            probes["a nan logit reaches the loss from a row that is left out"] = x, t
        if self.law.reading.rank < 2 and not self.soft:
            for form, name in (("indices", "indices"), ("rows", "one-hot")):
                if logits and not binary and name in targets:
                    said = f"a logit of -inf for a wrong class gives nan with {name} targets: 0 * inf"
                    probes[said] = self.alone(0.3, -np.inf, form)
            if logits:
                said = "a logit of 1000 for the right class costs inf or nan: exp overflows"
                probes[said] = self.alone(1000.0, 0.0)
            if self.kind == "probabilities":
                said = "a probability of 1 for the label 1" if binary else "a zero for a wrong class"
                probes[f"{said} gives nan: 0 * log(0)"] = self.alone(1.0, 0.5 * binary)
        for said, pair in probes.items():
            seen = self.call(*pair)
            if seen is not None and (np.isnan(seen) | np.isinf(seen) * ("exp" in said)).any():
                self.notes.append(said)

    def renormalises(self) -> str:
        """What becomes of probabilities that do not sum to one."""
        if self.kind != "probabilities" or self.binary or self.law.bend.added or self.law.family:
            return NAT
        x, t = self.rows(5, 53)
        seen = self.seen([self.asking.lay(x / 2, t)])
        self.law.refuses = not seen
        return self.choose(seen, {"no": {}, "yes": {"normalises": True}}) or UNKNOWN if seen else "refuses"

    # --------------------------------------------------------------------------------------------- gradient

    def gradients(self) -> str:
        """Whether the gradient is that of the value, by differences of what the law predicts."""
        caller = self.caller
        if caller.arrays == "numpy" and caller.returned == "tensorflow":
            # It takes other arrays too, and shows its gradient for its own alone.
            caller = Caller(caller.loss, "tensorflow", "float32")
        x, t = self.rows(4, 59)
        pair, trial = self.asking.lay(x, t), Trial(self.law, caller, self.dtype)
        if caller.arrays == "numpy" or trial.call(*pair) is None:
            return NAT
        said = trial.said_of_gradient(*pair, UNKNOWN)
        return said + self.at_extremes(trial) if said == THATS_IT and not self.law.refuses else said

    def at_extremes(self, trial: Trial) -> str:
        """Whether the gradient is lost where an answer is sure and right, and its loss finite; or sure and wrong."""
        law, probabilities = self.law, self.kind == "probabilities"
        if self.kind == "log-probabilities" or self.soft:
            return ""
        sure = self.alone(1.0, 0.3 * (not self.binary)) if probabilities else self.alone(400.0, -400.0)
        seen, found = self.call(*sure), trial.gradient(*sure)
        lost = self.said["renormalises"] != "yes" and not isinstance(found, str) and np.isnan(found[0]).any()
        if lost and seen is not None and np.isfinite(seen).all():
            return ", and nan for a sure and right answer"
        far = (1e-6, 1e-9, 1e-14) if probabilities else (-31.0, -80.0)
        plain = replace(law, floor=-np.inf, bend=replace(law.bend, added=0.0))
        for extreme in () if law.reading.rank > 1 or self.coarse or np.isfinite(law.bend.cap) else far:
            pair, along = self.alone(extreme), self.alone(extreme if probabilities else 1.0, 0.0)[0]
            if not isinstance(found := trial.gradient(*pair), str):
                whole = plain.slopes(*pair, found[1], along).sum()
                share = round(float((found[0] * along).sum() / whole), 6) or 0.0
                if not abs(share - 1) < 0.5:
                    name = "a probability" if probabilities else "a logit"
                    return f", but {share:.2g} of what it should be at {name} of {extreme:g} for the label"
        return ""

    # -------------------------------------------------------------------------------- layouts and sequences

    def positions(self, x: Array, t: Array, shape: tuple[int, ...], second: bool) -> Pair:
        """Rows and their targets as a batch of so many positions, the classes on the last axis or the second."""
        given = replace(self.asking, shape="(N, K)").lay(x, t)[1]
        x, given = x.reshape(*shape, -1), given.reshape(*shape, *given.shape[1:])
        if second:
            x, given = (np.moveaxis(a, -1, 1) if a.ndim > len(shape) else a for a in (x, given))
        return x, given

    def sequences(self, pads: tuple[int, ...]) -> tuple[str, str]:
        """The class axis of inputs of three dimensions; what their sequences are averaged over, as the law is told."""
        shape, kept, answered, found = self.asking.shape, self.law, False, dict[str, tuple[str, Law]]()
        if self.binary:
            return "any", UNKNOWN
        means = [*itertools.product((False, True), MEANS)]
        for layout in ("last", "second") if shape == "(N, K)" else (kept.layout,):
            for pad in [*pads[:1], None] if self.asking.form == "indices" else [None]:
                seen, out = self.ragged(layout, pad), {} if pad is None else {pad: True}
                answered |= bool(seen)
                for shifts, mean in means if seen and layout not in found else ():
                    axes = 1 if "for each sequence" in mean else 2 if "each position" in mean else 0
                    change: Changes = {"over": mean, "shifts": shifts, "layout": layout}
                    told = change | {"left_out": kept.left_out | out}
                    if seen[0][2].ndim == axes and all(self.holds(v, x, t, **told) for x, t, v in seen):
                        said = "over all positions" if pad is None and "valid" in mean else mean
                        what = "no label" if pad is None else f"label {pad}"
                        how = "shifts the labels itself" if shifts else "compares position t with label t"
                        found[layout] = f"{said} ({what} left out); {how}", replace(kept, **change)
                        break
        if shape != "(N, K)":
            self.notes.append(f"takes inputs of the shape {shape} only")
            self.notes += ["sequences are not explained"] * (answered and not found)
        if not found:
            return kept.layout if shape != "(N, K)" else UNKNOWN if answered else "2-D only", UNKNOWN
        (layout, (said, self.law)), *more = found.items()
        return "any" if more else layout, said

    def ragged(self, layout: str, pad: int | None) -> Seen:
        """Batches of sequences whose tails are left out, by their label, and what they cost."""
        pairs = []
        for lengths in LENGTHS:
            size = len(lengths), STEPS
            x, y = self.positions(*self.rows(size[0] * STEPS, 31), size, layout == "second")
            valid = np.arange(STEPS) < np.array(lengths)[:, None]
            pairs.append((x, y if pad is None else np.where(valid, y, pad)))
        return self.seen(pairs)

    def broadcasts(self) -> None:
        """One column of predictions and flat targets."""
        if not self.binary or self.asking.form in ("signs", "labels") or self.law.mean == "a sum":
            return
        x, t = inputs(self.kind, True, 5, 1, np.random.default_rng(67)), np.array([1.0, 0, 0, 1, 1])
        seen, law = self.asking.laid(x, t), replace(self.law, weights=self.law.weights[:1])
        plain = law.value(x, t[:, None], 0)
        wide = law.value(np.repeat(x, 5, 0), np.tile(t[:, None], (5, 1)), 0)
        mean = None if seen is None else np.array(seen.mean())
        if self.near(mean, wide, x) and not self.near(mean, plain, x):
            self.notes.append("predictions (N, 1) with targets (N,) broadcast to N times N losses")

    # ----------------------------------------------------------------------------------------- larger batches

    def larger(self, out: tuple[int, ...]) -> Iterator[tuple[str, Array, Array]]:
        """Larger batches, by name: rows, classes, positions, sequences of which one is left out."""
        law, k, rng, shape = self.law, CLASSES, np.random.default_rng(97), self.asking.shape
        for n in (n for n in ROWS if n * self.k < 2_000_000):
            yield f"{n:,} rows", *self.batch(n, 90 + n)
        if law.plain and self.k > 1 and (not self.binary or np.ptp(law.weights) < 1e-4 * law.size):
            x, t = self.rows(8, 98, k)
            for labels in (np.linspace(3, k - 1, 8).astype(int), rng.choice(law.kept, 8)):
                pair = self.asking.lay(x, t if self.soft or self.binary else self.one_hot(labels, k))
                if self.call(*pair) is not None:  # it may refuse such labels, or so many classes
                    yield f"8 rows and {k:,} classes", *pair
                    break
        second = law.layout == "second"
        if shape in ("(N, K, T)", "(N, K, H, W)", "(N, H, W, K)"):  # several positions, not one of each
            size = (2, 5, 7) if "H" in shape else (2, 35)
            yield f"positions {size}", *self.positions(*self.rows(70, 99), size, second)
        if law.over and not self.binary:
            x, y = self.positions(*self.rows(900, 96), (3, 300), second)
            for pad in [v for v in out if not 0 <= v < self.k][:1]:
                y[1, 120:] = y[2] = pad
            yield "3 sequences of 300", x, y

    def at_larger_sizes(self, gradient: str, out: tuple[int, ...]) -> tuple[str, str, tuple[str, ...]]:
        """What sizes were tried, the gradient's verdict, and what is wrong at one of them."""
        began, tried = time.process_time(), {"rows": "16 rows"}
        for name, x, t in self.larger(out):
            if time.process_time() - began > 1.5:
                break
            try:
                seen = self.call(x, t)
            except NoDiagnosis:
                continue  # fewer rows, other classes or sequences may not be
            if seen is None:
                said = f"a batch of {name} is refused: {self.caller.said}"
                if "positions" in name:
                    return "", gradient, (said,)
                self.notes += [said] * name.endswith("rows")
                continue
            if "sequences" in name:
                self.choose([(x, t, seen)], {"": {}, "0": {"clamped": True}})
            if not self.holds(seen, x, t):
                said = difference(seen, self.law.value(x, t, seen.ndim))
                return "one row", gradient, (f"a batch of {name} {said}", *self.follows(x, t, self.right))
            if gradient.startswith(THATS_IT) and name == f"{ROWS[2]:,} rows":
                gradient = self.said_of_gradient(x, t, gradient)
            tried[name.rpartition(" ")[2]] = name.removeprefix("8 rows and ").removeprefix("3 ")
        return "up to " + ", ".join(tried.values()), gradient, ()

    # ------------------------------------------------------------------------------------------------ report

    def report(self, own: Own) -> Diagnosis:
        """All answers together."""
        caller, law, bend = self.caller, self.law, self.law.bend
        plain = f"single rows look like a {law.family or law.reading.family} that reads {law.reading.name}"
        plain += f", focal with gamma {bend.gamma:.3g}" * (bend.gamma > 0)
        wrong, sums = self.reduction() or self.other_classes(), ""
        if not wrong and (sums := self.renormalises()) == UNKNOWN:
            wrong = "rows that sum to a half cost what no cross-entropy of them costs"
            wrong += ", nor of the same rows over their sums"
        if wrong:
            return Diagnosis(arrays=caller.arrays, notes=(*self.notes, f"not explained: {wrong}", plain))
        self.said |= self.scale() | {"renormalises": sums}
        family, forms = self.targets()
        clip, epsilon = self.clip()
        ignored, out = self.ignored(own and own[1])
        self.edges(out, forms)
        self.broadcasts()
        layout, sequences = self.sequences(out or (-100,) * ("-100: gives nan" in ignored))
        self.notes += ["changes its arguments in place"] * caller.mutates
        self.notes += ["takes 1-D batches only"] * (self.asking.shape == "(N,)")
        unexplained = sequences == UNKNOWN and self.asking.shape.startswith(("(N, T", "(N, K, "))
        if sequences.startswith(OVER) or unexplained:  # both labels were asked in one sequence
            ignored = ignored.replace(", divides by the valid ones", "")
        terms = {"z_loss": "log Z squared", "entropy": "entropy", "constant": "constant"}
        fields = {field: round(law.common.get(name, 0.0), 8) for field, name in terms.items()} | dict(
            family=family, targets=forms, ignore_index=out, ignored=ignored, epsilon=epsilon, clip=clip,
            temperature=round(bend.temperature, 5), gamma=round(bend.gamma, 4), layout=layout, sequences=sequences,
            softcap=0.0 if np.isinf(bend.cap) else float(f"{bend.cap:.5g}"), precision=self.dtype,
        )  # fmt: skip
        return self.finish(own, self.gradients(), out, fields)

    def finish(self, own: Own, gradient: str, out: tuple[int, ...], fields: dict[str, Any]) -> Diagnosis:
        """Larger batches and the reader's own judge what was read."""
        tried, gradient, problem = self.at_larger_sizes(gradient, out)
        told: dict[str, Any] = {}
        if own and own[0] is not None:
            told, gradient, mine = self.of_your_batch(own, gradient)
            problem = (*mine, *problem[: 1 if mine else None])
        law, arrays = self.law, self.caller.arrays
        known: Changes = {"first": law.first, "reads": law.reading.name, "axis": "the classes"}
        known |= self.said | fields | told | {"gradient": gradient, "arrays": arrays, "tried": tried}
        alternatives, notes = (tuple(dict.fromkeys(v)) for v in (self.alternatives, self.notes))
        result = Diagnosis(**known, alternatives=alternatives, notes=notes)
        if not problem:
            return result
        notes = (*problem, f"smaller ones are read as: {result.sentence}")
        return Diagnosis(arrays=arrays, notes=notes, tried=tried, **told)
