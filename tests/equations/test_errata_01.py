"""What the sources print about the binary loss, and what is true: each old statement fails here."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.mark.erratum("3.3")
def test_the_loss_it_names_is_a_mean() -> None:
    """The post prints a sum and calls it BCELoss; torch's default is the mean."""
    import torch

    p, y = torch.tensor([0.9, 0.2, 0.6]), torch.tensor([1.0, 0.0, 0.0])
    each = -(y * p.log() + (1 - y) * (1 - p).log())
    default = torch.nn.BCELoss()(p, y)
    assert torch.isclose(default, each.mean())
    assert not torch.isclose(default, each.sum())
    assert torch.isclose(torch.nn.BCELoss(reduction="sum")(p, y), each.sum())


@pytest.mark.erratum("3.3")
def test_the_sum_needs_brackets() -> None:
    """Read as printed, without brackets, the sum ends before the second term, which then has no index."""
    p, y = np.array([0.9, 0.2, 0.6]), np.array([1, 0, 0])
    both = -np.sum(y * np.log(p) + (1 - y) * np.log(1 - p))
    first_only = [-np.sum(y * np.log(p)) + (1 - y[i]) * np.log(1 - p[i]) for i in range(3)]
    likelihood = np.prod(p**y * (1 - p) ** (1 - y))
    assert np.isclose(both, -np.log(likelihood), rtol=1e-12)
    assert not np.isclose(first_only, -np.log(likelihood), rtol=1e-3).any()
