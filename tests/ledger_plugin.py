"""The equation marks while pytest runs: checked, named in every failure, and their errors collected.

`tools/ledger.py` knows what a mark and a table are; this plugin connects it to a run:

- a marked test fails at once if its mark is malformed, misplaced or names a label that no chapter has;
- `worst_error` compares and records, and a test whose method is to compare numbers has to use it;
- a failure names the equation, in the headline, in the short summary and in a section of its own;
- a complete, passing run writes _build/ledger.json, and a run that contradicts the committed table fails.

Under pytest-xdist the workers run the tests and the controller collects, through the reports.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ledger

ROOT = Path(__file__).resolve().parent.parent
MARKS = "xent-equations"
ERRORS = "xent-errors"


@cache
def _chapters_of_labels() -> dict[str, str]:
    """label -> chapter, read once per process."""
    return {equation.label: equation.chapter for equation in ledger.read_equations(ROOT)[0]}


def _ledger_name(item: pytest.Item) -> str:
    """The name of an item's function in the ledger: file::function, without parameters."""
    return f"{item.path.name}::{getattr(item, 'originalname', item.name)}"


def _equations(item: pytest.Item) -> list[tuple[str, str]]:
    """The (label, by) pairs of the item's marks, as far as they are well formed."""
    marks = reversed(list(item.iter_markers("equation")))
    return [
        (mark.args[0], mark.kwargs["by"]) for mark in marks if not ledger.mark_error(mark.args, mark.kwargs)
    ]


def _headline(equations: list[tuple[str, str]]) -> str:
    """Such as 'equation eq-softmax (02_multiclass)'."""
    named = [f"{label} ({_chapters_of_labels().get(label, 'in no chapter')})" for label, _ in equations]
    return ("equation " if len(named) == 1 else "equations ") + ", ".join(named)


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
        equations = _equations(self._item)
        prefix = f"{_headline(equations)}: " if equations else ""
        if rtol is None and atol is None:
            raise TypeError("worst_error needs rtol or atol (0 for equality to the last bit)")
        if not why.strip():
            raise TypeError("worst_error needs why=, the reason of the tolerance")
        rtol, atol = float(rtol or 0.0), float(atol or 0.0)
        if not (0.0 <= rtol < np.inf and 0.0 <= atol < np.inf):
            raise ValueError(f"worst_error: rtol={rtol} and atol={atol} have to be finite and not negative")

        got, want = _as_float64(observed, "observed"), _as_float64(expected, "expected")
        if got.shape != want.shape:
            pytest.fail(f"{prefix}observed has shape {got.shape}, expected has shape {want.shape}")
        if got.size == 0:
            pytest.fail(f"{prefix}nothing to compare: both sides are empty")

        with np.errstate(all="ignore"):
            difference = np.where(got == want, 0.0, np.abs(got - want))
            # inf - inf is nan where the signs agree, and those were equal above; what is left disagrees.
            difference = np.where(np.isnan(difference), np.inf, difference)
            allowed = atol + rtol * np.where(np.isinf(want), 0.0, np.abs(want))
            ratio = np.where(difference == 0.0, 0.0, difference / allowed)
        # 0 / 0 is excluded above; x / 0 is inf, and so is nan on either side.
        ratio = np.where(np.isnan(ratio), np.inf, ratio)
        worst = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
        unit = rtol if rtol > 0.0 else atol
        error = float(ratio[worst]) * unit if unit > 0.0 else float(ratio[worst])
        if not ratio[worst] <= 1.0:
            place = f" at index {tuple(int(i) for i in worst)}" if ratio.ndim else ""
            several = f", the worst of {int((ratio > 1.0).sum())} in {ratio.size}" if ratio.size > 1 else ""
            tolerance = ledger.describe_tolerance(ledger.Tolerance.of(rtol, atol))
            pytest.fail(
                f"{prefix}expected {want[worst]:.17g}, observed {got[worst]:.17g}{place}{several}; "
                f"off by {difference[worst]:.3g}, allowed {allowed[worst]:.3g} ({tolerance}: {why})"
            )
        entry = (rtol, atol, error, why.strip())
        self._item.user_properties.append((ERRORS, entry))
        return error


# -------------------------------------------------------------------------------------- the plugin


class LedgerPlugin:
    """Follows a run of the equation tests."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.measured: ledger.Measurements = {}
        self.not_passed: set[str] = set()
        self.failed: dict[str, list[str]] = {}
        self.differences: list[str] = []
        self.written = False

    # In the process that runs the tests (a worker, under xdist).

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        marks = list(item.iter_markers("equation"))
        if not marks:
            return
        for mark in marks:
            if error := ledger.mark_error(mark.args, mark.kwargs):
                pytest.fail(error, pytrace=False)
            if mark.args[0] not in _chapters_of_labels():
                pytest.fail(f"equation {mark.args[0]}: no chapter has this label", pytrace=False)
        if item.path.parent != ROOT / ledger.TEST_FOLDER:
            pytest.fail(
                f"equation marks belong in {ledger.TEST_FOLDER}, where the ledger looks", pytrace=False
            )
        item.user_properties.append((MARKS, _equations(item)))

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
        result = yield
        claims = {by for _, by in _equations(pyfuncitem)} & ledger.METHODS_THAT_MEASURE
        if claims and not any(name == ERRORS for name, _ in pyfuncitem.user_properties):
            pytest.fail(
                f'by="{min(claims)}" compares numbers, but the test recorded none: compare them with '
                "worst_error(observed, expected, rtol=..., why=...)",
                pytrace=False,
            )
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        equations = _equations(item)
        if equations and report.failed:
            headline = _headline(equations)
            file, line, domain = report.location
            report.location = (file, line, f"{domain}: {headline}")
            crash = getattr(report.longrepr, "reprcrash", None)
            if crash is not None and not any(f"equation {label}" in crash.message for label, _ in equations):
                crash.message = f"{headline}: {crash.message}"
        return report

    # In the process that collects (the controller, under xdist).

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties = list(report.user_properties)
        marks = [value for name, value in properties if name == MARKS]
        if not marks:
            return
        name = f"{Path(report.fspath).name}::{report.nodeid.split('::')[1].split('[')[0]}"
        if not report.passed:
            self.not_passed.add(name)
        if report.failed:
            for label, _ in marks[0]:
                self.failed.setdefault(label, []).append(report.nodeid)
        if report.when == "call" and report.passed:
            found = self.measured.setdefault(name, {})
            for rtol, atol, error, why in (value for key, value in properties if key == ERRORS):
                tolerance = ledger.Tolerance.of(rtol, atol)
                new = ledger.Measured(error, (why,))
                found[tolerance] = found[tolerance] | new if tolerance in found else new

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self.config, "workerinput") or not self.measured or self._filtered():
            return
        if session.exitstatus != pytest.ExitCode.OK:
            # It fails already, and after -x or an interrupt the errors are not all there.
            return
        measured = {name: found for name, found in self.measured.items() if name not in self.not_passed}
        if ledger.REWRITING not in os.environ:
            self.differences = ledger.disagreements(measured, ledger.read_table(ROOT))
        if self.differences:
            # No single test can see the errors of all the others, so the run as a whole fails.
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if {mark.test for mark in ledger.read_marks(ROOT)[0]} == measured.keys():
            ledger.write_fresh(ROOT, measured)
            self.written = True

    def _filtered(self) -> bool:
        """Whether the run may have left out some parameters of a test, and their errors with them."""
        option = self.config.option
        names = ("keyword", "markexpr", "deselect", "lf", "failedfirst", "stepwise")
        return any(getattr(option, name, None) for name in names) or any(
            "::" in arg for arg in self.config.args
        )

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        write: Callable[..., None] = terminalreporter.write_line
        if self.failed:
            terminalreporter.section("equations whose check failed", red=True, bold=True)
            for label, tests in sorted(self.failed.items()):
                where = _chapters_of_labels().get(label, "no chapter")
                write(f"equation {label} in {where}: {', '.join(sorted(tests))}", red=True)
        if self.differences:
            terminalreporter.section(f"{ledger.COMMITTED} disagrees with this run", red=True, bold=True)
            for difference in self.differences:
                write(difference, red=True)
            write("If the tests are right, `make ledger` writes the table anew.", red=True)
        if self.written:
            write(f"ledger: {len(self.measured)} equation tests, their errors are in {ledger.FRESH}")
