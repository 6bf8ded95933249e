"""The parts of a turn, in order: memory, thoughts, calls, other text. What the format of a turn is judged on."""

import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

Kind = Literal["memory", "thought", "opened", "call", "text"]

_TAGS: dict[str, Kind] = {"mem": "memory", "think": "thought", "tool_call": "call"}
_MEMORY_TAG = re.compile(r"</?mem>")
_LETTERS = {"memory": "m", "thought": "t", "opened": "o", "call": "c", "text": "x"}
_ORDER = re.compile(r"o?m?o?t*(?:c+|x)")


class Part(NamedTuple):
    """One part of a turn.

    Attributes:
        kind: "memory" (a closed `<mem>` block), "thought", "opened" (a thought that the prompt's assistant header
            opened, so that the model could only continue it), "call" or "text".
        text: what it holds, without its tags.
    """

    kind: Kind
    text: str


class Block(NamedTuple):
    """A closed block: characters `[start, end)` of a text, tags included."""

    tag: str
    start: int
    end: int


def find_blocks(text: str, tags: Sequence[str] = tuple(_TAGS)) -> Iterator[Block]:
    """The closed blocks of a text, side by side: what stands inside of one is its content. Linear in the text.

    A `<mem>` that another one follows before it is closed is not a memory, as in `memory.spans`.
    """
    opening = re.compile(f"<({'|'.join(tags)})>")
    position, open_ended = 0, set()
    while match := opening.search(text, position):
        tag, position = match[1], match.end()
        end = None if tag in open_ended else _end(text, tag, position)
        if end is not None:
            yield Block(tag, match.start(), end)
            position = end
        elif tag != "mem":
            open_ended.add(tag)


def _end(text: str, tag: str, start: int) -> int | None:
    """Where a block whose content begins at `start` ends. Closing tags that a memory quotes do not count."""
    if tag == "mem":
        closing = _MEMORY_TAG.search(text, start)
        return closing.end() if closing and closing[0] == "</mem>" else None
    for found in re.compile(f"</{tag}>|<mem>").finditer(text, start):
        if found.start() < start:
            continue
        if found[0] != "<mem>":
            return found.end()
        start = _end(text, "mem", found.end()) or start
    return None


def split_blocks(text: str, tags: Sequence[str] = tuple(_TAGS)) -> list[Part]:
    """The parts of a text: its closed blocks, and the text between them that is not blank."""
    parts, position = [], 0
    for tag, start, end in find_blocks(text, tags):
        parts += [Part("text", text[position:start]), Part(_TAGS[tag], text[start + len(tag) + 2 : end - len(tag) - 3])]
        position = end
    parts.append(Part("text", text[position:]))
    return [part for part in parts if part.kind != "text" or part.text.strip()]


def in_order(parts: Sequence[Part], first: bool) -> bool:
    """Whether a turn has MemPO's structure: a memory, then at most thoughts, then calls, or one text: the answer.

    In the first turn there is nothing to remember yet, so its memory is optional. A thought that the header opened
    may stand before the memory, since the model could not put the memory before it.
    """
    letters = "".join(_LETTERS[part.kind] for part in parts)
    return _ORDER.fullmatch(letters) is not None and (first or "m" in letters)
