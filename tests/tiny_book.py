"""Writes tiny books for the tests that plant an error in one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

STATED = "# Planted\n\n$$\n\\ell(z, y) = \\log(1 + e^z) - y z\n$$ (eq-planted)\n"
TESTED = """\
import numpy as np
import pytest


@pytest.mark.parametrize("y", [0.0, 1.0])
@pytest.mark.equation("eq-planted", by="reference")
def test_planted(worst_error, y):
    z = np.array([-1.0, 0.5, 1.0])
    p = 1 / (1 + np.exp(-z))
    observed = np.log(1 + np.exp(z)) - y * z
    worst_error(observed, -np.log(p if y else 1 - p), rtol=1e-12, why="a few roundings")
"""


def write_chapter(root: Path, name: str, *cells: str) -> None:
    """Write a notebook of Markdown cells; a cell that starts with `#code` is a code cell."""
    (root / "chapters").mkdir(exist_ok=True)
    notebook = {
        "cells": [
            {
                "cell_type": "code",
                "execution_count": None,
                "id": f"c{i}",
                "metadata": {},
                "outputs": [],
                "source": cell,
            }
            if cell.startswith("#code")
            else {
                "cell_type": "markdown",
                "id": f"c{i}",
                "metadata": {},
                "source": cell.splitlines(keepends=True),
            }
            for i, cell in enumerate(cells)
        ],
        "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    (root / "chapters" / f"{name}.ipynb").write_text(json.dumps(notebook), encoding="utf-8")


def write_test(root: Path, name: str, text: str) -> None:
    (root / "tests" / "equations").mkdir(parents=True, exist_ok=True)
    (root / "tests" / "equations" / f"{name}.py").write_text(text, encoding="utf-8")


def write_book(root: Path) -> Path:
    """Write one chapter with one equation and its test; nothing is wrong with it."""
    write_chapter(root, "01_planted", STATED, "#code\n1 + 1", "Equation {eq}`eq-planted` again.")
    write_test(root, "test_01_planted", TESTED)
    return root


def add_machinery(root: Path) -> None:
    """Copy what a run of the equation tests needs."""
    for name in ("pyproject.toml", "tools/ledger.py", "tests/conftest.py", "tests/ledger_plugin.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    shutil.copy(ROOT / "tests/equations/test_ledger.py", root / "tests/equations/test_ledger.py")
