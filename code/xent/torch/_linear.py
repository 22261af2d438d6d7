"""The losses of a linear layer that never hold its logits.

The rows are taken in blocks. A block's logits are computed, its losses, and in the place of the logits their
gradient, which is spent at once on both products: this is what Liger's fused losses do. So a step needs three
matrix products, as the plain pair does, and one block of logits.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from numpy.typing import ArrayLike
from torch import Tensor

from xent._validate import Reduction, integer, number, reduction_arguments, shown, smoothing_mass
from xent.distillation import Direction, Scale, _beta, _settings

from ._blocks import summed, wide
from ._validate import floats, in_range, labels_of, same_device, target_weights
from ._vocab import Shards, cross_entropy_, divergence_, group_name, refuse_second_derivatives, row_factors

__all__ = ["linear_cross_entropy", "linear_distillation_loss"]

# Logits in a block: 12 MiB in float32, and so many rows that the products run at full speed. Each block reads
# and writes the whole gradient of the weights, so fewer rows than LEAST would take longer for that. An
# accelerator multiplies faster than it reads, and needs more of both.
BLOCK, LEAST = 3 * 2**20, 32
BLOCK_ELSEWHERE, LEAST_ELSEWHERE = 2**26, 1024
# Logits at a time in what comes between the products: few enough to stay in the cache, or, where each time
# the ranks must meet or a device starts its kernels, more.
STEP, STEP_OF_RANKS, STEP_ELSEWHERE = 2**18, 2**21, 2**26
# Entries of a half-precision weight that are converted at a time.
TILE = 2**22
# Whether this PyTorch multiplies matrices of bfloat16 into one of float32, as GPUs do; from 2.8 on.
MIXED_PRODUCTS = "dtype" in torch.ops.aten.mm.overloads()


@torch.library.custom_op("xent::linear_loss", mutates_args=())
def _linear_loss(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    factor: Tensor,
    labels: Tensor | None,
    teacher_hidden: Tensor | None,
    teacher_weight: Tensor | None,
    teacher_bias: Tensor | None,
    softcap: float | None,
    z_loss: float,
    smoothing: float,
    direction: str,
    beta: float,
    temperature: float,
    squared: bool,
    top_k: int | None,
    group: str,
    form: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return each row's loss, and the gradients of sum(factor * loss) that `form` asks for.

    An operator of its own, so that what compiles a model leaves the blocks as they are. Rows of factor zero
    are left out, whatever they hold. All are in the dtype of `factor`.
    """
    shards = Shards(len(weight), weight.device, _resolved(group))
    if labels is not None:
        in_range(labels, "targets", shards.total)
    losses, to_hidden, to_weight, to_bias = _results(hidden, weight, bias, factor, form)
    active = factor.nonzero().squeeze(1)
    if hidden.device.type == "cpu":
        block, least, step = BLOCK, LEAST, STEP if shards.group is None else STEP_OF_RANKS
    else:
        block, least, step = BLOCK_ELSEWHERE, LEAST_ELSEWHERE, STEP_ELSEWHERE
        step = step if labels is not None else step // 2
    size, step = max(least, block // shards.largest), max(1, step // shards.largest)
    room = [
        factor.new_empty(min(size, len(active)), len(weight)) for _ in range(1 if labels is not None else 2)
    ]
    with torch.autocast(hidden.device.type, enabled=False):
        for rows in active.split(size) if len(active) else ():
            h = hidden[rows]
            z = _project(h, weight, bias, room[0][: len(rows)])
            v = z
            if teacher_hidden is not None and teacher_weight is not None:
                v = _project(teacher_hidden[rows], teacher_weight, teacher_bias, room[1][: len(rows)])
            for at, z_part, v_part in zip(rows.split(step), z.split(step), v.split(step), strict=True):
                if softcap is not None:
                    slope = 1 - z_part.div_(softcap).tanh_().square()
                    z_part.mul_(softcap)
                if labels is not None:
                    found = cross_entropy_(z_part, labels[at], factor[at], shards, smoothing, z_loss)
                else:
                    settings = direction, beta, temperature, squared, top_k
                    found = divergence_(z_part, v_part, factor[at], shards, *settings)
                if softcap is not None:
                    z_part.mul_(slope)
                losses[at] = found
            if form[2]:
                to_bias.add_(z.sum(0))
            if _mixed(h, weight, z.dtype):
                z = z.to(weight.dtype)
            if form[0]:
                to_hidden[rows] = _into_hidden(z, weight, to_hidden.dtype)
            if form[1]:
                _add_product(to_weight, z.T, h)
        if form[0]:
            shards.sum(to_hidden)
    return losses, to_hidden, to_weight, to_bias


@_linear_loss.register_fake
def _(hidden: Tensor, weight: Tensor, bias: Tensor | None, factor: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return tuple(_results(hidden, weight, bias, factor, rest[-1]))


def _results(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, factor: Tensor, form: list[bool]
) -> list[Tensor]:
    """Make room for the losses and for the gradients that are asked for."""
    of_bias = (0,) if bias is None else bias.shape
    shapes = zip((hidden.shape, weight.shape, of_bias), form, strict=True)
    return [torch.zeros_like(factor), *(factor.new_zeros(s if asked else (0,)) for s, asked in shapes)]


def _mixed(a: Tensor, b: Tensor, dtype: torch.dtype) -> bool:
    """Whether the device multiplies these two as they are and adds up in this dtype, float32."""
    halves = a.dtype == b.dtype == torch.bfloat16
    return MIXED_PRODUCTS and a.is_cuda and halves and dtype == torch.float32


def _tiles(weight: Tensor, dtype: torch.dtype) -> list[slice]:
    """Cut the classes where the weight has to be converted."""
    size = len(weight) if weight.dtype == dtype else max(1, TILE // weight.shape[1])
    return [slice(first, first + size) for first in range(0, len(weight), size)]


def _project(h: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    """Compute logits (R, V) in the dtype of `out`, whatever those of the factors are."""
    if _mixed(h, weight, out.dtype):
        torch.mm(h, weight.T, out_dtype=out.dtype, out=out)
    else:
        for tile in _tiles(weight, out.dtype):
            torch.mm(h.to(out.dtype), weight[tile].to(out.dtype).T, out=out[:, tile])
    return out if bias is None else out.add_(bias)


def _into_hidden(g: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    if _mixed(g, weight, dtype):
        return torch.mm(g, weight, out_dtype=dtype)
    result = g.new_zeros(len(g), weight.shape[1])
    for tile in _tiles(weight, dtype):
        result.addmm_(g[:, tile], weight[tile].to(dtype))
    return result


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    if _mixed(a, b, total.dtype):
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total.addmm_(a, b.to(total.dtype))


def _resolved(group: str) -> dist.ProcessGroup | None:
    """Find a group by its name, which is all that an operator's arguments can hold."""
    resolve: Any = getattr(dist.distributed_c10d, "_resolve_process_group")  # noqa: B009
    return resolve(group) if group else None


class _LinearLoss(torch.autograd.Function):
    """sum(factor * loss), whose gradients are formed with it, or each of these terms, whose are not.

    The first backward pass hands out what was formed, scaled in place; another one computes it again, as one
    through the terms must.
    """

    @staticmethod
    def forward(ctx: Any, each: bool, form: list[bool], *arguments: Any) -> Tensor:
        results: list[Tensor] = _linear_loss(*arguments, [wanted and not each for wanted in form])
        factor: Tensor = arguments[3]
        ctx.save_for_backward(*arguments[:8])
        ctx.settings, ctx.form, ctx.formed = arguments[8:], form, None if each else results[1:]
        ctx.dtypes = [None if x is None else x.dtype for x in arguments[:3]]
        losses = results[0] * factor
        return losses if each else summed(losses, 1.0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        refuse_second_derivatives()
        if ctx.formed is None:
            hidden, weight, bias, factor, *rest = ctx.saved_tensors
            arguments = hidden, weight, bias, factor * grads[0], *rest, *ctx.settings
            _, *formed = _linear_loss(*arguments, ctx.form)
        elif torch.compiler.is_compiling():
            formed = [gradient * grads[0] for gradient in ctx.formed]
        else:
            formed, ctx.formed = [gradient.mul_(grads[0]) for gradient in ctx.formed], None
        results = (
            g.to(d) if wanted else None for g, d, wanted in zip(formed, ctx.dtypes, ctx.form, strict=True)
        )
        return None, None, *results, *[None] * 14


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    sample_weight: Tensor | ArrayLike | None = None,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
    denominator: float | None = None,
    vocab_group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Cross-entropy of ``hidden @ weight.T + bias`` that holds the logits of one block of rows at a time.

    Parameters
    ----------
    hidden : Tensor of floats, shape (..., H)
        Hidden states, the input of the linear layer.
    weight : Tensor of floats, shape (V, H)
        Weight of the linear layer, a row for each class: not the class weights of `cross_entropy`.
    targets : Tensor of integers, shape (...)
        Class indices in [0, V).
    bias : Tensor of floats, shape (V,), optional
        Bias of the linear layer.
    softcap : float, optional
        c > 0 puts c tanh(z / c) in the place of every logit z.
    z_loss : float, default 0
        Adds this number >= 0 times the squared log-sum-exp of its logits to the loss of each target.
    label_smoothing : float, default 0
        Mass in [0, 1] that is spread evenly over all V classes.
    sample_weight : Tensor or array_like that broadcasts to the shape of `targets`, optional
        Weight of each target, finite and >= 0, a constant. Targets of weight zero cost no time.
    ignore_index : int, optional
        Targets of this value do not count, whatever their hidden states hold, and cost no time.
    reduction : {"mean", "sum", "none"}, default "mean"
        sum(w l) / sum(w), sum(w l), or each w l (zero where a target does not count). Only with "none" the
        backward pass computes the logits again.
    denominator : float, optional
        Replaces sum(w) in the mean.
    vocab_group : torch.distributed.ProcessGroup, optional
        The ranks that share the vocabulary. Each holds some rows of the weight and the same of the bias, in
        the order of the ranks, not necessarily as many; hidden states, targets and all else are the same on
        all. The loss and the gradient of `hidden` are those of the whole, on every rank. Every rank makes the
        call, and every rank the backward pass.

    Returns
    -------
    Tensor
        Loss in nats, in the widest dtype of `hidden` and `weight`, at least float32. Products are accumulated
        in it too, also under autocast, which rounds what goes into them.

    Raises
    ------
    ValueError
        If a label is out of range, shapes or devices do not match, an argument is out of range, or no target
        counts and the mean has no `denominator`.
    TypeError
        If an argument is of the wrong kind.
    RuntimeError
        If its gradient is asked for with ``create_graph=True``; `cross_entropy` of the logits can be
        differentiated twice.

    Notes
    -----
    Beside the gradients it needs room for 3 million logits (32 of each class, where these are more), on a GPU
    for 67 million (1,024 of each class), and V H numbers in float32 where `weight` has half precision. Times
    are about those of the plain pair, three matrix products. Where hidden states and weight are bfloat16, a
    GPU multiplies them as they are, into logits in float32; their gradient is rounded to bfloat16 for its
    products, as in the plain pair, and these are added up in float32 again. The gradients are formed in the
    forward pass and handed out by the first backward pass; another one through the same graph computes them
    again. Under `torch.compile` the call is one operator.

    References
    ----------
    P.-L. Hsu et al., *Liger Kernel: Efficient Triton Kernels for LLM Training*, 2024, arXiv:2410.10989:
    blocks of rows. E. Wijmans et al., *Cut Your Losses in Large-Vocabulary Language Models*, ICLR 2025,
    arXiv:2411.09009: no block of logits in memory at all. A. Chowdhery et al., *PaLM*, 2022,
    arXiv:2204.02311: the z-loss.

    Examples
    --------
    >>> import torch, xent.torch
    >>> hidden, weight = torch.eye(2), torch.tensor([[2.0, 0.0], [1.0, 3.0], [0.0, 1.0]], requires_grad=True)
    >>> loss = xent.torch.linear_cross_entropy(hidden, weight, torch.tensor([0, 1]))
    >>> loss.backward()
    >>> round(loss.item(), 6), weight.grad.shape
    (0.288726, torch.Size([3, 2]))
    """
    hidden, weight, bias = _layer(hidden, weight, bias, "")
    labels, counts = labels_of(targets, hidden, ignore_index, 0 if vocab_group else len(weight))
    cap = None if softcap is None else number(softcap, "softcap", "a finite number > 0", 0.0, math.inf)
    z_loss = number(z_loss, "z_loss", "a finite number >= 0", 0.0, math.inf, closed="low")
    settings = cap, z_loss, smoothing_mass(label_smoothing), "", 0.0, 1.0, False, None
    taught = labels.flatten(), None, None, None
    return _reduced(
        hidden, weight, bias, taught, settings, counts, sample_weight, reduction, denominator, vocab_group
    )


def linear_distillation_loss(
    student_hidden: Tensor,
    student_weight: Tensor,
    teacher_hidden: Tensor,
    teacher_weight: Tensor,
    *,
    student_bias: Tensor | None = None,
    teacher_bias: Tensor | None = None,
    temperature: float = 1.0,
    scale: Scale = "t_squared",
    direction: Direction = "forward",
    beta: float = 0.5,
    top_k: int | None = None,
    targets: Tensor | None = None,
    sample_weight: Tensor | ArrayLike | None = None,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
    denominator: float | None = None,
    vocab_group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Divergence between two linear layers' softmaxes, with the logits of one block of rows at a time.

    Parameters
    ----------
    student_hidden : Tensor of floats, shape (..., H)
        Hidden states of the student.
    student_weight : Tensor of floats, shape (V, H)
        Weight of the student's last layer.
    teacher_hidden : Tensor of floats, shape (..., G)
        Hidden states of the teacher, for the same rows; no gradient flows into them.
    teacher_weight : Tensor of floats, shape (V, G)
        Weight of the teacher's last layer; no gradient flows into it.
    student_bias, teacher_bias : Tensor of floats, shape (V,), optional
        Biases of the two layers.
    temperature : float, default 1
        T > 0 divides both logits.
    scale : {"t_squared", "none"}, default "t_squared"
        Multiply by T^2 or not.
    direction : {"forward", "reverse", "jsd"}, default "forward"
        KL(teacher || student), KL(student || teacher), or the generalised Jensen-Shannon divergence
        beta KL(teacher || m) + (1 - beta) KL(student || m) from the mixture
        m = beta teacher + (1 - beta) student.
    beta : float, default 0.5
        The teacher's share in (0, 1); only "jsd" looks at it.
    top_k : int, optional
        Compare the probabilities of the teacher's k most probable classes and that of all others together,
        k + 1 numbers, instead of all V.
    targets : Tensor of integers, shape (...), optional
        Used only to find the rows that do not count, with `ignore_index`.
    sample_weight : Tensor or array_like that broadcasts to the shape of the rows, optional
        Weight of each row, finite and >= 0, a constant; a mask will do. Rows of weight zero cost no time.
    ignore_index : int, optional
        Rows with this target do not count, whatever their hidden states hold.
    reduction : {"mean", "sum", "none"}, default "mean"
        sum(w l) / sum(w), sum(w l), or each w l.
    denominator : float, optional
        Replaces sum(w) in the mean.
    vocab_group : torch.distributed.ProcessGroup, optional
        The ranks that share the vocabulary, as in `linear_cross_entropy`; both models are split alike.

    Returns
    -------
    Tensor
        Loss in nats (times T^2), never negative but for rounding, in the widest dtype, at least float32.

    Raises
    ------
    ValueError
        If shapes or devices do not match, an argument is out of range, or there is nothing to average.
    TypeError
        If an argument is of the wrong kind.
    RuntimeError
        If its gradient is asked for with ``create_graph=True``.

    Notes
    -----
    The room is that of `linear_cross_entropy`, twice; the rest of its notes holds here too. A row's loss L comes
    from log-probabilities, which are rounded, and not from differences of logits as in `distillation_loss`: it is
    off by at most (8 + margin) epsilons of L + sqrt(L), not of L. In float32 that is 0.02 % of the loss of two
    models whose logits differ by 1e-3, and more at a high temperature.

    References
    ----------
    G. Hinton, O. Vinyals and J. Dean, *Distilling the Knowledge in a Neural Network*, 2015, arXiv:1503.02531.
    R. Agarwal et al., *On-Policy Distillation of Language Models*, ICLR 2024, arXiv:2306.13649: the
    divergence "jsd". Divided by beta it tends to the forward one as beta falls to 0, and divided by 1 - beta
    to the reverse one as beta rises to 1.

    Examples
    --------
    >>> import torch, xent.torch
    >>> hidden, student = torch.eye(2), torch.zeros(3, 2, requires_grad=True)
    >>> teacher = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    >>> loss = xent.torch.linear_distillation_loss(hidden, student, hidden, teacher)
    >>> loss.backward()
    >>> round(loss.item(), 5)
    0.12328
    """
    z, weight, bias = _layer(student_hidden, student_weight, student_bias, "student_")
    v, taught, taught_bias = _layer(teacher_hidden, teacher_weight, teacher_bias, "teacher_")
    rows, classes = z.shape[:-1], weight.shape[0]
    if v.shape[:-1] != rows:
        raise ValueError(
            f"teacher_hidden: expected rows of shape {tuple(rows)}, those of student_hidden, "
            f"got shape {tuple(v.shape)}"
        )
    if len(taught) != classes:
        raise ValueError(
            f"teacher_weight: expected {classes} rows, as student_weight, got shape {tuple(taught.shape)}"
        )
    same_device(v, "teacher_hidden", z)
    temperature, squared = _settings(temperature, scale, direction)
    if top_k is not None and integer(top_k, "top_k") < 1:
        raise ValueError(f"top_k: expected at least one class, got {shown(top_k)}")
    if (targets is None) != (ignore_index is None):
        raise ValueError(
            "ignore_index: expected targets and ignore_index together, or neither, got "
            f"{'no targets' if targets is None else 'targets'} with ignore_index={shown(ignore_index)}"
        )
    counts = None if targets is None else labels_of(targets, z, ignore_index, 0)[1]
    settings = None, 0.0, 0.0, direction, _beta(beta), temperature, squared, top_k
    teacher = None, _matrix(v.detach()), taught.detach(), taught_bias
    return _reduced(
        z, weight, bias, teacher, settings, counts, sample_weight, reduction, denominator, vocab_group
    )


def _reduced(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    against: tuple[Tensor | None, ...],
    settings: tuple[Any, ...],
    counts: Tensor | None,
    sample_weight: Tensor | ArrayLike | None,
    reduction: Reduction,
    denominator: float | None,
    vocab_group: dist.ProcessGroup | None,
) -> Tensor:
    """Turn weights and the reduction into a factor for each row, and apply the loss."""
    reduction, denominator = reduction_arguments(reduction, denominator)
    rows, device = hidden.shape[:-1], hidden.device
    dtype = wide(torch.promote_types(hidden.dtype, weight.dtype))
    if against[2] is not None:
        dtype = torch.promote_types(dtype, against[2].dtype)
    of_rows = target_weights(hidden, sample_weight, counts)
    factor = row_factors(of_rows, hidden, reduction, denominator).to(dtype)
    name = group_name(vocab_group)
    if torch.is_autocast_enabled(device.type):
        # As autocast does for a linear layer; double precision is left as it is.
        cast = torch.get_autocast_dtype(device.type)
        hidden, weight, bias, *taught = (_cast(x, cast) for x in (hidden, weight, bias, *against[1:]))
        against = against[0], *taught
    form = [torch.is_grad_enabled() and x is not None and x.requires_grad for x in (hidden, weight, bias)]
    arguments = _matrix(hidden), weight, bias, factor.flatten(), *against, *settings, name
    result: Tensor = _LinearLoss.apply(reduction == "none", form, *arguments)
    return result.reshape(rows) if reduction == "none" else result


def _matrix(x: Tensor) -> Tensor:
    return x.reshape(x.shape[:-1].numel(), x.shape[-1])


def _cast(x: Any, dtype: torch.dtype) -> Any:
    return x if x is None or x.dtype == torch.float64 else x.to(dtype)


def _layer(hidden: Any, weight: Any, bias: Any, whose: str) -> tuple[Tensor, Tensor, Tensor | None]:
    """Check what makes logits: hidden (..., H), weight (V, H) and bias (V,)."""
    for value, name in (
        (hidden, "hidden"),
        (weight, "weight"),
        *([(bias, "bias")] if bias is not None else []),
    ):
        same_device(floats(value, whose + name), whose + name, hidden)
    if hidden.ndim == 0:
        raise ValueError(f"{whose}hidden: expected shape (..., H), got a single number")
    if weight.ndim != 2 or weight.shape[1] != hidden.shape[-1] or not len(weight):
        raise ValueError(
            f"{whose}weight: expected shape (V, {hidden.shape[-1]}), a row for each class, "
            f"got {tuple(weight.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"{whose}bias: expected shape ({len(weight)},), got {tuple(bias.shape)}")
    return hidden, weight, bias
