"""A model whose log-probs depend on padding, TRL's head or later tokens is refused at the start."""

import random

import pytest
import torch
import transformers
from peft import LoraConfig, PrefixTuningConfig, PromptEncoderConfig, PromptTuningConfig, get_peft_model

from conftest import build_model
from helpers import make_trainer
from mempo_trl.training import model_checks
from test_positions import learned_positions

SHAPE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def trainer_of(tmp_path, model, tokenizer, questions, **options):
    return make_trainer(tmp_path, model, tokenizer, questions, **options)


def recurrent_gemma(vocab_size):
    torch.manual_seed(0)
    config = transformers.RecurrentGemmaConfig(
        vocab_size=vocab_size, **SHAPE, num_key_value_heads=1, lru_width=32, attention_window_size=64,
        w_init_variance_scale=1.0, pad_token_id=0,
    )  # fmt: skip
    return transformers.RecurrentGemmaForCausalLM(config)


class Capped(type(build_model(8))):
    """A head that TRL does not know of."""

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = 3 * torch.tanh(output.logits / 3)
        return output


def test_a_recurrent_state_is_refused(tmp_path, tokenizer, questions):
    with pytest.raises(ValueError, match=r"RecurrentGemmaForCausalLM\) cannot be trained: .* nats"):
        trainer_of(tmp_path, recurrent_gemma(len(tokenizer)), tokenizer, questions)


def test_a_head_that_trl_does_not_know(tmp_path, tokenizer, questions):
    model = Capped(build_model(len(tokenizer)).config)
    model.load_state_dict(build_model(len(tokenizer)).state_dict())
    with pytest.raises(ValueError, match="by TRL's fused head its log-probs differ by"):
        trainer_of(tmp_path, model, tokenizer, questions)


def test_padding_that_is_seen(tmp_path, tokenizer, questions):
    """A model that does not look at its attention mask."""
    model = build_model(len(tokenizer))
    forward = model.model.forward
    model.model.forward = lambda input_ids, **ignored: forward(input_ids)
    with pytest.raises(ValueError, match="padding on the left changes its log-probs by"):
        trainer_of(tmp_path, model, tokenizer, questions)


def test_a_forward_that_fails(tmp_path, tokenizer, questions):
    model = build_model(len(tokenizer))
    forward = model.model.forward

    def fails(*args, attention_mask=None, **kwargs):
        if attention_mask is not None and not attention_mask.all():
            raise NotImplementedError("padding")
        return forward(*args, attention_mask=attention_mask, **kwargs)

    model.model.forward = fails
    with pytest.raises(ValueError, match="a forward of padded rows fails with NotImplementedError: padding"):
        trainer_of(tmp_path, model, tokenizer, questions)


def test_tokens_that_see_later_ones(tmp_path, tokenizer, questions):
    model = build_model(len(tokenizer))
    forward = model.model.forward

    def bidirectional(*args, **kwargs):
        output = forward(*args, **kwargs)
        output.last_hidden_state = output.last_hidden_state + output.last_hidden_state[:, -1:]
        return output

    model.model.forward = bidirectional
    with pytest.raises(ValueError, match=r"the log-probs of a token change by .* with the tokens after it"):
        trainer_of(tmp_path, model, tokenizer, questions)


@pytest.mark.parametrize("options", [{"temperature": 0.7}, {"bf16": True}, {"beta": 0.0}], ids=str)
def test_a_model_that_is_right_is_left_as_it_was(tmp_path, monkeypatch, tokenizer, questions, options):
    states = []
    for check in (model_checks.check_model, lambda *args: None):
        monkeypatch.setattr("mempo_trl.training.trainer.check_model", check)
        model = learned_positions(len(tokenizer), positions=2048)
        model.config.attn_pdrop = 0.5
        model.train()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        random.seed(3)
        torch.manual_seed(3)
        trainer_of(tmp_path, model, tokenizer, questions, **options)
        states.append((torch.get_rng_state().tolist(), random.getstate()))
        assert model.training
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert all(parameter.grad is None for parameter in model.parameters())
    assert states[0] == states[1]


def test_a_model_that_gives_all_logits(tmp_path, tokenizer, questions):
    """`logits_to_keep` is not asked for where it is not named, and the last columns are taken where it is ignored."""
    model = build_model(len(tokenizer))
    forward = type(model).forward
    model.forward = lambda *args, logits_to_keep=0, **kwargs: forward(model, *args, **kwargs)
    trainer_of(tmp_path, model, tokenizer, questions)


CONFIGS = [
    PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"),
    PrefixTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"),
    PromptEncoderConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.peft_type.value)
@pytest.mark.parametrize("wrapped", [False, True])
def test_virtual_tokens(tmp_path, tokenizer, questions, config, wrapped):
    model = build_model(len(tokenizer))
    model = get_peft_model(model, config) if wrapped else model
    options = {} if wrapped else {"trainer_options": {"peft_config": config}}
    with pytest.raises(ValueError, match=f"peft_config is {config.peft_type.value}, .* such as LoraConfig"):
        trainer_of(tmp_path, model, tokenizer, questions, **options)


def test_other_adapters_are_tried(tmp_path, tokenizer, questions):
    trainer_of(
        tmp_path, build_model(len(tokenizer)), tokenizer, questions, trainer_options={"peft_config": LoraConfig(r=2)}
    )
