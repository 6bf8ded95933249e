"""The example configurations hold together, and the example script reads them."""

import runpy
from pathlib import Path

import pytest
import yaml
from trl import ModelConfig, TrlParser

from mempo_trl import MemPOConfig

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
CONFIGS = sorted((EXAMPLES / "configs").glob("*.yaml"))


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(EXAMPLES / "train_mempo.py"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_configurations_are_accepted(path, script, tmp_path, monkeypatch):
    settings = yaml.safe_load(path.read_text())
    if settings.get("bf16"):  # asks for a GPU
        settings["bf16"] = False
    copy = tmp_path / path.name
    copy.write_text(yaml.safe_dump(settings))
    parser = TrlParser((script["MemPOScriptArguments"], MemPOConfig, ModelConfig))
    _, config, _ = parser.parse_args_and_config(["--config", str(copy), "--use_cpu"])
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
def test_what_the_world_cannot_do_is_refused(script, options, message):
    config = ["--config", str(EXAMPLES / "configs" / "world.yaml"), "--use_cpu"]
    parser = TrlParser((script["MemPOScriptArguments"], MemPOConfig, ModelConfig))
    script_args, training_args, _ = parser.parse_args_and_config([*config, *options])
    with pytest.raises(ValueError, match=message):
        script["load_questions"](script_args, training_args)


def test_the_script_is_short():
    assert len((EXAMPLES / "train_mempo.py").read_text().splitlines()) <= 150
