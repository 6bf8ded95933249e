"""What tells a policy to write memories, in the words of no task."""

TURN_FORMAT = """\
Each turn has these parts, in this order and with nothing else around them:
1. <mem>...</mem>: everything you know so far that {needed}. Write names, numbers and dates in full. \
{visible} The first turn has no memory.
2. <think>...</think>: what is known, what is missing, what to do next.
3. One action: a <tool_call>...</tool_call>{calls}, or <answer>...</answer> when you know enough."""

BUDGET_FORMAT = """\
Each turn has these parts, in this order and with nothing else around them:
1. <think>...</think>: what is known, what is missing, what to do next.
2. One action: a <tool_call>...</tool_call>{calls}, or <answer>...</answer> when you know enough.
When the context is full, you are asked for a memory instead: <mem>...</mem>, everything \
you know so far that {needed}. Write names, numbers and dates in full. {visible}"""

VISIBLE = {
    "memory": "Earlier turns are taken away, so what is not in the memory is lost.",
    "full": "Earlier turns stay in view, but the memory must be enough to answer without them.",
    "budget": "What is not in the memory is lost.",
}


def memory_instructions(context: str = "memory") -> str:
    """The turn format of MemPO (arXiv 2603.00680, section 3), for the system prompt of any task with tools.

    Put what the task is before it and how an answer is written behind it. `mempo_trl.tasks.search.format_reward` checks
    this format.

    Args:
        context: what the policy will see, as in `MemPOConfig`: "memory", "full" or "budget".

    Raises:
        `ValueError`: the context is unknown.
    """
    if context not in VISIBLE:
        raise ValueError(f"context={context!r} is unknown. Set one of {', '.join(VISIBLE)}")
    template = BUDGET_FORMAT if context == "budget" else TURN_FORMAT
    return template.format(needed="the task needs", calls="", visible=VISIBLE[context])
