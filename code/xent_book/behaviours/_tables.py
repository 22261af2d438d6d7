"""The behaviour table as a page shows it: HTML that scrolls in its own box, plain text elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from ._profiles import COLUMNS
from ._registry import NAMES, rows, see_once

# Half-precision numbers differ between processors: two digits of them survive, four of the others.
FEW, MANY = 2, 4
# Inline, so that the table looks the same in the notebook and on the page.
CELL = "padding:.35rem .5rem .35rem 0;text-align:left;vertical-align:top"
# What names a line stays in view while the columns scroll, over the colour of the page or of the notebook.
STAYS = (
    ";position:sticky;left:0;min-width:6.5rem;max-width:8.5rem"
    ";background:var(--pst-color-background,var(--jp-layout-color0,canvas))"
)


@dataclass(frozen=True, repr=False)
class Table:
    """A table of text, wide or narrow."""

    caption: str
    header: Sequence[str]
    body: Sequence[Sequence[str]]

    def __repr__(self) -> str:
        lines = [self.header, *self.body]
        return "\n".join(" | ".join(cell.replace("\n", "; ") for cell in line) for line in lines)

    def _repr_html_(self) -> str:
        def cells(line: Sequence[str], head: bool) -> str:
            wide = len(line) > 2
            first = CELL + (STAYS if wide else "")
            first = f'<th scope="{"col" if head else "row"}" style="{first}">{escape(line[0])}</th>'
            tag = 'th scope="col"' if head else "td"
            # A cell of its own width may break a long name; columns side by side scroll instead.
            style = CELL + ("" if wide else ";overflow-wrap:anywhere")
            rest = (f'<{tag} style="{style}">{markup(text)}</{tag[:2]}>' for text in line[1:])
            return f'<tr style="border-top:1px solid #8886">{first}{"".join(rest)}</tr>'

        def markup(text: str) -> str:
            lines = escape(text).split("\n")
            if len(lines) > 1:
                lines[0] = f"<strong>{lines[0]}</strong>"
            return "<br>".join(lines)

        label = escape(self.caption)
        small = ";font-size:.82em" if len(self.header) > 2 else ""
        return "\n".join(
            [
                f'<div style="overflow-x:auto" role="region" tabindex="0" aria-label="{label}">',
                f'<table style="border-collapse:collapse;text-align:left{small}">',
                f"<caption>{label}</caption>",
                f"<thead>{cells(self.header, True)}</thead>",
                "<tbody>",
                *(cells(line, False) for line in self.body),
                "</tbody></table></div>",
            ]
        )


def glance_table() -> Table:
    """The same questions put to each library: a row for each question, a column for each library."""
    answers = {column: see_once(slug) for column, slug in COLUMNS.items()}
    body = [
        [question, *(column[question] for column in answers.values())]
        for question in answers["xent cross_entropy"]
    ]
    return Table("The same questions, answered by measurement", ["question", *answers], body)


def group_table(group: str) -> Table:
    """The rows of one group, run now: library, behaviour, what the probe saw, what to write instead."""
    if group not in {row.group for row in rows().values()}:
        raise ValueError(f"there is no group {group!r}")
    body = []
    for row in rows().values():
        if row.group == group:
            digits = MANY if row.tolerance < 1e-3 else FEW
            lines = [f"{key}: {show(value, digits)}" for key, value in see_once(row.slug).items()]
            text = "\n".join([row.title, *lines, f"Instead: {row.instead}"])
            body.append([NAMES[row.library], text])
    return Table(f"Rows: {group}", ["library", "what happens, what the probe saw, what to write"], body)


def show(value: Any, digits: int = MANY) -> str:
    """Write an observation in a few digits."""
    if isinstance(value, list):
        return ", ".join(show(entry, digits) for entry in value) or "none"
    return str(value) if isinstance(value, bool | int | str) else f"{value:.{digits}g}"


def versions() -> str:
    """The versions behind the table, a line for each library."""
    seen = {row.library: row.version for row in rows().values() if row.library != "keras-torch"}
    return "\n".join(seen[library] for library in NAMES if library in seen)
