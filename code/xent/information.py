"""Entropy, cross-entropy and divergence of distributions that are given as probabilities.

Distributions are array_like, of shape (..., K, ...), and sum to one along `axis` within a tolerance; anything else is
refused, never renormalised. What comes back has their shape without `axis`, in float32 for float16 and float32, float64
otherwise, in nats or in units of log `base` (> 0 and not 1; 2: bits; below 1 the sign turns). It is summed in float64
and within 4 machine epsilons of itself over the sweeps of tests/xent/test_accuracy.py: up to 500 classes, q far from p
or as close as 1e-6, against 40 digits of mpmath.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import entr, rel_entr, xlogy

from ._validate import Floats, Values, logits_array, probabilities, real_array, same_shape, unit

__all__ = ["cross_entropy", "entropy", "kl_divergence"]


@np.errstate(all="ignore")
def entropy(p: ArrayLike, *, axis: int = -1, base: float | None = None) -> Values:
    r"""Shannon entropy: the expected surprise under p; between 0 and log K up to rounding, if p sums to 1.

    .. math:: H(p) = -\sum_k p_k \log p_k, \qquad 0 \log 0 = 0

    Shannon, *A Mathematical Theory of Communication*, Bell System Technical Journal 27 (1948).

    Examples
    --------
    >>> from xent.information import entropy
    >>> float(entropy([0.5, 0.25, 0.25], base=2))
    1.5
    """
    p, axis = _distribution(p, "p", axis)
    return _result(entr(p.astype(np.float64)), axis, base, p)


@np.errstate(all="ignore")
def cross_entropy(p: ArrayLike, q: ArrayLike, *, axis: int = -1, base: float | None = None) -> Values:
    r"""Cross-entropy: the expected surprise of someone who believes q, under p; +inf where q misses an outcome of p.

    .. math:: H(p, q) = -\sum_k p_k \log q_k

    See Also
    --------
    xent.cross_entropy, xent.soft_cross_entropy : losses that take the logits of q.

    Examples
    --------
    >>> from xent.information import cross_entropy
    >>> float(cross_entropy([0.5, 0.5], [0.25, 0.75], base=2))
    1.207518...
    """
    p, q, axis = _pair(p, q, axis)
    return _result(-xlogy(p.astype(np.float64), q.astype(np.float64)), axis, base, p, q)


@np.errstate(all="ignore")
def kl_divergence(p: ArrayLike, q: ArrayLike, *, axis: int = -1, base: float | None = None) -> Values:
    r"""Kullback-Leibler divergence (relative entropy): the surprise that believing q adds.

    .. math:: \mathrm{KL}(p \,\|\, q) = \sum_k p_k \log \frac{p_k}{q_k} = H(p, q) - H(p)

    In nats never negative, zero for p = q, +inf where q misses an outcome of p.

    Notes
    -----
    Summed as sum_k (p_k log(p_k / q_k) - p_k + q_k), whose terms are all >= 0. For distributions that is the
    same sum; where p is close to q it keeps the digits that the plain sum cancels. S. Kullback and R. A.
    Leibler, *On Information and Sufficiency*, Annals of Mathematical Statistics 22 (1951).

    Examples
    --------
    >>> from xent.information import kl_divergence
    >>> float(kl_divergence([0.5, 0.5], [0.25, 0.75])), float(kl_divergence([0.5, 0.5], [1.0, 0.0]))
    (0.143841..., inf)
    """
    p, q, axis = _pair(p, q, axis)
    return _result(excess(p.astype(np.float64), q.astype(np.float64)), axis, base, p, q)


def excess(p: Floats, q: Floats) -> Floats:
    """Return p log(p / q) - p + q, elementwise and without cancellation where p is close to q."""
    with np.errstate(all="ignore"):
        # With s = (p - q) / (p + q), log(p / q) = 2 artanh(s), and the term is (p + q) times
        # s^2 + (1 + s) (artanh(s) - s): artanh without its first term, s, which is what would cancel.
        s = np.nan_to_num((p - q) / (p + q))
        near = np.abs(s) < 0.5  # beyond, the difference below magnifies errors 2.5 times at most
        v = np.where(near, s * s, 0.0)
        tail = np.zeros_like(v)
        for k in range(25, 0, -1):
            tail = v * (1.0 / (2 * k + 1) + tail)
        return np.where(near, (p + q) * (v + (1 + s) * s * tail), relative_entropy(p, q) - (p - q))


def relative_entropy(p: Floats, q: Floats) -> Floats:
    """Return p log(p / q), also where q is so small that p / q is beyond a float."""
    terms: Floats = rel_entr(p, q)
    beyond = np.isinf(terms) & (q > 0)
    return np.where(beyond, p * (np.log(p) - np.log(q)), terms) if beyond.any() else terms


def _distribution(value: ArrayLike, name: str, axis: int) -> tuple[Floats, int]:
    array, axis = logits_array(value, name, axis)
    return probabilities(array, name, axis), axis


def _pair(p: ArrayLike, q: ArrayLike, axis: int) -> tuple[Floats, Floats, int]:
    p, axis = _distribution(p, "p", axis)
    q = real_array(q, "q")
    same_shape(q, "q", p.shape, "p")
    return p, probabilities(q, "q", axis), axis


def _result(terms: Floats, axis: int, base: float | None, *given: Floats) -> Values:
    """Sum the terms along the class axis and convert from nats."""
    dtype = np.result_type(np.float32, *given)
    total = np.ascontiguousarray(np.moveaxis(terms, axis, -1)).sum(-1)  # in pairs, along memory
    result: Values = (total / unit(base)).astype(dtype, copy=False)[()]
    return result
