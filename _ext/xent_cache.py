"""Keep the build honest about what it reuses.

Four things that Jupyter Book reuses between builds can hide an error, and each has a guard here. The
guards are a Sphinx extension so that they also hold for a plain `jupyter-book build .`.

1. Executed chapters. jupyter-cache finds them by the source of their code cells alone. What the code
   imports is not part of that, so the whole cache is dropped when the package, the lock or Python changes.
2. Tags and alt texts. jupyter-cache also gives back the *metadata* of the cell that was executed, so an
   edited alt text would never reach the page. Such a chapter is forgotten and executed again.
3. Parsed pages. Sphinx warns about a page when it reads it, and a second build does not read it again: the
   same broken book would pass. Parsed pages are therefore kept only by a build that finished without a
   warning, and dropped when an extension, a template or a static file changed.
4. Written pages. Sphinx leaves the page of a chapter that was removed or renamed. It is deleted.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from jupyter_cache import get_cache
from sphinx.util import logging

if TYPE_CHECKING:
    from jupyter_cache.cache.main import JupyterCacheBase
    from sphinx.application import Sphinx
    from sphinx.config import Config
    from sphinx.environment import BuildEnvironment

logger = logging.getLogger(__name__)

CACHE = Path("_build", ".jupyter_cache")
KEY_FILE = "xent.key"
COMPLETE = "complete"


def environment_key(root: Path) -> str:
    """Hash what the chapters' outputs depend on: the package, experiments, pictures, the lock, Python."""
    digest = hashlib.sha256(".".join(map(str, sys.version_info[:3])).encode())
    package = [p for p in (root / "code").rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    # Chapters run the experiments' scripts, and the benchmark's page shows a result.
    experiments = [p for p in (root / "experiments").rglob("*") if p.suffix in (".py", ".json")]
    # The cache holds the pictures as tools/pictures.py made them.
    makers = (root / "tools").glob("pictures.py")
    for path in sorted([*package, *experiments, *makers, root / "requirements.txt"]):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def makers_key(root: Path) -> str:
    """Hash the extensions, templates and static files that turn the chapters into pages."""
    digest = hashlib.sha256()
    paths = [
        p for folder in ("_ext", "_static", "_templates") for p in (root / folder).rglob("*") if p.is_file()
    ]
    for path in sorted(path for path in paths if "__pycache__" not in path.parts):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def guard_cache(root: Path) -> bool:
    """Drop the executed chapters, and the pages made from them, if the environment is another one.

    Returns whether anything was dropped.
    """
    cache, key = root / CACHE, environment_key(root)
    key_file = cache / KEY_FILE
    if key_file.exists() and key_file.read_text() == key:
        return False
    existed = cache.exists()
    shutil.rmtree(cache, ignore_errors=True)
    # Sphinx would not read a chapter whose own file is unchanged again, and so keep the old output.
    (root / "_build" / ".doctrees" / "environment.pickle").unlink(missing_ok=True)
    cache.mkdir(parents=True)
    key_file.write_text(key)
    return existed


def open_cache(root: Path) -> JupyterCacheBase:
    """Open the cache from which myst-nb takes the executed chapters."""
    return get_cache(str(root / CACHE))


def is_cached(cache: JupyterCacheBase, notebook: nbformat.NotebookNode) -> bool:
    """Tell whether the cache holds this notebook's outputs, under the same cell metadata.

    A record with other metadata is removed: it would be found by its code and bring its old tags along.
    """
    try:
        record = cache.match_cache_notebook(notebook)
        executed = cache.get_cache_bundle(record.pk).nb
    except KeyError:
        return False
    code_cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    same = [cell.metadata for cell in code_cells] == [cell.metadata for cell in executed.cells]
    if not same:
        cache.remove_cache(record.pk)
    return same


def _before_environment(app: Sphinx, config: Config) -> None:
    root, doctrees, pages = Path(app.srcdir), Path(app.doctreedir), Path(app.outdir)
    if guard_cache(root):
        logger.info("xent, the lock or Python changed: every chapter is executed again")
    cache = open_cache(root)
    for path in sorted((root / "chapters").glob("*.ipynb")):
        is_cached(cache, nbformat.read(path, as_version=4))
    complete, parsed = doctrees / COMPLETE, doctrees / "environment.pickle"
    # What makes the pages is not among what Sphinx compares: when it changed, all are made again.
    makers = makers_key(root)
    if not complete.exists() or complete.read_text() != makers:
        parsed.unlink(missing_ok=True)
    complete.unlink(missing_ok=True)
    # Without parsed pages Sphinx writes all pages anew. Only the book's own folder is ever emptied.
    if not parsed.exists() and pages == root / "_build" / "html":
        shutil.rmtree(pages, ignore_errors=True)
        pages.mkdir(parents=True)


def _remove_pages(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    for name in removed:
        (Path(app.outdir) / app.builder.get_target_uri(name)).unlink(missing_ok=True)
    return []


def _after_build(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app._warncount == 0:
        (Path(app.doctreedir) / COMPLETE).write_text(makers_key(Path(app.srcdir)))


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the guards: before Sphinx loads what it parsed last time, and at the end of the build."""
    app.connect("config-inited", _before_environment)
    app.connect("env-get-outdated", _remove_pages)
    app.connect("build-finished", _after_build, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
