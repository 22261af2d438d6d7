"""The ledger: every displayed equation of the chapters, joined with the tests that check it.

What an equation and its tests are is said in marks.py; the directive `{equation-ledger}` renders the page. Its
errors are those of the last `make ledger`, which writes tests/equations/errors.json.
"""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from marks import (
    ERRORS,
    READ,
    Equation,
    Mark,
    chapter_titles,
    problems,
    read_equations,
    read_from_the_page,
    read_marks,
)


def read_errors(root: Path) -> dict[str, list[dict[str, Any]]]:
    """Return test -> its comparisons {rtol, atol, error, why} in the last run; empty before the first."""
    path = root / ERRORS
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}  # type: ignore[no-any-return]


def _outcome(test: Mark, comparisons: list[dict[str, Any]]) -> str:
    """Say what a test found: how far apart the numbers were, or that there were none to compare."""
    said = []
    for c in comparisons:
        allowed = " + ".join(f"{name} {c[name]:g}" for name in ("rtol", "atol") if c[name]) or "nothing"
        off = f"worst {'relative' if c['rtol'] else 'absolute'} error {c['error']:.0e}"
        said.append(f"{off if c['error'] else 'equal'} (allowed: {allowed}, {c['why']})")
    if not said:
        said = ["exact" if test.how == "symbolic" else "holds"]
    # A word joiner keeps a browser from breaking 1e-12 behind its hyphen.
    return "; ".join(said).replace("e-", "e-\u2060")


class EquationLedger(SphinxDirective):
    """Renders the ledger: how many, then each chapter's equations with their tests."""

    has_content = False

    def run(self) -> list[nodes.Node]:
        """Return a paragraph, and a section for each chapter."""
        root = Path(self.env.srcdir)
        equations, errors = read_equations(root)[0], read_errors(root)
        tests = [mark for mark in read_marks(root)[0] if mark.kind == "equation"]
        for path in (*(root / "chapters").iterdir(), *(root / "tests").rglob("test_*.py"), root / ERRORS):
            self.env.note_dependency(str(path))
        titles, self.read = chapter_titles(root), read_from_the_page(root)
        counted = (
            (len(equations), "equation"),
            (len({equation.chapter for equation in equations}), "page"),
            (len({test.name for test in tests}), "test"),
        )
        summary = "{} on {}, {}".format(*(f"{n} {noun}{'s'[: n != 1]}" for n, noun in counted))
        read = sum(equation.label in self.read for equation in equations)
        summary += f"; {read} read from the page, {len(equations) - read} transcribed."
        rendered: list[nodes.Node] = [nodes.paragraph("", summary)]
        for chapter, group in groupby(equations, key=lambda equation: equation.chapter):
            section = nodes.section(ids=[nodes.make_id(f"ledger-{chapter}")])
            section += nodes.title("", titles[chapter])
            for equation in group:
                section += self._entry(equation, [t for t in tests if t.of == equation.label], errors)
            rendered.append(section)
        return rendered

    def _entry(self, equation: Equation, tests: list[Mark], errors: dict[str, Any]) -> nodes.Node:
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
            transcribed = "" if equation.label in self.read else ", transcribed"
            said = f" by {test.how}{transcribed}: {_outcome(test, errors.get(test.name, []))}."
            # A copy of the file beside the pages (claims.py), scrolled to the function.
            to = f"../_sources/{test.path}.txt#:~:text=def%20{test.function}"
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
    """Warn at every build, also of an unchanged book, so that -W fails until chapters and tests agree."""
    for problem in problems(Path(app.srcdir)):
        logging.getLogger(__name__).warning("marks: %s", problem, type="xent", subtype="ledger")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive and the check."""
    app.add_directive("equation-ledger", EquationLedger)
    app.connect("builder-inited", _warn)
    return {"version": "1", "env_version": 1, "parallel_read_safe": True, "parallel_write_safe": True}
