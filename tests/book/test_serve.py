"""The server that the browser tests, `make serve` and `make lighthouse` share."""

from __future__ import annotations

import gzip
import http.client
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import serve

TEXT = "<p>Cross-entropy is the loss behind most classifiers.</p>" * 50
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    site = tmp_path / "root" / "book"
    (site / "chapters").mkdir(parents=True)
    (tmp_path / "secret.html").write_text("not of the site")
    for name in ("index.html", "404.html", "chapters/one.html", "book.css", "book.js", "logo.svg"):
        (site / name).write_text(f"{name}: {TEXT}", encoding="utf-8")
    (site / "tiny.css").write_text("a{}")
    (site / "picture.png").write_bytes(bytes(range(256)) * 40)
    (site / "font.woff2").write_bytes(bytes(1000))
    return site


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    with serve.serving(site.parent, max_age=600) as address:
        yield address


def ask(
    address: str, path: str, *, method: str = "GET", **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    """Send one request exactly as given: a path is not tidied, and nothing is unpacked."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=10)
    connection.request(
        method, path, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_text_is_compressed_for_whoever_takes_it(address: str, site: Path) -> None:
    for name in ("index.html", "chapters/one.html", "book.css", "book.js", "logo.svg"):
        content = (site / name).read_bytes()
        answer, body = ask(address, f"/book/{name}", Accept_Encoding="br, gzip")
        assert (answer.status, answer.getheader("Content-Encoding")) == (200, "gzip")
        assert gzip.decompress(body) == content and len(body) < len(content) / 5
        assert int(answer.getheader("Content-Length", "0")) == len(body)
        assert answer.getheader("Vary") == "Accept-Encoding"
        for refusal in ("identity", "gzip;q=0, identity"):
            answer, body = ask(address, f"/book/{name}", Accept_Encoding=refusal)
            assert answer.getheader("Content-Encoding") is None and body == content


def test_what_is_packed_or_tiny_stays_as_it_is(address: str, site: Path) -> None:
    for name in ("picture.png", "font.woff2", "tiny.css"):
        answer, body = ask(address, f"/book/{name}", Accept_Encoding="gzip")
        assert answer.getheader("Content-Encoding") is None and body == (site / name).read_bytes()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("index.html", "text/html; charset=utf-8"),
        ("book.css", "text/css; charset=utf-8"),
        ("book.js", "text/javascript; charset=utf-8"),
        ("logo.svg", "image/svg+xml"),
        ("picture.png", "image/png"),
        ("font.woff2", "font/woff2"),
    ],
)
def test_types_and_ages(address: str, name: str, kind: str) -> None:
    answer, _ = ask(address, f"/book/{name}")
    assert answer.getheader("Content-Type") == kind
    assert answer.getheader("Cache-Control") == "max-age=600"


def test_every_kind_of_file_of_the_site_has_a_type(built_site: Path) -> None:
    endings = {path.suffix for path in built_site.rglob("*") if path.is_file() and path.suffix}
    assert {".html", ".css", ".js", ".woff2", ".ipynb"} <= endings
    assert endings <= {*serve.TEXT, *serve.PACKED}


def test_a_browser_that_has_the_file_is_told_so(address: str, site: Path) -> None:
    first, _ = ask(address, "/book/index.html", Accept_Encoding="gzip")
    mark = first.getheader("ETag")
    assert mark is not None
    answer, body = ask(address, "/book/index.html", Accept_Encoding="gzip", If_None_Match=mark)
    assert (answer.status, body) == (304, b"")
    (site / "index.html").write_text("built again " + TEXT)
    answer, body = ask(address, "/book/index.html", Accept_Encoding="gzip", If_None_Match=mark)
    assert answer.status == 200 and gzip.decompress(body).startswith(b"built again")


def test_without_an_age_the_browser_asks_each_time(site: Path) -> None:
    with serve.serving(site) as address:
        assert ask(address, "/index.html")[0].getheader("Cache-Control") == "no-cache"


def test_a_missing_page_is_the_404_of_its_site(address: str) -> None:
    for path in ("/book/nothing.html", "/book/chapters/a/b/c", "/book/chapters/"):
        answer, body = ask(address, path)
        assert answer.status == 404 and body.startswith(b"404.html: ")
    answer, body = ask(address, "/elsewhere.html")
    assert answer.status == 404 and b"404.html: " not in body


def test_nothing_outside_of_the_folder_is_served(address: str) -> None:
    for path in ("/../secret.html", "/book/../../secret.html", "/%2e%2e/secret.html", "//secret.html"):
        answer, body = ask(address, path)
        assert answer.status == 404 and b"not of the site" not in body


def test_folders(address: str) -> None:
    answer, body = ask(address, "/book/")
    assert answer.status == 200 and body.startswith(b"index.html: ")
    answer, _ = ask(address, "/book")
    assert (answer.status, answer.getheader("Location")) == (301, "book/")


def test_a_head_has_no_body(address: str, site: Path) -> None:
    answer, body = ask(address, "/book/index.html", method="HEAD")
    assert (answer.status, body) == (200, b"")
    assert answer.getheader("Content-Length") == str((site / "index.html").stat().st_size)


def test_make_serve_uses_it() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "http.server" not in makefile and "tools/serve.py --port $(PORT)" in makefile
