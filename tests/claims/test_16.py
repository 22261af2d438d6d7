"""What chapter 16 claims, and attempts to refute it."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter, defaultdict
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from sklearn import datasets
from sklearn.linear_model import LogisticRegression

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


DIGITS = datasets.load_digits()


def softmax_regression(rows: Array, test: Array, shift: bool) -> float:
    """Test loss at equal frequencies, with a ridge of 1e-4."""
    found = LogisticRegression(C=1 / (2e-4 * len(rows)), max_iter=2000)
    found.fit(DIGITS.data[rows] / 16, DIGITS.target[rows])
    z = found.decision_function(DIGITS.data[test] / 16)
    return float(
        xent.cross_entropy(z - shift * np.log(np.bincount(DIGITS.target[rows])), DIGITS.target[test])
    )


@claim(
    "the plain loss does better on them alone than any method does without them ... better still on both, shifted",
    on=[20],
    but_not={"one of each class": 1, "three of each class": 3},
)
def test_held_out_digits_are_worth_training_on(each: int) -> None:
    """Ten other draws; without the held-out digits, the best method is the shift."""
    costs = []
    for seed in range(100, 110):
        g = rng(seed)
        order, counts = g.permutation(len(DIGITS.target)), g.permutation([80, 48, 29, 17, 10, 6, 4, 2, 2, 2])
        by_class = [order[DIGITS.target[order] == k] for k in range(10)]
        few = np.concatenate([some[80 : 80 + n] for some, n in zip(by_class, counts, strict=True)])
        test = np.concatenate([some[:60] for some in by_class])
        held = np.concatenate([some[60 : 60 + each] for some in by_class])
        both = np.concatenate([few, held])
        costs.append([softmax_regression(rows, test, True) for rows in (few, held, both)])
    shifted, alone, together = np.mean(costs, axis=0)
    assert together < 0.9 * alone and alone < 0.8 * shifted


@cache
def views_found(batch: int, steps: int, seed: int) -> float:
    """Percentage of the last 297 digits whose other half is found, by linear maps trained on the first 1,500."""
    images = torch.tensor(DIGITS.images / 16 - DIGITS.images.mean(0) / 16).float()
    halves = [images[:, :, part::2].flatten(1) for part in (0, 1)]
    draw = torch.Generator().manual_seed(seed)
    maps = [((torch.rand(16, 32, generator=draw) * 2 - 1) / 32**0.5).requires_grad_() for _ in halves]

    def similarities(rows: torch.Tensor) -> torch.Tensor:
        a, b = (F.normalize(half[rows] @ w.T) for half, w in zip(halves, maps, strict=True))
        return 10 * a @ b.T

    adam = torch.optim.Adam(maps, lr=0.01)
    for _ in range(steps):
        rows = torch.randperm(1500, generator=draw)[:batch]
        adam.zero_grad()
        F.cross_entropy(similarities(rows), torch.arange(batch)).backward()  # type: ignore[no-untyped-call]
        adam.step()
    found = similarities(torch.arange(1500, 1797)).argmax(1) == torch.arange(297)
    return 100 * float(found.double().mean())


@pytest.mark.slow
@claim(
    "a batch of 8 still finds fewer views than one of 64, ... about as many as one of 512",
    on=[(2400, 2400)],
    but_not={"64 after thirty steps": (2400, 30)},
)
def test_a_larger_batch_is_mostly_more_digits(eight: int, sixty_four: int) -> None:
    """Three other starts and orders."""
    seeds = [int(seed) for seed in rng(9).integers(10**6, size=3)]
    small, middle, more, large = (
        np.mean([views_found(batch, steps, seed) for seed in seeds])
        for batch, steps in ((8, eight), (64, 300), (64, sixty_four), (512, 300))
    )
    assert small < middle - 1
    assert abs(more - large) < 4


def bits(text: str, words: int) -> tuple[float, float]:
    """Bits per byte within words that four fifths of the text lack, and elsewhere, with so many words as tokens."""
    cut = len(text) * 4 // 5
    common = Counter(re.findall("[A-Za-z]{2,}", text[:cut]))
    known = sorted((word for word, _ in common.most_common(words)), key=len, reverse=True)
    tokenize = re.compile("|".join([*known, "(?s:.)"])).findall
    train, test = tokenize(text[:cut]), tokenize(text[cut:])
    counts: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for i, n in itertools.product(range(len(train)), range(4)):
        counts[tuple(train[max(0, i - n) : i])][train[i]] += 1
    cost = {True: 0.0, False: 0.0}
    new = np.zeros(len(text) - cut, bool)
    for word in re.finditer("[A-Za-z]{2,}", text[cut:]):
        new[slice(*word.span())] = word[0] not in common
    begin = 0
    for i, token in enumerate(test):
        p = 1 / len(set(train + test))
        for n in range(min(4, i + 1)):
            if seen := counts.get(tuple(test[i - n : i])):
                p = (seen[token] + len(seen) * p) / (seen.total() + len(seen))
        cost[bool(new[begin])] -= math.log2(p)
        begin += len(token)
    return cost[True] / new.sum(), cost[False] / (~new).sum()


NAMES = ("iris", "wine", "breast_cancer", "diabetes", "digits", "linnerud")


@claim(
    "The third is clearly worse, but only in words that the training text lacks",
    on=[(last, 10**6) for last in range(len(NAMES))],
    but_not={"as many words as the second": (0, 300), "twenty words": (0, 20)},
)
def test_words_in_one_piece_cost_where_words_are_new(last: int, words: int) -> None:
    """Each description in turn is the last, which is most of the test text."""
    text = " ".join(getattr(datasets, f"load_{name}")().DESCR for name in NAMES[last:] + NAMES[:last])
    text = text.encode("ascii", "replace").decode()
    (new, elsewhere), *others = (bits(text, count) for count in (words, 0, 300))
    assert new > 1.5 * max(other for other, _ in others)
    assert elsewhere < min(other for _, other in others)
