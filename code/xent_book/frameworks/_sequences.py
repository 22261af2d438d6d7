"""What the mean over a batch of ragged sequences is: over tokens, or over sequences first."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from xent.numerics import log_softmax, softmax

Array: TypeAlias = "np.ndarray[Any, Any]"

# Five positions, seven tokens; the lengths differ, and stay positive once a loss has shifted its labels.
LENGTHS = ((5, 4, 2), (3, 5, 2), (2, 4, 5))
STEPS, VOCABULARY = 5, 7
MASKS = ("mask", "attention_mask", "loss_mask", "padding_mask")
MEANS: dict[str, Callable[[Array, Array], Any]] = {
    "over the valid tokens": lambda rows, counts: rows.sum() / counts.sum(),
    "a mean of sequence means": lambda rows, counts: (rows / counts).mean(),
    "over all positions, padding included": lambda rows, counts: rows.sum() / (len(rows) * STEPS),
    "over the sequences": lambda rows, counts: rows.sum() / len(rows),
    "a sum": lambda rows, counts: rows.sum(),
    "one mean for each sequence": lambda rows, counts: rows / counts,
    "one sum for each sequence": lambda rows, counts: rows,
}


@dataclass(frozen=True)
class Found:
    """A reading of a loss of sequences that predicts every batch."""

    first: str
    reads: str
    layout: str
    mean: str
    shifts: bool
    padding: str

    @property
    def text(self) -> str:
        """The finding in words."""
        shift = "shifts the labels itself" if self.shifts else "compares position t with label t"
        return f"{self.mean} ({self.padding}); {shift}"


def find_sequences(ask: Callable[..., Array | None], names: set[str]) -> Found | None:
    """Return the one reading that predicts a loss on three batches of ragged sequences, or None.

    Parameters
    ----------
    ask : callable
        Takes "prediction" or "target" (what comes first), the prediction of shape (B, T, V) or (B, V, T), the
        labels (B, T) and keyword arguments; returns an array, or None where the loss raises.
    names : set of str
        The names of the loss's arguments.

    Returns
    -------
    Found or None
        None also where two readings predict the same.
    """
    rng = np.random.default_rng(31)
    logits: list[Array] = [rng.normal(0.3, 1.2, (len(n), STEPS, VOCABULARY)) for n in LENGTHS]
    labels = [rng.integers(1, VOCABULARY, (len(n), STEPS)) for n in LENGTHS]
    valid = [np.arange(STEPS) < np.array(n)[:, None] for n in LENGTHS]
    kinds = {"logits": logits, "probabilities": list(map(softmax, logits))}
    kinds["log-probabilities"] = list(map(log_softmax, logits))

    ways: list[tuple[str, int, dict[str, Any]]] = [
        (f"label {pad} left out", pad, {}) for pad in (-100, -1, 0)
    ]
    if name := next((n for n in ("ignore_index", "ignore_class") if n in names), None):
        ways.insert(0, (f"{name}= left out", -7, {name: -7}))
    ways = [*((f"{n}=", 0, {n: True}) for n in MASKS if n in names), *ways]
    for (padding, pad, options), first, axis in itertools.product(ways, ("prediction", "target"), (2, 1)):
        for reads, xs in kinds.items():
            seen = []
            for x, y, v in zip(xs, labels, valid, strict=True):
                given = {key: v.astype(float) if value is True else value for key, value in options.items()}
                moved = np.ascontiguousarray(np.moveaxis(x, 2, axis))
                seen.append(ask(first, moved, np.where(v, y, pad), **given))
                if seen[-1] is None:
                    break
            if len(seen) < len(xs) or seen[-1] is None:
                continue
            fits = [
                (mean, shifts)
                for mean, shifts in itertools.product(MEANS, (False, True))
                if all(
                    _predicted(value, mean, shifts, log_softmax(z), y, v)
                    for value, z, y, v in zip(seen, logits, labels, valid, strict=True)
                )
            ]
            if len(fits) == 1:
                return Found(first, reads, "last" if axis == 2 else "second", *fits[0], padding)
    return None


def _predicted(value: Array | None, mean: str, shifts: bool, log_p: Array, y: Array, valid: Array) -> bool:
    if shifts:
        log_p, y, valid = log_p[:, :-1], y[:, 1:], valid[:, 1:]
    losses = np.where(valid, -np.take_along_axis(log_p, y[..., None], -1)[..., 0], 0.0)
    want = np.asarray(MEANS[mean](losses.sum(1), valid.sum(1)))
    return value is not None and value.shape == want.shape and bool(np.allclose(value, want, 2e-4, 1e-6))
