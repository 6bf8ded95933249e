"""The turn loop for chat endpoints: `rollout.loop.TurnLoop` on messages in place of token ids."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from ..inference.endpoints import ChatReply
from ..inference.trajectory import TOOL_CALL, Message, Trajectory, TurnTokens, read_tool_calls
from ..memory.turns import find_turns
from ..text import valid_unicode
from .context import visible_start
from .loop import LAST_TURN_NOTE, TurnLimits, is_done
from .tools import call_tool, run_concurrently, tool_schemas

# Asks for one message, given the messages so far and the schemas of the tools.
Complete = Callable[[list[Message], list[dict[str, Any]]], ChatReply]


class ChatLoop:
    """Plays questions against a chat endpoint, turn by turn, under the visible context of `rollout.context`.

    Args:
        complete: what writes the turns. An error that it raises leaves the trajectory as it is.
        context: "full" or "memory".
        context_turns: past turns that the "memory" context keeps.
        limits: of them `max_turns`, `tool_timeout` and `tool_concurrency` hold here. Those in tokens do not: how many
            tokens a tool result has is known to the endpoint alone.
    """

    def __init__(self, complete: Complete, context: str, context_turns: int, limits: TurnLimits) -> None:
        self.complete = complete
        self.context, self.context_turns, self.limits = context, context_turns, limits

    def run(self, trajectory: Trajectory, on_message: Callable[[Message], None] | None = None) -> None:
        """Plays `trajectory` to its end, in place, and tells of each message as soon as it is there."""
        tell = on_message or (lambda message: None)
        schemas = tool_schemas(trajectory.tools)
        while trajectory.stop_reason is None:
            reply = self.complete([to_wire(message) for message in self.visible(trajectory)], schemas)
            self._add_turn(trajectory, reply)
            tell(trajectory.messages[-1])
            if trajectory.stop_reason is None:
                for message in self._run_tools(trajectory):
                    trajectory.messages.append(message)
                    tell(message)
                if is_done(trajectory.environment):
                    trajectory.stop_reason = "done"

    def visible(self, trajectory: Trajectory) -> list[Message]:
        """The messages that the next turn is generated from."""
        turns = find_turns([message["role"] == "assistant" for message in trajectory.messages])
        start = visible_start(turns, len(turns), self.context, self.context_turns)
        return trajectory.prompt + trajectory.messages[start:]

    def _add_turn(self, trajectory: Trajectory, reply: ChatReply) -> None:
        number = len(trajectory.turn_tokens)
        calls = reply.tool_calls or read_tool_calls(reply.text)
        calls = [_parsed(call, f"call_{number}_{index}") for index, call in enumerate(calls)]
        blocks = [f"<tool_call>\n{json.dumps(call['function'])}\n</tool_call>" for call in calls]
        text = valid_unicode("\n".join([reply.text, *blocks]).lstrip() if reply.tool_calls else reply.text)
        message: Message = {"role": "assistant", "content": text}
        trajectory.messages.append({**message, "tool_calls": calls} if calls else message)
        trajectory.turn_tokens.append(TurnTokens(reply.prompt_tokens, reply.completion_tokens))
        if hasattr(trajectory.environment, "turn_text"):
            trajectory.environment.turn_text = text
        if reply.finish_reason == "length":
            trajectory.stop_reason = "truncated"
        elif is_done(trajectory.environment):
            trajectory.stop_reason = "done"
        elif not calls:
            trajectory.stop_reason = "finished"
        elif number + 1 >= self.limits.max_turns:
            trajectory.stop_reason = "max_turns"

    def _run_tools(self, trajectory: Trajectory) -> list[Message]:
        calls = trajectory.messages[-1]["tool_calls"]
        results = run_concurrently(
            [partial(call_tool, trajectory.tools, call) for call in calls],
            self.limits.tool_timeout,
            self.limits.tool_concurrency,
        )
        trajectory.tool_calls += len(results)
        trajectory.tool_failures += sum(result.failed for result in results)
        messages = [
            {
                "role": "tool",
                "tool_call_id": call["id"],
                "name": call["function"]["name"],
                "content": valid_unicode(result.text),
            }
            for call, result in zip(calls, results, strict=True)
        ]
        if len(trajectory.turn_tokens) == self.limits.max_turns - 1:
            messages[-1]["content"] += LAST_TURN_NOTE
        return messages


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
