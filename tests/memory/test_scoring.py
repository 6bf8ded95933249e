import pytest
import torch

from conftest import build_model
from mempo_trl.memory import score_answers
from mempo_trl.memory.scoring.separate import AnswerContext

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12]]
COMPLETIONS = [[20, 21, 22, 23, 24, 25], [30, 31, 32]]
ANSWERS = [[40, 41], [50, 51, 52]]
CONTEXTS = [AnswerContext(0, 0, 4), AnswerContext(1, 1, 3), AnswerContext(0, 2, 5), AnswerContext(1, 0, 0)]


def naive(model, context):
    """One row, no padding, all logits."""
    prefix = PROMPTS[context.row] + COMPLETIONS[context.row][context.start : context.end]
    answer = ANSWERS[context.row]
    with torch.no_grad():
        logits = model(torch.tensor([prefix + answer])).logits[0].double()
    logps = logits.log_softmax(-1)
    return [logps[len(prefix) + i - 1, token].item() for i, token in enumerate(answer)]


def score(model, contexts=CONTEXTS, **options):
    return score_answers(model, PROMPTS, COMPLETIONS, ANSWERS, contexts, pad_token_id=0, **options)


@pytest.mark.parametrize("max_tokens", [1, 20, 10_000])
@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_equals_one_row_at_a_time(kind, max_tokens):
    model = build_model(60, kind).eval()
    scores = score(model, max_tokens=max_tokens)
    assert scores.shape == (4, 3)
    for row, context in zip(scores.tolist(), CONTEXTS, strict=True):
        expected = naive(model, context)
        assert row == pytest.approx(expected + [0.0] * (3 - len(expected)), abs=1e-5)


def test_evaluation_mode_inside_and_restored_after():
    model = build_model(60, attention_dropout=0.5).train()
    assert torch.equal(score(model), score(model))  # dropout would differ
    assert model.training
    assert not score(model.eval()).requires_grad
    assert not model.training


def test_only_answer_positions_reach_the_head():
    model = build_model(60)
    seen = []
    model.lm_head.register_forward_pre_hook(lambda _, inputs: seen.append(tuple(inputs[0].shape)))
    score(model)
    assert seen == [(4, 4, 32)]  # the longest answer and the position before it


def test_batches_respect_the_token_cap():
    model = build_model(60)
    shapes = []
    model.register_forward_pre_hook(
        lambda _, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    score(model, max_tokens=20)  # rows of 9, 10, 8, 8 tokens
    assert shapes == [(2, 10), (2, 8)]


def test_a_short_row_is_not_padded_to_a_long_one():
    model = build_model(60)
    shapes = []
    model.register_forward_pre_hook(
        lambda _, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    contexts = [AnswerContext(0, 0, 30), AnswerContext(0, 4, 6), AnswerContext(0, 0, 20)]
    score_answers(model, PROMPTS[:1], [list(range(30))], ANSWERS[:1], contexts, pad_token_id=0)
    assert shapes == [(2, 3 + 30 + 2), (1, 3 + 2 + 2)]


@pytest.mark.parametrize("contexts", [[], CONTEXTS])
def test_all_ranks_make_as_many_forwards(contexts):
    model, calls = build_model(60), []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    scores = score(model, contexts, equalize=lambda batches: 5)
    assert len(calls) == 5
    assert len(scores) == len(contexts)


def test_lists_must_be_parallel():
    with pytest.raises(ValueError, match="got 2 prompts, 1 completions and 2 answers"):
        score_answers(build_model(60), PROMPTS, COMPLETIONS[:1], ANSWERS, [], pad_token_id=0)
