"""Equations as their chapters print them, evaluated at random values: nobody transcribes them here.

`ROWS` says by which function of meanings*.py the names in an equation get their values, and what the reader leaves out
of it, so that a change of that is noticed too. Then signs, numbers, exponents, equalities, inequalities and the usual
indices on the page are changed, one at a time, and each change has to be seen.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np
import pytest
import scipy.special
import scipy.stats

import marks
from equations import draws as m
from equations import meanings_ch01_to_ch05 as labels
from equations import meanings_ch06_to_ch13 as models
from equations import meanings_of_sequences as s
from equations.reader import DIGITS, Env, Unreadable, failures

ROOT = Path(__file__).resolve().parents[2]


# fmt: off
ROWS: dict[str, Any] = {
    "eq-line-likelihood": labels.ten_answers,
    "eq-line-coin": labels.ten_answers,
    "eq-line-bce": m.binary,
    "eq-line-softmax": m.loss_of,
    "eq-line-cross-entropy": m.soft,
    "eq-line-kl": m.soft,
    "eq-line-distillation": labels.student,
    "eq-bernoulli": labels.bernoulli,
    "eq-coin-likelihood": m.coin,
    "eq-coin-mle": m.coin,
    "eq-bce": m.coins,
    "eq-missing-log": labels.missing_log,
    "eq-logit": labels.log_odds,
    "eq-sigmoid": m.binary,
    "eq-bce-logits": m.binary,
    "eq-bce-derivatives": m.binary_loss,
    "eq-softplus-stable": m.binary,
    "eq-gradient-descent": labels.descent,
    "eq-weights-gradient": m.logistic,
    "eq-weights-derivatives": (
        m.logistic, r"\nabla^2 \mathcal L(w) = \frac1N X^{\mathsf T} \operatorname{diag}( p_i (1 - p_i) ) X"
    ),
    "eq-label-likelihood": labels.many,
    "eq-one-hot": (m.one, r"0 \log 0 = 0"),
    "eq-log-odds": m.one,
    "eq-softmax-map": m.one,
    "eq-softmax-shift": m.one,
    "eq-nll-from-logits": m.loss_of,
    "eq-loss-bounds": labels.bounds,
    "eq-prediction-minus-label": m.loss_of,
    "eq-softmax-regression-gradient": labels.layer,
    "eq-next-token": labels.text,
    "eq-gaussian-nll": m.gaussian,
    "eq-error-rate-bound": labels.errors,
    "eq-log-posterior": labels.posterior,
    "eq-lambda-to-c": labels.penalty_names,
    "eq-brier-split": labels.forecast,
    "eq-two-surfaces": labels.surfaces,
    "eq-surprise-chain": labels.events,
    "eq-entropy": (m.two, r"\mathrm E_{X \sim P}[-\log P(X)]", r"0 \log 0 = 0"),
    "eq-cross-entropy-law": (m.two, r"\mathrm E_{X \sim P}[-\log Q(X)]"),
    "eq-kl": m.two,
    "eq-gibbs": labels.gibbs,
    "eq-empirical": labels.sample,
    "eq-three-problems": labels.sample,
    "eq-conditional-problems": labels.pairs_law,
    "eq-kl-conditional": labels.cell,
    "eq-lln": (labels.log_ratios, r"R_n(\theta) \xrightarrow[n \to \infty]{} \mathrm{KL}(P_{XY} \,\|\, Q_\theta)"),
    "eq-optimism": labels.samples,
    "eq-surprise": labels.surprise,
    "eq-code-length": labels.code,
    "eq-entropy-bounds": m.two,
    "eq-mixture": m.two,
    "eq-grad-jacobian": m.gradient,
    "eq-grad-residual": m.gradient,
    "eq-grad-family": labels.family,
    "eq-grad-layer": labels.backward,
    "eq-grad-lse": m.gradient,
    "eq-grad-variance": m.gradient,
    "eq-grad-curvature": m.gradient,
    "eq-grad-lipschitz": m.gradient,
    "eq-grad-descent": labels.certain_descent,
    "eq-grad-mse": m.gradient,
    "eq-grad-margin": labels.margins,
    "eq-rounding": labels.rounding,
    "eq-lse-shift": m.one,
    "eq-lse-bounds": m.one,
    "eq-probability-gap": m.gaps,
    "eq-ce-log1p": m.gaps,
    "eq-dead-margin": labels.dead,
    "eq-gap-form": m.gaps,
    "eq-clipped-loss": m.certify,
    "eq-clipped-gradient": labels.clipped,
    "eq-certify-sum": m.certify,
    "eq-certify-top32": models.small,
    "eq-certify-inverse": m.certify,
    "eq-certify-clip": m.clip,
    "eq-certify-absolute": m.clip,
    "eq-certify-binary": m.two_outcomes,
    "eq-certify-one-list": models.one_list,
    "eq-certify-two-classes": models.one_list,
    "eq-certify-batch": models.batch,
    "eq-certify-keras": models.keras,
    "eq-certify-epsilon": models.epsilon,
    "eq-certify-relative": models.rounded_loss,
    "eq-certify-multilabel": m.labels,
    "eq-fw-two-means": m.frameworks,
    "eq-fw-double-softmax": m.frameworks,
    "eq-fw-keras-normalise": m.frameworks,
    "eq-fw-bce-1d": m.frameworks,
    "eq-fw-ignored-backward": m.ignored,
    "eq-fw-unnormalised": m.unnormalised,
    "eq-fw-kernel-error": m.unnormalised,
    "eq-fw-rescale": m.unnormalised,
    "eq-fw-kl-mean": models.divergences,
    "eq-fw-one-class": models.single,
    "eq-which-distortion": models.distortion,
    "eq-which-start": models.start,
    "eq-absolute-cost": models.absolute,
    "eq-expected-score": m.scoring,
    "eq-proper": models.properness,
    "eq-three-rules": m.scoring,
    "eq-three-excesses": m.scoring,
    "eq-zero-one-cost": m.zero_one,
    "eq-clipping-gain": models.clipping,
    "eq-bent-and-back": models.bent,
    "eq-focal-inverse": models.focal,
    "eq-tangent": m.scoring,
    "eq-savage": m.scoring,
    "eq-bregman": m.scoring,
    "eq-f-divergence": models.convex,
    "eq-local-condition": (models.local, r"\dots"),
    "eq-log-unique": models.local,
    "eq-calibration-refinement": models.calibration,
    "eq-den-two-losses": models.two_losses,
    "eq-den-ignore": models.ignoring,
    "eq-den-rl": models.responses,
    "eq-den-rl-drift": models.drift,
    "eq-den-weight": m.denominators,
    "eq-den-accumulation": m.denominators,
    "eq-den-ddp": (
        m.denominators, r"\frac1W \sum_{r} \nabla ( \frac{1}{n_r} S_r ) = \nabla \frac1W \sum_{r} m_r",
        r"\nabla \frac1N \sum_{r} S_r"
    ),
    "eq-den-both": models.ranks,
    "eq-den-divide": models.ranks,
    "eq-den-left": models.relative_bias,
    "eq-den-weighted": models.class_weights,
    "eq-soft-loss": m.soft,
    "eq-soft-linear": models.drawn_label,
    "eq-soft-floor": m.soft,
    "eq-soft-gradient": m.gradient,
    "eq-soft-argmin": models.soft_family,
    "eq-soft-variance": models.votes,
    "eq-soft-conventions": models.conventions,
    "eq-soft-gap": m.smoothed,
    "eq-soft-kl-terms": models.divergences,
    "eq-soft-kl-reductions": models.divergences,
    "eq-soft-elicits": models.elicited,
    "eq-soft-inverse": m.smoothed,
    "eq-soft-reach": m.smoothed,
    "eq-soft-inside": m.inside,
    "eq-soft-torch-weights": models.torch_weights,
    "eq-kd-loss": m.distil,
    "eq-kd-gradient": m.distil_loss,
    "eq-kd-limit-gradient": models.far,
    "eq-kd-limit-loss": models.far,
    "eq-kd-mixture": m.distil,
    "eq-kd-readout": m.distil,
    "eq-kd-consistent": models.shifted,
    "eq-kd-moments": models.moments,
    "eq-avg-coin": s.two_losses,
    "eq-avg-optimum": s.optimum,
    "eq-avg-tilt": s.tilt,
    "eq-avg-harmonic": s.harmonic,
    "eq-avg-batch-weight": s.shared,
    "eq-avg-batch-integral": s.shared,
    "eq-avg-prompts": s.prompted,
    "eq-avg-shorter": s.prompted,
    "eq-avg-batch-general": s.lengths,
    "eq-avg-source": s.coin,
    "eq-avg-chain": s.chain,
    "eq-avg-geometric": s.coin,
    "eq-avg-sums": s.fair_coin,
    "eq-avg-context": s.contexts,
    "eq-avg-batch-optimum": s.batch_of_coins,
    "eq-avg-batch-bounds": s.bounds,
    "eq-avg-ratio": s.ratios,
    "eq-lm-chain": s.languages,
    "eq-lm-reverse": s.reverse,
    "eq-lm-arithmetic": s.arithmetic,
    "eq-lm-geometric": s.geometric,
    "eq-lm-reverse-gradient": s.reverse_gradient,
    "eq-lm-topk": s.top_k,
    "eq-lm-bucket": s.top_k,
    "eq-lm-bare": s.bare,
    "eq-lm-sampled": s.sampled,
    "eq-lm-hard": s.denominator,
    "eq-lm-soft": s.denominator,
    "eq-lm-markov": s.bigrams,
    "eq-vocab-state": s.states,
    "eq-vocab-invariant": s.states,
    "eq-vocab-loss": s.head,
    "eq-vocab-gradient": s.head,
    "eq-vocab-rounding": s.rounded,
    "eq-vocab-zloss": m.z_loss,
    "eq-vocab-zloss-free": s.shifted,
    "eq-vocab-softcap": s.capped,
    "eq-vocab-cap-bound": s.capped,
    "eq-vocab-associative": s.states,
    "eq-vocab-cap-fits": s.fits,
    "eq-else-pairs": models.duel,
    "eq-else-dpo": models.preferences,
    "eq-else-infonce": models.batch_of_pairs,
    "eq-else-labels": models.own_labels,
    "eq-else-prior": models.other_frequencies,
    "eq-else-bits": models.bits,
    "eq-note-loss": s.note,
    "eq-note-theorem": s.note,
    "eq-note-sets": s.packed,
    "eq-note-integral": s.summed,
    "eq-note-first-order": s.first_order,
    "eq-note-prompts": s.prompted,
    "eq-note-hajek": s.own_weights,
    "eq-note-between": s.summed,
    "eq-note-proper": (s.proper, r"\text{if } D \perp x_1 \mid c"),
    "eq-note-policy": s.policy,
    "eq-note-simpo": s.simpo,
}
# fmt: on


# ------------------------------------------------------------------------------------ the page, and a wrong page


@pytest.fixture(autouse=True)
def digits() -> Iterator[None]:
    """The precision of mpmath is the process's, and other tests have set it for themselves."""
    with mp.workdps(DIGITS):
        yield


@cache
def printed() -> dict[str, str]:
    return {equation.label: equation.tex for equation in marks.read_equations(ROOT)[0]}


@cache
def row(label: str) -> tuple[list[Env], tuple[str, ...]]:
    """The draws of a row, the fourth far off and the last of ties, and what it leaves out."""
    meaning, *unread = ROWS[label] if isinstance(ROWS[label], tuple) else (ROWS[label],)
    draws = [meaning(m.Draw(number, scale)) for number, scale in enumerate((1.0, 1.0, 3.0, 40.0, 1.0, 0.0))]
    return draws, tuple(unread)


@pytest.mark.parametrize("label", ROWS)
def test_the_page_says_what_is_true(label: str) -> None:
    if label not in printed():
        pytest.fail(f"no chapter prints {label}", pytrace=False)
    if said := next(failures(printed()[label], *row(label)), ""):
        pytest.fail(f"{label}, {said}", pytrace=False)


CHANGED = re.compile(
    r"(?<=\\\\)\[\w+\]|\+|-|\d+|<|>|=|\\(?:[lg]e|ne|iff|propto|Rightarrow|max|min)(?![a-z])"
    r"|arg\\?,?m(?:ax|in)|(?<=_)[i-nyABPQ](?![a-z])|(?<=_\{)[i-ny](?![a-z]{2})|(?<=_\{[i-n])[k-n]|(?<=_\{[i-n],)[k-n]"
    r"|(?<=\^)[a-zA-Z]|(?<=\^\{)(?=[a-zA-Z([]|\\[a-ln-z])"
)
OTHER = {
    "+": "-",
    "-": "+",
    "<": ">",
    ">": "<",
    r"\le": r"\ge",
    r"\ge": r"\le",
    r"\ne": "=",
    r"\max": r"\min",
}
OTHER |= {"=": r"= 2\,", r"\min": r"\max", r"\iff": r"\nLeftrightarrow", r"\Rightarrow": r"\Leftarrow"}
OTHER |= {r"arg\,min": "argmax", "argmin": "argmax", r"arg\,max": "argmin"}
OTHER |= {"i": "j", "j": "k", "k": "i", "l": "i", "m": "n", "n": "m", "y": "k"}
OTHER |= {"A": "B", "B": "A", "P": "Q", "Q": "P", r"\propto": "="}


def changes(tex: str) -> Iterator[tuple[str, str]]:
    """Each sign turned, number raised, exponent and right side doubled, relation reversed, index exchanged."""
    tex, before = " ".join(tex.split()), Counter[str]()
    for found in CHANGED.finditer(tex):
        old, (a, b) = found[0], found.span()
        if old[:1] != "[":
            new = OTHER.get(old) or (str(int(old) + 1) if old.isdigit() else f"{{2 {old}}}" if old else "2 ")
            if tex[a - 1] == "^" and old.isalpha():
                new = f"{{2 {old}}}"
            if re.match(r"= *0", tex[a:]):
                new = "= 1 +"
            what = f"{tex[max(a - 9, 0) : a]}⟨{old} → {new}⟩{tex[b : b + 9]}"
            before[what := what.strip("\\ ")] += 1
            yield what + f" ({before[what]})" * (before[what] > 1), tex[:a] + new + tex[b:]


@pytest.mark.parametrize("label", ROWS)
def test_a_change_of_the_page_is_seen(label: str) -> None:
    unseen, refuted = set(), 0
    for what, tex in changes(printed()[label]):
        try:
            said = next(failures(tex, *row(label)), "")
        except (Unreadable, ArithmeticError, LookupError, TypeError, ValueError):
            continue  # such as an index that nothing has; that the page cannot be read fails the test above
        refuted += bool(said)
        unseen |= set() if said else {what}
    assert refuted, f"no change of {label} makes it false"
    assert unseen == {*(m.HARMLESS | s.HARMLESS).get(label, ())}, (
        f"{label}: these changes pass; HARMLESS lists others"
    )


def test_the_functions_are_scipys() -> None:
    for seed, scale in ((0, 1.0), (1, 20.0)):
        d = m.Draw(seed, scale)
        z, u = d.column(5), d.column(5)
        p, q = m.softmax(z), m.softmax(u)
        x, a, b = (v.astype(float)[:, 0] for v in (z, p, q))
        pairs: list[tuple[Any, Any]] = [
            (p, scipy.special.softmax(x)[:, None]),
            (m.lse(z), scipy.special.logsumexp(x)),
            (m.sigmoid(z), scipy.special.expit(x)[:, None]),
            (m.softplus(z[0, 0]), np.logaddexp(0, x[0])),
            (m.entropy(p), scipy.stats.entropy(a)),
            (m.kl(p, q), scipy.stats.entropy(a, b)),
            (m.entropy(p, q), -a @ np.log(b)),
            (m.variance(p, z), np.cov(x, aweights=a, ddof=0)),
        ]
        for ours, theirs in pairs:  # the sums of a scalar cancel in float64
            assert np.allclose(
                np.asarray(ours, float), theirs, rtol=1e-12, atol=1e-300 if np.ndim(theirs) else 1e-14
            )
