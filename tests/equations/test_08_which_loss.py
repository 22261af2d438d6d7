"""The equations of chapter 08: what a reading predicts, the clip, the smoothing, a curve's start and end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import sympy
import torch
from scipy.optimize import minimize

import xent
from xent import Diagnosis, diagnose
from xent_book import frameworks

F, nn = torch.nn.functional, torch.nn
WorstError = Callable[..., None]
Loss = Callable[..., Any]

READINGS: dict[str, Loss] = {
    "cross-entropy": F.cross_entropy,
    "sum": nn.CrossEntropyLoss(reduction="sum"),
    "KL, mean": nn.KLDivLoss(),
    "KL, batchmean": nn.KLDivLoss(reduction="batchmean"),
    "binary": nn.BCEWithLogitsLoss(),
    "binary, probabilities": nn.BCELoss(),
    "sign and unit": lambda z, t: F.cross_entropy(z, t) / -np.log(2),
}


def printed(found: Diagnosis, x: torch.Tensor, t: torch.Tensor) -> float:
    """Equation eq-which-reading, with p and the fields of the diagnosis; a loop in plain Python."""
    divisor = {"nothing": 1, "N": x.shape[0], "K": x.shape[1], "N*K": x.numel()}[found.denominator]
    unit = {"nats": mpmath.mpf(1), "bits": 1 / mpmath.log(2)}[found.unit]
    total = mpmath.mpf(0)
    for row, target in zip(x.tolist(), t.tolist(), strict=True):
        if found.reads == "logits" and found.family.startswith("binary"):
            p = [1 / (1 + mpmath.exp(-v)) for v in row]
        elif found.reads == "logits":
            p = [mpmath.exp(v) / sum(mpmath.exp(u) for u in row) for v in row]
        else:
            p = [mpmath.exp(v) if found.reads == "log-probabilities" else mpmath.mpf(v) for v in row]
        for pk, tk in zip(p, target, strict=True):
            total -= tk * mpmath.log(pk)
            if found.family.startswith("KL"):
                # wrong[eq-which-reading]: total += tk * mpmath.log(tk) -> total -= tk * mpmath.log(tk)
                total += tk * mpmath.log(tk)
            if found.family.startswith("binary"):
                total -= (1 - tk) * mpmath.log(1 - pk)
    return float(found.sign * unit / divisor * total)


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")  # KLDivLoss says what is tested here
@pytest.mark.equation("eq-which-reading", by="framework")
@pytest.mark.parametrize("name", READINGS)
def test_the_reading_predicts_the_loss(name: str, worst_error: WorstError) -> None:
    r"""On a batch of another size than those that diagnose uses.

    $$
    L = \frac{s\,u}{D} \sum_{n=1}^{N} \sum_{k=1}^{K} \ell_{nk} .
    $$ (eq-which-reading)
    """
    loss = READINGS[name]
    found = diagnose(loss)
    rng = np.random.default_rng(3)
    z, t = torch.from_numpy(rng.normal(size=(7, 4))), torch.from_numpy(rng.dirichlet(np.ones(4), 7))
    x = {"logits": z, "probabilities": z.softmax(1), "log-probabilities": z.log_softmax(1)}[found.reads]
    worst_error(loss(x, t).item(), printed(found, x, t), rtol=1e-12, why="sums of 28 terms in float64")


def clipped_at(epsilon: float) -> Loss:
    return lambda p, y: -np.log(np.maximum(p, epsilon))[np.arange(len(y)), y]


@pytest.mark.equation("eq-which-clip", by="framework")
@pytest.mark.parametrize("epsilon", [1e-3, 1e-7, 1e-15])
def test_an_impossible_event_tells_the_clip(epsilon: float, worst_error: WorstError) -> None:
    r"""
    $$
    \varepsilon = e^{-\ell} .
    $$ (eq-which-clip)
    """
    cost = clipped_at(epsilon)(np.array([[0.0, 1.0]]), np.array([0]))[0]
    # wrong: -cost -> cost
    worst_error(np.exp(-cost), epsilon, rtol=1e-12, why="a logarithm and its inverse")
    found = diagnose(clipped_at(epsilon))
    worst_error(found.epsilon, epsilon, rtol=1e-12, why="a logarithm and its inverse")
    assert not np.isclose(np.exp(cost), epsilon)


@pytest.mark.equation("eq-which-clip", by="framework")
def test_the_clip_of_keras(worst_error: WorstError) -> None:
    r"""
    $$
    \varepsilon = e^{-\ell} .
    $$ (eq-which-clip)
    """
    keras = frameworks.keras()
    cost = keras.losses.CategoricalCrossentropy()(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]))
    epsilon = keras.backend.epsilon()
    worst_error(np.exp(-float(cost)), epsilon, rtol=1e-5, why="the cost in float32")


@pytest.mark.equation("eq-which-smoothing", by="framework")
@pytest.mark.parametrize("epsilon", [0.05, 0.1, 0.4])
def test_the_smoothed_loss_lies_on_the_line(epsilon: float, worst_error: WorstError) -> None:
    r"""
    $$
    \begin{aligned}
    L &= (1 - \varepsilon) L_0 + \varepsilon L_1, \\
    \varepsilon &= \frac{L - L_0}{L_1 - L_0} .
    \end{aligned}
    $$ (eq-which-smoothing)
    """
    rng = np.random.default_rng(4)
    z, y = torch.from_numpy(rng.normal(size=(6, 5))), torch.from_numpy(rng.integers(0, 5, 6))
    value = F.cross_entropy(z, y, label_smoothing=epsilon).item()
    hard = F.cross_entropy(z, y).item()
    even = F.cross_entropy(z, torch.full((6, 5), 0.2, dtype=torch.float64)).item()
    why = "means and a quotient in float64"
    # wrong: (1 - epsilon) * hard + epsilon * even -> epsilon * hard + (1 - epsilon) * even
    worst_error(value, (1 - epsilon) * hard + epsilon * even, rtol=1e-12, why=why)
    worst_error((value - hard) / (even - hard), epsilon, rtol=1e-12, why=why)
    assert not np.isclose(value, epsilon * hard + (1 - epsilon) * even)


@pytest.mark.equation("eq-which-smoothing", by="symbolic")
def test_the_two_lines_are_one_statement() -> None:
    r"""
    $$
    \begin{aligned}
    L &= (1 - \varepsilon) L_0 + \varepsilon L_1, \\
    \varepsilon &= \frac{L - L_0}{L_1 - L_0} .
    \end{aligned}
    $$ (eq-which-smoothing)
    """
    epsilon, hard, even = sympy.symbols("epsilon L0 L1")
    value = (1 - epsilon) * hard + epsilon * even
    assert sympy.simplify((value - hard) / (even - hard) - epsilon) == 0


@pytest.mark.equation("eq-which-start", by="montecarlo")
@pytest.mark.parametrize("classes", [2, 10, 1000])
@pytest.mark.parametrize("sigma", [0.3, 1.0, 3.0])
def test_the_first_loss_lies_between_its_bounds(classes: int, sigma: float, worst_error: WorstError) -> None:
    r"""
    $$
    \log K \;\le\; \mathbb E\,\ell \;\le\; \log K + \frac{\sigma^2}{2} .
    $$ (eq-which-start)
    """
    rng = np.random.default_rng(5)
    n = 200_000 // classes + 2000
    each = xent.cross_entropy(rng.normal(0, sigma, (n, classes)), np.zeros(n, int), reduction="none")
    mean, error = float(each.mean()), float(each.std() / np.sqrt(n))
    lower, upper = np.log(classes), np.log(classes) + sigma**2 / 2
    assert lower - 4 * error <= mean <= upper + 4 * error
    # Wrong variants of either bound fail: the spread is needed, and half of it is enough.
    if sigma >= 1 and classes >= 10:
        assert mean > lower + 4 * error
    nearest = min(max(mean, lower), upper)
    worst_error(mean, nearest, atol=4 * 3.5 / np.sqrt(2000), why="four standard errors")


@pytest.mark.equation("eq-which-start", by="property")
def test_the_upper_bound_is_reached_when_there_are_many_classes() -> None:
    r"""
    $$
    \log K \;\le\; \mathbb E\,\ell \;\le\; \log K + \frac{\sigma^2}{2} .
    $$ (eq-which-start)
    """
    rng = np.random.default_rng(6)
    sigma, n, classes = 1.0, 400, 20_000
    z = rng.normal(0, sigma, (n, classes))
    # The label's logit has mean zero: leave it out, its noise would hide the difference.
    mean = float(xent.log_sum_exp(z).mean())
    # wrong: sigma**2 / 2 -> sigma**2
    assert abs(mean - (np.log(classes) + sigma**2 / 2)) < 1e-3
    assert abs(mean - (np.log(classes) + sigma**2)) > 0.4


@pytest.mark.equation("eq-which-floors", by="reference")
@pytest.mark.parametrize("classes", [2, 10, 50])
def test_the_floor_of_two_softmaxes(classes: int, worst_error: WorstError) -> None:
    r"""No probabilities give less than a one-hot row, and it costs what is printed.

    $$
    \begin{aligned}
    \text{softmax twice:}\quad & \log(e + K - 1) - 1, \\
    \text{smoothing:}\quad & -a \log a - (K - 1)\, b \log b, \\
    & b = \tfrac{\varepsilon}{K},\quad a = 1 - \varepsilon + b .
    \end{aligned}
    $$ (eq-which-floors)
    """
    p = torch.eye(classes, dtype=torch.float64)[:1]
    value = F.cross_entropy(p, torch.tensor([0])).item()
    # wrong: mpmath.log(mpmath.e + classes - 1) - 1 -> mpmath.log(mpmath.e + classes - 1)
    printed_floor = mpmath.log(mpmath.e + classes - 1) - 1
    worst_error(value, printed_floor, rtol=1e-14, why="a few roundings in float64")
    rng = np.random.default_rng(7)
    others = torch.from_numpy(rng.dirichlet(np.full(classes, 0.1), 500))
    each = F.cross_entropy(others, torch.zeros(500).long(), reduction="none")
    assert each.min() >= value - 1e-12


@pytest.mark.equation("eq-which-floors", by="reference")
@pytest.mark.parametrize(("epsilon", "classes"), [(0.1, 2), (0.1, 10), (0.5, 6)])
def test_the_floor_of_smoothing(epsilon: float, classes: int, worst_error: WorstError) -> None:
    r"""A minimiser over the logits finds the printed height.

    $$
    \begin{aligned}
    \text{softmax twice:}\quad & \log(e + K - 1) - 1, \\
    \text{smoothing:}\quad & -a \log a - (K - 1)\, b \log b, \\
    & b = \tfrac{\varepsilon}{K},\quad a = 1 - \varepsilon + b .
    \end{aligned}
    $$ (eq-which-floors)
    """
    b = mpmath.mpf(epsilon) / classes
    a = 1 - mpmath.mpf(epsilon) + b
    floor = -a * mpmath.log(a) - (classes - 1) * b * mpmath.log(b)

    def loss(z: Any) -> float:
        return float(xent.cross_entropy(z[None], [0], label_smoothing=epsilon))

    found = minimize(loss, np.zeros(classes), tol=1e-12)
    worst_error(found.fun, floor, rtol=1e-9, why="a minimiser's tolerance")
    assert loss(np.zeros(classes)) > float(floor) + 1e-3


@pytest.mark.equation("eq-which-distortion", by="reference")
def test_a_target_counts_more_in_a_small_micro_batch(worst_error: WorstError) -> None:
    r"""The weights as derivatives: of a mean of means and of the pooled mean, by autograd.

    $$
    r_i = \frac{\sum_j n_j}{M\, n_i}
    $$ (eq-which-distortion)
    """
    counts = [2, 7, 1, 12]
    each = torch.ones(sum(counts), dtype=torch.float64, requires_grad=True)
    of_means = torch.stack([part.mean() for part in each.split(counts)]).mean()
    (one,) = torch.autograd.grad(of_means, each)
    (two,) = torch.autograd.grad(each.mean(), each)
    # wrong: sum(counts) / (len(counts) * n) -> len(counts) * n / sum(counts)
    expected = [sum(counts) / (len(counts) * n) for n in counts for _ in range(n)]
    worst_error(one / two, expected, rtol=1e-14, why="quotients in float64")
    assert not np.allclose(one / two, [1 / e for e in expected])
