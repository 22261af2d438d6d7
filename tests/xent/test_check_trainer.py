"""`xent.torch.check_trainer` on doubles that divide and keep books as transformers' and Lightning's trainers do.

The libraries are not in this environment; `experiments/trainers` measures the real ones, and stores what the check
says of each.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import islice
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softplus
from torch.nn.utils.rnn import pad_sequence

import xent.torch
from records import record
from xent.torch import _trainer_check

IGNORED, WORDS = -100, 7
Batch = dict[str, Tensor]


def network(mixed: bool) -> nn.Module:
    """With dropout, and in the middle of training: with gradients left."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(WORDS, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, WORDS))
    model.to(torch.float32 if mixed else torch.float64)[3].weight.sum().backward()
    return model


# ---------------------------------------------------------------- examples, what makes batches of them, losses


def dataset(*lengths: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(WORDS, (n,), generator=generator) for n in lengths]


def collate(examples: list[Tensor], masked: float = 0.0) -> Batch:
    labels = pad_sequence(examples, batch_first=True, padding_value=IGNORED)
    inputs, hidden = labels.clamp(min=0), torch.rand(labels.shape) < masked
    prompts = {"prompts": inputs[:, :2], "prompt_attention_mask": torch.ones_like(inputs[:, :2])}
    return {"input_ids": inputs, "labels": labels.masked_fill(hidden, IGNORED), **prompts}


def columns(examples: list[Tensor]) -> list[Tensor]:
    """As PyTorch's own collator of rows that are tuples, here the two ends of a row."""
    return [torch.stack([row[:2] for row in examples]), torch.stack([row[-2:] for row in examples])]


RAGGED = dataset(9, 7, 3, 2, 6, 5, 2, 4)  # two rows each, in windows of four micro-batches
PAIRS = [RAGGED[i : i + 2] for i in range(0, 8, 2)]
MICRO: list[Any] = [*map(collate, PAIRS)]


def targets(batch: Batch, first: int = 1) -> Tensor:
    return (batch["labels"][:, first:] != IGNORED).sum()


def mean(model: Any, batch: Batch, count: Any = None) -> Tensor:
    """The losses' sum over a count, by default that of the batch; position i predicts label i + 1."""
    logits = model(batch["input_ids"])[:, :-1].flatten(0, 1)
    total = cross_entropy(logits, batch["labels"][:, 1:].flatten(), ignore_index=IGNORED, reduction="sum")
    return total / (count or targets(batch))


# Of a model, a batch and the count that the Trainer gives, if it gives one.
LOSS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "right": mean,
    "a mean": lambda model, batch, count: mean(model, batch),  # which the Trainer takes for divided
    "needs the count": lambda model, batch, count: mean(model, batch, 1) / count,
    "a sum without": lambda model, batch, count: mean(model, batch, count or 1),
    "over 50": lambda model, batch, count: mean(model, batch, 50),
    "of columns": lambda model, batch, count: mean(model, {"input_ids": batch[0], "labels": batch[1]}),
    # As DPO's: first what was chosen, then what was rejected.
    "of pairs": lambda model, batch, count: softplus(
        model(batch["input_ids"]).unflatten(0, (2, -1)).diff(dim=0)
    ).mean(),
}


# ---------------------------------------------------------------- the doubles


class Trainer:
    """As transformers' Trainer, between two optimizer steps.

    With `lmbda` as TRL's GKD: the student writes replies of random lengths, and the count is that of the loader's
    labels, unless it writes `early`.
    """

    generation_config, inside = None, False

    def __init__(
        self, data: Any = RAGGED, loss: str = "right", collator: Any = collate, count: Any = targets, steps: int = 4,
        rows: int = 2, mixed: bool = False, lmbda: float = 0.0, early: bool = False,
    ) -> None:  # fmt: skip
        self.model = self.model_wrapped = network(mixed)
        self.train_dataset, self.data_collator, self.rows, self.mixed = data, collator, rows, mixed
        self.loss, self.count, self.lmbda, self.early = LOSS[loss], count, lmbda, early
        loader = ("dataloader_num_workers", "dataloader_persistent_workers", "dataloader_prefetch_factor")
        self.args = SimpleNamespace(
            gradient_accumulation_steps=steps, device="cpu", **dict.fromkeys(loader, 2)
        )
        self.accelerator = SimpleNamespace(
            scaler=object(), gradient_state=SimpleNamespace(references=[None]), loaders=[],
            prepare_model=self.prepare_model, no_sync=lambda model: nullcontext(),
        )  # fmt: skip
        self.optimizer: Any = object()
        self.state, self.control = SimpleNamespace(log_history=[{"loss": 1.0}]), SimpleNamespace(logs=0)
        self.metrics = {"train": defaultdict(list, tokens=[5])}

    def prepare_model(self, model: Any) -> Any:
        """Put autocast around the forward pass, as accelerate does."""
        model.forward = torch.autocast("cpu", torch.bfloat16, self.mixed)(model.forward)
        return model

    def get_train_dataloader(self) -> Iterator[Batch]:
        # With others examples are collated out of sight, and PyTorch refuses the rest without them.
        assert not any(value for name, value in vars(self.args).items() if name.startswith("dataloader"))
        self.accelerator.loaders.append(self)
        self.accelerator.gradient_state.references.append(self)
        torch.rand(3)
        starts = range(0, len(self.train_dataset), self.rows)
        return (self.data_collator(self.train_dataset[i : i + self.rows]) for i in starts)

    def get_batch_samples(self, iterator: Any, size: int, device: str) -> tuple[list[Batch], Any]:
        samples = [self.written(batch) if self.early else batch for batch in islice(iterator, size)]
        return samples, self.count and sum(map(self.count, samples))

    def written(self, inputs: Batch) -> Batch:
        reply = self.generate_on_policy_outputs(self.model, inputs, self.generation_config)
        return inputs | dict(zip(("input_ids", "attention_mask", "labels"), reply, strict=True))

    def generate_on_policy_outputs(self, model: Any, inputs: Batch, config: Any) -> tuple[Tensor, ...]:
        rows = [torch.cat([p, torch.randint(WORDS, (random.randint(3, 15),))]) for p in inputs["prompts"]]
        batch = collate(rows)
        mask = (batch["labels"] != IGNORED).long()
        batch["labels"][:, :2] = IGNORED
        return batch["input_ids"], mask, batch["labels"]

    def training_step(self, model: nn.Module, inputs: Batch, count: Any = None) -> None:
        model.train()
        assert (
            self.accelerator.scaler is self.optimizer is None
        )  # without a schedule it would move the weights
        self.control.logs += 1
        inputs = self.written(inputs) if random.random() < self.lmbda else inputs
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, self._prepare_inputs(inputs), num_items_in_batch=count)
        (loss if self.count else loss / self.current_gradient_accumulation_steps).backward()  # type: ignore

    def _prepare_inputs(self, inputs: Batch) -> Batch:
        return {**inputs, "prepared": torch.ones(())}

    def compute_loss_context_manager(self) -> Any:
        return mock.patch.object(self, "inside", True)

    def compute_loss(self, model: nn.Module, inputs: Batch, num_items_in_batch: Any = None) -> Any:
        assert self.inside and "prepared" in inputs
        self.metrics["train"]["tokens"].append(inputs["input_ids"].numel())
        self.state.log_history.append({})
        return self.loss(model, inputs, num_items_in_batch)


def counted(module: Any, batch: tuple[Batch, int], index: int) -> Any:
    """The count of the window comes with each batch."""
    return mean(module, *batch) * module._trainer.accumulate_grad_batches


def by_hand(module: Any, batch: Batch, index: int, every: int = 4, inside: bool = False) -> None:
    """Divide by steps of one's own; with `inside`, clear the gradient in the window."""
    optimizer, scheduler = module.optimizers(), module.lr_schedulers()
    if inside:
        optimizer.zero_grad()
    module.manual_backward(mean(module, batch) / every)
    scheduler.step()
    if (index + 1) % every == 0 and optimizer.param_groups[0]["lr"] >= 0:
        optimizer.step()
        optimizer.zero_grad()


def lightning(
    step: Any = "a mean", batches: Any = None, steps: int = 4, mixed: bool = False, automatic: bool = True
) -> tuple[Any, Any]:
    """As Lightning's Trainer, and a module that it has not met; `step` is the name of a loss or a training step."""
    module: Any = network(mixed)

    def training_step(batch: Any) -> dict[str, Tensor]:
        module.log("loss")  # which is there while a loop is running
        return {"loss": LOSS[step](module, batch, None)}

    def divided(output: Any, steps: int) -> Any:
        return SimpleNamespace(closure_loss=(output["loss"] if isinstance(output, dict) else output) / steps)

    own = partial(step, module) if callable(step) else training_step
    vars(module).update(
        training_step=own, train_dataloader=lambda: iter(batches), automatic_optimization=automatic
    )
    loop = SimpleNamespace(output_result_cls=SimpleNamespace(from_training_step_output=divided))
    context = partial(torch.autocast, "cpu", torch.bfloat16, mixed)
    return SimpleNamespace(
        fit_loop=SimpleNamespace(epoch_loop=SimpleNamespace(automatic_optimization=loop)), lightning_module=None,
        accumulate_grad_batches=steps, precision_plugin=SimpleNamespace(train_step_context=context),
    ), module  # fmt: skip


def met(trainer: Any, module: Any) -> Any:
    trainer.lightning_module = module
    return trainer


# ---------------------------------------------------------------- the table

MEANS = "^a mean of means over the micro-batches: each weighs the same"
ALONE, NONE = MEANS + "[^;]*$", "^none: the micro-batches add up to the whole batch$"
N = int(sum(map(targets, MICRO)))
MANUAL = partial(lightning, steps=1, automatic=False)
UNLIKE = "^ValueError: batches: expected dictionaries, or tensors of one width, got the shapes "

# Name: what is handed over, batches, and what the report says, or the refusal.
TRAINERS: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "right": (Trainer, None, NONE),
    "right, a sum over the count": (lambda: Trainer(loss="needs the count"), None, "^none"),
    "right, a sum without a count": (lambda: Trainer(loss="a sum without"), None, "^none"),
    "right, a window from further on": (lambda: Trainer(dataset(*[5] * 20) + RAGGED), None, NONE),
    "equal counts": (lambda: Trainer(dataset(*[5] * 40)), None, "^none: .* so would a mean of means with these equal"),
    "right, masked at random": (lambda: Trainer(collator=partial(collate, masked=0.3)), None, NONE),
    "right, examples are batches": (lambda: Trainer(MICRO, collator=lambda some: some[0], rows=1), None, NONE),
    "right, pairs": (lambda: Trainer(
        loss="of pairs", collator=lambda some: {"input_ids": torch.cat(columns(some))}, count=None), None, "^none"),
    "right, mixed precision": (lambda: Trainer(mixed=True), None, "^none: .* within 0.016, which is rounding"),
    "right, given": (lambda: Trainer(None, steps=1), tuple(MICRO[:3]), NONE),
    "right, given endlessly": (lambda: Trainer(None), (MICRO[i % 3] for i in range(10**9)), NONE),
    "no count, given": (lambda: Trainer(None, count=None), MICRO[:3], ALONE),
    "before the shift": (lambda: Trainer(count=partial(targets, first=0)), None,
        "0.7895 .* divided by the 38 labels before the shift, not by the 30 targets$"),
    "a count that is dropped": (lambda: Trainer(loss="a mean"), None, MEANS + ".*; and K = 4 times"),
    "a count that is dropped, mixed precision": (lambda: Trainer(loss="a mean", mixed=True), None, MEANS),
    "no count": (lambda: Trainer(count=None), None, ALONE),
    "on-policy": (lambda: Trainer(lmbda=0.5), None,
        "divided by the 30 labels of the loader's batch, before the reply was generated, not by the"),
    "on-policy, counted when written": (lambda: Trainer(lmbda=0.5, early=True), None, "^none"),
    "Lightning": (lambda: lightning(batches=MICRO), None, ALONE),
    "Lightning, alone": (lambda: met(*lightning(batches=MICRO)), None, ALONE),
    "Lightning, right": (lambda: lightning(counted, [(batch, N) for batch in MICRO]), None, "^none"),
    "Lightning, a sum": (lambda: lightning("over 50", MICRO), None, "^none"),
    "Lightning, columns": (lambda: lightning("of columns", [*map(columns, PAIRS)]), None, "^none: .* equal counts"),
    "Lightning, mixed precision": (lambda: lightning("over 50", MICRO, mixed=True), None, "^none: .* within 0.016"),
    "Lightning, manual": (lambda: MANUAL(by_hand), [*MICRO, "which nobody reads"], ALONE),
    "Lightning, manual, clears": (lambda: MANUAL(partial(by_hand, inside=True), MICRO), None, "^only the last micro"),
    "Lightning, a short window": (
        lambda: lightning(steps=8), MICRO, "0.5 of what it should be: divided by 8, for a window of 4$"),
    "neither": (lambda: 3, None, "^TypeError: trainer: expected a transformers.Trainer, or .* got int; check_acc"),
    "no module": (lambda: (lightning()[0], None), None, r"^TypeError: .* or \(lightning.*, got Simple\w*, NoneType; "),
    "no data": (lambda: Trainer(None), None, r"^ValueError: .*training data, got none \(object of type 'NoneType' has"),
    "less than a window": (lambda: Trainer(RAGGED[:6]), None, "^ValueError: .* 4 micro-batches, one window, got 3"),
    "nothing accumulated": (lambda: Trainer(steps=1), None, "^ValueError: .*_accumulation_steps of 2 .*, got 1: noth"),
    "nothing accumulated, given": (lambda: Trainer(None, steps=1), iter(()), "^ValueError: .* 2 or more, got 1: noth"),
    "less given": (lambda: Trainer(None), iter(MICRO[:3]), "^ValueError: batches: expected 4 micro-.* got 3"),
    "a loss that fails": (lambda: Trainer(loss="needs the count", count=None), None, "^TypeError: unsupported operand"),
    "Lightning, no data": (lightning, None, "^ValueError: .*training data, got none .* batches="),
    "Lightning, nothing accumulated": (
        lambda: lightning(batches=MICRO, steps=1), None, "^ValueError: .*accumulate_grad_batches of 2 or more, got 1"),
    "Lightning, manual, no step": (
        lambda: MANUAL(partial(by_hand, every=99), MICRO), None, "^ValueError: .*optimizer's step .* got 0 steps in 4"),
    "unlike widths": (lightning, [(torch.ones(1, n),) for n in (2, 3)], UNLIKE + r"\(1, 2\), \(1, 3"),
    "unlike widths, deeper": (
        lightning, [{"x": torch.ones(1, 3, n)} for n in (4, 5)], UNLIKE + r"\(1, 3, 4\), \(1, 3, 5\)"),
    "unlike texts": (lightning, [{"x": torch.ones(1, 2), "k": k} for k in "ab"],
        "^ValueError: batches: expected tensors, got strs that differ in 'k'"),
}  # fmt: skip


def state(handed: Any) -> list[Any]:
    """What must be as it was: numbers, every attribute, random states."""
    owners = handed if isinstance(handed, tuple) else (handed,)
    held = [thing for owner in owners for thing in (owner, *getattr(owner, "__dict__", {}).values())]
    modules = [module for model in held if isinstance(model, nn.Module) for module in model.modules()]
    numbers = [(p.tolist(), id(p.grad), repr(p.grad)) for module in modules for p in module.parameters()]
    books = [repr(vars(thing)) for thing in (*owners, *modules) if hasattr(thing, "__dict__")]
    numpy = np.random.get_state()[1].tolist()  # type: ignore[index, union-attr] # noqa: NPY002
    return [numbers, books, random.getstate(), numpy, torch.get_rng_state().tolist()]


@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainer_is_judged_as_it_is_or_refused_and_left_as_it_was(name: str) -> None:
    """Dropout is on, metrics are kept, a loader registers itself: none of it is left, and none of it misleads."""
    build, batches, says = TRAINERS[name]
    handed = build()
    before, right = state(handed), False
    try:
        report = xent.torch.check_trainer(handed, batches)
        right, found = report.ok, report.cause
    except Exception as refusal:
        found = f"{type(refusal).__name__}: {refusal}"
    assert right is says.startswith("^none") and re.search(says, found), found
    assert state(handed) == before


@mock.patch.object(_trainer_check, "ranks_of", lambda: 2)
def test_a_window_of_one_on_each_rank_is_the_first() -> None:
    assert _trainer_check._window(iter(MICRO), SimpleNamespace(steps=1), "steps") == (MICRO[:1], [0])


def test_the_example_is_what_the_experiment_recorded() -> None:
    (row,) = (row for row in record("trainers/result")["rows"] if row["recipe"] == "Trainer, GPT-2")
    shown = " ".join((xent.torch.check_trainer.__doc__ or "").split())
    assert shown.endswith(
        f'records it, ``check_trainer(trainer).cause`` is "{row["check_trainer"]["cause"]}".'
    )
