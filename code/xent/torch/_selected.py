"""Log-probabilities of chosen classes, with the entropy beside them: what policy gradients take."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
from torch import Tensor

from xent import _validate as check
from xent.distillation import above_zero

from . import _checks as tensors
from ._reduction import reduce_rows
from ._row_losses import Entropy, Labels, Terms


@overload
def selected_log_probs(
    logits: Tensor,
    targets: Tensor,
    *,
    axis: int = -1,
    temperature: float = 1.0,
    ignore_index: int | None = None,
    entropy: Literal[False] = False,
) -> Tensor: ...
@overload
def selected_log_probs(
    logits: Tensor,
    targets: Tensor,
    *,
    axis: int = -1,
    temperature: float = 1.0,
    ignore_index: int | None = None,
    entropy: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def selected_log_probs(
    logits: Tensor,
    targets: Tensor,
    *,
    axis: int = -1,
    temperature: float = 1.0,
    ignore_index: int | None = None,
    entropy: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Log-probabilities of the targets' classes and, in the same pass, entropies: what policy gradients take.

    Parameters
    ----------
    logits : Tensor of floats, shape (..., K, ...)
        Logits, the classes along `axis`.
    targets : Tensor of integers, the shape of the logits without the class axis
        Class indices in [0, K), such as the tokens that were drawn.
    axis : int, default -1
        The class axis.
    temperature : float, default 1
        T > 0 divides the logits, as when the tokens were drawn.
    ignore_index : int, optional
        Targets of this value get zeros and no gradient, whatever their logits hold.
    entropy : bool, default False
        Return the entropies of softmax(logits / T) too.

    Returns
    -------
    Tensor, or two
        Log-probabilities, and entropies in nats if asked for, in the shape of the targets and at least float32.
        Both are differentiable to any order. A first backward pass makes nothing large but the gradient.

    Examples
    --------
    >>> import torch, xent.torch
    >>> logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]], requires_grad=True)
    >>> log_p, entropy = xent.torch.selected_log_probs(logits, torch.tensor([0, 1]), entropy=True)
    >>> log_p.detach(), entropy.detach()
    (tensor([-0.4076, -0.1698]), tensor([0.8324, 0.5243]))
    """
    z, axis = tensors.logits_of(logits, "logits", axis)
    labels, counts = tensors.labels_of(targets, z, ignore_index, axis=axis)
    terms = chosen(temperature, entropy, z.dtype)
    w = tensors.target_weights(z, None, counts)
    found = reduce_rows(terms, z, (labels,), w, ("none", None))
    return (-found[0], found[1]) if entropy else -found[0]


def chosen(temperature: Any, entropy: Any, dtype: torch.dtype, softcap: float | None = None) -> Terms:
    """Check the temperature and whether the entropy is asked for, and return the terms."""
    t = tensors.within(above_zero(temperature, "temperature"), "temperature", dtype)
    if not isinstance(entropy, bool):
        raise TypeError(f"entropy: expected True or False, got {check.shown(entropy)}")
    return Terms((Labels(), Entropy()) if entropy else (Labels(),), None, softcap, t)
