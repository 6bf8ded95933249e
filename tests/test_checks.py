import logging
from types import SimpleNamespace

import pytest
from accelerate import PartialState
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, ProcessorMixin
from trl import GRPOTrainer

from helpers import make_config, make_trainer, search
from mempo_trl import MemPOTrainer
from mempo_trl.training import checks
from mempo_trl.training.checks import check_tags, refuse_combinations, refuse_quantized, warn_if_truncated
from mempo_trl.types import Episode


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
    checks.logger.warning_once.cache_clear()  # an earlier test may have caused it
    episodes = [Episode(stop_reason="truncated") for _ in range(9)] + [Episode(stop_reason="finished")]
    with caplog.at_level(logging.WARNING):
        warn_if_truncated(episodes[1:])  # 8 of 9
        assert not caplog.records
        warn_if_truncated(episodes)
        warn_if_truncated([*episodes, *episodes[:3]])
    assert caplog.text.count("truncated. Raise max_completion_length") == 1


class Processor(ProcessorMixin):
    def __init__(self):
        """A multimodal processor without parts."""


@pytest.mark.parametrize(
    ("options", "model", "processing_class", "message"),
    [
        ({}, None, Processor(), "multimodal processor"),
    ],
)
def test_refused(tmp_path, options, model, processing_class, message):
    with pytest.raises(ValueError, match=message):
        refuse_combinations(make_config(tmp_path, **options), model, processing_class, [search], None, None)


@pytest.mark.parametrize(
    ("options", "quantization", "peft_config", "message"),
    [
        ({"use_vllm": True}, {"load_in_8bit": True}, LoraConfig(), "vLLM cannot serve an 8-bit base"),
        ({"use_vllm": True}, {"load_in_4bit": True}, LoraConfig(), "cannot take the packed weights of a 4-bit base"),
        ({}, {"load_in_4bit": True}, None, "Pass peft_config"),
        ({}, {"load_in_8bit": True}, None, "Pass peft_config"),
    ],
)
def test_quantized_bases_that_cannot_be_trained(tmp_path, options, quantization, peft_config, message):
    options = {"vllm_mode": "server", **options}
    config = SimpleNamespace(**{"load_in_4bit": False, "load_in_8bit": False, **quantization})
    loaded = SimpleNamespace(**{name.replace("load", "is_loaded"): value for name, value in quantization.items()})
    for args, model, given in [
        (make_config(tmp_path, **options), "some/model", config),
        (make_config(tmp_path, **options), loaded, None),
    ]:
        with pytest.raises(ValueError, match=message):
            refuse_quantized(args, model, given, peft_config)


@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_bases_that_can_be_trained(tmp_path, bits):
    config = SimpleNamespace(load_in_4bit=bits == 4, load_in_8bit=bits == 8)
    refuse_quantized(make_config(tmp_path), "some/model", config, LoraConfig())
    if bits == 4:
        refuse_quantized(make_config(tmp_path, use_vllm=True, vllm_mode="colocate"), "some/model", config, LoraConfig())


def test_a_reference_must_be_loadable(tmp_path, model):
    with pytest.raises(ValueError, match="Set beta=0, or save it"):
        refuse_combinations(make_config(tmp_path, beta=0.1), model, None, [search], None, None)


def test_tags_that_the_tokenizer_breaks_up(tokenizer):
    check_tags(tokenizer)
    vocabulary = {token: index for index, token in enumerate(["[UNK]", "<", ">", "mem", "/", "a"])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    words = PreTrainedTokenizerFast(tokenizer_object=backend)
    with pytest.raises(ValueError, match="Make the tags tokens"):
        check_tags(words)
    words.add_tokens(["<mem>", "</mem>"])
    check_tags(words)
