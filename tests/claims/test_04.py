"""What chapter 4 claims, and attempts to refute it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import xent
from adversary import SEED, batches, claim, defined, distributions, one_hot, optimisers, printed, rng

Array = np.ndarray
F = torch.nn.functional
IMAGES, LABELS = load_digits().data / 16, load_digits().target

# ------------------------------------------------------------------------------- the network of the chapter


PAGE = defined("04_gradients", "new_network", "forward", "backward", D=64, K=10)
network, forward = PAGE["new_network"], PAGE["forward"]


def loss_of(w: list[Array], rows: Array) -> float:
    return float(xent.cross_entropy(forward(w, IMAGES[rows])[1], LABELS[rows]))


def backward(w: list[Array], rows: Array) -> list[Array]:
    return list(PAGE["backward"](w, IMAGES[rows], LABELS[rows]))


def split(g: Any) -> tuple[Array, Array]:
    """The images for training and those for validation."""
    order = g.permutation(len(LABELS))
    return order[:1200], order[1200:]


def fitted(w: list[Array], g: Any, old: Array, epochs: int, size: int = 50) -> Iterator[list[Array]]:
    """The weights before the first epoch and after each, in place."""
    yield w
    for _ in range(epochs):
        for batch in np.split(g.permutation(old), len(old) // size):
            for part, slope in zip(w, backward(w, batch), strict=True):
                part -= 0.2 * slope
        yield w


@cache
def histories() -> Array:
    """Of three splits, after 0 to 300 epochs: the loss on the images for training, and of each one for validation."""
    seen: list[Any] = []
    for s in range(3):
        old, new = split(rng(100 + s))
        for w in fitted(network(200 + s + SEED), rng(300 + s), old, 300):
            each = xent.cross_entropy(forward(w, IMAGES[new])[1], LABELS[new], reduction="none")
            seen.append([loss_of(w, old), *each])
    return np.reshape(seen, (3, 301, -1))


# ------------------------------------------------------------------------------------------ what to remember


def autograd(of: Any, at: Any) -> Array:
    """The slope of a loss at some numbers."""
    z = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    return np.asarray(torch.autograd.grad(of(z), z)[0])


def hard_and_soft() -> Iterator[tuple[Array, Array]]:
    for what, z, y in batches(rng(0), masked=True):
        yield z, one_hot(y, z.shape[1])
        if what.endswith(("plain, any", "1e4, any")):
            yield from ((z, t) for _, t in distributions(rng(1), z.shape[1], len(z)))


LOGITS, TARGETS = rng(0).normal(size=(4, 3)), rng(0).dirichlet(np.ones(3), 4)


@claim(
    "The gradient of cross-entropy with respect to the logits",
    "no entry of $p - t$ exceeds one",
    on=hard_and_soft,
    but_not={
        "the derivative at the softmax": (LOGITS, TARGETS, "sum", lambda p, t: -t / p),
        "the mean": (LOGITS, TARGETS, "mean"),
        "targets that do not sum to one": (LOGITS, 2 * TARGETS),
        "no targets": (LOGITS, 0 * TARGETS),
    },
)
def test_prediction_minus_target(z: Array, t: Array, reduction: str = "sum", of: Any = np.subtract) -> None:
    of_torch = autograd(lambda a: F.cross_entropy(a, torch.tensor(t), reduction=reduction), z)
    np.testing.assert_allclose(found := of(xent.softmax(z), t), of_torch, rtol=1e-10, atol=1e-12)
    assert np.abs(found).max() <= 1


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


MEAN_MINUS_Y = r"\operatorname{E}[y \mid z] - y", r"y - \operatorname{E}[y \mid z]"
test_one_gradient_for_four = claim(
    "Gaussian (of variance 1), Bernoulli ... mean minus target.",
    on=["eq-grad-family"],
    but_not={
        "target minus mean": ("eq-grad-family", *MEAN_MINUS_Y),
        "another parameter": ("eq-grad-family", r"e^{z y - \psi(z)}", r"e^{z^2 y - \psi(z)}"),
    },
)(printed)


@claim(
    "To check a gradient, start from random weights",
    "A wrong gradient is exposed if its error along this direction",
    "if all weights are zero, so is the gradient that the last layer passes down",
    on=range(20),
    but_not={"weights of zero, where a wrong part of zeros is right": (0, 0)},
)
def test_one_direction_catches(seed: int, scale: float = 1) -> None:
    """Nine planted errors, one of them a single entry of 2,410, in random networks, batches and directions."""
    g = rng(seed)
    w = [scale * part for part in network(seed + SEED)]
    rows = g.choice(1500, int(g.choice([20, 50, 200])), replace=False)
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


@claim(
    "The training loss can keep falling",
    "the training loss keeps falling to the end ... turns upwards",
    "part of what the network still learns",
    but_not={
        "the losses part from 5 to 40 epochs": {"start": 5, "end": 40},
        "the training loss turns round": {"new": 0},
        "a fall at each epoch": {"every": 1, "most": 1.0},
    },
    on=[{}],
)
def test_what_the_histories_show(
    new: int = 1, start: int | None = None, end: int = 300, every: int = 10, most: float = 0.85
) -> None:
    """Brief rises apart; the validation loss *can* turn, and does in two of three splits at least."""
    turned = []
    for run in histories():
        h = np.column_stack([run[:, 0], run[:, 1:].mean(axis=1)])
        turn = h[:, new].argmin() if start is None else start
        turned.append(turn < 250 and h[end, 0] < 0.8 * h[turn, 0] and h[end, new] > h[turn, new])
        assert (np.diff(h[1::every, 0]) < 0).mean() >= most
        gained = h[40] - h[300]  # of each nat that the training loss falls, not all reaches new images
        assert gained[new] < 0.9 * gained[0]
    assert sum(turned) >= 2


@claim("That loss is low partly by luck,", on=[None], but_not={"an epoch that nobody chose": 100})
def test_the_chosen_loss_is_too_low(epoch: int | None) -> None:
    """The images for validation, halved at random: an epoch chosen on one half, measured on both."""
    for losses in histories()[:, :, 1:]:
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
    "The smallest batches end with the lowest loss ... has 120 steps",
    on=[(3, 10, 50, 1200), (4, 10, 50, 1200)],
    but_not={"the opposite order": (3, 1200, 50, 10)},
)
def test_small_batches_take_more_steps(seed: int, *sizes: int) -> None:
    old, ends = split(rng(100 + seed))[0], []
    for size in sizes:
        *_, w = fitted(network(200 + seed + SEED), rng(300 + seed), old, 5, size)
        ends.append(loss_of(w, old))
    assert ends == sorted(ends)


@claim(
    "PyTorch records what is computed from a weight ... `.grad`.",
    on=[("SGD", 1), ("SGD", 2), ("SGD", 4)],
    but_not={"Adam": ("Adam", 2), "a decay": ("decay", 2)},
)
def test_what_pytorch_does_in_a_step(kind: str, count: int) -> None:
    start = network(19 + SEED)
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
