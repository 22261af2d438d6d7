"""diagnose: the losses that it has to name, and those that it must not."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss

import xent
from xent_book import frameworks
from xent_book.frameworks import diagnose

F, nn = torch.nn.functional, torch.nn
Loss = Callable[..., Any]
Expected = dict[str, Any]
# One worker imports TensorFlow, once.
pytestmark = pytest.mark.xdist_group("frameworks")
CE, BCE, KL = "categorical cross-entropy", "binary cross-entropy", "KL divergence"


def rows(y: Any) -> Any:
    return np.arange(len(y))


def optax_integer(z: Any, y: Any) -> Any:
    return -np.take_along_axis(xent.log_softmax(z), y[..., None], -1)[..., 0]


def optax_sigmoid(z: Any, t: Any) -> Any:
    return np.maximum(z, 0) - z * t + np.log1p(np.exp(-np.abs(z)))


def naive(z: Any, y: Any) -> Any:
    return -np.log((np.exp(z) / np.exp(z).sum(1, keepdims=True))[rows(y), y]).mean()


def mutating(z: Any, y: Any) -> Any:
    z -= z.max(1, keepdims=True)
    return xent.cross_entropy(z, y)


def swallowing(z: Any, y: Any, **_: Any) -> Any:
    return xent.cross_entropy(z, y)


def masked(z: Any, y: Any, mask: Any = None) -> Any:
    each = optax_integer(z, y)
    return each.mean() if mask is None else (each * mask).sum() / mask.sum()


def either(a: Any, b: Any) -> Any:
    """A loss that takes its arguments in any order."""
    return xent.cross_entropy(a, b) if a.ndim == 2 else xent.cross_entropy(b, a)


def fragile(p: Any, y: Any) -> Any:
    q = p[rows(y), y]
    return -(q * np.log(q) / q).mean()


def renormalising(p: Any, y: Any) -> Any:
    return -np.log(p[rows(y), y] / p.sum(1)).mean()


def clipped(t: Any, p: Any) -> Any:
    return -(t * np.log(np.clip(p, 1e-15, 1 - 1e-15))).sum() / len(t)


def sequence_means(z: Any, y: Any) -> Any:
    """The mean over each sequence, then the mean over the sequences."""
    losses = F.cross_entropy(z.movedim(-1, 1), y, ignore_index=-100, reduction="none")
    return (losses.sum(1) / (y != -100).sum(1)).mean()


def causal(z: Any, ids: Any) -> Any:
    return F.cross_entropy(z[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def unshifted(z: Any, ids: Any) -> Any:
    return F.cross_entropy(z.flatten(0, 1), ids.flatten())


def padded(z: Any, ids: Any, attention_mask: Any = None) -> Any:
    losses = F.cross_entropy(z.movedim(-1, 1), ids, reduction="none")
    return (losses if attention_mask is None else losses * attention_mask).mean()


def focal(z: Any, t: Any) -> Any:
    """The binary focal loss with gamma 2 and alpha 1/4."""
    losses = F.binary_cross_entropy_with_logits(z, t, reduction="none")
    p = z.sigmoid()
    side = t * 0.25 * (1 - p) ** 2 + (1 - t) * 0.75 * p**2
    return (side * losses).mean()


W = torch.tensor([1.0, 5.0, 2.0])
FIRST_ROW = "compares position t with label t"
# Each loss, what is found in it, and where: a plain cross-entropy with something more.
MORE: dict[str, tuple[Loss, Expected]] = {
    "mean of sequence means": (
        sequence_means, {"sequences": f"a mean of sequence means (label -100 left out); {FIRST_ROW}"},
    ),
    "unshifted": (unshifted, {"sequences": f"over the valid tokens (label -100 left out); {FIRST_ROW}"}),
    "shifts itself": (
        causal, {"sequences": "over the valid tokens (label -100 left out); shifts the labels itself"},
    ),
    "padding in the mean": (
        padded, {"sequences": f"over all positions, padding included (attention_mask=); {FIRST_ROW}"},
    ),
    "divided by 4": (lambda z, y: F.cross_entropy(z, y) / 4, {"variant": "times 0.25 (divided by 4)"}),
    "nearly": (lambda z, y: 1.001 * xent.cross_entropy(z, y), {"variant": "times 1.001"}),
    "softmax over the batch": (
        lambda z, y: F.nll_loss(z.log_softmax(0), y), {"variant": "softmax over axis 0"},
    ),
    "temperature": (lambda z, y: xent.cross_entropy(z / 2, y), {"variant": "temperature 2"}),
    "distillation": (
        lambda z, y: 9 * xent.cross_entropy(z / 3, y), {"variant": "temperature 3, times T² = 9"},
    ),
    "class weights": (
        nn.CrossEntropyLoss(weight=W),
        {"variant": "class weights 1 : 5 : 2, divides by the sum of weights", "targets": ("indices",)},
    ),
    "class weights, summed": (
        nn.CrossEntropyLoss(weight=W, reduction="sum"),
        {"variant": "class weights 1 : 5 : 2, divides by nothing"},
    ),
    "class weights over N": (
        lambda z, y: (W[y] * F.cross_entropy(z, y, reduction="none")).mean(),
        {"variant": "class weights 1 : 5 : 2, divides by N"},
    ),
    "weighted NLLLoss": (
        nn.NLLLoss(weight=W),
        {"variant": "class weights 1 : 5 : 2, divides by the sum of weights", "reads": "log-probabilities"},
    ),
    "label 0 left out": (
        nn.CrossEntropyLoss(ignore_index=0), {"variant": "label 0 left out, divides by the sum of weights"},
    ),
    "pos_weight": (
        nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0)), {"variant": "pos_weight 3", "denominator": "N*K"},
    ),
    "pos_weight of xent": (
        functools.partial(xent.binary_cross_entropy, pos_weight=3.0),
        {"variant": "pos_weight 3, divides by the sum of weights"},
    ),
    "focal": (lambda z, y: xent.scoring.focal_loss(xent.softmax(z), y), {"variant": "focal, gamma 2"}),
    "binary focal": (focal, {"family": BCE, "variant": "focal, gamma 2, alpha 0.25"}),
    "float16": (lambda z, y: F.cross_entropy(z.half(), y), {"variant": "the loss, rounded to float16"}),
    "bfloat16": (lambda z, y: F.cross_entropy(z.bfloat16(), y), {"variant": "the loss, rounded to bfloat16"}),
    "smoothing over the others": (
        lambda z, t: F.cross_entropy(z, 0.9 * t + 0.1 * (1 - t) / (t.shape[1] - 1)),
        {"smoothing": 0.1, "notes": ("the smoothing goes to the K - 1 other classes",)},
    ),
    "nan causes": (
        lambda z, y: F.nll_loss(z.log_softmax(1), y),
        {"notes": ("nan where every label is left out: 0 / 0",)},
    ),
}  # fmt: skip

NUMPY: dict[str, tuple[Loss, Expected]] = {
    "xent.cross_entropy": (
        xent.cross_entropy,
        {
            "family": CE, "first": "prediction", "targets": ("indices",), "reads": "logits",
            "reduction": "mean", "denominator": "N",
            "weights": "sample_weight, one per row: divides by the sum of weights; "
                       "weight, one per class: divides by the sum of weights",
            "ignored": "-100: refused; -1: refused; ignore_index=: left out, divides by the valid ones",
            "clip": "no", "renormalises": "not applicable", "layout": "last", "smoothing": 0.0, "sign": 1,
            "unit": "nats", "arrays": "numpy", "epsilon": None, "notes": (),
        },
    ),
    "xent.soft_cross_entropy, sum": (
        functools.partial(xent.soft_cross_entropy, reduction="sum"),
        {"family": CE, "targets": ("one-hot", "soft"), "reduction": "sum", "denominator": "nothing"},
    ),
    "xent.binary_cross_entropy": (
        xent.binary_cross_entropy,
        {"family": BCE, "reads": "logits", "denominator": "N*K", "clip": "no",
         "weights": "weight, one per element: divides by the sum of weights"},
    ),
    "xent.nll": (xent.nll, {"family": CE, "reads": "log-probabilities", "first": "prediction"}),
    "xent.log_loss": (
        xent.log_loss,
        {"family": CE, "reads": "probabilities", "renormalises": "refuses",
         "clip": "no, an impossible event costs inf"},
    ),
    "xent.cross_entropy, smoothed": (
        functools.partial(xent.cross_entropy, label_smoothing=0.1),
        {"family": CE, "reads": "logits", "smoothing": 0.1, "clip": "no"},
    ),
    "xent.cross_entropy with axis 1": (
        functools.partial(xent.cross_entropy, axis=1), {"family": CE, "layout": "second"},
    ),
    "scikit-learn log_loss": (
        log_loss,
        {"family": CE, "first": "target", "targets": ("indices", "one-hot"), "reads": "probabilities",
         "denominator": "N", "weights": "sample_weight, one per row: divides by the sum of weights",
         "clip": "at 2.2e-16", "renormalises": "no", "layout": "2-D only"},
    ),
    "optax-style, soft": (
        lambda z, t: -(t * xent.log_softmax(z)).sum(-1),
        {"family": CE, "targets": ("one-hot", "soft"), "reduction": "none", "denominator": "nothing"},
    ),
    "optax-style, indices": (
        optax_integer,
        {"family": CE, "reduction": "none", "ignored": "-100: refused; -1: counted as the last class"},
    ),
    "optax-style, sigmoid": (
        optax_sigmoid, {"family": BCE, "reduction": "none", "notes": ("one value per row and class",)},
    ),
    "probabilities, clipped, target first": (
        clipped,
        {"family": CE, "first": "target", "reads": "probabilities", "clip": "at 1.0e-15",
         "renormalises": "no", "notes": ("3-D input: divides by the first axis alone",)},
    ),
    "probabilities, naive": (
        lambda p, t: -(t * np.log(p)).sum(-1).mean(),
        {"family": CE, "first": "prediction", "reads": "probabilities",
         "notes": ("a zero for a wrong class gives nan: 0 * log(0)",)},
    ),
    "mean over N*K": (lambda z, t: -(t * xent.log_softmax(z)).mean(), {"family": CE, "denominator": "N*K"}),
    "sign flipped": (lambda z, y: -xent.cross_entropy(z, y), {"family": CE, "sign": -1, "reads": "logits"}),
    "swapped": (lambda y, z: xent.cross_entropy(z, y), {"family": CE, "first": "target", "reads": "logits"}),
    "double softmax": (
        lambda z, y: xent.cross_entropy(xent.softmax(z), y), {"reads": "logits, softmax applied twice"},
    ),
    "double sigmoid": (
        lambda z, t: xent.binary_cross_entropy(xent.sigmoid(z), t),
        {"family": BCE, "reads": "logits, sigmoid applied twice"},
    ),
    "naive softmax": (
        naive,
        {"reads": "logits", "clip": "exp underflows, cost inf",
         "notes": ("a logit of 1000 for the right class costs nan: exp overflows",)},
    ),
    "bits": (lambda z, y: xent.cross_entropy(z, y) / np.log(2), {"family": CE, "unit": "bits"}),
    "nan at zero": (fragile, {"reads": "probabilities", "clip": "nan", "epsilon": None}),
    "renormalising": (renormalising, {"reads": "probabilities", "renormalises": "yes"}),
    "mutating": (mutating, {"family": CE, "notes": ("changes its arguments in place",)}),
    "weights swallowed": (swallowing, {"family": CE, "weights": "sample_weight: swallowed without effect"}),
    "masked": (masked, {"family": CE, "weights": "mask, one per row: divides by the sum of weights"}),
    "binary, 1-D only": (
        lambda y, p: -(y @ np.log(p) + (1 - y) @ np.log(1 - p)) / len(y),
        {"family": BCE, "first": "target", "targets": ("0 or 1", "soft"), "reads": "probabilities",
         "denominator": "N", "notes": ("takes 1-D batches only",)},
    ),
}  # fmt: skip

TORCH: dict[str, tuple[Loss, Expected]] = {
    "F.cross_entropy": (
        F.cross_entropy,
        {"family": CE, "first": "prediction", "targets": ("indices", "one-hot", "soft"), "reads": "logits",
         "weights": "weight, one per class: divides by the sum of weights", "layout": "second",
         "ignored": "-100: left out, divides by the valid ones; -1: refused; "
                    "ignore_index=: left out, divides by the valid ones"},
    ),
    "CrossEntropyLoss(none)": (
        nn.CrossEntropyLoss(ignore_index=-1, reduction="none"),
        {"reduction": "none", "ignored": "-100: refused; -1: left out", "weights": "no argument"},
    ),
    "CrossEntropyLoss(smoothing)": (nn.CrossEntropyLoss(label_smoothing=0.2), {"smoothing": 0.2}),
    "NLLLoss": (nn.NLLLoss(), {"family": CE, "reads": "log-probabilities", "targets": ("indices",)}),
    "BCELoss": (nn.BCELoss(), {"family": BCE, "reads": "probabilities", "clip": "the log at -100"}),
    "F.binary_cross_entropy": (
        F.binary_cross_entropy, {"family": BCE, "weights": "weight, one per element: divides by N*K"},
    ),
    "BCEWithLogitsLoss": (nn.BCEWithLogitsLoss(), {"family": BCE, "reads": "logits", "clip": "no"}),
    "KLDivLoss": (nn.KLDivLoss(), {"family": KL, "reads": "log-probabilities", "denominator": "N*K"}),
    "KLDivLoss(batchmean)": (
        nn.KLDivLoss(reduction="batchmean"),
        {"family": KL, "denominator": "N", "notes": ("3-D input: divides by the first axis alone",)},
    ),
    "a softmax too many": (
        lambda z, y: F.cross_entropy(z.softmax(1), y), {"reads": "logits, softmax applied twice"},
    ),
    "float32 weights inside": (
        nn.CrossEntropyLoss(weight=torch.ones(3)), {"family": CE, "reads": "logits", "arrays": "torch"},
    ),
}  # fmt: skip

KERAS: dict[str, tuple[str, dict[str, Any], Expected]] = {
    "categorical": (
        "CategoricalCrossentropy", {},
        {"family": CE, "first": "target", "targets": ("one-hot", "soft"), "reads": "probabilities",
         "clip": "at 1.0e-07", "renormalises": "yes", "weights": "sample_weight, one per row: divides by N",
         "layout": "last"},
    ),
    "categorical, logits": (
        "CategoricalCrossentropy", {"from_logits": True},
        {"family": CE, "first": "target", "reads": "logits", "clip": "no"},
    ),
    "categorical, mean over the weights": (
        "CategoricalCrossentropy", {"reduction": "mean_with_sample_weight"},
        {"weights": "sample_weight, one per row: divides by the sum of weights"},
    ),
    "categorical, smoothed": (
        "CategoricalCrossentropy", {"label_smoothing": 0.1}, {"smoothing": 0.1, "clip": "at 1.0e-07"},
    ),
    "sparse": (
        "SparseCategoricalCrossentropy", {},
        {"targets": ("indices",), "reads": "probabilities", "renormalises": "yes"},
    ),
    "sparse, logits": (
        "SparseCategoricalCrossentropy", {"from_logits": True, "ignore_class": -1},
        {"reads": "logits", "ignored": "-100: refused; -1: left out, divides by the valid ones"},
    ),
    "binary": (
        "BinaryCrossentropy", {},
        {"family": BCE, "reads": "probabilities", "clip": "at 1.0e-07", "denominator": "N*K"},
    ),
    "binary, logits, none": (
        "BinaryCrossentropy", {"from_logits": True, "reduction": None},
        {"family": BCE, "reads": "logits", "reduction": "none",
         "notes": (
             "one value per row, the mean over K", "a 1-D batch is averaged", "returns float32 for float64",
         )},
    ),
    "KL": ("KLDivergence", {}, {"family": KL, "reads": "probabilities", "renormalises": "no"}),
}  # fmt: skip


@pytest.mark.parametrize("name", NUMPY)
def test_a_loss_of_arrays(name: str) -> None:
    loss, expected = NUMPY[name]
    found = diagnose(loss)
    assert found.known, found
    assert {key: getattr(found, key) for key in expected} == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_what_is_added_is_named(name: str) -> None:
    loss, expected = MORE[name]
    found = diagnose(loss)
    assert found.known, found
    assert {key: getattr(found, key) for key in expected} == expected


@pytest.mark.parametrize("name", TORCH)
def test_a_loss_of_pytorch(name: str) -> None:
    loss, expected = TORCH[name]
    found = diagnose(loss)
    assert (found.known, found.arrays) == (True, "torch")
    assert {key: getattr(found, key) for key in expected} == expected
    assert diagnose(loss, arrays="torch") == found


@pytest.mark.slow
@pytest.mark.parametrize("name", KERAS)
def test_a_loss_of_keras(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    loss, options, expected = KERAS[name]
    found = diagnose(getattr(frameworks.keras().losses, loss)(**options))
    assert found.known, found
    assert {key: getattr(found, key) for key in expected} == expected
    assert capfd.readouterr() == ("", "")


def test_a_loss_that_takes_tensors_of_tensorflow_only() -> None:
    tf = frameworks.tensorflow()

    def loss(y: Any, z: Any) -> Any:
        z.shape.as_list()  # an array has no such method
        return tf.nn.softmax_cross_entropy_with_logits(labels=y, logits=z)

    found = diagnose(loss)
    assert (found.family, found.first, found.reads, found.arrays) == (CE, "target", "logits", "tensorflow")


def fails(*_: Any) -> Any:
    raise ZeroDivisionError("division by zero")


def generator(seed: int = 0) -> Loss:
    rng = np.random.default_rng(seed)
    return lambda a, b: xent.cross_entropy(a, b) + rng.normal(0, 1e-3)


NEITHER: dict[str, tuple[Loss, str]] = {
    "MSE": (lambda p, t: ((p - t) ** 2).mean(), "no cross-entropy predicts them"),
    "Brier": (lambda p, t: ((p - t) ** 2).sum(1).mean(), "no cross-entropy predicts them"),
    "torch MSE": (nn.MSELoss(), "no cross-entropy predicts them"),
    "hinge": (nn.MultiMarginLoss(), "no cross-entropy predicts them"),
    "hinge on arrays": (lambda z, t: np.maximum(0, 1 - (2 * t - 1) * z).mean(), "no cross-entropy"),
    "Poisson": (nn.PoissonNLLLoss(), "no cross-entropy predicts them"),
    "constant": (lambda a, b: 1.0, "no cross-entropy predicts them"),
    "zero": (lambda a, b: 0.0, "no cross-entropy predicts them"),
    "nan": (lambda a, b: np.nan, "no cross-entropy predicts them"),
    "either order": (either, "more than one reading predicts what it returns"),
    "random": (generator(), "two equal calls return two values"),
    "fails": (fails, "ZeroDivisionError: division by zero"),
    "no number": (lambda a, b: "text", "returned str, no number"),
    "nothing": (lambda a, b: None, "returned NoneType, no number"),
    "one argument": (lambda a: a.sum(), "TypeError"),
    "plus weight decay": (lambda z, y: xent.cross_entropy(z, y) + 0.01, "no cross-entropy predicts them"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", NEITHER)
def test_it_says_unknown_rather_than_guess(name: str) -> None:
    loss, reason = NEITHER[name]
    # One of them is asked with the arrays of every library.
    found = diagnose(loss, arrays="auto" if name == "MSE" or isinstance(loss, nn.Module) else "numpy")
    assert not found.known
    assert repr(found).startswith("unknown\n")
    assert reason in found.notes[0]
    assert (found.first, found.reads, found.reduction, found.denominator, found.targets) == (
        *["unknown"] * 4,
        (),
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_random_formula_is_unknown(seed: int) -> None:
    a, b, c = np.random.default_rng(seed).normal(size=3)
    assert not diagnose(lambda p, t: a * (p * t).mean() + b * np.abs(p).mean() + c, arrays="numpy").known


def test_one_batch_that_differs_is_enough() -> None:
    """A loss that is right on two batches of three is not recognised."""

    def loss(z: Any, y: Any) -> Any:
        return xent.cross_entropy(z, y) * (1.0 if abs(z[0, 0]) > 1 else 1.1)

    assert not diagnose(loss).known


def test_the_callers_generators_are_left_alone() -> None:
    state = torch.get_rng_state().clone()
    before = np.random.get_state()[1].copy()  # noqa: NPY002 (the global one is the point)
    diagnose(F.cross_entropy)
    assert torch.equal(state, torch.get_rng_state())
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_a_loss_of_arrays_loads_no_framework() -> None:
    code = (
        "import sys, xent; from xent_book.frameworks import diagnose; d = diagnose(xent.cross_entropy);"
        "assert not diagnose(lambda a, b: 1.0).known;"
        "print(d.known, [m for m in ('torch', 'sklearn', 'keras', 'tensorflow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("True []", "")


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="loss_fn must be callable; got float"):
        diagnose(0.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"arrays must be one of 'auto', .* got 'jax'"):
        diagnose(xent.cross_entropy, arrays="jax")


def test_the_text_says_what_the_fields_say() -> None:
    text = repr(diagnose(lambda z, y: -xent.cross_entropy(z, y)))
    assert text.splitlines()[:3] == [
        "categorical cross-entropy, sign flipped",
        "  first argument prediction",
        "  targets        indices",
    ]
    assert "\n  ignored        -100: refused\n                 -1: refused\n" in text
    assert max(map(len, text.splitlines())) <= 42  # what a phone shows without scrolling
    smoothed = repr(diagnose(nn.CrossEntropyLoss(label_smoothing=0.25)))
    assert "\n  smoothing      0.25\n" in smoothed
