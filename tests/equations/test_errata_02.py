"""What the sources of chapter 02 state wrongly or without its conditions: the old fails, the new passes.

The ids are those of the errata page: 2.x a note of August 2021 on cross-entropy with PyTorch, 3.x a post of
January 2025 from binary classification to distillation, 4.x François Fleuret's EE-559 lecture 5.1 (2018).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import optimize

import xent
from adversary import refuted

LOGITS = np.array([[-1.0, -3.0, 4.0], [-3.0, 3.0, -1.0]])
LABELS = np.array([0, 1])


@pytest.mark.erratum("3.4", "holds")
def test_softmax_lies_in_the_open_interval():
    """True: entries in [0, 1]; in (0, 1) for finite logits and K >= 2; floats round to the ends."""
    import mpmath

    with mpmath.workdps(400):
        small = mpmath.exp(-800) / (1 + mpmath.exp(-800))
        assert small > 0 and 1 - small < 1
    assert xent.softmax([0.0, 800.0]).tolist() == [0.0, 1.0]
    assert xent.log_softmax([0.0, 800.0])[0] == -800.0


@pytest.mark.erratum("4.1", "holds")
def test_the_one_hot_example():
    """True: the five labels 2, 1, 1, 3, 2 become these rows."""
    rows = np.eye(3, dtype=int)[np.array([2, 1, 1, 3, 2]) - 1]
    assert rows.tolist() == [[0, 1, 0], [1, 0, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0]]


def _minimiser_of_squared_error(targets: np.ndarray, truth: np.ndarray) -> np.ndarray:
    def expected(a: np.ndarray) -> float:
        return float(sum(truth[k] * ((a - targets[k]) ** 2).sum() for k in range(len(truth))))

    return np.asarray(optimize.minimize(expected, np.zeros(len(truth)), options={"gtol": 1e-9}).x)


@pytest.mark.erratum("4.2", "conditional")
def test_squared_error_is_minimised_by_the_posterior():
    """Old: squared error is conceptually wrong for classes. New: its minimiser is the posterior."""
    truth = np.array([0.5, 0.3, 0.2])
    assert np.allclose(_minimiser_of_squared_error(np.eye(3), truth), truth, atol=1e-6)
    with refuted("4.2: conceptually wrong, so that it is lowest at something other than the posterior"):
        assert not np.allclose(_minimiser_of_squared_error(np.eye(3), truth), truth, atol=0.01)
    # With targets of plus and minus one, as in the slide's plot, it is lowest at 2 pi - 1.
    assert np.allclose(_minimiser_of_squared_error(2 * np.eye(3) - 1, truth), 2 * truth - 1, atol=1e-6)
    # As Brier's score it is strictly proper: every other distribution has a larger expectation.
    rng = np.random.default_rng(1)

    def brier(q: np.ndarray) -> np.ndarray:
        return sum(truth[k] * ((q - np.eye(3)[k]) ** 2).sum(axis=-1) for k in range(3))

    assert (brier(rng.dirichlet(np.ones(3), size=2000)) > brier(truth)).all()
    # A loss that is conceptually wrong, for comparison: absolute error asks for the mode.
    others = rng.dirichlet(np.ones(3), size=2000)
    absolute = sum(truth[k] * np.abs(others - np.eye(3)[k]).sum(axis=-1) for k in range(3))
    at_truth = sum(truth[k] * np.abs(truth - np.eye(3)[k]).sum() for k in range(3))
    assert (absolute < at_truth).any()


@pytest.mark.erratum("4.3", "holds")
def test_squared_error_punishes_answers_that_are_too_right():
    """True: 32 at (5, -5) and 2 at (0, 0), where cross-entropy charges 4.5e-5 and log 2."""
    squared = {(u, v): (u - 1) ** 2 + (v + 1) ** 2 for u, v in [(5, -5), (0, 0), (1, -1), (-1, 1)]}
    assert squared == {(5, -5): 32, (0, 0): 2, (1, -1): 0, (-1, 1): 8}
    assert np.isclose(xent.cross_entropy([[5.0, -5.0]], [0]), 4.5398899e-5, rtol=1e-7)
    assert np.isclose(xent.cross_entropy([[0.0, 0.0]], [0]), np.log(2), rtol=1e-15)


@pytest.mark.erratum("4.4", "conditional")
def test_the_map_chain_needs_inputs_that_do_not_depend_on_the_weights():
    """Old: no condition. New: with inputs that depend on w, dropping p(x | w) moves the maximum."""
    # Two candidate weights; under w_0 the input 1 is rare, and the label is a little more probable.
    p_label = np.array([0.6, 0.5])  # P(y = 1 | x = 1, w)
    p_input = np.array([0.1, 0.9])  # P(x = 1 | w)
    prior = np.array([0.5, 0.5])
    assert np.argmax(prior * p_label) == 0
    with refuted("4.4: without a condition"):
        assert np.argmax(prior * p_label * p_input) == np.argmax(prior * p_label)
    same = np.array([0.4, 0.4])
    assert np.argmax(prior * p_label * same) == np.argmax(prior * p_label)


@pytest.mark.erratum("4.5", "holds")
def test_the_worked_example():
    """True: 2.5141, for CrossEntropyLoss and for LogSoftmax with NLLLoss."""
    f, labels = torch.tensor(LOGITS), torch.tensor(LABELS)
    composed = torch.nn.NLLLoss()(torch.nn.LogSoftmax(dim=1)(f), labels)
    for value in (
        xent.cross_entropy(LOGITS, LABELS),
        torch.nn.CrossEntropyLoss()(f, labels).item(),
        composed.item(),
    ):
        assert np.isclose(value, 2.51410092817090, rtol=1e-14)


@pytest.mark.erratum("4.7", "holds")
def test_precisely_with_default_arguments():
    """True: the mean is precisely CrossEntropyLoss, with its default arguments, as in the slide's call."""
    f, labels = torch.tensor(LOGITS), torch.tensor(LABELS)
    mean = xent.cross_entropy(LOGITS, LABELS)
    assert np.isclose(torch.nn.CrossEntropyLoss()(f, labels), mean, rtol=1e-14)
    weight = torch.tensor([1.0, 3.0, 1.0], dtype=torch.float64)
    for arguments in (
        {"reduction": "sum"},
        {"weight": weight},
        {"ignore_index": 0},
        {"label_smoothing": 0.1},
    ):
        assert not np.isclose(torch.nn.CrossEntropyLoss(**arguments)(f, labels), mean, rtol=1e-3)


@pytest.mark.erratum("4.8", "holds")
def test_the_softmax_matrix():
    """True: the printed matrix, to its five digits."""
    rows = [[-10.0, -10, 10, -5], [3, 0, 0, 0], [1, 2, 3, 4]]
    printed = [
        [2.0612e-09, 2.0612e-09, 1.0000e00, 3.0590e-07],
        [8.7005e-01, 4.3317e-02, 4.3317e-02, 4.3317e-02],
        [3.2059e-02, 8.7144e-02, 2.3688e-01, 6.4391e-01],
    ]
    assert np.allclose(xent.softmax(rows), printed, rtol=2e-5)


@pytest.mark.erratum("4.9", "slip")
def test_nllloss2d_is_deprecated():
    """Old: NLLLoss2d is in the list of criteria. New: it warns, and NLLLoss takes images itself."""
    with pytest.warns(FutureWarning, match="NLLLoss2d") as warned:
        old = torch.nn.NLLLoss2d()
    with refuted("4.9: one of the criteria, like the others"):
        assert not warned.list
    image = torch.log_softmax(torch.arange(24.0, dtype=torch.float64).reshape(1, 3, 2, 4).sin(), dim=1)
    labels = torch.tensor([[[0, 1, 2, 0], [1, 1, 0, 2]]])
    assert torch.equal(old(image, labels), torch.nn.NLLLoss()(image, labels))
