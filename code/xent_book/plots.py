"""The look of the book's figures. The colours are in ``palette.json``, for the figures and for the pages."""

from __future__ import annotations

import json
from importlib.resources import as_file, files

import matplotlib.pyplot as plt
from cycler import cycler

__all__ = ["BLACK", "BLUE", "GREEN", "GREY", "ORANGE", "PALETTE", "PINK", "SKY", "YELLOW", "use_style"]

#: The colours by theme, "light" or "dark", and name; they are Okabe and Ito's, for any kind of colour vision.
#:
#: :meta hide-value:
PALETTE: dict[str, dict[str, str]] = json.loads((files("xent_book") / "palette.json").read_text("utf-8"))

# Figures are drawn in the light palette. One colour, one thing in a chapter.
BLUE, ORANGE, GREEN, PINK, YELLOW, SKY, GREY = (
    PALETTE["light"][name] for name in ("blue", "orange", "green", "pink", "yellow", "sky", "grey")
)
BLACK = "#000000"


def use_style() -> None:
    """Set the book's style for every figure that follows.

    In a notebook the figures also become SVG, without a date. They are drawn on white; a page with a dark
    theme inverts them.
    """
    with as_file(files("xent_book") / "book.mplstyle") as style:
        plt.style.use(style)
    plt.rcParams["axes.prop_cycle"] = cycler(color=[BLUE, ORANGE, GREEN, PINK, YELLOW, SKY, BLACK])
    plt.rcParams["grid.color"] = PALETTE["light"]["grid"]
    try:
        from matplotlib_inline.backend_inline import set_matplotlib_formats
    except ImportError:  # outside a notebook there is nothing more to set
        return
    from IPython import get_ipython

    if get_ipython() is not None:
        set_matplotlib_formats("svg", metadata={"Date": None, "Creator": None})  # type: ignore[no-untyped-call]
