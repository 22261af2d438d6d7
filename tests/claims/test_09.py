"""Chapter 9's claims: what the losses ask for, and what trained models do."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from sklearn.datasets import load_breast_cancer
from torch.nn.functional import logsigmoid

import xent
from xent import scoring
from xent.scoring import elicited, expected_score

Array = NDArray[np.float64]


def beliefs(seed: int, classes: int, count: int) -> Array:
    """Distributions of all kinds: even, peaked, and with classes next to nothing."""
    rng = np.random.default_rng(seed)
    alpha = np.exp(rng.uniform(-2, 2, size=(count, 1))) * np.ones(classes)
    return np.array([np.maximum(rng.dirichlet(a), 1e-6) for a in alpha])


def normal(p: Array) -> Array:
    return np.asarray(p / p.sum(-1, keepdims=True))


@pytest.mark.claim(
    "09",
    "The logarithm, Brier's score and the spherical score pay for the true probabilities and for nothing else: "
    "they are strictly proper.",
)
@pytest.mark.parametrize("rule", [scoring.log_score, scoring.brier_score, scoring.spherical_score])
def test_no_lie_is_cheaper_or_as_cheap(rule: scoring.Rule) -> None:
    """12,000 lies near and far, under 60 beliefs over two to six classes, next to certain ones included."""
    rng = np.random.default_rng(1)
    for classes in (2, 3, 6):
        for p in normal(beliefs(classes, classes, 20)):
            far = rng.dirichlet(np.ones(classes), size=100)
            near = normal(np.maximum(p * np.exp(0.01 * rng.standard_normal((100, classes))), 1e-12))
            lies = np.vstack([far, near])
            lies = lies[np.abs(lies - p).max(-1) > 1e-6]
            assert (expected_score(rule, p, lies) > expected_score(rule, p, p)).all()


@pytest.mark.claim(
    "09",
    "Accuracy is proper and blind: every report that names the truth's most probable class ties with the truth.",
)
def test_accuracy_cannot_tell_reports_with_the_same_winner() -> None:
    """Reports of every shape for 60 beliefs: the same winner ties exactly, another one never gains."""
    rng = np.random.default_rng(2)
    for classes in (2, 3, 6):
        for p in normal(beliefs(classes, classes, 20)):
            reports = rng.dirichlet(np.ones(classes), size=200)
            cost, honest = (expected_score(scoring.zero_one_score, p, q) for q in (reports, p))
            same = reports.argmax(-1) == p.argmax()
            np.testing.assert_allclose(cost[same], honest, rtol=1e-12)
            assert (cost >= honest - 1e-12).all()


@pytest.mark.claim("09", "The absolute error pays for certainty in the most probable class.")
def test_the_absolute_error_is_least_at_a_corner() -> None:
    """Close races included: the leader ahead by one in a thousand is still called certain."""
    rng = np.random.default_rng(3)
    cases = [np.array([0.501, 0.499]), np.array([0.334, 0.333, 0.333]), *normal(beliefs(4, 5, 30))]
    for p in cases:
        reports = np.vstack([rng.dirichlet(np.ones(len(p)), size=300), p])
        corner = np.eye(len(p))[p.argmax()]
        least = np.abs(np.eye(len(p)) - corner).sum(-1) @ p
        cost = np.array([np.abs(np.eye(len(p)) - q).sum(-1) @ p for q in reports])
        assert (cost > least).all()


@pytest.mark.claim(
    "09",
    "Clipping the logarithm is harmless with two classes; with three or more it can pay to call a class below the "
    "clip impossible.",
)
def test_clipping_pays_from_three_classes_on() -> None:
    """Many clips; two classes at the end of the interval, and several classes below it at once."""
    rng = np.random.default_rng(4)
    for eps in (1e-7, 1e-3, 0.05, 0.2):
        rule = partial(scoring.clipped_log_score, eps=eps)
        for first in (0.5, eps, eps / 2, 0.999, *rng.random(20)):
            p = np.array([first, 1 - first])
            grid = np.linspace(0, 1, 501)
            cost = expected_score(rule, p, np.stack([grid, 1 - grid], -1))
            assert (cost >= expected_score(rule, p, p) - 1e-12).all()
        for rare in ([0.5], [0.5, 0.4], [0.9, 0.1, 0.3]):
            small = np.array(rare) * eps / 2
            p = np.append((1 - small.sum()) * np.array([0.55, 0.45]), small)
            zeroed = normal(np.append(p[:-1], 0.0))
            saving = expected_score(rule, p, p) - expected_score(rule, p, zeroed)
            # About p_K; the costs are of order one, so 1e-15 of it is rounding.
            assert saving > 0.5 * p[-1] and (saving > 1e-9 or eps < 1e-6)
    # It need not: where the first class has left the interval at the upper end, there is nobody to give the mass to.
    rule, p = partial(scoring.clipped_log_score, eps=0.05), np.array([0.97, 0.02, 0.01])
    assert expected_score(rule, p, normal(p * [1, 1, 0])) == expected_score(rule, p, p)


@pytest.mark.claim(
    "09",
    "Class weights, label smoothing and focal loss ask for bent probabilities, and each can be bent back if the "
    "model has reached what its loss asks for.",
)
@pytest.mark.parametrize("classes", [2, 3])
def test_what_is_bent_can_be_bent_back_only_from_the_minimum(classes: int) -> None:
    """The search's own minimum bends back; a report on half of the way there does not."""
    weight = np.linspace(1, 5, classes)
    for rule, inverse in (
        (
            partial(scoring.weighted_log_score, weight=weight),
            partial(scoring.invert_weighting, weight=weight),
        ),
        (
            partial(scoring.smoothed_log_score, label_smoothing=0.2),
            partial(scoring.invert_smoothing, label_smoothing=0.2),
        ),
        (partial(scoring.focal_loss, gamma=2.0), partial(scoring.invert_focal, gamma=2.0)),
    ):
        for p in normal(beliefs(5, classes, 7 - 2 * classes) + 0.02):
            q = elicited(rule, p)
            if np.abs(p - 1 / classes).max() > 0.1:
                assert np.abs(q - p).max() > 1e-3
            np.testing.assert_allclose(inverse(q), p, atol=1e-5)
            half = (q + p) / 2
            if np.abs(q - p).max() > 0.05 and (half >= 0.2 / classes).all():
                assert np.abs(inverse(half) - p).max() > 0.01


@pytest.mark.claim(
    "09",
    "The usual weighted mean bends less than its weights ask for, because it divides by the weights of its own "
    "batch.",
)
def test_the_batch_takes_part_of_the_weights_back() -> None:
    """Random shares, weights and batches: always between no weights and all of them, for the extreme classes."""
    rng = np.random.default_rng(6)
    for _ in range(60):
        p, w = rng.dirichlet(np.ones(3)), np.exp(2 * rng.standard_normal(3))
        size = int(rng.integers(1, 200))
        q = scoring.learnt_distribution(p, w, size, weight=w)
        asked = normal(w * p)
        heavy, light = w.argmax(), w.argmin()
        odds = np.array([r[heavy] / r[light] for r in (p, q, asked)])
        assert odds[0] * (1 - 1e-12) <= odds[1] < odds[2]
        # The cause: with a divisor that does not look at the batch nothing is taken back.
        constant = scoring.learnt_distribution(p, np.ones(3), size, weight=w)
        np.testing.assert_allclose(constant, asked, rtol=1e-12)


# ------------------------------------------------------------------------------------- trained models


def gap(z: Array, label: NDArray[np.int64]) -> float:
    """The mean distance between report and frequency, over eight bins of equal size."""
    p = xent.sigmoid(z)
    parts = np.array_split(np.argsort(p, kind="stable"), 8)
    return float(np.mean([abs(p[i].mean() - label[i].mean()) for i in parts]))


def networks(gamma: float, seed: int, columns: tuple[str, str]) -> tuple[Array, ...]:
    """Five networks on 120 tumours, nearly memorised: logits and labels, held out and new."""
    cancer = load_breast_cancer()
    names = list(cancer.feature_names)
    X = cancer.data[:, [names.index(name) for name in columns]]
    X, y = (X - X.mean(0)) / X.std(0), 1 - cancer.target
    rows = np.stack([np.random.default_rng([seed, k]).permutation(len(y)) for k in range(5)])
    train, held, new = np.split(rows, [120, 270], axis=1)
    draw = torch.Generator().manual_seed(seed)
    hidden = 32
    shapes = ((2, hidden), (1, hidden), (hidden, hidden), (1, hidden), (hidden, 1))
    w = [torch.randn(5, *s, generator=draw).double() / (hidden**0.5 if s[0] == hidden else 1) for s in shapes]
    for part in w:
        part.requires_grad_()

    def logits(some: NDArray[np.int64]) -> torch.Tensor:
        layer = torch.relu(torch.tensor(X[some]) @ w[0] + w[1])
        return (torch.relu(layer @ w[2] + w[3]) @ w[4])[..., 0]

    sign = torch.tensor(2.0 * y[train] - 1)
    optimiser = torch.optim.Adam(w, lr=0.02)
    for _ in range(200):
        log_q = logsigmoid(sign * logits(train))
        loss = -((1 - log_q.exp()) ** gamma * log_q).mean(1).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        return logits(held).numpy(), y[held], logits(new).numpy(), y[new]


@pytest.mark.claim(
    "09",
    "Focal loss makes a model that can reach its minimum too timid about any class that is more likely than not, and "
    "an overfitted network less over-confident.",
)
@pytest.mark.claim(
    "09",
    "The largest probability itself comes out too small, except among many classes if it is small already.",
)
def test_focal_loss_in_both_regimes() -> None:
    """Beliefs on both sides of one half by search; other splits, starts and measurements for the networks, paired."""
    for p in ([0.9, 0.1], [0.51, 0.49], [0.2, 0.8], [0.6, 0.3, 0.1]):
        assert max(elicited(scoring.focal_loss, p)) < max(p)
    # From report to truth, for reports of all kinds: the largest is too small if it is above a half, or classes few.
    rng = np.random.default_rng(8)
    for classes in (2, 3, 5, 100, 1000):
        alpha = np.exp(rng.uniform(-4, 3, size=(400, 1))) * np.ones(classes)
        q = np.array([np.maximum(rng.dirichlet(a), 1e-9) for a in alpha])
        q[:100, 0] += rng.exponential(size=100)
        q = normal(q)
        for gamma in (0.5, 1.0, 2.0, 5.0):
            back = scoring.invert_focal(q, gamma=gamma).max(-1)
            likely = (back > 0.5) & (back < 1 - 1e-6)
            assert likely.any() and (q.max(-1)[likely] < back[likely]).all()
            if classes <= 3:
                assert (q.max(-1) <= back + 1e-9).all()
    flat = np.append(0.1, np.full(99, 0.9 / 99))
    assert scoring.invert_focal(flat, gamma=2.0)[0] < 0.09
    better, both = [], []
    for seed, columns in ((1, ("mean texture", "mean smoothness")), (2, ("mean symmetry", "texture error"))):
        _, _, log, label = networks(0.0, seed, columns)
        _, _, focal, same = networks(2.0, seed, columns)
        assert (label == same).all()
        for one, other, y in zip(log, focal, label, strict=True):
            better.append(gap(one, y) - gap(other, y))
            # Over-confident: surer than right, with both losses.
            both.append([xent.sigmoid(np.abs(z)).mean() - ((z > 0) == y).mean() for z in (one, other)])
    assert (np.array(both) > 0).all()
    assert np.mean(better) > 3 * np.std(better, ddof=1) / np.sqrt(len(better))


@pytest.mark.claim(
    "09",
    "Dividing the logits by a temperature changes no decision; one fitted on held-out data closes most of the gap "
    "of an overfitted network.",
)
def test_a_temperature_repairs_an_overfitted_network() -> None:
    """Another seed; decisions also for random logits of many classes. Most: more than half, on average."""
    rng = np.random.default_rng(7)
    z = rng.standard_normal((1000, 7)) * 30
    for T in (0.01, 19.5, 1e4):
        assert (xent.softmax(z / T).argmax(-1) == z.argmax(-1)).all()
    closed = []
    held, label_held, new, label = networks(0.0, 3, ("mean texture", "mean smoothness"))
    for a, y_a, b, y_b in zip(held, label_held, new, label, strict=True):
        fit = minimize_scalar(
            lambda t, a=a, y_a=y_a: xent.binary_cross_entropy(a / np.exp(t), y_a),
            bounds=(-3, 5),
            method="bounded",
        )
        closed.append(gap(b / np.exp(fit.x), y_b) / gap(b, y_b))
    assert np.mean(closed) < 0.5 and max(closed) < 1
