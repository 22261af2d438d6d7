"""What chapter 2 claims, and attempts to refute it."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.datasets import load_digits, load_wine
from sklearn.linear_model import LogisticRegression, RidgeClassifier

import xent
from adversary import Array, claim, designs, distributions, labels, printed, rng
from xent import gradients

DIGITS, WINE = load_digits().data / 16, load_wine()
SQUARED = RidgeClassifier(alpha=0)  # least squares of a row of ones and minus ones for each label


test_the_loss_is_a_likelihood = claim(
    "The loss of a label is minus the logarithm",
    on=["eq-label-likelihood"],
    but_not={
        "the sum in place of the mean": ("eq-label-likelihood", r"-\tfrac{1}{N} \sum", r"-\sum"),
        "the labels of other rows": ("eq-label-likelihood", r"p_{n,y_n} \\ -", r"p_{y_n,n} \\ -"),
    },
)(printed)


test_softmax_has_the_log_odds = claim(
    "Softmax is the only map from logits ... changes nothing.",
    on=["eq-log-odds", "eq-softmax-map", "eq-softmax-shift"],
    but_not={
        "twice the logits": ("eq-log-odds", "z_j - z_k", "2 z_j - 2 z_k"),
        "exponentials that are not normalised": ("eq-softmax-map", r"{\sum_{j=1}^{K} e^{z_j}}", "1"),
        "the logits themselves, normalised": ("eq-softmax-map", "{e^{z_k}}", "{z_k}"),
    },
)(printed)


def exact_loss(z: Array) -> float:
    """Of the first class, with 60 digits."""
    with mpmath.workdps(60):
        return float(mpmath.log(mpmath.fsum(mpmath.exp(mpmath.mpf(float(v)) - float(z[0])) for v in z)))


def shifted(z: Array) -> float:
    u = z - z.max()
    return float(np.log(np.exp(u).sum()) - u[0])


HUGE = [2.0**60 + 1024 * rng(3).integers(-3, 3, k) for k in (2, 10, 99)] + [np.full(3, 2.0**60)]
DEAD = ((np.float64, 746.0), (np.float32, 105.0), (np.float16, 18.0))


def dead(g: Any, dtype: Any, classes: int, margin: float) -> tuple[Array, Any]:
    """Logits of which the second is ahead by a margin, and their softmax's format."""
    z = g.uniform(-3, 0, classes)
    z[:2] = 0, margin
    return z.astype(dtype), dtype


@claim(
    "So first subtract the maximum $m$",
    "Compute the loss from logits ... true loss is finite.",
    on=lambda: [
        *((z, None) for at in (0.0, 800.0, -1e4) for z in at + 30 * rng(3).normal(size=(20, 9))),
        *((z, None) for z in HUGE),
        *(
            dead(rng(4), t, k, m)
            for t, at in DEAD
            for k in (2, 10, 1000)
            for m in (at, *rng(3).uniform(at, 1e4, 4))
        ),
    ],
    but_not=lambda: {
        "no shift": (np.array([0.0, 800.0]), None, lambda z: float(np.log(np.exp(z).sum()) - z[0])),
        "a maximum added back": (
            HUGE[-1],
            None,
            lambda z: z.max() + np.log(np.exp(z - z.max()).sum()) - z[0],
        ),
        **{
            f"a loss of {m:g} in {t.__name__}": dead(rng(4), t, 3, m) for t, at in DEAD for m in (1.0, at / 2)
        },
    },
)
def test_from_logits(z: Array, dtype: Any, of: Any = shifted) -> None:
    """The logarithm of a softmax can be infinite: in float64 a loss of 700 comes through."""
    with np.errstate(all="ignore"):
        for found in (of(z.astype(float)), xent.cross_entropy(z[None].astype(float), [0])):
            assert found == pytest.approx(exact_loss(z), rel=1e-13, abs=1e-14)
        assert dtype is None or np.isinf(-np.log(xent.softmax(z).astype(dtype)[0]))


@pytest.mark.erratum("4.6", "conditional")
@claim(
    "The prediction for an example is right ... cannot tell.",
    on=[2, 3, 10, 1000],
    but_not={
        "4.6: zero for a right answer": (3, lambda loss, _: loss.min() == 0),
        "log 2 for wrong answers, as if of two classes": (3, lambda loss, k: not (loss > np.log(2)).any()),
    },
)
def test_what_the_size_of_a_loss_says(classes: int, also: Any = lambda loss, _: True) -> None:
    low, high, between = np.log(2) - 1e-12, np.log(classes) + 1e-12, set()
    for what, p in distributions(rng(4), classes, 300):
        for _, y in labels(rng(5), p):
            mine = p[np.arange(len(p)), y]
            with np.errstate(divide="ignore"):
                loss, right = -np.log(mine), mine >= p.max(axis=1)
            assert right[loss < low].all() and not right[loss > high].any()
            assert also(loss[right], classes) or what in ("one-hot", "zeros", "1e-300")
            between |= set(right[(loss > low + 2e-12) & (loss < high - 2e-12)].tolist())
    assert between == (set() if classes == 2 else {True, False})


def embedding() -> Array:
    torch.manual_seed(int(rng(5).integers(1000)))
    table = torch.nn.Embedding(1000, 64)
    return np.asarray((table(torch.randint(1000, (200,))) @ table.weight.T).detach().numpy())


def starts() -> list[Any]:
    """Digits, one digit, noise; two classes to a vocabulary; then large logits that lie close together."""
    g, found = rng(5), []
    for x in (DIGITS[:50], DIGITS[:1], g.normal(size=(5, 64))):
        for classes in (2, 10, 1000, 50_257):
            z = x @ g.normal(size=(64, classes))
            found += [z * 0.02 / np.abs(z).max(), z * 0.02 / np.abs(z).max() + 1000]
    return [*found, stats.zscore(WINE.data) @ g.normal(scale=0.01, size=(13, 3))]


@claim(
    "If a model's random initial weights keep",
    "If your mean loss, in which every example counts once, starts far above that",
    on=starts,
    but_not=lambda: {
        "measurements in their own units": WINE.data @ rng(5).normal(scale=0.01, size=(13, 3)),
        "small weights and 10,000 inputs": rng(5).normal(size=(50, 10_000))
        @ rng(6).normal(0, 0.05, (10_000, 10)),
        "weights of variance one": DIGITS @ rng(5).normal(size=(64, 10)),
        "a tied embedding": embedding(),
    },
)
def test_the_start_is_log_k(z: Array) -> None:
    """Off by at most the spread of the logits, of any size: what starts far above has logits far apart."""
    for _, y in labels(rng(5), z):
        off = abs(float(xent.cross_entropy(z, y)) - np.log(z.shape[1]))
        assert off <= np.ptp(z, axis=1).max() + 1e-5 and off <= 0.05


test_the_losses_of_a_text = claim(
    "the losses of a text's first $n$ tokens after a start symbol",
    "$z_i$, before ... token $x_i$,",
    on=["eq-next-token"],
    but_not={
        "the labels from the second token on": ("eq-next-token", "sum_{i=1}", "sum_{i=2}"),
        "the logits behind each token": ("eq-next-token", r"x_1, \dots, x_{i-1}", r"x_1, \dots, x_i"),
    },
)(printed)


SEA = "she sells sea shells by the sea shore. the shells she sells are sea shells for sure." * 2


@claim(
    "What the model has learnt is nearly ... told you,",
    on=lambda: [(SEA,), ("".join(rng(7).choice(list("aab c"), 120)),)],
    but_not={"the table before the fit": (SEA, 0)},
)
def test_counting_is_the_fit(text: str, steps: int = 1500) -> None:
    characters = sorted(set(text))
    ids = np.array([characters.index(c) for c in text])
    before, after = ids[:-1], ids[1:]
    table, counts = np.zeros((2, len(characters), len(characters)))
    for _ in range(steps):
        np.subtract.at(table, before, 10 * gradients.cross_entropy_gradient(table[before], after))
    np.add.at(counts, (before, after), 1)
    best = -np.log((counts / counts.sum(axis=1, keepdims=True).clip(1))[before, after]).mean()
    assert best - 1e-12 <= xent.cross_entropy(table[before], after) < 1.01 * best


UNEQUAL = np.where(np.arange(40) < 20, 0.01, 1.0)


@claim(
    "Minimising squared error is maximum likelihood",
    on=lambda: [
        (x, x.sum(axis=1) + rng(8).normal(size=len(x)), stats.norm(scale=rng(8).uniform(0.1, 5)).logpdf)
        for _, x, _ in designs(rng(8))
    ],
    but_not=lambda: {
        "unequal variance": (rng(8).normal(size=(40, 2)), UNEQUAL, stats.norm(scale=UNEQUAL).logpdf),
        "Laplace's noise": (rng(8).normal(size=(40, 2)), rng(8).standard_cauchy(40), lambda u: -np.abs(u)),
    },
)
def test_squared_error_is_gaussian(x: Array, t: Array, likelihood: Any) -> None:
    residual = t - x @ np.linalg.lstsq(x, t, rcond=None)[0]
    for size in (1e-3, 0.1, 10.0):
        for move in size * rng(8).normal(size=(20, x.shape[1])):
            assert likelihood(residual - x @ move).sum() <= likelihood(residual).sum() + 1e-9


def clusters(g: Any, sizes: tuple[int, ...] = (40, 40, 40)) -> tuple[Array, Array]:
    """Three on a line, of random places and widths."""
    places, widths = np.array([-g.uniform(1, 5), 0, g.uniform(1, 5)]), g.uniform(0.01, 1, 3)
    y = np.repeat([0, 1, 2], sizes)
    return stats.zscore(g.normal(places[y], widths[y]))[:, None], y


@claim(
    "on class labels, a linear model fitted in this way",
    on=lambda: [(*clusters(rng(seed)), SQUARED) for seed in range(10)],
    but_not=lambda: {
        "softmax regression": (*clusters(rng(0)), LogisticRegression(C=np.inf)),
        "a large class in the middle": (*clusters(rng(0), (20, 400, 20)), SQUARED),
    },
)
def test_masking(x: Array, y: Array, model: Any) -> None:
    assert (model.fit(x, y).predict(x) == 1).sum() == 0
