"""The pages of evidence, the ledger and the errata, and what leads to them: marks behind claims, links from mentions.

The ledger has a page for each chapter: its displayed equations and its claims, joined with the tests that check them
(marks.py says what these are). All is written as MyST: the pages of the ledger before the build, the marks, the
ledger's table and the errata's cards as a page is read. `_static/page.js` shows an entry or a card in place.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.util import logging

import marks
from marks import VERDICTS, Mark, Row

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config

LEDGER, ERRATA = "chapters/ledger", "chapters/errata"
# What the chapters call a row of the errata; where they name their sources, its number in parentheses will do.
MENTION = r"\b[Ee]rrat(?:um|a) \d\.(?:\d+|[a-z])\b"
LISTED = rf"{MENTION}|(?<=\()\d\.\d+(?=\))"
NO_LINKS = nodes.reference | nodes.literal | nodes.literal_block | nodes.math | nodes.title | nodes.raw


def link(path: str, begins: str, name: str, up: str = "..") -> str:
    """Return a link to the copy of a test's file, scrolled to what begins so."""
    return f'<a href="{up}/_sources/{path}.txt#:~:text={begins}"><code>{name}</code></a>'


def claims(root: Path, chapter: str) -> list[Mark]:
    """Return the marks of the claims of a chapter."""
    named = "claim", chapter.partition("_")[0]
    return [mark for mark in marks.read_marks(root)[0] if (mark.kind, mark.of) == named]


# ---------------------------------------------------------------------------------------------------- the ledger


def entry(anchor: str, said: str, tried: str) -> str:
    """Return an entry: what is stated, and how it is tested."""
    return f"({anchor})=\n:::{{div}} ledger-entry\n{said}\n\n{{.ledger-tests}}\n{tried}\n:::\n"


def equation_entry(root: Path, equation: marks.Equation) -> str:
    """Return the entry of an equation, which is stated again without a label: its number leads to it."""
    label, read = equation.label, marks.read_from_the_page(root)
    tests = [mark for mark in marks.read_marks(root)[0] if (mark.kind, mark.of) == ("equation", label)]
    how = [f"{link(test.path, test.function, test.name, '../..')}: transcribed." for test in tests]
    if label in read:
        left_out = f", but for {n} part{'s' * (n != 1)}" if (n := read[label][1]) else ""
        where = link(marks.READ, f"%22{label}%22", Path(marks.READ).name, "../..")
        how.append(f"{where}: read from the page{left_out}.")
    return entry(
        f"ledger-{label}", f"**{{eq}}`{label}`** `{label}`\n\n$$\n{equation.tex}\n$$", "\n".join(how)
    )


def claim_entry(claim: Mark, chapter: str, cells: list[str]) -> str:
    """Return the entry of a claim: the sentence, which leads to where it is said, its test, and what that rejects."""
    stated = " ".join(cell[begin:end] for cell in cells for begin, end in claim.places(cell)[:1])
    said = re.sub(r"\]\((?=\d\d_)", "](../", marks.as_sentence(" ".join(stated.split())))
    back = f'<a href="../{chapter}.html#said-{claim.anchor}" title="where this is said">↑</a>'
    named = [what for what in claim.rejects if what != "…"]
    rejected = f"Rejected: {'; '.join(named)}." if named else ""
    tried = [*claim.doc.split(), *rejected.split(), link(claim.path, claim.function, claim.name, "../..")]
    return entry(claim.anchor, f"{said} {back}", " ".join(tried))


def write_ledger(app: Sphinx, config: Config) -> None:
    """Write a page for each chapter that states something, where `glob: chapters/ledger/*` of _toc.yml finds it."""
    root, folder = Path(app.srcdir), Path(app.srcdir) / LEDGER
    if LEDGER not in (root / "_toc.yml").read_text("utf-8"):
        return
    pages = {}
    for chapter, title in marks.chapter_titles(root).items():
        cells = [cell for path, _, cell in marks.markdown_cells(root) if path.stem == chapter]
        equations = [e for e in marks.read_equations(root)[0] if e.chapter == chapter]
        of = f"chapter {int(chapter[:2])}" if chapter[:2].isdigit() else f"“{title}”"
        sections = {
            "Equations": [equation_entry(root, equation) for equation in equations],
            "Claims": [claim_entry(claim, chapter, cells) for claim in claims(root, chapter)],
        }
        text = "\n".join("\n".join([f"## {name}\n", *own]) for name, own in sections.items() if own)
        if text:
            pages[folder / f"{chapter}.md"] = f"# Ledger of {of}\n\n{text}"
    folder.mkdir(exist_ok=True)
    for path in {*folder.iterdir()} - pages.keys():
        path.unlink()
    for path, text in pages.items():
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")


def ledger_table(root: Path) -> str:
    """Return a table of all chapters: how many equations and claims, and how they are checked."""
    equations, read = marks.read_equations(root)[0], marks.read_from_the_page(root)
    counted = {}
    for chapter, title in marks.chapter_titles(root).items():
        own = [equation.label in read for equation in equations if equation.chapter == chapter]
        if (said := len(claims(root, chapter))) or own:
            counted[f"{{doc}}`{title} <ledger/{chapter}>`"] = sum(own), len(own) - sum(own), said
    total = [f"**{sum(column)}**" for column in zip(*counted.values(), strict=True)]
    rows = [
        ["chapter", "equations read from the page", "transcribed", "claims"],
        ["---", "--:", "--:", "--:"],
    ]
    rows += [[name, *map(str, numbers)] for name, numbers in counted.items()]
    return "\n".join(f"| {' | '.join(row)} |" for row in [*rows, ["**all**", *total]])


def mark_claims(root: Path, docname: str, text: str) -> str:
    """Put the marks into a chapter, from the end, so that the places found stay right."""
    chapter, notebook = Path(docname).name, json.loads(text)
    for cell in (cell for cell in notebook["cells"] if cell["cell_type"] == "markdown"):
        source = "".join(cell["source"])
        places = [(end, c.anchor) for c in claims(root, chapter) for _, end in c.places(source)]
        for end, anchor in sorted(places, reverse=True):
            to = f'id="said-{anchor}" href="ledger/{chapter}.html#{anchor}" title="how this was tested"'
            source = f'{source[:end]}<a class="claim" {to}>✓</a>{source[end:]}'
        cell["source"] = source
    return json.dumps(notebook)


# ---------------------------------------------------------------------------------------------------- the errata


def card(row: Row, tests: list[Mark]) -> str:
    """Return the card of a row."""
    chapter, heading = row.section
    place = f'<a href="{chapter}.html#{nodes.make_id(heading)}">{heading}</a>'
    fields = {
        "It says": row.stands,
        "In fact": row.truth,
        "Stated right in": f"{place}, [chapter {int(chapter[:2])}]({chapter}.ipynb)",
        "Checked by": "\n\n".join(
            link(t.path, f"def%20{t.function}", t.name) for t in tests if t.of == row.id
        ),
    }
    listed = "\n\n".join(f"{name}\n: " + text.replace("\n", "\n  ") for name, text in fields.items())
    return (
        f"({row.anchor})=\n:::{{div}} erratum erratum-{row.verdict}\n"
        f"**[{row.id}](#{row.anchor})** *{row.place[0].upper()}{row.place[1:]}*: **{VERDICTS[row.verdict]}**\n\n"
        f"{listed}\n:::\n"
    )


def errata_cards(root: Path) -> str:
    """Return the summary, and a card for each statement of the sources."""
    sources, rows = marks.read_errata(root)
    tests = [mark for mark in marks.read_marks(root)[0] if mark.kind == "erratum"]
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


def texts_in(around: Iterable[nodes.Node]) -> set[int]:
    """Return which texts stand in these nodes."""
    return {id(text) for node in around for text in node.findall(nodes.Text)}


def link_mentions(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Make links of what the chapters say of a row."""
    if docname == ERRATA or ERRATA not in app.env.found_docs:
        return
    anchors = {row.id: row.anchor for row in marks.read_errata(Path(app.srcdir))[1]}
    page = app.builder.get_relative_uri(docname, ERRATA)
    sources = [s for s in doctree.findall(nodes.section) if "sources-and-corrections" in s["ids"]]
    listed, others = texts_in(sources), texts_in(doctree.findall(lambda node: isinstance(node, NO_LINKS)))
    for text in [text for text in doctree.findall(nodes.Text) if id(text) not in others]:
        pieces: list[nodes.Node] = []
        for turn, piece in enumerate(re.split(f"({LISTED if id(text) in listed else MENTION})", text)):
            row = anchors.get(piece.rpartition(" ")[2]) if turn % 2 else None
            uri = f"{page}#{row}"
            pieces.append(nodes.reference("", piece, refuri=uri, internal=True) if row else nodes.Text(piece))
        if len(pieces) > 1:
            text.parent.replace(text, pieces)


# ---------------------------------------------------------------------------------------------------- the build


def fill(app: Sphinx, docname: str, text: list[str]) -> None:
    """Put into a page what comes from the tests."""
    root = Path(app.srcdir)
    if app.env.doc2path(docname).endswith(".ipynb"):
        text[0] = mark_claims(root, docname, text[0])
    elif docname == ERRATA:
        text[0] = text[0].replace("% errata\n", errata_cards(root))
    elif docname == "chapters/equations":
        text[0] = text[0].replace("% ledger\n", ledger_table(root))


def warn(app: Sphinx) -> None:
    """Warn at every build, also of an unchanged book, so that -W fails until chapters and tests agree."""
    for problem in marks.problems(Path(app.srcdir)):
        logging.getLogger(__name__).warning("marks: %s", problem, type="xent", subtype="ledger")


def copy_tests(app: Sphinx, exception: Exception | None) -> None:
    """Put the tests beside the pages that lead to them."""
    tests, copies = Path(app.srcdir) / "tests", Path(app.outdir) / "_sources" / "tests"
    for path in tests.glob("*/test_*.py") if exception is None else ():
        (copies / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copies / path.parent.name / f"{path.name}.txt")


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to the build."""
    app.connect("config-inited", write_ledger, priority=100)  # before anything asks which pages there are
    app.connect("builder-inited", warn)
    app.connect("source-read", fill, priority=600)
    app.connect("doctree-resolved", link_mentions)
    app.connect("build-finished", copy_tests)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
