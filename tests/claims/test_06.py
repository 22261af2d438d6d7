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
from adversary import Draw, distributions, one_hot, refuted, rng
from xent_book import behaviours

pytestmark = pytest.mark.xdist_group("frameworks")  # one worker imports TensorFlow, once
F = torch.nn.functional
CHAPTER = Path(__file__).parents[2] / "chapters" / "06_certify.ipynb"


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


def rows(g: Draw, classes: int, count: int = 200) -> tuple[np.ndarray, np.ndarray]:
    return one_hot(g.integers(0, classes, count), classes), g.dirichlet(np.ones(classes), count)


def keras_rows(t: np.ndarray, p: np.ndarray) -> np.ndarray:
    return np.asarray(behaviours.keras().metrics.categorical_crossentropy(t, p))


@pytest.mark.claim(
    "06",
    "An impossible event costs infinity, or with a clip $\\log(1/\\epsilon)$: 16.1 is 7 log 10, 34.5 is 15 log 10, and "
    "36.0 is 52 log 2.",
)
def test_ceilings_are_logarithms_of_epsilons() -> None:
    """The losses of an impossible event, for 2 to 1,000 classes, random other probabilities, and any epsilon.

    Would be refuted by a clipped one that costs another number; a possible one does. So does an impossible one without
    a clip, by a softmax of the probabilities: not every other number is an epsilon.
    """
    g = rng(1)

    def is_a_clip(cost: float, eps: float) -> None:
        assert cost == pytest.approx(np.log(1 / eps), rel=1e-9)

    def says(t: np.ndarray, p: np.ndarray) -> None:
        assert log_loss(t, p) == pytest.approx(52 * np.log(2), rel=1e-12)
        assert keras_rows(t, p)[0] == pytest.approx(7 * np.log(10), rel=1e-6)
        assert by_row(t, p, 1e-15)[0] == pytest.approx(15 * np.log(10), rel=1e-12)
        y = int(t.argmax())
        assert (
            F.nll_loss(torch.from_numpy(p).log(), torch.tensor([y])).item() == np.inf == xent.log_loss(p, [y])
        )

    for classes in (2, 3, 50, 1000):  # TensorFlow's first call takes the time
        p = np.zeros((1, classes))
        p[0, 1:] = g.dirichlet(np.ones(classes - 1))
        says(one_hot([0], classes), p)
        for eps in 10.0 ** g.uniform(-300, -1, 20):
            is_a_clip(by_row(one_hot([0], classes), p, eps)[0], eps)
        for eps in (1e-7, 1e-15, 2.0**-52, 2.0**-23):
            with refuted("a softmax of the probabilities"):
                is_a_clip(F.cross_entropy(torch.from_numpy(p), torch.tensor([0])).item(), eps)
        with refuted("an event of probability 1e-6"):
            p = p * (1 - 1e-6)
            p[0, 0] = 1e-6
            says(one_hot([0], classes), p)
    printed = [round(float(v), 1) for v in (7 * np.log(10), 15 * np.log(10), 52 * np.log(2))]
    assert printed == [16.1, 34.5, 36.0]


@pytest.mark.claim(
    "06",
    "A clipped mean contains $m \\log(1/\\epsilon)$, with $m$ the share of impossible events, so the $\\epsilon$ can "
    "decide which of two models looks better.",
)
def test_epsilon_ranks_two_models() -> None:
    """Random shares of impossible events, and every pair of epsilons in use: the mean rises by that, the order turns.

    Would be refuted by a share with another rise; a share of nothing leaves the order.
    """
    g = rng(2)

    def says(p_sure: np.ndarray, large: float, small: float) -> None:
        share = (p_sure == 0).mean()
        sure = [-np.log(np.clip(p_sure, e, 1 - e)).mean() for e in (large, small)]
        assert sure[1] - sure[0] == pytest.approx(share * np.log(large / small), rel=1e-9)
        mild = np.exp(-np.mean(sure))  # a model whose every row costs the same, between the two
        other = [-np.log(np.clip(np.full(len(p_sure), mild), e, 1 - e)).mean() for e in (large, small)]
        assert sure[0] < other[0] and sure[1] > other[1]

    for large, small in ((1e-7, 1e-15), (1e-7, 2.0**-52), (2.0**-23, 2.0**-52)):
        for share in g.uniform(0.001, 0.4, 5):
            p_sure = np.where(g.random(4000) < share, 0.0, g.uniform(0.5, 0.999, 4000))
            p_sure[0] = 0
            says(p_sure, large, small)
        with refuted("no impossible event"):
            says(np.full(4000, 0.9), large, small)


@pytest.mark.claim(
    "06",
    "On this split, the nearest neighbour has the lower loss with Keras's $\\epsilon$ and the higher loss with "
    "scikit-learn's.",
)
@pytest.mark.claim(
    "06",
    "Smooth such a model, with a share chosen on other data, because the choice of the share decides as much as that "
    "of $\\epsilon$;",
)
def test_the_ranking_of_the_digits_on_this_and_other_splits() -> None:
    """The chapter's split and nine random ones: the first order on all of them, its reversal on some, hence "this".

    A finding. Would be refuted by the split whose order stays; with one epsilon for both it does. The share of a
    smoothed nearest neighbour turns the order of this split as well.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from sklearn.naive_bayes import BernoulliNB
    from sklearn.neighbors import KNeighborsClassifier

    x, y = load_digits(return_X_y=True)
    g = rng(3)

    def losses(seed: int, eps: float, share: float = 0.0) -> list[float]:
        x1, x2, y1, y2 = train_test_split(x, y, test_size=0.5, random_state=seed)
        models = (m.fit(x1, y1).predict_proba(x2) for m in (KNeighborsClassifier(1), BernoulliNB(binarize=8)))
        near, bayes = (q[np.arange(len(y2)), y2] for q in models)
        return [-np.log(np.clip(p, eps, 1)).mean() for p in ((1 - share) * near + share / 10, bayes)]

    def says(keras: list[float], sklearn: list[float]) -> None:
        assert keras[0] < keras[1] and sklearn[0] > sklearn[1]

    says(losses(0, 1e-7), losses(0, 2.0**-52))
    says(losses(0, 0.0, 0.01), losses(0, 0.0, 1e-13))
    with refuted("one epsilon"):
        says(losses(0, 1e-7), losses(0, 1e-7))
    with refuted("one share"):
        says(losses(0, 0.0, 0.01), losses(0, 0.0, 0.001))
    reversed_order = 0
    for seed in g.integers(1, 10_000, 9):
        assert np.diff(losses(int(seed), 1e-7)) > 0
        reversed_order += bool(np.diff(losses(int(seed), 2.0**-52)) < 0)
    # Of 40 splits 25 are reversed; on the others a dozen impossible rows are too few.
    assert reversed_order > 0


@pytest.mark.claim(
    "06",
    "`log_loss` reads one row given as a list as a batch of binary labels, and with two probabilities that sum"
    " to one you cannot tell.",
)
@pytest.mark.erratum("1.1", "conditional")
@pytest.mark.erratum("1.6", "holds")
def test_a_list_is_a_binary_batch() -> None:
    """Random rows of 2 to 10 classes, the post's first row among them; two classes that do not sum to one.

    Would be refuted by a list with another loss than its binary one; with three classes you can tell.
    """
    g = rng(4)

    def says(t: np.ndarray, p: np.ndarray) -> None:
        """You cannot tell."""
        assert log_loss(t.astype(int), p) == pytest.approx(by_row(t, p, 1e-300), rel=1e-9)

    for classes in (2, 3, 10):
        for t, p in zip(*rows(g, classes, 30), strict=True):
            binary = -np.log(np.where(t == 1, p, 1 - p)).mean()
            assert log_loss(t.astype(int), p) == pytest.approx(binary, rel=1e-9)
            if classes == 2:
                says(t, p)
            else:
                with refuted("more classes"):
                    says(t, p)
    says(np.array([0, 1]), np.array([0.3, 0.7]))
    for p in g.uniform(0.1, 0.9, (20, 2)):
        with refuted("1.1: the function agrees with log_loss, where two probabilities do not sum to one"):
            says(np.array([0, 1]), p * np.array([1, 0.9]) if abs(p.sum() - 1) < 0.05 else p)


@pytest.mark.claim(
    "06", "For a single probability, $-t \\log p$ costs nothing when t is 0: only the positives count."
)
def test_only_positives_count_without_the_class_axis() -> None:
    """Any share of positives, and any probabilities for the negatives: the loss stays, and the constant 1 is best.

    Would be refuted by negatives that move it, as they do with the second logarithm.
    """
    g = rng(5)

    def says(loss: Callable[[np.ndarray, np.ndarray], float], labels: np.ndarray) -> None:
        q = g.uniform(0.01, 0.99, len(labels))
        before = loss(labels, q)
        for other in (1e-300, 0.5, 0.999, g.random(len(labels))):
            assert loss(labels, np.where(labels == 0, other, q)) == before
        assert loss(labels, np.ones(len(labels))) == 0 <= before

    for share in (0.0, 0.1, 0.5, 0.9):
        labels = (g.random(200) < share).astype(float)
        says(lambda t, q: -np.sum(t * np.log(q)), labels)
        with refuted("the binary loss"), np.errstate(all="ignore"):
            says(lambda t, q: -np.sum(t * np.log(q) + (1 - t) * np.log(1 - q)), labels)


@pytest.mark.claim("06", "Keras divides each row by its sum, on top of the clip.")
@pytest.mark.erratum("1.10", "conditional")
def test_keras_divides_each_row() -> None:
    """Rows of 2 to 100 classes, scaled by random factors: the same cost in Keras, and in no other function.

    Would be refuted by a factor that shows; the post says that Keras differs by its epsilon alone.
    """
    g = rng(6)

    def says(
        loss: Callable[[np.ndarray, np.ndarray], Any], t: np.ndarray, p: np.ndarray, factor: float
    ) -> None:
        np.testing.assert_allclose(loss(t, factor * p), loss(t, p), rtol=1e-4, atol=1e-6)

    for classes in (2, 4, 100):
        t, p = rows(g, classes, 50)
        p = (p + 0.01) / (p + 0.01).sum(axis=1, keepdims=True)
        for factor in (0.1, *g.uniform(0.2, 0.8, 3), 3.0):
            says(keras_rows, t, p, factor)
            with refuted("1.10: no other difference between Keras and the post's function"):
                says(lambda t, p: by_row(t, p, 1e-7), t, p, factor)
            with pytest.raises(ValueError, match="sum to one"):
                chapter()["per_example"](t, factor * p)


@pytest.mark.claim(
    "06",
    "`NLLLoss` is Keras's ... its division by the sum",
)
@pytest.mark.erratum("1.16", "holds")
def test_nll_loss_is_sparse_categorical_crossentropy() -> None:
    """Rows of every kind, up to 1,000 classes, int64 and uint8 targets in any float format.

    Would be refuted by a row within the clip that sums to one and costs another number. Beyond them the two differ.
    """
    g = rng(7)
    sparse = behaviours.keras().metrics.sparse_categorical_crossentropy

    def says(y: np.ndarray, p: np.ndarray, dtype: torch.dtype = torch.int64) -> None:
        nll = F.nll_loss(torch.from_numpy(p).log(), torch.from_numpy(y).to(dtype), reduction="none").numpy()
        np.testing.assert_allclose(sparse(y, p), nll, rtol=1e-4, atol=1e-6)

    for classes in (2, 5, 100):
        for what, p in distributions(g, classes, 40):
            y = g.integers(0, classes, 40)
            mine = p[np.arange(40), y]
            inside = (mine > 2e-7) & (mine < 1 - 2e-7)
            if inside.any():
                says(y[inside], p[inside])
                says(y[inside], p[inside], torch.uint8)
            if what in ("zeros", "one-hot", "1e-300") and (mine < 1e-8).any():
                with refuted("an impossible label, which Keras clips"):
                    says(y, p)
    with refuted("a row that does not sum to one, which Keras divides"):
        says(np.array([0]), np.array([[0.2, 0.2, 0.2]]))
    with refuted("the mean, which the module takes by default"):
        y, p = np.array([0, 1]), torch.tensor([[0.2, 0.8], [0.4, 0.6]])
        np.testing.assert_allclose(
            torch.nn.NLLLoss()(p.log(), torch.from_numpy(y)), sparse(y, p.numpy()), rtol=1e-4
        )
    for dtype in (torch.int16, torch.int32, torch.float32, torch.bool):
        with pytest.raises(RuntimeError):
            F.nll_loss(torch.zeros(2, 3), torch.tensor([0, 1]).to(dtype))


@pytest.mark.claim("06", "it takes log-probabilities, and class indices as `int64` or, for rows, `uint8`.")
@pytest.mark.erratum("1.16", "holds")
def test_uint8_indices_are_for_rows() -> None:
    """One row, many rows and images of 2 to 100 classes, each with indices of every integer type.

    Would be refuted by rows that `uint8` does not serve, or by images that it does, which would need no condition.
    """
    g = rng(15)

    def takes(shape: tuple[int, ...], dtype: torch.dtype) -> bool:
        log_p = torch.from_numpy(g.normal(size=shape)).log_softmax(min(1, len(shape) - 1))
        y = torch.from_numpy(g.integers(0, 2, shape[:1] * (len(shape) > 1) + shape[2:]))
        try:
            seen = F.nll_loss(log_p, y.to(dtype)).item()
        except RuntimeError:
            return False
        return seen == pytest.approx(F.nll_loss(log_p, y).item(), rel=1e-12)

    def says(shape: tuple[int, ...], dtype: torch.dtype) -> None:
        assert takes(shape, dtype)

    for classes in (2, 5, 100):
        for shape in ((classes,), (1, classes), (40, classes)):
            says(shape, torch.int64)
            says(shape, torch.uint8)
            for dtype in (torch.int8, torch.int16, torch.int32, torch.bool):
                with refuted("other types"):
                    says(shape, dtype)
        for image in ((3, classes, 4), (3, classes, 4, 4)):
            says(image, torch.int64)
            with refuted("images with uint8"):
                says(image, torch.uint8)


@pytest.mark.claim(
    "06", "from log-probabilities where Keras takes probabilities and both clips and normalises them"
)
def test_the_sparse_loss_clips_and_normalises_in_an_order_of_its_backend() -> None:
    """Rows of weights, 2 to 100 classes, on TensorFlow and on PyTorch: the clip shows, and no factor does.

    Would be refuted by a backend that leaves out one of the two. That the clip comes first, as on TensorFlow, is
    refuted on PyTorch by the weights 3, 1 and 0.
    """
    sparse = behaviours.keras().metrics.sparse_categorical_crossentropy
    from keras.src.backend.torch.nn import sparse_categorical_crossentropy as on_torch

    g = rng(16)

    def tensorflow(y: np.ndarray, p: np.ndarray) -> np.ndarray:
        return np.asarray(sparse(y, p))

    def torch_backend(y: np.ndarray, p: np.ndarray) -> np.ndarray:
        return np.asarray(on_torch(torch.from_numpy(y), torch.from_numpy(p)))

    def clip_first(y: np.ndarray, p: np.ndarray) -> np.ndarray:
        p = np.clip(p, 1e-7, 1 - 1e-7)
        return -np.log(p[np.arange(len(y)), y] / p.sum(axis=1))

    def clip_last(y: np.ndarray, p: np.ndarray) -> np.ndarray:
        p = np.clip(p / p.sum(axis=1, keepdims=True), 1e-7, 1 - 1e-7)
        return -np.log(p[np.arange(len(y)), y])

    def says(
        of: Callable[..., np.ndarray], expected: Callable[..., np.ndarray], y: np.ndarray, p: np.ndarray
    ) -> None:
        np.testing.assert_allclose(of(y, p), expected(y, p), rtol=1e-6, atol=1e-9)

    for classes in (2, 3, 100):
        p = np.r_[g.dirichlet(np.ones(classes), 20), g.exponential(size=(20, classes))]
        p[::4, 0] = 0
        y = np.r_[0, g.integers(0, classes, len(p) - 1)]
        says(tensorflow, clip_first, y, p)
        says(torch_backend, clip_last, y, p)
    y, p = np.array([0]), np.array([[3.0, 1.0, 0.0]])
    with refuted("the clip first, on PyTorch"):
        says(torch_backend, clip_first, y, p)
    with refuted("the clip last, on TensorFlow"):
        says(tensorflow, clip_last, y, p)


@pytest.mark.claim(
    "06",
    "and `CrossEntropyLoss` of probabilities applies one softmax too many.",
)
@pytest.mark.erratum("1.15", "holds")
def test_cross_entropy_of_probabilities_is_a_softmax_too_many() -> None:
    """Rows of every kind: not the loss of the probabilities, but of their softmax; of their logarithms it is right.

    Would be refuted by rows for which it is the loss; those of one probability for all are.
    """
    g = rng(8)

    def says(p: np.ndarray, y: np.ndarray) -> None:
        probs, label = torch.from_numpy(p), torch.from_numpy(y)
        right = F.nll_loss(probs.log(), label).item()
        twice = F.nll_loss(torch.softmax(probs, -1).log(), label).item()
        assert F.cross_entropy(probs.log(), label).item() == pytest.approx(right, rel=1e-12)
        assert F.cross_entropy(probs, label).item() == pytest.approx(twice, rel=1e-12)
        assert abs(twice - right) > 0.01

    for classes in (2, 5, 100):
        for what, p in distributions(g, classes, 60):
            if what == "uniform":
                with refuted("one probability for all"):
                    says(p, g.integers(0, classes, 60))
            elif what != "concentration 50":
                says(p, g.integers(0, classes, 60))


@pytest.mark.claim(
    "06",
    "Two correct programs may differ in their last bits. Compare with a tolerance that you can derive: "
    "relative where the loss takes probabilities as they are, with an absolute part added where it normalises "
    "or forms $1 - p$.",
)
@pytest.mark.erratum("1.c", "conditional")
def test_the_two_tolerances_are_enough_and_neither_replaces_the_other() -> None:
    """Permuted sums of 3 to 1,000 classes, rows of every concentration; normalised rows of nearly certain answers.

    Binary losses too, whose 1 - p is rounded: near 0 they need the absolute part, though nothing is normalised.

    Would be refuted by a right program beyond its tolerance. The post compares with `==`, which refuses some.
    """
    u, g = 2.0**-53, rng(9)

    def says(a: np.ndarray, b: np.ndarray, allowed: np.ndarray) -> None:
        assert (np.abs(a - b) <= allowed).all()

    unequal = 0
    for classes in (3, 30, 1000):
        for concentration in (0.3, 1.0, 20.0):
            t, p = g.dirichlet(np.full(classes, concentration), (2, 40)) + 1e-300
            order = g.permutation(classes)
            a, b = -(t * np.log(p)).sum(1), -(t * np.log(p))[:, order].cumsum(1)[:, -1]
            says(a, b, 2 * (classes + 3) * u * a)
            unequal += (a != b).sum()
            with refuted("one class lost, at a millionth"):
                says(a, b * (1 + 1e-6), 2 * (classes + 3) * u * a)
    with refuted("1.c: right sums are equal floats"):
        assert unequal == 0
    t, p = np.array([[5e-324, 1.0]]), np.array([[0.6, 1.0]])
    with mpmath.workdps(400):
        ratio = float(-(t * np.log(p)).sum() / (-mpmath.mpf(5e-324) * mpmath.log(mpmath.mpf(0.6))))
    with refuted("a product that underflows"):
        says(np.array([ratio]), np.ones(1), np.full(1, 5 * u))
    absolute, truths = [], []
    for tiny in 10.0 ** g.uniform(-10, -5, 100):
        p = np.array([1 - 3 * tiny, tiny, tiny * 1.1, tiny])
        p /= p.sum()
        with mpmath.workdps(40):
            truth = -mpmath.log(mpmath.mpf(p[0]))
            seen = F.cross_entropy(torch.from_numpy(p).log()[None], torch.tensor([0])).item()
            absolute.append(float(abs(mpmath.mpf(seen) - truth)))
            truths.append(float(truth))
    near = np.array(absolute), np.zeros(100)
    says(*near, 2 * 5 * u + 7 * u * np.array(truths))
    with refuted("the relative bound alone, for a program that normalises"):
        says(*near, 7 * u * np.array(truths))
    for classes in (2, 5, 50):
        for concentration in (0.02, 1.0):
            p = g.dirichlet(np.full(classes, concentration), 40) + 1e-300
            p[0] = [1e-250, *g.dirichlet(np.ones(classes - 1))]
            p /= p.sum(axis=1, keepdims=True)
            label = np.r_[0, g.integers(0, classes, 39)]
            seen = -np.log(p[np.arange(40), label] / p.sum(axis=1))
            with mpmath.workdps(40):
                true = [-mpmath.log(mpmath.mpf(a)) for a in p[np.arange(40), label]]
                off = np.array([float(abs(mpmath.mpf(a) - b)) for a, b in zip(seen, true, strict=True)])
            far, absolute_part = (off, np.zeros(40)), np.full(40, 2 * (classes + 1) * u)
            says(*far, absolute_part + (classes + 3) * u * np.array(true, float))
            if classes == 2:
                with refuted("the absolute part alone, for an unlikely answer"):
                    says(*far, absolute_part)
    q = np.r_[10.0 ** g.uniform(-18, 0, 200), -np.expm1(g.uniform(-30, 0, 200))]
    seen = -np.log(1 - q)
    with mpmath.workdps(40):
        true = [-mpmath.log1p(-mpmath.mpf(b)) for b in q]
        off = np.array([float(abs(mpmath.mpf(a) - b)) for a, b in zip(seen, true, strict=True)])
    zero, relative = np.zeros(len(q)), 5 * u * np.array(true, float)
    says(off, zero, 6 * u + relative)
    with refuted("the relative bound alone, for a program that forms 1 - p"):
        says(off, zero, relative)
    p = torch.softmax(torch.from_numpy(g.normal(size=(40, 5))).float(), -1).double()
    seen = -torch.log(p[:, 0] / p.sum(1)).numpy()
    with refuted("rows that sum to one only within float32"):
        says(seen, -p[:, 0].log().numpy(), 12 * u + 8 * u * seen)


@pytest.mark.claim(
    "06",
    "Take the true value from a third source, and plant the mistakes you know, to see that your test finds "
    "them.",
)
def test_certify_finds_each_planted_mistake_and_passes_what_is_right() -> None:
    """Thirteen mistakes, eight of them not in the chapter, and three right losses.

    Advice, run on the chapter's own test. Would be refuted by a planted mistake that it passes.
    """
    certify, per_example = chapter()["certify"], chapter()["per_example"]

    def says(loss: Callable[..., Any]) -> None:
        assert set(certify(loss).values()) <= {"exact", "rounded"}

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
        "negative rows": lambda t, p: -(t * np.log(p)).sum(-1) if (p < 0).any() else per_example(t, p),
    }
    for name, loss in wrong.items():
        with refuted(name):
            says(loss)
    for right in (per_example, xent.information.cross_entropy, lambda t, p: per_example(t, p)[::-1][::-1]):
        says(right)


@pytest.mark.claim(
    "06",
    "Where the true loss of a hard target is infinite, swapped arguments pass, since both losses are infinite",
)
@pytest.mark.claim(
    "06",
    "Among distributions, only soft targets catch the loss that takes the argmax of its targets, and only a "
    "zero under a zero target catches the loss that computes 0 · ∞",
)
def test_what_each_group_of_certify_catches() -> None:
    """The groups of `certify`, random rows whose label is impossible, and distributions of every kind.

    Would be refuted by a hard target at which the swap or the argmax shows, or a distribution without a zero under a
    zero target at which 0 · ∞ does. A row with a negative entry shows it too, though it may sum to one.
    """
    certify, per_example = chapter()["certify"], chapter()["per_example"]
    g = rng(11)
    assert certify(lambda t, p: per_example(p, t))["impossible"] == "exact"

    def says(t: np.ndarray, p: np.ndarray) -> None:
        assert np.isposinf(per_example(t, p)).all() and np.isposinf(per_example(p, t)).all()

    for classes in (2, 3, 10):
        y = g.integers(0, classes, 20)
        p = np.where(one_hot(y, classes) == 1, 0, g.random((20, classes)) + 0.01)
        p /= p.sum(axis=1, keepdims=True)
        says(one_hot(y, classes), p)
        with refuted("soft targets, all of them possible, beside a model sure of one"):
            says(np.full((1, classes), 1 / classes), one_hot([1], classes))

    def caught(groups: set[str]) -> None:
        argmax = certify(lambda t, p: per_example(one_hot(t.argmax(1), t.shape[1]), p))
        assert {name for name, grade in argmax.items() if grade == "wrong"} == groups

    caught({"soft"})
    with refuted("none"):
        caught(set())

    def passes(loss: Callable[..., Any], t: np.ndarray, p: np.ndarray) -> None:
        assert chapter()["grade"](loss, t, p) == "exact"

    def argmax(t: np.ndarray, p: np.ndarray) -> Any:
        return per_example(one_hot(t.argmax(1), t.shape[1]), p)

    def zero_times_inf(t: np.ndarray, p: np.ndarray) -> Any:
        return -(t * np.log(p)).sum(-1)

    for classes in (2, 3, 50):
        for _, p in distributions(g, classes, 10):
            t = one_hot(g.integers(0, classes, 10), classes)
            passes(argmax, t, p)
            soft = np.maximum(g.dirichlet(np.ones(classes), 10), 1e-6)
            for targets in (t, soft / soft.sum(axis=1, keepdims=True)):
                inside = ~((targets == 0) & (p == 0)).any(axis=1)
                if inside.any():
                    passes(zero_times_inf, targets[inside], p[inside])
    with refuted("soft targets"):
        passes(argmax, np.array([[0.3, 0.7]]), np.array([[0.4, 0.6]]))
    with refuted("a zero under a zero target"):
        passes(zero_times_inf, np.array([[0.0, 1.0]]), np.array([[0.0, 1.0]]))
    with np.errstate(invalid="ignore"):
        negative = zero_times_inf(np.array([[1.0, 0.0]]), np.array([[2.0, -1.0]]))
    assert np.isnan(negative).all()  # the row sums to one, and has no zero


@pytest.mark.claim("06", "With distributions as targets PyTorch computes 0 · ∞ too.")
def test_pytorch_computes_zero_times_infinity() -> None:
    """A zero under a zero target, among 2 to 100 classes, in float32 and float64: `nan`, and none with class indices.

    Would be refuted by a finite loss. That `nan` comes from 0 · ∞ alone is refuted by a negative entry, in a row that
    has no zero: there it comes from the logarithm.
    """
    g = rng(17)

    def of_distributions(t: np.ndarray, p: np.ndarray, dtype: torch.dtype) -> np.ndarray:
        z = torch.from_numpy(p).to(dtype).log()
        return F.cross_entropy(z, torch.from_numpy(t).to(dtype), reduction="none").numpy()

    def says(t: np.ndarray, p: np.ndarray, dtype: torch.dtype) -> None:
        assert np.isnan(of_distributions(t, p, dtype)).all()

    for classes in (2, 3, 100):
        p = np.c_[np.zeros(10), g.dirichlet(np.ones(classes - 1), 10)]
        y = g.integers(1, classes, 10)
        for dtype in (torch.float32, torch.float64):
            says(one_hot(y, classes), p, dtype)
            logs = torch.from_numpy(p).to(dtype).log()
            assert F.cross_entropy(logs, torch.from_numpy(y), reduction="none").isfinite().all()
            with refuted("no zero"):
                says(one_hot(y, classes), (p + 0.01) / (p + 0.01).sum(axis=1, keepdims=True), dtype)
            negative = np.where(p == 0, -1.0, 2.0 / (classes - 1))

            def only_from_zeros(p: np.ndarray, y: np.ndarray = y, dtype: torch.dtype = dtype) -> None:
                seen = of_distributions(one_hot(y, p.shape[1]), p, dtype)
                assert not np.isnan(seen[(p != 0).all(axis=1)]).any()

            only_from_zeros(p)
            with refuted("a negative entry"):
                only_from_zeros(negative)


@pytest.mark.claim(
    "06",
    "None of the three refuses a row for its sum: scikit-learn warns, Keras normalises, and so does "
    "PyTorch's `cross_entropy`, though not its `nll_loss`.",
)
def test_who_does_what_with_bad_rows() -> None:
    """Rows of 2 to 10 classes and sums from 0.2 to 2: a warning, or the loss of the normalised row; two refusals.

    Would be refuted by a sum that is refused, or treated otherwise; `nll_loss` takes the row as it is.
    """
    g = rng(12)

    def says(
        loss: Callable[[np.ndarray, np.ndarray], Any], t: np.ndarray, p: np.ndarray, total: float
    ) -> None:
        np.testing.assert_allclose(loss(t, total * p), by_row(t, p, 1e-300), rtol=1e-4, atol=1e-6)

    def of_torch(loss: Callable[..., torch.Tensor]) -> Callable[[np.ndarray, np.ndarray], Any]:
        return lambda t, p: loss(torch.from_numpy(p).log(), torch.from_numpy(t.argmax(1)), reduction="none")

    for classes in (2, 4, 10):
        t, p = rows(g, classes, 10)
        t[: min(classes, 10)] = np.eye(classes)[:10]
        p = (p + 0.01) / (p + 0.01).sum(axis=1, keepdims=True)
        for total in (*g.uniform(0.2, 0.9, 3), min(2, 1 / p.max())):  # no entry above 1
            with pytest.warns(UserWarning, match="sum to one"):
                assert log_loss(t, total * p) == pytest.approx(
                    by_row(t, total * p, 2.0**-52).mean(), rel=1e-12
                )
            with pytest.raises(ValueError, match="greater than 1"):  # for the entry, not for the sum
                log_loss(t, 1.5 * p / p.max(axis=1, keepdims=True))
            says(of_torch(F.cross_entropy), t, p, total)
            says(keras_rows, t, p, total)
            with refuted("nll_loss"):
                says(of_torch(F.nll_loss), t, p, total)
            for refuses in (chapter()["per_example"], xent.information.cross_entropy):
                for bad in (total * p, np.where(t == 0, np.nan, p)):
                    with pytest.raises(ValueError):
                        refuses(t, bad)


@pytest.mark.claim(
    "06",
    "The logits lie between −600 and 600; the targets are 0, 1 or between 0.01 and 0.99.",
)
@pytest.mark.claim(
    "06",
    "The right functions keep at least 12 digits on these inputs, but not all of them agree in the last digit.",
)
def test_the_right_functions_of_the_exercise_keep_twelve_digits() -> None:
    """The exercise's right functions, at logits and targets of the whole range.

    Would be refuted by a loss with fewer digits: with a target of 1 - 1e-9 the form with the maximum keeps seven.
    """
    from xent_book.exercises.certify import RIGHT

    g = rng(13)

    def says(z: np.ndarray, y: np.ndarray) -> None:
        with mpmath.workdps(300):
            pairs = zip(map(mpmath.mpf, z), map(mpmath.mpf, y), strict=True)
            true = np.array([float(mpmath.log1p(mpmath.exp(a)) - b * a) for a, b in pairs])
        for _, loss in RIGHT:
            np.testing.assert_allclose(loss(z, y), true, rtol=1e-12, atol=0)

    for size in (600, 40, 1):
        z = np.r_[-size, 0, size, g.uniform(-size, size, 30)]
        for y in (0.0, 0.01, 0.99, 1.0):
            says(z, np.full(len(z), y))
        says(z, g.uniform(0.01, 0.99, len(z)))
    with refuted("a soft target closer to 1"):
        says(np.array([600.0]), np.array([1 - 1e-9]))
    z, y = g.uniform(-40, 40, 100), g.uniform(0.01, 0.99, 100)
    answers = [loss(z, y) for _, loss in RIGHT]
    assert any((a != answers[0]).any() for a in answers)


@pytest.mark.claim(
    "06",
    "Large logits of both signs expose the infinite loss and the clip and, if the tolerance is relative, the "
    "digits lost on a certain and right answer.",
)
def test_large_logits_find_infinities_clips_and_lost_digits() -> None:
    """Each of the exercise's wrong functions of these kinds, at moderate logits and at large ones of both signs.

    Would be refuted by such a function that agrees at large logits too. A function that overflows does: below 709
    nothing has overflowed yet, so overflow is not among what these logits find.
    """
    from xent_book.exercises.certify import RIGHT, WRONG

    g = rng(14)
    true, wrong = dict(RIGHT)["xent"], dict(WRONG)
    hard, large = np.repeat([0.0, 1.0], 50), np.r_[g.uniform(40, 600, 50), 600]

    def agrees(
        loss: Callable[..., Any], z: np.ndarray, y: np.ndarray, rtol: float, atol: float = 0.0
    ) -> bool:
        with np.errstate(all="ignore"):
            return bool(np.allclose(loss(z, y), true(z, y), rtol=rtol, atol=atol))

    def says(loss: Callable[..., Any]) -> None:
        z = np.r_[large, -large]
        assert not all(agrees(loss, z, np.full(len(z), y), rtol=1e-12) for y in (0.0, 0.3, 1.0))

    names = ("from probabilities", "from clipped probabilities", "log(1 + exp(-|z|)) without log1p")
    for name in names:
        says(wrong[name])
        assert agrees(wrong[name], g.uniform(-3, 3, 100), hard, rtol=1e-9)  # moderate logits miss it
    lost = wrong[names[2]]
    assert agrees(
        lost, np.r_[large, -large], np.repeat([1.0, 0.0], 51), rtol=1e-12, atol=1e-12
    )  # not relative

    def overflows(z: np.ndarray, y: np.ndarray) -> Any:
        return y * np.log1p(np.exp(-z)) + (1 - y) * np.log1p(np.exp(z))

    with np.errstate(over="ignore"):
        assert np.isinf(overflows(np.array([720.0]), np.array([0.3]))).all()
    with refuted("a function that overflows, beyond these logits"):
        says(overflows)
