"""What `_config.yml` cannot say: the check of the contents, the site's address, sitemap and 404 page."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

import yaml
from sphinx.util import logging

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx
    from sphinx.config import Config

logger = logging.getLogger(__name__)

# Of the pages that have no text of their own to take one from.
DESCRIPTIONS = {
    "genindex": "Every term, theorem, symptom, figure and function of the book, with where it is told.",
    "search": "Search the text, the equations' names and the code of the book.",
}


def toc_documents(root: Path) -> list[str]:
    """List the documents that `_toc.yml` names, without their endings, in its order."""

    def files(entry: object) -> Iterator[str]:
        if isinstance(entry, dict):
            for key, value in entry.items():
                if key in ("root", "file") and isinstance(value, str):
                    yield str(Path(value).with_suffix("")) if value.endswith((".md", ".ipynb")) else value
                elif key != "numbered":
                    yield from files(value)
        elif isinstance(entry, list):
            for item in entry:
                yield from files(item)

    return list(files(yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))))


def toc_problems(root: Path) -> list[str]:
    """Compare the pages on disk with the table of contents, both ways."""
    listed = toc_documents(root)
    on_disk = {
        path.relative_to(root).with_suffix("").as_posix(): path.relative_to(root).as_posix()
        for path in sorted((root / "chapters").glob("*"))
        if path.suffix in (".ipynb", ".md")
    }
    problems = [
        f"{on_disk[name]}: this page is not in _toc.yml, so no reader would find it"
        for name in on_disk
        if name not in listed
    ]
    problems += [
        f"_toc.yml: lists '{name}', but there is no {name}.ipynb and no {name}.md"
        for name in listed
        if not any((root / (name + suffix)).exists() for suffix in (".ipynb", ".md"))
    ]
    problems += [f"_toc.yml: lists '{name}' twice" for name in sorted(set(listed)) if listed.count(name) > 1]
    return problems


def _configure(app: Sphinx, config: Config) -> None:
    for problem in toc_problems(Path(app.srcdir)):
        logger.warning(problem, type="toc")
    # The repository's address switches on the links to it (xent_page), the site's the canonical links, og:url
    # and the sitemap.
    options = config.html_theme_options
    options["repository_url"] = setting(options.get("repository_url"), REPOSITORY)
    address = site_address(setting(config.html_baseurl, SITE))
    config.html_baseurl = config.ogp_site_url = address


# Where `repository: url:` or `html: baseurl:` in _config.yml is empty, whoever publishes the book may say it
# here: the workflow does, which knows both.
REPOSITORY, SITE = "XENT_REPOSITORY_URL", "XENT_SITE_URL"


def setting(configured: str | None, variable: str) -> str:
    """Return an address that _config.yml gives, or else the environment; nothing where neither does."""
    address = (configured or os.environ.get(variable, "")).strip()
    if address and not re.fullmatch(r"https?://[^\s/?#\"'<>]+(?:/[^\s?#\"'<>]*)?", address):
        raise ValueError(f"{variable} or its place in _config.yml: not an address: {address!r}")
    return address


def site_address(address: str) -> str:
    """Return the site's address with a slash at its end, or nothing where none is set."""
    return f"{address.rstrip('/')}/" if address else ""


def _pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    yield "404", {}, "404.html"


def tidy_head(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Mend what the extensions and docutils wrote for the page's head."""
    tags = context.get("metatags") or ""
    # The template has one of its own, and no page needs two.
    tags = re.sub(r'<meta name="viewport"[^>]*>\n?', "", tags)
    if not app.config.html_baseurl:
        # A relative address means nothing to whoever reads it.
        tags = re.sub(r'<meta property="og:url"[^>]*>\n?', "", tags)
    if page in DESCRIPTIONS:
        tags += f'\n  <meta name="description" content="{escape(DESCRIPTIONS[page])}">'
    context["metatags"] = tags


def sitemap(address: str, pages: list[str]) -> str:
    """Return the sitemap of the pages, which are named without their ending."""
    entries = "".join(f"<url><loc>{escape(f'{address}{page}.html')}</loc></url>\n" for page in pages)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{entries}</urlset>\n'
    )


def _write_sitemap(app: Sphinx, exception: Exception | None) -> None:
    if exception is not None or app.builder.format != "html":
        return
    target = Path(app.outdir) / "sitemap.xml"
    if app.config.html_baseurl:
        pages = toc_documents(Path(app.srcdir))
        target.write_text(sitemap(app.config.html_baseurl, pages), encoding="utf-8")
    else:
        target.unlink(missing_ok=True)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to the build."""
    # Jupyter Book sets this for the extension sphinx_comments, which the book does not load.
    app.add_config_value("comments_config", {}, "")
    app.connect("config-inited", _configure)
    app.connect("html-collect-pages", _pages)
    app.connect("html-page-context", tidy_head, priority=970)
    app.connect("build-finished", _write_sitemap)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
