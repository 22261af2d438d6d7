"""The table of symptoms in a browser: its filter, its anchors, and what is left without the script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tiny_book import ROOT
from xent_book.frameworks import SYMPTOMS, SymptomTable

pytestmark = pytest.mark.slow  # builds pages with Sphinx

CONFIGURATION = f"""\
import sys
sys.path.insert(0, {str(ROOT / "_ext")!r})
extensions = ["myst_parser", "xent_symptoms"]
html_static_path = [{str(ROOT / "_static")!r}]
html_theme = "basic"
"""
INDEX = "# Book\n\n```{toctree}\ntable\nother\n```\n"
ALL = f"{len(SYMPTOMS)} of {len(SYMPTOMS)} symptoms"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A book of two pages, one of them with the table."""
    root = tmp_path_factory.mktemp("symptoms")
    (root / "conf.py").write_text(CONFIGURATION, encoding="utf-8")
    (root / "index.md").write_text(INDEX, encoding="utf-8")
    (root / "other.md").write_text("# Other\n", encoding="utf-8")
    table = SymptomTable()._repr_html_()
    page = f'# Table\n\n<div class="cell_output">\n{table}\n</div>\n'
    (root / "table.md").write_text(page, encoding="utf-8")
    command = [sys.executable, "-m", "sphinx", "-W", "-q", ".", "html"]
    subprocess.run(command, cwd=root, check=True)
    return root / "html"


def shown(page: Page) -> list[str]:
    rows: list[str] = page.locator(".xent-symptoms tr[id]:visible").evaluate_all(
        "rows => rows.map(r => r.id)"
    )
    return rows


def test_only_the_page_with_the_table_loads_its_script(site: Path) -> None:
    for asset in ("symptoms.js", "symptoms.css"):
        assert asset in (site / "table.html").read_text(encoding="utf-8")
        assert asset not in (site / "other.html").read_text(encoding="utf-8")


def test_the_filter_leaves_the_rows_that_hold_every_word(site: Path, browser: Browser) -> None:
    page = browser.new_page()
    page.goto((site / "table.html").as_uri())
    count = page.locator(".xent-filter output")
    assert (count.inner_text(), len(shown(page))) == (ALL, len(SYMPTOMS))
    page.fill("#symptom-filter", "KERAS  weights")
    words = [
        f"symptom-{s.slug}"
        for s in SYMPTOMS
        if all(w in f"{s.symptom} {s.cause} {s.check} {s.fix}".lower() for w in ("keras", "weights"))
    ]
    assert 0 < len(words) < len(SYMPTOMS)
    assert shown(page) == words
    assert page.locator(".xent-symptoms th[scope=rowgroup]:visible").count() == 1
    page.fill("#symptom-filter", "no row says this")
    assert (count.inner_text(), shown(page)) == (f"0 of {len(SYMPTOMS)} symptoms", [])
    # A link to a row wins over the filter.
    page.evaluate("location.hash = 'symptom-negative-kl'")
    page.wait_for_function("document.querySelectorAll('.xent-symptoms tr[hidden]').length === 0")
    assert count.inner_text() == ALL
    page.close()


def test_every_row_is_there_without_the_script_and_on_a_phone(site: Path, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False, viewport={"width": 360, "height": 740})
    page = context.new_page()
    page.goto((site / "table.html").as_uri() + "#symptom-negative-kl")
    assert len(shown(page)) == len(SYMPTOMS)
    assert page.locator(".xent-filter").count() == 0
    box = page.locator(".xent-symptoms").bounding_box()
    assert box is not None
    assert box["width"] <= 360
    for cell in page.locator(".xent-symptoms code").all()[:40]:
        place = cell.bounding_box()
        assert place is not None
        assert place["x"] + place["width"] <= 360
    context.close()
