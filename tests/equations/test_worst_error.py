"""`worst_error` itself: what it lets pass, what it fails with, and what it records."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from _pytest.outcomes import Failed


@pytest.fixture
def item(worst_error: Any) -> Any:
    """A stand-in for a test, so that nothing reaches the ledger."""
    item = SimpleNamespace(user_properties=[], path=Path("test_it.py"), name="test_it")
    item.compare = type(worst_error)(item)
    return item


def test_the_worst_element_is_recorded_in_the_unit_of_the_tolerance(item: Any) -> None:
    assert item.compare([1.0, 200.0], [1.0, 201.0], rtol=0.01, why="a") == pytest.approx(1 / 201)
    assert item.compare([1.0, 200.5], [1.25, 200.0], atol=1.0, why="b") == pytest.approx(0.5)
    # With both, the error is relative to |expected| + atol / rtol, here 0 + 10.
    assert item.compare(0.05, 0.0, rtol=0.01, atol=0.1, why="c") == pytest.approx(0.005)
    assert item.compare([np.inf, -np.inf, 0.0], [np.inf, -np.inf, 0.0], rtol=0.0, why="d") == 0.0
    assert [entry[4] for _, entry in item.user_properties] == ["a", "b", "c", "d"]


def test_numbers_of_other_libraries_are_read(item: Any) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    third = mpmath.mpf(1) / 3
    assert 0 <= item.compare(np.float64(1) / 3, third, rtol=1e-15, why="one rounding") < 1e-16
    item.compare([1 / 3, 2 / 3], [third, 2 * third], rtol=1e-15, why="one rounding")
    item.compare(torch.tensor([1.5], dtype=torch.bfloat16, requires_grad=True), [1.5], rtol=0.0, why="exact")
    item.compare(np.array([1.5], dtype=ml_dtypes.bfloat16), [1.5], rtol=0.0, why="exact")


@pytest.mark.parametrize(
    ("observed", "expected", "message"),
    [
        ([1.0, 2.5, 3.1], [1, 2, 3], r"expected 2, observed 2.5 at index \(1,\), the worst of 2 in 3"),
        (1.0, 2.0, "expected 2, observed 1; off by 1, allowed 0.002"),
        (np.nan, 1.0, "expected 1, observed nan"),
        (np.nan, np.nan, "expected nan, observed nan"),
        (np.inf, -np.inf, "expected -inf, observed inf"),
        (1.0, np.inf, "expected inf, observed 1"),
        (1e-300, 0.0, "expected 0, observed 1"),
        ([1.0, 1.0], 1.0, r"observed has shape \(2,\), expected has shape \(\)"),
        ([], [], "nothing to compare"),
    ],
)  # fmt: skip
def test_what_disagrees_fails(item: Any, observed: Any, expected: Any, message: str) -> None:
    with pytest.raises(Failed, match=message):
        item.compare(observed, expected, rtol=1e-3, why="because")
    assert not item.user_properties, "a failed comparison is not recorded"


@pytest.mark.parametrize(
    ("observed", "tolerance", "why", "message"),
    [
        (1.0, {}, "because", "needs rtol or atol"),
        (1.0, {"rtol": 1e-3}, " ", "needs why="),
        (1.0, {"rtol": -1.0}, "because", "have to be finite and not negative"),
        (1.0, {"atol": np.inf}, "because", "have to be finite and not negative"),
        (1j, {"rtol": 1e-3}, "because", "observed holds complex128, not real numbers"),
        ("one", {"rtol": 1e-3}, "because", "not real numbers"),
    ],
)
def test_a_sloppy_comparison_is_refused(
    item: Any, observed: Any, tolerance: dict[str, float], why: str, message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        item.compare(observed, 1.0, why=why, **tolerance)
