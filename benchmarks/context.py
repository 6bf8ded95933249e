"""What a training step costs in `context="memory"` over `"full"`, on the same turns.

    python benchmarks/context.py                                  # SmolLM2-135M's shape, 6 turns, about 2,000 tokens
    python benchmarks/context.py --shape tiny --length 400        # near the embedded world's size
    python benchmarks/context.py --device cuda --dtype bfloat16 --shape qwen2.5-0.5b --length 8800 --turns 16

Turns are replayed (see `step.py`), so the two trainers play the same episodes. Seconds are those of the loss and its
backward, medians over the repeats; tokens are those of the training forwards, padding left out; peak memory is measured
in a process of its own for each context. `--tools` times 64 tool calls of 50 ms made in one turn.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

import torch

from mempo_trl.rollout.tools import ToolResult, run_concurrently
from mempo_trl.types import CONTEXTS
from scoring import SHAPES
from step import CLOCKS, build_trainer, step


def trainer_in(context: str, args: argparse.Namespace) -> Any:
    """A trainer with replayed turns, one update for each generation."""
    trainer = build_trainer("shared", args, updates=1)
    trainer.args.context = context
    return trainer


def peak_gib(context: str, args: argparse.Namespace) -> float:
    """Peak memory of two steps, in a process of its own."""
    command = [sys.executable, __file__, *sys.argv[1:], "--only", context]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def print_own_peak(args: argparse.Namespace) -> None:
    trainer = trainer_in(args.only, args)
    for _ in range(2):
        step(trainer)
    on_gpu = args.device == "cuda"
    peak = (
        torch.cuda.max_memory_allocated() / 2**30
        if on_gpu
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    )
    print(peak)


def print_tools() -> None:
    def call() -> ToolResult:
        time.sleep(0.05)
        return ToolResult("")

    start = time.perf_counter()
    run_concurrently([call] * 64)
    print(f"64 tool calls of 50 ms in one turn: {time.perf_counter() - start:.3f} s (bar: 0.3)")


def print_ratio(name: str, values: dict[str, float]) -> None:
    full, memory = values["full"], values["memory"]
    print(f"{name}: full {full:.2f}, memory {memory:.2f}, memory over full x {memory / full:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="smollm2-135m")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--length", type=int, default=2000, help="tokens of a trajectory, at most")
    parser.add_argument("--group", type=int, default=2, help="trajectories of the question; even")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: for a machine that has other work too")
    parser.add_argument("--tools", action="store_true", help="only time the tools")
    parser.add_argument("--only", choices=CONTEXTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        return print_own_peak(args)
    print_tools()
    if args.tools:
        return None

    # First: this process is small yet.
    print_ratio("peak GiB", {context: peak_gib(context, args) for context in CONTEXTS})
    trainers = {context: trainer_in(context, args) for context in CONTEXTS}
    seconds: dict[str, list[float]] = {context: [] for context in CONTEXTS}
    for repeat in range(args.repeats + 1):
        for context, trainer in trainers.items():
            phases = step(trainer)
            if repeat:  # the first is a warm-up
                seconds[context].append(phases["loss and backward"])
    tokens = {c: sum(t._metrics["train"]["step/tokens_forwarded"][-2:]) for c, t in trainers.items()}
    print_ratio("tokens forwarded", tokens)
    print_ratio("seconds", {context: statistics.median(values) for context, values in seconds.items()})
    return None


if __name__ == "__main__":
    main()
