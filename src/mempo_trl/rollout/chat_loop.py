"""The turn loop for chat endpoints: `rollout.loop.TurnLoop` on messages in place of token ids."""

import json
from collections.abc import Callable
from typing import Any

from ..parts import Part, find_blocks
from ..text import valid_unicode
from ..types import ChatReply, Episode, Message, Turn, TurnLimits
from .context import first_visible, visible_messages
from .loop import LAST_TURN_NOTE, is_done, malformed_result, stop_reason
from .reading import HERMES_TEMPLATE, TurnReader, read_call
from .tools import run_calls, tool_schemas

# Asks for one message, given the messages so far and the schemas of the tools.
Complete = Callable[[list[Message], list[dict[str, Any]]], ChatReply]


def read_tool_calls(text: str) -> list[Message]:
    """The tool calls that stand between tags in a turn's text; none if one of them cannot be read."""
    return TurnReader(HERMES_TEMPLATE).read(text).calls


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
        self.complete, self.reader = complete, TurnReader(HERMES_TEMPLATE)
        self.context, self.context_turns, self.limits = context, context_turns, limits

    def run(self, episode: Episode, on_message: Callable[[Message], None] | None = None) -> None:
        """Plays `episode` to its end, in place, and tells of each message as soon as it is there."""
        tell = on_message or (lambda message: None)
        schemas = tool_schemas(episode.tools)
        while episode.stop_reason is None:
            first = first_visible(episode.turns, self.context, self.context_turns)
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
        read = self.reader.read(valid_unicode(reply.text), tools=list(episode.tools.values()))
        calls, text, parts = read.calls, read.text, read.parts
        if reply.tool_calls:  # they stand in the text as well, so that it is the whole turn
            calls = [read_call(call) | {"id": call.get("id")} for call in reply.tool_calls]
            blocks = [f"<tool_call>\n{_json(call['function'])}\n</tool_call>" for call in calls]
            text = valid_unicode("\n".join([reply.text, *blocks]).lstrip())
            parts = [part for part in parts if part.kind != "call"] + [Part("call", block) for block in blocks]
        turn = Turn(text, [], first, reply.prompt_tokens, reply.completion_tokens, parts=parts)
        turn.malformed = None if calls else read.error
        for index, call in enumerate(calls):
            turn.tool_calls.append({**call, "id": call.get("id") or f"call_{len(episode.turns)}_{index}"})
        episode.turns.append(turn)
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
        if turn.malformed is not None:  # no call has an id that a tool message could name
            _, result = malformed_result(episode)
            turn.results.append({"role": "user", "content": valid_unicode(result.text)})
        if len(episode.turns) == self.limits.max_turns - 1:
            turn.results[-1]["content"] += LAST_TURN_NOTE


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def to_wire(message: Message) -> Message:
    """A message as OpenAI-compatible endpoints take it: calls beside the text, their arguments as JSON text."""
    if message["role"] == "tool":
        return {key: message[key] for key in ("role", "tool_call_id", "content")}
    if not message.get("tool_calls"):
        return {key: message[key] for key in ("role", "content")}
    calls = [
        {**call, "function": {**call["function"], "arguments": _json(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {"role": "assistant", "content": without_calls(message["content"]), "tool_calls": calls}


def without_calls(text: str) -> str:
    """A turn's text without the calls between tags that it makes; those that it quotes stay."""
    kept, position = "", 0
    for block in find_blocks(text):
        if block.tag == "tool_call":
            kept, position = kept + text[position : block.start], block.end
    return (kept + text[position:]).strip()
