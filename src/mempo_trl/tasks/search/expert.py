"""Conversations for a cold start, made from the searches that are known to lead to an answer."""

import json
from typing import Any

from ..world.world import ANSWER_ACTION
from .environment import SearchEnvironment
from .prompts import SEPARATOR
from .rewards import normalize_answer
from .rows import Row

_SEARCH = "<think>\n{thought}\n</think>\n<tool_call>\n{call}\n</tool_call>"


def gold_conversation(row: Row, environment: SearchEnvironment) -> list[dict[str, Any]] | None:
    """Plays the searches of `row["decomposition"]`, one a turn, with a memory that gathers what each one found.

    The searches are really made: their results are what the environment gives.

    Args:
        row: with `answers`, and `decomposition` as in `tasks.search.data`: a list of {"query", "finding"}.
        environment: to search in.

    Returns:
        The assistant's and the tool's messages in turn; an assistant message's `content` is its whole text. `None` if a
        finding does not stand in the result of its search: who learned from that would learn to make things up.
    """
    environment.reset(**row)
    messages: list[dict[str, Any]] = []
    memory = ""
    steps = row["decomposition"]
    for number, step in enumerate(steps, start=1):
        call = json.dumps({"name": "search", "arguments": {"query": step["query"]}}, ensure_ascii=False)
        thought = f"Step {number} of {len(steps)}: I need to search for {step['query']!r}."
        result = environment.search(step["query"])
        if not _supported(step["finding"], result):
            return None
        messages.append({"role": "assistant", "content": _block(memory) + _SEARCH.format(thought=thought, call=call)})
        messages.append({"role": "tool", "name": "search", "content": result})
        memory += f"{step['query']}: {step['finding']}\n"
    answer = ANSWER_ACTION.format(a=SEPARATOR.join(row["answers"]))
    return [*messages, {"role": "assistant", "content": _block(memory).rstrip() + answer}]


def _block(memory: str) -> str:
    return f"<mem>\n{memory}</mem>\n" if memory else ""


def _supported(finding: str, result: str) -> bool:
    return set(normalize_answer(finding).split()) <= set(normalize_answer(result).split())
