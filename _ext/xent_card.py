"""The picture that goes with a shared link to the book: its title, its finding, and the curve behind it.

Whoever fetches the picture asks for it by its whole address, so there is one only where the site has an
address (`html: baseurl:` in `_config.yml`). It is drawn by the build from `xent.sequences.eos_optimum`.
"""

from __future__ import annotations

import math
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xent_front import BATCHES, STOP, learnt_lengths

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config

NAME = "_static/card.png"
WIDTH, HEIGHT = 1200, 630
INK, MUTED, PAPER, BLUE = "#16242f", "#4d5d69", "#ffffff", "#1b6fa8"
SUBTITLE = "From binary labels to LLM distillation"
FINDING = "The default mean\nof a loss changes\nthe model."


def told() -> str:
    """Say what the curve says."""
    learnt, data = f"{learnt_lengths()[1]:.1f}", f"{1 / STOP:.0f}"
    return f"With one sequence per mean it learns\n{learnt} tokens where the data has {data}."


def alt_text(title: str) -> str:
    """Say in words what the picture shows."""
    return (
        f"{title}. {' '.join(FINDING.split())} {' '.join(told().split())} "
        f"A curve of the learnt length over the number of sequences that share a denominator, "
        f"1 to {BATCHES[-1]}, rises towards the dashed line of the data and stays below it."
    )


def picture(title: str, subtitle: str) -> bytes:
    """Draw the card as PNG, the same bytes at every build."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    dpi = 100
    lengths = learnt_lengths()
    places = [math.log2(batch) for batch in BATCHES]
    figure = Figure(figsize=(WIDTH / dpi, HEIGHT / dpi), dpi=dpi, facecolor=PAPER)
    FigureCanvasAgg(figure)
    # A host may show the card at a third of its size: nothing is written smaller than a reader can make out.
    points = 72 / dpi

    def write(text: str, bottom: float, pixels: int, colour: str, weight: str = "normal") -> None:
        # Line by line: matplotlib sets lines with a descender further apart than lines without.
        for number, line in enumerate(text.split("\n")):
            y = bottom - 1.3 * number * pixels / HEIGHT
            figure.text(0.05, y, line, size=pixels * points, color=colour, weight=weight, va="baseline")

    write(title, 0.84, 74, INK, weight="bold")
    write(subtitle, 0.735, 37, MUTED)
    write(FINDING, 0.535, 48, INK)
    write(told(), 0.19, 31, MUTED)
    axes = figure.add_axes((0.60, 0.19, 0.36, 0.46))
    axes.axhline(1 / STOP, color=INK, lw=2.5, dashes=(5, 3))
    axes.plot(places, list(lengths.values()), "o-", color=BLUE, lw=6, ms=13)
    axes.set(xlim=(-0.4, places[-1] + 0.4), ylim=(0, 12.8))
    shown = (1, 2, 8, 32, 128)
    axes.set_xticks([math.log2(batch) for batch in shown], [str(batch) for batch in shown])
    axes.set_yticks([0, round(1 / STOP)])
    axes.tick_params(labelsize=30 * points, colors=INK, length=0, pad=8)
    axes.set_xlabel("sequences per mean", size=30 * points, color=INK, labelpad=6)
    axes.text(0, 1 / STOP + 0.5, "the data", size=30 * points, color=INK)
    axes.text(3.1, lengths[8] - 2.9, "the model", size=30 * points, color=BLUE)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set(color=MUTED, linewidth=2)
    file = BytesIO()
    figure.savefig(file, format="png", dpi=dpi, metadata={"Software": None})
    return file.getvalue()


def _configure(app: Sphinx, config: Config) -> None:
    """Name the picture in every page's head, if the site has an address."""
    if config.html_baseurl:
        config.ogp_image = config.html_baseurl + NAME
        config.ogp_image_alt = alt_text(config.project)
        config.ogp_custom_meta_tags = [
            *config.ogp_custom_meta_tags,
            f'<meta property="og:image:width" content="{WIDTH}" />',
            f'<meta property="og:image:height" content="{HEIGHT}" />',
            '<meta name="twitter:card" content="summary_large_image" />',
        ]


def _write(app: Sphinx, exception: Exception | None) -> None:
    if exception is not None or app.builder.format != "html":
        return
    target = Path(app.outdir) / NAME
    if app.config.html_baseurl:
        target.write_bytes(picture(app.config.project, SUBTITLE))
    else:
        target.unlink(missing_ok=True)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to the build, after `xent_site` has tidied the site's address."""
    app.connect("config-inited", _configure, priority=900)
    app.connect("build-finished", _write, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
