"""`xent.torch.accumulate`: the gradient of the full batch, however it was cut, on one device and over ranks.

Here ranks are threads; under DDP and FSDP2 they are processes, in test_check_accumulation.py.
"""

from __future__ import annotations

import copy
import itertools
import pickle
import re
import sys
import threading
from collections import UserDict, defaultdict, namedtuple
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy

from xent.torch import _accumulate, accumulate

WIDTH, CLASSES, LENGTH, IGNORED = 3, 5, 6, -100
LABEL_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
Batch = tuple[Tensor, Tensor]


def sequences(lengths: list[int], seed: int = 0) -> Batch:
    """One row for each length, padded; a length of zero is a row of padding."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(len(lengths), LENGTH, WIDTH, dtype=torch.float64, generator=generator)
    targets = torch.randint(CLASSES, (len(lengths), LENGTH), generator=generator)
    targets[torch.arange(LENGTH) >= torch.tensor(lengths)[:, None]] = IGNORED
    return inputs, targets


def split(lengths: list[int], sizes: list[int] | int = 1) -> list[Batch]:
    return list(zip(*(x.split(sizes) for x in sequences(lengths)), strict=True))


def added(windows: Any) -> Tensor:
    """The gradient of a linear model that these micro-batches add up to, each times its scale."""
    weight = torch.linspace(-1, 1, WIDTH * CLASSES, dtype=torch.float64).reshape(WIDTH, CLASSES)
    weight.requires_grad_()
    for micro in itertools.chain.from_iterable(windows):
        logits, y = (micro.batch[0] @ weight).flatten(0, 1), micro.batch[1].flatten()
        loss = cross_entropy(logits, y, reduction="sum", ignore_index=IGNORED)
        (loss * micro.scale).backward()
    assert weight.grad is not None
    return weight.grad


def gradient(batches: list[Batch], steps: int, **arguments: Any) -> Tensor:
    return added(accumulate(batches, steps, targets=1, **arguments))


def same(got: Any, due: Any) -> None:
    torch.testing.assert_close(got, due, rtol=1e-12, atol=1e-14)


@given(
    st.lists(st.integers(0, LENGTH), min_size=1, max_size=8).filter(any),
    st.sampled_from(["tokens", "sequences", 17.0]),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_partition_order_and_padding_change_nothing(
    lengths: list[int], denominator: Any, data: st.DataObject
) -> None:
    batch, how = sequences(lengths), {"denominator": denominator}
    whole = gradient([batch], 1, **how)
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(lengths) - 1)))) & set(range(1, len(lengths))))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, len(lengths)], strict=True)]
    same(gradient(split(lengths, sizes), len(sizes), **how), whole)
    order = data.draw(st.permutations(range(len(lengths))))
    same(gradient([(batch[0][order], batch[1][order])], 1, **how), whole)
    # Rows of padding, and columns of it, even with inputs that would spoil a gradient.
    inputs = torch.full((2, LENGTH, WIDTH), 1e3, dtype=torch.float64)
    padding = inputs, torch.full((2, LENGTH), IGNORED)
    same(gradient([padding, batch, padding], 3, **how), whole)


def test_the_mean_of_means_is_another_gradient() -> None:
    """The test of the tests above: on the same batches the usual loop is far off."""
    batches = split([6, 1])
    whole, short, long = (gradient(some, 2) for some in (batches, batches[:1], batches[1:]))
    assert float(((short + long) / 2 - whole).norm() / whole.norm()) > 0.1


def halves(batch: Batch) -> Tensor:
    return (batch[1] != IGNORED).sum() / 2


def test_the_scale_is_one_over_what_was_counted() -> None:
    batches = split([6, 1, 0, 3, 2], [2, 1, 1, 1])
    ways: Any = ("tokens", [10.0, 2.0]), ("sequences", [3.0, 1.0]), (4.0, [4.0, 4.0]), (halves, [5.0, 1.0])
    for denominator, due in ways:
        windows = list(accumulate(batches, 3, targets=1, denominator=denominator))
        assert [w.denominator for w in windows] == due
        assert [[m.is_last for m in w] for w in windows] == [[False, False, True], [True]]
        assert all(m.scale == 1 / w.denominator and w.ranks == 1 for w in windows for m in w)
    # Nothing that counts has no gradient, and no nan; nothing to do is no window.
    assert not gradient([sequences([0, 0])], 1).any()
    (window,) = accumulate([sequences([0, 0])], 1, targets=1)
    assert [micro.scale for micro in window] == [0.0] and window.denominator == 0
    assert list(accumulate([], 2, targets=1)) == []


LABELS = torch.tensor([[1, 2, IGNORED]])
WEIGHT = torch.tensor([0.5, 1.0, 2.0, 1.0, 4.0], dtype=torch.float64)
ONE_EACH = torch.tensor([1, IGNORED, 2, 3])  # one label for each input, as a classifier has
# fmt: off
COUNTED: list[tuple[Any, Any, Any, float]] = [  # a batch, targets, denominator, and what divides
    ({"labels": LABELS}, "labels", "tokens", 2), ((None, LABELS), 1, "tokens", 2),
    ({"labels": LABELS}, lambda batch: batch["labels"], "tokens", 2),
    (LABELS, lambda y: y > 1, "tokens", 1), (LABELS, lambda y: y.bool() & False, "tokens", 0),
    (LABELS, lambda _: 2, "tokens", 2), (LABELS, lambda _: np.int64(2), "tokens", 2),
    (LABELS, lambda y: y[:, 1:], "tokens", 1),  # what a model that shifts its labels sees
    *((ONE_EACH, lambda y: y, how, due) for how, due in (("tokens", 3), ("sequences", 3), (0.5, 0.5))),
    (LABELS, None, lambda y: WEIGHT[y[y >= 0]].sum(), 3.0), (LABELS, None, lambda y: 0, 0),
]
# fmt: on


def test_what_divides() -> None:
    for batch, targets, denominator, due in COUNTED:
        (window,) = accumulate([batch], 1, targets=targets, denominator=denominator)
        assert window.denominator == due and window.micro_batches[0].batch is batch
    # Labels count by their value: in the eight bits of uint8, -100 is 156, and 255 is -1 in those of int8.
    for dtype, ignored in itertools.product(LABEL_DTYPES, (-100, 0, 1, 156, 255, 2**63 - 1)):
        values = [v for v in (0, 1, 100, 127, 156, 255, -100, -1) if torch.tensor(v).to(dtype).item() == v]
        for how, due in (("tokens", sum(v != ignored for v in values)), ("sequences", 1)):
            options: Any = {"targets": lambda y: y, "denominator": how, "ignore_index": ignored}
            (window,) = accumulate([torch.tensor([values], dtype=dtype)], 1, **options)
            assert window.denominator == due


class Loader(list[Batch]):
    """Micro-batches, with what a loader has besides."""

    dataset = "what the loader draws from"


FIVE = [6, 1, 0, 3, 2]


def test_each_epoch_is_as_the_first() -> None:
    windows = accumulate(Loader(split(FIVE)), 2, targets=1)
    epochs = [[[(micro.batch[0], micro.scale) for micro in window] for window in windows] for _ in range(3)]
    assert len(windows) == 3
    for epoch in epochs:
        torch.testing.assert_close(epoch, epochs[0], rtol=0, atol=0)
        assert [len(window) for window in epoch] == [2, 2, 1]
    assert windows.dataset == "what the loader draws from"
    with pytest.raises(AttributeError, match="sampler"):
        windows.sampler  # noqa: B018
    assert len(copy.deepcopy(windows)) == 3


def test_an_iterator_has_one_epoch_and_no_length() -> None:
    windows = accumulate(iter(split([2, 2, 2])), 2, targets=1)
    assert len(list(windows)) == 2
    with pytest.raises(ValueError, match=r"^batches: expected a loader for another epoch, got list_iterator"):
        list(windows)
    with pytest.raises(TypeError, match="len"):
        len(windows)
    source = iter(split([2] * 5))
    assert next(iter(accumulate(source, 2, targets=1))) and len(list(source)) == 3  # one window was read


def test_batches_move_to_a_device_whatever_holds_them() -> None:
    Pair = namedtuple("Pair", "x y")

    class Encoding(UserDict[str, Any]):
        def to(self, device: Any) -> Any:
            return Encoding({key: value.to(device) for key, value in self.items()})

    x, y = torch.ones(2), torch.ones(2, dtype=torch.long)
    mappings = {"x": x, "y": y}, defaultdict(list, x=x, y=[y]), Encoding(x=x), {"x": [(x, None)], "name": "a"}
    for batch in ((x, y), [x, y], Pair(x, y), x, *mappings):
        (window,) = accumulate([batch, batch], 2, targets=lambda _: 1)
        moved = window.to("meta")
        assert (moved.denominator, moved.ranks, len(moved)) == (2.0, 1, 2)
        for micro, was in zip(moved, window, strict=True):
            assert (micro.scale, micro.is_last) == (was.scale, was.is_last)
            assert type(micro.batch) is type(batch) and "meta" not in repr(was.batch)
            assert len(re.findall(r"device='meta'", repr(micro.batch))) == repr(batch).count("tensor(")


def test_a_trainer_that_divides_too_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for the two libraries."""

    class GradientState:
        _shared_state: dict[str, Any] = {}  # noqa: RUF012
        num_steps = 4

    class Trainer:
        training, accumulate_grad_batches = True, 3

    class Mine(Trainer):
        pass

    windows = accumulate(split([2, 2]), 2, targets=1)
    monkeypatch.setitem(sys.modules, "accelerate.state", SimpleNamespace(GradientState=GradientState))
    monkeypatch.setitem(sys.modules, "lightning.pytorch.trainer.trainer", SimpleNamespace(Trainer=Trainer))
    assert len(list(windows)) == 1  # no Accelerator was made, and no Trainer
    GradientState._shared_state["made"] = True
    said = r"accelerate: Accelerator\(gradient_accumulation_steps=4\) .* leave it at 1"
    with pytest.raises(RuntimeError, match=said):
        list(windows)
    GradientState.num_steps = 1
    trainer = Mine()
    said = r"lightning: Trainer\(accumulate_grad_batches=3\) .* leave it at 1"
    with pytest.raises(RuntimeError, match=said):
        list(windows)
    trainer.training = False  # one that ended, or has not begun
    assert len(list(windows)) == 1
    trainer.training, trainer.accumulate_grad_batches = True, 1
    assert len(list(windows)) == 1


ANY = "expected a finite number >= 0 from each batch"
HOW = "denominator: expected 'tokens', 'sequences', a number > 0 or a function, got"
BAD: list[tuple[dict[str, Any], str]] = [
    *(({"denominator": bad}, f"{HOW} {bad!r}") for bad in ("token", -1.0, 0.0, float("nan"), None)),
    *(({"denominator": lambda _, bad=bad: bad}, f"denominator: {ANY}")
      for bad in (-1.0, float("nan"), "1", torch.ones(2))),
    ({"targets": "labels"}, "targets: expected a key of the batch, got 'labels'"),
    ({"targets": 0}, "targets: .*, got torch.float64"),
    ({"targets": None}, "targets: expected what to count for denominator='tokens', got None"),
    ({"targets": lambda _: -1}, "targets: expected counts >= 0, got -1"),
    ({"targets": lambda _: True}, "targets: .* got bool"),
    ({"targets": lambda batch: (batch[1] > 0).sum()}, r"targets: .*, got torch.int64 of shape \(\)$"),
    ({"targets": lambda _: 2, "denominator": "sequences"}, "targets: .* to count sequences, got a number"),
    ({"targets": lambda batch: batch[1].tolist()}, "targets: .*, got list$"),
    ({"targets": lambda batch: batch[1].to_sparse()}, "targets: expected a dense tensor"),
]  # fmt: skip


@pytest.mark.parametrize("row", range(len(BAD)))
def test_bad_arguments(row: int) -> None:
    arguments, said = BAD[row]
    with pytest.raises((TypeError, ValueError), match=f"^{said}"):
        list(accumulate([sequences([2])], 1, **{"targets": 1, **arguments}))


class Reuses:
    """A loader that writes every micro-batch into one buffer, as those for CUDA graphs do, or by NumPy."""

    def __init__(self, wrap: Callable[[Tensor], Any], clone: bool, by_numpy: bool = False) -> None:
        self.wrap, self.clone, self.by_numpy = wrap, clone, by_numpy

    def __iter__(self) -> Iterator[Any]:
        memory = np.empty((1, 4), np.int64)
        buffer = torch.from_numpy(memory)
        for n in range(1, 5):
            row = [[1] * n + [-100] * (4 - n)]
            if self.by_numpy:  # of which PyTorch keeps no count
                memory[:] = row
            else:
                buffer.copy_(torch.tensor(row))
            yield self.wrap(buffer.clone() if self.clone else buffer)


WRAPS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "a tensor": (lambda x: x, lambda b: b),
    "a view": (lambda x: x[:, :3], lambda b: b),
    "a mapping": (lambda x: {"labels": x}, lambda b: b["labels"]),
    "nested": (lambda x: (torch.zeros(1), [{"y": x}]), lambda b: b[1][0]["y"]),
}


@pytest.mark.parametrize("name", WRAPS)
def test_a_loader_that_reuses_its_memory_is_refused(name: str) -> None:
    wrap, tensor = WRAPS[name]
    for steps, by_numpy in itertools.product((2, 4, 8), (False, True)):
        with pytest.raises(ValueError, match=r"^batches: expected micro-batches with memory of their own"):
            list(accumulate(Reuses(wrap, False, by_numpy), steps, targets=tensor))
    for loader, steps in ((Reuses(wrap, clone=True), 4), (Reuses(wrap, clone=False), 1)):
        found = [window.denominator for window in accumulate(loader, steps, targets=tensor)]
        assert sum(found) == (9 if name == "a view" else 10)
    same_one = [wrap(torch.ones(1, 4, dtype=torch.long))] * 3  # one batch three times is no fault
    assert next(w.denominator for w in accumulate(same_one, 3, targets=tensor)) in (9, 12)


def test_counting_may_write_into_the_batch() -> None:
    loader = [torch.tensor([[1, 0, 2]]), torch.tensor([[0, 0, 2]])]
    windows = accumulate(loader, 2, targets=lambda batch: batch.masked_fill_(batch == 0, -100))
    assert [window.denominator for window in windows] == [3]


@pytest.mark.parametrize("denominator", ["tokens", "sequences", 8.0, len])
def test_windows_can_be_sent_to_another_process(denominator: Any) -> None:
    """As a loader is that spawns its workers."""
    windows = accumulate(split([6, 1, 0, 3]), 2, targets=1, denominator=denominator)
    there = pickle.loads(pickle.dumps(windows))
    scales = [[[micro.scale for micro in window] for window in each] for each in (windows, there)]
    assert scales[0] == scales[1]


# ----------------------------------------------------------------------------------- ranks, as threads


class Ranks:
    """torch.distributed as `accumulate` uses it, for ranks that are threads of this process."""

    group = "the data-parallel group"

    def __init__(self, count: int) -> None:
        self.count, self.backend = count, "cpu:gloo"
        self.barrier = threading.Barrier(count, timeout=20)
        self.slots: list[Any] = [None] * count
        self.here = threading.local()

    def is_available(self) -> bool:
        return True

    is_initialized = is_available

    def get_world_size(self, group: Any) -> int:
        assert group is self.group
        return self.count

    def get_backend(self, group: Any) -> str:
        assert group is self.group
        return self.backend

    def exchange(self, value: Any, group: Any) -> list[Any]:
        assert group is self.group
        self.slots[self.here.rank] = value
        self.barrier.wait()
        everyone = list(self.slots)
        self.barrier.wait()
        return everyone

    def all_gather(self, everyone: list[Tensor], mine: Tensor, group: Any) -> None:
        for out, theirs in zip(everyone, self.exchange(mine, group), strict=True):
            out.copy_(theirs)

    def all_gather_object(self, everyone: list[Any], mine: Any, group: Any) -> None:
        everyone[:] = self.exchange(mine, group)

    def run(self, loaders: Any, steps: int, **arguments: Any) -> list[list[Any]]:
        """Each rank's windows."""
        windows: list[list[Any]] = [[] for _ in loaders]
        errors: list[BaseException] = []

        def work(rank: int) -> None:
            self.here.rank = rank
            try:
                given = {"targets": 1, "group": self.group, **arguments}
                windows[rank] = list(accumulate(loaders[rank], steps, **given))
            except BaseException as error:  # the others would wait for this rank
                errors.append(error)
                self.barrier.abort()

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(self.count)]
        for act in (threading.Thread.start, threading.Thread.join):
            for thread in threads:
                act(thread)
        if errors:
            raise errors[0]
        return windows


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Ranks]:
    def make(count: int) -> Ranks:
        found = Ranks(count)
        monkeypatch.setattr(_accumulate, "dist", found)
        return found

    return make


def test_ranks_count_together_and_stand_in_for_each_other(ranks: Callable[[int], Ranks]) -> None:
    batches = split([6, 1, 0, 3, 2, 5])
    loaders = [[], batches[:4], batches[4:]]  # one that never has a batch, one that ends early
    for denominator, due in (("tokens", [14.0, 3.0]), ("sequences", [4.0, 1.0]), (4.0, [4.0, 4.0])):
        windows = ranks(3).run(loaders, 2, denominator=denominator)
        for mine in windows:
            assert [(window.denominator, window.ranks) for window in mine] == [(n, 3) for n in due]
            assert [[micro.is_last for micro in window] for window in mine] == [[False, True]] * 2
        scales = [[[micro.scale for micro in window] for window in mine] for mine in windows]
        first, second = ([3 / n] * 2 for n in due)
        assert scales == [[[0.0, 0.0], [0.0, 0.0]], [first, second], [first, [0.0, 0.0]]]
        # A stand-in is the rank's own last batch, or another rank's if it never had one.
        standing_in = [micro.batch for window in windows[0] for micro in window]
        assert all(any(batch is other for other in batches) for batch in standing_in)
        assert [micro.batch[0] is batches[5][0] for micro in windows[2][1]] == [True, True]
    assert ranks(2).run([[], []], 2) == [[], []]


def test_counts_travel_on_the_device_of_the_backend(
    ranks: Callable[[int], Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, used, tensor = ranks(1), list[str](), torch.tensor

    def elsewhere(values: Any, *, device: torch.device, **others: Any) -> Tensor:
        used.append(str(device))
        return tensor(values, **others)

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch, "tensor", elsewhere)
    one.here.rank = 0
    for one.backend in ("cpu:gloo", "nccl", "cpu:gloo,cuda:nccl"):
        assert _accumulate._gather((2**40 + 1, 1), Ranks.group) == [[2**40 + 1, 1]]  # as float64 alone holds
    assert used == ["cpu", "cuda:3", "cuda:3"]
