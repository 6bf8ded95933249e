"""The part of docs/results.md on a real model: the records of `real_model.py`."""

import math
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ablation_scores import read_result
from ablation_tables import table

ARMS = {"mempo": "MemPO", "grpo": "GRPO"}
MEANS = {
    "all_correct": ("EM", ".2f"),
    "f1": ("F1", ".2f"),
    "memory_fidelity": ("fidelity", ".2f"),
    "total_tokens": ("tokens", ".0f"),
    "peak_tokens": ("peak tokens", ".0f"),
}
TITLES = {"reward": "Reward", "p_mem": "P(answer | memory)", "p_baseline": "P(answer | history)"}


def read(results: Path) -> dict[str, dict[str, Any]]:
    """The records by arm, in the folder `real` of the results."""
    paths = {arm: results / "real" / f"{arm}.json" for arm in ARMS}
    return {arm: read_result(path) for arm, path in paths.items() if path.exists()}


def real_section(records: dict[str, dict[str, Any]], assets: Path) -> str:
    if not records:
        return ""
    first = next(iter(records.values()))
    steps, cold = len(first["curves"]["reward"]), first["cold_start"]
    tested = first["options"][first["options"].index("--eval_questions") + 1]
    minutes = ", ".join(f"{record['seconds'] / 60:.0f} minutes for {ARMS[arm]}" for arm, record in records.items())
    rows = [
        [ARMS[arm], when, f"`{context}`", *(f"{means[name]:{form}}" for name, (_, form) in MEANS.items())]
        for arm, record in records.items()
        for when, by_context in record["evaluation"].items()
        for context, means in by_context.items()
    ]
    about = (
        "**A real model and real text run through every part of the package.** This is SmolLM2-135M-Instruct on "
        f"questions of FanOutQA, on a CPU. It is not a comparison: {steps} steps of one question each teach the model "
        "hardly anything."
    )
    how = (
        f"The cold start has {cold['steps']} updates on {cold['questions']} questions and follows the decompositions "
        "that the data set contains. `python benchmarks/real_model.py` then trains with the options of "
        f"`examples/configs/smollm2_fanoutqa_cpu.yaml`, which took {minutes} with its tests. It tests on {tested} "
        "questions that it does not train on. Both the cold start and the training use `full` context, so in `memory` "
        "context the model has not learned to answer. Tokens are summed over all turns and include their contexts; "
        "peak tokens are those of the longest context."
    )
    return "\n\n".join(
        [
            "## A real model",
            about,
            f"![Curves of SmolLM2-135M]({assets}/real.svg)",
            how,
            table(["", "training", "context", *(title for title, _ in MEANS.values())], rows),
        ]
    )


def real_figure(figure: Figure, panels: Any, records: dict[str, dict[str, Any]], colours: dict[str, str]) -> Figure:
    """Curves of training by step."""
    for axis, (name, title) in zip(panels, TITLES.items(), strict=True):
        for arm, record in records.items():
            values = [math.nan if value is None else value for value in record["curves"].get(name, [])]
            axis.plot(range(1, len(values) + 1), values, color=colours[arm], label=ARMS[arm])
        axis.set_title(title)
        axis.set_xlabel("step")
        axis.set_xticks(range(0, len(values) + 1, 5))
        axis.set_ylim(-0.03, 1.03)
    panels[0].legend(fontsize=10)
    return figure
