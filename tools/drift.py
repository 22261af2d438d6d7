"""Tell what the newest releases would change in the book, and change nothing.

    python tools/drift.py                                   a fresh environment with the newest releases
    python tools/drift.py --constrain torch==2.13.0         hold one package where it is
    python tools/drift.py --report drift.md                 write the report to a file as well
    python tools/drift.py tests/xent/test_frameworks.py     these tests or chapters only, and no build

Installs what `make lock` would install, but into a temporary environment, and runs the build, the tests and
every stored output of the chapters there, on a copy of the repository. The tests that need a browser are left
out: they say nothing about a package that the build does not.

Drift is a finding and no failure: the exit status is 0 whether or not something differs. It is not 0 when the
program itself could not do its work: no environment, no run of the tests, a report that it cannot read.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import lock
from common import CELL_TIMEOUT, ONE_THREAD, ROOT, say

# Markdown files of a host have a limit, and so has a reader.
SHOWN = 60
# As the terminal has it, and as XML does, which cannot hold the character.
_COLOUR = re.compile(r"(?:\x1b|#x1B)\[[0-9;]*m")


@dataclass
class Difference:
    """One package whose newest release is not the locked one; an empty version says that it is not there."""

    package: str
    locked: str
    newest: str


@dataclass
class Failure:
    """One test or cell that passes with the lock and does not with the newest releases."""

    name: str
    reason: str


@dataclass
class Outcome:
    """What a run with the newest releases showed."""

    differences: list[Difference]
    build: str = ""
    passed: int = 0
    failures: list[Failure] = field(default_factory=list)

    built: bool = True

    @property
    def drifted(self) -> bool:
        """Tell whether the book, as it stands, does not hold with the newest releases."""
        return bool(self.build or self.failures)


class ProgramError(RuntimeError):
    """The report could not be made; this is not drift."""


def versions(pins: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Index pins by their normal name: the name as written, and the version."""
    found = {}
    for pin in pins:
        name, equals, version = pin.partition("==")
        if equals:
            found[re.sub(r"[-_.]+", "-", name).lower()] = (name, version.strip())
    return found


def differences(locked: Sequence[str], newest: Sequence[str]) -> list[Difference]:
    """Compare two lists of pins."""
    before, after = versions(locked), versions(newest)
    found = []
    for key in sorted(before.keys() | after.keys()):
        name = (before.get(key) or after[key])[0]
        old, new = (pins[key][1] if key in pins else "" for pins in (before, after))
        if old != new:
            found.append(Difference(name, old, new))
    return found


def read_junit(path: Path) -> tuple[int, list[Failure]]:
    """Read pytest's report: how many passed, and which did not, with the first line of the reason."""
    try:
        cases = list(ElementTree.parse(path).getroot().iter("testcase"))
    except (FileNotFoundError, ElementTree.ParseError) as error:
        raise ProgramError(f"pytest left no report that can be read: {error}") from error
    if not cases:
        raise ProgramError("pytest ran no test")
    passed, failures = 0, []
    for case in cases:
        bad = [child for child in case if child.tag in ("failure", "error")]
        if bad:
            place = case.get("classname", "")
            name = f"{place}::{case.get('name', '')}" if place else case.get("name", "")
            failures.append(Failure(name, reason_of(bad[0])))
        elif case.find("skipped") is None:
            passed += 1
    return passed, failures


def reason_of(element: ElementTree.Element) -> str:
    """Find the line that says most."""
    text = _COLOUR.sub("", element.text or element.get("message") or "")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and lines[0] == "Notebook cell execution failed":
        # The first line of the output that differs, as nbval shows the difference, or the exception.
        stored, now = (re.search(rf"^  [{sign}] (.*\S)", text, re.MULTILINE) for sign in "+-")
        lines = lines[-1:]
        if stored or now:
            lines = [f"stored: {stored[1] if stored else 'nothing'}; now: {now[1] if now else 'nothing'}"]
    else:
        lines = re.findall(r"^E\s+(.*\S)", text, re.MULTILINE) or lines
    return lines[0][:160] if lines else "no reason given"


def table(rows: Sequence[Sequence[str]], *heads: str) -> Iterator[str]:
    """Write a Markdown table, its cells safe from what stands in them."""
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for row in rows[:SHOWN]:
        cells = (cell.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ") for cell in row)
        yield "| " + " | ".join(cells) + " |"
    if len(rows) > SHOWN:
        yield f"\nand {len(rows) - SHOWN} more"


def code(text: str) -> str:
    """Set a text as code, so that nothing in it is read as markup or as somebody's name."""
    return f"`{text.replace('`', chr(39))}`" if text else "none"


def report(outcome: Outcome) -> str:
    """Write the report in Markdown; it ends with what to do."""
    lines = ["# The book with the newest releases", ""]
    builds = "the book was not built" if not outcome.built else "the book builds"
    if outcome.build:
        builds = "the book does not build"
    if outcome.drifted:
        failed, tried = len(outcome.failures), outcome.passed + len(outcome.failures)
        lines.append(
            f"**Drift**: {builds}; {failed} of {tried} tests and cells fail that pass with the lock."
        )
    else:
        lines.append(f"**No drift**: {builds} and {outcome.passed} tests and cells pass.")
    lines += ["", f"## Packages: {len(outcome.differences)} differ from the lock", ""]
    if outcome.differences:
        rows = [[d.package, d.locked or "not there", d.newest or "not there"] for d in outcome.differences]
        lines += table(rows, "package", "locked", "newest")
    if outcome.build:
        lines += ["", "## The build", "", "```text", outcome.build.replace("```", "'''"), "```"]
    if outcome.failures:
        lines += ["", "## Tests and cells that differ", ""]
        rows = [[code(f.name), code(f.reason)] for f in outcome.failures]
        lines += table(rows, "test or cell", "reason")
    if outcome.drifted:
        lines += [
            "",
            "The lock protects the book until somebody changes it. Repeat with `make drift`; then adapt the "
            "book and run `make lock`, or give the package an upper bound in `tools/lock.py`, with a reason.",
        ]
    return "\n".join(lines) + "\n"


def copy_repository(target: Path) -> None:
    """Copy the files under version control: the run must not touch the working copy, nor use its build."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)


def install(folder: Path, constraints: Sequence[str], options: Sequence[str]) -> list[str]:
    """Make the environment with the newest releases and return its pins."""
    wanted = [requirement for group in lock.WANTED.values() for requirement in group]
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip"]
    held = folder / "constraints.txt"
    held.write_text("".join(f"{line}\n" for line in constraints))
    try:
        subprocess.run([*pip, "install", "--quiet", *options, "-c", str(held), *wanted], check=True)
        frozen = subprocess.run([*pip, "freeze"], check=True, capture_output=True, text=True).stdout
    except subprocess.CalledProcessError as error:
        raise ProgramError(
            f"pip could not install the newest releases (status {error.returncode})"
        ) from error
    return lock.pins(frozen)


def build(python: str, book: Path, environment: dict[str, str], jobs: int) -> str:
    """Build the book; return nothing if that goes well, and the end of what was said if not."""
    done = subprocess.run(
        [python, "tools/book.py", "--jobs", str(jobs)],
        cwd=book,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode == 0:
        return ""
    said = _COLOUR.sub("", done.stdout).replace(f"{book}{os.sep}", "")
    return "\n".join(said.strip().splitlines()[-40:]) or f"status {done.returncode}, and nothing was said"


def run_tests(
    python: str, book: Path, environment: dict[str, str], jobs: int, chosen: Sequence[str] = ()
) -> tuple[int, list[Failure]]:
    """Run the tests, all or those that were chosen, and compare every stored output."""
    target = book / "_build" / "drift.xml"
    target.parent.mkdir(exist_ok=True)
    command = [python, "-m", "pytest", "-q", "-n", str(jobs), "--dist", "loadfile"]
    command += ["--nbval", "--nbval-current-env", f"--nbval-cell-timeout={CELL_TIMEOUT}"]
    # An import that a new release breaks is drift too: say so, and go on with the other files.
    command += ["--continue-on-collection-errors", f"--junitxml={target}", "--tb=short"]
    command += [f"--ignore={path.relative_to(book)}" for path in browser_tests(book)]
    command += chosen or ["tests", "code", "chapters"]
    status = subprocess.run(command, cwd=book, env=environment).returncode
    if status not in (0, 1):
        raise ProgramError(f"pytest could not run the tests (status {status})")
    return read_junit(target)


def browser_tests(book: Path) -> list[Path]:
    """List the tests that drive a browser, look at the built site or build small books of their own."""
    wanted = re.compile(r"playwright|\bbuilt_site\b|\btiny_book\b")
    return [
        path
        for path in sorted((book / "tests" / "book").glob("test_*.py"))
        if wanted.search(path.read_text())
    ]


def run(constraints: Sequence[str], options: Sequence[str], jobs: int, chosen: Sequence[str] = ()) -> Outcome:
    """Do all of it in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="drift-") as folder:
        book, environment_folder = Path(folder, "book"), Path(folder, "venv")
        say("installing the newest releases into a fresh environment")
        newest = install(environment_folder, constraints, options)
        locked = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
        outcome = Outcome(differences([line for line in locked if not line.startswith("#")], newest))
        say(f"{len(outcome.differences)} packages differ from the lock")
        copy_repository(book)
        python = str(environment_folder / "bin" / "python")
        if subprocess.run(
            [python, "-m", "pip", "install", "-q", *options, "--no-deps", "-e", str(book)]
        ).returncode:
            raise ProgramError("pip could not install the package xent itself")
        environment = {
            **os.environ,
            **ONE_THREAD,
            # The kernels of the chapters, and Node for the formulas, are those of the new environment.
            "PATH": f"{environment_folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONUNBUFFERED": "1",
        }
        for name in ("VIRTUAL_ENV", "PYTHONPATH"):
            environment.pop(name, None)
        outcome.built = not chosen
        if outcome.built:
            say("building the book")
            outcome.build = build(python, book, environment, jobs)
        say("running the tests and every stored output")
        outcome.passed, outcome.failures = run_tests(python, book, environment, jobs, chosen)
    return outcome


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--constrain", action="append", default=[], metavar="PIN", help="hold a package at a pin"
    )
    parser.add_argument("--pip", action="append", default=[], metavar="OPTION", help="an option for pip")
    parser.add_argument("chosen", nargs="*", metavar="PATH", help="tests or chapters (default: all)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    parser.add_argument("--report", type=Path, help="write the report to this file")
    parser.add_argument("--state", type=Path, help="write 'drift' or 'none' to this file")
    arguments = parser.parse_args()
    begin = time.perf_counter()
    try:
        outcome = run(arguments.constrain, arguments.pip, arguments.jobs, arguments.chosen)
    except ProgramError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    text = report(outcome)
    if arguments.report:
        arguments.report.write_text(text, encoding="utf-8")
    if arguments.state:
        arguments.state.write_text("drift\n" if outcome.drifted else "none\n")
    print(text)
    say(f"done in {time.perf_counter() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
