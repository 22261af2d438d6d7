"""The appendices: what they say comes from the repository."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import pkgutil
import re
import runpy
from collections import Counter
from pathlib import Path

from bs4 import BeautifulSoup, Tag

import marks

ROOT = Path(__file__).resolve().parents[2]
SOURCES, ROWS = marks.read_errata(ROOT)

# The number of each source's statements; each has a row, whether it holds or not, but those that share one.
STATEMENTS = {0: 18, 1: 19, 2: 7, 3: 14, 4: 9}
SHARED = {"0.2", "0.6", "0.7", "0.8", "2.5", "2.6"}  # in 0.5, in 2.4, or among the slips of the pen


def test_every_statement_of_the_sources_has_a_row() -> None:
    ids = {row.id for row in ROWS}
    expected = {f"{source}.{n}" for source, last in STATEMENTS.items() for n in range(1, last + 1)}
    assert expected - ids == SHARED and len(ids) == len(ROWS)
    assert all(re.fullmatch(r"\d\.[a-z]", i) for i in ids - expected), "count the others in STATEMENTS"


def test_the_ledger_counts_all_that_the_chapters_say(built_site: Path) -> None:
    """The last row of its table, and an entry for each."""
    said, read = marks.read_equations(ROOT)[0], marks.read_from_the_page(ROOT)
    claims = [mark for mark in marks.read_marks(ROOT)[0] if mark.kind == "claim"]
    table = (built_site / "chapters/equations.html").read_text(encoding="utf-8")
    numbers = [len(read), len(said) - len(read), len(claims)]
    assert [int(n) for n in re.findall(r"<strong>(\d+)</strong>", table)][-3:] == numbers
    pages = [path.read_text(encoding="utf-8") for path in (built_site / "chapters/ledger").glob("*.html")]
    assert sum(page.count('class="ledger-entry docutils') for page in pages) == len(said) + len(claims)


@functools.cache
def parsed(page: Path) -> BeautifulSoup:
    return BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")


@functools.cache
def places(page: Path) -> dict[str, Tag]:
    """Return what each id of a page is of; the first, if it repeats, as for a browser."""
    return {str(tag["id"]): tag for tag in reversed(parsed(page).find_all(id=True))}


def text(part: Tag) -> str:
    return "".join(part.get_text().split())


def led_to(link: Tag, page: Path) -> Tag | None:
    """Return what a link of a page arrives at."""
    path, _, anchor = str(link["href"]).partition("#")
    return places((page.parent / path).resolve() if path else page).get(anchor)


def wrong_marks(ledger: Path) -> list[str]:
    """Return what is wrong with the marks of a chapter: each opens the card of the sentence that it ends."""
    page = ledger.parents[1] / ledger.name
    article = parsed(page).article
    assert article
    marks_there, wrong, opened = article.select("a.claim"), [], []
    for mark in marks_there:
        mark.string = "\0"
    said = text(article).split("\0")
    for number, mark in enumerate(marks_there, 1):
        opened.append(card := led_to(mark, page))
        sentence, back = (text(card.p).removesuffix("↑"), card.find("a", string="↑")) if card else ("", None)
        if not sentence or not "".join(said[:number]).endswith(sentence):
            wrong.append(f"{said[number - 1][-60:]} opens {sentence[-60:]}")
        elif led_to(back, ledger) is not mark:
            wrong.append(f"{sentence[-60:]}: the way back arrives elsewhere")
    cards = [card for card in parsed(ledger).select(".ledger-entry") if str(card["id"]).startswith("claim-")]
    shut = [card for card in cards if sum(card is one for one in opened) != 1]
    return wrong + [f"{text(card.p)}: not opened by one mark" for card in shut]


def test_every_mark_opens_the_card_of_its_sentence_and_the_card_leads_back(built_site: Path) -> None:
    ledgers = sorted((built_site / "chapters/ledger").resolve().glob("*.html"))
    assert [f"{path.stem}: {wrong}" for path in ledgers for wrong in wrong_marks(path)] == []


def test_every_number_opens_its_equation_and_every_mention_its_erratum(built_site: Path) -> None:
    wrong, mentioned = [], set()
    for page in sorted((built_site / "chapters").glob("[01]*.html")):
        for link in parsed(page).select(".eqno > a:first-child, a[href*='#erratum-']"):
            there, number = led_to(link, page), link.get_text().split()[-1]
            equation = link.find_parent(class_="math")
            same = not equation or (there and text(there.annotation) == text(equation.annotation))
            mentioned |= set() if equation else {number.strip("()")}
            if not (there and same and text(there).startswith(number)):
                wrong.append(f"{page.stem}: {number}")
    assert {"3.3", "0.10"} <= mentioned
    page = built_site / "chapters/errata.html"
    wrong += [f"errata: no card of {row.id}" for row in ROWS if row.anchor not in places(page)]
    for link in parsed(page).select(".erratum a[href*='.html#']"):
        there = led_to(link, page)
        if not there or link.get_text() not in there.select_one("h1, h2, h3, h4").get_text():
            wrong.append(f"errata: {link['href']}")
    assert wrong == []


def test_no_id_repeats_on_a_page(built_site: Path) -> None:
    wrong = []
    for page in (page for page in built_site.rglob("*.html") if "_static" not in page.parts):
        ids = re.findall(r'<\w[^>]*\sid="([^"]+)"', page.read_text(encoding="utf-8"))
        wrong += [f"{page.name}: {i} stands {n} times" for i, n in Counter(ids).items() if n > 1]
    assert wrong == []


def test_the_reference_holds_every_public_name(built_site: Path) -> None:
    page = "".join((built_site / f"chapters/{name}.html").read_text("utf-8") for name in ("api", "api_torch"))
    missing = []
    for path in sorted((ROOT / "code/xent").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT / "code").with_suffix("").parts).removesuffix(".__init__")
        if "._" in name:
            continue
        module = importlib.import_module(name)
        for public in getattr(module, "__all__", []):
            held = any(f'id="{place}.{public}"' in page for place in (name, "xent"))
            if not (held or inspect.ismodule(getattr(module, public))):
                missing.append(f"{name}.{public}")
    assert missing == []
    assert page.count("katex-display") >= 20 and "system-message" not in page
    leads = 'href="api_torch.html#xent.torch.accumulate"'
    assert leads in (built_site / "chapters/10_averaged_loss.html").read_text(encoding="utf-8")


def test_what_the_pages_call_exists() -> None:
    pages = [ROOT / "index.md", ROOT / "README.md", *sorted((ROOT / "chapters").glob("*.*"))]
    text = "\n".join(path.read_text(encoding="utf-8") for path in pages)
    missing = []
    for name in sorted({*re.findall(r"`(xent\.[\w.]*\w)(?:\([^`]*\))?`", text)}):
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError):
            missing.append(name)
    assert missing == []


def test_the_tables_of_the_benchmark_are_what_was_measured() -> None:
    tables = runpy.run_path(str(ROOT / "experiments/bench/tables.py"))
    records = [json.loads(path.read_text(encoding="utf-8")) for path in tables["RECORDS"]]
    written = tables["TABLES"].read_text(encoding="utf-8")
    assert written == tables["text"](*records), "run python -m experiments.bench.tables"
    first = records[0]["cases"][:1]
    share = first[0]["seconds"]["xent"]["fastest"] / first[0]["seconds"]["torch"]["fastest"]
    assert f"{share:.2f}" in tables["times"](first)
    on_tensors = tables["tensors"](records[0]["tensors"]["cases"])
    shares = re.findall(r"(\**)([\d.]+)\**\xa0\(([\d.]+)\)", on_tensors)
    assert len(shares) == len(records[0]["tensors"]["cases"])
    assert all((float(share) > float(most)) == bool(bold) for bold, share, most in shares), (
        "a share like its bound"
    )
