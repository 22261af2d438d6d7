"""The page with all losses in one table."""

from __future__ import annotations

import re
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest

import xent

CHAPTERS = Path(__file__).resolve().parents[2] / "chapters"
NAMED = sorted(set(re.findall(r"`xent\.([\w.]+)`", (CHAPTERS / "chain.md").read_text(encoding="utf-8"))))


@pytest.mark.parametrize("name", NAMED)
def test_a_function_of_the_chain_exists(name: str) -> None:
    assert callable(attrgetter(name)(xent))


def test_each_line_of_the_chain_follows_from_another() -> None:
    """Of random logits: the slopes by differences, two classes from the sigmoid, one-hot targets, temperature."""
    rng = np.random.default_rng()
    for classes in (2, 3, 50):
        z, y, temperature = rng.normal(0, 4, classes), int(rng.integers(classes)), float(rng.uniform(0.5, 5))
        t, onehot, teacher = rng.dirichlet(np.ones(classes)), np.eye(classes)[y], rng.normal(0, 3, classes)

        def slope(loss, z=z, classes=classes):
            steps = 1e-5 * np.eye(classes)
            return np.array([(loss(z + h) - loss(z - h)) / 2e-5 for h in steps])

        def soft(z, t=t):
            return np.log(np.exp(z).sum()) * t.sum() - t @ z

        p = np.exp(z) / np.exp(z).sum()
        assert np.isclose(soft(z), -np.sum(t * np.log(p)))
        assert np.allclose(slope(soft), p - t, atol=1e-6)
        assert np.isclose(xent.soft_cross_entropy(z, onehot), xent.cross_entropy(z[None], [y]))
        assert np.isclose(xent.soft_cross_entropy(z, t), soft(z))
        q = xent.softmax(teacher / temperature)

        def softened(z, temperature=temperature, q=q):
            return temperature**2 * float(xent.soft_cross_entropy(z / temperature, q))

        distil = slope(softened)
        assert np.allclose(distil, temperature * (xent.softmax(z / temperature) - q), atol=1e-5)
        if classes == 2:
            pair = np.array([0.0, z[1]])
            assert np.isclose(xent.binary_cross_entropy(z[1], float(y)), xent.cross_entropy(pair[None], [y]))
