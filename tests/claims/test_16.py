"""What chapter 16 claims, and attempts to refute it."""

from __future__ import annotations

import itertools

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize

import xent
import xent.torch
from adversary import Array, Draw, claim, lowest, normal, rng

PAIRS = {
    "all": lambda k: ~np.eye(k, dtype=bool),
    "neighbours": lambda k: abs(np.arange(k)[:, None] - np.arange(k)) == 1,
    "all but the last answer's": lambda k: (
        ~np.eye(k, dtype=bool) & (np.maximum.outer(*2 * [range(k)]) < k - 1)
    ),
}


def preferred(scores: Array, reference: Array, beta: float, compared: Array) -> Array:
    """The policy that the mean loss prefers, where these pairs meet and preferences follow the scores."""
    wins, apart = torch.tensor(1 / (1 + np.exp(scores - scores[:, None]))), torch.tensor(compared)

    def loss(z: torch.Tensor) -> torch.Tensor:
        h = beta * (z.log_softmax(0) - torch.tensor(np.log(reference)))
        return -(wins * F.logsigmoid(h[:, None] - h))[apart].sum()

    return np.asarray(xent.softmax(lowest(loss, np.zeros(len(scores)), maxiter=5000)))


THREE = np.array([0.0, 1.0, 2.0]), np.array([0.5, 0.3, 0.2])  # scores, and a reference


@claim(
    "If people prefer $a$ to $b$ ... and a chain fixes every other difference.",
    on=lambda: [
        (g.normal(0, 1.5, k), g.dirichlet(np.full(k, 3.0)), beta, pairs, 0)
        for g in [rng(2)]
        for k, beta, pairs in itertools.product((2, 3, 8), (0.3, 1.0, 3.0), ("all", "neighbours"))
    ],
    but_not={
        "no reference": (*THREE, 1.0, "all", 1),
        "an answer that is never compared": (*THREE, 1.0, "all but the last answer's", 0),
    },
)
def test_policies_follow_scores(r: Array, reference: Array, beta: float, pairs: str, flat: float) -> None:
    best = reference * np.exp(r / beta)
    found = preferred(r, reference ** (1 - flat), beta, PAIRS[pairs](len(r)))
    np.testing.assert_allclose(found, best / best.sum(), atol=2e-4)


@claim(
    "A model that finds all captions equally similar ... size of the batch.",
    "with equal similarities the loss is $\\log (N / 4)$",
    on=[(8, 8), (64, 64), (64, 16), (512, 128)],
    but_not={"a mean over the ranks": (64, 64.0 / 16)},
)
def test_a_batch_is_its_classes(batch: int, seen: float) -> None:
    """The rows of a batch against those that a rank has seen; similarities that say nothing are equal."""
    columns = int(seen)
    S = torch.zeros(batch // columns, columns, columns, dtype=torch.float64)
    labels = torch.arange(columns).expand(len(S), columns)
    loss = xent.torch.cross_entropy(S.flatten(0, 1), labels.flatten())
    np.testing.assert_allclose(float(loss), np.log(batch if seen == batch else batch / 4), rtol=1e-12)


@claim(
    "its probabilities sum to 1, so with two true",
    on=[2, 3, 20],
    but_not={"two coins": 0},
)
def test_softmax_shares_a_unit(classes: int) -> None:
    share = xent.softmax if classes else xent.sigmoid
    start = rng(3).normal(size=classes or 2)
    best = minimize(lambda z: -np.log(share(z)[:2]).sum(), start, tol=1e-10)
    np.testing.assert_allclose(share(best.x)[:2], 0.5, atol=1e-3)
    assert best.fun >= 2 * np.log(2) - 1e-6


def independent(g: Draw) -> tuple[Array, Array]:
    """All masks of up to five pixels, and their probabilities."""
    p = g.uniform(size=g.integers(1, 6))
    masks = np.array(list(itertools.product([0, 1], repeat=len(p))))
    return masks, np.where(masks, p, 1 - p).prod(1)


EITHER = np.array([[1, 0, 0], [0, 1, 1]]), np.array([2 / 7, 5 / 7])


@claim(
    "For independent pixels Dice asks for a mask, 0 or 1",
    on=lambda: [(*independent(rng(seed)), True) for seed in range(40)],
    but_not={
        "squared error": (*independent(np.random.default_rng(3)), False),
        "either the first pixel or both others": (*EITHER, True),
    },
)
def test_dice_asks_for_a_mask(masks: Array, chance: Array, dice: bool) -> None:
    """No start leads to a report inside that costs less than each mask."""

    def cost(q: Array) -> float:
        if not dice:
            return float(chance @ ((masks - q) ** 2).sum(1))
        total = q.sum() + masks.sum(1)
        return float(chance @ (1 - np.divide(2 * masks @ q, total, out=np.ones(len(masks)), where=total > 0)))

    pixels = masks.shape[1]
    starts = rng(4).uniform(0.05, 0.95, (5, pixels))
    found = [minimize(cost, q, bounds=[(0, 1)] * pixels, method="L-BFGS-B").fun for q in starts]
    corners = itertools.product([0.0, 1.0], repeat=pixels)
    assert min(found) >= min(cost(np.array(q)) for q in corners) - 1e-9


@claim(
    "whose optimum, if the model can express it, is the same",
    on=lambda: [(rng(seed).dirichlet(np.ones(k), 2 * k), "weights") for seed in range(4) for k in (2, 5)],
    but_not={"both cures at once": (np.random.default_rng(0).dirichlet(np.ones(3), 4), "both")},
)
def test_weights_and_a_shift_have_one_optimum(joint: Array, cure: str) -> None:
    """A law of a few inputs and the classes, a table of logits that can be anything, and its best entries."""
    joint = joint / joint.sum()
    prior = joint.sum(0)

    def best(weight: Array, shift: Array) -> Array:
        mass, more = torch.tensor(joint * weight), torch.tensor(shift)
        return xent.softmax(
            lowest(lambda z: -(mass * (z + more).log_softmax(1)).sum(), np.zeros(joint.shape))
        )

    one = np.ones_like(prior)
    arms = [(1 / prior, np.log(prior))] if cure == "both" else [(1 / prior, 0 * one), (one, np.log(prior))]
    for weight, shift in arms:
        np.testing.assert_allclose(best(weight, shift), normal(joint / prior), atol=1e-5)
