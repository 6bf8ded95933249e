"""docs/architecture.md says what is: its map, the way of one token, and its recipes, each applied and tried."""

import importlib.util
import json
import os
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


PAGES = """
import sys
from pathlib import Path

import torch

from brute_force import turn_logps
from conftest import build_model, build_tokenizer
from helpers import make_trainer, visible_context
from mempo_trl.rollout.context import CONTEXTS
from mempo_trl.training.by_turn import visible_starts
from mempo_trl.types import Turn

assert "pages" in CONTEXTS
tokenizer = build_tokenizer()
from datasets import Dataset

rows = [{"prompt": [{"role": "user", "content": f"capital of A{i}"}], "answers": ["Paris"]} for i in range(2)]
trainer = make_trainer(
    Path(sys.argv[1]), build_model(len(tokenizer)), tokenizer, Dataset.from_list(rows), context="pages",
    context_turns=2, max_turns=6, max_steps=1, learning_rate=0.0, logps="packed",
)
trainer.train()
batch = trainer.last_rollout
assert max(len(episode.turns) for episode in batch.episodes) >= 4
for episode in batch.episodes:
    assert [turn.first_visible for turn in episode.turns] == [0, 0, 0, 2, 2, 4][: len(episode.turns)]
inputs = trainer._generate_and_score_completions(next(iter(trainer.get_train_dataloader())))
ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
with torch.no_grad(), trainer._seen_as(inputs["visible_start"]):
    logps, *_ = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, inputs["completion_ids"].size(1))
    for row, episode in enumerate(trainer.last_rollout.episodes):
        visible = inputs["visible_start"][row, : len(episode.completion_ids)].tolist()
        expected = turn_logps(trainer.model, episode.prompt_ids, episode.completion_ids, visible)
        torch.testing.assert_close(logps[row, : len(expected)], expected, atol=1e-5, rtol=0)
print("as it was seen")
"""


def test_a_context_is_added(tmp_path):
    """A fourth context plays, and is trained on as it was seen, with one file changed."""
    (diff,) = (b.code for b in blocks(PAGE) if b.language == "diff" and "rollout/context.py\n" in b.code)
    assert len(re.findall(r"^\+\+\+ ", diff, re.MULTILINE)) == 1
    shutil.copytree(ROOT / "src", tmp_path / "src")
    subprocess.run(["git", "apply", "-"], input=diff, text=True, check=True, cwd=tmp_path)
    environment = os.environ | {"PYTHONPATH": f"{tmp_path / 'src'}{os.pathsep}{ROOT / 'tests'}"}
    command = [sys.executable, "-c", PAGES, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.stdout.endswith("as it was seen\n"), done.stderr
