"""The same questions put to each library, answered by measurement: the table at a glance."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from scipy.special import log_softmax

import xent

from ._registry import ONEHOT, P, Seen, Y, Z, attempt, keras, tensorflow

Array: TypeAlias = "np.ndarray[Any, Any]"
Loss: TypeAlias = Callable[..., Any]

EACH = -np.log(P[[0, 1], Y])
RIGHT = {"right": EACH.mean()}

COLUMNS = {
    "scikit-learn log_loss": "sklearn-profile",
    "PyTorch cross_entropy": "torch-profile",
    "Keras, default": "keras-profile",
    "Keras, from_logits": "keras-logits-profile",
    "xent cross_entropy": "xent-profile",
}


def _number(value: Any) -> float | str:
    """A float, or the kind of exception."""
    if isinstance(value, str):
        return value.split(":")[0]
    if hasattr(value, "detach"):
        value = value.detach().double()
    return float(np.asarray(value).reshape(-1)[0])


def _which(value: Any, candidates: dict[str, float]) -> str:
    """The name of the candidate that a measured value agrees with, to float32's digits."""
    value = _number(value)
    if isinstance(value, str):
        return value
    for name, candidate in candidates.items():
        if math.isclose(value, candidate, rel_tol=1e-5):
            return name
    return f"other: {value:.4g}"


def _show(value: Any) -> str:
    """A number in few digits."""
    value = _number(value)
    return value if isinstance(value, str) else f"{value:.3g}"


def profile(
    *,
    loss: Loss,
    call: Loss,
    to: Callable[..., Any],
    logits: bool,
    soft: Loss | None = None,
    ignore: Loss | None = None,
    smooth: Loss | None = None,
    weighted: Loss | None = None,
    gradient: Callable[[], Any] | None = None,
    by: Mapping[str, str] | None = None,
) -> Seen:
    """Ask one loss every question.

    `loss` takes two arrays in the library's own order, `call` a prediction and labels; `to` turns an array into what
    the library takes; what `logits` claims is checked by a call, and a claim that fails raises. The others are the
    calls for the other questions; without one, the library has no such argument. `by` names the other loss of the
    library that answers a question, where `loss` does not.
    """
    good, other = (Z, P) if logits else (P, Z)
    if _which(attempt(lambda: call(to(good), Y)), RIGHT) != "right":
        raise AssertionError("the loss does not read what is claimed")
    if _which(attempt(lambda: call(to(other), Y)), RIGHT) == "right":
        raise AssertionError("the loss reads logits and probabilities alike")
    orders = {"prediction": (good, Y), "truth": (Y, good)}
    (first,) = (
        name
        for name, arrays in orders.items()
        if _which(attempt(functools.partial(loss, *arrays)), RIGHT) == "right"
    )
    sure = np.array([[1.0, 0.0, 0.0]])
    with np.errstate(divide="ignore"):
        impossible = np.log(sure) if logits else sure
    margin = np.array([[18.0, 0.0]], dtype=np.float32)
    if not logits:
        margin = (np.exp(margin) / np.exp(margin).sum(dtype=np.float32)).astype(np.float32)
    rng = np.random.default_rng(0)
    cube, labels = rng.normal(size=(2, 3, 3)), np.array([[0, 1, 2], [1, 2, 0]])
    log_p = log_softmax(cube, axis=-1)
    last = -np.take_along_axis(log_p, labels[..., None], -1).mean()
    second = -np.take_along_axis(log_softmax(cube, axis=1), labels[:, None], 1).mean()
    seen: Seen = {"first argument": first, "reads": "logits" if logits else "probabilities"}
    mixed = 0.9 * ONEHOT + 0.1 / 3
    smooth_loss = -(mixed * np.log(P)).sum(1).mean()

    def asked(option: Loss | None, candidates: dict[str, float], *rest: Any) -> str:
        if option is None:
            return "no argument"
        return _which(attempt(lambda: option(to(good), *rest)), candidates)

    seen["soft targets"] = asked(soft, {"yes": smooth_loss}, to(mixed))
    w = np.array([1.0, 3.0])
    divided = {"over sum of weights": (w * EACH).sum() / 4, "over N": (w * EACH).sum() / 2}
    seen["mean with weights 1, 3"] = asked(weighted, divided, Y, w)
    one, none = np.array([-1, 1]), np.array([-1, -1])
    seen["one of two ignored"] = asked(ignore, {"over valid": EACH[1], "over N": EACH[1] / 2}, one)
    seen["all ignored"] = "no argument" if ignore is None else _show(attempt(lambda: ignore(to(good), none)))
    seen["label smoothing"] = asked(smooth, {"(1-eps) y + eps/K": smooth_loss}, Y)
    seen["label out of range, CPU"] = _show(attempt(lambda: call(to(good), np.array([0, 7]))))
    seen["impossible event"] = _show(attempt(lambda: call(to(impossible), np.array([1]))))
    seen["perfect answer"] = _show(attempt(lambda: call(to(impossible), np.array([0]))))
    seen["float32, margin 18"] = _show(attempt(lambda: call(to(margin, "float32"), np.array([0]))))
    seen["sure and wrong: gradient"] = "no gradient" if gradient is None else _show(gradient())
    three = to(cube if logits else np.exp(log_p))
    axes = {"last": last, "second": second}
    for question, name in (by or {}).items():
        seen[question] = f"{name}: {seen[question]}"
    return seen | {"class axis of 3-D input": _which(attempt(lambda: call(three, labels)), axes)}


def sklearn_profile() -> Seen:
    from sklearn.metrics import log_loss

    def call(p: Array, y: Array, **options: Any) -> Any:
        return log_loss(y, p, labels=list(range(np.shape(p)[1])), **options)

    return profile(
        call=call,
        to=lambda a, dtype="float64": np.asarray(a, dtype),
        loss=functools.partial(log_loss, labels=[0, 1, 2]),
        logits=False,
        soft=lambda p, t: log_loss(t, p),
        weighted=lambda p, y, w: call(p, y, sample_weight=w),
    )


def torch_profile() -> Seen:
    import torch

    ce = torch.nn.functional.cross_entropy

    def call(z: Any, y: Array, **options: Any) -> Any:
        return ce(z, torch.from_numpy(y), **options)

    def gradient() -> Any:
        z = torch.tensor([[17.0, 0.0, 0.0]], requires_grad=True)
        (slope,) = torch.autograd.grad(ce(z, torch.tensor([1])), z)
        return slope[0, 0]

    return profile(
        call=call,
        to=lambda a, dtype="float64": torch.from_numpy(np.asarray(a, dtype)),
        loss=lambda a, b: ce(torch.from_numpy(a), torch.from_numpy(b)),
        logits=True,
        soft=ce,
        ignore=lambda z, y: call(z, y, ignore_index=-1),
        smooth=lambda z, y: call(z, y, label_smoothing=0.1),
        weighted=lambda z, y, w: call(z, y, weight=torch.tensor([1.0, 3.0, 1.0]).double()),
        gradient=gradient,
    )


def _keras_profile(logits: bool) -> Seen:
    tf, k = tensorflow(), keras()
    sparse = functools.partial(k.losses.SparseCategoricalCrossentropy, from_logits=logits)
    soft = functools.partial(k.losses.CategoricalCrossentropy, from_logits=logits)

    def gradient() -> Any:
        z = tf.constant([[17.0, 0.0, 0.0]])
        with tf.GradientTape() as tape:
            tape.watch(z)
            loss = sparse()(np.array([1]), z if logits else tf.nn.softmax(z))
        return tape.gradient(loss, z)[0, 0]

    return profile(
        call=lambda p, y: sparse()(y, p),
        to=lambda a, dtype="float32": tf.constant(np.asarray(a, dtype)),
        loss=lambda a, b: sparse()(a, b),
        logits=logits,
        soft=lambda p, t: soft()(t, p),
        ignore=lambda p, y: sparse(ignore_class=-1)(y, p),
        smooth=lambda p, y: soft(label_smoothing=0.1)(ONEHOT, p),
        weighted=lambda p, y, w: sparse()(y, p, sample_weight=w),
        gradient=gradient,
        by=dict.fromkeys(("soft targets", "label smoothing"), "categorical"),
    )


# SparseCategoricalCrossentropy as it comes, from probabilities; and with from_logits=True.
keras_profile = functools.partial(_keras_profile, False)
keras_logits_profile = functools.partial(_keras_profile, True)


def xent_profile() -> Seen:
    ce = xent.cross_entropy
    return profile(
        call=ce,
        to=lambda a, dtype="float64": np.asarray(a, dtype),
        loss=ce,
        logits=True,
        soft=xent.soft_cross_entropy,
        ignore=lambda z, y: ce(z, y, ignore_index=-1),
        smooth=lambda z, y: ce(z, y, label_smoothing=0.1),
        weighted=lambda z, y, w: ce(z, y, weight=[1.0, 3.0, 1.0]),
        gradient=lambda: xent.gradients.cross_entropy_gradient([[17.0, 0.0, 0.0]], [1])[0, 0],
        by={"soft targets": "soft_cross_entropy"},
    )
