"""An evaluation over contexts, numbers of objectives, seeds and samples, which goes on where it was stopped."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..inference.agent import MemoryAgent
from ..inference.local_model import LocalModel
from ..inference.trajectory import Trajectory
from ..memory import encode_answer, find_memory_spans, score_answers
from ..memory.scored import judge_memories
from ..memory.turns import find_turns
from ..tasks.search.rewards import exact_match, f1_score, is_well_formed, objective_scores
from ..tasks.search.rows import Row
from ..tasks.task import Task
from ..traces.convert import trajectory_trace
from ..traces.file import Trace, read_traces, write_traces
from .summary import Score, summarize

EPISODES, SETTINGS, SUMMARY = "episodes.jsonl", "settings.json", "summary.json"
SUMMARY_VERSION = 2


@dataclass(frozen=True)
class Grid:
    """What is evaluated: every combination of these.

    Attributes:
        contexts: "full", "memory" or both.
        objectives: numbers of objectives, k; None for questions as they come.
        seeds: each draws its questions in another order, and joins others.
        samples: episodes of each question.
        count: most questions for each k and seed; None for all.
    """

    contexts: Sequence[str] = ("memory",)
    objectives: Sequence[int | None] = (None,)
    seeds: Sequence[int] = (0,)
    samples: int = 1
    count: int | None = None

    def rows(self, task: Task) -> list[Row]:
        """The questions, each `samples` times, with the columns `seed` and `sample`."""
        return [
            {**row, "seed": seed, "sample": sample}
            for objectives in self.objectives
            for seed in self.seeds
            for row in task.rows(objectives, self.count, seed)
            for sample in range(self.samples)
        ]


class EvaluationFolder:
    """Where an evaluation lies: `episodes.jsonl` (a trace file), `settings.json` and `summary.json`.

    Args:
        path: made if need be.
        settings: what the scores depend on: the model, the questions, how turns are sampled.

    Raises:
        `ValueError`: the folder holds an evaluation with other settings.
    """

    def __init__(self, path: str | Path, settings: Mapping[str, Any]) -> None:
        self.path, self.settings = Path(path), dict(settings)
        self.path.mkdir(parents=True, exist_ok=True)
        file = self.path / SETTINGS
        if file.exists() and self.episodes.exists():
            old = json.loads(file.read_text("utf-8"))
            changed = [key for key in self.settings | old if old.get(key) != self.settings.get(key)]
            if changed:
                values = ", ".join(f"{key}={old.get(key)!r}, not {self.settings.get(key)!r}" for key in changed)
                raise ValueError(f"{path} holds an evaluation with {values}. Set these as they were, or another folder")
        file.write_text(json.dumps(self.settings, indent=2) + "\n", "utf-8")

    @property
    def episodes(self) -> Path:
        """The trace file."""
        return self.path / EPISODES

    def traces(self) -> Iterator[Trace]:
        """What was played so far."""
        return read_traces(self.episodes) if self.episodes.exists() else iter(())

    def remaining(self, rows: Sequence[Row], context: str) -> list[Row]:
        """The rows that have not been played to an end. Episodes that ended with an error are played again."""
        done = {_key(trace, trace["context"]) for trace in self.traces() if trace["stop_reason"] != "error"}
        return [row for row in rows if _key(row, context) not in done]

    def summarize(self) -> list[Score]:
        """Scores what was played, and writes them to `summary.json`."""
        scores = summarize(self.traces())
        summary = {"schema_version": SUMMARY_VERSION, "settings": self.settings, "scores": scores}
        (self.path / SUMMARY).write_text(json.dumps(summary, indent=1, allow_nan=False) + "\n", "utf-8")
        return scores


def read_summary(path: str | Path) -> list[Score]:
    """The scores of a `summary.json`, or of the folder that holds one.

    Raises:
        `ValueError`: the file is no summary, or of another version.
    """
    path = Path(path) / SUMMARY if Path(path).is_dir() else Path(path)
    content = json.loads(path.read_text("utf-8"))
    if not isinstance(content, dict) or content.get("schema_version") != SUMMARY_VERSION or "scores" not in content:
        raise ValueError(
            f"{path} is no summary of mempo eval, version {SUMMARY_VERSION}. Run the same mempo eval command again: it "
            "reads the episodes that are there and writes the summary anew"
        )
    return content["scores"]


def evaluate_grid(
    make_agent: Callable[[str], MemoryAgent],
    task: Task,
    grid: Grid,
    folder: EvaluationFolder,
    concurrency: int = 16,
    on_episode: Callable[[Trace], None] = lambda trace: None,
) -> list[Score]:
    """Plays what the folder does not hold yet, each episode written as soon as it is there, and scores all of it.

    A local model also gives P(answer | memory) and P(answer | history) for each memory.

    Args:
        make_agent: from a context to an agent.
        task: the questions.
        grid: what to evaluate.
        folder: where the results go.
        concurrency: episodes at once.
        on_episode: called with each.
    """
    rows = grid.rows(task)
    for context in grid.contexts:
        agent = make_agent(context)
        left = folder.remaining(rows, context)
        seeds = [_sampling_seed(row) for row in left]
        for row, trajectory in zip(left, agent.run_many(left, concurrency, seeds), strict=True):
            trace = episode_trace(agent, row, trajectory)
            write_traces(folder.episodes, [trace])
            on_episode(trace)
    return folder.summarize()


def episode_trace(agent: MemoryAgent, row: Row, trajectory: Trajectory) -> Trace:
    """The trace of one evaluated episode, with the scores that `summarize` takes."""
    scores = episode_scores(row, trajectory)
    trace: Any = trajectory_trace(trajectory, row, agent.context, scores, agent.tokenizer)
    trace |= {"reward": scores["exact_match"], "seed": row["seed"], "sample": row["sample"], "error": trajectory.error}
    if trajectory.episode is not None and isinstance(agent.model, LocalModel):
        _add_probabilities(trace, agent, trajectory, row["answers"])
    return trace


def episode_scores(row: Row, trajectory: Trajectory) -> dict[str, float]:
    """Exact match and F1, their mean and their sum over the objectives, and whether the format is right."""
    scores = {"well_formed": float(is_well_formed(trajectory.messages))}
    for name, metric in {"exact_match": exact_match, "f1": f1_score}.items():
        values = objective_scores(trajectory.answer, row["answers"], metric, row.get("aliases"))
        scores |= {name: sum(values) / len(values), f"{name}_sum": sum(values)}
    return scores


def _add_probabilities(trace: Trace, agent: MemoryAgent, trajectory: Trajectory, answers: list[str]) -> None:
    """P(answer | memory) and P(answer | history) of each turn, over all answer tokens (method.md, section 3)."""
    episode, tokenizer = trajectory.episode, agent.tokenizer
    assert isinstance(agent.model, LocalModel)
    assert episode is not None
    assert tokenizer is not None
    encoded = encode_answer(tokenizer, answers)
    score = partial(
        score_answers,
        agent.model.model,
        [episode.prompt_ids],
        [episode.completion_ids],
        [encoded.ids],
        pad_token_id=agent.model.pad_token_id,
    )
    spans = find_memory_spans(tokenizer, episode.completion_ids, episode.mask)
    history = [(0, start) for start, _ in find_turns(episode.mask)]
    judged = judge_memories([spans], [encoded], [history], len(trace["turns"]), score, threshold=None)
    for _, turn in judged.judged:
        trace["turns"][turn]["p_mem"] = judged.p_mem[0, turn].item()
        trace["turns"][turn]["p_full"] = judged.p_full[0, turn].item()


def _key(row: Mapping[str, Any], context: str) -> tuple[str, Any, str, Any]:
    return context, row.get("seed"), row["question_id"], row.get("sample")


def _sampling_seed(row: Row) -> int:
    """Depends on question and sample alone: both contexts, and a run that goes on, sample with the same numbers."""
    key = json.dumps([row["seed"], row["question_id"], row["sample"]]).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=4).digest(), "big") >> 1
