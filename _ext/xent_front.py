"""The figure of the front page: what a model learns under a mean over tokens, computed while building.

`{stop-figure}` draws q*(B, beta) as an inline SVG, from `xent.sequences.eos_optimum` and nothing else. Its
lines take the colour of the text, so that it is legible in light and dark, and it needs no script.
"""

from __future__ import annotations

import html
import importlib
import math
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

STOP = 0.1
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
WIDTH, HEIGHT = 480, 270
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 16, 44
LENGTHS = (0, 2, 4, 6, 8, 10)
BLUE = "#3a8fc4"  # legible on white and on black

ALT = (
    "Mean length that a model learns, against the number of sequences that share a denominator, 1 to 128. "
    "The data's mean length is 10. "
    "With one sequence the model learns {first:.1f} tokens, with 2 {second:.1f}, with 8 "
    "{eighth:.1f}, with 128 {last:.1f}: the curve rises towards 10 and stays below it."
)


def learnt_lengths() -> dict[int, float]:
    """The mean length 1/q* that a constant-hazard model learns, for each number of sequences."""
    sequences: Any = importlib.import_module("xent.sequences")
    return {batch: 1 / sequences.eos_optimum(STOP, batch) for batch in BATCHES}


def alt_text() -> str:
    """What the picture shows, in words and numbers."""
    lengths = learnt_lengths()
    return ALT.format(first=lengths[1], second=lengths[2], eighth=lengths[8], last=lengths[128])


def place(batch: int, length: float) -> tuple[float, float]:
    """The point of the picture that stands for a number of sequences and a length."""
    x = LEFT + 10 + (WIDTH - LEFT - RIGHT - 20) * math.log2(batch) / math.log2(BATCHES[-1])
    y = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * length / (LENGTHS[-1] + 0.6)
    return round(x, 1), round(y, 1)


def picture() -> str:
    """The figure as SVG."""
    points = {batch: place(batch, length) for batch, length in learnt_lengths().items()}
    bottom = HEIGHT - BOTTOM
    marks = []
    for length in LENGTHS:
        y = place(1, length)[1]
        marks.append(f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}" opacity="0.15"/>')
        marks.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{length}</text>')
    for batch in BATCHES:
        x = place(batch, 0)[0]
        marks.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{batch}</text>')
    true = place(1, 1 / STOP)[1]
    dots = "".join(f'<circle cx="{x}" cy="{y}" r="4"/>' for x, y in points.values())
    path = " ".join(f"{x},{y}" for x, y in points.values())
    return (
        f'<svg class="stop-figure" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'role="img" '
        f'aria-label="{html.escape(alt_text(), quote=True)}" '
        'style="max-width:100%;height:auto" font-size="13" fill="currentColor" stroke="none" '
        'font-family="system-ui, sans-serif">'
        f'<g stroke="currentColor" stroke-width="1">{"".join(m for m in marks if m.startswith("<line"))}'
        f'<line x1="{LEFT}" y1="{true}" x2="{WIDTH - RIGHT}" y2="{true}" stroke-width="1.5" '
        'stroke-dasharray="5 4"/></g>'
        f"{''.join(m for m in marks if m.startswith('<text'))}"
        f'<polyline points="{path}" fill="none" stroke="{BLUE}" stroke-width="2.5"/>'
        f'<g fill="{BLUE}">{dots}</g>'
        f'<text x="{LEFT + 6}" y="{true - 6}">the data: 10 tokens</text>'
        f'<text x="{points[2][0] + 8}" y="{points[2][1] + 20}">learnt with the mean over tokens</text>'
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">'
        "sequences that share a denominator</text></svg>"
    )


class UnnumberedFigure(nodes.figure):
    """A figure that takes no part in the numbering, which begins in chapter 1."""


class StopFigure(SphinxDirective):
    """Renders the figure; the content is its caption."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        # Another way to draw it has the page read again.
        self.env.note_dependency(__file__)
        inline, messages = self.state.inline_text(" ".join(self.content), self.lineno)
        caption = nodes.caption(self.content[0], "", *inline)
        drawn = nodes.raw("", picture(), format="html")
        figure = UnnumberedFigure("", drawn, caption, classes=["front-figure"], ids=["front-figure"])
        self.set_source_info(figure)
        self.set_source_info(caption)
        return [figure, *messages]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("stop-figure", StopFigure)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
