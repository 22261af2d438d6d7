"""The exercises of chapter 12, soft targets."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import xlogy

from xent.numerics import log_softmax
from xent_book.exercises._check import Exercise


def _other_inputs() -> list[tuple[Any, ...]]:
    """Reports of models smoothed by eta, and eta."""
    rng = np.random.default_rng(0)
    out: list[tuple[Any, ...]] = []
    for classes, eta in ((2, 0.1), (3, 0.2), (10, 0.3)):
        p = rng.dirichlet(np.ones(classes), size=4)
        out.append(((1 - eta) * p + eta * (1 - p) / (classes - 1), eta))
    return out


def _unmix(q: Any, eps: float) -> Any:
    return (q - eps / q.shape[-1]) / (1 - eps)


def _token_inputs() -> list[tuple[Any, ...]]:
    """Log-probabilities, distributions with zeros among them, masks."""
    rng = np.random.default_rng(0)
    out: list[tuple[Any, ...]] = []
    for shape in ((2, 3, 4), (3, 4, 6)):
        log_q = log_softmax(rng.normal(size=shape))
        p = rng.dirichlet(np.ones(shape[-1]), size=shape[:-1])
        p[0, 0] = np.eye(shape[-1])[1]
        mask = rng.random(shape[:-1]) < 0.7
        mask[0, 0], mask[1, 0] = True, False
        out.append((log_q, p, mask))
    return out


def _terms(log_q: Any, p: Any) -> Any:
    return (xlogy(p, p) - p * log_q).sum(axis=-1)


def _token_mean(log_q: Any, p: Any, mask: Any) -> Any:
    return _terms(log_q, p)[mask].sum() / mask.sum()


EXERCISES: tuple[Exercise, ...] = (
    Exercise(
        "soft-other",
        lambda q, eta: _unmix(q, eta * q.shape[-1] / (q.shape[-1] - 1)),
        _other_inputs,
        atol=1e-12,
        mistakes={
            "this takes eta for eps: the label keeps 1 - eta here, so eps is eta K / (K - 1)": _unmix,
            "the floor is right, the divisor is not: 1 - eta K / (K - 1)": (
                lambda q, eta: (q - eta / (q.shape[-1] - 1)) / (1 - eta)
            ),
            "this smooths once more: solve the equation for the distribution": lambda q, eta: (
                (1 - eta) * q + eta * (1 - q) / (q.shape[-1] - 1)
            ),
        },
    ),
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
        atol=1e-12,
        mistakes={
            "the smoothing is not in it: a deviation shrinks by 1 - eps": lambda t, m, eps: (1 - t @ t) / m,
            "the deviation shrinks by 1 - eps, so its square shrinks by (1 - eps)**2": lambda t, m, eps: (
                (1 - eps) * (1 - t @ t) / m
            ),
            "the variance of one vote is 1 minus the sum of t_k squared, not that sum": lambda t, m, eps: (
                (1 - eps) ** 2 * (t @ t) / m
            ),
            "the mean of m votes has 1/m of the variance of one: m is missing": lambda t, m, eps: (
                (1 - eps) ** 2 * (1 - t @ t)
            ),
            "this is the distance from t, bias included: that from the mean is meant": (
                lambda t, m, eps: (1 - eps) ** 2 * (1 - t @ t) / m + eps**2 * ((t - 1 / len(t)) ** 2).sum()
            ),
        },
    ),
    Exercise(
        "soft-tokens",
        _token_mean,
        _token_inputs,
        mistakes={
            "0 log 0 came out as nan: use xlogy": (lambda log_q, p, mask: np.nan),
            "this divides by all elements, as kl_div's default mean does": (
                lambda log_q, p, mask: _token_mean(log_q, p, mask) / p.shape[-1]
            ),
            "this divides by B only, as batchmean does": (
                lambda log_q, p, mask: _terms(log_q, p)[mask].sum() / len(p)
            ),
            "this divides by all tokens: divide by those that count": lambda log_q, p, mask: (
                _terms(log_q, p) * mask
            ).mean(),
            "the mask is not in it": lambda log_q, p, mask: _terms(log_q, p).mean(),
            "this is the cross-entropy: the entropy of p is still in it": lambda log_q, p, mask: (
                -(p * log_q).sum(axis=-1)[mask].mean()
            ),
            "this is KL(q || p), infinite where p has a zero": (lambda log_q, p, mask: np.inf),
            "this is a mean of the sequences' means: short sequences count too much": lambda log_q, p, mask: (
                (_terms(log_q, p) * mask).sum(1) / mask.sum(1)
            ).mean(),
        },
    ),
)
