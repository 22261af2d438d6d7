"""Blocks: each row once, whole and in place, with little memory, whatever the shape."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import xent
from xent._blocks import TRANSPOSE_UP_TO, Block, blocks, cover


@given(st.lists(st.integers(0, 7), max_size=4), st.integers(1, 60))
def test_every_row_iscovered_once_in_blocks_no_larger_than_asked(shape: list[int], limit: int) -> None:
    visits = np.zeros(shape, int)
    for index in cover(tuple(shape), limit):
        assert visits[index].size <= limit
        visits[index] += 1
    assert (visits == 1).all()


@pytest.mark.parametrize("classes", [1, 3, TRANSPOSE_UP_TO, TRANSPOSE_UP_TO + 1])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_block_holds_its_rows_and_their_maxima(classes: int, dtype: str) -> None:
    logits = np.random.default_rng(0).normal(size=(90, 7, classes)).astype(dtype)
    for index, block in blocks(logits):
        rows = logits[index].reshape(-1, classes)
        block.shift()
        wide = rows.astype(block.work.dtype)
        np.testing.assert_array_equal(block.maximum, wide.max(axis=1))
        np.testing.assert_array_equal(block.work, wide - wide.max(axis=1, keepdims=True))
        np.testing.assert_array_equal(block.argmax(), rows.argmax(axis=1))
        assert block.work.dtype == np.promote_types(dtype, np.float32)
        assert block.work.shape == rows.shape


def test_a_block_is_a_copy() -> None:
    rows = np.ones((4, 3))
    block = Block(rows, np.empty(12))
    block.shift()
    block.exponentiate_without(np.zeros(4, int))
    block.minus_log_softmax(np.zeros(4, int))
    assert (rows == 1).all()


def extra_memory(call: Callable[[], object]) -> int:
    """Bytes that were held at once while it ran, at most."""
    call()
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# A megabyte for float32, and a few rows where these are longer.
MEGABYTE = 1 << 20
SHAPES = [(400_000, 2), (100_000, 10), (128, 20_000), (50, 100_000)]


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("confident", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_extra_memory_does_not_grow_with_the_logits(
    shape: tuple[int, int], dtype: str, confident: bool, axis: int
) -> None:
    """Also where every row is confident and right, and is looked at a second time."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal(shape, dtype=np.dtype(dtype))
    labels = rng.integers(shape[1], size=shape[0])
    if confident:
        logits[np.arange(shape[0]), labels] = 40
    if axis == 0:
        logits = np.ascontiguousarray(logits.T)
    targets = {"targets": labels, "axis": axis}
    allowed = max(MEGABYTE * logits.itemsize // 4, 6 * logits.itemsize * shape[1])
    assert extra_memory(lambda: xent.cross_entropy(logits, **targets)) <= allowed
    options = {"weight": np.ones(shape[1]), "label_smoothing": 0.1, "ignore_index": 0}
    weighted = extra_memory(lambda: xent.cross_entropy(logits, **targets, **options))
    # Per row: the labels with the ignored ones replaced, which count, which do not, and what each weighs.
    assert weighted <= allowed + 18 * shape[0] + 8 * shape[1]


@pytest.mark.parametrize("shape", SHAPES[1:3])
def test_log_sum_exp_and_soft_cross_entropy_copy_no_more_than_blocks(shape: tuple[int, int]) -> None:
    logits = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    assert extra_memory(lambda: xent.log_sum_exp(logits)) <= MEGABYTE + 4 * shape[0]
    target = np.full(shape, 1 / shape[1], np.float32)
    # The check of the targets holds a sum a row, in float64, and how far it is from one.
    assert extra_memory(lambda: xent.soft_cross_entropy(logits, target)) <= 1.5 * MEGABYTE + 25 * shape[0]
