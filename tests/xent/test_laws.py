"""What has to hold of every function: one table of functions on arrays, one of losses on both, a test for each law.

How the tensors' functions and these agree over every option, and gradients with differences over every option, is in
test_twins.py; digits are in test_accuracy.py.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import oracle
import xent
import xent.torch
from xent import _blocks, distillation, gradients, information

Array = NDArray[Any]
Named = dict[str, Any]
by_dtype = pytest.mark.parametrize("dtype", oracle.DTYPES)
seeds = st.integers(0, 2**32)

# ------------------------------------------------------------------------------------------ blocks and rows

MODULES = (xent.numerics, xent.losses, gradients, information, distillation)
OURS = [getattr(module, name) for module in MODULES for name in module.__all__]
FUNCTIONS = {f"{f.__module__}.{f.__name__}": f for f in OURS}
by_function = pytest.mark.parametrize("name", FUNCTIONS)


def taken(name: str, table: Named) -> Named:
    known = inspect.signature(FUNCTIONS[name]).parameters
    return {n: x for n, x in table.items() if n in known}


def arguments(name: str, shape: tuple[int, ...], dtype: Any, scale: float = 4.0) -> tuple[Named, Named]:
    """Arrays and options of a call, with the classes last."""
    g = np.random.default_rng(0)
    classes, rows = shape[-1], shape[:-1]
    p, q = g.dirichlet(np.ones(classes), (2, *rows)).astype(dtype)
    z = g.normal(scale=scale, size=shape).astype(dtype)
    binary = "binary" in name
    labels = g.integers(0, classes, rows)
    table: Named = {"logits": z, "x": z, "probs": p, "target_probs": p, "p": p, "q": q}
    table["log_probs"] = np.log(np.maximum(p, 1e-7)).astype(dtype)
    table |= dict.fromkeys(("weight", "alpha"), g.uniform(0.1, 1, classes).astype(dtype))
    table |= {"targets": q if binary else labels, "pos_weight": g.uniform(0.1, 1, shape).astype(dtype)}
    table["sample_weight"] = g.uniform(size=shape if binary else rows).astype(dtype)
    v = xent.log_softmax(g.normal(scale=scale, size=shape))
    top = np.argsort(-v, axis=-1)[..., :3]
    table |= {"student_logits": z, "teacher_logits": v.astype(dtype), "top_indices": top}
    table["top_log_probs"] = np.take_along_axis(v, top, -1).astype(dtype)
    return taken(name, table), taken(name, {"label_smoothing": 0.1, "ignore_index": 0, "reduction": "none"})


def same(got: Any, expected: Any, name: str, times: float = 4.0) -> None:
    """The order of a sum may differ, and with it the last digits; a difference p - t may cancel."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.dtype == expected.dtype and got.dtype.isnative and got.shape == expected.shape
    eps = np.finfo(got.dtype).eps
    gradient = "gradient" in name
    np.testing.assert_allclose(got, expected, rtol=(1 + gradient) * times * eps, atol=2 * eps * gradient)


@by_function
@pytest.mark.parametrize("shape", [(61, 2), (7, 9, 64), (3, 1, 21, 65), (7, 11, 130), (2, 0, 3)])
@by_dtype
def test_block_boundaries_do_not_show(
    dtype: str, shape: tuple[int, ...], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row a block is summed pairwise, many rows one class after the other: the last digits differ."""
    arrays, options = arguments(name, shape, dtype, scale=8.0)
    reductions = ["none", "sum", *(["mean"] if 0 not in shape else [])] if "reduction" in options else [None]
    for reduction in reductions:
        options |= {"reduction": reduction} if reduction else {}
        monkeypatch.undo()
        expected = FUNCTIONS[name](**arrays, **options)
        for elements in (1, 3 * shape[-1] + 40, 20 * (shape[-1] + 10)):
            monkeypatch.setattr(_blocks, "BLOCK", elements)
            same(FUNCTIONS[name](**arrays, **options), expected, name, 8 if reduction is None else 4)


@by_function
@pytest.mark.parametrize("shape", [(0, 3), (2, 0, 3), (1, 1), (1,), (3, 1), (1, 3), (1, 1, 1, 2), (2, 5, 70)])
def test_each_row_is_its_own(name: str, shape: tuple[int, ...]) -> None:
    """Whatever its company, on axes of length zero and one too; a number alone comes back as a scalar."""
    arrays, options = arguments(name, shape, "float64")
    got = FUNCTIONS[name](**arrays, **options)
    depth = len(shape) - ("sigmoid" not in name and "binary" not in name)
    assert got.shape[:depth] == shape[:depth]
    for index in np.ndindex(shape[:depth]):
        one = {n: x if n in ("weight", "alpha") else x[index] for n, x in arrays.items()}
        alone = FUNCTIONS[name](**one, **options)
        assert alone.ndim or isinstance(alone, np.float64)
        same(got[index], alone, name)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize(
    "name", [name for name in FUNCTIONS if "axis" in inspect.signature(FUNCTIONS[name]).parameters]
)
def test_what_has_no_softmax_is_named_where_it_stands(
    name: str, axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whichever block and argument; log_sum_exp alone takes infinities."""
    monkeypatch.setattr(_blocks, "BLOCK", 8)
    arrays, _ = arguments(name, (2, 3, 4), "float64")
    arrays = {n: np.moveaxis(x, -1, axis) if x.ndim == 3 else x for n, x in arrays.items()}
    for argument in {"logits", "x", "student_logits", "teacher_logits"} & {*arrays}:
        for bad in (np.nan, np.inf, -np.inf)[: 1 if argument == "x" else 3]:
            z = arrays[argument].copy()
            last = tuple(n - 1 for n in z.shape)
            np.moveaxis(z, axis, -1)[1, 2, slice(None) if bad == -np.inf else 3] = bad
            said = f"got {bad} at index {last}"
            said = f"got -inf along the whole class axis {axis} at index (1, 2)" if bad == -np.inf else said
            with pytest.raises(ValueError, match=f"^{argument}: .*{re.escape(said)}"):
                FUNCTIONS[name](**arrays | {argument: z}, axis=axis)


# ---------------------------------------------------------------------------------------- laws of the losses


class Loss(NamedTuple):
    """A loss, its gradient if there is one, and what it is called with for logits, labels and a generator."""

    loss: Callable[..., Any]
    gradient: Callable[..., Any] | None
    call: Callable[[Array, Array, np.random.Generator], tuple[Array, Array, Named]]
    # What a row adds to the mean's divisor.
    mass: Callable[[Array, Named], Any] = lambda targets, options: 1.0


def weights(z: Array, g: np.random.Generator, **other: float) -> Named:
    return {"weight": g.uniform(0.5, 2, z.shape[1]), **other}


def soft(z: Array, g: np.random.Generator) -> Array:
    return g.dirichlet(np.ones(z.shape[1]), len(z))


CE, SOFT, BCE = "cross_entropy", "soft_cross_entropy", "binary_cross_entropy"
ce, smooth, binary = (
    (getattr(xent, name), getattr(gradients, f"{name}_gradient")) for name in (CE, SOFT, BCE)
)
by_label, by_mass = (lambda t, o: o["weight"][t]), (lambda t, o: t @ o["weight"])
# fmt: off
LOSSES: dict[str, Loss] = {
    CE: Loss(*ce, lambda z, y, g: (z, y, {})),
    "weighted": Loss(*ce, lambda z, y, g: (z, y, weights(z, g, label_smoothing=0.1)), by_label),
    SOFT: Loss(*smooth, lambda z, y, g: (z, soft(z, g), {})),
    "soft, weighted": Loss(*smooth, lambda z, y, g: (z, soft(z, g), weights(z, g, label_smoothing=0.1)), by_mass),
    BCE: Loss(*binary, lambda z, y, g: (z[:, 0], g.random(len(z)), {"pos_weight": 3.0, "label_smoothing": 0.1})),
    "focal_loss": Loss(xent.focal_loss, None, lambda z, y, g: (z, y, {"alpha": weights(z, g)["weight"], "gamma": 1.5})),
    "nll": Loss(xent.nll, None, lambda z, y, g: (xent.log_softmax(z), y, weights(z, g)), by_label),
    "log_loss": Loss(xent.log_loss, None, lambda z, y, g: (xent.softmax(z), y, weights(z, g)), by_label),
    "binary_log_loss": Loss(xent.binary_log_loss, None, lambda z, y, g: (xent.sigmoid(z[:, 0]), g.random(len(z)), {})),
}
DISTILLED = (distillation.distillation_loss, distillation.distillation_gradient)
# fmt: on


def beside_a_teacher(
    direction: str, z: Array, y: Array, g: np.random.Generator
) -> tuple[Array, Array, Named]:
    v = np.where(np.isneginf(z), z, 3 * g.normal(size=z.shape))
    return z, v, {"temperature": 2.0, "direction": direction, "beta": 0.3}


LOSSES |= {
    f"distillation, {direction}": Loss(*DISTILLED, partial(beside_a_teacher, direction))
    for direction in ("forward", "reverse", "jsd")
}


def by_autograd(function: Any, x: Any, t: Any, *, slope: bool, **options: Any) -> Any:
    """A loss of tensors, or its gradient, as an array."""
    z = torch.tensor(x, requires_grad=slope)
    losses = function(z, torch.tensor(t), **options)
    found = torch.autograd.grad(losses.sum(), z)[0] if slope else losses
    return found.numpy()[()]


def of_top_k(z: Any, v: Any, **options: Any) -> Any:
    """Of a teacher's two most probable classes, in arrays or in tensors."""
    at = np.argsort(-np.asarray(v), -1, kind="stable")[..., :2]
    log_p = np.take_along_axis(xent.log_softmax(np.asarray(v)), at, -1)
    if isinstance(z, torch.Tensor):
        return xent.torch.top_k_loss(z, torch.from_numpy(log_p), torch.from_numpy(at), **options)
    return distillation.top_k_loss(z, log_p, at, **options)


def with_labels(z: Any, v: Any, **options: Any) -> Any:
    """Mixed with the loss of the labels that the teacher takes for the most probable ones."""
    return xent.torch.mixed_loss(z, v, v.nan_to_num().argmax(-1), alpha=0.3, temperature=2.0, **options)


LOSSES["distillation, top k"] = Loss(of_top_k, None, lambda z, y, g: (*beside_a_teacher("", z, y, g)[:2], {}))
ON_TENSORS = {name: getattr(xent.torch, of.loss.__name__, of_top_k) for name, of in LOSSES.items()}
for _name, _function in [*ON_TENSORS.items(), ("distillation, mixed", with_labels)]:
    _loss, _slope = (partial(by_autograd, _function, slope=slope) for slope in (False, True))
    _of = LOSSES.get(_name, LOSSES["distillation, top k"])
    LOSSES[f"{_name}, tensors"] = Loss(_loss, _slope, _of.call, _of.mass)
WITH_LABELS = [CE, "weighted", "focal_loss", "nll", "log_loss"]
OF_LABELS = [*WITH_LABELS, *(f"{name}, tensors" for name in WITH_LABELS)]
OF_LOGITS = [name for name in LOSSES if not name.removesuffix(", tensors").endswith(("nll", "log_loss"))]
by_loss = pytest.mark.parametrize("name", LOSSES)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Array, Array, np.random.Generator]:
    """Logits of a few rows and their labels; now and then a logit is -inf, but never a whole row."""
    count, classes = draw(st.integers(1, 6)), draw(st.integers(1, 7))
    scale = draw(st.sampled_from([0.1, 1.0, 30.0, 1e4]))
    g = np.random.default_rng(draw(seeds))
    z = scale * g.normal(size=(count, classes))
    if draw(st.booleans()):
        z[:, 1:][g.random((count, classes - 1)) < 0.3] = -np.inf
    return z, g.integers(0, classes, count), g


RTOL = 1e-14


def close(got: Any, expected: Any, atol: float = 0.0, rtol: float = RTOL) -> None:
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=atol)


class Call:
    """A loss and its gradient of some of the rows of a problem; targets and options may be others."""

    def __init__(self, name: str, problem: tuple[Array, Array, np.random.Generator]) -> None:
        self.of = LOSSES[name]
        self.x, self.t, self.options = self.of.call(*problem)
        self.loss, self.gradient = partial(self.given, self.of.loss), partial(self.given, self.of.gradient)
        # In the gradient a difference p - t may cancel, or one of log ratios.
        atol = 1e-10 if "distillation" in name else 4e-15
        self.both = [(self.loss, 0.0), *([(self.gradient, atol)] if self.of.gradient else [])]
        self.room = atol if "," in name else 0.0

    def given(self, f: Any, rows: Any = slice(None), x: Any = None, t: Any = None, **other: Any) -> Any:
        x, t = self.x if x is None else x, self.t if t is None else t
        return f(x[rows], t[rows], **self.options | other)


@pytest.mark.parametrize("name", [name for name in OF_LOGITS if not name.startswith(BCE)])
@settings(max_examples=40)
@given(problems(), st.integers(-999, 999))
def test_a_shift_changes_nothing(name: str, problem: Any, shift: int) -> None:
    """To the last digit, but for what lies beside another row of logits, whose differences are rounded."""
    call = Call(name, (np.rint(problem[0] * 16) / 16, *problem[1:]))  # so that the shift is exact
    for f, _ in call.both:
        got, due = f(x=call.x + shift, reduction="none"), f(reduction="none")
        np.testing.assert_allclose(got, due, *((1e-10, 1e-13) if "distillation" in name else (0, 0)))


@by_loss
@settings(max_examples=40)
@given(problems(), seeds)
def test_a_permutation_of_rows_or_classes_changes_nothing(name: str, problem: Any, seed: int) -> None:
    call, g = Call(name, problem), np.random.default_rng(seed)
    rows, classes = g.permutation(len(call.x)), g.permutation(call.x.shape[-1])
    for f, atol in call.both:
        expected = f(reduction="none")
        # A product with the classes' weights is rounded by where a row stands, and so is a vector of PyTorch's.
        rtol = RTOL if "," in name or name == "weighted" else 0.0
        close(f(rows, reduction="none"), expected[rows], atol, rtol)
        if call.x.ndim > 1:
            other = {n: x[classes] for n, x in call.options.items() if n in ("weight", "alpha")}
            moved = np.argsort(classes)[call.t] if call.t.ndim == 1 else call.t[:, classes]
            got = f(x=call.x[:, classes], t=moved, **other, reduction="none")
            close(got, expected[:, classes] if expected.ndim > 1 else expected, atol)


@by_loss
@settings(max_examples=40)
@given(problems(), st.integers(0, 6), seeds)
def test_the_mean_divides_by_the_mass_and_parts_add_up(name: str, problem: Any, cut: int, seed: int) -> None:
    """Weights have no unit, the sum is linear in them, and a gradient's rows do not depend on each other."""
    call = Call(name, problem)
    w = np.random.default_rng(seed).uniform(0.5, 2, len(call.t))
    mass = float(np.sum(w * call.of.mass(call.t, call.options)))
    rows = call.loss(sample_weight=w, reduction="none")
    close(rows, w * call.loss(reduction="none"))
    close(call.loss(sample_weight=w, reduction="sum"), rows.sum())
    close(call.loss(sample_weight=w), rows.sum() / mass)
    close(call.loss(sample_weight=3 * w), rows.sum() / mass)
    close(call.loss(sample_weight=w, denominator=2.5), rows.sum() / 2.5)
    options = {"denominator": mass}
    parts = [(part, options | {"sample_weight": w[part]}) for part in (slice(cut), slice(cut, None))]
    close(sum(call.loss(part, **options) for part, options in parts), rows.sum() / mass)
    if call.of.gradient:
        each = call.gradient(sample_weight=w, reduction="none")
        close(each, call.gradient(sample_weight=w, reduction="sum"), call.room, rtol=0.0)
        close(call.gradient(sample_weight=w), each / mass, call.room)
        pieces = [call.gradient(part, **options) for part, options in parts]
        close(np.concatenate(pieces), each / mass, max(4e-15, call.room))


@by_loss
@settings(max_examples=40)
@given(problems(), seeds)
def test_whole_weights_are_repetition_and_zero_is_leaving_out(name: str, problem: Any, seed: int) -> None:
    """Of samples, and of classes, where these have a weight; what does not count is not looked at."""
    call, g = Call(name, problem), np.random.default_rng(seed)
    w = g.integers(0, 4, len(call.t))
    w[0] += 1
    expected = call.loss(np.repeat(np.arange(len(w)), w))
    close(call.loss(sample_weight=w), expected)
    close(call.loss(sample_weight=w > 0), call.loss(w > 0))
    if name in OF_LOGITS:
        bad, options = g.choice([np.nan, np.inf, -np.inf]), {"sample_weight": w}
        hidden = np.where(w > 0, call.x.T, bad).T
        if "distillation" in name and "top k" not in name:  # whose classes have to be some
            spoilt = g.permuted([bad] + [0.0] * (len(call.t.T) - 1))[:, None]
            options["t"] = np.where(w > 0, call.t.T, spoilt).T
        close(call.loss(x=hidden, **options), expected)
        if call.of.gradient:
            gradient = call.gradient(x=hidden, **options)
            assert (gradient[w == 0] == 0).all()
            other = "tensors" in name or "distillation" in name  # whose zeros have signs
            assert other or not np.signbit(gradient[w == 0]).any()
            close(gradient[w > 0], call.gradient(w > 0, sample_weight=w[w > 0]), max(4e-15, call.room))
    if name in OF_LABELS and "weight" in call.options:
        by_class = g.integers(0, 4, call.x.shape[1])
        by_class[call.t[0]] += 1
        again = np.repeat(np.arange(len(w)), by_class[call.t])
        close(call.loss(weight=by_class), call.loss(again, weight=None))
        if name in OF_LOGITS:
            hidden = np.where(by_class[call.t] > 0, call.x.T, bad).T
            gradient = call.gradient(x=hidden, weight=by_class)
            assert (gradient[by_class[call.t] == 0] == 0).all()
            close(call.loss(x=hidden, weight=by_class), call.loss(weight=by_class))


@pytest.mark.parametrize("name", OF_LABELS)
@settings(max_examples=40)
@given(problems(), seeds)
def test_ignoring_is_leaving_out(name: str, problem: Any, seed: int) -> None:
    call, keep = Call(name, problem), np.random.default_rng(seed).random(len(problem[1])) < 0.6
    keep[0] = True
    some: Named = {"t": np.where(keep, call.t, -7), "ignore_index": -7}
    if name in OF_LOGITS:  # which are not looked at
        bad = np.random.default_rng(seed).choice([np.nan, np.inf, -np.inf])
        some["x"] = np.where(keep[:, None], call.x, bad)
    for f, atol in call.both:
        every = f(**some)
        close(every[keep] if np.ndim(every) else every, f(keep), atol)
        assert (f(**some, reduction="none")[~keep] == 0).all()
    close(call.loss(**some, sample_weight=keep + 1.0), call.loss(keep))


# --------------------------------------------------------------------------- one loss by another, and by others


@given(problems(), st.sampled_from([0.0, 1e-3, 0.1, 0.5, 1.0]))
def test_losses_by_each_other(problem: Any, smoothing: float) -> None:
    z, y, g = problem
    count, classes = z.shape
    none: Named = {"reduction": "none"}
    one_hot, w, s = np.eye(classes)[y], g.uniform(0.5, 2, classes), g.uniform(0.5, 2, count)
    losses = xent.cross_entropy(z, y, **none)
    close(xent.soft_cross_entropy(z, one_hot, **none), losses)
    smoothed = xent.cross_entropy(z, y, label_smoothing=smoothing, **none)
    close(xent.soft_cross_entropy(z, (1 - smoothing) * one_hot + smoothing / classes, **none), smoothed)
    for kind in ("none", "sum", "mean"):
        options = {"weight": w, "sample_weight": s, "label_smoothing": smoothing, "reduction": kind}
        close(xent.soft_cross_entropy(z, one_hot, **options), xent.cross_entropy(z, y, **options))
    close(xent.focal_loss(z, y, gamma=0, **none), losses, rtol=1e-15)
    close(xent.nll(xent.log_softmax(z), y, **none), losses)
    # Probabilities hold no digits below one epsilon of one, and none beyond the smallest float.
    p, near = xent.softmax(z), losses < 700
    close(xent.log_loss(p, y, **none)[near], losses[near], atol=1e-11)
    rule = xent.scoring.focal_loss(p, y, gamma=1.5)
    ours = xent.focal_loss(z, y, gamma=1.5, alpha=w, **none)
    close(ours[near], (w[y] * rule)[near], atol=1e-11, rtol=1e-12)
    tempered = 2.0 * xent.log_softmax(z)
    close(xent.cross_entropy(tempered, y), xent.cross_entropy(2.0 * z, y), atol=1e-11)
    # Never negative, and zero only for certainty.
    assert (losses >= 0).all()
    others = np.where(one_hot > 0, -np.inf, z).max(axis=1)
    assert ((losses == 0) == (others - z[np.arange(count), y] < -745.2)).all()


@given(problems(), st.integers(-1000, 1000))
def test_a_shift_moves_log_sum_exp_and_leaves_the_softmax(problem: Any, shift: int) -> None:
    z = np.rint(problem[0] * 16) / 16  # so that the shift is exact
    close(xent.log_sum_exp(z + shift), xent.log_sum_exp(z) + shift, atol=1e-11, rtol=0)
    assert (xent.log_softmax(z) <= 0).all()
    for f in (xent.log_softmax, xent.softmax):
        np.testing.assert_array_equal(f(z + shift), f(z))
