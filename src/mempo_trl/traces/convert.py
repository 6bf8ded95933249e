"""From what an agent did to one line of a trace file."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..inference.trajectory import Message, Trajectory, TurnTokens, read_tool_calls
from ..memory.spans import find_memory_spans, token_pieces
from ..memory.turns import find_turns
from ..rollout.tools import tool_schemas
from .file import SCHEMA_VERSION, Trace, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def trajectory_trace(
    trajectory: Trajectory,
    row: Mapping[str, Any],
    context: str,
    rewards: Mapping[str, float] | None = None,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
) -> Trace:
    """The trace of one trajectory, without what only training knows (see `traces.file`).

    Args:
        trajectory: what was done.
        row: the question's row: `answers` and `question_id`, if it has them.
        context: "full" or "memory".
        rewards: by name; their sum is the trace's reward.
        tokenizer: of a trajectory that has token ids: gives the turns' tokens.
    """
    answers = list(row.get("answers", ()))
    return {
        "schema_version": SCHEMA_VERSION,
        "step": None,
        "question_id": str(row.get("question_id", "")),
        "question": trajectory.prompt[-1]["content"],
        "answers": answers,
        "context": context,
        "stop_reason": trajectory.stop_reason or "",
        "reward": sum(rewards.values()) if rewards else None,
        "rewards": dict(rewards or {}),
        "outcome_advantage": None,
        "messages": trajectory.prompt,
        "tools": tool_schemas(trajectory.tools),
        "prompt_tokens": trajectory.turn_tokens[0].context if trajectory.turn_tokens else 0,
        "total_tokens": trajectory.total_tokens,
        "peak_tokens": trajectory.peak_tokens,
        "answer_tokens": None,
        "answer_mask": None,
        "turns": _turns(trajectory, tokenizer),
    }


def _turns(trajectory: Trajectory, tokenizer: "PreTrainedTokenizerBase | None") -> list[Turn]:
    tokens, memories = _tokens(trajectory, tokenizer)
    turns: list[Turn] = []
    for message in trajectory.messages:
        if message["role"] == "tool":
            turns[-1]["tool_results"].append(message["content"])
            continue
        number = len(turns)
        turns.append(
            {
                "text": message["content"],
                "tokens": tokens[number],
                "memory": memories[number],
                "memory_text": trajectory.memories[number],
                "advantages": None,
                "memory_reward": None,
                "memory_advantage": None,
                "p_mem": None,
                "p_full": None,
                "answer_logps_mem": None,
                "answer_logps_full": None,
                "kept": None,
                "context_tokens": trajectory.turn_tokens[number].context,
                "tool_calls": [
                    _call(call) for call in message.get("tool_calls") or read_tool_calls(message["content"])
                ],
                "tool_results": [],
            }
        )
    return turns


def _call(call: Mapping[str, Any]) -> Any:
    function = call.get("function", call)
    return {"name": function["name"], "arguments": function["arguments"]}


def _tokens(
    trajectory: Trajectory, tokenizer: "PreTrainedTokenizerBase | None"
) -> tuple[list[list[str]], list[list[int] | None]]:
    """The texts of each turn's tokens, and where its memory lies among them; empty without token ids."""
    count, episode = len(trajectory.turn_tokens), trajectory.episode
    memories: list[list[int] | None] = [None] * count
    if episode is None or tokenizer is None:
        return [[] for _ in range(count)], memories
    turns = find_turns(episode.mask)
    for span in find_memory_spans(tokenizer, episode.completion_ids, episode.mask):
        first = turns[span.turn][0]
        memories[span.turn] = [span.start - first, span.end - first]
    return [token_pieces(tokenizer, episode.completion_ids[start:end]) for start, end in turns], memories


def recorded_trajectory(
    prompt: list[Message], messages: list[Message], tools: Mapping[str, Callable[..., Any]]
) -> Trajectory:
    """A trajectory that was written, not played: nothing is known of its tokens."""
    turns = sum(message["role"] == "assistant" for message in messages)
    return Trajectory(prompt, tools, messages=messages, turn_tokens=[TurnTokens(0, 0)] * turns, stop_reason="done")
