"""One pass over the logits, a block of rows at a time: the arithmetic that every loss here shares.

For a row z and one singled-out class i, everything follows from four numbers,

    m = max_j z_j,    gap = m - z_i,    own = exp(-gap),    others = sum_{j != i} exp(z_j - m),

because -log softmax(z)_i = gap + log(own + others) = gap + log1p(others + (own - 1)). For the largest logit
gap is 0 and own is 1, which leaves log1p(others): no cancellation, however small the loss is. Summing *all*
the exponentials and taking the log loses those digits, since 1 + others rounds to 1.

A loss alone needs no maximum: -log softmax(z)_i = log1p(sum_{j != i} exp(z_j - z_i)), as long as no term
overflows.

A block is worked on in a small array that stays in the cache, so the memory used does not grow with the
logits: it is less than a megabyte, in float64 less than two, or a few rows where these are longer. Where a
maximum over few classes is needed, that array lies in memory classes first: NumPy's loops then run along the
many rows and not along the few classes, which is several times faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from . import _validate as check
from ._validate import Floats

# A block of so many logits (256 KiB in float32) stays in the second-level cache. Much smaller ones show what
# Python's own calls cost: with a quarter of it, 16 classes take half as long again.
BLOCK = 1 << 16
# What a row holds besides its logits (an index, sums), in logits.
OF_A_ROW = 10
# Up to this many classes a maximum was found faster with the classes first; the crossing is flat.
TRANSPOSE_UP_TO = 64
# Up to so many terms a product with ones, and in rows einsum, is faster than a sum and as accurate.
DOT_UP_TO, EINSUM_UP_TO = 16, 128
# Of more, with the classes first, so many are added one after another, and so are the sums.
RUN = 8
# From this sum on, the logarithm of 1 + the sum has the digits that its log1p has.
LOG_FROM = 2.0
# Below this sum, the rounding of z_j - m shows: an error of u in the exponent is a relative error of u in
# its exponential, and u grows with the distance. Those rows are looked at a second time.
SMALL_OTHERS = 2.0**-10
# That look needs three more arrays, so it takes a block in parts.
SECOND_LOOKS = 4

Index = tuple[int | slice, ...]
#: What is made of a block of rows: a number, a row or a matrix for each.
Formula: TypeAlias = "Callable[[Block, Index], Floats]"


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
    """A block of rows, and a work array of the same shape."""

    def __init__(self, rows: Floats, buffer: Floats) -> None:
        self.rows = rows
        self.buffer = buffer[: rows.size]
        self.work: Floats = self.buffer.reshape(rows.shape)

    @property
    def each(self) -> NDArray[np.intp]:
        """The index of each row."""
        return np.arange(len(self.rows))

    def argmax(self) -> NDArray[np.intp]:
        """Return the first class that attains each row's maximum."""
        return np.asarray(self.rows.argmax(axis=1))

    def shift(self) -> None:
        """Fill the work array with the logits less each row's maximum."""
        self._copy(classes_first=self.rows.shape[1] <= TRANSPOSE_UP_TO)
        self.maximum: Floats = self.work.max(axis=1)
        self.work -= self.maximum[:, None]

    def exponentiate_without(self, classes: NDArray[np.intp]) -> Terms:
        """Turn shifted logits into exponentials, zero for one class a row, and sum them over the others."""
        shifted = self._take_out(classes)
        np.exp(self.work, out=self.work)
        others = self.sum()
        self._look_again(others, self.maximum)
        return Terms(self.maximum, -shifted, np.exp(shifted), others)

    def minus_log_softmax(self, classes: NDArray[np.intp]) -> Floats:
        """Return -log softmax(z)_i of one class a row; the work array is of no use afterwards."""
        self._copy(classes_first=self.rows.strides[0] < self.rows.strides[1])
        z = self._take_out(classes)
        self.work -= z[:, None]
        np.exp(self.work, out=self.work)
        others = self.sum()
        # inf or nan, if a logit is, or is far above that of the class.
        if not math.isfinite(float(np.add.reduce(others)) + float(np.add.reduce(z))):
            self.shift()
            terms = self.exponentiate_without(classes)
            return terms.gap + terms.log_of_sum()
        self._look_again(others, z)
        return _log1p(others)

    def sum(self) -> Floats:
        """Sum the work array over the classes, never many terms one after the other: each step may round alike."""
        classes, part = self.work.shape[1], self.work.T
        if classes <= DOT_UP_TO:
            return self.work @ np.ones(classes, self.work.dtype)
        if self.work.flags.c_contiguous:  # along rows NumPy adds in pairs itself
            return np.asarray(
                np.einsum("ij->i", self.work) if classes <= EINSUM_UP_TO else self.work.sum(axis=1)
            )
        while len(part) > RUN:
            many, left = divmod(len(part), RUN)
            sums = part[: RUN * many].reshape(RUN, many, -1).sum(axis=0)
            sums[0] += part[len(part) - left :].sum(axis=0)
            part = sums
        return np.asarray(part.sum(axis=0))

    def _copy(self, *, classes_first: bool) -> None:
        """Fill the work array, which may lie in memory classes first."""
        shape = self.rows.shape
        self.work = self.buffer.reshape(shape[::-1]).T if classes_first else self.buffer.reshape(shape)
        np.copyto(self.work, self.rows)

    def _take_out(self, classes: NDArray[np.intp]) -> Floats:
        """Return one entry a row of the work array, and leave -inf there."""
        # An index into the flattened array is found several times as fast as a pair of indices.
        row, column = (stride // self.buffer.itemsize for stride in self.work.strides)
        at = np.arange(0, len(self.work) * row, row)
        at += classes if column == 1 else classes * column
        own: Floats = self.buffer[at]
        self.buffer[at] = -np.inf
        return own

    def _look_again(self, others: Floats, top: Floats) -> None:
        """Where the sum of the exponentials of d = z_j - top is small, put back how d was rounded.

        The rounding error e of the difference (Møller 1965, Knuth 1969) enters as exp(d + e) =
        exp(d) (1 + e), exact to first order.
        """
        small = (others < SMALL_OTHERS).nonzero()[0]
        step = -(-len(others) // SECOND_LOOKS)
        for start in range(0, small.size, step):
            some = small[start : start + step]
            error = _take(self.rows, some).astype(self.work.dtype, copy=False)
            highest = top[some, None]
            d = error - highest
            back = d + highest
            error -= back
            back -= d
            error -= np.subtract(highest, back, out=back)
            terms = _take(self.work, some)
            put_back = np.vecdot(terms, error)
            if np.isnan(put_back).any():  # -inf has no rounding error, nor has a difference that overflows
                error[np.isnan(error)] = 0
                put_back = np.vecdot(terms, error)
            others[some] += put_back


def _log1p(x: Floats) -> Floats:
    """Return log1p, which may overwrite x; from 2 on as log(1 + x), which NumPy has several times as fast.

    There the error of x, and that of 1 + x, count less than two thirds in the logarithm.
    """
    small = (x < LOG_FROM).nonzero()[0]
    if 2 * small.size > x.size:
        return np.log1p(x, out=x)
    exact = np.log1p(x[small])
    x += 1
    np.log(x, out=x)
    x[small] = exact
    return x


def _take(rows: Floats, some: NDArray[np.intp]) -> Floats:
    """Copy some rows; `take` is faster, but copies all of them if they do not lie one after another."""
    return rows.take(some, 0) if rows.flags.c_contiguous else rows[some]


def blocks(logits: Floats) -> Iterator[tuple[Index, Block]]:
    """Walk over logits with the classes on the last axis, in blocks of whole rows.

    Each block comes with the index of its rows in ``logits[..., 0]``. Whatever the memory order is, no more
    than a block is copied. The block is valid until the next one is asked for.
    """
    classes = logits.shape[-1]
    limit = max(1, BLOCK // (classes + OF_A_ROW))
    dtype = np.promote_types(logits.dtype, np.float32)
    rows = logits.size // classes
    buffer = np.empty(min(limit, rows) * classes, dtype)
    for index in cover(logits.shape[:-1], limit):
        yield index, Block(logits[index].reshape(-1, classes), buffer)


def cover(shape: tuple[int, ...], limit: int) -> Iterator[Index]:
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
            for rest in cover(shape[1:], limit):
                yield (i, *rest)


def over_rows(
    formula: Formula,
    keep: Callable[[Index, Floats], None] | Floats,
    axis: int,
    weight: Floats | None = None,
    **logits: Floats,
) -> None:
    """Hand what a formula makes of each block to `keep`, or fill that array with it: the walk of all functions.

    `logits` are those that are walked over, and others of their shape, by their names, with the classes on the last
    axis; those of rows that count have to have a softmax. `axis` is where the classes were, for a message.
    """
    undefined = False
    with np.errstate(all="ignore"):
        for index, block in blocks(next(iter(logits.values()))):
            rows = formula(block, index)
            # A row without a softmax is nan in every class.
            first = rows.reshape(len(rows), -1)[:, 0]
            undefined |= bool(
                np.isnan(first if weight is None else first[weight[index].reshape(-1) > 0]).any()
            )
            if callable(keep):
                keep(index, rows)
            else:
                keep[index] = rows.reshape(keep[index].shape)
    for name, array in logits.items() if undefined else ():
        counted = array if weight is None else np.where((weight > 0)[..., None], array, 0.0)
        if not np.isfinite(counted.max(-1)).all():
            refuse(counted, name, axis)


def without_nan(array: Floats, name: str) -> Floats:
    """Return `array`, or say where it holds nan."""
    check.refuse_where(np.isnan(array), name, "numbers", got="nan")
    return array


def refuse(moved: Floats, name: str, axis: int) -> NoReturn:
    """Say why a row of logits, classes on the last axis of `moved`, has no softmax; `axis` is where they were."""
    array = np.moveaxis(moved, -1, axis)
    without_nan(array, name)
    infinite = np.isposinf(array)
    check.refuse_where(infinite, name, "logits below +inf", got="inf", hint=lambda: "; its softmax is 0/0")
    empty = np.asarray(np.isneginf(array).all(axis=axis))
    raise ValueError(
        f"{name}: expected a finite logit in every row, got -inf along the whole class axis {axis}"
        f"{check.at_index(check.first_true(empty))}"
    )
