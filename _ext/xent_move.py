"""Figures that move: the directive, the still pictures, and the scripts on the pages that have one.

    ```{moving-figure} softmax
    :name: fig-move-softmax
    :alt: What the still picture shows.

    The caption: predict something, then move a slider.
    ```

makes a figure that can be referred to like any other. It holds a still picture, drawn here from `xent` at
each build, for print and for readers without scripts. Where scripts run, `_static/move/load.js` puts a figure
with sliders in its place once it comes near. What that draws is in `_static/move/figures.js`; its formulas,
in `_static/move/formulas.js`, are compared with `xent` by tests/book/test_moving_formulas.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from docutils.parsers.rst.states import RSTState
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from sphinx.application import Sphinx

FOLDER = "move"  # in _static
CLASS = "moving-figure"

# ------------------------------------------------------------------------------------- the still pictures
# xent and matplotlib are imported where they are used: a build without such a figure needs neither.


def _panels(fig: Figure, titles: list[str], **shared: Any) -> list[Axes]:
    axes = list(fig.subplots(1, len(titles), sharey=True))
    for ax, title in zip(axes, titles, strict=True):
        ax.set(title=title, **shared)
    return axes


def draw_softmax(fig: Figure) -> None:
    """Draw the same logits at three temperatures."""
    import xent
    from xent_book import plots

    temperatures = (0.5, 1.0, 4.0)
    axes = _panels(fig, [f"T = {t:g}" for t in temperatures], ylim=(0, 1))
    for ax, temperature in zip(axes, temperatures, strict=True):
        probs = xent.softmax([z / temperature for z in (2.0, 1.0, 0.0, -1.0)])
        ax.bar(["A", "B", "C", "D"], probs, color=plots.BLUE, width=0.6)
        ax.grid(axis="x", visible=False)
    axes[0].set(ylabel="probability")
    axes[1].set(xlabel="class, with the logits 2, 1, 0 and −1")


def draw_binary_loss(fig: Figure) -> None:
    """Draw loss and mistakes for a sure and an unsure label, with a tangent."""
    import numpy as np

    import xent
    from xent_book import plots

    z, at, threshold = np.linspace(-6, 6, 241), 2.0, 0.5
    labels = (1.0, 0.7)
    axes = _panels(fig, [f"y = {y:g}" for y in labels], ylim=(-0.3, 5), xlabel="logit z")
    for ax, y in zip(axes, labels, strict=True):
        curve = xent.binary_cross_entropy(z, np.full(z.size, y), reduction="none")
        ax.plot(z, curve, color=plots.BLUE, label="loss")
        loss, slope = xent.binary_cross_entropy(at, y), xent.sigmoid(at) - y
        ax.plot(z, loss + slope * (z - at), color=plots.GREY, ls=":", label="tangent at z = 2")
        ax.plot(at, loss, "o", color=plots.BLUE, ms=7)
        # At the threshold 1/2 the answer changes at the logit 0.
        wrong = np.where(xent.sigmoid(z) > threshold, 1 - y, y)
        ax.step(z, wrong, color=plots.ORANGE, ls="--", where="post", label="share of mistakes")
    axes[0].set(ylabel="nats, or share")
    axes[0].legend(loc="upper right")


def draw_eos_optimum(fig: Figure) -> None:
    """Draw the learnt stop probability for three batch sizes."""
    import numpy as np

    from xent.sequences import eos_optimum
    from xent_book import plots

    ax = fig.subplots()
    stop = np.linspace(0.01, 1, 100)
    styles = ((1, plots.BLUE, "-"), (2, plots.ORANGE, "--"), (8, plots.GREEN, "-."))
    for size, colour, style in styles:
        ax.plot(stop, [eos_optimum(b, size) for b in stop], style, color=colour, label=f"B = {size}")
    ax.plot(stop, stop, ":", color=plots.GREY, label="honest, q = β")
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="true stop probability β", ylabel="learnt, q*(B, β)")
    ax.legend(loc="lower right")


def draw_smoothing(fig: Figure) -> None:
    """Draw the best report over the truth for three smoothings, and one way back."""
    import numpy as np

    from xent import scoring
    from xent_book import plots

    ax = fig.subplots()
    classes, p = 10, np.array([0.0, 1.0])
    styles = ((0.0, plots.GREY, ":"), (0.2, plots.BLUE, "-"), (0.5, plots.GREEN, "--"))
    for eps, colour, style in styles:
        name = "honest, q = p" if eps == 0 else f"ε = {eps:g}"
        ax.plot(p, (1 - eps) * p + eps / classes, style, color=colour, label=name)
    report = 0.7
    back = scoring.invert_smoothing([report, *[(1 - report) / 9] * 9], label_smoothing=0.2)[0]
    ax.plot([0, back, back], [report, report, 0], color=plots.ORANGE, lw=1.2)
    ax.plot(back, report, "o", color=plots.ORANGE, ms=7)
    ax.annotate(f"{report:g} comes from {back:g}", (back, 0.1), (0.83, 0.1), ha="right", color=plots.BLACK)
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="true probability p, K = 10", ylabel="report q")
    ax.legend(loc="upper left")


def draw_scores(fig: Figure) -> None:
    """Draw the expected costs of a report under three rules at one probability."""
    import numpy as np

    from xent import scoring
    from xent_book import plots

    ax = fig.subplots()
    law = [0.7, 0.3]
    q = np.linspace(0.002, 0.998, 250)
    pairs = np.stack([q, 1 - q], axis=-1)
    rules = (
        ("log", scoring.log_score, plots.BLUE, "-", 0.7),
        ("Brier", scoring.brier_score, plots.GREEN, "--", 0.7),
        ("linear", scoring.linear_score, plots.PINK, ":", 1.0),
    )
    for name, rule, colour, style, best in rules:
        ax.plot(q, scoring.expected_score(rule, law, pairs), style, color=colour, label=name)
        cost = scoring.expected_score(rule, law, [best, 1 - best])
        ax.plot(best, cost, "o", mfc="white", color=colour, ms=8, mew=2, clip_on=False)
    ax.set(xlim=(0, 1), ylim=(0, 2), xlabel="report q, for p = 0.7", ylabel="expected cost")
    ax.legend(loc="upper left", bbox_to_anchor=(0.15, 1))


# Name, picture, and its size in inches.
FIGURES: dict[str, tuple[Callable[[Figure], None], tuple[float, float]]] = {
    "softmax": (draw_softmax, (5.6, 2.6)),
    "binary-loss": (draw_binary_loss, (5.6, 3.0)),
    "eos-optimum": (draw_eos_optimum, (4.8, 3.2)),
    "smoothing": (draw_smoothing, (4.8, 3.2)),
    "scores": (draw_scores, (4.8, 3.2)),
}


def still_picture(name: str) -> bytes:
    """Draw a figure's still picture as SVG, the same bytes at every build."""
    import matplotlib.pyplot as plt

    from xent_book import plots

    draw, size = FIGURES[name]
    with plt.style.context("default"):
        plots.use_style()
        fig = plt.figure(figsize=size)
        draw(fig)
        file = BytesIO()
        fig.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
        plt.close(fig)
    return file.getvalue()


# ------------------------------------------------------------------------------------- the directive


class MovingFigure(SphinxDirective):
    """A figure with a still picture, which a script replaces by one with sliders."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {
        "name": directives.unchanged_required,
        "alt": directives.unchanged_required,
    }
    state: RSTState

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        if name not in FIGURES:
            raise self.error(f"moving-figure: expected one of {', '.join(FIGURES)}, got {name!r}")
        if not self.content or not self.options.get("alt"):
            raise self.error(f"moving-figure {name}: expected :alt: and a caption")
        # Another way to draw it has the page read again.
        self.env.note_dependency(__file__)

        target = Path(self.env.doctreedir) / FOLDER / f"{name}.svg"
        picture = still_picture(name)
        if not target.exists() or target.read_bytes() != picture:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(picture)
        # An address that starts at the book's folder.
        uri = "/" + Path(os.path.relpath(target, self.env.srcdir)).as_posix()
        width, height = (round(96 * inches) for inches in FIGURES[name][1])
        size = {"width": f"{width}px", "height": f"{height}px"}
        image = nodes.image(uri=uri, alt=self.options["alt"], classes=["no-scaled-link"], **size)

        caption = nodes.caption(self.content[0], "")
        inline, messages = self.state.inline_text(" ".join(self.content), self.lineno)
        caption += inline
        figure = nodes.figure("", image, caption, classes=[CLASS, f"moving-is-{name}"], align="default")
        self.set_source_info(figure)
        self.set_source_info(caption)
        self.add_name(figure)
        return [figure, *messages]


# ------------------------------------------------------------------------------------- scripts where needed


def _scripts(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Add the loader, which fetches all else, to the pages that have such a figure and to no other."""
    if doctree is not None and any(CLASS in figure["classes"] for figure in doctree.findall(nodes.figure)):
        app.add_js_file(f"{FOLDER}/load.js", loading_method="defer")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive and connect to the pages."""
    app.add_directive("moving-figure", MovingFigure)
    app.connect("html-page-context", _scripts)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
