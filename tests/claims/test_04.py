"""What chapter 4 claims, and attempts to refute it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.datasets import load_digits, load_wine

import xent
from adversary import batches, claim, designs, distributions, one_hot, optimisers, printed, rng
from xent import gradients

Array = np.ndarray
F, D = torch.nn.functional, torch.distributions
IMAGES, LABELS = load_digits().data / 16, load_digits().target

# ------------------------------------------------------------------------------- the network of the chapter


def network(g: Any, width: int = 32) -> list[Array]:
    first = g.normal(size=(width, 64)) * np.sqrt(2 / 64)
    return [first, np.zeros(width), g.normal(size=(10, width)) * np.sqrt(1 / width), np.zeros(10)]


def forward(w: list[Array], x: Array) -> tuple[Array, Array]:
    hidden = np.maximum(x @ w[0].T + w[1], 0)
    return hidden, hidden @ w[2].T + w[3]


def loss_of(w: list[Array], rows: Array) -> float:
    return float(xent.cross_entropy(forward(w, IMAGES[rows])[1], LABELS[rows]))


def backward(w: list[Array], rows: Array) -> list[Array]:
    hidden, z = forward(w, IMAGES[rows])
    g = (xent.softmax(z) - one_hot(LABELS[rows], 10)) / len(rows)
    below = g @ w[2] * (hidden > 0)
    return [below.T @ IMAGES[rows], below.sum(axis=0), g.T @ hidden, g.sum(axis=0)]


def train(w: list[Array], batches: Any) -> None:
    for batch in batches:
        for part, slope in zip(w, backward(w, batch), strict=True):
            part -= 0.2 * slope


def split(seed: int) -> tuple[Array, Array]:
    """The images for training and those for validation."""
    order = rng(100 + seed).permutation(len(LABELS))
    return order[:1200], order[1200:]


def fitted(seed: int, epochs: int, size: int = 50) -> Iterator[list[Array]]:
    """The weights after each epoch."""
    w, g = network(rng(200 + seed)), rng(300 + seed)
    for _ in range(epochs):
        train(w, np.split(g.permutation(split(seed)[0]), 1200 // size))
        yield w


def seen(w: list[Array], seed: int) -> tuple[float, ...]:
    """Both losses, accuracy, confidence; how many standard errors the least confident sixth is surer than right."""
    old, new = split(seed)
    z = forward(w, IMAGES[new])[1]
    hit, confidence = z.argmax(axis=1) == LABELS[new], xent.softmax(z).max(axis=1)
    least = np.array_split(np.argsort(confidence), 6)[0]
    share = hit[least].mean()
    excess = (confidence[least].mean() - share) / np.sqrt(share * (1 - share) / len(least))
    return loss_of(w, old), loss_of(w, new), hit.mean(), confidence.mean(), excess


@cache
def histories() -> tuple[Array, Array]:
    """Of three splits, after each of 300 epochs: what is seen, and the loss of each image for validation."""
    runs = [
        [(seen(w, s), xent.cross_entropy(forward(w, IMAGES[split(s)[1]])[1], LABELS[split(s)[1]], reduction="none"))
         for w in fitted(s, 300)]
        for s in range(3)
    ]  # fmt: skip
    return np.array([[row for row, _ in run] for run in runs]), np.array(
        [[e for _, e in run] for run in runs]
    )


# ------------------------------------------------------------------------------------------ what to remember


def autograd(of: Any, at: Any) -> Array:
    """The slope of a loss at some numbers."""
    z = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    return np.asarray(torch.autograd.grad(of(z), z)[0])


def hard_and_soft() -> Iterator[tuple[Array, Array]]:
    for what, z, y in batches(rng(0)):
        if "any" in what:
            yield z, one_hot(y, z.shape[1])
            if ", plain" in what or "1e4" in what:
                yield from ((z, t) for _, t in distributions(rng(1), z.shape[1], len(z)))


LOGITS, TARGETS = rng(0).normal(size=(4, 3)), rng(0).dirichlet(np.ones(3), 4)


@claim(
    "The gradient of cross-entropy with respect to the logits",
    on=hard_and_soft,
    but_not={
        "the mean": (LOGITS, TARGETS, "mean"),
        "targets that do not sum to one": (LOGITS, 2 * TARGETS),
        "no targets": (LOGITS, 0 * TARGETS),
    },
)
def test_prediction_minus_target(z: Array, t: Array, reduction: str = "sum") -> None:
    of_torch = autograd(lambda a: F.cross_entropy(a, torch.tensor(t), reduction=reduction), z)
    np.testing.assert_allclose(xent.softmax(z) - t, of_torch, rtol=1e-10, atol=1e-12)


@claim(
    "The mean over a batch puts a factor ... twice the gradient.",
    on=[(n, *way) for n in (1, 7, 200) for way in ((2, "sum"), (1, "mean"))],
    but_not={"a mean that doubles": (7, 2, "mean"), "a step of Adam on a sum": (7, 2, "sum", "Adam")},
)
def test_the_factor_of_the_mean(n: int, factor: int, reduction: str, kind: str = "SGD") -> None:
    """A step in shared weights, of one copy of the batch and of two."""
    x, y, w, steps = rng(1).normal(size=(n, 3)), rng(2).integers(0, 4, n), rng(3).normal(size=(4, 3)), []
    for copies, how in ((1, reduction), (2, reduction), (1, "mean")):
        weight = torch.tensor(w, requires_grad=True)
        optimiser, inputs = optimisers()[kind]([weight]), torch.tensor(np.tile(x, (copies, 1)))
        F.cross_entropy(inputs @ weight.T, torch.tensor(np.tile(y, copies)), reduction=how).backward()
        optimiser.step()
        steps.append(weight.detach().numpy() - w)
    np.testing.assert_allclose(steps[1], factor * steps[0], rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(steps[0], steps[2] * (n if reduction == "sum" else 1), rtol=1e-6, atol=1e-12)


test_one_gradient_for_four = claim(
    "Gaussian (of variance 1), Bernoulli ... mean minus target.",
    on=["eq-grad-family"],
    but_not={
        "target minus mean": (
            "eq-grad-family",
            r"\operatorname{E}[y \mid z] - y",
            r"y - \operatorname{E}[y \mid z]",
        ),
        "another parameter": ("eq-grad-family", r"e^{z y - \psi(z)}", r"e^{z^2 y - \psi(z)}"),
    },
)(printed)


def with_factors() -> Iterator[tuple[Any, ...]]:
    """Counts whose rate is n times exp(z), classes with a prior beside the logits: no further factor yet."""
    g = rng(14)
    for _ in range(10):
        n, y, prior = g.uniform(0.1, 50), float(g.poisson(3)), torch.tensor(g.dirichlet(np.ones(4))).log()
        yield (
            lambda a, n=n, y=y: -D.Poisson(n * a.exp()).log_prob(torch.tensor(y)),
            lambda a, n=n: n * a.exp(),
            0.3,
            y,
        )
        yield (
            lambda a, p=prior: -(a + p).log_softmax(0)[1],
            lambda a, _, p=prior: (a + p).softmax(0),
            g.normal(size=4),
            1,
        )


@claim(
    "the slope can have ... a further factor",
    on=with_factors,
    but_not={
        "a probit": (lambda e: -torch.special.log_ndtr(e), torch.special.ndtr, 0.8, 1.0),
        "a rate of z squared": (
            lambda a: -D.Poisson(a**2).log_prob(torch.tensor(3.0)),
            torch.square,
            0.7,
            3.0,
        ),
        "Poisson in its mean": (lambda e: -D.Poisson(e).log_prob(torch.tensor(5.0)), lambda e: e, 2.0, 5.0),
    },
)
def test_another_formula_can_bring_a_factor(loss: Any, mean: Any, at: Any, y: Any) -> None:
    """Where it does not, the slope is the mean minus the target."""
    z = torch.tensor(at, dtype=torch.float64)
    found = mean(z, 0) - F.one_hot(torch.tensor(y), len(z)) if z.ndim else mean(z) - y
    np.testing.assert_allclose(autograd(loss, at), found, rtol=1e-8, atol=1e-9)


@claim(
    "To check a gradient, start from random weights",
    "A wrong gradient shows if its error along this direction",
    on=range(20),
    but_not={"weights of zero, where a wrong part of zeros is right": (0, 0)},
)
def test_one_direction_catches(seed: int, scale: float = 1) -> None:
    """Nine planted errors, one of them a single entry of 2,410, in random networks, batches and directions."""
    g = rng(seed)
    w, rows = (
        [scale * part for part in network(g)],
        g.choice(1500, int(g.choice([20, 50, 200])), replace=False),
    )
    flat, v = np.concatenate([part.ravel() for part in backward(w, rows)]), g.normal(size=2410)
    steps = [s.reshape(part.shape) for s, part in zip(np.split(v, [2048, 2080, 2400]), w, strict=True)]
    # So short that what a ReLU bends on the way stays below the bound.
    up, down = (loss_of([a + h * b for a, b in zip(w, steps, strict=True)], rows) for h in (1e-7, -1e-7))
    hidden, z = forward(w, IMAGES[rows])
    top, one_entry = (xent.softmax(z) - one_hot(LABELS[rows], 10)) / len(rows), flat.copy()
    one_entry[np.abs(flat).argmax()] *= 2
    no_relu, no_weights = top @ w[2], (top @ np.ones_like(w[2])) * (hidden > 0)
    wrong = [-flat, len(rows) * flat, 1.01 * flat, np.roll(flat, 1), np.abs(flat), one_entry]
    wrong += [np.r_[(below.T @ IMAGES[rows]).ravel(), flat[2048:]] for below in (no_relu, no_weights)]
    wrong += [np.r_[flat[:-10], np.zeros(10)]]
    caught = [abs((up - down) / 2e-7 - a @ v) >= 1e-6 * max(np.linalg.norm(a), 1e-3) for a in (flat, *wrong)]
    assert caught == [False] + 9 * [True]


@pytest.mark.slow
@claim(
    "You may not have to train to the end to find it ... as low: stop",
    "Keep the weights with the lowest validation loss",
    on=[(run, 20, 1) for run in range(3)],
    but_not={"the training loss": (0, 20, 0), "no patience": (0, 1, 1), "the lowest of all": (None, 20, 1)},
)
def test_when_to_stop(run: int | None, patience: int, column: int) -> None:
    """A patience of 20 stops within 250 epochs, at a lower loss than the last, though not always the lowest."""
    found = []
    for losses in histories()[0][slice(None) if run is None else [run], :, column]:
        waited = np.array([e - losses[: e + 1].argmin() for e in range(len(losses))])
        stop = int((waited >= patience).argmax())
        low = losses[: stop + 1].min()
        assert 0 < stop < 250 and low <= losses[-1] and low < 1.05 * losses.min()
        found.append(low == losses.min())
    assert all(found) or run is not None


@claim("Because the epoch was chosen on these images", on=[None], but_not={"an epoch that nobody chose": 100})
def test_the_chosen_loss_is_too_low(epoch: int | None) -> None:
    """The images for validation, halved at random: an epoch chosen on one half, measured on both."""
    for losses in histories()[1]:
        gaps = []
        for seed in range(50):
            halves = np.array_split(rng(seed).permutation(losses.shape[1]), 2)
            one, other = (losses[:, half].mean(axis=1) for half in halves)
            for a, b in ((one, other), (other, one)):
                chosen = a.argmin() if epoch is None else epoch
                gaps.append(a[chosen] - b[chosen])
        assert np.mean(gaps) < -1e-6


@pytest.mark.slow
@claim(
    "The smallest batches end lowest ... has 120 steps",
    on=[(3, 10, 50, 1200), (4, 10, 50, 1200)],
    but_not={"the opposite order": (3, 1200, 50, 10)},
)
def test_small_batches_take_more_steps(seed: int, *sizes: int) -> None:
    ends = [loss_of(list(fitted(seed, 5, size))[-1], split(seed)[0]) for size in sizes]
    assert ends == sorted(ends)


@pytest.mark.slow
@claim(
    "This early in training, a dozen noisy steps",
    on=[((3, 4), 12, size) for size in (10, 50, 100)],
    but_not={"a single step of ten images": (range(3, 13), 1, 10)},
)
def test_a_dozen_noisy_steps(seeds: Any, steps: int, size: int) -> None:
    """From twelve orders of the images, as shares of what exact steps gain."""

    def gained(rows: Array) -> float:
        w = network(rng(200 + seed))
        before = loss_of(w, old)
        train(w, rows)
        return before - loss_of(w, old)

    for seed in seeds:
        old = split(seed)[0]
        orders = [rng(order).permutation(old)[: steps * size].reshape(steps, size) for order in range(12)]
        exact = gained(np.tile(old, (steps, 1)))
        shares = [gained(rows) / exact for rows in orders]
        assert min(shares) > 0.55 and max(shares) < 1.25


@claim(
    "After its first epochs this network ... than it claims.",
    "A network can be right far more often ... does not show it.",
    on=[(run, epoch) for run in range(3) for epoch in range(5)],
    but_not={
        f"{what}, {run}": (run, e) for run in range(3) for what, e in (("the end", 299), ("the start", None))
    },
)
def test_modest_at_first(run: int, epoch: int | None) -> None:
    """Confidence is 8 points short then, and not at the end, at much the same accuracy, nor before the first step."""
    _, _, accuracy, confidence, _ = (
        seen(network(rng(200 + run)), run) if epoch is None else histories()[0][run, epoch]
    )
    assert accuracy - confidence > 0.08 and accuracy > 0.5
    assert histories()[0][run, 4, 2] > 0.85


@cache
def of_the_page() -> list[list[tuple[float, int, int]]]:
    """After 5 and 300 epochs, of each group: mean confidence, how many images are right, how many there are."""
    order, w, found = np.random.default_rng(3).permutation(len(LABELS)), network(np.random.default_rng(4)), []
    g, new = np.random.default_rng(6), order[1200:]
    for epochs in (5, 295):
        for _ in range(epochs):
            train(w, np.split(g.permutation(order[:1200]), 24))
        z = forward(w, IMAGES[new])[1]
        confidence, hit = xent.softmax(z).max(axis=1), z.argmax(axis=1) == LABELS[new]
        groups = np.array_split(np.argsort(confidence), 6)
        found.append([(float(confidence[some].mean()), int(hit[some].sum()), len(some)) for some in groups])
    return found


def wilson(k: int, n: int) -> Any:
    return stats.binomtest(k, n).proportion_ci(method="wilson")


@claim(
    "all six groups lie above the dotted curve",
    on=[lambda k, n: wilson(k, n).low],
    # They have no length where every image is right, as in three groups.
    but_not={"1.96 standard errors": lambda k, n: k / n - 1.96 * np.sqrt(k / n * (1 - k / n) / n)},
)
def test_the_bars_of_the_page(low: Any) -> None:
    assert [low(k, n) > said for said, k, n in of_the_page()[0]] == [True] * 5 + [False]


@claim(
    "two lie a little below the curve ... within its error bar",
    on=[(1,)],
    but_not={"each within its bar": (6,), "after 5 epochs": (1, 0)},
)
def test_the_bars_at_the_end(groups: int, when: int = 1) -> None:
    rows = of_the_page()[when]
    assert [k / n < said for said, k, n in rows].count(True) == 2 and rows[0][1] / rows[0][2] < rows[0][0]
    assert all(wilson(k, n).high > said for said, k, n in rows[:groups])
    assert all(said - k / n < 0.06 for said, k, n in rows)


def falls(run: Array, old: int = 0, new: int = 1, every: int = 10) -> bool:
    """The one loss falls to the end, with brief rises, while the other turns round."""
    steps, turn = np.diff(run[::every, old]) < 0, run[:, new].argmin()
    steady = steps.mean() > 0.85 and (every > 1 or steps.all()) and run[-1, old] < 0.8 * run[149, old]
    return bool(steady and run[-1, new] > run[:, new].min() and turn < 250)


def parts(runs: Array, start: int | None = None, end: int = 299) -> bool:
    """From the lowest validation loss to the end, in one of the runs at least."""
    pairs = [(run[run[:, 1].argmin() if start is None else start], run[end]) for run in runs]
    return any(b[0] < 0.8 * a[0] and b[1] > 1.03 * a[1] for a, b in pairs)


def peculiar(run: Array, old: int = 0, new: int = 1) -> bool:
    """From 40 to 300 epochs: of each nat that the training loss falls, not all reaches new images."""
    return bool((run[39] - run[299])[new] < 0.9 * (run[39] - run[299])[old])


def modest_no_longer(run: Array, epoch: int = 299) -> bool:
    """The least confident sixth, in standard errors. "May" be too sure: that it is cannot be shown."""
    return bool(-2 < run[epoch, 4] < 3)


@claim(
    "The training loss can go on falling",
    "the training loss falls to the end ... turns round",
    "part of what the network still learns",
    "is no longer modest",
    on=lambda: [
        (parts, histories()[0]),
        *itertools.product((falls, peculiar, modest_no_longer), histories()[0]),
    ],
    but_not=lambda: {
        "the losses part from 5 to 40 epochs": (parts, histories()[0], 4, 39),
        "the training loss turns round": (falls, histories()[0][0], 0, 0),
        "a fall at each epoch": (falls, histories()[0][0], 0, 1, 1),
        "the training loss in place of the other": (peculiar, histories()[0][0], 0, 0),
        "modest no longer at the beginning": (modest_no_longer, histories()[0][0], 4),
    },
)
def test_what_the_histories_show(shows: Any, *of: Any) -> None:
    assert shows(*of)


@claim(
    "If $p_y$ rounds to 1, row $y$ and its entry",
    on=[
        (s * np.eye(k, dtype=t)[y], y)
        for k in (2, 3, 5)
        for y in range(k)
        for s, t in ((40, "f8"), (20, "f4"))
    ],
    but_not={
        "probabilities that have become 0": (900 * np.eye(3)[1], 1),
        "a wrong class with certainty": (40 * np.eye(3)[1], 2),
    },
)
def test_what_leaks_if_the_label_is_certain(z: Array, y: int) -> None:
    x, db = np.array([2.0, -1.0]), xent.softmax(z) - np.eye(len(z), dtype=z.dtype)[y]
    assert db[y] == 0 and np.abs(db).max() > 0
    other = np.abs(db).argmax()
    np.testing.assert_allclose(np.outer(db, x)[other] / db[other], x, rtol=1e-6)


def targets() -> Iterator[tuple[Array, Array]]:
    for what, z, y in batches(rng(5), masked=True):
        yield z, one_hot(y, z.shape[1])
        if ", plain, any" in what:
            yield from ((z, t) for _, t in distributions(rng(6), z.shape[1], len(z)))


@claim(
    "no entry of $p - t$ exceeds one",
    on=targets,
    but_not={"the derivative at the softmax": (np.array([20.0, 0]), np.array([0, 1]), lambda p, t: -t / p)},
)
def test_no_entry_exceeds_one(z: Any, t: Any, of: Any = np.subtract) -> None:
    assert np.abs(of(xent.softmax(z), t)).max() <= 1


@claim(
    "PyTorch records what is computed from a weight ... `.grad`.",
    on=[("SGD", 1), ("SGD", 2), ("SGD", 4)],
    but_not={"Adam": ("Adam", 2), "a decay": ("decay", 2)},
)
def test_what_pytorch_does_in_a_step(kind: str, count: int) -> None:
    start = network(rng(19))
    weights = [torch.empty(part.shape, dtype=torch.float64, requires_grad=True) for part in start]
    with torch.no_grad():
        for theirs, ours in zip(weights, start, strict=True):
            theirs.copy_(torch.tensor(ours))
        assert not (2 * weights[0]).requires_grad
    assert (2 * weights[0]).requires_grad and not (2 * weights[0]).detach().requires_grad
    optimiser, total = optimisers(0.2)[kind](weights), [0 * part for part in start]
    for seed in range(count):
        some = rng(seed).choice(1500, 30, replace=False)
        hidden = torch.relu(torch.tensor(IMAGES[some]) @ weights[0].T + weights[1])
        F.cross_entropy(hidden @ weights[2].T + weights[3], torch.tensor(LABELS[some])).backward()
        total = [a + b for a, b in zip(total, backward(start, some), strict=True)]
    optimiser.step()
    for theirs, ours, slopes in zip(weights, start, total, strict=True):
        assert theirs.grad is not None
        np.testing.assert_allclose(theirs.grad.numpy(), slopes, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(theirs.detach().numpy(), ours - 0.2 * slopes, rtol=1e-9, atol=1e-12)
    optimiser.zero_grad()
    assert all(part.grad is None or not part.grad.any() for part in weights)


# ------------------------------------------------------------------------------------------------- deeper


@claim(
    "Where the answer is right and nearly certain",
    on=np.linspace(20, 60, 81) + 0.0123,
    but_not={"an uncertain answer": 1.0, "only where p rounds to 1": (30.0, 1)},
)
def test_the_digits_of_a_right_answer(margin: float, rounded: int = 0) -> None:
    others, p = np.exp(-margin) / (1 + np.exp(-margin)), float(xent.softmax(np.array([margin, 0.0]))[0])
    assert abs((p - 1) / -others - 1) > 1e-9 and (p == 1 or not rounded)


@claim(
    "at weights of zero the gradient that the layer hands down",
    on=[(0.0, factor) for factor in (-1.0, 0.0, 0.2, 2.0, 50.0)],
    but_not={"random weights": (1.0, 2.0), "a wrong summand": (0.0, 1.0, 0.1)},
)
def test_a_wrong_factor_at_weights_of_zero(scale: float, factor: float, summand: float = 0.0) -> None:
    down = rng(19).normal(size=(5, 4)) @ (scale * rng(18).normal(size=(4, 3)))
    np.testing.assert_array_equal(factor * down + summand, down)


@claim(
    "Straight does not mean flat ... as it can be.",
    on=[(k, 25 + np.log(k), 1) for k in (2, 3, 50)],
    but_not={"a confident right answer": (3, 25, 0), "no margin at all": (3, 0, 1)},
)
def test_straight_and_steep(classes: int, ahead: float, label: int) -> None:
    z = np.where(np.arange(classes) == 0, ahead, 0.3 * np.cos(np.arange(classes)))
    assert (
        np.linalg.eigvalsh(np.diag(xent.softmax(z)) - np.outer(xent.softmax(z), xent.softmax(z)))[-1] < 1e-7
    )
    length = np.linalg.norm(gradients.cross_entropy_gradient(z, label))
    assert length == pytest.approx(np.sqrt(2), abs=1e-6)
    for _, rows, y in batches(rng(7), (classes,)):  # no row is steeper
        of_rows = gradients.cross_entropy_gradient(rows, y, reduction="none")
        assert np.linalg.norm(of_rows, axis=1).max() <= np.sqrt(2) + 1e-12


def curvature(x: Array) -> float:
    """The bound L on the largest curvature of a softmax regression."""
    return float(np.linalg.norm(x, 2) ** 2 / (2 * len(x)))


def regressions() -> list[tuple[Array, Array]]:
    """Data of every kind and the wines, in their own units and not; one class present or all."""
    (wine, cultivar), g = load_wine(return_X_y=True), rng(9)
    data = [(wine, cultivar), (stats.zscore(wine), cultivar), (stats.zscore(wine), g.integers(0, 3, 178))]
    return data + [(x, y.astype(int) + (g.random(len(y)) < 0.3)) for _, x, y in designs(g)]


def path(x: Array, y: Array, start: float, factor: float, steps: int) -> list[float]:
    """The loss before each step."""
    w, rate, losses = start * rng(9).normal(size=(y.max() + 1, x.shape[1])), factor / curvature(x), []
    for _ in range(steps):
        losses.append(float(xent.cross_entropy(x @ w.T, y)))
        w = w - rate * gradients.cross_entropy_gradient(x @ w.T, y).T @ x
    return losses


COIN = np.ones((2, 1)), np.array([0, 1])


@claim(
    "below that step size *every* step",
    on=lambda: [(*d, start, f) for d in regressions() for start, f in ((0.0, 0.2), (0.1, 1.0), (3.0, 1.99))],
    but_not={"4.5 over L, on a coin": (*COIN, 3.0, 4.5)},
)
def test_below_two_over_l_every_step_goes_down(x: Array, y: Array, start: float, factor: float) -> None:
    losses = path(x, y, start, factor, 60)
    assert (np.diff(losses) <= 1e-12 * losses[0]).all()


@claim("(large logits ... bring more)", on=[30.0], but_not={"small logits": 0.1, "at best u": (30.0, 0.5)})
def test_a_loss_can_round_worse_than_u(scale: float, least: float = 0) -> None:
    """Linear layers in float32 beside float64, in units of u."""
    errors = []
    for seed in range(20):
        x, w = (
            rng(seed).normal(size=(200, 64)).astype("f4"),
            (scale * rng(99).normal(size=(64, 10))).astype("f4"),
        )
        y = (x @ w).argmax(axis=1)
        exact = xent.cross_entropy(x.astype(float) @ w.astype(float), y)
        errors.append(abs(xent.cross_entropy(x @ w, y) - exact) / exact * 2.0**24)
    assert max(errors) > 100 and (not least or max(errors) < least)


@claim(
    "If $f'''(0) \\ne 0$, the sum of both errors", on=[1.0], but_not={"two classes at weights of zero": 0.0}
)
def test_the_third_derivative_of_a_coin_is_zero(scale: float) -> None:
    g, t = rng(12), torch.zeros((), dtype=torch.float64, requires_grad=True)
    x, y = torch.tensor(g.normal(size=(20, 3))), torch.tensor(g.integers(0, 2, 20))
    w, v = torch.tensor(scale * g.normal(size=(2, 3))), torch.tensor(g.normal(size=(2, 3)))
    derivatives = [F.cross_entropy(x @ (w + t * v).T, y)]
    for _ in range(3):
        derivatives += torch.autograd.grad(derivatives[-1], t, create_graph=True)
    f, third, h = derivatives[0].item(), round(derivatives[3].item(), 12), np.logspace(-9, 6, 3001)
    error = h**2 / 6 * abs(third) + 2.0**-53 * f / h
    assert 0 < error.argmin() < len(h) - 1
    assert h[error.argmin()] == pytest.approx((3 * 2.0**-53 * f / abs(third)) ** (1 / 3), rel=0.02)


@claim("be the loss along a direction", on=[torch.tanh], but_not={"ReLU": torch.relu})
def test_kinks_spoil_the_best_step(activation: Any) -> None:
    """The error of a central difference at a step of 4e-4 and at twice it goes with the square."""
    x, y = torch.tensor(IMAGES[:1200]), torch.tensor(LABELS[:1200])
    for seed in range(3):
        w = [torch.tensor(part) for part in network(rng(seed))]
        v = [torch.tensor(rng(15).normal(size=part.shape)) for part in w]

        def loss(h: Any, w: Any = w, v: Any = v) -> Any:
            first, b, second, c = (part + h * step for part, step in zip(w, v, strict=True))
            return F.cross_entropy(activation(x @ first.T + b) @ second.T + c, y)

        slope = float(autograd(loss, 0.0))
        one, two = (abs(float(loss(h) - loss(-h)) / (2 * h) - slope) / abs(slope) for h in (4e-4, 8e-4))
        assert one < 2e-4 and two / one == pytest.approx(4, rel=0.05)


@claim("at $40/L$ the loss jumps on its way", on=[40], but_not={"10 over L": 10})
def test_it_jumps_on_its_way_down(factor: float) -> None:
    """It halves in two steps, then jumps to more than three times the first loss, and ends below a tenth."""
    losses = path(np.column_stack([IMAGES, np.ones(len(LABELS))]), LABELS, 0.0, factor, 100)
    assert (np.diff(losses) > 0).argmax() == 2 and losses[2] < 0.55 * losses[0]
    assert max(losses) > 3 * losses[0] and losses[-1] < 0.1


@claim(
    "Squared error in {numref}`fig-grad-margin` pulls",
    on=[lambda log_p: ((log_p.exp() - torch.tensor([1.0, 0.0])) ** 2).sum()],
    but_not={"cross-entropy": lambda log_p: -log_p[:, 0].sum()},
)
def test_squared_error_lets_go(of: Any) -> None:
    margins = np.linspace(-5, 20, 2501)
    slopes = autograd(lambda z: of(torch.log_softmax(z, 1)), np.column_stack([0 * margins, margins]))
    pull = np.linalg.norm(slopes, axis=1)
    assert xent.sigmoid(-margins[pull.argmax()]) == pytest.approx(1 / 3, abs=2e-3)
    assert pull[-1] < 1e-6 and (np.diff(pull[pull.argmax() :]) < 0).all()
