"""`mempo traces`, `mempo sft` and `mempo train`: from questions to a policy."""

import argparse
import sys
from dataclasses import fields
from typing import Any

from ..sft.arguments import SFTArguments
from .arguments import TrainArguments
from .options import (
    add_command,
    add_model_options,
    add_task_options,
    make_agent,
    open_model,
    open_named_task,
    option_help,
)

_DATASET_HELP = next(option for option in fields(TrainArguments) if option.name == "dataset").metadata["help"]


def add_commands(commands: Any) -> None:
    """Adds `traces`, `sft` and `train`."""
    traces = add_command(
        commands,
        "traces",
        run_traces,
        "write conversations for a cold start to a trace file",
        "  mempo traces hotpot_train_v1.1.json traces.jsonl --objectives 2 --count 10000    # along gold searches\n"
        "  mempo traces questions.jsonl traces.jsonl --corpus wiki-index \\\n"
        "      --model https://api.openai.com/v1 --served_model gpt-4.1                      # from a teacher\n"
        "A run that was stopped continues when the same command is run again.",
    )
    traces.add_argument("dataset", help=_DATASET_HELP)
    traces.add_argument("output", help="trace file; wrong answers go to OUTPUT's name with .rejected before the suffix")
    add_task_options(traces, dataset=None)
    traces.add_argument("--seed", type=int, default=0, help="of the order and of a teacher's sampling; default: 0")
    traces.add_argument("--concurrency", type=int, default=16, help="episodes of a teacher at once; default: 16")
    add_model_options(traces, required=False)

    add_script(
        commands,
        "sft",
        run_sft,
        "cold start: train on the turns of a trace file",
        SFTArguments,
        "TRL's SFTConfig and ModelConfig",
        "  mempo sft --traces traces.jsonl --model_name_or_path Qwen/Qwen2.5-7B --output_dir outputs/cold-start",
    )
    add_script(
        commands,
        "train",
        run_train,
        "train a policy with MemPO",
        TrainArguments,
        "MemPOConfig and of TRL's ModelConfig",
        "  mempo train --dataset hotpot_train_v1.1.json --objectives 2 --context memory \\\n"
        "      --model_name_or_path outputs/cold-start --use_vllm --output_dir outputs/policy\n"
        "  accelerate launch -m mempo_trl.cli train --config train.yaml                      # on several GPUs",
    )


def add_script(commands: Any, name: str, run: Any, help: str, arguments: type, configs: str, examples: str) -> None:
    """A command whose options TRL's parser reads. Here are only those for its `--help`, which must be quick."""
    parser = add_command(
        commands, name, run, help, f"{examples}\nEvery option of {configs} can be set too; --help_all lists them."
    )
    parser.set_defaults(passes_on=True)
    parser.add_argument("--config", help="YAML file with any of the options")
    parser.add_argument("--help_all", action="store_true", help="list every option, with TRL's own")
    for option in fields(arguments):
        parser.add_argument(f"--{option.name}", help=option_help(option))


def parse_script(args: argparse.Namespace, *dataclasses: Any, **defaults: Any) -> tuple[Any, ...]:
    """Reads a command's options into dataclasses with `TrlParser`, `--config` files included."""
    from .parsing import ScriptParser

    parser = ScriptParser(dataclasses, prog=f"mempo {args.command}")
    parser.set_defaults(**defaults)
    return parser.parse_args_and_config(["--help"] if args.help_all else args.script_argv)


def run_traces(args: argparse.Namespace) -> int:
    """Writes traces; 0 if there is one at the end."""
    from collections import Counter

    from rich.progress import Progress

    from ..sft import demonstrations
    from ..tasks.task import import_reward_funcs

    task = open_named_task(args, args.dataset)
    reward_funcs = import_reward_funcs(args.reward_funcs, task.environment_factory)
    rows = task.rows(args.objectives, args.count, args.seed)
    left = demonstrations.remaining_rows(args.output, rows)
    if args.model is None:
        context = args.context or "memory"
        trajectories: Any = demonstrations.expert_episodes(left, task.environment_factory)
    else:
        model, tokenizer = open_model(args)
        agent = make_agent(model, tokenizer, task.environment_factory, args.context, args)
        context = agent.context
        trajectories = demonstrations.teacher_episodes(left, agent, args.concurrency, args.seed)
    with Progress() as progress:
        bar = progress.add_task("traces", total=len(rows), completed=len(rows) - len(left))
        counts = demonstrations.write_demonstrations(
            args.output, trajectories, context, lambda _: progress.advance(bar), reward_funcs
        )
    print(f"{args.output}: {said(Counter(done=len(rows) - len(left)) + counts)}")
    return 0 if counts["kept"] or not left else 1


def said(counts: dict[str, int]) -> str:
    """Counts in words: `3 kept, 1 rejected`."""
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "nothing to do"


def run_sft(args: argparse.Namespace) -> None:
    """Trains on the turns of a trace file with TRL's `SFTTrainer`."""
    from trl import ModelConfig, SFTConfig

    from ..sft.fine_tune import fine_tune

    # An episode is longer than TRL's 1024 tokens, and a row that is cut teaches half a turn.
    fine_tune(*parse_script(args, SFTArguments, SFTConfig, ModelConfig, max_length=8192))


def run_train(args: argparse.Namespace) -> None:
    """Trains with `MemPOTrainer`."""
    from .train import main, parse_options

    main(*parse_options(["--help"] if args.help_all else args.script_argv, prog="mempo train"))


def script_main(name: str) -> None:
    """Runs one command with the process's arguments: for the scripts in `examples/`."""
    from . import main

    sys.exit(main([name, *sys.argv[1:]]))
