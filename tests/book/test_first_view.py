"""What a page's first view weighs on its way to a reader, and that no page fetches what it does not use.

The weights are printed: pytest tests/book/test_first_view.py -rP
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from xent_site import toc_documents

ROOT = Path(__file__).resolve().parents[2]
PAGES = [f"{name}.html" for name in toc_documents(ROOT)] + ["genindex.html", "search.html", "404.html"]
FIRST_VIEW = 450_000
# The style sheets and scripts that only some pages ask for, and a mark of the pages that need them.
SPECIAL = {
    "page/appendix.css": r'class="erratum |class="py ',
    "page/index.css": r'class="index-entries"',
    "page/search.js": r'id="search-results"',
    "page/symptoms.css": r'class="xent-symptoms"',
    "page/symptoms.js": r'class="xent-symptoms"',
    "move/load.js": r'class="[^"]*\bmoving-figure\b',
}


@dataclass
class Traffic:
    """What the browser received: the bytes on the wire, headers included, and how each answer was packed."""

    size: int = 0
    requests: int = 0
    unpacked: list[str] = field(default_factory=list)

    def finished(self, event: dict[str, Any]) -> None:
        self.size += int(event["encodedDataLength"])
        self.requests += 1

    def received(self, event: dict[str, Any]) -> None:
        answer = event["response"]
        headers = {name.lower(): value for name, value in answer["headers"].items()}
        is_text = re.search(r"text/|json|svg|xml", answer["mimeType"]) is not None
        if is_text and headers.get("content-encoding") != "gzip" and int(headers["content-length"]) > 400:
            self.unpacked.append(answer["url"])


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    # A context of its own for each page: nothing is in its cache.
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield context.new_page()
    context.close()


@pytest.mark.parametrize("name", PAGES)
def test_the_first_view_is_light(page: Page, server: str, name: str) -> None:
    traffic = Traffic()
    network = page.context.new_cdp_session(page)
    network.on("Network.loadingFinished", traffic.finished)
    network.on("Network.responseReceived", traffic.received)
    network.send("Network.enable")
    page.goto(server + name, wait_until="networkidle")
    print(f"{name}: {traffic.size / 1000:.0f} kB in {traffic.requests} requests")
    assert traffic.unpacked == []
    # The page itself; all but 404.html, which is whole in itself, have a style sheet and a script.
    assert traffic.requests >= (1 if name == "404.html" else 4)
    assert traffic.size > (500 if name == "404.html" else 15_000)
    assert traffic.size <= FIRST_VIEW


def test_a_page_asks_for_what_it_uses_and_for_nothing_else(built_site: Path) -> None:
    used = dict.fromkeys(SPECIAL, 0)
    for name in PAGES:
        text = (built_site / name).read_text(encoding="utf-8")
        for asset, mark in SPECIAL.items():
            asked = len(re.findall(rf'(?:href|src)="[^"]*_static/{re.escape(asset)}\b', text))
            assert asked == bool(re.search(mark, text)), f"{name} and {asset}"
            used[asset] += asked
    assert all(used.values()), used
    special = {path.name for path in (built_site / "_static/page").iterdir()}
    assert special <= {asset.rpartition("/")[2] for asset in SPECIAL}, "a file that this test does not know"
