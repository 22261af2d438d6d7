"""What the sources say about distillation, and what is true."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.mark.slow
@pytest.mark.erratum("3.12")
def test_the_input_stands_once_in_the_expectation():
    """With P_X outside the logarithm twice the weights are P_X squared, and a restricted model moves."""
    p_x = np.array([0.8, 0.2])
    conditional = np.array([[0.9, 0.1], [0.2, 0.8]])  # of the label, for each input
    grid = np.linspace(0.001, 0.999, 999)
    # A student that cannot see the input: one distribution (q, 1 - q) for both.
    loss = -(conditional[:, :1] * np.log(grid) + conditional[:, 1:] * np.log(1 - grid))
    right = grid[np.argmin(p_x @ loss)]
    printed = grid[np.argmin(p_x**2 @ loss)]
    draws = np.random.default_rng(0)
    x = draws.choice(2, 200_000, p=p_x)
    sampled = grid[np.argmin(np.bincount(x) @ loss)]  # the empirical mean, inputs drawn from P_X
    assert abs(right - p_x @ conditional[:, 0]) < 1e-3
    assert abs(sampled - right) < 5e-3
    assert abs(printed - right) > 0.05
