"""Chapter 6's claims on clips, means, inputs and tolerances, tried on other rows, sizes and formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import BernoulliNB
from sklearn.neighbors import KNeighborsClassifier

import xent
from adversary import Array, claim, defined, distributions, one_hot, rng
from xent_book import behaviours
from xent_book.exercises.certify import RIGHT

pytestmark = pytest.mark.xdist_group("frameworks")  # one worker imports TensorFlow, once
F = torch.nn.functional
U = 2.0**-53


@cache
def chapter() -> dict[str, Any]:
    parts = "Array", "Loss", "K", "cases", "truth", "grade"
    return defined("06_certify", "per_example", "certify", *parts)


def by_row(t: Array, p: Array, eps: float = 1e-300) -> Array:
    return -(t * np.log(np.clip(p, eps, 1 - eps))).sum(-1)


def keras_rows(t: Array, p: Array) -> Array:
    return np.asarray(behaviours.keras().metrics.categorical_crossentropy(t, p))


def nll_rows(y: Array, p: Array, dtype: torch.dtype = torch.int64) -> Array:
    return F.nll_loss(torch.from_numpy(p).log(), torch.from_numpy(y).to(dtype), reduction="none").numpy()


def rows(classes: int, count: int = 40, least: float = 0.01) -> tuple[Array, Array]:
    """One-hot targets, every class among them, and probabilities."""
    g = rng(classes)
    p = g.dirichlet(np.ones(classes), count) + least
    return np.eye(classes)[np.arange(count) % classes], p / p.sum(1, keepdims=True)


@claim("06", "An impossible event costs infinity or", on=(2, 3, 50, 1000), but_not={"1e-6": (3, 1e-6)})
def test_ceilings_are_logarithms_of_epsilons(classes: int, chance: float = 0.0) -> None:
    p = np.r_[chance, (1 - chance) * rng(1).dirichlet(np.ones(classes - 1))][None]
    t = one_hot([0], classes)
    ceilings = log_loss(t, p), keras_rows(t, p)[0], by_row(t, p, 1e-15)[0]
    assert ceilings == pytest.approx((52 * np.log(2), 7 * np.log(10), 15 * np.log(10)), rel=1e-6)
    assert [round(float(c), 1) for c in ceilings] == [36.0, 16.1, 34.5]
    assert nll_rows(np.array([0]), p)[0] == np.inf == xent.log_loss(p, [0])
    for eps in 10.0 ** rng(1).uniform(-300, -1, 20):
        both = by_row(t, p, eps)[0], xent.log_loss(p, [0], eps=eps)
        assert both == pytest.approx((np.log(1 / eps),) * 2, rel=1e-9)


@cache
def split(seed: int) -> list[Array]:
    """What two models of the digits give to the label, on a split into halves: nearest neighbour and naive Bayes."""
    x, y = load_digits(return_X_y=True)
    x1, x2, y1, y2 = train_test_split(x, y, test_size=0.5, random_state=seed)
    models = KNeighborsClassifier(1), BernoulliNB(binarize=8)
    return [m.fit(x1, y1).predict_proba(x2)[np.arange(len(y2)), y2] for m in models]


def order(seed: int, eps: float, share: float = 0.0) -> float:
    """How much the neighbour, smoothed by a share, costs beyond naive Bayes."""
    near, bayes = split(seed)
    costs = [-np.log(np.clip(p, eps, 1)).mean() for p in ((1 - share) * near + share / 10, bayes)]
    return float(costs[0] - costs[1])


@claim(
    "On this split, the nearest neighbour has the lower loss",
    "because the share matters as much",
    on=[((0, 1e-7), (0, 2.0**-52)), ((0, 0.0, 0.01), (0, 0.0, 1e-13))],
    but_not={
        "one epsilon": ((0, 1e-7), (0, 1e-7)),
        "one share": ((0, 0.0, 0.01), (0, 0.0, 0.001)),
        "any split": ((2, 1e-7), (2, 2.0**-52)),
    },
)
def test_the_ranking_of_the_digits(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    assert order(*one) < 0 < order(*other)


@claim(
    "If one row is given as a list, `log_loss` takes it for a batch",
    on=lambda: zip(*rows(2, 90), strict=True),
    but_not=lambda: {
        "1.1: the function agrees, where two probabilities do not sum to one": ([0, 1], [0.3, 0.6]),
        **{f"{k} classes": (rows(k)[0][0], rows(k)[1][0]) for k in (3, 10)},
    },
)
@pytest.mark.erratum("1.1", "conditional")
def test_a_list_is_a_binary_batch(t: Any, p: Any) -> None:
    """You cannot tell."""
    assert log_loss(np.asarray(t, int), p) == pytest.approx(by_row(np.array(t), np.array(p)), rel=1e-9)


SCALED: dict[str, Callable[[Array, Array], Any]] = {
    "Keras": keras_rows,
    "cross_entropy": lambda t, p: F.cross_entropy(*map(torch.from_numpy, (np.log(p), t)), reduction="none"),
    "nll_loss": lambda t, p: nll_rows(t.argmax(1), p),
    "the post": lambda t, p: by_row(t, p, 1e-7),
}


@claim(
    "Keras divides each row by its sum, on top of the clip.",
    "Neither they nor PyTorch refuses a row because of its sum",
    on=[
        (n, k, f) for n in ("scikit-learn", "Keras", "cross_entropy") for k in (2, 4, 100) for f in (0.1, 0.8)
    ]
    + [("Keras", k, 3.0) for k in (2, 4, 100)],
    but_not={
        "1.10: no other difference between Keras and the post's function": ("the post", 4, 0.5),
        "nll_loss": ("nll_loss", 4, 0.5),
        "a sum of one": ("scikit-learn", 4, 1.0),
    },
)
@pytest.mark.erratum("1.10", "conditional")
def test_who_does_what_with_bad_rows(name: str, classes: int, factor: float) -> None:
    """A warning and the loss of the row as it is, or no factor that shows; refused by the chapter's and by xent's."""
    t, p = rows(classes)
    if name == "scikit-learn":
        with pytest.warns(UserWarning, match="sum to one"):
            assert log_loss(t, factor * p) == pytest.approx(by_row(t, factor * p).mean(), rel=1e-12)
    else:
        np.testing.assert_allclose(SCALED[name](t, factor * p), by_row(t, p), rtol=1e-4, atol=1e-6)
    for refuses in (chapter()["per_example"], xent.information.cross_entropy):
        for bad in (factor * p, np.where(t == 0, np.nan, p)):
            with pytest.raises(ValueError):
                refuses(t, bad)


def likely(classes: int) -> Iterator[tuple[Array, Array]]:
    """Labels and rows of every kind whose label lies within Keras's clip."""
    y = rng(7).integers(0, classes, 40)
    for _, p in distributions(rng(7), classes, 40):
        mine = p[np.arange(40), y]
        if (within := (mine > 2e-7) & (mine < 1 - 2e-7)).any():
            yield y[within], p[within]


@claim(
    "it takes log-probabilities, whereas Keras takes probabilities",
    on=lambda: [(*pair, d) for k in (2, 5, 100) for pair in likely(k) for d in (torch.int64, torch.uint8)],
    but_not={
        "an impossible label, which Keras clips": (np.array([0]), np.array([[0.0, 1.0]])),
        "a row that does not sum to one": (np.array([0]), np.array([[0.2, 0.2, 0.2]])),
    },
)
@pytest.mark.erratum("1.16", "holds")
def test_nll_loss_is_sparse_crossentropy(y: Array, p: Array, d: torch.dtype = torch.int64) -> None:
    keras = behaviours.keras().metrics.sparse_categorical_crossentropy(y, p)
    np.testing.assert_allclose(keras, nll_rows(y, p, d), rtol=1e-4, atol=1e-6)


@claim(
    "Its targets are class indices, though not as `int32`",
    on=[((40, k, *size), torch.int32) for k in (2, 100) for size in ((), (4, 4))] + [((5,), torch.int32)],
    but_not={"int64": ((40, 5), torch.int64), "uint8, for rows": ((40, 5), torch.uint8)},
)
def test_which_indices_nll_loss_takes(shape: tuple[int, ...], refused: torch.dtype) -> None:
    log_p, y = torch.zeros(shape), torch.zeros(shape[:1] * (len(shape) > 1) + shape[2:])
    assert F.nll_loss(log_p, y.long()) == 0
    with pytest.raises(RuntimeError):
        F.nll_loss(log_p, y.to(refused))


FLAT = "uniform", "concentration 50"


@claim(
    "`CrossEntropyLoss` of probabilities applies one softmax too many.",
    on=lambda: [p for k in (2, 5, 100) for what, p in distributions(rng(8), k, 60) if what not in FLAT],
    but_not={"one probability for all": np.full((60, 5), 0.2)},
)
@pytest.mark.erratum("1.15", "holds")
def test_cross_entropy_of_probabilities_is_a_softmax_too_many(p: Array) -> None:
    """It is the loss of the softmax of the probabilities, and not theirs; of their logarithms it is right."""
    probs, y = torch.from_numpy(p), torch.arange(len(p)) % p.shape[1]
    right, twice = (F.nll_loss(q.log(), y).item() for q in (probs, probs.softmax(-1)))
    assert F.cross_entropy(probs.log(), y).item() == pytest.approx(right, rel=1e-12)
    assert F.cross_entropy(probs, y).item() == pytest.approx(twice, rel=1e-12)
    assert abs(twice - right) > 0.01


Digits = tuple[Array, Array]  # how far a right program is off, and what it may be off by


def beside(seen: Array, p: Array, part: float, relative: float) -> Digits:
    """The errors of losses -log p, with 40 digits, and a tolerance with an absolute and a relative part."""
    with mpmath.workdps(40):
        true = [-mpmath.log(x) for x in map(mpmath.mpf, p)]
        off = [float(mpmath.mpf(x) - t) for x, t in zip(seen, true, strict=True)]
    return np.array(off), part * U + relative * U * np.array(true, float)


def sums(classes: int, concentration: float = 1, factor: float = 1) -> Digits:
    """Permuted sums, against each other."""
    g = rng(9)
    t, p = g.dirichlet(np.full(classes, concentration), (2, 40)) + 1e-300
    a = -(t * np.log(p))
    return factor * a[:, g.permutation(classes)].cumsum(1)[:, -1] - a.sum(1), 2 * (classes + 3) * U * a.sum(1)


def normalised(classes: int, part: float = 1, relative: float = 1) -> Digits:
    """A program that divides by the sum: nearly certain answers, and unlikely ones."""
    p = np.r_[1 - 10.0 ** rng(9).uniform(-10, -5, 100), 10.0 ** rng(9).uniform(-250, -1, 60)][:, None]
    p = np.hstack([p, (1 - p) * rng(9).dirichlet(np.ones(classes - 1), len(p))])
    p /= p.sum(1, keepdims=True)
    seen = F.cross_entropy(torch.from_numpy(p).log(), torch.zeros(len(p), dtype=torch.long), reduction="none")
    return beside(seen.numpy(), p[:, 0], part * 2 * (classes + 1), relative * (classes + 3))


def complements(part: float = 1) -> Digits:
    """A program that forms 1 - q, here of 1 - q itself with more digits than a float has."""
    q = np.r_[10.0 ** rng(9).uniform(-18, 0, 200), -np.expm1(rng(9).uniform(-30, 0, 200))]
    with mpmath.workdps(40):
        return beside(-np.log(1 - q), np.array([1 - mpmath.mpf(b) for b in q]), part * 6, 5)


def single() -> Digits:
    """Rows that sum to one only within float32."""
    p = torch.softmax(torch.from_numpy(rng(9).normal(size=(40, 5))).float(), -1).double().numpy()
    return beside(-np.log(p[:, 0] / p.sum(1)), p[:, 0], 12, 8)


@claim(
    "Two correct programs may differ in their last bits. ... Compare with a tolerance that you can derive",
    on=lambda: (
        [sums(k, c) for k in (3, 30, 1000) for c in (0.3, 1.0, 20.0)]
        + [*map(normalised, (2, 5, 50)), complements()]
    ),
    but_not=lambda: {
        "1.c: right sums are equal floats": (sums(1000)[0], 0.0),
        "a class lost, at a millionth": sums(30, factor=1 + 1e-6),
        "the relative bound alone, for a program that normalises": normalised(5, part=0),
        "the absolute part alone, for an unlikely answer": normalised(2, relative=0),
        "the relative bound alone, for one that forms 1 - p": complements(part=0),
        "rows that sum to one only within float32": single(),
    },
)
@pytest.mark.claim("06", "relative where the loss takes probabilities as they are")
@pytest.mark.erratum("1.c", "conditional")
def test_the_two_tolerances_are_enough_and_neither_replaces_the_other(off: Array, allowed: Array) -> None:
    assert (np.abs(off) <= allowed).all()


def zero_times_inf(t: Array, p: Array) -> Array:
    return -(t * np.log(p)).sum(-1)


def per_example(t: Array, p: Array) -> Any:
    return chapter()["per_example"](t, p)


def of_argmax(t: Array, p: Array) -> Any:
    return per_example(one_hot(t.argmax(1), t.shape[1]), p)


MISTAKES: dict[str, Callable[[Array, Array], Any]] = {
    "bits": lambda t, p: per_example(t, p) / np.log(2),
    "sign": lambda t, p: -per_example(t, p),
    "mean": lambda t, p: np.full(len(t), per_example(t, p).mean()),
    "over K": lambda t, p: per_example(t, p) / t.shape[1],
    "smoothed": lambda t, p: per_example(0.9 * t + 0.1 / t.shape[1], p),
    "minus the entropy": lambda t, p: per_example(t, p) - per_example(t, t),
    "first class dropped": lambda t, p: -(t * np.log(np.maximum(p, 1e-300)))[:, 1:].sum(1),
    "clipped": lambda t, p: by_row(t, p, 1e-15),
    "swapped": lambda t, p: per_example(p, t),
    "argmax": of_argmax,
    "0 inf": zero_times_inf,
    "single": lambda t, p: per_example(t, p).astype(np.float32),
    "negative rows": lambda t, p: zero_times_inf(t, p) if (p < 0).any() else per_example(t, p),
}


@claim(
    "Take the true value from a third source",
    on=[per_example, xent.information.cross_entropy, lambda t, p: per_example(t, p)[::-1][::-1]],
    but_not=MISTAKES,
)
def test_certify_passes_what_is_right_and_finds_each_planted_mistake(loss: Callable[..., Any]) -> None:
    assert set(chapter()["certify"](loss).values()) <= {"exact", "rounded"}


@claim(
    "Among the groups of distributions, only the soft targets",
    on=[(of_argmax, "soft"), (zero_times_inf, "0 log 0")],
    but_not={
        "swapped arguments": (MISTAKES["swapped"], "soft"),
        "one clip": (MISTAKES["clipped"], "soft"),
    },
)
def test_what_each_group_of_certify_catches(loss: Callable[..., Any], group: str) -> None:
    grades = chapter()["certify"](loss).items()
    assert {name for name, grade in grades if grade not in ("exact", "rounded")} - {"bad rows"} == {group}


def keeps(loss: Callable[..., Any], z: Array, y: float) -> bool:
    """Whether the loss has twelve digits."""
    with mpmath.workdps(300):
        true = [float(mpmath.log1p(mpmath.exp(a)) - mpmath.mpf(y) * a) for a in map(mpmath.mpf, z)]
    with np.errstate(all="ignore"):
        return bool(np.allclose(loss(z, np.full(z.shape, y)), true, rtol=1e-12, atol=0))


@claim(
    "The logits lie between −600 and 600",
    "The right functions keep at least 12 digits on these inputs",
    on=[(size, y) for size in (600, 40, 1) for y in (0.0, 0.01, 0.5, 0.99, 1.0)],
    but_not={"a soft target closer to 1": (600, 1 - 1e-9)},
)
def test_the_right_functions_of_the_exercise_keep_twelve_digits(size: float, y: float) -> None:
    z = np.r_[-size, 0, size, rng(13).uniform(-size, size, 30)]
    assert all(keeps(loss, z, y) for _, loss in RIGHT)
    answers = [loss(rng(13).uniform(-40, 40, 100), np.full(100, 0.3)) for _, loss in RIGHT]
    assert any((a != answers[0]).any() for a in answers)
