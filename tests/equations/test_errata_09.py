"""What the sources of chapter 09 state wrongly or without its conditions: the old fails, the new passes.

The ids are those of the errata page: 0.x a post on the averaged cross-entropy, 4.x François Fleuret's EE-559
lecture 5.1 (2018).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from xent import scoring
from xent.elicitation import elicited


@pytest.mark.erratum("0.1", "holds")
def test_an_f_divergence_needs_f_of_one_to_be_zero():
    """With f(1) = 0, strictly convex f gives D >= 0, and D = 0 only for P = Q. Without, D >= f(1)."""
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])

    def divergence(f, p, q):
        return float((q * f(p / q)).sum())

    # Without it the statement fails twice: t^2 gives 1 at P = Q, and t^2 - 2 is negative there.
    assert divergence(np.square, p, p) == 1.0
    assert divergence(lambda t: t**2 - 2, p, p) == -1.0
    for f in (np.square, lambda t: t**2 - 2, lambda t: np.exp(t)):
        shifted = lambda t, f=f: f(t) - f(np.ones(()))  # noqa: E731
        assert abs(divergence(shifted, p, p)) < 1e-15
        assert divergence(shifted, p, q) > 0.1
        assert divergence(f, p, q) > float(f(np.ones(())))


@pytest.mark.erratum("4.2", "conditional")
def test_squared_error_on_one_hot_targets_is_strictly_proper():
    """Old: squared error is conceptually wrong for classes. New: its minimiser is the posterior."""
    p = np.array([0.5, 0.3, 0.2])
    np.testing.assert_allclose(elicited(scoring.brier_score, p), p, atol=1e-7)

    # PyTorch's own loss is that score, up to the division by the number of classes.
    def torch_mse(probs, outcome):
        hot = torch.nn.functional.one_hot(torch.tensor(outcome), 3).double()
        return torch.nn.functional.mse_loss(torch.tensor(probs), hot, reduction="none").sum(-1).numpy()

    np.testing.assert_allclose(elicited(torch_mse, p), p, atol=1e-7)
    # A network of one bias vector, trained by gradient descent on drawn labels, reports their frequencies.
    labels = torch.tensor(np.random.default_rng(0).choice(3, size=2000, p=p))
    z = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([z], max_iter=200, tolerance_grad=1e-12, tolerance_change=0.0)
    hot = torch.nn.functional.one_hot(labels, 3).double()

    def closure():
        optimiser.zero_grad()
        loss = torch.nn.functional.mse_loss(z.softmax(0).expand(2000, 3), hot)
        loss.backward()
        return loss

    optimiser.step(closure)
    np.testing.assert_allclose(z.softmax(0).detach().numpy(), hot.mean(0).numpy(), atol=1e-6)
