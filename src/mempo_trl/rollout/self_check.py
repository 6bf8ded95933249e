"""Whether a tokenizer's chat template can carry an episode: a scripted one is rendered, read back and judged."""

from collections.abc import Mapping
from typing import Any

from ..parts import in_order
from .chat_format import OTHER_TEMPLATE, ChatFormat

_CALL = {"name": "look_up", "arguments": {"place": "Paris {1}"}}
_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks up a place.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "description": "Its name."}},
            "required": ["place"],
        },
    },
}
_THOUGHT, _MEMORY, _ANSWER = "<think>\nfirst\n</think>", "<mem>\nParis is far\n</mem>", "<answer>Paris</answer>"
_TURNS: list[tuple[str, list[Mapping[str, Any]]]] = [
    (_THOUGHT, [_CALL]),
    (f"{_MEMORY}\n{_THOUGHT}", [_CALL]),
    (f"{_MEMORY}\n{_THOUGHT}\n{_ANSWER}", []),
]


def check_episode(chat: ChatFormat) -> None:
    """Renders an episode of two calls and an answer to token ids, and reads it back.

    Each turn has to end with an end token and at no earlier one; its call, memory and answer have to be found again,
    in MemPO's order; and what the tool returned has to stand between the turns.

    Raises:
        `ValueError`: the chat template, or how its calls are read, does not carry that.
    """
    problem = _problem(chat)
    if problem:
        raise ValueError(
            f"the chat template of {chat.tokenizer.name_or_path or type(chat.tokenizer).__name__} cannot carry an "
            f"episode: {problem}. Set {OTHER_TEMPLATE}"
        )


def _problem(chat: ChatFormat) -> str | None:
    tokenizer = chat.tokenizer
    prompt = tokenizer.decode(chat.prompt_ids([{"role": "user", "content": "Which place?"}], [_TOOL]))
    if "look_up" not in prompt or "Which place?" not in prompt:
        return "a prompt shows no tool, or not the question"
    for number, (body, calls) in enumerate(_TURNS):
        ids = chat.turn_ids(body, calls)
        ends = [place for place, token in enumerate(ids) if token in chat.end_ids]
        if ends != [len(ids) - 1]:
            return f"turn {number + 1} ends at its tokens {ends}, and has {len(ids)}"
        text = tokenizer.decode(ids[:-1])
        turn = chat.read(text, [_TOOL])
        if turn.error is not None or [call["function"] for call in turn.calls] != calls:
            found = [call["function"] for call in turn.calls]
            return f"the calls of turn {number + 1} are read as {found}, expected {calls}, in {text!r:.300}"
        memories = [part.text.strip() for part in turn.parts if part.kind == "memory"]
        if not in_order(turn.parts, first=number == 0) or memories != ["Paris is far"] * (number > 0):
            kinds = [part.kind for part in turn.parts]
            return f"turn {number + 1} is read as {kinds} with the memories {memories}, in {text!r:.300}"
    if turn.parts[-1].text.strip() != _ANSWER:
        return f"the answer is read as {turn.parts[-1].text!r:.300}"
    result = {"role": "tool", "name": "look_up", "content": "It is here."}
    if "It is here." not in tokenizer.decode(chat.suffix_ids([result])):
        return "it does not show what a tool returned"
    return None
