"""Cross-entropy losses from logits, and from log-probabilities or probabilities where those are given.

One definition of the mean serves all of them: ``"mean"`` is sum(w l) / sum(w) over the targets that count,
where l is a target's loss and w its weight, one unless you give weights. ``denominator=`` replaces sum(w),
which is what a loss over several micro-batches needs.

Each loss is within 4 machine epsilons of itself (of 1.2e-7 for logits of float16 and float32, 2.2e-16 for float64),
also where it is close to zero, and within 8 where terms round alike. That holds over the sweep of
tests/xent/test_accuracy.py: 1 to 1000 classes, logits up to 4e4, against 40 digits of mpmath; of K classes, below K
times the smallest normal number (times `alpha`, `pos_weight` or a weight above 1), the error is relative to that
number. A difference of logits, or a sum, beyond the largest number of the dtype may be inf, also where a small factor
follows. A label smoothing or clip below the smallest normal number of the dtype is none.
"""

from __future__ import annotations

import math
from typing import TypedDict, Unpack, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _validate as check
from ._blocks import Block, Index, without_nan
from ._validate import BINARY_LOGITS, PREDICTIONS_FIRST, Each, Floats, Number, Reduction, Total, Values
from ._walk import binary_targets, distributed, labelled, reduce_each, reduce_rows
from .numerics import log_sigmoid, log_sum_exp

__all__ = [
    "binary_cross_entropy", "binary_log_loss", "cross_entropy", "focal_loss", "log_loss", "nll",
    "soft_cross_entropy",
]  # fmt: skip


class _Each(TypedDict, total=False):
    sample_weight: ArrayLike | None
    denominator: float | None


class _Binary(_Each, total=False):
    pos_weight: ArrayLike | None
    label_smoothing: float


class _OfProb(_Each, total=False):
    eps: float


class _Rows(_Each, total=False):
    axis: int
    weight: ArrayLike | None


class _Soft(_Rows, total=False):
    label_smoothing: float


class _Picked(_Rows, total=False):
    ignore_index: int | None


class _Labelled(_Picked, total=False):
    label_smoothing: float


class _OfProbs(_Picked, total=False):
    eps: float


class _Focal(_Each, total=False):
    axis: int
    ignore_index: int | None
    gamma: float
    alpha: ArrayLike | None


@overload
def cross_entropy(
    logits: ArrayLike, targets: ArrayLike, *, reduction: Each, **how: Unpack[_Labelled]
) -> Floats: ...
@overload
def cross_entropy(
    logits: ArrayLike, targets: ArrayLike, *, reduction: Total = ..., **how: Unpack[_Labelled]
) -> Number: ...
def cross_entropy(
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
) -> Values:
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
        Weight of a target by its class, finite and >= 0. It weighs the whole loss of that target, smoothed or
        not. The mean then divides by a sum that depends on which classes a batch drew, so that small batches
        teach less than the weights ask for (`xent.denominators.learnt_distribution` says what). Better give the
        expected sum of weights, or the number of targets, as `denominator`.
    sample_weight : array_like, broadcasts to the shape of `targets`, optional
        Weight of each target, finite and >= 0; booleans are a mask. w is the product of both weights, and a
        target whose w is zero does not count: its logits are not looked at.
    label_smoothing : float, default 0
        Mass epsilon in [0, 1] that is spread evenly over all K classes (Szegedy et al. 2016, arXiv:1512.00567).
    ignore_index : int, optional
        Targets of this value do not count, and their logits are not looked at.
    reduction : {"mean", "sum", "none"}, default "mean"
        sum(w l) / sum(w), sum(w l), or each w l (zero where a target does not count).
    denominator : float, optional
        Replaces sum(w) in the mean, which then is 0 if no target counts.

    Returns
    -------
    scalar or ndarray
        Loss in nats; float32 for logits of float16 and float32, float64 otherwise. The shape of `targets` for
        ``reduction="none"``.

    Examples
    --------
    >>> from xent import cross_entropy
    >>> logits = [[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]]
    >>> cross_entropy(logits, [0, -100], ignore_index=-100, reduction="none")
    array([0.40760596, 0.        ])

    Two micro-batches that share one denominator add up to the loss of the whole batch:

    >>> parts = [cross_entropy(logits[i : i + 1], [i], denominator=2) for i in (0, 1)]
    >>> float(cross_entropy(logits, [0, 1])), float(sum(parts))
    (0.288725..., 0.288725...)
    """
    z, axis, labels, w = labelled(logits, "logits", targets, axis, ignore_index, weight, sample_weight)
    smoothing = check.held(check.setting(label_smoothing, "label_smoothing"), z.dtype)

    def loss(block: Block, index: Index) -> Floats:
        own = labels[index].reshape(-1)
        if not smoothing:
            return block.minus_log_softmax(own)
        block.shift()
        losses: Floats = -smoothing * (block.sum() / block.work.shape[1])
        terms = block.exponentiate_without(own)
        losses += terms.log_of_sum()
        if smoothing < 1:  # the target has mass left; without it, 0 * inf would be nan
            losses += (1 - smoothing) * terms.gap
        return losses

    return reduce_rows(loss, axis, w, check.reduction_arguments(reduction, denominator), logits=z)


@overload
def soft_cross_entropy(
    logits: ArrayLike, target_probs: ArrayLike, *, reduction: Each, **how: Unpack[_Soft]
) -> Floats: ...
@overload
def soft_cross_entropy(
    logits: ArrayLike, target_probs: ArrayLike, *, reduction: Total = ..., **how: Unpack[_Soft]
) -> Number: ...
def soft_cross_entropy(
    logits: ArrayLike,
    target_probs: ArrayLike,
    *,
    axis: int = -1,
    weight: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
    denominator: float | None = None,
) -> Values:
    r"""Softmax cross-entropy of logits against a distribution over the classes.

    .. math:: \ell = -\sum_k t_k \log p_k, \qquad p = \operatorname{softmax}(z), \qquad 0 \cdot \infty = 0

    Parameters
    ----------
    logits, axis, sample_weight, denominator
        As in `cross_entropy`.
    target_probs : array_like, shape of `logits`
        Distributions t: in [0, 1], summing to one along `axis` (within 1e-6 in float64, 1e-4 in float32, 1e-2 in
        float16, or 4.8e-7 sqrt(K) where that is more). They are used as they are, not renormalised.
    weight : array_like, shape (K,), optional
        Weight w_k of each class: the loss is -sum_k w_k t_k log p_k, and a row weighs sum_k w_k t_k, so that
        a one-hot t has the loss and the weight that `cross_entropy` gives its class.
    label_smoothing : float, default 0
        Mass epsilon in [0, 1] that is spread evenly over all K classes: (1 - epsilon) w_k t_k + epsilon/K
        sum_j w_j t_j takes the place of w_k t_k.
    reduction : {"mean", "sum", "none"}, default "mean"
        The mean divides by the number of rows, or by the sum of their weights. (PyTorch divides by the number
        of rows in either case.)

    Returns
    -------
    scalar or ndarray
        Loss in nats, +inf where a positive w_k t_k meets a logit of -inf. float32 if both arguments are
        float16 or float32, float64 otherwise.

    Examples
    --------
    >>> from xent import soft_cross_entropy
    >>> float(soft_cross_entropy([[2.0, 1.0, 0.0]], [[0.5, 0.5, 0.0]]))
    0.907605...
    """
    logits, axis, masses, w, more = distributed(
        logits, target_probs, axis, weight, sample_weight, label_smoothing
    )

    def loss(block: Block, index: Index) -> Floats:
        t, highest = masses(index), block.argmax()
        block.shift()
        # Each term t (m - z) is >= 0: nothing cancels, and where t is zero it is zero, whatever z is.
        gaps = np.multiply(t, block.work, out=np.zeros_like(t), where=t > 0)
        log_of_sum = block.exponentiate_without(highest).log_of_sum()
        return np.asarray(t.sum(axis=1, dtype=np.float64) * log_of_sum - gaps.sum(axis=1))

    settings = check.reduction_arguments(reduction, denominator)
    return reduce_rows(loss, axis, w, settings, logits=logits, **more)


@overload
def binary_cross_entropy(
    logits: ArrayLike, targets: ArrayLike, *, reduction: Each, **how: Unpack[_Binary]
) -> Floats: ...
@overload
def binary_cross_entropy(
    logits: ArrayLike, targets: ArrayLike, *, reduction: Total = ..., **how: Unpack[_Binary]
) -> Number: ...
def binary_cross_entropy(
    logits: ArrayLike,
    targets: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
    pos_weight: ArrayLike | None = None,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
    denominator: float | None = None,
) -> Values:
    r"""Binary (Bernoulli) cross-entropy of logits against targets in [0, 1].

    .. math:: \ell = -c\,y \log\sigma(z) - (1-y) \log(1-\sigma(z))

    with c = `pos_weight`; for c = 1 and y in {0, 1} it is softplus((1 - 2y) z).

    Parameters
    ----------
    logits : array_like
        Logits z of any shape; infinities are allowed.
    targets : array_like, shape of `logits`
        Labels 0 and 1 (booleans, integers or floats), or probabilities of 1.
    sample_weight : array_like, broadcasts to the shape of `logits`, optional
        Weight of each target, as in `cross_entropy`.
    pos_weight : array_like, broadcasts to the shape of `logits`, optional
        Weight c > 0 of the positive class: a number, or one for each label along the last axis.
    label_smoothing : float, default 0
        Mass epsilon in [0, 1] that is spread evenly over both classes: (1 - epsilon) y + epsilon/2 takes the
        place of y.
    reduction : {"mean", "sum", "none"}, default "mean"
        The mean divides by the number of targets, or by the sum of their weights; not by `pos_weight` (nor
        does PyTorch): a divisor that depends on which labels a batch drew would teach another distribution.
    denominator : float, optional
        Replaces that number.

    Returns
    -------
    scalar or ndarray
        Loss in nats, accurate in both tails; float32 for logits of float16 and float32, float64 otherwise.
        Certain and wrong (an infinite logit) costs inf, certain and right zero, if unsmoothed.

    Examples
    --------
    >>> from xent import binary_cross_entropy
    >>> binary_cross_entropy([40.0, -1000.0], [1, 1], reduction="none")
    array([4.24835426e-18, 1.00000000e+03])
    """
    z, y, n, w = binary_targets(logits, targets, sample_weight, pos_weight, label_smoothing)
    with np.errstate(all="ignore"):
        losses = _times(y, -log_sigmoid(z)) + _times(n, -log_sigmoid(-z))
    return reduce_each(losses, w, check.reduction_arguments(reduction, denominator))


@overload
def focal_loss(
    logits: ArrayLike, targets: ArrayLike, *, reduction: Each, **how: Unpack[_Focal]
) -> Floats: ...
@overload
def focal_loss(
    logits: ArrayLike, targets: ArrayLike, *, reduction: Total = ..., **how: Unpack[_Focal]
) -> Number: ...
def focal_loss(
    logits: ArrayLike,
    targets: ArrayLike,
    *,
    gamma: float = 2.0,
    alpha: ArrayLike | None = None,
    axis: int = -1,
    sample_weight: ArrayLike | None = None,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
    denominator: float | None = None,
) -> Values:
    r"""Focal loss of logits against class indices.

    .. math:: \ell = -\alpha_y (1 - p_y)^\gamma \log p_y, \qquad p = \operatorname{softmax}(z)

    Parameters
    ----------
    logits, targets, axis, sample_weight, ignore_index, reduction, denominator
        As in `cross_entropy`, which this is for gamma = 0 without `alpha`.
    gamma : float, default 2
        How strongly easy targets are discounted, >= 0.
    alpha : array_like, shape (K,), optional
        Factor of a target's loss by its class, finite and >= 0. It is no weight: the mean does not divide by it.

    Notes
    -----
    Within 4 + 5 gamma machine epsilons of itself, 8 + 8 gamma where terms round alike. `xent.scoring.invert_focal` says
    what a model that was trained with it believes. T.-Y. Lin et al., *Focal Loss for Dense Object Detection*, 2017,
    arXiv:1708.02002.

    Examples
    --------
    >>> from xent import focal_loss
    >>> float(focal_loss([[0.0, 0.0]], [0]))  # log(2) / 4
    0.173286...
    """
    gamma = check.setting(gamma, "gamma")
    z, axis, labels, w = labelled(logits, "logits", targets, axis, ignore_index, None, sample_weight)
    factor = check.class_weights(alpha, z.shape[-1], "alpha")

    def loss(block: Block, index: Index) -> Floats:
        own = labels[index].reshape(-1)
        losses = block.minus_log_softmax(own)
        losses *= (-np.expm1(-losses)) ** np.float64(gamma)  # 1 - p, with the digits that p has lost
        return losses if factor is None else _times(factor[own], losses)

    return reduce_rows(loss, axis, w, check.reduction_arguments(reduction, denominator), logits=z)


@overload
def nll(log_probs: ArrayLike, targets: ArrayLike, *, reduction: Each, **how: Unpack[_Picked]) -> Floats: ...
@overload
def nll(
    log_probs: ArrayLike, targets: ArrayLike, *, reduction: Total = ..., **how: Unpack[_Picked]
) -> Number: ...
def nll(
    log_probs: ArrayLike,
    targets: ArrayLike,
    *,
    axis: int = -1,
    weight: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
    denominator: float | None = None,
) -> Values:
    r"""Negative log-likelihood of class indices under given log-probabilities.

    .. math:: \ell = -\log p_y

    Parameters
    ----------
    log_probs : array_like, shape (..., K, ...)
        Log-probabilities: their exponentials sum to one along `axis`, within the tolerance of
        `soft_cross_entropy`. Probabilities and raw logits are refused, also in rows that do not count.
    targets, axis, weight, sample_weight, ignore_index, reduction, denominator
        As in `cross_entropy`.

    Examples
    --------
    >>> from xent import log_softmax, nll
    >>> float(nll(log_softmax([[2.0, 1.0, 0.0]]), [0]))
    0.407605...
    """
    # Targets first: that arguments have changed places says more than that labels are no distribution.
    moved, axis, labels, w = labelled(
        log_probs, "log_probs", targets, axis, ignore_index, weight, sample_weight
    )
    array = np.moveaxis(moved, -1, axis)
    tolerance = check.sum_tolerance(array.dtype.newbyteorder("="), array.shape[axis])
    excess = np.asarray(log_sum_exp(without_nan(array, "log_probs"), axis=axis))
    # float32 overflows from 89 on; what is below the smallest normal number underflows.
    with np.errstate(over="ignore", under="ignore"):
        wrong = ~(np.abs(np.expm1(np.minimum(excess, 700.0))) <= tolerance)
        check.no_logarithms(wrong, excess, array, axis, tolerance)
    return reduce_each(-_picked(moved, labels), w, check.reduction_arguments(reduction, denominator))


@overload
def log_loss(probs: ArrayLike, targets: ArrayLike, *, reduction: Each, **how: Unpack[_OfProbs]) -> Floats: ...
@overload
def log_loss(
    probs: ArrayLike, targets: ArrayLike, *, reduction: Total = ..., **how: Unpack[_OfProbs]
) -> Number: ...
def log_loss(
    probs: ArrayLike,
    targets: ArrayLike,
    *,
    eps: float = 0.0,
    axis: int = -1,
    weight: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
    denominator: float | None = None,
) -> Values:
    r"""Log loss of class indices under given probabilities.

    .. math:: \ell = -\log p_y

    Parameters
    ----------
    probs : array_like, shape (..., K, ...)
        Probabilities, also in rows that do not count: in [0, 1] and summing to one along `axis`, within the
        tolerance of `soft_cross_entropy`.
    targets, axis, weight, sample_weight, ignore_index, reduction, denominator
        As in `cross_entropy`.
    eps : float, default 0
        Clip p into [eps, 1 - eps] first, 0 <= eps < 1/2. Nothing is clipped unless you ask for it: a target
        of probability zero costs inf. scikit-learn's `log_loss` clips with the machine epsilon of the dtype.

    Examples
    --------
    >>> from xent import log_loss
    >>> float(log_loss([[0.25, 0.75], [0.5, 0.5]], [0, 1]))
    1.039720...
    """
    moved, axis, labels, w = labelled(probs, "probs", targets, axis, ignore_index, weight, sample_weight)
    array = np.moveaxis(moved, -1, axis)
    check.probabilities(array, "probs", axis, hint=lambda: check.of_probs(array, axis))
    p = _picked(moved, labels)
    with np.errstate(all="ignore"):
        losses = _within(-np.log(p), check.held(check.setting(eps, "eps"), p.dtype))
    return reduce_each(losses, w, check.reduction_arguments(reduction, denominator))


@overload
def binary_log_loss(
    probs: ArrayLike, targets: ArrayLike, *, reduction: Each, **how: Unpack[_OfProb]
) -> Floats: ...
@overload
def binary_log_loss(
    probs: ArrayLike, targets: ArrayLike, *, reduction: Total = ..., **how: Unpack[_OfProb]
) -> Number: ...
def binary_log_loss(
    probs: ArrayLike,
    targets: ArrayLike,
    *,
    eps: float = 0.0,
    sample_weight: ArrayLike | None = None,
    reduction: Reduction = "mean",
    denominator: float | None = None,
) -> Values:
    r"""Binary cross-entropy of targets in [0, 1] under given probabilities of 1.

    .. math:: \ell = -y \log p - (1-y) \log(1-p)

    Parameters
    ----------
    probs : array_like
        Probabilities p of the positive class, of any shape: one a target, valid also where its weight is zero.
        Integers that are all 0 and 1 are refused, as labels, unless the targets are 0 and 1 too. One close to one has
        lost the digits of 1 - p, and with them those of the loss of a target 0; `binary_cross_entropy` has them.
    targets, sample_weight, reduction, denominator
        As in `binary_cross_entropy`.
    eps : float, default 0
        As in `log_loss`.

    Examples
    --------
    >>> from xent import binary_log_loss
    >>> float(binary_log_loss([0.75, 0.5], [1, 0]))
    0.490414...
    """
    p, y = check.real_array(probs, "probs"), check.real_array(targets, "targets", bools=True)
    check.same_shape(y, "targets", p.shape, "probs", check.of_rows(y, p, "log_loss"))
    integers = np.asarray(probs).dtype.kind in "biu"
    # A target between 0 and 1 would cost inf under either.
    if integers and np.isin(p, (0, 1)).all() and not np.isin(y, (0, 1)).all():
        raise ValueError(f"probs: expected probabilities, got labels of 0 and 1{PREDICTIONS_FIRST}")
    y = check.probabilities(y, "targets", None, hint=lambda: check.of_binary(p, y)).astype(np.float64)
    p = check.probabilities(p, "probs", None, hint=lambda: BINARY_LOGITS)
    w = check.sample_weights(sample_weight, p.shape)
    p = p.astype(np.promote_types(p.dtype, np.float32), copy=False)
    eps = check.held(check.setting(eps, "eps"), p.dtype)
    with np.errstate(all="ignore"):
        losses = _times(y, _within(-np.log(p), eps)) + _times(1 - y, _within(-np.log1p(-p), eps))
    return reduce_each(losses, w, check.reduction_arguments(reduction, denominator))


def _within(losses: Floats, eps: float) -> Floats:
    """Return -log p as the clip leaves it; it is the loss that is clipped, since 1 - eps may round to one."""
    return np.clip(losses, -math.log1p(-eps), -math.log(eps)) if eps else losses


def _picked(moved: Floats, labels: NDArray[np.intp]) -> Floats:
    """Take each target's entry along the last axis, in float32 at least."""
    own: Floats = np.take_along_axis(moved, labels[..., None], -1)[..., 0]
    return own.astype(np.promote_types(own.dtype, np.float32), copy=False)


def _times(mass: Floats, loss: Floats) -> Floats:
    """Multiply, with 0 * inf = 0, and keep the dtype of the loss."""
    return np.where((mass > 0) | np.isnan(loss), mass * loss, 0.0).astype(np.asarray(loss).dtype, copy=False)
