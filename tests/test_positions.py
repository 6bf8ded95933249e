"""Whatever row a token is forwarded in, it has the position that it has in its own sequence."""

import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM, GPT2Config, GPT2LMHeadModel
from trl.trainer.utils import add_fused_lm_head

from brute_force import answer_logps, last_logps, turn_logps
from conftest import build_model
from helpers import make_trainer
from mempo_trl.memory import score_answers
from mempo_trl.memory.scoring.engine import sharing_obstacle
from mempo_trl.memory.scoring.inputs import own_positions, rope_switch, supported
from mempo_trl.memory.scoring.separate import AnswerContext
from mempo_trl.memory.turns import find_turns
from test_logps import BATCH, forward, tensors
from test_logps import turn_logps as logps_of
from test_packed import VOCAB, visible


def learned_positions(vocab_size, positions=256):
    """GPT-2, which looks up an embedding for each position."""
    torch.manual_seed(0)
    options = {"n_embd": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.3}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=vocab_size, n_positions=positions, **options, **dropout))


def test_positions_start_at_each_row_s_own_first_token():
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]])
    assert own_positions(mask).tolist() == [[0, 0, 0, 1, 2], [0, 1, 2, 2, 2]]


def test_only_what_a_forward_names_is_passed():
    bloom = BloomForCausalLM(BloomConfig(vocab_size=8, hidden_size=8, n_layer=1, n_head=1))
    assert supported(bloom, position_ids=1, attention_mask=2) == {"attention_mask": 2}
    assert supported(build_model(8), position_ids=1) == {"position_ids": 1}


@pytest.mark.parametrize("context", ["full", "memory"])
def test_trained_log_probs_with_learned_positions(context):
    model = learned_positions(VOCAB)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    ids, mask, width, starts = tensors(BATCH, context)
    values = logps_of(model, "padded")(forward, model, ids, mask, width, None, starts)[0]
    for row, (prompt, completion, marks) in enumerate(zip(*BATCH, strict=True)):
        expected = turn_logps(model, prompt, completion, visible(marks, context))
        torch.testing.assert_close(values[row, : len(completion)], expected, atol=1e-5, rtol=0)


def test_scores_with_learned_positions():
    prompts, completions, _ = BATCH
    contexts = [AnswerContext(row, len(ids) // 2, len(ids)) for row, ids in enumerate(completions)]
    contexts += [AnswerContext(row, 0, len(ids) // 2) for row, ids in enumerate(completions)]
    answers = [[5, 6, 7], [8], [9, 10], [5], [6, 7, 8, 9]]
    model, batch = learned_positions(VOCAB), (prompts, completions, answers, contexts)
    scores = score_answers(model, *batch, pad_token_id=0)
    torch.testing.assert_close(scores, answer_logps(model, *batch), atol=1e-5, rtol=0)


def test_padding_needs_no_positions_beyond_the_model():
    """Two rows of 10 tokens, padded to 19: no position is beyond 10."""
    model = learned_positions(VOCAB, positions=10)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    batch = ([[1] * 9, [2]], [[3], [4] * 9], [[1], [1] * 9])
    ids, mask, width, starts = tensors(batch, "full")
    values = logps_of(model, "padded")(forward, model, ids, mask, width, None, starts)[0]
    torch.testing.assert_close(values[1], turn_logps(model, [2], [4] * 9, [0] * 9), atol=1e-5, rtol=0)


@pytest.mark.parametrize("context", ["full", "memory"])
def test_old_and_new_log_probs_agree(tmp_path, tokenizer, questions, context):
    """With several updates on a generation the ratio is 1 at the first: nothing is clipped."""
    model = learned_positions(len(tokenizer), positions=2048)
    trainer = make_trainer(
        tmp_path, model, tokenizer, questions, context=context, num_iterations=2, max_steps=1, epsilon=1e-3,
        memory_baseline="visible", logps="padded",
    )  # fmt: skip
    trainer.train()
    assert trainer.state.log_history[0]["clip_ratio/region_mean"] == 0


LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 16,
    "short_factor": [1.0] * 4, "long_factor": [4.0, 3.0, 2.0, 1.5],
}  # fmt: skip


def switching(vocab_size):
    """Angles change for a whole forward where one row is longer than 16 tokens."""
    return build_model(vocab_size, "llama", rope_parameters=LONGROPE, original_max_position_embeddings=16)


def test_the_switch_of_a_model():
    assert rope_switch(switching(8)) == 16
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    assert rope_switch(build_model(8, "llama", rope_parameters=dynamic, max_position_embeddings=32)) == 32
    assert rope_switch(build_model(8)) is None
    assert "longer than 16 tokens" in sharing_obstacle(switching(8))


def test_scores_on_both_sides_of_a_switch():
    model = switching(VOCAB)
    prompts, completions = [[1, 2, 3]] * 4, [list(range(4, 4 + length)) for length in (9, 10, 11, 12)]
    contexts = [AnswerContext(row, 0, len(ids)) for row, ids in enumerate(completions)]
    batch = (prompts, completions, [[5, 6, 7]] * 4, contexts)  # rows of 15 to 18 tokens
    scores = score_answers(model, *batch, pad_token_id=0)
    torch.testing.assert_close(scores, answer_logps(model, *batch), atol=1e-5, rtol=0)


@pytest.mark.parametrize("context", ["full", "memory"])
@pytest.mark.parametrize("size", [None, 2])
def test_trained_log_probs_on_both_sides_of_a_switch(context, size):
    model = switching(VOCAB)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    batch = (
        [[1, 2, 3]] * 3,
        [[*range(4, 12)], [*range(12, 40)], [*range(4, 24)]],
        [[1] * 8, [1] * 14 + [0] * 6 + [1] * 8, [1] * 5 + [0] * 9 + [1] * 6],
    )
    ids, mask, width, starts = tensors(batch, context)
    asked = []
    logps = logps_of(model, equalize=lambda value: asked.append(value) or value)
    values = logps(forward, model, ids, mask, width, size, starts)[0]
    assert 1 in asked
    gradients = torch.autograd.grad(values.sum(), list(model.parameters()))
    expected = []
    for row, (prompt, completion, marks) in enumerate(zip(*batch, strict=True)):
        seen, turns = visible(marks, context), torch.zeros(width)
        for start, end in find_turns(marks):
            tokens = prompt + completion[seen[start] : end]
            turns[start:end] = last_logps(model, tokens, end - start)
        torch.testing.assert_close(values[row], turns, atol=1e-5, rtol=0)
        expected.append(turns.sum())
    reference = torch.autograd.grad(sum(expected), list(model.parameters()))
    for one, other in zip(gradients, reference, strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-4)
