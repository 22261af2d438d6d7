"""Scoring rules: what a report of probabilities costs, and the way back from what a rule makes you report.

A scoring rule takes a report and the outcome, ``rule(probs, targets)``, and returns a cost: smaller is better. Every
rule here takes the two arguments of `log_score` and returns costs of the shape of `targets`, float32 for float16 and
float32, float64 otherwise. A rule is proper if nobody can lower the expected cost by reporting something else
than what they believe, and strictly proper if every other report costs more. `xent.elicitation` computes the
expected cost and searches for the report that minimises it, for any rule with these two arguments.

Strictly proper are `log_score`, `brier_score` and `spherical_score`. `zero_one_score` is proper, not strictly.
`linear_score` is improper. `focal_loss`, `smoothed_log_score` and `weighted_log_score` make you report a distorted
distribution, which `invert_focal`, `invert_smoothing` and `invert_weighting` undo, in the dtype of a cost.
`clipped_log_score` is proper for two classes, not strictly, and improper for more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import xlogy

from . import _validate as check
from ._validate import Floats, Indices, Values
from .denominators import in_units, inverses, population, sharing

__all__ = [
    "brier_score", "clipped_log_score", "focal_loss", "invert_focal", "invert_smoothing",
    "invert_weighting", "linear_score", "log_score", "smoothed_log_score", "spherical_score",
    "weighted_log_score", "zero_one_score",
]  # fmt: skip

#: A scoring rule, such as :func:`log_score`, takes reports and outcomes, and returns a cost for each.
Rule: TypeAlias = Callable[[Any, Any], Any]

# ------------------------------------------------------------------------------------------- the rules


@np.errstate(all="ignore")
def log_score(probs: ArrayLike, targets: ArrayLike) -> Values:
    r"""Logarithmic score, the cross-entropy of one outcome: strictly proper.

    .. math:: s(q, y) = -\log q_y

    Parameters
    ----------
    probs : array_like, shape (..., K)
        Reports q: in [0, 1], summing to one along the last axis.
    targets : array_like of int, shape (...)
        What happened, class indices y in [0, K).

    Returns
    -------
    scalar or ndarray, shape (...)
        Cost in nats, +inf where an outcome was called impossible.

    Notes
    -----
    The expected cost exceeds its minimum by KL(p || q). `xent.cross_entropy` is the same from logits, which keep the
    digits that probabilities have lost. I. J. Good, *Rational Decisions*, Journal of the Royal Statistical Society B 14
    (1952) 107-114.

    Examples
    --------
    >>> from xent.scoring import log_score
    >>> float(log_score([0.5, 0.3, 0.2], 0))
    0.693147...
    """
    q, own, _ = _report(probs, targets)
    return _result(_minus_log(own), q)


@np.errstate(all="ignore")
def brier_score(probs: ArrayLike, targets: ArrayLike) -> Values:
    r"""Brier's score, the squared error of the one-hot outcome: strictly proper.

    .. math:: s(q, y) = \sum_k (q_k - [k = y])^2

    Between 0 and 2. The sum is over all classes, as in Brier's paper; for two classes it is twice the squared error
    of one probability. The expected cost exceeds its minimum by the squared distance of p and q. G. W. Brier,
    *Verification of Forecasts Expressed in Terms of Probability*, Monthly Weather Review 78 (1950) 1-3.

    Examples
    --------
    >>> from xent.scoring import brier_score
    >>> float(brier_score([0.5, 0.25, 0.25], 0))
    0.375
    """
    q, _, labels = _report(probs, targets)
    error = q.astype(np.float64)
    at = labels[..., None]
    np.put_along_axis(error, at, np.take_along_axis(error, at, -1) - 1, -1)
    return _result(np.square(error).sum(axis=-1), q)


@np.errstate(all="ignore")
def spherical_score(probs: ArrayLike, targets: ArrayLike) -> Values:
    r"""Spherical score, the cosine between report and outcome: strictly proper.

    .. math:: s(q, y) = 1 - \frac{q_y}{\lVert q \rVert_2}

    Between 0 and 1; the one is added so that a certain hit costs nothing. T. Gneiting and A. E. Raftery, *Strictly
    Proper Scoring Rules, Prediction, and Estimation*, Journal of the American Statistical Association 102 (2007).

    Examples
    --------
    >>> from xent.scoring import spherical_score
    >>> float(spherical_score([0.6, 0.4], 0))
    0.167949...
    """
    q, own, _ = _report(probs, targets)
    return _result(1 - own / np.linalg.norm(q.astype(np.float64), axis=-1), q)


@np.errstate(all="ignore")
def linear_score(probs: ArrayLike, targets: ArrayLike) -> Values:
    r"""Linear score, half the absolute error of the one-hot outcome: improper.

    .. math:: s(q, y) = 1 - q_y = \tfrac12 \sum_k \bigl| q_k - [k = y] \bigr|

    The expected cost is linear in the report: all mass on the most probable class is among the cheapest.

    Examples
    --------
    >>> from xent.scoring import linear_score
    >>> float(linear_score([0.75, 0.25], 0))
    0.25
    """
    q, own, _ = _report(probs, targets)
    return _result(1 - own, q)


@np.errstate(all="ignore")
def zero_one_score(probs: ArrayLike, targets: ArrayLike) -> Values:
    r"""Zero-one score, one minus the accuracy: proper, not strictly.

    .. math:: s(q, y) = 1 - \frac{[y \in M]}{|M|}, \qquad M = \{k : q_k = \max_j q_j\}

    0 for a hit and 1 for a miss. Where classes tie for the largest probability, the cost of a guess among them.

    Examples
    --------
    >>> from xent.scoring import zero_one_score
    >>> zero_one_score([[0.6, 0.3, 0.1], [0.4, 0.4, 0.2]], [0, 1])
    array([0. , 0.5])
    """
    q, own, _ = _report(probs, targets)
    highest = q.max(axis=-1)
    ties = np.count_nonzero(q == highest[..., None], axis=-1)
    return _result(1 - (own == highest) / ties, q)


@np.errstate(all="ignore")
def clipped_log_score(probs: ArrayLike, targets: ArrayLike, *, eps: float = 1e-7) -> Values:
    r"""Logarithmic score of a probability clipped into [eps, 1 - eps], 0 < eps < 1/2: for 3 or more classes improper.

    .. math:: s(q, y) = -\log \min(\max(q_y, \varepsilon), 1 - \varepsilon)

    With two classes every report below eps costs the same, and the honest report is one of the cheapest.
    With more it may pay to take a class of small probability down to zero and to spread what this frees.

    Examples
    --------
    >>> from functools import partial
    >>> from xent.elicitation import expected_score
    >>> from xent.scoring import clipped_log_score
    >>> p, lie = [0.5, 0.45, 0.05], [0.5 / 0.95, 0.45 / 0.95, 0.0]
    >>> expected_score(partial(clipped_log_score, eps=0.1), p, [p, lie]).round(4)
    array([0.821 , 0.7723])
    """
    eps = check.number(eps, "eps", "a number in (0, 1/2)", 0.0, 0.5)
    q, own, _ = _report(probs, targets)
    return _result(_minus_log(np.clip(own, eps, 1 - eps)), q)


@np.errstate(all="ignore")
def focal_loss(probs: ArrayLike, targets: ArrayLike, *, gamma: float = 2.0) -> Values:
    r"""Focal loss: for gamma > 0 understates a class of probability between 1/2 and 1; see `invert_focal`.

    .. math:: s(q, y) = -(1 - q_y)^\gamma \log q_y

    `gamma` >= 0 says how strongly easy outcomes are discounted; zero is the logarithmic score. Improper for gamma > 0
    and yet classification-calibrated: the order of the classes survives. T.-Y. Lin et al., *Focal Loss for Dense
    Object Detection*, 2017, arXiv:1708.02002. As a loss, from logits: `xent.focal_loss`.

    Examples
    --------
    >>> from xent.elicitation import elicited
    >>> from xent.scoring import focal_loss
    >>> elicited(focal_loss, [0.8, 0.2]).round(4)
    array([0.6266, 0.3734])
    """
    gamma = check.setting(gamma, "gamma")
    q, own, _ = _report(probs, targets)
    # A row may sum to one within a tolerance, and 1 - q_y be negative by as much.
    return _result(np.maximum(1 - own, 0) ** gamma * _minus_log(own), q)


@np.errstate(all="ignore")
def smoothed_log_score(probs: ArrayLike, targets: ArrayLike, *, label_smoothing: float) -> Values:
    r"""Logarithmic score under label smoothing: elicits (1 - eps) p + eps / K; see `invert_smoothing`.

    .. math:: s(q, y) = -(1 - \varepsilon) \log q_y - \frac{\varepsilon}{K} \sum_k \log q_k

    `label_smoothing` is the mass epsilon in [0, 1] that is spread evenly over all K classes.

    Examples
    --------
    >>> from functools import partial
    >>> from xent.elicitation import elicited
    >>> from xent.scoring import smoothed_log_score
    >>> elicited(partial(smoothed_log_score, label_smoothing=0.1), [0.7, 0.3, 0.0]).round(4)
    array([0.6633, 0.3033, 0.0333])
    """
    eps = check.setting(label_smoothing, "label_smoothing")
    q, own, _ = _report(probs, targets)
    # 0 * inf = 0: what has no weight costs nothing.
    cost = np.zeros(own.shape)
    if eps < 1:
        cost = cost + (1 - eps) * _minus_log(own)
    if eps > 0:
        cost = cost + eps * _minus_log(q.astype(np.float64)).mean(axis=-1)
    return _result(cost, q)


@np.errstate(all="ignore")
def weighted_log_score(probs: ArrayLike, targets: ArrayLike, *, weight: ArrayLike) -> Values:
    r"""Logarithmic score with a weight >= 0 for each of the K classes: elicits w p, normalised; see `invert_weighting`.

    .. math:: s(q, y) = -w_y \log q_y

    Examples
    --------
    >>> from functools import partial
    >>> from xent.elicitation import elicited
    >>> from xent.scoring import weighted_log_score
    >>> elicited(partial(weighted_log_score, weight=[1.0, 9.0]), [0.9, 0.1]).round(4)
    array([0.5, 0.5])
    """
    q, own, labels = _report(probs, targets)
    by_class = check.weights(weight, "weight", q.shape[-1:], "one weight a class")[labels]
    return _result(by_class * np.where(by_class > 0, _minus_log(own), 0.0), q)


# --------------------------------------------------------------------------------- from the report back


def invert_focal(probs: ArrayLike, *, gamma: float = 2.0) -> Floats:
    r"""Undo the focal loss: from the reports that it elicits, shape (..., K), to the probabilities behind them.

    .. math:: p_k \propto \frac{q_k}{(1 - q_k)^\gamma - \gamma (1 - q_k)^{\gamma - 1} q_k \log q_k}

    A report is such as the softmax of a model that was trained with the focal loss, of this `gamma` >= 0.
    N. Charoenphakdee et al., *On Focal Loss for Class-Posterior Probability Estimation: A Theoretical Perspective*,
    CVPR 2021, arXiv:2011.09172.

    Examples
    --------
    >>> from xent.elicitation import elicited
    >>> from xent.scoring import focal_loss, invert_focal
    >>> invert_focal(elicited(focal_loss, [0.8, 0.2])).round(6)
    array([0.8, 0.2])
    """
    gamma = check.setting(gamma, "gamma")
    given = check.probabilities(probs, "probs", -1)
    q = np.minimum(given.astype(np.float64), 1.0)
    rest = 1 - q
    with np.errstate(all="ignore"):
        # -q log(q) / (1 - q) tends to 1 at q = 1, where the quotient would be 0 / 0.
        slope = np.where(rest > 0, -xlogy(q, q) / rest, 1.0)
        # The common factor (1 - q)^gamma of the smallest rest is divided out: it may underflow.
        scale = (rest.min(axis=-1, keepdims=True) / rest) ** gamma
        p = np.where(rest > 0, q * scale / (1 + gamma * slope), q)
        certain = (q == 1) & (gamma > 0)
        p = np.where(certain.any(axis=-1, keepdims=True), certain.astype(np.float64), p)
        p /= p.sum(axis=-1, keepdims=True)
    return p.astype(np.result_type(np.float32, given), copy=False)


@np.errstate(all="ignore")
def invert_smoothing(probs: ArrayLike, *, label_smoothing: float) -> Floats:
    r"""Undo label smoothing, of mass `label_smoothing` in [0, 1), as `invert_focal` does the focal loss.

    .. math:: p_k = \frac{q_k - \varepsilon / K}{1 - \varepsilon}

    Reports below eps / K, beyond rounding, are refused.

    Examples
    --------
    >>> from xent.scoring import invert_smoothing
    >>> invert_smoothing([0.85, 0.1, 0.05], label_smoothing=0.15).round(4)
    array([0.9412, 0.0588, 0.    ])
    """
    eps = check.number(label_smoothing, "label_smoothing", "a number in [0, 1)", 0.0, 1.0, closed="low")
    given = check.probabilities(probs, "probs", -1)
    floor = eps / given.shape[-1]
    # A row may sum to one within a tolerance, and each entry be off by as much of itself.
    slack = floor * check.sum_tolerance(given.dtype.newbyteorder("="), given.shape[-1])
    slack += float(np.finfo(given.dtype).tiny) * float(np.finfo(given.dtype).eps)
    above = given.astype(np.float64) - floor
    expected = f"probabilities >= label_smoothing / K = {floor:g}, which smoothing leaves to every class"
    check.refuse_where(above < -slack, "probs", expected, given)
    p: Floats = (np.maximum(above, 0.0) / (1 - eps)).astype(np.result_type(np.float32, given), copy=False)
    return p


@np.errstate(all="ignore")
def invert_weighting(
    probs: ArrayLike,
    *,
    weight: ArrayLike,
    batch_size: int | None = None,
    class_probs: ArrayLike | None = None,
) -> Floats:
    r"""Undo class weights, as `invert_focal` does the focal loss.

    .. math:: p_k \propto \frac{q_k}{w_k}, \qquad \text{or} \qquad
              p_k \propto \frac{q_k}{w_k\, \mathrm E[1 / (w_k + W_{B-1})]}

    The first is for a loss whose divisor does not depend on the labels: a sum, a constant, the number of targets, as in
    Keras. The weighted mean of `xent.cross_entropy`, and of PyTorch over class indices, divides by the batch's own sum
    of weights and needs the second, with its batch size B: W_{B-1} sums the weights of B - 1 others.

    Parameters
    ----------
    probs : array_like, shape (..., K)
        Reports q.
    weight : array_like, shape (K,)
        The weights of that loss, finite and > 0: what has no weight leaves no trace in the report.
    batch_size : int, optional
        Number of targets that shared a sum of weights, B >= 1. None, the default: the divisor was constant.
    class_probs : array_like, shape (K,), optional
        Share of each class in the training data, from which the other B - 1 targets came. Goes with `batch_size`.

    See Also
    --------
    xent.denominators.learnt_distribution : the way there.

    Examples
    --------
    >>> from xent.scoring import invert_weighting
    >>> invert_weighting([0.5, 0.5], weight=[1.0, 9.0])
    array([0.9, 0.1])
    """
    given = check.probabilities(probs, "probs", -1)
    by_class = check.weights(weight, "weight", given.shape[-1:], "one weight a class")
    check.refuse_where(by_class <= 0, "weight", "weights > 0", by_class)
    if batch_size is None and class_probs is not None:
        raise TypeError("batch_size: expected the number of targets that shared a sum of weights, got None")
    if batch_size is not None and class_probs is None:
        raise TypeError("class_probs: expected the classes' shares, from which batches were drawn, got None")
    if batch_size is not None:
        others = population(class_probs, "class_probs", given.shape[-1:])
        # In units of the largest, so that a weight times what it was divided by is at most one.
        by_class = in_units(by_class, "weight")
        by_class = by_class * inverses(by_class, others, sharing(batch_size))
    # Mantissas and exponents apart: weights of 1e-300 and 1e300 have a quotient that no float holds.
    mantissa, exponent = np.frexp(given.astype(np.float64))
    divisor, by_power = np.frexp(by_class)
    exponent -= by_power
    exponent -= np.where(given > 0, exponent, -9999).max(axis=-1, keepdims=True)
    p = np.ldexp(mantissa / divisor, np.where(given > 0, exponent, 0))
    p /= p.sum(axis=-1, keepdims=True)
    return p.astype(np.result_type(np.float32, given), copy=False)


# -------------------------------------------------------------------------------------------- arguments


def _report(probs: ArrayLike, targets: ArrayLike) -> tuple[Floats, Floats, Indices]:
    """Check the arguments; return reports, the probability (float64) of each outcome, and outcomes."""
    q = check.probabilities(probs, "probs", -1)
    labels, _ = check.class_indices(targets, "targets", q, q.ndim - 1, None, hints=False)
    own = np.take_along_axis(q, labels[..., None], -1)[..., 0].astype(np.float64)
    return q, own, labels


def _minus_log(q: Floats) -> Floats:
    return np.asarray(0.0 - np.log(q))  # not -log(q), which is -0.0 for a certain hit


def _result(cost: Floats, given: Floats) -> Values:
    return cost.astype(np.result_type(np.float32, given), copy=False)[()]
