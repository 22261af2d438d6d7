"""Mutation testing of the package: change one thing in it at a time, and see whether a test notices.

    python tools/mutants.py                      every module of tests/mutants.toml
    python tools/mutants.py numerics losses      these only
    python tools/mutants.py numerics --show      print the survivors without a reason once more, for the table
    python tools/mutants.py numerics --fresh     forget what earlier runs found

The changes are those of mutmut: an operator, a comparison, a number, a string, an argument, a keyword. Its
runner starts pytest anew for each of them, which would take hours here. This one imports the package once,
collects and runs the tests once, and then forks a process for each mutant: it gives the mutated function
another code object, whoever imported it, and runs the tests that reach the changed lines, until one fails.

The command fails if less than the promised share of a module's mutants is killed, if a survivor is not listed
in tests/mutants.toml with its reason, or if a listed one does not survive (any more).

What is not mutated: docstrings, annotations, module constants, decorators, and the wording of an error (that
an error is raised, its kind, and the values that its message quotes are mutated).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import ONE_THREAD, ROOT, say

# The releases are pinned here and nowhere else. The lock leaves them out, since nobody needs them to build or
# to test the book. Another mutmut makes other mutants: the list of survivors belongs to this one. libcst is
# the one dependency of the part that is used; its own are in the lock.
MUTMUT, LIBCST = "mutmut==3.8.1", "libcst==1.9.0"
TABLE = ROOT / "tests" / "mutants.toml"
STATE = ROOT / "_build" / "mutants"

Change = tuple[str, str, str]  # the function, the lines as they were, the lines as they became


@dataclass(frozen=True)
class Verdict:
    """What became of the mutants of one module."""

    module: str
    mutants: int
    survivors: int
    excused: int
    seconds: float
    problems: list[str]
    unlisted: list[Change]

    @property
    def share(self) -> float:
        return 1 - self.survivors / self.mutants if self.mutants else 1.0


def tool() -> Path:
    """Install mutmut into a folder of its own, once a release, and return the folder."""
    folder = STATE / MUTMUT.replace("==", "-")
    if not (folder / ".complete").exists():
        say(f"installing {MUTMUT} into {folder.relative_to(ROOT)} (once)")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--no-deps"]
        subprocess.run([*pip, "--target", str(folder), MUTMUT, LIBCST], check=True)
        (folder / ".complete").touch()
    return folder


def excuses(table: dict[str, Any], module: str) -> Counter[Change]:
    """The survivors of a module that the table lists, and how often each."""
    return Counter(
        (entry["function"], was, now)
        for entry in table.get("survivors", [])
        if entry["module"] == module
        for was, now in entry["changes"]
    )


def run(module: str, options: argparse.Namespace, folder: Path) -> Verdict:
    """Test one module's mutants in a process of its own and compare the survivors with the table."""
    begin = time.perf_counter()
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT / "code"), "PYTHONHASHSEED": "0"}
    command = [
        sys.executable,
        str(ROOT / "tools" / "mutants_worker.py"),
        module,
        str(folder),
        str(options.jobs),
    ]
    command += ["--fresh"] * options.fresh
    if subprocess.run(command, cwd=ROOT, env=environment).returncode:
        raise SystemExit(f"mutants: {module} could not be tested")
    results = json.loads((STATE / f"{module}.json").read_text(encoding="utf-8"))["mutants"]
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    survived = Counter(
        (row["function"], row["was"], row["now"]) for row in results if row["status"] == "survived"
    )
    listed = excuses(table, module)
    unlisted, stale = survived - listed, listed - survived
    problems = [f"{module}.{change[0]}: survived and is not listed{_shown(change)}" for change in unlisted]
    problems += [f"{module}.{change[0]}: listed and did not survive{_shown(change)}" for change in stale]
    verdict = Verdict(
        module,
        len(results),
        survived.total(),
        (survived & listed).total(),
        time.perf_counter() - begin,
        problems,
        list(unlisted.elements()),
    )
    if verdict.share < table["least_killed"]:
        problems.append(f"{module}: {verdict.share:.1%} killed, less than {table['least_killed']:.0%}")
    return verdict


def _shown(change: Change) -> str:
    return "".join(
        f"\n    {sign} {line}"
        for sign, text in zip("-+", change[1:], strict=True)
        for line in text.split("\n")
    )


def rows(verdicts: list[Verdict]) -> Iterator[str]:
    """The table that CONTRIBUTING.md carries."""
    yield "| module | mutants | killed | share | survivors with a reason | without | seconds |"
    yield "|---|---|---|---|---|---|---|"
    for v in verdicts:
        yield (
            f"| `{v.module}` | {v.mutants} | {v.mutants - v.survivors} | {v.share:.1%} | {v.excused} "
            f"| {v.survivors - v.excused} | {v.seconds:.0f} |"
        )


def main() -> int:
    """The command line."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("modules", nargs="*", help=", ".join(table["modules"]))
    parser.add_argument("--jobs", type=int, default=1, help="mutants tested at once")
    parser.add_argument("--fresh", action="store_true", help="forget what earlier runs found")
    parser.add_argument("--show", action="store_true", help="print what the table does not list")
    options = parser.parse_args()
    for module in options.modules:
        if module not in table["modules"]:
            parser.error(f"{module}: expected one of {', '.join(table['modules'])}")

    folder = tool()
    verdicts = []
    for module in options.modules or table["modules"]:
        verdicts.append(run(module, options, folder))
        if options.show:
            print(*(json.dumps(change, ensure_ascii=False) for change in verdicts[-1].unlisted), sep=",\n")
    print("\n".join(rows(verdicts)))
    problems = [problem for verdict in verdicts for problem in verdict.problems]
    for problem in problems:
        print(f"mutants: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
