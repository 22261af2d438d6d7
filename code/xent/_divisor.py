"""The mean of one over a random sum: E[1 / (d + S)], with S the sum of independent, identically distributed sizes."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# The step of the trapezoidal rule in log t, see log_grid. Exact in binary, so that the grid has no rounding.
STEP = 3 / 16


def log_grid(decay: float, mean: float, batch_size: int) -> Array:
    """Nodes t = exp(k STEP) for integrals of exp(-d t) G(t)^(B-1) dt, from 0 to infinity.

    In x = log t the integrand is analytic for |Im x| < pi/2 and its modulus is bounded by its values on the
    real axis, so the trapezoidal rule errs by about exp(-pi^2/STEP), 1e-23. The ends are cut where what is
    left is below 1e-17 of the integral, which is at least 1/(d + (B-1) mean); `decay` is the smallest possible
    d + (B-1) sizes, and `mean` bounds the mean size and d.
    """
    first = math.floor((math.log(1e-18) - math.log(batch_size) - math.log(mean)) / STEP)
    last = math.ceil(
        math.log((45.0 + math.log(mean) + math.log(batch_size) - math.log(decay)) / decay) / STEP
    )
    return np.asarray(np.exp(STEP * np.arange(first, last + 1)))


def expected_inverse(at: Array, sizes: Array, law: Array, batch_size: int) -> Array:
    """E[1 / (d + S)] for each positive d of `at`; S sums B - 1 draws of `sizes`, ascending, with chances `law`.

    The integral of exp(-d t) G(t)^(B-1), with G(t) = E[exp(-size t)], by the trapezoidal rule in log t: to a
    few units in the last place, for any sizes >= 0 and any B.
    """
    if batch_size == 1:
        return np.asarray(1.0 / at)
    possible, share = sizes[law > 0], law[law > 0]
    base, smallest = float(possible[0]), float(at.min())
    total = np.zeros_like(at)
    for t in log_grid(
        smallest + (batch_size - 1) * base, max(float(possible[-1]), float(at.max())), batch_size
    ):
        # log G, with exp(-base t) taken out: what is left is at least P(base), so that its logarithm exists,
        # and log1p keeps the digits that the power of B - 1 would multiply.
        less = float(share @ np.expm1(-(possible - base) * t))
        # Where P(base) is next to nothing, there are more digits in what is left than in what is gone.
        left = math.log1p(less) if less > -0.999 else math.log(float(share @ np.exp(-(possible - base) * t)))
        total += STEP * t * np.exp(-at * t + (batch_size - 1) * (left - base * t))
    return total
