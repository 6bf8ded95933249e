"""What one generation batch is, from its rows to the advantage of each token: `MemPOTrainer.last_rollout`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..memory import EncodedAnswer
from ..memory.scored import ScoredMemories
from ..traces.convert import Credit, episode_trace
from ..traces.file import Trace
from ..types import Episode, Message
from .config import MemPOConfig
from .memory_functions import Memory


def plain_messages(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Roles and texts alone, for tables of completions: the arguments of tool calls, which are in a turn's text as
    well, have a type in each call that Parquet and W&B refuse to mix in a column."""
    return [{"role": message["role"], "content": message["content"]} for message in messages]


@dataclass
class GenerationBatch:
    """The B trajectories of this rank that are generated, scored and credited together.

    Each hook of the trainer fills what it knows. `ready` says that all is there; before, TRL may ask for log-probs of
    these trajectories, which `visible` describes.

    Attributes:
        rows: dataset rows. Length B.
        answers: the encoded gold answers; None if no memory reward needs them. Length B.
        episodes: what was played. Length B.
        visible: where each token's context starts, see `by_turn.visible_starts`. Shape: (B, C).
        memories: spans, rewards and log-probs.
        old_logps: log-probs of the completions from the pass that scored the answers. Shape of each: (completion,).
        memory_rewards: of each scored memory, by function. Length of each: M.
        rewards: by reward function, NaN where it gave none. Shape of each: (B,).
        total_rewards: their weighted sum. Shape: (B,).
        outcome_advantages: GRPO's. Shape: (B,).
        memory_advantages: before the weight. Shape: (B, T).
        advantages: the total. Shape: (B, C).
        ready: whether generation is over.
    """

    rows: list[dict[str, Any]]
    answers: list[EncodedAnswer] | None = None
    episodes: list[Episode] = field(default_factory=list)
    visible: Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.long))
    memories: ScoredMemories | None = None
    old_logps: dict[int, Tensor] = field(default_factory=dict)
    memory_rewards: dict[str, list[float | None]] = field(default_factory=dict)
    rewards: dict[str, Tensor] = field(default_factory=dict)
    total_rewards: Tensor = field(default_factory=lambda: torch.empty(0))
    outcome_advantages: Tensor = field(default_factory=lambda: torch.empty(0))
    memory_advantages: Tensor = field(default_factory=lambda: torch.empty(0))
    advantages: Tensor = field(default_factory=lambda: torch.empty(0))
    ready: bool = False

    @property
    def turns(self) -> int:
        """T, turns of the longest trajectory; 1 at least."""
        return max([len(episode.turns) for episode in self.episodes] + [1])

    def scored_memories(self, memories: ScoredMemories) -> list[Memory]:
        """The memories that can have a reward. Length M."""
        spans = {(row, span.turn): span for row, row_spans in enumerate(memories.spans) for span in row_spans}
        return [
            Memory(row, turn, self.episodes[row].turns[turn].memory or "", spans[row, turn])
            for row, turn in memories.scored
        ]

    def columns(self) -> dict[str, list[Any]]:
        """The columns of the rows, each with B values."""
        return {name: [row.get(name) for row in self.rows] for name in (self.rows[0] if self.rows else ())}

    def traces(self, tokenizer: PreTrainedTokenizerBase, step: int, args: MemPOConfig) -> list[Trace]:
        """The episodes as lines of a trace file (see `traces.file`)."""
        return [
            episode_trace(
                episode,
                args.context,
                answers=self.rows[row].get(args.answers_column) or (),
                rewards={name: float(v[row]) for name, v in self.rewards.items() if not v[row].isnan()},
                reward=float(self.total_rewards[row]),
                tokenizer=tokenizer,
                credit=self._credit(row, step),
            )
            for row, episode in enumerate(self.episodes)
        ]

    def _credit(self, row: int, step: int) -> Credit:
        answer = self.answers[row] if self.answers else None
        return Credit(
            step,
            answer.ids if answer else [],
            answer.mask if answer else [],
            float(self.outcome_advantages[row]),
            self.advantages[row].tolist(),
            self._turn_credit(row, len(answer.ids) if answer else 0),
        )

    def _turn_credit(self, row: int, length: int) -> dict[int, dict[str, Any]]:
        memories = self.memories
        assert memories is not None
        return {
            turn: {
                "memory_reward": _number(memories.rewards[row, turn]),
                "memory_advantage": float(self.memory_advantages[row, turn]),
                "p_mem": _number(memories.p_mem[row, turn]),
                "p_baseline": _number(memories.p_baseline[row, turn]),
                "answer_logps_mem": _values(memories.mem_logps, index, length),
                "answer_logps_baseline": _values(memories.baseline_logps, index, length),
                "kept": _values(memories.kept, index, length),
            }
            for index, (scored_row, turn) in enumerate(memories.scored)
            if scored_row == row
        }


def _values(table: Tensor | None, index: int, length: int) -> list[Any] | None:
    return None if table is None or not length else table[index, :length].tolist()


def _number(value: Tensor) -> float | None:
    return None if value.isnan() else float(value)
