"""What chapter 14 claims, and attempts to refute it; on frozen results in test_records.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import xent
import xent.torch as xt
from adversary import Draw, claim, distributions, printed, refuted, rng
from experiments.language_models import dialects
from records import holds
from xent.denominators import tilted_lengths
from xent.distillation import top_k_loss
from xent.information import kl_divergence
from xent.sequences import MarkovSource

Array = np.ndarray
LAST, N, TRUTH = dialects.last_letter(), np.arange(1, dialects.LIMIT + 2), dialects.source()


def slope(loss: Tensor, at: Tensor) -> Tensor:
    return torch.autograd.grad(loss, at, retain_graph=True)[0]


test_a_teacher_that_sees_more = claim(
    "forward students learn what it says on average",
    on=["eq-lm-arithmetic"],
    but_not={
        "a plain mean": (
            "eq-lm-arithmetic",
            r"w(c)\, P(c)\, P_c(v)}{\sum_{c \to s} w(c)\, P(c)}",
            r"P_c(v)}{\sum_{c \to s} 1}",
        )
    },
)(printed)


def teachers(g: Draw, *sizes: tuple[int, int], concentration: float = 0.5) -> Iterator[tuple[Array, int]]:
    """Probabilities over so many tokens, from the largest on, none zero, and how many are kept."""
    for classes, k in sizes:
        for _ in range(5):
            p = np.sort(g.dirichlet(np.full(classes, concentration)) * 0.9 + 0.1 / classes)[::-1]
            yield p.copy(), k


# ------------------------------------------------------------------------------- whose prefixes, which divergence


def chain(g: Draw, letters: int, concentration: float = 1.0) -> MarkovSource:
    rows = 0.99 * g.dirichlet(np.full(letters + 1, concentration), size=letters + 1) + 0.01 / (letters + 1)
    return MarkovSource(rows[0], rows[1:])


def chains() -> Iterator[tuple[MarkovSource, MarkovSource]]:
    g = rng(1)
    for letters in (1, 3, 20):
        for concentration in (0.2, 1.0, 20.0) * 4:
            yield chain(g, letters, concentration), chain(g, letters, concentration)


def token_sum(writer: MarkovSource, p: MarkovSource, q: MarkovSource) -> float:
    """Sum of KL(p || q) of tokens along prefixes that `writer` writes, in closed form."""
    visits = np.linalg.solve(
        (np.eye(len(writer.transition)) - writer.transition[:, :-1]).T, writer.initial[:-1]
    )
    return float(visits @ kl_divergence(p.transition, q.transition) + kl_divergence(p.initial, q.initial))


@claim(
    "Token divergences add up, on average, to the divergence of sequences along prefixes",
    on=lambda: (pair for p, q in chains() for pair in ((p, p, q), (q, q, p))),
    but_not=lambda: {f"the other writer, {i}": (q, p, q) for i, (p, q) in enumerate(chains())},
)
def test_whose_prefixes(writer: MarkovSource, p: MarkovSource, q: MarkovSource) -> None:
    """Chains over one to twenty letters."""
    assert token_sum(writer, p, q) == pytest.approx(p.kl(q), rel=1e-9)


@pytest.mark.claim("14", "With the other writer, the mean of the sum is never negative")
def test_the_other_writer() -> None:
    """Larger or smaller than the divergence; chains that differ in the first token alone are the exception."""

    def differs(p: MarkovSource, q: MarkovSource) -> None:
        assert token_sum(q, p, q) > 0 and abs(token_sum(q, p, q) / p.kl(q) - 1) > 1e-9

    p = chain(rng(1), 20)
    first = MarkovSource(chain(rng(2), 20).initial, p.transition)
    holds(differs, *chains(), but_not={"the model itself": (p, p), "another first token": (p, first)})
    larger = {token_sum(q, p, q) > p.kl(q) for p, q in chains()}
    assert larger == {True, False} and token_sum(p, p, p) == pytest.approx(0, abs=1e-12)


def of_letters(rows: Array) -> Array:
    """The tree of a bigram student, by a row for the beginning and one for each letter."""
    return np.asarray(rows[LAST + 1])


def tied(at: Array, truth: Array, log: bool) -> Array:
    """Each letter's row: the mean of the truth's rows, or of their logarithms, over prefixes weighted by `at`."""
    table = [truth[0]]
    for letter in range(4):
        w, rows = at[letter == LAST] / at[letter == LAST].sum(), truth[letter == LAST]
        row = np.exp(w @ np.log(np.maximum(rows, 1e-300))) if log else w @ rows
        table.append(row / row.sum())
    return of_letters(np.array(table))


def reverse_divergence(theta: Tensor, log_p: Tensor) -> Tensor:
    """KL(Q || P) of sequences, the student's rows by their logits."""
    log_q, level = theta.log_softmax(-1)[torch.tensor(LAST[1:])], torch.full((4,), 0.25).double().log()
    levels = [level]
    for d in range(1, dialects.LIMIT - 1):
        here = slice(dialects.START[d] - 1, dialects.START[d + 1] - 1)
        level = (level[:, None] + log_q[here, :4]).flatten()
        levels.append(level)
    return torch.cat(levels).exp() @ (log_q.exp() * (log_q - log_p)).sum(1)


def minimised(start: Array, truth: Array) -> Array:
    theta = torch.tensor(np.log(start[1:5]), requires_grad=True)
    log_p = torch.tensor(np.log(np.maximum(truth[1:], 1e-300)))
    solver = torch.optim.LBFGS([theta], max_iter=80, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        solver.zero_grad()
        loss = reverse_divergence(theta, log_p)
        torch.autograd.backward(loss)
        return loss

    solver.step(closure)  # type: ignore[no-untyped-call]
    return of_letters(np.vstack([truth[0], theta.detach().softmax(-1).numpy()]))


@pytest.mark.claim(
    "14", "In the exact table of bigram students", "The student of the token gradient lies between"
)
@pytest.mark.claim("14", "Started at *up*, the student of the sequence divergence stays")
def test_four_students_of_the_exact_table() -> None:
    """Random dialects, strays and lengths of their own; each student by its own stationary point."""
    g = rng(2)
    for follow, stop in (
        (g.uniform(0.74, 0.78), (0.3, 0.1)),
        (g.uniform(0.8, 0.84), (g.uniform(0.24, 0.27), 0.12)),
    ):
        trees = []
        for step, s in zip((1, -1), stop, strict=True):
            rows = np.full((4, 5), (1 - follow) / 3 * (1 - s))
            rows[np.arange(4), (np.arange(4) + step) % 4], rows[:, 4] = follow * (1 - s), s
            trees.append(of_letters(np.vstack([[0.25, 0.25, 0.25, 0.25, 0.0], rows])))
        truth = dialects.mixture(trees, [0.5, 0.5])
        covering = token = tied(dialects.begins(truth), truth, log=False)
        for _ in range(100):
            token = tied(dialects.begins(token), truth, log=True)
        sequences = minimised(covering, truth)
        assert dialects.share_of_up(minimised(trees[0], truth)) > 0.6

        def says(*students: Array, truth: Array = truth) -> None:
            share = [dialects.share_of_up(t) for t in students]
            assert share[0] == pytest.approx(dialects.share_of_up(truth), abs=0.02)
            assert share[2] < share[1] - 0.02 < share[0] - 0.04
            reverse, forward = ([dialects.sequence_kl(*p) for p in pairs] for pairs in (
                [(t, truth) for t in students], [(truth, t) for t in students]))  # fmt: skip
            assert reverse[0] > reverse[1] > reverse[2] and forward[0] < forward[1] < forward[2]

        holds(
            says,
            (covering, token, sequences),
            but_not={
                "the last two": (covering, sequences, token),
                "the first two": (token, covering, sequences),
            },
        )


@pytest.mark.claim("14", "After each letter except the eighth, the forward student predicts")
def test_what_follows_a_letter() -> None:
    """Of random tables: no other row has a smaller divergence. Frequencies of pairs differ, for sequences are cut."""
    g = rng(3)
    deepest = slice(dialects.START[-2], dialects.START[-1])
    for part in (0.1, 0.9):
        tree = (1 - part) * TRUTH + part * g.dirichlet(np.ones(5), size=dialects.PREFIXES)

        def counted(tree: Array, at: Array) -> Array:
            return np.array([at[s == LAST] @ tree[s == LAST] for s in range(4)])

        def best(pairs: Array, tree: Array = tree) -> None:
            rows = pairs / pairs.sum(1, keepdims=True)
            least = dialects.sequence_kl(tree, of_letters(np.vstack([tree[0], rows])))
            for s, token in np.ndindex(4, 5):  # a small step towards each token, from which all are made
                moved = rows.copy()
                moved[s] = 0.999 * moved[s] + 0.001 * np.eye(5)[token]
                assert dialects.sequence_kl(tree, of_letters(np.vstack([tree[0], moved]))) > least

        at = dialects.begins(tree)
        pairs = counted(tree, at)
        eighth = pairs.copy()
        eighth[:, dialects.EOS] += at[deepest] @ tree[deepest, :4]
        each_once = counted(tree, np.ones(dialects.PREFIXES))
        holds(best, pairs, but_not={"each prefix once": each_once, "an eighth letter not aside": eighth})
        own = of_letters(np.vstack([tree[0], pairs / pairs.sum(1, keepdims=True)]))
        again = counted(own, dialects.begins(own))
        np.testing.assert_allclose(again / again.sum(1, keepdims=True), own[1:5], rtol=1e-9)
        assert np.abs(again / pairs - 1).max() > 1e-3


@claim(
    "The share of upward steps leaves out steps",
    on=[dialects.dialect("up"), dialects.dialect("down"), TRUTH],
    but_not={"a share of all steps": (TRUTH, True)},
)
def test_which_steps_a_share_counts(tree: Array, every: bool = False) -> None:
    """By the joint distribution of neighbouring letters."""
    on, pairs = LAST >= 0, np.zeros((4, 4))
    np.add.at(pairs, LAST[on], dialects.begins(tree)[on, None] * tree[on, :4])
    up, down = (sum(pairs[a, (a + step) % 4] for a in range(4)) for step in (1, -1))
    assert dialects.share_of_up(tree) == pytest.approx(up / (pairs.sum() if every else up + down))


@pytest.mark.claim(
    "14", "Differentiated with the drawn token held constant", "As a negative reward in a policy gradient"
)
def test_estimates_of_the_reverse_divergence() -> None:
    """Every token in turn, weighted by the student: mean gradients for random pairs of 2 to 1,000 tokens."""
    g = rng(13)

    def says(found: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)

    for classes, spread in ((c, s) for c in (2, 5, 1000) for s in (0.3, 3.0)):
        z, v = (torch.tensor(spread * g.normal(size=classes)) for _ in range(2))
        q, p = z.requires_grad_().log_softmax(0), v.log_softmax(0)
        r, drawn = p - q, q.exp().detach()
        k1, k2, k3 = (slope(drawn @ k, z) for k in (-r, r.square() / 2, r.exp() - r - 1))
        forward, reverse = slope(p.exp() @ (p - q), z), slope(q.exp() @ (q - p), z)
        rewarded = slope(drawn @ ((q - p).detach() * q), z)
        holds(
            says, (k1, torch.zeros_like(k1)), (k2, reverse), (k3, forward), (rewarded, reverse),
            but_not={"k1, reverse": (k1, reverse), "k3, reverse": (k3, reverse), "k2, forward": (k2, forward),
                     "rewarded, forward": (rewarded, forward)},
        )  # fmt: skip


def clipped(p: Array, q: Array, bound: float, how: str = "reward") -> Array:
    """The slope in the student's logits, every token in turn: of a reward, or of a loss that is differentiated."""
    z = torch.tensor(np.log(q)).requires_grad_()
    log_q, log_p = z.log_softmax(0), torch.tensor(np.log(p))
    r, drawn = log_p - log_q, log_q.exp().detach()
    if how == "reward":
        return np.asarray(slope(-drawn @ (r.detach().clamp(-bound, bound) * log_q), z))
    if how == "terms":
        return np.asarray(slope((log_p.exp() * r).clamp(max=bound).sum(), z))
    return np.asarray(slope(drawn @ r.clamp(-bound, bound).square() / 2, z))


def pairs_of_rows(g: Draw) -> Iterator[tuple[Array, Array]]:
    for classes in (2, 5, 1000):
        for spread in (0.01, 1.0, 5.0):
            yield tuple(xent.softmax(spread * g.normal(size=(2, classes))))


NINE = np.array([0.45, 0.05, 0.5])  # the teacher; a student far below the first and far above the second
REST = np.array([0.45 * np.exp(-1), 0.05 + 0.45 * (1 - np.exp(-1)), 0.5])


@claim(
    "Clipped as a reward, it leaves",
    on=lambda: ((p, q, c) for p, q in pairs_of_rows(rng(21)) for c in (0.05, 1.0, 20.0)),
    but_not={"the teacher": (NINE, NINE, 1.0), "clamped and differentiated": (NINE, REST, 0.5, "clamped")},
)
def test_where_a_clipped_reward_rests(p: Array, q: Array, bound: float, how: str = "reward") -> None:
    """Only at the teacher is there no slope; the product with the student's probabilities is left out of the size."""
    assert np.abs(clipped(p, p, bound, how)).max() < 1e-15
    assert np.abs(clipped(p, q, bound, how) / q).max() > 1e-6 * np.abs(np.log(p / q)).max()


@claim(
    "Clamped inside a loss that is differentiated, the tokens beyond the clamp",
    on=[(NINE, REST, 0.5), (NINE, REST, 0.9)],
    but_not={"a wider clamp": (NINE, REST, 1.2), "a reward": (NINE, REST, 0.5, "reward")},
)
def test_where_a_clamped_loss_rests(p: Array, q: Array, bound: float, how: str = "clamped") -> None:
    assert np.abs(clipped(p, q, bound, how)).max() < 1e-15 < 0.1 < np.abs(q - p).max()


@claim(
    "Clamp the single terms of a forward divergence",
    on=lambda: ((p, c) for p, _ in teachers(rng(22), (2, 1), (10, 1), (1000, 1)) for c in (0.01, 0.05)),
    but_not={"no clamp": (NINE, np.inf)},
)
def test_clamped_terms(p: Array, bound: float) -> None:
    """The token that the teacher likes best, nearly given up by the student: the pull as a share of its probability."""
    q = np.r_[1e-9, p[1:] / p[1:].sum() * (1 - 1e-9)]
    assert np.abs(clipped(p, q, bound, "terms")[0]) < 1e-3 * p[0]


def hardly(direction: Any, p: Array, given_up: float = 1e-9) -> None:
    """The slope in a token's logit, as a share of the teacher's probability of it, where the student gives it up."""
    z = torch.tensor(np.log(p))
    z[0] = z[1:].logsumexp(0) + np.log(given_up)
    loss = xt.distillation_loss(z.requires_grad_(), torch.tensor(np.log(p)), direction=direction)
    assert 0 < -slope(loss, z)[0] / p[0] < 1e-4


test_two_divergences_give_tokens_up = claim(
    "they hardly pull on a token that the student gives up",
    on=lambda: ((d, p) for p, _ in teachers(rng(3), (2, 1), (10, 1), (1000, 1)) for d in ("jsd", "reverse")),
    but_not={"the forward divergence": ("forward", np.array([0.3, 0.7]))},
)(hardly)


# ------------------------------------------------------------------------------------------ what a cache teaches


def empties(p: Array, k: int, treatment: Any) -> None:
    """A student gains by emptying its tail."""
    tail = np.full(len(p) - k, 1e-7)
    emptier = np.r_[p[:k] / p[:k].sum() * (1 - tail.sum()), tail]
    losses = [top_k_loss(np.log(q), np.log(p[:k]), [*range(k)], treatment=treatment) for q in (emptier, p)]
    assert losses[0] < losses[1] - 1e-9


def fixes_the_mass_only(p: Array, k: int, treatment: Any) -> None:
    """Two divisions of the tail cost the same, and any other mass of it costs more."""

    def loss(q: Array) -> float:
        return float(top_k_loss(np.log(q), np.log(p[:k]), [*range(k)], treatment=treatment))

    mass = p[:k].sum()
    even = np.r_[p[:k], np.full(len(p) - k, (1 - mass) / (len(p) - k))]
    steep = np.r_[p[:k], (1 - mass) * 2.0 ** -np.arange(1, len(p) - k), (1 - mass) * 2.0 ** -(len(p) - k - 1)]
    assert loss(even) == pytest.approx(loss(steep), rel=1e-9)
    for factor in (0.8, min(1.1, 0.5 + 0.5 / mass)):
        assert loss(np.r_[p[:k] * factor, p[k:] * (1 - factor * mass) / (1 - mass)]) > loss(p)


def unbiased(p: Array, drawn_from: Array) -> None:
    g = rng(5)
    z = g.normal(size=len(p))
    labels = g.choice(len(p), (4000, 3), p=drawn_from / drawn_from.sum())
    drawn = xent.cross_entropy(np.tile(z, (4000, 3, 1)), labels, reduction="none").mean(1)
    assert abs(drawn.mean() - xent.soft_cross_entropy(z, p)) < 5 * drawn.std() / np.sqrt(len(drawn))


@pytest.mark.claim("14", "The bare top $k$ empties the tail, whether the teacher's part is")
def test_what_a_cache_teaches() -> None:
    """Teachers of every kind and any k. With the student's part renormalised as well, the tail is free."""
    for classes, k in ((3, 1), (6, 2), (50, 8)):
        for _, (p,) in distributions(rng(5), classes):
            p = np.sort(0.9 * p + 0.1 / classes)[::-1]
            bare = {how: (p, k, how) for how in ("truncated", "renormalised")}
            holds(
                empties, *bare.values(), but_not={how: (p, k, how) for how in ("tail", "renormalised_both")}
            )
            holds(fixes_the_mass_only, (p, k, "tail"), but_not=bare)
            unbiased(p, p)
        with refuted("draws from another teacher"):
            first = np.r_[0.9, np.full(classes - 1, 0.1 / (classes - 1))]
            unbiased(first, first[::-1])


test_what_the_bare_top_k_costs = claim(
    "All mass goes to the kept tokens",
    on=["eq-lm-topk"],
    but_not={
        "the teacher's own tail": ("eq-lm-topk", r"q_i^* &= 0 \quad", r"q_i^* &= p_i \quad"),
        "the kept part as it is": ("eq-lm-topk", "= p_i / S", "= p_i"),
    },
)(printed)


def stepped(p: Array, k: int, whole: bool = False, bucket: bool = False, steps: int = 400) -> float:
    """The mass on k tokens, as a share of the teacher's, after Adam has followed the reverse terms from the teacher."""
    log_p = torch.tensor(np.log(p))
    z = log_p.clone().requires_grad_()
    adam = torch.optim.Adam([z], lr=0.05)
    for step in range(steps):
        for group in adam.param_groups:
            group["lr"] = 0.05 * (1 - step / steps)
        log_q = z.log_softmax(0)
        terms = log_q.exp() * (log_q - log_p)
        loss = (terms if whole else terms[:k]).sum()
        if bucket:
            tails = [x[k:].logsumexp(0) for x in (log_q, log_p)]
            loss = loss + tails[0].exp() * (tails[0] - tails[1])
        adam.zero_grad()
        torch.autograd.backward(loss)
        adam.step()
    return float(z.detach().softmax(0)[:k].sum() / p[:k].sum())


@claim(
    "So a student that already agrees with its teacher is drawn away",
    on=lambda: teachers(rng(17), (3, 1), (10, 4), (1000, 50)),
    but_not={
        "whole rows": (np.array([0.5, 0.3, 0.2]), 2, True),
        "with a bucket": (np.array([0.5, 0.3, 0.2]), 2, False, True),
        "all tokens": (np.array([0.5, 0.3, 0.2]), 3),
    },
)
def test_bare_reverse_terms_let_go(p: Array, k: int, whole: bool = False, bucket: bool = False) -> None:
    assert stepped(p, k, whole, bucket) == pytest.approx(1 / np.e, rel=2e-3)


def shared_row(rows: Array, k: int, whole: bool = False, weight: Array | None = None) -> Array:
    """The one row that suits these teacher's rows best, each seen through its own k largest and a bucket."""
    p, w = torch.tensor(rows), torch.tensor(np.ones(len(rows)) if weight is None else weight)
    top = p.argsort(1, descending=True)[:, :k]
    kept = p.gather(1, top)
    z = torch.zeros(p.shape[1], dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS([z], max_iter=500, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        solver.zero_grad()
        log_q = z.log_softmax(0).expand(p.shape)
        tails = log_q.scatter(1, top, -torch.inf).logsumexp(1)
        bucket = -(kept * log_q.gather(1, top)).sum(1) - (1 - kept.sum(1)) * tails
        loss = w @ (-(p * log_q).sum(1) if whole else bucket)
        torch.autograd.backward(loss)
        return loss

    solver.step(closure)  # type: ignore[no-untyped-call]
    return z.detach().softmax(0).numpy()


def different_tops(g: Draw, classes: int, k: int, prefixes: int) -> Array:
    """Rows with their k largest among the first 2 k tokens, not always the same."""
    rows = g.dirichlet(np.ones(classes), size=prefixes) + 0.02
    for i, row in enumerate(rows):
        rows[i] = row + np.isin(np.arange(classes), (np.arange(k) + i * (k > 1 or i)) % (2 * k))
    return np.asarray(rows / rows.sum(1, keepdims=True))


@claim(
    "The bucket's student gives nothing to letters that are never",
    on=lambda: (
        (different_tops(rng(s), c, k, 6), k) for s in range(3) for c, k in ((5, 2), (12, 3), (40, 5))
    ),
    but_not=lambda: {
        "whole rows": (different_tops(rng(0), 5, 2, 6), 2, True),
        "the same two everywhere": (np.tile([[0.4, 0.3, 0.2, 0.1]], (3, 1)), 2),
    },
)
def test_a_bucket_of_shared_rows(rows: Array, k: int, whole: bool = False) -> None:
    """What is nowhere kept gets nothing, and what is kept gets all."""
    q = shared_row(rows, k, whole)
    kept = np.isin(np.arange(len(q)), np.argsort(-rows, 1)[:, :k])
    assert q[~kept].max() < 1e-4 and q[kept].min() > 1e-3


@pytest.mark.claim("14", "`<eos>` is such a token, and the sequences are half a token shorter")
def test_the_bucket_of_the_dialects() -> None:
    """The bigram student by its own rows: each letter's prefixes weighted by how often they begin a sequence."""
    at = dialects.begins(TRUTH)

    def student(whole: bool) -> tuple[Array, float]:
        ons = [letter == LAST for letter in range(4)]
        rows = np.array([shared_row(TRUTH[on], 2, whole, at[on]) for on in ons])
        return rows[:, dialects.EOS], float(
            dialects.length_probs(of_letters(np.vstack([TRUTH[0], rows]))) @ N
        )

    def says(first: tuple[Array, float], second: tuple[Array, float]) -> None:
        assert (second[0] > first[0] + 0.02).all() and round(first[1] - second[1], 1) == 0.5

    whole, bucket = student(True), student(False)
    other = whole[0], float(dialects.length_probs(TRUTH) @ N) - 0.2
    holds(says, (whole, bucket), but_not={"exchanged": (bucket, whole), "another length": (other, bucket)})


def pull(p: Array, k: int, kept: float, cut: bool = True) -> float:
    """How much the loss of the kept tokens falls as their mass grows from `kept`, their proportions right."""
    share, top = torch.tensor(kept, requires_grad=True, dtype=torch.float64), torch.tensor(p[:k])
    each = (top * (top.log() - (top / top.sum() * share).log())).sum()
    return -float(slope(each.clamp(min=0.0) if cut else each, share))


@claim(
    "With verl's cut at zero",
    on=lambda: teachers(rng(14), (3, 1), (50, 8), (1000, 32)),
    but_not={
        "no cut": (np.array([0.5, 0.3, 0.2]), 1, False),
        "a bucket": (np.array([0.5, 0.3, 0.2]), 1, True, "tail"),
    },
)
def test_the_kept_part_cut_off_at_zero(
    p: Array, k: int, cut: bool = True, how: Any = "renormalised_both"
) -> None:
    """Below the teacher's mass a pull, above it none; renormalised on both sides, the mass does not matter."""
    mass, g = p[:k].sum(), rng(0)
    below, above = mass * g.uniform(0.3, 0.99), mass + (1 - mass) * g.uniform(0.01, 0.9)
    assert pull(p, k, below, cut) > 0 == pull(p, k, above, cut)
    students = [np.r_[p[:k] / mass * s, p[k:] / (1 - mass) * (1 - s)] for s in (below, above)]
    losses = [top_k_loss(np.log(q), np.log(p[:k]), [*range(k)], treatment=how) for q in students]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9, abs=1e-12)


@claim(
    "two will do for each kept probability",
    on=[(scale, apart) for scale in (3.0, 8.0) for apart in (0.3, 1.0, 3.0)],
    but_not={
        "within a hundredth of a nat": (3.0, 0.1),
        "so near, and sharp": (8.0, 0.1),
        "the tail from what is left": (8.0, 0.3, False),
    },
)
def test_what_two_bytes_make_of_a_tail(scale: float, apart: float, beside: bool = True) -> None:
    """Flat and sharp teachers over a vocabulary: the gradient of the divergence from a cache, to a hundredth."""
    g, one_each = rng(12), torch.eye(100)  # hidden states that make the weight the student's logits
    v = torch.tensor(scale * g.normal(size=(100, 8_000))).float()
    student = (v + apart * torch.tensor(g.normal(size=v.shape)).float()).T.contiguous().requires_grad_()
    cache = xt.top_k_of_teacher(v, 64)
    assert cache.probs is not None
    probs = cache.probs.bfloat16()
    tail = cache.tail if beside else (1 - probs.double().sum(1)).clamp(min=0).float()
    short = xt.TopK(cache.indices.int(), tail, probs)
    assert sum(x.nbytes for x in (short.indices, tail, probs)) == 388 * len(v)
    assert ((tail - cache.tail).abs() / cache.tail).median() < 1e-3
    of = [xt.linear_distillation_loss(one_each, student, teacher_top_k=c) for c in (cache, short)]
    long, rounded = (slope(loss, student) for loss in of)
    assert (long - rounded).norm() < 0.01 * long.norm()
    assert apart < 0.3 or of[0] > 0.01


@claim(
    "where the student's tail is smaller, it has no gradient",
    on=lambda: [22.0, *rng(10).uniform(20, 60, 5)],
    but_not={"a larger tail": 14.0, "the tokens outside": (22.0, True)},
)
def test_a_clamped_tail_has_no_gradient(gap: float, outside: bool = False) -> None:
    """log(1 - S_q) with the clamp, and TRL's way, beside a log-sum-exp over the tokens outside."""

    def gradients(gap: float) -> list[Tensor]:
        z = torch.tensor([gap, gap - 0.1, 0.0, -0.5], requires_grad=True)
        inside = z.log_softmax(-1)[:2]
        ghost = torch.log((1 - inside.exp().sum()).clamp(min=1e-8))
        server = torch.log(-torch.expm1(torch.logsumexp(inside, -1).clamp(max=-1e-7)))
        exact = torch.logsumexp(z.double()[2:], -1) - torch.logsumexp(z.double(), -1)
        return [slope(loss, z) for loss in (ghost, server, exact)]

    ghost, server, right = gradients(gap)
    assert right[2] > 0.1 and not any(found.any() for found in ((right,) if outside else (ghost, server)))
    ghost, _, right = gradients(14.0)  # long before, the digits
    assert abs(ghost[2] / right[2] - 1) > 1e-3


# -------------------------------------------------------------------------------------------------- two ends

OWN, OTHER, LONGEST = -1, -2, 64


def speaker(letters: Array, own: bool) -> Tensor:
    """Rows over the letters, the teacher's end and the student's, nearly all of the end's probability on one."""
    ends = (1 - letters.sum(1, keepdims=True)) * ([1e-4, 1 - 1e-4] if own else [1 - 1e-4, 1e-4])
    return torch.tensor(np.hstack([letters, ends]))


def reached(q: Array, either: bool) -> Array:
    """How often a text comes to each row: after a letter, after the teacher's end, and at the start."""
    at = np.eye(len(q))[-1]
    total, on = at.copy(), np.append(np.ones(len(q) - 1), 0.0)
    on[OTHER] = not either
    for _ in range(LONGEST - 1):
        at = np.append((at @ q)[:OWN], 0.0) * on
        total += at
    return total


def on_policy(letters: Array, direction: str, renamed: bool) -> Array:
    """Mean length, every ten steps, to the student's end and to either."""
    teacher = speaker(letters, own=renamed)
    z = speaker(letters, own=True).log().requires_grad_()
    adam, seen = torch.optim.Adam([z], lr=0.05), []
    for step in range(401):
        log_q = z.log_softmax(1)
        q = log_q.exp().detach().numpy()
        visits = reached(q, False)
        if step % 10 == 0:
            seen.append([visits.sum(), reached(q, True).sum()])
        each = (log_q.exp() * (log_q - teacher.log())).sum(1)
        each = each if direction == "reverse" else -(teacher * log_q).sum(1)
        adam.zero_grad()
        torch.autograd.backward(torch.tensor(visits / visits.sum()) @ each)
        adam.step()
    return np.array(seen)


@pytest.mark.claim(
    "14",
    "The student unlearns its end within a few dozen steps",
    "Under the reverse divergence the teacher's end takes far longer to learn",
    "Under the forward one the new end comes as the old one goes",
    "Move the teacher's column onto the student's end",
)
def test_two_ends() -> None:
    """The chapter's speakers, and others, of one letter and of six."""
    g = rng(20)
    chapter = np.array([[0.7, 0.2], [0.3, 0.5], [0.5, 0.49], [0.5, 0.49]])
    others = [(1 - g.uniform(0.08, 0.16, (k + 2, 1))) * g.dirichlet(np.full(k, 3.0), k + 2) for k in (1, 6)]
    for letters in (chapter, *others):
        ways = [("reverse", False), ("forward", False), ("reverse", True), ("forward", True)]
        reverse, forward, *renamed = (on_policy(letters, *way) for way in ways)
        before = reverse[0, 0]

        def unlearns(seen: Array, before: float = before) -> None:
            assert seen[5, 0] > 3 * before and seen[-1, 0] > 0.9 * LONGEST

        def has_no_end(seen: Array, before: float = before) -> None:
            assert seen[:, 1].max() > 3 * before and seen[-1, 1] < 1.1 * before

        def takes_over(seen: Array, before: float = before) -> None:
            assert seen[-1, 0] > 0.8 * LONGEST and np.abs(seen[:, 1] / before - 1).max() < 0.2

        def stays(seen: Array, before: float = before) -> None:
            assert np.abs(seen / before - 1).max() < 0.1

        holds(unlearns, reverse, but_not={"renamed": renamed[0]})
        holds(has_no_end, reverse, but_not={"forward": forward, "renamed": renamed[0]})
        holds(takes_over, forward, but_not={"reverse": reverse, "renamed": renamed[1]})
        holds(stays, *renamed, but_not={"reverse": reverse, "forward": forward})


# -------------------------------------------------------------------------------------- lengths, masks, tokens


@pytest.mark.claim(
    "14", "A mean over each sequence tilts students", "with labels, a mean over each sequence shortens"
)
def test_the_tilt_and_where_it_ends() -> None:
    """Teachers near the truth and far from it, by the exact minimisers of both losses; denominators for more."""
    for part in (0.0, 0.2, 0.6, 1.0):
        tree = (1 - part) * TRUTH + part * rng(7).dirichlet(np.ones(5), size=dialects.PREFIXES)
        law, weight = dialects.length_probs(tree), dialects.inverse_length(tree)
        hard, soft = (
            x / x.sum(1, keepdims=True) for x in (tree * weight, (tree * weight).sum(1, keepdims=True) * tree)
        )

        def tilted(student: Array, law: Array = law) -> None:
            written = dialects.length_probs(student) @ N
            assert written == pytest.approx(1 / (law @ (1 / N))) and written < law @ N - 0.05

        def gone(student: Array, tree: Array = tree) -> None:
            np.testing.assert_allclose(student, tree, atol=1e-12)

        holds(tilted, hard, but_not={"distributions": soft})
        holds(gone, soft, but_not={"labels": hard})
        lengths = [tilted_lengths(N, B, probabilities=law) @ N for B in (1, 2, 4, 16)]
        assert (np.diff([*lengths, law @ N]) > 1e-6).all()


@claim(
    "a term that is zero for a student",
    on=lambda: ((p, rng(8).permutation(p)) for c in (2, 8, 1000) for _, (p,) in distributions(rng(8), c)),
    but_not={"another distribution": (np.array([0.75, 0.25]), np.array([0.7, 0.3]))},
)
def test_sorted_probabilities_forget_the_tokens(p: Array, q: Array) -> None:
    """The sorted L1 loss notices no permutation; the divergence does."""
    assert np.abs(np.sort(p) - np.sort(q)).sum() == 0
    assert np.ptp(p) < 1e-9 or kl_divergence(p, np.roll(p, 1)) > 1e-6


@claim(
    "change the teacher's logits at every prompt position but the last",
    on=lambda: [*rng(9).integers(1, 6, (5, 3))],
    but_not={"no mask": (np.array([3, 4, 5]), 1, False), "the last position too": (np.array([3, 4, 5]), 0)},
)
def test_the_check_of_the_mask(prompts: Array, but: int = 1, masked: bool = True) -> None:
    """A loop that shifts by one: the logits at i predict token i + 1."""
    g, tokens = rng(9), np.arange(7)
    z, v, noise = (torch.tensor(g.normal(size=(3, 7, 11))) for _ in range(3))
    moved = torch.where(torch.tensor(tokens < prompts[:, None] - but)[..., None], v + 5 * noise, v)
    given: Any = {"sample_weight": torch.tensor(tokens[1:] >= prompts[:, None])} if masked else {}
    before, after = (xt.distillation_loss(z[:, :-1], t[:, :-1], **given).item() for t in (v, moved))
    assert before == pytest.approx(after, rel=1e-9)


def steepest(z: Tensor, v: Tensor, T: float, labels: Array | None = None) -> float:
    """The largest slope of the loss, half of it of labels if there are any, where the student has these logits."""
    z = z.clone().requires_grad_()
    loss = xt.distillation_loss(z.expand(v.shape), v, temperature=T)
    if labels is not None:
        loss = loss / 2 - (torch.tensor(labels) * z.log_softmax(-1)).sum() / 2
    return float(slope(loss, z).abs().max())


@pytest.mark.claim("14", "for a flexible student without labels ... has the same minimum")
def test_temperatures_and_students_that_cannot_follow() -> None:
    """A row of logits for each of two teacher's rows, or one for both; a mixture whose labels are not the teacher's."""

    def same(z: Tensor, v: Tensor, T: float, labels: Array | None = None) -> None:
        assert steepest(z, v, 1.0, labels) < 1e-12 and steepest(z, v, T, labels) < 1e-6

    p, y = np.array([[0.9, 0.1]]), np.array([[0.5, 0.5]])
    mixed = torch.tensor(np.log((p + y) / 2)), torch.tensor(np.log(p)), 4.0, y
    for classes in (2, 10, 100):
        v = torch.tensor(2 * rng(16).normal(size=(2, classes)))
        one = v.softmax(-1).mean(0, keepdim=True).log(), v, 4.0  # the minimiser at T = 1
        holds(
            same, *((v + 3.0, v, T) for T in (2.0, 4.0, 8.0)), but_not={"a single row": one, "labels": mixed}
        )
