"""Write the tables of chapters/benchmarks.md into tables.md, which the page includes.

    python -m experiments.bench.tables

`make bench` runs it after the measurement, of which result.json and linear.json are the record.
tests/book/test_appendices.py fails where tables.md is not what they say.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.shared import read

HERE = Path(__file__).resolve().parent
RECORDS = [HERE / name for name in ("result.json", "linear.json")]
TABLES = HERE / "tables.md"

Case = dict[str, Any]
# What the package sets out to reach: a size (float32, random logits), another way to compute it, and the
# most that xent's share of its time may be. scikit-learn is given its probabilities.
TARGETS = [
    ((100_000, 10), "torch", 1.0),
    ((4_096, 50_000), "torch", 0.65),
    ((100_000, 10), "scikit-learn", 0.25),
    ((4_096, 50_000), "scikit-learn", 0.25),
    ((1_000, 2), "scipy", 1.0),
    ((50_000, 32), "torch", 2.0),
    ((10_000, 1_000), "torch", 2.0),
]
# The same for the losses on tensors, forward and backward, of PyTorch's time.
ON_TENSORS = {
    (1_024, 50_000, "float32"): {"cross_entropy": 0.65, "smoothed": 0.75, "distillation": 0.4},
    (1_024, 50_000, "bfloat16"): {"cross_entropy": 0.8, "smoothed": 0.9, "distillation": 0.5},
    **{
        (*size, "float32"): dict.fromkeys(("cross_entropy", "smoothed", "distillation"), most)
        for size, most in (((64, 1_000), 2.0), ((20_000, 32), 1.5), ((100_000, 10), 0.5))
    },
}
MOST_MEMORY = 0.05  # of the logits, at the sizes that are compared with PyTorch


def table(header: list[str], rows: list[list[str]]) -> str:
    """Lay out a Markdown table; all but the first column are numbers or short words."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def size(case: Case) -> str:
    """Name a case in a table."""
    kind = "" if case["logits"] == "random" else f", {case['logits']}"
    moved = ", classes first" if case["axis"] == 0 else ""
    return f"{case['rows']:,}\u00a0×\u00a0{case['classes']:,} {case['dtype']}{kind}{moved}"


def share(case: Case, way: str) -> float:
    """Return the time of xent as a share of another way's."""
    return float(case["seconds"]["xent"]["fastest"] / case["seconds"][way]["fastest"])


def percent(value: float) -> str:
    """Two digits, of shares from thousandths to several times the whole."""
    return f"{100 * value:.1f}\u00a0%" if value < 0.1 else f"{100 * value:,.0f}\u00a0%"


def setting(result: dict[str, Any], layer: list[Case]) -> str:
    """Say where, when and with what all was measured but what is a GPU's."""
    machine = result["machine"]
    days = sorted({result["date"], result["tensors"]["settings"]["date"], *(case["date"] for case in layer)})
    when = f"on {days[0]}" if len(days) == 1 else f"from {days[0]} to {days[-1]}"
    libraries = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return (
        f"Measured {when}, on {machine['cores']} cores of an {machine['cpu']} with "
        f"{machine['level 2 cache']} of level 2 cache; {machine['system']}, Python {machine['python']}, {libraries}."
    )


def times(cases: list[Case]) -> str:
    """Return the milliseconds of xent, and its share of the others' times."""
    ways = list(dict.fromkeys(way for case in cases for way in case["seconds"] if way != "xent"))
    rows = [
        [
            size(case),
            f"{1e3 * case['seconds']['xent']['fastest']:,.{1 if case['rows'] > 1000 else 3}f}",
            *(f"{share(case, way):.2f}" if way in case["seconds"] else "" for way in ways),
        ]
        for case in cases
    ]
    return table(["logits", "xent, ms", *ways], rows)


def memory(cases: list[Case]) -> str:
    """Return the extra memory, for the cases in which PyTorch's could be told."""
    cases = [case for case in cases if "torch" in case["memory"]]
    ways = list(dict.fromkeys(way for case in cases for way in case["memory"]))
    rows = [
        [size(c), *(percent(c["memory"][way] / c["bytes"]) if way in c["memory"] else "" for way in ways)]
        for c in cases
    ]
    return table(["logits", *ways], rows)


def tensors(cases: list[Case]) -> str:
    """Return the share of PyTorch's time and the copies of the logits, a table for each size."""
    tables: dict[str, list[list[str]]] = {}
    for case in cases:
        taken = case["seconds"]
        most = ON_TENSORS[case["rows"], case["classes"], case["dtype"]][case["loss"]]
        measured = taken["xent"] / taken["torch"]
        copies = [f"{case['memory'][w] / case['bytes']:.2f}" for w in taken if w in case["memory"]]
        met = f"{most:g}" if measured <= most else f"{most:g}, **missed**"
        name = f"{case['rows']:,} × {case['classes']:,}, {case['dtype']}"
        # A miss does not look like its bound.
        digits = 3 if measured > most >= round(measured, 2) else 2
        shown = f"{measured:.{digits}f}"
        row = [case["loss"].replace("_", " "), f"{1e3 * taken['xent']:,.3g}", shown, met, *copies]
        tables.setdefault(name, []).append(row)
    header = ["loss", "ms", "share", "at most", *(f"copies, {way}" for way in cases[0]["seconds"])]
    return "\n\n".join(f"{name}:\n\n{table(header[: len(rows[0])], rows)}" for name, rows in tables.items())


def step(case: Case) -> str:
    """Name a step of a linear layer and its loss."""
    sizes = f"{case['rows']:,} × {case['classes']:,}, H = {case['width']:,}, {case['dtype']}"
    return f"{sizes}, {case['loss'].replace('_', ' ')}"


# What the losses of linear.json are called.
LINEAR = {
    "cross_entropy": "labels",
    "cached": "64 classes of a cached teacher",
    "distillation": "a live teacher",
}


def linear(cases: list[Case]) -> str:
    """Return the losses of a linear layer, in one table: seconds as a share of the plain pair's, MiB, error."""
    rows = [
        [
            f"{case['classes']:,}, {case['width']:,}, {LINEAR[case['loss']]}",
            way,
            f"{case['seconds'][way] / case['seconds']['plain']:.2f}",
            f"{case['memory'][way] / 2**20:,.0f}",
            f"{case['error'][way]:.1e}",
        ]
        for case in sorted(cases, key=lambda c: ([*LINEAR].index(c["loss"]), c["classes"], c["width"]))
        for way in case["memory"]
    ]
    return table(["V, H, target", "way", "time", "MiB", "error"], rows)


def on_gpu(cases: list[Case]) -> str:
    """Return the same on a GPU, a table for each step: milliseconds, MiB and the gradient's error."""
    header = ["way", "ms", "time", "MiB", "error"]

    def row(case: Case, way: str) -> list[str]:
        seconds, error = case["seconds"][way], case["error"][way]
        shares = f"{1e3 * seconds:.1f}", f"{seconds / case['seconds']['plain']:.2f}"
        return [way, *shares, f"{case['memory'][way] / 2**20:,.0f}", f"{100 * error:.2f}\u00a0%"]

    return "\n\n".join(
        f"{step(case)}:\n\n{table(header, [row(case, way) for way in case['memory']])}" for case in cases
    )


def of_gpu(cases: list[Case]) -> str:
    """Say where and with what it was measured."""
    versions = dict(item for case in cases for item in case["versions"].items())
    libraries = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"Measured on {cases[0]['date']}, on an {cases[0]['device']}; {libraries}."


def targets(cases: list[Case]) -> str:
    """Return each target: what it is about, what was measured, and the most that it may be."""
    plain = [c for c in cases if (c["dtype"], c["logits"], c["axis"]) == ("float32", "random", -1)]
    at = {(c["rows"], c["classes"]): c for c in plain}
    rows: list[list[str]] = []

    def add(what: str, measured: float, most: float) -> None:
        rows.append([what, "met" if measured <= most else "**missed**", f"{measured:.3f}", f"{most:g}"])

    for shape, way, most in TARGETS:
        add(f"{size(at[shape])}, time over {way}'s", share(at[shape], way), most)
    for case in (at[shape] for shape in dict.fromkeys(shape for shape, way, _ in TARGETS if way == "torch")):
        extra = case["memory"]["xent"] / case["bytes"]
        add(f"{size(case)}, extra memory over the logits", extra, MOST_MEMORY)
    return table(["xent's", "target", "measured", "at most"], rows)


def text(result: dict[str, Any], layer: dict[str, Any]) -> str:
    """Return all parts, each under a comment with its name."""
    cases = result["cases"]
    cpu = [case for case in layer["cases"] if case["device"] == "cpu"]
    gpu = [case for case in layer["cases"] if case["device"] != "cpu"]
    parts = {
        "setting": setting(result, cpu),
        "times": times(cases),
        "memory": memory(cases),
        "targets": targets(cases),
        "tensors": tensors(result["tensors"]["cases"]),
        "linear": linear(cpu),
        "on a gpu": on_gpu(gpu),
        "of the gpu": of_gpu(gpu),
    }
    return "\n\n".join(f"% {name}\n\n{part}" for name, part in parts.items()) + "\n\n% end\n"


if __name__ == "__main__":
    TABLES.write_text(text(*map(read, RECORDS)), encoding="utf-8")
