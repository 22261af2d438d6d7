"""Does a trainer, as it is, accumulate gradients rightly? Its own loader, its own step, a report.

No library is imported: a Hugging Face `Trainer` (TRL's are subclasses) and a Lightning `Trainer` are told by what
they have. What is asked of either is the same: a window of ragged micro-batches, the same examples in one batch, a
step over a window, and plain passes over one batch, in which nothing is accumulated.
"""

from __future__ import annotations

import copy
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from . import _accumulation_check as check
from ._accumulate import moved, ranks_of
from ._accumulation_check import AccumulationReport, random_states_kept, untouched

IGNORED = -100  # the label that trainers of language models leave out
LOOK = 64  # micro-batches that are read, at most, until two have unlike numbers of targets


def check_trainer(
    trainer: Any, batches: Iterable[Any] | None = None, *, tolerance: float | None = None
) -> AccumulationReport:
    """Hand over a trainer as it is: take a window from its loader, run its own step, and name the fault.

    Parameters
    ----------
    trainer : transformers.Trainer, or (lightning.Trainer, LightningModule)
        Before or after training, with the model and the arguments that you train with. Of transformers, from 4.49 on,
        subclasses too (SFTTrainer, DPOTrainer, GKDTrainer); of Lightning with its module, or alone if it has one.
    batches : iterable, optional
        Micro-batches as the trainer's loader gives them: a list or tuple is one window; of another iterable as many are
        taken as the trainer accumulates; with manual optimisation, of either as many as go into the optimizer's first
        step, 64 at most. Otherwise they come from the trainer's own loader.
    tolerance : float, optional
        As for `check_accumulation`.

    Returns
    -------
    AccumulationReport
        Trainer and model are left as they were: parameters, gradients, the optimizer's state, global random states,
        counters and metrics, but for what other objects that they hold have counted.

    Raises
    ------
    TypeError
        If `trainer` is neither, or `batches` cannot be iterated over.
    ValueError
        If there is no training data, or less than a window; if nothing is accumulated, and `batches` is no list or
        tuple; if micro-batches cannot be joined.

    Notes
    -----
    The model is put in evaluation mode, so that dropout does not hide the divisor. The reference is the trainer's own
    loss, or its own step, over the window's examples in one batch. If all micro-batches of a window have as many
    labels, its last one gives way to the first, of up to 64 more, that has not. TRL's GKD generates with the student:
    every prompt gets one reply, kept for the comparison. Of a `transformers.Trainer` of a GPT-2, as
    `experiments/trainers` records it, ``check_trainer(trainer).cause`` is "the right direction, 0.8897 of what it
    should be: divided by the 145 labels before the shift, not by the 129 targets".
    """
    if batches is not None and not isinstance(batches, Iterable):
        raise TypeError(f"batches: expected an iterable of micro-batches, got {type(batches).__name__}")
    pair = isinstance(trainer, tuple | list) and len(trainer) == 2
    first, module = trainer if pair else (trainer, getattr(trainer, "lightning_module", None))
    with ExitStack() as stack:
        stack.enter_context(random_states_kept())
        if hasattr(first, "fit_loop") and isinstance(module, nn.Module):
            return _lightning(first, module, batches, tolerance, stack)
        if all(hasattr(trainer, name) for name in ("get_batch_samples", "training_step", "compute_loss")):
            return _hugging_face(trainer, batches, tolerance, stack)
    got = ", ".join(type(part).__name__ for part in (trainer if pair else [trainer]))
    raise TypeError(
        "trainer: expected a transformers.Trainer, or (lightning.Trainer, LightningModule), got "
        f"{got}; check_accumulation takes any step"
    )


# ---------------------------------------------------------------- Hugging Face


def _hugging_face(
    trainer: Any, batches: Iterable[Any] | None, tolerance: float | None, stack: ExitStack
) -> AccumulationReport:
    accelerator = trainer.accelerator
    for part in (accelerator.gradient_state, trainer.state, trainer.control):
        stack.enter_context(_kept(part))
    # Neither a loss scale nor an optimizer that moves parameters when training begins.
    stack.enter_context(_kept(accelerator, scaler=None))
    stack.enter_context(_kept(trainer, optimizer=None))
    everyone, whole = _hugging_face_window(trainer, batches, stack)
    parts = [batch for theirs in everyone for batch in theirs]
    model = trainer.model_wrapped
    _evaluate(model, stack)
    if model is trainer.model:
        model = accelerator.prepare_model(model)  # as train() does: it brings autocast, and the ranks
    writes = hasattr(trainer, "generate_on_policy_outputs") and getattr(trainer, "lmbda", 0) > 0
    seen = _on_policy(trainer, model) if writes else lambda batch: batch

    def step(model: nn.Module, batches: list[Any]) -> None:
        # As in Trainer.train, between two optimizer steps.
        samples, count = trainer.get_batch_samples(iter(batches), len(batches), trainer.args.device)
        trainer.current_gradient_accumulation_steps = len(samples)
        for i, inputs in enumerate(samples):
            with nullcontext() if i + 1 == len(samples) else accelerator.no_sync(model):
                trainer.training_step(model, inputs, count)

    def reference(model: nn.Module, batch: Any) -> None:
        with trainer.compute_loss_context_manager():
            loss = trainer.compute_loss(model, trainer._prepare_inputs(seen(batch)))
        loss.mean().backward()

    masks = [seen(batch)["labels"] != IGNORED for batch in parts] if _labels(parts[0]) >= 0 else None
    also = {}
    if writes:  # causal, all of them: the Trainer counts after the shift
        given = [_labels({"labels": batch["labels"][:, 1:]}) for batch in parts]
        also["labels of the loader's batch, before the reply was generated"] = torch.tensor(
            given, dtype=torch.float64
        )
    # A sum over num_items_in_batch has no mean without a count: it fails, or is left as a sum.
    plain = reference if _is_a_mean(model, reference, parts, whole) else None
    return check.compare(model, everyone, whole, step, plain, masks, tolerance, also=also)


def _hugging_face_window(
    trainer: Any, batches: Iterable[Any] | None, stack: ExitStack
) -> tuple[list[list[Any]], Any]:
    """Return the micro-batches of all ranks, and the same examples in one batch."""
    collate, read = trainer.data_collator, list[list[Any]]()  # the examples of each micro-batch

    def remember(examples: list[Any]) -> Any:
        read.append(copy.deepcopy(examples))
        return collate(examples)

    if batches is None:
        # No other process reads ahead, or examples are collated out of sight.
        alone = {"dataloader_num_workers": 0, "dataloader_persistent_workers": False}
        stack.enter_context(_kept(trainer.args, **alone, dataloader_prefetch_factor=None))
        trainer.data_collator = remember  # which is put back with the rest
        batches = _loader(trainer.get_train_dataloader)
    mine, chosen = _window(batches, trainer.args, "gradient_accumulation_steps")
    rows = [read[i] for i in chosen if i < len(read)]
    # Others come where it masks at random, or another process deals the examples out.
    known = _alike([collate(copy.deepcopy(some)) for some in rows], mine)
    everyone = check.exchange((mine, rows if known else None), None, ranks_of())
    parts = [batch for theirs, _ in everyone for batch in theirs]
    whole = None
    if all(rows is not None for _, rows in everyone):
        whole = collate([copy.deepcopy(row) for _, rows in everyone for some in rows for row in some])
    if whole is None or _rows(whole) != sum(map(_rows, parts)):  # an example may be a batch already
        whole = _joined(parts)
    return [theirs for theirs, _ in everyone], whole


def _on_policy(trainer: Any, model: nn.Module) -> Callable[[Any], Any]:
    """Have TRL's GKD train on its own replies in every step, with one reply for a prompt; return a batch with them."""
    draw, drawn = trainer.generate_on_policy_outputs, dict[tuple[int, ...], tuple[Tensor, ...]]()

    def replies(model: Any, inputs: Any, config: Any) -> tuple[Tensor, ...]:
        rows = []
        for prompt, mask in zip(inputs["prompts"], inputs["prompt_attention_mask"], strict=True):
            key = tuple(prompt[mask.bool()].tolist())
            if key not in drawn:
                row = {"prompts": prompt[mask.bool()][None], "prompt_attention_mask": mask[mask.bool()][None]}
                drawn[key] = tuple(t[0].clone() for t in draw(model, row, config))
            rows.append(drawn[key])
        columns = zip(zip(*rows, strict=True), (0, 0, IGNORED), strict=True)
        return tuple(pad_sequence(list(column), True, pad) for column, pad in columns)

    def written(batch: Any) -> Any:
        given = getattr(model, "module", model), moved(batch, trainer.args.device, False)
        reply = replies(*given, trainer.generation_config)
        return {**batch, **dict(zip(("input_ids", "attention_mask", "labels"), reply, strict=True))}

    trainer.generate_on_policy_outputs, trainer.lmbda = replies, 1.0  # which are put back with the rest
    return written


# ---------------------------------------------------------------- Lightning


def _lightning(
    trainer: Any, module: Any, batches: Iterable[Any] | None, tolerance: float | None, stack: ExitStack
) -> AccumulationReport:
    automatic, size = bool(module.automatic_optimization), trainer.accumulate_grad_batches
    _evaluate(module, stack)
    optimizer = _Manual(module)
    own: dict[str, Any] = dict.fromkeys(("log", "log_dict"), lambda *_, **__: None)
    if not automatic:
        idle = ("clip_gradients", "toggle_optimizer", "untoggle_optimizer")
        own |= dict.fromkeys(idle, lambda *_, **__: None)
        own["optimizers"] = lambda *_, **__: optimizer
        own["lr_schedulers"] = lambda *_, **__: _Manual(module)  # whose steps nobody counts
        own["manual_backward"] = lambda loss, *a, **k: loss.backward(*a, **k)
    stack.enter_context(_kept(module, _trainer=trainer, **own))
    takes = len(inspect.signature(module.training_step).parameters)

    def training_step(batch: Any, index: int) -> Any:
        batch = moved(batch, getattr(module, "device", "cpu"), False)
        with trainer.precision_plugin.train_step_context():
            return module.training_step(*(batch, index)[:takes])

    def step(model: nn.Module, batches: list[Any]) -> None:
        optimizer.open = True
        for i, batch in enumerate(batches):
            output = training_step(batch, i)
            if automatic and output is not None:
                loop = trainer.fit_loop.epoch_loop.automatic_optimization
                loop.output_result_cls.from_training_step_output(output, size).closure_loss.backward()

    if batches is None:
        batches = _loader((getattr(trainer, "datamodule", None) or module).train_dataloader)
    if automatic:
        mine, _ = _window(batches, trainer, "accumulate_grad_batches")
    else:
        mine = _until_a_step(batches, module, optimizer, training_step)
    whole = _joined(mine)

    def reference(model: nn.Module, batch: Any) -> None:
        if automatic:
            output = training_step(batch, 0)
            (output["loss"] if isinstance(output, Mapping) else output).backward()
        else:  # the module divides by its own steps: as many copies of a batch have its mean
            step(model, [copy.deepcopy(batch) for _ in mine])

    # A sum, or a loss that has its divisor already: then Lightning's division belongs to it.
    plain = reference if not automatic or _is_a_mean(module, reference, mine, whole) else None
    masks = [batch["labels"] != IGNORED for batch in mine] if _labels(mine[0]) >= 0 else None
    return check.compare(module, [mine], whole, step, plain, masks, tolerance)


class _Manual:
    """Stands for the optimizers of a module with manual optimisation; its step closes the window."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.open, self.steps = module, True, 0
        self.param_groups = [{"lr": 0.0}]

    def zero_grad(self, *_: Any, **__: Any) -> None:
        if self.open:
            self.module.zero_grad()

    def step(self, *_: Any, **__: Any) -> None:
        self.open = False
        self.steps += 1


def _until_a_step(
    batches: Iterable[Any], module: nn.Module, optimizer: _Manual, training_step: Callable[[Any, int], Any]
) -> list[Any]:
    """Return as many micro-batches as a module with manual optimisation takes before its optimizer's step."""
    mine: list[Any] = []
    with untouched(module):
        for i, batch in enumerate(islice(batches, LOOK)):
            mine.append(batch)
            training_step(copy.deepcopy(batch), i)
            if optimizer.steps:
                break
    if not optimizer.steps or len(mine) < 2:
        raise ValueError(
            "trainer: expected a training step with manual optimisation that takes its optimizer's step after "
            f"several micro-batches, got {optimizer.steps} steps in {len(mine)}; check_accumulation takes any step"
        )
    return mine


# ---------------------------------------------------------------- both


def _loader(load: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    try:
        return iter(load())
    except Exception as failure:  # Lightning's own, of which we know no class
        raise ValueError(f"trainer: expected training data, got none ({failure}); pass batches=") from failure


def _window(batches: Iterable[Any], owner: Any, setting: str) -> tuple[list[Any], list[int]]:
    """Return a window, with unlike numbers of labels if such can be found, and which of the batches they are."""
    listed, size = isinstance(batches, list | tuple), getattr(owner, setting)
    if size * ranks_of() < 2 and not listed:
        raise ValueError(f"trainer: expected {setting} of 2 or more, got 1: nothing is accumulated")
    given = iter(batches)
    window = list(given if listed else islice(given, size))
    if len(window) < (2 if listed else size):
        raise ValueError(f"batches: expected {max(size, 2)} micro-batches, one window, got {len(window)}")
    counts = {_labels(batch) for batch in window}
    if len(window) > 1 and len(counts) == 1 and -1 not in counts:
        for i, batch in enumerate(islice(given, LOOK), size):
            if _labels(batch) not in counts:
                return [*window[:-1], batch], [*range(size - 1), i]
    return window, list(range(len(window)))


def _labels(batch: Any) -> int:
    """Return how many labels a batch has; -1 if it has none that we know."""
    labels = batch.get("labels") if isinstance(batch, Mapping) else None
    return int((labels != IGNORED).sum()) if isinstance(labels, Tensor) else -1


def _is_a_mean(
    model: nn.Module, passes: Callable[[nn.Module, Any], Any], parts: list[Any], whole: Any
) -> bool:
    """Whether the loss of one batch can be had, and that of the whole is not the sum of its parts' losses."""
    with untouched(model) as values:
        try:
            *pieces, at_once = (
                check.gradient_of(model, values, partial(passes, model, copy.deepcopy(batch)))
                for batch in (*parts, whole)
            )
        except Exception:  # of whatever kind: one that has another cause comes again in the step
            return False
    return not at_once.any() or not check.error(torch.stack(pieces).sum(0), at_once) < 0.01


def _joined(batches: Sequence[Any], key: str = "") -> Any:
    """Return the rows of all batches in one: labels are padded by -100, all else by 0."""
    first = batches[0]
    if isinstance(first, Mapping):
        return {k: _joined([batch[k] for batch in batches], str(k)) for k in first}
    if isinstance(first, Tensor) and first.ndim:
        if len({b.shape[1:] for b in batches}) == 1:
            return torch.cat(list(batches))
        if key and len({b.shape[2:] for b in batches}) == 1:
            pad = IGNORED if "label" in key else 0
            return pad_sequence([row for b in batches for row in b], True, pad)
        shapes = ", ".join(str(tuple(b.shape)) for b in batches)
        raise ValueError(f"batches: expected dictionaries, or tensors of one width, got the shapes {shapes}")
    # PyTorch's own collator makes a list of columns of rows that are tuples.
    if isinstance(first, tuple) or (isinstance(first, list) and not key and isinstance(first[0], Tensor)):
        return tuple(_joined(column, key) for column in zip(*batches, strict=True))
    if isinstance(first, list):
        return [row for batch in batches for row in batch]
    if all(_alike(first, other) for other in batches):
        return first
    raise ValueError(f"batches: expected tensors, got {type(first).__name__}s that differ in '{key}'")


def _rows(batch: Any) -> int:
    """Return how many rows the first tensor of a batch has."""
    values = batch.values() if isinstance(batch, Mapping) else [batch]
    return next((len(v) for v in values if isinstance(v, Tensor) and v.ndim), 0)


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a.cpu(), b.cpu())
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_alike(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_alike, a, b))
    return np.array_equal(a, b)


def _evaluate(model: nn.Module, stack: ExitStack) -> None:
    """Have a model in evaluation mode, each module of it, whatever a step asks of it."""
    for module in model.modules():
        stack.enter_context(_kept(module, training=False))
    stack.enter_context(_kept(model, train=lambda mode=True: model))


@contextmanager
def _kept(thing: Any, **meanwhile: Any) -> Iterator[None]:
    """Give an object other attributes for a while; then put its own back, and what is in its containers."""
    held = [(c, dict(c) if isinstance(c, dict) else list(c)) for c in _containers(vars(thing))]
    vars(thing).update(meanwhile)
    try:
        yield
    finally:
        for container, kept in held:
            container.clear()
            container.update(kept) if isinstance(kept, dict) else container.extend(kept)


def _containers(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list | deque):
        yield value
        for part in value.values() if isinstance(value, dict) else value:
            yield from _containers(part)
