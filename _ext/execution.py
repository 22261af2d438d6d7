"""What the build's memory follows from: MyST-NB's cache of executed chapters, and the pages that Sphinx has read.

MyST-NB executes what its cache does not hold. With XENT_STORED=1, as in `make test`, the pages show what the notebooks
store, which nbval executes and compares. A build that failed fails again: Sphinx warns of a page when it reads it, and
would not read it a second time; so a build without a warning only leaves a mark, by which the next one keeps the pages.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from notebooks import cache_of, digest

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config

MARK = Path("_build", "complete")
# By these whoever publishes the book says where, if _config.yml does not.
ADDRESSES = ("XENT_REPOSITORY_URL", "XENT_SITE_URL")
SHARED = (
    "_config.yml conf.py _toc.yml _ext _static _templates code experiments requirements.txt tests/equations"
)
SHARED += " tests/claims chapters/errata.yml chapters/references.bib"


def keys(root: Path, stored: str) -> list[str]:
    """Hash what all pages are made from, and the pages' own files."""
    addresses = [os.environ.get(name, "") for name in ADDRESSES]
    return [digest(root, *SHARED.split()), *addresses, stored, digest(root, "index.md", "chapters")]


def left(root: Path) -> list[str]:
    """Return the keys of the last build, if it succeeded."""
    return (root / MARK).read_text().splitlines() if (root / MARK).exists() else []


def is_current(root: Path) -> bool:
    """Tell whether the last build, of either kind, succeeded and nothing that it read has changed since."""
    return left(root) in (keys(root, ""), keys(root, "1"))


def begin(app: Sphinx, config: Config) -> None:
    """Forget the pages where what is shared by all has changed, or the last build failed."""
    root, stored = Path(app.srcdir), os.environ.get("XENT_STORED", "")
    app.xent_keys = keys(root, stored)
    if left(root)[:-1] != app.xent_keys[:-1]:
        for folder in (app.doctreedir, app.outdir):
            shutil.rmtree(folder, ignore_errors=True)
            Path(folder).mkdir(parents=True)
    (root / MARK).unlink(missing_ok=True)
    config.nb_execution_mode = "off" if stored == "1" else "cache"
    config.nb_execution_cache_path = str(cache_of(root))


def end(app: Sphinx, exception: Exception | None) -> None:
    """Leave the mark."""
    if exception is None and not app._warncount:
        (Path(app.srcdir) / MARK).write_text("\n".join(app.xent_keys))


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to the build's beginning and to its end."""
    app.connect("config-inited", begin)
    app.connect("build-finished", end, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
