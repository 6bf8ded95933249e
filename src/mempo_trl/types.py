"""What everything else speaks of: a turn, an episode, why it ended, and its limits. Standard library only.

An episode that a model in this process or a vLLM server played has token ids. One that a chat endpoint played, or that
was written by hand, has texts alone: its ids are None.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, NamedTuple

from .parts import Part

Message = dict[str, Any]
"""A chat message: `role`, `content`, and for a turn that calls tools `tool_calls`."""

Tool = Callable[..., Any]

StopReason = Literal["finished", "done", "max_turns", "truncated", "no_memory", "error"]
"""Why an episode ended: the last turn called no tool ("finished"), the environment said so ("done"), a limit on turns
("max_turns") or tokens ("truncated") was reached, a compaction closed no memory ("no_memory"), or an endpoint failed
("error")."""

_MEMORY = re.compile(r"<mem>((?:(?!<mem>).)*?)</mem>", re.DOTALL)


@dataclass
class TurnLimits:
    """Budgets of an episode, in turns, tokens and seconds.

    Attributes:
        max_turns: turns of an episode, without compactions.
        max_tool_length: tokens of one tool result; a longer one is cut, with a marker.
        max_completion_length: tokens of all turns and tool results of an episode.
        max_context_length: tokens that the engine can hold, prompt included; None for no limit.
        tool_timeout: seconds for one tool call; None for no limit.
        tool_concurrency: tool calls that run at once.
    """

    max_turns: int = 16
    max_tool_length: int = 1024
    max_completion_length: int = 8192
    max_context_length: int | None = None
    tool_timeout: float | None = 60.0
    tool_concurrency: int = 64


MAX_TURN_LENGTH = 1024
"""Tokens of one turn, by default."""


class ChatReply(NamedTuple):
    """One message of a chat endpoint.

    Attributes:
        text: what it wrote, without its tool calls.
        tool_calls: as the endpoint parsed them.
        finish_reason: "length" if the turn was cut at its budget.
        prompt_tokens: tokens of what it saw, as the endpoint counts them.
        completion_tokens: tokens that it wrote.
    """

    text: str
    tool_calls: list[Message]
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int


@dataclass
class Turn:
    """One message of the policy, what it was generated from, and the tool results that follow it.

    Attributes:
        text: all of it, tags included.
        tool_calls: as parsed from it, each `{"function": {"name", "arguments"}}`.
        malformed: why a call that it makes cannot be read; None if all can.
        opened: what the assistant header wrote of the turn, such as `<think>`.
        parts: its parts in order (see `mempo_trl.parts`); None if nothing has read it.
        first_visible: the number of the first turn in its context, whose memory stands for what lies before it; its own
            number if it saw the prompt alone (see `rollout.context`).
        context_tokens: tokens that it was generated from.
        turn_tokens: tokens that it has.
        start: its first token, counted in the completion.
        ids: the sampled ids; None without.
        logprobs: of the ids, natural log; None where the engine gives none.
        compaction: in "budget" context, whether it was asked for, to rewrite what it saw as a memory; None in another.
        results: the tool messages behind it, one for each call that was run; in "budget" context also the user message
            that asks for a compaction, or that follows one.
        result_ids: their rendered ids, up to where the next turn starts; empty if none follows.
    """

    text: str
    tool_calls: list[Message] = field(default_factory=list)
    first_visible: int = 0
    context_tokens: int = 0
    turn_tokens: int = 0
    start: int = 0
    ids: list[int] | None = None
    logprobs: list[float] | None = None
    compaction: bool | None = None
    results: list[Message] = field(default_factory=list)
    result_ids: list[int] = field(default_factory=list)
    malformed: str | None = None
    opened: str = ""
    parts: list[Part] | None = None

    @property
    def end(self) -> int:
        """The token behind its last one, counted in the completion."""
        return self.start + len(self.ids or ())

    @property
    def message(self) -> Message:
        """The turn as a chat message, with what the header opened; its format is judged on `parts` and `compaction`."""
        message: Message = {"role": "assistant", "content": self.opened + self.text}
        if self.tool_calls:
            message["tool_calls"] = self.tool_calls
        if self.parts is not None:
            message["parts"] = self.parts
        if self.compaction is not None:
            message["compaction"] = self.compaction
        return message

    @property
    def memory(self) -> str | None:
        """The text of the last closed `<mem>` block; None without one."""
        found = _MEMORY.findall(self.text)
        return found[-1].strip() if found else None


@dataclass
class Episode:
    """One question, played by a turn loop. Once it has a stop reason it does not change.

    Attributes:
        prompt: the messages that the first turn saw.
        tools: what the policy may call, by name: functions, or JSON schemas in an episode that was read from a file.
        environment: what the tools belong to; None for plain functions. If it has `turn_text`, it gets the text of each
            turn; if it has `done`, True ends the episode.
        row: the question's row of the dataset.
        prompt_ids: the rendered prompt, ending with the assistant header. Length P. None for chat endpoints.
        turns: in order. Length T.
        stop_reason: None while it is played.
        error: what an endpoint said that ended it.
        tool_calls: how many calls were run.
        tool_failures: how many of them failed.
    """

    prompt: list[Message] = field(default_factory=list)
    tools: Mapping[str, Any] = field(default_factory=dict)
    environment: Any = None
    row: Mapping[str, Any] = field(default_factory=dict)
    prompt_ids: list[int] | None = None
    turns: list[Turn] = field(default_factory=list)
    stop_reason: StopReason | None = None
    error: str | None = None
    tool_calls: int = 0
    tool_failures: int = 0

    @property
    def completion_ids(self) -> list[int]:
        """Turns and tool results. Length C."""
        return list(chain.from_iterable(chain(turn.ids or (), turn.result_ids) for turn in self.turns))

    @property
    def mask(self) -> list[int]:
        """1 where the policy wrote, 0 where a tool did. Length C."""
        return list(chain.from_iterable([1] * len(t.ids or ()) + [0] * len(t.result_ids) for t in self.turns))

    @property
    def logprobs(self) -> list[float] | None:
        """Of the sampled ids, 0 on tool results; None where the engine gives none. Length C."""
        if any(turn.logprobs is None for turn in self.turns):
            return None
        return list(chain.from_iterable(chain(t.logprobs or (), [0.0] * len(t.result_ids)) for t in self.turns))

    @property
    def messages(self) -> list[Message]:
        """Turns and tool results as chat messages, without the prompt."""
        return list(chain.from_iterable([turn.message, *turn.results] for turn in self.turns))

    @property
    def memories(self) -> list[str | None]:
        """The text of each turn's last closed `<mem>` block; None without one. Length T."""
        return [turn.memory for turn in self.turns]

    @property
    def malformed_calls(self) -> int:
        """How many turns made a call that cannot be read."""
        return sum(turn.malformed is not None for turn in self.turns)

    @property
    def turns_taken(self) -> int:
        """Turns without compactions."""
        return sum(not turn.compaction for turn in self.turns)

    @property
    def peak_tokens(self) -> int:
        """The longest that context and turn together were."""
        return max((turn.context_tokens + turn.turn_tokens for turn in self.turns), default=0)

    @property
    def total_tokens(self) -> int:
        """All tokens that the policy read or wrote: context and turn, summed over the turns."""
        return sum(turn.context_tokens + turn.turn_tokens for turn in self.turns)

    def visible_start(self, turn: int) -> int:
        """Where in the completion the context of turn `turn` starts (its token range ends where the turn starts)."""
        return self.turns[self.turns[turn].first_visible].start
