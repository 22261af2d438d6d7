"""What chapter 2 claims, and attempts to refute it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch
from scipy import optimize, stats
from sklearn.datasets import load_digits, load_wine
from sklearn.linear_model import LogisticRegression

import xent
from adversary import batches, designs, distributions, labels, one_hot, refuted, rng, weights
from xent.gradients import cross_entropy_gradient

Array = np.ndarray


def softmax_fit(x: Array, y: Array, steps: int, start: float = 0.0, seed: int = 0) -> Array:
    """Softmax regression by gradient descent: the weights, with those of a column of ones in the last row."""
    a, onehot = np.column_stack([x, np.ones(len(x))]), np.eye(y.max() + 1)[y]
    w = start * rng(seed).normal(size=(a.shape[1], onehot.shape[1]))
    for _ in range(steps):
        w -= 2.0 * a.T @ (xent.softmax(a @ w) - onehot) / len(y)
    return w


def squared_fit(x: Array, y: Array) -> Array:
    """Least squares on one-hot labels: the classes that it predicts."""
    a = np.column_stack([x, np.ones(len(x))])
    return np.asarray((a @ np.linalg.lstsq(a, np.eye(y.max() + 1)[y], rcond=None)[0]).argmax(axis=1))


def standardised(x: Array) -> Array:
    return (x - x.mean(axis=0)) / x.std(axis=0)


@pytest.mark.claim(
    "02",
    "The loss of a label is minus the logarithm of its probability, because the likelihood of independent labels is "
    "a product.",
)
@pytest.mark.erratum("2.1", "holds")
def test_the_loss_is_a_likelihood() -> None:
    """All records of up to three labels, whose products are their probabilities; rows of every kind, zeros included.

    Would be refuted by a record whose losses add up to something else, or by models that the two order differently.
    """
    g = rng(0)

    def says(loss: float, p: Array, record: Array) -> None:
        with np.errstate(divide="ignore"):
            assert loss == pytest.approx(
                -np.log(np.prod(p[np.arange(len(record)), record])), rel=1e-12, abs=1e-14
            )

    for classes in (2, 4):
        for n in (1, 2, 3):
            for _, p in distributions(g, classes, n):
                records = [np.array(r) for r in itertools.product(range(classes), repeat=n)]
                for record in records:
                    factors = p[np.arange(n), record]
                    if (
                        factors.min() == 0 or np.prod(factors) > 1e-290
                    ):  # or the product is lost, as chapter 1 says
                        says(float(xent.log_loss(p, record, reduction="sum")), p, record)
                total = sum(np.prod(p[np.arange(n), record]) for record in records)
                assert total == pytest.approx(1, rel=1e-12)
    p, record = g.dirichlet(np.ones(4), 3), np.array([0, 3, 3])
    with refuted("the mean"):
        says(float(xent.log_loss(p, record)), p, record)
    with refuted("the labels of other rows"):
        says(float(xent.log_loss(p, record[::-1], reduction="sum")), p, record)
    models = g.dirichlet(np.ones(3), size=(50, 6))
    y = g.integers(0, 3, 6)
    products = models[:, np.arange(6), y].prod(axis=1)
    losses = [float(xent.log_loss(m, y)) for m in models]
    assert (np.argsort(-products) == np.argsort(losses)).all()


@pytest.mark.claim(
    "02",
    "Softmax is the only map from logits to probabilities under which differences of logits are log-odds; adding the "
    "same number to all logits changes nothing.",
)
def test_softmax_is_the_only_one() -> None:
    """Batches up to a vocabulary, margins below 1e4, ties, zeros; the equations solved from random starts.

    Would be refuted by logits whose softmax has other log-odds, or by another map that has these.
    """
    g = rng(1)

    def says(of: Callable[[Array], Array], z: Array) -> None:
        with np.errstate(all="ignore"):
            p = of(z)
            odds = np.log(p[:, 1:] / p[:, :1])
        assert (p > 0).all()
        np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-9)
        np.testing.assert_allclose(odds, z[:, 1:] - z[:, :1], rtol=1e-6, atol=1e-9)

    others: list[Callable[[Array], Array]] = [
        lambda z: np.logaddexp(0, z) / np.logaddexp(0, z).sum(axis=1, keepdims=True),
        lambda z: z**2 / (z**2).sum(axis=1, keepdims=True),
        lambda z: xent.sigmoid(z) / xent.sigmoid(z).sum(axis=1, keepdims=True),
        lambda z: xent.softmax(2 * z),
    ]
    for what, z, _ in batches(g):
        if "margins" not in what:  # where no probability is a zero
            says(xent.softmax, z)
            for shift in (-1e4, 3.3, 1e4):
                np.testing.assert_allclose(xent.softmax(z + shift), xent.softmax(z), rtol=1e-9)
        if ", plain, any" in what:
            for other in others:
                with refuted("another map"):
                    says(other, z)
    for _ in range(5):
        z = g.normal(scale=2.0, size=4)

        def odds(log_p: Array, z: Array = z) -> Array:
            return np.r_[log_p[1:] - log_p[0] - (z[1:] - z[0]), np.exp(log_p).sum() - 1]

        found = optimize.least_squares(odds, g.normal(size=4) - 1, xtol=1e-15, ftol=1e-15, gtol=1e-15).x
        assert np.exp(found) == pytest.approx(xent.softmax(z), abs=1e-7)


@pytest.mark.claim(
    "02",
    "Softmax is a soft version of the one-hot arg max, and approaches it as the temperature falls, unless two logits "
    "tie for the top.",
)
def test_the_cold_softmax_is_one_hot() -> None:
    """Batches of every kind up to a vocabulary, at temperatures far below the lead of the first.

    Would be refuted by a row with one largest logit whose softmax keeps away from the arg max.
    """

    def says(row: Array) -> None:
        second, first = np.sort(row)[-2:]
        distances = [
            np.abs(xent.softmax(row / t) - one_hot(row.argmax()[None], len(row))).max()
            for t in np.maximum(first - second, 1e-9) / (2, 12, 60)
        ]
        assert distances[0] >= distances[1] >= distances[2] and distances[2] < 1e-15

    seen = 0
    for _, z, _ in batches(rng(2)):
        for row in z[:3]:
            second, first = np.sort(row)[-2:]
            if first > second:
                says(row)
                seen += 1
            else:
                with refuted("a tie for the top"):
                    says(row)
    assert seen > 100


@pytest.mark.claim(
    "02",
    "Compute the loss from logits less their maximum, as log-sum-exp minus the label's logit; the logarithm of a "
    "computed softmax can be infinite where the true loss is finite.",
)
@pytest.mark.claim("02", "Where the label's probability rounds to 1, this gives 0.")
@pytest.mark.claim("02", "So subtract the maximum $m$ from every logit first,")
def test_from_logits() -> None:
    """Random rows of 2 to 1,000 classes in three formats, with margins to 1e4, against 60 digits.

    Would be refuted by a row whose loss from the logits is off, or by no finite loss that dies in the softmax.
    Not every large loss does: in float64 one of 700 comes through. Without the shift, logits of 800 overflow, and a
    maximum that is added back to a logarithm rounds it away.
    """
    g = rng(3)

    def computes(loss: Callable[[Array], float], z: Array) -> None:
        with mpmath.workdps(60):
            exact = mpmath.log(mpmath.fsum(mpmath.exp(mpmath.mpf(float(v)) - float(z[0])) for v in z))
        with np.errstate(all="ignore"):
            assert loss(z) == pytest.approx(float(exact), rel=1e-13, abs=1e-14)

    def shifted(z: Array) -> float:
        u = z - z.max()
        return float(np.log(np.exp(u).sum()) - u[0])

    for at in (0.0, 800.0, -1e4, 2.0**60):
        for _ in range(20):
            z = (
                at + 1024 * g.integers(-3, 3, int(g.integers(2, 100)))
                if at > 1e9
                else at + 30 * g.normal(size=9)
            )
            computes(shifted, z)
    computes(shifted, tied := np.full(3, 2.0**60))
    for margin in g.uniform(38, 700, 20):
        sure = np.array([margin, *g.uniform(-1, 0, 3)])
        assert xent.softmax(sure)[0] == 1 and shifted(sure) == 0 < xent.cross_entropy(sure[None], [0])
        with refuted("a label whose probability does not round to 1"):
            assert shifted(np.minimum(sure, 30)) == 0
    with refuted("no shift"):
        computes(lambda z: float(np.log(np.exp(z).sum()) - z[0]), np.array([0.0, 800.0]))
    with refuted("a maximum added back"):
        computes(lambda z: float(z.max() + np.log(np.exp(z - z.max()).sum()) - z[0]), tied)

    def says(z: Array, dtype: type) -> None:
        with np.errstate(divide="ignore"):
            assert np.isinf(-np.log(xent.softmax(z).astype(dtype)[0]))

    for dtype, dead in ((np.float64, 746.0), (np.float32, 105.0), (np.float16, 18.0)):
        for classes in (2, 10, 1000):
            for margin in (1.0, 10.0, dead, *g.uniform(dead, 1e4, 4)):
                z = g.uniform(-3, 0, classes)
                z[:2] = 0, margin
                z = z.astype(dtype)
                with mpmath.workdps(60):
                    exact = mpmath.log(mpmath.fsum(mpmath.exp(mpmath.mpf(float(v))) for v in z))
                value = float(xent.cross_entropy(z[None].astype(float), [0]))
                assert value == pytest.approx(float(exact), rel=1e-13)
                if margin >= dead:
                    says(z, dtype)
                else:
                    with refuted("a loss that is not large"):
                        says(z, dtype)
    for margin in (100.0, 700.0):
        with refuted("a large loss that the softmax keeps"):
            says(np.array([0.0, margin]), np.float64)


@pytest.mark.claim(
    "02",
    "If the loss of one example is below $\\log 2$, its prediction is right, and above $\\log K$ it is wrong; in "
    "between you cannot tell.",
)
@pytest.mark.erratum("4.6", "conditional")
def test_what_the_size_of_a_loss_says() -> None:
    """Predictions of 2 to 1,000 classes of every kind, labels of every kind; both kinds in between for K > 2.

    Would be refuted by a wrong prediction below log 2 or a right one above log K; the mean over a batch is no example.
    """
    g = rng(4)

    def says(loss: Array, right: Array, classes: int) -> None:
        assert right[loss < np.log(2) - 1e-12].all() and not right[loss > np.log(classes) + 1e-12].any()

    for classes in (2, 3, 10, 1000):
        between: set[bool] = set()
        for _, p in distributions(g, classes, 300):
            for _, y in labels(g, p):
                mine = p[np.arange(len(p)), y]
                with np.errstate(divide="ignore"):
                    loss, right = -np.log(mine), mine >= p.max(axis=1)
                says(loss, right, classes)
                between |= set(right[(loss > np.log(2) + 1e-12) & (loss < np.log(classes) - 1e-12)].tolist())
        assert between == (set() if classes == 2 else {True, False})
    with refuted("4.6: zero for a right answer"):
        assert xent.cross_entropy([[30.0, 0.0, 0.0]], [0]) == 0
    assert xent.cross_entropy([[0.0, -np.inf, -np.inf]], [0]) == 0  # infinite logits attain the infimum
    assert np.log(2) < xent.log_loss([[0.55, 0.05, 0.40]], [2]) < np.log(3)
    mean, one_wrong = np.array([0.4]), np.array([False])
    with refuted("a mean below log 2, with wrong predictions among its examples"):
        says(mean, one_wrong, 3)


@pytest.mark.claim(
    "02",
    "If a model's weights keep all logits near 0, its loss starts near $\\log K$, whatever the labels.",
)
@pytest.mark.claim("02", "If your loss starts far above that, some logits are too far apart.")
def test_the_start_is_log_k() -> None:
    """Two classes to a vocabulary, one row or many, any labels; the loss is off by at most the spread of the logits.

    Would be refuted by logits near 0 whose loss is elsewhere, or by a loss far above log K from logits close together.
    Small weights and standardised inputs are not enough: 10,000 inputs add up, and so do those of a tied embedding.
    """
    g = rng(5)

    def says(z: Array, y: Array, near: float = 0.05) -> None:
        off = float(xent.cross_entropy(z, y)) - np.log(z.shape[1])
        assert abs(off) <= np.ptp(z, axis=1).max() + 1e-12
        assert abs(off) <= near

    digits = load_digits().data / 16
    for x in (digits, digits[:1], g.normal(size=(5, 64))):
        for classes in (2, 10, 1000, 50_257):
            z = x[:50] @ g.normal(size=(64, classes))
            z *= 0.02 / np.abs(z).max()
            for _, y in labels(g, z):
                says(z, y)
                says(z + 1000, y)  # large, but close together
    for _, z, y in batches(g):
        if np.isfinite(z).all():  # any spread: the loss leaves log K by no more
            says(np.float64(z), y, near=np.inf)
    wine, small = load_wine(), g.normal(scale=0.01, size=(13, 3))
    says(standardised(wine.data) @ small, wine.target)
    with refuted("measurements in their own units"):
        says(wine.data @ small, wine.target)
    with refuted("small weights and many standardised inputs"):
        says(g.normal(size=(50, 10_000)) @ g.normal(scale=0.05, size=(10_000, 10)), g.integers(0, 10, 50))
    with refuted("weights of variance one"):
        says(digits @ g.normal(size=(64, 10)), load_digits().target)
    torch.manual_seed(int(g.integers(1000)))
    table = torch.nn.Embedding(1000, 64)
    ids = torch.randint(1000, (200,))
    tied = (table(ids) @ table.weight.T).detach().numpy()
    with refuted("a tied embedding"):
        says(tied, g.integers(0, 1000, 200))
    assert xent.cross_entropy(tied, g.integers(0, 1000, 200)) > 5 * np.log(1000)


@pytest.mark.claim(
    "02",
    "If it settles at the loss of predicting the class shares alone ($\\log K$ if they are equal), check that inputs "
    "and labels still belong together.",
)
def test_mixed_up_labels_cost_what_the_shares_cost() -> None:
    """Two classes to ten, equal shares and unequal ones, the labels shuffled; those in order get far lower.

    Would be refuted by a fit of shuffled labels that settles elsewhere, as at log K with unequal classes.
    """
    g = rng(15)

    def says(loss: float, height: float) -> None:
        assert loss == pytest.approx(height, abs=0.02)

    for classes in (2, 3, 10):
        for shares in (np.full(classes, 1 / classes), np.arange(1, classes + 1) ** 2.0):
            y = np.repeat(np.arange(classes), np.round(3000 * shares / shares.sum()).astype(int))
            x = standardised(g.normal(size=(len(y), 1)) + 3 * y[:, None])
            q = np.bincount(y) / len(y)
            alone = float(-(q * np.log(q)).sum())
            a, mixed = np.column_stack([x, np.ones(len(y))]), g.permutation(y)
            settled = xent.cross_entropy(a @ softmax_fit(x, mixed, 300), mixed)
            says(settled, alone)
            if np.ptp(q) > 0.1:
                with refuted("log K for unequal classes"):
                    says(settled, np.log(classes))
            else:
                says(settled, np.log(classes))
            with refuted("labels in order"):
                says(xent.cross_entropy(a @ softmax_fit(x, y, 300), y), alone)


@pytest.mark.claim(
    "02",
    "Next-token prediction is classification with as many classes as the vocabulary has tokens, and from a start "
    "symbol on the losses of a text's first $n$ tokens add up to their negative log-likelihood.",
)
@pytest.mark.claim("02", "$z_i$ before token $x_i$,")
def test_the_losses_of_a_text() -> None:
    """Markov chains over 2 to 300 tokens, texts of one token to 40: their path probability, in a separate walk.

    Would be refuted by a text whose losses add up to something else; without a start symbol the first is missing.
    The logits that a model returns at the token itself belong to the label after it. Nothing here says that the text
    ends: as probabilities of whole texts, those of one token, two and three would add up to 3.
    """
    g = rng(6)

    def says(total: float, chain: Array, text: Array) -> None:
        path = 0.0
        for a, b in itertools.pairwise([0, *text]):
            path += np.log(chain[a, b])
        assert total == pytest.approx(-path, rel=1e-10)

    def adds_up(table: Array, lengths: tuple[int, ...]) -> None:
        total = 0.0
        for n in lengths:
            for text in itertools.product(range(len(table)), repeat=n):
                before = [0, *text[:-1]]
                total += np.exp(-float(xent.cross_entropy(table[before], text, reduction="sum")))
        assert total == pytest.approx(1, rel=1e-10)

    for vocabulary in (2, 3, 5):
        table = 3 * g.normal(size=(vocabulary, vocabulary))
        for n in (1, 2, 3):
            adds_up(table, (n,))
        with refuted("whole texts, of any length"):
            adds_up(table, (1, 2, 3))
    for vocabulary in (2, 7, 300):  # the token 0 is the start symbol
        table = 3 * g.normal(size=(vocabulary, vocabulary))
        chain = np.exp(table) / np.exp(table).sum(axis=1, keepdims=True)
        for n in (1, 2, 40):
            text = g.integers(0, vocabulary, n)
            before = np.r_[0, text[:-1]]
            says(float(xent.cross_entropy(table[before], text, reduction="sum")), chain, text)
            with refuted("the labels from the second token on"):
                says(float(xent.cross_entropy(table[before[1:]], text[1:], denominator=1)), chain, text)
        with refuted("the logits behind each token, for the token"):
            says(float(xent.cross_entropy(table[text], text, reduction="sum")), chain, text)
        # It is the same function as for three wines: the label is one of the columns.
        with pytest.raises(ValueError, match="targets"):
            xent.cross_entropy(table[before], np.full(n, vocabulary))


@pytest.mark.claim("02", "What the model has learnt is nearly what counting would have told you,")
def test_counting_is_the_fit() -> None:
    """Other texts, one drawn at random: no table is below the counts' loss, and the fit comes within 1 %.

    Would be refuted by a text whose fitted table keeps away from the counts, or falls below them.
    """
    sea = "she sells sea shells by the sea shore. the shells she sells are sea shells for sure." * 2
    drawn = "".join(rng(7).choice(list("aab c"), 120))
    for text in (sea, drawn):
        characters = sorted(set(text))
        ids = np.array([characters.index(c) for c in text])
        before, after = ids[:-1], ids[1:]
        counts = np.zeros((len(characters),) * 2)
        np.add.at(counts, (before, after), 1)
        best = -np.log((counts / counts.sum(axis=1, keepdims=True).clip(1))[before, after]).mean()

        def says(table: Array, best: float = best, before: Array = before, after: Array = after) -> None:
            assert best - 1e-12 <= xent.cross_entropy(table[before], after) < 1.01 * best

        table = np.zeros_like(counts)
        with refuted("the table before the fit"):
            says(table)
        for _ in range(1500):
            np.subtract.at(table, before, 10 * cross_entropy_gradient(table[before], after))
        says(table)


@pytest.mark.claim("02", "At $T = 1$ it writes mostly familiar pairs of letters and few long words.")
@pytest.mark.claim("02", "at a high one it draws many pairs absent from the text.")
def test_what_the_table_writes() -> None:
    """The chapter's text and table, 20,000 characters at a temperature: pairs of the text, and its words.

    Would be refuted by many pairs that the text lacks at T = 1, or few at T = 3, or by many words of three letters
    and more. One word in four is of the text, of any length: "of" and "a" are easy.
    """
    peck = "peck of pickled peppers"
    text = f"peter piper picked a {peck}.\na {peck} peter piper picked.\nif peter piper picked a {peck},\n"
    text += f"where's the {peck} peter piper picked?\n"
    characters = sorted(set(text))
    ids = np.array([characters.index(c) for c in text])
    before, after, table = ids[:-1], ids[1:], np.zeros((len(characters),) * 2)
    assert (len(after), len(characters)) == (196, 21)
    for _ in range(1000):
        np.subtract.at(table, before, 10 * cross_entropy_gradient(table[before], after))
    known, words = set(itertools.pairwise(text)), set(re.findall("[a-z']+", text))
    g = rng(19)

    def written(temperature: float) -> str:
        ends = xent.softmax(table / temperature).cumsum(axis=1)
        at = [characters.index("p")]
        for u in g.random(20_000):
            at.append(min(int(np.searchsorted(ends[at[-1]], u)), len(characters) - 1))
        return "".join(characters[k] for k in at)

    def pairs(by: str, familiar: float) -> None:
        assert np.mean([pair in known for pair in itertools.pairwise(by)]) > familiar

    def few(by: str, letters: int) -> None:
        long = [word for word in re.findall("[a-z']+", by) if len(word) >= letters]
        assert np.mean([word in words for word in long]) < 0.15

    plain, hot = written(1.0), written(3.0)
    pairs(plain, 0.98)
    few(plain, 3)
    with refuted("few words of any length"):
        few(plain, 1)
    with refuted("mostly familiar pairs at T = 3"):
        pairs(hot, 0.7)


@pytest.mark.claim(
    "02",
    "Minimising squared error is maximum likelihood under independent Gaussian noise of one variance; on class labels "
    "a linear model fitted by it may never predict one of the classes.",
)
def test_squared_error_and_masking() -> None:
    """SciPy's Gaussian on data of every kind; the middle of three clusters of random places and widths.

    Would be refuted by data that the two fit differently, or by clusters of one size whose middle is predicted.
    """
    g = rng(8)

    def fits(x: Array, t: Array, likelihood: Callable[[Array], Array]) -> None:
        squared = x @ np.linalg.lstsq(x, t, rcond=None)[0]
        best = likelihood(t - squared).sum()
        for size in (1e-3, 0.1, 10.0):
            for _ in range(20):
                assert likelihood(t - squared - size * (x @ g.normal(size=x.shape[1]))).sum() <= best + 1e-9

    for _, x, _ in designs(g):
        fits(x, x.sum(axis=1) + g.normal(size=len(x)), stats.norm(scale=g.uniform(0.1, 5)).logpdf)
    spread = np.where(np.arange(40) < 20, 0.01, 1.0)  # of unequal variance
    with refuted("Gaussian noise of unequal variance"):
        fits(g.normal(size=(40, 2)), spread * g.normal(size=40), stats.norm(scale=spread).logpdf)
    with refuted("Laplace's noise"):
        # Up to a constant its log-density; SciPy's is the logarithm of 0 far out.
        fits(g.normal(size=(40, 2)), g.standard_cauchy(40), lambda u: -np.abs(u))

    def says(predicted: Array) -> None:
        assert (predicted == 1).sum() == 0

    for _ in range(10):
        step = g.uniform(1, 5, 2)
        places, widths = (-step[0], 0, step[1]), g.uniform(0.01, 1.5, 3)
        x = np.concatenate([g.normal(m, s, 40) for m, s in zip(places, widths, strict=True)])[:, None]
        y = np.repeat([0, 1, 2], 40)
        says(squared_fit(x, y))
    x = np.concatenate([g.normal(m, 0.3, 40) for m in (-2, 0, 2)])[:, None]
    a = np.column_stack([standardised(x), np.ones(120)])
    soft = (a @ softmax_fit(a[:, :1], y, 4000)).argmax(axis=1)
    assert (soft != y).mean() <= 0.02
    with refuted("softmax regression"):
        says(soft)
    # With a large class in the middle it is not the middle one that is masked.
    y = np.repeat([0, 1, 2], (20, 100, 20))
    x = g.normal(np.array([-2.0, 0.0, 2.0])[y], 0.3)
    with refuted("a large class in the middle"):
        says(squared_fit(x[:, None], y))


@pytest.mark.claim("02", "With classes of equal size and spacing the best straight line is level, at 1/3.")
@pytest.mark.claim("02", "Hence, except where the other two cross, one of them lies above 1/3.")
def test_the_middle_line_is_level() -> None:
    """Three clusters of any width and shape, of one size, whose means are equally far apart; the lines far out too.

    Would be refuted by such clusters with a tilted middle line; unequal sizes or spacing tilt or move it.
    """
    g = rng(16)

    def says(parts: list[Array]) -> None:
        x, y = np.concatenate(parts), np.repeat([0, 1, 2], [len(part) for part in parts])
        slope, height = np.linalg.lstsq(np.column_stack([x, np.ones(len(x))]), np.eye(3)[y], rcond=None)[0]
        assert slope[1] == pytest.approx(0, abs=1e-9) and height[1] == pytest.approx(1 / 3)
        assert slope == pytest.approx([(part - x.mean()).sum() / (len(x) * x.var()) for part in parts])
        assert [slope.sum(), height.sum()] == pytest.approx([0, 1])
        at = np.linspace(-100, 100, 999)[:, None] + g.normal()
        assert np.all(np.maximum(*(at * slope + height)[:, [0, 2]].T) > 1 / 3)

    for _ in range(20):
        n, step, at = int(g.integers(1, 40)), g.uniform(0.5, 5), g.normal()
        noise = [g.exponential(g.uniform(0.1, 3), n) for _ in range(3)]
        parts = [e - e.mean() + at + k * step for k, e in enumerate(noise)]
        says(parts)
        with refuted("unequal spacing"):
            says([*parts[:2], parts[2] + step])
        with refuted("unequal sizes"):
            says([parts[0], np.r_[parts[1], parts[1]], parts[2]])


@pytest.mark.claim("02", "So for a linear model the choice of loss can change the predictions.")
def test_wines_by_one_measurement() -> None:
    """Each of the thirteen measurements alone: least squares is never better by much, and far worse for two.

    It "can". Would be refuted by measurements on none of which the two differ, as two starts of one loss do not.
    """
    wine = load_wine()
    columns = standardised(wine.data).T

    def says(predictions: Callable[[Array], tuple[Array, Array]]) -> None:
        extra = []
        for column in columns:
            one, other = predictions(column[:, None])
            extra.append((one != wine.target).sum() - (other != wine.target).sum())
        assert sum(e >= 10 for e in extra) == 2 and min(extra) > -10

    def soft(x: Array, start: float = 0.0) -> Array:
        w = softmax_fit(x, wine.target, 800, start)
        return np.asarray((np.column_stack([x, np.ones(len(x))]) @ w).argmax(axis=1))

    says(lambda x: (squared_fit(x, wine.target), soft(x)))
    with refuted("one loss from two starts"):
        says(lambda x: (soft(x, 0.1), soft(x)))


@pytest.mark.claim(
    "02", "Torch started from random weights, and no gradient of this loss pushes along the spare direction,"
)
def test_the_spare_direction() -> None:
    """Batches of every kind up to a vocabulary, class weights and smoothing; a fit from random weights.

    Would be refuted by a row whose gradient does not sum to zero, as a penalty's does not.
    """
    g = rng(10)

    def says(gradient: Array) -> None:
        assert np.abs(gradient.sum(axis=1)).max() <= 1e-12 * max(1, np.abs(gradient).max())

    for what, z, y in batches(g, rows=(1, 5)):
        says(cross_entropy_gradient(z, y))
        says(cross_entropy_gradient(z, y, label_smoothing=0.1))
        if ", any" in what:
            w = dict(weights(g, z.shape[1]))["any"]
            says(cross_entropy_gradient(z, y, weight=w))
    with refuted("the gradient of a penalty"):
        says(cross_entropy_gradient(z, y) + 0.01 * g.normal(size=z.shape))
    wine = load_wine()
    x = standardised(wine.data[:, [0, 9]])
    start, end = (softmax_fit(x, wine.target, steps, start=1.0) for steps in (0, 500))
    assert np.abs(end - start).max() > 0.5
    assert end.sum(axis=1) == pytest.approx(start.sum(axis=1), abs=1e-12)


@pytest.mark.claim(
    "02", "a nonzero mean weight over the classes changes no prediction and adds to the penalty."
)
def test_the_penalty_takes_off_the_mean() -> None:
    """Features of every kind, collinear ones too; two classes to 1,000, weights and means of every size.

    Would be refuted by weights that predict otherwise without their mean, or whose square is then no smaller.
    A sum of zero alone makes no penalty small: (5, -5, 0) costs fifty times as much as (1, 0, 0).
    """
    g = rng(18)

    def says(x: Array, w: Array, instead: Array) -> None:
        np.testing.assert_allclose(xent.softmax(x @ w.T), xent.softmax(x @ instead.T), atol=1e-6)
        assert (instead**2).sum() < (w**2).sum()

    says(np.eye(1), np.array([[1.0], [0.0], [0.0]]), np.array([[2.0], [-1.0], [-1.0]]) / 3)
    with refuted("any weights that sum to zero"):
        says(np.eye(1), np.array([[1.0], [0.0], [0.0]]), np.array([[5.0], [-5.0], [0.0]]))
    for _, x, _ in designs(g):
        for classes in (2, 3, 1000):
            centred = g.normal(size=(classes, x.shape[1])) * 10 ** g.uniform(-2, 1)
            centred -= centred.mean(axis=0)
            w = centred + g.normal(size=x.shape[1]) * 10 ** g.uniform(-2, 1)
            says(x, w, centred)
            with refuted("a penalty that grows without the mean"):
                says(x, centred, w)


@pytest.mark.claim("02", "For two classes its $w$ is one row; to match a softmax with two rows, double $C$.")
def test_two_classes_double_c() -> None:
    """Features of every kind, with weak penalties and strong ones: the slope of the penalised softmax at the fit.

    Would be refuted by a fit with 2 C that is no minimum of the softmax's penalty for C; one with C is none.
    """
    g = rng(17)

    def says(x: Array, y: Array, c: float, times: float) -> None:
        fit = LogisticRegression(C=times * c, tol=1e-10, solver="newton-cholesky").fit(x, y)
        w = np.stack([-fit.coef_[0], fit.coef_[0]]) / 2  # of all rows with this difference, the smallest
        z = x @ w.T + np.array([0, fit.intercept_[0]])
        slope = w + c * cross_entropy_gradient(z, y, reduction="sum").T @ x
        assert np.abs(slope).max() <= 1e-3 * np.abs(w).max()

    for _, x, y in designs(g):
        if np.ptp(y) == 0:
            continue  # scikit-learn refuses labels of one class
        for c in 10 ** g.uniform(-2, 1, 3):
            says(x, y.astype(int), c, 2)
            with refuted("C itself"):
                says(x, y.astype(int), c, 1)


@pytest.mark.claim(
    "02",
    "the loss has no lower bound: add a constant to all of them, and it falls by that constant, while no prediction "
    "changes.",
)
def test_nll_of_logits_has_no_bound() -> None:
    """Torch on batches of every kind, shifted by up to 1e6; what scaling does depends on the signs.

    Would be refuted by logits whose loss falls by another amount; that of their log-softmax does not fall.
    """
    g = rng(12)
    nll = torch.nn.functional.nll_loss

    def says(of: Callable[[torch.Tensor], torch.Tensor], z: Array, y: Array, c: float) -> None:
        one, other = torch.from_numpy(z), torch.from_numpy(z + c)
        label = torch.from_numpy(y)
        assert float(nll(of(one), label) - nll(of(other), label)) == pytest.approx(c, rel=1e-6, abs=1e-6)
        torch.testing.assert_close(torch.softmax(other, 1), torch.softmax(one, 1), rtol=1e-6, atol=1e-9)

    for what, z, y in batches(g, rows=(1, 2)):
        if "any" in what:
            says(lambda z: z, z, y, c := float(10 ** g.uniform(0, 6)))
            with refuted("log-probabilities"):
                says(lambda z: torch.log_softmax(z, 1), z, y, c)
    # The lecture's logits fall with the scale as well; those whose label is negative rise.
    f, y = torch.tensor([[-1.0, -3.0, 4.0], [-3.0, 3.0, -1.0]]), torch.tensor([0, 1])
    values = [float(nll(s * f, y)) for s in (1, 10, 1e6)]
    assert values[0] > values[1] > values[2] and values[2] < -1e5
    assert (f.argmax(1) == (1e6 * f).argmax(1)).all()
    assert nll(100 * -f.abs(), y) > nll(-f.abs(), y)


@pytest.mark.claim("02", "Give it probabilities, and the loss lies between −1 and 0;")
def test_nll_of_probabilities() -> None:
    """Torch on batches of every kind, and on rows that are certain of another class, whose loss is 0.

    Would be refuted by probabilities whose loss is positive or below -1; logits have both.
    """
    g = rng(14)

    def says(given: Array, y: Array) -> None:
        value = float(torch.nn.functional.nll_loss(torch.from_numpy(given), torch.from_numpy(y)))
        assert -1 - 1e-6 <= value <= 0

    for _, z, y in batches(g, rows=(1, 2)):
        says(xent.softmax(np.float64(z)), y)
    says(np.eye(3), np.array([1, 2, 0]))
    says(np.eye(3), np.arange(3))
    with refuted("logits"):
        says(np.array([[2.0, 0.0]]), np.array([0]))
