import logging

import pytest
from accelerate import PartialState
from transformers import ProcessorMixin
from trl import GRPOTrainer

from helpers import make_config, make_trainer, search
from mempo_trl import MemPOTrainer
from mempo_trl.checks import check_trl, refuse_combinations, warn_if_truncated
from mempo_trl.rollout import Episode


def test_a_turn_without_tokens_is_an_end_token(tmp_path, model, tokenizer, questions, monkeypatch):
    def engine(self, prompt_ids, *args, **kwargs):
        return [[] for _ in prompt_ids], [[] for _ in prompt_ids]

    trainer = make_trainer(tmp_path, model, tokenizer, questions)
    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", engine)
    turns, logprobs = MemPOTrainer._generate_single_turn(trainer, [[1, 2]], None, {}, 1)
    assert turns == [[tokenizer.eos_token_id]]
    assert logprobs == [[0.0]]


def test_nearly_all_truncated_is_said_once(caplog):
    PartialState()
    episodes = [Episode([1], stop_reason="truncated") for _ in range(9)] + [Episode([1], stop_reason="finished")]
    with caplog.at_level(logging.WARNING):
        warn_if_truncated(episodes[1:])  # 8 of 9
        assert not caplog.records
        warn_if_truncated(episodes)
    assert "9 of 10 episodes were truncated. Raise max_completion_length" in caplog.text


class Processor(ProcessorMixin):
    def __init__(self):
        """A multimodal processor without parts."""


class EightBit:
    is_loaded_in_8bit = True


@pytest.mark.parametrize(
    ("options", "model", "processing_class", "message"),
    [
        ({}, None, Processor(), "multimodal processor"),
        ({"use_vllm": True}, EightBit(), None, "vLLM cannot serve an 8-bit base"),
    ],
)
def test_refused(tmp_path, options, model, processing_class, message):
    with pytest.raises(ValueError, match=message):
        refuse_combinations(make_config(tmp_path, **options), model, processing_class, [search], None, None)


def test_this_trl_has_the_hooks():
    check_trl()
