"""Chapter 08: what `diagnose` and the frameworks say, beside the rows of test_read.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

from xent import Diagnosis, diagnose
from xent_book import behaviours

F, nn = torch.nn.functional, torch.nn
WorstError = Callable[..., None]
Loss = Callable[..., Any]

READINGS: dict[str, Loss] = {
    "cross-entropy": F.cross_entropy,
    "sum": nn.CrossEntropyLoss(reduction="sum"),
    "KL, mean": nn.KLDivLoss(),
    "KL, batchmean": nn.KLDivLoss(reduction="batchmean"),
    "binary": nn.BCEWithLogitsLoss(),
    "binary, probabilities": nn.BCELoss(),
    "sign and unit": lambda z, t: F.cross_entropy(z, t) / -np.log(2),
}


def printed(found: Diagnosis, x: torch.Tensor, t: torch.Tensor) -> float:
    """Equation eq-which-reading, with p and the fields of the diagnosis; a loop in plain Python."""
    divisor = {"nothing": 1, "N": x.shape[0], "K": x.shape[1], "N*K": x.numel()}[found.denominator]
    unit = {"nats": mpmath.mpf(1), "bits": 1 / mpmath.log(2)}[found.unit]
    total = mpmath.mpf(0)
    for row, target in zip(x.tolist(), t.tolist(), strict=True):
        if found.reads == "logits" and found.family.startswith("binary"):
            p = [1 / (1 + mpmath.exp(-v)) for v in row]
        elif found.reads == "logits":
            p = [mpmath.exp(v) / sum(mpmath.exp(u) for u in row) for v in row]
        else:
            p = [mpmath.exp(v) if found.reads == "log-probabilities" else mpmath.mpf(v) for v in row]
        for pk, tk in zip(p, target, strict=True):
            total -= tk * mpmath.log(pk)
            if found.family.startswith("KL"):
                total += tk * mpmath.log(tk)
            if found.family.startswith("binary"):
                total -= (1 - tk) * mpmath.log(1 - pk)
    return float(found.sign * unit / divisor * total)


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")  # KLDivLoss says what is tested here
@pytest.mark.equation("eq-which-reading", by="framework")
@pytest.mark.parametrize("name", READINGS)
def test_the_reading_predicts_the_loss(name: str, worst_error: WorstError) -> None:
    """On a batch of another size than those that diagnose uses."""
    loss = READINGS[name]
    found = diagnose(loss)
    rng = np.random.default_rng(3)
    z, t = torch.from_numpy(rng.normal(size=(7, 4))), torch.from_numpy(rng.dirichlet(np.ones(4), 7))
    x = {"logits": z, "probabilities": z.softmax(1), "log-probabilities": z.log_softmax(1)}[found.reads]
    worst_error(loss(x, t).item(), printed(found, x, t), rtol=1e-12, why="sums of 28 terms in float64")


def clipped_at(epsilon: float) -> Loss:
    return lambda p, y: -np.log(np.maximum(p, epsilon))[np.arange(len(y)), y]


@pytest.mark.equation("eq-which-clip", by="framework")
@pytest.mark.parametrize("epsilon", [1e-3, 1e-7, 1e-15])
def test_an_impossible_event_tells_the_clip(epsilon: float, worst_error: WorstError) -> None:
    cost = clipped_at(epsilon)(np.array([[0.0, 1.0]]), np.array([0]))[0]
    worst_error(np.exp(-cost), epsilon, rtol=1e-12, why="a logarithm and its inverse")
    found = diagnose(clipped_at(epsilon))
    worst_error(found.epsilon, epsilon, rtol=1e-12, why="a logarithm and its inverse")
    assert not np.isclose(np.exp(cost), epsilon)


@pytest.mark.equation("eq-which-clip", by="framework")
def test_the_clip_of_keras(worst_error: WorstError) -> None:
    keras = behaviours.keras()
    cost = keras.losses.CategoricalCrossentropy()(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]))
    epsilon = keras.backend.epsilon()
    worst_error(np.exp(-float(cost)), epsilon, rtol=1e-5, why="the cost in float32")
