"""Chapter 08: what `diagnose` and the frameworks say, beside the rows of test_read.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from xent import diagnose
from xent_book import behaviours

WorstError = Callable[..., None]
Loss = Callable[..., Any]


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
