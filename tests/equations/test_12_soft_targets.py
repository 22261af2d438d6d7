"""Chapter 12: a convergence by simulation, and what the frameworks do."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize

import xent
from xent.information import kl_divergence

ROUNDING = "a few roundings in float64"
Array = np.ndarray


def laws(classes: int, size: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).dirichlet(np.ones(classes), size=size)


def logits(classes: int, size: int, seed: int = 1) -> Array:
    return 3 * np.random.default_rng(seed).normal(size=(size, classes))


def agrees(a: Array, b: Array) -> bool:
    return bool(np.allclose(a, b, rtol=1e-9, atol=1e-12))


# ------------------------------------------------------------------------------------- the derivation


def random_problem(seed: int) -> tuple[Array, Array, Array]:
    """A joint law of 3 inputs and 2 classes, and features for a model of one parameter."""
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(3)), rng.dirichlet(np.ones(2), size=3), rng.normal(size=(3, 2))


@pytest.mark.equation("eq-soft-empirical", by="montecarlo")
def test_the_mean_converges_to_the_expectation(worst_error):
    r"""
    $$
    \begin{aligned}
    \mathcal L_N(\theta) &= \frac{1}{N} \sum_{i=1}^{N} \ell\bigl( z_\theta(x_i), t_i \bigr) \\
    &\to\; \mathrm E_X\, \ell \quad (N \to \infty) .
    \end{aligned}
    $$ (eq-soft-empirical)
    """
    p_x, p_y, feature = random_problem(3)
    each = np.array([xent.soft_cross_entropy(0.7 * f, q) for f, q in zip(feature, p_y, strict=True)])
    # wrong: p_x @ each -> each.mean()
    expectation = p_x @ each
    spread = np.sqrt(p_x @ (each - expectation) ** 2)
    rng = np.random.default_rng(4)
    for n in (100, 10_000, 1_000_000):
        mean = each[rng.choice(3, size=n, p=p_x)].mean()
        worst_error(mean, expectation, atol=4 * spread / np.sqrt(n), why="four standard errors")
    assert spread > 0.05  # so that a forgotten 1/N or another law would show


# -------------------------------------------------------------------------------------------- smoothing


def one_convention(classes: int, y: int, eps: float) -> Array:
    hot = np.arange(classes) == y
    return (1 - eps) * hot + eps / classes


def other_convention(classes: int, y: int, eta: float) -> Array:
    hot = np.arange(classes) == y
    return (1 - eta) * hot + eta / (classes - 1) * ~hot


@pytest.mark.equation("eq-soft-conventions", by="framework")
def test_torch_uses_the_first_convention(worst_error):
    z = logits(5, 8)
    y = np.random.default_rng(0).integers(5, size=8)
    for eps in (0.1, 0.4):
        told = F.cross_entropy(torch.tensor(z), torch.tensor(y), label_smoothing=eps, reduction="none")
        log_p = xent.log_softmax(z)
        first = [-(one_convention(5, c, eps) * row).sum() for c, row in zip(y, log_p, strict=True)]
        same = [-(other_convention(5, c, eps * 4 / 5) * row).sum() for c, row in zip(y, log_p, strict=True)]
        other = [-(other_convention(5, c, eps) * row).sum() for c, row in zip(y, log_p, strict=True)]
        worst_error(first, told, rtol=1e-12, why=ROUNDING)
        worst_error(same, told, rtol=1e-12, why=ROUNDING)
        assert not agrees(np.array(other), told.numpy())


@pytest.mark.equation("eq-soft-binary", by="framework")
def test_keras_smooths_a_binary_label_by_half(worst_error):
    from xent_book import behaviours

    keras = behaviours.keras()
    z, y = np.array([[-1.0], [0.3], [2.0]], np.float32), np.array([[1.0], [0.0], [1.0]], np.float32)
    for eps in (0.1, 0.4):
        loss = keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=eps)
        told = float(np.asarray(loss(y, z)))
        t = (1 - eps) * y.astype(float) + eps / 2
        expected = xent.binary_cross_entropy(z.astype(float), t)
        worst_error(expected, told, rtol=1e-6, why="Keras computes in float32")
        wrong = xent.binary_cross_entropy(z.astype(float), (1 - eps) * y.astype(float) + eps / 3)
        assert abs(wrong - told) > 1e-3
    # And it is the first convention with two classes.
    assert agrees(one_convention(2, 1, 0.1), np.array([0.05, 0.95]))


@pytest.mark.equation("eq-soft-inside", by="property")
def test_under_labels_of_the_mixture_it_elicits_the_clean_law():
    eps = 0.2
    for p in laws(4, 5):
        label = (1 - eps) * p + eps / 4

        def cost(z, label=label):
            return float(-(label * np.log((1 - eps) * xent.softmax(z) + eps / 4)).sum())

        found = minimize(cost, np.zeros(4), method="BFGS", options={"gtol": 1e-9})
        np.testing.assert_allclose(xent.softmax(found.x), p, atol=2e-4)
    # With clean labels it asks for more than they support.
    p = np.array([0.7, 0.2, 0.1])

    def at_clean_labels(z):
        return float(-(p * np.log((1 - eps) * xent.softmax(z) + eps / 3)).sum())

    clean = minimize(at_clean_labels, np.zeros(3), method="BFGS")
    assert xent.softmax(clean.x).max() > 0.75


# ------------------------------------------------------------------------------------------------- KL


@pytest.mark.equation("eq-soft-kl-terms", by="framework")
@pytest.mark.equation("eq-soft-kl-reductions", by="framework")
def test_kl_div_and_its_reductions(worst_error):
    for shape in ((6, 5), (2, 3, 5)):
        rng = np.random.default_rng(8)
        p = rng.dirichlet(np.ones(5), size=shape[:-1])
        log_q = xent.log_softmax(rng.normal(size=shape))
        d = p * (np.log(p) - log_q)
        printed = {"none": d, "sum": d.sum(), "mean": d.sum() / d.size, "batchmean": d.sum() / shape[0]}
        for reduction, expected in printed.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the default mean
                told = F.kl_div(torch.tensor(log_q), torch.tensor(p), reduction=reduction)
            worst_error(expected, told, rtol=1e-12, atol=1e-14, why=ROUNDING)
        assert not agrees(p * (np.log(p) + log_q), d)
        # What the chapter says: mean is K times too small, batchmean of three axes T times too large.
        true = kl_divergence(p, np.exp(log_q)).mean()
        assert agrees(printed["mean"] * 5, true)
        assert agrees(printed["batchmean"], true * (1 if len(shape) == 2 else shape[1]))


# --------------------------------------------------------------------------------------- the frameworks


@pytest.mark.equation("eq-soft-torch-weights", by="framework")
def test_torch_weighs_the_terms_and_divides_by_n(worst_error):
    z, t, w = logits(4, 7), laws(4, 7), np.array([1.0, 10.0, 0.5, 2.0])
    told = F.cross_entropy(torch.tensor(z), torch.tensor(t), weight=torch.tensor(w))
    log_p = xent.log_softmax(z)
    worst_error(-(w * t * log_p).sum() / 7, told, rtol=1e-12, why=ROUNDING)
    assert not agrees(-(w * t * log_p).sum() / (w * t).sum(), told.numpy())
    assert not agrees(-(w * log_p).sum() / 7, told.numpy())
