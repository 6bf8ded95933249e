"""One run of `ablations.py`: RL in the embedded world, from the packaged model, tests on the way. Writes one JSON file.

    python benchmarks/ablation_run.py JOB FOLDER

`JOB` is a JSON object with the fields of `Job`. The file is `FOLDER/CELL-SEED.json`. It appears when the run is over:
a run that was cut off leaves nothing behind.
"""

import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from datasets import Dataset
from transformers import TrainerCallback

from ablation_rewards import memory_rewards
from ablation_scores import LAST, TESTED_IN
from ablation_world import NoisyEnvironment, examples, lost, memory_habits
from mempo_trl import MemPOConfig, MemPOTrainer
from mempo_trl.evaluation.scores import mean_scores, score_episode
from mempo_trl.inference.agent import MemoryAgent
from mempo_trl.inference.endpoints import Sampling
from mempo_trl.tasks.search import mempo_outcome_reward
from mempo_trl.tasks.search.rows import Row
from mempo_trl.tasks.world.model import load_start
from mempo_trl.tasks.world.world import WorldEnvironment, world_rows
from mempo_trl.types import TurnLimits

ROOT = Path(__file__).resolve().parents[1]
WORLD = ROOT / "examples" / "configs" / "world.yaml"
# Options of world.yaml that are not MemPOConfig's.
OF_THE_SCRIPT = ("dataset", "objectives", "eval_questions", "eval_every")
CURVES = {
    "reward": "reward",
    "tied": "frac_reward_zero_std",
    "entropy": "entropy",
    "memory_reward": "memory/reward_mean",
    "memory_reward_std": "memory/reward_std",
    "p_mem": "memory/p_mem_mean",
    "p_baseline": "memory/p_baseline_mean",
    "memory_length": "memory/length_mean",
    "memory_closed": "memory/closed_fraction",
    "pools_under_floor": "memory/pools_under_floor",
}


@dataclass(frozen=True)
class Job:
    """What is run.

    Attributes:
        cell: name of the cell of the grid.
        seed: of the training; runs of one seed get the same questions.
        options: of `MemPOConfig`, over those of world.yaml.
        noise: rate at which a search misleads.
        paid: memories that get a reward, as in `ablation_rewards`.
        objectives: people asked for in a question of the training; of several numbers, each has its share.
        tests: numbers of objectives that are tested.
        contexts: what is in view in the tests.
        test_split: of `world_rows`, where the questions of the tests come from.
        questions: of a test, for each number of objectives.
        at: steps that are tested. The training ends with the last. The last `LAST` of them count as the result: all
            numbers of objectives are tested there, before it the first one alone.
        test_turns: limit of an episode there.
        test_turn_length: limit of a turn there, in tokens; an answer of 8 objectives, with its memory, has 52.
    """

    cell: str
    seed: int
    options: dict[str, Any] = field(default_factory=dict)
    noise: float = 0.0
    paid: str = "all"
    objectives: int | tuple[int, ...] = 4
    tests: tuple[int, ...] = (4, 8)
    contexts: tuple[str, ...] = TESTED_IN
    test_split: str = "ablation test"
    questions: int = 64
    at: tuple[int, ...] = (0, 20, 40, 45, 50)
    test_turns: int = 18
    test_turn_length: int = 64

    def environment(self) -> WorldEnvironment:
        return NoisyEnvironment(self.noise) if self.noise else WorldEnvironment()

    def path(self, folder: Path) -> Path:
        return folder / f"{self.cell}-{self.seed}.json"


# Tests


class Tests(TrainerCallback):
    """Plays held-out questions in both contexts before training and on the way, sampled as in training."""

    def __init__(self, trainer: MemPOTrainer, job: Job) -> None:
        self.trainer, self.job = trainer, job
        self.scores: list[dict[str, Any]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._test(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step in self.job.at:
            self._test(state.global_step)

    def _test(self, step: int) -> None:
        model, args, job = self.trainer.model, self.trainer.args, self.job
        model.eval()
        for k, context in itertools.product(job.tests if step in job.at[-LAST:] else job.tests[:1], job.contexts):
            agent = MemoryAgent(
                model,
                self.trainer.processing_class,
                context=context,
                environment_factory=job.environment,
                limits=TurnLimits(job.test_turns, args.max_tool_length),
                sampling=Sampling(args.temperature, 1.0, job.test_turn_length),
            )
            rows = world_rows(job.questions, k, job.test_split)
            played = list(zip(rows, agent.run_many(rows, job.questions, seed=0), strict=True))
            means = mean_scores([score_episode(*pair) for pair in played])
            habits = [h for pair in played if (h := memory_habits(*pair))]
            means |= {name: fmean(h[name] for h in habits) for name in (habits[0] if habits else ())}
            rounded = {name: round(value, 4) for name, value in means.items()}
            self.scores.append({"step": step, "objectives": k, "context": context, **rounded})
        model.train()


# A memory that lost a fact


class FirstEpisodes(TrainerCallback):
    """Keeps the memory of the first batch where the history knew most answer tokens that the memory has lost."""

    def __init__(self, trainer: MemPOTrainer) -> None:
        self.trainer, self.example = trainer, None

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.example is None:
            record = self.trainer.last_rollout
            traces = record.traces(self.trainer.processing_class, state.global_step, args)
            self.example = max((e for trace in traces for e in examples(trace)), key=lost, default={})


# The run


def play(job: Job) -> dict[str, Any]:
    """Runs a job. What comes back is what the JSON file holds."""
    began = time.monotonic()
    settings = {name: value for name, value in yaml.safe_load(WORLD.read_text()).items() if name not in OF_THE_SCRIPT}
    settings |= {"seed": job.seed, "max_steps": job.at[-1], "use_cpu": True, "disable_tqdm": True, **job.options}
    args = MemPOConfig(**settings)
    trainer = build_trainer(job, args)
    tests, first = Tests(trainer, job), FirstEpisodes(trainer)
    trainer.add_callback(first)
    trainer.add_callback(tests)
    trainer.train()
    return {
        "job": asdict(job),
        "config": {name: getattr(args, name) for name in sorted(settings)},
        "commit": commit(),
        "seconds": round(time.monotonic() - began, 1),
        "curves": curves_of(trainer.state.log_history, CURVES),
        "tests": tests.scores,
        "example": first.example,
    }


def build_trainer(job: Job, args: MemPOConfig) -> MemPOTrainer:
    model, tokenizer = load_start()
    funcs, args.memory_reward_weights = memory_rewards(job.paid)
    with tempfile.TemporaryDirectory() as folder:
        if args.beta:  # the reference model is loaded from where the policy came from
            model.save_pretrained(folder)
            args.model_init_kwargs = {"dtype": "float32"}
        return MemPOTrainer(
            folder if args.beta else model,
            mempo_outcome_reward,
            args,
            Dataset.from_list(questions(job, args.generation_batch_size // args.num_generations * args.max_steps)),
            processing_class=tokenizer,
            environment_factory=job.environment,
            memory_reward_funcs=funcs,
        )


def questions(job: Job, count: int) -> list[Row]:
    """What a job is trained on, `count` questions or a few more."""
    numbers = (job.objectives,) if isinstance(job.objectives, int) else job.objectives
    share = math.ceil(count / len(numbers))
    return [row for k in numbers for row in world_rows(share, k, "ablation", job.seed)]


def commit() -> str:
    """Of this repository, with "-dirty" where files have been changed since."""
    command = ["git", "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def curves_of(history: list[dict[str, Any]], names: dict[str, str]) -> dict[str, list[float | None]]:
    """The values of each step, by our name, of what was logged under another; None for a step that has none."""
    steps = [entry for entry in history if "step_time" in entry]
    values = {name: [entry.get(logged) for entry in steps] for name, logged in names.items()}
    return {name: [None if v is None else round(v, 4) for v in curve] for name, curve in values.items()}


def main() -> None:
    job, folder = Job(**json.loads(sys.argv[1])), Path(sys.argv[2])
    result = play(job)
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = job.path(folder).with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(result, separators=(",", ":")) + "\n")
    unfinished.rename(job.path(folder))


if __name__ == "__main__":
    main()
