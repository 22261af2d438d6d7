"""The Content-Security-Policy of the pages: they run the book's own files, and nothing else.

It stands in each page as a `<meta>`, so that it holds on any host of static files and for a page opened from
a folder. A script or style that stands in a page itself is a file of `_templates` and allowed by its hash;
any other, whoever put it there, does not run.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

if TYPE_CHECKING:
    from sphinx.application import Sphinx

# Which files of `_templates` a page's template puts into the page.
INLINE = {"404.html": ("404.js", "404.css")}
FIRST = ("first.js",)


def allowed(text: str) -> str:
    """Name a script or style by its hash, as a policy does."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def policy(scripts: list[str], styles: list[str]) -> str:
    """Write the policy of a page that holds these scripts and styles."""
    rules = {
        "default-src": ["'none'"],
        "script-src": ["'self'", *map(allowed, scripts)],
        "style-src": ["'self'", *map(allowed, styles)],
        # KaTeX places the parts of a formula by style attributes: too many to list, and they run nothing.
        "style-src-attr": ["'unsafe-inline'"],
        # The style sheet holds the theme's small pictures as data.
        "img-src": ["'self'", "data:"],
        "font-src": ["'self'"],
        # The search reads the pages that it found.
        "connect-src": ["'self'"],
        "base-uri": ["'none'"],
        "form-action": ["'self'"],
    }
    return "; ".join(" ".join([rule, *sources]) for rule, sources in rules.items())


def add_policy(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Hand the policy to the template, and what it allows to stand in the page."""
    texts = {
        name: (Path(app.srcdir) / "_templates" / name).read_text(encoding="utf-8").strip()
        for name in INLINE.get(template, FIRST)
    }
    context["policy"] = policy(
        [text for name, text in texts.items() if name.endswith(".js")],
        [text for name, text in texts.items() if name.endswith(".css")],
    )
    context["inline"] = {name: Markup(text) for name, text in texts.items()}


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to the pages."""
    app.connect("html-page-context", add_policy)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
