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

import mpmath as mp
import numpy as np
import pytest
import scipy.special
import scipy.stats

import marks
from equations import meanings as m
from equations.reader import DIGITS, Env, Unreadable, failures

ROOT = Path(__file__).resolve().parents[2]


# fmt: off
ROWS: dict[str, Any] = {
    "eq-coin-likelihood": m.coin,
    "eq-coin-mle": m.coin,
    "eq-bce": m.coins,
    "eq-sigmoid": m.binary,
    "eq-bce-logits": m.binary,
    "eq-bce-symmetric": m.binary,
    "eq-bce-derivatives": m.binary_loss,
    "eq-softplus-stable": m.binary,
    "eq-weights-gradient": m.logistic,
    "eq-weights-derivatives": (
        m.logistic, r"\nabla^2 J(w) = \frac1N X^{\mathsf T} \operatorname{diag}( p_i (1 - p_i) ) X"
    ),
    "eq-categorical": (m.one, r"P(Y = k)"),
    "eq-one-hot": (m.one, r"0 \log 0 = 0"),
    "eq-log-odds": m.one,
    "eq-softmax-map": m.one,
    "eq-softmax-shift": m.one,
    "eq-one-against-rest": (m.one, r"p_1 = \sigma(z_1 - z_0)", r"(K = 2)"),
    "eq-nll-from-logits": m.loss_of,
    "eq-prediction-minus-label": m.loss_of,
    "eq-gaussian-nll": m.gaussian,
    "eq-margin-slopes": m.margin,
    "eq-entropy": (m.two, r"\mathbb{E}_{X \sim P}[-\log P(X)]", r"0 \log 0 = 0"),
    "eq-cross-entropy-law": (m.two, r"\mathbb{E}_{X \sim P}[-\log Q(X)]"),
    "eq-kl": m.two,
    "eq-entropy-bounds": m.two,
    "eq-code-excess": m.two,
    "eq-mixture": m.two,
    "eq-grad-jacobian": m.gradient,
    "eq-grad-chain": m.gradient,
    "eq-grad-residual": m.gradient,
    "eq-grad-lse": m.gradient,
    "eq-grad-complement": m.gradient,
    "eq-grad-smoothed-gap": m.smoothed,
    "eq-grad-hessian": m.gradient,
    "eq-grad-variance": m.gradient,
    "eq-grad-curvature": m.gradient,
    "eq-grad-bound": m.hard_gradient,
    "eq-grad-lipschitz": m.gradient,
    "eq-grad-mse": m.gradient,
    "eq-grad-vjp": m.gradient,
    "eq-lse-shift": m.one,
    "eq-lse-bounds": m.one,
    "eq-probability-gap": m.gaps,
    "eq-ce-log1p": m.gaps,
    "eq-gap-form": m.gaps,
    "eq-clipped-loss": m.certify,
    "eq-certify-sum": m.certify,
    "eq-certify-soft": (m.certify, r"\text{with equality only for } p = t"),
    "eq-certify-inverse": m.certify,
    "eq-certify-clip": m.clip,
    "eq-certify-absolute": m.clip,
    "eq-certify-binary": m.two_outcomes,
    "eq-certify-multilabel": m.labels,
    "eq-certify-scale": m.labels,
    "eq-fw-two-means": m.frameworks,
    "eq-fw-double-softmax": m.frameworks,
    "eq-fw-keras-normalise": m.frameworks,
    "eq-fw-bce-1d": m.frameworks,
    "eq-fw-ignored-backward": m.ignored,
    "eq-fw-unnormalised": m.unnormalised,
    "eq-fw-kernel-error": m.unnormalised,
    "eq-fw-rescale": m.unnormalised,
    "eq-fw-smoothing": m.any_class,
    "eq-which-reading": m.reading,
    "eq-which-smoothing": m.smoothed,
    "eq-expected-score": (m.scoring, r"0 \cdot \infty = 0"),
    "eq-three-rules": m.scoring,
    "eq-three-excesses": m.scoring,
    "eq-zero-one-cost": m.zero_one,
    "eq-tangent": m.scoring,
    "eq-savage": m.scoring,
    "eq-bregman": m.scoring,
    "eq-den-two": m.two_batches,
    "eq-den-weight": m.denominators,
    "eq-den-accumulation": m.denominators,
    "eq-den-ddp": (
        m.denominators, r"\frac1W \sum_{r} \nabla ( \frac{1}{n_r} S_r ) = \nabla \frac1W \sum_{r} m_r",
        r"\nabla \frac1N \sum_{r} S_r"
    ),
    "eq-soft-loss": m.soft,
    "eq-soft-floor": m.soft,
    "eq-soft-gradient": m.gradient,
    "eq-soft-unnormalised": m.unnormalised,
    "eq-soft-gap": m.smoothed,
    "eq-soft-inverse": m.smoothed,
    "eq-soft-reach": m.smoothed,
    "eq-soft-inside": m.inside,
    "eq-kd-loss": m.distil,
    "eq-kd-gradient": m.distil_loss,
    "eq-kd-mixture": m.distil,
    "eq-kd-readout": m.distil,
    "eq-vocab-zloss": m.z_loss,
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
    assert unseen == {*m.HARMLESS.get(label, ())}, f"{label}: these changes pass; HARMLESS lists others"


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
