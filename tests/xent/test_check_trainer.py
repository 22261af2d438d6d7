"""`xent.torch.check_trainer` on doubles that divide and keep books as transformers' and Lightning's trainers do.

The libraries are not in this environment; `experiments/trainers` measures the real ones, and stores what the check
says of each.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

import xent.torch
from xent.torch._trainer_check import _window

IGNORED, WORDS = -100, 7
Batch = dict[str, Tensor]


class Model(nn.Module):
    """A causal model of labels that it shifts itself, with dropout, and without knowledge of what it reads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.dropout = nn.Embedding(WORDS, 6), nn.Dropout(0.5)
        self.head = nn.Linear(6, WORDS)
        self.double().train()

    def forward(self, input_ids: Tensor, labels: Tensor, count: Tensor | None = None) -> Tensor:
        logits = self.head(self.dropout(self.embedding(input_ids).tanh()))[:, :-1].flatten(0, 1)
        loss = cross_entropy(logits, labels[:, 1:].flatten(), ignore_index=IGNORED, reduction="sum")
        return loss / (count if count is not None else (labels[:, 1:] != IGNORED).sum())


def collate(examples: list[Tensor]) -> Batch:
    labels = pad_sequence(examples, batch_first=True, padding_value=IGNORED)
    return {"input_ids": labels.clamp(min=0), "labels": labels}


def dataset(lengths: list[int]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(WORDS, (n,), generator=generator) for n in lengths]


RAGGED = [9, 7, 3, 2, 6, 5, 2, 4]  # two rows each, in windows of four micro-batches
EVEN = [5] * 40


class Trainer:
    """As transformers' Trainer, between two optimizer steps."""

    shifts, takes_count = True, True

    def __init__(self, lengths: list[int] | None, model: nn.Module | None = None, steps: int = 4) -> None:
        self.model = self.model_wrapped = model or Model()
        self.train_dataset: Any = None if lengths is None else dataset(lengths)
        self.data_collator: Callable[[list[Any]], Any] = collate
        self.args = SimpleNamespace(
            gradient_accumulation_steps=steps, device="cpu", dataloader_num_workers=3,
            dataloader_persistent_workers=True, dataloader_prefetch_factor=2,
        )  # fmt: skip
        self.accelerator = SimpleNamespace(
            scaler=object(), gradient_state=SimpleNamespace(references=[None]), loaders=[]
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.state = SimpleNamespace(global_step=3, log_history=[{"loss": 1.0}])
        self.metrics: dict[str, Any] = {"train": defaultdict(list), "eval": defaultdict(list)}
        self.metrics["train"]["tokens"].append(5)
        self.tokens_seen, self.current_gradient_accumulation_steps = 5, 1

    def get_train_dataloader(self) -> Iterator[Batch]:
        if self.train_dataset is None:
            raise ValueError("Trainer: training requires a train_dataset.")
        assert self.args.dataloader_num_workers == 0  # or examples are collated out of sight
        if self.args.dataloader_persistent_workers or self.args.dataloader_prefetch_factor:  # as torch's
            raise ValueError("option needs num_workers > 0")
        self.accelerator.loaders.append(self)
        return self.loader()

    def loader(self) -> Iterator[Batch]:
        self.accelerator.gradient_state.references.append(
            self
        )  # as accelerate, which takes it back at the end
        rows = list(self.train_dataset)
        torch.rand(3)
        for i in range(0, len(rows), 2):
            yield self.data_collator(rows[i : i + 2])
        self.accelerator.gradient_state.references.pop()

    def get_batch_samples(
        self, iterator: Iterator[Batch], size: int, device: str
    ) -> tuple[list[Batch], Tensor | None]:
        samples = [batch for _, batch in zip(range(size), iterator, strict=False)]
        if not self.takes_count:
            return samples, None
        labels = (b["labels"][:, 1:] if self.shifts else b["labels"] for b in samples)
        return samples, torch.stack([(y != IGNORED).sum() for y in labels]).sum()

    def training_step(self, model: nn.Module, inputs: Batch, count: Tensor | None = None) -> Tensor:
        model.train()
        assert not hasattr(self.optimizer, "train") and self.accelerator.scaler is None
        self.state.global_step += 1
        loss = self.compute_loss(model, self._prepare_inputs(inputs), num_items_in_batch=count)
        if not self.takes_count:
            loss = loss / self.current_gradient_accumulation_steps
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _prepare_inputs(self, inputs: Batch) -> Batch:
        return dict(inputs)

    def compute_loss_context_manager(self) -> Any:
        return nullcontext()

    def compute_loss(self, model: nn.Module, inputs: Batch, num_items_in_batch: Any = None) -> Tensor:
        self.metrics["train"]["tokens"].append(inputs["input_ids"].numel())
        self.state.log_history.append({})
        self.tokens_seen += 1
        loss: Tensor = model(inputs["input_ids"], inputs["labels"], num_items_in_batch)
        return loss


class Unshifted(Trainer):  # counts labels before the shift, as for GPT-2
    shifts = False


class Uncounted(Trainer):
    takes_count = False


class Drops(Trainer):
    """Returns a mean, and the Trainer takes it for divided."""

    def compute_loss(self, model: nn.Module, inputs: Batch, num_items_in_batch: Any = None) -> Tensor:
        return super().compute_loss(model, inputs)


class Insists(Trainer):
    """A sum over the count, which has no value without one."""

    def compute_loss(self, model: nn.Module, inputs: Batch, num_items_in_batch: Any = None) -> Tensor:
        return (
            super().compute_loss(model, inputs)
            * (inputs["labels"][:, 1:] != IGNORED).sum()
            / num_items_in_batch
        )


class SaysSo(Insists):
    """The same, which asks for the count."""

    def compute_loss(self, model: nn.Module, inputs: Batch, num_items_in_batch: Any = None) -> Tensor:
        if num_items_in_batch is None:
            raise ValueError("num_items_in_batch is needed")
        return super().compute_loss(model, inputs, num_items_in_batch)


class LeavesASum(Trainer):
    """A sum over the count where there is one, and a sum otherwise."""

    def compute_loss(self, model: nn.Module, inputs: Batch, num_items_in_batch: Any = None) -> Tensor:
        return super().compute_loss(model, inputs, num_items_in_batch or torch.tensor(1))


class Older(Trainer):
    """Before 4.49 the device was not asked for."""

    def get_batch_samples(self, iterator: Any, size: int) -> Any:  # type: ignore[override]
        return super().get_batch_samples(iterator, size, "cpu")


class OnPolicy(Trainer):
    """As TRL's GKD: the student writes replies of random lengths, and the count is that of the loader's labels."""

    lmbda, generation_config, first_counted = 0.5, None, False

    def get_batch_samples(self, iterator: Any, size: int, device: str) -> Any:
        samples, count = super().get_batch_samples(iterator, size, device)
        if not self.first_counted:
            return samples, count
        return super().get_batch_samples(iter([self.written(b) for b in samples]), size, device)

    def training_step(self, model: nn.Module, inputs: Batch, count: Tensor | None = None) -> Tensor:
        if not self.first_counted and random.random() <= self.lmbda:
            inputs = self.written(inputs)
        return super().training_step(model, inputs, count)

    def written(self, inputs: Batch) -> Batch:
        inputs = {**inputs, "prompts": inputs["input_ids"][:, :2]}
        inputs["prompt_attention_mask"] = torch.ones_like(inputs["prompts"])
        tokens, mask, labels = self.generate_on_policy_outputs(self.model, inputs, self.generation_config)
        return {"input_ids": tokens, "attention_mask": mask, "labels": labels}

    @staticmethod
    def generate_on_policy_outputs(model: Any, inputs: Batch, config: Any) -> tuple[Tensor, Tensor, Tensor]:
        prompts = inputs["prompts"]
        lengths = [random.randint(3, 15) for _ in prompts]
        rows = [torch.cat([p, torch.randint(WORDS, (n,))]) for p, n in zip(prompts, lengths, strict=True)]
        tokens = pad_sequence(rows, batch_first=True)
        mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
        labels = tokens.where(mask == 1, IGNORED)
        labels[:, : prompts.shape[1]] = IGNORED
        return tokens, mask, labels


class WithPrompts(OnPolicy):
    """What its loader gives has the prompts, as GKD's collator does."""

    def __init__(self, lengths: list[int]) -> None:
        super().__init__(lengths)
        self.data_collator = with_prompts


def with_prompts(examples: list[Tensor]) -> Batch:
    batch = collate(examples)
    prompts = torch.stack([row[:2] for row in examples])
    return batch | {"prompts": prompts, "prompt_attention_mask": torch.ones_like(prompts)}


class Repaired(WithPrompts):
    first_counted = True


MEANS = "^a mean of means over the micro-batches: each weighs the same"
TRAINERS: dict[str, tuple[Callable[[], Trainer], bool, str]] = {
    "right": (lambda: Trainer(RAGGED), True, "^none: the micro-batches add up to the whole batch$"),
    "right, an older one": (lambda: Older(RAGGED), True, "^none"),
    "right, a stream that can be read again": (lambda: streaming(Endless(RAGGED)), True, "^none"),
    "right, a sum over the count": (lambda: Insists(RAGGED), True, "^none"),
    "right, a sum that asks for the count": (lambda: SaysSo(RAGGED), True, "^none"),
    "right, a sum without a count": (lambda: LeavesASum(RAGGED), True, "^none"),
    "right, a window from further on": (lambda: Trainer([5] * 20 + RAGGED), True, "^none[^;]*$"),
    "before the shift": (lambda: Unshifted(RAGGED), False,
                         "0.7895 .* divided by the 38 labels before the shift, not by the 30 targets$"),
    "a count that is dropped": (lambda: Drops(RAGGED), False, MEANS + ".*; and K = 4 times"),
    "no count": (lambda: Uncounted(RAGGED), False, MEANS + "[^;]*$"),
    "on-policy": (lambda: WithPrompts(RAGGED), False,
                  "divided by the 30 labels of the loader's batch, before the reply was generated, not by the"),
    "on-policy, counted when written": (lambda: Repaired(RAGGED), True, "^none"),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainer_is_judged_as_it_is_and_left_as_it_was(name: str) -> None:
    """Dropout is on, metrics are kept, a loader registers itself: none of it is left, and none of it misleads."""
    build, right, says = TRAINERS[name]
    trainer = build()
    model = trainer.model
    cross_entropy(model.head(torch.ones(2, 6).double()), torch.tensor([0, 1])).backward()  # type: ignore[operator]
    trainer.optimizer.step()
    held = model.head.weight.grad  # type: ignore[union-attr]

    def state() -> list[Any]:
        kept = [p.detach().tolist() for p in model.parameters()]
        gradients = [None if p.grad is None else p.grad.tolist() for p in model.parameters()]
        books = [
            repr({k: v for k, v in vars(trainer).items() if k != "train_dataset"}),
            repr(trainer.accelerator),
            repr(trainer.optimizer.state_dict()),
            [module.training for module in model.modules()],
            sorted(vars(model)),
        ]
        numpy = np.random.get_state()[1].tolist()  # type: ignore[index, union-attr] # noqa: NPY002
        return [kept, gradients, *books, random.getstate(), numpy, torch.get_rng_state().tolist()]

    before = state()
    report = xent.torch.check_trainer(trainer)
    assert report.ok is right
    assert re.search(says, report.cause), report.cause
    assert state() == before
    assert model.head.weight.grad is held  # type: ignore[union-attr]


def test_the_example_is_what_the_experiment_recorded() -> None:
    record = Path(__file__).parents[2] / "experiments" / "trainers" / "result.json"
    (row,) = (r for r in json.loads(record.read_text())["rows"] if r["recipe"] == "Trainer, GPT-2")
    shown = " ".join((xent.torch.check_trainer.__doc__ or "").split())
    assert shown.endswith(f"as `experiments/trainers` records it:: {row['check_trainer']['cause']}")


def test_the_state_is_put_back_when_a_step_fails() -> None:
    class Fails(Trainer):
        def training_step(self, *arguments: Any) -> Tensor:
            super().training_step(*arguments)
            raise RuntimeError("out of memory")

    trainer = Fails(RAGGED)
    before = repr(vars(trainer))
    with pytest.raises(RuntimeError, match="out of memory"):
        xent.torch.check_trainer(trainer)
    assert repr(vars(trainer)) == before
    assert trainer.model.training and all(p.grad is None for p in trainer.model.parameters())


def test_batches_that_a_user_gives_are_one_window() -> None:
    micro = [collate(dataset(lengths)) for lengths in ([9, 7], [3, 2], [6, 5])]
    assert xent.torch.check_trainer(Trainer(None), micro).ok
    assert xent.torch.check_trainer(Trainer(None, steps=1), tuple(micro)).ok
    report = xent.torch.check_trainer(Uncounted(None), micro)
    assert re.search(MEANS + "[^;]*$", report.cause)
    endless = (micro[i % 3] for i in range(10**9))  # of another iterable, as many as it accumulates
    assert xent.torch.check_trainer(Trainer(None), endless).ok


def test_a_collator_that_masks_at_random_is_not_asked_twice() -> None:
    trainer = Trainer(RAGGED)

    def masked(examples: list[Tensor]) -> Batch:
        batch = collate(examples)
        batch["labels"] = batch["labels"].masked_fill(torch.rand(batch["labels"].shape) < 0.3, IGNORED)
        return batch

    trainer.data_collator = masked
    assert xent.torch.check_trainer(trainer).ok


def test_a_window_of_one_on_each_rank_is_the_first() -> None:
    micro = [collate(dataset(lengths)) for lengths in ([9, 7], [3, 2])]
    assert _window(micro, 1) == (micro[:1], [0])


class Endless:
    """A dataset that is read as a stream, from its beginning each time."""

    def __init__(self, lengths: list[int]) -> None:
        self.rows = dataset(lengths)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.rows)


def streaming(rows: Any) -> Trainer:
    trainer = Trainer(RAGGED)
    trainer.train_dataset = rows
    return trainer


def test_an_iterator_is_refused_before_it_is_read() -> None:
    rows = iter(dataset(RAGGED))
    with pytest.raises(ValueError, match=r"its train_dataset is an iterator, .* expected .* batches="):
        xent.torch.check_trainer(streaming(rows))
    assert len(list(rows)) == len(RAGGED)


@pytest.mark.parametrize(
    ("trainer", "arguments", "error", "message"),
    [
        (lambda: 3, {}, TypeError, "trainer: expected a transformers.Trainer, or .* got int; check_acc"),
        (lambda: Trainer(None), {}, ValueError, "expected training data, got none .*requires a train_data"),
        (lambda: Trainer([]), {}, ValueError, "at least 4 micro-batches, one window, got 0"),
        (lambda: Trainer(RAGGED[:6]), {}, ValueError, "at least 4 micro-batches, one window, got 3"),
        (lambda: streaming(Endless(RAGGED[:4])), {}, ValueError, "one window, got 2"),
        (lambda: Trainer(EVEN), {}, ValueError, "unlike numbers of labels, got 20 with 10 each, which hide"),
        (lambda: Trainer(EVEN * 9), {}, ValueError, "unlike numbers of labels, got 68 with 10 each"),
        (lambda: Trainer(RAGGED, steps=1), {}, ValueError, "steps of 2 or more, got 1: nothing is accum"),
        (lambda: Trainer(None, steps=1), {"batches": iter(())}, ValueError, "got 1: nothing is accumulated"),
        (lambda: Trainer(None), {"batches": 3}, TypeError, "batches: expected an iterable .* got int"),
        (lambda: Trainer(None), {"batches": []}, ValueError, "batches: expected 4 micro-.* got 0"),
        (lambda: Trainer(None), {"batches": iter([collate(dataset([3]))] * 3)}, ValueError, "4 .* got 3"),
        (lambda: Trainer(RAGGED), {"tolerance": 2}, ValueError, "tolerance: expected a number in .*, got 2"),
    ],
)  # fmt: skip
def test_bad_input(
    trainer: Callable[[], Any], arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    """A clear error, and the trainer as it was."""
    given = trainer()
    before = repr(vars(given)) if isinstance(given, Trainer) else None
    with pytest.raises(error, match=message):
        xent.torch.check_trainer(given, **arguments)
    assert before is None or repr(vars(given)) == before


# ---------------------------------------------------------------- Lightning


class Module(nn.Module):
    """As a LightningModule that a Trainer has not met."""

    automatic_optimization, _trainer = True, None

    def __init__(self, lengths: list[int] | None = RAGGED) -> None:
        super().__init__()
        self.model, self.lengths = Model(), lengths

    @property
    def trainer(self) -> Any:
        if self._trainer is None:
            raise RuntimeError("not attached to a Trainer")
        return self._trainer

    def log(self, *_: Any) -> None:
        raise RuntimeError("the loop is not running")

    def train_dataloader(self) -> list[Any]:
        if self.lengths is None:
            raise RuntimeError("`train_dataloader` must be implemented")
        rows = dataset(self.lengths)
        return [collate(rows[i : i + 2]) for i in range(0, len(rows), 2)]

    def training_step(self, batch: Batch, index: int) -> Any:
        loss = self.model(batch["input_ids"], batch["labels"])
        self.log("loss", loss)
        return {"loss": loss}


class Sums(Module):
    """A sum over a constant: its part of Lightning's division is no fault."""

    def training_step(self, batch: Batch) -> Any:  # type: ignore[override]
        return self.model(batch["input_ids"], batch["labels"], torch.tensor(50))


class Counted(Module):
    """The count of the window comes with each batch."""

    def train_dataloader(self) -> list[Any]:
        batches = super().train_dataloader()
        count = sum(int((b["labels"][:, 1:] != IGNORED).sum()) for b in batches)
        return [(batch, count) for batch in batches]

    def training_step(self, counted: tuple[Batch, int], index: int) -> Any:  # type: ignore[override]
        batch, count = counted
        return (
            self.model(batch["input_ids"], batch["labels"], torch.tensor(count))
            * self.trainer.accumulate_grad_batches
        )


class Manual(Module):
    """Divides by its own steps; with `inside`, it clears the gradient in the window."""

    automatic_optimization, inside = False, False

    def training_step(self, batch: Batch, index: int) -> None:
        optimizer = self.optimizers()  # type: ignore[operator]
        if self.inside:
            optimizer.zero_grad()
        self.manual_backward(self.model(batch["input_ids"], batch["labels"]) / 4)  # type: ignore[operator]
        if (index + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


class Clears(Manual):
    inside = True


class Never(Manual):
    def training_step(self, batch: Batch, index: int) -> None:
        self.manual_backward(self.model(batch["input_ids"], batch["labels"]))  # type: ignore[operator]


class Divided:
    def __init__(self, output: Any, normalize: int) -> None:
        self.closure_loss = (output["loss"] if isinstance(output, dict) else output) / normalize

    from_training_step_output = classmethod(lambda cls, output, normalize=1: cls(output, normalize))


def lightning(steps: int = 4) -> Any:
    loop = SimpleNamespace(automatic_optimization=SimpleNamespace(output_result_cls=Divided))
    return SimpleNamespace(
        fit_loop=SimpleNamespace(epoch_loop=loop), accumulate_grad_batches=steps, lightning_module=None,
        precision_plugin=SimpleNamespace(train_step_context=nullcontext),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("module", "steps", "right", "says"),
    [
        (Module, 4, False, MEANS + "[^;]*$"),
        (Sums, 4, True, "^none"),
        (Counted, 4, True, "^none"),
        (Manual, 1, False, MEANS + "[^;]*$"),
        (Clears, 1, False, "^only the last micro-batch is left"),
    ],
)
def test_a_lightning_pair(module: type[Module], steps: int, right: bool, says: str) -> None:
    net, trainer = module(), lightning(steps)
    before = sorted(vars(net))
    report = xent.torch.check_trainer((trainer, net))
    assert report.ok is right and re.search(says, report.cause), report.cause
    assert sorted(vars(net)) == before and all(m.training for m in net.modules())
    assert all(p.grad is None for p in net.parameters())
    trainer.lightning_module = net  # and one that has met its module
    assert xent.torch.check_trainer(trainer).cause == report.cause


def test_a_short_window_that_is_divided_as_a_full_one() -> None:
    report = xent.torch.check_trainer((lightning(8), Module(None)), Module().train_dataloader())
    assert report.cause.endswith("0.5 of what it should be: divided by 8, for a window of 4")


@pytest.mark.parametrize(
    ("pair", "arguments", "error", "message"),
    [
        ((lightning(), None), {}, TypeError, r"with its module, \(trainer, module\), got no module"),
        ((lightning(), Module(None)), {}, ValueError, "expected training data, got none .* batches="),
        ((lightning(1), Module()), {}, ValueError, "accumulate_grad_batches of 2 or more, got 1"),
        ((lightning(6), Module()), {}, ValueError, "expected 6 micro-batches, one window, got 4"),
        ((lightning(1), Never()), {}, ValueError, "its optimizer's step .* got 0 steps in 4; check_accum"),
        ((lightning(), Module()), {"batches": [(torch.ones(1, 2),), (torch.ones(1, 3),)]}, ValueError,
         r"tensors of one width, got the shapes \(1, 2\), \(1, 3\)"),
        ((lightning(), Module()), {"batches": [{"frames": torch.ones(1, 3, width)} for width in (4, 5)]}, ValueError,
         r"tensors of one width, got the shapes \(1, 3, 4\), \(1, 3, 5\)"),
        ((lightning(), Module()), {"batches": [{"input_ids": torch.ones(1, 2), "k": k} for k in "ab"]},
         ValueError, "expected tensors, got strs that differ in 'k'"),
    ],
)  # fmt: skip
def test_a_lightning_pair_that_cannot_be_judged(
    pair: Any, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        xent.torch.check_trainer(pair, **arguments)
    if pair[1] is not None:
        assert "log" not in vars(pair[1]) and all(p.grad is None for p in pair[1].parameters())


def test_no_library_is_imported() -> None:
    names = "('transformers', 'lightning', 'trl', 'accelerate')"
    code = f"import sys, xent.torch; print([m for m in {names} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
