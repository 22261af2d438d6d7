"""The general index: what its file says is there, and a reader who looks something up arrives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from playwright.sync_api import Browser, Page

import xent_index

if TYPE_CHECKING:
    from .conftest import TinyBook

ROOT = Path(__file__).resolve().parents[2]
IDS = {
    "chapters/01_coin": {"equation-eq-coin", "heads", "fig-coin"},
    "chapters/02_die": {"equation-eq-die", "heads"},
    "chapters/08_table": {"symptom-nan"},
    "chapters/errata": {"erratum-1"},
}

# What a reader looks up, in the words of the index, and where it has to lead.
LOOKED_UP = {
    "tilt theorem": "chapters/10_averaged_loss.html#equation-eq-avg-tilt",
    "softmax; Jacobian": "chapters/04_gradients.html#equation-eq-grad-jacobian",
    "loss; is nan": "chapters/08_which_loss.html#symptom-log-of-a-softmax",
    "gradient accumulation; changes the model": "chapters/11_denominators.html#the-symptom",
    "denominator; of accumulated loss": "chapters/11_denominators.html#equation-eq-den-accumulation",
    "cross-entropy; of a distribution": "chapters/03_information.html#equation-eq-cross-entropy-law",
    "stop probability q*; several sequences": "chapters/10_averaged_loss.html#fig-avg-batch",
    "label smoothing; inverse": "chapters/12_soft_targets.html#equation-eq-soft-inverse",
    "weight decay; as a Gaussian prior": "chapters/02_multiclass.html#equation-eq-map-gaussian",
    "Keras; from_logits": "chapters/08_which_loss.html#symptom-from-logits-forgotten",
    "temperature; T² factor": "chapters/13_distillation.html#equation-eq-kd-loss",
    "underflow": "chapters/05_numerics.html#equation-eq-probability-gap",
    "z-loss": "chapters/15_large_vocabularies.html#equation-eq-vocab-zloss",
    "GRPO and DAPO": "chapters/11_denominators.html#equation-eq-den-rl",
    "accumulate() (in module xent.torch)": "chapters/api.html#xent.torch.accumulate",
    "logit": "chapters/notation.html#term-logit",
}


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("eq-die", ("chapters/02_die", "equation-eq-die")),
        ("fig-coin", ("chapters/01_coin", "fig-coin")),
        ("symptom-nan", ("chapters/08_table", "symptom-nan")),
        ("02/heads", ("chapters/02_die", "heads")),
        ("errata", ("chapters/errata", "")),
        ("eq-none", None),
        ("02/tails", None),
        ("03/heads", None),
        ("missing", None),
    ],
)
def test_a_place_is_found_or_is_not_there(place: str, expected: tuple[str, str] | None) -> None:
    assert xent_index.find(place, IDS) == expected


def test_a_place_that_is_not_there_is_told(tmp_path: Path) -> None:
    (tmp_path / "chapters").mkdir()
    terms = {
        "coin": ["eq-coin", "01/heads"],
        "die": {"fair": ["eq-die"], "loaded": ["eq-loaded", "01/heads"]},
    }
    (tmp_path / xent_index.FILE).write_text(yaml.safe_dump(terms))
    found, problems = xent_index.resolve(tmp_path, IDS)
    assert ("die; fair", "chapters/02_die", "equation-eq-die") in found and len(found) == 4
    assert problems == [f"{xent_index.FILE}: 'die; loaded' points to 'eq-loaded', which is not there"]
    (tmp_path / xent_index.FILE).write_text("coin: [eq-coin, eq-coin]\n")
    assert xent_index.resolve(tmp_path, IDS)[1] == [f"{xent_index.FILE}: 'coin' points to 'eq-coin' twice"]


def test_no_term_is_listed_twice() -> None:
    """A second list under the same words would replace the first without a word."""
    text = (ROOT / xent_index.FILE).read_text(encoding="utf-8")
    terms = re.findall(r"^([^\s#].*?):(?: |$)", text, re.MULTILINE)
    assert len(terms) == len(set(terms)) == len(yaml.safe_load(text))
    assert len(xent_index.read_terms(ROOT)) >= 150


def test_a_term_that_leads_nowhere_fails_the_build(tiny_book: TinyBook) -> None:
    terms = tiny_book.root / xent_index.FILE
    terms.write_text("coin toss: [01/good]\ntosses:\n  of a coin: [01/good]\n")
    status, output = tiny_book.build()
    assert status == 0, output
    index = (tiny_book.root / "_build/html/genindex.html").read_text(encoding="utf-8")
    assert re.search(r'href="chapters/01_good.html#good">\s*coin toss', index)
    # Nothing else has changed, and the index is written anew; what was taken out of the file is gone.
    terms.write_text("heads or tails: [01/good]\n")
    status, output = tiny_book.build()
    assert status == 0, output
    index = (tiny_book.root / "_build/html/genindex.html").read_text(encoding="utf-8")
    assert "heads or tails" in index and "coin toss" not in index and "of a coin" not in index
    terms.write_text("heads or tails: [01/bad]\n")
    for _ in range(2):
        status, output = tiny_book.build()
        assert status != 0
        assert f"{xent_index.FILE}: 'heads or tails' points to '01/bad', which is not there" in output


@pytest.fixture(scope="module")
def page(browser: Browser, built_site: Path) -> Iterator[Page]:
    page = browser.new_page()
    page.goto((built_site / "genindex.html").as_uri())
    yield page
    page.close()


# Each entry with the words above it, and where it leads.
READ = """() => {
  const isWords = n => n.nodeName == "A" && !n.classList.contains("where");
  const name = li => {
    const link = [...li.childNodes].find(isWords);
    return (link || li).firstChild.textContent.trim();
  };
  return [...document.querySelectorAll(".index-entries li")].map(li => {
    const above = li.parentElement.closest("li");
    const links = [...li.children].filter(c => c.nodeName == "A");
    const full = (above ? name(above) + "; " : "") + name(li);
    return [full, links.map(a => [a.getAttribute("href"), a.innerText])];
  });
}"""


def test_what_a_reader_looks_up_is_found_and_leads_there(page: Page, built_site: Path) -> None:
    entries = {name: [href for href, _ in links] for name, links in page.evaluate(READ)}
    for name, href in LOOKED_UP.items():
        assert href in entries.get(name, []), f"{name}: {entries.get(name)}"
    for links in entries.values():
        for href in links:
            file, _, anchor = href.partition("#")
            text = (built_site / (file or "genindex.html")).read_text(encoding="utf-8")
            assert not anchor or f'id="{anchor}"' in text, href


def test_an_entry_says_where_it_leads_as_the_book_numbers_it(page: Page, built_site: Path) -> None:
    links = dict(page.evaluate(READ))
    told = dict(links["tilt theorem"])
    text = (built_site / "chapters/10_averaged_loss.html").read_text(encoding="utf-8")
    equation = re.search(r'id="equation-eq-avg-tilt".*?class="eqno">(\([\d.]+\))', text, re.DOTALL)
    section = re.search(
        r'id="why-the-weight-depends-on-the-outcome">.*?section-number">([\d.]+)\.', text, re.DOTALL
    )
    assert equation is not None and section is not None
    assert equation[1] in told["chapters/10_averaged_loss.html#equation-eq-avg-tilt"]
    shown = told["chapters/10_averaged_loss.html#why-the-weight-depends-on-the-outcome"]
    assert shown.split()[-1] == section[1]
    assert all(words.strip() for _, all_links in links.items() for _, words in all_links)


def test_what_to_see_instead_is_linked(page: Page) -> None:
    seen = page.locator(".index-entries li:has-text('see ')").filter(
        has=page.locator(":scope > a[href^='#entry-']")
    )
    assert seen.count() >= 10
    page.get_by_role("link", name="binary cross-entropy", exact=True).first.click()
    assert page.locator(":target").inner_text().startswith("binary cross-entropy")
