"""The claims on the pages: a mark behind each sentence that a test tries to refute, and its entry in the ledger.

What a claim is, and that its chapter holds it, is said in marks.py. The entry leads to the test, whose docstring
says what was tried.
"""

from __future__ import annotations

import shutil
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import nbformat
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective, SphinxRole

from marks import Mark, chapter_titles, read_marks

PAGE = "chapters/equations"


def _anchor(claim: Mark) -> str:
    return nodes.make_id(f"claim-{claim.of}-{claim.function.removeprefix('test_')}")


@cache
def _claims(root: str) -> list[Mark]:
    return [mark for mark in read_marks(Path(root))[0] if mark.kind == "claim"]


def _mark(app: Sphinx, docname: str, text: list[str]) -> None:
    """Write the marks into a chapter as it is read."""
    number = Path(docname).name[:2]
    here = [claim for claim in _claims(str(app.srcdir)) if claim.of == number]
    path = app.env.doc2path(docname)
    if not (here and path.endswith(".ipynb")):
        return
    for place in {claim.path for claim in here}:
        app.env.note_dependency(str(Path(app.srcdir) / place))
    notebook = nbformat.reads(text[0], as_version=4)
    for claim in here:
        for cell in (cell for cell in notebook.cells if cell.cell_type == "markdown"):
            if found := claim.pattern.search(cell.source):
                role = f"{{claim}}`{_anchor(claim)}`"
                cell.source = cell.source[: found.end()] + role + cell.source[found.end() :]
                break
    text[0] = nbformat.writes(notebook)


class ClaimMark(SphinxRole):
    """Renders the mark behind a claim."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return a link to the claim's entry in the ledger."""
        to = self.env.app.builder.get_relative_uri(self.env.docname, PAGE) + f"#{self.text}"
        link = nodes.reference("", "✓", refuri=to, internal=True, classes=["claim"])
        link["reftitle"] = "how this was tested"
        return [link], []


class ClaimLedger(SphinxDirective):
    """Renders the claims of each chapter, with what was tried to refute them."""

    has_content = False

    def run(self) -> list[nodes.Node]:
        """Return a paragraph, and a section for each chapter."""
        root = Path(self.env.srcdir)
        claims = _claims(str(root))
        for path in (*(root / "chapters").iterdir(), *(root / "tests").rglob("test_*.py")):
            self.env.note_dependency(str(path))
        titles = {name[:2]: title for name, title in chapter_titles(root).items()}
        rendered: list[nodes.Node] = [nodes.paragraph("", f"{len(claims)} claim{'s'[: len(claims) != 1]}.")]
        for chapter, group in groupby(sorted(claims, key=lambda c: c.of), key=lambda c: c.of):
            section = nodes.section(ids=[nodes.make_id(f"claims-{chapter}")])
            section += nodes.title("", titles[chapter])
            for claim in group:
                sentence, _ = self.parse_inline(claim.how)
                entry = nodes.container(classes=["ledger-entry"], ids=[_anchor(claim)])
                entry += nodes.paragraph("", "", *sentence)
                to = f"../_sources/{claim.path}.txt#:~:text=def%20{claim.function}"
                link = nodes.reference("", "", nodes.literal("", claim.function), refuri=to)
                tried, _ = self.parse_inline(" ".join(claim.doc.split()))
                entry += nodes.paragraph("", "", link, nodes.Text(" "), *tried, classes=["ledger-tests"])
                section += entry
            rendered.append(section)
        return rendered


def _read_again(app: Sphinx) -> None:
    _claims.cache_clear()


def _copy_tests(app: Sphinx, exception: Exception | None) -> None:
    """Put the tests beside the pages that lead to them."""
    if exception is None and app.builder.format == "html":
        for path in sorted((Path(app.srcdir) / "tests").glob("*/test_*.py")):
            copy = Path(app.outdir) / "_sources" / "tests" / path.parent.name / f"{path.name}.txt"
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive and the mark."""
    app.add_directive("claim-ledger", ClaimLedger)
    app.add_role("claim", ClaimMark())
    app.connect("builder-inited", _read_again)
    app.connect("source-read", _mark, priority=600)
    app.connect("build-finished", _copy_tests)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
