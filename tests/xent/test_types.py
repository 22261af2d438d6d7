"""What type a loss of arrays returns, by its reduction: as mypy reveals it to who calls it."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

import xent.torch
from xent import distillation, gradients, losses

ROOT = Path(__file__).parents[2]
SOUND = {"target_probs": [[0.5, 0.5]], "targets": [0], "top_indices": [[0]], "top_log_probs": [[0.0]]}
LOSSES = [
    (module.__name__, name)
    for module in (losses, distillation)
    for name in module.__all__
    if "reduction" in inspect.signature(getattr(module, name)).parameters and "gradient" not in name
]
HEAD = """
from typing import Any, Literal, assert_type
import numpy as np
from numpy.typing import NDArray
import xent
reduction: Literal["sum", "mean"] = "sum"
"""


def calls(module: str, name: str) -> str:
    """A loss reduced in each way, with what its type has to be, and with an option that it does not have."""
    parameters = inspect.signature(getattr(sys.modules[module], name)).parameters.values()
    needed = [str(SOUND.get(p.name, [[0.0, 0.0]])) for p in parameters if p.default is p.empty]
    given = [p for p in parameters if p.default is not p.empty and p.name != "reduction"]
    options = [f"{p.name}={p.default!r}" for p in given]
    call = f"{module}.{name}({', '.join(needed)}"
    number, array = "np.floating[Any]", "NDArray[np.floating[Any]]"
    ways = (("", number), (", reduction=reduction", number), (', reduction="none"', array))
    lines = [f"assert_type({call}{way}), {of})" for way, of in ways]
    lines += [f"assert_type({call}, {', '.join(options)}{way}), {of})" for way, of in ways]
    return "\n".join([*lines, f"{call}, no_option=1)  # type: ignore[call-overload]"])


def mypy(code: str, folder: Path) -> str:
    """What mypy says of a file, beside how many errors there are."""
    (folder / "calls.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", folder / "calls.py"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    return found.stdout + found.stderr


@pytest.mark.slow
def test_the_reduction_says_whether_a_loss_is_a_number(tmp_path: Path) -> None:
    assert len(LOSSES) == 9
    sound = HEAD + "\n".join(calls(*loss) for loss in LOSSES) + "\n"
    assert mypy(sound, tmp_path).startswith("Success")
    wrong = HEAD + "x: NDArray[Any] = xent.nll([[0.0]], [0])\n"
    assert "floating[Any]" in mypy(wrong, tmp_path)


def test_what_comes_back_is_of_that_type() -> None:
    assert isinstance(xent.nll([[0.0]], [0]), np.floating)
    assert isinstance(xent.nll([[0.0]], [0], reduction="none"), np.ndarray)
    others = [getattr(module, name) for module in (gradients, xent.torch) for name in module.__all__]
    assert not [f for f in others if inspect.isfunction(f) and get_type_hints(f)["return"] is Any]
