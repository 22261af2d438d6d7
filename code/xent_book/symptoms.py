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

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from xent import Diagnosis, diagnose
from xent._diagnose import to_numpy as array
from xent.numerics import log_softmax, log_sum_exp

Array = np.ndarray[Any, Any]
Loss = Callable[..., Any]
YES, NO, UNSURE = "yes", "no", "cannot tell"


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


# ------------------------------------------------------------------------------------------------- what is shared


@functools.lru_cache(maxsize=256)
def _asked(loss: Loss | str, shape: tuple[int, ...] | None) -> Diagnosis:
    return diagnose(loss, shape)


def _of(loss: Loss | str, logits: Any = None) -> Diagnosis:
    """The diagnosis of a loss, kept: several checks put the same question."""
    shape = () if logits is None else tuple(int(n) for n in array(logits).shape)
    if len(shape) < 2 or max(shape) > 5000:
        return _asked(loss, None)
    found = _asked(loss, (2, *shape[1:]))
    return found if found.known else _asked(loss, shape)


def _unknown(found: Diagnosis) -> Answer:
    return Answer(None, "diagnose cannot explain this loss: " + "; ".join(found.notes)[:160])


def _axes(z: Array, y: Any = None, axis: int | None = None) -> list[int]:
    """The axes on which the classes may lie: one, if it is told or the labels' shape shows it."""
    if axis is not None or z.ndim < 3:
        return [-1 if axis is None else axis]
    shape = None if y is None else array(y).shape
    fits = [a for a in (-1, 1) if shape is None or list(shape) in ([*np.delete(z.shape, a)], [*z.shape])]
    return fits or [-1]


def _normalised(z: Array, axis: int) -> bool:
    """Whether the entries are those of distributions along an axis, up to their precision."""
    return bool((z >= 0).all() and np.allclose(z.sum(axis), 1, atol=0.02))


def _either(answers: Iterable[bool], why: str) -> Answer:
    """One answer for all axes on which the classes may lie, if they agree."""
    seen = set(answers)
    return Answer(seen.pop() if len(seen) == 1 else None, why)


def _kind(value: Any) -> str:
    """The name of a format, as "float16"."""
    dtype = getattr(value, "dtype", None)
    return str(getattr(dtype, "name", dtype) or array(value).dtype).removeprefix("torch.")


def _valid(y: Any, ignore_index: int | None) -> Array:
    labels = array(y)
    return np.ones(labels.shape, bool) if ignore_index is None else labels != ignore_index


def _rows(z: Array, y: Array, axis: int) -> tuple[Array, Array]:
    """Logits as (rows, classes) and labels as (rows,)."""
    moved = np.moveaxis(z, axis, -1)
    return moved.reshape(-1, moved.shape[-1]), y.reshape(-1)


# ------------------------------------------------------------------------------------------ the number is wrong


def no_signal(logits: Any, targets: Any = None, *, axis: int | None = None) -> Answer:
    """Whether all classes get the same logit, row by row, so that the loss stays at log K."""
    z = array(logits).astype(float)
    spread = max(float(np.ptp(z, axis=a).max()) for a in _axes(z, targets, axis))
    if z.shape[-1] == 1 and z.ndim < 3:
        spread = float(np.abs(z).max())
    return Answer(spread < 1e-3, f"the logits of a row differ by up to {spread:.3g}")


def large_first_logits(
    logits: Any, targets: Any, *, ignore_index: int | None = -100, axis: int | None = None
) -> Answer:
    """Whether the loss of a fresh model lies more than half a nat above log K."""
    z, y = array(logits).astype(float), array(targets)
    found = []
    for a in _axes(z, y, axis):
        x, labels = _rows(z, y, a)
        keep = _valid(labels, ignore_index)
        if not keep.any():
            return Answer(None, "no target counts")
        if not ((labels[keep] >= 0) & (labels[keep] < x.shape[1])).all():
            return Answer(None, f"labels outside 0 to {x.shape[1] - 1}, and they are not {ignore_index}")
        cost = -log_softmax(x[keep])[np.arange(keep.sum()), labels[keep].astype(int)].mean()
        found.append(float(cost - np.log(x.shape[1])))
    return _either((f > 0.5 for f in found), f"the loss is log K {found[0]:+.3g}")


def double_softmax(loss: Loss | str, logits: Any, targets: Any = None, *, axis: int | None = None) -> Answer:
    """Whether a softmax stands before a loss that applies its own: in the loss, or in what it is given."""
    z, found = array(logits), _of(loss, logits)
    if found.known and ("twice" in found.reads or "before" in found.reads):
        return Answer(True, f"the loss reads {found.reads}")
    if found.known and found.reads != "logits":
        return Answer(False, f"the loss reads {found.reads}")
    wide = z.ndim > 1 and z.shape[1] > 1
    probabilities = any(_normalised(z, a) for a in _axes(z, targets, axis)) and wide
    if not found.known:
        return Answer(
            False if not probabilities else None,
            "the rows are no probabilities" if not probabilities else _unknown(found).why,
        )
    if found.family.startswith("binary") and not probabilities:
        return Answer(None, "a binary loss of logits, and the rows do not sum to one: see the sigmoid")
    return Answer(
        probabilities, "the rows given sum to one" if probabilities else "the rows given do not sum to one"
    )


def double_sigmoid(loss: Loss | str, logits: Any) -> Answer:
    """Whether a sigmoid stands before a binary loss of logits: in the loss, or in what it is given."""
    z, found = array(logits), _of(loss)
    if not found.known:
        return _unknown(found)
    if "twice" in found.reads:
        return Answer(True, f"the loss reads {found.reads}")
    if found.reads != "logits" or not found.family.startswith("binary"):
        return Answer(False, f"a {found.family} that reads {found.reads}")
    if (z < 0).any() or (z > 1).any():
        return Answer(False, "what it is given leaves [0, 1]")
    return Answer(True if z.size >= 8 else None, f"all {z.size} numbers that it is given lie in [0, 1]")


def smoothing_floor(loss: Loss | str) -> Answer:
    """Whether the loss smooths its labels."""
    found = _of(loss)
    if not found.known:
        return _unknown(found)
    return Answer(bool(found.smoothing), f"a smoothing of {found.smoothing:.3g}")


def no_log_probabilities(loss: Loss | str, inputs: Any, *, axis: int | None = None) -> Answer:
    """Whether a loss of log-probabilities is given something else."""
    x, found = array(inputs).astype(float), _of(loss, inputs)
    if not found.known:
        return _unknown(found)
    if found.reads != "log-probabilities":
        return Answer(False, f"the loss reads {found.reads}")
    totals = [log_sum_exp(np.moveaxis(x, a, -1), axis=-1) for a in _axes(x, None, axis)]
    return _either(
        (not np.allclose(t, 0, atol=0.02) for t in totals),
        f"exp of a row sums to {np.exp(np.ravel(totals[0])[0]):.3g}",
    )


def targets_outside(targets: Any) -> Answer:
    """Whether targets of a binary loss leave the interval from 0 to 1."""
    t = array(targets).astype(float)
    return Answer(bool((t < 0).any() or (t > 1).any()), f"targets from {t.min():.3g} to {t.max():.3g}")


def no_distributions(loss: Loss | str, log_q: Any, p: Any, *, axis: int = -1) -> Answer:
    """Whether a KL divergence is given something else than log q and p, or log p, of distributions."""
    found, q, t = _of(loss), array(log_q).astype(float), array(p).astype(float)
    if not found.known:
        return _unknown(found)
    given = {"log-probabilities": np.exp(q), "probabilities": q}.get(found.reads)
    if given is None:
        return Answer(None, f"the loss reads {found.reads}")
    t = np.exp(t) if found.targets == ("log-probabilities",) else t
    wrong = [
        n for n, rows in (("first", given), ("second", t)) if not np.allclose(rows.sum(axis), 1, atol=0.02)
    ]
    return Answer(
        bool(wrong),
        f"{' and '.join(wrong)} argument: rows that do not sum to one"
        if wrong
        else "both hold distributions",
    )


def _is_target(a: Array) -> bool | None:
    """Whether an argument can only be the targets: whole numbers that are labels or one-hot rows."""
    if a.dtype.kind in "iub":
        return True
    whole = bool((a == np.round(a)).all())
    return True if whole and ((a == 0) | (a == 1)).all() and a.size > 1 else False if not whole else None


def swapped_arguments(loss: Loss | str, first: Any, second: Any) -> Answer:
    """Whether the call hands over its two arguments, given here as you pass them, in the other order."""
    found = _of(loss)
    if not found.known or found.first == "either":
        return _unknown(found) if not found.known else Answer(False, "the loss takes both orders")
    a, b = _is_target(array(first)), _is_target(array(second))
    if a is None or b is None or a == b:
        return Answer(None, "neither argument can only be the targets" if not a else "both look like targets")
    passed = "target" if a else "prediction"
    return Answer(passed != found.first, f"the loss takes the {found.first} first, and is given the {passed}")


def logits_as_probabilities(loss: Loss | str, logits: Any) -> Answer:
    """Whether a loss of probabilities is given logits."""
    z, found = array(logits), _of(loss, logits)
    if not found.known:
        return _unknown(found)
    if found.reads != "probabilities":
        return Answer(False, f"the loss reads {found.reads}")
    binary = found.family.startswith("binary")
    good = bool(((z >= 0) & (z <= 1)).all()) and (binary or any(_normalised(z, a) for a in _axes(z)))
    return Answer(
        not good, f"it reads probabilities, and is given numbers from {z.min():.3g} to {z.max():.3g}"
    )


def binary_loss_of_a_softmax(loss: Loss | str, probs: Any) -> Answer:
    """Whether a binary loss is given the rows of a softmax."""
    p, found = array(probs), _of(loss, probs)
    if not found.known:
        return _unknown(found)
    binary, rows = found.family.startswith("binary"), p.ndim > 1 and p.shape[-1] > 1 and _normalised(p, -1)
    return Answer(
        bool(binary and rows), f"a {found.family}; rows that {'sum' if rows else 'do not sum'} to one"
    )


def other_unit(loss: Loss | str) -> Answer:
    """Whether the loss is in bits or hartleys."""
    found = _of(loss)
    return Answer(found.unit != "nats", f"the unit is {found.unit}") if found.known else _unknown(found)


def perplexity_overflows(loss_value: Any) -> Answer:
    """Whether exp of a loss leaves float32."""
    value = float(array(loss_value))
    return (
        Answer(value > 88.7, f"exp({value:.4g}) in float32")
        if np.isfinite(value)
        else Answer(None, f"the loss is {value}")
    )


def few_digits(loss: Loss | str, logits: Any = None, loss_value: Any = None) -> Answer:
    """Whether the loss is computed, or stored, in half precision."""
    kinds = [str(getattr(v, "dtype", "")) for v in (loss_value, logits)]
    half = [k for k in kinds if "float16" in k]
    if half:
        return Answer(True, f"it is kept in {half[0]}")
    found = _of(loss)
    return (
        Answer("float16" in found.precision, f"computed in {found.precision}")
        if found.known
        else _unknown(found)
    )


def rows_do_not_sum(probs: Any, *, axis: int = -1) -> Answer:
    """Whether rows of probabilities fail to sum to one, by more than their precision explains."""
    p = array(probs)
    loose = {"float16": 0.02, "bfloat16": 0.02, "float32": 1e-5}.get(_kind(probs), 1e-6)
    off = float(np.abs(p.astype(float).sum(axis) - 1).max())
    return Answer(off > loose, f"a row is off by {off:.2g}")


def columns_out_of_order(columns: Any) -> Answer:
    """Whether the classes, in the order of your columns, are not in the order of scikit-learn."""
    names = list(columns)
    moved = sum(a != b for a, b in zip(names, sorted(names), strict=True))
    return Answer(moved > 0, f"{moved} of {len(names)} columns are elsewhere after sorting")


def classes_missing(targets: Any, probs: Any) -> Answer:
    """Whether fewer classes are present in the labels than there are columns."""
    p, present = array(probs), len(set(np.asarray(array(targets)).ravel().tolist()))
    columns = p.shape[-1] if p.ndim > 1 and p.shape[-1] > 1 else 2
    return Answer(present < columns, f"{present} classes in the labels, {columns} in the predictions")


# ------------------------------------------------------------------------------------------------- nan and inf


def log_of_a_softmax(loss: Loss | str) -> Answer:
    """Whether a sure model overflows or underflows inside the loss."""
    found = _of(loss)
    if not found.known:
        return _unknown(found)
    notes = [n for n in found.notes if "exp overflows" in n]
    return Answer(
        ("inf" in found.clip and found.reads == "logits") or bool(notes),
        notes[0] if notes else f"clips: {found.clip}",
    )


def zero_times_log_zero(loss: Loss | str) -> Answer:
    """Whether a probability of zero for a wrong class gives nan."""
    found = _of(loss)
    if not found.known:
        return _unknown(found)
    return Answer(
        any("0 * log(0)" in n for n in found.notes), "a row with a zero for a wrong class was tried"
    )


def nothing_counts(targets: Any, *, ignore_index: int = -100) -> Answer:
    """Whether every target is ignored."""
    keep = _valid(targets, ignore_index)
    return Answer(
        not keep.any(),
        f"all {keep.size} targets are ignored"
        if not keep.any()
        else f"{keep.sum()} of {keep.size} targets count",
    )


def nan_where_ignored(
    logits: Any, targets: Any, *, ignore_index: int = -100, axis: int | None = None
) -> Answer:
    """Whether an ignored row holds nan or inf."""
    z = array(logits).astype(float)
    found = []
    for a in _axes(z, targets, axis):
        x, y = _rows(z, array(targets), a)
        found.append(bool(not np.isfinite(x[y == ignore_index]).all()))
    return _either(found, "an ignored row is not finite" if any(found) else "ignored rows are finite")


def masked_class(logits: Any, target_probs: Any) -> Answer:
    """Whether a logit of -inf meets a target of zero."""
    hit = np.isneginf(array(logits)) & (array(target_probs) == 0)
    return Answer(bool(hit.any()), f"{hit.sum()} entries of -inf with a target of 0")


def sees_nothing(mask: Any, *, true_is: str | None = None) -> Answer:
    """Whether a row of an attention mask allows no position.

    `true_is` is "seen" or "left out" for a mask of booleans; one of floats is added to the scores.
    """
    m = array(mask)
    if m.dtype.kind == "f" and (np.isneginf(m).any() or not ((m == 0) | (m == 1)).all() or not m.any()):
        m, true_is = m <= -1e4, "left out"
    m = m.astype(bool)
    if true_is is None:
        either = {bool(m.all(-1).any()), bool((~m).all(-1).any())}
        if either == {False}:
            return Answer(False, "every row has both kinds of position")
        return Answer(
            None, "say true_is='seen' or 'left out': nn.MultiheadAttention's masks are True where left out"
        )
    empty = (m if true_is == "left out" else ~m).all(-1)
    return Answer(bool(empty.any()), f"{int(empty.sum())} rows of {empty.size} see no position")


def half_overflows(loss: Loss, logits: Any, targets: Any) -> Answer:
    """Whether the loss of tensors in half precision is not finite where that of float32 is."""
    z = array(logits)
    if "float16" not in _kind(logits):
        return Answer(False, "the logits are not in half precision")
    if not np.isfinite(z).all():
        return Answer(True, "the logits themselves are inf or nan in half precision")
    wide = logits.float() if hasattr(logits, "float") else logits.astype(np.float32)
    pair, again = (
        ((logits, targets), (wide, targets))
        if _of(loss).first != "target"
        else ((targets, logits), (targets, wide))
    )
    with np.errstate(all="ignore"):
        short, full = (float(array(loss(*p)).mean()) for p in (pair, again))
    return Answer(
        not np.isfinite(short) and np.isfinite(full), f"{short:.4g} in half precision, {full:.4g} in float32"
    )


def no_weight_left(weights: Any, targets: Any, *, ignore_index: int | None = -100) -> Answer:
    """Whether no target of the batch has a positive weight."""
    w, y = array(weights).astype(float), array(targets)
    keep = y[_valid(y, ignore_index)].astype(int)
    if not ((keep >= 0) & (keep < len(w))).all():
        return Answer(None, f"labels outside 0 to {len(w) - 1}, and they are not {ignore_index}")
    return Answer(float(w[keep].sum()) == 0, f"the weights of {keep.size} targets sum to {w[keep].sum():.4g}")


def not_finite(*arrays: Any) -> Answer:
    """Whether an input, an embedding or a weight is nan or inf."""
    bad = [int((~np.isfinite(array(a).astype(float))).sum()) for a in arrays]
    return Answer(any(bad), f"numbers that are not finite, array by array: {bad}")


def mask_overflows(fill: float, logits: Any) -> Answer:
    """Whether the number that masks logits does not fit into their format."""
    kind = _kind(logits)
    largest = 65504.0 if kind == "float16" else 3.4e38
    return Answer(abs(fill) > largest and np.isfinite(fill), f"{kind} ends at {largest:.6g}")


# ------------------------------------------------------------------------------------------------ no learning


def clipped(loss: Loss | str, inputs: Any = None) -> Answer:
    """Whether the loss clips probabilities, or what it is given has been clipped: its extreme stands there often."""
    found = _of(loss)
    if found.known and found.epsilon is not None:
        return Answer(True, f"the loss clips {found.clip}")
    if inputs is not None:
        x = array(inputs).astype(float)
        x = (
            x
            if (x <= 0).all()
            else np.log(np.maximum(x, 1e-300))
            if ((x >= 0) & (x <= 1)).all()
            else np.zeros(1)
        )
        low = x.min()
        if low < -9 and (
            np.isclose(x, low, rtol=1e-6).sum() > 1 or abs(low / np.log(10) - round(low / np.log(10))) < 1e-4
        ):
            return Answer(True, f"what it is given stops at a probability of {np.exp(low):.2g}")
    return Answer(False, f"clips: {found.clip}") if found.known else _unknown(found)


def gradient_fades(loss: Loss | str) -> Answer:
    """Whether a sure and wrong example has lost its gradient."""
    found = _of(loss)
    if not found.known or found.gradient in ("unknown", "not applicable"):
        return _unknown(found) if not found.known else Answer(None, "its arrays have no gradient")
    return Answer(
        not found.gradient.endswith("that of the value") and "but" in found.gradient,
        f"the gradient is {found.gradient}",
    )


def gradient_missing(loss: Loss | str) -> Answer:
    """Whether the value is cut off from the prediction."""
    found = _of(loss)
    if not found.known or found.gradient in ("unknown", "not applicable"):
        return _unknown(found) if not found.known else Answer(None, "its arrays have no gradient")
    return Answer(found.gradient.startswith(("missing", "zero")), f"the gradient is {found.gradient}")


def sign_flipped(loss: Loss | str, logits: Any = None) -> Answer:
    """Whether the loss falls as the model gets worse."""
    found = _of(loss, logits)
    return (
        Answer(
            found.sign < 0,
            "a right answer costs more than a wrong one"
            if found.sign < 0
            else "it falls with the right answer",
        )
        if found.known
        else _unknown(found)
    )


def softmax_over_another_axis(probs: Any, *, axis: int | None = None, loss: Loss | None = None) -> Answer:
    """Whether probabilities sum to one along another axis than that of the classes."""
    if loss is not None and (found := _of(loss)).known and found.axis not in ("the classes", "unknown"):
        return Answer(True, f"the loss's softmax runs over {found.axis}")
    p = array(probs)
    right = [a % p.ndim for a in _axes(p, None, axis)]
    sums = [a for a in range(p.ndim) if p.shape[a] > 1 and _normalised(p, a)]
    if any(a in right for a in sums):
        return (
            Answer(False, "the classes sum to one")
            if not [a for a in sums if a not in right]
            else Answer(None, "two axes sum to one")
        )
    return Answer(
        bool(sums), f"axis {sums[0]} sums to one, and the classes do not" if sums else "no axis sums to one"
    )


def depends_on_other_rows(model: Callable[[Any], Any], inputs: Any) -> Answer:
    """Whether the output of the first row changes with the rest of the batch, as under batch normalisation."""
    whole, part = array(model(inputs)), array(model(inputs[: max(2, len(inputs) // 2)]))
    if len(inputs) < 4:
        return Answer(None, "give at least four rows")
    off = float(np.abs(whole[0] - part[0]).max())
    return Answer(
        off > 1e-3 * max(1e-3, float(np.abs(whole).max())),
        f"the first row moves by {off:.2g} without the others",
    )


def one_column(loss: Loss | str, logits: Any, *, axis: int = -1) -> Answer:
    """Whether a softmax is taken over a single column."""
    z = array(logits)
    if z.ndim > 1 and z.shape[axis] != 1:
        return Answer(False, f"{z.shape[axis]} columns")
    found = _of(loss)
    if not found.known:
        return _unknown(found)
    return Answer(found.family.startswith("categorical"), f"one column, in a {found.family}")


def targets_do_not_sum(targets: Any, *, axis: int = -1) -> Answer:
    """Whether the targets of a row do not sum to one."""
    t = array(targets).astype(float)
    off = float(np.abs(t.sum(axis) - 1).max())
    return Answer(off > 1e-2, f"a row of targets is off by {off:.2g}")


def changes_arguments(loss: Loss | str) -> Answer:
    """Whether the loss writes into what it is given."""
    found = _of(loss)
    if not found.known:
        return _unknown(found)
    return Answer("changes its arguments in place" in found.notes, "arguments were compared before and after")


def weights_bend(loss: Loss | str, logits: Any = None) -> Answer:
    """Whether class weights or pos_weight move the probabilities that are learnt."""
    found = _of(loss, logits)
    if not found.known:
        return _unknown(found)
    return Answer(bool(found.class_weights or found.pos_weight), found.added or "no weights")


def rate_too_high(losses: Any) -> Answer:
    """Whether a curve of losses, from the first step on, ends above where it began or leaves the numbers."""
    curve = array(losses).astype(float).ravel()
    if len(curve) < 4:
        return Answer(None, "give at least four losses")
    if not np.isfinite(curve).all():
        return Answer(True, f"not finite after {int(np.argmin(np.isfinite(curve)))} steps")
    return Answer(
        bool(curve[-len(curve) // 4 :].mean() > curve[0]), f"from {curve[0]:.4g} to {curve[-1]:.4g}"
    )


def sure_and_wrong(logits: Any, targets: Any) -> Answer:
    """Whether a tenth of the rows, or fewer, carries half of the loss: a few sure mistakes."""
    z, y = array(logits).astype(float), array(targets).astype(int)
    cost = np.sort(-log_softmax(z)[np.arange(len(y)), y])[::-1]
    if len(cost) < 20:
        return Answer(None, "give at least twenty rows")
    share = float(cost[: max(1, len(cost) // 10)].sum() / cost.sum())
    return Answer(share > 0.5, f"a tenth of the rows carries {share:.2g} of the loss")


def rounds_to_zero(logits: Any, targets: Any) -> Answer:
    """Whether a sure answer's loss is lost in the logits' format: z minus log-sum-exp is 0 there."""
    z, y = array(logits), array(targets).astype(int)
    kind = _kind(logits)
    digits = {"float16": 11, "bfloat16": 8, "float32": 24}.get(kind, 53)
    exact = -log_softmax(z.astype(float))[np.arange(len(y)), y]
    lost = exact < 2.0**-digits * np.maximum(1, np.abs(z.astype(float)).max(-1))
    return Answer(bool(lost.all()), f"{int(lost.sum())} of {len(y)} rows cost less than {kind} resolves")


def scaled_loss(logged: float, loss_value: Any) -> Answer:
    """Whether what was logged is the loss times a power of two, as a gradient scaler leaves it."""
    ratio = float(logged) / float(array(loss_value))
    power = np.log2(ratio) if ratio > 0 else 0.0
    return Answer(bool(power > 3 and abs(power - round(power)) < 1e-3), f"{ratio:.6g} times the loss")


# ------------------------------------------------------------------------------------- denominators and weights


def accumulation(model: Any, micro_batches: Any, whole_batch: Any, step: Any, **options: Any) -> Answer:
    """Whether an accumulation step has another gradient than the whole batch; see `xent.torch.check_accumulation`."""
    import xent.torch

    report = xent.torch.check_accumulation(model, micro_batches, whole_batch, step, **options)
    return Answer(not report.ok, " ".join(str(report).split())[:120])


def nobody_divides(logged: Any, loss_value: Any, steps: int) -> Answer:
    """Whether what is logged is the loss times the number of accumulation steps."""
    ratio = float(array(logged)) / float(array(loss_value))
    if steps < 2:
        return Answer(None, "with one step there is nothing to tell")
    return Answer(abs(ratio - steps) < 0.05 * steps, f"{ratio:.4g} times the loss, with {steps} steps")


def ranks_differ(counts: Any) -> Answer:
    """Whether ranks have different numbers of targets."""
    numbers = [float(array(c)) for c in counts]
    return Answer(len(set(numbers)) > 1, f"from {min(numbers):.0f} to {max(numbers):.0f} targets")


def divides_by_classes(loss: Loss | str) -> Answer:
    """Whether a categorical loss, or a KL divergence, is divided by the number of classes too."""
    found = _of(loss)
    if not found.known:
        return _unknown(found)
    wrong = found.denominator in ("N*K", "K") and not found.family.startswith("binary")
    return Answer(wrong, f"a {found.family} divided by {found.denominator}")


def weighted_means_differ(weights: Any, targets: Any, *, ignore_index: int | None = -100) -> Answer:
    """Whether the mean weight of the batch's targets is not one, so that two divisors differ."""
    w, y = array(weights).astype(float), array(targets)
    keep = y[_valid(y, ignore_index)].astype(int)
    if not keep.size or not ((keep >= 0) & (keep < len(w))).all():
        return Answer(
            None, f"no target counts, or labels outside 0 to {len(w) - 1} that are not {ignore_index}"
        )
    return Answer(not np.isclose(w[keep].mean(), 1), f"the targets weigh {w[keep].mean():.4g} on average")


def divides_by_weights(loss: Loss | str, logits: Any = None) -> Answer:
    """Whether the mean divides by the batch's own sum of class weights."""
    found = _of(loss, logits)
    if not found.known:
        return _unknown(found)
    return Answer(found.denominator == "the sum of weights", f"divides by {found.denominator}")


def weights_dropped(loss: Loss | str) -> Answer:
    """Whether a keyword argument for weights is taken and has no effect."""
    found = _of(loss)
    return (
        Answer("swallowed" in found.weights, f"weights: {found.weights}") if found.known else _unknown(found)
    )


def flat_batch(loss: Loss | str, targets: Any, predictions: Any) -> Answer:
    """Whether a loss that averages over the last axis is given labels and predictions of shape (N,)."""
    y, p = array(targets), array(predictions)
    if y.ndim != 1 or p.ndim != 1:
        return Answer(False, f"predictions of shape {p.shape}: the labels get that shape")
    found = _of(loss)
    if not found.known:
        return _unknown(found)
    averaged = any("1-D batch" in note for note in found.notes) and found.reduction == "none"
    return Answer(averaged or _spreads_weights(loss, y, p), "labels and predictions are of shape (N,)")


def _spreads_weights(loss: Loss | str, y: Array, p: Array) -> bool:
    """Whether a weight of one row scales the whole batch, as after a mean over its only axis."""
    if len(y) < 2 or isinstance(loss, str):
        return isinstance(loss, str)
    w = np.zeros(len(y))
    w[0] = 1.0
    try:
        return not np.isclose(
            array(loss(y, p, sample_weight=w)), array(loss(y[:1], p[:1])) / len(y), rtol=1e-3
        )
    except TypeError:
        return False


def mean_of_batch_means(losses: Any, reported: float) -> Answer:
    """Whether what is reported is not the mean over all unreduced losses."""
    each = [array(part).astype(float).ravel() for part in losses]
    pooled, means = float(np.concatenate(each).mean()), float(np.mean([e.mean() for e in each]))
    if np.isclose(pooled, means, rtol=1e-5):
        return Answer(None, "both means are one number here: give batches of different sizes")
    return Answer(
        not np.isclose(float(reported), pooled, rtol=1e-5), f"pooled {pooled:.6g}, mean of means {means:.6g}"
    )


def sequence_means(loss: Loss | str) -> Answer:
    """Whether each sequence is divided by a power of its length before sequences are averaged."""
    found = _of(loss)
    if not found.known or found.sequences == "unknown":
        return (
            _unknown(found)
            if not found.known
            else Answer(None, "it does not say what it does with sequences")
        )
    return Answer("sequence means" in found.sequences or "each sequence" in found.sequences, found.sequences)


# -------------------------------------------------------------------------------------- targets, padding, layout


def padding_counts(loss: Loss, logits: Any, targets: Any, padded: Any, *, axis: int | None = None) -> Answer:
    """Whether the loss changes with the logits of padded positions."""
    z, pad = array(logits), array(padded).astype(bool)
    if not pad.any():
        return Answer(None, "nothing is padded")
    a = _axes(z, targets, axis)[0]
    other = np.where(
        np.expand_dims(pad, a),
        np.flip(z, axis=a)
        + 1.0 * np.arange(z.shape[a]).reshape([-1 if i == a % z.ndim else 1 for i in range(z.ndim)]),
        z,
    )
    if hasattr(logits, "new_tensor"):
        moved: Any = logits.new_tensor(other)
    else:
        moved = other.astype(z.dtype)
    order = _of(loss).first
    one, two = (
        array(loss(v, targets) if order != "target" else loss(targets, v)).astype(float).sum()
        for v in (logits, moved)
    )
    return Answer(
        bool(not np.isclose(one, two, rtol=1e-3 if z.dtype.itemsize < 4 else 1e-5)),
        f"{one:.6g} becomes {two:.6g} with other logits under the padding",
    )


def ignored_class(ignore_index: int, classes: int) -> Answer:
    """Whether the ignored index is one of the classes."""
    return Answer(0 <= ignore_index < classes, f"classes 0 to {classes - 1}, ignored {ignore_index}")


def minus_one_is_a_class(loss: Loss | str) -> Answer:
    """Whether the label -1 is read as the last class."""
    found = _of(loss)
    if not found.known or found.ignored in ("unknown", "not applicable"):
        return _unknown(found) if not found.known else Answer(False, "it takes no class indices")
    return Answer("-1: counted as the last class" in found.ignored, f"ignored: {found.ignored}")


def label_out_of_range(targets: Any, classes: int, *, ignore_index: int | None = -100) -> Answer:
    """Whether a label that counts is no class."""
    y = array(targets)
    keep = y[_valid(y, ignore_index)]
    bad = keep[(keep < 0) | (keep >= classes)]
    return Answer(
        bool(bad.size), f"{bad.size} labels are no class" + (f", such as {int(bad[0])}" if bad.size else "")
    )


def classes_on_the_last_axis(loss: Loss | str, logits: Any, targets: Any) -> Answer:
    """Whether a loss that reads classes on axis 1 is given them last."""
    z, y, found = array(logits), array(targets), _of(loss)
    if z.ndim < 3:
        return Answer(False, "two dimensions: the classes are axis 1, and last")
    if not found.known or found.layout not in ("second", "last"):
        return _unknown(found) if not found.known else Answer(None, f"class axis: {found.layout}")
    axes = _axes(z, y)
    if len(axes) == 2:
        return Answer(
            None, f"the shapes {z.shape} and {y.shape} fit both layouts; the loss reads the {found.layout}"
        )
    return Answer(
        (axes[0] == -1) != (found.layout == "last"), f"the loss reads classes on the {found.layout} axis"
    )


def _tokens(labels: Any, ids: Any, ignore_index: int) -> tuple[Array, Array, Array]:
    a, b = array(labels), array(ids)
    return a, b, a != ignore_index


def shifted_already(labels: Any, ids: Any, *, ignore_index: int = -100) -> Answer:
    """Whether the labels that count are the next tokens: shifted before a model that shifts them again."""
    a, b, keep = _tokens(labels, ids, ignore_index)
    keep = keep[:, :-1]
    if not keep.any() or (b[:, :-1] == b[:, 1:])[keep].all():
        return Answer(None, "no label tells")
    return Answer(
        bool((a[:, :-1] == b[:, 1:])[keep].all()), f"{int(keep.sum())} labels compared with the next token"
    )


def never_shifted(loss: Loss | str, labels: Any, ids: Any, *, ignore_index: int = -100) -> Answer:
    """Whether a loss that does not shift is given the inputs as labels."""
    a, b, keep = _tokens(labels, ids, ignore_index)
    if not keep.any():
        return Answer(None, "no target counts")
    if not (a == b)[keep].all():
        return Answer(False, "the labels are not the inputs")
    found = _of(loss)
    if not found.known or found.sequences == "unknown":
        return (
            _unknown(found)
            if not found.known
            else Answer(None, "it does not say what it does with sequences")
        )
    return Answer("compares position t" in found.sequences, found.sequences)


def broadcasts(predictions: Any, targets: Any) -> Answer:
    """Whether predictions (N, 1) meet targets (N,), or the other way round, and become N times N."""
    p, t = array(predictions).shape, array(targets).shape
    wide = len(p) != len(t) and {len(p), len(t)} == {1, 2} and 1 in (p[-1], t[-1]) and max(*p, *t) > 1
    return Answer(bool(wide), f"predictions {p}, targets {t}")


def wrong_targets(logits: Any, targets: Any) -> Answer:
    """Whether targets have a shape or a type that PyTorch's cross-entropy refuses, or reads as something else."""
    z, kind = array(logits), _kind(targets)
    t = array(targets)
    rows = t.shape == z.shape and z.ndim > 1
    indices = t.ndim == z.ndim - 1
    if rows:
        return Answer("float" not in kind, f"rows of {kind}: probabilities have to be floats")
    if indices:
        return Answer(kind not in ("int64", "uint8"), f"indices of {kind}: they have to be int64")
    return Answer(True, f"targets of shape {t.shape} for logits of shape {z.shape}")
