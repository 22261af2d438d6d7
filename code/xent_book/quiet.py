"""Import a framework without what its libraries write to the terminal."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType

__all__ = ["import_module"]


def import_module(name: str) -> ModuleType:
    """Import a module while file descriptor 2 leads nowhere.

    TensorFlow's C++ libraries greet with lines about CUDA and oneDNN before the setting that silences them
    (``TF_CPP_MIN_LOG_LEVEL``) is read. They write to the descriptor, past ``sys.stderr``, so only closing it
    helps. An exception in the import still surfaces, with its traceback.

    Parameters
    ----------
    name : str
        The module's full name, such as "keras" or "tensorflow".

    Returns
    -------
    module
        The imported module.

    Examples
    --------
    >>> from xent_book import quiet
    >>> quiet.import_module("math").log(1.0)
    0.0
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        return importlib.import_module(name)
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)
