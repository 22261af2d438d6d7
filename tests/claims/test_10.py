"""What chapter 10 says, put to the test: other sources, off the grid, by enumeration and by descent."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.optimize import minimize

from xent.sequences import GeometricSource, tilted_lengths

Array = NDArray[np.float64]


def learnt(p: Array, w: Array) -> Array:
    """Return the distribution that the expected weighted log loss teaches, by descent in the logits."""

    def loss(z: Array) -> tuple[float, Array]:
        log_q = z - np.logaddexp.reduce(z)
        return float(-(w * p) @ log_q), (w @ p) * np.exp(log_q) - w * p

    z = minimize(loss, np.zeros(len(p)), jac=True, tol=1e-14, options={"gtol": 1e-10}).x
    return np.asarray(np.exp(z - np.logaddexp.reduce(z)))


def trained(sequences: list[list[int]], probabilities: Array, groups: list[list[int]]) -> Array:
    """Return a table of probabilities, a row for each position, that minimises the mean of PyTorch's means.

    `groups` lists batches of sequences' numbers; a batch counts with the product of its members' probabilities.
    The loss is linear in the table's log-probabilities, with PyTorch's own coefficients; each row is descended.
    """
    longest, kinds = max(map(len, sequences)), 1 + max(map(max, sequences))
    log_q = torch.zeros(longest, kinds, dtype=torch.float64, requires_grad=True)
    for group in groups:
        rows = torch.tensor([i for k in group for i in range(len(sequences[k]))])
        targets = torch.tensor([token for k in group for token in sequences[k]])
        loss = float(np.prod(probabilities[group])) * F.nll_loss(log_q[rows], targets)
        loss.backward()  # type: ignore[no-untyped-call]
    assert log_q.grad is not None
    return np.array([learnt(row / row.sum(), np.ones(kinds)) for row in -log_q.grad.numpy()])


def lengths_written(table: Array) -> Array:
    """Return the distribution of lengths of a table whose last row always ends; token 1 is the end."""
    going = np.concatenate([[1.0], np.cumprod(1 - table[:-1, 1])])
    return np.asarray(going * np.concatenate([table[:-1, 1], [1.0]]))


@pytest.mark.claim(
    "10",
    "A weight that depends on the outcome tilts what a log loss teaches, from $P$ to $w P$, normalised.",
)
def test_the_tilt() -> None:
    """Random distributions and weights over five decades, against a minimiser that does not know the theorem."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        p, w = rng.dirichlet(np.ones(6)), 10 ** rng.uniform(-2, 3, size=6)
        w /= w @ p  # the minimiser's tolerance is absolute
        np.testing.assert_allclose(learnt(p, w), w * p, atol=1e-7)
        assert np.abs(learnt(p, w) - p).max() > 1e-3


@pytest.mark.claim("10", "A weight that depends only on the context does not.")
def test_a_weight_on_the_context() -> None:
    """One table for three contexts, weights a hundredfold apart; the same weights on the outcomes do move it."""
    rng = np.random.default_rng(1)
    joint = rng.dirichlet(np.ones(3))[:, None] * rng.dirichlet(np.full(4, 3.0), size=3)

    def rows(weight: Array) -> Array:
        def loss(flat: Array) -> tuple[float, Array]:
            z = flat.reshape(3, 4)
            log_q = z - np.logaddexp.reduce(z, axis=1, keepdims=True)
            seen = weight * joint
            slope = seen.sum(axis=1, keepdims=True) * np.exp(log_q) - seen
            return float(-(seen * log_q).sum()), slope.ravel()

        z = minimize(loss, np.zeros(12), jac=True, options={"gtol": 1e-10}).x.reshape(3, 4)
        return np.asarray(np.exp(z - np.logaddexp.reduce(z, axis=1, keepdims=True)))

    truth = joint / joint.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(rows(np.array([[0.1], [1.0], [10.0]])), truth, atol=1e-6)
    assert np.abs(rows(np.array([[0.1, 1.0, 1.0, 10.0]])) - truth).max() > 0.1


@pytest.mark.claim(
    "10",
    "The mean over each sequence is the weight $1/n$, so a flexible model learns the harmonic mean of the lengths.",
)
@pytest.mark.claim("10", "**A flexible model learns the harmonic mean of the lengths.**")
def test_the_harmonic_mean() -> None:
    """PyTorch's mean on a table of logits by position, for lengths with gaps and of any shape."""
    rng = np.random.default_rng(2)
    for support in ([1, 2, 3], [1, 5], [2, 3, 7], [4]):
        p = rng.dirichlet(np.ones(len(support)))
        sequences = [[0] * (n - 1) + [1] for n in support]
        table = trained(sequences, p, [[k] for k in range(len(support))])
        written = lengths_written(table) @ np.arange(1, len(table) + 1)
        assert written == pytest.approx(1 / (p @ (1 / np.array(support))), rel=1e-4)


@pytest.mark.claim("10", "More data do not repair it: they bring the model closer to the wrong distribution.")
def test_more_data() -> None:
    """From a hundred to a million sequences: the distance to Q* falls, that to P stays."""
    source, n = GeometricSource(0.3), np.arange(1, 200)
    truth, wrong = source.length_probabilities(199), source.tilted_lengths(199)
    to_truth, to_wrong = [], []
    for size in (10**2, 10**4, 10**6):
        errors = []
        for seed in range(10):
            drawn = source.sample(np.random.default_rng(seed), size)
            counts = np.bincount(drawn, minlength=200)[1:200]
            fit = (counts / n) / (counts / n).sum()
            errors.append((np.abs(fit - truth).sum(), np.abs(fit - wrong).sum()))
        to_truth.append(np.mean([a for a, _ in errors]))
        to_wrong.append(np.mean([b for _, b in errors]))
    # Standard errors fall tenfold from one size to the next.
    assert to_wrong[0] > 5 * to_wrong[1] > 25 * to_wrong[2]
    assert to_truth[2] == pytest.approx(np.abs(wrong - truth).sum(), rel=0.01)


@pytest.mark.claim(
    "10",
    "The fair coin, learnt with one constant stop probability, ends with probability $\\log 2$ instead of $1/2$.",
)
def test_the_fair_coin() -> None:
    """The two losses written out token by token, minimised; and stochastic descent, one sequence at a time."""
    n = np.arange(1, 80)
    p = 0.5**n
    for divisor, expected in ((n, np.log(2)), (np.ones(79), 0.5)):
        weight = p / divisor
        found = minimize(
            lambda z, w=weight: -w @ (-np.logaddexp(0, -z) + (n - 1) * -np.logaddexp(0, z)), 0.0, tol=1e-12
        ).x[0]
        assert 1 / (1 + np.exp(-found)) == pytest.approx(expected, abs=1e-5)
    ends = []
    for seed in range(5):
        z, rng = 0.0, np.random.default_rng(seed)
        trace = []
        for step, length in enumerate(rng.geometric(0.5, size=20_000)):
            q = 1 / (1 + np.exp(-z))
            z -= 0.02 * (q - 1 / length)
            if step >= 5000:
                trace.append(q)
        ends.append(np.mean(trace))
    # Between runs they differ by about .003.
    assert abs(np.mean(ends) - np.log(2)) < 0.01


@pytest.mark.claim(
    "10",
    r"A token mean over $B$ sequences shortens the mean length by a share of about $\mathrm{CV}^2/B$ and costs about "
    r"$\mathrm{CV}^2/(2B^2)$ nats per sequence, so the lengths show it long before the loss does.",
)
def test_the_size_of_the_effect() -> None:
    """Geometric, two-point, heavy-tailed and nearly constant lengths; the order of both is measured."""
    rng = np.random.default_rng(3)
    support = np.arange(1, 400)
    for p in (
        GeometricSource(0.05).length_probabilities(399),
        np.where((support == 3) | (support == 90), 0.5, 1e-9),
        support**-1.7,
        np.exp(-((support - 50) ** 2) / 18) + 1e-9,
        rng.dirichlet(np.ones(399)),
    ):
        p = p / p.sum()
        mu = p @ support
        cv2 = p @ (support - mu) ** 2 / mu**2
        share, cost = [], []
        for size in (64, 256, 1024):
            q = tilted_lengths(support, size, probabilities=p)
            share.append((1 - q @ support / mu) * size / cv2)
            cost.append((p @ np.log(p / q)) * 2 * size**2 / cv2)
        # The next order is 1/B, with a coefficient of a few CV^2 and of the skewness.
        assert share[2] == pytest.approx(1, abs=0.05) and cost[2] == pytest.approx(1, abs=0.05)
        assert abs(share[2] - 1) <= abs(share[0] - 1) and abs(cost[2] - 1) <= abs(cost[0] - 1)


@pytest.mark.claim("10", "$B$ counts the sequences that share a denominator.")
@pytest.mark.claim(
    "10",
    "Accumulating means, averaging over ranks and bucketing a fixed number of sequences by length do not raise it.",
)
@pytest.mark.claim(
    "10",
    "With a fixed number of *tokens* in each such batch, the divisor is a constant, and the mean is proper.",
)
def test_what_b_counts() -> None:
    """All batches of two over three lengths, trained with PyTorch's mean: grouped, accumulated, bucketed."""
    support, p = np.array([1, 2, 6]), np.array([0.5, 0.3, 0.2])
    sequences = [[0] * (n - 1) + [1] for n in support]

    def mean_length(groups: list[list[int]], chance: Array) -> float:
        table = trained(sequences, chance, groups)
        return float(lengths_written(table) @ np.arange(1, len(table) + 1))

    pairs = [list(pair) for pair in itertools.product(range(3), repeat=2)]
    assert mean_length(pairs, p) == pytest.approx(
        tilted_lengths(support, 2, probabilities=p) @ support, rel=1e-4
    )
    # Four sequences in two micro-batches of two, means averaged: the expectation is that of one micro-batch.
    rng = np.random.default_rng(4)
    drawn = rng.choice(3, p=p, size=(200_000, 2, 2))
    counts = support[drawn]
    weight = 1 / counts.sum(axis=2, keepdims=True) + 0 * counts
    q = np.bincount(drawn.ravel(), weight.ravel())
    assert q @ support / q.sum() == pytest.approx(
        tilted_lengths(support, 2, probabilities=p) @ support, rel=0.01
    )
    # Micro-batches of two that hold one length each: as one at a time.
    alike = [[k, k] for k in range(3)]
    assert mean_length(alike, np.sqrt(p)) == pytest.approx(1 / (p @ (1 / support)), rel=1e-4)
    # Six tokens in each: 6, 3 or 1 sequences of one length, in p's proportions 30 : 18 : 12, so 5 + 6 + 12 batches.
    batches = [[k] * (6 // support[k]) for k, count in enumerate((5, 6, 12)) for _ in range(count)]
    assert mean_length(batches, np.ones(3)) == pytest.approx(p @ support, rel=1e-4)


@pytest.mark.claim(
    "10",
    "A sum over a constant is proper, and so is a mean over blocks of one length, or over sequences whose length "
    "stands in the prompt.",
)
def test_what_is_proper() -> None:
    """A source whose letters depend on the length: sums, blocks of a stream, and rows chosen by the length."""
    rng = np.random.default_rng(5)
    support, p = np.array([1, 2, 6]), np.array([0.5, 0.3, 0.2])
    np.testing.assert_allclose(learnt(p, np.full(3, 1 / 7)), p, atol=1e-7)
    # Blocks of 12 tokens of a stream: the share of ends is the truth, for these are a Markov chain's visits.
    drawn = support[rng.choice(3, p=p, size=300_000)]
    stream = np.zeros(drawn.sum(), dtype=int)
    stream[drawn.cumsum() - 1] = 1
    blocks = stream[: len(stream) // 12 * 12].reshape(-1, 12).mean(axis=1)
    error = blocks.std() / np.sqrt(len(blocks))
    assert abs(blocks.mean() - 1 / (p @ support)) < 4 * error
    # The mean of each sequence's letters, two kinds, in shares that hang on the length: a row for each length in the
    # prompt learns its shares, a row for all of them does not.
    shares = np.array([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]])
    log_q = torch.zeros(2, 3, 2, dtype=torch.float64, requires_grad=True)
    for prompted in (0, 1):
        for k, n in enumerate(support):
            for letter in (0, 1):
                row = log_q[prompted, k if prompted else 0]
                chance_of = float(p[k] * n * shares[k, letter])
                (chance_of / float(n) * F.nll_loss(row[None], torch.tensor([letter]))).backward()
    assert log_q.grad is not None
    seen = -log_q.grad.numpy()
    np.testing.assert_allclose(seen[1] / seen[1].sum(-1, keepdims=True), shares, rtol=1e-12)
    truth = (p * support) @ shares / (p @ support)
    assert np.abs(seen[0, 0] / seen[0, 0].sum() - truth).max() > 0.1
    # The longest length looks like a constant, and is an outcome.
    batches = np.array(list(itertools.product(range(3), repeat=2)))
    chance = p[batches].prod(axis=1)
    weight = np.array(
        [chance[batches[:, 0] == k] @ (1 / support[batches[batches[:, 0] == k]].max(1)) for k in range(3)]
    )
    assert weight / p != pytest.approx(np.full(3, (weight / p)[0]), rel=0.1)


@pytest.mark.claim("10", "the end weighs at least twice as much, so the model leans towards the end")
def test_the_end_weighs_more() -> None:
    """PyTorch's mean on a table by position: the odds of the first token are at least doubled, for all coins."""
    lengths = list(range(1, 31))
    sequences = [[0] * (n - 1) + [1] for n in lengths]
    for beta in (0.1, 0.5, 0.95):
        p = beta * (1 - beta) ** np.arange(30)
        first = trained(sequences, p / p.sum(), [[k] for k in range(30)])[0]
        odds = p[0] / p[1:].sum()
        assert first[1] / first[0] > 2 * odds * (1 - 1e-6)


@pytest.mark.claim("10", "Only the first line is proper.")
def test_only_a_constant_divisor_returns_the_truth() -> None:
    """The five lines for other coins, windows and micro-batches, drawn: four of them are biased upwards."""
    rng = np.random.default_rng(9)
    for beta, size in ((0.02, (4000, 2, 3)), (0.37, (6000, 4, 2)), (0.8, (20_000, 3, 2))):
        n = rng.geometric(beta, size=size)
        alike = np.sort(n, axis=None).reshape(size)
        lines = [
            (np.ones(size), n),
            (1 / n.sum((1, 2), keepdims=True) + 0 * n, n),
            (1 / n.sum(2, keepdims=True) + 0 * n, n),
            (1 / n, n),
            (1 / alike.sum(2, keepdims=True) + 0 * n, alike),
        ]
        for number, (scale, of) in enumerate(lines):
            ends, tokens = scale.sum((1, 2)), (scale * of).sum((1, 2))
            q = ends.sum() / tokens.sum()
            error = np.sqrt(((ends - q * tokens) ** 2).sum()) / tokens.sum()
            if number == 0:
                assert abs(q - beta) < 4 * error
            else:
                assert q > beta + 4 * error


@pytest.mark.claim(
    "10",
    "Here the token mean is the steadier number, because most of the loss is in the letters, and it is slightly "
    "biased.",
)
def test_the_token_mean_is_steadier() -> None:
    """Other coins, batch sizes and letters; with one letter, which costs next to nothing, it is the other way round."""
    n = np.random.default_rng(8).geometric(0.1, size=(40_000, 8))
    loss = (-np.log(0.9) * (n - 1) - np.log(0.1)).sum(axis=1)
    mean = loss / n.sum(axis=1)
    assert mean.std() / mean.mean() > 2 * loss.std() / loss.mean()
    for beta, size, letters in ((0.1, 8, 26), (0.3, 4, 26), (0.02, 32, 50_000)):
        source = GeometricSource(beta, letters=letters)
        n = np.random.default_rng(8).geometric(beta, size=(40_000, size))
        loss = (-np.log((1 - beta) / letters) * (n - 1) - np.log(beta)).sum(axis=1)
        mean, constant = loss / n.sum(axis=1), loss * beta / size
        assert mean.std() / mean.mean() < 0.5 * constant.std() / constant.mean()
        rate = source.entropy() * beta
        error = mean.std() / np.sqrt(len(mean))
        assert abs(mean.mean() - rate) > 4 * error
        assert abs(constant.mean() - rate) < 4 * constant.std() / np.sqrt(len(mean))


@pytest.mark.claim("10", "Each padding token costs $-\\log 1 = 0$ and adds nothing to the divergence.")
def test_the_padding_view() -> None:
    """PyTorch's own mean over six tokens, padding included, and with the padding ignored; a row after the end."""
    support, p = np.array([1, 2, 6]), np.array([0.5, 0.3, 0.2])
    written = {}
    for ignore in (-100, 2):
        log_q = torch.zeros(
            7, 3, dtype=torch.float64, requires_grad=True
        )  # the last row: the end has been seen
        for n, chance in zip(support, p, strict=True):
            rows = torch.tensor([i if i < n else 6 for i in range(6)])
            targets = torch.tensor([0] * (n - 1) + [1] + [2] * (6 - n))
            (float(chance) * F.nll_loss(log_q[rows], targets, ignore_index=ignore)).backward()
        assert log_q.grad is not None
        seen = -log_q.grad.numpy()
        if ignore == -100:
            np.testing.assert_array_equal(
                seen[6] / seen[6].sum(), [0, 0, 1]
            )  # certain, and so it costs nothing
        written[ignore] = lengths_written(seen[:6] / seen[:6].sum(-1, keepdims=True)) @ np.arange(1, 7)
    assert written[-100] == pytest.approx(p @ support, rel=1e-9)
    assert written[2] == pytest.approx(1 / (p @ (1 / support)), rel=1e-9)
