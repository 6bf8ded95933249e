"""What the runs of a cell of `ablations.py` scored: means over their last tests, intervals, and differences by seed."""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t

from mempo_trl.evaluation.summary import CONFIDENCE, RESAMPLES, Estimate

Run = dict[str, Any]  # what `ablation_run.play` returns
LAST = 3  # tests that a final score is the mean of
TESTED_IN = ("full", "memory")  # the contexts that every run is tested in
SAME, HIGHER, LOWER = "no clear difference", "higher", "lower"
RENAMED = {"em": "all_correct", "p_full": "p_baseline"}  # names in result files: as they were, as they are


def read_result(path: Path) -> dict[str, Any]:
    """A result file, with the names of today."""
    return json.loads(
        path.read_text("utf-8"), object_hook=lambda fields: {RENAMED.get(k, k): v for k, v in fields.items()}
    )


class Cells(Mapping[str, list[Run]]):
    """The runs by cell, in order of their seeds. A cell without runs is not in it."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._cells: dict[str, list[Run]] = defaultdict(list)
        for run in sorted(runs, key=lambda run: (run["job"]["cell"], run["job"]["seed"])):
            self._cells[run["job"]["cell"]].append(run)

    @classmethod
    def read(cls, folder: Path) -> "Cells":
        """The runs in a folder. Raises `ValueError` where there are none."""
        runs = [read_result(path) for path in folder.glob("*.json")]
        if not runs:
            raise ValueError(f"there are no runs in {folder}. Run python benchmarks/ablations.py first")
        return cls(runs)

    def __getitem__(self, cell: str) -> list[Run]:
        if cell not in self._cells:
            raise KeyError(cell)
        return self._cells[cell]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    def objectives(self, names: Iterable[str]) -> list[int]:
        """The numbers of objectives that all runs of these cells were tested on."""
        runs = [run for name in names for run in self[name]]
        return sorted(set.intersection(*({test["objectives"] for test in run["tests"]} for run in runs)))

    def scores(self, cell: str, context: str, objectives: int, metric: str = "all_correct") -> dict[int, float]:
        """The final score of each seed that has one: habits of memories need a memory."""
        scores = {run["job"]["seed"]: final(run, context, objectives, metric) for run in self[cell]}
        return {seed: score for seed, score in scores.items() if not math.isnan(score)}


class Difference(NamedTuple):
    """How a cell differs from another on the seeds that both have."""

    change: Estimate
    seeds: int

    @property
    def verdict(self) -> str:
        """What the interval says where there are 3 seeds or more."""
        if self.seeds < 3:
            return f"no verdict from {self.seeds} seed{'s' * (self.seeds > 1)}"
        if self.change["low"] <= 0 <= self.change["high"]:
            return SAME
        return HIGHER if self.change["mean"] > 0 else LOWER


def curve(run: Run, context: str, objectives: int, metric: str = "all_correct") -> list[tuple[int, float]]:
    """A test's values by step."""
    return [
        (test["step"], test[metric])
        for test in run["tests"]
        if (test["context"], test["objectives"]) == (context, objectives) and metric in test
    ]


def final(run: Run, context: str, objectives: int, metric: str = "all_correct") -> float:
    """The mean of the last tests; NaN where none has the metric."""
    values = [value for _, value in curve(run, context, objectives, metric)[-LAST:]]
    return fmean(values) if values else float("nan")


def estimate(values: Iterable[float]) -> Estimate:
    """The mean over seeds and its bootstrap interval, as `mempo_trl.evaluation.summary` takes it over questions."""
    array = np.array(list(values))
    drawn = np.random.default_rng(0).integers(len(array), size=(RESAMPLES, len(array)))
    low, high = np.quantile(array[drawn].mean(axis=1), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return {"mean": float(array.mean()), "low": float(low), "high": float(high)}


def difference(
    cells: Cells, cell: str, other: str, context: str, objectives: int, metric: str = "all_correct"
) -> Difference:
    """`cell` - `other`, seed by seed, with Student's t interval: runs of one seed share the start and the questions."""
    first, second = (cells.scores(name, context, objectives, metric) for name in (cell, other))
    shared = sorted(first.keys() & second.keys())
    if not shared:
        raise ValueError(f"{cell} and {other} have no seed in common")
    changes = np.array([first[seed] - second[seed] for seed in shared])
    mean, reach = float(changes.mean()), 0.0
    if len(shared) > 1:
        quantile = t.ppf((1 + CONFIDENCE) / 2, len(shared) - 1)
        reach = float(quantile * changes.std(ddof=1) / len(shared) ** 0.5)
    return Difference({"mean": mean, "low": mean - reach, "high": mean + reach}, len(shared))


def example_of(runs: Iterable[Run]) -> dict[str, Any] | None:
    """The first example that a run has kept."""
    return next((run["example"] for run in runs if run["example"]), None)
