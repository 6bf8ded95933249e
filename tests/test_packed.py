"""Packed rows give what padded rows give: one row for each trajectory, or for each turn, as TRL would forward them."""

import random

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from trl.trainer.utils import add_fused_lm_head

from conftest import build_model
from helpers import visible_context
from mempo_trl.memory.turns import find_turns
from mempo_trl.rollout.context import first_visible
from mempo_trl.training.by_turn import forward_by_turn
from mempo_trl.training.packed import TooLongError, forward_packed, fused_values, pack_turns, unpadded
from mempo_trl.types import Turn

VOCAB = 60
OTHERS = {
    "gemma": (GemmaConfig, GemmaForCausalLM, {}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None}),
    "qwen3-moe": (
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    ),
}
KINDS = ["llama", "qwen2", "qwen3", *OTHERS]


def build(kind, **overrides):
    """A tiny model with the head that TRL adds."""
    if kind in OTHERS:
        config, model_class, options = OTHERS[kind]
        shape = {
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 8, "vocab_size": VOCAB, "pad_token_id": 0, "initializer_range": 0.2,
        }  # fmt: skip
        torch.manual_seed(0)
        model = model_class(config(**shape, **options, **overrides))
    else:
        model = build_model(VOCAB, kind, **overrides)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    return model


def random_batch(seed, questions=2, trajectories=5):
    """Prompts, completions and masks: trajectories of 1 to 6 turns, some cut in a tool result."""
    rng = random.Random(seed)

    def tokens(low, high):
        return [rng.randrange(1, VOCAB) for _ in range(rng.randint(low, high))]

    prompts = [tokens(1, 9) for _ in range(questions)]
    batch = []
    for row in range(trajectories):
        ids, mask = [], []
        for _ in range(rng.choice([1, 2, 3, 6])):
            turn, result = tokens(1, 6), tokens(1, 8)
            ids += turn + result
            mask += [1] * len(turn) + [0] * len(result)
        cut = rng.choice([len(ids), len(ids) - len(result)])
        batch.append((prompts[row % questions], ids[:cut], mask[:cut]))
    return [list(column) for column in zip(*batch, strict=True)]


def visible(mask, context, context_turns=1):
    """Where each token's context starts; -1 on tool results."""
    turns, starts = find_turns(mask), [-1] * len(mask)
    for turn, (start, end) in enumerate(turns):
        starts[start:end] = [turns[first_visible([Turn("")] * turn, context, context_turns)][0]] * (end - start)
    return starts


def shape_of(completions):
    return len(completions), max(map(len, completions))


def packed(model, batch, context, context_turns=1, max_tokens=10_000, **options):
    prompts, completions, masks = batch
    rows = pack_turns(prompts, completions, [visible(mask, context, context_turns) for mask in masks], max_tokens)
    return forward_packed(fused_values, model, rows, shape_of(completions), 0, **options)


def padded(model, batch, context, context_turns=1):
    """As TRL forwards rows, one for each trajectory or for each turn."""
    prompts, completions, masks = batch
    left, right = max(map(len, prompts)), max(map(len, completions))
    ids = torch.tensor([[0] * (left - len(p)) + p + c + [0] * (right - len(c)) for p, c, _ in zip(*batch, strict=True)])
    turn_mask = torch.tensor([mask + [0] * (right - len(mask)) for mask in masks])
    starts = [visible(mask, context, context_turns) + [-1] * (right - len(mask)) for mask in masks]

    def forward(ids, seen, width):
        labels = ids.masked_fill(seen == 0, -100)
        labels[:, :-width] = -100
        output = model(input_ids=ids, attention_mask=seen, labels=labels, fused_lm_head=True)
        return output.log_probs[:, -width:], output.entropy[:, -width:], None

    if context == "full":
        logps, entropies, _ = forward(ids, (ids > 0).long(), right)
        return logps * turn_mask, entropies * turn_mask
    return forward_by_turn(forward, ids, (ids > 0).long(), torch.tensor(starts), None, 0)[:2]


def gradients(model, logps):
    """Of a sum in which every token has its own weight."""
    torch.manual_seed(1)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.autograd.grad((logps * torch.randn(logps.shape)).sum(), parameters)


def assert_equal(model, batch, *context, **options):
    expected, actual = padded(model, batch, *context), packed(model, batch, *context, **options)
    assert expected[0].min() < -2  # not near certain everywhere
    for values, others in zip(actual, expected, strict=True):
        torch.testing.assert_close(values, others, atol=1e-5, rtol=0)
    for gradient, other in zip(gradients(model, actual[0]), gradients(model, expected[0]), strict=True):
        torch.testing.assert_close(gradient, other, atol=1e-5 * max(1, float(other.abs().max())), rtol=0)


CONTEXTS = [("full",), ("memory", 1), ("memory", 2)]


@pytest.mark.parametrize("context", CONTEXTS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients_equal_those_of_padded_rows(kind, context):
    for seed in range(2):
        assert_equal(build(kind), random_batch(seed), *context)


@pytest.mark.parametrize("context", CONTEXTS, ids=str)
@pytest.mark.parametrize("max_tokens", [60, 100])
def test_in_several_rows(context, max_tokens):
    batch = random_batch(3)
    batch = [column[:4] for column in batch] if context == ("full",) else batch
    assert_equal(build("qwen2"), batch, *context, max_tokens=max(max_tokens, 9 + max(map(len, batch[1]))))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("context", CONTEXTS, ids=str)
def test_with_gradient_checkpointing(context, reentrant):
    """The backward runs each layer again, after the model's own attention is back."""
    model, plain = build("qwen3"), build("qwen3")
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    batch = random_batch(4)
    torch.manual_seed(1)
    weights = torch.randn(shape_of(batch[1]))
    for one in (model, plain):
        one.train()
        logps, _ = (packed if one is model else padded)(one, batch, *context)
        (logps * weights).sum().backward()
    assert model.config._attn_implementation == plain.config._attn_implementation
    for parameter, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(
            parameter.grad, other.grad, atol=1e-5 * max(1, float(other.grad.abs().max())), rtol=0
        )


@pytest.mark.parametrize("context", CONTEXTS, ids=str)
def test_with_an_adapter(context):
    model = get_peft_model(build("qwen2"), LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()
    model.train()
    batch = random_batch(5)
    assert_equal(model, batch, *context)
    with model.disable_adapter():
        assert (packed(model, batch, *context)[0] - padded(model, batch, *context)[0]).abs().max() < 1e-5


@pytest.mark.parametrize("autocast", [False, True])
def test_bfloat16(autocast):
    model, batch = build("qwen3"), random_batch(6)
    exact, _ = packed(model, batch, "memory")
    model = model if autocast else model.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logps, _ = packed(model, batch, "memory")
    assert 1e-5 < (logps - exact).abs().max() < 0.2  # bfloat16 it is, and no more
    logps.sum().backward()


def test_a_row_is_the_model_s_own_view_of_each_turn():
    """Each scored token, taken alone: the last of what its turn was generated from and the turn before it."""
    model, batch = build("qwen2"), random_batch(7)
    for context in CONTEXTS:
        logps, _ = packed(model, batch, *context)
        for row, (prompt, completion, mask) in enumerate(zip(*batch, strict=True)):
            for start, end in find_turns(mask):
                given = visible_context(prompt, completion[:start], mask[:start], *context)
                ids = torch.tensor([given + completion[start:end]])
                expected = model(ids).logits.log_softmax(-1)[0, len(given) - 1 : -1]
                expected = expected.gather(1, ids[0, len(given) :, None]).squeeze(1)
                torch.testing.assert_close(logps[row, start:end], expected, atol=1e-5, rtol=0)


def counted(model, batch, *context):
    """Tokens forwarded, and positions that reach the head."""
    tokens, heads = [], []
    hooks = [
        model.model.layers[0].register_forward_pre_hook(lambda _, args: tokens.append(args[0].size(1))),
        model.model.register_forward_hook(lambda _, args, output: heads.append(output.last_hidden_state.size(1))),
    ]
    hooks.append(model.register_forward_hook(lambda _, args, output: heads.append(output.log_probs.numel())))
    packed(model, batch, *context)
    for hook in hooks:
        hook.remove()
    return sum(tokens), heads[-1]


def test_each_distinct_token_is_forwarded_once():
    """Two trajectories of one prompt of 4: turns of 3, 5, 2, 4 with results of 6, 7, 8; and one turn of 3.

    The last token of a turn that nothing follows is only predicted.
    """
    mask = [1] * 3 + [0] * 6 + [1] * 5 + [0] * 7 + [1] * 2 + [0] * 8 + [1] * 4
    batch = [[[1, 2, 3, 4]] * 2, [list(range(10, 45)), [50, 51, 52]], [mask, [1] * 3]]
    alone = 3 - 1
    scored = 3 + 5 + 2 + 4 + 3
    assert counted(build("qwen2"), batch, "full") == (4 + (35 - 1) + alone, scored)
    # Turn 2 sees turn 1 from the prompt on, as turn 1 does; turn 3 sees turn 2, turn 4 sees turn 3.
    one = (3 + 6 + 4) + (5 + 7 + 1) + (2 + 8 + 3)
    assert counted(build("qwen2"), batch, "memory", 1) == (4 + one + alone, scored)
    # Turns 1 to 3 see all; turn 4 sees turns 2 and 3.
    two = (3 + 6 + 5 + 7 + 1) + (5 + 7 + 2 + 8 + 3)
    assert counted(build("qwen2"), batch, "memory", 2) == (4 + two + alone, scored)


def test_a_literal_row():
    """place     0 1   2  3  4  5   6  7
    token     1 2   10 11 20>30  30 40>     prompt | turn, result, turn | turn, result; '>' is read for a label
    """
    batch = [[[1, 2]], [[10, 11, 20, 30, 31, 40, 50]], [[1, 1, 0, 1, 1, 0, 1]]]
    [(row, target)] = pack_turns(*batch[:2], [visible(batch[2][0], "memory")], 100)
    assert row.ids == [1, 2, 10, 11, 20, 30, 30, 31, 40]
    assert row.positions == [0, 1, 2, 3, 4, 5, 2, 3, 4]
    assert [tuple(segment) for segment in row.segments] == [
        ((), range(2)),
        ((range(2),), range(2, 6)),
        ((range(2),), range(6, 9)),
    ]
    assert list(zip(row.places, row.labels, target, strict=True)) == [
        (1, 10, (0, 0)), (2, 11, (0, 1)), (4, 30, (0, 3)), (5, 31, (0, 4)), (8, 50, (0, 6)),
    ]  # fmt: skip


def test_a_trajectory_too_long_for_a_row():
    batch = [[[1, 2, 3]], [[10, 11, 12, 13, 14]], [[1] * 5]]
    with pytest.raises(TooLongError, match="a row of 7 tokens, more than the 6 allowed"):
        packed(build("qwen2"), batch, "full", max_tokens=6)
    assert packed(build("qwen2"), batch, "full", max_tokens=7)[0].shape == (1, 5)


def test_a_batch_without_turns_still_has_a_backward():
    model, batch = build("qwen2"), [[[1, 2]], [[3, 4]], [[0, 0]]]
    logps, entropies = packed(model, batch, "memory")
    assert logps.tolist() == entropies.tolist() == [[0, 0]]
    logps.sum().backward()
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in model.parameters())


def test_all_ranks_make_as_many_forwards():
    model, sizes = build("qwen2"), []
    model.register_forward_pre_hook(lambda _, args, kwargs: sizes.append(kwargs["input_ids"].numel()), with_kwargs=True)
    batch = random_batch(8)
    expected = packed(model, batch, "memory")[0]
    logps = packed(model, batch, "memory", equalize=lambda count: count + 2)[0]
    assert torch.equal(logps, expected)
    assert sizes[2:] == [1, 1]


def test_lists_must_be_parallel():
    with pytest.raises(ValueError, match="got 1 prompts, 2 completions and 1 rows of visible"):
        pack_turns([[1]], [[2], [3]], [[]], 10)


def test_unpadded():
    ids, mask = torch.tensor([[0, 1, 2, 3, 0], [4, 5, 6, 0, 0]]), torch.tensor([[0, 1, 1, 1, 0], [1, 1, 1, 0, 0]])
    assert unpadded(ids, mask, 2) == ([[1, 2], [4, 5, 6]], [[3], []])
