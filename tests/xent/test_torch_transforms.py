"""Each loss on tensors under each transformation that PyTorch has for functions: one table."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

import xent.torch as xt

ROWS, CLASSES = 4, 5
torch.manual_seed(0)
Z, V = (2 * torch.randn(ROWS, CLASSES, dtype=torch.float64) for _ in range(2))
Y = torch.tensor([0, 3, 1, 4])
P = torch.softmax(V, -1)
TOP, AT = torch.log_softmax(V, -1).topk(2)
W = torch.tensor([1.0, 0.5, 2.0, 0.25], dtype=torch.float64)
BY_CLASS = torch.tensor([1.0, 0.5, 2.0, 0.25, 3.0], dtype=torch.float64)

SMOOTHED: Any = {"label_smoothing": 0.1, "weight": BY_CLASS, "ignore_index": 3, "denominator": 3.0}
TILTED: Any = {"pos_weight": 2.0, "label_smoothing": 0.1}
SPREAD: Any = {"label_smoothing": 0.2, "weight": BY_CLASS, "reduction": "sum"}

Loss = Callable[..., Tensor]
# A function of logits and of what goes with each of their rows.
LOSSES: dict[str, tuple[Loss, tuple[Tensor, ...]]] = {
    "cross_entropy": (xt.cross_entropy, (Y,)),
    "smoothed": (lambda z, y: xt.cross_entropy(z, y, **SMOOTHED), (Y,)),
    "capped": (lambda z, y: xt.cross_entropy(z, y, softcap=2.0, z_loss=0.1, label_smoothing=0.1), (Y,)),
    "selected": (
        lambda z, y: (lambda log_p, entropy: (log_p * log_p.exp()).sum() - 0.3 * entropy.square().sum())(
            *xt.selected_log_probs(z, y, temperature=0.7, ignore_index=3, entropy=True)
        ),
        (Y,),
    ),
    "ignored": (lambda z, y: xt.cross_entropy(z, y, ignore_index=3, reduction="sum"), (Y,)),
    "weighted": (lambda z, y, w: xt.cross_entropy(z, y, sample_weight=w), (Y, W)),
    "soft": (xt.soft_cross_entropy, (P,)),
    "soft, weighted": (lambda z, t: xt.soft_cross_entropy(z, t, **SPREAD), (P,)),
    "binary": (lambda z, t: xt.binary_cross_entropy(z, t, sample_weight=t > 0.1, **TILTED), (P,)),
    "focal": (lambda z, y: xt.focal_loss(z, y, gamma=1.5, alpha=BY_CLASS), (Y,)),
    "nll": (lambda z, y: xt.nll(xt.log_softmax(z), y, weight=BY_CLASS), (Y,)),
    "log loss": (lambda z, y: xt.log_loss(torch.softmax(z, -1), y, eps=1e-3), (Y,)),
    "binary log loss": (lambda z, t: xt.binary_log_loss(torch.sigmoid(z), t), (P,)),
    **{
        f"distillation, {direction}": (
            lambda z, v, d=direction: xt.distillation_loss(z, v, temperature=2.0, direction=d, beta=0.3),
            (V,),
        )
        for direction in ("forward", "reverse", "jsd")
    },
    "mixed": (lambda z, v, y: xt.mixed_loss(z, v, y, alpha=0.3, ignore_index=3, denominator=4.0), (V, Y)),
    "top k": (xt.top_k_loss, (TOP, AT)),
}


# Linear losses, of a layer that the same numbers make: only backward passes of the first order take them apart.
BENT: Any = {"softcap": 3.0, "z_loss": 0.01, "label_smoothing": 0.2, "ignore_index": 3}
HEATED: Any = {"direction": "jsd", "temperature": 3.0, "beta": 0.3, "alpha": 0.6}
LINEAR: dict[str, tuple[Loss, tuple[Tensor, ...]]] = {
    "linear": (lambda z, y: xt.linear_cross_entropy(z[:, :3], z[:3].T, y, linear_bias=z[3], **BENT), (Y,)),
    "linear, each": (
        lambda z, y: W @ xt.linear_cross_entropy(z[:, :3], z[:3].T, y, reduction="none", **BENT), (Y,)),
    "linear, selected": (
        lambda z, y: sum(x @ W for x in xt.linear_selected_log_probs(z[:, :3], z[:3].T, y, entropy=True)),
        (Y,)),
    "linear, mixed": (
        lambda z, y: xt.linear_distillation_loss(z[:, :3], z[:3].T, V[:, :3], V[:3].T, targets=y, **HEATED),
        (Y,)),
}  # fmt: skip


def gradient(loss: Loss, others: tuple[Tensor, ...]) -> Tensor:
    """By the ordinary backward pass, which gradcheck below compares with differences."""
    z = Z.clone().requires_grad_()
    loss(z, *others).backward()
    assert z.grad is not None
    return z.grad


def each_row(loss: Loss, others: tuple[Tensor, ...]) -> Tensor:
    return torch.stack([loss(z[None], *(x[None] for x in rest)) for z, *rest in zip(Z, *others, strict=True)])


def numerical(loss: Loss, others: tuple[Tensor, ...]) -> None:
    z = Z.clone().requires_grad_()
    assert gradcheck(lambda z: loss(z, *others), (z,))
    assert gradgradcheck(lambda z: loss(z, *others), (z,))


def another_pass(loss: Loss, others: tuple[Tensor, ...], **last: Any) -> None:
    """Each gradient after the first is the same, whatever becomes of that which was handed over."""
    z = Z.clone().requires_grad_()
    value, expected = loss(z, *others), gradient(loss, others)
    for by, how in ((1.0, {"retain_graph": True}), (3.0, {"retain_graph": True}), (1.0, last)):
        (found,) = torch.autograd.grad(value, z, torch.tensor(by, dtype=torch.float64), **how)
        torch.testing.assert_close(found, by * expected, rtol=1e-14, atol=1e-15)
        found.detach().mul_(7)


def plain_gradient(loss: Loss, others: tuple[Tensor, ...]) -> None:
    """The gradient that can be differentiated again is that which cannot."""
    another_pass(loss, others, create_graph=True)


def checkpointed(loss: Loss, others: tuple[Tensor, ...]) -> None:
    for reentrant in (False, True):
        z = Z.clone().requires_grad_()
        checkpoint(loss, z, *others, use_reentrant=reentrant).backward()
        torch.testing.assert_close(z.grad, gradient(loss, others), rtol=1e-15, atol=1e-16)


def refused_in_words(loss: Loss, others: tuple[Tensor, ...]) -> None:
    """What a linear loss does not let itself be asked for."""

    def of(z: Tensor) -> Tensor:
        return loss(z, *others)

    def dual() -> None:
        with forward_ad.dual_level():
            of(forward_ad.make_dual(Z, V))

    z = Z.clone().requires_grad_()
    refused: list[tuple[Callable[[], Any], str]] = [
        *((asked, r"torch\.func: linear_\w+ forms its gradient in blocks") for asked in (
            lambda: torch.func.grad(of)(Z), lambda: torch.func.vmap(of)(Z[None]), dual,
            lambda: torch.func.jvp(of, (Z,), (V,)), lambda: torch.func.hessian(of)(Z))),
        (lambda: torch.autograd.grad(of(z), z, create_graph=True), "create_graph=True: .*no second derivatives"),
    ]  # fmt: skip
    for asked, said in refused:
        with pytest.raises(RuntimeError, match=f"^{said}"):
            asked()


def forward_mode(loss: Loss, others: tuple[Tensor, ...]) -> None:
    expected = (gradient(loss, others) * V).sum()
    with forward_ad.dual_level():
        slope = forward_ad.unpack_dual(loss(forward_ad.make_dual(Z, V), *others)).tangent
    torch.testing.assert_close(slope, expected, rtol=1e-12, atol=1e-14)
    _, slope = torch.func.jvp(lambda z: loss(z, *others), (Z,), (V,))
    torch.testing.assert_close(slope, expected, rtol=1e-12, atol=1e-14)


def vmap_over_rows(loss: Loss, others: tuple[Tensor, ...]) -> None:
    observed = torch.func.vmap(lambda z, *rest: loss(z[None], *(x[None] for x in rest)))(Z, *others)
    torch.testing.assert_close(observed, each_row(loss, others), rtol=1e-12, atol=1e-14, equal_nan=True)


def vmap_over_targets(loss: Loss, others: tuple[Tensor, ...]) -> None:
    if others:
        both = tuple(torch.stack([x, x.flip(0)]) for x in others)
        observed = torch.func.vmap(loss, (None, *[0] * len(others)))(Z, *both)
        expected = torch.stack([loss(Z, *(x[i] for x in both)) for i in range(2)])
        torch.testing.assert_close(observed, expected, rtol=1e-12, atol=1e-14)


def functional_derivatives(loss: Loss, others: tuple[Tensor, ...]) -> None:
    def of(z: Tensor) -> Tensor:
        return loss(z, *others)

    expected = gradient(loss, others)
    for derivative in (torch.func.grad, torch.func.jacrev, torch.func.jacfwd):
        torch.testing.assert_close(derivative(of)(Z), expected, rtol=1e-12, atol=1e-14)
    z = Z.clone().requires_grad_()
    (slope,) = torch.autograd.grad(of(z), z, create_graph=True)
    (row,) = torch.autograd.grad(slope[0, 1], z)
    torch.testing.assert_close(torch.func.hessian(of)(Z)[0, 1], row, rtol=1e-11, atol=1e-13)


def compiled(loss: Loss, others: tuple[Tensor, ...]) -> None:
    torch._dynamo.reset()
    z = Z.clone().requires_grad_()
    value = torch.compile(loss, fullgraph=True, backend="aot_eager")(z, *others)
    torch.testing.assert_close(value, loss(Z, *others), rtol=1e-14, atol=1e-15)
    value.backward()
    torch.testing.assert_close(z.grad, gradient(loss, others), rtol=1e-14, atol=1e-15)


def exported(loss: Loss, others: tuple[Tensor, ...]) -> None:
    class Model(torch.nn.Module):
        def forward(self, z: Tensor, *rest: Tensor) -> Tensor:
            return loss(z, *rest)

    program = torch.export.export(Model(), (Z, *others)).module()
    torch.testing.assert_close(program(Z, *others), loss(Z, *others), rtol=1e-14, atol=1e-15)


def without_values(loss: Loss, others: tuple[Tensor, ...]) -> None:
    expected = loss(Z, *others)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = [mode.from_tensor(x) for x in (Z.clone().requires_grad_(), *others)]
        value = loss(*fake)
        assert (value.shape, value.dtype) == (expected.shape, expected.dtype)
        (slope,) = torch.autograd.grad(value, fake[0])
        assert slope.shape == Z.shape
    value = loss(*(x.to("meta") for x in (Z, *others)))
    assert value.is_meta and value.shape == expected.shape


OF_ALL = (checkpointed, compiled, exported)
TRANSFORMATIONS: list[tuple[str, Callable[..., None]]] = [
    *((name, each) for name in LOSSES for each in (
        numerical, plain_gradient, forward_mode, vmap_over_rows, vmap_over_targets, functional_derivatives,
        without_values, *OF_ALL)),
    *((name, each) for name in LINEAR for each in (another_pass, refused_in_words, *OF_ALL)),
]  # fmt: skip


# While it compiles an operator, torch makes an instance of its own class, of which it warns.
unwarned = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


@unwarned
@pytest.mark.parametrize(("name", "transformation"), TRANSFORMATIONS, ids=lambda x: getattr(x, "__name__", x))
def test_each_loss_under_each_transformation(name: str, transformation: Callable[..., None]) -> None:
    transformation(*(LOSSES | LINEAR)[name])


@pytest.mark.slow
def test_the_default_compiler_agrees() -> None:
    loss, others = LOSSES["cross_entropy"]
    z = Z.clone().requires_grad_()
    value = torch.compile(loss, fullgraph=True)(z, *others)
    value.backward()
    torch.testing.assert_close(z.grad, gradient(loss, others), rtol=1e-14, atol=1e-15)


def test_a_row_without_a_target_that_counts_is_not_looked_for_where_there_are_no_values() -> None:
    value = torch.compile(xt.cross_entropy, fullgraph=True, backend="eager")(Z, Y * 0, ignore_index=0)
    assert math.isnan(value)


def test_a_top_k_of_sequences_is_the_same_in_forward_mode() -> None:
    """As many positions as classes, so that one is not taken for the other."""
    z, teacher = torch.randn(2, 2, 7, 7, generator=torch.Generator().manual_seed(0))
    top, at = teacher.log_softmax(-1).topk(3)

    def loss(z: torch.Tensor) -> torch.Tensor:
        return xt.top_k_loss(z, top, at)

    with forward_ad.dual_level():
        value = forward_ad.unpack_dual(loss(forward_ad.make_dual(z, z))).primal
    assert value.item() == pytest.approx(loss(z).item(), rel=1e-6)


DIVIDED: dict[str, Callable[[Tensor], Tensor]] = {
    "labels": lambda d: xt.cross_entropy(Z, Y, ignore_index=3, denominator=d),
    "binary": lambda d: xt.binary_cross_entropy(Z, P, denominator=d),
    "distillation": lambda d: xt.distillation_loss(Z, V, denominator=d),
    "linear": lambda d: xt.linear_cross_entropy(P, Z[:, :CLASSES], Y.clamp(max=3), denominator=d),
    "nothing counts": lambda d: xt.cross_entropy(Z, Y.clamp(max=0), ignore_index=0, denominator=d - d),
}


@unwarned
@pytest.mark.parametrize("name", DIVIDED)
def test_a_denominator_that_is_a_tensor_has_one_graph(name: str) -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(DIVIDED[name], fullgraph=True, backend=backend)
    for value in range(1, 13):
        d = torch.tensor(float(value), dtype=torch.float64)
        torch.testing.assert_close(compiled(d), DIVIDED[name](d), rtol=1e-12, atol=0.0)
    assert len(graphs) == 1
