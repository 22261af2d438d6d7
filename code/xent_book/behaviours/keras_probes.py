"""What Keras and TensorFlow do.

Keras fixes its backend once, so the rows on PyTorch run in a process of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from . import _registry
from ._registry import Lazy, Seen, Y, attempt, drawn, keras, plain, tensorflow, warned

Z, P, ONEHOT = (a.astype(np.float32) for a in (_registry.Z, _registry.P, _registry.ONEHOT))
k, tf = Lazy(keras), Lazy(tensorflow)


def _loss(name: str, **options: Any) -> Any:
    return getattr(k.losses, f"{name}Crossentropy")(**options)


sparse, categorical, binary = (partial(_loss, n) for n in ("SparseCategorical", "Categorical", "Binary"))


def _tensor(values: Any, dtype: str = "float32") -> Any:
    return k.ops.convert_to_tensor(np.asarray(values), dtype=dtype)


def _float(value: Any) -> float:
    return float(np.asarray(k.ops.convert_to_numpy(k.ops.cast(value, "float32"))).item())


def _tf_gradient(loss: Callable[[Any], Any], z: Any) -> Any:
    z = tf.convert_to_tensor(z)
    with tf.GradientTape() as tape:
        tape.watch(z)
        value = loss(z)
    return tape.gradient(value, z).numpy()


_ON_TORCH: dict[str, Callable[[], Seen]] = {}


@cache
def _seen_on_torch() -> dict[str, Seen]:
    """Run every row of Keras on PyTorch in one fresh process."""
    code = "from xent_book.behaviours.keras_probes import report_on_torch; report_on_torch()"
    path = os.pathsep.join(p for p in sys.path if p)
    environment = os.environ | {"KERAS_BACKEND": "torch", "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"Keras on PyTorch failed: {done.stderr.strip().splitlines()[-1:]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def report_on_torch() -> None:
    """Run the rows of Keras on PyTorch and write what they saw as a line of JSON; for the process above."""
    if k.backend.backend() != "torch":
        raise RuntimeError("KERAS_BACKEND is not torch")
    print(json.dumps({slug: plain(run()) for slug, run in _ON_TORCH.items()}))


def _on_torch(row: str, run: Callable[[], Seen]) -> Callable[[], Seen]:
    """A probe that runs there what another row runs here."""
    _ON_TORCH[row] = run
    return lambda: _seen_on_torch()[row]


def keras_argument_order() -> Seen:
    return {"right": _float(categorical()(ONEHOT, P)), "swapped": _float(categorical()(P, ONEHOT))}


def keras_forgotten_from_logits() -> Seen:
    return {
        "categorical": _float(categorical()(ONEHOT, Z)),
        "sparse": _float(sparse()(Y, Z)),
        "from_logits=True": _float(sparse(from_logits=True)(Y, Z)),
    }


keras_torch_forgotten_from_logits = _on_torch("forgotten-from-logits", keras_forgotten_from_logits)


def _backdoor() -> Seen:
    """The loss of logits 30, 0, 0 with label 1: 30, or the ceiling of a clip."""
    z, y = np.array([[30.0, 0.0, 0.0]], dtype=np.float32), np.array([1])
    softmax = k.Sequential([k.layers.Softmax()])
    followed = k.Sequential([k.layers.Softmax(), k.layers.Reshape((3,))])
    seen: Seen = {
        "model that ends in softmax": _float(sparse()(y, softmax(z))),
        "softmax, then Reshape": _float(sparse()(y, followed(z))),
    }
    short = np.array([[5.0, 0.0, 0.0]], dtype=np.float32)
    loss, said = warned(lambda: sparse(from_logits=True)(y, softmax(short)))
    return seen | {"from_logits=True after softmax, logits 5, 0, 0": _float(loss), "warns": bool(said)}


def keras_softmax_backdoor() -> Seen:
    seen, loss = _backdoor(), sparse()
    model = k.Sequential([k.layers.Softmax()])
    z, y = tf.constant([[30.0, 0.0, 0.0]]), tf.constant([1])
    seen["model that ends in softmax, graph"] = tf.function(lambda z: loss(y, model(z)))(z)
    double = k.Sequential([k.layers.Softmax(dtype="float64")])
    seen["float64 softmax"] = _float(loss(Y[1:], double(z)))
    seen["ignore_class=-1"] = _float(sparse(ignore_class=-1)(Y[1:], model(z)))
    return seen


keras_torch_softmax_backdoor = _on_torch("softmax-backdoor", _backdoor)


def tensorflow_bad_labels() -> Seen:
    z, y = tf.constant(Z[:1]), tf.constant([7])
    ce = tf.nn.sparse_softmax_cross_entropy_with_logits
    compiled = tf.function(lambda z: ce(labels=y, logits=z), jit_compile=True)
    loss = attempt(lambda: ce(labels=y, logits=z))
    return {
        "eager": loss.split(":")[0] if isinstance(loss, str) else loss,
        "jit_compile=True": compiled(z)[0],
        "jit_compile=True, gradient": _tf_gradient(compiled, z)[0],
    }


def keras_reductions() -> Seen:
    w = np.array([1.0, 3.0], dtype=np.float32)
    seen: Seen = {}
    for name in ("sum", "sum_over_batch_size", "mean", "mean_with_sample_weight"):
        seen[name] = _float(sparse(from_logits=True, reduction=name)(Y, Z, sample_weight=w))
    metric = k.metrics.SparseCategoricalCrossentropy(from_logits=True)
    metric.update_state(Y, Z, sample_weight=w)
    seen["metric"] = _float(metric.result())
    return seen


def keras_bce_1d() -> Seen:
    y, p = np.array([1.0, 0.0, 1.0], np.float32), np.array([0.9, 0.2, 0.9], np.float32)
    w = np.array([1.0, 0.0, 0.0], np.float32)
    y2, p2 = y[:, None], p[:, None]
    return {
        "none, shape": str(np.shape(k.ops.convert_to_numpy(binary(reduction="none")(y, p)))),
        "none, shape of (N, 1)": str(np.shape(k.ops.convert_to_numpy(binary(reduction="none")(y2, p2)))),
        "sum": _float(binary(reduction="sum")(y, p)),
        "sum of (N, 1)": _float(binary(reduction="sum")(y2, p2)),
        "weights 1, 0, 0": _float(binary()(y, p, sample_weight=w)),
        "weights 1, 0, 0 of (N, 1)": _float(binary()(y2, p2, sample_weight=w)),
    }


def keras_class_weight() -> Seen:
    model = k.Sequential([k.Input((3,)), k.layers.Dense(3, use_bias=False)])
    model.layers[0].set_weights([np.eye(3, dtype=np.float32)])
    model.compile(k.optimizers.SGD(0.0), sparse(from_logits=True), run_eagerly=True)
    history = model.fit(Z, Y, batch_size=2, class_weight={0: 1.0, 1: 10.0, 2: 1.0}, verbose=0)
    by_weights = sparse(from_logits=True, reduction="mean_with_sample_weight")
    return {
        "class_weight in fit": history.history["loss"][0],
        "mean_with_sample_weight": _float(by_weights(Y, Z, sample_weight=np.array([1.0, 10.0]))),
    }


def keras_all_ignored() -> Seen:
    return {"loss": _float(sparse(from_logits=True, ignore_class=-1)(np.array([-1, -1]), Z))}


def keras_mask_or_weight() -> Seen:
    masked = _tensor(Z)
    k.src.backend.set_keras_mask(masked, _tensor([False, True], "bool"))
    return {
        "ignore_class": _float(sparse(from_logits=True, ignore_class=0)(Y, Z)),
        "mask": _float(sparse(from_logits=True)(Y, masked)),
        "weights 0, 1": _float(sparse(from_logits=True)(Y, Z, sample_weight=np.array([0.0, 1.0]))),
    }


def keras_mask_propagation() -> Seen:
    ids = np.array([[1, 2, 0, 0], [3, 1, 2, 3]])
    table = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    layer = k.layers.Embedding(4, 4, mask_zero=True)
    layer.build(ids.shape)
    layer.set_weights([table])
    y = np.array([[2, 1, 0, 0], [1, 2, 3, 0]])
    loss, out, z = sparse(from_logits=True), layer(ids), table[ids]
    each = np.log(np.exp(z).sum(-1)) - np.take_along_axis(z, y[..., None], -1)[..., 0]
    return {
        "mask kept": _float(loss(y, out)),
        "mask dropped by o * 1.0": _float(loss(y, out * 1.0)),
        "mean over valid tokens": each[ids > 0].mean(),
        "mean over all tokens": each.mean(),
        "mean of sequence means": (each[0, :2].mean() + each[1].mean()) / 2,
    }


def keras_smoothing() -> Seen:
    y, p = np.array([[1.0]], np.float32), np.array([[0.9]], np.float32)
    return {
        "categorical, .3": _float(categorical(from_logits=True, label_smoothing=0.3)(ONEHOT, Z)),
        "(1-eps) y + eps/K": _float(categorical(from_logits=True)(0.7 * ONEHOT + 0.1, Z)),
        "binary, .3": _float(binary(label_smoothing=0.3)(y, p)),
        "(1-eps) y + eps/2": _float(binary()(0.7 * y + 0.15, p)),
        "sparse": attempt(lambda: sparse(label_smoothing=0.3)),
        "categorical, -.3": _float(categorical(from_logits=True, label_smoothing=-0.3)(ONEHOT, Z)),
        "categorical, 2": _float(categorical(from_logits=True, label_smoothing=2.0)(ONEHOT, Z)),
    }


def keras_smoothing_axis() -> Seen:
    z, y = Z.T[None], ONEHOT.T[None]
    return {
        "axis=1": _float(categorical(from_logits=True, label_smoothing=0.3, axis=1)(y, z)),
        "classes last": _float(categorical(from_logits=True, label_smoothing=0.3)(ONEHOT, Z)),
        "targets summing to 1.05": _float(categorical(from_logits=True, axis=1)(0.7 * y + 0.3 / 2, z)),
    }


def keras_kl() -> Seen:
    divergence = k.losses.KLDivergence()
    classes = 50_000
    onehot = np.zeros((1, classes), np.float32)
    onehot[0, 0] = 1
    uniform = np.full((1, classes), 1 / classes, np.float32)
    half = np.array([[0.5, 0.5]], np.float32)
    return {
        "one-hot, K=50000": _float(divergence(onehot, uniform)),
        "log K": np.log(classes),
        "of logits 2, 2": _float(divergence(half, 4 * half)),
    }


def keras_epsilon() -> Seen:
    sure = np.array([[1.0, 0.0, 0.0]], np.float32)
    one = np.ones((1, 1), np.float32)
    return {
        "impossible, categorical": _float(categorical()(ONEHOT[1:], sure)),
        "impossible, sparse": _float(sparse()(Y[1:], sure)),
        "impossible, binary": _float(binary()(one, 0 * one)),
        "perfect, categorical": _float(categorical()(ONEHOT[:1], sure)),
        "rows that sum to .6": _float(categorical()(ONEHOT[:1], np.full((1, 3), 0.2, np.float32))),
        "rows that sum to .6, sparse": _float(sparse()(Y[:1], np.full((1, 3), 0.2, np.float32))),
    }


def keras_clip_gradient() -> Seen:
    z = np.array([[17.0, 0.0, 0.0]], np.float32)
    y = np.array([1])
    probs, logits = sparse(), sparse(from_logits=True)
    return {
        "probabilities": _float(probs(y, tf.nn.softmax(z))),
        "probabilities, gradient": _tf_gradient(lambda z: probs(y, tf.nn.softmax(z)), z)[0],
        "logits": _float(logits(y, z)),
        "logits, gradient": _tf_gradient(lambda z: logits(y, z), z)[0],
    }


def tensorflow_gradient() -> Seen:
    z = np.array([[2.0, 1.0, 0.0]], np.float32)
    ce = tf.nn.softmax_cross_entropy_with_logits
    double, none = np.array([[2.0, 0.0, 0.0]], np.float32), np.zeros((1, 3), np.float32)
    step = 1e-5
    fine = z.astype(np.float64)
    up, down = (ce(np.repeat(double, 3, 0).astype(float), fine + e * np.eye(3)) for e in (step, -step))
    differences = (up - down).numpy() / (2 * step)
    cce = categorical(from_logits=True)
    seen: Seen = {
        "zero row, loss": ce(labels=none, logits=z)[0],
        "zero row, gradient": _tf_gradient(lambda z: ce(labels=none, logits=z), z)[0],
        "zero row, gradient through Keras": _tf_gradient(lambda z: cce(none, z), z)[0],
        "labels 2, 0, 0": _tf_gradient(lambda z: ce(labels=double, logits=z), z)[0],
        "finite differences": np.round(differences, 4).tolist(),
    }
    from tensorflow.python.framework import config  # the way back is not public

    tf.config.experimental.enable_op_determinism()
    try:
        seen["labels 2, 0, 0, deterministic"] = _tf_gradient(lambda z: ce(labels=double, logits=z), z)[0]
    finally:
        config.disable_op_determinism()
    return seen


def keras_half_precision() -> Seen:
    bce = k.losses.binary_crossentropy
    return {
        f"{name}, {dtype}": _float(bce(_tensor([[y]], dtype), _tensor([[p]], dtype)))
        for dtype in ("float16", "bfloat16")
        for name, y, p in (("perfect", 1, 1), ("y=1, p=0", 1, 0), ("y=0, p=1", 0, 1))
    }


keras_torch_half_precision = _on_torch("half-precision", keras_half_precision)


def keras_loss_dtype() -> Seen:
    seen: Seen = {}
    for dtype, label in (("bfloat16", 257), ("float16", 2049)):
        z = np.zeros((1, 3000), np.float32)
        z[0, label] = 5.0
        for name in ("float32", dtype):
            loss = sparse(from_logits=True, dtype=name)
            seen[f"label {label}, {name}"] = _float(loss(np.array([label]), z))
    return seen


def keras_downcast() -> Seen:
    z, y = np.array([[20.0, 0.0]]), np.array([0])
    function = k.losses.sparse_categorical_crossentropy(y, _tensor(z, "float64"), from_logits=True)
    return {
        "class": _float(sparse(from_logits=True)(y, z)),
        "function": float(np.asarray(function)[0]),
        "class, dtype='float64'": float(sparse(from_logits=True, dtype="float64")(y, z)),
    }


def keras_layout() -> Seen:
    (z, y), sce = drawn(2, 5, 5), sparse(from_logits=True)
    return {"(B, T, V)": _float(sce(y, z)), "(B, V, T)": _float(sce(y, z.transpose(0, 2, 1)))}
