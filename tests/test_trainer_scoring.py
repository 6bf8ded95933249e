"""The answer scoring inside the trainer: which engine, and old log-probs from the same pass."""

import logging

import pytest
import torch
from peft import LoraConfig

from conftest import build_model
from helpers import make_trainer

MISALIGNED = {"num_iterations": 2}  # TRL takes old log-probs
LORA = {"peft_config": LoraConfig(r=2, target_modules=["q_proj", "v_proj"])}


def generate(trainer):
    batch = next(iter(trainer.get_train_dataloader()))
    trainer.model.train()
    return trainer._generate_and_score_completions(batch)


def count_forwards(trainer):
    """The token count of each forward without gradient from now on."""
    sizes = []

    def count(module, args, kwargs):
        if not torch.is_grad_enabled():
            sizes.append(kwargs["input_ids"].numel())

    trainer.model.register_forward_pre_hook(count, with_kwargs=True)
    return sizes


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pad_to_multiple_of": 64},
        {"memory_scoring_tokens": 300},
        {"temperature": 0.7},
        {"context": "memory"},
        {"beta": 0.1, "trainer_options": LORA},  # the reference is the same model, its adapter off
    ],
    ids=lambda options: "-".join(options) or "defaults",
)
def test_old_logps_and_advantages_are_those_of_separate(tmp_path, tokenizer, questions, options):
    outputs = {}
    for scoring in ("auto", "separate"):
        trainer = make_trainer(
            tmp_path, build_model(len(tokenizer)), tokenizer, questions, memory_scoring=scoring, **MISALIGNED, **options
        )
        torch.manual_seed(0)
        for name, parameter in trainer.model.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter, std=0.3)
        outputs[scoring] = generate(trainer)
        assert trainer._score_answers.shared == (scoring == "auto")
    shared, separate = outputs["auto"], outputs["separate"]
    assert shared["old_per_token_logps"].shape == separate["old_per_token_logps"].shape
    mask = separate["completion_mask"].bool()
    if "beta" in options:
        assert (shared["old_per_token_logps"] - shared["ref_per_token_logps"])[mask].abs().max() > 0.1
    for name in ("old_per_token_logps", "advantages", *(["ref_per_token_logps"] if "beta" in options else [])):
        # Both engines sum in float32, each in its own order. Dividing by a pool's std magnifies that in the advantages.
        atol, rtol = (1e-4, 5e-4) if name == "advantages" else (2e-5, 1e-4)
        torch.testing.assert_close(shared[name][mask], separate[name][mask], atol=atol, rtol=rtol)


def test_one_pass_for_both(tmp_path, model, tokenizer, questions):
    trainer = make_trainer(tmp_path, model, tokenizer, questions, memory_scoring="shared", **MISALIGNED)
    sizes = count_forwards(trainer)
    output = generate(trainer)
    assert len(sizes) == 1
    # Prompts once for each question, completions, and what branches off; TRL's pass alone forwards all rows, padded.
    trajectories = sum(map(len, {tuple(e.prompt_ids): e.prompt_ids for e in trainer.last_rollout.episodes}.values()))
    trajectories += int(output["completion_mask"].sum())
    length = len(trainer.last_rollout.answers[0].ids)
    memories = sum(
        end - start for spans in trainer.last_rollout.memories.spans for turn, start, end in spans if turn > 0
    )
    assert trajectories < sizes[0] <= trajectories + memories + 2 * length * len(trainer.last_rollout.memories.scored)


def test_no_old_logps_no_whole_trajectory(tmp_path, model, tokenizer, questions):
    trainer = make_trainer(tmp_path, model, tokenizer, questions, memory_scoring="shared")
    output = generate(trainer)
    assert "old_per_token_logps" not in output
    assert len(trainer.last_rollout.memories.scored) > 2


def test_a_sliding_window_model_trains_separately(tmp_path, tokenizer, questions, caplog):
    model = build_model(len(tokenizer), use_sliding_window=True, sliding_window=8, max_window_layers=0)
    with caplog.at_level(logging.WARNING):
        trainer = make_trainer(tmp_path, model, tokenizer, questions, **MISALIGNED)
    assert [r for r in caplog.records if "sliding_attention" in r.getMessage()]
    assert "old_per_token_logps" in generate(trainer)
    with pytest.raises(ValueError, match="memory_scoring='shared' cannot hold"):
        make_trainer(tmp_path, model, tokenizer, questions, memory_scoring="shared")


def test_it_trains(tmp_path, model, tokenizer, questions):
    trainer = make_trainer(tmp_path, model, tokenizer, questions, memory_scoring="shared", max_steps=2, **MISALIGNED)
    trainer.train()
    assert trainer.state.global_step == 2
