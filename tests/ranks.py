"""Run a script on ranks, as torchrun does."""

from __future__ import annotations

import os
import subprocess
import sys


def run(script: str, *runs: tuple[int, list[str]]) -> list[str]:
    """Return the lines that the script's ranks print in these runs, each a number of ranks and arguments."""
    said: list[str] = []
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    for ranks, arguments in runs:
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command = [sys.executable, *torchrun, script, *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, env=environment, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        # PyTorch 2.8 has Gloo tell the output that its ranks are connected.
        said += [line for line in done.stdout.splitlines() if not line.startswith("[Gloo]")]
    return said
