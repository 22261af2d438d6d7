"""What a hostile call must return, or refuse: `xent` once more, slowly, from plain arrays in long double.

Nothing here uses the package. A model takes the plain arguments of a call and either raises `Refused` with
the names of all arguments that deserve it, or returns a `Want`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

L = np.longdouble
Array = Any


class Refused(Exception):
    """The call must raise, and the message must begin with one of these names."""

    def __init__(self, names: set[str]) -> None:
        super().__init__(sorted(names))
        self.names = names


class Unsure(Exception):
    """The call is so close to a tolerance that either answer is right."""


@dataclass
class Plain:
    """The plain arguments of a call, and by how much rows of probabilities may miss one."""

    values: dict[str, Any]
    slacks: dict[str, float]

    def __getattr__(self, name: str) -> Any:
        return self.values.get(name)


@dataclass
class Want:
    """What must come back: a value within a tolerance, or whatever passes a check.

    The tolerance is `factor` machine epsilons of the dtype times `scale`, the value if that is None. Where
    `reach` is beyond the largest number of the dtype, an infinity of the right sign may stand for the value.
    """

    value: Any = None
    dtype: str = "f8"
    precision: str = ""  # the dtype that the work is done in, if that is narrower than the result's
    factor: float = 64.0
    scale: Any = None
    atol: Any = 0.0
    reach: Any = 0.0
    check: Callable[[Any], str] | None = None
    parts: tuple[Want, ...] = field(default=())


class Bad(set[str]):
    """The names of arguments that deserve an error."""

    def stop(self) -> None:
        if self:
            raise Refused(self)


def compare(got: Any, want: Want) -> str:
    """Return what is wrong with a value, or nothing."""
    if want.check is not None:
        return want.check(got)
    if isinstance(got, torch.Tensor):
        got = got.detach().numpy()
    have = np.asarray(got)
    value = np.asarray(want.value, L)
    if have.dtype != np.dtype(want.dtype):
        return f"of dtype {have.dtype}, where {np.dtype(want.dtype)} is due"
    if have.shape != value.shape:
        return f"of shape {have.shape}, where {value.shape} is due"
    narrow = np.finfo(want.precision or want.dtype)
    scale = np.abs(value) if want.scale is None else np.asarray(want.scale, L)
    scale = np.where(np.isfinite(scale), scale, 0)
    allowed = want.factor * L(narrow.eps) * scale + want.atol + 64 * L(narrow.smallest_subnormal)
    exact = have.astype(L)
    near = np.abs(exact - value) <= allowed
    near |= (exact == value) | (np.isnan(exact) & np.isnan(value))
    beyond = np.maximum(np.abs(value), want.reach) >= L(narrow.max) * (1 - 1e-6)
    near |= (
        beyond & np.isinf(exact) & (np.sign(exact) == np.where(value == 0, np.sign(exact), np.sign(value)))
    )
    if near.all():
        return ""
    return f"where {np.array2string(value.astype(np.float64), threshold=20)} is due"


def result_dtype(*arrays: Array) -> str:
    return "f4" if all(a.dtype in (np.float16, np.float32) for a in arrays) else "f8"


# ------------------------------------------------------------------------------------ what may be wrong


def classes_last(bad: Bad, z: Array, axis: int, name: str) -> Array | None:
    """Move the class axis to the end."""
    if z.ndim == 0:
        bad.add(name)
        return None
    if not -z.ndim <= axis < z.ndim:
        bad.add("axis")
    if bad & {name, "axis"}:
        return None
    moved = np.moveaxis(z, axis, -1)
    if not moved.shape[-1]:
        bad.add(name)
        return None
    return moved


def labels(
    bad: Bad, y: Array, shape: tuple[int, ...], classes: int, ignore: int | None, name: str = "targets"
) -> tuple[Array, Array] | None:
    counts = np.array([int(v) != ignore for v in y.reshape(-1)], bool).reshape(y.shape)
    if y.shape != shape:
        bad.add(name)
        return None
    if ((y < 0) | (y >= classes))[counts].any():
        bad.add(name)
        return None
    return np.where(counts, y, 0).astype(np.int64), counts


def weights(bad: Bad, w: Array | None, shape: tuple[int, ...], name: str = "weight") -> Array | None:
    if w is None:
        return None
    if w.shape != shape or not ((w >= 0) & (w < np.inf)).all():
        bad.add(name)
        return None
    return w.astype(L)


def distribution(bad: Bad, p: Array, axis: int, slack: float, name: str) -> None:
    """Check that the rows of `p` along an axis are probabilities that sum to one."""
    if not ((p >= 0) & (p <= 1 + slack)).all():
        bad.add(name)
    elif (excess := np.abs(p.astype(L).sum(axis) - 1)).size:
        if (np.abs(excess - slack) < 1e-3 * slack).any() or (
            np.abs(p.astype(L) - 1 - slack) < 1e-2 * slack
        ).any():
            raise Unsure
        if (excess > slack).any():
            bad.add(name)


def has_softmax(z: Array) -> Array:
    """Which rows hold neither nan nor +inf, and a finite number."""
    return ~np.isnan(z).any(-1) & ~np.isposinf(z).any(-1) & ~np.isneginf(z).all(-1)


def cast(array: Array | None, like: Array, tensor: bool) -> Array | None:
    """Weights and binary targets take the dtype of the logits in PyTorch, and are float64 in NumPy."""
    if array is None or not tensor:
        return array
    return array.astype(np.float32 if result_dtype(like) == "f4" else np.float64)


# ------------------------------------------------------------------------------------------ arithmetic


def minus_log_softmax(z: Array) -> Array:
    """-log p of every class, in long double, each accurate however small it is; nan for rows without one."""
    good = has_softmax(z)
    z = np.where(good[..., None], z, 0).astype(L)
    top = z.argmax(-1)[..., None]
    gap = np.take_along_axis(z, top, -1) - z
    e = np.exp(-gap)
    np.put_along_axis(e, top, 0, -1)
    return np.where(good[..., None], gap + np.log1p(e.sum(-1, keepdims=True)), np.nan)


def softplus(z: Array) -> Array:
    return np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z)))


def times(mass: Array, loss: Array) -> Array:
    return np.where(mass == 0, L(0), mass * loss)


def span(z: Array) -> Array:
    """How far the logits of a row lie apart; beyond the largest number their differences overflow."""
    finite = np.where(np.isfinite(z), z, 0).astype(L)
    return finite.max(-1) - finite.min(-1) if z.shape[-1] else L(0)


def reduce(
    bad: Bad,
    losses: Array,
    a: Plain,
    dtype: str,
    w: Array | None = None,
    counts: Array | None = None,
    mass: Array | None = None,
    reach: Array | float = 0.0,
    scale: Array | None = None,
    factor: float = 64.0,
) -> Want:
    """Weigh and reduce; `scale` and `reach` are those of each loss."""
    if a.denominator is not None and a.reduction != "mean":
        bad.add("denominator")
    w = np.ones(losses.shape, L) if w is None else w
    if counts is not None:
        w = np.where(counts, w, 0)
    each, size = times(w, losses), np.abs(times(w, losses if scale is None else scale))
    # A loss that overflows stays infinite, and one that underflows zero, whatever weight follows.
    far = np.where(w > 0, np.maximum(np.abs(losses), reach) * np.maximum(w, 1), 0)
    small = L(np.finfo(dtype).smallest_subnormal)
    if a.reduction == "none":
        bad.stop()
        return Want(each, dtype, factor=factor, scale=size, atol=small * w, reach=far)
    divisor = L(1)
    if a.reduction == "mean":
        total = (w if mass is None else w * mass).sum()
        divisor = total if a.denominator is None else L(a.denominator)
        if a.denominator is None and total == 0:
            bad.add("targets")
        if a.denominator is None and total > np.finfo(np.float64).max:
            bad.add("weight")
    bad.stop()
    # A sum beyond the dtype is inf, also where the mean would fit; and a product below it is zero.
    return Want(
        each.sum() / divisor,
        dtype,
        factor=factor,
        scale=size.sum() / divisor,
        atol=(losses.size + w.sum()) * small / divisor,
        reach=np.maximum(far.sum(), far.sum() / divisor),
    )


# -------------------------------------------------------------------------------------------- numerics


def log_sum_exp(a: Plain, tensor: bool = False) -> Want:
    bad = Bad()
    z = classes_last(bad, a.x, a.axis, "x")
    if not tensor and np.isnan(a.x).any():
        bad.add("x")
    bad.stop()
    top = z.max(-1).astype(L)
    finite = np.where(np.isinf(top)[..., None], 0, z)
    rest = minus_log_softmax(finite).min(-1)
    value = np.where(np.isnan(z).any(-1), np.nan, np.where(np.isinf(top), top, top + rest))
    return Want(value, result_dtype(a.x), scale=np.abs(top) + rest)


def log_softmax(a: Plain, tensor: bool = False) -> Want:
    return _softmax(a, tensor, lambda nls, z: Want(-nls, reach=span(z)[..., None]))


def softmax(a: Plain, tensor: bool = False) -> Want:
    # The rounding error of the difference of logits enters the exponential.
    return _softmax(
        a, tensor, lambda nls, z: Want(np.exp(-nls), scale=np.exp(-nls) * (1 + np.minimum(nls, 1e5)))
    )


def _softmax(a: Plain, tensor: bool, finish: Callable[[Array, Array], Want]) -> Want:
    bad = Bad()
    z = classes_last(bad, a.logits, a.axis, "logits")
    if z is not None and not tensor and not has_softmax(z).all():
        bad.add("logits")
    bad.stop()
    want = finish(minus_log_softmax(z), z)
    for name in ("value", "scale"):
        if getattr(want, name) is not None:
            setattr(want, name, np.moveaxis(getattr(want, name), -1, a.axis))
    want.reach = np.moveaxis(np.broadcast_to(want.reach, z.shape), -1, a.axis)
    want.dtype = result_dtype(a.logits)
    return want


def sigmoid(a: Plain, tensor: bool = False) -> Want:
    return _elementwise(a, tensor, lambda z: np.exp(-softplus(-z)))


def log_sigmoid(a: Plain, tensor: bool = False) -> Want:
    return _elementwise(a, tensor, lambda z: -softplus(-z))


def _elementwise(a: Plain, tensor: bool, function: Callable[[Array], Array]) -> Want:
    if np.isnan(a.logits).any() and not tensor:
        raise Refused({"logits"})
    # PyTorch promises no digits of exp(z) beyond those of the argument.
    z = a.logits.astype(L)
    value = function(z)
    return Want(value, result_dtype(a.logits), scale=np.abs(value) * (1 + np.minimum(np.abs(z), 1e3)))


# ---------------------------------------------------------------------------------------------- losses


def _hard(a: Plain, tensor: bool) -> tuple[Bad, Any, Any, Any]:
    """What the losses of class indices share: rows, labels with the mask, and each target's weight."""
    bad = Bad()
    z = classes_last(bad, a.logits, a.axis, "logits")
    if z is None:
        bad.stop()
    found = labels(bad, a.targets, z.shape[:-1], z.shape[-1], a.ignore_index)
    w = weights(bad, cast(a.weight, a.logits, tensor), (z.shape[-1],))
    if a.denominator is not None and a.reduction != "mean":
        bad.add("denominator")
    if found is None:
        bad.stop()
    y, counts = found
    each = None if w is None else w[y]
    return bad, z, (y, counts), each


def _held(share: float, dtype: str) -> Any:
    """A share that is zero in the dtype is no share."""
    return L(share) if share >= np.finfo(dtype).tiny else L(0)


def cross_entropy(a: Plain, tensor: bool = False) -> Want:
    bad, z, (y, counts), w = _hard(a, tensor)
    counted = counts if w is None else counts & (w > 0)
    if not tensor and not (has_softmax(z) | ~counted).all():
        bad.add("logits")
    nls = minus_log_softmax(z)
    own = np.take_along_axis(nls, y[..., None], -1)[..., 0]
    e = _held(a.label_smoothing, result_dtype(a.logits))
    losses = times(1 - e, own) + times(e, nls.mean(-1))
    losses = np.where(has_softmax(z), losses, np.nan)
    losses = np.where(counted, losses, 0)
    return reduce(
        bad, losses, a, result_dtype(a.logits), w, counts, reach=span(z) * (z.shape[-1] if e else 0)
    )


def soft_cross_entropy(a: Plain, tensor: bool = False) -> Want:
    bad, z, t = _soft(a, tensor)
    losses = times(t, minus_log_softmax(z)).sum(-1)
    losses = np.where(has_softmax(z), losses, np.nan)
    want = reduce(bad, losses, a, result_dtype(a.logits, a.target_probs), reach=span(z))
    want.precision = result_dtype(a.logits)
    return want


def _soft(a: Plain, tensor: bool) -> tuple[Bad, Array, Array]:
    bad = Bad()
    z = classes_last(bad, a.logits, a.axis, "logits")
    if a.denominator is not None and a.reduction != "mean":
        bad.add("denominator")
    if z is None:
        bad.stop()
    if a.target_probs.shape != a.logits.shape:
        bad.add("target_probs")
        if not ((a.target_probs >= 0) & (a.target_probs <= 1)).all():
            bad.add("target_probs")
        bad.stop()
    distribution(bad, a.target_probs, a.axis, a.slacks["target_probs"], "target_probs")
    if not tensor and not has_softmax(z).all():
        bad.add("logits")
    if a.reduction == "mean" and a.denominator is None and not z[..., 0].size:
        bad.add("targets")
    return bad, z, np.moveaxis(a.target_probs, a.axis, -1).astype(L)


def _binary(a: Plain, tensor: bool) -> tuple[Bad, Array, Array, Array | None, Array]:
    bad = Bad()
    if np.isnan(a.logits).any() and not tensor:
        bad.add("logits")
    if a.targets.shape != a.logits.shape or not ((a.targets >= 0) & (a.targets <= 1)).all():
        bad.add("targets")
    w = weights(bad, cast(a.weight, a.logits, tensor), a.logits.shape)
    c = cast(a.pos_weight, a.logits, tensor)
    if c is not None and (
        (c.shape and not (a.logits.ndim >= 2 and c.shape == a.logits.shape[-1:]))
        or not ((c > 0) & (c < np.inf)).all()
    ):
        bad.add("pos_weight")
    if a.denominator is not None and a.reduction != "mean":
        bad.add("denominator")
    if bad & {"targets", "pos_weight"}:
        bad.stop()
    return (
        bad,
        a.logits.astype(L),
        cast(a.targets, a.logits, tensor).astype(L),
        w,
        L(1) if c is None else c.astype(L),
    )


def binary_cross_entropy(a: Plain, tensor: bool = False) -> Want:
    bad, z, y, w, c = _binary(a, tensor)
    up, down = softplus(-z), softplus(z)
    losses = times(c * y, up) + times(1 - y, down)
    scale = times(c * y, up) + times(1 - y, down)
    losses = np.where(np.isnan(z), np.nan, losses)
    if w is not None:
        losses = np.where(w > 0, losses, 0)
    reach = times(np.maximum(c, 1) + 0 * y, np.where(np.isfinite(z), np.abs(z), 0))
    return reduce(bad, losses, a, result_dtype(a.logits), w, None, c * y + (1 - y), reach, scale)


def nll(a: Plain, tensor: bool = False) -> Want:
    a.values["logits"] = a.log_probs
    try:
        bad, lp, (y, counts), w = _hard(a, tensor)
    except Refused as refused:
        names = {"log_probs" if name == "logits" else name for name in refused.names}
        raise Refused(names | _not_logs(a)) from None
    bad |= _not_logs(a)
    losses = -np.take_along_axis(lp, y[..., None], -1)[..., 0].astype(L)
    return reduce(bad, losses, a, result_dtype(a.log_probs), w, counts)


def _not_logs(a: Plain) -> set[str]:
    if a.log_probs.ndim == 0 or not -a.log_probs.ndim <= a.axis < a.log_probs.ndim:
        return set()
    excess = np.abs(np.exp(a.log_probs.astype(L)).sum(a.axis) - 1)
    slack = a.slacks["log_probs"]
    if (np.abs(excess - slack) < 1e-3 * slack).any():
        raise Unsure
    return set() if (excess <= slack).all() else {"log_probs"}


def log_loss(a: Plain, tensor: bool = False) -> Want:
    a.values["logits"] = a.probs
    wrong = Bad()
    if a.probs.ndim and -a.probs.ndim <= a.axis < a.probs.ndim:
        distribution(wrong, a.probs, a.axis, a.slacks["probs"], "probs")
    try:
        bad, q, (y, counts), w = _hard(a, tensor)
    except Refused as refused:
        raise Refused({"probs" if name == "logits" else name for name in refused.names} | wrong) from None
    bad |= wrong
    own = np.take_along_axis(q, y[..., None], -1)[..., 0].astype(L)
    e = L(np.dtype(result_dtype(a.probs)).type(a.eps))  # the clip is in the dtype of the probabilities
    losses = -np.log(np.clip(own, e, 1 - e) if e else own) + 0
    # The ends of the clip are rounded to the dtype.
    scale = np.abs(losses) + 1 if e else None
    return reduce(bad, losses, a, result_dtype(a.probs), w, counts, scale=scale)


# ----------------------------------------------------------------------------------------- information


def _measure(
    a: Plain, function: Callable[..., Array], scale: Callable[..., Array], names: tuple[str, ...]
) -> Want:
    bad = Bad()
    p = classes_last(bad, a.p, a.axis, "p")
    if p is not None:
        distribution(bad, a.p, a.axis, a.slacks["p"], "p")
    if a.base == 1:
        bad.add("base")
    rest = []
    for name in names:
        q = getattr(a, name)
        if q.shape != a.p.shape:
            bad.add(name)
        elif p is not None:
            distribution(bad, q, a.axis, a.slacks[name], name)
            rest.append(np.moveaxis(q, a.axis, -1).astype(L))
    bad.stop()
    unit = L(1) if a.base is None else np.log(L(a.base))
    arrays = (p.astype(L), *rest)
    value = function(*arrays).sum(-1) / unit
    size = np.abs(scale(*arrays)).sum(-1) / np.abs(unit)
    return Want(
        value, result_dtype(a.p, *(getattr(a, n) for n in names)), scale=size, atol=1e-18 / np.abs(unit)
    )


def _log(p: Array, q: Array) -> Array:
    """p log q with 0 log 0 = 0."""
    return times(p, np.log(q))


def entropy(a: Plain) -> Want:
    return _measure(a, lambda p: -_log(p, p), lambda p: _log(p, p), ())


def information_cross_entropy(a: Plain) -> Want:
    return _measure(a, lambda p, q: -_log(p, q), lambda p, q: _log(p, q), ("q",))


def _kl(p: Array, q: Array) -> Array:
    return np.where(p > 0, p * (np.log(p) - np.log(q)), 0) - (p - q)


def kl_divergence(a: Plain) -> Want:
    # The oracle loses digits where p is close to q, which test_information.py looks at with mpmath.
    return _measure(a, _kl, lambda p, q: np.abs(_kl(p, q)) + 1e-4 * np.abs(p - q), ("q",))


def js_divergence(a: Plain) -> Want:
    def js(p: Array, q: Array) -> Array:
        return (_kl(p, (p + q) / 2) + _kl(q, (p + q) / 2)) / 2

    return _measure(a, js, lambda p, q: np.abs(js(p, q)) + 1e-4 * np.abs(p - q), ("q",))


# ------------------------------------------------------------------------------------------- gradients


def softmax_jacobian(a: Plain) -> Want:
    bad = Bad()
    z = classes_last(bad, a.logits, -1, "logits")
    if z is not None and not has_softmax(z).all():
        bad.add("logits")
    bad.stop()
    nls = minus_log_softmax(z)
    p = np.exp(-nls)
    value = -p[..., :, None] * p[..., None, :]
    rest = -np.expm1(-nls)
    np.einsum("...kk->...k", value)[...] = p * rest
    spread = 1 + np.minimum(nls, 2e3)
    return Want(
        value, result_dtype(a.logits), scale=np.abs(value) * spread[..., :, None] * spread[..., None, :]
    )


def _row_scale(a: Plain, w: Array, mass: Array | None = None) -> tuple[Bad, Array]:
    """Weight over divisor, for a gradient, and by what is lost to underflow before the division."""
    bad = Bad()
    if a.denominator is not None and a.reduction != "mean":
        bad.add("denominator")
    divisor = L(1)
    if a.reduction == "mean":
        total = (w if mass is None else w * mass).sum()
        divisor = total if a.denominator is None else L(a.denominator)
        if a.denominator is None and total == 0:
            bad.add("targets")
        if a.denominator is None and total > np.finfo(np.float64).max:
            bad.add("weight")
    a.values["lost"] = 8 * np.maximum(1, 1 / divisor)
    return bad, np.where(w == 0, L(0), w / divisor)


def cross_entropy_gradient(a: Plain) -> Want:
    bad, z, (y, counts), w = _hard(a, False)
    w = np.where(counts, L(1) if w is None else w, 0)
    if not (has_softmax(z) | (w == 0)).all():
        bad.add("logits")
    more, factor = _row_scale(a, w)
    bad |= more
    bad.stop()
    nls, e = minus_log_softmax(z), L(a.label_smoothing)
    p = np.exp(-nls)
    t = np.where(np.arange(z.shape[-1]) == y[..., None], 1 - e, L(0)) + e / z.shape[-1]
    hit = t == 1
    value = np.where(hit, np.expm1(-nls), p - t)
    size = np.where(hit, np.abs(value), p + t) * (1 + np.minimum(nls, 1e5))
    return _gradient(a, value, size, factor, w)


def soft_cross_entropy_gradient(a: Plain) -> Want:
    bad, z, t = _soft(a, False)
    more, factor = _row_scale(a, np.ones(z.shape[:-1], L))
    bad |= more
    bad.stop()
    nls = minus_log_softmax(z)
    p = np.exp(-nls) * t.sum(-1, keepdims=True)
    return _gradient(a, p - t, (p + t) * (1 + np.minimum(nls, 1e5)), factor, np.ones(z.shape[:-1]))


def _gradient(a: Plain, value: Array, size: Array, factor: Array, w: Array) -> Want:
    arrays = (a.logits,) if a.target_probs is None else (a.logits, a.target_probs)
    dtype = result_dtype(*arrays)
    value = times(factor[..., None], np.where((w > 0)[..., None], value, 0))
    size = times(factor[..., None], np.where((w > 0)[..., None], size, 0))
    # A probability that underflows is zero, whatever it is multiplied by.
    lost = (
        L(np.finfo(result_dtype(a.logits)).smallest_subnormal) * np.maximum(factor[..., None], 1) * a.lost
        + 0 * value
    )
    return Want(
        np.moveaxis(value, -1, a.axis),
        dtype,
        result_dtype(a.logits),
        scale=np.moveaxis(size, -1, a.axis),
        atol=np.moveaxis(lost, -1, a.axis),
    )


def binary_cross_entropy_gradient(a: Plain) -> Want:
    bad, z, y, w, c = _binary(a, False)
    w = np.ones(z.shape, L) if w is None else w
    more, factor = _row_scale(a, w, c * y + (1 - y))
    bad |= more
    bad.stop()
    up, down = c * y * np.exp(-softplus(z)), (1 - y) * np.exp(-softplus(-z))
    return Want(
        times(factor, down - up),
        result_dtype(a.logits),
        scale=times(factor, up + down),
        atol=L(np.finfo(result_dtype(a.logits)).smallest_subnormal) * np.maximum(factor, 1) * a.lost,
        reach=np.maximum(w * (up + down), factor * (up + down)),
    )


# --------------------------------------------------------------------------------------------- scoring


def _report(a: Plain) -> tuple[Bad, Array, Array, Array]:
    bad = Bad()
    q = classes_last(bad, a.probs, -1, "probs")
    if q is None:
        bad.stop()
    distribution(bad, a.probs, -1, a.slacks["probs"], "probs")
    found = labels(bad, a.outcome, q.shape[:-1], q.shape[-1], None, "outcome")
    if a.weight is not None:
        weights(bad, a.weight, q.shape[-1:])
    bad.stop()
    q = q.astype(L)
    return bad, q, np.take_along_axis(q, found[0][..., None], -1)[..., 0], found[0]


def score(
    rule: Callable[[Plain, Array, Array, Array], tuple[Array, Array] | None],
) -> Callable[[Plain], Want]:
    """Make a model of a scoring rule, which returns the cost and its scale."""

    def model(a: Plain) -> Want:
        _, q, own, y = _report(a)
        found = rule(a, q, own, y)
        if found is None:
            return Want(check=no_nan)
        return Want(found[0], result_dtype(a.probs), scale=found[1])

    return model


def no_nan(got: Any) -> str:
    """Return a complaint about nan, where the oracle knows no value."""
    array = got.detach().numpy() if isinstance(got, torch.Tensor) else np.asarray(got)
    return "with nan" if np.isnan(array).any() else ""


def _one_hot(q: Array, y: Array) -> Array:
    return (np.arange(q.shape[-1]) == y[..., None]).astype(L)


def log_score(a: Plain, q: Array, own: Array, y: Array) -> Any:
    return -np.log(own) + 0, np.abs(np.log(own))


def brier_score(a: Plain, q: Array, own: Array, y: Array) -> Any:
    value = ((q - _one_hot(q, y)) ** 2).sum(-1)
    return value, value


def spherical_score(a: Plain, q: Array, own: Array, y: Array) -> Any:
    return 1 - own / np.sqrt((q**2).sum(-1)), np.ones_like(own)


def linear_score(a: Plain, q: Array, own: Array, y: Array) -> Any:
    return 1 - own, 1 + own


def zero_one_score(a: Plain, q: Array, own: Array, y: Array) -> Any:
    highest = q.max(-1)
    ties = (q == highest[..., None]).sum(-1)
    return 1 - (own == highest) / ties.astype(L), np.ones_like(own)


def clipped_log_score(a: Plain, q: Array, own: Array, y: Array) -> Any:
    e = L(a.eps)
    value = -np.log(np.clip(own, e, 1 - e))
    return value, np.abs(value) + 1


def focal_loss(a: Plain, q: Array, own: Array, y: Array) -> Any:
    if a.gamma > 50:
        return None
    value = times(np.maximum(1 - own, 0) ** L(a.gamma), -np.log(own)) + 0
    value = np.where(own == 0, np.inf, value)
    return value, np.abs(value) * (1 + a.gamma)


def smoothed_log_score(a: Plain, q: Array, own: Array, y: Array) -> Any:
    e = L(a.label_smoothing)
    value = times(1 - e, -np.log(own)) + times(e, -np.log(q).mean(-1))
    return value, times(1 - e, np.abs(np.log(own))) + times(e, np.abs(np.log(q)).mean(-1))


def weighted_log_score(a: Plain, q: Array, own: Array, y: Array) -> Any:
    value = times(a.weight.astype(L)[y], -np.log(own)) + 0
    return value, np.abs(value)


def _invertible(a: Plain, least: float = -1.0) -> Array:
    bad = Bad()
    q = classes_last(bad, a.probs, -1, "probs")
    if q is None:
        bad.stop()
    distribution(bad, a.probs, -1, a.slacks["probs"], "probs")
    if a.weight is not None and (weights(bad, a.weight, q.shape[-1:]) is None or (a.weight <= 0).any()):
        bad.add("weight")
    bad.stop()
    return q.astype(L)


def invert_focal(a: Plain) -> Want:
    q, g = np.minimum(_invertible(a), 1), L(a.gamma)
    if a.gamma > 50 or (q > 1 - 1e-6).any():
        return Want(check=no_nan)
    p = np.where(q > 0, q / ((1 - q) ** g - g * (1 - q) ** (g - 1) * _log(q, q)), 0)
    return Want(p / p.sum(-1, keepdims=True), result_dtype(a.probs), factor=64 * (1 + a.gamma) * 16)


def invert_smoothing(a: Plain) -> Want:
    q = _invertible(a)
    e = L(a.label_smoothing)
    floor = e / q.shape[-1]
    value = (q - floor) / (1 - e)
    slack = 8 * np.finfo(a.probs.dtype).eps
    if (np.abs(value + slack) < slack / 2).any():
        raise Unsure
    if (value < -slack).any():
        raise Refused({"probs"})
    return Want(np.maximum(value, 0), result_dtype(a.probs), scale=(q + floor) / (1 - e))


def invert_weighting(a: Plain) -> Want:
    q = _invertible(a)
    p = q / a.weight.astype(L)
    return Want(p / p.sum(-1, keepdims=True), result_dtype(a.probs), atol=1e-300)


# What a rule of the table of targets costs; None: it is no rule, and the call must say so.
RULES: dict[str, Callable[[Array, int], Array] | None] = {
    "xent.scoring.log_score": lambda q, k: -np.log(q[..., k]),
    "xent.scoring.linear_score": lambda q, k: 1 - q[..., k],
    "lambda q, y: (q.argmax(-1) != y)": lambda q, k: (q.argmax(-1) != k).astype(L),
    "lambda q, y: np.multiply(q, 0, out=q).sum(-1) + 1": lambda q, k: np.ones(q.shape[:-1], L),
    "lambda q, y: np.float64(q).sum(-1).tolist()": lambda q, k: q.sum(-1),
    "lambda q, y: 'abc'": None,
    "lambda q, y: None": None,
    "lambda q, y: q.sum(-1) * 1j": None,
    "lambda q, y: q": None,
    "lambda q, y: q.sum(-1) * nan": None,
    "lambda q, y: np.ma.array(q.sum(-1))": None,
    "lambda q, y: [[1], [1, 2]]": None,
    "lambda q, y: Refuses(KeyError('x'))": None,
    "lambda q, y: object()": None,
    "lambda q, y: q.sum(-1).astype('M8[s]')": None,
}


def expected_score(a: Plain) -> Want:
    bad = Bad()
    q = classes_last(bad, a.q, -1, "q")
    p = classes_last(bad, a.p, -1, "p")
    for array, name in ((q, "q"), (p, "p")):
        if array is not None:
            distribution(bad, array, -1, a.slacks[name], name)
    if p is not None and q is not None and p.shape not in (q.shape, q.shape[-1:]):
        bad.add("p")
    cost = RULES[a.rule]
    if cost is None:
        if not bad and not a.q.size:
            raise Unsure  # costs of no reports may well be anything
        bad.add("rule")
    bad.stop()
    p, q = np.broadcast_to(p, q.shape).astype(L), q.astype(L)
    value = sum(times(p[..., k], cost(q, k)) for k in range(q.shape[-1]))
    scale = sum(times(p[..., k], 1 + np.abs(cost(q, k))) for k in range(q.shape[-1]))
    return Want(value, scale=scale, precision=result_dtype(a.q))


def elicited(a: Plain) -> Want:
    bad = Bad()
    p = classes_last(bad, a.p, -1, "p")
    if p is not None:
        distribution(bad, a.p, -1, a.slacks["p"], "p")
    cost = RULES[a.rule]
    if cost is None:
        if p is not None and (not p[..., 0].size or p.shape[-1] == 1):
            bad.stop()
            raise Unsure  # nobody has asked the rule
        bad.add("rule")
    bad.stop()

    def check(got: Any) -> str:
        got = np.asarray(got)
        if got.dtype != np.float64 or got.shape != p.shape or (got < 0).any():
            return "which is no report"
        if (np.abs(got.sum(-1) - 1) > 1e-9).any():
            return "which does not sum to one"
        law = p.astype(L)
        for q in (law / law.sum(-1, keepdims=True), np.full(p.shape, 1 / L(p.shape[-1]))):
            mine, other = (
                sum(times(law[..., k], cost(r, k)) for k in range(p.shape[-1])) for r in (got.astype(L), q)
            )
            if (mine > other * (1 + 1e-6) + 1e-6).any():
                return f"which costs more than {q.astype(float)}"
        return ""

    return Want(check=check)


# ------------------------------------------------------------------------------------------- sequences


def eos_optimum(a: Plain) -> Want:
    if not 1 <= a.batch_size <= 10**270 or a.stop < 1e-308:
        raise Refused(
            {"batch_size" if a.stop >= 1e-308 else "stop"} | ({"batch_size"} if a.batch_size < 1 else set())
        )
    return Want(_eos(a.stop, a.batch_size), factor=256) if _eos_known(a) else Want(check=_probability)


def _eos_known(a: Plain) -> bool:
    return bool(a.stop >= 0.02 and a.batch_size <= 8)


def _probability(got: Any) -> str:
    return "" if 0 < got <= 1 + 1e-12 else "which is no probability"


def _eos(stop: float, batch: int) -> Any:
    """B E[1/S], summed over the law of the number of tokens."""
    s = np.arange(batch, batch + 6000, dtype=L)
    ways = np.ones_like(s)
    for k in range(1, batch):
        ways *= (s - k) / k
    b = L(stop)
    return batch * (ways * b**batch * (1 - b) ** (s - batch) / s).sum()


def _law(a: Plain) -> tuple[Bad, Array, Array]:
    bad = Bad()
    n = a.lengths
    if n.ndim != 1 or not n.size or (n < 1).any():
        bad.add("lengths")
    if not 1 <= a.batch_size <= 10**270:
        bad.add("batch_size")
    if a.probabilities is not None:
        if a.probabilities.ndim == 0 or not a.probabilities.shape[-1]:
            bad.add("probabilities")
        else:
            distribution(bad, a.probabilities, -1, a.slacks["probabilities"], "probabilities")
        if a.probabilities.shape != n.shape:
            bad.add("probabilities")
    bad.stop()
    # The dtype of the lengths does not matter beyond 2^53: they are floats then.
    n = n.astype(np.float64).astype(L)
    return bad, n, np.full(n.size, 1 / L(n.size)) if a.probabilities is None else a.probabilities.astype(L)


def length_weights(a: Plain) -> Want:
    _, n, p = _law(a)
    if a.batch_size > 2:
        return Want(
            check=lambda got: (
                no_nan(got) or ("" if (got >= 0).all() and got.shape == n.shape else "below zero")
            )
        )
    return Want(_length_weights(n, p, a.batch_size), factor=1e6 + 1e17 * abs(p.sum() - 1))


def _length_weights(n: Array, p: Array, batch: int) -> Array:
    return 1 / n if batch == 1 else (p / (n[:, None] + n)).sum(-1)


def tilted_lengths(a: Plain) -> Want:
    _, n, p = _law(a)
    if a.batch_size > 2:
        return Want(
            check=lambda got: (
                no_nan(got) or ("" if abs(got.sum() - 1) < 1e-9 else "which sum to another number")
            )
        )
    tilted = p * _length_weights(n, p, a.batch_size)
    # The package takes what the law lacks to one for a loss, the oracle for nothing.
    return Want(
        tilted / tilted.sum(), atol=8 * L(5e-324) / tilted.sum(), factor=1e6 + 1e17 * abs(p.sum() - 1)
    )


def hazards(a: Plain) -> Want:
    bad = Bad()
    p = classes_last(bad, a.probabilities, -1, "probabilities")
    if p is not None:
        distribution(bad, p, -1, a.slacks["probabilities"], "probabilities")
        if p.ndim != 1:
            bad.add("probabilities")
    bad.stop()
    left = np.cumsum(p.astype(L)[::-1])[::-1]
    return Want(np.where(left > 0, p / left, np.nan))


def geometric(method: Callable[[Plain], Any]) -> Callable[[Plain], Want]:
    """Make a model of a method of GeometricSource, from its formula."""

    def model(a: Plain) -> Want:
        bad = Bad()
        if a.stop < 1e-308:
            bad.add("stop")
        if a.letters < 1:
            bad.add("letters")
        for name in ("n_max", "batch_size", "size"):
            value = getattr(a, name)
            least = 0 if name == "size" else 1
            if value is not None and not least <= value <= (10**270 if name == "batch_size" else 10**9):
                bad.add(name)
        bad.stop()
        value = method(a)
        return value if isinstance(value, Want) else Want(value, factor=4096)

    return model


def geometric_loss(q: Any, share: Any, letters: int) -> Any:
    q, share = L(q), L(share)
    log_m = L(math.log(letters))
    return (
        times(share, -np.log(q))
        if share == 1
        else times(share, -np.log(q)) + times(1 - share, log_m - np.log1p(-q))
    )


class Chain:
    """A Markov source of one or two letters, by the formulas for matrices of that size."""

    def __init__(self, a: Plain, initial: str = "initial", transition: str = "transition") -> None:
        bad = Bad()
        first, rows = getattr(a, initial), getattr(a, transition)
        if first.ndim != 1:
            bad.add(initial)
        if first.ndim and first.shape[-1]:
            distribution(bad, first, -1, a.slacks[initial], initial)
        else:
            bad.add(initial)
        letters = first.shape[-1] - 1 if first.ndim else 0
        if letters < 1:
            bad.add(initial)
        if rows.shape != (letters, letters + 1):
            bad.add(transition)
        if rows.ndim and rows.shape[-1]:
            distribution(bad, rows, -1, a.slacks[transition], transition)
        else:
            bad.add(transition)
        bad.stop()
        self.first, self.rows, self.letters = first.astype(L), rows.astype(L), letters
        p, stop = self.rows[:, :-1], self.rows[:, -1]
        reached, ends = self.first[:-1] > 0, stop > 0
        for _ in range(letters):
            reached = reached | ((p > 0) & reached[:, None]).any(0)
            ends = ends | ((p > 0) & ends).any(1)
        if not ends[reached].all():
            raise Refused({transition})
        self.reached = reached
        inner = np.where(reached[:, None] & reached, p, 0)
        matrix = np.eye(letters, dtype=L) - inner
        determinant = (
            matrix[0, 0] if letters == 1 else matrix[0, 0] * matrix[1, 1] - matrix[0, 1] * matrix[1, 0]
        )
        if letters > 2 or np.abs(determinant) < 1e-4:
            raise Unsure  # so long that rounding decides
        inverse = 1 / matrix if letters == 1 else np.array(
            [[matrix[1, 1], -matrix[0, 1]], [-matrix[1, 0], matrix[0, 0]]]
        ) / determinant  # fmt: skip
        self.visits = np.where(reached, self.first[:-1] @ inverse, 0)
        if (self.visits < 0).any():
            raise Refused({transition})


def chain(method: Callable[[Plain, Chain], Any]) -> Callable[[Plain], Want]:
    def model(a: Plain) -> Want:
        source = Chain(a)
        bad = Bad()
        for name, most in (("n_max", 10**9), ("batch_size", 10**12), ("size", 10**9)):
            value = getattr(a, name)
            if value is not None and not 1 <= value <= most:
                bad.add(name)
        bad.stop()
        value = method(a, source)
        return value if isinstance(value, Want) else Want(value, factor=1e6)

    return model


# ---------------------------------------------------------------------------------------- distillation


def _teacher(a: Plain, tensor: bool, checked: bool) -> tuple[Bad, Array, Array, Array | None, Array]:
    """Student's and teacher's rows, the weights of the rows, and which of them count and have a softmax."""
    bad = Bad()
    if tensor:
        _in_range(bad, a)
    z = classes_last(bad, a.student_logits, a.axis, "student_logits")
    if a.denominator is not None and a.reduction != "mean":
        bad.add("denominator")
    if a.teacher_logits.shape != a.student_logits.shape:
        bad.add("teacher_logits")
        if tensor:
            classes_last(bad, a.teacher_logits, a.axis, "teacher_logits")
        bad.stop()
    if z is None:
        bad.stop()
    v = np.moveaxis(a.teacher_logits, a.axis, -1)
    wider = a.teacher_logits if result_dtype(a.student_logits) == "f4" else a.student_logits
    w = weights(bad, cast(a.weight, wider, tensor), z.shape[:-1])
    counts = np.ones(z.shape[:-1], bool) if w is None else w > 0
    if checked and "weight" not in bad:
        for array, name in ((z, "student_logits"), (v, "teacher_logits")):
            if not (has_softmax(array) | ~counts).all():
                bad.add(name)
    return bad, z, v, w, counts


def _moderate(*arrays: Array, temperature: float = 1.0) -> bool:
    """Whether no probability is so small that it counts as zero, which the oracle does not imitate."""
    far = max((float(span(x).max()) for x in arrays if x.size), default=0.0)
    least = 500 if all(x.dtype == np.float64 for x in arrays) else 60
    return 1e-2 <= temperature <= 1e3 and far / temperature <= least and far <= 1e4


def _softened(x: Array, temperature: float) -> Array:
    """log softmax(x / T), for rows that have one."""
    return -minus_log_softmax(x.astype(L) / L(temperature))


def _divergence(log_a: Array, log_b: Array) -> Array:
    a, b = np.exp(log_a), np.exp(log_b)
    return (np.where(a > 0, a * (log_a - log_b), 0) - a + b).sum(-1)


def distillation_loss(a: Plain, tensor: bool = False) -> Want:
    bad, z, v, w, counts = _teacher(a, tensor, not tensor)
    losses, loose = _distilled(a, z, v)
    losses = np.where(counts, losses, 0)
    want = reduce(bad, losses, a, _pair_dtype(a), w, counts, scale=np.abs(losses) + loose)
    return (
        want if _moderate(z, v, temperature=a.temperature) or (not tensor and not z.size) else _extreme(want)
    )


def _in_range(bad: Bad, a: Plain, name: str = "temperature", *arrays: Array) -> None:
    """PyTorch divides by the temperature in the dtype of the logits."""
    limits = np.finfo(result_dtype(*(arrays or (a.student_logits, a.teacher_logits))))
    if not limits.tiny <= getattr(a, name) <= limits.max:
        bad.add(name)


def _pair_dtype(a: Plain) -> str:
    return result_dtype(a.student_logits, a.teacher_logits)


def _distilled(a: Plain, z: Array, v: Array) -> tuple[Array, Array]:
    t = a.temperature
    log_q, log_p = _softened(z, t), _softened(v, t)
    first, second = (log_p, log_q) if a.direction == "forward" else (log_q, log_p)
    factor = L(t) ** 2 if a.scale == "t_squared" else L(1)
    losses = factor * np.maximum(_divergence(first, second), 0)
    # float32 knows the difference of two logits to the rounding error of their size.
    return losses, factor * (1 + (span(z) + span(v)) / t)


def _extreme(want: Want) -> Want:
    """Where the oracle has no value: the shape, the dtype, and never below zero."""
    shape, nans = np.shape(want.value), np.isnan(want.value)

    def check(got: Any) -> str:
        got = got.detach().numpy() if isinstance(got, torch.Tensor) else np.asarray(got)
        if got.shape != shape or got.dtype != np.dtype(want.dtype):
            return f"of shape {got.shape} and dtype {got.dtype}, where {shape} and {want.dtype} are due"
        if (np.isnan(got) & ~nans).any():
            return "with nan"
        return "" if not (got < 0).any() else "below zero"

    return Want(check=check)


def distillation_gradient(a: Plain) -> Want:
    bad, z, v, w, counts = _teacher(a, False, True)
    more, factor = _row_scale(a, np.where(counts, L(1) if w is None else w, 0))
    bad |= more
    bad.stop()
    t = a.temperature
    log_q, log_p = _softened(z, t), _softened(v, t)
    q, p = np.exp(log_q), np.exp(log_p)
    size = L(t) if a.scale == "t_squared" else 1 / L(t)
    if a.direction == "forward":
        value = size * (q - p)
    else:
        d = np.where(q > 0, log_q - log_p, 0)
        divergence = np.where(q > 0, q * d, 0).sum(-1, keepdims=True)
        value = np.where(q > 0, size * q * (d - divergence), 0)
        value = np.where(np.isfinite(divergence), value, np.nan)
    value = np.where(counts[..., None], times(factor[..., None], value), 0)
    loose = times(factor, size * (1 + (span(z) + span(v)) / t))[..., None] + 0 * p
    want = Want(np.moveaxis(value, -1, a.axis), _pair_dtype(a), scale=np.moveaxis(loose, -1, a.axis))
    want.atol = L(np.finfo(want.dtype).smallest_subnormal) * a.lost
    want.reach = np.abs(np.moveaxis(loose * (L(1) if w is None else w[..., None]), -1, a.axis))
    return (
        want
        if _moderate(z, v, temperature=t)
        else Want(check=lambda got: "" if got.shape == want.value.shape else "of another shape")
    )


def mixed_loss(a: Plain, tensor: bool = False) -> Want:
    bad, z, v, _, _ = _teacher(a, tensor, False)  # which rows count is known only from the labels
    found = labels(bad, a.targets, z.shape[:-1], z.shape[-1], a.ignore_index)
    if found is None:
        if not tensor:
            bad |= {n for x, n in ((z, "student_logits"), (v, "teacher_logits")) if not has_softmax(x).all()}
        bad.stop()
    y, counts = found
    if not tensor:
        bad |= {
            n
            for x, n in ((z, "student_logits"), (v, "teacher_logits"))
            if not (has_softmax(x) | ~counts).all()
        }
    soft, loose = _distilled(a, z, v)
    alpha = _held(a.alpha, _pair_dtype(a))
    hard = np.take_along_axis(minus_log_softmax(z), y[..., None], -1)[..., 0]
    losses = np.where(counts, times(1 - alpha, hard) + times(alpha, soft), 0)
    scale = np.abs(losses) + alpha * loose
    want = reduce(bad, losses, a, _pair_dtype(a), None, counts, scale=scale)
    want.precision = result_dtype(a.student_logits)
    return want if _moderate(z, v, temperature=a.temperature) else _extreme(want)


def _choices(bad: Bad, at: Array, z: Array, axis: int, name: str) -> Array | None:
    if at.ndim != z.ndim or np.moveaxis(at, axis, -1).shape[:-1] != z.shape[:-1] or not at.shape[axis]:
        bad.add(name)
        return None
    if ((at < 0) | (at >= z.shape[-1])).any():
        bad.add(name)
        return None
    return np.moveaxis(at, axis, -1).astype(np.int64)


def top_k_loss(a: Plain, tensor: bool = False) -> Want:
    bad = Bad()
    z = classes_last(bad, a.student_logits, a.axis, "student_logits")
    log_p = classes_last(bad, a.top_log_probs, a.axis, "top_log_probs")
    if a.denominator is not None and a.reduction != "mean":
        bad.add("denominator")
    if z is None:
        bad.stop()
    at = _choices(bad, a.top_indices, z, a.axis, "top_indices")
    if at is not None and any(len(set(row)) < len(row) for row in at.reshape(-1, at.shape[-1]).tolist()):
        bad.add("top_indices")
    if a.top_indices.shape != a.top_log_probs.shape:
        bad.add("top_indices")
    if a.top_log_probs.ndim != z.ndim:
        bad |= {"top_log_probs"}
        bad -= {"axis"}
    w = weights(bad, cast(a.weight, a.student_logits, tensor), z.shape[:-1])
    counts = np.ones(z.shape[:-1], bool) if w is None else w > 0
    if not tensor and "weight" not in bad and not (has_softmax(z) | ~counts).all():
        bad.add("student_logits")
    if log_p is not None:
        slack = a.slacks["top_log_probs"]
        mass = np.exp(log_p.astype(L)).sum(-1)
        if (np.abs(mass - 1 - slack) < 1e-3 * slack).any():
            raise Unsure
        if not ((log_p <= slack).all(-1) & (mass <= 1 + slack)).all() or (
            a.treatment.startswith("renorm") and np.isneginf(log_p).all(-1).any()
        ):
            bad.add("top_log_probs")
    if bad & {"top_indices", "top_log_probs", "axis"} or log_p is None:
        bad.stop()
    log_p = log_p.astype(L)
    log_q = -minus_log_softmax(z)
    chosen = np.take_along_axis(log_q, at, -1)
    if a.treatment.startswith("renorm"):
        log_p = log_p - np.log(np.exp(log_p).sum(-1, keepdims=True))
    if a.treatment == "renormalised_both":
        chosen = chosen - np.log(np.exp(chosen).sum(-1, keepdims=True))
    p = np.exp(log_p)
    losses = np.where(p > 0, p * (log_p - chosen), 0).sum(-1)
    if a.treatment == "tail" and at.shape[-1] < z.shape[-1]:
        rest, others = np.maximum(1 - p.sum(-1), 0), np.exp(log_q)
        np.put_along_axis(others, at, 0, -1)
        losses = losses + np.where(rest > 1e-15, rest * (np.log(rest) - np.log(others.sum(-1))), 0)
    losses = np.where(counts, losses, 0)
    scale = np.abs(losses) + 1 + span(z) + np.where(np.isfinite(log_p), np.abs(log_p), 0).max(-1)
    # All of the mass in the top k up to rounding: is what is left nothing, or a little?
    close = (np.abs(1 - p.sum(-1)) < 1e-3) & (p.sum(-1) != 1)
    want = reduce(bad, losses, a, result_dtype(a.student_logits, a.top_log_probs), w, counts, scale=scale)
    unknown = (a.treatment == "tail" and close.any()) or np.isinf(losses).any()
    return want if _moderate(z) and not unknown and not np.isnan(losses).any() else Want(check=lambda got: "")


def sampled_loss(a: Plain, tensor: bool = False) -> Want:
    bad = Bad()
    z = classes_last(bad, a.student_logits, a.axis, "student_logits")
    if a.denominator is not None and a.reduction != "mean":
        bad.add("denominator")
    if z is None:
        bad.stop()
    at = _choices(bad, a.indices, z, a.axis, "indices")
    mass = weights(bad, cast(a.sample_weights, a.student_logits, tensor), a.indices.shape, "sample_weights")
    w = weights(bad, cast(a.weight, a.student_logits, tensor), z.shape[:-1])
    counts = np.ones(z.shape[:-1], bool) if w is None else w > 0
    if not tensor and "weight" not in bad and not (has_softmax(z) | ~counts).all():
        bad.add("student_logits")
    if at is None or mass is None:
        bad.stop()
    chosen = np.take_along_axis(minus_log_softmax(z), at, -1)
    mass = np.moveaxis(mass, a.axis, -1)
    losses = np.where(counts, times(mass, chosen).sum(-1), 0)
    reach = (mass * np.minimum(chosen, 1e4000)).sum(-1) + mass.sum(-1) * span(z)
    scale = np.abs(losses) + times(mass.sum(-1), 1 + span(z))
    return reduce(bad, losses, a, result_dtype(a.student_logits), w, counts, reach=np.abs(reach), scale=scale)


def sample_targets(a: Plain, tensor: bool = False) -> Want:
    bad = Bad()
    v = classes_last(bad, a.teacher_logits, a.axis, "teacher_logits")
    if v is not None and not has_softmax(v).all():
        bad.add("teacher_logits")
    if not 1 <= a.samples <= 10**9:
        bad.add("samples")
    if tensor:
        _in_range(bad, a, "proposal_temperature", a.teacher_logits)
    bad.stop()
    possible = ~np.isneginf(v)

    def check(got: Any) -> str:
        at, w = (x.numpy() if isinstance(x, torch.Tensor) else x for x in got)
        at, w = np.moveaxis(at, a.axis, -1), np.moveaxis(w, a.axis, -1)
        if at.shape != (*v.shape[:-1], a.samples) or w.shape != at.shape or at.dtype != np.int64:
            return "of another shape"
        if at.size and (
            at.min() < 0 or at.max() >= v.shape[-1] or not np.take_along_axis(possible, at, -1).all()
        ):
            return "with a class that is impossible"
        if np.isnan(w).any() or (w < 0).any():
            return "with weights that are none"
        if a.proposal_temperature == 1 and not np.allclose(w * a.samples, 1):
            return "with weights other than 1/n"
        return ""

    return Want(check=check)


# ------------------------------------------------------------------------------------------ the others


def accumulate(a: Plain) -> Want:
    """Scales of all micro-batches, from the labels of each."""
    if a.steps < 1:
        raise Refused({"steps"})

    def count(y: Array) -> int:
        counts = np.array([int(v) != a.ignore_index for v in y.reshape(-1)], bool).reshape(y.shape)
        if a.denominator == "sequences" and y.ndim > 1:
            counts = counts.reshape(y.shape[0], -1).any(1) if y.shape[0] else counts
        return int(counts.sum())

    values = []
    for i in range(0, len(a.batches), a.steps):
        window = a.batches[i : i + a.steps]
        n = sum(map(count, window)) if isinstance(a.denominator, str) else a.denominator
        values.append([1 / n if n else 0.0] * len(window))

    def check(got: Any) -> str:
        return "" if got == values else f"where {values} is due"

    return Want(check=check)


def kind(expected: type, attribute: str, value: Any = None) -> Want:
    """Want an object of a class that says nothing, or `value`."""

    def check(got: Any) -> str:
        if not isinstance(got, expected) or not isinstance(repr(got), str):
            return f"where a {expected.__name__} is due"
        return (
            "" if value is None or getattr(got, attribute) == value else f"where {attribute}={value} is due"
        )

    return Want(check=check)
