"""`mempo eval` and `mempo compare`: scores of a policy, and how two of them differ."""

import argparse
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .options import (
    TOKEN_BUDGETS,
    add_command,
    add_model_options,
    add_task_options,
    make_agent,
    numbers,
    open_model,
    open_named_task,
    read_settings,
    settings_folder,
)

if TYPE_CHECKING:
    from rich.table import Table

    from ..evaluation.scores import Scores
    from ..evaluation.summary import Difference, Estimate, Score


def add_commands(commands: Any) -> None:
    """Adds `eval` and `compare`."""
    evaluate = add_command(
        commands,
        "eval",
        run_eval,
        "score a policy: exact match, F1, what its memory kept, tokens, with intervals",
        "  mempo eval --model outputs/policy --objectives 2,4,6 --context full,memory -o eval/policy\n"
        "  mempo eval --model http://localhost:8000 --tokenizer Qwen/Qwen2.5-7B --dataset test.jsonl \\\n"
        "      --corpus wiki-index --samples 4 -o eval/7b\n"
        "  mempo eval --model outputs/policy --dataset my_task:questions --environment_factory my_task:Environment\n"
        "Writes episodes.jsonl (a trace file, for mempo view and mempo plot) and summary.json (for mempo compare and\n"
        "mempo plot). Run the same command again to continue an evaluation that was stopped.",
    )
    add_task_options(
        evaluate,
        objectives={"type": numbers, "default": [None], "metavar": "K,K"},
        count={"default": 100, "help": "most questions for each number of objectives and each seed; default: 100"},
    )
    evaluate.add_argument("--samples", type=int, default=1, help="episodes of each question; default: 1")
    evaluate.add_argument(
        "--seeds", type=numbers, default=[0], metavar="S,S", help="each draws other questions; default: 0"
    )
    evaluate.add_argument("--concurrency", type=int, default=16, help="episodes at once; default: 16")
    evaluate.add_argument("-o", "--output", default="eval", help="folder for the results; default: eval")
    add_model_options(evaluate, contexts=True)

    comparison = add_command(
        commands,
        "compare",
        run_compare,
        "show how evaluations differ from the first, question by question",
        "  mempo compare eval/grpo eval/mempo                # summary.json files or their folders",
    )
    comparison.add_argument("summaries", nargs="+", help="two or more summary.json files, or folders with one")


# What the scores depend on: a resumed evaluation must have it as it was.
SETTINGS = (
    "model", "served_model", "tokenizer", "tool_choice", "request", "dataset", "corpus", "passages",
    "environment_factory", "reward_funcs", "temperature", "top_p",
)  # fmt: skip
# Of the settings of the prompts; the context is a dimension of the grid.
SHAPES = ("max_turn_length", "max_turns", "context_turns", "context_tokens", "chat_template_kwargs")


def run_eval(args: argparse.Namespace) -> int:
    """Plays, writes and prints; 1 if no episode could be played."""
    from rich.console import Console

    from ..evaluation.grid import EvaluationFolder, Grid, evaluate_grid
    from ..tasks.task import import_reward_funcs

    settings = read_settings(args, max(args.context or [None], key=lambda context: context == "budget"))
    shapes = (*SHAPES, *(TOKEN_BUDGETS if settings_folder(args) else ()))
    depends_on = {name: getattr(args, name) for name in SETTINGS} | {name: getattr(settings, name) for name in shapes}
    folder = EvaluationFolder(args.output, depends_on)
    task = open_named_task(args, args.dataset)
    reward_funcs = import_reward_funcs(args.reward_funcs, task.environment_factory)
    grid = Grid(args.context or [settings.context], args.objectives, args.seeds, args.samples, args.count)
    rows = grid.rows(task)
    left = sum(len(folder.remaining(rows, context)) for context in grid.contexts)
    model, tokenizer = open_model(args)

    def agent(context: str) -> Any:
        return make_agent(model, tokenizer, task.environment_factory, context, args)

    with Watch(len(rows) * len(grid.contexts), left) as watch:
        scores = evaluate_grid(agent, task, grid, folder, args.concurrency, watch, reward_funcs)
    console = Console()
    if watch.errors:
        console.print(f"[red]{watch.errors} episodes ended with an error and are played again next time; the last:")
        console.print(watch.last_error)
    if not scores:
        return 1
    console.print(score_table(scores))
    for score in scores:
        print(details(score))
    print(f"{folder.path}: episodes.jsonl, summary.json")
    return 0


class Watch:
    """A progress bar with the means so far.

    Args:
        total: episodes of the evaluation.
        left: of them to be played.
    """

    def __init__(self, total: int, left: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.errors, self.last_error = 0, ""
        self._scores: list[Scores] = []
        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        self._progress = Progress(*columns)
        self._bar = self._progress.add_task("", total=total, completed=total - left)

    def __enter__(self) -> "Watch":
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def __call__(self, trace: Any) -> None:
        """Counts one episode."""
        from ..evaluation.scores import mean_scores, trace_scores

        if trace["stop_reason"] == "error":
            self.errors, self.last_error = self.errors + 1, trace["error"]
        else:
            self._scores.append(trace_scores(trace))
        means = mean_scores(self._scores) if self._scores else {}
        said = [f"{name} {means[name]:.3f}" for name in ("exact_match", "f1", "reward") if name in means]
        self._progress.update(self._bar, advance=1, description=" ".join(said))


COLUMNS = ("exact_match", "f1", "memory_fidelity", "total_tokens", "peak_tokens")
WITHOUT_ANSWERS = ("reward", "well_formed", "total_tokens", "peak_tokens", "turns")


def score_table(scores: Iterable["Score"]) -> "Table":
    """The scores of one evaluation: means, and 95 % intervals below them."""
    from rich.box import SIMPLE
    from rich.table import Table

    scores = list(scores)
    names = COLUMNS if all("exact_match" in score for score in scores) else WITHOUT_ANSWERS
    table = Table(
        box=SIMPLE,
        padding=(0, 0, 0, 1),
        caption="means and 95 % bootstrap intervals over n questions",
    )
    for name in ("context", "k", "n", *names):
        table.add_column(name.replace("_", "\n"), justify="left" if name == "context" else "right")
    for score in scores:
        estimates: list[Estimate] = [score[name] for name in names]  # type: ignore[literal-required]
        cells = [f"{number(e['mean'])}\n[dim]{number(e['low'])}-{number(e['high'])}" for e in estimates]
        table.add_row(score["context"], str(score["objectives"]), str(score["questions"]), *cells)
    return table


def number(value: float, sign: str = "") -> str:
    """Three decimals below 10, none from 100 on."""
    digits = 3 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return format(value, f"{sign}.{digits}f")


def details(score: "Score") -> str:
    """What the table has no room for, how episodes ended, and what their memories were, in one line."""
    reasons = ", ".join(f"{reason} {count}" for reason, count in score["stop_reasons"].items())
    means: list[tuple[str, Estimate]] = [
        (name, score[name]) for name in ("all_correct", "well_formed", "reward", "turns") if name in score
    ]
    said = ", ".join(f"{name.replace('_', ' ')} {number(estimate['mean'])}" for name, estimate in means)
    line = f"{score['context']}, k = {score['objectives']}: {said}; {reasons}"
    if score["memory_tokens"] is not None:
        line += f"; a memory has {score['memory_tokens']:.0f} tokens"
    probabilities = [p for p in score["answer_probability"] if p is not None]
    if probabilities:
        line += "; P(answer | memory) by turn " + " ".join(f"{p:.3f}" for p in probabilities)
    return line


def run_compare(args: argparse.Namespace) -> int:
    """Prints one table for each evaluation after the first."""
    from rich.console import Console

    from ..evaluation.grid import read_summary
    from ..evaluation.summary import compare

    if len(args.summaries) < 2:
        raise ValueError("one evaluation alone has nothing to be compared with. Name two or more")
    first = read_summary(args.summaries[0])
    for name in args.summaries[1:]:
        table = comparison_table(compare(first, read_summary(name)), args.summaries[0], name)
        Console().print(table)
    return 0


def comparison_table(differences: Sequence["Difference"], first: str, second: str) -> "Table":
    """How `second` differs from `first`; a change whose interval does not hold 0 has a star."""
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(
        box=SIMPLE,
        padding=(0, 0, 0, 1),
        title=f"{second} against {first}",
        caption="change: mean over the n questions of both, with its 95 % interval; * does not hold 0",
    )
    for name in ("context", "k", "n", "metric", "first", "second", "change"):
        table.add_column(name, justify="left" if name in ("context", "metric", "change") else "right")
    for row in differences:
        low, high = row.change["low"], row.change["high"]
        sure = low > 0 or high < 0
        table.add_row(
            row.context,
            str(row.objectives),
            str(row.questions),
            row.metric.replace("_", " "),
            number(row.first),
            number(row.second),
            f"{number(row.change['mean'], '+')} ({number(low, '+')} to {number(high, '+')}){' *' if sure else ''}",
            style="bold" if sure else "",
        )
    return table
