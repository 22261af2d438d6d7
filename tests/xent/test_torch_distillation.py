"""`xent.torch`'s distillation losses against `xent.distillation`, autograd and the closed forms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import xent.torch as xt
from xent import distillation

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
    loss = xt.distillation_loss(z, v, weight=w, **settings)
    loss.backward()
    arrays = z.detach().numpy(), v.detach().numpy()
    np.testing.assert_allclose(
        loss.item(), distillation.distillation_loss(*arrays, weight=w, **settings), rtol=1e-12
    )
    closed = distillation.distillation_gradient(*arrays, weight=w, **settings)
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
        return xt.top_k_loss(z, log_p, at, treatment=treatment, weight=w)

    expected = distillation.top_k_loss(
        z.detach().numpy(), log_p.numpy(), at.numpy(), treatment=treatment, weight=w
    )
    assert loss(z).item() == pytest.approx(expected, rel=1e-12)
    assert gradcheck(loss, (z,))
    assert gradgradcheck(loss, (z,))
    moved = xt.top_k_loss(z.T, log_p.T, at.T, treatment=treatment, weight=w, axis=0)
    assert moved.item() == pytest.approx(expected, rel=1e-12)


def test_a_tail_that_is_empty_has_a_gradient() -> None:
    z = torch.tensor([[0.0, 1.0, -INF]], requires_grad=True)
    xt.top_k_loss(z, torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0, 1]])).backward()
    assert z.grad.isfinite().all()


def test_sampled_targets() -> None:
    z, v = logits(3)
    generator = torch.Generator().manual_seed(0)
    at, mass = xt.sample_targets(v, 6, generator, proposal_temperature=1.5)
    loss = xt.sampled_loss(z.requires_grad_(), at, mass)
    expected = distillation.sampled_loss(z.detach().numpy(), at.numpy(), mass.numpy())
    assert loss.item() == pytest.approx(expected, rel=1e-12)
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
    assert xt.mixed_loss(z, v, y, **arguments).item() == pytest.approx(expected, rel=1e-12)
    z[1] = NAN
    z.requires_grad_()
    loss = xt.mixed_loss(z, v, y, **arguments)
    loss.backward()
    assert loss.item() == pytest.approx(expected, rel=1e-12)
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
        assert low.item() == pytest.approx(exact, rel=1e-5)
    bad = z.clone()
    bad[0, 0] = NAN
    weight = torch.ones(2, 3)
    weight[0, 0] = 0
    bad.requires_grad_()
    xt.distillation_loss(bad, v, weight=weight).backward()
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
    xt.sampled_loss: {"student_logits": Z, "indices": AT, "sample_weights": TOP.exp()},
    xt.sample_targets: {"teacher_logits": Z, "samples": 2},
}
BAD: list[tuple[Any, str, Any, type[Exception]]] = [
    (xt.distillation_loss, "student_logits", Z.numpy(), TypeError),
    (xt.distillation_loss, "teacher_logits", Z[:1], ValueError),
    (xt.distillation_loss, "teacher_logits", Z.long(), TypeError),
    (xt.distillation_loss, "temperature", 0.0, ValueError),
    (xt.distillation_loss, "scale", "T", ValueError),
    (xt.distillation_loss, "direction", "both", ValueError),
    (xt.distillation_loss, "weight", [1.0], ValueError),
    (xt.distillation_loss, "weight", [1.0, -1.0], ValueError),
    (xt.distillation_loss, "reduction", "batchmean", ValueError),
    (xt.mixed_loss, "alpha", -0.1, ValueError),
    (xt.mixed_loss, "targets", torch.tensor([0, 3]), ValueError),
    (xt.top_k_loss, "treatment", "top", ValueError),
    (xt.top_k_loss, "top_indices", torch.tensor([[0, 0], [1, 2]]), ValueError),
    (xt.top_k_loss, "top_indices", torch.tensor([[0, 5], [1, 2]]), ValueError),
    (xt.top_k_loss, "top_indices", AT.float(), TypeError),
    (xt.top_k_loss, "top_log_probs", TOP.exp(), ValueError),
    (xt.sampled_loss, "indices", AT[:, :1], ValueError),
    (xt.sampled_loss, "sample_weights", -TOP.exp(), ValueError),
    (xt.sample_targets, "samples", 0, ValueError),
    (xt.sample_targets, "teacher_logits", Z * NAN, ValueError),
    (xt.sample_targets, "proposal_temperature", -1.0, ValueError),
]


@pytest.mark.parametrize("function, name, value, error", BAD)
def test_bad_input_is_named(function: Any, name: str, value: Any, error: type[Exception]) -> None:
    function(**GOOD[function])
    # Indices and their weights must agree; which of the two is named is a matter of order.
    other = "|^sample_weights: expected" if name == "indices" else ""
    with pytest.raises(error, match=f"^{name}: expected{other}"):
        function(**{**GOOD[function], name: value})
