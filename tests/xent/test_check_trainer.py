"""`xent.torch.check_trainer` on doubles that divide and keep books as transformers' and Lightning's trainers do.

The libraries are not in this environment; `experiments/trainers` measures the real ones, and stores what the check
says of each.
"""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, logsigmoid
from torch.nn.utils.rnn import pad_sequence

import xent.torch
from xent.torch import _trainer_check

IGNORED, WORDS = -100, 7
Batch = dict[str, Tensor]


class Model(nn.Module):
    """A causal model of labels that it shifts itself, with dropout, and without knowledge of what it reads."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.dropout, self.head = nn.Embedding(WORDS, 6), nn.Dropout(0.5), nn.Linear(6, WORDS)
        self.to(dtype).train()

    def forward(self, batch: Batch, count: Any = None) -> Tensor:
        logits = self.head(self.dropout(self.embedding(batch["input_ids"]).tanh()))[:, :-1].flatten(0, 1)
        loss = cross_entropy(logits, batch["labels"][:, 1:].flatten(), ignore_index=IGNORED, reduction="sum")
        return loss / (count if count is not None else targets(batch))


def targets(batch: Batch, first: int = 1) -> Tensor:
    return (batch["labels"][:, first:] != IGNORED).sum()


# ---------------------------------------------------------------- examples, and what makes batches of them


def dataset(lengths: list[int]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(WORDS, (n,), generator=generator) for n in lengths]


RAGGED = dataset([9, 7, 3, 2, 6, 5, 2, 4])  # two rows each, in windows of four micro-batches


def collate(examples: list[Tensor], masked: float = 0.0) -> Batch:
    labels = pad_sequence(examples, batch_first=True, padding_value=IGNORED)
    hidden = torch.rand(labels.shape) < masked
    return {"input_ids": labels.clamp(min=0), "labels": labels.masked_fill(hidden, IGNORED)}


def with_prompts(examples: list[Tensor]) -> Batch:
    prompts = torch.stack([row[:2] for row in examples])
    return collate(examples) | {"prompts": prompts, "prompt_attention_mask": torch.ones_like(prompts)}


def columns(examples: list[Tensor]) -> list[Tensor]:
    """As PyTorch's own collator of rows that are tuples, here the two ends of a row."""
    return [torch.stack([row[:2] for row in examples]), torch.stack([row[-2:] for row in examples])]


def as_pairs(examples: list[Tensor]) -> Batch:
    """As DPO's: first what was chosen, then what was rejected."""
    return {"input_ids": torch.cat(columns(examples))}


def micro(collator: Callable[[list[Tensor]], Any] = collate) -> list[Any]:
    return [collator(RAGGED[i : i + 2]) for i in range(0, len(RAGGED), 2)]


# ---------------------------------------------------------------- Hugging Face


def prefers(model: Any, batch: Batch, count: Any) -> Tensor:
    good, bad = model.embedding(batch["input_ids"]).mean((1, 2)).chunk(2)
    return -logsigmoid(good - bad).mean()


# Of a model, a batch and the count that the Trainer gives, if it gives one.
LOSS: dict[str, Any] = {
    "right": lambda model, batch, count: model(batch, count),
    "a mean": lambda model, batch, count: model(batch),  # which the Trainer takes for divided
    "needs the count": lambda model, batch, count: model(batch) * targets(batch) / count,
    "a sum without": lambda model, batch, count: model(batch, count or 1),
    "over 50": lambda model, batch, count: model(batch, 50),
    "of columns": lambda model, batch, count: model({"input_ids": batch[0], "labels": batch[1]}),
    "of pairs": prefers,
    "fails": lambda model, batch, count: model(batch) + None,
}


def cast(model: nn.Module) -> nn.Module:
    """Put autocast around the forward pass, as accelerate's `prepare_model` does."""
    vars(model).update(_original_forward=model.forward, forward=BFLOAT()(model.forward))
    return model


BFLOAT = partial(torch.autocast, "cpu", torch.bfloat16)


class Trainer:
    """As transformers' Trainer, between two optimizer steps."""

    def __init__(
        self, data: list[Any] | None = RAGGED, loss: str = "right", collator: Any = collate,
        count: Callable[[Batch], Tensor] | None = targets, steps: int = 4, rows: int = 2, mixed: bool = False,
    ) -> None:  # fmt: skip
        self.model = self.model_wrapped = Model(torch.float32 if mixed else torch.float64)
        self.train_dataset, self.data_collator, self.rows = data, collator, rows
        self.loss, self.count, self.inside = LOSS[loss], count, False
        self.args = SimpleNamespace(gradient_accumulation_steps=steps, device="cpu", dataloader_num_workers=3,
                                    dataloader_persistent_workers=True, dataloader_prefetch_factor=2)  # fmt: skip
        self.accelerator = SimpleNamespace(
            scaler=object(), gradient_state=SimpleNamespace(references=[None]), loaders=[],
            prepare_model=cast if mixed else lambda model: model, no_sync=lambda model: nullcontext(),
        )  # fmt: skip
        self.optimizer: Any = object()
        self.state, self.control = SimpleNamespace(log_history=[{"loss": 1.0}]), SimpleNamespace(logs=0)
        self.metrics: dict[str, Any] = {"train": defaultdict(list, tokens=[5]), "eval": defaultdict(list)}

    def get_train_dataloader(self) -> Iterator[Batch]:
        if self.train_dataset is None:
            raise ValueError("Trainer: training requires a train_dataset.")
        # With others examples are collated out of sight, and PyTorch refuses the rest without them.
        assert not any(value for name, value in vars(self.args).items() if name.startswith("dataloader"))
        self.accelerator.loaders.append(self)
        return self.loader(self.train_dataset)

    def loader(self, data: list[Any]) -> Iterator[Batch]:
        held = self.accelerator.gradient_state.references  # as accelerate, which takes it back at the end
        held.append(self)
        torch.rand(3)
        yield from (self.data_collator(data[i : i + self.rows]) for i in range(0, len(data), self.rows))
        held.pop()

    def get_batch_samples(self, iterator: Any, size: int, device: str) -> tuple[list[Batch], Any]:
        samples = list(islice(iterator, size))
        return samples, self.count and sum(map(self.count, samples))

    def training_step(self, model: nn.Module, inputs: Batch, count: Any = None) -> None:
        model.train()
        assert (
            self.accelerator.scaler is self.optimizer is None
        )  # one without a schedule would move the weights
        self.control.logs += 1
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, self._prepare_inputs(inputs), num_items_in_batch=count)
        (loss if self.count else loss / self.current_gradient_accumulation_steps).backward()  # type: ignore

    def _prepare_inputs(self, inputs: Batch) -> Batch:
        return {**inputs, "prepared": torch.ones(())}

    def compute_loss_context_manager(self) -> AbstractContextManager[Any]:
        return mock.patch.object(self, "inside", True)

    def compute_loss(self, model: nn.Module, inputs: Batch, num_items_in_batch: Any = None) -> Tensor:
        assert self.inside and "prepared" in inputs
        self.metrics["train"]["tokens"].append(inputs["input_ids"].numel())
        self.state.log_history.append({})
        return self.loss(model, inputs, num_items_in_batch)


class OnPolicy(Trainer):
    """As TRL's GKD: the student writes replies of random lengths, and the count is that of the loader's labels."""

    lmbda, generation_config = 0.5, None

    def __init__(self, first_counted: bool) -> None:
        super().__init__(collator=with_prompts)
        self.first_counted = first_counted

    def get_batch_samples(self, iterator: Any, size: int, device: str) -> tuple[list[Batch], Any]:
        batches = (self.written(batch) if self.first_counted else batch for batch in iterator)
        return super().get_batch_samples(batches, size, device)

    def training_step(self, model: nn.Module, inputs: Batch, count: Any = None) -> None:
        writes = not self.first_counted and random.random() <= self.lmbda
        super().training_step(model, self.written(inputs) if writes else inputs, count)

    def written(self, inputs: Batch) -> Batch:
        reply = self.generate_on_policy_outputs(self.model, inputs, self.generation_config)
        return dict(zip(("input_ids", "attention_mask", "labels"), reply, strict=True))

    @staticmethod
    def generate_on_policy_outputs(model: Any, inputs: Batch, config: Any) -> tuple[Tensor, Tensor, Tensor]:
        rows = [torch.cat([p, torch.randint(WORDS, (random.randint(3, 15),))]) for p in inputs["prompts"]]
        tokens, mask = (pad_sequence(r, True) for r in (rows, [torch.ones_like(row) for row in rows]))
        labels = tokens.where(mask == 1, IGNORED)
        labels[:, : inputs["prompts"].shape[1]] = IGNORED
        return tokens, mask, labels


# ---------------------------------------------------------------- Lightning


class Module(nn.Module):
    """As a LightningModule that a Trainer has not met."""

    automatic_optimization, _trainer = True, None

    def __init__(self, batches: Any = None, loss: str = "right", dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.model, self.batches, self.loss = Model(dtype), batches, LOSS[loss]

    def log(self, *_: Any) -> None:
        raise RuntimeError("the loop is not running")

    def train_dataloader(self) -> list[Any]:
        if self.batches is None:
            raise RuntimeError("`train_dataloader` must be implemented")
        return self.batches  # type: ignore[no-any-return]

    def training_step(self, batch: Any) -> Any:
        self.log("loss")
        return {"loss": self.loss(self.model, batch, None)}


class Counted(Module):
    """The count of the window comes with each batch."""

    def training_step(self, counted: tuple[Batch, int], index: int) -> Any:  # type: ignore[override]
        return self.model(*counted) * self._trainer.accumulate_grad_batches  # type: ignore[attr-defined]


class Manual(Module):
    """Divides by its own steps; with `inside`, it clears the gradient in the window."""

    automatic_optimization = False

    def __init__(self, batches: Any, every: int = 4, inside: bool = False) -> None:
        super().__init__(batches)
        self.every, self.inside = every, inside

    def training_step(self, batch: Batch, index: int) -> None:  # type: ignore[override]
        optimizer, scheduler = self.optimizers(), self.lr_schedulers()  # type: ignore[operator]
        if self.inside:
            optimizer.zero_grad()
        self.manual_backward(self.model(batch) / self.every)  # type: ignore[operator]
        scheduler.step()
        if (index + 1) % self.every == 0 and optimizer.param_groups[0]["lr"] >= 0:
            optimizer.step()
            optimizer.zero_grad()


def divided(output: Any, steps: int) -> Any:
    return SimpleNamespace(closure_loss=(output["loss"] if isinstance(output, dict) else output) / steps)


def lightning(module: Any, steps: int = 4, context: Any = nullcontext, met: Any = None) -> tuple[Any, Any]:
    loop = SimpleNamespace(output_result_cls=SimpleNamespace(from_training_step_output=divided))
    return SimpleNamespace(
        fit_loop=SimpleNamespace(epoch_loop=SimpleNamespace(automatic_optimization=loop)), lightning_module=met,
        accumulate_grad_batches=steps, precision_plugin=SimpleNamespace(train_step_context=context),
    ), module  # fmt: skip


# ---------------------------------------------------------------- the table

MEANS = "^a mean of means over the micro-batches: each weighs the same"
ALONE, NONE = MEANS + "[^;]*$", "^none: the micro-batches add up to the whole batch$"
N = int(sum(map(targets, micro())))
UNLIKE = "^ValueError: batches: expected dictionaries, or tensors of one width, got the shapes "

# Name: what is handed over, batches, and what the report says, or the refusal.
TRAINERS: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "right": (Trainer, None, NONE),
    "right, a sum over the count": (lambda: Trainer(loss="needs the count"), None, "^none"),
    "right, a sum without a count": (lambda: Trainer(loss="a sum without"), None, "^none"),
    "right, a window from further on": (lambda: Trainer(dataset([5] * 20) + RAGGED), None, NONE),
    "equal counts": (lambda: Trainer(dataset([5] * 40)), None, "^none: .* so would a mean of means with these equal"),
    "right, masked at random": (lambda: Trainer(collator=partial(collate, masked=0.3)), None, NONE),
    "right, examples are batches": (lambda: Trainer(micro(), collator=lambda some: some[0], rows=1), None, NONE),
    "right, pairs": (lambda: Trainer(loss="of pairs", collator=as_pairs, count=None), None, "^none"),
    "right, mixed precision": (lambda: Trainer(mixed=True), None, "^none: .* within 0.016, which is rounding"),
    "right, given": (lambda: Trainer(None, steps=1), tuple(micro()[:3]), NONE),
    "right, given endlessly": (lambda: Trainer(None), (micro()[i % 3] for i in range(10**9)), NONE),
    "no count, given": (lambda: Trainer(None, count=None), micro()[:3], ALONE),
    "before the shift": (lambda: Trainer(count=partial(targets, first=0)), None,
        "0.7895 .* divided by the 38 labels before the shift, not by the 30 targets$"),
    "a count that is dropped": (lambda: Trainer(loss="a mean"), None, MEANS + ".*; and K = 4 times"),
    "a count that is dropped, mixed precision": (lambda: Trainer(loss="a mean", mixed=True), None, MEANS),
    "no count": (lambda: Trainer(count=None), None, ALONE),
    "on-policy": (lambda: OnPolicy(first_counted=False), None,
        "divided by the 30 labels of the loader's batch, before the reply was generated, not by the"),
    "on-policy, counted when written": (lambda: OnPolicy(first_counted=True), None, "^none"),
    "Lightning": (lambda: lightning(Module(micro())), None, ALONE),
    "Lightning, alone": (lambda: lightning(None, met=Module(micro()))[0], None, ALONE),
    "Lightning, right": (lambda: lightning(Counted([(batch, N) for batch in micro()])), None, "^none"),
    "Lightning, a sum": (lambda: lightning(Module(micro(), "over 50")), None, "^none"),
    "Lightning, columns": (lambda: lightning(Module(micro(columns), "of columns")), None, "^none: .* equal counts"),
    "Lightning, mixed precision": (
        lambda: lightning(Module(micro(), "over 50", torch.float32), 4, BFLOAT), None, "^none: .* within 0.016"),
    "Lightning, manual": (lambda: lightning(Manual(None), 1), [*micro(), "which nobody reads"], ALONE),
    "Lightning, manual, clears": (lambda: lightning(Manual(micro(), inside=True), 1), None, "^only the last micro"),
    "Lightning, a short window": (
        lambda: lightning(Module(), 8), micro(), "0.5 of what it should be: divided by 8, for a window of 4$"),
    "neither": (lambda: 3, None, "^TypeError: trainer: expected a transformers.Trainer, or .* got int; check_acc"),
    "no module": (lambda: lightning(None), None, r"^TypeError: .* or \(lightning.*, got SimpleNamespace, NoneType; "),
    "no data": (lambda: Trainer(None), None, "^ValueError: .*training data, got none .*requires a train_data"),
    "less than a window": (lambda: Trainer(RAGGED[:6]), None, "^ValueError: .* 4 micro-batches, one window, got 3"),
    "nothing accumulated": (lambda: Trainer(steps=1), None, "^ValueError: .*_accumulation_steps of 2 .*, got 1: noth"),
    "nothing accumulated, given": (lambda: Trainer(None, steps=1), iter(()), "^ValueError: .* 2 or more, got 1: noth"),
    "less given": (lambda: Trainer(None), iter(micro()[:3]), "^ValueError: batches: expected 4 micro-.* got 3"),
    "a loss that fails": (lambda: Trainer(loss="fails"), None, "^TypeError: unsupported operand"),
    "Lightning, no data": (lambda: lightning(Module()), None, "^ValueError: .*training data, got none .* batches="),
    "Lightning, nothing accumulated": (
        lambda: lightning(Module(micro()), 1), None, "^ValueError: .*accumulate_grad_batches of 2 or more, got 1"),
    "Lightning, manual, no step": (
        lambda: lightning(Manual(micro(), every=99), 1), None, "^ValueError: .*optimizer's step .* got 0 steps in 4"),
    "unlike widths": (lambda: lightning(Module()), [(torch.ones(1, n),) for n in (2, 3)], UNLIKE + r"\(1, 2\), \(1, 3"),
    "unlike widths, deeper": (lambda: lightning(Module()), [{"x": torch.ones(1, 3, n)} for n in (4, 5)],
        UNLIKE + r"\(1, 3, 4\), \(1, 3, 5\)"),
    "unlike texts": (lambda: lightning(Module()), [{"x": torch.ones(1, 2), "k": k} for k in "ab"],
        "^ValueError: batches: expected tensors, got strs that differ in 'k'"),
}  # fmt: skip


def state(handed: Any) -> list[Any]:
    """What must be as it was: numbers, every attribute, random states."""
    owners = handed if isinstance(handed, tuple) else (handed,)
    held = (getattr(owner, "lightning_module", None) or getattr(owner, "model", None) for owner in owners)
    modules = [module for model in held if model for module in model.modules()]
    numbers = [(p.tolist(), id(p.grad), repr(p.grad)) for module in modules for p in module.parameters()]
    books = [repr(vars(thing)) for thing in (*owners, *modules) if hasattr(thing, "__dict__")]
    numpy = np.random.get_state()[1].tolist()  # type: ignore[index, union-attr] # noqa: NPY002
    return [numbers, books, random.getstate(), numpy, torch.get_rng_state().tolist()]


@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainer_is_judged_as_it_is_or_refused_and_left_as_it_was(name: str) -> None:
    """Dropout is on, metrics are kept, a loader registers itself: none of it is left, and none of it misleads."""
    build, batches, says = TRAINERS[name]
    handed = build()
    if isinstance(handed, Trainer):  # in the middle of training, with gradients left
        handed.model.head.weight.sum().backward()  # type: ignore[no-untyped-call]
    before, right = state(handed), False
    try:
        report = xent.torch.check_trainer(handed, batches)
        right, found = report.ok, report.cause
    except Exception as refusal:
        found = f"{type(refusal).__name__}: {refusal}"
    assert right is says.startswith("^none") and re.search(says, found), found
    assert state(handed) == before


def test_a_window_of_one_on_each_rank_is_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_trainer_check, "ranks_of", lambda: 2)
    batches = micro()
    assert _trainer_check._window(iter(batches), SimpleNamespace(steps=1), "steps") == (batches[:1], [0])


def test_the_example_is_what_the_experiment_recorded() -> None:
    record = Path(__file__).parents[2] / "experiments" / "trainers" / "result.json"
    (row,) = (r for r in json.loads(record.read_text())["rows"] if r["recipe"] == "Trainer, GPT-2")
    shown = " ".join((xent.torch.check_trainer.__doc__ or "").split())
    assert shown.endswith(
        f'records it, ``check_trainer(trainer).cause`` is "{row["check_trainer"]["cause"]}".'
    )
