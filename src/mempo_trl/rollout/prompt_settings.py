"""What shapes the prompts of a policy, in one place, and in a small file beside its tokenizer, so that it is run as it
was trained."""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from transformers.utils.hub import cached_file

from ..types import MAX_TURN_LENGTH, Message, TurnLimits
from .budget import COMPACTION_PROMPT, ContextBudget, check_context_tokens
from .context import CONTEXTS

FILE_NAME = "mempo_prompt.json"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PromptSettings:
    """What a policy sees beside the question. The names are those of `MemPOConfig` and of the command line.

    Attributes:
        chat_template_kwargs: options of the chat template.
        context: "full", "memory" or "budget".
        context_turns: past turns that the "memory" context keeps.
        context_tokens: most tokens that a turn and what it sees have in "budget" context, None in another.
        compaction_prompt: the user message that asks for a memory in "budget" context.
        max_turns: turns of an episode.
        max_turn_length: tokens of a turn.
        max_tool_length: tokens of a tool result.
        max_completion_length: tokens of an episode, without the prompt.
        tools: JSON schemas of what it could call; empty if that is not known.
        system_prompt: the first message, if it is the system's and the same in all prompts.

    Raises:
        `ValueError`: the context is unknown, or does not go with the numbers.
    """

    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    context: str = "memory"
    context_turns: int = 1
    context_tokens: int | None = None
    compaction_prompt: str = COMPACTION_PROMPT
    max_turns: int = TurnLimits.max_turns
    max_turn_length: int = MAX_TURN_LENGTH
    max_tool_length: int = TurnLimits.max_tool_length
    max_completion_length: int = TurnLimits.max_completion_length
    tools: list[dict[str, Any]] = field(default_factory=list)
    system_prompt: Any = None

    def __post_init__(self) -> None:
        if self.context not in CONTEXTS:
            raise ValueError(f"context={self.context!r} is unknown. Set one of {', '.join(CONTEXTS)}")
        check_context_tokens(self.context, self.context_tokens)
        if self.context_turns < 1:
            raise ValueError(f"context_turns={self.context_turns} leaves no turn to see. Set it to 1 or more")

    @property
    def limits(self) -> TurnLimits:
        """The budgets of an episode."""
        return TurnLimits(self.max_turns, self.max_tool_length, self.max_completion_length)

    @property
    def budget(self) -> ContextBudget | None:
        """The budget of the turn loop; None in another context."""
        if self.context_tokens is None:
            return None
        return ContextBudget(self.context_tokens, self.max_turn_length, self.compaction_prompt)

    def replaced(self, given: Mapping[str, Any]) -> "PromptSettings":
        """These settings with those `given` in their place; None is not given. Another context has no budget."""
        named = _named(given)
        left = {} if named.get("context", self.context) == self.context else {"context_tokens": None}
        return replace(self, **{**left, **named})

    def save(self, folder: str | Path, names: Iterable[str] | None = None) -> None:
        """Writes the file into the folder of a model.

        Args:
            folder: which.
            names: of the settings that are known; default: all.
        """
        values = asdict(self)
        known = {name: values[name] for name in (values if names is None else names)}
        text = json.dumps(known, indent=2, ensure_ascii=False)
        (Path(folder) / FILE_NAME).write_text(text + "\n", encoding="utf-8")


NAMES = tuple(setting.name for setting in fields(PromptSettings))
OPTIONS = tuple(name for name in NAMES if name not in ("tools", "system_prompt"))
"""The settings that are options; the others come with the questions and the tools."""


def common_system_prompt(prompts: Iterable[Sequence[Message]]) -> Any:
    """The system prompt that all prompts begin with; None if they have none, or not the same."""
    common = None
    for number, prompt in enumerate(prompts):
        first = prompt[0]
        system = first["content"] if first["role"] == "system" else None
        if number and system != common:
            return None
        common = system
    return common


def saved_settings(name: str | Path | None) -> dict[str, Any]:
    """The settings beside a model or tokenizer, by name; empty if there are none.

    Args:
        name: its folder, or its name on the Hub.

    Raises:
        `ValueError`: the file cannot be read.
    """
    path = _file(str(name or ""))
    if path is None:
        return {}
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
        PromptSettings(**values)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{path} is not what this mempo-trl writes ({error!s:.200}). Remove it, and give the options of the prompt "
            "yourself"
        ) from error
    return dict(values)


def settings_of(name: str | Path | None, given: Mapping[str, Any]) -> PromptSettings:
    """The settings beside a model, or the defaults, with those `given` in their place; None is not given.

    A warning says which of those differ from what the policy was trained with.

    Args:
        name: the model's folder, or its name on the Hub; None for defaults.
        given: by name.
    """
    saved = saved_settings(name)
    for setting, value in _named(given).items():
        if setting in saved and value != saved[setting]:
            say_difference(setting, saved[setting], value)
    return PromptSettings(**saved).replaced(given)


def say_difference(setting: str, trained: Any, value: Any) -> None:
    """Warns, once, that a setting differs from what the policy was trained with."""
    if isinstance(value, str | list) and setting != "context":
        return _warn(f"the policy was trained with other {setting}; {FILE_NAME} beside its tokenizer says which")
    _warn(f"the policy was trained with {setting}={trained!r}, and is used with {setting}={value!r}")


@cache
def _warn(text: str) -> None:
    logger.warning(text)


def _named(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _file(name: str) -> str | None:
    if not name or Path(name).is_dir():
        path = Path(name) / FILE_NAME
        return str(path) if name and path.is_file() else None
    try:
        cached: str | None = cached_file(
            name, FILE_NAME, _raise_exceptions_for_gated_repo=False, _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )  # fmt: skip
    except OSError:  # it is no name of a repository
        return None
    return cached
