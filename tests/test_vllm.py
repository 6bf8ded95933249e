"""Server mode against a real vLLM: run with `make test-vllm`, which installs it."""

from pathlib import Path

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from requests.adapters import HTTPAdapter
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.generation.vllm_client import VLLMClient

from helpers import make_config
from mempo_trl import MemPOTrainer
from mempo_trl.cold_start import cold_start
from mempo_trl.search import mempo_outcome_reward
from mempo_trl.search.world import WorldEnvironment, world_rows
from vllm_process import VLLMProcess

pytestmark = pytest.mark.vllm
PORT = 8765
DIFFERENCE = "sampling/sampling_logp_difference/mean"


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """The world's model after its cold start: it searches, writes memories and answers."""
    folder = tmp_path_factory.mktemp("start")
    model, tokenizer = cold_start(folder / "cache")
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return folder / "model"


@pytest.fixture(scope="module")
def server(start, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "model"
    copy_folder(start, folder)
    process = VLLMProcess(folder, PORT)
    process.start()
    yield process
    process.stop()


def copy_folder(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())


@pytest.fixture
def build(start, server, tmp_path, monkeypatch):
    """A trainer on the server."""
    server.transfer(monkeypatch)

    def make(folder="out", peft_config=None, **options):
        config = make_config(
            tmp_path / folder, use_vllm=True, vllm_mode="server", vllm_server_base_url=server.url,
            vllm_server_timeout=5,
            **{"max_completion_length": 400, "max_turn_length": 64, "learning_rate": 3e-3, "max_steps": 2, **options},
        )  # fmt: skip
        return MemPOTrainer(
            AutoModelForCausalLM.from_pretrained(start), mempo_outcome_reward, config,
            Dataset.from_list(world_rows(8, objectives=3)), processing_class=AutoTokenizer.from_pretrained(start),
            environment_factory=WorldEnvironment, peft_config=peft_config,
        )  # fmt: skip

    return make


def logs_of(trainer, name):
    return [log[name] for log in trainer.state.log_history if name in log]


@pytest.mark.parametrize("context", ["full", "memory"])
@pytest.mark.parametrize("lora", [False, True])
def test_training_against_the_server(build, context, lora):
    """Sampled log-probs are the trainer's, before the first update and after it: the new weights have arrived."""
    peft_config = LoraConfig(r=8, target_modules="all-linear", init_lora_weights=False) if lora else None
    trainer = build(context=context, peft_config=peft_config, max_steps=3)
    trainer.train()
    print("mean difference of log-probs by step:", logs_of(trainer, DIFFERENCE))
    assert max(logs_of(trainer, "rollout/turns")) > 2
    assert all(difference < 1e-3 for difference in logs_of(trainer, DIFFERENCE))
    assert any(trainer.last_rollout.memories.judged)


def test_without_new_weights_the_log_probs_part(build, monkeypatch):
    """The control of the test above: a server that keeps the old weights is seen."""
    trainer = build(max_steps=3)
    synced, sync = [], trainer.vllm_generation.sync_weights
    trainer.vllm_generation.sync_weights = lambda: sync() if not synced.append(1) and len(synced) == 1 else None
    trainer.train()
    first, *later = logs_of(trainer, DIFFERENCE)
    assert first < 1e-3
    assert max(later) > 5 * first


def test_a_changed_parameter_changes_the_output(build):
    trainer = build()

    def greedy():
        trainer._last_loaded_step = -1
        trainer.vllm_generation.temperature = 0.0
        return trainer._generate_single_turn([trainer._tokenizer.encode("Where does")] * 2, None, {}, 1)

    before = greedy()
    assert greedy() == before
    with torch.no_grad():
        trainer.model.model.layers[-1].mlp.down_proj.weight.mul_(3.0)
    assert greedy()[1] != before[1]


# A server that is not as it should be


def test_a_config_that_the_server_cannot_hold(build):
    with pytest.raises(ValueError, match=r"holds 1024 tokens.*can have 4001(.|\n)*--max-model-len"):
        build(max_completion_length=4000)


def test_no_server(build):
    with pytest.raises(ConnectionError, match=r"does not answer(.|\n)*VLLM_SERVER_DEV_MODE=1 vllm serve"):
        build(vllm_server_base_url="http://127.0.0.1:9", vllm_server_timeout=0)


def test_a_server_that_dies_and_comes_back(build, server):
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1}
    trainer = build(**options)
    generate, calls = trainer.vllm_generation.vllm_client.generate, []

    def dying(*args, **kwargs):
        calls.append(trainer.state.global_step)
        if trainer.state.global_step == 2:
            server.stop()
            client.session.mount("http://", HTTPAdapter(max_retries=0))  # not a minute of retries
        return generate(*args, **kwargs)

    client: VLLMClient = trainer.vllm_generation.vllm_client
    client.generate = dying
    with pytest.raises(ConnectionError, match=r"stopped answering at step 2(.|\n)*vllm serve(.|\n)*checkpoint-2 with"):
        trainer.train()
    server.start()
    resumed = build(**options)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 4
    assert len(logs_of(resumed, DIFFERENCE)) == 4
    assert max(logs_of(resumed, DIFFERENCE)) < 1e-3
