"""What a post on the averaged cross-entropy states without its conditions: the old fails, the new passes.

The ids are those of the errata page. Rows that were true are here with what they leave out.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import xent.torch
from adversary import refuted
from xent.denominators import eos_optimum

IGNORED = -100


def rows(lengths: list[int], width: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(len(lengths), width, 5, generator=generator, dtype=torch.float64)
    targets = torch.randint(5, (len(lengths), width), generator=generator)
    targets[torch.arange(width) >= torch.tensor(lengths)[:, None]] = IGNORED
    return logits, targets


@pytest.mark.erratum("0.13", "holds")
def test_the_mean_over_non_ignored_tokens_needs_one():
    """The mean averages over the tokens that are not ignored. If all are it is nan, and the sum is 0."""
    logits, targets = rows([3, 6], 6)
    each = F.cross_entropy(logits.mT, targets, reduction="none")
    torch.testing.assert_close(F.cross_entropy(logits.mT, targets), each.sum() / 9)
    assert not torch.isclose(F.cross_entropy(logits.mT, targets), each.mean())
    nothing = torch.full_like(targets, IGNORED)
    assert F.cross_entropy(logits.mT, nothing).isnan()
    assert F.cross_entropy(logits.mT, nothing, reduction="sum") == 0
    (window,) = xent.torch.accumulate([nothing], 1, targets=lambda batch: batch)
    assert window.micro_batches[0].scale == 0


@pytest.mark.erratum("0.14", "holds")
def test_one_token_and_1024_apart_and_together():
    """Apart the loss is l1 + l2/1024, together (l1 + l2)/1025: the short row weighs 1024 times more apart."""
    logits, targets = rows([1, 1024], 1024)
    l1, l2 = F.cross_entropy(logits.mT, targets, reduction="none").sum(dim=1)
    together = F.cross_entropy(logits.mT, targets)
    apart = sum(F.cross_entropy(z, y) for z, y in zip(logits, targets, strict=True))
    torch.testing.assert_close(together, (l1 + l2) / 1025)
    torch.testing.assert_close(apart, l1 + l2 / 1024)
    assert abs(float(apart / 2 - together)) > 0.01


@pytest.mark.erratum("0.15", "holds")
def test_a_multiple_of_the_right_loss_for_the_realised_batch_only():
    """True: a batch's loss is a multiple of the correct one for that batch, and biased for the population's."""
    beta, size = 0.1, 4
    n = np.random.default_rng(0).geometric(beta, size=(200_000, size))
    tokens = n.sum(axis=1)
    # For one batch the minimiser of the multiple is that of the sum.
    grid = np.linspace(0.001, 0.999, 999)
    summed = -size * np.log(grid) - (tokens[0] - size) * np.log1p(-grid)
    assert np.argmin(summed / tokens[0]) == np.argmin(summed)
    # In expectation the minimiser is E[B/S], and not B/E[S], which is beta.
    seen = (size / tokens).mean()
    error = (size / tokens).std() / np.sqrt(len(n))
    assert abs(seen - eos_optimum(beta, size)) < 4 * error
    assert abs(seen - beta) > 50 * error
    # The value has no bias at any B where each token costs the same, as under the fair coin's own model.
    for b in (1, 2, 4):
        n_b = n[:, :b]
        ends, goes_on = -np.log(0.5), -np.log(0.5)
        same = (ends * b + goes_on * (n_b.sum(1) - b)) / n_b.sum(1)
        assert np.allclose(same, np.log(2), rtol=1e-12)
        ratio = (-np.log(0.3) * b - np.log(0.7) * (n_b.sum(1) - b)) / n_b.sum(1)
        right = -np.log(0.3) * beta - np.log(0.7) * (1 - beta)
        assert abs(ratio.mean() - right) > 8 * ratio.std() / np.sqrt(len(n))
    # One large batch estimates the loss per token; the loss per sequence it misses by the mean length.
    ratio = (-np.log(0.3) * n.size - np.log(0.7) * (n.sum() - n.size)) / n.sum()
    assert ratio == pytest.approx(right, rel=0.01)
    with refuted("the loss per sequence"):
        assert ratio == pytest.approx(right / beta, rel=0.01)


@pytest.mark.erratum("0.17", "conditional")
def test_equivalent_under_the_sum_up_to_rounding_and_order():
    """Old: the two runs are equivalent. New: up to rounding, given the same order of the data."""
    inputs, targets = rows([1, 2, 9, 4, 6, 3, 8, 5], 9)

    def run(size: int, order: list[int], pooled: bool = True) -> torch.Tensor:
        weight = torch.zeros(5, 5, dtype=torch.float64, requires_grad=True)
        parts = list(zip(inputs[order].split(size), targets[order].split(size), strict=True))
        for window in xent.torch.accumulate(parts, 4 // size, targets=1):
            for micro in window:
                x, y = micro.batch
                if pooled:
                    loss = F.cross_entropy((x @ weight).mT, y, reduction="sum") * micro.scale
                else:
                    loss = F.cross_entropy((x @ weight).mT, y) / len(window)
                loss.backward()
            with torch.no_grad():
                weight -= weight.grad
            weight.grad = None
        return weight.detach()

    order = list(range(8))
    reference = run(4, order)
    for size in (1, 2):
        torch.testing.assert_close(run(size, order), reference, rtol=1e-12, atol=1e-14)
        assert float((run(size, order, pooled=False) - reference).abs().max()) > 1e-3
    # Another order puts other sequences into each window.
    assert float((run(1, order[::2] + order[1::2]) - reference).abs().max()) > 1e-3
