"""The pages keep to their Content-Security-Policy, and the policy keeps out what is not the book's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route

import xent_policy
from xent_site import toc_documents

ROOT = Path(__file__).resolve().parents[2]
PAGES = [f"{name}.html" for name in toc_documents(ROOT)] + ["genindex.html", "search.html", "404.html"]
FOREIGN = "https://elsewhere.invalid/"

WATCH = """
globalThis.broken = [];
document.addEventListener("securitypolicyviolation", (event) => broken.push(
  `${event.effectiveDirective} ${event.blockedURI} ${event.sample}`));
"""
# As a reader goes through a page: each part comes into view, each box is opened, and the page is printed.
READ = """async () => {
  const wait = (time) => new Promise((done) => setTimeout(done, time));
  document.querySelectorAll("details").forEach((box) => { box.open = true; });
  for (let top = 0; top < document.documentElement.scrollHeight; top += 2 * innerHeight) {
    scrollTo({ top, behavior: "instant" });
    await wait(8);
  }
  dispatchEvent(new Event("beforeprint"));
  dispatchEvent(new Event("afterprint"));
  document.querySelectorAll("button").forEach((button) => button.click());
  await wait(150);
  return broken;
}"""


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that may ask nobody but the site, and writes down what its policy refused."""
    context = browser.new_context()
    page = context.new_page()
    page.add_init_script(WATCH)
    yield page
    context.close()


def policy_of(text: str) -> dict[str, set[str]]:
    """Read the policy of a page's HTML."""
    found = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', text)
    assert len(found) == 1, f"{len(found)} policies"
    rules = (rule.split() for rule in unescape(found[0]).split(";"))
    return {name: set(sources) for name, *sources in rules}


@pytest.mark.parametrize("name", PAGES)
def test_each_page_has_a_strict_policy(built_site: Path, name: str) -> None:
    text = (built_site / name).read_text(encoding="utf-8")
    rules = policy_of(text)
    assert text.index("Content-Security-Policy") < re.search(r"<(?:script|style|link|img)\b", text).start()  # type: ignore[union-attr]
    assert rules["default-src"] == {"'none'"} == rules["base-uri"]
    hashed = r"'self'|'sha256-[A-Za-z0-9+/]{43}='"
    for directive in ("script-src", "style-src"):
        assert all(re.fullmatch(hashed, source) for source in rules[directive]), directive
    # No rule names another host, a scheme of the network, or a way round the hashes.
    rest = {source for directive, sources in rules.items() if "src" in directive for source in sources}
    assert {s for s in rest if not re.fullmatch(hashed, s)} == {"'none'", "data:", "'unsafe-inline'"}
    assert [d for d, sources in rules.items() if "'unsafe-inline'" in sources] == ["style-src-attr"]
    assert [d for d, sources in rules.items() if "data:" in sources] == ["img-src"]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_keeps_to_it(page: Page, built_site: Path, name: str) -> None:
    page.goto((built_site / name).as_uri(), wait_until="load")
    assert page.evaluate(READ) == []


# What somebody who could put HTML into a page would try, and the rule that stops it.
INTRUDERS = {
    "a script of another host": ("<script src='%s'>", "script-src-elem"),
    "a script in the page": ("<script>globalThis.intruded = true</script>", "script-src-elem"),
    "a handler": ("<img src='data:,' onerror='globalThis.intruded = true'>", "script-src-attr"),
    "a link that is a script": ("<a href='javascript:globalThis.intruded = true'>x</a>", "script-src-elem"),
    "a style sheet of another host": ("<link rel='stylesheet' href='%s'>", "style-src-elem"),
    "a style in the page": ("<style>h1 { color: red }</style>", "style-src-elem"),
    "a picture of another host": ("<img src='%s'>", "img-src"),
    "a frame": ("<iframe src='%s'></iframe>", "frame-src"),
    "an object": ("<object data='%s'></object>", "object-src"),
    "another base": ("<base href='%s'>", "base-uri"),
}
INTRUDE = """async (html) => {
  // A script that is parsed with innerHTML never runs: make it anew, as a page that carried it would.
  const box = document.createElement("div");
  box.innerHTML = html;
  const [guest] = box.children, element = document.createElement(guest.tagName);
  for (const { name, value } of guest.attributes) element.setAttribute(name, value);
  element.append(...guest.childNodes);
  (element.matches("base, link, style") ? document.head : document.body).append(element);
  if (element.matches("a")) element.click();
  await new Promise((done) => setTimeout(done, 300));
  return [broken, globalThis.intruded === true];
}"""


@pytest.mark.parametrize("what", INTRUDERS)
def test_what_is_not_the_books_own_is_kept_out(page: Page, built_site: Path, what: str) -> None:
    asked: list[str] = []

    def answer(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(content_type="text/javascript", body="globalThis.intruded = true")

    page.route(f"{FOREIGN}**", answer)
    page.goto((built_site / "index.html").as_uri(), wait_until="load")
    html, directive = INTRUDERS[what]
    broken, intruded = page.evaluate(INTRUDE, html.replace("%s", f"{FOREIGN}x.js"))
    assert {line.split()[0] for line in broken} == {directive}
    assert not intruded and asked == []


@pytest.mark.parametrize(
    ("call", "directive"),
    [
        (f"fetch('{FOREIGN}').catch(() => 0)", "connect-src"),
        ("setTimeout('globalThis.intruded = true')", "script-src"),
    ],
)
def test_no_script_calls_out_or_makes_code_of_text(
    page: Page, built_site: Path, call: str, directive: str
) -> None:
    page.goto((built_site / "index.html").as_uri(), wait_until="load")
    page.evaluate(f"() => {{ {call}; return new Promise(done => setTimeout(done, 300)); }}")
    assert [line.split()[0] for line in page.evaluate("broken")] == [directive]
    assert page.evaluate("globalThis.intruded") is None


def test_a_changed_script_is_no_longer_allowed() -> None:
    first = xent_policy.policy(["a()"], [])
    assert xent_policy.policy(["b()"], []) != first and xent_policy.policy(["a()"], []) == first
    # As `printf 'a()' | openssl dgst -sha256 -binary | base64` has it.
    assert "'sha256-qVpDBgj7bpq5hMAcGp3AOc79J3Y1Z4HvySTwKrWDoy4='" in first
