"""Serve the built site as a static host does: compressed, typed, with 404.html for what is missing.

    python tools/serve.py [--port 8000] [--directory _build/html]

The browser tests and tools/lighthouse.py measure through the same server, so that what they weigh is what a
reader's browser receives.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import http.server
import io
import posixpath
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent
HTML = ROOT / "_build" / "html"

# Every kind of file of the site, because what the system's own table says differs from machine to machine.
TEXT = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".ipynb": "application/x-ipynb+json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".md": "text/plain; charset=utf-8",
    ".xml": "application/xml",
}
# These are compressed as they are: gzip would make them larger.
PACKED = {".png": "image/png", ".woff2": "font/woff2", ".inv": "application/octet-stream"}
SMALL = 256  # below this, gzip's own head outweighs what it saves


@functools.lru_cache(maxsize=512)
def compressed(path: Path, modified: int) -> bytes:
    """Return a file's content under gzip, made once for each time that the file was written."""
    return gzip.compress(path.read_bytes(), compresslevel=9, mtime=0)


def accepts_gzip(header: str) -> bool:
    """Read an Accept-Encoding header: `gzip;q=0` refuses it."""
    for entry in header.split(","):
        name, _, quality = (part.strip() for part in entry.partition(";"))
        if name.lower() in ("gzip", "*"):
            return quality.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


class Handler(http.server.SimpleHTTPRequestHandler):
    """Answers for the files below a folder, and lists no folder."""

    protocol_version = "HTTP/1.1"

    def __init__(self, *arguments: object, max_age: int = 0, **options: object) -> None:
        self.max_age = max_age
        super().__init__(*arguments, **options)  # type: ignore[arg-type]

    def send_head(self) -> io.BytesIO | None:  # type: ignore[override]
        """Send status and headers, and return what follows them."""
        asked = urlsplit(self.path).path
        path = Path(self.translate_path(self.path))
        if path.is_dir():
            if not asked.endswith("/"):
                return self.redirect(posixpath.basename(asked) + "/")
            path /= "index.html"
        elif asked.endswith("/"):
            return self.missing(path)
        return self.send(path, HTTPStatus.OK) if path.is_file() else self.missing(path)

    def redirect(self, address: str) -> None:
        """Send the reader to a folder's own address, so that the links in its page lead where they should."""
        self.send_response(HTTPStatus.MOVED_PERMANENTLY)
        self.send_header("Location", address)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def missing(self, path: Path) -> io.BytesIO | None:
        """Send the 404.html of the nearest folder above that has one: a site may lie below the root."""
        for folder in path.parents:
            if not folder.is_relative_to(self.directory):
                break
            if (folder / "404.html").is_file():
                return self.send(folder / "404.html", HTTPStatus.NOT_FOUND)
        self.send_error(HTTPStatus.NOT_FOUND)
        return None

    def send(self, path: Path, status: HTTPStatus) -> io.BytesIO | None:
        """Send a file's headers and return its content, or None where the browser has it already."""
        state = path.stat()
        kind = TEXT.get(path.suffix) or PACKED.get(path.suffix) or "application/octet-stream"
        packs = path.suffix in TEXT and state.st_size >= SMALL
        packed = packs and accepts_gzip(self.headers.get("Accept-Encoding", ""))
        mark = f'"{state.st_mtime_ns:x}-{state.st_size:x}{"-gzip" * packed}"'
        known = status == HTTPStatus.OK and mark in self.headers.get("If-None-Match", "")
        content = b"" if known else compressed(path, state.st_mtime_ns) if packed else path.read_bytes()
        self.send_response(HTTPStatus.NOT_MODIFIED if known else status)
        self.send_header("ETag", mark)
        # Without an age the browser asks each time: a page that was just built is the one that is seen.
        self.send_header("Cache-Control", f"max-age={self.max_age}" if self.max_age else "no-cache")
        if packs:
            self.send_header("Vary", "Accept-Encoding")
        if not known:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("X-Content-Type-Options", "nosniff")
            if packed:
                self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        return None if known else io.BytesIO(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


def listen(directory: Path, *, port: int = 0, max_age: int = 0) -> http.server.ThreadingHTTPServer:
    """Make a server for a folder, on this machine only; port 0 takes a free one."""
    handler = functools.partial(Handler, directory=str(directory), max_age=max_age)
    return http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)


@contextmanager
def serving(directory: Path, *, max_age: int = 0) -> Iterator[str]:
    """Serve a folder in a thread while the block runs, and hand over the address."""
    with listen(directory, max_age=max_age) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def main() -> int:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--directory", type=Path, default=HTML)
    arguments = parser.parse_args()
    if not (arguments.directory / "index.html").is_file():
        parser.exit(1, "there is no book yet: run 'make book' first\n")
    try:
        server = listen(arguments.directory.resolve(), port=arguments.port)
    except OSError as error:
        parser.exit(1, f"port {arguments.port} cannot be used ({error.strerror}): try PORT=8001\n")
    with server:
        print(f"http://localhost:{server.server_port}/  (stop with Ctrl-C)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
