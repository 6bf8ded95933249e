"""What an episode is worth: the scores and their names in the callback, `mempo eval`, ablations and benchmarks."""

from collections.abc import Sequence
from statistics import fmean

from ..tasks.outcome import RewardFunction, outcome_reward
from ..tasks.search.rewards import (
    exact_match,
    extract_answer,
    f1_score,
    is_well_formed,
    mempo_outcome_reward,
    normalize_answer,
    objective_scores,
)
from ..tasks.search.rows import Row
from ..traces.convert import trace_episode
from ..traces.file import Trace
from ..types import Episode, Message

Scores = dict[str, float]

ANSWER_METRICS = ("exact_match", "all_correct", "f1", "memory_fidelity", "exact_match_sum", "f1_sum")
"""Need gold answers: an episode of a row without any has only the others."""

METRICS = (*ANSWER_METRICS, "well_formed", "reward", "total_tokens", "peak_tokens", "turns", "tool_calls")
"""The names of an episode's scores.

- `exact_match`, `f1`: mean over the objectives. `exact_match_sum`, `f1_sum`: sum over them, as MEM1 reports it.
- `all_correct`: 1.0 if every objective is answered exactly, else 0.0.
- `memory_fidelity`: share of the gold answers that the last closed memory holds; 0.0 without one.
- `well_formed`: 1.0 if every turn has MemPO's format, else 0.0.
- `reward`: the outcome reward, by default 1.0 for an episode that is all correct and well-formed, else 0.0.
- `total_tokens`: that the model read or wrote, summed over the turns.
- `peak_tokens`: the longest that context and turn together were.
- `turns`, `tool_calls`: how many there were.
"""


def score_episode(
    row: Row,
    episode: Episode,
    reward_funcs: Sequence[RewardFunction] = (mempo_outcome_reward,),
    reward_weights: Sequence[float] | None = None,
) -> Scores:
    """Scores one episode by the names in `METRICS`.

    Args:
        row: the dataset's row: `answers` and `aliases`, if it has them, and what the reward functions need.
        episode: what was played.
        reward_funcs: TRL reward functions; the weighted sum of what they return is the `reward`.
        reward_weights: one for each function; default: 1.
    """
    return {
        **_text_scores(episode.messages, episode.memories, row.get("answers") or (), row.get("aliases")),
        "reward": outcome_reward(row, episode, reward_funcs, reward_weights),
        "total_tokens": episode.total_tokens,
        "peak_tokens": episode.peak_tokens,
        **_counts(episode.messages),
    }


def trace_scores(trace: Trace) -> Scores:
    """The scores of one line of a trace file, of any command.

    Scores that were stored when the episode was played come first, because they know the row's aliases and reward
    functions. What was not stored is computed from the texts.
    """
    episode = trace_episode(trace)
    scores = _text_scores(episode.messages, episode.memories, trace["answers"])
    stored = trace["rewards"]
    scores |= {name: stored[name] for name in scores if name in stored}
    reward = trace["reward"]
    if trace["answers"]:
        scores["all_correct"] = float(scores["exact_match"] == 1.0)
        # Evaluations before `all_correct` stored the mean exact match as the reward.
        if reward is None or ("exact_match" in stored and "all_correct" not in stored):
            reward = scores["all_correct"] * scores["well_formed"]
    return {
        **scores,
        **({} if reward is None else {"reward": reward}),
        "total_tokens": trace["total_tokens"],
        "peak_tokens": trace["peak_tokens"],
        **_counts(episode.messages),
    }


def mean_scores(scores: Sequence[Scores]) -> Scores:
    """The mean of each score over the episodes that have it.

    Raises:
        `ValueError`: there are no episodes.
    """
    if not scores:
        raise ValueError("there is nothing to average: no question was played")
    values = {name: [episode[name] for episode in scores if name in episode] for name in METRICS}
    return {name: fmean(found) for name, found in values.items() if found}


def memory_fidelity(memory: str, answers: Sequence[str], aliases: Sequence[Sequence[str]] | None = None) -> float:
    """Share of the gold answers, or of one of their aliases, that stand in a memory as whole words."""
    text = f" {normalize_answer(memory)} "
    golds = [[answer, *((aliases[i] or ()) if aliases else ())] for i, answer in enumerate(answers)]
    return fmean(float(any(f" {normalize_answer(gold)} " in text for gold in options)) for options in golds)


def _text_scores(
    messages: list[Message],
    memories: Sequence[str | None],
    answers: Sequence[str],
    aliases: Sequence[Sequence[str]] | None = None,
) -> Scores:
    formed = {"well_formed": float(is_well_formed(messages))}
    if not answers:
        return formed
    answer = extract_answer(messages)
    exact = objective_scores(answer, answers, exact_match, aliases)
    f1 = objective_scores(answer, answers, f1_score, aliases)
    last = next((memory for memory in reversed(memories) if memory is not None), "")
    return {
        "exact_match": fmean(exact),
        "all_correct": float(all(exact)),
        "f1": fmean(f1),
        "memory_fidelity": memory_fidelity(last, answers, aliases),
        "exact_match_sum": sum(exact),
        "f1_sum": sum(f1),
        **formed,
    }


def _counts(messages: list[Message]) -> Scores:
    roles = [message["role"] for message in messages]
    return {"turns": roles.count("assistant"), "tool_calls": roles.count("tool")}
