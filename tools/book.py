"""Build the book: execute the stale chapters in parallel, then let Sphinx assemble the pages from the cache.

    python tools/book.py             build _build/html; exit status 1 on any error or warning
    python tools/book.py --status    exit status 0 if _build/html belongs to the files as they are now

The chapters' outputs come from a run in this environment, not from what is stored in the notebooks; `pytest
--nbval` compares the two. Anything that is wrong makes the build fail, and makes it fail again when
repeated: nothing of a failed build is reused (_ext/xent_cache.py).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from common import ONE_THREAD, ROOT, say
from execution import Run, chapter_paths, execute_all, read, report_failures

sys.path.insert(0, str(ROOT / "_ext"))
from jupyter_cache.base import CacheBundleIn

from xent_cache import environment_key, guard_cache, is_cached, open_cache
from xent_site import REPOSITORY, SITE, toc_problems

HTML = Path("_build", "html")
STAMP = Path("_build", "book.json")

# myst-nb gives a line in a notebook as 10000 * (cell + 1) + line.
_PLACE = re.compile(r"(\.ipynb):(\d+)(\d{4})\b")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def inputs_key(root: Path) -> str:
    """Hash every file that can change a page."""
    digest = hashlib.sha256(environment_key(root).encode())
    digest.update("".join(f"{name}={os.environ.get(name, '')}\n" for name in (REPOSITORY, SITE)).encode())
    files = [root / "_config.yml", root / "_toc.yml", root / "index.md"]
    for folder in ("chapters", "_ext", "_static", "_templates", "tests/equations", "tools"):
        files += [p for p in (root / folder).rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    for path in sorted(set(files)):
        if path.exists() and ".ipynb_checkpoints" not in path.parts:
            digest.update(path.relative_to(root).as_posix().encode() + b"\0")
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def is_current(root: Path) -> bool:
    """Tell whether the last build succeeded and nothing that it read has changed since."""
    try:
        stamp = json.loads((root / STAMP).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return False
    return (root / HTML / "index.html").exists() and stamp == {"inputs": inputs_key(root)}


def execute_stale(root: Path, jobs: int | None, threads: int) -> int:
    """Execute the chapters that the cache does not hold; return how many failed."""
    guard_cache(root)
    cache = open_cache(root)
    paths = chapter_paths(root)
    stale = [path for path in paths if not is_cached(cache, read(path))]
    if len(stale) < len(paths):
        say(f"{len(paths) - len(stale)} of {len(paths)} chapters unchanged since they were executed")

    def keep(run: Run) -> None:
        if run.error is None:
            data = {"execution_seconds": run.seconds}
            bundle = CacheBundleIn(run.notebook, str(run.path), data=data)
            cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)

    return report_failures(execute_all(stale, jobs=jobs, threads=threads, done=keep))


def tidy(line: str, root: Path) -> str:
    """Make a message short and say where a person finds the place: the file from here, the cell, the line."""
    line = _COLOUR.sub("", line).replace(f"{root}{os.sep}", "")
    return _PLACE.sub(lambda m: f"{m[1]}, cell {int(m[2])}, line {max(int(m[3]) - 1, 1)}", line)


def assemble(root: Path) -> int:
    """Run Sphinx through Jupyter Book, every warning an error, and return its exit status."""
    command = [
        sys.executable,
        "-c",
        "from jupyter_book.cli.main import main; main()",
        *("build", ".", "-W", "-n", "--keep-going", "-q"),
    ]
    environment = {**os.environ, **ONE_THREAD, "PYTHONUNBUFFERED": "1"}
    # Warnings and errors come on stderr; on stdout there are only Jupyter Book's banners.
    process = subprocess.Popen(
        command, cwd=root, env=environment, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    for line in process.stderr:
        print(tidy(line, root), end="", file=sys.stderr, flush=True)
    return process.wait()


def build(root: Path, jobs: int | None, threads: int = 1) -> int:
    """Build the book and return the exit status."""
    begin = time.perf_counter()
    (root / STAMP).unlink(missing_ok=True)
    problems = toc_problems(root)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if problems or execute_stale(root, jobs, threads):
        print("\nThe book was not built; see the errors above.", file=sys.stderr)
        return 1
    # Before Sphinx reads the files, so that an edit during the build makes the result stale, not current.
    key = inputs_key(root)
    say("assembling the pages")
    status = assemble(root)
    if status:
        print("\nThe book was not built; see the messages above.", file=sys.stderr)
        return 1
    (root / STAMP).write_text(json.dumps({"inputs": key}) + "\n")
    page = (root / HTML / "index.html").resolve()
    say(f"built in {time.perf_counter() - begin:.1f} s: open {page.as_uri()}  (or run 'make serve')")
    return 0


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="the book's folder")
    parser.add_argument("--jobs", type=int, help="chapters executed at once (default: the number of cores)")
    parser.add_argument("--status", action="store_true", help="only say whether the built book is current")
    parser.add_argument("--threads", type=int, default=1, help="threads a chapter may use (default: 1)")
    arguments = parser.parse_args()
    root: Path = arguments.root.resolve()
    if arguments.status:
        current = is_current(root)
        say("_build/html is current" if current else "_build/html is missing or out of date")
        return 0 if current else 1
    return build(root, arguments.jobs, arguments.threads)


if __name__ == "__main__":
    raise SystemExit(main())
