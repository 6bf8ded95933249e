"""The figures of docs/results.md."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ablation_credit import credit_figure, settings
from ablation_labels import ARMS, BASELINES, HORIZON, NOISE, OPTIONS, SPARSE, START, THRESHOLDS, Labels, present
from ablation_real import TITLES, real_figure
from ablation_scores import TESTED_IN, Cells, curve
from mempo_trl.report.plots import COLOURS, STYLE

ARM_STYLES = dict(zip(ARMS, (("#3a4149", "-"), ("#009E73", "-"), ("#3a4149", "--"), ("#009E73", "--")), strict=True))


def draw(cells: Cells, records: dict[str, dict[str, Any]], folder: Path) -> None:
    """Draws those figures that the runs, and the records of a real model, give."""
    folder.mkdir(parents=True, exist_ok=True)
    if arms := present(cells, ARMS):
        tested = cells.objectives(arms)
        _save(_dots(cells, arms, tested), folder / "headline.svg")
        _save(_curves(cells, arms, tested[0], TESTS), folder / "curves.svg")
        _save(_habits(cells, arms, tested[0]), folder / "habits.svg")
    for name, labels in (
        ("threshold", present(cells, THRESHOLDS, "mempo-full")),
        ("baseline", present(cells, BASELINES, "mempo-memory")),
        ("noise", present(cells, NOISE, "noise-30-grpo", "noise-30-mempo")),
        ("options", present(cells, OPTIONS, "mempo-full")),
    ):
        if labels:
            _save(_dots(cells, labels, cells.objectives(labels)[:1]), folder / f"{name}.svg")
    if present(cells, SPARSE, START, *SPARSE):
        _save(_sparse(cells), folder / "sparse.svg")
    if present(cells, HORIZON, *HORIZON):
        _save(_horizon(cells), folder / "horizon.svg")
    if found := settings(cells):
        _save(credit_figure(found), folder / "credit.svg")
    if records:
        colours = {arm: ARM_STYLES[f"{arm}-memory"][0] for arm in records}
        _save(real_figure(*_figure(len(TITLES), sharey=False), records, colours), folder / "real.svg")


def _save(figure: Figure, path: Path) -> None:
    with rc_context(STYLE):
        figure.savefig(path, metadata={"Date": None})


def _figure(panels: int, sharey: bool = True) -> tuple[Figure, Sequence[Axes]]:
    with rc_context(STYLE):
        figure = Figure(figsize=(5.6 * panels, 3.6), facecolor="white", layout="constrained")
        return figure, list(figure.subplots(1, panels, squeeze=False, sharey=sharey).flat)


def _dots(cells: Cells, labels: Labels, objectives: Sequence[int]) -> Figure:
    """A dot for each seed and a bar at the mean, by tested context; one panel for each number of objectives."""
    figure, panels = _figure(len(objectives))
    for axis, k in zip(panels, objectives, strict=True):
        metric, title = ("all_correct", "Exact match") if k == objectives[0] else ("f1", "F1")
        for context, shift in zip(TESTED_IN, (-0.15, 0.15), strict=True):
            for place, name in enumerate(labels):
                values = list(cells.scores(name, context, k, metric).values())
                axis.plot([place + shift] * len(values), values, "o", color=COLOURS[context], alpha=0.55)
                mean = fmean(values)
                axis.plot([place + shift - 0.12, place + shift + 0.12], [mean, mean], color=COLOURS[context])
            axis.plot([], [], "o", color=COLOURS[context], label=f"tested in {context}")
        axis.set_title(f"{title}, {k} objectives")
        axis.set_xticks(range(len(labels)), [label.axis for label in labels.values()])
        axis.set_ylim(-0.03, 1.03)
    panels[0].legend(loc="lower left", fontsize=10)
    return figure


TESTS = (
    ("full", "all_correct", "EM in full"),
    ("memory", "all_correct", "EM in memory"),
    ("memory", "memory_fidelity", "Fidelity"),
)


def _arm_label(name: str) -> str:
    return ARMS[name].axis.replace("\n", ", trained in ")


def _mean_by_step(axis: Axes, name: str, curves: Sequence[Sequence[tuple[int, float | None]]]) -> None:
    """The mean of the curves that a cell's runs have; a run without a value at a step does not count there."""
    by_step: dict[int, list[float]] = defaultdict(list)
    for step, value in (point for points in curves for point in points):
        if value is not None:
            by_step[step].append(value)
    steps, means = sorted(by_step), [fmean(by_step[step]) for step in sorted(by_step)]
    colour, style = ARM_STYLES[name]
    axis.plot(steps, means, style, color=colour, label=_arm_label(name))
    axis.set_xlabel("step")


def _curves(cells: Cells, labels: Labels, k: int, tests: Sequence[tuple[str, str, str]]) -> Figure:
    """Means over seeds by step: exact match in both contexts, and what the memory keeps."""
    figure, panels = _figure(len(tests))
    for axis, (context, metric, title) in zip(panels, tests, strict=True):
        for name in labels:
            _mean_by_step(axis, name, [curve(run, context, k, metric) for run in cells[name]])
        axis.set_title(title)
        axis.set_ylim(-0.03, 1.03)
    panels[1].legend(fontsize=10)
    return figure


def _habits(cells: Cells, labels: Labels, k: int) -> Figure:
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


def _sparse(cells: Cells) -> Figure:
    """Means over seeds by step, trained and tested on more objectives, in memory context."""
    (k,) = cells.objectives(SPARSE)
    figure, panels = _figure(2)
    for axis, (metric, title) in zip(
        panels, (("all_correct", "Exact match"), ("memory_fidelity", "Fidelity")), strict=True
    ):
        for name, arm in (("six-grpo", "grpo-memory"), ("six-mempo", "mempo-memory")):
            _mean_by_step(axis, arm, [curve(run, "memory", k, metric) for run in cells[name]])
        axis.set_title(f"{title} on {k} objectives, in memory")
        axis.set_ylim(-0.03, 1.03)
    panels[0].legend(fontsize=10)
    return figure


def _horizon(cells: Cells) -> Figure:
    """Means over seeds by objectives, in memory context."""
    figure, panels = _figure(2)
    for axis, (metric, title) in zip(panels, (("all_correct", "Exact match"), ("f1", "F1")), strict=True):
        for name, arm in (("few-grpo", "grpo-memory"), ("few-mempo", "mempo-memory")):
            tested = cells.objectives([name])
            means = [fmean(cells.scores(name, "memory", k, metric).values()) for k in tested]
            colour, style = ARM_STYLES[arm]
            axis.plot(tested, means, style, marker="o", color=colour, label=_arm_label(arm))
        axis.set_title(f"{title}, in memory")
        axis.set_xlabel("objectives")
        axis.set_xticks(tested)
        axis.set_ylim(-0.03, 1.03)
    panels[0].legend(fontsize=10)
    return figure
