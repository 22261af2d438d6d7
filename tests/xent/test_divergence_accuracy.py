"""The promise of digits for divergences, arrays and tensors, on every kind of pair that rounding could hurt.

Over this sweep the relative error is at most (8 + margin) epsilons of the dtype that is computed in: the margin is the
largest difference between two logits of a row, over the temperature, since a probability is an exponential whose
argument is rounded at that size. Neither how close the rows are nor how far one lies above the other enters. Below the
smallest normal number, over an epsilon, there are no digits to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mpmath as mp
import numpy as np
import pytest
import torch

import xent.torch
from adversary import refuted, rng
from xent.distillation import distillation_loss

Loss = Callable[..., float]


def exact(z: np.ndarray, v: np.ndarray, T: float, direction: str, beta: float) -> Any:
    """The divergence, times T^2, with digits enough for the least probability."""
    margin = max(float(np.ptp(x[np.isfinite(x)])) for x in (z, v)) / T
    with mp.workdps(60 + int(3 * margin)):
        logs = []
        for row in (v, z):
            u = [mp.mpf(float(x)) / mp.mpf(T) for x in row]
            total = mp.log(mp.fsum(map(mp.exp, u)))
            logs.append([x - total for x in u])
        kl = lambda a, b: mp.fsum(mp.exp(x) * (x - y) for x, y in zip(a, b, strict=True) if mp.isfinite(x))  # noqa: E731
        p, q = logs
        m = [mp.log(beta * mp.exp(x) + (1 - mp.mpf(beta)) * mp.exp(y)) for x, y in zip(p, q, strict=True)]
        found = {"forward": (p, q, 1), "reverse": (q, p, 1)}.get(direction)
        value = kl(*found[:2]) if found else beta * kl(p, m) + (1 - mp.mpf(beta)) * kl(q, m)
        return value * mp.mpf(T) ** 2


def pairs(g: np.random.Generator, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Students and teachers: independent, close, sharper, close but for classes that are far, one class apart."""
    yield np.array([0.0, -6.0]), np.array([0.0, -25.0])
    yield np.array([0.0, -6.0]), np.array([0.0, -60.0])
    for number in range(count):
        K = int(g.choice([2, 2, 3, 7, 40]))
        z = g.normal(size=K) * 10 ** g.uniform(-1, 2)
        noise = g.normal(size=K) * 10 ** g.uniform(-7, 0)
        v = [
            g.normal(size=K) * 10 ** g.uniform(-1, 2),
            z + noise,
            z * 10 ** g.uniform(-0.5, 1),
            z + noise,
            z + noise,
        ]
        v = v[number % 5]
        if number % 5 == 3:
            v = np.where(z < z.max() - g.uniform(3, 20), v - g.exponential(size=K) * g.choice([-9, 30]), v)
        if number % 5 == 4:
            v[g.integers(K)] += g.normal()
        v = v + g.choice([0.0, 0.0, 1.0]) * g.normal() * 10 ** g.uniform(0, 3)
        if K > 2 and g.random() < 0.2:
            z[g.integers(K)] = -np.inf
            v = np.where(np.isneginf(z), -np.inf, v)
        yield z, v


def on_tensors(z: np.ndarray, v: np.ndarray, **options: Any) -> float:
    return float(xent.torch.distillation_loss(torch.tensor(z[None]), torch.tensor(v[None]), **options))


def in_plain_operations(z: np.ndarray, v: np.ndarray, **options: Any) -> float:
    """As `torch.func`, `torch.compile` and `mixed_loss` have it."""
    labels = torch.zeros(1, dtype=torch.long)
    return float(
        xent.torch.mixed_loss(torch.tensor(z[None]), torch.tensor(v[None]), labels, alpha=1.0, **options)
    )


def on_arrays(z: np.ndarray, v: np.ndarray, **options: Any) -> float:
    return float(distillation_loss(z[None], v[None], **options))


def by_linear_layers(z: np.ndarray, v: np.ndarray, **options: Any) -> float:
    layer = torch.eye(len(z), dtype=torch.tensor(z).dtype)
    rows = torch.tensor(z[None]), layer, torch.tensor(v[None]), layer
    return float(xent.torch.linear_distillation_loss(*rows, **options))


def says(loss: Loss, dtype: str, count: int, of: Callable[[Any, Any], Any] = lambda value, e: value) -> None:
    """`of` takes the true value, before T^2, and (8 + margin) epsilons to what these are of."""
    limits = np.finfo(dtype)
    g = rng(24)
    for z, v in pairs(g, count):
        z, v = z.astype(dtype), v.astype(dtype)
        if loss is by_linear_layers and np.isneginf(z).any():
            continue  # no product is infinite
        T = float(g.choice([1.0, 1.0, 0.5, 2.0, 7.0]))
        margin = max(float(np.ptp(x[np.isfinite(x)])) for x in (z, v)) / T
        for direction, beta in (
            ("forward", 0.5),
            ("reverse", 0.5),
            *(("jsd", b) for b in (0.5, 0.01, 0.999)),
        ):
            options = {"temperature": T, "direction": direction, "beta": beta}
            true = exact(z, v, T, direction, beta)
            if true > limits.tiny / limits.eps:
                e = (8 + margin) * float(limits.eps)
                allowed = e * of(true / T**2, e) * T**2
                share = abs(loss(z, v, **options) - true) / allowed
                assert share <= 1, f"{float(share):.3g} times what it may be off: {z}, {v}, {options}"


@pytest.mark.parametrize(
    ("loss", "dtype"),
    [
        *((loss, dtype) for loss in (on_tensors, in_plain_operations) for dtype in ("float32", "float64")),
        (on_arrays, "float64"),
    ],
)
def test_a_divergence_keeps_its_digits_for_every_pair_of_rows(loss: Loss, dtype: str) -> None:
    says(loss, dtype, 60)


@pytest.mark.parametrize("direction", ["forward", "reverse", "jsd"])
def test_rows_that_agree_but_lie_far_apart_keep_their_digits_on_tensors(direction: Any) -> None:
    z = np.array([-8.765526, -8.427006], dtype=np.float32)
    v = np.array([-0.10318165, 0.2353384], dtype=np.float32)
    true = exact(z, v, 100.0, direction, 0.5)
    found = on_tensors(z, v, temperature=100.0, direction=direction)
    assert abs(found - true) <= 9 * 2.0**-23 * true


def test_elsewhere_the_error_is_a_few_times_that() -> None:
    """Would be refuted by a pair off by ten times as much; the first two are off by more than the sweep's."""
    g = rng(26)
    pairs_ = [(([-2.50187206, 0.07559148], [-4.52355546, -1.82940399]), 0.1)]
    pairs_ += [(([-19.95070474, 0.11746733], [-13.9644153, 5.73343281]), 0.3)]
    for _ in range(150):  # one class far below in both, by log-probabilities about one apart
        T, K = float(g.choice([0.1, 0.7, 1.0, 3.0])), int(g.choice([2, 2, 3]))
        z = g.normal(size=K) - g.uniform(1, 60) * np.eye(K)[0]
        pairs_.append(((T * z, T * (z + g.uniform(0.5, 2) * np.eye(K)[0])), T))
    worst = 0.0
    for (z, v), T in ((tuple(map(np.asarray, rows)), T) for rows, T in pairs_):
        e = (8 + max(float(np.ptp(x)) for x in (z, v)) / T) * 2.0**-52
        for direction in ("forward", "reverse", "jsd"):
            true = exact(z, v, T, direction, 0.5)
            found = on_arrays(z, v, temperature=T, direction=direction, beta=0.5)
            worst = max(worst, float(abs(found - true) / true / e))
    assert worst <= 10
    with refuted("the promise of the sweep, everywhere"):
        assert worst <= 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_linear_layers_keep_half_of_the_digits_of_a_small_divergence(dtype: str) -> None:
    says(by_linear_layers, dtype, 60, lambda value, e: value + mp.sqrt(value) + e)
    with refuted("the promise of the logits' own loss"):
        says(by_linear_layers, dtype, 60)


@pytest.mark.parametrize("direction", ["forward", "reverse", "jsd"])
def test_nor_do_many_classes_lose_more(direction: Any) -> None:
    """Their log-probabilities are rounded by so much that a loss below its square has no digit left."""
    worst = 0.0
    g, none = rng(25), (torch.zeros(1, 1), torch.zeros(50_000, 1))
    for distance in (1e-8, 1e-7, 1e-6, 1e-4):
        z = torch.tensor(0.1 * g.normal(size=50_000), dtype=torch.float32)
        v = z + torch.tensor(distance * g.normal(size=50_000), dtype=torch.float32)
        e = (8 + max(float(x.max() - x.min()) for x in (z, v))) * 2.0**-23
        true = float(xent.torch.distillation_loss(z[None].double(), v[None].double(), direction=direction))
        heads = {"student_bias": z, "teacher_bias": v, "direction": direction}
        off = abs(float(xent.torch.linear_distillation_loss(*none, *none, **heads)) - true)
        assert off <= e * (true + true**0.5 + e)
        worst = max(worst, off / (e * (true + true**0.5)))
    if direction != "jsd":
        with refuted("L + sqrt(L) alone"):
            assert worst <= 1


def test_a_difference_of_two_sums_does_not_keep_them() -> None:
    def difference(z: np.ndarray, v: np.ndarray, *, temperature: float, direction: str, beta: float) -> float:
        log_q, log_p = (np.log(xent.softmax(x / temperature)) for x in (z, v))
        return float(np.exp(log_p) @ log_p - np.exp(log_p) @ log_q) * temperature**2

    with refuted("cross-entropy less entropy"), np.errstate(all="ignore"):
        says(difference, "float64", 10)
