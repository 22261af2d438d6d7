"""The planted mistakes of the equations: one for each label, which the label's test has to reject.

`tests/equations/variants.json` says for each equation where its test transcribes it, as it stands there
(`right`), and with a mistake (`wrong`): a sign, a missing logarithm, a swapped index, a factor. This module
reads the table, finds the places, and makes the module with the mistake in memory;
`tests/equations/test_variants.py` runs it.

    python tools/variants.py    # which labels have no variant, which variants are stale; runs nothing
"""

from __future__ import annotations

import ast
import itertools
import json
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

import ledger

TABLE = "tests/equations/variants.json"


@dataclass(frozen=True)
class Variant:
    """One planted mistake."""

    label: str
    test: str  # file::function, as the ledger names it
    right: str
    wrong: str
    where: str  # the function of the test's file in which `right` stands: the test, or a helper of it

    @property
    def file(self) -> str:
        return self.test.split("::")[0]

    @property
    def function(self) -> str:
        return self.test.split("::")[1]


def read_variants(root: Path) -> dict[str, Variant]:
    """Label -> variant, from the committed table."""
    table = json.loads((root / TABLE).read_text(encoding="utf-8"))
    return {
        label: Variant(
            label, row["test"], row["right"], row["wrong"], row.get("in", row["test"].split("::")[1])
        )
        for label, row in table.items()
    }


@cache
def _places(source: str) -> dict[str, tuple[int, int]]:
    """The offsets between which each function of a module stands, without its decorators."""
    starts = [0, *itertools.accumulate(map(len, source.splitlines(keepends=True)))]
    return {
        node.name: (starts[node.lineno - 1], starts[node.end_lineno or node.lineno])
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
    }


def plant(variant: Variant, source: str) -> str:
    """The source of a test's file with the mistake in it; ValueError says why that is not possible."""
    name = f"{variant.label}: {variant.file}::{variant.where}"
    if variant.where not in _places(source):
        raise ValueError(f"{name} does not exist")
    start, end = _places(source)[variant.where]
    count = source.count(variant.right, start, end)
    if count != 1:
        raise ValueError(f"{name} has {variant.right!r} {count} times, not once: the variant is stale")
    function = source[start:end]
    planted = function.replace(variant.right, variant.wrong)
    try:
        changed = ast.dump(ast.parse(planted)) != ast.dump(ast.parse(function))
    except SyntaxError as error:
        raise ValueError(f"{name} with {variant.wrong!r} is no Python: {error.msg}") from error
    if not changed:
        raise ValueError(f"{name}: {variant.wrong!r} means the same as {variant.right!r}")
    return source[:start] + planted + source[end:]


def load(path: Path, source: str) -> ModuleType:
    """Execute the source of a test's file as a module that nothing else sees."""
    module = ModuleType(f"planted_{path.stem}")
    module.__file__ = str(path)
    # The flags of this file's own __future__ imports are not the test's.
    exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
    return module


def problems(root: Path, variants: dict[str, Variant]) -> list[str]:
    """What is wrong with the variants, found without running a test."""
    labels = [equation.label for equation in ledger.read_equations(root)[0]]
    marked = {(mark.label, mark.test) for mark in ledger.read_marks(root)[0]}
    found = [f"{label}: no variant in {TABLE}" for label in labels if label not in variants]
    for label, variant in variants.items():
        if label not in labels:
            found.append(f"{label}: a variant, but no chapter has the equation")
        elif (label, variant.test) not in marked:
            found.append(f"{label}: {variant.test} does not check this equation")
        else:
            try:
                source = (root / ledger.TEST_FOLDER / variant.file).read_text(encoding="utf-8")
                plant(variant, source)
            except ValueError as error:
                found.append(str(error))
    return found


def main() -> int:
    """The command line."""
    root = Path(__file__).resolve().parent.parent
    variants = read_variants(root)
    found = problems(root, variants)
    for problem in found:
        print(f"variants: {problem}", file=sys.stderr)
    if not found:
        print(f"variants: {len(variants)} equations, each with a planted mistake that has its place")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
