"""Execute the chapters by jupyter-cache, in parallel, and store what they showed in the notebooks.

    python _ext/notebooks.py                        execute what changed, store every chapter's outputs
    python _ext/notebooks.py chapters/01_*.ipynb    only these

jupyter-cache asks for a chapter's code cells and their tags; what else they follow from, the package, the experiments,
the lock and Python, is in the cache's name. The build (execution.py) shows what the cache holds.

The stored form holds nothing that changes from run to run or with another cell: no timestamps, one count for all, no
digits of a drawing that nobody sees, nothing that an editor left in the metadata. Storing an unchanged chapter again
is an empty `git diff`.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import nbformat
from jupyter_cache import get_cache
from jupyter_cache.base import JupyterCacheAbstract
from jupyter_cache.executors import load_executor
from nbclient import NotebookClient
from nbformat import NotebookNode

from quiet_drawings import quiet

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


def digest(root: Path, *names: str) -> str:
    """Hash files, and folders with all that is in them and was not made by a program."""
    files = [
        path
        for name in names
        for path in ((root / name).rglob("*") if (root / name).is_dir() else (root / name,))
        if path.is_file()
    ]
    whole = hashlib.sha256()
    for path in sorted(files):
        parts = path.relative_to(root).parts
        if not any(part == "__pycache__" or part.endswith(".egg-info") or part[0] == "." for part in parts):
            whole.update(f"{'/'.join(parts)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}".encode())
    return whole.hexdigest()


def chapters(root: Path) -> list[Path]:
    """List the chapters on disk, in order."""
    return sorted((root / "chapters").glob("*.ipynb"))


def execute(root: Path, paths: Iterable[Path]) -> JupyterCacheAbstract:
    """Execute those of these chapters that the cache does not hold; where one fails, say so and end."""
    key = hashlib.sha256((digest(root, "code", "experiments", "requirements.txt") + sys.version).encode())
    cache = get_cache(root / "_build" / "cache" / key.hexdigest()[:12])
    for record in cache.list_project_records():  # one of them may be gone
        cache.remove_nb_from_project(record.pk)
    for path in paths:
        cache.add_nb_to_project(str(path))
    if stale := cache.list_unexecuted():
        print(f"executing {len(stale)} of {len(cache.list_project_records())} chapters", flush=True)
        done = load_executor("local-parallel", cache).run_and_cache(timeout=CELL_TIMEOUT)
        failed = [cache.get_project_record(name) for name in (*done.excepted, *done.errored)]
        if failed:
            said = (f"error: {record.uri}\n{record.traceback or 'the kernel died'}" for record in failed)
            raise SystemExit(re.sub(r"\x1b\[[0-9;]*m", "", "\n\n".join(said)))
    return cache


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
    paths = [Path(name).resolve() for name in names] or chapters(ROOT)
    cache = execute(ROOT, paths)
    for path in paths:
        text = normal_form(cache.merge_match_into_notebook(nbformat.read(path, as_version=4))[1])
        if path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"{path.name}: changed")


if __name__ == "__main__":
    main(sys.argv[1:])
