"""diagnose: a hundred losses that it names or does not explain, and what cannot be called as a loss."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

import xent
from xent import diagnose

F, nn = torch.nn.functional, torch.nn
Loss = Callable[..., Any]
# One worker imports TensorFlow, once.
pytestmark = pytest.mark.xdist_group("frameworks")


def _losses() -> ModuleType:
    """The table beside this file, which is no test."""
    spec = importlib.util.spec_from_file_location(
        "losses_to_diagnose", Path(__file__).with_name("losses_to_diagnose.py")
    )
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TABLE = _losses()
KERAS = tuple(TABLE.KERAS)
CASES: dict[str, Any] = {
    **TABLE.torch_libraries(), **TABLE.numpy_libraries(), **TABLE.from_threads(), **TABLE.fresh(),
    **TABLE.from_repositories(), **TABLE.two_faults(),
    **dict.fromkeys(KERAS),
}  # fmt: skip
# What the table's cases leave out: of a loss of tensors the gradient is that of its value, or what stands here.
FADES = "that of the value, but "
GRADIENTS = {
    "BCELoss": FADES, "BCELoss, sum": FADES, "epsilon of 1e-3 in the logarithm": FADES, "clamped probabilities": FADES,
    "the label plus 0.01": FADES, "Keras sparse": FADES, "Keras binary": FADES, "Keras KL": FADES,
    "focal, detached factor": "not that of the value: it differs by 0.24", "detached": "missing: what the loss returns",
    "straight through": "that of the value, and nan for a sure and right answer",  # the log of probabilities of 0
}  # fmt: skip
# What is averaged over ragged sequences: how the answer begins.
SEQUENCES = {
    "CrossEntropyLoss": "over the valid tokens (label -100", "CrossEntropyLoss, sum": "a sum (label -100",
    "CrossEntropyLoss, none": "one value for each position", "CrossEntropyLoss, ignore 0": "over the valid tokens (",
    "mean of sequence means": "a mean of sequence means", "padding in the mean": "over all positions, padding included",
    "xent.cross_entropy": "over all positions (no label", "Keras sparse": "over all positions, padding included (",
    "labels shifted inside": "over the valid tokens (label -100 left out); shifts the labels itself",
}  # fmt: skip
CLIPS = {
    "BCELoss": "the log at -100", "scikit-learn log_loss": "at 2.2e-16", "log10": "adds 1.0e-12", "log2": "no, an",
    "epsilon of 1e-3 in the logarithm": "adds 0.001", "clamped probabilities": "at 1.0e-07", "clipped twice": "at 1.0",
    "log of a softmax": "exp underflows, cost inf", "Keras sparse": "at 1.0e-07", "CrossEntropyLoss": "no",
}  # fmt: skip
PRECISIONS = {
    "float16": "float16",
    "bfloat16, then float": "bfloat16",
    "upcast": "float32",
    "NLLLoss, weights": "float32",
}
# Losses that are a cross-entropy, and that nothing here explains: none of them today.
NOT_EXPLAINED: set[str] = set()


def same(seen: Any, want: Any) -> bool:
    """Equal, up to a thousandth in numbers, the order of a tuple of names aside."""
    if isinstance(want, tuple) and isinstance(seen, tuple):
        if all(isinstance(v, str) for v in want):
            return set(seen) == set(want)
        return len(seen) == len(want) and np.allclose(seen, want, rtol=1e-3)
    if isinstance(want, float) and isinstance(seen, float):
        return bool(np.isclose(seen, want, rtol=1e-3, atol=1e-6))
    return bool(seen == want)


def verdict(found: xent.Diagnosis, expected: dict[str, Any] | None) -> str:
    """ "right", "not explained" or what is wrong."""
    if expected is None:
        return "wrong: it is no cross-entropy" if found.known else "right"
    if not found.known:
        return "not explained"
    wrong = {
        k: (getattr(found, k), v)
        for k, v in (TABLE.PLAIN | expected).items()
        if not same(getattr(found, k), v)
    }
    return f"wrong: {wrong}" if wrong else "right"


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_hundred_losses(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Right, or not explained; never wrong."""
    if name in KERAS:
        from xent_book import behaviours

        loss, expected = TABLE.keras_libraries(behaviours.keras().losses)[name]
    else:
        loss, expected = CASES[name]
    found = diagnose(loss)
    assert verdict(found, expected) == ("not explained" if name in NOT_EXPLAINED else "right"), repr(found)
    assert max(map(len, repr(found).splitlines())) <= 42, "wider than a phone"
    if found.known and found.arrays == "torch" and found.axis == "the classes" and name not in GRADIENTS:
        assert found.gradient == "that of the value"
    for field, says in (
        ("gradient", GRADIENTS),
        ("sequences", SEQUENCES),
        ("clip", CLIPS),
        ("precision", PRECISIONS),
    ):
        assert getattr(found, field).startswith(says.get(name, "")), (field, repr(found))
    assert capfd.readouterr() == ("", "")


def test_they_are_a_hundred_and_ninety_of_each_hundred_are_explained() -> None:
    threads = len(TABLE.from_threads())
    assert len(CASES) >= 100 and threads >= 40
    assert len(NOT_EXPLAINED) <= len(CASES) // 10


# ------------------------------------------------------------------------------------------ what is no loss


def other_shape() -> Loss:
    sizes = iter(range(1, 10**6))
    return lambda z, y: np.ones(next(sizes))


def random() -> Loss:
    rng = np.random.default_rng(0)
    return lambda z, y: xent.cross_entropy(z, y) + rng.normal(0, 1e-3)


def failing(message: str) -> Loss:
    def loss(z: Any, y: Any) -> Any:
        raise RuntimeError(message)

    return loss


BAD: dict[str, tuple[Any, str]] = {
    "raises": (failing("the cache is cold"), "with NumPy arrays: RuntimeError: the cache is cold"),
    "nothing": (lambda a, b: None, "with NumPy arrays: TypeError: it returned None, no number"),
    "text": (lambda a, b: "0.3", "with NumPy arrays: TypeError: it returned a value of type str, no number"),
    "a tuple": (lambda a, b: (a, b), "TypeError: it returned a tuple of 2, no number: pass a function"),
    "nan": (lambda a, b: np.nan, "it returns nan for every batch"),
    "a class of weight 0": (lambda z, y: xent.cross_entropy(z, y, weight=[0.0, 2.0, 4.0]), "or are refused"),
    "0": (lambda a, b: 0.0, "single rows cost the same, 0 or nan, or are refused"),
    "another shape each time": (other_shape(), "two equal calls return the shapes"),
    "random": (random(), "two equal calls return two values"),
    "one argument": (lambda a: a.sum(), "with NumPy arrays: TypeError:"),
    "a third argument": (lambda a, b, c: a.sum(), "missing 1 required positional argument: 'c'"),
    "a class": (nn.CrossEntropyLoss, "this is the class CrossEntropyLoss: pass an instance, CrossEntropyLoss(...)"),
    "weights of 7 in an odd place": (
        lambda z, y: F.cross_entropy(z, y) if z.shape[0] == 10**6 else failing("need a million rows")(z, y),
        "with PyTorch tensors: RuntimeError: need a million rows",
    ),
    "a random formula": (lambda p, t: 0.3 * (p * t).mean() + 1.7 * np.abs(p).mean(), "no cross-entropy predicts"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_what_is_no_loss_is_told_in_its_own_words(name: str) -> None:
    loss, words = BAD[name]
    found = diagnose(loss)
    assert not found.known and repr(found).startswith("unknown\n")
    assert any(words in note for note in found.notes), found.notes


def test_keyword_arguments_only() -> None:
    """Two of them are tried in both orders; more are named."""

    def loss(*, teacher: Any, student: Any) -> Any:
        return F.cross_entropy(student, teacher)

    found = diagnose(loss)
    assert (found.known, found.reads, found.denominator) == (True, "logits", "N")

    def three(*, a: Any, b: Any, c: Any) -> Any:
        return a

    assert "it takes keyword arguments: a, b, c" in diagnose(three).notes


def test_a_tensor_without_a_gradient() -> None:
    found = diagnose(lambda z, y: torch.tensor(F.cross_entropy(z, y).item()))
    assert found.known and found.gradient.startswith("missing")


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(
        TypeError, match="loss: expected a function or the name of a loss of Keras, got float"
    ):
        diagnose(0.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"arrays: expected one of 'auto', .* got 'jax'"):
        diagnose(xent.cross_entropy, arrays="jax")


# ----------------------------------------------------------------------------------------- what else it promises


@pytest.mark.parametrize("argument", ["weight", "class_w", "ignore_index", "skip", "cw"])
def test_nothing_is_read_from_a_name(argument: str) -> None:
    """A keyword that weighs classes, or that skips a label, under several names."""
    space: dict[str, Any] = {"xent": xent}
    option = "ignore_index" if argument in ("ignore_index", "skip") else "weight"
    exec(f"def f(z, y, {argument}=None): return xent.cross_entropy(z, y, {option}={argument})", space)
    found = diagnose(space["f"])
    if option == "weight":
        assert found.weights == f"{argument}, one per class: divides by the sum of weights"
    else:
        assert f"{argument}=: left out, divides by the valid ones" in found.ignored


@pytest.mark.parametrize("power", [None, 0.0, 0.5, 1.0])
@pytest.mark.parametrize("shift", [0, 1])
def test_the_divisor_of_an_ignored_label(power: float | None, shift: int) -> None:
    """Over sequences, or powers of their lengths, the valid labels are not what divides."""

    def loss(z: Any, y: Any) -> Any:
        z, y = z[:, : z.shape[1] - shift], y[:, shift:]
        each = F.cross_entropy(z.movedim(-1, 1), y, reduction="none")
        counts = (y != -100).sum(1) if each.ndim == 2 else 1 / 0  # rows of indices only
        return each.sum() / counts.sum() if power is None else (each.sum(1) / counts**power).mean()

    by_tokens = power in (None, 1.0)
    found = diagnose(loss)
    assert found.ignored.startswith("-100: left out" + ", divides by the valid ones" * by_tokens + ";")


@pytest.mark.parametrize(("n", "k"), [(1, 2), (5, 3), (64, 10), (4, 1000)])
def test_the_own_batch_says_how_many_classes(n: int, k: int) -> None:
    """A loss that takes one number of classes alone; and labels of the batch that are no class."""
    rng = np.random.default_rng(n)
    z, y = rng.normal(size=(n, k)), rng.integers(0, k, n)

    def picky(a: Any, b: Any) -> Any:
        if a.shape[-1] != k:
            raise ValueError("another number of classes")
        return xent.cross_entropy(a, b)

    assert diagnose(picky, z, y).classes == (k,)
    assert diagnose(picky, z.shape).classes == (k,)
    assert diagnose(picky, tuple(map(tuple, z))).classes == (k,)
    assert diagnose(picky, (n, k, 8, 6)).classes == (k,)
    left = torch.tensor([7777] * n)
    found = diagnose(lambda a, b: F.cross_entropy(a, b, ignore_index=int("7" * 4)), torch.tensor(z), left)
    assert found.ignore_index == (7777,)


def test_a_vocabulary_of_your_own_does_not_exhaust_memory() -> None:
    assert diagnose(F.cross_entropy, (2, 152_064)).classes == (3, 5)


def test_a_batch_that_holds_no_numbers_is_refused() -> None:
    for name in ("logits", "targets"):
        with pytest.raises(TypeError, match=f"^{name}: expected real numbers"):
            diagnose(xent.cross_entropy, **{name: "abc"})


# --------------------------------------------------------------------------- what only other batches tell apart


def chunked(n: int, *, divided: bool = False) -> Loss:
    def loss(z: Any, y: Any) -> Any:
        parts = [F.cross_entropy(a, b) for a, b in zip(z.split(n), y.split(n), strict=True)]
        return sum(parts) / (len(parts) if divided else 1)

    return loss


def counted(least: int) -> Loss:
    """Over the labels that count, of every sequence at least so many."""

    def loss(z: Any, y: Any) -> Any:
        each = F.cross_entropy(z.movedim(-1, 1), y, reduction="none")
        return each.sum() / (y != -100).sum(1).clamp(min=least).sum()

    return loss


def tokens(n: int) -> Loss:
    return lambda z, y: F.cross_entropy(z[:, :n].flatten(0, 1), y[:, :n].flatten())


def masked(mean_of_valid: bool) -> Loss:
    """A binary loss in which 255 stands for no label."""

    def loss(z: Any, t: Any) -> Any:
        keep = t != 255
        each = F.binary_cross_entropy_with_logits(z, t.to(z.dtype), reduction="none") * keep
        return each.sum() / (keep.sum() if mean_of_valid else keep.numel())

    return loss


def scaled_backward(rows: int, *, weighed: bool = True) -> Loss:
    """Each row's loss, with a gradient for the first rows alone, or without the weights that its values get."""

    class Each(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, z: Any, y: Any) -> Any:
            context.save_for_backward(z, y)
            return F.cross_entropy(z, y, reduction="none")

        @staticmethod
        def backward(context: Any, upstream: Any) -> Any:
            z, y = context.saved_tensors
            found = z.softmax(1) - F.one_hot(y, z.shape[1])
            found = found * upstream[:, None] if weighed else found
            return torch.where(torch.arange(len(z))[:, None] < rows, found, 0), None

    return Each.apply


def a_batch(*shape: int, classes: int = 0, dead: bool = False) -> tuple[Any, Any]:
    torch.manual_seed(sum(shape))
    z, y = torch.randn(*shape), torch.randint(classes or shape[-1], shape[:-1])
    if dead:
        y[1] = -100
    return z, y


# The fault, its repair, a batch that shows it, and what is said of it.
SILENT: dict[str, tuple[Loss, Loss, Any, str]] = {
    "a sum of chunk means": (chunked(32), F.cross_entropy, a_batch(4096, 50), "rows: right at 32, wrong at 33"),
    "a mean of unequal chunks": (
        chunked(3000, divided=True), F.cross_entropy, a_batch(4096, 5), "rows: right at 3,000, wrong at 3,001",
    ),
    "the first 64 rows": (lambda z, y: F.cross_entropy(z[:64], y[:64]), F.cross_entropy, a_batch(300, 5), "at 64"),
    "128 tokens": (tokens(128), tokens(10**6), a_batch(3, 300, 7), "positions: right at 128, wrong at 129"),
    "the first classes": (
        lambda z, y: F.cross_entropy(z[:, :30], y), F.cross_entropy, a_batch(9, 50, classes=30), "number of classes",
    ),
    "sequences without a label": (counted(1), counted(0), a_batch(4, 10, 6, dead=True), "every label is left out"),
}  # fmt: skip


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("name", SILENT)
def test_what_only_another_size_shows(name: str, own: bool) -> None:
    """The reader's batch is predicted, or the property that decides is named; without one larger ones are tried."""
    fault, repair, batch, words = SILENT[name]
    found = diagnose(fault, *batch) if own else diagnose(fault)
    if own or ("unequal" not in name and "first classes" not in name):
        assert not found.known and any(words in note for note in found.notes[: 3 if own else 5]), found
    if own:
        assert found.cost is not None and found.predicted is not None
        assert abs(found.cost - found.predicted) > 1e-3 * abs(found.predicted)
        assert repr(found).startswith("unknown\n  your batch, ")
    good = diagnose(repair, *batch) if own else diagnose(repair)
    assert good.known and (not own or good.batch.endswith("as predicted")), good
    if own:
        assert good.cost == pytest.approx(repair(*batch).item())


@pytest.mark.parametrize("weighed", [True, False])
def test_the_weights_that_values_get_reach_the_gradient(weighed: bool) -> None:
    found = diagnose(scaled_backward(10**6, weighed=weighed))
    said = "that of the value" if weighed else "not that of the value: its backward ignores the weight"
    assert found.known and found.gradient.startswith(said)
    assert ("! the gradient: not that" in repr(found)) is not weighed


def test_a_gradient_of_the_first_rows_alone() -> None:
    loss = scaled_backward(64)
    assert "rows: right at 64, wrong at 65" in diagnose(loss).gradient
    assert "rows: right at 64, wrong at 65" in diagnose(loss, *a_batch(100, 4)).gradient


@pytest.mark.parametrize("valid", [True, False])
def test_binary_labels_that_are_no_class(valid: bool) -> None:
    torch.manual_seed(0)
    z, t = torch.randn(20, 4), torch.randint(2, (20, 4))
    t[::3] = 255
    found = diagnose(masked(valid), z, t)
    assert found.ignored == f"255: left out, divides by {'the valid ones' if valid else 'N'}"
    assert found.ignore_index == (255,) and found.batch.endswith("as predicted")
    assert ("! ignored labels: 255" in repr(found)) is not valid
    read = diagnose(F.binary_cross_entropy_with_logits, z, t.float())
    assert read.ignored == "255: read as a number, of which no label is"


def test_a_weight_keeps_its_sign() -> None:
    def loss(z: Any, t: Any) -> Any:  # alpha = 10: 1 - alpha is -9
        return -(10 * t * F.logsigmoid(z) - 9 * (1 - t) * F.logsigmoid(-z)).mean()

    found = diagnose(loss)
    assert found.pos_weight == pytest.approx(
        (-10 / 9,) * 3, rel=1e-5
    ) and found.sign * found.factor == pytest.approx(-9)
    assert "a positive costs 10 times its\n  cross-entropy, a negative -9 times" in repr(found)


def distilled(t: float, order: int = 1) -> Loss:
    def loss(*pair: Any) -> Any:
        s, q = pair[::order]
        return t * t * F.kl_div((s / t).log_softmax(-1), (q / t).softmax(-1), reduction="batchmean")

    return loss


@pytest.mark.parametrize("t", [1.0, 2.0, 4.0])
def test_student_and_teacher_logits(t: float) -> None:
    torch.manual_seed(1)
    found = diagnose(distilled(t), torch.randn(30, 9), torch.randn(30, 9))
    assert (found.family, found.first, found.targets) == ("KL divergence", "prediction", ("logits",))
    assert (found.temperature, found.factor) == pytest.approx((t, t * t))
    assert found.batch.endswith("as predicted")
    other = diagnose(distilled(t, -1))
    assert (other.family, other.first) == ("KL divergence", "target") or t == 1
    chunks = diagnose(lambda s, q: sum(map(distilled(t), s.split(64), q.split(64))))
    assert not chunks.known and any("right at 64" in n for n in chunks.notes)


CURVES: dict[str, tuple[Loss, str]] = {
    "poly-1": (lambda p: -p.log() + 2 * (1 - p), "alone, where it reads logits: (-log p) + 2 (1 - p)"),
    "generalised": (lambda p: (1 - p**0.7) / 0.7, "1.429 (1 - p^0.7)"),
    "one minus p": (lambda p: 1 - p, "logits: (1 - p)"),
    "focal and plain": (lambda p: -p.log() + 3 * (1 - p) ** 2, "(-log p) + 3 (1 - p)^2"),
    "another": (lambda p: p.sin().exp(), "none of those that are known here"),
}


@pytest.mark.parametrize("name", CURVES)
def test_a_function_of_p_alone(name: str) -> None:
    curve, words = CURVES[name]
    found = diagnose(lambda z, y: curve(z.softmax(1).gather(1, y[:, None])).mean())
    assert not found.known and any(words in n for n in found.notes), found.notes
    assert "a batch costs the mean of its rows" in found.notes


def test_a_hinge_is_a_function_of_the_margin() -> None:
    def loss(z: Any, y: Any) -> Any:
        own = F.one_hot(y, z.shape[1])
        return (2 - (z * own).sum(1) + (z - 1e9 * own).amax(1)).clamp(min=0).sum()

    found = diagnose(loss)
    assert any("margin alone" in n and "1 max(0, 2 - margin)" in n for n in found.notes)
    assert "a batch costs the sum of its rows" in found.notes


@pytest.mark.parametrize("axis", [1, -1])
def test_images_only(axis: int) -> None:
    def loss(z: Any, y: Any) -> Any:
        assert z.ndim == 4
        return F.cross_entropy(z.movedim(axis, 1), y)

    shape = (2, 4, 6, 5) if axis == 1 else (2, 6, 5, 4)
    found = diagnose(loss, torch.randn(shape), torch.randint(4, (2, 6, 5)))
    assert (found.layout, found.batch[-12:]) == ("second" if axis == 1 else "last", "as predicted")


def test_what_a_call_does_besides(capsys: pytest.CaptureFixture[str]) -> None:
    """A loss that prints, that is slow, that returns a generator or a dict, that writes into the reader's batch."""

    def prints(z: Any, y: Any) -> Any:
        print("step")
        return F.cross_entropy(z, y)

    assert "prints while it is called" in diagnose(prints).notes and capsys.readouterr().out == ""
    assert diagnose(lambda z, y: time.sleep(3.1)).notes == (
        "a call takes 3 seconds, and a diagnosis some hundred calls",
    )
    assert "type generator, no number" in str(diagnose(lambda z, y: (v for v in z)).notes)
    assert "as in loss(z, y)['loss']" in str(diagnose(lambda z, y: {"loss": z.mean(), "n": 3}).notes)
    z, y = torch.zeros(6, 3), torch.arange(6) % 3
    assert diagnose(lambda z, y: F.cross_entropy(z.add_(1), y), z, y).known
    assert not z.any() and torch.equal(y, torch.arange(6) % 3)


@pytest.mark.parametrize(
    ("loss", "given", "words"),
    [
        (F.cross_entropy, "probabilities", "look like probabilities"),
        (lambda p, y: F.nll_loss(p.log(), y), "logits", "no probabilities"),
        (F.nll_loss, "logits", "no log-probabilities"),
        (F.nll_loss, "log-probabilities", ""),
        (F.cross_entropy, "logits", ""),
    ],
)
def test_a_batch_that_is_not_what_the_loss_reads(loss: Loss, given: str, words: str) -> None:
    torch.manual_seed(2)
    z, y = torch.randn(9, 4), torch.randint(4, (9,))
    x = {"logits": z, "probabilities": z.softmax(1), "log-probabilities": z.log_softmax(1)}[given]
    found = diagnose(loss, x, y)
    assert words in found.batch and found.batch.endswith("as predicted") is not bool(words)
    assert ("! your batch" in repr(found)) is bool(words)


@pytest.mark.slow
def test_operations_of_keras_beside_torch() -> None:
    """They take tensors of PyTorch, and lose the gradient: TensorFlow's are asked."""
    from xent_book import behaviours

    ops = behaviours.keras().ops

    def loss(y: Any, z: Any) -> Any:
        if isinstance(z, np.ndarray):
            raise TypeError("tensors only")
        rows = ops.one_hot(ops.cast(y, "int32"), ops.shape(z)[-1]) * ops.log_softmax(ops.cast(z, "float32"))
        return -ops.mean(ops.sum(rows, -1))

    found = diagnose(loss)
    assert (found.arrays, found.gradient) == ("tensorflow", "that of the value")


def test_a_report_is_short() -> None:
    text = repr(diagnose(F.cross_entropy))
    assert (
        text.startswith("Mean cross-entropy of logits, over N.\n! nan where") and len(text.splitlines()) <= 15
    )


READINGS: dict[str, Loss] = {
    "cross-entropy": F.cross_entropy,
    "sum": nn.CrossEntropyLoss(reduction="sum"),
    "KL, mean": nn.KLDivLoss(),
    "KL, batchmean": nn.KLDivLoss(reduction="batchmean"),
    "binary": nn.BCEWithLogitsLoss(),
    "binary, probabilities": nn.BCELoss(),
    "sign and unit": lambda z, t: F.cross_entropy(z, t) / -np.log(2),
}


def printed(found: xent.Diagnosis, x: torch.Tensor, t: torch.Tensor) -> float:
    """The loss that the fields of a diagnosis state; a loop in plain Python."""
    divisor = {"nothing": 1, "N": x.shape[0], "K": x.shape[1], "N*K": x.numel()}[found.denominator]
    unit = {"nats": mpmath.mpf(1), "bits": 1 / mpmath.log(2)}[found.unit]
    total = mpmath.mpf(0)
    for row, target in zip(x.tolist(), t.tolist(), strict=True):
        if found.reads == "logits" and found.family.startswith("binary"):
            p = [1 / (1 + mpmath.exp(-v)) for v in row]
        elif found.reads == "logits":
            p = [mpmath.exp(v) / sum(mpmath.exp(u) for u in row) for v in row]
        else:
            p = [mpmath.exp(v) if found.reads == "log-probabilities" else mpmath.mpf(v) for v in row]
        for pk, tk in zip(p, target, strict=True):
            total -= tk * mpmath.log(pk)
            if found.family.startswith("KL"):
                total += tk * mpmath.log(tk)
            if found.family.startswith("binary"):
                total -= (1 - tk) * mpmath.log(1 - pk)
    return float(found.sign * unit / divisor * total)


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")  # KLDivLoss says what is tested here
@pytest.mark.parametrize("name", READINGS)
def test_the_fields_predict_the_loss(name: str) -> None:
    """On a batch of another size than those that diagnose uses."""
    loss = READINGS[name]
    found = diagnose(loss)
    rng = np.random.default_rng(3)
    z, t = torch.from_numpy(rng.normal(size=(7, 4))), torch.from_numpy(rng.dirichlet(np.ones(4), 7))
    x = {"logits": z, "probabilities": z.softmax(1), "log-probabilities": z.log_softmax(1)}[found.reads]
    assert loss(x, t).item() == pytest.approx(printed(found, x, t), rel=1e-12)


@pytest.mark.parametrize("k", [4, 6, 10, 21, 64])
def test_a_number_of_classes_that_the_loss_insists_on(k: int) -> None:
    """Nothing that it says tells the number."""

    def picky(z: Any, y: Any) -> Any:
        if z.shape[-1] != k:
            raise ValueError("another number of classes")
        return xent.cross_entropy(z, y)

    assert diagnose(picky).classes == (k,)


def test_a_gradient_that_is_wrong_beside_the_label_alone() -> None:
    def loss(z: Any, y: Any) -> Any:
        own = F.one_hot(y, z.shape[-1])
        return F.cross_entropy(own * z + (1 - own) * z.detach(), y)

    assert diagnose(loss).gradient.startswith("not that of the value")


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_the_gradient_of_a_focal_loss_at_certainty(gamma: float) -> None:
    """Below an exponent of one the power's slope is infinite where its base is zero."""

    def loss(z: Any, y: Any) -> Any:
        each = F.cross_entropy(z, y, reduction="none")
        return ((1 - (-each).exp()) ** gamma * each).mean()

    assert diagnose(loss).gradient == "that of the value" + ", and nan for a sure and right answer" * (
        gamma < 1
    )


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_a_sum_over_something_like_a_power_of_the_length(scale: float) -> None:
    def over(divisor: Callable[[Any], Any]) -> str:
        def loss(z: Any, y: Any) -> Any:
            each = F.cross_entropy(z.movedim(-1, 1), y, reduction="none")
            return scale * (each.sum(1) / divisor((y != -100).sum(1))).mean()

        return diagnose(loss).sequences

    assert "each sequence's sum over its length to the power 0.5 (" in over(lambda n: n**0.5)
    assert "power" not in over(lambda n: n + 1)


def test_columns_against_flat_targets() -> None:
    """A loss that broadcasts (N, 1) and (N,) is told from one that flattens both."""

    def broadcasts(p: Any, t: Any) -> Any:
        return -(t * np.log(p) + (1 - t) * np.log(1 - p)).mean()

    note = "predictions (N, 1) with targets (N,) broadcast to N times N losses"
    assert note in diagnose(broadcasts).notes
    flat = diagnose(lambda p, t: broadcasts(p.reshape(-1), t.reshape(-1)))
    assert flat.known and note not in flat.notes


def test_what_is_unknown_adds_nothing() -> None:
    nothing = xent.Diagnosis()
    assert not nothing.known and nothing.added == "" and repr(nothing) == "unknown"


@pytest.mark.parametrize("k", [1, 2, 3, 7])
def test_a_binary_loss_of_two_columns_is_no_categorical_one(k: int) -> None:
    """On rows that sum to one, and one-hot targets, the two are one function of two classes."""
    assert diagnose(nn.BCELoss(), (4, k)).family == "binary cross-entropy"


def test_a_thousand_classes() -> None:
    """They once filled the memory; and a weight that was not measured is not said to be 0."""
    assert diagnose(F.cross_entropy, (2, 1000)).layout == "second"
    found = diagnose(nn.CrossEntropyLoss(weight=torch.linspace(1, 4, 1000)), (2, 1000))
    assert found.class_weights and any("were measured for the classes 0, 142" in n for n in found.notes)
    seen = np.flatnonzero(np.isfinite(found.class_weights))
    assert len(seen) == 8
    assert np.allclose(np.array(found.class_weights)[seen], np.linspace(1, 4, 1000)[seen], rtol=1e-3)


def test_what_a_loss_holds_may_only_describe_an_array() -> None:
    class Grid:
        shape = property(lambda self: 3)

    held: list[Any] = [Grid, Grid(), np.ndarray, torch.ones(())]
    assert diagnose(lambda z, y, grid=Grid, more=held[1]: xent.cross_entropy(z, y) if held else grid).known


def test_half_of_the_batches_is_not_enough() -> None:
    """A loss that is right on most batches and off on some is not recognised."""

    def loss(z: Any, y: Any) -> Any:
        return xent.cross_entropy(z, y) * (1.0 if len(z) < 16 else 1.1)

    assert not diagnose(loss).known


@pytest.mark.parametrize("wave", [0.0, 4e-5])
def test_a_softmax_over_the_batch_predicts_as_closely_as_others(wave: float) -> None:
    def loss(z: Any, y: Any) -> Any:
        cost = -np.take_along_axis(xent.log_softmax(z, axis=0), y[:, None], 1).mean()
        return 1.0005 * cost * (1 + wave * np.sin(1e3 * z.sum()))

    found = diagnose(loss)
    assert (found.known, found.factor) == ((False, 1.0) if wave else (True, 1.0005))


def test_a_factor_near_one_is_no_one() -> None:
    found = diagnose(lambda z, y: 1.0002 * xent.cross_entropy(z, y))
    assert (found.factor, found.added) == (1.0002, "times 1.0002")


def test_a_little_smoothing_over_many_classes_is_found() -> None:
    found = diagnose(lambda z, y: xent.cross_entropy(z, y, label_smoothing=0.01), (8, 137))
    assert (found.smoothing, found.smoothing_over, found.factor) == (0.01, "all K classes", 1.0)


def test_targets_that_are_no_numbers_are_no_labels() -> None:
    assert diagnose(xent.cross_entropy, None, [1.0, np.nan, np.inf]).known


def test_the_callers_generators_are_left_alone() -> None:
    state = torch.get_rng_state().clone()
    before = np.random.get_state()[1].copy()  # noqa: NPY002 (the global one is the point)
    diagnose(F.cross_entropy)
    assert torch.equal(state, torch.get_rng_state())
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_a_loss_of_arrays_loads_no_framework() -> None:
    code = (
        "import sys, xent; d = xent.diagnose(xent.cross_entropy);"
        "assert not xent.diagnose(lambda a, b: 1.0).known;"
        "print(d.known, [m for m in ('torch', 'sklearn', 'keras', 'tensorflow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("True []", "")


def test_the_text_says_what_the_fields_say() -> None:
    text = repr(diagnose(lambda z, y: -xent.cross_entropy(z, y, label_smoothing=0.25)))
    assert text.startswith("Sign flipped, mean cross-entropy of\nlogits, over N, with smoothing 0.25")
    assert "\n! the sign is flipped: a right answer" in text


def test_a_label_that_is_no_class_is_called_none() -> None:
    """N times a mean over the valid labels counts a skipped row in N alone; a clamp makes it class 0."""
    f = torch.nn.functional.cross_entropy
    for loss, said in (
        (lambda z, y: len(z) * f(z, y), "-100: changes the loss, as no class does"),
        (lambda z, y: f(z, y.clamp(min=0)), "-100: counted as class 0; -1: counted as class 0"),
    ):
        assert xent.diagnose(loss).ignored.startswith(said)


def test_a_mean_with_weights_of_single_rows_is_not_denied() -> None:
    """Its rows' weights follow from their place: the note denies one weight, and one for each class."""

    def loss(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        w = torch.arange(1, len(z) + 1, dtype=z.dtype)
        return (w * torch.nn.functional.cross_entropy(z, y, reduction="none")).sum() / w.sum()

    assert "a batch is no mean of its rows, nor one with a weight for each class" in str(
        xent.diagnose(loss).notes
    )
