"""From the answer's log-probabilities in two contexts to the memory reward."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# Which answer tokens P_baseline and P_mem are taken over, from those above the threshold in each of the two contexts.
_KEPT: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "independent": lambda baseline, mem: (baseline, mem),
    "either": lambda baseline, mem: (baseline | mem, baseline | mem),
    "both": lambda baseline, mem: (baseline & mem, baseline & mem),
}
THRESHOLD_MODES: tuple[str, ...] = tuple(_KEPT)


class MemoryScore(NamedTuple):
    """How well a memory predicts the answer, for N memories of L answer tokens.

    Attributes:
        reward: P_mem - P_baseline. Shape: (N,).
        p_mem: probability of the kept answer tokens in the memory context; NaN where none is kept. Shape: (N,).
        p_baseline: the same in the baseline context; 0 without one. Shape: (N,).
        kept: the answer tokens that P_mem is taken over. Shape: (N, L), bool.
    """

    reward: Tensor
    p_mem: Tensor
    p_baseline: Tensor
    kept: Tensor


def _kept_tokens(baseline_logps: Tensor, mem_logps: Tensor, threshold: float, mode: str) -> tuple[Tensor, Tensor]:
    if mode not in _KEPT:
        raise ValueError(f"memory_threshold_mode must be one of {', '.join(THRESHOLD_MODES)}: got {mode!r}")
    log_threshold = math.log(threshold)
    return _KEPT[mode](baseline_logps > log_threshold, mem_logps > log_threshold)


def _probability(logps: Tensor, kept: Tensor) -> Tensor:
    """exp of the mean log-probability over the kept tokens; 1 where none is kept. Shape: (N, L), (N, L) -> (N,)."""
    total = torch.where(kept, logps, 0.0).sum(dim=-1)
    return torch.exp(total / kept.sum(dim=-1).clamp(min=1))


def score_memories(
    baseline_logps: Tensor | None,
    mem_logps: Tensor,
    answer_mask: Tensor,
    threshold: float | None = 0.5,
    mode: str = "either",
) -> MemoryScore:
    """The memory reward and what it is made of. Arguments as for `memory_rewards`.

    `baseline_logps=None` means no baseline: the reward is P_mem, and the threshold looks at `mem_logps` alone.
    """
    other = mem_logps if baseline_logps is None else baseline_logps
    if not other.shape == mem_logps.shape == answer_mask.shape:
        shapes = [tuple(t.shape) for t in (other, mem_logps, answer_mask)]
        raise ValueError(f"baseline_logps, mem_logps and answer_mask must have one shape (N, L): got {shapes}")
    mask = answer_mask.bool()
    kept_baseline = kept_mem = mask
    if threshold:
        kept_baseline, kept_mem = (mask & kept for kept in _kept_tokens(other, mem_logps, threshold, mode))
    p_baseline, p_mem = _probability(other, kept_baseline), _probability(mem_logps, kept_mem)
    if baseline_logps is None:
        p_baseline = torch.zeros_like(p_baseline)
    reward = p_mem - p_baseline
    if not threshold or mode != "independent":
        scorable = kept_mem.any(dim=-1)
        reward = torch.where(scorable, reward, 0.0)
        p_mem, p_baseline = (torch.where(scorable, p, torch.nan) for p in (p_mem, p_baseline))
    return MemoryScore(reward, p_mem, p_baseline, kept_mem)


def memory_rewards(
    baseline_logps: Tensor | None,
    mem_logps: Tensor,
    answer_mask: Tensor,
    threshold: float | None = 0.5,
    mode: str = "either",
) -> Tensor:
    """r = P(mem context) - P(baseline), in (-1, 1), for N memories.

    P is the exponential of the mean log-probability over the kept answer tokens. A token is kept, in mode
    "independent", in each context where its own probability is above the threshold (the published code; P = 1 where
    none is); in "either", in both contexts if either probability is; in "both", if both are. In the last two, where no
    token is kept the reward is 0. What lies outside `answer_mask` changes nothing, so rows may be padded.

    Args:
        baseline_logps: log p of the answer's tokens after the baseline context, natural log. Shape: (N, L). None for no
            baseline.
        mem_logps: the same after prompt and memory alone. Shape: (N, L).
        answer_mask: True on the tokens that hold the answer. Shape: (N, L).
        threshold: a probability, or None or 0 to keep every answer token (the paper's formula).
        mode: "independent", "either" or "both".

    Returns:
        The rewards. Shape: (N,).

    Source: method.md, section 3.
    """
    return score_memories(baseline_logps, mem_logps, answer_mask, threshold, mode).reward
