"""Execute the chapters in parallel, keep what they showed, and store it in the notebooks.

    python _ext/notebooks.py                        execute what changed, store every chapter's outputs
    python _ext/notebooks.py chapters/01_*.ipynb    only these

A chapter's outputs lie in `_build/executed`, with a key of all that they follow from: its code cells, the
package, the experiments, the lock and Python. With another key the chapter is executed again. Prose, tags and
alternative texts are no part of the key, and always those of the file.

With XENT_STORED=1 in the environment, as in `make test`, a chapter whose key is another is not executed here: its pages
show the outputs that the notebook stores, which nbval executes again and compares.

The stored form holds nothing that changes from run to run: no timestamps, nothing that an editor left in the
metadata, cells numbered from one. Storing an unchanged chapter again is an empty `git diff`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent
CELL_TIMEOUT = 240
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# What an author writes; everything else in a cell's metadata was left there by an editor.
CELL_METADATA = ("tags", "mystnb")


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


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """List the cells that have outputs."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kept(path: Path) -> Path:
    """Where the outputs of a chapter's last run lie."""
    return path.parent.parent / "_build" / "executed" / f"{path.stem}.json"


def fill(path: Path, notebook: NotebookNode) -> NotebookNode:
    """Give a chapter's code cells the outputs of its last run."""
    notebook.metadata = METADATA
    outputs = json.loads(kept(path).read_text(encoding="utf-8"))["outputs"]
    for cell, shown in zip(code_cells(notebook), outputs, strict=True):
        cell.outputs = nbformat.from_dict(shown)
    return notebook


def cell_name(cell: dict[str, Any], index: int) -> str:
    """Name a cell as a person finds it: its place among all cells, and how it begins."""
    lines = "".join(cell["source"]).strip().splitlines()
    return f"cell {index + 1}" + (f" ({lines[0][:60]!r})" if lines else "")


async def _execute(path: Path, key: str, turn: asyncio.Semaphore) -> str | None:
    """Execute one chapter in its own folder; return what went wrong, and where."""
    notebook = nbformat.read(path, as_version=4)
    current = 0

    def started(cell: NotebookNode, cell_index: int) -> None:
        nonlocal current
        current = cell_index

    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT,
        kernel_name="python3",
        record_timing=False,
        # A kernel under load sends one print in pieces; the page would show line breaks between them.
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
        on_cell_start=started,
        # A kernel that listens on this machine only warns about its unencrypted port at every start.
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
    )
    async with turn:
        begin = time.perf_counter()
        try:
            await client.async_execute()
        except CellExecutionError as failure:
            trace = re.sub(r"\x1b\[[0-9;]*m", "", failure.traceback).strip()
            line = re.search(r"Cell In\[\d+\], line (\d+)", trace)
            said = f"{f', line {line[1]}' if line else ''}: {failure.ename}: {failure.evalue}\n{trace}"
        except CellTimeoutError:
            said = f": ran for more than {CELL_TIMEOUT} s"
        except DeadKernelError:
            said = ": the kernel died (out of memory?)"
        else:
            shown = [cell.outputs for cell in code_cells(notebook)]
            kept(path).write_text(json.dumps({"key": key, "outputs": shown}), encoding="utf-8")
            print(f"  {path.stem}: {time.perf_counter() - begin:.1f} s", flush=True)
            return None
    return f"chapters/{path.name}, {cell_name(notebook.cells[current], current)}{said}"


def execute(root: Path, paths: Iterable[Path] | None = None) -> list[str]:
    """Execute the chapters whose kept outputs are of another key; return what went wrong."""
    surroundings = digest(root, "code", "experiments", "requirements.txt") + sys.version
    stored = paths is None and os.environ.get("XENT_STORED") == "1"
    stale = []
    for path in chapters(root) if paths is None else paths:
        cells = code_cells(nbformat.read(path, as_version=4))
        key = hashlib.sha256(json.dumps([surroundings, [cell.source for cell in cells]]).encode()).hexdigest()
        have = json.loads(kept(path).read_text(encoding="utf-8")) if kept(path).exists() else {"key": ""}
        if have["key"] == key:
            continue
        kept(path).parent.mkdir(parents=True, exist_ok=True)
        if not stored:
            stale.append((path, key))
        elif have != (as_stored := {"key": "stored", "outputs": [cell.outputs for cell in cells]}):
            kept(path).write_text(json.dumps(as_stored), encoding="utf-8")

    async def run() -> list[str | None]:
        turn = asyncio.Semaphore(int(os.environ.get("JOBS") or os.cpu_count() or 1))
        return await asyncio.gather(*(_execute(path, key, turn) for path, key in stale))

    if stale:
        print(f"executing {len(stale)} of {len(chapters(root))} chapters", flush=True)
    return [problem for problem in asyncio.run(run()) if problem]


def normal_form(notebook: NotebookNode) -> str:
    """Return the one text in which a chapter with these cells and outputs is stored."""
    notebook.metadata = METADATA
    for cell in notebook.cells:
        cell.metadata = {name: cell.metadata[name] for name in CELL_METADATA if cell.metadata.get(name)}
    for count, cell in enumerate(code_cells(notebook), 1):
        cell.execution_count = count
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count
            for kind, value in output.get("data", {}).items():
                if kind == "image/png":
                    output.data[kind] = value.replace("\n", "")
                elif kind == "image/svg+xml":
                    # One line, or two thirds of a notebook would be the coordinates of its curves.
                    output.data[kind] = " ".join(value.split())
                elif isinstance(value, str):
                    output.data[kind] = value.splitlines(keepends=True)
    return nbformat.writes(notebook) + "\n"


def main(names: list[str]) -> int:
    """Execute and store the chapters named, or all."""
    paths = [Path(name).resolve() for name in names] or chapters(ROOT)
    problems = execute(ROOT, paths)
    for problem in problems:
        print(f"error: {problem}\n", file=sys.stderr)
    if problems:
        return 1
    for path in paths:
        text = normal_form(fill(path, nbformat.read(path, as_version=4)))
        if path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"{path.name}: changed")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
