"""What a loss teaches whose divisor depends on what is in its batch.

The loss of a batch is the sum of a(x) (-log Q(x)) over its B items, divided by the sum of their sizes d(x).
Its expectation over independent items is a *weighted* log loss, with a(x) E[1 / (d(x) + the sizes of B - 1 others)]
as an item's weight up to a factor B. Where the weights differ, the distribution P of the data does not minimise it.

`learnt_distribution` computes it for items of any kind, `learnt_lengths` for sequences, whose size is their length,
with prompts or without, and `eos_optimum` for a model with one stop probability.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _validate
from ._validate import MOST_SHARING, Floats, count, probabilities, refuse_where, shown, weights

__all__ = ["eos_optimum", "learnt_distribution", "learnt_lengths", "length_weights"]

Array = NDArray[np.float64]

# A token in units of 2^200 tokens: where one in 10^308 is the last, t would be too small for a float.
TOKEN = 2.0**-200


# ---------------------------------------------------------------------------------------- what is learnt


@np.errstate(all="ignore")
def learnt_distribution(
    probs: ArrayLike,
    sizes: ArrayLike,
    batch_size: int = 1,
    *,
    weight: ArrayLike | None = None,
    others: ArrayLike | None = None,
) -> Array:
    r"""What a model learns from a log loss that is divided by a sum over its batch.

    .. math:: Q^*(k) \propto P(k)\, a_k\, \mathrm E\Big[\frac{1}{d_k + S_{B-1}}\Big]

    An item is whatever is drawn as a whole: a sequence whose size d is its length, a target whose size is the weight of
    its class. S_{B-1} is the sum of the sizes of B - 1 items.

    Parameters
    ----------
    probs : array_like, shape (..., K)
        The distribution P of the items, or several, such as one for each context.
    sizes : array_like, shape (K,)
        What an item of each kind adds to the divisor, d > 0.
    batch_size : int, default 1
        Number of items that share the divisor, B >= 1.
    weight : array_like, shape (K,), optional
        What multiplies an item's loss, a >= 0; one where it is left out. With class weights it is `sizes`.
    others : array_like, shape (K,), optional
        The distribution of the other items of a batch. Needed if `probs` holds several; P by default.

    Returns
    -------
    ndarray of float64, shape (..., K)
        Q*, which minimises the expected loss among all distributions; to 12 digits or more, by quadrature.

    See Also
    --------
    xent.scoring.invert_weighting : the way back, for class weights.

    Notes
    -----
    Exact for independent draws, whatever B is; the appendix on random denominators has the proof. To first
    order Q*(k) / P_a(k) = 1 - (d_k - E_a[d]) / (B E[d]), with P_a proportional to a P and E over `others`: the bias of
    self-normalised importance sampling. T. Hesterberg, *Advances in Importance Sampling*, thesis, Stanford
    (1988), section 2.5.2.

    Examples
    --------
    >>> from xent.denominators import learnt_distribution
    >>> learnt_distribution([0.5, 0.5], [1, 3])  # a mean over each sequence, of one token or of three
    array([0.75, 0.25])
    """
    p = probabilities(probs, "probs", -1).astype(np.float64)
    d = weights(sizes, "sizes", p.shape[-1:], "one for each outcome")
    refuse_where(d <= 0, "sizes", "sizes > 0", d)
    if others is None and p.ndim > 1:
        raise TypeError("others: expected the distribution of a batch's other items, got None")
    law = p if others is None else population(others, "others", p.shape[-1:])
    a = np.ones_like(d) if weight is None else weights(weight, "weight", d.shape, "one for each outcome")
    tilted = p * (a / a.max()) * inverses(in_units(d, "sizes"), law, sharing(batch_size))
    total = tilted.sum(axis=-1, keepdims=True)
    if not (total > 0).all():
        raise ValueError("weight: expected a positive weight on an outcome that happens, got none")
    return np.asarray(tilted / total)


@np.errstate(all="ignore")
def eos_optimum(stop: float, batch_size: int = 1) -> float:
    r"""Stop probability that a token mean over `batch_size` sequences makes a model with one stop probability learn.

    .. math:: q^*(B, \beta) = B\, \mathrm E\Big[\frac1S\Big] = \beta\; {}_2F_1(1, 1; B + 1; 1 - \beta),
              \qquad S \sim \mathrm{NegBin}(B, \beta)

    where S is the number of tokens in the batch and beta, in (0, 1], the true probability of <eos>, `stop`. For a batch
    of one this is beta log(beta) / (beta - 1). The bias is q*/beta - 1 = (1 - beta)/B to first order, and for B >= 2 it
    lies between (1 - beta)/(B + 1) and (1 - beta)/(B - 1); the result is above `stop` unless both are the same float.

    Notes
    -----
    The expected loss is a cross-entropy between the constant B E[1/S] and q. E[1/S] is an integral of the generating
    function of S, and the integral is Euler's for the hypergeometric function; chapter 10 has the steps. To a few
    units in the last place; `scipy.special.hyp2f1` is nan or inf for beta < 0.1 from B near 100 on.

    Examples
    --------
    >>> from xent.denominators import eos_optimum
    >>> eos_optimum(0.5), eos_optimum(0.5, 128)
    (0.693147..., 0.501953...)
    """
    stop = stop_probability(stop, "stop")
    batch_size = sharing(batch_size)
    if stop == 1:  # rounding below one would leave something to stake on letters that never come
        return 1.0
    if batch_size == 1:
        return stop * math.log(stop) / (stop - 1.0)
    # B int G(exp(-t))^B dt with G(exp(-t)) = 1 / (1 + (exp(t) - 1) / stop), written without a cancellation.
    t = log_grid(batch_size * TOKEN, TOKEN / stop, batch_size)
    small = t * TOKEN < 1e-20  # exp(t) - 1 = t, which may not be a normal float
    odds = np.where(small, t * (TOKEN / stop), np.expm1(t * TOKEN) / stop)
    found = float(batch_size * STEP * TOKEN * np.sum(t * np.exp(-batch_size * np.log1p(odds))))
    return min(max(found, stop), 1.0)  # rounding may cross the bounds


@np.errstate(all="ignore")
def length_weights(
    lengths: ArrayLike, batch_size: int = 1, *, probabilities: ArrayLike | None = None
) -> Array:
    r"""Weight of a sequence in the expected token mean over a batch, by its length.

    .. math:: w_B(n) = \mathrm E\Big[\frac{1}{n + S_{B-1}}\Big] = \int_0^1 u^{n-1} G(u)^{B-1}\, du,
              \qquad G(u) = \mathrm E[u^n]

    where S_{B-1} is the summed length of B - 1 independent sequences, drawn with replacement. The expected loss of the
    batch is B E[w_B(n) l(x)], with l(x) the negative log-likelihood of one sequence.

    Parameters
    ----------
    lengths : array_like of int, shape (N,)
        Lengths, <eos> included, each >= 1: those of a data set, or the support of their distribution.
    batch_size : int, default 1
        Number of sequences that share a denominator, B >= 1. For one, the weight is 1/n.
    probabilities : array_like, shape (N,), optional
        The distribution of the lengths. Without it each entry of `lengths` counts 1/N, the empirical one.

    Examples
    --------
    >>> from xent.denominators import length_weights
    >>> length_weights([1, 1, 3, 3], batch_size=2)  # the companion has length 1 or 3
    array([0.375     , 0.375     , 0.20833333, 0.20833333])
    """
    return inverses(*_length_probs(lengths, probabilities), sharing(batch_size))


@np.errstate(all="ignore")
def learnt_lengths(lengths: ArrayLike, batch_size: int, prompts: ArrayLike | None = None) -> Array:
    r"""Lengths that a token mean over a batch teaches a flexible model to answer each prompt with.

    .. math:: Q^*(n \mid c) = \frac{P(n \mid c)\, w_B(n)}{\sum_k P(k \mid c)\, w_B(k)}, \qquad
              w_B(n) = \mathrm E\Big[\frac{1}{n + S_{B-1}}\Big]

    The companions, whose lengths add up to S_{B-1}, answer any prompt, so that all of the data decide the weights,
    those of `length_weights`. An answer competes with the other answers to its own prompt only. Without prompts the
    model learns the harmonic mean of a batch's mean length. For a distribution P of lengths n the same is
    `learnt_distribution` of P, n and B.

    Parameters
    ----------
    lengths : array_like of int, shape (N,)
        Number of tokens of each answer that count in the divisor, <eos> included, each >= 1.
    batch_size : int
        Number of sequences that share a denominator, B >= 1.
    prompts : array_like of int or str, shape (N,), optional
        Which prompt each answer belongs to: integers or texts, equal where the prompt is. Without it all belong to one.

    Returns
    -------
    ndarray of float64, shape (N,)
        The probability of each entry given its prompt. The entries of a prompt sum to one.

    Notes
    -----
    Exact for batches drawn independently, with replacement, from the N entries. The mean length of a prompt's answers
    falls by Var(n | c) / (B mu) to first order, with mu the mean of all lengths. A prompt with one answer has nothing
    to tilt: the result is 1, which says that the data cannot show what is learnt there, not that nothing is lost.

    Examples
    --------
    >>> from xent.denominators import learnt_lengths
    >>> learnt_lengths([9, 11, 90, 110], 1, ["a", "a", "b", "b"])  # means 9.9 and 99, in the data 10 and 100
    array([0.55, 0.45, 0.55, 0.45])
    """
    values, share = _length_probs(lengths, None)
    weight = inverses(values, share, sharing(batch_size))
    asked = np.zeros(len(values), np.intp) if prompts is None else _numbered(prompts, len(values))
    return np.asarray(weight / np.bincount(asked, weight)[asked])


# ------------------------------------------------------------------------ the mean of one over a random sum

# The step of the trapezoidal rule in log t, see log_grid. Exact in binary, so that the grid has no rounding.
STEP = 3 / 16


def log_grid(decay: float, mean: float, batch_size: int) -> Array:
    """Nodes t = exp(k STEP) for integrals of exp(-d t) G(t)^(B-1) dt, from 0 to infinity.

    In x = log t the integrand is analytic for |Im x| < pi/2 and its modulus is bounded by its values on the
    real axis, so the trapezoidal rule errs by about exp(-pi^2/STEP), 1e-23. The ends are cut where what is
    left is below 1e-17 of the integral, which is at least 1/(d + (B-1) mean); `decay` is the smallest possible
    d + (B-1) sizes, and `mean` bounds the mean size and d.
    """
    scale = math.log(batch_size) + math.log(mean)
    first = math.floor((math.log(1e-18) - scale) / STEP)
    last = math.ceil(math.log((45.0 + scale - math.log(decay)) / decay) / STEP)
    return np.asarray(np.exp(STEP * np.arange(first, last + 1)))


def expected_inverse(at: Array, sizes: Array, law: Array, batch_size: int) -> Array:
    """E[1 / (d + S)] for each positive d of `at`; S sums B - 1 draws of `sizes`, ascending, with chances `law`.

    The integral of exp(-d t) G(t)^(B-1), with G(t) = E[exp(-size t)], by the trapezoidal rule in log t: to
    12 digits or more, for any sizes >= 0 and any B.
    """
    if batch_size == 1:
        return np.asarray(1.0 / at)
    possible, share = sizes[law > 0], law[law > 0]
    base, smallest = float(possible[0]), float(at.min())
    total = np.zeros_like(at)
    for t in log_grid(smallest + (batch_size - 1) * base, float(max(possible[-1], at.max())), batch_size):
        # log G, with exp(-base t) taken out: what is left is at least P(base), so that its logarithm exists,
        # and log1p keeps the digits that the power of B - 1 would multiply.
        less = float(share @ np.expm1(-(possible - base) * t))
        # Where P(base) is the smaller part, there are more digits in what is left than in what is gone.
        left = math.log1p(less) if less > -0.5 else math.log(float(share @ np.exp(-(possible - base) * t)))
        total += STEP * t * np.exp(-at * t + (batch_size - 1) * (left - base * t))
    return total


def in_units(sizes: Floats, name: str) -> Array:
    """Divide by the largest; the integral of `inverses` needs quotients whose inverse is a float."""
    quotient: Array = (sizes / sizes.max()).astype(np.float64)
    if not (quotient > 1e-290).all():
        raise ValueError(
            f"{name}: expected a ratio of at most 1e290, got {sizes.min():g} and {sizes.max():g}"
        )
    return quotient


def sharing(batch_size: Any) -> int:
    """Return `batch_size`, the number of items that share a divisor."""
    return count(batch_size, "batch_size", most=MOST_SHARING)


def inverses(sizes: Array, law: Array, batch_size: int) -> Array:
    """E[1 / (d + S)] for each of `sizes`, with S the sum of B - 1 of them."""
    values, position = np.unique(sizes, return_inverse=True)
    of_values = np.bincount(position, law).astype(np.float64)
    exact = values.astype(np.float64)
    return expected_inverse(exact, exact, of_values, batch_size)[position]


def population(value: Any, name: str, shape: tuple[int, ...]) -> Array:
    law = probabilities(value, name, -1).astype(np.float64)
    if law.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}, one share a class, got {law.shape}")
    return law


# -------------------------------------------------------------------------------------------- arguments


def _length_probs(lengths: ArrayLike, probabilities: ArrayLike | None) -> tuple[Array, Array]:
    """Return the lengths and the probability of each."""
    array: Array = _validate.real_array(lengths, "lengths").astype(np.float64)
    if np.asarray(lengths).dtype.kind not in "iu":
        raise TypeError(f"lengths: expected integers, <eos> included, got dtype {array.dtype}")
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"lengths: expected shape (N,) with N >= 1, got {array.shape}")
    refuse_where(array < 1, "lengths", "lengths >= 1, <eos> included", array, got="{:g}")
    if probabilities is None:
        return array, np.full(array.size, 1.0 / array.size)
    share: Array = _validate.probabilities(probabilities, "probabilities", -1).astype(np.float64)
    _validate.same_shape(share, "probabilities", array.shape, "lengths")
    return array, share


def _numbered(prompts: ArrayLike, number: int) -> NDArray[np.intp]:
    """Number the prompts in their order of appearance, and return each entry's number."""
    array = _validate.any_array(prompts, "prompts")
    if array.shape != (number,):
        raise ValueError(f"prompts: expected shape ({number},), one for each of lengths, got {array.shape}")
    # A list is taken as it is: NumPy would make texts, or floats, of what is mixed, and cut a text's last zeros.
    given: list[Any] = list(prompts) if isinstance(prompts, (list, tuple)) else array.tolist()
    entries, numbers = [x.item() if hasattr(x, "item") else x for x in given], dict[int | str, int]()
    for index, entry in enumerate(entries):
        if not isinstance(entry, (int, str)) or isinstance(entry, bool):  # a missing value is no prompt
            raise TypeError(f"prompts: expected integers or texts, got {shown(entry)} at index {index}")
    return np.array([numbers.setdefault(entry, len(numbers)) for entry in entries], dtype=np.intp)


def stop_probability(value: Any, name: str) -> float:
    stop = _validate.number(value, name, "a probability in (0, 1]", 0.0, 1.0, closed="high")
    if stop < 1e-308:
        raise ValueError(f"{name}: expected a probability whose inverse is a float, got {stop:g}")
    return stop
