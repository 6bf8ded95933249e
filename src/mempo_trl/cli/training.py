"""`mempo traces`, `mempo sft` and `mempo train`: from questions to a policy."""

import argparse
import sys
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from .options import add_command, add_model_options, make_agent, open_model


@dataclass
class SFTArguments:
    """What `mempo sft` takes beside the options of TRL's `SFTConfig` and `ModelConfig`."""

    traces: str = field(metadata={"help": "trace file of mempo traces or mempo eval"})
    context: str = field(
        default="memory",
        metadata={"help": "what a turn sees: memory (a row for each turn) or full", "choices": ["memory", "full"]},
    )
    context_turns: int = field(default=1, metadata={"help": "past turns that are seen in memory context"})
    min_reward: float = field(default=1.0, metadata={"help": "traces with a smaller reward are left out"})


@dataclass
class TrainArguments:
    """What `mempo train` takes beside the options of `MemPOConfig` and of TRL's `ModelConfig`."""

    questions: str = field(
        metadata={"help": "world, fanoutqa, a HotpotQA file (.json) or a question file (.jsonl) to train on"}
    )
    corpus: str | None = field(
        default=None, metadata={"help": "index folder, corpus file or URL of a search server; default: the questions'"}
    )
    objectives: int | None = field(
        default=None, metadata={"help": "questions that are joined into one (the paper's 2); default: as they come"}
    )
    count: int | None = field(default=None, metadata={"help": "most questions; default: all"})
    passages: int = field(default=3, metadata={"help": "passages that a search finds"})
    trace_every: int = field(
        default=20, metadata={"help": "steps between two batches in OUTPUT_DIR/traces.jsonl; 0 for none"}
    )


def add_commands(commands: Any) -> None:
    """Adds `traces`, `sft` and `train`."""
    traces = add_command(
        commands,
        "traces",
        run_traces,
        "write conversations for a cold start to a trace file",
        "  mempo traces hotpot_train_v1.1.json traces.jsonl --objectives 2 --count 10000    # along gold searches\n"
        "  mempo traces questions.jsonl traces.jsonl --corpus wiki-index \\\n"
        "      --model https://api.openai.com/v1 --served-model gpt-4.1                      # from a teacher\n"
        "A run that was stopped goes on where it was.",
    )
    traces.add_argument("questions", help="world, fanoutqa, a HotpotQA file (.json) or a question file (.jsonl)")
    traces.add_argument("output", help="trace file; wrong answers go to OUTPUT's name with .rejected before the suffix")
    traces.add_argument("--corpus", help="index folder, corpus file or URL of a search server")
    traces.add_argument("--objectives", type=int, help="questions that are joined into one; default: as they come")
    traces.add_argument("--count", type=int, help="most questions; default: all (world: 100)")
    traces.add_argument("--seed", type=int, default=0, help="of the order and of a teacher's sampling; default: 0")
    traces.add_argument("--context", choices=("memory", "full"), default="memory", help="a teacher's; default: memory")
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
        "  mempo train --questions hotpot_train_v1.1.json --objectives 2 --context memory \\\n"
        "      --model_name_or_path outputs/cold-start --use_vllm --output_dir outputs/policy\n"
        "  accelerate launch -m mempo_trl.cli train --config train.yaml                      # on several GPUs",
    )


def add_script(commands: Any, name: str, run: Any, help: str, arguments: type, configs: str, examples: str) -> None:
    """A command whose options TRL's parser reads. Here are only those for its `--help`, which must be quick."""
    parser = add_command(
        commands, name, run, help, f"{examples}\nEvery option of {configs} can be set too; --help-all lists them."
    )
    parser.set_defaults(passes_on=True)
    parser.add_argument("--config", help="YAML file with any of the options")
    parser.add_argument("--help-all", action="store_true", help="list every option, with TRL's own")
    for option in fields(arguments):
        default = "" if option.default in (MISSING, None) else f"; default: {option.default}"
        parser.add_argument(f"--{option.name}", help=option.metadata["help"] + default)


def parse_script(args: argparse.Namespace, *dataclasses: Any, **defaults: Any) -> tuple[Any, ...]:
    """Reads a command's options into dataclasses with `TrlParser`, `--config` files included."""
    from trl import TrlParser

    parser = TrlParser(dataclasses, prog=f"mempo {args.command}")
    parser.set_defaults(**defaults)
    return parser.parse_args_and_config(["--help"] if args.help_all else args.script_argv)


def run_traces(args: argparse.Namespace) -> int:
    """Writes traces; 0 if there is one at the end."""
    from collections import Counter

    from rich.progress import Progress

    from ..sft import demonstrations
    from ..tasks.task import open_task

    task = open_task(args.questions, args.corpus, args.top_k)
    rows = task.rows(args.objectives, args.count, args.seed)
    left = demonstrations.remaining_rows(args.output, rows)
    if args.model is None:
        trajectories: Any = demonstrations.expert_trajectories(left, task.environment_factory)
    else:
        model, tokenizer = open_model(args)
        agent = make_agent(model, tokenizer, task.environment_factory, args.context, args)
        trajectories = demonstrations.teacher_trajectories(left, agent, args.concurrency, args.seed)
    with Progress() as progress:
        bar = progress.add_task("traces", total=len(rows), completed=len(rows) - len(left))
        counts = demonstrations.write_demonstrations(
            args.output, trajectories, args.context, lambda _: progress.advance(bar)
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
    from trl import ModelConfig

    from ..training.config import MemPOConfig
    from .train import train

    train(*parse_script(args, TrainArguments, MemPOConfig, ModelConfig))


def script_main(name: str) -> None:
    """Runs one command with the process's arguments: for the scripts in `examples/`."""
    from . import main

    sys.exit(main([name, *sys.argv[1:]]))
