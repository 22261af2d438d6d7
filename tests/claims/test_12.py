"""Chapter 12's claims: votes and their noise, smoothing, divergences, a mixture inside the loss."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.special import rel_entr
from sklearn.datasets import load_digits

import xent
from adversary import Array, claim, lowest, normal, rng, weights
from records import above
from xent_book import behaviours

RIDGES = 10.0 ** np.arange(-2, -4.1, -0.5)
ROUGH = 1e-4  # will do where only the choice of a ridge depends on it


def soft_fit(x: Array, t: Array, ridge: float, gtol: float = 1e-6) -> Array:
    """The weights of a linear softmax that minimise the soft cross-entropy and a ridge."""
    rows, shares = torch.tensor(x), torch.tensor(t)

    def loss(w: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(rows @ w, shares) + ridge / 2 * w.square().sum()

    options = {"maxiter": 5000, "gtol": gtol, "ftol": 1e-9 if gtol == ROUGH else 1e-15, "maxcor": 50}
    return lowest(loss, np.zeros((x.shape[1], t.shape[1])), "L-BFGS-B", **options)


def tuned(x: Array, t: Array) -> float:
    """The ridge of least loss on two quarters, held out in turn."""
    lost = np.zeros(len(RIDGES))
    for k in range(2):
        out = np.arange(len(x)) % 4 == k
        for i, ridge in enumerate(RIDGES):
            z = x[out] @ soft_fit(x[~out], t[~out], ridge, ROUGH)
            lost[i] += xent.soft_cross_entropy(z, t[out])
    return float(RIDGES[lost.argmin()])


@cache
def pictures() -> tuple[Array, Array]:
    """The digits, and the chapter's simulated truth."""
    digits = load_digits()
    x = np.column_stack([digits.data / 16, np.ones(len(digits.data))])
    return x, xent.softmax(x @ soft_fit(x, np.eye(10)[digits.target], 1e-3))


def divergence(p: Array, q: Array) -> float:
    return float(rel_entr(p, q).sum(-1).mean())


Ways = tuple[tuple[int, int], ...]
WAYS = ((900, 1), (300, 3), (150, 6), (75, 12))


@cache
def votes_left(n: int, m: int, ridge: float | None = None, seeds: int = 6, sharp: float = 1.0) -> Array:
    """What m votes on each of n pictures leave of the divergence, with a ridge or with the one that they choose.

    The truth's logits are multiplied by `sharp`.
    """
    x, truth = pictures()[0], normal(pictures()[1] ** sharp)
    found = []
    for seed in range(seeds):
        g = rng(5000 + seed)
        order = g.permutation(len(x))
        train, test = order[:n], order[900:]
        t = g.multinomial(m, truth[train]) / m if m else truth[train]
        w = soft_fit(x[train], t, ridge or tuned(x[train], t))
        found.append(divergence(truth[test], xent.softmax(x[test] @ w)))
    return np.array(found)


@pytest.mark.slow
@claim(
    "With the ridge chosen, each increase in the number of pictures helped",
    "With a ridge of 0.00001, one vote on each of 900 came last,",
    on=[(WAYS, None, 8)],
    but_not={"a hundredth of the ridge": (WAYS, 1e-5, 3), "few pictures": (WAYS[::-1], None, 8)},
)
def test_the_ridge_decides_how_votes_are_spent(ways: Ways, ridge: float | None, seeds: int) -> None:
    """Paired differences; with a ridge that nobody chose, more votes do its work, and every way over-fits."""
    own, free = (np.array([votes_left(*way, r, n) for way in ways]) for r, n in ((ridge, seeds), (1e-5, 3)))
    above(own[2] - own[0])
    above(own[3] - own[0])
    assert (np.diff(own.mean(1)) > 0).all()
    assert free.mean(1).argmax() == 0 and (free.mean(1) > 2 * own.mean(1)).all()


@pytest.mark.slow
@claim(
    "if the truth's logits are multiplied by 0.3",
    on=[(0.3, 150, 6)],
    but_not={"as they are": (1.0, 150, 6), "75 pictures": (0.3, 75, 12)},
)
def test_more_pictures_where_people_disagree(sharp: float, n: int, m: int) -> None:
    """Within a tenth of what one vote on each of 900 leaves, on average over eight splits."""
    few, many = (votes_left(*way, seeds=8, sharp=sharp) for way in ((n, m), (900, 1)))
    assert abs(few.mean() / many.mean() - 1) < 0.1


@pytest.mark.slow
@claim(
    "With the ridge chosen for each $m$, fits to sixteen votes fall below the floor",
    on=lambda: [(votes_left(600, 1), votes_left(600, 16))],
    but_not=lambda: {
        "the fixed ridge": (votes_left(600, 1), votes_left(600, 16, 1e-3)),
        "a sixteenth": (votes_left(600, 1), votes_left(600, 1) / 16),
    },
)
def test_votes_with_the_ridge_chosen(one: Array, sixteen: Array) -> None:
    above(sixteen - one / 16)
    above(votes_left(600, 0, 1e-3) - sixteen)


def smoothed(who: str, z: Array, y: Array, eps: float) -> float:
    hard, second = np.eye(z.shape[-1])[y], torch.tensor(z).movedim(-1, 1)
    if who == "PyTorch":
        return F.cross_entropy(second, torch.tensor(y), label_smoothing=eps).item()
    if who == "xent":
        return float(xent.cross_entropy(z, y, label_smoothing=eps))
    axis = 1 if "second" in who else -1
    loss = behaviours.keras().losses.CategoricalCrossentropy(from_logits=True, label_smoothing=eps, axis=axis)
    return float(loss(np.moveaxis(hard, -1, axis), np.moveaxis(z, -1, axis)))


@claim(
    "PyTorch, Keras (if the classes are on the array's last axis) and xent, following",
    "Label smoothing has two conventions:",
    "Pass such an ε, say 0.9, as a framework's `label_smoothing`, and",
    on=[(who, K, eps) for who in ("PyTorch", "Keras", "xent") for K in (2, 3, 10) for eps in (0.0, 0.1, 0.9)]
    + [("PyTorch", K, 0.9, 0.9 * (K - 1) / K) for K in (2, 3, 1000)],
    but_not={
        "Keras with the classes on the second axis": ("Keras, second axis", 3, 0.9),
        "3.11: 0.9 is what the right class keeps": ("PyTorch", 10, 0.9, 0.1),
        **{f"{who} over the others": (who, 3, 0.9, 0.9) for who in ("PyTorch", "Keras", "xent")},
    },
)
@pytest.mark.erratum("3.11", "conditional")
def test_who_spreads_over_all_classes(who: str, K: int, eps: float, over: float | None = None) -> None:
    z, y = rng(14).normal(size=(2, 5, K)), rng(14).integers(K, size=(2, 5))
    hot = np.eye(K)[y]
    t = (1 - eps) * hot + eps / K if over is None else (1 - over) * hot + over / (K - 1) * (1 - hot)
    assert smoothed(who, z, y, eps) == pytest.approx(-(t * xent.log_softmax(z)).sum(-1).mean(), rel=1e-5)
    assert (K, eps) != (10, 0.9) or t.max() < 1 / 5


@claim(
    "If you have the logits, and neither they nor their differences are infinite, use",
    on=[
        (scale * rng(K).normal(size=(4, K)), t)
        for K in (1, 2, 5)
        for scale in (0.0, 1.0, 1e4)
        for t in (np.eye(K)[np.arange(4) % K], rng(K).dirichlet(np.ones(K), size=4))
    ],
    but_not={
        "a logit of minus infinity": (np.array([[1.0, -np.inf]]), np.array([[1.0, 0.0]])),
        "an infinite difference": (np.array([[30, -65504]], np.float16), np.array([[1, 0]], np.float16)),
    },
)
def test_cross_entropy_in_place_of_kl_div(z: Array, t: Array) -> None:
    free = torch.tensor(z, requires_grad=True)
    loss = F.cross_entropy(free, torch.tensor(t))
    (slope,) = torch.autograd.grad(loss, free)
    assert loss.item() == pytest.approx(xent.soft_cross_entropy(z, t), rel=1e-12, abs=1e-300)
    np.testing.assert_allclose(slope.numpy(), (xent.softmax(z) - t) / len(z), atol=1e-11)


def kl_div(p: Array, q: Array, reduction: str = "sum", swapped: bool = False) -> float:
    target, log_q = torch.tensor(p), torch.tensor(np.log(q))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that mean is not the mathematical one
        return F.kl_div(
            *((target.log(), log_q.exp()) if swapped else (log_q, target)), reduction=reduction
        ).item()


B, T, V = 4, 7, 5
P, Q = rng(5).dirichlet(np.ones(V), size=(2, B, T))


def term_weights(w: Array) -> tuple[float, float]:
    """PyTorch's loss with weights of the terms, and its sum."""
    z, t = (torch.tensor(x).movedim(-1, 1) for x in (np.log(Q), P))
    return F.cross_entropy(z, t, torch.tensor(w)).item(), float(-(w * P * np.log(Q)).sum())


@claim(
    "`kl_div` takes the model's log-probabilities first; ... divides only by $B$.",
    "With $p$ and $q$ swapped you get",
    "For a distribution it multiplies each term",
    on=lambda: (
        [(kl_div(P, Q, "batchmean"), B), (kl_div(P, Q, "mean"), B * T * V)]
        + [(kl_div(Q, P, "batchmean", swapped=True), B)]
        + [(*term_weights(w), B * T) for _, w in weights(rng(5), V)]
    ),
    but_not=lambda: {
        "the mean over the tokens": (kl_div(P, Q, "batchmean"), B * T),
        "a mean over the rows": (kl_div(P, Q, "mean"), B * T),
        "the arguments swapped": (kl_div(P, Q, "batchmean", swapped=True), B),
        "a weighted mean, as for index targets": (*term_weights(np.full(V, 3.0)), 3 * B * T),
    },
)
@pytest.mark.claim("13", "`batchmean` divides by the length of the first axis")
@pytest.mark.erratum("3.14", "holds")
def test_what_pytorch_divides_by(found: float, *total: float) -> None:
    whole, divisor = total if len(total) > 1 else (float((P * np.log(P / Q)).sum()), *total)
    assert found == pytest.approx(whole / divisor)


def inside(seen: Array, eps: float) -> Array:
    """What a mixture with the uniform distribution, inside the loss, elicits: by search."""
    loss = lambda z: -torch.tensor(seen) @ ((1 - eps) * z.softmax(0) + eps / len(seen)).log()  # noqa: E731
    return xent.softmax(lowest(loss, np.log(seen + 1e-9), gtol=1e-8))


def equal(occur: int, classes: int) -> Array:
    return np.repeat([1 / occur, 0.0], [occur, classes - occur])


@claim(
    "it elicits more confidence than they support",
    on=[
        (p, eps)
        for p in (np.array([0.7, 0.3]), np.array([0.5, 0.3, 0.2]), normal(np.arange(1, 11)))
        for eps in (0.1, 0.3)
    ],
    but_not={f"{n} equally likely of {K}": (equal(n, K), 0.3) for n, K in ((1, 2), (2, 2), (2, 3), (3, 10))},
)
def test_the_mixture_inside_on_clean_labels(p: Array, eps: float) -> None:
    assert inside(p, eps).max() > p.max() + 1e-3


@claim(
    "To elicit $p$, the loss generally needs the right",
    on=[(p, equal(len(p), len(p)), 0.2) for p in ([0.7, 0.3], [0.2, 0.2, 0.6], [0.1, 0.1, 0.2, 0.2, 0.4])]
    + [([1.0, 0.0, 0.0], equal(3, 3), 0.3)],
    but_not={
        "less noise assumed": ([0.2, 0.2, 0.6], equal(3, 3), 0.1),
        "more noise assumed": ([0.2, 0.2, 0.6], equal(3, 3), 0.3),
        "noise that is not uniform": ([0.2, 0.2, 0.6], equal(1, 3), 0.2),
    },
)
def test_the_mixture_inside_needs_its_noise(p: Any, noise: Array, assumed: float) -> None:
    """Noise of .2. Sure classes are the exception: with more noise assumed than there is they come back."""
    np.testing.assert_allclose(inside(0.8 * np.array(p) + 0.2 * noise, assumed), p, atol=2e-3)


BELIEFS = {K: normal(0.05 + rng(16).dirichlet(np.ones(K))) for K in (2, 3, 6)}


@claim(
    "gives a row less weight ... is more confident than $p$",
    on=lambda: ((p, r) for p in BELIEFS.values() for r in (0.1, 0.5, 0.7)),
    but_not=lambda: {
        "the belief itself": (BELIEFS[3], 0.5, 1.0),
        "the power 1 + r": (BELIEFS[3], 0.5, 1.5),
        "the cross-entropy": (BELIEFS[3], 0.0),
    },
)
def test_a_loss_for_noisy_labels(p: Array, r: float, power: float | None = None) -> None:
    """Its best report, by search; its slope over that of the cross-entropy, as the label's probability rises."""
    each = lambda q: (1 - q**r) / r if r else -q.log()  # noqa: E731
    best = xent.softmax(lowest(lambda z: torch.tensor(p) @ each(z.softmax(0)), np.log(p)))
    np.testing.assert_allclose(best, normal(p ** (power or 1 / (1 - r))), atol=1e-4)
    z = torch.zeros(9, len(p), dtype=torch.float64)
    z[:, 0] = torch.linspace(-6, 6, 9)
    q = z.requires_grad_().softmax(1)[:, 0]
    (slope,) = torch.autograd.grad(each(q).sum(), z)
    assert best.max() > p.max() and (np.diff((slope[:, 0] / (q - 1)).detach()) > 1e-9).all()
