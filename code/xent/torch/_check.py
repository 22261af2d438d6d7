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
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from xent._validate import integer, number

from ._accumulate import counting

__all__ = ["AccumulationReport", "check_accumulation"]

B = TypeVar("B")
Floats = NDArray[np.float64]

SUM_ONCE = """\
sum the losses, and divide once by what counts in the whole window:
    for window in xent.torch.accumulate(loader, steps, targets=...):
        for micro in window:
            (summed_loss(model, micro.batch) * micro.scale).backward()"""


@dataclass(frozen=True)
class AccumulationReport:
    """What `check_accumulation` found; ``print`` it.

    Attributes
    ----------
    ok : bool
        Whether the micro-batches' gradient is that of the whole batch, and nothing kept it from being judged.
    norm_ratio : float
        Norm of the micro-batches' gradient over that of the whole batch.
    cosine : float
        Of the angle between the two.
    relative_error : float
        Norm of their difference over that of the whole batch's gradient.
    cause : str
        The fault in words, or what could not be judged.
    repair : str
        What to change; empty where nothing is to be.
    """

    ok: bool
    norm_ratio: float
    cosine: float
    relative_error: float
    cause: str
    repair: str = ""

    def __str__(self) -> str:
        verdict = "right" if self.ok else "WRONG"
        lines = [
            f"accumulation is {verdict}: relative error {self.relative_error:.2g}, "
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
        configuration shows the same faults; the check holds a float64 copy, on the CPU, of one gradient for
        each micro-batch and three more. Turn dropout off, and gradient clipping too.
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
        ``model(**batch).loss.backward()``. Otherwise it is ``step(model, [batch])``, and a factor that `step`
        also has with a single batch (a wrong count, a missing rank factor) can only be seen in this way.
    targets : callable or key, optional
        As for `accumulate`: what counts, in each batch. With it, wrong counts have names.
    ignore_index : int, default -100
        Targets of this value do not count.
    tolerance : float, optional
        Largest relative error that is rounding. By default the square root of the gradients' machine epsilon:
        3.5e-4 in float32. Pass 0.05 or so under autocast.
    group : torch.distributed.ProcessGroup, optional
        The data-parallel group; the default group if torch.distributed is initialised.

    Returns
    -------
    AccumulationReport
        The same on all ranks, if they synchronise. The model is left as it was (parameters, buffers,
        gradients, ``requires_grad``, training mode), and so are the random states of Python, NumPy and torch.

    Raises
    ------
    ValueError
        If there are fewer than two micro-batches, or not as many on each rank; if `step` changes the
        parameters or leaves no gradient; if `targets` counts more or fewer in the whole batch than in its parts.
    TypeError
        If an argument is of the wrong kind.

    Notes
    -----
    Gradients cannot tell a mean of means from the mean of all where the counts are equal; the report says so.

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
    mine = list(micro_batches)
    distributed = dist.is_available() and dist.is_initialized()
    ranks = dist.get_world_size(group) if distributed else 1
    everyone = _exchange(mine, group, ranks)
    steps = len(mine)
    if ranks * steps < 2 or any(len(theirs) != steps for theirs in everyone):
        came = [len(theirs) for theirs in everyone]
        raise ValueError(
            "micro_batches: expected two or more, the same number on each rank, got "
            + (f"{came[0]}" if ranks == 1 else f"{came} on the ranks")
        )
    parts = [batch for theirs in everyone for batch in theirs]
    counts = None
    if targets is not None:
        counts = _count(targets, integer(ignore_index, "ignore_index"), parts, whole_batch)
    if tolerance is not None:
        tolerance = number(tolerance, "tolerance", "a number in (0, 1)", 0.0, 1.0)

    def plainly(batch: B) -> Any:
        batch = copy.deepcopy(batch)  # a step may pop the labels out of it
        return step(model, [batch]) if reference is None else reference(model, batch)

    with _untouched(model) as values:
        whole = _gradient(model, values, lambda: plainly(whole_batch))
        again = _gradient(model, values, lambda: plainly(whole_batch))  # at another random state
        ours = _gradient(model, values, lambda: step(model, [copy.deepcopy(batch) for batch in mine]))
        alone = torch.stack([_gradient(model, values, lambda b=batch: plainly(b)) for batch in parts])  # type: ignore[misc]

    if tolerance is None:
        dtypes = {p.dtype for p in model.parameters() if p.requires_grad}
        tolerance = math.sqrt(max(torch.finfo(dtype).eps for dtype in dtypes))
    norms = _exchange(float(ours.norm()), group, ranks)
    apart = max(norms) - min(norms) > tolerance * max(norms)
    evidence = _Evidence(model, whole, again, ours, alone, steps, ranks, tolerance, counts, apart)
    ok, cause, repair = evidence.judge()
    norm, expected = float(ours.norm()), float(whole.norm())
    ratio = norm / expected if expected else math.nan
    cosine = float(ours @ whole) / (norm * expected) if norm * expected else math.nan
    return AccumulationReport(ok, ratio, cosine, evidence.error(ours, whole), cause, repair)


@dataclass
class _Evidence:
    """The gradients, and what follows from them."""

    model: nn.Module
    whole: Tensor  # (P,), float64
    again: Tensor
    ours: Tensor
    alone: Tensor  # (W K, P): each micro-batch by itself, rank by rank
    steps: int
    ranks: int
    tolerance: float
    counts: dict[str, Floats] | None
    apart: bool  # whether the ranks ended with different gradients
    notes: list[str] = field(default_factory=list)

    @staticmethod
    def error(found: Tensor, expected: Tensor) -> float:
        scale = float(expected.norm())
        return float((found - expected).norm()) / scale if scale else math.nan

    def judge(self) -> tuple[bool, str, str]:
        """Return whether all is well, the cause and the repair."""
        return (
            self.not_finite()
            or self.does_not_repeat()
            or self.not_synchronised()
            or self.clipped()
            or self.right()
            or self.factor()
            or self.across_rows()
            or self.weights()
        )

    # Each of these returns a verdict, or None to leave it to the next.

    def not_finite(self) -> tuple[bool, str, str] | None:
        if not self.whole.isfinite().all():
            return False, "the whole batch's own gradient is not finite: look at the loss before the loop", ""
        if not self.whole.any():
            return False, "the whole batch's own gradient is zero: nothing can be compared with it", ""
        bad = [i for i, g in enumerate(self.alone) if not g.isfinite().all()]
        if self.ours.isfinite().all():
            self.alone[bad] = 0.0  # the loop leaves them out, or weighs them by zero
            return None
        if not bad:
            return False, "nan or inf, though no micro-batch has it alone: the sum of them overflows", ""
        empty = self.counts is not None and not any(self.counts["targets"][i] for i in bad)
        why = (
            "it has no target that counts, and a mean over nothing is 0/0"
            if empty
            else ("probably it has no target that counts: a mean over nothing is 0/0")
        )
        which = ", ".join(self.name(i) for i in bad)
        return False, f"nan from micro-batch {which} alone: {why}", SUM_ONCE

    def does_not_repeat(self) -> tuple[bool, str, str] | None:
        noise = self.error(self.again, self.whole)
        if noise <= self.tolerance:
            return None
        drops = [n for n, m in self.model.named_modules() if _drops(m)]
        cause = f"the step does not repeat: two runs on the whole batch differ by {noise:.2g}"
        cause += f" (dropout is on: {_some(drops)})" if drops else " (dropout, or other random numbers?)"
        return False, cause + ", so nothing can be said of its denominators", "model.eval(), and check again"

    def not_synchronised(self) -> tuple[bool, str, str] | None:
        if not self.apart:
            return None
        return (
            False,
            "the ranks end with different gradients: no backward pass of the window synchronises",
            "leave no_sync() for the window's last backward pass (micro.is_last)",
        )

    def clipped(self) -> tuple[bool, str, str] | None:
        everything = [self.whole, self.ours, *(g for g in self.alone if g.any())]
        norms = [float(g.norm()) for g in everything]
        differ = any(self.error(g / g.norm(), self.whole / norms[0]) > 0.01 for g in everything[2:])
        if not differ or max(norms) - min(norms) > 1e-4 * norms[0]:
            return None
        return (
            False,
            f"all gradients have the norm {norms[0]:.4g}: clipping hides any factor",
            "leave clip_grad_norm_ out of the step that is checked",
        )

    def right(self) -> tuple[bool, str, str] | None:
        if not self.error(self.ours, self.whole) <= self.tolerance:
            return None
        if (wrong := self.whole_divides_by()) is not None:
            return wrong
        cause = "none: the micro-batches add up to the whole batch"
        even = self.alone.mean(0)
        if self.error(even, self.whole) <= self.tolerance:
            cause += (
                ". But with equal numbers of targets a mean of means would too: check again with ragged ones"
            )
        return True, cause, ""

    def whole_divides_by(self) -> tuple[bool, str, str] | None:
        """Hold the whole batch to `targets`: a step can be consistent and count the wrong thing."""
        if self.counts is None:
            return None
        fits = {
            what: self.error(torch.from_numpy(n / n.sum()) @ self.alone, self.whole) <= self.tolerance
            for what, n in self.counts.items()
            if n.sum()
        }
        found = [what for what, fit in fits.items() if fit]
        if not found or fits["targets"] or "sequences" in found:
            return None
        return (
            False,
            f"micro-batches and whole batch agree, but both divide by the {found[0]}, "
            f"{self.total(found[0]):g}, and not by the {self.total('targets'):g} targets",
            "count what the loss sums over: after the shift, without padding",
        )

    def factor(self) -> tuple[bool, str, str] | None:
        along = float(self.ours @ self.whole / (self.whole @ self.whole))
        if not self.error(self.ours, along * self.whole) <= self.tolerance * abs(along):
            return None
        cause = f"the right direction, {self.factor_in_words(along)}"
        even = self.alone.mean(0)
        if self.error(even, self.whole) <= self.tolerance:
            cause += "; these micro-batches have equal numbers of targets, which would hide a mean of means"
        return False, cause, SUM_ONCE

    def across_rows(self) -> tuple[bool, str, str] | None:
        fit = self.fit(self.whole)
        residual = self.error(fit @ self.alone, self.whole)
        if residual <= self.tolerance:
            return None
        norms = [n for n, m in self.model.named_modules() if _normalises_by_batch(m)]
        if norms:
            return (
                False,
                f"batch normalisation ({_some(norms)}): its statistics are those of each micro-batch, so "
                "that no denominator makes up the whole batch",
                "model.eval() to check the denominators; GroupNorm or LayerNorm to train with accumulation",
            )
        drops = [n for n, m in self.model.named_modules() if _drops(m)]
        return (
            False,
            f"unknown: no weights of the micro-batches give the whole batch's gradient (off by {residual:.2g})"
            + (f"; dropout is on ({_some(drops)})" if drops else "")
            + "; either they are not the same examples, or something looks across rows (a contrastive or "
            "load-balancing loss), or it is rounding (autocast: pass tolerance=)",
            "",
        )

    def weights(self) -> tuple[bool, str, str]:
        for what, weights in self.mixtures().items():
            mixture = torch.from_numpy(weights.ravel()) @ self.alone
            along = float(self.ours @ mixture / (mixture @ mixture)) if mixture.any() else 0.0
            if not along or self.error(self.ours, along * mixture) > self.tolerance * abs(along):
                continue
            if abs(along - 1) <= self.tolerance:
                return False, what, SUM_ONCE
            return False, f"{what}; and {self.factor_in_words(along)}", SUM_ONCE
        fit = self.fit(self.ours)
        if self.error(fit @ self.alone, self.ours) > self.tolerance:
            return (
                False,
                "unknown: the loop's gradient is no weighted sum of its micro-batches' gradients",
                "",
            )
        had, due = (", ".join(f"{w:.3g}" for w in v.tolist()) for v in (fit, self.fit(self.whole)))
        return False, f"unknown: the micro-batches have weights {had}, and in the whole batch {due}", SUM_ONCE

    def mixtures(self) -> dict[str, Floats]:
        """Return weights, summing to one, that known faults give the micro-batches."""
        shape = self.ranks, self.steps
        share = self.fit(self.whole).numpy().reshape(shape)
        even = np.full(shape, 1 / share.size)
        where = "over the micro-batches" if self.steps > 1 else "over the ranks"
        why = ": each weighs the same, however many targets it has"
        found: dict[str, Floats] = {}
        if self.ranks > 1 and self.steps > 1:
            found["a mean of means over the micro-batches and over the ranks" + why] = even
            with np.errstate(divide="ignore", invalid="ignore"):
                by_step = np.nan_to_num(share / share.sum(0)) / self.steps
                by_rank = np.nan_to_num(share / share.sum(1, keepdims=True)) / self.ranks
            found["a mean of means over the micro-batches (the ranks share each one's denominator)"] = by_step
            found["a mean of means over the ranks: each divides by the targets of its own window alone"] = (
                by_rank
            )
        else:
            found[f"a mean of means {where}{why}"] = even
        if self.steps > 1:
            last = np.zeros(shape)
            last[:, -1] = 1 / self.ranks
            found["only the last micro-batch is left: zero_grad() runs inside the window"] = last
        for what, n in (self.counts or {}).items():
            if what != "targets" and n.sum():
                found[f"micro-batches are weighed by their {what}, not by their targets"] = n / n.sum()
        return found

    def factor_in_words(self, factor: float) -> str:
        k, w = self.steps, self.ranks
        large, small = (f"{{}} times too {size}: ".format for size in ("large", "small"))
        known: list[tuple[float, str]] = [
            (
                k,
                large(f"K = {k}")
                + "means are added up and never divided. Either the loop leaves it out, or the "
                "model takes the trainer's count (num_items_in_batch) and drops it",
            ),
            (1 / k, small(f"K = {k}") + "divided by K twice, as by the loop and by the trainer"),
        ]
        if w > 1:
            known += [
                (
                    1 / w,
                    small(f"W = {w}")
                    + "the ranks' gradients are averaged, so that a denominator counted over all "
                    "of them needs the factor W",
                ),
                (
                    w,
                    large(f"W = {w}")
                    + "a factor W where each rank divides by its own count, or gradients that "
                    "are summed over the ranks",
                ),
                (k * w, large(f"K W = {k * w}") + "divided neither by the micro-batches nor by the ranks"),
                (1 / (k * w), small(f"K W = {k * w}") + "divided by K twice, and without the factor W"),
                (
                    k / w,
                    f"K / W = {k / w:g} of what it should be: not divided by K, and without the factor W",
                ),
                (w / k, f"W / K = {w / k:g} of what it should be: divided by K twice, and W times too large"),
            ]
        if self.counts is not None:
            n = self.total("targets")
            for what in self.counts:
                if what != "targets" and (other := self.total(what)):
                    words = f"divided by the {other:g} {what}, not by the {n:g} targets"
                    known.append((n / other, f"{factor:.4g} of what it should be: {words}"))
            known.append((n, large(f"N = {n:g}") + "summed, and never divided by the targets"))
        found = [words for value, words in known if abs(factor / value - 1) <= self.tolerance]
        if found:
            return found[0] + "".join(f" (or: {words})" for words in found[1:])
        of_full = round(k / factor) if factor > k / 1000 else 0
        if of_full > k and abs(k / factor / of_full - 1) <= self.tolerance:
            return (
                f"{factor:.4g} of what it should be: divided by {of_full}, for a window of {k} micro-batches"
            )
        hint = "" if self.counts is not None else "; targets= would compare it with the counts"
        return f"{factor:.4g} times what it should be, which is none of the usual factors{hint}"

    def fit(self, gradient: Tensor) -> Tensor:
        """Return the weights of the micro-batches' gradients that come closest to `gradient`."""
        return torch.linalg.lstsq(self.alone.T, gradient[:, None], driver="gelsd").solution[:, 0]

    def total(self, what: str) -> float:
        return float(self.counts[what].sum()) if self.counts is not None else math.nan

    def name(self, i: int) -> str:
        return str(i) if self.ranks == 1 else f"{i % self.steps} of rank {i // self.steps}"


def _count(
    targets: Callable[[B], Tensor | int] | Hashable, ignore_index: int, parts: list[B], whole: B
) -> dict[str, Floats]:
    """Count each micro-batch in all the ways that loops do."""
    of = counting(targets, ignore_index)
    n, expected = [of(batch) for batch in parts], of(whole)
    if sum(map(int, (c.sum() for c in n))) != int(expected.sum()):
        raise ValueError(
            f"whole_batch: expected the {sum(int(c.sum()) for c in n)} targets of all micro-batches, of all "
            f"ranks, got {int(expected.sum())}"
        )
    found = {"targets": [int(c.sum()) for c in n]}
    if all(c.ndim > 1 for c in n):
        found["labels after a shift"] = [int(c[:, 1:].sum()) for c in n]
        found["labels before the shift"] = [int(c.sum()) + len(c) for c in n]
        found["positions, padding too"] = [c.numel() for c in n]
        found["positions, padding too, before the shift"] = [c.numel() + len(c) for c in n]
        found["sequences"] = [int(c.flatten(1).any(1).sum()) for c in n]
    elif all(c.dtype is torch.bool for c in n):
        found["rows, those too that are ignored"] = [c.numel() for c in n]
    return {what: np.asarray(v, np.float64) for what, v in found.items()}


@contextmanager
def _untouched(model: nn.Module) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Put everything back that a forward and a backward pass may change; yields the values kept."""
    modules = [(m, m.training, dict(m._parameters), dict(m._buffers)) for m in model.modules()]
    values = [(t, t.detach().clone()) for t in (*model.parameters(), *model.buffers())]
    gradients = [
        (p, p.requires_grad, p.grad, None if p.grad is None else p.grad.clone()) for p in model.parameters()
    ]
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
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
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])
        if cuda:
            torch.cuda.set_rng_state_all(cuda)


def _put_back(values: list[tuple[Tensor, Tensor]]) -> None:
    with torch.no_grad():
        for tensor, kept in values:
            if not _same(tensor, kept):
                tensor.copy_(kept)


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(_local(a.detach()), _local(b), rtol=0, atol=0, equal_nan=True)


def _local(tensor: Any) -> Tensor:
    """Return this rank's part of a DTensor."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def _gradient(model: nn.Module, values: list[tuple[Tensor, Tensor]], passes: Callable[[], Any]) -> Tensor:
    """Return the gradient that `passes` leaves, as one vector; parameters without one have zeros."""
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = None
    passes()
    if all(parameter.grad is None for parameter in parameters):
        raise ValueError(
            "step: expected it to leave gradients in the model's parameters, found none; zero_grad() and the "
            "optimiser's step do not belong in it"
        )
    if not all(_same(tensor, kept) for tensor, kept in values if isinstance(tensor, nn.Parameter)):
        raise ValueError(
            "step: expected forward and backward passes only, but it changed the parameters; the optimiser's "
            "step does not belong in it"
        )
    pieces = []
    for parameter in parameters:
        gradient: Any = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        gradient = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
        pieces.append(gradient.detach().to_dense().to("cpu", torch.float64).flatten())
    _put_back(values)  # buffers: each run starts from the same
    return torch.cat(pieces)


def _exchange(value: Any, group: Any, ranks: int) -> list[Any]:
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


def _drops(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p > 0


def _normalises_by_batch(module: nn.Module) -> bool:
    kind = isinstance(module, nn.modules.batchnorm._BatchNorm)
    return kind and bool(module.training or module.running_mean is None)


def _some(names: list[str]) -> str:
    names = [name or "the model itself" for name in names]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
