"""`mempo run`: ask an agent one question, and watch it."""

import argparse
import re
from typing import TYPE_CHECKING, Any

from .options import (
    add_command,
    add_model_options,
    add_task_options,
    make_agent,
    open_model,
    open_named_task,
    settings_folder,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from ..types import Episode, Message

_STYLES = {"mem": "bold black on bright_yellow", "think": "dim", "tool_call": "cyan", "answer": "bold green"}
_BLOCK = re.compile(rf"<({'|'.join(_STYLES)})>.*?(?:</\1>|$)", re.DOTALL)
_RESULT_CHARACTERS = 1_200


def add_commands(commands: Any) -> None:
    """Adds `run`."""
    parser = add_command(
        commands,
        "run",
        run,
        "ask an agent a question and watch its turns",
        '  mempo run "Who directed Alien?; When was he born?" --model outputs/policy --corpus passages.jsonl\n'
        "  mempo run world --model outputs/policy                  # a question of the embedded world\n"
        '  mempo run "..." --model https://api.openai.com/v1 --served_model gpt-4.1 --corpus wiki-index',
    )
    parser.add_argument(
        "question", help='a question, or several separated by "; "; or a dataset, of which one question is asked'
    )
    add_task_options(parser, dataset=None, reward_funcs=None, count=None)
    parser.add_argument("--seed", type=int, help="of the sampling, and of the choice of a dataset's question")
    parser.add_argument("--trace", help="append the episode to this trace file, for mempo view")
    add_model_options(parser)


def run(args: argparse.Namespace) -> int:
    """Plays the question; 0 if it was answered, 1 if not."""
    from rich.console import Console

    from ..tasks.search.rewards import extract_answer

    factory, row = _question(args)
    model, tokenizer = open_model(args)
    agent = make_agent(model, tokenizer, factory, args.context, args)
    console = Console()
    console.rule(row["prompt"][-1]["content"], style="bold")
    episode = agent.run(row, Printer(console), args.seed)
    console.print(summary(episode, row.get("answers")), soft_wrap=True)
    if args.trace:
        from ..traces.convert import episode_trace
        from ..traces.file import write_traces

        write_traces(args.trace, [episode_trace(episode, agent.context, tokenizer=tokenizer)])
    return 0 if extract_answer(episode.messages) is not None else 1


def _question(args: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """The environment factory, and the row to play: of a dataset, or a text to search for."""
    from functools import partial

    from ..rollout.prompt_settings import saved_settings
    from ..tasks.search.environment import SearchEnvironment
    from ..tasks.search.prompts import SYSTEM_PROMPT, build_prompt
    from ..tasks.task import is_dataset, open_retriever

    if is_dataset(args.question):
        task = open_named_task(args, args.question)
        (row,) = task.rows(args.objectives, 1, args.seed or 0)
        return task.environment_factory, row
    if args.environment_factory is not None:
        raise ValueError(
            "a question alone does not have the prompt of your task. Give a dataset in its place, such as "
            "my_task:questions, of which one is asked"
        )
    if args.corpus is None:
        raise ValueError("the question has no corpus to search. Name one with --corpus")
    factory = partial(SearchEnvironment, open_retriever(args.corpus), top_k=args.passages)
    system = saved_settings(settings_folder(args)).get("system_prompt", SYSTEM_PROMPT)
    return factory, {"prompt": build_prompt(args.question, system)}


class Printer:
    """Prints messages as they arrive: turns in a frame with a number, tool results indented below."""

    def __init__(self, console: "Console") -> None:
        self.console = console
        self.turns = 0

    def __call__(self, message: "Message") -> None:
        """Prints one message."""
        from rich.padding import Padding
        from rich.panel import Panel
        from rich.text import Text

        if message["role"] == "assistant":
            self.turns += 1
            title = f"turn {self.turns}"
            self.console.print(Panel(highlight(message["content"]), title=title, title_align="left"))
        else:
            text = message["content"]
            cut = text[:_RESULT_CHARACTERS] + (" ..." if len(text) > _RESULT_CHARACTERS else "")
            self.console.print(Padding(Text(cut, style="dim italic"), (0, 0, 1, 4)))


def highlight(turn: str) -> "Text":
    """A turn's text with its memory, thoughts, call and answer in their styles."""
    from rich.text import Text

    text = Text(turn)
    for block in _BLOCK.finditer(turn):
        text.stylize(_STYLES[block[1]], *block.span())
    return text


def summary(episode: "Episode", gold: list[str] | None) -> "Text":
    """The answer, and what it cost."""
    from rich.text import Text

    from ..tasks.search.rewards import extract_answer

    text = Text("\nanswer: ").append(extract_answer(episode.messages) or "none", style=_STYLES["answer"])
    if gold:
        text.append(f"\ngold:   {'; '.join(gold)}")
    text.append(
        f"\n{episode.stop_reason} after {len(episode.turns)} turns and {episode.tool_calls} tool calls "
        f"({episode.tool_failures} failed); {episode.total_tokens} tokens in all, {episode.peak_tokens} at "
        "the peak"
    )
    if episode.error:
        text.append(f"\n{episode.error}", style="red")
    return text
