"""A tiny copy of the book to plant errors in, and the built book to look at in a browser."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from filelock import FileLock
from playwright.sync_api import Browser, sync_playwright

import book
import notebooks
from serve import serving
from xent_site import REPOSITORY, SITE

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class TinyBook:
    """A copy of the repository with small chapters of its own."""

    root: Path

    def write_chapter(self, name: str, *cells: str, output: str | None = None) -> Path:
        """Write a notebook; a cell that starts with `# code` is a code cell, `output` what it printed."""
        notebook = nbformat.v4.new_notebook()
        for cell in cells:
            if cell.startswith("# code"):
                stored = [nbformat.v4.new_output("stream", text=output)] if output else []
                notebook.cells.append(nbformat.v4.new_code_cell(cell, outputs=stored))
            else:
                notebook.cells.append(nbformat.v4.new_markdown_cell(cell))
        path = self.root / "chapters" / f"{name}.ipynb"
        path.write_text(notebooks.normal_form(notebook, name), encoding="utf-8")
        return path

    def write_toc(self, *names: str) -> None:
        """Write a table of contents with these chapters."""
        entries = "".join(f"      - file: chapters/{name}\n" for name in (*names, "references"))
        toc = f"format: jb-book\nroot: index\ndefaults: {{numbered: true}}\nparts:\n  - chapters:\n{entries}"
        (self.root / "_toc.yml").write_text(toc)

    def run(self, *command: str, **addresses: str) -> tuple[int, str]:
        """Run Python in the copy, with the copy's package; return the exit status and all that was said."""
        environment = {**os.environ, "PYTHONPATH": str(self.root / "code"), "OMP_NUM_THREADS": "1"}
        # The addresses of whoever publishes the book are not those of the copy.
        environment = {name: value for name, value in environment.items() if name not in (REPOSITORY, SITE)}
        environment |= addresses
        done = subprocess.run(
            [sys.executable, *command],
            cwd=self.root,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=300,
        )
        return done.returncode, done.stdout

    def build(self, **addresses: str) -> tuple[int, str]:
        """Build the copy as `make book` does."""
        return self.run("tools/book.py", "--jobs", "1", **addresses)

    def page(self, name: str) -> str:
        """Read a built page."""
        return (self.root / "_build" / "html" / "chapters" / f"{name}.html").read_text(encoding="utf-8")


def make_tiny_book(tmp_path: Path) -> TinyBook:
    """Copy what a build needs, with one chapter in which nothing is wrong."""
    for name in ("_ext", "_static", "_templates", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("_config.yml", "requirements.txt", "chapters/references.bib", "chapters/references.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    package = tmp_path / "code" / "xent"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("answer = 42\n")
    (tmp_path / "index.md").write_text("# A tiny book\n")
    tiny = TinyBook(tmp_path)
    tiny.write_toc("01_good")
    tiny.write_chapter("01_good", "# Good", "# code\nimport xent\nprint(xent.answer)", output="42\n")
    return tiny


@pytest.fixture
def tiny_book(tmp_path: Path) -> TinyBook:
    """A small book to plant an error in."""
    return make_tiny_book(tmp_path)


@pytest.fixture(scope="session")
def built_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the built book, copied to a place of its own; build it first if it is not current."""
    if not book.is_current(ROOT):
        # Another worker may be at it: the first one builds, the others wait. A lock of the system's ends with
        # its process, so that one that was killed keeps nobody waiting.
        (ROOT / "_build").mkdir(exist_ok=True)
        with FileLock(ROOT / "_build" / "building.lock", timeout=600):
            if not book.is_current(ROOT):
                done = subprocess.run(
                    [sys.executable, str(ROOT / "tools" / "book.py")], capture_output=True, text=True
                )
                if done.returncode:
                    pytest.fail(f"the book does not build:\n{done.stdout}{done.stderr}")
    if not book.is_current(ROOT):
        pytest.fail("the book in _build/html is not current: run 'make book'")
    copy = tmp_path_factory.mktemp("elsewhere") / "some" / "where"
    shutil.copytree(ROOT / book.HTML, copy)
    yield copy


@pytest.fixture(scope="session")
def server(built_site: Path) -> Iterator[str]:
    """Serve the site under a path, as a host of many projects does, and return its address."""
    with serving(built_site.parents[1]) as address:
        yield f"{address}some/where/"


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Browser]:
    """One for all modules: Playwright cannot be started twice in a process."""
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
