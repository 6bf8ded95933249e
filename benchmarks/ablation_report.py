"""docs/results.md from the runs of `ablations.py`. Every number and verdict on the page is computed here."""

import math
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import ablation_figures
from ablation_scores import LAST, Cells, before, example_of
from ablation_tables import differences_table, present, scores_table, sentence, table
from mempo_trl.context import CONTEXTS
from mempo_trl.memory.rewards import score_memories

LABELS = {
    "grpo-full": "GRPO, trained in `full`",
    "mempo-full": "MemPO, trained in `full`",
    "grpo-memory": "GRPO, trained in `memory`",
    "mempo-memory": "MemPO, trained in `memory`",
}
THRESHOLDS = {
    "threshold-none": "no threshold (the paper's formula)",
    "mempo-full": "`either`",
    "threshold-independent": "`independent` (the published code)",
    "threshold-both": "`both`",
}
BASELINES = {"mempo-memory": "`history`", "baseline-visible": "`visible`", "baseline-none": "`none`"}
NOISE = {
    "grpo-full": "0 %, GRPO",
    "mempo-full": "0 %, MemPO",
    "noise-10-grpo": "10 %, GRPO",
    "noise-10-mempo": "10 %, MemPO",
    "noise-30-grpo": "30 %, GRPO",
    "noise-30-mempo": "30 %, MemPO",
}
OPTIONS = {
    "mempo-full": "default: weight 1, pool `group`, floor 0.01, temperature 1, beta 0",
    "weight-0.3": "`memory_weight` 0.3",
    "pool-turn": "`memory_pool` `turn`",
    "floor-0": "`memory_std_floor` 0",
    "floor-0.1": "`memory_std_floor` 0.1",
    "temperature-0.7": "`temperature` 0.7",
    "beta-0.001": "`beta` 0.001",
}


def write(results: Path, page: Path, assets: Path) -> None:
    """Writes the page and draws its figures."""
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text(results, assets.relative_to(page.parent)), "utf-8")
    ablation_figures.draw(Cells.read(results), assets)


def text(results: Path, assets: Path) -> str:
    """The page."""
    return "\n\n".join(section for section in [INTRODUCTION, *_grid(Cells.read(results), assets)] if section) + "\n"


INTRODUCTION = f"""\
# Results

What each choice of MemPO is worth in the embedded world (`mempo_trl.search.world`). This page is written by
`benchmarks/ablations.py` from the JSON files in `benchmarks/results/`, one for each run; a test holds it to them.

```bash
python benchmarks/ablations.py           # plays the runs that are missing
python benchmarks/ablations.py --report  # writes this page
```

**How to read it.** EM is the share of held-out questions with every objective right, sampled at temperature 1, with the
whole history (`full`) or the last turn alone (`memory`) in view. F1 is the mean over objectives. Fidelity is the share
of gold answers in the last memory, in `memory` context. A score is the mean of a run's last {LAST} tests. Brackets hold
the 95 % bootstrap interval over seeds; with 2 to 5 seeds it is too narrow. A difference is taken seed by seed. It is
called higher or lower where there are 3 seeds or more and its interval leaves out 0, and open where there are fewer."""


def _grid(cells: Cells, assets: Path) -> list[str]:
    """Runs of `ablations.py`."""
    job, config = (next(iter(cells.values()))[0][name] for name in ("job", "config"))
    tested = " and ".join(map(str, cells.objectives()))
    about = f"""\
## The runs

All start from the model that the package ships: 100K parameters, after a cold start on careless traces of 1 to 10
objectives. It is trained for {config["max_steps"]} steps on questions of {job["objectives"]} objectives, with the
options of `examples/configs/world.yaml` but those of the row, and tested on {job["questions"]} questions of {tested}
objectives. Half of the objectives take two searches. Runs of one seed share the questions."""
    return [
        about,
        _start(cells),
        _headline(cells, assets),
        _contexts(cells),
        _variants(cells, "Which threshold?", THRESHOLDS, "mempo-full", assets, "threshold"),
        _example(cells),
        _variants(cells, "Which baseline?", BASELINES, "mempo-memory"),
        _noise(cells),
        _variants(cells, "What else matters?", OPTIONS, "mempo-full"),
        _habits(cells),
        _runs(cells),
    ]


def _start(cells: Cells) -> str:
    runs = [run for runs in cells.values() for run in runs if not run["job"]["noise"]]
    few = cells.objectives()[0]
    full, memory = (before(runs, context, few) for context in CONTEXTS)
    return f"Before training, EM at {few} objectives is {full:.2f} in `full` and {memory:.2f} in `memory` context."


def _headline(cells: Cells, assets: Path) -> str:
    labels = present(cells, LABELS)
    if not labels:
        return ""
    parts = ["### Does MemPO beat GRPO?"]
    pairs = [
        (f"mempo-{trained}", f"grpo-{trained}", trained)
        for trained in CONTEXTS
        if {f"mempo-{trained}", f"grpo-{trained}"} <= labels.keys()
    ]
    for cell, other, trained in pairs:
        for k in cells.objectives():
            said = [f"{sentence(cells, cell, other, tested, k)} in `{tested}` context" for tested in CONTEXTS]
            parts.append(f"Trained in `{trained}`, at {k} objectives, MemPO against GRPO: {', '.join(said)}.")
    parts.append(f"![Exact match of each seed]({assets}/headline.svg)")
    parts.append(scores_table(cells, labels))
    if pairs:
        parts.append("MemPO minus GRPO, by seed:")
        parts.append(differences_table(cells, [(f"trained in `{t}`", a, b) for a, b, t in pairs]))
    parts.append(f"![Exact match and fidelity by step]({assets}/curves.svg)")
    return "\n\n".join(parts)


def _contexts(cells: Cells) -> str:
    pairs = [
        (arm, f"{name}-memory", f"{name}-full")
        for arm, name in (("GRPO", "grpo"), ("MemPO", "mempo"))
        if {f"{name}-memory", f"{name}-full"} <= cells.keys()
    ]
    if not pairs:
        return ""
    said = [
        f"- {arm}, tested in `memory` context at {k} objectives, trained there against trained in `full`: "
        f"{sentence(cells, cell, other, 'memory', k)}."
        for arm, cell, other in pairs
        for k in cells.objectives()
    ]
    rows = differences_table(cells, pairs)
    return "\n\n".join(
        ["### Is training in `memory` context worth it?", "\n".join(said), "Trained in `memory` minus in `full`:", rows]
    )


def _variants(
    cells: Cells, title: str, labels: dict[str, str], default: str, assets: Path | None = None, figure: str = ""
) -> str:
    """One option at a time: sentences against the default, and a table."""
    labels = present(cells, labels)
    if default not in labels or len(labels) < 2:
        return ""
    k = cells.objectives()[0]
    said = [
        f"- {label}: in `memory` context {sentence(cells, name, default, 'memory', k)}, in `full` "
        f"{sentence(cells, name, default, 'full', k)}"
        for name, label in labels.items()
        if name != default
    ]
    trained = cells[default][0]["config"]["context"]
    first = f"All are trained in `{trained}` context. Against {labels[default]}, at {k} objectives:"
    picture = [f"![{title}]({assets}/{figure}.svg)"] if figure else []
    return "\n\n".join([f"### {title}", first, "\n".join(said), *picture, scores_table(cells, labels)])


def _noise(cells: Cells) -> str:
    labels = present(cells, NOISE)
    if len(labels) < 3:
        return ""
    said = []
    for rate in ("10", "30"):
        if {f"noise-{rate}-mempo", f"noise-{rate}-grpo"} <= labels.keys():
            pair = f"noise-{rate}-mempo", f"noise-{rate}-grpo"
            tests = [f"{sentence(cells, *pair, context, cells.objectives()[0])} in `{context}`" for context in CONTEXTS]
            said.append(f"At {rate} %, MemPO against GRPO: {', '.join(tests)} context.")
    about = (
        "A share of the searches misleads, in training and in the tests: half of these show a wrong city for the "
        "person that was asked for, half show other people only. All are trained in `full` context."
    )
    return "\n\n".join(["### What does a noisy tool change?", about, " ".join(said), scores_table(cells, labels)])


def _habits(cells: Cells) -> str:
    labels = {**present(cells, LABELS), **present(cells, THRESHOLDS)}
    names, k = ("copies", "guesses", "grows"), cells.objectives()[0]
    rows = []
    for name, label in labels.items():
        shares = [fmean(cells.scores(name, "memory", k, habit).values()) for habit in names]
        lengths = [
            fmean(fmean(values) for run in cells[name] if (values := run["curves"].get("memory_length", [])[part]))
            for part in (slice(0, 3), slice(-3, None))
        ]
        rows.append([label, *(f"{s:.3f}" for s in shares), *(f"{length:.1f}" for length in lengths)])
    about = (
        "A memory reward could be won by memories that copy the question, guess answers or grow. Shares of the "
        f"memories in `memory` context at {k} objectives, after training: those that name a person of the question "
        "whom no search has found, that hold a city which no search has shown, and that have more notes than there "
        "were searches. Length is in "
        "tokens, over the memories of the first and the last 3 steps of training."
    )
    head = ["", "copies", "guesses", "grows", "length, first", "length, last"]
    return "\n\n".join(["### Do memories cheat?", about, table(head, rows)])


def _example(cells: Cells) -> str:
    """What each rule says about one memory that lost a fact."""
    example = example_of(cells.get("mempo-full", []))
    if example is None:
        return ""
    rows = [[f"`{t}`", *(f"{math.exp(p):.3f}" for p in (full, mem))] for t, mem, full in example["tokens"]]
    about = (
        f"From step {example['step']} of a MemPO run, trained in `full` context. The question is "
        f'"{example["question"]}" The gold answers are {", ".join(example["answers"])}. So far the searches showed:'
    )
    return "\n\n".join(
        [
            "### The published threshold, on one memory",
            about,
            "\n".join("- " + " ".join(result.split()) for result in example["tool_results"]),
            f"The model then wrote `{example['memory']}`. How likely each token of the gold answers is:",
            table(["token", "given the history", "given the memory"], rows),
            "A token is known where its probability is above 0.5. What follows from that:",
            table(["rule", "P(history)", "P(memory)", "memory reward"], _rules(example)),
            "Under `independent` and `both`, a fact that only the history knows is left out of P(memory), so losing it "
            "costs nothing. `either` keeps it in both.",
        ]
    )


def _rules(example: dict[str, Any]) -> list[list[str]]:
    mem, full = (torch.tensor([[token[i] for token in example["tokens"]]]) for i in (1, 2))
    rules = {"no threshold": (None, "either"), **{f"`{m}`": (0.5, m) for m in ("either", "independent", "both")}}
    rows = []
    for label, (threshold, mode) in rules.items():
        score = score_memories(full, mem, torch.ones_like(mem), threshold, mode)
        numbers = (score.p_full.item(), score.p_mem.item(), score.reward.item())
        rows.append([label, *(f"{n:.3f}" for n in numbers[:2]), f"{numbers[2]:+.3f}"])
    return rows


def _runs(cells: Cells) -> str:
    rows = [
        [
            f"`{name}`",
            ", ".join(f"`{k}` {v}" for k, v in runs[0]["job"]["options"].items()) or "-",
            f"{runs[0]['job']['noise']:.0%}",
            ", ".join(str(run["job"]["seed"]) for run in runs),
            ", ".join(sorted({f"`{run['commit'][:7]}`" for run in runs})),
        ]
        for name, runs in cells.items()
    ]
    head = ["cell", "options", "noise", "seeds", "commits"]
    return "\n\n".join(["### Every run", table(head, rows)])
