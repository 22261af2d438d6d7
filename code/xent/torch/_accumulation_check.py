"""Does a training loop's accumulated gradient equal that of the whole batch; and if not, why?

Every usual fault is a way to weigh the micro-batches. With g_i the gradient that the loop gives for
micro-batch i alone, a right loop returns sum a_i g_i, where the a_i are the shares that make up the whole
batch; a mean of means returns sum g_i / K; a forgotten division K sum a_i g_i. So the check runs the loop on
the whole batch, on the micro-batches and on each of them alone, and looks for the weights that it gave them.
"""

from __future__ import annotations

import copy
import io
import math
import random
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from xent._validate import integer, number, shown

from ._accumulate import counting, ranks_of

B = TypeVar("B")

SUM_ONCE = """\
sum the losses, and divide once by what counts in the whole window:
    for window in xent.torch.accumulate(loader, steps, targets=...):
        for micro in window:
            (summed_loss(model, micro.batch) * micro.scale).backward()
or, where a trainer hands out the count of the window (num_items_in_batch), divide the summed loss by that"""
HALVES = {torch.bfloat16, torch.float16}  # a float64 model may have float32 logits: that is known
UNSYNCHRONISED = "the ranks end with different gradients: no backward pass of the window synchronises"
KEEP_THE_LAST = "leave no_sync() for the window's last backward pass (micro.is_last)"
ADDED_UP = """\
means are added up and never divided, as by a model that takes the trainer's count (num_items_in_batch) and drops it"""
TWICE = "divided by K twice, as by the loop and by its trainer"
W_MISSING = (
    "the factor W is missing, which the count of all ranks needs where gradients are averaged over ranks"
)
W_TOO_MUCH = "a factor W where each rank divides by its own count, or gradients summed over ranks"
SHORT_ONES = """\
where a sequence adds the mean of its tokens, and not their sum, long ones count for less, and a model learns to write \
short ones"""
WHAT_COUNTS = """\
divide by what targets= counts, or give it what the loss sees: labels with -100 on prompts and padding, or a \
boolean mask (integers 0 and 1 are labels); where the loss weighs classes or rows, leave targets= out"""
AGREE = "micro-batches and whole batch agree, but both"
NOT_BY = "targets= is not what the loss divides by"
UNSCALE = "check without the scaler, or have the step unscale its gradients"
RIGHT = "right"


@dataclass(frozen=True)
class AccumulationReport:
    """What `check_accumulation` found; ``print`` it.

    Attributes
    ----------
    ok : bool
        Whether the gradient is that of the whole batch, `targets` refutes no divisor, and both could be judged.
    norm_ratio, cosine, relative_error : float
        Of the micro-batches' gradient and that of the whole batch: norm over norm, cosine of the angle between them,
        and norm of the difference over that of the second.
    cause, repair : str
        A fault that fits, in words, or what could not be judged; and what to change, empty where nothing is to be or no
        repair is known.
    """

    ok: bool
    norm_ratio: float
    cosine: float
    relative_error: float
    cause: str
    repair: str = ""

    def __str__(self) -> str:
        unsure = self.cause.startswith("cannot tell")
        verdict = "is right" if self.ok else "cannot be judged" if unsure else "is WRONG"
        lines = [
            f"accumulation {verdict}: relative error {self.relative_error:.2g}, "
            f"norm ratio {self.norm_ratio:.4g}, cosine {self.cosine:.4g}",
            f"cause:  {self.cause}",
        ]
        return "\n".join(lines + ([f"repair: {self.repair}"] if self.repair else []))


def check_accumulation(
    model: nn.Module,
    micro_batches: Iterable[B],
    whole_batch: B,
    step: Callable[[nn.Module, list[B]], Any],
    *,
    reference: Callable[[nn.Module, B], Any] | None = None,
    targets: Callable[[B], Tensor | int] | Hashable | None = None,
    ignore_index: int = -100,
    tolerance: float | None = None,
    group: Any = None,
) -> AccumulationReport:
    """Compare a loop's gradient over micro-batches with that of the whole batch, and name the fault.

    Parameters
    ----------
    model : torch.nn.Module
        As it is trained: wrapped by DistributedDataParallel or sharded by FSDP2, if it is. A small
        configuration will do; the check holds, in float64 on the CPU, up to three gradients for
        each micro-batch and ten more. Turn dropout off, and gradient clipping too.
    micro_batches : iterable
        Those of one optimiser step, at least two over all ranks, each rank its own and as many on each. Their
        numbers of targets should differ, or a mean of means cannot be seen.
    whole_batch : object
        The same examples in one batch; those of all ranks, and the same on every rank.
    step : callable
        ``step(model, batches)``: your own forward and backward passes over a list of micro-batches, without
        the optimiser's step. It leaves its result in the parameters' ``.grad``. Each call gets copies.
    reference : callable, optional
        ``reference(model, batch)``: forward and backward passes for one batch, done plainly, for instance
        ``model(**batch).loss.backward()``. Otherwise it is ``step(model, [batch])``, and a factor that `step` also has
        with a single batch (a missing factor; a wrong count, without `targets`) can only be seen in this way.
    targets, ignore_index, group
        As for `accumulate`: what counts, in each batch. With it, wrong counts have names.
    tolerance : float, optional
        Largest relative error that is rounding. By default half of the digits, 3.5e-4 in float32; 1e-6 in float64,
        whose shares or logits may be in float32; more, up to .01, where the model has converged, and the micro-batches'
        gradients cancel. Where parameters, or what is computed from them, are in half precision, what no weights of the
        micro-batches explain is rounding, up to half of the digits and, in the loop's gradient, a few times what it
        is in the whole batch's; their weights may be off by as much, or by two machine epsilons: .016 in bfloat16,
        .002 in float16. Other weights than are due are a fault below it, too.

    Returns
    -------
    AccumulationReport
        The same on all ranks, if they synchronise. Parameters and buffers that the model had, gradients,
        ``requires_grad``, training mode and the global random states of Python, NumPy and torch are left as they were.

    Raises
    ------
    ValueError
        If there are fewer than two micro-batches, or not as many on each rank; if `step` changes the
        parameters or leaves no gradient; if `targets` counts not as many in the whole batch as in its parts.
    TypeError
        If an argument is of the wrong kind, or a batch cannot be copied.

    Notes
    -----
    Gradients cannot tell a mean of means from the mean of all if counts are equal; a report of no other fault says so.
    Nor can they if rounding makes more than the counts do: then the report is not `ok`, and says "cannot tell". So it
    does if the model has converged; if, without a reference, the step may have a least divisor; or if micro-batches and
    whole batch agree on other weights than `targets` would give, and no cross-entropy is seen to have class weights.
    In half precision, a report that is `ok` says below which size the fault of a second term is not seen; more than
    rounding usually makes, which no weights of the micro-batches explain, is "cannot tell" too.

    Examples
    --------
    >>> import torch, xent.torch
    >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(4, 2), torch.tensor([0, 2, 1, 1])
    >>> def step(model, batches):
    ...     for x, y in batches:
    ...         (torch.nn.functional.cross_entropy(model(x), y) / len(batches)).backward()
    >>> report = xent.torch.check_accumulation(model, [(x[:3], y[:3]), (x[3:], y[3:])], (x, y), step)
    >>> report.ok, report.cause
    (False, 'a mean of means over the micro-batches: each weighs the same, however many targets it has')
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(micro_batches, Iterable):
        raise TypeError(f"micro_batches: expected an iterable of batches, got {type(micro_batches).__name__}")
    for name, function in {"step": step, "reference": step if reference is None else reference}.items():
        if not callable(function):
            raise TypeError(f"{name}: expected a function, got {shown(function)}")
    ignore_index = integer(ignore_index, "ignore_index")
    with random_states_kept():  # a loader may shuffle, and use its buffers again
        mine = [copied(batch) for batch in micro_batches]
    ranks, steps = ranks_of(group), len(mine)
    everyone = exchange(mine, group, ranks)
    if ranks * steps < 2 or any(len(theirs) != steps for theirs in everyone):
        came = [len(theirs) for theirs in everyone]
        raise ValueError(
            "micro_batches: expected two or more, the same number on each rank, got "
            + (f"{came[0]}" if ranks == 1 else f"{came} on the ranks")
        )
    parts = [batch for theirs in everyone for batch in theirs]
    masks = None
    if targets is not None:
        of = counting(targets, ignore_index)
        masks = [of(batch) for batch in parts]
        due, came = sum(int(c.sum()) for c in masks), exchange(int(of(whole_batch).sum()), group, ranks)
        if set(came) != {due}:
            got = f"{came[0]}" if ranks == 1 else f"{came} on the ranks"
            raise ValueError(f"whole_batch: expected the {due} targets of all micro-batches, got {got}")
    return compare(model, everyone, whole_batch, step, reference, masks, tolerance, group)


def compare(
    model: nn.Module,
    everyone: list[list[B]],
    whole_batch: B,
    step: Callable[[nn.Module, list[B]], Any],
    reference: Callable[[nn.Module, B], Any] | None,
    masks: list[Tensor] | None,
    tolerance: float | None,
    group: Any = None,
    also: dict[str, Tensor] | None = None,
) -> AccumulationReport:
    """Take the gradients that `check_accumulation` needs, and judge them.

    `everyone` has each rank's micro-batches, `masks` what counts in each of them, and `also` further counts, which a
    loop may divide by.
    """
    ranks, mine = len(everyone), everyone[dist.get_rank(group) if len(everyone) > 1 else 0]
    if tolerance is not None:
        tolerance = number(tolerance, "tolerance", "a number in (0, 1)", 0.0, 1.0)

    def plainly(batch: B) -> Any:
        batch = copied(batch)  # a step may pop the labels out of it
        return step(model, [batch]) if reference is None else reference(model, batch)

    with untouched(model) as values, _Seen() as seen:
        take = partial(gradient_of, model, values)
        whole, again = (take(partial(plainly, whole_batch)) for _ in range(2))  # at two random states
        ours = take(lambda: step(model, [copied(batch) for batch in mine]))
        parts = (batch for theirs in everyone for batch in theirs)
        alone = torch.stack([take(partial(plainly, batch), True) for batch in parts])

    own = {p.dtype for p in model.parameters() if p.is_floating_point() or p.is_complex()}
    eps = max(torch.finfo(dtype).eps for dtype in own | seen.dtypes & HALVES)
    sizes = {name: p.numel() * (1 + p.is_complex()) for name, p in model.named_parameters()}
    norms = np.array(exchange([float(piece.norm()) for piece in ours.split([*sizes.values()])], group, ranks))
    most = tolerance or max(math.sqrt(eps), 1e-6)  # a float64 model may have logits or shares in float32
    differ = np.ptp(norms, 0) > most * np.linalg.norm(norms, axis=1).max()
    apart = [name for name, differs in zip(sizes, differ, strict=True) if differs]
    apart = apart if (norms.any(0) & ~differ).any() else ["them"] * bool(apart)
    counts, shifted = ({} if masks is None else _in_all_ways(masks, i) | (also or {}) for i in (0, 1))
    plain, measured = reference is not None, tolerance is None
    evidence = _Evidence(model, whole, ours, alone, ranks, eps, most, counts, plain, measured, seen.weights)
    ok, cause, repair = evidence.void(again, apart) or evidence.judge(shifted)
    norm, expected = float(ours.norm()), float(whole.norm())
    ratio = norm / expected if expected else math.nan
    cosine = float(ours @ whole) / (norm * expected) if norm * expected else math.nan
    return AccumulationReport(ok, ratio, cosine, error(ours, whole), cause, repair)


def copied(batch: B) -> B:
    try:
        return copy.deepcopy(batch)
    except (RuntimeError, TypeError) as problem:
        hint = "detach tensors that were computed, and leave iterators out"
        raise TypeError(f"batch: expected one that can be copied; {hint} ({problem})") from problem


class _Verdict(NamedTuple):
    ok: bool
    cause: str
    repair: str = ""


_wrong = partial(_Verdict, False)


@dataclass
class _Evidence:
    """The gradients, and what follows from them."""

    model: nn.Module
    whole: Tensor  # (P,), float64
    ours: Tensor
    alone: Tensor  # (W K, P): each micro-batch by itself, rank by rank
    ranks: int
    eps: float  # of the coarsest dtype
    tolerance: float  # in norms, at first of all noise, then of what is left in the span of the micro-batches
    counts: dict[str, Tensor]  # each (W K,), by what is counted; empty where that is not known
    plain: bool  # whether `alone` and `whole` are a reference's, and not the loop's own
    measured: bool  # whether the tolerance is to follow from the noise
    weighted: bool  # whether a cross-entropy is seen to have class weights
    rest: float = 0.0  # the part of the whole batch's gradient that no weights of the micro-batches explain
    usual: float = 0.0  # what rounding makes at most, in half precision, unless it rounds long sums
    cancels: bool = False  # whether they are so much larger than their sum that rounding hides the weights
    noise: float = 0.0  # the angle that rounding makes
    means: bool = True  # whether the whole batch is a weighted mean of `alone`
    miscounts: bool = False  # whether it is none, and not a sum either
    floor: float = 0.0  # a least divisor that would make it one

    def void(self, again: Tensor, apart: list[str]) -> _Verdict | None:
        """Say why nothing follows; `apart` are the parameters in which the ranks differ, "them" for all."""
        return (
            self.not_finite()
            or self.converged()
            or self.does_not_repeat(again)
            or (_wrong(f"{UNSYNCHRONISED} {_first(apart)}", KEEP_THE_LAST) if apart else self.clipped())
        )

    def not_finite(self) -> _Verdict | None:
        if not self.whole.isfinite().all() or not self.whole.any():
            what = "zero" if self.whole.isfinite().all() else "not finite"
            also = "" if self.whole.any() else ", or for a zero_grad() at the end of the step"
            return _wrong(f"the whole batch's own gradient is {what}: look at the loss before the loop{also}")
        bad = ~self.alone.isfinite().all(1)
        if self.ours.isfinite().all():
            self.alone[bad] = 0.0  # the loop leaves them out
            return None
        if not bad.any():
            return _wrong("nan or inf, though no micro-batch has it alone: their sum overflows")
        sure = "" if self.counts and not self.counts["targets"][bad].any() else "probably "
        cause = (
            f"nan from micro-batch {self.names(bad)} alone: {sure}it has no target that counts, and a mean"
        )
        return _wrong(f"{cause} over nothing is 0/0", SUM_ONCE)

    def converged(self) -> _Verdict | None:
        """Leave room for what rounding makes where the gradients of the micro-batches cancel."""
        if not self.measured or self.eps > 1e-4:  # in half precision it is measured
            return None
        norms = self.alone.norm(dim=1)
        summed = _weights(self.alone, self.whole).abs().clamp(max=1.0) @ norms
        size = float(torch.maximum(summed, norms.median()) / self.whole.norm())
        if 4 * self.eps * size > 0.01 and error(self.ours, self.whole) <= 4 * self.eps * size:
            return _wrong(
                "cannot tell: the model has converged, and the whole batch's gradient is what rounding leaves of its "
                f"micro-batches', which are {size:.2g} times as large",
                "check before training, or with other examples",
            )
        self.tolerance = max(self.tolerance, min(4 * self.eps * size, 0.01))
        return None

    def does_not_repeat(self, again: Tensor) -> _Verdict | None:
        noise = error(again, self.whole)
        if noise <= self.tolerance:
            return None
        kind = nn.modules.dropout._DropoutNd
        dropout = self.modules(lambda m: isinstance(m, kind) and m.training and m.p > 0)
        source = f"dropout is on: {dropout}" if dropout else "dropout or other random numbers"
        cause = f"the step does not repeat: two runs on the whole batch differ by {noise:.2g} "
        if not dropout and _angle(again, self.whole) <= self.tolerance:
            return _wrong(
                cause + "in size alone, as where a count outlives the step", "count anew in every step"
            )
        return _wrong(f"{cause}({source}); that hides the denominators", "model.eval(), and check again")

    def clipped(self) -> _Verdict | None:
        # No mean is longer than all of its parts: where it is clipped, so is one that points elsewhere, and nothing
        # is longer. clip_grad_norm_ adds 1e-6 to the norm.
        norms = self.alone.norm(dim=1)
        norm = max(*norms, self.whole.norm(), self.ours.norm())
        near = min(3e-6 + 1e-6 * norm, 1e-5 * norm)
        for gradient in (self.whole, self.ours):
            elsewhere = (self.alone @ gradient / (norms * gradient.norm()) - 1).abs() > 1e-4
            if norm - gradient.norm() <= near and ((norm - norms <= near) & elsewhere).any():
                cause = f"cannot tell: gradients are clipped, several to the norm {norm:.4g}, whatever divides them"
                return _wrong(cause, "leave clip_grad_norm_ out of the step that is checked")
        return None

    def set_noise_aside(self, shifted: dict[str, Tensor]) -> None:
        """Measure rounding by what no weights of the micro-batches explain, and go on without that.

        A wrong denominator gives other weights to the same gradients; rounding goes in all directions, and little of it
        into their span, beside what the losses' own factors are rounded by.
        """
        rests, limit = list[float](), self.tolerance
        parts = _weights(self.alone, self.whole).abs() @ self.alone.norm(dim=1)
        self.usual = 4 * self.eps * max(1.0, float(parts / self.whole.norm()))
        self.cancels = self.usual > 4 * math.sqrt(self.eps)
        for name in ("whole", "ours"):
            most, gradient = limit, getattr(self, name)
            if rests and self.measured:  # a fault must not set its own tolerance
                most = min(limit, max(2 * math.sqrt(len(self.alone)) * max(rests[0], self.eps), 1e-3))
            fitted = _fitted(self.alone, gradient)
            rests.append(error(fitted, gradient) if gradient.any() else 0.0)
            if rests[-1] <= most:
                setattr(self, name, fitted)
            elif rests[-1] <= limit:
                limit = rests[-1] = most
        self.rest, seen = rests[0], int(self.alone.any(0).sum())
        free = (seen - len(self.alone)) / seen if seen else 0.0
        noise = math.hypot(*rests) / math.sqrt(free) if free > 0 else limit
        self.noise = max(noise, self.eps, limit / 100) / 2
        if self.measured:
            self.tolerance = min(limit, max(noise, 2 * self.eps, 1e-3))
        # A causal model shifts its labels. Where they were given as they are, the whole batch tells.
        if self.counts and not self.fits(self.counts["targets"]) and self.fits(shifted["targets"]):
            self.counts = shifted
        self.by = [what for what, n in self.counts.items() if self.fits(n)]
        self.due = due = _weights(self.alone, self.whole)
        self.means = rests[0] > limit or abs(float(due.sum()) - 1) <= max(self.tolerance, 1e-3)
        self.means |= "targets" in self.by
        if self.means or not self.counts or not self.told():
            return
        n = self.counts["targets"]
        if ((due > 0) | (n == 0)).all():  # the step gives a batch alone a share of the window, or a sum
            level = due[n > 0].mean() * self.alone.sum(0)
            self.miscounts = not self.by and error(level, self.whole) > self.tolerance
            for least in (due * n.sum()).tolist():
                if self.miscounts and self.fits(n.clamp(min=least), float(n.sum())):
                    self.floor = least
            self.alone = self.alone * torch.where(n > 0, due * n.sum() / n, 1.0)[:, None]
            self.means = True

    def fits(self, n: Tensor, total: float | None = None) -> bool:
        """Whether the micro-batches make up the whole batch by these counts."""
        share = n / (total or n.sum())
        return bool(n.any()) and error(share @ self.alone, self.whole) <= self.tolerance

    def refuted(self) -> bool:
        """Whether the whole batch plainly weighs the micro-batches otherwise than `targets` would."""
        if not self.counts or self.by or self.cancels or not self.told():
            return False
        n = self.counts["targets"]
        off = error(n / n.sum() @ self.alone, self.whole)
        return off > max(self.tolerance, 10 * self.rest)  # more is left where two terms have two denominators

    def told(self) -> bool:
        """Whether only one set of weights makes up a gradient."""
        some = self.alone[self.alone.any(1)]
        return bool(torch.linalg.matrix_rank(some) == len(some))

    def judge(self, shifted: dict[str, Tensor]) -> _Verdict:
        """Report the explanation that fits; where none does, what the gradient is made of."""
        off = error(self.ours, self.whole)
        self.set_noise_aside(shifted)
        verdict = self.verdict()
        noisy = (self.cancels or self.rest > self.usual) and off <= max(self.usual, 3 * self.rest)
        if not self.measured or self.eps < 1e-4 or not (off > self.usual if verdict.ok else noisy):
            return verdict
        return _wrong(
            f"cannot tell: the gradients differ by {off:.2g}, and no weights of the micro-batches explain "
            f"{self.rest:.2g} of the whole batch's: that may be rounding (of long sums, or where gradients cancel), or "
            "a second term that has a denominator of its own; the same in float32 would show it"
        )

    def verdict(self) -> _Verdict:
        what, factor = self.explanation()
        exactly = factor == 1 or (what != RIGHT and abs(factor - 1) <= self.tolerance)
        besides = "" if exactly or not what else self.in_words(factor, what == RIGHT)
        if what == RIGHT:
            repair = UNSCALE if "GradScaler" in besides else SUM_ONCE
            also = "equal counts would hide a mean of means too: repair, and check with ragged micro-batches"
            wrong = _wrong(f"the right direction, {besides}" + f"; {also}" * self.even(), repair)
            return self.right() if exactly else wrong
        if not what and (verdict := self.penalised()):
            return verdict
        residual = error(_fitted(self.alone, self.whole), self.whole)
        if residual > self.tolerance:
            return self.across_rows(what, residual)
        if what:
            return _wrong(what + f"; and {besides}" * (not exactly) + self.empty(), SUM_ONCE)
        return self.other_weights()

    def explanation(self) -> tuple[str, float]:
        """Return the first explanation that fits, and the factor that comes besides.

        In direction it has to be as near as rounding lets be told, or at most twice as far off as the nearest fault.
        """
        known = [(RIGHT, self.whole), *self.faults]
        off = [_angle(self.ours, gradient) for _, gradient in known]
        near = max(self.noise, 2 * min(off[1:], default=math.inf))
        ways = [
            (what, x, gradient)
            for (what, gradient), angle in zip(known, off, strict=True)
            for x in (1.0, float(self.ours @ gradient / (gradient @ gradient)) if gradient.any() else 0.0)
            if x and angle <= near and error(self.ours, x * gradient) <= self.tolerance
        ]
        if self.alone.any(0).sum() == 1:  # a single number has no direction
            ways.sort(key=lambda way: way[1] != 1)
        return ways[0][:2] if ways else ("", 0.0)

    @cached_property
    def faults(self) -> list[tuple[str, Tensor]]:
        """What known faults do, and the gradients that they make of the micro-batches' means."""
        return (
            [(what, weights.flatten() @ self.alone) for what, weights in self.weighed()] if self.means else []
        )

    def weighed(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights that known faults give."""
        w, k = self.ranks, len(self.alone) // self.ranks
        where = " and ".join(["over the micro-batches"] * (k > 1) + ["over the ranks"] * (w > 1))
        even = torch.full((w, k), 1 / (w * k), dtype=torch.float64)
        yield f"a mean of means {where}: each weighs the same, however many targets it has", even
        shares = {what: n / n.sum() for what, n in self.counts.items() if n.any()}
        of_targets = shares.pop("targets", None)
        share = _weights(self.alone, self.whole)
        if of_targets is not None and self.fits(of_targets):
            share = of_targets  # counts are exact, where the gradients are almost parallel
        elif of_targets is not None:
            rest = "which is not what the whole batch weighs them by (class weights?)"
            yield f"the micro-batches are weighed by the number of their targets, {rest}", of_targets
        share = share.view(w, k)
        if w > 1 and k > 1:
            by_step, by_rank = ((share / share.sum(axis, keepdim=True)).nan_to_num() for axis in (0, 1))
            yield "a mean of means over the micro-batches, whose denominators the ranks do share", by_step / k
            yield (
                "a mean of means over the ranks: each divides by the targets of its own window alone",
                by_rank / w,
            )
        if k > 1 and w == 1 and (share.cumsum(1) > 0).all():
            so_far = share / share.cumsum(1)
            yield "a running count: each micro-batch is divided by the targets so far", so_far
        for share in shares.values():
            names = _either(what for what, same in shares.items() if torch.equal(same, share))
            yield f"the micro-batches are weighed by their {names}, not by their targets", share

    def right(self) -> _Verdict:
        if self.by and not {"targets", "sequences"} & set(self.by):  # to divide by sequences is a choice
            cause = f"{AGREE} divide by {self.versus(self.by[0])}"
            return _wrong(cause, "count what the loss sums over: after the shift, without padding")
        more = f"alone, some micro-batches are divided by more than their targets, as by max(targets, {self.floor:.3g})"
        if self.floor and not self.plain:
            also = (
                "a least divisor is right where the window exceeds it, and reference= would show what it is"
            )
            return _wrong(f"cannot tell: {more}: {also}")
        if self.miscounts and not self.floor:
            cause = f"{AGREE} divide by another count: it weighs {self.by_targets()}"
            return _wrong(cause, "divide by the number of targets")
        if self.refuted() and not self.weighted:
            return _wrong(f"cannot tell: {AGREE} weigh {self.by_targets()}: {NOT_BY}", WHAT_COUNTS)
        even, off = self.alone.mean(0), _angle(self.ours, self.whole)
        apart = error(even, self.whole)
        between = self.noise < off > _angle(self.ours, even) / 2 and apart <= 2 * self.tolerance
        if (self.even() or between) and apart > max(2 * self.eps, 1e-3):
            return _wrong(
                f"cannot tell: what rounding makes here, {self.noise:.2g}, hides the difference between the mean "
                f"of all targets and a mean of means, {apart:.2g}; micro-batches whose numbers of targets differ "
                "more would show it, or the same in float32",
            )
        cause = "none: the micro-batches add up to the whole batch"
        if self.eps > 1e-4:
            cause += (
                f", within {min(self.tolerance, self.usual):.2g}, which is rounding here; float32 would show "
            )
            cause += f"more: a second term's fault (a z-loss's) may not be seen below {self.usual:.2g} of the gradient"
        elif self.measured and error(self.ours, self.whole) > max(100 * self.eps, 1e-8):
            cause += f", within {self.tolerance:.2g}, taken for rounding in float32 or where gradients cancel"
        if self.weighted and self.refuted():
            cause += f"; both weigh {self.by_targets()}: so do class weights, and so does another count"
        cause += f"; {more}" * bool(self.floor)
        if self.ranks > 1 and not self.plain:
            cause += "; a factor W that is missing or too much, reference= would show"
        also = "but so would a mean of means with these equal counts: check again with ragged micro-batches"
        if "sequences" in self.by and "targets" not in self.by:
            cause += f"; both divide by {_either(self.by)}, not by targets: {SHORT_ONES}"
            also = "equal numbers of them hide a mean of means"
        return _Verdict(True, cause + f"; {also}" * self.even())

    def in_words(self, factor: float, summed: bool) -> str:
        """Say what multiplies a gradient of means, or of `summed` losses, by `factor`, or what comes close to none."""
        w, refuted = self.ranks, self.refuted()
        n = math.nan if refuted else self.total("targets")
        k = len(self.alone) // w
        constant = [] if self.plain else ["divided by a constant, which reference= would show"]
        added = ", or ".join([*constant, ADDED_UP] if self.even() else [ADDED_UP, *constant])
        of_k = [(k, "K", added), (1 / k, "1/K", TWICE)] * (k > 1)
        of_w = [(1 / w, "1/W", W_MISSING), (w, "W", W_TOO_MUCH)] * (w > 1)
        both = [(a * b, f"{x} {y}", f"{s}; {t}") for a, x, s in of_k for b, y, t in of_w]
        usual = [*of_w, *of_k, *both, (n, "N", "summed, and never divided by the targets")]
        due = "what it should be:"

        def near(value: float) -> bool:
            return abs(factor / value - 1) <= self.tolerance

        found = [f"{name} = {value:g} times {due} {words}" for value, name, words in usual if near(value)]
        counts = [what for what, count in self.counts.items() if what != "targets" and count.any()]
        others = [self.versus(what) for what in counts if near(n / self.total(what))]
        found += [f"{factor:.4g} of {due} divided by {words}" for words in others]
        if found:
            return "; or ".join(found)
        power = round(math.log2(abs(factor)))
        if power >= 8 and near(2.0**power):
            return f"2^{power} = {2**power} times {due} as if the loss were scaled (GradScaler)"
        if near(2):
            return f"{factor:.4g} times {due} as if every micro-batch were counted twice, or summed over two ranks"
        full = round(k / factor) if factor > k / 1000 else 0
        if full > k and near(k / full):
            found.append(f"{factor:.4g} of {due} divided by {full}, for a window of {k}")
        by = n / factor if summed or not found else math.nan
        counted = round(by) if by > 0 else 0  # not where it is nan
        if counted not in (0, n) and abs(by - counted) < min(0.05, self.eps * counted + 1e-3):
            found.append(f"{factor:.4g} of {due} as if divided by {counted} where {n:g} targets count")
        if found:
            return "; or ".join(found)
        hint = f"; {NOT_BY}: that weighs {self.by_targets()}" if refuted else ""
        hint = hint if self.counts else "; targets= would compare it with counts"
        norms = f"norms {float(self.ours.norm()):.3g} and {float(self.whole.norm()):.3g}: is one clipped?"
        size = f"{factor:.4g}" if abs(factor - 1) > 1e-3 else f"1 {'-+'[factor > 1]} {abs(factor - 1):.2g}"
        return f"{size} times {due[:-1]}, no usual factor ({norms}){hint}"

    def penalised(self) -> _Verdict | None:
        """Whether all that is too much is proportional to the parameters, or to their signs."""
        parameters = [_flat(p) for p in self.model.parameters()]
        for what, mixture in [("the rest is right", self.whole), *self.faults]:
            excess = self.ours - mixture
            pieces = excess.split([len(p) for p in parameters])
            for norm, of in (("squares", lambda p: p), ("absolute values", torch.sign)):
                ways = [of(p) for p in parameters]
                shares = [
                    float(e @ v / (v @ v)) if v.any() else 0.0 for e, v in zip(pieces, ways, strict=True)
                ]
                most = max(shares, key=abs)
                # Each parameter has the penalty or has it not; any excess is proportional to a single number.
                some = [abs(share) > 1e-3 * abs(most) for share in shares]
                fitted = torch.cat([most * has * v for has, v in zip(some, ways, strict=True)])
                telling = any(has and len(v) > 1 for has, v in zip(some, ways, strict=True))
                if telling and error(fitted, excess) <= 1e-3:
                    return _wrong(
                        f"a penalty on the parameters' {norm} enters with every micro-batch, or is not in the whole "
                        f"batch's loss: what is too much is proportional to its gradient; {what}",
                        "add the penalty once a window, or divide it by the number of micro-batches",
                    )
        return None

    def across_rows(self, fault: str, residual: float) -> _Verdict:
        """Say why no weights of the micro-batches make up the whole batch."""
        if norms := self.modules(_normalises_by_batch):
            return _wrong(
                f"batch normalisation ({norms}): its statistics are each micro-batch's own, so that no "
                "denominator makes up the whole batch",
                "model.eval() to check the denominators; to train with accumulation, GroupNorm or LayerNorm",
            )
        if fault:
            return _wrong(
                f"{fault}; and no weights of them make up the whole batch, as with a loss of two terms that "
                "have two denominators (a z-loss or a balance loss over other tokens), or one that looks "
                "across rows",
                "sum each term, and divide it by its own count in the whole window",
            )
        return _wrong(
            f"unknown: no weights of the micro-batches make up the whole batch (off by {residual:.2g}). They "
            "are not the same examples, or something looks across rows (a contrastive or a load-balancing "
            "loss), or the loss has two terms with two denominators, each to be summed and divided by its own count"
            + ", or it is rounding: pass tolerance="
            * (residual < 0.01),
        )

    def other_weights(self) -> _Verdict:
        k = len(self.alone) // self.ranks
        last = self.alone[k - 1 :: k]  # of all ranks: it spans what zero_grad() leaves, whatever divides it
        if k > 1 and error(_fitted(last, self.ours), self.ours) <= self.tolerance:
            cause = "only the last micro-batch is left: the gradient is cleared inside the window"
            return _wrong(cause, "zero_grad() after the optimiser's step only")
        found, due = _weights(self.alone, self.ours), _weights(self.alone, self.whole)
        if error(found @ self.alone, self.ours) > self.tolerance:
            cause = "unknown: the gradient is no weighted sum of those of its micro-batches, as where a part of them "
            return _wrong(f"{cause}(a chunk, a second term of the loss) is divided by a count of its own")
        if not self.told():
            return _wrong(
                "the micro-batches have other weights than are due; which, cannot be told, as their gradients depend "
                "on one another: check a model with more parameters",
                SUM_ONCE,
            )
        cause = f"the micro-batches have the weights {_differing(found, ' where ', due)} is due"
        hint = "" if self.means or self.counts else "; targets= would say more"
        return _wrong(cause + hint, SUM_ONCE)

    def names(self, which: Tensor) -> str:
        """Name the micro-batches of a mask by their numbers."""
        k, numbers = len(self.alone) // self.ranks, which.nonzero()[:, 0].tolist()
        return ", ".join(f"{i}" if self.ranks == 1 else f"{i % k} of rank {i // k}" for i in numbers)

    def empty(self) -> str:
        """Name the micro-batches without a gradient, which a mean of means counts."""
        none = ~self.alone.any(1) & (self.counts.get("targets", torch.zeros(1)) == 0)
        return f"; micro-batch {self.names(none)} adds nothing, and is counted" if none.any() else ""

    def by_targets(self) -> str:
        """Compare the weights that make up the whole batch with those of the targets."""
        share = self.counts["targets"] / self.total("targets")
        return f"the micro-batches by {_differing(self.due, ', where their targets would by ', share)}"

    def even(self) -> bool:
        """Whether a mean of means is right for these micro-batches, as far as rounding lets it be told."""
        even = self.alone.mean(0)
        return _angle(even, self.whole) <= 2 * self.noise and error(even, self.whole) <= 2 * self.tolerance

    def modules(self, have: Callable[[nn.Module], bool]) -> str:
        """Name the modules that have a property."""
        return _first([name or "the model itself" for name, m in self.model.named_modules() if have(m)])

    def versus(self, what: str) -> str:
        return f"the {self.total(what):g} {what}, not by the {self.total('targets'):g} targets"

    def total(self, what: str) -> float:
        return float(self.counts[what].sum()) if self.counts else math.nan


def error(found: Tensor, expected: Tensor) -> float:
    scale = float(expected.norm())
    return float((found - expected).norm()) / scale if scale else math.nan


def _angle(a: Tensor, b: Tensor) -> float:
    """Return the sine of the angle between two gradients."""
    return error(b * float(a @ b / (b @ b)), a) if b.any() else 1.0


def _first(names: list[str]) -> str:
    """Name the first three."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _either(what: Iterable[str]) -> str:
    """Join what counts alike; what a shift changes is told by its other name, where it has one."""
    names = list(what)
    return " or ".join([name for name in names if "(before" not in name] or names)


def _listed(numbers: Tensor, digits: int = 3) -> str:
    values = numbers.tolist()
    least = 1e-3 * max(map(abs, values))  # rounding leaves some of what has no weight
    return ", ".join(f"{x:.{digits}g}" if abs(x) > least else "0" for x in values)


def _differing(found: Tensor, words: str, due: Tensor) -> str:
    """Set two lists of weights beside one another, with so many digits that they differ."""
    pairs = [(_listed(found, digits), _listed(due, digits)) for digits in range(3, 16)]
    return words.join(next((pair for pair in pairs if pair[0] != pair[1]), pairs[0]))


def _weights(gradients: Tensor, total: Tensor) -> Tensor:
    """Return the weights of the gradients whose sum comes closest to `total`."""
    weights: Tensor = torch.linalg.lstsq(gradients.T, total[:, None], driver="gelsd").solution[:, 0]
    return weights


def _fitted(gradients: Tensor, total: Tensor) -> Tensor:
    return _weights(gradients, total) @ gradients


def _in_all_ways(masks: list[Tensor], first: int) -> dict[str, Tensor]:
    """Count each micro-batch's mask, or number, in the ways that loops do; targets are what counts from `first` on."""

    def each(count: Callable[[Tensor], Any], start: int = first) -> Tensor:
        counted = [float(count(c[:, start:] if c.ndim > 1 else c)) for c in masks]
        return torch.tensor(counted, dtype=torch.float64)

    targets = each(Tensor.sum)
    if any(c.ndim < 2 for c in masks):
        known = all(c.dtype is torch.bool for c in masks)
        rows = {"rows, those too that are ignored": each(Tensor.numel)} if known else {}
        return {"targets": targets, **rows}
    least = each(lambda c: c.flatten(1).sum(1).clamp(min=1).sum())
    return {
        "targets": targets,
        "labels before the shift": each(Tensor.sum, 0) if first else targets + each(len),
        "positions (padding too)": each(Tensor.numel),
        "positions (before the shift, padding too)": each(Tensor.numel) + each(len),
        "sequences": each(lambda c: c.flatten(1).any(1).sum()),
        **({} if first else {"labels after a shift": each(Tensor.sum, 1)}),
        **({"targets, at least one in each sequence": least} if (least != targets).any() else {}),
    }


@contextmanager
def untouched(model: nn.Module) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Put everything back that a forward and a backward pass may change; yields the values kept."""
    modules = [(m, m.training, dict(m._parameters), dict(m._buffers)) for m in model.modules()]
    values = [(t, t.detach().clone()) for t in (*model.parameters(), *model.buffers())]
    gradients = [
        (p, p.requires_grad, p.grad, None if p.grad is None else p.grad.clone()) for p in model.parameters()
    ]
    try:
        with random_states_kept():
            yield values
    finally:
        for module, training, parameters, buffers in modules:
            module.training = training
            module._parameters.update(parameters)
            module._buffers.update(buffers)
        _put_back(values)
        for parameter, required, gradient, kept in gradients:
            parameter.requires_grad_(required)
            parameter.grad = gradient
            if gradient is not None and kept is not None:
                gradient.detach().copy_(kept)


class _Seen(TorchFunctionMode):
    """Collects the dtypes in which something that has a gradient is computed, and whether it has class weights."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()
        self.weights = False  # of classes, in a cross-entropy

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function in (nn.functional.cross_entropy, nn.functional.nll_loss):
            self.weights |= (kwargs or {}).get("weight") is not None  # however it was passed
        self.dtypes |= {t.dtype for t in (*args, result) if isinstance(t, Tensor) and t.requires_grad}
        return result


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Put the random states of Python, NumPy and torch back."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)):
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002


def _put_back(values: list[tuple[Tensor, Tensor]]) -> None:
    with torch.no_grad():
        for tensor, kept in values:
            if not _same(tensor, kept):
                tensor.copy_(kept)


def _same(a: Any, b: Any, slack: float = 0.0) -> bool:
    """Whether this rank's parts are the same, up to a share of the largest number."""
    a, b = (x.to_local() if hasattr(x, "to_local") else x for x in (a.detach(), b))
    largest = float(b.abs().max()) if slack and b.numel() else 0.0
    return torch.allclose(a, b, rtol=0, atol=slack * largest, equal_nan=True)


def _flat(tensor: Any) -> Tensor:
    """Return all of a tensor, or of a DTensor, as one vector; of complex numbers both parts."""
    full = (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().to_dense()
    real: Tensor = torch.view_as_real(full.resolve_conj()) if full.is_complex() else full
    return real.to("cpu", torch.float64).flatten()


def gradient_of(
    model: nn.Module, values: list[tuple[Tensor, Tensor]], passes: Callable[[], Any], may_skip: bool = False
) -> Tensor:
    """Return the gradient that `passes` leaves, as one vector; parameters without one have zeros."""
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = None
    passes()
    if not may_skip and all(parameter.grad is None for parameter in parameters):
        raise ValueError(
            "step: expected it to leave gradients in the model's parameters, found none; have it call backward() "
            "(with yield, it only makes a generator), leave zero_grad() out of it, and under FSDP have a backward "
            "pass that synchronises"
        )
    # An embedding with max_norm writes to its weight; others may add a perturbation, and subtract it again.
    embeddings = [m for m in model.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))]
    limited = {id(m.weight) for m in embeddings if m.max_norm is not None}
    held = [(t, kept) for t, kept in values if isinstance(t, nn.Parameter) and id(t) not in limited]
    if not all(_same(tensor, kept, 4e-7) for tensor, kept in held):
        raise ValueError(
            "step: expected forward and backward passes only, but it changed the parameters; the optimiser's "
            "step does not belong in it"
        )
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    gradient = torch.cat([_flat(each) for each in gradients])
    _put_back(values)  # buffers: each run starts from the same
    return gradient


def exchange(value: Any, group: Any, ranks: int) -> list[Any]:
    """Return each rank's `value`, its tensors on this rank's device."""
    if ranks == 1:
        return [value]
    buffer = io.BytesIO()
    torch.save(value, buffer)
    everyone: list[Any] = [None] * ranks
    dist.all_gather_object(everyone, buffer.getvalue(), group=group)

    def here(storage: Any, location: str) -> Any:
        return storage.cuda() if location.startswith("cuda") else storage

    return [torch.load(io.BytesIO(data), map_location=here, weights_only=False) for data in everyone]


def _normalises_by_batch(module: nn.Module) -> bool:
    kind = isinstance(module, nn.modules.batchnorm._BatchNorm)
    return kind and bool(module.training or module.running_mean is None)
