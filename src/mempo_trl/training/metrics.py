"""What is logged about episodes and memories; docs/metrics.md explains each name."""

from collections.abc import Mapping, Sequence

import torch
from accelerate import Accelerator
from torch import Tensor

from ..memory.advantages import memory_pools
from ..memory.scored import ScoredMemories
from ..types import Episode


def episode_metrics(
    episodes: Sequence[Episode],
    memories: ScoredMemories,
    memory_rewards: Mapping[str, Sequence[float | None]] | None = None,
    context: str = "memory",
) -> dict[str, list[float]]:
    """Values to be averaged over episodes, turns or memories, by metric name."""
    closed = [span for spans in memories.spans for span in spans if span.turn > 0]
    kept, answer = memories.kept.sum(dim=1), memories.answer_mask.sum(dim=1)
    compactions = [[turn for turn in e.turns if turn.compaction] for e in episodes if context == "budget"]
    budget = {
        "rollout/compactions": [float(len(turns)) for turns in compactions],
        "rollout/failed_compactions": [float(sum(turn.memory is None for turn in turns)) for turns in compactions],
    }
    rewards = memory_rewards if memory_rewards and len(memory_rewards) > 1 else {}
    return {
        **{f"memory/rewards/{name}": [v for v in values if v is not None] for name, values in rewards.items()},
        "memory/length_mean": [float(span.end - span.start) for span in closed],
        "memory/kept_fraction": (kept / answer.clamp(min=1)).tolist() if memories.kept.size(1) else [],
        **(budget if context == "budget" else {}),
        "rollout/turns": [float(len(episode.turns)) for episode in episodes],
        "rollout/total_tokens": [float(episode.total_tokens) for episode in episodes],
        "rollout/peak_tokens": [float(episode.peak_tokens) for episode in episodes],
        "rollout/malformed_calls": [float(episode.malformed_calls) for episode in episodes],
        "rollout/truncated_fraction": [float(episode.stop_reason == "truncated") for episode in episodes],
        "rollout/max_turns_fraction": [float(episode.stop_reason == "max_turns") for episode in episodes],
        "tools/environment_failures": [float(getattr(episode.environment, "failures", 0)) for episode in episodes],
    }


def memory_metrics(
    rewards: Tensor, p_mem: Tensor, p_baseline: Tensor, group_size: int, std_floor: float, pool: str
) -> dict[str, float]:
    """Mean and std over the memories of all ranks, and the share of pools that gave no advantage. Shapes: (N, T)."""
    metrics = {}
    for name, table in {"reward": rewards, "p_mem": p_mem, "p_baseline": p_baseline}.items():
        values = table[~table.isnan()]
        metrics[f"memory/{name}_mean"] = values.mean().item()
        metrics[f"memory/{name}_std"] = values.std().item() if len(values) > 1 else float("nan")
    *_, usable = memory_pools(rewards, group_size, std_floor, pool)
    metrics["memory/pools_under_floor"] = 1 - usable.float().mean().item()
    return metrics


def masked_fraction(ratio: Tensor, turn_mask: Tensor) -> Tensor:
    """Share of the model's tokens that vLLM's importance sampling correction drops (ratio 0).

    Args:
        ratio: (B, C) at token level, (B, 1) at sequence level.
        turn_mask: True on the tokens of turns. Shape: (B, up to C).
    """
    width = turn_mask.size(1)
    dropped = (ratio[:, :width] == 0).expand(-1, width) & turn_mask.bool()
    return dropped.sum() / turn_mask.sum().clamp(min=1)


def forward_cost(tokens: int, accelerator: Accelerator) -> dict[str, float]:
    """What a training forward costs: tokens over all ranks, padding left out, and memory on a GPU."""
    total = accelerator.reduce(torch.tensor(float(tokens), device=accelerator.device), reduction="sum")
    memory = {"step/peak_memory_gib": torch.cuda.max_memory_allocated() / 2**30} if torch.cuda.is_available() else {}
    return {"step/tokens_forwarded": total.item(), **memory}


def closed_fraction(
    episodes: Sequence[Episode], memories: ScoredMemories, accelerator: Accelerator, context: str = "memory"
) -> float:
    """Share of turns after the first that have a closed memory, over all ranks; 0 if no episode has such a turn.

    In "budget" context it is the share of compactions; 1 without any.
    """
    budget = context == "budget"
    later = sum(turn.compaction or not budget for episode in episodes for turn in episode.turns[1:])
    closed = sum(span.turn > 0 for spans in memories.spans for span in spans)
    counts = torch.tensor([closed, later], device=memories.rewards.device)
    closed, later = accelerator.reduce(counts, reduction="sum").tolist()
    return 1.0 if budget and not later else closed / max(later, 1)


def length_metrics(lengths: Tensor, truncated: Tensor) -> dict[str, float]:
    """TRL's metrics that tell truncated trajectories from others.

    Args:
        lengths: tokens that the policy wrote. Shape: (N,).
        truncated: whether the stop reason is "truncated". Shape: (N,).
    """
    ended = lengths[~truncated].float()
    ended = ended if len(ended) else torch.zeros(1)
    return {
        "completions/clipped_ratio": truncated.float().mean().item(),
        "completions/mean_terminated_length": ended.mean().item(),
        "completions/min_terminated_length": ended.min().item(),
        "completions/max_terminated_length": ended.max().item(),
    }
