"""The filter and the looks of the table of symptoms, on the page that has one and on no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def _assets(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object) -> None:
    if 'class="xent-symptoms"' in context.get("body", ""):
        app.add_css_file("page/symptoms.css")
        app.add_js_file("page/symptoms.js", loading_method="defer")


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to the build."""
    app.connect("html-page-context", _assets)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
