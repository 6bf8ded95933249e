"""The tiny tokenizer and model, and the cold start."""

import pytest
import torch
from trl.chat_template_utils import is_chat_template_prefix_preserving, parse_response, qwen2_5_chat_template

from mempo_trl import cold_start, tiny
from mempo_trl.cold_start import Recipe, TraceEncoder
from mempo_trl.memory import encode_answer, find_memory_spans
from mempo_trl.rollout import Episode, TurnLoop, tool_suffix_ids
from mempo_trl.search.world import Expert, WorldEnvironment, world_rows


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.build_tokenizer()


@pytest.fixture(scope="module")
def encoder(tokenizer):
    return TraceEncoder(tokenizer)


def rendered_prompt(tokenizer, row):
    return tokenizer.apply_chat_template(
        row["prompt"], tools=[WorldEnvironment().search], add_generation_prompt=True, return_dict=False
    )


def test_any_text_round_trips(tokenizer):
    (row,) = world_rows(1)
    texts = ["", "\n\n", "Zürich 東京 🙂\t<mem", "11. Anna; 2.  Oslo", *(m["content"] for m in Expert().trace(row))]
    assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == texts


def test_an_episode_is_short(tokenizer, encoder):
    """System prompt and schema are one token; a turn with n facts in memory has 2 n + 6 tokens, the first 5 + 1."""
    (row,) = world_rows(1)
    whole = encoder.examples([row], Expert()).full[0]
    assert len(whole.ids) <= 140
    assert len(encoder.prompt(row)) == 1 + 2 * 4 + 3


def test_the_chat_template_is_trls(tokenizer):
    assert tokenizer.chat_template == qwen2_5_chat_template
    assert is_chat_template_prefix_preserving(tokenizer)


def test_tags_are_no_special_tokens(tokenizer):
    ids = tokenizer.encode("<mem>1. Oslo</mem><answer><|im_end|>")
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<mem>1. Oslo</mem><answer>"


def test_the_encoder_gives_the_ids_that_trl_renders(tokenizer, encoder):
    for row in world_rows(5):
        assert encoder.prompt(row) == rendered_prompt(tokenizer, row)
        for message in Expert().trace(row):
            if message["role"] == "tool":
                assert encoder.tool_result(message["content"]) == tool_suffix_ids(tokenizer, [message])


@pytest.mark.parametrize("context", ["full", "memory"])
def test_the_turn_loop_sees_what_was_taught(tokenizer, encoder, context):
    """An expert played by the turn loop: its contexts and turns are the examples of the cold start, id by id."""
    (row,) = world_rows(1)
    turns = [encoder.turn(m["content"]) for m in Expert().trace(row, context) if m["role"] == "assistant"]
    seen = []

    def expert(contexts):
        seen.extend(contexts)
        return [turns[len(seen) - 1]], None

    environment = WorldEnvironment()
    environment.reset(**row)
    episode = Episode(encoder.prompt(row), {"search": environment.search}, environment)
    TurnLoop(tokenizer, expert, [tokenizer.eos_token_id], context=context).run([episode])
    assert episode.stop_reason == "done"
    assert episode.tool_calls == 4
    assert episode.tool_failures == 0
    examples = encoder.examples([row], Expert())
    if context == "full":
        (whole,) = examples.full
        assert whole.ids == episode.prompt_ids + episode.completion_ids
        assert [label != -100 for label in whole.labels] == [False] * len(episode.prompt_ids) + list(
            map(bool, episode.mask)
        )
    else:
        for example, visible, turn in zip(examples.memory, seen[1:], turns[1:], strict=True):
            assert example.ids == visible + turn
            assert example.labels == [-100] * len(visible) + turn


def test_answers_are_taught_after_the_contexts_that_are_scored(tokenizer, encoder):
    (row,) = world_rows(1)
    examples = encoder.examples([row], Expert())
    whole, answer = examples.full[0], encode_answer(tokenizer, row["answers"])
    prompt = encoder.prompt(row)
    mask = [int(label != -100) for label in whole.labels[len(prompt) :]]
    spans = find_memory_spans(tokenizer, whole.ids[len(prompt) :], mask)
    assert [span.turn for span in spans] == [1, 2, 3, 4]
    completion = whole.ids[len(prompt) :]
    assert [e.ids for e in examples.answer_memory] == [prompt + completion[s.start : s.end] + answer.ids for s in spans]
    # The memory opens its turn: what stands before it is the history.
    assert [e.ids for e in examples.answer_full] == [prompt + completion[: s.start] + answer.ids for s in spans]
    for example in examples.answer_memory + examples.answer_full:
        counted = [token for token in example.labels if token != -100]
        assert tokenizer.convert_ids_to_tokens(counted) == row["answers"]


def test_turns_parse(tokenizer, encoder):
    (row,) = world_rows(1)
    messages = Expert().trace(row)
    parsed = parse_response(tokenizer, encoder.turn(messages[2]["content"]), prefix=encoder.prompt(row))
    assert parsed["tool_calls"][0]["function"] == {"name": "search", "arguments": {"query": row["people"][1]}}


def test_the_model_is_tiny_and_depends_on_its_seed_alone(tokenizer):
    first, again, other = (tiny.build_model(tokenizer, seed) for seed in (0, 0, 1))
    assert 80_000 < first.num_parameters() < 110_000
    assert first.dtype == torch.float32
    weights = [model.model.layers[0].mlp.up_proj.weight for model in (first, again, other)]
    assert weights[0].equal(weights[1])
    assert not weights[0].equal(weights[2])


def test_query_probability_is_that_of_the_persons_name(tokenizer, encoder):
    model = tiny.build_model(tokenizer).eval()
    rows = world_rows(2)
    examples = encoder.examples(rows, Expert()).full
    names = tokenizer.convert_tokens_to_ids([person for row in rows for person in row["people"]])
    expected = []
    for example in examples:
        probabilities = model(torch.tensor([example.ids])).logits[0].softmax(-1)
        expected += [
            probabilities[i - 1, token].item() for i, token in enumerate(example.labels) if token in set(names)
        ]
    assert len(expected) == 8
    assert cold_start.query_probability(model, tokenizer, examples) == pytest.approx(sum(expected) / 8, rel=1e-4)


def test_the_cold_start_is_kept(tmp_path):
    recipe = Recipe(
        objectives=1, traces=8, steps=2, full=2, memory=2, answer_full=2, answer_memory=2, query_probability=0
    )
    steps = []
    model, _ = cold_start.cold_start(tmp_path, recipe=recipe, on_step=lambda step, loss: steps.append(step))
    again, _ = cold_start.cold_start(tmp_path, recipe=recipe, on_step=lambda step, loss: steps.append(step))
    assert steps == [1, 2]
    assert all(a.equal(b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))
    cold_start.cold_start(tmp_path, seed=1, recipe=recipe, on_step=lambda step, loss: steps.append(step))
    assert steps == [1, 2, 1, 2]


def test_a_cold_start_that_learned_nothing_is_refused(tmp_path):
    recipe = Recipe(objectives=1, traces=8, steps=1, full=2, memory=2, answer_full=2, answer_memory=2, attempts=2)
    with pytest.raises(RuntimeError, match="did not learn to search"):
        cold_start.cold_start(tmp_path, recipe=recipe)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_cold_start_learns_to_search(tmp_path):
    """The real recipe at two objectives and half the steps: the gate holds, and known answers are read off memories."""
    recipe = Recipe(objectives=2, steps=400, attempts=2)
    model, tokenizer = cold_start.cold_start(tmp_path, recipe=recipe)
    rows = world_rows(64, objectives=2, split="eval")
    examples = TraceEncoder(tokenizer).examples(rows, Expert(forget_often=0, forget_rarely=0, misread=0))
    last = examples.answer_memory[1::2]
    losses, tokens = cold_start.token_losses(model, last)
    assert len(tokens) == 2 * 64
    assert losses.neg().exp().mean() > 0.8
