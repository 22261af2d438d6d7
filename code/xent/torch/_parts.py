"""Losses of a block of logits that leave in its place their gradient: what the linear losses are made of.

A part is a loss of each row of logits (R, V), called as ``part(z, beside, factor)``: `beside` are its tensors with a
row for each row of z (labels, a teacher's logits), `factor` is what each row's gradient is multiplied by. The result
is each row's loss, and z holds the gradient of sum(factor * loss) afterwards.

An operator of PyTorch takes tensors, numbers and text. So a loss travels to `xent::linear_loss` as text, in
which `Parts` writes them and their settings, and from which it makes them again.
"""

from __future__ import annotations

import ast
import functools
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ._blocks import Settings, divide_by, wide


@dataclass(frozen=True)
class Part:
    """What all parts have in common; most need nothing but logits."""

    takes: ClassVar[int] = 0  # how many tensors stand beside the logits
    classes: ClassVar[str] = ""  # what the first of them is called if it holds class indices

    def __call__(self, z: Tensor, beside: list[Tensor], factor: Tensor) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class Labels(Part):
    """Cross-entropy with class indices, and `z_loss` times the squared log-sum-exp."""

    smoothing: float = 0.0
    z_loss: float = 0.0
    takes: ClassVar[int] = 1
    classes: ClassVar[str] = "targets"

    def __call__(self, z: Tensor, beside: list[Tensor], factor: Tensor) -> Tensor:
        at, classes = beside[0].unsqueeze(1), z.shape[1]
        top = z.amax(1)
        z.sub_(top.unsqueeze(1))
        own = z.gather(1, at).squeeze(1)
        spread = z.sum(1) if self.smoothing else torch.zeros_like(own)
        z.exp_()
        # The target's own term stays out of the sum, and log1p keeps the digits of a small loss.
        others = z.scatter_(1, at, 0.0).sum(1)
        total = others + own.exp()
        log_total = torch.where(own == 0, others.log1p(), total.log())
        losses = log_total - own
        if self.smoothing:
            even = log_total - spread / classes
            losses = even if self.smoothing == 1 else (1 - self.smoothing) * losses + self.smoothing * even
        pull = 2 * self.z_loss * (top + log_total)
        if self.z_loss:
            losses = losses + self.z_loss * (top + log_total).square()

        # (1 + pull) p_j - (1 - smoothing) [j = y] - smoothing / V, with p_y - 1 = -others / total.
        z.mul_((factor * (1 + pull) / total).unsqueeze(1))
        target = factor * (self.smoothing + (pull * own.exp() - others) / total)
        z.scatter_(1, at, target.unsqueeze(1))
        if self.smoothing:
            z.sub_((factor * (self.smoothing / classes)).unsqueeze(1))
        return losses


@dataclass(frozen=True)
class Distributions(Part):
    """Cross-entropy with a distribution."""

    smoothing: float = 0.0
    z_loss: float = 0.0
    takes: ClassVar[int] = 1

    def masses(self, beside: list[Tensor], dtype: torch.dtype) -> Tensor:
        return beside[0].to(dtype)

    def __call__(self, z: Tensor, beside: list[Tensor], factor: Tensor) -> Tensor:
        t = self.masses(beside, z.dtype)
        mass = t.sum(1)
        if self.smoothing:
            t = (1 - self.smoothing) * t + (self.smoothing / z.shape[1] * mass).unsqueeze(1)
        top, probs, log_total = _normalised_(z)
        # A class without mass that is impossible as well has no part in this: 0 * inf.
        gaps = -torch.linalg.vecdot(t, z.masked_fill((t == 0) & z.isneginf(), 0.0))
        losses: Tensor = mass * log_total + gaps
        pull = 2 * self.z_loss * mass * (top + log_total)
        if self.z_loss:
            losses = losses + self.z_loss * mass * (top + log_total).square()
        torch.mul(probs, (mass + pull).unsqueeze(1), out=z).sub_(t).mul_(factor.unsqueeze(1))
        return losses


@dataclass(frozen=True)
class Weighed(Distributions):
    """The same with each class's mass times its weight, which comes second, a row of them for each row."""

    takes: ClassVar[int] = 2

    def masses(self, beside: list[Tensor], dtype: torch.dtype) -> Tensor:
        return beside[0].to(dtype) * beside[1].to(dtype)


@dataclass(frozen=True)
class Entropy(Part):
    """Entropy of the softmax."""

    def __call__(self, z: Tensor, beside: list[Tensor], factor: Tensor) -> Tensor:
        _, probs, log_total = _normalised_(z)
        z.clamp_(min=torch.finfo(z.dtype).min / 4)  # of an impossible class, 0 * inf
        gaps = -torch.linalg.vecdot(probs, z)  # with log_total a sum of terms >= 0
        losses: Tensor = log_total + gaps
        z.add_(gaps.unsqueeze(1)).mul_(probs).mul_(-factor.unsqueeze(1))
        return losses


@dataclass(frozen=True)
class Divergence(Part):
    """Divergence from a teacher's logits, at a temperature; with `top_k` from k of its classes and the rest.

    The values are sums of terms none of which is negative, so that two models that agree to many digits have
    a loss that keeps some.
    """

    temperature: float
    squared: bool
    direction: str
    beta: float
    top_k: int | None = None
    takes: ClassVar[int] = 1

    def __call__(self, z: Tensor, beside: list[Tensor], factor: Tensor) -> Tensor:
        k = self.top_k or z.shape[1]
        at = beside[0].topk(k, 1).indices if k < z.shape[1] else None  # of the logits: hot ones are alike
        student = _softmax_(z, self.temperature)
        teacher = _softmax_(beside[0], self.temperature)
        how = self.direction, self.beta
        if at is None:
            losses, gradient = _divergence(student, teacher, *how)
        else:
            q, p = (_Coarse(log_x, at) for log_x in (student[0], teacher[0]))
            losses, by_class = _divergence((q.logs, q.probs), (p.logs, p.probs), *how)
            gradient = q.spread_(by_class)
        return _at_temperature(z, losses, gradient, factor, self)


@dataclass(frozen=True)
class Cached(Part):
    """Divergence from what a cache has of a teacher: the masses of k classes, and that of all others."""

    temperature: float
    squared: bool
    takes: ClassVar[int] = 3
    classes: ClassVar[str] = "teacher_top_k"

    def __call__(self, z: Tensor, beside: list[Tensor], factor: Tensor) -> Tensor:
        at, masses, tail = beside
        q = _Coarse(_softmax_(z, self.temperature)[0], at)
        p = torch.cat([masses.to(z.dtype), tail.unsqueeze(1).to(z.dtype)], 1)
        over = p.sum(1, keepdim=True) - 1  # by how much rounding has the masses miss one
        losses, by_class = _divergence((q.logs, q.probs), (p.log(), p), "forward", 0.0)
        gradient = q.spread_(torch.addcmul(by_class, over, q.probs))
        return _at_temperature(z, losses + over.squeeze(1), gradient, factor, self)


@dataclass(frozen=True)
class Sampled(Part):
    """Cross-entropy with sampled classes, each of which has a mass and may come more than once."""

    temperature: float
    squared: bool
    takes: ClassVar[int] = 2
    classes: ClassVar[str] = "teacher_samples"

    def __call__(self, z: Tensor, beside: list[Tensor], factor: Tensor) -> Tensor:
        at, masses = beside[0], beside[1].to(z.dtype)
        z.div_(self.temperature)
        _, probs, log_total = _normalised_(z)
        gaps = z.gather(1, at).neg_().masked_fill_(masses == 0, 0.0)
        losses = masses.sum(1) * log_total + (masses * gaps).sum(1)
        gradient = probs.mul_(masses.sum(1, keepdim=True)).scatter_add_(1, at, -masses)
        return _at_temperature(z, losses, gradient, factor, self)


KINDS: dict[str, type[Part]] = {
    part.__name__: part for part in (Labels, Distributions, Weighed, Entropy, Divergence, Cached, Sampled)
}


@dataclass(frozen=True)
class Parts:
    """Several losses of the same logits, which a soft cap may bound and a temperature divide first."""

    parts: tuple[Part, ...]
    softcap: float | None = None
    temperature: float = 1.0

    @classmethod
    @functools.lru_cache(64)
    def of(cls, text: str) -> Parts:
        """Make again what `text` says."""
        softcap, temperature, *parts = ast.literal_eval(text)
        return cls(tuple(KINDS[name](*settings) for name, *settings in parts), softcap, temperature)

    def text(self) -> str:
        """Write all down that makes these, as a literal of Python; in terms that `torch.compile` can follow."""
        text = f"{self.softcap!r}, {self.temperature!r}"
        for part in self.parts:
            names: tuple[str, ...] = type(part).__match_args__
            settings = "".join(f", {getattr(part, name)!r}" for name in names)
            text += f", ({type(part).__name__!r}{settings},)"
        return f"[{text}]"

    def indices(self, beside: list[Tensor]) -> list[tuple[str, Tensor]]:
        """Return the tensors of class indices, and what they are called."""
        found, at = [], 0
        for part in self.parts:
            found += [(part.classes, beside[at])] if part.classes else []
            at += part.takes
        return found

    def __call__(self, z: Tensor, beside: list[Tensor], factors: Tensor) -> Tensor:
        """Return the losses, a row for each part, and leave in z the gradient of sum(factors * losses)."""
        slope = None
        if self.softcap is not None:
            slope = 1 - z.div_(self.softcap).tanh_().square()
            z.mul_(self.softcap)
        if self.temperature != 1:
            z.div_(self.temperature)
        copies = [z, *(z.clone() for _ in self.parts[1:])]
        losses, at = torch.empty_like(factors), 0
        for number, (part, own) in enumerate(zip(self.parts, copies, strict=True)):
            losses[number] = part(own, beside[at : at + part.takes], factors[number])
            at += part.takes
        for own in copies[1:]:
            z.add_(own)
        if slope is not None:
            z.mul_(slope)
        if self.temperature != 1:
            z.div_(self.temperature)
        return losses

    def fused(
        self, z: Tensor, *beside: Tensor, scale: Tensor | float | None, out: Tensor, work: Tensor
    ) -> Tensor:
        """The first part, as `RowLoss` wants it: the losses, and in `out` their gradient times `scale`."""
        by = scale.reshape(-1) if isinstance(scale, Tensor) and scale.ndim else scale
        factor = z.new_ones(1, len(z)) if by is None else z.new_ones(1, len(z)) * by
        return self(out.copy_(z), [*beside], factor)[0]


def _normalised_(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return each row's largest logit, its probabilities, and the log-sum-exp of the gaps that are left in z.

    The largest term, which is 1, stays out of the sum, and log1p keeps the digits where it is all but alone.
    """
    top, at = z.max(1, keepdim=True)
    probs = z.sub_(top).exp()
    own = probs.gather(1, at)
    others = probs.scatter_(1, at, own - 1).sum(1)  # zero, or nan of what is infinite
    probs.scatter_(1, at, own).div_((1 + others).unsqueeze(1))
    return top.squeeze(1), probs, others.log1p()


def _softmax_(x: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return log-probabilities at a temperature, in the place of the logits, and probabilities."""
    x.sub_(x.amax(1, keepdim=True)).div_(temperature)
    probs = x.exp()
    total = probs.sum(1, keepdim=True)
    return x.sub_(total.log()), probs.div_(total)


def _at_temperature(
    z: Tensor, losses: Tensor, gradient: Tensor, factor: Tensor, part: Divergence | Cached | Sampled
) -> Tensor:
    """Leave in z what a gradient by z / T makes of that by z, and return the losses, times T^2 or not."""
    t = part.temperature
    torch.mul(gradient, (factor * (t if part.squared else 1 / t)).unsqueeze(1), out=z)
    return losses * t**2 if part.squared else losses


# On a CPU torch.where takes four times as long as exp. So the masks below are written as clamps and signs.


def _divergence(
    ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor], direction: str, beta: float
) -> tuple[Tensor, Tensor]:
    """Return each row's divergence between (log q, q) and (log p, p), and its gradient by q's logits."""
    (log_q, q), (log_p, p) = ours, theirs
    if direction == "forward":
        return _excess(p, q, _log_ratio(p, log_q, log_p))
    if direction == "reverse":
        x = _log_ratio(q, log_p, log_q)
        losses = _excess(q, p, x)[0]
        return losses, q.mul_(x.neg_().sub_(losses.unsqueeze(1)))
    # The mixture is m = beta p + (1 - beta) q. Of log(m / p) and log(m / q) the one that is <= 0 is
    # log1p(c expm1(-|d|)) with d = log(p / q) and c the share of the lesser; the other is |d| more.
    largest = torch.finfo(q.dtype).max  # in place of inf, times a probability of zero
    d = (log_p - log_q).nan_to_num_(nan=0.0, posinf=largest, neginf=-largest)
    share = d.sign().mul_(0.5 - beta).add_(0.5)
    low = d.abs().neg_().expm1_().mul_(share).log1p_()
    of_p, of_q = low + d.clamp(max=0.0).neg_(), low + d.clamp(min=0.0)
    m = beta * p + (1 - beta) * q  # not lerp, which would tell p from q at a beta of 1/2
    losses = beta * _excess(p, m, of_p)[0] + (1 - beta) * _excess(q, m, of_q)[0]
    drift = torch.linalg.vecdot(q, of_q).unsqueeze(1)
    return losses, q.mul_(of_q.neg_().add_(drift)).mul_(1 - beta)


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


class _Coarse:
    """Some classes of each row, and one more in which all others are added up."""

    def __init__(self, log_x: Tensor, classes: Tensor) -> None:
        self.at, top = classes, log_x.gather(1, classes)
        self.rest = log_x.scatter(1, classes, -math.inf)
        self.logs = torch.cat([top, self.rest.logsumexp(1, keepdim=True)], 1)
        self.probs = self.logs.exp()

    def spread_(self, by_class: Tensor) -> Tensor:
        """Return the gradient by all logits, given that by these; uses up what is held of the rest."""
        # Within the tail the shares stay as they are.
        tail = self.logs[:, -1:].clamp(min=torch.finfo(self.logs.dtype).min)
        gradient = self.rest.sub_(tail).exp_().mul_(by_class[:, -1:])
        return gradient.scatter_add_(1, self.at, by_class[:, :-1])


# What the losses that form their gradients on the way cannot do.


def refuse_second_derivatives() -> None:
    """Raise in a backward pass that is to be differentiated, where constants would be wrong in silence."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(
            "create_graph=True: expected a backward pass that is not differentiated again, since the linear "
            "losses have no second derivatives; take the loss of all logits, as in "
            "cross_entropy(hidden @ linear_weight.T, targets)"
        )


def refuse_transforms(name: str, *tensors: Tensor | None) -> None:
    """Raise in `torch.func.grad` and its like, and for tensors that carry a tangent."""
    if torch.compiler.is_compiling():
        return
    if torch._C._are_functorch_transforms_active() or any(
        x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors
    ):
        raise RuntimeError(
            f"torch.func: {name} forms its gradient in blocks, which grad, vmap, jvp and forward mode cannot "
            "take apart; use backward() or torch.autograd.grad, or the loss of all logits, as in "
            "cross_entropy(hidden @ linear_weight.T, targets)"
        )


def row_factors(
    weight: Tensor | None, shape: torch.Size, like: Tensor, settings: Settings, mass: Tensor | None = None
) -> Tensor:
    """Return what each row's loss is multiplied by, so that their sum is the reduced loss; 0: left out."""
    divisor = divide_by(shape, weight if mass is None else mass, settings)
    dtype = wide(like.dtype)
    factor = like.new_ones(shape, dtype=dtype) if weight is None else weight.detach().to(dtype)
    return factor if divisor is None else factor / divisor
