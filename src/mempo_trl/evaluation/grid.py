"""An evaluation over contexts, numbers of objectives, seeds and samples, which continues where it was stopped."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..inference.agent import MemoryAgent
from ..tasks.outcome import RewardFunction
from ..tasks.search.rewards import mempo_outcome_reward
from ..tasks.search.rows import Row
from ..tasks.task import Task
from ..traces.file import Trace, read_traces
from .evaluation import evaluate
from .summary import Score, summarize

EPISODES, SETTINGS, SUMMARY = "episodes.jsonl", "settings.json", "summary.json"
SUMMARY_VERSION = 3
_RENAMED = {"questions": "dataset", "top_k": "passages"}  # settings of old evaluations


@dataclass(frozen=True)
class Grid:
    """What is evaluated: every combination of these.

    Attributes:
        contexts: "full", "memory" or both.
        objectives: numbers of objectives, k; None to leave the questions as they are.
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
        `ValueError`: the folder contains an evaluation with other settings.
    """

    def __init__(self, path: str | Path, settings: Mapping[str, Any]) -> None:
        self.path, self.settings = Path(path), dict(settings)
        self.path.mkdir(parents=True, exist_ok=True)
        file = self.path / SETTINGS
        if file.exists() and self.episodes.exists():
            old = {_RENAMED.get(key, key): value for key, value in json.loads(file.read_text("utf-8")).items()}
            changed = [key for key in self.settings | old if old.get(key) != self.settings.get(key)]
            if changed:
                values = ", ".join(f"{key}={old.get(key)!r}, not {self.settings.get(key)!r}" for key in changed)
                raise ValueError(
                    f"{path} contains an evaluation with {values}. Use the same values, or choose another folder"
                )
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
        `ValueError`: the file is not a summary, or has another version.
    """
    path = Path(path) / SUMMARY if Path(path).is_dir() else Path(path)
    content = json.loads(path.read_text("utf-8"))
    if not isinstance(content, dict) or content.get("schema_version") != SUMMARY_VERSION or "scores" not in content:
        raise ValueError(
            f"{path} is not a summary of mempo eval, version {SUMMARY_VERSION}. Run the same mempo eval command again: "
            "it reads the existing episodes and writes a new summary"
        )
    return content["scores"]


def evaluate_grid(
    make_agent: Callable[[str], MemoryAgent],
    task: Task,
    grid: Grid,
    folder: EvaluationFolder,
    concurrency: int = 16,
    on_episode: Callable[[Trace], None] = lambda trace: None,
    reward_funcs: Sequence[RewardFunction] = (mempo_outcome_reward,),
) -> list[Score]:
    """Plays what the folder does not hold yet, each episode written as soon as it is there, and scores all of it.

    A local model also gives P(answer | memory) and P(answer | history) for each memory.

    Args:
        make_agent: from a context to an agent.
        task: the questions.
        grid: what to evaluate.
        folder: where the results go.
        concurrency: episodes at once.
        on_episode: called with the trace of each.
        reward_funcs: TRL reward functions; their sum is the score `reward`.
    """
    rows = grid.rows(task)
    for context in grid.contexts:
        left = folder.remaining(rows, context)
        evaluate(
            make_agent(context),
            left,
            concurrency=concurrency,
            seed=[_sampling_seed(row) for row in left],
            traces=folder.episodes,
            reward_funcs=reward_funcs,
            answer_probabilities=True,
            on_episode=on_episode,
        )
    return folder.summarize()


def _key(row: Mapping[str, Any], context: str) -> tuple[str, Any, str, Any]:
    return context, row.get("seed"), row["question_id"], row.get("sample")


def _sampling_seed(row: Row) -> int:
    """Depends on question and sample alone: both contexts, and a run that resumes, sample with the same numbers."""
    key = json.dumps([row["seed"], row["question_id"], row["sample"]]).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=4).digest(), "big") >> 1
