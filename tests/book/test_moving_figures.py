"""The figures that move, in Chromium on the built book: by keyboard, without a script, in print, offline."""

from __future__ import annotations

import functools
import http.server
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Route

import xent
import xent_move
from xent import information, scoring
from xent.sequences import eos_optimum

ROOT = Path(__file__).resolve().parents[2]
WIDTHS = (1280, 360)
# A policy under which no inline script and no `eval` runs.
STRICT = "script-src 'self'"


def pages_with_figures() -> dict[str, str]:
    """Find the page of each figure in the chapters' sources."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / "chapters").glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for name in re.findall(r"^```\{moving-figure\} (\S+)", "".join(cell["source"]), re.MULTILINE):
                assert name not in found, f"{name} is shown twice"
                found[name] = f"chapters/{path.stem}.html"
    return found


PAGES = pages_with_figures()
each_figure = pytest.mark.parametrize("name", xent_move.FIGURES)
at_each_width = pytest.mark.parametrize("width", WIDTHS)


def text(value: float, digits: int) -> str:
    return f"{value:.{digits}f}".replace("-", "−")


# What a figure says for the values of its sliders, by xent: numbers that must stand in its words, in order.


def say_softmax(temperature: float, first: float, shift: float) -> list[str]:
    probs = xent.softmax([(z + shift) / 2**temperature for z in (first, 1.0, 0.0, -1.0)])
    return [*(text(p, 4) for p in probs), text(float(information.entropy(probs)), 4)]


def say_binary_loss(label: float, logit: float, threshold: float) -> list[str]:
    p = xent.sigmoid(logit)
    return [
        text(p, 4),
        f"class {int(p > threshold)}",
        text(xent.binary_cross_entropy(logit, label), 4),
        text(p - label, 4),
        text(1 - label if p > threshold else label, 2),
    ]


def say_eos_optimum(stop: float, batch: float) -> list[str]:
    best = eos_optimum(stop, round(2**batch))
    excess = text(100 * (best / stop - 1), 1)
    return [text(best, 6), f"{excess} %", text(1 / best, 3), text(1 / stop, 3)]


def say_smoothing(eps: float, classes: float, report: float) -> list[str]:
    k = round(classes)
    low, high = eps / k, 1 - eps + eps / k
    said = [text(low, 4), text(high, 4), text(report, 2)]
    if not low - 1e-12 <= report <= high + 1e-12:
        return [*said, "no p"]
    q = [report, *[(1 - report) / (k - 1)] * (k - 1)]
    return [*said, f"p = {text(float(scoring.invert_smoothing(q, label_smoothing=eps)[0]), 4)}"]


def say_scores(truth: float, report: float) -> list[str]:
    rules = (scoring.log_score, scoring.brier_score, scoring.linear_score)
    law = [truth, 1 - truth]
    costs = [scoring.expected_score(rule, law, [report, 1 - report]) for rule in rules]
    best = scoring.elicited(scoring.linear_score, law)[0]
    return [*(text(float(cost), 4) for cost in costs), text(truth, 2), text(float(best), 2)]


SAYS: dict[str, Callable[..., list[str]]] = {
    "softmax": say_softmax,
    "binary-loss": say_binary_loss,
    "eos-optimum": say_eos_optimum,
    "smoothing": say_smoothing,
    "scores": say_scores,
}

# Keys for each slider in turn; a pointer and a finger are tried elsewhere.
KEYS = [
    "ArrowRight",
    "ArrowRight",
    "ArrowLeft",
    "ArrowUp",
    "ArrowDown",
    "PageDown",
    "Home",
    "End",
    "ArrowLeft",
]


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves the site under the strict policy for scripts, without a word on the terminal."""

    def end_headers(self) -> None:
        if "strict" in self.path:
            self.send_header("Content-Security-Policy", STRICT)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def server(built_site: Path) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(built_site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@dataclass
class Visit:
    """A page with a figure, and what went wrong on the way."""

    page: Page
    figure: Locator
    outside: list[str]
    errors: list[str]

    @property
    def sliders(self) -> Locator:
        return self.figure.locator("input[type=range]")

    def said(self) -> str:
        return self.figure.locator("output").text_content() or ""

    def values(self) -> dict[str, float]:
        """Read the sliders, by their names."""
        pairs = self.sliders.evaluate_all("all => all.map(i => [i.id, i.valueAsNumber])")
        return {identity.rsplit("-", 1)[1]: value for identity, value in pairs}

    def check(self, name: str) -> None:
        """Compare what the figure says with xent, and what it holds with what it says."""
        said, at = self.said(), 0
        for part in SAYS[name](**self.values()):
            found = said.find(part, at)
            assert found >= 0, f"{part} is not in {said!r} after {said[:at]!r}, at {self.values()}"
            at = found + len(part)
        assert self.outside == [], "the page asks other hosts"
        assert self.errors == [], "the console complains"


def come_to(figure: Locator) -> None:
    """Scroll as a reader does, until it is there: what comes near is laid out, and moves the rest."""
    page = figure.page
    for _ in range(20):
        figure.scroll_into_view_if_needed()
        page.wait_for_timeout(50)
        box = figure.bounding_box()
        if box and 0 < box["y"] + box["height"] / 2 < page.viewport_size["height"]:  # type: ignore[index]
            break


def visit(context: BrowserContext, base: str, name: str) -> Visit:
    """Open the page of a figure and scroll to it."""
    page = context.new_page()
    outside: list[str] = []
    errors: list[str] = []

    def only_the_site(route: Route) -> None:
        if route.request.url.startswith((base, "data:", "blob:")):
            route.continue_()
        else:
            outside.append(route.request.url)
            route.abort()

    page.route("**/*", only_the_site)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type in ("error", "warning") else None)
    page.on("requestfailed", lambda request: errors.append(f"failed: {request.url}"))
    page.goto(base + PAGES[name], wait_until="load")
    figure = page.locator(f"figure.moving-is-{name}")
    come_to(figure)
    return Visit(page, figure, outside, errors)


def visit_live(context: BrowserContext, base: str, name: str) -> Visit:
    """Open the page of a figure and wait until it moves."""
    visited = visit(context, base, name)
    visited.page.wait_for_selector(f"figure.moving-is-{name}.moving-live", state="attached")
    visited.figure.scroll_into_view_if_needed()
    return visited


def ink(figure: Locator) -> str:
    """Return the picture that the canvas holds."""
    return str(figure.locator("canvas").evaluate("canvas => canvas.toDataURL()"))


def settled(v: Visit) -> str:
    """Wait for the next frames, then return the picture."""
    v.page.evaluate("() => new Promise(f => requestAnimationFrame(() => requestAnimationFrame(f)))")
    return ink(v.figure)


def test_each_figure_is_in_a_chapter() -> None:
    assert set(PAGES) == set(xent_move.FIGURES) == set(SAYS)


@at_each_width
@each_figure
def test_by_keyboard(browser: Browser, server: str, name: str, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 800})
    v = visit_live(context, server, name)
    v.check(name)
    picture = ink(v.figure)
    colours = v.figure.locator("canvas").evaluate(
        """canvas => {
            const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            const seen = new Set();
            for (let i = 0; i < data.length; i += 4) {
                if (data[i + 3] === 255) seen.add(data[i] + "," + data[i + 1] + "," + data[i + 2]);
            }
            return [...seen];
        }"""
    )
    assert "0,114,178" in colours, "the book's blue is not drawn"

    drawn = picture
    for index in range(v.sliders.count()):
        slider = v.sliders.nth(index)
        v.page.keyboard.press("Tab")
        slider.focus()
        v.page.keyboard.press("Shift+Tab")
        v.page.keyboard.press("Tab")
        assert slider.evaluate("i => i === document.activeElement && i.matches(':focus-visible')")
        assert slider.evaluate("i => getComputedStyle(i).outlineStyle") == "solid", "the focus is not seen"
        for key in KEYS:
            v.page.keyboard.press(key)
            v.check(name)
        # What a screen reader is told is what stands beside the slider.
        assert (
            slider.get_attribute("aria-valuetext")
            == v.figure.locator(".moving-value").nth(index).text_content()
        )
        drawn, before = settled(v), drawn
        # A shift of all logits changes nothing: that is what its slider is there for.
        still = slider.get_attribute("id") == "moving-softmax-shift"
        assert (drawn == before) == still, slider.get_attribute("id")

    v.figure.get_by_role("button", name="Reset").press("Enter")
    v.check(name)
    assert settled(v) == picture

    scrolls = v.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert scrolls <= 0
    box, room = v.figure.locator("canvas").bounding_box(), v.figure.bounding_box()
    assert box is not None and room is not None
    assert box["width"] > 0.85 * min(room["width"], 576) and box["x"] + box["width"] <= width
    context.close()


@each_figure
def test_by_mouse_and_by_touch(browser: Browser, server: str, name: str) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 800}, has_touch=True)
    v = visit_live(context, server, name)
    slider = v.sliders.nth(0)
    slider.scroll_into_view_if_needed()
    seen = {v.said()}
    for share, by in ((0.4, "mouse"), (0.62, "touch"), (0.9, "mouse")):
        box = slider.bounding_box()
        assert box is not None and box["height"] >= 24, "too low for a finger"
        place = {"x": share * box["width"], "y": box["height"] / 2}
        if by == "mouse":
            slider.click(position=place)
        else:
            slider.tap(position=place)
        v.check(name)
        assert v.said() not in seen, f"nothing moves by {by}"
        seen.add(v.said())
    context.close()


@at_each_width
@each_figure
def test_without_a_script(browser: Browser, server: str, name: str, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 800}, java_script_enabled=False)
    v = visit(context, server, name)
    assert v.figure.locator("input, button, canvas, output").count() == 0
    image = v.figure.locator("img")
    assert image.count() == 1 and image.is_visible()
    assert len((image.get_attribute("alt") or "").split()) > 20
    v.page.wait_for_load_state("networkidle")
    box = image.bounding_box()
    assert box is not None and box["width"] > 250 and box["height"] > 100
    source = image.get_attribute("src") or ""
    assert v.page.request.get(server + "chapters/" + source).text().count("<path") > 10
    caption = v.figure.locator("figcaption").text_content() or ""
    assert re.search(r"Predict .*\. Then ", caption, re.DOTALL)
    assert v.outside == [] and v.errors == []
    context.close()


@each_figure
def test_in_print_the_still_picture_stands(browser: Browser, server: str, name: str) -> None:
    context = browser.new_context()
    v = visit_live(context, server, name)
    image = v.figure.locator("img")
    assert not image.is_visible()
    v.page.emulate_media(media="print")
    assert image.is_visible() and not v.figure.locator(".moving").is_visible()
    v.page.wait_for_function("image => image.complete && image.naturalWidth > 0", arg=image.element_handle())
    context.close()


@each_figure
def test_dark_and_light(browser: Browser, server: str, name: str) -> None:
    context = browser.new_context(color_scheme="light")
    v = visit_live(context, server, name)
    light = ink(v.figure)
    v.page.evaluate("document.documentElement.dataset.theme = 'dark'")
    v.page.wait_for_function(
        "([figure, light]) => figure.querySelector('canvas').toDataURL() !== light",
        arg=[v.figure.element_handle(), light],
    )
    assert v.figure.locator("canvas").count() == 1
    v.page.evaluate("document.documentElement.dataset.theme = 'light'")
    v.page.wait_for_function(
        "([figure, light]) => figure.querySelector('canvas').toDataURL() === light",
        arg=[v.figure.element_handle(), light],
    )
    v.check(name)
    context.close()


@each_figure
def test_opened_as_a_file_with_the_network_off(browser: Browser, built_site: Path, name: str) -> None:
    context = browser.new_context(offline=True)
    v = visit_live(context, built_site.as_uri() + "/", name)
    v.sliders.nth(0).press("ArrowRight")
    v.check(name)
    context.close()


@each_figure
def test_moves_under_a_strict_policy(browser: Browser, server: str, name: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{server}{PAGES[name]}?strict", wait_until="load")
    figure = page.locator(f"figure.moving-is-{name}")
    come_to(figure)
    page.wait_for_selector("figure.moving-live canvas", state="attached")
    # Nothing in the figure would need the policy to be looser.
    names = "e => [...e.querySelectorAll('*')].flatMap(x => x.getAttributeNames())"
    assert [name for name in figure.evaluate(names) if name.startswith("on")] == []
    assert figure.locator("script").count() == 0
    context.close()


def test_only_the_pages_that_use_them_load_them(built_site: Path, browser: Browser, server: str) -> None:
    with_figures = set(PAGES.values())
    for path in built_site.rglob("*.html"):
        name = path.relative_to(built_site).as_posix()
        if name.startswith("_static/"):
            continue
        named = re.findall(r"_static/(move/[\w./-]+)", path.read_text(encoding="utf-8"))
        assert named == (["move/load.js"] if name in with_figures else []), name

    # At the top of such a page only the loader is fetched: it is part of the first view, the rest is not.
    context = browser.new_context()
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(server + PAGES["softmax"], wait_until="networkidle")
    assert [url for url in asked if "/move/" in url and "load.js" not in url] == []
    context.close()
    assert (built_site / "_static/move/load.js").stat().st_size < 2000
