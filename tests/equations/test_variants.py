"""Every transcription of an equation can fail: with a mistake planted in it, its test does.

The mistake stands above the statement that transcribes the equation, and occurs in it once:

    # wrong[eq-bce]: y * np.log(p) -> y * p

The label may be left out where the test has one mark; in a helper it is needed. pytest runs a copy of the
test's file with the mistake in it, which has to fail by an assertion: another error is the mistake's own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import marks

ROOT = Path(__file__).resolve().parents[2]
MARKS = [mark for mark in marks.read_marks(ROOT)[0] if mark.kind == "equation"]
FILES = sorted({ROOT / mark.path for mark in MARKS})
WRONG = re.compile(r"^ *# wrong(?:\[(?P<label>[\w-]+)\])?: (?P<right>.+?) -> (?P<wrong>.+)$", re.MULTILINE)


def variants(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield label, place and planted text of a file's mistakes; ValueError says why one cannot be planted."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines(keepends=True)
    statements = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    labels: dict[int, list[str]] = {}  # the labels of the test that spans a line
    for test in (node for node in statements if isinstance(node, ast.FunctionDef)):
        own = [mark.of for mark in MARKS if mark.name == f"{path.name}::{test.name}"]
        labels |= dict.fromkeys(range(test.lineno, (test.end_lineno or 0) + 1), own) if own else {}
    for match in WRONG.finditer(source):
        line = source.count("\n", 0, match.start()) + 1
        label = match["label"] or ",".join(labels.get(line, []))
        where = f"{path.name}:{line}: {label}"
        if not any(label in found for found in labels.values()):
            raise ValueError(f"{where}: the comment's label is that of no test in the file, or of several")
        code = next(n for n, text in enumerate(lines, 1) if n > line and not text.lstrip().startswith("#"))
        around = [s for s in statements if s.lineno <= code <= (s.end_lineno or 0)]
        end = min(around, key=lambda s: (s.end_lineno or 0) - s.lineno).end_lineno
        before, region = "".join(lines[: code - 1]), "".join(lines[code - 1 : end])
        # A formatter may break a line at white space, or where there was none.
        right = re.compile(r"\s*".join(map(re.escape, match["right"].split())))
        if (count := len(right.findall(region))) != 1:
            raise ValueError(f"{where}: {match['right']!r} stands {count} times in the statement, not once")
        planted = right.sub(lambda _, wrong=match["wrong"]: wrong, region)
        yield label, where, before + planted + "".join(lines[end:])


class Rejections:
    """A plugin for the inner run: which planted files were rejected, and what else went wrong."""

    def __init__(self) -> None:
        self.rejected: set[str] = set()
        self.broken: dict[str, str] = {}

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if item.path.parent.name in self.rejected:
            pytest.skip("one set of parameters is enough")

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[Any]) -> None:
        if call.excinfo is not None and not call.excinfo.errisinstance(pytest.skip.Exception):
            label = item.path.parent.name
            if call.excinfo.errisinstance((AssertionError, pytest.fail.Exception)):
                self.rejected.add(label)
            else:
                self.broken[label] = repr(call.excinfo.value)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.broken[Path(report.fspath).parent.name] = str(report.longrepr)


def accepted(path: Path, folder: Path, conftest: object) -> list[str]:
    """Run each variant of a test's file, and say which of them its tests do not reject."""
    nodes, places = [], {}
    for label, where, planted in variants(path):
        copy = folder / label / path.name
        copy.parent.mkdir()
        # Some files ask where they lie.
        copy.write_text(planted.replace("__file__", repr(str(path))), encoding="utf-8")
        nodes += [f"{copy}::{m.function}" for m in MARKS if (m.of, ROOT / m.path) == (label, path)]
        places[label] = where
    if not nodes:  # the inner run would take all tests
        return []
    seen, options = Rejections(), ["--assert=plain", "-p", "no:terminal", "-p", "no:cacheprovider"]
    configuration = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder)]
    pytest.main([*options, *configuration, *nodes], plugins=[seen, conftest])
    return [
        f"{where}: the wrong variant "
        + (
            f"ends in {seen.broken[label]}"
            if label in seen.broken
            else "passes the test: the test is too weak"
        )
        for label, where in places.items()
        if label not in seen.rejected
    ]


@pytest.mark.slow  # each equation's test once more
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_wrong_variant_is_rejected(
    path: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)  # the inner run would refuse some, and reject nothing
    conftest = request.config.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
    said = accepted(path, tmp_path, conftest)
    assert not said, "\n".join(said)


def test_every_transcribed_equation_has_a_wrong_variant() -> None:
    found = [label for path in FILES for label, _, _ in variants(path)]
    missing = {mark.of for mark in MARKS} - marks.read_from_the_page(ROOT).keys() - set(found)
    assert not missing, f"no `# wrong[label]: right -> wrong` above a transcription of: {sorted(missing)}"
    assert len(found) == len(set(found)), "two wrong variants of one equation"
