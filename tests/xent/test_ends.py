"""Losses and gradients at the ends of their domains: one table, whose rows are tried on arrays and on tensors.

Impossible and certain classes, infinite logits, what does not count, shares below the smallest normal number, weights
and divisors that float32 does not hold. A certain answer costs zero, and not minus zero; nothing warns.
"""

from __future__ import annotations

import math
from operator import attrgetter
from typing import Any

import numpy as np
import pytest
import torch

import xent
import xent.torch as xt
from xent import gradients
from xent.distillation import distillation_gradient

INF, NAN, TWO = math.inf, math.nan, math.log(2)
SURE, ONCE = math.exp(-30), math.log1p(math.exp(-1))
CE, SOFT, BCE, FOCAL = "cross_entropy", "soft_cross_entropy", "binary_cross_entropy", "focal_loss"
KL, REVERSE = "distillation.distillation_loss", {"direction": "reverse"}
MIXED: Any = {"direction": "jsd", "beta": 0.25}
IGNORE, NONE, SUM = {"ignore_index": -100}, {"reduction": "none"}, {"reduction": "sum"}
FLAT, OUT, MIDDLE = [[0.0, 0.0]], [[0.0, -INF]], [[0.0, -INF, 0.0]]
OVER, MANY = [[1 + 2.0**-21, 0.0]], np.zeros((3, 300))  # the first within the tolerance of a sum
HOPELESS = [[NAN, 0.0], [0.0, NAN], [-INF, -INF], [INF, 0.0], [0.0, INF]]
TINY = {of: float(np.finfo(np.promote_types(of, "f4")).tiny) for of in ("float64", "float32", "float16")}
Q = [1.0, 0.0, 0.0]


def softmax(*z: float, at: float = 1.0) -> Any:
    return xent.softmax(np.array([z]) / at)


def drawn(p: Any, q: Any, at: float) -> Any:
    """The gradient of the reverse divergence, times T^2."""
    return at * q * (np.log(q / p) - (q * np.log(q / p)).sum())


# Where (sides, dtypes; else both, in float64 and float32), a function, its arguments and options, the loss, and the
# gradient by the first argument; None: not asked for.
# fmt: off
ENDS: list[tuple[Any, ...]] = [
    # What is certain, by each reduction.
    *(row for how in ({}, SUM, NONE) for row in (
        ("", CE, (OUT, [0]), how, 0, [[0, 0]]),
        ("", CE, ([[0.0]], [0]), {"label_smoothing": 0.5, **how}, 0, [[0]]),
        ("", SOFT, (OUT, [[1.0, 0.0]]), how, 0, [[0, 0]]), ("", BCE, ([INF, -INF], [1, 0]), how, 0, [0, 0]),
        ("", "nll", (OUT, [0]), how, 0, [[-1, 0]]), ("", "log_loss", ([Q[:2]], [0]), how, 0, [[-1, 0]]))),
    # Class indices.
    ("", CE, (MIDDLE, [0]), {}, TWO, [[-0.5, 0, 0.5]]), ("", CE, (MIDDLE, [1]), {}, INF, [[0.5, -1, 0.5]]),
    ("", CE, (MIDDLE, [0]), {"label_smoothing": 0.3}, INF, [[-0.3, -0.1, 0.4]]),
    ("", CE, ([[30.0, 0.0]], [0]), {}, math.log1p(SURE), [[-SURE / (1 + SURE), SURE / (1 + SURE)]]),
    # No 0 * inf, of a label without mass.
    ("", CE, ([[0.0, -INF], [0.0, 1.0]], [1, 1]), {"label_smoothing": 1.0, **NONE}, [INF, ONCE + 0.5]),
    ("", CE, ([[0.0], [0.0]], [-100, 0]), IGNORE, 0, [[0], [0]]),
    ("", CE, (MANY * NAN, [7] * 3), {"ignore_index": 7, "denominator": 1}, 0, MANY),
    ("float64", CE, ([[1e308, 0.0, 0.0]], [0]), {}, 0),
    ("arrays", "log_softmax", ([1e19, 0.0],), {}, [0.0, -1e19]),
    *(("arrays", CE, (MIDDLE, [0]), {"weight": [w] * 3, "denominator": w}, TWO, [[-0.5, 0, 0.5]])
      for w in (1e300, 1e-300)),  # which float32 does not hold
    *((f"arrays {dtype}", CE, (MIDDLE, [0]), {"weight": w, "denominator": d}, INF, [[-INF, 0, INF]])
      for w in (None, [1.0] * 3) for dtype, d in (("float32", 1e-300), ("", 5e-324))),
    ("arrays float32", SOFT, (MIDDLE, [[1.0, 0.0, 0.0]]), {"denominator": 1e-300}, INF, [[-INF, 0, INF]]),
    ("float32", CE, ([[80.0, 0.0]], [0]), {"denominator": 1e30}, 0),
    ("float32", CE, ([[8e4, 0.0]], [1]), {"denominator": 1e-38}, INF),
    *(("float32", CE, ([[3e38, 0.0]] * 1000, [1] * 1000), how, due)
      for how, due in (({}, 3e38), (SUM, INF), ({"denominator": 1e-3}, INF))),
    ("tensors", CE, ([[NAN, 0.0], [-INF, -INF]], [0, 0]), NONE, [NAN, NAN]),
    # +inf has no softmax, and the label's own makes all others as nothing.
    *(("tensors", CE, ([[INF] + [0.0] * (k - 1)], [label]), {"label_smoothing": e}, NAN)
      for k in (1, 2, 20) for label, e in ((0, 0.0), (0, 0.1), (k - 1, 0.0))),
    ("", FOCAL, (MIDDLE, [1]), {"alpha": [1.0, 0.0, 1.0]}, 0),
    *(("tensors", FOCAL, ([[-INF, 0.0, 0.0]], [0]), {"gamma": g}, INF, [[-1, 0.5, 0.5]])
      for g in (0.0, 0.5, 1.0, 1.5, 2.0, 5.0)),
    # alpha is no weight: a row without a softmax counts.
    *(("tensors", FOCAL, ([row, [0.0, 0.0]], [0, 1]), {"alpha": [1 - a, a], **NONE}, [NAN, a * TWO / 4],
       [[NAN, NAN], [a * (TWO / 4 + 0.125), -a * (TWO / 4 + 0.125)]])
      for row in HOPELESS for a in (0.0, 1.0)),
    # Distributions.
    ("", SOFT, (MIDDLE, [[0.25, 0.0, 0.75]]), {}, TWO, [[0.25, 0, -0.25]]),
    ("", SOFT, (MIDDLE, [[0.0, 0.5, 0.5]]), {}, INF, [[0.5, -0.5, 0]]),
    ("", SOFT, ([[-INF, 0.0]] * 2, [[0.0, 1.0], [0.5, 0.5]]), NONE, [0, INF]),
    ("float32", SOFT, (FLAT, [[1.00005, 0.0]]), {}, 1.00005 * TWO),
    ("tensors", SOFT, ([[INF, 0.0]], [[0.5, 0.5]]), {}, NAN),
    *(("", SOFT, ([row, *FLAT], [[1.0, 0.0], [0.0, 1.0]]), {"weight": [0.0, 3.0], "sample_weight": w}, TWO,
       [[0, 0], [0.5, -0.5]]) for row in HOPELESS for w in (None, [2.0, 1.0])),
    # What is ignored is compared as an integer: -100 in eight bits is 156.
    ("", CE, (np.zeros((1, 200)), np.array([156], "u1")), IGNORE, math.log(200)),
    *(("tensors", CE, (FLAT * 2, [0, i]), {"ignore_index": i}, TWO)
      for i in (-(2**63), -1000, -1, 156, 1000, 2**63 - 1)),
    # One logit a target: in both tails, and of what has no weight; 1 less the mass of the label would lose digits.
    ("", BCE, ([-INF, INF, INF, INF, -INF], [1.0, 0.0, 1.0, 0.25, 0.0]), NONE, [INF, INF, 0, INF, 0],
     [-1, 1, 0, 0.75, 0]),
    *(("", BCE, ([NAN, INF, -INF, 0.0], [0, 0, 1, 1]), {"sample_weight": [0, 0, 0, w], **SUM}, TWO * w,
       [0, 0, 0, -w / 2]) for w in (0.5, 1.0)),
    *(("", BCE, ([80.0], [1]), {"label_smoothing": e}, 40 * e, [e / 2]) for e in (1e-5, 1e-3, 0.1)),
    # A target in float64 keeps what it leaves of one.
    ("float32", BCE, ([40.0], np.array([1 - 1e-10])), {}, 40e-10),
    ("float32", "binary_log_loss", ([1.0], np.array([1 - 1e-10])), {}, INF),
    # Probabilities and their logarithms; the target's alone has a gradient, and none if it is clipped.
    ("", "nll", (OUT, [1]), {}, INF), ("", "log_loss", ([[0.0, 1.0]], [0]), {}, INF),
    ("float64", "nll", ([[0.0, -INF, -744.4400719213812]], [0]), {}, 0),
    ("", "nll", ([[-INF, 0.0], [0.0, -INF]], [0, 0]), {"weight": [0.0, 1.0], **SUM}, 0),
    ("", "nll", ([[-INF, 0.0], [0.0, -INF]], [-100, 0]), IGNORE, 0, [[0, 0], [-1, 0]]),
    ("", "nll", ([[0.0], [0.0]], [-100, 0]), IGNORE, 0),
    ("", "log_loss", ([[0.0, 1.0], [0.25, 0.75]], [-100, 1]), IGNORE, -math.log(0.75), [[0, 0], [0, -4 / 3]]),
    *(("", name, (rows, [2, 1, -100]), {"weight": [3.0, 2.0, 0.0], **IGNORE}, TWO,
       [[0] * 3, [0, slope, 0], [0] * 3])
      for name, rows, slope in (
          ("log_loss", [[0.0, 1.0, 0.0], [0.25, 0.5, 0.25], [0.0, 0.5, 0.5]], -2.0),
          ("nll", np.log([[1e-30, 1, 1e-30], [0.25, 0.5, 0.25], [1e-30, 0.5, 0.5]]).tolist(), -1.0))),
    ("", "binary_log_loss", ([1.0, 0.0], [1, 0]), SUM, 0, [-1, 1]),
    *(("", "log_loss", (OVER, [0]), how, -math.log1p(by))
      for how, by in (({}, 2.0**-21), ({"eps": 1e-3}, -1e-3))),
    ("float32", "log_loss", ([[1.00005, 0.0]], [0]), {}, -math.log(np.float32(1.00005))),
    *(row for c in (0.1, 1e-3, 1e-8, 1e-17, 1e-30) for row in (
        ("", "log_loss", ([[0.0, 1.0], [0.25, 0.75], [1.0, 0.0]], [0] * 3), {"eps": c, **NONE},
         [-math.log(c), math.log(4), -math.log1p(-c)], [[0, 0], [-4, 0], [0, 0]]),
        ("", "binary_log_loss", ([0.0, 0.25, 1.0], [0] * 3), {"eps": c, **NONE},
         [-math.log1p(-c), -math.log1p(-0.25), -math.log(c)], [0, 1 / 0.75, 0]),
        ("", "binary_log_loss", ([0.0, 0.25, 1.0], [1] * 3), {"eps": c, **NONE},
         [-math.log(c), math.log(4), -math.log1p(-c)], [0, -4, 0]))),
    # What is below the smallest normal number is no smoothing and no clip.
    *(row for dtype, least in TINY.items() for e, gone in ((least / 4, True), (least, False)) for row in (
        (dtype, CE, (OUT, [0]), {"label_smoothing": e}, 0 if gone else INF),
        (dtype, BCE, ([-INF], [0]), {"label_smoothing": e}, 0 if gone else INF),
        (dtype, "log_loss", ([[1.0, 0.0]], [1]), {"eps": e}, INF if gone else -math.log(e)),
        (dtype, "binary_log_loss", ([0.0], [1]), {"eps": e}, INF if gone else -math.log(e)))),
    # Students and teachers; of a reverse divergence of inf there is no gradient.
    ("", KL, (OUT, [[2.0, -INF]]), {}, 0, [[0, 0]]), ("", KL, (OUT, FLAT), {}, INF, [[0.5, -0.5]]),
    ("", KL, (FLAT, OUT), {}, TWO, [[-0.5, 0.5]]), ("", KL, (FLAT, OUT), REVERSE, INF, [[NAN, NAN]]),
    ("", KL, (OUT, FLAT), REVERSE, TWO, [[0, 0]]),
    ("", KL, ([[1e30, 0.0]], [[1e30, 0.0]]), {"temperature": 1e-9}, 0, [[0, 0]]),
    ("float64", KL, ([[1e300, 0.0]], [[1e300, 0.0]]), {"temperature": 1e-9}, 0, [[0, 0]]),
    # A small temperature does not overflow: KL of softmax(0, -1) and softmax(-1, 0).
    ("", KL, ([[0.0, -1e-9]], [[-1e-9, 0.0]]), {"temperature": 1e-9, "scale": "none"}, math.tanh(0.5)),
    ("float32", KL, ([[2.0, 1.0]], [[2.0, 1.0]]), {"temperature": 2.0**-126}, 0, [[0, 0]]),
    *((dtype, KL, ([[far, far]], [[0.0, 1.0]]), {}, TWO - math.log1p(math.e) + 1 / (1 + math.exp(-1)))
      for dtype, far in (("", 1e30), ("float64", 1e308))),
    # Finite where the supports differ: each row of m lacks what the other has.
    ("", KL, (OUT, [[-INF, 0.0]]), MIXED, -0.25 * math.log(0.25) - 0.75 * math.log(0.75), [[0, 0]]),
    ("", KL, ([[0.0, 800.0]], [[800.0, 0.0]]), {"direction": "jsd"}, TWO, [[0, 0]]),
    # A class that the teacher rules out is pushed down by T (q - p), also where p has underflowed; what the student
    # rules out has no part in the reverse divergence.
    *(row for t in (0.5, 1.0, 30.0) for row in (
        *(("", KL, ([z], [v]), {"temperature": t}, None, t * (softmax(*z, at=t) - softmax(*v, at=t)))
          for z, v in (([0.3, -0.2, 0.1], [0.3, 0.1, -INF]), ([0.3, -0.2, 0.1], [0.3, -1200 * t, 0.0]),
                       ([0.3, 0.2, -1200 * t], [0.3, 0.2, 0.1]), ([0.3, 0.2, -INF], [0.3, 0.1, -INF]))),
        *(("", KL, ([[0.3, 0.2, out]], [[0.3, 0.5, 0.1]]), {"temperature": t, **REVERSE}, None,
           [[*drawn(softmax(0.3, 0.5, at=t), softmax(0.3, 0.2, at=t), t)[0], 0]])
          for out in (-1200 * t, -INF)))),
    # Of a student as sure as its teacher, next to nothing is left.
    ("arrays", "distillation.top_k_loss", ([[30.0, 0.0]], [[0.0]], [[0]]), {}, math.log1p(SURE)),
    # A part of the mixture without weight may be infinite.
    *(("tensors", "mixed_loss", ([z], [v], [y]), {"alpha": alpha}, due) for z, v, y, alpha, due in (
        (*OUT, *FLAT, 0, 0.0, 0), (*OUT, *FLAT, 0, 0.5, INF),
        (*OUT, *OUT, 1, 1.0, 0), (*OUT, *OUT, 1, 0.5, INF),
        ([0.0], [0.0], 0, 0.5, 0), ([0.0, 1.0], [0.0, 1.0 + 1e-7], 1, 1e-300, ONCE))),
    ("tensors float32", "mixed_loss", (FLAT, FLAT, [0]), {"temperature": 3e38, "alpha": 1.0}, 0),
    # Functions of arrays alone.
    *(("arrays", "log_sum_exp", (x,), {}, due)
      for *x, due in ((-INF, -INF, -INF), (INF, -INF, INF), (INF, INF, INF), (-INF, 1.0, 1.0))),
    ("arrays", "sigmoid", ([-INF, INF],), {}, [0, 1]),
    ("arrays", "log_sigmoid", ([-INF, INF],), {}, [-INF, 0]),
    ("arrays", "information.entropy", ([1.0, 0.0],), {}, 0),
    *(("arrays", f"information.{name}", (p, q), {}, due) for name, p, q, due in (
        *((name, p, [1.0, 0.0], due)
          for name in (CE, "kl_divergence") for p, due in (([1.0, 0.0], 0), ([0.5, 0.5], INF))),
        ("kl_divergence", [1.0, 0.0], [0.5, 0.5], TWO))),
    *(row for kind in ("i1", "u8", "f2") for row in (
        ("arrays", "information.entropy", (np.array([[0, 1], [1, 0]], kind),), {}, 0),
        ("arrays", "information.kl_divergence", (np.array([0, 1], kind), [0.5, 0.5]), {}, TWO))),
    ("arrays float64", "information.kl_divergence", ([0.5, 0.5], [1.0, 5e-324]), {}, 536 * TWO),
    # Scoring rules of a sure report.
    *(("arrays", f"scoring.{name}", (q, y), options, due) for name, q, y, options, due in (
        *(("smoothed_log_score", Q, y, {"label_smoothing": e}, due)
          for y, e, due in ((1, 1.0, INF), (0, 1.0, INF), (0, 0.1, INF), (0, 0.0, 0))),
        ("smoothed_log_score", [0.5, 0.5], 0, {"label_smoothing": 1.0}, TWO),
        *((rule, Q, y, {}, due) for rule in ("log_score", FOCAL) for y, due in ((0, 0), (1, INF), (2, INF))),
        ("brier_score", Q, 1, {}, 2), ("spherical_score", Q, 1, {}, 1),
        ("clipped_log_score", Q, 1, {"eps": 0.25}, math.log(4)),
        ("clipped_log_score", [1.0, 0.0], 1, {}, -math.log(1e-7)),
        ("clipped_log_score", [1.0, 0.0], 0, {}, -math.log(1 - 1e-7)),
        ("weighted_log_score", Q, 1, {"weight": [1.0, 0.0, 1.0]}, 0),
        ("weighted_log_score", [0.0, 1.0], 0, {"weight": [1e308, 1.0]}, INF),
        ("zero_one_score", [[1 / 3] * 3, [0.4, 0.4, 0.2]], [2, 2], {}, [2 / 3, 1]))),
]
# fmt: on
CASES = [
    (side, dtype, row)
    for row in ENDS
    for side in ("arrays", "tensors")
    for dtype in ("float64", "float32", "float16")
    if side in row[0] or not {"arrays", "tensors"} & {*row[0].split()}
    if dtype in row[0] or ("float" not in row[0] and dtype != "float16")
]


def same(got: Any, due: Any, rtol: float, atol: float = 0.0) -> None:
    np.testing.assert_allclose(got, due, rtol=rtol, atol=atol)


@pytest.mark.parametrize(
    ("side", "dtype", "row"), CASES, ids=[f"{row[1]}, {side}, {of}" for side, of, row in CASES]
)
def test_a_loss_and_its_gradient_at_the_ends(side: str, dtype: str, row: tuple[Any, ...]) -> None:
    """On tensors with a gradient and without."""
    _, name, given, options, due, slope = (*row, None)[:6]
    eps = float(np.finfo(np.promote_types(dtype, "f4")).eps)
    kinds = [dtype if isinstance(x, list) and np.array(x).dtype == float else None for x in given]
    arrays = [*map(np.array, given, kinds)]
    if side == "arrays":
        by = distillation_gradient if name == KL else getattr(gradients, f"{name}_gradient", None)
        with np.errstate(all="raise"):
            found = [attrgetter(name)(xent)(*arrays, **options)]
            gradient = None if by is None or slope is None else by(*arrays, **options)
    else:
        function, (z, *others) = getattr(xt, name.rpartition(".")[2]), map(torch.as_tensor, arrays)
        value = function(z.requires_grad_(), *others, **options)
        found = [value.detach(), function(z.detach(), *others, **options)]
        gradient = None if slope is None else torch.autograd.grad(value.sum(), z)[0]
    for loss in map(np.asarray, found):
        assert not np.signbit(loss[loss == 0]).any()
        if due is not None:
            same(loss, due, 8 * eps)
    if gradient is not None:
        same(gradient, slope, *((256 * eps, eps) if name == KL else (8 * eps,)))
