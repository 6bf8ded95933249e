"""The figures of docs/results.md."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ablation_real import TITLES, real_figure
from ablation_scores import Cells, curve
from mempo_trl.context import CONTEXTS
from mempo_trl.report.plots import COLOURS, STYLE

ARMS = {
    "grpo-full": "GRPO\nfull",
    "mempo-full": "MemPO\nfull",
    "grpo-memory": "GRPO\nmemory",
    "mempo-memory": "MemPO\nmemory",
}
ARM_STYLES = dict(zip(ARMS, (("#3a4149", "-"), ("#009E73", "-"), ("#3a4149", "--"), ("#009E73", "--")), strict=True))
VARIANTS = {
    "threshold": {
        "threshold-none": "none",
        "mempo-full": "either",
        "threshold-independent": "independent\n(published)",
        "threshold-both": "both",
    },
    "baseline": {"mempo-memory": "history", "baseline-visible": "visible", "baseline-none": "none"},
    "noise": {
        "grpo-full": "GRPO\n0 %",
        "mempo-full": "MemPO\n0 %",
        "noise-10-grpo": "GRPO\n10 %",
        "noise-10-mempo": "MemPO\n10 %",
        "noise-30-grpo": "GRPO\n30 %",
        "noise-30-mempo": "MemPO\n30 %",
    },
    "options": {
        "mempo-full": "default",
        "weight-0.3": "weight\n0.3",
        "pool-turn": "pool\nturn",
        "floor-0.1": "floor\n0.1",
        "temperature-0.7": "temp.\n0.7",
        "beta-0.001": "beta\n0.001",
        "paid-right": "right\nonly",
        "paid-short": "short\nonly",
    },
}


def draw(cells: Cells, records: dict[str, dict[str, Any]], folder: Path) -> None:
    """Draws those figures that the runs, and the records of a real model, give."""
    folder.mkdir(parents=True, exist_ok=True)
    if arms := _present(cells, ARMS):
        tested = cells.objectives(arms)
        _save(_dots(cells, arms, tested), folder / "headline.svg")
        _save(_curves(cells, arms, tested[0], TESTS), folder / "curves.svg")
        _save(_habits(cells, arms, tested[0]), folder / "habits.svg")
    for figure, labels in VARIANTS.items():
        if len(modes := _present(cells, labels)) > 1:
            _save(_dots(cells, modes, cells.objectives(modes)[:1]), folder / f"{figure}.svg")
    if {f"few-{name}" for name in ARMS} <= cells.keys():
        _save(_horizon(cells), folder / "horizon.svg")
    if records:
        colours = {arm: ARM_STYLES[f"{arm}-memory"][0] for arm in records}
        _save(real_figure(*_figure(len(TITLES), sharey=False), records, colours), folder / "real.svg")


def _present(cells: Cells, labels: dict[str, str]) -> dict[str, str]:
    return {name: label for name, label in labels.items() if name in cells}


def _save(figure: Figure, path: Path) -> None:
    with rc_context(STYLE):
        figure.savefig(path, metadata={"Date": None})


def _figure(panels: int, sharey: bool = True) -> tuple[Figure, Sequence[Axes]]:
    with rc_context(STYLE):
        figure = Figure(figsize=(5.6 * panels, 3.6), facecolor="white", layout="constrained")
        return figure, list(figure.subplots(1, panels, squeeze=False, sharey=sharey).flat)


def _dots(cells: Cells, labels: dict[str, str], objectives: Sequence[int]) -> Figure:
    """A dot for each seed and a bar at the mean, by tested context; one panel for each number of objectives."""
    figure, panels = _figure(len(objectives))
    for axis, k in zip(panels, objectives, strict=True):
        metric, title = ("em", "Exact match") if k == objectives[0] else ("f1", "F1")
        for context, shift in zip(CONTEXTS, (-0.15, 0.15), strict=True):
            for place, name in enumerate(labels):
                values = list(cells.scores(name, context, k, metric).values())
                axis.plot([place + shift] * len(values), values, "o", color=COLOURS[context], alpha=0.55)
                mean = fmean(values)
                axis.plot([place + shift - 0.12, place + shift + 0.12], [mean, mean], color=COLOURS[context])
            axis.plot([], [], "o", color=COLOURS[context], label=f"tested in {context}")
        axis.set_title(f"{title}, {k} objectives")
        axis.set_xticks(range(len(labels)), list(labels.values()))
        axis.set_ylim(-0.03, 1.03)
    panels[0].legend(loc="lower left", fontsize=10)
    return figure


TESTS = (
    ("full", "em", "EM in full"),
    ("memory", "em", "EM in memory"),
    ("memory", "memory_fidelity", "Fidelity"),
)


def _arm_label(name: str) -> str:
    return ARMS[name].replace("\n", ", trained in ")


def _mean_by_step(axis: Axes, name: str, curves: Sequence[Sequence[tuple[int, float]]]) -> None:
    """The mean of the curves that a cell's runs have."""
    steps = [step for step, _ in curves[0]]
    means = [fmean(values) for values in zip(*([value for _, value in c] for c in curves), strict=True)]
    colour, style = ARM_STYLES[name]
    axis.plot(steps, means, style, color=colour, label=_arm_label(name))
    axis.set_xlabel("step")


def _curves(cells: Cells, labels: dict[str, str], k: int, tests: Sequence[tuple[str, str, str]]) -> Figure:
    """Means over seeds by step: exact match in both contexts, and what the memory keeps."""
    figure, panels = _figure(len(tests))
    for axis, (context, metric, title) in zip(panels, tests, strict=True):
        for name in labels:
            _mean_by_step(axis, name, [curve(run, context, k, metric) for run in cells[name]])
        axis.set_title(title)
        axis.set_ylim(-0.03, 1.03)
    panels[1].legend(fontsize=10)
    return figure


def _habits(cells: Cells, labels: dict[str, str], k: int) -> Figure:
    """Means over seeds by step: memories that guess in tests, and tokens of a memory in training."""
    figure, (guesses, length) = _figure(2, sharey=False)
    for name in labels:
        _mean_by_step(guesses, name, [curve(run, "memory", k, "guesses") for run in cells[name]])
        lengths = [run["curves"]["memory_length"] for run in cells[name]]
        _mean_by_step(length, name, [list(enumerate(values, start=1)) for values in lengths])
    guesses.set_title("Share of memories that guess")
    length.set_title("Tokens of a memory")
    guesses.set_ylim(bottom=0)
    length.set_ylim(bottom=0)
    guesses.legend(fontsize=10)
    return figure


def _horizon(cells: Cells) -> Figure:
    """Means over seeds by objectives, in memory context."""
    figure, panels = _figure(2)
    for axis, (metric, title) in zip(panels, (("em", "Exact match"), ("f1", "F1")), strict=True):
        for name in ARMS:
            tested = cells.objectives([f"few-{name}"])
            means = [fmean(cells.scores(f"few-{name}", "memory", k, metric).values()) for k in tested]
            colour, style = ARM_STYLES[name]
            axis.plot(tested, means, style, marker="o", color=colour, label=_arm_label(name))
        axis.set_title(f"{title}, tested in memory")
        axis.set_xlabel("objectives")
        axis.set_xticks(tested)
        axis.set_ylim(-0.03, 1.03)
    panels[0].legend(fontsize=10)
    return figure
