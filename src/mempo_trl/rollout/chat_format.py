"""How messages become token ids: as TRL's trainer renders them, so that what was trained is what is run."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from transformers import PreTrainedTokenizerBase

from .loop import tool_suffix_ids
from .plain import PlainText


class ChatFormat:
    """Renders prompts and tool results with a tokenizer's chat template, or with TRL's training version of it.

    As in [`~trl.GRPOTrainer`], a template that renders earlier messages differently when others follow is replaced, and
    a tokenizer that cannot read tool calls yet gets TRL's response schema for its template.

    Args:
        tokenizer: with a chat template.

    Raises:
        `ValueError`: the template renders no tools, or TRL knows no way to read its tool calls.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        from trl import chat_template_utils as templates

        name = tokenizer.name_or_path or type(tokenizer).__name__
        if not tokenizer.chat_template or not templates.supports_tool_calling(tokenizer):
            raise ValueError(
                f"the chat template of {name} renders no tool calls. Use a model that was trained with tools, or set "
                "tokenizer.chat_template to a template with tools, such as Qwen2.5's"
            )
        if not any(getattr(tokenizer, key, None) for key in ("response_template", "response_schema")):
            templates.add_response_schema(tokenizer)
        self.tokenizer = tokenizer
        preserving = templates.is_chat_template_prefix_preserving(tokenizer)
        self.chat_template = None if preserving else templates.get_training_chat_template(tokenizer)
        self.suffix_ids = partial(tool_suffix_ids, tokenizer, chat_template=self.chat_template)

    def prompt_ids(
        self, messages: list[dict[str, Any]], tools: Sequence[Callable[..., Any] | dict[str, Any]]
    ) -> list[int]:
        """The ids of a prompt with its tools (functions or their JSON schemas), ending with the assistant header."""
        return self.tokenizer.apply_chat_template(
            PlainText(self.tokenizer).messages(messages),
            tools=list(tools),
            chat_template=self.chat_template,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
        )


def environment_tools(environment: Any) -> list[Callable[..., Any]]:
    """The tools of an environment: its class's public functions but `reset` and `get_reward`, as TRL finds them."""
    names = [name for name, _ in inspect.getmembers(type(environment), predicate=inspect.isfunction)]
    return [getattr(environment, n) for n in names if not n.startswith("_") and n not in ("reset", "get_reward")]
