"""Chapter 8's checks: each takes your own loss, logits, targets, and answers yes, no or cannot tell, and why.

Arrays and tensors of NumPy, PyTorch and TensorFlow in any precision are taken, on any device, with the class axis
last or second. "Yes" means that the row's cause is there, "no" that it is not in what was given, and "cannot tell"
that what was given does not decide it.

>>> import numpy as np
>>> from xent_book import symptoms
>>> print(symptoms.nothing_counts(np.array([255, 255]), ignore_index=255))
yes: all 2 targets are ignored
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from xent import Diagnosis, diagnose
from xent._diagnose import to_numpy as array
from xent._diagnose._call import resolve
from xent.numerics import log_softmax, log_sum_exp

Array = np.ndarray[Any, Any]
Loss = Callable[..., Any]
Index = int | None
YES, NO, UNSURE = "yes", "no", "cannot tell"
SIZES = (("float16", 11, 15), ("bfloat16", 8, 127), ("float32", 24, 127), ("float64", 53, 1023))
# Digits in the significand, and the largest number.
FORMATS = {name: (digits, (2 - 2.0 ** (1 - digits)) * 2.0**top) for name, digits, top in SIZES}


class Answer(str):
    """The answer "yes", "no" or "cannot tell", with its reason; both are printed."""

    why: str

    def __new__(cls, says: bool | None, why: str) -> Answer:
        """Turn True, False or None into words."""
        self = super().__new__(cls, UNSURE if says is None else YES if says else NO)
        self.why = why
        return self

    def __str__(self) -> str:
        return f"{super().__str__()}: {self.why}"

    __repr__ = __str__


_asked = functools.lru_cache(maxsize=256)(diagnose)


def _of(loss: Loss | str, logits: Any = None) -> Diagnosis:
    """The diagnosis of a loss, kept: several checks put the same question. Only a picky loss gets your own shape."""
    found, shape = _asked(loss, None), np.shape(array(logits))
    if found.known or len(shape) < 2 or max(shape) > 5000:
        return found
    return next((d for s in ((2, *shape[1:]), shape) if (d := _asked(loss, s)).known), found)


def _told(found: Diagnosis, says: bool | None, why: str) -> Answer:
    """An answer that rests on a diagnosis."""
    unknown = "diagnose cannot explain this loss: " + "; ".join(found.notes)[:160]
    return Answer(says, why) if found.known else Answer(None, unknown)


def _axes(z: Array, y: Any = None, axis: Index = None) -> list[int]:
    """The axes on which the classes may lie: one, if it is told or the labels' shape shows it."""
    if axis is not None or z.ndim < 3:
        return [-1 if axis is None else axis]
    shape = z.shape if y is None else array(y).shape
    ones = [n for n in shape if n > 1]  # labels (B, T, 1) are (B, T)
    fits = [a for a in (-1, 1) if shape == z.shape or ones == [n for n in np.delete(z.shape, a) if n > 1]]
    one = [-1] * (y is not None and z.shape[-1] == 1) or [1] * (z.ndim > 3 and z.shape[1] == 1)
    return fits if len(fits) == 1 else one or [-1, 1]


def _normalised(z: Array, axis: int) -> bool:
    """Whether the entries are those of distributions along an axis, up to their precision; some may be 0 or nan."""
    sums = z.sum(axis)
    one = np.isclose(sums, 1, atol=0.02)
    return bool(not (z < 0).any() and (one | (sums == 0) | np.isnan(sums)).all() and one.any())


def _two_sigmoids(p: Array, axis: int) -> bool:
    """Whether pairs sum to about one, as two sigmoids of small logits do."""
    near = p.shape[axis] == 2 and np.ptp(p) < 0.1
    return bool(near and not (np.ptp(p) and np.allclose(p.sum(axis), 1, rtol=0, atol=1e-5)))


def _loose(*values: Any) -> float:
    """How far the sum of a distribution may lie from one in the coarsest format of some arrays."""
    return max({"float16": 0.02, "bfloat16": 0.02}.get(_kind(v), 1e-5) for v in values)


def _probabilities(z: Array) -> bool | None:
    """Whether numbers are probabilities of yes or no: few, or away from an end, they may as well be small logits."""
    inside = bool(((z >= 0) & (z < 1 + 1e-5)).all())  # sums of a softmax are rounded
    return None if inside and (z.size < 8 or np.ptp(z) <= 0.7) else inside


def _either(answers: Iterable[bool | None], why: str) -> Answer:
    """One answer for all axes on which the classes may lie, if they agree."""
    seen = set(answers)
    return Answer(seen.pop() if len(seen) == 1 else None, why)


def _kind(value: Any) -> str:
    """The name of a format, as "float16"."""
    dtype = getattr(value, "dtype", None)
    return str(getattr(dtype, "name", dtype) or array(value).dtype).removeprefix("torch.")


def _counting(y: Any, classes: int, ignore_index: int | None) -> Array:
    """The labels that count, where all of them are classes."""
    rows = array(y)
    if rows.ndim > 1 and rows.shape[-1] == classes > 1 and _normalised(rows, -1) and rows.any(-1).all():
        raise ValueError("rows of probabilities: give class indices")
    keep: Array = rows.ravel()[rows.ravel() != ignore_index]
    if ((keep < 0) | (keep >= classes) | (keep % 1 != 0)).any():
        raise ValueError(f"labels that are neither 0 to {classes - 1} nor {ignore_index}")
    return keep.astype(int)


def _rows(z: Array, y: Any, axis: int) -> tuple[Array, Array]:
    """Logits as (rows, classes), of yes and no as two classes, and labels as (rows,)."""
    moved = np.moveaxis(z[:, None] if z.ndim == 1 and z.shape == array(y).shape else z, axis, -1)
    x = moved.reshape(-1, moved.shape[-1])
    return np.concatenate([0 * x, x], 1) if x.shape[1] == 1 else x, array(y).reshape(-1)


def _labelled(logits: Any, targets: Any, axis: int | None) -> tuple[Array, Array]:
    """The rows whose label is a class, and these labels, where the shapes tell which is which."""
    z, y = array(logits).astype(float), array(targets)
    axes = _axes(z, y, axis)
    x, labels = _rows(z, y, axes[0])
    keep = (labels >= 0) & (labels < x.shape[1]) & (labels % 1 == 0)
    if len(axes) > 1 or len(x) != len(labels) or not (keep := keep & ~np.isnan(x).any(1)).any():
        raise ValueError("give a label for each row, and the axis of the classes if two are possible")
    return x[keep], labels[keep]


def _costs(z: Array, y: Array) -> Array:
    return np.asarray(-log_softmax(z)[np.arange(len(y)), y.astype(int)])


def _number(value: Any) -> float:
    """A loss, the mean where it is not reduced."""
    return float(array(value).astype(float).mean())


def _leaves(value: Any) -> list[Array]:
    """The numbers in a tensor, or in the tensors of several inputs or heads."""
    value = list(value.values()) if isinstance(value, Mapping) else value
    if isinstance(value, list | tuple) and any(np.iterable(v) or v is None for v in value):
        return [leaf for v in value for leaf in _leaves(v)]
    return [array(value).astype(float)] if array(value).dtype.kind in "fiub" else []


def _called(loss: Loss | str, logits: Any, targets: Any) -> float:
    """The sum of what a loss returns, called in its own order: the one that it takes, where diagnose knows none."""
    first, call = _of(loss).first, resolve(loss)
    try:
        return float(array(call(*(logits, targets)[:: -1 if first == "target" else 1])).astype(float).sum())
    except Exception:
        if first != "unknown":
            raise
        return float(array(call(targets, logits)).astype(float).sum())


def _hides_a_factor(found: Diagnosis) -> bool:
    """Whether a factor may be part of class weights, of which none is 1."""
    w = () if found.denominator == "the sum of weights" else found.class_weights or ()
    return len(w) > 0 and not np.isclose(w, 1).any()


def no_signal(logits: Any, targets: Any = None, *, inputs: Any = None, axis: Index = None) -> Answer:
    """Whether no class stands out, or no row, though the inputs differ: the logits do not depend on them."""
    differ = any((a != a[:1]).any() for a in _leaves(inputs) if a.ndim)
    z = array(logits).astype(float)
    digits = FORMATS.get(_kind(logits), FORMATS["float64"])[0]
    masked = np.isneginf(z) | ((z == z.min(initial=0)) & (z < -9e3))
    rounding = 2.0 ** (4 - digits) * max(1.0, float(np.abs(z[np.isfinite(z) & ~masked]).max(initial=0)))
    says, why = set[bool | None](), ""
    for a in _axes(z, targets, axis):
        x = np.where(masked, z.max(a, keepdims=True), z)
        x = np.concatenate([x, 0 * x], a) if x.shape[a] == 1 else x
        x = x - x.max(a, keepdims=True)  # the softmax sees differences alone
        classes = rows = float(np.ptp(x, axis=a).max())
        if x.size > x.shape[a]:
            each = x if len(x) > 1 else np.moveaxis(x, a, -1).reshape(-1, x.shape[a])
            rows = float(np.ptp(each, axis=0).max())
        low, high = sorted((1e-3, rounding))
        says.add(
            True
            if classes <= low or (differ and rows <= low)
            else False
            if min(classes, rows) >= high
            else None
        )
        same = ": the input is ignored, or equal in all rows (inputs= tells)" * (
            rows <= low < classes and not differ
        )
        why = (
            why or f"the logits differ by up to {classes:.3g} in a row, by up to {rows:.3g} in a class{same}"
        )
    return _either(says, why)


def large_first_logits(
    logits: Any, targets: Any, *, ignore_index: Index = -100, axis: Index = None
) -> Answer:
    """Whether the loss of a fresh model lies more than half a nat above log K."""
    z, found = array(logits).astype(float), []
    for a in _axes(z, targets, axis):
        x, labels = _rows(z, targets, a)
        y, keep = _counting(targets, x.shape[1], ignore_index), labels != ignore_index
        if not len(y) or len(x) != len(labels) or np.isnan(x).any():
            return Answer(None, "give logits without nan, and a label for each row, of which some count")
        found.append(float(_costs(x[keep], y).mean() - np.log(x.shape[1])))
    return _either((f > 0.5 for f in found), f"the loss is log K {found[0]:+.3g}")


def double_softmax(loss: Loss | str, logits: Any, targets: Any = None, *, axis: Index = None) -> Answer:
    """Whether a softmax stands before a loss that applies its own: in the loss, or in what it is given."""
    z, found = array(logits), _of(loss, logits)
    if found.known and found.reads != "logits":
        too_many = re.search("softmax (applied|before)", found.reads)
        return Answer(bool(too_many), f"the loss reads {found.reads}")
    binary = found.family.startswith("binary")
    wide = z.ndim > 1 or not binary
    axes = [a for a in _axes(z, targets, axis) if wide and z.shape[a] > 1 and _normalised(z, a)]
    if not axes:
        other = wide and not binary and any(z.shape[a] > 1 and _normalised(z, a) for a in range(z.ndim))
        why = "another axis than the classes sums to one" if other else "the rows given do not sum to one"
        return _told(found, None if binary else other, why)
    sure = binary or not all(_two_sigmoids(z, a) for a in axes)
    return _told(found, sure or None, "the rows given sum to one" + ", or are two sigmoids" * (not sure))


def double_sigmoid(loss: Loss | str, logits: Any) -> Answer:
    """Whether a sigmoid stands before a binary loss of logits: in the loss, or in what it is given."""
    z, found = array(logits), _of(loss)
    if found.reads != "logits" or not found.family.startswith("binary"):
        return _told(found, "sigmoid applied" in found.reads, f"a {found.family} that reads {found.reads}")
    rows = z.ndim > 1 and any(z.shape[a] > 1 and _normalised(z, a) for a in _axes(z))
    why = f"{z.size} numbers from {z.min():.3g} to {z.max():.3g}" + ", in rows of a softmax?" * rows
    return Answer(None if rows else _probabilities(z), why)


def smoothing_floor(loss: Loss | str) -> Answer:
    """Whether the loss smooths its labels."""
    found = _of(loss)
    share = found.smoothing or 0.0
    coarse = "float16" in found.precision or any("factor changes" in n for n in found.notes)
    return _told(found, bool(share) or (None if coarse else False), f"a smoothing of {share:.3g}")


def no_log_probabilities(loss: Loss | str, inputs: Any, *, axis: Index = None) -> Answer:
    """Whether a loss of log-probabilities is given something else."""
    x, found = array(inputs).astype(float), _of(loss, inputs)
    if found.reads != "log-probabilities":
        return _told(found, False, f"the loss reads {found.reads}")
    axis = {"second": 1, "last": -1}.get(found.layout) if axis is None and x.ndim > 2 else axis
    totals = [log_sum_exp(np.moveaxis(x, a, -1), axis=-1) for a in _axes(x, None, axis)]
    loose = 0.05 if _kind(inputs) == "bfloat16" else 0.02
    wrong = (not np.allclose(t, 0, atol=loose) for t in totals)
    return _either(wrong, f"exp of a row sums to {np.exp(np.ravel(totals[0])[0]):.3g}")


def targets_outside(targets: Any) -> Answer:
    """Whether targets of a binary loss leave the interval from 0 to 1."""
    t = array(targets).astype(float)
    off, why = np.maximum(-t, t - 1).max(), f"targets from {t.min():.8g} to {t.max():.8g}"
    return Answer(bool(off > 0) if off <= 0 or off > 1e-5 else None, why)  # rounding, or nan


def no_distributions(loss: Loss | str, log_q: Any, p: Any, *, axis: Index = None) -> Answer:
    """Whether a KL divergence is given something else than log q and p, or log p, of distributions."""
    found, q, t = _of(loss), array(log_q).astype(float), array(p).astype(float)
    if found.reads not in ("log-probabilities", "probabilities") or q.ndim != t.ndim:
        return _told(found, None, f"the loss reads {found.reads}, and is given {q.shape} and {t.shape}")
    q = np.exp(q) if found.reads == "log-probabilities" else q
    t = np.exp(t) if found.targets == ("log-probabilities",) else t
    each = ([float(max(np.abs(r.sum(a) - 1).max(), -r.min())) for r in (q, t)] for a in _axes(q, None, axis))
    off = min(each, key=max)
    why = f"rows of q are off a distribution by {off[0]:.2g}, rows of p by {off[1]:.2g}"
    return Answer(max(off) > max(5e-4, _loose(log_q, p)), why)


def _is_target(a: Array, other: Array) -> bool | None:
    """Whether an argument can only be the targets: text, or whole numbers that are labels or one-hot rows."""
    if a.dtype.kind in "iubOSU":
        return True
    whole = bool((a == np.round(a)).all())
    sure = a.ndim < other.ndim or (((a == 0) | (a == 1)).all() and np.ptp(a))
    return False if not whole else True if sure else None


def swapped_arguments(loss: Loss | str, first: Any, second: Any) -> Answer:
    """Whether the call hands over its two arguments, given here as you pass them, in the other order."""
    found = _of(loss)
    if found.first == "either":
        return Answer(False, "the loss takes both orders")
    first, second = array(first), array(second)
    a, b = _is_target(first, second), _is_target(second, first)
    if a is None or b is None or a == b:
        return Answer(None, "neither argument can only be the targets" if not a else "both look like targets")
    passed = "target" if a else "prediction"
    why = f"it takes the {found.first} first, and is given the {passed}"
    why += ", if the whole numbers are the targets" * ((first if a else second).dtype.kind == "f")
    return _told(found, passed != found.first, why)


def logits_as_probabilities(loss: Loss | str, logits: Any) -> Answer:
    """Whether a loss of probabilities is given logits."""
    z, found = array(logits), _of(loss, logits)
    if found.reads != "probabilities":
        return _told(found, False, f"the loss reads {found.reads}")
    good: bool | None = bool(((z >= 0) & (z < 1 + 1e-5)).all())
    if good and found.family.startswith("binary"):
        good = _probabilities(z)
    elif good:  # those of sigmoids, or small logits
        good = True if any(_normalised(z, a) for a in _axes(z)) else None
    why = f"it reads probabilities, and is given {z.min():.3g} to {z.max():.3g}"
    return Answer(None if good is None else not good, why)


def binary_loss_of_a_softmax(loss: Loss | str, probs: Any) -> Answer:
    """Whether a binary loss is given the rows of a softmax."""
    p, found = array(probs), _of(loss, probs)
    axes = [a for a in _axes(p) if p.ndim > 1 and p.shape[a] > 1 and _normalised(p, a)]
    why = f"a {found.family}; rows that {'sum' if axes else 'do not sum'} to one"
    says = None if axes and all(_two_sigmoids(p, a) for a in axes) else bool(axes)
    return _told(found, says if found.family.startswith("binary") else False, why)


def other_unit(loss: Loss | str) -> Answer:
    """Whether the loss is in bits or hartleys."""
    found = _of(loss)
    hidden = "times" in found.added and "(divided by" not in found.added and "T²" not in found.added
    if (hidden or _hides_a_factor(found)) and found.unit == "nats":
        return Answer(None, f"nats, {found.added}: another unit, with a factor?")
    return _told(found, found.unit != "nats", f"the unit is {found.unit}")


def perplexity_overflows(loss_value: Any) -> Answer:
    """Whether exp of a loss leaves float32, or the loss's own format."""
    value, kind = _number(loss_value), _kind(loss_value)
    if not np.isfinite(value):
        return Answer(None, f"the loss is {value}")
    if kind == "float64" and np.log(FORMATS["float32"][1]) < value <= np.log(FORMATS[kind][1]):
        return Answer(None, f"exp({value:.4g}) fits into float64, not into float32")
    kind = kind if kind in FORMATS else "float32"
    return Answer(bool(value > np.log(FORMATS[kind][1])), f"exp({value:.4g}) in {kind}")


def _nearest(values: Array, kind: str) -> Array:
    """The nearest numbers of a format of half precision."""
    with np.errstate(over="ignore"):
        if kind == "float16":
            return values.astype(np.float16).astype(float)
        bits = values.astype(np.float32).view(np.uint32) + np.uint32(2**15)
    return np.asarray((bits - bits % np.uint32(2**16)).view(np.float32).astype(float))


def few_digits(loss: Loss | str, logits: Any = None, loss_value: Any = None) -> Answer:
    """Whether the loss is computed, or stored, in half precision."""
    stored, given = (str(getattr(v, "dtype", "")) for v in (loss_value, logits))
    if "float16" in stored:
        return Answer(True, f"it is kept in {stored}")
    if "float16" in given and loss_value is None:
        return Answer(None, f"the logits are in {given}: give the loss's value")
    value = array([] if loss_value is None else loss_value).astype(float)
    if not np.isfinite(value).all():
        return Answer(None, "the loss is not finite")
    for kind in ("bfloat16", "float16") if value.size else ():
        near = _nearest(value, kind)
        if (near == value).all():
            # Near 0 a loss is a few units in the last place of log-sum-exp.
            short = ((8 * value % 1 == 0) | (abs(value) < 1e-3)).all() and "float16" not in given
            return Answer(None if short else True, f"it has no more digits than {kind}")
        if any((np.round(near, digits) == value).all() for digits in (3, 4)):
            return Answer(None, f"it may be a number of {kind}, rounded: give more digits")
    if "float16" in given:
        return Answer(False, f"it has more digits than {given}, the format of the logits")
    found = _of(loss)
    return _told(found, "float16" in found.precision, f"computed in {found.precision}")


def rows_do_not_sum(probs: Any, *, axis: Index = None) -> Answer:
    """Whether rows of probabilities fail to sum to one, by more than their precision explains."""
    p = array(probs).astype(float)
    axes = _axes(p, None, axis)
    if p.ndim < 2 or p.shape[axes[0]] == 1 or ("int" in _kind(probs) and p.max() > 1):
        return Answer(None, "one number for each row: of yes and no, or class indices?")
    off = [float(np.abs(p.sum(a) - 1).max()) for a in axes]
    wrong = [not v <= _loose(probs) for v in off]
    return Answer(True if all(wrong) else None if wrong[0] else False, f"a row is off by {off[0]:.2g}")


def columns_out_of_order(columns: Any) -> Answer:
    """Whether the classes, in the order of your columns, are not in the order of scikit-learn."""
    if isinstance(columns, Mapping):  # label2id, class_indices, or id2label
        columns = [n for _, n in sorted((v, k) if isinstance(k, str) else (k, v) for k, v in columns.items())]
    names = list(columns)
    moved = sum(a != b for a, b in zip(names, sorted(names), strict=True))
    return Answer(moved > 0, f"{moved} of {len(names)} columns are elsewhere after sorting")


def classes_missing(targets: Any, probs: Any) -> Answer:
    """Whether fewer classes are present in the labels than there are columns."""
    p, y = array(probs), array(targets)
    if y.ndim > 1 and y.shape[-1] > 1:
        return Answer(y.shape != p.shape, f"rows of shape {y.shape}, predictions of {p.shape}")
    present = len(np.unique(y))
    columns = p.shape[-1] if p.ndim > 1 and p.shape[-1] > 1 else 2
    return Answer(present < columns, f"{present} classes in the labels, {columns} in the predictions")


def log_of_a_softmax(loss: Loss | str) -> Answer:
    """Whether a sure model overflows or underflows inside the loss."""
    found = _of(loss)
    over = any("exp overflows" in n for n in found.notes)
    lost = "inf" in found.clip
    if lost and found.reads == "probabilities":
        return Answer(None, "it reads probabilities: inf, once a softmax before it underflows")
    if found.clip in ("unknown", "not applicable") and found.reads == "logits" and not over:
        return _told(found, None, "what an impossible event costs is not known")
    return _told(found, over or (lost and found.reads == "logits"), f"clips: {found.clip}")


def zero_times_log_zero(loss: Loss | str) -> Answer:
    """Whether a probability of zero for a wrong class gives nan."""
    found = _of(loss)
    hit = any("0 * log(0)" in n for n in found.notes)
    untried = found.family == "KL divergence" or any("costs nan" in n for n in found.notes)
    return _told(found, True if hit else None if untried else False, "a zero for a wrong class was tried")


def nothing_counts(targets: Any, *, ignore_index: int = -100) -> Answer:
    """Whether every target is ignored."""
    keep = array(targets) != ignore_index
    some = f"{keep.sum()} of {keep.size} targets count"
    if keep.ndim == 2 and keep.any() and keep.shape[1] > 1 and not keep[:, 1:].any():
        return Answer(None, f"{some}, each the first of its row: none, if the loss shifts")
    return Answer(not keep.any(), some if keep.any() else f"all {keep.size} targets are ignored")


def nan_where_ignored(logits: Any, targets: Any, *, ignore_index: Index = -100, axis: Index = None) -> Answer:
    """Whether an ignored row holds nan or inf, or nothing but -inf: single classes at -inf do no harm."""
    z, found = array(logits).astype(float), []
    for a in _axes(z, targets, axis):
        x, y = _rows(z, targets, a)
        largest = x[y == ignore_index].max(-1)
        found.append(bool(not np.isfinite(largest).all()))
    return _either(found, "an ignored row is not finite" if any(found) else "ignored rows have a softmax")


def masked_class(logits: Any, target_probs: Any) -> Answer:
    """Whether a logit of -inf meets a target of zero."""
    z, t = array(logits), array(target_probs)
    if z.shape != t.shape:
        return Answer(None, f"logits of shape {z.shape}, targets of {t.shape}: give rows")
    hit = np.isneginf(z) & (t == 0)
    return Answer(bool(hit.any()), f"{hit.sum()} entries of -inf with a target of 0")


def _left_out(mask: Any, true_is: str | None) -> Array | None:
    """Where an attention mask leaves a position out, or None if it could be read in two ways."""
    m = array(mask)
    if m.dtype.kind == "f" and (not ((m == 0) | (m == 1)).all() or not (true_is or m.any())):
        return np.asarray(m <= -1e4)
    zeros, m = m.dtype.kind == "f" and not m.any(), m.astype(bool)
    if true_is == "seen" and not zeros:
        return np.asarray(~m)
    return m if true_is == "left out" else None


def sees_nothing(mask: Any, *, true_is: str | None = None, padding: Any = None) -> Answer:
    """Whether a row of an attention mask allows no position, alone or together with a mask of padding.

    `true_is` is "seen" or "left out" for booleans; a mask of floats is added to the scores. `padding` is that of
    `nn.MultiheadAttention`, (B, T) and true where left out, beside (T, T), (B, ..., T, T) or (B * heads, T, T).
    """
    out = _left_out(mask, true_is)
    if out is None:
        m = array(mask).astype(bool)
        if not (m.all(-1) | (~m).all(-1)).any() and padding is None:
            return Answer(False, "every row has both kinds of position")
        why = "say true_is='seen' or 'left out' (nn.MultiheadAttention's True); or are zeros added to scores?"
        return Answer(None, why)
    if padding is not None:
        pad = array(padding).astype(bool)
        if out.ndim == 3:
            pad = np.repeat(pad, max(1, len(out) // len(pad)), 0)
        out = out | pad.reshape(len(pad), *[1] * (max(out.ndim, 3) - 2), -1)
    empty, m = out.all(-1), array(mask)
    finite = padding is None and m.dtype.kind == "f" and true_is is None and not np.isneginf(m[empty]).any()
    why = f"{int(empty.sum())} rows of {empty.size} see nothing" + ", but their scores are finite" * finite
    return Answer(None if finite and empty.any() else bool(empty.any()), why)


def half_overflows(loss: Loss | str, logits: Any, targets: Any) -> Answer:
    """Whether the loss of tensors in half precision is not finite, or 0, where that of float32 is neither."""
    if "float16" not in _kind(logits):
        return Answer(False, "the logits are not in half precision")
    if not (np.isfinite(array(logits)) | np.isneginf(array(logits))).all():
        return Answer(True, "the logits themselves are inf or nan in half precision")
    wide = logits.float() if hasattr(logits, "float") else array(logits).astype(np.float32)
    with np.errstate(all="ignore"):
        short, full = (_called(loss, v, targets) for v in (logits, wide))
    why = f"{short:.4g} in half precision, {full:.4g} in float32"
    many = "bfloat16" not in _kind(logits) and int((array(targets) >= 0).sum()) >= 65_520
    lost = not np.isfinite(short) or (short == 0 and full > (2.0**-24 if many else 0.01))  # the count is inf
    masked = np.isneginf(array(logits)).any() and not np.isfinite(full)  # or were they finite once?
    return Answer(None if masked else bool(lost and np.isfinite(full)), why)


def half_weights(model: Any) -> Answer:
    """Whether an optimiser would update weights in float16, where Adam's epsilon of 1e-8 is 0."""
    weights = model.parameters() if hasattr(model, "parameters") else model.trainable_weights
    kinds = sorted({_kind(w) for w in weights if getattr(w, "requires_grad", True)})
    why = "trainable weights in " + (", ".join(kinds) or "none: build the model first")
    return Answer("float16" in kinds if kinds else None, why)


def _weights(w: Any) -> Array:  # Keras takes them in a dictionary
    return array([w[k] for k in range(len(w))] if isinstance(w, Mapping) else w).astype(float)


def no_weight_left(weights: Any, targets: Any, *, ignore_index: Index = -100) -> Answer:
    """Whether no target of the batch has a positive weight."""
    w = _weights(weights)
    keep = _counting(targets, len(w), ignore_index)
    return Answer(float(w[keep].sum()) == 0, f"the weights of {keep.size} targets sum to {w[keep].sum():.4g}")


def not_finite(*arrays: Any) -> Answer:
    """Whether an input, an embedding or a weight is nan or inf; -inf alone may be a mask's."""
    given = _leaves(arrays)
    bad = [int((~np.isfinite(a)).sum()) for a in given]
    if not any(bad) and not (arrays and all(map(_leaves, arrays))):
        return Answer(None, "an argument holds no real numbers: give arrays, tensors, or lists of these")
    masks = any(bad) and all((np.isfinite(a) | np.isneginf(a)).all() for a in given)
    why = f"numbers that are not finite, array by array: {bad}" + ", all of them -inf" * masks
    return Answer(None if masks else any(bad), why)


def mask_overflows(fill: float, logits: Any) -> Answer:
    """Whether the number that masks logits does not fit into their format."""
    if (kind := _kind(logits)) not in FORMATS:
        return Answer(None, f"the logits are in {kind}")
    largest = FORMATS[kind][1]
    return Answer(bool(abs(fill) > largest and np.isfinite(fill)), f"{kind} ends at {largest:.6g}")


def clipped(loss: Loss | str, inputs: Any = None) -> Answer:
    """Whether the loss clips probabilities, or what it is given has been clipped: its extreme stands there often."""
    found = _of(loss)
    if found.known and found.epsilon is not None:
        return Answer(True, f"the loss clips {found.clip}")
    x = np.zeros(1) if inputs is None else array(inputs).astype(float)
    x = np.unique(x.reshape(-1, x.shape[-1]), axis=0)  # equal rows repeat their smallest number
    if ((x >= 0) & (x <= 1)).all() and x.any():
        x = np.log(np.maximum(x, 1e-300))
    x = np.where(x > -690, x, 0.0)  # 0 and its logarithm are not clipped
    low = x.min(initial=0.0) if (x <= 0).all() else 0.0
    decimal, there = low / np.log(10), np.isclose(x, low, rtol=1e-6)
    often = there.any(-1).sum() > 1 and found.reads != "logits"  # ties repeat it in one row
    if low < -9 and low < x.max() and (often or abs(decimal - round(decimal)) < 1e-4):
        # In half precision neighbours are equal by rounding, unless far more pile up at the end than beside it.
        beside = (x == x[x > low].min(initial=0.0)).sum()
        exact = (_nearest(given := array(inputs).astype(float), "float16") == given).all()
        sure = not ("16" in _kind(inputs) or exact) or there.sum() > 3 * beside
        # So are the smallest numbers of float32, multiples of 2^-149.
        steps = np.exp(low + 149 * np.log(2))
        sure = sure and not (steps < 2**23 and abs(steps - round(steps)) < 1e-4 * steps)
        return Answer(True if sure else None, f"what it is given stops at a probability of {np.exp(low):.2g}")
    blind = found.clip in ("unknown", "not applicable") and found.reads in ("logits", "probabilities")
    looked = "; in what it is given the smallest number was looked at" * (inputs is not None)
    return _told(found, None if blind else False, f"clips: {found.clip}{looked}")


def _gradient(loss: Loss | str, signs: tuple[str, ...]) -> Answer:
    """Whether what is known of the gradient begins with one of these words."""
    found = _of(loss)
    if found.gradient.startswith(("unknown", "not applicable", "raises")):
        return _told(found, None, f"its arrays have no gradient: {found.gradient}")
    return _told(found, found.gradient.startswith(signs), f"the gradient is {found.gradient}")


def gradient_fades(loss: Loss | str) -> Answer:
    """Whether a sure and wrong example has lost its gradient."""
    return _gradient(loss, ("that of the value, but",))


def gradient_missing(loss: Loss | str) -> Answer:
    """Whether the value is cut off from the prediction."""
    return _gradient(loss, ("missing", "zero"))


def gradient_not_finite(loss: Loss | str) -> Answer:
    """Whether the gradient is nan where the loss is finite, as that of a focal loss with an exponent below one."""
    return _gradient(loss, ("that of the value, and nan", "not finite"))


def sign_flipped(loss: Loss | str, logits: Any = None) -> Answer:
    """Whether the loss falls as the model gets worse."""
    found = _of(loss, logits)
    return _told(found, found.sign < 0, f"a right answer costs {'more' if found.sign < 0 else 'less'}")


def softmax_over_another_axis(probs: Any, *, axis: Index = None, loss: Loss | None = None) -> Answer:
    """Whether probabilities sum to one along another axis than that of the classes."""
    if loss is not None and (found := _of(loss)).known and found.axis not in ("the classes", "unknown"):
        return Answer(True, f"the loss's softmax runs over {found.axis}")
    p = array(probs)
    right = {a % p.ndim for a in _axes(p, None, axis)}
    sums = {a for a in range(p.ndim) if p.shape[a] > 1 and _normalised(p, a)}
    if p.shape[0] == 1 < p.size and not sums and (p == 1).all():
        sums = {0}  # a batch of one row
    if sums & right:
        say = ": say axis=, that of the classes" * (len(right) > 1)
        says = None if say or sums - right or p.ndim < 2 else False
        return Answer(says, f"the axes {sorted(sums)} sum to one{say}")
    if p.size > 8 and any(_normalised(p.reshape(*p.shape[:n], -1), n) for n in range(p.ndim - 1)):
        return Answer(True, "several axes together sum to one")
    why = f"axis {min(sums)} sums to one, not the classes" if sums else "no axis sums to one"
    if sums and all(_two_sigmoids(p, a) for a in sums):
        return Answer(None, f"{why}: or two sigmoids of small logits do")
    return Answer(bool(sums), why)


def depends_on_other_rows(model: Callable[[Any], Any], inputs: Any) -> Answer:
    """Whether the output of the first row changes with the rest of the batch, as under batch normalisation."""
    rows = array(inputs)
    if rows.dtype.kind == "f":  # other rows beside them: their own, moved and scaled
        batches = np.concatenate([rows, 2 * rows + 1]), np.concatenate([rows, 3 * rows - 1, 0.5 * rows])
    elif len(rows) > 1 and (rows != rows[0]).any():
        batches = rows, np.concatenate([rows, np.repeat(rows[:1], len(rows), 0)])
    else:
        return Answer(None, "give two rows that differ")
    model = copy.deepcopy(model) if hasattr(model, "eval") else model  # statistics move
    one, again = (_row(model, inputs, batches[0], 0) for _ in range(2))
    two = _row(model, inputs, np.ascontiguousarray(batches[1][::-1]), -1)  # a layer may take rows for time
    off, chance = (float(np.abs(one - other).max()) for other in (two, again))
    scale = 1e-3 * max(1e-3, float(np.abs(one).max()))
    if not chance <= scale:
        return Answer(None, f"the first row moves by {chance:.2g} with the same rows beside it: dropout?")
    return Answer(off > scale, f"the first row moves by {off:.2g} with other rows beside it")


def _row(model: Callable[[Any], Any], like: Any, rows: Array, at: int) -> Array:
    """What a model returns for a row of a batch, from all of its heads."""
    batch = like.new_tensor(rows) if hasattr(like, "new_tensor") else rows.astype(_kind(like))
    return np.concatenate([a[at].ravel() for a in _leaves(model(batch)) if a.ndim and len(a) == len(rows)])


def modes_differ(model: Any, inputs: Any) -> Answer:
    """Whether a model of PyTorch or Keras answers otherwise in training, as with dropout or batch normalisation."""
    if hasattr(model, "eval"):
        copied = copy.deepcopy(model)
        pair = copied.train()(inputs), copied.eval()(inputs)
    else:
        pair = model(inputs, training=True), model(inputs, training=False)
    one, two = (np.concatenate([a.ravel() for a in _leaves(heads)]) for heads in pair)
    off = float(np.abs(one - two).max())
    moved = off > 1e-3 * max(1e-3, float(np.abs(two).max()))
    return Answer(moved, f"outputs move by up to {off:.2g} between training and evaluation")


def one_column(loss: Loss | str, logits: Any, *, axis: Index = None) -> Answer:
    """Whether a softmax is taken over a single column, in the loss or before it."""
    z, found = array(logits), _of(loss)
    if z.ndim < 2:
        return Answer(None, "one dimension: a row, or a column?")
    if axis is None:
        axes = {"second": [1], "last": [-1]}.get(found.layout, _axes(z)) if z.ndim > 2 else [-1]
        if len({z.shape[a] == 1 for a in axes}) > 1:
            return Answer(None, f"{z.shape[1]} or {z.shape[-1]} columns: say axis=")
        axis = axes[0]
    if z.shape[axis] != 1:
        return Answer(False, f"{z.shape[axis]} columns")
    if z.size > 1 and (z == 1).all():
        return Answer(not found.family.startswith("binary") or None, "one column, and each entry is 1")
    return _told(found, found.family.startswith("categorical"), f"one column, in a {found.family}")


targets_do_not_sum = rows_do_not_sum  # the same question to the labels


def changes_arguments(loss: Loss | str) -> Answer:
    """Whether the loss writes into what it is given."""
    found = _of(loss)
    return _told(found, "changes its arguments in place" in found.notes, "compared before and after the call")


def weights_bend(loss: Loss | str, logits: Any = None) -> Answer:
    """Whether class weights or pos_weight move the probabilities that are learnt."""
    found = _of(loss, logits)
    # A weight of each output of a binary loss scales both of its labels alike.
    bends = found.pos_weight or (found.class_weights and not found.family.startswith("binary"))
    return _told(found, bool(bends), found.added or "no weights")


def rate_too_high(losses: Any) -> Answer:
    """Whether a curve of losses ends above its first value, leaves the numbers, or loses a third of what it had won."""
    curve = array(losses).astype(float).ravel()
    if len(curve) < 4:
        return Answer(None, "give at least four losses")
    if not np.isfinite(curve).all():
        steps = int(np.argmin(np.isfinite(curve)))
        why, end = f"not finite after {steps} steps", curve[max(0, steps - 3) : steps]
        head = curve[: max(1, min(steps - 3, steps // 2))]
        if np.isfinite(curve[steps:]).any() or not (end > 1.1 * head.max() + np.ptp(head)).any():
            return Answer(None, f"{why}, and no rise before: one batch, or its inputs?")
        return Answer(True, why)
    parts = np.array_split(curve, min(12, len(curve)))
    means = [part.mean() for part in parts]
    first, best, last = curve[0], min(means), float(curve[-max(1, len(curve) // 4) :].mean())
    high, lost = last > first, last - best > (first - best) / 3
    noise = float(np.median(np.abs(np.diff(curve, 2)))) * 1.4826 / 6**0.5  # of a smooth curve: none
    flat = last - best <= 1e-6 * abs(first)  # and its rounding
    beyond = last - min(best, first) > (3 + 24 / len(curve)) * noise and (high or len(curve) >= 24)
    # Skewed or correlated losses are noisier: the end lies above all of the best part.
    beyond = beyond and curve[-max(1, len(curve) // 4) :].min() > parts[np.argmin(means)].max()
    why = f"from {first:.4g} over {best:.4g} to {last:.4g}, if the batches are alike"
    return Answer((beyond or None) if (high or lost) and not flat else False, why)


def sure_and_wrong(logits: Any, targets: Any, *, axis: Index = None) -> Answer:
    """Whether a tenth of the rows carries half of the loss, and more than the model's own probabilities foretell."""
    z, y = _labelled(logits, targets, axis)
    if len(y) < 20:
        return Answer(None, "give at least twenty rows with a label")
    each, log_p = _costs(z, y), log_softmax(z)
    if not 0 < each.sum() < np.inf:
        return Answer(None if each.any() else False, f"together the rows cost {each.sum():.3g}")
    share = float(np.sort(each)[::-1][: len(each) // 10].sum() / each.sum())
    terms = np.where(np.isneginf(log_p), 0, log_p)
    foretold = -(np.exp(log_p) * terms).sum(-1)
    spread = (np.exp(log_p) * terms**2).sum(-1) - foretold**2
    beyond = float((each - foretold).sum()) > 2 * np.sqrt(max(0.0, float(spread.sum())))
    why = f"a tenth of the rows carries {share:.2g} of the loss, {each.mean():.3g}; {foretold.mean():.3g} foretold"
    return Answer((beyond or None) if share > 0.5 else False, why)


def rounds_to_zero(logits: Any, targets: Any, *, axis: Index = None) -> Answer:
    """Whether a sure answer's loss is lost in the logits' format, even where the largest logit is subtracted first."""
    (z, y), kind = _labelled(logits, targets, axis), _kind(logits)  # labels such as -100 have no loss
    smallest = 2.0 ** -FORMATS.get(kind, FORMATS["float64"])[0]
    costs = _costs(z, y)
    lost = costs < smallest
    perhaps = costs < smallest * np.maximum(1, np.abs(z).max(-1))  # log-sum-exp minus z, as it is written
    why = f"{int(lost.sum())} of {len(z)} rows cost less than {kind} resolves"
    if perhaps.all() and not lost.all():
        return Answer(None, f"{why}, {int(perhaps.sum())} unless the largest logit is subtracted first")
    return Answer(bool(lost.all()), why)


def scaled_loss(logged: Any, loss_value: Any) -> Answer:
    """Whether what was logged is the loss times a power of two, as a gradient scaler leaves it."""
    ratio = _number(logged) / _number(loss_value)
    if not np.isfinite(ratio):
        return Answer(None, f"{ratio} times the loss")
    loose = 6e-3 if "16" in _kind(loss_value) + _kind(logged) else 1e-3
    power, why = np.log2(ratio) if ratio > 0 else 0.0, f"{ratio:.6g} times the loss"
    if abs(power - round(power)) > loose or power < 3.5:
        return Answer(False, why)
    return Answer(True if power > 14.5 else None, f"{why}, or a sum of as many")


def accumulation(model: Any, micro_batches: Any, whole_batch: Any, step: Any, **options: Any) -> Answer:
    """Whether an accumulation step has another gradient than the whole batch; see `xent.torch.check_accumulation`."""
    import xent.torch

    report = xent.torch.check_accumulation(model, micro_batches, whole_batch, step, **options)
    # Equal counts hide a mean of means; noise, a clip, a normalisation and other examples hide the denominators.
    hides = re.match(
        "cannot tell|the step does|the whole|batch norm|gradients are|unknown: (no|the g)", report.cause
    )
    unsure = "equal counts" in report.cause if report.ok else hides
    return Answer(None if unsure else not report.ok, " ".join(str(report).split())[:300])


def nobody_divides(logged: Any, loss_value: Any, steps: int) -> Answer:
    """Whether what is logged is the loss times the number of accumulation steps."""
    ratio = _number(logged) / _number(loss_value)
    near = None if steps < 2 or np.isnan(ratio) else abs(ratio - steps) < 0.05 * steps
    if not near and ratio > (1 + steps) / 2:  # means of unequal counts, or the loss of one of them
        near = None
    return Answer(near, f"{ratio:.4g} times the loss, with {steps} steps")


def ranks_differ(counts: Any) -> Answer:
    """Whether ranks have different numbers of targets."""
    numbers = [float(array(c).sum()) for c in (counts.values() if isinstance(counts, Mapping) else counts)]
    return Answer(len(set(numbers)) > 1, f"from {min(numbers):.0f} to {max(numbers):.0f} targets")


def divides_by_classes(loss: Loss | str) -> Answer:
    """Whether a categorical loss, or a KL divergence, is divided by the number of classes too."""
    found = _of(loss)
    wrong = found.denominator in ("N*K", "K") and not found.family.startswith("binary")
    if wrong and found.reduction == "sum":
        return Answer(None, "a sum divided by the length of its last axis: by N, if your classes come first")
    if not wrong and _hides_a_factor(found) and not found.family.startswith("binary"):
        return Answer(None, f"{found.added}: a factor of 1 / K, in the weights?")
    return _told(found, wrong, f"a {found.family} divided by {found.denominator}")


def weighted_means_differ(weights: Any, targets: Any, *, ignore_index: Index = -100) -> Answer:
    """Whether the mean weight of the batch's targets is not one, so that two divisors differ."""
    w = _weights(weights)
    mean = float(w[_counting(targets, len(w), ignore_index)].mean())
    differs = None if np.isnan(mean) else not np.isclose(mean, 1)
    return Answer(differs, f"the targets weigh {mean:.4g} on average")


def divides_by_weights(loss: Loss | str, logits: Any = None) -> Answer:
    """Whether the mean divides by the batch's own sum of class weights."""
    found = _of(loss, logits)
    return _told(found, found.denominator == "the sum of weights", f"divides by {found.denominator}")


def weights_of_another_shape(weights: Any, logits: Any) -> Answer:
    """Whether weights fit neither the classes nor, stretched over its axes, the batch."""
    w, z = array(weights).astype(float).shape, array(logits).shape
    classes = len(w) == 1 and len(z) > 1 and w[0] == z[1]
    stretched = len(w) <= len(z) and all(a in (1, b) for a, b in zip(w[::-1], z[::-1], strict=False))
    # A vector fits the classes of a categorical loss, or the last axis of a binary one, and a row the latter alone.
    sure = (len(w) != 1 or len(z) < 3 or classes == stretched) and (len(z) != 2 or w != (1, z[1]))
    why = f"weights of shape {w} for logits of shape {z}" + ", in a binary loss" * (stretched and not classes)
    return Answer(not (classes or stretched) if sure else None, why)


def weights_dropped(loss: Loss | str) -> Answer:
    """Whether a keyword argument for weights is taken and has no effect."""
    found = _of(loss)
    lost = re.findall(r"(\w+): swallowed", found.weights)
    says = True if any("weight" in n or "mask" in n for n in lost) else None if lost else False
    return _told(found, says, f"weights: {found.weights}")


def flat_batch(loss: Loss | str, targets: Any, predictions: Any) -> Answer:
    """Whether a loss that averages over the last axis is given labels and predictions of shape (N,)."""
    y, p = array(targets), array(predictions)
    if y.ndim != 1 or p.ndim != 1:
        return Answer(False, f"predictions of shape {p.shape}: the labels get that shape")
    found = _of(loss)
    averaged = "one value per row, the mean over K" in found.notes
    return _told(found, averaged or _spreads_weights(loss, y, p), "labels and predictions are of shape (N,)")


def _spreads_weights(loss: Loss | str, y: Array, p: Array) -> bool:
    """Whether other rows count beside one that has all the weight, as after a mean over its only axis."""
    if len(y) < 2 or isinstance(loss, str):
        return len(y) > 1 and _of(loss).family.startswith("binary")
    first, step = np.eye(len(y))[0], 1 if _of(loss).first == "target" else -1
    other = np.where(first, p, np.where(p < 0.5, 0.9, 0.1)).astype(p.dtype)
    try:
        one, two = (array(loss(*(y, v)[::step], sample_weight=first)).sum() for v in (p, other))
        return not np.isclose(one, two, rtol=1e-3)
    except Exception:  # it takes no such weights
        return False


def mean_of_batch_means(losses: Any, reported: float) -> Answer:
    """Whether what is reported is the mean of the batches' means, not the mean over all unreduced losses."""
    each = [array(part).astype(float).ravel() for part in losses]
    if not each or min(map(len, each)) == 0:
        return Answer(None, "each batch needs a loss")
    pooled, means = float(np.concatenate(each).mean()), float(np.mean([e.mean() for e in each]))
    if np.isclose(pooled, means, rtol=1e-5):
        return Answer(None, "both means are one number here: give batches of different sizes")
    off, near = (abs(float(reported) - mean) for mean in (pooled, means))
    clear = min(off, near) < abs(pooled - means) / 4
    return Answer(near < off if clear else None, f"pooled {pooled:.6g}, mean of means {means:.6g}")


def sequence_means(loss: Loss | str) -> Answer:
    """Whether each sequence is divided by a power of its length before sequences are averaged."""
    said = (found := _of(loss)).sequences
    means = bool(re.search("sequence means|its length|one mean for", said))
    return _told(found, None if said == "unknown" else means, f"sequences: {said}")


def _others(z: Array, axis: int) -> Array:
    """Far other logits; probabilities where there were such."""
    if z.ndim == 1 or z.shape[axis] == 1:
        return np.where(z < 0.5, 0.9, 0.1)
    ramp = np.moveaxis(np.broadcast_to(np.arange(z.shape[axis]), np.moveaxis(z, axis, -1).shape), -1, axis)
    if ((z >= 0) & (z <= 1)).all():
        return np.asarray((ramp + 1.0) ** 2 / ((ramp + 1.0) ** 2).sum(axis, keepdims=True))
    return np.asarray(np.flip(z, axis=axis) + 10.0 * ramp)


def padding_counts(loss: Loss | str, logits: Any, targets: Any, padded: Any, *, axis: Index = None) -> Answer:
    """Whether the loss changes with the logits of padded positions."""
    z, pad = array(logits), array(padded).astype(bool)
    if not pad.any():
        return Answer(None, "nothing is padded")
    found, axes = _of(loss), min(_axes(z, targets, axis), _axes(z, pad, axis), key=len)
    if len(axes) > 1 and found.layout not in ("last", "second"):
        return Answer(None, "the classes may lie on two axes: say axis=")
    a = axes[0] if len(axes) == 1 or found.layout == "last" else 1
    z = z.astype(np.float32) if "16" in _kind(logits) else z  # half precision would lose one row among many
    pad = pad if pad.shape == z.shape else np.expand_dims(pad.reshape(np.delete(z.shape, a)), a)
    other = np.where(pad, _others(z, a), z).astype(z.dtype)
    like = logits.float() if hasattr(logits, "new_tensor") and "16" in _kind(logits) else logits
    pair = [like.new_tensor(v) if hasattr(like, "new_tensor") else v for v in (z, other)]
    one, two = (_called(loss, v, targets) for v in pair)
    why = f"{one:.7g} becomes {two:.7g} with other logits under the padding"
    if not np.isclose(one, two, rtol=1e-6):
        return Answer(None if np.isnan(one) else True, why)
    # A mask on the sum alone: the padding still counts in the divisor, if more of it lowers the loss.
    y = array(targets)
    where = pad if pad.shape == y.shape else pad.any(a)
    along = 0 if z.ndim < 3 else 1 if a == -1 else 2
    if z.ndim < 2 or (where.shape != y.shape and (a == 1 or y.shape != z.shape)):
        return Answer(False, f"{why}; whether it is divided by them was not tried")
    z = np.concatenate([z, np.take(z, [0], along)], along)
    each = along if pad.shape == y.shape else min(along, 1)
    y = np.concatenate([y, np.full_like(np.take(y, [0], each), y[where][0])], each)
    more = (v.new_tensor(m) if hasattr(v, "new_tensor") else m for v, m in ((like, z), (targets, y)))
    try:
        three = _called(loss, *more)
    except Exception:
        return Answer(None, f"{why}, and the loss takes no padding more")
    why += f", {three:.7g} with another padded position"
    return Answer(bool(not np.isclose(one, three, rtol=1e-5)), why)


def ignored_class(ignore_index: int, classes: int) -> Answer:
    """Whether the ignored index is one of the classes."""
    return Answer(0 <= ignore_index < classes, f"classes 0 to {classes - 1}, ignored {ignore_index}")


def minus_one_is_a_class(loss: Loss | str) -> Answer:
    """Whether the label -1 is read as the last class."""
    said = (found := _of(loss)).ignored
    last = None if said == "unknown" else "-1: counted as the last class" in said
    return _told(found, last, f"ignored: {said}")


def label_out_of_range(targets: Any, classes: int, *, ignore_index: Index = -100) -> Answer:
    """Whether a label that counts is no class."""
    y = array(targets).ravel()
    bad = y[(y != ignore_index) & ~((y >= 0) & (y < int(classes)) & (y % 1 == 0))]
    such = f", such as {bad[0]}" if bad.size else ""
    left = int((y == ignore_index).sum())
    also = f"; {left} are {ignore_index}, which the loss has to skip" * bool(left)
    return Answer(bool(bad.size), f"{bad.size} labels are no class{such}{also}")


def classes_on_the_last_axis(loss: Loss | str, logits: Any, targets: Any) -> Answer:
    """Whether a loss that reads classes on axis 1 is given them last."""
    z, found = array(logits), _of(loss)
    if z.ndim < 3:
        return Answer(False, "two dimensions: the classes are axis 1, and last")
    if found.layout not in ("second", "last"):
        return _told(found, None, f"class axis: {found.layout}")
    axes, why = _axes(z, targets), f"the loss reads classes on the {found.layout} axis"
    return _told(found, (axes[0] == -1) != (found.layout == "last") if len(axes) == 1 else None, why)


def _next_tokens(labels: Any, ids: Any, ignore_index: int) -> tuple[Array, Array, Array]:
    a, b = np.atleast_2d(array(labels)), np.atleast_2d(array(ids))
    both = min(a.shape[1], b.shape[1])
    return a[:, :both], b[:, :both], a[:, :both] != ignore_index


def shifted_already(labels: Any, ids: Any, *, ignore_index: int = -100) -> Answer:
    """Whether the labels that count are the next tokens: shifted before a model that shifts them again."""
    a, b, keep = _next_tokens(labels, ids, ignore_index)
    # The last label before padding, an end of the sequence, need not be among the inputs.
    tells = keep[:, :-1] & keep[:, 1:] & (b[:, :-1] != b[:, 1:])
    if not tells.any():
        return Answer(None, "no label tells")
    share = float((a[:, :-1] == b[:, 1:])[tells].mean())
    why = f"{share:.0%} of {int(tells.sum())} labels are the next token, once too often if the loss shifts"
    return Answer(True if share == 1 else None if share > 0.5 else False, why)


def never_shifted(loss: Loss | str, labels: Any, ids: Any, *, ignore_index: int = -100) -> Answer:
    """Whether a loss that does not shift is given the inputs as labels."""
    a, b, keep = _next_tokens(labels, ids, ignore_index)
    if not keep.any():
        return Answer(None, "no target counts")
    if np.shape(array(labels)) != np.shape(array(ids)) or not (a == b)[keep].all():
        return Answer(False, "the labels are not the inputs")
    said = (found := _of(loss)).sequences
    return _told(found, None if said == "unknown" else "compares position t" in said, f"sequences: {said}")


def broadcasts(predictions: Any, targets: Any) -> Answer:
    """Whether shapes differ in axes of length one alone, as (N, 1) and (N,), or (B, T, 1) and (B, T)."""
    p, t = array(predictions).shape, array(targets).shape
    wide = p != t and [n for n in p if n > 1] == [n for n in t if n > 1]
    return Answer(bool(wide), f"predictions {p}, targets {t}")


def wrong_targets(logits: Any, targets: Any) -> Answer:
    """Whether targets have a shape or a type that PyTorch's cross-entropy refuses, or reads as something else."""
    z, t, kind = array(logits), array(targets), _kind(targets)
    if t.shape == z.shape:
        return Answer("float" not in kind, f"rows of {kind}: probabilities have to be floats")
    if t.shape == z.shape[:-1][:1] + z.shape[2:] or (z.ndim, t.shape) == (1, (1,)):
        taken = ("int64", "uint8") if z.ndim < 3 else ("int64",)
        return Answer(kind not in taken, f"indices of {kind}: they have to be int64")
    return Answer(True, f"targets of shape {t.shape} for logits of shape {z.shape}")


def targets_of_another_rank(loss: Loss | str, logits: Any, targets: Any) -> Answer:
    """Whether a loss of labels, classes last, is given rows, or a loss of rows labels."""
    found, z, t = _of(loss, logits), np.shape(array(logits)), np.shape(array(targets))
    second = found.layout in ("second", "any") and t == z[:1] + z[2:]
    rows, labels = t == z, second or t in (z[:-1], (*z[:-1], 1))
    by_label = "indices" in found.targets or (found.family.startswith("binary") and z[-1:] == (1,))
    by_row = bool({*found.targets} - {"indices"})
    why = f"it takes {', '.join(found.targets)}, and is given {t} for {z}"
    return _told(found, not ((rows and by_row) or (labels and by_label)), why)


def _careful(check: Callable[..., Answer]) -> Callable[..., Answer]:
    """A check that cannot tell, and says why, where it cannot read what it is given."""

    @functools.wraps(check)
    def asked(*args: Any, **options: Any) -> Answer:
        try:
            return check(*args, **options)
        except Exception as error:
            return Answer(None, (str(error) or type(error).__name__)[:160])

    return asked


for _name, _value in [*globals().items()]:
    if _name[0].islower() and getattr(_value, "__module__", "") == __name__:
        globals()[_name] = _careful(_value)
