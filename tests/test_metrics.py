import math

import pytest
import torch

from mempo_trl.training.metrics import masked_fraction, memory_metrics

NAN = float("nan")


def test_masked_fraction_at_token_and_sequence_level():
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    ratio = torch.tensor([[0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 2.0, 0.0]])  # wider: padded to a multiple
    assert masked_fraction(ratio, mask).item() == pytest.approx(2 / 5)
    assert masked_fraction(torch.tensor([[0.0], [1.0]]), mask).item() == pytest.approx(2 / 5)


def test_memory_metrics_leave_out_what_was_not_judged():
    rewards = torch.tensor([[NAN, 0.2, -0.1], [NAN, 0.4, NAN]])
    metrics = memory_metrics(rewards, rewards + 0.5, torch.full_like(rewards, 0.5), 1, 0.1, "group")
    assert metrics["memory/reward_mean"] == pytest.approx(0.5 / 3)
    assert metrics["memory/reward_std"] == pytest.approx(0.25166, abs=1e-5)
    assert metrics["memory/pools_under_floor"] == 0.5  # the second pool has one value
    nothing = memory_metrics(torch.full((1, 2), NAN), *[torch.full((1, 2), NAN)] * 2, 1, 0.0, "group")
    assert math.isnan(nothing["memory/p_mem_mean"])
