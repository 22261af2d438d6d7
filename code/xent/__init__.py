"""Cross-entropy, exact: losses, gradients and denominators.

``import xent`` loads NumPy and SciPy only. `xent.torch` holds the losses on tensors, and PyTorch is loaded when
that is first looked at.

An argument that is not what its entry says is refused: by a ValueError, or a TypeError where it is of another kind,
that names the argument, what came and what was expected. A row of logits without a softmax, unless it does not
count, and a mean over nothing without a `denominator` raise a ValueError too.
"""

import importlib
from typing import Any

from . import denominators, distillation, elicitation, gradients, information, scoring, sequences
from ._diagnose import Diagnosis, diagnose
from .losses import (
    binary_cross_entropy,
    binary_log_loss,
    cross_entropy,
    focal_loss,
    log_loss,
    nll,
    soft_cross_entropy,
)
from .numerics import log_sigmoid, log_softmax, log_sum_exp, sigmoid, softmax

__version__ = "0.1.0"

__all__ = [
    "Diagnosis", "binary_cross_entropy", "binary_log_loss", "cross_entropy", "denominators", "diagnose",
    "distillation", "elicitation", "focal_loss", "gradients", "information", "log_loss", "log_sigmoid",
    "log_softmax", "log_sum_exp", "nll", "scoring", "sequences", "sigmoid", "soft_cross_entropy",
    "softmax",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "torch":
        return importlib.import_module("xent.torch")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
