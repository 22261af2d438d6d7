"""The errata page: a card for each statement of the sources, from chapters/errata.yml and the tests.

A row with the id 3.3 is checked by the tests named `test_erratum_3_3_...`, and by those that it lists under
`also`. The line `% errata` of chapters/errata.md is replaced by the cards, each with an anchor such as
`#erratum-3-3`; in the chapters "erratum 3.3" and, under "Sources and corrections", "(3.3)" become links to
the card.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from docutils import nodes
from docutils.nodes import make_id
from sphinx.util import logging

from ledger import markdown_cells

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

logger = logging.getLogger(__name__)

PAGE, MARK = "chapters/errata", "% errata\n"
FILE = Path("chapters/errata.yml")
VERDICTS = {
    "wrong": "Wrong",
    "slip": "A slip",
    "conditional": "Needs a condition",
    "outdated": "Outdated",
    "holds": "Holds",
}
_TEST = re.compile(r"^def (test_(?:erratum_(\d+)_(\d+|[a-z])(?=_|\()|slip_of_)\w*)", re.MULTILINE)
_MENTION = re.compile(r"\b[Ee]rrat(?:um|a) (\d\.(?:\d+|[a-z]))\b")
_BRACKETS = re.compile(r"(?<=\()(\d\.\d+)(?=\))")
_NO_LINKS = nodes.reference | nodes.literal | nodes.literal_block | nodes.math | nodes.title | nodes.raw


@dataclass(frozen=True)
class Test:
    """A function that checks a row: by its name, or because the row names it."""

    name: str
    path: str
    row: str | None


@dataclass(frozen=True)
class Row:
    """One statement of a source, with the chapter and the heading that state the matter right."""

    id: str
    verdict: str
    place: str
    stands: str
    truth: str
    section: tuple[str, str]
    says: str = ""  # the words of that section that hold the correction
    also: tuple[str, ...] = ()
    given: str = ""  # formulas of its numbers, as in a chapter

    @property
    def anchor(self) -> str:
        """The id of its card on the page."""
        return "erratum-" + self.id.replace(".", "-")

    def tests(self, tests: list[Test]) -> list[Test]:
        """The tests that check it."""
        return [test for test in tests if test.row == self.id or test.name in self.also]


def read(root: Path) -> tuple[list[dict[str, Any]], list[Row]]:
    """Read the sources and the rows, in the order of the file."""
    data: dict[str, Any] = yaml.safe_load((root / FILE).read_text(encoding="utf-8"))
    return data["sources"], [Row(**{**row, "id": str(row["id"])}) for row in data["rows"]]


def read_tests(root: Path) -> list[Test]:
    """List the tests of errata, by their names; nothing is imported."""
    return [
        Test(found[1], path.relative_to(root).as_posix(), f"{found[2]}.{found[3]}" if found[2] else None)
        for path in sorted((root / "tests").rglob("test_*.py"))
        for found in _TEST.finditer(path.read_text(encoding="utf-8"))
    ]


def section_text(root: Path, chapter: str, heading: str) -> str:
    """Return what stands under a heading of a chapter, to the next heading that is no deeper."""
    text = "\n".join(cell for path, _, cell in markdown_cells(root) if path.stem == chapter)
    found = re.search(rf"^(#+) {re.escape(heading)} *$", text, re.MULTILINE)
    if not found:
        return ""
    return re.split(rf"^#{{1,{len(found[1])}}} ", text[found.end() :], maxsplit=1, flags=re.MULTILINE)[0]


def problems(root: Path) -> Iterator[str]:
    """Tell what does not fit: a row without a test or its correction, or a test without a row."""
    sources, rows = read(root)
    tests = read_tests(root)
    names = {test.name for test in tests}
    for row in rows:
        if row.verdict not in VERDICTS or row.id.split(".")[0] not in {
            str(source["id"]) for source in sources
        }:
            yield f"{FILE}: row {row.id} has an unknown source or verdict: {row.verdict}"
        if not row.tests(tests):
            name = f"test_{row.anchor.replace('-', '_')}_..."
            yield f"{FILE}: row {row.id} has no test; expected {name} in tests/"
        words = row.says.split()
        if row.verdict != "holds" and not (
            words and " ".join(words) in " ".join(section_text(root, *row.section).split())
        ):
            place = f"the section {row.section[1]!r} of {row.section[0]}"
            yield f"{FILE}: row {row.id}: {place} does not say {row.says!r}"
        yield from (f"{FILE}: row {row.id} names {n}, which is no test" for n in row.also if n not in names)
    checking = {test for row in rows for test in row.tests(tests)}
    yield from (f"{test.path}::{test.name} checks no row of {FILE}" for test in tests if test not in checking)


# ------------------------------------------------------------------------------------- the page


def card(row: Row, tests: list[Test]) -> str:
    """Return a row as MyST."""
    chapter, heading = row.section
    checks = "\n\n".join(f"`{test.path}::{test.name}`" for test in row.tests(tests))
    fields = {
        "It says": row.stands,
        "True is": row.truth,
        "Stated right in": (
            f'<a href="{chapter}.html#{make_id(heading)}">{heading}</a>, '
            f"[chapter {int(chapter[:2])}]({chapter}.ipynb)"
        ),
        "Checked by": checks,
    }
    listed = "\n\n".join(f"{name}\n: " + text.replace("\n", "\n  ") for name, text in fields.items())
    return (
        f"({row.anchor})=\n:::{{div}} erratum erratum-{row.verdict}\n"
        f"**[{row.id}](#{row.anchor})** *{row.place[0].upper()}{row.place[1:]}*: "
        f"**{VERDICTS[row.verdict]}**\n\n"
        f"{listed}\n:::\n"
    )


def page_text(root: Path) -> str:
    """Return the summary, the filter (radio buttons, read by the style sheet) and the cards, as MyST."""
    sources, rows = read(root)
    tests = read_tests(root)
    count = {verdict: sum(row.verdict == verdict for row in rows) for verdict in VERDICTS}
    choices = {"all": f"All ({len(rows)})", **{v: f"{name} ({count[v]})" for v, name in VERDICTS.items()}}
    buttons = "".join(
        f'<label><input type="radio" name="errata" value="{value}"{" checked" * (value == "all")}>'
        f" {name}</label>"
        for value, name in choices.items()
    )
    parts = [
        f"Of {len(rows)} statements {count['holds']} hold, {count['conditional']} need a condition that is not "
        f"stated, {count['slip']} have a slip of notation or typesetting with a right conclusion, "
        f"{count['outdated']} were true of an older version, and {count['wrong']} are wrong. "
        f"{len(tests)} tests check them.\n",
        f'<fieldset class="errata-filter"><legend>Show</legend>{buttons}</fieldset>\n',
    ]
    for source in sources:
        parts += [f"## {source['title']}\n", f"{source['about']}\n"]
        parts += [card(row, tests) for row in rows if row.id.split(".")[0] == str(source["id"])]
        if source.get("pen"):
            parts.append(f"*Slips of the pen, with nothing to compute.* {source['pen']}\n")
    return "\n".join(parts)


def fill(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the cards into the page."""
    if docname == PAGE:
        source[0] = source[0].replace(MARK, page_text(Path(app.srcdir)))


def outdated(app: Sphinx, env: BuildEnvironment, *changes: set[str]) -> list[str]:
    """Warn at every build, so that -W fails until rows and tests fit; read the page again at each."""
    if PAGE not in env.found_docs:
        return []
    for problem in problems(Path(app.srcdir)):
        logger.warning(problem, type="errata")
    return [PAGE]


def link_mentions(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Make links of what the chapters say of a row."""
    if docname == PAGE or PAGE not in app.env.found_docs:
        return
    anchors = {row.id: row.anchor for row in read(Path(app.srcdir))[1]}
    page = app.builder.get_relative_uri(docname, PAGE)
    for text in list(doctree.findall(nodes.Text)):
        around: list[nodes.Node] = [text]
        while around[-1].parent is not None:
            around.append(around[-1].parent)
        if any(isinstance(node, _NO_LINKS) for node in around):
            continue
        sources = any(
            "sources-and-corrections" in node["ids"] for node in around[1:] if isinstance(node, nodes.section)
        )
        plain, pieces, position = text.astext(), [], 0
        for found in sorted(
            [*_MENTION.finditer(plain), *(_BRACKETS.finditer(plain) if sources else [])],
            key=lambda f: f.start(),
        ):
            if found[1] in anchors:
                link = nodes.reference("", found[0], refuri=f"{page}#{anchors[found[1]]}", internal=True)
                pieces += [nodes.Text(plain[position : found.start()]), link]
                position = found.end()
        if pieces:
            text.parent.replace(text, [*pieces, nodes.Text(plain[position:])])


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to the page and to the chapters."""
    app.connect("source-read", fill)
    app.connect("env-get-outdated", outdated)
    app.connect("doctree-resolved", link_mentions)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
