"""Wrong answers that people gave and that no exercise lists, by what is said of them; none passes."""

from __future__ import annotations

import itertools
import math
import pkgutil
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import xlogy

import xent
from xent.denominators import eos_optimum
from xent.information import entropy, kl_divergence
from xent_book import exercises
from xent_book.exercises.certify import LOGITS, TARGETS, judge_with

eye, norm, sigmoid, softmax = np.eye, np.linalg.norm, xent.sigmoid, xent.softmax
right = {name: exercises.get(name).reference for name in exercises.names()}


def _slopes(w: Any, b: Any, x: Any, y: Any) -> Any:
    return softmax(x @ w.T + b) - eye(len(w))[y]


def _kept(z: Any, y: Any) -> Any:
    g = np.zeros(z.shape)
    g[y >= 0] = softmax(z[y >= 0]) - eye(z.shape[1])[y[y >= 0]]
    return g


def _judge(rtol: float, atol: float = 0, keep: Any = slice(None)) -> Any:
    return judge_with(LOGITS[keep], TARGETS[keep], rtol=rtol, atol=atol)


def _batches(lengths: list[int], size: int) -> Any:
    return np.array([sum(batch) / size for batch in itertools.product(lengths, repeat=size)])


def _between(function: Callable[[float], float], q: float, low: float, high: float) -> float:
    return 1.0 if q == 1 else brentq(lambda beta: function(beta) - q, low, high)


def _with_one_shift(z: Any, y: Any) -> Any:
    z = z - z.max()
    return np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(y)), y]


def _soft_by_p(z: Any, y: Any) -> Any:
    """Stable for the labels 0 and 1, and by way of the probability between them: infinite at a logit of 900."""
    p = xent.sigmoid(z)
    soft = -(y * np.log(p) + (1 - y) * np.log(1 - p))
    return np.where((y > 0) & (y < 1), soft, y * np.logaddexp(0, -z) + (1 - y) * np.logaddexp(0, z))


def _one_hot_where_zero(log_q: Any, p: Any, mask: Any) -> Any:
    return (np.where((p > 0).all(-1), (p * np.log(p)).sum(-1), 0) - (p * log_q).sum(-1))[mask].mean()


def _larger_first(a: Any, b: Any) -> Any:
    (m, s), (other, r) = max(a, b), min(a, b)
    return np.array([m, s + (r * math.exp(other - m) if r else 0)])


def _by_maximum(z: Any, y: Any, tail: Any) -> Any:
    return np.maximum(z, 0) - y * z + tail


def _focal(q: Any, gamma: float) -> Any:
    return xent.scoring.invert_focal(np.stack([1 - q, q], -1), gamma=gamma)


def _bucket(z: Any, kept: Any, at: Any, tail: Any) -> Any:
    return -kept @ xent.log_softmax(z)[at] - (1 - kept.sum()) * tail


def _one_hot_less(z: Any, y: Any, p: Any) -> Any:
    return (p - eye(z.shape[1])[y * (y > 0)]) * (y >= 0)[:, None] / (y >= 0).sum()


def _bigram_kl(first: Any, table: Any, to_first: Any, to_table: Any, from_first: Any, from_table: Any) -> Any:
    """KL of the second model's rows from the first's, weighted by the visits of a model that the last two name."""
    visits = np.linalg.solve((eye(len(table)) - from_table[:, :-1]).T, from_first[:-1])
    return kl_divergence(first, to_first) + visits @ kl_divergence(table, to_table)


RIGHT = "agrees with the reference"
# Words of what is said, and the answers.
SAID: dict[str, list[tuple[str, Any]]] = {
    "expected": [
        ("coin-heads", lambda loss, p, n: round(n * p)),
        ("coin-heads", lambda loss, p, n: round(n * (loss + 1 - p) / (1 - p - math.log(p)))),
        ("bce-from-logits", _soft_by_p),
        ("multiclass-errors", lambda loss, n: math.floor(n * loss / math.log(10))),
        ("multiclass-errors", lambda loss, n: min(n, int(n * loss / 0.693))),
        ("paired-losses", lambda a, b: (a.mean() / b.mean(), (a / b).std(ddof=1) / len(a) ** 0.5)),
        ("grad-lengths", lambda w, b, x, y: norm(_slopes(w, b, x, y), axis=1) / len(y)),
        ("certify-binary", _judge(1e-12, keep=LOGITS >= 0)),
        ("certify-binary", _judge(1e-12, keep=abs(LOGITS) > 100)),
        ("certify-binary", lambda loss: not right["certify-binary"](loss)),
        ("certify-binary", lambda loss: all(_judge(1e-12, keep=slice(i, i + 1))(loss) for i in range(30))),
        ("double-softmax-belief", lambda loss, classes: math.log(math.e + classes - 1) - 1),
        ("double-softmax-belief", lambda *given: round(right["double-softmax-belief"](*given), 4)),
        ("ignored-nan", lambda z, y: _one_hot_less(z, y, (np.exp(z).T / np.exp(z).sum(1)).T)),
        ("scoring-alpha-focal", lambda q, g, a: a * q / (a * q + (1 - a) * (1 - q))),
        ("averaged-eos-coin", lambda q: 1.0 if q == 1 else q * (1 - q) / -np.log(q)),
        ("averaged-eos-coin", lambda q: max(0.001, brentq(lambda b: eos_optimum(b) - q, 1e-9, 1))),
        ("den-scales", lambda counts, divisor: 1 / counts.size * np.ones(counts.shape)),
        ("smoothing-floor", lambda e, k: -math.log(1 - e)),
        ("mean-of-means-repair", lambda counts: counts.sum() / (len(counts) * counts)),
        ("soft-tokens", _one_hot_where_zero),
        ("kd-alpha", lambda a, T: (1 - a) * T**2 / (a + (1 - a) * T**2)),
        ("lm-bucket", lambda z, p, i: _bucket(z, p, i, np.log(np.delete(softmax(z), i)).sum())),
        ("lm-bucket", lambda z, p, i: _bucket(z, p, i, -np.log(np.delete(softmax(z), i).sum()))),
        ("vocab-merge", lambda a, b: np.array([a[0] + b[0], a[1] * b[1]])),
        ("vocab-merge", lambda a, b: np.array(a) if a[0] == -np.inf else _larger_first(a, b)),
        ("vocab-merge", lambda a, b: np.array(max(a, b)) if a[0] == b[0] else _larger_first(a, b)),
        ("vocab-merge", lambda a, b: np.array([max(a[0], b[0]), max(a[1], b[1])])),
        ("else-dpo", lambda a, b, c, d, beta: -(beta * ((a - c) - (b - d))).mean()),
        ("else-dpo", lambda a, b, c, d, beta: -np.log(sigmoid(beta * ((a - c) - (b - d))) + 1e-12).mean()),
        ("else-dpo", lambda a, b, c, d, beta: np.logaddexp(0, -beta * (a / c - b / d)).mean()),
        ("else-dpo", lambda a, b, c, d, beta: np.logaddexp(0, -beta * ((a - c) - (b - d)).mean())),
        ("else-prior", lambda z, old, new: softmax(z * new / old)),
        ("else-prior", lambda z, old, new: softmax(z / old * new)),
        ("else-prior", lambda z, old, new: (odds := softmax(z) * new / old) / odds.sum()),
        ("else-prior", lambda z, old, new: (odds := softmax(z) * new / old) / odds.sum(0)),
        ("else-prior", lambda z, old, new: softmax(z + np.log2(new / old))),
        ("else-bits", lambda nats, text: 2 ** (nats.sum() / len(text.encode()))),
        ("else-bits", lambda nats, text: nats.sum() / np.log(2) / len(text.split())),
        ("else-bits", lambda nats, text: nats.sum() / np.log(2) / len(text.encode("utf-16"))),
    ],
    "your function raised": [
        ("ignored-nan", lambda z, y: _one_hot_less(z, y, softmax(z))),
        ("ignored-nan", lambda z, y: _one_hot_less(z, y, softmax(np.where(np.isnan(z), 0, z)))),
        ("averaged-eos-coin", lambda q: _between(lambda b: (b - 1) / math.log(b), q, 1e-200, 1 - 1e-12)),
        ("kd-alpha", lambda alpha, T: 1 / (1 + (1 - alpha) / alpha / T**2)),
    ],
    "your result has shape": [
        ("multiclass-nll", lambda z, y: -np.log(softmax(z)[:, y])),
        ("multiclass-nll", lambda z, y: xent.log_sum_exp(z) - z[:, y]),
        ("multiclass-nll", lambda z, y: np.squeeze(xent.cross_entropy(z, y, reduction="none"))),
        ("grad-lengths", lambda w, b, x, y: norm(_slopes(w, b, x, y)) * norm(x)),
        ("grad-lengths", lambda w, b, x, y: norm(_slopes(w, b, x, y).T @ x, axis=0)),
        ("ignored-nan", lambda z, y: _kept(z, y)[y >= 0] / (y >= 0).sum()),
        ("soft-noise", lambda t, m, eps: (1 - eps) ** 2 * (t * (1 - t)) / m),
        ("den-scales", lambda counts, divisor: divisor / counts.sum()),
    ],
    "the sign is flipped": [
        ("multiclass-nll", lambda z, y: -xent.cross_entropy(z, y, reduction="none")),
        ("certify-share", lambda a, eps_a, b, eps_b: (a - b) / math.log(eps_a / eps_b)),
        ("smoothing-floor", lambda *given: -right["smoothing-floor"](*given)),
    ],
    "this is the mean of the right answers": [
        ("bce-from-logits", lambda z, y: xent.binary_cross_entropy(z, y)),
        ("multiclass-nll", lambda z, y: xent.cross_entropy(z, y)),
    ],
    "off by up to": [
        ("multiclass-nll", lambda *given: right["multiclass-nll"](*given).astype(np.float32) * (1 + 1e-7)),
        ("soft-tokens", lambda log_q, p, mask: (p * (np.log(p + 1e-12) - log_q)).sum(-1)[mask].mean()),
    ],
    "part 3 of 3: your answer is the right one multiplied by the length": [
        ("three-means", lambda l, w: ((l @ w) / w.sum(), (l @ w) / len(l), l.mean() * w.sum())),
    ],
    "1 divided by the right one": [("batch-mean-length", lambda *given: np.mean(1 / _batches(*given)))],
    "divided by the length of axis 1": [
        ("den-scales", lambda counts, divisor: divisor * counts / counts.sum() / counts.shape[1]),
    ],
    "the sum of the right answers over the last axis": [
        ("den-scales", lambda counts, divisor: divisor * counts.sum(1) / counts.sum()),
    ],
    "in bits": [("smoothing-floor", lambda *given: right["smoothing-floor"](*given) / math.log(2))],
    "times the right one": [("else-bits", lambda nats, text: nats.sum() / 8 / len(text.encode()))],
    # Mistakes that an exercise lists, in another writing.
    "one maximum for the whole batch": [("multiclass-nll", _with_one_shift)],
    "the shift is right, but the logarithm comes after the division": [
        ("multiclass-nll", lambda z, y: -np.log(softmax(z)[range(len(y)), y])),
    ],
    "not axis=0": [("multiclass-nll", lambda z, y: -np.log(softmax(z, axis=0)[range(len(y)), y]))],
    "at least log 2": [("multiclass-errors", lambda loss, n: int(n * loss))],
    "np.log1p(x)": [("bce-from-logits", lambda z, y: _by_maximum(z, y, np.log(1 + np.exp(-abs(z)))))],
    # Right for the labels 0 and 1; at the logit 1000 and a target 1e-14 below 1 it loses the digits.
    "has lost its digits": [("bce-from-logits", lambda z, y: _by_maximum(z, y, np.log1p(np.exp(-abs(z)))))],
    "the labels 0 and 1 only": [("bce-from-logits", lambda z, y: np.logaddexp(0, np.where(y == 1, -z, z)))],
    "round()": [
        ("coin-heads", lambda loss, p, n: int(n * (loss + np.log1p(-p)) / np.log((1 - p) / p))),
        ("coin-heads", lambda loss, p, n: int(n * (loss + math.log(1 - p)) / math.log(1 / p - 1))),
    ],
    "one bit at each press": [("shared-key", lambda p, i, j: p[i] + p[j])],
    "the shared key still tells something": [
        ("shared-key", lambda p, i, j: -xlogy(p[[i, j]], p[[i, j]]).sum() / math.log(2)),
    ],
    "the weight is missing": [("shared-key", lambda p, i, j: entropy(p[[i, j]] / p[[i, j]].sum(), base=2))],
    "the largest entry of p - t is that of a wrong class": [
        ("grad-leak", lambda dw, db: (dw.T @ db / (db @ db), db.argmax())),
    ],
    "log p_y rounds to 0": [("log-miss", lambda z, y: np.log(-np.expm1(xent.log_softmax(z)[y])))],
    "this is log1p(-p)": [("log-miss", lambda z, y: np.log1p(-np.exp(-xent.cross_entropy(z, y))))],
    "alpha is the weight of the positive class": [
        ("scoring-alpha-focal", lambda q, g, a: (b := _focal(q, g) / [a, 1 - a])[:, 1] / b.sum(1)),
    ],
    # The mistake that has been printed, turned round: (beta - 1) / beta log(1 - beta) = q.
    "the formula that has appeared in print": [
        (
            "averaged-eos-coin",
            lambda q: _between(lambda b: (1 - 1 / b) * math.log1p(-b), q, 1e-12, 1 - 1e-15),
        ),
    ],
    "here it adds": [("mean-of-means-repair", lambda counts: counts / counts.mean())],
    "turned round": [("kd-alpha", lambda a, T: a / (a + (1 - a) * T**2))],
    "this is the divergence": [
        (
            "lm-bucket",
            lambda z, p, i: _bucket(z, p, i, np.log(1 - softmax(z)[i].sum())) - entropy([*p, 1 - p.sum()]),
        )
    ],
    "the prefixes come from P here": [("lm-reverse-kl", lambda a, b, c, d: _bigram_kl(c, d, a, b, a, b))],
    RIGHT: [
        # The twelve digits of the right, the ten that the wrong do not keep.
        *(("certify-binary", _judge(rtol)) for rtol in (5e-13, 1e-10)),
        ("paired-losses", lambda a, b: np.array(right["paired-losses"](a, b))),
    ],
}
# How many mistakes each chapter lists, eight or more in a new one; test_exercises.py asks that each be named.
LISTED = {
    **{"binary": 56, "multiclass": 53, "information": 10, "gradients": 9, "numerics": 12, "certify": 23},
    **{"frameworks": 10, "which_loss": 7, "scoring": 10, "sequences": 13, "denominators": 10},
    **{"soft_targets": 16, "distillation": 9, "language_models": 14, "large_vocabularies": 6},
    "elsewhere": 17,
}
ROWS = [(said, *row) for said, rows in SAID.items() for row in rows]
MODULES = [found.name for found in pkgutil.iter_modules(exercises.__path__) if found.name[0] != "_"]


@pytest.mark.parametrize(("said", "slug", "answer"), ROWS)
def test_wrong_answers(said: str, slug: str, answer: Any) -> None:
    result = exercises.check(slug, answer)
    assert said in result.message and bool(result) == (said == RIGHT)


@pytest.mark.parametrize("module", MODULES)
def test_ten_wrong_answers_to_a_chapter_are_known(module: str) -> None:
    mistakes = {e.slug: len(e.mistakes) for e in import_module(f"xent_book.exercises.{module}").EXERCISES}
    listed, others = sum(mistakes.values()), [row for row in ROWS if row[1] in mistakes and row[0] != RIGHT]
    assert listed >= LISTED.get(module, 8) and listed + len(others) >= 10


@pytest.mark.parametrize("slug", exercises.names())
def test_a_slip_on_the_right_answer_does_not_pass(slug: str) -> None:
    def slipped(slip: Callable[[Any], Any], *arguments: Any) -> Any:
        found = right[slug](*arguments)
        parts = [slip(np.asarray(part, float)) for part in (found if isinstance(found, tuple) else [found])]
        return tuple(parts) if isinstance(found, tuple) else parts[0]

    slips = (lambda a: -a, lambda a: 2 * a, lambda a: a * (1 + 1e-4) + 1e-6, lambda a: a[None])
    for slip in slips if exercises.get(slug).inputs else ():
        assert not exercises.check(slug, partial(slipped, slip))
