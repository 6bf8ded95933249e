"""What is logged about episodes and memories; docs/metrics.md explains each name."""

from collections.abc import Sequence

from torch import Tensor

from ..memory.advantages import memory_pools
from ..memory.scored import JudgedMemories
from ..rollout.loop import Episode


def episode_metrics(episodes: Sequence[Episode], memories: JudgedMemories) -> dict[str, list[float]]:
    """Values to be averaged over episodes, turns or memories, by metric name."""
    later_turns = sum(max(episode.turns - 1, 0) for episode in episodes)
    closed = [span for spans in memories.spans for span in spans if span.turn > 0]
    kept, answer = memories.kept.sum(dim=1), memories.answer_mask.sum(dim=1)
    return {
        "memory/closed_fraction": [1.0] * len(closed) + [0.0] * (later_turns - len(closed)),
        "memory/length_mean": [float(span.end - span.start) for span in closed],
        "memory/kept_fraction": (kept / answer.clamp(min=1)).tolist(),
        "rollout/turns": [float(episode.turns) for episode in episodes],
        "rollout/total_tokens": [float(episode.total_tokens) for episode in episodes],
        "rollout/peak_tokens": [float(episode.peak_tokens) for episode in episodes],
        "rollout/truncated_fraction": [float(episode.stop_reason == "truncated") for episode in episodes],
        "rollout/max_turns_fraction": [float(episode.stop_reason == "max_turns") for episode in episodes],
        "tools/environment_failures": [float(getattr(episode.environment, "failures", 0)) for episode in episodes],
    }


def memory_metrics(
    rewards: Tensor, p_mem: Tensor, p_full: Tensor, group_size: int, std_floor: float, pool: str
) -> dict[str, float]:
    """Mean and std over the memories of all ranks, and the share of pools that gave no advantage. Shapes: (N, T)."""
    metrics = {}
    for name, table in {"reward": rewards, "p_mem": p_mem, "p_full": p_full}.items():
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
        turn_mask: 1 on the tokens of turns. Shape: (B, up to C).
    """
    width = turn_mask.size(1)
    dropped = (ratio[:, :width] == 0).expand(-1, width) & turn_mask.bool()
    return dropped.sum() / turn_mask.sum().clamp(min=1)
