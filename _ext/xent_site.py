"""What `_config.yml` cannot say: the repository setting, the check of the contents, the page for a 404."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from sphinx.util import logging

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx
    from sphinx.config import Config

logger = logging.getLogger(__name__)


def toc_documents(root: Path) -> list[str]:
    """List the documents that `_toc.yml` names, without their endings, in its order."""

    def files(entry: object) -> Iterator[str]:
        if isinstance(entry, dict):
            for key, value in entry.items():
                if key in ("root", "file") and isinstance(value, str):
                    yield str(Path(value).with_suffix("")) if value.endswith((".md", ".ipynb")) else value
                elif key != "numbered":
                    yield from files(value)
        elif isinstance(entry, list):
            for item in entry:
                yield from files(item)

    return list(files(yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))))


def toc_problems(root: Path) -> list[str]:
    """Compare the pages on disk with the table of contents, both ways."""
    listed = toc_documents(root)
    on_disk = {
        path.relative_to(root).with_suffix("").as_posix(): path.relative_to(root).as_posix()
        for path in sorted((root / "chapters").glob("*"))
        if path.suffix in (".ipynb", ".md")
    }
    problems = [
        f"{on_disk[name]}: this page is not in _toc.yml, so no reader would find it"
        for name in on_disk
        if name not in listed
    ]
    problems += [
        f"_toc.yml: lists '{name}', but there is no {name}.ipynb and no {name}.md"
        for name in listed
        if not any((root / (name + suffix)).exists() for suffix in (".ipynb", ".md"))
    ]
    problems += [f"_toc.yml: lists '{name}' twice" for name in sorted(set(listed)) if listed.count(name) > 1]
    return problems


def _configure(app: Sphinx, config: Config) -> None:
    for problem in toc_problems(Path(app.srcdir)):
        logger.warning(problem, type="toc")
    options = config.html_theme_options
    # One setting, `repository: url:` in _config.yml, switches on everything that needs an address.
    if options.get("repository_url"):
        options.update(use_repository_button=True, use_issues_button=True, use_edit_page_button=True)
    else:
        options["launch_buttons"] = {}


def _pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    yield "404", {}, "404.html"


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to the build."""
    # Jupyter Book sets this for the extension sphinx_comments, which the book does not load.
    app.add_config_value("comments_config", {}, "")
    app.connect("config-inited", _configure)
    app.connect("html-collect-pages", _pages)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
