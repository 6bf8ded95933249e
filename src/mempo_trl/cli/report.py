"""`mempo view` and `mempo plot`: look at what a run left behind."""

import argparse
import json
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .options import add_command

if TYPE_CHECKING:
    from ..report import ObjectiveScore


def add_commands(commands: Any) -> None:
    """Adds `view` and `plot`."""
    view = add_command(
        commands,
        "view",
        run_view,
        "make one HTML page of the episodes in trace files",
        "  mempo view outputs/policy/traces.jsonl -o traces.html",
    )
    view.add_argument(
        "traces", nargs="+", help="trace files, of training, mempo eval, mempo run --trace or mempo traces"
    )
    view.add_argument("-o", "--output", default="traces.html", help="default: traces.html")
    view.add_argument("--title", default="MemPO trajectories", help="of the page")
    view.add_argument("--limit", type=int, help="show only the first so many episodes")

    plot = add_command(
        commands,
        "plot",
        run_plot,
        "plot training curves, context tokens by turn, or F1 by number of objectives",
        "  mempo plot outputs/policy/trainer_state.json      # training.png\n"
        "  mempo plot eval/episodes.jsonl                    # context_tokens.png\n"
        "  mempo plot grpo/summary.json mempo/summary.json   # objectives.png\n"
        "What is plotted follows from what the files hold; several kinds give several plots.",
    )
    plot.add_argument("files", nargs="+", help="trainer_state.json, trace files (.jsonl), summaries of mempo eval")
    plot.add_argument("-o", "--output", default=".", help="folder for the plots; default: here")
    plot.add_argument("--format", choices=("png", "svg"), default="png", help="default: png")


def run_view(args: argparse.Namespace) -> None:
    """Writes the page and prints where it is."""
    from itertools import islice

    from ..report import write_viewer
    from ..traces import read_traces

    traces = islice(chain.from_iterable(map(read_traces, args.traces)), args.limit)
    print(write_viewer(traces, args.output, args.title))


def run_plot(args: argparse.Namespace) -> None:
    """Writes one plot for each kind of file and prints where they are."""
    from ..report import plot_context_tokens, plot_objectives, plot_training
    from ..traces import read_traces

    kinds: dict[str, list[str]] = {}
    for file in args.files:
        kinds.setdefault(kind_of(file), []).append(file)
    if len(kinds.get("training", ())) > 1:
        raise ValueError(f"one training run at a time can be plotted, got {', '.join(kinds['training'])}")
    folder = Path(args.output)
    for kind, files in kinds.items():
        path = folder / f"{kind}.{args.format}"
        if kind == "training":
            plot_training(files[0], path)
        elif kind == "context_tokens":
            plot_context_tokens(chain.from_iterable(map(read_traces, files)), path)
        else:
            plot_objectives(objective_scores(files), path)
        print(path)


def kind_of(file: str) -> str:
    """Which plot a file is for: "training", "context_tokens" or "objectives"."""
    if file.endswith(".jsonl"):
        return "context_tokens"
    content = json.loads(Path(file).read_text("utf-8"))
    if isinstance(content, dict) and "log_history" in content:
        return "training"
    if isinstance(content, dict) and "scores" in content:
        return "objectives"
    raise ValueError(f"{file} is neither a trainer_state.json, nor a trace file (.jsonl), nor a summary of mempo eval")


def objective_scores(files: list[str]) -> "list[ObjectiveScore]":
    """F1 by number of objectives in each summary. A line is named by its context, with its folder if there are more."""
    from ..evaluation.grid import read_summary

    points: list[ObjectiveScore] = [
        {
            "name": f"{Path(file).parent.name} {score['context']}" if len(files) > 1 else score["context"],
            "objectives": score["objectives"],
            "f1": score["f1"]["mean"],
            "f1_interval": (score["f1"]["low"], score["f1"]["high"]),
        }
        for file in files
        for score in read_summary(file)
        if "f1" in score
    ]
    if not points:
        raise ValueError(f"{', '.join(files)}: no F1 to plot, because the questions have no gold answers")
    return points
