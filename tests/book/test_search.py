"""The search: what readers would type, and the section that has to come first."""

from __future__ import annotations

import gzip
import json
import re
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

QUERIES = tomllib.loads((Path(__file__).parent / "queries.toml").read_text(encoding="utf-8"))
# What is asked of each list: the right section among the first so many, for so many of forty.
ASKED = {"first": (1, 36), "short": (3, 36), "titles": (3, 30)}

FOUND = """async (asked) => {
  const found = {};
  for (const words of asked) found[words] = (await xentFind(words)).slice(0, 3).map(({address}) => address);
  return found;
}"""


@pytest.fixture
def page(browser: Browser, server: str) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(server + "index.html", wait_until="networkidle")
    page.wait_for_load_state("load")  # a busy page is idle before its scripts have run
    yield page
    context.close()


@pytest.fixture(scope="module")
def records(built_site: Path) -> list[Any]:
    """Return what can be found: address, place, headings, first words."""
    text = (built_site / "_static" / "sections.json").read_text(encoding="utf-8")
    return list(json.loads(text)["records"])


def short(address: str) -> str:
    """Return an address as queries.toml has it."""
    return re.sub(r"([^/]+)[.]html", r"\1", address).rpartition("/")[2]


@pytest.mark.parametrize("kind", ASKED)
def test_forty_queries_lead_to_their_sections(page: Page, records: list[Any], kind: str) -> None:
    places, least = ASKED[kind]
    asked, known = QUERIES[kind], {short(url) for url, *_ in records}
    assert len(asked) == 40
    assert {
        one for wanted in asked.values() for one in wanted if "*" not in one
    } <= known  # or none leads there
    missed = {}
    for words, addresses in page.evaluate(FOUND, list(asked)).items():
        found = [short(address) for address in addresses[:places]]
        if not any(fnmatch(name, one) for name in found for one in asked[words]):
            missed[words] = found
    assert len(missed) <= 40 - least, missed


def test_the_browser_has_the_words_of_the_build(page: Page, records: list[Any]) -> None:
    """Each heading of a numbered chapter, asked for, is found: both sides split and stem alike."""
    urls: dict[str, list[str]] = {}
    for url, place, headings, _ in records:
        if place == 1 and re.match(r"chapters/\d", url):
            urls.setdefault(headings[-1], []).append(url)
    found = page.evaluate(FOUND, list(urls))
    assert [h for h in urls if not [one for one in found[h] if one.endswith(tuple(urls[h]))]] == []


def test_a_rare_word_counts_for_more(page: Page, server: str) -> None:
    """Nineteen sections that say a frequent word often, and one that says a rare word in passing."""
    sections = [[f"chapters/{n}.html", 1.0, [f"Section {n}"], ""] for n in range(20)]
    words = {"frequent": [7] + [15] * 18, "rare": [19 * 8 + 2]}
    index = {"levels": 7, "stop": [], "records": sections, "words": words}
    page.route("**/sections.json", lambda route: route.fulfill(json=index))
    found = page.evaluate(FOUND, ["frequent rare"])["frequent rare"]
    assert found[0].endswith("chapters/19.html") and len(found) == 3


def test_a_reader_finds_by_typing(page: Page, server: str) -> None:
    """By the phone's button and by the keys: sections with an excerpt, no page loaded, no more than 150 kB."""
    fetched: dict[str, int] = {}
    page.on("response", lambda answer: fetched.update({answer.url: len(gzip.compress(answer.body()))}))
    page.locator(".search-button__button:visible").click()
    page.keyboard.type("gradient accumul")
    entries = page.locator(".site-found:visible li")
    # With a busy machine the first word is searched before the second is typed.
    page.locator(".site-found:visible li:first-child").filter(
        has_text="The repair, in three settings"
    ).wait_for()
    says = entries.all_inner_texts()
    assert all(len(text.splitlines()) >= 2 for text in says) and len(says) == 10
    # No formula twice, no TeX, no menu.
    assert not [text for text in says if re.search(r"\\[a-z]+|Show code|\.ipynb", text)]
    assert not [url for url in fetched if url.endswith(".html")]
    assert 50_000 < sum(fetched.values()) <= 150_000
    box, field = page.locator(".search-button__wrapper i").bounding_box(), page.locator("input:focus")
    assert box and field.evaluate("e => parseFloat(getComputedStyle(e).paddingLeft)") > box["width"] + 8
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"chapters/\w+\.html"))
    page.goto(server + "index.html")
    page.keyboard.press("Control+k")
    assert page.locator("input[name=q]:visible").evaluate("e => e === document.activeElement")
