"""Losses of rows of logits, each as a formula that can be differentiated and as a kernel that leaves its gradient.

``plain(z, *beside)`` takes logits, classes last, and what stands beside each row (a label, a distribution, a teacher's
logits); it is the definition, in operations that autograd, `torch.func`, `torch.compile` and `torch.export` take
apart. ``kernel(z, beside, factor, out, work)`` takes a block of rows (R, V), returns the same losses, and leaves in
`out` the gradient of sum(factor * loss), or nothing of use where `factor` is None. Whole logits (`_reduction`) and the
blocks of a linear layer (`_linear_step`) call nothing else. Both are in the dtype that is computed in; `factor` is a
number or has shape (R, 1); `work` are arrays of the block's shape, as many as `arrays` says.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

Factor: TypeAlias = Tensor | float | None
Beside: TypeAlias = Sequence[Tensor]

# Up to so many terms a product with ones is faster than a sum, and about as accurate.
DOT_UP_TO = 32
# Of fewer numbers what counts is how many operations there are.
SMALL = 1 << 10


class RowLoss:
    """What all losses of rows have in common; kinds are frozen dataclasses of their settings."""

    takes: ClassVar[int] = 1  # how many tensors stand beside the logits, where it is one of several
    indices: ClassVar[str] = ""  # what the first of them is called if it holds class indices
    arrays: ClassVar[int] = 0  # of the block's shape, in which the kernel works besides `out`

    def plain(self, z: Tensor, *beside: Tensor) -> Tensor:
        raise NotImplementedError

    def kernel(self, z: Tensor, beside: Beside, factor: Factor, out: Tensor, work: Tensor) -> Tensor:
        """Return the losses of a block; this one differentiates `plain`, which `xent::linear_loss` cannot do."""
        if factor is None:
            return self.plain(z, *beside)
        with torch.enable_grad():
            leaf = z.detach().requires_grad_()
            losses = self.plain(leaf, *beside)
            by = factor.squeeze(-1) if isinstance(factor, Tensor) and factor.ndim else factor
            out.copy_(torch.autograd.grad(losses, leaf, torch.ones_like(losses) * by)[0])
        return losses.detach()


@dataclass(frozen=True)
class Labels(RowLoss):
    """Cross-entropy with class indices, and `z_loss` times the squared log-sum-exp."""

    smoothing: float = 0.0
    z_loss: float = 0.0
    indices: ClassVar[str] = "targets"

    def plain(self, z: Tensor, *beside: Tensor) -> Tensor:
        (labels,) = beside
        if self.smoothing == 0:
            losses = minus_log_p(z, labels)
        else:
            gaps, top = below_the_highest(z)
            losses = gaps.mean(-1) + top.squeeze(-1)
            if self.smoothing < 1:  # a label without mass is left out: 0 * inf would be nan
                losses = (1 - self.smoothing) * minus_log_p(z, labels) + self.smoothing * losses
        return losses + self.z_loss * torch.logsumexp(z, -1).square() if self.z_loss else losses

    def kernel(self, z: Tensor, beside: Beside, factor: Factor, out: Tensor, work: Tensor) -> Tensor:
        """From exp(z - z_y), without a maximum of each row, which over 10 classes on a CPU takes five times as long.

        Rows where that overflows, or the target is impossible, are done again from exp(z - max z).
        """
        own = z.gather(-1, beside[0].unsqueeze(-1)) if z.device.type == "cpu" else None
        losses = self._above(z, beside, factor, out, own=own)
        if own is None:
            return losses
        again = functools.partial(self._above, own=None)
        return done_again(losses, again, z, beside, factor, out, work[: self.arrays])

    def _above(
        self, z: Tensor, beside: Beside, factor: Factor, out: Tensor, *_: Tensor, own: Tensor | None
    ) -> Tensor:
        """Take exponentials relative to the target's logits, `own`, or to the highest where these are not given.

        The target's term stays out of the sum, so that nothing cancels: p_y - 1 is -others / total.
        """
        at, classes = beside[0].unsqueeze(-1), z.shape[-1]
        pivot = z.amax(-1, keepdim=True) if own is None else own
        torch.sub(z, pivot, out=out)
        gap = out.gather(-1, at) if own is None else own - own  # zero, or nan of what is not finite
        mean = sum_classes(out).unsqueeze(-1).div_(classes) if self.smoothing else None
        others = sum_classes(out.exp_().scatter_(-1, at, 0.0 if own is None else gap)).unsqueeze(-1)
        total = others + (gap.exp() if own is None else 1)
        log_total = torch.log1p(others)
        if own is None:
            log_total = torch.where(gap == 0, log_total, total.log())
        losses = log_total
        if own is None and self.smoothing < 1:  # a label without mass is left out: 0 * inf would be nan
            losses = losses - (1 - self.smoothing) * gap
        if mean is not None:
            losses = losses.sub(mean, alpha=self.smoothing)
        if self.z_loss:
            log_sum = pivot + log_total
            losses = losses + self.z_loss * log_sum.square()
        if factor is not None:
            # (1 + pull) p_j - (1 - smoothing) [j = y] - smoothing / K
            by = factor / total
            of_target = torch.mul(others, by).neg_()
            if self.z_loss:
                pull = 2 * self.z_loss * log_sum * by
                of_target.addcmul_(pull, gap.exp())
                by = by + pull
            out.mul_(by)
            if self.smoothing:
                even = factor * (self.smoothing / classes)
                out.sub_(even)
                of_target.add_(even * (classes - 1))
            out.scatter_(-1, at, of_target)
        return losses.squeeze(-1)


@dataclass(frozen=True)
class Focal(RowLoss):
    """(1 - p)^gamma (-log p) for the probability p of a class index; a second tensor beside it multiplies."""

    gamma: float
    indices: ClassVar[str] = "targets"

    def plain(self, z: Tensor, *beside: Tensor) -> Tensor:
        """Return the losses; the derivatives of p^gamma would overflow where p is small, those of its log do not."""
        odds = log_odds(z, beside[0])
        losses = 0.0 - logsigmoid(-odds)
        rest, log_rest = -torch.expm1(-losses), logsigmoid(odds)
        power = torch.where(
            rest > 0, torch.where(rest > 0, rest, 1.0) ** self.gamma, 0.0**self.gamma
        ).detach()
        # Where 1 - p is zero there is no slope: -log p is 0 there too. Nor where its logarithm is: then that is inf.
        moves = self.gamma * log_rest.masked_fill((rest == 0) | (log_rest == 0), 0.0)
        losses = power * torch.exp(moves - moves.detach()) * losses
        # A factor of zero leaves the loss out: 0 * inf would be nan.
        return _times(beside[1], losses) if beside[1:] else losses

    def kernel(self, z: Tensor, beside: Beside, factor: Factor, out: Tensor, work: Tensor) -> Tensor:
        """Return a function of -log p, whose slope multiplies the gradient of that."""
        cost = Labels().kernel(z, beside[:1], None if factor is None else 1.0, out, work)
        p, rest = torch.exp(-cost), -torch.expm1(-cost)
        losses, slope = rest**self.gamma, rest**self.gamma
        if factor is not None:
            # -log(p) / (1 - p) tends to 1 at p = 1, and p log(p) to 0 at p = 0.
            ratio = torch.where(rest > 0, cost / rest, 1.0)
            slope = slope * (1 + self.gamma * torch.where(p > 0, p * ratio, 0.0))
        losses = losses * cost
        if beside[1:]:
            losses, slope = _times(beside[1], losses), _times(beside[1], slope)
        if factor is not None:
            out.mul_(slope.unsqueeze(-1) * factor)
        return losses


@dataclass(frozen=True)
class Distributions(RowLoss):
    """Cross-entropy with a distribution, whose masses a weight of each class, the second tensor, may multiply."""

    smoothing: float = 0.0
    z_loss: float = 0.0
    arrays: ClassVar[int] = 1

    def _masses(self, t: Tensor, *of_class: Tensor) -> Tensor:
        t = t * of_class[0] if of_class else t
        if self.smoothing:
            t = (1 - self.smoothing) * t + self.smoothing / t.shape[-1] * t.sum(-1, keepdim=True)
        return t

    def plain(self, z: Tensor, *beside: Tensor) -> Tensor:
        """Return sum t_k (-log p_k), each as the gap to the largest logit and -log p of that one."""
        t, (gaps, top) = self._masses(*beside), below_the_highest(z)
        losses = (torch.where((t == 0) & gaps.isinf(), 0.0, gaps) * t).sum(-1) + t.sum(-1) * top.squeeze(-1)
        return losses + self.z_loss * t.sum(-1) * torch.logsumexp(z, -1).square() if self.z_loss else losses

    def kernel(self, z: Tensor, beside: Beside, factor: Factor, out: Tensor, work: Tensor) -> Tensor:
        t, gaps = self._masses(*(x.to(z.dtype) for x in beside)), work[0]
        mass = t.sum(-1, keepdim=True)
        top, log_total = normalised(z, out, gaps)
        below: Tensor = torch.linalg.vecdot(t, gaps).unsqueeze(-1)
        if z.device.type != "cpu" or not math.isfinite(below.sum().item()):
            # A class without mass that is impossible as well has no part in this: 0 * inf.
            below = torch.linalg.vecdot(t, gaps.masked_fill_((t == 0) & gaps.isneginf(), 0.0)).unsqueeze(-1)
        losses, pull = torch.addcmul(-below, mass, log_total), mass
        if self.z_loss:
            log_sum = top + log_total
            losses = losses + self.z_loss * mass * log_sum.square()
            pull = mass + 2 * self.z_loss * mass * log_sum
        if factor is not None:
            out.mul_(pull).sub_(t).mul_(factor)
        return losses.squeeze(-1)


@dataclass(frozen=True)
class Entropy(RowLoss):
    """Entropy of the softmax."""

    takes: ClassVar[int] = 0
    arrays: ClassVar[int] = 1

    def plain(self, z: Tensor, *beside: Tensor) -> Tensor:
        """Return -log p of the highest and the mean gap, both >= 0; torch.softmax rounds more."""
        gaps, top = below_the_highest(z)
        return top.squeeze(-1) + ((-gaps - top).exp() * gaps.masked_fill(gaps.isposinf(), 0.0)).sum(-1)

    def kernel(self, z: Tensor, beside: Beside, factor: Factor, out: Tensor, work: Tensor) -> Tensor:
        gaps = work[0]
        _, log_total = normalised(z, out, gaps)
        gaps.clamp_(min=torch.finfo(z.dtype).min / 4)  # of an impossible class, 0 * inf
        mean = -torch.linalg.vecdot(out, gaps).unsqueeze(-1)
        if factor is not None:
            out.mul_(gaps.add_(mean)).mul_(-factor)
        losses: Tensor = log_total + mean
        return losses.squeeze(-1)


@dataclass(frozen=True)
class Terms:
    """Losses of the same logits, which a soft cap may bound and a temperature divide first.

    With `shares` they are added up, each times its share; without, each has a factor of its own. An operator of
    PyTorch takes tensors, numbers and text, so these travel to `xent::linear_loss` as text.
    """

    parts: tuple[RowLoss, ...]
    shares: tuple[float, ...] | None = (1.0,)
    softcap: float | None = None
    temperature: float = 1.0
    checked: bool = False  # whether class indices are known to be some

    @classmethod
    @functools.lru_cache(64)
    def of(cls, text: str) -> Terms:
        kinds = {kind.__name__: kind for kind in RowLoss.__subclasses__()}
        *own, parts = ast.literal_eval(text)
        return cls(tuple(kinds[name](*settings) for name, *settings in parts), *own)

    def text(self) -> str:
        """Write down what makes these, as a literal of Python; in terms that `torch.compile` can follow."""
        text = f"[{self.shares!r}, {self.softcap!r}, {self.temperature!r}, {self.checked!r}, ["
        for part in self.parts:
            names: tuple[str, ...] = type(part).__match_args__  # type: ignore[attr-defined]
            settings = "".join(f", {getattr(part, name)!r}" for name in names)
            text += f"({type(part).__name__!r}{settings},), "
        return f"{text}]]"

    @property
    def arrays(self) -> int:
        bent = 2 * (self.softcap is not None) or int(self.temperature != 1)
        return bent + max(part.arrays for part in self.parts) + (len(self.parts) > 1)

    def _dealt(self, tensors: Sequence[Tensor]) -> list[tuple[RowLoss, Sequence[Tensor]]]:
        if len(self.parts) == 1:
            return [(self.parts[0], tensors)]
        ends = [sum(part.takes for part in self.parts[: i + 1]) for i in range(len(self.parts))]
        return [(part, tensors[end - part.takes : end]) for part, end in zip(self.parts, ends, strict=True)]

    def indices(self, beside: Beside) -> list[tuple[str, Tensor]]:
        return [(part.indices, own[0]) for part, own in self._dealt(beside) if part.indices]

    def plain(self, z: Tensor, *beside: Tensor) -> Tensor:
        """Return the losses, (R) if they are added up, else (P, R)."""
        z = z if self.softcap is None else self.softcap * torch.tanh(z / self.softcap)
        z = z if self.temperature == 1 else z / self.temperature
        losses = [part.plain(z, *own) for part, own in self._dealt(beside)]
        return torch.stack(losses) if self.shares is None else _added(self.shares, losses)

    def kernel(self, z: Tensor, beside: Beside, factors: Factor, out: Tensor, work: Tensor) -> Tensor:
        """Return the same of a block, as `RowLoss.kernel` does; without shares, factors have shape (P, R, 1)."""
        if len(self.parts) == 1 and self.shares == (1.0,) and self.softcap is None and self.temperature == 1:
            return self.parts[0].kernel(z, beside, factors, out, work)
        slope = None
        if self.softcap is not None:
            slope, work = torch.div(z, self.softcap, out=work[0]).tanh_(), work[1:]
            z = torch.mul(slope, self.softcap, out=work[0])
        if self.temperature != 1:
            z = torch.div(z, self.temperature, out=work[0])
        work = work[1:] if self.softcap is not None or self.temperature != 1 else work
        losses = []
        for number, (part, own) in enumerate(self._dealt(beside)):
            into = work[-1] if number else out
            by = factors
            if self.shares is not None and factors is not None:
                by = factors * self.shares[number]
            elif isinstance(factors, Tensor):
                by = factors[number]
            losses.append(part.kernel(z, own, by, into, work))
            if number and factors is not None:
                out.add_(into)
        if factors is not None and slope is not None:
            out.addcmul_(out, slope.square_(), value=-1)
        if factors is not None and self.temperature != 1:
            out.div_(self.temperature)
        return torch.stack(losses) if self.shares is None else _added(self.shares, losses)


def _times(factor: Tensor, losses: Tensor) -> Tensor:
    """Multiply, with 0 * inf = 0."""
    return factor * torch.where((factor > 0) | losses.isnan(), losses, 0.0)


def _added(shares: tuple[float, ...], losses: list[Tensor]) -> Tensor:
    if shares == (1.0,):
        return losses[0]
    return functools.reduce(torch.add, (s * x for s, x in zip(shares, losses, strict=True)))


def done_again(
    losses: Tensor,
    kernel: Callable[[Tensor, Beside, Factor, Tensor, Tensor], Tensor],
    z: Tensor,
    beside: Beside,
    factor: Factor,
    out: Tensor,
    work: Tensor,
    least: float | None = None,
) -> Tensor:
    """Do the rows whose losses are not finite, or below `least`, again, by another kernel."""
    # The root of what is negative is nan, so that one number says both.
    if math.isfinite((losses if least is None else (losses - least).sqrt_()).sum().item()):
        return losses
    wrong = ~losses.isfinite() if least is None else ~(losses >= least) | losses.isinf()
    some = wrong.nonzero().squeeze(-1)
    if len(some) == len(z):
        return kernel(z, beside, factor, out, work)
    rows, by = z[some], factor[some] if isinstance(factor, Tensor) and factor.ndim else factor
    gradient = torch.empty_like(rows)
    losses[some] = kernel(
        rows, [x[some] for x in beside], by, gradient, out.new_empty(len(work), *rows.shape)
    )
    if factor is not None:
        out[some] = gradient
    return losses


def normalised(z: Tensor, probs: Tensor, gaps: Tensor) -> tuple[Tensor, Tensor]:
    """Fill in each row's gaps to its largest logit, <= 0, and probabilities; return that logit, and -log p of it.

    The largest term, which is 1, stays out of the sum, and log1p keeps the digits where it is all but alone.
    """
    top, at = z.max(-1, keepdim=True)
    torch.exp(torch.sub(z, top, out=gaps), out=probs)
    own = probs.gather(-1, at)
    others = probs.scatter_(-1, at, own - 1).sum(-1, keepdim=True)  # zero, or nan of what is infinite
    probs.scatter_(-1, at, own).div_(1 + others)
    return top, others.log1p()


def log_odds(z: Tensor, classes: Tensor) -> Tensor:
    """Log odds against one class in each row, log(sum of the others) - z_y, which leaves its own term out."""
    at = classes.unsqueeze(-1)
    z = z - z.detach().amax(-1, keepdim=True)
    others = torch.logsumexp(z.scatter(-1, at, torch.finfo(z.dtype).min), -1)
    return others - z.gather(-1, at).squeeze(-1)


def minus_log_p(z: Tensor, classes: Tensor) -> Tensor:
    """-log softmax(z)_y of one class in each row, as log(1 + odds): nothing cancels, however small it is."""
    return 0.0 - logsigmoid(-log_odds(z, classes))


def below_the_highest(z: Tensor) -> tuple[Tensor, Tensor]:
    """How far each logit is below the highest of its row, and -log p of that one; -log p is their sum."""
    top = z.detach().argmax(-1)
    return z.gather(-1, top.unsqueeze(-1)) - z, minus_log_p(z, top).unsqueeze(-1)


def log_probs(z: Tensor) -> Tensor:
    """Return the log-softmax, also of the highest to all its digits."""
    gaps, top = below_the_highest(z)
    return -gaps - top


def log_sum(z: Tensor) -> Tensor:
    """Return the log-sum-exp; an infinite maximum is the answer itself, and there is nothing to differentiate."""
    top = z.argmax(-1)
    highest = z.gather(-1, top.unsqueeze(-1)).squeeze(-1)
    infinite = highest.isinf()
    finite = z.masked_fill(infinite.unsqueeze(-1), 0.0)
    return torch.where(infinite, highest, highest + minus_log_p(finite, top))


def sum_classes(x: Tensor) -> Tensor:
    """Sum each row, in half the time or less where rows are short."""
    if x.device.type != "cpu" or x.shape[-1] > DOT_UP_TO or x.numel() <= SMALL:
        return x.sum(-1)
    return torch.mv(x, x.new_ones(x.shape[-1]))
