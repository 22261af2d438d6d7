"""axe-core on the pages, light and dark, wide and narrow.

Each page is seen at two of the four combinations, and its neighbour at the other two. `make axe` looks at all
four of every page.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import axe_playwright_python
import pytest
from playwright.sync_api import Browser, Page

from xent_site import toc_documents

ROOT = Path(__file__).resolve().parents[2]
PAGES = [f"{name}.html" for name in toc_documents(ROOT)] + ["genindex.html", "search.html", "404.html"]
AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")

# As a reader comes by: each part in turn, which is when its scroll boxes are made reachable.
VISIT = """async () => {
  const frame = () => new Promise(f => requestAnimationFrame(f));
  for (const part of document.querySelectorAll("article > section > *")) {
    part.scrollIntoView({behavior: "instant"});
    for (let tries = 0; tries < 20 && !("ready" in part.dataset); tries++) await frame();
  }
  scrollTo({top: 0, behavior: 'instant'}); await frame(); await frame();
}"""

# A formula is drawn by hundreds of elements that a screen reader does not see, with the colour of the text
# around them, and read from as many more. axe looks at each. Beyond the first formulas of a page one element
# of the same size takes the place of what is drawn, and the formula's TeX that of what is read.
THIN = """() => {
  const formulas = [...document.querySelectorAll(".katex")].slice(20);
  const drawn = formulas.map(e => e.querySelector(".katex-html"));
  const boxes = drawn.map(e => e.getBoundingClientRect());
  formulas.forEach((e, i) => {
    drawn[i].replaceChildren();
    const { width, height } = boxes[i];
    drawn[i].style.cssText = `display: inline-block; width: ${width}px; height: ${height}px`;
    const read = e.querySelector(".katex-mathml");
    read.textContent = read.querySelector("annotation").textContent;
  });
}"""

WIDE, NARROW = 1280, 390
LOOKS = [[(WIDE, "light"), (NARROW, "dark")], [(WIDE, "dark"), (NARROW, "light")]]


def looks(name: str) -> list[tuple[int, str]]:
    """The widths and schemes at which a page is seen."""
    if os.environ.get("AXE") == "all":
        return [*LOOKS[0], *LOOKS[1]]
    return LOOKS[PAGES.index(name) % 2]


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page()
    # A chapter takes seconds, and on a busy machine many of them.
    page.set_default_timeout(300_000)
    yield page
    page.close()


def violations(page: Page, address: str, width: int, scheme: str) -> list[tuple[str, str, str]]:
    """What axe finds on a page that is read from top to bottom."""
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.goto(address, wait_until="load")
    page.evaluate(VISIT)
    page.evaluate(THIN)
    page.evaluate(AXE)
    result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        (rule["id"], str(node["target"]), node["html"][:120])
        for rule in result["violations"]
        for node in rule["nodes"][:3]
    ]


@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing(page: Page, built_site: Path, name: str) -> None:
    for width, scheme in looks(name):
        found = violations(page, (built_site / name).as_uri(), width, scheme)
        assert found == [], f"at {width} px, {scheme}"


def test_every_combination_is_seen() -> None:
    assert {look for name in PAGES for look in looks(name)} == {
        (WIDE, "light"),
        (WIDE, "dark"),
        (NARROW, "light"),
        (NARROW, "dark"),
    }


def test_axe_finds_what_is_wrong(page: Page, tmp_path: Path) -> None:
    """Pale text in the dark, a picture without words and a box that no key scrolls are found."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        """<!doctype html><html lang="en"><head><title>Bad</title><style>
        @media (prefers-color-scheme: dark) { body { background: #111 } p { color: #333 } }
        @media (max-width: 500px) { div { width: 100px; overflow: auto; white-space: nowrap } }
        </style></head><body><main><h1>Bad</h1><p>Pale in the dark.</p>
        <div>A long line that cannot be read to its end by keyboard alone.</div></main></body></html>"""
    )
    found = {
        look: {rule for rule, _, _ in violations(page, bad.as_uri(), *look)}
        for look in [*LOOKS[0], *LOOKS[1]]
    }
    assert ["color-contrast" in found[WIDE, scheme] for scheme in ("light", "dark")] == [False, True]
    assert ["scrollable-region-focusable" in found[w, "light"] for w in (WIDE, NARROW)] == [False, True]
