"""What a policy is worth on questions: exact match, F1, what its memory kept, and the tokens it took."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from ..inference.agent import MemoryAgent
from ..inference.trajectory import Trajectory
from ..tasks.search.rewards import exact_match, f1_score, normalize_answer, objective_scores
from ..tasks.search.rows import Row
from ..traces.convert import trajectory_trace
from ..traces.file import write_traces

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class QuestionScore:
    """What one trajectory is worth.

    Attributes:
        objectives: questions in the row, k.
        em: 1.0 if every objective is answered exactly, else 0.0. (`exact_match` is a mean over objectives.)
        f1: mean over the objectives.
        memory_fidelity: share of the gold answers that the last closed memory holds; 0 without one.
        total_tokens: that the model read or wrote, summed over the turns.
        peak_tokens: the longest that context and turn together were.
    """

    objectives: int
    em: float
    f1: float
    memory_fidelity: float
    total_tokens: int
    peak_tokens: int


@dataclass(frozen=True)
class Evaluation:
    """Means over all questions, those without an answer included. Units as in `QuestionScore`."""

    em: float
    f1: float
    memory_fidelity: float
    total_tokens: float
    peak_tokens: float

    @classmethod
    def of(cls, scores: Sequence[QuestionScore]) -> "Evaluation":
        """The means of `scores`; a `ValueError` without any."""
        if not scores:
            raise ValueError("there is nothing to average: no question was played")
        return cls(**{name: fmean(getattr(score, name) for score in scores) for name in cls.__dataclass_fields__})

    def rounded(self) -> dict[str, float]:
        """The means with 4 digits, for a report."""
        return {name: round(value, 4) for name, value in asdict(self).items()}


def evaluate(
    agent: MemoryAgent,
    rows: Sequence[Row],
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    *,
    batch_size: int = 64,
    seed: int | None = 0,
    traces: str | Path | None = None,
    on_question: Callable[[QuestionScore], None] = lambda score: None,
) -> list[QuestionScore]:
    """Plays each question once, as the agent samples, and scores what came of it.

    Args:
        agent: the policy, its context and its environment.
        rows: questions with `prompt`, `answers` and what the environment needs.
        tokenizer: of the policy: gives the trace file its tokens.
        batch_size: questions that are played at once.
        seed: of the sampling; None for any.
        traces: a trace file that the trajectories are appended to, each as soon as it is there.
        on_question: called after each question.

    Returns:
        One score for each question, in order; `Evaluation.of` averages them.
    """
    scores = []
    for row, trajectory in zip(rows, agent.run_many(rows, batch_size, seed), strict=True):
        scores.append(score_trajectory(row, trajectory))
        if traces is not None:
            rewards = {"em": scores[-1].em}
            write_traces(traces, [trajectory_trace(trajectory, row, agent.context, rewards, tokenizer)])
        on_question(scores[-1])
    return scores


def score_trajectory(row: Row, trajectory: Trajectory) -> QuestionScore:
    """Scores one trajectory against the answers of its row."""
    answers, aliases = row["answers"], row.get("aliases")
    right = objective_scores(trajectory.answer, answers, exact_match, aliases)
    f1 = objective_scores(trajectory.answer, answers, f1_score, aliases)
    kept = memory_fidelity(next((m for m in reversed(trajectory.memories) if m is not None), ""), answers, aliases)
    return QuestionScore(
        len(answers), float(all(right)), fmean(f1), kept, trajectory.total_tokens, trajectory.peak_tokens
    )


def memory_fidelity(memory: str, answers: Sequence[str], aliases: Sequence[Sequence[str]] | None = None) -> float:
    """Share of the gold answers, or of one of their aliases, that stand in a memory as whole words."""
    text = f" {normalize_answer(memory)} "
    golds = [[answer, *(aliases[i] if aliases else ())] for i, answer in enumerate(answers)]
    return fmean(float(any(f" {normalize_answer(gold)} " in text for gold in options)) for options in golds)
