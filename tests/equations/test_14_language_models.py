"""The equations of chapter 14, each as printed, on a language small enough to write down every sequence."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from xent.sequences import MarkovSource

ROUNDING = "a few roundings in float64"
ERRORS = "four standard errors"
SEARCH = "the tolerance of a numerical minimum"
LIMIT, EOS = 3, 2  # at most three letters of two, then the end is certain and not scored

Prefix = tuple[int, ...]
Model = dict[Prefix, np.ndarray]
PREFIXES: list[Prefix] = [c for d in range(LIMIT) for c in itertools.product((0, 1), repeat=d)]


def model(seed: int) -> Model:
    """A law of the next token in each prefix, drawn at random."""
    rng = np.random.default_rng(seed)
    return {c: rng.dirichlet(np.ones(3)) for c in PREFIXES}


def sequences() -> Iterator[list[tuple[Prefix, int]]]:
    """Every sequence, as its prefixes and the tokens after them."""
    for d in range(LIMIT + 1):
        for x in itertools.product((0, 1), repeat=d):
            steps = [(x[:i], x[i]) for i in range(d)]
            yield [*steps, (x, EOS)] if d < LIMIT else steps


def probability(p: Model, steps: list[tuple[Prefix, int]]) -> float:
    return float(np.prod([p[c][v] for c, v in steps]))


def length(steps: list[tuple[Prefix, int]]) -> int:
    """Tokens with the <eos>, also where it is certain."""
    return len(steps) + (steps[-1][1] != EOS)


def begins(p: Model, c: Prefix) -> float:
    """P(c), by adding up the sequences that begin with it."""
    return sum(probability(p, s) for s in sequences() if any(prefix == c for prefix, _ in s))


def kl(p: np.ndarray, q: np.ndarray) -> float:
    return float(sum(a * np.log(a / b) for a, b in zip(p, q, strict=True)))


def divergence(p: Model, q: Model) -> float:
    """KL(P || Q) from the definition: whole sequences."""
    total = 0.0
    for s in sequences():
        a, b = probability(p, s), probability(q, s)
        total += a * np.log(a / b)
    return total


def test_the_little_language_is_a_law():
    assert np.isclose(sum(probability(model(0), s) for s in sequences()), 1)
    assert {length(s) for s in sequences()} == {1, 2, 3, 4}


# ------------------------------------------------------------------------------- tokens and sequences


@pytest.mark.equation("eq-lm-chain", by="reference")
@pytest.mark.equation("eq-lm-reverse", by="reference")
@pytest.mark.equation("eq-lm-mixed", by="reference")
def test_token_divergences_along_the_first_argument(worst_error):
    r"""
    $$
    \begin{aligned}
    \mathrm{KL}(P \| Q) &= \mathrm E_{x \sim P} \Big[ \sum_{i=1}^{n} \log \frac{P(x_i \mid x_{<i})}{Q(x_i \mid
    x_{<i})} \Big] \\
    &= \mathrm E_{x \sim P} \Big[ \sum_{i=1}^{n} \mathrm{KL}(P_{x_{<i}} \| Q_{x_{<i}}) \Big] \\
    &= \sum_{c} P(c)\, \mathrm{KL}(P_c \| Q_c) .
    \end{aligned}
    $$ (eq-lm-chain)

    $$
    \mathrm{KL}(Q \| P) = \sum_{c} Q(c)\, \mathrm{KL}(Q_c \| P_c) .
    $$ (eq-lm-reverse)

    $$
    \begin{aligned}
    \sum_{c} Q(c)\, &\mathrm{KL}(P_c \| Q_c) - \mathrm{KL}(P \| Q) \\
    &= \sum_{c} \bigl( Q(c) - P(c) \bigr)\, \mathrm{KL}(P_c \| Q_c) ,
    \end{aligned}
    $$ (eq-lm-mixed)
    """
    for seed in range(3):
        P, Q = model(seed), model(seed + 10)
        truth, other = divergence(P, Q), divergence(Q, P)
        along = sum(probability(P, s) * sum(kl(P[c], Q[c]) for c, _ in s) for s in sequences())
        # wrong[eq-lm-chain]: begins(P, c) -> begins(Q, c)
        forward = sum(begins(P, c) * kl(P[c], Q[c]) for c in PREFIXES)
        worst_error([along, forward], [truth, truth], rtol=1e-12, why=ROUNDING)
        # wrong[eq-lm-reverse]: kl(Q[c], P[c]) -> kl(P[c], Q[c])
        reverse = sum(begins(Q, c) * kl(Q[c], P[c]) for c in PREFIXES)
        worst_error(reverse, other, rtol=1e-12, why=ROUNDING)
        mixed = sum(begins(Q, c) * kl(P[c], Q[c]) for c in PREFIXES)
        # wrong[eq-lm-mixed]: begins(Q, c) - begins(P, c) -> begins(P, c) - begins(Q, c)
        gap = sum((begins(Q, c) - begins(P, c)) * kl(P[c], Q[c]) for c in PREFIXES)
        worst_error(mixed - truth, gap, rtol=1e-10, why=ROUNDING)
        # Neither of the mixed sums is a divergence of sequences.
        wrong = sum(begins(P, c) * kl(Q[c], P[c]) for c in PREFIXES)
        for value in (mixed, wrong):
            assert not np.isclose(value, truth) and not np.isclose(value, other)
    gaps = []
    for seed in range(20):
        P, Q = model(seed), model(seed + 100)
        gaps.append(sum((begins(Q, c) - begins(P, c)) * kl(P[c], Q[c]) for c in PREFIXES))
    assert min(gaps) < 0 < max(gaps)  # it has no sign


@pytest.mark.equation("eq-lm-markov", by="montecarlo")
def test_the_closed_form_for_bigrams(worst_error):
    r"""
    $$
    \begin{aligned}
    \mathrm{KL}(P \| Q) &= \mathrm{KL}(\pi_P \| \pi_Q) \\
    &\quad + \sum_s v_P(s)\, \mathrm{KL}(P_s \| Q_s), \\
    v_P &= \pi_P\, (I - T_P)^{-1} .
    \end{aligned}
    $$ (eq-lm-markov)
    """
    rng = np.random.default_rng(0)
    tables = rng.dirichlet(np.ones(4), size=(2, 4))
    (pi_p, rows_p), (pi_q, rows_q) = ((t[0], t[1:]) for t in tables)
    # wrong: np.eye(3) - rows_p[:, :3] -> np.eye(3) + rows_p[:, :3]
    v = pi_p[:3] @ np.linalg.inv(np.eye(3) - rows_p[:, :3])
    closed = kl(pi_p, pi_q) + sum(v[s] * kl(rows_p[s], rows_q[s]) for s in range(3))
    words = MarkovSource(pi_p, rows_p).sample(rng, 40_000)
    ratio = np.log(np.vstack([rows_p, pi_p]) / np.vstack([rows_q, pi_q]))
    drawn = np.array([ratio[[-1, *w], [*w, 3]].sum() for w in words])
    error = drawn.std() / np.sqrt(len(drawn))
    worst_error(drawn.mean(), closed, atol=4 * error, why=ERRORS)
    of_q = pi_q[:3] @ np.linalg.inv(np.eye(3) - rows_q[:, :3])
    mixed = kl(pi_p, pi_q) + sum(of_q[s] * kl(rows_p[s], rows_q[s]) for s in range(3))
    assert abs(drawn.mean() - mixed) > 6 * error


# ------------------------------------------------------------------------------------- small students


def minimum(loss, size: int) -> np.ndarray:
    """The distribution that minimises a loss, by search over logits."""

    def of_logits(z: np.ndarray) -> float:
        q = np.exp(z - z.max())
        return loss(q / q.sum())

    z = minimize(of_logits, np.zeros(size), tol=1e-12).x
    q = np.exp(z - z.max())
    return np.asarray(q / q.sum())


def ends_in(letter: int) -> list[Prefix]:
    return [c for c in PREFIXES if c and c[-1] == letter]


@pytest.mark.equation("eq-lm-arithmetic", by="reference")
@pytest.mark.equation("eq-lm-geometric", by="reference")
def test_the_means_are_the_minimisers(worst_error):
    r"""
    $$
    \begin{aligned}
    \arg\min_{Q_s} &\sum_{c \to s} w(c)\, P(c)\, \mathrm{KL}(P_c \| Q_s) : \\
    Q_s(v) &= \frac{\sum_{c \to s} w(c)\, P(c)\, P_c(v)}{\sum_{c \to s} w(c)\, P(c)} .
    \end{aligned}
    $$ (eq-lm-arithmetic)

    $$
    \begin{aligned}
    \arg\min_{Q_s} &\sum_{c \to s} Q(c)\, \mathrm{KL}(Q_s \| P_c) : \\
    Q_s(v) &\propto \exp \frac{\sum_{c \to s} Q(c) \log P_c(v)}{\sum_{c \to s} Q(c)} .
    \end{aligned}
    $$ (eq-lm-geometric)
    """
    P, Q, w = model(1), model(2), {c: 1 / (1 + len(c)) for c in PREFIXES}
    for letter in (0, 1):
        own = ends_in(letter)
        # wrong[eq-lm-arithmetic]: w[c] * begins(P, c) * P[c] -> begins(P, c) * P[c]
        arithmetic = sum(w[c] * begins(P, c) * P[c] for c in own) / sum(w[c] * begins(P, c) for c in own)
        found = minimum(lambda q: sum(w[c] * begins(P, c) * kl(P[c], q) for c in own), 3)  # noqa: B023
        worst_error(arithmetic, found, atol=2e-5, why=SEARCH)
        total = sum(begins(Q, c) for c in own)
        # wrong[eq-lm-geometric]: np.exp(sum(begins(Q, c) * np.log(P[c]) -> (sum(begins(Q, c) * P[c]
        geometric = np.exp(sum(begins(Q, c) * np.log(P[c]) for c in own) / total)
        geometric /= geometric.sum()
        found = minimum(lambda q: sum(begins(Q, c) * kl(q, P[c]) for c in own), 3)  # noqa: B023
        worst_error(geometric, found, atol=2e-5, why=SEARCH)
        assert abs(arithmetic - geometric).max() > 1e-3


def tied(theta: torch.Tensor) -> dict[Prefix, torch.Tensor]:
    """A student whose law depends on the last letter alone."""
    rows = theta.log_softmax(-1)
    return {c: rows[c[-1] if c else 2] for c in PREFIXES}


@pytest.mark.equation("eq-lm-reverse-gradient", by="reference")
@pytest.mark.equation("eq-lm-forward-gradient", by="reference")
def test_the_gradients(worst_error):
    r"""Expectations by enumeration of sequences; the truth by autograd through the definition.

    $$
    \begin{aligned}
    &\nabla \mathrm{KL}(Q \| P) \\
    &\quad = \mathrm E_{Q} \Big[ \sum_{i=1}^{n} \nabla \mathrm{KL}(Q_{x_{<i}} \| P_{x_{<i}}) \Big] \\
    &\quad + \mathrm E_{Q} \Big[ \sum_{i=1}^{n} C_i\, \nabla \log Q(x_i \mid x_{<i}) \Big], \\
    &C_i = \sum_{j>i} \mathrm{KL}(Q_{x_{<j}} \| P_{x_{<j}}) .
    \end{aligned}
    $$ (eq-lm-reverse-gradient)

    $$
    \begin{aligned}
    &\nabla \mathrm{KL}(P \| Q) \\
    &\quad = -\mathrm E_{P} \Big[ \sum_{i=1}^{n} \sum_{v} P_{x_{<i}}(v)\, \nabla \log Q_{x_{<i}}(v) \Big] .
    \end{aligned}
    $$ (eq-lm-forward-gradient)
    """
    P = {c: torch.tensor(law) for c, law in model(3).items()}
    theta = torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    theta.requires_grad_()

    def gradient(value: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(value, theta, retain_graph=True)[0]

    log_q = tied(theta)
    q_of = {i: sum(log_q[c][v] for c, v in s).exp() for i, s in enumerate(sequences())}
    p_of = {i: torch.stack([P[c][v] for c, v in s]).prod() for i, s in enumerate(sequences())}
    reverse = gradient(sum(q_of[i] * (q_of[i] / p_of[i]).log() for i in q_of))
    forward = gradient(sum(p_of[i] * (p_of[i] / q_of[i]).log() for i in q_of))

    token = {c: (log_q[c].exp() * (log_q[c] - P[c].log())).sum() for c in PREFIXES}
    first = second = wrong = printed = torch.zeros_like(theta)
    for i, s in enumerate(sequences()):
        q = q_of[i].detach()
        first = first + q * sum(gradient(token[c]) for c, _ in s)
        for j, (c, v) in enumerate(s):
            score = gradient(log_q[c][v])
            # wrong[eq-lm-reverse-gradient]: second + q -> second - q
            second = second + q * score * sum(token[d].detach() for d, _ in s[j + 1 :])
            wrong = wrong + q * score * sum(token[d].detach() for d, _ in s[:j])
            # wrong[eq-lm-forward-gradient]: P[c][u] * gradient(log_q[c][u]) -> gradient(log_q[c][u])
            printed = printed - p_of[i] * sum(P[c][u] * gradient(log_q[c][u]) for u in range(3))
    worst_error(first + second, reverse, atol=1e-12, why=ROUNDING)
    worst_error(printed, forward, atol=1e-12, why=ROUNDING)
    assert second.norm() > 0.01  # what the token gradient leaves out
    assert wrong.norm() < 1e-12  # the cost before a token does not depend on it


# ----------------------------------------------------------------------------------------------- top k


@pytest.mark.equation("eq-lm-topk", by="reference")
def test_the_truncated_minimiser(worst_error):
    r"""
    $$
    \begin{aligned}
    &-\sum_{i \le k} p_i \log q_i = -S \sum_{i \le k} \tilde p_i \log q_i, \\
    &\arg\min_q :\quad q_i = p_i / S \quad (i \le k), \\
    &\phantom{\arg\min_q :}\quad q_i = 0 \quad (i > k) .
    \end{aligned}
    $$ (eq-lm-topk)
    """
    p, k = np.array([0.5, 0.3, 0.15, 0.05]), 2
    S = p[:k].sum()
    for scale in (1.0, 1 / S):  # truncated, renormalised
        found = minimum(lambda q: -scale * float(p[:k] @ np.log(q[:k])), 4)  # noqa: B023
        # wrong: [p[0] / S, p[1] / S, 0, 0] -> [p[0], p[1], 0, 0]
        worst_error(found, [p[0] / S, p[1] / S, 0, 0], atol=2e-5, why=SEARCH)
    q = np.array([0.4, 0.2, 0.3, 0.1])
    left, right = -(p[:k] @ np.log(q[:k])), -S * ((p[:k] / S) @ np.log(q[:k]))
    worst_error(left, right, rtol=1e-13, why=ROUNDING)


@pytest.mark.equation("eq-lm-bucket", by="reference")
def test_the_bucket_leaves_out_the_tail(worst_error):
    r"""
    $$
    \begin{aligned}
    \mathrm{KL}(p \| q) &= \sum_{i \le k} p_i \log \frac{p_i}{q_i} \\
    &\quad + (1 - S) \log \frac{1 - S}{1 - S_q} \\
    &\quad + (1 - S)\, \mathrm{KL}(p_{>k} \| q_{>k}) .
    \end{aligned}
    $$ (eq-lm-bucket)
    """
    for seed, k in itertools.product(range(3), (1, 2, 4)):
        p, q = np.random.default_rng(seed).dirichlet(np.ones(6), size=2)
        S, S_q = p[:k].sum(), q[:k].sum()
        bucket = p[:k] @ np.log(p[:k] / q[:k]) + (1 - S) * np.log((1 - S) / (1 - S_q))
        # wrong: (1 - S) * kl(p[k:] / (1 - S), q[k:] / (1 - S_q)) -> kl(p[k:] / (1 - S), q[k:] / (1 - S_q))
        inner = (1 - S) * kl(p[k:] / (1 - S), q[k:] / (1 - S_q))
        worst_error(bucket + inner, kl(p, q), rtol=1e-12, why=ROUNDING)
        assert bucket >= 0 and inner > 0
    p, k = np.array([0.5, 0.3, 0.15, 0.05]), 2
    found = minimum(
        lambda q: -float(p[:k] @ np.log(q[:k])) - (1 - p[:k].sum()) * float(np.log(q[k:].sum())), 4
    )
    worst_error([*found[:k], found[k:].sum()], [0.5, 0.3, 0.2], atol=2e-5, why=SEARCH)


@pytest.mark.equation("eq-lm-sampled", by="reference")
def test_sampled_tokens_are_unbiased(worst_error):
    r"""By enumeration: every draw of m = 2 tokens, with its probability.

    $$
    \begin{aligned}
    &\mathrm E_{v \sim r} \Big[ -\frac1m \sum_{j=1}^{m} \frac{p(v_j)}{r(v_j)} \log q(v_j) \Big] \\
    &\quad = -\sum_i p_i \log q_i .
    \end{aligned}
    $$ (eq-lm-sampled)
    """
    p, r, q = np.random.default_rng(4).dirichlet(np.ones(4), size=3)
    expected = -(p @ np.log(q))
    total = unweighted = 0.0
    for pair in itertools.product(range(4), repeat=2):
        chance = np.prod(r[list(pair)])
        # wrong: p[v] / r[v] -> r[v] / p[v]
        total += chance * -np.mean([p[v] / r[v] * np.log(q[v]) for v in pair])
        unweighted += chance * -np.mean([np.log(q[v]) for v in pair])
    worst_error(total, expected, rtol=1e-13, why=ROUNDING)
    assert not np.isclose(unweighted, expected, rtol=1e-2)


# ------------------------------------------------------------------------------------- the denominator


def inverse_length(p: Model, c: Prefix, v: int | None = None) -> float:
    """E[1/n] over the sequences that begin with c, and go on with v."""
    own = [s for s in sequences() if any(d == c and v in (None, u) for d, u in s)]
    mass = [probability(p, s) for s in own]
    return sum(m / length(s) for m, s in zip(mass, own, strict=True)) / sum(mass)


@pytest.mark.equation("eq-lm-hard", by="reference")
@pytest.mark.equation("eq-lm-soft", by="reference")
@pytest.mark.equation("eq-lm-mixture", by="reference")
def test_which_targets_inherit_the_tilt(worst_error):
    r"""
    $$
    \begin{aligned}
    &\mathrm E_P \Big[ \frac1n \sum_{i} -\log Q(x_i \mid x_{<i}) \Big] \\
    &\ = -\sum_c P(c) \sum_v P_c(v)\, W(c, v) \log Q_c(v), \\
    &\arg\min: \quad Q_c(v) \propto P_c(v)\, W(c, v) .
    \end{aligned}
    $$ (eq-lm-hard)

    $$
    \begin{aligned}
    &\mathrm E_P \Big[ \frac1n \sum_{i} \mathrm{KL}(P_{x_{<i}} \| Q_{x_{<i}}) \Big] \\
    &\quad = \sum_c P(c)\, W(c)\, \mathrm{KL}(P_c \| Q_c), \\
    &W(c) = \sum_v P_c(v)\, W(c, v) .
    \end{aligned}
    $$ (eq-lm-soft)

    $$
    Q_c(v) = \lambda\, \frac{P_c(v)\, W(c, v)}{W(c)} + (1 - \lambda)\, P_c(v) .
    $$ (eq-lm-mixture)
    """
    P, Q = model(5), model(6)
    W = {c: np.array([inverse_length(P, c, v) for v in range(3)]) for c in PREFIXES}
    hard = sum(probability(P, s) / length(s) * -sum(np.log(Q[c][v]) for c, v in s) for s in sequences())
    # wrong[eq-lm-hard]: P[c] * W[c] * np.log(Q[c]) -> P[c] * np.log(Q[c])
    grouped = -sum(begins(P, c) * sum(P[c] * W[c] * np.log(Q[c])) for c in PREFIXES)
    worst_error(grouped, hard, rtol=1e-12, why=ROUNDING)
    soft = sum(probability(P, s) / length(s) * sum(kl(P[c], Q[c]) for c, _ in s) for s in sequences())
    # wrong[eq-lm-soft]: begins(P, c) * (P[c] @ W[c]) * kl(P[c], Q[c]) -> begins(P, c) * kl(P[c], Q[c])
    grouped = sum(begins(P, c) * (P[c] @ W[c]) * kl(P[c], Q[c]) for c in PREFIXES)
    worst_error(grouped, soft, rtol=1e-12, why=ROUNDING)
    for c in PREFIXES:
        worst_error(P[c] @ W[c], inverse_length(P, c), rtol=1e-12, why=ROUNDING)

    def learnt(share: float) -> Model:
        """Each prefix on its own, by search in the sum over sequences."""
        result = {}
        for c in PREFIXES:
            through = [(probability(P, s) / length(s), v) for s in sequences() for d, v in s if d == c]

            def loss(q: np.ndarray, c: Prefix = c, through: list[tuple[float, int]] = through) -> float:
                return sum(m * (-share * np.log(q[v]) + (1 - share) * kl(P[c], q)) for m, v in through)

            result[c] = minimum(loss, 3)
        return result

    tilted = {c: P[c] * W[c] / (P[c] @ W[c]) for c in PREFIXES}
    for share in (1.0, 0.0, 0.5):
        found = learnt(share)
        for c in PREFIXES:
            # wrong[eq-lm-mixture]: + (1 - share) * -> + share *
            mixture = share * P[c] * W[c] / (P[c] @ W[c]) + (1 - share) * P[c]
            worst_error(mixture, found[c], atol=1e-4, why=SEARCH)
            assert share == 0 or abs(found[c] - P[c]).max() > 1e-3 or np.ptp(W[c]) < 1e-3
    # The hard labels teach P/n, whose mean length is the harmonic mean.
    inverse = sum(probability(P, s) / length(s) for s in sequences())
    for s in sequences():
        worst_error(probability(tilted, s), probability(P, s) / length(s) / inverse, rtol=1e-12, why=ROUNDING)
    mean = sum(probability(tilted, s) * length(s) for s in sequences())
    worst_error(mean, 1 / inverse, rtol=1e-12, why=ROUNDING)
