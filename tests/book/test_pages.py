"""The built book in a browser, away from where it was built: what a reader would miss if it broke."""

from __future__ import annotations

import gzip
import html
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Response

import math_at_build

ROOT = Path(__file__).resolve().parents[2]
TOC = re.findall(r"(?:root|file): (\S+)", (ROOT / "_toc.yml").read_text(encoding="utf-8"))
PAGES = [f"{name}.html" for name in [*TOC, "genindex", "search"]]
DESK, PHONE = (1440, 900), (390, 844)
FIRST_VIEW = 400_000  # bytes

# What no one rendered: a dollar before a letter or a command, a command on its own, a role. (Text on the line of
# a comment is one way: it passes as HTML.)
RAW_TEX = re.compile(
    r"\$\$|\$\\|\$[A-Za-z][^$\n]{0,40}\$|\\(?:frac|log|sum|sigma|ell|begin|text|mathbb|label)\b"
    r"|\{(?:eq|ref|numref|cite|doc|term)\}`"
)
# Text as a reader sees it, without code and without the formulas themselves.
PROSE = """() => {
    const article = document.querySelector("article").cloneNode(true);
    article.querySelectorAll("pre, code, .katex, script, style").forEach(e => e.remove());
    return article.textContent;
}"""
# Formulas that a line may separate from the full stop after them.
LOOSE = """most => [...document.querySelectorAll("article span.math")].filter(formula => {
    const next = formula.nextSibling, tex = formula.querySelector("annotation").textContent;
    const touched = next && next.nodeType == 3 && /^[.,;:)]/.test(next.textContent);
    return touched && tex.length <= most && !formula.closest(".unbroken");
}).map(formula => formula.parentNode.textContent)"""


@dataclass
class Visit:
    """A page in the browser, with what it fetched and all that went wrong on the way."""

    page: Page
    address: str
    wrong: list[str] = field(default_factory=list)
    answers: list[Response] = field(default_factory=list)

    def weight(self) -> int:
        """The bytes that came, with texts packed as a host packs them."""
        packed = {".html", ".css", ".js", ".svg"}
        bodies = [(Path(answer.url.partition("?")[0]).suffix, answer.body()) for answer in self.answers]
        return sum(len(gzip.compress(body, 6)) if suffix in packed else len(body) for suffix, body in bodies)


@pytest.fixture
def visit(browser: Browser, server: str) -> Iterator[Visit]:
    # A context of its own: nothing is in its cache.
    context = browser.new_context(viewport={"width": DESK[0], "height": DESK[1]}, has_touch=True)
    visit = Visit(page := context.new_page(), server)

    def note(what: object, is_wrong: bool) -> None:
        visit.wrong.extend([str(what)] if is_wrong else [])

    page.on("request", lambda asked: note(asked.url, not asked.url.startswith((server, "data:", "blob:"))))
    # A page that is left before all has come gives up what it still waits for; nobody misses that.
    page.on("requestfailed", lambda asked: note(asked.url, "ERR_ABORTED" not in (asked.failure or "")))
    page.on("response", lambda answer: (visit.answers.append(answer), note(answer, answer.status >= 400)))
    page.on("pageerror", lambda error: note(error, True))
    page.on("console", lambda said: note(said.text, said.type in ("error", "warning")))
    yield visit
    context.close()


@pytest.mark.parametrize("name", PAGES)
def test_page(visit: Visit, name: str) -> None:
    page = visit.page
    page.goto(visit.address + name, wait_until="networkidle")
    page.wait_for_load_state("load")  # a busy page is idle before its scripts have run
    weight = visit.weight()
    assert 30_000 < weight <= FIRST_VIEW, f"the first view weighs {weight / 1000:.0f} kB"
    assert page.locator("script[src]:not([src*='_static']):not([src*='searchindex'])").count() == 0

    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    page.emulate_media(color_scheme="dark")
    page.add_style_tag(content=".bd-article * { content-visibility: visible !important }")
    scrolls = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert scrolls <= 0, f"on a phone the page scrolls sideways by {scrolls} px"
    assert page.locator("h1:visible").count() == 1

    # Pictures load when they come near; here all of them have to come.
    page.evaluate(
        "() => Promise.all([...document.images].map(i => { i.loading = 'eager'; return i.decode(); }))"
    )
    pictures = page.locator("article img").evaluate_all(
        "all => all.map(i => [i.src, i.alt, i.getAttribute('width')])"
    )
    assert [src for src, alt, _ in pictures if len(alt.split()) < 5] == [], "no alt text"
    assert [src for src, _, width in pictures if not width] == [], "no size in advance"
    assert page.locator("article svg[role=img]:not([aria-label])").count() == 0, "no alt text"

    if name in (f"{known}.html" for known in TOC):
        assert page.locator(".math .katex").count() >= page.locator(".math").count()
        assert RAW_TEX.findall(page.evaluate(PROSE)) == []
        assert page.evaluate(LOOSE, math_at_build.SHORT) == []
    assert visit.wrong == []


def test_every_page_is_there_and_every_link_and_anchor_leads_somewhere(built_site: Path) -> None:
    texts = {
        path.relative_to(built_site).as_posix(): path.read_text("utf-8")
        for path in built_site.rglob("*.html")
        if "_static" not in path.parts
    }
    ledgers = {f"chapters/ledger/{path.stem}.html" for path in (ROOT / "chapters" / "ledger").glob("*.md")}
    assert len(ledgers) == 19 and set(texts) == {*PAGES, *ledgers, "404.html"}
    heavy = {name: len(texts[name].encode()) for name in ledgers}
    assert max(heavy.values()) < 310_000, heavy  # a card fetches one
    ids = {
        name: {html.unescape(i) for i in re.findall(r'\bid="([^"]+)"', text)} for name, text in texts.items()
    }
    broken = []
    for name in PAGES:
        for link in re.findall(r'(?:href|src)="([^"]+)"', texts[name]):
            to = urlsplit(urljoin(name, html.unescape(unquote(link))))
            there = to.netloc or to.scheme or (built_site / to.path).exists()
            if not there or (to.fragment and to.fragment not in ids.get(to.path, {to.fragment})):
                broken.append(f"{name}: {link}")
    assert broken == []
    # What the check of an exercise says of a stub is a link to how it is tried.
    assert [name for name, text in texts.items() if "<span></span>not yet: " in text] == []


def test_a_link_into_a_long_page_arrives(visit: Visit) -> None:
    visit.page.goto(
        f"{visit.address}chapters/11_denominators.html#fig-den-speeches", wait_until="networkidle"
    )
    visit.page.wait_for_timeout(300)  # what comes near is laid out, and moves the rest
    top = visit.page.locator("#fig-den-speeches").evaluate("e => e.getBoundingClientRect().top")
    assert -5 <= top < DESK[1] - 100


# ------------------------------------------------------------------------------- evidence in place


def test_a_mark_and_a_number_open_their_entry_in_place(visit: Visit) -> None:
    """By keyboard, tap and pointer; the entry leads back to the sentence; no page of the ledger is heavy."""
    page, card = visit.page, visit.page.locator(".card-in-place")
    page.goto(visit.address + "chapters/10_averaged_loss.html", wait_until="load")
    for link in ("article a.claim", "article .eqno > a"):
        first = page.locator(link).first
        first.press("Enter")
        card.wait_for()
        assert card.evaluate("e => e.contains(document.activeElement) && e.getBoundingClientRect().top > 0")
        assert "test_" in card.inner_text() and card.get_attribute("aria-label")
        page.keyboard.press("Escape")
        assert not card.is_visible() and first.evaluate("e => e === document.activeElement")
    page.locator("article p a[href^='#equation-']").first.hover()
    card.locator(".katex").first.wait_for()
    page.mouse.move(5, 5)
    card.wait_for(state="hidden")
    for mark in page.locator("article a.claim:visible").all():
        mark.click()
        card.get_by_role("link", name="↑").click()
        assert mark.evaluate("e => e.matches(':target')") and not card.is_visible()
    assert visit.wrong == []


def test_a_formula_is_copied_once_as_tex(visit: Visit) -> None:
    visit.page.goto(visit.address + "chapters/01_binary.html", wait_until="load")
    copied = visit.page.evaluate("""() => new Promise(done => {
        const held = document.querySelector("article p:has(.katex)");
        getSelection().selectAllChildren(held);
        document.addEventListener("copy", event => done(event.clipboardData.getData("text/plain")));
        document.execCommand("copy");
    })""")
    assert re.search(r"\$[^$]+\$", copied) and "\u2061" not in copied and copied.count("\n") < 3, copied


def test_a_solution_opens_wherever_its_title_is_tapped(visit: Visit) -> None:
    page = visit.page
    page.goto(visit.address + "chapters/01_binary.html", wait_until="networkidle")
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    page.locator(".solution .admonition-title").first.tap()
    assert page.locator(".solution").first.locator("section").is_visible() and "#" not in page.url
    assert page.locator("button.copybtn").first.evaluate("e => getComputedStyle(e).opacity") == "1"


def test_paper_has_every_font_and_shows_what_is_folded(visit: Visit) -> None:
    page = visit.page
    page.add_init_script("window.print = () => window.had = [...document.fonts].map(font => font.status)")
    page.goto(visit.address + "chapters/05_numerics.html", wait_until="load")
    page.keyboard.press("Control+p")
    page.wait_for_function("window.had?.length > 20")
    assert set(page.evaluate("window.had")) == {"loaded"}
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("article details:not([open])").count() == 0 < page.locator("article details").count()


def test_what_the_site_offers_are_the_packages(built_site: Path) -> None:
    """The library in one wheel, what else the chapters import in another, and nothing in both."""
    page = (built_site / "chapters/get.html").read_text("utf-8")
    for name in ("xent", "xent_book"):
        [wheel] = built_site.glob(f"cross_entropy_verified{name.removeprefix('xent')}-*.whl")
        held = {entry for entry in zipfile.ZipFile(wheel).namelist() if ".dist-info" not in entry}
        files = (f for f in (ROOT / "code" / name).rglob("*") if f.suffix in (".py", ".npz", ".json"))
        assert {path.relative_to(ROOT / "code").as_posix() for path in files} <= held and wheel.name in page
        assert {entry.split("/")[0] for entry in held} == {name}


# ------------------------------------------------------------------------ accessibility and colours

# A formula is drawn by hundreds of elements that a screen reader does not see, in the colour of the text: axe
# looks at the first few of a page. So it does at what a page of reference, or of code, repeats.
THIN = """() => [".katex", "dl.py", ".indextable li", ".erratum", "pre", "section > p", "section li"].forEach(kind =>
    [...document.querySelectorAll(kind)].slice(20).forEach(e => e.remove()))"""
RULES = {"resultTypes": ["violations"], "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}
LOOKED_AT = ["index", "search", "genindex"]
LOOKED_AT += [f"chapters/{name}" for name in ("08_which_loss", "errata", "api", "api_torch")]


@pytest.mark.parametrize(("width", "scheme"), [(DESK[0], "light"), (PHONE[0], "dark")])
@pytest.mark.parametrize("name", LOOKED_AT)
def test_axe_finds_nothing(browser: Browser, built_site: Path, name: str, width: int, scheme: Any) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.set_default_timeout(120_000)
    page.goto(f"{built_site.as_uri()}/{name}.html", wait_until="load")
    # A colour on its way from light to dark is neither.
    page.add_style_tag(content="*, ::before, ::after { transition: none !important }")
    page.evaluate(THIN)
    found = Axe().run(page, options=RULES)
    assert found.violations_count == 0, found.generate_report()
    page.close()
