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
from adversary import claim, defined, distributions, printed, rng
from experiments.language_models import dialects
from records import holds
from xent.information import kl_divergence
from xent.sequences import MarkovSource

Array = np.ndarray
CHAPTER = "14_language_models"
LAST, N, TRUTH = dialects.last_letter(), np.arange(1, dialects.LIMIT + 2), dialects.source()


# ------------------------------------------------------------------------------- whose prefixes, which divergence


test_whose_prefixes = claim(
    "Token divergences add up, on average, to the divergence of sequences, along prefixes",
    on=["eq-lm-chain", "eq-lm-reverse", "eq-lm-markov"],
    but_not={
        "the student's prefixes": ("eq-lm-chain", r"\sum_{c} P(c)", r"\sum_{c} Q(c)"),
        "the teacher's, for the reverse divergence": ("eq-lm-reverse", r"\sum_{c} Q(c)", r"\sum_{c} P(c)"),
        "each prefix once": ("eq-lm-chain", r"\sum_{c} P(c)", r"\sum_{c}"),
    },
)(printed)


def chains() -> Iterator[tuple[MarkovSource, MarkovSource]]:
    """Pairs over one to twenty letters."""
    g = rng(1)
    for letters in (1, 3, 20):
        for concentration in (0.2, 1.0, 20.0) * 4:
            rows = g.dirichlet(np.full(letters + 1, concentration), (2, letters + 1))
            p, q = (MarkovSource(p[0], p[1:]) for p in 0.99 * rows + 0.01 / (letters + 1))
            yield p, q


P, OTHER = next(chains())


@claim(
    "With the other writer, the mean of the sum is never negative",
    on=chains,
    but_not={"itself": (P, P), "another first token": (P, MarkovSource(OTHER.initial, P.transition))},
)
def test_the_other_writer(p: MarkovSource, q: MarkovSource) -> None:
    """Chains that differ in the first token alone are the exception to the rule."""
    total = q.visits() @ kl_divergence(p.transition, q.transition) + kl_divergence(p.initial, q.initial)
    assert total > 0 and abs(total / p.kl(q) - 1) > 1e-9


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


STUDENTS = (
    "last",
    "floor",
    "log_truth",
    "tied",
    "at_rest",
    "letter_of",
    "log_p",
    "sequence_reverse",
    "minimise",
)


def says(truth: Array, *students: Array) -> None:
    """Of the three: the first has the truth's share of upward steps, and each is between its neighbours."""
    share = [dialects.share_of_up(t) for t in students]
    assert share[0] == pytest.approx(dialects.share_of_up(truth), abs=0.02)
    assert share[2] < share[1] - 0.02 < share[0] - 0.04
    assert (np.diff([dialects.sequence_kl(t, truth) for t in students]) < 0).all()
    assert (np.diff([dialects.sequence_kl(truth, t) for t in students]) > 0).all()


@pytest.mark.claim(
    "14",
    "For the bigram students of two dialects, forward",
    "The student of the token gradient lies between",
    "Started at *up*, the student of the sequence divergence stays",
)
def test_four_students_of_the_exact_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chapter's students of random dialects, with strays and lengths of their own."""
    g = rng(2)
    for follow, up, down in (
        (g.uniform(0.74, 0.78), 0.3, 0.1),
        (g.uniform(0.8, 0.84), g.uniform(0.24, 0.27), 0.12),
    ):
        for name, value in {
            "FOLLOW": follow,
            "STRAY": (1 - follow) / 3,
            "STOP": {"up": up, "down": down},
        }.items():
            monkeypatch.setattr(dialects, name, value)
        truth = dialects.source()
        of = defined(CHAPTER, *STUDENTS, truth=truth)
        covering = of["tied"](dialects.begins(truth), "arithmetic")
        token, sequences = of["at_rest"]("geometric", covering), of["minimise"](covering)
        assert dialects.share_of_up(of["minimise"](dialects.dialect("up"))) > 0.6
        holds(says, (truth, covering, token, sequences), but_not={
            "the last two": (truth, covering, sequences, token),
            "the first two": (truth, token, covering, sequences)})  # fmt: skip


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


def pull(how: str, p: Array, q: Array, bound: float = np.inf) -> Array:
    """The mean slope of a loss in the student's logits, the drawn token held constant; some are clamped at a bound."""
    z = torch.tensor(np.log(q)).requires_grad_()
    log_q, log_p = z.log_softmax(0), torch.tensor(np.log(p))
    r, drawn = log_p - log_q, log_q.exp().detach()
    losses = {
        "k1": drawn @ -r,
        "k2": drawn @ r.clamp(-bound, bound).square() / 2,
        "k3": drawn @ (r.exp() - r - 1),
        "rewarded": -drawn @ (r.detach().clamp(-bound, bound) * log_q),
        "zero": 0 * log_q.sum(),
        "reverse": log_q.exp() @ -r,
        "forward": (log_p.exp() * r).clamp(max=bound).sum(),
        "jsd": xt.distillation_loss(z, log_p, direction="jsd"),
    }
    return np.asarray(torch.autograd.grad(losses[how], z)[0])


def pairs(*spreads: float) -> Iterator[tuple[Array, Array]]:
    for classes in (2, 5, 1000):
        for spread in spreads:
            p, q = xent.softmax(spread * rng(13).normal(size=(2, classes)))
            yield p, q


ESTIMATES = {"k1": "zero", "k2": "reverse", "k3": "forward", "rewarded": "reverse"}
NINE = np.array([0.45, 0.05, 0.5])  # the teacher; a student far below the first and far above the second
REST = np.array([0.45 * np.exp(-1), 0.05 + 0.45 * (1 - np.exp(-1)), 0.5])


@claim(
    "Differentiated with the drawn token held constant",
    "As a negative reward in a policy gradient",
    on=lambda: ((*names, *pair) for names in ESTIMATES.items() for pair in pairs(0.3, 3.0)),
    but_not={
        f"{name}, {other}": (name, other, NINE, REST)
        for name, right in ESTIMATES.items()
        for other in {"zero", "reverse", "forward"} - {right}
    },
)
def test_estimates_of_the_reverse_divergence(estimate: str, of: str, p: Array, q: Array) -> None:
    np.testing.assert_allclose(pull(estimate, p, q), pull(of, p, q), rtol=1e-9, atol=1e-12)


@claim(
    "Clipped as a reward, the log-ratio leaves",
    on=lambda: ((*pair, bound) for pair in pairs(0.01, 1.0, 5.0) for bound in (0.05, 1.0, 20.0)),
    but_not={"the teacher": (NINE, NINE, 1.0), "clamped and differentiated": (NINE, REST, 0.5, "k2")},
)
def test_where_a_clipped_reward_rests(p: Array, q: Array, bound: float, how: str = "rewarded") -> None:
    """Only at the teacher is there no slope; the product with the student's probabilities is left out of the size."""
    assert np.abs(pull(how, p, p, bound)).max() < 1e-15
    assert np.abs(pull(how, p, q, bound) / q).max() > 1e-6 * np.abs(np.log(p / q)).max()


@claim(
    "If it is clamped inside a loss that is differentiated, the tokens beyond",
    on=[(NINE, REST, 0.5), (NINE, REST, 0.9)],
    but_not={"a wider clamp": (NINE, REST, 1.2), "a reward": (NINE, REST, 0.5, "rewarded")},
)
def test_where_a_clamped_loss_rests(p: Array, q: Array, bound: float, how: str = "k2") -> None:
    assert np.abs(pull(how, p, q, bound)).max() < 1e-15 < 0.1 < np.abs(q - p).max()


WEAK = [
    ("jsd", np.inf, 1e-9),
    ("reverse", np.inf, 1e-9),
    *(("forward", b, 1e-30) for b in (1e-3, 0.01, 0.05)),
]


@claim(
    "Clamp the single terms of a forward divergence",
    "these divergences hardly pull on a token that a student gives up",
    on=lambda: ((p, *weak) for k in (2, 10, 1000) for _, (p,) in distributions(rng(22), k) for weak in WEAK),
    but_not={"the forward divergence, no clamp": (NINE, "forward", np.inf, 1e-30)},
)
def test_a_token_that_is_given_up(p: Array, how: str, bound: float, given_up: float) -> None:
    """The pull on the token that the teacher likes best, as a share of its probability."""
    p = np.sort(0.9 * p + 0.1 / len(p))[::-1]
    q = np.r_[given_up, p[1:] / p[1:].sum() * (1 - given_up)]
    assert np.abs(pull(how, p, q, bound)[0]) < 1e-4 * p[0]


# ------------------------------------------------------------------------------------------ what a cache teaches


test_what_a_cache_teaches = claim(
    "In the forward direction the bare top $k$ empties the tail",
    "All mass goes to the kept tokens",
    "So a student that already agrees with its teacher is drawn away",
    on=["eq-lm-topk", "eq-lm-bare", "eq-lm-bucket", "eq-lm-sampled"],
    but_not={
        "the teacher's own tail": ("eq-lm-topk", r"q_i^* &= 0 \quad", r"q_i^* &= p_i \quad"),
        "the kept part as it is": ("eq-lm-topk", "= p_i / S", "= p_i"),
        "reverse terms that keep all": ("eq-lm-bare", "= p_i / e", "= p_i"),
        "the sum of the terms, zero at the teacher": ("eq-lm-bare", r"\ge -\frac{S}{e}", r"\ge 0"),
        "a bucket that divides the tail": ("eq-lm-bucket", r"(1 - S)\, \mathrm{KL}(p_{>k} \| q_{>k})", "0"),
        "draws without weights": ("eq-lm-sampled", r"\frac{p(v_j)}{r(v_j)} \log", r"\log"),
    },
)(printed)


# -------------------------------------------------------------------------------------------------- two ends

OWN, LIMIT = 3, 64


def visits(q: Tensor, *stops: int) -> Tensor:
    """The chapter's expected visits to each row, by a geometric series of matrices, which is quicker."""
    goes_on = q.clone()
    goes_on[:, [OWN, *stops]] = 0.0
    one = torch.eye(len(q), dtype=q.dtype)
    total: Tensor = torch.linalg.solve(one - goes_on, one - torch.linalg.matrix_power(goes_on, LIMIT))
    return total[-1]


@cache
def on_policy(number: int, way: str) -> tuple[Array, Array]:
    """Mean length, every ten steps, to the student's end and to either; the chapter's speakers, or two others."""
    g, given = rng(20), dict[str, Any]()
    if number:  # hardly more than one letter, or two
        letters = g.dirichlet((3, 3), 4) if number == 2 else np.array([1 - 1e-6, 1e-6])
        given["A_B"] = (1 - g.uniform(0.08, 0.16, (4, 1))) * letters
    names = ("A_B", "(OWN, OTHER, LIMIT)", "speaker", "on_policy", "renamed")[bool(number) :]
    of = defined(CHAPTER, *names, STEPS=range(0, 401, 10), visits=visits, **given)
    teacher = of["renamed"] if way.endswith("*") else of["speaker"](of["OTHER"])
    own, either = np.array([*of["on_policy"](teacher, way.rstrip("*")).values()]).T
    return own, either


def far(lengths: Array, first: float) -> float:
    return float(np.abs(lengths / first - 1).max())


# What is said of the two lengths, and of which ways to train; a star: the teacher's end is the student's.
ENDS: dict[str, tuple[Callable[[Array, Array], Any], str, str]] = {
    "unlearns it": (lambda own, _: own[5] > 3 * own[0] and own[-1] > 0.9 * LIMIT, "reverse", "reverse*"),
    "has none": (lambda own, e: e.max() > 3 * own[0] and e[-1] < 1.1 * own[0], "reverse", "forward reverse*"),
    "learns": (
        lambda own, e: own[-1] > 0.8 * LIMIT and far(e, own[0]) < 0.2,
        "forward",
        "reverse forward*",
    ),
    "keeps": (
        lambda own, e: max(far(own, own[0]), far(e, own[0])) < 0.1,
        "reverse* forward*",
        "reverse forward",
    ),
}


def of_ends(column: int) -> dict[str, Any]:
    rows = [(what, way) for what, says in ENDS.items() for way in str(says[column]).split()]
    return {f"{what}, {way}, {i}": (what, way, i) for what, way in rows for i in range(3)}


@claim(
    "Under the reverse divergence the student unlearns its end",
    "The teacher's end takes far longer to learn",
    "the new end comes as the old one goes",
    "If the teacher's column for its own end token is moved onto",
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
