"""The divergence of two softmaxes: the formula, its kernel, and the same between some classes and the rest.

The formula and its error are those of `xent.distillation`. The kernel takes fewer passes, and looks twice at losses
that are small and at rows for which its arithmetic is not made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from xent.distillation import difference

from ._row_losses import Beside, Factor, RowLoss, done_again, exp_, log_probs, log_sum


@dataclass(frozen=True)
class Divergence(RowLoss):
    """The divergence of softmax(z / T) and a teacher's softmax(v / T), with T^2 in front or not."""

    temperature: float
    squared: bool
    direction: str
    beta: float = 0.5

    @property
    def even(self) -> bool:
        """Whether teacher and student may change places, so that rounding should not tell them apart either."""
        return self.direction == "jsd" and self.beta == 0.5

    @property
    def ordinary(self) -> bool:
        return 2**-20 < self.temperature < 2**20

    @property
    def arrays(self) -> int:  # type: ignore[override]
        return 0 if not self.ordinary else 5 if self.even else 3

    def plain(self, z: Tensor, *beside: Tensor) -> Tensor:
        """A sum of terms a (exp(-d) - 1 + d) with d = log(a / b), each >= 0; see `xent.distillation`."""
        (v,) = beside
        if self.even:
            turned = _turned(torch.sub(z.detach(), v.detach()))
            z, v = torch.where(turned, v, z), torch.where(turned, z, v)
        factor = self.temperature if self.squared else 1.0
        first, second = (z, v) if self.direction == "reverse" else (v, z)
        a, b, d = compared(first, second, self.temperature)
        if self.direction != "jsd":
            return _terms_of(a, b, d, factor).sum(-1)
        mixture, by_p, by_q = self._mixture(a, b, d)
        of_p, of_q = _terms_of(a, mixture, by_p, factor), _terms_of(b, mixture, by_q, factor)
        return (self.beta * of_p + (1 - self.beta) * of_q).sum(-1)

    def _mixture(self, p: Tensor, q: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return M = beta p + (1 - beta) q, log(p / M) and log(q / M), from log(p / q) so that nothing overflows."""
        d = d.clamp(-1e4, 1e4)
        high, low = -d.clamp(min=0), d.clamp(max=0)
        up = -_log_mean(high.expm1(), high.exp(), 1 - self.beta, self.beta)
        down = -_log_mean(low.expm1(), low.exp(), self.beta, 1 - self.beta)
        by_p, by_q = torch.where(d > 0, up, down + d), torch.where(d > 0, up - d, down)
        return self.beta * p + (1 - self.beta) * q, by_p, by_q

    def _by_formula(self, z: Tensor, beside: Beside, factor: Factor, out: Tensor) -> Tensor:
        """Return the losses of `plain`, and leave the gradient as `xent.distillation` has it."""
        (v,) = beside
        if factor is not None:
            if self.direction == "reverse":
                q, p, d = compared(z, v, self.temperature)
                mean = _terms_of(q, p, d, 1.0).sum(-1, keepdim=True)
                gradient = torch.where(mean < math.inf, q * (d - mean), math.nan)
            else:
                p, q, d = compared(v, z, self.temperature)
                gradient = torch.where((d.abs() < 1) & (p > 0), p * torch.expm1(-d), q - p)
            if self.direction == "jsd":
                mixture, _, d = self._mixture(p, q, d)
                mean = _terms_of(q, mixture, d, 1.0).sum(-1, keepdim=True)
                gradient = (1 - self.beta) * q * (d - mean)
            out.copy_(gradient * (factor * (self.temperature if self.squared else 1 / self.temperature)))
        return self.plain(z, v)

    def kernel(self, z: Tensor, beside: Beside, factor: Factor, out: Tensor, work: Tensor) -> Tensor:
        """Return the same in fewer passes; the rows that these are not made for are done by the formula."""
        if not self.ordinary:
            return self._by_formula(z, beside, factor, out)
        student, (teacher,), turned = z, beside, None
        if self.even:
            difference = torch.sub(z, teacher, out=work[0])
            high, low = difference.amax(-1), -difference.amin(-1)
            mask = high < low
            if (level := ~(mask | (high > low))).any():  # or nan, of a class that is impossible in both
                mask[level] = _turned(difference[level]).squeeze(-1)
            turned = mask.nonzero().squeeze(-1)
            student, v = work[3].copy_(z), work[4].copy_(teacher)
            student[turned], v[turned] = teacher[turned], z[turned]
            teacher = v
        rows = _Rows(student, teacher, self.temperature, out, work[:3], turned)
        # Each returns the losses, and what makes of them the gradient by -z / T, in `out` and without 1 / sum e.
        ways = {"forward": self._forward, "reverse": self._reverse, "jsd": self._jsd}
        losses, form_gradient = ways[self.direction](rows)
        # Below, rounding shows: earlier in a mixture, whose sum has terms of both signs, and in an uneven one at once.
        even = 2.0**-3 if 0.4 <= self.beta <= 0.6 else 2.0**-1
        small = even if self.direction == "jsd" else 2.0**-4
        if not losses.min().item() >= small:
            some = ((losses < small) & rows.possible).squeeze(-1).nonzero().squeeze(-1)
            losses[some] = self._small(rows.e[some] * rows.per[some], student[some], teacher[some])
        if factor is not None:
            form_gradient()
            rows.e.mul_(rows.per * factor * (-self.temperature if self.squared else -1 / self.temperature))
        losses.mul_(self.temperature**2 if self.squared else 1.0)
        losses = torch.where(rows.possible, losses, math.nan).squeeze(-1)
        return done_again(losses, self._by_formula, z, beside, factor, out)

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
        gap, lost = difference(v, z)
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


@dataclass(frozen=True)
class Coarse(RowLoss):
    """The forward divergence between k + 1 masses: of a cache's classes, and of all others together.

    Beside the logits come the classes, their masses and the mass of the others.
    """

    temperature: float
    squared: bool
    takes: ClassVar[int] = 3
    indices: ClassVar[str] = "teacher_top_k"
    arrays: ClassVar[int] = 1
    inner: ClassVar[Divergence] = Divergence(1.0, False, "forward")

    def _teacher(self, beside: Beside, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Return the classes, the logarithms of the k + 1 masses, and what rounding has these miss one."""
        masses = torch.cat([beside[1].to(dtype), beside[2].to(dtype).unsqueeze(-1)], -1)
        return beside[0], masses.log(), masses.sum(-1) - 1

    def _scaled(self, losses: Tensor, over: Tensor) -> Tensor:
        # The divergence of masses s p is s KL(p || q) + s log s.
        losses = (1 + over) * (losses + over.log1p())
        return losses * self.temperature**2 if self.squared else losses

    def plain(self, z: Tensor, *beside: Tensor) -> Tensor:
        at, v, over = self._teacher(beside, z.dtype)
        z = z / self.temperature
        rest = log_sum(z.scatter(-1, at, -math.inf)).unsqueeze(-1)
        return self._scaled(self.inner.plain(torch.cat([z.gather(-1, at), rest], -1), v), over)

    def kernel(self, z: Tensor, beside: Beside, factor: Factor, out: Tensor, work: Tensor) -> Tensor:
        """Return the same; what the others' mass is drawn by, they share as they share the mass."""
        at, v, over = self._teacher(beside, z.dtype)
        rest = torch.div(z, self.temperature, out=work[0])
        own, tail = rest.gather(-1, at), rest.scatter_(-1, at, -math.inf).logsumexp(-1, keepdim=True)
        q = torch.cat([own, tail], -1)
        drawn, room = torch.empty_like(q), q.new_empty(self.inner.arrays, *q.shape)
        losses = self.inner.kernel(q, [v], None if factor is None else 1.0, drawn, room)
        if factor is not None:
            by = factor * (self.temperature if self.squared else 1 / self.temperature)
            drawn.mul_((1 + over).unsqueeze(-1) * by)
            rest.sub_(tail.clamp(min=torch.finfo(z.dtype).min))
            torch.exp(rest, out=out).mul_(drawn[:, -1:]).scatter_add_(-1, at, drawn[:, :-1])
        return self._scaled(losses, over)


@dataclass(frozen=True)
class TopK(RowLoss):
    """What `xent.distillation.top_k_loss` makes of k log-probabilities of a teacher."""

    treatment: str
    takes: ClassVar[int] = 2

    def plain(self, z: Tensor, *beside: Tensor) -> Tensor:
        log_p, at = beside
        log_q = log_probs(z)
        mass = log_p.exp().sum(-1)
        chosen = log_q.gather(-1, at)
        if self.treatment.startswith("renormalised"):
            log_p = torch.log_softmax(log_p, -1)
        if self.treatment == "renormalised_both":
            chosen = torch.where(chosen.amax(-1, keepdim=True).isneginf(), chosen, log_probs(chosen))
        losses = _part(log_p, chosen).sum(-1)
        if self.treatment == "tail" and at.shape[-1] < z.shape[-1]:
            rest = (1 - mass).clamp(min=0.0).log()
            losses = losses + _part(rest, log_sum(log_q.scatter(-1, at, -math.inf)))
        return losses


def _part(log_a: Tensor, log_b: Tensor) -> Tensor:
    """Return a (log a - log b) for a constant a, with 0 log 0 = 0 in the value and in the gradient."""
    a = log_a.exp()
    return a * torch.where(a > 0, log_a - log_b, 0.0)


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


def compared(first: Tensor, second: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return a = softmax(first / T), b = softmax(second / T) and d = log(a / b), finite where a is zero.

    The arithmetic is explained in `xent.distillation.compared`.
    """
    tops = first.detach().amax(-1, keepdim=True), second.detach().amax(-1, keepdim=True)
    one, other = (first - tops[0]) / temperature, (second - tops[1]) / temperature
    log_a, log_b = torch.log_softmax(one, -1), torch.log_softmax(other, -1)
    a, b = log_a.exp(), log_b.exp()
    d = torch.where(a > 0, log_a - log_b, -1e4)
    gap, lost = difference(first.detach(), second.detach())
    apart, beside = difference(*tops)
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
