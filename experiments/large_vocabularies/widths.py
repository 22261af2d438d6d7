"""Peak memory of the losses of a linear layer, as the width grows: into widths.json.

    python -m experiments.large_vocabularies.widths     some minutes; memory does not mind a loaded machine

The ways and the measurement are those of `experiments/bench/linear.py`, which also times them.
"""

from __future__ import annotations

from pathlib import Path

import torch

import xent
from experiments.bench import linear
from experiments.shared import in_fresh_process, made, save

RESULT = Path(__file__).with_suffix(".json")
ROWS, CLASSES, WIDTHS = 1024, 32_000, (128, 512, 2048)


def main() -> None:
    cases = []
    for width in WIDTHS:
        for loss in linear.LOSSES:
            size = (ROWS, CLASSES, width, "float32")
            bytes_ = {way: in_fresh_process(linear.peak, loss, way, size) for way in linear.WAYS[loss]}
            cases.append({"loss": loss, "width": width, "bytes": bytes_})
            print(loss, width, {n: f"{b / 2**20:.0f} MiB" for n, b in bytes_.items()}, flush=True)
    result = {
        **made(torch, xent),
        "rows": ROWS,
        "classes": CLASSES,
        "dtype": "float32",
        "memory": "growth of VmHWM in a fresh process, the gradients of hidden states and weight left out",
        "cases": cases,
    }
    save(result, RESULT)


if __name__ == "__main__":
    main()
