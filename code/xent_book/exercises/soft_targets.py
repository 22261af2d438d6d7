"""The exercises of chapter 12, soft targets."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import rel_entr, xlogy

from xent.numerics import log_softmax
from xent_book.exercises._check import Exercise


def _token_inputs() -> list[tuple[Any, ...]]:
    """Log-probabilities, distributions with zeros and a tiny entry among them, masks."""
    rng = np.random.default_rng(0)
    out: list[tuple[Any, ...]] = []
    # The width of the logits: at 0.05 q is so near p that an epsilon shows, at 400 exp(log_q) may be zero.
    for shape, width in (((2, 3, 4), 1.0), ((3, 4, 6), 1.0), ((2, 3, 4), 0.05), ((2, 3, 4), 400.0)):
        p = rng.dirichlet(np.ones(shape[-1]), size=shape[:-1])
        p[0, 0], p[0, 1, 2:4] = np.eye(shape[-1])[1], (0.0, 1e-10)
        p /= p.sum(axis=-1, keepdims=True)
        centre = np.log(p, where=p > 0, out=np.full(shape, -40.0)) if width < 1 else 0.0
        log_q = log_softmax(centre + width * rng.normal(size=shape))
        mask = rng.random(shape[:-1]) < 0.7
        mask[0, :2], mask[1, 0] = True, False
        out.append((log_q, p, mask))
    return out


def _terms(log_q: Any, p: Any) -> Any:
    return (xlogy(p, p) - p * log_q).sum(axis=-1)


def _token_mean(log_q: Any, p: Any, mask: Any) -> Any:
    return _terms(log_q, p)[mask].sum() / mask.sum()


EXERCISES: tuple[Exercise, ...] = (
    Exercise(
        "soft-noise",
        lambda t, m, eps: (1 - eps) ** 2 * (1 - t @ t) / m,
        # Distributions, numbers of votes, smoothings.
        lambda: [
            (np.array([0.5, 0.3, 0.2]), 1, 0.0),
            (np.array([0.5, 0.3, 0.2]), 4, 0.1),
            (np.array([0.9, 0.1]), 3, 0.4),
            (np.array([1.0, 0.0, 0.0]), 2, 0.2),
        ],
        "the smoothing is not in it: a deviation shrinks by 1 - eps",
        lambda t, m, eps: (1 - t @ t) / m,
        "the deviation shrinks by 1 - eps, so its square shrinks by (1 - eps)**2",
        lambda t, m, eps: (1 - eps) * (1 - t @ t) / m,
        "the variance of one vote is 1 minus the sum of t_k squared, not that sum",
        lambda t, m, eps: (1 - eps) ** 2 * (t @ t) / m,
        "the mean of m votes has 1/m of the variance of one: m is missing",
        lambda t, m, eps: (1 - eps) ** 2 * (1 - t @ t),
        "these votes are drawn from the smoothed distribution: draw from t and smooth the shares",
        lambda t, m, eps: (1 - (((1 - eps) * t + eps / len(t)) ** 2).sum()) / m,
        "this is the distance from t, bias included: that from the mean is meant",
        lambda t, m, eps: (1 - eps) ** 2 * (1 - t @ t) / m + eps**2 * ((t - 1 / len(t)) ** 2).sum(),
        atol=1e-12,
    ),
    Exercise(
        "soft-tokens",
        _token_mean,
        _token_inputs,
        "0 log 0 came out as nan: use xlogy",
        lambda log_q, p, mask: np.nan,
        "exp(log_q) is zero where log_q is very low: keep the logarithm",
        lambda log_q, p, mask: rel_entr(p, np.exp(log_q)).sum(axis=-1)[mask].mean(),
        "this divides by all elements, as kl_div's default mean does",
        lambda log_q, p, mask: _token_mean(log_q, p, mask) / p.shape[-1],
        "this divides by B only, as batchmean does",
        lambda log_q, p, mask: _terms(log_q, p)[mask].sum() / len(p),
        "this divides by all tokens: divide by those that count",
        lambda log_q, p, mask: (_terms(log_q, p) * mask).mean(),
        "the mask is not in it",
        lambda log_q, p, mask: _terms(log_q, p).mean(),
        "this is the cross-entropy: the entropy of p is still in it",
        lambda log_q, p, mask: -(p * log_q).sum(axis=-1)[mask].mean(),
        "this is KL(q || p), infinite where p has a zero",
        lambda log_q, p, mask: (np.exp(log_q) * (log_q - np.log(p))).sum(axis=-1)[mask].mean(),
        lambda log_q, p, mask: rel_entr(np.exp(log_q), p).sum(axis=-1)[mask].mean(),
        "this is a mean of the sequences' means: short sequences count too much",
        lambda log_q, p, mask: ((_terms(log_q, p) * mask).sum(1) / mask.sum(1)).mean(),
    ),
)
