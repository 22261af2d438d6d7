"""The built book in a browser, away from where it was built and with every other host refused.

Each page is opened as a file and under a path of a local server, at the width of a desk and of a phone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    Response,
    Route,
)

import ledger
from xent_math import SHORT
from xent_site import REPOSITORY, setting, toc_documents

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = toc_documents(ROOT)
PAGES = [f"{name}.html" for name in DOCUMENTS] + ["genindex.html", "search.html"]
DESK, PHONE = (1280, 900), (360, 740)

# TeX that no one rendered: a dollar before a letter or a command, or a command on its own.
RAW_TEX = re.compile(
    r"\$\$|\$\\|\\(?:frac|log|sum|sigma|ell|begin|text|mathbb|label)\b|\{(?:eq|ref|numref|cite)\}`"
)


@dataclass
class Opened:
    """A page in the browser, with all that went wrong on the way."""

    page: Page
    base: str
    outside: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def route(self, route: Route) -> None:
        """Let through what belongs to the site; write down and refuse everything else."""
        if route.request.url.startswith((self.base, "data:", "blob:")):
            route.continue_()
        else:
            self.outside.append(route.request.url)
            route.abort()

    def listen(self) -> None:
        self.page.route("**/*", self.route)
        self.page.on("requestfailed", self.request_failed)
        self.page.on("response", self.response)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self.console)

    def request_failed(self, request: Request) -> None:
        # A page that is left takes back what it still waits for, its icon for example: that is no failure.
        if request.failure != "net::ERR_ABORTED":
            self.failed.append(request.url)

    def response(self, response: Response) -> None:
        if response.status >= 400:
            self.failed.append(response.url)

    def console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(f"{message.type}: {message.text}")

    def go(self, name: str) -> None:
        self.page.goto(self.base + name, wait_until="load")
        # The theme's scripts start on load; two frames later they have run.
        self.page.evaluate("() => new Promise(f => requestAnimationFrame(() => requestAnimationFrame(f)))")


@pytest.fixture(scope="session")
def base(request: pytest.FixtureRequest, built_site: Path) -> str:
    """The address under which the site is opened: a folder, or a local server."""
    if request.param == "file":
        return built_site.as_uri() + "/"
    address: str = request.getfixturevalue("server")
    return address


@pytest.fixture(scope="session")
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context()
    yield context
    context.close()


@pytest.fixture
def opened(context: BrowserContext, base: str) -> Iterator[Opened]:
    page = context.new_page()
    opened = Opened(page, base)
    opened.listen()
    yield opened
    page.close()


by_both_ways = pytest.mark.parametrize("base", ["file", "server"], indirect=True)
by_server = pytest.mark.parametrize("base", ["server"], indirect=True)
by_file = pytest.mark.parametrize("base", ["file"], indirect=True)


def labels_of(name: str) -> list[str]:
    """List the labels of the equations that a page's source states."""
    stem = Path(name).stem
    return [
        equation.label for equation in ledger.read_equations(ROOT)[0] if Path(equation.chapter).stem == stem
    ]


def has_maths(name: str) -> bool:
    source = ROOT / name.replace(".html", ".ipynb")
    if not source.exists():
        return False
    cells = json.loads(source.read_text(encoding="utf-8"))["cells"]
    return any("$" in "".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def test_these_are_all_the_pages(built_site: Path) -> None:
    built = {path.relative_to(built_site).as_posix() for path in built_site.rglob("*.html")}
    assert {path for path in built if not path.startswith("_static/")} == {*PAGES, "404.html"}


@by_both_ways
@pytest.mark.parametrize("name", PAGES)
def test_page(opened: Opened, name: str) -> None:
    page = opened.page
    for width, height in (DESK, PHONE):
        page.set_viewport_size({"width": width, "height": height})
        opened.go(name)

        assert opened.outside == [], "the page asks other hosts"
        assert opened.failed == [], "requests failed"
        assert opened.errors == [], "the console complains"

        scrolls = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert scrolls <= 0, f"at {width} px the page scrolls sideways by {scrolls} px"

        entries = page.locator(
            "input[type=search]:visible, .search-button-field:visible, .search-button:visible"
        )
        assert entries.count() == 1, f"at {width} px there are {entries.count()} ways into the search"

        # Pictures load when they come near; here all of them have to come.
        page.evaluate(
            "() => Promise.all([...document.images].map(i => { i.loading = 'eager'; return i.decode(); }))"
        )
        pictures = page.locator("img").evaluate_all("all => all.map(i => [i.src, i.alt, i.naturalWidth])")
        assert [src for src, alt, _ in pictures if not alt.strip() or "_images/" in alt] == [], "no alt text"
        assert [src for src, _, natural in pictures if natural == 0] == [], "pictures that do not load"

        assert page.locator("h1:visible").count() == 1

        # The theme's layout: the contents beside the text on a desk, and out of sight on a phone.
        contents = page.locator(".bd-sidebar-primary").bounding_box()
        main = page.locator(".bd-main").bounding_box()
        assert contents is not None and main is not None
        if width == DESK[0]:
            assert contents["x"] == 0 and contents["width"] > 150
            assert main["x"] >= contents["width"] - 1 and main["width"] > 600
        else:
            assert contents["x"] + contents["width"] <= 0 and main["x"] == 0 and main["width"] == width


@pytest.mark.parametrize("fragment", ["speeches-a-transformer-and-the-question-of-the-post", "fig-den-words"])
@by_file
def test_a_link_into_a_long_page_arrives(opened: Opened, fragment: str) -> None:
    opened.go(f"chapters/11_denominators.html#{fragment}")
    target = opened.page.locator(f"[id='{fragment}']")
    top = target.evaluate("e => e.getBoundingClientRect().top")
    assert 0 <= top < opened.page.viewport_size["height"]  # type: ignore[index]


@by_file
@pytest.mark.parametrize("name", [f"{name}.html" for name in DOCUMENTS])
def test_maths_is_rendered(opened: Opened, name: str) -> None:
    page = opened.page
    opened.go(name)
    formulas = page.locator(".math").count()
    if has_maths(name):
        assert formulas > 0
    assert page.locator(".math .katex").count() >= formulas
    assert page.locator(".katex-error, .math-error").count() == 0

    # Text as a reader sees it, without code and without the formulas themselves.
    text = page.evaluate(
        """() => {
            const article = document.querySelector("article").cloneNode(true);
            article.querySelectorAll("pre, code, .katex, script, style").forEach(e => e.remove());
            return article.textContent;
        }"""
    )
    assert RAW_TEX.findall(text) == []

    if formulas:
        # A font is fetched when a formula comes near the screen.
        page.locator(".math .katex").first.scroll_into_view_if_needed()
        page.wait_for_function(
            "[...document.fonts].some(f => f.status == 'loaded' && /KaTeX/.test(f.family))"
        )
        faces = page.evaluate("[...document.fonts].filter(f => f.status == 'loaded').map(f => f.family)")
        assert any("KaTeX" in face for face in faces), f"the formulas fall back to another font: {faces}"


@by_file
@pytest.mark.parametrize("name", [f"{name}.html" for name in DOCUMENTS])
def test_equations_are_numbered_by_chapter(opened: Opened, name: str) -> None:
    opened.go(name)
    numbers = [text.strip("#¶ \n") for text in opened.page.locator(".eqno").all_text_contents()]
    assert len(numbers) == len(labels_of(name))
    chapter = re.match(r"\d*", opened.page.locator("article h1").inner_text())
    assert chapter is not None
    assert numbers == [f"({chapter[0]}.{i})" for i in range(1, len(numbers) + 1)]


@by_file
@pytest.mark.parametrize("name", [f"{name}.html" for name in DOCUMENTS if labels_of(f"{name}.html")])
def test_equations_fit_a_phone(opened: Opened, name: str) -> None:
    """A line that runs out of its box can be scrolled to, but its end is read by nobody."""
    opened.page.set_viewport_size({"width": 390, "height": 844})
    opened.go(name)
    wide = opened.page.locator("div.math").evaluate_all(
        """all => document.querySelectorAll("section").forEach(s => s.style.contentVisibility = "visible") ||
        all.filter(box => {
            const line = box.querySelector(".katex-display") || box;
            return Math.max(box.scrollWidth - box.clientWidth, line.scrollWidth - line.clientWidth) > 1;
        }).map(box => box.id)"""
    )
    assert wide == [], "break these equations into shorter lines, with aligned"


@by_file
@pytest.mark.parametrize("name", [f"{name}.html" for name in DOCUMENTS if labels_of(f"{name}.html")])
def test_no_line_begins_with_the_full_stop_after_a_formula(opened: Opened, name: str) -> None:
    opened.go(name)
    alone = opened.page.locator("article p span.math").evaluate_all(
        """(all, most) => all.filter(formula => {
            const next = formula.nextSibling, tex = formula.querySelector("annotation").textContent;
            const touched = next && next.nodeType == 3 && /^[.,;:)]/.test(next.textContent);
            return touched && tex.length <= most && !formula.closest(".unbroken");
        }).map(formula => formula.parentNode.textContent)""",
        SHORT,
    )
    assert alone == []
    for width in (390, 1000):
        opened.page.set_viewport_size({"width": width, "height": 900})
        lines = opened.page.locator(".unbroken").evaluate_all(
            """all => {
                document.querySelectorAll("section").forEach(s => s.style.contentVisibility = "visible");
                return all.map(held => held.getClientRects().length);
            }"""
        )
        assert set(lines) - {0} == {1}, "none in what is folded, else one line each"


@by_server
@pytest.mark.parametrize("address", ["no-such-page.html", "chapters/no-such-page.html", "chapters/a/b/c"])
def test_a_missing_page_leads_back_to_the_book(opened: Opened, address: str) -> None:
    opened.go(address)
    assert opened.failed == [opened.base + address] and opened.outside == []
    assert opened.page.locator("h1").inner_text() == "This page does not exist"
    opened.page.get_by_role("link", name="front page").click()
    opened.page.wait_for_url(opened.base + "index.html")


@by_file
def test_the_page_for_missing_pages_opens_as_a_file(opened: Opened) -> None:
    opened.go("404.html")
    assert opened.failed == opened.outside == opened.errors == []
    opened.page.get_by_role("link", name="search").click()
    opened.page.wait_for_url(opened.base + "search.html")


@by_server
def test_the_search_finds_a_word(opened: Opened) -> None:
    opened.go("search.html?q=entropy")
    opened.page.get_by_text("Search finished").wait_for(timeout=20_000)
    opened.page.wait_for_load_state("networkidle")  # the pages from which the summaries come
    # A name of the package has a description. The others have a summary, also where they lead to an anchor
    # without text, an index entry's.
    others = opened.page.locator("#search-results li:not(:has(> span))")
    assert others.locator("p.context").count() == others.count() > 10
    assert opened.errors == [] and opened.outside == []


@by_both_ways
@pytest.mark.parametrize(
    ("words", "pages"),
    [
        ("gradient accumulation", {"11_denominators", "08_which_loss"}),
        ("log_loss", {"api"}),
        ("label smoothing", {"12_soft_targets"}),
    ],
)
def test_a_reader_finds_by_typing(opened: Opened, words: str, pages: set[str]) -> None:
    page = opened.page
    opened.go("search.html")
    page.keyboard.type(words)  # the page has put the cursor there
    page.keyboard.press("Enter")
    page.locator("#search-results li a").first.wait_for(timeout=20_000)
    page.get_by_text(re.compile(r"found \d+ page|Search finished")).first.wait_for(timeout=20_000)
    first = page.locator("#search-results li > a").evaluate_all("all => all.slice(0, 5).map(a => a.href)")
    assert pages & {Path(address.partition("#")[0].partition("?")[0]).stem for address in first}, first
    assert opened.outside == []
    # A found page is fetched for its summary, which a page that was opened from a folder may not do.
    if opened.base.startswith("http"):
        assert opened.errors == opened.failed == []
    page.locator("#search-results li > a").first.click()
    page.wait_for_url(re.compile(r"/chapters/\w+\.html"))


@by_file
@pytest.mark.parametrize("name", ["index.html", "chapters/10_averaged_loss.html", "chapters/errata.html"])
def test_on_paper_a_page_is_its_text(opened: Opened, name: str) -> None:
    page = opened.page
    page.set_viewport_size({"width": 794, "height": 1123})  # A4 at 96 dots per inch
    page.emulate_media(color_scheme="dark", media="print")
    opened.go(name)
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    around = (
        ".bd-sidebar-primary",
        ".bd-sidebar-secondary",
        ".bd-header-article",
        ".prev-next-footer",
        ".copybtn",
    )
    for part in around:
        assert page.locator(f"{part}:visible").count() == 0, part
    assert page.locator("article h1").is_visible()
    assert page.locator("article details:not([open])").count() == 0
    # A solution's text is there, not only its title.
    for solution in page.locator("article details.solution").all():
        box = solution.bounding_box()
        assert box is not None and box["height"] > 60
    page.evaluate(
        "() => Promise.all([...document.images].map(i => { i.loading = 'eager'; return i.decode(); }))"
    )
    for picture in page.locator("article figure img, article .cell_output img").all():
        box = picture.bounding_box()
        assert box is not None and 100 < box["width"] <= 794, "a figure is cut off or has gone"
    # What only a script can move is its still picture, without sliders.
    assert page.locator("input[type=range]:visible").count() == 0
    # Dark text on white paper, links included: at least 4.5 to 1.
    faint = page.locator("article :is(p, li, h1, h2, td) , article a").evaluate_all(
        """all => {
            const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
                .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
                .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
            return all.filter(e => e.offsetParent && e.textContent.trim()).map(e => {
                const colour = getComputedStyle(e).color.match(/[\\d.]+/g).map(Number);
                return [1.05 / (light(colour) + 0.05), e.tagName, e.textContent.slice(0, 40)];
            }).filter(([contrast]) => contrast < 4.5).slice(0, 5);
        }"""
    )
    assert faint == []
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    if page.locator("details.solution").count():
        assert page.locator("article details.solution[open]").count() == 0, (
            "and on the screen they fold again"
        )


@by_file
def test_no_button_needs_the_repository_while_it_has_no_address(opened: Opened) -> None:
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    known = bool(setting(config["repository"]["url"], REPOSITORY))
    opened.go(f"{DOCUMENTS[1]}.html")
    assert opened.page.get_by_title("Run this chapter").count() == known
    assert opened.page.get_by_title("Source and mistakes").count() == known
    # What needs no address is there in any case.
    assert opened.page.get_by_title("Download this page").count() == 1
