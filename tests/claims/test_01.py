"""What chapter 1 claims, and attempts to refute it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from sklearn.datasets import load_breast_cancer, load_iris

import xent
from xent.gradients import binary_cross_entropy_gradient

Array = np.ndarray


def tumours(columns: int = 30) -> tuple[Array, Array]:
    """Standardised features with a column of ones, and 1 for malignant."""
    data = load_breast_cancer()
    x = (data.data - data.data.mean(axis=0)) / data.data.std(axis=0)
    return np.column_stack([np.ones(len(x)), x[:, :columns]]), 1.0 - data.target


def four_features() -> tuple[Array, Array]:
    """The chapter's: mean radius, texture, smoothness and concave points."""
    x, y = tumours()
    return x[:, [0, 1, 2, 5, 8]], y


def loss(w: Array, x: Array, y: Array) -> float:
    """The mean loss, from NumPy alone."""
    z = x @ w
    return float(np.mean(np.logaddexp(0, z) - y * z))


def descend(x: Array, y: Array, w: Array, rate: float, steps: int) -> Array:
    """Gradient descent on the mean loss."""
    for _ in range(steps):
        w = w - rate * x.T @ (xent.sigmoid(x @ w) - y) / len(y)
    return w


def largest_curvature(x: Array) -> float:
    """A bound on the Hessian's eigenvalues: p (1 - p) is at most 1/4."""
    return float(np.linalg.norm(x, 2) ** 2 / (4 * len(x)))


@pytest.mark.claim(
    "01",
    "Binary cross-entropy is the negative log-likelihood of independent coins, one for each example, divided by "
    "the number of examples.",
)
def test_the_loss_is_a_likelihood() -> None:
    """SciPy's Bernoulli distribution, one example and many, mild and extreme logits, both labels or one."""
    rng = np.random.default_rng(0)
    for n in (1, 2, 50, 1000):
        for spread in (0.1, 3.0):
            z = rng.normal(scale=spread, size=n)
            p = 1 / (1 + np.exp(-z))
            for y in (rng.integers(0, 2, n), np.zeros(n, int), np.ones(n, int)):
                expected = -stats.bernoulli.logpmf(y, p).sum() / n
                assert xent.binary_cross_entropy(z, y) == pytest.approx(expected, rel=1e-9, abs=1e-13)


@pytest.mark.claim(
    "01",
    "You may maximise the logarithm instead of the likelihood because the logarithm is increasing, and you have to, "
    "because in floating point the product of many probabilities becomes zero.",
)
def test_the_logarithm_keeps_the_maximum() -> None:
    """Random positive likelihoods; a function that does not increase moves the maximum; at most 2,000 tosses."""
    rng = np.random.default_rng(1)
    grid = np.linspace(0.001, 0.999, 999)
    moved = 0
    for n in (3, 10, 40):
        for _ in range(20):
            k = rng.integers(0, n + 1)
            likelihood = grid**k * (1 - grid) ** (n - k)
            assert np.log(likelihood).argmax() == likelihood.argmax()
            moved += ((likelihood - 0.5) ** 2).argmax() != likelihood.argmax()
    assert moved > 50
    # No coin at all survives 2,000 tosses of a fair one: the likelihood is zero at every p.
    heads = 1000
    assert (grid**heads * (1 - grid) ** heads == 0).all()
    assert grid[(heads * np.log(grid) + heads * np.log(1 - grid)).argmax()] == pytest.approx(0.5)


@pytest.mark.claim(
    "01",
    "With the second one missing, the loss fits the odds $f / (1 - f)$ instead of the frequency $f$, and certainty "
    "once half of the labels are 1.",
)
def test_one_logarithm_fits_the_odds() -> None:
    """Frequencies off the chapter's table, the ends, and a minimiser that is not a grid."""
    from scipy.optimize import minimize_scalar

    for f in (0.02, 0.137, 0.333, 0.49, 0.499, 0.5, 0.501, 0.77, 0.99):

        def missing(p: float, f: float = f) -> float:
            return float(-f * np.log(p) - (1 - f) * (1 - p))

        found = minimize_scalar(missing, bounds=(1e-9, 1), method="bounded", options={"xatol": 1e-10}).x
        assert found == pytest.approx(min(f / (1 - f), 1), abs=2e-5)


@pytest.mark.claim(
    "01",
    "The gradient of one example in its logit is the prediction minus the target, so no example ever pulls with a "
    "force of more than one.",
)
def test_no_pull_exceeds_one() -> None:
    """Differences of the loss at small and huge logits, and targets between 0 and 1."""
    for z in (-800.0, -30.0, -1.0, 0.0, 0.3, 5.0, 30.0, 800.0):
        for y in (0.0, 0.2, 1.0):
            h = 1e-4 * max(1, abs(z))
            pair = [float(xent.binary_cross_entropy(z + s * h, y)) for s in (1, -1)]
            slope = float(binary_cross_entropy_gradient(z, y))
            assert (pair[0] - pair[1]) / (2 * h) == pytest.approx(slope, abs=1e-6)
            assert slope == pytest.approx(float(xent.sigmoid(z)) - y, abs=1e-15) and abs(slope) <= 1


@pytest.mark.claim(
    "01",
    "Compute the loss from the logit: by way of the probability a confident mistake can cost infinity, and a "
    "confident right answer nan.",
)
@pytest.mark.parametrize(("dtype", "z"), [(np.float64, 40.0), (np.float64, 700.0), (np.float32, 20.0)])
def test_by_way_of_the_probability(dtype: type, z: float) -> None:
    """Also in float32, where it begins at 17; from the logit neither happens, at any size.

    It "can": on the other side, at the logit -z, a small probability keeps its digits until the exponential overflows.
    """
    with np.errstate(all="ignore"):
        p = dtype(1) / (dtype(1) + np.exp(-dtype(z)))
        one, zero = dtype(1), dtype(0)
        mistake = -(zero * np.log(p) + one * np.log(one - p))
        right = -(one * np.log(p) + zero * np.log(one - p))
    assert np.isposinf(mistake) and np.isnan(right)
    assert xent.binary_cross_entropy(z, 0) == pytest.approx(z, rel=1e-7)
    assert xent.binary_cross_entropy(z, 1) == pytest.approx(np.exp(-z), rel=1e-7)
    for logit, lost in ((dtype(-z), False), (dtype(-800), True)):
        with np.errstate(all="ignore"):
            p = one / (one + np.exp(-logit))
            mistake, right = -np.log(p), -(zero * np.log(p) + one * np.log(one - p))
        assert np.isposinf(mistake) == lost and np.isnan(right) == lost
        assert xent.binary_cross_entropy(logit, 1) == pytest.approx(-float(logit), rel=1e-7)


@pytest.mark.claim("01", "A clipped probability has no gradient, however wrong it is.")
def test_a_clip_has_no_gradient() -> None:
    """Autograd through torch's clamp, for three clips: zero beyond the clip, alive in front of it."""
    import torch

    for clip in (1e-7, 1e-15, 1e-3):
        edge = np.log((1 - clip) / clip)
        for z, dead in ((edge + 1, True), (min(2 * edge, 36.0), True), (edge - 1, False)):
            logit = torch.tensor(z, dtype=torch.float64, requires_grad=True)
            (-torch.log(1 - torch.sigmoid(logit).clamp(clip, 1 - clip))).backward()
            assert logit.grad is not None and (logit.grad.item() == 0) == dead


@pytest.mark.claim(
    "01",
    "Gradient descent with too large a step jumps over the minimum and may never settle; on this loss a step of at "
    "most one over the largest curvature never leads uphill.",
)
def test_steps_too_large_and_steps_that_are_safe() -> None:
    """The coin at 12 for 10,000 steps; random data and starts, at exactly the bound and below."""
    z = -3.0
    for _ in range(10_000):
        z -= 12 * (float(xent.sigmoid(z)) - 0.7)
    after = z - 12 * (float(xent.sigmoid(z)) - 0.7)
    assert (z - np.log(7 / 3)) * (after - np.log(7 / 3)) < 0 and abs(z - after) > 1
    rng = np.random.default_rng(3)
    for seed in range(8):
        x = rng.normal(scale=10.0 ** rng.uniform(-2, 2, 4), size=(30, 4))
        y = (rng.uniform(size=30) < 0.5).astype(float) if seed % 2 else (x[:, 0] > 0).astype(float)
        w = rng.normal(scale=3.0, size=4)
        for _ in range(200):
            new = descend(x, y, w, rng.choice([1.0, 0.3]) / largest_curvature(x), 1)
            assert loss(new, x, y) <= loss(w, x, y) * (1 + 1e-13)
            w = new


@pytest.mark.claim(
    "01",
    "The loss is convex in the weights, so with a safe step gradient descent approaches the same lowest loss from "
    "every start.",
)
def test_every_start_finds_the_same_loss() -> None:
    """Far starts, both classes on the wrong side at first; chords; twin columns, no minimum, an unsafe step."""
    x, y = four_features()
    rng = np.random.default_rng(4)
    ends = [descend(x, y, s * rng.normal(size=5), 1 / largest_curvature(x), 4000) for s in (0, 1, 5, 10)]
    assert np.ptp(ends, axis=0).max() < 1e-6
    # With a column twice the weights depend on the start, and the loss does not.
    twins = np.column_stack([x, x[:, 1]])
    ends = [descend(twins, y, s * rng.normal(size=6), 1 / largest_curvature(twins), 4000) for s in (0, 5)]
    assert np.ptp(ends, axis=0).max() > 1
    assert loss(ends[0], twins, y) == pytest.approx(loss(ends[1], twins, y), abs=1e-9)
    # Separated data have no minimum: from every start the loss falls towards zero, the lowest there is.
    pair, labels = np.array([[-1.0], [1.0]]), np.array([0.0, 1.0])
    for start in (-8.0, 0.0, 4.0):
        assert loss(descend(pair, labels, np.array([start]), 4.0, 1000), pair, labels) < 1e-3
    # A step that is not safe need not get anywhere.
    coin, heads = np.ones((10, 1)), (np.arange(10) < 7).astype(float)
    lost = descend(coin, heads, np.array([-3.0]), 12.0, 1000)
    assert loss(lost, coin, heads) > loss(np.array([np.log(7 / 3)]), coin, heads) + 0.1
    for _ in range(200):
        a, b = rng.normal(scale=10.0, size=(2, 5))
        t = rng.uniform()
        chord = t * loss(a, x, y) + (1 - t) * loss(b, x, y)
        assert loss(t * a + (1 - t) * b, x, y) <= chord + 1e-9


@pytest.mark.claim(
    "01", "started far from the minimum, Newton's method can diverge, although the loss is convex."
)
def test_newton_from_afar() -> None:
    """The chapter's tumours from zero and from random starts: there is a minimum, and some starts never see it."""
    x, y = four_features()

    def ends_at(w: Array) -> float:
        for _ in range(12):
            p = xent.sigmoid(x @ w)
            hessian = x.T @ (x * (p * (1 - p))[:, None]) / len(y)
            if not np.linalg.cond(hessian) < 1e15:
                return np.inf
            w = w - np.linalg.solve(hessian, x.T @ (p - y) / len(y))
        return loss(w, x, y)

    rng = np.random.default_rng(7)
    found = [ends_at(size * rng.normal(size=5)) for size in (0.0, 0.1, 3.0, 3.0, 3.0)]
    assert found[:2] == pytest.approx([0.140879] * 2, abs=1e-5)
    assert max(found) > 1


@pytest.mark.claim(
    "01",
    "a fitted model with an intercept predicts exactly as many malignant tumours as there are in its training set.",
)
def test_the_probabilities_add_up() -> None:
    """Other features, other data, labels at random; without the intercept they do not."""
    from sklearn.linear_model import LogisticRegression

    x, y = tumours()
    rng = np.random.default_rng(5)
    iris = load_iris()
    problems = [
        (x[:, 3:8], y),
        (x[:, 20:24], (rng.uniform(size=len(y)) < 0.2).astype(float)),
        (iris.data[:, 1:2], (iris.target == 1).astype(float)),
    ]
    for features, labels in problems:
        model = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-10).fit(features, labels)
        assert model.predict_proba(features)[:, 1].sum() == pytest.approx(labels.sum(), abs=1e-5)
    bare = LogisticRegression(C=np.inf, fit_intercept=False, solver="newton-cholesky").fit(*problems[2])
    assert abs(bare.predict_proba(problems[2][0])[:, 1].sum() - problems[2][1].sum()) > 1


@pytest.mark.claim("01", "the certificate cannot be obtained where there is no minimum.")
def test_no_certificate_for_separated_data() -> None:
    """The tumours with all features at weights along the separating direction, and random separated data."""
    from scipy.optimize import linprog

    def holds(a: Array, w: Array) -> bool:
        residual = xent.sigmoid(-a @ w)
        return bool(residual.min() > np.linalg.norm(a.T @ residual) / np.linalg.svd(a, compute_uv=False)[-1])

    x, y = tumours()
    a = (2 * y - 1)[:, None] * x
    way = linprog(np.zeros(31), -a, -np.ones(len(a)), bounds=[(None, None)] * 31).x
    assert (a @ way > 0.99).all()
    assert not any(holds(a, t * way) for t in np.logspace(-3, 1, 20))
    rng = np.random.default_rng(6)
    for _ in range(50):
        a = rng.normal(size=(12, 3))
        v = rng.normal(size=3)
        a *= np.sign(a @ v)[:, None]
        assert not any(holds(a, t * (v + rng.normal(size=3))) for t in np.logspace(-2, 1.5, 30))
    # Where there is one it is found: the chapter's four features.
    x, y = four_features()
    a = (2 * y - 1)[:, None] * x
    assert holds(a, descend(x, y, np.zeros(5), 1 / largest_curvature(x), 8_000))


@pytest.mark.claim(
    "01",
    "Over its last factor of ten in steps the weights grow almost threefold, where a logarithm would grow by a "
    "quarter.",
)
def test_the_growth_is_not_yet_logarithmic() -> None:
    """The chapter's own table for the last factor of ten; another start for the one before it."""
    chapter = (Path(__file__).resolve().parents[2] / "chapters/01_binary.ipynb").read_text(encoding="utf-8")
    found = re.findall(r"30 features +(\d+) +[\d.]+ +([\d.]+)", chapter)
    table = {int(steps): float(size) for steps, size in found}
    assert 2.6 < table[100_000] / table[10_000] < 3
    assert np.log(1e5) / np.log(1e4) == pytest.approx(1.25)
    x, y = tumours()
    rate, w = 1 / largest_curvature(x), np.random.default_rng(0).normal(scale=0.1, size=31)
    before = descend(x, y, w, rate, 1000)
    after = descend(x, y, before, rate, 9000)
    assert np.linalg.norm(after) / np.linalg.norm(before) > 1.7 > np.log(1e4) / np.log(1e3)


@pytest.mark.claim("01", "A penalty on every weight always restores the minimum.")
def test_a_penalty_restores_the_minimum() -> None:
    """On separated, one-class and duplicated data: descent settles, from both near and far, at one point."""
    x, y = tumours(3)
    separated = np.array([[1.0, -1.0], [1.0, 1.0]]), np.array([0.0, 1.0])
    one_class = x[:50], np.ones(50)
    twins = np.hstack([x, x])[:80], y[:80]
    for features, labels in (separated, one_class, twins):
        for strength in (0.02, 1.0):
            rate, ends = 1 / (largest_curvature(features) + strength), []
            for start in (0.0, 5.0):
                w = np.full(features.shape[1], start)
                for _ in range(2000):
                    slope = features.T @ (xent.sigmoid(features @ w) - labels) / len(labels) + strength * w
                    w = w - rate * slope
                ends.append(w)
            assert np.abs(ends[0] - ends[1]).max() < 1e-6
            assert np.linalg.norm(ends[0]) <= np.sqrt(2 * np.log(2) / strength)
    # On every weight: with the intercept left free and one class, it runs away as before.
    w, free = np.zeros(x.shape[1]), np.arange(x.shape[1]) > 0
    sizes = []
    for step in range(1, 4001):
        w = w - (x[:50].T @ (xent.sigmoid(x[:50] @ w) - 1) / 50 + 0.1 * free * w)
        if step in (1000, 4000):
            sizes.append(w[0])
    assert sizes[1] > sizes[0] + 1


@pytest.mark.claim("01", "The held-out loss turns round near $C = 1$.")
def test_the_turn_of_the_held_out_loss() -> None:
    """Ten folds instead of five, and other seeds of the split: a turn between 0.1 and 10 each time."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = tumours()
    strengths = (1e-2, 0.1, 1.0, 10.0, 100.0)
    for splits, seed in ((5, 1), (5, 2), (10, 0)):
        folds = list(StratifiedKFold(splits, shuffle=True, random_state=seed).split(x, y))
        means = []
        for strength in strengths:
            each = []
            for train, test in folds:
                fit = LogisticRegression(C=strength, solver="newton-cholesky", tol=1e-6)
                model = make_pipeline(StandardScaler(), fit).fit(x[train, 1:], y[train])
                z = model.decision_function(x[test, 1:])
                each.append(np.mean(np.logaddexp(0, z) - y[test] * z))
            means.append(np.mean(each))
        assert 0.1 <= strengths[int(np.argmin(means))] <= 10
        assert means[-1] > 1.5 * min(means)


@pytest.mark.claim("01", "The same `C` is a weaker penalty on more data.")
def test_c_depends_on_the_size() -> None:
    """Every example three times: the weights grow with C kept, and stay with C over three."""
    from sklearn.linear_model import LogisticRegression

    x, y = four_features()
    fits = {
        (times, strength): LogisticRegression(C=strength, solver="newton-cholesky", tol=1e-10)
        .fit(np.tile(x[:, 1:], (times, 1)), np.tile(y, times))
        .coef_[0]
        for times, strength in ((1, 0.03), (3, 0.03), (3, 0.01))
    }
    assert np.linalg.norm(fits[3, 0.03]) > 1.2 * np.linalg.norm(fits[1, 0.03])
    assert fits[3, 0.01] == pytest.approx(fits[1, 0.03], abs=1e-6)
