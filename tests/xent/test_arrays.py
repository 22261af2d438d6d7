"""What is peculiar in the functions on arrays: the memory that they take, and a quotient that no float holds."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import xent
from xent import _blocks, gradients, information


def extra_memory(call: Callable[..., Any], *given: Any, **options: Any) -> int:
    """Bytes that were held at once while it ran, at most, beyond the result."""
    call(*given, **options)
    tracemalloc.start()
    try:
        result = call(*given, **options)
        return tracemalloc.get_traced_memory()[1] - (result.nbytes if result.ndim > 1 else 0)
    finally:
        tracemalloc.stop()


# A megabyte for float32, and a few rows where these are longer.
MEGABYTE = 1 << 20
SHAPES = [(400_000, 2), (100_000, 10), (128, 20_000), (50, 100_000)]


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("axis", [0, 1])
def test_extra_memory_does_not_grow_with_the_logits(shape: tuple[int, int], dtype: str, axis: int) -> None:
    """Also where every row is confident and right, and is looked at a second time."""
    g, (rows, classes) = np.random.default_rng(0), shape
    logits = g.standard_normal(shape, dtype=np.dtype(dtype))
    labels, target = g.integers(classes, size=rows), np.full(shape, 1 / classes, dtype)
    options: Any = {"weight": np.ones(classes), "label_smoothing": 0.1}
    for confident in (False, True):
        logits[np.arange(rows), labels] = 40 * confident
        z, t = (np.ascontiguousarray(x.T) if axis == 0 else x for x in (logits, target))
        allowed = max(MEGABYTE * z.itemsize // 4, 6 * z.itemsize * classes)
        assert extra_memory(xent.log_sum_exp, z, axis=axis) <= allowed + z.itemsize * rows
        # Per row: the labels with the ignored ones replaced, which count, which do not, and what each weighs.
        for loss, some in ((xent.cross_entropy, {}), (xent.cross_entropy, options | {"ignore_index": 0}),
                           (gradients.cross_entropy_gradient, options)):  # fmt: skip
            room = allowed + (18 * rows + 8 * classes if some else 0)
            assert extra_memory(loss, z, labels, axis=axis, **some) <= room
        # The check of the targets holds a sum a row, in float64, and how far it is from one.
        if classes == 20_000 and not confident:
            assert (
                extra_memory(xent.distillation.distillation_loss, z, z, axis=axis) <= 24 * 8 * _blocks.BLOCK
            )
        for soft in (xent.soft_cross_entropy, gradients.soft_cross_entropy_gradient):
            assert extra_memory(soft, z, t, axis=axis) <= 1.5 * allowed + 25 * rows


def test_a_quotient_that_no_float_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some versions of SciPy divide first, and p / q overflows before its logarithm is taken."""
    monkeypatch.setattr(information, "rel_entr", lambda p, q: np.where(p > 0, p * np.log(p / q), 0.0))
    p = np.array([[0.5, 0.5], [0.25, 0.75], [0.5, 0.5], [1.0, 0.0]])
    q = np.array([[1.0, 5e-324], [0.5, 0.5], [1.0, 0.0], [1e-310, 1.0]])
    with np.errstate(all="ignore"):
        expected = np.where(p > 0, p * (np.log(p) - np.log(q)), 0).sum(axis=1)
    assert expected[2] == np.inf
    for some in (slice(None), slice(1, None), 1):
        np.testing.assert_allclose(information.kl_divergence(p[some], q[some]), expected[some], rtol=1e-14)
