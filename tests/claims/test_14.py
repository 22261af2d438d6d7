"""The claims of chapter 14, each with an attempt to refute it; those of the experiment on its stored result."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import xent
import xent.torch as xt
from adversary import Draw, distributions, refuted, rng
from experiments.language_models import dialects, distil, mass
from xent.denominators import tilted_lengths
from xent.distillation import sample_targets, sampled_loss, top_k_loss
from xent.sequences import MarkovSource

FOLDER = Path(__file__).parents[2] / "experiments" / "language_models"
Array = np.ndarray


@cache
def stored() -> dict[str, Any]:
    return json.loads((FOLDER / "result.json").read_text())


def column(arm: str, key: str) -> np.ndarray:
    return np.array((stored() if arm == "teacher" else stored()["arms"])[arm][key])


def interval(x: np.ndarray) -> tuple[float, float]:
    """Ends of the 95 % t interval of the mean."""
    half = stats.t.ppf(0.975, len(x) - 1) * stats.sem(x)
    return float(x.mean() - half), float(x.mean() + half)


def paired(a: str, b: str, key: str) -> tuple[float, float]:
    return interval(column(a, key) - column(b, key))


def chain(g: Draw, letters: int, concentration: float = 1.0) -> MarkovSource:
    rows = 0.99 * g.dirichlet(np.full(letters + 1, concentration), size=letters + 1) + 0.01 / (letters + 1)
    return MarkovSource(rows[0], rows[1:])


def token_sum(writer: MarkovSource, p: MarkovSource, q: MarkovSource) -> float:
    """Sum of KL(p || q) of tokens along prefixes that `writer` writes, in closed form."""
    visits = np.linalg.solve(
        (np.eye(len(writer.transition)) - writer.transition[:, :-1]).T, writer.initial[:-1]
    )
    each = xent.information.kl_divergence(p.transition, q.transition)
    return float(visits @ each + xent.information.kl_divergence(p.initial, q.initial))


@pytest.mark.claim(
    "14",
    "Token divergences add up, on average, to the divergence of sequences along prefixes that its first "
    "argument writes: the teacher for forward, the student for reverse. Along other prefixes they rarely do.",
)
@pytest.mark.claim(
    "14",
    "With the other writer the mean sum is never negative and is zero only for $Q = P$, but as a rule it "
    "differs from the divergence.",
)
def test_whose_prefixes() -> None:
    """Random pairs of chains over one to twenty letters: the two right sums, the two others, and drawn log-ratios.

    Would be refuted by a random pair whose sum with the other writer is a divergence too, negative, or zero. A pair
    that differs in its first token alone is the exception to the rule: either writer does.
    """
    g = rng(1)

    def adds_up(writer: MarkovSource, p: MarkovSource, q: MarkovSource) -> None:
        assert token_sum(writer, p, q) == pytest.approx(p.kl(q), rel=1e-9)

    larger = []
    for letters in (1, 3, 20):
        for concentration in (0.2, 1.0, 20.0):
            for _ in range(4):
                p, q = (chain(g, letters, concentration) for _ in range(2))
                adds_up(p, p, q)
                adds_up(q, q, p)
                mixed = token_sum(q, p, q)
                assert mixed > 0 and abs(mixed / p.kl(q) - 1) > 1e-9
                larger.append(mixed > p.kl(q))
                with refuted("the other writer"):
                    adds_up(q, p, q)
                with refuted("the other writer, reverse"):
                    adds_up(p, q, p)
        # The closed form itself, against log-ratios of drawn sequences.
        words = p.sample(g, 4000)
        tables = [np.log(np.vstack([s.transition, s.initial])) for s in (p, q)]
        ratio = np.array([(tables[0] - tables[1])[[-1, *w], [*w, letters]].sum() for w in words])
        assert abs(ratio.mean() - p.kl(q)) < 5 * ratio.std() / np.sqrt(len(ratio))
    assert any(larger) and not all(larger)
    first_alone = MarkovSource(chain(g, 20, 1.0).initial, p.transition)
    for writer in (p, first_alone):
        adds_up(writer, p, first_alone)
    assert token_sum(p, p, p) == pytest.approx(0, abs=1e-12)


@pytest.mark.claim(
    "14",
    "In the exact table of bigram students, forward training covers both dialects, the reverse divergence of sequences "
    "gives one up, and the token gradient stops in between.",
)
@pytest.mark.claim(
    "14", "The student of the token gradient lies between these two in dialect and divergences."
)
@pytest.mark.claim(
    "14", "Started at *up*, the student of the sequence divergence stays near it, at a second local minimum."
)
def test_four_students_of_the_exact_table() -> None:
    """Random dialects: strays and lengths of their own; each student by its own stationary point.

    Would be refuted by dialects between which the students stand in another order.
    """
    g = rng(2)
    last = dialects.last_letter()
    log_uniform = np.log(0.25)
    for follow, stop in (
        (g.uniform(0.74, 0.78), (0.3, 0.1)),
        (g.uniform(0.8, 0.84), (g.uniform(0.24, 0.27), 0.12)),
    ):
        trees = []
        for step, s in zip((1, -1), stop, strict=True):
            rows = np.zeros((4, 5))
            for letter in range(4):
                rows[letter, :4] = (1 - follow) / 3 * (1 - s)
                rows[letter, (letter + step) % 4] = follow * (1 - s)
                rows[letter, 4] = s
            trees.append(np.vstack([[0.25, 0.25, 0.25, 0.25, 0.0], rows[last[1:]]]))
        truth = dialects.mixture(trees, [0.5, 0.5])
        log_truth = np.log(np.maximum(truth, 1e-300))

        def tied(
            at: np.ndarray, log: bool, truth: np.ndarray = truth, log_truth: np.ndarray = log_truth
        ) -> np.ndarray:
            table = [truth[0]]
            for letter in range(4):
                w = at[last == letter] / at[last == letter].sum()
                row = np.exp(w @ log_truth[last == letter]) if log else w @ truth[last == letter]
                table.append(row / row.sum())
            return np.array(table)[last + 1]

        covering = tied(dialects.begins(truth), log=False)
        token = covering
        for _ in range(100):
            token = tied(dialects.begins(token), log=True)

        letter_of, log_p = torch.tensor(last[1:]), torch.tensor(log_truth[1:])

        def whole(
            theta: torch.Tensor, letter_of: torch.Tensor = letter_of, log_p: torch.Tensor = log_p
        ) -> torch.Tensor:
            log_q = theta.log_softmax(-1)[letter_of]
            level = torch.full((4,), log_uniform, dtype=torch.float64)
            levels = [level]
            for d in range(1, dialects.LIMIT - 1):
                here = slice(dialects.START[d] - 1, dialects.START[d + 1] - 1)
                level = (level[:, None] + log_q[here, :4]).flatten()
                levels.append(level)
            return torch.cat(levels).exp() @ (log_q.exp() * (log_q - log_p)).sum(1)

        def minimised(start: np.ndarray, truth: np.ndarray = truth) -> np.ndarray:
            theta = torch.tensor(np.log(start[1:5]), requires_grad=True)
            solver = torch.optim.LBFGS([theta], max_iter=80, line_search_fn="strong_wolfe")

            def closure() -> torch.Tensor:
                solver.zero_grad()
                loss = whole(theta)
                loss.backward()
                return loss

            solver.step(closure)
            return np.vstack([truth[0], theta.detach().softmax(-1).numpy()])[last + 1]

        sequences, up = minimised(covering), minimised(trees[0])
        assert dialects.share_of_up(up) > 0.6

        def says(covers: Array, between: Array, seeks: Array, truth: Array = truth) -> None:
            share = [dialects.share_of_up(t) for t in (truth, covers, between, seeks)]
            assert share[1] == pytest.approx(share[0], abs=0.02)
            assert share[3] < share[2] - 0.02 and share[2] < share[1] - 0.02
            reverse = [dialects.sequence_kl(t, truth) for t in (covers, between, seeks)]
            forward = [dialects.sequence_kl(truth, t) for t in (covers, between, seeks)]
            assert reverse[0] > reverse[1] > reverse[2] and forward[0] < forward[1] < forward[2]

        says(covering, token, sequences)
        with refuted("the last two exchanged"):
            says(covering, sequences, token)
        with refuted("the first two exchanged"):
            says(token, covering, sequences)


@pytest.mark.claim(
    "14",
    "After each letter except the eighth, the forward student predicts what follows it on average in the "
    "teacher's sequences.",
)
def test_what_follows_a_letter() -> None:
    """Of random tables: the shares after a letter agree; the frequencies of pairs do not, for sequences are cut.

    Would be refuted by a letter after which another row has the smaller divergence. The <eos> that is certain after an
    eighth letter belongs to the sequences, and not to the student's rows.
    """
    g = rng(3)
    last = dialects.last_letter()
    for part in (0.1, 0.9):
        tree = (1 - part) * dialects.source() + part * g.dirichlet(np.ones(5), size=dialects.PREFIXES)
        at = dialects.begins(tree)
        pairs = np.array([at[last == s] @ tree[last == s] for s in range(4)])
        rows = pairs / pairs.sum(1, keepdims=True)

        def says(rows: Array, tree: Array = tree) -> None:
            best = dialects.sequence_kl(tree, np.vstack([tree[0], rows])[last + 1])
            for s in range(4):
                for _ in range(2):
                    moved = rows.copy()
                    moved[s] = 0.98 * moved[s] + 0.02 * g.dirichlet(np.ones(5))
                    assert dialects.sequence_kl(tree, np.vstack([tree[0], moved])[last + 1]) > best

        says(rows)
        with refuted("the mean over prefixes, not over sequences"):
            plain = np.array([tree[last == s].mean(0) for s in range(4)])
            says(0.7 * plain + 0.3 * rows)
            says(plain)
        deepest = slice(dialects.START[-2], dialects.START[-1])
        eighth = pairs.copy()
        eighth[:, dialects.EOS] += at[deepest] @ tree[deepest, :4]
        with refuted("an eighth letter not aside"):
            says(eighth / eighth.sum(1, keepdims=True))
        again = dialects.begins(student := np.vstack([tree[0], rows])[last + 1])
        of_student = np.array([again[last == s] @ student[last == s] for s in range(4)])
        np.testing.assert_allclose(of_student / of_student.sum(1, keepdims=True), rows, rtol=1e-9)
        assert np.abs(of_student / pairs - 1).max() > 1e-3


@pytest.mark.claim(
    "14",
    "With both terms the students write 0.34 ± 0.07 tokens less than forward students, about six per cent",
)
def test_the_second_term_and_length() -> None:
    """Paired intervals over twenty seeds; every seed has the sign.

    Would be refuted by a seed that writes more with both terms, or by normalising that gives less than half back.
    """

    def says(both: str, normal: str) -> None:
        less = column(both, "mean_length") - column("small, forward", "mean_length")
        back = column(normal, "mean_length") - column(both, "mean_length")
        assert interval(less) == pytest.approx((-0.41, -0.27), abs=0.005)
        assert (less < 0).all() and (back > 0).all()
        assert (less.mean() / column("small, forward", "mean_length").mean()).round(2) == -0.06
        low, high = paired(normal, "small, forward", "mean_length")
        assert -0.12 < low < high < -0.10 and abs(low) < 0.5 * abs(less.mean())

    both, normal = "small, reverse, both terms", "small, reverse, both terms, normalised"
    says(both, normal)
    with refuted("the two exchanged"):
        says(normal, both)
    with refuted("the token gradient"):
        says(both, "small, reverse, token gradient")
    low, high = paired("small, reverse, token gradient", "small, forward", "mean_length")
    assert -0.04 < low < high < -0.025


@pytest.mark.claim("14", "All three reverse arms have a larger forward divergence than forward training.")
@pytest.mark.claim(
    "14",
    "the token-gradient and the normalised students are below the forward ones, each by a hundredth of a nat",
)
@pytest.mark.claim("14", "Both terms together, which lowered it most in the tables, did not")
@pytest.mark.claim("14", "The choice of prefixes for the forward loss makes a difference of 0.004 ± 0.004.")
def test_what_the_intervals_separate() -> None:
    """Which paired intervals exclude zero, and which do not: both are claimed.

    Would be refuted by an interval on another side.
    """
    token, both, normal = (
        f"small, reverse, {x}" for x in ("token gradient", "both terms", "both terms, normalised")
    )

    def larger(arm: str, key: str) -> None:
        assert paired(arm, "small, forward", key)[0] > 0

    def a_hundredth_below(arm: str) -> None:
        low, high = paired(arm, "small, forward", "reverse")
        assert -0.02 < low < high < 0 and round((low + high) / 2, 2) == -0.01

    for arm in (token, both, normal):
        larger(arm, "forward")
    for arm in (token, normal):
        a_hundredth_below(arm)
        with refuted("the other divergence"):
            larger(arm, "reverse")
    with refuted("both terms, which did not"):
        a_hundredth_below(both)
    low, high = paired(both, "small, forward", "reverse")
    assert low < 0 < high
    assert paired("small, labels", "small, forward", "forward") == pytest.approx((0.020, 0.042), abs=0.001)
    prefixes = paired("small, forward, student's prefixes", "small, forward", "forward")
    assert prefixes == pytest.approx((0.0003, 0.0075), abs=0.0002)
    for a in ("small, labels", "small, forward", token, both, normal):  # tuned alike, by their own objectives
        run = stored()["arms"][a]
        assert len(run["grid"]) == 4 and len(run["forward"]) == 20
        assert all(len(g["objective"]) == 8 for g in run["grid"])
        best = min(run["grid"], key=lambda g: np.mean(g["objective"]))
        assert (best["rate"], best["decay"]) == (run["rate"], run["decay"])


@pytest.mark.claim("14", "two of their twenty students ended far off.")
@pytest.mark.claim(
    "14",
    "In those two students 0.31 and 0.33 of the steps go up, in the other small students between 0.35 and 0.39, and "
    "the teacher's share is 0.35.",
)
@pytest.mark.claim(
    "14", "In the three reverse arms the share is lower than in forward training by 0.01 to 0.02."
)
def test_no_student_left_a_dialect() -> None:
    """Every small student of every arm that the chapter shows.

    Would be refuted by another student outside, or a reverse arm that takes as many upward steps.
    """
    both = "small, reverse, both terms"
    far = np.flatnonzero(column(both, "forward") > 0.3)
    assert len(far) == 2 and (column(both, "reverse")[far] > 0.25).all()
    assert sorted(column(both, "share_of_up")[far].round(2)) == [0.31, 0.33]

    def says(name: str, left_out: Array) -> None:
        share = np.delete(column(name, "share_of_up"), left_out)
        assert share.min() > 0.345 and share.max() < 0.395

    for name in stored()["arms"]:
        if name.startswith("small"):
            says(name, far if name == both else np.array([], int))
    with refuted("the two students"):
        says(both, np.array([], int))
    for name in ("large, labels", "large, labels, 1/n", "cache 4000, truncated"):
        with refuted("students of the teacher's size"):
            says(name, np.array([], int))

    def fewer(arm: str) -> None:
        low, high = paired(arm, "small, forward", "share_of_up")
        assert high < 0 and -0.02 < (low + high) / 2 < -0.01

    for arm in ("token gradient", "both terms", "both terms, normalised"):
        fewer(f"small, reverse, {arm}")
    with refuted("forward training on the student's prefixes"):
        fewer("small, forward, student's prefixes")
    assert column("teacher", "share_of_up").mean() == pytest.approx(0.35, abs=0.005)


@pytest.mark.claim(
    "14",
    "The bare top $k$ empties the tail, whether the teacher's part is renormalised or not; a bucket fixes its "
    "mass but not its division; draws are unbiased.",
)
def test_what_a_cache_teaches() -> None:
    """Random teachers and any k: a student that gains by emptying its tail, two divisions of a tail, drawn targets.

    Would be refuted by a teacher at which the bare top k pays for its tail, or a bucket or draws do not. With the
    student's part renormalised as well, the tail is free.
    """
    g = rng(5)

    def empties(p: Array, k: int, treatment: str) -> None:
        kept, index = np.log(p[:k]), list(range(k))
        tail = np.full(len(p) - k, 1e-7)
        emptier = np.log(np.r_[p[:k] / p[:k].sum() * (1 - tail.sum()), tail])
        honest = top_k_loss(np.log(p), kept, index, treatment=treatment)
        assert top_k_loss(emptier, kept, index, treatment=treatment) < honest - 1e-9

    def fixes_the_mass_only(p: Array, k: int, treatment: str) -> None:
        kept, index = np.log(p[:k]), list(range(k))
        tails = [g.dirichlet(np.ones(len(p) - k)) * (1 - p[:k].sum()) for _ in range(2)]
        losses = [top_k_loss(np.log(np.r_[p[:k], t]), kept, index, treatment=treatment) for t in tails]
        assert losses[0] == pytest.approx(losses[1], rel=1e-9)
        for factor in (0.8, min(1.1, 0.5 + 0.5 / p[:k].sum())):
            moved = np.r_[p[:k] * factor, p[k:] * (1 - factor * p[:k].sum()) / p[k:].sum()]
            assert top_k_loss(np.log(moved), kept, index, treatment=treatment) > losses[0]

    def unbiased(p: Array, drawn_from: Array) -> None:
        z = g.normal(size=len(p))
        rows, weights = sample_targets(np.tile(np.log(drawn_from), (4000, 1)), 3, g)
        drawn = sampled_loss(np.tile(z, (4000, 1)), rows, weights, reduction="none")
        assert abs(drawn.mean() - xent.soft_cross_entropy(z, p)) < 5 * drawn.std() / np.sqrt(len(drawn))

    for classes, k in ((3, 1), (6, 2), (50, 8)):
        for _, (p,) in distributions(g, classes):
            p = np.sort(0.9 * p + 0.1 / classes)[::-1]
            for treatment in ("truncated", "renormalised"):
                empties(p, k, treatment)
                with refuted(treatment):
                    fixes_the_mass_only(p, k, treatment)
            fixes_the_mass_only(p, k, "tail")
            for treatment in ("tail", "renormalised_both"):
                with refuted(treatment):
                    empties(p, k, treatment)
            unbiased(p, p)
        with refuted("draws from another teacher"):
            unbiased(
                p, p[::-1] if np.ptp(p) > 0.2 else np.r_[0.98, np.full(classes - 1, 0.02 / (classes - 1))]
            )


@pytest.mark.claim(
    "14", "With 64 words kept, a tenth of the positions lose less than 0.04 and a tenth lose more than 0.41."
)
def test_what_the_top_k_leaves_out() -> None:
    """The stored deciles, to two digits and from both sides; the n-gram model that they are of sums to one.

    Would be refuted by a decile that rounds to another number.
    """
    g = rng(6)
    stored_mass = json.loads((FOLDER / "mass.json").read_text())
    words = stored_mass["words, trigram"]
    at = words["k"].index(64)
    low, high = words["left_out_tenth_and_ninth_decile"]

    def says(tenth: float, ninth: float) -> None:
        # Less than .04, but not less than .03; more than .41, but not more than .42.
        assert 0.03 < tenth < 0.04 and 0.41 < ninth < 0.42

    says(low[at], high[at])
    for other in (-1, 1):
        with refuted("another k"):
            says(low[at + other], high[at + other])
    width = np.subtract(high, low)  # as the alternative text has it
    assert (np.diff(width) < 0).all() and width[[0, -1]].round(2).tolist() == [0.68, 0.09]
    for model in (stored_mass["words, trigram"], stored_mass["characters, 5-gram"]):
        parts = zip(*model["left_out_first_second_and_later_in_line"], strict=True)
        for mean, part in zip(model["left_out"], parts, strict=True):
            assert min(part) <= mean <= max(part)  # of all positions, and of three sets of them
    ids = g.integers(6, size=400)
    model = mass.NGrams([ids.tolist()], 6, 2)
    for context in ((0, 1), (5, 5), (2, 4)):
        for p in model.orders(context):
            assert p.sum() == pytest.approx(1) and (p > 0).all()


@pytest.mark.claim(
    "14",
    "A mean over each sequence tilts students trained on hard labels towards short sequences, as it tilts "
    "language models; with the teacher's full distributions the tilt is gone for a student that can match "
    "them.",
)
@pytest.mark.claim(
    "14",
    "with labels, a mean over each sequence shortens what is written, and a token mean over a few sequences "
    "does too, though by less.",
)
def test_the_tilt_and_where_it_ends() -> None:
    """Random teachers near the truth and far from it, by the exact minimisers of both losses; denominators for more.

    Would be refuted by a teacher whose student of labels is as long, or whose student of distributions is not.
    """
    g = rng(7)
    n = np.arange(1, dialects.LIMIT + 2)
    for part in (0.0, 0.2, 0.6, 1.0):
        tree = (1 - part) * dialects.source() + part * g.dirichlet(np.ones(5), size=dialects.PREFIXES)
        weight = dialects.inverse_length(tree)
        hard = tree * weight
        hard /= hard.sum(1, keepdims=True)
        soft = (tree * weight).sum(1, keepdims=True) * tree
        soft /= soft.sum(1, keepdims=True)
        law = dialects.length_probs(tree)

        def tilted(student: Array, law: Array = law) -> None:
            written = dialects.length_probs(student) @ n
            assert written == pytest.approx(1 / (law @ (1 / n))) and written < law @ n - 0.05

        def gone(student: Array, tree: Array = tree) -> None:
            np.testing.assert_allclose(student, tree, atol=1e-12)

        tilted(hard)
        gone(soft)
        with refuted("the two exchanged"):
            tilted(soft)
        with refuted("the two exchanged"):
            gone(hard)
        lengths = [tilted_lengths(n, B, probabilities=law) @ n for B in (1, 2, 4, 16)]
        assert (np.diff([*lengths, law @ n]) > 1e-6).all()


@pytest.mark.claim(
    "14", "a term that is zero for a student that gives the right probabilities to the wrong tokens."
)
def test_sorted_probabilities_forget_the_tokens() -> None:
    """Permutations of every kind of teacher leave the sorted L1 loss at zero, and the divergence above it.

    Would be refuted by a permutation that the sorted loss notices.
    """
    g = rng(8)

    def says(p: Array, q: Array) -> None:
        assert np.abs(np.sort(p) - np.sort(q)).sum() == 0

    for classes in (2, 8, 1000):
        for _, (p,) in distributions(g, classes):
            says(p, g.permutation(p))
        p = g.dirichlet(np.ones(classes))
        assert xent.information.kl_divergence(p, np.roll(p, 1)) > 1e-6
        with refuted("another distribution"):
            says(p, 0.99 * p + 0.01 / classes)


@pytest.mark.claim(
    "14",
    "change the teacher's logits at every prompt position but the last, which predicts the completion; the loss must "
    "not move.",
)
def test_the_check_of_the_mask() -> None:
    """A loop that shifts by one, over prompts of one to five tokens: its loss with the right mask and with none.

    Would be refuted by a right loss that moves, by a loss over all tokens that does not, or by a last position of the
    prompt that moves nothing.
    """
    g = rng(9)

    def losses(prompts: Array, positions: str, masked: bool) -> tuple[float, float]:
        tokens = np.arange(7)
        z, v, noise = (torch.tensor(g.normal(size=(3, 7, 11))) for _ in range(3))
        end = prompts[:, None] - (positions == "all but the last")
        live = torch.tensor(tokens[1:] >= prompts[:, None])  # the logits at i predict token i + 1
        given = {"sample_weight": live} if masked else {}
        moved = torch.where(torch.tensor(tokens < end)[..., None], v + 5 * noise, v)
        before, after = (xt.distillation_loss(z[:, :-1], t[:, :-1], **given).item() for t in (v, moved))
        return before, after

    def stays(*arguments: Any) -> None:
        before, after = losses(*arguments)
        assert before == pytest.approx(after, rel=1e-9)

    for _ in range(5):
        prompts = g.integers(2, 6, size=3)
        stays(prompts, "all but the last", True)
        with refuted("no mask"):
            stays(prompts, "all but the last", False)
        with refuted("the last position too"):
            stays(prompts, "all", True)
    stays(np.ones(3, int), "all but the last", True)


@pytest.mark.claim(
    "14",
    "where the student's tail is smaller, it has no gradient, and in float32 the difference has lost its digits long "
    "before",
)
def test_a_clamped_tail_has_no_gradient() -> None:
    """log(1 - S_q) with the clamp, and TRL's way, beside a log-sum-exp over the tokens outside, at random tails.

    Would be refuted by a tail below the clamp with a gradient, or one long before it with all its digits.
    """
    g = rng(10)

    def gradients(gap: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        z = torch.tensor([gap, gap - 0.1, 0.0, -0.5], requires_grad=True)
        inside = z.log_softmax(-1)[:2]
        (ghost,) = torch.autograd.grad(
            torch.log((1 - inside.exp().sum()).clamp(min=1e-8)), z, retain_graph=True
        )
        log_sum = torch.logsumexp(inside, -1).clamp(max=-1e-7)
        (server,) = torch.autograd.grad(torch.log(-torch.expm1(log_sum)), z)
        exact = torch.logsumexp(z.double()[2:], -1) - torch.logsumexp(z.double(), -1)
        (right,) = torch.autograd.grad(exact, z)
        return ghost, server, right

    def dead(slope: torch.Tensor, right: torch.Tensor) -> None:
        assert right[2] > 0.1 and (slope == 0).all()

    for gap in (22.0, *g.uniform(20, 60, 5)):
        ghost, server, right = gradients(gap)
        dead(ghost, right)
        dead(server, right)
        with refuted("a log-sum-exp over the tokens outside"):
            dead(right, right)
    ghost, server, right = gradients(14.0)
    assert abs(ghost[2] / right[2] - 1) > 1e-3
    with refuted("a larger tail"):
        dead(ghost, right)


@pytest.mark.claim("14", "On average the predictions hold to about a hundredth of a token.")
@pytest.mark.claim(
    "14",
    "A mean over each sequence shortens what a student trained on labels writes by more than a quarter, and "
    "leaves a student trained on distributions where its teacher is.",
)
@pytest.mark.claim(
    "14",
    "sequences shorter by 0.005 ± 0.004 tokens, a share of upward steps larger by 0.003 ± 0.001, and no visible "
    "difference in the divergence.",
)
def test_the_predicted_lengths() -> None:
    """The mean, or harmonic mean, of each seed's own teacher; and the paired intervals of the small students.

    Would be refuted by an arm whose interval lies two hundredths off its prediction. Each student by itself does not
    hold to them: of labels, some are six hundredths off.
    """

    def says(arm: str, key: str) -> None:
        low, high = interval(column(arm, "mean_length") - column("teacher", key))
        assert low > -0.02 and high < 0.02

    for arm in ("large, labels", "large, labels, 1/n", "large, forward", "large, forward, 1/n"):
        keys = ["mean_length", "harmonic_length"]
        right = keys.pop(arm == "large, labels, 1/n")
        says(arm, right)
        with refuted("the other mean"):
            says(arm, keys[0])
    for arm, key in (("large, labels", "mean_length"), ("large, labels, 1/n", "harmonic_length")):
        with refuted("each student by itself"):
            assert (np.abs(column(arm, "mean_length") - column("teacher", key)) < 0.02).all()
    short, long = column("large, labels, 1/n", "mean_length"), column("large, labels", "mean_length")
    assert (short < 0.75 * long).all()
    low, high = paired("small, forward, 1/n", "small, forward", "forward")
    assert low < 0 < high
    low, high = paired("small, forward, 1/n", "small, forward", "share_of_up")
    assert 0 < low < high < 0.004
    low, high = paired("small, forward, 1/n", "small, forward", "mean_length")
    assert -0.01 < low < high < 0


KINDS = ("whole", "four draws", "one draw", "bucket", "truncated")
SIZES = (1000, 4000, 16000)


@pytest.mark.claim(
    "14",
    "At every size students of the whole distribution end nearest to the teacher, draws beat the bucket, and the bare "
    "top two are the worst.",
)
def test_caches() -> None:
    """Paired intervals at each size, in the order of the kinds; all arms chose among the same settings.

    Would be refuted by a size at which two kinds stand in another order.
    """

    def says(n: int, better: str, worse: str) -> None:
        assert paired(f"cache {n}, {worse}", f"cache {n}, {better}", "forward")[0] > 0, (n, better)

    for n in SIZES:
        for better, worse in pairwise(KINDS):
            says(n, better, worse)
            with refuted("the order turned round"):
                says(n, worse, better)
        assert (column(f"cache {n}, one draw", "forward") < column(f"cache {n}, bucket", "forward")).all()
        for kind in KINDS:
            grid = stored()["arms"][f"cache {n}, {kind}"]["grid"]
            assert {(g["rate"], g["decay"]) for g in grid} == {
                (r, d) for r in (0.003, 0.01) for d in (0.0, 1.0)
            }


@pytest.mark.claim("14", "More sequences lower the error of draws; the bucket's error shows no change")
def test_what_more_sequences_do() -> None:
    """Paired by seed, from each size to the next; the bucket's interval holds zero, within an eighth of its error.

    Would be refuted by a size from which draws gain nothing, or the bucket something.
    """

    def gains(kind: str) -> None:
        means = [column(f"cache {n}, {kind}", "forward").mean() for n in SIZES]
        assert (np.diff(means) < 0).all()
        assert paired(f"cache {SIZES[-1]}, {kind}", f"cache {SIZES[0]}, {kind}", "forward")[1] < 0

    def none_shows(kind: str) -> None:
        low, high = paired(f"cache {SIZES[-1]}, {kind}", f"cache {SIZES[0]}, {kind}", "forward")
        assert low < 0 < high and high - low < 0.25 * column(f"cache {SIZES[0]}, {kind}", "forward").mean()

    for kind in ("one draw", "four draws"):
        gains(kind)
        with refuted(kind):
            none_shows(kind)
    none_shows("bucket")
    with refuted("the bucket"):
        gains("bucket")


@pytest.mark.claim("14", "0.65 of its 0.66 nats at 4,000 sequences lie within the tail")
@pytest.mark.claim("14", "The bucket's students end too early, after 4.3 tokens on average instead of 5.4.")
@pytest.mark.claim(
    "14",
    "Along the truth's sequences, the top two tokens leave out 0.30 of the probability, and after 0.25 of the "
    "prefixes they leave out `<eos>`.",
)
def test_what_the_bucket_does_not_see() -> None:
    """The split of the divergence on random tables; the stored parts; where `<eos>` ranks in the truth.

    Would be refuted by a table whose parts do not add up, or by another part: of the table's prefixes, each counted
    once, `<eos>` is left out after 0.38.
    """
    g = rng(11)
    p, q = (g.dirichlet(np.ones(5), size=dialects.PREFIXES) for _ in range(2))
    kept = np.argsort(-p, 1)[:, :2]
    buckets = []
    for rows in (p, q):
        inside = np.take_along_axis(rows, kept, 1)
        buckets.append(np.column_stack([inside, 1 - inside.sum(1)]))
    seen = dialects.begins(p) @ dialects.token_kl(*buckets)
    assert seen + distil.within_tail(q, p) == pytest.approx(dialects.sequence_kl(p, q), rel=1e-9)
    whole, tail = (column("cache 4000, bucket", key).mean() for key in ("forward", "within_tail"))

    def says(tail: float, whole: float) -> None:
        assert whole == pytest.approx(0.66, abs=0.005) and tail == pytest.approx(0.65, abs=0.005)

    says(tail, whole)
    with refuted("the two exchanged"):
        says(whole, tail)
    for n in SIZES:
        assert (
            column(f"cache {n}, bucket", "mean_length") < column("teacher", "mean_length")[:10] - 0.1
        ).all()
        assert column(f"cache {n}, bucket", "mean_length").mean() == pytest.approx(4.3, abs=0.05)
    truth = dialects.source()
    at = dialects.begins(truth) / dialects.begins(truth).sum()
    rank = (truth > truth[:, dialects.EOS :]).sum(1)

    def part_of_that(outside: Array, at: Array = at) -> None:
        assert at @ outside == pytest.approx(0.25, abs=0.005)

    def left_out(at: Array = at) -> None:
        assert at @ (1 - np.sort(truth, 1)[:, -2:].sum(1)) == pytest.approx(0.30, abs=0.005)

    part_of_that(without := (rank >= 2) & (truth[:, dialects.EOS] > 0))
    left_out()
    with refuted("the empty prefix, after which <eos> has no probability"):
        part_of_that(rank >= 2)
    each_once = np.full(dialects.PREFIXES, 1 / dialects.PREFIXES)
    with refuted("a share of the table's prefixes, which is 0.38"):
        part_of_that(without, each_once)
    with refuted("each prefix once: 0.25 of the probability"):
        left_out(each_once)


@pytest.mark.claim(
    "14",
    "in no arm does the interval of the change, seed by seed, exclude zero, for either divergence or for the length.",
)
def test_twice_the_steps() -> None:
    """Five seeds: each arm against itself at half the steps, paired.

    Would be refuted by an interval of a change that excludes zero.
    """
    arms, longer, both = stored()["arms"], stored()["longer"], "small, reverse, both terms"
    assert len(longer) == 4

    def no_change(x: Array) -> None:
        low, high = interval(x)
        assert low < 0 < high

    for name, run in longer.items():
        assert run["steps"] == 2 * arms[name]["steps"]
        for key in ("forward", "reverse", "mean_length"):
            no_change(np.subtract(run[key], arms[name][key][:5]))

    with refuted("another arm"):
        no_change(np.subtract(longer[both]["mean_length"], arms["small, forward"]["mean_length"][:5]))


@pytest.mark.claim(
    "14",
    "Differentiated with the drawn token held constant, $k_1$ has a mean gradient of zero, $k_2$ that of the reverse "
    "divergence, and $k_3$ that of the forward one.",
)
@pytest.mark.claim("14", "As a negative reward in a policy gradient $k_1$ is right.")
def test_estimates_of_the_reverse_divergence() -> None:
    """Every token in turn, weighted by the student: mean gradients for random pairs of 2 to 1,000 tokens.

    Would be refuted by a pair at which an estimate has another mean gradient.
    """
    g = rng(13)

    def gradient(loss: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(loss, z, retain_graph=True)[0]

    def says(found: torch.Tensor, expected: torch.Tensor) -> None:
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)

    for classes in (2, 5, 1000):
        for spread in (0.3, 3.0):
            z, v = (torch.tensor(spread * g.normal(size=classes)) for _ in range(2))
            z.requires_grad_()
            q, p = z.log_softmax(0), v.log_softmax(0)
            r, drawn = p - q, q.exp().detach()
            k1, k2, k3 = (gradient(drawn @ k, z) for k in (-r, r.square() / 2, r.exp() - r - 1))
            forward = gradient(p.exp() @ (p - q), z)
            reverse = gradient(q.exp() @ (q - p), z)
            rewarded = gradient(drawn @ ((q - p).detach() * q), z)
            says(k1, torch.zeros_like(k1))
            says(k2, reverse)
            says(k3, forward)
            says(rewarded, reverse)
            for wrong, right in ((k1, reverse), (k3, reverse), (k2, forward), (rewarded, forward)):
                with refuted("another direction"):
                    says(wrong, right)


@pytest.mark.claim(
    "14",
    "With verl's cut at zero, a student that gives the kept tokens their right proportions is pushed up to the "
    "teacher's mass on them and not beyond; renormalised on both sides, as in NeMo RL, the mass of the tail is free",
)
def test_the_kept_part_cut_off_at_zero() -> None:
    """Random teachers and k; students of right proportions with less and with more mass on the kept tokens.

    Would be refuted by one below without a pull upwards, one above with a pull, or a renormalised loss that moves.
    """
    g = rng(14)

    def pull(p: Array, k: int, mass: float, cut: bool) -> float:
        """How much the loss falls as the kept mass grows."""
        share = torch.tensor(mass, requires_grad=True, dtype=torch.float64)
        kept = torch.tensor(p[:k] / p[:k].sum()) * share
        each = (torch.tensor(p[:k]) * (torch.tensor(p[:k]).log() - kept.log())).sum()
        each = each.clamp(min=0.0) if cut else each
        return -float(torch.autograd.grad(each, share)[0])

    for classes, k in ((3, 1), (50, 8), (1000, 32)):
        for _ in range(5):
            p = np.sort(g.dirichlet(np.full(classes, 0.5)) * 0.9 + 0.1 / classes)[::-1].copy()
            mass = p[:k].sum()
            below, above = mass * g.uniform(0.3, 0.99), mass + (1 - mass) * g.uniform(0.01, 0.9)
            assert pull(p, k, below, cut=True) > 0
            assert pull(p, k, above, cut=True) == 0
            with refuted("without the cut"):
                assert pull(p, k, above, cut=False) == 0
            tail = p[k:] / p[k:].sum()
            losses = [
                top_k_loss(
                    np.log(np.r_[p[:k] / mass * s, tail * (1 - s)]), np.log(p[:k]), list(range(k)),
                    treatment="renormalised_both",
                )
                for s in (below, above)
            ]  # fmt: skip
            assert losses[0] == pytest.approx(losses[1], rel=1e-9, abs=1e-12)


@pytest.mark.claim(
    "14",
    "with the tail in four bytes of its own, two will do for each kept probability, unless the student comes within "
    "a hundredth of a nat of its teacher.",
)
def test_what_two_bytes_make_of_a_tail() -> None:
    """Flat and sharp teachers over a vocabulary, students near and far: the gradient of the divergence from a cache.

    Would be refuted by rounded probabilities that move it by more than a hundredth. At three thousandths of a nat they
    do; and of a sharp teacher's tail, taken from what they leave of one, not much is left.
    """
    g = rng(12)
    one_each = torch.eye(100)  # hidden states that make the weight the student's logits

    def keeps(scale: float, apart: float, beside: bool = True) -> float:
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
        slopes = [torch.autograd.grad(loss, student)[0] for loss in of]
        assert (slopes[0] - slopes[1]).norm() < 0.01 * slopes[0].norm()
        return of[0].item()

    for scale in (3.0, 8.0):
        assert 0.01 < keeps(scale, 0.3) < 0.04
        for apart in (1.0, 3.0):
            keeps(scale, apart)
        with refuted("a student within a hundredth of a nat"):  # what the page had left open
            keeps(scale, 0.1)
    with refuted("the tail from what is left"):
        keeps(8.0, 0.3, beside=False)


@pytest.mark.claim("14", "The share of upward steps leaves out steps that go neither up nor down.")
def test_which_steps_a_share_counts() -> None:
    """Each dialect and the truth, by its joint distribution of neighbouring letters.

    Would be refuted by a tree whose share counts a letter that is repeated or opposite.
    """
    last = dialects.last_letter()
    on = last >= 0
    for tree in (dialects.dialect("up"), dialects.dialect("down"), dialects.source()):
        pairs = np.zeros((4, 4))
        np.add.at(pairs, last[on], dialects.begins(tree)[on, None] * tree[on, :4])
        up, down = (sum(pairs[a, (a + step) % 4] for a in range(4)) for step in (1, -1))
        assert dialects.share_of_up(tree) == pytest.approx(up / (up + down))
        with refuted("a share of all steps"):
            assert dialects.share_of_up(tree) == pytest.approx(up / pairs.sum(), abs=0.01)


@pytest.mark.claim(
    "14", "All mass goes to the kept tokens, and $\\mathrm{KL}(p \\| q^*) = \\infty$ if $S < 1$."
)
def test_what_the_bare_top_k_costs() -> None:
    """Teachers with a tail, and teachers whose kept tokens are all that they say.

    Would be refuted by a tail that costs a finite divergence.
    """
    g = rng(15)

    def infinite(p: Array, k: int) -> None:
        assert np.isinf(xent.information.kl_divergence(p, np.r_[p[:k] / p[:k].sum(), np.zeros(len(p) - k)]))

    for classes, k in ((2, 1), (6, 2), (50, 49)):
        p = g.dirichlet(np.ones(classes))
        infinite(p, k)
        with refuted("no tail"):
            infinite(np.r_[p[:k] / p[:k].sum(), np.zeros(classes - k)], k)


@pytest.mark.claim("14", "for a flexible student ... every shared temperature has the same minimum")
def test_temperatures_and_students_that_cannot_follow() -> None:
    """Two teachers' rows, a student with a row for each and one with a single row, at temperatures of 1 to 8.

    Would be refuted by a flexible student that another temperature moves. The single row is moved, and so is a
    flexible student of a mixture whose labels are not the teacher's.
    """
    g = rng(16)

    def slope(z: torch.Tensor, v: torch.Tensor, T: float) -> float:
        z = z.clone().requires_grad_()
        loss = xt.distillation_loss(z.expand(v.shape), v, temperature=T)
        return float(torch.autograd.grad(loss, z)[0].abs().max())

    for classes in (2, 10, 100):
        v = torch.tensor(2 * g.normal(size=(2, classes)))
        tied = v.softmax(-1).mean(0, keepdim=True).log()  # the minimiser at T = 1
        assert slope(tied, v, 1.0) < 1e-12
        for T in (2.0, 4.0, 8.0):
            assert slope(v + 3.0, v, T) < 1e-12
            with refuted("a single row"):
                assert slope(tied, v, T) < 1e-6
    p, labels, alpha = 0.9, 0.5, 0.5  # of two classes

    def moved(T: float, alpha: float) -> float:
        """The slope at the student that is best at T = 1, in the margin."""
        q = alpha * p + (1 - alpha) * labels
        z = torch.tensor([np.log(q / (1 - q)), 0.0], requires_grad=True)
        soft = xt.distillation_loss(z[None], torch.tensor(np.log([[p, 1 - p]])), temperature=T)
        hard = -(torch.tensor([labels, 1 - labels], dtype=torch.float64) * z.log_softmax(0)).sum()
        return float(torch.autograd.grad(alpha * soft + (1 - alpha) * hard, z)[0].abs().max())

    assert moved(1.0, alpha) < 1e-6 and moved(4.0, 1.0) < 1e-6
    with refuted("labels beside the teacher"):
        assert moved(4.0, alpha) < 1e-3
