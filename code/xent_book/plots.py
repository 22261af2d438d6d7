"""The look of the book's figures: one style, one palette, and pictures that repeat byte for byte."""

from __future__ import annotations

from importlib.resources import as_file, files

import matplotlib.pyplot as plt

__all__ = ["BLACK", "BLUE", "GREEN", "GREY", "ORANGE", "PINK", "SKY", "YELLOW", "use_style"]

# Okabe and Ito's palette, told apart with any kind of colour vision. One colour, one thing in a chapter.
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
YELLOW, SKY, BLACK, GREY = "#E69F00", "#56B4E9", "#000000", "#777777"


def use_style() -> None:
    """Set the book's style for every figure that follows.

    In a notebook the pictures also become sharp (twice the resolution) and carry no metadata that changes
    from one machine to the next.

    Examples
    --------
    >>> from xent_book import plots
    >>> plots.use_style()
    """
    with as_file(files("xent_book") / "book.mplstyle") as style:
        plt.style.use(style)
    try:
        from matplotlib_inline.backend_inline import set_matplotlib_formats
    except ImportError:  # outside a notebook there is nothing more to set
        return
    from IPython import get_ipython

    if get_ipython() is not None:
        set_matplotlib_formats("retina", metadata={"Software": None})  # type: ignore[no-untyped-call]
