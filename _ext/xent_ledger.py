"""The Sphinx side of the equation ledger: the page, and a warning for whatever the page could not vouch for.

The directive `{equation-ledger}` lists every labelled equation with its number, its statement, its tests
and how far apart their numbers were at worst. All of it comes from files in the repository (chapters,
tests, tests/equations/ledger.json), so that the page is the same whether or not the tests ran before the
build. `tools/ledger.py` does the reading and joining.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

import ledger

logger = logging.getLogger(__name__)

# How a line of the page calls a method: "by ...".
METHOD_NAMES = {
    "symbolic": "symbolic algebra",
    "reference": "reference",
    "property": "property",
    "montecarlo": "Monte Carlo",
    "framework": "framework",
}


def _outcome(by: str, checks: list[dict[str, Any]]) -> str:
    """What a test found, in words: its errors, or that there was nothing to measure."""
    if not checks:
        return "exact" if by == "symbolic" else "holds"
    text = "; ".join(
        f"{ledger.describe_error(check)} (allowed: {ledger.describe_allowance(check)})" for check in checks
    )
    # A word joiner keeps a browser from breaking 1e-12 behind its hyphen.
    return text.replace("e-", "e-\u2060")


class EquationLedger(SphinxDirective):
    """Renders the ledger: a summary, then a section for each chapter."""

    has_content = False

    def run(self) -> list[nodes.Node]:
        root = Path(self.env.srcdir)
        equations, _ = ledger.read_equations(root)
        marks, _ = ledger.read_marks(root)
        table = ledger.read_table(root)
        pages = _pages(self.env)
        pages[self.env.docname] = _digest(root)

        rendered: list[nodes.Node] = [self._summary(equations, marks), self._methods(marks)]
        titles = ledger.chapter_titles(root)
        for chapter, group in groupby(equations, key=lambda equation: equation.chapter):
            section = nodes.section(ids=[nodes.make_id(f"ledger-{chapter}")])
            section += nodes.title("", titles[chapter])
            for equation in group:
                section += self._entry(equation, table.get(equation.label, {}).get("tests", {}))
            rendered.append(section)
        return rendered

    def _summary(self, equations: list[ledger.Equation], marks: list[ledger.Mark]) -> nodes.Node:
        tests = len({mark.test for mark in marks})
        chapters = len({equation.chapter for equation in equations})
        text = (
            f"The ledger holds {_plural(len(equations), 'equation')} of {_plural(chapters, 'chapter')}, "
            f"checked by {_plural(tests, 'test')}."
        )
        return nodes.paragraph("", text)

    def _methods(self, marks: list[ledger.Mark]) -> nodes.Node:
        """The methods as a definition list, with how often each is used."""
        used = Counter(by for by, _ in {(mark.by, mark.test) for mark in marks})
        methods = nodes.definition_list(classes=["ledger-methods"])
        for by, explanation in ledger.METHODS.items():
            item = nodes.definition_list_item()
            item += nodes.term("", "", nodes.literal("", by), nodes.Text(f" ({_plural(used[by], 'test')})"))
            item += nodes.definition("", nodes.paragraph("", f"{explanation[0].upper()}{explanation[1:]}."))
            methods += item
        return methods

    def _entry(self, equation: ledger.Equation, tests: dict[str, Any]) -> nodes.Node:
        """One equation: its number, linked, and label; the statement; a line for each test."""
        entry = nodes.container(classes=["ledger-entry"], ids=[f"ledger-{equation.label}"])
        number = addnodes.pending_xref(
            "",
            nodes.inline("", equation.label),
            refdoc=self.env.docname,
            refdomain="math",
            reftype="eq",
            reftarget=equation.label,
            refexplicit=False,
            refwarn=True,
        )
        entry += nodes.paragraph(
            "", "", nodes.strong("", "", number), nodes.Text(" "), nodes.literal("", equation.label)
        )
        # No label and no number: the equation is stated in its chapter, and shown again here.
        statement = nodes.math_block(equation.tex, equation.tex, nowrap=False, number=None)
        self.set_source_info(statement)
        entry += statement
        lines = nodes.bullet_list(classes=["ledger-tests"])
        for test, found in tests.items():
            line = nodes.paragraph(
                "",
                "",
                nodes.literal("", test),
                nodes.Text(f" by {METHOD_NAMES[found['by']]}: {_outcome(found['by'], found['checks'])}."),
            )
            lines += nodes.list_item("", line)
        if tests:
            entry += lines
        return entry


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# ------------------------------------------------------------------------------------- staying current


def _pages(env: BuildEnvironment) -> dict[str, str]:
    """The pages with a ledger and the digest of what each shows; kept in the pickled environment."""
    if not hasattr(env, "xent_ledger_pages"):
        env.xent_ledger_pages = {}  # type: ignore[attr-defined]
    return env.xent_ledger_pages  # type: ignore[attr-defined, no-any-return]


def _digest(root: Path) -> str:
    """A digest of everything that the page shows."""
    equations, _ = ledger.read_equations(root)
    marks, _ = ledger.read_marks(root)
    shown = [
        [[e.label, e.chapter, e.tex] for e in equations],
        [[m.label, m.by, m.test] for m in marks],
        ledger.chapter_titles(root),
        ledger.read_table(root),
    ]
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()


def _outdated(app: Sphinx, env: BuildEnvironment, *changes: set[str]) -> list[str]:
    """Read the page again when a chapter, a test or the table changed, though its own source did not."""
    pages = _pages(env)
    return [page for page, digest in pages.items() if digest != _digest(Path(app.srcdir))] if pages else []


def _purge(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    _pages(env).pop(docname, None)


def _merge(app: Sphinx, env: BuildEnvironment, docnames: Iterable[str], other: BuildEnvironment) -> None:
    _pages(env).update({page: digest for page, digest in _pages(other).items() if page in set(docnames)})


def _style(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object) -> None:
    """Add the style sheet to the pages that have a ledger, and to no other."""
    if pagename in _pages(app.env):
        app.add_css_file("ledger.css")


def _warn(app: Sphinx) -> None:
    """Warn at every build, also of an unchanged book, so that -W fails until the ledger is whole."""
    root = Path(app.srcdir)
    problems: list[object] = list(ledger.all_problems(root))
    if not problems:
        # An orphan would be told twice otherwise: it is missing from the table as well.
        equations, _ = ledger.read_equations(root)
        marks, _ = ledger.read_marks(root)
        stale = ledger.out_of_date(equations, marks, ledger.read_table(root))
        problems += [f"{ledger.COMMITTED} is out of date (make ledger): {line}" for line in stale]
    for problem in problems:
        logger.warning("ledger: %s", problem, type="xent", subtype="ledger")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive and the checks."""
    app.add_directive("equation-ledger", EquationLedger)
    app.connect("builder-inited", _warn)
    app.connect("env-get-outdated", _outdated)
    app.connect("env-purge-doc", _purge)
    app.connect("env-merge-info", _merge)
    app.connect("html-page-context", _style)
    return {"version": "1", "env_version": 1, "parallel_read_safe": True, "parallel_write_safe": True}
