"""The two dialects of chapter 14: their sums over all prefixes."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.language_models import dialects

Array = np.ndarray
TRUTH, N = dialects.source(), np.arange(1, dialects.LIMIT + 2)


def within(seen: Array, expected: Any) -> bool:
    return bool(abs(seen.mean() - expected) < 4 * seen.std() / np.sqrt(len(seen)))


def drawn(tree: Array, size: int) -> tuple[Array, Array]:
    """Tokens and the rows of their prefixes, each (size, 8); after the end, -1 and row 0."""
    rng = np.random.default_rng(0)
    tokens, rows = np.full((size, dialects.LIMIT), -1), np.zeros((size, dialects.LIMIT), int)
    row, on = np.zeros(size, int), np.ones(size, bool)
    for d in range(dialects.LIMIT):
        token = (tree[row].cumsum(1) <= rng.random((size, 1))).sum(1).clip(max=dialects.EOS)
        tokens[on, d], rows[on, d] = token[on], row[on]
        on &= token != dialects.EOS
        row = np.where(on, dialects.LETTERS * row + 1 + token, 0)
    return tokens, rows


def test_the_source_is_a_mixture_of_whole_sequences() -> None:
    """A dialect is chosen once; a mixture of the rows would be another language."""
    up, down = dialects.dialect("up"), dialects.dialect("down")
    for tree in (up, down, TRUTH):
        np.testing.assert_allclose(tree.sum(axis=1), 1)
    halves = 0.5 * dialects.begins(up) + 0.5 * dialects.begins(down)
    np.testing.assert_allclose(dialects.begins(TRUTH), halves, rtol=1e-12)
    assert dialects.sequence_kl(TRUTH, 0.5 * up + 0.5 * down) > 0.1


def test_the_sums_agree_with_drawn_sequences() -> None:
    tokens, rows = drawn(TRUTH, 60_000)
    lengths = (tokens >= 0).sum(1) + ((tokens[:, -1] >= 0) & (tokens[:, -1] != dialects.EOS))
    law, weight, up = dialects.length_probs(TRUTH), dialects.inverse_length(TRUTH), dialects.dialect("up")
    own = (rows[:, 2] == rows[0, 2]) & (tokens[:, 2] == tokens[0, 2])
    at = np.maximum(tokens, 0)
    with np.errstate(divide="ignore"):
        ratio = np.where(tokens >= 0, np.log(TRUTH[rows, at]) - np.log(up[rows, at]), 0).sum(axis=1)
    assert within(lengths, law @ N) and within(1 / lengths, law @ (1 / N))
    assert within(1 / lengths[own], weight[rows[0, 2], tokens[0, 2]])
    assert within(ratio, dialects.sequence_kl(TRUTH, up))
    tilted = TRUTH * weight / (TRUTH * weight).sum(axis=1, keepdims=True)
    inverse = float(law @ (1 / N))
    sums = [law.sum(), TRUTH[0] @ weight[0], dialects.length_probs(tilted) @ N]
    np.testing.assert_allclose(sums, [1.0, inverse, 1 / inverse])
