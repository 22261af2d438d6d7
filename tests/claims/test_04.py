"""What chapter 4 claims, and attempts to refute it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.datasets import load_digits, load_wine

import xent
from adversary import batches, designs, distributions, one_hot, optimisers, refuted, rng
from xent import gradients

Array = np.ndarray
F = torch.nn.functional


def autograd(logits: Array, **loss: object) -> Array:
    """Torch's gradient of cross-entropy in the logits."""
    z = torch.tensor(logits, requires_grad=True)
    F.cross_entropy(z, **loss).backward()  # type: ignore[arg-type]
    assert z.grad is not None
    return z.grad.numpy()


# ------------------------------------------------------------------------------- the network of the chapter

IMAGES, LABELS = (load_digits().data / 16, load_digits().target)


def network(seed: int, width: int = 32) -> list[Array]:
    g = rng(seed)
    first = g.normal(scale=np.sqrt(2 / 64), size=(width, 64))
    return [first, np.zeros(width), g.normal(scale=np.sqrt(1 / width), size=(10, width)), np.zeros(10)]


def forward(w: list[Array], x: Array) -> tuple[Array, Array]:
    hidden = np.maximum(x @ w[0].T + w[1], 0)
    return hidden, hidden @ w[2].T + w[3]


def backward(w: list[Array], x: Array, y: Array) -> list[Array]:
    hidden, z = forward(w, x)
    g = (xent.softmax(z) - np.eye(10)[y]) / len(y)
    below = g @ w[2] * (hidden > 0)
    return [below.T @ x, below.sum(axis=0), g.T @ hidden, g.sum(axis=0)]


def fitted(seed: int, epochs: int, size: int = 50) -> Iterator[tuple[list[Array], Array, Array]]:
    """The weights after each epoch, with the images for training and those for validation."""
    order = rng(100 + seed).permutation(len(LABELS))
    train, new = order[:1200], order[1200:]
    w, g = network(200 + seed), rng(300 + seed)
    for _ in range(epochs):
        for batch in np.split(g.permutation(train), 1200 // size):
            for part, slope in zip(w, backward(w, IMAGES[batch], LABELS[batch]), strict=True):
                part -= 0.2 * slope
        yield w, train, new


@cache
def histories() -> tuple[Array, Array]:
    """Of three splits after each of 300 epochs: both losses, accuracy, confidence, and by how many standard errors the
    least confident sixth is surer than it is right; and the loss of each image for validation.
    """

    def run(seed: int) -> Iterator[tuple[list[float], Array]]:
        for w, train, new in fitted(seed, 300):
            z = forward(w, IMAGES[new])[1]
            each = xent.cross_entropy(z, LABELS[new], reduction="none")
            hit, confidence = z.argmax(axis=1) == LABELS[new], xent.softmax(z).max(axis=1)
            least = np.array_split(np.argsort(confidence), 6)[0]
            share = hit[least].mean()
            excess = (confidence[least].mean() - share) / np.sqrt(share * (1 - share) / len(least))
            of_train = float(xent.cross_entropy(forward(w, IMAGES[train])[1], LABELS[train]))
            yield [of_train, each.mean(), hit.mean(), confidence.mean(), excess], each

    runs = [list(run(seed)) for seed in range(3)]
    return np.array([[row for row, _ in run] for run in runs]), np.array(
        [[e for _, e in run] for run in runs]
    )


def three_times() -> Array:
    """What the three runs have after 5, 40 and 300 epochs."""
    return histories()[0][:, [4, 39, 299]]


# ------------------------------------------------------------------------------------------ what to remember


@pytest.mark.claim(
    "04",
    "The gradient of cross-entropy in the logits is prediction minus target, $p - t$, if the target sums to one.",
)
def test_prediction_minus_target() -> None:
    """Autograd, on batches of every kind up to a vocabulary, with hard targets and soft ones of every kind.

    Would be refuted by a target that sums to one with another gradient. Without the condition, and under a mean, it is
    another.
    """
    g = rng(0)

    def says(z: Array, t: Array, reduction: str = "sum") -> None:
        of_torch = autograd(z, target=torch.tensor(t), reduction=reduction)
        np.testing.assert_allclose(xent.softmax(z) - t, of_torch, rtol=1e-10, atol=1e-12)

    for what, z, y in batches(g):
        if "any" in what:
            says(z, one_hot(y, z.shape[1]))
            for _, t in distributions(g, z.shape[1], len(z)) if ", plain" in what or "1e4" in what else ():
                says(z, t)
    z, t = g.normal(size=(4, 3)), g.dirichlet(np.ones(3), 4)
    with refuted("the mean"):
        says(z, t, "mean")
    for wrong in (2 * t, 0 * t, np.ones((4, 3))):
        with refuted("targets that do not sum to one"):
            says(z, wrong)


@pytest.mark.claim(
    "04",
    "The mean over a batch adds a factor $1/N$; if you lose it, repeating each example doubles your gradient.",
)
def test_the_factor_of_the_mean() -> None:
    """Batches of one to 200 rows beside two copies: the gradient in shared weights, by autograd, and a step.

    Would be refuted by a batch whose sum's gradient does not double, or whose mean's does; Adam's step does not.
    """
    g = rng(1)

    def after(optimiser: Callable[[Any], Any], w: Array, x: Array, y: Array, reduction: str) -> Array:
        weight = torch.tensor(w, requires_grad=True)
        taken = optimiser([weight])
        F.cross_entropy(torch.tensor(x) @ weight.T, torch.tensor(y), reduction=reduction).backward()
        taken.step()
        return np.asarray(weight.detach().numpy() - w)

    def says(factor: float, reduction: str, kind: str = "SGD") -> None:
        one, two = (
            after(optimisers()[kind], w, *data, reduction)
            for data in ((x, y), (np.tile(x, (2, 1)), np.tile(y, 2)))
        )
        np.testing.assert_allclose(two, factor * one, rtol=1e-6, atol=1e-12)

    for n in (1, 7, 200):
        x, y, w = g.normal(size=(n, 3)), g.integers(0, 4, n), g.normal(size=(4, 3))
        says(2, "sum")
        says(1, "mean")
        np.testing.assert_allclose(
            after(optimisers()["SGD"], w, x, y, "sum"), n * after(optimisers()["SGD"], w, x, y, "mean")
        )
        with refuted("a mean that doubles"):
            says(2, "mean")
        with refuted("a step of Adam on a sum"):
            says(2, "sum", "Adam")


@pytest.mark.claim(
    "04",
    "Gaussian, Bernoulli, categorical and Poisson share one gradient: the derivative of each negative "
    "log-likelihood with respect to its natural parameter is mean minus target.",
)
def test_one_gradient_for_four() -> None:
    """Torch's distributions and autograd at random natural parameters, small and large.

    Would be refuted by one of the four with another slope; in the *mean*, or behind a probit, it is another.
    """
    g = rng(2)
    of = torch.distributions

    def says(
        loss: Callable[[torch.Tensor], torch.Tensor],
        mean: Callable[[torch.Tensor], torch.Tensor],
        at: Any,
        y: Any,
    ) -> None:
        e = torch.tensor(at, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(loss(e), e)
        np.testing.assert_allclose(
            slope.numpy(), (mean(e) - torch.tensor(y)).detach().numpy(), rtol=1e-8, atol=1e-9
        )

    for eta in (*g.normal(scale=1.5, size=20), -8.0, 8.0):
        y, label, count = (
            g.normal(),
            torch.tensor(float(g.integers(2))).double(),
            torch.tensor(float(g.poisson(3))).double(),
        )
        says(lambda e: -of.Normal(e, 1.0).log_prob(torch.tensor(y)), lambda e: e, eta, y)  # noqa: B023
        says(lambda e: -of.Bernoulli(logits=e).log_prob(label), torch.sigmoid, eta, label.item())  # noqa: B023
        says(lambda e: -of.Poisson(e.exp()).log_prob(count), torch.exp, eta, count.item())  # noqa: B023
        z, k = g.normal(scale=3.0, size=6), int(g.integers(6))
        says(
            lambda e, k=k: -of.Categorical(logits=e).log_prob(torch.tensor(k)),
            lambda e: e.softmax(0),
            z,
            np.eye(6)[k],
        )
    with refuted("Poisson in its mean"):
        says(lambda e: -of.Poisson(e).log_prob(torch.tensor(5.0)), lambda e: e, 2.0, 5.0)
    with refuted("Bernoulli behind a probit"):
        says(lambda e: -torch.special.log_ndtr(e), lambda e: torch.special.ndtr(e), 0.8, 1.0)


@pytest.mark.claim(
    "04",
    "Backpropagation through a linear layer is three products: $G^\\top X$ for the weights, the column sums of $G$ "
    "for the bias, and $G W$ for the layer below.",
)
def test_three_products() -> None:
    """Autograd, with one example and many, one input and many, and losses that are no cross-entropy.

    Would be refuted by a layer whose gradients are others, such as a transposed one.
    """
    g = rng(3)

    def says(n: int, d: int, k: int, wrong: bool = False) -> None:
        x, w, b = (torch.tensor(g.normal(size=s), requires_grad=True) for s in ((n, d), (k, d), (k,)))
        z = x @ w.T + b
        loss = (torch.sin(z) * torch.tensor(g.normal(size=(n, k)))).sum()
        of_x, of_w, of_b, down = (v.numpy() for v in torch.autograd.grad(loss, (x, w, b, z)))
        down = down / n if wrong else down
        np.testing.assert_allclose(down.T @ x.detach().numpy(), of_w, atol=1e-12)
        np.testing.assert_allclose(down.sum(axis=0), of_b, atol=1e-12)
        np.testing.assert_allclose(down @ w.detach().numpy(), of_x, atol=1e-12)

    for n in (1, 2, 9):
        for d in (1, 2, 5):
            for k in (1, 4):
                says(n, d, k)
    with refuted("another G"):
        says(9, 2, 4, wrong=True)


@pytest.mark.claim(
    "04",
    "At random weights one random direction catches a wrong gradient if the error along it is far larger than that of "
    "the measured slope: compare the slope of the loss along it with the gradient times the direction.",
)
def test_one_direction_catches() -> None:
    """Nine planted errors, one of them a single wrong entry of 2,410, in random networks, batches and directions.

    Would be refuted by an error that a direction misses; at weights of zero some are missed.
    """
    g = rng(8)

    def check(w: list[Array], x: Array, y: Array) -> Callable[[Array], bool]:
        cuts = np.cumsum([part.size for part in w])[:-1]
        v = g.normal(size=sum(part.size for part in w))
        steps = [s.reshape(part.shape) for s, part in zip(np.split(v, cuts), w, strict=True)]

        def loss(h: float) -> float:
            moved = [part + h * s for part, s in zip(w, steps, strict=True)]
            return float(xent.cross_entropy(forward(moved, x)[1], y))

        # So short that what a ReLU bends on the way stays below the bound.
        slope = (loss(1e-7) - loss(-1e-7)) / 2e-7
        return lambda flat: bool(abs(slope - flat @ v) < 1e-6 * max(np.linalg.norm(flat), 1e-3))

    def says(w: list[Array], some: Array) -> None:
        x, y = IMAGES[some], LABELS[some]
        right = backward(w, x, y)
        flat = np.concatenate([part.ravel() for part in right])
        one_entry = flat.copy()
        one_entry[np.abs(flat).argmax()] *= 2
        down = (xent.softmax(forward(w, x)[1]) - np.eye(10)[y]) / len(y)
        no_relu = np.concatenate([((down @ w[2]).T @ x).ravel(), flat[right[0].size :]])
        no_weights = np.concatenate(
            [((down @ np.ones_like(w[2])) * (forward(w, x)[0] > 0)).T.dot(x).ravel(), flat[right[0].size :]]
        )
        no_bias = np.concatenate([flat[:-10], np.zeros(10)])
        wrong = [
            -flat,
            len(y) * flat,
            flat * 1.01,
            one_entry,
            no_relu,
            no_weights,
            no_bias,
            np.roll(flat, 1),
            np.abs(flat),
        ]
        accepts = check(w, x, y)
        assert accepts(flat) and not any(accepts(a) for a in wrong)

    for seed in range(20):
        says(network(seed), g.choice(1500, int(g.choice([20, 50, 200])), replace=False))
    with refuted("weights of zero, where a wrong part of zeros is right"):
        says([0 * part for part in network(0)], np.arange(200))


@pytest.mark.slow
@pytest.mark.claim("04", "The training loss can go on falling while the validation loss rises.")
def test_the_losses_part() -> None:
    """Three other splits, starts and orders of the batches, from the lowest validation loss to 300 epochs.

    "Can": from 5 to 40 epochs both fall, so that a falling training loss does tell something there. Would be refuted by
    runs whose validation loss follows to the end.
    """

    def says(starts: list[Array], ends: list[Array]) -> None:
        pairs = zip(starts, ends, strict=True)
        assert any(end[0] < 0.8 * start[0] and end[1] > 1.03 * start[1] for start, end in pairs)

    after_5, after_40, after_300 = (list(runs) for runs in three_times().transpose(1, 0, 2))
    says([run[run[:, 1].argmin()] for run in histories()[0]], after_300)
    with refuted("the epochs before"):
        says(after_5, after_40)


@pytest.mark.claim(
    "04", "the training loss falls to the end, with brief rises, while the validation loss turns round"
)
@pytest.mark.claim("04", "You may not have to train to the end to find it, or one nearly as low: stop")
@pytest.mark.claim(
    "04",
    "Keep the weights with the lowest validation loss, and stop when there has been no new low for some epochs.",
)
def test_when_to_stop() -> None:
    """The same three runs: a patience of 20 stops within 250 epochs, at a lower validation loss than the last.

    Would be refuted by a run whose loss is lowest at its end, as the training loss is; a patience of 1 stops too early.
    The lowest epoch of all is not always found, the training loss does not fall at each epoch, and of a loss that falls
    to the end you have to see the end.
    """

    def says(losses: Array, patience: int) -> bool:
        lows = np.minimum.accumulate(losses)
        waited = np.array([e - losses[: e + 1].argmin() for e in range(len(losses))])
        stop = int((waited >= patience).argmax())
        assert 0 < stop < 250 and lows[stop] <= losses[-1] and lows[stop] < 1.05 * losses.min()
        return bool(lows[stop] == losses.min())

    found = []

    for losses in histories()[0][:, :, :2]:
        found.append(says(losses[:, 1], 20))
        with refuted("a fall at each epoch"):
            assert (np.diff(losses[:, 0]) < 0).all()
        assert losses[::10, 0].argmin() == 29 and losses[-1, 0] < 0.8 * losses[149, 0]
        with refuted("the training loss"):
            says(losses[:, 0], 20)
        with refuted("no patience"):
            says(losses[:, 1], 1)
    with refuted("the lowest itself"):
        assert all(found)


@pytest.mark.claim(
    "04", "Because the epoch was chosen on these images, its loss there is on average a little too low."
)
def test_the_chosen_loss_is_too_low() -> None:
    """The validation images of the three runs, halved at random: an epoch chosen on one half, measured on both.

    Would be refuted by halves that do not differ on average, as they do not where nobody chose.
    """
    g = rng(11)

    def says(choose: Callable[[Array], int]) -> None:
        for losses in histories()[1]:
            gaps = []
            for _ in range(50):
                halves = np.array_split(g.permutation(losses.shape[1]), 2)
                one, other = (losses[:, half].mean(axis=1) for half in halves)
                gaps += [one[choose(one)] - other[choose(one)], other[choose(other)] - one[choose(other)]]
            assert np.mean(gaps) < -1e-6

    says(lambda curve: int(curve.argmin()))
    with refuted("an epoch that nobody chose"):
        says(lambda curve: 100)


@pytest.mark.slow
@pytest.mark.claim(
    "04", "The smallest batches end lowest and the whole training set highest: an epoch has 120 steps"
)
@pytest.mark.claim(
    "04", "This early in training, a dozen noisy steps gain most of what a dozen exact ones gain."
)
def test_small_batches_take_more_steps() -> None:
    """Two other splits, five epochs; and the same number of steps, 12, with each size, from twelve orders.

    Would be refuted by another order, or by a dozen steps that gain less than 0.55 of the exact ones'. A single step of
    ten images can raise the loss, so that "a noisy step gains about as much" was false.
    """

    def loss(seed: int, epochs: int, size: int) -> float:
        *_, (w, train, _) = fitted(seed, epochs, size)
        return float(xent.cross_entropy(forward(w, IMAGES[train])[1], LABELS[train]))

    def says(small: float, middle: float, whole: float) -> None:
        assert small < middle < whole

    def gained(seed: int, steps: int, size: int, order: int = 0) -> float:
        g, w = rng(order), network(200 + seed)
        train = rng(100 + seed).permutation(len(LABELS))[:1200]
        ends = [float(xent.cross_entropy(forward(w, IMAGES[train])[1], LABELS[train]))]
        shuffled = g.permutation(train) if size < 1200 else np.tile(train, steps)
        for batch in shuffled[: steps * size].reshape(steps, size):
            for part, slope in zip(w, backward(w, IMAGES[batch], LABELS[batch]), strict=True):
                part -= 0.2 * slope
        ends.append(float(xent.cross_entropy(forward(w, IMAGES[train])[1], LABELS[train])))
        return ends[0] - ends[1]

    def as_much(seed: int, steps: int, size: int) -> None:
        shares = [gained(seed, steps, size, order) / gained(seed, steps, 1200) for order in range(12)]
        assert min(shares) > 0.55 and max(shares) < 1.25

    for seed in (3, 4):
        says(loss(seed, 5, 10), loss(seed, 5, 50), loss(seed, 5, 1200))
        for size in (10, 50, 100):
            as_much(seed, 12, size)
        with refuted("the opposite order"):
            says(loss(seed, 5, 1200), loss(seed, 5, 50), loss(seed, 5, 10))
    with refuted("a single step of ten images"):
        for seed in range(3, 13):
            as_much(seed, 1, 10)


@pytest.mark.claim(
    "04", "After its first epochs this network is too modest: it is right far more often than it claims."
)
@pytest.mark.claim(
    "04",
    "A network can be right far more often than it claims, as this one is after five epochs; accuracy alone does "
    "not show it.",
)
def test_modest_at_first() -> None:
    """The same three runs: after 1 to 5 epochs confidence is at least 8 points short.

    Would be refuted by a run that is not modest then; after 300 epochs none is, at much the same accuracy, and before
    the first step it claims more than it achieves: "early in training" was too early.
    """

    def says(run: Array) -> None:
        assert run[2] - run[3] > 0.08 and run[2] > 0.5

    for after_5, _, after_300 in three_times():
        says(after_5)
        assert after_5[2] > 0.85
        with refuted("the end of the training"):
            says(after_300)
    for seed, run in enumerate(histories()[0]):
        for epoch in range(5):
            says(run[epoch])
        new = rng(100 + seed).permutation(len(LABELS))[1200:]
        z = forward(network(200 + seed), IMAGES[new])[1]
        with refuted("before the first step"):
            says(
                np.array([0, 0, (z.argmax(axis=1) == LABELS[new]).mean(), xent.softmax(z).max(axis=1).mean()])
            )


@pytest.mark.claim(
    "04",
    "the least confident group within its error bar: the network is no longer modest, and may now be overconfident.",
)
def test_modest_no_longer() -> None:
    """The same three runs: the least confident sixth after 300 epochs, in standard errors.

    "May": that it is too sure cannot be shown. Would be refuted by a run that is still too modest by two errors, as all
    are after 5 epochs, or too sure by more than its error bar.
    """

    def says(run: Array) -> None:
        assert -2 < run[4] < 3

    for after_5, _, after_300 in three_times():
        says(after_300)
        with refuted("the beginning"):
            says(after_5)


@pytest.mark.claim(
    "04", "five of the groups lie above the diagonal by more than their bars, and the surest group by less."
)
@pytest.mark.claim(
    "04", "and two lie a little below the diagonal, the least confident group within its error bar:"
)
def test_the_bars_of_the_page() -> None:
    """The run of the page. Bars of 1.96 standard errors have no length where every image is right, as in three groups.

    Would be refuted by bars that do not separate the surest group from the others, as those do not, or by a
    second group below the diagonal after 300 epochs that lies there within its bar, as the least confident does.
    """
    order = np.random.default_rng(3).permutation(len(LABELS))
    train, new = order[:1200], order[1200:]
    g = np.random.default_rng(4)
    first = g.normal(size=(32, 64)) * np.sqrt(2 / 64)
    w = [first, np.zeros(32), g.normal(size=(10, 32)) * np.sqrt(1 / 32), np.zeros(10)]
    g = np.random.default_rng(6)

    def grouped(epochs: int) -> list[tuple[float, int, int]]:
        """Of each group the mean confidence, how many images are right, and how many there are."""
        for _ in range(epochs):
            for batch in np.split(g.permutation(train), 24):
                for part, slope in zip(w, backward(w, IMAGES[batch], LABELS[batch]), strict=True):
                    part -= 0.2 * slope
        z = forward(w, IMAGES[new])[1]
        confidence, hit = xent.softmax(z).max(axis=1), z.argmax(axis=1) == LABELS[new]
        return [
            (float(confidence[some].mean()), int(hit[some].sum()), len(some))
            for some in np.array_split(np.argsort(confidence), 6)
        ]

    early, late = grouped(5), grouped(295)

    def says(low: Callable[[int, int], float]) -> None:
        assert [low(k, n) > said for said, k, n in early] == [True] * 5 + [False]

    says(lambda k, n: stats.binomtest(k, n).proportion_ci(method="wilson").low)
    with refuted("1.96 standard errors"):
        says(lambda k, n: k / n - 1.96 * np.sqrt(k / n * (1 - k / n) / n))
    below = [k / n < said for said, k, n in late]
    within = [stats.binomtest(k, n).proportion_ci(method="wilson").high > said for said, k, n in late]
    assert sum(below) == 2 and below[0] and within[0]
    assert all(said - k / n < 0.06 for said, k, n in late)
    with refuted("each within its bar"):
        assert all(within)


@pytest.mark.claim("04", "If $p_y$ rounds to 1, both are zero, but another row can still give $x$ away")
def test_what_leaks_if_the_label_is_certain() -> None:
    """Two to five classes, margins at which p rounds to 1, in both precisions.

    Would be refuted by a margin of 40 whose other rows hold nothing; where all the others are 0, nothing leaks.
    """
    x = np.array([2.0, -1.0])

    def says(z: Array, y: int) -> None:
        db = xent.softmax(z) - np.eye(len(z), dtype=z.dtype)[y]
        dw = np.outer(db, x)
        assert db[y] == 0 and not dw[y].any()
        other = np.abs(db).argmax()
        assert db[other] > 0
        np.testing.assert_allclose(dw[other] / db[other], x, rtol=1e-6)

    for classes in (2, 3, 5):
        for label in range(classes):
            one = np.eye(classes)[label]
            says(40 * one, label)
            says((20 * one).astype("f4"), label)
            with refuted("probabilities that have become 0"):
                says(900 * one, label)
            with refuted("a wrong class with certainty"):
                says(40 * one, (label + 1) % classes)


@pytest.mark.claim("04", "part of what the network still learns is peculiar to the training set.")
def test_part_of_it_is_peculiar_to_the_training_set() -> None:
    """From 40 to 300 epochs, three runs: of each nat that the training loss falls, how much reaches new images.

    Would be refuted by a run in which all of it does; "most" was too much, in nats up to two thirds do.
    """

    def says(before: Array, after: Array) -> None:
        assert before[1] - after[1] < 0.9 * (before[0] - after[0])

    for _, after_40, after_300 in three_times():
        says(after_40, after_300)
        with refuted("the training loss in place of the other"):
            says(after_40[[0, 0]], after_300[[0, 0]])


@pytest.mark.claim("04", "no entry of $p - t$ exceeds one in size.")
def test_no_entry_exceeds_one() -> None:
    """Batches of every kind up to a vocabulary, soft targets of every kind.

    Would be refuted by a larger entry; the derivative at the softmax, -t/p, has no such bound.
    """
    g = rng(5)

    def says(residual: Array) -> None:
        assert np.abs(residual).max() <= 1

    for what, z, y in batches(g, masked=True):
        says(xent.softmax(z) - one_hot(y, z.shape[1]))
        for _, t in distributions(g, z.shape[1], len(z)) if ", plain, any" in what else ():
            says(xent.softmax(z) - t)
    with refuted("the derivative at the softmax"):
        says(-np.array([0, 1]) / xent.softmax(np.array([20.0, 0.0])))


@pytest.mark.claim("04", "the slope can have a further factor")
def test_another_formula_can_bring_a_factor() -> None:
    """Counts whose rate is n times exp(z), classes with a prior beside the logits: mean minus target still.

    Would be refuted by other formulas all of which keep the slope mean minus target; a probit does not.
    """
    g = rng(14)
    of = torch.distributions

    def says(loss: Callable[[Any], Any], mean: Callable[[Any], Any], z: Array, y: Array) -> None:
        at = torch.tensor(z, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(loss(at), at)
        np.testing.assert_allclose(slope.numpy(), mean(at).detach().numpy() - y, rtol=1e-9, atol=1e-11)

    for _ in range(10):
        n, z, y = g.uniform(0.1, 50), g.normal(), np.array(float(g.poisson(3)))
        says(lambda a: -of.Poisson(n * a.exp()).log_prob(torch.tensor(y)), lambda a: n * a.exp(), z, y)  # noqa: B023
        prior, logits, k = torch.tensor(g.dirichlet(np.ones(4))).log(), g.normal(size=4), int(g.integers(4))
        says(lambda a: -(a + prior).log_softmax(0)[k], lambda a: (a + prior).softmax(0), logits, np.eye(4)[k])  # noqa: B023
        with refuted("a probit"):
            says(lambda a: -torch.special.log_ndtr(a), torch.special.ndtr, z, np.array(1.0))
        with refuted("a rate of z squared"):
            says(lambda a: -of.Poisson(a**2).log_prob(torch.tensor(y)), lambda a: a**2, z, y)  # noqa: B023


@pytest.mark.claim("04", "A step downhill in this logit shortens the line: think of the line as a *pull*.")
def test_a_step_in_the_logit_shortens_the_line() -> None:
    """Logits and steps of every size, both targets, beside a step that the six examples share.

    Would be refuted by a step that lengthens the line of its example; one of a shared bias lengthens some.
    """
    g = rng(16)
    six = np.array([3.5346, -0.2119, 1.846, 0.3021, -0.8732, 6.6285])
    targets = np.array([0, 1, 0, 1, 1, 0])

    def says(z: Array, y: Array, moved: Array) -> None:
        assert (np.abs(xent.sigmoid(moved) - y) < np.abs(xent.sigmoid(z) - y)).all()

    for step in 10.0 ** g.uniform(-3, 3, 20):
        z, y = g.normal(scale=3.0, size=100), g.integers(0, 2, 100)
        says(z, y, z - step * (xent.sigmoid(z) - y))
        with refuted("a bias that all share"):
            says(six, targets, six - step * (xent.sigmoid(six) - targets).mean())


@pytest.mark.claim(
    "04",
    "so the slope is $-e^{z_y} e^{z_k} / (\\sum_l e^{z_l})^2 = -p_y p_k$; multiplied by $-1/p_y$, it gives $p_k$.",
)
def test_the_slope_in_another_logit() -> None:
    """Central differences of p_y in another logit, two classes to fifty.

    Would be refuted by another slope; in the logit of the label itself it is p_y (1 - p_y).
    """
    g = rng(17)

    def says(z: Array, y: int, k: int) -> None:
        h = 1e-5 * np.eye(len(z))[k]
        slope = (xent.softmax(z + h)[y] - xent.softmax(z - h)[y]) / 2e-5
        p = xent.softmax(z)
        assert slope == pytest.approx(-p[y] * p[k], rel=1e-6, abs=1e-10)
        assert -slope / p[y] == pytest.approx(p[k], rel=1e-4, abs=1e-8)

    for classes in (2, 3, 50):
        for _ in range(20):
            z, (y, k) = g.normal(scale=2.0, size=classes), g.permutation(classes)[:2]
            says(z, int(y), int(k))
            with refuted("the label's own logit"):
                says(z, int(y), int(y))


@pytest.mark.claim(
    "04",
    "PyTorch records the forward pass, except under `no_grad`, where `copy_` sets the weights. `.backward()` adds each "
    "weight's slope to its `.grad`; `step` subtracts 0.2 times `.grad` from the weight; `zero_grad` first clears "
    "`.grad`, because otherwise the slopes of all batches would add up. `detach` returns the numbers without the "
    "record.",
)
def test_what_pytorch_does_in_a_step() -> None:
    """The network of the page, random batches, one to four of them: `.grad` and the weights after each call.

    Would be refuted by a `.grad` that a second batch overwrites or that survives `zero_grad`, by a step that is not 0.2
    times it, as Adam's and a decay's are, or by a record under `no_grad` or behind `detach`.
    """
    g = rng(19)

    def says(kind: str, count: int) -> None:
        start = network(int(g.integers(1000)))
        weights = [torch.empty(part.shape, dtype=torch.float64, requires_grad=True) for part in start]
        with torch.no_grad():
            for theirs, ours in zip(weights, start, strict=True):
                theirs.copy_(torch.tensor(ours))
            assert not (2 * weights[0]).requires_grad
        assert (2 * weights[0]).requires_grad and not (2 * weights[0]).detach().requires_grad
        optimiser = optimisers(0.2)[kind](weights)
        total = [0 * part for part in start]
        for _ in range(count):
            some = g.choice(1500, int(g.integers(1, 60)), replace=False)
            hidden = torch.relu(torch.tensor(IMAGES[some]) @ weights[0].T + weights[1])
            F.cross_entropy(hidden @ weights[2].T + weights[3], torch.tensor(LABELS[some])).backward()
            total = [a + b for a, b in zip(total, backward(start, IMAGES[some], LABELS[some]), strict=True)]
        optimiser.step()
        for theirs, ours, slopes in zip(weights, start, total, strict=True):
            assert theirs.grad is not None
            np.testing.assert_allclose(theirs.grad.numpy(), slopes, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(theirs.detach().numpy(), ours - 0.2 * slopes, rtol=1e-9, atol=1e-12)
        optimiser.zero_grad()
        assert all(part.grad is None or not part.grad.any() for part in weights)

    for count in (1, 2, 4):
        says("SGD", count)
        for other in ("Adam", "decay"):
            with refuted(other):
                says(other, count)


# ------------------------------------------------------------------------------------------------- deeper


@pytest.mark.claim(
    "04",
    "Where the answer is right and nearly certain, $p_y - 1$ loses its digits, because $p_y$ was rounded.",
)
def test_the_digits_of_a_right_answer() -> None:
    """Margins of 20 to 60 in float64: the difference of a rounded p and 1, beside the sum of the others.

    Would be refuted by a difference that keeps its digits. They go before p rounds to 1, which it does from 37 on.
    """

    def says(margin: float) -> None:
        others = np.exp(-margin) / (1 + np.exp(-margin))
        p = float(xent.softmax(np.array([margin, 0.0]))[0])
        assert abs((p - 1) / -others - 1) > 1e-9

    for margin in np.linspace(20, 60, 81):
        says(float(margin) + 0.0123)
    with refuted("only where p rounds to 1"):
        assert xent.softmax(np.array([30.0, 0.0]))[0] == 1
    with refuted("an uncertain answer"):
        says(1.0)


@pytest.mark.claim(
    "04",
    "at weights of zero the gradient that the layer hands down is zero, and a wrong factor in it goes unnoticed.",
)
def test_a_wrong_factor_at_weights_of_zero() -> None:
    """G W times a wrong factor, at weights of zero and at random ones.

    Would be refuted by a factor that shows at zero. A wrong summand does show there.
    """
    g = rng(18)

    def says(scale: float, factor: float, summand: float = 0.0) -> None:
        w, rows = scale * g.normal(size=(4, 3)), g.normal(size=(5, 4))
        np.testing.assert_array_equal(factor * (rows @ w) + summand, rows @ w)

    for factor in (-1.0, 0.0, 0.2, 2.0, 50.0):
        says(0.0, factor)
        with refuted("random weights"):
            says(1.0, factor)
    with refuted("a wrong summand"):
        says(0.0, 1.0, 0.1)


@pytest.mark.claim(
    "04", "Straight does not mean flat: at a confident mistake the slope is nearly as large as it can be."
)
def test_straight_and_steep() -> None:
    """Batches of every kind: no slope exceeds that of a confident mistake, where the curvature is gone.

    Would be refuted by a row with a longer gradient; a confident right answer is straight and flat.
    """
    g = rng(7)

    def says(z: Array, label: int) -> None:
        assert np.linalg.eigvalsh(gradients.softmax_jacobian(z))[-1] < 1e-7
        assert (
            np.sqrt(2) - 1e-6
            < np.linalg.norm(gradients.cross_entropy_gradient(z, label))
            <= np.sqrt(2) + 1e-12
        )

    for _, z, y in batches(g):
        rows = gradients.cross_entropy_gradient(z, y, reduction="none")
        assert np.linalg.norm(rows, axis=1).max() <= np.sqrt(2) + 1e-12
    for classes in (2, 3, 50):
        z = g.normal(size=classes)
        z[0] += 25 + np.log(classes)
        says(z, 1)
        with refuted("a confident right answer"):
            says(z, 0)
        with refuted("no margin at all"):
            says(np.zeros(classes), 1)


@pytest.mark.claim(
    "04", "below that step size *every* step of gradient descent lowers the loss, from wherever you start."
)
def test_below_two_over_l_every_step_goes_down() -> None:
    """Data of every kind and the wines, one class present or all, starts of three sizes, up to 1.99 over L.

    Would be refuted by one step uphill; beyond 2 over L there are some.
    """
    g = rng(9)

    def says(x: Array, y: Array, start: float, factor: float) -> None:
        bound = np.linalg.norm(x, 2) ** 2 / (2 * len(x))
        w, losses = start * g.normal(size=(3, x.shape[1])), []
        for _ in range(60):
            losses.append(float(xent.cross_entropy(x @ w.T, y)))
            w -= factor / bound * gradients.cross_entropy_gradient(x @ w.T, y).T @ x
        assert (np.diff(losses) <= 1e-12 * losses[0]).all()

    wine, cultivar = load_wine(return_X_y=True)
    scaled = (wine - wine.mean(axis=0)) / wine.std(axis=0)
    data = [(wine, cultivar), (scaled, cultivar), (scaled, g.integers(0, 3, len(wine)))]
    data += [(x, y.astype(int) + (g.random(len(y)) < 0.3)) for _, x, y in designs(g)]
    for x, y in data:
        for start in (0.0, 0.1, 3.0):
            says(x, y, start, g.choice([0.2, 1.0, 1.99]))
    with refuted("four over L, on a coin"):
        says(np.ones((2, 1)), np.array([0, 1]), 3.0, 4.5)


@pytest.mark.claim(
    "04", "The decrease that the formula guarantees is largest at $\\eta = 1/L$, and at $2/L$ it is zero."
)
def test_the_guaranteed_decrease() -> None:
    """The bound's maximum, for random L and gradients; no step of any data falls by less than it.

    Would be refuted by another best step, or by a step with a smaller decrease.
    """
    g = rng(10)

    def says(best: float, curvature: float) -> None:
        eta = np.linspace(0, 2 / curvature, 2001)
        decrease = eta * (1 - curvature * eta / 2)
        assert eta[decrease.argmax()] == pytest.approx(best) and decrease[-1] == pytest.approx(0, abs=1e-12)

    for curvature in 10.0 ** g.uniform(-3, 3, 10):
        says(1 / curvature, curvature)
        with refuted("half of the step"):
            says(0.5 / curvature, curvature)
    for _, x, y in designs(g):
        labels, bound = y.astype(int), np.linalg.norm(x, 2) ** 2 / (2 * len(x))
        for factor in (0.1, 1.0, 1.9):
            w = g.normal(size=(2, x.shape[1]))
            slope = gradients.cross_entropy_gradient(x @ w.T, labels).T @ x
            after = float(xent.cross_entropy(x @ (w - factor / bound * slope).T, labels))
            promised = factor * (1 - factor / 2) / bound * (slope**2).sum()
            before = float(xent.cross_entropy(x @ w.T, labels))
            assert before - after >= promised - 1e-12 * max(1, before)


@pytest.mark.claim("04", "Suppose that for $z$ in an open interval the probability of $y$ can be written")
def test_no_gradient_at_the_end_of_the_interval() -> None:
    """The counts from 1 on with h(y) = 1/y^2, which exist up to z = 0: the slope of psi from the left beside the mean.

    Would be refuted by a z inside without a slope; at 0 the sum is finite, and the mean is not.
    """
    y = np.arange(1.0, 2e6)

    def psi(z: float) -> float:
        return float(np.log(np.sum(np.exp(z * y) / y**2)))

    def says(z: float) -> None:
        share = np.exp(z * y) / y**2
        mean = np.sum(y * share) / np.sum(share)
        for step in (1e-3, 1e-4):
            assert (psi(z) - psi(z - step)) / step == pytest.approx(mean, rel=0.02)

    for z in (-3.0, -0.5, -0.1):
        says(z)
    with refuted("the end of the interval"):
        says(0.0)


@pytest.mark.claim("04", "(large logits can bring more)")
def test_a_loss_can_round_worse_than_u() -> None:
    """Linear layers in float32 beside float64, in units of u: hundreds with large logits, a few with small ones.

    Would be refuted by large logits whose loss is as exact. The error can also be far below u, so that "at best about
    u" was false.
    """
    g = rng(13)

    def errors(scale: float) -> Array:
        found = []
        for _ in range(20):
            x, w = g.normal(size=(200, 64)).astype("f4"), (scale * g.normal(size=(64, 10))).astype("f4")
            y = (x @ w).argmax(axis=1)
            exact = xent.cross_entropy(x.astype(float) @ w.astype(float), y)
            found.append(abs(xent.cross_entropy(x @ w, y) - exact) / exact * 2.0**24)
        return np.array(found)

    def says(scale: float) -> None:
        assert errors(scale).max() > 100

    says(30.0)
    with refuted("small logits"):
        says(0.1)
    with refuted("at best about u"):
        assert errors(0.1).min() > 0.5


@pytest.mark.claim("04", "If $f'''(0) \\ne 0$, the sum of both errors has a minimum:")
def test_the_third_derivative_of_a_coin_is_zero() -> None:
    """E(h) on a grid, for random f and f'''. Would be refuted by two classes at weights of zero: f''' is 0 there."""
    g = rng(12)
    h = np.logspace(-9, 6, 3001)

    def says(f: float, third: float) -> None:
        error = h**2 / 6 * abs(third) + 2.0**-53 * f / h
        assert 0 < error.argmin() < len(h) - 1
        assert h[error.argmin()] == pytest.approx((3 * 2.0**-53 * f / abs(third)) ** (1 / 3), rel=0.02)

    def along(scale: float) -> tuple[float, float]:
        x, y = torch.tensor(g.normal(size=(20, 3))), torch.tensor(g.integers(0, 2, 20))
        w, v = torch.tensor(scale * g.normal(size=(2, 3))), torch.tensor(g.normal(size=(2, 3)))
        t = torch.zeros((), dtype=torch.float64, requires_grad=True)
        derivatives = [F.cross_entropy(x @ (w + t * v).T, y)]
        for _ in range(3):
            derivatives += torch.autograd.grad(derivatives[-1], t, create_graph=True)
        return derivatives[0].item(), round(derivatives[3].item(), 12)

    for _ in range(20):
        says(*along(1.0))
    with refuted("two classes at weights of zero"):
        says(*along(0.0))


@pytest.mark.claim("04", "be the loss along a direction, without a kink between the ends.")
def test_kinks_spoil_the_best_step() -> None:
    """Networks with tanh and with ReLU, random directions: the central difference at a step of 4e-4 and at twice it.

    Would be refuted by a smooth network whose error does not go with the square of the step; a ReLU's kinks make it
    thousands of times larger.
    """
    g = rng(15)

    def says(activation: Callable[[Any], Any]) -> None:
        for seed in range(3):
            w = [torch.tensor(part) for part in network(seed)]
            v = [torch.tensor(g.normal(size=part.shape)) for part in w]
            x, y = torch.tensor(IMAGES[:1200]), torch.tensor(LABELS[:1200])

            def loss(h: Any, w: Any = w, v: Any = v, x: Any = x, y: Any = y) -> Any:
                first, b, second, c = (part + h * step for part, step in zip(w, v, strict=True))
                return F.cross_entropy(activation(x @ first.T + b) @ second.T + c, y)

            zero = torch.zeros((), dtype=torch.float64, requires_grad=True)
            slope = torch.autograd.grad(loss(zero), zero)[0].item()
            one, two = (abs((loss(h) - loss(-h)).item() / (2 * h) - slope) / abs(slope) for h in (4e-4, 8e-4))
            assert one < 2e-4 and two / one == pytest.approx(4, rel=0.05)

    says(torch.tanh)
    with refuted("ReLU"):
        says(torch.relu)


@pytest.mark.claim("04", "at $40/L$ the loss jumps on its way down.")
def test_it_jumps_on_its_way_down() -> None:
    """The digits from weights of zero, 40 over L. Would be refuted by a loss that jumps before it has fallen.

    It halves in two steps, then jumps to more than three times the first loss, and ends below a tenth.
    """
    a = np.column_stack([IMAGES, np.ones(len(LABELS))])
    bound = np.linalg.norm(a, 2) ** 2 / (2 * len(a))

    def says(factor: float) -> None:
        theta, path = np.zeros((10, 65)), []
        for _ in range(100):
            path.append(float(xent.cross_entropy(a @ theta.T, LABELS)))
            theta -= factor / bound * gradients.cross_entropy_gradient(a @ theta.T, LABELS).T @ a
        fell = int((np.diff(path) > 0).argmax())
        assert fell == 2 and path[2] < 0.55 * path[0] and max(path) > 3 * path[0] and path[-1] < 0.1

    says(40)
    with refuted("10 over L"):
        says(10)


@pytest.mark.claim(
    "04",
    "Squared error in {numref}`fig-grad-margin` pulls hardest where the right class still has a third of the "
    "probability, and then lets go.",
)
def test_squared_error_lets_go() -> None:
    """Autograd on a grid of margins, for two classes.

    Would be refuted by a pull that peaks elsewhere or holds on, as cross-entropy's does.
    """
    margins = np.linspace(-5, 20, 2501)

    def says(of: Callable[[torch.Tensor], torch.Tensor]) -> None:
        z = torch.tensor(np.column_stack([0 * margins, margins]), requires_grad=True)
        (of_z,) = torch.autograd.grad(of(torch.log_softmax(z, 1)), z)
        pull = of_z.norm(dim=1).numpy()
        assert xent.sigmoid(-margins[pull.argmax()]) == pytest.approx(1 / 3, abs=2e-3)
        assert pull[-1] < 1e-6 and (np.diff(pull[pull.argmax() :]) < 0).all()

    says(lambda log_p: ((log_p.exp() - torch.tensor([1.0, 0.0])) ** 2).sum())
    with refuted("cross-entropy"):
        says(lambda log_p: -log_p[:, 0].sum())
