"""Small pictures of loss curves that lead to what explains them: an index in a notebook and on its page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 132, 66
GRID = "display: grid; grid-template-columns: repeat(auto-fill, minmax(8rem, 1fr)); gap: 0.9rem; line-height: 1.35"


@dataclass(frozen=True)
class Curve:
    """A run: its losses, the loss of a guess, and where to read on, as words and the label of a section."""

    losses: Sequence[float]
    guess: float
    links: Mapping[str, str]
    low: float = 0.0  # where the picture begins

    def svg(self) -> str:
        """Draw the losses on a grid of whole numbers, so that processors agree; a cross marks the first nan or inf."""
        finite = [loss for loss in self.losses if math.isfinite(loss)]
        low = min(self.low, *finite)
        high = max(self.guess + 0.1 * (self.guess - low), *finite)

        def across(step: int) -> int:
            return round(4 + step * (WIDTH - 12) / (len(self.losses) - 1))

        def down(loss: float) -> int:
            return round(HEIGHT - 5 - (loss - low) / (high - low) * (HEIGHT - 10))

        end = next((i for i, loss in enumerate(self.losses) if not math.isfinite(loss)), len(self.losses))
        points = " ".join(f"{across(i)},{down(loss)}" for i, loss in enumerate(self.losses[:end]))
        cross = ""
        if end < len(self.losses):
            x, y = across(end), max(6, down(self.losses[end - 1]))
            cross = f'<path d="M{x - 4} {y - 4}l8 8m0 -8l-8 8" stroke="var(--orange, #d55e00)"/>'
        return (
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" aria-hidden="true" fill="none" stroke-width="2" '
            f'style="display: block; width: 100%; border: 1px solid #8886">'
            f'<path d="M0 {down(self.low)}H{WIDTH}" stroke="#888" stroke-width="1"/>'
            f'<path d="M0 {down(self.guess)}H{WIDTH}" stroke="#888" stroke-dasharray="2 4"/>'
            f'<polyline points="{points}" stroke="var(--blue, #0072b2)"/>{cross}</svg>'
        )


@dataclass(frozen=True)
class Index:
    """Curves by name, side by side."""

    curves: Mapping[str, Curve]

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {', '.join(curve.links)}" for name, curve in self.curves.items())

    def _repr_html_(self) -> str:
        def card(name: str, curve: Curve) -> str:
            first, *_ = curve.links.values()
            links = ", ".join(f'<a href="#{at}">{escape(words)}</a>' for words, at in curve.links.items())
            picture = f'<a href="#{first}" title="{escape(name)}" tabindex="-1">{curve.svg()}</a>'
            return f"<div>{picture}<strong>{escape(name)}</strong><br>{links}</div>"

        cards = "".join(card(name, curve) for name, curve in self.curves.items())
        return f'<div class="curves" style="{GRID}">{cards}</div>'
