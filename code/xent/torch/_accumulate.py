"""One denominator for a window of micro-batches, over accumulation steps and data-parallel ranks alike.

The mean of a batch is sum(l) / N. Cut the batch into micro-batches, on one device or on several, and the mean
stays what it was only if every piece divides by the N of the whole. That N is known before the first backward
pass, because it depends on the targets alone. So `accumulate` reads a window ahead, counts, and hands each
micro-batch out with the factor that its summed loss needs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from xent._validate import integer, number, shown

from ._checks import LABEL_DTYPES, differ, tensor_of

__all__ = ["MicroBatch", "Window", "accumulate"]

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
        Whether this is the window's last backward pass on this rank: the one that synchronises, and the one
        to take the optimiser step after.
    """

    batch: B
    scale: float
    is_last: bool


@dataclass(frozen=True)
class Window(Generic[B]):
    """The micro-batches that share one optimiser step; iterate over it.

    Attributes
    ----------
    micro_batches : tuple of MicroBatch
        Those of this rank.
    denominator : float
        The N of the whole window: counted targets or sequences over all its micro-batches and ranks, or the
        constant that was asked for.
    ranks : int
        Number of data-parallel ranks W that share it. Each scale is W / N, because DistributedDataParallel
        and FSDP average gradients over W; where yours sums them (``set_gradient_divide_factor(1.0)``),
        divide the scale by `ranks`.
    """

    micro_batches: tuple[MicroBatch[B], ...]
    denominator: float
    ranks: int

    def __iter__(self) -> Iterator[MicroBatch[B]]:
        return iter(self.micro_batches)

    def __len__(self) -> int:
        return len(self.micro_batches)


def accumulate(
    batches: Iterable[B],
    steps: int,
    *,
    targets: Callable[[B], Tensor] | Hashable,
    denominator: Counting | float = "tokens",
    ignore_index: int = -100,
    group: Any = None,
) -> Iterator[Window[B]]:
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
        What yields the integer targets of a micro-batch: a function of it, or a key for ``batch[key]``
        (``1`` for pairs, ``"labels"`` for mappings). Return what the loss sees: for a language model that
        shifts its labels, the shifted ones.
    denominator : {"tokens", "sequences"} or float, default "tokens"
        Divide by the number of targets that count, by the number of rows that hold such a target, or by a
        positive constant (for the whole window, over all ranks).
    ignore_index : int, default -100
        Targets of this value do not count.
    group : torch.distributed.ProcessGroup, optional
        The data-parallel group to count over; the default group if torch.distributed is initialised. Pass
        the data-parallel group if there are tensor- or context-parallel ranks: these see the same targets,
        or pieces of the same sequences, which no count of targets can tell from new ones.

    Yields
    ------
    Window
        Iterates over micro-batches with ``.batch``, ``.scale`` and ``.is_last``. All ranks yield the same
        number of windows and of micro-batches in each: one whose loader ends early, or is empty, stands in
        with a batch it has had (or another rank's) at scale zero.

    Raises
    ------
    ValueError
        If `steps` or `denominator` is out of range, or `targets` is no key of a batch.
    TypeError
        If the targets of a batch are not a tensor of integers, or an argument is of the wrong kind.

    Notes
    -----
    A window without any target that counts has scale zero, not nan. Losses with class weights divide by the
    sum of weights; count those yourself and pass ``denominator=1.0`` with your own factor. The ratio of sums
    over a window is still a biased estimate of the ratio of expectations, of order one over the number of
    sequences in it; a constant denominator has no such bias.

    Examples
    --------
    >>> import torch, xent.torch
    >>> loader = [torch.tensor([[1, 2, -100]]), torch.tensor([[3, -100, -100]]), torch.tensor([[4, 5, 6]])]
    >>> for window in xent.torch.accumulate(loader, 2, targets=lambda labels: labels):
    ...     print(window.denominator, [round(micro.scale, 3) for micro in window])
    3.0 [0.333, 0.333]
    3.0 [0.333]
    """
    steps = integer(steps, "steps")
    if steps < 1:
        raise ValueError(f"steps: expected an integer >= 1, got {steps}")
    if isinstance(denominator, str):
        if denominator not in ("tokens", "sequences"):
            raise ValueError(
                f"denominator: expected 'tokens', 'sequences' or a number > 0, got {shown(denominator)}"
            )
        constant = None
    else:
        constant = number(
            denominator, "denominator", "'tokens', 'sequences' or a number > 0", 0.0, float("inf")
        )
    ignore_index = integer(ignore_index, "ignore_index")
    pick = targets if callable(targets) else _by_key(targets)

    def count(batch: B) -> int:
        counts = differ(_targets(pick(batch)), ignore_index)
        if denominator == "sequences" and counts.ndim > 1:
            counts = counts.flatten(1).any(1)
        return int(counts.sum())

    # The arguments are checked above, when the function is called; a generator would wait for the first use.
    try:
        micro_batches = iter(batches)
    except TypeError:
        raise TypeError(
            f"batches: expected an iterable of micro-batches, got {type(batches).__name__}"
        ) from None
    return _windows(micro_batches, min(steps, sys.maxsize), count, constant, group)


def _windows(
    batches: Iterator[B], steps: int, count: Callable[[B], int], constant: float | None, group: Any
) -> Iterator[Window[B]]:
    distributed = dist.is_available() and dist.is_initialized()
    ranks = dist.get_world_size(group) if distributed else 1
    last: list[B] = []  # what this rank would stand in with
    while True:
        window = list(islice(batches, steps))
        last = window[-1:] or last
        mine = (sum(map(count, window)), len(window), len(last))
        counts, lengths, stand_ins = zip(*(_gather(mine, group) if distributed else [mine]), strict=True)
        if not any(lengths):
            return
        if not all(stand_ins):
            last = _share(last, group)
        n = float(sum(counts)) if constant is None else constant
        scale = ranks / n if n else 0.0
        # As many passes on every rank as on the busiest: FSDP gathers parameters in each of them.
        passes = max(lengths)
        pairs = [(batch, scale) for batch in window] + [(last[0], 0.0)] * (passes - len(window))
        micro = (MicroBatch(batch, s, i == passes - 1) for i, (batch, s) in enumerate(pairs))
        yield Window(tuple(micro), n, ranks)


def _share(last: list[B], group: Any) -> list[B]:
    """Give a rank that never had a batch one of another rank, so that it can stand in.

    Every rank calls this, since it cannot know which one is bereft.
    """
    everyone: list[list[B]] = [[] for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(everyone, last, group=group)
    return last or next(theirs for theirs in everyone if theirs)


def _gather(values: tuple[int, ...], group: Any) -> list[list[int]]:
    """Collect integers from all ranks, on the device that the group's backend works on."""
    on_gpu = "nccl" in str(dist.get_backend(group))
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    mine = torch.tensor(values, dtype=torch.int64, device=device)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, mine, group=group)
    return [theirs.tolist() for theirs in everyone]


def _by_key(key: Any) -> Callable[[Any], Any]:
    def pick(batch: Any) -> Any:
        try:
            return batch[key]
        except Exception as error:  # a mapping, a sequence, a tensor: each refuses a key its own way
            raise ValueError(f"targets: expected a key of the batch, got {shown(key)} ({error!r})") from error

    return pick


def _targets(value: Any) -> Tensor:
    if not isinstance(value, Tensor) or value.dtype not in LABEL_DTYPES:
        got = f"dtype {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"targets: expected a tensor of integers from each batch, got {got}")
    return tensor_of(value, "targets")
