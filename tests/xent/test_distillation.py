"""Distillation on arrays and tensors: digits at every temperature, closed forms, limits, top k, masks.

How the two sides agree over every option is in test_twins.py, laws are in test_laws.py, sweeps in test_accuracy.py,
derivatives of any order in test_torch_transforms.py, and refusals of one argument in test_contracts.py.
"""

from __future__ import annotations

import math
import tracemalloc
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import mpmath as mp
import numpy as np
import pytest
import torch

import oracle
import xent
import xent.torch as xt
from xent import _blocks, distillation
from xent.distillation import distillation_gradient, distillation_loss

Array = np.ndarray[Any, Any]
INF, NAN, BETA = math.inf, math.nan, 0.25
SIDES, DIRECTIONS = ("arrays", "tensors"), ("forward", "reverse", "jsd")
TREATMENTS = ("truncated", "renormalised", "renormalised_both", "tail")
by_side = pytest.mark.parametrize("side", SIDES)
by_direction = pytest.mark.parametrize("direction", DIRECTIONS)


def logits(seed: int, shape: tuple[int, ...] = (6, 5), spread: float = 3.0) -> tuple[Array, Array]:
    g = np.random.default_rng(seed)
    return g.normal(size=shape) * spread, g.normal(size=shape) * spread


def tensor(x: Any) -> torch.Tensor:
    return torch.as_tensor(np.asarray(x))


def loss(side: str, name: str, *arguments: Any, **options: Any) -> Any:
    if side == "arrays":
        return getattr(distillation, name)(*arguments, **options)
    return getattr(xt, name)(*map(tensor, arguments), **options).numpy()[()]


def slope(side: str, *arguments: Any, name: str = "distillation_loss", **options: Any) -> Array:
    """The gradient by the student's logits of a loss, or of the sum of each row's."""
    if side == "arrays":
        return distillation_gradient(*arguments, **options)
    z, *others = map(tensor, arguments)
    value = getattr(xt, name)(z.requires_grad_(), *others, **options).sum()
    return np.asarray(torch.autograd.grad(value, z)[0])


def same(got: Any, due: Any, rtol: float = 0.0, atol: float = 0.0) -> None:
    np.testing.assert_allclose(got, due, rtol=rtol, atol=atol)


# -------------------------------------------------------------------------------------------------- digits


def rows(reach: int) -> tuple[Array, Array]:
    """Any two, nearly agreed, far apart, far shifted, agreed and shifted; the last classes are impossible in both."""
    (z, v), near = logits(1, (8, 5)), 1e-7 * logits(2, (8, 5))[1]
    v[2:4] = z[2:4] + near[2:4]
    z[4], v[4] = 40.0 * np.arange(5), -40.0 * np.arange(5)
    z[5], v[5] = z[5] + 64, z[5] + near[5] - 64
    z[6], v[6] = z[6] - 1e4, v[6] + 1e4
    z[7], v[7] = z[7] + 1e6, z[7] + near[7] - 1e6
    z[:, reach:], v[:, reach:] = -INF, -INF
    return z, v


FAR_ROWS = np.array([1, 1, 0, 0, 1, 0, 1, 0])[:, None]  # whose probabilities round, and not their differences


@lru_cache(maxsize=4)
def exactly(temperature: float, direction: str, reach: int) -> tuple[Array, Array]:
    """Each row's divergence, and the derivative by differences of it; both before any factor."""
    z, v = rows(reach)

    def exact(student: Any, teacher: Any) -> Any:
        return (
            oracle.divergence(student, teacher, temperature, direction, BETA, 100) / mp.mpf(temperature) ** 2
        )

    with mp.workdps(100):
        h = mp.mpf(10) ** -25
        losses = list(map(exact, z, v))
        slopes = np.zeros(z.shape, object)
        for i, k in np.ndindex(len(z), reach):
            up, down = ([mp.mpf(x) + s * h * (j == k) for j, x in enumerate(z[i].tolist())] for s in (1, -1))
            both = [exact(row, v[i]) for row in (up, down)]
            slopes[i, k] = (both[0] - both[1]) / (2 * h)
    return np.array(losses), slopes


@by_side
@by_direction
@pytest.mark.parametrize("reach", [5, 4])
@pytest.mark.parametrize("temperature", [0.05, 0.5, 1.0, 4.0, 100.0, 1e6, 1e12])
def test_loss_and_gradient_keep_their_digits_at_every_temperature(
    temperature: float, reach: int, direction: str, side: str
) -> None:
    losses, slopes = exactly(temperature, direction, reach)
    for scale, factor in (("none", mp.mpf(1)), ("t_squared", mp.mpf(temperature) ** 2)):
        options = {"temperature": temperature, "direction": direction, "scale": scale, "beta": BETA}
        found = loss(side, "distillation_loss", *rows(reach), reduction="none", **options)
        same(found, (losses * factor).astype(float), 4e-12)
        due = (slopes * factor).astype(float)
        found = slope(side, *rows(reach), reduction="none", **options)
        atol = (1e-11 if side == "arrays" else 2e-9) * np.abs(due).max(1, keepdims=True) + 1e-12 * float(
            factor
        ) / temperature * FAR_ROWS
        worst = (np.abs(found - due) / (atol + 1e-9 * np.abs(due) + 1e-300)).max(1)
        assert worst.max() <= 1, worst


@by_direction
@pytest.mark.parametrize("classes", [2, 10, 33])
def test_float32_keeps_its_digits_however_close_the_models_are(classes: int, direction: Any) -> None:
    """On either side of the loss from which the fast sum is good enough, and of the 16 classes that lie first.

    Each difference v - z is rounded, and the loss is about half the square of how far they are apart.
    """
    eps, g = 2.0**-23, np.random.default_rng(classes)
    for close in (1.0, 0.3, 0.1, 0.03, 1e-4):
        a = g.normal(size=(200, classes)) * g.choice([0.3, 1.0, 3.0, 8.0], size=(200, 1))
        z, v = (x.astype(np.float32) for x in (a, a + close * g.normal(size=a.shape)))
        wide = z.astype(float), v.astype(float)
        options: Any = {"direction": direction, "reduction": "none"}
        due, gradient = distillation_loss(*wide, **options), distillation_gradient(*wide, **options)
        found = slope("tensors", z, v, **options)
        rounded = np.abs(wide[0] - wide[1]).max(1) / np.sqrt(due)
        allowed = 8 + sum(np.ptp(x, axis=1) for x in wide) + 4 * rounded
        assert (
            np.abs(loss("tensors", "distillation_loss", z, v, **options) / due - 1) <= allowed * eps
        ).all()
        error = np.abs(found - gradient).max(1) / np.abs(gradient).max(1)
        assert (error <= (16 + allowed) * eps).all()


# ---------------------------------------------------------------------------------- closed forms and limits


# Student, teacher, options, the loss, and the gradient (nan: any).
TWO, OUT, FLAT, WAY = math.log(2), [0.0, -INF], [0.0, 0.0], {"direction": "reverse"}
MIXED: Any = {"direction": "jsd", "beta": 0.25}
LIMITS: list[tuple[Any, Any, dict[str, Any], float, Any]] = [
    (OUT, [2.0, -INF], {}, 0, [0, 0]),
    (OUT, FLAT, {}, INF, [0.5, -0.5]),
    (FLAT, OUT, {}, TWO, [-0.5, 0.5]),
    (FLAT, OUT, WAY, INF, NAN),
    (OUT, FLAT, WAY, TWO, [0, 0]),
    ([1e300, 0.0], [1e300, 0.0], {"temperature": 1e-9}, 0, [0, 0]),
    # A small temperature does not overflow: KL of softmax(0, -1) and softmax(-1, 0).
    ([0.0, -1e-9], [-1e-9, 0.0], {"temperature": 1e-9, "scale": "none"}, math.tanh(0.5), NAN),
    # Finite where the supports differ: each row of m lacks what the other has.
    (OUT, [-INF, 0.0], MIXED, -0.25 * math.log(0.25) - 0.75 * math.log(0.75), [0, 0]),
    ([0.0, 800.0], [800.0, 0.0], {"direction": "jsd"}, TWO, [0, 0]),
]


@by_side
@pytest.mark.parametrize("row", range(len(LIMITS)))
def test_infinities(row: int, side: str) -> None:
    z, v, options, due, gradient = LIMITS[row]
    same(loss(side, "distillation_loss", [z], [v], **options), due, 1e-12)
    found = slope(side, [z], [v], **options)
    if side == "arrays" or due < INF:
        assert np.isnan(found).all() if due == INF and options is WAY else np.isfinite(found).all()
    if gradient is not NAN:
        same(found, [gradient], 1e-12, 1e-15)


@by_side
@pytest.mark.parametrize("temperature", [0.5, 1.0, 30.0])
def test_a_class_that_the_teacher_rules_out_is_pushed_down(temperature: float, side: str) -> None:
    """T (q - p), and with p = 0 that is T q: also where p has underflowed, and in a row that is close."""
    far = -1200.0 * temperature
    z = np.array([[0.3, -0.2, 0.1], [0.3, -0.2, 0.1], [0.3, 0.2, far], [0.3, 0.2, -INF]])
    v = np.array([[0.3, 0.1, -INF], [0.3, far, 0.0], [0.3, 0.2, 0.1], [0.3, 0.2, -INF]])
    q, p = xent.softmax(z / temperature), xent.softmax(v / temperature)
    found = slope(side, z, v, temperature=temperature, reduction="none")
    same(found, temperature * (q - p), 1e-9, 1e-15 * temperature)
    # A class that the student rules out has no part in the reverse divergence, nor in its gradient.
    options: Any = {"temperature": temperature, "direction": "reverse"}
    found, fewer = (slope(side, z[2:, :k], v[2:, :k], **options) for k in (3, 2))
    assert (found[:, 2] == 0).all()
    same(found[:, :2], fewer, 1e-12, 1e-15 * temperature)


@pytest.mark.parametrize("temperature", [1.0, 1e6])
def test_impossible_classes_have_a_second_derivative_and_nan_stays(temperature: float) -> None:
    """The Hessian's first row is q_0 (e_0 - q), with T^2 / T^2 in front."""
    few, other, full = [[0.3, 0.0, -INF]], [[0.0, 0.1, -INF]], [[0.0, 0.1, 0.2]]
    for z, v in ((few, other), (few, full), (full, few)):
        u = torch.tensor(z, dtype=torch.float64, requires_grad=True)
        value = xt.distillation_loss(u, torch.tensor(v, dtype=torch.float64), temperature=temperature)
        (first,) = torch.autograd.grad(value, u, create_graph=True)
        (second,) = torch.autograd.grad(first[0, 0], u)
        q = xent.softmax(np.array(z[0]) / temperature)
        same(second[0], q[0] * (np.eye(3)[0] - q), 1e-7, 1e-12)
    z, v = (np.pad(x, ((0, 0), (0, 1)), constant_values=-INF) for x in logits(5, (3, 3)))
    v[1, 0] = NAN
    each = loss("tensors", "distillation_loss", z.astype("f4"), v.astype("f4"), reduction="none")
    assert np.isnan(each).tolist() == [False, True, False]


# ------------------------------------------------------------------------------------------------- masks


def calls(shape: tuple[int, ...], k: int = 2, seed: int = 21) -> dict[str, tuple[Array, ...]]:
    """Arguments of every loss, classes last: logits, and k classes of each row with their probabilities."""
    z, v = logits(seed, shape, 2.0)
    at = np.argsort(-v, -1)[..., :k]
    log_p = np.take_along_axis(xent.log_softmax(v), at, -1)
    y = np.random.default_rng(seed).integers(0, shape[-1], shape[:-1])
    return {"distillation_loss": (z, v), "mixed_loss": (z, v, y), "top_k_loss": (z, log_p, at)}


LOSSES = [
    (side, name) for side in SIDES for name in calls((2, 3)) if (side, name) != ("arrays", "mixed_loss")
]
by_loss = pytest.mark.parametrize(("side", "name"), LOSSES)


@by_loss
def test_rows_that_do_not_count_may_hold_anything(name: str, side: str) -> None:
    z, *others = calls((4, 5))[name]
    alone = loss(side, name, z[:2], *(x[:2] for x in others), reduction="sum", sample_weight=[1, 0.5])
    ways: list[dict[str, Any]] = [{"sample_weight": [1, 0.5, 0, 0]}]
    if name == "mixed_loss":
        others[1][2:] = -100
        alphas = ({}, {"alpha": 0.0}, {"alpha": 1.0})
        ways = [{"ignore_index": -100, "sample_weight": [1, 0.5, 3, 3], **alpha} for alpha in alphas]
    for bad in ([NAN] * 5, [INF, 0.0, 0.0, 0.0, 0.0], [-INF] * 5):
        z[2:] = bad
        if name in ("distillation_loss", "mixed_loss"):
            others[0][2:] = [INF, NAN, 0.0, 0.0, 0.0]
        for number, way in enumerate(ways):
            found = loss(side, name, z, *others, reduction="sum", **way)
            assert number or found == pytest.approx(alone, rel=1e-14, abs=0)
            assert (loss(side, name, z, *others, reduction="none", **way)[2:] == 0).all()
            if side == "tensors":
                gradient = slope(side, z, *others, name=name, **way)
                assert (gradient[2:] == 0).all() and np.isfinite(gradient).all() and gradient.any()
        if side == "arrays" and name != "mixed_loss":  # the first that counts is named, and not the first
            with pytest.raises(
                ValueError, match=r"^student_logits: expected .*, got .* at index (\(3, 0\)|3)"
            ):
                loss(side, name, z, *others, sample_weight=[1, 0.5, 0, 0.5])
    if side == "tensors" and name == "distillation_loss":
        assert np.isnan(loss(side, name, z, *others))


@by_loss
def test_dtypes(side: str, name: str) -> None:
    """Both are computed in that of the wider argument, once; weights of samples are mere numbers."""
    arguments = calls((6, 5))[name]
    due = loss(side, name, *arguments, reduction="none")
    for kinds, dtype in (("ee", "f4"), ("ff", "f4"), ("fe", "f4"), ("df", "f8"), ("fd", "f8")):
        given = iter(kinds)
        some = [x.astype(next(given)) if x.dtype.kind == "f" else x for x in arguments]
        found = loss(side, name, *some, reduction="none")
        assert found.dtype == dtype
        same(found, due, atol=40 * max(float(np.finfo(kind).eps) for kind in kinds))
        if dtype == "f8":
            wide = [x.astype("f8") if x.dtype.kind == "f" else x for x in some]
            same(found, loss(side, name, *wide, reduction="none"), 1e-15)


def test_the_memory_of_a_call_does_not_grow_with_its_rows() -> None:
    z = np.zeros((40_000, 100), np.float32)
    tracemalloc.start()
    try:
        distillation_loss(z, z + 1)
        assert tracemalloc.get_traced_memory()[1] < z.nbytes + 24 * 8 * _blocks.BLOCK
    finally:
        tracemalloc.stop()


# ------------------------------------------------------------------------------------------- the mixture


@pytest.mark.parametrize("settings", [{}, {"scale": "none"}, {"direction": "reverse"}], ids=str)
def test_the_mixture_and_its_ignored_rows(settings: dict[str, Any]) -> None:
    z, v = logits(9, (4, 3))
    settings, y = {"temperature": 3.0, **settings}, np.array([0, 2, -100, 1])
    keep = y != -100
    hard, soft = xent.cross_entropy(z[keep], y[keep]), distillation_loss(z[keep], v[keep], **settings)
    z[2] = NAN
    for alpha in (0.0, 0.25, 1.0):
        options = {"alpha": alpha, "ignore_index": -100, **settings}
        found = loss("tensors", "mixed_loss", z, v, y, **options)
        same(found, (1 - alpha) * hard + alpha * soft, 1e-12)
        same(loss("tensors", "mixed_loss", z, v, y, denominator=7.0, **options), found * 3 / 7, 1e-13)


def test_a_part_of_the_mixture_without_weight_may_be_infinite() -> None:
    for z, v, y, alpha, due in (
        (OUT, FLAT, 0, 0.0, 0), (OUT, FLAT, 0, 0.5, INF), (OUT, OUT, 1, 1.0, 0), (OUT, OUT, 1, 0.5, INF),
        ([0.0], [0.0], 0, 0.5, 0), ([0.0, 1.0], [0.0, 1.0 + 1e-7], 1, 1e-300, math.log1p(math.exp(-1))),
    ):  # fmt: skip
        same(loss("tensors", "mixed_loss", [z], [v], [y], alpha=alpha), due, 1e-12)


# --------------------------------------------------------------------------------------- a teacher's top k


@pytest.mark.parametrize(
    ("side", "treatment"), [*(("arrays", treatment) for treatment in TREATMENTS), ("tensors", "tail")]
)
def test_the_top_k_formulas(side: str, treatment: Any) -> None:
    for shape, k in (((5, 6), 3), ((6, 2), 1), ((7, 5), 2), ((3, 6), 5), ((40, 3), 1)):
        z, v = logits(10, shape)
        p, q = xent.softmax(v), xent.softmax(z)
        at = np.argsort(-v, -1)[:, :k]
        a, b = np.take_along_axis(p, at, -1), np.take_along_axis(q, at, -1)
        mass, other = a.sum(-1), b.sum(-1)
        truncated = (a * np.log(a / b)).sum(-1)
        renormalised = (a / mass[:, None] * np.log(a / mass[:, None] / b)).sum(-1)
        due = {
            "truncated": truncated,
            "renormalised": renormalised,
            "renormalised_both": renormalised + np.log(other),
            "tail": truncated + (1 - mass) * np.log((1 - mass) / (1 - other)),
        }[treatment]
        options, w = {"treatment": treatment} if side == "arrays" else {}, np.arange(float(len(z)))
        same(loss(side, "top_k_loss", z, np.log(a), at, reduction="none", **options), due, 1e-10, 1e-13)
        moved = loss(side, "top_k_loss", z.T, np.log(a).T, at.T, axis=0, sample_weight=w, **options)
        same(moved, due @ w / w.sum(), 1e-10, 1e-13)
        # With every class in it, nothing is left to treat.
        whole = np.tile(np.arange(shape[1]), (len(z), 1))
        complete = loss(side, "top_k_loss", z, xent.log_softmax(v), whole, reduction="none", **options)
        same(complete, distillation_loss(z, v, reduction="none"), 1e-10, 1e-13)


SURE, HALF = [0.0, -INF], [math.log(0.5)] * 2
ALL, FEW = {treatment: {"treatment": treatment} for treatment in TREATMENTS}, [0.0, 0.0, -INF]
FAR = [0.0, 0.0, -2000.0]  # the student has exp(-2000) on what the teacher names, or does not name
H3 = xent.information.entropy([1 / 3, 2 / 3]), xent.information.entropy([0.25, 0.5, 0.25])
QUARTER = np.log([0.25, 0.5]).tolist()
TOPS: list[tuple[Any, Any, Any, dict[str, Any], float]] = [
    # A class of the top k whose probability is zero costs nothing, also where the student rules it out.
    *((FEW, SURE, [0, 2], how, 0 if name == "renormalised_both" else TWO) for name, how in ALL.items()),
    *(([0.0] * 3, SURE, [0, 2], how, TWO if name == "renormalised_both" else math.log(3))
      for name, how in ALL.items()),
    # Both tails empty; the teacher's full and the student's empty, which costs everything.
    (FEW, HALF, [0, 1], {}, 0),
    (FEW, [math.log(0.4)] * 2, [0, 1], {}, INF),
    ([-INF, -INF, 0.0], HALF, [0, 1], ALL["truncated"], INF),
    # A sum that is over one by no more than rounding leaves no tail.
    ([0.0] * 3, [math.log(0.5) + 4e-7] * 2, [0, 1], {}, math.log(1.5)),
    *((z, QUARTER, [0, 1], ALL["renormalised_both"], TWO - H3[0]) for z in (FAR, [-2000.0, -2000.0, 0.0])),
    ([0.0] * 3, QUARTER, [0, 1], {}, math.log(3) - H3[1]),
    (FAR, QUARTER, [0, 1], {}, 0.25 * (2000 + TWO) + 0.75 * TWO - H3[1]),
]  # fmt: skip


@by_side
def test_ends_of_a_top_k(side: str) -> None:
    """Rows of one call, which do not see each other: beside exponentials of 1,000 those of -1,000 would be zero."""
    for z, top, at, how, due in TOPS:
        if side == "tensors" and how not in ({}, ALL["tail"]):
            continue
        how = how if side == "arrays" else {}
        for moved in (0.0, 1000.0, -1000.0):
            beside = [
                np.array([x, y])
                for x, y in ((np.array(z) + moved, [1001.0, 1000, 999]), (top, top), (at, at))
            ]
            found = loss(side, "top_k_loss", *beside, **how, reduction="none")[0]
            same(found, due, 1e-5 if top == [math.log(0.5) + 4e-7] * 2 else 1e-12, 1e-13)
            if side == "tensors":
                gradient = slope(side, *(x[:1] for x in beside), name="top_k_loss", **how)
                assert not np.isnan(gradient).any()


def test_a_sum_that_rounding_has_fall_short_of_one_leaves_no_tail_where_all_classes_are_in() -> None:
    z, v = (x.astype(np.float32) for x in logits(22, (50, 3), 2.0))
    whole, at = torch.log_softmax(tensor(v), -1), np.tile(np.arange(3), (50, 1))
    assert (whole.exp().sum(-1) < 1).any()
    found = loss("tensors", "top_k_loss", z, whole, at, reduction="none")
    same(found, loss("tensors", "distillation_loss", z, v, reduction="none"), 1e-5, 1e-6)


@by_side
@pytest.mark.parametrize(("dtype", "slack"), [("float16", 1e-2), ("float32", 1e-4), ("bfloat16", 5e-2)])
def test_how_far_over_one_a_top_k_may_sum(dtype: str, slack: float, side: str) -> None:
    if side == "arrays" and dtype == "bfloat16":
        return
    for over in (0.8 * slack, 1.2 * slack):
        top: Any = np.full((2, 2), -40.0)
        top[1, 0] = math.log1p(over)
        top = tensor(top).to(getattr(torch, dtype)) if side == "tensors" else top.astype(dtype)
        module, given = (xt, tensor) if side == "tensors" else (distillation, np.asarray)
        with (
            nullcontext()
            if over < slack
            else pytest.raises(ValueError, match=r"^top_log_probs: .*got a sum of 1(\.\d+)? at index 1$")
        ):
            module.top_k_loss(given(np.zeros((2, 3))), top, given([[0, 1], [0, 1]]))


# --------------------------------------------------------------------- what does not go together is named

Z = np.array([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]])
TOP, AT = np.log([[0.5, 0.3], [0.4, 0.2]]), np.array([[0, 1], [1, 2]])
CUBE, DEEP = np.zeros((2, 3, 4)), np.tile([0, 1, 2], (2, 3, 1))
QUARTERS = np.full((2, 3, 3), math.log(0.25))


def put(x: Any, at: Any, value: Any) -> Array:
    x = np.array(x)
    x[at] = value
    return x


TOGETHER: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    *(("top_k_loss", (np.zeros((2, 4)), np.full((2, 3), math.log(0.25)), [[3, 0, 2], row]), {},
       "top_indices: expected distinct classes, .* at index 1$")
      for row in ([0, 0, 2], [2, 0, 2], [1, 2, 2], [3, 1, 3], [1, 1, 1])),
    ("top_k_loss", (CUBE, QUARTERS, put(DEEP, (1, 2, 1), 4)), {}, r"top_indices: .* got 4 at index \(1, 2, 1\)$"),
    ("top_k_loss", (CUBE, QUARTERS, put(DEEP, (1, 2, 1), 2)), {}, r"top_indices: .* at index \(1, 2\)$"),
    ("top_k_loss", (Z, TOP[:, :1], AT), {}, "top_indices: expected (the )?shape"),
    ("top_k_loss", (Z, TOP, AT.astype(float)), {}, "top_indices: expected integer class indices"),
    ("top_k_loss", (Z, TOP, np.zeros((2, 0), int)), {}, "top_indices: .*at least one class in each row"),
    ("top_k_loss", (Z, [[-1.0, -1.0], [1e4, 0.0]], AT), {}, "top_log_probs: .*, got a sum of inf at index 1$"),
    *(("top_k_loss", (Z, [TOP[0], [-INF, -INF]], AT), ALL[how],
       "top_log_probs: expected a sum above 0 .*, got 0 at index 1$") for how in TREATMENTS[1:3]),
    ("top_k_loss", (CUBE, put(QUARTERS, (1, 2), -INF), DEEP), ALL["renormalised"],
     r"top_log_probs: expected a sum above 0 .* at index \(1, 2\)$"),
    # Places are those of the caller's layout.
    ("top_k_loss", (np.zeros((3, 2)), TOP.T[:1], AT.T), {"axis": 0}, r"top_indices: .*\(1, 2\).*, got \(2, 2\)$"),
]  # fmt: skip
GOOD = [("top_k_loss", (Z, TOP, AT), {}), ("top_k_loss", (CUBE, QUARTERS, DEEP), {}),
        ("top_k_loss", (Z, [TOP[0], [-INF, -INF]], AT), ALL["truncated"]),
]  # fmt: skip


@by_side
def test_what_does_not_go_together_is_named(side: str) -> None:
    for name, arguments, options in GOOD:
        options = {n: x for n, x in options.items() if side == "arrays" or n != "treatment"}
        assert np.isfinite(loss(side, name, *arguments, **options))
    for name, arguments, options, said in TOGETHER:
        if side == "tensors" and "treatment" in options:
            continue
        with pytest.raises((TypeError, ValueError), match=f"^{said}"):
            loss(side, name, *arguments, **options)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float64), ids=str)
def test_no_row_between_near_and_far_is_infinite(dtype: torch.dtype) -> None:
    """A ratio of probabilities that all but overflows: such rows are done again beside rows that are not."""
    lead = torch.linspace(60.0, 800.0, 37_001, dtype=torch.float64)
    teacher = torch.stack([lead, torch.zeros_like(lead)], 1).to(dtype)
    student = torch.tensor([[0.5, -0.3]], dtype=dtype).repeat(len(lead), 1).requires_grad_()
    losses = xent.torch.distillation_loss(student, teacher, direction="jsd", reduction="none")
    p = torch.tensor([0.5, -0.3], dtype=dtype).double().softmax(0)[0].item()
    m = (1 + p) / 2
    expected = (-math.log(m) + p * math.log(p / m) + (1 - p) * math.log(2)) / 2
    torch.testing.assert_close(losses.double(), torch.full_like(lead, expected), rtol=1e-5, atol=0)
    losses.sum().backward()
    assert student.grad is not None and student.grad.isfinite().all()
