"""Tables of results: what stands in the text stands on the page, and what does not fit is refused."""

from __future__ import annotations

import re
from html import unescape

import pytest

from adversary import rng
from xent_book.tables import table


def test_text_and_page_say_the_same() -> None:
    g = rng(31)
    for _ in range(50):
        count, width = int(g.integers(0, 6)), int(g.integers(1, 5))
        rows = {
            f"{i} <a & b>"[: int(g.integers(1, 10))]: g.normal(size=width) * 10.0 ** g.integers(-3, 6)
            for i in range(count)
        }
        marked = [name for name in rows if g.random() < 0.3]
        found = table(rows, "row", *(f"c{i}" for i in range(width)), form=".3g", mark=marked)
        lines, html = repr(found).split("\n"), found._repr_html_().split("\n")[1:-1]
        text = [[cell.strip() for cell in re.split("  +", line.removesuffix(" <").strip())] for line in lines]
        assert text == [[unescape(x).strip() for x in re.findall(r">([^<]*)</t[hd]>", row)] for row in html]
        assert [line.endswith(" <") for line in lines[1:]] == [name in marked for name in rows]
        assert found._repr_html_().count('class="marked"') == len(marked)
        if count:  # numbers end below each other
            assert len({len(line.removesuffix(" <")) for line in lines}) == 1


def test_one_value_text_and_nothing() -> None:
    found = table({"a": 1.25, "b": "none", 3: None}, "x", "y", form=".1f")
    assert repr(found) == "x     y\na   1.2\nb  none\n3"


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        ({"a": [1, 2]}, {}, "rows: 'a' has 2 values, for 2 columns"),
        ({"a": 1}, {"form": [".1f", ".2f"]}, "2 forms"),
        ({"a": 1}, {"mark": ["b"]}, r"mark: no row is called \['b'\]"),
    ],
)
def test_what_does_not_fit_is_refused(rows: dict[str, object], options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        table(rows, "x", "y", **options)  # type: ignore[arg-type]
