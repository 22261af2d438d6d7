"""The ledger: every displayed equation of the chapters, joined with the tests that check it.

Chapters are read as text and tests as syntax trees; nothing is executed. pytest (tests/equations/conftest.py)
and the build ask the same functions, so that they cannot disagree: what `problems` returns fails the one and
is a warning, hence a failure, in the other. The directive `{equation-ledger}` renders the page. Its errors
are those of the last `make ledger`, which writes tests/equations/errors.json.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

TESTS = "tests/equations"
ERRORS = f"{TESTS}/errors.json"
# Its table ROWS has an entry for each equation that a program reads from the page.
READ = f"{TESTS}/test_read.py"
# How a test checks; chapters/equations.md says what each means.
METHODS = ("symbolic", "reference", "property", "montecarlo", "framework")
# These compare numbers: a test that claims one of them has to record how far apart they were.
MEASURING = {"reference", "montecarlo", "framework"}
USAGE = '@pytest.mark.equation("eq-slug", by="...") with by one of ' + ", ".join(METHODS)

LABEL = re.compile(r"eq-[a-z0-9]+(-[a-z0-9]+)*")
DISPLAYED = re.compile(r"\$\$(?P<tex>.+?)\$\$(?:[ \t]*\((?P<label>[^)\s]*)\))?", re.DOTALL)
_FENCE = re.compile(r"[ \t>]*(?P<fence>`{3,}|~{3,}|:{3,})(?P<info>.*)")
_MARKDOWN_INSIDE = re.compile(r"\{(?!code|sourcecode|literalinclude|raw|mermaid)")
_NO_MARKDOWN = re.compile(r"(?P<tick>`+)[^`\n]+(?P=tick)|<!--.*?-->|\\\$", re.DOTALL)
# The other ways to display an equation. One way is enough, and the only one that is read.
_OTHERWISE = re.compile(r"\\begin\{(?:align|equation|gather|multline).*|\{(?:glue:)?math\}.*|\.\. math::.*")


class Equation(NamedTuple):
    """A labelled equation, where it stands and what it says."""

    label: str
    chapter: str
    where: str  # such as "chapters/01_binary.ipynb, cell 3"
    tex: str


class Test(NamedTuple):
    """One mark on one test function."""

    label: str
    by: str
    file: str
    function: str
    line: int
    quoted: str | None  # the statement, as the docstring quotes it

    @property
    def name(self) -> str:
        return f"{self.file}::{self.function}"

    @property
    def where(self) -> str:
        return f"{TESTS}/{self.file}:{self.line}"


def markdown_cells(root: Path) -> Iterator[tuple[Path, int, str]]:
    """Yield (chapter, number of the cell from 1, its Markdown) in the order of reading."""
    folder = root / "chapters"
    for path in sorted([*folder.glob("*.ipynb"), *folder.glob("*.md")]):
        text = path.read_text(encoding="utf-8")
        page = {"cells": [{"cell_type": "markdown", "source": text}]}
        for number, cell in enumerate((json.loads(text) if path.suffix == ".ipynb" else page)["cells"], 1):
            if cell["cell_type"] == "markdown":
                yield path, number, "".join(cell["source"])


def without_code(markdown: str) -> str:
    """Leave out where dollars are no mathematics: blocks of code, code in a line, comments."""
    kept: list[str] = []
    inside: list[str] = []  # the fences of the directives around, whose bodies are Markdown
    code = ""
    for line in markdown.splitlines():
        match = _FENCE.match(line)
        fence, info = (match["fence"], match["info"].strip()) if match else ("", "")
        if code:
            code = "" if fence.startswith(code) and not info else code
        elif fence and not info and inside and fence.startswith(inside[-1]):
            inside.pop()
        elif fence and _MARKDOWN_INSIDE.match(info):
            inside.append(fence)
            kept.append(info)
        elif fence:
            code = fence
        else:
            kept.append(line)
    return _NO_MARKDOWN.sub("", "\n".join(kept))


def chapter_titles(root: Path) -> dict[str, str]:
    """Return the first heading of each chapter."""
    titles: dict[str, str] = {}
    for path, _, markdown in markdown_cells(root):
        if heading := re.search(r"^# (.+)$", markdown, re.MULTILINE):
            titles.setdefault(path.stem, heading[1].strip())
    return titles


def read_equations(root: Path) -> tuple[list[Equation], list[str]]:
    """Return the labelled equations of all chapters, and what is wrong with the others."""
    found: dict[str, Equation] = {}
    wrong: list[str] = []
    for path, number, markdown in markdown_cells(root):
        where = f"chapters/{path.name}, cell {number}"
        text = without_code(markdown)
        for match in DISPLAYED.finditer(text):
            label, tex = match["label"], " ".join(match["tex"].split())
            if label is None or not LABEL.fullmatch(label):
                given = "without a label" if label is None else f"with the label {label!r}"
                wrong.append(f"{where}: displayed equation {given}: {tex[:60]} (write $$ ... $$ (eq-slug))")
            elif label in found:
                wrong.append(f"{where}: label {label} is taken by {found[label].where}: {tex[:60]}")
            else:
                found[label] = Equation(label, path.stem, where, match["tex"].strip())
        wrong += [
            f"{where}: displayed equation without a label: {other[:60]} (write $$ ... $$ (eq-slug))"
            for other in _OTHERWISE.findall(DISPLAYED.sub("", text))
        ]
    return list(found.values()), wrong


def _is_mark(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "equation" and "mark" in ast.unparse(node.value)


def read_tests(root: Path) -> tuple[list[Test], list[str]]:
    """Return the marks of the equation tests, and what is wrong with those that cannot be read."""
    found: list[Test] = []
    wrong: list[str] = []
    for path in sorted((root / TESTS).glob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls: set[ast.AST] = set()
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        for function in (f for f in functions if f.name.startswith("test")):
            quoted = {m["label"]: m["tex"] for m in DISPLAYED.finditer(ast.get_docstring(function) or "")}
            for call in function.decorator_list:
                if not (isinstance(call, ast.Call) and _is_mark(call.func)):
                    continue
                calls.add(call.func)
                words = [*call.args, *(keyword.value for keyword in call.keywords)]
                given = [word.value if isinstance(word, ast.Constant) else None for word in words]
                if [keyword.arg for keyword in call.keywords] != ["by"] or None in given or len(given) != 2:
                    wrong.append(f"{TESTS}/{path.name}:{call.lineno}: {function.name}: write {USAGE}")
                    continue
                label, by = map(str, given)
                found.append(Test(label, by, path.name, function.name, call.lineno, quoted.get(label)))
        astray = [node for node in ast.walk(tree) if _is_mark(node) and node not in calls]
        lines = [f"{TESTS}/{path.name}:{getattr(node, 'lineno', 0)}" for node in astray]
        wrong += [f"{line}: the mark decorates a test at the top level of the file" for line in lines]
    return found, wrong


def read_from_the_page(root: Path) -> dict[str, tuple[int, int]]:
    """Return label -> (line, parts left out) of the equations that test_read.py evaluates as printed."""
    path = root / READ
    tree = ast.parse(path.read_text(encoding="utf-8") if path.exists() else "")
    tables = [n.value for n in tree.body if isinstance(n, ast.AnnAssign) and ast.unparse(n.target) == "ROWS"]
    rows = [row for t in tables if isinstance(t, ast.Dict) for row in zip(t.keys, t.values, strict=True)]
    left_out = [len(value.elts) - 1 if isinstance(value, ast.Tuple) else 0 for _, value in rows]
    keys = [key for key, _ in rows if isinstance(key, ast.Constant)]
    return {str(key.value): (key.lineno, n) for key, n in zip(keys, left_out, strict=True)}


def objection(test: Test, equations: dict[str, Equation]) -> str | None:
    """Say what is wrong between a test and the equation that its mark names, or None."""
    stated = equations.get(test.label)
    if stated is None:
        return f"{test.where}: {test.function} checks {test.label}, a label that no chapter has"
    if test.by not in METHODS:
        return f"{test.where}: {test.function} checks {test.label} by {test.by!r}: write {USAGE}"
    if test.quoted is None:
        return (
            f"{test.where}: the docstring of {test.function} does not quote equation {test.label}; it says "
            f"in {stated.where}:\n$$\n{stated.tex}\n$$ ({test.label})"
        )
    if stated.tex.split() != test.quoted.split():
        return (
            f"equation {test.label} is not what its test quotes\n"
            f"  {stated.where}:\n    {' '.join(stated.tex.split())}\n"
            f"  {test.where}, {test.function}:\n    {' '.join(test.quoted.split())}"
        )
    return None


def problems(root: Path) -> list[str]:
    """Everything that is wrong between the chapters and their tests, without running anything."""
    equations, unread = read_equations(root)
    tests, unreadable = read_tests(root)
    stated = {equation.label: equation for equation in equations}
    untested = [
        f"{equation.where}: equation {equation.label} has no test: no function in {TESTS} is marked "
        f'@pytest.mark.equation("{equation.label}", by=...)'
        for equation in equations
        if equation.label not in {test.label for test in tests}
    ]
    objections = [said for test in tests if (said := objection(test, stated))]
    gone = [
        f"{READ}:{line}: ROWS reads {label}, a label that no chapter has"
        for label, (line, _) in read_from_the_page(root).items()
        if label not in stated
    ]
    return [*unread, *unreadable, *untested, *objections, *gone]


# -------------------------------------------------------------------------------------------- the page


def read_errors(root: Path) -> dict[str, list[dict[str, Any]]]:
    """Return test -> its comparisons {rtol, atol, error, why} in the last run; empty before the first."""
    path = root / ERRORS
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}  # type: ignore[no-any-return]


def _outcome(test: Test, comparisons: list[dict[str, Any]]) -> str:
    """Say what a test found: how far apart the numbers were, or that there were none to compare."""
    said = []
    for c in comparisons:
        allowed = " + ".join(f"{name} {c[name]:g}" for name in ("rtol", "atol") if c[name]) or "nothing"
        off = f"worst {'relative' if c['rtol'] else 'absolute'} error {c['error']:.0e}"
        said.append(f"{off if c['error'] else 'equal'} (allowed: {allowed}, {c['why']})")
    if not said:
        said = ["not run yet" if test.by in MEASURING else "exact" if test.by == "symbolic" else "holds"]
    # A word joiner keeps a browser from breaking 1e-12 behind its hyphen.
    return "; ".join(said).replace("e-", "e-\u2060")


class EquationLedger(SphinxDirective):
    """Renders the ledger: how many, then each chapter's equations with their tests."""

    has_content = False

    def run(self) -> list[nodes.Node]:
        """Return a paragraph, and a section for each chapter."""
        root = Path(self.env.srcdir)
        equations, tests, errors = read_equations(root)[0], read_tests(root)[0], read_errors(root)
        for path in (*(root / "chapters").iterdir(), *(root / TESTS).glob("test_*.py"), root / ERRORS):
            self.env.note_dependency(str(path))
        titles, self.read = chapter_titles(root), read_from_the_page(root)
        counted = (
            (len(equations), "equation"),
            (len({equation.chapter for equation in equations}), "page"),
            (len({test.name for test in tests}), "test"),
        )
        summary = "{} on {}, {}".format(*(f"{n} {noun}{'s'[: n != 1]}" for n, noun in counted))
        summary += f"; {len(self.read)} equations are read from the page." if self.read else "."
        rendered: list[nodes.Node] = [nodes.paragraph("", summary)]
        for chapter, group in groupby(equations, key=lambda equation: equation.chapter):
            section = nodes.section(ids=[nodes.make_id(f"ledger-{chapter}")])
            section += nodes.title("", titles[chapter])
            for equation in group:
                section += self._entry(equation, [t for t in tests if t.label == equation.label], errors)
            rendered.append(section)
        return rendered

    def _entry(self, equation: Equation, tests: list[Test], errors: dict[str, Any]) -> nodes.Node:
        """Render one equation: its number, which leads to it, the statement, a line for each test."""
        entry = nodes.container(classes=["ledger-entry"], ids=[f"ledger-{equation.label}"])
        reference = {"refdomain": "math", "reftype": "eq", "reftarget": equation.label, "refwarn": True}
        number = addnodes.pending_xref(
            "", nodes.inline("", equation.label), refdoc=self.env.docname, refexplicit=False, **reference
        )
        label = nodes.literal("", equation.label)
        entry += nodes.paragraph("", "", nodes.strong("", "", number), nodes.Text(" "), label)
        # No label and no number: the equation is stated in its chapter, and shown again here.
        statement = nodes.math_block(equation.tex, equation.tex, nowrap=False, number=None)
        self.set_source_info(statement)
        entry += statement
        lines = nodes.bullet_list(classes=["ledger-tests"])
        for test in tests:
            said = f" by {test.by}: {_outcome(test, errors.get(test.name, []))}."
            # A copy of the file beside the pages (claims.py), scrolled to the function.
            to = f"../_sources/tests/equations/{test.file}.txt#:~:text=def%20{test.function}"
            name = nodes.reference("", "", nodes.literal("", test.name), refuri=to)
            line = nodes.paragraph("", "", name, nodes.Text(said))
            lines += nodes.list_item("", line)
        if equation.label in self.read:
            left_out = self.read[equation.label][1]
            said = f": read from the page{f', but for {left_out} part' + 's'[: left_out != 1] if left_out else ''}."
            to = f"../_sources/{READ}.txt#:~:text=%22{equation.label}%22"
            name = nodes.reference("", "", nodes.literal("", Path(READ).name), refuri=to)
            lines += nodes.list_item("", nodes.paragraph("", "", name, nodes.Text(said)))
        if lines.children:
            entry += lines
        return entry


def _warn(app: Sphinx) -> None:
    """Warn at every build, also of an unchanged book, so that -W fails until the ledger is whole."""
    for problem in problems(Path(app.srcdir)):
        logging.getLogger(__name__).warning("ledger: %s", problem, type="xent", subtype="ledger")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive and the check."""
    app.add_directive("equation-ledger", EquationLedger)
    app.connect("builder-inited", _warn)
    return {"version": "1", "env_version": 1, "parallel_read_safe": True, "parallel_write_safe": True}
