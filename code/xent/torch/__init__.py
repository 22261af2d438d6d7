"""The functions of `xent` on tensors, and `accumulate`, `check_accumulation` and `check_trainer` for training.

Names, arguments, meaning and refusals (not epsilons) are those on arrays (`top_k_loss` has the tail alone).
Predictions and distributions are tensors of floats, targets tensors on their device, weights of classes and targets
tensors or arrays; results are float32 for half precision, else in the dtype of the predictions, or of target
distributions and a teacher's logits or log-probabilities where these are wider. Unlike there, weights are rounded to
that dtype (by linear losses to that of hidden states, or float32) and, as temperatures, refused beyond it, logits of
nan and rows without a softmax give nan, and values may go unchecked under `torch.compile` or `export`, `torch.func`,
fake tensors. What the checks need of a GPU they read at once; linear layers and divergences read more.

>>> import torch, xent.torch
>>> logits = torch.zeros(2, 3, requires_grad=True)
>>> xent.torch.cross_entropy(logits, torch.tensor([0, 2])).backward()
>>> logits.grad
tensor([[-0.3333,  0.1667,  0.1667],
        [ 0.1667,  0.1667, -0.3333]])
"""

try:
    import torch
except ImportError as error:
    raise ImportError("xent.torch needs PyTorch 2.8 or newer", name="torch") from error
if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 8):
    raise ImportError(f"xent.torch needs PyTorch 2.8 or newer, found {torch.__version__}", name="torch")

from ._accumulate import MicroBatch, Window, Windows, accumulate
from ._accumulation_check import AccumulationReport, check_accumulation
from ._caches import TopK, top_k_of_teacher
from ._distillation import distillation_loss, mixed_loss, top_k_loss
from ._linear import linear_cross_entropy, linear_distillation_loss, linear_selected_log_probs
from ._losses import (
    binary_cross_entropy,
    binary_log_loss,
    cross_entropy,
    focal_loss,
    log_loss,
    log_softmax,
    nll,
    selected_log_probs,
    soft_cross_entropy,
)
from ._trainer_check import check_trainer

__all__ = [
    "AccumulationReport", "MicroBatch", "TopK", "Window", "Windows", "accumulate", "binary_cross_entropy",
    "binary_log_loss", "check_accumulation", "check_trainer", "cross_entropy", "distillation_loss",
    "focal_loss", "linear_cross_entropy", "linear_distillation_loss", "linear_selected_log_probs",
    "log_loss", "log_softmax", "mixed_loss", "nll", "selected_log_probs", "soft_cross_entropy",
    "top_k_loss", "top_k_of_teacher",
]  # fmt: skip
