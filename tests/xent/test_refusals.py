"""What people hand over that does not fit: the refusal names the argument or function that would have fitted.

Each row is tried on arrays and on tensors; where only one of them can tell, the row says so.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import xent
import xent.torch as xt

G = np.random.default_rng(0)
Z, Y = G.normal(size=(4, 3)), np.array([0, 2, 1, 1])
P = np.exp(Z) / np.exp(Z).sum(1, keepdims=True)
MAP, MAP_Y = np.ascontiguousarray(np.moveaxis(G.normal(size=(2, 5, 4, 3)), 2, 1)), G.integers(0, 4, (2, 5, 3))
MAP_P = np.exp(MAP) / np.exp(MAP).sum(1, keepdims=True)
ONE, ONE_Y = np.array([0.3, 0.8, 0.5]), np.array([0, 1, 1])
FIRST = "; the predictions come first, and then the targets"
NUMBER = (
    "; for one number a target there are binary_cross_entropy (logits) and binary_log_loss (probabilities)"
)
ONE_HOT = "; one-hot targets: give their argmax, or use soft_cross_entropy"
INPUTS = {
    "cross_entropy": (Z, MAP),
    "focal_loss": (Z, MAP),
    "nll": (np.log(P), np.log(MAP_P)),
    "log_loss": (P, MAP_P),
}
BOTH = {"arrays": (xent, lambda x: x), "tensors": (xt, torch.as_tensor)}


def rows() -> Any:
    for name, (x, grid) in INPUTS.items():
        yield f"{name}, scikit-learn's order", name, (Y, x), {}, FIRST
        yield f"{name}, scikit-learn's order by class", name, (np.eye(3, dtype=int)[Y], x[:, None]), {}, FIRST
        yield f"{name}, channels second", name, (grid, MAP_Y), {}, "; axis=1 fits"
        yield (
            f"{name}, channels last taken for second",
            name,
            (np.moveaxis(grid, 1, -1), MAP_Y),
            {"axis": 1},
            ("; axis=3 fits"),
        )
        yield (
            f"{name}, -100",
            name,
            (x, [0, -100, 1, -100]),
            {},
            "; ignore_index=-100 leaves such targets out",
        )
        yield f"{name}, 255", name, (x, [0, 255, 1, 2]), {}, "; ignore_index=255 leaves such targets out"
        yield (
            f"{name}, another index ignored",
            name,
            (x, [0, 255, 1, 2]),
            {"ignore_index": -1},
            ("; ignore_index=255 leaves such targets out"),
        )
        yield f"{name}, from one", name, (x, Y + 1), {}, "; classes count from 0"
        yield f"{name}, one-hot", name, (x, np.eye(3, dtype=int)[Y]), {}, ONE_HOT
        yield f"{name}, distributions", name, (x, P), {}, "; for target probabilities use soft_cross_entropy"
        yield f"{name}, one number a target", name, (x[:, 0], Y), {}, NUMBER
        yield (
            f"{name}, float labels",
            name,
            (x, Y * 1.0),
            {},
            "; class indices are integers, and these are floats",
        )
        yield f"{name}, one logit a row", name, (x[:, :1] * 0 + (name == "log_loss"), Y % 2), {}, NUMBER
        yield f"{name}, one logit and label a row", name, (x[:, :1], Y[:, None]), {}, NUMBER
    for name in ("cross_entropy", "focal_loss", "nll"):
        yield f"{name}, one-hot first", name, (np.eye(3)[Y], INPUTS[name][0]), {}, FIRST
    yield "log_loss, one-hot first", "log_loss", (np.eye(3)[Y], P), {}, FIRST
    square = np.ascontiguousarray(MAP_P[:, :, 0])  # probabilities of four classes along axis 1
    yield (
        "log_loss, channels second by value",
        "log_loss",
        (square, MAP_Y[:, 0]),
        {"axis": 2},
        "; axis=1 fits",
    )
    yield "log_loss of logits", "log_loss", (Z, Y), {}, "; for logits use cross_entropy"
    yield "nll of logits", "nll", (Z, Y), {}, "; for logits use cross_entropy"
    yield "soft, the other order", "soft_cross_entropy", (P, Z), {}, FIRST
    yield "soft, class indices", "soft_cross_entropy", (Z, Y), {}, "; for class indices use cross_entropy"
    yield "soft, channels second", "soft_cross_entropy", (MAP[:, :, 0], MAP_P[:, :, 0]), {}, "; axis=1 fits"
    yield "soft, one number a target", "soft_cross_entropy", (ONE, ONE), {}, NUMBER
    yield (
        "binary_log_loss of logits",
        "binary_log_loss",
        (ONE * 9, ONE_Y),
        {},
        "; for logits use binary_cross_entropy",
    )
    for name, twin in (
        ("cross_entropy", "cross_entropy"),
        ("log_loss", "log_loss"),
    ):
        said = f"; for a row of classes a target use {twin}"
        yield f"binary_{name}, a row", f"binary_{name}", (P, Y), {}, said
        said = "; sample_weight=0 leaves such targets out"
        yield f"binary_{name}, -100", f"binary_{name}", (ONE, [0, -100, 1]), {}, said
    yield (
        "binary_cross_entropy, scikit-learn's order",
        "binary_cross_entropy",
        (ONE_Y * 1.0, ONE * 9),
        {},
        FIRST,
    )


ROWS = list(rows())


@pytest.mark.parametrize("side", BOTH)
@pytest.mark.parametrize(
    ("name", "given", "options", "said"), [r[1:] for r in ROWS], ids=[r[0] for r in ROWS]
)
def test_a_refusal_says_what_would_have_fitted(
    name: str, given: tuple[Any, Any], options: dict[str, Any], said: str, side: str
) -> None:
    package, convert = BOTH[side]
    predictions, targets = map(convert, map(np.asarray, given))
    if side == "tensors" and predictions.dtype == torch.int64 and said == FIRST:
        said = "; labels come second, as targets"  # a tensor of integers cannot be logits
    with pytest.raises(
        (TypeError, ValueError),
        match=rf"^(targets|target_probs|weight|logits|probs|log_probs): .*{re.escape(said)}$",
    ):
        getattr(package, name)(predictions, targets, **options)


@pytest.mark.parametrize("side", BOTH)
def test_what_the_hint_proposes_works(side: str) -> None:
    package, convert = BOTH[side]
    grid, labels, z, y = map(convert, (MAP, MAP_Y, Z, Y))
    assert package.cross_entropy(grid, labels, axis=1) > 0
    assert package.cross_entropy(convert(np.moveaxis(MAP, 1, -1)), labels, axis=3) > 0
    assert package.cross_entropy(z, convert(np.array([0, -100, 1, -100])), ignore_index=-100) > 0
    one_hot = convert(np.eye(3)[Y])
    assert package.soft_cross_entropy(z, one_hot) == pytest.approx(float(package.cross_entropy(z, y)))
    assert package.binary_log_loss(convert(ONE), convert(ONE_Y)) > 0
    assert package.binary_cross_entropy(convert(ONE), convert(ONE_Y), sample_weight=convert(ONE)) > 0


def test_probabilities_of_zero_and_one_that_are_labels() -> None:
    """Only integers can be told: a probability may be 0.0 or 1.0, and a target 0.3."""
    with pytest.raises(ValueError, match=rf"^probs: expected probabilities, got labels of 0 and 1{FIRST}$"):
        xent.binary_log_loss(ONE_Y, ONE)
    with pytest.raises(TypeError, match=r"^probs: .*; labels come second, as targets$"):
        xt.binary_log_loss(torch.tensor(ONE_Y), torch.tensor(ONE))
    with pytest.raises(
        ValueError, match=r"^probs: .*got 3\.0 at index 0; for logits use binary_cross_entropy$"
    ):
        xent.binary_log_loss([3.0, 0.5], [0, 1])
    # Each of these means something, and is computed.
    assert xent.binary_log_loss([0, 1], [0, 1]) == 0
    assert xent.binary_log_loss(ONE_Y * 1.0, ONE) == np.inf
    assert xent.binary_cross_entropy([0, 1], [0.25, 0.75]) > 0
    assert xent.cross_entropy([[0, 1], [1, 0]], [0, 1]) > 0
    assert xent.cross_entropy([1.0, 2.0, 3.0], 2) > 0


def test_no_hint_where_none_fits() -> None:
    for package, convert in BOTH.values():
        with pytest.raises(ValueError, match=r"got 3 at index 0$"):
            package.cross_entropy(convert(Z), convert(np.array([3, 0, 1, 2])))
        with pytest.raises(ValueError, match=r"got \(5,\)$"):
            package.cross_entropy(convert(Z), convert(np.array([0, 1, 2, 0, 1])))
