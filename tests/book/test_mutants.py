"""The table of the mutants: what it says stands in the package. `make mutants` tests the rest."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE: dict[str, Any] = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text(encoding="utf-8"))


def functions(tree: ast.AST, scope: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Every function of a module by its name, Class.method for a method."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield f"{scope}{node.name}", node
            yield from functions(node, f"{scope}{node.name}.")


def lines_of(module: str, function: str) -> set[str]:
    """The lines of the functions of a name, without their indentation; none if the module has none."""
    found: set[str] = set()
    for name in TABLE["modules"][module]["files"]:
        source = (ROOT / name).read_text(encoding="utf-8")
        node = dict(functions(ast.parse(source))).get(function)
        if isinstance(node, ast.FunctionDef):
            found |= {line.strip() for line in source.split("\n")[node.lineno - 1 : node.end_lineno]}
    return found


def test_the_modules_and_their_tests_exist() -> None:
    for module, entry in TABLE["modules"].items():
        for name in (*entry["files"], *entry["tests"]):
            assert (ROOT / name).exists(), f"{module}: {name}"
    assert 0.9 <= TABLE["least_killed"] < 1


@pytest.mark.parametrize("module", list(TABLE["modules"]))
def test_what_survives_stands_in_the_package_and_has_a_reason(module: str) -> None:
    for entry in TABLE.get("survivors", []):
        if entry["module"] != module:
            continue
        function, reason = entry["function"], entry["reason"]
        assert len(reason.split()) >= 4 and reason.endswith("."), f"{module}.{function}: {reason!r}"
        lines = lines_of(module, function)
        assert lines, f"{module} has no function {function}"
        for was, now in entry["changes"]:
            assert was != now
            missing = [line for line in was.split("\n") if line not in lines]
            assert not missing, f"{module}.{function}: {missing} is not there (any more): run make mutants"


def test_every_survivor_is_of_a_module_that_is_tested() -> None:
    assert {entry["module"] for entry in TABLE.get("survivors", [])} <= set(TABLE["modules"])
