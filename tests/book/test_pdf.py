"""The book on paper, in small: three pages of the built site."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser

import book_pdf

PRINTED = ["index", "chapters/05_numerics", "chapters/line"]


@pytest.mark.slow
def test_the_book_is_printed(browser: Browser, built_site: Path) -> None:
    """Outline and contents name the pages; the fonts are the site's; what is folded is open; pictures are there."""
    reader = book_pdf.print_book(browser, built_site, PRINTED)
    titles = [book_pdf.leaf(built_site, page, PRINTED)[0] for page in PRINTED]
    starts = book_pdf.starts_in(built_site / book_pdf.TARGET)
    assert [title for title in starts if title in titles] == titles
    said = [" ".join(page.extract_text().split()) for page in reader.pages]
    assert 8 < len(said) < 60
    for title in titles:
        assert title in said[starts[title] - 1] and re.search(
            rf"{re.escape(title)} ?{starts[title]}\b", said[1]
        )
    # Each page of a chapter has its title at the head and its number at the foot.
    inside = range(starts[titles[1]], starts[titles[2]] - 1)
    assert all(said[n].count(titles[1]) == 1 and str(n + 1) in said[n] for n in inside), "running heads"
    fonts = [font for page in reader.pages for font in page["/Resources"].get("/Font", {}).values()]
    names = " ".join({str(font.get_object().get("/BaseFont")) for font in fonts})
    assert all(part in names for part in ("KaTeX_Math-Italic", "KaTeX_Size", "SourceSerif4")), names
    folded = {PRINTED[1]: 'class="solution.*?<section.*?<p>', PRINTED[2]: '<details class="sd-.*?</a>, (?=“)'}
    for page, start in folded.items():
        text = (built_site / f"{page}.html").read_text(encoding="utf-8")
        first = re.search(f"{start}([A-Za-z ,“”()]{{15,}})", text, re.DOTALL)
        assert first and " ".join(html.unescape(first[1]).split()) in " ".join(said), f"{start} is shut"
    assert not (built_site / "printed.html").exists()
