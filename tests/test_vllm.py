"""Server mode against a real vLLM: run with `make test-vllm`, which installs it."""

import pytest
import torch
from requests.adapters import HTTPAdapter
from trl.generation.vllm_client import VLLMClient

from launch import run
from taught import build_taught, save_taught
from vllm_process import DIFFERENCE, VLLMProcess, copy_folder, logs_of

pytestmark = pytest.mark.vllm
PORT = 8765


@pytest.fixture(scope="module")
def start(tmp_path_factory, tokenizer):
    return save_taught(tmp_path_factory.mktemp("start"), tokenizer)


@pytest.fixture(scope="module")
def server(start, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "model"
    copy_folder(start, folder)
    process = VLLMProcess(folder, PORT)
    process.start()
    yield process
    process.stop()


@pytest.fixture
def build(start, server, tmp_path, monkeypatch):
    """A trainer on the server."""
    server.transfer(monkeypatch)

    def make(weights="full", **options):
        options = {"vllm_server_timeout": 5, **server.options, **options}
        return build_taught(tmp_path / "out", start, weights, **options)

    return make


@pytest.mark.parametrize("context", ["full", "memory"])
@pytest.mark.parametrize("weights", ["full", "lora"])
def test_training_against_the_server(build, context, weights):
    """Sampled log-probs are the trainer's, before the first update and after it: the new weights have arrived."""
    trainer = build(weights, context=context, max_steps=3)
    trainer.train()
    print("mean difference of log-probs by step:", logs_of(trainer, DIFFERENCE))
    assert max(logs_of(trainer, "rollout/turns")) > 1.5
    assert all(difference < 1e-3 for difference in logs_of(trainer, DIFFERENCE))
    assert any(trainer.last_rollout.memories.scored)


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
        return trainer._generate_single_turn([trainer._tokenizer.encode("capital of")] * 2, None, {}, 1)

    before = greedy()
    assert greedy() == before
    with torch.no_grad():
        trainer.model.model.layers[-1].mlp.down_proj.weight.mul_(3.0)
    assert greedy()[1] != before[1]


@pytest.mark.parametrize("context", ["full", "memory"])
@pytest.mark.parametrize("weights", ["full", "lora"])
def test_two_processes(start, server, tmp_path, context, weights):
    """Rank 0 asks the server for both: each has its own turns, and both the same parameters in the end."""
    two = run(tmp_path / "two", 2, context, weights, start, PORT, server.folder, script="two_ranks_taught.py")
    for rank in two:
        assert len(rank["differences"]) in (0, 2)  # logged by the main process
        assert max(rank["turns"]) > 1
    assert max(two[0]["differences"]) < 1e-3
    assert torch.equal(two[0]["trained"], two[1]["trained"])


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
