"""A trainer whose turns come from a script, so that whole steps run on a random model, the same every time."""

import random

from mempo_trl import MemPOConfig, MemPOTrainer

MEMORIES = [
    "<mem>Paris</mem>",
    "<mem>Lima and Paris</mem>",
    "<mem>x</mem><mem>Lima</mem>",
    "",
    "<mem>open",
    "<mem></mem>",
]


def search(query: str) -> str:
    """Searches.

    Args:
        query: what to look for.
    """
    return f"nothing about {query}"


def tool_call(query: str) -> str:
    return f'<tool_call>\n{{"name": "search", "arguments": {{"query": "{query}"}}}}\n</tool_call>'


def answer_reward(completion_ids, **kwargs):
    """Differs between episodes, and reads ids alone: TRL's messages leave out what stands before `<think>`."""
    return [sum(ids) % 97 / 97 for ids in completion_ids]


def visible_context(prompt_ids, completion_ids, mask, context, context_turns=1):
    """What the next turn sees, found from the mask alone: the reference for what the loop stored."""
    starts = [i for i, mark in enumerate(mask) if mark and not (i and mask[i - 1])]
    first = 0 if context == "full" or len(starts) <= context_turns else starts[-context_turns]
    return prompt_ids + completion_ids[first:]


class Scripted:
    """Mixed in before a trainer: replaces the engine. A turn depends on step, context and, at first, row."""

    turns_given: list  # (context, turn) of every generated row

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, **kwargs):
        first = num_generations > 1
        offset = self.accelerator.process_index * len(prompt_ids)
        turns = []
        for row, ids in enumerate(prompt_ids):
            key = (self.state.global_step, ids, (offset + row) % num_generations if first else "")
            turns.append([*self._tokenizer.encode(self._text(random.Random(repr(key)), key[2])), self.eos_token_ids[0]])
        if not hasattr(self, "turns_given"):
            self.turns_given = []
        self.turns_given += zip(prompt_ids, turns, strict=True)
        return turns, None

    def _text(self, rng, row):
        if row != "":
            return f"<think>a</think>{tool_call(row)}" if rng.random() < 0.9 else "<answer>a</answer>"
        memory = rng.choice(MEMORIES)
        return memory + (
            tool_call(rng.choice("xyz")) if rng.random() < 0.6 else f"<answer>{rng.choice('abc')}</answer>"
        )


class ScriptedMemPO(Scripted, MemPOTrainer):
    """`MemPOTrainer` on scripted turns."""


def make_config(tmp_path, **options) -> MemPOConfig:
    """Small and fast: two questions of four trajectories a step, on CPU, without logging."""
    defaults = {
        "output_dir": str(tmp_path),
        "use_cpu": True,
        "bf16": False,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_steps": 3,
        "learning_rate": 1e-2,
        "beta": 0.0,
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "max_completion_length": 1024,
        "max_turns": 12,
        "context": "full",
        "memory_threshold": None,
        "memory_std_floor": 0.0,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
    }
    return MemPOConfig(**{**defaults, **options})


def make_trainer(tmp_path, model, tokenizer, questions, trainer_class=ScriptedMemPO, trainer_options=None, **options):
    """A scripted trainer on the fixtures of conftest."""
    return trainer_class(
        model,
        answer_reward,
        make_config(tmp_path, **options),
        questions,
        processing_class=tokenizer,
        **{"tools": [search], **(trainer_options or {})},
    )
