"""The general index: what `chapters/index_terms.yml` adds to it, and where each of its entries leads.

Glossary entries and functions come into Sphinx's index by themselves. What else a reader would look up (the
name of a theorem, a symptom, a figure) is listed in the file, each with the places where it is told. A place
that is not there makes the build fail. Beside an entry the page prints where it leads: a section's number, an
equation's, a figure's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from docutils import nodes
from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

logger = logging.getLogger(__name__)

FILE = "chapters/index_terms.yml"
CSS = "page/index.css"

Ids = dict[str, set[str]]


# ------------------------------------------------------------------------------------- the file


def read_terms(root: Path) -> list[tuple[str, str]]:
    """Return the entries as (term or "term; subterm", place)."""
    path = root / FILE
    if not path.exists():
        return []
    entries = []
    for term, told in (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).items():
        if isinstance(told, dict):
            entries += [(f"{term}; {sub}", str(place)) for sub, places in told.items() for place in places]
        else:
            entries += [(str(term), str(place)) for place in told]
    return entries


def find(place: str, ids: Ids) -> tuple[str, str] | None:
    """Return the page and the anchor of a place, or None where there is no such thing.

    A place is an equation's, a figure's or a symptom's label; a section as `10/the-harmonic-mean`, by its
    chapter's number; or a page of the appendix by its name.
    """
    if re.match(r"(?:eq|fig|symptom)-", place):
        anchor = f"equation-{place}" if place.startswith("eq-") else place
        return next(((page, anchor) for page in sorted(ids) if anchor in ids[page]), None)
    number, _, anchor = place.partition("/")
    for page in sorted(ids):
        if anchor and page.startswith(f"chapters/{number}_") and anchor in ids[page]:
            return page, anchor
        if not anchor and page == f"chapters/{place}":
            return page, ""
    return None


def resolve(root: Path, ids: Ids) -> tuple[list[tuple[str, str, str]], list[str]]:
    """Return the entries as (term, page, anchor), and what is wrong with the file."""
    found, problems = [], []
    entries = read_terms(root)
    for term, place in entries:
        target = find(place, ids)
        if target:
            found.append((term, *target))
        else:
            problems.append(f"{FILE}: {term!r} points to {place!r}, which is not there")
    problems += [
        f"{FILE}: {term!r} points to {place!r} twice"
        for term, place in sorted(set(entries))
        if entries.count((term, place)) > 1
    ]
    return found, problems


# ------------------------------------------------------------------------------------- into Sphinx's index


def _store(env: BuildEnvironment) -> dict[str, Any]:
    """What is kept with the environment: the anchors of each page, and a digest of the file."""
    if not hasattr(env, "xent_index"):
        env.xent_index = {"ids": {}, "digest": ""}  # type: ignore[attr-defined]
    return env.xent_index  # type: ignore[attr-defined, no-any-return]


def _digest(root: Path) -> str:
    path = root / FILE
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def _read(app: Sphinx, doctree: nodes.document) -> None:
    """Note the anchors of a page, those in a cell's HTML included."""
    ids = {name for node in doctree.findall(nodes.Element) for name in node["ids"]}
    for raw in doctree.findall(nodes.raw):
        ids |= set(re.findall(r'\bid="([^"]+)"', raw.astext()))
    _store(app.env)["ids"][app.env.docname] = ids


def _purge(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    _store(env)["ids"].pop(docname, None)


def _merge(app: Sphinx, env: BuildEnvironment, docnames: Iterable[str], other: BuildEnvironment) -> None:
    ids = _store(other)["ids"]
    _store(env)["ids"].update({page: ids[page] for page in docnames if page in ids})


def _outdated(app: Sphinx, env: BuildEnvironment, *changes: set[str]) -> list[str]:
    """Read a page again when the file has changed: without a changed page Sphinx writes no index."""
    changed = _store(env)["digest"] != _digest(Path(app.srcdir))
    return [app.config.root_doc] if changed else []


def _add(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Put the entries among Sphinx's own, at every build anew, and warn of every place that is not there."""
    root = Path(app.srcdir)
    found, problems = resolve(root, _store(env)["ids"])
    for problem in problems:
        logger.warning(problem, type="xent", subtype="index")
    _store(env)["digest"] = _digest(root)
    entries = env.get_domain("index").entries  # type: ignore[attr-defined]
    own = {(page, ("single", term, anchor, "", None)) for term, page, anchor in found}
    before: set[tuple[str, tuple[Any, ...]]] = _store(env).setdefault("own", set())
    for page in entries:
        entries[page] = [entry for entry in entries[page] if (page, tuple(entry)) not in before | own]
    for page, entry in sorted(own, key=lambda item: (item[0], item[1][1], item[1][2])):
        entries.setdefault(page, []).append(entry)
    _store(env)["own"] = own
    return []


# ------------------------------------------------------------------------------------- the page


@dataclass
class Entry:
    """A line of the index: the words, where they lead, what they point to, and the lines below."""

    name: str
    places: list[tuple[str, str]] = field(default_factory=list)
    see: str = ""
    see_href: str = ""
    anchor: str = ""
    below: list[Entry] = field(default_factory=list)


def where(env: Any, page: str, anchor: str) -> tuple[tuple[int, ...], str]:
    """Name a place by its section's, equation's or figure's number, after a key to sort by."""
    numbers = env.toc_fignumbers.get(page, {})
    sections = env.toc_secnumbers.get(page, {})
    chapter = tuple(sections.get("", ()))
    if anchor in numbers.get("displaymath", {}):
        number = numbers["displaymath"][anchor]
        return (1, *chapter, 1, *number), f"({'.'.join(map(str, number))})"
    if anchor in numbers.get("figure", {}):
        number = numbers["figure"][anchor]
        return (1, *chapter, 2, *number), f"Fig. {'.'.join(map(str, number))}"
    if f"#{anchor}" in sections:
        number = sections[f"#{anchor}"]
        return (1, *chapter, 0, *number), ".".join(map(str, number))
    if anchor.startswith("symptom-"):
        return (1, *chapter, 3), "symptom"
    if anchor.startswith("term-"):
        return (0,), "glossary"
    if page == "chapters/api":
        return (2,), "reference"
    return (1, *chapter, 0), ".".join(map(str, chapter)) or page.rpartition("/")[2]


def slug(name: str) -> str:
    """Make an anchor from an entry's words."""
    return "entry-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def make_entry(env: Any, name: str, links: list[tuple[str, str]], suffix: str = ".html") -> Entry:
    """Make a line from Sphinx's own, its places in the order of the book."""
    if not links and name.startswith(("see ", "see also ")):
        return Entry("", see=name.removeprefix("see ").removeprefix("also "))
    known = []
    for _, href in links:
        page, _, anchor = href.partition("#")
        key, words = where(env, page.removesuffix(suffix), anchor)
        known.append((key, href if anchor else page, words))
    return Entry(name, [(href, words) for _, href, words in sorted(known)])


def lines(env: Any, groups: list[Any]) -> list[tuple[str, list[Entry]]]:
    """Turn Sphinx's index into the lines of the page, letter by letter."""
    made = []
    for letter, entries in groups:
        group = []
        for name, (links, below, _) in entries:
            entry = make_entry(env, name, links)
            entry.below = [make_entry(env, sub, sub_links) for sub, sub_links in below]
            # Where to look instead comes last.
            entry.below.sort(key=lambda line: bool(line.see))
            group.append(entry)
        made.append((letter, group))
    # An anchor for what another entry points to.
    by_name = {entry.name: entry for _, group in made for entry in group}
    for entry in _walk(made):
        if entry.see in by_name:
            by_name[entry.see].anchor = slug(entry.see)
            entry.see_href = f"#{slug(entry.see)}"
    return made


def _walk(groups: list[tuple[str, list[Entry]]]) -> Iterator[Entry]:
    for _, group in groups:
        for entry in group:
            yield entry
            yield from entry.below


def _page(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Hand the lines to the template."""
    if page == "genindex":
        context["index_groups"] = lines(app.env, context["genindexentries"])
        app.add_css_file(CSS)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to the build."""
    app.connect("doctree-read", _read)
    app.connect("env-purge-doc", _purge)
    app.connect("env-merge-info", _merge)
    app.connect("env-get-outdated", _outdated)
    app.connect("env-updated", _add)
    app.connect("html-page-context", _page)
    return {"version": "1", "env_version": 1, "parallel_read_safe": True, "parallel_write_safe": True}
