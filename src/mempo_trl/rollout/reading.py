"""Reading a turn: its calls and its parts, the same for token ids and for texts of an endpoint."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from transformers.utils.chat_parsing import ResponseParser

from ..parts import Part, find_blocks, split_blocks
from ..text import valid_unicode

# What most models without their own template write, and what a chat endpoint that parses no calls sends as text:
# JSON between tags.
HERMES_TEMPLATE: dict[str, Any] = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {"open": "<think>", "close_pattern": r"</think>\s*"},
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*"},
    },
}


@dataclass
class ReadTurn:
    """What a turn says.

    Attributes:
        text: the whole turn, with what the header opened and without its end token.
        parts: see `mempo_trl.parts`.
        calls: the tool calls, `{"type": "function", "function": {"name", "arguments"}}`.
        error: why a call that the turn makes could not be read; None if there is no such call.
    """

    text: str
    parts: list[Part] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None

    def message(self) -> dict[str, Any]:
        """The turn as a message; `parts` is what reward functions judge its format on."""
        calls = {"tool_calls": self.calls} if self.calls else {}
        return {"role": "assistant", "content": self.text, "parts": self.parts, **calls}


class TurnReader:
    """Reads turns with a tokenizer's `response_template`.

    Memories, and thoughts between `<think>` tags, are set aside before the template sees the turn, so that a call that
    one of them quotes is not made.

    Args:
        response_template: as Transformers' `parse_response` takes it.
        marker: what a call begins with. A turn whose text holds it although no call was found has a malformed one.
        end: the text of the token that ends a turn with calls; some templates close a call with it.
    """

    def __init__(self, response_template: dict[str, Any], marker: str = "<tool_call>", end: str = "<|im_end|>") -> None:
        self.template, self.marker, self.end = response_template, marker, end

    def read(self, text: str, opened: str = "", tools: Sequence[Callable[..., Any] | dict[str, Any]] = ()) -> ReadTurn:
        """Reads one turn.

        Args:
            text: what the model wrote, without the end token.
            opened: what the assistant header had written before it, such as `<think>`.
            tools: what the model may call; their schemas say which type an argument has.
        """
        whole = opened + text
        blocks = list(find_blocks(whole, ("mem", "think")))
        # The parser gets a character that the turn does not hold in place of each block.
        unused = (mark for mark in map(chr, range(0xF0000, 0xFFFFE)) if mark not in whole)
        hidden = {next(unused): whole[block.start : block.end] for block in blocks}
        shown, position = "", 0
        for mark, block in zip(hidden, blocks, strict=True):
            shown, position = shown + whole[position : block.start] + mark, block.end
        parser = ResponseParser(self.template, prefix="", tools=list(tools))
        try:
            regions = list(_regions(parser, shown + whole[position:] + self.end))
            calls = [read_call(call) for name, _, value in regions if name == "tool_calls" for call in _as_list(value)]
        except (ValueError, TypeError, KeyError, RecursionError) as error:  # what a parser makes of malformed calls
            return ReadTurn(whole, split_blocks(whole, ("mem", "think")), error=f"{error!s:.200}".rstrip(".") + ".")
        parts = _parts(regions, hidden, opened, self.end)
        malformed = None
        if not calls and any(part.kind == "text" and self.marker in part.text for part in parts):
            malformed = f"it begins with {self.marker} but does not continue as one."
        return ReadTurn(whole, parts, [_restored(call, _table(hidden)) for call in calls], malformed)


def _regions(parser: ResponseParser, text: str) -> Iterator[tuple[str, str, Any]]:
    """The fields that a turn consists of, in order: name, raw text, value."""
    events = parser.feed(text)
    raw = ""
    for event in [*events, *parser.finalize()[1]]:
        if event["type"] == "region_open":
            raw = ""
        elif event["type"] == "region_chunk":
            raw += event["text"]
        else:
            yield event["field"], raw, event["value"]


def _parts(regions: list[tuple[str, str, Any]], hidden: Mapping[str, str], opened: str, end: str) -> list[Part]:
    parts: list[Part] = []
    for name, raw, value in regions:
        if name == "tool_calls":
            parts += [Part("call", raw.translate(_table(hidden)))] * len(_as_list(value))
            continue
        texts = _split_at(raw.removesuffix(end), hidden)
        if name != "content":
            texts = [Part("thought", part.text) if part.kind == "text" else part for part in texts]
        parts += texts
    return _with_opened(parts, opened)


def _split_at(raw: str, hidden: Mapping[str, str]) -> list[Part]:
    """The texts of a region and the blocks between them."""
    parts, text = [], ""
    for character in raw:
        if character in hidden:
            parts += [Part("text", text), *split_blocks(hidden[character], ("mem", "think"))]
            text = ""
        else:
            text += character
    return [part for part in [*parts, Part("text", text)] if part.kind != "text" or part.text.strip()]


def _with_opened(parts: list[Part], opened: str) -> list[Part]:
    """`parts`, with the thought that the header opened named so, and a memory that it starts with put before it."""
    if "<think>" not in opened or not parts:
        return parts
    if parts[0].kind == "thought":
        inner = split_blocks(parts[0].text.removeprefix(opened), ("mem",))
        memory = [part for part in inner[:1] if part.kind == "memory"]
        rest = "".join(part.text for part in inner[len(memory) :])
        return [*memory, Part("opened", rest.replace("<think>", "", 1)), *parts[1:]]
    # It was never closed: what the header wrote is not the model's text.
    if parts[0].kind == "text" and parts[0].text.lstrip().startswith(opened.strip()):
        rest = parts[0].text.lstrip().removeprefix(opened.strip())
        return [*([Part("text", rest)] if rest.strip() else []), *parts[1:]]
    return parts


def read_call(call: Any) -> dict[str, Any]:
    """A call with a name and arguments, however a model or an endpoint wrote it.

    Without arguments there are none, and arguments that are JSON text are read. A name that no tool has, and arguments
    that are not an object, stay: what the tool answers tells the model.

    Raises:
        `ValueError`: it has no name.
    """
    function = call.get("function", call) if isinstance(call, Mapping) else call
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str | int | float):
        raise ValueError("a call needs a name, and arguments, which are a JSON object")
    arguments: Any = next((function[key] for key in ("arguments", "parameters") if function.get(key) is not None), {})
    if isinstance(arguments, str):
        with suppress(ValueError):
            arguments = json.loads(arguments or "{}")
    return {"type": "function", "function": {"name": valid_unicode(str(function["name"])), "arguments": arguments}}


def _table(hidden: Mapping[str, str]) -> dict[int, str]:
    return {ord(mark): text for mark, text in hidden.items()}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _restored(value: Any, hidden: Mapping[int, str]) -> Any:
    """A parsed value with the blocks that its texts hold."""
    if isinstance(value, str):
        return value.translate(hidden)
    if isinstance(value, Mapping):
        return {_restored(key, hidden): _restored(item, hidden) for key, item in value.items()}
    return [_restored(item, hidden) for item in value] if isinstance(value, list) else value
