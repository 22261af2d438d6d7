"""The errata page: a card for each statement of the sources, from chapters/errata.yml and the tests' names.

`{errata}` renders the cards, source by source, each with an anchor such as `#erratum-3-3`. The filter above
them is a row of radio buttons and a style sheet; it needs no script. In the chapters "erratum 3.3" and, under
"Sources and corrections", "(3.3)" become links to the card.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

import errata
import ledger

logger = logging.getLogger(__name__)

PAGE = "chapters/errata"
_MENTION = re.compile(r"\b([Ee]rrat(?:um|a) )(\d\.(?:\d+|[a-z]))\b")
_BRACKETS = re.compile(r"(\()(\d\.\d+)(?=\))")


class Errata(SphinxDirective):
    """Renders the filter and the cards."""

    has_content = False

    def run(self) -> list[nodes.Node]:
        root = Path(self.env.srcdir)
        for source in (root / errata.FILE, Path(errata.__file__)):
            self.env.note_dependency(str(source))
        sources, rows = errata.read(root)
        tests = errata.read_tests(root)
        for path in {test.path for test in tests}:
            self.env.note_dependency(str(root / path))
        titles = ledger.chapter_titles(root)

        rendered: list[nodes.Node] = [self._summary(rows, tests), *self._filter(rows)]
        for source in sources:
            section = nodes.section(
                ids=[f"errata-{source.id}"], names=[f"errata-{source.id}"], classes=["errata-source"]
            )
            title = nodes.title("", source.title)
            section += title
            section += self._parsed(source.about)
            for row in rows:
                if row.id.split(".")[0] == str(source.id):
                    section += self._card(row, errata.tests_of(row, tests), titles)
            if source.pen:
                section += self._parsed(f"*Slips of the pen, with nothing to compute.* {source.pen}")
            rendered.append(section)
        return rendered

    def _parsed(self, text: str) -> list[nodes.Node]:
        holder = nodes.container()
        lines = StringList(text.splitlines(), source=str(errata.FILE))
        self.state.nested_parse(lines, self.content_offset, holder)
        return list(holder.children)

    def _summary(self, rows: list[errata.Row], tests: list[errata.Test]) -> nodes.Node:
        counts = {v: sum(row.verdict == v for row in rows) for v in errata.VERDICTS}
        text = (
            f"Of {len(rows)} statements {counts['wrong']} are wrong, {counts['outdated']} were true of an "
            f"older version, {counts['conditional']} need a condition that is not stated, and "
            f"{counts['holds']} hold. "
            f"{len({test.place for test in tests})} tests check them."
        )
        return nodes.paragraph("", text)

    def _filter(self, rows: list[errata.Row]) -> Iterable[nodes.Node]:
        """Radio buttons before the cards, at the level of the sections: the style sheet does the rest."""
        choices = [("all", "All", len(rows))]
        choices += [(v, name, sum(row.verdict == v for row in rows)) for v, name in errata.VERDICTS.items()]
        buttons = "".join(
            f'<label><input type="radio" name="errata" value="{value}"{" checked" if value == "all" else ""}>'
            f" {name} ({number})</label>"
            for value, name, number in choices
        )
        yield nodes.raw(
            "",
            f'<fieldset class="errata-filter"><legend>Show</legend>{buttons}</fieldset>',
            format="html",
        )

    def _card(self, row: errata.Row, tests: list[errata.Test], titles: dict[str, str]) -> nodes.Node:
        card = nodes.container(classes=["erratum", f"erratum-{row.verdict}"], ids=[row.anchor])
        head = nodes.paragraph(classes=["erratum-head"])
        head += nodes.reference("", row.id, refuri=f"#{row.anchor}", internal=True)
        head += nodes.inline("", errata.VERDICTS[row.verdict], classes=["erratum-verdict"])
        card += head
        place = self._parsed(f"{row.place[0].upper()}{row.place[1:]}")
        for node in place:
            if isinstance(node, nodes.paragraph):
                node["classes"].append("erratum-place")
        card += place
        fields = nodes.definition_list(classes=["erratum-fields"])
        for name, text in (("It says", row.stands), ("True is", row.truth)):
            item = nodes.definition_list_item()
            item += nodes.term("", name)
            item += nodes.definition("", *self._parsed(text))
            fields += item
        link = nodes.reference("", row.heading, refuri=row.target, internal=True)
        title = titles.get(row.chapter)
        where = nodes.paragraph("", "", link, nodes.Text(f", in {title}" if title else ""))
        item = nodes.definition_list_item()
        item += nodes.term("", "Stated right in")
        item += nodes.definition("", where)
        fields += item
        item = nodes.definition_list_item()
        item += nodes.term("", "Checked by")
        lines = [nodes.paragraph("", "", nodes.literal("", test.place)) for test in tests]
        item += nodes.definition("", *lines)
        fields += item
        card += fields
        return card


def _link_mentions(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Make links of what the chapters say of a row."""
    if docname == PAGE or PAGE not in app.env.found_docs or app.builder.format != "html":
        return
    anchors = {row.id: row.anchor for row in errata.read(Path(app.srcdir))[1]}
    page = app.builder.get_relative_uri(docname, PAGE)
    for text in list(doctree.findall(nodes.Text)):
        place: nodes.Node | None = text.parent
        inside: set[str] = set()
        sources = False
        while place is not None:
            inside.add(place.tagname)
            sources |= isinstance(place, nodes.section) and "sources-and-corrections" in place["ids"]
            place = place.parent
        if inside & {
            "reference",
            "literal",
            "literal_block",
            "math",
            "math_block",
            "title",
            "raw",
            "comment",
        }:
            continue
        pieces: list[nodes.Node] = []
        position, plain = 0, text.astext()
        for match in re.finditer(
            f"{_MENTION.pattern}|{_BRACKETS.pattern}" if sources else _MENTION.pattern, plain
        ):
            groups = [group for group in match.groups() if group is not None]
            before, row = groups
            if row not in anchors:
                continue
            start = match.start() + (len(before) if before == "(" else 0)
            shown = plain[start : match.end()]
            pieces += [nodes.Text(plain[position:start])]
            pieces += [nodes.reference("", shown, refuri=f"{page}#{anchors[row]}", internal=True)]
            position = match.end()
        if pieces:
            text.parent.replace(text, [*pieces, nodes.Text(plain[position:])])


def _style(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object) -> None:
    if pagename == PAGE:
        app.add_css_file("page/appendix.css")


def _digest(root: Path) -> str:
    """A digest of what the page shows and its own source does not hold: the tests' names and the titles."""
    tests = [test.place for test in errata.read_tests(root)]
    return hashlib.sha256(repr((tests, ledger.chapter_titles(root))).encode()).hexdigest()


def _outdated(app: Sphinx, env: BuildEnvironment, *changes: set[str]) -> list[str]:
    """Read the page again when a test came or went."""
    if PAGE not in env.found_docs:
        return []
    digest = _digest(Path(app.srcdir))
    before = getattr(env, "xent_errata_digest", None)
    env.xent_errata_digest = digest  # type: ignore[attr-defined]
    return [PAGE] if before != digest else []


def _warn(app: Sphinx) -> None:
    """Warn at every build, so that -W fails until rows, tests and sections fit."""
    root = Path(app.srcdir)
    if (root / errata.FILE).exists():
        for problem in errata.problems(root):
            logger.warning("errata: %s", problem, type="xent", subtype="errata")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive and the links."""
    app.add_directive("errata", Errata)
    app.connect("builder-inited", _warn)
    app.connect("env-get-outdated", _outdated)
    app.connect("doctree-resolved", _link_mentions)
    app.connect("html-page-context", _style)
    return {"version": "1", "env_version": 1, "parallel_read_safe": True, "parallel_write_safe": True}
