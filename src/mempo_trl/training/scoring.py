"""From a batch of episodes to the rewards and advantages of its memories."""

from collections.abc import Callable

import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..memory.advantages import memory_advantages
from ..memory.scored import ScoredMemories, score_trajectories, unscored
from ..memory.scoring.separate import AnswerContext
from ..memory.spans import memory_spans
from ..types import Episode
from .batch import GenerationBatch
from .checks import warn_without_memories
from .config import MemPOConfig
from .memory_functions import MemoryRewards
from .metrics import closed_fraction, memory_metrics


def score_batch(
    batch: GenerationBatch,
    tokenizer: PreTrainedTokenizerBase,
    args: MemPOConfig,
    score: Callable[..., Tensor],
    device: torch.device,
) -> ScoredMemories:
    """The memories of a batch, with the built-in reward where gold answers are scored.

    Args:
        batch: with episodes and answers.
        tokenizer: of the ids.
        args: threshold, its mode, and what memories are compared with.
        score: from prompts, completions, answers (ids) and contexts to log-probs, see `AnswerScorer`.
        device: of the result.
    """
    completion_ids = [episode.completion_ids for episode in batch.episodes]
    spans = [
        [span for span in memory_spans(tokenizer, ids, [(turn.start, turn.end) for turn in episode.turns])
         if args.context != "budget" or episode.turns[span.turn].compaction]
        for ids, episode in zip(completion_ids, batch.episodes, strict=True)
    ]  # fmt: skip
    if batch.answers is None:
        return unscored(spans, batch.turns, device)
    prompt_ids = [episode.prompt_ids or [] for episode in batch.episodes]
    answer_ids = [answer.ids for answer in batch.answers]

    def score_contexts(contexts: list[AnswerContext]) -> Tensor:
        return score(prompt_ids, completion_ids, answer_ids, contexts)

    baselines = None if args.memory_baseline == "none" else [baseline_ranges(e, args) for e in batch.episodes]
    return score_trajectories(
        spans, batch.answers, baselines, batch.turns, score_contexts, args.memory_threshold, args.memory_threshold_mode
    )


def baseline_ranges(episode: Episode, args: MemPOConfig) -> list[tuple[int, int]]:
    """For each turn, the part of the completion that its memory is compared with, as a range of tokens.

    In "budget" context that is what was visible: a memory cannot keep what an earlier one had dropped.
    """
    visible = args.memory_baseline == "visible" or args.context == "budget"
    starts = [episode.visible_start(number) if visible else 0 for number in range(len(episode.turns))]
    return [(start, turn.start) for start, turn in zip(starts, episode.turns, strict=True)]


def reward_memories(batch: GenerationBatch, memories: ScoredMemories, memory_rewards: MemoryRewards) -> None:
    """Replaces the rewards of a batch's memories by the weighted sum of what the functions give, NaN for nothing."""
    rows, turns = torch.tensor(memories.scored, dtype=torch.long, device=memories.rewards.device).reshape(-1, 2).T
    likelihood = [None if value != value else value for value in memories.rewards[rows, turns].tolist()]
    columns = {
        **batch.columns(),
        "prompts": [episode.prompt for episode in batch.episodes],
        "outcomes": batch.total_rewards.tolist(),
    }
    batch.memory_rewards = memory_rewards(batch.scored_memories(memories), likelihood, batch.episodes, columns)
    totals = [memory_rewards.total(batch.memory_rewards, index) for index in range(len(likelihood))]
    values = [torch.nan if total is None else total for total in totals]
    memories.rewards[rows, turns] = torch.tensor(values, device=memories.rewards.device)


def group_advantages(
    batch: GenerationBatch, memories: ScoredMemories, args: MemPOConfig, group_size: int, accelerator: Accelerator
) -> tuple[Tensor, dict[str, float]]:
    """A^mem of this rank's memories, whose pools can reach over ranks, and metrics of all ranks'. Shape: (B, T)."""
    table = torch.stack([memories.rewards, memories.p_mem, memories.p_baseline], dim=-1)  # (B, T, 3)
    table = accelerator.pad_across_processes(table, dim=1, pad_index=torch.nan)
    rewards, p_mem, p_baseline = accelerator.gather(table).unbind(dim=-1)  # (N, T)
    metrics = memory_metrics(rewards, p_mem, p_baseline, group_size, args.memory_std_floor, args.memory_pool)
    metrics["memory/closed_fraction"] = closed_fraction(batch.episodes, memories, accelerator, args.context)
    if args.memory_weight != 0:
        warn_without_memories(metrics["memory/closed_fraction"])
    advantages = memory_advantages(rewards, group_size, args.memory_std_floor, args.memory_pool)
    first = accelerator.process_index * len(memories.spans)
    return advantages[first : first + len(memories.spans)], metrics
