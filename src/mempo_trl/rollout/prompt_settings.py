"""What shaped the prompts of a policy, in a small file beside its tokenizer, so that it is run as it was trained."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..types import TurnLimits

FILE_NAME = "mempo_prompt.json"


@dataclass
class PromptSettings:
    """What a policy saw beside the question.

    Attributes:
        chat_template_kwargs: options of the chat template.
        context: "full" or "memory".
        context_turns: past turns that the "memory" context keeps.
        limits: of turns and tokens.
        tools: JSON schemas of what it could call.
        system_prompt: the first message of the first prompt, if it was the system's.
    """

    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    context: str = "memory"
    context_turns: int = 1
    limits: TurnLimits = field(default_factory=TurnLimits)
    tools: list[dict[str, Any]] = field(default_factory=list)
    system_prompt: str | None = None

    def save(self, folder: str | Path) -> None:
        """Writes the file into the folder of a model."""
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False)
        (Path(folder) / FILE_NAME).write_text(text + "\n", encoding="utf-8")


def saved_settings(folder: str | Path | None) -> PromptSettings | None:
    """The settings in the folder of a model or tokenizer; None if it has none, or if it is not a folder.

    Raises:
        `ValueError`: the file cannot be read.
    """
    path = Path(folder or "") / FILE_NAME
    if not folder or not path.is_file():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return PromptSettings(**{**values, "limits": TurnLimits(**values["limits"])})
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path} is not what this mempo-trl writes ({error!s:.200}). Remove it, and give the options of the prompt "
            "yourself"
        ) from error
