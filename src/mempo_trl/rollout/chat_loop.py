"""The turn loop for chat endpoints: `rollout.loop.TurnLoop` on messages in place of token ids."""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from ..text import valid_unicode
from ..types import ChatReply, Episode, Message, Turn, TurnLimits
from .context import first_visible, visible_messages
from .loop import LAST_TURN_NOTE, is_done, stop_reason
from .tools import run_calls, tool_schemas

TOOL_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)

# Asks for one message, given the messages so far and the schemas of the tools.
Complete = Callable[[list[Message], list[dict[str, Any]]], ChatReply]


def read_tool_calls(text: str) -> list[Message]:
    """The tool calls that stand between tags in a turn's text; none if one of them is no call."""
    try:
        functions = [json.loads(block) for block in TOOL_CALL.findall(text)]
        return [{"function": {"name": f["name"], "arguments": f["arguments"]}} for f in functions]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


class ChatLoop:
    """Plays questions against a chat endpoint, turn by turn, under the visible context of `rollout.context`.

    Args:
        complete: what writes the turns. An error that it raises leaves the episode as it is.
        context: "full" or "memory".
        context_turns: past turns that the "memory" context keeps.
        limits: of them `max_turns`, `tool_timeout` and `tool_concurrency` hold here. Those in tokens do not: how many
            tokens a tool result has is known to the endpoint alone.
    """

    def __init__(self, complete: Complete, context: str, context_turns: int, limits: TurnLimits) -> None:
        self.complete = complete
        self.context, self.context_turns, self.limits = context, context_turns, limits

    def run(self, episode: Episode, on_message: Callable[[Message], None] | None = None) -> None:
        """Plays `episode` to its end, in place, and tells of each message as soon as it is there."""
        tell = on_message or (lambda message: None)
        schemas = tool_schemas(episode.tools)
        while episode.stop_reason is None:
            first = first_visible(len(episode.turns), self.context, self.context_turns)
            visible = visible_messages(episode, first)
            self._add_turn(episode, first, self.complete([to_wire(message) for message in visible], schemas))
            tell(episode.turns[-1].message)
            if episode.stop_reason is None:
                self._run_tools(episode)
                for message in episode.turns[-1].results:
                    tell(message)
                if is_done(episode.environment):
                    episode.stop_reason = "done"

    def _add_turn(self, episode: Episode, first: int, reply: ChatReply) -> None:
        calls = reply.tool_calls or read_tool_calls(reply.text)
        calls = [_parsed(call, f"call_{len(episode.turns)}_{index}") for index, call in enumerate(calls)]
        blocks = [f"<tool_call>\n{json.dumps(call['function'])}\n</tool_call>" for call in calls]
        text = valid_unicode("\n".join([reply.text, *blocks]).lstrip() if reply.tool_calls else reply.text)
        episode.turns.append(Turn(text, calls, first, reply.prompt_tokens, reply.completion_tokens))
        if hasattr(episode.environment, "turn_text"):
            episode.environment.turn_text = text
        episode.stop_reason = stop_reason(episode, reply.finish_reason != "length", self.limits)

    def _run_tools(self, episode: Episode) -> None:
        turn = episode.turns[-1]
        results = run_calls([(episode, call) for call in turn.tool_calls], self.limits)
        episode.tool_calls += len(results)
        episode.tool_failures += sum(result.failed for result in results)
        turn.results = [
            {
                "role": "tool",
                "tool_call_id": call["id"],
                "name": call["function"]["name"],
                "content": valid_unicode(result.text),
            }
            for call, result in zip(turn.tool_calls, results, strict=True)
        ]
        if len(episode.turns) == self.limits.max_turns - 1:
            turn.results[-1]["content"] += LAST_TURN_NOTE


def _parsed(call: Mapping[str, Any], default_id: str) -> Message:
    """One call with an id, and its arguments as an object where they are one."""
    function = call["function"]
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        with suppress(ValueError):  # stays text: the tool's result tells the model what is wrong
            arguments = json.loads(arguments)
    function = {"name": valid_unicode(str(function["name"])), "arguments": arguments}
    return {"id": call.get("id") or default_id, "type": "function", "function": function}


def to_wire(message: Message) -> Message:
    """A message as OpenAI-compatible endpoints take it: calls beside the text, their arguments as JSON text."""
    if message["role"] == "tool":
        return {key: message[key] for key in ("role", "tool_call_id", "content")}
    if not message.get("tool_calls"):
        return {key: message[key] for key in ("role", "content")}
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {"role": "assistant", "content": TOOL_CALL.sub("", message["content"]).strip(), "tool_calls": calls}
