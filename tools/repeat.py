"""Execute the book again in other surroundings and compare it byte for byte, pictures included.

    python tools/repeat.py                       every chapter and every page, three times
    python tools/repeat.py --fresh               each time in an environment newly installed from the lock
    python tools/repeat.py chapters/03_*.ipynb   only these chapters, and no pages

Each time the book is copied to another folder and executed there by fresh interpreters with another seed of
the hash function, locale, time zone, home folder, number of threads and set of processor instructions. What
the chapters give must be what is stored, but for the outputs of cells with the tag `nbval-ignore-output`, and
the sites of the first two must be the same files. The last run, which has the instructions of an older
processor, is held to what is printed, not to the pictures. The exit status is 1 where something differs, and
the first such cell of each chapter is shown, and each such page.
"""

from __future__ import annotations

import argparse
import base64
import difflib
import io
import json
import locale
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from book import HTML, is_cached, open_cache
from common import ROOT, say
from execution import cell_name, chapter_paths, read
from notebooks import Json, normal_form

TIMING = "nbval-ignore-output"
# Nothing that was built or installed goes along.
LEFT = shutil.ignore_patterns(
    ".git", ".venv", "_build", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info"
)


@dataclass(frozen=True)
class Surroundings:
    """What must not show in the book."""

    name: str
    folder: str
    threads: int
    seed: str
    zone: str
    locales: tuple[str, ...]  # the first that is installed
    more: dict[str, str] = field(default_factory=dict)
    pictures: bool = True  # whether they are compared

    def locale(self) -> str:
        """Name the locale to use; C is everywhere."""
        before = locale.setlocale(locale.LC_ALL)
        try:
            for name in self.locales:
                try:
                    locale.setlocale(locale.LC_ALL, name)
                except locale.Error:
                    continue
                return name
        finally:
            locale.setlocale(locale.LC_ALL, before)
        return "C"

    def environment(self, root: Path, home: Path) -> dict[str, str]:
        """Return the variables for a process that runs in the copy `root` of the book."""
        mine = {
            "HOME": str(home),
            "MPLCONFIGDIR": str(home / "plots"),
            "LANG": self.locale(),
            "LC_ALL": self.locale(),
            "PYTHONHASHSEED": self.seed,
            "PYTHONPATH": str(root / "code"),
            "TZ": self.zone,
            # Threads that wait sleep: where cores are fewer, they keep each other from work otherwise.
            "OPENBLAS_THREAD_TIMEOUT": "4",
            "OMP_WAIT_POLICY": "passive",
        }
        inherited = {
            name: value for name, value in os.environ.items() if name not in ("LANGUAGE", "XDG_CACHE_HOME")
        }
        return {**inherited, **mine, **self.more}


# An older x86 processor: other kernels in BLAS, PyTorch, oneDNN and NumPy, and so other last bits. Elsewhere
# these say nothing. What is printed has to be the same there too. Pictures of rounding errors are not.
OLDER = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX",
}
ALL = [
    Surroundings("one thread, UTC", "book", 1, "0", "UTC", ("C.UTF-8",)),
    Surroundings(
        "four threads, Kiritimati",
        "another place/é and ü",
        4,
        "20261",
        "Pacific/Kiritimati",
        ("tr_TR.UTF-8", "de_DE.UTF-8", "fr_FR.UTF-8"),
    ),
    Surroundings(
        "two threads, an older processor",
        "b",
        2,
        "77",
        "America/St_Johns",
        ("C",),
        OLDER,
        pictures=False,
    ),
]


def install(root: Path) -> str:
    """Install the lock into an environment of the copy's own; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", ".venv"], cwd=root, check=True)
    python = str(root / ".venv" / "bin" / "python")
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "-r", "requirements.txt"], cwd=root, check=True
    )
    return python


def executed(root: Path, path: Path) -> str:
    """Return the normal form of a chapter with the outputs that the pages of this copy were made from."""
    notebook = read(path)
    cache = open_cache(root)
    if not is_cached(cache, notebook):
        raise SystemExit(f"{path}: was not executed")
    runs = iter(cache.get_cache_bundle(cache.match_cache_notebook(notebook).pk).nb.cells)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = next(runs).outputs
    return normal_form(notebook, path.name)


def shown(output: Json) -> list[str]:
    """Return the lines of an output, its picture left out."""
    parts = [
        output.get("text", []),
        *(v for k, v in output.get("data", {}).items() if not k.startswith("image/")),
    ]
    return [line.rstrip("\n") for part in parts for line in (part if isinstance(part, list) else [str(part)])]


def picture_difference(stored: str, new: str) -> str:
    """Say in how many pixels two pictures differ, and by how much."""
    images = [Image.open(io.BytesIO(base64.b64decode(text))).convert("RGBA") for text in (stored, new)]
    if images[0].size != images[1].size:
        return f"the picture is {images[1].size} pixels large, not {images[0].size}"
    apart = np.abs(np.asarray(images[0], dtype=int) - np.asarray(images[1], dtype=int)).max(axis=2)
    return f"the picture differs in {(apart > 0).sum()} pixels, by up to {apart.max()} of 255"


def differences(stored: str, new: str, name: str, with_pictures: bool = True) -> list[str]:
    """Describe the first cell in which two normal forms of a chapter differ; nothing if they are one text."""
    if stored == new:
        return []
    cells = [json.loads(text)["cells"] for text in (stored, new)]
    if not with_pictures:
        for output in (o for side in cells for cell in side for o in cell.get("outputs", [])):
            output.get("data", {}).pop("image/png", None)
    for index, (old, now) in enumerate(zip(*cells, strict=True)):
        if old == now or TIMING in old["metadata"].get("tags", []):
            continue
        lines = [f"{name}, {cell_name(old, index)}:"]
        if [old[key] for key in ("id", "metadata", "source")] != [
            now[key] for key in ("id", "metadata", "source")
        ]:
            return [*lines, "  the cell itself is stored in another form"]
        texts = [[line for output in cell["outputs"] for line in shown(output)] for cell in (old, now)]
        diff = list(difflib.unified_diff(*texts, "stored", "again", lineterm="", n=0))
        pictures = [
            [
                output["data"]["image/png"]
                for output in cell["outputs"]
                if "image/png" in output.get("data", {})
            ]
            for cell in (old, now)
        ]
        diff += [picture_difference(a, b) for a, b in zip(*pictures, strict=False) if a != b]
        return lines + [f"  {line}" for line in diff[:40] or ["the outputs are in another shape"]]
    return []


def tree(folder: Path) -> dict[str, Path]:
    """Return the files of a site by their names.

    Without Sphinx's note for its next run, which hashes the folders of the themes and so of the environment.
    """
    files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    files.pop(".buildinfo", None)
    return files


def site_differences(first: Path, second: Path) -> list[str]:
    """List the files in which two sites differ, and show the first difference of each."""
    files, others = tree(first), tree(second)
    lines = [f"{name}: is only in one of the two sites" for name in sorted(files.keys() ^ others.keys())]
    for name in files.keys() & others.keys():
        a, b = files[name].read_bytes(), others[name].read_bytes()
        if a != b:
            at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
            near = [text[max(at - 60, 0) : at + 60].decode("utf-8", "replace") for text in (a, b)]
            lines.append(f"{name}, byte {at}:\n    {near[0]!r}\n    {near[1]!r}")
    return sorted(lines)


def repeat(
    surroundings: Surroundings, place: Path, jobs: int, fresh: bool, names: list[str]
) -> tuple[list[str], Path | None]:
    """Execute the book once more; return what differs from the stored chapters, and the site's folder."""
    root, home = place / surroundings.folder, place / f"home of {surroundings.folder[0]}"
    home.mkdir(parents=True)
    shutil.copytree(ROOT, root, ignore=LEFT)
    python = install(root) if fresh else sys.executable
    arguments = ["tools/notebooks.py", *names] if names else ["tools/book.py"]
    command = [python, *arguments, "--jobs", str(jobs), "--threads", str(surroundings.threads)]
    status = subprocess.run(command, cwd=root, env=surroundings.environment(root, home)).returncode
    if status:
        return [f"{' '.join(arguments)} failed (status {status})"], None
    found = []
    for path in [root / name for name in names] or chapter_paths(root):
        stored = (ROOT / path.relative_to(root)).read_text(encoding="utf-8")
        new = path.read_text(encoding="utf-8") if names else executed(root, path)
        found += differences(stored, new, path.name, surroundings.pictures)
    return found, None if names else root / HTML


def report(lines: list[str]) -> int:
    """Print what differs; return how much that is."""
    for line in lines:
        print(line, file=sys.stderr, flush=True)
    return len(lines)


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("chapters", nargs="*", type=Path, help="notebooks (default: all, and the pages)")
    parser.add_argument("--fresh", action="store_true", help="install the lock anew for each")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="chapters executed at once")
    options = parser.parse_args()
    names = [path.resolve().relative_to(ROOT).as_posix() for path in options.chapters]
    found = 0
    sites = []
    with tempfile.TemporaryDirectory(prefix="repeat-") as folder:
        for number, surroundings in enumerate(ALL, 1):
            begin = time.perf_counter()
            say(f"== {number} of {len(ALL)}: {surroundings.name}, locale {surroundings.locale()}")
            lines, site = repeat(surroundings, Path(folder, str(number)), options.jobs, options.fresh, names)
            found += report(lines)
            if site:
                sites.append(site)
            say(f"{time.perf_counter() - begin:.0f} s, {'DIFFERENT' if lines else 'the same'}")
        if len(sites) > 1:
            say("== the pages of the first two")
            found += report(site_differences(*sites[:2]))
    count = len(names) or len(chapter_paths(ROOT))
    what = f"{count} chapter{'s' * (count > 1)}{'' if names else ' and all pages'}"
    say(f"{what}, {len(ALL)} times: {'NOT the same' if found else 'the same, byte for byte'}")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
