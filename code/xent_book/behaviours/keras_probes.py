"""What Keras and TensorFlow do.

Keras fixes its backend once, so the rows on PyTorch run in a process of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ._registry import Seen, attempt, keras, plain, row, tensorflow

ISSUES = "https://github.com/keras-team/keras/issues"
TF_ISSUES = "https://github.com/tensorflow/tensorflow/issues"
NAN, INF = float("nan"), float("inf")
Z = np.array([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]], dtype=np.float32)
Y = np.array([0, 1])
ONEHOT = np.eye(3, dtype=np.float32)[Y]
P = np.exp(Z) / np.exp(Z).sum(1, keepdims=True)


def _losses() -> Any:
    return keras().losses


def _tensor(values: Any, dtype: str = "float32") -> Any:
    return keras().ops.convert_to_tensor(np.asarray(values), dtype=dtype)


def _float(value: Any) -> float:
    return float(np.asarray(keras().ops.convert_to_numpy(keras().ops.cast(value, "float32"))).item())


def _tf_gradient(loss: Callable[[Any], Any], z: Any) -> Any:
    tf = tensorflow()
    z = tf.convert_to_tensor(z)
    with tf.GradientTape() as tape:
        tape.watch(z)
        value = loss(z)
    return tape.gradient(value, z).numpy()


# ------------------------------------------------------------------------- Keras on PyTorch, elsewhere

_ON_TORCH: dict[str, Callable[[], Seen]] = {}


@cache
def _on_torch() -> dict[str, Seen]:
    """Run every row of Keras on PyTorch in one fresh process."""
    code = "from xent_book.behaviours.keras_probes import report_on_torch; report_on_torch()"
    environment = os.environ | {
        "KERAS_BACKEND": "torch",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "PYTHONWARNINGS": "ignore",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"Keras on PyTorch failed: {done.stderr.strip().splitlines()[-1:]}")
    result: dict[str, Seen] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def report_on_torch() -> None:
    """Run the rows of Keras on PyTorch and write what they saw as a line of JSON; for the process above."""
    if keras().backend.backend() != "torch":
        raise RuntimeError("KERAS_BACKEND is not torch")
    print(json.dumps({slug: plain(probe()) for slug, probe in _ON_TORCH.items()}))


def _on_torch_row(slug: str, *args: Any, **kwargs: Any) -> Callable[[Callable[[], Seen]], None]:
    def register(probe: Callable[[], Seen]) -> None:
        _ON_TORCH[slug] = probe
        row(slug, args[0], "keras-torch", *args[1:], **kwargs)(lambda: _on_torch()[slug])

    return register


# ------------------------------------------------------------------------------------- argument order


@row(
    "keras-argument-order",
    "argument order",
    "keras",
    "predictions first: another number, no error",
    expect="an error, or the same order everywhere",
    instead="loss(y_true=y, y_pred=p)",
    recorded={
        "right": 0.28873,
        "swapped": 3.9567,
    },
)
def argument_order() -> Seen:
    """The truth comes first here, the prediction in PyTorch."""
    cce = _losses().CategoricalCrossentropy()
    return {"right": _float(cce(ONEHOT, P)), "swapped": _float(cce(P, ONEHOT))}


# ---------------------------------------------------------------------------- probabilities or logits


def _forgotten() -> Seen:
    losses = _losses()
    return {
        "categorical": _float(losses.CategoricalCrossentropy()(ONEHOT, Z)),
        "sparse": _float(losses.SparseCategoricalCrossentropy()(Y, Z)),
        "from_logits=True": _float(losses.SparseCategoricalCrossentropy(from_logits=True)(Y, Z)),
    }


@row(
    "keras-forgotten-from-logits",
    "probabilities or logits",
    "keras",
    "from_logits forgotten: two wrong numbers, no error",
    expect="an error for 'probabilities' of 3",
    instead="from_logits=True, and no softmax layer",
    recorded={
        "categorical": 0.34657,
        "sparse": 0.69315,
        "from_logits=True": 0.28873,
    },
)
def forgotten_from_logits() -> Seen:
    """The categorical loss divides by the row sum and clips; the sparse one clips to one, then normalises."""
    return _forgotten()


@_on_torch_row(
    "keras-torch-forgotten-from-logits",
    "probabilities or logits",
    "from_logits forgotten: another number than on TensorFlow",
    expect="the backend does not change a loss",
    instead="from_logits=True, and no softmax layer",
    recorded={
        "categorical": 0.34657,
        "sparse": 0.34657,
        "from_logits=True": 0.28873,
    },
)
def _forgotten_on_torch() -> Seen:
    """Here both losses divide by the row sum."""
    return _forgotten()


def _backdoor() -> Seen:
    """The loss of logits 30, 0, 0 with label 1: 30, or the ceiling of a clip."""
    k = keras()
    z, y = np.array([[30.0, 0.0, 0.0]], dtype=np.float32), np.array([1])
    sparse = k.losses.SparseCategoricalCrossentropy()
    softmax = k.Sequential([k.layers.Softmax()])
    followed = k.Sequential([k.layers.Softmax(), k.layers.Reshape((3,))])
    seen: Seen = {
        "model that ends in softmax": _float(sparse(y, softmax(z))),
        "softmax, then Reshape": _float(sparse(y, followed(z))),
    }
    short = np.array([[5.0, 0.0, 0.0]], dtype=np.float32)
    logits = k.losses.SparseCategoricalCrossentropy(from_logits=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seen["from_logits=True after softmax, logits 5, 0, 0"] = _float(logits(y, softmax(short)))
    seen["warns"] = bool(caught)
    return seen


@row(
    "keras-softmax-backdoor",
    "probabilities or logits",
    "keras",
    "a final softmax is taken back, on TensorFlow only",
    expect="a layer that changes no number changes no loss",
    instead="from_logits=True, and no softmax layer",
    recorded={
        "model that ends in softmax": 30.0,
        "softmax, then Reshape": 16.118,
        "from_logits=True after softmax, logits 5, 0, 0": 5.0134,
        "warns": True,
        "model that ends in softmax, graph": 30.0,
        "float64 softmax": 16.118,
    },
)
def softmax_backdoor() -> Seen:
    """The softmax remembers its logits, and the loss uses them. A Reshape forgets them; so does float64."""
    tf = tensorflow()
    seen = _backdoor()
    k = keras()
    sparse = k.losses.SparseCategoricalCrossentropy()
    model = k.Sequential([k.layers.Softmax()])
    z, y = tf.constant([[30.0, 0.0, 0.0]]), tf.constant([1])
    graph = tf.function(lambda z: sparse(y, model(z)))
    seen["model that ends in softmax, graph"] = graph(z)
    double = k.Sequential([k.layers.Softmax(dtype="float64")])
    seen["float64 softmax"] = _float(sparse(Y[1:], double(z)))
    return seen


@_on_torch_row(
    "keras-torch-softmax-backdoor",
    "probabilities or logits",
    "a final softmax stays, and is clipped",
    expect="the backend does not change a loss",
    instead="from_logits=True, and no softmax layer",
    recorded={
        "model that ends in softmax": 16.118,
        "softmax, then Reshape": 16.118,
        "from_logits=True after softmax, logits 5, 0, 0": 1.54,
        "warns": True,
    },
)
def _backdoor_on_torch() -> Seen:
    """No memory of the logits here; from_logits=True applies a second softmax."""
    return _backdoor()


# --------------------------------------------------------------------------------------- target format


@row(
    "tensorflow-bad-labels",
    "target format",
    "tensorflow",
    "a label out of range, on a CPU: an error, or nan when compiled by XLA",
    expect="an error everywhere",
    instead="tf.debugging.assert_less(y, K) in the input pipeline",
    recorded={
        "eager": "InvalidArgumentError",
        "jit_compile=True": NAN,
        "jit_compile=True, gradient": [NAN, NAN, NAN],
    },
    thread=f"{TF_ISSUES}/8484",
)
def bad_labels() -> Seen:
    """Label 7 of 3 classes on the CPU."""
    tf = tensorflow()
    z, y = tf.constant(Z[:1]), tf.constant([7])
    ce = tf.nn.sparse_softmax_cross_entropy_with_logits
    compiled = tf.function(lambda z: ce(labels=y, logits=z), jit_compile=True)
    loss = attempt(lambda: ce(labels=y, logits=z))
    return {
        "eager": loss.split(":")[0] if isinstance(loss, str) else loss,
        "jit_compile=True": compiled(z)[0],
        "jit_compile=True, gradient": _tf_gradient(compiled, z)[0],
    }


# --------------------------------------------------------------------------- reduction and denominator


@row(
    "keras-reductions",
    "reduction and denominator",
    "keras",
    "the default mean of weighted losses divides by N",
    expect="a weighted mean divides by the sum of weights",
    instead="reduction='mean_with_sample_weight'",
    recorded={
        "sum": 0.91714,
        "sum_over_batch_size": 0.45857,
        "mean": 0.45857,
        "mean_with_sample_weight": 0.22929,
        "metric": 0.22929,
    },
    thread=f"{ISSUES}/19740",
)
def reductions() -> Seen:
    """Weights 1 and 3 under each reduction, and the metric of the same name."""
    k = keras()
    w = np.array([1.0, 3.0], dtype=np.float32)
    seen: Seen = {}
    for name in ("sum", "sum_over_batch_size", "mean", "mean_with_sample_weight"):
        loss = k.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=name)
        seen[name] = _float(loss(Y, Z, sample_weight=w))
    metric = k.metrics.SparseCategoricalCrossentropy(from_logits=True)
    metric.update_state(Y, Z, sample_weight=w)
    seen["metric"] = _float(metric.result())
    return seen


@row(
    "keras-bce-1d",
    "reduction and denominator",
    "keras",
    "a 1-D batch is one example of the binary loss",
    expect="one loss for each example",
    instead="shape (N, 1) for labels, predictions and weights",
    recorded={
        "none, shape": "()",
        "none, shape of (N, 1)": "(3,)",
        "sum": 0.14462,
        "sum of (N, 1)": 0.43386,
        "weights 1, 0, 0": 0.048207,
        "weights 1, 0, 0 of (N, 1)": 0.03512,
    },
    surprising=True,
)
def bce_1d() -> Seen:
    """The loss averages over the last axis, which is the batch. Weights multiply that mean."""
    bce = _losses().BinaryCrossentropy
    y, p = np.array([1.0, 0.0, 1.0], np.float32), np.array([0.9, 0.2, 0.9], np.float32)
    w = np.array([1.0, 0.0, 0.0], np.float32)
    y2, p2 = y[:, None], p[:, None]
    return {
        "none, shape": str(np.shape(keras().ops.convert_to_numpy(bce(reduction="none")(y, p)))),
        "none, shape of (N, 1)": str(np.shape(keras().ops.convert_to_numpy(bce(reduction="none")(y2, p2)))),
        "sum": _float(bce(reduction="sum")(y, p)),
        "sum of (N, 1)": _float(bce(reduction="sum")(y2, p2)),
        "weights 1, 0, 0": _float(bce()(y, p, sample_weight=w)),
        "weights 1, 0, 0 of (N, 1)": _float(bce()(y2, p2, sample_weight=w)),
    }


# --------------------------------------------------------------------------------------------- weights


@row(
    "keras-class-weight",
    "weights",
    "keras",
    "class_weight divides by N",
    expect="PyTorch's number for the same weights",
    instead="sample weights with reduction='mean_with_sample_weight'",
    recorded={
        "class_weight in fit": 1.053,
        "mean_with_sample_weight": 0.19146,
    },
    thread=f"{ISSUES}/19740",
)
def class_weight() -> Seen:
    """Weights 1, 10, 1 in fit, with a model that passes its input on."""
    k = keras()
    model = k.Sequential([k.Input((3,)), k.layers.Dense(3, use_bias=False)])
    model.layers[0].set_weights([np.eye(3, dtype=np.float32)])
    loss = k.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(k.optimizers.SGD(0.0), loss, run_eagerly=True)
    history = model.fit(Z, Y, batch_size=2, class_weight={0: 1.0, 1: 10.0, 2: 1.0}, verbose=0)
    by_weights = k.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
    return {
        "class_weight in fit": history.history["loss"][0],
        "mean_with_sample_weight": _float(by_weights(Y, Z, sample_weight=np.array([1.0, 10.0]))),
    }


# ------------------------------------------------------------------------------------- ignored targets


@row(
    "keras-all-ignored",
    "ignored targets",
    "keras",
    "all targets ignored: zero",
    expect="nan as in PyTorch, or an error",
    instead="nothing, if zero is what you want",
    recorded={
        "loss": 0.0,
    },
)
def all_ignored() -> Seen:
    """Both labels are the ignored class."""
    loss = _losses().SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    return {"loss": _float(loss(np.array([-1, -1]), Z))}


@row(
    "keras-mask-or-weight",
    "ignored targets",
    "keras",
    "a masked target leaves the denominator, a weight of zero does not",
    expect="two ways to say the same",
    instead="a mask or ignore_class; weights with 'mean_with_sample_weight'",
    recorded={
        "ignore_class": 0.16985,
        "mask": 0.16985,
        "weights 0, 1": 0.084923,
    },
    thread=f"{TF_ISSUES}/26784",
)
def mask_or_weight() -> Seen:
    """The first of two targets does not count."""
    k = keras()
    sce = k.losses.SparseCategoricalCrossentropy
    masked = _tensor(Z)
    k.src.backend.set_keras_mask(masked, _tensor([False, True], "bool"))
    return {
        "ignore_class": _float(sce(from_logits=True, ignore_class=0)(Y, Z)),
        "mask": _float(sce(from_logits=True)(Y, masked)),
        "weights 0, 1": _float(sce(from_logits=True)(Y, Z, sample_weight=np.array([0.0, 1.0]))),
    }


@row(
    "keras-mask-propagation",
    "ignored targets",
    "keras",
    "the mask of an Embedding reaches the loss, until an operation drops it",
    expect="o * 1.0 changes nothing",
    instead="pass sample_weight, and look at the denominator",
    recorded={
        "mask kept": 1.3545,
        "mask dropped by o * 1.0": 1.3877,
        "mean over valid tokens": 1.3545,
        "mean over all tokens": 1.3877,
        "mean of sequence means": 1.3824,
    },
)
def mask_propagation() -> Seen:
    """Sequences of 2 and 4 tokens; the embedding's rows are the logits."""
    k = keras()
    ids = np.array([[1, 2, 0, 0], [3, 1, 2, 3]])
    layer = k.layers.Embedding(4, 4, mask_zero=True)
    layer.build(ids.shape)
    table = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    layer.set_weights([table])
    loss = k.losses.SparseCategoricalCrossentropy(from_logits=True)
    y = np.array([[2, 1, 0, 0], [1, 2, 3, 0]])
    out = layer(ids)
    z = table[ids]
    each = np.log(np.exp(z).sum(-1)) - np.take_along_axis(z, y[..., None], -1)[..., 0]
    return {
        "mask kept": _float(loss(y, out)),
        "mask dropped by o * 1.0": _float(loss(y, out * 1.0)),
        "mean over valid tokens": each[ids > 0].mean(),
        "mean over all tokens": each.mean(),
        "mean of sequence means": (each[0, :2].mean() + each[1].mean()) / 2,
    }


# ------------------------------------------------------------------------------------------- smoothing


@row(
    "keras-smoothing",
    "smoothing",
    "keras",
    "three losses, three ways to smooth, no range",
    expect="the same argument everywhere, 0 to 1",
    instead="one-hot targets and CategoricalCrossentropy; check eps yourself",
    recorded={
        "categorical, .3": 0.68873,
        "(1-eps) y + eps/K": 0.68873,
        "binary, .3": 0.43494,
        "(1-eps) y + eps/2": 0.43494,
        "sparse": "TypeError: SparseCategoricalCrossentropy.__init__() got an unexpected ...",
        "categorical, -.3": -0.11127,
        "categorical, 2": 2.9554,
    },
)
def smoothing() -> Seen:
    """The categorical loss uses eps/K, the binary one eps/2, the sparse one has none."""
    losses = _losses()
    cce, bce = losses.CategoricalCrossentropy, losses.BinaryCrossentropy
    y, p = np.array([[1.0]], np.float32), np.array([[0.9]], np.float32)
    return {
        "categorical, .3": _float(cce(from_logits=True, label_smoothing=0.3)(ONEHOT, Z)),
        "(1-eps) y + eps/K": _float(cce(from_logits=True)(0.7 * ONEHOT + 0.1, Z)),
        "binary, .3": _float(bce(label_smoothing=0.3)(y, p)),
        "(1-eps) y + eps/2": _float(bce()(0.7 * y + 0.15, p)),
        "sparse": attempt(lambda: losses.SparseCategoricalCrossentropy(label_smoothing=0.3)),
        "categorical, -.3": _float(cce(from_logits=True, label_smoothing=-0.3)(ONEHOT, Z)),
        "categorical, 2": _float(cce(from_logits=True, label_smoothing=2.0)(ONEHOT, Z)),
    }


@row(
    "keras-smoothing-axis",
    "smoothing",
    "keras",
    "with axis=1 the mass is divided by the size of the last axis",
    expect="K is the size of the class axis",
    instead="classes last",
    recorded={
        "axis=1": 0.93203,
        "classes last": 0.68873,
        "targets summing to 1.05": 0.93203,
    },
)
def smoothing_axis() -> Seen:
    """Three classes along axis 1, two positions along axis 2."""
    cce = _losses().CategoricalCrossentropy
    z, y = Z.T[None], ONEHOT.T[None]
    return {
        "axis=1": _float(cce(from_logits=True, label_smoothing=0.3, axis=1)(y, z)),
        "classes last": _float(cce(from_logits=True, label_smoothing=0.3)(ONEHOT, Z)),
        "targets summing to 1.05": _float(cce(from_logits=True, axis=1)(0.7 * y + 0.3 / 2, z)),
    }


# --------------------------------------------------------------------------------- soft targets and KL


@row(
    "keras-kl",
    "soft targets and KL",
    "keras",
    "KLDivergence clips without normalising, and takes logits",
    expect="KL is at least zero; a one-hot target gives the cross-entropy",
    instead="CategoricalCrossentropy(from_logits=True), less the entropy of the target",
    recorded={
        "one-hot, K=50000": 10.793,
        "log K": 10.82,
        "of logits 2, 2": -0.69315,
    },
)
def kl() -> Seen:
    """A one-hot target against the uniform distribution over 50,000 classes; and logits for probabilities."""
    divergence = _losses().KLDivergence()
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


# -------------------------------------------------------------------------------------------- clipping


@row(
    "keras-epsilon",
    "clipping",
    "keras",
    "probabilities are clipped at 1e-7",
    expect="infinity for an impossible event, zero for a perfect answer",
    instead="from_logits=True",
    recorded={
        "impossible, categorical": 16.118,
        "impossible, sparse": 16.118,
        "impossible, binary": 16.118,
        "perfect, categorical": 1.1921e-07,
        "rows that sum to .6": 1.0986,
        "rows that sum to .6, sparse": 1.0986,
    },
)
def epsilon() -> Seen:
    """The ceiling 16.118 is minus the logarithm of 1e-7."""
    losses = _losses()
    sure = np.array([[1.0, 0.0, 0.0]], np.float32)
    cce, sce = losses.CategoricalCrossentropy(), losses.SparseCategoricalCrossentropy()
    bce = losses.BinaryCrossentropy()
    return {
        "impossible, categorical": _float(cce(ONEHOT[1:], sure)),
        "impossible, sparse": _float(sce(Y[1:], sure)),
        "impossible, binary": _float(bce(np.ones((1, 1), np.float32), np.zeros((1, 1), np.float32))),
        "perfect, categorical": _float(cce(ONEHOT[:1], sure)),
        "rows that sum to .6": _float(cce(ONEHOT[:1], np.full((1, 3), 0.2, np.float32))),
        "rows that sum to .6, sparse": _float(sce(Y[:1], np.full((1, 3), 0.2, np.float32))),
    }


# ------------------------------------------------------------------------------- gradient at the edges


@row(
    "keras-clip-gradient",
    "gradient at the edges",
    "keras",
    "certain and wrong, from probabilities: no gradient",
    expect="the largest gradient of all",
    instead="from_logits=True",
    recorded={
        "probabilities": 16.118,
        "probabilities, gradient": [0.0, 0.0, 0.0],
        "logits": 17.0,
        "logits, gradient": [1.0, -1.0, 4.1399e-08],
    },
    surprising=True,
)
def clip_gradient() -> Seen:
    """Logits 17, 0, 0 with label 1."""
    tf = tensorflow()
    k = keras()
    z = np.array([[17.0, 0.0, 0.0]], np.float32)
    y = np.array([1])
    probs = k.losses.SparseCategoricalCrossentropy()
    logits = k.losses.SparseCategoricalCrossentropy(from_logits=True)
    return {
        "probabilities": _float(probs(y, tf.nn.softmax(z))),
        "probabilities, gradient": _tf_gradient(lambda z: probs(y, tf.nn.softmax(z)), z)[0],
        "logits": _float(logits(y, z)),
        "logits, gradient": _tf_gradient(lambda z: logits(y, z), z)[0],
    }


@row(
    "tensorflow-gradient",
    "gradient at the edges",
    "tensorflow",
    "labels that do not sum to one: the gradient is not that of the loss",
    expect="the derivative of the number that it returns",
    instead="rows that sum to one, and a mask for padding; or weights times normalised rows",
    recorded={
        "zero row, loss": 0.0,
        "zero row, gradient": [0.66524, 0.24473, 0.090031],
        "zero row, gradient through Keras": [0.66524, 0.24473, 0.090031],
        "labels 2, 0, 0": [-1.3348, 0.24473, 0.090031],
        "finite differences": [-0.6695, 0.4895, 0.1801],
        "labels 2, 0, 0, deterministic": [-0.66952, 0.48946, 0.18006],
    },
    surprising=True,
)
def tf_gradient() -> Seen:
    """The kernel returns p - y; right is p sum(y) - y. The deterministic kernel is right."""
    tf = tensorflow()
    k = keras()
    z = np.array([[2.0, 1.0, 0.0]], np.float32)
    ce = tf.nn.softmax_cross_entropy_with_logits
    double, none = np.array([[2.0, 0.0, 0.0]], np.float32), np.zeros((1, 3), np.float32)
    step = 1e-5
    fine = z.astype(np.float64)
    differences = [
        float(
            (ce(labels=double.astype(float), logits=fine + step * e)
             - ce(labels=double.astype(float), logits=fine - step * e))[0]
        ) / (2 * step)
        for e in np.eye(3)
    ]  # fmt: skip
    cce = k.losses.CategoricalCrossentropy(from_logits=True)
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


# ------------------------------------------------------------------------------------------- precision


def _half() -> Seen:
    k = keras()
    one, zero = np.ones((1, 1)), np.zeros((1, 1))
    seen: Seen = {}
    for dtype in ("float16", "bfloat16"):
        bce = k.losses.binary_crossentropy
        seen[f"perfect, {dtype}"] = _float(bce(_tensor(one, dtype), _tensor(one, dtype)))
        seen[f"y=1, p=0, {dtype}"] = _float(bce(_tensor(one, dtype), _tensor(zero, dtype)))
        seen[f"y=0, p=1, {dtype}"] = _float(bce(_tensor(zero, dtype), _tensor(one, dtype)))
    return seen


@row(
    "keras-half-precision",
    "precision",
    "keras",
    "binary loss of half-precision probabilities: nan when perfect, infinite when wrong",
    expect="clipping keeps it finite",
    instead="a float32 output layer, or from_logits=True",
    tolerance=1e-2,
    recorded={
        "perfect, float16": NAN,
        "y=1, p=0, float16": 15.945,
        "y=0, p=1, float16": INF,
        "perfect, bfloat16": NAN,
        "y=1, p=0, bfloat16": 16.125,
        "y=0, p=1, bfloat16": INF,
    },
)
def half_precision() -> Seen:
    """1 - 1e-7 rounds to one, and 1e-7 is close to nothing in float16."""
    return _half()


@_on_torch_row(
    "keras-torch-half-precision",
    "precision",
    "binary loss of half-precision probabilities: other numbers than on TensorFlow",
    expect="the backend does not change a loss",
    instead="a float32 output layer, or from_logits=True",
    tolerance=1e-2,
    recorded={
        "perfect, float16": 0.0,
        "y=1, p=0, float16": 15.945,
        "y=0, p=1, float16": 100.0,
        "perfect, bfloat16": 0.0,
        "y=1, p=0, bfloat16": 16.125,
        "y=0, p=1, bfloat16": 100.0,
    },
)
def _half_on_torch() -> Seen:
    """Whatever the clamps of the backend make of it."""
    return _half()


@row(
    "keras-loss-dtype",
    "precision",
    "keras",
    "the loss's dtype rounds the labels",
    expect="labels are integers and stay so",
    instead="losses in float32; mixed precision in the layers only",
    recorded={
        "label 257, float32": 3.0543,
        "label 257, bfloat16": 8.0625,
        "label 2049, float32": 3.0543,
        "label 2049, float16": 8.0547,
    },
)
def loss_dtype() -> Seen:
    """In bfloat16 the label 257 becomes 256, in float16 2049 becomes 2048."""
    sce = _losses().SparseCategoricalCrossentropy
    seen: Seen = {}
    for dtype, label in (("bfloat16", 257), ("float16", 2049)):
        z = np.zeros((1, 3000), np.float32)
        z[0, label] = 5.0
        for name in ("float32", dtype):
            loss = sce(from_logits=True, dtype=name)(np.array([label]), z)
            seen[f"label {label}, {name}"] = _float(loss)
    return seen


@row(
    "keras-downcast",
    "precision",
    "keras",
    "the loss classes cast float64 to float32, the functions do not",
    expect="float64 in, float64 computed",
    instead="dtype='float64' for the loss, or the function",
    recorded={
        "class": 0.0,
        "function": 2.0612e-09,
        "class, dtype='float64'": 2.0612e-09,
    },
)
def downcast() -> Seen:
    """Logits 20, 0 in float64."""
    losses = _losses()
    z, y = np.array([[20.0, 0.0]]), np.array([0])
    function = losses.sparse_categorical_crossentropy(y, _tensor(z, "float64"), from_logits=True)
    return {
        "class": _float(losses.SparseCategoricalCrossentropy(from_logits=True)(y, z)),
        "function": float(np.asarray(function)[0]),
        "class, dtype='float64'": float(
            losses.SparseCategoricalCrossentropy(from_logits=True, dtype="float64")(y, z)
        ),
    }


# ---------------------------------------------------------------------------------------------- layout


@row(
    "keras-layout",
    "layout",
    "keras",
    "the class axis is the last",
    expect="PyTorch's second axis, if you come from there",
    instead="transpose; axis=1 exists, but see the smoothing",
    recorded={
        "(B, T, V)": 1.8109,
        "(B, V, T)": 2.1304,
    },
)
def layout() -> Seen:
    """The logits of the PyTorch row: shape (2, 5, 5), the classes last."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(2, 5, 5)).astype(np.float32)
    y = rng.integers(0, 5, (2, 5))
    sce = _losses().SparseCategoricalCrossentropy(from_logits=True)
    return {"(B, T, V)": _float(sce(y, z)), "(B, V, T)": _float(sce(y, z.transpose(0, 2, 1)))}
