"""What shapes the prompts is saved with a policy, and read back wherever it is run."""

import json
from dataclasses import replace

import pytest
from datasets import Dataset
from transformers import AutoTokenizer

from conftest import build_model
from helpers import answer_reward, make_config, search
from mempo_trl import MemPOTrainer
from mempo_trl.cli import main
from mempo_trl.evaluation.callback import EvaluationCallback
from mempo_trl.inference.agent import MemoryAgent
from mempo_trl.inference.endpoints import Sampling
from mempo_trl.inference.local_model import LocalModel
from mempo_trl.rollout import prompt_settings
from mempo_trl.rollout.prompt_settings import FILE_NAME, PromptSettings, saved_settings, settings_of
from mempo_trl.tasks.search.prompts import build_prompt
from mempo_trl.traces.file import read_traces
from mempo_trl.types import TurnLimits
from templates import template_tokenizer

OPTIONS = {
    "chat_template_kwargs": {"enable_thinking": False}, "context": "full", "max_turns": 5, "max_turn_length": 16,
    "max_tool_length": 100, "max_completion_length": 300, "context_turns": 2,
}  # fmt: skip


@pytest.fixture(autouse=True)
def said_anew():
    prompt_settings._warn.cache_clear()


class Tools:
    """An environment whose only tool is `search`."""

    def reset(self, **row):
        return None

    def search(self, query: str) -> str:
        """Searches.

        Args:
            query: what to look for.
        """
        return query


@pytest.fixture
def policy(tmp_path):
    """A folder with a policy of one step, its trainer, and the prompts that it was trained on, by question."""
    tokenizer = template_tokenizer("qwen3")
    rows = [{"prompt": build_prompt(q, "Be brief."), "answers": ["a"], "question_id": q} for q in ("x", "y")]
    config = make_config(tmp_path / "run", max_steps=1, **OPTIONS)
    model = build_model(len(tokenizer))
    trainer = MemPOTrainer(
        model, answer_reward, config, Dataset.from_list(rows), processing_class=tokenizer, environment_factory=Tools
    )
    trainer.train()
    trainer.save_model(tmp_path / "policy")
    return tmp_path / "policy", trainer, {e.row["question_id"]: e.prompt_ids for e in trainer.last_rollout.episodes}


def test_eval_and_run_see_the_prompts_of_training_without_an_option(policy, tmp_path, monkeypatch, caplog):
    folder, _, trained = policy
    seen, generate = [], LocalModel.generate
    monkeypatch.setattr(LocalModel, "generate", lambda self, ids, *a: seen.extend(ids) or generate(self, ids, *a))
    lines = [json.dumps({"prompt": build_prompt(q, "Be brief."), "answers": ["a"]}) for q in trained]
    (tmp_path / "own_rows.py").write_text(
        f"from test_prompt_settings import Tools\ndef rows():\n    return [{', '.join(lines)}]\n"
    )
    monkeypatch.chdir(tmp_path)
    task = ["own_rows:rows", "--environment_factory", "own_rows:Tools"]
    assert main(["eval", "--model", str(folder), "--dataset", *task, "-o", "e"]) == 0
    first = [ids for ids in seen if ids in list(trained.values())]
    assert sorted(first) == sorted(trained.values())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.decode(trained["x"]).endswith("<think>\n\n</think>\n\n")
    traces = list(read_traces(tmp_path / "e" / "episodes.jsonl"))
    assert {trace["context"] for trace in traces} == {"full"}
    recorded = json.loads((tmp_path / "e" / "settings.json").read_text())
    assert {name: recorded[name] for name in OPTIONS if name != "context"} == {
        name: value for name, value in OPTIONS.items() if name != "context"
    }
    assert not caplog.records
    seen.clear()
    main(["run", *task, "--model", str(folder), "--trace", "t.jsonl"])
    assert seen[0] in list(trained.values())
    (trace,) = read_traces(tmp_path / "t.jsonl")
    assert trace["context"] == "full"
    assert len(trace["turns"][0]["tokens"]) <= 16


def test_a_text_question_has_the_system_prompt_of_training(policy, tmp_path, monkeypatch):
    folder, _, _ = policy
    (tmp_path / "c.jsonl").write_text('{"id": "1", "title": "t", "text": "x"}\n')
    seen, generate = [], LocalModel.generate
    monkeypatch.setattr(LocalModel, "generate", lambda self, ids, *a: seen.extend(ids) or generate(self, ids, *a))
    main(["run", "x", "--model", str(folder), "--corpus", str(tmp_path / "c.jsonl")])
    text = AutoTokenizer.from_pretrained(folder).decode(seen[0])
    assert "Be brief." in text
    assert "one step a turn" not in text


def test_what_is_given_wins_and_a_difference_is_said(policy, caplog):
    folder, trainer, _ = policy
    tokenizer = AutoTokenizer.from_pretrained(folder)
    agent = MemoryAgent(trainer.model, tokenizer, [search])
    assert agent.settings == replace(trainer.prompt_settings, chat_template_kwargs={"enable_thinking": False})
    assert (agent.limits, agent.sampling) == (TurnLimits(5, 100, 300), Sampling(max_turn_length=16))
    assert not caplog.records
    agent = MemoryAgent(trainer.model, tokenizer, [search], "memory", limits=TurnLimits(9, 100, 300))
    assert (agent.context, agent.limits.max_turns) == ("memory", 9)
    assert "trained with context='full', and is used with context='memory'" in caplog.text
    assert "trained with max_turns=5, and is used with max_turns=9" in caplog.text
    assert len(caplog.records) == 2
    MemoryAgent(trainer.model, tokenizer, [search], "memory")
    assert len(caplog.records) == 2  # said once

    def look(place: str) -> str:
        """Looks.

        Args:
            place: where.
        """
        return place

    MemoryAgent(trainer.model, tokenizer, [look]).run({"prompt": build_prompt("x", "Be long.")})
    assert "trained with other tools" in caplog.text
    assert "trained with other system_prompt" in caplog.text


def test_training_goes_on_with_the_options_of_the_template_and_says_what_differs(policy, tmp_path, caplog, questions):
    folder, trainer, _ = policy
    tokenizer = AutoTokenizer.from_pretrained(folder)
    config = make_config(tmp_path, **{**OPTIONS, "chat_template_kwargs": None, "max_turns": 7})
    again = MemPOTrainer(
        trainer.model, answer_reward, config, questions, processing_class=tokenizer, environment_factory=Tools
    )
    assert config.chat_template_kwargs == {"enable_thinking": False}
    assert again.prompt_settings.max_turns == 7
    assert [record.message for record in caplog.records] == [
        "the policy was trained with max_turns=5, and is used with max_turns=7"
    ]


def test_the_callback_evaluates_with_the_settings_of_the_trainer(policy, caplog):
    _, trainer, _ = policy
    callback = EvaluationCallback(trainer, Tools, [])
    agents = {context: callback._agent(context) for context in ("full", "memory")}
    assert agents["full"].settings == trainer.prompt_settings
    assert agents["memory"].settings == replace(trainer.prompt_settings, context="memory")
    assert not caplog.records


def test_another_context_leaves_the_budget_behind():
    settings = PromptSettings(context="budget", context_tokens=900)
    assert settings.budget.tokens == 900
    assert settings.replaced({"context": "full"}) == PromptSettings(context="full")
    assert settings.replaced({"context": "budget", "max_turns": 3}).context_tokens == 900
    with pytest.raises(ValueError, match="has no effect"):
        PromptSettings().replaced({"context_tokens": 900})


@pytest.mark.parametrize("content", ["", "[]", '{"context": "last"}', '{"colour": "red"}', "{}"])
def test_a_file_that_is_something_else_is_refused(tmp_path, content):
    (tmp_path / FILE_NAME).write_text(content)
    if content == "{}":
        assert settings_of(tmp_path, {}) == PromptSettings()
        return
    with pytest.raises(ValueError, match="is not what this mempo-trl writes"):
        saved_settings(tmp_path)


@pytest.mark.parametrize("name", [None, "", "some/model", "/no/such/folder", "a b c"])
def test_names_without_a_file_have_the_defaults(name):
    assert settings_of(name, {}) == PromptSettings()


def test_a_model_of_the_hub_brings_its_settings(tmp_path, monkeypatch):
    from huggingface_hub import constants

    commit = "0" * 40
    snapshot = tmp_path / "models--me--policy" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (tmp_path / "models--me--policy" / "refs").mkdir()
    (tmp_path / "models--me--policy" / "refs" / "main").write_text(commit)
    PromptSettings(context="full").save(snapshot)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert settings_of("me/policy", {}).context == "full"
