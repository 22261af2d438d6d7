"""What a refusal proposes instead, where it says it, and what is right although it looks wrong.

The table of all arguments is in test_contracts.py; here are the rows that need arguments of their own.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import xent
import xent.torch as xt
from xent import distillation, scoring
from xent.gradients import softmax_jacobian

inf, nan = float("inf"), float("nan")
G = np.random.default_rng(0)
Z, Y = G.normal(size=(4, 3)), np.array([0, 2, 1, 1])
P = np.exp(Z) / np.exp(Z).sum(1, keepdims=True)
HOT = np.eye(3, dtype=int)[Y]
MAP, MAP_Y = np.ascontiguousarray(np.moveaxis(G.normal(size=(2, 5, 4, 3)), 2, 1)), G.integers(0, 4, (2, 5, 3))
MAP_P = np.exp(MAP) / np.exp(MAP).sum(1, keepdims=True)
ONE, ONE_Y = np.array([0.3, 0.8, 0.5]), np.array([0, 1, 1])
FIRST = "; the predictions come first, and then the targets"
NUMBER = (
    "; for one number a target there are binary_cross_entropy (logits) and binary_log_loss (probabilities)"
)
BOTH: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "arrays": (xent, np.asarray),
    "tensors": (xt, lambda x: torch.as_tensor(np.asarray(x))),
}

# fmt: off
# Predictions, targets, options, and how the message ends. First what each loss of class indices says.
LABELLED = [*((name, Z, MAP) for name in ("cross_entropy", "focal_loss")),
            ("nll", np.log(P), np.log(MAP_P)), ("log_loss", P, MAP_P)]
HINTS: list[tuple[Any, ...]] = [(name, *row) for name, x, grid in LABELLED for row in (
    (Y, x, {}, FIRST),  # scikit-learn's order
    (HOT, x[:, None], {}, FIRST),
    (HOT * 1.0, P if name == "log_loss" else x, {}, FIRST),
    (grid, MAP_Y, {}, "; axis=1 fits"),  # channels second
    (np.moveaxis(grid, 1, -1), MAP_Y, {"axis": 1}, "; axis=3 fits"),
    (x, [0, -100, 1, -100], {}, "; ignore_index=-100 leaves such targets out"),
    (x, [0, 255, 1, 2], {}, "; ignore_index=255 leaves such targets out"),
    (x, [0, 255, 1, 2], {"ignore_index": -1}, "; ignore_index=255 leaves such targets out"),
    (x, Y + 1, {}, "; classes count from 0"),
    (x, HOT, {}, "; one-hot targets: give their argmax, or use soft_cross_entropy"),
    (x, P, {}, "; for target probabilities use soft_cross_entropy"),
    (x[:, 0], Y, {}, NUMBER),
    (x[:, :1] * 0 + (name == "log_loss"), Y % 2, {}, NUMBER),
    (x[:, :1], Y[:, None], {}, NUMBER),
    (x, Y * 1.0, {}, "; class indices are integers, and these are floats"),
    (x, [3, 0, 1, 2], {}, "got 3 at index 0"),  # no hint where none fits
    (x, [0, 1, 2, 0, 1], {}, "got (5,)"),
)] + [
    ("log_loss", MAP_P[:, :, 0], MAP_Y[:, 0], {"axis": 2}, "; axis=1 fits"),  # told by its values
    ("log_loss", Z, Y, {}, "; for logits use cross_entropy"),
    ("nll", Z, Y, {}, "; for logits use cross_entropy"),
    ("soft_cross_entropy", P, Z, {}, FIRST),
    ("soft_cross_entropy", Z, Y, {}, "; for class indices use cross_entropy"),
    ("soft_cross_entropy", MAP[:, :, 0], MAP_P[:, :, 0], {}, "; axis=1 fits"),
    ("soft_cross_entropy", ONE, ONE, {}, NUMBER),
    ("binary_log_loss", ONE * 9, ONE_Y, {}, "; for logits use binary_cross_entropy"),
    ("binary_log_loss", [3.0, 0.5], [0, 1], {}, "got 3.0 at index 0; for logits use binary_cross_entropy"),
    ("binary_log_loss", ONE_Y, ONE, {}, f"expected probabilities, got labels of 0 and 1{FIRST}"),
    ("binary_cross_entropy", ONE_Y * 1.0, ONE * 9, {}, FIRST),
    ("binary_cross_entropy", P, Y, {}, "; for a row of classes a target use cross_entropy"),
    ("binary_log_loss", P, Y, {}, "; for a row of classes a target use log_loss"),
    ("binary_cross_entropy", ONE, [0, -100, 1], {}, "; sample_weight=0 leaves such targets out"),
    ("binary_log_loss", ONE, [0, -100, 1], {}, "; sample_weight=0 leaves such targets out"),
]
# fmt: on


@pytest.mark.parametrize("side", BOTH)
@pytest.mark.parametrize(("name", "predictions", "targets", "options", "said"), HINTS)
def test_a_refusal_says_what_would_have_fitted(
    name: str, predictions: Any, targets: Any, options: dict[str, Any], said: str, side: str
) -> None:
    package, convert = BOTH[side]
    z, y = convert(predictions), convert(targets)
    if side == "tensors" and z.dtype == torch.int64:
        said = "; labels come second, as targets"  # a tensor of integers cannot be logits
    with pytest.raises(
        (TypeError, ValueError),
        match=rf"^(targets|target_probs|probs|logits|log_probs): .*{re.escape(said)}$",
    ):
        getattr(package, name)(z, y, **options)


@pytest.mark.parametrize("side", BOTH)
def test_what_the_hint_proposes_works(side: str) -> None:
    package, convert = BOTH[side]
    grid, labels, z, y, hot = map(convert, (MAP, MAP_Y, Z, Y, HOT * 1.0))
    assert package.cross_entropy(grid, labels, axis=1) > 0
    assert package.cross_entropy(convert(np.moveaxis(MAP, 1, -1)), labels, axis=3) > 0
    assert package.cross_entropy(z, convert([0, -100, 1, -100]), ignore_index=-100) > 0
    assert package.soft_cross_entropy(z, hot) == pytest.approx(float(package.cross_entropy(z, y)))
    assert package.binary_log_loss(convert(ONE), convert(ONE_Y)) > 0
    assert package.binary_cross_entropy(convert(ONE), convert(ONE_Y), sample_weight=convert(ONE)) > 0


# fmt: off
def spoilt(rows: Any, *where: int, by: float = nan) -> np.ndarray:
    z = np.array(rows, float)
    z[where] = by
    return z


TWO, TWO_Y = np.array([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]]), np.array([0, 1])
T, T_Y = torch.tensor(TWO), torch.tensor(TWO_Y)
JAX = type("ArrayImpl", (), {"__module__": "jaxlib._jax", "__array__": lambda self, *_, **__: np.array(TWO)})
ce, soft, bce, bll = (
    xent.cross_entropy, xent.soft_cross_entropy, xent.binary_cross_entropy, xent.binary_log_loss)
HOW = ("none", "sum", "mean")
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: ce(TWO, [-100, -2], ignore_index=-100), "targets: ...in [0, 3), got -2 at index 1"),
    (lambda: ce(TWO, np.array([0, 2**64 - 1], "u8")), "targets: ...got 18446744073709551615 at index 1"),
    (lambda: ce(TWO[0], [0]), "targets: expected shape (), ...got (1,)"),
    (lambda: ce(TWO[:0], np.zeros(0)), "targets: expected integer class indices, got dtype float64"),
    (lambda: ce(JAX(), TWO_Y), "logits: ... a JAX array, whose gradient would be lost"),
    # The row that counts is named, beside those that do not.
    (lambda: ce([[nan, 0.0], [nan, 0.0]], [-1, 0], ignore_index=-1), "logits: ...got nan at index (1, 0)"),
    (lambda: ce([[nan, 0.0], [nan, 0.0]], [0, 1], weight=[0.0, 1.0]), "logits: ...got nan at index (1, 0)"),
    (lambda: ce([[nan, 0.0]] * 2 + [[0.0, nan]], [-1, 0, 1], weight=[0.0, 1.0], ignore_index=-1),
     "logits: ...got nan at index (2, 1)"),
    *((partial(f, spoilt(TWO, 1, 1, by=by), y, reduction=how), f"logits: ...got {by} at index (1, 1)")
      for f, y in ((ce, TWO_Y), (soft, np.eye(3)[:2])) for by in (nan, inf) for how in HOW),
    (lambda: xt.cross_entropy(T, T_Y.to("meta")), "targets: ...device of the logits, cpu, got meta"),
    (lambda: xt.cross_entropy(T, T_Y, weight=[1.5e308] * 3), "weight: expected weights with a finite sum, got ...inf"),
    (lambda: xt.distillation_loss(T.float(), T.float(), temperature=1e-40),
     "temperature: expected a number > 0 in the range of torch.float32, got 1e-40"),
    (lambda: xt.sample_targets(T.float(), 2, proposal_temperature=1e39),
     "proposal_temperature: expected a number > 0 in the range of torch.float32, got 1e+39"),
    (lambda: xt.cross_entropy(T.float(), T_Y, softcap=1e39),
     "softcap: expected a number > 0 in the range of torch.float32, got 1e+39"),
    (lambda: xt.log_sum_exp(T[:0], axis=0), "x: expected at least one class along axis 0, got shape (0, 3)"),
]
Y3, Z3 = np.array([True, False, True]), np.array([2.0, 1.0, 0.0])
BIG = np.full((1000, 2), [3e38, 0.0], "f4")
RIGHT: list[tuple[Callable[[], Any], Any]] = [
    (lambda: ce([[1e308, 0.0, 0.0]], [0]), 0.0),  # what a search has found, and was mended
    (lambda: xent.log_softmax([1e19, 0.0]), [0.0, -1e19]),
    (lambda: xent.nll([[0.0, -inf, -744.4400719213812]], [0]), 0.0),
    (lambda: softmax_jacobian([1.7e308, 1e-8]), [[0.0, 0.0], [0.0, 0.0]]),
    (lambda: distillation.distillation_gradient([0.0, 0.0], [-inf, 0.0]), [0.5, -0.5]),
    (lambda: distillation.sampled_loss([1e300, 1e300], [0], [1.0]), np.log(2)),
    (lambda: distillation.distillation_loss([1e308, 1e308], [0.0, 1.0], scale="none"), 0.11094407),
    (lambda: xt.distillation_loss(torch.tensor([1e30, 1e30]), torch.tensor([0.0, 1.0])), 0.11094407),
    (lambda: xt.cross_entropy(T, T_Y, ignore_index=10**30), 0.28872599),
    (lambda: xt.cross_entropy(T, T_Y, weight=np.array([1, 2, 3])[::-1]), 0.31250199),
    (lambda: xt.soft_cross_entropy(torch.tensor([[inf, 0.0]]), torch.tensor([[0.5, 0.5]])), nan),
    (lambda: xt.distillation_loss(T.float(), T.float(), temperature=2.0**-126), 0.0),  # the smallest normal
    (lambda: xt.mixed_loss(T.float(), T.float(), T_Y, temperature=torch.finfo(torch.float32).max, alpha=1.0), 0.0),
    (lambda: xent.information.kl_divergence([0.5, 0.5], [1.0, 5e-324]), 371.52688878),
    (lambda: xent.sequences.GeometricSource(0.5).kl(5e-324), 743.05377756),
    (lambda: scoring.weighted_log_score([0.0, 1.0], 0, weight=[1e308, 1.0]), inf),
    # An infinite loss is right, and silent; weight zero takes it out, for 0 * inf must not reach the sum.
    (lambda: ce([[-inf, 0.0]] * 2, [0, 1], reduction="none"), [inf, 0]),
    (lambda: ce([[-inf, 0.0]], [1], label_smoothing=0.1), inf),
    (lambda: soft([[-inf, 0.0]] * 2, [[0.0, 1.0], [0.5, 0.5]], reduction="none"), [0, inf]),
    (lambda: [xent.nll([[0.0, -inf]], [1]), xent.log_loss([[0.0, 1.0]], [0])], [inf, inf]),
    (lambda: xent.log_loss([[0.0, 1.0], [0.5, 0.5]], [0, 1], weight=[0.0, 1.0]), np.log(2)),
    (lambda: xent.nll([[-inf, 0.0], [0.0, -inf]], [0, 0], weight=[0.0, 1.0], reduction="sum"), 0),
    (lambda: bce([inf, inf, -inf, -inf], [1, 0, 1, 0], reduction="none"), [0, inf, inf, 0]),
    (lambda: bce([inf, 0.0], [0, 1], sample_weight=[0.0, 1.0]), np.log(2)),
    (lambda: xent.log_sum_exp([[-inf, -inf], [inf, -inf], [inf, inf], [-inf, 1.0]]), [-inf, inf, inf, 1.0]),
    (lambda: [xent.sigmoid([-inf, inf]), xent.log_sigmoid([-inf, inf])], [[0, 1], [-inf, 0]]),
    (lambda: [ce(BIG, [1] * 1000, reduction="sum"), ce(BIG, [1] * 1000, denominator=1e-3)], [inf, inf]),
    (lambda: [ce(BIG, [1] * 1000), ce(TWO, TWO_Y, denominator=5e-324)], [np.float32(3e38), inf]),
    # Logits of a target that does not count are not looked at.
    *((partial(ce, spoilt(TWO, 0, by=by), y, reduction=how, **out),
       ce(TWO, [-1, 1], ignore_index=-1, reduction=how))
      for by in (nan, inf, -inf) for how in HOW
      for y, out in (([-1, 1], {"ignore_index": -1}), (TWO_Y, {"weight": [0.0, 1.0, 1.0]}))),
    # Booleans are masks and labels; labels of 0 and 1 may be probabilities, and integers logits.
    (lambda: [bce(Z3, Y3), bce(Z3, Y3, sample_weight=Y3)], [bce(Z3, [1, 0, 1]), bce(Z3[Y3], [1, 1])]),
    (lambda: ce(TWO, [0, 0], sample_weight=[True, False]), ce(TWO, [0, -100], ignore_index=-100)),
    (lambda: [bll([0, 1], [0, 1]), bll(ONE_Y * 1.0, ONE)], [0, inf]),
    (lambda: [bce([0, 0], [0.25, 0.75]), ce([[0, 0], [1, 1]], [0, 1])], [np.log(2)] * 2),
    # One row takes one label, an empty list is a list of labels, and a factor of the loss no weight.
    (lambda: [ce(TWO[0], 0), ce(TWO[0], np.array(0))], [ce(TWO[:1], [0])] * 2),
    (lambda: ce(np.zeros((0, 3)), [], reduction="none"), np.zeros(0)),
    (lambda: ce(np.zeros((2, 0, 3)), [[], []], reduction="none"), np.zeros((2, 0))),
    (lambda: bce([1.0, 2.0], [1, 1], pos_weight=1e307), 5e306 * bce([1.0, 2.0], [1, 1], reduction="sum")),
    # Weights broadcast as NumPy's arrays do.
    *((partial(f, x, HOT[:2], **{name: w}), f(x, HOT[:2], **{name: np.broadcast_to(w, (2, 3)) * 1.0}))
      for w in (2.0, [2.0], [1.0, 2.0, 3.0], [[1.0], [2.0]], np.ones((2, 3)), Y3)
      for f, x, name in (
          (bce, TWO, "sample_weight"), (bce, TWO, "pos_weight"), (ce, MAP[:, :, :3, 0].mT, "sample_weight"))
      if name == "sample_weight" or np.all(w)),
]
# fmt: on


@pytest.mark.parametrize(("call", "said"), REFUSED)
def test_what_needs_more_than_one_argument_is_refused(call: Callable[[], Any], said: str) -> None:
    pattern = re.escape(said).replace(re.escape("..."), ".*")
    with np.errstate(all="raise"), pytest.raises((TypeError, ValueError), match=f"^{pattern}"):
        call()


@pytest.mark.parametrize(("call", "value"), RIGHT)
def test_what_looks_wrong_is_right(call: Callable[[], Any], value: Any) -> None:
    with np.errstate(all="raise"):
        np.testing.assert_allclose(np.asarray(call(), float), value, rtol=3e-7, atol=1e-300)


@pytest.mark.parametrize("deviation", [0.0, 1.0, 3.0, 10.0])
def test_a_float32_softmax_of_a_large_vocabulary_is_a_distribution_in_float64(deviation: float) -> None:
    """Its rows sum to one within the rounding of 128,256 terms, beyond 1e-6, whoever computed it."""
    z = deviation * np.random.default_rng(0).standard_normal((4, 128_256), dtype=np.float32)
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    for p in (xent.softmax(z), torch.softmax(torch.from_numpy(z), -1).numpy(), e / e.sum(-1, keepdims=True)):
        p = p.astype(np.float64)
        assert soft(z, p) > 0 and xent.log_loss(p, np.zeros(4, int)) > 0
        with pytest.raises(ValueError, match=r"^probs: .*within 0\.00017 for 128256 .*sum of 0\.999"):
            xent.log_loss(p * 0.9995, np.zeros(4, int))


@pytest.mark.parametrize("classes", [2, 4, 5, 10, 1000])
def test_a_sum_may_be_off_by_the_rounding_of_its_terms(classes: int) -> None:
    p, within = np.full(classes, 1 / classes), max(1e-6, 4.8e-7 * classes**0.5)
    p[0] += 0.99 * within
    soft(np.zeros(classes), p)
    p[0] += 0.02 * within
    with pytest.raises(ValueError, match=r"^target_probs: .*sum to one"):
        soft(np.zeros(classes), p)


PROMISED = re.findall(r"torch>=([\d.]+)", (Path(__file__).parents[2] / "pyproject.toml").read_text())
MISSING = f"ImportError: xent.torch needs PyTorch {PROMISED[0]} or newer"  # both extras say the same


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys, xent; assert 'torch' not in sys.modules; print(xent.torch.nll.__name__)", "nll"),
        ("import xent; xent.flax", "AttributeError: module 'xent' has no attribute 'flax'"),
        ("import sys, xent; sys.modules['torch'] = None; import xent.torch", MISSING),
        ("import sys, xent; sys.modules['torch'] = None; xent.torch", MISSING),
        ("import torch; torch.__version__ = '2.5.1+cpu'; import xent.torch", f"{MISSING}, found 2.5.1+cpu"),
    ],
)
def test_pytorch_is_loaded_when_it_is_looked_at_and_named_when_missing(code: str, said: str) -> None:
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (finished.stdout + finished.stderr).strip().splitlines()[-1] == said
