"""`xent.distillation` against mpmath, the closed forms, and what a top k can and cannot determine."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.optimize import minimize

import xent
from xent.distillation import (
    distillation_gradient,
    distillation_loss,
    mixed_loss,
    sample_targets,
    sampled_loss,
    top_k_loss,
)

INF, NAN = math.inf, math.nan
P4 = np.array([0.5, 0.3, 0.15, 0.05])


def logits(seed: int, shape: tuple[int, ...] = (6, 5), spread: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape) * spread, rng.normal(size=shape) * spread


def exact_divergence(
    student: np.ndarray, teacher: np.ndarray, temperature: float, forward: bool
) -> mpmath.mpf:
    with mpmath.workdps(80):
        t = mpmath.mpf(float(temperature))
        logs = []
        for row in (teacher, student) if forward else (student, teacher):
            u = [mpmath.mpf(float(x)) / t for x in row]
            total = mpmath.log(mpmath.fsum(mpmath.exp(x) for x in u))
            logs.append([x - total for x in u])
        a, b = logs
        return mpmath.fsum(mpmath.exp(x) * (x - y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("temperature", [0.05, 0.5, 1.0, 4.0, 100.0, 1e6, 1e12])
def test_the_loss_keeps_its_digits_at_every_temperature(temperature: float, forward: bool) -> None:
    direction: Any = "forward" if forward else "reverse"
    for seed in range(6):
        z, v = logits(seed)
        if seed >= 4:
            v = z + 1e-7 * v  # nearly agreed
        observed = distillation_loss(z, v, temperature=temperature, direction=direction, reduction="none")
        plain = distillation_loss(
            z, v, temperature=temperature, direction=direction, scale="none", reduction="none"
        )
        expected = [exact_divergence(a, b, temperature, forward) for a, b in zip(z, v, strict=True)]
        np.testing.assert_allclose(plain, [float(e) for e in expected], rtol=2e-12)
        scaled = [float(e * mpmath.mpf(temperature) ** 2) for e in expected]
        np.testing.assert_allclose(observed, scaled, rtol=2e-12)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0, 1e8])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("scale", ["t_squared", "none"])
def test_the_gradient_is_the_derivative_of_the_exact_loss(
    temperature: float, direction: Any, scale: Any
) -> None:
    z, v = logits(1, (3, 4))
    observed = distillation_gradient(z, v, temperature=temperature, direction=direction, scale=scale)
    factor = temperature**2 if scale == "t_squared" else 1.0
    expected = np.empty_like(z)
    with mpmath.workdps(80):
        h = mpmath.mpf(10) ** -20
        for i in range(3):
            for k in range(4):

                def loss(x: Any, i: int = i, k: int = k) -> Any:
                    row = [mpmath.mpf(float(u)) for u in z[i]]
                    row[k] = x
                    logs = []
                    for values in (v[i], row) if direction == "forward" else (row, v[i]):
                        u = [mpmath.mpf(w) / mpmath.mpf(temperature) for w in values]
                        total = mpmath.log(mpmath.fsum(map(mpmath.exp, u)))
                        logs.append([w - total for w in u])
                    return mpmath.fsum(mpmath.exp(a) * (a - b) for a, b in zip(*logs, strict=True))

                at = mpmath.mpf(float(z[i, k]))
                expected[i, k] = float(mpmath.mpf(factor) * (loss(at + h) - loss(at - h)) / (2 * h) / 3)
    np.testing.assert_allclose(observed, expected, rtol=1e-11)


def test_forward_at_one_is_soft_cross_entropy_less_the_entropy() -> None:
    z, v = logits(2)
    p = xent.softmax(v)
    expected = xent.soft_cross_entropy(z, p) - xent.information.entropy(p).mean()
    assert distillation_loss(z, v) == pytest.approx(expected, rel=1e-12)


def test_the_limit_of_a_high_temperature_is_reached_like_one_over_t() -> None:
    z, v = logits(3, (1, 6), 1.0)
    d = z - v
    centred = d - d.mean()
    limits = (float((centred**2).sum() / 12), centred / 6)
    for direction in ("forward", "reverse"):
        errors = []
        for t in (1e3, 1e4, 1e5):
            loss = distillation_loss(z, v, temperature=t, direction=direction)  # type: ignore[arg-type]
            gradient = distillation_gradient(z, v, temperature=t, direction=direction)  # type: ignore[arg-type]
            errors.append([abs(loss - limits[0]), np.abs(gradient - limits[1]).max()])
        ratios = np.array(errors)[:-1] / np.array(errors)[1:]
        np.testing.assert_allclose(ratios, 10, rtol=0.02)


def test_infinities() -> None:
    assert distillation_loss([[0.0, -INF]], [[2.0, -INF]]) == 0
    assert distillation_loss([[0.0, -INF]], [[0.0, 0.0]]) == INF
    assert distillation_loss([[0.0, 0.0]], [[0.0, -INF]]) == pytest.approx(math.log(2), rel=1e-15)
    assert distillation_loss([[0.0, 0.0]], [[0.0, -INF]], direction="reverse") == INF
    np.testing.assert_array_equal(distillation_gradient([[0.0, -INF]], [[0.0, 0.0]]), [[0.5, -0.5]])
    assert np.isnan(distillation_gradient([[0.0, 0.0]], [[0.0, -INF]], direction="reverse")).all()
    assert distillation_loss([[1e300, 0.0]], [[1e300, 0.0]], temperature=1e-9) == 0


def test_never_negative_and_zero_when_equal() -> None:
    z, v = logits(4, (500, 7), 30.0)
    for direction in ("forward", "reverse"):
        assert (distillation_loss(z, v, direction=direction, reduction="none") >= 0).all()  # type: ignore[arg-type]
        assert distillation_loss(z, z + 3.0, direction=direction) < 1e-25  # type: ignore[arg-type]
        assert distillation_loss(z, z, direction=direction) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("function", [distillation_loss, distillation_gradient])
def test_axis_weight_and_denominator(axis: int, function: Any) -> None:
    z, v = logits(5, (3, 4, 2))
    z2, v2 = np.moveaxis(z, -1, axis), np.moveaxis(v, -1, axis)
    w = np.random.default_rng(0).random((3, 4))
    gradient = function is distillation_gradient
    each = function(z, v, reduction="none", direction="reverse")
    total = each * (w[..., None] if gradient else w)
    total = total if gradient else total.sum()
    moved = np.moveaxis(total, -1, axis) if gradient else total
    for extra, divisor in (({}, w.sum()), ({"denominator": 2.5}, 2.5), ({"reduction": "sum"}, 1.0)):
        observed = function(z2, v2, axis=axis, weight=w, direction="reverse", **extra)
        np.testing.assert_allclose(observed, moved / divisor, rtol=1e-12)


def test_rows_of_weight_zero_may_hold_anything() -> None:
    z, v = logits(6, (3, 4))
    expected = distillation_loss(z[:2], v[:2])
    z[2], v[2] = NAN, INF
    assert distillation_loss(z, v, weight=[1, 1, 0]) == pytest.approx(expected, rel=1e-14)
    assert (distillation_gradient(z, v, weight=[1, 1, 0])[2] == 0).all()
    with pytest.raises(ValueError, match=r"student_logits: expected numbers, got nan at index \(2, 0\)"):
        distillation_loss(z, v)


def test_blocks_do_not_show() -> None:
    z, v = logits(7, (3000, 50))
    one = [distillation_loss(z[i], v[i], temperature=2.0, reduction="none") for i in range(0, 3000, 250)]
    np.testing.assert_array_equal(distillation_loss(z, v, temperature=2.0, reduction="none")[::250], one)


def test_dtypes() -> None:
    z, v = logits(8)
    expected = distillation_loss(z, v)
    for dtype in (np.float16, np.float32):
        loss = distillation_loss(z.astype(dtype), v.astype(dtype))
        assert loss.dtype == np.float32
        assert loss == pytest.approx(expected, rel=10 * float(np.finfo(dtype).eps))
    assert distillation_loss(z.astype(np.float32), v).dtype == np.float64


@pytest.mark.parametrize("settings", [{}, {"scale": "none"}, {"direction": "reverse"}], ids=str)
def test_the_mixture_and_its_ignored_rows(settings: dict[str, Any]) -> None:
    z, v = logits(9, (4, 3))
    settings = {"temperature": 3.0, **settings}
    y = np.array([0, 2, -100, 1])
    keep = y != -100
    hard = xent.cross_entropy(z[keep], y[keep])
    soft = distillation_loss(z[keep], v[keep], **settings)
    z[2] = NAN
    for alpha in (0.0, 0.25, 1.0):
        observed = mixed_loss(z, v, y, alpha=alpha, ignore_index=-100, **settings)
        assert observed == pytest.approx((1 - alpha) * hard + alpha * soft, rel=1e-13)
        total = mixed_loss(z, v, y, alpha=alpha, ignore_index=-100, denominator=7.0, **settings)
        assert total == pytest.approx(observed * 3 / 7, rel=1e-13)
    # A part without weight costs nothing, also where it would be infinite.
    assert mixed_loss([[0.0, -INF]], [[0.0, 0.0]], [0], alpha=0.0) == 0
    assert mixed_loss([[0.0, -INF]], [[0.0, -INF]], [1], alpha=1.0) == 0


def minimum(treatment: Any) -> np.ndarray:
    top, at = np.log(P4[:2]), [0, 1]
    result = minimize(
        lambda z: top_k_loss(np.append(z, 0.0), top, at, treatment=treatment), np.zeros(3), tol=1e-14
    )
    return xent.softmax(np.append(result.x, 0.0))


def test_what_a_top_k_determines() -> None:
    for treatment in ("truncated", "renormalised"):
        np.testing.assert_allclose(minimum(treatment), [0.625, 0.375, 0, 0], atol=1e-4)
    q = minimum("tail")
    np.testing.assert_allclose([q[0], q[1], q[2] + q[3]], [0.5, 0.3, 0.2], atol=1e-5)
    # Renormalising both sides leaves the tail free: each of these is a minimum.
    for rest in (1e-6, 0.2, 0.9):
        q = np.append((1 - rest) * np.array([0.625, 0.375]), [rest / 2, rest / 2])
        both = top_k_loss(np.log(q), np.log(P4[:2]), [0, 1], treatment="renormalised_both")
        assert abs(both) < 1e-15


@pytest.mark.parametrize("treatment", ["truncated", "renormalised", "renormalised_both", "tail"])
def test_the_top_k_formulas(treatment: Any) -> None:
    z, v = logits(10, (5, 6))
    p, q = xent.softmax(v), xent.softmax(z)
    at = np.argsort(-v, -1)[:, :3]
    a, b = np.take_along_axis(p, at, -1), np.take_along_axis(q, at, -1)
    mass, other = a.sum(-1), b.sum(-1)
    renormalised = (a / mass[:, None] * np.log(a / mass[:, None] / b)).sum(-1)
    expected = {
        "truncated": (a * np.log(a / b)).sum(-1),
        "renormalised": renormalised,
        "renormalised_both": renormalised + np.log(other),
        "tail": (a * np.log(a / b)).sum(-1) + (1 - mass) * np.log((1 - mass) / (1 - other)),
    }[treatment]
    observed = top_k_loss(z, np.log(a), at, treatment=treatment, reduction="none")
    np.testing.assert_allclose(observed, expected, rtol=1e-11)
    moved = top_k_loss(z.T, np.log(a).T, at.T, treatment=treatment, axis=0, weight=np.arange(5.0))
    assert moved == pytest.approx(expected @ np.arange(5.0) / 10, rel=1e-12)
    # With every class in it, nothing is left to treat.
    whole = np.tile(np.arange(6), (5, 1))
    complete = top_k_loss(z, xent.log_softmax(v), whole, treatment=treatment, reduction="none")
    np.testing.assert_allclose(complete, distillation_loss(z, v, reduction="none"), rtol=1e-11)


@pytest.mark.parametrize("tau", [1.0, 2.0])
def test_sampled_targets_are_unbiased(tau: float) -> None:
    z, v = logits(11, (1, 6), 1.0)
    rng = np.random.default_rng(0)
    many = np.repeat(v, 20_000, 0)
    indices, masses = sample_targets(many, 5, rng, proposal_temperature=tau)
    ratio = xent.softmax(v[0]) / xent.softmax(v[0] / tau)
    np.testing.assert_allclose(masses, ratio[indices] / 5, rtol=1e-13)
    estimates = sampled_loss(np.repeat(z, len(many), 0), indices, masses, reduction="none")
    expected = xent.soft_cross_entropy(z, xent.softmax(v))
    error = estimates.std(ddof=1) / math.sqrt(len(many))
    assert error < 0.01 * expected
    assert abs(estimates.mean() - expected) < 4 * error


def test_a_class_of_probability_zero_is_not_drawn_by_a_draw_of_zero() -> None:
    class Zeros(np.random.Generator):
        def random(self, size: Any = None, *_: Any, **__: Any) -> Any:
            return np.zeros(size)

    rng = Zeros(np.random.PCG64(0))
    assert (sample_targets([[-INF, 0.0, 1.0]], 2, rng)[0] == 1).all()


def test_a_sampled_loss_counts_repeats_and_moves_axes() -> None:
    z, v = logits(12, (4, 3))
    at, mass = sample_targets(v.T, 7, np.random.default_rng(1), axis=0)
    assert at.shape == mass.shape == (7, 4)
    counts = np.stack([np.bincount(column, minlength=3) for column in at.T]) / 7
    expected = -(counts * xent.log_softmax(z)).sum(-1)
    np.testing.assert_allclose(sampled_loss(z.T, at, mass, axis=0, reduction="none"), expected, rtol=1e-13)


Z = np.array([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]])
TOP, AT = np.log([[0.5, 0.3], [0.4, 0.2]]), np.array([[0, 1], [1, 2]])
GOOD: dict[Any, dict[str, Any]] = {
    distillation_loss: {"student_logits": Z, "teacher_logits": Z},
    distillation_gradient: {"student_logits": Z, "teacher_logits": Z},
    mixed_loss: {"student_logits": Z, "teacher_logits": Z, "targets": [0, 1]},
    top_k_loss: {"student_logits": Z, "top_log_probs": TOP, "top_indices": AT},
    sampled_loss: {"student_logits": Z, "indices": AT, "sample_weights": np.exp(TOP)},
    sample_targets: {"teacher_logits": Z, "samples": 2, "rng": np.random.default_rng(0)},
}
DIVERGENCE = (distillation_loss, distillation_gradient, mixed_loss)
LOSSES = (distillation_loss, distillation_gradient, mixed_loss, top_k_loss, sampled_loss)
BAD: list[tuple[tuple[Any, ...], str, Any, type[Exception]]] = [
    *[(DIVERGENCE, "temperature", x, ValueError) for x in (0.0, -1.0, INF, NAN)],
    (DIVERGENCE, "temperature", "2", TypeError),
    (DIVERGENCE, "temperature", True, TypeError),
    (DIVERGENCE, "scale", "t", ValueError),
    (DIVERGENCE, "scale", None, TypeError),
    (DIVERGENCE, "direction", "backward", ValueError),
    (DIVERGENCE, "teacher_logits", Z[:1], ValueError),
    (DIVERGENCE, "teacher_logits", Z.astype(complex), TypeError),
    ((distillation_loss,), "teacher_logits", np.full_like(Z, -INF), ValueError),
    (LOSSES, "student_logits", np.where(Z > 2, NAN, Z), ValueError),
    (LOSSES, "student_logits", np.where(Z > 2, INF, Z), ValueError),
    (LOSSES, "reduction", "average", ValueError),
    (LOSSES, "denominator", 0.0, ValueError),
    (LOSSES, "axis", 2, ValueError),
    ((distillation_loss, top_k_loss, sampled_loss), "weight", [1.0, -1.0], ValueError),
    ((distillation_loss, top_k_loss, sampled_loss), "weight", [1.0], ValueError),
    ((mixed_loss,), "alpha", 1.5, ValueError),
    ((mixed_loss,), "targets", [0, 3], ValueError),
    ((mixed_loss,), "targets", [0.0, 1.0], TypeError),
    ((top_k_loss,), "treatment", "none", ValueError),
    ((top_k_loss,), "top_log_probs", np.exp(TOP), ValueError),
    ((top_k_loss,), "top_log_probs", TOP * NAN, ValueError),
    ((top_k_loss,), "top_log_probs", TOP[:, :1], ValueError),
    ((top_k_loss,), "top_indices", [[0, 0], [1, 2]], ValueError),
    ((top_k_loss,), "top_indices", [[0, 3], [1, 2]], ValueError),
    ((top_k_loss,), "top_indices", [[0.0, 1.0], [1.0, 2.0]], TypeError),
    ((sampled_loss,), "indices", [[0, -1], [1, 2]], ValueError),
    ((sampled_loss,), "indices", [0, 1], ValueError),
    ((sampled_loss,), "sample_weights", -np.exp(TOP), ValueError),
    ((sample_targets,), "samples", 0, ValueError),
    ((sample_targets,), "samples", 1.0, TypeError),
    ((sample_targets,), "rng", 0, TypeError),
    ((sample_targets,), "proposal_temperature", 0.0, ValueError),
    ((sample_targets,), "teacher_logits", np.where(Z > 2, NAN, Z), ValueError),
]
BAD_CALLS = [(f, name, value, error) for fs, name, value, error in BAD for f in fs]


@pytest.mark.parametrize("function", GOOD, ids=lambda f: f.__name__)
def test_the_good_call_is_good(function: Any) -> None:
    function(**GOOD[function])


@pytest.mark.parametrize("function, name, value, error", BAD_CALLS)
def test_bad_input_is_named(function: Any, name: str, value: Any, error: type[Exception]) -> None:
    # The two halves of a top k must agree; the one that comes second is named.
    named = "top_indices" if name == "top_log_probs" and np.shape(value) != np.shape(TOP) else name
    with pytest.raises(error, match=f"^{named}: expected|^{named}: only"):
        function(**{**GOOD[function], name: value})


def test_nothing_to_average() -> None:
    for call in (
        lambda: distillation_loss(Z, Z, weight=[0, 0]),
        lambda: distillation_gradient(Z, Z, weight=[0, 0]),
        lambda: mixed_loss(Z, Z, [-1, -1], ignore_index=-1),
    ):
        with pytest.raises(ValueError, match="at least one target that counts"):
            call()
    with pytest.raises(ValueError, match="top_log_probs: expected a sum above 0"):
        top_k_loss(Z, np.full((2, 2), -INF), AT, treatment="renormalised")
