"""The search: Pagefind's index of the book, a record for each section, made at the end of the build.

A record is a section with its own words, without those of the sections in it: a chapter as one record would be found
for anything. So are an object of the reference, a term of the glossary and an erratum. Its heading and what the
book's index says of it weigh most, code least; outputs and menus are left out, and a formula is the text that it
draws. Pagefind's script, its WebAssembly and the pieces of the index that a query needs are served with the pages
from `pagefind/`; `_static/page.js` shows what they find.
"""

from __future__ import annotations

import gzip
import html
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import cbor2
from docutils import nodes
from sphinx import addnodes

from math_at_build import text_of

if TYPE_CHECKING:
    from sphinx.application import Sphinx

# What is listed elsewhere, word for word.
LEFT_OUT = re.compile(r"chapters/(equations|ledger/.*|references)")
# Weights of a heading (Pagefind's scale ends at 10, and what weighs twice as much counts four times). In the pages for
# looking up they weigh less than in a chapter.
HEADINGS = {"chapters/api": 7, "chapters/notation": 5, "chapters/errata": 2, "chapters/benchmarks": 5}
KEYWORD, PROSE, CODE = 8, 1, 0.3
_SKIPPED = nodes.raw | nodes.comment | nodes.image | nodes.system_message | nodes.substitution_definition
_BLOCKS = nodes.paragraph | nodes.title | nodes.list_item | nodes.entry | nodes.literal_block | nodes.term


class Record(NamedTuple):
    """What the search can find: an address, its heading with those above, its words by weight."""

    url: str
    above: list[str]
    title: str
    named: dict[str, bool]  # the keys of its names and of those in the index; whether this is the main place
    words: list[tuple[float, str]]


def _says(node: nodes.Node, keywords: list[str], code: list[str], inner: list[nodes.Element]) -> str:
    """Return a node's text; put aside what the index says of it, its code, and what has a record of its own."""
    if isinstance(node, nodes.math | nodes.math_block):
        return text_of(node.astext())
    if isinstance(node, nodes.Text):
        return node.astext()
    if isinstance(node, addnodes.index):
        keywords += [
            ("! " if entry[3] == "main" else "") + entry[1] for entry in node["entries"] if entry[0] != "see"
        ]
        return ""
    if isinstance(node, addnodes.pending_xref) and not node.get("refexplicit") and node["refdomain"] != "py":
        return ""  # only a label yet
    if isinstance(node, _SKIPPED) or not isinstance(node, nodes.Element):
        return ""
    if {"cell_output", "claim"} & set(node["classes"]):
        return ""
    if _title(node) is not None:
        inner.append(node)
        return ""
    if isinstance(node, nodes.literal_block):
        code.append(node.astext())
        return ""
    said = "".join(_says(child, keywords, code, inner) for child in node.children)
    return f"{said} " if isinstance(node, _BLOCKS) else said


def _title(node: nodes.Element) -> nodes.Element | None:
    """Return what names a node with a record of its own, or None for any other."""
    if isinstance(node, nodes.section):
        return node.next_node(nodes.title)
    if isinstance(node, addnodes.desc) and node[0].get("ids"):
        return node[0]
    if isinstance(node, nodes.definition_list_item) and isinstance(node.parent.parent, addnodes.glossary):
        return node[0]
    return node.next_node(nodes.paragraph) if "erratum" in node.get("classes", []) else None


def key(words: str) -> str:
    """Return what is compared of a name and of what a reader types, in `_static/page.js` likewise."""
    return " ".join(
        sorted({*re.findall(r"[^\W_]+(?:\.\d+)?", words.lower())} - {"a", "at", "in", "is", "of", "the"})
    )


def records(node: nodes.Element, page: str, above: list[str]) -> Iterator[Record]:
    """Yield the record of a node that has a title, then those of the nodes in it."""
    title = _title(node)
    assert title is not None
    keywords: list[str] = []
    code: list[str] = []
    inner: list[nodes.Element] = []
    if isinstance(node, addnodes.desc):
        names = [signature["fullname"] for signature in node.findall(addnodes.desc_signature)]
        name = f"{title['module']}.{names[0]}"
        # Of two twins the arrays' comes first.
        keywords.append(names[0] if "torch" in title["module"] else f"! {names[0]}")
    else:
        name = " ".join(_says(title, keywords, code, []).split())
    said = [_says(child, keywords, code, inner) for child in node.children if child is not title]
    ids = title["ids"] if isinstance(node, addnodes.desc | nodes.definition_list_item) else node["ids"]
    url = f"{page}#{ids[-1]}" if above else page
    words = [
        (PROSE, re.sub(r" (?=[.,;:)])", "", " ".join(said))),
        (KEYWORD, "; ".join(k.removeprefix("! ") for k in keywords)),
        (CODE, "\n".join(code)),
    ]
    named = {key(name): False}
    for keyword in keywords:
        for said in (keyword, keyword.partition(";")[0]):
            named[key(said)] = named.get(key(said), False) or keyword.startswith("!")
    yield Record(
        url, above, name, named, [(weight, " ".join(text.split())) for weight, text in words if text.strip()]
    )
    for child in inner:
        yield from records(child, page, [*above, name])


def page(record: Record) -> str:
    """Return a record as the page that Pagefind reads."""
    said = "".join(
        f'<p data-pagefind-weight="{weight}">{html.escape(text)}</p>' for weight, text in record.words
    )
    above = html.escape(" › ".join(record.above), quote=True)
    heading = HEADINGS.get(record.url.partition(".")[0], 10)
    # A filter for each first letter: a query fetches one of them.
    named = "".join(f'<i data-pagefind-filter="{name[:1]}:{name}"></i>' for name in record.named if name)
    main = "; ".join(name for name, is_main in record.named.items() if is_main)
    return (
        f'<html lang="en"><body>{named}<h1 data-pagefind-weight="{heading}" data-pagefind-meta="title">'
        f'{html.escape(record.title)}</h1>{said}<i data-pagefind-meta="above:{above}"></i>'
        f'<i data-pagefind-meta="main:{main}"></i><i data-pagefind-meta="at:{record.url}"></i></body></html>'
    )


def _index(found: list[Record], target: Path) -> None:
    """Let Pagefind's own program read the records: its Python interface takes a tenth of a second for each."""
    shutil.rmtree(target, ignore_errors=True)  # Pagefind leaves the files of an earlier build
    with tempfile.TemporaryDirectory() as folder:
        for number, record in enumerate(found):
            (Path(folder) / f"{number:05}.html").write_text(page(record), encoding="utf-8")
        told = ["--site", folder, "--output-path", str(target), "--include-characters", "_", "--quiet"]
        subprocess.run([sys.executable, "-m", "pagefind", *told], check=True)
    # Pagefind's pieces hold 30 kB each, and a query fetches one for each of its words: every piece is cut into three.
    head, [meta] = b"pagefind_dcd", target.glob("pagefind.*.pf_meta")
    version, pages, pieces, *rest = cbor2.loads(gzip.decompress(meta.read_bytes())[len(head) :])
    cut = []
    for _, _, name in pieces:
        whole = target / "index" / f"{name}.pf_index"
        words, *more = cbor2.loads(gzip.decompress(whole.read_bytes())[len(head) :])
        whole.unlink()
        for i in range(0, len(words), size := len(words) // 3 + 1):
            few = words[i : i + size]
            data = gzip.compress(head + cbor2.dumps([few, *more]), mtime=0)
            (target / "index" / f"{name}{i}.pf_index").write_bytes(data)
            cut.append([few[0][0], few[-1][0], f"{name}{i}"])
    meta.write_bytes(gzip.compress(head + cbor2.dumps([version, pages, cut, *rest]), mtime=0))


def write(app: Sphinx, exception: Exception | None) -> None:
    """Write the index of all pages; a build of some pages leaves the others as they were."""
    if exception or app.builder.format != "html":
        return
    found: list[Record] = []
    for docname in sorted(app.env.found_docs):
        top = app.env.get_doctree(docname).next_node(nodes.section)
        if top is not None and not LEFT_OUT.fullmatch(docname):
            found += records(top, app.builder.get_target_uri(docname), [])
    for kind, value, *_ in chain(*app.env.domaindata["index"]["entries"].values()):
        if kind == "see":
            alias, name = (part.strip() for part in value.split(";"))
            for record in (one for one in found if one.named.get(key(name))):
                record.named[key(alias)] = True
                record.words.append((KEYWORD, alias))
    _index(found, Path(app.outdir) / "pagefind")


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to the end of the build."""
    app.connect("build-finished", write)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
