"""The picture that goes with a shared link: it shows what is computed, and is named only where it can be."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

import xent_card

if TYPE_CHECKING:
    from .conftest import TinyBook

ROOT = Path(__file__).resolve().parents[2]
TITLE = "Cross-Entropy, Verified"


def test_the_card_is_what_hosts_ask_for() -> None:
    content = xent_card.picture(TITLE, xent_card.SUBTITLE)
    assert content[:8] == b"\x89PNG\r\n\x1a\n" and len(content) < 200_000
    assert struct.unpack(">II", content[16:24]) == (1200, 630)
    assert content == xent_card.picture(TITLE, xent_card.SUBTITLE)


def test_the_card_shows_what_xent_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = xent_card.picture(TITLE, xent_card.SUBTITLE)
    lengths = xent_card.learnt_lengths()
    assert f"{lengths[1]:.1f} tokens where the data has 10" in " ".join(xent_card.told().split())
    assert "3.9 tokens" in xent_card.alt_text(TITLE) and xent_card.alt_text(TITLE).startswith(TITLE)
    # Another law gives another picture and other words.
    monkeypatch.setattr(xent_card, "learnt_lengths", lambda: {batch: 10.0 for batch in lengths})
    assert xent_card.picture(TITLE, xent_card.SUBTITLE) != drawn
    assert "10.0 tokens" in xent_card.told()


def metas(page: str) -> dict[str, str]:
    return dict(re.findall(r'<meta (?:name|property)="([^"]+)" content="([^"]*)"', page))


def test_a_book_with_an_address_names_its_card_on_every_page(tiny_book: TinyBook) -> None:
    configuration = tiny_book.root / "_config.yml"
    configuration.write_text(
        configuration.read_text().replace('baseurl: ""', 'baseurl: "https://example.org/book"')
    )
    package = tiny_book.root / "code/xent"
    (package / "sequences.py").write_text(
        "def eos_optimum(stop, batch):\n    return stop * (1 + 1 / batch)\n"
    )
    status, output = tiny_book.build()
    assert status == 0, output
    site = tiny_book.root / "_build/html"
    for page in ("index.html", "chapters/01_good.html"):
        told = metas((site / page).read_text(encoding="utf-8"))
        assert told["og:image"] == "https://example.org/book/_static/card.png"
        assert told["og:url"] == f"https://example.org/book/{page}"
        assert (told["og:image:width"], told["og:image:height"]) == ("1200", "630")
        assert told["twitter:card"] == "summary_large_image"
        assert "5.0 tokens where the data has 10" in told["og:image:alt"]
    assert (site / "_static/card.png").read_bytes()[:4] == b"\x89PNG"


def test_a_book_without_an_address_has_no_card(built_site: Path) -> None:
    if re.search(r'^  baseurl: ""', (ROOT / "_config.yml").read_text(encoding="utf-8"), re.MULTILINE):
        assert not (built_site / "_static/card.png").exists()
        for page in built_site.glob("chapters/*.html"):
            assert not {"og:image", "og:url", "twitter:card"} & set(metas(page.read_text(encoding="utf-8")))


def test_every_page_has_one_description_and_one_viewport(built_site: Path) -> None:
    for page in built_site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert text.count('name="viewport"') == 1, page.name
        if page.name != "404.html":
            assert text.count('name="description"') == 1, page.name


def test_the_setting_decides() -> None:
    config = SimpleNamespace(html_baseurl="", project=TITLE, ogp_custom_meta_tags=())
    xent_card._configure(SimpleNamespace(), config)  # type: ignore[arg-type]
    assert not hasattr(config, "ogp_image")
