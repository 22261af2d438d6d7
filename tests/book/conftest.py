"""A tiny book to plant errors in, and the built book to look at in a browser."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import nbformat
import pytest
from playwright.sync_api import Browser, sync_playwright

import execution
import notebooks

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class TinyBook:
    """A copy of the repository with small chapters of its own."""

    root: Path

    def write_chapter(self, name: str, *cells: str, output: str = "") -> Path:
        """Write a notebook; a cell that starts with `# code` is a code cell, `output` what it printed."""
        notebook = nbformat.v4.new_notebook()
        for cell in cells:
            if cell.startswith("# code"):
                stored = [nbformat.v4.new_output("stream", text=output)] if output else []
                notebook.cells.append(nbformat.v4.new_code_cell(cell, outputs=stored))
            else:
                notebook.cells.append(nbformat.v4.new_markdown_cell(cell))
        path = self.root / "chapters" / f"{name}.ipynb"
        path.write_text(notebooks.normal_form(notebook), encoding="utf-8")
        return path

    def write_toc(self, *names: str) -> None:
        """Write a table of contents with these chapters."""
        entries = "".join(f"      - file: chapters/{name}\n" for name in (*names, "references"))
        toc = f"format: jb-book\nroot: index\ndefaults: {{numbered: true}}\nparts:\n  - chapters:\n{entries}"
        (self.root / "_toc.yml").write_text(toc)

    def run(self, *command: str, **addresses: str) -> tuple[int, str]:
        """Run Python in the copy, with the copy's package; return the exit status and all that was said."""
        # The addresses of whoever publishes the book are not those of the copy.
        theirs = (*execution.ADDRESSES, "XENT_STORED")
        environment = {name: value for name, value in os.environ.items() if name not in theirs}
        paths = os.pathsep.join(str(self.root / name) for name in ("code", "_ext"))
        environment |= {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **addresses}
        how: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "timeout": 300}
        done = subprocess.run([sys.executable, *command], cwd=self.root, env=environment, **how)
        return done.returncode, done.stdout

    def build(self, **addresses: str) -> tuple[int, str]:
        """Build the copy as `make book` does."""
        book = "from jupyter_book.cli.main import main; main()"
        return self.run("-c", book, "build", ".", "-W", "-n", "--keep-going", "-q", **addresses)

    def nbval(self) -> tuple[int, str]:
        """Compare the copy's stored outputs as `make test` does."""
        nbval = "--nbval", "--nbval-current-env", "-p", "no:cacheprovider"
        return self.run("-m", "pytest", *nbval, "chapters")

    def page(self, name: str) -> str:
        """Read a built page."""
        return (self.root / "_build" / "html" / "chapters" / f"{name}.html").read_text(encoding="utf-8")


@pytest.fixture
def tiny_book(tmp_path: Path) -> TinyBook:
    """Copy what a build needs, with one chapter in which nothing is wrong, to plant an error in."""
    for name in ("_ext", "_static", "_templates", "code"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "chapters").mkdir()
    files = "conf.py", "conftest.py", "requirements.txt", "chapters/references.bib", "chapters/references.md"
    for name in files:
        shutil.copy(ROOT / name, tmp_path / name)
    config = (ROOT / "_config.yml").read_text("utf-8")  # which may hold the owner's addresses
    config = re.sub(r"(?m)^( +(?:repository_url|html_baseurl):).*", r'\1 ""', config)
    (tmp_path / "_config.yml").write_text(config, "utf-8")
    (tmp_path / "index.md").write_text("# A tiny book\n")
    tiny = TinyBook(tmp_path)
    tiny.write_toc("01_good")
    tiny.write_chapter("01_good", "# Good", "# code\nimport xent\nprint(xent.sigmoid(0))", output="0.5\n")
    return tiny


@pytest.fixture(scope="session")
def built_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the built book, copied to a place of its own."""
    if not execution.is_current(ROOT):
        pytest.fail("the book in _build/html is missing or out of date: run 'make book'")
    copy = tmp_path_factory.mktemp("elsewhere") / "some" / "where"
    shutil.copytree(ROOT / "_build" / "html", copy)
    return copy


@pytest.fixture(scope="session")
def server(built_site: Path) -> Iterator[str]:
    """Serve the site under a path, as a host of many projects does, and return its address."""
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(built_site.parents[1]))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}/some/where/"
        http.shutdown()


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Browser]:
    """One for all modules: Playwright cannot be started twice in a process."""
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
