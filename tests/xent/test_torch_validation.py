"""Each argument of the losses on tensors is refused by its name, with what came and what was expected."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import xent
import xent.torch as xt

INF = math.inf
Z, Y = torch.zeros(2, 3), torch.tensor([0, 1])
P = torch.full((2, 3), 1 / 3)
GOOD: list[tuple[str, dict[str, Any]]] = [
    ("log_sum_exp", {"x": Z}),
    ("log_softmax", {"logits": Z}),
    ("softmax", {"logits": Z}),
    ("sigmoid", {"logits": Z}),
    ("log_sigmoid", {"logits": Z}),
    ("cross_entropy", {"logits": Z, "targets": Y}),
    ("soft_cross_entropy", {"logits": Z, "target_probs": P}),
    ("binary_cross_entropy", {"logits": Z, "targets": P}),
    ("nll", {"log_probs": P.log(), "targets": Y}),
    ("log_loss", {"probs": P, "targets": Y}),
]
BY_TENSOR = [(name, arguments, bad) for name, arguments in GOOD for bad in arguments]


@pytest.mark.parametrize(("name", "arguments", "bad"), BY_TENSOR, ids=[f"{b[0]}-{b[2]}" for b in BY_TENSOR])
def test_what_is_no_tensor_of_the_right_kind_is_named(name: str, arguments: dict[str, Any], bad: str) -> None:
    function = getattr(xt, name)
    function(**arguments)
    with pytest.raises(TypeError, match=rf"^{bad}: expected a torch.Tensor, got list; for arrays use xent$"):
        function(**arguments | {bad: [0.0]})
    with pytest.raises(TypeError, match=rf"^{bad}: expected .*, got dtype torch.complex64$"):
        function(**arguments | {bad: torch.zeros(2, 3, dtype=torch.complex64)})
    if arguments[bad] is not Y and (name, bad) != ("binary_cross_entropy", "targets"):
        with pytest.raises(TypeError, match=rf"^{bad}: expected .*, got dtype torch.bool$"):
            function(**arguments | {bad: torch.zeros(2, 3, dtype=torch.bool)})
    elif arguments[bad] is Y:
        with pytest.raises(
            TypeError, match=r"^targets: .* torch.float32; class indices are integers, and these are floats$"
        ):
            function(**arguments | {bad: torch.zeros(2)})


FIRST = [(name, arguments) for name, arguments in GOOD if "sigmoid" not in name and "binary" not in name]


@pytest.mark.parametrize(("name", "arguments"), FIRST, ids=[f[0] for f in FIRST])
def test_the_class_axis_is_asked_for_by_name(name: str, arguments: dict[str, Any]) -> None:
    function, (first, *_) = getattr(xt, name), arguments
    for axis in (2, -3):
        with pytest.raises(
            ValueError, match=rf"^axis: expected an axis of {first} with shape \(2, 3\), got {axis}$"
        ):
            function(**arguments, axis=axis)
    with pytest.raises(TypeError, match=r"^axis: expected an integer, got 1.0$"):
        function(**arguments, axis=1.0)
    single = rf"^{first}: expected at least one dimension, the classes, got a single number$"
    with pytest.raises(ValueError, match=single):
        function(**arguments | {first: torch.tensor(0.0)})
    with pytest.raises(
        ValueError, match=rf"^{first}: expected at least one class along axis 0, got shape \(0, 2\)$"
    ):
        function(**arguments | {first: torch.zeros(0, 2)}, axis=-2)


@pytest.mark.parametrize("name", ["cross_entropy", "nll", "log_loss"])
def test_a_bad_label_is_named_by_its_place(name: str) -> None:
    function, arguments = getattr(xt, name), dict(GOOD)[name]
    for labels, got in (
        ([0, 3], "3 at index 1"),
        ([-1, 0], "-1 at index 0; ignore_index=-1 leaves such targets out"),
    ):
        with pytest.raises(ValueError, match=rf"^targets: expected class indices in \[0, 3\), got {got}$"):
            function(**arguments | {"targets": torch.tensor(labels)})
    with pytest.raises(
        ValueError,
        match=r"^targets: expected shape \(2,\), that of the logits without the class axis, got \(4,\)$",
    ):
        function(**arguments | {"targets": torch.tensor([0, 1, 2, 0])})
    with pytest.raises(TypeError, match=r"^ignore_index: expected an integer, got 1.0$"):
        function(**arguments, ignore_index=1.0)
    with pytest.raises(ValueError, match=r"^weight: expected shape \(3,\), one weight a class, got \(2,\)$"):
        function(**arguments, weight=[1.0, 2.0])
    with pytest.raises(ValueError, match=r"^weight: expected finite weights >= 0, got inf at index 1$"):
        function(**arguments, weight=[1.0, INF, 1.0])
    with pytest.raises(TypeError, match=r"^weight: expected real numbers .*, got dtype <U5$"):
        function(**arguments, weight="heavy")
    with pytest.raises(TypeError, match=r"^reduction: "):
        function(**arguments, reduction=None)
    with pytest.raises(ValueError, match=r"^denominator: "):
        function(**arguments, denominator=-1)


PROMISED = re.findall(r"torch>=([\d.]+)", (Path(__file__).parents[2] / "pyproject.toml").read_text())
MISSING = f"ImportError: xent.torch needs PyTorch {PROMISED[0]} or newer"  # both extras say the same


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys, xent; assert 'torch' not in sys.modules; print(xent.torch.nll.__name__)", "nll"),
        ("import xent; xent.flax", "AttributeError: module 'xent' has no attribute 'flax'"),
        *(
            (f"import sys, xent; sys.modules['torch'] = None; {look}", MISSING)
            for look in ("import xent.torch", "xent.torch")
        ),
        (
            "import torch; torch.__version__ = '2.7.1+cpu'; import xent.torch",
            f"{MISSING}, found 2.7.1+cpu",
        ),
    ],
)  # fmt: skip
def test_pytorch_is_loaded_when_it_is_looked_at_and_named_when_missing(code: str, said: str) -> None:
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (finished.stdout + finished.stderr).strip().splitlines()[-1] == said


@pytest.mark.parametrize(
    ("shape", "axis"), [((2, 3), ()), ((), None), ((), ()), ((2, 3), (0, 0)), ((0, 3), 0)]
)
def test_log_sum_exp_refuses_axes_as_on_arrays(shape: tuple[int, ...], axis: Any) -> None:
    with pytest.raises(ValueError) as of_arrays:
        xent.log_sum_exp(np.zeros(shape), axis=axis)
    with pytest.raises(ValueError) as of_tensors:
        xt.log_sum_exp(torch.zeros(shape), axis=axis)
    assert str(of_tensors.value) == str(of_arrays.value)
