"""One small style sheet for the whole site, and no file in it that no page uses.

The theme and its extensions bring eleven style sheets (370 kB) and eight scripts for all that they can do.
The pages use a fifth of it. At the end of the build the rules whose classes, ids and elements occur in a
page, or in the book's own scripts, are written to `_static/book.css`, in the order in which the pages had
them; the rest is left out, and the files that no page names are removed from the site. What another
extension adds for one page only, and this module does not know, stays on that page as it is.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config

logger = logging.getLogger(__name__)

BUNDLE = "book.css"

# In this order, as on a page of the stock theme. A pattern stands for a name with a digest in it.
SHEETS = (
    "basic.css",
    "styles/bootstrap.css",
    "styles/pydata-sphinx-theme.css",
    "pygments.css",
    "styles/sphinx-book-theme.css",
    "mystnb.*.css",
    "exercise.css",
    "proof.css",
    "sphinx-design.min.css",
    "katex/katex.min.css",
    "ledger.css",
    "custom.css",
)
# The scripts of the theme and its extensions. `book.js` does what the book needs of them.
SCRIPTS = re.compile(
    # Jupyter Book adds what lies in `_static` itself, not in its folders; the template asks for book.js.
    r"/book\.js|^book\.js|documentation_options|doctools|sphinx_highlight|sphinx-book-theme|clipboard\.min|copybutton|togglebutton|"
    r"design-tabs|scripts/bootstrap|scripts/pydata-sphinx-theme"
)
INLINE_SCRIPTS = ("DOCUMENTATION_OPTIONS.", "var togglebuttonSelector", "let toggle")
# In `_static`: scripts and style sheets that some pages ask for and the others do without.
FOLDERS = ("move/", "page/")
# What the pages name no more once their style sheets are in the bundle.
UNUSED = (
    "styles",
    "scripts",
    "vendor",
    "locales",
    "images",
    "sbt-webpack-macros.html",
    "webpack-macros.html",
    "design-tabs.js",
    "clipboard.min.js",
    "copybutton*",
    "copy-button.svg",
    "check-solid.svg",
    "togglebutton.*",
    "file.png",
    "minus.png",
    "plus.png",
)

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_BLANKS = re.compile(r"\s+")
_TIGHT = re.compile(r"\s*([{};,])\s*")
_STRING = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|url\([^)\"']*\)")
# What a rule must match to be used. A negation or a choice among alternatives says nothing about that.
_ALTERNATIVES = re.compile(r":(?:not|is|where|has|matches|any)\((?:[^()]|\([^()]*\))*\)")
_ATTRIBUTE = re.compile(r"\[[^\]]*\]")
_PSEUDO = re.compile(r"::?[\w-]+(?:\([^()]*\))?")
_CLASS = re.compile(r"\.(-?[A-Za-z_](?:[\w-]|\\.)*)")
_ID = re.compile(r"#(-?[A-Za-z_](?:[\w-]|\\.)*)")
_ELEMENT = re.compile(r"(?<![\w.#\\-])([a-z][a-z0-9]*)(?![\w-]*\()")


class Used:
    """The classes, ids and elements of the pages, and every word of the book's scripts."""

    def __init__(self) -> None:
        self.classes: set[str] = set()
        self.ids: set[str] = set()
        self.elements = {"html", "body"}

    def read_page(self, text: str) -> None:
        """Add what a page holds."""
        for match in re.finditer(r'\bclass="([^"]*)"', text):
            self.classes.update(match[1].split())
        self.ids.update(re.findall(r'\bid="([^"]*)"', text))
        self.elements.update(re.findall(r"<([a-z][a-z0-9]*)", text))

    def read_script(self, text: str) -> None:
        """Add every word of a script, for it may give a class of that name to an element."""
        words = set(re.findall(r"[A-Za-z_][\w-]*", text))
        self.classes |= words
        self.ids |= words
        self.elements |= {word for word in words if word.islower()}

    def matches(self, selector: str) -> bool:
        """Tell whether one selector (without commas) can match something."""
        plain = _ATTRIBUTE.sub("", _ALTERNATIVES.sub("", selector))
        bare = _PSEUDO.sub("", plain)
        names = {name.replace("\\", "") for name in _CLASS.findall(bare)}
        ids = {name.replace("\\", "") for name in _ID.findall(bare)}
        elements = set(_ELEMENT.findall(bare))
        return names <= self.classes and ids <= self.ids and elements <= self.elements


def minified(css: str) -> str:
    """Leave out comments and blanks that mean nothing, outside of strings."""
    strings: list[str] = []

    def keep(match: re.Match[str]) -> str:
        strings.append(match[0])
        return f"\0{len(strings) - 1}\0"

    css = _STRING.sub(keep, _COMMENT.sub("", css))
    css = _TIGHT.sub(r"\1", _BLANKS.sub(" ", css)).replace(";}", "}").strip()
    return re.sub(r"\0(\d+)\0", lambda match: strings[int(match[1])], css)


def blocks(css: str) -> Iterator[tuple[str, str | None]]:
    """Split minified CSS into its top-level statements: (prelude, body), the body None for one without."""
    position = 0
    while position < len(css):
        start, quote, depth = position, "", 0
        prelude: str | None = None
        body_start = 0
        while position < len(css):
            char = css[position]
            if quote:
                if char == "\\":
                    position += 1
                elif char == quote:
                    quote = ""
            elif char in "\"'":
                quote = char
            elif char == "{":
                depth += 1
                if depth == 1:
                    prelude, body_start = css[start:position], position + 1
            elif char == "}":
                depth -= 1
                if depth == 0:
                    break
            elif char == ";" and depth == 0 and "url(" not in css[start:position].rpartition(")")[2]:
                break
            position += 1
        end, position = position, position + 1
        if prelude is None:
            if css[start:end].strip():
                yield css[start:end], None
        else:
            yield prelude, css[body_start:end]


def split_selectors(prelude: str) -> list[str]:
    """Split at the commas that stand outside of brackets."""
    parts, depth, start = [], 0, 0
    for place, char in enumerate(prelude):
        depth += (char in "([") - (char in ")]")
        if char == "," and depth == 0:
            parts.append(prelude[start:place])
            start = place + 1
    return [*parts, prelude[start:]]


def purged(css: str, used: Used) -> str:
    """Keep the rules of minified CSS that a page can use."""
    kept = []
    for prelude, body in blocks(css):
        if body is None:
            # Imports are in the bundle, and a charset belongs to its file.
            continue
        if prelude.startswith(("@media", "@supports", "@layer", "@container")):
            inner = purged(body, used)
            if inner:
                kept.append(f"{prelude}{{{inner}}}")
        elif prelude.startswith("@"):
            kept.append(f"{prelude}{{{body}}}")
        else:
            selectors = [selector for selector in split_selectors(prelude) if used.matches(selector)]
            if selectors and body:
                kept.append(f"{','.join(selectors)}{{{body}}}")
    return "".join(kept)


def without_dead_ends(css: str) -> str:
    """Drop custom properties that nothing reads, and keyframes that nothing plays."""
    while True:
        read = frozenset(re.findall(r"var\(\s*(--[\w-]+)", css))
        smaller = re.sub(
            r"(?<=[{;])(--[\w-]+):((?:[^;{}\"']|\"[^\"]*\"|'[^']*')*)(;|(?=\}))",
            lambda match, read=read: match[0] if match[1] in read else "",
            css,
        )
        smaller = re.sub(r"[^{}]+\{\}", "", smaller)
        if smaller == css:
            break
        css = smaller
    played = " ".join(re.findall(r"animation(?:-name)?:([^;}]*)", css)).split()
    return re.sub(
        r"@(?:-webkit-)?keyframes ([\w-]+)\{(?:[^{}]*\{[^{}]*\})*\}",
        lambda match: match[0] if match[1] in played else "",
        css,
    )


def put_aside(static: Path, kept: Path) -> list[str]:
    """Move the style sheets out of the site; return which are neither there nor kept from an earlier build.

    Sphinx copies a theme's files when it sees fit, and a later build may find only some of them.
    """
    missing = []
    for pattern in SHEETS:
        found = sorted(static.glob(pattern))
        if found:
            for old in kept.glob(pattern):
                old.unlink()
        for path in found:
            target = kept / path.relative_to(static)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, target)
        if not any(kept.glob(pattern)):
            missing.append(pattern)
    return missing


def bundle(sheets: Path, used: Used) -> str:
    """Join the style sheets, with addresses as seen from `_static`, and keep what is used."""
    parts = []
    for pattern in SHEETS:
        for path in sorted(sheets.glob(pattern)):
            css = minified(path.read_text(encoding="utf-8"))
            folder = path.parent.relative_to(sheets).as_posix()
            if folder != ".":
                css = re.sub(r"url\((?!data:|[\"'])", f"url({folder}/", css)
            parts.append(purged(css, used))
    return without_dead_ends("".join(parts))


def not_everywhere(app: Sphinx, config: Config) -> None:
    """Take back what Jupyter Book adds to every page: all scripts and style sheets in `_static`'s folders.

    What lies there is for some pages, and the extension that knows them adds it there.
    """
    for files in (config.html_js_files, config.html_css_files):
        names = [entry if isinstance(entry, str) else entry[0] for entry in files]
        files[:] = [entry for entry, name in zip(files, names, strict=True) if not name.startswith(FOLDERS)]


def select(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Take the bundled sheets and the theme's scripts out of the page's lists."""

    def name(asset: object) -> str:
        return str(getattr(asset, "filename", asset) or "")

    bundled = [Path(pattern).name for pattern in SHEETS]
    context["css_files"] = [
        css
        for css in context["css_files"]
        if not any(Path(name(css)).match(pattern) for pattern in bundled) and "togglebutton" not in name(css)
    ]
    context["script_files"] = [
        js
        for js in context["script_files"]
        if not SCRIPTS.search(name(js))
        and not str(getattr(js, "attributes", {}).get("body") or "").startswith(INLINE_SCRIPTS)
    ]


def finish(app: Sphinx, exception: Exception | None) -> None:
    """Write the bundle and remove what no page uses."""
    if exception is not None or app.builder.format != "html":
        return
    pages, static = Path(app.outdir), Path(app.outdir) / "_static"
    used = Used()
    for page in sorted(pages.rglob("*.html")):
        if static not in page.parents:
            used.read_page(page.read_text(encoding="utf-8"))
    # The book's own scripts and Sphinx's, which make the list of what a search found.
    own = [*(Path(app.srcdir) / "_static").rglob("*.js"), static / "searchtools.js"]
    for script in own:
        used.read_script(script.read_text(encoding="utf-8"))
    sheets = Path(app.doctreedir) / "sheets"
    for name in put_aside(static, sheets):
        logger.warning("the style sheet %s is missing: does the theme still bring it?", name, type="assets")
    (static / BUNDLE).write_text(bundle(sheets, used) + "\n", encoding="utf-8")
    for pattern in UNUSED:
        for path in static.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to the pages, after everything that adds to them, and to the end of the build."""
    app.connect("config-inited", not_everywhere)
    app.connect("html-page-context", select, priority=990)
    # After Sphinx has copied the static files, which it does on each build.
    app.connect("build-finished", finish, priority=800)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
