"""docs/architecture.md says what is: its map, the way of one token, and its recipes, each applied and tried."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys

import pytest

from docs_pages import ROOT, blocks
from helpers import make_trainer
from test_architecture import ROOMS

PAGE = ROOT / "docs" / "architecture.md"


def table(heading):
    """The cells of the table in a section, without its head."""
    section = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "|" in line][2:]


def test_the_map_is_the_one_of_the_imports():
    said = {name.strip("`"): set(re.findall(r"`(\w+)`", imports)) for name, _, imports in table("The map")}
    assert said == ROOMS


def test_one_token_takes_the_way_that_the_page_lists(tmp_path, model, tokenizer, questions):
    """A real step is watched: every function of the list is called, for the first time in the list's order."""
    listed = [(file.strip("`"), function.strip("`")) for file, function, _ in table("The way of one token")]
    assert len({file for file, _ in listed}) <= 5
    called = []

    def watch(frame, event, argument):
        place = frame.f_code.co_filename.partition("/mempo_trl/")[2], frame.f_code.co_qualname
        if event == "call" and place in listed and place not in called:
            called.append(place)

    trainer = make_trainer(tmp_path, model, tokenizer, questions, context="memory", max_steps=1)
    sys.setprofile(watch)
    try:
        trainer.train()
    finally:
        sys.setprofile(None)
    assert called == listed


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Applies the diff that names a file to a copy of the examples, and imports the file."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)

    def apply(name):
        (diff,) = (b.code for b in blocks(PAGE) if b.language == "diff" and f"+++ b/{name}\n" in b.code)
        assert len(re.findall(r"^\+\+\+ ", diff, re.MULTILINE)) == 1
        subprocess.run(["git", "apply", "-"], input=diff, text=True, check=True, cwd=tmp_path)
        spec = importlib.util.spec_from_file_location("recipe", tmp_path / name)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return apply


def test_a_memory_reward_is_added(recipe, tmp_path, model, tokenizer, questions):
    module = recipe("examples/own_task.py")
    assert 'memory_reward_funcs=["answer_likelihood", true_prices]' in (tmp_path / "examples/own_task.py").read_text()
    rows = questions.add_column("prices", [json.dumps({"lamp": 7})] * len(questions))
    options = {"memory_reward_funcs": ["answer_likelihood", module.true_prices]}
    trainer = make_trainer(tmp_path, model, tokenizer, rows, trainer_options=options, max_steps=1)
    trainer.train()
    assert set(trainer.last_rollout.memory_rewards) == {"answer_likelihood", "true_prices"}
    assert set(trainer.last_rollout.memory_rewards["true_prices"]) == {None}  # the script's memories hold no number


def test_the_added_memory_reward_counts_prices(recipe):
    from mempo_trl.memory import MemorySpan
    from mempo_trl.training.memory_functions import Memory

    true_prices = recipe("examples/own_task.py").true_prices
    memories = [Memory(row, 1, text, MemorySpan(1, 0, 1)) for row, text in ((0, "lamp 7, rug 3"), (1, "none"))]
    assert true_prices(memories=memories, prices=['{"lamp": 7}', '{"lamp": 7}']) == [0.5, None]  # 7 is one, 3 is not


def test_an_environment_is_added(recipe, tmp_path, model, tokenizer):
    from datasets import Dataset

    module = recipe("capitals.py")
    rows = Dataset.from_list(module.questions())
    options = {"environment_factory": module.Atlas, "tools": None}
    trainer = make_trainer(tmp_path, model, tokenizer, rows, trainer_options=options, max_steps=1)
    trainer.train()
    episode = trainer.last_rollout.episodes[0]
    assert set(episode.tools) == {"capital"}
    assert episode.tools["capital"]("Peru") == "Lima"
    assert "no country" in episode.tools["capital"]("Atlantis")


def test_a_retriever_is_added(recipe):
    environment = recipe("notes.py").environment()
    environment.reset()
    assert "Omar lives in Rome" in environment.search("Where does Omar live? Rome or Oslo, Omar")
