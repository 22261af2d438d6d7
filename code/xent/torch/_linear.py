"""The losses of a linear layer that never hold its logits; how, `_linear_step` says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, overload

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from xent import _validate as check
from xent._validate import Reduction
from xent.distillation import Direction, Scale, divergence_settings

from . import _checks as tensors
from ._caches import TopK, masses_of
from ._checks import held
from ._distillation import mixture
from ._divergence import Coarse, Divergence
from ._linear_step import LinearLoss, refuse_transforms
from ._losses import chosen
from ._reduction import concrete, wide
from ._row_losses import Distributions, Labels, RowLoss, Terms

#: What makes logits: hidden states (..., H), weight (V, H) and bias (V,).
Layer: TypeAlias = tuple[Tensor, Tensor, Tensor | None]


def linear_cross_entropy(
    hidden: Tensor,
    linear_weight: Tensor,
    targets: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | ArrayLike | None = None,
    softcap: float | None = None,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    sample_weight: Tensor | ArrayLike | None = None,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
    denominator: float | Tensor | None = None,
) -> Tensor:
    """Cross-entropy of ``hidden @ linear_weight.T + linear_bias`` that holds the logits of one block of rows at a time.

    Parameters
    ----------
    hidden : Tensor of floats, shape (..., H)
        Hidden states, the input of the linear layer.
    linear_weight, linear_bias : Tensor of floats, shapes (V, H) and (V,)
        The linear layer, a row for each class; the bias may be left out.
    targets : Tensor of integers, shape (...), or of floats, shape (..., V)
        Class indices in [0, V), or distributions over the classes, which are constants.
    softcap : float, optional
        c > 0 puts c tanh(z / c) in the place of every logit z.
    z_loss : float, default 0
        Adds this number >= 0 times the squared log-sum-exp of its logits to the loss of each target.
    weight, sample_weight, label_smoothing, ignore_index, reduction, denominator
        As in `xent.cross_entropy`, of distributions as in `xent.soft_cross_entropy`; weights are constants. A target
        that does not count costs no time. Only with "none" the first backward pass computes the logits again.

    Returns
    -------
    Tensor
        Loss in nats, in the widest dtype of `hidden`, `linear_weight` and distributions, at least float32. Products
        are accumulated in it too, also under autocast, which rounds what goes into them.

    Raises
    ------
    RuntimeError
        If its gradient is asked for with ``create_graph=True``, or within `torch.func.grad`, `vmap` or `jvp`;
        `cross_entropy` of the logits takes all of these.

    Notes
    -----
    The first three arguments and the names of the options are those of `torch.nn.functional.linear_cross_entropy`.
    Where its loss differs, it differs as in `cross_entropy`: ours takes -100 for a label out of range without
    `ignore_index`, smooths a target whatever the weights of other classes, and divides the mean of distributions by
    the sum of their weights, where PyTorch divides by their number (``denominator=``).

    Given class indices it needs, beside the gradients, room for 3 million logits (32 of each class, where these are
    more), on a GPU, in float32, for 67 million (1,024 of each class), with `softcap` three times as many, and for each
    gradient in half precision another one in float32. Times are about those of the plain
    pair, three matrix products. Where hidden states and weight are bfloat16, a GPU multiplies them as they are into
    logits in float32; their gradient is rounded to bfloat16 for its products (as in the plain
    pair), which add up in float32. The gradients are formed in the forward pass and handed out by the first backward
    pass; another one through the same graph computes them again. Under `torch.compile` the call is one operator.

    Examples
    --------
    >>> import torch, xent.torch
    >>> hidden, w = torch.eye(2), torch.tensor([[2.0, 0.0], [1.0, 3.0], [0.0, 1.0]], requires_grad=True)
    >>> loss = xent.torch.linear_cross_entropy(hidden, w, torch.tensor([0, 1]))
    >>> loss.backward()
    >>> round(loss.item(), 6), w.grad.shape
    (0.288726, torch.Size([3, 2]))
    """
    layer = _layer(hidden, linear_weight, linear_bias, "linear_")
    refuse_transforms("linear_cross_entropy", *layer)
    if isinstance(weight, Tensor) and weight.shape == layer[1].shape:
        raise TypeError(
            "weight: the layer's weight is linear_weight; weight is that of a target by its class"
        )
    cap, z_loss = tensors.cap_and_penalty(
        softcap, z_loss, torch.promote_types(hidden.dtype, linear_weight.dtype)
    )
    settings = held(check.setting(label_smoothing, "label_smoothing"), hidden), z_loss
    asked = tensors.Asked(reduction, denominator)
    if isinstance(targets, Tensor) and targets.is_floating_point() and targets.ndim == hidden.ndim:
        if ignore_index is not None:
            raise ValueError("ignore_index: expected class indices with it, got distributions as targets")
        like = hidden.new_empty(()).expand(*hidden.shape[:-1], len(layer[1]))
        t = tensors.distributions(targets.detach(), "targets", like, "the logits", -1, asked)
        given, w, mass = tensors.distributions_and_weights(t, like, asked, weight, sample_weight)
        part: RowLoss = Distributions(*settings)
        beside = tuple(_matrix(x) for x in given)
    else:
        labels, counts = tensors.labels_of(targets, hidden, ignore_index, asked, len(layer[1]))
        part, beside = Labels(*settings), (labels.flatten(),)
        w = tensors.target_weights(hidden, asked, sample_weight, counts, labels, weight, len(layer[1]))
        mass = w
    return _reduced(layer, Terms((part,), softcap=cap), beside, w, asked, mass)


class _OfLayer(TypedDict, total=False):
    linear_bias: Tensor | None
    softcap: float | None
    temperature: float
    ignore_index: int | None


@overload
def linear_selected_log_probs(
    hidden: Tensor,
    linear_weight: Tensor,
    targets: Tensor,
    *,
    entropy: Literal[False] = False,
    **how: Unpack[_OfLayer],
) -> Tensor: ...
@overload
def linear_selected_log_probs(
    hidden: Tensor, linear_weight: Tensor, targets: Tensor, *, entropy: Literal[True], **how: Unpack[_OfLayer]
) -> tuple[Tensor, Tensor]: ...
def linear_selected_log_probs(
    hidden: Tensor,
    linear_weight: Tensor,
    targets: Tensor,
    *,
    linear_bias: Tensor | None = None,
    softcap: float | None = None,
    temperature: float = 1.0,
    ignore_index: int | None = None,
    entropy: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`selected_log_probs` of a linear layer's logits, which are never held.

    The layer is given, and what is not supported refused, as in `linear_cross_entropy`. The forward pass computes the
    logits once and a backward pass once more, in the room of that loss.

    Examples
    --------
    >>> import torch, xent.torch
    >>> hidden, w = torch.eye(2), torch.tensor([[2.0, 0.0], [1.0, 3.0], [0.0, 1.0]], requires_grad=True)
    >>> log_p, entropy = xent.torch.linear_selected_log_probs(hidden, w, torch.tensor([0, 1]), entropy=True)
    >>> log_p.detach(), entropy.detach()
    (tensor([-0.4076, -0.1698]), tensor([0.8324, 0.5243]))
    """
    layer = _layer(hidden, linear_weight, linear_bias, "linear_")
    refuse_transforms("linear_selected_log_probs", *layer)
    asked = tensors.Asked()
    labels, counts = tensors.labels_of(targets, hidden, ignore_index, asked, len(layer[1]))
    dtype = torch.promote_types(hidden.dtype, layer[1].dtype)
    loss = chosen(temperature, entropy, dtype, tensors.cap_and_penalty(softcap, 0.0, dtype)[0])
    w = tensors.target_weights(hidden, asked, None, counts)
    found = _reduced(layer, loss, (labels.flatten(),), w, asked, w)
    return (-found[0], found[1]) if entropy else -found[0]


def linear_distillation_loss(
    student_hidden: Tensor,
    student_weight: Tensor,
    teacher_hidden: Tensor | None = None,
    teacher_weight: Tensor | None = None,
    *,
    student_bias: Tensor | None = None,
    teacher_bias: Tensor | None = None,
    teacher_top_k: TopK | None = None,
    temperature: float = 1.0,
    scale: Scale = "t_squared",
    direction: Direction = "forward",
    beta: float = 0.5,
    targets: Tensor | None = None,
    alpha: float = 1.0,
    sample_weight: Tensor | ArrayLike | None = None,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
    denominator: float | Tensor | None = None,
) -> Tensor:
    """Divergence of a linear layer's softmax from a teacher's, with the logits of one block of rows at a time.

    The teacher is another linear layer (`teacher_hidden`, `teacher_weight`), or what a cache has kept of one:
    its most probable classes (`teacher_top_k`). No gradient flows into it.

    Parameters
    ----------
    student_hidden, teacher_hidden : Tensor of floats, shapes (..., H) and (..., G)
        Hidden states of both, for the same rows.
    student_weight, teacher_weight : Tensor of floats, shapes (V, H) and (V, G)
        Weights of their last layers.
    student_bias, teacher_bias : Tensor of floats, shape (V,), optional
        Biases of these layers.
    teacher_top_k : TopK, optional
        k classes of the teacher for each row, their probabilities at the same `temperature`, and the mass of all
        others; `top_k_of_teacher` makes it. The loss is the forward divergence between these k + 1 masses.
    temperature : float, default 1
        T > 0 divides both logits; a cache has to be taken at the same.
    scale, direction, beta
        As in `xent.distillation.distillation_loss`.
    targets : Tensor of integers, shape (...), optional
        Class indices; with `alpha` of 1 used only to find the rows that do not count, with `ignore_index`.
    alpha : float, default 1
        Weight of the divergence; the cross-entropy with `targets` has 1 - alpha, as in `mixed_loss`.
    sample_weight, reduction, denominator
        As in `linear_cross_entropy`.
    ignore_index : int, optional
        Rows with this target count in neither part, whatever their hidden states and the cache hold.

    Returns
    -------
    Tensor
        Loss in nats (the part from the teacher times T^2), never negative but for rounding, in the widest dtype of
        `student_hidden`, `student_weight` and, if `alpha` > 0, the teacher's weight, bias or top k; at least float32.

    Notes
    -----
    The room is that of `linear_cross_entropy`, twice with a live teacher; on a GPU, two to eight times. Its errors and
    other notes hold here too. Given its logits, a row's loss is as accurate as that of `distillation_loss`. With a
    cache a loss L, without T^2, is off by at most (8 + margin) (L + 1) epsilons: the logarithm of what all other
    classes add up to is rounded.

    Examples
    --------
    >>> import torch, xent.torch
    >>> hidden, student = torch.eye(2), torch.zeros(3, 2, requires_grad=True)
    >>> teacher = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    >>> cache = xent.torch.top_k_of_teacher(hidden @ teacher.T, 2)
    >>> for of_teacher in ({"teacher_hidden": hidden, "teacher_weight": teacher}, {"teacher_top_k": cache}):
    ...     print(round(xent.torch.linear_distillation_loss(hidden, student, **of_teacher).item(), 5))
    0.12328
    0.12328
    """
    layer = _layer(student_hidden, student_weight, student_bias, "student_")
    refuse_transforms("linear_distillation_loss", *layer)
    alpha = check.setting(alpha, "alpha")
    if alpha < 1 and targets is None:
        raise ValueError(f"alpha: expected targets with an alpha below 1, got none with alpha={alpha!r}")
    if alpha == 1 and (targets is None) != (ignore_index is None):
        raise ValueError(
            "ignore_index: expected targets and ignore_index together, or neither, got "
            f"{'no targets' if targets is None else 'targets'} with ignore_index={check.shown(ignore_index)}"
        )
    hidden, labels, counts, asked = student_hidden, None, None, tensors.Asked(reduction, denominator)
    if targets is not None:
        looked_at = 0 if alpha == 1 else len(layer[1])
        labels, counts = tensors.labels_of(targets, hidden, ignore_index, asked, looked_at)
    w = tensors.target_weights(hidden, asked, sample_weight, counts)
    if (teacher_hidden is None) == (teacher_top_k is None):
        got = "none" if teacher_hidden is None else "both"
        raise TypeError(f"teacher_hidden: expected this or teacher_top_k, got {got}")
    temperature, squared, beta = divergence_settings(temperature, scale, direction, beta)
    tensors.within(temperature, "temperature", torch.promote_types(hidden.dtype, student_weight.dtype))
    teacher: tuple[Tensor, ...] = ()
    beside: tuple[Tensor, ...] = ()
    soft: RowLoss = Divergence(temperature, squared, direction, beta)
    if teacher_hidden is not None:
        teacher = _taught(layer, teacher_hidden, teacher_weight, teacher_bias)
    else:
        given = {"teacher_weight": teacher_weight, "teacher_bias": teacher_bias, "direction": direction}
        for name, value in given.items():
            only = "forward" if name == "direction" else None
            if value is not only:
                raise ValueError(f"{name}: expected {only!r} with teacher_top_k, got {check.shown(value)}")
        soft, beside = Coarse(temperature, squared), masses_of(teacher_top_k, hidden, w, len(layer[1]), asked)
    # The first part takes the teacher's logits, which are formed block by block.
    terms = Terms((soft,))
    if alpha < 1:
        assert labels is not None
        terms, beside = mixture(alpha, soft, beside, labels.flatten())
    teacher = teacher if alpha > 0 else ()
    return _reduced(layer, terms, beside, w, asked, w, teacher=teacher)


def _taught(layer: Layer, hidden: Any, weight: Any, bias: Any) -> tuple[Tensor, ...]:
    """Check a teacher's layer beside the student's, and return its tensors."""
    _layer(hidden, weight, bias, "teacher_")
    rows, classes, came = layer[0].shape[:-1], len(layer[1]), len(weight)
    if hidden.shape[:-1] != rows:
        raise ValueError(
            f"teacher_hidden: expected rows of shape {tuple(rows)}, those of student_hidden, "
            f"got shape {tuple(hidden.shape)}"
        )
    if came != classes:
        whose = "teacher" if came > classes else "student"
        raise ValueError(
            f"teacher_weight: expected {classes:,} rows, as student_weight, got {came:,}; if both have the same tokens "
            f"and the rest is padding, slice: {whose}_weight[:{min(came, classes)}], and its bias alike"
        )
    tensors.same_device(hidden, "teacher_hidden", layer[0])
    return _matrix(hidden.detach()), *(x.detach() for x in (weight, bias) if x is not None)


def _layer(hidden: Any, weight: Any, bias: Any, whose: str) -> Layer:
    """Check what makes logits; `whose` is how the names of the last two begin, and of the first but for ours."""
    of_hidden = "hidden" if whose == "linear_" else f"{whose}hidden"
    named = {of_hidden: hidden, f"{whose}weight": weight, f"{whose}bias": bias}
    for name, value in named.items():
        if value is not None or not name.endswith("bias"):
            tensors.same_device(tensors.floats(value, name), name, hidden)
    if hidden.ndim == 0:
        raise ValueError(f"{of_hidden}: expected shape (..., H), got a single number")
    if weight.ndim != 2 or weight.shape[1] != hidden.shape[-1] or not len(weight):
        raise ValueError(
            f"{whose}weight: expected shape (V, {hidden.shape[-1]}), a row for each class, "
            f"got {tuple(weight.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"{whose}bias: expected shape ({len(weight)},), got {tuple(bias.shape)}")
    return hidden, weight, bias


def _reduced(
    layer: Layer,
    terms: Terms,
    beside: tuple[Tensor, ...],
    weight: Tensor | None,
    asked: tensors.Asked,
    mass: Tensor | None,
    *,
    teacher: tuple[Tensor, ...] = (),
) -> Tensor:
    """Turn weights and the reduction into a factor for each row, and apply the loss."""
    hidden, device = layer[0], layer[0].device
    dtype = wide(torch.promote_types(hidden.dtype, layer[1].dtype))
    for x in (*teacher[1:], *beside):
        dtype = torch.promote_types(dtype, x.dtype) if x.is_floating_point() else dtype
    like = hidden.new_empty(0, dtype=dtype)
    divisor = asked.divisor(hidden.shape[:-1], mass)
    factor = like.new_ones(hidden.shape[:-1]) if weight is None else weight.detach().to(dtype)
    factor = (factor if divisor is None else factor / divisor).flatten()
    factor = factor.expand(1 if terms.shares else len(terms.parts), -1)
    tensors = layer
    form = [torch.is_grad_enabled() and x is not None and x.requires_grad for x in tensors]
    if torch.is_autocast_enabled(device.type):
        # As autocast does for a linear layer; double precision is left as it is.
        cast = torch.get_autocast_dtype(device.type)
        tensors = tuple(_cast(x, cast) for x in tensors)
        teacher = tuple(_cast(x, cast) for x in teacher)
    h, *rest = tensors
    terms = replace(terms, checked=concrete(*beside))
    each = asked.reduction == "none"
    result: Tensor = LinearLoss.apply(
        each, form, terms.text(), len(teacher), _matrix(h), *rest, factor.contiguous(), *teacher, *beside
    )
    rows = hidden.shape[:-1] if terms.shares else (len(terms.parts), *hidden.shape[:-1])
    return result.reshape(rows) if each else result


def _matrix(x: Tensor) -> Tensor:
    return x.reshape(x.shape[:-1].numel(), x.shape[-1])


def _cast(x: Any, dtype: torch.dtype) -> Any:
    return x if x is None or x.dtype == torch.float64 else x.to(dtype)
