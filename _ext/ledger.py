"""The ledger: every displayed equation and every claim of the chapters, joined with the tests that check it.

What an equation, a claim and their tests are is said in marks.py. The build writes a page for each chapter, which the
directive `{ledger}` renders; `{ledger-summary}` is the table of all. A mark behind each claim, and the number of each
equation, lead to their entries; `_static/page.js` shows an entry in place.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import nbformat
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

from marks import (
    READ,
    Equation,
    Mark,
    as_sentence,
    chapter_titles,
    markdown_cells,
    problems,
    read_equations,
    read_from_the_page,
    read_marks,
)

PAGES = "chapters/ledger"


def _claims(root: Path, chapter: str) -> list[Mark]:
    return [
        mark for mark in read_marks(root)[0] if (mark.kind, mark.of) == ("claim", chapter.partition("_")[0])
    ]


def _write_pages(app: Sphinx, config: Config) -> None:
    """Write a page for each chapter that states something, where `glob: chapters/ledger/*` of _toc.yml finds it."""
    root, folder = Path(app.srcdir), Path(app.srcdir) / PAGES
    if PAGES not in (root / "_toc.yml").read_text("utf-8"):
        return
    said = {e.chapter for e in read_equations(root)[0]}
    said |= {mark.of for mark in read_marks(root)[0] if mark.kind == "claim"}
    pages = {}
    for name, title in chapter_titles(root).items():
        if said & {name, name[:2]}:
            of = f"chapter {int(name[:2])}" if name[:2].isdigit() else f"“{title}”"
            pages[folder / f"{name}.md"] = f"# Ledger of {of}\n\n```{{ledger}} {name}\n```\n"
    folder.mkdir(exist_ok=True)
    for path in {*folder.iterdir()} - pages.keys():
        path.unlink()
    for path, text in pages.items():
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")


def _mark(app: Sphinx, docname: str, text: list[str]) -> None:
    """Write the marks into a chapter as it is read, from the end, so that the places found stay right."""
    here = _claims(Path(app.srcdir), Path(docname).name)
    path = app.env.doc2path(docname)
    if not (here and path.endswith(".ipynb")):
        return
    notebook = nbformat.reads(text[0], as_version=4)
    for cell in (cell for cell in notebook.cells if cell.cell_type == "markdown"):
        places = [(end, c.anchor) for c in here for _, end in c.places(cell.source)]
        for end, anchor in sorted(places, reverse=True):
            cell.source = f"{cell.source[:end]}{{claim}}`{anchor}`{cell.source[end:]}"
    text[0] = nbformat.writes(notebook)


class ClaimMark(SphinxRole):
    """Renders the mark behind a claim."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return a link to the claim's entry in the ledger, with an anchor to come back to."""
        page = f"{PAGES}/{self.env.docname.rpartition('/')[2]}"
        to = f"{self.env.app.builder.get_relative_uri(self.env.docname, page)}#{self.text}"
        given = {"classes": ["claim"], "ids": [f"said-{self.text}"], "reftitle": "how this was tested"}
        return [nodes.reference("", "✓", refuri=to, internal=True, **given)], []


def _name(test: Mark) -> nodes.reference:
    """Return a link to a test, to a copy of its file, scrolled to the function; lighter than that of a literal."""
    to = f"../../_sources/{test.path}.txt#:~:text={test.function}"
    return nodes.reference("", "", nodes.raw("", f"<code>{test.name}</code>", format="html"), refuri=to)


class Ledger(SphinxDirective):
    """Renders the ledger of one chapter: its equations, then its claims, each with what its tests found."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return a section of equations and one of claims."""
        root, chapter = Path(self.env.srcdir), self.arguments[0]
        for path in (root / "chapters").glob("*.*"):
            self.env.note_dependency(str(path))
        self.read = read_from_the_page(root)
        tests = [mark for mark in read_marks(root)[0] if mark.kind == "equation"]
        equations = [
            self._equation(equation, [test for test in tests if test.of == equation.label])
            for equation in read_equations(root)[0]
            if equation.chapter == chapter
        ]
        claims = [self._claim(root, claim, chapter) for claim in _claims(root, chapter)]
        sections = []
        for title, entries in (("Equations", equations), ("Claims", claims)):
            if entries:
                sections.append(nodes.section("", nodes.title("", title), *entries, ids=[title.lower()]))
        return list(sections)

    def _claim(self, root: Path, claim: Mark, chapter: str) -> nodes.Node:
        """Render one claim: the sentence, which leads to where it is said, and its test, with what that rejects."""
        cells = [cell for path, _, cell in markdown_cells(root) if path.stem == chapter]
        stated = " ".join(cell[begin:end] for cell in cells for begin, end in claim.places(cell)[:1])
        sentence, _ = self.parse_inline(re.sub(r"\]\((?=\d\d_)", "](../", as_sentence(stated)))
        back = self.env.app.builder.get_relative_uri(self.env.docname, f"chapters/{chapter}")
        named = [what for what in claim.rejects if what != "…"]
        rejected = f"Rejected: {'; '.join(named)}." if named else ""
        tried, _ = self.parse_inline(" ".join(f"{claim.doc} {rejected}".split()))
        up = nodes.reference("", "↑", refuri=f"{back}#said-{claim.anchor}", internal=True)
        up["reftitle"] = "where this is said"
        said = nodes.paragraph("", "", *sentence, nodes.Text(" "), up)
        tests = nodes.paragraph("", "", *tried, nodes.Text(" "), _name(claim), classes=["ledger-tests"])
        return nodes.container("", said, tests, classes=["ledger-entry"], ids=[claim.anchor])

    def _equation(self, equation: Equation, tests: list[Mark]) -> nodes.Node:
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
            lines += nodes.list_item("", nodes.paragraph("", "", _name(test), nodes.Text(": transcribed.")))
        if equation.label in self.read:
            left_out = self.read[equation.label][1]
            said = f": read from the page{f', but for {left_out} part' + 's'[: left_out != 1] if left_out else ''}."
            to = f"../../_sources/{READ}.txt#:~:text=%22{equation.label}%22"
            name = nodes.reference("", "", nodes.literal("", Path(READ).name), refuri=to)
            lines += nodes.list_item("", nodes.paragraph("", "", name, nodes.Text(said)))
        if lines.children:
            entry += lines
        return entry


class LedgerSummary(SphinxDirective):
    """Renders a table of all chapters: how many equations and claims, and how they are checked."""

    def run(self) -> list[nodes.Node]:
        """Return the table, with a link to each chapter's page."""
        root = Path(self.env.srcdir)
        equations, read = read_equations(root)[0], read_from_the_page(root)
        counted = {}
        for chapter, title in chapter_titles(root).items():
            own = [equation.label in read for equation in equations if equation.chapter == chapter]
            claims = len(_claims(root, chapter))
            if own or claims:
                counted[f"{{doc}}`{title} <ledger/{chapter}>`"] = sum(own), len(own) - sum(own), claims
        total = [f"**{sum(column)}**" for column in zip(*counted.values(), strict=True)]
        table = [
            ["chapter", "equations read from the page", "transcribed", "claims"],
            ["---", "--:", "--:", "--:"],
        ]
        table += [[name, *map(str, numbers)] for name, numbers in counted.items()]
        return self.parse_text_to_nodes(
            "\n".join(f"| {' | '.join(row)} |" for row in [*table, ["**all**", *total]])
        )


def _warn(app: Sphinx) -> None:
    """Warn at every build, also of an unchanged book, so that -W fails until chapters and tests agree."""
    for problem in problems(Path(app.srcdir)):
        logging.getLogger(__name__).warning("marks: %s", problem, type="xent", subtype="ledger")


def _copy_tests(app: Sphinx, exception: Exception | None) -> None:
    """Put the tests beside the pages that lead to them."""
    if exception is None and app.builder.format == "html":
        for path in sorted((Path(app.srcdir) / "tests").glob("*/test_*.py")):
            copy = Path(app.outdir) / "_sources" / "tests" / path.parent.name / f"{path.name}.txt"
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives, the mark and the check."""
    app.add_directive("ledger", Ledger)
    app.add_directive("ledger-summary", LedgerSummary)
    app.add_role("claim", ClaimMark())
    app.connect("config-inited", _write_pages, priority=100)  # before anything asks which pages there are
    app.connect("builder-inited", _warn)
    app.connect("source-read", _mark, priority=600)
    app.connect("build-finished", _copy_tests)
    return {"version": "1", "env_version": 1, "parallel_read_safe": True, "parallel_write_safe": True}
