"""What the tools share and a bare Python can import: it needs no package."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CELL_TIMEOUT = 240

# One core a chapter: the chapters share the machine, and a sum split over threads has other last digits.
ONE_THREAD = {
    name: "1"
    for name in (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "TF_NUM_INTRAOP_THREADS",
        "TF_NUM_INTEROP_THREADS",
    )
}


def say(line: str) -> None:
    """Print a line of progress at once, also into a pipe."""
    print(line, flush=True)
