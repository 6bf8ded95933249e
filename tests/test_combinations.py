"""The model's own generation, in both contexts, on all kinds of weights, on one process and on two."""

import pytest
import torch

from launch import run
from taught import WEIGHTS, build_taught, save_taught


@pytest.fixture(scope="module")
def start(tmp_path_factory, tokenizer):
    return save_taught(tmp_path_factory.mktemp("start"), tokenizer)


def skip_without_packages(weights):
    if weights == "4-bit":
        pytest.importorskip("bitsandbytes")


@pytest.mark.parametrize("context", ["full", "memory"])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_one_process(start, tmp_path, context, weights):
    skip_without_packages(weights)
    trainer = build_taught(tmp_path, start, weights, context=context)
    before = [p.detach().clone() for p in trainer.model.parameters() if p.requires_grad]
    trainer.train()
    assert max(len(episode.turns) for episode in trainer.last_rollout.episodes) > 1
    assert any(trainer.last_rollout.memories.scored)
    after = [p for p in trainer.model.parameters() if p.requires_grad]
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("context", ["full", "memory"])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_two_processes(start, tmp_path, context, weights):
    skip_without_packages(weights)
    two = run(tmp_path / "two", 2, context, weights, start, script="two_ranks_taught.py")
    assert max(two[0]["turns"] + two[1]["turns"]) > 1
    assert torch.equal(two[0]["trained"], two[1]["trained"])
