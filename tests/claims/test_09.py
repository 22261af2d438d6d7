"""Chapter 9's claims: what the losses ask for, and what trained models do."""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar
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


TEXTURE = ("mean texture", "mean smoothness")


def gap(z: Array, label: NDArray[np.int64]) -> float:
    """The mean distance between report and frequency, over eight bins of equal size."""
    p = xent.sigmoid(z)
    parts = np.array_split(np.argsort(p, kind="stable"), 8)
    return float(np.mean([abs(p[i].mean() - label[i].mean()) for i in parts]))


@cache
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
    # Adam by hand: the first use of torch.optim's imports a compiler, which takes longer than the training.
    first, second = ([torch.zeros_like(part) for part in w] for _ in range(2))
    for step in range(1, 201):
        log_q = logsigmoid(sign * logits(train))
        loss = -((1 - log_q.exp()) ** gamma * log_q).mean(1).sum()
        with torch.no_grad():
            for part, slope, m, v in zip(w, torch.autograd.grad(loss, w), first, second, strict=True):
                m.lerp_(slope, 0.1)
                v.lerp_(slope**2, 0.001)
                part -= 0.02 * (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-8)
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
        alpha = np.exp(rng.uniform(-4, 3, size=(200, 1))) * np.ones(classes)
        q = np.array([np.maximum(rng.dirichlet(a), 1e-9) for a in alpha])
        q[:50, 0] += rng.exponential(size=50)
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
    for seed, columns in ((1, TEXTURE), (2, ("mean symmetry", "texture error"))):
        _, _, log, label = networks(0.0, seed, columns)
        _, _, focal, same = networks(2.0, seed, columns)
        assert (label == same).all()
        for one, other, y in zip(log, focal, label, strict=True):
            better.append(gap(one, y) - gap(other, y))
            # Over-confident: surer than right, with both losses.
            both.append([xent.sigmoid(np.abs(z)).mean() - ((z > 0) == y).mean() for z in (one, other)])
    assert (np.array(both) > 0).all()
    assert np.mean(better) > 3 * np.std(better, ddof=1) / np.sqrt(len(better))


@pytest.mark.claim("09", "Temperature scaling takes both to nearly the same gap and the same log score")
@pytest.mark.claim(
    "09",
    "Dividing the logits by a temperature changes no decision; one fitted on held-out data closes most of the gap "
    "of an overfitted network.",
)
def test_a_temperature_repairs_an_overfitted_network() -> None:
    """Other networks; decisions also for random logits of many classes. Most: more than half, on average."""
    rng = np.random.default_rng(7)
    z = rng.standard_normal((1000, 7)) * 30
    scaled: list[list[float]] = []
    for T in (0.01, 19.5, 1e4):
        assert (xent.softmax(z / T).argmax(-1) == z.argmax(-1)).all()
    closed = []
    for gamma in (0.0, 2.0):
        held, label_held, new, label = networks(gamma, 1, TEXTURE)
        losses = []
        for a, y_a, b, y_b in zip(held, label_held, new, label, strict=True):
            fit = minimize_scalar(
                lambda t, a=a, y_a=y_a: xent.binary_cross_entropy(a / np.exp(t), y_a),
                bounds=(-3, 5),
                method="bounded",
            )
            losses.append(xent.binary_cross_entropy(b / np.exp(fit.x), y_b))
            if gamma == 0:
                closed.append(gap(b / np.exp(fit.x), y_b) / gap(b, y_b))
        scaled.append(losses)
    assert np.mean(closed) < 0.5 and max(closed) < 1
    # Before, the two losses differ by more than one nat; after, by the noise of five networks.
    assert abs(np.subtract(*scaled).mean()) < 0.03


# ------------------------------------------------------------------------------- logistic regressions

PAIRS = (TEXTURE, ("mean symmetry", "texture error"))


@cache
def logistic(columns: tuple[str, str], loss: str) -> tuple[Array, NDArray[np.int64]]:
    """Held-out logits of ten splits, by Newton's method where the loss is convex in the logits, else by L-BFGS."""
    cancer = load_breast_cancer()
    X = cancer.data[:, [list(cancer.feature_names).index(name) for name in columns]]
    A = np.column_stack([(X - X.mean(0)) / X.std(0), np.ones(len(X))])
    y = 1 - cancer.target
    logits, labels = [], []
    for seed in range(100, 110):
        rows = np.random.default_rng(seed).permutation(len(y))
        train, test = rows[:284], rows[284:568]
        sign = 2.0 * y[train] - 1

        def objective(w: Array, train: Array = train, sign: Array = sign) -> float:
            q = xent.sigmoid(sign * (A[train] @ w))
            each = {
                "log": -np.log(np.maximum(q, 1e-300)),
                "Brier": 2 * (1 - q) ** 2,
                "linear": 1 - q,
                "focal": -((1 - q) ** 2) * np.log(np.maximum(q, 1e-300)),
            }[loss]
            return float(each.mean() + 5e-4 * w[:2] @ w[:2])

        logits.append(A[test] @ minimize(objective, np.zeros(3)).x)
        labels.append(y[test])
    return np.array(logits), np.array(labels)


def sure(z: Array) -> Array:
    return np.asarray(xent.sigmoid(np.abs(z)).mean(-1))


@pytest.mark.claim(
    "09",
    "The linear score makes this model too sure, and focal loss makes it too timid; the inverse brings focal loss "
    "back, and its log score with it.",
)
@pytest.mark.claim("09", "Log and Brier are as close to the diagonal as chance allows.")
@pytest.mark.claim(
    "09", "The error rates hardly differ: from accuracy alone you would not have noticed any of this."
)
@pytest.mark.parametrize("columns", PAIRS)
def test_what_four_losses_make_of_a_logistic_regression(columns: tuple[str, str]) -> None:
    """Ten other splits, and two measurements that the chapter does not use; surer than right, or less sure."""
    rng = np.random.default_rng(9)
    z, y = {name: logistic(columns, name)[0] for name in ("log", "Brier", "linear", "focal")}, None
    y = logistic(columns, "log")[1]
    q = scoring.invert_focal(np.stack([xent.sigmoid(-z["focal"]), xent.sigmoid(z["focal"])], -1), gamma=2.0)
    z["inverted"] = np.log(q[..., 1] / q[..., 0])
    right = {name: ((v > 0) == y).mean(-1) for name, v in z.items()}
    excess = {name: (sure(v) - right[name]).mean() for name, v in z.items()}
    assert excess["linear"] > 0.05 and excess["focal"] < -0.05
    assert max(abs(excess[name]) for name in ("log", "Brier", "inverted")) < 0.04
    gaps = {name: np.mean([gap(a, b) for a, b in zip(v, y, strict=True)]) for name, v in z.items()}
    drawn = (rng.random(y.shape) < xent.sigmoid(z["log"])).astype(int)
    chance = np.mean([gap(a, b) for a, b in zip(z["log"], drawn, strict=True)])
    assert max(gaps["log"], gaps["Brier"]) < chance + 0.02
    assert min(gaps["linear"], gaps["focal"]) > chance + 0.03
    cost = {name: xent.binary_cross_entropy(v, y) for name, v in z.items()}
    assert abs(cost["inverted"] - cost["log"]) < 0.01 < min(cost["focal"], cost["linear"]) - cost["log"]
    assert max(np.abs(r.mean() - right["log"].mean()) for r in right.values()) < 0.03


# ------------------------------------------------------------------------------------ shapes of rules


@pytest.mark.claim(
    "09",
    "Smoothing and focal loss cross the diagonal at one half: they make the model less sure and leave its decisions "
    "alone. Class weights lift the whole curve, so they move the decisions too.",
)
@pytest.mark.claim(
    "09", "the order of the classes survives: the decision by the largest probability is the same."
)
def test_who_moves_decisions() -> None:
    """Reports of two to ten classes, near ties included: the order of the truths behind them; and with weights."""
    rng = np.random.default_rng(10)
    for classes in (2, 3, 10):
        q = normal(np.maximum(rng.dirichlet(np.ones(classes), size=300), 1e-6))
        q[:50] = normal(np.ones((50, classes)) + 1e-3 * rng.random((50, classes)))
        for gamma in (0.5, 2.0, 5.0):
            p = scoring.invert_focal(q, gamma=gamma)
            assert (np.argsort(p, -1) == np.argsort(q, -1)).all()
            if classes == 2:
                assert (q.max(-1) <= p.max(-1)).all()
        smoothed = 0.8 * q + 0.2 / classes
        assert (np.argsort(smoothed, -1) == np.argsort(q, -1)).all() and (smoothed.max(-1) <= q.max(-1)).all()
        weighted = normal(q * np.append(3.0, np.ones(classes - 1)))
        assert (weighted[:, 0] > q[:, 0]).all() and (weighted.argmax(-1) != q.argmax(-1)).any()


@pytest.mark.claim("09", "Up to them and to the unit, the logarithm is the only local strictly proper rule.")
@pytest.mark.claim("09", "so *every* binary rule is local")
@pytest.mark.claim(
    "09", "You may choose $s_1$ freely, as long as it decreases, and the equation gives $s_2$."
)
def test_local_rules_of_two_and_of_three_classes() -> None:
    """Four decreasing functions: with the rule of the equation none is improper; for three classes all are."""
    x = np.linspace(1e-3, 1 - 1e-3, 4001)
    derivatives = {
        "root": -1 / np.sqrt(x),
        "square": -2 * (1 - x),
        "exponential": -np.exp(-3 * x),
        "logarithm and more": -1 / x - 0.1 * x**5,
    }
    for name, slope in derivatives.items():
        first = np.concatenate([[0], np.cumsum((slope[1:] + slope[:-1]) / 2 * np.diff(x))])
        other = (x / (1 - x) * slope)[::-1]  # s_2'(1 - p) = p s_1'(p) / (1 - p)
        second = np.concatenate([[0], np.cumsum((other[1:] + other[:-1]) / 2 * np.diff(x))])
        for p in (0.05, 0.3, 0.5, 0.9):
            cost = p * first + (1 - p) * second[::-1]
            assert abs(x[cost.argmin()] - p) < 1e-3, name
        # Three classes, the same function for each: moving mass from class 1 to class 2 pays at the truth.
        truth = np.array([0.6, 0.3, 0.1])
        pull = truth * np.interp(truth, x, slope)
        assert np.ptp(pull) > 1e-3, name
    assert np.ptp(truth * (-1 / truth)) < 1e-12


@pytest.mark.claim(
    "09",
    "The second is what the reports can tell apart, and no relabelling that keeps different reports different",
)
def test_refinement_survives_relabelling() -> None:
    """Reports on a grid, renamed at random; merged instead, the refinement rises."""
    rng = np.random.default_rng(11)
    group = rng.integers(0, 8, 4000)
    y = (rng.random(4000) < (group + 0.5) / 8).astype(float)

    def parts(report: Array) -> tuple[float, float]:
        values, at = np.unique(report, return_inverse=True)
        share, rate = np.bincount(at) / len(y), np.bincount(at, y) / np.bincount(at)
        return float(share @ (values - rate) ** 2), float(share @ (rate * (1 - rate)))

    before = parts(group / 8)
    for _ in range(20):
        after = parts(rng.permutation(np.linspace(0, 1, 8))[group])
        assert after[1] == pytest.approx(before[1], rel=1e-12) and after[0] != before[0]
    assert parts(group // 2 / 4)[1] > before[1] + 0.001


@pytest.mark.claim(
    "09",
    "A second class below the clip gains nothing from its share, so the saving is then a little smaller.",
)
def test_two_classes_below_the_clip() -> None:
    """Random beliefs with one and with two classes below a clip of a tenth, against the formula's saving."""
    rng = np.random.default_rng(12)
    rule = partial(scoring.clipped_log_score, eps=0.1)
    for _ in range(50):
        a, b = rng.uniform(0.01, 0.09, 2)
        p = np.append((1 - a - b) * np.array([0.55, 0.45]), [a, b])
        saving = expected_score(rule, p, p) - expected_score(rule, p, normal(p * [1, 1, 1, 0]))
        formula = -(1 - b) * np.log(1 - b)
        assert 0.5 * formula < saving < formula
        one = np.append((1 - b) * np.array([0.55, 0.45]), b)
        alone = expected_score(rule, one, one) - expected_score(rule, one, normal(one * [1, 1, 0]))
        assert alone == pytest.approx(formula, rel=1e-9)
