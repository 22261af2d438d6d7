"""Execute the chapters that the build's cache does not hold, and store what they showed in the notebooks.

    python _ext/notebooks.py                        every chapter
    python _ext/notebooks.py chapters/01_*.ipynb    only these

jupyter-cache asks for a chapter's code cells and their tags; what else they follow from, the package, the experiments,
the lock and Python, is in the cache's name. The stored form holds nothing that changes from run to run or with another
cell: no timestamps, one count for all, no digits of a drawing that nobody sees, nothing that an editor left in the
metadata. Storing an unchanged chapter again is an empty `git diff`.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

import nbformat
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent
CELL_TIMEOUT = 240
# Every cell's, so that a new one renumbers none; without a number nbval takes a cell for one that never ran.
COUNT = 1
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# What an author writes; everything else in a cell's metadata was left there by an editor.
CELL_METADATA = ("tags", "mystnb")
# A kernel that listens on this machine only warns about its unencrypted port at every start.
NotebookClient.extra_arguments.default_args = (["--IPKernelApp.log_level=ERROR"],)

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
PLACES = re.compile(r'(?<= )(d|x|y|width|height|viewBox|points|transform)="([^"]*)"')
# Matplotlib names a path after all of its digits.
NAMED = re.compile(r'(?<=[#"])([A-Za-z])[0-9a-f]{10}\b')


def digest(root: Path, *names: str) -> str:
    """Hash files, and folders with all that is in them and was not made by a program."""
    whole = hashlib.sha256()
    for path in sorted(path for name in names for path in (root / name, *(root / name).rglob("*"))):
        parts = path.relative_to(root).parts
        made = any(part == "__pycache__" or part.endswith(".egg-info") or part[0] == "." for part in parts)
        if path.is_file() and not made:
            whole.update(f"{'/'.join(parts)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}".encode())
    return whole.hexdigest()


def cache_of(root: Path) -> Path:
    """Return the folder of the cache for all that the chapters import, read and run on."""
    followed = digest(root, "code", "experiments", "requirements.txt") + sys.version
    return root / "_build" / "cache" / hashlib.sha256(followed.encode()).hexdigest()[:12]


def chapters(root: Path) -> list[Path]:
    """Return the chapters on disk, in order."""
    return sorted((root / "chapters").glob("*.ipynb"))


def quiet(drawing: str) -> str:
    """Put a drawing on one line, places to a hundredth of a point, no zero below zero, names by their turn."""

    def rounded(number: re.Match[str]) -> str:
        text = f"{float(number[0]):.2f}".rstrip("0").rstrip(".")
        return "0" if text == "-0" else text

    turns: dict[str, str] = {}
    text = NAMED.sub(lambda m: turns.setdefault(m[0], f"{m[1]}{len(turns)}"), " ".join(drawing.split()))
    return PLACES.sub(lambda m: f'{m[1]}="{NUMBER.sub(rounded, m[2])}"', text)


def normal_form(notebook: NotebookNode) -> str:
    """Return the one text in which a chapter with these cells and outputs is stored."""
    notebook.metadata = METADATA
    for cell in notebook.cells:
        cell.metadata = {name: cell.metadata[name] for name in CELL_METADATA if cell.metadata.get(name)}
    for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
        cell.execution_count = COUNT
        outputs: list[NotebookNode] = []
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = COUNT
            # A kernel under load sends one print in pieces; what a cell prints is one output, as on its page.
            first = next((one for one in outputs if "name" in one and one.name == output.get("name")), None)
            if first:
                first.text += output.text
            else:
                outputs.append(output)
            for kind, value in output.get("data", {}).items():
                if kind == "image/png":
                    output.data[kind] = value.replace("\n", "")
                elif kind == "image/svg+xml":
                    output.data[kind] = quiet(value)
                elif isinstance(value, str):
                    output.data[kind] = value.splitlines(keepends=True)
        cell.outputs = outputs
    return nbformat.writes(notebook) + "\n"


def main(names: list[str]) -> None:
    """Execute and store the chapters named, or all."""
    cache = get_cache(cache_of(ROOT))
    for path in [Path(name).resolve() for name in names] or chapters(ROOT):
        notebook = nbformat.read(path, as_version=4)
        try:
            notebook = cache.merge_match_into_notebook(notebook)[1]
        except KeyError:
            print(f"executing {path.name}", flush=True)
            NotebookClient(notebook, CELL_TIMEOUT, resources={"metadata": {"path": path.parent}}).execute()
            cache.cache_notebook_bundle(
                CacheBundleIn(notebook, str(path)), check_validity=False, overwrite=True
            )
        text = normal_form(notebook)
        if path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"{path.name}: changed")


if __name__ == "__main__":
    main(sys.argv[1:])
