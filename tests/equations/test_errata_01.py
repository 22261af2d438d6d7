"""What the sources print about the binary loss, and what is true: each old statement fails here."""

from __future__ import annotations

import numpy as np
import pytest

from adversary import refuted


@pytest.mark.erratum("3.3", "slip")
def test_the_loss_it_names_is_a_mean() -> None:
    """The post prints a sum and calls it BCELoss; torch's default is the mean."""
    import torch

    p, y = torch.tensor([0.9, 0.2, 0.6]), torch.tensor([1.0, 0.0, 0.0])
    each = -(y * p.log() + (1 - y) * (1 - p).log())
    default = torch.nn.BCELoss()(p, y)
    assert torch.isclose(default, each.mean())
    with refuted("3.3: the linked loss is a sum"):
        assert torch.isclose(default, each.sum())
    assert torch.isclose(torch.nn.BCELoss(reduction="sum")(p, y), each.sum())
    z, label = torch.tensor([[0.3, -1.0, 2.0], [1.0, 0.0, -1.0]]), torch.tensor([0, 2])
    each = -torch.log_softmax(z, 1)[[0, 1], label]
    assert torch.isclose(torch.nn.CrossEntropyLoss()(z, label), each.mean())
    with refuted("3.3: so is that of the softmax model"):
        assert torch.isclose(torch.nn.CrossEntropyLoss()(z, label), each.sum())


@pytest.mark.erratum("3.3", "slip")
def test_the_sum_needs_brackets() -> None:
    """Read as printed, without brackets, the sum ends before the second term, which then has no index."""
    p, y = np.array([0.9, 0.2, 0.6]), np.array([1, 0, 0])
    both = -np.sum(y * np.log(p) + (1 - y) * np.log(1 - p))
    first_only = [-np.sum(y * np.log(p)) + (1 - y[i]) * np.log(1 - p[i]) for i in range(3)]
    likelihood = np.prod(p**y * (1 - p) ** (1 - y))
    assert np.isclose(both, -np.log(likelihood), rtol=1e-12)
    with refuted("3.3: as printed, without brackets"):
        assert np.isclose(first_only, -np.log(likelihood), rtol=1e-3).any()
    one_logarithm = -np.sum(y * np.log(p) + (1 - y) * (1 - p))
    with refuted("3.3: as printed, with one logarithm"):
        assert np.isclose(one_logarithm, -np.log(likelihood), rtol=1e-3)
