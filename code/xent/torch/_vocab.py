"""Losses of rows of logits whose classes may be split among ranks, with their gradients formed in place.

A rank of a vocabulary-parallel model holds some classes of every row. A softmax needs a maximum and sums over
all of them, so that these few numbers for each row are exchanged, and never the logits. Without a group the
same code runs on whole rows: this is what `xent.torch.linear_cross_entropy` and `linear_distillation_loss`
apply to one block of rows after the other.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from numpy.typing import ArrayLike
from torch import Tensor

from xent._validate import Reduction

from ._blocks import divide_by, summed, wide
from ._validate import in_range, labels_of, target_weights, weights


class Shards:
    """Which classes this rank holds: `local` of `total`, from `first` on; all of them without a group."""

    def __init__(self, local: int, device: torch.device, group: dist.ProcessGroup | None) -> None:
        self.group, self.first, self.total, self.largest = group, 0, local, local
        if group is not None:
            rank = dist.get_rank(group)
            sizes = torch.zeros(dist.get_world_size(group), dtype=torch.int64, device=device)
            sizes[rank] = local
            held = self.sum(sizes).tolist()
            self.first, self.total, self.largest = sum(held[:rank]), sum(held), max(held)

    def sum(self, x: Tensor) -> Tensor:
        """Add up over the ranks, in place."""
        if self.group is not None:
            dist.all_reduce(x, dist.ReduceOp.SUM, self.group)
        return x

    def max(self, x: Tensor) -> Tensor:
        """Take the maximum over the ranks, in place."""
        if self.group is not None:
            dist.all_reduce(x, dist.ReduceOp.MAX, self.group)
        return x

    def gather(self, x: Tensor) -> Tensor:
        """Put the columns of all ranks side by side; all hold as many."""
        if self.group is None:
            return x
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(parts, x.contiguous(), self.group)
        return torch.cat(parts, 1)

    def find(self, classes: Tensor, local: int) -> tuple[Tensor, Tensor]:
        """Return where these classes are among this rank's, and whether they are."""
        at = classes - self.first
        mine = (at >= 0) & (at < local)
        return at.masked_fill(~mine, 0), mine


def cross_entropy_(
    z: Tensor, labels: Tensor, factor: Tensor, shards: Shards, smoothing: float = 0.0, z_loss: float = 0.0
) -> Tensor:
    """Return the loss of each row of logits (R, V); in their place leave the gradient times `factor`."""
    at, mine = shards.find(labels.unsqueeze(1), z.shape[1])
    top = shards.max(z.amax(1))
    z.sub_(top.unsqueeze(1))
    own = z.gather(1, at).masked_fill_(~mine, 0.0).squeeze(1)
    spread = z.sum(1) if smoothing else torch.zeros_like(own)
    z.exp_()
    z.scatter_(1, at, z.gather(1, at).masked_fill_(mine, 0.0))
    # The target's own term stays out of the sum, and log1p keeps the digits of a small loss.
    others, own, spread = shards.sum(torch.stack([z.sum(1), own, spread])).unbind()
    total = others + own.exp()
    log_total = torch.where(own == 0, others.log1p(), total.log())
    losses = log_total - own
    if smoothing:
        losses = (1 - smoothing) * losses + smoothing * (log_total - spread / shards.total)
    pull = 2 * z_loss * (top + log_total)
    if z_loss:
        losses = losses + z_loss * (top + log_total).square()

    # (1 + pull) p_j - (1 - smoothing) [j = y] - smoothing / V, with p_y - 1 = -others / total.
    z.mul_((factor * (1 + pull) / total).unsqueeze(1))
    target = factor * (smoothing + (pull * own.exp() - others) / total)
    z.scatter_(1, at, torch.where(mine, target.unsqueeze(1), z.gather(1, at)))
    if smoothing:
        z.sub_((factor * (smoothing / shards.total)).unsqueeze(1))
    return losses


def divergence_(
    z: Tensor,
    v: Tensor,
    factor: Tensor,
    shards: Shards,
    direction: str,
    beta: float,
    temperature: float,
    squared: bool,
    top_k: int | None,
) -> Tensor:
    """Return each row's divergence between student logits z and teacher logits v (R, V), as `cross_entropy_`.

    The values are sums of terms none of which is negative, so that two models that agree to many digits have
    a loss that keeps some.
    """
    student, teacher = _softmax_(z, temperature, shards), _softmax_(v, temperature, shards)
    if top_k is None or top_k >= shards.total:
        losses, gradient = _divergence(student, teacher, direction, beta, shards)
    else:
        losses, gradient = _coarse_divergence(student[0], teacher[0], direction, beta, shards, top_k)
    scale = temperature if squared else 1 / temperature
    torch.mul(gradient, (factor * scale).unsqueeze(1), out=z)
    return losses * temperature**2 if squared else losses


def _softmax_(x: Tensor, temperature: float, shards: Shards) -> tuple[Tensor, Tensor]:
    """Return log-probabilities at a temperature, in the place of the logits, and probabilities."""
    x.sub_(shards.max(x.amax(1)).unsqueeze(1)).div_(temperature)
    probs = x.exp()
    total = shards.sum(probs.sum(1)).unsqueeze(1)
    return x.sub_(total.log()), probs.div_(total)


# On a CPU torch.where takes four times as long as exp. So the masks below are written as clamps and signs.


def _divergence(
    student: tuple[Tensor, Tensor],
    teacher: tuple[Tensor, Tensor],
    direction: str,
    beta: float,
    shards: Shards,
) -> tuple[Tensor, Tensor]:
    """Return each row's divergence between (log q, q) and (log p, p), and its gradient by q's logits."""
    (log_q, q), (log_p, p) = student, teacher
    if direction == "forward":
        losses, gradient = _excess(p, q, _log_ratio(p, log_q, log_p))
        return shards.sum(losses), gradient
    if direction == "reverse":
        x = _log_ratio(q, log_p, log_q)
        losses = shards.sum(_excess(q, p, x)[0])
        return losses, q.mul_(x.neg_().sub_(losses.unsqueeze(1)))
    # The mixture is m = beta p + (1 - beta) q. Of log(m / p) and log(m / q) the one that is <= 0 is
    # log1p(c expm1(-|d|)) with d = log(p / q) and c the share of the lesser; the other is |d| more.
    largest = torch.finfo(q.dtype).max  # in place of inf, times a probability of zero
    d = (log_p - log_q).nan_to_num_(nan=0.0, posinf=largest, neginf=-largest)
    share = d.sign().mul_(0.5 - beta).add_(0.5)
    low = d.abs().neg_().expm1_().mul_(share).log1p_()
    of_p, of_q = low + d.clamp(max=0.0).neg_(), low + d.clamp(min=0.0)
    m = torch.lerp(q, p, beta)
    of_losses = beta * _excess(p, m, of_p)[0] + (1 - beta) * _excess(q, m, of_q)[0]
    losses, drift = shards.sum(torch.stack([of_losses, torch.linalg.vecdot(q, of_q)])).unbind()
    return losses, q.mul_(of_q.neg_().add_(drift.unsqueeze(1))).mul_(1 - beta)


def _log_ratio(a: Tensor, log_b: Tensor, log_a: Tensor) -> Tensor:
    """Return log(b / a), finite where a is zero."""
    # Where a is zero, but for those that underflow, log a is -inf.
    x = (log_b - log_a).nan_to_num_(nan=0.0, posinf=torch.finfo(a.dtype).max, neginf=-math.inf)
    if (x.amin(1) == -math.inf).any():
        x = torch.where(a > 0, x, 0.0)
    return x


def _excess(a: Tensor, b: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's sum of b - a - a x, never negative terms, and b - a, where x is log(b / a).

    Close to each other, b - a has the digits of b only: the larger times expm1(-|x|) has those of the
    difference.
    """
    difference = x.abs().neg_().expm1_().mul_(torch.maximum(a, b)).copysign_(x)
    return torch.addcmul(difference, a, x, value=-1).sum(1), difference


def _coarse_divergence(
    log_q: Tensor, log_p: Tensor, direction: str, beta: float, shards: Shards, top_k: int
) -> tuple[Tensor, Tensor]:
    """Do the same between the teacher's `top_k` classes and one more, in which all others are added up."""
    values, at = log_p.topk(min(top_k, log_p.shape[1]), 1)
    short = top_k - values.shape[1]  # a shard may hold fewer
    values = torch.nn.functional.pad(values, (0, short), value=-math.inf)
    classes = shards.gather(torch.nn.functional.pad(at + shards.first, (0, short)))
    _, order = shards.gather(values).topk(top_k, 1)
    at, mine = shards.find(classes.gather(1, order), log_p.shape[1])
    # Added, not put, because `at` is 0, which may be another's place, where a class is not mine.
    taken = log_p.new_zeros(at.shape).masked_fill_(mine, -math.inf)

    def coarse(log_x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        top = shards.sum(log_x.gather(1, at).masked_fill_(~mine, 0.0))
        rest = log_x.scatter_add(1, at, taken)
        tail = rest.logsumexp(1, keepdim=True)
        highest = shards.max(tail.clone()).clamp_(min=torch.finfo(tail.dtype).min)  # may be -inf
        tail = shards.sum((tail - highest).exp_()).log_().add_(highest)
        logs = torch.cat([top, tail], 1)
        return logs, logs.exp(), rest

    log_teacher, coarse_p, _ = coarse(log_p)
    log_coarse, coarse_q, rest = coarse(log_q)
    whole = Shards(top_k + 1, log_p.device, None)
    losses, by_class = _divergence((log_coarse, coarse_q), (log_teacher, coarse_p), direction, beta, whole)
    # Within the tail the student's shares stay as they are.
    tail = log_coarse[:, -1:].clamp(min=torch.finfo(log_q.dtype).min)
    gradient = rest.sub_(tail).exp_().mul_(by_class[:, -1:])
    return losses, gradient.scatter_add_(1, at, by_class[:, :-1] * mine)


class _SplitCrossEntropy(torch.autograd.Function):
    """The loss of each row of split logits; its gradient is formed with it and needs no exchange."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, factor: Tensor, smoothing: float, shards: Shards
    ) -> Tensor:
        z = logits.masked_fill((factor == 0).unsqueeze(1), 0.0)
        losses = cross_entropy_(z, labels, factor, shards, smoothing)
        ctx.save_for_backward(z)
        return losses.mul_(factor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        return ctx.saved_tensors[0] * grads[0].unsqueeze(1), None, None, None, None


def refuse_second_derivatives() -> None:
    """Raise in a backward pass that is to be differentiated, where constants would be wrong in silence."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(
            "create_graph=True: expected a backward pass that is not differentiated again, since the linear "
            "losses and those with vocab_group= have no second derivatives; take the loss of all logits, as "
            "in cross_entropy(hidden @ weight.T, targets)"
        )


def split_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    group: dist.ProcessGroup,
    weight: Tensor | ArrayLike | None,
    sample_weight: Tensor | ArrayLike | None,
    smoothing: float,
    ignore_index: int | None,
    reduction: Reduction,
    denominator: float | None,
) -> Tensor:
    """Return the cross-entropy of logits (..., V of this rank) whose classes are split among ranks.

    `targets` count over all ranks and are the same on all of them; `weight` (V of this rank) is split as the
    logits are. The loss is that of the whole on every rank, and the gradient is that of its own logits.
    """
    group_name(group)
    labels, counts = labels_of(targets, logits, ignore_index, classes=0)
    shards = Shards(logits.shape[-1], logits.device, group)
    in_range(labels, "targets", shards.total)
    w = target_weights(logits, sample_weight, counts)
    if weight is not None:
        mine, here = shards.find(labels, logits.shape[-1])
        each = weights(weight, "weight", (logits.shape[-1],), "one weight a class of this rank", logits)
        each = shards.sum(each[mine].masked_fill_(~here, 0.0))
        w = each if w is None else w * each
    factor = row_factors(w, logits, reduction, denominator)
    z = logits.to(factor.dtype).reshape(labels.numel(), -1)
    losses: Tensor = _SplitCrossEntropy.apply(z, labels.flatten(), factor.flatten(), smoothing, shards)
    return losses.reshape(labels.shape) if reduction == "none" else summed(losses, 1.0)


def group_name(group: Any) -> str:
    """Check a process group and return its name, "" for none."""
    if group is None:
        return ""
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"vocab_group: expected a torch.distributed.ProcessGroup, got {type(group).__name__}")
    return group.group_name


def row_factors(
    weight: Tensor | None, rows: Tensor, reduction: Reduction, denominator: float | None
) -> Tensor:
    """Return what each row's loss is multiplied by, so that their sum is the reduced loss; 0: left out."""
    shape = rows.shape[:-1]
    divisor = divide_by(shape, weight, reduction, denominator)
    factor = rows.new_ones(shape, dtype=wide(rows.dtype)) if weight is None else weight.detach()
    return factor if divisor is None else factor / divisor
