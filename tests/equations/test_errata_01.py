"""What the sources print about the binary loss, and what is true: each old statement fails here."""

from __future__ import annotations

import numpy as np
import pytest

import xent

GRID = np.linspace(1e-4, 1, 10_000)


def best(loss: np.ndarray) -> float:
    """The probability on the grid with the smallest loss."""
    return float(GRID[np.nanargmin(loss)])


@pytest.mark.erratum("3.2")
def test_a_likelihood_of_zero_has_no_logarithm() -> None:
    """'Always >= 0, so we can look for the maximum of its logarithm': that allows zero, where it breaks."""
    heads, tosses = 3, 4
    p = np.array([0.0, 0.2, 0.75, 1.0])
    likelihood = p**heads * (1 - p) ** (tosses - heads)
    assert (likelihood >= 0).all() and (likelihood == 0).any()
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        logarithm = np.log(likelihood)
    assert not np.isfinite(logarithm).all()
    # Where it is positive the order is kept, and the maximiser with it.
    positive = likelihood > 0
    assert (np.argsort(likelihood[positive]) == np.argsort(logarithm[positive])).all()


@pytest.mark.erratum("3.2")
def test_the_sign_alone_does_not_keep_the_maximum() -> None:
    """Being defined on numbers >= 0 is not enough: a function that does not increase moves the maximum."""
    inside = GRID[GRID < 1]
    likelihood = inside**7 * (1 - inside) ** 3
    moved = inside[((likelihood - 0.5) ** 2).argmax()]
    assert abs(moved - 0.7) > 0.1
    assert abs(inside[np.log(likelihood).argmax()] - 0.7) < 1e-3


@pytest.mark.parametrize("frequency", [0.1, 0.3, 0.45])
@pytest.mark.erratum("3.3")
def test_with_one_logarithm_the_odds_are_fitted(frequency: float) -> None:
    """J as printed, -sum y log p + (1 - y)(1 - p), is minimised at f / (1 - f), and not at f."""
    labels = np.repeat([1, 0], [round(100 * frequency), round(100 * (1 - frequency))])
    f = labels.mean()
    old = -(f * np.log(GRID) + (1 - f) * (1 - GRID))
    with np.errstate(divide="ignore"):
        new = -(f * np.log(GRID) + (1 - f) * np.log(1 - GRID))
    assert abs(best(old) - f) > 1e-2
    assert abs(best(old) - f / (1 - f)) < 1e-3
    assert abs(best(new) - f) < 1e-3
    # The new form is what the package computes, and the old one is not.
    p = 0.37
    z = np.full(len(labels), np.log(p / (1 - p)))
    right = xent.binary_cross_entropy(z, labels)
    assert np.isclose(right, -(f * np.log(p) + (1 - f) * np.log(1 - p)), rtol=1e-12)
    assert not np.isclose(right, -(f * np.log(p) + (1 - f) * (1 - p)), rtol=0.1)


@pytest.mark.parametrize("frequency", [0.5, 0.7])
@pytest.mark.erratum("3.3")
def test_from_one_half_on_it_is_certain(frequency: float) -> None:
    """For f >= 1/2 the loss with one logarithm is smallest at p = 1."""
    old = -(frequency * np.log(GRID) + (1 - frequency) * (1 - GRID))
    assert best(old) == 1.0


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
