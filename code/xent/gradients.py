"""Gradients of the losses with respect to what they take.

From logits, a plain gradient is probability minus target: p - y for a class index, S p - t for a distribution t with
sum S, sigma(z) - y for a single logit; weights multiply its parts. What takes care is the difference. For
an example that is confidently right p_y rounds to 1, and p_y - 1 to 0 or to a multiple of the rounding error; but

    p_y - 1 = -others / (own + others)

in the exponentials of the target's logit and of the others, which subtracts nothing.

Arguments and checks are those of the losses. The gradient has the shape of what it is taken by and the
dtype of the loss, float32 for float16 and float32 and float64 otherwise, and is zero where a target does not count,
whatever the logits are there. `reduction` and `denominator` say which loss is differentiated: what an example adds
does not depend on the others, so that "none", the gradient of each example's own loss, is the same as "sum".
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import _validate as check
from ._blocks import Block, Index, Terms
from ._validate import Floats, Reduction, Values
from ._walk import binary_targets, differentiate_each, differentiate_rows, distributed, labelled
from .numerics import sigmoid

__all__ = ["binary_cross_entropy_gradient", "cross_entropy_gradient", "soft_cross_entropy_gradient"]


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

    times w / sum(w) for the mean, and w for the sum. Without smoothing nothing cancels, in the entry of the
    target either, however small it is. A target on a logit of -inf costs inf, and no gradient repairs it; what
    comes back is the formula's value there, p - y with p = 0 at the target.

    Examples
    --------
    >>> from xent.gradients import cross_entropy_gradient
    >>> cross_entropy_gradient([[40.0, 0.0]], [0])
    array([[-4.24835426e-18,  4.24835426e-18]])
    """
    z, axis, labels, w = labelled(logits, "logits", targets, axis, ignore_index, weight, sample_weight)
    smoothing = check.setting(label_smoothing, "label_smoothing")
    spread = smoothing / z.shape[-1]

    def rows(block: Block, index: Index) -> Floats:
        own = labels[index].reshape(-1)
        block.shift()
        terms = block.exponentiate_without(own)
        total, rest = _normalise(block, terms)
        if spread:
            block.work -= spread
        block.work[block.each, own] = _difference(
            terms.own / total, rest, 1 - smoothing + spread, smoothing - spread
        )
        return block.work

    return differentiate_rows(rows, axis, w, check.reduction_arguments(reduction, denominator), logits=z)


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

    .. math:: \frac{\partial \ell}{\partial z_k} = p_k \sum_j t_j - t_k

    where w_k t_k, smoothed or not, stands in the place of t_k if the classes have weights. A positive target on a
    logit of -inf costs inf; what comes back is the formula's value there, -t.

    Examples
    --------
    >>> from xent.gradients import soft_cross_entropy_gradient
    >>> soft_cross_entropy_gradient([[1000.0, 0.0]], [[0.75, 0.25]])
    array([[ 0.25, -0.25]])
    """
    logits, axis, masses, w, more = distributed(
        logits, target_probs, axis, weight, sample_weight, label_smoothing
    )

    def rows(block: Block, index: Index) -> Floats:
        t, highest = masses(index), block.argmax()
        at = block.each, highest
        block.shift()
        total, rest = _normalise(block, block.exponentiate_without(highest))
        # Only the largest probability can be so close to one that its complement is needed.
        own = t[at]
        t[at] = 0
        remaining = t.sum(axis=1)
        all_of_it = remaining + own
        difference: Floats = np.multiply(block.work, all_of_it[:, None], dtype=t.dtype)
        difference -= t
        difference[at] = _difference(all_of_it / total, all_of_it * rest, own, remaining)
        return difference

    settings = check.reduction_arguments(reduction, denominator)
    return differentiate_rows(rows, axis, w, settings, logits=logits, **more)


def binary_cross_entropy_gradient(
    logits: ArrayLike,
    targets: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
    pos_weight: ArrayLike | None = None,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
    denominator: float | None = None,
) -> Values:
    r"""Gradient of `xent.binary_cross_entropy` with respect to the logits.

    .. math:: \frac{\partial \ell}{\partial z} = (1-y)\,\sigma(z) - c\,y\,\sigma(-z)

    with c = `pos_weight`; for c = 1 it is sigma(z) - y. For targets 0 and 1, unsmoothed, nothing cancels. Certain and
    wrong (an infinite logit, a loss of inf) has the limit of the gradient.

    Examples
    --------
    >>> from xent.gradients import binary_cross_entropy_gradient
    >>> binary_cross_entropy_gradient([40.0, -1000.0], [1, 1], reduction="sum")
    array([-4.24835426e-18, -1.00000000e+00])
    """
    z, y, n, w = binary_targets(logits, targets, sample_weight, pos_weight, label_smoothing)
    with np.errstate(all="ignore"):
        # sigma(-z) is 1 - sigma(z) without the subtraction.
        slopes = n * sigmoid(z) - y * sigmoid(-z)
    return differentiate_each(slopes, w, check.reduction_arguments(reduction, denominator), z.dtype)


def _normalise(block: Block, terms: Terms) -> tuple[Floats, Floats]:
    """Turn the exponentials into probabilities; return the rows' totals and 1 - p of the left-out class.

    The probability of the left-out class itself is still to be filled in.
    """
    total = terms.own + terms.others
    block.work /= total[:, None]
    return total, terms.others / total


def _difference(p: Floats, one_minus_p: Floats, t: Any, one_minus_t: Any) -> Floats:
    """Return p - t in that one of its two forms, p - t or (1 - t) - (1 - p), that has less to cancel."""
    return np.asarray(np.where(p + t <= one_minus_p + one_minus_t, p - t, one_minus_t - one_minus_p))
