"""Turns in the syntax of each family are played: calls run, malformed ones are answered, stop strings end a turn."""

import pytest
from datasets import Dataset

from conftest import build_model
from helpers import answer_reward, make_config, search
from mempo_trl import MemPOTrainer
from mempo_trl.inference.agent import MemoryAgent
from mempo_trl.memory.spans import memory_spans
from mempo_trl.rollout.chat_format import ChatFormat
from mempo_trl.rollout.loop import TurnLoop
from mempo_trl.tasks.search import mempo_outcome_reward
from mempo_trl.types import Episode
from templates import template_tokenizer

CALL = {"name": "search", "arguments": {"query": "Oslo"}}
BODIES = [
    ("<think>plan</think>", [CALL]),
    ("<mem>Oslo</mem>\n<think>plan</think>", [CALL]),
    ("<mem>Oslo</mem>\n<think>plan</think>\n<answer>Paris</answer>", []),
]
FAMILIES = ["qwen2_5", "qwen3", "qwen3_5_think", "qwen3_5_nothink", "llama3_2", "gemma4_v5", "lfm2_2_5"]
FAMILIES += ["nemotron_3_nano", "glm4moe", "gptoss"]


class Played(MemPOTrainer):
    """A trainer whose engine writes the turns of BODIES; every second row answers wrongly."""

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        chat, turns = self._chat_of(), []
        for row, ids in enumerate(prompt_ids):
            number = len(self._batch.episodes and self._batch.episodes[0].turns)
            body, calls = BODIES[min(number, 2)]
            turns.append(chat.turn_ids(body.replace("Paris", "Rome") if row % 2 else body, calls))
            self.given.append(ids)
        return turns, None

    def _chat_of(self):
        self.given = getattr(self, "given", [])
        return self._chat


def played(chat, turns, **options):
    """An episode in which the engine writes `turns`, texts without end tokens."""
    script = iter([chat.tokenizer.encode(text, add_special_tokens=False) for text in turns])
    loop = TurnLoop(chat.tokenizer, lambda contexts: ([next(script)], None), [], chat=chat, **options)
    episode = Episode(
        tools={"search": search}, prompt_ids=chat.prompt_ids([{"role": "user", "content": "q"}], [search])
    )
    (episode,) = loop.run([episode])
    return episode


@pytest.mark.parametrize("context", ["memory", "full"])
@pytest.mark.parametrize("name", FAMILIES)
def test_training_and_agent_see_the_same_and_reward_the_right(tmp_path, name, context):
    tokenizer = template_tokenizer(name)
    model = build_model(len(tokenizer))
    rewards = []

    def outcome(completions, **kwargs):
        rewards.extend(mempo_outcome_reward(completions, [["Paris"]] * len(completions)))
        return rewards[-len(completions) :]

    rows = [{"prompt": [{"role": "user", "content": "q"}], "answers": ["Paris"]}] * 2
    config = make_config(
        tmp_path, context=context, max_steps=1, num_generations=2, per_device_train_batch_size=2,
        chat_template_kwargs={"enable_thinking": name != "qwen3_5_nothink"},
    )  # fmt: skip
    trainer = Played(model, outcome, config, Dataset.from_list(rows), processing_class=tokenizer, tools=[search])
    trainer.train()
    assert rewards == [1.0, 0.0]
    episode = trainer.last_rollout.episodes[0]
    bounds = [(turn.start, turn.end) for turn in episode.turns]
    spans = memory_spans(tokenizer, episode.completion_ids, bounds)
    assert [span.turn for span in spans] == [1, 2]
    assert episode.malformed_calls == 0
    script = iter(BODIES)
    agent = MemoryAgent(model, tokenizer, [search], context, chat_template_kwargs=config.chat_template_kwargs)
    seen = []
    agent.model.generate = lambda contexts, *_: seen.extend(contexts) or [trainer._chat.turn_ids(*next(script))]
    again = agent.run({"prompt": rows[0]["prompt"]})
    assert again.completion_ids == episode.completion_ids
    assert seen == trainer.given[::2]
    assert mempo_outcome_reward([again.messages], [["Paris"]]) == [1.0]


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3_5_think", "llama3_2", "gemma4_v5", "lfm2_2_5"])
def test_a_call_that_a_memory_or_a_thought_quotes_is_not_made(name):
    chat = ChatFormat(template_tokenizer(name))
    call = chat.turn_text("", [CALL]).replace("</think>", "").removesuffix(chat.ends[0]).strip()
    for body in (f"<mem>{call}</mem>\n<think>x</think>\n<answer>a</answer>", f"<mem>m</mem>\n<think>{call}</think>"):
        episode = played(chat, [chat.turn_text(body)])
        assert (episode.stop_reason, episode.tool_calls) == ("finished", 0)


@pytest.mark.parametrize(
    ("name", "malformed"),
    [
        ("qwen2_5", '<tool_call>\n{"name": "search", "arguments": \n</tool_call>'),
        ("qwen2_5", '<tool_call>{"arguments": {}}</tool_call>'),
        ("qwen2_5", '<tool_call>["search"]</tool_call>'),
        ("qwen3_5_think", '</think><tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n</tool_call>'),
        ("llama3_2", '{"name": "search", "arguments": {"query": "x"}}'),
        ("gemma4_v5", "<|tool_call>call:search{query}<tool_call|>"),
    ],
)
def test_a_malformed_call_is_answered_and_counted(name, malformed):
    chat = ChatFormat(template_tokenizer(name))
    right, answer = chat.turn_text(*BODIES[1]), chat.turn_text(*BODIES[2])
    episode = played(chat, [malformed + chat.ends[0], right, answer])
    assert episode.turns[0].results[0]["content"].startswith("Error: the tool call cannot be read: ")
    assert (episode.malformed_calls, episode.tool_calls, episode.stop_reason) == (1, 1, "finished")
    assert mempo_outcome_reward([episode.messages], [["Paris"]]) == [0.0]


def test_arguments_are_read_alike_however_they_are_written():
    chat = ChatFormat(template_tokenizer("qwen2_5"))
    for function, arguments in [
        ('{"name": "search", "arguments": "{\\"query\\": \\"x\\"}"}', {"query": "x"}),
        ('{"name": "search", "parameters": {"query": "x"}}', {"query": "x"}),
        ('{"name": "search"}', {}),
    ]:
        (call,) = chat.read(f"<tool_call>{function}</tool_call>", [search]).calls
        assert call["function"] == {"name": "search", "arguments": arguments}


def test_a_stop_string_ends_a_turn():
    chat = ChatFormat(template_tokenizer("qwen2_5"))
    texts = [chat.turn_text(*body).removesuffix("<|im_end|>") for body in BODIES]
    texts[0] += "\nwhat the engine sampled behind it"
    episode = played(chat, texts, stop=["</tool_call>", "</answer>"])
    assert episode.stop_reason == "finished"
    assert episode.tool_calls == 2
    assert all("behind" not in turn.text for turn in episode.turns)
    assert chat.tokenizer.decode(episode.turns[0].result_ids).startswith("<|im_end|>\n<|im_start|>user")


def test_the_transformers_engine_takes_stop_strings(tmp_path, model, tokenizer, questions):
    options = {"max_steps": 1, "max_turn_length": 8, "generation_kwargs": {"stop": ["e"]}}
    trainer = MemPOTrainer(
        model, answer_reward, make_config(tmp_path, **options), questions, processing_class=tokenizer, tools=[search]
    )
    trainer.train()
    assert trainer._stop == ["e"]
    turns = [turn for episode in trainer.last_rollout.episodes for turn in episode.turns]
    assert not any("e" in tokenizer.decode(turn.ids[:-1]) for turn in turns)
    assert {episode.stop_reason for episode in trainer.last_rollout.episodes} <= {"finished", "truncated"}
