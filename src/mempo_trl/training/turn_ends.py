"""What TRL's trainer is told about turns: what ends them, and what shapes their prompts."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from ..rollout.chat_format import ChatFormat
from ..rollout.prompt_settings import OPTIONS, PromptSettings, common_system_prompt, saved_settings, settings_of
from ..rollout.self_check import check_episode
from ..rollout.tools import tool_schemas
from .checks import check_tags
from .config import MemPOConfig


def prepare_template(args: MemPOConfig, model: Any, processing_class: Any) -> None:
    """Fills in the options of the chat template that the model was trained with before, and refuses what cannot work.

    A warning says what differs from how the model was trained before.

    Raises:
        ValueError: turns with tools cannot be rendered with the chat template.
    """
    folder = model if isinstance(model, str) else getattr(model, "name_or_path", None)
    name = getattr(processing_class, "name_or_path", None) or folder
    if args.chat_template_kwargs is None:
        args.chat_template_kwargs = saved_settings(name).get("chat_template_kwargs") or None
    settings_of(name, {option: getattr(args, option) for option in OPTIONS})
    if isinstance(processing_class, PreTrainedTokenizerBase):
        check_format(processing_class, args.chat_template_kwargs)


def check_format(tokenizer: PreTrainedTokenizerBase, chat_template_kwargs: Mapping[str, Any] | None) -> ChatFormat:
    """What renders and reads turns, after an episode was rendered and read with it.

    Raises:
        ValueError: the tokenizer breaks the tags up, or its chat template cannot carry an episode.
    """
    chat = ChatFormat(tokenizer, chat_template_kwargs or {})
    check_tags(tokenizer)
    check_episode(chat)
    return chat


def end_turns(trainer: Any) -> tuple[ChatFormat, list[str]]:
    """Makes the engine end turns at the chat template's end tokens, whatever the model's generation config says.

    Returns:
        What renders and reads turns, and the stop strings of `generation_kwargs`: `stop`, as vLLM names them, or
        `stop_strings`, as Transformers does.
    """
    chat = check_format(trainer._tokenizer, trainer.args.chat_template_kwargs)
    trainer.eos_token_ids = list(dict.fromkeys([*trainer.eos_token_ids, *chat.end_ids]))
    given: dict[str, Any] = dict(trainer.args.generation_kwargs or {})
    named = [given.pop(name, None) or [] for name in ("stop", "stop_strings")]
    strings = [text for texts in named for text in ([texts] if isinstance(texts, str) else texts)]
    if trainer.use_vllm:
        ids = [*(given.get("stop_token_ids") or []), *trainer.eos_token_ids]
        given |= {"stop_token_ids": list(dict.fromkeys(ids)), **({"stop": strings} if strings else {})}
        trainer.vllm_generation.generation_kwargs = given
        return chat, strings
    trainer.generation_config.eos_token_id = trainer.generation_kwargs["eos_token_id"] = trainer.eos_token_ids
    if strings:
        trainer.generation_kwargs.pop("stop", None)
        trainer.generation_kwargs["stop_strings"] = trainer.generation_config.stop_strings = strings
        # TRL does not hand over the tokenizer that Transformers looks for stop strings with.
        trainer.model.generate = partial(trainer.model.generate, tokenizer=trainer._tokenizer)
    return chat, strings


def prompt_settings(trainer: Any) -> PromptSettings:
    """What shapes the prompts of `trainer`'s policy."""
    args, rows = trainer.args, trainer.train_dataset
    prompts = rows["prompt"] if isinstance(rows, Dataset) else [next(iter(rows))["prompt"]]
    return PromptSettings(
        **{option: getattr(args, option) for option in OPTIONS}
        | {"chat_template_kwargs": args.chat_template_kwargs or {}},
        tools=tool_schemas({tool.__name__: tool for tool in trainer.tools}),
        system_prompt=common_system_prompt(prompts),
    )
