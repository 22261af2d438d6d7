"""What a loss computes, found out by calling it.

`_law`: what can be said of a loss, and what that predicts of a call. `_rows`: the laws of single rows. `_trial`: a loss
beside its law. `_read`: the questions that batches answer. `_ask`: the way from a loss to a `Diagnosis`, in `_report`.
"""

from ._ask import diagnose
from ._call import to_numpy
from ._report import Diagnosis

__all__ = ["Diagnosis", "diagnose", "to_numpy"]
