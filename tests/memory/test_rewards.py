"""The golden table of method.md, section 3. Natural logs, threshold 0.5."""

import pytest
import torch

from mempo_trl.memory import memory_rewards, score_memories

NAN = float("nan")
SUB_WORDS = [-0.2, -3.5, -0.1, -2.8]
GOLDEN = {
    #        full                mem                 none       independent either  both
    "G1": ([-0.2, -0.3, -0.1], [-0.5, -0.4, -1.5], [-0.3694, -0.1811, -0.3694, -0.1412]),
    "G2": ([-8.0], [-9.0], [-0.000212, 0.0, 0.0, 0.0]),
    "G3": ([-0.3], [-2.0], [-0.6055, 0.2592, -0.6055, 0.0]),
    "G4": (SUB_WORDS, SUB_WORDS, [0.0, 0.0, 0.0, 0.0]),
}
COLUMNS = [(None, "either"), (0.5, "independent"), (0.5, "either"), (0.5, "both")]


@pytest.mark.parametrize("column", range(4))
@pytest.mark.parametrize("case", GOLDEN)
def test_golden(case, column):
    full, mem, expected = GOLDEN[case]
    threshold, mode = COLUMNS[column]
    full, mem = torch.tensor([full]), torch.tensor([mem])
    reward = memory_rewards(full, mem, torch.ones_like(full, dtype=torch.bool), threshold, mode)
    assert reward.shape == (1,)
    assert reward.item() == pytest.approx(expected[column], abs=1e-6 if case == "G2" else 5e-5)


def test_golden_probabilities():
    mask = torch.ones(1, 3, dtype=torch.bool)
    score = score_memories(torch.tensor([GOLDEN["G1"][0]]), torch.tensor([GOLDEN["G1"][1]]), mask, 0.5, "independent")
    assert score.p_baseline.item() == pytest.approx(0.8187, abs=5e-5)  # exp(-0.2)
    assert score.p_mem.item() == pytest.approx(0.6376, abs=5e-5)  # exp(-0.45), without the third token
    mask, logps = torch.ones(1, 4, dtype=torch.bool), torch.tensor([SUB_WORDS])
    assert score_memories(logps, logps, mask).p_mem.item() == pytest.approx(0.8607, abs=5e-5)  # exp(-0.15)
    assert score_memories(logps, logps, mask, None).p_mem.item() == pytest.approx(0.1920, abs=5e-5)  # exp(-1.65)


@pytest.mark.parametrize(("threshold", "mode"), COLUMNS)
def test_a_padded_batch_equals_its_rows(threshold, mode):
    rows = [(full, mem) for full, mem, _ in GOLDEN.values()]
    full, mem, mask = torch.full((4, 6), NAN), torch.full((4, 6), -0.01), torch.zeros(4, 6, dtype=torch.bool)
    single = []
    for i, (f, m) in enumerate(rows):
        start = i % 2  # the answer need not start the row
        full[i, start : start + len(f)], mem[i, start : start + len(f)] = torch.tensor(f), torch.tensor(m)
        mask[i, start : start + len(f)] = True
        f, m = torch.tensor([f]), torch.tensor([m])
        single.append(memory_rewards(f, m, torch.ones_like(f, dtype=torch.bool), threshold, mode))
    assert torch.equal(memory_rewards(full, mem, mask, threshold, mode), torch.cat(single))


def test_the_default_keeps_what_either_context_knows():
    full, mem, mask = torch.tensor([[-0.3]]), torch.tensor([[-2.0]]), torch.ones(1, 1, dtype=torch.bool)
    assert memory_rewards(full, mem, mask).item() == pytest.approx(-0.6055, abs=5e-5)


def test_without_a_baseline_the_reward_is_the_probability():
    mem, mask = torch.tensor([[-0.5, -0.1], [-9.0, -9.0]]), torch.ones(2, 2, dtype=torch.bool)
    assert memory_rewards(None, mem, mask).tolist() == pytest.approx([0.740818, 0.0])  # exp(-0.3); nothing known


def test_nothing_kept_is_no_probability():
    score = score_memories(torch.tensor([[-8.0]]), torch.tensor([[-9.0]]), torch.ones(1, 1, dtype=torch.bool))
    assert score.reward.item() == 0
    assert score.p_mem.isnan().all()
    assert score.p_baseline.isnan().all()


def test_threshold_is_exclusive_and_zero_keeps_all():
    half = torch.log(torch.tensor([[0.5]]))
    mask = torch.ones(1, 1, dtype=torch.bool)
    assert not score_memories(half, half, mask, 0.5).kept.any()
    full, mem = torch.tensor([[-0.1, -30.0], [-0.1, -torch.inf]]), torch.tensor([[-20.0, -0.2], [-0.1, -0.2]])
    mask = torch.ones(2, 2, dtype=torch.bool)
    for mode in ("independent", "either", "both"):
        assert torch.equal(memory_rewards(full, mem, mask, 0.0, mode), memory_rewards(full, mem, mask, None, mode))


def test_wrong_arguments():
    logps, mask = torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match="must be one of independent, either, both: got 'all'"):
        memory_rewards(logps, logps, mask, 0.5, "all")
    with pytest.raises(ValueError, match="one shape"):
        memory_rewards(logps, torch.zeros(1, 3), mask)
