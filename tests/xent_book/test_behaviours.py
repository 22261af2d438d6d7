"""Every row of the behaviour table against the libraries that are installed."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from xent_book import behaviours
from xent_book.behaviours import Row, _profiles, _registry

ROWS = list(behaviours.rows().values())
# One worker imports TensorFlow, once.
pytestmark = pytest.mark.xdist_group("frameworks")


def agrees(recorded: Any, seen: Any, tolerance: float) -> bool:
    """Whether two observations are the same, up to a relative tolerance of their numbers."""
    if isinstance(recorded, dict) and isinstance(seen, dict):
        return recorded.keys() == seen.keys() and all(
            agrees(v, seen[k], tolerance) for k, v in recorded.items()
        )
    if isinstance(recorded, list) and isinstance(seen, list):
        pairs = zip(recorded, seen, strict=False)
        return len(recorded) == len(seen) and all(agrees(*pair, tolerance) for pair in pairs)
    if isinstance(recorded, bool | str | list | dict) or isinstance(seen, bool | str | list | dict | None):
        return type(recorded) is type(seen) and bool(recorded == seen)
    if math.isnan(recorded) or math.isnan(seen):
        return math.isnan(recorded) and math.isnan(seen)
    # Zero and infinity are behaviours, not measurements: only themselves agree with them.
    return math.isclose(recorded, seen, rel_tol=tolerance, abs_tol=0.0)


def complaint(row: Row, seen: Any) -> str:
    return f"{row.version}: row {row.slug!r} changed: recorded {row.recorded}, seen {seen}"


def test_a_library_is_imported_by_what_is_asked_of_it_and_not_by_pytest() -> None:
    loaded: list[str] = []
    library = _registry.Lazy(lambda: loaded.append("once") or math)
    assert not hasattr(library, "__wrapped__") and not hasattr(library, "_mock_name") and loaded == []
    assert library.pi == math.pi and loaded == ["once"]


def test_the_greeting_is_dropped_and_the_rest_is_heard(capfd: pytest.CaptureFixture[str]) -> None:
    """What C++ libraries write to the terminal while they are imported."""
    descriptors = len(os.listdir("/dev/fd"))
    os.write(2, b"before\n")
    with pytest.raises(OSError, match="broken"), _registry.no_stderr():
        os.write(2, b"greeting\n")
        raise OSError("broken")
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "before\nafter\n"
    assert len(os.listdir("/dev/fd")) == descriptors


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.slug)
def test_a_row_behaves_as_recorded(row: Row, capfd: pytest.CaptureFixture[str]) -> None:
    seen = row.run()
    assert agrees(row.recorded, seen, row.tolerance), complaint(row, seen)
    out, err = capfd.readouterr()
    assert (out, err) == ("", ""), "a probe prints nothing"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.slug)
def test_a_change_of_any_entry_is_noticed(row: Row) -> None:
    assert row.recorded
    for key, value in row.recorded.items():
        for other in changed(value):
            assert not agrees(row.recorded, row.recorded | {key: other}, row.tolerance)
        rest = {k: v for k, v in row.recorded.items() if k != key}
        assert not agrees(row.recorded, rest, row.tolerance)


def changed(value: Any) -> list[Any]:
    """What the entry could turn into with a new release."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, str):
        return [f"{value}!", 0.5]
    if isinstance(value, list):
        return [[*value, 1.0], *[[other, *value[1:]] for other in (changed(value[0]) if value else [])]]
    if math.isnan(value) or math.isinf(value):
        return [0.0, 1.0, -value if math.isinf(value) else math.inf]
    return [value * 1.03 + (value == 0) * 1e-6, -value if value else 1e-12, math.nan, "ValueError"]


def test_a_complaint_names_the_row_and_the_version() -> None:
    row = behaviours.get("torch-all-ignored")
    message = complaint(row, {"mean": 0.0})
    assert message.startswith("PyTorch 2.") and "'torch-all-ignored'" in message and "nan" in message


def test_every_row_is_complete() -> None:
    for row in ROWS:
        assert row.title and row.asks and row.expect and row.instead and row.recorded, row.slug
    assert {row.library for row in ROWS} == set(behaviours.NAMES)
    assert len({row.slug for row in ROWS}) == len(ROWS)


def test_the_table_of_a_group_holds_what_its_rows_saw() -> None:
    table = behaviours.group_table("clipping")
    of_group = [row for row in ROWS if row.group == "clipping"]
    assert [library for library, _ in table.body] == [behaviours.NAMES[row.library] for row in of_group]
    for (_, text), row in zip(table.body, of_group, strict=True):
        title, *seen, instead = text.split("\n")
        assert (title, instead) == (row.title, f"Instead: {row.instead}")
        assert [line.split(": ")[0] for line in seen] == list(row.recorded)


def test_at_a_glance_has_every_answer() -> None:
    table = behaviours.glance_table()
    assert table.header == ["question", *_profiles.COLUMNS]
    columns = [list(behaviours.get(slug).recorded) for slug in _profiles.COLUMNS.values()]
    assert all(column == [question for question, *_ in table.body] for column in columns)
    assert not [answer for line in table.body for answer in line if answer.startswith("other")]


def test_a_cell_names_the_loss_that_answers() -> None:
    """Soft targets and smoothing, asked of the column's own loss: it refuses where the cell names another one."""
    import torch

    import xent

    z = np.array([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]])
    t = np.full((2, 3), 0.1 / 3) + 0.9 * np.eye(3)[:2]
    ce, sparse = torch.nn.functional.cross_entropy, behaviours.keras().losses.SparseCategoricalCrossentropy
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    own: dict[str, dict[str, Callable[[], Any]]] = {
        "PyTorch cross_entropy": {
            "soft targets": lambda: ce(*map(torch.from_numpy, (z, t))),
            "label smoothing": lambda: ce(torch.from_numpy(z), torch.tensor([0, 1]), label_smoothing=0.1),
        },
        "Keras, default": {
            "soft targets": lambda: sparse()(t, p),
            "label smoothing": lambda: sparse(label_smoothing=0.1)([0, 1], p),
        },
        "Keras, from_logits": {
            "soft targets": lambda: sparse(from_logits=True)(t, z),
            "label smoothing": lambda: sparse(from_logits=True, label_smoothing=0.1)([0, 1], z),
        },
        "xent cross_entropy": {
            "soft targets": lambda: xent.cross_entropy(z, t),
            "label smoothing": lambda: xent.cross_entropy(z, [0, 1], label_smoothing=0.1),
        },
    }
    table = behaviours.glance_table()
    cells = {question: dict(zip(table.header[1:], answers, strict=True)) for question, *answers in table.body}
    for column, calls in own.items():
        for question, call in calls.items():
            refuses = isinstance(_registry.attempt(call), str)
            assert refuses == (": " in cells[question][column]), (column, question)


@pytest.mark.parametrize("logits", [True, False])
def test_a_profile_does_not_take_a_claim_for_granted(logits: bool) -> None:
    import xent

    call: Callable[..., Any] = xent.cross_entropy if logits else xent.log_loss
    with pytest.raises(AssertionError, match="does not read what is claimed"):
        _profiles.profile(loss=call, call=call, to=lambda a, *_: a, logits=not logits)


def test_attempt_reports_the_kind_and_the_first_line() -> None:
    def fail() -> None:
        raise ValueError("first line. And more.\nsecond line")

    assert _registry.attempt(fail) == "ValueError: first line"
    assert _registry.attempt(lambda: 3) == 3


def test_unknown_rows_and_wrong_registrations_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no row 'nothing'"):
        behaviours.get("nothing")
    with pytest.raises(ValueError, match="no group 'nothing'"):
        behaviours.group_table("nothing")
    monkeypatch.setattr(_profiles, "torch_new", dict, raising=False)
    with pytest.raises(ValueError, match=re.escape("not both a row and a probe: ['torch-new']")):
        _registry.rows.__wrapped__()


def test_the_rows_follow_the_order_of_the_groups() -> None:
    groups = list(dict.fromkeys(row.group for row in ROWS))
    at = [(groups.index(row.group), [*behaviours.NAMES].index(row.library)) for row in ROWS]
    assert at == sorted(at)
