"""Write the tables of chapters/benchmarks.md into tables.md, which the page includes.

    python -m experiments.bench.tables

`make bench` runs it after the measurement, of which result.json and linear.json are the record.
tests/book/test_appendices.py fails where tables.md is not what they say.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments.shared import read

HERE = Path(__file__).resolve().parent
RECORDS = [HERE / name for name in ("result.json", "linear.json")]
TABLES = HERE / "tables.md"

Case = dict[str, Any]
# The most that the losses of xent.torch may take, forward and backward, of PyTorch's time.
ON_TENSORS = {
    (1_024, 50_000, "float32"): {"cross_entropy": 0.65, "smoothed": 0.75, "distillation": 0.4},
    (1_024, 50_000, "bfloat16"): {"cross_entropy": 0.8, "smoothed": 0.9, "distillation": 0.5},
    **{
        (*size, "float32"): dict.fromkeys(("cross_entropy", "smoothed", "distillation"), most)
        for size, most in (((64, 1_000), 2.0), ((20_000, 32), 1.5), ((100_000, 10), 0.5))
    },
}


def table(header: list[str], rows: list[list[str]]) -> str:
    """Lay out a Markdown table; all but the first column are numbers or short words."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def size(case: Case) -> str:
    """Name the logits of a case."""
    return f"{case['rows']:,}\u00a0×\u00a0{case['classes']:,}"


def setting(result: dict[str, Any], layer: list[Case]) -> str:
    """Say where, when and with what all was measured but what is a GPU's."""
    machine = result["machine"]
    days = sorted({result["date"], result["tensors"]["settings"]["date"], *(case["date"] for case in layer)})
    when = f"on {days[0]}" if len(days) == 1 else f"from {days[0]} to {days[-1]}"
    libraries = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return (
        f"Measured {when}, on {machine['cores']} cores of an {machine['cpu']} with "
        f"{machine['level 2 cache']} of level 2 cache; {machine['system']}, {libraries}."
    )


def times(cases: list[Case]) -> str:
    """Return the milliseconds of xent, and its share of the others' times."""
    ways, rows = [way for way in cases[0]["seconds"] if way != "xent"], []
    for case in cases:
        name = size(case) + (", trained" if case["logits"] == "trained" else "")
        fastest = {way: seconds["fastest"] for way, seconds in case["seconds"].items()}
        ms = f"{1e3 * fastest['xent']:,.{1 if case['rows'] > 1000 else 3}f}"
        rows.append([name, ms, *(f"{fastest['xent'] / fastest[way]:.2f}" for way in ways)])
    return table(["logits", "xent, ms", *ways], rows)


def memory(cases: list[Case]) -> str:
    """Say what a call takes beyond the logits, for the cases in which PyTorch's could be told."""
    cases = [case for case in cases if "torch" in case["memory"]]
    said = []
    for way in ("xent", "torch", "keras", "scipy", "scikit-learn"):
        shares = [case["memory"][way] / case["bytes"] for case in cases]
        said.append(f"{ends([100 * share for share in shares], 0)}\u00a0% with {way}")
    return f"Beyond the logits a call needs, of their size, {', '.join(said[:-1])} and {said[-1]}."


def tensors(cases: list[Case]) -> str:
    """Return the shares of PyTorch's time, compiled and by xent, the latter beside its bound."""
    rows: dict[tuple[str, str], list[str]] = {}
    for case in cases:
        most = ON_TENSORS[case["rows"], case["classes"], case["dtype"]][case["loss"]]
        compiled, measured = (case["seconds"][way] / case["seconds"]["torch"] for way in ("compiled", "xent"))
        # A miss does not look like its bound.
        shown = f"{measured:.{3 if measured > most >= round(measured, 2) else 2}f}"
        cell = f"{shown}\u00a0({most:g})" if measured <= most else f"**{shown}**\u00a0({most:g})"
        for way, shown in (("compiled", f"{compiled:.2f}"), ("xent", cell)):
            rows.setdefault((f"{size(case)}, {case['dtype']}", way), []).append(shown)
    losses = dict.fromkeys(case["loss"].replace("_", " ") for case in cases)
    return table(["logits", "way", *losses], [[*name, *cells] for name, cells in rows.items()])


def ends(values: Iterable[float], digits: int = 1) -> str:
    """Return the smallest and the largest value, or the one that both are."""
    found = list(values)
    low, high = (f"{value:.{digits}f}" for value in (min(found), max(found)))
    return low if low == high else f"{low} to {high}"


def copies(cases: list[Case]) -> str:
    """Say how many arrays of the logits' size the losses hold, where they are large enough to tell."""
    told = [case for case in cases if case["memory"]]
    rows, classes = max((case["rows"], case["classes"]) for case in told)

    def held(way: str) -> str:
        float32, bfloat16 = (
            ends(c["memory"][way] / c["bytes"] for c in told if c["dtype"] == kind)
            for kind in ("float32", "bfloat16")
        )
        return f"{float32} copies in float32 and {bfloat16} in bfloat16"

    return (
        f"At {rows:,} × {classes:,} PyTorch's losses hold {held('torch')} at their highest point, compiled "
        f"{held('compiled')}, and those of `xent` {held('xent')}."
    )


# What the losses of linear.json are called.
LINEAR = {
    "cross_entropy": "labels",
    "cached": "64 classes of a cached teacher",
    "distillation": "a live teacher",
}


def cost(case: Case, way: str) -> list[str]:
    """Return seconds as a share of the plain pair's, and MiB."""
    return [f"{case['seconds'][way] / case['seconds']['plain']:.2f}", f"{case['memory'][way] / 2**20:,.0f}"]


def linear(cases: list[Case]) -> str:
    """Return the losses of a linear layer, in one table."""
    rows = [
        [f"{c['classes']:,}, {LINEAR[c['loss']]}", way, *cost(c, way), f"{c['error'][way]:.1e}"]
        for c in sorted(cases, key=lambda c: ([*LINEAR].index(c["loss"]), c["classes"]))
        for way in c["memory"]
    ]
    return table(["V, target", "way", "time", "MiB", "error"], rows)


def on_gpu(cases: list[Case]) -> str:
    """Return the same on a GPU with the larger vocabulary: a table for each loss, both widths beside each other."""
    most, tables = max(case["classes"] for case in cases), []
    for loss in ("cross_entropy", "distillation"):
        both = [c for c in cases if (c["loss"], c["classes"]) == (loss, most)]
        narrow, wide = sorted(both, key=lambda case: case["width"])
        widths = (head for c in (narrow, wide) for head in (f"H = {c['width']:,}: time", "MiB"))
        rows = [
            [way, *cost(narrow, way), *cost(wide, way), f"{100 * wide['error'][way]:.2f}\u00a0%"]
            for way in wide["memory"]
        ]
        tables.append(table([LINEAR[loss], *widths, "error"], rows))
    return "\n\n".join(tables)


def of_gpu(cases: list[Case]) -> str:
    """Say where and with what it was measured."""
    versions = dict(item for case in cases for item in case["versions"].items())
    libraries = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"Measured on {cases[0]['date']}, on an {cases[0]['device']}; {libraries}."


def text(result: dict[str, Any], layer: dict[str, Any]) -> str:
    """Return all parts, each under a comment with its name."""
    cases, on_tensors = result["cases"], result["tensors"]["cases"]
    cpu = [case for case in layer["cases"] if case["device"] == "cpu"]
    gpu = [case for case in layer["cases"] if case["device"] != "cpu"]
    parts = {
        "setting": setting(result, cpu),
        "times": f"{times(cases)}\n\n{memory(cases)}",
        "tensors": f"{tensors(on_tensors)}\n\n{copies(on_tensors)}",
        "linear": linear(cpu),
        "on a gpu": on_gpu(gpu),
        "of the gpu": of_gpu(gpu),
    }
    return "\n\n".join(f"% {name}\n\n{part}" for name, part in parts.items()) + "\n\n% end\n"


if __name__ == "__main__":
    TABLES.write_text(text(*map(read, RECORDS)), encoding="utf-8")
