"""The tiny tokenizer and model, and the cold start."""

import hashlib
import json
import sys

import pytest
import torch
from trl.chat_template_utils import is_chat_template_prefix_preserving, parse_response, qwen2_5_chat_template

import build_cold_start as cold_start
from build_cold_start import Phase, Recipe, TraceEncoder
from mempo_trl.memory import encode_answer, find_memory_spans
from mempo_trl.rollout.chat_format import ChatFormat
from mempo_trl.rollout.loop import TurnLoop
from mempo_trl.tasks.world import model as tiny
from mempo_trl.tasks.world.world import (
    CAREFUL,
    CITIES,
    PEOPLE,
    Expert,
    WorldEnvironment,
    WorldRetriever,
    searches,
    world_rows,
)
from mempo_trl.types import Episode


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
    """System prompt and schema are one token, a note is four, a fact six."""
    row = world_rows(1)[0]
    assert len(encoder.prompt(row)) == 1 + 2 * 4 + 3
    assert len(encoder.turn("<mem>1. Anna: Rome; 2. Omar: unknown; 3. Eva</mem>")) == 2 + 4 + 4 + 2 + 1
    result = WorldRetriever("q").search(["Anna"], 1)[0][0].text
    assert len(tokenizer.encode(result)) == 3 * 6 + 1  # the first of the two marks of bold is a token of its own
    assert len(encoder.examples([row], Expert()).full[0].ids) <= 350


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
                assert encoder.tool_result(message["content"]) == ChatFormat(tokenizer).suffix_ids([message])


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
    episode = Episode(tools={"search": environment.search}, environment=environment, prompt_ids=encoder.prompt(row))
    TurnLoop(tokenizer, expert, [tokenizer.eos_token_id], context=context).run([episode])
    assert episode.stop_reason == "done"
    assert episode.tool_calls == sum(len(searches(row["question_id"], who)) for who in row["people"])
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
    assert [span.turn for span in spans] == list(range(1, len(spans) + 1))
    assert len(spans) == sum(len(searches(row["question_id"], who)) for who in row["people"])
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
    query = [name for who in row["people"] for name in searches(row["question_id"], who)][1]
    assert parsed["tool_calls"][0]["function"] == {"name": "search", "arguments": {"query": query}}


def test_the_model_is_tiny_and_depends_on_its_seed_alone(tokenizer):
    first, again, other = (tiny.build_model(tokenizer, seed) for seed in (0, 0, 1))
    assert 80_000 < first.num_parameters() < 110_000
    assert first.dtype == torch.float32
    weights = [model.model.layers[0].mlp.up_proj.weight for model in (first, again, other)]
    assert weights[0].equal(weights[1])
    assert not weights[0].equal(weights[2])


# The cold start

SMALL = Recipe(
    (Phase(2, (1, 1), ({"memory": 2},)), Phase(1, (1, 1), ({"memory": 2, "answer_memory": 1}, {"full": 3}))),
    objectives=(1, 2),
    traces=8,
)


def test_the_cold_start_depends_on_its_seed_alone():
    losses = []
    for seed in (0, 0, 1):
        model = cold_start.cold_start(seed, [SMALL, SMALL], on_step=lambda step, loss: losses.append((step, loss)))
    assert not model.training
    assert [step for step, _ in losses] == [1, 2, 3] * 6
    assert losses[:6] == losses[6:12] != losses[12:]
    assert losses[0] != losses[3]  # the second recipe goes on where the first stopped


def test_phases_see_what_they_are_told(encoder, monkeypatch):
    batches = []
    examples = cold_start.teach(encoder, SMALL)
    kinds = {tuple(e.ids): kind for some in examples for kind in some._fields for e in getattr(some, kind)}
    losses = cold_start.token_losses
    monkeypatch.setattr(cold_start, "token_losses", lambda model, batch: batches.append(batch) or losses(model, batch))
    cold_start.fit(tiny.build_model(encoder.tokenizer), examples, SMALL)
    assert [[kinds[tuple(e.ids)] for e in batch] for batch in batches] == [
        ["memory"] * 2,
        ["memory"] * 2,
        ["memory", "memory", "answer_memory"],
        ["full"] * 3,
    ]
    lengths = [{tuple(e.ids) for e in some.full} for some in examples]
    assert any(all(tuple(e.ids) in whole for e in batches[-1]) for whole in lengths)


def test_the_script_writes_weights_and_a_record_of_them(tmp_path, monkeypatch):
    monkeypatch.setattr(cold_start, "RECIPES", (SMALL,))
    monkeypatch.setattr(sys, "argv", ["cold_start", str(tmp_path / "new.safetensors")])
    cold_start.main()
    record = json.loads((tmp_path / "new.json").read_text())
    assert record["seed"] == tiny.START_SEED
    assert len(record["first_losses"]) == 3
    assert record["sha256"] == hashlib.sha256((tmp_path / "new.safetensors").read_bytes()).hexdigest()


def test_the_packaged_weights_are_the_recorded_ones():
    record = json.loads(tiny.START.with_suffix(".json").read_text())
    assert hashlib.sha256(tiny.START.read_bytes()).hexdigest() == record["sha256"]


@pytest.mark.slow
def test_the_script_starts_as_recorded():
    """Its first steps, from the recorded seed; numerics differ a little between machines."""
    record = json.loads(tiny.START.with_suffix(".json").read_text())
    steps = len(record["first_losses"])
    losses = []

    class Enough(Exception):
        pass

    def on_step(step, loss):
        losses.append(loss)
        if step == steps:
            raise Enough

    with pytest.raises(Enough):
        cold_start.cold_start(record["seed"], on_step=on_step)
    assert losses == pytest.approx(record["first_losses"], rel=0.01)


def test_the_packaged_model_searches_and_reads():
    """It asks for the right person and knows the right city, after its last memory and after the whole history."""
    model, tokenizer = tiny.load_start()
    assert not model.training
    people = torch.tensor(tokenizer.convert_tokens_to_ids(list(PEOPLE)))
    # The expert that it learned from forgot those of the first half every other time.
    cities = torch.tensor(tokenizer.convert_tokens_to_ids(list(CITIES[len(CITIES) // 2 :])))
    for objectives in (2, 4, 8):
        examples = TraceEncoder(tokenizer).examples(world_rows(8, objectives, split="eval"), CAREFUL)
        for sequences in (examples.memory, examples.full):
            losses, tokens = cold_start.token_losses(model, sequences)
            probabilities = losses.neg().exp()
            assert probabilities[torch.isin(tokens, people)].mean() > 0.9
            assert probabilities[torch.isin(tokens, cities)].mean() > 0.85


def test_the_packaged_model_is_small():
    assert tiny.START.stat().st_size < 1_000_000
