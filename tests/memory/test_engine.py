import logging

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import MistralConfig, MistralForCausalLM

from conftest import build_model
from mempo_trl.memory import score_answers
from mempo_trl.memory.scoring import engine, shared
from mempo_trl.memory.scoring.engine import AnswerScorer, sharing_obstacle
from mempo_trl.memory.scoring.separate import AnswerContext
from mempo_trl.memory.scoring.shared import CompletionLogps, head_log_probs, score_answers_shared

PROMPTS = [[1, 2, 3, 4]] * 2
COMPLETIONS = [list(range(10, 30)), list(range(30, 45))]
ANSWERS = [[50, 51, 52]] * 2
CONTEXTS = [context for row in range(2) for context in (AnswerContext(row, 10, 14), AnswerContext(row, 0, 10))]
BATCH = (PROMPTS, COMPLETIONS, ANSWERS, CONTEXTS)


def sliding_model():
    model = build_model(60, "qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=0)
    assert "sliding_attention" in model.config.layer_types
    return model


def count_forwards(model):
    calls = []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    return calls


def test_auto_shares_and_checks_once():
    model = build_model(60)
    scorer, calls = AnswerScorer(model), count_forwards(model)
    first = scorer(model, *BATCH, pad_token_id=0)
    assert len(calls) == 2  # the packed row, and the check
    assert torch.equal(first, scorer(model, *BATCH, pad_token_id=0))
    assert len(calls) == 3
    assert torch.equal(first, score_answers_shared(model, *BATCH, pad_token_id=0))


def test_separate_is_separate():
    model = build_model(60)
    scorer, calls = AnswerScorer(model, "separate"), count_forwards(model)
    completions = CompletionLogps(head_log_probs)
    scores = scorer(model, *BATCH, pad_token_id=0, completions=completions)
    assert torch.equal(scores, score_answers(model, *BATCH, pad_token_id=0))
    assert len(calls) == 2
    assert completions.rows == {}


def test_a_sliding_window_falls_back_and_says_so(caplog):
    model = sliding_model()
    with caplog.at_level(logging.WARNING):
        scorer = AnswerScorer(model)
    [record] = caplog.records
    assert "layers of type sliding_attention" in record.message
    scores = scorer(model, *BATCH, pad_token_id=0)
    assert torch.equal(scores, score_answers(model, *BATCH, pad_token_id=0))
    # It would have been wrong.
    assert (score_answers_shared(model, *BATCH, pad_token_id=0) - scores).abs().max() > 0.01


def test_asking_for_what_cannot_hold():
    with pytest.raises(ValueError, match=r"memory_scoring='shared' cannot hold.*sliding_attention.*'separate'"):
        AnswerScorer(sliding_model(), "shared")


def test_obstacles():
    config = MistralConfig(
        vocab_size=60, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=8,
    )  # fmt: skip
    assert "sliding window of 8 tokens" in sharing_obstacle(MistralForCausalLM(config))
    for kind in ("qwen2", "qwen3", "llama"):
        assert sharing_obstacle(build_model(60, kind)) is None
        assert sharing_obstacle(get_peft_model(build_model(60, kind), LoraConfig(target_modules=["q_proj"]))) is None

    class Stateful(type(build_model(60))):
        _is_stateful = True

    class OwnAttention(type(build_model(60))):
        _supports_attention_backend = False

    assert "recurrent" in sharing_obstacle(Stateful(build_model(60).config))
    assert "AttentionInterface" in sharing_obstacle(OwnAttention(build_model(60).config))


def test_the_self_check_finds_wrong_values(monkeypatch, caplog):
    """An attention that the engine does not know of: here one that it is not told of."""
    model = sliding_model()
    monkeypatch.setattr(engine, "sharing_obstacle", lambda model: None)
    scorer, completions = AnswerScorer(model), CompletionLogps(head_log_probs)
    with caplog.at_level(logging.WARNING):
        scores = scorer(model, *BATCH, pad_token_id=0, completions=completions)
        scorer(model, *BATCH, pad_token_id=0)
    assert torch.equal(scores, score_answers(model, *BATCH, pad_token_id=0))
    assert completions.rows == {}
    [record] = caplog.records
    assert "differ by" in record.message


@pytest.mark.parametrize("scoring", ["auto", "shared"])
def test_a_shared_forward_that_fails_is_a_reason_to_score_separately(monkeypatch, caplog, scoring):
    """As where an attention drops the arguments that it does not know."""
    model, asked = build_model(60), []

    def fails(*args, **kwargs):
        raise TypeError("missing argument 'segments'")

    monkeypatch.setattr(shared.SegmentAttention, "__call__", fails)
    scorer, completions = AnswerScorer(model, scoring), CompletionLogps(head_log_probs)
    if scoring == "shared":  # was asked for
        with pytest.raises(TypeError):
            scorer(model, *BATCH, pad_token_id=0)
        return

    def ask(value):
        asked.append(value)
        return value

    with caplog.at_level(logging.WARNING):
        scores = scorer(model, *BATCH, pad_token_id=0, completions=completions, equalize=ask)
        scorer(model, *BATCH, pad_token_id=0)
    assert torch.equal(scores, score_answers(model, *BATCH, pad_token_id=0))
    # Contexts, the shared engine's forwards, those of the check, verdict, the separate engine's.
    assert asked == [4, 1, 1, 1, 1]
    [record] = caplog.records
    assert "TypeError: missing argument 'segments'" in record.message


def test_the_self_check_waits_for_contexts():
    model = build_model(60)
    scorer, calls = AnswerScorer(model), count_forwards(model)
    scorer(model, *BATCH[:3], [], pad_token_id=0)
    assert len(calls) == 0
    scorer(model, *BATCH, pad_token_id=0)
    assert len(calls) == 2


def test_a_rank_without_contexts_checks_in_step():
    """The other rank has contexts, makes one forward for them and one for its check, and finds them wrong."""
    model, seen = build_model(60), []
    scorer, calls = AnswerScorer(model), count_forwards(model)

    def other_rank(value):
        seen.append(value)
        return [4, 1, 1, 1, 2][len(seen) - 1]

    scorer(model, *BATCH[:3], [], pad_token_id=0, equalize=other_rank)
    # Contexts, forwards of the shared engine, forwards of the check, verdict, forwards of the separate engine.
    assert seen == [0, 0, 0, 0, 0]
    assert len(calls) == 1 + 1 + 2
    assert not scorer.shared
