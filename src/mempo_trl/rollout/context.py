"""What the policy sees at each turn (method.md, section 6): pure functions on token ids and masks.

A completion is turns (mask 1) and the tool results behind them (mask 0).
"""

from collections.abc import Sequence
from typing import Literal

from ..memory.turns import find_turns

Context = Literal["full", "memory"]
CONTEXTS: tuple[str, ...] = ("full", "memory")


def visible_start(turns: Sequence[tuple[int, int]], turn: int, context: str, context_turns: int = 1) -> int:
    """Where the visible part of the completion starts when turn `turn` (from 0) is written.

    0 in "full" context. In "memory" context the start of the turn `context_turns` before: that turn's own text, memory
    included, its tool result, and so on up to turn `turn`.
    """
    if context == "full" or turn <= context_turns:
        return 0
    return turns[turn - context_turns][0]


def visible_context(
    prompt_ids: list[int], completion_ids: list[int], mask: Sequence[int], context: str, context_turns: int = 1
) -> list[int]:
    """The ids that the next turn is generated from: the prompt and the visible part of what follows it.

    Args:
        prompt_ids: the prompt of turn 1, ending with the assistant header. Length P.
        completion_ids: turns and tool results so far, ending with the assistant header of the next turn. Length C.
        mask: 1 on the turns, 0 on the tool results. Length C.
        context: "full" or "memory".
        context_turns: how many past turns the "memory" context keeps.
    """
    if len(completion_ids) != len(mask):
        raise ValueError(f"ids and mask must be parallel: got {len(mask)} marks for {len(completion_ids)} ids")
    turns = find_turns(mask)
    return prompt_ids + completion_ids[visible_start(turns, len(turns), context, context_turns) :]
