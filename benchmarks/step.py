"""What a whole training step costs: `MemPOTrainer` in both contexts beside TRL's `GRPOTrainer` on the same rollouts.

    OMP_NUM_THREADS=1 python benchmarks/step.py --clock cpu            # each distinct token once, on CPU about an hour
    OMP_NUM_THREADS=1 python benchmarks/step.py --clock cpu --ragged   # trajectories of 2 to 6 turns
    python benchmarks/step.py --count --plot step.svg                  # operations alone, 2 to 16 turns: seconds
    python benchmarks/step.py --device cuda --dtype bfloat16 --shape qwen2.5-0.5b --length 8800 --turns 16

Turns are written beforehand and replayed, so generation costs nothing but its bookkeeping and all trainers see the
same trajectories. A step is what follows one generation: scoring, old log-probs, then the loss, backward and optimizer
of two halves of the group, with gradient checkpointing as is TRL's default. Two settings:

    updates 2   an optimizer step for each half, so old log-probs are needed, as with vLLM's correction
    updates 1   one optimizer step for both, on-policy: no old log-probs

Each trainer runs in a process of its own, which takes a short step first, with the comparison of `logps="auto"`.
Seconds are medians over `--repeats` steps. Peak memory is that of the process on CPU, that allocated on CUDA.
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
from mempo_trl.memory.scoring.packing import PackedRow, Trajectories
from mempo_trl.memory.scoring.separate import AnswerContext
from mempo_trl.tasks.search import Passage, SearchEnvironment
from mempo_trl.tasks.search.prompts import SYSTEM_PROMPT, build_prompt
from mempo_trl.tasks.world.model import build_tokenizer
from mempo_trl.tasks.world.world import QUESTION
from mempo_trl.training.config import LOGPS
from mempo_trl.training.packed import pack_turns
from scoring import CLOCKS, SHAPES, build_model

TRAINERS = ("grpo", "full", "memory")
# What must hold, by trainer: the ratio of time, then of memory, to GRPO's.
BARS = {
    "equal": {"full": (0.95, 1.1), "memory": (1.25, 1.1)},
    "ragged": {"full": (0.8, 1.0), "memory": (1.0, 1.0)},
}
MEMORY_TOKENS = 80
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

    turns: list[int]  # of each trajectory
    characters: int
    phases: Phases

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> tuple[list, None]:
        self._turn += 1
        active = [row for row, turns in enumerate(self.turns) if turns >= self._turn]
        text = words(self.characters, self._turn)
        turns = []
        for row in active:
            memory = "" if self._turn == 1 else f"<mem>{words(MEMORY_TOKENS - 2, (self._turn, row))}</mem>"
            action = CALL if self._turn < self.turns[row] else "<answer>Paris; Lima</answer>"
            ids = self._tokenizer.encode(f"{memory}<think>{text}</think>{action}")
            turns.append([*ids, self.eos_token_ids[0]])
        assert len(turns) == len(prompt_ids)
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


def turns_of(args: argparse.Namespace) -> list[int]:
    """Of each trajectory: all as many, or evenly from 2 up."""
    last = args.group - 1
    return [2 + round(row * (args.turns - 2) / last) if args.ragged else args.turns for row in range(args.group)]


def build_trainer(name: str, args: argparse.Namespace, updates: int) -> Any:
    """A trainer on one question, with trajectories of about `args.length` tokens."""
    # Besides its memory, a turn has one part of thoughts and action, and but for the last two parts of tool result.
    part = (args.length - args.prompt - MEMORY_TOKENS * (args.turns - 1)) // (3 * args.turns - 2)
    Library.characters = 2 * part
    prompts = [build_prompt(QUESTION + words(args.prompt - 4, row), SYSTEM_PROMPT) for row in range(4)]
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
        scored = {"context": name, "max_tool_length": 2 * args.length, "logps": args.logps}
        config, kind = MemPOConfig(**options, **scored), ReplayedMemPO
    trainer: Any = kind(
        build_model(args.shape), reward, config, dataset, processing_class=build_tokenizer(),
        environment_factory=LibraryEnvironment,
    )  # fmt: skip
    trainer.turns, trainer.characters, trainer.clock = turns_of(args), max(part - len(CALL), 1), CLOCKS[args.clock]
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


def print_own(args: argparse.Namespace) -> None:
    """What one trainer takes, as JSON."""
    trainer = build_trainer(args.only, args, args.updates[0])
    turns, characters, tokens = trainer.turns, trainer.characters, Library.characters
    trainer.turns, trainer.characters, Library.characters = [2] * args.group, 10, 20
    step(trainer)  # a warm-up, with the self-check
    trainer.turns, trainer.characters, Library.characters = turns, characters, tokens
    runs = [step(trainer) for _ in range(args.repeats)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    result = {
        "seconds": {phase: statistics.median(run[phase] for run in runs) for phase in runs[0]},
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if args.device == "cuda" else peak,
        "tokens": trainer.tokens,
    }
    print(json.dumps(result))


def measure(args: argparse.Namespace, updates: int) -> dict[str, Any]:
    """Seconds by phase, peak memory and ratios to GRPO, by trainer."""
    results: dict[str, Any] = {}
    for name in TRAINERS:
        command = [sys.executable, __file__, *sys.argv[1:], "--only", name, "--updates", str(updates)]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        results[name] = own = json.loads(output.splitlines()[-1])
        seconds, grpo = sum(own["seconds"].values()), results["grpo"]
        own["time"], own["memory"] = seconds / sum(grpo["seconds"].values()), own["peak_gib"] / grpo["peak_gib"]
        phases = ", ".join(f"{phase} {spent:.1f}" for phase, spent in sorted(own["seconds"].items()))
        print(f"{name:6} time x {own['time']:.3f}  memory x {own['memory']:.3f}  {phases}", flush=True)
    return results


# Operations of a step, counted: 2 for each weight and token, 4 x hidden size for each token and key that it sees.


def operations(rows: list[tuple[int, float, int]], shape: str) -> float:
    """Of one forward of rows, each with its tokens, the keys that they see in total, and the positions of the head."""
    hidden, layers, heads, key_value_heads, intermediate, vocabulary = SHAPES[shape]
    weights = hidden * (2 * hidden + 2 * hidden * key_value_heads // heads + 3 * intermediate)
    return sum(
        layers * (2 * weights * tokens + 4 * hidden * keys) + 2 * hidden * vocabulary * scored
        for tokens, keys, scored in rows
    )


def packed_rows(rows: list[PackedRow]) -> list[tuple[int, float, int]]:
    """The rows' tokens, keys and scored positions."""
    counted = []
    for row in rows:
        keys = sum(sum(map(len, context)) * len(own) + len(own) * (len(own) + 1) / 2 for context, own in row.segments)
        counted.append((len(row.ids), keys, len(row.places)))
    return counted


def count(args: argparse.Namespace) -> dict[str, float]:
    """Operations of a step with two updates over GRPO's: old log-probs, then 4 forwards for loss and backward.

    GRPO forwards padded rows, all of whose positions go through the head, as TRL's does without Triton.
    """
    part = (args.length - args.prompt - MEMORY_TOKENS * (args.turns - 1)) // (3 * args.turns - 2)
    completions, visible, contexts = [], {"full": [], "memory": []}, []
    for row, turns in enumerate(turns_of(args)):
        starts, length = [], 0
        for turn in range(turns):
            starts.append((length, length + part + (MEMORY_TOKENS if turn else 0)))
            length = starts[-1][1] + (2 * part if turn < turns - 1 else 0)
        completions.append(list(range(length)))
        for start, _ in starts[1:]:
            contexts += [AnswerContext(row, start, start + MEMORY_TOKENS), AnswerContext(row, 0, start)]
        for context, columns in visible.items():
            seen = [-1] * length
            for turn, (start, end) in enumerate(starts):
                first = 0 if context == "full" else starts[max(turn - 1, 0)][0]
                seen[start:end] = [first] * (end - start)
            columns.append(seen)
    prompts, answers = [[0] * args.prompt] * args.group, [[0] * 30] * args.group
    longest = args.prompt + max(map(len, completions))
    padded = operations([(longest, longest * (longest + 1) / 2, longest)] * args.group, args.shape)
    scoring = {
        name: operations(
            packed_rows(list(Trajectories(prompts, completions, answers, contexts, too).pack(10**9))), args.shape
        )
        for name, too in (("full", True), ("memory", False))
    }
    half = args.group // 2
    result = {}
    for context, seen in visible.items():
        halves = [pack_turns(prompts[h], completions[h], seen[h], 10**9) for h in (slice(half), slice(half, None))]
        loss = operations(packed_rows([row for rows in halves for row, _ in rows]), args.shape)
        whole = operations(packed_rows([row for row, _ in pack_turns(prompts, completions, seen, 10**9)]), args.shape)
        # In "full" context the pass that scores gives the old log-probs too.
        before = scoring(True) if context == "full" else scoring(False) + whole
        result[context] = (before + 4 * loss) / (5 * padded)
    return result


def print_counts(args: argparse.Namespace) -> None:
    """Ratios by number of turns, each turn as long as in `--length` tokens of `--turns`, and the plot."""
    per_turn = (args.length - args.prompt) // args.turns
    ratios: dict[int, dict[str, float]] = {}
    for turns in (2, 4, 6, 8, 12, 16):
        options = argparse.Namespace(**{**vars(args), "turns": turns, "length": args.prompt + turns * per_turn})
        ratios[turns] = count(options)
        print(
            f"{turns:2} turns, {options.length} tokens: "
            + ", ".join(f"{n} x {v:.2f}" for n, v in ratios[turns].items())
        )
    if args.plot:
        plot(ratios, args.plot)


def plot(ratios: dict[int, dict[str, float]], path: str) -> None:
    """Operations of a step over GRPO's, by number of turns."""
    import matplotlib.pyplot as plt

    from mempo_trl.report.plots import BLUE, GREEN, GREY, STYLE

    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
        axis.axhline(1, color=GREY, label="GRPO")
        for context, colour in (("full", BLUE), ("memory", GREEN)):
            axis.plot(list(ratios), [ratio[context] for ratio in ratios.values()], "o-", color=colour, label=context)
        axis.set_ylim(0)
        axis.set_xlabel("turns")
        axis.set_title("Operations of a training step, GRPO's = 1")
        axis.legend()
        figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="smollm2-135m")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--ragged", action="store_true", help="trajectories of 2 to --turns turns")
    parser.add_argument("--length", type=int, default=2400, help="tokens of the longest trajectory, at most")
    parser.add_argument("--prompt", type=int, default=400, help="tokens of the prompt")
    parser.add_argument("--group", type=int, default=8, help="trajectories of the question; even")
    parser.add_argument("--logps", choices=LOGPS, default="auto")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--updates", type=int, nargs="+", choices=[1, 2], default=[2, 1])
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: for a machine that has other work too")
    parser.add_argument("--count", action="store_true", help="count operations and run nothing")
    parser.add_argument("--plot", help="where to draw what --count counts, .svg or .png")
    parser.add_argument("--json", help="where to write the results")
    parser.add_argument("--only", choices=TRAINERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        return print_own(args)
    if args.count:
        return print_counts(args)

    results = {}
    for updates in args.updates:
        print(f"updates {updates}: seconds", flush=True)
        results[f"updates {updates}"] = measured = measure(args, updates)
        for name, bars in BARS["ragged" if args.ragged else "equal"].items():
            for what, bar in zip(("time", "memory"), bars, strict=True):
                value = measured[name][what]
                print(f"{name}: {what} {value:.3f} <= {bar}: {'holds' if value <= bar else 'FAILS'}", flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps({"options": vars(args), "results": results}, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
