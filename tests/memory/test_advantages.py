import pytest
import torch

from mempo_trl.memory import MemorySpan, memory_advantages, token_advantages

NAN = float("nan")


def test_worked_example():
    # mean 0.15; deviations .05 -.25 .25 -.05; sum of squares 0.13; unbiased std sqrt(0.13 / 3) = 0.20817
    advantages = memory_advantages(torch.tensor([[0.2, -0.1], [0.4, 0.1]]), group_size=2)
    torch.testing.assert_close(advantages, torch.tensor([[0.2402, -1.2010], [1.2010, -0.2402]]), atol=5e-5, rtol=0)


def test_groups_do_not_mix():
    group = torch.tensor([[0.2, -0.1], [0.4, 0.1]])
    both = memory_advantages(torch.cat([group, 10 + 3 * group]), group_size=2)
    torch.testing.assert_close(both[2:], both[:2], atol=1e-5, rtol=0)  # a z-score ignores shift and scale


def test_turns_without_a_memory_take_no_part():
    with_hole = memory_advantages(torch.tensor([[NAN, 0.2, NAN], [0.4, NAN, 0.1], [-0.1, NAN, NAN]]), group_size=3)
    dense = memory_advantages(torch.tensor([[0.2, 0.4], [0.1, -0.1]]), group_size=2)
    expected = [[0, dense[0, 0], 0], [dense[0, 1], 0, dense[1, 0]], [dense[1, 1], 0, 0]]
    torch.testing.assert_close(with_hole, torch.tensor(expected))


def test_pool_by_turn():
    rewards = torch.tensor([[0.0, 5.0], [1.0, 5.5], [2.0, NAN]])
    advantages = memory_advantages(rewards, group_size=3, pool="turn")
    # turn 0: mean 1, std 1; turn 1: mean 5.25, std 0.35355
    expected = [[-1.0, -0.7071], [0.0, 0.7071], [1.0, 0.0]]
    torch.testing.assert_close(advantages, torch.tensor(expected), atol=5e-5, rtol=0)
    two = memory_advantages(torch.cat([rewards, rewards + 7]), group_size=3, pool="turn")
    torch.testing.assert_close(two, torch.cat([advantages, advantages]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("rewards", [[[NAN, NAN], [NAN, NAN]], [[0.3, NAN], [NAN, NAN]], [[0.3, 0.3], [0.3, 0.3]]])
def test_a_pool_that_says_nothing_gives_zero(rewards):
    advantages = memory_advantages(torch.tensor(rewards), group_size=2)
    assert torch.equal(advantages, torch.zeros(2, 2))


@pytest.mark.parametrize("pool", ["group", "turn"])
@pytest.mark.parametrize("value", [0.1, 0.3, -0.37])
def test_rounding_is_no_spread(pool, value):
    assert memory_advantages(torch.full((16, 3), value), group_size=8, pool=pool).abs().max() == 0


def test_std_floor():
    rewards = torch.tensor([[0.500, 0.501]])  # std 0.000707
    assert memory_advantages(rewards, 1, std_floor=0.001).abs().max() == 0
    assert memory_advantages(rewards, 1, std_floor=0.0005)[0, 1].item() == pytest.approx(0.7071, abs=1e-3)


def test_token_advantages_worked_example():
    #                                        mem        mem
    spans = [[MemorySpan(1, 1, 2), MemorySpan(2, 3, 4)], [MemorySpan(1, 0, 2)]]
    outcome, memory = torch.tensor([0.8, -0.8]), torch.tensor([[0.0, 1.2, -0.5], [0.0, 1.2, 0.0]])
    advantages = token_advantages(outcome, memory, spans, 5)
    expected = [[0.8, 2.0, 0.8, 0.3, 0.8], [0.4, 0.4, -0.8, -0.8, -0.8]]
    torch.testing.assert_close(advantages, torch.tensor(expected))
    assert outcome.tolist() == pytest.approx([0.8, -0.8])  # not changed in place


def test_weight_zero_leaves_the_outcome_bit_for_bit():
    outcome, memory = torch.randn(3), torch.randn(3, 2)
    spans = [[MemorySpan(1, 0, 4)]] * 3
    assert torch.equal(token_advantages(outcome, 0.0 * memory, spans, 4), outcome.unsqueeze(1).expand(3, 4))


def test_lengths_are_checked():
    with pytest.raises(ValueError, match="got 3 trajectories, expected a multiple of the group size 2"):
        memory_advantages(torch.zeros(3, 1), 2)
    with pytest.raises(ValueError, match="must be one of group, turn: got 'batch'"):
        memory_advantages(torch.zeros(2, 1), 2, pool="batch")
    with pytest.raises(ValueError, match=r"turn 1 at tokens \[2, 6\)"):
        token_advantages(torch.zeros(1), torch.zeros(1, 2), [[MemorySpan(1, 2, 6)]], 5)
    with pytest.raises(ValueError, match="got 1 outcomes, 1 rows of memories and 2 of spans"):
        token_advantages(torch.zeros(1), torch.zeros(1, 2), [[], []], 5)
