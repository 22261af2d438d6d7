"""diagnose: three hundred losses that it names or does not explain, and what cannot be called as a loss."""

from __future__ import annotations

import importlib.util
import re
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
from xent import Diagnosis, diagnose

F, nn = torch.nn.functional, torch.nn
Loss = Callable[..., Any]
# One worker imports TensorFlow, once.
pytestmark = pytest.mark.xdist_group("frameworks")


def _beside(name: str) -> ModuleType:
    """A table beside this file, which is no test."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TABLE, HARDER = _beside("losses_to_diagnose"), _beside("harder_losses").TABLE
KERAS = tuple(TABLE.KERAS)
CASES: dict[str, Any] = {
    **TABLE.torch_libraries(), **TABLE.numpy_libraries(), **TABLE.from_threads(), **TABLE.fresh(),
    **TABLE.from_repositories(), **TABLE.two_faults(), **dict.fromkeys(KERAS),
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
    "float16": "float16", "bfloat16, then float": "bfloat16", "upcast": "float32", "NLLLoss, weights": "float32",
}  # fmt: skip


def same(seen: Any, want: Any) -> bool:
    """Equal, up to a thousandth in numbers, the order of a tuple of names aside."""
    if isinstance(want, tuple) and isinstance(seen, tuple):
        if all(isinstance(v, str) for v in want):
            return set(seen) == set(want)
        return len(seen) == len(want) and np.allclose(seen, want, rtol=1e-3)
    if isinstance(want, float) and isinstance(seen, float):
        return bool(np.isclose(seen, want, rtol=1e-3, atol=1e-6))
    return bool(seen == want)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_hundred_losses(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Right in every field, or unknown where it is no cross-entropy."""
    if name in KERAS:
        from xent_book import behaviours

        loss, expected = TABLE.keras_libraries(behaviours.keras().losses)[name]
    else:
        loss, expected = CASES[name]
    found = diagnose(loss)
    assert found.known is (expected is not None), repr(found)
    fields = TABLE.PLAIN | expected if expected is not None else {}
    wrong = {k: (getattr(found, k), v) for k, v in fields.items() if not same(getattr(found, k), v)}
    assert not wrong, repr(found)
    assert max(map(len, repr(found).splitlines())) <= 42, "wider than a phone"
    if found.known and found.arrays == "torch" and found.axis == "the classes" and name not in GRADIENTS:
        assert found.gradient == "that of the value"
    says = {"gradient": GRADIENTS, "sequences": SEQUENCES, "clip": CLIPS, "precision": PRECISIONS}
    for field, table in says.items():
        assert getattr(found, field).startswith(table.get(name, "")), (field, repr(found))
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize("name", HARDER)
def test_a_hundred_harder_losses(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Right in every field and as predicted, or unknown for the reason that is named; faults are marked."""
    loss, own, want = HARDER[name]
    found = diagnose(loss, *own)
    assert found.known is isinstance(want, dict), repr(found)
    assert capfd.readouterr() == ("", "")
    if isinstance(want, str):
        assert any(want in note for note in found.notes), repr(found)
        assert found.predicted is None or repr(found).startswith("unknown\n  your batch, ")
        assert found.predicted is None or not abs(found.cost / found.predicted - 1) <= 1e-4  # or nan
        return
    plain = TABLE.PLAIN | ({"gradient": "that of the value"} if found.arrays == "torch" else {})
    if len(own) == 2:
        plain |= {"batch": "as predicted"}
        mine = torch.as_tensor(loss(*own)).double().sum().item()
        assert found.cost == pytest.approx(mine, rel=1e-2, nan_ok=True)
    for field, value in (plain | want).items():
        seen = getattr(found, field)
        begins = field == "gradient" and seen.startswith(value)
        says = field in ("ignored", "batch", "tried", "notes") and value in str(seen)
        reads = field == "targets" and set(value) <= set(seen)
        assert begins or says or reads or same(seen, value), (field, seen, value, repr(found))
    fine = ("that of the value", "unknown", "not applicable")
    assert found.gradient.startswith(fine) or "! the gradient: " in repr(found)
    told = re.fullmatch(r"(.* as predicted( to \d+ %)?)?", found.batch)
    assert told or "! your batch, " in repr(found)


def test_there_are_three_hundred() -> None:
    assert len(CASES) >= 200 and len(TABLE.from_threads()) >= 40 and len(HARDER) >= 100


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


def three(*, a: Any, b: Any, c: Any) -> Any:
    return a


def by_place(z: Any, y: Any) -> Any:
    """Its rows' weights follow from their place: the note denies one weight, and one for each class."""
    w = torch.arange(1, len(z) + 1, dtype=z.dtype)
    return (w * F.cross_entropy(z, y, reduction="none")).sum() / w.sum()


BAD: dict[str, tuple[Any, str]] = {
    "raises": (failing("the cache is cold"), "with NumPy arrays: RuntimeError: the cache is cold"),
    "nothing": (lambda a, b: None, "with NumPy arrays: TypeError: it returned None, no number"),
    "text": (lambda a, b: "0.3", "with NumPy arrays: TypeError: it returned a value of type str, no number"),
    "a tuple": (lambda a, b: (a, b), "TypeError: it returned a tuple of 2, no number: pass a function"),
    "a dict": (lambda z, y: {"loss": z.mean(), "n": 3}, "as in loss(z, y)['loss']"),
    "a generator": (lambda z, y: (v for v in z), "type generator, no number"),
    "slow": (lambda z, y: time.sleep(3.1), "a call takes 3 seconds, and a diagnosis hundreds of calls"),
    "nan": (lambda a, b: np.nan, "it returns nan for every batch"),
    "a class of weight 0": (lambda z, y: xent.cross_entropy(z, y, weight=[0.0, 2.0, 4.0]), "or are refused"),
    "0": (lambda a, b: 0.0, "single rows cost the same, 0 or nan, or are refused"),
    "another shape each time": (other_shape(), "two equal calls return the shapes"),
    "random": (random(), "two equal calls return two values"),
    "one argument": (lambda a: a.sum(), "with NumPy arrays: TypeError:"),
    "a third argument": (lambda a, b, c: a.sum(), "missing 1 required positional argument: 'c'"),
    "three keywords": (three, "it takes keyword arguments: a, b, c"),
    "a class": (nn.CrossEntropyLoss, "this is the class CrossEntropyLoss: pass an instance, CrossEntropyLoss(...)"),
    "a million rows": (
        lambda z, y: F.cross_entropy(z, y) if z.shape[0] == 10**6 else failing("need a million rows")(z, y),
        "with PyTorch tensors: RuntimeError: need a million rows",
    ),
    "a random formula": (lambda p, t: 0.3 * (p * t).mean() + 1.7 * np.abs(p).mean(), "no cross-entropy predicts"),
    "off from 16 rows on": (lambda z, y: xent.cross_entropy(z, y) * (1.0 if len(z) < 16 else 1.1), "of 16 rows costs"),
    "weights by place": (by_place, "a batch is no mean of its rows, nor one with a weight for each class"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_what_is_no_loss_is_told_in_its_own_words(name: str) -> None:
    loss, words = BAD[name]
    found = diagnose(loss)
    assert not found.known and repr(found).startswith("unknown\n")
    assert any(words in note for note in found.notes), found.notes


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(
        TypeError, match="loss: expected a function or the name of a loss of Keras, got float"
    ):
        diagnose(0.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"arrays: expected one of 'auto', .* got 'jax'"):
        diagnose(xent.cross_entropy, arrays="jax")
    for name in ("logits", "targets"):
        with pytest.raises(TypeError, match=f"^{name}: expected real numbers"):
            diagnose(xent.cross_entropy, **{name: "abc"})


# ----------------------------------------------------------------------------------------- what else it promises


def keywords(*, teacher: Any, student: Any) -> Any:
    return F.cross_entropy(student, teacher)


def only(*classes: int) -> Loss:
    """A loss that takes these numbers of classes alone, and does not say so."""

    def loss(z: Any, y: Any) -> Any:
        if z.shape[-1] not in classes:
            raise ValueError("another number of classes")
        return xent.cross_entropy(z, y)

    return loss


def beside_the_label(z: Any, y: Any) -> Any:
    own = F.one_hot(y, z.shape[-1])
    return F.cross_entropy(own * z + (1 - own) * z.detach(), y)


def focal(gamma: float) -> Loss:
    """Below an exponent of one the power's slope is infinite where its base is zero."""

    def loss(z: Any, y: Any) -> Any:
        each = F.cross_entropy(z, y, reduction="none")
        return ((1 - (-each).exp()) ** gamma * each).mean()

    return loss


def per_sequence(divisor: Callable[[Any], Any], scale: float = 1.0) -> Loss:
    def loss(z: Any, y: Any) -> Any:
        each = F.cross_entropy(z.movedim(-1, 1), y, reduction="none")
        return scale * (each.sum(1) / divisor((y != -100).sum(1))).mean()

    return loss


def broadcasts(p: Any, t: Any) -> Any:
    return -(t * np.log(p) + (1 - t) * np.log(1 - p)).mean()


def over_rows(wave: float) -> Loss:
    def loss(z: Any, y: Any) -> Any:
        cost = -np.take_along_axis(xent.log_softmax(z, axis=0), y[:, None], 1).mean()
        return 1.0005 * cost * (1 + wave * np.sin(1e3 * z.sum()))

    return loss


def prints(z: Any, y: Any) -> Any:
    print("step")
    return F.cross_entropy(z, y)


def signed(z: Any, t: Any) -> Any:
    """Alpha = 10: 1 - alpha is -9."""
    return -(10 * t * F.logsigmoid(z) - 9 * (1 - t) * F.logsigmoid(-z)).mean()


class Grid:
    shape = property(lambda self: 3)


HELD: list[Any] = [Grid, Grid(), np.ndarray, torch.ones(())]
ce, LINE = F.cross_entropy, torch.linspace(1, 4, 1000)
NXN = "targets (N,) broadcast to N times N losses"
LEFT, VALID = "-100: left out", ", divides by the valid ones"
Z9, Y9 = torch.randn(9, 4, generator=torch.manual_seed(2)), torch.arange(9) % 4


def noted(words: str) -> Callable[[Diagnosis], bool]:
    return lambda d: any(words in note for note in d.notes)


def of_classes(k: int) -> Callable[[Diagnosis], bool]:
    return lambda d: d.classes == (k,)


def near(field: str, want: Any) -> Callable[[Diagnosis], bool]:
    return lambda d: np.allclose(getattr(d, field), want, rtol=1e-3)


def at_certainty(lost: bool) -> Callable[[Diagnosis], bool]:
    return lambda d: d.gradient == "that of the value" + ", and nan for a sure and right answer" * lost


# A loss, what else is handed over, and what must be so.
SAYS: dict[str, tuple[Loss, tuple[Any, ...], Callable[[Diagnosis], Any]]] = {
    "two keywords, in both orders": (keywords, (), lambda d: d.known and d.reads == "logits"),
    "no gradient": (lambda z, y: torch.tensor(ce(z, y).item()), (), lambda d: d.gradient.startswith("missing")),
    **{f"{k} classes only": (only(k), (), of_classes(k)) for k in (4, 6, 10, 21, 64)},
    **{
        f"{k} classes only, in a batch of {n}": (only(k), (own,), of_classes(k))
        for n, k in ((1, 2), (5, 3), (64, 10), (4, 1000)) for own in (np.ones((n, k)), (n, k), (n, k, 8, 6))
    },
    "a label of the batch": (
        lambda a, b: ce(a, b, ignore_index=int("7" * 4)), (Z9, torch.tensor([7777] * 9)),
        lambda d: d.ignore_index == (7777,),
    ),
    "a vocabulary": (ce, ((2, 152_064),), lambda d: d.classes == (3, 5)),
    "a thousand classes": (ce, ((2, 1000),), lambda d: d.layout == "second"),
    "a thousand weights": (
        nn.CrossEntropyLoss(weight=LINE), ((2, 1000),), near("class_weights", LINE)
    ),
    "no numbers in the targets": (xent.cross_entropy, (None, [1.0, np.nan, np.inf]), lambda d: d.known),
    "what it holds describes an array": (
        lambda z, y, grid=Grid, more=HELD[1]: xent.cross_entropy(z, y) if HELD else grid, (), lambda d: d.known
    ),
    "beside the label alone": (beside_the_label, (), lambda d: d.gradient.startswith("not that of the value")),
    **{
        f"focal, {g}": (
            focal(g), (), at_certainty(g < 1)
        )
        for g in (0.5, 1.0, 2.0)
    },
    **{
        f"a power of the length, {s}": (
            per_sequence(lambda n: n**0.5, s), (), lambda d: "sum over its length to the power 0.5 (" in d.sequences
        )
        for s in (1e-3, 1.0, 1e3)
    },
    "no power of the length": (per_sequence(lambda n: n + 1), (), lambda d: "power" not in d.sequences),
    "columns against flat targets": (broadcasts, (), noted(NXN)),
    "both flat": (lambda p, t: broadcasts(p.reshape(-1), t.reshape(-1)), (), lambda d: d.known and not noted(NXN)(d)),
    **{f"binary, {k} columns": (nn.BCELoss(), ((4, k),), lambda d: d.family[:6] == "binary") for k in (1, 2, 3, 7)},
    "over the batch": (over_rows(0.0), (), lambda d: d.factor == 1.0005),
    "nearly over the batch": (over_rows(4e-5), (), lambda d: not d.known),
    "a factor near one": (lambda z, y: 1.0002 * xent.cross_entropy(z, y), (), lambda d: d.added == "times 1.0002"),
    "a little smoothing": (
        lambda z, y: xent.cross_entropy(z, y, label_smoothing=0.01), ((8, 137),),
        lambda d: (d.smoothing, d.smoothing_over, d.factor) == (0.01, "all K classes", 1.0),
    ),
    "N times a mean": (lambda z, y: len(z) * ce(z, y), (), lambda d: "-100: changes the loss, as no" in d.ignored),
    "each class's part": (
        nn.KLDivLoss(reduction="none"), (), lambda d: (d.family, d.reduction) == ("KL divergence", "none")
    ),
    "weights of classes by name": (
        xent.focal_loss, (), lambda d: d.weights.startswith("alpha, one per class: divides by N;")
    ),
    "prints": (prints, (), noted("prints while it is called")),
    "a weight's sign": (
        signed, (), lambda d: "a positive costs 10 times its\n  cross-entropy, a negative -9 times" in repr(d)
    ),
    "short": (
        ce, (),
        lambda d: repr(d).startswith("Mean cross-entropy of logits, over N.\n! nan") and repr(d).count("\n") < 15,
    ),
    "the text says it": (
        lambda z, y: -xent.cross_entropy(z, y, label_smoothing=0.25), (),
        lambda d: repr(d).startswith("Sign flipped, mean cross-entropy of\nlogits, over N, with smoothing 0.25")
        and "\n! the sign is flipped: a right answer" in repr(d),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAYS)
def test_what_is_said_of_a_loss(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    loss, own, true = SAYS[name]
    assert true(found := diagnose(loss, *own)), (found, found.notes)
    assert capsys.readouterr().out == ""


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
        counts: Any = (y != -100).sum(1) if each.ndim == 2 else 1 / 0  # rows of indices only
        return each.sum() / counts.sum() if power is None else (each.sum(1) / counts**power).mean()

    assert diagnose(loss).ignored.startswith(LEFT + VALID * (power in (None, 1.0)) + ";")


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


READINGS: dict[str, Loss] = {
    "cross-entropy": F.cross_entropy, "sum": nn.CrossEntropyLoss(reduction="sum"), "KL, mean": nn.KLDivLoss(),
    "KL, batchmean": nn.KLDivLoss(reduction="batchmean"), "binary": nn.BCEWithLogitsLoss(),
    "binary, probabilities": nn.BCELoss(), "sign and unit": lambda z, t: F.cross_entropy(z, t) / -np.log(2),
}  # fmt: skip


def printed(found: Diagnosis, x: torch.Tensor, t: torch.Tensor) -> float:
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


def test_what_is_unknown_adds_nothing() -> None:
    nothing = Diagnosis()
    assert not nothing.known and nothing.added == "" and repr(nothing) == "unknown"


def test_what_is_the_callers_is_left_alone() -> None:
    """Its arrays, into which a loss may write, and its random generators."""
    z, y, state = torch.zeros(6, 3), torch.arange(6) % 3, torch.get_rng_state().clone()
    before: Any = np.random.get_state()  # noqa: NPY002 (the global one is the point)
    assert diagnose(lambda z, y: F.cross_entropy(z.add_(1), y), z, y).known
    assert not z.any() and torch.equal(y, torch.arange(6) % 3) and torch.equal(state, torch.get_rng_state())
    after: Any = np.random.get_state()  # noqa: NPY002
    assert np.array_equal(before[1], after[1])


def test_a_loss_of_arrays_loads_no_framework() -> None:
    code = (
        "import sys, xent; d = xent.diagnose(xent.cross_entropy);"
        "assert not xent.diagnose(lambda a, b: 1.0).known;"
        "print(d.known, [m for m in ('torch', 'sklearn', 'keras', 'tensorflow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("True []", "")
