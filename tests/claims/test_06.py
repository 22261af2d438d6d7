"""What chapter 6 claims about clips, means, inputs and tolerances, tried on other rows, sizes and formats."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss

import xent
from xent_book import frameworks

pytestmark = pytest.mark.xdist_group("frameworks")  # one worker imports TensorFlow, once
F = torch.nn.functional
CHAPTER = Path(__file__).parents[2] / "chapters" / "06_certify.ipynb"
RNG = np.random.default_rng(606)


@cache
def chapter() -> dict[str, Any]:
    """The functions that the chapter defines: `per_example`, the cases of `certify`, and `certify` itself."""
    names: dict[str, Any] = {
        "np": np, "mpmath": mpmath, "warnings": warnings, "Callable": Callable,
    }  # fmt: skip
    for cell in json.loads(CHAPTER.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and ("def certify(" in source or "def per_example(" in source):
            exec(source.split("\n\n\nprint(")[0], names)
    return names


def by_row(t: np.ndarray, p: np.ndarray, eps: float) -> np.ndarray:
    return -(t * np.log(np.clip(p, eps, 1 - eps))).sum(-1)


def rows(classes: int, count: int = 200) -> tuple[np.ndarray, np.ndarray]:
    return np.eye(classes)[RNG.integers(0, classes, count)], RNG.dirichlet(np.ones(classes), count)


@pytest.mark.claim(
    "06",
    "An impossible event costs infinity. Any other number is somebody's ε: 16.1 is 7 log 10, 34.5 is 15 log 10, and "
    "36.0 is 52 log 2.",
)
def test_ceilings_are_logarithms_of_epsilons() -> None:
    """The libraries' losses of an impossible event, for 2, 3 and 50 classes, against the logarithms."""
    keras = frameworks.keras().metrics.categorical_crossentropy
    for classes in (2, 3, 50):  # TensorFlow's first call takes the time
        p = np.full((1, classes), 1 / (classes - 1))
        p[0, 0] = 0
        t = np.eye(classes)[:1]
        assert log_loss(t, p) == pytest.approx(52 * np.log(2), rel=1e-12)
        assert float(keras(t, p)[0]) == pytest.approx(7 * np.log(10), rel=1e-6)
        assert by_row(t, p, 1e-15)[0] == pytest.approx(15 * np.log(10), rel=1e-12)
        nothing = torch.from_numpy(p).log()
        assert F.nll_loss(nothing, torch.tensor([0])).item() == np.inf == xent.log_loss(p, [0])
    assert [round(float(v), 1) for v in (7 * np.log(10), 15 * np.log(10), 52 * np.log(2))] == [
        16.1,
        34.5,
        36.0,
    ]


@pytest.mark.claim(
    "06",
    "A clipped mean contains $m \\log(1/\\epsilon)$, with m the share of impossible events, so the ε can decide which "
    "of two models looks better.",
)
def test_epsilon_ranks_two_models() -> None:
    """Two made-up models for which every pair of epsilons in use gives opposite orders."""
    n = 4000
    p_sure = np.where(np.arange(n) < 40, 0.0, 0.99)  # a hundredth impossible
    pairs = [(1e-7, 1e-15), (1e-7, 2.0**-52), (2.0**-23, 2.0**-52)]
    for large, small in pairs:
        sure = [-np.log(np.clip(p_sure, e, 1 - e)).mean() for e in (large, small)]
        assert sure[1] - sure[0] == pytest.approx(0.01 * np.log(large / small), rel=1e-9)
        mild = np.exp(-np.mean(sure))  # a model whose every row costs the same, between the two
        other = [-np.log(np.clip(np.full(n, mild), e, 1 - e)).mean() for e in (large, small)]
        assert sure[0] < other[0] and sure[1] > other[1]


@pytest.mark.claim(
    "06",
    "On this split, with Keras's ε the nearest neighbour is the better model; with scikit-learn's it is the worse one.",
)
def test_the_ranking_of_the_digits_on_this_and_other_splits() -> None:
    """The chapter's split and nine others: the first order on all of them, its reversal on some, hence "this"."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from sklearn.naive_bayes import BernoulliNB
    from sklearn.neighbors import KNeighborsClassifier

    X, y = load_digits(return_X_y=True)
    reversed_order = 0
    for seed in range(10):
        X1, X2, y1, y2 = train_test_split(X, y, test_size=0.5, random_state=seed)
        near, bayes = (
            m.fit(X1, y1).predict_proba(X2) for m in (KNeighborsClassifier(1), BernoulliNB(binarize=8))
        )
        at = {
            e: [-np.log(np.clip(q[np.arange(len(y2)), y2], e, 1)).mean() for q in (near, bayes)]
            for e in (1e-7, 2.0**-52)
        }
        assert at[1e-7][0] < at[1e-7][1]
        reversed_order += at[2.0**-52][0] > at[2.0**-52][1]
        if seed == 0:
            assert at[2.0**-52][0] > at[2.0**-52][1]
    # Of 40 splits 25 are reversed; on the others a dozen impossible rows are too few.
    assert 3 <= reversed_order < 10


@pytest.mark.claim(
    "06",
    "`log_loss` takes one row given as a list for a batch of binary labels, and with two classes that sum to one you "
    "cannot tell.",
)
def test_a_list_is_a_binary_batch() -> None:
    """Random rows of 2 to 10 classes; two classes that do not sum to one, for which you can tell."""
    for classes in (2, 3, 10):
        t, p = rows(classes, 30)
        listed = np.array([log_loss(a.astype(int), b) for a, b in zip(t, p, strict=True)])
        binary = -np.log(np.where(t == 1, p, 1 - p)).mean(1)
        true = by_row(t, p, 1e-300)
        assert np.allclose(listed, binary, rtol=1e-9)
        assert np.allclose(listed, true, rtol=1e-9) == (classes == 2)
    assert abs(log_loss([0, 1], [0.3, 0.6]) - -np.log(0.6)) > 0.05


@pytest.mark.claim(
    "06", "For a single probability, $-t \\log p$ costs nothing when t is 0: only the positives count."
)
def test_only_positives_count_without_the_class_axis() -> None:
    """Any probabilities for the negatives leave the loss where it is, and the constant 1 is its minimum."""
    labels = (RNG.random(200) < 0.2).astype(float)
    q = RNG.uniform(0.01, 0.99, 200)
    naive = -np.sum(labels * np.log(q))
    for other in (0.001, 0.5, 0.999):
        assert -np.sum(labels * np.log(np.where(labels == 0, other, q))) == naive
    assert -np.sum(labels * np.log(np.ones(200))) == 0 < naive


@pytest.mark.claim("06", "Keras divides each row by its sum, on top of the clip.")
def test_keras_divides_each_row() -> None:
    """Rows scaled by any factor cost the same in Keras, and in no other function of the chapter."""
    keras = frameworks.keras().metrics.categorical_crossentropy
    t, p = rows(4, 50)
    for factor in (0.1, 0.6, 3.0):
        assert np.allclose(keras(t, factor * p), keras(t, p), rtol=1e-5)
        assert np.abs(by_row(t, factor * p, 1e-7) - by_row(t, p, 1e-7)).min() > 0.01 or factor > 1
        with pytest.raises(ValueError, match="sum to one"):
            chapter()["per_example"](t, factor * p)


@pytest.mark.claim("06", "`NLLLoss` is Keras's `sparse_categorical_crossentropy` from log-probabilities")
def test_nll_loss_is_sparse_categorical_crossentropy() -> None:
    """Random rows of 2, 5 and 100 classes."""
    sparse = frameworks.keras().metrics.sparse_categorical_crossentropy
    for classes in (2, 5, 100):
        t, p = rows(classes, 40)
        y = t.argmax(1)
        nll = F.nll_loss(torch.from_numpy(p).log(), torch.from_numpy(y), reduction="none").numpy()
        assert np.allclose(sparse(y, p), nll, rtol=1e-5, atol=1e-6)


@pytest.mark.claim("06", "and `CrossEntropyLoss` of probabilities is a softmax too many.")
def test_cross_entropy_of_probabilities_is_a_softmax_too_many() -> None:
    """Random rows: not the loss of the probabilities, but of their softmax; of their logarithms it is right."""
    t, p = rows(5, 60)
    zt, y = torch.from_numpy(p), torch.from_numpy(t.argmax(1))
    right = by_row(t, p, 1e-300).mean()
    assert F.cross_entropy(zt.log(), y).item() == pytest.approx(right, rel=1e-12)
    twice = F.nll_loss(torch.softmax(zt, -1).log(), y).item()
    assert F.cross_entropy(zt, y).item() == pytest.approx(twice, rel=1e-12)
    assert abs(twice - right) > 0.1


@pytest.mark.claim(
    "06",
    "Two right programs may differ in their last bits. Compare with a tolerance that you can derive: relative where "
    "the loss takes probabilities as they are, absolute where it normalises.",
)
def test_the_two_tolerances_are_enough_and_neither_replaces_the_other() -> None:
    """Permuted sums of up to 1,000 classes stay within the bound; a normalised row breaks the relative bound only."""
    u = 2.0**-53
    unequal = 0
    for classes in (3, 30, 1000):
        t, p = RNG.dirichlet(np.ones(classes), (2, 40))
        order = RNG.permutation(classes)
        a, b = -(t * np.log(p)).sum(1), -(t * np.log(p))[:, order].sum(1)
        unequal += (a != b).sum()
        assert (np.abs(a - b) <= 2 * (classes + 3) * u * a).all()
    assert unequal > 0
    broken = 0
    for tiny in (1e-9, 1e-6):
        for k in range(50):
            p = np.array([1 - 3 * tiny, tiny, tiny * (1 + 0.01 * k), tiny])
            p /= p.sum()
            with mpmath.workdps(40):
                true = -mpmath.log(mpmath.mpf(p[0]))
                seen = F.cross_entropy(torch.from_numpy(p).log()[None], torch.tensor([0])).item()
                error = float(abs(mpmath.mpf(seen) - true))
            assert error <= 2 * 5 * u
            broken += error > 7 * u * float(true)
    assert broken > 0


@pytest.mark.claim(
    "06",
    "Take the truth from a third place, and plant the mistakes you know, to see that your test finds them.",
)
def test_certify_finds_each_planted_mistake_and_passes_what_is_right() -> None:
    """Twelve mistakes, seven of them not in the chapter, and three right losses."""
    certify, per_example = chapter()["certify"], chapter()["per_example"]
    wrong = {
        "bits": lambda t, p: per_example(t, p) / np.log(2),
        "sign": lambda t, p: -per_example(t, p),
        "mean": lambda t, p: np.full(len(t), per_example(t, p).mean()),
        "over K": lambda t, p: per_example(t, p) / t.shape[1],
        "smoothed": lambda t, p: per_example(0.9 * t + 0.1 / t.shape[1], p),
        "minus the entropy": lambda t, p: per_example(t, p) - per_example(t, t),
        "first class dropped": lambda t, p: -(t * np.log(np.maximum(p, 1e-300)))[:, 1:].sum(1),
        "clipped": lambda t, p: by_row(t, p, 1e-15),
        "swapped": lambda t, p: per_example(p, t),
        "argmax": lambda t, p: per_example(np.eye(t.shape[1])[t.argmax(1)], p),
        "0 inf": lambda t, p: -(t * np.log(p)).sum(-1),
        "single": lambda t, p: per_example(t, p).astype(np.float32),
    }
    for name, loss in wrong.items():
        assert set(certify(loss).values()) - {"exact", "rounded"}, name
    right = [per_example, xent.information.cross_entropy, lambda t, p: per_example(t, p)[::-1][::-1]]
    for loss in right:
        assert set(certify(loss).values()) <= {"exact", "rounded"}


@pytest.mark.claim("06", "Where the truth is infinite, swapped arguments pass, since both sides are infinite")
@pytest.mark.claim("06", "Only soft targets catch the loss that takes the argmax of its targets")
def test_what_each_group_of_certify_catches() -> None:
    """The groups that a swapped loss and an argmax of the targets survive."""
    certify, per_example = chapter()["certify"], chapter()["per_example"]
    assert certify(lambda t, p: per_example(p, t))["impossible"] == "exact"
    argmax = certify(lambda t, p: per_example(np.eye(t.shape[1])[t.argmax(1)], p))
    assert {name for name, grade in argmax.items() if grade == "wrong"} == {"soft"}


@pytest.mark.claim(
    "06", "None of the three refuses rows that do not sum to one: scikit-learn warns, the others normalise."
)
def test_who_does_what_with_bad_rows() -> None:
    """Rows that sum to a half: a warning, or the loss of the normalised row; and two refusals."""
    t, p = rows(4, 10)
    half = 0.5 * p
    with pytest.warns(UserWarning, match="sum to one"):
        assert log_loss(t, half) == pytest.approx(by_row(t, half, 2.0**-52).mean(), rel=1e-12)
    true = by_row(t, p, 1e-300)
    z = torch.from_numpy(half).log()
    assert np.allclose(F.cross_entropy(z, torch.from_numpy(t), reduction="none"), true)
    keras = frameworks.keras().metrics.categorical_crossentropy
    assert np.allclose(keras(t, half), true, rtol=1e-4)
    for refuses in (chapter()["per_example"], xent.information.cross_entropy):
        with pytest.raises(ValueError):
            refuses(t, half)
