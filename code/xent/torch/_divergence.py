"""The divergence of two softmaxes: the formula, its kernel, and the same between some classes and the rest.

The formula and its error are those of `xent.distillation`. The kernel takes fewer passes, and looks twice at rows whose
loss is small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from xent.distillation import difference

from ._row_losses import Beside, Factor, RowLoss, done_again, log_sum

# From this loss on, what the rounding of differences makes of it is within what is promised; a mixture is between.
LARGE, LARGE_EVEN, LARGE_UNEVEN = 2.0**-4, 2.0**-3, 2.0**-1
# Where the logarithm of the ratio of two probabilities is beyond these, it is left to the formula.
LOWEST, FARTHEST = -4096.0, 28.0
# From this mean of exp(d) - 1 on, d is not as centred as it has to be.
MUCH = 16.0


@dataclass(frozen=True)
class Divergence(RowLoss):
    """The divergence of softmax(z / T) and a teacher's softmax(v / T), with T^2 in front or not."""

    temperature: float
    squared: bool
    direction: str
    beta: float = 0.5
    arrays: ClassVar[int] = 4

    def plain(self, z: Tensor, *beside: Tensor) -> Tensor:
        """A sum of terms a (exp(-d) - 1 + d) with d = log(a / b), each >= 0; see `xent.distillation`."""
        (v,) = beside
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

    def _by_formula(self, z: Tensor, beside: Beside, factor: Factor, out: Tensor, *work: Tensor) -> Tensor:
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
        """Return the same in fewer passes; the few rows that these are not made for are done by the formula."""
        if not 2**-20 < self.temperature < 2**20:
            return self._by_formula(z, beside, factor, out)
        work = work[: self.arrays]
        losses = self._through_ratios(z, beside, factor, out, work, careful=False)
        least = LARGE_EVEN if 0.4 <= self.beta <= 0.6 else LARGE_UNEVEN
        least = least if self.direction == "jsd" else LARGE
        least *= self.temperature**2 if self.squared else 1.0
        return done_again(losses, self._carefully, z, beside, factor, out, work, least)

    def _carefully(self, z: Tensor, beside: Beside, factor: Factor, out: Tensor, work: Tensor) -> Tensor:
        losses = self._through_ratios(z, beside, factor, out, work, careful=True)
        return done_again(losses, self._by_formula, z, beside, factor, out, work)

    def _through_ratios(
        self, z: Tensor, beside: Beside, factor: Factor, out: Tensor, work: Tensor, *, careful: bool
    ) -> Tensor:
        """Return losses as means under one softmax, b, of terms >= 0 in a / b for the other, a.

        With d the difference of their logits less about its mean, a / b is exp(d) / D, and D = 1 + shift the mean of
        exp(d). Where b has all but underflowed and a has not, the result is nan.
        """
        # A mixture is seen from that softmax which has the greater share in it: so the terms cancel less.
        turned = self.direction == "jsd" and self.beta > 0.5
        base, other = (beside[0], z) if turned else (z, beside[0])
        d, r, terms, spare = work
        tops = base.amax(-1, keepdim=True), other.amax(-1, keepdim=True)
        e = torch.sub(base, tops[0], out=out)
        if careful:  # beside what the rows are apart, the digits of a small difference would be lost
            # As `difference` has it, without making arrays of this size.
            back = torch.sub(torch.sub(other, base, out=r), other, out=terms)
            lost = torch.sub(other, torch.sub(r, back, out=spare), out=spare).sub_(back.add_(base))
            apart, of_tops = difference(*tops[::-1])
            torch.sub(r, apart, out=d).add_(lost.sub_(of_tops).nan_to_num_(0.0))
        else:
            torch.sub(other, tops[1], out=d).sub_(e)
        if self.temperature != 1:
            e.div_(self.temperature)
            d.div_(self.temperature)
        per = e.exp_().sum(-1, keepdim=True).reciprocal_()

        def mean(x: Tensor) -> Tensor:
            return torch.mul(e, x, out=spare).sum(-1, keepdim=True).mul_(per)

        centre = mean(d)
        if not math.isfinite(centre.sum().item()):  # a class that is impossible in both is no difference
            d.masked_fill_(base.isneginf() & other.isneginf(), 0.0)
            centre = mean(d.clamp(-16, 16))
        d.sub_(centre)
        possible = d.amax(-1, keepdim=True) < FARTHEST
        if self.direction == "reverse":
            possible &= d.amin(-1, keepdim=True) > LOWEST
        elif careful:  # what is so much rarer in a than in b adds nothing to a mean under a
            d.clamp_(min=math.log(torch.finfo(d.dtype).eps) - 4)
        exponentiate = partial(_exponentiate, excess=self.direction != "forward", careful=careful)
        exponentiate(d, r, terms)
        shift = mean(r)
        if shift.amax().item() > MUCH:
            exponentiate(d.sub_(torch.log1p(shift)), r, terms)
            shift = mean(r)
        total, log_total = 1 + shift, torch.log1p(shift)
        if self.direction == "reverse":  # KL(b || a)
            losses = mean(terms).sub_(shift - log_total)
            slope = d.sub_(mean(d))  # KL(b || a) - log(b / a)
        elif self.direction == "forward":  # KL(a || b)
            losses = mean(terms).div_(total).sub_(log_total - shift / total)
            slope, per = r.sub_(shift), per / total  # a / b - 1
        else:
            share = 1 - self.beta if turned else self.beta
            log_ratio = d.sub_(log_total)
            log_m = torch.log1p(r.sub_(shift).div_(total).mul_(share))  # log(M / b)
            beyond, ratio = log_m - log_ratio, torch.exp(log_ratio)  # log(M / a), and a / b
            # share a (M / a - 1 - log(M / a)) + (1 - share) b (M / b - 1 - log(M / b)), and all over b
            exponentiate(beyond, r, d)
            exponentiate(log_m, r, terms)
            losses = mean(terms.mul_(1 - share).addcmul_(ratio, d, value=share))
            # KL(q || M) - log(q / M), times q / b
            slope = beyond.sub_(mean(beyond * ratio)).mul_(ratio) if turned else log_m.sub_(mean(log_m))
            per = per * (1 - self.beta)
        if factor is not None:
            e.mul_(slope).mul_(per * factor * (-self.temperature if self.squared else -1 / self.temperature))
        losses = losses * self.temperature**2 if self.squared else losses
        return torch.where(possible, losses, math.nan).squeeze(-1)


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


def _log_mean(r: Tensor, t: Tensor, share: float, rest: float) -> Tensor:
    """Return log(share t + rest) for t = 1 + r and shares that add up to one; see `xent.distillation`."""
    return torch.where(r > -0.4, torch.log1p(share * r), torch.log(rest + share * t))


def _exponentiate(d: Tensor, r: Tensor, terms: Tensor, *, excess: bool, careful: bool) -> None:
    """Fill in r = exp(d) - 1, and terms >= 0 for means: r - d, or exp(d) d - r, carefully to all their digits.

    For small d these come from the power series of r - d; beyond, by exp(near + rest) = exp(near) exp(rest).
    """
    if not careful:
        torch.expm1(d, out=r)
        torch.sub(r, d, out=terms) if excess else torch.addcmul(d, r, d, out=terms).sub_(r)
        return
    low, high = d.aminmax()
    far = not torch.maximum(-low, high).item() <= 0.5
    near = d.clamp(-0.5, 0.5) if far else d
    _series(near, 13 if d.dtype == torch.float64 else 7, terms).mul_(near).mul_(near)
    torch.add(near, terms, out=r)
    if not excess:
        torch.sub(near * r, terms, out=terms)
    if far:
        rest = d - near
        growth = torch.expm1(rest)
        grown = torch.addcmul(growth, r, growth)  # exp(near) times it
        r.add_(grown)
        if excess:
            terms.add_(grown.sub_(rest))
        else:
            terms.addcmul_(terms, growth).sub_(growth).add_(rest).addcmul_(r, rest)


def _series(x: Tensor, degree: int, out: Tensor | None = None) -> Tensor:
    """The power series of (exp(x) - 1 - x) / x^2 up to this degree."""
    series = torch.add(x / math.factorial(degree + 2), 1 / math.factorial(degree + 1), out=out)
    for n in range(degree, 1, -1):
        term = torch.full((), 1 / math.factorial(n), dtype=x.dtype, device=x.device)
        series = torch.addcmul(term, x, series, out=out)
    return series


def _terms_of(a: Tensor, b: Tensor, d: Tensor, factor: float) -> Tensor:
    """factor^2 (a d - a + b), with a = 0 where d says nothing."""
    near = (d.abs() < 1) & (a > 0)
    small = torch.where(near, d, 0.0)
    far = torch.where(a > 0, a * torch.where(a > 0, d, 0.0), 0.0) - a + b
    series = _series(-small, 18 if d.dtype == torch.float64 else 10)
    return torch.where(near, a * (factor * small) ** 2 * series, factor * (factor * far))


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
