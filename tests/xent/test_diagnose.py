"""diagnose: some 250 losses that it names or does not explain, and what cannot be called as a loss."""

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


LOSSES = _beside("losses_to_diagnose")
KERAS = {f"Keras, {name}": case for name, case in LOSSES.KERAS.items()}


def agrees(field: str, seen: Any, want: Any) -> bool:
    """Equal, up to a thousandth in numbers and the order of names, or how a text begins, or what it says."""
    if field in ("gradient", "sequences", "clip"):
        return bool(seen.startswith(want))
    if field in ("ignored", "batch", "tried", "notes", "alternatives", "text"):
        return want in str(seen)
    if isinstance(want, tuple) and isinstance(want[0], str):
        return set(seen) == set(want)
    want = pytest.approx(want, rel=1e-3, abs=1e-6) if isinstance(want, tuple | float) else want
    return bool(seen == want)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LOSSES.TABLE, *KERAS])
def test_every_loss_of_the_table(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Right in every field and as predicted, or unknown for the reason that is named; faults are marked."""
    if name in KERAS:
        from xent_book import behaviours

        make, *batch, want = KERAS[name]
        loss = make(behaviours.keras().losses)
        want = LOSSES.FIRST | want if isinstance(want, dict) else want
    else:
        loss, *batch, want = LOSSES.TABLE[name]
    own = batch[0] if batch else ()
    found = diagnose(loss, *own)
    text = repr(found)
    assert found.known is isinstance(want, dict), text
    assert capfd.readouterr() == ("", "")
    assert max(map(len, text.splitlines())) <= 42, "wider than a phone"
    if isinstance(want, str):
        assert any(want in note for note in found.notes), text
        assert found.predicted is None or text.startswith("unknown\n  your batch, ")
        assert found.predicted is None or not abs(found.cost / found.predicted - 1) <= 1e-4  # or nan
        return
    fields = LOSSES.PLAIN | want
    if found.arrays == "torch" and "gradient" not in want:
        assert found.gradient == "that of the value"
    if len(own) == 2 and own[0] is not None:
        fields = {"batch": "as predicted"} | fields
        mine = torch.as_tensor(loss(*own)).double().sum().item()
        assert found.cost == pytest.approx(mine, rel=1e-2, nan_ok=True)
    wrong = {k: v for k, v in fields.items() if not agrees(k, text if k == "text" else getattr(found, k), v)}
    assert not wrong, (wrong, text)
    fine = ("that of the value", "unknown", "not applicable")
    assert found.gradient.startswith(fine) or "! the gradient: " in text
    told = re.fullmatch(r"(.* as predicted( to \d+ %)?)?", found.batch)
    assert told or "! your batch, " in text


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


def test_a_plain_loss_takes_few_lines_and_flat_arrays_no_warning() -> None:
    assert repr(diagnose(F.cross_entropy)).count("\n") < 15
    found = diagnose(lambda p, t: LOSSES.broadcasts(p.reshape(-1), t.reshape(-1)))
    assert found.known and not any("broadcast" in note for note in found.notes)


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
