"""The book on paper: all pages of the built site in one document, which Chromium prints into one PDF.

    python _ext/book_pdf.py          # make pdf: _build/html/cross-entropy-verified.pdf

The pages follow each other as in the table of contents, each under a running head of its own; links between them
lead inside the file, and headings become the outline. It is printed twice: the first time tells on which page each
chapter begins. What is for looking up, the ledger of each chapter and the package's reference, stays on the site; so
does the code that only draws a figure.
"""

from __future__ import annotations

import html
import os
import re
import shutil
import sys
from datetime import date
from importlib.metadata import version
from pathlib import Path
from posixpath import join, normpath
from typing import Any

from playwright.sync_api import Browser, sync_playwright
from pypdf import PdfReader

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "_build" / "html"
VERSION = version("cross-entropy-verified")
TARGET = "cross-entropy-verified.pdf"
SHEET = """
@page { size: A4; margin: 22mm 24mm; @bottom-center { content: counter(page); font: 9pt "Source Serif 4"; } }
@page :first { @bottom-center { content: none; } }
html { font-size: 13.5px; }
body { display: block; background: white; }
.leaf { break-before: page; padding-inline: 2px; } /* a frame at the very edge is not drawn */
.front { padding-top: 35vh; text-align: center; }
.contents li { display: flex; gap: 1em; } .contents li::before { content: none; }
.contents a { flex: 1; color: inherit; text-decoration: none; }
.bd-article { padding: 0 !important; }
.bd-article, .bd-article :is(section, section > *, .admonition > *, details > *) { max-width: none !important; }
.bd-article div.math { min-width: 100% !important; }
/* The outline is made of the headings' lines, with the spaces that stay at their ends. */
.bd-article :is(h1, h2, h3, h4) { white-space: break-spaces; text-wrap: wrap; }
.bd-article :is(h1, h2, h3, h4), .bd-article p:has(+ div.math) { break-after: avoid; }
.bd-article :is(figure, .cell_input, .results, .erratum, tr, .sd-card, div.math) { break-inside: avoid; }
.bd-article img, svg.drawn { max-height: 200mm; }
details.hide, .headerlink, .copybtn, .to-run, .moving { display: none !important; }
"""


def key(page: str, anchor: str = "") -> str:
    """Return the id in the one document of a place on a page."""
    return f"{re.sub(r'[^a-z0-9]+', '-', page.lower())}{'--' + anchor if anchor else ''}"


def leaf(site: Path, page: str, pages: list[str]) -> tuple[str, str]:
    """Return the title of a page and its article, with ids, links and pictures that hold in the one document."""
    text = (site / f"{page}.html").read_text(encoding="utf-8")
    body = text[text.index(">", text.index("<article")) + 1 : text.index("</article>")]
    here = os.path.dirname(page)

    def link(found: re.Match[str]) -> str:
        target, _, anchor = found[1].partition("#")
        if re.match(r"[a-z]+:", target):
            return found[0]
        name = normpath(join(here, target)).removesuffix(".html") if target else page
        return f'href="#{key(name, anchor)}"' if name in pages else ""

    body = re.sub(r'(?<![:\w-])href="([^"]*)"', link, body)
    body = re.sub(r'(?<=\bid=")([^"]+)', lambda found: key(page, found[1]), body)
    body = re.sub(r'(xlink:href="#|url\(#)([^")]+)', lambda found: found[1] + key(page, found[2]), body)
    body = re.sub(r'\bsrc="([^":]+)"', lambda found: f'src="{normpath(join(here, found[1]))}"', body)
    body = body.replace(' loading="lazy"', "")
    title = re.search(r"<h1>(.*?)</h1>", body, re.DOTALL)
    assert title is not None, page
    plain = re.sub(r'<a class="headerlink".*?</a>|<[^>]+>', "", title[1])
    return html.unescape(plain).strip(), f'<div class="leaf {key(page)}" id="{key(page)}">{body}</div>'


def document(site: Path, pages: list[str], starts: dict[str, int]) -> str:
    """Return the one document, with the numbers of the pages where these are known."""
    leaves = [leaf(site, page, pages) for page in pages]
    quoted = [
        (title.replace('"', r"\22 "), key(page)) for (title, _), page in zip(leaves, pages, strict=True)
    ]
    heads = "".join(
        f'@page {name} {{ @top-center {{ content: "{title}"; font: italic 9pt "Source Serif 4" }} }}'
        f" .{name} {{ page: {name} }}\n"
        for title, name in quoted
    )
    entries = "".join(
        f'<li><a href="#{key(page)}">{html.escape(title)}</a><span>{starts.get(title, "")}</span></li>'
        for (title, _), page in zip(leaves, pages, strict=True)
    )
    return (
        '<!doctype html><html lang="en" data-theme="light"><head><meta charset="utf-8">'
        "<title>Cross-Entropy, Verified</title>"
        f'<link rel="stylesheet" href="_static/bundle.css"><style>{SHEET}{heads}</style></head><body>'
        '<article class="bd-article"><div class="front"><p style="font-size: 3rem">Cross-Entropy, Verified</p>'
        f"<p>From binary labels to LLM distillation</p><p>Version {VERSION} · {date.today():%B %Y}</p></div>"
        f'<div class="leaf contents"><p style="font-size: 2rem">Contents</p><ul>{entries}</ul></div>'
        f"{''.join(text for _, text in leaves)}</article></body></html>"
    )


def starts_in(path: Path) -> dict[str, int]:
    """Return the page, from 1, on which each first-level entry of a PDF's outline begins."""
    reader = PdfReader(path)
    top: list[Any] = [entry for entry in reader.outline if not isinstance(entry, list)]
    return {str(entry.title).strip(): (reader.get_destination_page_number(entry) or 0) + 1 for entry in top}


def print_book(browser: Browser, site: Path, pages: list[str]) -> PdfReader:
    """Print these pages of a built site into the one file beside them."""
    source, target = site / "printed.html", site / TARGET
    starts: dict[str, int] = {}
    for _ in range(2):
        source.write_text(document(site, pages, starts), encoding="utf-8")
        page = browser.new_page()
        page.set_default_timeout(600_000)
        page.goto(source.as_uri(), wait_until="load")
        # What is printed is laid out for the first time: its fonts have to be there before. A picture that is not
        # there ends it.
        page.evaluate("() => Promise.all([...document.fonts].map(font => font.load()))")
        page.evaluate("() => Promise.all([...document.images].map(image => image.decode()))")
        page.pdf(path=target, prefer_css_page_size=True, print_background=True, outline=True, tagged=True)
        page.close()
        starts = starts_in(target)
    source.unlink()
    return PdfReader(target)


def main() -> None:
    """Print the book, and offer it on the page that says how to get it."""
    toc = (ROOT / "_toc.yml").read_text(encoding="utf-8")
    pages = [n for n in re.findall(r"(?:root|file): (\S+)", toc) if not re.search(r"/ledger/|/api", n)]
    found = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
    path = os.environ.get("CHROMIUM") or next(filter(None, found), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        count = len(print_book(browser, SITE, pages).pages)
        browser.close()
    said = f"{count} pages, {(SITE / TARGET).stat().st_size / 1e6:.1f} MB"
    offer, place = SITE / "chapters" / "get.html", '<span id="pdf"></span>'
    link = f'<a href="../{TARGET}">Download it</a> ({said}).'
    offer.write_text(offer.read_text(encoding="utf-8").replace(place, link), encoding="utf-8")
    print(f"{SITE / TARGET}: {said}")


if __name__ == "__main__":
    sys.exit(main())
