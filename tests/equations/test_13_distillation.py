"""Chapter 13: the losses, as PyTorch's functions and `xent` have them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from xent.distillation import distillation_loss, mixed_loss

ROUNDING = "a few roundings in float64"
RNG = np.random.default_rng(13)
Z, V = RNG.normal(size=(2, 5))


def softmax(x):
    e = np.exp(x - np.max(x))
    return e / e.sum()


@pytest.mark.equation("eq-kd-loss", by="framework")
def test_the_loss_is_pytorchs_with_its_factor(worst_error):
    for T in (0.5, 1.0, 4.0):
        p, q = softmax(V / T), softmax(Z / T)
        printed = T**2 * sum(p[k] * np.log(p[k] / q[k]) for k in range(5))
        z, v = torch.tensor(Z), torch.tensor(V)
        theirs = F.kl_div(F.log_softmax(z / T, -1), F.softmax(v / T, -1), reduction="sum") * T**2
        worst_error(printed, theirs, rtol=1e-12, why=ROUNDING)
        worst_error(distillation_loss(Z, V, temperature=T), printed, rtol=1e-12, why=ROUNDING)


@pytest.mark.equation("eq-kd-mixture", by="framework")
def test_the_mixture_is_pytorchs(worst_error):
    T, alpha, y = 3.0, 0.3, 2
    z, v = torch.tensor(Z), torch.tensor(V)
    soft = T**2 * F.kl_div(F.log_softmax(z / T, -1), F.softmax(v / T, -1), reduction="sum")
    theirs = (1 - alpha) * F.cross_entropy(z, torch.tensor(y)) + alpha * soft
    p, q = softmax(V / T), softmax(Z / T)
    printed = (1 - alpha) * -np.log(softmax(Z)[y]) + alpha * T**2 * (p * np.log(p / q)).sum()
    worst_error(printed, theirs, rtol=1e-12, why=ROUNDING)
    worst_error(mixed_loss(Z, V, y, alpha=alpha, temperature=T), theirs, rtol=1e-12, why=ROUNDING)
