"""The kernels of the losses of rows against their formulas, at every option."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from xent.torch._divergence import Coarse, Divergence
from xent.torch._row_losses import Distributions, Entropy, Focal, Labels, RowLoss, Terms

ROWS, CLASSES = 9, 5
torch.manual_seed(0)
Z, V, U = (3 * torch.randn(ROWS, CLASSES, dtype=torch.float64) for _ in range(3))
# Impossible classes, in one, in the other and in both; sure rows; rows beyond what exponentials of differences hold.
Z[0, 1] = V[1, 1] = Z[2, 0] = V[2, 0] = -math.inf
Z[3], V[4], Z[5] = 100 * Z[3], 100 * V[4], 2000 * Z[5]
Z[6, 0], Z[7] = 40.0, V[7] + 1e-9 * U[7]
Y = torch.arange(ROWS) % CLASSES
Z[8, Y[8]] = -math.inf  # what is impossible happened
P, W = torch.softmax(U, -1), torch.rand(CLASSES, dtype=torch.float64).expand(ROWS, CLASSES)
P[0, 1] = 0
TOP, KEPT = torch.softmax(V / 2, -1).topk(2)
TAIL = 1 - TOP.sum(-1)
FACTOR = torch.rand(ROWS, 1, dtype=torch.float64)
DIRECTIONS = ("forward", "reverse", "jsd")

CASES: list[tuple[RowLoss, tuple[Tensor, ...]]] = [
    *((Labels(*how), (Y,)) for how in itertools.product((0.0, 0.1, 1.0), (0.0, 0.01))),
    *((Focal(gamma), beside) for gamma in (0.0, 0.5, 2.0) for beside in ((Y,), (Y, U[:, 0].abs()))),
    *((Distributions(*how), x) for how in itertools.product((0.0, 0.2), (0.0, 0.01)) for x in ((P,), (P, W))),
    (Entropy(), ()),
    *(
        (Divergence(t, squared, direction, beta), (V,))
        for t in (1.0, 3.0, 1e7)
        for squared in (True, False)
        for direction, beta in (*zip(DIRECTIONS, (0.5,) * 3, strict=True), ("jsd", 0.1))
    ),
    *((Coarse(2.0, squared), (KEPT, TOP, TAIL)) for squared in (True, False)),
]


@pytest.mark.parametrize("bent", [{}, {"softcap": 5.0}, {"softcap": 5.0, "temperature": 2.0}], ids=str)
@pytest.mark.parametrize(("loss", "beside"), CASES, ids=[str(loss) for loss, _ in CASES])
def test_a_kernel_has_the_losses_and_the_gradient_of_its_formula(
    loss: RowLoss, beside: tuple[Tensor, ...], bent: dict[str, float]
) -> None:
    """Two ways through the same few operations in float64: what they are apart is rounding, of margins up to 300."""
    terms = Terms((loss,), **bent)  # type: ignore[arg-type]
    leaf, z, out = Z.clone().requires_grad_(), Z.clone(), torch.full_like(Z, math.nan)
    plain = terms.plain(leaf, *beside)
    work = torch.full((terms.arrays, *Z.shape), math.nan, dtype=Z.dtype)
    losses = terms.kernel(z, beside, FACTOR, out, work)
    assert torch.equal(z, Z)  # the logits are somebody's
    torch.testing.assert_close(losses, plain.detach(), rtol=1e-11, atol=1e-15, equal_nan=True)
    assert torch.equal(terms.kernel(z, beside, None, torch.empty_like(Z), work), losses)
    live = plain.isfinite()
    (expected,) = torch.autograd.grad((plain * FACTOR[:, 0])[live].sum(), leaf)
    hot = getattr(loss, "temperature", 1.0) > 1e6  # gaps of 1e-7 have lost seven digits more
    torch.testing.assert_close(out[live], expected[live], rtol=1e-6 if hot else 1e-8, atol=1e-11)


def test_labels_by_the_highest_and_by_the_target_are_one_kernel() -> None:
    """The way that a GPU goes, with a maximum of each row, and that of a CPU, without, at every option."""
    z = Z[:3].nan_to_num(neginf=-9.0)
    for smoothing, z_loss in itertools.product((0.0, 0.1, 1.0), (0.0, 0.01)):
        loss, found = Labels(smoothing, z_loss), []
        for own in (None, z.gather(1, Y[:3, None])):
            out = torch.empty_like(z)
            found.append((loss._above(z, [Y[:3]], FACTOR[:3], out, own=own), out))
        for highest, target in zip(*found, strict=True):
            torch.testing.assert_close(highest, target, rtol=1e-12, atol=1e-15)


def test_terms_survive_as_text() -> None:
    parts = tuple(loss for loss, _ in CASES)
    for terms in (Terms(parts, None, 2.0, 3.0), Terms(parts[:1]), Terms(parts[:2], (0.25, 0.75))):
        assert Terms.of(terms.text()) == terms
