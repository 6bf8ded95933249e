import random

import pytest
import torch
from peft import LoraConfig, get_peft_model

from conftest import build_model
from mempo_trl.memory import score_answers
from mempo_trl.memory.scoring.packing import PackedRow, Trajectories
from mempo_trl.memory.scoring.separate import AnswerContext
from mempo_trl.memory.scoring.shared import CompletionLogps, head_log_probs, score_answers_shared

VOCAB = 60


def random_trajectories(seed):
    """Two questions, three trajectories each, of 1 to 16 turns, some without a memory, in mixed order."""
    rng = random.Random(seed)

    def tokens(low, high):
        return [rng.randrange(VOCAB) for _ in range(rng.randint(low, high))]

    prompts = [tokens(3, 12), tokens(3, 12)]
    batch, contexts = ([], [], []), []
    for row in range(6):
        completion = []
        for turn in range(rng.choice([1, 2, 5, 16])):
            start, memory = len(completion), tokens(2, 6)
            if turn and rng.random() < 0.8:
                contexts.append(AnswerContext(row, start, start + len(memory)))
                contexts.append(AnswerContext(row, rng.choice([0, 0, start - 1]), start))  # history, or a visible part
            completion += memory + tokens(3, 9)
        for values, value in zip(batch, (prompts[row % 2], completion, tokens(2, 7)), strict=True):
            values.append(value)
    rng.shuffle(contexts)
    return *batch, contexts


def forwarded(model):
    """The number of tokens of each forward from now on."""
    sizes = []
    model.register_forward_pre_hook(lambda _, args, kwargs: sizes.append(kwargs["input_ids"].numel()), with_kwargs=True)
    return sizes


@pytest.mark.parametrize("max_tokens", [1, 60, 100_000])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_equals_separate(kind, seed, max_tokens):
    model, batch = build_model(VOCAB, kind), random_trajectories(seed)
    separate = score_answers(model, *batch, pad_token_id=0)
    shared = score_answers_shared(model, *batch, pad_token_id=0, max_tokens=max_tokens)
    assert separate.min() < -2  # not near certain everywhere
    torch.testing.assert_close(shared, separate, atol=1e-5, rtol=0)


@pytest.mark.parametrize("max_tokens", [1, 100_000])
def test_the_pass_gives_the_completions_too(max_tokens):
    model, batch = build_model(VOCAB), random_trajectories(3)
    completions = CompletionLogps(head_log_probs)
    scores = score_answers_shared(model, *batch, pad_token_id=0, max_tokens=max_tokens, completions=completions)
    torch.testing.assert_close(scores, score_answers(model, *batch, pad_token_id=0), atol=1e-5, rtol=0)
    # A completion is an answer to the empty context.
    whole = [AnswerContext(row, 0, 0) for row in range(6)]
    expected = score_answers(model, batch[0], batch[1], batch[1], whole, pad_token_id=0)
    torch.testing.assert_close(completions.padded(expected.size(1)), expected, atol=1e-5, rtol=0)


def test_with_an_adapter_and_gradient_checkpointing():
    model = get_peft_model(build_model(VOCAB), LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.5))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    model.gradient_checkpointing_enable()
    model.train()
    batch = random_trajectories(4)
    shared = score_answers_shared(model, *batch, pad_token_id=0)
    torch.testing.assert_close(shared, score_answers(model, *batch, pad_token_id=0), atol=1e-5, rtol=0)
    assert model.training
    assert not shared.requires_grad
    with model.disable_adapter():
        assert (score_answers(model, *batch, pad_token_id=0) - shared).abs().max() > 0.01


@pytest.mark.parametrize("autocast", [False, True])
def test_bfloat16(autocast):
    model, batch = build_model(VOCAB, "qwen3"), random_trajectories(5)
    exact = score_answers(model, *batch, pad_token_id=0)
    model = model if autocast else model.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        shared = score_answers_shared(model, *batch, pad_token_id=0)
    assert shared.dtype == torch.float32
    assert 1e-5 < (shared - exact).abs().max() < 0.1  # bfloat16 it is, and no more


def test_the_attention_is_restored():
    model = build_model(VOCAB)
    before = model.config._attn_implementation
    score_answers_shared(model, *random_trajectories(0), pad_token_id=0)
    assert model.config._attn_implementation == before
    model.lm_head.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        score_answers_shared(model, *random_trajectories(0), pad_token_id=0)
    assert model.config._attn_implementation == before


# Two trajectories of one question: a prompt of 4 tokens, completions of 20 and 15, an answer text of 3. Memories at
# [10, 14) of both, each with the history before it.
PROMPTS = [[1, 2, 3, 4]] * 2
COMPLETIONS = [list(range(10, 30)), list(range(30, 45))]
ANSWERS = [[50, 51, 52]] * 2
CONTEXTS = [context for row in range(2) for context in (AnswerContext(row, 10, 14), AnswerContext(row, 0, 10))]


def test_forwards_each_token_once():
    model = build_model(VOCAB)
    sizes = forwarded(model)
    score_answers_shared(model, PROMPTS, COMPLETIONS, ANSWERS, CONTEXTS, pad_token_id=0)
    # The prompt; per trajectory 10 tokens of history, memory + answer, and the answer behind the history. The last
    # answer token is only predicted.
    assert sizes == [4 + 2 * (10 + (4 + 2) + 2)]


def test_the_completions_cost_their_tokens_and_nothing_else():
    model = build_model(VOCAB)
    sizes = forwarded(model)
    completions = CompletionLogps(head_log_probs)
    score_answers_shared(model, PROMPTS, COMPLETIONS, ANSWERS, CONTEXTS, pad_token_id=0, completions=completions)
    assert sizes == [4 + (19 + 14) + 2 * ((4 + 2) + 2)]  # as is the last token of a completion


def test_only_answer_positions_reach_the_head():
    model, seen = build_model(VOCAB), []
    model.lm_head.register_forward_pre_hook(lambda _, inputs: seen.append(tuple(inputs[0].shape)))
    score_answers_shared(model, PROMPTS, COMPLETIONS, ANSWERS, CONTEXTS, pad_token_id=0)
    assert seen == [(1, 4 * 3, 32)]


@pytest.mark.parametrize(
    ("max_tokens", "expected"),
    [
        (39, [22, 22]),  # 40 together: the prompt a second time
        (21, [10, 16, 10, 16]),  # a trajectory in two: prompt, memory, answer | prompt, history, answer
        (1, [10, 16, 10, 16]),  # one context is the least
    ],
)
def test_the_token_cap(max_tokens, expected):
    model = build_model(VOCAB)
    sizes = forwarded(model)
    score_answers_shared(model, PROMPTS, COMPLETIONS, ANSWERS, CONTEXTS, pad_token_id=0, max_tokens=max_tokens)
    assert sorted(sizes) == sorted(expected)


@pytest.mark.parametrize("contexts", [[], CONTEXTS])
@pytest.mark.parametrize("completions", [None, CompletionLogps(head_log_probs)])
def test_all_ranks_make_as_many_forwards(contexts, completions):
    model = build_model(VOCAB)
    sizes = forwarded(model)
    scores = score_answers_shared(
        model, PROMPTS, COMPLETIONS, ANSWERS, contexts, pad_token_id=0, equalize=lambda _: 5, completions=completions
    )
    assert len(sizes) == 5
    assert scores.shape == (len(contexts), 3 if contexts else 0)


def test_lists_must_be_parallel():
    with pytest.raises(ValueError, match="got 2 prompts, 1 completions and 2 answers"):
        score_answers_shared(build_model(VOCAB), PROMPTS, COMPLETIONS[:1], ANSWERS, [], pad_token_id=0)


def test_a_packed_row():
    """The prompt, what the history needs of the trajectory, and the two branches; '>' marks a token read for a label.

    place     0 1 2 3   4 .. 12  13    14  15    16 .. 18  19  20  21
    token     prompt    10 .. 18 19>   50> 51>   20 .. 22  23> 50> 51>
    position  0 1 2 3   4 .. 12  13    14  15     4 .. 6    7   8   9
    """
    [row] = Trajectories(PROMPTS[:1], COMPLETIONS[:1], ANSWERS[:1], CONTEXTS[:2]).pack(100)
    assert isinstance(row, PackedRow)
    assert row.ids == [1, 2, 3, 4, *range(10, 20), 50, 51, *range(20, 24), 50, 51]
    assert row.positions == [0, 1, 2, 3, *range(4, 14), 14, 15, *range(4, 8), 8, 9]
    assert row.places == [13, 14, 15, 19, 20, 21]
    assert row.labels == [50, 51, 52, 50, 51, 52]
    prompt, trajectory = range(4), range(4, 14)
    assert [tuple(segment) for segment in row.segments] == [
        ((), prompt),
        ((prompt,), trajectory),
        ((prompt, trajectory), range(14, 16)),
        ((prompt,), range(16, 22)),
    ]
    assert row.answers == {1: range(3), 0: range(3, 6)}
