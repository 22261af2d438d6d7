"""What one address switches on: the links of a small book on two hosts; and without it there are none."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree

import axe_playwright_python
import pytest
import yaml
from playwright.sync_api import Browser, Page, Route

import xent_page
from xent_site import REPOSITORY, SITE, setting

from .conftest import ROOT, make_tiny_book

GITHUB, GITLAB = "https://github.com/someone/some-book", "https://gitlab.com/some/group/some-book"
HOME = "https://someone.example/some-book"
PAGES = ["index", "chapters/01_good", "chapters/references"]
pytestmark = pytest.mark.slow  # builds a small book three times

AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
LONG = "A line that fills the page.\n\n" * 40
SECTIONS = ["# A good chapter", "## The first part", LONG, "## What $x$ is", LONG, "# code\nimport xent"]


@dataclass
class Site:
    """One of the built books."""

    html: Path

    def text(self, page: str) -> str:
        return (self.html / f"{page}.html").read_text(encoding="utf-8")

    def links(self, page: str, menu: str) -> dict[str, str]:
        """Read a menu of a page: the words of its links, and where they lead."""
        found = re.search(
            rf'<details class="menu">\s*<summary [^>]*title="{menu}".*?</details>', self.text(page), re.S
        )
        return {
            words: unescape(href)
            for href, words in re.findall(r'<a href="([^"]*)"[^>]*>([^<]*)</a>', found[0] if found else "")
        }


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Site]:
    """Build the same book three times: with the addresses in _config.yml, in the environment, and nowhere."""
    tiny = make_tiny_book(tmp_path_factory.mktemp("links"))
    tiny.write_chapter("01_good", *SECTIONS)
    shutil.copy(ROOT / "pyproject.toml", tiny.root)
    # The social card of a book that has an address is drawn with the package.
    package = tiny.root / "code" / "xent"
    shutil.copytree(
        ROOT / "code" / "xent", package, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
    )
    path = tiny.root / "_config.yml"
    empty = path.read_text(encoding="utf-8")
    assert yaml.safe_load(empty)["repository"]["url"] == "", "the book's own address is set: adapt this test"
    filled = empty.replace('  url: ""', f'  url: "{GITHUB}/"').replace('baseurl: ""', f'baseurl: "{HOME}"')
    built = {}
    for name, config, addresses in (
        ("github", filled, {}),
        ("gitlab", empty, {REPOSITORY: GITLAB, SITE: f"{HOME}/"}),
        ("none", empty, {}),
    ):
        path.write_text(config, encoding="utf-8")
        status, output = tiny.build(**addresses)
        assert status == 0, output
        built[name] = Site(tiny.root.parent / f"{tiny.root.name}-{name}")
        shutil.copytree(tiny.root / "_build" / "html", built[name].html)
    return built


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1100, "height": 700})
    yield context.new_page()
    context.close()


def press(page: Page, selector: str) -> None:
    """Click with the mouse, where the thing is: Playwright's own click may scroll, and change the section."""
    box = page.locator(selector).bounding_box()
    assert box is not None and 0 <= box["y"] < 700, f"{selector} is not on the screen"
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


def test_a_chapter_runs_elsewhere(sites: dict[str, Site]) -> None:
    opened = "?urlpath=lab%2Ftree%2Fchapters%2F01_good.ipynb"
    assert sites["github"].links("chapters/01_good", "Run this chapter") == {
        "Binder": f"https://mybinder.org/v2/gh/someone/some-book/main{opened}",
        "Colab": "https://colab.research.google.com/github/someone/some-book/blob/main/chapters/01_good.ipynb",
    }
    # Colab reads GitHub only, and only Binder's name of a repository on GitLab has no slash.
    assert sites["gitlab"].links("chapters/01_good", "Run this chapter") == {
        "Binder": f"https://mybinder.org/v2/gl/some%2Fgroup%2Fsome-book/main{opened}"
    }


def test_only_a_notebook_runs(sites: dict[str, Site]) -> None:
    for name in ("github", "gitlab"):
        assert sites[name].links("index", "Run this chapter") == {}
        assert sites[name].links("chapters/references", "Run this chapter") == {}


@pytest.mark.parametrize(("name", "base"), [("github", GITHUB), ("gitlab", f"{GITLAB}/-")])
def test_source_and_history_are_those_of_the_page(sites: dict[str, Site], name: str, base: str) -> None:
    for page in PAGES:
        file = f"{page}.ipynb" if page.endswith("01_good") else f"{page}.md"
        links = sites[name].links(page, "Source and mistakes")
        assert links["Source"] == f"{base}/blob/main/{file}"
        assert links["History"] == f"{base}/commits/main/{file}"


@pytest.mark.parametrize(
    ("name", "new", "title", "body"),
    [
        ("github", f"{GITHUB}/issues/new", "title", "body"),
        ("gitlab", f"{GITLAB}/-/issues/new", "issue[title]", "issue[description]"),
    ],
)
def test_a_report_says_page_section_and_version(
    page: Page, sites: dict[str, Site], name: str, new: str, title: str, body: str
) -> None:
    asked: list[str] = []

    def answer(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(content_type="text/html", body="a form")

    page.route(re.compile("^https://git"), answer)
    for heading, section in (("The first part", "1.1. The first part"), ("What", "1.2. What x is")):
        page.goto((sites[name].html / "chapters/01_good.html").as_uri(), wait_until="load")
        page.locator("h2", has_text=heading).evaluate("e => e.scrollIntoView({behavior: 'instant'})")
        press(page, "summary[title='Source and mistakes']")
        press(page, "#report-a-mistake")
        page.get_by_text("a form").wait_for()
        address = urlsplit(asked[-1])
        assert f"{address.scheme}://{address.netloc}{address.path}" == new
        fields = parse_qs(address.query)
        assert set(fields) == {title, body}
        assert fields[title] == ["Mistake in: 1. A good chapter"]
        version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.M)
        assert version is not None
        said = dict(re.findall(r"^(\w+): (.+)$", fields[body][0], re.M))
        assert said == {"Page": "chapters/01_good.ipynb", "Section": section, "Version": version[1]}


def test_colab_gets_the_package_and_its_data(page: Page, sites: dict[str, Site]) -> None:
    page.goto((sites["github"].html / "chapters/01_good.html").as_uri(), wait_until="load")
    note = page.locator(".menu-note")
    assert not note.is_visible()
    page.get_by_title("Run this chapter").click()
    cell = note.locator("pre").inner_text()
    assert cell == xent_page.colab_cell(GITHUB, "main")
    assert f"git clone --quiet --depth 1 --branch main {GITHUB} " in cell
    assert note.get_by_role("button", name="copy").count() == 1
    for width in (1100, 360):
        page.set_viewport_size({"width": width, "height": 700})
        box = page.locator("details.menu[open] ul").bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width, f"at {width} px"
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.evaluate(AXE)
        result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        assert [(rule["id"], rule["nodes"][0]["html"][:120]) for rule in result["violations"]] == []
    assert "menu-note" not in sites["gitlab"].text("chapters/01_good")


@pytest.mark.parametrize("name", ["github", "gitlab"])
def test_the_sites_address(sites: dict[str, Site], name: str) -> None:
    site = sites[name]
    for page in PAGES:
        address = f"{HOME}/{page}.html"
        text = site.text(page)
        assert re.findall(r'<link rel="canonical" href="([^"]*)">', text) == [address]
        assert re.findall(r'<meta property="og:url" content="([^"]*)"', text) == [address]
    listed = ElementTree.parse(site.html / "sitemap.xml").getroot()
    space = "{http://www.sitemaps.org/schemas/sitemap/0.9}"
    assert listed.tag == f"{space}urlset"
    assert [place.text for place in listed.iter(f"{space}loc")] == [f"{HOME}/{page}.html" for page in PAGES]
    for place in listed.iter(f"{space}loc"):
        assert place.text is not None
        assert (site.html / unquote(place.text.removeprefix(f"{HOME}/"))).exists()


def test_without_an_address_there_is_none_of_it(sites: dict[str, Site]) -> None:
    site = sites["none"]
    assert not (site.html / "sitemap.xml").exists()
    for path in site.html.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        found = re.findall(
            r'rel="canonical"|og:url|mybinder|colab|/issues/new|report-a-mistake|menu-note', text
        )
        assert found == [], path.name
        # No link leads out of the site, but for those that a page's own text has.
        header = re.search(r'<div class="article-header-buttons">.*?\n</div>', text, re.S)
        assert header is None or "http" not in header[0]


def test_the_setting_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REPOSITORY, GITLAB)
    assert setting(GITHUB, REPOSITORY) == GITHUB
    assert setting("", REPOSITORY) == setting(None, REPOSITORY) == GITLAB
    monkeypatch.delenv(REPOSITORY)
    assert setting("", REPOSITORY) == ""


@pytest.mark.parametrize(
    "address", ["someone/some-book", "javascript:alert(1)", 'https://a.b/"><script>', "https://"]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="not an address"):
        setting(address, REPOSITORY)
