"""xent.scoring: rules against hand-written ones, what they elicit against closed forms, every refusal."""

from __future__ import annotations

import itertools
import math
import re
from functools import partial
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

import xent
from adversary import refuted
from xent import denominators, elicitation, scoring
from xent.elicitation import elicited, expected_score

PARTIALS: dict[str, Any] = {
    "log": scoring.log_score,
    "brier": scoring.brier_score,
    "spherical": scoring.spherical_score,
    "linear": scoring.linear_score,
    "zero_one": scoring.zero_one_score,
    "clipped": partial(scoring.clipped_log_score, eps=0.1),
    "focal": partial(scoring.focal_loss, gamma=1.5),
    "smoothed": partial(scoring.smoothed_log_score, label_smoothing=0.2),
    "weighted": partial(scoring.weighted_log_score, weight=[1.0, 0.5, 2.0]),
}
STRICT = [scoring.log_score, scoring.brier_score, scoring.spherical_score]
each_rule = pytest.mark.parametrize("rule", PARTIALS.values(), ids=PARTIALS)


def by_hand(name: str, q: list[float], y: int) -> mpmath.mpf:
    """One cost in 30 digits, from the definition."""
    with mpmath.workdps(30):
        q = [mpmath.mpf(x) for x in q]
        hot = [mpmath.mpf(k == y) for k in range(len(q))]
        if name == "log":
            return -mpmath.log(q[y])
        if name == "brier":
            return mpmath.fsum((a - b) ** 2 for a, b in zip(q, hot, strict=True))
        if name == "spherical":
            return 1 - q[y] / mpmath.sqrt(mpmath.fsum(a * a for a in q))
        if name == "linear":
            return mpmath.fsum(abs(a - b) for a, b in zip(q, hot, strict=True)) / 2
        if name == "zero_one":
            return mpmath.mpf(q[y] < max(q))
        if name == "clipped":
            return -mpmath.log(min(max(q[y], mpmath.mpf(0.1)), 1 - mpmath.mpf(0.1)))
        if name == "focal":
            return -((1 - q[y]) ** mpmath.mpf(1.5)) * mpmath.log(q[y])
        if name == "smoothed":
            eps = mpmath.mpf(0.2)
            return -mpmath.fsum(
                ((1 - eps) * h + eps / len(q)) * mpmath.log(a) for a, h in zip(q, hot, strict=True)
            )
        assert name == "weighted"
        return -[1, 0.5, 2][y] * mpmath.log(q[y])


@pytest.mark.parametrize("gamma", [0.01, 0.5, 2.0, 20.0])
def test_the_focal_report_understates_a_class_more_likely_than_not(gamma: float) -> None:
    rng = np.random.default_rng(1)
    for classes in (2, 3, 30, 300):
        q = rng.dirichlet(np.full(classes, 0.9 / classes), 500)
        p = scoring.invert_focal(q, gamma=gamma)
        likely = p.max(axis=-1) > 0.5
        assert likely.any()
        assert (q.max(axis=-1) <= p.max(axis=-1) + 1e-12)[likely].all()
    # Of many classes, none of them likely, the first may be overstated.
    q = np.array([0.04, *np.full(299, 0.96 / 299)])
    assert scoring.invert_focal(q, gamma=gamma)[0] < q[0]


@pytest.mark.parametrize("name", PARTIALS)
def test_each_rule_is_its_formula(name: str) -> None:
    rng = np.random.default_rng(0)
    q = np.vstack(
        [rng.dirichlet(np.ones(3), size=20), [[0.02, 0.03, 0.95], [1 / 3, 1 / 3 + 1e-9, 1 / 3 - 1e-9]]]
    )
    y = rng.integers(0, 3, size=len(q))
    want = [float(by_hand(name, row.tolist(), int(k))) for row, k in zip(q, y, strict=True)]
    np.testing.assert_allclose(PARTIALS[name](q, y), want, rtol=2e-13, atol=1e-15)


@each_rule
def test_shapes_and_dtypes(rule: Any) -> None:
    q = np.random.default_rng(1).dirichlet(np.ones(3), size=(4, 5))
    y = np.arange(20).reshape(4, 5) % 3
    cost = rule(q, y)
    assert cost.shape == (4, 5) and cost.dtype == np.float64
    assert rule(q.astype(np.float32), y).dtype == np.float32
    assert rule(q.astype(np.float16), y).dtype == np.float32
    one = rule(q[1, 2], y[1, 2])
    assert np.ndim(one) == 0 and one == cost[1, 2]
    assert rule(np.empty((0, 3)), np.empty(0, int)).shape == (0,)


@each_rule
@pytest.mark.parametrize(
    ("probs", "outcome", "error", "message"),
    [
        ([0.5, 0.4, 0.2], 0, ValueError, "probs: .*sum to one"),
        ([1.5, -0.5, 0.0], 0, ValueError, "probs: .*\\[0, 1\\]"),
        ([np.nan, 0.5, 0.5], 0, ValueError, "probs: .*nan"),
        ([0.5, 0.3, 0.2], 3, ValueError, "targets: .*\\[0, 3\\), got 3"),
        ([0.5, 0.3, 0.2], -1, ValueError, "targets: .*got -1"),
        ([0.5, 0.3, 0.2], [0, 1], ValueError, "targets: expected shape \\(\\).*got \\(2,\\)"),
        ([[0.5, 0.3, 0.2]], 0, ValueError, "targets: expected shape \\(1,\\)"),
        ([0.5, 0.3, 0.2], 0.0, TypeError, "targets: expected integer"),
        ([0.5, 0.3, 0.2], True, TypeError, "targets: expected integer"),
        ([0.5, 0.3, 0.2], np.ma.masked_equal(0, 1), TypeError, "targets: expected an array without a mask"),
        (["a", "b", "c"], 0, TypeError, "probs: "),
        (1.0, 0, ValueError, "probs: "),
    ],
)
def test_what_a_rule_refuses(rule: Any, probs: Any, outcome: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        rule(probs, outcome)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (partial(scoring.clipped_log_score, eps=0.0), ValueError, "eps: .*got 0.0"),
        (partial(scoring.clipped_log_score, eps=0.5), ValueError, "eps: "),
        (partial(scoring.focal_loss, gamma=-1.0), ValueError, "gamma: .*got -1.0"),
        (partial(scoring.focal_loss, gamma=np.inf), ValueError, "gamma: "),
        (partial(scoring.focal_loss, gamma="2"), TypeError, "gamma: "),
        (partial(scoring.smoothed_log_score, label_smoothing=1.1), ValueError, "label_smoothing: "),
        (
            partial(scoring.weighted_log_score, weight=[1.0, 2.0]),
            ValueError,
            "weight: expected shape \\(3,\\)",
        ),
        (partial(scoring.weighted_log_score, weight=[1.0, -2.0, 1.0]), ValueError, "weight: .*got -2.0"),
    ],
)
def test_what_parameters_are_refused(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call([0.5, 0.3, 0.2], 0)


SMALL = "eps: expected a number in (0, 1/2), got 0.5"
HALF_OPEN = "label_smoothing: expected a number in [0, 1), got 1.0"
GAMMA = "gamma: expected a finite number >= 0, got -1.0"
TWO_WEIGHTS = "weight: expected shape (3,), one weight a class, got (2,)"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            partial(scoring.clipped_log_score, targets=0, eps=0.5),
            "eps: expected a number in (0, 1/2), got 0.5",
        ),
        (partial(scoring.focal_loss, targets=0, gamma=-1.0), GAMMA),
        (partial(scoring.invert_focal, gamma=-1.0), GAMMA),
        (partial(scoring.invert_focal, gamma=np.inf), GAMMA.replace("-1.0", "inf")),
        (partial(scoring.weighted_log_score, targets=0, weight=[1.0, 2.0]), TWO_WEIGHTS),
        (partial(scoring.invert_weighting, weight=[1.0, 2.0]), TWO_WEIGHTS),
        (partial(scoring.invert_smoothing, label_smoothing=1.0), HALF_OPEN),
        (partial(scoring.invert_smoothing, label_smoothing=-0.5), HALF_OPEN.replace("1.0", "-0.5")),
    ],
)
def test_a_refusal_says_what_was_expected(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call([0.5, 0.3, 0.2])


@pytest.mark.parametrize(
    "call",
    [
        scoring.invert_focal,
        partial(scoring.invert_smoothing, label_smoothing=0.1),
        partial(scoring.invert_weighting, weight=[1.0, 1.0]),
    ],
)
def test_a_report_to_invert_is_a_distribution(call: Any) -> None:
    with pytest.raises(ValueError, match=r"^probs: expected probabilities in \[0, 1\], got -0.5 at index 1$"):
        call([0.5, -0.5])
    with pytest.raises(ValueError, match=r"^probs: expected probabilities that sum to one along axis 0 "):
        call([0.5, 0.4])
    with pytest.raises(ValueError, match=r"^probs: .* sum to one along axis 1 .* at index 2$"):
        call([[0.5, 0.5], [0.25, 0.75], [0.5, 0.25]])


def test_parameters_that_need_not_be_given() -> None:
    q = [0.7, 0.2, 0.1]
    assert scoring.clipped_log_score([1.0, 0.0], 1) == -np.log(1e-7)
    assert scoring.clipped_log_score([1.0, 0.0], 0) == -np.log(1 - 1e-7)
    focal = partial(scoring.focal_loss, q, 1)
    assert focal() == focal(gamma=2.0) != focal(gamma=3.0)
    inverse = partial(scoring.invert_focal, q)
    assert inverse().tolist() == inverse(gamma=2.0).tolist() != inverse(gamma=3.0).tolist()
    assert focal(gamma=0) == scoring.log_score(q, 1)
    np.testing.assert_allclose(inverse(gamma=0), q, rtol=1e-15)


def test_the_edge_of_the_simplex() -> None:
    assert scoring.smoothed_log_score([1.0, 0.0, 0.0], 1, label_smoothing=1.0) == np.inf
    assert scoring.smoothed_log_score([1.0, 0.0, 0.0], 0, label_smoothing=1.0) == np.inf
    q = [1.0, 0.0, 0.0]
    assert scoring.log_score(q, 0) == 0 and scoring.log_score(q, 1) == np.inf
    assert not np.signbit(scoring.log_score(q, 0)), "prints as 0.0, not as -0.0"
    assert scoring.focal_loss(q, 0) == 0 and scoring.focal_loss(q, 2) == np.inf
    assert scoring.focal_loss([1 + 5e-7, 0.0], 0, gamma=0.5) == 0, "a sum within the tolerance is no nan"
    assert scoring.brier_score(q, 1) == 2 and scoring.spherical_score(q, 1) == 1
    assert scoring.clipped_log_score(q, 1, eps=0.25) == np.log(4)
    assert scoring.smoothed_log_score(q, 0, label_smoothing=0.1) == np.inf
    assert scoring.smoothed_log_score(q, 0, label_smoothing=0.0) == 0
    assert np.isclose(scoring.smoothed_log_score([0.5, 0.5], 0, label_smoothing=1.0), np.log(2))
    assert scoring.weighted_log_score(q, 1, weight=[1.0, 0.0, 1.0]) == 0
    np.testing.assert_allclose(scoring.zero_one_score([[1 / 3] * 3, [0.4, 0.4, 0.2]], [2, 2]), [2 / 3, 1])


def test_the_log_scores_are_the_losses_of_the_package() -> None:
    rng = np.random.default_rng(2)
    logits, y = rng.normal(size=(50, 4)), rng.integers(0, 4, size=50)
    q = xent.softmax(logits)
    loss = partial(xent.cross_entropy, logits, y, reduction="none")
    np.testing.assert_allclose(scoring.log_score(q, y), loss(), rtol=1e-12)
    smoothed = scoring.smoothed_log_score(q, y, label_smoothing=0.3)
    np.testing.assert_allclose(smoothed, loss(label_smoothing=0.3), rtol=1e-12)
    w = np.array([0.5, 1.0, 2.0, 0.0])
    np.testing.assert_allclose(scoring.weighted_log_score(q, y, weight=w), loss(weight=w), rtol=1e-12)


# --------------------------------------------------------------------------------------- expected scores


def test_the_expected_score_is_a_mean_over_outcomes() -> None:
    rng = np.random.default_rng(3)
    p, q = rng.dirichlet(np.ones(3), size=(2, 7))
    for rule in PARTIALS.values():
        want = [sum(p[n, k] * rule(q[n], k) for k in range(3)) for n in range(7)]
        np.testing.assert_allclose(expected_score(rule, p, q), want, rtol=1e-14)
        one = [sum(p[0, k] * rule(q[n], k) for k in range(3)) for n in range(7)]
        np.testing.assert_allclose(expected_score(rule, p[0], q), one, rtol=1e-14)


def test_what_cannot_happen_costs_nothing() -> None:
    assert np.isclose(expected_score(scoring.log_score, [0.5, 0.5, 0.0], [0.5, 0.5, 0.0]), np.log(2))
    assert expected_score(scoring.log_score, [0.5, 0.25, 0.25], [0.5, 0.5, 0.0]) == np.inf
    laws = [[0.5, 0.5, 0.0], [0.5, 0.25, 0.25]]
    costs = expected_score(scoring.log_score, laws, [[0.5, 0.5, 0.0]] * 2)
    assert np.isclose(costs[0], np.log(2)) and costs[1] == np.inf


@pytest.mark.parametrize("call", [partial(expected_score, probs=[0.5, 0.5]), elicited])
def test_what_a_broken_rule_meets(call: Any) -> None:
    with pytest.raises(TypeError, match="rule: expected a scoring rule"):
        call("log", target_probs=[0.5, 0.5])
    with pytest.raises(ValueError, match="rule: expected costs that are numbers, got nan"):
        call(lambda q, y: np.full(np.shape(y), np.nan), target_probs=[0.5, 0.5])
    with pytest.raises(ValueError, match="rule: expected costs of shape"):
        call(lambda q, y: np.asarray(q), target_probs=[0.5, 0.5])
    with pytest.raises(ValueError, match="target_probs: expected probabilities that sum to one"):
        call(scoring.log_score, target_probs=[0.5, 0.6])


def test_one_law_for_many_reports_of_any_shape() -> None:
    q = np.random.default_rng(7).dirichlet(np.ones(2), size=(4, 3))
    p = np.array([0.25, 0.75])
    cost = expected_score(scoring.log_score, p, q)
    assert cost.shape == (4, 3)
    np.testing.assert_allclose(cost, -(p * np.log(q)).sum(axis=-1), rtol=1e-14)
    shapes = r"^target_probs: expected shape \(2,\) or \(4, 3, 2\), that of probs, got \(3,\)$"
    with pytest.raises(ValueError, match=shapes):
        expected_score(scoring.log_score, [0.5, 0.25, 0.25], q)


def test_what_expected_score_refuses() -> None:
    with pytest.raises(ValueError, match="target_probs: expected shape \\(2,\\) or \\(3, 2\\)"):
        expected_score(scoring.log_score, [0.5, 0.3, 0.2], np.full((3, 2), 0.5))
    with pytest.raises(ValueError, match="probs: expected probabilities"):
        expected_score(scoring.log_score, [0.5, 0.5], [0.5, 0.6])


# ---------------------------------------------------------------------------------------- what is elicited


LAWS = [[0.7, 0.3], [0.5, 0.3, 0.2], [0.97, 0.02, 0.01], [0.7, 0.3, 0.0], [0.1, 0.2, 0.3, 0.4], [1.0, 0.0]]


@pytest.mark.parametrize("p", LAWS, ids=str)
@pytest.mark.parametrize("rule", STRICT)
def test_strictly_proper_rules_elicit_p(rule: Any, p: list[float]) -> None:
    np.testing.assert_allclose(elicited(rule, p), p, atol=1e-7)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(2, 6).flatmap(
        lambda k: st.tuples(*[st.lists(st.floats(0.01, 1), min_size=k, max_size=k)] * 2)
    )
)
def test_no_report_beats_p_under_a_proper_rule(pair: tuple[list[float], list[float]]) -> None:
    p, q = (np.array(x) / np.sum(x) for x in pair)
    for rule in STRICT:
        gap = expected_score(rule, p, q) - expected_score(rule, p, p)
        assert gap >= -1e-15
        if np.abs(p - q).max() > 1e-4:
            assert gap > 0
    assert (
        expected_score(scoring.zero_one_score, p, p) <= expected_score(scoring.zero_one_score, p, q) + 1e-15
    )


def focal_root(p: float, gamma: float) -> float:
    """The zero of the derivative of the expected binary focal loss, by bisection."""

    def slope(q: float) -> float:
        def of_one(x: float) -> float:
            return gamma * (1 - x) ** (gamma - 1) * np.log(x) - (1 - x) ** gamma / x

        return p * of_one(q) - (1 - p) * of_one(1 - q)

    return float(brentq(slope, 1e-9, 1 - 1e-9, xtol=1e-14))


@pytest.mark.parametrize(
    ("p", "gamma", "known"), [(0.8, 2.0, 0.626615), (0.6, 2.0, 0.537802), (0.8, 1.0, 0.685831)]
)
def test_focal_loss(p: float, gamma: float, known: float) -> None:
    found = elicited(partial(scoring.focal_loss, gamma=gamma), [p, 1 - p])[0]
    assert abs(found - focal_root(p, gamma)) < 1e-7
    assert round(focal_root(p, gamma), 6) == known


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("p", LAWS, ids=str)
def test_focal_loss_is_inverted(p: list[float], gamma: float) -> None:
    q = elicited(partial(scoring.focal_loss, gamma=gamma), p)
    # Near a corner the report barely depends on p, so the way back magnifies what the search leaves.
    np.testing.assert_allclose(scoring.invert_focal(q, gamma=gamma), p, atol=1e-5)
    assert (np.argsort(q, kind="stable") == np.argsort(p, kind="stable")).all(), "the order survives"


def test_the_inverse_of_focal_at_its_ends() -> None:
    assert scoring.invert_focal([1.0, 0.0, 0.0]).tolist() == [1.0, 0.0, 0.0]
    assert np.isfinite(scoring.invert_focal([1 - 1e-12, 1e-12], gamma=200.0)).all(), "(1 - q)^200 underflows"
    # A sum within the tolerance: what is above one counts as one.
    for gamma in (0.0, 0.5, 2.0):
        assert scoring.invert_focal([1 + 4e-7, 0.0], gamma=gamma).tolist() == [1.0, 0.0]
        assert (scoring.invert_focal([1.0, 5e-7], gamma=gamma)[1] == 0) == (gamma > 0)
    softmax = np.float32([1.0, 1e-8, 0.0])  # gamma = 0 has nothing to undo
    np.testing.assert_array_equal(scoring.invert_focal(softmax, gamma=0.0), softmax)
    assert scoring.invert_focal(np.float32([0.5, 0.5])).dtype == np.float32
    with mpmath.workdps(40):
        q = [mpmath.mpf(x) for x in (0.9, 0.07, 0.03)]
        raw = [x / ((1 - x) ** 3 - 3 * (1 - x) ** 2 * x * mpmath.log(x)) for x in q]
        want = [float(x / mpmath.fsum(raw)) for x in raw]
    np.testing.assert_allclose(scoring.invert_focal([0.9, 0.07, 0.03], gamma=3.0), want, rtol=1e-13)


INVERSES = {
    "focal": partial(scoring.invert_focal, gamma=2.0),
    "smoothing": partial(scoring.invert_smoothing, label_smoothing=0.03),
    "weighting": partial(scoring.invert_weighting, weight=[1.0, 2.0, 5.0]),
}


@pytest.mark.parametrize("inverse", INVERSES.values(), ids=INVERSES)
def test_an_inverse_takes_each_report_by_itself(inverse: Any) -> None:
    q = np.random.default_rng(6).dirichlet(np.ones(3), size=(4, 5)) * 0.97 + 0.01
    certain = np.array([0.01, 0.98, 0.01]) if inverse is INVERSES["smoothing"] else np.array([0.0, 1.0, 0.0])
    q[1, 2] = certain
    p = inverse(q)
    assert p.shape == q.shape
    np.testing.assert_allclose(p.sum(axis=-1), 1, rtol=1e-15)
    for index in np.ndindex(4, 5):
        np.testing.assert_allclose(p[index], inverse(q[index]), rtol=1e-15, atol=0)
    np.testing.assert_allclose(p[1, 2], [0, 1, 0], atol=1e-15)
    for dtype, tolerance in ((np.float32, 1e-6), (np.float16, 1e-2)):
        got = inverse(np.array([[0.25, 0.25, 0.5]], dtype))
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, inverse([[0.25, 0.25, 0.5]]), rtol=tolerance)


def test_smoothing_and_its_inverse() -> None:
    for p in (np.array([0.7, 0.3, 0.0]), np.array([0.25, 0.75]), np.array([0.1, 0.2, 0.3, 0.4])):
        for eps in (0.0, 0.1, 0.6):
            q = (1 - eps) * p + eps / p.size
            rule = partial(scoring.smoothed_log_score, label_smoothing=eps)
            np.testing.assert_allclose(elicited(rule, p), q, atol=1e-7)
            np.testing.assert_allclose(scoring.invert_smoothing(q, label_smoothing=eps), p, atol=1e-15)
    with pytest.raises(ValueError, match=r"probs: .*label_smoothing / K = 0.05.*got 0.01 at index 1"):
        scoring.invert_smoothing([0.99, 0.01], label_smoothing=0.1)
    with pytest.raises(ValueError, match="label_smoothing: "):
        scoring.invert_smoothing([0.5, 0.5], label_smoothing=1.0)


def test_the_class_below_its_floor_is_named_and_not_one_on_it() -> None:
    with pytest.raises(ValueError, match=r"label_smoothing / K = 0.05, which .*, got 0.01 at index 1$"):
        scoring.invert_smoothing([0.05, 0.01, 0.94], label_smoothing=0.15)
    assert scoring.invert_smoothing([0.05, 0.05, 0.9], label_smoothing=0.15).min() < 1e-16


@pytest.mark.parametrize("dtype", ["float16", ">f4", "float32", "float64"])
@pytest.mark.parametrize("classes", [2, 1000, 128_256])
def test_the_floor_of_a_class_among_many_is_small_and_still_one(classes: int, dtype: str) -> None:
    """With 8 epsilons allowed to each, 128,256 classes of zero passed, and the first one's p was 1.11."""
    invert = partial(scoring.invert_smoothing, label_smoothing=0.1)
    q = np.full(classes, 0.1 / classes)
    q[0] += 0.9
    p = invert(q.astype(dtype))
    assert abs(p.sum(dtype=np.float64) - 1) < (5e-3 if dtype == "float16" else 1e-6)
    q[1:] *= 0.75
    q[0] += 1 - q.sum()
    with pytest.raises(ValueError, match=r"probs: .*label_smoothing / K = .* at index 1$"):
        invert(q.astype(dtype))


def test_weights_and_their_inverse() -> None:
    p, w = np.array([0.5, 0.3, 0.2]), np.array([1.0, 2.0, 5.0])
    q = w * p / (w * p).sum()
    np.testing.assert_allclose(elicited(partial(scoring.weighted_log_score, weight=w), p), q, atol=1e-7)
    np.testing.assert_allclose(scoring.invert_weighting(q, weight=w), p, rtol=1e-14)
    with pytest.raises(ValueError, match=r"weight: expected weights > 0, got 0\.0 at index 1"):
        scoring.invert_weighting([0.5, 0.5], weight=[1.0, 0.0])


def test_weights_whose_quotient_no_float_holds() -> None:
    weight = [1e-300, 1e300, 1.0]
    np.testing.assert_array_equal(scoring.invert_weighting(np.eye(3), weight=weight), np.eye(3))
    q = np.array([0.25, 0.75])
    for small, large in ((1e-300, 1e300), (5e-324, 1.7e308)):
        p = scoring.invert_weighting(q, weight=[small, large])
        assert p.tolist() == [1.0, 0.0]
        near = scoring.invert_weighting(q, weight=[small, 3 * small])
        np.testing.assert_allclose(near, [0.5, 0.5], rtol=1e-15)


@pytest.mark.parametrize(
    ("p", "sizes", "batch_size", "weight"),
    [
        ([0.95, 0.05], [1.0, 20.0], 4, [1.0, 20.0]),
        ([0.4, 0.3, 0.2, 0.1], [1.0, 2.0, 4.0, 8.0], 5, None),
        ([0.4, 0.3, 0.2, 0.1], [0.3, 0.3, 1e3, 7.0], 3, [0.0, 1.0, 2.0, 5.0]),
        ([0.5, 0.0, 0.5], [1e-9, 3.0, 1e9], 3, None),
        ([1.0], [2.5], 7, [3.0]),
    ],
)
def test_the_learnt_distribution_is_an_average_over_all_batches(
    p: list[float], sizes: list[float], batch_size: int, weight: list[float] | None
) -> None:
    law, d = np.array(p), np.array(sizes)
    a = np.ones_like(d) if weight is None else np.array(weight)
    expected = np.zeros_like(law)
    for batch in itertools.product(range(len(p)), repeat=batch_size):
        items = list(batch)
        np.add.at(expected, items, law[items].prod() * a[items] / math.fsum(d[items]))
    expected /= expected.sum()
    found = denominators.learnt_distribution(p, sizes, batch_size, weight=weight)
    # Quadrature to 12 digits or more; the enumeration adds up to 4^5 terms.
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    # The unit of the sizes and that of the weights do not matter, nor does the order of the items.
    scaled = denominators.learnt_distribution(p, d * 1e150, batch_size, weight=a * 1e-200)
    np.testing.assert_allclose(scaled, expected, rtol=1e-12)
    back = denominators.learnt_distribution(law[::-1], d[::-1], batch_size, weight=a[::-1])
    np.testing.assert_allclose(back[::-1], expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("p", "size", "batch_size", "rtol"),
    [
        # The smallest item is rare: one minus what is gone would have lost its share's digits.
        (0.0010372947906894209, 1.1e10, 3, 1e-14),
        # Only batches without a large item count: rounding grows with the power of B - 1.
        (0.25, 7e273, 400, 1e-12),
        (0.001, 1e280, 90, 1e-12),
    ],
)
def test_the_learnt_distribution_of_two_sizes_far_apart(
    p: float, size: float, batch_size: int, rtol: float
) -> None:
    law, d = [p, 1 - p], [1.0, size]
    with mpmath.workdps(50):
        small, large = mpmath.mpf(law[0]), mpmath.mpf(law[1])
        others = [
            (mpmath.binomial(batch_size - 1, j) * large**j * small ** (batch_size - 1 - j), j)
            for j in range(batch_size)
        ]
        tilted = [
            share * sum(chance / (own + j * size + (batch_size - 1 - j)) for chance, j in others)
            for share, own in zip((small, large), d, strict=True)
        ]
        expected = [float(t / sum(tilted)) for t in tilted]
    np.testing.assert_allclose(denominators.learnt_distribution(law, d, batch_size), expected, rtol=rtol)


def test_weighted_means_of_batches_and_their_inverse() -> None:
    rng = np.random.default_rng(0)
    for batch_size in (1, 2, 16, 10**9):
        shares, w = rng.dirichlet(np.ones(4)), np.exp(rng.standard_normal(4))
        p = rng.dirichlet(np.ones(4), size=(5, 2))  # by context; the batch's other labels have the shares
        q = denominators.learnt_distribution(p, w, batch_size, weight=w, others=shares)
        back = scoring.invert_weighting(q, weight=w, batch_size=batch_size, class_probs=shares)
        np.testing.assert_allclose(back, p, rtol=1e-12)
        plain = scoring.invert_weighting(q, weight=w)
        assert (np.abs(plain - p).max() < 1e-7) == (batch_size == 10**9)  # of order one over the batch size
    # A batch of one divides its weight out: the report is the truth, and stays what it is.
    q = scoring.invert_weighting([0.9, 0.1], weight=[1.0, 9.0], batch_size=1, class_probs=[0.5, 0.5])
    np.testing.assert_allclose(q, [0.9, 0.1], rtol=1e-15)
    assert q.dtype == np.float64
    half = scoring.invert_weighting(
        np.array([0.9, 0.1], np.float32), weight=[1.0, 9.0], batch_size=4, class_probs=[0.5, 0.5]
    )
    assert half.dtype == np.float32


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (
            lambda: denominators.learnt_distribution([0.5, 0.5], [1e-300, 1.0], 2),
            ValueError,
            "sizes: expected a ratio of at most 1e290, got 1e-300 and 1",
        ),
        (
            lambda: denominators.learnt_distribution([0.5, 0.5], [1.0, 0.0]),
            ValueError,
            "sizes: expected sizes > 0, got 0.0 at index 1",
        ),
        (lambda: denominators.learnt_distribution([0.5, 0.5], [1.0]), ValueError, "sizes: expected shape"),
        (
            lambda: denominators.learnt_distribution([0.5, 0.4], [1, 2]),
            ValueError,
            "probs: expected probabilities",
        ),
        (
            lambda: denominators.learnt_distribution([1.0], [1.0], 0),
            ValueError,
            "batch_size: expected an integer >= 1, got 0",
        ),
        (
            lambda: denominators.learnt_distribution([1.0], [1.0], 1.5),
            TypeError,
            "batch_size: expected an integer",
        ),
        (
            lambda: denominators.learnt_distribution([[1.0, 0.0]], [1, 2]),
            TypeError,
            "others: expected the distribution",
        ),
        (
            lambda: denominators.learnt_distribution([1.0, 0.0], [1, 2], others=[1.0]),
            ValueError,
            r"others: expected shape \(2,\)",
        ),
        (
            lambda: denominators.learnt_distribution([1.0, 0.0], [1, 2], weight=[0.0, 1.0]),
            ValueError,
            "weight: expected a positive weight on an outcome that happens, got none",
        ),
        (
            lambda: scoring.invert_weighting([0.5, 0.5], weight=[1, 2], batch_size=4),
            TypeError,
            "class_probs: expected the classes' shares, from which batches were drawn, got None",
        ),
        (
            lambda: scoring.invert_weighting([0.5, 0.5], weight=[1, 2], batch_size=4, class_probs=[0.5, 0.6]),
            ValueError,
            "class_probs: expected probabilities",
        ),
        (
            lambda: scoring.invert_weighting(
                [0.5, 0.5], weight=[5e-324, 1e308], batch_size=4, class_probs=[0.5, 0.5]
            ),
            ValueError,
            "weight: expected a ratio of at most 1e290",
        ),
    ],
)
def test_arguments_about_divisors(call: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        call()


def test_there_are_only_so_many_classes_to_search_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elicitation, "_CLASSES", 3)
    np.testing.assert_allclose(elicited(scoring.log_score, [0.5, 0.3, 0.2]), [0.5, 0.3, 0.2], atol=1e-7)
    message = r"^target_probs: expected at most 3 classes to search over, got shape \(1, 4\)$"
    with pytest.raises(ValueError, match=message):
        elicited(scoring.log_score, [[0.25] * 4])


@pytest.mark.parametrize("dtype", ["U1", "complex128", "M8[s]"])
def test_a_rule_returns_real_numbers(dtype: str) -> None:
    def rule(q: Any, y: Any) -> Any:
        return np.ones(np.shape(y)).astype("i8").astype(dtype)

    got = re.escape(str(np.ones(1).astype("i8").astype(dtype).dtype))
    with pytest.raises(TypeError, match=rf"^rule: expected costs that are numbers, got dtype {got}$"):
        expected_score(rule, [0.5, 0.5], [0.25, 0.75])


def test_a_rule_returns_no_mask() -> None:
    with pytest.raises(TypeError, match=r"^rule: expected an array without a mask, got a masked array"):
        expected_score(lambda q, y: np.ma.masked_equal(np.ones(np.shape(y)), 1), [0.5, 0.5], [0.25, 0.75])


@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "f2", "f4", "f8"])
def test_a_rule_may_return_any_real_numbers(dtype: str) -> None:
    cost = expected_score(lambda q, y: np.ones(np.shape(y), dtype), [0.5, 0.5], [0.25, 0.75])
    assert cost == 1 and cost.dtype == np.float64


def test_a_rule_may_work_in_place() -> None:
    def rule(q: Any, y: Any) -> Any:
        cost = scoring.brier_score(q, y)
        q[...] = y[...] = 0
        return cost

    p, q = np.array([0.5, 0.3, 0.2]), np.array([[0.25, 0.25, 0.5], [0.5, 0.5, 0.0]])
    before = q.copy()
    np.testing.assert_array_equal(expected_score(rule, p, q), expected_score(scoring.brier_score, p, before))
    np.testing.assert_array_equal(q, before)


def test_the_linear_score_goes_to_a_corner() -> None:
    for p in ([0.5, 0.3, 0.2], [0.2, 0.35, 0.45], [0.51, 0.49]):
        assert elicited(scoring.linear_score, p).tolist() == np.eye(len(p))[np.argmax(p)].tolist()


def test_the_zero_one_score_is_content_with_the_right_class() -> None:
    p = [0.2, 0.5, 0.3]
    found = elicited(scoring.zero_one_score, p)
    assert found.argmax() == 1
    assert expected_score(scoring.zero_one_score, p, found) == expected_score(scoring.zero_one_score, p, p)


def test_clipping() -> None:
    rule = partial(scoring.clipped_log_score, eps=0.1)
    p = [0.5, 0.45, 0.05]
    zeroed = np.array([0.5, 0.45, 0.0]) / 0.95
    assert round(float(expected_score(rule, p, p)), 4) == 0.8210
    assert round(float(expected_score(rule, p, zeroed)), 4) == 0.7723
    np.testing.assert_allclose(elicited(rule, p), zeroed, atol=1e-7)
    # Two classes: every report up to eps ties with the honest one, and none beats it.
    reports = np.linspace(0, 1, 1001)
    costs = expected_score(rule, [0.05, 0.95], np.stack([reports, 1 - reports], -1))
    honest = expected_score(rule, [0.05, 0.95], [0.05, 0.95])
    assert costs.min() >= honest - 1e-15
    np.testing.assert_allclose(costs[reports <= 0.1], honest, rtol=1e-14)
    assert (costs[reports > 0.1 + 1e-9] > honest).all()


def test_a_local_rule_that_is_not_the_logarithm() -> None:
    found = elicited(lambda q, y: scoring.linear_score(q, y) ** 2, [0.5, 0.3, 0.2])
    np.testing.assert_allclose(found, [19 / 31, 11 / 31, 1 / 31], atol=1e-7)


def test_many_laws_at_once_and_the_same_at_every_call() -> None:
    p = np.random.default_rng(4).dirichlet(np.ones(3), size=(2, 2))
    q = elicited(scoring.brier_score, p)
    assert q.shape == p.shape and q.dtype == np.float64
    np.testing.assert_allclose(q, p, atol=1e-7)
    assert (elicited(scoring.brier_score, p[1, 0]) == q[1, 0]).all()
    assert elicited(scoring.log_score, [1.0]).tolist() == [1.0]


def test_the_search_is_not_caught_by_the_first_valley() -> None:
    """Two valleys: the shallow one is wide, the deep one is narrow and far away."""
    deep = np.array([0.15, 0.75, 0.10])

    def rule(q: Any, y: Any) -> Any:
        wide = 0.5 * np.square(q - np.array([0.7, 0.1, 0.2])).sum(-1)
        narrow = 20 * np.square(q - deep).sum(-1) - 0.3
        return np.minimum(wide, narrow)

    np.testing.assert_allclose(elicited(rule, [0.5, 0.3, 0.2]), deep, atol=1e-6)


@pytest.mark.slow
def test_more_classes() -> None:
    p = np.random.default_rng(5).dirichlet(np.ones(6))
    np.testing.assert_allclose(elicited(scoring.log_score, p), p, atol=1e-6)


def test_a_rule_that_is_infinite_everywhere() -> None:
    with pytest.raises(ValueError, match="rule: expected a finite cost"):
        elicited(lambda q, y: np.full(np.shape(y), np.inf), [0.5, 0.5])

    def between(q: Any, y: Any) -> Any:  # two points of the lattice
        return np.where(np.abs(q[..., 0] - 0.37126) < 1e-4, scoring.log_score(q, y), np.inf)

    assert scoring.log_score([0.37126, 0.62874], 0) == between(np.array([0.37126, 0.62874]), 0)
    with pytest.raises(
        ValueError, match="rule: expected a finite cost for some report, got inf for each that was"
    ):
        elicited(between, [0.3, 0.7])


# ------------------------------------------------------------------------------------------- the search


@pytest.mark.parametrize("classes", [2, 3, 4, 8, 40])
def test_the_lattice_is_every_share_out_of_whole_steps(classes: int) -> None:
    def count(steps: int) -> int:
        return math.comb(steps + classes - 1, classes - 1)

    steps = max(steps for steps in range(2, 201, 2) if steps == 2 or count(steps) <= 3000)
    lattice = elicitation._lattice(classes)
    assert lattice.shape == (1 + 2 * count(steps), classes)
    centre, inner, points = np.split(lattice, [1, 1 + count(steps)])
    assert (centre == 1 / classes).all()
    whole = np.rint(points * steps)
    np.testing.assert_allclose(points, whole / steps, rtol=1e-15)
    assert len(np.unique(whole, axis=0)) == count(steps)
    assert (whole >= 0).all() and (whole.sum(axis=1) == steps).all()
    np.testing.assert_allclose(inner, (points + 1 / classes) / 2, rtol=1e-15)


def test_the_starts_are_the_best_candidates_that_lie_apart() -> None:
    first = np.array([0.5, 0.51, 0.9, 0.71, 0.08, 0.72, 0.29, 0.0, 1.0])
    candidates = np.stack([first, 1 - first], axis=-1)
    cost = np.arange(9.0)
    # 0.51 is near 0.5, 0.71 near 0.9, 0.72 too; 0.29 lies 0.21 from 0.5 and from 0.08.
    assert list(elicitation._starts(candidates, cost)) == [0, 2, 4, 6]
    assert list(elicitation._starts(candidates, cost[::-1])) == [8, 7, 6, 5]
    cost[[2, 6, 8]] = np.inf
    assert list(elicitation._starts(candidates, cost)) == [0, 3, 4]
    far = np.vstack([np.eye(6), np.full((1, 6), 1 / 6)])
    assert list(elicitation._starts(far, np.arange(7.0))) == [0, 1, 2, 3], "no more than four"
    assert list(elicitation._starts(np.eye(400), np.arange(400) % 2.0)) == [0, 2, 4, 6], "the first of equals"
    on_the_limit = np.array([[0.4, 0.2, 0.4], [0.2, 0.4, 0.4]])
    assert list(elicitation._starts(on_the_limit, np.arange(2.0))) == [0, 1]


def test_a_line_search_finds_the_lowest_point_of_its_segment() -> None:
    def search(law: list[float], q: list[float], move: list[float]) -> tuple[list[float], float]:
        value = float(expected_score(scoring.brier_score, law, q))
        found, lowest = elicitation._line_search(
            scoring.brier_score, np.array(law), np.array(q), value, np.array(move)
        )
        assert lowest == expected_score(scoring.brier_score, law, found) <= value
        assert found.min() >= 0 and abs(found.sum() - 1) < 1e-15
        return found.tolist(), lowest

    # The expected Brier score is |q - p|^2 and a constant: the projection of p onto the line.
    law = [0.5, 0.3, 0.2]
    for start in ([1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.25, 0.75, 0.0]):
        for move in ([1.0, -1.0, 0.0], [-30.0, 30.0, 0.0], [30.0, -30.0, 0.0]):
            np.testing.assert_allclose(search(law, start, move)[0], [0.6, 0.4, 0.0], atol=1e-8)
    np.testing.assert_allclose(search(law, [0.2, 0.2, 0.6], [1.0, 1.0, -2.0])[0], [0.4, 0.4, 0.2], atol=1e-8)
    # Close to an end of the segment, closer than the points that it looks at first.
    for share in (0.99, 0.01):
        np.testing.assert_allclose(
            search([share, 1 - share], [0.3, 0.7], [1.0, -1.0])[0][0], share, atol=1e-8
        )
    # The end of the segment, on either side, and exactly.
    assert search([1.0, 0.0], [0.3, 0.7], [1.0, -1.0])[0] == [1.0, 0.0]
    assert search([0.0, 1.0], [0.3, 0.7], [1.0, -1.0])[0] == [0.0, 1.0]
    # Nowhere to go: every class rises, or none does.
    for move in ([1.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 0.0]):
        assert search(law, [0.25, 0.5, 0.25], move)[0] == [0.25, 0.5, 0.25]


def test_ties_go_to_the_report_that_was_found_first() -> None:
    def constant(q: Any, y: Any) -> Any:
        return np.ones(np.shape(y))

    assert elicited(constant, [0.5, 0.3, 0.2]).tolist() == [1 / 3] * 3, "the centre is the first candidate"
    assert elicited(lambda q, y: 1e6 * constant(q, y), [0.9, 0.1]).tolist() == [0.5, 0.5]


def test_sums_of_convex_functions_of_one_probability_do_not_trap_the_search() -> None:
    """At the minimum no mass that moves from one class to another lowers the cost."""
    rng = np.random.default_rng(7)

    def best_move(rule: Any, q: np.ndarray, step: float) -> float:
        moved = [q + step * (a - b) for a, b in itertools.permutations(np.eye(len(q)), 2)]
        return min(float(rule(x, 0)) for x in moved if x.min() >= 0) - float(rule(q, 0))

    def cost(q: Any, y: Any, *, number: int, down: Any, up: Any, at: Any, power: Any) -> Any:
        if number % 4 == 3:
            with np.errstate(divide="ignore"):
                return -(down * np.log(q)).sum(-1)
        return (np.where(q > at, down, up) * np.abs(q - at) ** power).sum(-1)

    for number in range(40):
        K = int(rng.integers(2, 5))
        down, up, at = rng.uniform(0.2, 3, K), rng.uniform(0.2, 3, K), rng.dirichlet(np.ones(K))
        at = rng.uniform(0, 1, K) if number % 4 == 1 else at
        power = rng.uniform(1.5, 4, K) if number % 4 == 2 else np.ones(K)

        rule = partial(cost, number=number, down=down, up=up, at=at, power=power)
        q = elicited(rule, np.full(K, 1 / K))
        for step in (0.1, 1e-2, 1e-3, 1e-4, 1e-5):
            assert best_move(rule, q, step) > -1e-12

    def in_a_box(q: Any, y: Any) -> Any:
        inside = ((q >= [0.222, 0.616, 0.105]) & (q <= [0.268, 0.658, 0.113])).all(-1)
        return np.where(inside, np.square(q - [0.8, 0.0, 0.2]).sum(-1), np.inf)

    with refuted("what is finite in a small part only"):
        assert best_move(in_a_box, elicited(in_a_box, np.full(3, 1 / 3)), 1e-3) > -1e-12


def test_a_valley_that_runs_between_the_moves() -> None:
    """The cost couples all classes: pairs alone zigzag, and what they sum to points along the valley."""
    target = np.array([0.15, 0.25, 0.6])

    def rule(q: Any, y: Any) -> Any:
        away = q - target
        return np.square(away).sum(-1) + 1000 * np.square(away @ np.array([1.0, 0.5, -0.7]))

    np.testing.assert_allclose(elicited(rule, [0.5, 0.3, 0.2]), target, atol=1e-6)


@pytest.mark.parametrize("call", [partial(expected_score, probs=[0.25, 0.75]), elicited])
def test_what_is_wrong_with_a_rule_is_said(call: Any) -> None:
    with pytest.raises(
        TypeError, match=r"^rule: expected a scoring rule, rule\(probs, targets\), got 'log'$"
    ):
        call("log", target_probs=[0.5, 0.5])
    nan = r"^rule: expected costs that are numbers, got nan for the report \[0\.\d* *0?\.\d*\]$"
    with pytest.raises(ValueError, match=nan):
        call(lambda q, y: np.where(np.asarray(q)[..., 0] > 0.1, np.nan, 0.0), target_probs=[0.5, 0.5])
    shapes = r"^rule: expected costs of shape \(\d*,?\), one a report, got \(\d+,( 2)?\)$"
    with pytest.raises(ValueError, match=shapes):
        call(lambda q, y: np.asarray(q), target_probs=[0.5, 0.5])
    with pytest.raises(
        ValueError, match=r"^target_probs: expected probabilities that sum to one along axis 0 "
    ):
        call(scoring.log_score, target_probs=[0.5, 0.6])


def test_a_law_has_classes() -> None:
    with pytest.raises(
        ValueError, match=r"^target_probs: expected at least one class along axis 1, got shape \(1, 0\)$"
    ):
        elicited(scoring.log_score, np.zeros((1, 0)))
    with pytest.raises(
        ValueError, match=r"^target_probs: expected at least one class along axis 1, got shape \(0, 0\)$"
    ):
        elicited(scoring.log_score, np.zeros((0, 0)))
    assert elicited(scoring.log_score, np.zeros((0, 3))).shape == (0, 3)
