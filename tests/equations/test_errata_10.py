"""What a post on the averaged cross-entropy states, beside what is true (chapter 10).

Rows 0.1 to 0.18 of the errata, and the slips in its formulas. Each test shows that the old statement fails
and that the new one holds.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import sympy
import torch
import torch.nn.functional as F

from xent.sequences import GeometricSource, eos_optimum, length_weights, tilted_lengths

N = np.arange(1, 400)
HALF = 0.5 ** N.astype(float)
Q, M = 0.3, 4
LETTER = math.log((1 - Q) / M)


@pytest.mark.erratum("0.1")
def test_an_f_divergence_needs_f_of_one_to_vanish() -> None:
    """Old: strict convexity is enough for D(P, P) = 0. New: f(1) = 0 is needed too."""
    p = np.array([0.2, 0.8])

    def divergence(f: object) -> float:
        return float(p @ f(p / p))  # type: ignore[operator]

    assert divergence(lambda t: t**2) == 1.0
    assert divergence(lambda t: t**2 - 1) == 0.0


@pytest.mark.erratum("0.2")
def test_the_chain_rule_needs_its_brackets() -> None:
    """Old: E[sum_i log P - log Q] without brackets subtracts log Q once. New: the sum runs over both."""
    source, q = GeometricSource(0.5, M), Q
    log_p = -N * math.log(2) - (N - 1) * math.log(M)
    log_q_last = math.log(q)
    inside = HALF @ (log_p - (math.log(q) + (N - 1) * LETTER))
    outside = HALF @ (log_p - log_q_last)
    assert inside == pytest.approx(source.kl(q), rel=1e-12, abs=0)
    assert abs(outside - source.kl(q)) > 1


@pytest.mark.erratum("0.3")
def test_the_cross_entropy_sums_over_the_tokens() -> None:
    """Old: E[-log Q(x_i | x_<i)], one token. New: the sum over i stands inside the expectation."""
    source = GeometricSource(0.5, M)
    tokens = [[-LETTER] * (n - 1) + [-math.log(Q)] for n in N]
    summed = sum(p * sum(t) for p, t in zip(HALF, tokens, strict=True))
    assert summed == pytest.approx(source.cross_entropy(Q), rel=1e-12, abs=0)
    # Whichever token the loose index is taken to mean, first or last, the identity CE = KL + H fails.
    for i in (0, -1):
        single = sum(p * t[i] for p, t in zip(HALF, tokens, strict=True))
        assert abs(single - (source.kl(Q) + source.entropy())) > 0.5
    averaged = sum(p * sum(t) / len(t) for p, t in zip(HALF, tokens, strict=True))
    assert averaged == pytest.approx(source.averaged_cross_entropy(Q), rel=1e-12, abs=0)


@pytest.mark.erratum("0.4")
def test_cross_entropy_is_divergence_plus_entropy() -> None:
    """True: KL - E log P = KL + H, with KL(P||Q) in one notation."""
    source = GeometricSource(0.5, M)
    mean_log_p = float(HALF @ (-N * math.log(2) - (N - 1) * math.log(M)))
    assert source.kl(Q) - mean_log_p == pytest.approx(source.cross_entropy(Q), rel=1e-12, abs=0)
    assert -mean_log_p == pytest.approx(source.entropy(), rel=1e-12, abs=0)


@pytest.mark.erratum("0.5")
def test_line_five_of_the_divergence() -> None:
    """Old bracket: -i (log 2 - log(1 - q)). New: -i (log 2 + log(1 - q)). The last line was right."""
    log2, rest = math.log(2), math.log(1 - Q)
    result = -2 * log2 - rest - math.log(Q)
    head = -math.log(Q) + rest
    assert head + HALF @ (-N * (log2 - rest)) != pytest.approx(result)
    assert head + HALF @ (-N * (log2 + rest)) == pytest.approx(result, rel=1e-12, abs=0)
    assert GeometricSource(0.5, M).kl(Q) == pytest.approx(result, rel=1e-12, abs=0)
    assert head - 2 * (log2 - rest) != pytest.approx(result)


@pytest.mark.erratum("0.6")
def test_the_rearranged_series_start_later_and_later() -> None:
    """Old: every inner sum starts at 1, so that each is 1 and the total diverges. New: i >= 1, 2, 3, ..."""
    inner_old = [float(HALF.sum()) for _ in range(50)]
    inner_new = [float(HALF[k:].sum()) for k in range(50)]
    assert sum(inner_old) == pytest.approx(50)  # grows with the number of terms
    assert sum(inner_new) == pytest.approx(2, rel=1e-12, abs=0)
    assert pytest.approx(2, rel=1e-12, abs=0) == HALF @ N
    assert pytest.approx(math.log(2), rel=1e-12, abs=0) == HALF @ (1 / N)
    x = sympy.Symbol("x")
    cubic = -x - x**2 / 2 - x**3 / 3
    assert sympy.log(1 - x).series(x, 0, 4).removeO() == cubic
    assert abs(float(cubic.subs(x, 0.5)) - math.log(0.5)) > 0.02, "three terms are not the series"


@pytest.mark.erratum("0.7")
def test_the_intermediate_line_of_the_cross_entropy() -> None:
    """Old: -log q + log((1-q)/m) - sum 2^-i [-i log((1-q)/m)]. New: the sum is added."""
    source = GeometricSource(0.5, M)
    series = HALF @ (-N * LETTER)
    assert -math.log(Q) + LETTER - series != pytest.approx(source.cross_entropy(Q))
    assert -math.log(Q) + LETTER + series == pytest.approx(source.cross_entropy(Q), rel=1e-12, abs=0)
    assert -math.log(Q) - LETTER == pytest.approx(source.cross_entropy(Q), rel=1e-12, abs=0)
    assert source.entropy() == pytest.approx(2 * math.log(2) + math.log(M), rel=1e-12, abs=0)


@pytest.mark.erratum("0.7")
def test_upper_limits_and_parentheses() -> None:
    """Old: sums up to n, and log 1 - q. New: up to infinity, and log(1 - q)."""
    terms = HALF * (N * math.log(2) + (N - 1) * math.log(M))
    assert terms[:5].sum() != pytest.approx(GeometricSource(0.5, M).entropy())
    assert terms.sum() == pytest.approx(GeometricSource(0.5, M).entropy(), rel=1e-12, abs=0)
    assert math.log(1) - Q != pytest.approx(math.log(1 - Q))


@pytest.mark.erratum("0.8")
def test_the_averaged_loss_and_its_gradient() -> None:
    """True: -log 2 [log q - log((1-q)/m)] - log((1-q)/m), slope -log 2/q + (1 - log 2)/(1 - q)."""
    log2, source = math.log(2), GeometricSource(0.5, M)
    assert source.averaged_cross_entropy(Q) == pytest.approx(-log2 * (math.log(Q) - LETTER) - LETTER)
    step = 1e-5
    slope = (source.averaged_cross_entropy(Q + step) - source.averaged_cross_entropy(Q - step)) / (2 * step)
    assert slope == pytest.approx(-log2 / Q + (1 - log2) / (1 - Q), rel=1e-8, abs=0)


@pytest.mark.erratum("0.8")
def test_letters_each_and_any() -> None:
    """Old: Q chooses *an* alphabetical token with probability (1-q)/m. New: each has it, any has 1 - q."""
    assert pytest.approx(1) == Q + M * (1 - Q) / M
    assert Q + (1 - Q) / M < 0.9, "with (1-q)/m for all letters together the law would not sum to one"


@pytest.mark.parametrize("beta", [0.1, 0.9])
@pytest.mark.erratum("0.10")
def test_any_stop_probability(beta: float) -> None:
    """For beta = P(eos), old: (beta - 1)/beta log(1 - beta).

    New: beta log(beta)/(beta - 1).
    """
    law = beta * (1 - beta) ** (np.arange(1, 5000) - 1)
    mean = law @ (1 / np.arange(1, 5000))
    old = (beta - 1) / beta * math.log(1 - beta)
    new = beta * math.log(beta) / (beta - 1)
    assert new == pytest.approx(mean, rel=1e-12, abs=0)
    assert abs(old - mean) > 0.5
    # The old one is right if beta is the probability of going on.
    on = 1 - beta
    assert (on - 1) / on * math.log(1 - on) == pytest.approx(new, rel=1e-12, abs=0)


@pytest.mark.erratum("0.12")
def test_eos_is_the_last_token() -> None:
    """Old: the token at position n - 1 is <eos>. New: at position n, since n counts it."""
    tosses = np.random.default_rng(0).random((500, 60)) < 0.5  # True: <eos>
    lengths = GeometricSource(0.5).length_probabilities(60) @ np.arange(1, 61)
    n = tosses.argmax(axis=1) + 1
    assert abs(n.mean() - lengths) < 0.25, "n counts the <eos>"
    rows = np.arange(500)
    assert tosses[rows, n - 1].all()  # position n, counted from 1
    assert not tosses[rows[n > 1], n[n > 1] - 2].any()  # position n - 1


@pytest.mark.erratum("0.13")
def test_torch_averages_over_the_targets_that_count() -> None:
    """True, and all ignored: nan for the mean, 0 for the sum."""
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = torch.tensor([0, -100, 2, -100])
    kept = F.cross_entropy(logits[[0, 2]], targets[[0, 2]])
    assert F.cross_entropy(logits, targets).item() == pytest.approx(kept.item(), rel=1e-14, abs=0)
    nothing = torch.full((4,), -100)
    assert math.isnan(F.cross_entropy(logits, nothing).item())
    assert F.cross_entropy(logits, nothing, reduction="sum").item() == 0.0


@pytest.mark.erratum("0.14")
def test_one_token_beside_1024() -> None:
    """True: l1 + l2/1024 one at a time, (l1 + l2)/1025 together."""
    logits = torch.randn(2, 1024, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    targets = torch.zeros(2, 1024, dtype=torch.long)
    targets[0, 1:] = -100
    l1, l2 = F.cross_entropy(logits.mT, targets, reduction="none").sum(dim=1).tolist()
    apart = sum(F.cross_entropy(z, y).item() for z, y in zip(logits, targets, strict=True))
    assert apart == pytest.approx(l1 + l2 / 1024, rel=1e-12, abs=0)
    assert F.cross_entropy(logits.mT, targets).item() == pytest.approx((l1 + l2) / 1025, rel=1e-12, abs=0)


@pytest.mark.erratum("0.15")
def test_a_multiple_for_the_batch_and_not_in_expectation() -> None:
    """Old: the batched loss is a multiple of the correct one. New: of that batch's only."""
    source = GeometricSource(0.5)
    grid = np.linspace(0.3, 0.8, 501)
    lengths = np.array([1, 6])
    realised = [-(2 * math.log(q) + 5 * math.log(1 - q)) for q in grid]
    assert np.argmin(realised) == np.argmin(np.array(realised) / lengths.sum())
    expected = [source.averaged_cross_entropy(q, 2) for q in grid]
    assert grid[np.argmin(expected)] == pytest.approx(eos_optimum(0.5, 2), abs=0.001)
    assert grid[np.argmin(expected)] > 0.6


@pytest.mark.erratum("0.16")
def test_smaller_micro_batches_learn_shorter_sequences() -> None:
    """True where lengths vary and <eos> is scored; with constant lengths nothing moves."""
    lengths = np.array([2, 5, 9, 30])
    learnt = [tilted_lengths(lengths, b) @ lengths for b in (1, 2, 4, 16, 64)]
    assert learnt == sorted(learnt)
    assert learnt[-1] < lengths.mean()
    assert np.ptp(length_weights([64, 64, 64], 1)) == 0


@pytest.mark.erratum("0.17")
def test_equal_up_to_rounding_under_the_sum() -> None:
    """Old: completely equivalent. New: equal up to round-off, given the same data."""
    rng = np.random.default_rng(3)
    logits = torch.tensor(rng.normal(size=(128, 5)), dtype=torch.float32, requires_grad=True)
    targets = torch.tensor(rng.integers(5, size=128))
    F.cross_entropy(logits.sum(dim=1, keepdim=True) * logits, targets, reduction="sum").backward()
    whole = logits.grad.clone()
    logits.grad = None
    for k in range(0, 128, 4):
        part = logits[k : k + 4]
        F.cross_entropy(part.sum(dim=1, keepdim=True) * part, targets[k : k + 4], reduction="sum").backward()
    assert torch.allclose(whole, logits.grad, rtol=1e-5, atol=1e-5)
