"""A table of results: aligned text where there is only text, a table where there is a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Table:
    """Cells that are written out already; the first row is the heading, the first column names the rows."""

    cells: tuple[tuple[str, ...], ...]
    marked: frozenset[str]

    def __repr__(self) -> str:
        widths = [max(map(len, column)) for column in zip(*self.cells, strict=True)]
        lines = (
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
            + (" <" if row[0] in self.marked else "")
            for row in self.cells
        )
        return "\n".join(map(str.rstrip, lines))

    def _repr_html_(self) -> str:
        head, *body = [[escape(cell) for cell in row] for row in self.cells]
        lines = [
            '<table class="results">',
            "<tr>" + "".join(f'<th scope="col">{c}</th>' for c in head) + "</tr>",
        ]
        for row, (name, *_) in zip(body, self.cells[1:], strict=True):
            mark = ' class="marked"' if name in self.marked else ""
            cells = "".join(f"<td>{c}</td>" for c in row[1:])
            lines.append(f'<tr{mark}><th scope="row">{row[0]}</th>{cells}</tr>')
        return "\n".join([*lines, "</table>"])


def table(
    rows: Mapping[Any, Any], *columns: str, form: str | Sequence[str] = ".4g", mark: Iterable[Any] = ()
) -> Table:
    """Lay out numbers.

    Parameters
    ----------
    rows
        What names a row, and its value or values; None leaves a cell empty, and text stands as it is.
    columns
        The heading of the names, and of each value.
    form
        How numbers are written, as `format` takes it: one for all columns of values or one for each.
    mark
        The names of the rows that decide.

    Raises
    ------
    ValueError
        If a row has another number of values than there are headings, or a marked row is not there.
    """
    found = {name: [value] if np.ndim(value) == 0 else list(value) for name, value in rows.items()}
    forms = [form] * (len(columns) - 1) if isinstance(form, str) else list(form)
    for name, values in found.items():
        if not len(values) == len(forms) == len(columns) - 1:
            raise ValueError(
                f"rows: {name!r} has {len(values)} values, for {len(columns)} columns with the row's name and "
                f"{len(forms)} forms"
            )
    marked = frozenset(map(str, mark))
    if missing := marked - set(map(str, found)):
        raise ValueError(f"mark: no row is called {sorted(missing)}")

    def written(value: Any, form: str) -> str:
        return "" if value is None else value if isinstance(value, str) else format(value, form)

    body = ((str(name), *map(written, values, forms)) for name, values in found.items())
    return Table((columns, *body), marked)


def show(
    rows: Mapping[Any, Any], *columns: str, form: str | Sequence[str] = ".4g", mark: Iterable[Any] = ()
) -> None:
    """Show the `table` of the same arguments, in the middle of a cell too."""
    from IPython.display import display

    display(table(rows, *columns, form=form, mark=mark))  # type: ignore[no-untyped-call]
