"""The figures of docs/results.md."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ablation_scores import Cells, curve
from mempo_trl.context import CONTEXTS
from mempo_trl.report.plots import COLOURS, STYLE

ARMS = {
    "grpo-full": "GRPO\nfull",
    "mempo-full": "MemPO\nfull",
    "grpo-memory": "GRPO\nmemory",
    "mempo-memory": "MemPO\nmemory",
}
THRESHOLDS = {
    "threshold-none": "none",
    "mempo-full": "either",
    "threshold-independent": "independent\n(published)",
    "threshold-both": "both",
}


def draw(cells: Cells, folder: Path) -> None:
    """Draws those figures that the runs give."""
    folder.mkdir(parents=True, exist_ok=True)
    few = cells.objectives()[0]
    if arms := _present(cells, ARMS):
        _save(_dots(cells, arms, cells.objectives()), folder / "headline.svg")
        _save(_curves(cells, arms, few), folder / "curves.svg")
    if len(modes := _present(cells, THRESHOLDS)) > 1:
        _save(_dots(cells, modes, [few]), folder / "threshold.svg")


def _present(cells: Cells, labels: dict[str, str]) -> dict[str, str]:
    return {name: label for name, label in labels.items() if name in cells}


def _save(figure: Figure, path: Path) -> None:
    with rc_context(STYLE):
        figure.savefig(path, metadata={"Date": None})


def _figure(panels: int) -> tuple[Figure, Sequence[Axes]]:
    with rc_context(STYLE):
        figure = Figure(figsize=(5.6 * panels, 3.6), facecolor="white", layout="constrained")
        return figure, list(figure.subplots(1, panels, squeeze=False, sharey=True).flat)


def _dots(cells: Cells, labels: dict[str, str], objectives: Sequence[int]) -> Figure:
    """A dot for each seed and a bar at the mean, by tested context; one panel for each number of objectives."""
    figure, panels = _figure(len(objectives))
    for axis, k in zip(panels, objectives, strict=True):
        metric, title = ("em", "Exact match") if k == cells.objectives()[0] else ("f1", "F1")
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


def _curves(cells: Cells, labels: dict[str, str], k: int) -> Figure:
    """Means over seeds by step: exact match in both contexts, and what the memory keeps."""
    colours = dict(zip(ARMS, ("#3a4149", "#009E73", "#3a4149", "#009E73"), strict=True))
    tests = (("full", "em", "EM in full"), ("memory", "em", "EM in memory"), ("memory", "memory_fidelity", "Fidelity"))
    figure, panels = _figure(len(tests))
    for axis, (context, metric, title) in zip(panels, tests, strict=True):
        for name, label in labels.items():
            curves = [curve(run, context, k, metric) for run in cells[name]]
            steps = [step for step, _ in curves[0]]
            means = [fmean(values) for values in zip(*([v for _, v in c] for c in curves), strict=True)]
            style = "-" if name.endswith("full") else "--"
            axis.plot(steps, means, style, color=colours[name], label=label.replace("\n", ", trained in "))
        axis.set_title(title)
        axis.set_xlabel("step")
        axis.set_ylim(-0.03, 1.03)
    panels[1].legend(fontsize=10)
    return figure
