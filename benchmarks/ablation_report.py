"""docs/results.md from the runs of `ablations.py`. Every number and verdict on the page is computed here."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

import ablation_figures
from ablation_labels import ARMS, BASELINES, HORIZON, NOISE, OPTIONS, SPARSE, START, THRESHOLDS, Labels, present
from ablation_memories import example_section, habits_section
from ablation_real import read, real_section
from ablation_run import Job
from ablation_scores import LAST, SAME, Cells, Run, curve, final
from ablation_tables import Pair, change, compared, differences_table, scores_table, sentence, table
from ablation_trainer import SHORT
from mempo_trl.context import CONTEXTS

TESTED = ("memory", "full")  # what an agent will see comes first
EARLY = 20  # a step that is tested
IN_FULL = "All are trained in `full` context, where the memory advantage changes most."


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
        _variants(cells, "Which threshold?", THRESHOLDS, "mempo-full", f"{assets}/threshold.svg", IN_FULL),
        example_section(cells.get("mempo-full", [])),
        _variants(cells, "Which baseline?", BASELINES, "mempo-memory", f"{assets}/baseline.svg", WITHOUT_A_BASELINE),
        _sparse(cells, assets),
        _horizon(cells, assets),
        _noise(cells, assets),
        _options(cells, assets),
        habits_section(cells, present(cells, ARMS | THRESHOLDS | ARMS), assets),
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

**How to read it.** EM is the share of held-out questions with every objective right, sampled at the temperature of the
training. F1 is the mean over objectives. Both are tested with the whole history in view (`full`), and with the prompt,
the turn before and its search result alone (`memory`). Fidelity is the share of gold answers in the last memory, in
`memory` context. A score is the mean of a run's last {LAST} tests.

Brackets after a score hold the 95 % bootstrap interval over seeds; of 3 to 5 seeds it is too narrow. A difference is
taken seed by seed, and its brackets hold Student's 95 % interval. It is called higher or lower where that leaves out 0.
All runs are tested on the same questions, and no interval says what other questions would give. With 3 seeds only large
differences show: no clear difference does not mean none."""
WITHOUT_A_BASELINE = (
    "All are trained in `memory` context. With `none` a memory reward is P(memory), and the threshold sees the memory "
    "alone: a lost fact drops out of the mean, as under `both`."
)


def _about(cells: Cells) -> str:
    run = next(iter(cells[name][0] for name in [*ARMS, *cells] if name in cells))
    job, tested = run["job"], " and ".join(map(str, run["job"]["tests"]))
    return (
        "All runs start from the model that the package ships: 100K parameters, after a cold start on careless traces "
        f"of 1 to 10 objectives. It is trained for {run['config']['max_steps']} steps on questions of "
        f"{job['objectives']} objectives, with the options of `examples/configs/world.yaml` but those of the row, and "
        f"tested on {job['questions']} questions of {tested} objectives, if nothing else is said. Half of the "
        "objectives take two searches. Runs of one seed are trained on the same questions."
    )


def _section(title: str, *parts: str) -> str:
    return "\n\n".join([f"## {title}", *parts])


def _pairs(cells: Cells, *pairs: Pair) -> list[Pair]:
    return [pair for pair in pairs if {*pair[1:]} <= cells.keys()]


def _names(pairs: Iterable[Pair]) -> list[str]:
    return [name for _, *pair in pairs for name in pair]


def _headline(cells: Cells, assets: Path) -> str:
    labels = present(cells, ARMS)
    pairs = _pairs(cells, *((f"trained in `{t}`", f"mempo-{t}", f"grpo-{t}") for t in CONTEXTS))
    if not pairs:
        return ""
    said = [
        f"MemPO against GRPO, tested in `memory` context on {k} objectives: {compared(cells, pairs, 'memory', k)}."
        for k in cells.objectives(_names(pairs))
    ]
    return _section(
        "Does MemPO beat GRPO?",
        " ".join(said),
        f"![Exact match of each seed]({assets}/headline.svg)",
        scores_table(cells, labels),
        "MemPO minus GRPO:",
        differences_table(cells, pairs),
    )


def _contexts(cells: Cells, assets: Path) -> str:
    pairs = _pairs(cells, ("GRPO", "grpo-memory", "grpo-full"), ("MemPO", "mempo-memory", "mempo-full"))
    if not pairs:
        return ""
    said = [
        f"Trained in `memory` context against trained in `full`, tested in `memory` context on {k} objectives: "
        f"{compared(cells, pairs, 'memory', k)}."
        for k in cells.objectives(_names(pairs))
    ]
    return _section(
        "Is training in memory context worth it?",
        " ".join(said),
        f"![Exact match and fidelity by step]({assets}/curves.svg)",
        "Trained in `memory` minus trained in `full`; what it costs stands in [Performance](performance.md):",
        differences_table(cells, pairs),
    )


def _variants(cells: Cells, title: str, labels: Labels, default: str, figure: str, about: str) -> str:
    """One option's values against its default."""
    labels = present(cells, labels, default)
    if not labels:
        return ""
    k = cells.objectives(labels)[0]
    pairs = [(label.page, name, default) for name, label in labels.items() if name != default]
    said = [
        f"Against {labels[default].page}, tested in `{context}` context on {k} objectives: "
        f"{compared(cells, pairs, context, k)}."
        for context in TESTED
    ]
    return _section(title, " ".join(said), f"![{title}]({figure})", about, scores_table(cells, labels))


def _sparse(cells: Cells, assets: Path) -> str:
    labels = present(cells, SPARSE, START, *SPARSE)
    if not labels:
        return ""
    (k,) = cells.objectives(SPARSE)
    start = final(cells[START][0], "memory", k)
    early = {name: fmean(dict(curve(run, "memory", k))[EARLY] for run in cells[name]) for name in SPARSE}
    tests = "; ".join(f"tested in `{c}`: {sentence(cells, 'six-mempo', 'six-grpo', c, k)}" for c in TESTED)
    return _section(
        "What do rare right answers change?",
        f"MemPO against GRPO, trained and tested on {k} objectives, where EM in `memory` context is {start:.2f} before "
        f"training: {tests}. After {EARLY} steps, EM in `memory` context is {early['six-mempo']:.2f} with MemPO and "
        f"{early['six-grpo']:.2f} with GRPO.",
        f"![Exact match by step]({assets}/sparse.svg)",
        "Both are trained in `memory` context.",
        scores_table(cells, labels),
    )


def _horizon(cells: Cells, assets: Path) -> str:
    labels = present(cells, HORIZON, *HORIZON)
    if not labels:
        return ""
    pairs = [(f"trained in `{t}`", f"few-mempo-{t}", f"few-grpo-{t}") for t in CONTEXTS]
    least, *_, most = cells.objectives(labels)
    job = cells["few-mempo-full"][0]["job"]
    said = [
        f"MemPO against GRPO, trained on 2 to 4 objectives and tested in `memory` context on {k}: "
        f"{compared(cells, pairs, 'memory', k)}."
        for k in (least, most)
    ]
    return _section(
        "What does a longer horizon change?",
        " ".join(said),
        f"![Exact match and F1 by objectives]({assets}/horizon.svg)",
        f"An equal share of the training questions has {', '.join(map(str, job['objectives']))} objectives. The tests "
        f"have {job['questions']} questions of each number, in `memory` context.",
        scores_table(cells, labels, ("memory",)),
    )


def _noise(cells: Cells, assets: Path) -> str:
    labels = present(cells, NOISE, "noise-30-mempo", "noise-30-grpo")
    if not labels:
        return ""
    k, said = cells.objectives(labels)[0], []
    for rate in ("10", "30"):
        for _, *pair in _pairs(cells, ("", f"noise-{rate}-mempo", f"noise-{rate}-grpo")):
            tests = "; ".join(f"tested in `{context}`: {sentence(cells, *pair, context, k)}" for context in TESTED)
            said.append(f"MemPO against GRPO at {rate} % noise, on {k} objectives: {tests}.")
    return _section(
        "What does a noisy tool change?",
        " ".join(said),
        f"![What does a noisy tool change?]({assets}/noise.svg)",
        "A share of the searches misleads, in training and in the tests: half of these show the person that was asked "
        f"for with the facts of another world, half show other people only. {IN_FULL}",
        scores_table(cells, labels),
    )


def _options(cells: Cells, assets: Path) -> str:
    labels, default = present(cells, OPTIONS, "mempo-full"), "mempo-full"
    if not labels:
        return ""
    k = cells.objectives(labels)[0]
    found = {
        (name, context): change(cells, name, default, context, k)[1].verdict
        for name in labels
        if name != default
        for context in TESTED
    }
    moved = {key: verdict for key, verdict in found.items() if verdict != SAME}
    same = [label.page for name, label in labels.items() if name != default and not {name} & {n for n, _ in moved}]
    others = [
        f"{labels[name].page}, tested in `{context}`: {sentence(cells, name, default, context, k)}"
        for name, context in moved
    ]
    return _section(
        "What did not matter?",
        f"No clear difference from the default, on {k} objectives in either context: {', '.join(same) or 'none'}. "
        f"The others: {'; '.join(others) or 'none'}.",
        f"![What did not matter?]({assets}/options.svg)",
        f"One option at a time. {IN_FULL} Their default is `memory_weight` 1, `memory_pool` `group`, "
        "`memory_std_floor` 0.01, `temperature` 1, `beta` 0, and a reward for every memory. A short memory has "
        f"{SHORT} tokens at most, three facts. {_floor(cells[default])}",
        scores_table(cells, labels),
    )


def _floor(runs: list[Run]) -> str:
    under = fmean(share for run in runs for share in run["curves"]["pools_under_floor"])
    same = ", so a floor of 0 gives the same runs" if under == 0 else ""
    return f"The default's floor held back {under:.1%} of the pools{same}."


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
    return _section("Every run", table(["cell", "differs in", "seeds", "commits"], rows))
