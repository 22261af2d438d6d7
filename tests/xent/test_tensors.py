"""What is peculiar in the losses on tensors: derivatives, upstream gradients, dtypes, devices, what a GPU is asked.

How they agree with arrays is in test_twins.py, what each law says of them in test_laws.py, their digits are in
test_accuracy.py, their ends in test_ends.py, what they refuse in test_contracts.py, and what PyTorch does to functions
in test_torch_transforms.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import mpmath as mp
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import xent
import xent.torch as xt
from xent.torch import _reduction

INF, NAN = math.inf, math.nan
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
Z = torch.tensor([[0.0, -1.0, 2.0], [1.5, 0.5, -0.25]])
Y = torch.tensor([0, 1])


def logits(seed: int, *shape: int) -> Tensor:
    return 3 * torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def same(got: Any, due: Any, rtol: float = 0.0, atol: float = 0.0) -> None:
    got, due = (x.detach().double().numpy() if isinstance(x, Tensor) else x for x in (got, due))
    np.testing.assert_allclose(got, due, rtol=rtol, atol=atol)


# ------------------------------------------------------------------------------------------ derivatives


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 1.5, 2.0, 5.0])
@pytest.mark.parametrize("dtype", DTYPES[2:])
def test_focal_losses_are_differentiable_where_a_power_would_overflow(
    dtype: torch.dtype, gamma: float
) -> None:
    """To the third order, against mpmath: p^(gamma - 2) overflows from a margin of 60 on in float32."""

    def loss(x: Any) -> Any:
        p = 1 / (1 + mp.exp(-x))
        return -((1 - p) ** gamma) * mp.log(p)

    margins = [-100.0, -60.0, -5.0, 0.5, 5.0, 60.0, 100.0]
    z = torch.tensor(margins, dtype=dtype, requires_grad=True)
    rows, labels = torch.stack([z, torch.zeros_like(z)], -1), torch.zeros(len(z), dtype=torch.long)
    tiny = torch.finfo(dtype).tiny / torch.finfo(dtype).eps
    slope = xt.focal_loss(rows, labels, gamma=gamma, reduction="sum")
    for order in (1, 2, 3):
        (slope,) = torch.autograd.grad(slope.sum(), z, create_graph=True)
        with mp.workdps(80):
            exact = [float(mp.diff(loss, mp.mpf(x), order)) for x in margins]
        # Small first derivatives keep their digits; PyTorch takes the second of log(sigmoid) by subtraction.
        size = np.abs(exact) + tiny if order == 1 else 1.0
        room = 40 * (1 + gamma) ** order * (8 + np.abs(margins)) * torch.finfo(dtype).eps
        assert (np.abs(slope.detach().numpy() - exact) <= room * size).all(), order


@pytest.mark.parametrize("options", [{"ignore_index": 1}, {"weight": [1.0, 0.0]}], ids=str)
def test_nothing_leaks_from_a_row_that_does_not_count_to_the_third_order(options: dict[str, Any]) -> None:
    """torch's own loss stays finite here, but hands a nan to the ignored row's gradient."""
    z = torch.tensor([[NAN, INF], [0.3, -0.2]], dtype=torch.float64, requires_grad=True)
    loss = xt.cross_entropy(z, torch.tensor([1, 0]), **options)
    # p = sigmoid(0.5): its derivatives are p (1 - p), and p (1 - p) (1 - 2p).
    p = 1 / (1 + math.exp(-0.5))
    for due in (p - 1, p * (1 - p), p * (1 - p) * (1 - 2 * p)):
        (slope,) = torch.autograd.grad(loss, z, create_graph=True)
        assert slope[0].tolist() == [0, 0] and not slope.isnan().any()
        same(slope[1, 0], due, 1e-13)
        loss = slope[1, 0]


def test_what_comes_from_above_multiplies_the_gradient_of_each_row() -> None:
    """Of what nothing is asked it is zero, also where it would be nan or inf."""
    z, y = logits(2, 5, 4), torch.tensor([0, 1, 2, 3, 0])
    z[1] = NAN
    each = xt.cross_entropy(z.requires_grad_(), y, reduction="none")
    upstream = torch.tensor([1.0, 0.0, -2.0, 0.0, 3.0], dtype=torch.float64)[:, None]
    (slope,) = torch.autograd.grad(each, z, upstream[:, 0])
    due = torch.softmax(z.detach(), -1) - torch.nn.functional.one_hot(y, 4)
    same(slope, torch.where(upstream == 0, 0.0, due * upstream), 1e-12, 1e-16)
    assert each[[0, 2, 3, 4]].isfinite().all() and each[1].isnan()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 1), (5, 7), (300, 4_000)])
def test_selected_log_probs_are_those_of_the_losses(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Also over more than a block of rows, with large margins, an ignored row of nan, and one upstream of nothing."""
    z = (30 * torch.randn(shape, generator=torch.Generator().manual_seed(0))).to(dtype)
    y = torch.randint(shape[1], shape[:1], generator=torch.Generator().manual_seed(1))
    z[1], y[1] = NAN, -100
    ours, theirs = z.clone().requires_grad_(), z.double().requires_grad_()
    log_p, entropy = xt.selected_log_probs(ours, y, temperature=2.0, ignore_index=-100, entropy=True)
    of_rows = torch.log_softmax(theirs[[0, *range(2, len(z))]] / 2, -1)
    exact = of_rows.gather(1, y[y >= 0][:, None])[:, 0], -(of_rows.exp() * of_rows).sum(-1)
    eps = torch.finfo(log_p.dtype).eps
    for found, true in zip((log_p, entropy), exact, strict=True):
        assert found[1] == 0
        same(found[y >= 0], true, 100 * eps, 100 * eps)
    upstream = torch.linspace(-1, 2, len(z), dtype=log_p.dtype)
    upstream[2] = 0
    (slope,) = torch.autograd.grad((upstream * log_p - 0.5 * entropy).sum(), ours)
    (due,) = torch.autograd.grad((upstream[y >= 0].double() * exact[0] - 0.5 * exact[1]).sum(), theirs)
    same(slope, due, torch.finfo(dtype).eps + 200 * eps, 200 * eps)
    assert not slope[1].any()


# -------------------------------------------------------------------------------------- dtypes and devices


def test_sums_are_taken_in_float64_and_half_precision_in_float32() -> None:
    """In float32, 1e8 + 1 is 1e8, as often as it is repeated; 65,536 losses of about 2.7 overflow float16."""
    z, y = torch.tensor([[0.0, -1.0]]).repeat(20_000, 1), torch.ones(20_000, dtype=torch.long)
    z[0, 1] = -1e8
    exact = xt.cross_entropy(z, y, reduction="none").double().sum()
    for options, divisor in (({"reduction": "sum"}, 1), ({"denominator": 3.0}, 3), ({}, 20_000)):
        assert xt.cross_entropy(z, y, **options) == (exact / divisor).float()  # type: ignore[arg-type]
    weight = torch.ones(20_000)
    weight[0] = 1e8
    weighed = xt.binary_cross_entropy(z[:, 1], y, sample_weight=weight, reduction="none").double().sum()
    mean = xt.binary_cross_entropy(z[:, 1], y, sample_weight=weight)
    assert mean == (weighed / weight.double().sum()).float()
    half = logits(0, 65_536, 10).half().requires_grad_()
    labels = torch.arange(65_536) % 10
    loss = xt.cross_entropy(half, labels)
    assert loss.dtype == torch.float32
    same(loss, xent.cross_entropy(half.detach().double().numpy(), labels.numpy()), 1e-6)
    (slope,) = torch.autograd.grad(loss, half)
    assert slope.dtype == torch.float16 and not slope.isnan().any()


def test_targets_and_weights_in_another_precision_than_the_logits() -> None:
    z, t = logits(12, 6, 4), torch.softmax(logits(13, 6, 4), -1)
    for a, b in ((z.float(), t), (z, t.float())):
        observed = xt.soft_cross_entropy(a, b, reduction="none")
        # Rounded once, where they came from, and not again.
        assert torch.equal(observed, xt.soft_cross_entropy(a.double(), b.double(), reduction="none"))
    for x, dtype in ((z[:, 0], torch.float64), (z[:, 0].float(), torch.float32)):
        for targets in (t[:, 0], t[:, 0].float(), t[:, 0].half(), (t[:, 0] > 0.5).long()):
            assert xt.binary_cross_entropy(x, targets).dtype == dtype
    for loss in (
        partial(xt.cross_entropy, Z, Y, weight=[1.0, 2.0, 3.0]),
        partial(xt.binary_cross_entropy, Z, Z > 0, sample_weight=np.ones((2, 3))),
        partial(xt.distillation_loss, Z, Z + 1, sample_weight=[1.0, 2.0]),
    ):
        assert {loss(reduction=how).dtype for how in ("none", "sum", "mean")} == {torch.float32}


def test_a_device_without_float64_sums_in_its_own_dtype() -> None:
    for kind, dtype in (("mps", torch.float32), ("cuda", torch.float64)):
        losses: Any = SimpleNamespace(device=SimpleNamespace(type=kind), dtype=torch.float32)
        assert xt._reduction.accumulator(losses) == dtype


class Elsewhere(Tensor):
    """A tensor that says it lies on a second device, which this machine need not have."""

    device = torch.device("cuda", 7)


V, TOP, AT = Z.flip(0), torch.tensor([[0.5, 0.3], [0.4, 0.2]]).log(), torch.tensor([[0, 1], [1, 2]])
GIVEN: dict[Any, dict[str, Any]] = {
    xt.cross_entropy: {"logits": Z, "targets": Y, "weight": torch.ones(3)},
    xt.soft_cross_entropy: {"logits": Z, "target_probs": torch.softmax(Z, -1)},
    xt.binary_cross_entropy: {"logits": Z, "targets": torch.sigmoid(Z), "pos_weight": torch.ones(3)},
    xt.distillation_loss: {"student_logits": Z, "teacher_logits": V},
    xt.mixed_loss: {"student_logits": Z, "teacher_logits": V, "targets": Y},
    xt.top_k_loss: {"student_logits": Z, "top_log_probs": TOP, "top_indices": AT},
}


@pytest.mark.parametrize("function", GIVEN, ids=lambda f: f.__name__)
def test_where_and_how_a_tensor_is_stored(function: Any) -> None:
    """On another device or not dense it is refused by name; weights move; and no argument is changed."""
    given = GIVEN[function]
    before = {name: x.clone() for name, x in given.items()}
    value, (first, *others) = function(**given), given
    assert all(torch.equal(x, before[name]) for name, x in given.items())
    nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)
    with pytest.raises(TypeError, match=f"^{first}: expected a dense tensor, got layout nested"):
        function(**given | {first: nested})
    for name in others:
        moved = given | {name: given[name].as_subclass(Elsewhere)}
        if name in ("weight", "pos_weight"):
            assert function(**moved) == value == function(**given | {name: given[name].bool().tolist()})
        else:
            with pytest.raises(ValueError, match=f"^{name}: expected the device .* logits, cpu, got cuda:7"):
                function(**moved)


# What the values of arguments are asked for, is asked together. A kernel may ask more.
W, C = torch.tensor([1.0, 2.0]), torch.tensor([0.5, 1.0, 2.0])
P = torch.softmax(Z, -1)
ASKING: list[Callable[[Tensor], Any]] = [
    lambda z: xt.cross_entropy(z, Y, ignore_index=0, weight=C, sample_weight=W),
    lambda z: xt.selected_log_probs(z, Y, ignore_index=0),
    lambda z: xt.soft_cross_entropy(z, P, weight=C, sample_weight=W),
    lambda z: xt.binary_cross_entropy(z, P, pos_weight=C, sample_weight=W[:, None]),
    lambda z: xt.focal_loss(z, Y, ignore_index=0, alpha=C, sample_weight=W),
    lambda z: xt.nll(z.log_softmax(-1), Y, ignore_index=0, weight=C, sample_weight=W),
    lambda z: xt.log_loss(z.softmax(-1), Y, ignore_index=0, weight=C, sample_weight=W),
    lambda z: xt.binary_log_loss(z.sigmoid(), P, sample_weight=W[:, None]),
    lambda z: xt.distillation_loss(z, Z, sample_weight=W),
    lambda z: xt.mixed_loss(z, Z, Y, ignore_index=0, sample_weight=W),
    lambda z: xt.top_k_loss(z, P[:, :2].log(), Y[:, None] + torch.tensor([0, 1]), sample_weight=W),
    lambda z: xt.linear_cross_entropy(z, Z, Y, ignore_index=0, weight=W, sample_weight=W),
    lambda z: xt.linear_distillation_loss(
        z, Z, teacher_top_k=xt.top_k_of_teacher(Z[:, :2], 2), sample_weight=W
    ),
]


class Asks(TorchDispatchMode):
    """Count where a GPU would be waited for."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function.overloadpacket.__name__ in ("_local_scalar_dense", "nonzero", "equal")
        return function(*args, **kwargs or {})


@pytest.mark.parametrize("call", ASKING)
def test_a_gpu_is_waited_for_once(call: Callable[[Tensor], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    transfers = []
    real = Tensor.tolist
    monkeypatch.setattr(Tensor, "is_cpu", False)
    monkeypatch.setattr(Tensor, "tolist", lambda x: transfers.append(x.shape) or real(x))
    monkeypatch.setattr(_reduction, "_blockwise", lambda t, z, b, w, s: (t.plain(z, *b), torch.zeros_like(z)))
    with Asks() as asked:
        call(Z.clone().requires_grad_())
    assert (len(transfers), asked.count) == (1, 0)
