"""The examples and their configurations hold together, and a task of one's own needs no change of the script."""

import importlib.util
import inspect
import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import yaml

from mempo_trl.cli import train
from mempo_trl.evaluation.scores import ANSWER_METRICS, METRICS
from mempo_trl.tasks.search import format_reward
from mempo_trl.tasks.task import open_task

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
CONFIGS = sorted((EXAMPLES / "configs").glob("*.yaml"))


CPU = ["--use_cpu"]


def test_the_example_is_what_mempo_train_runs():
    spec = importlib.util.spec_from_file_location("train_mempo", EXAMPLES / "train_mempo.py")
    script = importlib.util.module_from_spec(spec)
    sys.modules["train_mempo"] = script
    spec.loader.exec_module(script)
    assert inspect.getsource(script.main) == inspect.getsource(train.main)
    assert script.parse_options is train.parse_options
    assert (EXAMPLES / "configs" / "world.yaml").read_text() == train.WORLD_OPTIONS.read_text()


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_configurations_are_accepted(path, tmp_path):
    settings = yaml.safe_load(path.read_text())
    if settings.get("bf16"):  # asks for a GPU
        settings["bf16"] = False
    copy = tmp_path / path.name
    copy.write_text(yaml.safe_dump(settings))
    _, config, _ = train.parse_options(["--config", str(copy), *CPU])
    assert config.generation_batch_size % config.num_generations == 0


def test_the_paper_s_settings():
    settings = yaml.safe_load((EXAMPLES / "configs" / "qwen2.5_7b_paper.yaml").read_text())
    trajectories = 8 * settings["per_device_train_batch_size"] * settings["gradient_accumulation_steps"]
    assert trajectories == 128 * settings["num_generations"] == 128 * 16
    assert (settings["learning_rate"], settings["max_turns"], settings["objectives"]) == (1e-6, 16, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max_steps", "-1"], "the embedded world needs max_steps, got -1"),
        (["--objectives", "8"], "8 objectives can take 17 turns, got max_turns 10. Set it to 18"),
        (["--objectives", "5"], "5 objectives can take 11 turns"),
    ],
)
def test_what_the_world_cannot_do_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        train.open_training_task(*train.parse_options([*CPU, *options])[:2])


# What starts without a configuration


def test_the_world_and_its_model_start_with_their_options():
    for argv in ([], ["--dataset", "world"], ["--dataset=world"]):
        script, config, model = train.parse_options([*argv, *CPU, "--memory-weight", "0"])
        assert (script.dataset, script.eval_questions, script.objectives) == ("world", 128, 4)
        assert (config.learning_rate, config.max_turns, config.memory_weight) == (3e-4, 10, 0.0)
        assert model.model_name_or_path is None


@pytest.mark.parametrize("argv", [["--model_name_or_path", "m"], ["--dataset", "fanoutqa"], ["--dataset-name", "d"]])
def test_other_models_and_data_do_not(argv):
    script, config, _ = train.parse_options([*argv, *CPU, "--bf16", "false"])
    assert (script.eval_questions, config.learning_rate, config.max_turns) == (0, 1e-6, 16)


@pytest.mark.parametrize("joint", [" ", "="])
def test_a_yaml_file_may_have_hyphens(tmp_path, joint):
    file = tmp_path / "train.yaml"
    file.write_text("max-turns: 7\ntrace_every: 3\nreward-funcs: format_reward\nbf16: false\n")
    script, config, _ = train.parse_options([*f"--config{joint}{file}".split(), *CPU])
    assert (config.max_turns, script.trace_every, script.reward_funcs) == (7, 3, ["format_reward"])


def test_an_unknown_option_of_a_yaml_file_is_refused(tmp_path):
    file = tmp_path / "train.yaml"
    file.write_text("max-turnz: 7\nbf16: false\n")
    with pytest.raises(ValueError, match="max_turnz"):
        train.parse_options(["--config", str(file), *CPU])


# A task of one's own


@pytest.fixture
def my_task(tmp_path, monkeypatch):
    """A module in the current folder."""
    (tmp_path / "my_task.py").write_text(
        "def questions():\n"
        "    return [{'prompt': [{'role': 'user', 'content': str(i)}], 'answers': [str(i)]} for i in range(5)]\n"
        "class Environment:\n    def reset(self, **row): ...\n"
        "def reward(completions, **kwargs):\n    return [1.0] * len(completions)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "my_task"
    sys.modules.pop("my_task", None)


def test_a_task_by_import_paths(my_task, tmp_path):
    file = tmp_path / "train.yaml"
    file.write_text(
        "dataset: my_task:questions\nenvironment_factory: my_task:Environment\n"
        "reward_funcs: [my_task:reward, my_task.reward, format_reward]\nmodel_name_or_path: m\n"
        "memory_reward_funcs: [my_task:reward, answer_likelihood]\n"
        "eval_questions: 2\ncount: 2\nbf16: false\n"
    )
    task = train.open_training_task(*train.parse_options(["--config", str(file), *CPU])[:2])
    module = sys.modules["my_task"]
    assert task.environment_factory is module.Environment
    assert task.reward_funcs == [module.reward, module.reward, format_reward]
    assert task.memory_reward_funcs == [module.reward, "answer_likelihood"]
    asked = [row["question_id"] for row in (*task.train_dataset, *task.eval_rows)]
    assert (len(task.train_dataset), len(task.eval_rows), len(set(asked))) == (2, 2, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--eval_questions", "5"], "my_task:questions has 5 questions, and eval_questions=5"),
        (["--corpus", "c"], "the corpus c is not used"),
        (["--environment_factory", "my_task:Env"], "the module 'my_task' has no 'Env'"),
        (["--environment_factory", "none_such:Env"], "there is no module 'none_such'"),
        (["--reward_funcs", "rightness"], "has no 'rightness'"),
        (["--objectives", "2"], "no question has 2 objectives, and rows of an import path are not joined"),
    ],
)
def test_what_does_not_hold_together_is_refused(my_task, options, message):
    task = ["--dataset", "my_task:questions", "--environment_factory", "my_task:Environment"]
    with pytest.raises(ValueError, match=message):
        train.open_training_task(*train.parse_options([*task, "--bf16", "false", *CPU, *options])[:2])


def test_a_task_without_gold_answers_is_trained(my_task, tmp_path, model, tokenizer, capsys):
    source = (tmp_path / "my_task.py").read_text().replace(", 'answers': [str(i)]", "")
    look = '        """\n        Looks.\n        """\n        return ""\n'
    source = source.replace("reset(self, **row): ...\n", f"reset(self, **row): ...\n    def look(self) -> str:\n{look}")
    source += "def worth(memories, **kwargs):\n    return [1.0 for memory in memories]\n"
    (tmp_path / "my_task.py").write_text(source)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    options = {
        "dataset": "my_task:questions", "environment-factory": "my_task:Environment",
        "reward_funcs": "my_task:reward", "memory_reward_funcs": "my_task:worth", "eval_questions": 2,
        "model_name_or_path": tmp_path / "model", "output_dir": tmp_path / "policy", "max_steps": 1,
        "num_generations": 2, "per_device_train_batch_size": 2, "max_turn_length": 8, "max_completion_length": 64,
        "beta": 0, "bf16": False, "use_cpu": True, "report_to": "none",
    }  # fmt: skip
    train.main(*train.parse_options([part for name, value in options.items() for part in (f"--{name}", str(value))]))
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(result["after"]["memory"]) == [name for name in METRICS if name not in ANSWER_METRICS]
    assert result["after"]["memory"]["reward"] == 1.0


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("[]", "my_task:questions returned no rows"),
        (
            "[{'prompt': 'text', 'answers': ['a']}]",
            "my_task:questions, row 0, column 'prompt': expected a list of mess",
        ),
        ("[{'prompt': 'text'}]", "my_task:questions, row 0, column 'prompt': expected a list of mess"),
        ("[{'prompt': [{'role': 'user', 'content': 'q'}], 'answers': 'a'}]", "row 0, column 'answers'"),
    ],
)
def test_rows_that_cannot_be_played_are_refused(my_task, tmp_path, rows, message):
    (tmp_path / "my_task.py").write_text(f"def questions(): return {rows}\nclass Environment: ...\n")
    with pytest.raises(ValueError, match=message):
        open_task("my_task:questions", environment_factory=object)


def test_the_own_task_goes_from_rows_to_an_evaluated_policy(tmp_path, model, tokenizer, monkeypatch, capsys):
    path = EXAMPLES / "own_task.py"
    assert len(path.read_text().splitlines()) <= 80
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    options = {
        "model_name_or_path": tmp_path / "model", "output_dir": tmp_path / "policy", "max_steps": 1,
        "num_generations": 2, "per_device_train_batch_size": 2, "max_turns": 3, "max_turn_length": 8,
        "max_completion_length": 128, "beta": 0, "bf16": False, "use_cpu": True, "report_to": "none",
    }  # fmt: skip
    argv = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    monkeypatch.setattr(sys, "argv", [str(path), *argv])
    task = runpy.run_path(str(path), run_name="__main__")
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(result["after"]["memory"]) == list(METRICS)
    assert (tmp_path / "policy" / "config.json").exists()

    # The policy is random. What an expert would do earns everything.
    (row,) = task["questions"](1)
    shop = task["PriceList"]()
    shop.reset(**row)
    wanted = re.findall(r"a (\w+)", row["prompt"][1]["content"])
    costs = [int(re.search(r"\d+", shop.price(thing))[0]) for thing in wanted]
    assert row["answers"] == [str(sum(costs))]
    turns = [[{"role": "assistant", "content": f"<answer>{answer}</answer>"}] for answer in (sum(costs), 0, "much")]
    assert task["closeness"](turns, [row["answers"]] * 3) == [1.0, 1 / (1 + sum(costs)), 0.0]


def test_the_script_is_short():
    assert len((EXAMPLES / "train_mempo.py").read_text().splitlines()) <= 100
