"""Chapter 9's claims: what the losses ask for, and what trained models do."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar
from sklearn.datasets import load_breast_cancer
from torch.nn.functional import logsigmoid

import xent
from adversary import SEED, Draw, distributions, logits, refuted, rng, weights
from xent import denominators, scoring
from xent.elicitation import elicited, expected_score

Array = NDArray[np.float64]


def normal(p: Array) -> Array:
    return np.asarray(p / p.sum(-1, keepdims=True))


def beliefs(g: Draw, classes: int, least: float = 1e-6) -> list[Array]:
    """Distributions of all kinds, ties and near ties among them, with no class below `least`."""
    found = [p for _, (p,) in distributions(g, classes)]
    found += [normal(np.ones(classes) + 1e-3 * g.random(classes)), np.r_[0.5, 0.5, np.zeros(classes - 2)]]
    return [normal(np.maximum(p, least)) for p in found]


@pytest.mark.claim(
    "09",
    "The logarithm, Brier's score and the spherical score pay for the true probabilities and for nothing else: "
    "they are strictly proper.",
)
def test_no_lie_is_cheaper_or_as_cheap() -> None:
    """Lies near and far, under beliefs of every kind over two to 60 classes, zeros and next to certain ones included.

    Would be refuted by a belief under which a lie costs no more than the truth.
    """
    g = rng(1)

    def says(rule: scoring.Rule, p: Array) -> None:
        far = g.dirichlet(np.ones(len(p)), size=60)
        near = normal(np.maximum(p * np.exp(0.05 * g.standard_normal((60, len(p)))), 1e-12))
        lies = np.vstack([far, near])
        # A lie that moves p by less than this costs less than the rounding of the score.
        lies = lies[np.square(lies - p).sum(-1) > 1e-12]
        assert (expected_score(rule, p, lies) > expected_score(rule, p, p)).all()

    for rule in (scoring.log_score, scoring.brier_score, scoring.spherical_score):
        for classes in (2, 3, 6, 60):
            for p in beliefs(g, classes):
                says(rule, p)
    p = np.array([0.5, 0.3, 0.2])
    for bent in (
        scoring.zero_one_score,
        partial(scoring.focal_loss, gamma=2.0),
        partial(scoring.smoothed_log_score, label_smoothing=0.1),
    ):
        with refuted("a rule that is not strictly proper"):
            says(bent, p)


@pytest.mark.claim(
    "09",
    "Accuracy is proper but blind: every report that names the truth's single most probable class ties with "
    "the truth.",
)
def test_accuracy_cannot_tell_reports_with_the_same_winner() -> None:
    """Reports of every shape for beliefs of every kind: the same winner ties exactly, another one never gains.

    Would be refuted by a report with the same winner and another score.
    """
    g = rng(2)

    def says(rule: scoring.Rule, p: Array) -> None:
        reports = g.dirichlet(np.ones(len(p)), size=200)
        reports[:20] = normal(p * np.exp(g.normal(size=(20, len(p)))))
        cost, honest = (expected_score(rule, p, q) for q in (reports, p))
        same = reports.argmax(-1) == p.argmax()
        np.testing.assert_allclose(cost[same], honest, rtol=1e-12)
        assert (cost >= honest - 1e-12).all()

    for classes in (2, 3, 6, 60):
        for p in beliefs(g, classes):
            says(scoring.zero_one_score, p)
    with refuted("Brier's score"):
        says(scoring.brier_score, np.array([0.5, 0.3, 0.2]))
    # Of two most probable classes a report may name the other one: it ties as well.
    tied = expected_score(scoring.zero_one_score, [0.4, 0.4, 0.2], [[0.6, 0.3, 0.1], [0.3, 0.6, 0.1]])
    assert tied == pytest.approx([0.6, 0.6])
    # A tie is a guess. Without that a report of ties would always be right, and the rule improper.
    half = np.array([[0.5, 0.5, 0.0]])

    def never_gains(rule: scoring.Rule) -> None:
        p = np.array([0.4, 0.35, 0.25])
        assert (expected_score(rule, p, half) >= expected_score(rule, p, p)).all()

    never_gains(scoring.zero_one_score)
    with refuted("a tie that costs nothing"):
        never_gains(lambda q, y: np.ceil(scoring.zero_one_score(q, y) - 0.999))


@pytest.mark.claim("09", "The absolute error pays for certainty in the most probable class.")
@pytest.mark.claim(
    "09",
    "So the mean absolute error on one-hot targets is lowest for a classifier that says 0 and 1 wherever one class is "
    "the most probable.",
)
def test_the_absolute_error_is_least_at_a_corner() -> None:
    """Close races included: the leader ahead by one in a thousand is still called certain.

    Would be refuted by a belief with one leader, for whom less than certainty costs no more.
    """
    g = rng(3)

    def says(p: Array, power: float) -> None:
        outcomes, corner = np.eye(len(p)), np.eye(len(p))[p.argmax()]
        reports = [*g.dirichlet(np.ones(len(p)), size=200), p, 0.9 * corner + 0.1 * p]
        cost = np.array([(np.abs(outcomes - q) ** power).sum(-1) @ p for q in reports])
        away = np.abs(np.array(reports) - corner).sum(-1) > 1e-9
        assert (cost[away] > ((np.abs(outcomes - corner) ** power).sum(-1) @ p)).all()

    for p in (np.array([0.501, 0.499]), np.array([0.334, 0.333, 0.333])):
        says(p, 1)
    for classes in (2, 5, 40):
        for p in beliefs(g, classes):
            if np.sort(p)[-1] > np.sort(p)[-2] * (1 + 1e-6):
                says(p, 1)
    with refuted("the squared error"):
        says(np.array([0.5, 0.3, 0.2]), 2)


@pytest.mark.claim(
    "09",
    "With two classes the clipped logarithm is proper, but hides how rare a class below the clip is; "
    "with three or more it can pay to call such a class impossible.",
)
@pytest.mark.claim(
    "09",
    "If several classes are below the clip and you report them all as zero, $p_K$ stands for their sum.",
)
@pytest.mark.claim("09", r"The saving is less than $p_K$, and so less than $\varepsilon$ for a single class:")
def test_clipping_pays_from_three_classes_on() -> None:
    """Random clips; two classes at the end of the interval; one class below it and up to 50,000, against the formula.

    Would be refuted by a belief over two classes under which a lie costs less, by no belief over three, or by classes
    below the clip whose sum is not what reporting them as zero saves by.
    """
    g = rng(4)

    def no_lie_pays(rule: scoring.Rule, p: Array, lies: Array) -> None:
        assert (expected_score(rule, p, lies) >= expected_score(rule, p, p) - 1e-12).all()

    grid = np.linspace(0, 1, 501)
    for eps in (1e-7, 1e-3, 0.05, 0.2, *g.uniform(1e-3, 0.3, 4)):
        rule = partial(scoring.clipped_log_score, eps=eps)
        for first in (0.5, eps, eps / 2, 0.999, *g.random(20)):
            no_lie_pays(rule, np.array([first, 1 - first]), np.stack([grid, 1 - grid], -1))
        # Hidden: every report below the clip ties with the truth.
        p = np.array([eps / 3, 1 - eps / 3])
        tied = np.array([[0.0, 1.0], [eps / 9, 1 - eps / 9]])
        assert np.ptp(np.r_[expected_score(rule, p, tied), expected_score(rule, p, p)]) < 1e-15
        for rare in ([0.5], [0.5, 0.4], [0.9, 0.1, 0.3]):
            small = np.array(rare) * eps / 2
            p = np.append((1 - small.sum()) * np.array([0.55, 0.45]), small)
            zeroed = normal(np.append(p[:-1], 0.0))
            saving = expected_score(rule, p, p) - expected_score(rule, p, zeroed)
            # About p_K; the costs are of order one, so 1e-15 of it is rounding.
            assert saving > 0.5 * p[-1] and (saving > 1e-9 or eps < 1e-6)
            if eps > 1e-6:
                with refuted("three classes"):
                    no_lie_pays(rule, p, zeroed[None])
    # It need not: where the first class has left the interval at the upper end, there is nobody to give the mass to.
    rule, p = partial(scoring.clipped_log_score, eps=0.05), np.array([0.97, 0.02, 0.01])
    assert expected_score(rule, p, normal(p * [1, 1, 0])) == expected_score(rule, p, p)

    def saves(p: Array, zeroed: int, rare: int, eps: float) -> float:
        """By the formula, with the sum of the last `rare` classes, from reporting `zeroed` of them as zero."""

        def cost(q: Array) -> float:  # one belief, not a search: as fast over a vocabulary
            return float(-p @ np.log(np.clip(q, eps, 1 - eps)))

        saving, mass = cost(p) - cost(normal(np.append(p[:-zeroed], np.zeros(zeroed)))), p[-rare:].sum()
        assert saving == pytest.approx(-(1 - mass) * np.log1p(-mass), rel=1e-6, abs=1e-14)
        assert saving < mass
        return saving

    def below_the_clip(saving: float, eps: float) -> None:
        assert saving < eps

    for eps in (1e-7, 0.01, 0.1, *g.uniform(1e-3, 0.2, 20)):
        for rare in (1, 2, 3, 40, 1000):
            # With a lid on their sum the others stay within the interval.
            small = eps * g.random(rare) * min(1.0, 0.3 / (eps * rare))
            p = np.append((1 - small.sum()) * np.array([0.55, 0.45]), small)
            saving = saves(p, rare, rare, eps)
            if rare == 1:
                below_the_clip(saving, eps)
            elif eps > 1e-6:
                with refuted("the last class alone, of several"):
                    saves(p, 1, rare, eps)
    vocabulary = np.append(np.full(10, (1 - 50_000 * 9e-8) / 10), np.full(50_000, 9e-8))
    with refuted("the tail of a vocabulary, no curiosity"):
        below_the_clip(saves(vocabulary, 50_000, 50_000, 1e-7), 1e-7)


@pytest.mark.claim(
    "09",
    "Class weights, label smoothing and focal loss elicit bent probabilities. With positive weights and "
    "ε below 1, each distortion can be undone if the model has reached what its loss elicits.",
)
@pytest.mark.parametrize("classes", [2, 3])
def test_what_is_bent_can_be_bent_back_only_from_the_minimum(classes: int) -> None:
    """The search's own minimum bends back, for random strengths; a report on half of the way there does not.

    Would be refuted by a belief that does not come back from the minimum, or comes back from elsewhere.
    """
    g = rng(5)
    weight, eps, gamma = g.uniform(1, 5, classes), g.uniform(0.05, 0.4), g.uniform(0.5, 3)
    weight[0] = 6.0

    def says(inverse: Callable[[Array], Array], q: Array, p: Array) -> None:
        np.testing.assert_allclose(inverse(q), p, atol=1e-5)

    for rule, inverse in (
        (
            partial(scoring.weighted_log_score, weight=weight),
            partial(scoring.invert_weighting, weight=weight),
        ),
        (
            partial(scoring.smoothed_log_score, label_smoothing=eps),
            partial(scoring.invert_smoothing, label_smoothing=eps),
        ),
        (partial(scoring.focal_loss, gamma=gamma), partial(scoring.invert_focal, gamma=gamma)),
    ):
        for p in normal(g.dirichlet(np.full(classes, 1.5), size=7 - 2 * classes) + 0.03):
            q = elicited(rule, p)
            says(inverse, q, p)
            half = (q + p) / 2
            if np.abs(q - p).max() > 0.05 and (half >= eps / classes + 1e-3).all():
                with refuted("a report on half of the way"):
                    says(inverse, half, p)
    for lost in (
        lambda q: scoring.invert_weighting(q, weight=[0.0, *weight[1:]]),
        lambda q: scoring.invert_smoothing(q, label_smoothing=1.0),
    ):
        with pytest.raises(ValueError):
            lost(np.full(classes, 1 / classes))


@pytest.mark.claim(
    "09",
    "Over small random batches, a class-weighted loss bends the odds of two classes less when divided by "
    "the batch's own sum of weights than when divided by a constant.",
)
@pytest.mark.claim(
    "09",
    "PyTorch's weighted mean over class indices divides by the sum of the weights *in the batch*, so "
    "small batches of independent draws bend the odds of two classes less.",
)
def test_the_batch_takes_part_of_the_weights_back() -> None:
    """All batches enumerated, of one to four; random shares and weights of every kind; PyTorch's own means.

    Would be refuted by a batch that takes nothing back, as a constant divisor does, or more than there was, or by a
    mean over class indices that divides by something else, as PyTorch's over one-hot labels does and Keras's.
    """
    g = rng(6)

    def divides_by_its_weights(labels: Callable[[torch.Tensor], torch.Tensor]) -> None:
        z, y = torch.tensor(g.normal(size=(4, 3))), torch.tensor([0, 1, 2, g.integers(3)])
        w = torch.tensor(g.uniform(0.1, 0.9, 3))  # the sum is not the number of rows
        mean = torch.nn.functional.cross_entropy(z, labels(y), weight=w)
        own = -z.log_softmax(-1)[torch.arange(4), y]
        torch.testing.assert_close(mean, (w[y] * own).sum() / w[y].sum())

    divides_by_its_weights(lambda y: y)
    with refuted("the weighted mean over one-hot labels"):
        divides_by_its_weights(lambda y: torch.nn.functional.one_hot(y, 3).double())

    def learnt(p: Array, w: Array, size: int, constant: bool) -> Array:
        """What the mean of PyTorch's losses teaches: minus its slope in each log-probability, over all batches."""
        log_q = torch.zeros(len(p), dtype=torch.float64, requires_grad=True)
        for batch in itertools.product(range(len(p)), repeat=size):
            y = torch.tensor(batch)
            kind, divisor = ("sum", float(size)) if constant else ("mean", 1.0)
            loss = torch.nn.functional.nll_loss(log_q.expand(size, -1), y, torch.tensor(w), reduction=kind)
            (float(p[list(batch)].prod()) * loss / divisor).backward()
        assert log_q.grad is not None
        return normal(-log_q.grad.numpy())

    def says(q: Array, p: Array, w: Array) -> None:
        heavy, light = w.argmax(), w.argmin()
        odds = np.array([r[heavy] / r[light] for r in (p, q, w * p)])
        assert odds[0] * (1 - 1e-12) <= odds[1] < odds[2] * (1 - 1e-9)

    for size in (1, 2, 4):
        for _, w in weights(g, 3):
            p = g.dirichlet(np.full(3, 2.0))
            if (w > 0).all() and np.ptp(w) > 0:
                q = learnt(p, w, size, constant=False)
                says(q, p, w)
                np.testing.assert_allclose(
                    denominators.learnt_distribution(p, w, size, weight=w), q, rtol=1e-8
                )
                constant = learnt(p, w, size, constant=True)
                np.testing.assert_allclose(constant, normal(w * p), rtol=1e-12)
                with refuted("a divisor that does not look at the batch"):
                    says(constant, p, w)
    # Batches that all hold the same classes, or the whole training set, take nothing back.
    counts, w = g.integers(1, 9, 3).astype(float), np.exp(g.standard_normal(3))
    with refuted("batches that are not random"):
        says(normal(w * counts / (w @ counts)), normal(counts), w)
    for _ in range(30):
        p, w = g.dirichlet(np.ones(3)), np.exp(2 * g.standard_normal(3))
        says(denominators.learnt_distribution(p, w, int(g.integers(1, 200)), weight=w), p, w)


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
    rows = np.stack([np.random.default_rng([seed + SEED, k]).permutation(len(y)) for k in range(5)])
    train, held, new = np.split(rows, [120, 270], axis=1)
    draw = torch.Generator().manual_seed(seed + SEED)
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
    for step in range(1, 301):
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
    "Focal loss elicits too low a report for any class whose probability lies between one half and 1; it made "
    "overfitted networks less overconfident.",
)
@pytest.mark.claim(
    "09",
    "The largest probability itself comes out too small if it lies between one half and 1; among many classes, a small "
    "one may come out too large.",
)
def test_focal_loss_in_both_regimes() -> None:
    """Beliefs by search and, to 1,000 classes, by the inverse; other splits and starts for the networks, paired.

    Would be refuted by a class more likely than not that is reported as it is, as by a model that knows its labels by
    heart, or by networks less sure without it.
    """
    g = rng(8)

    def timid(q: Array, back: Array) -> None:
        likely = (back > 0.5) & (back < 1 - 1e-6)
        assert likely.any() and (q[likely] < back[likely]).all()

    for p in ([0.9, 0.1], [0.51, 0.49], [0.2, 0.8], [0.6, 0.3, 0.1]):
        assert max(elicited(scoring.focal_loss, p)) < max(p)
    # From report to truth, for reports of all kinds: the largest is too small if it is above a half, or classes few.
    for classes in (2, 3, 5, 100, 1000):
        alpha = np.exp(g.uniform(-4, 3, size=(200, 1))) * np.ones(classes)
        q = np.array([np.maximum(g.dirichlet(a), 1e-9) for a in alpha])
        q[:50, 0] += g.exponential(size=50)
        q = normal(q)
        for gamma in (0.5, 1.0, 2.0, 5.0):
            back = scoring.invert_focal(q, gamma=gamma).max(-1)
            timid(q.max(-1), back)
            if classes <= 3:
                assert (q.max(-1) <= back + 1e-9).all()
        with refuted("the two exchanged"):
            timid(back, q.max(-1))
    # The minimum on the training rows is another one: each label, drawn from p, gets a certain report.
    p = g.uniform(0.55, 0.95, 20)
    drawn = np.eye(2)[(g.random(20) < p).astype(int)]
    with refuted("a model that has learnt its labels by heart"):
        timid(elicited(scoring.focal_loss, drawn)[drawn[:, 1] == 1, 1], p[drawn[:, 1] == 1])
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

    def less_over_confident(gain: Array) -> None:
        assert gain.mean() > 2.5 * gain.std(ddof=1) / np.sqrt(len(gain))

    # On average: of other splits one network in ten is as sure as it is right with focal loss.
    for excess in np.array(both).T:
        less_over_confident(excess)

    less_over_confident(np.array(better))
    with refuted("the losses exchanged"):
        less_over_confident(-np.array(better))


@pytest.mark.slow
@pytest.mark.claim("09", "Temperature scaling takes both to nearly the same gap and the same log score")
@pytest.mark.claim(
    "09",
    "Dividing the logits by a temperature leaves the most probable class where it was; a temperature fitted on "
    "held-out data closed about three fifths of the gap of networks overfitted with the logarithm.",
)
def test_a_temperature_repairs_an_overfitted_network() -> None:
    """Other networks; the first class also for logits of every kind. Three fifths: of the mean over a hundred.

    Would be refuted by a temperature that moves the first class, as it moves the side of another threshold, or by two
    losses whose gaps stay apart.
    """
    g = rng(7)

    def same_decisions(z: Array, bent: Array) -> None:
        assert (bent.argmax(-1) == z.argmax(-1)).all()

    for classes in (2, 7, 1000):
        for _, z in logits(g, 50, classes):
            for T in (0.01, 19.5, 1e4):
                # Divided, two logits a rounding apart may tie: then the first of them wins.
                apart = np.sort(z, -1)[:, -1] - np.sort(z, -1)[:, -2] > 1e-9
                if apart.any():
                    same_decisions(z[apart], z[apart] / T)
    with refuted("a temperature for each class"):
        same_decisions(z := g.normal(size=(1000, 7)), z / np.arange(1, 8))
    margins = g.normal(size=(1000, 1)) * 3
    with refuted("the decisions at a threshold of 0.8"):
        same_decisions(*(np.hstack([0 * v, v - np.log(4)]) for v in (margins, margins / 3)))
    before: dict[float, list[tuple[float, float]]] = {}
    after: dict[float, list[tuple[float, float]]] = {}
    for gamma in (0.0, 2.0):
        before[gamma], after[gamma] = [], []
        seeds = range(1, 401 if gamma else 2001, 100)
        runs = [run for k in seeds for run in zip(*networks(gamma, k, TEXTURE), strict=True)]
        for a, y_a, b, y_b in runs:
            fit = minimize_scalar(
                lambda t, a=a, y_a=y_a: xent.binary_cross_entropy(a / np.exp(t), y_a),
                bounds=(-3, 5),
                method="bounded",
            )
            for table, z in ((before, b), (after, b / np.exp(fit.x))):
                table[gamma].append((gap(z, y_b), xent.binary_cross_entropy(z, y_b)))

    def closed(share: float, first: Array, then: Array) -> None:
        assert abs(1 - then.mean() / first.mean() - share) < 0.05

    gaps = [np.array(table[0.0])[:, 0] for table in (before, after)]
    closed(0.6, *gaps)
    with refuted("half"):
        closed(0.5, *gaps)
    with refuted("no temperature"):
        closed(0.6, gaps[0], gaps[0])
    with refuted("most of it, in each network"):
        assert (gaps[1] < 0.5 * gaps[0]).all()

    def nearly_the_same(table: dict[float, list[tuple[float, float]]]) -> None:
        apart = np.abs(np.mean(table[0.0], 0) - np.mean(table[2.0], 0))
        # By the noise of twenty networks; before, the log scores differ by half a nat and more.
        assert apart[0] < 0.03 and apart[1] < 0.04

    nearly_the_same(after)
    with refuted("before scaling"):
        nearly_the_same(before)


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
        rows = np.random.default_rng(seed + SEED).permutation(len(y))
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
    "The linear score makes this model overconfident, and focal loss makes it too timid; the inverse "
    "repairs the focal model's reports, and their log score too.",
)
@pytest.mark.claim("09", "Log and Brier are about as close to the diagonal as chance allows.")
@pytest.mark.claim(
    "09", "The error rates hardly differ: from accuracy alone you would not have noticed any of this."
)
@pytest.mark.parametrize("columns", PAIRS)
def test_what_four_losses_make_of_a_logistic_regression(columns: tuple[str, str]) -> None:
    """Ten other splits, and two measurements that the chapter does not use; surer than right, or less sure.

    Would be refuted by a loss on the other side, or by an error rate three points off.
    """
    g = rng(9)
    z = {name: logistic(columns, name)[0] for name in ("log", "Brier", "linear", "focal")}
    y = logistic(columns, "log")[1]
    q = scoring.invert_focal(np.stack([xent.sigmoid(-z["focal"]), xent.sigmoid(z["focal"])], -1), gamma=2.0)
    z["inverted"] = np.log(q[..., 1] / q[..., 0])
    right = {name: ((v > 0) == y).mean(-1) for name, v in z.items()}
    excess = {name: (sure(v) - right[name]).mean() for name, v in z.items()}
    gaps = {name: np.mean([gap(a, b) for a, b in zip(v, y, strict=True)]) for name, v in z.items()}
    drawn = (g.random(y.shape) < xent.sigmoid(z["log"])).astype(int)
    chance = np.mean([gap(a, b) for a, b in zip(z["log"], drawn, strict=True)])
    cost = {name: xent.binary_cross_entropy(v, y) for name, v in z.items()}

    def says(bold: str, timid: str, plain: tuple[str, ...]) -> None:
        assert excess[bold] > 0.05 and excess[timid] < -0.05
        assert max(abs(excess[name]) for name in plain) < 0.04
        assert max(gaps[name] for name in plain[:2]) < chance + 0.02
        assert min(gaps[bold], gaps[timid]) > chance + 0.03
        assert abs(cost[plain[2]] - cost["log"]) < 0.01 < min(cost[timid], cost[bold]) - cost["log"]

    says("linear", "focal", ("log", "Brier", "inverted"))
    with refuted("the two exchanged"):
        says("focal", "linear", ("log", "Brier", "inverted"))
    with refuted("focal loss as the logarithm"):
        says("linear", "focal", ("log", "focal", "inverted"))
    with refuted("focal loss that is not inverted"):
        says("linear", "focal", ("log", "Brier", "focal"))
    assert max(np.abs(r.mean() - right["log"].mean()) for r in right.values()) < 0.03


# ------------------------------------------------------------------------------------ shapes of rules


@pytest.mark.slow
@pytest.mark.claim(
    "09",
    "The curves for smoothing and focal loss cross the diagonal at one half: these losses make the model "
    "less sure but keep the more probable class. They do move decisions at other thresholds. Unequal "
    "class weights move the decision at one half too.",
)
@pytest.mark.claim(
    "09", "the order of the classes survives: the decision by the largest probability is the same."
)
def test_who_moves_decisions() -> None:
    """Reports of two to a thousand classes, near ties included: the order of the truths behind them; and with weights.

    Would be refuted by a report whose order is not that of the truth.
    """
    g = rng(10)

    def says(q: Array, p: Array) -> None:
        assert (np.argsort(p, -1, kind="stable") == np.argsort(q, -1, kind="stable")).all()

    for classes in (2, 3, 10, 1000):
        q = normal(np.maximum(g.dirichlet(np.ones(classes), size=100), 1e-6))
        q[:30] = normal(np.ones((30, classes)) + 1e-3 * g.random((30, classes)))
        q = normal(q * (1 + 1e-9 * np.arange(classes)))  # no ties
        few = classes <= 10
        for gamma in (0.5, 2.0, 5.0):
            p = scoring.invert_focal(q, gamma=gamma)
            if few:
                says(q, p)
            assert (p.argmax(-1) == q.argmax(-1)).all()
            if classes == 2:
                assert (q.max(-1) <= p.max(-1)).all()
        for eps in g.uniform(0.05, 0.8, 3):
            smoothed = (1 - eps) * q + eps / classes
            if few:
                says(q, smoothed)
            assert (smoothed.argmax(-1) == q.argmax(-1)).all() and (smoothed.max(-1) <= q.max(-1)).all()
        weighted = normal(q * np.append(3.0, np.ones(classes - 1)))
        assert (weighted[:, 0] > q[:, 0]).all()
        with refuted("class weights"):
            says(q, weighted)
    truth = np.linspace(0.01, 0.99, 99)
    two = np.stack([truth, 1 - truth], -1)

    def moved(weight: Array) -> None:
        report = normal(two * weight)[:, 0]
        assert ((report > 0.5 + 1e-9) != (truth > 0.5 + 1e-9)).any()

    for ratio in np.exp(g.choice([-1, 1], 8) * g.uniform(0.1, 3, 8)):
        moved(np.array([ratio, 1.0]))
    with refuted("equal weights"):
        moved(np.array([5.0, 5.0]))
    for threshold in (0.5, *g.uniform(0.55, 0.9, 4)):

        def kept(report: Array, threshold: float = threshold) -> None:
            sides = np.abs(truth - threshold) > 1e-6
            assert ((report > threshold) == (truth > threshold))[sides].all()

        bent = (0.7 * truth + 0.15, elicited(partial(scoring.focal_loss, gamma=2.0), two)[:, 0])
        for report in bent:
            if threshold == 0.5:
                kept(report)
            else:
                with refuted("another threshold"):
                    kept(report)


@pytest.mark.claim(
    "09",
    "So among the local rules for three or more classes that are differentiable on $(0, 1)$ and continuous at 1, the "
    "logarithm is the only strictly proper one, up to the $b_k$ and the unit of cost.",
)
@pytest.mark.claim("09", "At 1 itself a rule may charge less and stay strictly proper")
@pytest.mark.claim("09", "so *every* binary rule is local")
@pytest.mark.claim("09", "Any differentiable $s_1$ that decreases will do, and the equation gives $s_2$.")
def test_local_rules_of_two_and_of_three_classes() -> None:
    """Decreasing functions, random ones too: with the rule of the equation none is improper; for three classes all are.

    Would be refuted by a decreasing function whose rule for two classes is least elsewhere, or for three at the truth;
    with a step it is least elsewhere, so "differentiable". The logarithm that charges less at 1 alone is another local
    rule, and strictly proper, so "continuous at 1"; charging more there, or less at another place, is not proper.
    """
    g = rng(11)
    x = np.linspace(1e-3, 1 - 1e-3, 4001)
    knots = -g.exponential(size=9) - 0.1
    derivatives = {
        "root": -1 / np.sqrt(x),
        "square": -2 * (1 - x),
        "exponential": -np.exp(-3 * x),
        "logarithm and more": -1 / x - 0.1 * x**5,
        "any": np.interp(x, np.linspace(0, 1, 9), knots),
    }

    def proper(slope: Array, other: Array) -> None:
        first, second = (
            np.concatenate([[0], np.cumsum((d[1:] + d[:-1]) / 2 * np.diff(x))]) for d in (slope, other)
        )
        for p in (0.05, 0.3, 0.5, 0.9):
            cost = p * first + (1 - p) * second[::-1]
            assert abs(x[cost.argmin()] - p) < 1.5e-3

    def proper_for_three(slope: Array, truth: Array) -> None:
        # Otherwise moving mass from one class to another pays at the truth.
        assert np.ptp(truth * np.interp(truth, x, slope)) < 1e-3

    truth = np.array([0.6, 0.3, 0.1])
    for name, slope in derivatives.items():
        proper(slope, (x / (1 - x) * slope)[::-1])  # s_2'(1 - p) = p s_1'(p) / (1 - p)
        with refuted("the same function for both"):
            proper(slope, slope if name != "square" else np.full(len(x), -1.0))
        with refuted(name):
            proper_for_three(slope, truth)
    proper_for_three(-1 / x, truth)

    def steps(at: float) -> None:
        """The square with a step: its slope, and so the rule that the equation gives, does not show it."""
        first, second = (1 - x) ** 2 - (x > at), (1 - x) ** 2
        for p in (0.05, 0.3, 0.5, 0.9):
            assert abs(x[(p * first + (1 - p) * second[::-1]).argmin()] - p) < 1.5e-3

    steps(1.0)
    with refuted("a step"):
        steps(0.6)

    def strictly(at: float, change: float) -> None:
        """The logarithm with another charge at one place, for three classes, corners and sides among the beliefs."""
        reports = np.vstack([np.eye(3), [[0.5, 0.5, 0], [0.5, 0.3, 0.2]], g.dirichlet(np.ones(3), size=300)])
        with np.errstate(divide="ignore"):
            charge = -np.log(reports) + change * (reports == at)
        cost = (reports[:, None] * np.where(reports[:, None] > 0, charge[None], 0)).sum(-1)
        assert (cost + 1e9 * np.eye(len(cost)) > np.diag(cost)[:, None]).all()

    for change in (0.0, -0.5, -20.0):
        strictly(1.0, change)
    with refuted("more at 1"):
        strictly(1.0, 20.0)
    with refuted("less at a half"):
        strictly(0.5, -0.5)


@pytest.mark.claim(
    "09",
    "The better the reports tell cases apart, the lower the second term is; no relabelling that keeps "
    "different reports different changes it.",
)
def test_refinement_survives_relabelling() -> None:
    """Reports on a grid, renamed at random; merged instead, the refinement rises.

    Would be refuted by a relabelling that keeps different reports different and moves the second part.
    """
    g = rng(12)
    groups = int(g.integers(4, 12))
    group = g.integers(0, groups, 4000)
    y = (g.random(4000) < (group + 0.5) / groups).astype(float)

    def parts(report: Array) -> tuple[float, float]:
        values, at = np.unique(report, return_inverse=True)
        share, rate = np.bincount(at) / len(y), np.bincount(at, y) / np.bincount(at)
        return float(share @ (values - rate) ** 2), float(share @ (rate * (1 - rate)))

    before = parts(group / groups)

    def says(report: Array) -> None:
        after = parts(report)
        assert after[1] == pytest.approx(before[1], rel=1e-12) and after[0] != before[0]

    for _ in range(20):
        says(g.permutation(np.linspace(0, 1, groups))[group])
    with refuted("reports that are merged"):
        says(group // 2 / groups)
    # Told apart less well, the cases have a higher second part.
    assert parts(group // 2 / groups)[1] > before[1]


@pytest.mark.claim(
    "09",
    "Where $H$ is differentiable and $q$ has no zeros, a linear function that touches $H$ from above at "
    "$q$ is its tangent plane.",
)
def test_a_proper_rule_is_its_tangent_inside_the_simplex() -> None:
    """Brier's score with a penalty for the impossible at the corners: strictly proper, and of the same honest cost.

    Would be refuted by a report without zeros whose charge is not that of the tangent plane.
    """
    g = rng(13)

    def rule(q: Array, y: Array) -> Array:
        own = np.take_along_axis(q, np.asarray(y)[..., None], -1)[..., 0]
        return np.asarray(scoring.brier_score(q, y) + 98.0 * ((own == 0) & (q.max(-1) == 1)))

    def says(q: Array) -> None:
        outcomes = np.arange(len(q))
        # H(q) = 1 - |q|^2, and its derivative is -2 q.
        tangent = 1 - q @ q - 2 * q + 2 * q @ q
        np.testing.assert_allclose(rule(np.tile(q, (len(q), 1)), outcomes), tangent, atol=1e-12)

    for classes in (2, 3, 40):
        for q in beliefs(g, classes):
            others = np.vstack([np.eye(classes), g.dirichlet(np.ones(classes), size=50)])
            others = others[np.abs(others - q).sum(-1) > 1e-5]
            assert (expected_score(rule, q, others) > expected_score(rule, q, q)).all()
            says(q)
        with refuted("a corner, where other planes touch too"):
            says(np.eye(classes)[0])


@pytest.mark.claim("09", "Clipping the negative entry and renormalising gives a different result in general.")
def test_clipping_the_local_square_misses_unless_the_rest_are_alike() -> None:
    """Random beliefs with a rare third class; the classes that stay alike, or not.

    Would be refuted by clipped and renormalised formulas that are as cheap as the minimum for every belief.
    """
    g = rng(14)

    def same(p: Array) -> None:
        clipped = normal(np.maximum(1 - (len(p) - 1) / p / (1 / p).sum(), 0))
        best = elicited(lambda q, y: scoring.linear_score(q, y) ** 2, p)
        np.testing.assert_allclose(clipped, best, atol=1e-6)

    same(np.array([0.45, 0.45, 0.1]))
    for _ in range(3):
        rare, first = g.uniform(0.02, 0.12), g.uniform(0.55, 0.7)
        with refuted("two classes that differ"):
            same(np.array([first, 1 - first - rare, rare]))
