"""axe-core on the pages, light and dark, wide and narrow."""

from __future__ import annotations

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


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page()
    yield page
    page.close()


@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing(page: Page, built_site: Path, name: str) -> None:
    for width, scheme in ((1280, "light"), (390, "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        page.goto((built_site / name).as_uri(), wait_until="load")
        page.evaluate(VISIT)
        page.evaluate(AXE)
        result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        found = [
            (rule["id"], node["target"], node["html"][:120])
            for rule in result["violations"]
            for node in rule["nodes"][:3]
        ]
        assert found == [], f"at {width} px, {scheme}"
