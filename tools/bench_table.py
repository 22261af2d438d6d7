"""The tables of the benchmark, from its committed result: for the terminal, and for the page of the book."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "experiments" / "bench" / "result.json"

WAYS = {
    "torch": "PyTorch, 1 thread",
    "torch, 2 threads": "PyTorch, 2 threads",
    "scipy": "SciPy",
    "scikit-learn": "scikit-learn",
    "scikit-learn and softmax": "scikit-learn with softmax",
    "keras": "Keras",
}

# What the package sets out to reach: a size (float32, random logits), another way to compute the loss, and
# the most that xent's share of its time may be. scikit-learn is given its probabilities.
TARGETS = [
    ((100_000, 10), "torch", 1.0),
    ((4_096, 50_000), "torch", 0.65),
    ((100_000, 10), "scikit-learn", 0.25),
    ((4_096, 50_000), "scikit-learn", 0.25),
    ((1_000, 2), "scipy", 1.0),
]
MOST_MEMORY = 0.05  # of the logits, at the sizes that are compared with PyTorch


def read(path: Path = RESULT) -> dict[str, Any]:
    """Read the committed result."""
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def share(case: dict[str, Any], way: str) -> float | None:
    """Return the time of xent as a share of another way's; None where that way was not measured."""
    seconds = case["seconds"]
    return seconds["xent"]["fastest"] / seconds[way]["fastest"] if way in seconds else None


def memory_share(case: dict[str, Any], way: str) -> float | None:
    """Return the extra memory of a way as a share of the logits; None where it was not measured."""
    return case["memory"][way] / case["bytes"] if way in case["memory"] else None


def size(case: dict[str, Any]) -> str:
    """Name a case in a table."""
    moved = ", classes first" if case["axis"] == 0 else ""
    return f"{case['rows']:,} × {case['classes']:,} {case['dtype']}{moved}"


def table(header: list[str], rows: list[list[str]]) -> str:
    """Lay out a Markdown table, aligned also for the eye; all but the first two columns are numbers."""
    rows = [[cell.replace(" %", "\u00a0%") for cell in row] for row in rows]  # a share stays on one line
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    rule = [("-" * w if i < 2 else "-" * (w - 1) + ":") for i, w in enumerate(widths)]
    lines = [header, rule, *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    )


def _number(value: float | None, form: Callable[[float], str]) -> str:
    return "" if value is None else form(value)


def _percent(value: float) -> str:
    """Two digits, of shares from thousandths to several times the whole."""
    return f"{100 * value:.1f} %" if value < 0.1 else f"{100 * value:,.0f} %"


def times(result: dict[str, Any]) -> str:
    """Return the table of times: milliseconds of xent, and its share of the others' times."""
    rows = [
        [
            size(case),
            case["logits"],
            f"{1e3 * case['seconds']['xent']['fastest']:,.{1 if case['rows'] > 1000 else 3}f}",
            *(_number(share(case, way), lambda s: f"{s:.2f}") for way in WAYS),
        ]
        for case in result["cases"]
    ]
    return table(["logits", "kind", "xent, ms", *WAYS.values()], rows)


def memory(result: dict[str, Any]) -> str:
    """Return the table of extra memory, for the cases in which PyTorch's could be told."""
    ways = {"xent": "xent", **{way: name for way, name in WAYS.items() if way != "torch, 2 threads"}}
    rows = [
        [size(case), case["logits"], *(_number(memory_share(case, way), _percent) for way in ways)]
        for case in result["cases"]
        if "torch" in case["memory"]
    ]
    return table(["logits", "kind", *ways.values()], rows)


def setting(result: dict[str, Any]) -> str:
    """Say in one paragraph where, when and with what it was measured."""
    machine, versions = result["machine"], result["versions"]
    cache = f", {machine['level 2 cache']} of level 2 cache each" if machine["level 2 cache"] else ""
    libraries = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"Measured on {result['date']}, on {machine['cores']} cores of an {machine['cpu']}{cache}; "
        f"{machine['system']}, Python {machine['python']}, {libraries}."
    )


def verdicts(result: dict[str, Any]) -> list[tuple[str, float, float]]:
    """Return each target: what it is about, what was measured, and the most that it may be."""
    cases = {
        (case["rows"], case["classes"]): case
        for case in result["cases"]
        if (case["dtype"], case["logits"], case["axis"]) == ("float32", "random", -1)
    }
    found: list[tuple[str, float, float]] = []
    for shape, way, most in TARGETS:
        measured = share(cases[shape], way)
        assert measured is not None
        found.append((f"{size(cases[shape])}, time of {WAYS[way]}", measured, most))
    for shape in dict.fromkeys(shape for shape, way, _ in TARGETS if way == "torch"):
        used = memory_share(cases[shape], "xent")
        assert used is not None
        found.append((f"{size(cases[shape])}, extra memory over the logits", used, MOST_MEMORY))
    return found


def targets(result: dict[str, Any]) -> str:
    """Return the table of targets."""
    rows = [
        [what, "met" if measured <= most else "**missed**", f"{measured:.3f}", f"{most:g}"]
        for what, measured, most in verdicts(result)
    ]
    return table(["xent's share of", "target", "measured", "at most"], rows)


def report(result: dict[str, Any]) -> str:
    """Return everything, for the terminal."""
    return "\n\n".join(["", setting(result), times(result), memory(result)])
