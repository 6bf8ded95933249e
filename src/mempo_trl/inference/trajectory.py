"""What an agent did on one question."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ..memory.turns import find_turns
from ..tasks.search.rewards import extract_answer

if TYPE_CHECKING:
    from ..rollout.loop import Episode

Message = dict[str, Any]

TOOL_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_MEMORY = re.compile(r"<mem>((?:(?!<mem>).)*?)</mem>", re.DOTALL)


class TurnTokens(NamedTuple):
    """Tokens of one turn: what it was generated from, and what the model wrote."""

    context: int
    turn: int


@dataclass
class Trajectory:
    """One question, played to its end.

    Attributes:
        prompt: the messages that the first turn saw.
        tools: what the model may call, by name.
        environment: what the tools belong to; None for plain functions.
        messages: turns and tool results. A turn's `content` is its whole text, with its tags.
        turn_tokens: by the model's own tokenizer, one entry for each turn.
        stop_reason: as in `rollout.loop.Episode`, or "error": the endpoint failed.
        error: what an endpoint said that ended the trajectory.
        tool_calls: how many calls were made.
        tool_failures: how many of them failed.
        episode: the token ids, for models that are run on ids.
    """

    prompt: list[Message]
    tools: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    environment: Any = None
    messages: list[Message] = field(default_factory=list)
    turn_tokens: list[TurnTokens] = field(default_factory=list)
    stop_reason: str | None = None
    error: str | None = None
    tool_calls: int = 0
    tool_failures: int = 0
    episode: "Episode | None" = None

    def take(self, episode: "Episode") -> None:
        """Takes over what the turn loop recorded."""
        lengths = [end - start for start, end in find_turns(episode.mask)]
        self.turn_tokens = [TurnTokens(*pair) for pair in zip(episode.context_lengths, lengths, strict=True)]
        self.messages, self.stop_reason = episode.messages, episode.stop_reason
        self.tool_calls, self.tool_failures = episode.tool_calls, episode.tool_failures

    @property
    def answer(self) -> str | None:
        """The text of the last turn's answer block; None without one."""
        return extract_answer(self.messages)

    @property
    def turns(self) -> list[str]:
        """The whole text of each turn."""
        return [message["content"] for message in self.messages if message["role"] == "assistant"]

    @property
    def memories(self) -> list[str | None]:
        """The text of each turn's last closed `<mem>` block; None without one."""
        blocks = [_MEMORY.findall(turn) for turn in self.turns]
        return [found[-1].strip() if found else None for found in blocks]

    @property
    def peak_tokens(self) -> int:
        """The longest that context and turn together were."""
        return max(map(sum, self.turn_tokens), default=0)

    @property
    def total_tokens(self) -> int:
        """All tokens that the model read or wrote: context and turn, summed over the turns."""
        return sum(map(sum, self.turn_tokens))


def read_tool_calls(text: str) -> list[Message]:
    """The tool calls that stand between tags in a turn's text; none if one of them is no call."""
    try:
        functions = [json.loads(block) for block in TOOL_CALL.findall(text)]
        return [{"function": {"name": f["name"], "arguments": f["arguments"]}} for f in functions]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
