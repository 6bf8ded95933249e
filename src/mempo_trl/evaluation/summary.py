"""What an evaluation says: scores, tokens and turns of episodes, with intervals, and how two evaluations differ."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NotRequired, TypedDict

import numpy as np

from ..traces.file import Trace
from .scores import Scores, mean_scores, trace_scores

RESAMPLES = 2_000
CONFIDENCE = 0.95


class Estimate(TypedDict):
    """A mean over questions with its bootstrap interval."""

    mean: float
    low: float
    high: float


class Score(TypedDict):
    """The episodes of one context and one number of objectives, k."""

    context: str
    objectives: int
    questions: int
    episodes: int
    # Means by the names in `scores.METRICS`, which says what each is. Some need gold answers.
    exact_match: NotRequired[Estimate]
    all_correct: NotRequired[Estimate]
    f1: NotRequired[Estimate]
    memory_fidelity: NotRequired[Estimate]
    exact_match_sum: NotRequired[Estimate]
    f1_sum: NotRequired[Estimate]
    well_formed: Estimate
    reward: NotRequired[Estimate]
    total_tokens: Estimate
    peak_tokens: Estimate
    turns: Estimate
    tool_calls: Estimate
    mem1_peak_tokens: float | None  # without the prompt; over episodes with an objective right, as in MEM1's code
    memory_tokens: float | None  # of a closed memory, tags included; None where tokens are not known
    memory_characters: float | None
    answer_probability: list[float | None]  # P(answer | memory) by turn, from turn 1; None without a memory
    stop_reasons: dict[str, int]
    by_question: dict[str, dict[str, float]]  # means over a question's samples, to compare runs question by question


class Difference(NamedTuple):
    """How one metric of a run differs from that of another, on the questions that both have."""

    context: str
    objectives: int
    metric: str
    questions: int
    first: float
    second: float
    change: Estimate  # second - first


def summarize(traces: Iterable[Trace]) -> list[Score]:
    """Scores the episodes of an evaluation, one score for each context and number of objectives, in that order.

    Episodes that ended with an error are not counted: the endpoint failed, not the policy.

    Args:
        traces: of any command; see `trace_scores`.
    """
    groups: dict[tuple[str, int], list[Trace]] = defaultdict(list)
    for trace in traces:
        if trace["stop_reason"] != "error":
            groups[trace["context"], len(trace["answers"])].append(trace)
    return [_score(*key, groups[key]) for key in sorted(groups)]


def _score(context: str, objectives: int, traces: list[Trace]) -> Score:
    samples: dict[str, list[Scores]] = defaultdict(list)
    for trace in traces:
        samples[question_key(trace)].append(trace_scores(trace))
    by_question = {key: mean_scores(episodes) for key, episodes in samples.items()}
    right = [trace for trace in traces if trace_scores(trace).get("exact_match_sum", 0.0) > 0]
    estimates: Any = bootstrap(list(by_question.values()))
    memories = [turn for trace in traces for turn in trace["turns"] if turn["memory_text"] is not None]
    return {  # type: ignore[typeddict-item]
        **estimates,  # type: ignore[typeddict-item]
        "context": context,
        "objectives": objectives,
        "questions": len(by_question),
        "episodes": len(traces),
        "mem1_peak_tokens": _mean(trace["peak_tokens"] - trace["prompt_tokens"] for trace in right),
        "memory_tokens": _mean(turn["memory"][1] - turn["memory"][0] for turn in memories if turn["memory"]),
        "memory_characters": _mean(len(turn["memory_text"] or "") for turn in memories),
        "answer_probability": _by_turn(traces),
        "stop_reasons": dict(Counter(trace["stop_reason"] for trace in traces).most_common()),
        "by_question": by_question,
    }


def question_key(trace: Trace | Mapping[str, Any]) -> str:
    """Tells a question of one draw from others: the same id can be drawn by several seeds."""
    return f"{trace.get('seed', 0)}/{trace['question_id']}"


def _mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return float(np.mean(values)) if values else None


def _by_turn(traces: Sequence[Trace]) -> list[float | None]:
    longest = max(len(trace["turns"]) for trace in traces)
    probabilities: list[list[float]] = [[] for _ in range(longest)]
    for trace in traces:
        for number, turn in enumerate(trace["turns"]):
            if turn["p_mem"] is not None:
                probabilities[number].append(turn["p_mem"])
    return [_mean(values) for values in probabilities]


def bootstrap(rows: Sequence[Mapping[str, float]], seed: int = 0) -> dict[str, Estimate]:
    """The means of independent rows, and the percentile intervals of the means of 2,000 resamples.

    Args:
        rows: numbers by name, one row for each question: samples of one question are not independent, so they are
            averaged before.
        seed: of the resampling.
    """
    if not rows:
        raise ValueError("there is nothing to average: got no rows")
    names = list(rows[0])
    values = np.array([[row[name] for name in names] for row in rows], dtype=float)  # (N, M)
    rng = np.random.default_rng(seed)
    means = np.array([values[rng.integers(len(rows), size=len(rows))].mean(axis=0) for _ in range(RESAMPLES)])
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    table = zip(names, values.mean(axis=0), low, high, strict=True)
    return {name: {"mean": float(mean), "low": float(a), "high": float(b)} for name, mean, a, b in table}


def compare(first: Sequence[Score], second: Sequence[Score]) -> list[Difference]:
    """The change from one evaluation to another, question by question, for what both have evaluated.

    The interval is of the mean of paired differences, which is far narrower than those of the two means.

    Raises:
        `ValueError`: they have no question in common.
    """
    others = {(score["context"], score["objectives"]): score for score in second}
    differences = []
    for score in first:
        other = others.get((score["context"], score["objectives"]))
        shared = score["by_question"].keys() & other["by_question"].keys() if other else set()
        if other and shared:
            differences += _differences(score, other, sorted(shared))
    if not differences:
        raise ValueError(
            "the evaluations have no question in common. Evaluate both with the same questions, objectives, contexts "
            "and seeds"
        )
    return differences


def _differences(first: Score, second: Score, shared: Sequence[str]) -> list[Difference]:
    before, after = ([score["by_question"][key] for key in shared] for score in (first, second))
    names = [name for name in before[0] if name in after[0]]
    changes = bootstrap([{name: b[name] - a[name] for name in names} for a, b in zip(before, after, strict=True)])
    return [
        Difference(
            first["context"],
            first["objectives"],
            name,
            len(shared),
            float(np.mean([row[name] for row in before])),
            float(np.mean([row[name] for row in after])),
            change,
        )
        for name, change in changes.items()
    ]
