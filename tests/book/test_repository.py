"""Rules on the repository's files that no other tool looks at."""

from __future__ import annotations

import doctest
import re
import subprocess
from pathlib import Path

import pytest
import sphinxcontrib.katex

ROOT = Path(__file__).resolve().parents[2]

# With empty groups in them, so that this file keeps its own rule.
FORBIDDEN = {
    "a path of somebody's machine": r"/(?:ho()me|Us()ers|ro()ot)/\w|/tm()p/venv|[(\s\"'`]/wo()rk/\w",
    "a registry": r"\b(?:py()pi|pythonhos()ted|npm()js|crat()es)\.(?:org|com|io)\b|download\.py()torch",
    "a merge conflict": r"(?m)^(?:<{7}|>{7}) ",
}


def tracked_files() -> list[Path]:
    """List the files under version control, and those that are about to be."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("no version control here")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


@pytest.mark.parametrize("rule", FORBIDDEN)
def test_no_file_names(rule: str) -> None:
    found = []
    for path in tracked_files():
        for match in re.finditer(FORBIDDEN[rule], text_of(path)):
            line = match.string.count("\n", 0, match.start()) + 1
            found.append(f"{path.relative_to(ROOT)}:{line}: {match.group()!r}")
    assert found == []


def test_katex_style_sheet_is_that_of_the_renderer() -> None:
    shipped = re.search(
        r'\.katex-version:after\{content:"([\d.]+)"\}', text_of(ROOT / "_static/katex/katex.min.css")
    )
    assert shipped is not None and shipped[1] == sphinxcontrib.katex.katex_version


def test_the_examples_of_the_readme_run() -> None:
    failed, tried = doctest.testfile(str(ROOT / "README.md"), module_relative=False)
    assert (failed, tried > 0) == (0, True)


def test_the_lock_installs_anywhere() -> None:
    lock = text_of(ROOT / "requirements.txt")
    pins = [line for line in lock.splitlines() if line != "-e ." and not line.startswith("#")]
    assert "\n-e .\n" in lock and pins
    assert [line for line in pins if not re.fullmatch(r"[\w.-]+==[\w.!]+( ; .+)?", line)] == []
    # The libraries of one kind of GPU come with torch's build for it.
    assert [line for line in pins if re.match(r"nvidia|cuda|triton", line)] == []


@pytest.mark.parametrize("workflow", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_an_action_is_pinned_by_its_hash(workflow: Path) -> None:
    used = re.findall(r"uses: *([^.\s].*)", text_of(workflow))
    assert [line for line in used if not re.fullmatch(r"\S+@[0-9a-f]{40} # v[\d.]+", line)] == []
