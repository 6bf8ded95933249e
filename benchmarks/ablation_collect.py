"""Takes in what `examples/train_mempo.py` left behind in the embedded world, in the form of a run of `ablations.py`.

    python examples/train_mempo.py --context full --memory_weight 0 --seed 1 --output_dir outputs/grpo-full-1
    python benchmarks/ablation_collect.py outputs/grpo-full-1

The folders hold `trainer_state.json`, `training_args.bin` and `traces.jsonl`. The files go to benchmarks/results/main/.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from ablation_run import CURVES, OF_THE_SCRIPT, ROOT, WORLD, Job, curves_of
from ablation_world import examples, lost
from mempo_trl.context import CONTEXTS
from mempo_trl.report.traces import read_traces

METRICS = ("em", "f1", "memory_fidelity", "total_tokens", "peak_tokens")
FOLDER = ROOT / "benchmarks" / "results" / "main"


def collect(output: Path) -> tuple[Job, dict[str, Any]]:
    """The run, with the tests of its log."""
    args = torch.load(output / "training_args.bin", weights_only=False)  # a MemPOConfig: only open what you have made
    state = output / "trainer_state.json"
    history = json.loads(state.read_text())["log_history"]
    options = {"context": args.context, "memory_weight": args.memory_weight}
    cell = f"{'mempo' if args.memory_weight else 'grpo'}-{args.context}"
    job = Job(cell, args.seed, options, tests=(4,), cold_start=(4,))
    traces = [trace for trace in read_traces(output / "traces.jsonl") if trace["step"] is not None]
    first = min(trace["step"] for trace in traces)
    found = [example for trace in traces if trace["step"] == first for example in examples(trace)]
    before_it = ["git", "rev-list", "-1", f"--before={int(state.stat().st_mtime)}", "HEAD"]
    commit = subprocess.run(before_it, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    tests = [
        {"step": entry["step"], "objectives": job.objectives, "context": context}
        | {metric: round(entry[f"eval/{context}/{metric}"], 4) for metric in METRICS}
        for entry in history
        for context in CONTEXTS
        if f"eval/{context}/em" in entry
    ]
    names = [line.split(":")[0] for line in WORLD.read_text().splitlines() if line[:1].isalpha()]
    config = {name: getattr(args, name) for name in sorted({*names, *options} - {*OF_THE_SCRIPT, "output_dir"})}
    return job, {
        "job": vars(job),
        "config": config,
        "commit": commit,
        "curves": curves_of(history, CURVES),
        "tests": tests,
        "example": max(found, key=lost, default={}),
    }


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for folder in map(Path, sys.argv[1:]):
        job, run = collect(folder)
        job.path(FOLDER).write_text(json.dumps(run, separators=(",", ":")) + "\n")
        print(job.path(FOLDER))
