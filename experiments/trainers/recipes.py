"""One training step of each trainer: as it comes, and with a repair.

A recipe is a function ``(model, batches, repaired)``: it takes one optimiser step over these micro-batches
with the real trainer and leaves the gradient that the optimiser saw in ``.grad``. What stands under
``if repaired`` is the whole repair. Dropout, clipping and shuffling are off and the learning rate is 0: none
of these decides what a gradient is divided by.
"""

from __future__ import annotations

import contextlib
import operator
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import tiny
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from datasets import Dataset
from lightning import pytorch as pl
from lightning.fabric import Fabric
from tiny import IGNORED, VOCABULARY, Batch, cross_entropy
from tokenizers import Tokenizer, models
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.optim.lr_scheduler import ConstantLR
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerFast, PrinterCallback, Trainer, TrainingArguments
from trl import SFTConfig, SFTTrainer

import xent.torch


@contextlib.contextmanager
def optimiser(model: nn.Module) -> Iterator[SGD]:
    """Give an optimiser that moves nothing; afterwards ``.grad`` is what its only step saw."""
    seen: list[list[Tensor | None]] = []
    sgd = SGD(model.parameters(), lr=0.0)
    # After the step, not before it: Lightning computes the gradient in a closure, inside the step.
    sgd.register_step_post_hook(
        lambda *_: seen.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
    )
    yield sgd
    if len(seen) != 1:
        raise RuntimeError(f"expected one optimiser step, got {len(seen)}")
    for parameter, grad in zip(model.parameters(), seen[0], strict=True):
        parameter.grad = grad


class Handed(Exception):
    """Carries what a user would hand to `xent.torch.check_trainer`, in place of training."""

    def __init__(self, trainer: Any, batches: Any = None) -> None:
        self.trainer, self.batches = trainer, batches


HAND_OVER = False  # whether trainers are handed over, not run


def go(
    model: nn.Module, kind: Callable[..., Trainer], arguments: Callable[[str], Any], *more: Any, **given: Any
) -> None:
    """Make a trainer, of which `arguments` sets up a folder, and train, or hand it over."""
    with optimiser(model) as sgd, tempfile.TemporaryDirectory() as folder:
        run = kind(model, *more, args=arguments(folder), optimizers=(sgd, ConstantLR(sgd, 1.0)), **given)
        run.remove_callback(PrinterCallback)
        if HAND_OVER:
            raise Handed(run)
        run.train()


def handed_over(build: Callable[[], Any]) -> dict[str, Any] | None:
    """Return what `check_trainer` says of the trainer that is built; None where there is no trainer."""
    global HAND_OVER
    HAND_OVER = True
    try:
        build()
    except Handed as handed:
        try:
            report = xent.torch.check_trainer(handed.trainer, handed.batches)
        except ValueError as refused:
            return {"refused": str(refused)}
        return {"ok": report.ok, "cause": report.cause}
    finally:
        HAND_OVER = False
    return None


def shifted_labels(batch: Batch) -> Tensor:
    """Return the targets of a causal model that is given these labels."""
    return batch["labels"][:, 1:]


def counts_of(batches: list[Batch]) -> list[Tensor]:
    return [(shifted_labels(batch) != IGNORED).sum() for batch in batches]


# --- Hugging Face Trainer ----------------------------------------------------------------------------------

ONE_STEP: dict[str, Any] = {
    "max_steps": 1,
    "max_grad_norm": 0.0,  # the default is 1.0; a clipped step does not show what it was divided by
    "train_sampling_strategy": "sequential",
    "remove_unused_columns": False,
    "use_cpu": True,
    "dataloader_pin_memory": False,
    "disable_tqdm": True,
    "logging_strategy": "no",
    "save_strategy": "no",
    "report_to": "none",
    "ddp_find_unused_parameters": False,
}


def train(
    model: nn.Module,
    batches: list[Batch],
    trainer: type[Trainer] = Trainer,
    compute_loss_func: Callable[..., Tensor] | None = None,
    **arguments: Any,
) -> None:
    """Take one step of a Trainer. Its examples are whole micro-batches: nothing is left to collate."""
    arguments = {"gradient_accumulation_steps": len(batches), "per_device_train_batch_size": 1} | arguments
    if dist.is_initialized():
        arguments["ddp_backend"] = "gloo"
    given: dict[str, Any] = {"train_dataset": interleaved(batches), "compute_loss_func": compute_loss_func}
    given["data_collator"] = operator.itemgetter(0)
    go(model, trainer, lambda folder: TrainingArguments(folder, **ONE_STEP, **arguments), **given)


def interleaved(batches: list[Batch]) -> list[Batch]:
    """Return all ranks' micro-batches, in the order in which the Trainer deals them out."""
    if not dist.is_initialized():
        return batches
    everyone: list[list[Batch]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, batches)
    return [batch for turn in zip(*everyone, strict=True) for batch in turn]


def trainer_llama(model: nn.Module, batches: list[Batch], repaired: bool) -> None:
    train(model, batches)


def trainer_per_rank(model: nn.Module, batches: list[Batch], repaired: bool) -> None:
    train(model, batches, average_tokens_across_devices=repaired)


def trainer_gpt2(model: nn.Module, batches: list[Batch], repaired: bool) -> None:
    if repaired:
        model.loss_type = "ForCausalLM"
    train(model, batches)


def flat(outputs: Any, labels: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    return outputs.logits[:, : labels.shape[1] - shift].flatten(0, 1), labels[:, shift:].flatten()


def sum_over_count(outputs: Any, labels: Tensor, num_items_in_batch: Any, shift: int = 0) -> Tensor:
    """Divide once, by the window's count. The Trainer multiplies by the number of ranks, for DDP averages."""
    pair = flat(outputs, labels, shift)
    return F.cross_entropy(*pair, ignore_index=IGNORED, reduction="sum") / num_items_in_batch


shifted_sum_over_count = partial(sum_over_count, shift=1)


def shifted_mean(outputs: Any, labels: Tensor, num_items_in_batch: Any) -> Tensor:
    return F.cross_entropy(*flat(outputs, labels, 1), ignore_index=IGNORED)


def trainer_count_dropped(model: nn.Module, batches: list[Batch], repaired: bool) -> None:
    # With a compute_loss_func the model does not see the labels; T5 then needs decoder_input_ids, which
    # DataCollatorForSeq2Seq(tokenizer, model=model) makes.
    train(model, batches, compute_loss_func=sum_over_count if repaired else None)


def trainer_compute_loss_func(model: nn.Module, batches: list[Batch], repaired: bool) -> None:
    train(model, batches, compute_loss_func=shifted_sum_over_count if repaired else shifted_mean)


class MeanTrainer(Trainer):
    """A mean of its own, and the count ignored."""

    def compute_loss(
        self, model: nn.Module, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = self.loss(outputs, labels, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def loss(self, *given: Any) -> Tensor:
        return shifted_mean(*given)


class HalfMendedTrainer(MeanTrainer):
    loss_is_scaled_for_ga = False  # the Trainer divides by the steps again: a mean of means


class SumTrainer(MeanTrainer):
    def loss(self, *given: Any) -> Tensor:
        return shifted_sum_over_count(*given) * self.accelerator.num_processes


def trainer_subclass(model: nn.Module, batches: list[Batch], repaired: bool) -> None:
    train(model, batches, SumTrainer if repaired else MeanTrainer)


def trainer_bare(model: nn.Module, batches: list[Batch], repaired: bool) -> None:
    if repaired:
        model.accepts_loss_kwargs = True  # or the count is None
    train(model, batches, SumTrainer if repaired else MeanTrainer)


def trainer_half_mended(model: nn.Module, batches: list[Batch], repaired: bool) -> None:
    train(model, batches, SumTrainer if repaired else HalfMendedTrainer)


# --- TRL ---------------------------------------------------------------------------------------------------


def tokenizer() -> PreTrainedTokenizerFast:
    """TRL asks for one, though the data are tokenised already."""
    ids = {"<pad>": 0, "<bos>": 1, "<eos>": 2, "<unk>": 3} | {f"t{i}": i for i in range(4, VOCABULARY)}
    inner = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    inner.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")


def trl_sft(model: nn.Module, batches: list[Batch], repaired: bool) -> None:
    if repaired:
        model.loss_type = "ForCausalLM"
    rows = [row[row != IGNORED].tolist() for batch in batches for row in batch["labels"]]
    settings: dict[str, Any] = ONE_STEP | {
        "gradient_accumulation_steps": len(batches),
        "per_device_train_batch_size": len(rows) // len(batches),
        "dataset_kwargs": {"skip_prepare_dataset": True},
        "bf16": False,
        "gradient_checkpointing": False,
    }
    dataset = Dataset.from_dict({"input_ids": rows, "labels": rows})
    given = {"train_dataset": dataset, "processing_class": tokenizer()}
    go(model, SFTTrainer, lambda folder: SFTConfig(folder, **settings), **given)


# --- Accelerate --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def accelerator(steps: int = 1) -> Iterator[Accelerator]:
    """Give a fresh one, and forget it: Accelerate keeps the first one's steps in a singleton."""
    _forget()
    yield Accelerator(cpu=True, gradient_accumulation_steps=steps)
    _forget()


def _forget() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def accelerate_loop(model: nn.Module, batches: list[Batch], repaired: bool, window: int = 1) -> None:
    """docs/source/usage_guides/gradient_accumulation.md, "The finished code"."""
    steps = window * len(batches)
    if repaired:
        return accelerate_windows(model, batches, steps)
    with optimiser(model) as sgd, accelerator(steps) as acc:
        prepared, opt, loader = acc.prepare(model, sgd, DataLoader(batches, batch_size=None))
        for batch in loader:
            with acc.accumulate(prepared):
                acc.backward(cross_entropy(prepared, batch))
                opt.step()
                opt.zero_grad()


def accelerate_windows(model: nn.Module, batches: list[Batch], steps: int) -> None:
    """The repair: an Accelerator without accumulation of its own."""
    with optimiser(model) as sgd, accelerator() as acc:
        prepared, opt, loader = acc.prepare(model, sgd, DataLoader(batches, batch_size=None))
        for window in xent.torch.accumulate(loader, steps, targets=shifted_labels):
            for micro in window:
                with contextlib.nullcontext() if micro.is_last else acc.no_sync(prepared):
                    acc.backward(cross_entropy(prepared, micro.batch, "sum") * micro.scale)
            opt.step()
            opt.zero_grad()


def accelerate_example(model: nn.Module, batches: list[Batch], repaired: bool) -> None:
    """examples/by_feature/gradient_accumulation_for_autoregressive_models.py."""
    steps = len(batches)
    counted = [batch["labels"][:, 1:] if repaired else batch["labels"] for batch in batches]
    with optimiser(model) as sgd, accelerator(steps) as acc:
        prepared, opt = acc.prepare(model, sgd)
        count = acc.gather(sum(labels.ne(IGNORED).sum() for labels in counted)).sum().item()
        for batch in batches:
            loss = prepared(**batch, num_items_in_batch=count).loss
            acc.backward(loss * steps * acc.num_processes)
        opt.step()
        opt.zero_grad()


# --- Lightning ---------------------------------------------------------------------------------------------


class Automatic(pl.LightningModule):
    def __init__(self, model: nn.Module, optimizer: SGD, steps: int) -> None:
        super().__init__()
        self.model, self.optimizer, self.steps = model, optimizer, steps

    def configure_optimizers(self) -> SGD:
        return self.optimizer

    def training_step(self, batch: Batch, _: int) -> Tensor:
        return cross_entropy(self.model, batch)


class AutomaticCounted(Automatic):
    """Each batch comes with its window's count. Lightning divides by the steps, so multiply by them."""

    def training_step(self, counted: tuple[Batch, int], _: int) -> Tensor:
        batch, count = counted
        return cross_entropy(self.model, batch, "sum") * self.trainer.accumulate_grad_batches / count


class WithCounts:
    """A loader that gives each batch with the count of its window."""

    def __init__(self, loader: Iterable[Batch], steps: int) -> None:
        self.loader, self.steps = loader, steps

    def __iter__(self) -> Iterator[tuple[Batch, int]]:
        batches = iter(self.loader)
        while window := list(islice(batches, self.steps)):
            count = int(sum(counts_of(window)))
            yield from ((batch, count) for batch in window)


class Manual(Automatic):
    """As in Lightning's guide to manual optimisation, under "Gradient accumulation"."""

    automatic_optimization = False

    def training_step(self, batch: Batch, index: int) -> None:
        self.manual_backward(cross_entropy(self.model, batch) / self.steps)
        if (index + 1) % self.steps == 0:
            self.optimizers().step()
            self.optimizers().zero_grad()


class ManualWindows(Automatic):
    """The loader gives windows of micro-batches, each with its scale."""

    automatic_optimization = False

    def training_step(self, window: xent.torch.Window[Batch], _: int) -> None:
        for micro in window:
            self.manual_backward(cross_entropy(self.model, micro.batch, "sum") * micro.scale)
        self.optimizers().step()
        self.optimizers().zero_grad()


def fit(module: Automatic, loader: Iterable[Any], accumulate_grad_batches: int = 1) -> None:
    extras = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    off: dict[str, Any] = dict.fromkeys(extras, False)
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=1, accumulate_grad_batches=accumulate_grad_batches, **off
    )
    if HAND_OVER:
        raise Handed((trainer, module), list(loader))
    trainer.fit(module, loader)


def lightning_automatic(model: nn.Module, batches: list[Batch], repaired: bool, window: int = 1) -> None:
    steps, loader = window * len(batches), DataLoader(batches, batch_size=None)
    with optimiser(model) as sgd:
        if repaired:
            fit(AutomaticCounted(model, sgd, steps), WithCounts(loader, steps), steps)
        else:
            fit(Automatic(model, sgd, steps), loader, steps)


def lightning_manual(model: nn.Module, batches: list[Batch], repaired: bool) -> None:
    steps, loader = len(batches), DataLoader(batches, batch_size=None)
    with optimiser(model) as sgd:
        if repaired:
            loader = xent.torch.accumulate(loader, steps, targets=shifted_labels)
            fit(ManualWindows(model, sgd, steps), loader)
        else:
            fit(Manual(model, sgd, steps), loader)


# --- Loops without a trainer, in our words -----------------------------------------------------------------


def nano_loss(model: nn.Module, x: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """Both models of the nano family mark what does not count by -1."""
    logits = model(input_ids=x).logits.flatten(0, 1)
    return F.cross_entropy(logits, y.flatten(), ignore_index=-1, reduction=reduction)


def nano_batches(batches: list[Batch]) -> list[tuple[Tensor, Tensor]]:
    inputs = [batch["input_ids"][:, :-1] for batch in batches]
    targets = [shifted_labels(batch) for batch in batches]
    return [(x, y.where(y != IGNORED, -1)) for x, y in zip(inputs, targets, strict=True)]


def nano_gpt(model: nn.Module, batches: list[Batch], repaired: bool) -> None:
    """train.py: right as it comes, every block being full; wrong with masked targets, which it allows."""
    steps, loader = len(batches), nano_batches(batches)
    count = sum((y != -1).sum() for _, y in loader)
    for x, y in loader:
        loss = nano_loss(model, x, y, "sum") / count if repaired else nano_loss(model, x, y) / steps
        loss.backward()


def nanochat(model: nn.Module, batches: list[Batch], repaired: bool) -> None:
    """scripts/chat_sft.py: without DDP; the optimiser averages the ranks' gradients before it steps."""
    steps, loader = len(batches), nano_batches(batches)
    if repaired:
        for window in xent.torch.accumulate(loader, steps, targets=1, ignore_index=-1):
            for micro in window:
                (nano_loss(model, *micro.batch, "sum") * micro.scale).backward()
    else:
        for x, y in loader:
            (nano_loss(model, x, y) / steps).backward()
    if dist.is_initialized():
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def litgpt(model: nn.Module, batches: list[Batch], repaired: bool) -> None:
    """litgpt/finetune/full.py, with Fabric; its loss divides by the micro-batch's targets, at least by 1."""
    fabric = Fabric(accelerator="cpu", devices=1)
    steps = len(batches)
    counts = counts_of(batches)
    with optimiser(model) as sgd:
        wrapped, opt = fabric.setup(model, sgd)
        for k, batch in enumerate(batches):
            with fabric.no_backward_sync(wrapped, enabled=k + 1 < steps):
                total = cross_entropy(wrapped, batch, "sum")
                loss = total / sum(counts) if repaired else total / counts[k].clamp(min=1) / steps
                fabric.backward(loss)
        opt.step()
        opt.zero_grad()


def data_parallel(model: nn.Module, batches: list[Batch], repaired: bool, own: bool = False) -> None:
    """A plain loop under DistributedDataParallel or FSDP2, which average gradients over the ranks.

    With `own`, half mended: every rank divides by the count of its own window.
    """
    steps, count = len(batches), sum(counts_of(batches))
    if repaired:
        for window in xent.torch.accumulate(batches, steps, targets=shifted_labels):
            for micro in window:
                with synchronised(model, micro.is_last):
                    (cross_entropy(model, micro.batch, "sum") * micro.scale).backward()
    else:
        for k, batch in enumerate(batches):
            with synchronised(model, k == steps - 1):
                loss = cross_entropy(model, batch, "sum" if own else "mean")
                (loss / (count if own else steps)).backward()


def synchronised(model: nn.Module, last: bool) -> contextlib.AbstractContextManager[Any]:
    """Synchronise gradients in the last backward pass only."""
    if isinstance(model, DistributedDataParallel) and not last:
        return model.no_sync()
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
    return contextlib.nullcontext()


def sharded(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


# --- The table ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """A row. `source` says where it divides, in the versions of requirements.txt or at a commit."""

    name: str
    step: Callable[[nn.Module, list[Batch], bool], None]
    model: Callable[[], nn.Module]
    repair: str
    source: str
    ranks: int = 1
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model


# The end of an epoch: half a window is left.
accelerate_short_window = partial(accelerate_loop, window=2)
lightning_short_window = partial(lightning_automatic, window=2)
own_count = partial(data_parallel, own=True)
FUNCTIONS = {**vars(tiny), **globals()}
RECIPES = [
    Recipe(**row | {key: FUNCTIONS[row[key]] for key in ("step", "model", "wrap") if key in row})
    for row in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["recipe"]
]
