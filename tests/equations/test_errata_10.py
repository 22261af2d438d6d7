"""What a post on the averaged cross-entropy states, beside what is true (chapter 10).

Rows 0.1 to 0.18 of the errata, and the slips in its formulas. Each test shows that the old statement fails
and that the new one holds.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from adversary import refuted
from xent.sequences import GeometricSource

N = np.arange(1, 400)
HALF = 0.5 ** N.astype(float)
Q, M = 0.3, 4
LETTER = math.log((1 - Q) / M)


@pytest.mark.erratum("0.3", "slip")
def test_the_cross_entropy_sums_over_the_tokens() -> None:
    """Old: E[-log Q(x_i | x_<i)], one token. New: the sum over i stands inside the expectation."""
    source = GeometricSource(0.5, M)
    tokens = [[-LETTER] * (n - 1) + [-math.log(Q)] for n in N]
    summed = sum(p * sum(t) for p, t in zip(HALF, tokens, strict=True))
    assert summed == pytest.approx(source.cross_entropy(Q), rel=1e-12, abs=0)
    # Whichever token the loose index is taken to mean, first or last, the identity CE = KL + H fails.
    for i in (0, -1):
        single = sum(p * t[i] for p, t in zip(HALF, tokens, strict=True))
        with refuted("0.3: as printed, of one token"):
            assert single == pytest.approx(source.kl(Q) + source.entropy(), abs=0.5)
    averaged = sum(p * sum(t) / len(t) for p, t in zip(HALF, tokens, strict=True))
    assert averaged == pytest.approx(source.averaged_cross_entropy(Q), rel=1e-12, abs=0)


@pytest.mark.erratum("0.4", "holds")
def test_cross_entropy_is_divergence_plus_entropy() -> None:
    """True: KL - E log P = KL + H, with KL(P||Q) in one notation."""
    source = GeometricSource(0.5, M)
    mean_log_p = float(HALF @ (-N * math.log(2) - (N - 1) * math.log(M)))
    assert source.kl(Q) - mean_log_p == pytest.approx(source.cross_entropy(Q), rel=1e-12, abs=0)
    assert -mean_log_p == pytest.approx(source.entropy(), rel=1e-12, abs=0)


@pytest.mark.erratum("0.5", "slip")
def test_three_lines_between_the_definitions_and_the_results() -> None:
    """Old: -i (log 2 - log(1 - q)); a sum subtracted; sums of constants. New: plus; added; of 2^-i, each later."""
    log2, rest = math.log(2), math.log(1 - Q)
    result = -2 * log2 - rest - math.log(Q)
    head = -math.log(Q) + rest
    with refuted("0.5: line 5 of the divergence, as printed"):
        assert head + HALF @ (-N * (log2 - rest)) == pytest.approx(result)
    assert head + HALF @ (-N * (log2 + rest)) == pytest.approx(result, rel=1e-12, abs=0)
    assert GeometricSource(0.5, M).kl(Q) == pytest.approx(result, rel=1e-12, abs=0)
    source = GeometricSource(0.5, M)
    with refuted("0.5: the cross-entropy, as printed"):
        assert -math.log(Q) + LETTER - HALF @ (-N * LETTER) == pytest.approx(source.cross_entropy(Q))
    assert -math.log(Q) + LETTER + HALF @ (-N * LETTER) == pytest.approx(source.cross_entropy(Q), rel=1e-12)
    assert -math.log(Q) - LETTER == pytest.approx(source.cross_entropy(Q), rel=1e-12)
    assert source.entropy() == pytest.approx(2 * log2 + math.log(M), rel=1e-12)
    for terms in (10, 1000):
        with refuted("0.5: the rearranged sums, as printed"):
            assert sum([0.5] * terms) == pytest.approx(1)  # the first of them alone
    assert sum(float(HALF[k:].sum()) for k in range(50)) == pytest.approx(HALF @ N) == pytest.approx(2)


@pytest.mark.erratum("0.9", "holds")
def test_the_averaged_loss_and_its_gradient() -> None:
    """True: -log 2 [log q - log((1-q)/m)] - log((1-q)/m), slope -log 2/q + (1 - log 2)/(1 - q), zero at log 2."""
    log2, source = math.log(2), GeometricSource(0.5, M)
    assert source.averaged_cross_entropy(Q) == pytest.approx(-log2 * (math.log(Q) - LETTER) - LETTER)
    step = 1e-5
    slope = (source.averaged_cross_entropy(Q + step) - source.averaged_cross_entropy(Q - step)) / (2 * step)
    assert slope == pytest.approx(-log2 / Q + (1 - log2) / (1 - Q), rel=1e-8, abs=0)
    at = source.averaged_cross_entropy(log2)
    assert at < min(source.averaged_cross_entropy(q) for q in (0.01, 0.5, log2 - step, log2 + step, 0.99))


@pytest.mark.parametrize("beta", [0.1, 0.9])
@pytest.mark.erratum("0.10", "wrong")
def test_any_stop_probability(beta: float) -> None:
    """For beta = P(eos), old: (beta - 1)/beta log(1 - beta).

    New: beta log(beta)/(beta - 1).
    """
    law = beta * (1 - beta) ** (np.arange(1, 5000) - 1)
    mean = law @ (1 / np.arange(1, 5000))
    old = (beta - 1) / beta * math.log(1 - beta)
    new = beta * math.log(beta) / (beta - 1)
    assert new == pytest.approx(mean, rel=1e-12, abs=0)
    with refuted("0.10: as printed"):
        assert old == pytest.approx(mean, abs=0.5)
    # The old one is right if beta is the probability of going on.
    on = 1 - beta
    assert (on - 1) / on * math.log(1 - on) == pytest.approx(new, rel=1e-12, abs=0)


@pytest.mark.erratum("0.12", "conditional")
def test_eos_is_the_last_token() -> None:
    """Old: the token at position n - 1 is <eos>. New: at position n, since n counts it."""
    tosses = np.random.default_rng(0).random((500, 60)) < 0.5  # True: <eos>
    lengths = GeometricSource(0.5).length_probabilities(60) @ np.arange(1, 61)
    n = tosses.argmax(axis=1) + 1
    assert abs(n.mean() - lengths) < 0.25, "n counts the <eos>"
    rows = np.arange(500)
    assert tosses[rows, n - 1].all()  # position n, counted from 1
    with refuted("0.12: at position n - 1"):
        assert tosses[rows[n > 1], n[n > 1] - 2].any()


@pytest.mark.parametrize("beta", [0.05, 0.3, 0.5, 0.95])
@pytest.mark.erratum("0.a", "slip")
def test_the_likelihood_falls(beta: float) -> None:
    """Old: more probability on <eos> achieves a higher likelihood. New: a lower averaged loss, and less likelihood."""
    n = np.arange(1, 5000)
    law = beta * (1 - beta) ** (n - 1)

    def likelihood(q: float) -> float:
        return float(law @ (math.log(q) + (n - 1) * math.log(1 - q)))

    def averaged(q: float) -> float:
        return float(-law @ ((math.log(q) + (n - 1) * math.log(1 - q)) / n))

    learnt = float(law @ (1 / n))
    assert learnt > beta
    assert averaged(learnt) < averaged(beta)
    with refuted("0.a: a higher likelihood"):
        assert likelihood(learnt) > likelihood(beta)
    path = [likelihood(q) for q in np.linspace(beta, learnt, 50)]
    assert (np.diff(path) < 0).all()
    assert likelihood(beta / 2) < likelihood(beta), "below the truth it rises"
    if beta == 0.5:
        assert likelihood(beta) == pytest.approx(-1.386, abs=5e-4)
        assert likelihood(learnt) == pytest.approx(-1.548, abs=5e-4)
        assert [averaged(beta), averaged(learnt)] == pytest.approx([0.693, 0.617], abs=5e-4)
