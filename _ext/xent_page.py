"""What stands in a page besides its text: links to run, read and report it, and light, accessible HTML.

The links need the repository's address, the one setting `repository: url:` in `_config.yml`; without it there
are none. The changes to the HTML: figures load when they come near and have their size in advance, so that
nothing jumps; a solution is a `<details>`, which folds without a script and opens for the keyboard; code has
no element for what has no colour of its own; and an id occurs once.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from sphinx_exercise.nodes import solution_node

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config
    from sphinx.writers.html5 import HTML5Translator

Links = list[tuple[str, str]]

# ------------------------------------------------------------------------------------- the repository's links


def launch_links(url: str, branch: str, path: str, services: dict[str, str]) -> Links:
    """Make the links that run a notebook elsewhere; for hosts that a service does not know there are none."""
    parts = urlsplit(url)
    name = parts.path.strip("/")
    links = []
    binder, colab = (services.get(key, "").rstrip("/") for key in ("binderhub_url", "colab_url"))
    kinds = {"github.com": f"gh/{name}", "gitlab.com": f"gl/{quote(name, safe='')}"}
    if binder and parts.netloc in kinds:
        opened = quote(f"lab/tree/{path}", safe="")
        links.append(
            (f"{binder}/v2/{kinds[parts.netloc]}/{quote(branch, safe='')}?urlpath={opened}", "Binder")
        )
    if colab and parts.netloc == "github.com":
        links.append((f"{colab}/github/{name}/blob/{quote(branch)}/{quote(path)}", "Colab"))
    return links


def colab_cell(url: str, branch: str) -> str:
    """Write the first cell for Colab, which opens the notebook alone: it needs the package and its data."""
    place = "/content/book"
    return (
        f"!git clone --quiet --depth 1 --branch {shlex.quote(branch)} {shlex.quote(url)} {place}\n"
        f"%pip install --quiet --editable {place} myst-nb\n"
        # What pip has just made editable, Python finds at its next start only.
        f'import sys; sys.path.insert(0, "{place}/code")'
    )


def source_links(url: str, branch: str, path: str) -> Links:
    """Make the links to the page's source and to its history."""
    infix = "/-" if urlsplit(url).netloc.startswith("gitlab.") else ""
    place = f"{quote(branch)}/{quote(path)}"
    return [
        (f"{url}{infix}/blob/{place}", "Source"),
        (f"{url}{infix}/commits/{place}", "History"),
    ]


def mistake_url(url: str, page: str, title: str, version: str) -> str:
    """Make the link to a new issue that says where the mistake is; the page's script adds the section."""
    text = (
        f"Page: {page}\nSection: (the script of the page fills this in)\nVersion: {version}\n\n"
        "What stands there:\n\n\nWhat is true, and how you know:\n\n"
    )
    subject = f"Mistake in: {title}"
    if urlsplit(url).netloc.startswith("gitlab."):
        return f"{url}/-/issues/new?{urlencode({'issue[title]': subject, 'issue[description]': text})}"
    return f"{url}/issues/new?{urlencode({'title': subject, 'body': text})}"


def version_of(root: Path) -> str:
    """Read the package's version, which is the book's too."""
    return str(tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def add_links(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Hand the links to the template."""
    if doctree is None:
        return
    options, root = app.config.html_theme_options, Path(app.srcdir)
    path = Path(app.env.doc2path(page)).relative_to(root).as_posix()
    is_notebook = path.endswith(".ipynb")
    if is_notebook:
        # Sphinx adds the suffix .txt to sources other than notebooks.
        context["download_links"] = [(context["pathto"](f"_sources/{path}", 1), ".ipynb")]
    url = (options.get("repository_url") or "").rstrip("/")
    if url:
        branch = options.get("repository_branch") or "main"
        folder = (options.get("path_to_docs") or "").strip("/")
        in_repository = f"{folder}/{path}" if folder else path
        if is_notebook:
            services = app.config.xent_launch_buttons
            context["launch_links"] = launch_links(url, branch, in_repository, services)
            if any(text == "Colab" for _, text in context["launch_links"]):
                context["colab_cell"] = colab_cell(url, branch)
        context["source_links"] = source_links(url, branch, in_repository)
        title = re.sub(r"<[^>]*>", "", context.get("title") or page)
        context["mistake_url"] = mistake_url(url, in_repository, title, version_of(root))


# ------------------------------------------------------------------------------------- the HTML of the text

_IMAGE = re.compile(r"<img\b[^>]*>")
_SIZE = re.compile(r'\s*style="width:\s*([\d.]+)px;\s*height:\s*([\d.]+)px;?"')
_COLOURLESS = re.compile(r'<span class="(?:n|p|w)">([^<]*)</span>')
_LISTING = re.compile(r'<div class="highlight"><pre>.*?</pre>', re.DOTALL)
_SOLUTION_TITLE = re.compile(
    r'(<details\b[^>]*class="[^"]*\bsolution\b[^>]*>\s*)<p class="admonition-title">(.*?)</p>', re.DOTALL
)
_REPEATED_ID = re.compile(r'<section id="(?:solution|exercise)-content">')


def png_size(path: Path) -> tuple[int, int]:
    """Read a picture's width and height from the head of the file."""
    head = path.read_bytes()[:24]
    if head[:8] != b"\x89PNG\r\n\x1a\n":
        raise ValueError(f"{path} is not a PNG file")
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def lighter(body: str, pictures: dict[str, Path]) -> str:
    """Return the HTML of a page's text, made light and accessible."""

    def image(match: re.Match[str]) -> str:
        tag = match[0]
        size = _SIZE.search(tag)
        name = re.search(r'src="[^"]*?([^/"]+)"', tag)
        if size:
            # The size in the attributes, where the style sheet can still make the figure smaller.
            tag = tag.replace(size[0], "")
            width, height = (round(float(value)) for value in size.groups())
        elif name and name[1] in pictures and "width" not in tag and name[1].endswith(".png"):
            width, height = png_size(pictures[name[1]])
        else:
            width = height = 0
        if width:
            tag = tag.replace("<img", f'<img width="{width}" height="{height}"')
        return tag.replace("<img", '<img loading="lazy" decoding="async"')

    def summary(match: re.Match[str]) -> str:
        # Without its link to the exercise just above: what folds a box cannot hold a second control.
        title = re.sub(r"</?a\b[^>]*>", "", match[2])
        return f'{match[1]}<summary class="admonition-title">{title}</summary>'

    body = _IMAGE.sub(image, body)
    body = _LISTING.sub(lambda match: _COLOURLESS.sub(r"\1", match[0]), body)
    body = _SOLUTION_TITLE.sub(summary, body)
    # The role that the list around the entries asks for; the standard has given up the other one.
    body = body.replace('role="doc-biblioentry"', 'role="listitem"')
    return _REPEATED_ID.sub("<section>", body)


def make_lighter(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Change the text's HTML just before the page is written."""
    if context.get("body"):
        pictures = {name: Path(source) for source, name in getattr(app.builder, "images", {}).items()}
        context["body"] = lighter(context["body"], pictures)


def visit_solution(self: HTML5Translator, node: solution_node) -> None:
    """Open a folded solution."""
    element = "details" if "dropdown" in node["classes"] else "div"
    self.body.append(self.starttag(node, element, CLASS="admonition"))


def depart_solution(self: HTML5Translator, node: solution_node) -> None:
    """Close it."""
    self.body.append("</details>\n" if "dropdown" in node["classes"] else "</div>\n")


def _configure(app: Sphinx, config: Config) -> None:
    """Take the services from the theme, which would make buttons of its own for them."""
    options = config.html_theme_options
    config.xent_launch_buttons = options.get("launch_buttons") or {}
    options["launch_buttons"] = {}


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to the pages, after the extensions that make their HTML."""
    app.add_config_value("xent_launch_buttons", {}, "html", dict)
    app.connect("config-inited", _configure)
    app.add_node(solution_node, override=True, html=(visit_solution, depart_solution))
    app.connect("html-page-context", add_links, priority=980)
    app.connect("html-page-context", make_lighter, priority=985)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
