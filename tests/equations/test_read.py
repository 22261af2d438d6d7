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
from equations.values import Unreadable

ROOT = Path(__file__).resolve().parents[2]


ROWS: dict[str, Any] = {
    "eq-bernoulli": m.trial,
    "eq-coin-likelihood": m.coin,
    "eq-log-monotone": (m.coin, r"\text{if } \mathcal L(p)"),
    "eq-coin-mle": m.coin,
    "eq-bce": m.coins,
    "eq-missing-log": (m.missing_log, r"\operatorname*{arg\,min}_{0 \le p \le 1} \tilde J(p) = \min( \frac{f}{1 - f}, 1 )"),
    "eq-sigmoid": m.binary,
    "eq-bce-logits": m.binary,
    "eq-bce-symmetric": m.binary,
    "eq-bce-derivatives": m.binary_loss,
    "eq-softplus-stable": m.binary,
    "eq-weights-derivatives": (m.logistic, r"\nabla^2 J(w) = \frac1N X^{\mathsf T} \operatorname{diag}( p_i (1 - p_i) ) X"),
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
    "eq-grad-eigenproduct": m.gradient,
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
    "eq-certify-rescale": m.rescaled,
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
    "eq-bent-and-back": (m.bent, r"q_k = (1 - \varepsilon) p_k + \frac{\varepsilon}{K}", r"p_k = \frac{q_k - \varepsilon / K}{1 - \varepsilon}"),
    "eq-focal-inverse": m.focal,
    "eq-calibration-refinement": m.calibration,
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
    "eq-lm-topk": (m.cut, r"\arg\min_q", "q_i = p_i / S", r"(i \le k)", r"\phantom{\arg\min_q :}", "q_i = 0", "(i > k)"),
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


@cache
def printed() -> dict[str, str]:
    return {equation.label: equation.tex for equation in ledger.read_equations(ROOT)[0]}


DRAWS = ((0, 1.0), (1, 1.0), (2, 3.0), (3, 20.0), (4, 1.0))


@pytest.mark.parametrize("label", ROWS)
def test_the_page_says(label: str) -> None:
    meaning, *unread = ROWS[label]
    draws = [meaning(Draw(seed, scale)) for seed, scale in DRAWS]
    if said := next(failures(printed()[label], draws, tuple(unread)), ""):
        pytest.fail(f"{label}, {said}", pytrace=False)


def test_the_functions_are_scipys() -> None:
    for seed, scale in ((0, 1.0), (1, 20.0)):
        d = Draw(seed, scale)
        z, u = d.column(5), d.column(5)
        p, q = softmax(z), softmax(u)
        x, a, b = (v.astype(float)[:, 0] for v in (z, p, q))
        pairs: list[tuple[Any, Any]] = [
            (p, scipy.special.softmax(x)[:, None]),
            (lse(z), scipy.special.logsumexp(x)),
            (sigmoid(z), scipy.special.expit(x)[:, None]),
            (softplus(z[0, 0]), np.logaddexp(0, x[0])),
            (entropy(p), scipy.stats.entropy(a)),
            (kl(p, q), scipy.stats.entropy(a, b)),
            (entropy(p, q), -a @ np.log(b)),
            (variance(p, z), np.cov(x, aweights=a, ddof=0)),
        ]
        for ours, theirs in pairs:
            assert np.allclose(np.asarray(ours, float), theirs, rtol=1e-12, atol=1e-300)
