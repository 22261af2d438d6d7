"""What chapter 2 claims, and attempts to refute it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.datasets import load_digits, load_wine
from sklearn.linear_model import LogisticRegression, RidgeClassifier

import oracle
import xent
from adversary import batches, claim, labels, one_hot, printed, rng
from xent import gradients

Array = np.ndarray
DIGITS, WINE = load_digits().data / 16, load_wine()
SQUARED = RidgeClassifier(alpha=0)  # least squares of a row of ones and minus ones for each label
nll_loss = torch.nn.functional.nll_loss


SOME = np.array([[0.1, 0.2, 0.3, 0.4], [0.25, 0.2, 0.3, 0.25], [0.7, 0.1, 0.1, 0.1]]), np.array([0, 3, 3])


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
        "exponentials that are not normalised": ("eq-softmax-map", r"\sum_{j=1}^{K} e^{z_j}", "1"),
        "the logits themselves, normalised": ("eq-softmax-map", "{e^{z_k}}", "{z_k}"),
    },
)(printed)


def tops(tied: bool) -> list[Array]:
    rows = (row for _, z, _ in batches(rng(2)) for row in z[:3])
    return [row for row in rows if (np.diff(np.sort(row)[-2:]) == 0)[0] == tied]


@claim(
    "the result approaches the one-hot row",
    on=lambda: tops(tied=False),
    but_not=lambda: {f"a tie for the top, {k}": row for k, row in enumerate(tops(tied=True))},
)
def test_the_cold_softmax_is_one_hot(row: Array) -> None:
    top, lead = one_hot(row.argmax()[None], len(row)), max(np.diff(np.sort(row)[-2:])[0], 1e-9)
    off = [np.abs(xent.softmax(row / t) - top).max() for t in (lead / 2, lead / 12, lead / 60)]
    assert off[0] >= off[1] >= off[2] and off[2] < 1e-15


def shifted(z: Array) -> float:
    u = z - z.max()
    return float(np.log(np.exp(u).sum()) - u[0])


DEAD = ((np.float64, 746.0), (np.float32, 105.0), (np.float16, 18.0))


def ahead(dtype: Any, margin: float, classes: int = 3) -> tuple[Array, Any]:
    """Logits of which the second is ahead by a margin, and their softmax's format."""
    return np.r_[0, margin, rng(4).uniform(-3, 0, classes - 2)].astype(dtype), dtype


def rows() -> Iterator[tuple[Array, Any]]:
    g = rng(3)
    yield from ((at + 30 * z, None) for at in (0.0, 800.0, -1e4) for z in g.normal(size=(20, 9)))
    yield from ((2.0**60 + 1024 * g.integers(-3, 3, k), None) for k in (2, 10, 99))
    for t, at in DEAD:
        yield from (ahead(t, m, k) for k in (2, 10, 1000) for m in (at, *g.uniform(at, 1e4, 4)))


@claim(
    "So first subtract the maximum $m$",
    "Compute the loss from logits ... true loss is finite.",
    on=rows,
    but_not=lambda: {
        "no shift": (np.array([0.0, 800]), None, lambda z: np.log(np.exp(z).sum()) - z[0]),
        "a maximum added back": (
            np.full(3, 2.0**60),
            None,
            lambda z: z[0] + np.log(np.exp(z - z[0]).sum()) - z[0],
        ),
        **{f"a loss of {m:g} in {t.__name__}": ahead(t, m) for t, at in DEAD for m in (1.0, at / 2)},
    },
)
def test_from_logits(z: Array, dtype: Any, of: Any = shifted) -> None:
    """The logarithm of a softmax can be infinite: in float64 a loss of 700 comes through."""
    exact = float(oracle.negative_log_softmax(z)[0])
    with np.errstate(all="ignore"):
        for found in (of(z.astype(float)), xent.cross_entropy(z[None].astype(float), [0])):
            assert found == pytest.approx(exact, rel=1e-13, abs=1e-14)
        assert dtype is None or np.isinf(-np.log(xent.softmax(z).astype(dtype)[0]))


BOUNDS = "eq-loss-bounds"
test_what_the_size_of_a_loss_says = claim(
    "The prediction for an example is right ... cannot tell.",
    on=[BOUNDS],
    but_not={
        "4.6: zero for a right answer": (BOUNDS, r"\log K && \text{if right}", r"0 && \text{if right}"),
        "no right answer above log 2": (BOUNDS, r"\log K && \text{if right}", r"\log 2 && \text{if right}"),
        "no wrong answer below log K": (BOUNDS, r"\log 2 && \text{if wrong}", r"\log K && \text{if wrong}"),
    },
)(printed)


def embedding() -> Array:
    torch.manual_seed(int(rng(5).integers(1000)))
    table = torch.nn.Embedding(1000, 64).weight.detach().numpy()
    return np.asarray(table[:200] @ table.T)


def starts() -> Iterator[Array]:
    """Digits, one digit, noise; two classes to a vocabulary; then large logits that lie close together."""
    g = rng(5)
    for x in (DIGITS[:50], DIGITS[:1], g.normal(size=(5, 64))):
        for classes in (2, 10, 1000, 50_257):
            z = x @ g.normal(size=(64, classes))
            yield from (z * 0.02 / np.abs(z).max() + at for at in (0, 1000))
    yield stats.zscore(WINE.data) @ g.normal(scale=0.01, size=(13, 3))


@claim(
    "If a model's random initial weights keep",
    "If your mean loss, in which every example counts once, starts far above that",
    on=starts,
    but_not=lambda: {
        "measurements in their own units": WINE.data @ rng(5).normal(scale=0.01, size=(13, 3)),
        "10,000 inputs": rng(5).normal(size=(50, 10_000)) @ rng(6).normal(0, 0.05, (10_000, 10)),
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
        "the labels from the second token on": ("eq-next-token", r"\sum_{i=1}", r"\sum_{i=2}"),
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


NOISE = "eq-gaussian-nll"
test_squared_error_is_gaussian = claim(
    "Minimising squared error is maximum likelihood",
    on=[NOISE],
    but_not={
        "unequal variance": (NOISE, "/ (2 s^2)}", "/ (2 k s^2)}"),
        "Laplace's noise": (NOISE, "(t_k - a_k)^2 / (2 s^2)}", "|t_k - a_k| / (2 s^2)}"),
    },
)(printed)


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


@claim(
    "If you give it probabilities, the loss lies between ... while no prediction changes.",
    on=lambda: ((z, y, c) for _, z, y in batches(rng(12), (2, 10, 1000), (2,)) for c in (1.0, 1e6)),
    but_not={
        "log-probabilities, with a constant": (*SOME, 3.0, xent.softmax, xent.log_softmax),
        "logits as probabilities": (*SOME, 3.0, lambda z: 10 * z, np.asarray),
        "log-probabilities as probabilities": (*SOME, 3.0, lambda z: np.log(xent.softmax(z)), np.asarray),
    },
)
def test_nll_does_not_check(
    z: Array, y: Array, c: float, probs: Any = xent.softmax, logits: Any = np.asarray
) -> None:
    def loss(x: Array) -> float:
        return float(nll_loss(torch.from_numpy(x), torch.from_numpy(y)))

    assert -1 - 1e-6 <= loss(probs(z)) <= 0
    assert loss(logits(z)) - loss(logits(z + c)) == pytest.approx(c, rel=1e-6, abs=1e-6)
    np.testing.assert_allclose(xent.softmax(z + c), xent.softmax(z), rtol=1e-6, atol=1e-9)
