"""Chapter 9's claims: what the losses ask for, and what trained models do."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, minimize_scalar
from sklearn.datasets import load_breast_cancer
from torch.nn.functional import logsigmoid

import xent
from adversary import SEED, Array, claim, distributions, logits, normal, rng
from xent import scoring
from xent.elicitation import elicited, expected_score

BELIEF = np.array([0.5, 0.3, 0.2])
FOCAL, SMOOTHED = (
    partial(scoring.focal_loss, gamma=2.0),
    partial(scoring.smoothed_log_score, label_smoothing=0.1),
)
RULES = (scoring.log_score, scoring.brier_score, scoring.spherical_score)


def beliefs(*sizes: int, least: float = 1e-6) -> Iterator[Array]:
    """Distributions of all kinds, ties and near ties among them, with no class below `least`."""
    for classes in sizes:
        g = rng(classes)
        found = [p for _, (p,) in distributions(g, classes)]
        found += [normal(np.ones(classes) + 1e-3 * g.random(classes)), np.r_[0.5, 0.5, np.zeros(classes - 2)]]
        yield from (normal(np.maximum(p, least)) for p in found)


def lies(p: Array, number: int = 60) -> Array:
    """Reports far from a belief, and near it."""
    near = p * np.exp(0.05 * rng(1).standard_normal((number, len(p))))
    return np.vstack([rng(1).dirichlet(np.ones(len(p)), number), normal(np.maximum(near, 1e-12))])


@claim(
    "The logarithm, the Brier score and the spherical score reward",
    on=lambda: itertools.product(RULES, beliefs(2, 3, 6, 60)),
    but_not={str(rule): (rule, BELIEF) for rule in (scoring.zero_one_score, FOCAL, SMOOTHED)},
)
def test_no_lie_is_cheaper_or_as_cheap(rule: Any, p: Array) -> None:
    others = lies(p)
    # A lie that moves p by less than this costs less than the rounding of the score.
    others = others[np.square(others - p).sum(-1) > 1e-12]
    assert (expected_score(rule, p, others) > expected_score(rule, p, p)).all()


@claim(
    "Accuracy is proper but blind: ... ties with the truth.",
    on=lambda: ((scoring.zero_one_score, p) for p in (*beliefs(2, 3, 6, 60), np.array([0.4, 0.4, 0.2]))),
    but_not={
        "Brier's score": (RULES[1], BELIEF),
        "a tie that costs nothing": (lambda q, y: np.ceil(scoring.zero_one_score(q, y) - 0.999), BELIEF),
    },
)
def test_accuracy_cannot_tell_reports_with_the_same_winner(rule: Any, p: Array) -> None:
    """The same winner ties, and no other report, a tie of two classes included, gains."""
    reports = np.vstack([lies(p), normal(np.eye(len(p))[0] + np.eye(len(p))[1])])
    cost, honest = (expected_score(rule, p, q) for q in (reports, p))
    same = (reports.argmax(-1) == p.argmax()) & (np.sort(reports)[:, -1] > np.sort(reports)[:, -2])
    if np.sort(p)[-1] > np.sort(p)[-2]:
        np.testing.assert_allclose(cost[same], honest, rtol=1e-12)
    assert (cost >= honest - 1e-12).all()


CLIPS = (1e-5, 1e-3, 0.05, 0.2)


def clipped(eps: float, *rare: float, others: Any = (0.55, 0.45)) -> tuple[float, Array]:
    """A belief with rare classes of these shares of the clip, whose sum stays small."""
    small = np.array(rare) * eps * min(1, 0.3 / (eps * max(1, sum(rare))))
    return eps, np.r_[(1 - small.sum()) * np.array(others), small]


@claim(
    "With two classes, the clipped logarithm is proper but hides how rare a class below the clip is",
    on=[(eps, np.array([q, 1 - q])) for eps in CLIPS for q in (0.5, 0.999, 0.3, eps, eps / 2)],
    but_not={"three classes": clipped(0.05, 0.5), "many": clipped(0.2, *[0.5] * 9)},
)
def test_two_classes_can_be_clipped(eps: float, p: Array) -> None:
    """No lie pays; below the clip every report ties with the truth."""
    rule, first = partial(scoring.clipped_log_score, eps=eps), np.linspace(0, 1, 501)
    reports = (
        np.stack([first, 1 - first], -1) if len(p) == 2 else np.vstack([lies(p), normal(np.r_[p[:-1], 0])])
    )
    assert (expected_score(rule, p, reports) >= expected_score(rule, p, p) - 1e-12).all()
    if p[0] < eps:
        assert np.ptp(expected_score(rule, p, np.array([p, [0.0, 1.0], [eps / 9, 1 - eps / 9]]))) < 1e-15


@claim(
    "with three or more, it can pay to call such a class impossible.",
    r"The saving is less than $p_K$, and so less than $\varepsilon$.",
    on=[clipped(eps, rare) for eps in CLIPS for rare in (0.01, 0.5, 0.99)]
    + [clipped(1e-5, rare, others=np.full(k, 1 / k)) for rare in (0.1, 0.9) for k in (10, 1000)],
    but_not={
        "nobody within the interval to share it": clipped(0.05, 0.2, others=(0.97, 0.02)),
        "less than the clip for a tail": (*clipped(1e-7, *[0.9] * 50_000, others=[0.1] * 10), 50_000),
    },
)
def test_clipping_pays_from_three_classes_on(eps: float, p: Array, zeroed: int = 1) -> None:
    """By the definition, and by xent's rule."""
    reports = np.array([p, normal(np.r_[p[:-zeroed], np.zeros(zeroed)])])
    rare, honest_less_lie = p[-zeroed:].sum(), -np.log(np.clip(reports, eps, 1 - eps)) @ p @ [1, -1]
    assert 0 < honest_less_lie < min(rare, eps)
    assert honest_less_lie == pytest.approx(-(1 - rare) * np.log1p(-rare), rel=1e-6, abs=1e-14)
    cost = expected_score(partial(scoring.clipped_log_score, eps=eps), p, reports)
    assert cost[0] - cost[1] == pytest.approx(honest_less_lie, rel=1e-6, abs=1e-14)


Inverse = Callable[..., Array]


def bends(share: float = 1.0) -> Iterator[tuple[Inverse, Array, Array]]:
    """An inverse, a report on the way from a belief to the minimum, which a search found, and the belief."""
    g = rng(5)
    for classes in (2, 3) if share == 1 else (2,):
        w, eps, gamma = np.r_[6.0, g.uniform(1, 5, classes - 1)], g.uniform(0.05, 0.4), g.uniform(0.5, 3)
        for rule, inverse, how in (
            (scoring.weighted_log_score, scoring.invert_weighting, {"weight": w}),
            (scoring.smoothed_log_score, scoring.invert_smoothing, {"label_smoothing": eps}),
            (scoring.focal_loss, scoring.invert_focal, {"gamma": gamma}),
        ):
            for p in normal(g.dirichlet(np.full(classes, 1.5), size=4 - classes) + 0.2):
                q = elicited(partial(rule, **how), p)
                yield partial(inverse, **how), share * q + (1 - share) * p, p


@claim(
    "Class weights, label smoothing and focal loss elicit bent",
    "With positive weights and ε below 1, each distortion",
    on=bends,
    but_not=lambda: (
        {f"half of the way there, {k}": case for k, case in enumerate(bends(0.5))}
        | {"a weight of zero": (partial(scoring.invert_weighting, weight=[0.0, 1, 1]), BELIEF, BELIEF)}
        | {"a smoothing of one": (partial(scoring.invert_smoothing, label_smoothing=1.0), BELIEF, BELIEF)}
    ),
)
def test_what_is_bent_can_be_bent_back_only_from_the_minimum(inverse: Inverse, q: Array, p: Array) -> None:
    try:
        np.testing.assert_allclose(inverse(q), p, atol=1e-5)
    except ValueError as error:
        raise AssertionError from error


# ------------------------------------------------------------------------------------- trained models


TEXTURE = ("mean texture", "mean smoothness")


def tumours(columns: tuple[str, str]) -> tuple[Array, Array]:
    """Two standardised measurements, and 1 for malignant."""
    cancer = load_breast_cancer()
    X = cancer.data[:, [list(cancer.feature_names).index(name) for name in columns]]
    return (X - X.mean(0)) / X.std(0), 1 - cancer.target


def gap(z: Array, label: Array) -> float:
    """The mean distance between report and frequency, over eight bins of equal size."""
    p = xent.sigmoid(z)
    parts = np.array_split(np.argsort(p, kind="stable"), 8)
    return float(np.mean([abs(p[i].mean() - label[i].mean()) for i in parts]))


@cache
def networks(gamma: float, seed: int, columns: tuple[str, str], steps: int = 300) -> tuple[Array, ...]:
    """Five networks on 120 tumours, in the end nearly memorised: logits and labels, held out and new."""
    X, y = tumours(columns)
    rows = np.stack([np.random.default_rng([seed + SEED, k]).permutation(len(y)) for k in range(5)])
    train, held, new = np.split(rows, [120, 270], axis=1)
    draw = torch.Generator().manual_seed(seed + SEED)
    shapes = ((2, 32), (1, 32), (32, 32), (1, 32), (32, 1))
    w = [torch.randn(5, *s, generator=draw).double() / (32**0.5 if s[0] == 32 else 1) for s in shapes]
    for part in w:
        part.requires_grad_()

    def logits(some: Array) -> torch.Tensor:
        layer = torch.relu(torch.tensor(X[some]) @ w[0] + w[1])
        return (torch.relu(layer @ w[2] + w[3]) @ w[4])[..., 0]

    sign = torch.tensor(2.0 * y[train] - 1)
    optimiser = torch.optim.Adam(w, lr=0.02)
    for _ in range(steps):
        log_q = logsigmoid(sign * logits(train))
        optimiser.zero_grad()
        (-((1 - log_q.exp()) ** gamma * log_q).mean(1).sum()).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    with torch.no_grad():
        return logits(held).numpy(), y[held], logits(new).numpy(), y[new]


@claim(
    "The largest probability itself comes out too small if",
    "Focal loss elicits too low a report for any class whose ... one half and 1;",
    on=lambda: ((k, gamma, False) for k in (2, 3, 5, 100, 1000) for gamma in (0.5, 1.0, 2.0, 5.0)),
    but_not={"the two exchanged": (3, 2.0, True)},
)
def test_focal_loss_is_timid(classes: int, gamma: float, exchanged: bool) -> None:
    """By search and by the inverse."""
    g = rng(8)
    q = np.maximum([g.dirichlet(a * np.ones(classes)) for a in np.exp(g.uniform(-4, 3, 200))], 1e-9)
    q[:50, 0] += g.exponential(size=50)
    pair = normal(q).max(-1), scoring.invert_focal(normal(q), gamma=gamma).max(-1)
    said, true = pair[::-1] if exchanged else pair
    likely = (true > 0.5) & (true < 1 - 1e-6)
    assert likely.any() and (said[likely] < true[likely]).all()
    assert classes > 3 or (said <= true + 1e-9).all()
    for p in ([0.9, 0.1], [0.51, 0.49], [0.6, 0.3, 0.1]) if (classes, gamma) == (3, 2.0) else ():
        assert max(elicited(FOCAL, p)) < max(p)


@pytest.mark.slow
@claim("it made overfitted networks less overconfident.", on=[1], but_not={"the losses exchanged": -1})
def test_focal_loss_and_overfitted_networks(sign: int) -> None:
    """Other splits and starts, two pairs of measurements; both losses over-confident, paired differences."""
    better, both = [], []
    for seed, columns in ((1, TEXTURE), (2, ("mean symmetry", "texture error"))):
        for one, other, y in zip(
            *(networks(t, seed, columns)[2] for t in (0.0, 2.0)), networks(0.0, seed, columns)[3], strict=True
        ):
            better.append(sign * (gap(one, y) - gap(other, y)))
            both.append([xent.sigmoid(np.abs(z)).mean() - ((z > 0) == y).mean() for z in (one, other)])
    for gain in (np.array(better), *np.array(both).T):
        assert gain.mean() > 2.5 * gain.std(ddof=1) / np.sqrt(len(gain))


def decisions() -> Iterator[tuple[Array, Array]]:
    for classes in (2, 7, 1000):
        for _, z in logits(rng(7), 50, classes):
            apart = np.sort(z)[:, -1] - np.sort(z)[:, -2] > 1e-9  # two a rounding apart may tie
            if apart.any():
                yield from ((z[apart], z[apart] / T) for T in (0.01, 19.5, 1e4))


MARGINS = 3 * rng(7).normal(size=(1000, 1))


@claim(
    "Dividing the logits by a temperature leaves the most probable class unchanged;",
    on=decisions,
    but_not={
        "a temperature for each class": (MARGINS * np.arange(1, 4), MARGINS * np.array([1, 1 / 2, 1 / 9])),
        "a threshold of 0.8": tuple(np.hstack([0 * v, v - np.log(4)]) for v in (MARGINS, MARGINS / 3)),
    },
)
def test_a_temperature_keeps_the_decision(z: Array, divided: Array) -> None:
    assert (divided.argmax(-1) == z.argmax(-1)).all()


@cache
def scaled() -> dict[tuple[str, float], Array]:
    """Gap and log score of networks trained with gamma 0 and 2, before and after a temperature is fitted.

    By chance alone: with labels that are drawn from the latter's reports.
    """
    found: dict[tuple[str, float], list[Any]] = defaultdict(list)
    for gamma, most in ((0.0, 2001), (2.0, 401)):
        for seed in range(1, most, 100):
            for a, y_a, b, y_b in zip(*networks(gamma, seed, TEXTURE), strict=True):
                loss = lambda t, a=a, y=y_a: xent.binary_cross_entropy(a / np.exp(t), y)  # noqa: E731
                fit = minimize_scalar(loss, bounds=(-3, 5), method="bounded")
                z = b / np.exp(fit.x)
                drawn = (rng(seed).random(len(z)) < xent.sigmoid(z)).astype(int)
                for when, v, y in (("before", b, y_b), ("after", z, y_b), ("chance", z, drawn)):
                    found[when, gamma].append((gap(v, y), xent.binary_cross_entropy(v, y)))
    return {key: np.array(value) for key, value in found.items()}


@pytest.mark.slow
@claim(
    "Temperature scaling brings both to nearly the same gap and",
    "a temperature fitted on held-out data closed about three fifths",
    on=[("after", 0.6, "before")],
    but_not={
        "half": ("after", 0.5, "before"),
        "before scaling": ("before", 0.6, "before"),
        "no temperature": ("after", 0.6, "after"),
    },
)
def test_a_temperature_repairs_an_overfitted_network(when: str, share: float, first: str) -> None:
    """Three fifths of the mean over a hundred; by the noise of twenty networks for the other loss."""
    log, focal = scaled()[when, 0.0].mean(0), scaled()[when, 2.0].mean(0)
    chance, before = scaled()["chance", 0.0].mean(0)[0], scaled()[first, 0.0].mean(0)[0]
    assert 1 - (log[0] - chance) / (before - chance) == pytest.approx(0.8, abs=0.07)
    assert abs(log[0] - focal[0]) < 0.03 and abs(log[1] - focal[1]) < 0.04
    assert abs(1 - log[0] / before - share) < 0.05


@pytest.mark.slow
def fits_better_than_what_a_temperature_repairs(columns: tuple[str, str], seen: Any) -> None:
    """Against twenty repaired networks, other splits and starts; paired differences of log score and errors.

    The rival is a logistic regression on so many tumours, or the network at the best of some steps, by the loss on
    what the temperature was fitted to.
    """
    X, y = tumours(columns)
    A, gain = np.column_stack([X, np.ones(len(X))]), []
    for seed in range(301, 305):
        stopped = [networks(0.0, seed, columns, steps) for steps in seen] if isinstance(seen, tuple) else []
        for k, (a, y_a, b, y_b) in enumerate(zip(*networks(0.0, seed, columns), strict=True)):
            cost = lambda t, a=a, y=y_a: xent.binary_cross_entropy(a / np.exp(t), y)  # noqa: E731
            repaired = b / np.exp(minimize_scalar(cost, bounds=(-3, 5), method="bounded").x)
            rows = np.random.default_rng([seed + SEED, k]).permutation(len(y))

            def fitted(w: Array, rows: Array = rows) -> float:
                return float(
                    xent.binary_cross_entropy(A[rows[:seen]] @ w, y[rows[:seen]]) + 5e-4 * w[:2] @ w[:2]
                )

            if stopped:
                rival = min(stopped, key=lambda n, k=k: xent.binary_cross_entropy(n[0][k], n[1][k]))[2][k]
            else:
                rival = A[rows[270:]] @ minimize(fitted, np.zeros(3)).x
            both = repaired, rival
            losses, right = (
                [f(z, y_b) for z in both]
                for f in (xent.binary_cross_entropy, lambda z, t: ((z > 0) == t).mean())
            )
            gain.append([losses[0] - losses[1], right[1] - right[0]])
    mean, error = np.mean(gain, axis=0), np.std(gain, axis=0, ddof=1) / len(gain) ** 0.5
    assert (mean > 2.5 * error).all()


OTHERS = ("mean symmetry", "texture error")
test_a_logistic_regression = claim(
    "a logistic regression on the same 120 tumours",
    on=[(TEXTURE, 120), (OTHERS, 120)],
    but_not={"on six of them": (TEXTURE, 6)},
)(fits_better_than_what_a_temperature_repairs)
test_the_network_stopped_early = claim(
    "so does the network itself, stopped early",
    on=[(columns, (10, 20, 40, 80)) for columns in (TEXTURE, OTHERS)],
    but_not={"stopped late": (TEXTURE, (300,))},
)(fits_better_than_what_a_temperature_repairs)


LOSSES: dict[str, Any] = {
    "log": RULES[0],
    "Brier": RULES[1],
    "linear": scoring.linear_score,
    "focal": FOCAL,
}


@cache
def measured(columns: tuple[str, str]) -> dict[str, Array]:
    """By loss, on ten splits: surer than right by how much, the gap, the log score, the rate of right answers.

    Beside the four losses, the inverse of the focal one, and labels that are drawn from what the logarithm reports.
    """
    X, y = tumours(columns)
    A = np.column_stack([X, np.ones(len(X))])
    found: dict[str, list[Any]] = defaultdict(list)
    for seed in range(100, 110):
        rows = np.random.default_rng(seed + SEED).permutation(len(y))
        train, test = rows[:284], rows[284:568]
        sign, z = 2.0 * y[train] - 1, {}
        for name, rule in LOSSES.items():

            def objective(w: Array, rule: Any = rule, train: Array = train, sign: Array = sign) -> float:
                q = np.clip(xent.sigmoid(sign * (A[train] @ w)), 1e-300, 1)
                each = rule(np.stack([q, 1 - q], -1), np.zeros(len(q), int))
                return float(np.mean(each) + 5e-4 * w[:2] @ w[:2])

            z[name] = A[test] @ minimize(objective, np.zeros(3)).x
        q = scoring.invert_focal(xent.softmax(np.stack([0 * z["focal"], z["focal"]], -1)), gamma=2.0)
        drawn = (rng(seed).random(len(test)) < xent.sigmoid(z["log"])).astype(int)
        z |= {"inverted": np.log(q[:, 1] / q[:, 0]), "chance": z["log"]}
        for name, v in z.items():
            label = drawn if name == "chance" else y[test]
            right, cost = ((v > 0) == label).mean(), xent.binary_cross_entropy(v, label)
            found[name].append((xent.sigmoid(np.abs(v)).mean() - right, gap(v, label), cost, right))
    return {name: np.mean(rows, axis=0) for name, rows in found.items()}


@claim(
    "The linear score makes this model overconfident, and focal",
    "The log and Brier models are about as close to the diagonal",
    "The error rates hardly differ: ... any of this.",
    on=[
        (columns, "linear", "focal", "Brier", "inverted")
        for columns in (TEXTURE, ("mean symmetry", "texture error"))
    ],
    but_not={
        "the two exchanged": (TEXTURE, "focal", "linear", "Brier", "inverted"),
        "focal loss as the logarithm": (TEXTURE, "linear", "focal", "focal", "inverted"),
        "focal loss that is not inverted": (TEXTURE, "linear", "focal", "Brier", "focal"),
    },
)
def test_what_four_losses_make_of_a_logistic_regression(
    columns: tuple[str, str], bold: str, timid: str, plain: str, mended: str
) -> None:
    """Ten other splits, and two measurements that the chapter does not use."""
    excess, gaps, cost, right = ({k: v[i] for k, v in measured(columns).items()} for i in range(4))
    assert excess[bold] > 0.05 and excess[timid] < -0.05
    assert max(abs(excess[name]) for name in ("log", plain, mended)) < 0.04
    assert max(gaps["log"], gaps[plain]) < gaps["chance"] + 0.02
    assert min(gaps[bold], gaps[timid]) > gaps["chance"] + 0.03
    assert abs(cost[mended] - cost["log"]) < 0.01 < min(cost[timid], cost[bold]) - cost["log"]
    assert max(abs(right[name] - right["log"]) for name in (bold, timid, plain, mended)) < 0.03


# ------------------------------------------------------------------------------------ shapes of rules


def reports(classes: int) -> Array:
    """Near ties included, and no ties."""
    q = np.maximum(rng(10).dirichlet(np.ones(classes), size=100), 1e-6)
    q[:30] = np.ones((30, classes)) + 1e-3 * rng(10).random((30, classes))
    return normal(normal(q) * (1 + 1e-9 * np.arange(classes)))


def truths(q: Array) -> Iterator[tuple[Array, Array]]:
    """Of reports under focal losses, the truths; of truths, the smoothed reports."""
    yield from ((q, scoring.invert_focal(q, gamma=gamma)) for gamma in (0.5, 2.0, 5.0))
    yield from (((1 - eps) * q + eps / q.shape[1], q) for eps in (0.05, 0.4, 0.8))


@pytest.mark.slow
@claim(
    "The curves for smoothing and focal loss cross the diagonal",
    "the classes keep their order, ... stays the same.",
    on=lambda: (case for k in (2, 3, 10, 1000) for case in truths(reports(k))),
    but_not=lambda: {
        f"weights, {k} classes": (normal(reports(k) * np.r_[3.0, np.ones(k - 1)]), reports(k))
        for k in (2, 3, 10)
    },
)
def test_who_keeps_decisions(q: Array, p: Array) -> None:
    """The order of the reports is that of the truths, and two classes are reported as less sure."""
    if q.shape[1] <= 10:
        assert (np.argsort(p, -1, kind="stable") == np.argsort(q, -1, kind="stable")).all()
    assert (p.argmax(-1) == q.argmax(-1)).all()
    assert q.shape[1] > 2 or (q.max(-1) <= p.max(-1)).all()


GRID = np.linspace(0.01, 0.99, 99)
TWO = np.stack([GRID, 1 - GRID], -1)
FOCAL_TRUTH = scoring.invert_focal(TWO, gamma=2.0)[:, 0]


@claim(
    "They do change decisions at other thresholds.",
    "Unequal class weights change the decision at one half too.",
    on=[
        *((*pair, t) for pair in ((0.7 * GRID + 0.15, GRID), (GRID, FOCAL_TRUTH)) for t in (0.6, 0.75, 0.9)),
        *((normal(TWO * [ratio, 1])[:, 0], GRID, 0.5) for ratio in (0.1, 0.9, 1.2, 20)),
    ],
    but_not={
        "smoothing at one half": (0.7 * GRID + 0.15, GRID, 0.5),
        "focal loss at one half": (GRID, FOCAL_TRUTH, 0.5),
        "equal weights": (normal(TWO * [5, 5])[:, 0], GRID, 0.5),
    },
)
def test_who_moves_decisions(report: Array, truth: Array, threshold: float) -> None:
    sides = np.abs(truth - threshold) > 1e-6
    assert ((report > threshold + 1e-9) != (truth > threshold))[sides].any()


X = np.linspace(1e-3, 1 - 1e-3, 4001)
SLOPES = {
    "root": -1 / np.sqrt(X),
    "square": -2 * (1 - X),
    "exponential": -np.exp(-3 * X),
    "logarithm and more": -1 / X - 0.1 * X**5,
    "any": np.interp(X, np.linspace(0, 1, 9), -rng(11).exponential(size=9) - 0.1),
}


@claim(
    "For three or more classes, then, among the local rules ... and the unit of cost.",
    on=[-1 / X, -7 / X],
    but_not=SLOPES,
)
def test_local_rules_of_three_classes(slope: Array) -> None:
    """Otherwise moving mass from one class to another pays at the truth."""
    truth = np.array([0.6, 0.3, 0.1])
    assert np.ptp(truth * np.interp(truth, X, slope)) < 1e-3
