"""`xent.torch.check_trainer` on doubles that divide and keep books as transformers' and Lightning's trainers do.

The libraries are not in this environment; `experiments/trainers` measures the real ones, and stores what the check
says of each.
"""

from __future__ import annotations

import random
import re
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


def dataset(*lengths: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(WORDS, (n,), generator=generator) for n in lengths]


def collate(examples: list[Tensor], masked: float = 0.0) -> Batch:
    labels = pad_sequence(examples, batch_first=True, padding_value=IGNORED)
    inputs, hidden = labels.clamp(min=0), torch.rand(labels.shape) < masked
    prompts = {"prompts": inputs[:, :2], "prompt_attention_mask": torch.ones_like(inputs[:, :2])}
    return {"input_ids": inputs, "labels": labels.masked_fill(hidden, IGNORED), **prompts}


RAGGED = dataset(9, 7, 3, 2, 6, 5, 2, 4)  # two rows each, in windows of four micro-batches
MICRO = [collate(RAGGED[i : i + 2]) for i in range(0, 8, 2)]


def targets(batch: Batch, first: int = 1) -> Tensor:
    return (batch["labels"][:, first:] != IGNORED).sum()


def mean(model: Any, batch: Batch, count: Any = None) -> Tensor:
    """The losses' sum over a count, by default that of the batch; position i predicts label i + 1."""
    logits = model(batch["input_ids"])[:, :-1].flatten(0, 1)
    total = cross_entropy(logits, batch["labels"][:, 1:].flatten(), ignore_index=IGNORED, reduction="sum")
    return total / (count or targets(batch))


class Trainer:
    """As transformers' Trainer between two optimizer steps; with `lmbda`, as TRL's GKD, whose student writes replies
    of random lengths, `early` or after the labels are counted.
    """

    def __init__(
        self, data: Any = RAGGED, loss: Any = mean, collator: Any = collate, count: Any = targets, steps: int = 4,
        rows: int = 2, mixed: bool = False, lmbda: float = 0.0, early: bool = False,
    ) -> None:  # fmt: skip
        self.model = self.model_wrapped = network(mixed)
        self.train_dataset, self.data_collator, self.rows, self.mixed = data, collator, rows, mixed
        self.loss, self.count, self.early, self.inside = loss, count, early, False
        if lmbda:  # which no other Trainer has
            self.lmbda, self.generation_config, self.generate_on_policy_outputs = lmbda, None, self.generate
        self.args = SimpleNamespace(gradient_accumulation_steps=steps, device="cpu", dataloader_num_workers=3)
        vars(self.args).update(dataloader_persistent_workers=True, dataloader_prefetch_factor=2)
        self.accelerator = SimpleNamespace(scaler=object(), no_sync=nullcontext, prepare_model=self.cast)
        self.accelerator.gradient_state, self.accelerator.loaders = SimpleNamespace(references=[None]), []
        self.state, self.control = SimpleNamespace(log_history=[{"loss": 1.0}]), SimpleNamespace(logs=0)
        self.optimizer, self.metrics = object(), {"train": {"tokens": [5]}}
        self._prepare_inputs = lambda inputs: {**inputs, "prepared": True}
        self.compute_loss_context_manager = lambda: mock.patch.object(self, "inside", True)

    def cast(self, model: Any) -> Any:
        """Put autocast around the forward pass, as accelerate does."""
        model.forward = torch.autocast("cpu", torch.bfloat16, self.mixed)(model.forward)
        return model

    def get_train_dataloader(self) -> Any:
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

    def generate(self, model: Any, inputs: Batch, config: Any) -> tuple[Tensor, ...]:
        rows = [torch.cat([p, torch.randint(WORDS, (random.randint(3, 15),))]) for p in inputs["prompts"]]
        batch = collate(rows)
        mask = (batch["labels"] != IGNORED).long()
        batch["labels"][:, :2] = IGNORED
        return batch["input_ids"], mask, batch["labels"]

    def training_step(self, model: nn.Module, inputs: Batch, count: Any = None) -> None:
        model.train()
        assert self.accelerator.scaler is self.optimizer is None  # it might move the weights
        self.control.logs += 1
        inputs = self.written(inputs) if random.random() < getattr(self, "lmbda", 0) else inputs
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, self._prepare_inputs(inputs), num_items_in_batch=count)
        (loss if self.count else loss / self.current_gradient_accumulation_steps).backward()  # type: ignore

    def compute_loss(self, model: nn.Module, inputs: Batch, num_items_in_batch: Any = None) -> Any:
        assert self.inside and "prepared" in inputs
        self.metrics["train"]["tokens"].append(inputs["input_ids"].numel())
        self.state.log_history.append({})
        return self.loss(model, inputs, num_items_in_batch)


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


def logged(module: Any, batch: Batch) -> dict[str, Tensor]:
    module.log("loss")  # which is there while a loop is running
    return {"loss": mean(module, batch)}


def lightning(
    step: Any = logged, batches: Any = None, steps: int = 4, mixed: bool = False, auto: bool = True, met: bool = False,
) -> Any:  # fmt: skip
    """As Lightning's Trainer, and a module that it has met or not."""
    module: Any = network(mixed)
    own = {"training_step": partial(step, module), "train_dataloader": lambda: iter(batches)}
    vars(module).update(own, automatic_optimization=auto)

    def divided(output: Any, steps: int) -> Any:
        return SimpleNamespace(closure_loss=(output["loss"] if isinstance(output, dict) else output) / steps)

    loop = SimpleNamespace(output_result_cls=SimpleNamespace(from_training_step_output=divided))
    context = partial(torch.autocast, "cpu", torch.bfloat16, mixed)
    return SimpleNamespace(
        fit_loop=SimpleNamespace(epoch_loop=SimpleNamespace(automatic_optimization=loop)),
        accumulate_grad_batches=steps, precision_plugin=SimpleNamespace(train_step_context=context),
        lightning_module=module if met else None,
    ), module  # fmt: skip


# ---------------------------------------------------------------- the table

MEANS = "^a mean of means over the micro-batches: each weighs the same"
ALONE, NONE = MEANS + "[^;]*$", "^none: the micro-batches add up to the whole batch$"
MANUAL = partial(lightning, steps=1, auto=False)
UNLIKE = "^ValueError: batches: expected dictionaries, or tensors of one width, got the shapes "

# Name: what is handed over; what the report says, or the refusal; batches, where they are handed over too.
TRAINERS: dict[str, tuple[Any, ...]] = {
    "right": (Trainer, NONE),
    "right, a sum over the count": (lambda: Trainer(loss=lambda m, b, count: mean(m, b, 1) / count), "^none"),
    "right, a sum without a count": (lambda: Trainer(loss=lambda m, b, count: mean(m, b, count or 1)), "^none"),
    "right, a window from further on": (lambda: Trainer(dataset(*[5] * 20) + RAGGED, steps=2), NONE),
    "equal counts": (lambda: Trainer(dataset(*[5] * 40)), "^none: .* so would a mean of means with these equal"),
    "right, masked at random": (lambda: Trainer(collator=partial(collate, masked=0.3)), NONE),
    "right, examples are batches": (lambda: Trainer(MICRO, collator=lambda some: some[0], rows=1), NONE),
    "right, pairs": (lambda: Trainer(  # as DPO's: first what was chosen, then what was rejected
        loss=lambda m, b, _: softplus(m(b["input_ids"]).unflatten(0, (2, -1)).diff(dim=0)).mean(), count=None,
        collator=lambda rows: {"input_ids": torch.stack([r[:2] for r in rows] + [r[-2:] for r in rows])}), "^none"),
    "right, mixed precision": (lambda: Trainer(mixed=True), "^none: .* within 0.016, which is rounding"),
    "right, given": (lambda: Trainer(None, steps=1), NONE, tuple(MICRO[:3])),
    "right, given endlessly": (lambda: Trainer(None), NONE, (MICRO[i % 3] for i in range(10**9))),
    "no count, given": (lambda: Trainer(None, count=None), ALONE, MICRO[:3]),
    "before the shift": (lambda: Trainer(count=partial(targets, first=0)),
        "0.7895 .* divided by the 38 labels before the shift, not by the 30 targets$"),
    "a count that is dropped": (lambda: Trainer(loss=lambda m, b, _: mean(m, b)), MEANS + ".*; and K = 4 times"),
    "the same, mixed precision": (lambda: Trainer(loss=lambda m, b, _: mean(m, b), mixed=True), MEANS),
    "no count": (lambda: Trainer(count=None), ALONE),
    "on-policy": (lambda: Trainer(lmbda=0.01),
        "divided by the 30 labels of the loader's batch, before the reply was generated, not by the"),
    "on-policy, counted when written": (lambda: Trainer(lmbda=0.01, early=True), "^none"),
    "Lightning": (lambda: lightning(batches=MICRO), ALONE),
    "Lightning, alone": (lambda: lightning(batches=MICRO, met=True)[0], ALONE),
    "Lightning, right": (lambda: lightning(  # the count comes with each batch
        lambda m, b, _: mean(m, *b) * m._trainer.accumulate_grad_batches, [(b, 30) for b in MICRO]), "^none"),
    "Lightning, a sum": (lambda: lightning(lambda m, b: mean(m, b, 50), MICRO), "^none"),
    "Lightning, columns": (lambda: lightning(  # of rows that are tuples, as PyTorch's own collator makes them
        lambda m, b: {"loss": mean(m, {"input_ids": b[0], "labels": b[1]})},
        [[b["prompts"], b["input_ids"][:, 1:3]] for b in MICRO]), "^none: .* equal counts"),
    "Lightning, mixed": (lambda: lightning(lambda m, b: mean(m, b, 50), MICRO, mixed=True), "^none: .* 0.016"),
    "Lightning, manual": (lambda: MANUAL(by_hand), ALONE, [*MICRO, "which nobody reads"]),
    "Lightning, manual, clears": (lambda: MANUAL(partial(by_hand, inside=True), MICRO), "^only the last micro"),
    "Lightning, a short window": (lambda: lightning(steps=8), "0.5 of .* by 8, for a window of 4$", MICRO),
    "neither": (lambda: 3, "^TypeError: trainer: expected a transformers.Trainer, or .* got int; check_acc"),
    "no module": (lambda: (lightning()[0], None), r"^TypeError: .* or \(lightning.*, got Simple\w*, NoneType; "),
    "no data": (lambda: Trainer(None), "^ValueError: .*training data, got none .object of type 'NoneType' has"),
    "less than a window": (lambda: Trainer(RAGGED[:6]), "^ValueError: .* 4 micro-batches, one window, got 3"),
    "nothing accumulated": (lambda: Trainer(steps=1), "^ValueError: .*_accumulation_steps of 2 .*, got 1: noth"),
    "nothing of what is given": (lambda: Trainer(None, steps=1), "^ValueError: .* or more, got 1: noth", iter(())),
    "less given": (lambda: Trainer(None), "^ValueError: batches: expected 4 micro-.* got 3", iter(MICRO[:3])),
    "a loss that fails": (lambda: Trainer(loss=lambda m, b, _: mean(m, b) + None), "^TypeError: unsupported op"),
    "Lightning, no data": (lightning, "^ValueError: .*training data, got none .* batches="),
    "Lightning, steps of one": (lambda: lightning(batches=MICRO, steps=1), "^ValueError: .*_grad_batches of 2 "),
    "Lightning, manual, no step": (
        lambda: MANUAL(partial(by_hand, every=99), MICRO), "^ValueError: .*optimizer's step .* got 0 steps in 4"),
    "unlike widths": (lightning, UNLIKE + r"\(1, 2\), \(1, 3", [(torch.ones(1, n),) for n in (2, 3)]),
    "unlike widths, deeper": (lightning, UNLIKE + r"\(1, 3, 4", [{"x": torch.ones(1, 3, n)} for n in (4, 5)]),
    "unlike texts": (lightning, "^ValueError: batches: expected tensors, got strs that differ in 'k'",
        [{"x": torch.ones(1, 2), "k": k} for k in "ab"]),
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
    build, says, *batches = TRAINERS[name]
    handed = build()
    before, right = state(handed), False
    try:
        report = xent.torch.check_trainer(handed, *batches)
        right, found = report.ok, report.cause
    except Exception as refusal:
        found = f"{type(refusal).__name__}: {refusal}"
    assert right is says.startswith("^none") and re.search(says, found), found
    assert state(handed) == before


@mock.patch.object(_trainer_check, "ranks_of", lambda: 2)
def test_a_window_of_one_on_each_rank_is_the_first() -> None:
    assert _trainer_check._window(iter(MICRO), SimpleNamespace(steps=1), "steps") == (MICRO[:1], [0])


def test_the_example_is_what_the_experiment_recorded() -> None:
    rows = record("trainers/result")["rows"]
    (said,) = (row["check_trainer"] for row in rows if row["recipe"] == "Trainer, GPT-2")
    shown = " ".join((xent.torch.check_trainer.__doc__ or "").split())
    assert shown.endswith(f'records it, ``check_trainer(trainer).cause`` is "{said["cause"]}".')
