"""docs/results.md from the runs of `ablations.py`. Every number and verdict on the page is computed here."""

from pathlib import Path
from statistics import fmean

import ablation_figures
from ablation_memories import example_section, habits_section
from ablation_real import read, real_section
from ablation_scores import LAST, Cells, Run, before
from ablation_tables import Pair, change, compared, differences_table, present, scores_table, sentence, table
from mempo_trl.context import CONTEXTS

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
SPARSE = {"six-grpo": "GRPO", "six-mempo": "MemPO"}
HORIZON = {f"few-{name}": label for name, label in LABELS.items()}
NOISE = {
    "grpo-full": "0 %, GRPO",
    "mempo-full": "0 %, MemPO",
    "noise-10-grpo": "10 %, GRPO",
    "noise-10-mempo": "10 %, MemPO",
    "noise-30-grpo": "30 %, GRPO",
    "noise-30-mempo": "30 %, MemPO",
}
OPTIONS = {
    "mempo-full": "default",
    "weight-0.3": "`memory_weight` 0.3",
    "pool-turn": "`memory_pool` `turn`",
    "floor-0.1": "`memory_std_floor` 0.1",
    "temperature-0.7": "`temperature` 0.7",
    "beta-0.001": "`beta` 0.001",
    "paid-right": "no memory reward where the answer is wrong",
    "paid-short": "no memory reward over 14 tokens",
}
TESTED = ("memory", "full")  # what an agent will see comes first


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
        _headline(cells, assets),
        _contexts(cells, assets),
        _variants(cells, "Which threshold?", THRESHOLDS, "mempo-full", f"{assets}/threshold.svg"),
        example_section(cells.get("mempo-full", [])),
        _variants(cells, "Which baseline?", BASELINES, "mempo-memory", f"{assets}/baseline.svg"),
        _horizon(cells, assets),
        _noise(cells, assets),
        _options(cells, assets),
        habits_section(cells, present(cells, LABELS | THRESHOLDS), assets),
        real_section(read(results), assets),
        _runs(cells),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


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


def _about(cells: Cells) -> str:
    names = list(present(cells, LABELS) or cells)
    run, few = cells[names[0]][0], cells.objectives(names)
    tested = " and ".join(map(str, few))
    full, memory = (before((run for name in names for run in cells[name]), context, few[0]) for context in CONTEXTS)
    return f"""\
## The runs

All start from the model that the package ships: 100K parameters, after a cold start on careless traces of 1 to 10
objectives. It is trained for {run["config"]["max_steps"]} steps on questions of {run["job"]["objectives"]} objectives, with the
options of `examples/configs/world.yaml` but those of the row, and tested on {run["job"]["questions"]} questions of {tested}
objectives, if nothing else is said. Half of the objectives take two searches. Runs of one seed share the questions.

Before training, EM at {few[0]} objectives is {full:.2f} in `full` and {memory:.2f} in `memory` context."""  # noqa: E501


def _section(title: str, *parts: str) -> str:
    return "\n\n".join([f"### {title}", *parts])


def _pairs(cells: Cells, *pairs: Pair) -> list[Pair]:
    return [pair for pair in pairs if {*pair[1:]} <= cells.keys()]


def _headline(cells: Cells, assets: Path) -> str:
    labels = present(cells, LABELS)
    pairs = _pairs(cells, *((f"trained in `{t}`", f"mempo-{t}", f"grpo-{t}") for t in CONTEXTS))
    if not pairs:
        return ""
    said = [
        f"At {k} objectives, MemPO against GRPO, tested in `memory` context: {compared(cells, pairs, 'memory', k)}."
        for k in cells.objectives(labels)
    ]
    return _section(
        "Does MemPO beat GRPO?",
        " ".join(said),
        f"![Exact match of each seed]({assets}/headline.svg)",
        scores_table(cells, labels),
        "MemPO minus GRPO, by seed:",
        differences_table(cells, pairs),
    )


def _contexts(cells: Cells, assets: Path) -> str:
    pairs = _pairs(cells, ("GRPO", "grpo-memory", "grpo-full"), ("MemPO", "mempo-memory", "mempo-full"))
    if not pairs:
        return ""
    said = [
        f"Tested in `memory` context at {k} objectives, trained in it against trained in `full`: "
        f"{compared(cells, pairs, 'memory', k)}."
        for k in cells.objectives([cell for _, *pair in pairs for cell in pair])
    ]
    return _section(
        "Is training in memory context worth it?",
        " ".join(said),
        f"![Exact match and fidelity by step]({assets}/curves.svg)",
        "Trained in `memory` minus in `full`, by seed:",
        differences_table(cells, pairs),
    )


def _variants(cells: Cells, title: str, labels: dict[str, str], default: str, figure: str) -> str:
    """One option's values against its default."""
    labels = present(cells, labels)
    if default not in labels or len(labels) < 2:
        return ""
    k = cells.objectives(labels)[0]
    pairs = [(label, name, default) for name, label in labels.items() if name != default]
    said = [
        f"Tested in `{context}` context at {k} objectives, against {labels[default]}: "
        f"{compared(cells, pairs, context, k)}."
        for context in TESTED
    ]
    trained = f"All are trained in `{cells[default][0]['config']['context']}` context."
    return _section(title, " ".join(said), f"![{title}]({figure})", trained, scores_table(cells, labels))


def _horizon(cells: Cells, assets: Path) -> str:
    sparse, labels = present(cells, SPARSE), present(cells, HORIZON)
    if len(sparse) < len(SPARSE) or len(labels) < len(HORIZON):
        return ""
    pairs = [(f"trained in `{t}`", f"few-mempo-{t}", f"few-grpo-{t}") for t in CONTEXTS]
    most = cells.objectives(labels)[-1]
    start = before((run for name in sparse for run in cells[name]), "memory", 6)
    return _section(
        "What does a longer horizon change?",
        f"Trained and tested on 6 objectives in `memory` context, where EM is {start:.2f} before training, MemPO "
        f"against GRPO: {sentence(cells, 'six-mempo', 'six-grpo', 'memory', 6)}. Trained on 2 to 4 objectives and "
        f"tested on {most} in `memory` context, MemPO against GRPO: {compared(cells, pairs, 'memory', most)}.",
        f"![Exact match and F1 by objectives]({assets}/horizon.svg)",
        "Trained on 2 to 4 objectives, an equal share of each, and tested on "
        f"{cells[pairs[0][1]][0]['job']['questions']} questions of each number, in `memory` context:",
        scores_table(cells, labels, ("memory",)),
        "Trained on 6 objectives in `memory` context:",
        scores_table(cells, sparse),
    )


def _noise(cells: Cells, assets: Path) -> str:
    labels = present(cells, NOISE)
    if len(labels) < 3:
        return ""
    k, said = cells.objectives(labels)[0], []
    for rate in ("10", "30"):
        for _, *pair in _pairs(cells, ("", f"noise-{rate}-mempo", f"noise-{rate}-grpo")):
            tests = "; ".join(f"tested in `{context}`, {sentence(cells, *pair, context, k)}" for context in TESTED)
            said.append(f"At {rate} % noise and {k} objectives, MemPO against GRPO: {tests}.")
    return _section(
        "What does a noisy tool change?",
        " ".join(said),
        f"![What does a noisy tool change?]({assets}/noise.svg)",
        "A share of the searches misleads, in training and in the tests: half of these show a wrong city for the "
        "person that was asked for, half show other people only. All are trained in `full` context.",
        scores_table(cells, labels),
    )


def _options(cells: Cells, assets: Path) -> str:
    labels, default = present(cells, OPTIONS), "mempo-full"
    others = [name for name in labels if name != default]
    if default not in labels or not others:
        return ""
    k = cells.objectives(labels)[0]
    found = {(name, c): change(cells, name, default, c, k)[1].verdict for name in others for c in TESTED}
    same = [labels[name] for name in others if {found[name, c] for c in TESTED} == {"not clearly different"}]
    moved = [
        f"{labels[name]}, in `{context}` context {sentence(cells, name, default, context, k)}"
        for (name, context), verdict in found.items()
        if verdict != "not clearly different"
    ]
    return _section(
        "What did not matter?",
        f"Not clearly different from the default in either context at {k} objectives: {', '.join(same) or 'nothing'}. "
        f"The others: {'; '.join(moved) or 'none'}.",
        f"![What did not matter?]({assets}/options.svg)",
        "One option at a time, trained in `full` context. The default is weight 1, pool `group`, floor 0.01, "
        "temperature 1, beta 0, and a reward for every memory. Tests sample at temperature 1 in all rows. "
        f"{_floor(cells[default])}",
        scores_table(cells, labels),
    )


def _floor(runs: list[Run]) -> str:
    under = fmean(share for run in runs for share in run["curves"]["pools_under_floor"])
    same = ", so a floor of 0 gives the same runs" if under == 0 else ""
    return f"The floor of the default held back {under:.1%} of its pools{same}."


def _runs(cells: Cells) -> str:
    def fields(run: dict) -> str:
        job = run["job"]
        told = job["options"] | {name: job[name] for name in ("noise", "paid", "objectives") if name in job}
        usual = {"noise": 0.0, "paid": "all", "objectives": 4}
        return ", ".join(f"`{name}` {value}" for name, value in told.items() if usual.get(name, ...) != value)

    rows = [
        [
            f"`{name}`",
            fields(runs[0]),
            ", ".join(str(run["job"]["seed"]) for run in runs),
            ", ".join(sorted({f"`{run['commit'][:7]}`" for run in runs})),
        ]
        for name, runs in cells.items()
    ]
    return _section("Every run", table(["cell", "differs in", "seeds", "commits"], rows))
