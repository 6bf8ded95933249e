"""Every memory of a batch of trajectories, found, scored and rewarded: the method up to the advantage."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .answers import EncodedAnswer
from .rewards import MemoryScore, score_memories
from .scoring.separate import AnswerContext
from .spans import MemorySpan

# Answer log-probs (N, L) for N contexts, e.g. `score_answers` with its model and trajectories bound.
Score = Callable[[list[AnswerContext]], Tensor]


@dataclass
class ScoredMemories:
    """The memories of B trajectories and what they are worth. T: turns of the longest trajectory.

    Attributes:
        spans: the closed memories of each trajectory, those of turn 0 included. Length B.
        scored: the M memories of later turns, as (trajectory, turn).
        rewards: r, NaN where a turn has no scored memory. Shape: (B, T).
        p_mem: probability of the answer given prompt and memory, NaN as above. Shape: (B, T).
        p_baseline: the same given the baseline context. Shape: (B, T).
        mem_logps: log p of the answer tokens given the memory; L is 0 where no answer is scored. Shape: (M, L).
        baseline_logps: the same given the baseline; None without one. Shape: (M, L).
        kept: answer tokens that passed the threshold. Shape: (M, L).
        answer_mask: answer tokens. Shape: (M, L).
    """

    spans: list[list[MemorySpan]]
    scored: list[tuple[int, int]]
    rewards: Tensor
    p_mem: Tensor
    p_baseline: Tensor
    mem_logps: Tensor
    baseline_logps: Tensor | None
    kept: Tensor
    answer_mask: Tensor


def unscored(spans: Sequence[Sequence[MemorySpan]], turns: int, device: torch.device | None = None) -> ScoredMemories:
    """Memories that have no reward yet. Arguments as in `score_trajectories`."""
    scored = [(row, span.turn) for row, row_spans in enumerate(spans) for span in row_spans if span.turn > 0]
    table = torch.full((len(spans), turns), torch.nan, device=device)
    logps = torch.zeros(len(scored), 0, device=device)
    return ScoredMemories(
        [list(row) for row in spans], scored, table, table.clone(), table.clone(), logps, None, logps.bool(),
        logps.bool(),
    )  # fmt: skip


def score_trajectories(
    spans: Sequence[Sequence[MemorySpan]],
    answers: Sequence[EncodedAnswer],
    baselines: Sequence[Sequence[tuple[int, int]]] | None,
    turns: int,
    score: Score,
    threshold: float | None = 0.5,
    mode: str = "either",
) -> ScoredMemories:
    """Scores and rewards the memories of turns 2..T; turn 1 has no history to summarise (method.md, section 1).

    Args:
        spans: the closed memories of each trajectory. Length B.
        answers: the encoded gold answer of each trajectory. Length B.
        baselines: for each trajectory and turn, the range of its completion that the memory is compared with; None
            for no baseline. Length B, then its turns.
        turns: T, columns of the result.
        score: log p of the answer after each context. Called once, also without memories, so that ranks stay in step.
        threshold: see `memory_rewards`.
        mode: see `memory_rewards`.
    """
    if not len(spans) == len(answers) or (baselines is not None and len(baselines) != len(spans)):
        raise ValueError(f"got memories of {len(spans)} trajectories and answers of {len(answers)}")
    memories = [(row, span) for row, row_spans in enumerate(spans) for span in row_spans if span.turn > 0]
    contexts = [AnswerContext(row, span.start, span.end) for row, span in memories]
    if baselines is not None:
        contexts += [AnswerContext(row, *baselines[row][span.turn]) for row, span in memories]
    logps = score(contexts)
    count, length = len(memories), logps.size(1)
    mask = torch.zeros(count, length, dtype=torch.bool, device=logps.device)
    for index, (row, _) in enumerate(memories):
        mask[index, : len(answers[row].mask)] = torch.tensor(answers[row].mask, device=logps.device)
    baseline_logps = logps[count:] if baselines is not None else None
    scores = score_memories(baseline_logps, logps[:count], mask, threshold, mode)
    scored = [(row, span.turn) for row, span in memories]
    tables = _place(scores, scored, (len(spans), turns))
    return ScoredMemories(
        [list(row) for row in spans], scored, *tables, logps[:count], baseline_logps, scores.kept, mask
    )


def _place(scores: MemoryScore, scored: list[tuple[int, int]], shape: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Reward, P_mem and P_baseline as (B, T) tables with NaN where nothing was scored."""

    def table(values: Tensor) -> Tensor:
        placed = values.new_full(shape, torch.nan)
        for value, (row, turn) in zip(values, scored, strict=True):
            placed[row, turn] = value
        return placed

    return table(scores.reward), table(scores.p_mem), table(scores.p_baseline)
