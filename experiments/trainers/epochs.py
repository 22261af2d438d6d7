"""Eight epochs under accelerate and under Lightning, with `xent.torch.accumulate` in the loop.

    python experiments/trainers/epochs.py

Ten ragged micro-batches an epoch, four to a window, make three optimiser steps an epoch, the last of a short
window. Each step's gradient is compared with that of its window in one batch. Then both libraries are told to
accumulate by themselves besides, and `accumulate` must refuse. Prints JSON; fails where a number is wrong.
"""

from __future__ import annotations

import datetime
import json
import logging
import warnings
from typing import Any

import accelerate
import lightning
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import xent.torch

BATCHES, STEPS, EPOCHS, ROWS, LENGTH, VOCABULARY, IGNORED = 10, 4, 8, 3, 12, 17, -100
WINDOWS = -(-BATCHES // STEPS)
Batch = dict[str, Tensor]


def examples() -> list[Batch]:
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(BATCHES * ROWS):
        tokens = torch.randint(VOCABULARY, (LENGTH + 1,), generator=generator)
        labels = tokens[1:].clone()
        labels[int(torch.randint(1, LENGTH + 1, (), generator=generator)) :] = IGNORED
        found.append({"inputs": tokens[:-1], "labels": labels})
    return found


def loader() -> DataLoader[Batch]:
    torch.manual_seed(1)
    return DataLoader(examples(), batch_size=ROWS, shuffle=True)  # type: ignore[arg-type]


def network() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Embedding(VOCABULARY, 8), nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, VOCABULARY))


def summed_loss(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch["inputs"]).flatten(0, 1)
    return cross_entropy(logits, batch["labels"].flatten(), ignore_index=IGNORED, reduction="sum")


class Record:
    """The relative error of the gradient at each optimiser step."""

    def __init__(self) -> None:
        self.errors: list[float] = []

    def compare(self, model: nn.Module, window: Any) -> None:
        parameters = list(model.parameters())
        whole = {key: torch.cat([micro.batch[key] for micro in window]) for key in ("inputs", "labels")}
        loss = summed_loss(model, whole) / (whole["labels"] != IGNORED).sum()
        due = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])
        found = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
        self.errors.append(float((found - due).norm() / due.norm()))

    def result(self, steps: int) -> dict[str, Any]:
        assert len(self.errors) == steps == WINDOWS * EPOCHS, (len(self.errors), steps)
        assert max(self.errors) < 1e-6, max(self.errors)
        return {"optimiser_steps": steps, "largest_error": max(self.errors)}


def by_accelerate(own_steps: int = 1) -> dict[str, Any]:
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=own_steps)
    net = network()
    optimiser = torch.optim.SGD(net.parameters(), 0.5)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1.0)
    model, optimiser, prepared, schedule = accelerator.prepare(net, optimiser, loader(), schedule)
    windows = xent.torch.accumulate(prepared, STEPS, targets="labels")
    record = Record()
    for _ in range(EPOCHS):
        for window in windows:
            for micro in window:
                accelerator.backward(summed_loss(model, micro.batch) * micro.scale)
            record.compare(model, window)
            optimiser.step()
            schedule.step()
            optimiser.zero_grad()
    return record.result(schedule.scheduler.last_epoch)


class Module(lightning.LightningModule):
    """Windows are the batches that Lightning sees; it moves each to its device."""

    def __init__(self, manual: bool) -> None:
        super().__init__()
        self.model, self.record, self.automatic_optimization = network(), Record(), not manual

    def train_dataloader(self) -> Any:
        return xent.torch.accumulate(loader(), STEPS, targets="labels")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.5)

    def training_step(self, window: xent.torch.Window[Batch]) -> Tensor | None:
        if self.automatic_optimization:  # one graph for all micro-batches: right, but it saves no memory
            self.window = window
            return torch.stack([summed_loss(self.model, m.batch) * m.scale for m in window]).sum()
        optimiser: Any = self.optimizers()
        for micro in window:
            self.manual_backward(summed_loss(self.model, micro.batch) * micro.scale)
        self.record.compare(self.model, window)
        optimiser.step()
        optimiser.zero_grad()
        return None

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        if self.automatic_optimization:
            self.record.compare(self.model, self.window)


def by_lightning(manual: bool, own_steps: int = 1) -> dict[str, Any]:
    module = Module(manual)
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accumulate_grad_batches=own_steps,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module)
    return module.record.result(trainer.global_step)


def refusal(run: Any) -> str:
    try:
        run()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("it was not refused")


def main() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    result = {
        "date": datetime.date.today().isoformat(),
        "settings": {"epochs": EPOCHS, "micro_batches": BATCHES, "window": STEPS, "seeds": [0, 1, 2]},
        "versions": {module.__name__: module.__version__ for module in (accelerate, lightning, torch)},
        "accelerate": by_accelerate(),
        "lightning, manual optimisation": by_lightning(manual=True),
        "lightning, automatic optimisation": by_lightning(manual=False),
        "refused": {
            "lightning": refusal(lambda: by_lightning(manual=False, own_steps=STEPS)),
            "accelerate": refusal(lambda: by_accelerate(own_steps=STEPS)),
        },
    }  # fmt: skip
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
