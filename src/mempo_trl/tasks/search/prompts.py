"""What the policy is told: the turn format of MemPO (arXiv 2603.00680, section 3) as a system prompt."""

from typing import Any

from ..instructions import TURN_FORMAT, VISIBLE

MEMORY_TAG = "mem"
THINK_TAG = "think"
TOOL_CALL_TAG = "tool_call"
ANSWER_TAG = "answer"
TAGS = (MEMORY_TAG, THINK_TAG, TOOL_CALL_TAG, ANSWER_TAG)

SEPARATOR = "; "
"""Stands between the questions of one row, and between the answers in one answer block."""

_TURNS = TURN_FORMAT.format(needed="the questions need", calls=" that searches", visible=VISIBLE["memory"])
SYSTEM_PROMPT = f"""\
You answer questions by searching a collection of passages, one step a turn.

{_TURNS}

Search for one fact at a time. If a search finds nothing useful, use other words.
Several questions are separated by semicolons. Answer all of them in one answer block, in the same order, separated \
by semicolons: <answer>first; second</answer>. An answer is a name, a number, a date, yes or no: no sentence, and no \
semicolon inside it."""
"""The packaged model was trained on these very words, in both contexts."""


def build_prompt(question: str, system_prompt: str | None = SYSTEM_PROMPT) -> list[dict[str, Any]]:
    """Messages of the first turn for `question` (for several objectives: "q1; q2; ...").

    Args:
        question (`str`):
            What to ask.
        system_prompt (`str`, *optional*):
            The first message; None for none. The tool's schema is added by the chat template.

    Returns:
        `list[dict]`: a system and a user message, as in the `prompt` column of a dataset.
    """
    system = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
    return [*system, {"role": "user", "content": question}]
