"""Log-sum-exp, softmax and sigmoid that neither overflow nor lose the digits that a loss needs.

All functions take logits as array_like of float16, float32, float64 or integers, with the classes along `axis` (the
last one), and return float32 for float16 and float32, float64 otherwise. Logits may be -inf (an impossible class); nan
raises `ValueError`.

Errors are stated in machine epsilons of the result's dtype (1.2e-7, 2.2e-16); they may be 4 larger where terms
round alike. They hold over the sweep of tests/xent/test_accuracy.py: 1 to 1000 classes, logits up to 4e4, against 40
digits of mpmath; of K terms, below K times the smallest normal number, they are relative to that number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import _validate as check
from ._blocks import Block, blocks, over_rows, without_nan
from ._validate import Floats

__all__ = ["log_sigmoid", "log_softmax", "log_sum_exp", "sigmoid", "softmax"]


@check.named_axis
def log_sum_exp(x: ArrayLike, *, axis: int = -1) -> Any:
    r"""Logarithm of a sum of exponentials.

    .. math:: \operatorname{lse}(x) = \log\sum_j e^{x_j} = m + \log\sum_j e^{x_j - m}, \qquad m = \max_j x_j

    Parameters
    ----------
    x : array_like, shape (..., K, ...)
        Real numbers; -inf counts as a term of zero, +inf makes the sum +inf.

    Returns
    -------
    ndarray or scalar
        The shape of `x` without `axis`. At most 4 epsilons of ``max(|m|, lse - m)`` away.

    Notes
    -----
    The maximum is left out of the sum and comes back through log1p, as in `scipy.special.logsumexp`: Blanchard,
    Higham & Higham, *Accurately computing the log-sum-exp and softmax functions*, IMA J. Numer. Anal. 41 (2021)
    2311-2330.

    Examples
    --------
    >>> from xent import log_sum_exp
    >>> float(log_sum_exp([1000.0, 1000.0]) - 1000), float(log_sum_exp([0.0, -40.0]))
    (0.693147180559..., 4.248354255291...e-18)
    """
    x, axis = check.logits_array(x, "x", axis)
    rows = np.moveaxis(x, axis, -1)
    out = np.empty(rows.shape[:-1], np.promote_types(x.dtype, np.float32))
    with np.errstate(all="ignore"):
        for index, block in blocks(rows):
            highest = block.argmax()
            block.shift()
            terms = block.exponentiate_without(highest)
            # An infinite maximum is the answer: +inf swamps the rest, and -inf means that there is no rest.
            value = np.where(np.isinf(terms.maximum), terms.maximum, terms.maximum + np.log1p(terms.others))
            out[index] = value.reshape(out[index].shape)
    if np.isnan(out).any():
        without_nan(x, "x")
    return out[()]


@check.named_axis
def log_softmax(logits: ArrayLike, *, axis: int = -1) -> Floats:
    r"""Logarithm of the softmax: the log-probabilities that logits stand for.

    .. math:: \log p_k = z_k - \operatorname{lse}(z)

    Parameters
    ----------
    logits : array_like, shape (..., K, ...)
        Logits z; at least one in each row is finite, none is +inf.

    Returns
    -------
    ndarray, shape (..., K, ...)
        Log-probabilities in nats, each within 4 epsilons of itself, also the largest of a row, however close to 0.

    Examples
    --------
    >>> from xent import log_softmax
    >>> log_softmax([0.0, -40.0])
    array([-4.24835426e-18, -4.00000000e+01])
    """

    def rows(block: Block) -> Floats:
        highest = block.argmax()
        block.shift()
        shifted = block.work.copy()
        terms = block.exponentiate_without(highest)
        # m - z and log1p(others) have one sign, so that nothing cancels. (0 m: no row is nan in part.)
        shifted -= (np.log1p(terms.others) + 0 * terms.maximum)[:, None]
        return shifted

    return _by_rows(rows, logits, axis)


@check.named_axis
def softmax(logits: ArrayLike, *, axis: int = -1) -> Floats:
    r"""Softmax: the probabilities that logits, given as to `log_softmax`, stand for.

    .. math:: p_k = \frac{e^{z_k}}{\sum_j e^{z_j}}

    Returns
    -------
    ndarray, shape (..., K, ...)
        Probabilities that sum to one within 8 epsilons, each within ``8 + (m - z_k) / 2`` epsilons of itself:
        one far below the largest carries the rounding error of the difference of logits.

    Examples
    --------
    >>> from xent import softmax
    >>> softmax([[1000.0, 1000.0], [0.0, -float("inf")]])
    array([[0.5, 0.5],
           [1. , 0. ]])
    """

    def rows(block: Block) -> Floats:
        block.shift()
        np.exp(block.work, out=block.work)
        block.work /= block.sum()[:, None]
        return block.work

    return _by_rows(rows, logits, axis)


def sigmoid(logits: ArrayLike) -> Any:
    r"""Logistic function: the probability that one logit, of an array_like of any shape, stands for.

    .. math:: \sigma(z) = \frac{1}{1 + e^{-z}}

    Infinities are allowed. The probabilities, of the same shape, are within 4 epsilons of themselves, also in the lower
    tail.

    Examples
    --------
    >>> from xent import sigmoid
    >>> sigmoid([-1000.0, 0.0, 1000.0])
    array([0. , 0.5, 1. ])
    """
    z = _numbers(logits)
    with np.errstate(under="ignore"):
        e = np.exp(-np.abs(z))  # never above one, so that it cannot overflow
    return (np.where(z >= 0, z.dtype.type(1), e) / (1 + e))[()]


def log_sigmoid(logits: ArrayLike) -> Any:
    r"""Logarithm of the logistic function.

    .. math:: \log\sigma(z) = \min(z, 0) - \log(1 + e^{-|z|})

    As `sigmoid`; in nats, within 4 epsilons of themselves in both tails.

    Examples
    --------
    >>> from xent import log_sigmoid
    >>> log_sigmoid([-1000.0, 0.0, 40.0])
    array([-1.00000000e+03, -6.93147181e-01, -4.24835426e-18])
    """
    z = _numbers(logits)
    with np.errstate(under="ignore"):
        return (np.minimum(z, 0) - np.log1p(np.exp(-np.abs(z))))[()]


def _numbers(logits: ArrayLike) -> Floats:
    z = without_nan(check.real_array(logits, "logits"), "logits")
    return z.astype(np.promote_types(z.dtype, np.float32), copy=False)


def _by_rows(formula: Callable[[Block], Floats], logits: ArrayLike, axis: int) -> Floats:
    """Return the rows that a formula makes of logits."""
    logits, axis = check.logits_array(logits, "logits", axis)
    moved = np.moveaxis(logits, axis, -1)
    out = np.empty(moved.shape, np.promote_types(logits.dtype, np.float32))
    over_rows(lambda block, _: formula(block), out, axis, logits=moved)
    return np.moveaxis(out, -1, axis)
