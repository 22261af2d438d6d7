"""What `jupyter-book build . -W -n --keep-going`, which is all of `make book`, does for this book besides.

1. Chapters that changed are executed first, in parallel (notebooks.py), and MyST-NB shows what the cache holds. With
   XENT_STORED=1, as in `make test`, the pages show what the notebooks store, which nbval executes and compares.
2. A build that failed fails again. Sphinx warns about a page when it reads it, and would not read it a second
   time; so what it read is kept by a build without a warning only, and while nothing but chapters changes.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from notebooks import chapters, digest, execute

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config

MARK = Path("_build", "complete")
# By these whoever publishes the book says where, if _config.yml does not.
ADDRESSES = ("XENT_REPOSITORY_URL", "XENT_SITE_URL")
SHARED = (
    "_config.yml",
    "conf.py",
    "_toc.yml",
    "_ext",
    "_static",
    "_templates",
    "code",
    "experiments",
    "requirements.txt",
)
SHARED += ("tests/equations", "tests/claims", "chapters/errata.yml", "chapters/references.bib")


def keys(root: Path, stored: str) -> list[str]:
    """Hash what all pages are made from, and the pages' own files."""
    addresses = [os.environ.get(name, "") for name in ADDRESSES]
    return [digest(root, *SHARED), *addresses, stored, digest(root, "index.md", "chapters")]


def is_current(root: Path) -> bool:
    """Tell whether the last build, of either kind, succeeded and nothing that it read has changed since."""
    mark = root / MARK
    return mark.exists() and any(mark.read_text().splitlines() == keys(root, stored) for stored in ("", "1"))


def _begin(app: Sphinx, config: Config) -> None:
    root, mark = Path(app.srcdir), Path(app.srcdir) / MARK
    stored = os.environ.get("XENT_STORED", "")
    app.xent_keys = keys(root, stored)
    if not mark.exists() or mark.read_text().splitlines()[:-1] != app.xent_keys[:-1]:
        for folder in (app.doctreedir, app.outdir):
            shutil.rmtree(folder, ignore_errors=True)
            Path(folder).mkdir(parents=True)
    mark.unlink(missing_ok=True)
    if stored != "1":
        config.nb_execution_mode = "cache"
        config.nb_execution_cache_path = str(execute(root, chapters(root)).path)


def _end(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and not app._warncount:
        (Path(app.srcdir) / MARK).write_text("\n".join(app.xent_keys))


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to the build's beginning and to its end."""
    app.connect("config-inited", _begin)
    app.connect("build-finished", _end, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
