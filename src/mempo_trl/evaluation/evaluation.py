"""Playing questions and scoring what came of it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..inference.agent import MemoryAgent
from ..inference.local_model import LocalModel
from ..tasks.outcome import RewardFunction
from ..tasks.search.rewards import mempo_outcome_reward
from ..tasks.search.rows import Row
from ..traces.convert import episode_trace
from ..traces.file import Trace, write_traces
from ..types import Episode
from .probabilities import add_answer_probabilities
from .scores import Scores, score_episode

_OF_THE_TRACE = ("total_tokens", "peak_tokens", "turns", "tool_calls", "reward")


def evaluate(
    agent: MemoryAgent,
    rows: Sequence[Row],
    *,
    concurrency: int = 64,
    seed: int | Sequence[int] | None = 0,
    traces: str | Path | None = None,
    reward_funcs: Sequence[RewardFunction] = (mempo_outcome_reward,),
    reward_weights: Sequence[float] | None = None,
    answer_probabilities: bool = False,
    on_episode: Callable[[Trace], None] = lambda trace: None,
) -> list[Scores]:
    """Plays each question once, as the agent samples, and scores what came of it.

    Args:
        agent: the policy, its context and its environment.
        rows: questions with `prompt`, `answers` if there are any, and what the environment needs.
        concurrency: questions that are played at once.
        seed: of the sampling, as in `MemoryAgent.run_many`.
        traces: a trace file that each episode is appended to as soon as it is there.
        reward_funcs: TRL reward functions, see `score_episode`.
        reward_weights: one for each function; default: 1.
        answer_probabilities: for a model in this process, add P(answer | memory) and P(answer | history) of each memory
            to the trace.
        on_episode: called with the trace of each episode.

    Returns:
        The scores of each episode by the names in `METRICS`, in order; `mean_scores` averages them. An episode that
        ended with an error has none, because the endpoint failed and not the policy.
    """
    scores = []
    for row, episode in zip(rows, agent.run_many(rows, concurrency, seed), strict=True):
        scored = score_episode(row, episode, reward_funcs, reward_weights)
        trace = _trace(agent, row, episode, scored)
        if answer_probabilities and isinstance(agent.model, LocalModel) and row.get("answers"):
            add_answer_probabilities(trace, agent, episode, row["answers"])
        if traces is not None:
            write_traces(traces, [trace])
        on_episode(trace)
        if episode.stop_reason != "error":
            scores.append(scored)
    return scores


def _trace(agent: MemoryAgent, row: Row, episode: Episode, scores: Scores) -> Trace:
    """The trace of one evaluated episode. Its reward is the outcome's, so that `mempo sft` takes what is right."""
    named = {name: value for name, value in scores.items() if name not in _OF_THE_TRACE}
    answers = row.get("answers") or []
    trace: Any = episode_trace(
        episode, agent.context, answers=answers, rewards=named, reward=scores["reward"], tokenizer=agent.tokenizer
    )
    trace |= {"error": episode.error}
    return trace | {name: row[name] for name in ("seed", "sample") if name in row}
