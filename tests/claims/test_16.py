"""What chapter 16 claims, and attempts to refute it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize

import xent
import xent.torch
from adversary import claim, rng

Array = np.ndarray


@claim(
    "add 5 to all of them and no",
    on=lambda: [(rng(1).normal(0, s, 6), 5.0) for s in (0, 1, 100)],
    but_not={"twice the scores": (np.array([1.0, 2.0, 4.0]), None)},
)
def test_scores_have_no_origin(r: Array, add: float | None) -> None:
    moved = 2 * r if add is None else r + add
    np.testing.assert_allclose(moved[:, None] - moved, r[:, None] - r, atol=1e-12)


def preferred(scores: Array, reference: Array, beta: float, log_ratio: bool) -> Array:
    """The policy that the mean loss prefers, where all pairs meet and preferences follow the scores."""
    wins = 1 / (1 + np.exp(scores - scores[:, None]))
    off = ~np.eye(len(scores), dtype=bool)

    def loss(z: Array) -> tuple[float, Array]:
        log_pi = z - np.logaddexp.reduce(z)
        h = beta * (log_pi - (np.log(reference) if log_ratio else 0))
        apart = h[:, None] - h
        pull = np.where(off, -wins / (1 + np.exp(apart)), 0)
        slope = beta * (pull.sum(1) - pull.sum(0))
        return float((wins * np.logaddexp(0, -apart))[off].sum()), slope - np.exp(log_pi) * slope.sum()

    best = minimize(loss, np.zeros(len(scores)), jac=True, tol=1e-13, options={"maxiter": 5000})
    return np.asarray(xent.softmax(best.x))


@claim(
    "if preferences follow scores $r$, its minimum is",
    on=lambda: [
        (g.normal(0, 1.5, k), g.dirichlet(np.full(k, 3.0)), beta, True)
        for g in [rng(2)]
        for k in (2, 3, 8)
        for beta in (0.3, 1.0, 3.0)
    ],
    but_not={"no reference": (np.array([0.0, 1.0, 2.0]), np.array([0.5, 0.3, 0.2]), 1.0, False)},
)
def test_the_best_policy_follows_the_scores(r: Array, reference: Array, beta: float, log_ratio: bool) -> None:
    best = reference * np.exp(r / beta)
    np.testing.assert_allclose(preferred(r, reference, beta, log_ratio), best / best.sum(), atol=2e-4)


@claim(
    "The prompt's tokens cancel in the difference, but padding",
    on=lambda: [(*rng(seed).exponential(size=(2, 7)), 3, 0) for seed in range(20)],
    but_not={"padding behind the shorter answer": (np.ones(7), np.ones(7), 3, 2)},
)
def test_a_prompt_cancels(chosen: Array, rejected: Array, prompt: int, padding: int) -> None:
    """Token log-probabilities: the first three are the prompt's, and some of the chosen one's last are padding."""
    rejected = np.r_[chosen[:prompt], rejected[prompt:]]
    whole = chosen.sum() - rejected.sum()
    answers = chosen[prompt : len(chosen) - padding].sum() - rejected[prompt:].sum()
    np.testing.assert_allclose(whole, answers, atol=1e-12)


@claim(
    "A model that knows nothing pays ... size of the batch.",
    "it starts at $\\log (N / 4)$",
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
    "its probabilities share one unit, so with two true",
    on=lambda: [(k,) for k in (2, 3, 20)],
    but_not={"two coins": (0,)},
)
def test_softmax_shares_a_unit(classes: int) -> None:
    def loss(z: Any) -> float:
        p = xent.softmax(z) if classes else 1 / (1 + np.exp(-z))
        return float(-np.log(p[:2]).sum())

    best = minimize(loss, rng(3).normal(size=classes or 2), tol=1e-10)
    p = xent.softmax(best.x) if classes else 1 / (1 + np.exp(-best.x))
    np.testing.assert_allclose(p[:2], 0.5, atol=1e-3)
    assert best.fun >= 2 * np.log(2) - 1e-6


@claim(
    "Dice asks for a mask, 0 or 1, and not",
    on=lambda: [(seed, True) for seed in range(40)],
    but_not={"squared error": (3, False)},
)
def test_dice_asks_for_a_mask(seed: int, dice: bool) -> None:
    """Up to five pixels, independent or not: no start leads to a report inside that costs less than each mask."""
    g = rng(seed)
    masks = np.array(list(itertools.product([0, 1], repeat=int(g.integers(1, 6)))))
    chance = g.dirichlet(np.full(len(masks), 0.3 if seed % 2 else 3.0))

    def cost(q: Array) -> float:
        if not dice:
            return float(chance @ ((masks - q) ** 2).sum(1))
        total = q.sum() + masks.sum(1)
        return float(chance @ (1 - np.divide(2 * masks @ q, total, out=np.ones(len(masks)), where=total > 0)))

    starts = g.uniform(0.05, 0.95, (5, masks.shape[1]))
    found = [minimize(cost, q, bounds=[(0, 1)] * len(q), method="L-BFGS-B").fun for q in starts]
    assert min(found) >= min(cost(q.astype(float)) for q in masks) - 1e-9


@claim(
    "they have the same optimum if the model can express",
    on=lambda: [(rng(seed).dirichlet(np.ones(k), 2 * k), "weights") for seed in range(4) for k in (2, 5)],
    but_not={"both cures at once": (np.random.default_rng(0).dirichlet(np.ones(3), 4), "both")},
)
def test_weights_and_a_shift_have_one_optimum(joint: Array, cure: str) -> None:
    """A law of a few inputs and the classes; a table of logits that can be anything."""
    joint = joint / joint.sum()
    prior = joint.sum(0)
    balanced = joint / prior
    balanced /= balanced.sum(1, keepdims=True)
    weighted = joint / prior  # what weights of 1 / prior leave of the data
    best = np.log(weighted / weighted.sum(1, keepdims=True)) - (np.log(prior) if cure == "both" else 0)
    np.testing.assert_allclose(xent.softmax(best), balanced, rtol=1e-9)
    # The law itself, with the prior in the loss, has the balanced logits as its optimum.
    shifted = np.log(joint) - np.log(prior)
    np.testing.assert_allclose(xent.softmax(shifted), balanced, rtol=1e-9)
