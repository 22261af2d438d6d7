"""What a loss computes, found out by calling it."""

from ._ask import diagnose
from ._call import to_numpy
from ._report import Diagnosis

__all__ = ["Diagnosis", "diagnose", "to_numpy"]
