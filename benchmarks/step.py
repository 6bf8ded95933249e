"""What a whole training step costs: `MemPOTrainer` beside TRL's `GRPOTrainer` on the same rollouts.

    python benchmarks/step.py                                      # on 2 CPU cores about half an hour
    python benchmarks/step.py --device cuda --dtype bfloat16 --shape qwen2.5-0.5b --group 8 --length 8800 --turns 16

Turns are written beforehand and replayed, so generation costs nothing but its bookkeeping and all trainers see the
same trajectories. A step is what follows one generation: scoring, old log-probs, then the loss, backward and optimizer
of two halves of the group, with gradient checkpointing as is TRL's default. Two settings:

    updates 2   an optimizer step for each half, so old log-probs are needed, as with vLLM's correction
    updates 1   one optimizer step for both, on-policy: no old log-probs

The trainers take turns, `--repeats` times. Seconds are medians, a ratio is the median of the ratios within a repeat.
Peak memory is measured in a process of its own for each trainer: that of the process on CPU, that allocated on CUDA.
"""

import argparse
import json
import random
import resource
import statistics
import string
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import split_tensor_dict

from mempo_trl import MemPOConfig, MemPOTrainer
from mempo_trl.tasks.search import Passage, SearchEnvironment
from mempo_trl.tasks.search.prompts import SYSTEM_PROMPT, build_prompt
from mempo_trl.tasks.world.model import build_tokenizer
from mempo_trl.tasks.world.world import QUESTION
from scoring import CLOCKS, SHAPES, build_model

TRAINERS = ("grpo", "shared", "separate")
BARS = {"time": 1.15, "memory": 1.10}
MEMORY_TOKENS, QUESTION_TOKENS = 80, 180
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n</tool_call>'


def words(count: int, seed: object) -> str:
    """`count` characters, which are tokens of the embedded world's tokenizer."""
    return "".join(random.Random(repr(seed)).choices(string.ascii_lowercase, k=count))


class Library:
    """A retriever whose one passage has the length of a tool result."""

    characters = 100

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        return [[Passage("0", "", words(self.characters, query))] for query in queries]


class LibraryEnvironment(SearchEnvironment):
    """The `environment_factory`."""

    def __init__(self) -> None:
        super().__init__(Library(), max_characters=100_000)


class Phases:
    """Seconds by phase. A phase inside another takes its time from it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._clock = clock
        self._inner = [0.0]

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = self._clock()
        self._inner.append(0.0)
        yield
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        spent = self._clock() - start
        self.seconds[name] += spent - self._inner.pop()
        self._inner[-1] += spent


class Replayed:
    """Mixed in before a trainer: turns from a script, and a clock on the phases before the loss."""

    turns: int
    characters: int
    phases: Phases

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> tuple[list, None]:
        first = self._turn == 0
        self._turn += 1
        text = words(self.characters, self._turn)
        turns = []
        for row in range(len(prompt_ids)):
            memory = "" if first else f"<mem>{words(MEMORY_TOKENS - 2, (self._turn, row))}</mem>"
            action = CALL if self._turn < self.turns else "<answer>Paris; Lima</answer>"
            ids = self._tokenizer.encode(f"{memory}<think>{text}</think>{action}")
            turns.append([*ids, self.eos_token_ids[0]])
        return turns, None

    def _generate(self, prompts: list) -> Any:
        self._turn = 0
        with self.phases("generation (replayed)"):
            return super()._generate(prompts)

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            return super()._get_per_token_logps_and_entropies(*args, **kwargs)
        with self.phases("old log-probs"):
            return super()._get_per_token_logps_and_entropies(*args, **kwargs)


class ReplayedGRPO(Replayed, GRPOTrainer):
    """TRL's trainer and its own tool loop."""


class ReplayedMemPO(Replayed, MemPOTrainer):
    """`MemPOTrainer`, its scoring timed."""

    def _score_memories(self, *args: Any, **kwargs: Any) -> Any:
        with self.phases("memory scoring"):
            return super()._score_memories(*args, **kwargs)


def reward(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
    return [sum(ids) % 97 / 97 for ids in completion_ids]


def build_trainer(name: str, args: argparse.Namespace, updates: int) -> Any:
    """A trainer on one question, with trajectories of about `args.length` tokens."""
    # Besides its memory, a turn has one part of thoughts and action, and but for the last two parts of tool result.
    part = (args.length - QUESTION_TOKENS - MEMORY_TOKENS * args.turns) // (3 * args.turns - 2)
    Library.characters = 2 * part
    prompts = [build_prompt(QUESTION + words(QUESTION_TOKENS, row), SYSTEM_PROMPT) for row in range(4)]
    dataset = Dataset.from_list([{"prompt": prompt, "answers": ["Paris", "Lima"]} for prompt in prompts])
    options: dict[str, Any] = {
        "output_dir": tempfile.mkdtemp(), "use_cpu": args.device == "cpu", "bf16": args.dtype == "bfloat16",
        "beta": 0.0, "per_device_train_batch_size": args.group // 2, "num_generations": args.group, "report_to": "none",
        "steps_per_generation": 2, "gradient_accumulation_steps": 2 if updates == 1 else 1,
        "max_completion_length": 2 * args.length, "learning_rate": 1e-6,
    }  # fmt: skip
    if name == "grpo":
        config: GRPOConfig = GRPOConfig(**options, loss_type="grpo", max_tool_calling_iterations=args.turns)
        kind: type[Replayed] = ReplayedGRPO
    else:
        scored = {"context": "full", "memory_scoring": name, "max_tool_length": 2 * args.length}
        config, kind = MemPOConfig(**options, **scored), ReplayedMemPO
    trainer: Any = kind(
        build_model(args.shape), reward, config, dataset, processing_class=build_tokenizer(),
        environment_factory=LibraryEnvironment,
    )  # fmt: skip
    trainer.turns, trainer.characters, trainer.clock = args.turns, max(part - len(CALL), 1), CLOCKS[args.clock]
    trainer.current_gradient_accumulation_steps = config.gradient_accumulation_steps
    trainer.create_optimizer()
    trainer.rows = next(iter(trainer.get_train_dataloader()))
    return trainer


def step(trainer: Any) -> dict[str, float]:
    """One generation and the updates on it. Returns seconds by phase."""
    phases = trainer.phases = Phases(trainer.clock)
    updates = 2 // trainer.args.gradient_accumulation_steps
    with phases("rest"):
        trainer.model.train()
        output = trainer._generate_and_score_completions(trainer.rows)
        for index, half in enumerate(split_tensor_dict(output, 2)):
            with phases("loss and backward"):
                trainer.compute_loss(trainer.model, half).backward()
            if index == 1 or updates == 2:
                with phases("optimizer"):
                    trainer.optimizer.step()
                    trainer.optimizer.zero_grad()
    tokens = sum(int(output[mask].sum()) for mask in ("prompt_mask", "completion_mask"))
    trainer.tokens = tokens / len(output["prompt_ids"])
    return dict(phases.seconds)


def measure(args: argparse.Namespace, updates: int) -> dict[str, Any]:
    """Seconds by trainer and phase, and the ratio of each trainer to GRPO."""
    trainers = {name: build_trainer(name, args, updates) for name in TRAINERS}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in TRAINERS}
    for repeat in range(args.repeats + 1):
        for name, trainer in trainers.items():
            seconds = step(trainer)
            if repeat:  # the first is a warm-up, with the self-check
                runs[name].append(seconds)
    totals = {name: [sum(run.values()) for run in runs[name]] for name in TRAINERS}
    return {
        "tokens": trainers["grpo"].tokens,
        "seconds": {name: {p: statistics.median(r[p] for r in runs[name]) for p in runs[name][0]} for name in TRAINERS},
        "ratio": {
            name: statistics.median(own / grpo for own, grpo in zip(totals[name], totals["grpo"], strict=True))
            for name in TRAINERS
        },
    }


def peak_gib(name: str, args: argparse.Namespace, updates: int) -> float:
    """Peak memory of two steps, in a process of its own."""
    command = [sys.executable, __file__, *sys.argv[1:], "--only", name, "--updates", str(updates)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(output.splitlines()[-1])


def print_own_peak(args: argparse.Namespace) -> None:
    trainer = build_trainer(args.only, args, args.updates[0])
    for _ in range(2):
        step(trainer)
    if args.device == "cuda":
        print(torch.cuda.max_memory_allocated() / 2**30)
    else:
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="smollm2-135m")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--length", type=int, default=2400, help="tokens of a trajectory, at most")
    parser.add_argument("--group", type=int, default=2, help="trajectories of the question; even")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--updates", type=int, nargs="+", choices=[1, 2], default=[2, 1])
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: for a machine that has other work too")
    parser.add_argument("--json", help="where to write the results")
    parser.add_argument("--only", choices=TRAINERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        print_own_peak(args)
        return

    results = {}
    for updates in args.updates:
        results[f"updates {updates}"] = result = measure(args, updates)
        result["peak_gib"] = {name: peak_gib(name, args, updates) for name in TRAINERS}
        print(f"\nupdates {updates}, {result['tokens']:.0f} tokens a trajectory: seconds", flush=True)
        for name in TRAINERS:
            phases = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in sorted(result["seconds"][name].items()))
            memory = result["peak_gib"][name] / result["peak_gib"]["grpo"]
            print(f"{name:9} time x {result['ratio'][name]:.3f}  memory x {memory:.3f}  {phases}", flush=True)
        memory = result["peak_gib"]["shared"] / result["peak_gib"]["grpo"]
        for what, value in (("time", result["ratio"]["shared"]), ("memory", memory)):
            verdict = "holds" if value <= BARS[what] else "FAILS"
            print(f"shared: {what} {value:.3f} <= {BARS[what]}: {verdict}", flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps({"options": vars(args), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
