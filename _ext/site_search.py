"""The search: an index of the book's sections, made at the end of the build, which `_static/page.js` asks.

A record is a section with its own words, without those of the sections in it: a chapter as one record would be found
for anything. So are an object of the reference, a term of the glossary and an erratum. Headings and what the book's
index says weigh most, code least; outputs are left out, and a formula is the text that it draws. How much a word
counts in a record is BM25's, computed here; the browser sums it up, and a question finds what has most of its words,
the rarer the better. Stems and stop words are Sphinx's, which come to the browser in its `language_data.js`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from docutils import nodes
from sphinx import addnodes
from sphinx.search.en import SearchEnglish

from math_at_build import text_of

if TYPE_CHECKING:
    from sphinx.application import Sphinx

# What is listed elsewhere, word for word.
LEFT_OUT = re.compile(r"chapters/(equations|ledger/.*|references)")
HEADING, KEYWORD, ABOVE, PROSE, CODE, FORMULA = 8.0, 5.0, 0.5, 1.0, 0.3, 0.0  # weights of a word
SATURATION, LENGTH = 2.0, 0.5  # of BM25: k1 and b
LONGEST = 4  # words of a name that somebody might type
LEVELS = 7  # into which a word's weight is rounded
LEAD = 100  # characters of a section that a result shows
# How much what is found on a page counts: sections of chapters answer a question, the others are for looking up.
PLACES = {
    r"errata": 0.4,
    r"api": 0.55,
    r"notation|.*#(exercises|what-to-remember|sources-and-corrections)": 0.6,
    r"benchmarks|note_": 0.7,
    r"line": 0.9,
    r"\d|get|rewards": 1.0,
    r"": 0.5,
}
_SKIPPED = nodes.raw | nodes.comment | nodes.image | nodes.system_message | nodes.substitution_definition

# A name from code is a word with its dots and underscores, and so are its parts; hyphens hold a word together.
# page.js has the same two patterns.
WORD = re.compile(r"[^\W_](?:[\w.]*\w)?(?:-[^\W\d_]\w*)*")
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ENGLISH = SearchEnglish({})
# Beside Sphinx's own: what makes a question of some words.
STOPPED = _ENGLISH.stopwords | set(
    re.findall(
        r"\w+",
        """
    all am an any been being can could do does did doing from get gets got had has have he her his how i just me my
    only our should so some than them use used using vs we were what when where which who why would you your""",
    )
)
_stem = cache(_ENGLISH.stem)


class Record(NamedTuple):
    """What the search can find: an address, its headings from the page's to its own, its words by weight."""

    url: str
    headings: list[str]
    said: list[tuple[float, str]]


def words(text: str) -> Iterator[list[str]]:
    """Yield each word of a text with its parts, the whole first, as they are compared."""
    for word in WORD.findall(text):
        parts = [] if word[0].isdigit() else [part.lower() for part in PART.findall(word)]
        forms = dict.fromkeys([word.lower().replace("-", ""), *parts])
        yield [_stem(form) for form in forms if len(form) > 1 and form not in STOPPED]


def plain(text: str) -> list[str]:
    """Return the words of a text, none of them a stop word."""
    return [word for word in re.findall(r"[^\W_]+", text.lower()) if word not in STOPPED]


def name(text: str) -> str:
    """Return what is compared of a section's name and of what a reader types: its words, in any order."""
    return "=" + " ".join(sorted({_stem(word) for word in plain(text)}))


def _title(node: nodes.Node) -> nodes.Element | None:
    """Return what names a node with a record of its own, or None for any other."""
    if isinstance(node, nodes.section):
        return node.next_node(nodes.title)
    if isinstance(node, addnodes.desc) and node[0].get("ids"):
        return node[0]
    if isinstance(node, nodes.definition_list_item) and isinstance(node.parent.parent, addnodes.glossary):
        return node[0]
    erratum = isinstance(node, nodes.Element) and "erratum" in node.get("classes", [])
    return node.next_node(nodes.paragraph) if erratum else None


def _said(node: nodes.Node, weight: float, inner: list[nodes.Element]) -> Iterator[tuple[float, str]]:
    """Yield a node's words by weight; put aside what has a record of its own."""
    if isinstance(node, nodes.math | nodes.math_block):
        yield FORMULA, text_of(node.astext())
    elif isinstance(node, nodes.Text):
        yield weight, node.astext() * (node != "✓")
    elif isinstance(node, addnodes.index):
        named = isinstance(node.next_node(descend=False, siblings=True), addnodes.desc)  # by autodoc
        for kind, entry, _, main, _ in node["entries"]:
            if kind != "see" and not named:
                yield KEYWORD, ("! " if main else "") + entry
    elif isinstance(node, _SKIPPED) or not isinstance(node, nodes.Element):
        return
    elif (
        isinstance(node, addnodes.pending_xref) and not node.get("refexplicit") and node["refdomain"] != "py"
    ):
        return  # only a label yet
    elif "cell_output" in node["classes"]:
        return
    elif _title(node) is not None:
        inner.append(node)
    else:
        weight = CODE if isinstance(node, nodes.literal_block) else weight
        for child in node.children:
            yield from _said(child, weight, inner)
        if isinstance(node, nodes.TextElement) and not isinstance(node, nodes.Inline):
            yield weight, " "


def records(node: nodes.Element, page: str, above: list[str]) -> Iterator[Record]:
    """Yield the record of a node that has a title, then those of the nodes in it."""
    title, inner = _title(node), list[nodes.Element]()
    assert title is not None
    parts = chain.from_iterable(_said(child, HEADING, []) for child in title.children)
    named = "".join(text for weight, text in parts if weight in (HEADING, FORMULA))
    if isinstance(node, addnodes.desc):
        named = f"{title['module']}.{title['fullname']}"
    headings = [*above, " ".join(named.split())]
    said = [one for child in node.children if child is not title for one in _said(child, PROSE, inner)]
    ids = title["ids"] if isinstance(node, addnodes.desc | nodes.definition_list_item) else node["ids"]
    named_by_hand = [i for i in ids if not i.startswith("index-")]
    yield Record(f"{page}#{named_by_hand[-1]}" if above else page, headings, said)
    for child in inner:
        yield from records(child, page, headings)


def counts(record: Record) -> Counter[str]:
    """Return how often a record says each word, by weight; neighbours in a heading or keyword are a word besides."""
    total = Counter[str]()
    above = [(ABOVE, heading) for heading in record.headings[:-1]]
    for weight, text in [(HEADING, record.headings[-1]), *above, *record.said]:
        for form in chain.from_iterable(words(text)):
            if weight >= PROSE or (weight and form[0].isalpha()):
                total[form] += weight
        if weight >= KEYWORD:
            for first, second in pairwise(plain(text)):
                total[_stem(first + second)] += weight
    return Counter({word: weight for word, weight in total.items() if weight >= ABOVE})  # not once, in code


def names(record: Record) -> dict[str, int]:
    """Return the names of a record and the levels of these: whether the book's index says that it is the main place."""
    heading = record.headings[-1]
    found = {name(heading): 1}
    if "/api" in record.url:  # of two twins the arrays' comes first
        found[name(heading.rpartition(".")[2])] = 1 if "torch" in heading else LEVELS
    for keyword in (text for weight, text in record.said if weight == KEYWORD):
        for one in (keyword, keyword.partition(";")[0]):
            found[name(one)] = max(found.get(name(one), 1), LEVELS if keyword.startswith("!") else 1)
    return {one: level for one, level in found.items() if one.count(" ") < LONGEST}


def index(found: list[Record]) -> dict[str, Any]:
    """Return the records as they are shown, and for each word which of them say it how much."""
    counted = [counts(record) for record in found]
    lengths = [sum(count.values()) for count in counted]
    mean = sum(lengths) / len(found)
    postings: dict[str, list[int]] = {}
    last: dict[str, int] = {}
    for number, (record, count, length) in enumerate(zip(found, counted, lengths, strict=True)):
        norm = SATURATION * (1 - LENGTH + LENGTH * length / mean)
        levels = {word: max(1, round(LEVELS * weight / (weight + norm))) for word, weight in count.items()}
        for word, level in (levels | names(record)).items():
            # Two numbers in one: how many records further, and how much.
            postings.setdefault(word, []).append((number - last.get(word, 0)) * (LEVELS + 1) + level)
            last[word] = number
    shown = []
    for record in found:
        page = record.url.removeprefix("chapters/")
        place = next(share for pattern, share in PLACES.items() if re.match(pattern, page))
        text = "".join(text for weight, text in record.said if weight in (PROSE, FORMULA))
        lead = re.sub(r" (?=[.,;:)])", "", " ".join(text.split()))
        lead = lead[:LEAD].rpartition(" ")[0] + "…" if len(lead) > LEAD else lead
        shown.append([record.url, place, record.headings, lead])
    return {
        "levels": LEVELS,
        "stop": sorted(STOPPED),
        "records": shown,
        "words": dict(sorted(postings.items())),
    }


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
            alias, meant = (part.strip() for part in value.split(";"))
            for record in found:
                if name(meant) in names(record):
                    record.said.append((KEYWORD, alias))
    text = json.dumps(index(found), ensure_ascii=False, separators=(",", ":"))
    (Path(app.outdir) / "_static" / "sections.json").write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to the end of the build."""
    app.connect("build-finished", write)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
