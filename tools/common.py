"""What the tools share and a bare Python can import: it needs no package."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CELL_TIMEOUT = 240


def threads_environment(threads: int) -> dict[str, str]:
    """Name the variables by which each library takes its number of threads."""
    names = (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "TF_NUM_INTRAOP_THREADS",
        "TF_NUM_INTEROP_THREADS",
    )
    return dict.fromkeys(names, str(threads))


# One core a chapter: the chapters share the machine. What is printed does not hang on it (tools/repeat.py).
ONE_THREAD = threads_environment(1)


def say(line: str) -> None:
    """Print a line of progress at once, also into a pipe."""
    print(line, flush=True)
