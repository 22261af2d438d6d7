"""The seeds, how hypothesis runs, and the errors that the tests of equations measure.

Under pytest-xdist the workers run the tests and the controller collects the errors through the reports.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import core, settings

import marks
from adversary import SEED

# No example has a deadline: a loaded machine would fail a test that says nothing about time. What is tried is
# the same at every run, so that a failure of CI can be repeated; XENT_SEED tries something else.
settings.register_profile("xent", deadline=None, derandomize=not SEED, database=None)
settings.load_profile("xent")

ROOT = Path(__file__).resolve().parents[1]
MEASURED = "worst_error"


def _name(item: pytest.Item) -> str:
    """The name of an item's function in the ledger: file::function, without parameters."""
    return f"{item.path.name}::{getattr(item, 'originalname', item.name)}"


def pytest_configure(config: pytest.Config) -> None:
    """Let XENT_SEED move hypothesis as well, as its own option would."""
    if SEED and config.getoption("--hypothesis-seed", None) is None:
        core.global_force_seed = SEED


# --------------------------------------------------------------------------------------- worst_error


def _as_float64(values: Any, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Read numbers of any library (NumPy, torch, Keras, mpmath, sympy, lists of them) as float64."""
    if hasattr(values, "detach"):
        # torch's bfloat16 has no NumPy counterpart, so widen before leaving torch.
        values = values.detach().cpu().double().numpy()
    array = np.asarray(values)
    # Keras's bfloat16 (from ml_dtypes) has a kind of its own and widens; text and complex numbers do not.
    if array.dtype.kind not in "biufO" and array.dtype.name != "bfloat16":
        raise TypeError(f"{name} holds {array.dtype}, not real numbers")
    return array.astype(np.float64)


class WorstError:
    """`worst_error(observed, expected, rtol=..., atol=..., why=...)`: assert closeness and record it.

    Passes if |observed - expected| <= atol + rtol |expected| everywhere; equal infinities agree, nan never
    does, and shapes have to match. The error is recorded in the unit of the tolerance: relative to
    |expected| where rtol is given (to |expected| + atol / rtol with both), else absolute. `why` says where
    the tolerance comes from. Returns the error.
    """

    def __init__(self, item: pytest.Item) -> None:
        self._item = item

    def __call__(
        self, observed: Any, expected: Any, *, rtol: float | None = None, atol: float | None = None, why: str
    ) -> float:
        __tracebackhide__ = True
        if rtol is None and atol is None:
            raise TypeError("worst_error needs rtol or atol (0 for equality to the last bit)")
        if not why.strip():
            raise TypeError("worst_error needs why=, the reason of the tolerance")
        rtol, atol = float(rtol or 0.0), float(atol or 0.0)
        if not (0.0 <= rtol < np.inf and 0.0 <= atol < np.inf):
            raise ValueError(f"worst_error: rtol={rtol} and atol={atol} have to be finite and not negative")

        got, want = _as_float64(observed, "observed"), _as_float64(expected, "expected")
        if got.shape != want.shape:
            pytest.fail(f"observed has shape {got.shape}, expected has shape {want.shape}")
        if got.size == 0:
            pytest.fail("nothing to compare: both sides are empty")

        with np.errstate(all="ignore"):
            difference = np.where(got == want, 0.0, np.abs(got - want))
            allowed = atol + rtol * np.where(np.isinf(want), 0.0, np.abs(want))
            ratio = np.where(difference == 0.0, 0.0, difference / allowed)
        # Equal infinities are excluded above; what is nan now has a nan, or two infinities, on its sides.
        ratio = np.where(np.isnan(ratio), np.inf, ratio)
        worst = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
        if not ratio[worst] <= 1.0:
            place = (
                f" at index {tuple(map(int, worst))}, the worst of {int((ratio > 1.0).sum())} in {ratio.size}"
            )
            pytest.fail(
                f"expected {want[worst]:.17g}, observed {got[worst]:.17g}{place if ratio.ndim else ''}; "
                f"off by {difference[worst]:.3g}, allowed {allowed[worst]:.3g} "
                f"(rtol {rtol:g}, atol {atol:g}: {why})"
            )
        error = float(ratio[worst]) * (rtol or atol)
        allowed = float(f"{rtol:.1e}"), float(f"{atol:.1e}"), why.strip()
        self._item.user_properties.append((MEASURED, (_name(self._item), error, *allowed)))
        return error


@pytest.fixture
def worst_error(request: pytest.FixtureRequest) -> WorstError:
    """Compare numbers within a tolerance, and record for the ledger how far apart they were at worst."""
    return WorstError(request.node)


# --------------------------------------------------------- in the process that collects: `make ledger`


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that `make ledger` gives."""
    parser.addoption(
        "--ledger", action="store_true", help=f"write {marks.ERRORS} from what this run measures"
    )


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Write the worst error of each test and tolerance, with two digits, after a run that passed."""
    if not config.getoption("--ledger", False) or hasattr(config, "workerinput"):
        return
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(f"{marks.ERRORS} is not written: a test failed")
        return
    worst: dict[str, dict[tuple[Any, ...], float]] = defaultdict(lambda: defaultdict(float))
    for report in terminalreporter.stats.get("passed", []):
        for kind, value in report.user_properties:
            if kind == MEASURED:
                name, error, *allowed = value
                key = tuple(zip(("rtol", "atol", "why"), allowed, strict=True))
                worst[name][key] = max(error, worst[name][key])
    rows = {
        name: [{"error": float(f"{error:.1e}"), **dict(key)} for key, error in sorted(found.items())]
        for name, found in sorted(worst.items())
    }
    # A test has a line, which is what a difference of two versions shows.
    lines = [f" {json.dumps(name)}: {json.dumps(row, ensure_ascii=False)}" for name, row in rows.items()]
    (ROOT / marks.ERRORS).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    terminalreporter.write_line(f"{marks.ERRORS}: the worst errors of {len(worst)} tests")
