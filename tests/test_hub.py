"""Model cards, and pushes to a stand-in for the Hub; a process of its own, since HF_ENDPOINT is read at import."""

import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import yaml
from safetensors.torch import load, load_file
from trl import TrlParser

from fake_hub import serve
from helpers import make_config
from mempo_trl import MemPOConfig
from mempo_trl.integrations.hub import configuration_section, results_section
from mempo_trl.integrations.resume import find_fault

TESTS = Path(__file__).parent


def environment(hub):
    return {
        **os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": "hf_secret",
        "HF_HUB_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS),
    }  # fmt: skip


def push(hub, output):
    command = [sys.executable, str(TESTS / "push_to_hub.py"), str(output)]
    result = subprocess.run(command, env=environment(hub), capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]
    assert "the run has come to its end" in result.stdout
    assert hub.unknown == []
    return result


def run_remedy(hub, result):
    """The first command that the warnings give, once the Hub is in order again."""
    hub.broken = set()
    command = shlex.split(re.search(r"hf (upload .+)", result.stderr)[1])
    hf = str(Path(sys.executable).with_name("hf"))
    done = subprocess.run([hf, *command], env=environment(hub), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]


def check_output(output):
    """Everything that a run leaves behind is there."""
    for step in (1, 2):
        assert find_fault(output / f"checkpoint-{step}") is None
    assert load_file(output / "model.safetensors").keys() == load_file(output / "checkpoint-2/model.safetensors").keys()
    assert len(list((output / "completions").glob("*.parquet"))) == 2


def test_push(tmp_path):
    with serve() as hub:
        push(hub, tmp_path / "out")
    check_output(tmp_path / "out")
    policy = hub.files["me/policy"]
    assert load(policy["model.safetensors"]).keys() == load_file(tmp_path / "out" / "model.safetensors").keys()
    assert {"config.json", "tokenizer.json", "chat_template.jinja", "training_args.bin"} <= policy.keys()
    card = policy["README.md"].decode()
    assert "https://huggingface.co/papers/2603.00680" in card
    assert "@inproceedings{li-etal-2026-mempo" in card
    options = yaml.safe_load(card.split("```yaml\n")[1].split("```")[0])
    assert options["memory_threshold"] == 0.25
    assert options["context"] == "memory"
    assert "hf_secret" not in card
    rows = dict(line.strip("| ").split(" | ")[:2] for line in card.split("|---|---|---|\n")[1].splitlines())
    assert {"reward", "memory/reward_mean", "rollout/turns", "loss"} <= rows.keys()
    completions = hub.files["datasets/me/completions"]
    tables = [pd.read_parquet(io.BytesIO(data)) for name, data in completions.items() if name.endswith(".parquet")]
    assert sorted(table["step"][0] for table in tables) == [1, 2]
    assert all({"prompt", "completion", "stop_reason", "memory_rewards"} <= set(table) for table in tables)
    assert "README.md" in completions


def test_a_failed_upload_loses_nothing(tmp_path):
    output = tmp_path / "out"
    with serve() as hub:
        hub.broken = {"me/policy"}
        result = push(hub, output)
        check_output(output)
        assert (output / "README.md").exists()
        assert hub.files["me/policy"] == {}
        # Those of a checkpoint, and the last. The Hub's own word is in it, and what to do.
        assert result.stderr.count("an upload to me/policy failed: ") >= 2
        assert "the Hub is out of order" in result.stderr
        assert f"hf upload me/policy {output} . --exclude 'checkpoint-*'" in result.stderr
        run_remedy(hub, result)
    assert {"model.safetensors", "README.md", "config.json"} <= hub.files["me/policy"].keys()
    assert not any(name.startswith("checkpoint-") for name in hub.files["me/policy"])


def test_failed_uploads_of_completions_can_be_made_up_for(tmp_path):
    with serve() as hub:
        hub.broken = {"datasets/me/completions"}
        result = push(hub, tmp_path / "out")
        check_output(tmp_path / "out")
        assert "model.safetensors" in hub.files["me/policy"]
        assert "an upload to datasets/me/completions failed: " in result.stderr
        assert hub.files["datasets/me/completions"].keys() == {"README.md"}
        run_remedy(hub, result)
    names = {path.name for path in (tmp_path / "out" / "completions").glob("*.parquet")}
    assert names <= hub.files["datasets/me/completions"].keys()


def test_the_card_shows_what_was_set(tmp_path):
    secret = {"hub_token": "hf_secret", "model_init_kwargs": {"token": "hf_secret", "dtype": "bfloat16"}}
    section = configuration_section(make_config(tmp_path, **secret, learning_rate=3e-6, beta=0.001))
    assert "hf_secret" not in section
    options = yaml.safe_load(section.split("```yaml\n")[1].split("```")[0])
    assert options["learning_rate"] == 3e-6
    assert options["memory_weight"] == 1.0  # the method's own are shown as they are,
    assert "adam_beta1" not in options  # of the rest those that were changed
    assert options["model_init_kwargs"] == {"dtype": "bfloat16"}
    assert not {"hub_token", "output_dir", "accelerator_config", "debug", "disable_tqdm"} & options.keys()
    (tmp_path / "card.yaml").write_text(yaml.safe_dump(options))
    (again,) = TrlParser(MemPOConfig).parse_args_and_config(["--config", str(tmp_path / "card.yaml")])
    assert {name: json.loads(again.to_json_string())[name] for name in options} == options


def test_the_table_has_the_last_value_of_each_metric():
    history = [{"loss": 1.0, "reward": 0.1, "step": 1, "epoch": 0.1}, {"loss": 0.51234, "step": 2, "epoch": 0.2}]
    table = results_section([*history, {"eval/full/f1": None, "step": 2}])
    assert table.splitlines()[2:] == [
        "| metric | last value | step |", "|---|---|---|", "| loss | 0.5123 | 2 |", "| reward | 0.1 | 1 |"
    ]  # fmt: skip
