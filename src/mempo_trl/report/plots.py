"""Three plots for a README: what training did, what the context cost, how F1 holds with more objectives."""

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, quantiles
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from ..traces.file import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Series = Sequence[tuple[float, float]]  # (step, value)
Log = str | Path | Sequence[Mapping[str, Any]] | Mapping[str, Series]

# Okabe and Ito's colours, which colour-blind readers tell apart. A context keeps its colour in every plot.
BLUE, GREEN, ORANGE, GREY = "#0072B2", "#009E73", "#D55E00", "#3a4149"
COLOURS = {"full": GREY, "memory": GREEN}
CYCLE = (BLUE, ORANGE, "#CC79A7", "#56B4E9", "#E69F00")
STYLE: Any = {
    **{"font.size": 13, "axes.titlesize": 14, "axes.titleweight": "bold", "axes.titlelocation": "left"},
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#8a929b", "axes.linewidth": 1.0},
    **{"axes.grid": True, "grid.color": "#e3e6ea", "axes.axisbelow": True, "lines.linewidth": 2.4},
    **{"legend.frameon": False, "legend.fontsize": 12, "legend.handlelength": 1.4, "svg.hashsalt": "mempo-trl"},
    **{"figure.constrained_layout.h_pad": 0.1, "figure.constrained_layout.w_pad": 0.08},
}


class Line(NamedTuple):
    """One curve of a panel: the names of its metric (spelling aside), its label and its colour."""

    names: tuple[str, ...]
    label: str
    colour: str


class Panel(NamedTuple):
    """One panel, and its curves."""

    title: str
    lines: tuple[Line, ...]
    share: bool = False  # values in [0, 1]


PANELS = (
    Panel("Reward", (Line(("reward",), "reward", BLUE),)),
    Panel(
        "Exact match",
        (  # "em" in logs from before its name was all_correct
            Line(("full all correct", "full em"), "full context", GREY),
            Line(("memory all correct", "memory em"), "memory context", GREEN),
        ),
        share=True,
    ),
    Panel("Memory reward", (Line(("memory reward mean", "memory reward"), "memory reward", GREEN),)),
    Panel(
        "Answer probability",
        (
            Line(("memory p baseline mean", "memory p full mean", "p full"), "given the history", GREY),
            Line(("memory p mem mean", "p mem"), "given the memory", GREEN),
        ),
        share=True,
    ),
    Panel("Memory length (tokens)", (Line(("memory length mean", "memory length"), "memory length", GREEN),)),
    Panel(
        "Memory quality",
        (
            Line(("memory fidelity", "full memory fidelity"), "gold facts kept", GREEN),
            Line(("memory memory fidelity",), "gold facts kept, memory context", BLUE),
            Line(("memory closed fraction",), "turns with a closed memory", ORANGE),
        ),
        share=True,
    ),
)


class ObjectiveScore(TypedDict):
    """F1 of one run at one number of objectives."""

    name: str  # what the line is called: a context, a model
    objectives: int
    f1: float
    f1_interval: tuple[float, float] | None


def plot_training(log: Log, path: str | Path) -> Path:
    """Plot a training run: one panel for each of reward, exact match, memory reward, answer probability given memory
    and history, memory length and memory quality that the log holds.

    Args:
        log: a `trainer_state.json` (or a JSON file with its `log_history`), a `log_history`, or named series of
            (step, value) pairs. Names are those that the trainer logs; their punctuation does not count: `eval/full/f1`
            and `eval full f1` are the same.
        path: `.png` or `.svg`.

    Raises:
        ValueError: no panel has data, or the suffix is neither.
    """
    series = _series(log)
    drawn = [(panel, curves) for panel in PANELS if (curves := _curves(panel, series))]
    if not drawn:
        raise ValueError(
            f"nothing to plot: found the metrics {sorted(series)}, but none such as reward or memory/reward_mean."
        )
    columns = min(2, len(drawn))
    rows = -(-len(drawn) // columns)
    path = Path(path)
    with _figure(path, 4.6 * columns, 2.9 * rows, rows, columns) as axes:
        for axis, (panel, curves) in zip(axes, drawn, strict=False):
            _draw_panel(axis, panel, curves)
        for axis in axes[len(drawn) :]:
            axis.set_axis_off()
        for axis in axes[max(0, len(drawn) - columns) : len(drawn)]:
            axis.set_xlabel("step")
    return path


def plot_context_tokens(traces: Iterable[Trace], path: str | Path) -> Path:
    """Plot how many tokens the model sees at each turn, one line for each context that the traces hold.

    The line is the mean over the episodes that reached the turn, the band their middle 80 %.

    Raises:
        ValueError: there are no traces, or the suffix of `path` is neither `.png` nor `.svg`.
    """
    tokens: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for trace in traces:
        for number, turn in enumerate(trace["turns"], start=1):
            tokens[trace["context"]][number].append(turn["context_tokens"])
    if not tokens:
        raise ValueError("no trace to plot: name a trace file that holds episodes.")
    path = Path(path)
    with _figure(path, 6.4, 4.0) as [axis]:
        for name, by_turn in tokens.items():
            turns, colour = sorted(by_turn), _colour(name, list(tokens))
            low, high = zip(*(_middle(by_turn[turn]) for turn in turns), strict=True)
            axis.fill_between(turns, low, high, color=colour, alpha=0.18, linewidth=0)
            axis.plot(turns, [fmean(by_turn[turn]) for turn in turns], "o-", color=colour, label=f"{name} context")
        _finish(axis, "Context tokens by turn", "turn")
        axis.set_ylim(bottom=0)
    return path


def plot_objectives(scores: Iterable[ObjectiveScore], path: str | Path) -> Path:
    """Plot F1 by number of objectives, one line for each name, with its interval where there is one.

    Raises:
        ValueError: there are no scores, or the suffix of `path` is neither `.png` nor `.svg`.
    """
    lines: dict[str, list[ObjectiveScore]] = defaultdict(list)
    for score in scores:
        lines[score["name"]].append(score)
    if not lines:
        raise ValueError("no score to plot: evaluate with --objectives first.")
    path = Path(path)
    with _figure(path, 6.4, 4.0) as [axis]:
        for name, points in lines.items():
            points.sort(key=lambda score: score["objectives"])
            counts, f1 = zip(*((score["objectives"], score["f1"]) for score in points), strict=True)
            intervals = [score["f1_interval"] or (score["f1"], score["f1"]) for score in points]
            errors = zip(
                *((value - low, high - value) for value, (low, high) in zip(f1, intervals, strict=True)), strict=True
            )
            colour = _colour(name, list(lines))
            axis.errorbar(counts, f1, yerr=list(errors), fmt="o-", capsize=4, color=colour, label=name)
        _finish(axis, "F1 by number of objectives", "objectives")
        axis.set_xticks(sorted({score["objectives"] for points in lines.values() for score in points}))
        axis.set_ylim(bottom=0)
    return path


def _series(log: Log) -> dict[str, Series]:
    """Every numeric metric of a log as (step, value) pairs, by its canonical name."""
    if isinstance(log, str | Path):
        log = json.loads(Path(log).read_text("utf-8"))
    if isinstance(log, Mapping) and "log_history" not in log:
        return {_canonical(name): values for name, values in log.items()}
    entries: Any = log["log_history"] if isinstance(log, Mapping) else log
    series: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for number, entry in enumerate(entries):
        for name, value in entry.items():
            if isinstance(value, int | float) and not math.isnan(value):  # NaN: nothing to average at that step
                series[_canonical(name)].append((entry.get("step", number), value))
    return dict(series)


def _canonical(name: str) -> str:
    """`eval/full/f1`, `eval full f1` and `eval_full_f1` are one metric."""
    return re.sub(r"[^a-z0-9]+", " ", name.lower()).strip()


def _curves(panel: Panel, series: Mapping[str, Series]) -> list[tuple[Line, Series]]:
    """The lines of a panel that the log holds. A metric of training goes before the same one of evaluation."""
    curves = []
    for line in panel.lines:
        names = [prefix + name for prefix in ("", "eval ") for name in line.names]
        points = next((series[name] for name in names if series.get(name)), None)
        if points:
            curves.append((line, points))
    return curves


def _draw_panel(axis: "Axes", panel: Panel, curves: list[tuple[Line, Series]]) -> None:
    for line, points in curves:
        steps, values = zip(*points, strict=True)
        window = len(points) // 25
        if window > 1:  # a long run is noisy: the raw values pale, their running mean on top
            axis.plot(steps, values, color=line.colour, alpha=0.25, linewidth=1)
        mark = "o-" if len(points) <= 12 else "-"
        axis.plot(steps, _running_mean(values, window), mark, color=line.colour, label=line.label, markersize=5)
    _finish(axis, panel.title, legend=len(curves) > 1)
    if panel.share:
        axis.set_ylim(-0.03, 1.03)


def _running_mean(values: Sequence[float], window: int) -> list[float]:
    """The mean over up to `window` neighbours on each side."""
    return [fmean(values[max(0, i - window) : i + window + 1]) for i in range(len(values))]


def _middle(values: Sequence[float]) -> tuple[float, float]:
    """The 10th and 90th percentile."""
    tenths = quantiles(values, n=10, method="inclusive") if len(values) > 1 else values
    return tenths[0], tenths[-1]


def _colour(name: str, names: Sequence[str]) -> str:
    return COLOURS.get(name, CYCLE[names.index(name) % len(CYCLE)])


@contextmanager
def _figure(path: Path, width: float, height: float, rows: int = 1, columns: int = 1) -> "Iterator[list[Axes]]":
    """Axes to draw on, saved to `path` at the end. Outside pyplot's global state: safe in threads, needs no display."""
    if path.suffix not in (".png", ".svg"):
        raise ValueError(f"cannot save a plot as {path.name!r}: name a .png or .svg file.")
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise ImportError('plots need matplotlib: pip install "mempo-trl[plots]"') from error
    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), dpi=150, facecolor="white", layout="constrained")
        axes = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axis in axes:
            axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        yield axes
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _finish(axis: "Axes", title: str, label: str = "", legend: bool = True) -> None:
    axis.set_title(title)
    axis.set_xlabel(label)
    if legend:
        axis.legend()
