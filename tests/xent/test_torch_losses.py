"""`xent.torch` against `xent`, mpmath and torch's own autograd checks."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

import xent
import xent.torch as xt


class Elsewhere(torch.Tensor):
    """A tensor that says it lies on a second device, which this machine need not have."""

    device = torch.device("cuda", 7)


def elsewhere(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor as one of another device."""
    return tensor.as_subclass(Elsewhere)


INF = math.inf


def logits_and_labels(
    seed: int, shape: tuple[int, ...] = (6, 4), spread: float = 3.0
) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    z = torch.from_numpy(rng.normal(size=shape) * spread)
    return z, torch.from_numpy(rng.integers(0, shape[-1], shape[:-1]))


ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"reduction": "sum"},
    {"reduction": "none"},
    {"denominator": 7.5},
    {"label_smoothing": 0.1},
    {"label_smoothing": 1.0},
    {"ignore_index": 1},
    {"weight": [1.0, 0.0, 2.5, 0.5]},
    {"weight": [1.0, 0.0, 2.5, 0.5], "ignore_index": 2, "label_smoothing": 0.3, "reduction": "none"},
    {"weight": [1.0, 0.2, 2.5, 0.5], "ignore_index": 2, "label_smoothing": 0.3},
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_small_losses_keep_their_digits(dtype: torch.dtype) -> None:
    # The promise: (8 + margin) epsilons of the true loss, however small; the margin enters because it is
    # rounded before it is exponentiated. torch's own loss is 0 from a margin of 17 (float32) or 37 (float64).
    rng = np.random.default_rng(0)
    rows = [
        rng.normal(size=classes) + margin * np.eye(classes)[0]
        for classes in (2, 3, 10, 200)
        for margin in (-200.0, -5.0, 0.0, 0.5, 5.0, 20.0, 60.0, 85.0)
    ] + [
        # Here the rounding of z_j - m has a part on either side of the difference.
        size * rng.normal(size=3) - margin * np.array([0, 1, 1])
        for size in (1e-9, 1e-3, 0.1, 1.0)
        for margin in (8.0, 20.0, 60.0, 85.0)
    ]
    for row in rows:
        z = torch.from_numpy(row).to(dtype)
        with mpmath.workdps(120):
            others = [mpmath.exp(mpmath.mpf(v) - mpmath.mpf(z[0].item())) for v in z[1:].tolist()]
            exact = mpmath.log1p(mpmath.fsum(others))
            allowed = (8 + float(abs(z[0] - z[1:].max()))) * torch.finfo(dtype).eps
            for of_rows in (z, z.requires_grad_()):
                observed = xt.cross_entropy(of_rows, torch.tensor(0)).item()
                assert abs(observed - exact) <= allowed * exact
            plain = torch.func.vmap(xt.cross_entropy)(z.detach()[None], torch.tensor([0])).item()
            assert abs(plain - exact) <= allowed * exact


@pytest.mark.parametrize("gamma", [0.5, 2.0, 5.0, 50.0])
def test_focal_losses_keep_their_digits(gamma: float) -> None:
    for margin in np.random.default_rng(0).normal(size=200) * 3:
        z = torch.tensor(margin, dtype=torch.float32)
        with mpmath.workdps(60):
            q = 1 / (1 + mpmath.exp(mpmath.mpf(z.item())))
            exact = -(q**gamma) * mpmath.log1p(-q)
        allowed = (1 + gamma) * (8 + abs(margin)) * 2.0**-23 * exact + 2.0**-126
        row = torch.stack([z, torch.zeros_like(z)])
        assert abs(xt.focal_loss(row, torch.tensor(0), gamma=gamma).item() - exact) <= allowed


@pytest.mark.parametrize("classes", [2, 1000, 20_000])
def test_an_entropy_keeps_its_digits_where_many_classes_are_alike(classes: int) -> None:
    """Would be refuted by a sum of probabilities that is taken one after the other, as torch.softmax does."""
    above = torch.tensor([0.0, 0.1, 3.3, 10.3, 20.0, 40.0])
    z = torch.zeros(len(above), classes)
    z[:, 0] = above
    exact = torch.from_numpy(xent.information.entropy_from_logits(z.double().numpy()))
    error = (xt.entropy_from_logits(z) / exact - 1).abs() / torch.finfo(z.dtype).eps
    assert (error < 8 + (classes / exact).log() / 2).all()


def test_a_confident_gradient_keeps_its_digits() -> None:
    z = torch.tensor([30.0, 0.0], requires_grad=True)  # float32: p_0 rounds to one
    xt.cross_entropy(z, torch.tensor(0)).backward()
    expected = 1 / (1 + math.exp(30))
    promised = (8 + 30) * torch.finfo(z.dtype).eps  # that of the loss, which is the gradient here
    np.testing.assert_allclose(z.grad.numpy(), [-expected, expected], rtol=promised)


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
def test_cross_entropy_derivatives(arguments: dict[str, Any]) -> None:
    z, y = logits_and_labels(3)
    z.requires_grad_()

    def loss(z: torch.Tensor) -> torch.Tensor:
        return xt.cross_entropy(z, y, **arguments)

    assert gradcheck(loss, (z,))
    assert gradgradcheck(loss, (z,))


@pytest.mark.parametrize("shape", [(6, 4), (2, 3, 4)])
def test_soft_cross_entropy_derivatives_by_both_arguments(shape: tuple[int, ...]) -> None:
    z, _ = logits_and_labels(4, shape)
    u, _ = logits_and_labels(5, shape)
    z.requires_grad_()
    u.requires_grad_()

    def loss(z: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return xt.soft_cross_entropy(z, torch.softmax(u, -1))

    assert gradcheck(loss, (z, u))
    assert gradgradcheck(loss, (z, u))


def test_a_second_derivative_in_several_dimensions() -> None:
    z, y = logits_and_labels(11, (2, 2, 3))
    z.requires_grad_()
    assert gradgradcheck(lambda z: xt.cross_entropy(z, y, ignore_index=1, label_smoothing=0.2), (z,))


def test_a_clipped_probability_has_no_gradient() -> None:
    p = torch.tensor([[0.05, 0.95], [0.3, 0.7], [0.95, 0.05]], dtype=torch.float64, requires_grad=True)
    losses = xt.log_loss(p, torch.tensor([0, 0, 0]), eps=0.1, reduction="none")
    torch.testing.assert_close(losses, -torch.tensor([0.1, 0.3, 0.9], dtype=torch.float64).log())
    losses.sum().backward()
    np.testing.assert_allclose(p.grad.numpy(), [[0, 0], [-1 / 0.3, 0], [0, 0]], rtol=1e-15)
    # Without eps nothing is clipped: a row may sum to a little more than one, and an entry be one.
    over = torch.tensor([[1.00005, 0.0]])
    expected = xent.log_loss(over.numpy(), [0])
    assert expected < 0
    assert xt.log_loss(over, torch.tensor([0])).item() == pytest.approx(float(expected), rel=1e-6, abs=0)


def test_an_ignored_target_among_rows_of_one_class() -> None:
    z, y = torch.zeros(2, 1), torch.tensor([-100, 0])
    assert xt.cross_entropy(z, y, ignore_index=-100) == 0
    assert xt.nll(z, y, ignore_index=-100) == 0


def test_what_is_certain_costs_zero_and_not_minus_zero() -> None:
    for loss in (
        xt.log_loss(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), reduction="none"),
        xt.nll(torch.tensor([[0.0, -INF]]), torch.tensor([0]), reduction="none"),
    ):
        assert loss.item() == 0 and not torch.signbit(loss).any()


def test_a_side_without_mass_adds_nothing_to_a_binary_log_loss() -> None:
    p = torch.tensor([1.0, 0.0], requires_grad=True)
    loss = xt.binary_log_loss(p, torch.tensor([1, 0]), reduction="none")
    assert loss.tolist() == [0, 0] and not torch.signbit(loss).any()
    assert torch.autograd.grad(loss.sum(), p)[0].tolist() == [-1, 1]


def test_targets_in_another_precision_than_the_logits() -> None:
    z, _ = logits_and_labels(12)
    t = torch.softmax(z.flip(0), -1)
    expected = xt.soft_cross_entropy(z, t, reduction="none")
    eps = torch.finfo(torch.float32).eps
    for a, b in ((z.float(), t), (z, t.float())):
        observed = xt.soft_cross_entropy(a, b, reduction="none")
        assert observed.dtype == torch.float64
        np.testing.assert_allclose(observed.numpy(), expected.numpy(), rtol=0, atol=20 * eps)
        # Rounded once, where they came from, and not again.
        assert torch.equal(observed, xt.soft_cross_entropy(a.double(), b.double(), reduction="none"))
    y = t[:, 0]
    for logits, dtype in ((z[:, 0], torch.float64), (z[:, 0].float(), torch.float32)):
        for targets in (y, y.float(), y.half(), (y > 0.5).long()):
            assert xt.binary_cross_entropy(logits, targets).dtype == dtype


def test_soft_targets_that_sum_to_one_within_the_tolerance_are_used_as_they_are() -> None:
    z, _ = logits_and_labels(13)
    z.requires_grad_()
    for factor in (1 - 9e-7, 1 + 9e-7):
        t = torch.softmax(z.detach().flip(0), -1) * factor
        loss = xt.soft_cross_entropy(z, t, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, z)
        closed = factor * torch.softmax(z.detach(), -1) - t
        np.testing.assert_allclose(gradient.numpy(), closed.numpy(), rtol=1e-12, atol=1e-15)
        assert loss.item() == pytest.approx(
            -(t * torch.log_softmax(z.detach(), -1)).sum().item(), rel=1e-13, abs=0
        )
    over = torch.tensor([[1.00005, 0.0]])
    assert xt.soft_cross_entropy(torch.zeros(1, 2), over).item() == pytest.approx(
        math.log(2), rel=1e-4, abs=0
    )


def test_a_smoothing_of_one_leaves_the_label_out() -> None:
    # The label's own loss has weight zero, and 0 * inf would be nan.
    z = torch.tensor([[0.0, -INF], [0.0, 1.0]])
    losses = xt.cross_entropy(z, torch.tensor([1, 1]), label_smoothing=1.0, reduction="none")
    expected = xent.cross_entropy(z.numpy(), [1, 1], label_smoothing=1.0, reduction="none")
    assert losses[0] == expected[0] == INF
    np.testing.assert_allclose(losses.numpy(), expected, rtol=1e-6)


def test_sums_are_taken_in_float64() -> None:
    # In float32, 1e8 + 1 is 1e8, as often as it is repeated.
    z = torch.tensor([[0.0, -1.0]]).repeat(20_000, 1)
    z[0, 1] = -1e8
    y = torch.ones(20_000, dtype=torch.long)
    losses = xt.cross_entropy(z, y, reduction="none")
    exact = losses.double().sum()
    assert xt.cross_entropy(z, y, reduction="sum") == exact.float()
    assert xt.cross_entropy(z, y, denominator=3.0) == (exact / 3).float()
    assert xt.cross_entropy(z, y) == (exact / 20_000).float()
    weight = torch.ones(20_000)
    weight[0] = 1e8
    mean = xt.binary_cross_entropy(z[:, 1], y, sample_weight=weight)
    weighed = xt.binary_cross_entropy(z[:, 1], y, sample_weight=weight, reduction="none").double().sum()
    assert mean == (weighed / weight.double().sum()).float()


def test_a_device_without_float64_sums_in_its_own_dtype() -> None:
    for kind, dtype in (("mps", torch.float32), ("cuda", torch.float64)):
        losses: Any = SimpleNamespace(device=SimpleNamespace(type=kind), dtype=torch.float32)
        assert xt._reduction.accumulator(losses) == dtype


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"sample_weight": [1.0, 0.0, 2.0]},
        {"pos_weight": 3.0},
        {"sample_weight": [1.0, 0.0, 2.0], "pos_weight": 3.0},
        {"sample_weight": [1.0, 0.5, 2.0], "pos_weight": 0.5, "reduction": "sum"},
        {"denominator": 2.0},
        {"reduction": "none"},
    ],
    ids=str,
)
def test_binary_cross_entropy(arguments: dict[str, Any]) -> None:
    z = torch.tensor([-2.0, 0.5, 3.0], dtype=torch.float64, requires_grad=True)
    for y in (torch.tensor([0, 1, 1]), torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64)):
        expected = xent.binary_cross_entropy(z.detach().numpy(), y.numpy(), **arguments)
        observed = xt.binary_cross_entropy(z, y, **arguments)
        np.testing.assert_allclose(observed.detach().numpy(), expected, rtol=1e-14)

        def loss(z: torch.Tensor, y: torch.Tensor = y) -> torch.Tensor:
            return xt.binary_cross_entropy(z, y, **arguments)

        assert gradcheck(loss, (z,))
        assert gradgradcheck(loss, (z,))


def test_nothing_leaks_from_a_binary_target_of_weight_zero() -> None:
    z = torch.tensor([math.nan, INF, -INF, 0.3], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0, 0, 1, 1])
    for arguments in ({}, {"pos_weight": 2.0}, {"reduction": "sum"}):
        loss = xt.binary_cross_entropy(z, y, sample_weight=[0.0, 0.0, 0.0, 0.5], **arguments)  # type: ignore[arg-type]
        expected = xent.binary_cross_entropy([0.3], [1], sample_weight=[0.5], **arguments)  # type: ignore[arg-type]
        assert loss.item() == pytest.approx(float(expected), rel=1e-15, abs=0)
        (gradient,) = torch.autograd.grad(loss, z)
        assert gradient[:3].tolist() == [0, 0, 0] and gradient[3] != 0
    assert xt.binary_cross_entropy(z, y, sample_weight=[0.0, 0, 0, 1], reduction="none")[:3].tolist() == [
        0,
        0,
        0,
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("smoothing", [1e-5, 1e-3, 0.1])
def test_a_small_smoothing_keeps_its_digits(smoothing: float, dtype: torch.dtype) -> None:
    """1 less the mass of the label has lost them: at 1e-5 hundreds of epsilons, in float32 more than 10,000."""
    for sign, y in ((1, 1), (-1, 0)):  # sure and right: the loss is what the smoothing takes, times the logit
        z = torch.tensor(sign * 80.0, dtype=dtype, requires_grad=True)
        loss = xt.binary_cross_entropy(z, torch.tensor(y), label_smoothing=smoothing)
        (slope,) = torch.autograd.grad(loss, z)
        array = np.array(sign * 80.0, str(dtype).removeprefix("torch."))
        by_array = xent.gradients.binary_cross_entropy_gradient(array, y, label_smoothing=smoothing)
        for found, due in (
            (loss.item(), smoothing / 2 * 80),
            (xent.binary_cross_entropy(array, y, label_smoothing=smoothing), smoothing / 2 * 80),
            (sign * slope.item(), smoothing / 2),
            (sign * by_array, smoothing / 2),
        ):
            assert abs(float(found) / due - 1) <= 4 * torch.finfo(dtype).eps


def test_a_binary_target_in_float64_keeps_what_it_leaves_of_one() -> None:
    z, y = torch.tensor([40.0]), torch.tensor([1 - 1e-10], dtype=torch.float64)
    torch.testing.assert_close(xt.binary_cross_entropy(z, y), xt.binary_cross_entropy(z.double(), y).float())
    torch.testing.assert_close(xt.binary_log_loss(torch.ones(1), y), torch.tensor(math.inf))


def test_binary_cross_entropy_in_both_tails() -> None:
    z = torch.tensor([-20.0, 20.0, -200.0, INF, -INF, INF, -INF], requires_grad=True)
    y = torch.tensor([0, 1, 1, 1, 0, 0, 1])
    losses = xt.binary_cross_entropy(z, y, reduction="none")
    small = math.log1p(math.exp(-20))
    expected = torch.tensor([small, small, 200.0, 0.0, 0.0, INF, INF])
    torch.testing.assert_close(losses, expected, rtol=4 * torch.finfo(z.dtype).eps, atol=0)
    losses.sum().backward()
    assert not z.grad.isnan().any()


@pytest.mark.parametrize("name", ["log_sum_exp", "log_softmax", "softmax", "sigmoid", "log_sigmoid"])
def test_numerics_values_and_derivatives(name: str) -> None:
    function = getattr(xt, name)
    z, _ = logits_and_labels(6)
    np.testing.assert_allclose(function(z).numpy(), getattr(xent, name)(z.numpy()), rtol=1e-14)
    z.requires_grad_()
    assert gradcheck(function, (z,))
    assert gradgradcheck(function, (z,))


def test_infinite_logits() -> None:
    z = torch.tensor([[0.0, -INF, 1.0]], requires_grad=True)
    assert xt.cross_entropy(z, torch.tensor([1])).item() == INF
    assert xt.cross_entropy(z, torch.tensor([0]), label_smoothing=0.1).item() == INF
    loss = xt.soft_cross_entropy(z, torch.tensor([[0.5, 0.0, 0.5]]))
    loss.backward()
    assert loss.item() == pytest.approx(float(xent.soft_cross_entropy([[0.0, -INF, 1.0]], [[0.5, 0, 0.5]])))
    assert z.grad[0, 1] == 0 and not z.grad.isnan().any()
    assert xt.log_sum_exp(torch.tensor([INF, 0.0])) == INF
    assert xt.log_sum_exp(torch.tensor([-INF, -INF])) == -INF
    assert xt.cross_entropy(torch.tensor([[math.nan, 0.0]]), torch.tensor([0])).isnan()
    assert xt.cross_entropy(torch.tensor([[-INF, -INF]]), torch.tensor([0])).isnan()
    for classes in (1, 2, 20):  # +inf has no softmax, and the label's own makes all others as nothing
        row = torch.zeros(1, classes).index_fill(1, torch.tensor(0), INF)
        for label, smoothing in ((0, 0.0), (0, 0.1), (classes - 1, 0.0)):
            for z in (row, row.clone().requires_grad_()):
                assert xt.cross_entropy(z, torch.tensor([label]), label_smoothing=smoothing).isnan()


@pytest.mark.parametrize(
    "arguments",
    [{"ignore_index": 1}, {"weight": [1.0, 0.0]}, {"ignore_index": 1, "label_smoothing": 0.1}],
    ids=str,
)
def test_nothing_leaks_from_a_row_that_does_not_count(arguments: dict[str, Any]) -> None:
    # torch's own loss stays finite here, but hands a nan to the ignored row's gradient.
    z = torch.tensor([[math.nan, INF], [0.3, -0.2]], dtype=torch.float64, requires_grad=True)
    loss = xt.cross_entropy(z, torch.tensor([1, 0]), **arguments)
    alone = xent.cross_entropy([[0.3, -0.2]], [0], label_smoothing=arguments.get("label_smoothing", 0.0))
    assert loss.item() == pytest.approx(float(alone), rel=1e-15, abs=0)
    (first,) = torch.autograd.grad(loss, z, create_graph=True)
    (second,) = torch.autograd.grad(first[1, 0], z, create_graph=True)
    (third,) = torch.autograd.grad(second[1, 0], z)
    for derivative in (first, second, third):
        assert derivative[0].tolist() == [0, 0] and not derivative.isnan().any()
    # p = sigmoid(0.5): its derivatives are p (1 - p), and p (1 - p) (1 - 2p).
    if "label_smoothing" not in arguments:
        p = 1 / (1 + math.exp(-0.5))
        expected = [p - 1, p * (1 - p), p * (1 - p) * (1 - 2 * p)]
        observed = [derivative[1, 0].item() for derivative in (first, second, third)]
        np.testing.assert_allclose(observed, expected, rtol=1e-13)


def test_nothing_leaks_through_nll_and_log_loss_either() -> None:
    p = torch.tensor([[0.0, 1.0], [0.25, 0.75]], dtype=torch.float64, requires_grad=True)
    loss = xt.log_loss(p, torch.tensor([-100, 1]), ignore_index=-100)
    loss.backward()
    assert p.grad.tolist() == [[0, 0], [0, pytest.approx(-4 / 3)]]
    log_p = torch.tensor([[-INF, 0.0], [0.0, -INF]], requires_grad=True)
    loss = xt.nll(log_p, torch.tensor([-100, 0]), ignore_index=-100)
    loss.backward()
    assert loss.item() == 0 and log_p.grad.tolist() == [[0, 0], [-1, 0]]
    # A class of weight zero, alone and beside an ignored target, whose class has a weight of its own.
    p = torch.tensor([[0.0, 1.0, 0.0], [0.25, 0.5, 0.25], [0.0, 0.5, 0.5]], dtype=torch.float64)
    y, w = torch.tensor([2, 1, -100]), [3.0, 2.0, 0.0]
    for function, x, slope in ((xt.log_loss, p, -2.0), (xt.nll, p.log(), -1.0)):
        x.requires_grad_()
        for rows in (2, 3):
            loss = function(x[:rows], y[:rows], weight=w, ignore_index=-100 if rows == 3 else None)  # type: ignore[operator]
            (gradient,) = torch.autograd.grad(loss, x)
            assert loss.item() == pytest.approx(math.log(2), rel=1e-15, abs=0)
            assert gradient.tolist() == [[0, 0, 0], [0, slope, 0], [0, 0, 0]]
    # A distribution all of whose classes have weight zero, whatever the logits are.
    for row in ([INF, 0.0], [-INF, -INF], [math.nan, 0.0]):
        z = torch.tensor([row, [0.0, 0.0]], requires_grad=True)
        loss = xt.soft_cross_entropy(z, torch.tensor([[1.0, 0.0], [0.0, 1.0]]), weight=[0.0, 3.0])
        loss.backward()
        assert loss.item() == pytest.approx(math.log(2)) and z.grad.tolist() == [[0, 0], [0.5, -0.5]]


def test_half_precision_is_summed_in_float32() -> None:
    # 65,536 losses of about 2.7 overflow float16, whose largest number is 65,504.
    rng = np.random.default_rng(0)
    z = torch.from_numpy(rng.normal(size=(65_536, 10))).half().requires_grad_()
    y = torch.from_numpy(rng.integers(0, 10, 65_536))
    loss = xt.cross_entropy(z, y)
    assert loss.dtype == torch.float32
    expected = xent.cross_entropy(z.detach().double().numpy(), y.numpy())
    assert loss.item() == pytest.approx(float(expected), rel=1e-6, abs=0)
    loss.backward()
    assert z.grad.dtype == torch.float16 and not z.grad.isnan().any()


@given(st.integers(0, 10_000), st.integers(1, 5), st.floats(-50, 50))
@settings(max_examples=50, deadline=None)
def test_shift_and_partition(seed: int, cut: int, shift: float) -> None:
    z, y = logits_and_labels(seed)
    whole = xt.cross_entropy(z, y)
    parts = xt.cross_entropy(z[:cut] + shift, y[:cut], denominator=6) + xt.cross_entropy(
        z[cut:], y[cut:], denominator=6
    )
    # A shift rounds each logit, by an ulp of about 64.
    torch.testing.assert_close(whole, parts, rtol=1e-13, atol=1e-14)


Z, Y = torch.zeros(2, 3), torch.tensor([0, 1])
BAD: list[tuple[str, Any, type[Exception], str]] = [
    ("label too large", lambda: xt.cross_entropy(Z, Y * 3), ValueError, r"targets: .*\[0, 3\).*3 at index 1"),
    ("negative label", lambda: xt.cross_entropy(Z, torch.tensor([-100, 0])), ValueError, "targets: .*-100"),
    ("float label", lambda: xt.cross_entropy(Z, torch.tensor([0.0, 1.0])), TypeError, "targets: .*float32"),
    ("bool label", lambda: xt.cross_entropy(Z, torch.tensor([True, False])), TypeError, "targets: .*bool"),
    ("array logits", lambda: xt.cross_entropy(np.zeros((2, 3)), Y), TypeError, "logits: .*ndarray"),
    ("integer logits", lambda: xt.cross_entropy(Z.long(), Y), TypeError, "logits: .*int64"),
    ("shape", lambda: xt.cross_entropy(Z, Y[:, None]), ValueError, r"targets: .*\(2,\).*\(2, 1\)"),
    ("axis", lambda: xt.cross_entropy(Z, Y, axis=2), ValueError, "axis: .*2"),
    ("scalar", lambda: xt.cross_entropy(torch.tensor(0.0), Y), ValueError, "logits: "),
    ("no classes", lambda: xt.softmax(torch.zeros(2, 0)), ValueError, "logits: .*class"),
    ("all ignored", lambda: xt.cross_entropy(Z, Y * 0, ignore_index=0), ValueError, "targets: .*none"),
    ("empty", lambda: xt.cross_entropy(Z[:0], Y[:0]), ValueError, "targets: .*none"),
    ("zero weights", lambda: xt.cross_entropy(Z, Y, weight=[0, 0, 1]), ValueError, "targets: .*none"),
    ("weight shape", lambda: xt.cross_entropy(Z, Y, weight=[1.0, 1.0]), ValueError, r"weight: .*\(3,\)"),
    ("negative weight", lambda: xt.cross_entropy(Z, Y, weight=[1.0, -1, 1]), ValueError, "weight: .*-1"),
    ("nan weight", lambda: xt.cross_entropy(Z, Y, weight=[1.0, math.nan, 1]), ValueError, "weight: .*nan"),
    ("smoothing", lambda: xt.cross_entropy(Z, Y, label_smoothing=1.5), ValueError, "label_smoothing: .*1.5"),
    ("reduction", lambda: xt.cross_entropy(Z, Y, reduction="avg"), ValueError, "reduction: .*'avg'"),
    ("denominator", lambda: xt.cross_entropy(Z, Y, denominator=0), ValueError, "denominator: .*0"),
    ("two divisors", lambda: xt.cross_entropy(Z, Y, reduction="sum", denominator=2), ValueError, "denom"),
    ("row sum", lambda: xt.soft_cross_entropy(Z, Z + 0.5), ValueError, "target_probs: .*1.5"),
    ("negative probability", lambda: xt.soft_cross_entropy(Z, Z - 1), ValueError, "target_probs: .*-1"),
    ("soft shape", lambda: xt.soft_cross_entropy(Z, Z[:1]), ValueError, "target_probs: .*shape"),
    ("logits to nll", lambda: xt.nll(Z, Y), ValueError, "log_probs: .*logits"),
    ("logits to log_loss", lambda: xt.log_loss(Z + 2, Y), ValueError, "probs: .*2"),
    ("eps", lambda: xt.log_loss(Z + 1 / 3, Y, eps=0.5), ValueError, "eps: .*0.5"),
    ("binary target", lambda: xt.binary_cross_entropy(Z, Z + 3), ValueError, "targets: .*3"),
    ("binary shape", lambda: xt.binary_cross_entropy(Z, Z[0]), ValueError, "targets: .*shape"),
    ("pos_weight axis", lambda: xt.binary_cross_entropy(Z, Z, pos_weight=[1.0, 2]), ValueError, "pos_weight"),
    ("binary 1.5", lambda: xt.binary_cross_entropy(Z, Z + 1.5), ValueError,
     r"targets: .*1\.5 at index \(0, 0\)"),
    ("pos_weight nan", lambda: xt.binary_cross_entropy(Z, Z, pos_weight=math.nan), ValueError,
     "^pos_weight: .*nan"),
    ("pos_weight that is none", lambda: xt.binary_cross_entropy(Z, Z, pos_weight=[1.0] * 2), ValueError,
     r"^pos_weight: expected a shape that broadcasts to \(2, 3\), that of the logits, got \(2,\)"),
    ("smoothing kind", lambda: xt.cross_entropy(Z, Y, label_smoothing=-1), ValueError,
     r"^label_smoothing: expected a number in \[0, 1\], got -1"),
    ("eps kind", lambda: xt.log_loss(Z + 1 / 3, Y, eps=-1), ValueError,
     r"^eps: expected a number in \[0, 1/2\), got -1"),
    ("binary target shape", lambda: xt.binary_cross_entropy(Z, Z[0]), ValueError,
     r"^targets: expected shape \(2, 3\), that of logits, got \(3,\)"),
    ("binary weight shape", lambda: xt.binary_cross_entropy(Z, Z, sample_weight=Z[:, 0]), ValueError,
     r"^sample_weight: expected a shape that broadcasts to \(2, 3\), that of the logits, got \(2,\)"),
    ("soft shapes", lambda: xt.soft_cross_entropy(Z, Z[0]), ValueError,
     r"^target_probs: expected shape \(2, 3\), that of logits, got \(3,\)"),
    ("second sum", lambda: xt.soft_cross_entropy(Z, torch.tensor([[0.5, 0.25, 0.25], [0.5] * 3])),
     ValueError, r"^target_probs: .*got a sum of 1\.5 at index 1$"),
    ("second log-sum", lambda: xt.nll(torch.tensor([[0.5, 0.25, 0.25], [1.0] * 3]).log(), Y), ValueError,
     r"^log_probs: .*got a log-sum-exp of 1\.09861 at index 1;"),
    ("labels elsewhere", lambda: xt.cross_entropy(Z, elsewhere(Y)), ValueError,
     "^targets: expected the device of the logits, cpu, got cuda:7"),
    ("soft targets elsewhere", lambda: xt.soft_cross_entropy(Z, elsewhere(Z)), ValueError,
     "^target_probs: expected the device of the logits, cpu, got cuda:7"),
    ("binary elsewhere", lambda: xt.binary_cross_entropy(Z, elsewhere(Z)), ValueError,
     "^targets: expected the device of the logits, cpu, got cuda:7"),
    ("pos_weight zero", lambda: xt.binary_cross_entropy(Z, Z, pos_weight=0.0), ValueError, "pos_weight: "),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_input(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_inputs_stay_as_they_were() -> None:
    z, y = logits_and_labels(9)
    before = z.clone(), y.clone()
    for arguments in ARGUMENTS:
        xt.cross_entropy(z, y, **arguments)
    xt.soft_cross_entropy(z, torch.softmax(z, -1))
    assert torch.equal(z, before[0]) and torch.equal(y, before[1])


DENSE = (xt.cross_entropy, "logits"), (xt.cross_entropy, "targets"), (xt.cross_entropy, "weight")


@pytest.mark.parametrize("function, name", [*DENSE, (xt.binary_cross_entropy, "pos_weight")])
def test_tensors_that_are_not_dense_are_refused_by_name(function: Any, name: str) -> None:
    binary = {"logits": Z, "targets": Z, "pos_weight": torch.ones(3)}
    good = binary if name == "pos_weight" else {"logits": Z, "targets": Y, "weight": torch.ones(3)}
    function(**good)
    nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)
    for bad, got in (
        (good[name].to_sparse(), "a dense tensor, got layout torch.sparse_coo$"),
        (nested, "a dense tensor, got layout nested$"),
    ):
        with pytest.raises(TypeError, match=f"^{name}: expected {got}"):
            function(**good | {name: bad})
    if "weight" in name:
        for mask in (torch.tensor([True, False, True]), [True, False, True]):
            if name == "weight":
                assert function(**good | {name: mask}) == function(**good | {name: [1.0, 0.0, 1.0]})
        assert function(**good | {name: np.ones(3)}).dtype == torch.float32


def test_weights_with_an_infinite_sum() -> None:
    z, y = logits_and_labels(16, (4, 3))
    with pytest.raises(ValueError, match=r"^weight: expected weights with a finite sum, got .* inf$"):
        xt.cross_entropy(z, y, weight=[1.5e308] * 3)


@pytest.mark.parametrize("ignored", [-(2**63), -1000, -1, 156, 1000, 2**63 - 1])
def test_any_label_of_64_bits_may_be_ignored(ignored: int) -> None:
    expected = xt.cross_entropy(Z[:1], Y[:1])
    assert xt.cross_entropy(Z, torch.tensor([0, ignored]), ignore_index=ignored) == expected


def test_what_no_label_can_be_ignores_none() -> None:
    z, y = logits_and_labels(17, (4, 3))
    for ignored in (2**63, -(2**63) - 1, 2**64, 10**30, -(10**30)):
        assert xt.cross_entropy(z, y, ignore_index=ignored) == xt.cross_entropy(z, y)
    # -100 in the eight bits of these labels is 156, which is a class here.
    z, y = torch.zeros(1, 200), torch.tensor([156], dtype=torch.uint8)
    assert xt.cross_entropy(z, y, ignore_index=-100) == xt.cross_entropy(z, y)


def test_a_smoothing_that_is_zero_in_the_dtype_is_zero() -> None:
    z, y = torch.tensor([[0.0, -INF]]), torch.tensor([0])
    tiny = torch.finfo(z.dtype).tiny
    assert xt.cross_entropy(z, y, label_smoothing=tiny / 4) == 0
    assert xt.cross_entropy(z, y, label_smoothing=tiny) == INF
    assert xt.binary_cross_entropy(torch.tensor([-INF]), y, label_smoothing=tiny / 4) == 0
    assert xt.binary_cross_entropy(torch.tensor([-INF]), y, label_smoothing=tiny) == INF


@pytest.mark.parametrize("clip", [1e-3, 1e-8, 1e-17, 1e-30, 1e-39])
def test_a_clip_holds_where_its_upper_end_rounds_to_one(clip: float) -> None:
    p = torch.tensor([0.0, 0.25, 1.0], requires_grad=True)
    y = torch.zeros(3, dtype=torch.long)
    for binary, rows, targets in ((False, torch.stack([p, 1 - p], -1), y), (True, p, y), (True, p, y + 1)):
        name = "binary_log_loss" if binary else "log_loss"
        losses = getattr(xt, name)(rows, targets, eps=clip, reduction="none")
        arrays = rows.detach().numpy(), targets.numpy()
        expected = getattr(xent, name)(*arrays, eps=clip, reduction="none")
        np.testing.assert_allclose(losses.detach().numpy(), expected, rtol=1e-6)
        if clip > 1e-38:
            assert (torch.autograd.grad(losses.sum(), p)[0] != 0).tolist() == [False, True, False]


def test_weights_in_another_dtype_leave_the_loss_in_that_of_the_logits() -> None:
    z = torch.zeros(2, 3)
    for reduction in ("none", "sum", "mean"):
        for loss in (
            xt.cross_entropy(z, torch.tensor([0, 1]), weight=[1.0, 2.0, 3.0], reduction=reduction),  # type: ignore[arg-type]
            xt.binary_cross_entropy(z, torch.ones(2, 3), sample_weight=np.ones((2, 3)), reduction=reduction),  # type: ignore[arg-type]
        ):
            assert loss.dtype == torch.float32


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 1.5, 2.0, 5.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_focal_losses_are_differentiable_where_a_power_would_overflow(
    dtype: torch.dtype, gamma: float
) -> None:
    """To the third order, against mpmath: p^(gamma - 2) overflows from a margin of 60 on in float32."""

    def loss(x: Any) -> Any:
        p = 1 / (1 + mpmath.exp(-x))
        return -((1 - p) ** gamma) * mpmath.log(p)

    margins = [-100.0, -60.0, -5.0, 0.5, 5.0, 60.0, 100.0]
    z = torch.tensor(margins, dtype=dtype, requires_grad=True)
    rows = torch.stack([z, torch.zeros_like(z)], -1)
    labels = torch.zeros(len(z), dtype=torch.long)
    tiny = torch.finfo(dtype).tiny / torch.finfo(dtype).eps
    slope = xt.focal_loss(rows, labels, gamma=gamma, reduction="sum")
    for order in (1, 2, 3):
        (slope,) = torch.autograd.grad(slope.sum(), z, create_graph=True)
        with mpmath.workdps(80):
            exact = [float(mpmath.diff(loss, mpmath.mpf(x), order)) for x in margins]
        # Small first derivatives keep their digits; PyTorch takes the second of log(sigmoid) by subtraction.
        size = np.abs(exact) + tiny if order == 1 else 1.0
        room = 40 * (1 + gamma) ** order * (8 + np.abs(margins)) * torch.finfo(dtype).eps
        assert (np.abs(slope.detach().numpy() - exact) <= room * size).all(), order
    # Of a loss of inf it has the limit, as on arrays.
    impossible = torch.tensor([[-math.inf, 0.0, 0.0]], dtype=dtype, requires_grad=True)
    label = torch.tensor([0])
    (slope,) = torch.autograd.grad(xt.focal_loss(impossible, label, gamma=gamma), impossible)
    expected = xent.gradients.focal_loss_gradient(impossible.detach().numpy(), [0], gamma=gamma)
    np.testing.assert_array_equal(slope.numpy(), expected)


@pytest.mark.parametrize("function", [xt.binary_cross_entropy, xt.binary_log_loss])
def test_the_gradient_by_a_target_of_zero_or_one(function: Any) -> None:
    # The loss is linear in the target, also where one side has no mass.
    x = torch.tensor([0.3, 0.9, 0.2], dtype=torch.float64)
    for target in (0.0, 0.5, 1.0):
        y = torch.full_like(x, target, requires_grad=True)
        (slope,) = torch.autograd.grad(function(x, y, reduction="sum"), y)
        ends = (function(x, torch.full_like(x, end), reduction="none") for end in (1.0, 0.0))
        torch.testing.assert_close(slope, next(ends) - next(ends))


def test_a_label_that_is_no_whole_number_is_not_ignored() -> None:
    probs, names = torch.tensor([[0.25, 0.75]]), [0.5, 1.5]
    for targets in (torch.tensor([0.5]), torch.tensor([0.5], dtype=torch.float64)):
        loss = xt.log_loss(probs, targets, labels=names, ignore_index=0)
        assert loss.item() == pytest.approx(math.log(4), rel=1e-6)
    both = xt.log_loss(
        probs.expand(2, 2), torch.tensor([0.5, 1.0]), labels=names, ignore_index=1, reduction="none"
    )
    assert both[1] == 0 and both[0] > 0


def test_labels_beyond_the_integers_of_float64_are_told_apart() -> None:
    labels = [2**60, 2**60 + 1]
    found = xt.log_loss(torch.tensor([[0.75, 0.25]]), torch.tensor([labels[1]]), labels=labels)
    assert found.item() == pytest.approx(math.log(4))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3, 1), (5, 7), (300, 4_000)])
def test_selected_log_probs_are_those_of_the_losses(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Also over more than a block of rows, with large margins, an ignored row of nan, and one upstream of nothing."""
    z = (30 * torch.randn(shape, generator=torch.Generator().manual_seed(0))).to(dtype)
    y = torch.randint(shape[1], shape[:1], generator=torch.Generator().manual_seed(1))
    z[1], y[1] = math.nan, -100
    ours, theirs = z.clone().requires_grad_(), z.double().requires_grad_()
    log_p, entropy = xt.selected_log_probs(ours, y, temperature=2.0, ignore_index=-100, entropy=True)
    rows = theirs[[0, *range(2, len(z))]] / 2
    of_rows = torch.log_softmax(rows, -1)
    exact = of_rows.gather(1, y[y >= 0][:, None])[:, 0], -(of_rows.exp() * of_rows).sum(-1)
    eps = torch.finfo(log_p.dtype).eps
    for found, true in zip((log_p, entropy), exact, strict=True):
        assert found[1] == 0
        torch.testing.assert_close(found[y >= 0].double(), true, rtol=100 * eps, atol=100 * eps)
    upstream = torch.linspace(-1, 2, len(z), dtype=log_p.dtype)
    upstream[2] = 0
    (slope,) = torch.autograd.grad((upstream * log_p - 0.5 * entropy).sum(), ours)
    (due,) = torch.autograd.grad((upstream[y >= 0].double() * exact[0] - 0.5 * exact[1]).sum(), theirs)
    half = torch.finfo(dtype).eps
    torch.testing.assert_close(slope.double(), due, rtol=half + 200 * eps, atol=200 * eps)
    assert not slope[1].any()
