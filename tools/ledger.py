"""The equation ledger: every labelled equation of the chapters, joined with the tests that check it.

This one file holds the parser, the join and the complaints, so that the pytest plugin
(tests/ledger_plugin.py), the Sphinx extension (_ext/xent_ledger.py) and `make ledger` cannot disagree.
Nothing here executes a notebook or imports a test: chapters are parsed as MyST, tests as syntax trees.

    python tools/ledger.py            complain about orphans and unlabelled equations; exit 1 if there are any
    python tools/ledger.py --write    run the equation tests and write tests/equations/ledger.json
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

METHODS: dict[str, str] = {
    "symbolic": "a computer algebra system transforms one side into the other",
    "reference": "an independent computation, at high precision where digits matter, gives the same numbers",
    "property": "what the statement claims holds on many inputs, chosen or random",
    "montecarlo": "a simulation with a fixed seed lands on the stated value",
    "framework": "PyTorch, Keras or scikit-learn computes the same numbers",
}
# These methods compare numbers: a test that claims one of them has to record how far apart they were.
METHODS_THAT_MEASURE = frozenset({"reference", "montecarlo", "framework"})

LABEL = re.compile(r"eq-[a-z0-9]+(-[a-z0-9]+)*")
TEST_FOLDER = "tests/equations"
COMMITTED = "tests/equations/ledger.json"
FRESH = "_build/ledger.json"
# Set in the environment of a run that is made in order to write the table anew.
REWRITING = "XENT_LEDGER_REWRITING"

# Errors below this are the rounding of double precision, and differ between processors.
ERROR_FLOOR = 1e-14
# A printed bound leaves this factor above what was measured, so that it is true on other processors too.
ERROR_ALLOWANCE = 10.0


class Problem(NamedTuple):
    """Something that breaks the rule "every equation has a test": where it is, and what is wrong."""

    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


# --------------------------------------------------------------------------------------- the equations


@dataclass(frozen=True)
class Equation:
    """A labelled displayed equation, in the order of reading."""

    label: str
    page: str
    cell: int
    tex: str

    @property
    def chapter(self) -> str:
        return self.page.rsplit(".", 1)[0]

    @property
    def where(self) -> str:
        return f"chapters/{self.page}, cell {self.cell}"

    @property
    def one_line(self) -> str:
        """The TeX without its layout, which may change without a change of the statement."""
        return " ".join(self.tex.split())


# Directives whose body is not Markdown, so that dollars in it are no equations.
_VERBATIM = frozenset({"code", "code-block", "code-cell", "sourcecode", "literalinclude", "raw", "mermaid"})
_WRITE_IT_SO = "write $$ ... $$ (eq-slug), with the steps of a derivation in one aligned block"


def _parser() -> Any:
    """MyST's own parser with the book's extensions: what it calls an equation is what the book prints."""
    # Imported here because the plugin and `--help` can do without it.
    from markdown_it.renderer import RendererHTML
    from myst_parser.config.main import MdParserConfig
    from myst_parser.parsers.mdit import create_md_parser

    extensions = {
        "dollarmath",
        "amsmath",
        "colon_fence",
        "deflist",
        "substitution",
        "attrs_inline",
        "attrs_block",
    }
    return create_md_parser(
        MdParserConfig(enable_extensions=extensions, dmath_double_inline=True), RendererHTML
    )


def _split_options(body: str) -> tuple[dict[str, str], str]:
    """Split the body of a directive into its options (both MyST spellings) and its content."""
    options: dict[str, str] = {}
    lines = body.splitlines()
    start = 0
    if lines and lines[0].strip() == "---":
        closing = next((i for i, line in enumerate(lines[1:], 1) if line.strip() == "---"), len(lines))
        heads, start = [f":{line}" for line in lines[1:closing]], closing + 1
    else:
        while start < len(lines) and re.match(r"\s*:[\w-]+:", lines[start]):
            start += 1
        heads = [line.strip() for line in lines[:start]]
    for head in heads:
        if match := re.match(r":([\w-]+):\s*(.*)", head):
            options[match[1]] = match[2].strip()
    return options, "\n".join(lines[start:])


def _displayed(markdown: str, parser: Any) -> Iterator[tuple[str | None, str]]:
    """Yield (label or None, TeX) for each displayed equation, also inside nested directives."""
    for token in parser.parse(markdown):
        if token.type == "math_block_label":
            yield token.info, token.content.strip()
        elif token.type in ("math_block", "amsmath"):
            yield None, token.content.strip()
        elif token.type == "inline":
            # `$$ x $$` inside a paragraph is displayed too, and MyST ignores a label behind it.
            for child in token.children or ():
                if child.type == "math_inline_double":
                    yield None, child.content.strip()
        elif token.type in ("fence", "colon_fence"):
            directive = re.match(r"\{([^}]+)\}", token.info.strip())
            if directive is None or directive[1] in _VERBATIM:
                continue
            options, content = _split_options(token.content)
            if directive[1] == "math":
                yield options.get("label"), content.strip()
            elif directive[1] == "glue:math":
                # Its TeX comes out of a run, so no test can have checked it as printed.
                yield None, token.info.strip()
            elif directive[1] == "eval-rst":
                if ".. math::" in content:
                    yield None, content[content.index(".. math::") :].strip()
            else:
                yield from _displayed(content, parser)


def _markdown_cells(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (number of the cell from 1, its Markdown); a .md page is one cell."""
    if path.suffix == ".md":
        yield 1, path.read_text(encoding="utf-8")
        return
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for number, cell in enumerate(notebook["cells"], 1):
        if cell["cell_type"] == "markdown":
            source = cell["source"]
            yield number, source if isinstance(source, str) else "".join(source)


def chapter_files(root: Path) -> list[Path]:
    """The pages that may state an equation, in the order of reading."""
    folder = root / "chapters"
    return sorted([*folder.glob("*.ipynb"), *folder.glob("*.md")])


def read_equations(root: Path) -> tuple[list[Equation], list[Problem]]:
    """Collect the labelled equations of all chapters, and complain about those without a sound label."""
    parser = _parser()
    equations: dict[str, Equation] = {}
    problems: list[Problem] = []
    for path in chapter_files(root):
        for cell, markdown in _markdown_cells(path):
            where = f"chapters/{path.name}, cell {cell}"
            # Most cells have no displayed equation; the parser is for those that may.
            if "$$" not in markdown and "\\begin" not in markdown and "math" not in markdown:
                continue
            for label, tex in _displayed(markdown, parser):
                head = " ".join(tex.split())[:60].rstrip()
                if label is None:
                    problems.append(
                        Problem(where, f"displayed equation without a label: {head} ({_WRITE_IT_SO})")
                    )
                elif not LABEL.fullmatch(label):
                    problems.append(
                        Problem(
                            where,
                            f"label {label!r} is not of the form eq-slug, lower case with hyphens: {head}",
                        )
                    )
                elif label in equations:
                    first = equations[label]
                    problems.append(
                        Problem(
                            where,
                            f"label {label} is taken by {first.where}: {head}",
                        )
                    )
                else:
                    equations[label] = Equation(label, path.name, cell, tex)
    return list(equations.values()), problems


def chapter_titles(root: Path) -> dict[str, str]:
    """The first heading of each chapter, as plain text."""
    titles: dict[str, str] = {}
    for path in chapter_files(root):
        lines = (line for _, markdown in _markdown_cells(path) for line in markdown.splitlines())
        titles[path.stem] = next((line[2:].strip() for line in lines if line.startswith("# ")), path.stem)
    return titles


# ------------------------------------------------------------------------------------------- the marks


@dataclass(frozen=True)
class Mark:
    """One `@pytest.mark.equation(label, by=...)` on one test function."""

    label: str
    by: str
    test: str
    line: int

    @property
    def where(self) -> str:
        return f"{TEST_FOLDER}/{self.test.split('::')[0]}:{self.line}"


def mark_error(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Say what is wrong with the arguments of an equation mark, or None."""
    usage = '@pytest.mark.equation("eq-slug", by="symbolic")'
    if len(args) != 1 or not isinstance(args[0], str):
        return f"the equation mark takes one label, a string: {usage}"
    if not LABEL.fullmatch(args[0]):
        return f"label {args[0]!r} is not of the form eq-slug, lower case with hyphens"
    if unknown := sorted(set(kwargs) - {"by"}):
        return f"the equation mark for {args[0]} has no argument {unknown[0]!r}: {usage}"
    if kwargs.get("by") not in METHODS:
        return f"the equation mark for {args[0]} has by={kwargs.get('by')!r}; not one of {', '.join(METHODS)}"
    return None


def _is_equation_mark(node: ast.AST) -> bool:
    """Whether the node is `pytest.mark.equation` or `mark.equation`."""
    if not (isinstance(node, ast.Attribute) and node.attr == "equation"):
        return False
    owner = node.value
    return (isinstance(owner, ast.Attribute) and owner.attr == "mark") or (
        isinstance(owner, ast.Name) and owner.id == "mark"
    )


def read_marks(root: Path) -> tuple[list[Mark], list[Problem]]:
    """Collect the equation marks of tests/equations without importing the tests.

    The build of the book reads them as well, where pytest is not at hand; so a mark has to be
    readable: a decorator of a test function, with literal arguments.
    """
    marks: list[Mark] = []
    problems: list[Problem] = []
    for path in sorted((root / TEST_FOLDER).glob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        decorators: set[ast.AST] = set()
        for function in tree.body:
            if not isinstance(function, ast.FunctionDef) or not function.name.startswith("test"):
                continue
            for decorator in function.decorator_list:
                if not (isinstance(decorator, ast.Call) and _is_equation_mark(decorator.func)):
                    continue
                decorators.add(decorator.func)
                where = f"{TEST_FOLDER}/{path.name}:{decorator.lineno}"
                try:
                    args = tuple(ast.literal_eval(argument) for argument in decorator.args)
                    kwargs = {word.arg or "**": ast.literal_eval(word.value) for word in decorator.keywords}
                except ValueError:
                    problems.append(Problem(where, f"the equation mark of {function.name} is not literal"))
                    continue
                if error := mark_error(args, kwargs):
                    problems.append(Problem(where, error))
                else:
                    test = f"{path.name}::{function.name}"
                    marks.append(Mark(args[0], kwargs["by"], test, decorator.lineno))
        for node in ast.walk(tree):
            if _is_equation_mark(node) and node not in decorators:
                where = f"{TEST_FOLDER}/{path.name}:{node.lineno}"  # type: ignore[attr-defined]
                message = "an equation mark has to be a called decorator of a test function at the top level"
                problems.append(Problem(where, message))
    return marks, problems


def join_problems(equations: Iterable[Equation], marks: Iterable[Mark]) -> list[Problem]:
    """The orphans on either side: equations without a test, marks without an equation."""
    equations, marks = list(equations), list(marks)
    tested = {mark.label for mark in marks}
    stated = {equation.label for equation in equations}
    problems = [
        Problem(
            equation.where,
            f"equation {equation.label} has no test: no function in {TEST_FOLDER} is marked "
            f'@pytest.mark.equation("{equation.label}", by=...)',
        )
        for equation in equations
        if equation.label not in tested
    ]
    for mark in marks:
        if mark.label not in stated:
            function = mark.test.split("::")[1]
            problems.append(
                Problem(mark.where, f"{function} checks {mark.label}, a label that no chapter has")
            )
    seen: set[tuple[str, str]] = set()
    for mark in marks:
        if (mark.label, mark.test) in seen:
            problems.append(Problem(mark.where, f"{mark.test.split('::')[1]} carries {mark.label} twice"))
        seen.add((mark.label, mark.test))
    return problems


def all_problems(root: Path) -> list[Problem]:
    """Everything that is wrong between the chapters and their tests, without running anything."""
    equations, problems = read_equations(root)
    marks, mark_problems = read_marks(root)
    return [*problems, *mark_problems, *join_problems(equations, marks)]


# ------------------------------------------------------------------------------------------- the table
#
# The committed table must not change with the machine. Labels, tests and methods come from the sources, and
# so does the TeX: a test holds a transcription of its equation, and the table remembers of which statement.
# A tolerance is what the test asked for, to two digits. An error is printed as a bound: the next power of
# ten above ten times what was measured, never below 1e-14. Every complete run of the tests holds its own
# errors against the committed bounds, so the bound on the page is itself a checked claim.

Table = dict[str, dict[str, Any]]


class Tolerance(NamedTuple):
    """What a comparison allowed, rounded for printing; "0" where a part was not given."""

    rtol: str
    atol: str

    @classmethod
    def of(cls, rtol: float, atol: float) -> Tolerance:
        return cls(f"{rtol:.2g}", f"{atol:.2g}")

    @property
    def unit(self) -> str:
        """The number that an error is measured in: rtol if there is one, else atol."""
        return self.rtol if self.rtol != "0" else self.atol


class Measured(NamedTuple):
    """The worst error of one test under one tolerance, in the tolerance's unit, and the reasons given."""

    error: float
    why: tuple[str, ...]

    def __or__(self, other: Measured) -> Measured:  # type: ignore[override]
        return Measured(max(self.error, other.error), tuple(sorted({*self.why, *other.why})))


Measurements = dict[str, dict[Tolerance, Measured]]


def error_bound(error: float, tolerance: Tolerance) -> str:
    """Turn a measured error into the bound that the ledger prints.

    >>> error_bound(3.1e-16, Tolerance("1e-12", "0"))
    '1e-14'
    >>> error_bound(2.5e-10, Tolerance("1e-07", "0"))
    '1e-08'
    >>> error_bound(2.5e-08, Tolerance("1e-07", "0"))
    '1e-07'
    >>> error_bound(0.0, Tolerance("0", "0"))
    '0'
    """
    allowed = float(tolerance.unit)
    if allowed == 0.0:
        return "0"
    # The tiny term keeps a value that is a power of ten from slipping to the next one in log10's rounding.
    exponent = math.ceil(math.log10(max(error * ERROR_ALLOWANCE, ERROR_FLOOR)) - 1e-9)
    bound = 10.0**exponent
    return tolerance.unit if bound >= allowed else f"{bound:.0e}"


def _kept_bound(error: float, tolerance: Tolerance, committed: str | None) -> str:
    """Keep a committed bound that is still true and not loose, so that another machine writes no diff."""
    bound = error_bound(error, tolerance)
    if committed is None or float(committed) > 10 * float(bound) or error > float(committed):
        return bound
    return committed


def _checks(test: Mapping[str, Any]) -> dict[Tolerance, Mapping[str, Any]]:
    return {Tolerance(check["rtol"], check["atol"]): check for check in test["checks"]}


def build_table(
    equations: Iterable[Equation],
    marks: Iterable[Mark],
    measured: Measurements,
    committed: Table | None = None,
) -> Table:
    """Join equations, marks and what a run measured into the table that is committed."""
    table: Table = {}
    marks = list(marks)
    for equation in equations:
        tests: dict[str, Any] = {}
        for mark in sorted((m for m in marks if m.label == equation.label), key=lambda m: (m.test, m.by)):
            old = ((committed or {}).get(equation.label) or {"tests": {}})["tests"].get(mark.test)
            known = _checks(old) if old else {}
            tests[mark.test] = {
                "by": mark.by,
                "checks": [
                    {
                        "rtol": tolerance.rtol,
                        "atol": tolerance.atol,
                        "error": _kept_bound(
                            found.error, tolerance, known[tolerance]["error"] if tolerance in known else None
                        ),
                        "why": list(found.why),
                    }
                    for tolerance, found in sorted(measured.get(mark.test, {}).items())
                ],
            }
        table[equation.label] = {"chapter": equation.chapter, "tex": equation.one_line, "tests": tests}
    return table


def out_of_date(equations: Iterable[Equation], marks: Iterable[Mark], committed: Table) -> list[str]:
    """Differences between the sources and the committed table that need no run to be seen."""
    fresh = build_table(equations, marks, {})
    differences = [f"{label}: not in the table" for label in fresh if label not in committed]
    differences += [f"{label}: in the table, but in no chapter" for label in committed if label not in fresh]
    for label in fresh.keys() & committed.keys():
        new, old = fresh[label], committed[label]
        if new["chapter"] != old["chapter"]:
            differences.append(f"{label}: in chapter {new['chapter']}, the table says {old['chapter']}")
        if new["tex"] != old["tex"]:
            # No program reads TeX well enough to test it, so a person has to look when it changes.
            differences.append(
                f"{label}: the statement changed since the table was written; see that its tests check "
                f"the new one: {new['tex']}"
            )
        for test in sorted(new["tests"].keys() | old["tests"].keys()):
            if test not in old["tests"]:
                differences.append(f"{label}: {test} is not in the table")
            elif test not in new["tests"]:
                differences.append(f"{label}: the table names {test}, which does not check it")
            elif new["tests"][test]["by"] != old["tests"][test]["by"]:
                by = new["tests"][test]["by"], old["tests"][test]["by"]
                differences.append(f"{label}: {test} is by {by[0]!r}, the table says {by[1]!r}")
    if not differences and list(fresh) != list(committed):
        differences.append("the equations stand in another order than in the chapters")
    return sorted(differences)


def disagreements(measured: Measurements, committed: Table) -> list[str]:
    """Where a run contradicts what the committed table says of the tests that the run covered."""
    differences: set[str] = set()
    for label, row in committed.items():
        for test, entry in row["tests"].items():
            if test not in measured:
                continue
            known, found = _checks(entry), measured[test]
            for tolerance in known.keys() - found.keys():
                differences.add(f"{label}: {test} no longer compares within {describe_tolerance(tolerance)}")
            for tolerance in found.keys() - known.keys():
                differences.add(
                    f"{label}: {test} compares within {describe_tolerance(tolerance)}, a new tolerance"
                )
            for tolerance in found.keys() & known.keys():
                bound = known[tolerance]["error"]
                # A bound that is the tolerance itself was held against its exact value by the test.
                if bound != tolerance.unit and found[tolerance].error > float(bound):
                    differences.add(
                        f"{label}: {test} has an error of {found[tolerance].error:.1e}, the table promises "
                        f"less than {bound}"
                    )
                if list(found[tolerance].why) != known[tolerance]["why"]:
                    differences.add(
                        f"{label}: {test} gives another reason for {describe_tolerance(tolerance)}"
                    )
    return sorted(differences)


def describe_tolerance(tolerance: Tolerance) -> str:
    """The tolerance in words.

    >>> describe_tolerance(Tolerance("1e-12", "0"))
    'rtol 1e-12'
    >>> describe_tolerance(Tolerance("0", "0"))
    'no tolerance'
    """
    parts = [f"{name} {value}" for name, value in tolerance._asdict().items() if value != "0"]
    return " + ".join(parts) or "no tolerance"


def describe_error(check: Mapping[str, Any]) -> str:
    """The bound on an error in words, as the page prints it.

    >>> describe_error({"rtol": "1e-12", "atol": "0", "error": "1e-14"})
    'relative error below 1e-14'
    >>> describe_error({"rtol": "0", "atol": "0.01", "error": "0.01"})
    'absolute error within 0.01'
    >>> describe_error({"rtol": "0", "atol": "0", "error": "0"})
    'equal to the last bit'
    """
    tolerance = Tolerance(check["rtol"], check["atol"])
    if tolerance.unit == "0":
        return "equal to the last bit"
    kind = "relative" if tolerance.rtol != "0" else "absolute"
    return f"{kind} error {'within' if check['error'] == tolerance.unit else 'below'} {check['error']}"


def describe_allowance(check: Mapping[str, Any]) -> str:
    """What the test allowed and why, in words.

    >>> describe_allowance({"rtol": "1e-12", "atol": "1e-15", "why": ["a few roundings"]})
    'rtol 1e-12 + atol 1e-15, a few roundings'
    """
    return f"{describe_tolerance(Tolerance(check['rtol'], check['atol']))}, {'; '.join(check['why'])}"


def read_table(root: Path) -> Table:
    """The committed table; empty if there is none yet."""
    path = root / COMMITTED
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def dump(table: Mapping[str, Any]) -> str:
    """The one way a table is written, so that equal tables are equal files."""
    return json.dumps(table, indent=1, ensure_ascii=False) + "\n"


def write_fresh(root: Path, measured: Measurements) -> None:
    """Write what a complete run measured, for `make ledger` and for whoever wants the unrounded errors."""
    rows = {
        test: [
            {
                "rtol": tolerance.rtol,
                "atol": tolerance.atol,
                "error": f"{found.error:.2e}",
                "why": list(found.why),
            }
            for tolerance, found in sorted(by_tolerance.items())
        ]
        for test, by_tolerance in sorted(measured.items())
    }
    marks, _ = read_marks(root)
    equations, _ = read_equations(root)
    ledger = {
        equation.label: {
            mark.test: {"by": mark.by, "outcome": "passed", "checks": rows[mark.test]}
            for mark in sorted(marks, key=lambda mark: mark.test)
            if mark.label == equation.label and mark.test in rows
        }
        for equation in equations
    }
    path = root / FRESH
    path.parent.mkdir(exist_ok=True)
    path.write_text(dump(ledger), encoding="utf-8")


def read_fresh(root: Path) -> Measurements:
    """Read back what `write_fresh` wrote."""
    measured: Measurements = {}
    for tests in json.loads((root / FRESH).read_text(encoding="utf-8")).values():
        for test, entry in tests.items():
            measured[test] = {
                Tolerance(check["rtol"], check["atol"]): Measured(float(check["error"]), tuple(check["why"]))
                for check in entry["checks"]
            }
    return measured


# ----------------------------------------------------------------------------------------- the command


def write_table(root: Path) -> int:
    """Run the equation tests and write the committed table from what they measured."""
    fresh = root / FRESH
    fresh.unlink(missing_ok=True)
    # Neither test measures anything, and both may fail until the table and the variants have been written.
    ignored = [f"--ignore={TEST_FOLDER}/test_{name}.py" for name in ("ledger", "variants")]
    command = [sys.executable, "-m", "pytest", TEST_FOLDER, "-q", *ignored]
    # This checkout's package comes first, whatever is installed; the old table is about to be replaced, so
    # the run does not hold its errors against it. The plugin writes the fresh file if every test passed.
    search = [str(root / "code"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(search), REWRITING: "1"}
    subprocess.run(command, cwd=root, env=environment, check=False)
    if not fresh.exists():
        print("ledger: not written, because the run above was not complete or did not pass", file=sys.stderr)
        return 1
    equations, _ = read_equations(root)
    marks, _ = read_marks(root)
    table = build_table(equations, marks, read_fresh(root), read_table(root))
    (root / COMMITTED).write_text(dump(table), encoding="utf-8")
    print(f"ledger: wrote {COMMITTED}: {len(table)} equations, {len({mark.test for mark in marks})} tests")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    options = argparse.ArgumentParser(description="Join the book's equations with the tests that check them.")
    options.add_argument("--write", action="store_true", help=f"run the equation tests and write {COMMITTED}")
    chosen = options.parse_args(arguments)
    root = Path(__file__).resolve().parent.parent
    if chosen.write and (status := write_table(root)):
        return status
    problems = all_problems(root)
    for problem in problems:
        print(f"ledger: {problem}", file=sys.stderr)
    if not problems:
        equations, _ = read_equations(root)
        marks, _ = read_marks(root)
        print(
            f"ledger: {len(equations)} equations, each with a test; {len(marks)} marks, each with an equation"
        )
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
