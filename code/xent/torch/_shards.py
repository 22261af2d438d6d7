"""Which classes a rank of a vocabulary-parallel model holds, and what the ranks tell each other."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ._validate import weights


class Shards:
    """Which classes this rank holds: `local` of `total`, from `first` on; all of them without a group.

    A softmax needs a maximum and sums over all classes, so that these few numbers for each row are exchanged,
    and never the logits.
    """

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

    def class_weights(self, weight: Any, labels: Tensor, local: int, like: Tensor) -> Tensor:
        """Return the weight of each label's class, whichever rank holds it."""
        of = "one weight a class" if self.group is None else "one weight a class of this rank"
        at, mine = self.find(labels, local)
        # Not in place: indexed by a single label, the weights return a view of themselves.
        return self.sum(weights(weight, "weight", (local,), of, like)[at].masked_fill(~mine, 0.0))


def group_name(group: Any) -> str:
    """Check a process group and return its name, "" for none."""
    if group is None:
        return ""
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"vocab_group: expected a torch.distributed.ProcessGroup, got {type(group).__name__}")
    return group.group_name


def group_of(name: str) -> dist.ProcessGroup | None:
    """Find a group by its name, which is all that an operator's arguments can hold."""
    resolve: Any = getattr(dist.distributed_c10d, "_resolve_process_group")  # noqa: B009
    return resolve(name) if name else None
