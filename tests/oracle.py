"""What the functions of `xent` should return, to 40 digits, and the logits that they are asked about.

The oracle takes the floats as exact numbers and works in mpmath with 140 bits; test_accuracy.py checks it
against Python's decimal.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, lru_cache

import mpmath as mp
import numpy as np
from numpy.typing import DTypeLike, NDArray

mp.mp.prec = 140
Array = NDArray[np.floating]
INF = mp.mpf("inf")

DTYPES = ("float64", "float32", "float16")
SCALES = (0.1, 1.0, 10.0, 100.0, 1e3, 1e4)
# 64 and 65 stand on either side of the change of layout (`_blocks.TRANSPOSE_UP_TO`).
CLASSES = (1, 2, 3, 10, 64, 65, 1000)


def sweep(classes: int, dtype: DTypeLike) -> Array:
    """Rows of logits: small to huge, plain, confident, tied, partly and almost wholly -inf."""
    rng = np.random.default_rng(classes)
    many = 4 if classes < 100 else 1
    rows = []
    for scale in SCALES:
        plain = scale * rng.normal(size=(many, classes))
        confident = plain.copy()
        confident[:, 0] = plain.max(axis=1) + rng.uniform(0, 90, many)
        mixed = plain.copy()
        mixed[rng.random(mixed.shape) < 0.3] = -np.inf
        mixed[:, -1] = scale
        # A maximum of zero leaves log_sum_exp nothing but the small term; rint makes ties.
        rows += [plain, confident, confident - confident.max(axis=1, keepdims=True), mixed, np.rint(plain)]
    rows.append(np.array([0.0, 1e4, -1e4])[:, None] * np.ones(classes))
    last = np.full((1, classes), -np.inf)
    last[0, -1] = 3.0
    # A float16 ends at 65,504, and 4e4 leaves room for differences; the sweep is meant to be in its range.
    return np.clip(np.concatenate([*rows, last]), -np.inf, 4e4).astype(dtype)


def exact(values: Iterable[float]) -> list[mp.mpf]:
    return [mp.mpf(float(v)) for v in values]


@lru_cache(maxsize=4096)
def _negative_log_softmax(z: tuple[float, ...]) -> list[mp.mpf]:
    exact_z = exact(z)
    top = max(exact_z)
    e = [mp.exp(v - top) for v in exact_z]
    log_total = mp.log(mp.fsum(e))
    losses = [top - v + log_total for v in exact_z]
    # For the largest logit log_total alone is left, and it may be too close to log 1 even for 140 bits.
    first = exact_z.index(top)
    losses[first] = mp.log1p(mp.fsum(e[:first] + e[first + 1 :]))
    return losses


def negative_log_softmax(row: Iterable[float]) -> list[mp.mpf]:
    """-log p_k of each class k of a row of logits."""
    return _negative_log_softmax(tuple(float(v) for v in row))


def log_sum_exp(row: Iterable[float]) -> mp.mpf:
    """log(sum_k exp(z_k))."""
    z = exact(row)
    return max(z) + negative_log_softmax(row)[z.index(max(z))]


def softplus(z: mp.mpf) -> mp.mpf:
    return mp.log1p(mp.exp(z)) if z < 0 else z + mp.log1p(mp.exp(-z))


def epsilons(got: float, true: mp.mpf, dtype: DTypeLike, scale: mp.mpf | None = None) -> float:
    """Error in machine epsilons of `dtype`, relative to `scale` (the true value).

    Below the smallest normal number there is no relative accuracy to be had: the error is taken relative to
    that number, so that one epsilon of it is one subnormal step.
    """
    if mp.isinf(true) or mp.isnan(mp.mpf(float(got))):
        return 0.0 if float(got) == float(true) else float("inf")
    info = np.finfo(dtype)
    size = max(abs(true if scale is None else scale), mp.mpf(float(info.tiny)))
    return float(abs(mp.mpf(float(got)) - true) / size / mp.mpf(float(info.eps)))


@cache
def divergence(
    z: tuple[float, ...], v: tuple[float, ...], T: float, direction: str, beta: float
) -> tuple[mp.mpf, list[mp.mpf]]:
    """T^2 times the divergence of softmax(z / T) and a teacher's softmax(v / T), and its gradient by z."""
    rows, t, share = (exact(v), exact(z)), mp.mpf(T), mp.mpf(beta)
    margin = max(max(row) - min(x for x in row if mp.isfinite(x)) for row in rows) / t
    with mp.workdps(60 + int(3 * margin)):
        p, q = ([x / t - mp.log(mp.fsum(mp.exp(y / t) for y in row)) for x in row] for row in rows)

        def kl(a: list[mp.mpf], b: list[mp.mpf]) -> mp.mpf:
            return mp.fsum(mp.exp(x) * (x - y) for x, y in zip(a, b, strict=True) if mp.isfinite(x))

        if direction == "forward":
            return t**2 * kl(p, q), [t * (mp.exp(y) - mp.exp(x)) for x, y in zip(p, q, strict=True)]
        if direction == "reverse":
            m, share = p, mp.mpf(0)
        else:
            m = [mp.log(share * mp.exp(x) + (1 - share) * mp.exp(y)) for x, y in zip(p, q, strict=True)]
        of_q = kl(q, m)
        slopes = [
            t * mp.exp(x) * (x - y - of_q) if mp.isfinite(x) else mp.mpf(0) for x, y in zip(q, m, strict=True)
        ]
        return t**2 * (share * kl(p, m) + (1 - share) * of_q), [(1 - share) * slope for slope in slopes]
