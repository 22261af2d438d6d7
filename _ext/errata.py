"""The errata page: a card for each statement of the sources, from chapters/errata.yml and the tests' marks.

The line `% errata` of chapters/errata.md is replaced by the cards, each with an anchor such as
`#erratum-3-3`; in the chapters "erratum 3.3" and, under "Sources and corrections", "(3.3)" become links to
the card.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from docutils.nodes import make_id

from marks import VERDICTS, Mark, Row, read_errata, read_marks

if TYPE_CHECKING:
    from sphinx.application import Sphinx

PAGE, MARK = "chapters/errata", "% errata\n"
_MENTION = re.compile(r"\b[Ee]rrat(?:um|a) \d\.(?:\d+|[a-z])\b")
_NUMBER = re.compile(rf"{_MENTION.pattern}|(?<=\()\d\.\d+(?=\))")
_NO_LINKS = nodes.reference | nodes.literal | nodes.literal_block | nodes.math | nodes.title | nodes.raw


def card(row: Row, tests: list[Mark]) -> str:
    """Return a row as MyST."""
    chapter, heading = row.section
    checks = "\n\n".join(
        f'<a href="../_sources/{test.path}.txt#:~:text=def%20{test.function}"><code>{test.name}</code></a>'
        for test in tests
        if test.of == row.id
    )
    fields = {
        "It says": row.stands,
        "In fact": row.truth,
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
    """Return the summary and the cards, as MyST."""
    sources, rows = read_errata(root)
    tests = [mark for mark in read_marks(root)[0] if mark.kind == "erratum"]
    count = {verdict: sum(row.verdict == verdict for row in rows) for verdict in VERDICTS}
    wrong = ", ".join(f"[{row.id}](#{row.anchor})" for row in rows if row.verdict == "wrong")
    parts = [
        f"Of {len(rows)} statements {count['holds']} hold, {count['conditional']} need a condition that is not "
        f"stated there, {count['slip']} have a slip of notation, wording or typesetting with a right conclusion, "
        f"{count['outdated']} are outdated, and {count['wrong']} are wrong ({wrong}). "
        f"{len({test.name for test in tests})} tests check them.\n",
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


def link_mentions(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Make links of what the chapters say of a row."""
    if docname == PAGE or PAGE not in app.env.found_docs:
        return
    anchors = {row.id: row.anchor for row in read_errata(Path(app.srcdir))[1]}
    page = app.builder.get_relative_uri(docname, PAGE)
    for text in list(doctree.findall(nodes.Text)):
        around: list[nodes.Node] = [text]
        while around[-1].parent is not None:
            around.append(around[-1].parent)
        if any(isinstance(node, _NO_LINKS) for node in around):
            continue
        sections = [node for node in around if isinstance(node, nodes.section)]
        sources = any("sources-and-corrections" in section["ids"] for section in sections)
        plain, pieces, position = text.astext(), [], 0
        for found in (_NUMBER if sources else _MENTION).finditer(plain):
            if (number := found[0].rpartition(" ")[2]) in anchors:
                link = nodes.reference("", found[0], refuri=f"{page}#{anchors[number]}", internal=True)
                pieces += [nodes.Text(plain[position : found.start()]), link]
                position = found.end()
        if pieces:
            text.parent.replace(text, [*pieces, nodes.Text(plain[position:])])


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to the page and to the chapters."""
    app.connect("source-read", fill)
    app.connect("doctree-resolved", link_mentions)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
