"""SmolLM2-135M against a real vLLM: run with `make test-vllm`."""

from pathlib import Path

import pytest
from datasets import Dataset
from smollm2 import smollm2_folder
from transformers import AutoModelForCausalLM, AutoTokenizer

from helpers import answer_reward, make_config, search
from mempo_trl import MemPOTrainer
from vllm_process import DIFFERENCE, VLLMProcess, copy_folder, logs_of

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "model"
    copy_folder(Path(smollm2_folder()), folder)
    process = VLLMProcess(folder, port=8766)
    process.start()
    yield process
    process.stop()


@pytest.mark.parametrize("context", ["full", "memory"])
def test_the_server_and_the_trainer_have_the_same_log_probs(server, tmp_path, monkeypatch, context):
    server.transfer(monkeypatch)
    config = make_config(
        tmp_path, context=context, **server.options, max_steps=2,
        per_device_train_batch_size=2, num_generations=2, max_turns=3, max_turn_length=48, max_completion_length=300,
        learning_rate=1e-5,
    )  # fmt: skip
    folder = smollm2_folder()
    question = {"prompt": [{"role": "user", "content": "Search for the capital of Peru."}], "answers": ["Lima"]}
    trainer = MemPOTrainer(
        AutoModelForCausalLM.from_pretrained(folder), answer_reward, config, Dataset.from_list([question] * 2),
        processing_class=AutoTokenizer.from_pretrained(folder), tools=[search],
    )  # fmt: skip
    trainer.train()
    print("mean difference of log-probs by step:", logs_of(trainer, DIFFERENCE))
    assert len(logs_of(trainer, DIFFERENCE)) == 2
    assert max(logs_of(trainer, DIFFERENCE)) < 0.05
