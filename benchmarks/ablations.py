"""What each choice of MemPO is worth, in the embedded world: a grid of runs on CPU, and the page that reports it.

    python benchmarks/ablations.py                        # the grid, two runs at a time; goes on where it stopped
    python benchmarks/ablations.py headline threshold     # some of its parts
    python benchmarks/ablations.py --report               # docs/results.md and its figures, from benchmarks/results/
    python benchmarks/ablations.py --smoke                # a corner of the grid, end to end, into a temporary folder

Each run is a process of its own with one thread, and one JSON file under benchmarks/results/. A run whose file is there
is skipped. All runs start from the packaged model.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import ablation_report
from ablation_run import ROOT, Job

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "results.md"
RUN = Path(__file__).with_name("ablation_run.py")


@dataclass(frozen=True)
class Cell:
    """Runs that differ in their seed only.

    Attributes:
        part: the part of the grid that it belongs to.
        name: of the cell.
        options: of `MemPOConfig`, over those of world.yaml.
        job: fields of `Job` that are not the default.
        seeds: how many; they are `first`, `first` + 1, ...
    """

    part: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    job: dict[str, Any] = field(default_factory=dict)
    seeds: int = 3
    first: int = 0

    def jobs(self) -> list[Job]:
        seeds = range(self.first, self.first + self.seeds)
        return [Job(self.name, seed, self.options, **self.job) for seed in seeds]


GRPO, FULL, MEMORY = {"memory_weight": 0.0}, {"context": "full"}, {"context": "memory"}
# Limits for k objectives, as world.yaml gives them.
SIX = {"max_turns": 14, "max_turn_length": 44, "max_completion_length": 672}
TEST_OF_TEN = {"tests": (4, 6, 8, 10), "test_turns": 22, "test_turn_length": 72}
FEW = TEST_OF_TEN | {"objectives": (2, 3, 4), "questions": 32, "contexts": ("memory",)}
AT_FOUR = {"tests": (4,)}


def credit(k: int, group: int) -> tuple[Cell, ...]:
    """A setting of benchmarks/plans/credit.md: both arms, and the start that says how many groups are tied."""
    limits = {"max_turns": 2 * k + 2, "max_turn_length": 6 * k + 8, "max_completion_length": 112 * k}
    options = MEMORY | limits | {"num_generations": group}
    test = {"objectives": k, "tests": (k,), "contexts": ("memory",), "test_turns": 22, "test_turn_length": 72}
    job = test | {"test_split": "credit test", "questions": 128, "at": (0, 30, 60, 90, 95, 100)}
    name = f"credit-k{k}-g{group}"
    return (
        Cell("credit", f"{name}-start", options | {"learning_rate": 0.0}, job | {"at": (0, 20)}, seeds=1, first=100),
        Cell("credit", f"{name}-grpo", options | GRPO, job, seeds=8, first=100),
        Cell("credit", f"{name}-mempo", options, job, seeds=8, first=100),
    )


GRID = (
    # Nothing is learned at this rate: it tests the start.
    Cell("start", "start", {"learning_rate": 0.0}, TEST_OF_TEN | {"at": (0, 1)}, seeds=1),
    Cell("headline", "mempo-full", FULL, seeds=5),
    Cell("headline", "grpo-full", FULL | GRPO, seeds=5),
    Cell("headline", "mempo-memory", MEMORY, seeds=5),
    Cell("headline", "grpo-memory", MEMORY | GRPO, seeds=5),
    Cell("threshold", "threshold-independent", FULL | {"memory_threshold_mode": "independent"}),
    Cell("threshold", "threshold-none", FULL | {"memory_threshold": None}),
    Cell("threshold", "threshold-both", FULL | {"memory_threshold_mode": "both"}),
    Cell("sparse", "six-mempo", MEMORY | SIX, {"objectives": 6, "tests": (6,)}),
    Cell("sparse", "six-grpo", MEMORY | SIX | GRPO, {"objectives": 6, "tests": (6,)}),
    Cell("baseline", "baseline-none", MEMORY | {"memory_baseline": "none"}, AT_FOUR),
    Cell("baseline", "baseline-visible", MEMORY | {"memory_baseline": "visible"}, AT_FOUR),
    Cell("options", "weight-0.3", FULL | {"memory_weight": 0.3}, AT_FOUR),
    Cell("options", "pool-turn", FULL | {"memory_pool": "turn"}, AT_FOUR),
    Cell("options", "floor-0.1", FULL | {"memory_std_floor": 0.1}, AT_FOUR),
    Cell("options", "temperature-0.7", FULL | {"temperature": 0.7}, AT_FOUR),
    Cell("options", "beta-0.001", FULL | {"beta": 0.001}, AT_FOUR),
    Cell("options", "paid-right", FULL, AT_FOUR | {"paid": "right"}),
    Cell("options", "paid-short", FULL, AT_FOUR | {"paid": "short"}),
    Cell("noise", "noise-30-mempo", FULL, AT_FOUR | {"noise": 0.3}),
    Cell("noise", "noise-30-grpo", FULL | GRPO, AT_FOUR | {"noise": 0.3}),
    Cell("noise", "noise-10-mempo", FULL, AT_FOUR | {"noise": 0.1}),
    Cell("noise", "noise-10-grpo", FULL | GRPO, AT_FOUR | {"noise": 0.1}),
    Cell("horizon", "few-mempo", MEMORY, FEW),
    Cell("horizon", "few-grpo", MEMORY | GRPO, FEW),
    *(cell for k, group in ((4, 8), (6, 8), (8, 8), (10, 8), (6, 4), (6, 16)) for cell in credit(k, group)),
)
PARTS = tuple(dict.fromkeys(cell.part for cell in GRID))


def jobs(parts: Sequence[str]) -> list[Job]:
    """The jobs of some parts of the grid, one seed of a part after the other: what is cut off has whole seeds."""
    groups = [[job for cell in GRID if cell.part == part for job in cell.jobs()] for part in PARTS if part in parts]
    return [job for group in groups for job in sorted(group, key=lambda job: job.seed)]


def run(jobs: Sequence[Job], folder: Path, processes: int = 2) -> int:
    """Plays the jobs that have no result, `processes` at a time. Says how each went; returns how many failed."""
    with ThreadPoolExecutor(processes) as pool:
        return sum(pool.map(lambda job: _failed(job, folder), jobs))


def _failed(job: Job, folder: Path) -> bool:
    if job.path(folder).exists():
        return False
    # One thread each: two runs side by side use two cores better than one run after the other.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    command = [sys.executable, str(RUN), json.dumps(asdict(job)), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    failed = done.returncode != 0
    print(job.cell, job.seed, f"failed:\n{done.stderr[-2000:]}" if failed else "done", flush=True)
    return failed


def smoke(folder: Path) -> int:
    """GRPO and MemPO, trained in both contexts, for two steps; and the page."""
    small = {"max_turns": 6}
    tests = {"objectives": 2, "tests": (2,), "questions": 8, "at": (0, 1, 2), "test_turns": 6}
    results = folder / "results"
    corner = [replace(job, options=job.options | small, **tests) for job in jobs(["headline"])[:4]]
    failed = run(corner, results)
    if not failed:
        ablation_report.write(results, folder / "results.md", folder / "assets")
        print(folder / "results.md")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(PARTS)}; default: all")
    parser.add_argument("--report", action="store_true", help="write the page and its figures, run nothing")
    parser.add_argument("--smoke", action="store_true", help="four short runs and their page, in a temporary folder")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"unknown parts {sorted(unknown)}; set some of {', '.join(PARTS)}")
    if arguments.smoke:
        return smoke(Path(tempfile.mkdtemp(prefix="ablations-")))
    failed = 0 if arguments.report else run(jobs(arguments.parts or PARTS), RESULTS)
    ablation_report.write(RESULTS, PAGE, ROOT / "docs" / "assets" / "results")
    return failed


if __name__ == "__main__":
    sys.exit(main())
