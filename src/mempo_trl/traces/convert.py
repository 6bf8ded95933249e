"""From an episode to one line of a trace file, and back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..memory.spans import memory_spans, token_pieces
from ..rollout.chat_loop import read_tool_calls
from ..rollout.tools import tool_schemas
from ..types import Episode, Message
from ..types import Turn as EpisodeTurn
from .file import SCHEMA_VERSION, ToolCall, Trace, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# What only scoring knows of a turn; None where it was not scored.
_CREDIT = (
    "memory_reward", "memory_advantage", "p_mem", "p_baseline", "answer_logps_mem", "answer_logps_baseline", "kept",
)  # fmt: skip


@dataclass
class Credit:
    """What training adds to an episode.

    Attributes:
        step: of the training.
        answer_ids: the scored gold answer text. Length L; empty if no answer was scored.
        answer_mask: which of them are answer tokens. Length L.
        outcome_advantage: GRPO's.
        advantages: of each token of the completion. Length C.
        turns: for each turn with a scored memory, the fields of the trace file that come from its score.
    """

    step: int
    answer_ids: list[int]
    answer_mask: list[bool]
    outcome_advantage: float
    advantages: Sequence[float]
    turns: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)


def episode_trace(
    episode: Episode,
    context: str,
    *,
    answers: Sequence[str] | None = None,
    rewards: Mapping[str, float] | None = None,
    reward: float | None = None,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    credit: Credit | None = None,
) -> Trace:
    """One line of a trace file (see `traces.file`).

    Args:
        episode: what was played.
        context: that it was played in.
        answers: gold; default: those of the episode's row.
        rewards: by name.
        reward: the total; default: their sum.
        tokenizer: of an episode that has token ids: gives the turns' tokens.
        credit: what training knows of it.
    """
    total = reward if reward is not None or not rewards else sum(rewards.values())
    scored = credit is not None and tokenizer is not None and credit.answer_ids
    return {
        "schema_version": SCHEMA_VERSION,
        "step": credit.step if credit else None,
        "question_id": str(episode.row.get("question_id", "")),
        "question": episode.prompt[-1]["content"],
        "answers": list(episode.row.get("answers", ()) if answers is None else answers),
        "context": context,
        "stop_reason": episode.stop_reason or "",
        "reward": total,
        "rewards": dict(rewards or {}),
        "outcome_advantage": credit.outcome_advantage if credit else None,
        "messages": episode.prompt,
        "tools": tool_schemas(episode.tools),
        "prompt_tokens": _prompt_tokens(episode),
        "total_tokens": episode.total_tokens,
        "peak_tokens": episode.peak_tokens,
        "answer_tokens": token_pieces(tokenizer, credit.answer_ids) if scored and credit and tokenizer else None,
        "answer_mask": credit.answer_mask if scored and credit else None,
        "turns": _turns(episode, tokenizer, credit),
    }


def _prompt_tokens(episode: Episode) -> int:
    if episode.prompt_ids is not None:
        return len(episode.prompt_ids)
    return episode.turns[0].context_tokens if episode.turns else 0


def _turns(episode: Episode, tokenizer: "PreTrainedTokenizerBase | None", credit: Credit | None) -> list[Turn]:
    with_ids = tokenizer is not None and episode.prompt_ids is not None
    bounds = [(turn.start, turn.end) for turn in episode.turns]
    spans = memory_spans(tokenizer, episode.completion_ids, bounds) if with_ids and tokenizer else []
    memories = {span.turn: [span.start - bounds[span.turn][0], span.end - bounds[span.turn][0]] for span in spans}
    turns: list[Any] = [
        {
            "text": turn.text,
            "tokens": token_pieces(tokenizer, turn.ids or []) if with_ids and tokenizer else [],
            "memory": memories.get(number),
            "memory_text": turn.memory,
            "advantages": list(credit.advantages[turn.start : turn.end]) if credit else None,
            **dict.fromkeys(_CREDIT),
            **(credit.turns.get(number, {}) if credit else {}),
            "context_tokens": turn.context_tokens,
            "tool_calls": [_call(call) for call in turn.tool_calls],
            "tool_results": [result["content"] for result in turn.results if result["role"] == "tool"],
            "first_visible": turn.first_visible,
            **({} if turn.compaction is None else {"compaction": turn.compaction}),
            **({"user": turn.results[-1]["content"]} if turn.results and turn.results[-1]["role"] == "user" else {}),
        }
        for number, turn in enumerate(episode.turns)
    ]
    return turns


def _call(call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function", call)
    return {"name": function["name"], "arguments": function["arguments"]}


def trace_episode(trace: Trace) -> Episode:
    """The episode of a trace: its prompt, texts, calls, results and token counts. It has no ids: a file holds none."""
    tools = {schema["function"]["name"]: schema for schema in trace.get("tools", [])}
    episode = Episode(
        prompt=trace["messages"],
        tools=tools,
        row={"question_id": trace["question_id"], "answers": trace["answers"]},
        stop_reason=trace["stop_reason"] or None,  # type: ignore[arg-type]
    )
    for turn in trace["turns"]:
        calls: list[Message] = [{"type": "function", "function": dict(call)} for call in turn["tool_calls"]]
        names = [call["function"]["name"] for call in calls] or [""]
        results: list[Message] = [
            {"role": "tool", "name": names[min(number, len(names) - 1)], "content": text}
            for number, text in enumerate(turn["tool_results"])
        ]
        episode.tool_calls += len(results)
        if "user" in turn:
            results.append({"role": "user", "content": turn["user"]})
        seen, length = turn["context_tokens"], len(turn["tokens"])
        played = EpisodeTurn(turn["text"], calls, context_tokens=seen, turn_tokens=length, results=results)
        played.compaction, played.first_visible = turn.get("compaction"), turn.get("first_visible", 0)
        episode.turns.append(played)
    return episode


def written_episode(row: Mapping[str, Any], messages: list[Message], tools: Mapping[str, Any]) -> Episode:
    """An episode that was written, not played: turns and tool results as messages behind a row's prompt; no ids."""
    episode = Episode(prompt=row["prompt"], tools=tools, row=row, stop_reason="done")
    for message in messages:
        if message["role"] == "tool":
            episode.turns[-1].results.append(message)
        else:
            calls = message.get("tool_calls") or read_tool_calls(message["content"])
            episode.turns.append(EpisodeTurn(message["content"], calls))
    return episode
