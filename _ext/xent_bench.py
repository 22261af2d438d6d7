"""The benchmark's page: its tables and its numbers, from the committed result and from nowhere else.

`{benchmark} setting`, `{benchmark} times` and `{benchmark} memory` show what tools/bench_table.py makes of
experiments/bench/result.json, and `{benchmark} targets` says which of the design's targets it meets.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

import bench_table

PARTS = {
    "setting": bench_table.setting,
    "times": bench_table.times,
    "memory": bench_table.memory,
    "targets": bench_table.targets,
}


class Benchmark(SphinxDirective):
    """Renders one part of the benchmark's result."""

    required_arguments = 1
    has_content = False

    def run(self) -> list[nodes.Node]:
        part = self.arguments[0]
        if part not in PARTS:
            raise self.error(f"benchmark: expected one of {', '.join(PARTS)}, got {part!r}")
        path = Path(self.env.srcdir) / bench_table.RESULT.relative_to(bench_table.ROOT)
        # Both make the page: a new result or another way to show it has it read again.
        self.env.note_dependency(str(path))
        self.env.note_dependency(bench_table.__file__)
        text = PARTS[part](bench_table.read(path))
        node = nodes.container(classes=["benchmark"])
        self.state.nested_parse(StringList(text.splitlines(), source=str(path)), self.content_offset, node)
        return node.children


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("benchmark", Benchmark)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
