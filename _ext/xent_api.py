"""The reference of `xent`: every public name, from the docstrings, with the chapters that use it.

The page chapters/api.md holds a line `% api`, which is replaced by a section for each public module with an
entry for each name of its `__all__`. A new name is there at the next build. Which chapters use a name is
found by reading the code cells of the notebooks, whose imports are followed; nothing is executed. In the
text of the chapters a name in code type, such as `xent.softmax`, becomes a link to its entry.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

PAGE = "chapters/api"
MARK = "% api\n"
PACKAGE = "xent"
# The order of the sections; modules that are not named here follow by name.
ORDER = ("xent", "xent.information", "xent.gradients", "xent.scoring", "xent.sequences", "xent.distillation")
LAST = ("xent.torch", "xent_book.frameworks", "xent_book.exercises", "xent_book.plots", "xent_book.quiet")


def declared(path: Path) -> list[str]:
    """Read `__all__` of a module without importing it."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets
        ):
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def public_modules(root: Path) -> dict[str, list[str]]:
    """Map each public module to its names; a name that the package itself offers stands there alone."""
    folder = root / "code" / PACKAGE
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        names = declared(path)
        if names and not any(part.startswith("_") for part in parts):
            found[".".join(parts)] = names
    top = set(found[PACKAGE])
    modules = {}
    for module, names in found.items():
        own = [n for n in names if f"{module}.{n}" not in found]
        # losses and numerics: all that they define is offered by the package, under the same names.
        if module == PACKAGE or not set(own) <= top or module == f"{PACKAGE}.torch":
            modules[module] = own
    first = [m for m in ORDER if m in modules]
    last = [m for m in LAST if m in modules]
    return {m: modules[m] for m in [*first, *sorted(set(modules) - {*first, *last}), *last]}


def entries(root: Path) -> list[str]:
    """Every name that the reference documents, in full."""
    return [f"{module}.{name}" for module, names in public_modules(root).items() for name in names]


# ------------------------------------------------------------------------------------- who uses what


def used_names(source: str, known: dict[str, str]) -> set[str]:
    """The full names that Python code refers to; `known` maps its aliases to full names and is extended."""
    found: set[str] = set()

    def dotted(node: ast.AST) -> str | None:
        if isinstance(node, ast.Name):
            return known.get(node.id)
        if isinstance(node, ast.Attribute):
            base = dotted(node.value)
            return f"{base}.{node.attr}" if base else None
        return None

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == PACKAGE:
                    known[alias.asname or PACKAGE] = alias.name if alias.asname else PACKAGE
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(ast.parse(source)):
        name = dotted(node) if isinstance(node, ast.Name | ast.Attribute) else None
        if name:
            found.add(name)
    return found


def chapters_that_use(root: Path) -> dict[str, list[str]]:
    """Map each documented name to the chapters whose code uses it, in the book's order."""
    documented = entries(root)
    # xent.losses.cross_entropy is xent.cross_entropy, told by its own name.
    aliases = {f"{PACKAGE}.{m}.{n}": f"{PACKAGE}.{n}" for m in ("losses", "numerics") for n in _names(root)}
    users: dict[str, list[str]] = {name: [] for name in documented}
    for path in sorted((root / "chapters").glob("*.ipynb")):
        known: dict[str, str] = {}
        used: set[str] = set()
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                lines = "".join(cell["source"]).splitlines()
                source = "\n".join(line for line in lines if not line.lstrip().startswith(("%", "!")))
                try:
                    used |= used_names(source, known)
                except SyntaxError:
                    continue
        for name in sorted({aliases.get(name, name) for name in used}):
            if name in users:
                users[name].append(path.stem)
    return users


def _names(root: Path) -> list[str]:
    return declared(root / "code" / PACKAGE / "__init__.py")


@cache
def chapter_number(stem: str) -> str:
    """The number of a chapter, as its file is named."""
    return str(int(stem.split("_")[0]))


# ------------------------------------------------------------------------------------- the page


def comment_above(root: Path, module: str, name: str) -> str:
    """The comment above the assignment of a name: what a constant has for a docstring."""
    place = root / "code" / Path(*module.split("."))
    files = [place.with_suffix(".py")] if place.with_suffix(".py").exists() else sorted(place.glob("*.py"))
    for path in files:
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            targets = re.match(r"^([A-Z_]+(?:, [A-Z_]+)*)(?::[^=]+)? = ", line)
            if targets and name in targets[1].split(", "):
                above = number
                # Assignments in one block share the comment above the first.
                while above and re.match(r"^[A-Z_]+(?:, [A-Z_]+)* = ", lines[above - 1]):
                    above -= 1
                first = above
                while first and lines[first - 1].startswith("#"):
                    first -= 1
                return " ".join(line.lstrip("# ") for line in lines[first:above])
    return ""


def data_entry(root: Path, full: str, thing: object) -> str:
    """The entry of a constant, as reStructuredText: its value if that is short, and the comment above it."""
    module, _, name = full.rpartition(".")
    shown = repr(thing)
    value = f"   :value: {shown}\n" if len(shown) <= 80 and " at 0x" not in shown else ""
    text = comment_above(root, module, name) or f"Of type `{type(thing).__name__}`."
    return f".. py:data:: {full}\n{value}\n   {text}\n"


def page_text(root: Path) -> str:
    """The generated part of the page, as MyST."""
    parts = []
    for module, names in public_modules(root).items():
        live = importlib.import_module(module)
        summary = (inspect.getdoc(live) or "").split("\n\n")[0].replace("\n", " ")
        parts.append(f"## {module}\n\n{summary}\n")
        for name in names:
            thing = getattr(live, name)
            full = f"{module}.{name}"
            if inspect.isclass(thing):
                body = f".. autoclass:: {full}\n   :members:\n"
            elif callable(thing):
                body = f".. autofunction:: {full}\n"
            elif inspect.ismodule(thing):
                continue
            else:
                body = data_entry(root, full, thing)
            parts.append(f"```{{eval-rst}}\n{body}```\n")
    return "\n".join(parts)


def _fill(app: Sphinx, docname: str, source: list[str]) -> None:
    if docname == PAGE:
        if MARK not in source[0]:
            raise RuntimeError(f"{PAGE}.md has no line {MARK.strip()!r}")
        source[0] = source[0].replace(MARK, page_text(Path(app.srcdir)))


def _say_who_uses_it(
    app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Add the chapters to the end of a docstring, links and all."""
    users = _users(str(app.srcdir), _digest(Path(app.srcdir))).get(name)
    if users:
        links = ", ".join(f":doc:`{chapter_number(stem)} </chapters/{stem}>`" for stem in users)
        lines += ["", f"*Used in chapter{'s' * (len(users) > 1)}* {links}.", ""]


@cache
def _users(root: str, digest: str) -> dict[str, list[str]]:
    return chapters_that_use(Path(root))


def _digest(root: Path) -> str:
    """A digest of what the page is made from."""
    digest = hashlib.sha256()
    for path in [
        *sorted((root / "code" / PACKAGE).rglob("*.py")),
        *sorted((root / "chapters").glob("*.ipynb")),
    ]:
        digest.update(path.as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def _outdated(app: Sphinx, env: BuildEnvironment, *changes: set[str]) -> list[str]:
    """Read the page again when the package or a chapter changed."""
    if PAGE not in env.found_docs:
        return []
    digest = _digest(Path(app.srcdir))
    before = getattr(env, "xent_api_digest", None)
    env.xent_api_digest = digest  # type: ignore[attr-defined]
    return [PAGE] if before != digest else []


def _mentions(doctree: nodes.document) -> Iterator[nodes.literal]:
    for literal in list(doctree.findall(nodes.literal)):
        place: nodes.Node | None = literal.parent
        while place is not None and not isinstance(place, nodes.reference | nodes.title):
            place = place.parent
        if place is None:
            yield literal


def _link_mentions(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Make a link of `xent.name` in the text of a page."""
    if docname == PAGE or PAGE not in app.env.found_docs or app.builder.format != "html":
        return
    known = set(app.env.domaindata["py"]["objects"])
    page = app.builder.get_relative_uri(docname, PAGE)
    for literal in _mentions(doctree):
        name = re.sub(r"\(.*\)$", "", literal.astext())
        if name.startswith(f"{PACKAGE}.") and name in known:
            link = nodes.reference("", "", refuri=f"{page}#{name}", internal=True)
            literal.parent.replace(literal, link)
            link += literal


def _style(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object) -> None:
    if pagename == PAGE:
        app.add_css_file("page/appendix.css")


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to the page, to autodoc and to the chapters."""
    app.setup_extension("sphinx.ext.autodoc")
    app.setup_extension("sphinx.ext.napoleon")
    app.connect("source-read", _fill)
    # After napoleon, which reads the sections of a docstring.
    app.connect("autodoc-process-docstring", _say_who_uses_it, priority=900)
    app.connect("env-get-outdated", _outdated)
    app.connect("doctree-resolved", _link_mentions)
    app.connect("html-page-context", _style)
    return {"version": "1", "env_version": 1, "parallel_read_safe": True, "parallel_write_safe": True}
