"""What one generation batch gave, kept for traces: `MemPOTrainer.last_rollout`."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..memory import EncodedAnswer
from ..memory.scored import JudgedMemories
from ..memory.spans import token_pieces
from ..memory.turns import find_turns
from ..rollout.loop import Episode
from ..rollout.tools import tool_schemas
from ..traces.file import SCHEMA_VERSION, Trace, Turn
from .config import MemPOConfig


def plain_messages(messages: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Roles and texts alone, for tables of completions: the arguments of tool calls, which are in a turn's text as
    well, have a type in each call that Parquet and W&B refuse to mix in a column."""
    return [{"role": message["role"], "content": message["content"]} for message in messages]


@dataclass
class RolloutRecord:
    """The B trajectories of this rank's last generation batch, and their credit.

    Attributes:
        rows: dataset rows. Length B.
        prompts: messages, with what the environment added. Length B.
        episodes: what was played. Length B.
        answers: the encoded gold answers. Length B.
        memories: spans, rewards and log-probs.
        rewards: by reward function, NaN where it gave none. Shape of each: (B,).
        total_rewards: their weighted sum. Shape: (B,).
        outcome_advantages: GRPO's. Shape: (B,).
        memory_advantages: before the weight. Shape: (B, T).
        advantages: the total. Shape: (B, C).
    """

    rows: list[dict[str, Any]]
    prompts: list[list[dict[str, Any]]]
    episodes: list[Episode]
    answers: list[EncodedAnswer]
    memories: JudgedMemories
    rewards: dict[str, Tensor]
    total_rewards: Tensor
    outcome_advantages: Tensor
    memory_advantages: Tensor
    advantages: Tensor

    def traces(self, tokenizer: PreTrainedTokenizerBase, step: int, args: MemPOConfig) -> list[Trace]:
        """The episodes as lines of a trace file (see `traces.file`)."""
        return [self._trace(row, tokenizer, step, args) for row in range(len(self.rows))]

    def _trace(self, row: int, tokenizer: PreTrainedTokenizerBase, step: int, args: MemPOConfig) -> Trace:
        judged = {key: index for index, key in enumerate(self.memories.judged)}
        episode, answer, prompt = self.episodes[row], self.answers[row], self.prompts[row]
        rewards = {name: _number(values[row]) for name, values in self.rewards.items()}
        return {
            "schema_version": SCHEMA_VERSION,
            "step": step,
            "question_id": str(self.rows[row].get("question_id", "")),
            "question": prompt[-1]["content"],
            "answers": self.rows[row][args.answers_column],
            "context": args.context,
            "stop_reason": episode.stop_reason or "",
            "reward": self.total_rewards[row].item(),
            "rewards": {name: value for name, value in rewards.items() if value is not None},
            "outcome_advantage": self.outcome_advantages[row].item(),
            "messages": prompt,
            "tools": tool_schemas(episode.tools),
            "prompt_tokens": len(episode.prompt_ids),
            "total_tokens": episode.total_tokens,
            "peak_tokens": episode.peak_tokens,
            "answer_tokens": token_pieces(tokenizer, answer.ids),
            "answer_mask": answer.mask,
            "turns": [
                self._turn(row, turn, span, tokenizer, judged.get((row, turn)))
                for turn, span in enumerate(find_turns(episode.mask))
            ],
        }

    def _turn(
        self, row: int, turn: int, span: tuple[int, int], tokenizer: PreTrainedTokenizerBase, judged: int | None
    ) -> Turn:
        episode, memories, (start, end) = self.episodes[row], self.memories, span
        tokens = token_pieces(tokenizer, episode.completion_ids[start:end])
        memory = next(([s.start - start, s.end - start] for s in memories.spans[row] if s.turn == turn), None)
        places = [i for i, message in enumerate(episode.messages) if message["role"] == "assistant"]
        message = episode.messages[places[turn]]
        results = episode.messages[places[turn] + 1 : places[turn + 1] if turn + 1 < len(places) else None]
        return {
            "text": message["content"],
            "tokens": tokens,
            "memory": memory,
            "memory_text": "".join(tokens[memory[0] : memory[1]]) if memory else None,
            "advantages": self.advantages[row, start:end].tolist(),
            "memory_reward": _number(memories.rewards[row, turn]),
            "memory_advantage": None if judged is None else self.memory_advantages[row, turn].item(),
            "p_mem": _number(memories.p_mem[row, turn]),
            "p_full": _number(memories.p_full[row, turn]),
            "answer_logps_mem": self._answer_values(row, judged, memories.mem_logps),
            "answer_logps_full": self._answer_values(row, judged, memories.full_logps),
            "kept": self._answer_values(row, judged, memories.kept),
            "context_tokens": episode.context_lengths[turn],
            "tool_calls": [_call(call) for call in message.get("tool_calls") or []],
            "tool_results": [result["content"] for result in results],
        }

    def _answer_values(self, row: int, judged: int | None, values: Tensor | None) -> list[Any] | None:
        return None if judged is None or values is None else values[judged, : len(self.answers[row].ids)].tolist()


def _number(value: Tensor) -> float | None:
    return None if value.isnan() else value.item()


def _call(call: dict[str, Any]) -> Any:
    function = call.get("function", call)
    return {"name": function["name"], "arguments": function["arguments"]}
