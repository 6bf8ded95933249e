"""From memory rewards to an advantage for each token."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from .spans import MemorySpan

Pool = Literal["group", "turn"]
POOLS: tuple[str, ...] = ("group", "turn")


def memory_pools(rewards: Tensor, group_size: int, std_floor: float = 0.0, pool: str = "group") -> tuple[Tensor, ...]:
    """The values that share one mean and std, those statistics, and whether they can be normalised by.

    Returns:
        values (pools, size) with NaN where none; mean (pools, 1); std (pools, 1), unbiased; usable (pools, 1) bool:
        two values at least and a std that is above 0 and not under the floor.
    """
    if pool not in POOLS:
        raise ValueError(f"memory_pool must be one of {', '.join(POOLS)}: got {pool!r}")
    rows, turns = rewards.shape
    if rows % group_size:
        raise ValueError(f"got {rows} trajectories, expected a multiple of the group size {group_size}")
    values = rewards.reshape(rows // group_size, group_size, turns)
    values = values.flatten(1) if pool == "group" else values.transpose(1, 2).flatten(0, 1)
    count = (~values.isnan()).sum(dim=1, keepdim=True)
    mean = values.nansum(dim=1, keepdim=True) / count.clamp(min=1)
    variance = (values - mean).square().nansum(dim=1, keepdim=True) / (count - 1).clamp(min=1)
    std = variance.sqrt()
    # Equal values have a std of rounding errors.
    rounding = 1e-6 * values.abs().nan_to_num(nan=0.0).amax(dim=1, keepdim=True)
    return values, mean, std, (count >= 2) & (std > rounding) & (std >= std_floor)


def memory_advantages(rewards: Tensor, group_size: int, std_floor: float = 0.0, pool: str = "group") -> Tensor:
    """A^mem: each memory reward against the others of the same question, (r - mean) / std.

    Args:
        rewards: memory rewards of all trajectories, a question's group in `group_size` rows that follow each other;
            NaN where a turn has no scored memory. Shape: (N, T).
        group_size: G, trajectories of one question.
        std_floor: a pool whose unbiased std is under this gets 0: a z-score of noise is noise.
        pool: "group" takes one mean and std over all turns of a question's trajectories (the paper), "turn" over
            the same turn of them.

    Returns:
        The advantages, 0 where the reward is NaN, and in a pool of fewer than two values. Shape: (N, T).

    Source: method.md, section 4.
    """
    values, mean, std, usable = memory_pools(rewards, group_size, std_floor, pool)
    advantages = torch.where(usable, (values - mean) / torch.where(usable, std, 1.0), 0.0).nan_to_num(nan=0.0)
    rows, turns = rewards.shape
    if pool == "turn":
        advantages = advantages.reshape(rows // group_size, turns, group_size).transpose(1, 2)
    return advantages.reshape(rows, turns)


def token_advantages(outcome: Tensor, memory: Tensor, spans: Sequence[Sequence[MemorySpan]], length: int) -> Tensor:
    """A^out on every token, plus A^mem of a turn on the tokens of that turn's memory.

    Args:
        outcome: outcome advantages. Shape: (B,).
        memory: memory advantages, already weighted. Shape: (B, T).
        spans: the memories of each trajectory, token ranges of its completion. Length B.
        length: C, completion tokens, padding included.

    Returns:
        The advantages. Shape: (B, C).

    Source: method.md, section 5.
    """
    if not outcome.size(0) == memory.size(0) == len(spans):
        raise ValueError(f"got {outcome.size(0)} outcomes, {memory.size(0)} rows of memories and {len(spans)} of spans")
    advantages = outcome.unsqueeze(1).repeat(1, length)  # (B, C)
    for row, row_spans in enumerate(spans):
        for turn, start, end in row_spans:
            if end > length or turn >= memory.size(1):
                raise ValueError(
                    f"row {row} has a memory in turn {turn} at tokens [{start}, {end}), expected at most "
                    f"{memory.size(1)} turns and {length} tokens"
                )
            advantages[row, start:end] += memory[row, turn]
    return advantages
