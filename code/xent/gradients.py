"""Gradients of the losses with respect to the logits, and the second derivative.

Every gradient here is (probability - target) times a weight: p - y for a class index, S p - t for a target
distribution t with sum S, sigma(z) - y for a single logit. What takes care is the difference. For an example
that is confidently right p_y rounds to 1, and p_y - 1 to 0 or to a multiple of the rounding error; but

    p_y - 1 = -others / (own + others)

in the numbers of `_blocks`, which subtracts nothing.

Arguments, checks and messages are those of the losses.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ._blocks import Block, Terms, blocks
from ._validate import (
    Floats,
    Reduction,
    class_indices,
    logits_array,
    mean_divisor,
    positive_weight,
    probabilities,
    real_array,
    reduction_arguments,
    same_shape,
    smoothing_mass,
    weights,
)
from .numerics import refuse, sigmoid, without_nan

__all__ = [
    "binary_cross_entropy_gradient",
    "cross_entropy_gradient",
    "cross_entropy_hessian",
    "soft_cross_entropy_gradient",
    "softmax_jacobian",
]


def softmax_jacobian(logits: ArrayLike) -> Floats:
    r"""Jacobian matrix of the softmax.

    .. math:: J_{jk} = \frac{\partial p_j}{\partial z_k} = p_j (\delta_{jk} - p_k), \qquad
              J = \operatorname{diag}(p) - p p^\top

    Parameters
    ----------
    logits : array_like, shape (..., K)
        Logits z, classes on the last axis; at least one in each row is finite, none is +inf.

    Returns
    -------
    ndarray, shape (..., K, K)
        One symmetric matrix for each row; float32 for logits of float16 and float32, float64 otherwise. Its
        rows sum to zero up to rounding. p (1 - p) is accurate also where p rounds to one.

    Raises
    ------
    ValueError
        If `logits` holds nan or +inf, a row is -inf throughout, or there are no classes.
    TypeError
        If `logits` is not real.

    See Also
    --------
    cross_entropy_hessian : the same matrix, in its other role.

    Examples
    --------
    >>> from xent.gradients import softmax_jacobian
    >>> softmax_jacobian([0.0, 0.0])
    array([[ 0.25, -0.25],
           [-0.25,  0.25]])
    """
    logits, axis = logits_array(logits, "logits", -1)
    classes = logits.shape[-1]
    out = np.empty((*logits.shape, classes), np.promote_types(logits.dtype, np.float32))
    diagonal = np.einsum("...kk->...k", out)  # a view that can be written to
    with np.errstate(all="ignore"):
        for index, block in blocks(logits):
            highest = block.argmax()
            block.shift()
            total, rest = _normalise(block, block.exponentiate_without(highest))
            at = block.each, highest
            p = block.work
            p[at] = 1 / total
            part = out[index].reshape(-1, classes, classes)
            np.multiply(p[:, :, None], -p[:, None, :], out=part)
            complement = 1 - p
            complement[at] = rest
            p *= complement
            diagonal[index] = p.reshape(diagonal[index].shape)
    if np.isnan(diagonal).any():
        refuse(logits, "logits", axis)
    return out


def cross_entropy_hessian(logits: ArrayLike) -> Floats:
    r"""Hessian matrix of the softmax cross-entropy of one example.

    .. math:: H = \nabla_z^2 \bigl(-\log p_y\bigr) = \operatorname{diag}(p) - p p^\top

    It does not depend on the target, which enters the loss linearly, as -z_y: the same matrix serves every
    class index, every distribution over the classes and every label smoothing. For a weighted example it
    is w H, under a mean w H / sum(w).

    Parameters
    ----------
    logits : array_like, shape (..., K)
        Logits z, classes on the last axis; at least one in each row is finite, none is +inf.

    Returns
    -------
    ndarray, shape (..., K, K)
        One matrix for each row, that of `softmax_jacobian`.

    Raises
    ------
    ValueError
        If `logits` holds nan or +inf, a row is -inf throughout, or there are no classes.
    TypeError
        If `logits` is not real.

    Notes
    -----
    x' H x is the variance of x under p, so that H is positive semidefinite; H 1 = 0, and its largest
    eigenvalue is at most min(1/2, max p).

    Examples
    --------
    >>> import numpy as np
    >>> from xent.gradients import cross_entropy_hessian
    >>> x = np.array([1.0, -1.0])
    >>> float(x @ cross_entropy_hessian([3.0, 3.0]) @ x)
    1.0
    """
    return softmax_jacobian(logits)


def cross_entropy_gradient(
    logits: ArrayLike,
    targets: ArrayLike,
    *,
    axis: int = -1,
    weight: ArrayLike | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
    denominator: float | None = None,
) -> Floats:
    r"""Gradient of `xent.cross_entropy` with respect to the logits.

    .. math:: \frac{\partial \ell}{\partial z_k} = p_k - y_k, \qquad
              y_k = (1-\varepsilon)\,[k = y] + \frac{\varepsilon}{K}

    Parameters
    ----------
    logits : array_like, shape (..., K, ...)
        Logits z. -inf marks an impossible class; +inf and nan are refused.
    targets, axis, weight, label_smoothing, ignore_index
        As in `xent.cross_entropy`.
    reduction : {"mean", "sum", "none"}, default "mean"
        Which loss to differentiate: each example's row is w (p - y) / sum(w) for the mean, and w (p - y) for
        the sum. The row of an example does not depend on the others, so "none", the gradient of each
        example's own loss, is the same as "sum".
    denominator : float, optional
        Replaces sum(w) in the mean.

    Returns
    -------
    ndarray, shape of `logits`
        float32 for logits of float16 and float32, float64 otherwise. Exactly zero where a target does not
        count (ignored, or of weight zero), whatever its logits hold.

    Raises
    ------
    ValueError, TypeError
        For the reasons of `xent.cross_entropy`.

    Notes
    -----
    Without smoothing each entry is accurate to the few ulp of `xent.softmax`, the one of the target
    included, however small it is.

    A target on a logit of -inf costs inf, and no gradient repairs it. The formula still has a value, p - y,
    and that is what comes back: finite, with -1 at the target.

    Examples
    --------
    >>> from xent.gradients import cross_entropy_gradient
    >>> cross_entropy_gradient([[0.0, 0.0], [0.0, 0.0]], [0, 1])
    array([[-0.25,  0.25],
           [ 0.25, -0.25]])
    >>> cross_entropy_gradient([[40.0, 0.0]], [0])
    array([[-4.24835426e-18,  4.24835426e-18]])
    """
    logits, axis = logits_array(logits, "logits", axis)
    moved = np.moveaxis(logits, axis, -1)
    shape, classes = moved.shape[:-1], moved.shape[-1]
    labels, counts = class_indices(targets, "targets", shape, classes, ignore_index)
    by_class = None if weight is None else weights(weight, "weight", (classes,), "one weight a class")
    smoothing = smoothing_mass(label_smoothing)
    reduction, denominator = reduction_arguments(reduction, denominator)

    # The weight of each target; None if all of them weigh one.
    each = None if by_class is None else by_class[labels]
    if counts is not None:
        each = np.where(counts, 1.0 if each is None else each, 0.0)
    divisor = 1.0
    if reduction == "mean":
        with np.errstate(over="ignore"):
            divisor = mean_divisor(float(labels.size if each is None else each.sum()), denominator)

    spread = smoothing / classes
    out = np.empty(moved.shape, np.promote_types(logits.dtype, np.float32))
    undefined = False
    with np.errstate(all="ignore"):
        for index, block in blocks(moved):
            own = labels[index].reshape(-1)
            block.shift()
            terms = block.exponentiate_without(own)
            total, rest = _normalise(block, terms)
            if spread:
                block.work -= spread
            block.work[block.each, own] = _difference(
                terms.own / total, rest, 1 - smoothing + spread, smoothing - spread
            )
            w = None if each is None else each[index].reshape(-1)
            undefined |= bool(np.isnan(total if w is None else total[w > 0]).any())
            _scale(block, w, divisor)
            out[index] = block.work.reshape(out[index].shape)
    if undefined:
        refuse(moved if each is None else np.where((each > 0)[..., None], moved, 0.0), "logits", axis)
    return np.moveaxis(out, -1, axis)


def soft_cross_entropy_gradient(
    logits: ArrayLike,
    target_probs: ArrayLike,
    *,
    axis: int = -1,
    reduction: Reduction = "mean",
    denominator: float | None = None,
) -> Floats:
    r"""Gradient of `xent.soft_cross_entropy` with respect to the logits.

    .. math:: \frac{\partial \ell}{\partial z_k} = p_k \sum_j t_j - t_k = p_k - t_k

    Parameters
    ----------
    logits : array_like, shape (..., K, ...)
        Logits z. -inf marks an impossible class; +inf and nan are refused.
    target_probs, axis
        As in `xent.soft_cross_entropy`.
    reduction : {"mean", "sum", "none"}, default "mean"
        Which loss to differentiate: the mean divides by the number of rows; "none", the gradient of each
        row's own loss, is the same as "sum".
    denominator : float, optional
        Replaces the number of rows.

    Returns
    -------
    ndarray, shape of `logits`
        float32 if neither argument is wider, float64 otherwise. Each row sums to zero up to rounding.

    Raises
    ------
    ValueError, TypeError
        For the reasons of `xent.soft_cross_entropy`.

    Notes
    -----
    The targets are used as they are: where a row sums to S = 1 up to rounding, the gradient of the loss as
    it stands is S p - t, and that is returned.

    A positive target on a logit of -inf costs inf; what comes back is the formula's value there, -t.

    Examples
    --------
    >>> from xent.gradients import soft_cross_entropy_gradient
    >>> soft_cross_entropy_gradient([[0.0, 0.0]], [[0.75, 0.25]])
    array([[-0.25,  0.25]])
    """
    logits, axis = logits_array(logits, "logits", axis)
    target = real_array(target_probs, "target_probs")
    same_shape(target, "target_probs", logits.shape, "logits")
    target = np.moveaxis(probabilities(target, "target_probs", axis), axis, -1)
    moved = np.moveaxis(logits, axis, -1)
    reduction, denominator = reduction_arguments(reduction, denominator)
    rows = logits.size // logits.shape[axis]
    divisor = mean_divisor(float(rows), denominator) if reduction == "mean" else 1.0

    dtype = np.promote_types(np.promote_types(logits.dtype, target.dtype), np.float32)
    out = np.empty(moved.shape, dtype)
    undefined = False
    with np.errstate(all="ignore"):
        for index, block in blocks(moved):
            t = target[index].reshape(block.rows.shape).astype(dtype)
            highest = block.argmax()
            at = block.each, highest
            block.shift()
            total, rest = _normalise(block, block.exponentiate_without(highest))
            undefined |= bool(np.isnan(total).any())
            # Only the largest probability can be so close to one that its complement is needed.
            own = t[at]
            t[at] = 0
            remaining = t.sum(axis=1)
            mass = remaining + own
            difference = np.multiply(block.work, mass[:, None], dtype=dtype)
            difference -= t
            difference[at] = _difference(mass / total, mass * rest, own, remaining)
            np.divide(difference, np.float64(divisor), out=difference, casting="same_kind")
            out[index] = difference.reshape(out[index].shape)
    if undefined:
        refuse(moved, "logits", axis)
    return np.moveaxis(out, -1, axis)


def binary_cross_entropy_gradient(
    logits: ArrayLike,
    targets: ArrayLike,
    *,
    weight: ArrayLike | None = None,
    pos_weight: ArrayLike | None = None,
    reduction: Reduction = "mean",
    denominator: float | None = None,
) -> Any:
    r"""Gradient of `xent.binary_cross_entropy` with respect to the logits.

    .. math:: \frac{\partial \ell}{\partial z} = (1-y)\,\sigma(z) - c\,y\,\sigma(-z)

    with c = `pos_weight`; for c = 1 it is sigma(z) - y.

    Parameters
    ----------
    logits : array_like
        Logits z of any shape; infinities are allowed.
    targets, weight, pos_weight
        As in `xent.binary_cross_entropy`.
    reduction : {"mean", "sum", "none"}, default "mean"
        Which loss to differentiate; the mean divides by the sum of weight * (c y + 1 - y). "none", the
        gradient of each target's own loss, is the same as "sum".
    denominator : float, optional
        Replaces that sum.

    Returns
    -------
    scalar or ndarray, shape of `logits`
        float32 for logits of float16 and float32, float64 otherwise; for targets 0 and 1 accurate to a few
        ulp in both tails. Exactly zero where the weight is zero. Certain and wrong (an infinite logit, a loss
        of inf) has the limit of the gradient, 1 or -c.

    Raises
    ------
    ValueError, TypeError
        For the reasons of `xent.binary_cross_entropy`.

    Examples
    --------
    >>> from xent.gradients import binary_cross_entropy_gradient
    >>> binary_cross_entropy_gradient([0.0, 40.0], [1, 1], reduction="sum")
    array([-5.00000000e-01, -4.24835426e-18])
    """
    z = without_nan(real_array(logits, "logits"), "logits")
    y = real_array(targets, "targets")
    same_shape(y, "targets", z.shape, "logits")
    y = probabilities(y, "targets", None).astype(np.float64)
    w = None if weight is None else weights(weight, "weight", z.shape, "that of the logits")
    c = None if pos_weight is None else positive_weight(pos_weight, z.shape)
    reduction, denominator = reduction_arguments(reduction, denominator)

    with np.errstate(all="ignore"):
        positive = y if c is None else c * y
        divisor = 1.0
        if reduction == "mean":
            mass = (positive + (1 - y)) * (1.0 if w is None else w)
            divisor = mean_divisor(float(mass.sum()), denominator)
        # sigma(-z) is 1 - sigma(z) without the subtraction.
        out = (1 - y) * sigmoid(z) - positive * sigmoid(-z)
        if w is not None:
            out = out * w
        out = np.asarray(out / divisor + 0.0)  # -0.0 + 0.0 = 0.0
        return out.astype(np.promote_types(z.dtype, np.float32), copy=False)[()]


def _normalise(block: Block, terms: Terms) -> tuple[Floats, Floats]:
    """Turn the exponentials into probabilities; return the rows' totals and 1 - p of the left-out class.

    The probability of the left-out class itself is still to be filled in.
    """
    total = terms.own + terms.others
    block.work /= total[:, None]
    return total, terms.others / total


def _difference(p: Floats, one_minus_p: Floats, t: Any, one_minus_t: Any) -> Floats:
    """Return p - t in that one of its two forms, p - t or (1 - t) - (1 - p), that has less to cancel."""
    difference: Floats = np.where(p + t <= one_minus_p + one_minus_t, p - t, one_minus_t - one_minus_p)
    return difference


def _scale(block: Block, weight: Floats | None, divisor: float) -> None:
    """Multiply the rows by weight / divisor; a weight of zero makes a row zero, whatever it holds.

    In float64, and in this order: float32 could not hold every weight and divisor, and 0 * inf is nan.
    """
    scaled = block.work
    if weight is not None:
        scaled = np.multiply(scaled, weight[:, None], dtype=np.float64)
        scaled[weight == 0] = 0
    if weight is not None or divisor != 1:
        np.divide(scaled, np.float64(divisor), out=block.work, casting="same_kind")
