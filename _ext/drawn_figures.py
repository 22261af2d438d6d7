"""The directives of the figures that `xent_book.pictures` draws while the book is built.

    ```{moving-figure} softmax
    :name: fig-move-softmax
    :alt: What the still picture shows.

    The caption: predict something, then move a slider.
    ```

makes a figure that can be referred to like any other. `{drawn-figure}` makes one that stays still. Where scripts run,
`_static/move/load.js` puts a figure with sliders in the place of a moving one once it comes near.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

from xent_book.pictures import FIGURES, picture

if TYPE_CHECKING:
    from sphinx.application import Sphinx


class UnnumberedFigure(nodes.figure):
    """A figure that takes no part in the numbering, which begins in chapter 1."""


class DrawnFigure(SphinxDirective):
    """Renders a still figure; the content is its caption."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {
        "name": directives.unchanged_required,
        "alt": directives.unchanged_required,
    }
    classes = ()

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        if name not in FIGURES:
            raise self.error(f"{self.name}: expected one of {', '.join(FIGURES)}, got {name!r}")
        if not self.content or not self.options.get("alt"):
            raise self.error(f"{self.name} {name}: expected :alt: and a caption")
        drawn = nodes.raw("", picture(name, " ".join(self.options["alt"].split())), format="html")
        # What to predict and to move is nothing for paper.
        still, asks = re.split(r"(?=\bPredict )|$", " ".join(self.content), maxsplit=1)
        inline, messages = self.state.inline_text(still, self.lineno)
        asked, others = self.state.inline_text(asks, self.lineno)
        caption = nodes.caption(self.content[0], "", *inline, nodes.inline("", "", *asked, classes=["asks"]))
        numbered = nodes.figure if "name" in self.options else UnnumberedFigure
        figure = numbered("", drawn, caption, classes=[*self.classes, f"figure-{name}"], align="default")
        self.set_source_info(figure)
        self.set_source_info(caption)
        self.add_name(figure)
        return [figure, *messages, *others]


class MovingFigure(DrawnFigure):
    """Renders a still figure, which a script replaces by one with sliders."""

    classes = ("moving-figure",)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    app.add_directive("drawn-figure", DrawnFigure)
    app.add_directive("moving-figure", MovingFigure)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
