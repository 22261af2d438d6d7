"""What chapter 14 claims, and attempts to refute it; on frozen results in test_records.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import xent
import xent.torch as xt
from adversary import Array, Draw, claim, distributions, lowest, rng
from experiments.language_models import dialects
from records import holds
from xent.denominators import learnt_distribution
from xent.distillation import top_k_loss
from xent.information import kl_divergence
from xent.sequences import MarkovSource

LAST, N, TRUTH = dialects.last_letter(), np.arange(1, dialects.LIMIT + 2), dialects.source()


def slope(loss: Tensor, at: Tensor) -> Tensor:
    return torch.autograd.grad(loss, at, retain_graph=True)[0]


def teachers(g: Draw, *sizes: tuple[int, int]) -> Iterator[tuple[Array, int]]:
    """Probabilities of every kind over so many tokens, from the largest on, none zero, and how many are kept."""
    for classes, k in sizes:
        for _, (p,) in distributions(g, classes):
            yield np.sort(0.9 * p + 0.1 / classes)[::-1].copy(), k


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
    inner = np.eye(len(writer.transition)) - writer.transition[:, :-1]
    visits = np.linalg.solve(inner.T, writer.initial[:-1])
    return float(visits @ kl_divergence(p.transition, q.transition) + kl_divergence(p.initial, q.initial))


@claim(
    "Token divergences add up, on average, to the divergence of sequences, along prefixes",
    on=lambda: (pair for p, q in chains() for pair in ((p, p, q), (q, q, p))),
    but_not=lambda: {f"the other writer, {i}": (q, p, q) for i, (p, q) in enumerate(chains())},
)
def test_whose_prefixes(writer: MarkovSource, p: MarkovSource, q: MarkovSource) -> None:
    """Chains over one to twenty letters."""
    assert token_sum(writer, p, q) == pytest.approx(p.kl(q), rel=1e-9)


P = chain(rng(1), 20)


@claim(
    "With the other writer, the mean of the sum is never negative",
    on=chains,
    but_not={
        "itself": (P, P),
        "another first token": (P, MarkovSource(chain(rng(2), 20).initial, P.transition)),
    },
)
def test_the_other_writer(p: MarkovSource, q: MarkovSource) -> None:
    """Chains that differ in the first token alone are the exception to the rule."""
    assert token_sum(q, p, q) > 0 and abs(token_sum(q, p, q) / p.kl(q) - 1) > 1e-9


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


def minimised(start: Array, truth: Array) -> Array:
    """Where KL(Q || P) of sequences is least: the student's rows by their logits."""
    log_p, on = torch.tensor(np.log(np.maximum(truth[1:], 1e-300))), torch.tensor(LAST[1:])

    def loss(z: Tensor) -> Tensor:
        log_q, levels = z.log_softmax(-1)[on], [torch.full((4,), 0.25).double().log()]
        for d in range(1, dialects.LIMIT - 1):
            here = slice(dialects.START[d] - 1, dialects.START[d + 1] - 1)
            levels.append((levels[-1][:, None] + log_q[here, :4]).flatten())
        return torch.cat(levels).exp() @ (log_q.exp() * (log_q - log_p)).sum(1)

    best = lowest(loss, np.log(start[1:5]), gtol=1e-5)
    return of_letters(np.vstack([truth[0], xent.softmax(best)]))


@pytest.mark.claim(
    "14", "For the bigram students of two dialects, forward", "The student of the token gradient lies between"
)
@pytest.mark.claim("14", "Started at *up*, the mode-seeking student stays")
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
            reverse = [dialects.sequence_kl(t, truth) for t in students]
            forward = [dialects.sequence_kl(truth, t) for t in students]
            assert reverse[0] > reverse[1] > reverse[2] and forward[0] < forward[1] < forward[2]

        exchanged = {
            "the last two": (covering, sequences, token),
            "the first two": (token, covering, sequences),
        }
        holds(says, (covering, token, sequences), but_not=exchanged)


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


ESTIMATES = {"k1": "zero", "k2": "reverse", "k3": "forward", "rewarded": "reverse"}


@claim(
    "Differentiated with the drawn token held constant",
    "As a negative reward in a policy gradient",
    on=[(*pair, c, s) for pair in ESTIMATES.items() for c in (2, 5, 1000) for s in (0.3, 3.0)],
    but_not={
        f"{name}, {other}": (name, other, 5, 1.0)
        for name, right in ESTIMATES.items()
        for other in {"zero", "reverse", "forward"} - {right}
    },
)
def test_estimates_of_the_reverse_divergence(estimate: str, of: str, classes: int, spread: float) -> None:
    """Every token in turn, weighted by the student: mean gradients for random pairs of rows."""
    z, v = torch.tensor(spread * rng(13).normal(size=(2, classes)))
    q, p = z.requires_grad_().log_softmax(0), v.log_softmax(0)
    r, drawn = p - q, q.exp().detach()
    losses = {
        "k1": drawn @ -r,
        "k2": drawn @ r.square() / 2,
        "k3": drawn @ (r.exp() - r - 1),
        "rewarded": drawn @ (-r.detach() * q),
        "zero": 0 * q.sum(),
        "reverse": q.exp() @ (q - p),
        "forward": p.exp() @ (p - q),
    }
    torch.testing.assert_close(slope(losses[estimate], z), slope(losses[of], z), rtol=1e-9, atol=1e-12)


def clipped(p: Array, q: Array, bound: float, how: str = "reward") -> Array:
    """The slope in the student's logits, every token in turn: of a reward, or of a loss that is differentiated."""
    z = torch.tensor(np.log(q)).requires_grad_()
    log_q, log_p = z.log_softmax(0), torch.tensor(np.log(p))
    r, drawn = log_p - log_q, log_q.exp().detach()
    losses = {
        "reward": -drawn @ (r.detach().clamp(-bound, bound) * log_q),
        "terms": (log_p.exp() * r).clamp(max=bound).sum(),
        "clamped": drawn @ r.clamp(-bound, bound).square() / 2,
    }
    return np.asarray(slope(losses[how], z))


NINE = np.array([0.45, 0.05, 0.5])  # the teacher; a student far below the first and far above the second
REST = np.array([0.45 * np.exp(-1), 0.05 + 0.45 * (1 - np.exp(-1)), 0.5])


@claim(
    "Clipped as a reward, the log-ratio leaves",
    on=lambda: (
        (*xent.softmax(spread * rng(21).normal(size=(2, classes))), bound)
        for classes in (2, 5, 1000)
        for spread in (0.01, 1.0, 5.0)
        for bound in (0.05, 1.0, 20.0)
    ),
    but_not={"the teacher": (NINE, NINE, 1.0), "clamped and differentiated": (NINE, REST, 0.5, "clamped")},
)
def test_where_a_clipped_reward_rests(p: Array, q: Array, bound: float, how: str = "reward") -> None:
    """Only at the teacher is there no slope; the product with the student's probabilities is left out of the size."""
    assert np.abs(clipped(p, p, bound, how)).max() < 1e-15
    assert np.abs(clipped(p, q, bound, how) / q).max() > 1e-6 * np.abs(np.log(p / q)).max()


@claim(
    "If it is clamped inside a loss that is differentiated, the tokens beyond",
    on=[(NINE, REST, 0.5), (NINE, REST, 0.9)],
    but_not={"a wider clamp": (NINE, REST, 1.2), "a reward": (NINE, REST, 0.5, "reward")},
)
def test_where_a_clamped_loss_rests(p: Array, q: Array, bound: float, how: str = "clamped") -> None:
    assert np.abs(clipped(p, q, bound, how)).max() < 1e-15 < 0.1 < np.abs(q - p).max()


@claim(
    "Clamp the individual terms of a forward divergence",
    "these divergences hardly pull on a token that a student has given up",
    on=lambda: (
        (p, how)
        for p, _ in teachers(rng(22), (2, 1), (10, 1), (1000, 1))
        for how in ("jsd", "reverse", 1e-3, 0.01, 0.05)
    ),
    but_not={"the forward divergence": (NINE, "forward"), "no clamp": (NINE, np.inf)},
)
def test_a_token_that_is_given_up(p: Array, how: Any) -> None:
    """The pull on the token that the teacher likes best, as a share of its probability; a number clamps the terms."""
    given_up = 1e-9 if isinstance(how, str) else 1e-30
    q = np.r_[given_up, p[1:] / p[1:].sum() * (1 - given_up)]
    if isinstance(how, str):
        z = torch.tensor(np.log(q)).requires_grad_()
        pull = -slope(xt.distillation_loss(z, torch.tensor(np.log(p)), direction=how), z)[0]
        assert 0 < pull < 1e-4 * p[0]
    else:
        assert np.abs(clipped(p, q, how, "terms")[0]) < 1e-3 * p[0]


# ------------------------------------------------------------------------------------------ what a cache teaches


def of_top(q: Array, p: Array, k: int, treatment: Any) -> float:
    return float(top_k_loss(np.log(q), np.log(p[:k]), [*range(k)], treatment=treatment))


def empties(p: Array, k: int, treatment: Any) -> None:
    """A student gains by emptying its tail."""
    tail = np.full(len(p) - k, 1e-7)
    emptier = np.r_[p[:k] / p[:k].sum() * (1 - tail.sum()), tail]
    assert of_top(emptier, p, k, treatment) < of_top(p, p, k, treatment) - 1e-9


def fixes_the_mass_only(p: Array, k: int, treatment: Any) -> None:
    """Two divisions of the tail cost the same, and any other mass of it costs more."""
    mass, rest = p[:k].sum(), len(p) - k
    even = np.r_[p[:k], np.full(rest, (1 - mass) / rest)]
    steep = np.r_[p[:k], (1 - mass) * 2.0 ** -np.r_[1:rest, rest - 1]]
    assert of_top(even, p, k, treatment) == pytest.approx(of_top(steep, p, k, treatment), rel=1e-9, abs=1e-12)
    for factor in (0.8, min(1.1, 0.5 + 0.5 / mass)):
        other = np.r_[p[:k] * factor, p[k:] * (1 - factor * mass) / (1 - mass)]
        assert of_top(other, p, k, treatment) > of_top(p, p, k, treatment)


def unbiased(p: Array, drawn_from: Array) -> None:
    g = rng(5)
    z = g.normal(size=len(p))
    labels = g.choice(len(p), (4000, 3), p=drawn_from / drawn_from.sum())
    drawn = xent.cross_entropy(np.tile(z, (4000, 3, 1)), labels, reduction="none").mean(1)
    assert abs(drawn.mean() - xent.soft_cross_entropy(z, p)) < 5 * drawn.std() / np.sqrt(len(drawn))


def caches(*rows: tuple[Any, str]) -> dict[str, Any]:
    given = [(p, k) for p, k in teachers(rng(5), (3, 1), (6, 2), (50, 8))]
    asked = [(says, how) for says, hows in rows for how in hows.split()]
    return {
        f"{says.__name__}, {how}, {i}": (says, *g, how) for says, how in asked for i, g in enumerate(given)
    }


BARE, FIRST = "truncated renormalised", np.array([0.9, 0.05, 0.05])


@claim(
    "In the forward direction the bare top $k$ empties the tail",
    on=lambda: [
        *caches((empties, BARE), (fixes_the_mass_only, "tail")).values(),
        *((unbiased, p, p) for p, _ in teachers(rng(5), (3, 1), (6, 2), (50, 8))),
    ],
    but_not=lambda: (
        caches((empties, "tail renormalised_both"), (fixes_the_mass_only, BARE))
        | {"draws from another teacher": (unbiased, FIRST, FIRST[::-1])}
    ),
)
def test_what_a_cache_teaches(says: Callable[..., None], *given: Any) -> None:
    """Teachers of every kind and any k. With the student's part renormalised as well, the tail is free."""
    says(*given)


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
    """The mass on k tokens, as a share of the teacher's, where descent from the teacher comes to rest."""

    def loss(z: Tensor) -> Tensor:
        log_q, log_p = z.log_softmax(0), torch.tensor(np.log(p))
        terms = log_q.exp() * (log_q - log_p)
        tails = [x[k:].logsumexp(0) for x in (log_q, log_p)]
        return (terms if whole else terms[:k]).sum() + bucket * tails[0].exp() * (tails[0] - tails[1])

    kept = xent.softmax(lowest(loss, np.log(p), "L-BFGS-B", ftol=1e-15))[:k].sum() / p[:k].sum()
    assert kept == pytest.approx(1 / np.e, rel=2e-3)


# -------------------------------------------------------------------------------------------------- two ends

OWN, OTHER, LONGEST = -1, -2, 64


@cache
def on_policy(number: int, way: str) -> tuple[Array, Array]:
    """Mean length, every ten steps, to the student's end and to either; the chapter's speakers, or two others."""
    letters, g = np.array([[0.7, 0.2], [0.3, 0.5], [0.5, 0.49], [0.5, 0.49]]), rng(20)
    for k in (1, 6)[:number]:
        letters = (1 - g.uniform(0.08, 0.16, (k + 2, 1))) * g.dirichlet(np.full(k, 3.0), k + 2)

    def speaker(*ends: float) -> Tensor:
        return torch.tensor(np.hstack([letters, (1 - letters.sum(1, keepdims=True)) * ends]))

    def reached(q: Array, goes_on: float) -> Array:
        """How often a text comes to each row: after a letter, after the teacher's end, and at the start."""
        total = at = np.eye(len(q))[-1]
        for _ in range(LONGEST - 1):
            at = np.append((at @ q)[:OWN], 0.0)
            at[OTHER] *= goes_on
            total = total + at
        return total

    direction, renamed = way.rstrip("*+>"), way.endswith("*")
    teacher = speaker(1e-4, 1 - 1e-4) if renamed else speaker(1 - 1e-4, 1e-4)
    if way.endswith(">"):
        teacher = speaker(0.0, 1.0)
    z = (teacher if way.endswith("+") else speaker(1e-4, 1 - 1e-4)).log().requires_grad_()
    adam, seen = torch.optim.Adam([z], lr=0.05), []
    for step in range(401):
        log_q = z.log_softmax(1)
        q = log_q.exp().detach().numpy()
        visits = reached(q, 1.0)
        if step % 10 == 0:
            seen.append([visits.sum(), reached(q, 0.0).sum()])
        each = (log_q.exp() * (log_q - teacher.log())).sum(1)
        each = each if direction == "reverse" else -(teacher * log_q).sum(1)
        z.grad = slope(torch.tensor(visits / visits.sum()) @ each, z)
        adam.step()
    own, either = np.array(seen).T
    return own, either


def far(lengths: Array, first: float) -> float:
    return float(np.abs(lengths / first - 1).max())


# What is said of the two lengths, and of which ways to train; a star: the teacher's ends are exchanged; an arrow: its
# end is moved onto the student's, which leaves it nothing; a plus: the student begins as the teacher.
ENDS: dict[str, tuple[Callable[[Array, Array], Any], str, str]] = {
    "unlearns it": (lambda own, _: own[5] > 3 * own[0] and own[-1] > 0.9 * LONGEST, "reverse", "reverse*"),
    "has none": (lambda own, e: e.max() > 3 * own[0] and e[-1] < 1.1 * own[0], "reverse", "forward reverse*"),
    "learns": (
        lambda own, e: own[-1] > 0.8 * LONGEST and far(e, own[0]) < 0.2,
        "forward",
        "reverse forward*",
    ),
    "keeps": (
        lambda own, e: max(far(own, own[0]), far(e, own[0])) < 0.1,
        "reverse* forward* forward>",
        "reverse forward reverse>",
    ),
    "has to stop there": (
        lambda own, e: own.min() > 0.9 * LONGEST and far(e, e[0]) < 0.1,
        "reverse+ forward+",
        "reverse forward reverse*",
    ),
}


def of_ends(column: int) -> dict[str, Any]:
    rows = [(what, way) for what, says in ENDS.items() for way in str(says[column]).split()]
    return {f"{what}, {way}, {i}": (what, way, i) for what, way in rows for i in range(3)}


@claim(
    "Under the reverse divergence the student unlearns its end",
    "The teacher's end takes far longer to learn",
    "the new end appears as the old one disappears",
    "If the teacher's columns for the two ends are exchanged,",
    "or first fine-tune the student on texts that end like the teacher's and let generation stop at that end",
    on=of_ends(1).values(),
    but_not=of_ends(2),
)
def test_two_ends(what: str, way: str, speaker: int) -> None:
    assert ENDS[what][0](*on_policy(speaker, way))


# -------------------------------------------------------------------------------------- lengths, masks, tokens

PARTS = (0.0, 0.2, 0.6, 1.0)


@claim(
    "A mean over each sequence tilts students",
    on=[(says, part) for says in ("labels", "distributions") for part in PARTS],
    but_not={
        f"{says} for {other}, {part}": (says, part, other)
        for says, other in (("labels", "distributions"), ("distributions", "labels"))
        for part in PARTS
    },
)
def test_the_tilt_and_where_it_ends(says: str, part: float, scored_by: str = "") -> None:
    """Teachers near the truth and far from it, by the exact minimisers of both losses; denominators for more."""
    tree = (1 - part) * TRUTH + part * rng(7).dirichlet(np.ones(5), size=dialects.PREFIXES)
    law, weight = dialects.length_probs(tree), tree * dialects.inverse_length(tree)
    student = weight if (scored_by or says) == "labels" else weight.sum(1, keepdims=True) * tree
    student = student / student.sum(1, keepdims=True)
    if says == "distributions":
        np.testing.assert_allclose(student, tree, atol=1e-12)
        return
    written = dialects.length_probs(student) @ N
    assert written == pytest.approx(1 / (law @ (1 / N))) and written < law @ N - 0.05
    lengths = [learnt_distribution(law, N, B) @ N for B in (1, 2, 4, 16)]
    assert lengths[0] == pytest.approx(written) and (np.diff([*lengths, law @ N]) > 1e-6).all()


@claim(
    "this second term is zero for a student",
    on=lambda: ((p, rng(8).permutation(p)) for c in (2, 8, 1000) for _, (p,) in distributions(rng(8), c)),
    but_not={"another distribution": (np.array([0.75, 0.25]), np.array([0.7, 0.3]))},
)
def test_sorted_probabilities_forget_the_tokens(p: Array, q: Array) -> None:
    """The sorted L1 loss notices no permutation; the divergence does."""
    assert np.abs(np.sort(p) - np.sort(q)).sum() == 0
    assert np.ptp(p) < 1e-9 or kl_divergence(p, np.roll(p, 1)) > 1e-6


@claim(
    "replace the teacher's logits by noise at every prompt position but the last",
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
