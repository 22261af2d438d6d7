"""Exercises of chapter 16, the same loss in other clothes."""

from __future__ import annotations

from typing import Any

import numpy as np

from xent.losses import binary_cross_entropy
from xent.numerics import log_softmax, softmax
from xent_book.exercises._check import Exercise


def _preferences() -> list[tuple[Any, ...]]:
    """Summed log-probabilities (policy, reference; chosen, rejected) of some pairs, and beta; one is far off."""
    rng = np.random.default_rng(0)
    draws = [tuple(-scale * rng.exponential(size=(4, n))) for n, scale in ((1, 3.0), (5, 20.0), (3, 900.0))]
    return [(*draw, beta) for draw, beta in zip(draws, (0.1, 0.5, 2.0), strict=True)]


def _preferred(a: Any, b: Any, a0: Any, b0: Any, beta: Any) -> Any:
    return binary_cross_entropy(beta * ((a - a0) - (b - b0)), np.ones(np.shape(a)))


def _frequencies() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(1)
    sizes = ((2, 1), (4, 3), (10, 2))
    return [(rng.normal(size=(n, k)), *rng.dirichlet(np.ones(k), size=2)) for k, n in sizes]


# Nats of each token, and the text; two have characters of several bytes.
TEXTS = ((2.0, 1.5, 0.5), "a loss"), ((3.2,) * 5, "Überraschung"), ((9.0,), "naïve café")

EXERCISES = (
    Exercise(
        "else-dpo",
        _preferred,
        _preferences,
        "the logit is turned round: chosen minus rejected, and policy minus reference",
        lambda a, b, a0, b0, beta: _preferred(b, a, b0, a0, beta),
        "the reference is missing",
        lambda a, b, a0, b0, beta: _preferred(a, b, 0, 0, beta),
        "beta multiplies the loss: it belongs to the logit",
        lambda a, b, a0, b0, beta: beta * _preferred(a, b, a0, b0, 1),
        "beta divides the log-ratio: it multiplies it",
        lambda a, b, a0, b0, beta: _preferred(a, b, a0, b0, 1 / beta),
        "this is the sum over the pairs",
        lambda a, b, a0, b0, beta: len(a) * _preferred(a, b, a0, b0, beta),
        rtol=1e-10,
    ),
    Exercise(
        "else-prior",
        lambda z, old, new: softmax(z + np.log(new) - np.log(old)),
        _frequencies,
        "the shift is turned round: the old frequencies are in the logits, take them out",
        lambda z, old, new: softmax(z + np.log(old) - np.log(new)),
        "the old frequencies are still in it",
        lambda z, old, new: softmax(z + np.log(new)),
        "this is for classes that are all alike: the new frequencies are missing",
        lambda z, old, new: softmax(z - np.log(old)),
        "the frequencies are added, not their logarithms",
        lambda z, old, new: softmax(z + new - old),
        "probabilities have to sum to one: normalise",
        lambda z, old, new: softmax(z) * new / old,
        "these are log-probabilities",
        lambda z, old, new: log_softmax(z + np.log(new / old)),
        rtol=1e-10,
    ),
    Exercise(
        "else-bits",
        lambda nats, text: nats.sum() / np.log(2) / len(text.encode()),
        lambda: [(np.array(nats), text) for nats, text in TEXTS],
        "these are nats per byte: divide by log 2",
        lambda nats, text: nats.sum() / len(text.encode()),
        "this divides by characters: some take several bytes",
        lambda nats, text: nats.sum() / np.log(2) / len(text),
        "these are bits per token",
        lambda nats, text: nats.mean() / np.log(2),
        "the mean over tokens is divided again: take the sum",
        lambda nats, text: nats.mean() / np.log(2) / len(text.encode()),
        "multiplied by log 2: a nat is more than a bit",
        lambda nats, text: nats.sum() * np.log(2) / len(text.encode()),
        "this is the perplexity",
        lambda nats, text: np.exp(nats.mean()),
        rtol=1e-10,
    ),
)
