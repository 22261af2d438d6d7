"""Which report a scoring rule makes cheapest: expected cost, and a search for its minimiser.

`expected_score` computes what a report costs when outcomes follow a distribution, and `elicited` searches for
the report that costs least, for any rule with the two arguments of those in `xent.scoring`. Keyword arguments
are bound with ``functools.partial``:

    elicited(partial(focal_loss, gamma=2.0), [0.8, 0.2])
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike

from ._validate import Floats, Values, any_array, first_true, probabilities, shown
from .scoring import Rule

__all__ = ["elicited", "expected_score"]


def expected_score(rule: Rule, target_probs: ArrayLike, probs: ArrayLike) -> Values:
    r"""Expected cost of the report q when outcomes follow p.

    .. math:: S(p, q) = \sum_k p_k\, s(q, k), \qquad 0 \cdot \infty = 0

    Parameters
    ----------
    rule : callable
        A scoring rule: takes reports of shape (..., K) and outcomes of shape (...), returns costs of shape
        (...), none of them nan.
    target_probs : array_like, shape (K,) or shape of `probs`
        The distribution p of the outcomes; a single one serves all reports.
    probs : array_like, shape (..., K)
        Reports q.

    Returns
    -------
    scalar or ndarray, shape (...)
        Expected costs, float64; +inf where an outcome of positive probability costs +inf.

    Examples
    --------
    >>> from xent.elicitation import expected_score
    >>> from xent.scoring import linear_score
    >>> p = [0.75, 0.25]
    >>> expected_score(linear_score, p, [p, [1.0, 0.0]])
    array([0.375, 0.25 ])
    """
    _callable(rule)
    p = probabilities(target_probs, "target_probs", -1).astype(np.float64)
    report = probabilities(probs, "probs", -1)
    if p.shape not in (report.shape[-1:], report.shape):
        raise ValueError(
            f"target_probs: expected shape {report.shape[-1:]} or {report.shape}, that of probs, "
            f"got {p.shape}"
        )
    return _expected(rule, p, report)[()]


def elicited(rule: Rule, target_probs: ArrayLike) -> Floats:
    r"""Report that costs least when outcomes follow p, found by search over all reports.

    .. math:: q^*(p) \in \operatorname*{arg\,min}_{q} \sum_k p_k\, s(q, k)

    Parameters
    ----------
    rule : callable
        A scoring rule, as for `expected_score`. It may have kinks and jumps, and be +inf, but not on the whole lattice.
    target_probs : array_like, shape (..., K), K <= 500
        The distribution p of the outcomes, one or many.

    Returns
    -------
    ndarray, shape of `target_probs`
        The cheapest report found, float64. Where several are equally cheap it is one of them, the same at
        every call; compare with ``expected_score(rule, p, p)`` to see whether p is another.

    Notes
    -----
    The search is not told p as a report. It tries a lattice over the simplex, corners and middles of edges included,
    and improves the best few points, far from each other, by line searches from face to face that move mass from one
    class to another, and along the sum of the last such moves. Where the expected cost at its minimum is at most its
    curvature, alike in all directions, and nothing traps the search, the report is accurate to about 1e-7: a smaller
    move changes the cost by less than its rounding. Rules that are sums over classes of a convex function of one
    probability, finite above 0, and smooth convex ones cannot trap it, though a narrow valley may end it early; any
    other may. The work grows faster than K^3.

    Examples
    --------
    >>> from xent.elicitation import elicited
    >>> from xent.scoring import brier_score
    >>> elicited(brier_score, [0.5, 0.3, 0.2]).round(6)
    array([0.5, 0.3, 0.2])
    """
    _callable(rule)
    p = probabilities(target_probs, "target_probs", -1).astype(np.float64)
    if p.shape[-1] > _CLASSES:
        raise ValueError(
            f"target_probs: expected at most {_CLASSES} classes to search over, got shape {p.shape}"
        )
    out = np.empty_like(p)
    for index in np.ndindex(p.shape[:-1]):
        out[index] = _minimise(rule, p[index])
    return out


# How many points of the lattice are improved, how many it has at most, and how far apart the former are.
_STARTS, _LATTICE, _APART = 4, 3000, 0.2
# The smallest lattice has K (K + 1) / 2 points of K numbers each.
_CLASSES = 500
# A line search looks at this many points of its segment, and then again between the neighbours of the best.
_POINTS, _ZOOMS = 33, 7
_SWEEPS = 200
# Differences of costs below this fraction are rounding.
_ROUNDING = 1e-13


def _minimise(rule: Rule, p: Floats) -> Floats:
    """Return the cheapest report found under one distribution of outcomes."""
    if p.size == 1:
        return np.ones(1)
    candidates = _lattice(p.size)
    cost = _expected(rule, p, candidates)
    if not (cost < np.inf).any():
        raise ValueError("rule: expected a finite cost for some report, got inf for each that was tried")
    best: Floats = candidates[0]
    lowest = math.inf
    for start in _starts(candidates, cost):
        found, value = _descend(rule, p, candidates[start], float(cost[start]))
        # One that is lower by rounding only is the same minimum, or ties with it: keep the first.
        if lowest == math.inf or value < lowest - _ROUNDING * max(1.0, abs(lowest)):
            best, lowest = found, value
    return best


def _starts(candidates: Floats, cost: Floats) -> Iterator[int]:
    """Yield the cheapest candidates, each away from those before it."""
    chosen: list[int] = []
    for k in np.argsort(cost, kind="stable"):
        if not cost[k] < np.inf or len(chosen) == _STARTS:
            return
        if all(np.abs(candidates[k] - candidates[other]).sum() >= 2 * _APART for other in chosen):
            chosen.append(int(k))
            yield int(k)


def _descend(rule: Rule, p: Floats, q: Floats, value: float) -> tuple[Floats, float]:
    """Move mass between classes until no move lowers the cost."""
    pairs = list(combinations(range(p.size), 2))
    for _ in range(_SWEEPS):
        before, cost = q, value
        for i, j in pairs:
            move = np.zeros(p.size)
            move[i], move[j] = 1.0, -1.0
            q, value = _line_search(rule, p, q, value, move)
        # Moves between two classes zigzag along a narrow valley; their sum points along it.
        q, value = _line_search(rule, p, q, value, q - before)
        if cost - value <= 1e-15 * abs(cost) or np.abs(q - before).max() < 1e-9:
            break
    return q, value


def _line_search(rule: Rule, p: Floats, q: Floats, value: float, move: Floats) -> tuple[Floats, float]:
    """Return the cheapest report on the segment that `move` cuts through the simplex at q, and its cost."""
    falling, rising = move < 0, move > 0
    if not (falling.any() and rising.any()):
        return q, value
    low = -float((q[rising] / move[rising]).min())
    high = float((q[falling] / -move[falling]).min())
    best = q
    for _ in range(_ZOOMS):
        if not low < high < math.inf:
            break
        steps = np.linspace(low, high, _POINTS)
        # Rounding leaves 1e-17, of either sign, where a class is emptied.
        line = np.maximum(q + steps[:, None] * move, 0.0)
        line[line < 1e-15] = 0.0
        line /= line.sum(axis=1, keepdims=True)
        cost = _expected(rule, p, line)
        k = int(np.argmin(cost))
        if cost[k] < value:
            best, value = line[k], float(cost[k])
        low, high = float(steps[max(k - 1, 0)]), float(steps[min(k + 1, _POINTS - 1)])
    return best, value


@cache
def _lattice(classes: int) -> Floats:
    """Return points all over the simplex: the centre, a lattice, and that lattice half-way to the centre.

    The number of steps along an edge is even, so that the middles of the edges belong to the lattice.
    """
    steps = 2
    while steps < 200 and math.comb(steps + 2 + classes - 1, classes - 1) <= _LATTICE:
        steps += 2
    # Stars and bars: choose where the classes are separated.
    bars = np.array(list(combinations(range(steps + classes - 1), classes - 1)))
    ends = np.full((len(bars), 1), steps + classes - 1)
    points = (np.diff(np.hstack([np.full_like(ends, -1), bars, ends]), axis=1) - 1) / steps
    centre = np.full((1, classes), 1 / classes)
    lattice: Floats = np.vstack([centre, (points + centre) / 2, points])
    return lattice


def _expected(rule: Rule, p: Floats, report: Floats) -> Floats:
    """Sum probability times cost over the outcomes; what cannot happen costs nothing."""
    shape = report.shape[:-1]
    total = np.zeros(shape)
    for k in range(report.shape[-1]):
        share = p[..., k]
        if not (share > 0).any():
            continue
        # The rule gets copies: one that works in place would change what is still to be asked.
        cost = any_array(rule(report.copy(), np.full(shape, k)), "rule")
        if cost.dtype.kind not in "biuf":
            raise TypeError(f"rule: expected costs that are numbers, got dtype {cost.dtype}")
        cost = cost.astype(np.float64)
        if cost.shape != shape:
            raise ValueError(f"rule: expected costs of shape {shape}, one a report, got {cost.shape}")
        with np.errstate(all="ignore"):
            total += np.where(share > 0, share * cost, 0.0)
    if np.isnan(total).any():
        where = first_true(np.isnan(total))
        raise ValueError(f"rule: expected costs that are numbers, got nan for the report {report[where]}")
    return total


def _callable(rule: Rule) -> None:
    if not callable(rule):
        raise TypeError(f"rule: expected a scoring rule, rule(probs, targets), got {shown(rule)}")
