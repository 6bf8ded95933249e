"""What the trainer asks of a vLLM server, and what it says where the server is not there."""

import pytest
from accelerate import Accelerator

from fake_vllm import EchoClient, serve
from helpers import make_config, make_trainer
from mempo_trl import MemPOTrainer
from mempo_trl.integrations.vllm_server import longest_context, server_length, start_command, unreachable


class Client:
    def __init__(self, length):
        self.length = length

    def get_server_info(self):
        return {"model_config": {"max_model_len": self.length}}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"context": "full"}, 1000),
        ({"context": "memory"}, 100 + 50 + 100),  # the last turn, its tool result, this turn
        ({"context": "memory", "context_turns": 2}, 2 * (100 + 50) + 100),
        ({"context": "memory", "context_turns": 9}, 1000),
    ],
)
def test_longest_context(tmp_path, options, expected):
    config = make_config(tmp_path, max_completion_length=1000, max_turn_length=100, max_tool_length=50, **options)
    assert longest_context(config) == expected


def test_a_server_that_holds_too_little_is_refused(tmp_path):
    accelerator = Accelerator(cpu=True)
    config = make_config(tmp_path, max_completion_length=1000, vllm_server_base_url="http://there:8123")
    assert server_length(Client(1001), accelerator, config, "m") == 1001
    with pytest.raises(ValueError, match=r"holds 1000 tokens.*can have 1001(.|\n)*serve m --port 8123 --max-model-len"):
        server_length(Client(1000), accelerator, config, "m")
    config.vllm_max_model_length = 2000
    with pytest.raises(ValueError, match="can have 2000"):
        server_length(Client(1001), accelerator, config, "m")


def test_the_command_starts_what_the_trainer_needs(tmp_path):
    config = make_config(tmp_path, vllm_server_port=9000, vllm_max_model_length=4096)
    command = start_command(config, "org/model")
    for part in ("VLLM_SERVER_DEV_MODE=1", "serve org/model", "--port 9000", "--max-model-len 4096", "nccl"):
        assert part in command
    assert "--logprobs-mode processed_logprobs" in command


class DyingClient(EchoClient):
    """Answers a number of times, then as a connection that is closed."""

    def generate(self, *args, **options):
        if len(self.calls) == 6:
            raise OSError("connection refused")
        return super().generate(*args, **options)


def test_a_server_that_dies_is_reported_with_the_checkpoint_to_go_on_from(tmp_path, model, tokenizer, questions):
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1, "shuffle_dataset": False}
    trainer = make_trainer(tmp_path, model, tokenizer, questions, MemPOTrainer, **options)
    serve(trainer, DyingClient(tokenizer))
    with pytest.raises(ConnectionError, match=r"stopped answering at step 1(.|\n)*vllm serve(.|\n)*checkpoint-1 with"):
        trainer.train()
    serve(trainer, EchoClient(tokenizer))
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 4


def test_without_a_checkpoint_the_error_says_so(tmp_path):
    assert "no checkpoint to go on from" in str(unreachable(make_config(tmp_path / "empty"), "m", step=3))
    assert "does not answer" in str(unreachable(make_config(tmp_path), "m"))


def test_a_context_without_room_for_a_turn_ends_its_episode(tmp_path, model, tokenizer, questions):
    """The server refuses a request whose prompt and longest turn together are over its length."""
    trainer = make_trainer(
        tmp_path, model, tokenizer, questions, MemPOTrainer, max_turn_length=100, max_completion_length=450
    )
    client = EchoClient(tokenizer)
    serve(trainer, client)
    trainer.vllm_mode, client.get_server_info = "server", Client(500).get_server_info
    trainer._engine_limit = trainer._limit_turns(100)
    asked, generate = [], client.generate

    def counted(prompts, **options):
        asked.extend(len(ids) + options["max_tokens"] for ids in prompts)
        return generate(prompts, **options)

    client.generate = counted
    trainer.train()
    assert 400 < max(asked) <= 500
    assert "truncated" in {episode.stop_reason for episode in trainer._batch.episodes}
