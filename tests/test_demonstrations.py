import json

import pytest
from datasets import Dataset

from fake_server import serve
from helpers import visible_context
from mempo_trl.inference.agent import MemoryAgent
from mempo_trl.inference.endpoints import ChatEndpoint
from mempo_trl.rollout.chat_format import ChatFormat
from mempo_trl.rollout.tools import tool_schemas
from mempo_trl.sft.demonstrations import (
    expert_episodes,
    rejected_path,
    remaining_rows,
    sft_rows,
    teacher_episodes,
    write_demonstrations,
)
from mempo_trl.tasks.search import BM25Retriever, Passage, SearchEnvironment, build_prompt
from mempo_trl.tasks.search.expert import gold_conversation
from mempo_trl.tasks.search.rewards import is_well_formed, mempo_outcome_reward
from mempo_trl.tasks.world.world import WorldEnvironment, searches, world_rows
from mempo_trl.traces.convert import episode_trace
from mempo_trl.traces.file import read_traces

PASSAGES = [
    Passage("0", "Ada Lovelace", "Ada Lovelace was born in London in 1815."),
    Passage("1", "Emmy Noether", "Emmy Noether was born in Erlangen, in [Bavaria] <1882>."),
]
ROW = {
    "prompt": build_prompt("Where was Ada born?; Where was Emmy born?"),
    "question_id": "births",
    "answers": ["London", "Erlangen"],
    "decomposition": [
        {"query": "Ada Lovelace", "finding": "Ada Lovelace was born in London in 1815."},
        {"query": "Emmy Noether", "finding": "was born in Erlangen"},
    ],
}


@pytest.fixture(scope="module")
def environment_factory():
    retriever = BM25Retriever.build(PASSAGES)
    return lambda: SearchEnvironment(retriever, top_k=1)


# Gold searches


def test_a_gold_conversation_word_for_word(environment_factory):
    messages = gold_conversation(ROW, environment_factory())
    assert [m["role"] for m in messages] == ["assistant", "tool", "assistant", "tool", "assistant"]
    first, last = messages[0]["content"], messages[-1]["content"]
    assert first.startswith("<think>\nStep 1 of 2")
    assert json.loads(first.split("<tool_call>\n")[1].split("\n</tool_call>")[0]) == {
        "name": "search",
        "arguments": {"query": "Ada Lovelace"},
    }
    assert messages[1]["content"] == "(1) Ada Lovelace\nAda Lovelace was born in London in 1815."
    assert last == (
        "<mem>\nAda Lovelace: Ada Lovelace was born in London in 1815.\nEmmy Noether: was born in Erlangen\n</mem>\n"
        "<think>\nI have sufficient information to provide the final answers.\n</think>\n"
        "<answer>\nLondon; Erlangen\n</answer>"
    )
    assert is_well_formed(messages)
    assert mempo_outcome_reward([messages], [ROW["answers"]]) == [1.0]


def test_a_finding_that_the_search_does_not_show_is_not_taught(environment_factory):
    steps = [ROW["decomposition"][0], {"query": "Emmy Noether", "finding": "was born in Göttingen"}]
    assert gold_conversation({**ROW, "decomposition": steps}, environment_factory()) is None


def test_rows_without_gold_searches_are_refused(environment_factory):
    rows = [{key: value for key, value in ROW.items() if key != "decomposition"}]
    with pytest.raises(ValueError, match=r"'births' has no gold searches.*Use a teacher"):
        list(expert_episodes(rows, environment_factory))


def test_the_worlds_expert_is_always_right(tmp_path):
    rows = world_rows(5, objectives=3, split="test")
    counts = write_demonstrations(tmp_path / "t.jsonl", expert_episodes(rows, WorldEnvironment))
    assert counts == {"kept": 5}
    trace = next(read_traces(tmp_path / "t.jsonl"))
    path = [searches(rows[0]["question_id"], who) for who in rows[0]["people"]]
    assert [len(turn["tool_calls"]) for turn in trace["turns"]] == [1] * sum(map(len, path)) + [0]
    notes = [f"{names[-1]}: {city}" for names, city in zip(path, trace["answers"], strict=True)]
    assert trace["turns"][-1]["memory_text"] == "; ".join(f"{i}. {note}" for i, note in enumerate(notes, 1))


# The file


def answers_of(tmp_path):
    return [trace["question_id"] for trace in read_traces(tmp_path / "t.jsonl")]


def test_a_stopped_run_goes_on_where_it_was(tmp_path):
    rows, path = world_rows(4, objectives=2, split="test"), tmp_path / "t.jsonl"
    write_demonstrations(path, expert_episodes(rows[:2], WorldEnvironment))
    with path.open("a") as file:
        file.write('{"schema_version": 1, "question_id": "' + rows[2]["question_id"])  # killed in the middle of a line
    with pytest.warns(UserWarning, match="cut short"):
        left = remaining_rows(path, rows)
    assert [row["question_id"] for row in left] == [row["question_id"] for row in rows[2:]]
    with pytest.warns(UserWarning, match="cut short"):
        write_demonstrations(path, expert_episodes(left, WorldEnvironment))
    assert answers_of(tmp_path) == [row["question_id"] for row in rows]
    assert remaining_rows(path, rows) == []


def test_each_trace_is_on_disk_before_the_next_is_asked_for(tmp_path):
    rows = world_rows(3, objectives=2, split="test")

    def breaking():
        yield from expert_episodes(rows[:2], WorldEnvironment)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_demonstrations(tmp_path / "t.jsonl", breaking())
    assert answers_of(tmp_path) == [row["question_id"] for row in rows[:2]]


# A teacher


def teacher_reply(path, body):
    """Right for the first question, wrong for the second, malformed for the third, an error for the fourth."""
    question = body["messages"][1]["content"]
    if "fourth" in question:
        return (400, {"error": "no"}, {})
    asked = any(m["role"] == "tool" for m in body["messages"])
    text = {"first": "<answer>London</answer>", "second": "<answer>Paris</answer>", "third": "London"}[question]
    message = {"content": f"<mem>m</mem><think>t</think>{text}"}
    if not asked:
        function = {"name": "search", "arguments": '{"query": "Ada"}'}
        message = {"content": "<think>t</think>", "tool_calls": [{"id": "1", "type": "function", "function": function}]}
    return {"choices": [{"message": message}], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}


def test_a_teachers_wrong_answers_are_put_aside(tmp_path, environment_factory):
    names = ["first", "second", "third", "fourth"]
    rows = [{"prompt": build_prompt(name), "question_id": name, "answers": ["London"]} for name in names]
    path = tmp_path / "t.jsonl"
    seen = []
    with serve(teacher_reply) as server:
        agent = MemoryAgent(ChatEndpoint(server.url, "teacher"), environment_factory=environment_factory)
        counts = write_demonstrations(path, teacher_episodes(rows, agent, 2), on_trace=lambda c: seen.append(c.total()))
    assert counts == {"kept": 1, "rejected": 2, "error": 1}
    assert seen == [1, 2, 3, 4]
    assert answers_of(tmp_path) == ["first"]
    assert [t["question_id"] for t in read_traces(rejected_path(path))] == ["second", "third"]
    assert [row["question_id"] for row in remaining_rows(path, rows)] == ["fourth"]  # what failed is tried again
    (trace,) = read_traces(path)
    assert trace["turns"][0]["tool_calls"] == [{"name": "search", "arguments": {"query": "Ada"}}]
    assert (trace["turns"][1]["memory_text"], trace["turns"][1]["context_tokens"]) == ("m", 9)


# Rows for SFT


@pytest.fixture
def chat(tokenizer):
    return ChatFormat(tokenizer)


@pytest.fixture
def trace(environment_factory):
    ((_, trajectory),) = expert_episodes([ROW], environment_factory)
    return json.loads(json.dumps(episode_trace(trajectory, "memory")))


def counted(row):
    return [i for i, m in zip(row["input_ids"], row["assistant_masks"], strict=True) if m]


def test_memory_rows_have_one_turn_each_and_what_it_will_see(chat, trace, environment_factory):
    tools, tokenizer = [environment_factory().search], chat.tokenizer
    rows = sft_rows(trace, chat, "memory")
    prompt = chat.prompt_ids(trace["messages"], tools)
    turns = [[*tokenizer.encode(turn["text"]), tokenizer.eos_token_id] for turn in trace["turns"]]
    results = [
        chat.suffix_ids([{"role": "tool", "name": "search", "content": turn["tool_results"][0]}])
        for turn in trace["turns"][:-1]
    ]
    assert [row["input_ids"] for row in rows] == [
        prompt + turns[0],
        prompt + turns[0] + results[0] + turns[1],
        prompt + turns[1] + results[1] + turns[2],
    ]
    assert [counted(row) for row in rows] == turns


def test_a_full_row_counts_each_turn_once(chat, trace):
    memory, (full,) = (sft_rows(trace, chat, context) for context in ("memory", "full"))
    assert counted(full) == [i for row in memory for i in counted(row)]
    text = chat.tokenizer.decode(full["input_ids"])
    assert text.endswith("</answer><|im_end|>")
    assert all(turn["text"] in text for turn in trace["turns"])


def test_rows_are_what_the_agent_sees(chat, trace, environment_factory, model):
    """The agent, played through the same turns, is given the ids that a memory row has before its turn."""
    from agent_script import ScriptedGenerate

    model.generate = ScriptedGenerate(chat.tokenizer, [turn["text"] for turn in trace["turns"]])
    agent = MemoryAgent(model, chat.tokenizer, environment_factory=environment_factory)
    episode = agent.run(ROW)
    rows = sft_rows(trace, chat, "memory")
    given = [call[0] for call in model.generate.given]
    assert given == [row["input_ids"][: -sum(row["assistant_masks"])] for row in rows]
    (full,) = sft_rows(trace, chat, "full")
    assert episode.prompt_ids + episode.completion_ids == full["input_ids"]
    assert visible_context(episode.prompt_ids, [], [], "full") == given[0]


def test_the_tools_are_those_of_the_trace(chat, trace):
    def look_up(word: str) -> str:
        """
        Looks up a word.

        Args:
            word: The word.
        """

    other = {**trace, "tools": tool_schemas({"look_up": look_up})}
    (full,) = sft_rows(other, chat, "full")
    prompt = chat.prompt_ids(trace["messages"], [look_up])
    assert full["input_ids"][: len(prompt)] == prompt
    del other["tools"]
    with pytest.raises(ValueError, match="does not say which tools"):
        sft_rows(other, chat)


def test_a_last_turn_whose_call_was_not_made(chat, trace):
    cut = {**trace, "turns": [{**trace["turns"][0], "tool_results": []}]}
    (full,) = sft_rows(cut, chat, "full")
    assert sum(full["assistant_masks"]) == len(chat.tokenizer.encode(trace["turns"][0]["text"])) + 1


def test_trl_trains_on_the_turns_alone(chat, trace, model, tmp_path):
    from trl import SFTConfig, SFTTrainer

    rows = sft_rows(trace, chat, "full")
    config = SFTConfig(str(tmp_path), use_cpu=True, report_to="none", max_length=None, disable_tqdm=True)
    trainer = SFTTrainer(model, config, train_dataset=Dataset.from_list(rows), processing_class=chat.tokenizer)
    (batch,) = trainer.get_train_dataloader()
    labels = batch["labels"][0]
    assert labels[labels != -100].tolist() == counted(rows[0])
