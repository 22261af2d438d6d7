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
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from xent._validate import number

from . import _accumulation_check as check
from ._accumulate import moved, ranks_of
from ._accumulation_check import AccumulationReport, random_states_kept, untouched

Step = Callable[[nn.Module, list[Any]], Any]
IGNORED = -100  # the label that trainers of language models leave out
LOOK = 64  # micro-batches that are read, at most, until two have unlike numbers of targets


def check_trainer(
    trainer: Any, batches: Iterable[Any] | None = None, *, tolerance: float | None = None
) -> AccumulationReport:
    """Hand over a trainer as it is: take a window from its loader, run its own step, and name the fault.

    Parameters
    ----------
    trainer : transformers.Trainer, or (lightning.Trainer, LightningModule)
        Before or after training, with the model and the arguments that you train with. Subclasses are taken as they
        are, such as TRL's SFTTrainer, DPOTrainer and GKDTrainer. A Lightning trainer comes with its module, or alone
        if it has one.
    batches : iterable, optional
        Micro-batches as the trainer's loader gives them: a list or tuple is one window; of another iterable as many are
        taken as the trainer accumulates, two at least; with manual optimisation, of either as many as go into the
        optimizer's first step, 64 at most. Otherwise they come from the trainer's own loader.
    tolerance : float, optional
        As for `check_accumulation`.

    Returns
    -------
    AccumulationReport
        Trainer and model are left as they were: parameters, gradients, the optimizer's state, global random states; a
        transformers.Trainer's counters and metrics too, not a LightningModule's own.

    Raises
    ------
    TypeError
        If `trainer` is neither; if `batches` cannot be iterated over.
    ValueError
        If there is no training data, or the loader ends before a window is full; if nothing is accumulated, and
        `batches` is no list or tuple; if micro-batches cannot be joined; if a transformers.Trainer's dataset is an
        iterator, or its loader's first window, of several, and up to 64 micro-batches more all have as many labels.

    Notes
    -----
    The model is put in evaluation mode, so that dropout does not hide the divisor. The reference is the trainer's own
    loss, or its own step, over the window's examples in one batch. Where that is too large, take a smaller
    configuration. TRL's GKD generates with the student: every prompt gets one reply, kept for the comparison.

    Examples
    --------
    Of a `transformers.Trainer` of a GPT-2, ``check_trainer(trainer).cause`` is, as `experiments/trainers` records it::

        the right direction, 0.8897 of what it should be: divided by the 145 labels before the shift, not by the
        129 targets
    """
    if tolerance is not None:
        tolerance = number(tolerance, "tolerance", "a number in (0, 1)", 0.0, 1.0)
    if batches is not None and not isinstance(batches, Iterable):
        raise TypeError(f"batches: expected an iterable of micro-batches, got {type(batches).__name__}")
    with ExitStack() as stack:
        stack.enter_context(random_states_kept())
        job = _job(trainer, batches, stack)
        counts = None
        if job.counts is not None:
            parts = [batch for theirs in job.everyone for batch in theirs]
            counts = check.in_all_ways([job.counts(batch) for batch in parts]) | {
                what: np.asarray([of(batch) for batch in parts], np.float64) for what, of in job.also.items()
            }
        return check.compare(
            job.model, job.everyone, job.mine, job.whole, job.step, job.reference, counts, tolerance
        )


@dataclass
class _Job:
    """What `compare` asks of a trainer."""

    model: nn.Module
    everyone: list[list[Any]]  # the micro-batches, by rank
    mine: list[Any]
    whole: Any
    step: Step
    reference: Callable[[nn.Module, Any], Any] | None
    counts: Callable[[Any], Tensor] | None = None  # a mask of the targets
    also: Mapping[str, Callable[[Any], int]] = field(default_factory=dict)  # what else is counted


def _job(trainer: Any, batches: Iterable[Any] | None, stack: ExitStack) -> _Job:
    pair = trainer if isinstance(trainer, tuple | list) and len(trainer) == 2 else (trainer, None)
    if hasattr(pair[0], "fit_loop") and hasattr(pair[0], "accumulate_grad_batches"):
        module = pair[1] or getattr(pair[0], "lightning_module", None)
        if not isinstance(module, nn.Module):
            raise TypeError("trainer: expected Lightning's with its module, (trainer, module), got no module")
        return _lightning(pair[0], module, batches, stack)
    if all(hasattr(trainer, name) for name in ("training_step", "get_train_dataloader", "compute_loss")):
        if not hasattr(trainer, "get_batch_samples"):
            raise TypeError("trainer: expected transformers 4.46 or newer, got one that counts nothing")
        return _hugging_face(trainer, batches, stack)
    raise TypeError(
        "trainer: expected a transformers.Trainer, or (lightning.Trainer, LightningModule), got "
        f"{type(trainer).__name__}; check_accumulation takes any step"
    )


# ---------------------------------------------------------------- Hugging Face


def _hugging_face(trainer: Any, batches: Iterable[Any] | None, stack: ExitStack) -> _Job:
    accelerator = trainer.accelerator
    for thing in (trainer, accelerator, getattr(accelerator, "gradient_state", None)):
        stack.enter_context(_kept(thing))
    ranks = ranks_of()
    size = trainer.args.gradient_accumulation_steps
    examples = _Examples(trainer.data_collator)
    if size * ranks < 2 and not isinstance(batches, list | tuple):
        raise ValueError(
            "trainer: expected gradient_accumulation_steps of 2 or more, got 1: nothing is accumulated"
        )
    if batches is None:
        stack.enter_context(_patched(trainer, data_collator=examples))
        alone = {"dataloader_num_workers": 0, "dataloader_persistent_workers": False}
        # No other process reads ahead, or examples are collated out of sight.
        stack.enter_context(_patched(trainer.args, **alone, dataloader_prefetch_factor=None))
        mine, chosen = _window(_loader(trainer), size)
        stack.enter_context(_patched(trainer, data_collator=examples.collate))
        rows = check.exchange(examples.of(mine, chosen), None, ranks)
    else:
        mine, rows = _given(batches, size), [None]
    everyone = check.exchange(mine, None, ranks)
    parts = [batch for theirs in everyone for batch in theirs]
    whole = None
    if all(theirs is not None for theirs in rows):
        whole = examples.collate(copy.deepcopy([row for theirs in rows for row in theirs]))
    if whole is None or _rows(whole) != sum(map(_rows, parts)):  # an example may be a batch already
        whole = _joined(parts)
    model = getattr(trainer, "model_wrapped", trainer.model)
    if ranks > 1 and model is trainer.model:
        model = accelerator.prepare_model(model)  # as train() does
    stack.enter_context(_evaluating(model))
    # Neither a loss scale nor an optimizer that moves parameters when training begins.
    stack.enter_context(_patched(accelerator, scaler=None))
    stack.enter_context(_patched(trainer, optimizer=None))
    generated = _on_policy(trainer, model, stack)

    def step(model: nn.Module, batches: list[Any]) -> None:
        # As in Trainer.train, between two optimizer steps.
        given = iter(batches), len(batches), trainer.args.device  # the device since 4.49
        takes = len(inspect.signature(trainer.get_batch_samples).parameters)
        samples, count = trainer.get_batch_samples(*given[:takes])
        trainer.current_gradient_accumulation_steps = len(samples)
        for i, inputs in enumerate(samples):
            silent = ranks > 1 and i + 1 < len(samples) and hasattr(model, "no_sync")
            quiet: AbstractContextManager[Any] = model.no_sync() if silent else nullcontext()  # type: ignore[operator]
            with quiet:
                trainer.training_step(model, inputs, count)

    def reference(model: nn.Module, batch: Any) -> None:
        inputs = trainer._prepare_inputs(generated(batch) if generated else batch)
        with trainer.compute_loss_context_manager():
            loss = trainer.compute_loss(model, inputs)
        loss.mean().backward()

    def labels(batch: Any) -> Any:
        return (generated(batch) if generated else batch)["labels"] != IGNORED

    has_labels = _labels(mine[0]) >= 0
    # Causal, all of them: the Trainer counts after the shift.
    what = "labels of the loader's batch, before the reply was generated"
    before = {what: lambda batch: _labels({"labels": batch["labels"][:, 1:]})}
    # A sum over num_items_in_batch has no mean without a count: it fails, or is left as a sum.
    plain = _runs(reference, model, mine[0]) and not _adds_up(model, reference, parts, whole)
    return _Job(
        model, everyone, mine, whole, step, reference if plain else None,
        labels if has_labels else None, before if generated else {},
    )  # fmt: skip


def _loader(trainer: Any) -> Iterable[Any]:
    """Return the trainer's loader, or say why there is none to read from."""
    data = getattr(trainer, "train_dataset", None)
    if isinstance(data, Iterable) and not hasattr(data, "__len__") and iter(data) is iter(data):
        raise ValueError(
            "trainer: its train_dataset is an iterator, from which nothing can be read without loss; expected a "
            "dataset that can be read again, or batches="
        )
    try:
        return trainer.get_train_dataloader()  # type: ignore[no-any-return]
    except ValueError as failure:
        raise ValueError(f"trainer: expected training data, got none ({failure}); pass batches=") from failure


def _window(loader: Iterable[Any], size: int) -> tuple[list[Any], list[int]]:
    """Return `size` micro-batches whose numbers of labels are not all the same, and which of the loader's they are.

    They are the loader's first, but for the last of several, which is the first that differs.
    """
    batches: list[Any] = []
    with_labels: list[int] = []
    for i, batch in enumerate(islice(loader, LOOK + size)):
        if i < size:
            batches.append(batch)
        with_labels.append(_labels(batch))
        if i + 1 >= size and len({*with_labels[: size - 1], with_labels[i]}) >= min(size, 2):
            return [*batches[:-1], batch], [*range(size - 1), i]
        if i + 1 == size and with_labels[i] < 0:  # another loss than one of labels
            return batches, list(range(size))
    if len(batches) < size:
        raise ValueError(
            f"trainer: expected a loader of at least {size} micro-batches, one window, got {len(batches)}; pass a "
            "list of batches= to check a shorter window"
        )
    raise ValueError(
        f"trainer: expected micro-batches with unlike numbers of labels, got {len(with_labels)} with "
        f"{with_labels[0]} each, which hide a mean of means; pass batches= that differ"
    )


def _labels(batch: Any) -> int:
    """Return how many labels a batch has; -1 if it has none that we know."""
    labels = batch.get("labels") if isinstance(batch, Mapping) else None
    return int((labels != IGNORED).sum()) if isinstance(labels, Tensor) else -1


def _given(batches: Iterable[Any], size: int) -> list[Any]:
    """Return the window that a user hands over."""
    listed, size = isinstance(batches, list | tuple), max(size, 2)
    mine = list(batches if listed else islice(batches, size))
    if len(mine) < (2 if listed else size):
        raise ValueError(f"batches: expected {size} micro-batches, one window, got {len(mine)}")
    return mine


class _Examples:
    """A collator that remembers the examples it was given."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate, self.seen = collate, list[list[Any]]()

    def __call__(self, examples: list[Any]) -> Any:
        self.seen.append(copy.deepcopy(examples))
        return self.collate(examples)

    def of(self, batches: list[Any], chosen: list[int]) -> list[Any] | None:
        """Return the examples of the chosen batches, if collating them again gives these batches; else None."""
        if len(self.seen) <= max(chosen):
            return None
        rows = [self.seen[i] for i in chosen]
        again = (self.collate(copy.deepcopy(examples)) for examples in rows)
        if not all(_alike(a, b) for a, b in zip(again, batches, strict=True)):
            return None  # it masks at random, or another process deals the examples out
        return [row for examples in rows for row in examples]


def _on_policy(trainer: Any, model: nn.Module, stack: ExitStack) -> Callable[[Any], Any] | None:
    """Have TRL's GKD train on its own replies in every step, with one reply for a prompt; return a batch with them."""
    if not (hasattr(trainer, "generate_on_policy_outputs") and getattr(trainer, "lmbda", 0) > 0):
        return None
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

    stack.enter_context(_patched(trainer, generate_on_policy_outputs=replies, lmbda=1.0))

    def generated(batch: Any) -> Any:
        given = getattr(model, "module", model), moved(batch, trainer.args.device, False)
        written = replies(*given, trainer.generation_config)
        return {**batch, **dict(zip(("input_ids", "attention_mask", "labels"), written, strict=True))}

    return generated


def _runs(reference: Callable[[nn.Module, Any], Any], model: nn.Module, batch: Any) -> bool:
    """Whether a loss can be had without a count: a sum over num_items_in_batch cannot do without."""
    with untouched(model):
        try:
            reference(model, copy.deepcopy(batch))
        except Exception:  # of whatever kind: one that has another cause comes again in the step
            return False
    return True


# ---------------------------------------------------------------- Lightning


def _lightning(trainer: Any, module: Any, batches: Iterable[Any] | None, stack: ExitStack) -> _Job:
    stack.enter_context(_evaluating(module))
    automatic, size = bool(module.automatic_optimization), trainer.accumulate_grad_batches
    window = _Manual(module)
    known = {} if getattr(module, "_trainer", None) is trainer else {"_trainer": trainer}
    idle = ["log", "log_dict"]
    if not automatic:
        idle += ["lr_schedulers", "clip_gradients", "toggle_optimizer", "untoggle_optimizer"]
        stack.enter_context(_patched(module, optimizers=lambda *_, **__: window))
        stack.enter_context(_patched(module, manual_backward=lambda loss, *a, **k: loss.backward(*a, **k)))
    stack.enter_context(_patched(module, **dict.fromkeys(idle, lambda *_, **__: None), **known))
    takes = len(inspect.signature(module.training_step).parameters)

    def training_step(batch: Any, index: int) -> Any:
        batch = moved(batch, getattr(module, "device", "cpu"), False)
        with trainer.precision_plugin.train_step_context():
            return module.training_step(*(batch, index)[:takes])

    def step(model: nn.Module, batches: list[Any]) -> None:
        window.open = True
        for i, batch in enumerate(batches):
            if not automatic:
                training_step(batch, i)
            elif (output := training_step(batch, i)) is not None:
                loop = trainer.fit_loop.epoch_loop.automatic_optimization
                divided = loop.output_result_cls.from_training_step_output(output, size)
                divided.closure_loss.backward()

    mine = _lightning_window(trainer, module, batches, size, automatic, window, training_step)
    whole = _joined(mine)

    def reference(model: nn.Module, batch: Any) -> None:
        if not automatic:  # the module divides by its own steps: as many copies of a batch have its mean
            return step(model, [copy.deepcopy(batch) for _ in mine])
        output = training_step(batch, 0)
        return (output["loss"] if isinstance(output, Mapping) else output).backward()  # type: ignore[no-any-return]

    # A sum, or a loss that has its divisor already: then Lightning's division belongs to it.
    summed = automatic and _adds_up(module, reference, mine, whole)
    labels = (lambda batch: batch["labels"] != IGNORED) if _labels(mine[0]) >= 0 else None
    return _Job(module, [mine], mine, whole, step, None if summed else reference, labels)


class _Manual:
    """Stands for the optimizers of a module with manual optimisation; its step closes the window."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.open, self.steps = module, True, 0
        self.param_groups: list[Any] = []

    def __iter__(self) -> Iterator[_Manual]:
        return iter((self,))

    def zero_grad(self, *_: Any, **__: Any) -> None:
        if self.open:
            self.module.zero_grad()

    def step(self, *_: Any, **__: Any) -> None:
        self.open = False
        self.steps += 1


def _lightning_window(
    trainer: Any, module: Any, batches: Any, size: int, automatic: bool, window: _Manual, training_step: Any
) -> list[Any]:
    """Return a window; with manual optimisation it is as long as the module goes without its optimizer's step."""
    if batches is None:
        source = getattr(trainer, "datamodule", None) or module
        try:
            batches = source.train_dataloader()
        except Exception as failure:  # Lightning's own, of which we know no class
            raise ValueError(
                f"trainer: expected training data, got none ({failure}); pass the loader that you give to fit as "
                "batches="
            ) from failure
        if not isinstance(batches, Iterable):
            raise ValueError(f"trainer: expected a loader to train on, got {type(batches).__name__}")
        batches = iter(batches)
    if automatic:
        if size < 2 and not isinstance(batches, list | tuple):
            raise ValueError(
                "trainer: expected accumulate_grad_batches of 2 or more, got 1: nothing is accumulated"
            )
        return _given(batches, size)
    mine: list[Any] = []
    with untouched(module):
        for i, batch in enumerate(islice(batches, LOOK)):
            mine.append(batch)
            training_step(copy.deepcopy(batch), i)
            if window.steps:
                break
    if not window.steps or len(mine) < 2:
        raise ValueError(
            "trainer: expected a training step with manual optimisation that takes its optimizer's step after "
            f"several micro-batches, got {window.steps} steps in {len(mine)}; check_accumulation takes any step"
        )
    return mine


def _adds_up(model: nn.Module, passes: Callable[[nn.Module, Any], Any], parts: list[Any], whole: Any) -> bool:
    """Whether the loss of the whole batch is the sum of its parts' losses, not their mean."""
    with untouched(model) as values:
        *pieces, at_once = (
            check.gradient_of(model, values, partial(passes, model, copy.deepcopy(batch)))
            for batch in (*parts, whole)
        )
    return bool(at_once.any()) and check.error(torch.stack(pieces).sum(0), at_once) < 0.01


# ---------------------------------------------------------------- batches and states


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
    if isinstance(first, tuple):
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
    return bool(a == b)


@contextmanager
def _patched(thing: Any, **attributes: Any) -> Iterator[None]:
    """Give an object other attributes for a while."""
    own, missing = thing.__dict__, object()
    before = {name: own.get(name, missing) for name in attributes}
    own.update(attributes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is missing:
                own.pop(name, None)
            else:
                own[name] = value


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Have the model in evaluation mode, each module of it, for a while, whatever a step asks of it."""
    modes = [(module, module.training) for module in model.modules()]
    for module, _ in modes:
        module.training = False
    try:
        with _patched(model, train=lambda mode=True: model):
            yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def _kept(thing: Any) -> Iterator[None]:
    """Put an object's attributes back, and what is in its containers."""
    if not hasattr(thing, "__dict__"):
        yield
        return
    states = (vars(v) for k, v in vars(thing).items() if k in ("state", "control"))
    undone = [_snapshot(values) for values in (vars(thing), *states)]
    try:
        yield
    finally:
        for undo in undone:
            undo()


def _snapshot(value: Any) -> Callable[[], None]:
    """Return what puts a container's contents back, and those of the containers in it."""
    if not isinstance(value, dict | list | deque):
        return lambda: None
    kept = dict(value) if isinstance(value, dict) else list(value)
    inside = [_snapshot(v) for v in (kept.values() if isinstance(kept, dict) else kept)]

    def undo() -> None:
        value.clear()
        value.update(kept) if isinstance(value, dict) else value.extend(kept)
        for again in inside:
            again()

    return undo
