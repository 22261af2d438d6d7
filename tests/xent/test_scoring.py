"""xent.scoring: rules against hand-written ones, what they elicit against closed forms, inverses, and the search.

What each function refuses of one argument is in test_contracts.py; here is what needs a rule, or arguments together.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import mpmath as mp
import numpy as np
import pytest

from adversary import refuted
from xent import elicitation, scoring
from xent.denominators import learnt_distribution
from xent.elicitation import elicited, expected_score

# A rule, and one cost by its definition: of the report q, in digits enough, and of the outcome y.
# fmt: off
RULES: dict[str, tuple[Any, Callable[[Any, int], Any]]] = {
    "log": (scoring.log_score, lambda q, y: -mp.log(q[y])),
    "brier": (scoring.brier_score, lambda q, y: sum((a - (k == y)) ** 2 for k, a in enumerate(q))),
    "spherical": (scoring.spherical_score, lambda q, y: 1 - q[y] / mp.sqrt(sum(a * a for a in q))),
    "linear": (scoring.linear_score, lambda q, y: sum(abs(a - (k == y)) for k, a in enumerate(q)) / 2),
    "zero_one": (scoring.zero_one_score, lambda q, y: 1 - mp.mpf(q[y] == max(q)) / q.count(max(q))),
    "clipped": (partial(scoring.clipped_log_score, eps=0.1),
                lambda q, y: -mp.log(min(max(q[y], mp.mpf(0.1)), 1 - mp.mpf(0.1)))),
    "focal": (partial(scoring.focal_loss, gamma=1.5), lambda q, y: -((1 - q[y]) ** mp.mpf(1.5)) * mp.log(q[y])),
    "smoothed": (partial(scoring.smoothed_log_score, label_smoothing=0.2),
                 lambda q, y: -sum((mp.mpf(0.8) * (k == y) + mp.mpf(0.2) / len(q)) * mp.log(a)
                                   for k, a in enumerate(q))),
    "weighted": (partial(scoring.weighted_log_score, weight=[1.0, 0.5, 2.0]),
                 lambda q, y: -[1, 0.5, 2][y] * mp.log(q[y])),
}
# fmt: on
STRICT = [scoring.log_score, scoring.brier_score, scoring.spherical_score]


def same(got: Any, expected: Any, rtol: float = 0.0, atol: float = 0.0) -> None:
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", RULES)
def test_each_rule_is_its_formula(name: str) -> None:
    """Row by row, in any shape; two-byte reports lose no more than they lack."""
    rule, by_hand = RULES[name]
    g = np.random.default_rng(0)
    rows = [*g.dirichlet(np.ones(3), size=18), [0.02, 0.03, 0.95], [1 / 3, 1 / 3 + 1e-9, 1 / 3 - 1e-9]]
    halves = g.multinomial(128, [0.25, 0.25, 0.5], (4, 5)) / 128  # which no dtype rounds
    y = g.integers(0, 3, size=(4, 5))
    with mp.workdps(30):
        for dtype, rtol in (("f8", 2e-13), ("f4", 4e-7), ("f2", 4e-7)):
            report = (np.array(rows).reshape(4, 5, 3) if dtype == "f8" else halves).astype(dtype)
            cost = rule(report, y)
            assert cost.shape == (4, 5) and cost.dtype == np.result_type(np.float32, dtype)
            for at in np.ndindex(4, 5):
                due = by_hand([mp.mpf(float(x)) for x in report[at]], int(y[at]))
                same(cost[at], float(due), rtol, 2e-16 if dtype == "f8" else 1e-7)
                same(rule(report[at], y[at]), cost[at], 4e-16 if dtype == "f8" else 2.0**-23)
    assert rule(np.empty((0, 3)), np.empty(0, int)).shape == (0,)


def test_a_gamma_that_need_not_be_given_and_a_sum_above_one() -> None:
    q = [0.7, 0.2, 0.1]
    assert scoring.focal_loss([1 + 5e-7, 0.0], 0, gamma=0.5) == 0, "a sum within the tolerance is no nan"
    for f in (scoring.focal_loss, lambda q, y, **o: scoring.invert_focal(q, **o)[y]):
        assert f(q, 1) == f(q, 1, gamma=2.0) != f(q, 1, gamma=3.0)


# --------------------------------------------------------------------------------------- expected scores


def test_the_expected_score_is_a_mean_over_outcomes() -> None:
    """One law for each report, or one for all; what cannot happen costs nothing."""
    g = np.random.default_rng(3)
    p, q = g.dirichlet(np.ones(3), size=(2, 7))
    for rule, _ in RULES.values():
        same(expected_score(rule, p, q), sum(p[:, k] * rule(q, np.full(7, k)) for k in range(3)), 1e-14)
        same(expected_score(rule, p[0], q), sum(p[0, k] * rule(q, np.full(7, k)) for k in range(3)), 1e-14)
    many = g.dirichlet(np.ones(2), size=(4, 3))
    same(expected_score(scoring.log_score, [0.25, 0.75], many), -(np.log(many) @ [0.25, 0.75]), 1e-14)
    laws = np.array([[0.5, 0.5, 0.0], [0.5, 0.25, 0.25]])
    for law, due in ((laws[0], np.log(2)), (laws[1], np.inf), (laws, [np.log(2), np.inf])):
        same(expected_score(scoring.log_score, law, np.broadcast_to(laws[0], law.shape)), due, 1e-15)


def box(q: Any, y: Any) -> Any:
    """Finite between two points of the lattice only."""
    return np.where(np.abs(q[..., 0] - 0.37126) < 1e-4, scoring.log_score(q, y), np.inf)


# What a rule returns, and what is said of it.
BROKEN: list[tuple[Any, str]] = [
    (
        lambda q, y: np.full(np.shape(y), np.nan),
        r"ValueError: .* numbers, got nan for the report \[[\d. ]*\]$",
    ),
    (lambda q, y: np.asarray(q), r"ValueError: costs of shape \(\d*,?\), one a report, got \(\d+,( 2)?\)$"),
    (lambda q, y: np.ones(np.shape(y), complex), "TypeError: .* numbers, got dtype complex128$"),
    (lambda q, y: np.ones(np.shape(y), "M8[s]"), r"TypeError: .* numbers, got dtype datetime64\[s\]$"),
    (lambda q, y: np.ma.masked_equal(np.ones(np.shape(y)), 1), "TypeError: .* without a mask, got a mask"),
]


@pytest.mark.parametrize("call", [partial(expected_score, probs=[0.25, 0.75]), elicited])
def test_what_is_wrong_with_a_rule_is_said(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for rule, said in BROKEN:
        error = TypeError if said.startswith("Type") else ValueError
        with pytest.raises(error, match=f"^rule: expected{said.partition(':')[2]}"):
            call(rule, target_probs=[0.5, 0.5])
    for dtype in ("?", "i1", "u8", "f2", "f4", "f8"):
        found = call(lambda q, y, to=dtype: np.ones(np.shape(y), to), target_probs=[0.5, 0.5])
        assert found.dtype == np.float64 and found.max() in (1, 0.5)
    if call is elicited:
        for rule in (box, lambda q, y: np.full(np.shape(y), np.inf)):
            with pytest.raises(ValueError, match=r"rule: .* finite cost for some report, got inf for each"):
                elicited(rule, [0.3, 0.7])
        monkeypatch.setattr(elicitation, "_CLASSES", 3)
        same(elicited(scoring.log_score, [0.5, 0.3, 0.2]), [0.5, 0.3, 0.2], atol=1e-7)
        with pytest.raises(ValueError, match=r"^target_probs: .* at most 3 classes .*, got shape \(1, 4\)"):
            elicited(scoring.log_score, [[0.25] * 4])


def test_a_rule_may_work_in_place() -> None:
    def rule(q: Any, y: Any) -> Any:
        cost = scoring.brier_score(q, y)
        q[...] = y[...] = 0
        return cost

    p, q = np.array([0.5, 0.3, 0.2]), np.array([[0.25, 0.25, 0.5], [0.5, 0.5, 0.0]])
    before = q.copy()
    np.testing.assert_array_equal(expected_score(rule, p, q), expected_score(scoring.brier_score, p, before))
    np.testing.assert_array_equal(q, before)


# ---------------------------------------------------------------------------------------- what is elicited


LAWS = [[0.7, 0.3], [0.5, 0.3, 0.2], [0.97, 0.02, 0.01], [0.7, 0.3, 0.0], [0.1, 0.2, 0.3, 0.4], [1.0, 0.0]]
CLIPPED, ZEROED = partial(scoring.clipped_log_score, eps=0.1), np.array([0.5, 0.45, 0.0]) / 0.95
DEEP = np.array([0.15, 0.75, 0.10])


def two_valleys(q: Any, y: Any) -> Any:
    """The shallow one is wide, the deep one is narrow and far away."""
    wide = 0.5 * np.square(q - np.array([0.7, 0.1, 0.2])).sum(-1)
    return np.minimum(wide, 20 * np.square(q - DEEP).sum(-1) - 0.3)


def oblique(q: Any, y: Any) -> Any:
    """A valley between the moves: pairs of classes alone zigzag, and what they sum to points along it."""
    away = q - np.array([0.15, 0.25, 0.6])
    return np.square(away).sum(-1) + 1000 * np.square(away @ np.array([1.0, 0.5, -0.7]))


# fmt: off
ELICITED: list[tuple[Any, Any, Any, float]] = [
    *((rule, p, p, 1e-7) for rule in STRICT for p in [*LAWS, [1.0]]),
    *((partial(scoring.smoothed_log_score, label_smoothing=e), p, (1 - e) * np.array(p) + e / len(p), 1e-7)
      for p in ([0.7, 0.3, 0.0], [0.25, 0.75], [0.1, 0.2, 0.3, 0.4]) for e in (0.0, 0.1, 0.6)),
    (partial(scoring.weighted_log_score, weight=[1.0, 2.0, 5.0]), [0.5, 0.3, 0.2], [5 / 21, 6 / 21, 10 / 21], 1e-7),
    *((scoring.linear_score, p, np.eye(len(p))[np.argmax(p)], 0.0)
      for p in ([0.5, 0.3, 0.2], [0.2, 0.35, 0.45], [0.51, 0.49])),
    (CLIPPED, [0.5, 0.45, 0.05], ZEROED, 1e-7),
    (lambda q, y: scoring.linear_score(q, y) ** 2, [0.5, 0.3, 0.2], [19 / 31, 11 / 31, 1 / 31], 1e-7),
    (two_valleys, [0.5, 0.3, 0.2], DEEP, 1e-6),
    (oblique, [0.5, 0.3, 0.2], [0.15, 0.25, 0.6], 1e-6),
    # Ties go to the report that was found first, the centre.
    (lambda q, y: np.ones(np.shape(y)), [0.5, 0.3, 0.2], [1 / 3] * 3, 0.0),
    (lambda q, y: np.full(np.shape(y), 1e6), [0.9, 0.1], [0.5, 0.5], 0.0),
    (scoring.log_score, np.zeros((0, 3)), np.zeros((0, 3)), 0.0),
    (scoring.brier_score, np.tile(LAWS[1], (2, 2, 1)), np.tile(LAWS[1], (2, 2, 1)), 1e-7),
    *((scoring.brier_score, [s, 1 - s], [s, 1 - s], 1e-8) for s in (0.99, 0.01)),
]
# fmt: on


@pytest.mark.parametrize("row", range(len(ELICITED)))
def test_what_a_rule_elicits(row: int) -> None:
    rule, p, due, atol = ELICITED[row]
    same(elicited(rule, p), due, atol=atol)


# --------------------------------------------------------------------------------------------- inverses


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("p", LAWS, ids=str)
def test_focal_loss_is_inverted(p: list[float], gamma: float) -> None:
    q = elicited(partial(scoring.focal_loss, gamma=gamma), p)
    # Near a corner the report barely depends on p, so the way back magnifies what the search leaves.
    same(scoring.invert_focal(q, gamma=gamma), p, atol=1e-5)
    assert (np.argsort(q, kind="stable") == np.argsort(p, kind="stable")).all(), "the order survives"


def test_the_inverse_of_focal_at_its_ends() -> None:
    assert scoring.invert_focal([1.0, 0.0, 0.0]).tolist() == [1.0, 0.0, 0.0]
    assert np.isfinite(scoring.invert_focal([1 - 1e-12, 1e-12], gamma=200.0)).all(), "(1 - q)^200 underflows"
    # A sum within the tolerance: what is above one counts as one.
    for gamma in (0.0, 0.5, 2.0):
        assert scoring.invert_focal([1 + 4e-7, 0.0], gamma=gamma).tolist() == [1.0, 0.0]
        assert (scoring.invert_focal([1.0, 5e-7], gamma=gamma)[1] == 0) == (gamma > 0)
    softmax = np.array([1.0, 1e-8, 0.0], np.float32)  # gamma = 0 has nothing to undo
    np.testing.assert_array_equal(scoring.invert_focal(softmax, gamma=0.0), softmax)
    with mp.workdps(40):
        q = [mp.mpf(x) for x in (0.9, 0.07, 0.03)]
        raw = [x / ((1 - x) ** 3 - 3 * (1 - x) ** 2 * x * mp.log(x)) for x in q]
        same(scoring.invert_focal([0.9, 0.07, 0.03], gamma=3.0), [float(x / sum(raw)) for x in raw], 1e-13)


INVERSES = {
    "focal": partial(scoring.invert_focal, gamma=2.0),
    "smoothing": partial(scoring.invert_smoothing, label_smoothing=0.03),
    "weighting": partial(scoring.invert_weighting, weight=[1.0, 2.0, 5.0]),
    "weighting, a batch": partial(
        scoring.invert_weighting, weight=[1.0, 2.0, 5.0], batch_size=4, class_probs=[0.5, 0.25, 0.25]
    ),
}


@pytest.mark.parametrize("name", INVERSES)
def test_an_inverse_takes_each_report_by_itself(name: str) -> None:
    inverse = INVERSES[name]
    q = np.random.default_rng(6).dirichlet(np.ones(3), size=(4, 5)) * 0.97 + 0.01
    q[1, 2] = [0.01, 0.98, 0.01] if name == "smoothing" else [0.0, 1.0, 0.0]
    p = inverse(q)
    same(p.sum(axis=-1), 1, 1e-15)
    for index in np.ndindex(4, 5):
        same(p[index], inverse(q[index]), 1e-15)
    same(p[1, 2], [0, 1, 0], atol=1e-15)
    for dtype, tolerance in ((np.float32, 1e-6), (np.float16, 1e-2)):
        got = inverse(np.array([[0.25, 0.25, 0.5]], dtype))
        assert got.dtype == np.float32
        same(got, inverse([[0.25, 0.25, 0.5]]), tolerance)


def test_smoothing_and_weights_are_undone() -> None:
    for p in ([0.7, 0.3, 0.0], [0.25, 0.75], [0.1, 0.2, 0.3, 0.4]):
        for eps in (0.0, 0.1, 0.6):
            q = (1 - eps) * np.array(p) + eps / len(p)
            same(scoring.invert_smoothing(q, label_smoothing=eps), p, atol=1e-15)
    law, w = np.array([0.5, 0.3, 0.2]), np.array([1.0, 2.0, 5.0])
    same(scoring.invert_weighting(w * law / (w * law).sum(), weight=w), law, 1e-14)
    # Weights whose quotient no float holds.
    weight = [1e-300, 1e300, 1.0]
    np.testing.assert_array_equal(scoring.invert_weighting(np.eye(3), weight=weight), np.eye(3))
    for small, large in ((1e-300, 1e300), (5e-324, 1.7e308)):
        assert scoring.invert_weighting([0.25, 0.75], weight=[small, large]).tolist() == [1.0, 0.0]
        same(scoring.invert_weighting([0.25, 0.75], weight=[small, 3 * small]), [0.5, 0.5], 1e-15)


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
    assert scoring.invert_smoothing([0.05, 0.05, 0.9], label_smoothing=0.15).min() < 1e-16


def test_weighted_means_of_batches_and_their_inverse() -> None:
    g = np.random.default_rng(0)
    for batch_size in (1, 2, 16, 10**9):
        shares, w = g.dirichlet(np.ones(4)), np.exp(g.standard_normal(4))
        p = g.dirichlet(np.ones(4), size=(5, 2))  # by context; the batch's other labels have the shares
        q = learnt_distribution(p, w, batch_size, weight=w, others=shares)
        same(learnt_distribution(p[0, 0], w, batch_size, weight=w, others=shares), q[0, 0], 1e-15)
        same(scoring.invert_weighting(q, weight=w, batch_size=batch_size, class_probs=shares), p, 1e-12)
        plain = scoring.invert_weighting(q, weight=w)
        assert (np.abs(plain - p).max() < 1e-7) == (batch_size == 10**9)  # of order one over the batch size
    # A batch of one divides its weight out: the report is the truth, and stays what it is.
    for dtype in (np.float64, np.float32):
        given = np.array([0.9, 0.1], dtype)
        q = scoring.invert_weighting(given, weight=[1.0, 9.0], batch_size=1, class_probs=[0.5, 0.5])
        same(q, given, 1e-15 if dtype is np.float64 else 2e-7)
        assert q.dtype == dtype


# ------------------------------------------------------------------------------- the learnt distribution


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
    due = np.zeros_like(law)
    for batch in itertools.product(range(len(p)), repeat=batch_size):
        items = list(batch)
        np.add.at(due, items, law[items].prod() * a[items] / math.fsum(d[items]))
    due /= due.sum()
    # Quadrature to 12 digits or more; the enumeration adds up to 4^5 terms.
    same(learnt_distribution(p, sizes, batch_size, weight=weight), due, 1e-12)
    # The unit of the sizes and that of the weights do not matter, nor does the order of the items.
    same(learnt_distribution(p, d * 1e150, batch_size, weight=a * 1e-200), due, 1e-12)
    same(learnt_distribution(law[::-1], d[::-1], batch_size, weight=a[::-1])[::-1], due, 1e-12)


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
    law, d, rest = [p, 1 - p], [1.0, size], batch_size - 1
    with mp.workdps(50):
        small, large = map(mp.mpf, law)
        others = [(mp.binomial(rest, j) * large**j * small ** (rest - j), j) for j in range(batch_size)]
        tilted = [
            share * sum(chance / (own + j * size + (rest - j)) for chance, j in others)
            for share, own in zip((small, large), d, strict=True)
        ]
        due = [float(t / sum(tilted)) for t in tilted]
    same(learnt_distribution(law, d, batch_size), due, rtol)


HALVES = [0.5, 0.5]
TOGETHER: list[tuple[Callable[[], Any], str]] = [
    (lambda: scoring.invert_smoothing([0.05, 0.01, 0.94], label_smoothing=0.15),
     r"ValueError: probs: .*label_smoothing / K = 0.05, which .*, got 0.01 at index 1$"),
    (lambda: scoring.invert_weighting(HALVES, weight=[1.0, 0.0]),
     r"ValueError: weight: expected weights > 0, got 0\.0 at index 1"),
    (lambda: scoring.invert_weighting(HALVES, weight=[1, 2], batch_size=4),
     "TypeError: class_probs: expected the classes' shares, from which batches were drawn, got None"),
    (lambda: scoring.invert_weighting(HALVES, weight=[5e-324, 1e308], batch_size=4, class_probs=HALVES),
     "ValueError: weight: expected a ratio of at most 1e290"),
    (lambda: learnt_distribution(HALVES, [1e-300, 1.0], 2),
     "ValueError: sizes: expected a ratio of at most 1e290, got 1e-300 and 1"),
    (lambda: learnt_distribution([[1.0, 0.0]], [1, 2]), "TypeError: others: expected the distribution"),
    (lambda: learnt_distribution([1.0, 0.0], [1, 2], weight=[0.0, 1.0]),
     "ValueError: weight: expected a positive weight on an outcome that happens, got none"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "said"), TOGETHER)
def test_arguments_that_do_not_go_together(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(TypeError if said.startswith("Type") else ValueError, match=said.partition(": ")[2]):
        call()


# ------------------------------------------------------------------------------------------- the search


def test_sums_of_convex_functions_of_one_probability_do_not_trap_the_search() -> None:
    """At the minimum no mass that moves from one class to another lowers the cost."""
    g = np.random.default_rng(7)

    def best_move(rule: Any, q: np.ndarray, step: float) -> float:
        moved = [q + step * (a - b) for a, b in itertools.permutations(np.eye(len(q)), 2)]
        return min(float(rule(x, 0)) for x in moved if x.min() >= 0) - float(rule(q, 0))

    def cost(q: Any, y: Any, *, number: int, down: Any, up: Any, at: Any, power: Any) -> Any:
        if number % 4 == 3:
            with np.errstate(divide="ignore"):
                return -(down * np.log(q)).sum(-1)
        return (np.where(q > at, down, up) * np.abs(q - at) ** power).sum(-1)

    for number in range(40):
        K = int(g.integers(2, 5))
        down, up, at = g.uniform(0.2, 3, K), g.uniform(0.2, 3, K), g.dirichlet(np.ones(K))
        at = g.uniform(0, 1, K) if number % 4 == 1 else at
        power = g.uniform(1.5, 4, K) if number % 4 == 2 else np.ones(K)
        rule = partial(cost, number=number, down=down, up=up, at=at, power=power)
        q = elicited(rule, np.full(K, 1 / K))
        for step in (0.1, 1e-2, 1e-3, 1e-4, 1e-5):
            assert best_move(rule, q, step) > -1e-12

    def in_a_box(q: Any, y: Any) -> Any:
        inside = ((q >= [0.222, 0.616, 0.105]) & (q <= [0.268, 0.658, 0.113])).all(-1)
        return np.where(inside, np.square(q - [0.8, 0.0, 0.2]).sum(-1), np.inf)

    with refuted("what is finite in a small part only"):
        assert best_move(in_a_box, elicited(in_a_box, np.full(3, 1 / 3)), 1e-3) > -1e-12
