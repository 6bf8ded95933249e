"""A tiny model that has been taught scripted turns: with any engine, it searches, writes memories and answers."""

from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, BitsAndBytesConfig

from conftest import build_model
from helpers import answer_reward, make_config, make_trainer, search
from mempo_trl import MemPOTrainer

QUESTIONS = Dataset.from_list(
    [{"prompt": [{"role": "user", "content": f"capital of A{i}"}], "answers": [f"Paris{i}", "Lima"]} for i in range(4)]
)
WEIGHTS = ("full", "lora", "4-bit")


def build_taught(folder, start, weights="full", **options):
    """A trainer of the model in `start`, which generates for itself unless `options` name a server."""
    lora = LoraConfig(r=8, target_modules="all-linear")
    quantization = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.float32)
    config = make_config(
        folder, model_init_kwargs={"dtype": "float32"},
        **{"max_completion_length": 400, "max_turn_length": 64, "learning_rate": 5e-4, "max_steps": 2, **options},
        temperature=0.3,  # so that nearly all turns are as they were taught
    )  # fmt: skip
    return MemPOTrainer(
        str(start), answer_reward, config, QUESTIONS, processing_class=AutoTokenizer.from_pretrained(start),
        tools=[search], quantization_config=quantization if weights == "4-bit" else None,
        peft_config=None if weights == "full" else lora,
    )  # fmt: skip


def save_taught(folder, tokenizer) -> Path:
    """Teaches the model; gives the folder that it and its tokenizer are in."""
    model = build_model(
        len(tokenizer), hidden_size=64, num_attention_heads=2, head_dim=32, tie_word_embeddings=False
    )  # fmt: skip
    pairs = [pair for context in ("full", "memory") for pair in scripted_turns(folder, model, tokenizer, context)]
    teach(model, [pair for number, pair in enumerate(pairs) if pair not in pairs[:number]])
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return folder / "model"


def scripted_turns(folder, model, tokenizer, context):
    """What the script makes of the questions: a pair of context and turn for each turn."""
    trainer = make_trainer(folder, model, tokenizer, QUESTIONS, context=context, max_steps=1, learning_rate=0.0)
    trainer.train()
    return trainer.turns_given


def teach(model, pairs, steps=300):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.25 if parameter.dim() > 1 else 1.0)  # as before `build_model` made them large
    ids = pad_sequence([torch.tensor([*context, *turn]) for context, turn in pairs], batch_first=True)
    labels = [torch.tensor([*([-100] * len(context)), *turn]) for context, turn in pairs]
    targets = pad_sequence(labels, batch_first=True, padding_value=-100)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, steps)
    for step in range(steps):
        batch = (torch.arange(8) + 8 * step) % len(pairs)
        width = max(len(labels[row]) for row in batch)
        loss = model(input_ids=ids[batch, :width], labels=targets[batch, :width]).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    print(f"taught {len(pairs)} turns: loss {loss.item():.3f}")
