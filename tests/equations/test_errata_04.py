"""What the note of August 2021 says about gradients: the statement as printed, and the right one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import xent
from adversary import refuted
from xent import gradients

# The note's six examples, as it displays them.
ACTIVATIONS = np.array(
    [
        [-1.6453, 1.8893],
        [1.9800, 1.7681],
        [2.8183, 4.6643],
        [-0.3635, -0.0614],
        [0.4064, -0.4668],
        [-3.3801, 3.2484],
    ]
)
TARGETS = np.array([0, 1, 0, 1, 1, 0])


@pytest.mark.erratum("2.2", "holds")
def test_the_printed_tables_are_right_within_the_rounding_of_the_display() -> None:
    """Losses and probabilities agree to 1e-4 with the note; recomputing them does not give all digits."""
    losses = xent.cross_entropy(ACTIVATIONS, TARGETS, reduction="none")
    printed = np.array([3.5634, 0.8047, 1.9925, 0.5534, 1.2222, 6.6298])
    assert np.abs(losses - printed).max() < 1e-4
    assert abs(xent.cross_entropy(ACTIVATIONS, TARGETS) - 2.4610) < 1e-4
    assert (losses.round(4) != printed).any()
    # Activations that round to the displayed ones can give exactly what is printed.
    slack = np.abs(gradients.cross_entropy_gradient(ACTIVATIONS, TARGETS, reduction="sum")).sum(axis=1)
    assert (np.abs(losses - printed) <= 0.5e-4 * (1 + slack)).all()
    probabilities = [
        [0.0283, 0.9717],
        [0.5528, 0.4472],
        [0.1363, 0.8637],
        [0.4250, 0.5750],
        [0.7054, 0.2946],
        [0.0013, 0.9987],
    ]
    assert np.abs(xent.softmax(ACTIVATIONS) - probabilities).max() < 1e-4


@pytest.mark.erratum("2.4", "holds")
def test_the_derivatives_of_softmax() -> None:
    """do_j/dz_i = -o_j o_i for i != j, do_i/dz_i = o_i (1 - o_i); for i = j the first has even the wrong sign."""
    row = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    true = torch.autograd.functional.jacobian(lambda z: torch.softmax(z, 0), row).numpy()
    o = torch.softmax(row, 0).numpy()
    old = -np.outer(o, o)
    off = ~np.eye(3, dtype=bool)
    assert np.allclose(old[off], true[off], rtol=1e-13)
    assert (old[~off] < 0).all() and (true[~off] > 0).all()
    assert np.allclose(o * (1 - o), np.diag(true), rtol=1e-14)
    # Used everywhere, the first would let the probabilities sum to less after every move.
    assert np.allclose(old.sum(axis=0), -o) and np.allclose(true.sum(axis=0), 0, atol=1e-15)


@pytest.mark.erratum("2.7", "conditional")
def test_the_gradient_is_not_linear_but_bounded_and_half_lipschitz() -> None:
    """Old: linear, therefore smooth. It is linear in o - y only; bounded and 1/2-Lipschitz is the reason."""
    label = 1

    def gradient(margin: float) -> np.ndarray:
        return gradients.cross_entropy_gradient([margin, 0.0], label)

    # A linear (affine) function has equal differences over equal steps.
    first, second = gradient(2.0) - gradient(0.0), gradient(4.0) - gradient(2.0)
    with refuted("2.7: linear, in the logits"):
        assert np.allclose(first, second, atol=0.1)
    # In the prediction o it is affine, exactly.
    for margin in (-3.0, 0.0, 7.0):
        assert np.allclose(gradient(margin), xent.softmax([margin, 0.0]) - [0, 1], atol=1e-15)
    # Linear in z would be unbounded: squared error on raw outputs. This one is not.
    far = np.array([1000.0, 0.0])
    assert np.linalg.norm(2 * (far - [0, 1])) > 1999
    assert np.linalg.norm(gradient(1000.0)) <= np.sqrt(2)
    grid = np.linspace(-8, 8, 401)
    along = np.array([gradient(m) for m in grid])
    # Nor does that reach the weights of a two-layer network: in the first the gradient grows with the weight after it.
    steep = []
    for after in (1.0, 100.0, 10_000.0):
        first = torch.tensor(-0.1 / after, dtype=torch.float64, requires_grad=True)
        logits = torch.stack([after * torch.tanh(first), torch.zeros((), dtype=torch.float64)])
        torch.nn.functional.cross_entropy(logits[None], torch.tensor([0])).backward()
        steep.append(float(first.grad.abs()))
    assert steep[1] > 90 * steep[0] and steep[2] > 90 * steep[1]
    # Moving one logit by d moves the gradient by at most d/2, in fact by p (1 - p) sqrt 2 d.
    assert (np.linalg.norm(np.diff(along, axis=0), axis=1) <= 0.5 * np.diff(grid)).all()
