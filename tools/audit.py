"""Look at what the lock brings in: the licence of each package, and its known vulnerabilities.

    python tools/audit.py                      licences, and vulnerabilities where they can be asked for
    python tools/audit.py --require-service    and fail where they cannot
    python tools/audit.py --report audit.md    write the whole table to a file

A licence that is not on the list below fails, and so does a package that does not say under which it is. The
vulnerabilities come from pip-audit, which asks the index of Python packages what is known of each release. A
package that it could not ask about is counted as such, never as sound. advisories.toml, beside this file,
says of those that no release on offer mends how far they reach here; one that is not on it fails, and so does
an entry about another version than the locked one.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common import ROOT, say

ADVISORIES = ROOT / "tools" / "advisories.toml"

# Licences under which anybody may use, change and pass on; by their SPDX names.
PERMISSIVE = {
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-CMU",
    "PSF-2.0",
    "Zlib",
}
# Weak copyleft binds changes to the package's own files. Each stands here with why that is no matter.
WEAK = {
    "certifi": ("MPL-2.0", "a list of certificates, used unchanged by requests"),
    "hypothesis": ("MPL-2.0", "runs the tests; nothing of it is passed on"),
    "pathspec": ("MPL-2.0", "used unchanged by mypy"),
}
# Packages whose metadata do not say, or say too much; each was looked up in its own files.
LOOKED_UP = {
    "axe-playwright-python": (
        "MIT AND MPL-2.0",
        "axe-core within it is MPL-2.0; it runs in the tests, unchanged",
    ),
    "docutils": (
        "BSD-2-Clause AND PSF-2.0",
        "public domain but for some files; the GPL is of an Emacs mode, not installed",
    ),
    "namex": ("Apache-2.0", "says so in its file LICENSE only"),
}
CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
FREE_TEXT = {
    r"apache(-| |license|software|,|version)*2(\.0)?": "Apache-2.0",
    r"(3-clause )?bsd( |-)?(3-clause)?( license)?": "BSD-3-Clause",
    r"bsd": "BSD",
    r"isc( license)?": "ISC",
    r"mit( license)?": "MIT",
}


@dataclass
class Licence:
    """One package's licence, and what is wrong with it, if anything."""

    package: str
    version: str
    name: str
    note: str = ""
    problem: str = ""


def locked() -> list[tuple[str, str]]:
    """Read the lock's pins."""
    text = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    return re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE)


def name_of(expression: str | None, text: str | None, classifiers: Sequence[str]) -> str:
    """Find the licence in a package's metadata; nothing where they do not say, or do not say which."""
    if expression:
        return expression
    line = next((line.strip() for line in (text or "").splitlines() if line.strip()), "")
    for pattern, name in FREE_TEXT.items():
        if re.fullmatch(pattern, line, re.IGNORECASE):
            return name
    kinds = [
        kind.rpartition(" :: ")[2] for kind in classifiers if kind.startswith("License :: OSI Approved :: ")
    ]
    if len(kinds) == 1:
        return CLASSIFIERS.get(kinds[0], kinds[0])
    return ""


def is_permissive(expression: str) -> bool:
    """Tell whether an SPDX expression can be followed by following permissive licences only."""
    inner = re.search(r"\(([^()]*)\)", expression)
    if inner:
        word = "MIT" if is_permissive(inner[1]) else "none"
        return is_permissive(expression[: inner.start()] + word + expression[inner.end() :])
    return any(
        all(part.strip() in PERMISSIVE for part in choice.split(" AND "))
        for choice in expression.split(" OR ")
    )


def judge(package: str, version: str, found: str) -> Licence:
    """Compare a package's licence with the list."""
    key = re.sub(r"[-_.]+", "-", package).lower()
    if key in LOOKED_UP:
        name, note = LOOKED_UP[key]
        return Licence(package, version, name, note)
    if key in WEAK:
        name, note = WEAK[key]
        return Licence(
            package, version, found, note, "" if found == name else f"was {name}, now {found or 'unknown'}"
        )
    if not found:
        return Licence(package, version, "unknown", problem="the metadata do not say which licence it is")
    return Licence(package, version, found, problem="" if is_permissive(found) else "not on the list")


def licences() -> list[Licence]:
    """Judge the packages of the lock by what is installed."""
    found = []
    for package, version in locked():
        try:
            data = importlib.metadata.metadata(package)
        except importlib.metadata.PackageNotFoundError:
            found.append(Licence(package, version, "unknown", problem="is not installed here"))
            continue
        name = name_of(data.get("License-Expression"), data.get("License"), data.get_all("Classifier") or [])
        judged = judge(package, version, name)
        # A build's own tag, such as that of torch for CPUs, is no other release.
        if data["Version"].partition("+")[0] != version:
            judged.problem = f"installed is {data['Version']}"
        found.append(judged)
    return found


def shipped() -> list[Licence]:
    """Judge what the repository holds of others: it must lie beside its licence."""
    found = []
    for folder, name in (("_static/katex", "MIT"), ("_static/move/uplot", "MIT")):
        path = ROOT / folder / "LICENSE"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        right = "Permission is hereby granted, free of charge" in text
        found.append(
            Licence(folder, "in the repository", name, problem="" if right else "without its licence")
        )
    return found


@dataclass
class Advisory:
    """Vulnerabilities of a locked package, or of what it bundles, and how far they reach here."""

    package: str
    version: str
    part: str
    ids: list[str]
    mended: str
    reach: str


def judged_advisories() -> list[Advisory]:
    """Read the list of those that were looked at."""
    return [
        Advisory(**entry) for entry in tomllib.loads(ADVISORIES.read_text(encoding="utf-8"))["advisories"]
    ]


def outdated(listed: Sequence[Advisory]) -> list[str]:
    """Name the entries that were judged for another version than the locked one."""
    pins = dict(locked())
    return [
        f"advisories.toml: {entry.package} {entry.version} ({entry.part}): the lock has "
        f"{pins.get(entry.package, 'none')}, look at it again"
        for entry in listed
        if pins.get(entry.package) != entry.version
    ]


@dataclass
class Vulnerabilities:
    """What pip-audit said: each finding is the release, all its names, and what mends it."""

    asked: int
    unasked: int
    found: list[tuple[str, list[str], str]]
    why: str = ""

    def unlisted(self, listed: Sequence[Advisory]) -> list[tuple[str, list[str], str]]:
        """Return the findings that nobody has judged."""
        known = {(f"{entry.package} {entry.version}", name) for entry in listed for name in entry.ids}
        return [bug for bug in self.found if not any((bug[0], name) in known for name in bug[1])]


def read_answer(text: str, packages: int) -> Vulnerabilities:
    """Read pip-audit's answer in JSON."""
    listed = json.loads(text)["dependencies"]
    asked = [entry for entry in listed if "vulns" in entry]
    found = [
        (
            f"{entry['name']} {entry['version']}",
            [bug["id"], *bug.get("aliases", [])],
            ", ".join(bug["fix_versions"]) or "none yet",
        )
        for entry in asked
        for bug in entry["vulns"]
    ]
    reasons = Counter(re.sub(r":.*", "", entry["skip_reason"]) for entry in listed if "skip_reason" in entry)
    why = reasons.most_common(1)[0][0] if reasons else ""
    return Vulnerabilities(len(asked), packages - len(asked), found, why)


def vulnerabilities() -> Vulnerabilities:
    """Ask pip-audit about every release in the lock, one by one, without resolving anything anew."""
    pins = locked()
    program = shutil.which("pip-audit") or shutil.which("pip-audit", path=str(Path(sys.executable).parent))
    if program is None:
        return Vulnerabilities(0, len(pins), [], "pip-audit is not installed")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as listing:
        listing.write("".join(f"{name}=={version}\n" for name, version in pins))
        listing.flush()
        options = [
            "--no-deps",
            "--disable-pip",
            "--format",
            "json",
            "--progress-spinner",
            "off",
            "--timeout",
            "15",
        ]
        done = subprocess.run([program, *options, "-r", listing.name], capture_output=True, text=True)
    # It exits with 1 when it has found something, and says so in the same form.
    if not done.stdout.startswith("{"):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return Vulnerabilities(0, len(pins), [], last)
    return read_answer(done.stdout, len(pins))


def report(judged: Sequence[Licence], known: Vulnerabilities, listed: Sequence[Advisory]) -> str:
    """Write the results in Markdown."""
    counts = Counter(licence.name for licence in judged)
    lines = ["# Supply chain", "", f"## Licences: {len(judged)}", ""]
    lines += [", ".join(f"{name} {count}" for name, count in counts.most_common()) + ".", ""]
    lines += ["| package | version | licence | note |", "|---|---|---|---|"]
    for licence in judged:
        note = f"**{licence.problem}**" if licence.problem else licence.note
        lines.append(f"| {licence.package} | {licence.version} | {licence.name} | {note} |")
    lines += ["", "## Known vulnerabilities", ""]
    lines.append(
        f"Asked about {known.asked} releases, could not ask about {known.unasked}. Found: {len(known.found)}."
    )
    if known.unasked:
        lines.append(f"Why not: {known.why}.")
    if known.found:
        lines += ["", "| release | name | mended in |", "|---|---|---|"]
        lines += [f"| {release} | {', '.join(names)} | {mended} |" for release, names, mended in known.found]
    lines += ["", "## Judged", "", "| release | part | names | mended in | how far it reaches |"]
    lines += ["|---|---|---|---|---|"]
    for entry in listed:
        release = f"{entry.package} {entry.version}"
        lines.append(
            f"| {release} | {entry.part} | {', '.join(entry.ids)} | {entry.mended} | {entry.reach} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--report", type=Path, help="write the whole result to this file, in Markdown")
    parser.add_argument(
        "--require-service", action="store_true", help="fail where vulnerabilities cannot be asked for"
    )
    arguments = parser.parse_args()
    judged = [*licences(), *shipped()]
    known, listed = vulnerabilities(), judged_advisories()
    if arguments.report:
        arguments.report.write_text(report(judged, known, listed), encoding="utf-8")

    counts = Counter(licence.name for licence in judged)
    say(f"licences of {len(judged)}: {', '.join(f'{name} {count}' for name, count in counts.most_common())}")
    for licence in judged:
        if licence.note:
            say(f"  {licence.package}, {licence.name}: {licence.note}")
    problems = [
        f"{licence.package} {licence.version}: {licence.name}: {licence.problem}"
        for licence in judged
        if licence.problem
    ]
    say(f"vulnerabilities: asked about {known.asked} releases, found {len(known.found)}")
    problems += [
        f"{release}: {', '.join(names)}, mended in {mended}"
        for release, names, mended in known.unlisted(listed)
    ]
    say(f"judged by hand, in advisories.toml: {len(listed)} parts")
    for entry in listed:
        say(
            f"  {entry.package} {entry.version}, {entry.part}: {len(entry.ids)} names; mended: {entry.mended}"
        )
    problems += outdated(listed)
    if known.unasked:
        word = f"could not ask about {known.unasked} releases: {known.why}"
        if arguments.require_service:
            problems.append(word)
        else:
            say(f"  {word}; this says nothing about them")
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
