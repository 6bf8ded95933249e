"""The sections of docs/results.md that answer a question: a takeaway, a figure, and tables with every number."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean

from ablation_labels import ARMS, BASELINES, HORIZON, NOISE, OPTIONS, SPARSE, START, THRESHOLDS, Labels, present
from ablation_rewards import SHORT
from ablation_scores import SAME, TESTED_IN, Cells, Difference, Run, curve, final
from ablation_tables import Pair, by_objectives, change, differences_table, listed, scores_table, table, takeaway

TESTED = ("memory", "full")  # what a deployed agent sees comes first
EARLY = 20  # a step that is tested
IN_FULL = "All policies are trained in `full` context, where the memory advantage changes most."
WITHOUT_A_BASELINE = (
    "All policies are trained in `memory` context. With `none`, the memory reward is P(memory), and the threshold sees "
    "the memory only, so a fact that the memory lost drops out of the mean as it does under `both`. That row therefore "
    "changes more than the baseline."
)


def section(title: str, *parts: str) -> str:
    return "\n\n".join([f"## {title}", *(part for part in parts if part)])


def _pairs(cells: Cells, *pairs: Pair) -> list[Pair]:
    return [pair for pair in pairs if {*pair[1:]} <= cells.keys()]


def _names(pairs: Iterable[Pair]) -> list[str]:
    return [name for _, *pair in pairs for name in pair]


def headline(cells: Cells, assets: Path) -> str:
    labels = present(cells, ARMS)
    pairs = _pairs(cells, *((f"trained in `{t}`", f"mempo-{t}", f"grpo-{t}") for t in TESTED_IN))
    if not pairs:
        return ""
    return section(
        "Does MemPO beat GRPO?",
        takeaway("Compared with GRPO, MemPO's score in `memory` context", by_objectives(cells, pairs, "if ")),
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
    found = [(f"with {label}", change(cells, *pair, "memory", k)) for label, *pair in pairs]
    subject = "Compared with GRPO, exact match in `memory` context"
    note = (
        "MemPO with other thresholds (trained in `full`) and other baselines (trained in `memory`), minus GRPO trained "
        "in the same context:"
    )
    return "\n\n".join([takeaway(subject, found), note, differences_table(cells, pairs)])


def contexts(cells: Cells, assets: Path) -> str:
    pairs = _pairs(cells, ("GRPO", "grpo-memory", "grpo-full"), ("MemPO", "mempo-memory", "mempo-full"))
    if not pairs:
        return ""
    return section(
        "Is training in memory context worth it?",
        takeaway(
            "Compared with training in `full` context, the score in `memory` context",
            by_objectives(cells, pairs, "for "),
        ),
        f"![Exact match and fidelity by step]({assets}/curves.svg)",
        "Trained in `memory` minus trained in `full`:",
        differences_table(cells, pairs),
        _tokens(cells, _names(pairs)),
    )


def _tokens(cells: Cells, names: list[str]) -> str:
    found = {
        k: [fmean(v for name in names for v in cells.scores(name, c, k, "peak_tokens").values()) for c in TESTED_IN]
        for k in cells.objectives(names)
        if all(cells.scores(name, "full", k, "peak_tokens") for name in names)
    }
    if not found:
        return ""
    rows = [[str(k), *(f"{value:.0f}" for value in values)] for k, values in found.items()]
    return "\n\n".join(
        [
            "The longest context of an episode, in tokens. [Performance](performance.md) has what training in `memory` "
            "context costs.",
            table(["objectives", *(f"`{context}`" for context in TESTED_IN)], rows),
        ]
    )


def variants(cells: Cells, title: str, labels: Labels, default: str, figure: str, about: str) -> str:
    """One option's values against its default."""
    labels = present(cells, labels, default)
    if not labels:
        return ""
    k, usual = cells.objectives(labels)[0], labels[default].page
    pairs = [(label.page, name, default) for name, label in labels.items() if name != default]
    found = [(f"with {label}", change(cells, *pair, "memory", k)) for label, *pair in pairs]
    return section(
        title,
        takeaway(f"Compared with {usual}, the default, exact match in `memory` context", found),
        f"![{title}]({figure})",
        about,
        scores_table(cells, labels),
        f"Minus {usual}:",
        differences_table(cells, pairs),
    )


def sparse(cells: Cells, assets: Path) -> str:
    labels = present(cells, SPARSE, START, *SPARSE)
    if not labels:
        return ""
    (k,), pair = cells.objectives(SPARSE), ("six-mempo", "six-grpo")
    start = final(cells[START][0], "memory", k)
    early = [[f"{fmean(dict(curve(run, 'memory', k))[EARLY] for run in cells[name]):.2f}"] for name in SPARSE]
    return section(
        "What do rare right answers change?",
        takeaway(
            f"Compared with GRPO, MemPO's exact match on {k} objectives",
            [(f"in `{context}` context", change(cells, *pair, context, k)) for context in TESTED],
        ),
        f"![Exact match by step]({assets}/sparse.svg)",
        f"Both policies are trained in `memory` context on questions of {k} objectives. Before training, the exact "
        f"match in `memory` context is {start:.2f}.",
        scores_table(cells, labels),
        "MemPO minus GRPO:",
        differences_table(cells, [("after training", *pair)]),
        f"Exact match in `memory` context after {EARLY} steps:",
        table(["", f"step {EARLY}"], [[labels[name].page, *row] for name, row in zip(SPARSE, early, strict=True)]),
    )


def horizon(cells: Cells, assets: Path) -> str:
    labels = present(cells, HORIZON, *HORIZON)
    if not labels:
        return ""
    job, pair = cells["few-mempo"][0]["job"], ("few-mempo", "few-grpo")
    return section(
        "What does a longer horizon change?",
        takeaway(
            "Compared with GRPO, MemPO's score in `memory` context", by_objectives(cells, [("after training", *pair)])
        ),
        f"![Exact match and F1 by objectives]({assets}/horizon.svg)",
        "Both policies are trained in `memory` context, on questions of "
        f"{listed([str(k) for k in job['objectives']])} objectives in equal shares, and tested on "
        f"{job['questions']} questions for each number of objectives.",
        scores_table(cells, labels, ("memory",)),
        "MemPO minus GRPO:",
        differences_table(cells, [("after training", *pair)], ("memory",)),
    )


def noise(cells: Cells, assets: Path) -> str:
    labels = present(cells, NOISE, "noise-30-mempo", "noise-30-grpo")
    if not labels:
        return ""
    k = cells.objectives(labels)[0]
    pairs = _pairs(cells, *((f"{rate} % noise", f"noise-{rate}-mempo", f"noise-{rate}-grpo") for rate in ("10", "30")))
    found = [
        (f"at {label} in `{context}` context", change(cells, *pair, context, k))
        for label, *pair in pairs
        for context in TESTED
    ]
    return section(
        "What does a noisy tool change?",
        takeaway("Compared with GRPO, MemPO's exact match", found),
        f"![What does a noisy tool change?]({assets}/noise.svg)",
        "In training and in the tests, a share of the searches misleads: half of these show the right person with the "
        f"facts of another world, and half show only other people. {IN_FULL}",
        scores_table(cells, labels, start=False),  # the start was tested without noise
        "MemPO minus GRPO:",
        differences_table(cells, pairs),
    )


def options(cells: Cells, assets: Path) -> str:
    labels, default = present(cells, OPTIONS, "mempo-full"), "mempo-full"
    if not labels:
        return ""
    pairs = [(label.page, name, default) for name, label in labels.items() if name != default]
    return section(
        "What did not matter?",
        takeaway("Compared with the reference, exact match", _clearest(cells, pairs, cells.objectives(labels)[0])),
        f"![What did not matter?]({assets}/options.svg)",
        f"Each row changes one option. {IN_FULL} The reference has `memory_weight` 1, `memory_pool` `group`, "
        "`memory_std_floor` 0.01, `temperature` 1, `beta` 0, and rewards every memory. A short memory has at most "
        f"{SHORT} tokens, which is enough for three facts. {_floor(cells[default])}",
        scores_table(cells, labels),
        "Minus the reference:",
        differences_table(cells, pairs),
    )


def _clearest(cells: Cells, pairs: list[Pair], k: int) -> Iterator[tuple[str, Difference]]:
    """The clear differences of each pair in any context; where there is none, that in memory context."""
    for label, *pair in pairs:
        found = {context: change(cells, *pair, context, k) for context in TESTED}
        clear = {context: result for context, result in found.items() if result.verdict != SAME}
        for context, result in clear.items():
            yield f"with {label} in `{context}` context", result
        if not clear:
            yield f"with {label}", found["memory"]


def _floor(runs: list[Run]) -> str:
    under = fmean(share for run in runs for share in run["curves"]["pools_under_floor"])
    same = ", so a floor of 0 gives the same runs" if under == 0 else ""
    return f"The floor of the reference held back {under:.1%} of the pools{same}."
