"""Read the errata (chapters/errata.yml) and the tests that check them, and tell what does not fit together.

A row with the id 3.3 is checked by the functions named `test_erratum_3_3_...` in tests/, and by those that it
lists under `also`. Nothing is imported or run here: the tests are read as text, so that the page
(_ext/xent_errata.py) and the checks (tests/book/test_appendices.py) are quick.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from docutils.nodes import make_id

FILE = Path("chapters/errata.yml")
VERDICTS = {
    "wrong": "Wrong",
    "conditional": "Needs a condition",
    "outdated": "Outdated",
    "holds": "Holds",
}
_NAME = re.compile(r"test_(?:erratum_(\d+)_(\d+|[a-z])(?:_|$)|slip_of_)")


@dataclass(frozen=True)
class Test:
    """A function that checks a row."""

    name: str
    path: str
    row: str | None

    @property
    def place(self) -> str:
        """The identifier that pytest takes."""
        return f"{self.path}::{self.name}"


@dataclass(frozen=True)
class Row:
    """One statement of a source."""

    id: str
    verdict: str
    place: str
    stands: str
    truth: str
    chapter: str
    heading: str
    also: tuple[str, ...]

    @property
    def anchor(self) -> str:
        """The id of its card on the page."""
        return "erratum-" + self.id.replace(".", "-")

    @property
    def target(self) -> str:
        """The section that states it right, as an address next to the page."""
        return f"{self.chapter}.html#{make_id(self.heading)}"


@dataclass(frozen=True)
class Source:
    """One of the texts."""

    id: int
    title: str
    about: str
    pen: str


def read(root: Path) -> tuple[list[Source], list[Row]]:
    """Read the sources and the rows, in the order of the file."""
    data: dict[str, Any] = yaml.safe_load((root / FILE).read_text(encoding="utf-8"))
    sources = [Source(s["id"], s["title"], s["about"], s.get("pen", "")) for s in data["sources"]]
    rows = [
        Row(
            id=str(r["id"]),
            verdict=r["verdict"],
            place=r["place"],
            stands=r["stands"],
            truth=r["truth"],
            chapter=r["section"][0],
            heading=r["section"][1],
            also=tuple(r.get("also", ())),
        )
        for r in data["rows"]
    ]
    return sources, rows


def read_tests(root: Path) -> list[Test]:
    """List the tests of errata, by their names."""
    found = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "def test_erratum_" not in text and "def test_slip_of_" not in text:
            continue
        for node in ast.parse(text).body:
            match = isinstance(node, ast.FunctionDef) and _NAME.match(node.name)
            if match:
                row = f"{match[1]}.{match[2]}" if match[1] else None
                found.append(Test(node.name, path.relative_to(root).as_posix(), row))
    return found


def tests_of(row: Row, tests: list[Test]) -> list[Test]:
    """The tests that check a row."""
    return [test for test in tests if test.row == row.id or test.name in row.also]


def headings(root: Path, chapter: str) -> dict[str, str]:
    """The headings of a chapter with the ids that Sphinx gives them; empty where there is no such chapter."""
    path = root / "chapters" / f"{chapter}.ipynb"
    if not path.exists():
        return {}
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return {title: make_id(title) for title in re.findall(r"^#{1,4} +(.+?)\s*$", text, flags=re.M)}


def problems(root: Path) -> list[str]:
    """List what does not fit: a row without a test, a test without a row, a section that is not there."""
    sources, rows = read(root)
    tests = read_tests(root)
    told = []
    ids = [row.id for row in rows]
    told += [f"{FILE}: the id {i} stands twice" for i in sorted(set(ids)) if ids.count(i) > 1]
    known = {str(source.id) for source in sources}
    names = {test.name for test in tests}
    for row in rows:
        if row.id.split(".")[0] not in known:
            told.append(f"{FILE}: row {row.id} belongs to no source")
        if row.verdict not in VERDICTS:
            told.append(f"{FILE}: row {row.id} has the verdict {row.verdict!r}")
        if not tests_of(row, tests):
            name = f"test_erratum_{row.id.replace('.', '_')}_..."
            told.append(f"{FILE}: row {row.id} has no test; expected {name} in tests/")
        told += [f"{FILE}: row {row.id} names {n}, which is no test" for n in row.also if n not in names]
        if row.heading not in headings(root, row.chapter):
            told.append(
                f"{FILE}: row {row.id} points to '{row.heading}' in {row.chapter}, which is not there"
            )
    claimed = {test.place for row in rows for test in tests_of(row, tests)}
    told += [f"{test.place} checks no row of {FILE}" for test in tests if test.place not in claimed]
    return told
