"""`xent.distillation` against mpmath, the closed forms, and what a top k can and cannot determine."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.optimize import minimize

import xent
from xent import _blocks
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


BETA = 0.25


def exact(student: Any, teacher: Any, temperature: float, direction: str) -> mpmath.mpf:
    """The divergence of two rows of logits, in the precision of the context."""
    logs = []
    for row in (teacher, student):
        u = [mpmath.mpf(x) / mpmath.mpf(temperature) for x in row]
        total = mpmath.log(mpmath.fsum(map(mpmath.exp, u)))
        logs.append([x - total for x in u])
    p, q = logs

    def kl(a: list[Any], b: list[Any]) -> Any:
        return mpmath.fsum(mpmath.exp(x) * (x - y) for x, y in zip(a, b, strict=True))

    if direction == "jsd":
        m = [mpmath.log(BETA * mpmath.exp(x) + (1 - BETA) * mpmath.exp(y)) for x, y in zip(p, q, strict=True)]
        return BETA * kl(p, m) + (1 - BETA) * kl(q, m)
    return kl(p, q) if direction == "forward" else kl(q, p)


by_direction = pytest.mark.parametrize("direction", ["forward", "reverse", "jsd"])


@by_direction
@pytest.mark.parametrize("temperature", [0.05, 0.5, 1.0, 4.0, 100.0, 1e6, 1e12])
def test_the_loss_keeps_its_digits_at_every_temperature(temperature: float, direction: Any) -> None:
    options: dict[str, Any] = {"temperature": temperature, "direction": direction, "beta": BETA}
    for seed in range(6):
        z, v = logits(seed)
        if seed >= 4:
            v = z + 1e-7 * v  # nearly agreed
        observed = distillation_loss(z, v, reduction="none", **options)
        plain = distillation_loss(z, v, scale="none", reduction="none", **options)
        with mpmath.workdps(80):
            expected = [exact(*map(list, rows), temperature, direction) for rows in zip(z, v, strict=True)]
            scaled = [float(e * mpmath.mpf(temperature) ** 2) for e in expected]
        np.testing.assert_allclose(plain, [float(e) for e in expected], rtol=2e-12)
        np.testing.assert_allclose(observed, scaled, rtol=2e-12)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0, 1e8])
@by_direction
@pytest.mark.parametrize("scale", ["t_squared", "none"])
def test_the_gradient_is_the_derivative_of_the_exact_loss(
    temperature: float, direction: Any, scale: Any
) -> None:
    z, v = logits(1, (3, 4))
    observed = distillation_gradient(
        z, v, temperature=temperature, direction=direction, scale=scale, beta=BETA
    )
    expected = np.empty_like(z)
    with mpmath.workdps(80):
        h = mpmath.mpf(10) ** -20
        factor = mpmath.mpf(temperature) ** 2 if scale == "t_squared" else 1
        for i, k in np.ndindex(z.shape):

            def loss(step: Any, i: int = i, k: int = k) -> Any:
                row = [mpmath.mpf(float(u)) for u in z[i]]
                row[k] += step
                return exact(row, v[i].tolist(), temperature, direction)

            expected[i, k] = float(factor * (loss(h) - loss(-h)) / (2 * h) / 3)
    np.testing.assert_allclose(observed, expected, rtol=1e-11)


def test_the_jensen_shannon_divergence_and_its_ends() -> None:
    z, v = logits(7)
    p, q = xent.softmax(v), xent.softmax(z)
    halfway = distillation_loss(z, v, direction="jsd", reduction="none")
    np.testing.assert_allclose(halfway, xent.information.js_divergence(p, q), rtol=1e-12)
    exchanged = distillation_loss(v, z, direction="jsd", beta=0.3)
    assert distillation_loss(z, v, direction="jsd", beta=0.7) == pytest.approx(exchanged, rel=1e-12, abs=0)
    # The next term is of the order of beta, times a factor that the spread of p / q makes large.
    for beta, share, direction in ((1e-9, 1e-9, "forward"), (1 - 1e-9, 1e-9, "reverse")):
        end = distillation_loss(z, v, direction=direction)  # type: ignore[arg-type]
        assert distillation_loss(z, v, direction="jsd", beta=beta) / share == pytest.approx(end, rel=1e-5)
    # It is finite where the supports differ: each row of m lacks what the other has.
    apart = distillation_loss([[0.0, -INF]], [[-INF, 0.0]], direction="jsd", beta=0.25)
    assert apart == pytest.approx(-0.25 * math.log(0.25) - 0.75 * math.log(0.75), rel=1e-15, abs=0)
    gradient = distillation_gradient([[0.0, -INF]], [[-INF, 0.0]], direction="jsd")
    assert (gradient == 0).all()
    far = distillation_loss([[0.0, 800.0]], [[800.0, 0.0]], direction="jsd")
    assert far == pytest.approx(math.log(2), rel=1e-15, abs=0)


def test_forward_at_one_is_soft_cross_entropy_less_the_entropy() -> None:
    z, v = logits(2)
    p = xent.softmax(v)
    expected = xent.soft_cross_entropy(z, p) - xent.information.entropy(p).mean()
    assert distillation_loss(z, v) == pytest.approx(expected, rel=1e-12, abs=0)


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
    assert distillation_loss([[0.0, 0.0]], [[0.0, -INF]]) == pytest.approx(math.log(2), rel=1e-15, abs=0)
    assert distillation_loss([[0.0, 0.0]], [[0.0, -INF]], direction="reverse") == INF
    np.testing.assert_array_equal(distillation_gradient([[0.0, -INF]], [[0.0, 0.0]]), [[0.5, -0.5]])
    np.testing.assert_array_equal(distillation_gradient([[0.0, 0.0]], [[0.0, -INF]]), [[-0.5, 0.5]])
    assert np.isnan(distillation_gradient([[0.0, 0.0]], [[0.0, -INF]], direction="reverse")).all()
    assert distillation_loss([[1e300, 0.0]], [[1e300, 0.0]], temperature=1e-9) == 0


@pytest.mark.parametrize("temperature", [0.5, 1.0, 30.0])
def test_a_class_that_the_teacher_rules_out_is_pushed_down(temperature: float) -> None:
    # T (q - p), and with p = 0 that is T q: also where p has underflowed, and in a row that is close.
    z = np.array([[0.3, -0.2, 0.1], [0.3, -0.2, 0.1], [0.3, 0.2, -1200.0 * temperature], [0.3, 0.2, -INF]])
    v = np.array([[0.3, 0.1, -INF], [0.3, -900.0 * temperature, 0.0], [0.3, 0.2, 0.1], [0.3, 0.2, -INF]])
    q, p = xent.softmax(z / temperature), xent.softmax(v / temperature)
    observed = distillation_gradient(z, v, temperature=temperature, reduction="none")
    np.testing.assert_allclose(observed, temperature * (q - p), rtol=1e-14, atol=1e-16 * temperature)
    # A class that the student rules out has no part in the reverse divergence, nor in its gradient.
    observed = distillation_gradient(z[2:], v[2:], temperature=temperature, direction="reverse")
    fewer = distillation_gradient(z[2:, :2], v[2:, :2], temperature=temperature, direction="reverse")
    without = xent.softmax(v[2, :2] / temperature), xent.softmax(v[2] / temperature)[:2]
    assert (observed[:, 2] == 0).all()
    assert (without[0] > without[1]).all()
    np.testing.assert_allclose(observed[:, :2], fewer, rtol=1e-13, atol=1e-16 * temperature)


def test_a_row_keeps_its_digits_whatever_stands_beside_it_and_whatever_is_added() -> None:
    # Multiples of 2**-24, so that what is added below is added exactly.
    z = np.round(logits(13, (4, 5), 1.0)[0] * 2.0**24) / 2.0**24
    v = z + np.random.default_rng(13).integers(-9, 10, z.shape) / 2.0**24
    z[1], v[1] = 40.0 * np.arange(5), -40.0 * np.arange(5)  # far apart
    z[2], v[2] = z[2] + 64, v[2] - 64
    z[3], v[3] = z[3] - 1e4, v[3] + 1e4
    for reach, temperature in ((5, 1.0), (5, 0.25), (5, 8.0), (4, 1.0), (4, 0.25), (4, 8.0)):
        z[:, reach:], v[:, reach:] = -INF, -INF
        for direction in ("forward", "reverse", "jsd"):
            with mpmath.workdps(80):
                expected = [
                    exact(a[:reach].tolist(), b[:reach].tolist(), temperature, direction)
                    for a, b in zip(z, v, strict=True)
                ]
            settings: dict[str, Any] = {
                "temperature": temperature,
                "direction": direction,
                "beta": BETA,
                "scale": "none",
            }
            observed = distillation_loss(z, v, reduction="none", **settings)
            np.testing.assert_allclose(observed, [float(e) for e in expected], rtol=2e-12)


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
        observed = function(z2, v2, axis=axis, sample_weight=w, direction="reverse", **extra)
        np.testing.assert_allclose(observed, moved / divisor, rtol=1e-12)


def calls(shape: tuple[int, ...], k: int = 2, seed: int = 21) -> dict[Any, tuple[np.ndarray, ...]]:
    """Arguments of every loss, classes last: logits, and k classes of each row with their probabilities."""
    z, v = logits(seed, shape)
    at = np.argsort(-v, -1)[..., :k]
    p = np.take_along_axis(xent.softmax(v), at, -1)
    y = np.random.default_rng(seed).integers(0, shape[-1], shape[:-1])
    return {
        distillation_loss: (z, v),
        distillation_gradient: (z, v),
        mixed_loss: (z, v, y),
        top_k_loss: (z, np.log(p), at),
        sampled_loss: (z, at, p),
    }


FIVE = [distillation_loss, distillation_gradient, mixed_loss, top_k_loss, sampled_loss]


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
@pytest.mark.parametrize("function", FIVE, ids=lambda f: f.__name__)
def test_rows_in_two_dimensions_are_rows(function: Any, axis: int) -> None:
    arguments = calls((3, 4, 6))[function]
    flat = function(*(a.reshape(12, *a.shape[2:]) for a in arguments), reduction="none")
    expected = flat.reshape(3, 4, *flat.shape[1:])
    moved = [np.moveaxis(a, -1, axis) if a.ndim == 3 else a for a in arguments]
    observed = function(*moved, axis=axis, reduction="none")
    gradient = function is distillation_gradient
    np.testing.assert_array_equal(np.moveaxis(observed, axis, -1) if gradient else observed, expected)
    total = expected if gradient else expected.sum()
    for extra, divisor in (({}, 12.0), ({"denominator": 2.5}, 2.5), ({"reduction": "sum"}, 1.0)):
        observed = function(*moved, axis=axis, **extra)
        observed = np.moveaxis(observed, axis, -1) if gradient else observed
        np.testing.assert_allclose(observed, total / divisor, rtol=1e-13)
    # One row alone.
    one = function(*(a[1, 2] for a in arguments))
    np.testing.assert_allclose(one, expected[1, 2], rtol=1e-15)
    if function is mixed_loss:
        return
    w = np.random.default_rng(3).integers(0, 4, (3, 4)) / 2.0
    total = expected * w[..., None] if gradient else (expected * w).sum()
    for extra, divisor in (({}, w.sum()), ({"denominator": 2.5}, 2.5), ({"reduction": "sum"}, 1.0)):
        observed = function(*moved, axis=axis, sample_weight=w, **extra)
        observed = np.moveaxis(observed, axis, -1) if gradient else observed
        np.testing.assert_allclose(observed, total / divisor, rtol=1e-13, atol=1e-16)


WEIGHTED = [function for function in FIVE if function is not mixed_loss]


@pytest.mark.parametrize("function", WEIGHTED, ids=lambda f: f.__name__)
def test_rows_of_weight_zero_may_hold_anything(function: Any) -> None:
    z, *others = calls((4, 5))[function]
    teacher = others[0] if len(others) == 1 else None
    expected = function(z[:2], *(a[:2] for a in others), sample_weight=[1, 0.5], reduction="sum")
    for row in ([NAN] * 5, [INF, 0.0, 0.0, 0.0, 0.0], [-INF] * 5):
        z[2:] = row
        if teacher is not None:
            teacher[2:] = [INF, NAN, 0.0, 0.0, 0.0]
        observed = function(z, *others, sample_weight=[1, 0.5, 0, 0], reduction="sum")
        np.testing.assert_allclose(observed[:2] if observed.ndim else observed, expected, rtol=1e-14)
        assert not observed.ndim or (observed[2:] == 0).all()
        # The first that counts is named, and not the first.
        match = r"^student_logits: expected .*, got .* at index (\(3, 0\)|3)"
        with pytest.raises(ValueError, match=match):
            function(z, *others, sample_weight=[1, 0.5, 0, 0.5])
        with pytest.raises(ValueError, match=r"^student_logits: expected .*, got .* at index (\(2, 0\)|2)"):
            function(z, *others)
        if teacher is not None:
            z[2:] = 0.0
            with pytest.raises(
                ValueError, match=r"^teacher_logits: expected .*, got .* at index \(3, [01]\)"
            ):
                function(z, *others, sample_weight=[1, 0.5, 0, 0.5])


@pytest.mark.parametrize("function", FIVE, ids=lambda f: f.__name__)
@pytest.mark.parametrize("block", [1, 6, 13, 40])
def test_blocks_do_not_show(function: Any, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = calls((3, 7, 6))[function]
    expected = function(*arguments, reduction="none")
    mean = function(*arguments)
    drawn = sample_targets(arguments[0], 3, np.random.default_rng(5), proposal_temperature=1.5)
    monkeypatch.setattr(_blocks, "BLOCK", block * (6 + _blocks.OF_A_ROW))
    np.testing.assert_array_equal(function(*arguments, reduction="none"), expected)
    np.testing.assert_allclose(function(*arguments), mean, rtol=1e-14)
    again = sample_targets(arguments[0], 3, np.random.default_rng(5), proposal_temperature=1.5)
    np.testing.assert_array_equal(again[0], drawn[0])
    np.testing.assert_array_equal(again[1], drawn[1])


@pytest.mark.parametrize("function", FIVE, ids=lambda f: f.__name__)
def test_dtypes(function: Any) -> None:
    arguments = calls((6, 5))[function]
    expected = function(*arguments, reduction="none")

    def cast(*dtypes: Any) -> Any:
        kinds = iter(dtypes)
        return [a.astype(next(kinds)) if a.dtype.kind == "f" else a for a in arguments]

    # Rounding the arguments moves a logit of size 10 by 10 eps, and the loss by a few times as much.
    for dtype in (np.float16, np.float32):
        observed = function(*cast(dtype, dtype), reduction="none")
        assert observed.dtype == np.float32
        np.testing.assert_allclose(observed, expected, rtol=0, atol=40 * float(np.finfo(dtype).eps))
    assert function(*cast(np.float16, np.float32)).dtype == np.float32
    assert function(*cast(np.float64, np.float32)).dtype == np.float64
    # The weights of samples are mere numbers; the other arguments count.
    wider = np.float32 if function is sampled_loss else np.float64
    assert function(*cast(np.float32, np.float64)).dtype == wider


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_the_dtype_of_a_mixture_does_not_depend_on_alpha(alpha: float) -> None:
    z, v, y = calls((6, 5))[mixed_loss]
    z = z.astype(np.float32)
    assert mixed_loss(z, v.astype(np.float32), y, alpha=alpha).dtype == np.float32
    assert mixed_loss(z, v, y, alpha=alpha).dtype == np.float64


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
        assert observed == pytest.approx((1 - alpha) * hard + alpha * soft, rel=1e-13, abs=0)
        total = mixed_loss(z, v, y, alpha=alpha, ignore_index=-100, denominator=7.0, **settings)
        assert total == pytest.approx(observed * 3 / 7, rel=1e-13, abs=0)
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


def test_a_row_that_is_far_from_the_others_keeps_its_digits() -> None:
    # The student has exp(-2000) on what the teacher names, or on what it does not name.
    z, top, at = [[0.0, 0.0, -2000.0], [-2000.0, -2000.0, 0.0]], np.log([[0.25, 0.5]] * 2), [[0, 1]] * 2
    both = top_k_loss(z, top, at, treatment="renormalised_both", reduction="none")
    np.testing.assert_allclose(both, [np.log(2) - xent.information.entropy([1 / 3, 2 / 3])] * 2, rtol=1e-12)
    z[1] = [0.0, 0.0, -2000.0]
    tail = top_k_loss([[0.0, 0.0, 0.0], z[1]], top, at, reduction="none")
    far = (
        0.25 * np.log(0.25) + 0.75 * np.log(2) + 0.5 * np.log(0.5) + 0.25 * (np.log(0.25) + 2000 + np.log(2))
    )
    np.testing.assert_allclose(
        tail, [np.log(3) - xent.information.entropy([0.25, 0.5, 0.25]), far], rtol=1e-12
    )


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
    moved = top_k_loss(z.T, np.log(a).T, at.T, treatment=treatment, axis=0, sample_weight=np.arange(5.0))
    assert moved == pytest.approx(expected @ np.arange(5.0) / 10, rel=1e-12, abs=0)
    # With every class in it, nothing is left to treat.
    whole = np.tile(np.arange(6), (5, 1))
    complete = top_k_loss(z, xent.log_softmax(v), whole, treatment=treatment, reduction="none")
    np.testing.assert_allclose(complete, distillation_loss(z, v, reduction="none"), rtol=1e-11)


def test_top_probabilities_of_zero_and_tails_of_zero() -> None:
    # A class of the top k whose probability is zero costs nothing, also where the student rules it out.
    z = np.array([[0.0, 0.0, -INF], [0.0, 0.0, 0.0]])
    at = np.array([[0, 2], [0, 2]])
    for treatment, expected in (
        ("truncated", [math.log(2), math.log(3)]),
        ("renormalised", [math.log(2), math.log(3)]),
        ("renormalised_both", [0.0, math.log(2)]),
        ("tail", [math.log(2), math.log(3)]),  # nothing is left for the tail either
    ):
        top = np.array([[0.0, -INF], [0.0, -INF]])
        observed = top_k_loss(z, top, at, treatment=treatment, reduction="none")  # type: ignore[arg-type]
        np.testing.assert_allclose(observed, expected, rtol=1e-15)
    # Both tails empty; the teacher's full and the student's empty, which costs everything.
    half = np.log([[0.5, 0.5]])
    assert abs(top_k_loss([[0.0, 0.0, -INF]], half, [[0, 1]])) < 1e-15
    assert top_k_loss([[0.0, 0.0, -INF]], np.log([[0.4, 0.4]]), [[0, 1]]) == INF
    assert top_k_loss([[-INF, -INF, 0.0]], half, [[0, 1]], treatment="truncated") == INF
    # A sum that is over one by no more than rounding leaves no tail.
    assert top_k_loss(np.zeros((1, 3)), half + 4e-7, [[0, 1]]) == pytest.approx(
        math.log(1.5), rel=1e-5, abs=0
    )


def test_rows_of_a_top_k_do_not_see_each_other() -> None:
    # Each row sums its own exponentials: beside one of 1,000, those of -1,000 would all be zero.
    z = np.array([[1000.0, 1001.0, 999.0], [-1000.0, -999.0, -1001.0]])
    top, at = np.log([[0.5, 0.25], [0.5, 0.25]]), [[0, 1], [0, 1]]
    for treatment in ("tail", "truncated", "renormalised", "renormalised_both"):
        first, second = top_k_loss(z, top, at, treatment=treatment, reduction="none")  # type: ignore[arg-type]
        alone = top_k_loss(z[0] - 1000, top[0], at[0], treatment=treatment)  # type: ignore[arg-type]
        assert first == second == pytest.approx(alone, rel=1e-12, abs=0)
    with pytest.raises(ValueError, match=r"^student_logits: .*-inf.* at index 1"):
        top_k_loss([[0.0, 1.0, 2.0], [-INF] * 3], top, at)


@pytest.mark.parametrize("dtype, slack", [(np.float16, 1e-2), (np.float32, 1e-4), (np.float64, 1e-6)])
def test_how_far_over_one_a_top_k_may_sum(dtype: Any, slack: float) -> None:
    z, at = np.zeros((2, 3)), [[0, 1], [0, 1]]
    for order in ("=", ">", "<"):
        for over, good in ((0.8 * slack, True), (1.2 * slack, False)):
            top = np.full((2, 2), -40.0)
            top[1, 0] = math.log1p(over)
            if good:
                top_k_loss(z, top.astype(np.dtype(dtype).newbyteorder(order)), at)
            else:
                with pytest.raises(ValueError, match=r"got a sum of 1(\.\d+)? at index 1$"):
                    top_k_loss(z, top.astype(np.dtype(dtype).newbyteorder(order)), at)
    # Logits taken for log-probabilities overflow in silence.
    with pytest.raises(ValueError, match=r"^top_log_probs: expected .*, got a sum of inf at index 1$"):
        top_k_loss(z, [[-1.0, -1.0], [1e4, 0.0]], at)


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


def test_the_largest_draw_is_still_a_class() -> None:
    # The probabilities of these rows add up to less than the largest number that `random` gives.
    class Largest(np.random.Generator):
        def random(self, size: Any = None, *_: Any, **__: Any) -> Any:
            return np.full(size, np.nextafter(1.0, 0.0))

    v = logits(14, (500, 7))[0]
    assert (np.cumsum(xent.softmax(v), -1)[:, -1] < np.nextafter(1.0, 0.0)).any()
    indices, _ = sample_targets(v, 1, Largest(np.random.PCG64(0)))
    assert ((indices >= 0) & (indices < 7)).all()


def test_draws_in_two_dimensions_and_from_large_logits() -> None:
    v = logits(15, (3, 4, 6))[0]
    flat = sample_targets(v.reshape(12, 6), 5, np.random.default_rng(2), proposal_temperature=0.5)
    for axis in (0, 1, 2):
        moved = np.moveaxis(v, -1, axis)
        drawn = sample_targets(moved, 5, np.random.default_rng(2), proposal_temperature=0.5, axis=axis)
        for observed, expected in zip(drawn, flat, strict=True):
            np.testing.assert_array_equal(np.moveaxis(observed, axis, -1).reshape(12, 5), expected)
    # What is subtracted before the division by a small tau is each row's own maximum.
    v = np.array([[1e308, 1e308 / 2], [0.0, -1.0], [-1e308 / 2, -1e308]])
    indices, masses = sample_targets(v, 1, np.random.default_rng(0), proposal_temperature=1e-3)
    assert (indices == 0).all()
    np.testing.assert_allclose(masses[:, 0], [1.0, 1 / (1 + math.exp(-1)), 1.0], rtol=1e-13)


def test_a_sampled_loss_leaves_out_what_weighs_nothing() -> None:
    z = [[0.0, 0.0, -INF]]
    assert sampled_loss(z, [[0, 2]], [[1.0, 0.0]]) == pytest.approx(math.log(2), rel=1e-15, abs=0)
    assert sampled_loss(z, [[0, 2]], [[1.0, 0.5]]) == INF
    for at, mass in (([[0]], [[1.0]]), ([[0, 0]], [[0.5, 0.5]]), ([[0, 1]], [[1.0, 0.0]])):
        for reduction in ("none", "sum", "mean"):
            certain = sampled_loss([[0.0, -INF]], at, mass, reduction=reduction)  # type: ignore[arg-type]
            assert certain == 0 and not np.signbit(certain).any()


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
    sampled_loss: {"student_logits": Z, "indices": AT, "importance_weights": np.exp(TOP)},
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
    *[(DIVERGENCE, "beta", x, ValueError) for x in (0.0, 1.0, NAN)],
    (DIVERGENCE, "beta", None, TypeError),
    (DIVERGENCE, "teacher_logits", Z[:1], ValueError),
    (DIVERGENCE, "teacher_logits", Z.astype(complex), TypeError),
    (LOSSES, "student_logits", Z.astype(complex), TypeError),
    (LOSSES, "student_logits", np.ma.masked_array(Z), TypeError),
    (LOSSES, "student_logits", np.zeros((2, 0)), ValueError),
    ((distillation_loss,), "teacher_logits", np.full_like(Z, -INF), ValueError),
    (LOSSES, "student_logits", np.where(Z > 2, NAN, Z), ValueError),
    (LOSSES, "student_logits", np.where(Z > 2, INF, Z), ValueError),
    (LOSSES, "reduction", "average", ValueError),
    (LOSSES, "denominator", 0.0, ValueError),
    (LOSSES, "axis", 2, ValueError),
    ((distillation_loss, top_k_loss, sampled_loss), "sample_weight", [1.0, -1.0], ValueError),
    ((distillation_loss, top_k_loss, sampled_loss), "sample_weight", [1.0] * 3, ValueError),
    ((mixed_loss,), "alpha", 1.5, ValueError),
    ((mixed_loss,), "targets", [0, 3], ValueError),
    ((mixed_loss,), "targets", [0.0, 1.0], TypeError),
    ((mixed_loss,), "targets", [True, False], TypeError),
    ((top_k_loss,), "treatment", "none", ValueError),
    ((top_k_loss,), "top_log_probs", np.exp(TOP), ValueError),
    ((top_k_loss,), "top_log_probs", TOP * NAN, ValueError),
    ((top_k_loss,), "top_log_probs", TOP.astype(complex), TypeError),
    ((top_k_loss,), "top_log_probs", np.ma.masked_array(TOP), TypeError),
    ((top_k_loss,), "top_log_probs", TOP[:, :1], ValueError),
    ((top_k_loss,), "top_indices", [[0, 0], [1, 2]], ValueError),
    ((top_k_loss,), "top_indices", [[0, 3], [1, 2]], ValueError),
    ((top_k_loss,), "top_indices", [[0.0, 1.0], [1.0, 2.0]], TypeError),
    ((top_k_loss,), "top_indices", np.ma.masked_array(AT), TypeError),
    ((sampled_loss,), "indices", np.ma.masked_array(AT), TypeError),
    ((sampled_loss,), "indices", [[0, -1], [1, 2]], ValueError),
    ((sampled_loss,), "indices", [0, 1], ValueError),
    ((sampled_loss,), "importance_weights", -np.exp(TOP), ValueError),
    ((sampled_loss,), "importance_weights", TOP.astype(complex), TypeError),
    ((sampled_loss,), "importance_weights", 1.0, ValueError),
    ((sample_targets,), "samples", 0, ValueError),
    ((sample_targets,), "samples", 1.0, TypeError),
    ((sample_targets,), "rng", 0, TypeError),
    *[((sample_targets,), "proposal_temperature", x, ValueError) for x in (0.0, -1.0, INF, NAN)],
    ((sample_targets,), "teacher_logits", Z.astype(complex), TypeError),
    ((sample_targets,), "teacher_logits", [[0.0, 1.0], [-INF, -INF]], ValueError),
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
        lambda: distillation_loss(Z, Z, sample_weight=[0, 0]),
        lambda: distillation_gradient(Z, Z, sample_weight=[False, False]),
        lambda: mixed_loss(Z, Z, [-1, -1], ignore_index=-1),
    ):
        with pytest.raises(ValueError, match="at least one target that counts"):
            call()
    for treatment in ("renormalised", "renormalised_both"):
        with pytest.raises(ValueError, match=r"^top_log_probs: expected a sum above 0 .*, got 0 at index 1$"):
            top_k_loss(Z, [TOP[0], [-INF, -INF]], AT, treatment=treatment)  # type: ignore[arg-type]


@pytest.mark.parametrize("function, name, value, got", [
    *[(f, "axis", 2, r"an axis of student_logits with shape \(2, 3\), got 2") for f in LOSSES],
    (sample_targets, "axis", -3, r"an axis of teacher_logits with shape \(2, 3\), got -3"),
    *[(f, "temperature", 0, r"a finite number > 0, got 0") for f in DIVERGENCE],
    (sample_targets, "proposal_temperature", 0, r"a finite number > 0, got 0"),
    *[(mixed_loss, "alpha", x, rf"a number in \[0, 1\], got {x}") for x in (-1, 1.5)],
    (mixed_loss, "ignore_index", 1.5, r"an integer, got 1\.5"),
    *[(f, "teacher_logits", Z[:1], r"shape \(2, 3\), that of student_logits, got \(1, 3\)")
      for f in DIVERGENCE],
    *[(f, "sample_weight", [1.0] * 3, r"a shape that broadcasts to \(2,\), that of the targets, got \(3,\)")
      for f in (distillation_loss, distillation_gradient, top_k_loss, sampled_loss)],
    (sampled_loss, "importance_weights", TOP[:1], r"shape \(2, 2\), that of indices, got \(1, 2\)"),
    (sampled_loss, "importance_weights", [[1.0, 1.0], [INF, 1.0]],
     r"finite weights >= 0, got inf at index \(1, 0\)"),
    *[(f, name, [[0, 1], [3, 1]], r"class indices in \[0, 3\), got 3 at index \(1, 0\)")
      for f, name in ((top_k_loss, "top_indices"), (sampled_loss, "indices"))],
    *[(f, name, [[0, 1]], r".*with rows of shape \(2,\), got shape \(1, 2\)")
      for f, name in ((top_k_loss, "top_indices"), (sampled_loss, "indices"))],
    *[(f, name, np.zeros((2, 0), int), r"at least one class in each row, got shape \(2, 0\)")
      for f, name in ((top_k_loss, "top_indices"), (sampled_loss, "indices"))],
    (top_k_loss, "top_indices", [[0, 1], [2, 2]], r"distinct classes, got a repeated one at index 1"),
    *[(f, "scale", x, rf".*'t_squared', .*, got {x!r}$") for f in DIVERGENCE for x in ("t", 1)],
    (top_k_loss, "treatment", "none", r".*'tail', got 'none'$"),
    (top_k_loss, "top_log_probs", TOP[0], r"2 dimensions, as student_logits, got shape \(2,\)"),
    (top_k_loss, "top_log_probs", np.zeros((2, 0)), r"at least one class along axis 1"),
    *[(f, "sample_weight", [1.5e308, 1.5e308], "weights with a finite sum")
      for f in (distillation_loss, distillation_gradient, top_k_loss, sampled_loss)],
    (sample_targets, "samples", 0, r"an integer >= 1, got 0"),
    (sample_targets, "samples", 10**9 + 1, r"an integer up to 1e\+09, got 1000000001"),
    (sample_targets, "rng", np.random.RandomState(0), r"a numpy\.random\.Generator, got RandomState"),
    (sample_targets, "teacher_logits", [[0.0, 1.0], [-INF, -INF]], r".*-inf.* at index 1"),
], ids=lambda x: getattr(x, "__name__", None))  # fmt: skip
def test_what_was_expected_and_what_came(function: Any, name: str, value: Any, got: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^{name}: expected {got}"):
        function(**{**GOOD[function], name: value})


def test_what_disagrees_is_named_in_the_callers_layout() -> None:
    z, top, at = np.zeros((3, 2)), TOP.T, AT.T
    top_k_loss(z, top, at, axis=0)
    shapes = r"^top_indices: expected shape \(1, 2\), that of top_log_probs, got \(2, 2\)$"
    with pytest.raises(ValueError, match=shapes):
        top_k_loss(z, top[:1], at, axis=0)
    with pytest.raises(ValueError, match=r"^importance_weights: .*, got -1\.0 at index \(0, 1\)$"):
        sampled_loss(z, at, [[1.0, -1.0], [1.0, 1.0]], axis=0)
    with pytest.raises(ValueError, match=r"^indices: .*, got 3 at index \(0, 1\)$"):
        sampled_loss(z, [[0, 3], [1, 2]], np.exp(top), axis=0)
    with pytest.raises(ValueError, match=r"^student_logits: .*, got nan at index \(2, 1\)$"):
        sampled_loss(np.where(np.arange(6).reshape(3, 2) == 5, NAN, z), at, np.exp(top), axis=0)


@pytest.mark.parametrize("function, name", [(top_k_loss, "top_indices"), (sampled_loss, "indices")])
def test_the_rows_that_indices_must_have_are_named(function: Any, name: str) -> None:
    at = np.zeros((3, 2, 1), int)
    with pytest.raises(ValueError, match=rf"^{name}: .* rows of shape \(2, 3\), got shape \(3, 2, 1\)$"):
        function(np.zeros((2, 3, 4)), *((np.log(at + 1), at) if name == "top_indices" else (at, at + 1.0)))


def test_masked_targets_are_refused_beside_an_ignored_one() -> None:
    with pytest.raises(TypeError, match=r"^targets: expected an array without a mask"):
        mixed_loss(Z, Z, np.ma.masked_array([0, 1]), ignore_index=0)


def test_one_class_of_each_row_and_one_draw() -> None:
    z, v = logits(16, (4, 5))
    at = v.argmax(-1)[:, None]
    log_p = np.take_along_axis(xent.log_softmax(v), at, -1)
    expected = np.exp(log_p) * (log_p - np.take_along_axis(xent.log_softmax(z), at, -1))
    observed = top_k_loss(z, log_p, at, treatment="truncated", reduction="none")
    np.testing.assert_allclose(observed, expected[:, 0], rtol=1e-13)
    indices, masses = sample_targets(v, 1, np.random.default_rng(0))
    assert indices.shape == (4, 1)
    np.testing.assert_allclose(masses, 1.0, rtol=1e-14)


def test_a_repeated_class_is_found_wherever_it_stands() -> None:
    z, top = np.zeros((2, 4)), np.log(np.full((2, 3), 0.25))
    for row in ([0, 0, 2], [2, 0, 2], [1, 2, 2], [3, 1, 3], [1, 1, 1]):
        with pytest.raises(ValueError, match=r"^top_indices: expected distinct classes, .* at index 1$"):
            top_k_loss(z, top, np.array([[3, 0, 2], row]))
    top_k_loss(z, top, np.array([[3, 0, 2], [0, 3, 1]]))


def test_a_shift_that_rounds_the_logits_does_not_round_their_differences() -> None:
    z, v = logits(17, (4, 5), 1.0)
    v = z + 1e-7 * v
    for shift in (0.0, 100.0, 1e4, -1e6):
        first, second = z + shift, v - shift
        for direction in ("forward", "reverse", "jsd"):
            with mpmath.workdps(80):
                expected = [
                    exact(a.tolist(), b.tolist(), 1.0, direction) for a, b in zip(first, second, strict=True)
                ]
            options: dict[str, Any] = {"direction": direction, "beta": BETA, "reduction": "none"}
            observed = distillation_loss(first, second, **options)
            np.testing.assert_allclose(observed, [float(e) for e in expected], rtol=2e-12)


def test_nobodys_floating_point_errors_are_raised() -> None:
    z = np.array([[0.0, 1.0]])
    with np.errstate(all="raise"):
        # The soft part is about 1e-15, and its share of the loss smaller than any normal number.
        observed = mixed_loss(z, z + np.array([0.0, 1e-7]), [1], alpha=1e-300)
    assert observed == pytest.approx(math.log1p(math.exp(-1)), rel=1e-15, abs=0)


def test_a_row_that_cannot_be_renormalised_among_rows_in_two_dimensions() -> None:
    top = np.full((2, 3, 2), math.log(0.25))
    top[1, 2] = -INF
    with pytest.raises(ValueError, match=r"^top_log_probs: expected a sum above 0 .* at index \(1, 2\)$"):
        top_k_loss(np.zeros((2, 3, 4)), top, np.tile([0, 1], (2, 3, 1)), treatment="renormalised")


def test_both_parts_of_the_mixture_have_the_digits_of_the_wider_argument() -> None:
    """The hard part of a student in float32 was rounded to it beside a teacher in float64."""
    rng = np.random.default_rng(0)
    student, teacher = rng.normal(size=(5, 4)).astype(np.float32), rng.normal(size=(5, 4))
    labels, settings = rng.integers(0, 4, 5), {"alpha": 0.3, "reduction": "none"}
    mixed = mixed_loss(student, teacher, labels, **settings)
    wide = mixed_loss(student.astype(np.float64), teacher, labels, **settings)
    np.testing.assert_array_equal(mixed, wide, strict=True)


def test_draws_miss_a_class_below_their_resolution() -> None:
    """exp(-40) beside one: no draw is as close to one, although p_k, exp(-10), and r_k are ordinary numbers."""
    rng = np.random.default_rng(0)
    indices, _ = sample_targets([0.0, -10.0], 10_000, rng, proposal_temperature=0.25)
    assert not indices.any()
