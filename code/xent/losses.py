"""Cross-entropy losses from logits, and from log-probabilities or probabilities where those are given.

One definition of the mean serves all of them: ``"mean"`` is sum(w l) / sum(w) over the targets that count,
where l is a target's loss and w its weight (one without `weight`). ``denominator=`` replaces sum(w), which
is what a loss over several micro-batches needs.

Each loss is within 4 machine epsilons of itself (of 1.2e-7 for logits of float16 and float32, 2.2e-16 for
float64), also where it is close to zero. That holds over the sweep of tests/xent/test_losses.py: 1 to 1000
classes, logits up to 4e4, against 40 digits of mpmath; below the smallest normal number the error is relative
to that number. A difference of logits, or a sum, beyond the largest number of the dtype is inf, also where a
small factor follows. A label smoothing or clip below the smallest normal number of the dtype is none.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from ._blocks import blocks
from ._validate import (
    SUM_TOLERANCE,
    Floats,
    Reduction,
    at_index,
    class_indices,
    first_true,
    held,
    logits_array,
    mean_divisor,
    number,
    positive_weight,
    probabilities,
    real_array,
    reduction_arguments,
    same_shape,
    smoothing_mass,
    weights,
)
from .numerics import log_sigmoid, log_sum_exp, refuse, without_nan

__all__ = ["binary_cross_entropy", "cross_entropy", "log_loss", "nll", "soft_cross_entropy"]


def cross_entropy(
    logits: ArrayLike,
    targets: ArrayLike,
    *,
    axis: int = -1,
    weight: ArrayLike | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
    denominator: float | None = None,
) -> Any:
    r"""Softmax cross-entropy of logits against class indices.

    .. math:: \ell = -\log p_y = \log\sum_k e^{z_k} - z_y, \qquad
              \ell_\varepsilon = (1-\varepsilon)\,\ell - \frac{\varepsilon}{K}\sum_k \log p_k

    Parameters
    ----------
    logits : array_like, shape (..., K, ...)
        Logits z. -inf marks an impossible class; +inf and nan are refused.
    targets : array_like of int, shape of `logits` without `axis`
        Class indices y in [0, K).
    axis : int, default -1
        The class axis.
    weight : array_like, shape (K,), optional
        Weight of a target by its class, w = weight[y], finite and >= 0. It weighs the whole loss of that
        target, smoothed or not. A target of weight zero does not count.
    label_smoothing : float, default 0
        Mass epsilon in [0, 1] that is spread evenly over all K classes.
    ignore_index : int, optional
        Targets of this value do not count, and their logits are not looked at.
    reduction : {"mean", "sum", "none"}, default "mean"
        sum(w l) / sum(w), sum(w l), or each w l (zero where a target does not count).
    denominator : float, optional
        Replaces sum(w) in the mean.

    Returns
    -------
    scalar or ndarray
        Loss in nats; float32 for logits of float16 and float32, float64 otherwise. An array of the shape of
        `targets` for ``reduction="none"``.

    Raises
    ------
    ValueError
        If a label is out of range, shapes do not match, a counted row of logits holds nan or +inf or is -inf
        throughout, `weight`, `label_smoothing`, `axis` or `denominator` is out of range, or no target counts
        and the mean has no `denominator`.
    TypeError
        If the labels are not integers, or the logits are not real.

    See Also
    --------
    soft_cross_entropy : targets that are distributions.
    nll : log-probabilities instead of logits.

    Notes
    -----
    Each loss is within 4 machine epsilons of itself, also where it is close to zero: the target's own term
    never enters the sum that is subtracted from it. The logits are read once, in blocks. Label smoothing
    follows Szegedy et al., *Rethinking the Inception Architecture for Computer Vision*, 2016,
    arXiv:1512.00567.

    Examples
    --------
    >>> from xent import cross_entropy
    >>> logits = [[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]]
    >>> float(cross_entropy(logits, [0, 1]))
    0.288725...
    >>> cross_entropy(logits, [0, -100], ignore_index=-100, reduction="none")
    array([0.40760596, 0.        ])

    Two micro-batches that share one denominator add up to the loss of the whole batch:

    >>> parts = [cross_entropy(logits[i : i + 1], [i], denominator=2) for i in (0, 1)]
    >>> float(sum(parts))
    0.288725...
    """
    logits, axis = logits_array(logits, "logits", axis)
    moved = np.moveaxis(logits, axis, -1)
    shape, classes = moved.shape[:-1], moved.shape[-1]
    labels, counts = class_indices(targets, "targets", shape, classes, ignore_index)
    by_class = None if weight is None else weights(weight, "weight", (classes,), "one weight a class")
    smoothing = held(smoothing_mass(label_smoothing), logits.dtype)
    total = _Reducer(shape, logits.dtype, *reduction_arguments(reduction, denominator))

    with np.errstate(all="ignore"):
        for index, block in blocks(moved):
            own = labels[index].reshape(-1)
            block.shift()
            mean_gap = -block.work.mean(axis=block.axis) if smoothing else None
            terms = block.exponentiate_without(own)
            log_of_sum = terms.log_of_sum()
            if mean_gap is None:
                losses = terms.gap + log_of_sum
            elif smoothing == 1:  # the target has no mass left, and 0 * inf would be nan
                losses = mean_gap + log_of_sum
            else:
                losses = (1 - smoothing) * terms.gap + smoothing * mean_gap + log_of_sum
            total.add(
                index,
                losses,
                None if by_class is None else by_class[own],
                None if counts is None else counts[index].reshape(-1),
            )
    if total.has_nan():
        counted = np.ones(shape, bool) if counts is None else counts
        if by_class is not None:
            counted = counted & (by_class[labels] > 0)
        refuse(np.where(counted[..., None], moved, 0.0), "logits", axis)
    return total.result()


def soft_cross_entropy(
    logits: ArrayLike,
    target_probs: ArrayLike,
    *,
    axis: int = -1,
    reduction: Reduction = "mean",
    denominator: float | None = None,
) -> Any:
    r"""Softmax cross-entropy of logits against a distribution over the classes.

    .. math:: \ell = -\sum_k t_k \log p_k, \qquad p = \operatorname{softmax}(z), \qquad 0 \cdot \infty = 0

    Parameters
    ----------
    logits : array_like, shape (..., K, ...)
        Logits z. -inf marks an impossible class; +inf and nan are refused.
    target_probs : array_like, shape of `logits`
        Distributions t: in [0, 1], summing to one along `axis` (within 1e-6 in float64, 1e-4 in float32,
        1e-2 in float16). They are used as they are, not renormalised.
    axis : int, default -1
        The class axis.
    reduction : {"mean", "sum", "none"}, default "mean"
        The mean divides by the number of rows.
    denominator : float, optional
        Replaces that number.

    Returns
    -------
    scalar or ndarray
        Loss in nats, +inf where a positive target meets a logit of -inf. float32 if neither argument is
        wider, float64 otherwise.

    Raises
    ------
    ValueError
        If a row of `target_probs` is no distribution, shapes do not match, a row of logits holds nan or +inf
        or is -inf throughout, or there is nothing to average.
    TypeError
        If an argument is not real.

    Examples
    --------
    >>> from xent import soft_cross_entropy
    >>> float(soft_cross_entropy([[2.0, 1.0, 0.0]], [[0.5, 0.5, 0.0]]))
    0.907605...
    >>> float(soft_cross_entropy([[0.0, -float("inf")]], [[1.0, 0.0]]))
    0.0
    """
    logits, axis = logits_array(logits, "logits", axis)
    target = real_array(target_probs, "target_probs")
    same_shape(target, "target_probs", logits.shape, "logits")
    target = np.moveaxis(probabilities(target, "target_probs", axis), axis, -1)
    moved = np.moveaxis(logits, axis, -1)
    dtype = np.result_type(logits, target, np.float32)
    total = _Reducer(moved.shape[:-1], dtype, *reduction_arguments(reduction, denominator))

    with np.errstate(all="ignore"):
        for index, block in blocks(moved):
            t = block.oriented(target[index].reshape(len(block.rows), -1))
            highest = block.argmax()
            block.shift()
            # Each term t (m - z) is >= 0: nothing cancels, and where t is zero it is zero, whatever z is.
            gaps = np.multiply(t, block.work, out=np.zeros(t.shape, dtype), where=t > 0)
            log_of_sum = block.exponentiate_without(highest).log_of_sum()
            total.add(
                index, t.sum(axis=block.axis, dtype=np.float64) * log_of_sum - gaps.sum(axis=block.axis)
            )
    if total.has_nan():
        refuse(moved, "logits", axis)
    return total.result()


def binary_cross_entropy(
    logits: ArrayLike,
    targets: ArrayLike,
    *,
    weight: ArrayLike | None = None,
    pos_weight: ArrayLike | None = None,
    reduction: Reduction = "mean",
    denominator: float | None = None,
) -> Any:
    r"""Binary (Bernoulli) cross-entropy of logits against targets in [0, 1].

    .. math:: \ell = -c\,y \log\sigma(z) - (1-y) \log(1-\sigma(z))

    with c = `pos_weight`; for c = 1 and y in {0, 1} it is softplus((1 - 2y) z).

    Parameters
    ----------
    logits : array_like
        Logits z of any shape; infinities are allowed.
    targets : array_like, shape of `logits`
        Labels 0 and 1 (integers or floats), or probabilities of 1.
    weight : array_like, shape of `logits`, optional
        Weight of each target, finite and >= 0. A target of weight zero does not count.
    pos_weight : float or array_like of shape (logits.shape[-1],), optional
        Weight c > 0 of the positive class; an array (logits of two dimensions or more) holds one for each
        label along the last axis.
    reduction : {"mean", "sum", "none"}, default "mean"
        The mean divides by the sum of the weights, weight * (c y + 1 - y), as the class-weighted mean of
        `cross_entropy` does; PyTorch divides by the number of targets.
    denominator : float, optional
        Replaces the sum of the weights.

    Returns
    -------
    scalar or ndarray
        Loss in nats, within 4 machine epsilons of itself in both tails; float32 for logits of float16 and
        float32, float64 otherwise. Certain and wrong (an infinite logit) costs inf, certain and right zero.

    Raises
    ------
    ValueError
        If a target is outside [0, 1], shapes do not match, a logit is nan, a weight is out of range, or there
        is nothing to average.
    TypeError
        If an argument is not real.

    Examples
    --------
    >>> from xent import binary_cross_entropy
    >>> float(binary_cross_entropy([0.0, 40.0], [1, 1]))
    0.346573...
    >>> binary_cross_entropy([40.0, -1000.0], [1, 1], reduction="none")
    array([4.24835426e-18, 1.00000000e+03])
    """
    z = without_nan(real_array(logits, "logits"), "logits")
    y = real_array(targets, "targets")
    same_shape(y, "targets", z.shape, "logits")
    y = probabilities(y, "targets", None).astype(np.float64)
    w = None if weight is None else weights(weight, "weight", z.shape, "that of the logits")
    c = None if pos_weight is None else positive_weight(pos_weight, z.shape)
    total = _Reducer(z.shape, z.dtype, *reduction_arguments(reduction, denominator))

    with np.errstate(all="ignore"):
        positive = _times(y if c is None else c * y, -log_sigmoid(z))
        negative = _times(1 - y, -log_sigmoid(-z))
        mass = None if c is None else c * y + (1 - y)
        if w is None and mass is None:
            total.add((), positive + negative)
        else:
            # The reducer multiplies by the whole weight, of which the loss holds c already.
            total.add((), positive + negative, np.ones(z.shape) if w is None else w, divisor=mass)
    return total.result()


def nll(
    log_probs: ArrayLike,
    targets: ArrayLike,
    *,
    axis: int = -1,
    weight: ArrayLike | None = None,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
    denominator: float | None = None,
) -> Any:
    r"""Negative log-likelihood of class indices under given log-probabilities.

    .. math:: \ell = -\log p_y

    Parameters
    ----------
    log_probs : array_like, shape (..., K, ...)
        Log-probabilities: their exponentials sum to one along `axis` (within 1e-6 in float64, 1e-4 in
        float32, 1e-2 in float16). Probabilities and raw logits are refused, also in ignored rows.
    targets, axis, weight, ignore_index, reduction, denominator
        As in `cross_entropy`.

    Returns
    -------
    scalar or ndarray
        Loss in nats.

    Raises
    ------
    ValueError
        If a row is no log-distribution, or for the reasons of `cross_entropy`.
    TypeError
        If the labels are not integers, or `log_probs` is not real.

    Examples
    --------
    >>> from xent import log_softmax, nll
    >>> float(nll(log_softmax([[2.0, 1.0, 0.0]]), [0]))
    0.407605...
    """
    array, axis = logits_array(log_probs, "log_probs", axis)
    tolerance = SUM_TOLERANCE[array.dtype.newbyteorder("=")]
    excess = np.atleast_1d(log_sum_exp(without_nan(array, "log_probs"), axis))
    # float32 overflows from 89 on; what is below the smallest normal number underflows.
    with np.errstate(over="ignore", under="ignore"):
        wrong = ~(np.abs(np.expm1(np.minimum(excess, 700.0))) <= tolerance)
    if wrong.any():
        where = first_true(wrong)
        raise ValueError(
            f"log_probs: expected logarithms of probabilities that sum to one along axis {axis} (within "
            f"{tolerance:g} for {array.dtype}), got a log-sum-exp of {excess[where]:.6g}{at_index(where)}; "
            "for logits use cross_entropy"
        )
    return _pick(array, axis, targets, weight, ignore_index, reduction, denominator, np.negative)


def log_loss(
    probs: ArrayLike,
    targets: ArrayLike,
    *,
    eps: float = 0.0,
    axis: int = -1,
    weight: ArrayLike | None = None,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
    denominator: float | None = None,
) -> Any:
    r"""Log loss of class indices under given probabilities.

    .. math:: \ell = -\log \min(\max(p_y, \epsilon), 1 - \epsilon)

    Parameters
    ----------
    probs : array_like, shape (..., K, ...)
        Probabilities in [0, 1], summing to one along `axis` (within 1e-6 in float64, 1e-4 in float32, 1e-2 in
        float16), also in ignored rows.
    targets, axis, weight, ignore_index, reduction, denominator
        As in `cross_entropy`.
    eps : float, default 0
        Clip p into [eps, 1 - eps] first, 0 <= eps < 1/2. Nothing is clipped unless you ask for it: a target
        of probability zero costs inf. scikit-learn's `log_loss` clips with the machine epsilon of the dtype.

    Returns
    -------
    scalar or ndarray
        Loss in nats.

    Raises
    ------
    ValueError
        If a row is no distribution, `eps` is out of range, or for the reasons of `cross_entropy`.
    TypeError
        If the labels are not integers, or `probs` is not real.

    Examples
    --------
    >>> from xent import log_loss
    >>> float(log_loss([[0.25, 0.75], [0.5, 0.5]], [0, 1]))
    1.039720...
    >>> float(log_loss([[0.0, 1.0]], [0]))
    inf
    """
    array, axis = logits_array(probs, "probs", axis)
    array = probabilities(array, "probs", axis)
    eps = number(eps, "eps", "a number in [0, 1/2)", 0.0, 0.5, closed="low")

    def loss(p: Floats) -> Floats:
        p = p.astype(np.promote_types(p.dtype, np.float32), copy=False)
        return -np.log(np.clip(p, eps, 1 - eps) if eps else p)

    return _pick(array, axis, targets, weight, ignore_index, reduction, denominator, loss)


class _Reducer:
    """Adds up losses, block by block, and divides once: sums in float64, whatever the losses are in."""

    def __init__(
        self, shape: tuple[int, ...], dtype: DTypeLike, reduction: Reduction, denominator: float | None
    ) -> None:
        self.dtype = np.promote_types(dtype, np.float32)
        self.reduction, self.denominator = reduction, denominator
        self.each = np.empty(shape, self.dtype) if reduction == "none" else None
        # One sum a block, added up at the end: NumPy's pairwise sum keeps more digits than a running one.
        self.sums: list[float] = []
        self.mass = 0.0

    def add(
        self,
        index: tuple[int | slice, ...],
        losses: Floats,
        weight: Floats | None = None,
        counts: NDArray[np.bool_] | None = None,
        *,
        divisor: Floats | None = None,
    ) -> None:
        """Add the losses of one block; `divisor` is what one unit of weight adds to sum(w), if not one."""
        if weight is not None:
            if counts is not None:
                weight = np.where(counts, weight, 0.0)
            # A weight of zero takes the target out, also where its loss is inf or nan.
            losses = np.where(weight > 0, losses * weight, 0.0)
            self.mass += float(np.sum(weight if divisor is None else weight * divisor))
        elif counts is not None:
            losses = np.where(counts, losses, losses.dtype.type(0))
            self.mass += float(np.count_nonzero(counts))
        else:
            self.mass += losses.size
        if self.each is not None:
            self.each[index] = losses.reshape(self.each[index].shape)
        else:
            self.sums.append(float(losses.sum(dtype=np.float64)))

    def has_nan(self) -> bool:
        """Whether any loss is nan; losses are never -inf, so that a sum cannot become nan otherwise."""
        return math.isnan(sum(self.sums)) if self.each is None else bool(np.isnan(self.each).any())

    def result(self) -> Any:
        """Return what the reduction asks for."""
        if self.each is not None:
            return self.each[()]
        divisor = 1.0 if self.reduction == "sum" else mean_divisor(self.mass, self.denominator)
        with np.errstate(over="ignore", under="ignore"):  # a sum beyond float32 is inf
            return self.dtype.type(np.add.reduce(self.sums) / divisor)


def _pick(
    array: Floats,
    axis: int,
    targets: ArrayLike,
    weight: ArrayLike | None,
    ignore_index: int | None,
    reduction: Reduction,
    denominator: float | None,
    loss: Any,
) -> Any:
    """Take each target's entry of `array` along `axis`, apply `loss` to it, and reduce."""
    moved = np.moveaxis(array, axis, -1)
    shape, classes = moved.shape[:-1], moved.shape[-1]
    labels, counts = class_indices(targets, "targets", shape, classes, ignore_index)
    by_class = None if weight is None else weights(weight, "weight", (classes,), "one weight a class")
    total = _Reducer(shape, array.dtype, *reduction_arguments(reduction, denominator))
    with np.errstate(all="ignore"):
        losses = loss(np.take_along_axis(moved, labels[..., None], -1)[..., 0])
        total.add(
            (), losses + 0.0, None if by_class is None else by_class[labels], counts
        )  # -0.0 + 0.0 = 0.0
    return total.result()


def _times(mass: Floats, loss: Floats) -> Floats:
    """Multiply, with 0 * inf = 0, and keep the dtype of the loss."""
    return np.where(mass > 0, mass * loss, 0.0).astype(np.asarray(loss).dtype, copy=False)
