"""One denominator for a window of micro-batches, over accumulation steps and data-parallel ranks alike.

The mean of a batch is sum(l) / N. Cut the batch into micro-batches, on one device or on several, and the mean
stays what it was only if every piece divides by the N of the whole. That N is known before the first backward
pass, because it depends on the targets alone. So `accumulate` reads a window ahead, counts, and hands each
micro-batch out with the factor that its summed loss needs.
"""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from xent._validate import integer, number, shown

from ._checks import LABEL_DTYPES, differ, tensor_of

B = TypeVar("B")
Counting = Literal["tokens", "sequences"]


@dataclass(frozen=True)
class MicroBatch(Generic[B]):
    """One micro-batch of a window.

    Attributes
    ----------
    batch : object
        What the loader gave.
    scale : float
        Multiply the *summed* loss of this micro-batch by it before `backward`. Zero for a stand-in: a batch
        that a rank without data repeats, so that it takes part in the gradient's synchronisation.
    is_last : bool
        Whether this is the window's last backward pass on this rank: synchronise in it, and step after it.
    """

    batch: B
    scale: float
    is_last: bool

    def to(self, device: Any, non_blocking: bool = False) -> MicroBatch[B]:
        """Return it with the tensors of its batch on `device`, those in dicts, lists and tuples too."""
        return replace(self, batch=moved(self.batch, device, non_blocking))


@dataclass(frozen=True)
class Window(Generic[B]):
    """The micro-batches that share one optimiser step; iterate over it.

    Attributes
    ----------
    micro_batches : sequence of MicroBatch
        Those of this rank.
    denominator : float
        The N of the whole window: what counts, over all its micro-batches and ranks, or the constant.
    ranks : int
        Number of data-parallel ranks W that share it. Each scale is W / N, because DistributedDataParallel
        and FSDP average gradients over W; where yours sums them (``set_gradient_divide_factor(1.0)``),
        divide the scale by `ranks`.
    """

    micro_batches: Sequence[MicroBatch[B]]
    denominator: float
    ranks: int

    def __iter__(self) -> Iterator[MicroBatch[B]]:
        return iter(self.micro_batches)

    def __len__(self) -> int:
        return len(self.micro_batches)

    def to(self, device: Any, non_blocking: bool = False) -> Window[B]:
        """Return it with the tensors of all its batches on `device`."""
        return replace(self, micro_batches=tuple(micro.to(device, non_blocking) for micro in self))


def accumulate(
    batches: Iterable[B],
    steps: int,
    *,
    targets: Callable[[B], Tensor | int] | Hashable = None,
    denominator: Counting | float | Callable[[B], Tensor | float] = "tokens",
    ignore_index: int = -100,
    group: Any = None,
) -> Windows[B]:
    r"""Cut a loader into windows whose micro-batches add up to the gradient of the full batch.

    With l summed over the targets of micro-batch k on rank r, and gradients averaged over W ranks,

    .. math:: \frac1W \sum_{r,k} \nabla\Big(\frac{W}{N} \sum_{i \in (r,k)} \ell_i\Big)
              = \nabla \frac{1}{N} \sum_i \ell_i, \qquad N = \sum_{r,k} n_{rk}

    Parameters
    ----------
    batches : iterable
        Micro-batches of this rank, a DataLoader for instance. One window is read ahead.
    steps : int
        Micro-batches in a window, >= 1. The last window may be shorter.
    targets : callable or key
        What counts in a micro-batch: a function of it, or a key for ``batch[key]`` (``1`` for pairs,
        ``"labels"`` for mappings), that gives its integer targets, a boolean mask of those that count, or
        their number as an int. Give what the loss sees: for a language model that shifts its labels, the
        shifted ones. Not needed where `denominator` is a number or a function.
    denominator : {"tokens", "sequences"}, float or callable, default "tokens"
        Divide by the number of targets that count, by the number of rows that hold such a target, by a
        positive constant (for the whole window, over all ranks), or by the sum of what a function gives
        for each batch, such as the sum of its targets' weights.
    ignore_index : int, default -100
        Targets of this value do not count.
    group : torch.distributed.ProcessGroup, optional
        The ranks whose gradients are averaged, each with targets of its own; the default group if
        torch.distributed is initialised. Tensor-parallel ranks see the same targets: pass the data-parallel
        group then, to which ranks with pieces of the same sequences belong.

    Returns
    -------
    Windows
        Iterate over it once an epoch. Each `Window` iterates over micro-batches with ``.batch``, ``.scale``
        and ``.is_last``. All ranks yield the same number of windows and of micro-batches in each: one whose
        loader ends early, or is empty, stands in with a batch it has had (or another rank's) at scale zero.
        A window whose N is zero has scale zero, not nan.

    Raises
    ------
    ValueError, TypeError
        If an argument, or what `targets` gives for a batch, is none of these; if a loader is seen to write over tensors
        that are still to be used, or the `Windows` of an iterator are iterated over after an epoch to its end.
    RuntimeError
        When an epoch starts and an ``accelerate.Accelerator`` or a Lightning ``Trainer`` would accumulate,
        and divide, once more. Leave ``gradient_accumulation_steps``, ``accumulate_grad_batches`` at 1.

    Notes
    -----
    The ratio of sums over a window is still a biased estimate of the ratio of expectations, of order one over the
    number of sequences in it; so is one of class weights, whose sum depends on the labels. A constant has no such
    bias.

    Examples
    --------
    >>> import torch, xent.torch
    >>> loader = [torch.tensor([[1, 2, -100]]), torch.tensor([[3, -100, -100]]), torch.tensor([[4, 5, 6]])]
    >>> for window in xent.torch.accumulate(loader, 2, targets=lambda labels: labels):
    ...     print(window.denominator, [round(micro.scale, 3) for micro in window])
    3.0 [0.333, 0.333]
    3.0 [0.333]
    """
    return Windows(batches, steps, targets, denominator, ignore_index, group)


class Windows(Generic[B]):
    """What `accumulate` returns: iterable over epochs, as its loader is.

    ``len()`` is the number of windows, where the loader has a length; on ranks with loaders of different lengths it is
    this rank's own, and all yield as many as the longest. Other attributes, such as ``sampler``, are the loader's.
    """

    def __init__(
        self, batches: Iterable[B], steps: int, targets: Any, denominator: Any, ignore_index: int, group: Any
    ) -> None:
        self.batches, self.group = batches, group
        steps = integer(steps, "steps")
        if steps < 1:
            raise ValueError(f"steps: expected an integer >= 1, got {steps}")
        self.steps = min(steps, sys.maxsize)
        if not hasattr(batches, "__iter__") and not hasattr(batches, "__getitem__"):
            raise TypeError(f"batches: expected an iterable of micro-batches, got {type(batches).__name__}")
        ignore_index = integer(ignore_index, "ignore_index")
        self.constant: float | None = None  # what divides, where it is a number
        # Or how much a micro-batch adds to it; no local function, which would not pickle.
        self.mass: Callable[[B], float] | None = None
        self.used_up = False

        expected = "'tokens', 'sequences', a number > 0 or a function"
        if callable(denominator):
            self.mass = partial(_weight, denominator)
        elif not isinstance(denominator, str):
            self.constant = number(denominator, "denominator", expected, 0.0, math.inf)
        elif denominator not in ("tokens", "sequences"):
            raise ValueError(f"denominator: expected {expected}, got {shown(denominator)}")
        elif targets is None:
            raise TypeError(f"targets: expected what to count for denominator={denominator!r}, got None")
        else:
            self.mass = partial(_mass, counting(targets, ignore_index), denominator)

    def __len__(self) -> int:
        return -(-len(self.batches) // self.steps)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "batches":  # not there yet, while a copy is made
            raise AttributeError(name)
        return getattr(self.batches, name)

    def __iter__(self) -> Iterator[Window[B]]:
        _refuse_another_division()
        if self.used_up:
            raise ValueError(
                f"batches: expected a loader for another epoch, got {type(self.batches).__name__}, an "
                "iterator that is used up"
            )
        source = iter(self.batches)
        last: list[B] = []  # what this rank would stand in with
        while True:
            window, counted = list[B](), list[float]()
            seen: list[tuple[Tensor, tuple[int, bytes]]] = []
            for batch in islice(source, self.steps):
                window.append(batch)
                counted.append(self.mass(batch) if self.mass else 0.0)
                seen += [(t, _contents(t)) for t in _tensors(batch)]
            if any(_contents(t) != were for t, were in seen):
                raise ValueError(
                    "batches: expected micro-batches with memory of their own, got a loader that writes each "
                    "into that of the last; clone what it yields"
                )
            last = window[-1:] or last
            mine = math.fsum(counted), len(window), len(last)
            masses, lengths, stand_ins = zip(*_gather(mine, self.group), strict=True)
            if not any(lengths):
                break
            if not all(stand_ins):
                last = _share(last, self.group)
            n = math.fsum(masses) if self.constant is None else self.constant
            scale = len(masses) / n if n else 0.0
            # As many passes on every rank as on the busiest: FSDP gathers parameters in each of them.
            passes = int(max(lengths))
            pairs = [(batch, scale) for batch in window] + [(last[0], 0.0)] * (passes - len(window))
            micro = (MicroBatch(batch, s, i == passes - 1) for i, (batch, s) in enumerate(pairs))
            yield Window(tuple(micro), n, len(masses))
        self.used_up = source is self.batches


def _refuse_another_division() -> None:
    """Refuse trainers, where they are loaded, that would divide the scaled losses by their own number of steps."""
    accelerate = sys.modules.get("accelerate.state")
    if accelerate is not None and accelerate.GradientState._shared_state:
        steps = accelerate.GradientState().num_steps
        if steps > 1:
            raise RuntimeError(
                f"accelerate: Accelerator(gradient_accumulation_steps={steps}) divides each loss by {steps} "
                "once more, and takes the end of the loader, which is read ahead, for its own; leave it "
                "at 1, and use accelerator.no_sync(model) for all micro-batches but the last"
            )
    trainers = [
        sys.modules[name].Trainer
        for name in ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")
        if name in sys.modules
    ]
    # Lightning keeps no list of its trainers. type(), since isinstance would wake modules that load lazily.
    for found in gc.get_objects() if trainers else ():
        if issubclass(type(found), tuple(trainers)) and found.training and found.accumulate_grad_batches > 1:
            steps = found.accumulate_grad_batches
            raise RuntimeError(
                f"lightning: Trainer(accumulate_grad_batches={steps}) divides each loss by {steps} once "
                "more; leave it at 1: each window is one step of the trainer"
            )


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch, however deep in mappings and sequences they are."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(part)


def _contents(tensor: Tensor) -> tuple[int, bytes]:
    """Return its version, and some entries, which tell what others than PyTorch write into an array's memory."""
    version = 0 if tensor.is_inference() else tensor._version
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_nested:
        return version, b""
    entries = tensor.detach().reshape(-1)
    return version, entries[:: 1 + len(entries) // 1024].clone().view(torch.uint8).numpy().tobytes()


def moved(value: Any, device: Any, non_blocking: bool) -> Any:
    kind: Any
    if hasattr(value, "to"):
        return value.to(device, non_blocking=non_blocking) if isinstance(value, Tensor) else value.to(device)
    if isinstance(value, Mapping):
        kind, held = type(value), {key: moved(part, device, non_blocking) for key, part in value.items()}
        return kind(value.default_factory, held) if hasattr(value, "default_factory") else kind(held)
    if isinstance(value, (list, tuple)):
        parts = [moved(part, device, non_blocking) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def ranks_of(group: Any = None) -> int:
    """Return how many ranks share a group, 1 where torch.distributed is not initialised."""
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


def _share(last: list[B], group: Any) -> list[B]:
    """Give a rank that never had a batch one of another rank, so that it can stand in; every rank calls this."""
    everyone: list[list[B]] = [[] for _ in range(ranks_of(group))]
    dist.all_gather_object(everyone, last, group=group)
    return last or next(theirs for theirs in everyone if theirs)


def _gather(values: tuple[float, ...], group: Any) -> list[list[float]]:
    """Collect numbers from all ranks, on the device that the group's backend works on."""
    if not (dist.is_available() and dist.is_initialized()):
        return [list(values)]
    on_gpu = "nccl" in str(dist.get_backend(group))
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    mine = torch.tensor(values, dtype=torch.float64, device=device)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, mine, group=group)
    return [theirs.tolist() for theirs in everyone]


def counting(targets: Callable[[Any], Any] | Hashable, ignore_index: int) -> Callable[[Any], Tensor]:
    """Return what makes of a batch the mask of the targets that count, or their number without dimensions."""
    return partial(_counted, targets if callable(targets) else partial(_at, targets), ignore_index)


def _counted(pick: Callable[[Any], Any], ignore_index: int, batch: Any) -> Tensor:
    value = pick(batch)
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        if value < 0:
            raise ValueError(f"targets: expected counts >= 0, got {value}")
        return torch.tensor(value)
    # An integer tensor without dimensions may be one label or a number of them: it is not guessed which.
    dtype, shape = getattr(value, "dtype", None), tuple(getattr(value, "shape", ()))
    if not isinstance(value, Tensor) or not (dtype is torch.bool or (shape and dtype in LABEL_DTYPES)):
        got = f"{dtype} of shape {shape}" if dtype else type(value).__name__
        raise TypeError(
            "targets: expected integer labels, a boolean mask of those that count, or an int, their "
            f"number, from each batch, got {got}"
        )
    if dtype is not torch.bool and isinstance(batch, Mapping) and value is batch.get("attention_mask"):
        raise TypeError(
            f"targets: expected integer labels or a boolean mask, got the attention mask in {dtype}, whose 0 and 1 "
            "both count as labels: give those that the loss sees, or where it sees all, attention_mask.bool()"
        )
    value = tensor_of(value, "targets")
    return value if value.dtype is torch.bool else differ(value, ignore_index)


def _mass(count: Callable[[Any], Tensor], denominator: str, batch: Any) -> float:
    counts = count(batch)
    if denominator == "sequences" and counts.dtype is not torch.bool:
        raise TypeError(
            "targets: expected labels or masks to count sequences, got a number; say denominator='tokens'"
        )
    if denominator == "sequences" and counts.ndim > 1:
        counts = counts.flatten(1).any(1)
    return float(counts.sum())


def _weight(denominator: Callable[[Any], Any], batch: Any) -> float:
    value = denominator(batch)
    value = value.item() if isinstance(value, Tensor) and value.ndim == 0 else value
    return number(value, "denominator", "a finite number >= 0 from each batch", 0.0, math.inf, closed="low")


def _at(key: Any, batch: Any) -> Any:
    try:
        return batch[key]
    except Exception as error:  # a mapping, a sequence, a tensor: each refuses a key its own way
        raise ValueError(f"targets: expected a key of the batch, got {shown(key)} ({error!r})") from error
