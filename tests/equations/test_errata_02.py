"""What the sources of chapter 02 state wrongly or without its conditions: the old fails, the new passes.

The ids are those of the errata page: 2.x a note of August 2021 on cross-entropy with PyTorch, 3.x a post of
January 2025 from binary classification to distillation, 4.x François Fleuret's EE-559 lecture 5.1 (2018).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import optimize, special, stats

import xent

LOGITS = np.array([[-1.0, -3.0, 4.0], [-3.0, 3.0, -1.0]])
LABELS = np.array([0, 1])


@pytest.mark.erratum("3.4")
def test_softmax_lies_in_the_open_interval():
    """True: entries in [0, 1]; in (0, 1) for finite logits and K >= 2; floats round to the ends."""
    import mpmath

    with mpmath.workdps(400):
        small = mpmath.exp(-800) / (1 + mpmath.exp(-800))
        assert small > 0 and 1 - small < 1
    assert xent.softmax([0.0, 800.0]).tolist() == [0.0, 1.0]
    assert xent.log_softmax([0.0, 800.0])[0] == -800.0


@pytest.mark.erratum("3.a")
def test_the_distribution_is_categorical_not_multinomial():
    """Old: a label is multinomial. New: with one draw; of several it counts them and has a coefficient."""
    p = np.array([0.2, 0.3, 0.5])
    labels = [0, 2, 2]
    of_labels = np.prod(p[labels])
    of_counts = stats.multinomial.pmf(np.bincount(labels, minlength=3), n=3, p=p)
    assert np.isclose(of_counts, 3 * of_labels)
    assert not np.isclose(of_counts, of_labels)
    assert np.isclose(stats.multinomial.pmf([0, 0, 1], n=1, p=p), p[2]), "of one draw the two agree"


@pytest.mark.erratum("3.b")
def test_the_last_row_of_the_softmax_has_its_own_parameters():
    """Old: the last numerator uses theta_1. New: theta_C; with theta_1 the rows need not sum to one."""
    x, theta = np.array([1.0, -2.0]), np.array([[0.3, 1.0], [0.5, -0.4], [-1.0, 0.2]])
    scores = np.exp(theta @ x)
    assert np.isclose((scores / scores.sum()).sum(), 1)
    printed = np.array([scores[0], scores[1], scores[0]]) / scores.sum()
    assert not np.isclose(printed.sum(), 1)
    # "Need not": untrained, with parameters of zero, they do.
    start = np.exp(np.zeros((3, 2)) @ x)
    assert np.isclose(np.array([start[0], start[1], start[0]]).sum() / start.sum(), 1)


@pytest.mark.erratum("4.1")
def test_the_one_hot_example():
    """True: the five labels 2, 1, 1, 3, 2 become these rows."""
    rows = np.eye(3, dtype=int)[np.array([2, 1, 1, 3, 2]) - 1]
    assert rows.tolist() == [[0, 1, 0], [1, 0, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0]]


def _minimiser_of_squared_error(targets: np.ndarray, truth: np.ndarray) -> np.ndarray:
    def expected(a: np.ndarray) -> float:
        return float(sum(truth[k] * ((a - targets[k]) ** 2).sum() for k in range(len(truth))))

    return np.asarray(optimize.minimize(expected, np.zeros(len(truth)), options={"gtol": 1e-9}).x)


@pytest.mark.erratum("4.2")
def test_squared_error_is_minimised_by_the_posterior():
    """Old: squared error is conceptually wrong for classes. New: its minimiser is the posterior."""
    truth = np.array([0.5, 0.3, 0.2])
    assert np.allclose(_minimiser_of_squared_error(np.eye(3), truth), truth, atol=1e-6)
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


@pytest.mark.erratum("4.3")
def test_squared_error_punishes_answers_that_are_too_right():
    """True: 32 at (5, -5) and 2 at (0, 0), where cross-entropy charges 4.5e-5 and log 2."""
    squared = {(u, v): (u - 1) ** 2 + (v + 1) ** 2 for u, v in [(5, -5), (0, 0), (1, -1), (-1, 1)]}
    assert squared == {(5, -5): 32, (0, 0): 2, (1, -1): 0, (-1, 1): 8}
    assert np.isclose(xent.cross_entropy([[5.0, -5.0]], [0]), 4.5398899e-5, rtol=1e-7)
    assert np.isclose(xent.cross_entropy([[0.0, 0.0]], [0]), np.log(2), rtol=1e-15)


@pytest.mark.erratum("4.4")
def test_the_map_chain_needs_inputs_that_do_not_depend_on_the_weights():
    """Old: no condition. New: with inputs that depend on w, dropping p(x | w) moves the maximum."""
    # Two candidate weights; under w_0 the input 1 is rare, and the label is a little more probable.
    p_label = np.array([0.6, 0.5])  # P(y = 1 | x = 1, w)
    p_input = np.array([0.1, 0.9])  # P(x = 1 | w)
    prior = np.array([0.5, 0.5])
    assert np.argmax(prior * p_label) == 0
    assert np.argmax(prior * p_label * p_input) == 1
    same = np.array([0.4, 0.4])
    assert np.argmax(prior * p_label * same) == np.argmax(prior * p_label)


@pytest.mark.erratum("4.b")
def test_the_evidence_may_be_dropped_and_the_softmaxs_denominator_may_not():
    """Old: Z for both. New: one is a constant; without the other the minimum may move or vanish."""
    w = np.linspace(-4, 4, 401)

    def minima(x: list[float], y: list[int], prior: float) -> tuple[float, float]:
        """Return where the loss is lowest, and where without the denominator."""
        z = np.stack([np.zeros((len(w), len(x))), w[:, None] * np.array(x)], axis=-1)
        chosen = z[:, np.arange(len(x)), y].sum(axis=1)
        without = prior * w**2 / 2 - chosen
        right = without + special.logsumexp(z, axis=-1).sum(axis=1)
        assert np.argmin(right + 1.7) == np.argmin(right), "the evidence"
        return float(w[np.argmin(right)]), float(w[np.argmin(without)])

    right, without = minima([1.0, 1.0, 1.0], [1, 0, 1], 1.0)
    assert abs(right - without) > 1
    # Without a prior the rest is linear, and lowest at the end of any grid; the loss is not.
    right, without = minima([1.0, 1.0, 1.0], [1, 0, 1], 0.0)
    assert abs(right) < 1 and without == w[-1]
    # On two opposite examples nothing moves.
    assert minima([1.0, -1.0], [1, 1], 1.0) == pytest.approx((0, 0), abs=1e-12)


@pytest.mark.erratum("4.a")
def test_the_chain_keeps_one_x_for_all_examples():
    """Old: f_{y_n}(x; w), one x. New: f_{y_n}(x_n; w), or every example has the same prediction."""
    x, w = np.array([[1.0], [-2.0]]), np.array([[0.5, -0.5, 1.0]])
    right = xent.cross_entropy(x @ w, LABELS)
    assert not np.isclose(right, xent.cross_entropy(np.tile(x[:1], (2, 1)) @ w, LABELS))


@pytest.mark.erratum("4.c")
def test_targets_of_plus_and_minus_one_ask_for_another_output():
    """Old: the plot's targets are +1 and -1, the text's 1 and 0. New: the first ask for 2 pi - 1."""
    truth = np.array([0.5, 0.3, 0.2])
    found = _minimiser_of_squared_error(2 * np.eye(3) - 1, truth)
    assert not np.allclose(found, truth, atol=0.05)
    assert np.allclose(found, 2 * truth - 1, atol=1e-6)


@pytest.mark.erratum("4.5")
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


@pytest.mark.erratum("4.7")
def test_precisely_with_default_arguments():
    """Old: the mean is precisely CrossEntropyLoss. New: with its default arguments."""
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


@pytest.mark.erratum("4.8")
def test_the_softmax_matrix():
    """True: the printed matrix, to its five digits."""
    rows = [[-10.0, -10, 10, -5], [3, 0, 0, 0], [1, 2, 3, 4]]
    printed = [
        [2.0612e-09, 2.0612e-09, 1.0000e00, 3.0590e-07],
        [8.7005e-01, 4.3317e-02, 4.3317e-02, 4.3317e-02],
        [3.2059e-02, 8.7144e-02, 2.3688e-01, 6.4391e-01],
    ]
    assert np.allclose(xent.softmax(rows), printed, rtol=2e-5)


@pytest.mark.erratum("4.9")
def test_nllloss2d_is_deprecated():
    """Old: NLLLoss2d is in the list of criteria. New: it warns, and NLLLoss takes images itself."""
    with pytest.warns(FutureWarning, match="NLLLoss2d"):
        old = torch.nn.NLLLoss2d()
    image = torch.log_softmax(torch.arange(24.0, dtype=torch.float64).reshape(1, 3, 2, 4).sin(), dim=1)
    labels = torch.tensor([[[0, 1, 2, 0], [1, 1, 0, 2]]])
    assert torch.equal(old(image, labels), torch.nn.NLLLoss()(image, labels))
