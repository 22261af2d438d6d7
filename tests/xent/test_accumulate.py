"""`xent.torch.accumulate`: the gradient of the full batch, however it was cut."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import re
import sys
import threading
from collections import UserDict, defaultdict, namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy

import ranks as processes
import xent.torch
from xent.torch import _accumulate, accumulate
from xent.torch._checks import LABEL_DTYPES

SCRIPT = Path(__file__).with_name("gloo_gradients.py")
WIDTH, CLASSES, LENGTH, IGNORED = 3, 5, 6, -100
Batch = tuple[Tensor, Tensor]


def sequences(lengths: list[int], seed: int = 0) -> Batch:
    """One row for each length, padded; a length of zero is a row of padding."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(len(lengths), LENGTH, WIDTH, dtype=torch.float64, generator=generator)
    targets = torch.randint(CLASSES, (len(lengths), LENGTH), generator=generator)
    targets[torch.arange(LENGTH) >= torch.tensor(lengths)[:, None]] = IGNORED
    return inputs, targets


def split(batch: Batch, sizes: list[int]) -> list[Batch]:
    return list(zip(batch[0].split(sizes), batch[1].split(sizes), strict=True))


def gradient(batches: list[Batch], steps: int, **arguments: Any) -> list[Tensor]:
    """Return the gradient of each window of a linear model."""
    weight = torch.linspace(-1, 1, WIDTH * CLASSES, dtype=torch.float64).reshape(WIDTH, CLASSES)
    weight.requires_grad_()
    gradients = []
    for window in xent.torch.accumulate(batches, steps, targets=1, **arguments):
        for micro in window:
            inputs, targets = micro.batch
            loss = xent.torch.cross_entropy(inputs @ weight, targets, ignore_index=IGNORED, reduction="sum")
            (loss * micro.scale).backward()
        assert weight.grad is not None
        gradients.append(weight.grad)
        weight.grad = None
    return gradients


lengths = st.lists(st.integers(0, LENGTH), min_size=1, max_size=8).filter(any)
denominators = st.sampled_from(["tokens", "sequences", 17.0])


@given(lengths, denominators, st.data())
@settings(max_examples=60, deadline=None)
def test_partition_order_and_padding_change_nothing(
    lengths: list[int], denominator: Any, data: st.DataObject
) -> None:
    batch = sequences(lengths)
    (whole,) = gradient([batch], 1, denominator=denominator)

    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(lengths) - 1)))) & set(range(1, len(lengths))))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, len(lengths)], strict=True)]
    (cut,) = gradient(split(batch, sizes), len(sizes), denominator=denominator)
    torch.testing.assert_close(cut, whole, rtol=1e-12, atol=1e-14)

    order = data.draw(st.permutations(range(len(lengths))))
    (shuffled,) = gradient([(batch[0][order], batch[1][order])], 1, denominator=denominator)
    torch.testing.assert_close(shuffled, whole, rtol=1e-12, atol=1e-14)

    # Rows of padding, and columns of it, even with inputs that would spoil a gradient.
    inputs = torch.full((2, LENGTH, WIDTH), 1e3, dtype=torch.float64)
    padding = inputs, torch.full((2, LENGTH), IGNORED)
    (padded,) = gradient([padding, batch, padding], 3, denominator=denominator)
    torch.testing.assert_close(padded, whole, rtol=1e-12, atol=1e-14)


def test_the_scale_is_one_over_what_was_counted() -> None:
    batches = split(sequences([6, 1, 0, 3, 2]), [2, 1, 1, 1])
    for denominator, expected in (("tokens", [10.0, 2.0]), ("sequences", [3.0, 1.0]), (4.0, [4.0, 4.0])):
        windows = list(xent.torch.accumulate(batches, 3, targets=1, denominator=denominator))
        assert [w.denominator for w in windows] == expected
        assert [len(w) for w in windows] == [3, 1]
        assert [[m.is_last for m in w] for w in windows] == [[False, False, True], [True]]
        assert all(m.scale == 1 / w.denominator and w.ranks == 1 for w in windows for m in w)


def test_the_mean_of_means_is_another_gradient() -> None:
    # The test of the tests above: on the same batches the usual loop is far off.
    batches = split(sequences([6, 1]), [1, 1])
    (whole,) = gradient(batches, 2)
    (short,), (long,) = gradient(batches[:1], 1), gradient(batches[1:], 1)
    assert float(((short + long) / 2 - whole).norm() / whole.norm()) > 0.1


def test_a_window_without_targets_has_no_gradient_and_no_nan() -> None:
    (nothing,) = gradient([sequences([0, 0])], 1)
    assert nothing.tolist() == torch.zeros(WIDTH, CLASSES).tolist()
    (window,) = xent.torch.accumulate([sequences([0, 0])], 1, targets=1)
    assert [micro.scale for micro in window] == [0.0] and window.denominator == 0


def test_targets_without_positions_are_rows_themselves() -> None:
    labels = torch.tensor([1, IGNORED, 2, 3])  # one label for each input, as a classifier has
    for denominator, expected in (("tokens", 3.0), ("sequences", 3.0), (0.5, 0.5)):
        (window,) = xent.torch.accumulate([labels], 1, targets=lambda batch: batch, denominator=denominator)  # type: ignore[arg-type]
        assert window.denominator == expected


@pytest.mark.parametrize("dtype", LABEL_DTYPES, ids=str)
@pytest.mark.parametrize("ignored", [-100, 0, 1, 156, 255, 2**63 - 1])
def test_labels_count_by_their_value_in_every_dtype(dtype: torch.dtype, ignored: int) -> None:
    # In the eight bits of uint8, -100 is 156 and 255 is -1 in those of int8: labels like any other.
    values = [v for v in (0, 1, 100, 127, 156, 255, -100, -1) if torch.tensor(v).to(dtype).item() == v]
    labels = torch.tensor([values], dtype=dtype)
    for denominator, counted in (("tokens", sum(v != ignored for v in values)), ("sequences", 1)):
        options: dict[str, Any] = {"denominator": denominator, "ignore_index": ignored}
        (window,) = xent.torch.accumulate([labels], 1, targets=lambda batch: batch, **options)
        assert window.denominator == counted


def test_targets_by_function_key_and_position() -> None:
    labels = torch.tensor([[1, 2, IGNORED]])
    for batch, targets in (
        ({"labels": labels}, "labels"),
        ((None, labels), 1),
        ({"labels": labels}, lambda batch: batch["labels"]),
    ):
        (window,) = xent.torch.accumulate([batch], 1, targets=targets)  # type: ignore[var-annotated]
        assert window.denominator == 2 and window.micro_batches[0].batch is batch
        for mask, n in ((labels > 1, 1), (labels.bool() & False, 0)):
            (window,) = xent.torch.accumulate([batch], 1, targets=lambda _, mask=mask: mask)  # type: ignore[misc]
            assert window.denominator == n
        for ready in (2, np.int64(2)):
            (window,) = xent.torch.accumulate([batch], 1, targets=lambda _, n=ready: n)  # type: ignore[misc]
            assert window.denominator == 2
    # What a model that shifts its labels sees.
    (window,) = xent.torch.accumulate([labels], 1, targets=lambda labels: labels[:, 1:])
    assert window.denominator == 1


def test_one_window_is_read_ahead_and_no_more() -> None:
    drawn = []

    def loader() -> Any:
        for i in range(5):
            drawn.append(i)
            yield sequences([2], seed=i)

    windows = iter(xent.torch.accumulate(loader(), 2, targets=1))
    assert drawn == []
    next(windows)
    assert drawn == [0, 1]


class Loader:
    """Micro-batches, with a record of when each is drawn, and a length that may lie."""

    def __init__(self, batches: list[Batch], length: int | None = None) -> None:
        self.batches, self.length, self.drawn = batches, length, 0
        self.dataset = "what the loader draws from"

    def __len__(self) -> int:
        return len(self.batches) if self.length is None else self.length

    def __iter__(self) -> Any:
        self.drawn = 0
        for batch in self.batches:
            self.drawn += 1
            yield batch


KNOWN: list[dict[str, Any]] = [
    {"targets": [6, 1, 0, 3, 2]},
    {"targets": np.array([6, 1, 0, 3, 2])},
    {"denominator": 12.0},
]


@pytest.mark.parametrize("known", KNOWN, ids=["list", "array", "constant"])
def test_what_is_known_beforehand_is_not_read_ahead(known: dict[str, Any]) -> None:
    batches = split(sequences([6, 1, 0, 3, 2]), [1] * 5)
    loader = Loader(batches)
    seen = []
    for window in xent.torch.accumulate(loader, 2, **known):
        for micro in window:
            seen.append((loader.drawn, micro.scale, micro.is_last))
            assert micro.batch is batches[loader.drawn - 1]
    ns = [12.0] * 5 if "denominator" in known else [7.0, 7.0, 3.0, 3.0, 2.0]
    assert seen == [(i + 1, 1 / n, i in (1, 3, 4)) for i, n in enumerate(ns)]

    # A window that is left early does not move the next one.
    windows = xent.torch.accumulate(loader, 2, **known)
    assert [next(iter(window)).batch is batches[2 * i] for i, window in enumerate(windows)] == [True] * 3
    (window, *_) = windows
    assert window.micro_batches[-1].batch is batches[1] and len(window.micro_batches[:1]) == 1


def test_a_loader_keeps_to_the_length_that_it_announced() -> None:
    batches = split(sequences([2, 2, 2]), [1] * 3)
    for length, said in ((4, "expected 4 micro-batches, .* got fewer"), (2, "expected 2 .* got more")):
        with pytest.raises(ValueError, match=f"batches: {said}"):
            list(xent.torch.accumulate(Loader(batches, length), 2, denominator=1.0))
        with pytest.raises(ValueError, match=f"batches: {said}"):
            list(xent.torch.accumulate(batches, 2, targets=[1] * length))
        # Where it is read ahead, its length is not relied on.
        assert len(list(xent.torch.accumulate(Loader(batches, length), 2, targets=1))) == 2


@pytest.mark.parametrize("arguments", [{"targets": 1}, *KNOWN], ids=["counted", "list", "array", "constant"])
def test_each_epoch_is_as_the_first(arguments: dict[str, Any]) -> None:
    windows = xent.torch.accumulate(Loader(split(sequences([6, 1, 0, 3, 2]), [1] * 5)), 2, **arguments)
    epochs = [[[(micro.batch[0], micro.scale) for micro in window] for window in windows] for _ in range(8)]
    assert len(windows) == 3
    for epoch in epochs:
        torch.testing.assert_close(epoch, epochs[0], rtol=0, atol=0)
        assert [len(window) for window in epoch] == [2, 2, 1]
    assert windows.dataset == "what the loader draws from"
    with pytest.raises(AttributeError, match="sampler"):
        windows.sampler  # noqa: B018
    assert len(copy.deepcopy(windows)) == 3


def test_an_iterator_has_one_epoch_and_no_length() -> None:
    windows = xent.torch.accumulate(iter(split(sequences([2, 2, 2]), [1] * 3)), 2, targets=1)
    assert len(list(windows)) == 2
    with pytest.raises(ValueError, match=r"^batches: expected a loader for another epoch, got list_iterator"):
        list(windows)
    with pytest.raises(TypeError, match="len"):
        len(windows)


def test_sums_of_weights_are_a_denominator() -> None:
    weight = torch.tensor([0.5, 1.0, 2.0, 1.0, 4.0], dtype=torch.float64)
    batches = split(sequences([6, 1, 0, 3]), [1] * 4)

    def mass(batch: Batch) -> Tensor:
        return weight[batch[1][batch[1] != IGNORED]].sum()

    (window,) = xent.torch.accumulate(batches, 4, denominator=mass)
    assert window.denominator == pytest.approx(sum(mass(batch).item() for batch in batches), rel=1e-15)
    total = sum(
        cross_entropy(x.flatten(0, 1) @ torch.eye(3, 5).double(), y.flatten(), weight, reduction="sum")
        * micro.scale
        for micro in window
        for x, y in [micro.batch]
    )
    x, y = sequences([6, 1, 0, 3])
    whole = cross_entropy(x.flatten(0, 1) @ torch.eye(3, 5).double(), y.flatten(), weight)
    torch.testing.assert_close(total, whole, rtol=1e-14, atol=0)
    for bad, error in (
        (-1.0, ValueError),
        (float("nan"), ValueError),
        ("1", TypeError),
        (torch.ones(2), TypeError),
    ):
        with pytest.raises(error, match="denominator: expected a finite number >= 0 from each batch"):
            list(xent.torch.accumulate(batches, 4, denominator=lambda _, bad=bad: bad))  # type: ignore[misc]


def test_batches_move_to_a_device_whatever_holds_them() -> None:
    Pair = namedtuple("Pair", "x y")

    class Encoding(UserDict[str, Any]):
        def to(self, device: Any) -> Any:
            return Encoding({key: value.to(device) for key, value in self.items()})

    x, y = torch.ones(2), torch.ones(2, dtype=torch.long)
    for batch in (
        (x, y),
        [x, y],
        {"x": x, "y": y},
        defaultdict(list, x=x, y=[y]),
        Pair(x, y),
        Encoding(x=x),
        {"x": [(x, None)], "name": "a"},
        x,
    ):
        (window,) = xent.torch.accumulate([batch, batch], 2, targets=lambda _: 1)
        moved = window.to("meta")
        assert (moved.denominator, moved.ranks, len(moved)) == (2.0, 1, 2)
        for micro, was in zip(moved, window, strict=True):
            assert (micro.scale, micro.is_last) == (was.scale, was.is_last)
            assert type(micro.batch) is type(batch)
            flat = re.findall(r"device='meta'", repr(micro.batch))
            assert len(flat) == repr(batch).count("tensor(")
            assert "meta" not in repr(was.batch)


def test_a_trainer_that_divides_too_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for the two libraries."""

    class GradientState:
        _shared_state: dict[str, Any] = {}  # noqa: RUF012
        num_steps = 4

    class Trainer:
        training, accumulate_grad_batches = True, 3

    class Mine(Trainer):
        pass

    windows = xent.torch.accumulate(split(sequences([2, 2]), [1, 1]), 2, targets=1)
    monkeypatch.setitem(sys.modules, "accelerate.state", SimpleNamespace(GradientState=GradientState))
    monkeypatch.setitem(sys.modules, "lightning.pytorch.trainer.trainer", SimpleNamespace(Trainer=Trainer))
    assert len(list(windows)) == 1  # no Accelerator was made, and no Trainer

    GradientState._shared_state["made"] = True
    with pytest.raises(
        RuntimeError, match=r"accelerate: Accelerator\(gradient_accumulation_steps=4\) .* leave it at 1"
    ):
        list(windows)
    GradientState.num_steps = 1
    trainer = Mine()
    with pytest.raises(
        RuntimeError, match=r"lightning: Trainer\(accumulate_grad_batches=3\) .* leave it at 1"
    ):
        list(windows)
    trainer.training = False  # one that ended, or has not begun
    assert len(list(windows)) == 1
    trainer.training, trainer.accumulate_grad_batches = True, 1
    assert len(list(windows)) == 1


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"steps": 0}, ValueError, "steps: .*0"),
        ({"steps": 1.5}, TypeError, "steps: .*1.5"),
        ({"denominator": "token"}, ValueError, "denominator: .*'token'"),
        ({"denominator": -1.0}, ValueError, "denominator: .*-1"),
        ({"denominator": float("nan")}, ValueError, "denominator: .*nan"),
        ({"denominator": None}, TypeError, "denominator: .*None"),
        ({"ignore_index": "pad"}, TypeError, "ignore_index: .*'pad'"),
        ({"targets": "labels"}, ValueError, "targets: .*'labels'"),
        ({"targets": 0}, TypeError, "targets: .*float64"),
        ({"targets": None}, TypeError, "targets: expected what to count for denominator='tokens', got None"),
        ({"targets": lambda _: -1}, ValueError, "targets: expected counts >= 0, got -1"),
        ({"targets": [1, 0.5]}, TypeError, "targets: expected an integer, got 0.5"),
        ({"targets": lambda _: True}, TypeError, "targets: .* got bool"),
        (
            {"targets": lambda batch: (batch[1] > 0).sum()},
            TypeError,
            r"targets: .*, got torch.int64 of shape \(\)$",
        ),
        ({"targets": lambda _: 2, "denominator": "sequences"}, TypeError, "targets: .* to count sequences"),
        ({"targets": lambda batch: batch[1].tolist()}, TypeError, "targets: .*, got list$"),
        ({"targets": lambda batch: batch[1].to_sparse()}, TypeError, "^targets: expected a dense tensor"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",  # a function would be named by its address
)
def test_bad_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments = {"steps": 1, "targets": 1, **arguments}
    with pytest.raises(error, match=message):
        list(xent.torch.accumulate([sequences([2])], **arguments))


def test_a_bad_denominator_is_told_the_same_whatever_it_is() -> None:
    said = set()
    for bad in ("token", 0.0, None):
        with pytest.raises((ValueError, TypeError), match=r"^denominator: expected .*") as caught:
            xent.torch.accumulate([], 1, targets=1, denominator=bad)  # type: ignore[arg-type]
        said.add(str(caught.value).removesuffix(f"{bad!r}"))
    assert len(said) == 1


def test_batches_that_cannot_be_iterated_over_are_refused() -> None:
    with pytest.raises(TypeError, match=r"^batches: expected an iterable of micro-batches, got int$"):
        xent.torch.accumulate(3, 1, targets=1)  # type: ignore[arg-type]


def test_arguments_are_checked_before_the_first_window() -> None:
    with pytest.raises(ValueError, match="steps"):
        xent.torch.accumulate([], 0, targets=1)


class Ranks:
    """torch.distributed as `accumulate` uses it, for ranks that are threads of this process.

    The tests below it run over gloo, in processes; they take minutes.
    """

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
                found = xent.torch.accumulate(
                    loaders[rank], steps, **{"targets": 1, "group": self.group, **arguments}
                )
                windows[rank] = list(found)
            except BaseException as error:  # the others would wait for this rank
                errors.append(error)
                self.barrier.abort()

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
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
    batches = split(sequences([6, 1, 0, 3, 2, 5]), [1] * 6)
    loaders = [[], batches[:4], batches[4:]]  # one that never has a batch, one that ends early
    for denominator, expected in (("tokens", [14.0, 3.0]), ("sequences", [4.0, 1.0]), (4.0, [4.0, 4.0])):
        windows = ranks(3).run(loaders, 2, denominator=denominator)
        for mine in windows:
            assert [window.denominator for window in mine] == expected
            assert [window.ranks for window in mine] == [3, 3]
            assert [len(window) for window in mine] == [2, 2]
            assert [[micro.is_last for micro in window] for window in mine] == [[False, True]] * 2
        scales = [[[micro.scale for micro in window] for window in mine] for mine in windows]
        first, second = (3 / n for n in expected)
        assert scales == [
            [[0.0, 0.0], [0.0, 0.0]],
            [[first, first], [second, second]],
            [[first, first], [0.0, 0.0]],
        ]
        # A stand-in is the rank's own last batch, or another rank's if it never had one.
        standing_in = [micro.batch for window in windows[0] for micro in window]
        assert all(any(batch is other for other in batches) for batch in standing_in)
        assert [micro.batch[0] is batches[5][0] for micro in windows[2][1]] == [True, True]


@pytest.mark.parametrize("known", [{"targets": [6, 1, 0, 3]}, {"denominator": 5.0}], ids=["list", "constant"])
def test_ranks_that_know_what_comes_read_nothing_ahead(
    ranks: Callable[[int], Ranks], known: dict[str, Any]
) -> None:
    batches = split(sequences([6, 1, 0, 3]), [1] * 4)
    for mine in ranks(2).run([Loader(batches), Loader(batches)], 3, **{"targets": None} | known):
        assert [[micro.is_last for micro in window] for window in mine] == [[False, False, True], [True]]
        drawn = [micro.batch for window in mine for micro in window]
        assert all(found is batch for found, batch in zip(drawn, batches, strict=True))
        due = [14.0, 6.0] if "targets" in known else [5.0, 5.0]
        assert [window.denominator for window in mine] == due
        assert [micro.scale for window in mine for micro in window] == [2 / due[0]] * 3 + [2 / due[1]]


def test_ranks_agree_with_one_device_on_the_gradient(ranks: Callable[[int], Ranks]) -> None:
    batches = split(sequences([6, 1, 0, 3, 2]), [1] * 5)
    (whole,) = gradient(batches, 5)
    windows = ranks(2).run([batches[:2], batches[2:]], 3)
    weight = torch.linspace(-1, 1, WIDTH * CLASSES, dtype=torch.float64).reshape(WIDTH, CLASSES)
    weight.requires_grad_()
    for (window,) in windows:
        assert len(window) == 3
        for micro in window:
            inputs, targets = micro.batch
            loss = xent.torch.cross_entropy(inputs @ weight, targets, ignore_index=IGNORED, reduction="sum")
            (loss * micro.scale / window.ranks).backward()
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, whole, rtol=1e-12, atol=1e-14)


def test_ranks_agree_on_a_sum_of_class_weights(ranks: Callable[[int], Ranks]) -> None:
    by_class = torch.tensor([0.5, 1.0, 2.0, 1.0, 4.0], dtype=torch.float64)
    batches = split(sequences([6, 1, 0, 3, 2]), [1] * 5)
    logits = torch.linspace(-1, 1, WIDTH * CLASSES, dtype=torch.float64).reshape(WIDTH, CLASSES)

    def gradient_of(part: list[Batch], scales: list[float]) -> Tensor:
        weight = logits.clone().requires_grad_()
        for (x, y), scale in zip(part, scales, strict=True):
            each = cross_entropy(x.flatten(0, 1) @ weight, y.flatten(), by_class, reduction="sum")
            (each * scale).backward()
        assert weight.grad is not None
        return weight.grad

    def mass(batch: Batch) -> Tensor:
        return by_class[batch[1][batch[1] != IGNORED]].sum()

    total = sum(mass(batch).item() for batch in batches)
    whole = gradient_of(batches, [1 / total] * 5)
    shares = [batches[:2], batches[2:]]
    windows = ranks(2).run(shares, 3, denominator=mass)
    found = torch.zeros_like(whole)
    for (window,) in windows:
        assert window.denominator == pytest.approx(total, rel=1e-15)
        found += gradient_of([m.batch for m in window], [m.scale / window.ranks for m in window])
    torch.testing.assert_close(found, whole, rtol=1e-12, atol=1e-14)
    # Each rank by its own sum of weights, averaged over the ranks, is another gradient.
    own = sum(gradient_of(part, [0.5 / sum(mass(b).item() for b in part)] * len(part)) for part in shares)
    assert float((own - whole).norm() / whole.norm()) > 0.1


def test_counts_travel_on_the_device_of_the_backend(
    ranks: Callable[[int], Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def device(*arguments: Any) -> torch.device:
        asked.append(arguments)
        return torch.device("cpu")

    used = []

    def tensor(values: Any, *, device: torch.device, **others: Any) -> Tensor:
        used.append(device)
        return torch.tensor(values, device=device, **others)

    names = {"tensor": tensor, "empty_like": torch.empty_like, "float64": torch.float64}
    cuda = SimpleNamespace(current_device=lambda: 3)
    monkeypatch.setattr(_accumulate, "torch", SimpleNamespace(device=device, cuda=cuda, **names))
    one = ranks(1)
    for backend, expected in (
        ("cpu:gloo", ("cpu",)),
        ("nccl", ("cuda", 3)),
        ("cpu:gloo,cuda:nccl", ("cuda", 3)),
    ):
        one.backend, asked[:] = backend, []
        one.here.rank = 0
        # More than an int32 holds.
        assert _accumulate._gather((2**40, 1), Ranks.group) == [[2**40, 1]]
        assert asked == [expected]
    assert used == [torch.device("cpu")] * 3


def test_nothing_to_do_is_no_window(ranks: Callable[[int], Ranks]) -> None:
    assert list(xent.torch.accumulate([], 2, targets=1)) == []
    assert ranks(2).run([[], []], 2) == [[], []]


@pytest.mark.slow
def test_processes_agree_with_one_device() -> None:
    """Ranks that run out, and one that never had a batch; the even plan is what chapter 11 runs and shows."""
    plans = {"tokens": ["--fsdp"], "sequences": [], "64": []}
    runs = [(3, ["--plan=ragged", f"--denominator={name}", *more]) for name, more in plans.items()]
    for line, more in zip(processes.run(str(SCRIPT), *runs), plans.values(), strict=True):
        errors = json.loads(line)["relative_error"]
        assert set(errors) == {"accumulate", *(["accumulate, FSDP2"] if more else [])}
        assert max(error for scheme in errors.values() for error in scheme) < 1e-12


class Reuses:
    """A loader that writes every micro-batch into one buffer, as those for CUDA graphs do, or by NumPy."""

    def __init__(self, wrap: Callable[[torch.Tensor], Any], clone: bool, by_numpy: bool = False) -> None:
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


@pytest.mark.parametrize(
    "wrap",
    [lambda x: x, lambda x: x[:, :3], lambda x: {"labels": x}, lambda x: (torch.zeros(1), [{"y": x}])],
    ids=["a tensor", "a view", "a mapping", "nested"],
)
def test_a_loader_that_reuses_its_memory_is_refused(wrap: Callable[[torch.Tensor], Any]) -> None:
    def tensor(batch: Any) -> torch.Tensor:
        while not isinstance(batch, torch.Tensor):
            batch = batch["labels"] if "labels" in batch else batch["y"] if "y" in batch else batch[-1]
        return batch

    message = r"^batches: expected micro-batches with memory of their own"
    for steps, by_numpy in itertools.product((2, 4, 8), (False, True)):
        with pytest.raises(ValueError, match=message):
            list(accumulate(Reuses(wrap, False, by_numpy), steps, targets=tensor))
    for loader, steps in ((Reuses(wrap, clone=True), 4), (Reuses(wrap, clone=False), 1)):
        found = [window.denominator for window in accumulate(loader, steps, targets=tensor)]
        assert sum(found) == (9 if tensor(wrap(torch.zeros(1, 4))).shape[1] == 3 else 10)
    same = [wrap(torch.ones(1, 4, dtype=torch.long))] * 3  # one batch three times is no fault
    assert next(w.denominator for w in accumulate(same, 3, targets=tensor)) in (9, 12)


def test_counting_may_write_into_the_batch() -> None:
    def shifted(batch: torch.Tensor) -> torch.Tensor:
        return batch.masked_fill_(batch == 0, -100)

    loader = [torch.tensor([[1, 0, 2]]), torch.tensor([[0, 0, 2]])]
    assert [window.denominator for window in accumulate(loader, 2, targets=shifted)] == [3]


@pytest.mark.parametrize("denominator", ["tokens", "sequences", 8.0, len])
def test_windows_can_be_sent_to_another_process(denominator: Any) -> None:
    """As a loader is that spawns its workers."""
    windows = xent.torch.accumulate(
        split(sequences([6, 1, 0, 3]), [1] * 4), 2, targets=1, denominator=denominator
    )
    there = pickle.loads(pickle.dumps(windows))
    scales = [[[micro.scale for micro in window] for window in each] for each in (windows, there)]
    assert scales[0] == scales[1]
