"""Run a script on ranks that are forked: what it imports is imported once, where torchrun imports it on each.

    python tests/ranks.py '[[2, ["--plan=even"]], [3, []]]' script.py

For each number of ranks and arguments, the script runs with the environment that torchrun gives it.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
from typing import Any

import torch.multiprocessing

Run = tuple[int, list[str]]


def run(script: str, *runs: Run) -> list[str]:
    """Return the lines that the script's ranks have printed in these runs, one after another."""
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, __file__, json.dumps(runs), script],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def _rank(rank: int, ranks: int, port: int, script: str, arguments: list[str]) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": port}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in names.items()}}
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


def main(runs: list[Any], script: str) -> None:
    """Import what the script imports, and what PyTorch would on each rank when it first sends; then run it."""
    for module in ("torch._dynamo", "torch.distributed.fsdp"):
        importlib.import_module(module)
    runpy.run_path(script, run_name="imported")
    for ranks, arguments in runs:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        torch.multiprocessing.start_processes(
            _rank, (ranks, port, script, arguments), nprocs=ranks, start_method="fork"
        )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2])
