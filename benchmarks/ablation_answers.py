"""The parts of docs/results.md that answer a question, from the runs of `ablations.py`."""

from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from ablation_labels import ARMS, BASELINES, HORIZON, NOISE, OPTIONS, SPARSE, START, THRESHOLDS, Labels, present
from ablation_rewards import SHORT
from ablation_scores import SAME, Cells, Run, curve, final
from ablation_tables import Pair, change, compared, differences_table, scores_table, sentence
from mempo_trl.types import CONTEXTS

TESTED = ("memory", "full")  # what an agent will see comes first
EARLY = 20  # a step that is tested
IN_FULL = "All are trained in `full` context, where the memory advantage changes most."
WITHOUT_A_BASELINE = (
    "All are trained in `memory` context. With `none` a memory reward is P(memory), and the threshold sees the memory "
    "alone: a lost fact drops out of the mean, as under `both`. So that row changes more than the baseline."
)


def section(title: str, *parts: str) -> str:
    return "\n\n".join([f"## {title}", *parts])


def _pairs(cells: Cells, *pairs: Pair) -> list[Pair]:
    return [pair for pair in pairs if {*pair[1:]} <= cells.keys()]


def _names(pairs: Iterable[Pair]) -> list[str]:
    return [name for _, *pair in pairs for name in pair]


def _by_objectives(cells: Cells, pairs: list[Pair], what: str) -> str:
    """A sentence for each number of objectives that all were tested on."""
    return " ".join(
        f"{what}, tested in `memory` context on {k} objectives: {compared(cells, pairs, 'memory', k)}."
        for k in cells.objectives(_names(pairs))
    )


def headline(cells: Cells, assets: Path) -> str:
    labels = present(cells, ARMS)
    pairs = _pairs(cells, *((f"trained in `{t}`", f"mempo-{t}", f"grpo-{t}") for t in CONTEXTS))
    if not pairs:
        return ""
    return section(
        "Does MemPO beat GRPO?",
        _by_objectives(cells, pairs, "MemPO against GRPO"),
        f"![Exact match of each seed]({assets}/headline.svg)",
        scores_table(cells, labels),
        "MemPO minus GRPO:",
        differences_table(cells, pairs),
        _against_grpo(cells),
    )


def _against_grpo(cells: Cells) -> str:
    """Every other way to reward memories, against the GRPO that was trained in the same context."""
    pairs = _pairs(
        cells,
        *((label.page, name, "grpo-full") for name, label in THRESHOLDS.items() if name not in ARMS),
        *((f"baseline {label.page}", name, "grpo-memory") for name, label in BASELINES.items() if name not in ARMS),
    )
    if not pairs:
        return ""
    k = cells.objectives(_names(pairs))[0]
    return (
        "With other thresholds, trained in `full`, and other baselines, trained in `memory`, MemPO against GRPO tested "
        f"in `memory` context on {k} objectives: {compared(cells, pairs, 'memory', k)}."
    )


def contexts(cells: Cells, assets: Path) -> str:
    pairs = _pairs(cells, ("GRPO", "grpo-memory", "grpo-full"), ("MemPO", "mempo-memory", "mempo-full"))
    if not pairs:
        return ""
    return section(
        "Is training in memory context worth it?",
        _by_objectives(cells, pairs, "Trained in `memory` context against trained in `full`"),
        f"![Exact match and fidelity by step]({assets}/curves.svg)",
        f"{_tokens(cells, _names(pairs))} What training in `memory` context costs stands in "
        "[Performance](performance.md). Trained in `memory` minus trained in `full`:",
        differences_table(cells, pairs),
    )


def _tokens(cells: Cells, names: list[str]) -> str:
    said = [
        f"{fmean(tokens['full']):.0f} tokens in `full` and {fmean(tokens['memory']):.0f} in `memory` on {k} objectives"
        for k in cells.objectives(names)
        for tokens in [
            {c: [v for name in names for v in cells.scores(name, c, k, "peak_tokens").values()] for c in CONTEXTS}
        ]
        if tokens["full"]
    ]
    return f"The longest context of an episode has {'; '.join(said)}." if said else ""


def variants(cells: Cells, title: str, labels: Labels, default: str, figure: str, about: str) -> str:
    """One option's values against its default."""
    labels = present(cells, labels, default)
    if not labels:
        return ""
    k = cells.objectives(labels)[0]
    pairs = [(label.page, name, default) for name, label in labels.items() if name != default]
    said = [
        f"Against {labels[default].page}, the default, tested in `{context}` context on {k} objectives: "
        f"{compared(cells, pairs, context, k)}."
        for context in TESTED
    ]
    return section(title, " ".join(said), f"![{title}]({figure})", about, scores_table(cells, labels))


def sparse(cells: Cells, assets: Path) -> str:
    labels = present(cells, SPARSE, START, *SPARSE)
    if not labels:
        return ""
    (k,) = cells.objectives(SPARSE)
    start = final(cells[START][0], "memory", k)
    early = {name: fmean(dict(curve(run, "memory", k))[EARLY] for run in cells[name]) for name in SPARSE}
    tests = "; ".join(f"tested in `{c}`: {sentence(cells, 'six-mempo', 'six-grpo', c, k)}" for c in TESTED)
    return section(
        "What do rare right answers change?",
        f"MemPO against GRPO, trained and tested on {k} objectives, where EM in `memory` context is {start:.2f} before "
        f"training: {tests}. After {EARLY} steps, EM in `memory` context is {early['six-mempo']:.2f} with MemPO and "
        f"{early['six-grpo']:.2f} with GRPO.",
        f"![Exact match by step]({assets}/sparse.svg)",
        "Both are trained in `memory` context.",
        scores_table(cells, labels),
    )


def horizon(cells: Cells, assets: Path) -> str:
    labels = present(cells, HORIZON, *HORIZON)
    if not labels:
        return ""
    least, *longer = cells.objectives(labels)
    job = cells["few-mempo"][0]["job"]
    said = "; ".join(f"on {k}: {sentence(cells, 'few-mempo', 'few-grpo', 'memory', k)}" for k in longer)
    return section(
        "What does a longer horizon change?",
        "MemPO against GRPO, trained on 2 to 4 objectives and tested in `memory` context on "
        f"{least}: {sentence(cells, 'few-mempo', 'few-grpo', 'memory', least)}. Tested on more: {said}.",
        f"![Exact match and F1 by objectives]({assets}/horizon.svg)",
        "Both are trained in `memory` context, on an equal share of questions of "
        f"{', '.join(map(str, job['objectives']))} objectives. The tests have {job['questions']} questions of each "
        "number.",
        scores_table(cells, labels, ("memory",)),
    )


def noise(cells: Cells, assets: Path) -> str:
    labels = present(cells, NOISE, "noise-30-mempo", "noise-30-grpo")
    if not labels:
        return ""
    k, said = cells.objectives(labels)[0], []
    for rate in ("10", "30"):
        for _, *pair in _pairs(cells, ("", f"noise-{rate}-mempo", f"noise-{rate}-grpo")):
            tests = "; ".join(f"tested in `{context}`: {sentence(cells, *pair, context, k)}" for context in TESTED)
            said.append(f"MemPO against GRPO at {rate} % noise, on {k} objectives: {tests}.")
    return section(
        "What does a noisy tool change?",
        " ".join(said),
        f"![What does a noisy tool change?]({assets}/noise.svg)",
        "A share of the searches misleads, in training and in the tests: half of these show the person that was asked "
        f"for with the facts of another world, half show other people only. {IN_FULL}",
        scores_table(cells, labels, start=False),  # the start was tested without noise
    )


def options(cells: Cells, assets: Path) -> str:
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
    moved = [key for key, verdict in found.items() if verdict != SAME]
    same = [labels[name].page for name in labels if name not in {default, *(name for name, _ in moved)}]
    others = [
        f"{labels[name].page}, tested in `{context}`: {sentence(cells, name, default, context, k)}"
        for name, context in moved
    ]
    return section(
        "What did not matter?",
        f"No clear difference from the reference, on {k} objectives in either context: {', '.join(same) or 'none'}. "
        f"The others: {'; '.join(others) or 'none'}.",
        f"![What did not matter?]({assets}/options.svg)",
        f"One option at a time. {IN_FULL} The reference has `memory_weight` 1, `memory_pool` `group`, "
        "`memory_std_floor` 0.01, `temperature` 1, `beta` 0, and a reward for every memory. A short memory has "
        f"{SHORT} tokens at most, three facts. {_floor(cells[default])}",
        scores_table(cells, labels),
    )


def _floor(runs: list[Run]) -> str:
    under = fmean(share for run in runs for share in run["curves"]["pools_under_floor"])
    same = ", so a floor of 0 gives the same runs" if under == 0 else ""
    return f"The reference's floor held back {under:.1%} of the pools{same}."
