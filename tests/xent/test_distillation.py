"""Distillation on arrays and tensors: impossible classes to the second order, dtypes, the mixture, a teacher's top k.

How the two sides agree over every option is in test_twins.py, laws are in test_laws.py, digits in test_accuracy.py,
limits in test_ends.py, derivatives of any order in test_torch_transforms.py, refusals of one argument in
test_contracts.py.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import xent
import xent.torch as xt
from xent import distillation
from xent.distillation import distillation_loss

Array = np.ndarray[Any, Any]
INF, NAN = math.inf, math.nan
TREATMENTS = ("truncated", "renormalised", "renormalised_both", "tail")
by_side = pytest.mark.parametrize("side", ["arrays", "tensors"])


def logits(seed: int, shape: tuple[int, ...] = (6, 5), spread: float = 3.0) -> tuple[Array, Array]:
    g = np.random.default_rng(seed)
    return g.normal(size=shape) * spread, g.normal(size=shape) * spread


def tensor(x: Any) -> torch.Tensor:
    return torch.as_tensor(np.asarray(x))


def loss(side: str, name: str, *arguments: Any, **options: Any) -> Any:
    if side == "arrays":
        return getattr(distillation, name)(*arguments, **options)
    return getattr(xt, name)(*map(tensor, arguments), **options).numpy()[()]


def same(got: Any, due: Any, rtol: float = 0.0, atol: float = 0.0) -> None:
    np.testing.assert_allclose(got, due, rtol=rtol, atol=atol)


# --------------------------------------------------------------------------------------- second derivatives


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


@by_side
@pytest.mark.parametrize("name", ["distillation_loss", "top_k_loss"])
def test_dtypes(side: str, name: str) -> None:
    """Both are computed in that of the wider argument, once; weights of samples are mere numbers."""
    z, v = logits(21, (6, 5), 2.0)
    at = np.argsort(-v, -1)[:, :2]
    other, *rest = (
        (v,) if name == "distillation_loss" else (np.take_along_axis(xent.log_softmax(v), at, -1), at)
    )
    due = loss(side, name, z, other, *rest, reduction="none")
    for kinds, dtype in (("ee", "f4"), ("ff", "f4"), ("fe", "f4"), ("df", "f8"), ("fd", "f8")):
        some = [x.astype(kind) for x, kind in zip((z, other), kinds, strict=True)]
        found = loss(side, name, *some, *rest, reduction="none")
        assert found.dtype == dtype
        same(found, due, atol=40 * max(float(np.finfo(kind).eps) for kind in kinds))
        if dtype == "f8":
            same(found, loss(side, name, *(x.astype("f8") for x in some), *rest, reduction="none"), 1e-15)


# ------------------------------------------------------------------------------------------- the mixture


@pytest.mark.parametrize("settings", [{}, {"scale": "none"}, {"direction": "reverse"}], ids=str)
def test_the_mixture_and_its_ignored_rows(settings: dict[str, Any]) -> None:
    z, v = logits(9, (4, 3))
    settings, y = {"temperature": 3.0, **settings}, np.array([0, 2, -100, 1])
    keep = y != -100
    hard, soft = xent.cross_entropy(z[keep], y[keep]), distillation_loss(z[keep], v[keep], **settings)
    z[2], v[2] = NAN, [INF, NAN, 0.0]
    for alpha in (0.0, 0.25, 1.0):
        options = {"alpha": alpha, "ignore_index": -100, **settings}
        found = loss("tensors", "mixed_loss", z, v, y, **options)
        same(found, (1 - alpha) * hard + alpha * soft, 1e-12)
        same(loss("tensors", "mixed_loss", z, v, y, denominator=7.0, **options), found * 3 / 7, 1e-13)


# --------------------------------------------------------------------------------------- a teacher's top k


@pytest.mark.parametrize("treatment", TREATMENTS)
def test_the_top_k_formulas(treatment: Any) -> None:
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
        of, w = partial(distillation.top_k_loss, treatment=treatment), np.arange(float(len(z)))
        same(of(z, np.log(a), at, reduction="none"), due, 1e-10, 1e-13)
        same(of(z.T, np.log(a).T, at.T, axis=0, sample_weight=w), due @ w / w.sum(), 1e-10, 1e-13)
        # With every class in it, nothing is left to treat.
        whole = np.tile(np.arange(shape[1]), (len(z), 1))
        complete = of(z, xent.log_softmax(v), whole, reduction="none")
        same(complete, distillation_loss(z, v, reduction="none"), 1e-10, 1e-13)


TWO, SURE, HALF = math.log(2), [0.0, -INF], [math.log(0.5)] * 2
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
            rows = (np.array(z) + moved, [1001.0, 1000, 999]), (top, top), (at, at)
            beside = [*map(np.array, rows)]
            found = loss(side, "top_k_loss", *beside, **how, reduction="none")[0]
            same(found, due, 1e-5 if top == [math.log(0.5) + 4e-7] * 2 else 1e-12, 1e-13)
            if side == "tensors":
                student = tensor(beside[0][:1]).requires_grad_()
                xt.top_k_loss(student, *(tensor(x[:1]) for x in beside[1:])).backward()
                assert student.grad is not None and not student.grad.isnan().any()


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
        refused = pytest.raises(ValueError, match=r"^top_log_probs: .*got a sum of 1(\.\d+)? at index 1$")
        with nullcontext() if over < slack else refused:
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


TOGETHER: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    *(((np.zeros((2, 4)), np.full((2, 3), math.log(0.25)), [[3, 0, 2], row]), {},
       "top_indices: expected distinct classes, .* at index 1$")
      for row in ([0, 0, 2], [2, 0, 2], [1, 2, 2], [3, 1, 3], [1, 1, 1])),
    ((CUBE, QUARTERS, put(DEEP, (1, 2, 1), 4)), {}, r"top_indices: .* got 4 at index \(1, 2, 1\)$"),
    ((CUBE, QUARTERS, put(DEEP, (1, 2, 1), 2)), {}, r"top_indices: .* at index \(1, 2\)$"),
    ((Z, TOP, np.zeros((2, 0), int)), {}, "top_indices: .*at least one class in each row"),
    ((Z, [[-1.0, -1.0], [1e4, 0.0]], AT), {}, "top_log_probs: .*, got a sum of inf at index 1$"),
    *(((Z, [TOP[0], [-INF, -INF]], AT), ALL[how],
       "top_log_probs: expected a sum above 0 .*, got 0 at index 1$") for how in TREATMENTS[1:3]),
    ((CUBE, put(QUARTERS, (1, 2), -INF), DEEP), ALL["renormalised"],
     r"top_log_probs: expected a sum above 0 .* at index \(1, 2\)$"),
    # Places are those of the caller's layout.
    ((np.zeros((3, 2)), TOP.T[:1], AT.T), {"axis": 0}, r"top_indices: .*\(1, 2\).*, got \(2, 2\)$"),
]  # fmt: skip


@by_side
def test_what_does_not_go_together_is_named(side: str) -> None:
    assert np.isfinite(loss("arrays", "top_k_loss", Z, [TOP[0], [-INF, -INF]], AT, **ALL["truncated"]))
    for arguments, options, said in TOGETHER:
        if side == "arrays" or "treatment" not in options:
            with pytest.raises((TypeError, ValueError), match=f"^{said}"):
                loss(side, "top_k_loss", *arguments, **options)


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
