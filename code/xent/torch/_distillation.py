"""`xent.distillation` on tensors: the same names and meaning, differentiable with respect to the student.

The teacher is a constant: its tensors are detached, so a forgotten ``no_grad`` costs memory and changes no
gradient. As in the other losses, nan logits stay nan instead of raising. The error is that of the arrays' losses, in
epsilons of the dtype that is computed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from xent import _validate as check
from xent import distillation as arrays
from xent._validate import Reduction
from xent.distillation import TREATMENTS, Direction, Scale, Treatment

from . import _checks as tensors
from ._blocks import RowLoss, accumulator, concrete, exp_, reduce_rows
from ._checks import LABEL_DTYPES
from ._losses import hard, held, log_softmax, log_sum_exp


def distillation_loss(
    student_logits: Tensor,
    teacher_logits: Tensor,
    *,
    temperature: float = 1.0,
    scale: Scale = "t_squared",
    direction: Direction = "forward",
    beta: float = 0.5,
    axis: int = -1,
    sample_weight: Tensor | ArrayLike | None = None,
    reduction: Reduction = "mean",
    denominator: float | Tensor | None = None,
) -> Tensor:
    """`xent.distillation.distillation_loss` on tensors; no gradient flows into the teacher's logits.

    Examples
    --------
    >>> import torch, xent.torch
    >>> z = torch.zeros(1, 2, requires_grad=True)
    >>> xent.torch.distillation_loss(z, torch.tensor([[1.0, 0.0]]), temperature=100.0).backward()
    >>> z.grad
    tensor([[-0.2500,  0.2500]])
    """
    z, v = _pair(student_logits, teacher_logits, axis)
    soft = _divergence_of(z, temperature, scale, direction, beta)
    w = tensors.target_weights(z, sample_weight)
    return reduce_rows(soft.loss(), z, (v,), w, tensors.reduction_arguments(reduction, denominator))


def mixed_loss(
    student_logits: Tensor,
    teacher_logits: Tensor,
    targets: Tensor,
    *,
    alpha: float = 0.5,
    temperature: float = 1.0,
    scale: Scale = "t_squared",
    direction: Direction = "forward",
    beta: float = 0.5,
    axis: int = -1,
    sample_weight: Tensor | ArrayLike | None = None,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
    denominator: float | Tensor | None = None,
) -> Tensor:
    """`xent.distillation.mixed_loss` on tensors; no gradient flows into the teacher's logits.

    Examples
    --------
    >>> import torch, xent.torch
    >>> z, v = torch.zeros(2, 2, requires_grad=True), torch.tensor([[2.0, 0.0], [9.0, 0.0]])
    >>> xent.torch.mixed_loss(z, v, torch.tensor([0, -100]), ignore_index=-100).backward()
    >>> z.grad
    tensor([[-0.4404,  0.4404],
            [ 0.0000,  0.0000]])
    """
    alpha = check.number(alpha, "alpha", "a number in [0, 1]", 0.0, 1.0, closed="low high")
    z, v = _pair(student_logits, teacher_logits, axis)
    soft = _divergence_of(z, temperature, scale, direction, beta)
    labels, counts = tensors.labels_of(targets, z, ignore_index, axis=axis)
    loss = RowLoss(partial(_mixed, held(alpha, z), soft))
    w = tensors.target_weights(z, sample_weight, counts)
    return reduce_rows(loss, z, (v, labels), w, tensors.reduction_arguments(reduction, denominator))


def top_k_loss(
    student_logits: Tensor,
    top_log_probs: Tensor,
    top_indices: Tensor,
    *,
    treatment: Treatment = "tail",
    axis: int = -1,
    sample_weight: Tensor | ArrayLike | None = None,
    reduction: Reduction = "mean",
    denominator: float | Tensor | None = None,
) -> Tensor:
    """`xent.distillation.top_k_loss` on tensors; the log-probabilities are constants.

    Examples
    --------
    >>> import torch, xent.torch
    >>> p = torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64)
    >>> top, indices = p.log().topk(2)
    >>> z = p.log().requires_grad_()
    >>> xent.torch.top_k_loss(z, top, indices, treatment="truncated").backward()
    >>> z.grad
    tensor([[-0.1000, -0.0600,  0.1200,  0.0400]], dtype=torch.float64)
    """
    check.choice(treatment, "treatment", TREATMENTS)
    z, axis = tensors.logits_of(student_logits, "student_logits", axis)
    name, shape = "top_log_probs", tuple(tensors.floats(top_log_probs, "top_log_probs").shape)
    if len(shape) != z.ndim:
        raise ValueError(f"{name}: expected {z.ndim} dimensions, as student_logits, got shape {shape}")
    log_p, _ = tensors.logits_of(tensors.widened(top_log_probs, name).detach(), name, axis)
    at = _class_choices(top_indices, "top_indices", z, axis)
    if at.shape != log_p.shape:
        raise ValueError(
            f"top_indices: expected the shape of {name}, {shape}, got {tuple(top_indices.shape)}"
        )
    tensors.same_device(log_p, "top_log_probs", z)
    if concrete(log_p, at):
        mass = log_p.exp().sum(-1)
        arrays.check_top_k(at.sort(-1).values, mass, log_p.amax(-1), top_log_probs.dtype, treatment)
    z = z.double() if log_p.dtype == torch.float64 else z
    w = tensors.target_weights(z, sample_weight)
    loss = RowLoss(partial(_top_k, treatment))
    return reduce_rows(loss, z, (log_p, at), w, tensors.reduction_arguments(reduction, denominator))


def sample_targets(
    teacher_logits: Tensor,
    samples: int,
    generator: torch.Generator | None = None,
    *,
    proposal_temperature: float = 1.0,
    axis: int = -1,
) -> tuple[Tensor, Tensor]:
    """`xent.distillation.sample_targets` on tensors, drawn by PyTorch's own generator or by another on their device.

    The weights have the dtype that is computed in, where those of arrays are float64.

    Examples
    --------
    >>> import torch, xent.torch
    >>> v = torch.tensor([[0.0, -torch.inf], [-torch.inf, 0.0]])
    >>> indices, weights = xent.torch.sample_targets(v, 4, torch.Generator().manual_seed(0))
    >>> indices.tolist(), weights[0]
    ([[0, 0, 0, 0], [1, 1, 1, 1]], tensor([0.2500, 0.2500, 0.2500, 0.2500]))
    """
    name = "teacher_logits"
    v, axis = tensors.logits_of(tensors.widened(teacher_logits, name).detach(), name, axis)
    samples = check.count(samples, "samples")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator: expected a torch.Generator, got {type(generator).__name__}")
    tau = arrays.above_zero(proposal_temperature, "proposal_temperature")
    tensors.within(tau, "proposal_temperature", v.dtype)
    top = v.amax(-1, keepdim=True)
    if concrete(v):  # amax passes nan on
        endless = ~top.isfinite().squeeze(-1)
        check.refuse_where(endless, "teacher_logits", "rows that have a softmax", got="none")
    log_p = torch.log_softmax(v, -1)
    log_r = torch.log_softmax((v - top) / tau, -1)
    # PyTorch adds the probabilities up: in float32, beside a sure class many small ones would be rounded away.
    flat = log_r.exp().to(accumulator(log_r)).reshape(-1, v.shape[-1])
    drawn = torch.multinomial(flat, samples, replacement=True, generator=generator)
    indices = drawn.reshape(*v.shape[:-1], samples)
    weights = (log_p - log_r).gather(-1, indices).exp() / samples
    return indices.movedim(-1, axis), weights.movedim(-1, axis)


def sampled_loss(
    student_logits: Tensor,
    indices: Tensor,
    importance_weights: Tensor,
    *,
    axis: int = -1,
    sample_weight: Tensor | ArrayLike | None = None,
    reduction: Reduction = "mean",
    denominator: float | Tensor | None = None,
) -> Tensor:
    """`xent.distillation.sampled_loss` on tensors; the weights are constants.

    Examples
    --------
    >>> import torch, xent.torch
    >>> z = torch.zeros(1, 2, requires_grad=True)
    >>> indices, weights = torch.tensor([[0, 0, 1]]), torch.tensor([[0.5, 0.25, 0.25]])
    >>> xent.torch.sampled_loss(z, indices, weights).backward()
    >>> z.grad
    tensor([[-0.2500,  0.2500]])
    """
    z, axis = tensors.logits_of(student_logits, "student_logits", axis)
    at = _class_choices(indices, "indices", z, axis)
    given = tensors.tensor_of(importance_weights, "importance_weights").detach()
    tensors.same_device(given, "importance_weights", z)
    tensors.same_shape(given, "importance_weights", indices.shape, "indices", z)
    masses = tensors.weights(given, "importance_weights", tuple(indices.shape), "that of indices", z).movedim(
        axis, -1
    )
    w = tensors.target_weights(z, sample_weight)
    settings = tensors.reduction_arguments(reduction, denominator)
    return reduce_rows(RowLoss(_sampled), z, (at, masses), w, settings)


# The arithmetic, of rows with the classes last.


@dataclass(frozen=True)
class _Divergence:
    """The divergence of softmax(z / T) and softmax(v / T), with T^2 in front or not."""

    temperature: float
    squared: bool
    direction: str
    beta: float

    def loss(self) -> RowLoss:
        """The loss of rows; far from ordinary temperatures, its careful form alone."""
        ordinary = 2**-20 < self.temperature < 2**20
        return RowLoss(self.plain, self.fused if ordinary else None, arrays=5 if self.even else 3)

    @property
    def even(self) -> bool:
        """Whether teacher and student may change places, so that rounding should not tell them apart either."""
        return self.direction == "jsd" and self.beta == 0.5

    def plain(self, z: Tensor, v: Tensor) -> Tensor:
        """A sum of terms a (exp(-d) - 1 + d) with d = log(a / b), each >= 0; see `xent.distillation`."""
        if self.even:
            turned = _turned(torch.sub(z.detach(), v.detach()))
            z, v = torch.where(turned, v, z), torch.where(turned, z, v)
        factor = self.temperature if self.squared else 1.0
        first, second = (z, v) if self.direction == "reverse" else (v, z)
        a, b, d = _compare(first, second, self.temperature)
        if self.direction != "jsd":
            return _terms_of(a, b, d, factor).sum(-1)
        # log(p / M) with M = beta p + (1 - beta) q, from log(p / q) so that nothing overflows.
        d = d.clamp(-1e4, 1e4)
        high, low = -d.clamp(min=0), d.clamp(max=0)
        up = -_log_mean(high.expm1(), high.exp(), 1 - self.beta, self.beta)
        down = -_log_mean(low.expm1(), low.exp(), self.beta, 1 - self.beta)
        by_p, by_q = torch.where(d > 0, up, down + d), torch.where(d > 0, up - d, down)
        mixture = self.beta * a + (1 - self.beta) * b
        of_p, of_q = _terms_of(a, mixture, by_p, factor), _terms_of(b, mixture, by_q, factor)
        return (self.beta * of_p + (1 - self.beta) * of_q).sum(-1)

    def fused(
        self, z: Tensor, v: Tensor, *, scale: Tensor | float | None, out: Tensor, work: Tensor
    ) -> Tensor:
        """The same in fewer passes; the rows that these are not made for come back as nan."""
        turned = None
        if self.even:
            difference = torch.sub(z, v, out=work[0])
            high, low = difference.amax(-1), -difference.amin(-1)
            mask = high < low
            if (level := ~(mask | (high > low))).any():  # or nan, of a class that is impossible in both
                mask[level] = _turned(difference[level]).squeeze(-1)
            turned = mask.nonzero().squeeze(-1)
            student, teacher = work[3].copy_(z), work[4].copy_(v)
            student[turned], teacher[turned] = v[turned], z[turned]
            z, v = student, teacher
        rows = _Rows(z, v, self.temperature, out, work[:3], turned)
        # Each returns the losses, and what makes of them the gradient by -z / T, in `out` and without 1 / sum e.
        losses, form_gradient = {"forward": self._forward, "reverse": self._reverse, "jsd": self._jsd}[
            self.direction
        ](rows)
        # Below, rounding shows; earlier where one of the two has little share in the mixture.
        small = 2.0**-4 if self.direction == "jsd" and not 0.25 <= self.beta <= 0.75 else 2.0**-7
        if not losses.min().item() >= small:
            some = ((losses < small) & rows.possible).squeeze(-1).nonzero().squeeze(-1)
            losses[some] = self._small(rows.e[some] * rows.per[some], z[some], v[some])
        if scale is not None:
            form_gradient()
            rows.e.mul_(rows.per * scale * (-self.temperature if self.squared else -1 / self.temperature))
        losses.mul_(self.temperature**2 if self.squared else 1.0)
        return torch.where(rows.possible, losses, math.nan).squeeze(-1)

    def _forward(self, rows: _Rows) -> tuple[Tensor, Callable[[], Any]]:
        """KL(p || q) = (sum q r d + rest) / D - log D; its gradient is q - p = -q (r - shift) / D."""
        e, share = rows.e, (1 + rows.shift).reciprocal_()
        of_p = torch.mul(rows.er, rows.d, out=rows.r).sum(-1, keepdim=True).mul_(rows.per)
        losses = of_p.add_(rows.rest).mul_(share).sub_(torch.log1p(rows.shift))

        def form_gradient() -> None:
            torch.addcmul(rows.er, e, rows.shift, value=-1.0, out=e)
            rows.per.mul_(share)  # in place of a pass over all of e

        return losses, form_gradient

    def _reverse(self, rows: _Rows) -> tuple[Tensor, Callable[[], Any]]:
        """KL(q || p) = log D - rest; its gradient is q (log(q / p) - KL) = -q (d - rest)."""
        losses = torch.log1p(rows.shift) - rows.rest
        return losses, lambda: rows.e.mul_(rows.d.sub_(rows.rest))

    def _jsd(self, rows: _Rows) -> tuple[Tensor, Callable[[], Any]]:
        """With x = p / q - 1 and M = beta p + (1 - beta) q, log(M / q) = log1p(beta x) is all that is needed."""
        x = rows.r.sub_(rows.shift).mul_((1 + rows.shift).reciprocal_())
        # Below, p is next to nothing, and 1 + x a rounding error.
        log_ratio = rows.d.sub_(torch.log1p(rows.shift)).clamp_(min=-64.0)
        log_m = torch.log1p(self.beta * x)
        losses = rows.mean(self.beta * (1 + x) * (log_ratio - log_m) - (1 - self.beta) * log_m)

        def form_gradient() -> None:
            if rows.turned is not None:  # there the student is p: log(M / p) for log(M / q), p for q
                log_m[rows.turned] -= log_ratio[rows.turned]
                rows.e[rows.turned] *= log_ratio[rows.turned].exp()
            log_m.mul_(1 - self.beta)
            rows.e.mul_(log_m.sub_(rows.mean(log_m)))

        return losses, form_gradient

    def _small(self, q: Tensor, z: Tensor, v: Tensor) -> Tensor:
        """Losses to all their digits where they are small: sums of terms q f(p / q) >= 0, each accurate.

        A small loss is no small difference of the logits: where the teacher all but excludes a class that the
        student finds unlikely, p / q is next to zero, and f has to come from log(p / q), not from p / q - 1.
        """
        gap, lost = arrays.difference(v, z)
        # A class that is impossible in both is no difference. What the others have in common is taken off.
        gap, lost = (x.masked_fill(gap.isnan(), 0.0) for x in (gap, lost))
        top = q.argmax(-1, keepdim=True)
        gap, lost = (x - x.gather(-1, top) for x in (gap, lost))
        d = (gap + lost) / self.temperature
        d = d - (q * d).sum(-1, keepdim=True)  # what the rounded mean of large numbers left
        r = torch.expm1(d)
        shift = (q * r).sum(-1, keepdim=True)
        r, d = (r - shift) / (1 + shift), d - torch.log1p(shift)  # p / q - 1 and log(p / q)
        t = d.exp()
        if self.direction == "forward":
            terms = torch.where(d.abs() < 0.5, t * _excess(-d), t * d - r)
        elif self.direction == "reverse":
            terms = _excess(d)
        else:
            log_m = _log_mean(r, t, self.beta, 1 - self.beta)  # log(M / q)
            x = log_m - d
            of_p = torch.where(x.abs() < 0.5, t * _excess(x), (self.beta - 1) * r - t * x)
            terms = self.beta * of_p + (1 - self.beta) * _excess(log_m)
        return (q * terms).sum(-1, keepdim=True)


def _turned(difference: Tensor) -> Tensor:
    """Which of two rows comes first, whatever their order: that with the larger logit where they differ most."""
    difference = difference.nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf)
    return difference.gather(-1, difference.abs().argmax(-1, keepdim=True)) < 0


class _Rows:
    """Rows of two softmaxes at a temperature, p of v in terms of q of z, in the arrays that the walker lends.

    e is exp((z - max z) / T), so that q = e / sum e, and `per` is 1 / sum e. d is (v - z) / T less its mean under
    q, of which rounding leaves `rest`; r is exp(d) - 1, er is e r, and `shift` the mean of r. With D = 1 + shift,
    p = q (1 + r) / D. `possible` says in which rows q has not underflowed where p is something, and `turned` in which
    the student's logits are v.
    """

    def __init__(
        self, z: Tensor, v: Tensor, temperature: float, out: Tensor, work: Tensor, turned: Tensor | None
    ) -> None:
        self.turned = turned
        self.spare, self.d, self.r = work.unbind()
        highest, top = z.amax(-1, keepdim=True), v.amax(-1, keepdim=True)
        self.e = torch.sub(z, highest, out=out)
        if (highest - top).abs().max().item() <= 0.5:
            torch.sub(v, z, out=self.d)
        else:  # beside what the rows are apart, the digits of their difference would be lost
            torch.sub(v, top, out=self.d).sub_(self.e)
        if temperature != 1:
            self.d.div_(temperature)
            self.e.div_(temperature)
        self.per = exp_(self.e).sum(-1, keepdim=True).reciprocal_()
        centre = self.mean(self.d)
        if not math.isfinite(centre.sum().item()):  # a class that is impossible in both is no difference
            self.d.masked_fill_(z.isneginf() & v.isneginf(), 0.0)
            centre = self.mean(self.d)
        self.rest = self.mean(self.d.sub_(centre))
        self.possible = torch.expm1(self.d, out=self.r).amax(-1, keepdim=True) < 2.0**40
        self.shift = self.mean(self.r)
        self.er = self.spare  # what the last mean was taken of

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean under q; uses `spare`."""
        return torch.mul(self.e, x, out=self.spare).sum(-1, keepdim=True).mul_(self.per)


def _log_mean(r: Tensor, t: Tensor, share: float, rest: float) -> Tensor:
    """Return log(share t + rest) for t = 1 + r and shares that add up to one; see `xent.distillation`."""
    return torch.where(r > -0.4, torch.log1p(share * r), torch.log(rest + share * t))


def _excess(x: Tensor) -> Tensor:
    """exp(x) - 1 - x, to all its digits where x is small."""
    near = x.abs() < 0.5
    small = torch.where(near, x, 0.0)
    return torch.where(near, small.square() * _series(small), torch.expm1(x) - x)


def _series(x: Tensor) -> Tensor:
    """(exp(x) - 1 - x) / x^2 for |x| <= 1; what is left out is below 2 / 13! or 2 / 21!."""
    series = torch.zeros_like(x)
    for n in range(20 if x.dtype == torch.float64 else 12, 1, -1):
        series = 1 / math.factorial(n) + x * series
    return series


def _terms_of(a: Tensor, b: Tensor, d: Tensor, factor: float) -> Tensor:
    """factor^2 (a d - a + b), with a = 0 where d says nothing."""
    near = (d.abs() < 1) & (a > 0)
    small = torch.where(near, d, 0.0)
    far = torch.where(a > 0, a * torch.where(a > 0, d, 0.0), 0.0) - a + b
    return torch.where(near, a * (factor * small) ** 2 * _series(-small), factor * (factor * far))


def _compare(first: Tensor, second: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return a = softmax(first / T), b = softmax(second / T) and d = log(a / b), finite where a is zero.

    The arithmetic is explained in `xent.distillation._compare`.
    """
    tops = first.detach().amax(-1, keepdim=True), second.detach().amax(-1, keepdim=True)
    one, other = (first - tops[0]) / temperature, (second - tops[1]) / temperature
    log_a, log_b = torch.log_softmax(one, -1), torch.log_softmax(other, -1)
    a, b = log_a.exp(), log_b.exp()
    d = torch.where(a > 0, log_a - log_b, -1e4)
    gap, lost = arrays.difference(first.detach(), second.detach())
    apart, beside = arrays.difference(*tops)
    around = (torch.where(gap.isnan(), 0.0, gap - apart) / temperature).clamp(-16, 16)
    centre = apart + temperature * (b.detach() * around).sum(-1, keepdim=True)
    x = (gap - centre + (lost - beside)) / temperature
    near = x.abs() < 1
    slope = (first - second) / temperature  # x has its derivative, and more digits
    x = torch.where(near, x + (slope - slope.detach()), 0.0)
    moved = (one + (apart - centre) / temperature - other.logsumexp(-1, keepdim=True)).exp()
    s = torch.where(near, b * x.expm1(), moved - b).sum(-1, keepdim=True)
    close = s.detach().log1p().abs() < 1
    total = torch.where(close, s, 0.0).log1p()
    return a, b, torch.where(near & close & (a > 0), x - total, d)


def _mixed(alpha: float, soft: _Divergence, z: Tensor, v: Tensor, labels: Tensor) -> Tensor:
    # A part of weight zero is left out, also where it is infinite.
    if alpha == 0:
        return hard(0.0, z, labels)
    if alpha == 1:
        return soft.plain(z, v)
    return (1 - alpha) * hard(0.0, z, labels) + alpha * soft.plain(z, v)


def _top_k(treatment: str, z: Tensor, log_p: Tensor, at: Tensor) -> Tensor:
    log_q = log_softmax(z)
    mass = log_p.exp().sum(-1)
    chosen = log_q.gather(-1, at)
    if treatment.startswith("renormalised"):
        log_p = torch.log_softmax(log_p, -1)
    if treatment == "renormalised_both":
        chosen = torch.where(chosen.amax(-1, keepdim=True).isneginf(), chosen, log_softmax(chosen))
    losses = _terms(log_p, chosen).sum(-1)
    if treatment == "tail" and at.shape[-1] < z.shape[-1]:
        rest = (1 - mass).clamp(min=0.0).log()
        losses = losses + _terms(rest, log_sum_exp(log_q.scatter(-1, at, -math.inf)))
    return losses


def _terms(log_a: Tensor, log_b: Tensor) -> Tensor:
    """Return a (log a - log b) for a constant a, with 0 log 0 = 0 in the value and in the gradient."""
    a = log_a.exp()
    return a * torch.where(a > 0, log_a - log_b, 0.0)


def _sampled(z: Tensor, at: Tensor, masses: Tensor) -> Tensor:
    return (-masses * torch.where(masses > 0, log_softmax(z).gather(-1, at), 0.0)).sum(-1)


# The checks.


def _pair(student: Any, teacher: Any, axis: int) -> tuple[Tensor, Tensor]:
    z, axis = tensors.logits_of(student, "student_logits", axis)
    hint = arrays.padding(tensors.floats(teacher, "teacher_logits"), student, axis)
    tensors.same_shape(teacher, "teacher_logits", student.shape, "student_logits", z, hint)
    v = teacher.movedim(axis, -1).detach()
    return (z.double() if v.dtype == torch.float64 else z), v


def _divergence_of(z: Tensor, temperature: Any, scale: Any, direction: Any, beta: Any) -> _Divergence:
    temperature, squared = arrays.divergence_settings(temperature, scale, direction)
    tensors.within(temperature, "temperature", z.dtype)
    return _Divergence(temperature, squared, direction, arrays.beta_share(beta))


def _class_choices(value: Any, name: str, z: Tensor, axis: int) -> Tensor:
    """Return some class indices for each row, moved to the last axis."""
    tensor = tensors.tensor_of(value, name)
    arrays.choices_of_rows(tensor, name, z.shape[:-1], axis, integers=tensor.dtype in LABEL_DTYPES)
    tensors.same_device(tensor, name, z)
    tensors.in_range(tensor, name, z.shape[-1])
    return tensor.movedim(axis, -1).long()
