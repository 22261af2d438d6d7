"""The claims' marks while pytest runs: a sentence that its chapter does not hold fails its test."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

import claims

ROOT = Path(__file__).resolve().parents[2]


@cache
def _problems() -> list[str]:
    return claims.problems(ROOT)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test whose mark cannot be read, or whose sentence is not in the chapter."""
    function = getattr(item, "originalname", item.name)
    place = f"{claims.TESTS}/{item.path.name}:"
    if said := [p for p in _problems() if p.startswith(place) and f": {function}:" in p]:
        pytest.fail("\n".join(said), pytrace=False)


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Name the claim in the report of a failure."""
    if call.when == "call" and call.excinfo is not None:
        for mark in item.iter_markers("claim"):
            item.add_report_section("call", "claim", f"chapter {mark.args[0]}: {mark.args[1]}")
