"""One pass over the logits, a block of rows at a time: the arithmetic that every loss here shares.

For a row z and one singled-out class i, everything follows from four numbers,

    m = max_j z_j,    gap = m - z_i,    own = exp(-gap),    others = sum_{j != i} exp(z_j - m),

because -log softmax(z)_i = gap + log(own + others) = gap + log1p(others + (own - 1)). For the largest logit
gap is 0 and own is 1, which leaves log1p(others): no cancellation, however small the loss is. Summing *all*
the exponentials and taking the log loses those digits, since 1 + others rounds to 1.

A block is copied into a small work array that stays in the cache, so the memory used does not grow with the
logits. Rows of few classes are worked on transposed, classes first: NumPy's loops then run along the many
rows and not along the few classes, which is several times faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._validate import Floats

# A block is such a share of the logits that all its arrays, the second look's included, stay below a
# twentieth of them; but never so small that Python's own cost shows, nor so large (256 KiB in float32) that
# it leaves the second-level cache.
BLOCK_SHARE, LEAST_BLOCK, LARGEST_BLOCK = 160, 1 << 12, 1 << 16
# Up to this many classes the transposed layout was the faster one; the crossing is flat.
TRANSPOSE_UP_TO = 64
# Below this sum, the rounding of z_j - m shows: an error of u in the exponent is a relative error of u in
# its exponential, and u grows with the distance. Those rows are summed again in more precision.
SMALL_OTHERS = 2.0**-10

Index = tuple[int | slice, ...]


class Terms(NamedTuple):
    """What a block yields for each of its rows."""

    maximum: Floats
    gap: Floats
    own: Floats
    others: Floats

    def log_of_sum(self) -> Floats:
        """Return log sum_j exp(z_j - m), accurate to a few ulp also where it is close to zero if gap = 0."""
        # Without the class, the sum holds exp(m - m) = 1 unless own is that one: others + (own - 1) >= 0.
        return np.log1p(self.others + (self.own - 1))


class Block:
    """A block of rows in a work array, classes along `axis`, which is 0 (transposed) or 1."""

    def __init__(self, rows: Floats, buffer: Floats) -> None:
        count, classes = rows.shape
        self.rows = rows
        self.axis = 0 if classes <= TRANSPOSE_UP_TO else 1
        shape = (classes, count) if self.axis == 0 else (count, classes)
        self.work: Floats = buffer[: count * classes].reshape(shape)
        np.copyto(self.work, self.oriented(rows))
        self.maximum: Floats = self.work.max(axis=self.axis)

    def oriented(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Lay rows out as the work array is."""
        return rows.T if self.axis == 0 else rows

    def beside(self, values: Floats) -> Floats:
        """Lay out one value a row so that it broadcasts along the classes."""
        return values if self.axis == 0 else values[:, None]

    def at(self, classes: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Index of one class in each row of the work array, or of as many rows as there are classes given."""
        rows = np.arange(len(classes))
        return (classes, rows) if self.axis == 0 else (rows, classes)

    def argmax(self) -> NDArray[np.intp]:
        """Return the first class that attains each row's maximum."""
        first: NDArray[np.intp] = self.work.argmax(axis=self.axis)
        return first

    def shift(self) -> None:
        """Subtract each row's maximum."""
        self.work -= self.beside(self.maximum)

    def exponentiate_without(self, classes: NDArray[np.intp]) -> Terms:
        """Turn shifted logits into exponentials and sum them over all classes but one a row."""
        # An index into the flattened array is found twice as fast as a pair of indices.
        row, column = self.at(classes)
        flat, at = self.work.reshape(-1), row * self.work.shape[-1] + column
        gap = -flat[at]
        np.exp(self.work, out=self.work)
        own = flat[at]
        flat[at] = 0
        others = self.work.sum(axis=self.axis)
        again = (others < SMALL_OTHERS).nonzero()[0]
        if again.size:
            others[again] = self.careful_others(again, classes[again])
        return Terms(self.maximum, gap, own, others)

    def careful_others(self, some: NDArray[np.intp], classes: NDArray[np.intp]) -> Floats:
        """Sum exp(z_j - m) over all classes but the largest of some rows, to working precision.

        In float32 the work is done in float64. In float64 the difference d is taken with its rounding error e
        (Møller 1965, Knuth 1969), which then enters as exp(d + e) = exp(d) (1 + e), exact to first order.
        """
        z = self.oriented(self.rows[some]).astype(np.float64, order="C")
        top = self.beside(self.maximum[some].astype(np.float64))
        if self.work.dtype.itemsize < 8:
            z -= top
            terms = np.exp(z, out=z)
        else:
            d = z - top
            back = d + top
            z -= back
            back -= d
            z -= np.subtract(top, back, out=back)
            z[np.isnan(z)] = 0  # -inf has no rounding error, nor has a difference that overflows to it
            terms = np.exp(d, out=d)
            terms += np.multiply(terms, z, out=z)
        terms[self.at(classes)] = 0
        total: Floats = terms.sum(axis=self.axis)
        return total


def blocks(logits: Floats) -> Iterator[tuple[Index, Block]]:
    """Walk over logits with the classes on the last axis, in blocks of whole rows.

    Each block comes with the index of its rows in ``logits[..., 0]``. Whatever the memory order is, no more
    than a block is copied. The block is valid until the next one is asked for.
    """
    classes = logits.shape[-1]
    elements = min(max(logits.size // BLOCK_SHARE, LEAST_BLOCK), LARGEST_BLOCK)
    limit = max(1, elements // classes)
    dtype = np.promote_types(logits.dtype, np.float32)
    rows = logits.size // classes
    buffer = np.empty(min(limit, rows) * classes, dtype)
    for index in _cover(logits.shape[:-1], limit):
        yield index, Block(logits[index].reshape(-1, classes), buffer)


def _cover(shape: tuple[int, ...], limit: int) -> Iterator[Index]:
    """Cover an index space by blocks of at most `limit` elements (or single ones)."""
    if 0 in shape:
        return
    if not shape:
        yield ()
        return
    inner = math.prod(shape[1:])
    if inner <= limit:
        step = max(1, limit // max(1, inner))
        for start in range(0, shape[0], step):
            yield (slice(start, start + step),)
    else:
        for i in range(shape[0]):
            for rest in _cover(shape[1:], limit):
                yield (i, *rest)
