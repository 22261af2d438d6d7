"""What a loss function computes, found out by calling it: order, input, reduction, denominator, clipping."""

from __future__ import annotations

import inspect
import itertools
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np

from xent._validate import shown
from xent.numerics import log_softmax, softmax

from ._sequences import find_sequences
from ._variants import find_variant

Array: TypeAlias = "np.ndarray[Any, Any]"
Loss: TypeAlias = Callable[..., Any]

UNKNOWN = "unknown"
N, K = 5, 3
BATCHES = 3
# Losses answer in float32; three batches have to agree, so a looser match finds nothing by chance.
RTOL, ATOL = 2e-4, 1e-6
FORMS = ("indices", "one-hot", "soft")
LABELS = np.array([0, 2, 1, 1, 2])
ROW_WEIGHTS = np.array([1.0, 3.0, 0.5, 2.0, 1.7])
CLASS_WEIGHTS = np.array([1.0, 4.0, 2.5])
ARRAYS = ("auto", "numpy", "torch", "tensorflow")
# First come the readings that explain more: a loss of logits is right for log-probabilities as well.
READS = {
    "categorical cross-entropy": (
        "logits", "logits, softmax applied twice", "probabilities", "log-probabilities",
    ),
    "KL divergence": ("logits", "probabilities", "log-probabilities"),
    "binary cross-entropy": ("logits", "logits, sigmoid applied twice", "probabilities"),
}  # fmt: skip
UNITS = {"nats": 1.0, "bits": 1 / np.log(2), "hartleys": 1 / np.log(10)}
# Weights stand by one of these names, if the loss takes any.
WEIGHT_NAMES = ("sample_weight", "weight", "weights", "mask", "where")


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """What a loss function is, as far as calls can tell.

    Attributes
    ----------
    family : str
        "categorical cross-entropy", "binary cross-entropy", "KL divergence" or "unknown".
    first : str
        What the first argument is: "prediction" or "target".
    targets : tuple of str
        The forms of target it reads: "indices", "one-hot", "soft", and for 1-D losses "0 or 1".
    reads : str
        "logits", "log-probabilities", "probabilities", or logits with a softmax or sigmoid too many.
    reduction : str
        "none", "sum" or "mean".
    denominator : str
        What a mean divides by: "N", "N*K" or "K".
    weights : str
        The argument for weights and the denominator under them; "no argument".
    ignored : str
        What the labels -100 and -1 do.
    clip : str
        What an impossible event costs, and the epsilon behind it.
    variant : str
        What is added to the plain loss: a factor, class weights, `pos_weight`, a label that is left out,
        focusing, a temperature, a softmax over the wrong axis, half precision. Empty for the plain loss.
    sequences : str
        What the mean over a batch of ragged sequences is: "a mean of sequence means", "over the valid
        tokens", "over all positions, padding included", ...; and whether the loss shifts the labels.
    renormalises : str
        "yes", "no" or "refuses": rows that do not sum to one. "not applicable" for logits.
    layout : str
        The class axis of a 3-D input: "last", "second", "any", "2-D only".
    epsilon : float or None
        The probability at which it clips.
    smoothing : float or None
        The label smoothing, the mass that is spread over all classes; None if unknown.
    sign : int
        1, or -1 for a loss with its sign flipped.
    unit : str
        "nats", "bits" or "hartleys".
    arrays : str
        What it was called with: "numpy", "torch" or "tensorflow".
    notes : tuple of str
        What else was seen.
    """

    family: str = UNKNOWN
    first: str = UNKNOWN
    targets: tuple[str, ...] = ()
    reads: str = UNKNOWN
    reduction: str = UNKNOWN
    denominator: str = UNKNOWN
    weights: str = UNKNOWN
    ignored: str = UNKNOWN
    clip: str = UNKNOWN
    variant: str = ""
    sequences: str = UNKNOWN
    renormalises: str = UNKNOWN
    layout: str = UNKNOWN
    epsilon: float | None = None
    smoothing: float | None = None
    sign: int = 1
    unit: str = UNKNOWN
    arrays: str = UNKNOWN
    notes: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        """Whether the loss was recognised."""
        return self.family != UNKNOWN

    def __repr__(self) -> str:
        if not self.known:
            return "\n".join(["unknown", *(_lines("note", note) for note in self.notes)])
        name = self.family if self.sign > 0 else f"{self.family}, sign flipped"
        lines = {
            # First what is most often wrong, and costs most.
            "sequences": self.sequences,
            "with": self.variant or UNKNOWN,
            "first argument": self.first,
            "targets": ", ".join(self.targets),
            "reads": self.reads,
            "reduction": self.reduction,
            "divides by": self.denominator,
            "weights": self.weights,
            "ignored": self.ignored,
            "clips": self.clip,
            "renormalises": self.renormalises,
            "class axis": self.layout,
            "smoothing": UNKNOWN if self.smoothing is None else f"{self.smoothing:.3g}",
            "unit": self.unit,
        }
        # What is not known, or does not apply, takes no line.
        found = [(key, value) for key, value in lines.items() if value not in (UNKNOWN, "not applicable")]
        found += [("note", note) for note in self.notes]
        return "\n".join([name, *(_lines(*each) for each in found)])


def _lines(key: str, value: str) -> str:
    """One entry of the report, a line for each part of it, no wider than a phone shows."""
    parts = zip(itertools.chain([key], itertools.repeat("")), value.split("; "), strict=False)
    return "\n".join(
        textwrap.fill(
            part,
            42,
            initial_indent=f"  {head:<14} ",
            subsequent_indent=" " * 17,
            break_on_hyphens=False,
        )
        for head, part in parts
    )


@dataclass(frozen=True)
class _Reading:
    """A hypothesis: everything that is needed to predict the value of a call."""

    family: str
    first: str
    reads: str
    reduction: str
    sign: int
    unit: str
    smoothing: float = 0.0

    def smoothed(self, target: Array) -> Array:
        classes = 2 if self.family == "binary cross-entropy" else target.shape[-1]
        return (1 - self.smoothing) * target + self.smoothing / classes

    def elements(self, x: Array, target: Array) -> Array:
        """The contributions to the loss, one for each row and class."""
        t = self.smoothed(target)
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.family == "binary cross-entropy":
                z = np.log(x) - np.log1p(-x) if self.reads == "probabilities" else x
                if self.reads.endswith("twice"):
                    z = np.exp(-np.logaddexp(0, -z))
                each = t * np.logaddexp(0, -z) + (1 - t) * np.logaddexp(0, z)
            else:
                if self.reads == "logits":
                    log_p = log_softmax(x)
                elif self.reads.endswith("twice"):
                    log_p = log_softmax(softmax(x))
                else:
                    log_p = np.log(x) if self.reads == "probabilities" else x
                each = -t * log_p
                if self.family == "KL divergence":
                    each = each + t * np.log(np.where(t > 0, t, 1))
        scaled: Array = self.sign * UNITS[self.unit] * each
        return scaled

    def predict(self, x: Array, target: Array) -> Array:
        return _reduced(self.elements(x, target))[self.reduction]

    def domain(self) -> str:
        return self.reads.split(",")[0]


def _reduced(each: Array) -> dict[str, Array]:
    """The reductions of a batch of elements, by name."""
    rows, total = each.sum(-1), each.sum()
    n, k = rows.size, each.shape[-1]
    found = {"sum": total, "N": total / n, "rows": rows, "elements": each, "column": rows[..., None]}
    if k > 1:
        found |= {"N*K": total / (n * k), "K": total / k, "row means": rows / k}
    return {name: np.asarray(value) for name, value in found.items()}


def _close(seen: Array | None, want: Array) -> bool:
    return seen is not None and seen.shape == want.shape and bool(np.allclose(seen, want, RTOL, ATOL))


# ------------------------------------------------------------------------------------ calling the loss


def array(value: Any, dtype: Any = None) -> Array:
    """Return what a tensor, an array or a list holds as a NumPy array.

    Parameters
    ----------
    value : Tensor or array_like
        Of PyTorch or TensorFlow, on any device, with or without a gradient; or anything that NumPy takes.
    dtype : dtype, optional
        What to convert to. Half precision becomes float64 unless this says otherwise.

    Returns
    -------
    ndarray
        The values.

    Examples
    --------
    >>> from xent_book.frameworks import array
    >>> array([[True, False]], int)
    array([[1, 0]])
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        # NumPy has no bfloat16.
        value = value.double() if "float16" in str(value.dtype) else value
    found = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    if dtype is None and found.dtype.kind == "f" and found.itemsize < 4:
        dtype = np.float64
    return found if dtype is None else found.astype(dtype)


class _Patient:
    """The loss, called with fresh copies: the array it returns, or None and the exception."""

    def __init__(self, loss: Loss, arrays: str, dtype: str) -> None:
        self.loss, self.arrays, self.dtype = loss, arrays, dtype
        self.failure = ""
        self.answered = 0
        self.mutates = False
        self.result_dtype = ""

    def _to(self, values: Array) -> Any:
        copy = np.array(values, dtype=self.dtype if values.dtype.kind == "f" else None)
        if self.arrays == "torch":
            return import_module("torch").from_numpy(copy)
        if self.arrays == "tensorflow":
            return import_module("tensorflow").constant(copy)
        return copy

    def __call__(self, first: Array, second: Array, **options: Any) -> Array | None:
        given = [self._to(np.asarray(a)) for a in (first, second)]
        before = [array(a).copy() for a in given]
        named = {k: self._to(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                value = self.loss(*given, **named)
                dtype = getattr(value, "dtype", "float64")
                self.result_dtype = getattr(dtype, "name", str(dtype))
                result = array(value)
                if result.dtype.kind not in "fiu":
                    raise TypeError(f"returned {type(value).__name__}, no number")
                result = result.astype(np.float64)
        except (Exception, SystemExit) as error:  # whatever the loss raises is evidence
            try:
                first_line = (str(error).strip().splitlines() or [""])[0][:80]
            except Exception:
                first_line = ""
            self.failure = f"{type(error).__name__}: {first_line}".removesuffix(": ")
            return None
        self.answered += 1
        self.mutates |= any(
            not np.array_equal(old, array(new), equal_nan=old.dtype.kind == "f")
            for old, new in zip(before, given, strict=True)
        )
        return result

    def ask(self, first: str, x: Array, target: Array, **options: Any) -> Array | None:
        """Call with the prediction x where the order says it belongs."""
        return self(x, target, **options) if first == "prediction" else self(target, x, **options)


# ------------------------------------------------------------------------------------------ the inputs


@dataclass(frozen=True)
class _Batches:
    """The designed inputs: logits, probabilities and log-probabilities, and targets of each form."""

    inputs: dict[str, list[Array]]
    given: dict[str, Array]
    meant: dict[str, Array]


def _batches(flat: bool = False) -> _Batches:
    rng = np.random.default_rng(7)
    # Off zero, so that logits are neither probabilities nor log-probabilities.
    logits: list[Array] = [rng.normal(0.4, 1.3, (N, K)) for _ in range(BATCHES)]
    if flat:
        logits = [z[:, :1] for z in logits]
        probs: list[Array] = [1 / (1 + np.exp(-rng.normal(size=(N, 1)))) for _ in logits]
        hard, soft = np.array([1.0, 0.0, 0.0, 1.0, 1.0])[:, None], rng.uniform(0.1, 0.9, (N, 1))
        forms = {"0 or 1": hard, "soft": soft}
        return _Batches(
            {"logits": logits, "probabilities": probs, "log-probabilities": []},
            {name: t[:, 0] for name, t in forms.items()},
            forms,
        )
    probs = [softmax(rng.normal(size=(N, K))) for _ in logits]
    onehot, soft = np.eye(K)[LABELS], rng.dirichlet([2.0, 3.0, 4.0], N)
    return _Batches(
        {"logits": logits, "probabilities": probs, "log-probabilities": [np.log(p) for p in probs]},
        {"indices": LABELS, "one-hot": onehot, "soft": soft},
        {"indices": onehot, "one-hot": onehot, "soft": soft},
    )


Seen: TypeAlias = "dict[tuple[str, str, str], list[Array | None]]"


def _observe(patient: _Patient, batches: _Batches, flat: bool) -> Seen:
    """The value of every order, form and kind of input, on every batch."""
    seen: Seen = {}
    for first, form, kind in itertools.product(("prediction", "target"), batches.given, batches.inputs):
        values = []
        for x in batches.inputs[kind]:
            values.append(patient.ask(first, x[:, 0] if flat else x, batches.given[form]))
            if values[-1] is None:
                break  # a loss that refuses one batch is no match
        seen[first, form, kind] = values
    return seen


def _readings(flat: bool) -> Iterator[_Reading]:
    names = (
        ("sum", "N", "rows") if flat else ("sum", "N", "N*K", "K", "rows", "row means", "elements", "column")
    )
    for family, reads in READS.items():
        if flat and family != "binary cross-entropy":
            continue
        for first, read, reduction, sign, unit in itertools.product(
            ("prediction", "target"), reads, names, (1, -1), UNITS
        ):
            yield _Reading(family, first, read, reduction, sign, unit)


def _fit_smoothing(reading: _Reading, x: Array, target: Array, value: Array) -> float:
    """The smoothing under which the first value is right: the loss is linear in it."""
    hard, even = (replace(reading, smoothing=s).predict(x, target) for s in (0.0, 1.0))
    if value.shape != hard.shape:
        return 0.0
    where = np.unravel_index(np.argmax(np.abs(even - hard)), hard.shape)
    slope = float(even[where] - hard[where])
    fitted = float(value[where] - hard[where]) / slope if slope else 0.0
    return fitted if np.isfinite(fitted) and 1e-3 < fitted < 1 else 0.0


def _forms_that_fit(reading: _Reading, seen: Seen, batches: _Batches) -> tuple[str, ...]:
    """The forms of target on which the reading predicts every batch."""
    fit = []
    for form, target in batches.meant.items():
        inputs = batches.inputs[reading.domain()]
        values = seen[reading.first, form, reading.domain()]
        if len(values) == len(inputs) > 0 and all(
            _close(value, reading.predict(x, target)) for value, x in zip(values, inputs, strict=True)
        ):
            fit.append(form)
    return tuple(fit)


def _candidates(seen: Seen, batches: _Batches, flat: bool) -> list[tuple[_Reading, tuple[str, ...]]]:
    """All readings that fit, those with smoothed labels only if none fits without."""
    found = []
    for reading in _readings(flat):
        if forms := _forms_that_fit(reading, seen, batches):
            found.append((reading, forms))
    if found:
        return found
    hard = "0 or 1" if flat else "one-hot"
    for reading in _readings(flat):
        if reading.family == "KL divergence":
            continue
        for form in (hard, "indices"):
            values = seen.get((reading.first, form, reading.domain()), [])
            if not values or values[0] is None:
                continue
            x, target = batches.inputs[reading.domain()][0], batches.meant[form]
            if smoothing := _fit_smoothing(reading, x, target, values[0]):
                smooth = replace(reading, smoothing=smoothing)
                if forms := _forms_that_fit(smooth, seen, batches):
                    found.append((smooth, forms))
                    break
    return found


def _choose(found: list[tuple[_Reading, tuple[str, ...]]]) -> tuple[_Reading, tuple[str, ...]] | None:
    """The reading that explains most, or nothing if two of them explain as much."""
    if not found:
        return None
    most = max(len(forms) for _, forms in found)
    best = [entry for entry in found if len(entry[1]) == most]
    # On hard targets KL is cross-entropy; on log-probabilities a loss of logits reads the same.
    ranks: tuple[Callable[[_Reading], int], ...] = (
        lambda r: list(READS).index(r.family),
        lambda r: READS[r.family].index(r.reads),
    )
    for rank in ranks:
        first = min(rank(reading) for reading, _ in best)
        best = [entry for entry in best if rank(entry[0]) == first]
    return best[0] if len(best) == 1 else None


# ------------------------------------------------------------------------------------------ the details


class _Examination:
    """The further questions to a loss whose reading is known."""

    def __init__(self, patient: _Patient, reading: _Reading, forms: tuple[str, ...], flat: bool) -> None:
        self.patient, self.reading, self.flat = patient, reading, flat
        self.batches = _batches(flat)
        self.form = forms[0]
        self.forms = forms
        self.x = self.batches.inputs[reading.domain()][0]
        self.target = self.batches.meant[self.form]
        self.notes: list[str] = []

    def ask(self, x: Array, given: Array | None = None, **options: Any) -> Array | None:
        given = self.batches.given[self.form] if given is None else given
        return self.patient.ask(self.reading.first, x[:, 0] if self.flat else x, given, **options)

    def first_row(self, x: Array) -> float | None:
        """The loss of the first row alone, in nats, whatever the reduction: the others are known."""
        seen = self.ask(x)
        if seen is None:
            return None
        r = self.reading
        others = r.elements(self.x, self.target)[1:].sum()
        scale = {"sum": 1, "N": len(x), "N*K": x.size, "K": x.shape[1], "row means": x.shape[1]}
        if seen.ndim == 0:
            row = float(seen) * scale[r.reduction] - others
        else:
            row = float(seen[0].sum()) * scale.get(r.reduction, 1)
        return float(row / (r.sign * UNITS[r.unit]))

    def with_row(self, row: list[float]) -> Array:
        x = self.x.copy()
        x[0] = row[: x.shape[1]]
        return x

    def clip(self) -> tuple[str, float | None]:
        """What a certain and wrong answer costs, and the probability that it stands for."""
        r = self.reading
        # The label of the first row is 0 for indices and one-hot, 1 for a flat batch: column 0 is meant.
        if self.form == "soft":
            return UNKNOWN, None
        binary = r.family == "binary cross-entropy"
        if r.reads.endswith("twice"):
            return "not applicable", None
        edge = {
            "probabilities": [0.0, 0.6, 0.4],
            "logits": [-1000.0, 0.0, 0.0],
            "log-probabilities": [-1000.0, np.log(0.6), np.log(0.4)],
        }[r.reads]
        row = self.first_row(self.with_row(edge))
        if row is None:
            return f"refuses the impossible event: {self.patient.failure.split(':')[0]}", None
        t = r.smoothed(self.target)[0]
        e = np.array(edge[: len(t)])
        # Everything but the impossible class: known.
        rest = np.zeros(len(t))
        if binary:
            rest[1:] = replace(r, sign=1, unit="nats", smoothing=0.0).elements(e[None, 1:], t[None, 1:])[0]
            weight = t[0]
        else:
            with np.errstate(divide="ignore"):
                log_p = np.log(e) if r.reads == "probabilities" else log_softmax(e)
            rest[1:] = -t[1:] * log_p[1:]
            weight = t[0]
        cost = (row - float(rest.sum())) / weight
        if np.isnan(cost):
            return "nan", None
        if cost == np.inf:
            what = (
                "an impossible event costs inf" if r.reads == "probabilities" else "exp underflows, cost inf"
            )
            return ("no, " if r.reads == "probabilities" else "") + what, None
        if cost > 900 and r.reads != "probabilities":
            return "no", None
        if cost <= 0:
            return UNKNOWN, None
        epsilon = float(np.exp(-cost))
        if abs(cost - 100) < 0.01:
            return "the log at -100", epsilon
        return f"at {epsilon:.1e}", epsilon

    def edges(self) -> None:
        """Rows that a loss should survive, and the note if it does not."""
        r = self.reading
        if self.form == "soft" or r.reads not in ("logits", "probabilities"):
            return
        if r.reads == "logits":
            row = self.first_row(self.with_row([1000.0, 0.0, 0.0]))
            if row is not None and not np.isfinite(row):
                self.notes.append(f"a logit of 1000 for the right class costs {row}: exp overflows")
            self.masked_classes()
            self.ignored_rows()
        elif not self.flat:
            row = self.first_row(self.with_row([0.6, 0.0, 0.4]))
            if row is not None and np.isnan(row):
                self.notes.append("a zero for a wrong class gives nan: 0 * log(0)")

    def masked_classes(self) -> None:
        """A logit of -inf is a class that cannot occur."""
        if self.flat or self.reading.family != "categorical cross-entropy":
            return
        for form in self.forms:
            if form != "soft":
                seen = self.ask(self.with_row([1.0, -np.inf, 0.0]), self.batches.given[form])
                if seen is not None and np.isnan(seen).any():
                    self.notes.append(
                        f"a logit of -inf for a wrong class gives nan with {form} targets: 0 * inf"
                    )

    def ignored_rows(self) -> None:
        """Rows that do not count, where they can be told: all of them, or one that holds nan."""
        if "indices" not in self.forms or "left out" not in self._ignored(-100):
            return
        seen = self.ask(self.x, np.full(len(LABELS), -100))
        if seen is not None and np.isnan(seen).any():
            self.notes.append("nan where every label is left out: 0 / 0")
        seen = self.ask(self.with_row([np.nan] * K), np.where(np.arange(len(LABELS)) == 0, -100, LABELS))
        if seen is not None and np.isnan(seen).any():
            self.notes.append("a nan logit reaches the loss from a row that is left out")

    def renormalises(self) -> str:
        r = self.reading
        if r.reads != "probabilities" or r.family == "binary cross-entropy":
            return "not applicable"
        seen = self.ask(self.x / 2)
        if seen is None:
            return "refuses"
        if _close(seen, r.predict(self.x / 2, self.target)):
            return "no"
        return "yes" if _close(seen, r.predict(self.x, self.target)) else UNKNOWN

    def ignored(self) -> str:
        """What the labels -100 and -1 do to a loss of class indices."""
        if "indices" not in self.forms:
            return "not applicable"
        answers = []
        for label in (-100, -1):
            answers.append(f"{label}: {self._ignored(label)}")
        name = next(
            (n for n in ("ignore_index", "ignore_class") if n in _parameters(self.patient.loss)), None
        )
        if name:
            answers.append(f"{name}=: {self._ignored(-7, **{name: -7})}")
        return "; ".join(answers)

    def _ignored(self, label: int, **options: Any) -> str:
        labels = LABELS.copy()
        labels[0] = label
        seen = self.ask(self.x, labels, **options)
        if seen is None:
            return "refused"
        each = self.reading.elements(self.x, np.eye(K)[LABELS])
        each[0] = 0
        if _close(seen, _reduced(each)[self.reading.reduction]):
            return {"N": "left out, divides by N", "N*K": "left out, divides by N*K"}.get(
                self.reading.reduction, "left out"
            )
        if self.reading.reduction == "N" and _close(seen, np.asarray(each.sum() / (N - 1))):
            return "left out, divides by the valid ones"
        if label == -1:
            last = np.eye(K)[np.where(labels == -1, K - 1, labels)]
            if _close(seen, self.reading.predict(self.x, last)):
                return "counted as the last class"
        return "counted, as another class" if np.isfinite(seen).all() else f"gives {seen.reshape(-1)[0]}"

    def weights(self) -> str:
        """The argument for weights, and the denominator under them."""
        names = _parameters(self.patient.loss)
        taken = [n for n in WEIGHT_NAMES if n in names] or (
            ["sample_weight", "weight"] if "**" in names else []
        )
        found = [answer for name in taken if (answer := self._weighted(name))]
        if found:
            # A loss that takes any keyword is asked about one.
            return "; ".join(found[:1] if "**" in names else found)
        known = "**" not in names and taken and self.patient.answered
        return UNKNOWN if known else "no argument"

    def _weighted(self, name: str) -> str | None:
        each = self.reading.elements(self.x, self.target)
        plain = self.ask(self.x)
        rows = ROW_WEIGHTS > 1 if name in ("mask", "where") else ROW_WEIGHTS
        trials = [("row", rows, rows[:, None] * np.ones(each.shape[1]))]
        if not self.flat:
            trials.append(("class", CLASS_WEIGHTS, self.target * CLASS_WEIGHTS))
            trials.append(("element", np.outer(rows, CLASS_WEIGHTS), np.outer(rows, CLASS_WEIGHTS)))
        for per, given, factor in trials:
            seen = self.ask(self.x, **{name: given})
            if seen is None:
                continue
            weighted = each * factor
            # A class weight is the weight of the row whose label it is.
            total = float(
                factor.sum(1).sum() if per == "class" else rows.sum() if per == "row" else factor.sum()
            )
            if seen.ndim == 0 and self.reading.reduction != "sum":
                size = {"N": N, "N*K": each.size, "K": each.shape[1]}[self.reading.reduction]
                elements = each.shape[1] if self.reading.reduction == "N*K" and per == "row" else 1
                over = {
                    "the sum of weights": weighted.sum() / (total * elements),
                    self.reading.reduction: weighted.sum() / size,
                    "nothing": weighted.sum(),
                }
                for divisor, value in over.items():
                    if _close(seen, np.asarray(value)):
                        return f"{name}, one per {per}: divides by {divisor}"
            elif _close(seen, _reduced(weighted)[self.reading.reduction]):
                return f"{name}, one per {per}: multiplies"
            if plain is not None and _close(seen, plain):
                return f"{name}: swallowed without effect"
        return None

    def layout(self) -> str:
        """The class axis of a batch of sequences."""
        r = self.reading
        if self.flat or r.family == "binary cross-entropy":
            return "any"  # each element is a problem of its own
        rng, steps, batch = np.random.default_rng(11), 4, 2
        labels = rng.integers(0, K, (batch, steps))
        target = rng.dirichlet(np.ones(K), (batch, steps)) if self.form == "soft" else np.eye(K)[labels]
        z = rng.normal(0.4, 1, (batch, steps, K))
        x = {"probabilities": softmax(z), "log-probabilities": log_softmax(z)}.get(r.domain(), z)
        found = []
        for name, axis in (("last", 2), ("second", 1)):
            seen = self.patient.ask(
                r.first,
                np.ascontiguousarray(np.moveaxis(x, 2, axis)),
                labels if self.form == "indices" else np.ascontiguousarray(np.moveaxis(target, 2, axis)),
            )
            if seen is None:
                continue
            each = np.moveaxis(r.elements(x, target), 2, axis)
            values = {
                "all": each.sum(),
                "N*T": each.sum() / (batch * steps),
                "N": each.sum() / batch,
                "N*T*K": each.mean(),
                "rows": each.sum(axis),
                "row means": each.mean(axis),
                "elements": each,
            }
            # A reduction is carried on as it is: a mean stays a mean.
            for divisor, value in values.items():
                if _close(seen, np.asarray(value)):
                    found.append(name)
                    if r.reduction in ("N", "N*K") and divisor == "N":
                        self.notes.append("3-D input: divides by the first axis alone")
                    break
            else:
                found.append(UNKNOWN)
        if not found:
            return "2-D only"
        if found == ["last", "second"]:
            return "any"
        known = [name for name in found if name != UNKNOWN]
        return known[0] if len(known) == 1 else UNKNOWN

    def smoothing(self) -> float:
        """The mass that is taken from the label; with another K one sees over how many classes it goes."""
        r = self.reading
        if not r.smoothing or self.flat or r.family == "binary cross-entropy":
            return round(r.smoothing, 3)
        rng, classes = np.random.default_rng(13), K + 2
        z, labels = rng.normal(0.4, 1.0, (N, classes)), rng.integers(0, classes, N)
        x = {"probabilities": softmax(z), "log-probabilities": log_softmax(z)}.get(r.domain(), z)
        target = np.eye(classes)[labels]
        seen = self.patient.ask(r.first, x, labels if self.form == "indices" else target)
        if _close(seen, r.predict(x, target)):
            return round(r.smoothing, 3)
        # At K classes, a mass s over the K - 1 others is a mass s K / (K - 1) over all.
        mass = r.smoothing * (K - 1) / K
        if _close(seen, replace(r, smoothing=mass * classes / (classes - 1)).predict(x, target)):
            self.notes.append("the smoothing goes to the K - 1 other classes")
            return round(mass, 3)
        self.notes.append("the smoothing changes with the number of classes")
        return round(r.smoothing, 3)

    def sequences(self) -> str:
        """What is averaged where the sequences of a batch have different lengths."""
        if self.flat or "indices" not in self.forms or self.reading.sign < 0 or self.reading.unit != "nats":
            return UNKNOWN
        found = find_sequences(self.patient.ask, _parameters(self.patient.loss))
        return found.text if found else UNKNOWN

    def one_column(self) -> None:
        """A 1-D batch of a binary loss: is its last axis, the batch, averaged as well?"""
        if self.flat or self.reading.family != "binary cross-entropy" or self.reading.reduction == "N*K":
            return
        flat = _batches(flat=True)
        x, y = flat.inputs[self.reading.domain()][0], flat.given["0 or 1"]
        seen = self.patient.ask(self.reading.first, x[:, 0], y)
        each = self.reading.elements(x, y[:, None])
        if seen is not None and _close(seen, np.asarray(each.mean())):
            self.notes.append("a 1-D batch is averaged")


def _parameters(loss: Loss) -> set[str]:
    """The names a loss takes by keyword; ** if it takes any, as far as its signature can tell."""
    # Modules of PyTorch pass everything on to forward.
    target = getattr(loss, "forward", loss)
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return {"**"}
    return {"**" if p.kind is p.VAR_KEYWORD else p.name for p in parameters}


# ------------------------------------------------------------------------------------------- the whole


@np.errstate(all="ignore")
def diagnose(loss_fn: Loss, *, arrays: str = "auto") -> Diagnosis:
    """Find out what a loss function computes by calling it on designed inputs.

    Parameters
    ----------
    loss_fn : callable
        Takes two arrays, prediction and target in either order, and returns the loss. Configure it first:
        ``functools.partial`` or a lambda for keyword arguments.
    arrays : {"auto", "numpy", "torch", "tensorflow"}
        What to call it with. "auto" tries NumPy, then the libraries that are imported already.

    Returns
    -------
    Diagnosis
        All fields say "unknown" if no reading, or more than one, predicts every value that was seen.
        What the loss raises counts as evidence and is never passed on.

    Raises
    ------
    TypeError
        If `loss_fn` is not callable.
    ValueError
        If `arrays` is none of the names above.

    Notes
    -----
    A reading is a family, an argument order, a kind of input, a reduction, a sign and a unit. It has to
    predict the values of three batches within a relative 2e-4; no behaviour is read off a name. The loss is
    called some dozens of times, on copies.

    Examples
    --------
    >>> import xent
    >>> from xent_book.frameworks import diagnose
    >>> found = diagnose(xent.cross_entropy)
    >>> found.first, found.reads, found.reduction, found.denominator
    ('prediction', 'logits', 'mean', 'N')
    >>> diagnose(lambda p, y: ((p - y) ** 2).mean()).known
    False
    """
    if not callable(loss_fn):
        raise TypeError(f"loss_fn must be callable; got {type(loss_fn).__name__}")
    if not isinstance(arrays, str) or arrays not in ARRAYS:
        raise ValueError(f"arrays must be one of {', '.join(map(repr, ARRAYS))}; got {shown(arrays)}")
    trials = [("numpy", "float64"), ("torch", "float64"), ("torch", "float32"), ("tensorflow", "float32")]
    if arrays == "auto":
        # A loss of tensors has its library imported: nothing has to be loaded in order to ask.
        trials = [t for t in trials if t[0] == "numpy" or t[0] in sys.modules]
    else:
        trials = [t for t in trials if t[0] == arrays]
    patients = []
    for kind, dtype in trials:
        patient = _Patient(loss_fn, kind, dtype)
        patients.append(patient)
        for flat in (False, True):
            batches = _batches(flat)
            seen = _observe(patient, batches, flat)
            if _unsteady(patient, seen, batches, flat):
                return Diagnosis(arrays=kind, notes=("two equal calls return two values",))
            if rounded := _rounded(patient, seen, batches, flat):
                return rounded
            if candidates := _candidates(seen, batches, flat):
                if chosen := _choose(candidates):
                    return _describe(patient, *chosen, seen, flat)
                return Diagnosis(arrays=kind, notes=("more than one reading predicts what it returns",))
    found = [d for patient in patients if (d := _more_than_plain(patient))]
    if found:
        # A loss of class indices may take one-hot rows too, and weigh these in another way.
        return min(found, key=lambda d: d.targets != ("indices",))
    spoke = max(patients, key=lambda p: p.answered)
    if not spoke.answered:
        return Diagnosis(notes=(f"every call raises; the last one {spoke.failure}",))
    return Diagnosis(arrays=spoke.arrays, notes=("it returns numbers, and no cross-entropy predicts them",))


def _unsteady(patient: _Patient, seen: Seen, batches: _Batches, flat: bool) -> bool:
    """Whether a call, repeated, returns another value."""
    for (first, form, kind), values in seen.items():
        if values and values[0] is not None:
            x = batches.inputs[kind][0]
            again = patient.ask(first, x[:, 0] if flat else x, batches.given[form])
            return again is None or not np.allclose(again, values[0], 1e-6, 1e-9, equal_nan=True)
    return False


def _more_than_plain(patient: _Patient) -> Diagnosis | None:
    """A loss that no plain reading predicts: with something added, or of sequences alone."""
    if variant := find_variant(patient.ask):
        return Diagnosis(
            family=variant.family, first=variant.first, targets=(variant.form,), reads=variant.reads,
            reduction=variant.reduction, denominator=variant.denominator, variant=variant.variant,
            unit="nats", arrays=patient.arrays,
        )  # fmt: skip
    if sequences := find_sequences(patient.ask, _parameters(patient.loss)):
        return Diagnosis(
            family="categorical cross-entropy", first=sequences.first, targets=("indices",),
            reads=sequences.reads, reduction="sum" if "sum" in sequences.mean else "mean",
            sequences=sequences.text, layout=sequences.layout, unit="nats", arrays=patient.arrays,
            notes=("takes sequences only",),
        )  # fmt: skip
    return None


def _rounded(patient: _Patient, seen: Seen, batches: _Batches, flat: bool) -> Diagnosis | None:
    """The loss in half precision: what it returns fits into so few digits."""
    for name, digits in (("bfloat16", 8), ("float16", 11)):
        for (first, form, kind), values in seen.items():
            inputs, target = batches.inputs[kind], batches.meant[form]
            if len(values) != len(inputs) or not values or not all(_fits(v, digits) for v in values):
                continue
            for reading in _readings(flat):
                if (reading.first, reading.domain()) != (first, kind):
                    continue
                wanted = [reading.predict(_to_digits(x, digits), target) for x in inputs]
                # A few roundings of the format: of the exponentials, the sum, the logarithm and the mean.
                if all(
                    v is not None
                    and v.shape == w.shape
                    and np.allclose(v, w, 4 * 2.0**-digits, 4 * 2.0**-digits)
                    for v, w in zip(values, wanted, strict=True)
                ):
                    scalar = reading.reduction in ("sum", "N", "N*K", "K")
                    return Diagnosis(
                        family=reading.family, first=first, targets=(form,), reads=reading.reads,
                        reduction="none" if not scalar else "sum" if reading.reduction == "sum" else "mean",
                        denominator=reading.reduction if scalar and reading.reduction != "sum" else "nothing",
                        variant=f"the loss, rounded to {name}", sign=reading.sign, unit=reading.unit,
                        arrays=patient.arrays,
                    )  # fmt: skip
    return None


def _fits(value: Array | None, digits: int) -> bool:
    """Whether the values, not all whole numbers, have so few binary digits."""
    if value is None or not np.isfinite(value).all():
        return False
    return bool(np.any(value != np.round(value))) and np.array_equal(value, _to_digits(value, digits))


def _to_digits(x: Array, digits: int) -> Array:
    """Round to so many binary digits."""
    mantissa, exponent = np.frexp(x)
    return np.asarray(np.ldexp(np.round(np.ldexp(mantissa, digits)), exponent - digits))


def _describe(
    patient: _Patient, reading: _Reading, forms: tuple[str, ...], seen: Seen, flat: bool
) -> Diagnosis:
    """Put the further questions and collect the answers."""
    exam = _Examination(patient, reading, forms, flat)
    dtype = patient.result_dtype
    clip, epsilon = exam.clip()
    exam.edges()
    scalar = reading.reduction in ("sum", "N", "N*K", "K")
    shape = {"row means": "one value per row, the mean over K", "elements": "one value per row and class"}
    if reading.reduction in shape:
        exam.notes.append(shape[reading.reduction])
    for form in _batches(flat).given:
        if form not in forms and seen[reading.first, form, reading.domain()][-1] is not None:
            exam.notes.append(f"{form} targets return a number too, and it is not the loss")
    if flat:
        exam.notes.append("takes 1-D batches only")
    exam.one_column()
    if patient.arrays == "numpy" and dtype not in ("float64", ""):
        exam.notes.append(f"returns {dtype} for float64")
    diagnosis = Diagnosis(
        family=reading.family,
        first=reading.first,
        targets=forms,
        reads=reading.reads,
        reduction="none" if not scalar else "sum" if reading.reduction == "sum" else "mean",
        denominator=reading.reduction if scalar and reading.reduction != "sum" else "nothing",
        weights=exam.weights(),
        ignored=exam.ignored(),
        clip=clip,
        renormalises=exam.renormalises(),
        layout=exam.layout(),
        sequences=exam.sequences(),
        epsilon=epsilon,
        smoothing=exam.smoothing(),
        sign=reading.sign,
        unit=reading.unit,
        arrays=patient.arrays,
    )
    if patient.mutates:
        exam.notes.append("changes its arguments in place")
    return replace(diagnosis, notes=tuple(dict.fromkeys(exam.notes)))
