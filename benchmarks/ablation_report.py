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

What each choice of MemPO is worth in the embedded world (`mempo_trl.tasks.world.world`). This page is written by
`benchmarks/ablations.py` from the JSON files in `benchmarks/results/`, one for each run; a test holds it to them.

```bash
python benchmarks/ablations.py           # plays the runs that are missing
python benchmarks/ablations.py --report  # writes this page
```

**How to read it.** EM is the share of held-out questions with every objective right, sampled at the temperature of the
training. F1 is the mean over objectives. Both are tested with the whole history in view (`full`), and with the prompt,
the turn before and its search result alone (`memory`). Fidelity is the share of gold answers in the last memory, in
`memory` context. A score is the mean of a run's last {LAST} tests: the same questions and sampling seed, a few steps
apart at a small learning rate, so hardly more than one.

Brackets after a score hold the 95 % bootstrap interval over seeds; of 3 to 5 seeds it is too narrow. There are none
where both ends read alike. A difference is taken seed by seed, and its brackets hold Student's 95 % interval. It is
called higher or lower where that leaves out 0; of so many, one in twenty would be so by chance. All runs are tested on
the same questions, and no interval says what other questions would give. With 3 seeds only large differences show: no
clear difference does not mean none."""


def _about(cells: Cells) -> str:
    run = next(iter(cells[name][0] for name in [*ARMS, *cells] if name in cells))
    job, tested = run["job"], " and ".join(map(str, run["job"]["tests"]))
    return (
        "All runs start from the model that the package ships: 100K parameters, after a cold start on scripted traces "
        "of 1 to 10 objectives, whose memories forget or misread facts at known rates, so that there is something to "
        f"learn. It is trained for {run['config']['max_steps']} steps on questions of "
        f"{job['objectives']} objectives, with the options of `examples/configs/world.yaml` but those of the row, and "
        f"tested on {job['questions']} questions of {tested} objectives, if nothing else is said. Half of the "
        "objectives take two searches. Runs of one seed are trained on the same questions."
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
    return section("Every run", table(["cell", "differs in", "seeds", "commits"], rows))
