"""Two gloo processes against one, on the same turns: ragged episodes, groups split over the ranks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("two_ranks.py")


def run(output, processes, per_device, context):
    output.mkdir()
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    command = [*launcher, str(SCRIPT), str(output), str(per_device), context]
    env = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SCRIPT.parent)}
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]
    return [torch.load(output / f"rank{rank}.pt", weights_only=True) for rank in range(processes)]


@pytest.mark.parametrize("context", ["full", "memory"])
def test_two_ranks_equal_one(tmp_path, context):
    (one,) = run(tmp_path / "one", 1, 8, context)
    two = run(tmp_path / "two", 2, 4, context)
    assert two[0]["calls"] == two[1]["calls"]  # as many calls, as many rows in each
    assert two[0]["forwards"] == two[1]["forwards"]
    assert two[0]["turns"] + two[1]["turns"] == one["turns"]
    assert len(set(one["turns"])) > 1  # ragged
    assert all(count == 1 for rank in two for count in rank["own"])  # each rank has its own prompts
    for rank in two:
        torch.testing.assert_close(rank["parameters"], one["parameters"], atol=1e-5, rtol=0)
    for ours, theirs in zip(two[0]["logs"], one["logs"], strict=True):
        for name in ("memory/reward_mean", "memory/reward_std", "memory/closed_fraction", "rollout/turns"):
            assert ours[name] == pytest.approx(theirs[name], abs=1e-6), name


def test_groups_split_over_ranks(tmp_path):
    """A step is one group of four: each rank has two of its trajectories."""
    (one,) = run(tmp_path / "one", 1, 4, "memory")
    two = run(tmp_path / "two", 2, 2, "memory")
    assert two[0]["turns"] + two[1]["turns"] == one["turns"]
    for rank in two:
        torch.testing.assert_close(rank["parameters"], one["parameters"], atol=1e-5, rtol=0)
