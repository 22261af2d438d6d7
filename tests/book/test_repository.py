"""Rules on the repository's files that no other tool looks at, and what of other projects it reaches into."""

from __future__ import annotations

import doctest
import hashlib
import re
import subprocess
from pathlib import Path

import pydata_sphinx_theme
import pytest
import sphinxcontrib.katex

import light_pages

ROOT = Path(__file__).resolve().parents[2]

# With brackets in them, so that this file keeps its own rule.
FORBIDDEN = {
    "a path of somebody's machine": r"/(ho[m]e|Us[e]rs|ro[o]t)/\w|/tm[p]/venv|(^|[(\"'`[:space:]])/wo[r]k/\w",
    "a registry": r"\b(py[p]i|pythonhos[t]ed|npm[j]s|crat[e]s)\.(org|com|io)\b|download\.py[t]orch",
    "a merge conflict": "^(<{7}|>{7}) ",
}


@pytest.mark.parametrize("rule", FORBIDDEN)
def test_no_file_names(rule: str) -> None:
    """Neither those under version control nor those that are about to be."""
    command = ["git", "grep", "--untracked", "-nIoE", FORBIDDEN[rule]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode > 1:
        pytest.skip("no version control here")
    assert done.stdout == ""


def test_katex_style_sheet_is_that_of_the_renderer() -> None:
    sheet = (ROOT / "_static/katex/katex.min.css").read_text("utf-8")
    assert f'.katex-version:after{{content:"{sphinxcontrib.katex.katex_version}"}}' in sheet


def test_the_examples_of_the_readme_run() -> None:
    failed, tried = doctest.testfile(str(ROOT / "README.md"), module_relative=False)
    assert (failed, tried > 0) == (0, True)


def test_the_lock_installs_anywhere() -> None:
    lock = (ROOT / "requirements.txt").read_text("utf-8")
    pins = [line for line in lock.splitlines() if line != "-e ." and not line.startswith("#")]
    assert "\n-e .\n" in lock and pins
    assert [line for line in pins if not re.fullmatch(r"[\w.-]+==[\w.!]+( ; .+)?", line)] == []
    # The libraries of one kind of GPU come with torch's build for it.
    assert [line for line in pins if re.match(r"nvidia|cuda|triton", line)] == []


def test_the_theme_s_own_parts_are_those_that_ours_replace() -> None:
    """Where this fails after an upgrade, read what it names beside ours, mend ours, and write the new state here."""
    theme = Path(pydata_sphinx_theme.__file__).parent / "theme" / "pydata_sphinx_theme"
    macros = (theme / "static" / "webpack-macros.html").read_bytes()
    assert hashlib.sha256(macros).hexdigest()[:12] == "0db474a78911", "_templates/static/webpack-macros.html"
    sheets = [theme / "static" / f"{name}.css" for name in light_pages.THEME if name != "basic"]
    assert [path for path in sheets if not path.exists()] == [], "light_pages.THEME"
    assert (theme / "components" / "search-field.html").exists(), "_templates/search.html"
