"""Execute the chapters in place and store them in the normal form, or check that they are in it.

    python tools/notebooks.py                       execute every chapter and store its outputs
    python tools/notebooks.py chapters/01_*.ipynb   only these
    python tools/notebooks.py --check               check the stored form, execute nothing
    python tools/notebooks.py from-md draft.md chapters/NN_name.ipynb
                                                    make a chapter of a MyST Markdown draft and execute it

The normal form holds nothing that changes from run to run: no timestamps, no machine's metadata, cells with
stable ids, outputs in a fixed shape, small pictures, one line of JSON for each line of source. Executing an
unchanged chapter again is an empty `git diff`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import jupytext

from common import ROOT, say
from execution import Run, cell_name, chapter_paths, execute_all, report_failures
from pictures import small_pictures

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# What an author writes; everything else in a cell's metadata was left there by an editor.
CELL_METADATA = ("tags", "mystnb")
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

Json = dict[str, Any]


def lines(text: str | list[str]) -> list[str]:
    """Split text into the list of lines, endings kept, that the notebook format stores."""
    return ("".join(text) if isinstance(text, list) else text).splitlines(keepends=True)


def mime_bundle(data: Json) -> Json:
    """Normalise the representations of one output; pictures become small and lose the encoders' newline."""
    normal: Json = {}
    for kind, value in sorted(small_pictures(data).items()):
        if kind.startswith("image/") and kind != "image/svg+xml":
            normal[kind] = "".join(value).replace("\n", "")
        elif isinstance(value, (str, list)):
            normal[kind] = lines(value)
        else:
            normal[kind] = value
    return normal


def outputs(cell: Json, count: int, where: str) -> list[Json]:
    """Normalise a code cell's outputs: one stream for all that it printed, then the rest in their order."""
    printed = ""
    normal: list[Json] = []
    for output in cell.get("outputs", []):
        kind = output["output_type"]
        if kind == "error":
            raise ValueError(f"{where}: the stored output is an error: {output['ename']}: {output['evalue']}")
        if kind == "stream":
            text = "".join(output["text"])
            if output["name"] == "stderr":
                raise ValueError(f"{where}: writes to stderr: {text.strip()[:300]}")
            if not printed:
                normal.append({"name": "stdout", "output_type": "stream", "text": []})
            printed += text
            continue
        entry = {
            "data": mime_bundle(output["data"]),
            "metadata": dict(output.get("metadata", {})),
            "output_type": kind,
        }
        if kind == "execute_result":
            entry["execution_count"] = count
        normal.append(entry)
    for entry in normal:
        if entry["output_type"] == "stream":
            entry["text"] = lines(printed)
    return normal


def normal_form(notebook: Json, name: str = "notebook") -> str:
    """Return the one text in which this notebook, with its outputs, is stored.

    Raises ValueError, naming the cell, for an output that a chapter must not have.
    """
    cells: list[Json] = []
    taken: set[str] = set()
    count = 0
    for index, cell in enumerate(notebook["cells"]):
        kind, source = cell["cell_type"], lines(cell["source"])
        where = f"{name}, {cell_name(cell, index)}"
        identity = cell.get("id", "")
        if not _ID.fullmatch(identity) or identity in taken:
            identity = new_id(kind, "".join(source), taken)
        taken.add(identity)
        normal: Json = {
            "cell_type": kind,
            "id": identity,
            "metadata": {key: cell["metadata"][key] for key in CELL_METADATA if cell["metadata"].get(key)},
            "source": source,
        }
        if cell.get("attachments"):
            raise ValueError(f"{where}: holds an attachment; put the file beside the chapter")
        if kind == "code":
            count += 1
            normal |= {"execution_count": count, "outputs": outputs(cell, count, where)}
        cells.append(normal)
    whole = {"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def new_id(kind: str, source: str, taken: set[str]) -> str:
    """Make an id that follows from the cell's content; equal cells are counted."""
    digest = hashlib.sha256(f"{kind}\n{source}".encode()).hexdigest()[:8]
    identity, repeat = digest, 1
    while identity in taken:
        repeat += 1
        identity = f"{digest}-{repeat}"
    return identity


def check(path: Path) -> list[str]:
    """List how a stored chapter departs from the normal form, without executing it."""
    text = path.read_text(encoding="utf-8")
    name = f"{path.parent.name}/{path.name}"
    try:
        normal = normal_form(json.loads(text), name)
    except (ValueError, KeyError) as error:
        return [str(error)]
    if normal == text:
        return []
    for number, (stored, wanted) in enumerate(zip(text.splitlines(), normal.splitlines(), strict=False), 1):
        if stored != wanted:
            return [f"{name}:{number}: not in the normal form (run 'make notebooks'): {stored.strip()[:80]}"]
    return [f"{name}: not in the normal form (run 'make notebooks')"]


def store(runs: list[Run]) -> int:
    """Write the executed chapters that have a normal form; return how many do not."""
    failed = report_failures(runs)
    for run in runs:
        if run.error is None:
            try:
                text = normal_form(run.notebook, f"{run.path.parent.name}/{run.path.name}")
            except ValueError as error:
                print(f"error: {error}", file=sys.stderr)
                failed += 1
                continue
            changed = run.path.read_text(encoding="utf-8") != text
            run.path.write_text(text, encoding="utf-8")
            say(f"{run.path.stem}: {'outputs changed' if changed else 'unchanged'}")
    return failed


def from_markdown(draft: Path, chapter: Path, jobs: int | None) -> int:
    """Turn a MyST Markdown draft into a chapter, with ids that follow from the cells, and execute it."""
    notebook = jupytext.read(draft, fmt="md:myst")
    # jupytext draws random ids; without them the normal form makes its own.
    for cell in notebook.cells:
        cell.pop("id", None)
    text = normal_form(json.loads(json.dumps(notebook)), draft.name)
    chapter.write_text(text, encoding="utf-8")
    return store(execute_all([chapter], jobs=jobs))


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "arguments", nargs="*", metavar="chapter", help="notebooks; or: from-md DRAFT CHAPTER"
    )
    parser.add_argument("--check", action="store_true", help="check the stored form; execute nothing")
    parser.add_argument("--jobs", type=int, help="chapters executed at once (default: the number of cores)")
    parser.add_argument("--threads", type=int, default=1, help="threads a chapter may use (default: 1)")
    options = parser.parse_args()
    if options.arguments[:1] == ["from-md"]:
        if len(options.arguments) != 3:
            parser.error("from-md takes a draft and a chapter: from-md draft.md chapters/NN_name.ipynb")
        return min(1, from_markdown(*map(Path, options.arguments[1:]), options.jobs))
    paths = [Path(argument).resolve() for argument in options.arguments] or chapter_paths(ROOT)
    if options.check:
        problems = [problem for path in paths for problem in check(path)]
        for problem in problems:
            print(f"error: {problem}", file=sys.stderr)
        say(f"{len(paths)} chapters: {len(problems) or 'no'} problem{'s' * (len(problems) != 1)}")
        return min(1, len(problems))
    return min(1, store(execute_all(paths, jobs=options.jobs, threads=options.threads)))


if __name__ == "__main__":
    raise SystemExit(main())
