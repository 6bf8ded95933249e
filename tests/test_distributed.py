"""Two gloo processes against one, on the same turns: ragged episodes, groups split over the ranks."""

import pytest
import torch

from fake_vllm import episode_length
from launch import run


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
        # Packed rows hold other trajectories, so sums are taken in another order, and Adam magnifies small gradients'.
        torch.testing.assert_close(rank["parameters"], one["parameters"], atol=5e-5, rtol=0)
    for ours, theirs in zip(two[0]["logs"], one["logs"], strict=True):
        for name in ("memory/reward_mean", "memory/reward_std", "memory/closed_fraction", "rollout/turns"):
            assert ours[name] == pytest.approx(theirs[name], abs=1e-6), name


@pytest.mark.parametrize(("per_device", "context"), [(4, "full"), (4, "memory"), (2, "memory")])
def test_each_rank_gets_its_own_completions_from_one_server(tmp_path, per_device, context):
    """TRL's server mode over a client that echoes each prompt: question, group member and turn must go through."""
    two = run(tmp_path / "two", 2, per_device, context, script="two_ranks_server.py")
    assert two[0]["rows"] == two[1]["rows"]  # as many calls, as many rows in each
    assert len(two[0]["client_calls"]) == len(two[0]["rows"])  # rank 0 asks for both
    assert two[1]["client_calls"] == []
    ragged = set()
    for rank, result in enumerate(two):
        assert len(result["asked"]) == 2 * per_device
        for index, (asked, said) in enumerate(zip(result["asked"], result["said"], strict=True)):
            member = (rank * per_device + index % per_device) % 4
            length = episode_length(asked, member)
            assert said == [(str(asked), str(member), str(turn)) for turn in range(1, length + 1)]
            ragged.add(length)
            own = -(asked + 1) / 10
            assert result["logprobs"][index] == pytest.approx([own, 0.0] if length > 1 else [own])
        assert set(result["stop_reasons"]) == {"finished"}
        assert len(result["sampling_ratio"]) == 2
    assert len(ragged) > 3


def test_groups_split_over_ranks(tmp_path):
    """A step is one group of four: each rank has two of its trajectories."""
    (one,) = run(tmp_path / "one", 1, 4, "memory")
    two = run(tmp_path / "two", 2, 2, "memory")
    assert two[0]["turns"] + two[1]["turns"] == one["turns"]
    for rank in two:
        torch.testing.assert_close(rank["parameters"], one["parameters"], atol=5e-5, rtol=0)
