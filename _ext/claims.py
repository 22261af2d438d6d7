"""Claims: sentences of the chapters that a test tries to refute, joined with these tests.

    @pytest.mark.claim("01", "The gradient of the loss is prediction minus target.")
    def test_the_gradient() -> None:
        '''What is tried: 50 random batches, against central differences.'''

The sentence is quoted as the chapter 01 prints it, up to white space and emphasis. A quotation that no cell of the
chapter holds fails pytest (tests/claims/conftest.py) and is a warning, hence a failure, of the build: there is no
list to keep. On the page a small mark behind the sentence leads to its entry in the ledger, and the entry to
the test, whose docstring says what was tried.
"""

from __future__ import annotations

import ast
import re
import shutil
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

from ledger import chapter_titles, markdown_cells

TESTS = "tests/claims"
PAGE = "chapters/equations"
USAGE = '@pytest.mark.claim("01", "the sentence, quoted")'


class Claim(NamedTuple):
    """One mark on one test function."""

    chapter: str  # its number, "01"
    sentence: str
    file: str
    function: str
    line: int
    tried: str  # the test's docstring

    @property
    def where(self) -> str:
        return f"{TESTS}/{self.file}:{self.line}"

    @property
    def pattern(self) -> re.Pattern[str]:
        """What finds the sentence in a cell: any white space between words, emphasis around them."""
        words = self.sentence.replace("*", "").split()
        return re.compile(r"\**\s+\**".join(map(re.escape, words)) + r"\**")


def read_claims(root: Path) -> tuple[list[Claim], list[str]]:
    """Return the marks of the claims' tests, and what is wrong with those that cannot be read."""
    found: list[Claim] = []
    wrong: list[str] = []
    for path in sorted((root / TESTS).glob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for function in (f for f in tree.body if isinstance(f, ast.FunctionDef)):
            for call in function.decorator_list:
                if not ast.unparse(call).startswith("pytest.mark.claim"):
                    continue
                given = [getattr(a, "value", None) for a in call.args] if isinstance(call, ast.Call) else []
                if len(given) != 2 or not all(isinstance(value, str) for value in given):
                    wrong.append(f"{TESTS}/{path.name}:{call.lineno}: {function.name}: write {USAGE}")
                    continue
                tried = " ".join((ast.get_docstring(function) or "").split())
                found.append(Claim(*map(str, given), path.name, function.name, call.lineno, tried))
    return found, wrong


def objections(claims: list[Claim], root: Path) -> list[str]:
    """Say of which claims the chapter does not hold the sentence."""
    texts: dict[str, list[str]] = {}
    for path, _, markdown in markdown_cells(root):
        texts.setdefault(path.name[:2], []).append(markdown)
    return [
        f"{claim.where}: {claim.function}: chapter {claim.chapter} does not say:\n    {claim.sentence}"
        for claim in claims
        if not any(claim.pattern.search(text) for text in texts.get(claim.chapter, []))
    ]


def problems(root: Path) -> list[str]:
    """Everything that is wrong between the chapters and the claims' tests, without running anything."""
    claims, wrong = read_claims(root)
    return [*wrong, *objections(claims, root)]


# -------------------------------------------------------------------------------------------- the pages


def _anchor(claim: Claim) -> str:
    return nodes.make_id(f"claim-{claim.chapter}-{claim.function.removeprefix('test_')}")


@cache
def _claims(root: str) -> list[Claim]:
    return read_claims(Path(root))[0]


def _mark(app: Sphinx, docname: str, text: list[str]) -> None:
    """Write the marks into a chapter as it is read."""
    number = Path(docname).name[:2]
    here = [claim for claim in _claims(str(app.srcdir)) if claim.chapter == number]
    path = app.env.doc2path(docname)
    if not (here and path.endswith(".ipynb")):
        return
    app.env.note_dependency(str(Path(app.srcdir) / TESTS / f"test_{number}.py"))
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
        for path in (*(root / "chapters").iterdir(), *(root / TESTS).glob("test_*.py")):
            self.env.note_dependency(str(path))
        titles = {name[:2]: title for name, title in chapter_titles(root).items()}
        rendered: list[nodes.Node] = [nodes.paragraph("", f"{len(claims)} claim{'s'[: len(claims) != 1]}.")]
        for chapter, group in groupby(sorted(claims, key=lambda c: c.chapter), key=lambda c: c.chapter):
            section = nodes.section(ids=[nodes.make_id(f"claims-{chapter}")])
            section += nodes.title("", titles[chapter])
            for claim in group:
                sentence, _ = self.parse_inline(claim.sentence)
                entry = nodes.container(classes=["ledger-entry"], ids=[_anchor(claim)])
                entry += nodes.paragraph("", "", *sentence)
                to = f"../_sources/tests/claims/{claim.file}.txt#:~:text=def%20{claim.function}"
                link = nodes.reference("", "", nodes.literal("", claim.function), refuri=to)
                tried, _ = self.parse_inline(claim.tried)
                entry += nodes.paragraph("", "", link, nodes.Text(" "), *tried, classes=["ledger-tests"])
                section += entry
            rendered.append(section)
        return rendered


def _warn(app: Sphinx) -> None:
    """Warn at every build, also of an unchanged book."""
    _claims.cache_clear()
    for problem in problems(Path(app.srcdir)):
        logging.getLogger(__name__).warning("claims: %s", problem, type="xent", subtype="claims")


def _copy_tests(app: Sphinx, exception: Exception | None) -> None:
    """Put the tests beside the pages that lead to them."""
    if exception is None and app.builder.format == "html":
        for path in sorted((Path(app.srcdir) / "tests").glob("*/test_*.py")):
            copy = Path(app.outdir) / "_sources" / "tests" / path.parent.name / f"{path.name}.txt"
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive, the mark and the check."""
    app.add_directive("claim-ledger", ClaimLedger)
    app.add_role("claim", ClaimMark())
    app.connect("builder-inited", _warn)
    app.connect("source-read", _mark, priority=600)
    app.connect("build-finished", _copy_tests)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
