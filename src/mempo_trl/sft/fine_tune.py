"""The cold start: TRL's `SFTTrainer` on the turns of a trace file, each under the context that it will see."""

import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from datasets import Dataset
from transformers import AutoTokenizer

from ..rollout.chat_format import ChatFormat
from ..rollout.prompt_settings import PromptSettings, common_system_prompt, settings_of
from ..rollout.self_check import check_episode
from ..traces.file import Trace, read_traces
from .arguments import SFTArguments
from .demonstrations import sft_rows

if TYPE_CHECKING:
    from trl import ModelConfig, SFTConfig

logger = logging.getLogger(__name__)

TAUGHT = ("chat_template_kwargs", "context", "context_turns", "tools", "system_prompt")
"""The prompt settings that a trace file says; it does not say the budgets."""


def taught_settings(script: SFTArguments, tokenizer: Any, traces: list[Trace]) -> PromptSettings:
    """What shapes the prompts of the policy that the traces teach.

    Raises:
        `ValueError`: the context cannot be taught.
    """
    options = script.chat_template_kwargs
    given = {
        "context": script.context, "context_turns": script.context_turns,
        "chat_template_kwargs": options if options is None or isinstance(options, dict) else json.loads(options),
    }  # fmt: skip
    settings = settings_of(tokenizer.name_or_path, given)
    if settings.context == "budget":
        raise ValueError("the model was trained in budget context, which is not taught. Set --context memory or full")
    tools = [trace.get("tools", []) for trace in traces]
    return replace(
        settings,
        tools=tools[0] if tools and all(known == tools[0] for known in tools) else [],
        system_prompt=common_system_prompt(trace["messages"] for trace in traces),
    )


def trace_dataset(script: SFTArguments, tokenizer: Any, max_length: int | None) -> tuple[Dataset, PromptSettings]:
    """The rows of a trace file's good traces, and what shapes their prompts.

    A row that is longer than `max_length` is left out: cut, it would teach half a turn.

    Raises:
        `ValueError`: no row is left.
    """
    traces = [trace for trace in read_traces(script.traces) if _worth(trace) >= script.min_reward]
    settings = taught_settings(script, tokenizer, traces)
    chat = ChatFormat(tokenizer, settings.chat_template_kwargs)
    check_episode(chat)
    rows = [row for trace in traces for row in sft_rows(trace, chat, settings.context, settings.context_turns)]
    fitting = [row for row in rows if max_length is None or len(row["input_ids"]) <= max_length]
    if len(fitting) < len(rows):
        longest = max(len(row["input_ids"]) for row in rows)
        logger.warning(
            "left out %d of %d rows longer than max_length=%d; the longest has %d tokens",
            len(rows) - len(fitting), len(rows), max_length, longest,
        )  # fmt: skip
    if not fitting:
        raise ValueError(
            f"{script.traces} gives no row: {len(traces)} traces have a reward of {script.min_reward} or more, and "
            f"none of their {len(rows)} rows has at most {max_length} tokens. Lower min_reward, or raise max_length"
        )
    return Dataset.from_list(fitting), settings


def _worth(trace: Trace) -> float:
    """The reward, or 0 where the scores say that the format is wrong: old evaluations did not count it as a reward."""
    return (trace["reward"] or 0.0) if trace["rewards"].get("well_formed", 1.0) else 0.0


def fine_tune(script: SFTArguments, config: "SFTConfig", model: "ModelConfig") -> None:
    """Trains, and saves the model, its tokenizer and what shapes its prompts to `config.output_dir`."""
    from trl import SFTTrainer, get_peft_config, get_quantization_config

    tokenizer = AutoTokenizer.from_pretrained(model.model_name_or_path, revision=model.model_revision)
    init = {"revision": model.model_revision, "attn_implementation": model.attn_implementation, "dtype": model.dtype}
    config.model_init_kwargs = {**init, **(config.model_init_kwargs or {})}
    dataset, settings = trace_dataset(script, tokenizer, config.max_length)
    trainer = SFTTrainer(
        model.model_name_or_path,
        config,
        train_dataset=dataset,
        processing_class=tokenizer,
        quantization_config=get_quantization_config(model),
        peft_config=get_peft_config(model),
    )
    trainer.train(resume_from_checkpoint=config.resume_from_checkpoint)
    trainer.save_model(config.output_dir)
    trainer.save_state()
    if trainer.args.should_save:
        settings.save(config.output_dir, TAUGHT)
