"""What chapter 1 claims, and attempts to refute it."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from scipy import optimize, stats
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

import xent
from adversary import coins, designs, refuted, rng
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


def with_ones(x: Array) -> Array:
    return np.column_stack([np.ones(len(x)), x])


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
    """SciPy's Bernoulli distribution, for one example to 1,000, tiny to huge logits, both labels or one.

    Would be refuted by a batch whose loss is not the likelihood's, such as one with a single class.
    """

    def says(value: float, z: Array, y: Array) -> None:
        # The probability of the label itself: SciPy's pmf, whose logarithm would lose 1 - p for large logits.
        with np.errstate(divide="ignore"):
            likelihood = stats.bernoulli.logpmf(1, xent.sigmoid(np.where(y == 1, z, -z)))
        expected = -likelihood.sum() / len(y)
        if np.isfinite(expected):  # beyond 745 the probability itself is zero in float64
            assert value == pytest.approx(expected, rel=1e-9, abs=1e-13)

    for what, z, y in coins(rng(0)):
        if what.split(", ")[1] != "soft":
            says(float(xent.binary_cross_entropy(z, y)), z, y)
    z, y = np.array([1.0, -2.0, 0.5]), np.array([1.0, 1.0, 0.0])
    with refuted("the sum in place of the mean"):
        says(float(xent.binary_cross_entropy(z, y, reduction="sum")), z, y)
    with refuted("the labels exchanged"):
        says(float(xent.binary_cross_entropy(z, 1 - y)), z, y)


@pytest.mark.claim(
    "01",
    "You may maximise the logarithm instead of the likelihood because the logarithm is increasing, and you should, "
    "because in floating point the product of many probabilities can become zero.",
)
@pytest.mark.erratum("3.2", "conditional")
def test_the_logarithm_keeps_the_maximum() -> None:
    """Every number of heads in one to 60 tosses; zero likelihoods, which the source allows; 2,000 tosses.

    Would be refuted by a record whose likelihood and its logarithm have their maxima at different coins.
    """
    grid = np.linspace(0.001, 0.999, 999)

    def says(function: Callable[[Array], Array], tosses: int, heads: int) -> None:
        likelihood = grid**heads * (1 - grid) ** (tosses - heads)
        assert function(likelihood).argmax() == likelihood.argmax()

    for tosses in (1, 2, 3, 10, 60):
        for heads in range(tosses + 1):
            says(np.log, tosses, heads)
            says(lambda v: v**3, tosses, heads)
    with refuted("a function that is defined there and does not increase"):
        says(lambda v: (v - 0.5) ** 2, 10, 7)
    zero = np.array([0.0, 1.0]) ** 3 * np.array([1.0, 0.0])
    with refuted("3.2: a likelihood is never negative, so it has a logarithm"), np.errstate(divide="ignore"):
        assert np.isfinite(np.log(zero)).any()
    # No coin at all survives 2,000 tosses of a fair one: the likelihood is zero at every p.
    heads = 1000
    assert (grid**heads * (1 - grid) ** heads == 0).all()
    assert grid[(heads * np.log(grid) + heads * np.log(1 - grid)).argmax()] == pytest.approx(0.5)


@pytest.mark.claim(
    "01",
    "With the second logarithm missing, the loss fits the odds $f / (1 - f)$ instead of the frequency $f$, and"
    " fits certainty once half of the labels are 1.",
)
@pytest.mark.erratum("3.3", "slip")
def test_one_logarithm_fits_the_odds() -> None:
    """Random frequencies, the ends and both sides of a half, by a minimiser that is no grid.

    Would be refuted by a frequency for which the minimum lies elsewhere; with both logarithms it is the frequency.
    """
    from scipy.optimize import minimize_scalar

    g = rng(2)
    grid = np.linspace(1e-9, 1, 4001)

    def says(f: float, second: Callable[[float], float]) -> None:
        def missing(p: float) -> float:
            return float(-f * np.log(p) - (1 - f) * second(p))

        start = grid[np.argmin([missing(p) for p in grid])]
        ends = max(start - 1e-3, 1e-9), min(start + 1e-3, 1)
        found = minimize_scalar(missing, bounds=ends, method="bounded", options={"xatol": 1e-11}).x
        assert found == pytest.approx(min(f / (1 - f), 1), abs=2e-5)

    for f in (0.02, 0.499, 0.5, 0.501, 0.998, *g.uniform(0.01, 0.5, 8), *g.uniform(0.5, 0.99, 3)):
        says(f, lambda p: 1 - p)
        with refuted("the loss with both logarithms"):
            says(min(f, 0.9), lambda p: np.log(1 - p) if p < 1 else -np.inf)
    # At one half the slope is zero at certainty itself, and negative before it.
    slopes = -0.5 / grid + 0.5
    assert (slopes[:-1] < 0).all() and slopes[-1] == 0


@pytest.mark.claim(
    "01",
    "The gradient of one example's loss in its logit is the prediction minus the target, so for targets from 0"
    " to 1 it lies between −1 and 1.",
)
def test_no_pull_exceeds_one() -> None:
    """Differences of the loss, at logits to 1e4 and targets between 0 and 1.

    Would be refuted by an example whose slope is another, or exceeds one.
    """

    def says(slope: Array, z: Array, y: Array) -> None:
        assert np.abs(slope).max() <= 1
        # A step at which the difference keeps eight digits, and the loss's third derivative, at most 1/10, is small.
        h = 1e-3 * np.maximum(1, np.abs(z) / 10)
        up, down = (xent.binary_cross_entropy(z + s * h, y, reduction="none") for s in (1, -1))
        smooth = np.abs(z) * 0.9 > 1
        allowed = np.where(
            smooth & (np.abs(z) < 50), 1e-1 * h**2 + 1e-9, 1e-1 * np.minimum(h, 1e-3) ** 2 + 1e-6
        )
        assert (np.abs((up - down) / (2 * h) - slope) <= allowed).all()

    for _, z, y in coins(rng(3), rows=(1, 50)):
        says(binary_cross_entropy_gradient(z, y, reduction="none"), z, y)
    with refuted("the target minus the prediction"):
        says(-binary_cross_entropy_gradient(z, y, reduction="none"), z, y)
    with refuted("a positive example that counts ten times"):
        slope = binary_cross_entropy_gradient([-3.0], [1.0], pos_weight=10.0, reduction="none")
        says(slope, np.array([-3.0]), np.array([1.0]))
    with refuted("a pull beyond one"):
        says(binary_cross_entropy_gradient(z, np.full_like(y, 0.0), reduction="none") + 1, z, y)


@pytest.mark.claim(
    "01",
    "Compute the loss from the logit: from the probability, a confident mistake can cost infinity, and a "
    "confident right answer can cost nan.",
)
def test_by_way_of_the_probability() -> None:
    """Random logits beyond the reach of three formats; from the logit neither happens, at any size.

    Would be refuted by a finite logit whose loss from the logit is not finite, or off. It "can": on the other side a
    small probability keeps its digits until the exponential overflows.
    """
    g = rng(4)

    def says(mistake: float, right: float) -> None:
        assert np.isposinf(mistake) and np.isnan(right)

    for dtype, dead in ((np.float64, 37.5), (np.float32, 17.5), (np.float16, 9.0)):
        for size in (dead, *g.uniform(dead, 10_000 if dtype != np.float16 else 60_000, 20)):
            z, one, zero = dtype(size), dtype(1), dtype(0)
            with np.errstate(all="ignore"):
                p = one / (one + np.exp(-z))
                says(-(zero * np.log(p) + one * np.log(one - p)), -(one * np.log(p) + zero * np.log(one - p)))
                p = one / (one + np.exp(dtype(dead / 2)))
                with refuted("the other side, while the exponential does not overflow"):
                    says(-np.log(p), -(zero * np.log(p) + one * np.log(one - p)))
            exact = float(z)
            assert xent.binary_cross_entropy(exact, 0) == pytest.approx(np.logaddexp(0, exact), rel=1e-12)
            assert xent.binary_cross_entropy(exact, 1) == pytest.approx(np.log1p(np.exp(-exact)), rel=1e-12)


@pytest.mark.claim("01", "removes the nan from the loss, provided that $1 - \\epsilon$ does not round to 1,")
def test_a_clip_that_rounds_away() -> None:
    """Three formats, clips from 1e-20 to 0.1, confident right answers.

    Would be refuted by a clip that the format holds with a nan; with one that rounds away the nan stays. The loss is
    meant: where the exponential overflows, autograd multiplies the clip's zero by infinity.
    """
    import torch

    g = rng(13)

    def says(dtype: type, clip: float) -> None:
        low, high = dtype(clip), dtype(1) - dtype(clip)
        with np.errstate(all="ignore"):
            z = dtype(g.uniform(40, 60))
            p = np.clip(dtype(1) / (dtype(1) + np.exp(-z)), low, high)
            assert np.isfinite(-(np.log(p) + dtype(0) * np.log(dtype(1) - p)))

    seen = set()
    for dtype in (np.float16, np.float32, np.float64):
        for clip in (1e-8, *10.0 ** g.uniform(-20, -1, 40)):
            held = dtype(1) - dtype(clip) < 1
            seen.add((dtype, bool(held)))
            if held:
                says(dtype, clip)
            else:
                with refuted("a clip that rounds away"):
                    says(dtype, clip)
    assert len(seen) == 6 and (np.float32(1) - np.float32(1e-8)) == 1
    for z in -g.uniform(100, 700, 20):
        logit = torch.tensor(z, dtype=torch.float32, requires_grad=True)
        value = -torch.log(1 - (1 / (1 + torch.exp(-logit))).clamp(1e-6, 1 - 1e-6))
        value.backward()
        assert torch.isfinite(value) and torch.isnan(logit.grad)


@pytest.mark.claim("01", "A clipped probability has no gradient, however wrong it is.")
def test_a_clip_has_no_gradient() -> None:
    """Autograd through torch's clamp, for random clips and logits, on both sides of the clip's edge.

    Would be refuted by a logit beyond the edge with a gradient.
    """
    import torch

    g = rng(5)

    def says(clip: float, z: float) -> None:
        logit = torch.tensor(z, dtype=torch.float64, requires_grad=True)
        (-torch.log(1 - torch.sigmoid(logit).clamp(clip, 1 - clip))).backward()
        assert logit.grad is not None and logit.grad.item() == 0

    for clip in 10.0 ** g.uniform(-15, -1, 20):
        edge = np.log((1 - clip) / clip)
        says(clip, edge + 0.01 + g.exponential(30))
        with refuted("a probability that is wrong and not clipped"):
            says(clip, edge - 0.1)


@pytest.mark.claim(
    "01",
    "Gradient descent with too large a step size jumps over the minimum and may never settle; on this loss a step "
    "size of at most one over the largest curvature never leads uphill.",
)
def test_steps_too_large_and_steps_that_are_safe() -> None:
    """Every kind of data, starts near and far, at exactly the bound and below; the coin at 12 for 10,000 steps.

    Would be refuted by one step uphill. It is the size that has to be small: a step no longer than one over the
    curvature, but of a larger size, leads uphill.
    """
    g = rng(6)

    def says(x: Array, y: Array, w: Array, step: float, steps: int = 100) -> None:
        for _ in range(steps):
            new = descend(x, y, w, step / largest_curvature(x), 1)
            assert loss(new, x, y) <= loss(w, x, y) * (1 + 1e-13)
            w = new

    for _, x, y in designs(g):
        for size in (0.0, 1.0, 30.0):
            says(with_ones(x), y, size * g.normal(size=x.shape[1] + 1), g.choice([1.0, 0.3]))
    coin, heads = np.ones((10, 1)), (np.arange(10) < 7).astype(float)
    with refuted("a step of three over the curvature"):
        says(coin, heads, np.array([-3.0]), 12 * largest_curvature(coin))
    z = descend(coin, heads, np.array([-3.0]), 12, 10_000)
    after = descend(coin, heads, z, 12, 1)
    path = np.array([descend(coin, heads, np.array([-3.0]), 12, k)[0] for k in range(30)]) - np.log(7 / 3)
    crosses = path[1:] * path[:-1] < 0
    assert (
        crosses[0] and not crosses[1] and crosses[2:].all()
    )  # the figure: far over, back a little, then across
    assert (z[0] - np.log(7 / 3)) * (after[0] - np.log(7 / 3)) < 0 and abs(z[0] - after[0]) > 1
    assert abs(z[0] - after[0]) < 1 / largest_curvature(coin)
    with refuted("a short step of a large size"):
        says(coin, heads, min(z, after), 12 * largest_curvature(coin), 1)


@pytest.mark.claim(
    "01",
    "In the end the starting point does not matter: this loss is *convex* in the weights.",
)
@pytest.mark.claim(
    "01",
    "The loss of a linear model is convex in the weights, so with a safe step size gradient descent approaches the "
    "same lowest loss from every start.",
)
def test_every_start_finds_the_same_loss() -> None:
    """Every kind of data, also separated; chords between random points; starts at random, far and wrong.

    The loss after T steps of size a is at most |start - v|^2 / (2 a T) above that of any v, so above the lowest.
    Would be refuted by a start that stays above that.
    """
    g = rng(7)

    def says(x: Array, y: Array, start: Array, step: float, steps: int) -> None:
        rate = step / largest_curvature(x)
        reached = loss(descend(x, y, start, rate, steps), x, y)
        for v in (*others, best, 2 * best):
            allowed = ((start - v) ** 2).sum() / (2 * rate * steps)
            assert reached <= loss(v, x, y) + allowed + 1e-12

    for _, x, y in designs(g):
        x = with_ones(x)
        others = [size * g.normal(size=x.shape[1]) for size in (0.1, 1.0, 10.0)]
        best = descend(x, y, np.zeros(x.shape[1]), 1 / largest_curvature(x), 3000)
        for size in (0.0, 1.0, 10.0):
            says(x, y, size * g.normal(size=x.shape[1]), 1.0, 300)
        for a, b in itertools.pairwise(others):
            t = g.uniform()
            chord = t * loss(a, x, y) + (1 - t) * loss(b, x, y)
            assert loss(t * a + (1 - t) * b, x, y) <= chord + 1e-9
    coin, heads = np.ones((10, 1)), (np.arange(10) < 7).astype(float)
    others, best = [], np.array([np.log(7 / 3)])
    says(coin, heads, np.array([-3.0]), 1.0, 1000)
    with refuted("a step that is not safe"):
        says(coin, heads, np.array([-3.0]), 12 * largest_curvature(coin), 1000)
    x, y = four_features()
    far = 100 * g.normal(size=5)

    def as_from_zero(start: Array) -> None:
        assert loss(descend(x, y, start, 1.0, 1000), x, y) == pytest.approx(0.14088, abs=1e-4)

    as_from_zero(np.zeros(5))
    with refuted("a thousand steps from afar"):
        as_from_zero(far)

    def product(a: float, b: float) -> float:
        """A network of one unit, z = a b, on the coin."""
        for _ in range(1000):
            slope = float(xent.sigmoid(a * b)) - 0.7
            a, b = a - 0.1 * slope * b, b - 0.1 * slope * a
        return a * b

    assert product(0.5, 0.5) == pytest.approx(best[0], abs=1e-6)
    with refuted("a network, whose loss is not convex in its weights"):
        assert product(0.0, 0.0) == pytest.approx(best[0], abs=1e-6)


@pytest.mark.claim(
    "01",
    "a rule that answers yes or no from the radius alone gets some wrong;",
)
def test_no_rule_on_the_radius_is_right() -> None:
    """Every rule, however wild: it errs on tumours of one radius and two kinds.

    Would be refuted by a radius that tells all tumours apart; all thirty features do.
    """

    def says(x: Array, y: Array) -> None:
        _, groups = np.unique(x, axis=0, return_inverse=True)
        ones, sizes = np.bincount(groups.ravel(), y), np.bincount(groups.ravel())
        assert np.minimum(ones, sizes - ones).sum() > 0

    x, y = tumours()
    says(x[:, :2], y)
    with refuted("a rule on all thirty features"):
        says(x, y)


@pytest.mark.claim(
    "01",
    "so by this estimate, of all steps of the same length, the one against the gradient lowers the loss most.",
)
def test_the_steepest_step() -> None:
    """Every kind of data, weights near and far, a thousand directions and steps of any length.

    Would be refuted by a direction with a lower estimate. A long step may lower the loss itself more elsewhere: the
    one to the minimum.
    """
    g = rng(15)

    def says(change: Callable[[Array], float], steepest: Array, also: Array) -> None:
        others = np.vstack([g.normal(size=(1000, len(steepest))), also])
        others *= np.linalg.norm(steepest) / np.linalg.norm(others, axis=1)[:, None]
        assert min(change(d) for d in others) >= change(steepest) - 1e-9 * abs(change(steepest))

    for _, x, y in designs(g):
        x = with_ones(x)
        for scale in (0.0, 1.0, 10.0):
            w = scale * g.normal(size=x.shape[1])
            slope = x.T @ (xent.sigmoid(x @ w) - y) / len(y)
            if np.linalg.norm(slope) > 1e-12:
                says(lambda d, slope=slope: float(slope @ d), -(10.0 ** g.uniform(-3, 1)) * slope, slope)
    x, y = four_features()
    slope, best = x.T @ (0.5 - y) / len(y), descend(x, y, np.zeros(5), 1.0, 1000)
    with refuted("the loss itself, and a step as long as the way to the minimum"):
        says(lambda d: loss(d, x, y), -np.linalg.norm(best) / np.linalg.norm(slope) * slope, best)


@pytest.mark.claim(
    "01",
    "its slopes and curvature are $N$ times as large: divide the step size by $N$, and multiply a penalty (a term "
    "that keeps the weights small) by $N$.",
)
def test_the_sum_in_place_of_the_mean() -> None:
    """Every kind of data of two rows or more, with a penalty and without: the paths of the two descents.

    Would be refuted by data on which they part; with the mean's step size or the mean's penalty they do.
    """
    g = rng(16)

    def path(x: Array, y: Array, counts: float, rate: float, penalty: float) -> Array:
        w = np.zeros(x.shape[1])
        for _ in range(50):
            w = w - rate * (counts * x.T @ (xent.sigmoid(x @ w) - y) / len(y) + penalty * w)
        return w

    def says(x: Array, y: Array, rate: float, penalty: float, for_sum: tuple[float, float]) -> None:
        mean = path(x, y, 1, rate, penalty)
        assert path(x, y, len(y), *for_sum) == pytest.approx(mean, rel=1e-6, abs=1e-9)

    for what, x, y in designs(g):
        if what != "one row":
            x, N = with_ones(x), len(y)
            for penalty in (0.0, 0.01, 1.0):
                rate = 1 / (largest_curvature(x) + penalty)
                says(x, y, rate, penalty, (rate / N, penalty * N))
                with refuted("the mean's step size"):
                    says(x, y, rate, penalty, (rate, penalty * N))
                if penalty:
                    with refuted("the mean's penalty"):
                        says(x, y, rate, penalty, (rate / N, penalty))


@pytest.mark.slow
@pytest.mark.claim(
    "01",
    "The weight becomes ten times as large and the predictions stay the same, because the minimum has the same "
    "logits. (After 1,000 steps the weight is still near its old value.)",
)
def test_a_feature_divided_by_ten() -> None:
    """The descent of the chapter, to 200,000 steps.

    Would be refuted by a number of steps in the exercise at which the descent has not arrived.
    """
    x, y = four_features()
    old = descend(x, y, np.zeros(5), 1.0, 1000)
    shrunk = x / [1, 10, 1, 1, 1]
    early = descend(shrunk, y, np.zeros(5), 1.0, 1000)
    later = descend(shrunk, y, early, 1.0, 19_000)
    late = descend(shrunk, y, later, 1.0, 180_000)

    def says(w: Array) -> None:
        assert w[1] == pytest.approx(10 * old[1], rel=0.01)
        assert ((shrunk @ w > 0) == (x @ old > 0)).all()

    says(late)
    assert early[1] == pytest.approx(old[1], abs=0.1)
    for w in (early, later):
        with refuted("1,000 and 20,000 steps"):
            says(w)


@pytest.mark.claim(
    "01", "started far from the minimum, Newton's method can diverge, although the loss is convex."
)
def test_newton_from_afar() -> None:
    """The chapter's tumours, and other data that have a minimum, from random starts near and far.

    Would be refuted by data on which no start diverges; near the minimum none does.
    """
    g = rng(8)

    def ends_at(x: Array, y: Array, w: Array) -> float:
        for _ in range(12):
            p = xent.sigmoid(x @ w)
            hessian = x.T @ (x * (p * (1 - p))[:, None]) / len(y)
            if not np.linalg.cond(hessian) < 1e15:
                return np.inf
            w = w - np.linalg.solve(hessian, x.T @ (p - y) / len(y))
        return loss(w, x, y)

    def says(x: Array, y: Array, size: float) -> None:
        found = [ends_at(x, y, size * g.normal(size=x.shape[1])) for _ in range(8)]
        assert max(found) > 1

    x, y = four_features()
    assert ends_at(x, y, np.zeros(5)) == pytest.approx(0.140879, abs=1e-5)
    for a, b in (
        (x, y),
        *((with_ones(x), y) for what, x, y in designs(g) if what in ("plain", "rows twice")),
    ):
        says(a, b, 5.0)
        with refuted("starts near the minimum"):
            says(a, b, 0.05)


@pytest.mark.claim(
    "01",
    "the probabilities of a model fitted with an unpenalised intercept, and without weights for examples or classes, "
    "add up to the number of malignant tumours in its training set.",
)
def test_the_probabilities_add_up() -> None:
    """Every kind of data that scikit-learn takes and that has a minimum, penalised or not, tumours or not.

    Would be refuted by a fit whose probabilities do not add up to the number of ones.
    """
    g = rng(9)

    def says(x: Array, y: Array, **options: object) -> None:
        model = LogisticRegression(**{"solver": "newton-cholesky", "tol": 1e-10, "max_iter": 1000, **options})
        found = model.fit(x, y).predict_proba(x)[:, 1].sum()
        assert found == pytest.approx(y.sum(), abs=1e-4)

    x, y = tumours()
    rare = (g.uniform(size=len(y)) < 0.05).astype(float)
    kinds = ("plain", "correlated", "scales", "rows twice")
    problems = [(x[:, 3:8], y), (x[:, 20:24], rare)]
    problems += [(x, y) for what, x, y in designs(g) if what in kinds]
    for features, labels in problems:
        says(features, labels, C=np.inf)
        says(features, labels, C=0.01)
    with refuted("weights for the classes"):
        says(*problems[0], C=np.inf, class_weight="balanced")
    x, y = four_features()
    with refuted("the number of probabilities above one half"):
        assert LogisticRegression(C=np.inf).fit(x[:, 1:], y).predict(x[:, 1:]).sum() == y.sum()
    with refuted("a model without an intercept"):
        says(*problems[1], C=np.inf, fit_intercept=False)
    with refuted("liblinear, which penalises the intercept"):
        says(*problems[0], C=1e-3, solver="liblinear")


@pytest.mark.claim("01", "A quadratic penalty on every weight always restores the minimum.")
def test_a_penalty_restores_the_minimum() -> None:
    """Every kind of data, also separated, of one class and collinear, penalties from 1e-4 to 10.

    A trust-region method from near and far has to end at one point, inside the ball of the bound. Would be refuted
    by data on which it does not; a penalty that stops growing is, by one class.
    """
    from scipy.optimize import minimize

    g = rng(12)

    def ends(x: Array, y: Array, penalty: Array, w: Array, until: float) -> Array:
        def value(w: Array) -> float:
            return loss(w, x, y) + float(penalty @ np.minimum(w**2, until**2)) / 2

        def slope(w: Array) -> Array:
            return np.asarray(x.T @ (xent.sigmoid(x @ w) - y) / len(y) + penalty * w * (np.abs(w) < until))

        def curvature(w: Array) -> Array:
            p = xent.sigmoid(x @ w)
            return np.asarray(
                x.T @ (x * (p * (1 - p))[:, None]) / len(y) + np.diag(penalty * (np.abs(w) < until))
            )

        options = {"gtol": 1e-11, "maxiter": 2000}
        return np.asarray(
            minimize(value, w, jac=slope, hess=curvature, method="trust-exact", options=options).x
        )

    def says(x: Array, y: Array, penalty: Array, until: float = np.inf) -> None:
        near, far = (ends(x, y, penalty, size * np.ones(x.shape[1]), until) for size in (0.0, 3.0))
        assert np.abs(near - far).max() < 1e-4
        assert np.linalg.norm(near) <= np.sqrt(2 * np.log(2) / penalty.max()) * (1 + 1e-6)

    for _, x, y in designs(g, rows=20):
        for strength in (1e-4, 1e-2, 10.0):
            says(with_ones(x), y, np.full(x.shape[1] + 1, strength))
    _, x, y = next(d for d in designs(g) if d[0] == "one class")
    with refuted("one class, with the intercept left free"):
        says(with_ones(x), y, np.r_[0.0, np.full(x.shape[1], 0.1)])
    with refuted("a penalty on every weight that no longer grows beyond a size of one"):
        says(with_ones(x), y, np.full(x.shape[1] + 1, 0.1), until=1.0)


@pytest.mark.claim("01", "The held-out loss turns round near $C = 1$.")
def test_the_turn_of_the_held_out_loss() -> None:
    """Other folds, and random seeds of the split: a turn between 0.1 and 10 each time.

    A finding on these tumours. Would be refuted by a split whose best C is an end of the range.
    """
    from sklearn.model_selection import StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = tumours()
    strengths = np.array([1e-2, 0.1, 1.0, 10.0, 100.0])

    def says(means: Array) -> None:
        assert 0.1 <= strengths[means.argmin()] <= 10 and means[-1] > 1.5 * means.min()

    for splits, seed in ((5, 1), (5, 2), (10, 0)):
        random_state = int(rng(seed).integers(1000))
        folds = list(StratifiedKFold(splits, shuffle=True, random_state=random_state).split(x, y))
        means: dict[str, list[float]] = {"held out": [], "training": []}
        for strength in strengths:
            each: dict[str, list[float]] = {"held out": [], "training": []}
            for train, test in folds:
                fit = LogisticRegression(C=strength, solver="newton-cholesky", tol=1e-6)
                model = make_pipeline(StandardScaler(), fit).fit(x[train, 1:], y[train])
                for name, rows in (("held out", test), ("training", train)):
                    z = model.decision_function(x[rows, 1:])
                    each[name].append(float(np.mean(np.logaddexp(0, z) - y[rows] * z)))
            for name in means:
                means[name].append(float(np.mean(each[name])))
        says(np.array(means["held out"]))
        with refuted("the training loss"):
            says(np.array(means["training"]))


@pytest.mark.claim("01", "The same `C` is a weaker penalty on more data.")
def test_c_depends_on_the_size() -> None:
    """Every kind of data that scikit-learn takes, each example twice to nine times, C from 0.01 to 1.

    Would be refuted by data whose weights do not grow; with C divided by the number of copies they stay.
    """
    g = rng(13)

    def norm(x: Array, y: Array, strength: float, copies: int) -> float:
        model = LogisticRegression(C=strength, solver="newton-cholesky", tol=1e-10, max_iter=1000)
        return float(np.linalg.norm(model.fit(np.tile(x, (copies, 1)), np.tile(y, copies)).coef_))

    def says(x: Array, y: Array, strength: float, copies: int, divisor: int = 1) -> None:
        assert norm(x, y, strength / divisor, copies) > norm(x, y, strength, 1) * (1 + 1e-5)

    for what, x, y in designs(g):
        if what not in ("one class", "one row", "fewer rows than columns"):
            for strength in (0.01, 1.0):
                says(x, y, strength, copies := int(g.integers(2, 10)))
                with refuted("C over the number of copies"):
                    says(x, y, strength, copies, divisor=copies)


@pytest.mark.claim(
    "01",
    "So the zeros have to reach beyond the smallest of the ones, and the ones beyond the smallest of the zeros.",
)
def test_when_one_feature_has_a_fit() -> None:
    """Every labelling of three to six small whole numbers that are not all equal, against a linear program.

    Would be refuted by a class that sits on a single point inside the other, where the intervals share one point.
    """

    def finite(x: Array, y: Array) -> bool:
        signed = (2 * y - 1)[:, None] * with_ones(x[:, None])
        gain = optimize.linprog(
            -signed.sum(axis=0), A_ub=-signed, b_ub=np.zeros(len(y)), bounds=[(-1, 1)] * 2
        )
        return bool(gain.fun > -1e-9)

    def reach(x: Array, y: Array) -> bool:
        zeros, ones = x[y == 0], x[y == 1]
        return bool(len(zeros) and len(ones) and zeros.max() > ones.min() and ones.max() > zeros.min())

    def intervals(x: Array, y: Array) -> bool:
        zeros, ones = x[y == 0], x[y == 1]
        return bool(len(zeros) and len(ones) and min(zeros.max(), ones.max()) > max(zeros.min(), ones.min()))

    def says(rule: Callable[[Array, Array], bool]) -> None:
        for points in ([0, 1, 2], [0, 1, 1], [0, 1, 1, 2], [0, 1, 1, 2, 2], [0, 1, 1, 1, 2, 3]):
            for labels in itertools.product((0.0, 1.0), repeat=len(points)):
                x, y = np.array(points, dtype=float), np.array(labels)
                assert rule(x, y) == finite(x, y)

    says(reach)
    with refuted("two intervals that share more than a point"):
        says(intervals)


@pytest.mark.claim(
    "01",
    "With `pos_weight=10`, a fitted 0.5 means a frequency of one in eleven, if the model can express the weighted "
    "share of each input.",
)
def test_what_pos_weight_leaves_behind() -> None:
    """Groups of random frequencies, one of them one in eleven, and other weights; a model that lacks a term.

    Would be refuted by a model with a weight for each group whose frequencies do not come back.
    """
    g = rng(14)

    def says(x: Array, heads: Array, sizes: Array, c: float) -> None:
        def mean(w: Array) -> tuple[float, Array]:
            q = xent.sigmoid(x @ w)
            each = c * heads * np.logaddexp(0, -x @ w) + (sizes - heads) * np.logaddexp(0, x @ w)
            slope = -c * heads * (1 - q) + (sizes - heads) * q
            return float(each.sum() / sizes.sum()), x.T @ slope / sizes.sum()

        w = optimize.minimize(mean, np.zeros(x.shape[1]), jac=True, method="BFGS", options={"gtol": 1e-10}).x
        q = xent.sigmoid(x @ w)
        assert q / (q + c * (1 - q)) == pytest.approx(heads / sizes, rel=1e-3)

    sizes = np.full(5, 110.0)
    for c in (10.0, *g.uniform(0.1, 50, 5)):
        heads = np.r_[10.0, g.integers(5, 105, 4)]
        says(np.eye(5), heads, sizes, c)
    heads = np.array([10.0, 60.0, 20.0, 80.0, 5.0])
    with refuted("a straight line through frequencies that rise and fall"):
        says(with_ones(np.arange(5.0)[:, None]), heads, sizes, 10.0)
