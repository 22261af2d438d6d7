"""`xent.torch`'s distillation losses against `xent.distillation`, autograd and the closed forms."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import xent.torch as xt
from xent import distillation


class Elsewhere(torch.Tensor):
    """A tensor that says it lies on a second device, which this machine need not have."""

    device = torch.device("cuda", 7)


def elsewhere(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor as one of another device."""
    return tensor.as_subclass(Elsewhere)


INF, NAN = math.inf, math.nan


def logits(seed: int, shape: tuple[int, ...] = (4, 5)) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=shape) * 2), torch.from_numpy(rng.normal(size=shape) * 2)


SETTINGS: list[dict[str, Any]] = [
    {"temperature": t, "scale": s, "direction": d}
    for t in (0.5, 1.0, 4.0, 1e4)
    for s in ("t_squared", "none")
    for d in ("forward", "reverse")
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_value_and_gradient(settings: dict[str, Any]) -> None:
    z, v = logits(0)
    w = [1.0, 0.0, 2.0, 0.5]
    z.requires_grad_()
    v.requires_grad_()
    loss = xt.distillation_loss(z, v, sample_weight=w, **settings)
    loss.backward()
    arrays = z.detach().numpy(), v.detach().numpy()
    np.testing.assert_allclose(
        loss.item(), distillation.distillation_loss(*arrays, sample_weight=w, **settings), rtol=1e-12
    )
    closed = distillation.distillation_gradient(*arrays, sample_weight=w, **settings)
    np.testing.assert_allclose(z.grad.numpy(), closed, rtol=1e-9, atol=1e-16)
    assert v.grad is None

    # autograd through the definition, written out with torch's own functions
    u = z.detach().requires_grad_()
    t = settings["temperature"]
    log_q, log_p = torch.log_softmax(u / t, -1), torch.log_softmax(v.detach() / t, -1)
    a, b = (log_p, log_q) if settings["direction"] == "forward" else (log_q, log_p)
    each = (a.exp() * (a - b)).sum(-1) * (t**2 if settings["scale"] == "t_squared" else 1)
    ((each * torch.tensor(w)).sum() / 3.5).backward()
    np.testing.assert_allclose(closed, u.grad.numpy(), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("temperature", [1.0, 4.0, 100.0, 1e4, 1e8])
def test_the_gradient_keeps_its_digits_in_float32(temperature: float, direction: Any) -> None:
    z, v = (x.float() for x in logits(7, (50, 10)))
    arrays = z.double().numpy(), v.double().numpy()
    z.requires_grad_()
    settings: dict[str, Any] = {"temperature": temperature, "direction": direction, "reduction": "sum"}
    xt.distillation_loss(z, v, **settings).backward()
    exact = distillation.distillation_gradient(*arrays, **settings)
    np.testing.assert_allclose(z.grad.numpy(), exact, rtol=0, atol=1e-6 * np.abs(exact).max())


@pytest.mark.parametrize("temperature", [1.0, 1e6])
def test_impossible_classes_have_a_gradient_and_a_second_one(temperature: float) -> None:
    rows = [[0.3, 0.0, -INF]], [[0.0, 0.1, -INF]], [[0.0, 0.1, 0.2]]
    for z, v in ((rows[0], rows[1]), (rows[0], rows[2]), (rows[2], rows[0])):
        u = torch.tensor(z, dtype=torch.float64, requires_grad=True)
        loss = xt.distillation_loss(u, torch.tensor(v, dtype=torch.float64), temperature=temperature)
        (first,) = torch.autograd.grad(loss, u, create_graph=True)
        expected = distillation.distillation_gradient(z, v, temperature=temperature)
        np.testing.assert_allclose(first.detach().numpy(), expected, rtol=1e-9, atol=1e-15)
        (second,) = torch.autograd.grad(first[0, 0], u)
        # The Hessian's first row is q_0 (e_0 - q), with T^2 / T^2 in front.
        q = torch.softmax(u.detach() / temperature, -1)[0]
        row = q[0] * (torch.tensor([1.0, 0.0, 0.0]) - q)
        np.testing.assert_allclose(second.numpy()[0], row.numpy(), rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("temperature", [0.25, 1.0, 8.0])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_rows_of_every_kind_are_those_of_numpy(temperature: float, direction: Any) -> None:
    # Close, far apart, shifted, with classes that one or both rule out, and with such that underflow.
    rng = np.random.default_rng(3)
    z = np.round(rng.normal(size=(9, 5)) * 2.0**24) / 2.0**24
    v = z + rng.integers(-9, 10, z.shape) / 2.0**24
    z[1], v[1] = 40.0 * np.arange(5), -40.0 * np.arange(5)
    z[2], v[2] = z[2] + 64, v[2] - 64
    z[3], v[3] = z[3] - 1e4, v[3] + 1e4
    z[4:7, 4] = v[4:7, 4] = -INF
    z[5], v[5] = z[5] + 16, v[5] - 16
    v[7, 3:] = [-2000.0 * temperature, -INF] if direction == "forward" else [-300.0 * temperature] * 2
    z[8, 3:] = [-2000.0 * temperature, -INF] if direction == "reverse" else [-300.0 * temperature] * 2
    settings: dict[str, Any] = {"temperature": temperature, "direction": direction, "reduction": "none"}
    for scale, shape in (("t_squared", (9, 5)), ("none", (9, 5)), ("none", (3, 3, 5))):
        settings["scale"] = scale
        z, v = z.reshape(shape), v.reshape(shape)
        u = torch.from_numpy(z).requires_grad_()
        losses = xt.distillation_loss(u, torch.from_numpy(v), **settings)
        expected = distillation.distillation_loss(z, v, **settings)
        np.testing.assert_allclose(losses.detach().numpy(), expected, rtol=4e-12)
        losses.sum().backward()
        gradient = distillation.distillation_gradient(z, v, **settings)
        np.testing.assert_allclose(u.grad.numpy(), gradient, rtol=1e-9, atol=1e-16 * np.abs(gradient).max())


def test_a_small_temperature_does_not_overflow() -> None:
    z = np.array([[1e300, 1e300 / 2], [0.0, -1e-9], [-1e300 / 2, -1e300]])
    for function in (xt.distillation_loss, distillation.distillation_loss):
        arrays: Any = (z, z[:, ::-1].copy())
        if function is xt.distillation_loss:
            arrays = [torch.from_numpy(array) for array in arrays]
        losses = function(*arrays, temperature=1e-9, scale="none", reduction="none")
        # The row between the others: KL of softmax(0, -1) and softmax(-1, 0) is tanh(1 / 2).
        assert float(losses[1]) == pytest.approx(math.tanh(0.5), rel=1e-12, abs=0)
        assert float(losses[0]) == float(losses[2]) == pytest.approx(5e308, rel=1e-12, abs=0) or math.isinf(
            losses[0]
        )


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("shape", [(4, 5), (2, 3, 5)])
def test_derivatives_to_second_order_in_several_dimensions(shape: tuple[int, ...], direction: Any) -> None:
    z, v = logits(9, shape)
    z.requires_grad_()

    def loss(z: torch.Tensor) -> torch.Tensor:
        return xt.distillation_loss(z, v, temperature=3.0, direction=direction)

    assert gradcheck(loss, (z,))
    assert gradgradcheck(loss, (z,))


def calls(shape: tuple[int, ...], k: int = 2) -> list[tuple[str, tuple[torch.Tensor, ...]]]:
    """Arguments of every loss, classes last: logits, and k classes of each row with their probabilities."""
    z, v = logits(21, shape)
    log_p, at = torch.log_softmax(v, -1).topk(k)
    y = torch.from_numpy(np.random.default_rng(21).integers(0, shape[-1], shape[:-1]))
    return [
        ("distillation_loss", (z, v)),
        ("mixed_loss", (z, v, y)),
        ("top_k_loss", (z, log_p, at)),
        ("sampled_loss", (z, at, log_p.exp())),
    ]


NAMES = [name for name, _ in calls((2, 3))]


def number_of(losses: torch.Tensor) -> np.ndarray:
    return losses.detach().numpy()


@pytest.mark.parametrize("name", NAMES)
def test_nothing_leaks_from_a_row_that_does_not_count(name: str) -> None:
    z, *others = dict(calls((4, 5)))[name]
    function = getattr(xt, name)
    out: dict[str, Any] = (
        {"ignore_index": -100} if name == "mixed_loss" else {"sample_weight": [1.0, 1.0, 0.0, 0.0]}
    )
    if name == "mixed_loss":
        others[1][2:] = -100
    alone = function(z[:2], *(a[:2] for a in others))
    if name in ("distillation_loss", "mixed_loss"):
        others[0][2], others[0][3] = NAN, INF
    z[2], z[3] = -INF, NAN
    z.requires_grad_()
    for alpha in ({}, {"alpha": 0.0}, {"alpha": 1.0}) if name == "mixed_loss" else ({},):
        loss = function(z, *others, **out, **alpha)
        assert alpha or loss.item() == pytest.approx(alone.item(), rel=1e-14, abs=0)
        (gradient,) = torch.autograd.grad(loss, z)
        assert (gradient[2:] == 0).all() and gradient[:2].isfinite().all() and (gradient[:2] != 0).any()
        assert (function(z, *others, **out, **alpha, reduction="none")[2:] == 0).all()


def test_a_part_of_the_mixture_without_weight_may_be_infinite() -> None:
    z = torch.tensor([[0.0, -INF]])
    flat, y = torch.zeros(1, 2), torch.tensor([0])
    assert xt.mixed_loss(z, flat, y, alpha=0.0) == 0
    assert xt.mixed_loss(z, flat, y, alpha=0.5) == INF
    assert xt.mixed_loss(z, z, y + 1, alpha=1.0) == 0
    assert xt.mixed_loss(z, z, y + 1, alpha=0.5) == INF
    assert xt.mixed_loss(torch.zeros(1, 1), torch.zeros(1, 1), y) == 0  # one class is certain


@pytest.mark.parametrize("name", NAMES)
def test_dtypes(name: str) -> None:
    arguments = dict(calls((4, 5)))[name]
    expected = getattr(xt, name)(*arguments, reduction="none")

    def cast(*dtypes: torch.dtype) -> Any:
        kinds = iter(dtypes)
        return [a.to(next(kinds)) if a.is_floating_point() else a for a in arguments]

    half, single, double = torch.float16, torch.float32, torch.float64
    for kinds, dtype in (((half, half), single), ((single, half), single), ((double, single), double)):
        observed = getattr(xt, name)(*cast(*kinds), reduction="none")
        assert observed.dtype == dtype
        atol = 40 * max(torch.finfo(kind).eps for kind in kinds)
        np.testing.assert_allclose(observed.numpy(), expected.numpy(), rtol=0, atol=atol)
    # Rounded once, where they came from, and not again.
    for kinds in ((single, double), (double, single)) if name != "sampled_loss" else ():
        observed = getattr(xt, name)(*cast(*kinds), reduction="none")
        widened = [a.double() if a.is_floating_point() else a for a in cast(*kinds)]
        exact = getattr(xt, name)(*widened, reduction="none")
        assert torch.equal(observed, exact)
    # The weights of samples are mere numbers; the other arguments count.
    wider = single if name == "sampled_loss" else double
    assert getattr(xt, name)(*cast(single, double)).dtype == wider


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_derivatives_to_second_order(direction: Any) -> None:
    z, v = logits(1)
    z.requires_grad_()

    def loss(z: torch.Tensor) -> torch.Tensor:
        return xt.distillation_loss(z, v, temperature=2.0, direction=direction)

    assert gradcheck(loss, (z,))
    assert gradgradcheck(loss, (z,))


@pytest.mark.parametrize("treatment", ["truncated", "renormalised", "renormalised_both", "tail"])
def test_top_k(treatment: Any) -> None:
    z, v = logits(2)
    log_p, at = torch.log_softmax(v, -1).topk(3)
    z.requires_grad_()
    w = [1.0, 2.0, 0.0, 0.5]

    def loss(z: torch.Tensor) -> torch.Tensor:
        return xt.top_k_loss(z, log_p, at, treatment=treatment, sample_weight=w)

    expected = distillation.top_k_loss(
        z.detach().numpy(), log_p.numpy(), at.numpy(), treatment=treatment, sample_weight=w
    )
    assert loss(z).item() == pytest.approx(expected, rel=1e-12, abs=0)
    assert gradcheck(loss, (z,))
    assert gradgradcheck(loss, (z,))
    moved = xt.top_k_loss(z.T, log_p.T, at.T, treatment=treatment, sample_weight=w, axis=0)
    assert moved.item() == pytest.approx(expected, rel=1e-12, abs=0)


def test_a_tail_that_is_empty_has_a_gradient() -> None:
    z = torch.tensor([[0.0, 1.0, -INF]], requires_grad=True)
    xt.top_k_loss(z, torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0, 1]])).backward()
    assert z.grad.isfinite().all()


def test_top_probabilities_of_zero_and_tails_of_zero() -> None:
    # A class of the top k whose probability is zero costs nothing, also where the student rules it out.
    z = torch.tensor([[0.0, 0.0, -INF], [0.0, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    top, at = torch.tensor([[0.0, -INF], [0.0, -INF]]), torch.tensor([[0, 2], [0, 2]])
    for treatment in ("truncated", "renormalised", "renormalised_both", "tail"):
        losses = xt.top_k_loss(z, top, at, treatment=treatment, reduction="none")  # type: ignore[arg-type]
        expected = distillation.top_k_loss(
            z.detach().numpy(),
            top.numpy(),
            at.numpy(),
            treatment=treatment,
            reduction="none",  # type: ignore[arg-type]
        )
        np.testing.assert_allclose(number_of(losses), expected, rtol=1e-14)
        (gradient,) = torch.autograd.grad(losses.sum(), z)
        assert not gradient.isnan().any()
    half = torch.tensor([[0.5, 0.5]], dtype=torch.float64).log()
    at = torch.tensor([[0, 1]])
    assert abs(xt.top_k_loss(z[:1], half, at).item()) < 1e-15
    assert xt.top_k_loss(z[:1], half - 0.5, at).item() == INF
    # A sum that is over one by no more than rounding leaves no tail.
    over = xt.top_k_loss(torch.zeros(1, 3, dtype=torch.float64), half + 4e-7, at)
    assert over.item() == pytest.approx(math.log(1.5), rel=1e-5, abs=0)
    # With every class in it there is no tail, also where the sum falls short of one by rounding.
    student, teacher = (x.float() for x in logits(22, (50, 3)))
    whole = torch.log_softmax(teacher, -1)
    everything = torch.arange(3).expand(50, 3)
    assert (whole.exp().sum(-1) < 1).any()
    complete = xt.top_k_loss(student, whole, everything, reduction="none")
    truncated = xt.top_k_loss(student, whole, everything, treatment="truncated", reduction="none")
    assert torch.equal(complete, truncated)


@pytest.mark.parametrize("shape, k", [((2, 7, 5), 2), ((7, 2, 5), 3), ((2, 2, 6), 3), ((6, 2), 1)])
def test_a_tail_is_there_whatever_the_rows_are(shape: tuple[int, ...], k: int) -> None:
    arguments = dict(calls(shape, k))["top_k_loss"]
    expected = distillation.top_k_loss(*(a.numpy() for a in arguments), reduction="none")
    np.testing.assert_allclose(xt.top_k_loss(*arguments, reduction="none").numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_how_far_over_one_a_top_k_may_sum(dtype: torch.dtype) -> None:
    slack = {torch.float16: 1e-2, torch.bfloat16: 5e-2, torch.float32: 1e-4, torch.float64: 1e-6}[dtype]
    z, at = torch.zeros(2, 3), torch.tensor([[0, 1], [0, 1]])
    top = torch.full((2, 2), -40.0, dtype=dtype)
    top[1, 0] = math.log1p(0.8 * slack)
    xt.top_k_loss(z, top, at)
    top[1, 0] = math.log1p(1.2 * slack)
    with pytest.raises(ValueError, match=r"^top_log_probs: .*got a sum of 1(\.\d+)? at index 1$"):
        xt.top_k_loss(z, top, at)


def test_what_a_generator_draws_it_draws_again() -> None:
    v = logits(15, (3, 4, 6))[0]
    flat = xt.sample_targets(v.reshape(12, 6), 5, torch.Generator().manual_seed(2), proposal_temperature=0.5)
    for axis in (0, 1, 2):
        torch.manual_seed(axis)
        moved, generator = v.movedim(-1, axis), torch.Generator().manual_seed(2)
        drawn = xt.sample_targets(moved, 5, generator, proposal_temperature=0.5, axis=axis)
        for observed, expected in zip(drawn, flat, strict=True):
            assert torch.equal(observed.movedim(axis, -1).reshape(12, 5), expected)
    torch.testing.assert_close(xt.sample_targets(v, 1)[1], torch.ones(3, 4, 1, dtype=torch.float64))
    # What is subtracted before the division by a small tau is each row's own maximum.
    v = torch.tensor([[1e308, 1e308 / 2], [0.0, -0.001], [-1e308 / 2, -1e308]], dtype=torch.float64)
    indices, masses = xt.sample_targets(v, 1, generator, proposal_temperature=1e-5)
    assert (indices == 0).all()
    np.testing.assert_allclose(masses[:, 0], [1.0, 1 / (1 + math.exp(-0.001)), 1.0], rtol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_beside_a_sure_class_the_others_are_drawn(dtype: torch.dtype) -> None:
    # Of 150,000 classes one has all but a thousandth: a sum in float32 would round away each of the others.
    classes, draws, rest = 150_000, 200_000, 1e-3
    v = torch.zeros(1, classes, dtype=dtype)
    v[0, 0] = math.log(classes * (1 - rest) / rest)
    rest = float(1 - torch.softmax(v.double(), -1)[0, 0])
    indices, _ = xt.sample_targets(v, draws, torch.Generator().manual_seed(0))
    deviation = (float((indices != 0).sum()) - draws * rest) / math.sqrt(draws * rest)
    assert abs(deviation) < 5


def test_a_sampled_loss_leaves_out_what_weighs_nothing() -> None:
    z = torch.tensor([[0.0, 0.0, -INF]], requires_grad=True)
    at = torch.tensor([[0, 2]])
    loss = xt.sampled_loss(z, at, torch.tensor([[1.0, 0.0]]))
    assert loss.item() == pytest.approx(math.log(2), rel=1e-6, abs=0)
    (gradient,) = torch.autograd.grad(loss, z)
    torch.testing.assert_close(gradient, torch.tensor([[-0.5, 0.5, 0.0]]))
    assert xt.sampled_loss(z, at, torch.tensor([[1.0, 0.5]])) == INF
    for k in (1, 2):
        certain = xt.sampled_loss(torch.tensor([[0.0, -INF]]), at[:, [0] * k], torch.ones(1, k) / k)
        assert certain == 0 and not torch.signbit(certain).any()


def test_sampled_targets() -> None:
    z, v = logits(3)
    generator = torch.Generator().manual_seed(0)
    at, mass = xt.sample_targets(v, 6, generator, proposal_temperature=1.5)
    loss = xt.sampled_loss(z.requires_grad_(), at, mass)
    expected = distillation.sampled_loss(z.detach().numpy(), at.numpy(), mass.numpy())
    assert loss.item() == pytest.approx(expected, rel=1e-12, abs=0)
    p, r = torch.softmax(v, -1), torch.softmax(v / 1.5, -1)
    np.testing.assert_allclose(mass.numpy(), (p / r).gather(-1, at).numpy() / 6, rtol=1e-12)
    assert gradcheck(lambda z: xt.sampled_loss(z, at, mass), (z,))
    loss.backward()
    target = torch.zeros_like(v).scatter_add(-1, at, mass)
    closed = (mass.sum(-1, keepdim=True) * torch.softmax(z.detach(), -1) - target) / 4
    np.testing.assert_allclose(z.grad.numpy(), closed.numpy(), atol=1e-15)

    many = v[:1].expand(20_000, -1)
    for tau in (1.0, 2.0):
        at, mass = xt.sample_targets(many, 4, generator, proposal_temperature=tau)
        each = xt.sampled_loss(z.detach()[:1].expand(20_000, -1), at, mass, reduction="none")
        exact = xt.soft_cross_entropy(z.detach()[:1], torch.softmax(v[:1], -1)).item()
        assert abs(each.mean().item() - exact) < 4 * each.std().item() / math.sqrt(20_000)


@pytest.mark.parametrize("settings", [{}, {"scale": "none"}, {"direction": "reverse"}], ids=str)
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_the_mixture(alpha: float, settings: dict[str, Any]) -> None:
    z, v = logits(4)
    y = torch.tensor([0, -100, 4, 2])
    arguments: dict[str, Any] = {"alpha": alpha, "temperature": 3.0, "ignore_index": -100, **settings}
    expected = distillation.mixed_loss(z.numpy(), v.numpy(), y.numpy(), **arguments)
    assert xt.mixed_loss(z, v, y, **arguments).item() == pytest.approx(expected, rel=1e-12, abs=0)
    z[1] = NAN
    z.requires_grad_()
    loss = xt.mixed_loss(z, v, y, **arguments)
    loss.backward()
    assert loss.item() == pytest.approx(expected, rel=1e-12, abs=0)
    assert z.grad.isfinite().all() and (z.grad[1] == 0).all()


def test_layouts_masks_and_dtypes() -> None:
    z, v = logits(5, (2, 3, 4))
    expected = distillation.distillation_loss(z.numpy(), v.numpy(), axis=1, reduction="none")
    observed = xt.distillation_loss(z, v, axis=1, reduction="none")
    np.testing.assert_allclose(observed.numpy(), expected, rtol=1e-13)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        low = xt.distillation_loss(z.to(dtype), v.to(dtype))
        assert low.dtype == torch.float32
        exact = distillation.distillation_loss(z.to(dtype).double().numpy(), v.to(dtype).double().numpy())
        assert low.item() == pytest.approx(exact, rel=1e-5, abs=0)
    bad = z.clone()
    bad[0, 0] = NAN
    weight = torch.ones(2, 3)
    weight[0, 0] = 0
    bad.requires_grad_()
    xt.distillation_loss(bad, v, sample_weight=weight).backward()
    assert bad.grad.isfinite().all() and (bad.grad[0, 0] == 0).all()
    assert xt.distillation_loss(bad, v).isnan()


def test_the_teacher_is_a_constant() -> None:
    z, v = logits(8)
    top, at = torch.log_softmax(v, -1).topk(3)
    mass = torch.full((4, 3), 1 / 3, dtype=torch.float64)
    for x in (z, v, top, mass):
        x.requires_grad_()
    drawn = xt.sample_targets(v, 2)[1]
    assert not drawn.requires_grad
    losses = xt.distillation_loss(z, v), xt.top_k_loss(z, top, at), xt.sampled_loss(z, at, mass)
    sum(losses).backward()
    assert z.grad is not None and v.grad is None and top.grad is None and mass.grad is None


def test_vmap() -> None:
    z, v = logits(6, (3, 4, 5))
    expected = torch.stack([xt.distillation_loss(a, b, temperature=2.0) for a, b in zip(z, v, strict=True)])
    observed = torch.func.vmap(lambda a, b: xt.distillation_loss(a, b, temperature=2.0))(z, v)
    torch.testing.assert_close(observed, expected)


Z = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]])
TOP, AT = torch.tensor([[0.5, 0.3], [0.4, 0.2]]).log(), torch.tensor([[0, 1], [1, 2]])
GOOD: dict[Any, dict[str, Any]] = {
    xt.distillation_loss: {"student_logits": Z, "teacher_logits": Z},
    xt.mixed_loss: {"student_logits": Z, "teacher_logits": Z, "targets": torch.tensor([0, 1])},
    xt.top_k_loss: {"student_logits": Z, "top_log_probs": TOP, "top_indices": AT},
    xt.sampled_loss: {"student_logits": Z, "indices": AT, "importance_weights": TOP.exp()},
    xt.sample_targets: {"teacher_logits": Z, "samples": 2},
}
BAD: list[tuple[Any, str, Any, type[Exception]]] = [
    (xt.distillation_loss, "student_logits", Z.numpy(), TypeError),
    (xt.distillation_loss, "teacher_logits", Z[:1], ValueError),
    (xt.distillation_loss, "teacher_logits", Z.long(), TypeError),
    (xt.distillation_loss, "temperature", 0.0, ValueError),
    (xt.distillation_loss, "scale", "T", ValueError),
    (xt.distillation_loss, "direction", "both", ValueError),
    (xt.distillation_loss, "sample_weight", [1.0] * 3, ValueError),
    (xt.distillation_loss, "sample_weight", [1.0, -1.0], ValueError),
    (xt.distillation_loss, "reduction", "batchmean", ValueError),
    (xt.mixed_loss, "alpha", -0.1, ValueError),
    (xt.mixed_loss, "targets", torch.tensor([0, 3]), ValueError),
    (xt.top_k_loss, "treatment", "top", ValueError),
    (xt.top_k_loss, "top_indices", torch.tensor([[0, 0], [1, 2]]), ValueError),
    (xt.top_k_loss, "top_indices", torch.tensor([[0, 5], [1, 2]]), ValueError),
    (xt.top_k_loss, "top_indices", AT.float(), TypeError),
    (xt.top_k_loss, "top_log_probs", TOP.exp(), ValueError),
    (xt.sampled_loss, "indices", AT[:, :1], ValueError),
    (xt.sampled_loss, "importance_weights", -TOP.exp(), ValueError),
    (xt.sample_targets, "samples", 0, ValueError),
    (xt.sample_targets, "teacher_logits", Z * NAN, ValueError),
    (xt.sample_targets, "proposal_temperature", -1.0, ValueError),
]


@pytest.mark.parametrize("function, name, value, error", BAD)
def test_bad_input_is_named(function: Any, name: str, value: Any, error: type[Exception]) -> None:
    function(**GOOD[function])
    # Indices and their weights must agree; which of the two is named is a matter of order.
    other = "|^importance_weights: expected" if name == "indices" else ""
    with pytest.raises(error, match=f"^{name}: expected{other}"):
        function(**{**GOOD[function], name: value})


EMPTY = torch.zeros(2, 0, dtype=torch.long)
INDICES = ((xt.top_k_loss, "top_indices"), (xt.sampled_loss, "indices"))
DIVERGENCE = (xt.distillation_loss, xt.mixed_loss)
FIRST = {f: next(iter(GOOD[f])) for f in GOOD}
SAID: list[tuple[Any, str, Any, str]] = [
    *[(f, first, [0.0], "a torch.Tensor, got list") for f, first in FIRST.items()],
    *[(f, first, torch.tensor(0.0), "at least one dimension") for f, first in FIRST.items()],
    *[(f, "axis", 2, rf"an axis of {first} with shape \(2, 3\), got 2") for f, first in FIRST.items()],
    *[(f, "temperature", 0, "a finite number > 0, got 0") for f in DIVERGENCE],
    *[(f, "teacher_logits", [0.0], "a torch.Tensor, got list") for f in DIVERGENCE],
    *[(f, "teacher_logits", Z[:1], r"shape \(2, 3\), that of student_logits, got \(1, 3\)")
      for f in DIVERGENCE],
    *[(f, "teacher_logits", elsewhere(Z), "the device of the logits, cpu, got cuda:7") for f in DIVERGENCE],
    *[(xt.mixed_loss, "alpha", x, rf"a number in \[0, 1\], got {x}") for x in (-1, 1.5)],
    (xt.mixed_loss, "ignore_index", 1.5, r"an integer, got 1\.5"),
    *[(f, "sample_weight", [1.0] * 3, r"a shape that broadcasts to \(2,\), that of the targets, got \(3,\)")
      for f in (xt.distillation_loss, xt.top_k_loss, xt.sampled_loss)],
    (xt.top_k_loss, "top_log_probs", [0.0], "a torch.Tensor, got list"),
    (xt.top_k_loss, "top_log_probs", torch.tensor(0.0), "2 dimensions, as student_logits"),
    (xt.top_k_loss, "top_log_probs", elsewhere(TOP), "the device of the logits, cpu, got cuda:7"),
    (xt.top_k_loss, "top_log_probs", torch.tensor([[0.5, 0.3], [0.5, 0.7]]).log(),
     r".*got a sum of 1\.2\d* at index 1"),
    (xt.top_k_loss, "top_log_probs", torch.tensor([[-1.0, -1.0], [1e4, 0.0]]),
     ".*got a sum of inf at index 1"),
    (xt.top_k_loss, "top_indices", torch.tensor([[0, 1], [2, 2]]), "distinct classes, .* at index 1"),
    (xt.top_k_loss, "top_indices", AT[:, :1], r"the shape of top_log_probs, \(2, 2\), got \(2, 1\)"),
    *[(f, name, [[0, 1]], "a torch.Tensor, got list") for f, name in INDICES],
    *[(f, name, AT.float(), "integer class indices, got dtype torch.float32") for f, name in INDICES],
    *[(f, name, AT[:1], r".*rows of shape \(2,\), got shape \(1, 2\)") for f, name in INDICES],
    *[(f, name, AT[0], r".*rows of shape \(2,\), got shape \(2,\)") for f, name in INDICES],
    *[(f, name, EMPTY, r"at least one class in each row, got shape \(2, 0\)") for f, name in INDICES],
    *[(f, name, elsewhere(AT), "the device of the logits, cpu, got cuda:7") for f, name in INDICES],
    *[(f, name, AT + 1, r"class indices in \[0, 3\), got 3 at index \(1, 1\)") for f, name in INDICES],
    *[(f, name, AT - 1, r"class indices in \[0, 3\), got -1 at index \(0, 0\)") for f, name in INDICES],
    (xt.sampled_loss, "importance_weights", [[0.0]], "a torch.Tensor, got list"),
    (xt.sampled_loss, "importance_weights", TOP[:1], r"shape \(2, 2\), that of indices, got \(1, 2\)"),
    (xt.sampled_loss, "importance_weights", TOP, r"finite weights >= 0, got -0\.69\d* at index \(0, 0\)"),
    (xt.sampled_loss, "importance_weights", elsewhere(TOP), "the device of the logits, cpu, got cuda:7"),
    (xt.sample_targets, "samples", 0, "an integer >= 1, got 0"),
    (xt.sample_targets, "samples", 10**9 + 1, r"an integer up to 1e\+09, got 1000000001"),
    (xt.sample_targets, "samples", 1.0, r"an integer, got 1\.0"),
    (xt.sample_targets, "proposal_temperature", 0, "a finite number > 0, got 0"),
    (xt.sample_targets, "teacher_logits", torch.tensor([[0.0, 1.0], [-INF] * 2]), ".*, got none at index 1$"),
    (xt.sample_targets, "teacher_logits", torch.tensor([[0.0, 1.0], [0.0, NAN]]), ".*, got none at index 1$"),
]  # fmt: skip


@pytest.mark.parametrize("function, name, value, got", SAID)
def test_what_was_expected_and_what_came(function: Any, name: str, value: Any, got: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^{name}: expected {got}"):
        function(**{**GOOD[function], name: value})


def test_what_a_top_k_refuses_to_renormalise() -> None:
    top = torch.stack([TOP[0], torch.full((2,), -INF)])
    for treatment in ("renormalised", "renormalised_both"):
        with pytest.raises(ValueError, match=r"^top_log_probs: expected a sum above 0 .*, got 0 at index 1$"):
            xt.top_k_loss(Z, top, AT, treatment=treatment)  # type: ignore[arg-type]
    assert xt.top_k_loss(Z, top, AT, treatment="truncated").isfinite()


def test_places_are_those_of_the_callers_layout() -> None:
    z, top, at = torch.zeros(3, 2), TOP.T, AT.T
    xt.top_k_loss(z, top, at, axis=0)
    with pytest.raises(ValueError, match=r"^top_indices: .* top_log_probs, \(1, 2\), got \(2, 2\)$"):
        xt.top_k_loss(z, top[:1], at, axis=0)
    with pytest.raises(ValueError, match=r"^importance_weights: .*, got -1\.0 at index \(0, 1\)$"):
        xt.sampled_loss(z, at, torch.tensor([[1.0, -1.0], [1.0, 1.0]]), axis=0)
    with pytest.raises(ValueError, match=r"^indices: .*, got 3 at index \(0, 1\)$"):
        xt.sampled_loss(z, torch.tensor([[0, 3], [1, 2]]), top.exp(), axis=0)


@pytest.mark.parametrize("function, name", INDICES)
def test_the_rows_that_indices_must_have_are_named(function: Any, name: str) -> None:
    at = torch.zeros(3, 2, 1, dtype=torch.long)
    top = torch.zeros(3, 2, 1)
    with pytest.raises(ValueError, match=rf"^{name}: .* rows of shape \(2, 3\), got shape \(3, 2, 1\)$"):
        function(torch.zeros(2, 3, 4), *((top, at) if name == "top_indices" else (at, top)))


def test_a_place_among_rows_in_two_dimensions() -> None:
    z, at = torch.zeros(2, 3, 4), torch.tensor([0, 1, 2]).repeat(2, 3, 1)
    top = torch.full((2, 3, 3), 0.25).log()
    at[1, 2, 1] = 4
    for function, name in INDICES:
        others = (top, at) if name == "top_indices" else (at, top.exp())
        with pytest.raises(ValueError, match=rf"^{name}: .* \[0, 4\), got 4 at index \(1, 2, 1\)$"):
            function(z, *others)
    at[1, 2, 1] = 2
    with pytest.raises(ValueError, match=r"^top_indices: .* at index \(1, 2\)$"):
        xt.top_k_loss(z, top, at)
    z[1, 2] = NAN
    with pytest.raises(ValueError, match=r"^teacher_logits: .* at index \(1, 2\)$"):
        xt.sample_targets(z, 1)


def test_one_class_of_each_row() -> None:
    z, v = logits(16)
    log_p, at = torch.log_softmax(v, -1).topk(1)
    expected = log_p.exp() * (log_p - torch.log_softmax(z, -1).gather(-1, at))
    observed = xt.top_k_loss(z, log_p, at, treatment="truncated", reduction="none")
    np.testing.assert_allclose(observed.numpy(), expected[:, 0].numpy(), rtol=1e-13)


def test_a_repeated_class_is_found_wherever_it_stands() -> None:
    z, top = torch.zeros(2, 4), torch.full((2, 3), 0.25).log()
    for row in ([0, 0, 2], [2, 0, 2], [1, 2, 2], [3, 1, 3], [1, 1, 1]):
        with pytest.raises(ValueError, match=r"^top_indices: expected distinct classes, .* at index 1$"):
            xt.top_k_loss(z, top, torch.tensor([[3, 0, 2], row]))
    xt.top_k_loss(z, top, torch.tensor([[3, 0, 2], [0, 3, 1]]))


@pytest.mark.parametrize("function, name", [
    (xt.distillation_loss, "temperature"), (xt.mixed_loss, "temperature"),
    (xt.sample_targets, "proposal_temperature"),
])  # fmt: skip
def test_a_temperature_must_be_one_in_the_dtype_of_the_logits(function: Any, name: str) -> None:
    limits = torch.finfo(torch.float32)
    for good in (limits.tiny, limits.max):
        function(**GOOD[function] | {name: good})
    for bad in (limits.tiny / 4, limits.max * 4):
        with pytest.raises(
            ValueError, match=rf"^{name}: expected a number > 0 .* torch.float32, got {re.escape(repr(bad))}$"
        ):
            function(**GOOD[function] | {name: bad})


def test_what_else_the_losses_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"^treatment: expected one of .*'tail', got 'none'$"):
        xt.top_k_loss(Z, TOP, AT, treatment="none")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^top_log_probs: .* 2 dimensions, .*, got shape \(2,\)$"):
        xt.top_k_loss(Z, TOP[0], AT)
    with pytest.raises(ValueError, match=r"^top_log_probs: expected at least one class along axis 1"):
        xt.top_k_loss(Z, TOP[:, :0], AT)
    with pytest.raises(TypeError, match=r"^generator: expected a torch.Generator, got int$"):
        xt.sample_targets(Z, 1, 0)  # type: ignore[arg-type]
    top = torch.full((2, 3, 2), 0.25).log()
    top[1, 2] = -INF
    at = torch.tensor([0, 1]).repeat(2, 3, 1)
    with pytest.raises(ValueError, match=r"^top_log_probs: expected a sum above 0 .* at index \(1, 2\)$"):
        xt.top_k_loss(torch.zeros(2, 3, 4), top, at, treatment="renormalised")


def test_a_class_that_one_model_rules_out_costs_the_mixture_no_digits() -> None:
    z, v = (x.float() for x in logits(18))
    v[0, 1], v[1, 2], z[2, 3] = -INF, -200.0, -INF
    arguments: dict[str, Any] = {"direction": "jsd", "beta": 0.3, "reduction": "none"}
    u = z.clone().requires_grad_()
    losses = xt.distillation_loss(u, v, **arguments)
    losses.sum().backward()
    arrays = z.double().numpy(), v.double().numpy()
    eps = torch.finfo(torch.float32).eps
    np.testing.assert_allclose(
        losses.detach().numpy(), distillation.distillation_loss(*arrays, **arguments), rtol=16 * eps
    )
    exact = distillation.distillation_gradient(*arrays, **arguments)
    np.testing.assert_allclose(u.grad.numpy(), exact, rtol=0, atol=16 * eps * np.abs(exact).max())


def test_weights_in_another_dtype_leave_the_loss_in_that_of_the_logits() -> None:
    z = torch.zeros(2, 3)
    for reduction in ("none", "sum", "mean"):
        loss = xt.distillation_loss(z, z + 1, sample_weight=[1.0, 2.0], reduction=reduction)  # type: ignore[arg-type]
        assert loss.dtype == torch.float32


@pytest.mark.parametrize("direction", ["forward", "reverse", "jsd"])
@pytest.mark.parametrize("classes", [2, 10, 33])
def test_float32_keeps_its_digits_however_close_the_models_are(direction: Any, classes: int) -> None:
    # On either side of the loss from which the careful sum is taken, 2^-7, and of the 16 classes that lie first.
    # Each difference v - z is rounded, and the loss is about half the square of how far they are apart.
    eps = torch.finfo(torch.float32).eps
    rng = np.random.default_rng(classes)
    for close in (1.0, 0.3, 0.1, 0.03, 1e-4):
        a = rng.normal(size=(200, classes)) * rng.choice([0.3, 1.0, 3.0, 8.0], size=(200, 1))
        z, v = (torch.from_numpy(x).float() for x in (a, a + close * rng.normal(size=a.shape)))
        z.requires_grad_()
        losses = xt.distillation_loss(z, v, direction=direction, reduction="none")
        losses.sum().backward()
        arrays = z.detach().double().numpy(), v.double().numpy()
        exact = distillation.distillation_loss(*arrays, direction=direction, reduction="none")
        rounded = np.abs(arrays[0] - arrays[1]).max(1) / np.sqrt(exact)
        allowed = 8 + sum(np.ptp(x, axis=1) for x in arrays) + 4 * rounded
        assert (np.abs(number_of(losses) / exact - 1) <= allowed * eps).all()
        slope = distillation.distillation_gradient(*arrays, direction=direction, reduction="none")
        error = np.abs(z.grad.numpy() - slope).max(1) / np.abs(slope).max(1)
        assert (error <= (16 + allowed) * eps).all()


def test_a_nan_beside_impossible_classes_stays_nan() -> None:
    z, v = (x.float() for x in logits(5, (3, 4)))
    z[:, 3] = v[:, 3] = -INF
    v[1, 0] = NAN
    losses = xt.distillation_loss(z, v, reduction="none")
    assert losses.isnan().tolist() == [False, True, False]
