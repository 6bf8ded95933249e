"""docs/results.md from the runs of `ablations.py`. Every number and verdict on the page is computed here."""

from dataclasses import asdict
from pathlib import Path

import ablation_figures
from ablation_answers import (
    IN_FULL,
    WITHOUT_A_BASELINE,
    contexts,
    headline,
    horizon,
    noise,
    options,
    section,
    sparse,
    variants,
)
from ablation_credit import credit_section
from ablation_labels import ARMS, BASELINES, THRESHOLDS, present
from ablation_memories import example_section, habits_section
from ablation_real import read, real_section
from ablation_run import Job
from ablation_scores import LAST, Cells, Run
from ablation_tables import table


def write(results: Path, page: Path, assets: Path) -> None:
    """Writes the page and draws its figures."""
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text(results, assets.relative_to(page.parent)), "utf-8")
    ablation_figures.draw(Cells.read(results), read(results), assets)


def text(results: Path, assets: Path) -> str:
    """The page."""
    cells = Cells.read(results)
    sections = [
        INTRODUCTION,
        _about(cells),
        credit_section(cells, assets),
        headline(cells, assets),
        contexts(cells, assets),
        variants(cells, "Which threshold?", THRESHOLDS, "mempo-full", f"{assets}/threshold.svg", IN_FULL),
        example_section(cells.get("mempo-full", [])),
        variants(cells, "Which baseline?", BASELINES, "mempo-memory", f"{assets}/baseline.svg", WITHOUT_A_BASELINE),
        sparse(cells, assets),
        horizon(cells, assets),
        noise(cells, assets),
        options(cells, assets),
        habits_section(cells, present(cells, ARMS | THRESHOLDS | ARMS), assets),
        real_section(read(results), assets),
        _runs(cells),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


INTRODUCTION = f"""\
# Results

This page measures what each choice of MemPO is worth in the embedded world (`mempo_trl.tasks.world.world`).
`benchmarks/ablations.py` writes it from the JSON files in `benchmarks/results/`, one for each run, and a test checks
that the page agrees with them.

```bash
python benchmarks/ablations.py           # plays the runs that are missing
python benchmarks/ablations.py --report  # writes this page
```

## How to read it

| Term | Meaning |
|---|---|
| EM | share of held-out questions with every objective right, sampled at the temperature of the training |
| F1 | mean F1 over objectives |
| fidelity | share of gold answers that the last memory contains, in `memory` context |
| `full` | tested with the whole history in view |
| `memory` | tested with only the prompt, the previous turn and its search result in view |
| a score | the mean of the last {LAST} tests of a run, a few steps apart |
| [brackets] after a score | 95 % bootstrap interval over seeds, left out where both ends would read the same |
| [brackets] after a difference | 95 % interval of Student's t, on differences between runs with the same seed |
| **bold** difference | the interval excludes 0, so the text calls it higher or lower |

Keep three limits in mind. The bootstrap intervals are too narrow, because there are only 3 to 5 seeds. With this many
comparisons, about 5 % are significant by chance. And all runs are tested on the same questions, so no interval covers
what other questions would give. Three seeds show only large differences: "does not differ clearly" does not mean that
there is no difference."""


def _about(cells: Cells) -> str:
    run = next(iter(cells[name][0] for name in [*ARMS, *cells] if name in cells))
    job, tested = run["job"], " and ".join(map(str, run["job"]["tests"]))
    return (
        "All runs start from the packaged model. It has 100K parameters, and learned from scripted traces of 1 to 10 "
        "objectives whose memories forget or misread facts at known rates, so there is something left to learn. Unless "
        f"a section says otherwise, a run trains for {run['config']['max_steps']} steps on questions of "
        f"{job['objectives']} objectives with the options of `examples/configs/world.yaml`, and is tested on "
        f"{job['questions']} questions of {tested} objectives. Half of the objectives take two searches. Runs with the "
        "same seed train on the same questions."
    )


def _runs(cells: Cells) -> str:
    usual = asdict(Job("", 0))

    def differs(job: dict) -> str:
        told = {name: value for name, value in job.items() if name not in ("cell", "seed", "options")}
        changed = {name: v for name, v in told.items() if (tuple(v) if isinstance(v, list) else v) != usual[name]}
        return ", ".join(f"`{name}` {value}" for name, value in (job["options"] | changed).items())

    def commit(run: Run) -> str:
        sha, _, dirty = run["commit"].partition("-")
        return f"`{sha[:7]}{'-' * bool(dirty)}{dirty}`"

    rows = [
        [
            f"`{name}`",
            differs(runs[0]["job"]),
            ", ".join(str(run["job"]["seed"]) for run in runs),
            ", ".join(sorted({commit(run) for run in runs})),
        ]
        for name, runs in cells.items()
    ]
    return section("Every run", table(["cell", "differs from the usual run in", "seeds", "commits"], rows))
