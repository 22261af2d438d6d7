"""Equations as their chapters print them, evaluated at random values: nobody transcribes them here.

`ROWS` says by which function of meanings.py the names in an equation get their values, and what the reader leaves out
of it, so that a change of that is noticed too. Then every sign, number, index and equality on the page is changed,
one at a time, and the change has to be seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats

import ledger
from equations import meanings as m
from equations.reader import failures
from equations.values import Env, Unreadable

ROOT = Path(__file__).resolve().parents[2]


ROWS: dict[str, Any] = {
    "eq-bernoulli": m.trial,
    "eq-coin-likelihood": m.coin,
    "eq-log-monotone": (m.coin, r"\text{if } \mathcal L(p)"),
    "eq-coin-mle": m.coin,
    "eq-bce": m.coins,
    "eq-missing-log": (
        m.missing_log,
        r"\operatorname*{arg\,min}_{0 \le p \le 1} \tilde J(p) = \min( \frac{f}{1 - f}, 1 )",
    ),
    "eq-sigmoid": m.binary,
    "eq-bce-logits": m.binary,
    "eq-bce-symmetric": m.binary,
    "eq-bce-derivatives": m.binary_loss,
    "eq-softplus-stable": m.binary,
    "eq-weights-derivatives": (
        m.logistic,
        r"\nabla^2 J(w) = \frac1N X^{\mathsf T} \operatorname{diag}( p_i (1 - p_i) ) X",
    ),
    "eq-pos-weight": m.pos_weight,
    "eq-categorical": (m.one, "P(Y = k)"),
    "eq-label-likelihood": m.label_likelihood,
    "eq-one-hot": (m.one, r"0 \log 0 = 0"),
    "eq-log-odds": m.one,
    "eq-softmax-map": m.one,
    "eq-softmax-shift": m.one,
    "eq-one-against-rest": (m.one, r"p_1 = \sigma(z_1 - z_0)", "(K = 2)"),
    "eq-nll-from-logits": m.loss_of,
    "eq-loss-bounds": m.bounds,
    "eq-prediction-minus-label": m.loss_of,
    "eq-softmax-regression-gradient": m.softmax_regression,
    "eq-brier-split": m.score,
    "eq-squared-error-mean": (m.score, r"\operatorname*{arg\,min}_{a} \mathbb E \sum_{k} (a_k - t_k)^2"),
    "eq-two-surfaces": m.score,
    "eq-margin-slopes": m.slopes,
    "eq-error-rate-bound": m.errors,
    "eq-surprise": m.surprise,
    "eq-surprise-chain": m.events,
    "eq-entropy": (m.laws, r"0 \log 0 = 0"),
    "eq-cross-entropy-law": m.laws,
    "eq-kl": m.laws,
    "eq-gibbs": (m.with_a_zero, r"\text{equal only at } t = 1", r"\text{equal only if } P = Q"),
    "eq-entropy-bounds": m.laws,
    "eq-code-excess": m.coded,
    "eq-mixture": m.laws,
    "eq-kl-chain": m.pairs,
    "eq-kl-conditional": (m.pairs, r"Q_\theta(x, y) = P(x) Q_\theta(y \mid x)"),
    "eq-empirical": m.empirical,
    "eq-no-finite-mle": m.no_maximum,
    "eq-projection": m.poisson,
    "eq-pythagoras": m.poisson,
    "eq-maxent": m.same_mean,
    "eq-grad-softmax": m.gradient,
    "eq-grad-jacobian-cases": m.gradient,
    "eq-grad-jacobian": m.gradient,
    "eq-grad-chain": m.gradient,
    "eq-grad-residual": m.gradient,
    "eq-grad-lse": m.gradient,
    "eq-grad-complement": m.gradient,
    "eq-grad-mean": m.weighted,
    "eq-grad-smoothed-gap": m.smoothed,
    "eq-grad-layer": m.layer,
    "eq-grad-hessian": m.gradient,
    "eq-grad-variance": m.gradient,
    "eq-grad-curvature": m.gradient,
    "eq-grad-bound": m.hard_gradient,
    "eq-grad-lipschitz": m.gradient,
    "eq-grad-mse": m.gradient,
    "eq-grad-vjp": m.gradient,
    "eq-rounding": m.rounding,
    "eq-lse-shift": m.one,
    "eq-lse-bounds": m.one,
    "eq-probability-gap": m.gaps,
    "eq-ce-log1p": m.gaps,
    "eq-gap-form": m.gaps,
    "eq-clipped-loss": m.clipped,
    "eq-clipped-gradient": m.clipped,
    "eq-exp-error": m.power_series,
    "eq-two-diff": m.floats,
    "eq-grad-central": m.central,
    "eq-grad-best-step": m.best_step,
    "eq-grad-margin": m.margins,
    "eq-certify-sum": m.certify,
    "eq-certify-clip": m.clip,
    "eq-certify-top32": m.floats,
    "eq-certify-binary": m.two_outcomes,
    "eq-certify-one-list": m.list_of_binary,
    "eq-certify-two-classes": m.list_of_two,
    "eq-certify-batch": m.batch,
    "eq-certify-soft": (m.certify, "\\text{with equality only for } p = t"),
    "eq-certify-epsilon": m.epsilons,
    "eq-certify-keras": m.keras,
    "eq-certify-multilabel": m.labels,
    "eq-certify-scale": m.labels,
    "eq-fw-rescale": m.rescaled,
    "eq-certify-inverse": m.certify,
    "eq-certify-relative": m.in_float64,
    "eq-certify-absolute": m.clip,
    "eq-fw-two-means": m.frameworks,
    "eq-fw-double-softmax": m.frameworks,
    "eq-fw-keras-normalise": m.frameworks,
    "eq-fw-mean-of-means": m.ragged,
    "eq-fw-bce-1d": m.frameworks,
    "eq-fw-ignored-backward": m.masked,
    "eq-fw-smoothing": m.any_class,
    "eq-fw-smoothed-weights": m.class_weights,
    "eq-fw-unnormalised": m.unnormalised,
    "eq-fw-kernel-error": m.unnormalised,
    "eq-fw-padding": m.zero_row,
    "eq-which-reading": m.reading,
    "eq-which-clip": m.cost_of_nothing,
    "eq-which-smoothing": m.between,
    "eq-which-distortion": m.distortion,
    "eq-absolute-cost": m.absolute,
    "eq-expected-score": (m.scoring, r"0 \cdot \infty = 0"),
    "eq-three-rules": m.scoring,
    "eq-three-excesses": m.scoring,
    "eq-zero-one-cost": m.zero_one,
    "eq-clipping-gain": (m.gain, r"\text{for } q = \frac{(p_1, \dots, p_{K-1}, 0)}{1 - p_K}"),
    "eq-tangent": m.scoring,
    "eq-savage": m.scoring,
    "eq-bregman": m.scoring,
    "eq-f-divergence": m.scoring,
    "eq-local-square": m.local_square,
    "eq-two-class-condition": m.unequal_scores,
    "eq-bent-and-back": (
        m.bent,
        r"q_k = (1 - \varepsilon) p_k + \frac{\varepsilon}{K}",
        r"p_k = \frac{q_k - \varepsilon / K}{1 - \varepsilon}",
    ),
    "eq-focal-inverse": m.focal,
    "eq-calibration-refinement": m.calibration,
    "eq-weights-gradient": m.logistic,
    "eq-gaussian-nll": m.gaussian,
    "eq-grad-family": (
        m.family,
        r"\operatorname{E}[y \mid \eta]",
        r"-\frac{\mathrm d}{\mathrm d \eta} \log P(y \mid \eta) = \operatorname{E}[y \mid \eta] - y",
    ),
    "eq-grad-escape": m.escape,
    "eq-avg-sums": (m.geometric, r"\sum_{i=1}^{\infty} \sum_{n=i}^{\infty} \beta (1 - \beta)^{n-1}"),
    "eq-avg-geometric": m.geometric,
    "eq-avg-averaged": (
        m.averaged,
        r"\mathrm E_{n \sim P}[\frac1n\mathrm E_{x_{1:n}\sim P(\cdot\mid n)}[\sum_{i=1}^{n} -\log Q(x_i \mid x_{<i})]]",
    ),
    "eq-avg-optimum": m.at_the_optimum,
    "eq-avg-limits": m.limits,
    "eq-avg-tilt": m.tilted,
    "eq-avg-harmonic": m.harmonic,
    "eq-avg-log-law": (m.log_law, r"\lim_{n \to \infty} h^*(n) = \beta"),
    "eq-avg-batch-bounds": m.batches,
    "eq-den-two": m.two_batches,
    "eq-den-covariance": m.numbers,
    "eq-den-weight": m.denominators,
    "eq-den-accumulation": m.denominators,
    "eq-den-ddp": (
        m.denominators,
        r"\frac1W \sum_{r} \nabla ( \frac{1}{n_r} S_r ) = \nabla \frac1W \sum_{r} m_r",
        r"\nabla \frac1N \sum_{r} S_r",
    ),
    "eq-den-both": m.ranks,
    "eq-den-divide": m.ranks,
    "eq-den-left": m.batches,
    "eq-den-weighted": m.class_weighted,
    "eq-den-rl-drift": (
        m.drift,
        r"\mathrm E [ \frac{1 - \beta |o_i|}{\frac1G \sum_j |o_j|} ] = q^*(G, \beta) - \beta",
    ),
    "eq-soft-loss": m.soft,
    "eq-soft-linear": m.soft,
    "eq-soft-floor": m.soft,
    "eq-soft-gradient": m.soft_gradient,
    "eq-soft-variance": m.soft,
    "eq-soft-conventions": m.conventions,
    "eq-soft-binary": m.smoothed_bit,
    "eq-soft-gap": m.smoothed,
    "eq-soft-inverse": m.smoothed,
    "eq-soft-reach": m.smoothed,
    "eq-soft-inside": m.inside,
    "eq-soft-kl-terms": m.soft_terms,
    "eq-soft-torch-weights": m.soft_terms,
    "eq-soft-unnormalised": m.unnormalised,
    "eq-kd-loss": m.distil_from,
    "eq-kd-gradient": m.distil,
    "eq-kd-expansion": m.hot,
    "eq-kd-limit-gradient": m.distil,
    "eq-kd-rate": m.hot,
    "eq-kd-limit-loss": m.hotter,
    "eq-kd-mixture": m.distil_from,
    "eq-kd-readout": m.distil_from,
    "eq-kd-several": m.teachers,
    "eq-kd-geometric": m.teachers,
    "eq-kd-reverse": (m.pooled, r"g_k \propto \prod_i (p^{(i)}_k)^{1/M}"),
    "eq-lm-chain": m.language,
    "eq-lm-reverse": m.language,
    "eq-lm-mixed": m.language,
    "eq-lm-markov": (m.markov, r"v_P = \pi_P (I - T_P)^{-1}"),
    "eq-lm-topk": (
        m.cut,
        r"\arg\min_q",
        "q_i = p_i / S",
        r"(i \le k)",
        r"\phantom{\arg\min_q :}",
        "q_i = 0",
        "(i > k)",
    ),
    "eq-lm-bucket": m.cut,
    "eq-lm-sampled": m.sampled,
    "eq-lm-hard": (m.language, r"\arg\min", r"Q_c(v) \propto P_c(v) W(c, v)"),
    "eq-lm-soft": m.language,
    "eq-lm-mixture": m.teacher_mix,
    "eq-vocab-state": (m.blocks, r"(m_A, s_A) \oplus (m_B, s_B) = (m, s)"),
    "eq-vocab-invariant": m.blocks,
    "eq-vocab-range": m.blocks,
    "eq-vocab-loss": m.vocabulary,
    "eq-vocab-gradient": m.vocabulary,
    "eq-vocab-rounding": m.rounded_logits,
    "eq-vocab-zloss": m.z_loss,
    "eq-vocab-zloss-free": (m.z_loss, r"\min_a \mathrm E_P J(z + a) = \mathrm E_P \ell(z, y)"),
    "eq-vocab-zloss-fixed": m.z_loss_minimum,
    "eq-vocab-softcap": (m.softcap, r"\operatorname{sech}^2(z / c)"),
    "eq-vocab-cap-bound": m.softcap,
    "eq-vocab-cap-fits": m.softcap,
}


WEAKER, NARROWER = "a weaker bound, which holds too", "a narrower condition, under which it holds too"
EVERY, ORDER = "it holds for every class, so for this one", "O(x) has no sign, and a larger x claims less"
# The changes that leave a true statement, and why they do.
HARMLESS: dict[str, dict[str, str]] = {
    "eq-bce-symmetric": {
        r"y \in \{⟨0 → 1⟩, 1\}. \e": NARROWER,
        r"in \{0, ⟨1 → 2⟩\}. \end{": NARROWER,
    },
    "eq-categorical": {
        r"1}^{K} p_⟨j → k⟩^{[j = k]": "at the one factor that counts j is k",
    },
    "eq-softmax-shift": {
        r"ftmax}(z ⟨+ → -⟩ c)_k &=": "any shift will do",
    },
    "eq-surprise": {
        r"&< u \le ⟨2 → 3⟩^{-m/n}": NARROWER,
        r"tfrac{m+⟨1 → 2⟩}{n}\, s(": WEAKER,
        r"s(\tfrac⟨12 → 13⟩) \\ s(u)": WEAKER,
    },
    "eq-gibbs": {
        r"t &\le t ⟨- → +⟩ 1, \quad": WEAKER,
        r"- 1 \le ⟨0 → 1⟩ \\ \math": WEAKER,
    },
    "eq-code-excess": {
        r"P)}{\log ⟨2 → 3⟩} \end{al": WEAKER,
    },
    "eq-grad-hessian": {
        r"rtial (p ⟨- → +⟩ t)}{\par": "t is constant",
    },
    "eq-grad-bound": {
        r"p_y)^2 < ⟨2 → 3⟩ . \end{a": WEAKER,
    },
    "eq-grad-lipschitz": {
        r") \rVert_⟨2 → 3⟩ \\ &\qqu": WEAKER,
    },
    "eq-probability-gap": {
        r"} \le e^{⟨- → +⟩g}, \qqua": WEAKER,
    },
    "eq-clipped-loss": {
        r"log\frac⟨1 → 2⟩\epsilon": WEAKER,
    },
    "eq-exp-error": {
        r",\delta ⟨+ → -⟩ O(d^2\de": ORDER,
        r"ta + O(d^⟨2 → 3⟩\delta^2)": ORDER,
    },
    "eq-grad-central": {
        r"&\quad ⟨+ → -⟩ O(h^4),": ORDER,
        r"&\quad ⟨+ → -⟩ O(h^2) .": ORDER,
    },
    "eq-certify-clip": {
        r"(p) &\le ⟨1 → 2⟩ - \epsil": WEAKER,
        r") &\le 1 ⟨- → +⟩ \epsilon": WEAKER,
        r"ilon, \\ ⟨- → +⟩\log c_\e": WEAKER,
        r"log\tfrac⟨1 → 2⟩\epsilon": WEAKER,
    },
    "eq-certify-top32": {
        r"}_{32}(1 ⟨- → +⟩ 10^{-15}": "this rounds to 1 in float32 as well",
        r"{32}(1 - ⟨10 → 11⟩^{-15}) =": "this rounds to 1 in float32 as well",
        r"1 - 10^{-⟨15 → 16⟩}) = 1 .": "this rounds to 1 in float32 as well",
    },
    "eq-certify-relative": {
        r"le (K + ⟨3 → 4⟩)\,u\,\el": WEAKER,
    },
    "eq-certify-absolute": {
        r"gl(p\,(1 ⟨+ → -⟩ \delta)": "the bound is even in delta",
    },
    "eq-soft-reach": {
        r"min_⟨k → i⟩ q_k \ge": EVERY,
        r"min_k q_⟨k → i⟩ \ge \fra": EVERY,
    },
    "eq-kd-expansion": {
        r"} \Bigr) ⟨+ → -⟩ O(T^{-3}": ORDER,
        r") + O(T^{⟨- → +⟩3}).": ORDER,
    },
    "eq-kd-rate": {
        r"&\quad ⟨+ → -⟩ O(T^{-2}": ORDER,
        r"d + O(T^{⟨- → +⟩2}). \end": ORDER,
    },
    "eq-vocab-rounding": {
        r"|\ell(z ⟨+ → -⟩ \delta,": "the bound is even in delta",
        r"y)| &\le ⟨2 → 3⟩ \max_j |": WEAKER,
        r"|\delta_⟨j → k⟩| \\ &\le": WEAKER,
        r"&\le ⟨2 → 3⟩ u \max_j": WEAKER,
    },
    "eq-vocab-cap-bound": {
        r"p_⟨j → k⟩ < \frac{": EVERY,
        r"< \frac{⟨1 → 2⟩}{1 + (K": WEAKER,
        r"1 + (K - ⟨1 → 2⟩)\, e^{-2": WEAKER,
        r"1)\, e^{-⟨2 → 3⟩c}} .": WEAKER,
    },
    "eq-vocab-cap-fits": {
        r"max_⟨j → k⟩ \log P_j": EVERY,
        r"j \log P_⟨j → k⟩ - \min_j": EVERY,
        r"log P_j ⟨- → +⟩ \min_j": WEAKER,
        r"j - \min_⟨j → k⟩ \log P_j": EVERY,
        r"j \log P_⟨j → k⟩ < 2c .": EVERY,
        r"og P_j < ⟨2 → 3⟩c .": WEAKER,
    },
    "eq-avg-batch-bounds": {
        r"eta}{B + ⟨1 → 2⟩} \ \le": WEAKER,
        r"e\ \frac{⟨1 → 2⟩ - \beta}": WEAKER,
        r"frac{1 ⟨- → +⟩ \beta}{B": WEAKER,
    },
    "eq-den-left": {
        r"ta}{KB + ⟨1 → 2⟩} &\le b": WEAKER,
        r"le \frac{⟨1 → 2⟩ - \beta}": WEAKER,
        r"frac{1 ⟨- → +⟩ \beta}{K": WEAKER,
        r"ta}{KB - ⟨1 → 2⟩}, \qquad": WEAKER,
        r"d KB \ge ⟨2 → 3⟩ . \end{a": NARROWER,
    },
}


# ------------------------------------------------------------------------------------ the page, and a wrong page


@cache
def printed() -> dict[str, str]:
    return {equation.label: equation.tex for equation in ledger.read_equations(ROOT)[0]}


@cache
def row(label: str) -> tuple[list[Env], tuple[str, ...]]:
    """The draws of a row, the fourth far off, and what it leaves out."""
    meaning, *unread = ROWS[label] if isinstance(ROWS[label], tuple) else (ROWS[label],)
    draws = [meaning(m.Draw(number, scale)) for number, scale in enumerate((1.0, 1.0, 3.0, 20.0, 1.0))]
    return draws, tuple(unread)


@pytest.mark.parametrize("label", ROWS)
def test_the_page_says_what_is_true(label: str) -> None:
    if label not in printed():
        pytest.fail(f"no chapter prints {label}", pytrace=False)
    if said := next(failures(printed()[label], *row(label)), ""):
        pytest.fail(f"{label}, {said}", pytrace=False)


CHANGED = re.compile(r"(?<=\\\\)\[\w+\]|\+|-|\d+|\\[lg]e(?![a-z])|<|>|=(?!\s*0)|(?<=_)[i-n]")
OTHER = {"+": "-", "-": "+", "<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", "=": r"= 2\,"}
OTHER |= {"i": "j", "j": "k", "k": "i", "l": "i", "m": "n", "n": "m"}


def changes(tex: str) -> Iterator[tuple[str, str]]:
    """Each sign turned, number raised, relation reversed, right side doubled, index exchanged: what, and the TeX."""
    tex = " ".join(tex.split())
    for found in CHANGED.finditer(tex):
        old, (a, b) = found[0], found.span()
        if old[0] != "[":
            new = OTHER.get(old) or str(int(old) + 1)
            what = f"{tex[max(a - 9, 0) : a]}⟨{old} → {new}⟩{tex[b : b + 9]}"
            yield what.strip("\\ "), tex[:a] + new + tex[b:]


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
    assert unseen == {*HARMLESS.get(label, ())}, f"{label}: these changes pass; HARMLESS lists others"


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
        for ours, theirs in pairs:
            assert np.allclose(np.asarray(ours, float), theirs, rtol=1e-12, atol=1e-300)
