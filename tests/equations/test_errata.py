"""The errata: what a source says, tried on inputs, and what is right. The verdict that follows has to be the row's.

What the source says holds, needs a condition, or fails: on all inputs, on some, on none. If on none, it is outdated
where it held with the libraries of its time, a slip where its result is right all the same, and wrong otherwise.
"""

# ruff: noqa: E731 (short functions of one use)

from __future__ import annotations

import itertools
import json
import math
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp, softmax
from sklearn.metrics import log_loss

import marks
import xent
import xent.torch
from xent import gradients, scoring
from xent.denominators import eos_optimum, learnt_distribution
from xent.elicitation import elicited
from xent.information import cross_entropy as cross
from xent.information import entropy
from xent.information import kl_divergence as kl
from xent.sequences import GeometricSource
from xent_book import behaviours

F, log, exp = torch.nn.functional, np.log, np.exp
ROOT = Path(__file__).resolve().parents[2]
VERDICTS = {row.id: row.verdict for row in marks.read_errata(ROOT)[1]}
Tried = tuple[str, str, bool]
Fn = Callable[..., Any]


def source(row: str, *held: Any) -> Tried:
    """What the source says, on one input."""
    return row, "source", all(map(bool, held))


def right(row: str, *held: Any) -> Tried:
    """What is right."""
    return row, "right", all(map(bool, held))


def then(row: str, *held: Any) -> Tried:
    """What the source says, with what its libraries did then."""
    return row, "then", all(map(bool, held))


def result(row: str, *held: Any) -> Tried:
    """What the source concludes from it."""
    return row, "result", all(map(bool, held))


def near(a: Any, b: Any, rel: float = 1e-9, off: float = 1e-13) -> bool:
    return bool(np.allclose(np.asarray(a, float), np.asarray(b, float), rtol=rel, atol=off))


def refuses(error: type[Exception], words: str, call: Callable[..., Any], *args: Any, **options: Any) -> bool:
    with pytest.raises(error, match=words):
        call(*args, **options)
    return True


def told(call: Callable[[], Any]) -> tuple[Any, str]:
    """Return what a call returns, and its warnings."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        return call(), "\n".join(str(warning.message) for warning in said)


def lowest(f: Callable[[Any], Any], low: float, high: float) -> float:
    return float(minimize_scalar(f, bounds=(low, high), method="bounded", options={"xatol": 1e-10}).x)


def averaged_loss() -> Iterator[Tried]:
    """Rows 0.1 to 0.a: a fair coin with four letters, read at the wrong probability 0.3 of its end."""
    n, half, m, q = np.arange(1, 400), 0.5 ** np.arange(1.0, 400), 4, 0.3
    coin, letter, log2 = GeometricSource(0.5, m), math.log((1 - q) / m), math.log(2)
    loss = coin.cross_entropy(q)
    p, other = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    functions: list[Callable[[Any], Any]] = [np.square, lambda t: t**2 - 2, np.exp]
    for f in functions:
        yield source("0.1", other @ (f(other / other) - f(1)) == 0, other @ (f(p / other) - f(1)) > 0.1)
        yield right("0.1", near(p @ f(p / p), f(1)), other @ f(p / other) > f(1))
    tokens = [[-letter] * (k - 1) + [-log(q)] for k in n]
    for i in (0, -1):
        yield source("0.3", near(half @ [t[i] for t in tokens], loss))
    yield right("0.3", near(half @ [sum(t) for t in tokens], loss))
    yield right("0.3", near(half @ [np.mean(t) for t in tokens], coin.averaged_cross_entropy(q)))
    yield result("0.3", near(loss, coin.kl(q) + coin.entropy()))
    mean_log_p = half @ (-n * log2 - (n - 1) * log(m))
    yield source("0.4", near(coin.kl(q) - mean_log_p, loss), near(-mean_log_p, coin.entropy()))
    head, rest = -log(q) + log(1 - q), log(1 - q)
    yield source("0.5", near(head + half @ (-n * (log2 - rest)), coin.kl(q)))
    yield right("0.5", near(head + half @ (-n * (log2 + rest)), coin.kl(q)))
    yield source("0.5", near(-log(q) + letter - half @ (-n * letter), loss))
    yield right("0.5", near(-log(q) + letter + half @ (-n * letter), loss))
    yield source("0.5", near(sum([0.5] * 1000), 1))  # the first of the rearranged sums
    yield right("0.5", near([sum(half[k:].sum() for k in range(50)), half @ n], 2))
    yield result("0.5", near(loss, -log(q) - letter), near(coin.entropy(), 2 * log2 + log(m)))
    averaged = coin.averaged_cross_entropy
    yield source("0.9", near(lowest(averaged, 0.01, 0.99), log2, 1e-6))
    tilted = half / n / (half @ (1 / n))  # what a model may say that changes its probability by position
    yield right("0.9", half @ ((-log(tilted) + (n - 1) * log(m)) / n) < averaged(log2) - 1e-3)
    for beta in (0.05, 0.1, 0.3, 0.5, 0.9):
        k = np.arange(1, 5001)
        law = beta * (1 - beta) ** (k - 1)
        learnt, printed = law @ (1 / k), (beta - 1) / beta * log(1 - beta)
        yield source("0.10", near(printed, learnt, 0.1) and beta != 0.5)  # at a half the two are one
        yield right("0.10", near([beta * log(beta) / (beta - 1), eos_optimum(beta)], learnt))
        yield right("0.10", beta != 0.1 or near([printed, learnt], [0.948, 0.256], off=5e-4))
        each = [log(stop) + (k - 1) * log(1 - stop) for stop in (beta, learnt)]
        (likely, less), (cost, lower) = [law @ x for x in each], [-law @ (x / k) for x in each]
        yield source("0.a", less > likely)
        yield result("0.a", lower < cost)
        numbers = [[-1.386, 0.693], [-1.548, 0.617]]
        yield right("0.a", beta != 0.5 or near([[likely, cost], [less, lower]], numbers, off=5e-4))
    for t in (1, 2, 7):
        scores = torch.ones(t + 1, requires_grad=True)
        weights = [torch.autograd.grad(scores[:k].mean(), scores)[0][0].item() for k in (t, t + 1)]
        yield source("0.11", near(weights, [1, 1 / 2], 1e-6))
        yield right("0.11", near(weights, [1 / t, 1 / (t + 1)], 1e-6))
    for law, lengths in ((np.ones(1), np.array([5.0])), (half, n)):
        yield source("0.12", near(learnt_distribution(law, lengths, 1), law))
    ends, rows = np.random.default_rng(0).random((500, 60)) < 0.5, np.arange(500)
    last = ends.argmax(axis=1) + 1
    yield source("0.12", ends[rows[last > 1], last[last > 1] - 2].any())
    yield right("0.12", ends[rows, last - 1].all())


def padded(lengths: list[int], width: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(len(lengths), width, 5, generator=generator, dtype=torch.float64)
    targets = torch.randint(5, (len(lengths), width), generator=generator)
    targets[torch.arange(width) >= torch.tensor(lengths)[:, None]] = -100
    return logits, targets


def denominators() -> Iterator[Tried]:
    """Rows 0.13 to 0.18."""
    z, y = padded([3, 6], 6)
    each, nothing = F.cross_entropy(z.mT, y, reduction="none"), torch.full_like(y, -100)
    yield source("0.13", near(F.cross_entropy(z.mT, y), each.sum() / 9))
    yield right("0.13", F.cross_entropy(z.mT, nothing).isnan())
    z, y = padded([1, 1024], 1024)
    l1, l2 = F.cross_entropy(z.mT, y, reduction="none").sum(dim=1)
    apart = sum(F.cross_entropy(*one) for one in zip(z, y, strict=True))
    yield source("0.14", near(apart, l1 + l2 / 1024), near(F.cross_entropy(z.mT, y), (l1 + l2) / 1025))
    n, grid = np.random.default_rng(0).geometric(0.1, size=(200_000, 4)), np.linspace(0.001, 0.999, 999)
    per_token = -log(0.3) * 0.1 - log(0.7) * 0.9
    for B in (1, 2, 4):
        tokens = n[:, :B].sum(1)
        summed = -B * log(grid) - (tokens[0] - B) * log(1 - grid)
        # a multiple of the right loss
        yield source("0.15", np.argmin(summed / tokens[0]) == np.argmin(summed))
        ratio, ends = (-log(0.3) * B - log(0.7) * (tokens - B)) / tokens, B / tokens
        error = ratio.std() / np.sqrt(len(n)), ends.std() / np.sqrt(len(n))
        yield source("0.15", abs(ratio.mean() - per_token) > 8 * error[0])
        yield right("0.15", abs(ends.mean() - eos_optimum(0.1, B)) < 4 * error[1])
    large = (-log(0.3) * n.size - log(0.7) * (n.sum() - n.size)) / n.sum()
    # nor per sequence
    yield right("0.15", near(large, per_token, 0.01), not near(large, 10 * per_token, 0.01))
    for lengths in (np.array([3.0, 10.0, 40.0]), np.array([8.0])):
        law = np.ones(len(lengths)) / len(lengths)
        means = [learnt_distribution(law, lengths, B) @ lengths for B in (1, 2, 4, 16)]
        yield source("0.16", (np.diff(means) > 1e-9).all())
        yield right("0.16", len(lengths) > 1 or near(means, 8))
    inputs, targets = padded([1, 2, 9, 4, 6, 3, 8, 5], 9)

    def run(size: int, order: list[int], scale: float = 1.0, decay: float = 0.0) -> torch.Tensor:
        weight = torch.zeros(5, 5, dtype=torch.float64, requires_grad=True)
        adam = torch.optim.Adam([weight], lr=0.1, eps=0.0, weight_decay=decay)
        parts = list(zip(inputs[order].split(size), targets[order].split(size), strict=True))
        for window in xent.torch.accumulate(parts, 4 // size, targets=1):
            for micro in window:
                x, y = micro.batch
                (scale * micro.scale * F.cross_entropy((x @ weight).mT, y, reduction="sum")).backward()
            adam.step()
            adam.zero_grad()
        return weight.detach()

    order = list(range(8))
    for size in (1, 2):
        yield source("0.17", near(run(size, order), run(4, order), 1e-6, 1e-9))
        yield source("0.17", near(run(size, order[::2] + order[1::2]), run(4, order), 1e-3))  # other windows
        yield source("0.17", near(run(size, order, 4.0, 0.5), run(4, order, 1.0, 0.5), 1e-3))  # another scale
    yield right("0.17", near(run(1, order, 4.0), run(4, order), 1e-6, 1e-9))  # which Adam hides
    runs = json.loads((ROOT / "experiments/shakespeare/result.json").read_text())["runs"]
    of: Fn = lambda arm, what: np.mean([r[what] for r in runs if r["arm"] == arm])
    for arm in ("B=1", "blocks"):
        yield source("0.18", of(arm, "mean_length") > 0.9 * of("constant", "mean_length"))
    yield right("0.18", near(of("B=1", "mean_length"), of("constant", "mean_length") / 3, 0.15))
    worse = exp(of("B=1", "nll_per_token") - of("constant", "nll_per_token"))
    yield right("0.18", near(worse, 1.05, 0.02))


ONE, ROW = [0, 0, 1], [0.3, 0.7, 0.0]
TARGETS, PROBS = np.array([ONE, [0, 1, 0]]), np.array([ROW, [0.5, 0.2, 0.3]])
INDICES, MULTI = torch.tensor([2, 1]), np.array([1.0, 0.0, 0.0, 1.0])


def the_post(t: Any, p: Any, eps: float = 1e-15) -> float:
    """The post's final function: clip, sum, divide by the rows if there are two dimensions."""
    t, p = np.asarray(t), np.clip(np.asarray(p), eps, 1 - eps)
    return float(-np.sum(t * log(p)) / (t.shape[0] if t.ndim > 1 else 1))


def keras_rows(t: Any, p: Any) -> Any:
    return behaviours.keras().metrics.categorical_crossentropy(t, p).numpy()


def scikit_learn() -> Iterator[Tried]:
    """Rows 1.1 to 1.6, and what the post's own function does."""
    for pair in ([0.5, 0.5], [0.3, 0.7], [0.5, 0.4]):
        yield source("1.1", near(log_loss([0, 1], pair), the_post([0, 1], pair)))
        yield right("1.1", near(log_loss([0, 1], pair), -(log(1 - pair[0]) + log(pair[1])) / 2))
    yield right("1.1", near(log_loss([0, 1], [0.5, 0.5]), 0.6931, off=5e-5))
    seen, terms = log_loss(ONE, ROW), -log(0.7) - log(0.3)
    yield source("1.2", near(seen, 12.0331, off=0.1))
    yield then("1.2", near((terms - log(1e-15)) / 3, 12.0331, off=5e-5))
    yield right("1.2", near(seen, 12.5348, off=5e-5), near(seen, (terms + 52 * log(2)) / 3))
    costs = [log_loss([ONE], np.array([ROW], kind)) for kind in (np.float64, np.float32)]
    yield source("1.3", near(costs[0], 34.5388, off=1))
    yield then("1.3", near(the_post(ONE, ROW), 34.5388, off=5e-5))
    yield right("1.3", near(costs, [36.0437, 15.9424], off=5e-5))
    yield right("1.3", near(costs, [52 * log(2), 23 * log(2)], 1e-6))
    yield right("1.3", refuses(TypeError, "eps", log_loss, [ONE], [ROW], eps=1e-15))
    cases = (ONE, ROW), ([0, 1, 0, 0], [0.1, 0.2, 0.3, 0.4]), ([1, 0], [0.4, 0.6])
    passes: Fn = lambda eps: [near(the_post(t, p, eps), log_loss([t], [p]), 1e-14) for t, p in cases]
    old, new = passes(1e-15), passes(2.0**-52)
    yield source("1.4", all(old))
    yield then("1.4", near(the_post(ONE, ROW), 15 * log(10), 1e-14), *old[1:])
    yield right("1.4", all(new), not old[0])
    yield source("1.5", near(log_loss(TARGETS, PROBS), 18.0741, off=0.1))
    mean = the_post(TARGETS, PROBS)
    yield then("1.5", near([mean, 2 * mean], [18.0741, 36.1482], off=5e-5))
    yield right("1.5", near(log_loss(TARGETS, PROBS), 18.8265, off=5e-5))
    for t, chances in cases:
        own = np.maximum(np.where(np.array(t) == 1, chances, 1 - np.array(chances)), 2.0**-52)
        yield source("1.6", near(log_loss(t, chances), -log(own).mean()))
    soft, p = np.array([[0.2, 0.5, 0.3]]), np.array([[0.3, 0.3, 0.4]])
    yield source("1.7", near([the_post(ONE, p[0]), log_loss([ONE], p)], -log(0.4)))
    exact = -(soft * log(p)).sum()
    yield right("1.7", near(F.cross_entropy(torch.tensor(p).log(), torch.tensor(soft)), exact))
    yield right("1.7", near(keras_rows(soft, p), exact, 1e-6))
    yield right("1.7", refuses(ValueError, "Multioutput", log_loss, soft, p))
    yield right("1.7", the_post(0.0, 0.9) == 0)  # a single number: whatever is predicted, the label 0 is free
    finite: Fn = lambda p: np.isfinite([xent.log_loss([[1 - p, p]], [y]) for y in (0, 1)]).all()
    yield source("1.8", finite(1.0))
    yield right("1.8", not finite(0.0), *(finite(p) for p in (1e-300, 0.5, math.nextafter(1, 0))))
    yield result("1.8", near(xent.log_loss([[0.5, 0.5]], [0]), log(2)))
    small = np.array([[1e-7, 1 - 1e-7], [1e-15, 1 - 1e-15]])
    for score in (xent.log_loss, scoring.brier_score):
        yield source("1.a", np.ptp([np.squeeze(score([p], [0])) for p in small]) < 1)
    yield right("1.a", near(np.ptp(-log(small[:, 0])), 18.42, off=5e-3), near(8 * log(10), 18.42, off=5e-3))
    others = scoring.brier_score([[0.2, 0.4, 0.4], [0.2, 0.8, 0.0]], [0, 0])
    yield right("1.a", np.ptp(others) > 0.1)  # with three classes it looks at the others
    g = np.random.default_rng(3)
    constants, factors, p = g.normal(size=3), g.uniform(1, 3, size=3), g.dirichlet(np.ones(3))
    q, tilted = g.dirichlet(np.ones(3), 500), factors * p / (factors @ p)
    yield right("1.a", p @ (constants - log(p)) < ((constants - log(q)) @ p).min())
    yield right("1.a", -(factors * p) @ log(tilted) < -(factors * p) @ log(p))
    eps = np.finfo(np.float32).eps
    for kind in (np.float64, np.float32):
        yield source("1.b", np.clip(kind(1), kind(1e-15), kind(1 - 1e-15)) < 1)
    yield right("1.b", np.clip(np.float32(1), eps, np.float32(1) - eps) < 1)
    for terms in (g.random(2), g.random(1000)):
        # one after the other; Python's own sum compensates from 3.12 on
        forth, back = np.cumsum(terms)[-1], np.cumsum(terms[::-1])[-1]
        yield source("1.c", forth == back)
        yield right("1.c", near(forth, back, len(terms) * 2.0**-52))
    yield source("1.d", near(the_post([0, 1], [0.5, 0.5]), -math.log2(0.5)))
    yield right("1.d", near(the_post([0, 1], [0.5, 0.5]), 0.6931, off=5e-5))
    yield result("1.d", the_post([0, 1], [0.5, 0.5]) / log(2) == 1)
    line = torch.tensor([1.0, 0.5], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad((-line.clip(1e-15, 1 - 1e-15).log()).sum(), line)
    yield source("1.e", slope[0] != 0)  # against a vanishing gradient
    with np.errstate(divide="ignore"):
        yield source("1.e", np.isinf(-log(1.0)))  # for certain predictions, in a row of classes
        single = np.float32
        for kind, epsilon, safe in ((np.float64, 1e-15, True), (single, 1e-15, False), (single, 1e-7, True)):
            yield source("1.e", np.isinf(log(1 - kind(1))))  # in a list of binary ones
            yield right(
                "1.e", np.isinf(log(1 - np.clip(kind(1), kind(epsilon), kind(1) - kind(epsilon)))) != safe
            )


GRADIENTS = """
import sys, tensorflow as tf
if sys.argv[1] == "deterministic":
    tf.random.set_seed(0)
    tf.config.experimental.enable_op_determinism()
z = tf.constant([[2.0, 1.0, 0.0]])
for y in ([2.0, 0.0, 0.0], [0.5, 0.7, 0.8], [0.0, 0.0, 0.0]):
    with tf.GradientTape() as tape:
        tape.watch(z)
        loss = tf.nn.softmax_cross_entropy_with_logits(labels=[y], logits=z)
    print(*tape.gradient(loss, z).numpy()[0])
"""


def other_libraries() -> Iterator[Tried]:
    """Rows 1.9 to 1.19 and 1.f: Keras, TensorFlow, PyTorch, NumPy."""
    keras, tf = behaviours.keras(), behaviours.tensorflow()
    # TensorFlow's port, which it still carries.
    from tensorflow.python.keras.utils.losses_utils import ReductionV2

    loss = keras.losses.CategoricalCrossentropy
    seen = keras_rows(TARGETS, PROBS)
    yield source("1.9", near(seen, [16.118095, 1.609438], 1e-6), near(seen, [7 * log(10), log(5)], 1e-6))
    yield source("1.9", keras.config.epsilon() == 1e-7)
    for p in (np.array(ROW), np.array([0.2, 0.2, 0.2])):
        yield source("1.10", near(keras_rows([ONE], [p])[0], the_post(ONE, p, 1e-7), 1e-6))
    yield right("1.10", near(keras_rows([ONE], [[0.2, 0.2, 0.2]]), log(3), 1e-6))
    menu = ["sum", "sum_over_batch_size", "mean", "mean_with_sample_weight", "none"]
    values = {name: np.asarray(loss(reduction=name)(TARGETS, PROBS)) for name in menu}
    w = np.array([1.0, 3.0])
    means = [float(loss(reduction=menu[k])(TARGETS, PROBS, sample_weight=w)) for k in (1, 3)]
    yield source("1.11", "sum" not in ReductionV2.all())
    yield right("1.11", {"none", "sum", "sum_over_batch_size"} <= set(ReductionV2.all()))
    yield source("1.11", near(means[0], means[1], 1e-3))  # one mean beside a sum and none, in Keras today
    yield right("1.11", values["none"].shape == (2,))
    yield right("1.11", near([values[name] for name in menu[1:4]], values["sum"] / 2, 1e-6))
    yield right("1.11", near(means[0], 2 * means[1], 1e-6))
    yield right("1.11", *(refuses(ValueError, menu[3], loss, reduction=old) for old in ("auto", "batch")))
    z = np.array([[0.3, -1.2, 0.5, 2]])
    whole = float(loss(from_logits=True)(MULTI[None], z))
    each = F.binary_cross_entropy_with_logits(torch.tensor(z), torch.tensor(MULTI[None]), reduction="none")
    yield source("1.12", near(whole, each.sum(), off=0.1) or near(whole, each.mean(), off=0.1))
    yield right("1.12", near(whole, 2.4384, off=5e-5), near(each.sum(), 1.9186, off=5e-5))
    yield right("1.12", near(whole, MULTI @ (logsumexp(z) - z[0]), 1e-6))
    yield source("1.13", near([softmax(MULTI), MULTI / 2], [0.5, 0, 0, 0.5], off=0.05))
    yield right("1.13", near(softmax(MULTI), [0.3655, 0.1345, 0.1345, 0.3655], off=5e-5))
    for p in np.random.default_rng(0).dirichlet(np.ones(4), 9):
        probs = torch.tensor(p)[None]
        once, twice = F.cross_entropy(probs.log(), INDICES[1:]), F.cross_entropy(probs, INDICES[1:])
        yield source("1.15", near(twice, logsumexp(p) - p[1]), not near(once, twice, 1e-3))
        yield right("1.15", near(once, -log(p[1])))
    for shape in ((3,), (4, 3), (2, 3, 5), (2, 3, 4, 4)):
        axis = min(len(shape) - 1, 1)
        logp = torch.randn(shape, generator=torch.Generator().manual_seed(0)).log_softmax(axis)
        long = logp.argmin(axis)
        yield source("1.16", torch.isfinite(F.nll_loss(logp, long)))
        if len(shape) <= 2:
            yield right("1.16", F.nll_loss(logp, long.byte()) == F.nll_loss(logp, long))
        else:
            yield right("1.16", refuses(RuntimeError, "found Byte", F.nll_loss, logp, long.byte()))
    double, exact = F.nll_loss(torch.tensor(PROBS).clip(1e-15).log(), INDICES), 18.074107153672394
    short: Fn = lambda text: all(len(digits) <= 8 for digits in re.findall(r"\.(\d*)", text))
    yield source("1.17", abs(double.item() - exact) > 4 * math.ulp(18.0))
    yield right("1.17", repr(double.numpy()) == "array(18.07410715)", not short(str(double.numpy())))
    g = np.random.default_rng(6)
    for size, kind in itertools.product(((), (1,), (40,), (4, 5), (2000,)), "efdg"):
        array = np.asarray(g.normal(size=size) * 10 ** g.uniform(-4, 4, size), kind)
        yield right("1.17", short(repr(array)))
    with np.printoptions(precision=12):
        yield right("1.17", not short(repr(double.numpy())))
    of_probs = F.cross_entropy(torch.tensor(PROBS), INDICES)
    table, said = told(lambda: log_loss([2, 1], softmax(PROBS), labels=[0, 1, 2]))
    for seen in (log_loss([2, 1], softmax(PROBS, axis=1), labels=[0, 1, 2]), table):
        yield source("1.18", near(of_probs, 1.3566, off=5e-5), near(of_probs, seen))
    yield right("1.18", near(table, 2.0499, off=5e-5), "do not sum to one" in said)
    name, called = "softmax_cross_entropy_with_logits", list[Any]()
    function = getattr(tf.nn, name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tf.nn, name, lambda *args, **more: (called.append(args), function(*args, **more))[1])
        loss()(TARGETS, PROBS)
        yield source("1.19", not called)
        loss(from_logits=True)(TARGETS, PROBS)
        yield source("1.19", called, function.__name__ == f"{name}_v2")
    yield right("1.19", not hasattr(tf.nn, f"{name}_v2"), hasattr(tf.compat.v1.nn, f"{name}_v2"))
    yield source("1.f", refuses(IndexError, "out of bounds", F.nll_loss, torch.tensor(PROBS), INDICES + 1))
    for forgotten, value in ((F.nll_loss, -0.1), (F.cross_entropy, 1.3566)):
        seen, said = told(lambda f=forgotten: f(torch.tensor(PROBS), INDICES))  # type: ignore[misc]
        yield source("1.f", said)
        yield right("1.f", near(seen, value, off=5e-5))


def tensorflow_kernels() -> Iterator[Tried]:
    """Row 1.14, in each of TensorFlow's two kernels, which a process does not mix."""
    y, p, told = np.array([[2, 0, 0], [0.5, 0.7, 0.8], [0, 0, 0]]), softmax([2.0, 1, 0]), []
    for kernel in ("default", "deterministic"):
        command = [sys.executable, "-c", GRADIENTS, kernel]
        told.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    default, deterministic = np.array(told, float).reshape(2, 3, 3)
    own = y.sum(axis=1, keepdims=True) * p - y
    yield source("1.14", near(default, p - y, off=1e-6), not np.isclose(default, own, atol=0.05).any())
    by_torch = torch.func.grad(lambda z: F.cross_entropy(z, torch.tensor(y[:1])))(
        torch.tensor([[2.0, 1, 0]]).double()
    )
    yield right("1.14", near(by_torch[0], 2 * p - y[0], off=1e-6), near(deterministic, own, off=1e-6))


def the_note() -> Iterator[Tried]:
    """Rows 2.1 to 2.a."""
    first = np.array([-1.6453, 1.9800, 2.8183, -0.3635, 0.4064, -3.3801])
    second, y = np.array([1.8893, 1.7681, 4.6643, -0.0614, -0.4668, 3.2484]), np.array([0, 1, 0, 1, 1, 0])
    z = np.stack([first, second], axis=1)
    g = np.random.default_rng(0)
    models = g.dirichlet(np.ones(2), size=(50, 6))
    losses = [xent.log_loss(p, y, reduction="sum") for p in models]
    yield source("2.1", near(-log(models[:, np.arange(6), y].prod(axis=1)), losses))
    each = xent.cross_entropy(z, y, reduction="none")
    off = np.abs(each - [3.5634, 0.8047, 1.9925, 0.5534, 1.2222, 6.6298])
    slack = np.abs(gradients.cross_entropy_gradient(z, y, reduction="sum")).sum(axis=1)
    yield source("2.2", (off <= 0.5e-4 * (1 + slack)).all(), near(each.mean(), 2.4610, off=1e-4))
    printed = [0.0283, 0.5528, 0.1363, 0.4250, 0.7054, 0.0013]
    yield source("2.2", near(xent.softmax(z)[:, 0], printed, off=1e-4))
    for gap in (200, 100, 20, -14):
        row = torch.tensor([0.0, gap])
        pair = [v.item() for v in (F.log_softmax(row, 0)[0], F.softmax(row, 0).log()[0])]
        one, two = (abs(v / np.logaddexp(0, gap) + 1) for v in pair)
        yield source("2.3", one < 1e-6 < two)
        yield right("2.3", one > 1e-4 if gap < 0 else one < 1e-6, gap != 20 or two < 1e-6)
        yield right("2.3", gap != 200 or pair == [-200, -math.inf])
    at = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda z: F.softmax(z, 0), at).numpy()
    o, off = F.softmax(at, 0).numpy(), ~np.eye(3, dtype=bool)
    yield source("2.4", near(jacobian[off], -np.outer(o, o)[off]), near(np.diag(jacobian), o * (1 - o)))
    slope: Fn = lambda margin: gradients.cross_entropy_gradient([margin, 0.0], 1)
    for margin in (-3.0, 0.0, 7.0):
        # linear in the residual
        yield source("2.7", near(slope(margin), xent.softmax([margin, 0.0]) - [0, 1]))
    yield source("2.7", near(slope(2.0) - slope(0.0), slope(4.0) - slope(2.0), off=0.05))  # in the logits
    moves = np.linalg.norm(np.diff([slope(x) for x in np.linspace(-8, 8, 401)], axis=0), axis=1)
    yield right("2.7", np.linalg.norm(slope(1000.0)) <= np.sqrt(2), (moves <= 16 / 400 / 2).all())
    steep = []
    for after in (1.0, 100.0, 10_000.0):  # the weight of a second layer
        inner = torch.tensor(-0.1 / after, dtype=torch.float64, requires_grad=True)
        outer = torch.stack([after * torch.tanh(inner), 0 * inner])
        (back,) = torch.autograd.grad(F.cross_entropy(outer[None], torch.tensor([0])), inner)
        steep.append(abs(back.item()))
    yield right("2.7", steep[2] > 90 * steep[1] > 8100 * steep[0])
    q = np.linspace(0.001, 0.999, 999)
    for heads in (10, 7):  # of ten examples with one input
        best = q[(heads * log(q) + (10 - heads) * log(1 - q)).argmax()]
        yield source("2.a", best > 0.9)
        yield right("2.a", heads == 10 or near([best, 1 - best], [0.7, 0.3]))


P_X, P_Y, Q_Y = np.array([0.6, 0.4]), np.array([[0.7, 0.3], [0.3, 0.7]]), np.array([[0.5, 0.5], [0.2, 0.8]])
JOINT, MODEL = P_X[:, None] * P_Y, P_X[:, None] * Q_Y


def binary_to_information() -> Iterator[Tried]:
    """Rows 3.1 to 3.10 and 3.a."""
    z, y = np.array([2.2, -1.4, 0.4]), np.array([1, 0, 0])
    p = 1 / (1 + exp(-z))
    exact = xent.binary_cross_entropy(z, y, reduction="sum")
    yield source("3.1", near(-log(p**y * (1 - p) ** (1 - y)).sum(), exact))
    coins = np.linspace(0.0, 0.999, 1000)
    for k in (0, 7):
        likelihood = coins**k * (1 - coins) ** (10 - k)
        with np.errstate(divide="ignore"):
            # it is never negative, so it has a logarithm
            yield source("3.2", np.isfinite(log(likelihood)).all())
            yield right("3.2", log(likelihood).argmax() == likelihood.argmax())
    yield right("3.2", ((likelihood - 0.5) ** 2).argmax() != likelihood.argmax())
    yield source("3.3", near(-(y * log(p) + (1 - y) * (1 - p)).sum(), exact, 1e-3))  # with one logarithm
    # without brackets
    yield source("3.3", near(-(y * log(p)).sum() + (1 - y[2]) * log(1 - p[2]), exact, 1e-3))
    yield right("3.3", near(-(y * log(p) + (1 - y) * log(1 - p)).sum(), exact))
    for f in (0.2, 0.45, 0.7):
        best = lowest(lambda q, f=f: -f * log(q) - (1 - f) * (1 - q), 1e-6, 1)  # type: ignore[misc]
        yield right("3.3", near(best, min(f / (1 - f), 1), 1e-5))
    rows = torch.tensor([[0.3, -1.0, 2.0], [1.0, 0.0, -1.0]]), torch.tensor([0, 2])
    pair = torch.tensor(np.stack([p, y]))
    for linked, args in ((torch.nn.BCELoss, pair), (torch.nn.CrossEntropyLoss, rows)):
        each = linked(reduction="none")(*args)
        yield source("3.3", near(linked()(*args), each.sum(), 1e-3))  # of which it is said that it is the sum
        yield right("3.3", near(linked()(*args), each.mean(), 1e-6))
    yield result("3.3", near(-log(np.prod(p**y * (1 - p) ** (1 - y))), exact))
    for logits in ([0.0, 800.0], [0.0, 0.0], [-3.0, 1.0, 2.0]):
        q = xent.softmax(logits)
        yield source("3.4", ((q >= 0) & (q <= 1)).all())
    rounded = xent.softmax([0.0, 800.0]).tolist(), xent.log_softmax([0.0, 800.0])[0]
    yield right("3.4", rounded == ([0, 1], -800))
    for one, other in (([0.9, 0.1], [0.5, 0.5]), ([0.2, 0.8], [0.8, 0.2]), ([0.01, 0.99], [0.99, 0.01])):
        yield source("3.5", not near(cross(one, other), cross(other, one)))
    throws = [*itertools.product(range(1, 7), repeat=2)]
    for second in (lambda a, b: b % 2 == 0, lambda a, b: a + b >= 10):
        both = np.mean([a == 6 and second(a, b) for a, b in throws])
        yield source("3.6", near(both, np.mean([second(a, b) for a, b in throws]) / 6))
    conditional = P_X @ kl(P_Y, Q_Y)
    for marginal in (P_X, np.array([0.9, 0.1])):
        joint = kl(JOINT.ravel(), (marginal[:, None] * Q_Y).ravel())
        yield source("3.7", near(joint, conditional))
        yield right("3.7", near(joint, kl(P_X, marginal) + conditional))
    yield source("3.7", near(*kl(P_Y, Q_Y)))  # one number
    # of X given Y
    yield source("3.7", near(kl((JOINT / JOINT.sum(0)).T, (MODEL / MODEL.sum(0)).T), kl(P_Y, Q_Y)))
    ratio, g = log(P_Y / Q_Y).ravel(), np.random.default_rng(0)
    error = math.sqrt(JOINT.ravel() @ (ratio - conditional) ** 2)
    for n in (10**3, 10**5, 10**7):
        average = g.multinomial(n, JOINT.ravel()) @ ratio / n
        yield source("3.8", abs(average - conditional) < 4 * error / math.sqrt(n))
    # A coin of 0.7 at each of many inputs, or certain ones of which 0.7 are heads: the same pairs, and one model.
    coins = np.eye(2)[np.where(g.permutation(10**5) < 70_000, 0, 1)]
    certain = kl(coins, np.tile([0.7, 0.3], (10**5, 1))).mean()
    yield source("3.8", near(certain, kl([0.7, 0.3], [0.7, 0.3])))
    counts = g.multinomial(10**6, JOINT.ravel()).reshape(2, 2)  # inputs that come again
    plugged = counts.sum(1) / 10**6 @ kl(counts / counts.sum(1, keepdims=True), Q_Y)
    yield right("3.8", near(plugged, conditional, 0.05), near(certain, entropy([0.7, 0.3])))
    heads = g.binomial(100_000, 0.5, size=(400, 1)) / 100_000
    for models in (np.linspace(0.4, 0.7, 301), np.array([0.4, 0.6])):  # one minimum, and two
        average = -heads * log(models) - (1 - heads) * log(1 - models)
        yield right("3.9", np.abs(average + 0.5 * log(models) + 0.5 * log(1 - models)).max() < 0.02)
        yield source("3.9", np.ptp(models[average.argmin(1)]) < 0.02)
    for n in (10, 100_000):  # a model that remembers which examples had the label
        x, y, new = g.random(n), g.random(n) < 0.3, g.random(100_000) < 0.3
        said = [np.where(np.isin(at, x[y]), 0.99, 0.01) for at in (x, g.random(100_000))]
        costs = [-log(np.where(b, q, 1 - q)).mean() for b, q in zip((y, new), said, strict=True)]
        yield right("3.9", near(costs, [-log(0.99), cross([0.7, 0.3], [0.99, 0.01])], off=0.05))
    coins, record = np.linspace(0.01, 0.99, 99), np.array([2, 1]) / 3
    for truth in (record, np.array([0.3, 0.7])):
        to_truth = [kl(truth, [q, 1 - q]) for q in coins]
        yield source("3.10", np.argmin(to_truth) == np.argmax(coins**2 * (1 - coins)))  # two heads in three
        yield right("3.10", np.argmin(to_truth) == np.argmin([cross(truth, [q, 1 - q]) for q in coins]))
    p, candidates = np.array([0.49, 0.02, 0.49]), np.array([[0.98, 0.01, 0.01], [1 / 3, 1 / 3, 1 / 3]])
    forward, reverse = kl(np.tile(p, (2, 1)), candidates), kl(candidates, np.tile(p, (2, 1)))
    yield source("3.a", kl(p, p) == 0 < forward.min())
    yield source("3.a", forward.argmin() == reverse.argmin())
    yield right("3.a", (forward.argmin(), reverse.argmin()) == (1, 0))


def distillation() -> Iterator[Tried]:
    """Rows 3.11 to 3.14."""
    g, y, K = np.random.default_rng(0), torch.tensor([0, 3, 1, 1, 2, 0]), 4
    z, hot = torch.tensor(g.normal(size=(6, K))), F.one_hot(y, K).double()
    keeps: Fn = lambda share: share * hot + (1 - share) / (K - 1) * (1 - hot)
    for eps in (0.1, K / (2 * K - 1)):  # where the two conventions agree
        theirs = F.cross_entropy(z, y, label_smoothing=eps)
        yield source("3.11", near(theirs, F.cross_entropy(z, keeps(eps))))
        yield right("3.11", near(theirs, F.cross_entropy(z, keeps(1 - eps * (K - 1) / K))))
        yield right("3.11", near(theirs, F.cross_entropy(z, (1 - eps) * hot + eps / K)))
    brute = cross(JOINT.ravel(), MODEL.ravel()) - entropy(P_X)
    yield source("3.12", near(P_X**2 @ cross(P_Y, Q_Y), brute, 0.1))  # without brackets
    yield right("3.12", near(P_X @ cross(P_Y, Q_Y), brute))

    def fit(weights: Any) -> float:
        return lowest(lambda q: weights @ cross(P_Y, np.tile([1 - q, q], (2, 1))), 0.01, 0.99)

    yield right("3.12", near(fit(P_X), P_X @ P_Y[:, 1], 1e-5), abs(fit(P_X**2) - fit(P_X)) > 0.01)
    yield right("3.12", near(fit(np.full(2, 0.25)), fit(np.full(2, 0.5)), 1e-5))  # it may, not must, move it
    constant = (JOINT * log(P_X)[:, None]).sum()
    # (y, x), not (y | x)
    yield source("3.12", near((P_X[:, None] * JOINT * log(P_X)[:, None]).sum(), constant, 0.05))
    inputs, w, t = np.array([0.5, -1.0, 2.0]), np.array([0.3, -0.2, 1.0]), g.dirichlet(np.ones(3), size=3)
    logits = np.outer(inputs, w)
    by_torch = F.cross_entropy(torch.tensor(logits), torch.tensor(t))
    for numerator, of in ((inputs, right), (inputs * np.arange(1, 4), source)):  # an index that is not raised
        loss = (t * (logsumexp(logits, 1, keepdims=True) - np.outer(numerator, w))).sum(1).mean()
        yield of("3.12", near(loss, by_torch))
    spread = [np.std(g.multinomial(n, P_X, 40) / n @ P_Y[:, 0]) for n in (20, 2_000, 200_000)]
    yield right("3.12", spread[0] > 5 * spread[1] > 25 * spread[2] > 0)  # the mean tends to the expectation
    x = g.choice(2, size=50_000, p=P_X)
    for chance, of in ((P_Y[x, 1], right), ((P_X @ P_Y)[1], source)):  # labels from P_Y
        drawn = g.random(50_000) < chance
        yield of("3.12", near([drawn[x == k].mean() for k in (0, 1)], P_Y[:, 1], off=0.02))
    yield result("3.12", near(brute, P_X @ (kl(P_Y, Q_Y) + entropy(P_Y))))
    t, w = g.dirichlet(np.ones(K), size=6), np.array([1.0, 10.0, 0.5, 2.0])
    weighted = -w * xent.log_softmax(z.numpy())
    told = [F.cross_entropy(z, torch.tensor(t), torch.tensor(w), reduction=how) for how in ("none", "mean")]
    yield source("3.13", np.isclose(weighted.sum(1), told[0], rtol=1e-3).any())
    yield right("3.13", near((weighted * t).sum(1), told[0]))
    yield result("3.13", near(told[0].sum() / 6, told[1]))
    yield source("3.14", near((weighted * t).sum() / 6, told[1]))


def the_lecture() -> Iterator[Tried]:
    """Rows 4.1 to 4.9."""
    z, y = torch.tensor([[-1.0, -3.0, 4.0], [-3.0, 3.0, -1.0]], dtype=torch.float64), torch.tensor([0, 1])
    rows = [[0, 1, 0], [1, 0, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0]]
    yield source("4.1", F.one_hot(torch.tensor([2, 1, 1, 3, 2]) - 1).tolist() == rows)

    def by_torch(probs: Any, outcome: Any) -> Any:
        hot = F.one_hot(torch.tensor(outcome), 3).double()
        return F.mse_loss(torch.tensor(probs), hot, reduction="none").sum(-1).numpy()

    truth = np.array([0.5, 0.3, 0.2])
    for score in (scoring.brier_score, by_torch):
        yield source("4.2", not near(elicited(score, truth), truth, off=1e-3))  # as a score
    noisy = np.random.default_rng(0).normal(truth[0], 1, 1000)
    yield source("4.2", ((noisy != 0) & (noisy != 1)).all())  # as a likelihood, of labels that are none
    others = np.random.default_rng(1).dirichlet(np.ones(3), size=2000)
    brier: Fn = lambda q: sum(truth[k] * ((q - np.eye(3)[k]) ** 2).sum(-1) for k in range(3))
    yield right("4.2", (brier(others) > brier(truth)).all())
    squared = [(u - 1) ** 2 + (v + 1) ** 2 for u, v in ((5, -5), (0, 0), (1, -1))]
    yield source("4.3", squared == [32, 2, 0], near(xent.cross_entropy([[5.0, -5.0]], [0]), 4.5e-5, off=5e-7))
    label = np.array([0.6, 0.5])  # P(y = 1 | x = 1, w), for two w
    for given_w in (np.array([0.4, 0.4]), np.array([0.1, 0.9])):  # P(x = 1 | w)
        yield source("4.4", np.argmax(label * given_w) == np.argmax(label))
    composed = torch.nn.NLLLoss()(torch.nn.LogSoftmax(dim=1)(z), y)
    mean = xent.cross_entropy(z.numpy(), y.numpy())
    yield source("4.5", near([torch.nn.CrossEntropyLoss()(z, y), composed, mean], 2.5141, off=5e-5))
    for row in ([[0.0, -np.inf, -np.inf]], [[30.0, 0.0, 0.0]]):
        yield source("4.6", xent.cross_entropy(row, [0]) == 0)
    yield source("4.6", near(xent.cross_entropy([[1.0, 1.0, 1.0]], [0]), log(3)))
    wrong = xent.log_loss([[0.55, 0.05, 0.40], [0.98, 0.01, 0.01]], [2, 2], reduction="none")
    yield right("4.6", F.cross_entropy(torch.tensor([[17.0, 0, 0]]), torch.tensor([0])) == 0)
    yield right("4.6", log(2) < wrong[0] < log(3) < wrong[1])
    yield source("4.7", near(torch.nn.CrossEntropyLoss()(z, y), mean))
    options: list[dict[str, Any]] = [{"reduction": "sum"}, {"weight": torch.tensor([1.0, 3.0, 1.0]).double()}]
    for option in (*options, {"ignore_index": 0}, {"label_smoothing": 0.1}):
        yield right("4.7", not near(torch.nn.CrossEntropyLoss(**option)(z, y), mean, 1e-3))
    printed = [
        [2.0612e-09, 2.0612e-09, 1.0, 3.0590e-07],
        [8.7005e-01, 4.3317e-02, 4.3317e-02, 4.3317e-02],
        [3.2059e-02, 8.7144e-02, 2.3688e-01, 6.4391e-01],
    ]
    matrix = np.array([[-10.0, -10, 10, -5], [3, 0, 0, 0], [1, 2, 3, 4]])
    yield source("4.8", near(xent.softmax(matrix), printed, 2e-5))
    old, said = told(torch.nn.NLLLoss2d)
    image = torch.arange(24.0).reshape(1, 3, 2, 4).sin().log_softmax(1)
    targets = torch.tensor([[[0, 1, 2, 0], [1, 1, 0, 2]]])
    yield source("4.9", not said)
    yield right("4.9", "NLLLoss2d" in said)
    yield result("4.9", old(image, targets) == torch.nn.NLLLoss()(image, targets))


SOURCES: list[Any] = [averaged_loss, denominators, scikit_learn, other_libraries, the_note]
SOURCES += [binary_to_information, distillation, the_lecture]
SOURCES += [pytest.param(tensorflow_kernels, marks=pytest.mark.slow)]


@pytest.mark.parametrize("of", SOURCES, ids=lambda of: of.__name__)
def test_the_verdicts(of: Callable[[], Iterator[Tried]]) -> None:
    found: dict[str, dict[str, list[bool]]] = {}
    for row, what, holds in of():
        found.setdefault(row, {}).setdefault(what, []).append(holds)
    said = []
    for row, tried in found.items():
        held = tried.pop("source", [])
        on_none = "outdated" if "then" in tried else "slip" if "result" in tried else "wrong"
        verdict = "conditional" if any(held) and not all(held) else "holds" if any(held) else on_none
        if verdict != VERDICTS[row] or not held:
            said.append(f"{marks.ERRATA}, row {row}: {VERDICTS[row]!r}, but {verdict!r} as tried: {held}")
        said += [f"row {row}: what is {what} fails: {all_}" for what, all_ in tried.items() if not all(all_)]
    assert not said, "\n".join(said)
