"""Fields for what an exercise asks for by hand: chapters/answers.toml names the numbers, `_static/page.js` compares.

A number is right within six tenths of a unit of the third decimal, and a fraction is a number. Where no script runs,
and on paper, the solution alone answers.
"""

from __future__ import annotations

import html
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def field(name: str, value: str) -> str:
    """Return a field with its label and room for what is said of the answer."""
    return (
        f'<label>{html.escape(name)} <input inputmode="text" autocomplete="off" size="9" data-value="{value}">'
        "</label> <output></output>"
    )


def add_fields(app: Sphinx, doctree: nodes.document) -> None:
    """Put the fields of a page behind their exercises; warn of an exercise that is not there."""
    path, page = Path(app.srcdir) / "chapters" / "answers.toml", app.env.docname.removeprefix("chapters/")
    asked = tomllib.loads(path.read_text(encoding="utf-8")).get(page, {}) if path.exists() else {}
    exercises = {node.get("label"): node for node in doctree.findall(nodes.Admonition)}
    for label, numbers in asked.items():
        if label not in exercises:
            logging.getLogger(__name__).warning("%s: no exercise %s in %s", path, label, page, type="xent")
            continue
        fields = " ".join(field(name, value) for name, value in numbers.items())
        exact = "" if all(value.endswith(".000") for value in numbers.values()) else ", to three decimals"
        exercises[label][-1] += nodes.raw(
            "", f'<p class="answers" hidden>By hand{exact}: {fields}</p>', format="html"
        )


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to what is read."""
    app.connect("doctree-read", add_fields)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
