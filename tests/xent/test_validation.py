"""Every bad input raises the promised error, which names the argument, and nothing else happens.

`GOOD` holds one valid call of each public function. A case replaces one of its arguments. Warnings are
errors here (pyproject.toml), so each case also shows that no NumPy warning leaks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import xent
from xent import information

INF, NAN = float("inf"), float("nan")
Z = np.array([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]])
Y = np.array([0, 1])
P = np.array([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125]])

GOOD: dict[Callable[..., Any], dict[str, Any]] = {
    xent.log_sum_exp: {"x": Z, "axis": -1, "b": P, "keepdims": False},
    xent.log_softmax: {"logits": Z, "axis": -1},
    xent.softmax: {"logits": Z, "axis": -1},
    xent.log_sigmoid: {"logits": Z},
    xent.sigmoid: {"logits": Z},
    xent.cross_entropy: {
        "logits": Z,
        "targets": Y,
        "axis": -1,
        "weight": np.array([1.0, 2.0, 3.0]),
        "sample_weight": np.array([1.0, 2.0]),
        "label_smoothing": 0.0,
        "ignore_index": -100,
        "reduction": "mean",
        "denominator": None,
    },
    xent.soft_cross_entropy: {
        "logits": Z,
        "target_probs": P,
        "axis": -1,
        "weight": np.array([1.0, 2.0, 3.0]),
        "sample_weight": np.array([1.0, 2.0]),
        "label_smoothing": 0.0,
        "reduction": "mean",
        "denominator": None,
    },
    xent.binary_cross_entropy: {
        "logits": Z,
        "targets": P,
        "sample_weight": np.ones((2, 3)),
        "pos_weight": np.array([1.0, 2.0, 3.0]),
        "label_smoothing": 0.0,
        "reduction": "mean",
        "denominator": None,
    },
    xent.focal_loss: {
        "logits": Z,
        "targets": Y,
        "gamma": 2.0,
        "alpha": np.array([1.0, 2.0, 3.0]),
        "axis": -1,
        "sample_weight": np.array([1.0, 2.0]),
        "ignore_index": -100,
        "reduction": "mean",
        "denominator": None,
    },
    xent.binary_log_loss: {
        "probs": P,
        "targets": P[::-1],
        "eps": 0.0,
        "sample_weight": np.ones((2, 3)),
        "reduction": "mean",
        "denominator": None,
    },
    xent.nll: {
        "log_probs": np.log(P),
        "targets": Y,
        "axis": -1,
        "weight": np.array([1.0, 2.0, 3.0]),
        "sample_weight": np.array([1.0, 2.0]),
        "ignore_index": -100,
        "reduction": "mean",
        "denominator": None,
    },
    xent.log_loss: {
        "probs": P,
        "targets": Y,
        "labels": None,
        "eps": 0.0,
        "axis": -1,
        "weight": np.array([1.0, 2.0, 3.0]),
        "sample_weight": np.array([1.0, 2.0]),
        "ignore_index": -100,
        "reduction": "mean",
        "denominator": None,
    },
    xent.gradients.softmax_jacobian: {"logits": Z},
    information.entropy: {"p": P, "axis": -1, "base": None},
    information.entropy_from_logits: {"logits": Z, "axis": -1, "base": None},
    information.cross_entropy: {"p": P, "q": P[::-1], "axis": -1, "base": None},
    information.kl_divergence: {"p": P, "q": P[::-1], "axis": -1, "base": None},
    information.js_divergence: {"p": P, "q": P[::-1], "axis": -1, "base": None},
}

GRADIENTS = {
    xent.gradients.cross_entropy_gradient: xent.cross_entropy,
    xent.gradients.soft_cross_entropy_gradient: xent.soft_cross_entropy,
    xent.gradients.binary_cross_entropy_gradient: xent.binary_cross_entropy,
}
GOOD |= {gradient: GOOD[loss] for gradient, loss in GRADIENTS.items()}

Bad = tuple[str, Any, type[Exception], str]

# What no argument that holds real numbers takes.
NOT_REAL: list[Bad] = [
    ("a string", "abc", TypeError, r"dtype <U3"),
    ("bytes", b"abc", TypeError, r"dtype \|S3"),
    ("None in a list", [None, None], TypeError, r"dtype object"),
    ("strings", np.full((2, 3), "1"), TypeError, r"expected real numbers.*dtype <U1"),
    ("objects", Z.astype(object), TypeError, r"dtype object"),
    ("bools", Z > 0, TypeError, r"dtype bool"),
    ("complex", Z + 0j, TypeError, r"dtype complex128"),
    ("dates", Z.astype("M8[s]"), TypeError, r"dtype datetime64"),
    ("durations", Z.astype("m8[s]"), TypeError, r"dtype timedelta64"),
    ("records", np.zeros((2, 3), "f8,f8"), TypeError, r"got dtype \["),
    ("a mask", np.ma.masked_equal(Z, 0), TypeError, r"masked array"),
    ("masks in a list", [np.ma.masked_equal(row, 0) for row in Z], TypeError, r"masked array"),
    ("a ragged list", [[1.0, 2.0], [3.0]], TypeError, r"got list"),
    ("a dict", {0: 1.0}, TypeError, r"dtype object"),
    ("a set", {1.0, 2.0}, TypeError, r"dtype object"),
    ("a generator", (float(i) for i in range(3)), TypeError, r"dtype object"),
    ("an integer beyond 64 bits", [2**70, 1, 1], TypeError, r"dtype object"),
    ("a tensor with a gradient", torch.zeros(2, 3, requires_grad=True), TypeError, r"got Tensor .*grad"),
    ("bfloat16", torch.zeros(2, 3, dtype=torch.bfloat16), TypeError, r"got Tensor .*BFloat16"),
]
if np.dtype(np.longdouble).itemsize > 8:
    NOT_REAL.append(("longdouble", Z.astype(np.longdouble), TypeError, r"dtype (float128|longdouble)"))

NO_CLASSES: list[Bad] = [
    ("a single number", 1.0, ValueError, r"at least one dimension.*single number"),
    ("an empty list", [], ValueError, r"at least one class along axis 0, got shape \(0,\)"),
    ("no classes", np.zeros((2, 0)), ValueError, r"at least one class along axis 1, got shape \(2, 0\)"),
]
NANS: list[Bad] = [
    ("nan", np.where(Z == 3, NAN, Z), ValueError, r"got nan at index \(1, 1\)"),
    (
        "nan beside inf",
        np.array([[INF, NAN, 0.0], [0.0, 0.0, 0.0]]),
        ValueError,
        r"got nan at index \(0, 1\)",
    ),
]
NO_SOFTMAX: list[Bad] = [
    *NANS,
    ("+inf", np.where(Z == 3, INF, Z), ValueError, r"below \+inf, got inf at index \(1, 1\)"),
    ("all -inf", np.where(Z == Z, -INF, Z), ValueError, r"finite logit in every row.*axis 1 at index 0"),
    ("a row of -inf", np.array([[0.0] * 3, [-INF] * 3]), ValueError, r"finite logit.* at index 1"),
]
NO_DISTRIBUTION: list[Bad] = [
    *NOT_REAL,
    ("nan", np.where(P == 0.75, NAN, P), ValueError, r"probabilities in \[0, 1\], got nan at index \(1, 1\)"),
    (
        "negative",
        np.array([[-0.25, 1.25, 0.0], [1.0, 0.0, 0.0]]),
        ValueError,
        r"got -0\.25 at index \(0, 0\)",
    ),
    ("above one", np.array([[2.0, 0.0, 0.0], [1.0, 0.0, 0.0]]), ValueError, r"got 2\.0 at index \(0, 0\)"),
    ("inf", np.array([[INF, 0.0, 0.0], [1.0, 0.0, 0.0]]), ValueError, r"got inf at index \(0, 0\)"),
    ("sum .99", P * [[1.0], [0.99]], ValueError, r"sum to one along axis 1.*got a sum of 0\.99 at index 1"),
    (
        "float64 off by 2e-6",
        P + 1e-6,
        ValueError,
        r"within 1e-06 for 3 classes in float64.*got a sum of 1\.000003 at",
    ),
    (
        "float32 off by 3e-4",
        (P + 1e-4).astype(np.float32),
        ValueError,
        r"0\.0001 for 3 classes in float32",
    ),
    (
        "float16 off by 3e-2",
        (P - 1e-2).astype(np.float16),
        ValueError,
        r"0\.01 for 3 classes in float16",
    ),
    ("percentages", P * 100, ValueError, r"probabilities in \[0, 1\], got 50\.0"),
]
LABELS: list[Bad] = [
    ("bools", np.array([True, False]), TypeError, r"integer class indices, got dtype bool"),
    ("floats", np.array([0.0, 1.0]), TypeError, r"integer class indices, got dtype float64"),
    ("float16", np.array([0.0, 1.0], np.float16), TypeError, r"got dtype float16"),
    ("float list", [0.0, 1.0], TypeError, r"got dtype float64"),
    ("no labels, as floats", np.zeros(0), TypeError, r"got dtype float64"),
    ("nan", [0, NAN], TypeError, r"got dtype float64"),
    ("complex", [0, 1j], TypeError, r"got dtype complex128"),
    ("strings", ["0", "1"], TypeError, r"got dtype <U1"),
    ("objects", np.array([0, 1], object), TypeError, r"got dtype object"),
    ("None", None, TypeError, r"got dtype object"),
    ("durations", np.array([0, 1], "m8[s]"), TypeError, r"got dtype timedelta64"),
    ("a mask", np.ma.masked_equal(Y, 1), TypeError, r"masked array"),
    ("beyond 64 bits", [0, 2**70], TypeError, r"got dtype object"),
    ("a ragged list", [[0], [1, 2]], TypeError, r"got list"),
    ("K", [0, 3], ValueError, r"class indices in \[0, 3\), got 3 at index 1"),
    ("-1", [-1, 0], ValueError, r"class indices in \[0, 3\), got -1 at index 0"),
    ("-2, where -100 is ignored", [-100, -2], ValueError, r"got -2 at index 1"),
    ("huge", [0, 2**63 - 1], ValueError, r"got 9223372036854775807 at index 1"),
    ("huge uint64", np.array([0, 2**64 - 1], np.uint64), ValueError, r"got 18446744073709551615 at index 1"),
    ("255 in uint8", np.array([0, 255], np.uint8), ValueError, r"got 255 at index 1"),
    ("a single label", 1, ValueError, r"expected shape \(2,\).*got \(\)"),
    ("one that would broadcast", [1], ValueError, r"expected shape \(2,\).*got \(1,\)"),
    ("too many", [0, 1, 2], ValueError, r"expected shape \(2,\).*got \(3,\)"),
    ("a column", [[0], [1]], ValueError, r"expected shape \(2,\).*got \(2, 1\)"),
    ("a row", [[0, 1]], ValueError, r"expected shape \(2,\).*got \(1, 2\)"),
    ("one-hot rows", [[1, 0, 0], [0, 1, 0]], ValueError, r"expected shape \(2,\).*got \(2, 3\)"),
]
WEIGHT_VALUES: list[Bad] = [
    ("nan", [1.0, NAN, 1.0], ValueError, r"finite.*got"),
    ("inf", [1.0, INF, 1.0], ValueError, r"finite.*got"),
    ("negative", [1.0, -1.0, 1.0], ValueError, r"finite.*got"),
]
CLASS_WEIGHT: list[Bad] = [
    *(case for case in NOT_REAL if case[0] not in ("an integer beyond 64 bits", "bools")),
    ("bools, one a target", [True, False], ValueError, r"expected shape \(3,\).*got \(2,\)"),
    *WEIGHT_VALUES,
    ("a number", 1.0, ValueError, r"expected shape \(3,\), one weight a class, got \(\)"),
    ("too few", [1.0, 1.0], ValueError, r"expected shape \(3,\), one weight a class, got \(2,\)"),
    ("one that would broadcast", [1.0], ValueError, r"expected shape \(3,\).*got \(1,\)"),
    ("a row", [[1.0, 1.0, 1.0]], ValueError, r"expected shape \(3,\).*got \(1, 3\)"),
    ("one a target", [[1.0] * 3] * 2, ValueError, r"expected shape \(3,\).*got \(2, 3\)"),
    ("an infinite sum", [1.5e308, 1.5e308, 1.0], ValueError, r"finite sum, got weights that add up to inf"),
]
# Of what counts one by one; booleans are a mask.
SAMPLE_WEIGHT: list[Bad] = [
    *(case for case in NOT_REAL if case[0] not in ("an integer beyond 64 bits", "bools")),
    ("nan", [1.0, NAN], ValueError, r"finite.*got nan at index 1"),
    ("inf", [1.0, INF], ValueError, r"finite.*got inf at index 1"),
    ("negative", -1.0, ValueError, r"finite.*got -1\.0"),
    ("too many", [1.0, 1.0, 1.0], ValueError, r"a shape that broadcasts to \(2,\).*got \(3,\)"),
    ("a column", [[1.0], [1.0]], ValueError, r"a shape that broadcasts to \(2,\).*got \(2, 1\)"),
    ("an infinite sum", [1.5e308, 1.5e308], ValueError, r"finite sum, got weights that add up to inf"),
]
AXIS: list[Bad] = [
    ("None", None, TypeError, r"integer, got None"),
    ("a float", 1.0, TypeError, r"integer, got 1\.0"),
    ("a bool", True, TypeError, r"integer, got True"),
    ("a NumPy bool", np.True_, TypeError, r"integer, got"),
    ("a string", "0", TypeError, r"integer, got '0'"),
    ("a tuple", (0, 1), TypeError, r"integer, got \(0, 1\)"),
    ("an array", np.array([0]), TypeError, r"integer, got"),
    ("too high", 2, ValueError, r"an axis of \w+ with shape \(2, 3\), got 2"),
    ("too low", -3, ValueError, r"an axis of \w+ with shape \(2, 3\), got -3"),
    ("huge", 10**30, ValueError, r"an axis of \w+"),
]
IGNORE: list[Bad] = [
    ("a float", -100.0, TypeError, r"integer, got -100\.0"),
    ("nan", NAN, TypeError, r"integer, got nan"),
    ("a bool", True, TypeError, r"integer, got True"),
    ("a string", "-100", TypeError, r"integer, got '-100'"),
    ("a list", [-100], TypeError, r"integer, got \[-100\]"),
]
NUMBER: list[Bad] = [
    ("a bool", True, TypeError, r"got True"),
    ("a NumPy bool", np.False_, TypeError, r"got"),
    ("a string", "1", TypeError, r"got '1'"),
    ("a list", [0.25], TypeError, r"got \[0\.25\]"),
    ("an array", np.array([0.25]), TypeError, r"got array"),
    ("complex", 1j, TypeError, r"got 1j"),
    ("masked", np.ma.masked, TypeError, r"got masked"),
    ("a dict", {}, TypeError, r"got {}"),
    ("nan", NAN, ValueError, r"got nan"),
    ("inf", INF, ValueError, r"got inf"),
    ("-inf", -INF, ValueError, r"got -inf"),
    ("negative", -1, ValueError, r"got -1"),
    ("an integer no float can hold", 10**400, ValueError, r"got 10000"),
]
REDUCTION: list[Bad] = [
    ("None", None, TypeError, r"'none', 'sum', 'mean', got None"),
    ("a bool", True, TypeError, r"got True"),
    ("a list", ["mean"], TypeError, r"got \['mean'\]"),
    ("capitals", "MEAN", ValueError, r"got 'MEAN'"),
    ("batchmean", "batchmean", ValueError, r"got 'batchmean'"),
    ("empty", "", ValueError, r"got ''"),
]

SOFTMAX_LOGITS = [*NOT_REAL, *NO_CLASSES, *NO_SOFTMAX]
ELEMENTWISE_LOGITS = [*NOT_REAL, *NANS]
DENOMINATOR: list[Bad] = [*NUMBER, ("zero", 0, ValueError, r"number > 0, since there are targets.*got 0")]
SMOOTHING: list[Bad] = [
    *(("None", None, TypeError, r"number in \[0, 1\], got None"), *NUMBER),
    ("above one", 1.0000001, ValueError, r"number in \[0, 1\], got 1\.0000001"),
]
EPS: list[Bad] = [
    *(("None", None, TypeError, r"number in \[0, 1/2\), got None"), *NUMBER),
    ("one half", 0.5, ValueError, r"number in \[0, 1/2\), got 0\.5"),
]
BASE: list[Bad] = [
    *NUMBER,
    ("zero", 0, ValueError, r"number > 0 that is not 1, got 0"),
    ("one", 1.0, ValueError, r"number > 0 that is not 1, got 1\.0"),
]
TRANSPOSED: Bad = (
    "another shape",
    np.full((3, 2), 0.5),
    ValueError,
    r"expected shape \(2, 3\).*got \(3, 2\)",
)
BROADCAST: Bad = ("a row", P[:1], ValueError, r"expected shape \(2, 3\).*got \(1, 3\)")
GAMMA: list[Bad] = [("None", None, TypeError, r"finite number >= 0, got None"), *NUMBER]
BINARY_TARGETS: list[Bad] = [
    *(case for case in NOT_REAL if case[0] != "bools"),
    TRANSPOSED,
    BROADCAST,
    ("a number", 1.0, ValueError, r"expected shape \(2, 3\), that of \w+, got \(\)"),
    ("-1 and 1", np.sign(Z - 1), ValueError, r"probabilities in \[0, 1\], got -1\.0 at index \(0, 2\)"),
    ("above one", P * 4, ValueError, r"got 2\.0 at index \(0, 0\)"),
    ("barely above one", P + 0.2500001, ValueError, r"got 1\.0000001 at index \(1, 1\)"),
    ("nan", P * NAN, ValueError, r"got nan at index \(0, 0\)"),
]
ELEMENTWISE_WEIGHT: list[Bad] = [
    *(case for case in NOT_REAL if case[0] not in ("bools", "an integer beyond 64 bits")),
    ("another shape", np.full((3, 2), 0.5), ValueError, r"a shape that broadcasts to \(2, 3\).*got \(3, 2\)"),
    ("too few", [1.0, 1.0], ValueError, r"a shape that broadcasts to \(2, 3\).*got \(2,\)"),
    ("too many", np.ones((1, 2, 3)), ValueError, r"a shape that broadcasts to \(2, 3\).*got \(1, 2, 3\)"),
    ("nan", P * NAN, ValueError, r"finite weights >= 0, got nan at index \(0, 0\)"),
    ("inf", P * INF, ValueError, r"finite weights >= 0, got inf"),
    ("negative", -P, ValueError, r"finite weights >= 0, got -0\.5 at index \(0, 0\)"),
    ("an infinite sum", P * 1.7e308, ValueError, r"finite sum, got weights that add up to inf"),
]

BAD: dict[Callable[..., Any], dict[str, list[Bad]]] = {
    xent.log_sum_exp: {
        "x": [*NOT_REAL, *NO_CLASSES, *NANS],
        "axis": [
            *(case for case in AXIS if case[0] not in ("None", "a tuple")),
            ("no axes", (), ValueError, r"at least one axis of x with shape \(2, 3\), got \(\)"),
            ("an axis twice", (0, -2), ValueError, r"distinct axes, got \(0, -2\)"),
            ("a list", [0, 1], TypeError, r"integer, got \[0, 1\]"),
        ],
        "b": [
            *(case for case in NOT_REAL if case[0] not in ("an integer beyond 64 bits", "bools")),
            *WEIGHT_VALUES,
            ("another shape", [1.0, 1.0], ValueError, r"broadcasts to \(2, 3\), that of x, got \(2,\)"),
        ],
        "keepdims": [
            ("a number", 1, TypeError, r"True or False, got 1"),
            ("None", None, TypeError, "got None"),
        ],
    },
    xent.log_softmax: {"logits": SOFTMAX_LOGITS, "axis": AXIS},
    xent.softmax: {"logits": SOFTMAX_LOGITS, "axis": AXIS},
    xent.log_sigmoid: {"logits": ELEMENTWISE_LOGITS},
    xent.sigmoid: {"logits": ELEMENTWISE_LOGITS},
    xent.cross_entropy: {
        "logits": SOFTMAX_LOGITS,
        "targets": LABELS,
        "axis": AXIS,
        "weight": CLASS_WEIGHT,
        "sample_weight": SAMPLE_WEIGHT,
        "label_smoothing": SMOOTHING,
        "ignore_index": IGNORE,
        "reduction": REDUCTION,
        "denominator": DENOMINATOR,
    },
    xent.soft_cross_entropy: {
        "logits": SOFTMAX_LOGITS,
        "target_probs": [
            *NO_DISTRIBUTION,
            TRANSPOSED,
            BROADCAST,
            ("class indices", Y, ValueError, r"expected shape \(2, 3\), that of logits, got \(2,\)"),
            ("a number", 1.0, ValueError, r"expected shape \(2, 3\), that of logits, got \(\)"),
        ],
        "axis": AXIS,
        "weight": CLASS_WEIGHT,
        "sample_weight": SAMPLE_WEIGHT,
        "label_smoothing": SMOOTHING,
        "reduction": REDUCTION,
        "denominator": DENOMINATOR,
    },
    xent.binary_cross_entropy: {
        "logits": ELEMENTWISE_LOGITS,
        "targets": BINARY_TARGETS,
        "sample_weight": ELEMENTWISE_WEIGHT,
        "pos_weight": [
            *(case for case in NOT_REAL if case[0] not in ("a dict", "a set", "a generator", "bools")),
            *WEIGHT_VALUES,
            ("zero", 0, ValueError, r"finite weights > 0, got 0"),
            ("False", [True, False, True], ValueError, r"finite weights > 0, got \[True, False"),
            ("nan alone", NAN, ValueError, r"finite weights >= 0, got nan"),
            ("too few", [1.0, 1.0], ValueError, r"broadcasts to \(2, 3\).*got \(2,\)"),
        ],
        "label_smoothing": SMOOTHING,
        "reduction": REDUCTION,
        "denominator": DENOMINATOR,
    },
    xent.focal_loss: {
        "logits": SOFTMAX_LOGITS,
        "targets": LABELS,
        "gamma": GAMMA,
        "alpha": [case for case in CLASS_WEIGHT if case[0] != "an infinite sum"],
        "axis": AXIS,
        "sample_weight": SAMPLE_WEIGHT,
        "ignore_index": IGNORE,
        "reduction": REDUCTION,
        "denominator": DENOMINATOR,
    },
    xent.binary_log_loss: {
        "probs": [*NOT_REAL, ("above one", 2 * P, ValueError, r"probabilities in \[0, 1\], got 1\.5")],
        "targets": BINARY_TARGETS,
        "eps": EPS,
        "sample_weight": ELEMENTWISE_WEIGHT,
        "reduction": REDUCTION,
        "denominator": DENOMINATOR,
    },
    xent.nll: {
        "log_probs": [
            *NOT_REAL,
            *NO_CLASSES,
            *NANS,
            ("probabilities", P, ValueError, r"sum to one along axis 1.*for logits use cross_entropy"),
            ("logits", Z, ValueError, r"sum to one along axis 1.*for logits use cross_entropy"),
            ("all -inf", np.full((2, 3), -INF), ValueError, r"log-sum-exp of -inf at index 0"),
            ("+inf", np.full((2, 3), INF), ValueError, r"log-sum-exp of inf at index 0"),
            ("huge", np.full((2, 3), 1e4), ValueError, r"log-sum-exp of 10001\.1 at index 0"),
            ("off by 2e-6", np.log(P) + 2e-6, ValueError, r"within 1e-06 for 3 classes in float64"),
        ],
        "targets": LABELS,
        "axis": AXIS,
        "weight": CLASS_WEIGHT,
        "sample_weight": SAMPLE_WEIGHT,
        "ignore_index": IGNORE,
        "reduction": REDUCTION,
        "denominator": DENOMINATOR,
    },
    xent.log_loss: {
        "probs": [*NO_DISTRIBUTION, *NO_CLASSES],
        "targets": LABELS,
        "labels": [
            ("a number", 1, ValueError, r"expected shape \(3,\), one name a class, got \(\)"),
            ("too few", [0, 1], ValueError, r"expected shape \(3,\), one name a class, got \(2,\)"),
            ("a repeated one", [0, 1, 1], ValueError, r"distinct labels, got \[0, 1, 1\]"),
            ("a mask", np.ma.masked_equal([0, 1, 2], 1), TypeError, r"masked array"),
            ("no order", np.array([0, "a", None], object), TypeError, r"expected texts or numbers"),
        ],
        "eps": EPS,
        "axis": AXIS,
        "weight": CLASS_WEIGHT,
        "sample_weight": SAMPLE_WEIGHT,
        "ignore_index": IGNORE,
        "reduction": REDUCTION,
        "denominator": DENOMINATOR,
    },
    xent.gradients.softmax_jacobian: {"logits": SOFTMAX_LOGITS},
    information.entropy: {"p": [*NO_DISTRIBUTION, *NO_CLASSES], "axis": AXIS, "base": BASE},
    information.entropy_from_logits: {"logits": SOFTMAX_LOGITS, "axis": AXIS, "base": BASE},
}
for divergence in (information.cross_entropy, information.kl_divergence, information.js_divergence):
    BAD[divergence] = {
        "p": [*NO_DISTRIBUTION, *NO_CLASSES],
        "q": [
            *NO_DISTRIBUTION,
            TRANSPOSED,
            BROADCAST,
            ("a number", 1.0, ValueError, r"expected shape \(2, 3\), that of p, got \(\)"),
        ],
        "axis": AXIS,
        "base": BASE,
    }


BAD |= {gradient: BAD[loss] for gradient, loss in GRADIENTS.items()}


def snapshot(arguments: dict[str, Any]) -> dict[str, bytes]:
    """Bytes of every array among the arguments (np.ma.masked, of no shape, is nobody's data)."""
    arrays = {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}
    return {name: array.tobytes() for name, array in arrays.items() if array.ndim}


@pytest.mark.parametrize("function", list(GOOD), ids=lambda f: f"{f.__module__}.{f.__name__}")
def test_the_good_call_works_and_leaves_its_arguments_alone(function: Callable[..., Any]) -> None:
    arguments = GOOD[function]
    before = snapshot(arguments)
    assert np.isfinite(function(**arguments)).all()
    assert snapshot(arguments) == before


@pytest.mark.parametrize("function", list(BAD), ids=lambda f: f"{f.__module__}.{f.__name__}")
def test_a_bad_argument_is_refused_by_name(function: Callable[..., Any]) -> None:
    # That no argument is without bad values is asked of every public function in test_hostile.py.
    wrong = []
    for argument, cases in BAD[function].items():
        for what, value, error, pattern in cases:
            arguments = GOOD[function] | {argument: value}
            before, said = snapshot(arguments), "nothing"
            try:
                function(**arguments)
            except Exception as caught:
                said = f"{type(caught).__name__}: {caught}"
            if not re.match(rf"{error.__name__}: {argument}: .*(?:{pattern})", said, re.DOTALL):
                wrong.append(f"{argument}, {what}: expected {error.__name__}, {pattern!r}, got {said}")
            assert snapshot(arguments) == before, f"{argument}, {what}: modified"
    assert wrong == []


HARD = [xent.cross_entropy, xent.nll, xent.log_loss, xent.focal_loss]
BINARY = [xent.binary_cross_entropy, xent.binary_log_loss]
LOSSES = [*HARD, *BINARY, xent.soft_cross_entropy]
BY_NAME = {"ids": lambda f: f.__name__ if callable(f) else repr(f)}


@pytest.mark.parametrize("function", LOSSES, **BY_NAME)
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_only_the_mean_has_a_denominator(function: Callable[..., Any], reduction: str) -> None:
    with pytest.raises(ValueError, match=r"^denominator: only the mean has one, got denominator=2"):
        function(**GOOD[function] | {"reduction": reduction, "denominator": 2})


@pytest.mark.parametrize("function", LOSSES, **BY_NAME)
def test_an_empty_batch_has_no_mean(function: Callable[..., Any]) -> None:
    arguments = {
        name: value[:0] if isinstance(value, np.ndarray) and value.shape != (3,) else value
        for name, value in GOOD[function].items()
    }
    with pytest.raises(ValueError, match=r"^targets: expected at least one target that counts, got none"):
        function(**arguments)
    assert function(**arguments | {"reduction": "sum"}) == 0
    assert function(**arguments | {"denominator": 3}) == 0
    assert function(**arguments | {"reduction": "none"}).size == 0


@pytest.mark.parametrize("function", HARD, **BY_NAME)
def test_an_ignored_or_weightless_batch_has_no_mean(function: Callable[..., Any]) -> None:
    by_class = {"weight": np.array([0.0, 0.0, 1.0])} if function is not xent.focal_loss else {}
    changes = [{"targets": np.array([-100, -100])}, by_class, {"sample_weight": False}]
    for change in filter(None, changes):
        arguments = GOOD[function] | change
        with pytest.raises(ValueError, match=r"^targets: expected at least one target that counts, got none"):
            function(**arguments)
        assert function(**arguments | {"reduction": "sum"}) == 0
        assert function(**arguments | {"denominator": 3}) == 0
        assert function(**arguments | {"denominator": 0}) == 0, "a window in which nothing counts"
        assert (function(**arguments | {"reduction": "none"}) == 0).all()


def test_weightless_binary_targets_have_no_mean() -> None:
    with pytest.raises(ValueError, match=r"^targets: expected at least one target that counts"):
        xent.binary_cross_entropy(Z, P, sample_weight=np.zeros_like(Z))


def test_weights_broadcast_as_numpy_does() -> None:
    z, y = np.arange(6.0).reshape(2, 3), np.array([[0, 1, 0], [1, 1, 0]])
    logits = np.stack([np.zeros_like(z), z], axis=-1)
    for w in (2.0, [2.0], [1.0, 2.0, 3.0], [[1.0], [2.0]], np.ones((2, 3)), np.array([True, False, True])):
        whole = np.broadcast_to(np.asarray(w, float), (2, 3))
        for name in ("sample_weight", "pos_weight"):
            if name == "sample_weight" or np.all(w):
                ours = xent.binary_cross_entropy(z, y, **{name: w})
                assert ours == xent.binary_cross_entropy(z, y, **{name: whole})
        ours = xent.cross_entropy(logits, y, sample_weight=w)
        assert ours == xent.cross_entropy(logits, y, sample_weight=whole)
    assert xent.binary_cross_entropy([1.0, 2.0], [0, 1], pos_weight=[1.0]) > 0


def test_booleans_are_masks_and_labels() -> None:
    z, y = Z[0], np.array([True, False, True])
    assert xent.binary_cross_entropy(z, y) == xent.binary_cross_entropy(z, [1, 0, 1])
    assert xent.binary_cross_entropy(z, y, sample_weight=y) == xent.binary_cross_entropy(z[y], [1, 1])
    labels = np.array([0, -100])
    masked = xent.cross_entropy(Z, np.maximum(labels, 0), sample_weight=labels != -100)
    assert masked == xent.cross_entropy(Z, labels, ignore_index=-100) == xent.cross_entropy(Z[:1], [0])


@pytest.mark.parametrize("deviation", [0.0, 1.0, 3.0, 10.0])
def test_a_float32_softmax_of_a_large_vocabulary_is_a_distribution_in_float64(deviation: float) -> None:
    """Its rows sum to one within the rounding of 128,256 terms, beyond 1e-6, whoever computed it."""
    z = deviation * np.random.default_rng(0).standard_normal((4, 128_256), dtype=np.float32)
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    for p in (xent.softmax(z), torch.softmax(torch.from_numpy(z), -1).numpy(), e / e.sum(-1, keepdims=True)):
        p = p.astype(np.float64)
        assert xent.soft_cross_entropy(z, p) > 0
        assert xent.log_loss(p, np.zeros(4, int)) > 0
        with pytest.raises(ValueError, match=r"^probs: .*within 0\.00017 for 128256 .*sum of 0\.999"):
            xent.log_loss(p * 0.9995, np.zeros(4, int))
        with pytest.raises(ValueError, match=r"^probs: .*(got a sum of (100|99\.9)|in \[0, 1\], got \d)"):
            xent.log_loss(p * 100, np.zeros(4, int))


@pytest.mark.parametrize("classes", [2, 4, 5, 10, 1000])
def test_a_sum_may_be_off_by_the_rounding_of_its_terms(classes: int) -> None:
    p = np.full(classes, 1 / classes)
    within = max(1e-6, 4.8e-7 * classes**0.5)
    p[0] += 0.99 * within
    xent.soft_cross_entropy(np.zeros(classes), p)
    p[0] += 0.02 * within
    with pytest.raises(ValueError, match=r"^target_probs: .*sum to one"):
        xent.soft_cross_entropy(np.zeros(classes), p)


def test_a_refusal_shows_by_how_much() -> None:
    with pytest.raises(ValueError, match=r"within 1e-06 for 2 classes .*got a sum of 1\.000002 at index 0"):
        xent.log_loss([[0.5, 0.500002]], [0])


def test_a_pos_weight_is_no_part_of_the_divisor() -> None:
    losses = xent.binary_cross_entropy([1.0, 2.0], [1, 1], reduction="none")
    assert xent.binary_cross_entropy([1.0, 2.0], [1, 1], pos_weight=1e307) == (1e307 * losses).sum() / 2


@pytest.mark.parametrize("function", HARD, **BY_NAME)
@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4", ">i8"])
def test_labels_of_every_integer_dtype(function: Callable[..., Any], kind: str) -> None:
    expected = function(**GOOD[function])
    assert function(**GOOD[function] | {"targets": Y.astype(kind)}) == expected
    assert function(**GOOD[function] | {"targets": Y.astype(kind).tolist()}) == expected
    assert function(**GOOD[function] | {"targets": torch.from_numpy(Y)}) == expected


def test_labels_may_be_an_empty_list() -> None:
    assert xent.cross_entropy(np.zeros((0, 3)), [], reduction="none").shape == (0,)
    assert xent.cross_entropy(np.zeros((2, 0, 3)), [[], []], reduction="none").shape == (2, 0)


def test_one_row_takes_one_label() -> None:
    assert (
        xent.cross_entropy(Z[0], 0) == xent.cross_entropy(Z[0], np.array(0)) == xent.cross_entropy(Z[:1], [0])
    )
    with pytest.raises(ValueError, match=r"^targets: expected shape \(\).*got \(1,\)"):
        xent.cross_entropy(Z[0], [0])


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_logits_of_a_target_that_does_not_count_are_not_looked_at(bad: float, reduction: str) -> None:
    z = Z.copy()
    z[0] = bad
    ignored = xent.cross_entropy(z, [-1, 1], ignore_index=-1, reduction=reduction)
    weightless = xent.cross_entropy(z, Y, weight=[0.0, 1.0, 1.0], reduction=reduction)
    expected = xent.cross_entropy(Z, [-1, 1], ignore_index=-1, reduction=reduction)
    np.testing.assert_array_equal(ignored, expected)
    np.testing.assert_array_equal(weightless, expected)


@pytest.mark.parametrize("function", [xent.cross_entropy, xent.soft_cross_entropy], **BY_NAME)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_logits_without_a_softmax_are_refused_under_every_reduction(
    function: Callable[..., Any], reduction: str
) -> None:
    for bad, got in ((NAN, "nan"), (INF, "inf")):
        z = Z.copy()
        z[1, 1] = bad
        with pytest.raises(ValueError, match=rf"^logits: .*got {got} at index \(1, 1\)"):
            function(**GOOD[function] | {"logits": z, "reduction": reduction})


def test_the_bad_row_is_named_beside_an_ignored_one() -> None:
    with pytest.raises(ValueError, match=r"^logits: .*got nan at index \(1, 0\)"):
        xent.cross_entropy([[NAN, 0.0], [NAN, 0.0]], [-1, 0], ignore_index=-1)
    with pytest.raises(ValueError, match=r"^logits: .*got nan at index \(1, 0\)"):
        xent.cross_entropy([[NAN, 0.0], [NAN, 0.0]], [0, 1], weight=[0.0, 1.0])
    with pytest.raises(ValueError, match=r"^logits: .*got nan at index \(2, 1\)"):
        xent.cross_entropy([[NAN, 0.0]] * 2 + [[0.0, NAN]], [-1, 0, 1], weight=[0.0, 1.0], ignore_index=-1)


def test_infinite_losses_are_right_and_silent() -> None:
    assert xent.cross_entropy([[-INF, 0.0]], [0]) == INF
    assert xent.cross_entropy([[-INF, 0.0]], [1]) == 0
    assert xent.cross_entropy([[-INF, 0.0]], [1], label_smoothing=0.1) == INF
    assert xent.soft_cross_entropy([[-INF, 0.0]], [[0.0, 1.0]]) == 0
    assert xent.soft_cross_entropy([[-INF, 0.0]], [[0.5, 0.5]]) == INF
    assert xent.nll([[0.0, -INF]], [1]) == INF
    assert xent.log_loss([[0.0, 1.0]], [0]) == INF
    # Weight zero takes an infinite loss out; 0 * inf must not reach the sum.
    assert xent.log_loss([[0.0, 1.0], [0.5, 0.5]], [0, 1], weight=[0.0, 1.0]) == np.log(2)
    assert xent.nll([[-INF, 0.0], [0.0, -INF]], [0, 0], weight=[0.0, 1.0], reduction="sum") == 0
    np.testing.assert_array_equal(
        xent.binary_cross_entropy([INF, INF, -INF, -INF], [1, 0, 1, 0], reduction="none"), [0, INF, INF, 0]
    )
    assert xent.binary_cross_entropy([INF, 0.0], [0, 1], sample_weight=[0.0, 1.0]) == np.log(2)


def test_sums_beyond_the_dtype_are_inf_and_silent() -> None:
    z = np.full((1000, 2), [3e38, 0.0], np.float32)
    wrong = np.ones(1000, int)
    assert xent.cross_entropy(z, wrong, reduction="sum") == np.float32(INF)
    assert xent.cross_entropy(z, wrong, denominator=1e-3) == np.float32(INF)
    assert xent.cross_entropy(z, wrong) == np.float32(3e38)
    assert xent.cross_entropy(Z, Y, denominator=5e-324) == INF


def test_infinite_logits_of_functions_that_allow_them() -> None:
    np.testing.assert_array_equal(
        xent.log_sum_exp([[-INF, -INF], [INF, -INF], [INF, INF], [-INF, 1.0]]), [-INF, INF, INF, 1.0]
    )
    np.testing.assert_array_equal(xent.sigmoid([-INF, INF]), [0, 1])
    np.testing.assert_array_equal(xent.log_sigmoid([-INF, INF]), [-INF, 0])


def test_an_array_of_jax_is_refused() -> None:
    """Of which NumPy would make a constant."""
    traced = type(
        "ArrayImpl", (), {"__module__": "jaxlib._jax", "__array__": lambda self, *_, **__: np.array(Z)}
    )
    with pytest.raises(TypeError, match=r"^logits: .* a JAX array, whose gradient would be lost"):
        xent.cross_entropy(traced(), Y)
