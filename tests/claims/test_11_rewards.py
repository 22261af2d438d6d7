"""What chapter 11 says of rewards: the step that each aggregator takes, and where the policy ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import brentq

from adversary import Draw, refuted, rng
from experiments.denominators import rewards
from xent.denominators import learnt_distribution

Array = NDArray[np.float64]


@pytest.mark.claim(
    "11",
    "that a supervised loss with the same divisor would teach.",
)
@pytest.mark.claim(
    "11",
    r"The push is 0.539 for $\alpha = 1$ and 0.443 for $\alpha = 0.75$, against GRPO's 0.609; zero would "
    "be right.",
)
@pytest.mark.claim(
    "11", "It would be unbiased if the gradient of a response had the same mean whatever its length."
)
def test_the_push_of_an_aggregator() -> None:
    """Coins of every kind, groups of 2 to 16, any power: drawn groups. Gradients of one mean, noisier when longer.

    Would be refuted by a coin, a group or a power whose drawn push is another, or gradients of one mean and a bias.
    """
    g = rng(0)

    def says(push: Array, exact: float) -> None:
        assert abs(push.mean() - exact) < 4.5 * push.std() / np.sqrt(len(push)) + 1e-4

    for beta, group, alpha in (
        (0.1, 8, 1.0),
        (0.1, 8, 0.75),
        (g.uniform(0.02, 0.3), 2, g.uniform(0.2, 1.5)),
        (g.uniform(0.3, 0.9), 16, 1.0),
    ):
        n = g.geometric(beta, size=(200_000, group)).astype(float)
        lengths = np.arange(1, max(int(40 / beta), 60))
        law = beta * (1 - beta) ** (lengths - 1.0)
        law /= law.sum()
        size, score = lengths**-alpha, 1 - beta * n
        w = n**-alpha / (n**-alpha).mean(axis=1, keepdims=True)
        learnt = learnt_distribution(law, size, group, weight=size)
        says((w * score).mean(axis=1), 1 - beta * float(learnt @ lengths))
        with refuted("no bias"):
            says((w * score).mean(axis=1), 0.0)
        total = 1 / n.mean(axis=1, keepdims=True)
        says(
            (total / total.mean() * score).mean(axis=1),
            1 - beta * float(learnt_distribution(law, lengths, group) @ lengths),
        )
        alone = law * size / (law @ size)
        says((n**-alpha / (law @ size) * score).mean(axis=1), 1 - beta * float(alone @ lengths))
        gradient = 0.3 + g.normal(size=n.shape) * np.sqrt(n)
        says((w * gradient).mean(axis=1), 0.3)
        if alpha == 1 and beta == 0.1:
            assert round(1 - beta * float(learnt @ lengths), 3) == 0.539
            assert round(1 - beta * float(alone @ lengths), 3) == 0.609
        elif beta == 0.1:
            assert round(1 - beta * float(learnt @ lengths), 3) == 0.443


@pytest.mark.claim(
    "11",
    "The derivation also takes the variance of a response's gradient to be in proportion to its length. "
    r"Here it is not, and neither $\alpha$ gives less noise than a constant.",
)
def test_the_noise_of_an_aggregator() -> None:
    """The chapter's coin and group, 100,000 groups, and the variance at each length.

    Would be refuted by one of the two powers that is quieter, or by variances in proportion to the lengths. That the
    one follows from the other, as the page once said, is refuted by a coin that stops sooner.
    """
    g = rng(3)
    drawn = {}
    for beta in (0.1, 0.3):
        n = g.geometric(beta, size=(100_000, 8)).astype(float)
        drawn[beta] = n, g.choice([-1.0, 1.0], n.shape) * (1 - beta * n)

    def in_proportion(beta: float, noise: float = 0.0) -> None:
        n, step = drawn[beta]
        step = step + noise * np.sqrt(n) * g.normal(size=n.shape)
        variance = np.array([step[n == length].var() for length in (1, 2, 4)])
        assert variance / variance[0] == pytest.approx([1, 2, 4], rel=0.1)

    in_proportion(0.1, 100.0)  # a gradient whose noise drowns the score's
    for beta in drawn:
        with refuted(f"in proportion, {beta}"):
            in_proportion(beta)

    def says(alpha: float, beta: float = 0.1) -> None:
        n, step = drawn[beta]
        w = n**-alpha / (n**-alpha).sum(axis=1, keepdims=True)
        assert (w / w.mean() * step).mean(axis=1).std() > step.mean(axis=1).std()

    says(1.0)
    says(0.75)
    with refuted("a smaller power"):
        says(0.5)
    for alpha in (0.75, 1.0):
        with refuted("as little in proportion, and quieter"):
            says(alpha, 0.3)


def walk(
    pi: Array, n: Array, right: Array, clock: float, *, scaled: bool = False, divided: bool = True
) -> Array:
    """The expected natural-gradient steps until the integral of p is `clock`; short ones, a twenty-fifth at most."""
    logs, done = np.log(pi), 0.0
    while done < clock:
        policy = np.exp(logs - np.logaddexp.reduce(logs))
        p, q = policy[right].sum(), policy[~right].sum()
        unit = 1 / np.sqrt(p * q) if scaled else 1.0
        advantage = unit * np.where(right, q, -p) / (n if divided else 1)
        step = 0.04 * min(1.0, 1 / np.abs(advantage).max())
        logs, done = logs + step * advantage, done + step * unit * p
    return np.asarray(np.exp(logs - np.logaddexp.reduce(logs)))


def policies(g: Draw) -> list[tuple[Array, Array, Array]]:
    """Few and many lengths, few or many right answers at first, right ones that are longer or shorter."""
    made = []
    for p, count in ((0.1, 3), (0.5, 5), (0.9, 30)):
        n = np.concatenate([g.choice(np.arange(1, 41), count, replace=False) for _ in range(2)]).astype(float)
        right = np.arange(2 * count) < count
        shares = np.concatenate([p * g.dirichlet(np.ones(count)), (1 - p) * g.dirichlet(np.ones(count))])
        made.append((shares, n, right))
    return made


@pytest.mark.claim("11", "If that mean is finite, so is the tilt of the right answers.")
def test_a_finite_tilt_needs_a_finite_mean_length() -> None:
    """Wrong answers of 2^k tokens, k to 300, of which one in 2^(ck) is so long; walked, and by the equation beyond.

    Would be refuted by a finite mean, however heavy the tail, whose tilt grows on.
    """
    note = (Path(__file__).parents[2] / "chapters/note_denominators.md").read_text(encoding="utf-8")
    assert "with a finite $\\tau$ if wrong answers have a finite mean length" in note
    n = np.concatenate([[1.0, 6.0], 2.0 ** np.arange(301)])
    right = np.arange(len(n)) < 2

    def tilt(first: Array, s: float) -> float:
        need = -(first * n * np.expm1(-s / n))[~right].sum()
        return float(brentq(lambda t: (first * n * np.expm1(t / n))[right].sum() - need, 0, 500))

    def says(first: Array) -> None:
        early, late, last = (tilt(first, s) for s in (1e10, 1e35, 1e60))
        assert late - early < 0.05 and last - late < 1e-3

    for c in (1.2, 1.5, 3.0, 1.0, 0.5):
        tail = 2.0 ** (-c * np.arange(301))
        first = np.concatenate([[0.2, 0.3], 0.5 * tail / tail.sum()])
        seen = walk(first, n, right, 50.0)
        change = np.log(seen / first)
        assert (change[0] - change[1]) / (1 - 1 / 6) == pytest.approx(tilt(first, 50.0), rel=0.02)
        longer = [np.cumsum(pi[:1:-1])[::-1] / pi[~right].sum() for pi in (first, seen)]
        assert (longer[1][1:20] > longer[0][1:20]).all()  # more of them have over 2^k tokens, for each k
        if c > 1:
            says(first)
        else:
            with refuted("an infinite mean length"):
                says(first)


@pytest.mark.claim(
    "11", "In a large group a right answer has the mean advantage $1 - p$ and a wrong answer $-p$,"
)
def test_the_mean_advantage() -> None:
    """Rewards over the mean of their group, any success rate. Would be refuted by a large group with another mean."""
    g = rng(4)

    def says(group: int, p: float) -> None:
        r = (g.random((2_000_000 // group, group)) < p).astype(float)
        advantage = r - r.mean(axis=1, keepdims=True)
        assert advantage[r == 1].mean() == pytest.approx(1 - p, rel=0.02)
        assert advantage[r == 0].mean() == pytest.approx(-p, rel=0.02)

    for p in (0.1, 0.5, g.uniform(0.2, 0.9)):
        says(1000, p)
        for group in (2, 8):
            with refuted("a small group, whose mean the response is a part of"):
                says(group, p)


@pytest.mark.slow
@pytest.mark.claim(
    "11",
    "The wrong answers that are left grow ever longer, if their lengths differ.",
)
@pytest.mark.claim(
    "11",
    "Without a penalty, a factor common to all advantages of a group, such as one over their standard "
    "deviation, changes how fast the policy gets there, but not where it ends.",
)
@pytest.mark.claim(
    "11",
    "With a constant divisor the lengths of right and of wrong answers would not move at all.",
)
def test_where_the_policy_ends() -> None:
    """Tables of 6 to 60 answers, walked for two long times, with and without the standard deviation.

    Would be refuted by a start from which the right answers go on to the shortest, or the wrong ones do not lengthen.
    """
    g = rng(1)

    def mean(pi: Array, n: Array, which: Array) -> float:
        return float(pi[which] @ n[which] / pi[which].sum())

    def says(found: float, foretold: float) -> None:
        assert found == pytest.approx(foretold, rel=0.02)

    for first, n, right in policies(g):
        need = (first * n)[~right].sum()
        tau = brentq(lambda t, f=first, m=n, r=right, x=need: (f * m * np.expm1(t / m))[r].sum() - x, 0, 600)
        tilted = first * np.exp(tau / n)
        times = (40 * n[~right].max(), 60 * n[~right].max())
        for scaled in (False, True):
            ends = [walk(first, n, right, t, scaled=scaled) for t in times]
            for pi in ends:
                says(mean(pi, n, right), mean(tilted, n, right))
            wrong = [mean(pi, n, ~right) for pi in (first, *ends)]
            assert wrong[0] < wrong[1] <= wrong[2] * (1 + 1e-9) and wrong[2] > 0.9 * n[~right].max()
        with refuted("right answers that end at the shortest"):
            says(mean(ends[-1], n, right), n[right].min())
        with refuted("lengths that do not move"):
            says(mean(ends[-1], n, right), mean(first, n, right))
        fixed = walk(first, n, right, 20.0, divided=False)
        says(mean(fixed, n, right), mean(first, n, right))
        says(mean(fixed, n, ~right), mean(first, n, ~right))
        one = np.where(right, n, 7.0)
        with refuted("wrong answers of one length"):
            assert mean(walk(first, one, right, 280.0), one, ~right) > 7 + 1e-6
    # With a penalty the factor is not only one of speed: it moves the place where the push and the penalty cancel.
    first, n, right = policies(rng(2))[1]

    def rate(unit: float) -> float:
        """The success rate at which the tilt of eq-den-rl-kl, with advantages times `unit`, gives itself."""

        def gap(p: float) -> float:
            tilted = first * np.exp(unit * (right - p) / (0.05 * n))
            return float(tilted[right].sum() / tilted.sum() - p)

        return float(brentq(gap, 0, 1))

    with refuted("no matter where, with a penalty"):
        says(rate(3.0), rate(1.0))


@pytest.mark.claim("11", "with the row's divisor for $|o|$, and those after these steps.")
@pytest.mark.claim("11", "As 400 steps were too few, 2,400 were taken, with one seed only.")
def test_the_held_transformer_ends_where_the_equation_says() -> None:
    """The four stored runs: success and both lengths at the end, by the equation from the lengths that the first policy
    is made to have.

    Would be refuted by a run that ends elsewhere. With the reply's own length in each row, as the page once let
    a reader put in, it is refuted by both runs of the constant.
    """
    record = json.loads((Path(__file__).parents[2] / "experiments/denominators/rewards.json").read_text())
    runs = [run for run in record["runs"] if run["divisor"].endswith("held")]
    n, law = (part.double().numpy() for part in (rewards.LENGTHS, rewards.LAW))

    def foretold(first: float, by: Array) -> tuple[float, float, float]:
        def tilted(p: float) -> tuple[Array, Array]:
            right = first * law * np.exp((1 - p) / (rewards.PENALTY * by))
            return right, (1 - first) * law * np.exp(-p / (rewards.PENALTY * by))

        def gap(p: float) -> float:
            right, wrong = tilted(p)
            return float(right.sum() / (right.sum() + wrong.sum()) - p)

        p = float(brentq(gap, 0, 1))
        right, wrong = tilted(p)
        return p, float(right @ n / right.sum()), float(wrong @ n / wrong.sum())

    def says(run: dict[str, Any], by: Array) -> None:
        end = run["looks"][-1]
        found = end["success"], end["right"], end["wrong"]
        assert found == pytest.approx(foretold(run["looks"][0]["success"], by), rel=0.01)

    def one_seed(end: str) -> None:
        assert {run["seed"] for run in record["runs"] if run["divisor"].endswith(end)} == {0}

    one_seed("held")
    with refuted("the runs without the penalty, which have four"):
        one_seed("expected")
    assert (rewards.STEPS, record["held_steps"]) == (400, 2400)
    constant = np.full_like(n, rewards.MEAN)
    assert sorted(run["divisor"].split(",")[0] for run in runs) == ["constant"] * 2 + ["reply"] * 2
    for run in runs:
        by, other = (constant, n) if run["divisor"].startswith("constant") else (n, constant)
        says(run, by)
        with refuted("the other divisor"):
            says(run, other)
