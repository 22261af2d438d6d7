"""What the sources say in the scope of chapter 05, and what is true."""

from __future__ import annotations

import math

import pytest
import torch

import xent


@pytest.mark.erratum("2.3")
def test_log_softmax_is_more_accurate_only_where_it_underflows() -> None:
    """The note says 'faster and more accurate'. Accuracy: yes where it underflows, else no."""
    z = torch.tensor([0.0, 200.0])
    assert torch.log(torch.softmax(z, -1))[0] == -math.inf
    assert torch.log_softmax(z, -1)[0] == -200.0
    # A wrong answer that does not underflow: both are within an ulp.
    z = torch.tensor([0.0, 50.0])
    for value in (torch.log(torch.softmax(z, -1))[0], torch.log_softmax(z, -1)[0]):
        assert abs(float(value) + 50.0) <= 50.0 * 2.0**-23
    # A certain and right answer: the true value is -exp(-20) to first order, and both give 0.
    z = torch.tensor([20.0, 0.0])
    true = -math.log1p(math.exp(-20.0))
    assert torch.log(torch.softmax(z, -1))[0] == torch.log_softmax(z, -1)[0] == 0.0
    assert abs(float(xent.log_softmax(z.numpy())[0]) - true) <= 4 * 2.0**-23 * abs(true)
