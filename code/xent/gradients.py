"""Gradients of the losses with respect to the logits, and the second derivative.

Every gradient here is (probability - target) times a weight: p - y for a class index, S p - t for a target
distribution t with sum S, sigma(z) - y for a single logit. What takes care is the difference. For an example
that is confidently right p_y rounds to 1, and p_y - 1 to 0 or to a multiple of the rounding error; but

    p_y - 1 = -others / (own + others)

in the numbers of `_blocks`, which subtracts nothing.

Arguments, checks and messages are those of the losses.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._blocks import Block, Terms, blocks
from ._validate import (
    Floats,
    Reduction,
    class_weights,
    logits_array,
    mean_divisor,
    positive_weight,
    probabilities,
    real_array,
    reduction_arguments,
    same_shape,
    sample_weights,
    smoothing_mass,
)
from .losses import _binary, _targets
from .numerics import refuse, sigmoid

__all__ = [
    "binary_cross_entropy_gradient",
    "cross_entropy_gradient",
    "soft_cross_entropy_gradient",
    "softmax_jacobian",
]


def softmax_jacobian(logits: ArrayLike) -> Floats:
    r"""Jacobian matrix of the softmax, which is the Hessian matrix of the cross-entropy.

    .. math:: J_{jk} = \frac{\partial p_j}{\partial z_k} = p_j (\delta_{jk} - p_k), \qquad
              J = \operatorname{diag}(p) - p p^\top = \nabla_z^2 \bigl(-\log p_y\bigr)

    As a Hessian it does not depend on the target, which enters the loss linearly, as -z_y: the same matrix
    serves every class index, every distribution over the classes and every label smoothing. For a weighted
    example it is w J, under a mean w J / sum(w).

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

    Notes
    -----
    x' J x is the variance of x under p, so that J is positive semidefinite; J 1 = 0, and its largest
    eigenvalue is at most min(1/2, max p).

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


def cross_entropy_gradient(
    logits: ArrayLike,
    targets: ArrayLike,
    *,
    axis: int = -1,
    weight: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
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
    targets, axis, weight, sample_weight, label_smoothing, ignore_index
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
    classes = moved.shape[-1]
    labels, each = _targets(targets, moved.shape, ignore_index, weight, sample_weight)
    smoothing = smoothing_mass(label_smoothing)
    divisor = _divisor(labels.size, each, *reduction_arguments(reduction, denominator))

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
            _scale(block.work, w, divisor)
            out[index] = block.work.reshape(out[index].shape)
    if undefined:
        refuse(moved if each is None else np.where((each > 0)[..., None], moved, 0.0), "logits", axis)
    return np.moveaxis(out, -1, axis)


def soft_cross_entropy_gradient(
    logits: ArrayLike,
    target_probs: ArrayLike,
    *,
    axis: int = -1,
    weight: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
    denominator: float | None = None,
) -> Floats:
    r"""Gradient of `xent.soft_cross_entropy` with respect to the logits.

    .. math:: \frac{\partial \ell}{\partial z_k} = p_k \sum_j t_j - t_k = p_k - t_k

    where w_k t_k, smoothed or not, stands in the place of t_k if the classes have weights.

    Parameters
    ----------
    logits : array_like, shape (..., K, ...)
        Logits z. -inf marks an impossible class; +inf and nan are refused.
    target_probs, axis, weight, sample_weight, label_smoothing
        As in `xent.soft_cross_entropy`.
    reduction : {"mean", "sum", "none"}, default "mean"
        Which loss to differentiate; "none", the gradient of each row's own loss, is the same as "sum".
    denominator : float, optional
        Replaces what the mean divides by.

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
    by_class, each = class_weights(weight, moved.shape[-1]), sample_weights(sample_weight, moved.shape[:-1])
    smoothing = smoothing_mass(label_smoothing)
    settings = reduction_arguments(reduction, denominator)
    dtype = np.promote_types(np.promote_types(logits.dtype, target.dtype), np.float32)
    mass: NDArray[Any] | None = each
    if by_class is not None:
        of_row = target @ by_class
        each = np.where(of_row > 0, 1.0 if each is None else each, 0.0)
        with np.errstate(over="ignore"):
            mass = each * of_row
    divisor = _divisor(math.prod(moved.shape[:-1]), mass, *settings)

    out = np.empty(moved.shape, dtype)
    undefined = False
    with np.errstate(all="ignore"):
        for index, block in blocks(moved):
            t: Floats = target[index].reshape(block.rows.shape).astype(dtype)
            if by_class is not None:
                t *= by_class
            if smoothing:
                t = (1 - smoothing) * t + smoothing / t.shape[-1] * t.sum(axis=1, keepdims=True)
            highest = block.argmax()
            at = block.each, highest
            block.shift()
            total, rest = _normalise(block, block.exponentiate_without(highest))
            w = None if each is None else each[index].reshape(-1)
            undefined |= bool(np.isnan(total if w is None else total[w > 0]).any())
            # Only the largest probability can be so close to one that its complement is needed.
            own = t[at]
            t[at] = 0
            remaining = t.sum(axis=1)
            all_of_it = remaining + own
            difference = np.multiply(block.work, all_of_it[:, None], dtype=dtype)
            difference -= t
            difference[at] = _difference(all_of_it / total, all_of_it * rest, own, remaining)
            _scale(difference, w, divisor)
            out[index] = difference.reshape(out[index].shape)
    if undefined:
        refuse(moved if each is None else np.where((each > 0)[..., None], moved, 0.0), "logits", axis)
    return np.moveaxis(out, -1, axis)


def binary_cross_entropy_gradient(
    logits: ArrayLike,
    targets: ArrayLike,
    *,
    weight: ArrayLike | None = None,
    pos_weight: ArrayLike | None = None,
    label_smoothing: float = 0.0,
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
    targets, weight, pos_weight, label_smoothing
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
    z, y, w = _binary(logits, targets, weight, label_smoothing)
    c = None if pos_weight is None else positive_weight(pos_weight, z.shape)
    settings = reduction_arguments(reduction, denominator)
    with np.errstate(all="ignore"):
        positive = y if c is None else c * y
        divisor = _divisor(z.size, (positive + (1 - y)) * (1.0 if w is None else w), *settings)
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


def _divisor(
    count: int, weight: NDArray[Any] | None, reduction: Reduction, denominator: float | None
) -> float:
    """Return what the gradient is divided by: for the mean, the sum of the weights or `denominator`."""
    if reduction != "mean":
        return 1.0
    with np.errstate(over="ignore"):
        return mean_divisor(float(count if weight is None else weight.sum()), denominator)


def _scale(rows: Floats, weight: NDArray[Any] | None, divisor: float) -> None:
    """Multiply rows by weight / divisor; a weight of zero makes a row zero, whatever it holds.

    In float64, and in this order: float32 could not hold every weight and divisor, and 0 * inf is nan.
    """
    scaled = rows
    if weight is not None:
        scaled = np.multiply(rows, weight[:, None], dtype=np.float64)
        scaled[weight == 0] = 0
    if weight is not None or divisor != 1:
        np.divide(scaled, np.float64(divisor), out=rows, casting="same_kind")
