"""A real model on a CPU: SmolLM2-135M, a cold start on FanOutQA, and 20 steps of MemPO and of GRPO.

    python benchmarks/real_model.py            # both, one after the other, unless their record is there; an hour each
    python benchmarks/real_model.py mempo      # one of them

Twenty steps of one question each show that a real model goes through all of it, and what its curves look like. They are
far too few to compare the two. The records are benchmarks/results/real/*.json; `ablations.py --report` shows them.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

from ablation_run import ROOT, commit, curves_of

RESULTS = ROOT / "benchmarks" / "results" / "real"
COLD_START = {"questions": 128, "steps": 32}
POLICY = Path("outputs/smollm2-cold-start-32")
ARMS = {"mempo": (), "grpo": ("--memory_weight", "0")}
OPTIONS = (
    *("--config", str(ROOT / "examples" / "configs" / "smollm2_fanoutqa_cpu.yaml")),
    *("--model_name_or_path", str(POLICY), "--max_steps", "20"),
    *("--eval_questions", "16", "--eval_every", "0"),
)
CURVES = {
    "reward": "reward",
    "entropy": "entropy",
    "p_mem": "memory/p_mem_mean",
    "p_baseline": "memory/p_baseline_mean",
    "memory_reward": "memory/reward_mean",
    "memory_length": "memory/length_mean",
    "memory_closed": "memory/closed_fraction",
    "turns": "rollout/turns",
    "total_tokens": "rollout/total_tokens",
    "peak_tokens": "rollout/peak_tokens",
    "step_time": "step_time",
}


def play(arm: str) -> dict:
    """Trains one arm with the example script. What comes back is what the JSON file holds."""
    output = Path("outputs") / f"smollm2-{arm}"
    command = [str(ROOT / "examples" / "train_mempo.py"), *OPTIONS, *ARMS[arm], "--output_dir", str(output)]
    began = time.monotonic()
    done = subprocess.run([sys.executable, *command], check=True, stdout=subprocess.PIPE, text=True)
    history = json.loads((output / "trainer_state.json").read_text())["log_history"]
    return {
        "arm": arm,
        "cold_start": COLD_START,
        "options": [*OPTIONS[2:], *ARMS[arm]],
        "commit": commit(),
        "seconds": round(time.monotonic() - began, 1),
        "curves": curves_of(history, CURVES),
        "evaluation": json.loads(done.stdout.splitlines()[-1]),
    }


def main() -> None:
    questions, steps = (str(COLD_START[name]) for name in ("questions", "steps"))
    script = str(ROOT / "examples" / "smollm2.py")
    options = ["--output_dir", str(POLICY), "--count", questions, "--max_steps", steps]
    subprocess.run([sys.executable, script, *options], check=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    for arm in sys.argv[1:] or ARMS:
        path = RESULTS / f"{arm}.json"
        if not path.exists():
            path.write_text(json.dumps(play(arm), separators=(",", ":")) + "\n")
            print(path, flush=True)


if __name__ == "__main__":
    main()
