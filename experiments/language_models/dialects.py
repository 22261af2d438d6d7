"""Two dialects of a four-letter language, known exactly, and sums over every prefix of it.

A coin chooses the dialect. *Up* prefers a -> b -> c -> d -> a and is brief; *down* prefers the other way
round and is long. The dialect is never shown: a reader infers it from the letters. A sequence has at most 8
letters, so that all 21,845 prefixes fit in one table and every divergence is a finite sum.

A *tree* is an array of shape (21845, 5): row c holds the distribution of the token after the prefix c, <eos>
last. Prefixes stand in order of their length; the prefix c followed by letter v is row 4 c + 1 + v. After 8
letters <eos> is certain, for every model, and has no row.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LETTERS, EOS, LIMIT = 4, 4, 8
FOLLOW, STRAY = 0.76, 0.08  # the preferred letter, and each of the three others
STOP = {"up": 0.3, "down": 0.1}
# Row numbers of the first prefix of each length, and one past the last.
START = [(LETTERS**d - 1) // (LETTERS - 1) for d in range(LIMIT + 1)]
PREFIXES = START[-1]


def depth() -> NDArray[np.int64]:
    """Return the length of each prefix."""
    return np.repeat(np.arange(LIMIT), np.diff(START))


def last_letter() -> NDArray[np.int64]:
    """Return the last letter of each prefix; -1 for the empty one."""
    return np.where(np.arange(PREFIXES) > 0, (np.arange(PREFIXES) - 1) % LETTERS, -1)


def dialect(name: str) -> Array:
    """Return the tree of one dialect: a chain of letters that may stop after each."""
    step = 1 if name == "up" else -1
    rows = np.zeros((LETTERS, LETTERS + 1))
    for letter in range(LETTERS):
        rows[letter, :LETTERS] = STRAY * (1 - STOP[name])
        rows[letter, (letter + step) % LETTERS] = FOLLOW * (1 - STOP[name])
        rows[letter, EOS] = STOP[name]
    first = np.append(np.full(LETTERS, 1 / LETTERS), 0.0)
    return np.vstack([first, rows[last_letter()[1:]]])


def mixture(trees: list[Array], shares: list[float]) -> Array:
    """Return the tree of a mixture: in each prefix, the trees weighted by what they explain of it."""
    joint = np.array([s * begins(t) for t, s in zip(trees, shares, strict=True)])
    posterior = joint / joint.sum(axis=0)
    return np.asarray(np.einsum("kc,kcv->cv", posterior, np.array(trees)))


def source() -> Array:
    """Return the truth: both dialects, half and half."""
    return mixture([dialect("up"), dialect("down")], [0.5, 0.5])


def begins(tree: Array) -> Array:
    """Return the probability that a sequence begins with each prefix."""
    result = np.ones(PREFIXES)
    for d in range(LIMIT - 1):
        here = slice(START[d], START[d + 1])
        result[START[d + 1] : START[d + 2]] = (result[here, None] * tree[here, :LETTERS]).ravel()
    return result


def token_kl(p: Array, q: Array) -> Array:
    """Return KL(p || q) of the next token, in each prefix."""
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(p > 0, p * (np.log(p) - np.log(q)), 0.0)
    return np.asarray(terms.sum(axis=1))


def sequence_kl(p: Array, q: Array) -> float:
    """Return KL(P || Q) of whole sequences: the token KLs, summed over prefixes that P writes."""
    at = begins(p)
    return float(at[at > 0] @ token_kl(p, q)[at > 0])


def length_probs(tree: Array) -> Array:
    """Return P(n = 1), ..., P(n = 9); n counts the <eos>."""
    at = begins(tree)
    stops = np.bincount(depth(), at * tree[:, EOS], minlength=LIMIT)
    last = slice(START[-2], START[-1])
    return np.append(stops, at[last] @ tree[last, :LETTERS].sum(axis=1))


def inverse_length(tree: Array) -> Array:
    """Return E[1/n | prefix, next token], shape (21845, 5): what a mean over each sequence weighs by."""
    weight = np.empty((PREFIXES, LETTERS + 1))
    weight[:, EOS] = 1.0 / (depth() + 1)
    weight[START[-2] :, :LETTERS] = 1.0 / (LIMIT + 1)
    for d in range(LIMIT - 2, -1, -1):
        child = slice(START[d + 1], START[d + 2])
        of_child = (tree[child] * weight[child]).sum(axis=1)
        weight[START[d] : START[d + 1], :LETTERS] = of_child.reshape(-1, LETTERS)
    return weight


def share_of_up(tree: Array) -> float:
    """Return the share of steps between neighbouring letters, +1 or -1, that go up."""
    at, last = begins(tree), last_letter()
    on = last >= 0
    row = np.arange(PREFIXES)[on]
    up = at[on] @ tree[row, (last[on] + 1) % LETTERS]
    down = at[on] @ tree[row, (last[on] - 1) % LETTERS]
    return float(up / (up + down))
