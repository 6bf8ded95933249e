"""Starts a script on one process or, with torchrun, on several."""

import os
import subprocess
import sys
from pathlib import Path

import torch

TESTS = Path(__file__).parent


def run(output, processes, *arguments, script="two_ranks.py"):
    """What each rank of a script in this folder saved. `arguments` follow the output folder."""
    output.mkdir()
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    command = [*launcher, str(TESTS / script), str(output), *map(str, arguments)]
    env = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)}
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr[-3000:]
    return [torch.load(output / f"rank{rank}.pt", weights_only=True) for rank in range(processes)]
