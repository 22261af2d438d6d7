"""TRL's GKD, run: what it divides by where the student has written the replies, on one rank and on two.

The Trainer counts the labels of the window that the loader gives. For each micro-batch, with probability `lmbda`, GKD
then has the student write replies of its own and trains on these, divided by that count. Its `compute_loss` does not
multiply by the number of ranks either, as the Trainer's does for a count over all ranks.

`run.py` calls `measure`, on one rank and on two. DPO, whose loss is a mean over pairs, is checked beside it.
"""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from datasets import Dataset
from recipes import ONE_STEP, go, handed_over, tokenizer
from tiny import IGNORED, Batch, gradient, llama, micro_batches
from torch import Tensor, nn
from transformers import LlamaForCausalLM
from trl import DPOConfig, DPOTrainer, SFTTrainer
from trl.experimental.gkd import GKDConfig, GKDTrainer

Row = dict[str, Any]
STEPS, PROMPT, NEW = 4, 3, 32  # micro-batches; tokens of a prompt, and of a reply at most
TRL: dict[str, Any] = {"bf16": False, "gradient_checkpointing": False, "disable_dropout": True}
TRL["gradient_accumulation_steps"] = STEPS
SEEN: list[Batch] = []  # what the loss was computed on


class GKD(GKDTrainer):
    """GKD that says which texts it trained on."""

    def compute_loss(self, model: nn.Module, inputs: Batch, *arguments: Any, **named: Any) -> Any:
        SEEN.append({key: inputs[key].clone() for key in ("input_ids", "attention_mask", "labels")})
        return super().compute_loss(model, inputs, *arguments, **named)


class Counted(GKD):
    """The repair: the window's replies are written before they are counted, and the ranks are multiplied by."""

    def get_batch_samples(self, iterator: Any, count: int, device: Any) -> tuple[list[Any], Any]:
        samples, _ = super().get_batch_samples(iterator, count, device)
        for inputs in samples:
            if random.random() <= self.lmbda:
                written = self.generate_on_policy_outputs(self.model, inputs, self.generation_config)
                inputs.update(zip(("input_ids", "attention_mask", "labels"), written, strict=True))
        return samples, self._get_num_items_in_batch(samples, device)

    def training_step(self, *arguments: Any, **named: Any) -> Tensor:
        return SFTTrainer.training_step(self, *arguments, **named)

    def compute_loss(self, model: nn.Module, inputs: Batch, *arguments: Any, **named: Any) -> Any:
        count = named.get("num_items_in_batch")
        factor = 1 if count is None else self.accelerator.num_processes
        return super().compute_loss(model, inputs, *arguments, **named) * factor


def gkd(model: nn.Module, seed: int, lmbda: float, kind: type[GKD]) -> int:
    """Take one step, on a data set that ranks share; return the number of labels that its loader gives."""
    rows = texts(model, seed)
    torch.manual_seed(seed + (dist.get_rank() if dist.is_initialized() else 0))
    settings = {"lmbda": lmbda, "max_new_tokens": NEW, "per_device_train_batch_size": 4, **ONE_STEP, **TRL}
    settings |= {"ddp_backend": "gloo" if dist.is_initialized() else None}
    columns = {
        "input_ids": rows,
        "completion_mask": [[int(i >= PROMPT) for i in range(len(row))] for row in rows],
        "prompt": [""] * len(rows),  # asked for, and not read where there is a mask
    }
    given = {"train_dataset": Dataset.from_dict(columns), "processing_class": tokenizer()}
    go(model, kind, lambda folder: GKDConfig(folder, **settings), teacher(), **given)
    return sum(len(row) - PROMPT for row in rows)


def texts(model: nn.Module, seed: int) -> list[list[int]]:
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    batches = micro_batches(model, STEPS * ranks, seed)
    return [row[row != IGNORED].tolist() for batch in batches for row in batch["labels"]]


def teacher() -> nn.Module:
    torch.manual_seed(1)
    return LlamaForCausalLM(llama().config)


def expected(model: nn.Module, seen: list[Batch]) -> tuple[Tensor, int]:
    """Return the gradient of the mean Jensen-Shannon divergence over all tokens seen, and their number."""
    student, other = (m.double() for m in (llama(), teacher()))
    student.load_state_dict(model.state_dict())
    total, count = torch.zeros((), dtype=torch.float64), 0
    for batch in seen:
        mask = batch["labels"][:, 1:] != IGNORED
        inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
        q = student(**inputs).logits[:, :-1][mask].log_softmax(-1)
        with torch.no_grad():
            p = other(**inputs).logits[:, :-1][mask].log_softmax(-1)
        middle = torch.logaddexp(p, q) - torch.log(torch.tensor(2.0))
        parts = (F.kl_div(middle, x, reduction="sum", log_target=True) for x in (p, q))
        total = total + sum(parts) / 2
        count += int(mask.sum())
    (total / count).backward()
    return gradient(student), count


def measure_one(name: str, lmbda: float, kind: type[GKD], seeds: list[int]) -> Row:
    """Return what one step's gradient is of what it should be, for each data set."""
    row: Row = {"recipe": name, "ranks": dist.get_world_size() if dist.is_initialized() else 1, "runs": []}
    for seed in seeds:
        SEEN.clear()
        model = llama()
        given = gkd(model, seed, lmbda, kind)
        everyone = [SEEN]
        if dist.is_initialized():
            everyone = [[] for _ in range(dist.get_world_size())]
            dist.all_gather_object(everyone, SEEN)
        due, count = expected(model, [batch for seen in everyone for batch in seen])
        came = gradient(model).double()
        error, factor = float((came - due).norm() / due.norm()), float(came @ due / (due @ due))
        row["runs"].append({"error": error, "factor": factor, "labels_given": given, "labels_trained": count})
    if not dist.is_initialized():
        row["check_trainer"] = handed_over(lambda: gkd(llama(), seeds[0], lmbda, kind))
    return row


def words(row: list[int]) -> str:
    return " ".join(f" t{i}" for i in row)


def dpo() -> None:
    model = llama()
    rows = texts(model, 1)
    columns = {
        "prompt": [words(row[:PROMPT]) for row in rows],
        "chosen": [words(row[PROMPT:]) for row in rows],
        "rejected": [words(row[:0:-1]) for row in rows],
    }
    given = {"train_dataset": Dataset.from_dict(columns), "processing_class": tokenizer()}
    settings = {"per_device_train_batch_size": 2, **ONE_STEP, **TRL}
    go(model, DPOTrainer, lambda folder: DPOConfig(folder, **settings), teacher(), **given)


def measure(seeds: list[int]) -> list[Row]:
    """Return the rows of one rank, or of all ranks, where this is called on each."""
    rows = [
        measure_one("GKD, the loader's texts", 0.0, GKD, seeds),
        measure_one("GKD, the student's texts", 1.0, GKD, seeds),
        measure_one("GKD, the student's texts, repaired", 1.0, Counted, seeds),
    ]
    return rows if dist.is_initialized() else [*rows, {"recipe": "DPO", "check_trainer": handed_over(dpo)}]
