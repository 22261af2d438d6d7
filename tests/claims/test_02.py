"""What chapter 2 claims, and attempts to refute it."""

from __future__ import annotations

import itertools

import mpmath
import numpy as np
import pytest
from scipy import optimize, stats
from sklearn.datasets import load_digits, load_wine

import xent

Array = np.ndarray


def softmax_fit(x: Array, y: Array, steps: int, rate: float = 2.0, start: float = 0.0) -> Array:
    """Softmax regression by gradient descent: the weights, with those of a column of ones in the last row."""
    a, onehot = np.column_stack([x, np.ones(len(x))]), np.eye(y.max() + 1)[y]
    w = start * np.random.default_rng(0).normal(size=(a.shape[1], onehot.shape[1]))
    for _ in range(steps):
        w -= rate * a.T @ (xent.softmax(a @ w) - onehot) / len(y)
    return w


def standardised(x: Array) -> Array:
    return (x - x.mean(axis=0)) / x.std(axis=0)


@pytest.mark.claim(
    "02",
    "The loss of a label is minus the logarithm of its probability, because the likelihood of independent labels is "
    "a product.",
)
def test_the_loss_is_a_likelihood() -> None:
    """Enumerate all records of three labels: the product is their probability, and the loss is its logarithm."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(4), size=3)
    total = 0.0
    for record in itertools.product(range(4), repeat=3):
        product = np.prod(p[range(3), record])
        total += product
        assert xent.log_loss(p, np.array(record), reduction="sum") == pytest.approx(
            -np.log(product), rel=1e-12
        )
    assert total == pytest.approx(1, rel=1e-12)


@pytest.mark.claim(
    "02",
    "Softmax is the only map from logits to probabilities under which differences of logits are log-odds; adding the "
    "same number to all logits changes nothing.",
)
def test_softmax_is_the_only_one() -> None:
    """Solve the log-odds for the probabilities from random starts; other positive maps miss them; shifts to 1e5."""
    rng = np.random.default_rng(1)
    for _ in range(5):
        z = rng.normal(scale=2.0, size=4)

        def odds(log_p: Array, z: Array = z) -> Array:
            return np.r_[log_p[1:] - log_p[0] - (z[1:] - z[0]), np.exp(log_p).sum() - 1]

        for _ in range(3):
            found = optimize.least_squares(odds, rng.normal(size=4) - 1, xtol=1e-15, ftol=1e-15, gtol=1e-15).x
            assert np.exp(found) == pytest.approx(xent.softmax(z), abs=1e-7)
        for wrong in (z**2 / (z**2).sum(), xent.sigmoid(z) / xent.sigmoid(z).sum(), xent.softmax(2 * z)):
            assert np.abs(np.log(wrong[1:] / wrong[0]) - (z[1:] - z[0])).max() > 0.1
        for shift in (-1e5, 3.3, 1e5):
            assert xent.softmax(z + shift) == pytest.approx(xent.softmax(z), rel=1e-9)


@pytest.mark.claim(
    "02",
    "Softmax is a soft version of the one-hot arg max, and approaches it as the temperature falls, unless two logits "
    "tie for the top.",
)
def test_the_cold_softmax_is_one_hot() -> None:
    """Random logits at falling temperatures; with a tie for the top the limit is shared, and so is no arg max."""
    rng = np.random.default_rng(2)
    for _ in range(20):
        z = rng.normal(size=5)
        gap = np.diff(np.sort(z))[-1]
        distances = [
            np.abs(xent.softmax(z / t) - np.eye(5)[z.argmax()]).max() for t in (1.0, gap / 4, gap / 40)
        ]
        assert distances[0] > distances[1] > distances[2] and distances[2] < 1e-15
    assert xent.softmax(np.array([1.0, 1.0, 0.0]) / 1e-3) == pytest.approx([0.5, 0.5, 0])


@pytest.mark.claim(
    "02",
    "Compute the loss from logits, as log-sum-exp minus the label's logit; the logarithm of a computed softmax is "
    "infinite where the true loss is large.",
)
def test_from_logits() -> None:
    """Against 60 digits at margins from 1 to 10,000, in float64 and float32."""
    for dtype, dead in ((np.float64, 746.0), (np.float32, 105.0)):
        for margin in (1.0, 30.0, dead, 10_000.0):
            z = np.array([0.0, margin, -3.0], dtype)
            with mpmath.workdps(60):
                exact = mpmath.log(sum(mpmath.exp(mpmath.mpf(float(v))) for v in z))
            assert float(xent.cross_entropy(z[None], [0])) == pytest.approx(float(exact), rel=1e-6)
            with np.errstate(divide="ignore"):
                naive = -np.log(xent.softmax(z).astype(dtype)[0])
            assert np.isinf(naive) == (margin >= dead)


@pytest.mark.claim(
    "02",
    "A loss below $\\log 2$ means a right prediction, and one above $\\log K$ a wrong one; in between you cannot tell.",
)
def test_what_the_size_of_a_loss_says() -> None:
    """Random predictions of 2 to 50 classes, flat and peaked; both kinds are found in between for K > 2."""
    rng = np.random.default_rng(3)
    for classes in (2, 3, 10, 50):
        between = set()
        for concentration in (0.05, 0.5, 5.0):
            p = rng.dirichlet(np.full(classes, concentration), size=5000)
            label = rng.integers(0, classes, 5000)
            with np.errstate(divide="ignore"):
                loss = -np.log(p[np.arange(5000), label])
            right = p[np.arange(5000), label] >= p.max(axis=1)
            assert right[loss < np.log(2)].all() and not right[loss > np.log(classes) + 1e-12].any()
            between |= set(right[(loss > np.log(2)) & (loss < np.log(classes))])
        assert between == (set() if classes == 2 else {True, False})


@pytest.mark.claim("02", "A model that knows nothing starts at $\\log K$, whatever the labels are.")
def test_the_start_is_log_k() -> None:
    """Digits with their labels, shuffled, and all one label; with small random weights within 2 % of log 10."""
    x, y = load_digits(return_X_y=True)
    a = x / 16
    rng = np.random.default_rng(4)
    for labels in (y, rng.permutation(y), np.full_like(y, 3)):
        assert xent.cross_entropy(np.zeros((len(y), 10)), labels) == pytest.approx(np.log(10), rel=1e-14)
        small = a @ rng.normal(scale=0.01, size=(64, 10))
        assert xent.cross_entropy(small, labels) == pytest.approx(np.log(10), rel=0.02)
    large = a @ rng.normal(scale=1.0, size=(64, 10))
    assert xent.cross_entropy(large, y) > 1.5 * np.log(10)


@pytest.mark.claim(
    "02",
    "Next-token prediction is classification with as many classes as the vocabulary has tokens, and the losses along "
    "a text add up to its negative log-likelihood.",
)
def test_the_losses_of_a_text() -> None:
    """A Markov chain of characters, as a generator: its path probability, in a separate walk."""
    rng = np.random.default_rng(5)
    vocabulary = 7
    table = rng.normal(size=(vocabulary, vocabulary))
    chain = np.exp(table) / np.exp(table).sum(axis=1, keepdims=True)
    text = rng.integers(0, vocabulary, 30)
    path = np.linalg.multi_dot([np.diag(np.eye(vocabulary)[t]) @ chain for t in text[:-1]])[text[0], text[-1]]
    total = xent.cross_entropy(table[text[:-1]], text[1:], reduction="sum")
    assert total == pytest.approx(-np.log(path), rel=1e-10)
    # It is the same function as for three wines: the label is one of the columns.
    with pytest.raises(ValueError, match="targets"):
        xent.cross_entropy(table[text[:-1]], np.full(29, vocabulary))


@pytest.mark.claim("02", "What the model learnt is what counting would have told you,")
def test_counting_is_the_fit() -> None:
    """Another text: the table's loss cannot go below that of the counts, and comes within 1 %."""
    text = "she sells sea shells by the sea shore. the shells she sells are sea shells for sure." * 2
    characters = sorted(set(text))
    ids = np.array([characters.index(c) for c in text])
    before, after = ids[:-1], ids[1:]
    counts = np.zeros((len(characters),) * 2)
    np.add.at(counts, (before, after), 1)
    best = -np.log((counts / counts.sum(axis=1, keepdims=True).clip(1))[before, after]).mean()
    table = np.zeros_like(counts)
    for _ in range(1500):
        residual = (xent.softmax(table[before]) - np.eye(len(characters))[after]) / len(after)
        np.subtract.at(table, before, 10 * residual)
        assert xent.cross_entropy(table[before], after) >= best - 1e-12
    assert xent.cross_entropy(table[before], after) < 1.01 * best


@pytest.mark.claim(
    "02",
    "Squared error is maximum likelihood under Gaussian noise; on class labels a linear model fitted by it can fail "
    "to predict a class at all.",
)
def test_squared_error_and_masking() -> None:
    """SciPy's Gaussian fits the same line; the middle of three clusters, at other places, widths and seeds."""
    rng = np.random.default_rng(6)
    a = np.column_stack([rng.normal(size=40), np.ones(40)])
    t = a @ [2.0, -1.0] + rng.normal(size=40)
    squared = np.linalg.lstsq(a, t, rcond=None)[0]
    likely = optimize.minimize(lambda w: -stats.norm.logpdf(t, a @ w, 1.3).sum(), np.zeros(2), tol=1e-10).x
    assert likely == pytest.approx(squared, abs=1e-5)
    for seed, width, places in ((1, 0.3, (-2, 0, 2)), (2, 0.1, (0, 1, 2)), (3, 0.5, (-4, 0.3, 4))):
        rng = np.random.default_rng(seed)
        x = np.concatenate([rng.normal(m, width, 40) for m in places])
        y = np.repeat([0, 1, 2], 40)
        a = np.column_stack([standardised(x), np.ones(120)])
        outputs = a @ np.linalg.lstsq(a, np.eye(3)[y], rcond=None)[0]
        assert (outputs.argmax(axis=1) == 1).sum() <= 4
        assert ((a @ softmax_fit(a[:, :1], y, 4000)).argmax(axis=1) != y).mean() <= 0.02
    # With a large class in the middle it is not the middle one that is masked.
    y = np.repeat([0, 1, 2], (20, 100, 20))
    x = np.random.default_rng(0).normal(np.array([-2.0, 0.0, 2.0])[y], 0.3)
    a = np.column_stack([x, np.ones(140)])
    found = np.bincount((a @ np.linalg.lstsq(a, np.eye(3)[y], rcond=None)[0]).argmax(axis=1), minlength=3)
    assert found[1] > 100 and found.min() <= 5


@pytest.mark.claim("02", "So for a linear model the choice of loss can change the predictions.")
def test_wines_by_one_measurement() -> None:
    """Each of the thirteen measurements alone: least squares is never better by much, and far worse for two."""
    wine = load_wine()
    extra = []
    for column in standardised(wine.data).T:
        a = np.column_stack([column, np.ones(len(column))])
        squared = (a @ np.linalg.lstsq(a, np.eye(3)[wine.target], rcond=None)[0]).argmax(axis=1)
        soft = (a @ softmax_fit(a[:, :1], wine.target, 800)).argmax(axis=1)
        extra.append((squared != wine.target).sum() - (soft != wine.target).sum())
    assert sum(e >= 10 for e in extra) == 2 and min(extra) > -10


@pytest.mark.claim(
    "02", "Torch started from random weights, and no gradient ever pushes along the spare direction,"
)
def test_the_spare_direction() -> None:
    """Gradient descent from random starts: the sum over classes of each weight never moves."""
    wine = load_wine()
    x = standardised(wine.data[:, [0, 9]])
    start = softmax_fit(x, wine.target, 0, start=1.0)
    end = softmax_fit(x, wine.target, 500, start=1.0)
    assert np.abs(end - start).max() > 0.5
    assert end.sum(axis=1) == pytest.approx(start.sum(axis=1), abs=1e-12)


@pytest.mark.claim(
    "02", "As the penalty gets weaker the training loss goes to zero and the weights grow without end."
)
def test_thirteen_measurements_separate() -> None:
    """A separating plane for each pair by a linear program, so that scaling up never stops helping."""
    wine = load_wine()
    a = np.column_stack([standardised(wine.data), np.ones(len(wine.target))])
    rows = []
    for x, y in zip(a, wine.target, strict=True):
        for other in {0, 1, 2} - {y}:
            row = np.zeros((14, 3))
            row[:, y], row[:, other] = x, -x
            rows.append(row.ravel())
    found = optimize.linprog(np.zeros(42), -np.array(rows), -np.ones(len(rows)), bounds=[(None, None)] * 42)
    w = found.x.reshape(14, 3)
    losses = [float(xent.cross_entropy(s * (a @ w), wine.target)) for s in (1, 4, 16, 64)]
    assert (np.diff(losses) < 0).all() and losses[-1] < 1e-20


@pytest.mark.claim(
    "02",
    "the loss has no lower bound: add a constant to all of them, and it falls by that constant, while no prediction "
    "changes.",
)
def test_nll_of_logits_has_no_bound() -> None:
    """Torch on logits of any sign, shifted; on the lecture's, scaled; on others, scaling makes the loss larger."""
    import torch

    for seed in range(5):
        z = torch.tensor(np.random.default_rng(seed).normal(size=(6, 4)) - 2)
        label = torch.arange(6) % 4
        for c in (1.0, 1e3, 1e6):
            fall = torch.nn.functional.nll_loss(z, label) - torch.nn.functional.nll_loss(z + c, label)
            assert float(fall) == pytest.approx(c, rel=1e-9)
            assert torch.softmax(z + c, 1).numpy() == pytest.approx(torch.softmax(z, 1).numpy(), rel=1e-6)
    negative = torch.tensor([[-1.0, 3.0], [-2.0, 4.0]]), torch.tensor([0, 0])
    scaled = [float(torch.nn.functional.nll_loss(s * negative[0], negative[1])) for s in (1, 100)]
    assert scaled[1] > scaled[0]

    f, y = torch.tensor([[-1.0, -3.0, 4.0], [-3.0, 3.0, -1.0]]), torch.tensor([0, 1])
    values = [float(torch.nn.functional.nll_loss(s * f, y)) for s in (1, 10, 1e6)]
    assert values[0] > values[1] > values[2] and values[2] < -1e5
    assert (f.argmax(1) == (1e6 * f).argmax(1)).all()
