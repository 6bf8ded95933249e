"""LoRA on a full and on a 4-bit base: adapters alone are trained, and the base stays what it was."""

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from conftest import build_model
from helpers import ScriptedMemPO, make_trainer
from mempo_trl.memory.scoring.engine import AnswerScorer

LORA = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.1, "target_modules": ["q_proj", "v_proj", "down_proj"]}


def base_bytes(model):
    """The bytes of all parameters and buffers that are no adapter's."""
    state = {name: value for name, value in model.state_dict().items() if "lora_" not in name}
    return {name: value.cpu().contiguous().view(torch.uint8).numpy().tobytes() for name, value in state.items()}


def adapters(model):
    return torch.cat([p.detach().float().flatten() for name, p in model.named_parameters() if "lora_" in name])


class Watched(ScriptedMemPO):
    """Keeps the mode of the model in memory scoring."""

    def _score_memories(self, *args, **kwargs):
        self.modes = []
        handle = (
            self.accelerator.unwrap_model(self.model)
            .get_base_model()
            .model.register_forward_pre_hook(lambda module, _: self.modes.append(module.training))
        )
        judged = super()._score_memories(*args, **kwargs)
        handle.remove()
        return judged


def train(tmp_path, tokenizer, questions, model, **options):
    trainer = make_trainer(
        tmp_path, model, tokenizer, questions, trainer_class=Watched, beta=0.1, max_steps=3, disable_dropout=False,
        trainer_options={"peft_config": LoraConfig(**LORA), **options.pop("trainer_options", {})}, **options,
    )  # fmt: skip
    before = base_bytes(trainer.model), adapters(trainer.model)
    trainer.train()
    return trainer, before


@pytest.mark.parametrize("context", ["full", "memory"])
def test_lora(tmp_path, tokenizer, questions, context):
    trainer, (base, start) = train(tmp_path, tokenizer, questions, build_model(len(tokenizer)), context=context)
    assert base_bytes(trainer.model) == base
    assert not torch.equal(adapters(trainer.model), start)
    assert {name for name, p in trainer.model.named_parameters() if p.requires_grad} == {
        name for name, _ in trainer.model.named_parameters() if "lora_" in name
    }
    assert trainer.modes  # scoring ran,
    assert not any(trainer.modes)  # without dropout
    assert trainer.model.training  # and left the mode as it was


def test_the_reference_is_the_model_without_its_adapter(tmp_path, tokenizer, questions):
    """A fresh adapter changes nothing, so the first KL is 0; a later one is the distance to the bare base."""
    trainer, _ = train(
        tmp_path, tokenizer, questions, build_model(len(tokenizer)), context="memory", trainer_options={
            "peft_config": LoraConfig(**{**LORA, "lora_dropout": 0.0})
        },
    )  # fmt: skip
    kl = [log["kl"] for log in trainer.state.log_history if "kl" in log]
    assert trainer.ref_model is None
    assert kl[0] == pytest.approx(0, abs=1e-6)
    assert kl[-1] > 1e-6


def test_qlora(tmp_path, tokenizer, questions):
    pytest.importorskip("bitsandbytes")
    from transformers import BitsAndBytesConfig

    build_model(len(tokenizer), hidden_size=64, intermediate_size=128, head_dim=16).save_pretrained(tmp_path / "start")
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    trainer, (base, start) = train(
        tmp_path, tokenizer, questions, str(tmp_path / "start"), context="memory",
        trainer_options={"quantization_config": config},
    )  # fmt: skip
    packed = [p for p in trainer.model.parameters() if p.dtype == torch.uint8]
    assert len(packed) == 14  # 7 matrices in each of 2 layers
    # In the format that bitsandbytes has for inference on a CPU a weight's product has no gradient.
    assert not any(getattr(p.quant_state, "packing_format_for_cpu", False) for p in packed)
    assert base_bytes(trainer.model) == base
    assert not torch.equal(adapters(trainer.model), start)
    assert not any(trainer.modes)
    rewards = []
    for scoring in ("shared", "separate"):
        trainer._score_answers = AnswerScorer(trainer.model, scoring)
        rewards.append(trainer._score_memories(trainer.last_rollout).rewards)
    assert rewards[0].abs().nansum() > 1e-3
    torch.testing.assert_close(*rewards, atol=1e-5, rtol=1e-4, equal_nan=True)


def test_an_adapter_is_saved_and_resumed(tmp_path, tokenizer, questions):
    options = {"save_strategy": "steps", "save_steps": 1}
    trainer, _ = train(tmp_path / "out", tokenizer, questions, build_model(len(tokenizer)), **options)
    checkpoint = tmp_path / "out" / "checkpoint-2"
    assert (checkpoint / "adapter_model.safetensors").exists()
    assert not (checkpoint / "model.safetensors").exists()
    resumed = make_trainer(
        tmp_path / "out", build_model(len(tokenizer)), tokenizer, questions, beta=0.1, max_steps=3,
        disable_dropout=False, trainer_options={"peft_config": LoraConfig(**LORA)}, **options,
    )  # fmt: skip
    resumed.train(resume_from_checkpoint=str(checkpoint))
    torch.testing.assert_close(adapters(resumed.model), adapters(trainer.model), atol=1e-6, rtol=0)
    merged = PeftModel.from_pretrained(build_model(len(tokenizer)), tmp_path / "out" / "checkpoint-3")
    assert isinstance(merged.merge_and_unload(), AutoModelForCausalLM._model_mapping[type(merged.config)])


# What a weight sync to vLLM does: merge, send, unmerge


def drift(dtype, cycles=50):
    """Largest change of a base weight over so many merges, relative to the largest weight."""
    model = build_model(600, hidden_size=64).to(dtype)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    torch.manual_seed(0)
    peft_model = get_peft_model(model, LoraConfig(**LORA, init_lora_weights=False))
    for _ in range(cycles):
        peft_model.merge_adapter()
        peft_model.unmerge_adapter()
    changed, largest = 0.0, 0.0
    for name, p in peft_model.get_base_model().named_parameters():
        if "lora_" not in name:
            was = start[name.replace(".base_layer", "")].float()
            changed, largest = max(changed, (p.float() - was).abs().max().item()), max(largest, was.abs().max().item())
    return changed / largest


def test_drift_of_the_base_over_merges():
    """Fp32 stays within rounding. Bf16 does not: a base in bf16 moves with every weight sync."""
    fp32, bf16 = drift(torch.float32), drift(torch.bfloat16)
    print(f"relative drift of the base over 50 merges: fp32 {fp32:.1e}, bf16 {bf16:.1e}")
    assert fp32 < 1e-6
    assert 1e-4 < bf16 < 0.1
