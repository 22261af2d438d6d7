"""Find the chapters and execute them, in parallel, each in a kernel of its own."""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from common import CELL_TIMEOUT, say, threads_environment
from pictures import small_pictures

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Run:
    """One chapter's execution: the notebook with outputs, or what went wrong and where."""

    path: Path
    notebook: nbformat.NotebookNode
    seconds: float
    error: str | None = None
    traceback: str = ""


def chapter_paths(root: Path) -> list[Path]:
    """List the chapters on disk, in order."""
    return sorted((root / "chapters").glob("*.ipynb"))


def read(path: Path) -> nbformat.NotebookNode:
    """Read a notebook; say which file it was if that fails."""
    try:
        return nbformat.read(path, as_version=4)
    except Exception as error:
        raise SystemExit(f"{path}: not a notebook: {error}") from error


def cell_name(cell: dict[str, Any], index: int) -> str:
    """Name a cell as a person finds it: its place among all cells, and how it begins."""
    lines = [line for line in "".join(cell["source"]).splitlines() if line.strip()]
    begins = f" ({lines[0].strip()[:60]!r})" if lines else ""
    return f"cell {index + 1}{begins}"


def execute(path: Path, timeout: int = CELL_TIMEOUT) -> Run:
    """Execute one notebook from top to bottom in its own folder."""
    notebook = read(path)
    current = 0

    def started(cell: nbformat.NotebookNode, cell_index: int) -> None:
        nonlocal current
        current = cell_index

    client = NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        record_timing=False,
        # A kernel under load sends one print in pieces. myst-nb would join them with line breaks in between.
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
        on_cell_start=started,
        # A kernel that listens on this machine only warns about its unencrypted port at every start.
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
    )
    begin = time.perf_counter()
    error, traceback = None, ""
    try:
        client.execute()
    except CellExecutionError as failure:
        error = f"{failure.ename}: {_COLOUR.sub('', failure.evalue)}"
        traceback = _COLOUR.sub("", failure.traceback)
    except CellTimeoutError:
        error = f"the cell ran for more than {timeout} s"
    except DeadKernelError:
        error = "the kernel died (out of memory?)"
    seconds = time.perf_counter() - begin
    # Here, so that the pages show the same pictures as the notebooks store.
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        if "data" in output:
            output["data"].update(small_pictures(output["data"]))
    if error:
        error = f"{path.parent.name}/{path.name}, {cell_name(notebook.cells[current], current)}: {error}"
    return Run(path, notebook, seconds, error, traceback)


def execute_all(
    paths: Sequence[Path],
    *,
    jobs: int | None = None,
    threads: int = 1,
    done: Callable[[Run], None] | None = None,
) -> list[Run]:
    """Execute chapters over the cores, a progress line for each, and return the runs in the order given."""
    if not paths:
        return []
    jobs = min(jobs or os.cpu_count() or 1, len(paths))
    os.environ.update(threads_environment(threads))
    say(f"executing {len(paths)} chapter{'s' * (len(paths) > 1)} on {jobs} core{'s' * (jobs > 1)}")
    runs: dict[Path, Run] = {}
    # Fresh interpreters, because a fork would copy the event loops and locks of whatever was imported here.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(execute, path) for path in paths]):
            run = future.result()
            runs[run.path] = run
            outcome = "FAILED" if run.error else f"{run.seconds:.1f} s"
            say(f"[{len(runs)}/{len(paths)}] {run.path.stem}  {outcome}")
            if done:
                done(run)
    return [runs[path] for path in paths]


def report_failures(runs: Sequence[Run]) -> int:
    """Print each failed run, cell and error first, and return how many there are."""
    failed = [run for run in runs if run.error]
    for run in failed:
        print(f"\nerror: {run.error}", file=sys.stderr)
        if run.traceback:
            print(run.traceback.rstrip(), file=sys.stderr)
    return len(failed)
